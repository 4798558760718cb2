"""Hostile input: malformed requests for every operation, and the large, slow and poisoned ones by name.

Nothing may fail (5xx), hang, panic or keep memory, and what was refused leaves nothing behind. `DET_HOSTILE_SEED`
repeats a run, `DET_HOSTILE_COUNT` asks for more requests for each operation.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import os
import pathlib
import random
import re
import socket
import sqlite3
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

import malformed
import wire
from configs import experiment
from conftest import flavoured
from harness import ApiError, Cluster, archive_entry
from waiting import wait_for

pytestmark = pytest.mark.hostile

MIB = 1 << 20
# No answer within this time is a hang.
HANG = 2.0
# A hang is one only if it happens again, alone: this machine may have been busy.
AGAIN = 15.0
# The allocator gives back what was freed within some ten seconds; this is less than one large body of small values.
KEPT = 320 * MIB
# What grows with every request, however little, shows when the same come again: then nothing new is left in pieces.
AGAIN_KEPT = 32 * MIB
# Two requests with files may be in memory at once, each some three times: as text, as value, as files.
PEAK = 1200 * MIB

# They wait for another member, or for a time that the caller chooses: no answer is an answer.
WAITING = {"AllocationRendezvousInfo", "AllocationAllGather", "AllocationPreemptionSignal", "NotifyContainerRunning"}
# What they do when a malformed request is read kindly ends what the others are about: they come last.
ENDING = re.compile(r"Kill|Cancel|Disable|Pause|Logout|Password|EarlyExit|Archive|RemoveFiles|PatchCheckpoints")
# And these take it away.
REMOVING = re.compile(r"Delete")
# What a request that was read kindly began (a run that ends, an experiment that is deleted) may go on beside the requests
# that are refused. What these leave behind is left each time.
LOOKS = 3
# Without a change for so many seconds, nothing goes on.
QUIET = 2.0


@dataclass
class World:
    """A cluster with things in it, a user who is not needed otherwise, and a look at its store."""

    cluster: Cluster
    ids: dict[str, str]
    count_rows: Callable[[], dict[str, int]]
    description: dict[str, Any] = field(default_factory=dict)

    @property
    def port(self) -> int:
        return self.cluster.port

    def token(self) -> str:
        """A token of its own: a request may end the session."""
        body = {"username": "admin", "password": "", "isHashed": True}
        return self.cluster.api("POST", "/api/v1/auth/login", body, user=None)["token"]

    def rows(self) -> dict[str, int]:
        """Rows by table."""
        # A request for metrics has the journal of reports compacted: else that happens by itself, some seconds later.
        series = f"/api/v1/trials/time-series?trialIds={self.ids['trialId']}&metricIds=training.loss"
        try:
            self.cluster.api("GET", series, user="admin")
        except ApiError as error:
            # A trial that was deleted has no reports to fold.
            if error.status != 404:
                raise
        return self.count_rows()

    def memory(self, what: str = "VmRSS") -> int:
        """Bytes of the master in memory: now (`VmRSS`), or at most so far (`VmHWM`)."""
        text = pathlib.Path(f"/proc/{self.cluster.part('master').pid}/status").read_text()
        return int(re.search(rf"{what}:\s+(\d+) kB", text)[1]) * 1024

    def processor_seconds(self) -> float:
        """Processor time that the master has used."""
        fields = pathlib.Path(f"/proc/{self.cluster.part('master').pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def forget_peak(self) -> None:
        """Lets `VmHWM` begin again."""
        pathlib.Path(f"/proc/{self.cluster.part('master').pid}/clear_refs").write_text("5")

    def agents(self) -> list[str]:
        return [agent["id"] for agent in self.cluster.api("GET", "/api/v1/agents")["agents"]]

    def alive(self) -> None:
        self.cluster.wait_for_agents()


def sqlite_rows(cluster: Cluster) -> dict[str, int]:
    with contextlib.closing(sqlite3.connect(f"file:{cluster.data_dir}/det.db?mode=ro", uri=True, timeout=10)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: db.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in tables}


def postgres_rows(url: str) -> dict[str, int]:
    text = (
        "SELECT table_name || ' ' || (xpath('/row/c/text()', query_to_xml(format('SELECT count(*) AS c FROM %I', "
        "table_name), false, true, '')))[1]::text FROM information_schema.tables WHERE table_schema = 'public'"
    )
    done = subprocess.run(["psql", url, "-qAtc", text], capture_output=True, text=True, check=True)
    return {name: int(count) for name, count in (line.split() for line in done.stdout.splitlines())}


def filled(cluster: Cluster) -> dict[str, str]:
    """Puts something of each kind into a cluster; gives the ids."""
    # What is refused is warned of; what is wrong with the master would be an error.
    cluster.expect_alarm(r"\bWARN\b")
    idle = cluster.submit(experiment("idle", "sleep 3600"))
    done = cluster.submit(experiment("done", "echo done", resources={"slots_per_trial": 0}))
    cluster.wait_experiment(done, "COMPLETED")
    trial = cluster.only_trial(idle)
    task = cluster.api("GET", f"/api/v1/trials/{trial['id']}")["trial"]["taskId"]

    def running() -> Any:
        all_of_task = cluster.api("GET", f"/api/v1/tasks/{task}")["task"]["allocations"]
        return next((a for a in all_of_task if a["state"].endswith("RUNNING")), None)

    allocation = wait_for("the trial to run", running, within=30, seen=cluster.describe)["allocationId"]
    metrics = {"trialId": trial["id"], "trialRunId": 1, "stepsCompleted": 1, "metrics": {"avgMetrics": {"loss": 1.0}}}
    for group in ("training", "validation"):
        body = {"group": group, "metrics": metrics}
        cluster.api("POST", f"/api/v1/trials/{trial['id']}/metrics", body, user="admin")
    checkpoint = "00000000-0000-4000-8000-000000000001"
    report = {
        "uuid": checkpoint,
        "taskId": task,
        "allocationId": allocation,
        "state": "STATE_COMPLETED",
        "resources": {"weights": "1"},
        "metadata": {"steps_completed": 1},
    }
    cluster.api("POST", "/api/v1/checkpoints", report, user="admin")
    summary = next(iter(cluster.api("GET", "/api/v1/tasks")["allocationIdToSummary"].values()))
    victim = {"user": {"username": "victim", "active": True}}
    user = cluster.api("POST", "/api/v1/users", victim, user="admin")["user"]["id"]
    spare = cluster.api("POST", "/api/v1/workspaces", {"name": "spare"}, user="admin")["workspace"]["id"]
    cluster.api("POST", f"/api/v1/workspaces/{spare}/projects", {"name": "spare", "key": "SPARE"}, user="admin")
    cluster.api("POST", "/api/v1/templates/spare", {"config": {"max_restarts": 1}}, user="admin")
    # No slots: they would keep the trial's agent busy when it is to be tried.
    aux = {"resources": {"slots": 0}}
    command = cluster.api("POST", "/api/v1/commands", {"config": {**aux, "entrypoint": ["sleep", "3600"]}})["command"]["id"]
    shell = cluster.api("POST", "/api/v1/shells", {"config": aux})["shell"]["id"]
    outside = {"config": json.dumps({"searcher": {"name": "single", "metric": "loss"}}), "unmanaged": True}
    named = cluster.api("PUT", "/api/v1/experiments/by-external-id/outside", outside)["experiment"]["id"]
    first = {"externalTrialId": "first", "createTrialRequest": {"experimentId": named, "unmanaged": True}}
    cluster.api("PUT", "/api/v1/trials", first)
    # It waits: the trial has one of the two slots.
    notebook = cluster.api("POST", "/api/v1/notebooks", {"config": {"resources": {"slots": 2}}})["notebook"]["id"]
    shows = {"config": {}, "experimentIds": [done]}
    tensorboard = cluster.api("POST", "/api/v1/tensorboards", shows)["tensorboard"]["id"]
    return {
        "notebookId": notebook,
        "tensorboardId": tensorboard,
        "externalExperimentId": "outside",
        "externalTrialId": "first",
        "commandId": command,
        "shellId": shell,
        "agentId": cluster.agents[0].name,
        "slotId": "0",
        "allocationId": allocation,
        "resourcesId": summary["resources"][0]["containerId"] or "none",
        "checkpointUuid": checkpoint,
        "uuid": checkpoint,
        "experimentId": str(idle),
        "trialId": str(trial["id"]),
        "runId": str(trial["id"]),
        "taskId": task,
        "userId": str(user),
        "username": "victim",
        "projectId": "1",
        "workspaceId": str(spare),
        "key": "SPARE",
        "workloadType": "EXPERIMENT",
        "templateName": "spare",
        "jobId": cluster.experiment(idle)["jobId"],
    }


def fresh_world(store: str) -> Iterator[World]:
    with flavoured("core" if store == "sqlite" else "postgres") as cluster:
        if store == "sqlite":
            world = World(cluster, filled(cluster), lambda: sqlite_rows(cluster))
        else:
            world = World(cluster, filled(cluster), lambda: postgres_rows(str(cluster.database_url)))
        text = (pathlib.Path(__file__).resolve().parent.parent / "openapi" / "det.json").read_text()
        world.description = json.loads(text)
        yield world


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A filled cluster on each store."""
    yield from fresh_world(request.param)


@pytest.fixture(params=["sqlite", "postgres"])
def swept(request: pytest.FixtureRequest) -> Iterator[World]:
    """One for malformed requests: some are well-formed enough to disable agents and end runs."""
    yield from fresh_world(request.param)


# --- every operation ---------------------------------------------------------------------------------------------------


@dataclass
class Found:
    """What a sweep came to."""

    seed: int
    sent: int = 0
    fewest: int = 1 << 30
    refused: int = 0
    failures: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counts = f"seed {self.seed}: {self.sent} requests (at least {self.fewest} for each operation), {self.refused} refused"
        rest = f"{len(self.failures)} failures, {len(self.hangs)} hangs, {len(self.left)} left something behind"
        return "\n".join([f"{counts}; {rest}", *self.failures[:40], *self.hangs[:40], *self.left[:40]])


def tried(world: World, request: malformed.Sent, found: Found) -> bool:
    """Sends one request and notes what is wrong with its answer; whether it was refused."""
    found.sent += 1
    reply = wire.exchange(world.port, request.data, within=HANG, ends=request.ends)
    if reply.late and request.operation in WAITING:
        return False
    if reply.late:
        reply = wire.exchange(world.port, request.data, within=AGAIN, ends=request.ends)
        if reply.late or reply.took > HANG:
            found.hangs.append(f"{request.operation}, {request.how}: {reply}\n  {request.data[:300]!r}")
            return False
    if reply.status is None:
        if request.answered:
            found.failures.append(f"{request.operation}, {request.how}: {reply}\n  {request.data[:300]!r}")
        return True
    if reply.status >= 500 and reply.status != 501:
        found.failures.append(f"{request.operation}, {request.how}: {reply}\n  {request.data[:600]!r}")
    return reply.status >= 400


def sweep(world: World, seed: int, count: int) -> Found:
    """All operations, each with malformed requests; those that are refused a second time, between two looks at the rows."""
    found = Found(seed)
    generator = malformed.Generator(world.description, seed, world.ids, f"127.0.0.1:{world.port}")
    operations = malformed.operations(world.description)
    operations.sort(key=lambda operation: (bool(REMOVING.search(operation.name)), bool(ENDING.search(operation.name))))
    token = world.token()
    with contextlib.closing(Frames(world)) as stray:
        stray.text(hello())
        wait_for("an agent that is not needed otherwise", lambda: "hostile" in world.agents(), within=20)
    unmissed = malformed.Generator(world.description, seed, {**world.ids, "agentId": "hostile"}, f"127.0.0.1:{world.port}")
    for operation in operations:
        if "ogout" in operation.name:
            token = world.token()
        # An agent whose token was revoked ends.
        requests = (unmissed if operation.name == "RevokeAgent" else generator).requests(operation, token, count)
        found.fewest = min(found.fewest, len(requests))
        refused = [request for request in requests if tried(world, request, found)]
        found.refused += len(refused)
        if operation.name == "PatchUser" or "ogout" in operation.name:
            token = world.token()
        left = left_behind(world, refused, found)
        if left:
            found.left.append(f"{operation.name}: {left}")
    return found


def left_behind(world: World, refused: list[malformed.Sent], found: Found) -> dict[str, tuple[int | None, int]]:
    """Rows by table before and after requests that are refused, where they differ."""
    changed: dict[str, tuple[int | None, int]] = {}
    for _ in range(LOOKS):
        before = world.rows()
        for request in refused:
            tried(world, request, found)
        after = world.rows()
        changed = {name: (before.get(name), count) for name, count in after.items() if before.get(name) != count}
        if not changed:
            break
        rested(world)
    return changed


def rested(world: World) -> None:
    """Waits until nothing goes on by itself: a notebook that a request has begun writes lines for some seconds."""
    seen = [(world.rows(), time.monotonic())]

    def rests() -> bool:
        rows = world.rows()
        if rows != seen[-1][0]:
            seen.append((rows, time.monotonic()))
        return time.monotonic() - seen[-1][1] > QUIET

    wait_for("all that was begun to rest", rests, within=60)


def test_malformed_requests_of_every_operation(swept: World) -> None:
    seed = int(os.environ.get("DET_HOSTILE_SEED") or random.SystemRandom().randrange(1 << 32))
    count = int(os.environ.get("DET_HOSTILE_COUNT") or 50)
    print(f"DET_HOSTILE_SEED={seed}")
    before = swept.memory()
    found = sweep(swept, seed, count)
    after = swept.memory()
    for _ in range(3):
        hammer(swept, seed, found)
    again = swept.memory()
    print(found)
    print(f"memory: {before / MIB:.0f} MiB before, {after / MIB:.0f} after the sweep, {again / MIB:.0f} after more of the same")
    assert found.fewest >= 50
    assert not (found.failures or found.hangs or found.left), str(found)
    assert after - before < KEPT, f"the master has grown (DET_HOSTILE_SEED={seed})"
    # The allocator gives freed pages back a second later: at this moment they may still count.
    wait_for(
        f"what more of the same took to be given back (DET_HOSTILE_SEED={seed})",
        lambda: swept.memory() - after < AGAIN_KEPT,
        within=20,
        seen=lambda: f"{swept.memory() / MIB:.0f} MiB",
    )
    print(f"memory: {swept.memory() / MIB:.0f} MiB once it was given back")
    swept.alive()


def hammer(world: World, seed: int, found: Found) -> None:
    """What needs most memory, once more: the bodies of three operations."""
    generator = malformed.Generator(world.description, seed, world.ids, f"127.0.0.1:{world.port}")
    token = world.token()
    for operation in malformed.operations(world.description):
        if operation.name in ("CreateExperiment", "PostTaskLogs", "PostRunMetadata"):
            for request in generator.requests(operation, token, 50):
                tried(world, request, found)


# --- slow and half requests --------------------------------------------------------------------------------------------


def test_slow_and_half_requests_keep_no_client_away(world: World) -> None:
    token = world.token()
    beginnings = [
        b"",
        b"G",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
        b"PRI * HTTP/2.0\r\n",
        f"POST /api/v1/experiments HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\nContent-Length: 150000000\r\n\r\n{{".encode(),
        b"POST /api/v1/auth/login HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
    ]
    with contextlib.ExitStack() as stack:
        before = world.memory()
        for n in range(300):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", world.port), timeout=10))
            connection.sendall(beginnings[n % len(beginnings)])
        reply = wire.exchange(world.port, b"GET /api/v1/master HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", within=AGAIN)
        assert reply.status == 200, str(reply)
        # 150 MB are promised by each of some forty; what is kept is what has come.
        assert world.memory() - before < KEPT
    world.alive()


def test_a_body_that_stalls_is_given_up_with_a_reason(world: World) -> None:
    head = f"POST /api/v1/preview-hp-search HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {world.token()}\r\nContent-Length: 100\r\n\r\n"
    reply = wire.exchange(world.port, head.encode() + b"{", within=30)
    assert reply.status == 408 and b"too slowly" in reply.body, str(reply)


def test_headers_that_never_end_are_given_up(world: World) -> None:
    with socket.create_connection(("127.0.0.1", world.port), timeout=60) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        # An answer or none, but an end.
        while connection.recv(65536):
            pass


# --- named cases -------------------------------------------------------------------------------------------------------


def post(world: World, path: str, body: bytes, within: float = 240) -> wire.Reply:
    # Not a session of its own: rows are counted before and after.
    token = world.cluster.token("admin")
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n\r\n"
    return wire.exchange(world.port, head.encode() + body, within=within)


def refused(reply: wire.Reply, status: int, *words: str) -> None:
    """A refusal with this status that contains these words."""
    text = reply.body.decode()
    assert reply.status == status, str(reply)
    assert all(word in text for word in words), f"{words} in {text[:500]}"


@contextlib.contextmanager
def bounded(world: World, peak: int = PEAK) -> Iterator[None]:
    """The master needs no more memory at once than this, forgets it, and lives."""
    world.forget_peak()
    before = world.memory()
    yield
    high, after = world.memory("VmHWM") - before, world.memory() - before
    print(f"memory: +{high / MIB:.0f} MiB at most, {after / MIB:+.0f} MiB afterwards")
    assert high < peak, f"{high / MIB:.0f} MiB at once"
    world.alive()


def submission(config: str, *files: dict[str, Any]) -> bytes:
    return json.dumps({"config": config, "modelDefinition": list(files), "activate": False}).encode()


CONFIG = json.dumps(experiment("hostile", "true"))


@pytest.mark.parametrize("path", ["../out.py", "/etc/passwd", "a/../../b", "a/../..", "a\0b", "", ".", "..\\..\\x"])
def test_files_that_lead_out(world: World, path: str) -> None:
    rows = world.rows()
    reply = post(world, "/api/v1/experiments", submission(CONFIG, archive_entry(path, "x")))
    refused(reply, 400, "modelDefinition[0].path")
    assert world.rows() == rows


@pytest.mark.parametrize(("kind", "what"), [(49, "a hard link"), (50, "a symbolic link"), (51, "a device"), (52, "a device"), (54, "a pipe")])
def test_entries_that_are_no_files(world: World, kind: int, what: str) -> None:
    rows = world.rows()
    reply = post(world, "/api/v1/experiments", submission(CONFIG, archive_entry("x", "/etc/passwd", kind)))
    refused(reply, 400, "modelDefinition[0].type", "48", "53")
    assert world.rows() == rows, what


def test_a_million_entries(world: World) -> None:
    rows = world.rows()
    entry = '{"path":"f%d","type":48,"content":"","mode":420,"mtime":"0"}'
    files = ",".join(entry % n for n in range(1_000_000))
    body = f'{{"config":{json.dumps(CONFIG)},"modelDefinition":[{files}]}}'.encode()
    with bounded(world):
        reply = post(world, "/api/v1/experiments", body)
    refused(reply, 413, "at most" if b"at most" in reply.body else "the most")
    assert world.rows() == rows


def test_96_mib_of_model_definition(world: World) -> None:
    rows = world.rows()
    content = base64.b64encode(bytes(96 * MIB)).decode()
    body = f'{{"config":{json.dumps(CONFIG)},"modelDefinition":[{{"path":"big","type":48,"content":"{content}"}}]}}'
    with bounded(world):
        reply = post(world, "/api/v1/experiments", body.encode())
    refused(reply, 413, str(95 * MIB))
    assert world.rows() == rows


def test_a_body_beyond_every_limit(world: World) -> None:
    with bounded(world):
        reply = post(world, "/api/v1/experiments", b'{"config":"' + b"x" * (200 * MIB) + b'"}')
    refused(reply, 413, str(160 * MIB))


def test_a_login_is_small(world: World) -> None:
    with bounded(world, 64 * MIB):
        reply = post(world, "/api/v1/auth/login", b'{"username":"' + b"x" * (50 * MIB) + b'"}')
    refused(reply, 413, "65536")


def test_a_report_of_two_million_values(world: World) -> None:
    values = ",".join(f"{n}.5" for n in range(2_000_000))
    trial = world.ids["trialId"]
    body = (
        f'{{"group":"training","metrics":{{"trialId":{trial},"trialRunId":1,"stepsCompleted":2,'
        f'"metrics":{{"avgMetrics":{{"all":[{values}]}}}}}}}}'
    )
    with bounded(world):
        reply = post(world, f"/api/v1/trials/{trial}/metrics", body.encode())
    assert reply.status == 200 or (reply.status in (400, 413) and b"at most" in reply.body), str(reply)


def test_a_report_of_many_names(world: World) -> None:
    """Statistics of each name are kept and shown with the trial: there are bounds."""
    rows = world.rows()
    trial = world.ids["trialId"]

    def report(group: str, names: str) -> wire.Reply:
        metrics = f'{{"trialId":{trial},"trialRunId":1,"stepsCompleted":3,"metrics":{{"avgMetrics":{{{names}}}}}}}'
        body = f'{{"group":"{group}","metrics":{metrics}}}'
        return post(world, f"/api/v1/trials/{trial}/metrics", body.encode())

    with bounded(world):
        many = ",".join(f'"m{n}":1' for n in range(100_000))
        refused(report("training", many), 400, "at most 10000 metrics", "found 100000")
        refused(report("training", f'"{"m" * 1025}":1'), 400, "at most 1024 bytes", "found 1025")
        refused(report("g" * MIB, '"m":1'), 400, "at most 1024 bytes")
    assert world.rows() == rows


def test_a_report_of_ten_million_values(world: World) -> None:
    rows = world.rows()
    trial = world.ids["trialId"]
    start = f'{{"group":"training","metrics":{{"trialId":{trial},"trialRunId":1,"stepsCompleted":3,"metrics":{{"avgMetrics":{{"a":['
    with bounded(world):
        reply = post(world, f"/api/v1/trials/{trial}/metrics", start.encode() + b"0," * 10_000_000 + b"0]}}}}")
    refused(reply, 413, str(16 * MIB))
    assert world.rows() == rows


def test_a_log_line_of_100_mb(world: World) -> None:
    rows = world.rows()
    body = f'{{"logs":[{{"taskId":"{world.ids["taskId"]}","log":"'.encode() + b"x" * 100_000_000 + b'"}]}'
    with bounded(world):
        reply = post(world, "/api/v1/task/logs", body)
    refused(reply, 413, str(16 * MIB))
    assert world.rows() == rows


BOMBS = {
    "aliases of aliases": "\n".join(
        ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"] + [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    ),
    "a long text, often": "a: &a " + "x" * 500_000 + "\nb: [" + "*a," * 100_000 + "]",
    "anchors around anchors": "".join(f"&a{n} [" for n in range(90)) + "0," * 20_000 + "]" * 90,
    "deep lists": "[" * 1_000_000,
    "deep maps": "".join("  " * n + "a:\n" for n in range(2000)),
    "a huge text": "a: " + "x" * (6 * MIB),
    "a huge list": "a: [" + "0," * (3 * MIB) + "]",
    "merge keys": "a: &a {" + ",".join(f"k{n}: 1" for n in range(50_000)) + "}\n" + "\n".join(f"b{n}: {{<<: *a}}" for n in range(50)),
    "a number without an end": "a: " + "9" * 3_000_000,
    "unknown keys": "\n".join(f"k{n}: 1" for n in range(100_000)),
    "unknown keys in a section": "resources:\n" + "\n".join(f"  k{n}: 1" for n in range(100_000)),
    "unknown pools": "resources:\n  resource_pools:\n" + "\n".join(f"  - p{n}" for n in range(100_000)),
    "wrong values": "hyperparameters:\n" + "\n".join(f"  h{n}: {{type: wrong}}" for n in range(20_000)),
}
# Processor time that refusing one may take the master, in seconds: two, and as much again for a debug build.
BOMB_SECONDS = 4.0


@pytest.mark.parametrize("name", BOMBS)
def test_yaml_bombs(world: World, name: str) -> None:
    rows, before = world.rows(), world.processor_seconds()
    with bounded(world, 512 * MIB):
        reply = post(world, "/api/v1/experiments", submission(BOMBS[name]))
    assert reply.status == 400 and not reply.late, str(reply)
    assert len(reply.body) < 64 << 10, f"an answer of {len(reply.body)} bytes"
    taken = world.processor_seconds() - before
    print(f"processor time: {taken:.1f} s")
    assert taken < BOMB_SECONDS, f"refusing it took {taken:.1f} s of processor time"
    assert world.rows() == rows


def test_an_archive_that_unpacks_to_more_is_not_unpacked(world: World) -> None:
    """The master takes files, not archives; what is sent to it packed stays packed."""
    packed = gzip.compress(bytes(64 * MIB))
    with bounded(world, 256 * MIB):
        reply = post(world, "/api/v1/experiments", submission(CONFIG, archive_entry("bomb.gz", packed)))
    assert reply.status == 200, str(reply)
    created = json.loads(reply.body)["experiment"]["id"]
    world.cluster.api("POST", f"/api/v1/experiments/{created}/kill", user="admin")


def test_a_task_that_prints_a_line_of_100_mb(world: World) -> None:
    cluster = world.cluster
    code = "import sys; [sys.stdout.write('x' * 1_000_000) for _ in range(100)]; print(); print('the end')"
    line = cluster.submit(experiment("line", f'python3 -c "{code}"; sleep 600', resources={"slots_per_trial": 0}))
    trial = cluster.only_trial(line)["id"]
    with bounded(world):
        newest = "limit=1&orderBy=ORDER_BY_DESC&stdtypes=stdout"
        wait_for(
            "what comes after the line",
            lambda: any("the end" in record["log"] for record in cluster.logs(trial, newest)),
            within=120,
        )
        supervisors = cluster.task_supervisors(trial)
        assert supervisors
        for supervisor in supervisors:
            text = pathlib.Path(f"/proc/{supervisor.pid}/status").read_text()
            peak = int(re.search(r"VmHWM:\s+(\d+) kB", text)[1]) * 1024
            # A batch of four megabytes, some times over.
            assert peak < 96 * MIB, f"the supervisor needed {peak / MIB:.0f} MiB"
    cluster.api("POST", f"/api/v1/experiments/{line}/kill", user="admin")
    cluster.wait_experiment(line, "CANCELED")


# --- the agents' connection --------------------------------------------------------------------------------------------


class Frames:
    """A WebSocket by hand, so that it can be wrong."""

    def __init__(self, world: World, join: str | None = None, own: str = "own of the agent hostile") -> None:
        join = join or (world.cluster.data_dir / "agent-token").read_text().strip()
        self.socket = socket.create_connection(("127.0.0.1", world.port), timeout=AGAIN)
        key = base64.b64encode(bytes(16)).decode()
        self.socket.sendall(
            f"GET /agents HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {own}\r\nDet-Join-Token: {join}\r\n"
            "Connection: Upgrade\r\n"
            f"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
        )
        self.head = b""
        while b"\r\n\r\n" not in self.head:
            piece = self.socket.recv(1)
            if not piece:
                break
            self.head += piece

    def frame(self, payload: bytes, opcode: int = 1, final: bool = True, masked: bool = True, length: int | None = None) -> None:
        size = len(payload) if length is None else length
        first = (0x80 if final else 0) | opcode
        second = 0x80 if masked else 0
        head = bytes([first, second | 127]) + struct.pack(">Q", size)
        with contextlib.suppress(OSError):
            self.socket.sendall(head + (bytes(4) if masked else b"") + payload)

    def text(self, message: Any) -> None:
        self.frame(message if isinstance(message, bytes) else json.dumps(message).encode())

    def answer(self) -> bytes:
        """What comes until the other side ends, or sends nothing for a moment."""
        received = b""
        self.socket.settimeout(0.3)
        with contextlib.suppress(OSError):
            while piece := self.socket.recv(65536):
                received += piece
        return received

    def close(self) -> None:
        self.socket.close()


def hello(**over: Any) -> dict[str, Any]:
    message = {
        "kind": "hello",
        "protocol": 1,
        "agent_id": "hostile",
        "instance_id": "hostile",
        "version": "0",
        "resource_pool": "default",
        "addresses": [],
        "devices": [],
        "runtime": "process",
        "containers": [],
    }
    return {**message, **over}


def test_only_agents_are_let_in(world: World) -> None:
    shared = (world.cluster.data_dir / "agent-token").read_text().strip()
    for join, own in [("wrong", "own"), (world.token(), "own"), ("x" * 10_000, "own"), (shared, shared), ("wrong", shared)]:
        frames = Frames(world, join, own)
        assert b" 401 " in frames.head.splitlines()[0], frames.head
        frames.close()


FIRST_FRAMES: dict[str, Callable[[Frames], None]] = {
    "nothing": lambda f: None,
    "noise": lambda f: f.socket.sendall(random.Random(1).randbytes(4096)),
    "a length of 2^62": lambda f: f.frame(b"", length=1 << 62),
    "16 MiB": lambda f: f.frame(b" " * (16 * MIB)),
    "a frame without a mask": lambda f: f.frame(b"{}", masked=False),
    "an unknown opcode": lambda f: f.frame(b"{}", opcode=11),
    "a long ping": lambda f: f.frame(b"x" * 1000, opcode=9),
    "an end before a beginning": lambda f: f.frame(b"{}", opcode=0),
    "a thousand pieces": lambda f: [f.frame(b" ", opcode=int(n == 0), final=False) for n in range(1000)] and None,
    "no UTF-8": lambda f: f.frame(b"\xff\xfe"),
    "bytes": lambda f: f.frame(b"{}", opcode=2),
    "no JSON": lambda f: f.text(b"hello"),
    "deep JSON": lambda f: f.text(b"[" * 100_000),
    "no hello": lambda f: f.text({"kind": "container"}),
    "another kind": lambda f: f.text({"kind": "dance"}),
    "another protocol": lambda f: f.text(hello(protocol=9)),
    "a protocol below zero": lambda f: f.text(hello(protocol=-1)),
    "a blank id": lambda f: f.text(hello(agent_id="")),
    "an id with NUL": lambda f: f.text(hello(agent_id="a\0b")),
    "an id of 1 MB": lambda f: f.text(hello(agent_id="x" * 1_000_000)),
    "an id with a slash": lambda f: f.text(hello(agent_id="../a")),
    "an unknown pool": lambda f: f.text(hello(resource_pool="nowhere\0")),
    "the same device twice": lambda f: f.text(hello(devices=[{"id": 0, "brand": "", "uuid": "", "kind": "cpu"}] * 2)),
    "100,000 devices": lambda f: f.text(
        hello(devices=[{"id": n, "brand": "", "uuid": str(n), "kind": "cpu"} for n in range(100_000)])
    ),
    "containers of no allocation": lambda f: f.text(
        hello(containers=[{"container_id": "c\0", "allocation_id": "x", "state": {"state": "assigned"}}] * 100)
    ),
}


@pytest.mark.parametrize("name", FIRST_FRAMES)
def test_an_agents_first_frames(world: World, name: str) -> None:
    with bounded(world, 128 * MIB):
        frames = Frames(world)
        assert b" 101 " in frames.head.splitlines()[0], frames.head
        FIRST_FRAMES[name](frames)
        frames.answer()
        frames.close()


def test_an_agents_later_frames(world: World) -> None:
    allocation = world.ids["allocationId"]
    messages: list[Any] = [
        b"hello",
        hello(),
        {"kind": "container", "container_id": "none", "allocation_id": "none", "state": {"state": "assigned"}},
        {"kind": "container", "container_id": world.ids["resourcesId"], "allocation_id": allocation, "state": {"state": "assigned"}},
        {
            "kind": "container",
            "container_id": world.ids["resourcesId"],
            "allocation_id": allocation,
            "state": {"state": "terminated", "exit": {"kind": "exited", "code": 2**31 - 1}},
        },
        {"kind": "container", "container_id": "\0", "allocation_id": "\0", "state": {"state": "pulling"}},
        {"kind": "log", "allocation_id": "none", "container_id": None, "lines": [[0, "LOG_LEVEL_INFO", "x"]]},
        {"kind": "log", "allocation_id": allocation, "container_id": "\0", "lines": [[2**63 - 1, "no level", "a\0b"]]},
        {"kind": "log", "allocation_id": allocation, "container_id": None, "lines": [[-(2**63), "", ""]] * 1000},
        {"kind": "dance"},
    ]
    experiment_id = int(world.ids["experimentId"])
    before = world.cluster.experiment(experiment_id)["state"]
    frames = Frames(world, own="own of the agent later")
    frames.text(hello(agent_id="later", instance_id="later"))
    with bounded(world, 128 * MIB):
        for message in messages:
            frames.text(message)
        frames.answer()
    frames.close()
    assert world.cluster.experiment(experiment_id)["state"] == before, "an agent speaks for its own containers only"


# --- streams -----------------------------------------------------------------------------------------------------------


def test_followers_that_talk_or_leave(world: World) -> None:
    token = world.token()
    trial, task = world.ids["trialId"], world.ids["taskId"]
    targets = [
        f"/api/v1/trials/{trial}/logs?follow=true",
        f"/api/v1/tasks/{task}/logs?follow=true",
        f"/api/v1/trials/{trial}/logs/fields?follow=true",
        "/api/v1/events?follow=true",
        "/api/v1/master/logs?follow=true",
    ]
    with bounded(world, 128 * MIB), contextlib.ExitStack() as stack:
        for n in range(100):
            target = targets[n % len(targets)]
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", world.port), timeout=AGAIN))
            connection.sendall(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
            assert b" 200 " in connection.recv(4096), target
            # Half of them go on talking, what no follower does.
            if n % 2:
                connection.sendall(random.Random(n).randbytes(8192))
    world.alive()


def test_streams_with_wrong_queries_are_refused(world: World) -> None:
    trial = world.ids["trialId"]
    for query in ("follow=true&limit=1", "follow=perhaps", "limit=-1", "searchText=((&enableRegex=true", "timestampAfter=now"):
        with pytest.raises(ApiError) as caught:
            world.cluster.raw("GET", f"/api/v1/trials/{trial}/logs?{query}", user="admin")
        assert caught.value.status == 400 and caught.value.text, query
