"""Commands and generic tasks with our client."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import pathlib
import pty
import re
import signal
import subprocess
from collections.abc import Iterator

import pytest

from configs import merged
from conftest import flavoured
from harness import Agent, Cluster, share
from waiting import wait_for

pytestmark = pytest.mark.core

ADMIN = {"DET_USER": "admin", "DET_PASS": ""}
# Prints that it runs, and goes on until there is a file "go" in the shared directory.
HOLD = "echo holding; while [ ! -e $E2E_DIR/go ]; do sleep 0.1; done; echo went on"


def rows(text: str) -> list:
    return list(csv.DictReader(io.StringIO(text)))


def printed(out: str) -> list[str]:
    """What the command itself printed, of a log."""
    return re.findall(r" [0-9a-f]{8} \|\| (.*)$", out, re.M)


def held(cluster: Cluster, shared: pathlib.Path, *words: str) -> str:
    """A command that runs until it is let go; gives its id."""
    config = cluster.write_config(share(shared))
    [task] = cluster.run_det("cmd", "run", "-d", "--config-file", config, *words, HOLD).out.split()
    cluster.wait_task_printed(task, "holding")
    return task


def create(cluster: Cluster, config: dict, *flags: object) -> str:
    out = cluster.run_det("task", "create", cluster.write_config(config), *flags).out
    found = re.fullmatch(r"Created task (\S+)\n", out)
    assert found, out
    return found.group(1)


def holding(shared: pathlib.Path, **more: object) -> dict:
    return merged({"entrypoint": ["sh", "-c", HOLD], **share(shared)}, more)


def test_a_command_runs_with_its_files_and_mounts(up: Cluster, tmp_path: pathlib.Path) -> None:
    for path in ("context/here.txt", "lib/there.txt"):
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text(f"{path}\n")
    shared = up.shared_dir()
    (shared / "mounted.txt").write_text("mounted\n")
    files = ("-c", tmp_path / "context", "-i", tmp_path / "lib", "-v", f"{shared}:/second")
    out = up.run_det("cmd", "run", *files, "cat", "here.txt", "lib/there.txt", "/second/mounted.txt").out
    assert re.match(r"Launched command \(id: [0-9a-f-]{36}, name: Command \([a-z-]+\)\)\.\n", out)
    assert printed(out) == ["context/here.txt", "lib/there.txt", "mounted"]


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Cluster]:
    """A cluster whose pool has another working directory."""
    pool = {"pool_name": "default", "task_container_defaults": {"work_dir": "/srv"}}
    with flavoured("core", agents=[Agent(slots=1)], master_config={"resource_pools": [pool]}) as cluster:
        yield cluster


def test_files_and_null_replace_the_working_directory_of_the_pool(elsewhere: Cluster, tmp_path: pathlib.Path) -> None:
    (tmp_path / "here.txt").write_text("here\n")
    own = "/run/determined/workdir"
    for flags, expected in [
        ([], ["/srv"]),
        (["--config", "work_dir=null"], [own]),
        (["-c", tmp_path], [own, "here"]),
    ]:
        line = "pwd; cat here.txt 2>/dev/null || true"
        assert printed(elsewhere.run_det("cmd", "run", *flags, line).out) == expected, flags


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["echo", "-n", "one line"], 0, ["one line"]),
        (["echo a; exit 5"], 5, ["a"]),
        (["--", "sh", "-c", "echo $0; exit 7", "b c"], 7, ["b c"]),
        (["no-such-program"], 127, []),
    ],
)
def test_the_exit_code_is_that_of_the_command(up: Cluster, words: list, code: int, expected: list) -> None:
    done = up.run_det("cmd", "run", *words, check=False)
    assert done.code == code, str(done)
    assert [line for line in printed(done.out) if "no-such-program" not in line] == expected
    assert (code != 0) == ("has ended: " in done.err), str(done)


def test_a_mount_is_written_to_unless_it_is_for_reading(up: Cluster) -> None:
    shared = up.shared_dir()
    for mode, code in (("", 0), (":rw", 0), (":ro", 1)):
        written = up.run_det("cmd", "run", "-v", f"{shared}:/second{mode}", "touch", "/second/made", check=False)
        assert written.code == code and (shared / "made").exists() == (code == 0), written
        (shared / "made").unlink(missing_ok=True)


def test_lists_name_what_was_not_found_and_the_log_where(up: Cluster) -> None:
    run = up.run_det("cmd", "run", "no-such-program", "x", check=False)
    assert run.code == 127 and "PATH is " in run.out, run
    [row] = [row for row in rows(up.run_det("cmd", "list", "--csv").out) if "no-such-program" in row["exitStatus"]]
    assert "there is no such program on PATH" in row["exitStatus"] and "/usr" not in row["exitStatus"], row


def test_a_configuration_comes_from_file_line_and_template(up: Cluster) -> None:
    template = up.write_config({"environment": {"environment_variables": ["FROM_TEMPLATE=1"]}})
    up.run_det("template", "create", "launches", template)
    file = up.write_config({"description": "in the file", "entrypoint": ["sh", "-c", "echo $FROM_TEMPLATE; exit 3"]})
    flags = ("--config-file", file, "--config", "description=on the line", "--template", "launches")
    done = up.run_det("cmd", "run", *flags, "these", "words", "yield", check=False)
    assert (done.code, printed(done.out)) == (3, ["1"]), str(done)
    assert "name: on the line)" in done.out


def test_a_command_is_found_changed_and_killed(up: Cluster) -> None:
    task = held(up, up.shared_dir(), "--config", "description=held")
    start = task[:13]
    [row] = [row for row in rows(up.run_det("cmd", "list", "--csv").out) if row["id"] == task]
    assert (row["description"], row["state"], row["workspaceName"]) == ("held", "RUNNING", "Uncategorized")
    assert task in up.run_det("cmd", "ls", "-q").out.split()
    assert up.run_det("cmd", "describe", start, "--json").json()["id"] == task
    assert "description: held" in up.run_det("cmd", "config", start).out
    assert "holding" in printed(up.run_det("cmd", "logs", start).out)
    up.run_det("cmd", "set", "priority", start, 7)
    [job] = [job for job in up.run_det("job", "list", "--json").json()["jobs"] if job["entityId"] == task]
    assert job["priority"] == 7

    with up.det_beside("cmd", "logs", "-f", task) as follower:
        wait_for("the followed log", lambda: "holding" in follower.log.read_text(), within=20)
        assert up.run_det("cmd", "kill", start).out == f"Killed command {task}\n"
        assert follower.wait(within=20) == 0
    again = up.run_det("cmd", "kill", start)
    assert again.out == "" and "has ended already (it was killed by determined)" in again.err
    assert up.run_det("cmd", "describe", task, "--json").json()["exitCode"] is None
    assert up.run_det("cmd", "kill", "no-such", check=False).code == 1


def at_terminal(cluster: Cluster, *words: str) -> bytes:
    """What a terminal is sent by our client."""
    ours, its = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        argv = [str(cluster.det), *words]
        with os.fdopen(its, "wb") as terminal:
            process = subprocess.Popen(argv, stdin=terminal, stdout=terminal, stderr=terminal, env=cluster.client_environment())
        seen = b""
        # The end of a terminal without a process is an error of the read.
        with contextlib.suppress(OSError):
            while part := screen.read(1 << 16):
                seen += part
    assert process.wait(timeout=30) == 0, seen
    return seen


def test_the_words_of_others_give_a_terminal_no_commands(up: Cluster) -> None:
    print_them = r"printf '\033]0;title\007\033[2J\033[31mred\033[0m\n'; echo done"
    config = up.write_config({"description": "a\x1b]52;c;bmV3\x07b"})
    [task] = up.run_det("cmd", "run", "-d", "--config-file", config, print_them).out.split()
    up.wait_task_printed(task, "done")
    assert "\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b[0m\n" in up.run_det("cmd", "logs", task).out
    seen = at_terminal(up, "cmd", "logs", task)
    assert b"\\x1b]0;title\\x07\\x1b[2J\x1b[31mred\x1b[0m\r\n" in seen
    for form in ([], ["--csv"], ["--json"]):
        seen = at_terminal(up, "cmd", "list", *form)
        assert b"]52;c;bmV3" in seen and b"\x1b" not in seen and b"\x07" not in seen, seen
    [row] = [row for row in rows(up.run_det("cmd", "list", "--csv").out) if row["id"] == task]
    assert row["description"] == "a\x1b]52;c;bmV3\x07b"


def test_following_ends_with_a_kill_or_ctrl_c(up: Cluster) -> None:
    shared = up.shared_dir()
    config = up.write_config(share(shared))
    with up.det_beside("cmd", "run", "--config-file", config, HOLD) as follower:
        wait_for("the command", lambda: "|| holding" in follower.log.read_text(), within=30)
        task = re.search(r"\(id: ([^,]+),", follower.log.read_text()).group(1)
        assert follower.stop(signal.SIGINT, within=10) == 130
        assert f"command {task} goes on" in follower.log.read_text()
    assert up.run_det("cmd", "describe", task, "--json").json()["state"] == "RUNNING"
    up.run_det("cmd", "kill", task)

    with up.det_beside("cmd", "run", "--config-file", config, HOLD) as follower:
        wait_for("the command", lambda: "|| holding" in follower.log.read_text(), within=30)
        task = re.search(r"\(id: ([^,]+),", follower.log.read_text()).group(1)
        up.run_det("cmd", "kill", task)
        assert follower.wait(within=20) == 1
        assert f"command {task} has ended: it was killed" in follower.log.read_text()


def test_lists_have_the_own_commands_or_all(up: Cluster) -> None:
    up.run_det("user", "create", "ada", "--password", "Compiler1", env=ADMIN)
    ada = {"DET_USER": "ada", "DET_PASS": "Compiler1"}
    [own] = up.run_det("cmd", "run", "-d", "true").out.split()
    [hers] = up.run_det("cmd", "run", "-d", "true", env=ada).out.split()
    assert up.run_det("cmd", "list", "-q", env=ada).out.split() == [hers]
    ids = up.run_det("cmd", "list", "--all", "-q", "--sort-by", "id", env=ada).out.split()
    assert {own, hers} <= set(ids) and ids == sorted(ids)
    up.run_det("workspace", "create", "launches")
    [there] = up.run_det("cmd", "run", "-d", "-w", "launches", "true").out.split()
    assert up.run_det("cmd", "list", "-q", "-w", "launches").out.split() == [there]


def test_what_is_wrong_is_placed_and_launches_nothing(up: Cluster) -> None:
    before = up.run_det("cmd", "list", "-a", "-q").out
    file = up.write_config("resources:\n  slots: 1\n  resource_pool: none\n")
    for words, expected in [
        (["--config-file", file, "x"], f'{file}:3:3: resources.resource_pool: pool "none" does not exist'),
        (["--config", "resources.slots=99", "x"], "--config resources.slots: "),
        (["--config", "resource.slots=1", "x"], "--config resource.slots: resource: is not a known key"),
        (["--config", "work_dir=/tmp", "-i", file, "x"], "--config work_dir: cannot be combined with files"),
        (["-w", "nowhere", "x"], 'there is no workspace "nowhere"'),
        (["--template", "nothing", "x"], 'template "nothing" not found'),
        ([], "there is nothing to run"),
    ]:
        refused = up.run_det("cmd", "run", *words, check=False)
        assert refused.code in (1, 2) and expected in refused.err, str(refused)
    assert up.run_det("cmd", "list", "-a", "-q").out == before


def test_a_generic_task_is_paused_and_unpaused(up: Cluster) -> None:
    shared = up.shared_dir()
    task = create(up, holding(shared, description="rests"))
    up.wait_task_printed(task, "holding")
    assert task in up.run_det("task", "list").out
    assert up.run_det("task", "config", task, "--json").json()["description"] == "rests"
    assert "description: rests" in up.run_det("task", "config", task).out
    up.run_det("task", "pause", task)
    up.wait_task(task, "PAUSED")
    assert task not in up.run_det("task", "list").out, "it holds nothing"
    with up.det_beside("task", "logs", "-f", task) as follower:
        up.run_det("task", "unpause", task)
        up.wait_task_printed(task, "holding", times=2)
        (shared / "go").touch()
        assert follower.wait(within=20) == 0
        assert "went on" in follower.log.read_text()
    assert len(up.wait_task(task, "COMPLETED")["allocations"]) == 2
    refused = up.run_det("task", "pause", task, check=False)
    assert refused.code == 1 and "has ended" in refused.err


def test_a_generic_task_is_listed_until_a_day_after_its_end(up: Cluster) -> None:
    port = {"proxy_port": 28531}
    task = create(up, {"description": "listed", "entrypoint": ["sleep", "600"], "environment": {"proxy_ports": [port]}})

    def row(*flags: str) -> dict | None:
        found = [row for row in rows(up.run_det("task", "list", "--csv", *flags).out) if row["Task ID"] == task]
        return found[0] if found else None

    running = wait_for("its port", lambda: (found := row()) and found["Ports"] and found, within=30)
    assert (running["Ports"], running["State"], running["Owner"]) == ("28531", "RUNNING", "determined"), running
    assert running["Description"] == "listed", running
    explained = json.loads(up.run_det("job", "why", task[:12], "--json").out)
    assert explained["job"]["name"] == "listed", explained
    up.run_det("task", "kill", task)
    ended = wait_for("its end", lambda: row() is None and row("--all"), within=30)
    assert (ended["State"], ended["Owner"], ended["Description"]) == ("CANCELED", "determined", "listed"), ended


def test_a_fork_begins_with_configuration_and_files(up: Cluster, tmp_path: pathlib.Path) -> None:
    (tmp_path / "code.txt").write_text("exit 4\n")
    first = up.run_det(
        "task", "create", up.write_config({"entrypoint": ["sh", "code.txt"]}), "-c", tmp_path, "-f", check=False
    )
    assert first.code == 4 and "has ended: " in first.err, str(first)
    task = re.search(r"Created task (\S+)", first.out).group(1)
    assert up.run_det("task", "fork", task, "-f", check=False).code == 4
    other = up.write_config({"entrypoint": ["cat", "code.txt"]})
    done = up.run_det("task", "create", other, "--fork", task, "--follow")
    assert printed(done.out) == ["exit 4"]
    refused = up.run_det("task", "fork", "0" * 36, check=False)
    assert refused.code == 1 and "not found" in refused.err


def test_a_task_goes_the_way_of_the_one_it_belongs_to(up: Cluster, tmp_path: pathlib.Path) -> None:
    (tmp_path / "of-parent.txt").touch()
    shared = up.shared_dir()
    config = holding(shared, resources={"slots": 0})
    parent = create(up, config, "-c", tmp_path)
    up.wait_task_printed(parent, "holding")
    listing = merged(config, {"entrypoint": ["sh", "-c", f"ls; {HOLD}"]})
    child = create(up, listing, "-p", parent, "--inherit_context", "--project_id", 1)
    assert "of-parent.txt" in up.wait_task_printed(child, "holding")
    stubborn = create(up, config, "--parent", child[:13], "--no_pause")
    up.wait_task_printed(stubborn, "holding")
    refused = up.run_det("task", "pause", stubborn, check=False)
    assert refused.code == 1 and "never paused" in refused.err

    up.run_det("task", "pause", parent)
    for task in (parent, child):
        up.wait_task(task, "PAUSED")
    assert up.task(stubborn)["taskState"] == "GENERIC_TASK_STATE_ACTIVE"
    up.run_det("task", "kill", "--root", stubborn)
    for task in (parent, child, stubborn):
        up.wait_task(task, "CANCELED")
    again = up.run_det("task", "kill", parent)
    assert "has ended already" in again.err


def test_a_command_is_paused_only_if_it_was_launched_for_that(up: Cluster) -> None:
    [task] = up.run_det("cmd", "run", "-d", "sleep 100").out.split()
    refused = up.run_det("task", "pause", task, check=False)
    assert refused.code == 1 and '"preemptible: true"' in refused.err
    refused = up.run_det("task", "kill", task, check=False)
    assert refused.code == 1 and "`det cmd` is for commands" in refused.err
    up.run_det("cmd", "kill", task)
    file = up.write_config("entrypoint: 5\nresources:\n  slots: -1\n")
    refused = up.run_det("task", "create", file, check=False)
    assert refused.code == 1 and f"{file}:1:1: entrypoint" in refused.err and f"{file}:3:3: " in refused.err
    assert json.loads(up.run_det("task", "list", "--json").out) is not None
