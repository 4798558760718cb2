"""Commands and generic tasks with the PyPI client, unmodified."""

from __future__ import annotations

import csv
import io
import pathlib
import re
from collections.abc import Iterator

import pytest

import harness
from conftest import equipment, flavoured
from harness import Cluster, share
from waiting import wait_for

pytestmark = pytest.mark.client

HOLD = "echo holding; while [ ! -e $E2E_DIR/go ]; do sleep 0.1; done; echo went on"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster whose tasks run with the PyPI package."""
    with equipment():
        harness.wheel_det()
        python = harness.wheel_python()
    with flavoured("core", python=python) as cluster:
        yield cluster


def printed(out: str) -> list[str]:
    """What the command itself printed, of a log."""
    return re.findall(r" [0-9a-f]{8} \|\| (.*)$", out, re.M)


def created(out: str) -> str:
    return re.search(r"Created task (\S+)", out).group(1)


def test_a_command_runs_with_its_files_and_mounts(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    for path in ("context/here.txt", "lib/there.txt"):
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text(f"{path}\n")
    shared = cluster.shared_dir()
    (shared / "mounted.txt").write_text("mounted\n")
    file = cluster.write_config({"description": "in the file", "resources": {"slots": 1}})
    files = ("-c", tmp_path / "context", "-i", tmp_path / "lib", "-v", f"{shared}:/second", "--config-file", file)
    words = ("--config", "resources.slots=2", "cat", "here.txt", "lib/there.txt", "/second/mounted.txt")
    out = cluster.client("cmd", "run", *files, *words).out
    found = re.search(r"^Launched command \(id: (\S+), name: in the file\)\.$", out, re.M)
    assert found, out
    assert printed(out) == ["context/here.txt", "lib/there.txt", "mounted"]
    task = found.group(1)
    assert cluster.api("GET", f"/api/v1/commands/{task}")["config"]["resources"]["slots"] == 2
    assert printed(cluster.client("cmd", "run", "echo a; echo b").out) == ["a", "b"]


def test_a_command_is_found_changed_and_killed(cluster: Cluster) -> None:
    config = cluster.write_config(share(cluster.shared_dir()))
    [task] = cluster.client("command", "run", "-d", "--config-file", config, HOLD).out.split()
    cluster.wait_task_printed(task, "holding")
    start = task[:13]
    rows = csv.DictReader(io.StringIO(cluster.client("cmd", "list", "--csv").out))
    [row] = [row for row in rows if row["id"] == task]
    assert (row["username"], row["state"], row["workspaceName"]) == ("determined", "RUNNING", "Uncategorized")
    assert task in cluster.client("cmd", "ls", "-a", "-q").out.split()
    assert cluster.client("cmd", "describe", start, "--json").json()["id"] == task
    assert "E2E_DIR" in cluster.client("cmd", "config", start).out
    assert "holding" in cluster.client("cmd", "logs", task).out
    assert f"Set priority of command {task} to 7" in cluster.client("cmd", "set", "priority", start, 7).out
    assert f"Killed command {task}" in cluster.client("cmd", "kill", start).out

    def ended() -> bool:
        return cluster.client("cmd", "describe", task, "--json").json()["state"] == "TERMINATED"

    wait_for("the end of the command", ended, within=20)
    assert "it was killed" in cluster.client("cmd", "list").out


def test_what_is_wrong_is_explained(cluster: Cluster) -> None:
    for words, expected in [
        (["--config", "nonsense=1", "x"], "nonsense: is not a known key"),
        (["--config", "resources.slots=99", "x"], "resources.slots"),
        (["--template", "nothing", "x"], "nothing"),
        ([], "entrypoint"),
    ]:
        refused = cluster.client("cmd", "run", *words, check=False)
        assert refused.code != 0 and "Traceback" not in refused.err, str(refused)
        assert expected in refused.err + refused.out, str(refused)


def test_a_generic_task_is_paused_forked_and_killed(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    (tmp_path / "code.txt").write_text("from a file\n")
    config = {"entrypoint": ["sh", "-c", f"cat code.txt; {HOLD}"], "resources": {"slots": 0}}
    file = cluster.write_config({**config, **share(cluster.shared_dir())})
    task = created(cluster.client("task", "create", file, "-c", tmp_path, "--project_id", 1).out)
    assert "from a file" in cluster.wait_task_printed(task, "holding")
    child = created(cluster.client("task", "create", file, "-p", task, "--inherit_context", "--no_pause").out)
    assert "from a file" in cluster.wait_task_printed(child, "holding")
    assert "code.txt" in cluster.client("task", "config", task).out

    assert f"Paused task: {task}" in cluster.client("task", "pause", task).out
    cluster.wait_task(task, "PAUSED")
    assert cluster.client("task", "pause", child, check=False).code != 0
    assert f"Unpaused task: {task}" in cluster.client("task", "unpause", task).out
    cluster.wait_task_printed(task, "holding", times=2)

    fork = created(cluster.client("task", "fork", task).out)
    assert "from a file" in cluster.wait_task_printed(fork, "holding")
    cluster.client("task", "kill", fork)
    cluster.client("task", "kill", "--root", child)
    for one in (fork, task, child):
        cluster.wait_task(one, "CANCELED")

    out = cluster.client("task", "create", cluster.write_config({"entrypoint": ["echo", "hello"]}), "-f").out
    assert printed(out) == ["hello"]
