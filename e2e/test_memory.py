"""Memory of the master: a single request, stream or task adds little to it, whatever its client does.

The bounds are generous, for allocators and for debug builds; what they guard against was several hundred megabytes each.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pathlib
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import wire
from configs import experiment
from harness import ApiError, Cluster, archive_entry
from waiting import wait_for

pytestmark = pytest.mark.hostile

MIB = 1 << 20
# What one request or stream may add at most.
MOST = 100 * MIB
# No answer within this time is none.
PATIENCE = 120.0
CONFIG = json.dumps(experiment("memory", "true"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        # What is refused is warned of.
        cluster.expect_alarm(r"\bWARN\b")
        yield cluster


def resident(cluster: Cluster, what: str = "VmRSS") -> int:
    """Bytes of the master in memory: now (`VmRSS`), or at most so far (`VmHWM`)."""
    text = pathlib.Path(f"/proc/{cluster.part('master').pid}/status").read_text()
    return int(re.search(rf"{what}:\s+(\d+) kB", text)[1]) * 1024


@contextlib.contextmanager
def adds_little(cluster: Cluster, most: int = MOST) -> Iterator[None]:
    """What happens inside adds at most so many bytes at any moment."""
    pathlib.Path(f"/proc/{cluster.part('master').pid}/clear_refs").write_text("5")
    before = resident(cluster)
    yield
    added = resident(cluster, "VmHWM") - before
    print(f"memory: {before / MIB:.0f} MiB before, +{added / MIB:.0f} MiB at most")
    assert added < most, f"{added / MIB:.0f} MiB were added"


def head(cluster: Cluster, method: str, path: str, length: int = 0) -> bytes:
    token = cluster.token("admin")
    text = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\nContent-Length: {length}\r\n\r\n"
    return text.encode()


def post(cluster: Cluster, path: str, body: bytes, within: float = PATIENCE) -> wire.Reply:
    return wire.exchange(cluster.port, head(cluster, "POST", path, len(body)) + body, within=within)


def submit(cluster: Cluster, size: int, config: str = CONFIG) -> int:
    """An experiment that does not run, with a file of so many random bytes."""
    entry = archive_entry("noise", os.urandom(size))
    body = {"config": config, "modelDefinition": [entry], "activate": False}
    return cluster.api("POST", "/api/v1/experiments", body, user="admin")["experiment"]["id"]


def running(cluster: Cluster, name: str) -> tuple[int, int, str]:
    """An experiment, its trial and the allocation on which that runs."""
    run = cluster.submit(experiment(name, "sleep 3600", resources={"slots_per_trial": 0}))
    trial = cluster.only_trial(run)["id"]
    task = cluster.api("GET", f"/api/v1/trials/{trial}")["trial"]["taskId"]

    def allocation() -> Any:
        all_of_task = cluster.api("GET", f"/api/v1/tasks/{task}")["task"]["allocations"]
        return next((a["allocationId"] for a in all_of_task if a["state"].endswith("RUNNING")), None)

    return run, trial, wait_for("the trial to run", allocation, within=60, seen=cluster.describe)


@pytest.mark.parametrize(
    "config",
    [
        "a: [" + "0," * 1_900_000 + "0]",
        "a: [" + "0," * 500_000 + "0]",
        "hyperparameters:\n" + "\n".join(f"  h{n}: {n}" for n in range(60_000)),
        "a: &a [" + "0," * 40_000 + "0]\nb: [*a, *a, *a, *a]",
    ],
    ids=["3.8 MB", "1 MB", "60,000 hyperparameters", "aliases"],
)
def test_configurations_are_refused_for_their_size_before_they_cost_memory(cluster: Cluster, config: str) -> None:
    body = json.dumps({"config": config, "activate": False}).encode()
    with adds_little(cluster), ThreadPoolExecutor(8) as pool:
        for reply in pool.map(lambda _: post(cluster, "/api/v1/experiments", body), range(8)):
            assert reply.status == 400, str(reply)


def test_a_stream_of_wide_reports_is_counted_in_bytes(cluster: Cluster) -> None:
    run, trial, _ = running(cluster, "wide")
    batches = ",".join(f'{{"loss":{n}.5,"accuracy":0.25}}' for n in range(10_000))

    def report(step: int) -> None:
        metrics = f'{{"avgMetrics":{{"loss":1.5}},"batchMetrics":[{batches}]}}'
        body = f'{{"group":"training","metrics":{{"trialId":{trial},"trialRunId":1,"stepsCompleted":{step},"metrics":{metrics}}}}}'
        reply = post(cluster, f"/api/v1/trials/{trial}/metrics", body.encode())
        assert reply.status == 200, str(reply)

    with adds_little(cluster), ThreadPoolExecutor(2) as pool:
        list(pool.map(report, range(1, 101)))
    with adds_little(cluster):
        path = f"/api/v1/trials/metrics/training_metrics?trialIds={trial}"
        with socket.create_connection(("127.0.0.1", cluster.port), timeout=PATIENCE) as connection:
            connection.sendall(head(cluster, "GET", path).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            values = tail = 0
            while piece := connection.recv(1 << 16):
                tail += len(piece)
                values += piece.count(b"accuracy")
    # Some names are split across two pieces.
    assert values > 990_000, f"{values} values in {tail} bytes"
    cluster.api("POST", f"/api/v1/experiments/{run}/kill", user="admin")


def test_a_report_of_many_objects_is_refused_before_they_are_made(cluster: Cluster) -> None:
    trial = cluster.only_trial(submit(cluster, 10))["id"]
    values = "{}," * 2_000_000 + "{}"
    body = (
        f'{{"group":"g","metrics":{{"trialRunId":1,"stepsCompleted":1,"metrics":{{"avgMetrics":{{"a":[{values}]}}}}}}}}'
    )
    with adds_little(cluster):
        reply = post(cluster, f"/api/v1/trials/{trial}/metrics", body.encode())
    assert reply.status in (400, 413) and b"at most" in reply.body, str(reply)


@pytest.mark.parametrize("path", ["/api/v1/experiments/{}/model_def", "/experiments/{}/model_def"])
def test_readers_of_a_model_definition_that_do_not_read_on(cluster: Cluster, path: str) -> None:
    path = path.format(submit(cluster, 24 * MIB))
    with adds_little(cluster), contextlib.ExitStack() as stack:
        slow = [
            stack.enter_context(socket.create_connection(("127.0.0.1", cluster.port), timeout=PATIENCE))
            for _ in range(10)
        ]
        for connection in slow:
            connection.sendall(head(cluster, "GET", path))
        for connection in slow:
            assert connection.recv(1000).startswith(b"HTTP/1.1 200 "), "each has its answer's beginning"
        reply = wire.exchange(cluster.port, head(cluster, "GET", path), within=PATIENCE)
        assert reply.status == 200 and len(reply.body) > 24 * MIB, "and others get it whole"


def test_readers_of_a_file_of_a_model_definition_that_do_not_read_on(cluster: Cluster) -> None:
    body = {"config": CONFIG, "modelDefinition": [archive_entry("zeros", bytes(15 * MIB))], "activate": False}
    run = cluster.api("POST", "/api/v1/experiments", body, user="admin")["experiment"]["id"]
    path = f"/experiments/{run}/file/download?path=zeros"
    with adds_little(cluster), contextlib.ExitStack() as stack:
        slow = [
            stack.enter_context(socket.create_connection(("127.0.0.1", cluster.port), timeout=PATIENCE))
            for _ in range(40)
        ]
        for connection in slow:
            connection.sendall(head(cluster, "GET", path))
        statuses = [connection.recv(12)[-3:] for connection in slow]
        assert b"200" in statuses and set(statuses) == {b"200", b"503"}, statuses


def test_a_tree_of_deep_directories_is_made_while_it_is_read(cluster: Cluster) -> None:
    deep = [archive_entry(f"{n}/{'d/' * 62}f", b"") for n in range(1_500)]
    body = {"config": CONFIG, "modelDefinition": deep, "activate": False}
    run = cluster.api("POST", "/api/v1/experiments", body, user="admin")["experiment"]["id"]
    with adds_little(cluster), ThreadPoolExecutor(6) as pool:
        trees = pool.map(lambda _: cluster.api("GET", f"/api/v1/experiments/{run}/file_tree", user="admin"), range(6))
        assert [len(tree["files"]) for tree in trees] == [1_500] * 6


def test_slow_senders_of_large_bodies_hold_up_no_other(cluster: Cluster) -> None:
    finished = threading.Event()
    with contextlib.ExitStack() as stack:

        def trickle(connection: socket.socket) -> None:
            while not finished.wait(0.5):
                connection.sendall(b"x" * 20_000)

        slow = [
            stack.enter_context(socket.create_connection(("127.0.0.1", cluster.port), timeout=PATIENCE))
            for _ in range(4)
        ]
        threads = [threading.Thread(target=trickle, args=[connection]) for connection in slow]
        for connection in slow:
            connection.sendall(head(cluster, "POST", "/api/v1/experiments", 150_000_000) + b'{"config":"' + b"x" * MIB)
        for thread in threads:
            thread.start()
        try:
            content = base64.b64encode(os.urandom(3 * MIB)).decode()
            entry = {"path": "noise", "type": 48, "content": content}
            body = json.dumps({"config": CONFIG, "modelDefinition": [entry], "activate": False}).encode()
            reply = post(cluster, "/api/v1/experiments", body, within=40)
            assert reply.status == 200, str(reply)
        finally:
            finished.set()
            for thread in threads:
                thread.join()
        for connection in slow:
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):
                connection.recv(1)


def test_what_members_gave_is_released_with_their_allocation(cluster: Cluster) -> None:
    def in_use() -> int:
        budgets = cluster.api("GET", "/api/v1/master/memory", user="admin")["budgets"]
        return next(int(budget["usedBytes"]) for budget in budgets if budget["name"] == "all_gathers")

    run, _, allocation = running(cluster, "gather")
    path = f"/api/v1/allocations/{allocation}/all_gather"
    text = "x" * (3 * MIB)
    with adds_little(cluster):
        for n in range(12):
            body = json.dumps({"requestUuid": f"member-{n}", "numPeers": 1, "data": {"text": text}}).encode()
            reply = post(cluster, path, body)
            assert reply.status == 200 and len(reply.body) > 3 * MIB, str(reply)
    assert 3 * MIB < in_use() <= 16 * MIB
    cluster.api("POST", f"/api/v1/experiments/{run}/kill", user="admin")
    cluster.wait_experiment(run, "CANCELED")
    wait_for("what was given to be released", lambda: in_use() == 0, within=30, seen=cluster.describe)
    with pytest.raises(ApiError, match="has ended"):
        cluster.api("POST", path, {"requestUuid": "late", "numPeers": 1, "data": {}}, user="admin")
    assert in_use() == 0


def test_a_task_that_prints_much_adds_little(cluster: Cluster) -> None:
    code = (
        "import sys; line = 'x' * 99 + chr(10); [sys.stdout.write(line * 1000) for _ in range(1000)]; print('the end')"
    )
    with adds_little(cluster, 150 * MIB):
        run = cluster.submit(experiment("prints", f'python3 -c "{code}"', resources={"slots_per_trial": 0}))
        trial = cluster.only_trial(run)["id"]
        newest = "limit=3&orderBy=ORDER_BY_DESC&stdtypes=stdout"
        wait_for(
            "the last line",
            lambda: any("the end" in record["log"] for record in cluster.logs(trial, newest)),
            within=240,
            seen=cluster.describe,
        )
