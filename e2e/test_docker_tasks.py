"""Every kind of task in containers, launched and used with both clients; and images with little in them or oddly made."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shlex
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import harness
from configs import experiment, search
from conftest import engine, equipment, flavoured, lane
from harness import Agent, Cluster, Missing, Result, share
from hosts import bridge_address, forwarded
from jupyter import OWNER, Server, answers, run
from processes import docker
from test_docker import busybox  # noqa: F401
from test_notebooks import WRITES, ended
from waiting import wait_for

AUX = ("--config", "resources.slots=0")
HOLD = "echo holding; while [ ! -e $E2E_DIR/go ]; do sleep 0.1; done; echo went on"


@pytest.fixture(params=["ours", "theirs"])
def det(request: pytest.FixtureRequest, boxed: Cluster) -> Callable[..., Result]:
    """Our client, and the unmodified one."""
    if request.param == "theirs":
        with equipment():
            harness.wheel_det()
        return boxed.client
    return boxed.run_det


def printed(out: str) -> list[str]:
    """What a task itself printed, of a log."""
    return re.findall(r" [0-9a-f]{8} \|\| (.*)$", out, re.M)


def container_of(boxed: Cluster, task: str) -> str:
    """The running container of a task, by the engine's id."""
    [found] = engine(boxed, "ps", "--quiet", "--no-trunc", "--filter", f"label=ai.determined.task.id={task}").split()
    return found


def is_gone(boxed: Cluster, container: str) -> None:
    def gone() -> bool:
        return container not in harness.containers_of(boxed.cluster_id, boxed.engine)

    wait_for("its container to be removed", gone, within=20)


def test_a_command_has_its_files_and_ends_with_its_code(
    boxed: Cluster, det: Callable[..., Result], tmp_path: pathlib.Path
) -> None:
    (tmp_path / "here.txt").write_text("of the context\n")
    done = det("cmd", "run", *AUX, "-c", tmp_path, "cat here.txt; echo $DET_TASK_TYPE; exit 5", check=False)
    assert printed(done.out) == ["of the context", "COMMAND"], done
    # Only ours ends with the code of the command.
    assert det.__func__ is not Cluster.run_det or done.code == 5, done


def test_a_generic_task_pauses_and_goes_on(boxed: Cluster, det: Callable[..., Result]) -> None:
    shared = boxed.shared_dir()
    config = boxed.write_config({"entrypoint": ["sh", "-c", HOLD], "resources": {"slots": 1}, **share(shared)})
    task = re.search(r"Created task (\S+)", det("task", "create", config).out).group(1)
    boxed.wait_task_printed(task, "holding")
    container = container_of(boxed, task)
    det("task", "pause", task)
    boxed.wait_task(task, "PAUSED")
    is_gone(boxed, container)
    det("task", "unpause", task)
    boxed.wait_task_printed(task, "holding", times=2)
    (shared / "go").touch()
    boxed.wait_task(task, "COMPLETED")
    assert "went on" in det("task", "logs", task).out


def test_a_container_is_measured(boxed: Cluster) -> None:
    task = boxed.run_det("cmd", "run", "-d", *AUX, "--config", "profiling.enabled=true", "echo done").out.split()[-1]

    def measured() -> Any:
        rows = boxed.run_det("task", "metrics", task, "--json").json()
        return {row["metric"]: row for row in rows} or None

    rows = wait_for("what is measured of the command", measured, within=60, seen=boxed.describe)
    assert rows["memory_free"]["of"] == "local" and rows["memory_free"]["last"] > 0
    assert {"cpu_util_simple", "disk_util", "net_throughput_sent"} <= rows.keys()


def test_the_unmodified_client_submits_a_trial_and_follows_it(boxed: Cluster) -> None:
    with equipment():
        harness.wheel_det()
    config = boxed.write_config(search("single"))
    followed = boxed.client("experiment", "create", config, harness.TRIALS / "train", "-f", within=120)
    submitted = int(re.search(r"Created experiment (\d+)", followed.out).group(1))
    assert boxed.wait_experiment(submitted, "COMPLETED")["numTrials"] == 1
    assert "starts after step 0" in followed.out, followed
    trial = boxed.only_trial(submitted)["id"]
    assert [report["totalBatches"] for report in boxed.metrics(trial, "validation")] != []
    [checkpoint, *_] = boxed.checkpoints(submitted)
    assert "run 1 is done" in boxed.client("trial", "logs", trial).out
    assert checkpoint["uuid"] in boxed.client("checkpoint", "describe", checkpoint["uuid"]).out


class Session:
    """How ssh reaches a shell, as a client prints it."""

    def __init__(self, boxed: Cluster, det: Callable[..., Result], shell: str) -> None:
        shown = det("shell", "show-ssh-command", shell).out
        line = next(line for line in shown.splitlines() if "ProxyCommand" in line)
        words = shlex.split(line[line.index("ssh ") :].replace("\x1b[0m", ""))
        self.destination = words[-1]
        # Without a terminal, whose line ends and echo would be in the output.
        self.options = [word for word in words[1:-1] if word != "-tt"]
        ours = det.__func__ is Cluster.run_det
        self.env = boxed.client_environment("home" if ours else "wheel-home")

    def run(self, program: str, *arguments: object) -> subprocess.CompletedProcess[bytes]:
        argv = [program, "-q", *self.options, *map(str, arguments)]
        return subprocess.run(argv, env=self.env, capture_output=True, timeout=60, stdin=subprocess.DEVNULL)


def test_a_shell_is_entered_by_ssh_and_scp(boxed: Cluster, det: Callable[..., Result], tmp_path: pathlib.Path) -> None:
    with equipment():
        if shutil.which("ssh") is None or shutil.which("scp") is None:
            raise Missing("there is no SSH client: install openssh-client")
    started = det("shell", "start", "--detach", *AUX)
    shell = started.out.split()[-1]
    opened = det("shell", "open", shell, "--", 'echo "<$DET_TASK_ID|$PWD|$(id -u)>"')
    assert f"<{shell}|/root|0>" in opened.out, opened
    session = Session(boxed, det, shell)
    assert session.run("ssh", session.destination, "exit 7").returncode == 7
    content = os.urandom(3 << 20)
    (tmp_path / "there.bin").write_bytes(content)
    sent = session.run("scp", tmp_path / "there.bin", f"{session.destination}:")
    assert sent.returncode == 0, sent
    back = session.run("scp", f"{session.destination}:there.bin", tmp_path / "back.bin")
    assert back.returncode == 0 and (tmp_path / "back.bin").read_bytes() == content, back
    container = container_of(boxed, shell)
    det("shell", "kill", shell)
    is_gone(boxed, container)


@pytest.fixture(scope="module")
def with_account(boxed: Cluster) -> Iterator[str]:
    """The usual image with an account of its own."""
    name = "localhost/det-test-with-account"
    made = "echo svc:x:1234:1235::/home/svc:/bin/sh >> /etc/passwd; echo lab:x:1235: >> /etc/group; mkdir /home/svc"
    container = "det-test-with-account"
    engine(boxed, "run", "--name", container, "--network", "none", "--entrypoint", "sh", str(boxed.image), "-c", made)
    try:
        engine(boxed, "commit", container, name)
        yield name
    finally:
        engine(boxed, "rm", "--force", container)
        engine(boxed, "image", "rm", "--force", name)


@pytest.mark.usefixtures("linked_users")
def test_a_shell_of_a_mapped_user_is_that_user_whether_the_image_knows_it_or_not(boxed: Cluster, with_account: str) -> None:
    admin = {"DET_USER": "admin", "DET_PASS": boxed.password}
    boxed.run_det("user", "create", "linked", "--password", "Compiler1", env=admin)
    link = ["--agent-user", "svc", "--agent-uid", "1234", "--agent-group", "lab", "--agent-gid", "1235"]
    boxed.run_det("user", "link-with-agent-user", "linked", *link, env=admin)
    linked = {"DET_USER": "linked", "DET_PASS": "Compiler1"}
    known = (*AUX, "--config", f"environment.image={with_account}")
    shell = boxed.run_det("shell", "start", "--detach", *known, env=linked).out.split()[-1]
    opened = boxed.run_det("shell", "open", shell, "--", 'echo "<$(id -u):$(id -g)>"', env=linked)
    assert "<1234:1235>" in opened.out, opened
    boxed.run_det("shell", "kill", shell, env=linked)

    unknown = boxed.run_det("shell", "start", "--detach", *AUX, env=linked).out.split()[-1]
    opened = boxed.run_det("shell", "open", unknown, "--", 'echo "<$(id -un):$(id -gn)>$HOME|$PWD"', env=linked)
    assert "<svc:lab>/run/determined/workdir|/run/determined/workdir" in opened.out, opened
    # What the image has is still there.
    opened = boxed.run_det("shell", "open", unknown, "--", "getent passwd root svc | cut -d: -f1 | xargs", env=linked)
    assert opened.out.strip() == "root svc", opened
    log = boxed.run_det("shell", "logs", unknown, env=linked).out
    assert "has no account" not in log and "could not be added" not in log, log
    boxed.run_det("shell", "kill", unknown, env=linked)
    done = boxed.run_det("cmd", "run", *AUX, "python3 -c 'import getpass; print(getpass.getuser())'", env=linked)
    assert " || svc" in done.out, done


def started(det: Callable[..., Result], kind: str, *arguments: object) -> str:
    """Starts a notebook or TensorBoard, and waits until it is ready; gives its id."""
    done = det(kind, "start", "--no-browser", *arguments, within=120)
    found = re.search(r"/(?:proxy|interactive)/([0-9a-f-]{36})/", done.out + done.err)
    found = found or re.search(r"\(id: ([0-9a-f-]{36})\) is ready", done.out)
    assert found, done
    return found.group(1)


def test_a_notebook_runs_cells_and_outlives_the_cluster(
    boxed: Cluster, det: Callable[..., Result], tmp_path: pathlib.Path
) -> None:
    (tmp_path / "mine.txt").write_text("of the context\n")
    notebook = started(det, "notebook", *AUX, "--context", tmp_path)
    server = Server(boxed, notebook)
    kernel = server.call("POST", "api/kernels", {"name": "python3"})["id"]
    socket = server.connect(kernel)
    assert run(socket, "kept = 6 * 7; print(open('mine.txt').read().strip())") == "of the context"
    socket.close()
    boxed.expect_alarm(r"lost the master|no connection to the master")
    boxed.restart("up")
    wait_for("the server to be reached again", lambda: answers(server), within=60, seen=boxed.describe)
    socket = server.connect(kernel)
    assert run(socket, "print(kept)") == "42", "the same kernel"
    socket.close()
    container = container_of(boxed, notebook)
    det("notebook", "kill", notebook)
    assert ended(boxed, "notebook", notebook).startswith("it was killed by ")
    is_gone(boxed, container)


@pytest.fixture(scope="module")
def written(boxed: Cluster) -> int:
    """An experiment whose trial has written TensorBoard files."""
    config = {
        "name": "writes",
        "entrypoint": ["python3", "-c", WRITES],
        "searcher": {"name": "single", "metric": "loss"},
        "resources": {"slots_per_trial": 0},
    }
    experiment = boxed.submit(config)
    boxed.wait_experiment(experiment, "COMPLETED")
    return experiment


def test_a_tensorboard_shows_what_a_trial_has_written(
    boxed: Cluster, det: Callable[..., Result], written: int
) -> None:
    board = started(det, "tensorboard", written)
    trial = boxed.only_trial(written)["id"]

    def shown() -> Any:
        headers = {"Authorization": f"Bearer {boxed.token(OWNER)}"}
        request = urllib.request.Request(f"{boxed.url}/proxy/{board}/data/runs", headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    wait_for("the trial to be shown", lambda: shown() == [f"experiment_{written}/trial/{trial}"], within=60, seen=shown)
    container = container_of(boxed, board)
    det("tensorboard", "kill", board)
    is_gone(boxed, container)


# --- images ----------------------------------------------------------------------------------------------------------


def command(boxed: Cluster, image: str, *words: str, **options: Any) -> Result:
    """Runs a command in an image with our client."""
    return boxed.run_det("cmd", "run", *AUX, "--config", f"environment.image={image}", "--", *words, **options)


@pytest.fixture
def image_of(boxed: Cluster, tmp_path: pathlib.Path) -> Iterator[Callable[..., str]]:
    """Makes images of directories; they are removed afterwards."""
    made: list[str] = []

    def make(root: pathlib.Path, *changes: str) -> str:
        # Podman gives images without a registry this one.
        name = f"localhost/det-test-made-{len(made)}:latest"
        archive = root.with_suffix(".tar")
        subprocess.run(["tar", "-C", root, "-cf", archive, "."], check=True)
        options = [word for change in changes for word in ("--change", change)]
        engine(boxed, "import", *options, str(archive), name)
        made.append(name)
        return name

    yield make
    for name in made:
        engine(boxed, "image", "rm", "--force", name, check=False)


def small(root: pathlib.Path, program: pathlib.Path) -> pathlib.Path:
    """The files of an image with busybox."""
    (root / "bin").mkdir(parents=True)
    shutil.copy(program, root / "bin" / "busybox")
    for applet in ("sh", "echo", "cat", "id", "touch", "test"):
        (root / "bin" / applet).symlink_to("busybox")
    return root


def test_an_images_own_entrypoint_command_and_user_are_replaced(
    boxed: Cluster,
    busybox: pathlib.Path,  # noqa: F811
    image_of: Callable[..., str],
    tmp_path: pathlib.Path,
) -> None:
    changes = ('ENTRYPOINT ["/bin/echo", "the entrypoint of the image"]', 'CMD ["its command"]', "USER 65534:65534")
    image = image_of(small(tmp_path / "root", busybox), *changes, "ENV FROM_IMAGE=kept", "WORKDIR /elsewhere")
    done = command(boxed, image, "sh", "-c", "echo $FROM_IMAGE; id -u; echo $PWD")
    assert printed(done.out) == ["kept", "0", "/run/determined/workdir"], done


@pytest.mark.usefixtures("linked_users")
def test_a_user_who_may_write_nowhere_in_an_image(
    boxed: Cluster,
    busybox: pathlib.Path,  # noqa: F811
    image_of: Callable[..., str],
    tmp_path: pathlib.Path,
) -> None:
    root = small(tmp_path / "root", busybox)
    for directory in (root / "bin", root):
        directory.chmod(0o555)
    agent_user = {"agentUid": 4322, "agentUser": "reader", "agentGid": 4322, "agentGroup": "reader"}
    user = {"username": "reader", "active": True, "agentUserGroup": agent_user}
    boxed.api("POST", "/api/v1/users", {"user": user, "password": "Compiler1", "isHashed": False}, user="admin")
    (tmp_path / "context").mkdir()
    (tmp_path / "context" / "mine.txt").write_text("mine\n")
    script = "id -u; cat mine.txt; touch made && echo writes here; touch /made 2>/dev/null || echo not there"
    flags = (*AUX, "--config", f"environment.image={image_of(root)}", "-c", tmp_path / "context")
    env = {"DET_USER": "reader", "DET_PASS": "Compiler1"}
    done = boxed.run_det("cmd", "run", *flags, "--", "sh", "-c", script, env=env)
    assert printed(done.out) == ["4322", "mine", "writes here", "not there"], done


def test_an_image_with_the_library_of_musl(
    boxed: Cluster,
    busybox: pathlib.Path,  # noqa: F811
    image_of: Callable[..., str],
    tmp_path: pathlib.Path,
) -> None:
    loader = pathlib.Path(f"/lib/ld-musl-{os.uname().machine}.so.1")
    with equipment():
        if shutil.which("musl-gcc") is None or not loader.exists():
            raise Missing("there is no musl: install musl-tools")
    source = tmp_path / "hello.c"
    source.write_text('#include <stdio.h>\nint main(void) { puts("hello from musl"); return 0; }\n')
    root = small(tmp_path / "root", busybox)
    subprocess.run(["musl-gcc", "-o", root / "bin" / "hello", source], check=True)
    (root / "lib").mkdir()
    shutil.copy(loader, root / "lib")
    done = command(boxed, image_of(root), "hello")
    assert printed(done.out) == ["hello from musl"], done


@pytest.mark.parametrize(
    ("kind", "missing"), [("shells", "openssh-server"), ("notebooks", "python"), ("tensorboards", "python")]
)
def test_what_an_image_lacks_for_a_service_is_reported(
    boxed: Cluster,
    busybox: pathlib.Path,  # noqa: F811
    image_of: Callable[..., str],
    tmp_path: pathlib.Path,
    written: int,
    kind: str,
    missing: str,
) -> None:
    image = image_of(small(tmp_path / "root", busybox))
    config: dict[str, Any] = {"environment": {"image": image}, "resources": {"slots": 0}}
    body: dict[str, Any] = {"config": config}
    if kind == "tensorboards":
        body["experimentIds"] = [written]
    task = next(iter(boxed.api("POST", f"/api/v1/{kind}", body).values()))["id"]

    def failed() -> str | None:
        shown = next(iter(boxed.api("GET", f"/api/v1/{kind}/{task}").values()))
        return shown["exitStatus"] if shown["state"] == "STATE_TERMINATED" else None

    wait_for("its end", failed, within=30, seen=boxed.describe)
    records = boxed.stream(f"/api/v1/tasks/{task}/logs", user="admin")
    log = "\n".join(record["log"] for record in records)
    assert missing in log.lower(), log


# --- containers with a network of their own --------------------------------------------------------------------------


# A network that an administrator makes, and names for a pool.
LAB = "det-test-lab"


@pytest.fixture(scope="module")
def bridged() -> Iterator[Cluster]:
    """Two agents whose containers have networks of their own, and one of a pool with a network that is made for it."""
    with equipment():
        address = bridge_address()
        image = harness.docker_image()
    # The port is known only once there is a cluster, which wants it in its agents' arguments.
    names = ("agent-1", "agent-2")
    with contextlib.ExitStack() as stack:
        of_the_lab = {"pool_name": "lab", "task_container_defaults": {"network_mode": LAB, "image": image}}
        config = {"security": {"host_names": [address]}, "resource_pools": [{"pool_name": "default"}, of_the_lab]}
        cluster = Cluster(image=image, agents=[], master_config=config)
        port = stack.enter_context(forwarded(address, cluster.port))
        reached = ("--set", f"container_master_host={address}", "--set", f"container_master_port={port}")
        cluster.add_agents(*(Agent(name, 1, "docker", reached) for name in names))
        own = ("--set", "resource_pool=lab", "--set", 'allowed_host_paths=["/dev/fuse"]')
        cluster.add_agents(Agent("agent-lab", 1, "docker", (*reached, *own)))
        yield stack.enter_context(cluster)


@pytest.mark.docker
def test_ports_are_published_on_loopback_and_reached_through_the_master(bridged: Cluster) -> None:
    shell = bridged.run_det("shell", "start", "--detach", *AUX).out.strip()
    opened = bridged.run_det("shell", "open", shell, "--", "cat /proc/net/dev; echo inside")
    assert "inside" in opened.out and "docker0" not in opened.out, "a network of its own"
    notebook = started(bridged.run_det, "notebook", *AUX)
    assert answers(Server(bridged, notebook))
    for task in (shell, notebook):
        [inspected] = json.loads(engine(bridged, "inspect", container_of(bridged, task)))
        assert inspected["HostConfig"]["NetworkMode"] == "bridge"
        published = [binding for port in inspected["NetworkSettings"]["Ports"].values() for binding in port]
        assert published and {binding["HostIp"] for binding in published} == {"127.0.0.1"}, published
        for binding in published:
            with pytest.raises(OSError):
                socket.create_connection((bridge_address(), int(binding["HostPort"])), timeout=5).close()
    for kind, task in (("shell", shell), ("notebook", notebook)):
        bridged.run_det(kind, "kill", task)


@pytest.mark.docker
def test_a_gang_over_two_agents_meets_whatever_the_network_of_others(bridged: Cluster) -> None:
    alone = bridged.run(experiment("alone", "echo $DET_TASK_TYPE", resources={"slots_per_trial": 1}))
    assert bridged.printed(alone["id"]) == ["TRIAL"]
    trial = bridged.run(experiment("gang", "python3 gang.py", resources={"slots_per_trial": 2}), "gang")
    printed = bridged.printed(trial["id"])
    assert "the chief received: hello from rank 1" in printed and "the member received: welcome" in printed, printed


@pytest.mark.docker
def test_a_network_of_the_administrators_and_a_device_that_is_allowed(bridged: Cluster) -> None:
    if not os.path.exists("/dev/fuse"):
        pytest.skip("this host has no /dev/fuse to give to a container")
    shared = bridged.shared_dir()
    device = {"host_path": "/dev/fuse", "container_path": "/dev/given"}
    config = {"resources": {"slots": 0, "resource_pool": "lab", "devices": [device]}, **share(shared)}
    sees = "stat -c '%F %t:%T' /dev/given; python3 -c 'open(\"/dev/given\", \"rb+\", 0); print(\"opened\")'; " + HOLD
    docker("network", "create", LAB)
    try:
        task = bridged.run_det("cmd", "run", "-d", "--config-file", bridged.write_config(config), sees).out.strip()
        seen = bridged.wait_task_printed(task, "holding")
        assert seen[:2] == ["character special file a:e5", "opened"], seen
        [inspected] = json.loads(engine(bridged, "inspect", container_of(bridged, task)))
        assert inspected["HostConfig"]["NetworkMode"] == LAB
        assert list(inspected["NetworkSettings"]["Networks"]) == [LAB]
        (shared / "go").touch()
        bridged.wait_task_printed(task, "went on")
        wait_for("its end", lambda: not bridged.live_tasks(), within=30, seen=bridged.describe)
    finally:
        docker("network", "rm", LAB, check=False)


@pytest.mark.parametrize("flavour", [lane("podman")])
def test_a_gang_of_two_containers_meets_on_the_network_of_the_host(flavour: str) -> None:
    with flavoured(flavour, agents=[Agent("agent-1", 1), Agent("agent-2", 1)]) as pair:
        trial = pair.run(experiment("gang", "python3 gang.py", resources={"slots_per_trial": 2}), "gang")
        printed = pair.printed(trial["id"])
    assert "the chief received: hello from rank 1" in printed and "the member received: welcome" in printed, printed
