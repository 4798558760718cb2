"""What is particular to tasks in containers. That experiments run there at all is in `test_experiments.py`."""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
import tarfile
from collections.abc import Iterator

import pytest

from configs import experiment
from conftest import engine
from harness import Cluster
from waiting import wait_for


def test_variables_and_no_gpus(boxed: Cluster) -> None:
    environment = {"environment_variables": ["MINE=1"]}
    config = experiment("look", "python3 look.py", environment=environment, resources={"slots_per_trial": 0})
    trial = boxed.run(config, "look")
    [line] = [line for line in boxed.printed(trial["id"]) if line.startswith("seen: ")]
    seen = json.loads(line[len("seen: ") :])
    assert seen["environment"]["MINE"] == "1"
    assert seen["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert seen["uid"] == 0


def test_no_task_logs_in_with_a_blank_password(boxed: Cluster) -> None:
    trial = boxed.run(experiment("logs-in", "python3 login.py"), "login")
    answers = [line for line in boxed.printed(trial["id"]) if line.startswith("login ")]
    assert len(answers) == 4
    # 401 where the users have passwords.
    refused = (": 403",) if not boxed.password else (": 401", ": 403")
    assert all(answer.endswith(refused) for answer in answers), answers
    assert boxed.token("admin"), "local users still do"


def test_containers_are_labelled_and_removed(boxed: Cluster) -> None:
    experiment_id = boxed.submit(experiment("labelled", "echo here; sleep 600"))
    trial = boxed.only_trial(experiment_id)
    boxed.wait_log(trial["id"], "here")
    found = engine(boxed, "ps", "--quiet", "--filter", f"label=ai.determined.task.id={trial['taskId']}").split()
    assert len(found) == 1
    [inspected] = json.loads(engine(boxed, "inspect", found[0]))
    assert inspected["Config"]["Labels"]["ai.determined.container.cluster"] == boxed.cluster_id
    boxed.run_det("experiment", "kill", experiment_id)
    boxed.wait_experiment(experiment_id, "CANCELED")
    wait_for("its container to be removed", lambda: not engine(boxed, "ps", "-aq", "--filter", f"id={found[0]}"), within=20)


def test_bind_mounts(boxed: Cluster) -> None:
    given = boxed.shared_dir()
    (given / "in").write_text("from the host")
    (given / "sub").mkdir()
    (given / "sub").chmod(0o777)
    mounts = [
        {"host_path": str(given), "container_path": "/given", "read_only": True},
        {"host_path": str(given / "sub"), "container_path": "results"},
    ]
    command = "cat /given/in; echo; touch /given/out || echo read-only; echo done > results/out"
    trial = boxed.run(experiment("mounts", command, bind_mounts=mounts))
    assert boxed.printed(trial["id"]) == ["from the host", "read-only"]
    assert (given / "sub" / "out").read_text() == "done\n", "a relative path begins at the work directory"


@pytest.mark.parametrize(
    ("command", "expected"), [("exit 9", "9"), ("kill -KILL $$", "signal 9|SIGKILL"), (["/none"], "127")]
)
def test_exit_codes(boxed: Cluster, command, expected: str) -> None:
    experiment_id = boxed.submit(experiment("codes", command))
    boxed.wait_experiment(experiment_id, "ERROR")
    log = "\n".join(boxed.log_lines(boxed.only_trial(experiment_id)["id"]))
    assert any(word in log for word in expected.split("|")), log


def test_an_image_that_is_not_there(boxed: Cluster) -> None:
    config = experiment("no-image", "true", environment={"image": "localhost:1/no/such:image"}, max_restarts=1)
    experiment_id = boxed.submit(config)
    boxed.wait_experiment(experiment_id, "ERROR", within=90)
    trial = boxed.only_trial(experiment_id)
    assert trial["restarts"] == 1, "each attempt is charged"
    assert any("localhost:1/no/such:image" in line for line in boxed.log_lines(trial["id"]))
    boxed.expect_alarm(r"image")


def test_shared_memory(boxed: Cluster) -> None:
    config = experiment("shm", "df --output=size -k /dev/shm | tail -1", resources={"shm_size": "37 MiB"})
    trial = boxed.run(config)
    assert [line.strip() for line in boxed.printed(trial["id"])] == [str(37 * 1024)]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"environment": {"add_capabilities": ["SYS_ADMIN"]}}, "allowed_capabilities"),
        ({"environment": {"add_capabilities": ["ALL"]}}, "allowed_capabilities"),
        ({"resources": {"devices": [{"host_path": "/dev", "container_path": "/host-dev"}]}}, "host's own device files"),
        ({"resources": {"devices": [{"host_path": "/dev/shm", "container_path": "/host-shm"}]}}, "host's own device files"),
        # Containers of a master on loopback share the host's network.
        ({"environment": {"add_capabilities": ["NET_RAW"]}}, "shares the network"),
    ],
)
def test_what_makes_a_container_the_host_is_an_administrators_to_give(boxed: Cluster, asked, expected: str) -> None:
    refused = boxed.submit(experiment("refused", "echo ran", **asked))
    boxed.wait_experiment(refused, "ERROR")
    lines = boxed.log_lines(boxed.only_trial(refused)["id"])
    assert any(expected in line for line in lines), lines
    assert "ran" not in lines


def test_capabilities_within_the_container_are_given(boxed: Cluster) -> None:
    asked = {"environment": {"add_capabilities": ["SYS_PTRACE", "CAP_IPC_LOCK"]}}
    trial = boxed.run(experiment("traces", "grep CapEff /proc/self/status", **asked))
    [line] = boxed.printed(trial["id"])
    effective = int(line.split()[1], 16)
    # CAP_IPC_LOCK and CAP_SYS_PTRACE of linux/capability.h.
    assert effective & 1 << 14 and effective & 1 << 19, line
    assert not effective & 1 << 21, "CAP_SYS_ADMIN"
    assert not effective & 1 << 13, "CAP_NET_RAW in the host's network"
    assert not effective & 1 << 10, "CAP_NET_BIND_SERVICE in the host's network"


@pytest.fixture
def root_program(boxed: Cluster) -> Iterator[str]:
    """The usual image with a copy of its interpreter that belongs to root and is setuid."""
    name, container = "localhost/det-test-root-program", "det-test-root-program"
    made = "cp $(readlink -f $(command -v python3)) /usr/local/bin/rootly && chmod 4755 /usr/local/bin/rootly"
    engine(boxed, "run", "--name", container, "--network", "none", "--entrypoint", "sh", str(boxed.image), "-c", made)
    try:
        engine(boxed, "commit", container, name)
        yield name
    finally:
        engine(boxed, "rm", "--force", container)
        engine(boxed, "image", "rm", "--force", name)


@pytest.mark.usefixtures("linked_users")
def test_no_program_of_an_image_makes_root_of_a_mapped_user(boxed: Cluster, root_program: str) -> None:
    agent_user = {"agentUid": 4321, "agentUser": "mapped", "agentGid": 4321, "agentGroup": "mapped"}
    user = {"username": "mapped", "active": True, "agentUserGroup": agent_user}
    boxed.api("POST", "/api/v1/users", {"user": user}, user="admin")
    config = experiment(
        "rootly", "/usr/local/bin/rootly -c 'import os; print(os.geteuid())'", environment={"image": root_program}
    )
    submitted = boxed.api(
        "POST", "/api/v1/experiments", {"config": json.dumps(config), "activate": True}, user="mapped"
    )
    boxed.wait_experiment(submitted["experiment"]["id"], "COMPLETED")
    trial = boxed.only_trial(submitted["experiment"]["id"])
    assert boxed.printed(trial["id"]) == ["4321"]


def import_image(boxed: Cluster, name: str, root: pathlib.Path) -> str:
    """An image of the files below `root`, without asking a registry."""
    archive = root.with_suffix(".tar")
    with tarfile.open(archive, "w") as out:
        out.add(root, arcname=".")
    engine(boxed, "import", str(archive), name)
    return name


@pytest.fixture
def busybox() -> pathlib.Path:
    path = shutil.which("busybox")
    # `ldd` fails on what needs no libraries.
    if path is None or subprocess.run(["ldd", path], capture_output=True).returncode == 0:
        pytest.skip("there is no static busybox (Debian: busybox-static)")
    return pathlib.Path(path)


def test_an_image_with_busybox_alone(boxed: Cluster, busybox: pathlib.Path, tmp_path: pathlib.Path) -> None:
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    shutil.copy(busybox, root / "bin" / "busybox")
    for applet in ("sh", "echo", "cat", "env"):
        (root / "bin" / applet).symlink_to("busybox")
    (root / "tmp").mkdir()
    image = import_image(boxed, "localhost/det-test-busybox:latest", root)
    config = experiment(
        "busybox", "echo from $DET_TASK_TYPE; cat look.py | busybox wc -l", environment={"image": image}
    )
    trial = boxed.run(config, "look")
    assert boxed.printed(trial["id"])[0] == "from TRIAL"


def test_an_image_with_one_program_and_nothing_else(
    boxed: Cluster, busybox: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    shutil.copy(busybox, root / "echo")
    image = import_image(boxed, "localhost/det-test-one-program:latest", root)
    config = experiment("alone", "", environment={"image": image})
    config["entrypoint"] = ["/echo", "no shell", "here"]
    trial = boxed.run(config)
    assert boxed.printed(trial["id"]) == ["no shell here"]
