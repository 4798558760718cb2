from __future__ import annotations

import json
import sys
import types
from typing import Any

import pytest

from determined import core, errors

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


@pytest.mark.parametrize("origin", ["horovod", "torch", "deepspeed"])
def test_more_processes_are_refused_plainly(monkeypatch: pytest.MonkeyPatch, origin: str) -> None:
    with pytest.raises(
        NotImplementedError, match="4 processes was asked for; this package trains with one"
    ) as caught:
        make(origin, monkeypatch, 4)
    assert isinstance(caught.value, errors.DeterminedError)


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


def test_tensorflow_configurations_of_several_or_other_tasks_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = {"worker": ["a:1", "b:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"task": {"type": "worker", "index": 0}, "cluster": cluster}))
    with pytest.raises(errors.UnsupportedDistributed):
        core.DistributedContext.from_tf_config()
    monkeypatch.setenv("TF_CONFIG", json.dumps({"task": {"type": "ps", "index": 0}, "cluster": cluster}))
    with pytest.raises(RuntimeError, match="'ps'"):
        core.DistributedContext.from_tf_config()
