from __future__ import annotations

import json
import pathlib
import socket
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from determined import core, errors
from determined._core._distributed import agree
from determined._core._stars import Chief, Worker
from determined._storage import DirectoryStorage

TORCH = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
}
DEEPSPEED = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "LOCAL_SIZE": "1",
    "CROSS_RANK": "0",
    "CROSS_SIZE": "1",
}


class Horovod:
    def __init__(self, size: int) -> None:
        self._size = size

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return self._size

    local_rank = cross_rank = rank
    local_size = cross_size = size


def assert_alone(context: core.DistributedContext) -> None:
    assert (context.get_rank(), context.get_local_rank(), context.get_size(), context.get_num_agents()) == (
        0,
        0,
        1,
        1,
    )
    assert (context.local_size, context.cross_rank, context.cross_size) == (1, 0, 1)
    for gather in (context.gather, context.gather_local, context.allgather, context.allgather_local):
        assert gather("x") == ["x"]
    assert context.broadcast("x") == "x"
    assert context.broadcast_local("x") == "x"
    context.close()


def make(origin: str, monkeypatch: pytest.MonkeyPatch, size: int) -> core.DistributedContext:
    if origin == "dummy":
        return core.DummyDistributedContext()
    if origin == "horovod":
        return core.DistributedContext.from_horovod(Horovod(size))
    for name, value in (TORCH if origin == "torch" else DEEPSPEED).items():
        monkeypatch.setenv(name, str(size) if name == "WORLD_SIZE" else value)
    if origin == "torch":
        return core.DistributedContext.from_torch_distributed()
    return core.DistributedContext.from_deepspeed()


@pytest.mark.parametrize("origin", ["dummy", "horovod", "torch", "deepspeed"])
def test_one_process_is_its_own_chief(monkeypatch: pytest.MonkeyPatch, origin: str) -> None:
    assert_alone(make(origin, monkeypatch, 1))


def test_an_unlaunched_script_gets_the_missing_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TORCH:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(KeyError, match="RANK"):
        core.DistributedContext.from_torch_distributed()


def test_numbers_are_given_together_or_not_at_all() -> None:
    none: Any = None
    assert_alone(
        core.DistributedContext(
            rank=none, size=none, local_rank=none, local_size=none, cross_rank=none, cross_size=none
        )
    )
    with pytest.raises(ValueError, match="not 5 of 6"):
        core.DistributedContext(rank=0, size=none, local_rank=0, local_size=1, cross_rank=0, cross_size=1)


@pytest.mark.parametrize("gpus", [0, 2])
def test_tensorflow_gets_the_strategy_for_its_devices(monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    tf = types.ModuleType("tensorflow")
    tf.config = types.SimpleNamespace(list_physical_devices=lambda kind: [kind] * gpus)  # type: ignore[attr-defined]
    tf.distribute = types.SimpleNamespace(  # type: ignore[attr-defined]
        MirroredStrategy=lambda: "mirrored", get_strategy=lambda: "default"
    )
    monkeypatch.setitem(sys.modules, "tensorflow", tf)
    context, strategy = core.DistributedContext.from_tf_config()
    assert_alone(context)
    assert strategy == ("mirrored" if gpus else "default")


def test_tensorflow_configurations_of_other_tasks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"worker": ["a:1", "b:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"task": {"type": "ps", "index": 0}, "cluster": cluster}))
    with pytest.raises(RuntimeError, match="'ps'"):
        core.DistributedContext.from_tf_config()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def together(
    work: Callable[[core.DistributedContext], Any], *, machines: Sequence[int], **options: Any
) -> list[Any]:
    """Runs `work` as each rank of a training on machines with so many processes; gives results and errors by
    rank.
    """
    size, port = sum(machines), free_port()
    outcomes: list[Any] = [None] * size

    def run(rank: int, local_rank: int, machine: int) -> None:
        try:
            context = core.DistributedContext(
                rank=rank,
                size=size,
                local_rank=local_rank,
                local_size=machines[machine],
                cross_rank=machine,
                cross_size=len(machines),
                chief_ip="127.0.0.1",
                pub_port=port,
                **options,
            )
            try:
                outcomes[rank] = work(context)
            finally:
                context.close()
        except Exception as error:
            outcomes[rank] = error

    places = [(local, machine) for machine, count in enumerate(machines) for local in range(count)]
    threads = [threading.Thread(target=run, args=(rank, *place)) for rank, place in enumerate(places)]
    # The chief is not the first to come.
    for thread in reversed(threads):
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), outcomes
    return outcomes


MACHINES = [
    pytest.param([3], id="one machine"),
    pytest.param([2, 2], id="two"),
    pytest.param([3, 1], id="unequal"),
]


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DET_DISTRIBUTED_SECRET", "between the processes of this test")


@pytest.mark.usefixtures("secret")
@pytest.mark.parametrize("force_tcp", [False, True], ids=["files", "tcp"])
@pytest.mark.parametrize("machines", MACHINES)
def test_every_rank_gets_what_all_give(machines: list[int], force_tcp: bool) -> None:
    def work(context: core.DistributedContext) -> Any:
        mine = (context.rank, context.cross_rank, context.local_rank)
        return (
            context.gather(mine),
            context.allgather(mine),
            context.broadcast(mine),
            context.gather_local(mine),
            context.allgather_local(mine),
            context.broadcast_local(mine),
        )

    ranks = [(m, local) for m, count in enumerate(machines) for local in range(count)]
    all_ranks = [(rank, *place) for rank, place in enumerate(ranks)]
    for (rank, machine, local), outcome in zip(
        all_ranks, together(work, machines=machines, force_tcp=force_tcp)
    ):
        neighbours = [one for one in all_ranks if one[1] == machine]
        assert outcome == (
            all_ranks if rank == 0 else None,
            all_ranks,
            all_ranks[0],
            neighbours if local == 0 else None,
            neighbours,
            neighbours[0],
        ), rank


def test_processes_of_one_machine_need_no_secret(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert together(lambda context: context.allgather(context.rank), machines=[3]) == [[0, 1, 2]] * 3
    (directory,) = tmp_path.glob("determined-*")
    assert directory.stat().st_mode & 0o777 == 0o700
    # Once more, with what is left of the first time.
    assert together(lambda context: context.broadcast(context.rank), machines=[3]) == [0, 0, 0]


def test_several_machines_off_the_cluster_need_a_secret() -> None:
    outcomes = together(lambda context: context.rank, machines=[1, 1])
    assert all("DET_DISTRIBUTED_SECRET" in str(outcome) for outcome in outcomes), outcomes


@pytest.mark.usefixtures("secret")
def test_calls_out_of_step_are_named() -> None:
    def work(context: core.DistributedContext) -> Any:
        return context.gather("x") if context.rank else context.allgather("x")

    outcomes = together(work, machines=[2])
    assert "out of step" in str(outcomes[0]) and "rank 1 gather()" in str(outcomes[0]), outcomes


@pytest.mark.usefixtures("secret")
def test_a_process_that_ends_ends_the_wait_of_all() -> None:
    def work(context: core.DistributedContext) -> Any:
        if context.rank == 2:
            raise ValueError("boom")
        return context.allgather("x")

    outcomes = together(work, machines=[4])
    assert str(outcomes[2]) == "boom"
    assert isinstance(outcomes[0], errors.DistributedError) and "rank 2 is gone" in str(outcomes[0])
    assert "rank 0 is gone" in str(outcomes[1]) and "rank 0 is gone" in str(outcomes[3])


@pytest.mark.usefixtures("secret")
def test_all_agree_or_all_fail() -> None:
    def work(context: core.DistributedContext, failing: int) -> Any:
        def part() -> int:
            if context.rank == failing:
                raise OSError("disk full")
            return context.rank

        return agree(context, "storing its part", part)

    assert together(lambda context: work(context, 9), machines=[2, 1]) == [[0, 1, 2]] * 3
    outcomes = together(lambda context: work(context, 1), machines=[2, 1])
    assert str(outcomes[1]) == "disk full"
    for rank in (0, 2):
        assert "rank 1 failed while storing its part: OSError: disk full" in str(outcomes[rank])


@pytest.mark.usefixtures("secret")
def test_strangers_are_sent_away_and_never_received_from() -> None:
    met: list[bytes] = []

    def stranger(port: int) -> None:
        for sent in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(4 + 32 + 32)):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
                received = b""
                while piece := connection.recv(100):
                    received += piece
                met.append(received)

    secret, address = b"secret", ("127.0.0.1", 0)
    chief = Chief(2, address=address, secret=secret, what="test")
    port = chief.port
    thread = threading.Thread(target=lambda: (stranger(port), joined.append(worker())))
    joined: list[Any] = []

    def worker() -> Any:
        star = Worker(1, address=("127.0.0.1", port), secret=lambda: secret, what="test")
        star.gather("gather", {"from": 1})
        star.close()

    thread.start()
    chief.meet()
    assert chief.gather("gather", 0) == [0, {"from": 1}]
    thread.join(30)
    chief.close()
    # Nothing but the challenge.
    assert [len(one) for one in met] == [32, 32, 32]


def test_a_stranger_as_the_chief_is_not_believed() -> None:
    def pretend(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.sendall(bytes(32))
            connection.recv(1000)
            connection.sendall(bytes(32))

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=pretend, args=(server,))
        thread.start()
        with pytest.raises(errors.DistributedError, match="another program uses the port"):
            Worker(1, address=server.getsockname()[:2], secret=lambda: b"s", what="test")
        thread.join(30)


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with pytest.raises(errors.DistributedError, match=f"port {server.getsockname()[1]}"):
            Chief(2, address=server.getsockname()[:2], secret=b"s", what="test")


@pytest.mark.usefixtures("secret")
def test_the_context_of_a_failed_process_stays_until_its_error_is_shown() -> None:
    shown = threading.Event()

    def work(dist: core.DistributedContext) -> Any:
        if dist.rank == 0:
            try:
                dist.allgather(None)
            finally:
                assert shown.is_set()
        try:
            with core.Context(
                core.DummyCheckpointContext(dist, DirectoryStorage("/nonexistent")), distributed=dist
            ):
                raise ValueError("boom")
        except ValueError:
            shown.set()
            raise

    outcomes = together(work, machines=[2])
    assert isinstance(outcomes[0], errors.DistributedError), outcomes
    assert str(outcomes[1]) == "boom"


def test_a_closed_context_is_reported_as_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(context: core.DistributedContext) -> Any:
        context.close()
        return context.broadcast(1)

    monkeypatch.setenv("DET_DISTRIBUTED_SECRET", "s")
    assert all("is closed" in str(outcome) for outcome in together(work, machines=[2]))
