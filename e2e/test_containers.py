"""How containers end, and images that are derived from others; on each engine."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import harness
from configs import experiment
from conftest import engine, equipment, flavoured
from harness import Cluster, Missing, share
from processes import docker_client, podman_socket, tail
from waiting import wait_for

# Takes memory until there is none left.
EATS = """
import os, pathlib, time
print("holding", flush=True)
while not (pathlib.Path(os.environ["E2E_DIR"]) / "go").exists():
    time.sleep(0.05)
eaten = []
while True:
    eaten.append(b"x" * (8 << 20))
"""
LIMIT_BYTES = 128 << 20
# An image that no engine has; nothing listens for HTTPS on loopback.
NOWHERE = "localhost/det-test-nowhere:1"


def limit_memory(pid: int) -> None:
    """Limits the memory of a container that runs, by its control group: not every service can change that."""
    groups = [line.split(":", 2) for line in pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    for _, controllers, path in groups:
        if "memory" in controllers.split(","):
            pathlib.Path(f"/sys/fs/cgroup/memory{path}/memory.limit_in_bytes").write_text(str(LIMIT_BYTES))
            return
    [path] = [path for number, _, path in groups if number == "0"]
    pathlib.Path(f"/sys/fs/cgroup{path}/memory.max").write_text(str(LIMIT_BYTES))


def reasons(boxed: Cluster, kind: str, subject: str) -> list[str]:
    """The reasons in the record of events about something."""
    path = f"/api/v1/events?subjectKind={kind}&subjectId={subject}&limit=100"
    return [event["reason"] for event in boxed.api("GET", path, user="admin")["events"] if event.get("reason")]


def failed_allocation(boxed: Cluster, trial: dict[str, Any]) -> Any:
    """The ended attempt of a trial that was not started again."""
    [allocation] = boxed.task(trial["taskId"])["allocations"]
    return allocation


def test_a_container_without_memory_is_named_so_in_reason_log_and_event(boxed: Cluster) -> None:
    if boxed.engine == "rootless":
        pytest.skip("containers of another user have no limits where the host has cgroup v1")
    shared = boxed.shared_dir()
    eats = boxed.submit(experiment("eats", ["python3", "-c", EATS], **share(shared)))
    trial = boxed.only_trial(eats)
    boxed.wait_log(trial["id"], "holding")
    [container] = engine(boxed, "ps", "-q", "--filter", f"label=ai.determined.task.id={trial['taskId']}").split()
    limit_memory(int(engine(boxed, "inspect", "--format", "{{.State.Pid}}", container)))
    (shared / "go").touch()
    wait_for(
        "the end of the trial", lambda: boxed.experiment(eats)["state"] == "ERROR", within=10, seen=boxed.describe
    )
    lines = boxed.log_lines(trial["id"])
    assert any("the kernel's out-of-memory killer ended" in line for line in lines), lines
    expected = re.compile("the code was killed by the kernel because memory ran out")
    assert any(expected.search(line) for line in lines), lines
    allocation = failed_allocation(boxed, trial)
    assert expected.search(allocation["exitReason"]), allocation
    found = reasons(boxed, "allocation", allocation["allocationId"])
    assert any(expected.search(reason) for reason in found), found


def test_a_registry_that_cannot_be_reached_is_named_in_reason_log_and_event(boxed: Cluster) -> None:
    image = "127.0.0.1:1/no/such:image"
    unreached = boxed.submit(experiment("unreached", "true", environment={"image": image}))
    boxed.wait_experiment(unreached, "ERROR", within=90)
    boxed.expect_alarm(r"image")
    trial = boxed.only_trial(unreached)
    cause = "(connection refused|no route|unreachable)"
    expected = re.compile(rf'cannot pull image "{re.escape(image)}": its registry .* was not reached: .*{cause}')
    assert any(expected.search(line) for line in boxed.log_lines(trial["id"])), boxed.log_lines(trial["id"])
    allocation = failed_allocation(boxed, trial)
    assert expected.search(allocation["exitReason"]), allocation
    found = reasons(boxed, "allocation", allocation["allocationId"])
    assert any(expected.search(reason) for reason in found), found


def end_reason(boxed: Cluster, trial: dict[str, Any]) -> str | None:
    """How the first attempt of a trial ended, which its event and the trial's log repeat; None before its end."""
    allocation = boxed.task(trial["taskId"])["allocations"][-1]
    reason = allocation.get("exitReason")
    if reason is None:
        return None
    ident = allocation["allocationId"]
    assert ident.endswith(".1") and reasons(boxed, "allocation", ident)[-1] == reason, allocation
    assert any(line.startswith(f"Allocation {ident} ended: {reason}") for line in boxed.log_lines(trial["id"]))
    return reason


@pytest.mark.parametrize(
    ("config", "hook", "expected"),
    [
        ({"environment": {"image": NOWHERE}}, None, f'cannot pull image "{NOWHERE}"'),
        ({"entrypoint": ["no-such-python", "train.py"]}, None, 'could not start the entrypoint "no-such-python"'),
        ({}, "echo prepares; exit 3", "of the task's files failed with exit status 3"),
    ],
    ids=["image", "interpreter", "startup hook"],
)
def test_what_does_not_start_has_one_reason_in_all_places(
    boxed: Cluster, tmp_path: pathlib.Path, config: dict[str, Any], hook: str | None, expected: str
) -> None:
    if hook is not None:
        (tmp_path / "startup-hook.sh").write_text(hook)
    config = {**experiment("broken", "true"), **config}
    out = boxed.run_det("experiment", "create", boxed.write_config(config), tmp_path).out
    broken = int(re.search(r"Created experiment (\d+)", out).group(1))
    boxed.expect_alarm(r"image")
    boxed.wait_experiment(broken, "ERROR", within=90)
    reason = end_reason(boxed, boxed.only_trial(broken))
    assert reason is not None and expected in reason, reason


def holding(boxed: Cluster, name: str) -> dict[str, Any]:
    """A trial whose code runs until it is ended."""
    trial = boxed.only_trial(boxed.submit(experiment(name, "echo holding; sleep 600")))
    boxed.wait_log(trial["id"], "holding")
    return trial


def ends_lost(boxed: Cluster, trial: dict[str, Any], expected: str) -> None:
    """What was lost is reported within the bound for what befalls containers, and is started again."""
    reason = wait_for(
        "the end of the attempt", lambda: end_reason(boxed, trial), within=10, seen=boxed.describe
    )
    assert reason.startswith("the container was lost: ") and re.search(expected, reason), reason
    boxed.wait_log(trial["id"], "holding", times=2)
    boxed.run_det("experiment", "kill", trial["experimentId"])
    boxed.wait_experiment(trial["experimentId"], "CANCELED")


def test_a_container_that_is_removed_from_outside_is_reported_with_its_reason(boxed: Cluster) -> None:
    trial = holding(boxed, "removed")
    [container] = engine(boxed, "ps", "-q", "--filter", f"label=ai.determined.task.id={trial['taskId']}").split()
    engine(boxed, "rm", "--force", container)
    ends_lost(boxed, trial, "stopped from outside|removed from its engine")


def test_what_a_restart_of_the_engine_ends_is_reported_with_its_reason(boxed: Cluster) -> None:
    if boxed.engine != "docker":
        pytest.skip("containers of Podman are not the service's: they go on")
    if "DET_TEST_RESTART_ENGINE" not in os.environ:
        pytest.skip("DET_TEST_RESTART_ENGINE names no command that restarts the Docker engine")
    trial = holding(boxed, "restarted")
    boxed.expect_alarm(r"the container engine does not answer")
    subprocess.run(os.environ["DET_TEST_RESTART_ENGINE"], shell=True, check=True, timeout=60)
    ends_lost(boxed, trial, "asked to end by its engine|stopped from outside|is gone")


@pytest.fixture
def derived(boxed: Cluster, tmp_path: pathlib.Path) -> Iterator[Callable[..., str]]:
    """Builds images on the usual one, from files and steps; they are removed afterwards."""
    made: list[str] = []

    def build(name: str, steps: str) -> str:
        image = f"localhost/det-test-derived-{name}"
        (tmp_path / "Dockerfile").write_text(f"FROM {boxed.image}\n{steps}")
        host = [] if boxed.engine == "docker" else ["-H", f"unix://{podman_socket(boxed.engine)}"]
        argv = [str(docker_client()), *host, "build", "--quiet", "--network", "none", "--tag", image, str(tmp_path)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        made.append(image)
        return image

    yield build
    for image in made:
        engine(boxed, "image", "rm", "--force", image, check=False)


def test_an_image_with_further_packages_of_its_system(
    boxed: Cluster, derived: Callable[..., str], tmp_path: pathlib.Path
) -> None:
    # A package that asks a question when it is installed, unless that is not interactive.
    package = tmp_path / "greeter"
    (package / "DEBIAN").mkdir(parents=True)
    control = "Package: greeter\nVersion: 1.0\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: greets\n"
    (package / "DEBIAN" / "control").write_text(control)
    question = '#!/bin/sh\nif [ "$DEBIAN_FRONTEND" != noninteractive ]; then read -r answer; fi\n'
    (package / "DEBIAN" / "postinst").write_text(question)
    (package / "DEBIAN" / "postinst").chmod(0o755)
    (package / "usr" / "bin").mkdir(parents=True)
    (package / "usr" / "bin" / "greet").write_text("#!/bin/sh\necho greetings from a package\n")
    (package / "usr" / "bin" / "greet").chmod(0o755)
    subprocess.run(["dpkg-deb", "--build", "--root-owner-group", package], check=True, capture_output=True)
    steps = "COPY greeter.deb /tmp/\nRUN DEBIAN_FRONTEND=noninteractive dpkg --install /tmp/greeter.deb\n"
    image = derived("packages", steps)
    trial = boxed.run(experiment("packages", "greet", environment={"image": image}))
    assert boxed.printed(trial["id"]) == ["greetings from a package"]


def test_an_image_with_an_environment_of_python_at_a_place_of_its_own(
    boxed: Cluster, derived: Callable[..., str]
) -> None:
    # As images of conda are: interpreter and packages below a prefix, which is first on PATH.
    steps = (
        "RUN python3 -m venv --without-pip --system-site-packages /opt/conda/envs/mine && "
        "echo 'VERSION = 7' > /opt/conda/envs/mine/lib/python3.11/site-packages/added.py\n"
        "ENV PATH=/opt/conda/envs/mine/bin:/usr/local/bin:/usr/bin:/bin CONDA_PREFIX=/opt/conda/envs/mine\n"
    )
    image = derived("conda", steps)
    code = (
        "import added, os, sys\n"
        "from determined import core\n"
        "with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:\n"
        "    context.train.report_validation_metrics(1, {'validation_loss': float(added.VERSION)})\n"
        "print(sys.prefix, os.environ['CONDA_PREFIX'])\n"
    )
    trial = boxed.run(experiment("conda", ["python3", "-c", code], environment={"image": image}))
    assert boxed.printed(trial["id"]) == ["/opt/conda/envs/mine /opt/conda/envs/mine"]
    [report] = boxed.metrics(trial["id"], "validation")
    assert report["metrics"]["validation_metrics"]["validation_loss"] == 7.0, report


# Between Podman and its runtime: the root of each container is read-only, as pods have it by `readOnlyRootFilesystem`.
READ_ONLY = """#!{python}
import json, os, sys
if "create" in sys.argv:
    path = os.path.join(sys.argv[sys.argv.index("--bundle") + 1], "config.json")
    with open(path) as file:
        config = json.load(file)
    config["root"]["readonly"] = True
    with open(path, "w") as file:
        json.dump(config, file)
os.execv("{runtime}", ["{runtime}", *sys.argv[1:]])
"""


@pytest.fixture
def read_only() -> Iterator[Cluster]:
    """A cluster on a service of Podman whose containers have read-only roots; images are those of the usual service."""
    with equipment():
        harness.podman_image()
        client = shutil.which("podman")
        if client is None:
            raise Missing("there is no podman on PATH, which starts a service")
    with contextlib.ExitStack() as stack:
        home = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="det-e2e-podman-", dir="/var/tmp")))
        asked = [client, "--remote", "--url", f"unix://{podman_socket('podman')}", "info", "--format", "json"]
        usual = subprocess.run(asked, check=True, capture_output=True)
        found = json.loads(usual.stdout)
        runtime = home / "read-only"
        runtime.write_text(READ_ONLY.format(python=sys.executable, runtime=found["host"]["ociRuntime"]["path"]))
        runtime.chmod(0o755)
        (home / "containers.conf").write_text(
            '[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n'
            '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\nruntime = "read-only"\n'
            f'[engine.runtimes]\nread-only = ["{runtime}"]\n'
        )
        socket = home / "podman" / "podman.sock"
        socket.parent.mkdir()
        store = ["--root", found["store"]["graphRoot"], "--runroot", found["store"]["runRoot"]]
        with (home / "log").open("wb") as log:
            service = subprocess.Popen(
                [client, *store, "system", "service", "--time=0", f"unix://{socket}"],
                env={**os.environ, "CONTAINERS_CONF": str(home / "containers.conf")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        stack.callback(service.wait, 20)
        stack.callback(service.terminate)
        wait_for("the service", socket.exists, within=20, seen=lambda: tail(home / "log"))
        with flavoured("podman", shape="up", up_prefix=["env", f"XDG_RUNTIME_DIR={home}"]) as cluster:
            yield cluster


@pytest.mark.podman
def test_a_trial_trains_where_its_root_is_read_only(read_only: Cluster) -> None:
    command = "touch /probe 2>/dev/null || echo nothing is written here; python3 train.py"
    trial = read_only.run(experiment("read-only", command), "train")
    assert read_only.printed(trial["id"])[0] == "nothing is written here"
    assert read_only.checkpoints(trial["experimentId"]) != []
    done = read_only.run_det("cmd", "run", "--config", "resources.slots=0", "touch here && ls here; touch /probe", check=False)
    assert done.code == 1 and " || here" in done.out and "Read-only file system" in done.out, done


@pytest.mark.podman
def test_a_linked_user_does_not_start_where_podman_is_rootless() -> None:
    with flavoured("rootless") as cluster:
        cluster.expect_alarm("permission denied")
        agent_user = {"agentUid": 4321, "agentUser": "mapped", "agentGid": 4321, "agentGroup": "mapped"}
        user = {"username": "mapped", "active": True, "agentUserGroup": agent_user}
        body = {"user": user, "password": cluster.password, "isHashed": False}
        cluster.api("POST", "/api/v1/users", body, user="admin")
        env = {"DET_USER": "mapped", "DET_PASS": cluster.password}
        done = cluster.run_det("cmd", "run", "--config", "resources.slots=0", "echo ran", env=env, check=False)
        assert done.code != 0 and " || ran" not in done.out, done
        assert "permission denied" in done.err, done
