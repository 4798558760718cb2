"""Notebooks and TensorBoards with the unmodified PyPI client: running kernels, restarts, idle timeouts, shown metrics."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

import harness
from conftest import equipment, flavoured
from harness import Agent, Cluster, Missing
from jupyter import OWNER, Server, answers, begin, output, run
from waiting import wait_for

pytestmark = pytest.mark.client

AUX = ("--config", "resources.slots=0")
KILLED = f"it was killed by {OWNER}"
# Executes until the test lets it end.
EXECUTES = """
import os, time
print("begun", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
print("went on to the end")
"""
# Installing takes longer than these tests may: their environment has what the services need.
WRITES = """
import time
from determined import core
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
with core.init() as context:
    writer = EventFileWriter("/tmp/tensorboard")
    for step in range(1, 6):
        value = Summary.Value(tag="own/loss", simple_value=1.0 / step)
        writer.add_event(Event(step=step, wall_time=time.time(), summary=Summary(value=[value])))
        context.train.report_validation_metrics(step, {"loss": 1.0 / step})
    writer.close()
"""


@pytest.fixture(scope="module")
def of_the_pool() -> Iterator[dict[str, Any]]:
    """The configuration of a master whose pool mounts a directory into every task."""
    given = pathlib.Path(tempfile.mkdtemp(prefix="det-e2e-of-the-pool-", dir="/var/tmp"))
    given.chmod(0o755)
    (given / "data.txt").write_text("of the pool\n")
    mount = {"host_path": str(given), "container_path": "/of-the-pool", "read_only": True}
    yield {"resource_pools": [{"pool_name": "default", "task_container_defaults": {"bind_mounts": [mount]}}]}
    shutil.rmtree(given)


@pytest.fixture(scope="module")
def cluster(of_the_pool: dict[str, Any]) -> Iterator[Cluster]:
    with equipment():
        harness.wheel_det()
        try:
            import jupyterlab  # noqa: F401
            import tensorboard  # noqa: F401
        except ImportError as error:
            raise Missing(f"{error.name} is not installed: make setup") from None
    with flavoured("core", agents=[Agent(slots=2)], master_config=of_the_pool) as cluster:
        yield cluster


def start(cluster: Cluster, kind: str, *flags: object) -> str:
    """Starts one and waits until it is ready, as the client does; gives its id."""
    out = cluster.client(kind, "start", "--no-browser", *flags).out
    found = re.search(r"\(id: ([0-9a-f-]{36})\) is ready", out)
    assert found, out
    return found.group(1)


def let_go(server: Server) -> None:
    """Lets a cell that executes go on to its end."""
    made = {"type": "file", "format": "text", "content": ""}
    server.call("PUT", "api/contents/run/determined/workdir/go", made)


def ended(cluster: Cluster, kind: str, ident: str) -> str:
    """How one ended, once it has."""

    def look() -> str | None:
        shown = next(iter(cluster.api("GET", f"/api/v1/{kind}s/{ident}", user="admin").values()))
        return shown["exitStatus"] if shown["state"] == "STATE_TERMINATED" else None

    return wait_for(f"the end of the {kind}", look, within=60, seen=cluster.describe)


def test_a_notebook_runs_cells_and_outlives_master_and_agent(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    (tmp_path / "mine.txt").write_text("of the context\n")
    notebook = start(cluster, "notebook", *AUX, "--context", tmp_path)
    server = Server(cluster, notebook)
    kernel = server.call("POST", "api/kernels", {"name": "python3"})["id"]
    socket = server.connect(kernel)
    code = "import os; kept = 6 * 7; print(os.environ['DET_TASK_ID'], open('mine.txt').read().strip())"
    assert run(socket, code) == f"{notebook} of the context"
    assert run(socket, "print(open('/of-the-pool/data.txt').read().strip())") == "of the pool"
    socket.close()
    cluster.expect_alarm(r"lost the master|no connection to the master")

    def state(connections: int) -> str | None:
        """What the kernel does, once it has so many connections."""
        shown = server.call("GET", f"api/kernels/{kernel}")
        return shown["execution_state"] if shown["connections"] == connections else None

    # A cell executes while both are killed, and a page comes back for its output.
    socket = server.connect(kernel, "the-page")
    cell = begin(socket, EXECUTES)
    assert output(socket, cell, until="begun") == "begun"
    for part in ("master", "agent-1"):
        cluster.restart(part)
        wait_for("the server to be reached again", lambda: answers(server), within=60, seen=cluster.describe)
        # The same kernel, and the server knows that the connection is broken.
        seen = wait_for("the connection to be given up", lambda: state(0), within=30, seen=cluster.describe)
        assert seen == "busy", part
    socket.shutdown()
    let_go(server)
    wait_for("the end of the cell", lambda: state(0) == "idle", within=30, seen=cluster.describe)
    socket = server.connect(kernel, "the-page")
    assert output(socket, cell) == "went on to the end"
    assert run(socket, "print(kept)") == "42", "the kernel has what it knew"
    socket.close()
    listed = cluster.client("notebook", "list").out
    assert notebook in listed and "RUNNING" in listed
    cluster.client("notebook", "kill", notebook)
    assert ended(cluster, "notebook", notebook) == KILLED


def test_a_notebook_is_for_its_owner(cluster: Cluster) -> None:
    other = {"user": {"username": "other", "active": True}}
    cluster.api("POST", "/api/v1/users", other, user="admin")
    notebook = start(cluster, "notebook", *AUX)
    server = Server(cluster, notebook)
    log = cluster.client("notebook", "logs", notebook).out
    assert server.query.removeprefix("token=") not in log
    for cookie, query, status in [
        ("", "", 401),
        ("", "token=wrong", 401),
        (f"auth={cluster.token('other', '')}", "", 403),
    ]:
        request = urllib.request.Request(f"{server.base}api/status?{query}", headers={"Cookie": cookie})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=10)
        assert refused.value.code == status, (cookie, query)
        refused.value.close()
    # A program that has the token needs no session, as the client prints when it starts one.
    with urllib.request.urlopen(f"{server.base}api/status?{server.query}", timeout=10) as answer:
        assert "kernels" in json.load(answer)
    cluster.client("notebook", "kill", notebook)


def test_an_idle_notebook_ends_and_one_with_a_kernel_does_not(cluster: Cluster) -> None:
    flags = (*AUX, "--config", "idle_timeout=6s")
    idle, used = start(cluster, "notebook", *flags), start(cluster, "notebook", *flags)
    Server(cluster, used).call("POST", "api/kernels", {"name": "python3"})
    assert ended(cluster, "notebook", idle).startswith('it was idle for 6 s ("idle_timeout")')
    shown = cluster.api("GET", f"/api/v1/notebooks/{used}", user=OWNER)["notebook"]
    assert shown["state"] == "STATE_RUNNING"
    server = Server(cluster, used)
    for kernel in server.call("GET", "api/kernels"):
        request = urllib.request.Request(
            f"{server.base}api/kernels/{kernel['id']}?{server.query}",
            method="DELETE",
            headers={"Cookie": server.cookie, "Sec-Fetch-Site": "same-origin"},
        )
        urllib.request.urlopen(request, timeout=30).close()
    assert ended(cluster, "notebook", used).startswith("it was idle for 6 s")


def test_what_counts_as_use_of_a_notebook_is_configured(cluster: Cluster) -> None:
    def with_kernel(idle_type: str) -> tuple[str, Server, Any]:
        flags = ("--config", "idle_timeout=6s", "--config", f"notebook_idle_type={idle_type}")
        notebook = start(cluster, "notebook", *AUX, *flags)
        server = Server(cluster, notebook)
        return notebook, server, server.connect(server.call("POST", "api/kernels", {"name": "python3"})["id"])

    executing, server, socket = with_kernel("activity")
    assert output(socket, begin(socket, EXECUTES), until="begun") == "begun"
    socket.close()
    # A kernel that executes nothing, and has a client: the time of the first is over before that of this one begins.
    connected, _, socket = with_kernel("kernel_connections")
    socket.close()
    assert ended(cluster, "notebook", connected).startswith('it was idle for 6 s ("idle_timeout")')
    # Nothing was asked of this one meanwhile.
    assert cluster.api("GET", f"/api/v1/notebooks/{executing}", user=OWNER)["notebook"]["state"] == "STATE_RUNNING"
    let_go(server)
    assert ended(cluster, "notebook", executing).startswith('it was idle for 6 s ("idle_timeout")')


def test_a_kernel_that_does_nothing_is_shut_down_and_one_that_executes_is_not(cluster: Cluster) -> None:
    notebook = start(cluster, "notebook", *AUX, "--config", "kernel_idle_timeout=3s")
    server = Server(cluster, notebook)
    unused, busy = (server.call("POST", "api/kernels", {"name": "python3"})["id"] for _ in range(2))
    # Pages are connected to both, as those that were left open are.
    sockets = [server.connect(unused), server.connect(busy)]
    assert run(sockets[0], "print(1)") == "1"
    begin(sockets[1], "while True: pass")

    def left() -> list[str]:
        return [kernel["id"] for kernel in server.call("GET", "api/kernels")]

    wait_for("the kernel to be shut down", lambda: left() == [busy], within=30, seen=left)
    assert "Culling" in cluster.client("notebook", "logs", notebook).out
    for socket in sockets:
        socket.close()
    cluster.client("notebook", "kill", notebook)


def test_a_browser_logs_in_and_is_led_to_the_notebook(cluster: Cluster) -> None:
    notebook = start(cluster, "notebook", *AUX)
    page = f"{cluster.url}/det/interactive/{notebook}/jupyter-lab/name/default/wait?currentSlotsExceeded=false"

    class Stays(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *args: Any) -> None:
            return None

    opener = urllib.request.build_opener(Stays)

    def led(address: str, data: bytes | None = None, **headers: str) -> Any:
        request = urllib.request.Request(address, data=data, headers={"Accept": "text/html", **headers})
        with pytest.raises(urllib.error.HTTPError) as raised, contextlib.ExitStack() as closed:
            try:
                opener.open(request, timeout=10).close()
            except urllib.error.HTTPError as error:
                closed.callback(error.close)
                error.text = error.read().decode()
                raise
        return raised.value

    login = led(page)
    assert login.code == 303
    form = urllib.parse.urlsplit(login.headers["Location"])
    assert form.path == "/det/login"
    back = urllib.parse.parse_qs(form.query)["redirect"][0]
    given = {"username": OWNER, "password": "", "redirect": back}
    wrong = led(f"{cluster.url}/det/login", urllib.parse.urlencode({**given, "password": "x"}).encode())
    assert wrong.code == 401 and 'role="alert"' in wrong.text
    done = led(f"{cluster.url}/det/login", urllib.parse.urlencode(given).encode())
    assert (done.code, done.headers["Location"]) == (303, back)
    cookie = done.headers["Set-Cookie"].split(";")[0]
    there = led(f"{cluster.url}{back}", Cookie=cookie)
    assert there.headers["Location"].startswith(f"/proxy/{notebook}/?token=")
    lab = led(f"{cluster.url}{there.headers['Location']}", Cookie=cookie)
    assert lab.code == 302 and "/lab" in lab.headers["Location"], "Jupyter itself leads on"
    cluster.client("notebook", "kill", notebook)


def test_a_tensorboard_shows_what_trials_have_written(cluster: Cluster) -> None:
    search = {"searcher": {"name": "random", "max_trials": 2, "metric": "loss"}}
    entrypoint = ["python3", "-c", WRITES]
    config = {"name": "writes", "entrypoint": entrypoint, "resources": {"slots_per_trial": 1}, **search}
    experiment = cluster.submit(config)
    cluster.wait_experiment(experiment, "COMPLETED")
    trials = [t["id"] for t in cluster.api("GET", f"/api/v1/experiments/{experiment}/trials")["trials"]]
    of_experiment = start(cluster, "tensorboard", experiment)
    of_trial = start(cluster, "tensorboard", "-t", trials[0])
    token = cluster.token(OWNER)

    def data(board: str, path: str) -> Any:
        request = urllib.request.Request(
            f"{cluster.url}/proxy/{board}/data/{path}", headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    runs = [f"experiment_{experiment}/trial/{trial}" for trial in trials]
    wait_for("both trials to be shown", lambda: sorted(data(of_experiment, "runs")) == sorted(runs), within=60)
    assert "own/loss" in data(of_experiment, "plugin/scalars/tags")[runs[0]]
    wait_for("the trial to be shown", lambda: data(of_trial, "runs") == [f"trial_{trials[0]}"], within=60)

    def log() -> str:
        return cluster.client("task", "logs", of_trial).out

    address = f"is running at /proxy/{of_trial}/ of the master; `det tensorboard open {of_trial}` opens it"
    wait_for("its address in its log", lambda: address in log(), within=30, seen=log)
    assert "http://" not in log(), "an address that leads nowhere"
    # Our own client waits for it as well, and prints its address.
    started = cluster.run_det("tensorboard", "start", "--no-browser", experiment)
    found = re.search(r"/proxy/([0-9a-f-]{36})/", started.out + started.err)
    assert found, str(started)
    assert sorted(data(found.group(1), "runs")) == sorted(runs)
    for board in (of_experiment, of_trial, found.group(1)):
        cluster.client("tensorboard", "kill", board)


# What TensorBoard's projector takes files from, whosever they are.
NAMES_FILES = WRITES + """
with open("/tmp/tensorboard/projector_config.pbtxt", "w") as file:
    file.write(
        'embeddings { tensor_name: "x" tensor_path: "/etc/hostname" metadata_path: "/proc/self/environ" '
        'bookmarks_path: "/proc/self/environ" sprite { image_path: "/proc/self/environ" } }'
    )
"""


def test_a_tensorboard_answers_its_proxy_only_and_opens_no_file_that_data_names(cluster: Cluster) -> None:
    entrypoint = ["python3", "-c", NAMES_FILES]
    searcher = {"name": "single", "metric": "loss"}
    experiment = cluster.submit({"name": "named", "entrypoint": entrypoint, "searcher": searcher})
    cluster.wait_experiment(experiment, "COMPLETED")
    board = start(cluster, "tensorboard", experiment)

    def answer(url: str, **headers: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as found:
                return found.status, found.read().decode(errors="replace")
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(errors="replace")

    allowed = {"Authorization": f"Bearer {cluster.token(OWNER)}"}
    served = f"/proxy/{board}/data"
    assert answer(f"{cluster.url}{served}/plugins_listing", **allowed)[0] == 200
    # The program of another task on this machine.
    ports = set()
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        address, state = line.split()[1], line.split()[3]
        port = int(address.split(":")[1], 16)
        if state == "0A" and 2600 <= port <= 2899:
            ports.add(port)
    assert ports, "no TensorBoard listens here"
    for port in ports:
        for headers in ({}, allowed, {"X-Det-Service-Key": "guessed"}):
            code, text = answer(f"http://127.0.0.1:{port}{served}/runs", **headers)
            assert (code, text) == (403, "This TensorBoard answers the proxy of its master only.\n"), headers
    assert "projector" not in json.loads(answer(f"{cluster.url}{served}/plugins_listing", **allowed)[1])
    run_name = urllib.parse.quote(f"experiment_{experiment}/trial/{cluster.only_trial(experiment)['id']}", safe="")
    for what in ("metadata", "sprite_image", "bookmarks", "tensor"):
        code, text = answer(f"{cluster.url}{served}/plugin/projector/{what}?run={run_name}&name=x", **allowed)
        assert code in (403, 404) and "DET_" not in text, (what, code, text)
    cluster.client("tensorboard", "kill", board)


def test_a_tensorboard_shows_experiments_and_a_trial_of_different_storages(cluster: Cluster) -> None:
    elsewhere = cluster.shared_dir()
    mounted = {
        "bind_mounts": [{"host_path": str(elsewhere), "container_path": "/elsewhere"}],
        "checkpoint_storage": {"type": "directory", "container_path": "/elsewhere"},
    }
    single = {"searcher": {"name": "single", "metric": "loss"}}
    config = {"name": "mixed", "entrypoint": ["python3", "-c", WRITES], "resources": {"slots_per_trial": 0}, **single}
    written = [cluster.submit(one) for one in (config, {**config, **mounted}, config)]
    for experiment in written:
        cluster.wait_experiment(experiment, "COMPLETED")
    first, second, third = written
    trial = {experiment: cluster.only_trial(experiment)["id"] for experiment in written}
    board = start(cluster, "tensorboard", first, second, "-t", trial[third])
    headers = {"Authorization": f"Bearer {cluster.token(OWNER)}"}

    def runs() -> list[str]:
        request = urllib.request.Request(f"{cluster.url}/proxy/{board}/data/runs", headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return sorted(json.load(answer))

    of_experiments = [f"experiment_{experiment}/trial/{trial[experiment]}" for experiment in (first, second)]
    expected = sorted([*of_experiments, f"trial_{trial[third]}"])
    wait_for("all three to be shown", lambda: runs() == expected, within=60, seen=runs)
    cluster.client("tensorboard", "kill", board)


def test_our_client_starts_opens_and_ends_a_notebook(cluster: Cluster) -> None:
    started = cluster.run_det("notebook", "start", "--no-browser", *AUX)
    found = re.search(r"/proxy/([0-9a-f-]{36})/", started.out + started.err)
    assert found, str(started)
    notebook = found.group(1)
    assert notebook in cluster.run_det("notebook", "list").out
    cluster.run_det("notebook", "kill", notebook)
    assert ended(cluster, "notebook", notebook) == KILLED


def test_a_tensorboard_waits_for_something_to_show_and_ends_idle(cluster: Cluster) -> None:
    single = {"searcher": {"name": "single", "metric": "loss"}}
    config = {"name": "silent", "entrypoint": "true", "resources": {"slots_per_trial": 0}, **single}
    asked = {"config": json.dumps(config), "activate": False}
    resting = cluster.api("POST", "/api/v1/experiments", asked, user=OWNER)["experiment"]["id"]
    board = cluster.client("tensorboard", "start", "--detach", resting, "--config", "idle_timeout=3s").out.strip()
    expected = "TensorBoard is waiting for metrics: there are no TensorBoard files yet of what it is to show"
    cluster.wait_task_printed(board, expected)
    shown = cluster.api("GET", f"/api/v1/tensorboards/{board}", user=OWNER)["tensorboard"]
    assert shown["state"] == "STATE_WAITING"
    listed = csv.DictReader(io.StringIO(cluster.run_det("task", "list", "--csv").out))
    assert [row["State"] for row in listed if row["Task ID"] == board] == ["WAITING"]
    assert ended(cluster, "tensorboard", board).startswith('it was idle for 3 s ("idle_timeout"): no request came')
    # What has ended will write nothing.
    cluster.api("POST", f"/api/v1/experiments/{resting}/kill", user=OWNER)
    cluster.wait_experiment(resting, "CANCELED")
    board = cluster.client("tensorboard", "start", "--detach", resting).out.strip()
    expected = (
        f"experiment {resting} has ended, and this TensorBoard finds no TensorBoard files of it that it can "
        "read; code writes them into the directory context.train.get_tensorboard_path()"
    )
    assert ended(cluster, "tensorboard", board) == f"the task could not be started (exit code 1): {expected}"
    assert f"ERROR: {expected}" in cluster.client("tensorboard", "logs", board).out


@pytest.fixture(scope="module")
def bare() -> Iterator[Cluster]:
    """A cluster whose interpreter has no JupyterLab, which the package index has."""
    with equipment():
        python = harness.wheel_python()
        asks = [python, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([*asks, folder, "jupyterlab"], capture_output=True, text=True)
        if done.returncode != 0:
            raise Missing(f"JupyterLab cannot be installed with {python}: {done.stderr.strip()[-200:]}")
        if subprocess.run([python, "-c", "import ipykernel"], capture_output=True).returncode == 0:
            raise Missing(f"{python} has a kernel of its own")
    with flavoured("core", agents=[Agent(slots=1)], python=python) as cluster:
        yield cluster


def test_a_jupyterlab_that_is_installed_for_the_task_works_and_leaves_the_environment_as_it_is(bare: Cluster) -> None:
    started = bare.run_det("notebook", "start", "--no-browser", *AUX, within=240)
    found = re.search(r"/proxy/([0-9a-f-]{36})/", started.out + started.err)
    assert found, str(started)
    notebook = found.group(1)
    server = Server(bare, notebook)
    with urllib.request.urlopen(f"{server.base}lab?{server.query}", timeout=30) as answer:
        page = answer.read().decode()
    assert "<title>JupyterLab</title>" in page and "jupyter-config-data" in page, page[:500]
    # The environment's versions, in the kernel and in programs that it starts.
    kernel = server.call("POST", "api/kernels", {"name": "python3"})["id"]
    socket = server.connect(kernel)
    code = "import requests, subprocess, sys; print(requests.__version__, requests.__file__)"
    own = subprocess.check_output([harness.wheel_python(), "-c", code], text=True).strip()
    assert run(socket, code) == own
    assert run(socket, f"print(subprocess.check_output([sys.executable, '-c', {code!r}], text=True))") == own
    socket.close()
    log = bare.run_det("notebook", "logs", notebook).out
    assert f"/proxy/{notebook}/ of the master; `det notebook open {notebook}` opens it" in log
    assert "127.0.0.1:" not in log and "token=" not in log
    bare.run_det("notebook", "kill", notebook)
    assert ended(bare, "notebook", notebook) == KILLED
