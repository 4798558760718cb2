"""Python programs that start warm: the agent has imported their modules before."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from configs import experiment
from conftest import flavoured
from harness import Agent, ApiError, Cluster, share
from processes import free_port, processes_with
from waiting import wait_for

pytestmark = pytest.mark.core

# A module that knows which process has imported it, and whether that was in the sandbox of a task.
MODULE = """
import os
PID = os.getpid()
WHERE = "cold" if os.path.exists("/run/determined/task.json") else "warm"
"""
REPORT = """
import os, sys, time
import det_slow_module as slow
by = "itself" if slow.PID == os.getpid() else "another"
print("started", slow.WHERE, "by", by, flush=True)
while len(sys.argv) > 1 and not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
print("ended in order", flush=True)
"""
READY = "Python programs of tasks start warm"


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """An environment of its own with the module, below no directory that sandboxes cover."""
    directory = pathlib.Path("/var/tmp") / f"det-warm-{os.getpid()}"
    made = subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=False, capture_output=True)
    if made.returncode != 0:
        pytest.skip(f"no virtual environment can be made: {made.stderr.decode()}")
    packages = next(directory.glob("lib/python3*/site-packages"))
    (packages / "det_slow_module.py").write_text(MODULE)
    yield directory / "bin/python3"
    subprocess.run(["rm", "-rf", directory], check=True)


@pytest.fixture
def cluster(interpreter: pathlib.Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster whose agent has imported the modules that the test names."""
    imports = getattr(request, "param", "det_slow_module")
    args = ["--set", f"warm_start.python={interpreter}", "--set", f"warm_start.imports=[{imports}]"]
    with flavoured("core", python=interpreter, agents=[Agent(args=args)]) as cluster:
        yield cluster


def wait_for_agent_log(cluster: Cluster, text: str, times: int = 1) -> None:
    log = cluster.part("agent-1").log
    wait_for(f"{text!r} in the agent's log", lambda: log.read_text().count(text) >= times or None, within=30)


def template(cluster: Cluster) -> int:
    """The process with the imported modules."""
    script = str(cluster.root / "agent-1" / "warm" / "template.py")
    owns = [found for found in processes_with(script) if os.getsid(found.pid) == found.pid]
    children = {found.pid for found in owns if parent(found.pid) in {other.pid for other in owns}}
    return next(found.pid for found in owns if found.pid not in children)


def parent(pid: int) -> int:
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def names_of_processes() -> set[str]:
    found = set()
    for path in pathlib.Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            found.add(path.read_text().strip())
    return found


def files(cluster: Cluster) -> pathlib.Path:
    context = cluster.root / "work" / "context"
    context.mkdir(exist_ok=True)
    (context / "report.py").write_text(REPORT)
    return context


def submit(cluster: Cluster, entrypoint: str, **more: Any) -> int:
    config = cluster.write_config(experiment("warm", entrypoint, **more))
    result = cluster.run_det("experiment", "create", config, files(cluster))
    return int(result.out.split("Created experiment ")[1].split()[0])


def test_trials_and_commands_begin_with_what_the_agent_has_imported(cluster: Cluster) -> None:
    wait_for_agent_log(cluster, READY)
    number = submit(cluster, "python3 report.py; python3 report.py")
    cluster.wait_experiment(number, "COMPLETED")
    printed = cluster.printed(cluster.only_trial(number)["id"])
    assert printed == [
        "started warm by another",
        "ended in order",
        "started cold by itself",
        "ended in order",
    ]
    result = cluster.run_det("cmd", "run", "--context", files(cluster), "python3", "-u", "report.py")
    assert "started warm by another" in result.out


def test_a_warm_trial_survives_its_agent_and_the_template(cluster: Cluster) -> None:
    wait_for_agent_log(cluster, READY)
    shared = cluster.shared_dir()
    number = submit(cluster, "exec python3 report.py $E2E_DIR/go", **share(shared))
    trial = cluster.only_trial(number)["id"]
    cluster.wait_log(trial, "started warm by another")
    cluster.expect_alarm("the process with the modules of warm starts has ended")
    os.kill(template(cluster), signal.SIGKILL)
    wait_for_agent_log(cluster, READY, times=2)
    cluster.restart("agent-1")
    wait_for_agent_log(cluster, READY, times=3)
    (shared / "go").touch()
    cluster.wait_experiment(number, "COMPLETED")
    assert cluster.printed(trial) == ["started warm by another", "ended in order"]


def test_a_warm_trial_is_killed(cluster: Cluster) -> None:
    wait_for_agent_log(cluster, READY)
    number = submit(cluster, "python3 report.py /nowhere/at/all")
    trial = cluster.only_trial(number)["id"]
    cluster.wait_log(trial, "started warm by another")
    seen = cluster.run_det("trial", "doctor", trial).out
    # The program, in the place of the relay that its shell has started.
    assert seen.count("python3 report.py") == 1, seen
    cluster.run_det("experiment", "kill", number)
    cluster.wait_experiment(number, "CANCELED")
    wait_for("the end of its processes", lambda: not cluster.task_processes(trial) or None, within=30)


@pytest.mark.parametrize("cluster", ["det_slow_module, det_no_such_module"], indirect=True)
def test_tasks_start_cold_where_a_module_cannot_be_imported(cluster: Cluster) -> None:
    cluster.expect_alarm("tasks start cold, since the modules")
    wait_for_agent_log(cluster, "No module named 'det_no_such_module'")
    number = submit(cluster, "python3 report.py")
    cluster.wait_experiment(number, "COMPLETED")
    trial = cluster.only_trial(number)["id"]
    assert cluster.printed(trial) == ["started cold by itself", "ended in order"]


def test_a_service_of_a_warm_program_is_reached(cluster: Cluster) -> None:
    wait_for_agent_log(cluster, READY)
    port = free_port()
    made = cluster.api(
        "POST",
        "/api/v1/commands",
        {
            "config": {
                "entrypoint": ["python3", "-u", "-m", "http.server", "--bind", "127.0.0.1", str(port)],
                "resources": {"slots": 0},
                "environment": {
                    "proxy_ports": [{"proxy_port": port, "default_service_id": True}],
                },
            }
        },
    )
    id = made["command"]["id"]

    def answers() -> bool:
        try:
            cluster.raw("GET", f"/proxy/{id}/")
        except ApiError as error:
            # The program takes the path as it came, and has no such file.
            return error.status == 404
        return True

    wait_for("the program to listen", answers, within=30)
    # Only a program that runs warm has a relay, for as long as it runs.
    assert "det-relay" in names_of_processes()
    cluster.api("POST", f"/api/v1/commands/{id}/kill")
