"""The chart with its defaults on a real node: the master in a pod, with the chart's database, and tasks that run.

Needs root, a testbed with a real node and name service, and the images of `scripts/node-images` on it: e2e/README.md.
"""

from __future__ import annotations

import http.server
import json
import os
import pathlib
import re
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import yaml

import page
from conftest import equipment
from harness import HERE, Missing, det_executable, wheel_det
from helm import Helm, helm, may, secret_text, volume
from jupyter import OWNER, Server, run
from kubernetes import Kubernetes
from node_services import Services
from test_notebooks import WRITES
from waiting import Hopeless, TooLate, wait_for

pytestmark = pytest.mark.node

REAL = "k8s-testbed/kind=real"
PASSWORD = "Abcdefg1"
MASTER, POSTGRES, TASK = (f"localhost/determined-{kind}:test" for kind in ("master", "postgres", "task"))
VALUES: dict[str, Any] = {
    "imageRegistry": "localhost",
    "detVersion": "test",
    "imagePullPolicy": "IfNotPresent",
    "defaultImages": {"postgreSQL": POSTGRES, "cpuImage": TASK, "gpuImage": TASK},
    "initialUserPassword": PASSWORD,
    # No load balancer, and a small machine.
    "service": {"type": "ClusterIP"},
    "masterCpuRequest": "100m",
    "masterMemRequest": "256Mi",
    "db": {"cpuRequest": "100m", "memRequest": "256Mi"},
    # By the name that the older chart had for it.
    "postgresql": {"postgresqlExtendedConfig": {"maxConnections": 2000}},
    "slotType": "cpu",
    "maxSlotsPerPod": 1,
    "slotResourceRequests": {"cpu": 0.6},
    "checkpointStorage": {"type": "pvc"},
}
STORAGE = "/determined_shared_fs"
# What became of the secrets of a cluster in a container of a task.
LOOK = """
import os, pathlib, urllib.request
print("identity", os.getuid(), os.getgid())
for path in ("/run/determined-secret", "/var/run/secrets/kubernetes.io/serviceaccount/token", "/etc/determined"):
    print(path, os.path.exists(path))
for name, text in sorted(os.environ.items()):
    if "TOKEN" in name or "PASSWORD" in name:
        print("variable", name)
for name in ("passwd", "group"):
    print(name, pathlib.Path("/run/determined/etc", name).read_text())
"""
# What a pool adds to the pods of its tasks.
WITH_SECRET = {
    "apiVersion": "v1",
    "kind": "Pod",
    "spec": {
        "volumes": [{"name": "of-the-pool", "secret": {"secretName": "of-the-pool"}}],
        "containers": [
            {
                "name": "determined-container",
                "volumeMounts": [{"name": "of-the-pool", "mountPath": "/etc/secret-volume", "readOnly": True}],
            }
        ],
    },
}
MASTER_DEPLOYMENT = "deployment/determined-master-deployment-det"
AUX = ("--config", "resources.slots=0")
# Runs until the test lets it end.
GOES_ON = """
import os, pathlib, time
print("holding", flush=True)
while not pathlib.Path(os.environ["E2E_DIR"], "go").exists():
    time.sleep(0.1)
print("went on to the end")
"""


class Real:
    """A release on the real node, and its users."""

    def __init__(
        self, kubernetes: Kubernetes, charts: Helm, directory: pathlib.Path, *, namespace: str = "", **values: Any
    ) -> None:
        self.kubernetes = kubernetes
        self.charts = charts
        self.directory = directory
        self.values = {**VALUES, **values}
        self.scheme = "https" if "tlsSecret" in values else "http"
        self.namespace = namespace or charts.namespace()
        self.tasks = f"{self.namespace}-det-tasks"
        self.storage = directory / "checkpoints"
        self.home = directory / "home"
        self.home.mkdir()
        self.det = det_executable()
        self.tokens: dict[str, str] = {}
        data = directory / "database"
        data.mkdir()
        # The owner of the chart's database; kubelet changes no owners in directories of the node.
        os.chown(data, 999, 999)
        self.storage.mkdir()
        self.storage.chmod(0o1777)
        for path in (directory, *directory.parents):
            if path.stat().st_uid == os.getuid() and path.is_relative_to("/tmp") and path != pathlib.Path("/tmp"):
                path.chmod(0o755)
        kubernetes.apply(
            volume(f"{self.namespace}-db", "determined-db-pvc-det", self.namespace, str(data)),
            volume(f"{self.namespace}-tasks", "determined-checkpoints-det", self.tasks, str(self.storage)),
        )
        self.printed = charts.apply("install", "det", self.namespace, self.values)
        self.answers()

    def answers(self) -> None:
        """Waits until the master is reached by its Service."""
        wait_for("the master answers", lambda: self.api("GET", "/api/v1/master"), within=60)

    @property
    def url(self) -> str:
        where = ("--namespace", self.namespace, "--output", "jsonpath={.spec.clusterIP}")
        return f"{self.scheme}://{self.kubernetes.run('get', 'service', 'determined-master-service-det', *where)}:8080"

    def run_det(self, *args: Any, user: str = "admin", check: bool = True) -> str:
        return self._run(self.det, self.home / "own", *args, user=user, check=check)

    def client(self, *args: Any, user: str = OWNER, check: bool = True) -> str:
        """Runs the PyPI client, as `run_det` runs ours."""
        return self._run(wheel_det(), self.home / "wheel", *args, user=user, check=check)

    def _run(self, program: pathlib.Path, home: pathlib.Path, *args: Any, user: str, check: bool) -> str:
        home.mkdir(exist_ok=True)
        env = {**os.environ, "DET_MASTER": self.url, "DET_USER": user, "DET_PASS": PASSWORD, "HOME": str(home)}
        # The certificate is for the name of the Service, not for its address.
        env |= {"DET_MASTER_CERT_FILE": "noverify"} if self.scheme == "https" else {}
        argv = [str(program), *map(str, args)]
        done = subprocess.run(
            argv, capture_output=True, text=True, env=env, timeout=120, check=False, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0 or not check, f"{argv}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def logs_in(self, user: str, password: str) -> bool:
        try:
            self.api("POST", "/api/v1/auth/login", {"username": user, "password": password}, user=None)
        except urllib.error.HTTPError as error:
            error.close()
            assert error.code == 401, error
            return False
        return True

    def token(self, user: str) -> str:
        if user not in self.tokens:
            given = {"username": user, "password": PASSWORD}
            self.tokens[user] = self.api("POST", "/api/v1/auth/login", given, user=None)["token"]
        return self.tokens[user]

    def api(self, method: str, path: str, body: Any = None, *, user: str | None = "admin") -> Any:
        return json.loads(self.raw(method, path, body, user=user))

    def raw(self, method: str, path: str, body: Any = None, *, user: str | None = "admin") -> bytes:
        request = urllib.request.Request(self.url + path, method=method)
        if body is not None:
            request.data = json.dumps(body).encode()
        if user is not None:
            request.add_header("Authorization", f"Bearer {self.token(user)}")
        context = ssl._create_unverified_context() if self.scheme == "https" else None
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return answer.read()

    def experiment(
        self, entrypoint: str | list[str], *, slots: int = 1, priority: int | None = None, trial: str = "train", **more: Any
    ) -> int:
        config = {
            "name": "real",
            "entrypoint": entrypoint,
            "searcher": {"name": "single", "metric": "validation_loss"},
            "max_restarts": 0,
            "resources": {"slots_per_trial": slots, **({} if priority is None else {"priority": priority})},
            **more,
        }
        file = self.directory / f"{uuid.uuid4().hex}.yaml"
        file.write_text(yaml.safe_dump(config))
        created = self.run_det("experiment", "create", file, HERE / "trials" / trial)
        return int(re.search(r"Created experiment (\d+)", created)[1])

    def state(self, number: int) -> str:
        return self.api("GET", f"/api/v1/experiments/{number}")["experiment"]["state"].removeprefix("STATE_")

    def reaches(self, number: int, wanted: str, within: float = 90) -> None:
        def reached() -> bool:
            now = self.state(number)
            if now != wanted and now in ("COMPLETED", "ERROR", "CANCELED"):
                raise Hopeless(f"it is {now}")
            return now == wanted

        wait_for(f"experiment {number} is {wanted}", reached, within=within, seen=lambda: self.described(number))

    def trial(self, number: int) -> dict[str, Any]:
        return self.api("GET", f"/api/v1/experiments/{number}/trials")["trials"][0]

    def logs(self, number: int) -> str:
        return self.run_det("trial", "logs", self.trial(number)["id"])

    def logs_have(self, number: int, text: str, within: float = 60) -> None:
        def there() -> bool:
            return text in self.logs(number)

        wait_for(f'"{text}" in the log', there, within=within, seen=lambda: self.described(number))

    def pods(self, number: int) -> list[dict[str, Any]]:
        return self.kubernetes.items(
            "pods", "--namespace", self.tasks, "--selector", f"determined.ai/experiment_id={number}"
        )

    def describe(self) -> str:
        """What there is of tasks, for the report of a test that failed."""
        return self.kubernetes.run("describe", "pods", "--namespace", self.tasks)

    def described(self, number: int) -> str:
        pods = [(it["metadata"]["name"], it["status"].get("phase")) for it in self.pods(number)]
        return f"{pods}\n{self.run_det('trial', 'logs', self.trial(number)['id'], check=False)}"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kubernetes]:
    with equipment():
        found = Kubernetes()
        if not found.items("nodes", "--selector", REAL):
            raise Missing("there is no real node (scripts/test-node)")

        def missing() -> list[str]:
            nodes = found.items("nodes", "--selector", REAL)
            held = {name for node in nodes for image in node["status"].get("images", []) for name in image["names"]}
            return [image for image in (MASTER, POSTGRES, TASK) if image not in held]

        # A node reports images a while after they were loaded.
        try:
            wait_for("the images", lambda: not missing(), within=120, look_every=1)
        except TooLate:
            raise Missing(f"the real node has not the images of scripts/node-images: {', '.join(missing())}") from None
    with Services(found):
        yield found


@pytest.fixture(scope="module")
def real(cluster: Kubernetes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    directory = tmp_path_factory.mktemp("real")
    with equipment(), helm(cluster, directory, nodes="real") as charts:
        yield Real(cluster, charts, directory)


def held(real: Real, **more: Any) -> tuple[int, pathlib.Path]:
    """An experiment that waits after its second step, and the file that lets it go on."""
    name = uuid.uuid4().hex
    environment = {"environment_variables": [f"E2E_DIR={STORAGE}/{name}"]}
    directory = real.storage / name
    directory.mkdir()
    number = real.experiment(
        "python3 train.py", hyperparameters={"steps": 4, "hold_at": 2}, environment=environment, **more
    )
    real.logs_have(number, "holding")
    return number, directory / "go"


def test_the_release_answers_by_its_service(real: Real) -> None:
    assert "Phase:          Succeeded" in real.charts.run("test", "det", "--namespace", real.namespace)
    assert real.api("GET", "/api/v1/master")["clusterId"]
    assert "WARNING" not in real.printed
    (agent,) = real.api("GET", "/api/v1/agents")["agents"]
    assert agent["id"] == "real-0" and agent["slots"]


def test_master_and_database_are_as_the_values_have_them(real: Real) -> None:
    with equipment():
        wheel_det()
    where = ("--namespace", real.namespace)
    by_client = real.client("master", "logs", user="admin").splitlines()
    by_kubectl = real.kubernetes.run("logs", MASTER_DEPLOYMENT, *where)
    assert by_client[0].partition("]: ")[2] in by_kubectl, (by_client, by_kubectl)
    asked = ("--", "psql", "--host", "/tmp", "--username", "postgres", "--tuples-only", "--command", "show max_connections")
    database = "deployment/determined-db-deployment-det"
    assert real.kubernetes.run("exec", database, *where, *asked).strip() == "2000"


def test_a_trial_trains_and_writes_checkpoints(real: Real, cluster: Kubernetes) -> None:
    number, go = held(real)
    (pod,) = real.pods(number)
    # kubectl shows what the task prints while it runs, and det the same.
    name = pod["metadata"]["name"]
    shown = real.kubernetes.run("logs", name, "--namespace", real.tasks, "--container", "determined-container")
    assert "run 1 starts after step 0" in shown and "holding" in shown
    found = [
        cluster.items("pods", "--namespace", it, "--selector", "determined") for it in (real.namespace, real.tasks)
    ]
    names = [[it["metadata"]["name"] for it in pods] for pods in found]
    assert names == [[], [name]], "that label is of task pods alone"
    labels = pod["metadata"]["labels"]
    named = {"NAMESPACE": real.tasks, "JOB": labels["batch.kubernetes.io/job-name"]}
    script = page.text("Troubleshooting", **named, TASK_ID=labels["determined.ai/task_id"])
    script = script.replace("--namespace determined ", f"--namespace {real.namespace} ")
    printed = page.run(script, real.directory, {"KUBECONFIG": cluster.kubeconfig})
    assert printed.count(name) == 3 and "holding" in printed and "determined-master-service-det" in printed
    go.touch()
    real.reaches(number, "COMPLETED")
    assert "run 1 is done" in real.logs(number)
    checkpoints = real.api("GET", f"/api/v1/experiments/{number}/checkpoints")["checkpoints"]
    kept = [it["uuid"] for it in checkpoints if it["state"].endswith("COMPLETED")]
    assert kept
    for one in kept:
        assert json.loads((real.storage / one / "state.json").read_text())["steps"] > 0
    wait_for("no pods are left", lambda: not real.pods(number), within=60)


def test_a_paused_trial_goes_on_from_its_checkpoint(real: Real) -> None:
    number, go = held(real)
    real.run_det("experiment", "pause", number)
    real.reaches(number, "PAUSED")
    wait_for("its pods are gone", lambda: not real.pods(number), within=60)
    go.touch()
    real.run_det("experiment", "activate", number)
    real.reaches(number, "COMPLETED")
    assert "run 2 starts after step 2" in real.logs(number)
    assert real.trial(number)["restarts"] == 0


def test_an_upgrade_and_a_lost_master_leave_tasks_running(real: Real, cluster: Kubernetes) -> None:
    number, go = held(real)
    (before,) = real.pods(number)
    own = real.directory / "password-of-other"
    own.write_text("Compiler1")
    real.run_det("user", "create", "other", "--password-file", own)
    # The first password is that of two users, and on the first start alone.
    values = {**VALUES, "logLevel": "debug", "initialUserPassword": "Changed1"}
    real.charts.apply("upgrade", "det", real.namespace, values)
    cluster.run("delete", "pod", "--namespace", real.namespace, "--selector", "determined-system=master")
    cluster.run("rollout", "status", "deployment/determined-master-deployment-det", "--namespace", real.namespace)
    real.answers()
    logins = {(user, word): real.logs_in(user, word) for user in ("admin", "other") for word in (PASSWORD, "Compiler1", "Changed1")}
    assert [login for login, done in logins.items() if done] == [("admin", PASSWORD), ("other", "Compiler1")]
    (after,) = real.pods(number)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    go.touch()
    real.reaches(number, "COMPLETED")
    lines = real.logs(number)
    assert "run 1 is done" in lines and "run 2" not in lines
    assert real.trial(number)["restarts"] == 0


def test_tasks_run_as_the_linked_user_and_see_no_secrets(real: Real, cluster: Kubernetes) -> None:
    password = real.directory / "password"
    password.write_text(PASSWORD)
    real.run_det("user", "create", "ada", "--password-file", password)
    linked = ("--agent-uid", 1234, "--agent-user", "ada", "--agent-gid", 1235, "--agent-group", "ada")
    real.run_det("user", "link-with-agent-user", "ada", *linked)
    script = real.directory / "look"
    script.mkdir()
    (script / "look.py").write_text(LOOK)
    shown = real.run_det("command", "run", "--context", script, "python3 look.py", user="ada")
    assert "identity 1234 1235" in shown
    # For images that look for accounts there.
    assert "passwd ada:x:1234:1235:" in shown and "group ada:x:1235:" in shown
    for path in ("/run/determined-secret", "/var/run/secrets/kubernetes.io/serviceaccount/token", "/etc/determined"):
        assert f"{path} False" in shown, shown
    # The Secrets of the chart are in another namespace, and are refused by name too.
    assert secret_text(cluster, real.namespace, "determined-db-det", "password")
    names = {it["metadata"]["name"] for it in cluster.items("secrets", "--namespace", real.tasks)}
    assert not [name for name in names if name.startswith("determined-")], names
    secret = {"name": "s", "secret": {"secretName": "determined-master-config-det"}}
    spec = {"environment": {"pod_spec": {"spec": {"volumes": [secret]}}}}
    file = real.directory / "secret.yaml"
    file.write_text(yaml.safe_dump(spec))
    assert "determined-master-config-det" in real.run_det("command", "run", "--config-file", file, "true", check=False)
    assert not may(cluster, f"{real.tasks}:default", "get", "secrets", real.tasks)


def kept(real: Real) -> pathlib.Path:
    """A directory of the volume that all tasks mount."""
    directory = real.storage / uuid.uuid4().hex
    directory.mkdir()
    return directory


def pod_of(real: Real, task: str) -> dict[str, Any]:
    """The pod of a task that has one."""
    (pod,) = real.kubernetes.items("pods", "--namespace", real.tasks, "--selector", f"determined.ai/task_id={task}")
    return pod


class Launched(NamedTuple):
    """A task of each kind, launched by the PyPI client, and what they were given."""

    notebook: str
    shell: str
    tensorboard: str
    task: str
    experiment: int
    directory: pathlib.Path

    @property
    def ids(self) -> dict[str, str]:
        return {"notebook": self.notebook, "shell": self.shell, "tensorboard": self.tensorboard, "task": self.task}


@pytest.fixture(scope="module")
def launched(real: Real) -> Launched:
    with equipment():
        wheel_det()
    searcher = {"name": "single", "metric": "loss"}
    number = real.experiment(["python3", "-c", WRITES], searcher=searcher, resources={"slots_per_trial": 0})
    real.reaches(number, "COMPLETED")
    context = real.directory / "context"
    context.mkdir()
    (context / "mine.txt").write_text("of the context\n")
    directory = kept(real)
    file = real.directory / "task.yaml"
    variables = {"environment_variables": [f"E2E_DIR={STORAGE}/{directory.name}"]}
    entrypoint = ["python3", "-c", GOES_ON]
    file.write_text(yaml.safe_dump({"entrypoint": entrypoint, "environment": variables, "resources": {"slots": 0}}))

    def started(kind: str, *flags: Any) -> str:
        """Starts one and waits until it is ready, as the client does; gives its id."""
        printed = real.client(kind, "start", "--no-browser", *flags)
        return re.search(r"\(id: ([0-9a-f-]{36})\) is ready", printed)[1]

    return Launched(
        task=re.search(r"Created task (\S+)", real.client("task", "create", file))[1],
        shell=real.client("shell", "start", "--detach", *AUX, "--context", context).split()[-1],
        notebook=started("notebook", *AUX, "--context", context),
        tensorboard=started("tensorboard", number),
        experiment=number,
        directory=directory,
    )


def in_shell(real: Real, shell: str, script: str, user: str = OWNER) -> str:
    """What a script prints in a shell, entered by the host's ssh through the tunnel of the client."""
    return real.client("shell", "open", shell, "--", script, user=user)


def test_a_notebook_in_a_pod_runs_cells(real: Real, launched: Launched) -> None:
    server = Server(real, launched.notebook)
    socket = server.connect(server.call("POST", "api/kernels", {"name": "python3"})["id"])
    code = "import os; print(os.environ['DET_TASK_ID'], os.uname().nodename, open('mine.txt').read().strip())"
    pod = pod_of(real, launched.notebook)
    assert run(socket, code) == f"{launched.notebook} {pod['spec']['hostname']} of the context"
    socket.close()
    # Administrators look into it with kubectl.
    where = ("--namespace", real.tasks, "--container", "determined-container")
    argv = ("exec", pod["metadata"]["name"], *where, "--", "cat", "/run/determined/workdir/mine.txt")
    assert real.kubernetes.run(*argv) == "of the context\n"
    assert launched.notebook in real.client("notebook", "list")


def test_a_shell_in_a_pod_is_entered_by_ssh(real: Real, launched: Launched) -> None:
    printed = in_shell(real, launched.shell, 'echo "<$DET_TASK_ID|$(cat /run/determined/workdir/mine.txt)|$(hostname)>"')
    host = pod_of(real, launched.shell)["spec"]["hostname"]
    assert f"<{launched.shell}|of the context|{host}>" in printed
    assert launched.shell in real.client("shell", "list")


def shown(real: Real, tensorboard: str) -> list[str]:
    """The runs that a TensorBoard shows."""
    return json.loads(real.raw("GET", f"/proxy/{tensorboard}/data/runs", user=OWNER))


def test_a_tensorboard_in_a_pod_shows_what_a_trial_has_written(real: Real, launched: Launched) -> None:
    expected = [f"experiment_{launched.experiment}/trial/{real.trial(launched.experiment)['id']}"]
    wait_for("the trial", lambda: shown(real, launched.tensorboard) == expected, within=60, seen=real.describe)
    assert launched.tensorboard in real.client("tensorboard", "list")


def test_tasks_of_every_kind_outlive_a_master_that_is_away_for_a_minute(real: Real, launched: Launched) -> None:
    server = Server(real, launched.notebook)
    kernel = server.call("POST", "api/kernels", {"name": "python3"})["id"]
    socket = server.connect(kernel)
    assert run(socket, "kept = 6 * 7; print('begun')") == "begun"
    socket.close()
    aside = "setsid sh -c 'echo $$ > beat; exec sleep 86400' >/dev/null 2>&1 </dev/null &"
    # It outlives its session once it has one of its own.
    in_shell(real, launched.shell, f"{aside} until [ -s beat ]; do sleep 0.1; done")
    wait_for("the task", lambda: "holding" in real.client("task", "logs", launched.task), within=60)

    def pods() -> dict[str, tuple[str, str]]:
        found = {kind: pod_of(real, task) for kind, task in launched.ids.items()}
        return {kind: (pod["metadata"]["uid"], pod["status"]["phase"]) for kind, pod in found.items()}

    before = pods()
    where = ("--namespace", real.namespace)
    real.kubernetes.run("scale", MASTER_DEPLOYMENT, "--replicas", "0", *where)
    system = (*where, "--selector", "determined-system=master")
    wait_for("the end of the master", lambda: not real.kubernetes.items("pods", *system), within=60)
    (launched.directory / "go").touch()
    # The test of the release is what fails for that minute.
    assert "timed out" in real.charts.run("test", "det", *where, "--timeout", "60s", fails=True)
    real.kubernetes.run("scale", MASTER_DEPLOYMENT, "--replicas", "1", *where)
    real.kubernetes.run("rollout", "status", MASTER_DEPLOYMENT, *where)
    real.answers()
    assert "Phase:          Succeeded" in real.charts.run("test", "det", *where)
    # The task has ended meanwhile, and its last lines are stored.
    wait_for("the end", lambda: "went on to the end" in real.client("task", "logs", launched.task), within=60)
    runs = {"notebook", "shell", "tensorboard"}
    wait_for("its pod is gone", lambda: not phases(real, launched.task), within=60)
    assert {kind: (pod_of(real, launched.ids[kind])["metadata"]["uid"], "Running") for kind in runs} == {
        kind: before[kind] for kind in runs
    }
    socket = server.connect(kernel)
    assert run(socket, "print(kept)") == "42", "the same kernel"
    socket.close()
    assert "<runs>" in in_shell(real, launched.shell, 'kill -0 "$(cat beat)" && echo "<runs>"')
    assert shown(real, launched.tensorboard)
    for kind in sorted(runs):
        real.client(kind, "kill", launched.ids[kind])
        wait_for(f"the end of the {kind}", lambda kind=kind: not phases(real, launched.ids[kind]), within=60)


def phases(real: Real, task: str) -> list[str]:
    """The phases of the pods that a task has."""
    found = real.kubernetes.items("pods", "--namespace", real.tasks, "--selector", f"determined.ai/task_id={task}")
    return [pod["status"]["phase"] for pod in found]


def test_a_linked_user_is_that_user_in_shells_where_the_image_has_the_account(real: Real) -> None:
    with equipment():
        wheel_det()
    password = real.directory / "password-of-shells"
    password.write_text(PASSWORD)
    # The image has the account `ada`, and none with the other id.
    for user, name, uid, gid in (("grace", "ada", 1234, 1235), ("stranger", "unlisted", 4321, 4322)):
        real.run_det("user", "create", user, "--password-file", password)
        ids = ("--agent-uid", uid, "--agent-user", name, "--agent-gid", gid, "--agent-group", name)
        real.client("user", "link-with-agent-user", user, *ids, user="admin")
    shells = {user: real.client("shell", "start", "--detach", *AUX, user=user).split()[-1] for user in ("grace", "stranger")}
    assert "<1234:1235 ada>" in in_shell(real, shells["grace"], 'echo "<$(id -u):$(id -g) $(id -un)>"', user="grace")

    def log() -> str:
        return real.client("shell", "logs", shells["stranger"], user="stranger")

    wait_for("the warning", lambda: 'has no account named "unlisted" with user id 4321' in log(), within=60, seen=log)
    for user, shell in shells.items():
        real.client("shell", "kill", shell, user=user)


def test_an_id_that_no_pod_can_have_is_the_reason(real: Real) -> None:
    password = real.directory / "password-of-high"
    password.write_text(PASSWORD)
    real.run_det("user", "create", "high", "--password-file", password)
    link = ("--agent-user", "high", "--agent-uid", 2**31, "--agent-gid", 1, "--agent-group", "high")
    real.run_det("user", "link-with-agent-user", "high", *link)
    shown = real.run_det("command", "run", *AUX, "true", user="high", check=False)
    assert "runAsUser: Invalid value: 2147483648" in shown and "has ended: the task could not be started" in shown


def test_a_task_whose_secret_is_deleted_before_it_starts(real: Real) -> None:
    name = f"late-{uuid.uuid4().hex[:8]}"
    mount = {"name": "determined-container", "volumeMounts": [{"name": "late", "mountPath": "/late"}]}
    spec = {"volumes": [{"name": "late", "persistentVolumeClaim": {"claimName": name}}], "containers": [mount]}
    file = real.directory / "late.yaml"
    file.write_text(yaml.safe_dump({"environment": {"pod_spec": {"spec": spec}}, "resources": {"slots": 0}}))
    task = real.run_det("command", "run", "--detach", "--config-file", file, "echo it runs").split()[-1]

    def log() -> str:
        return real.run_det("command", "logs", task)

    wait_for("what it waits for", lambda: f'persistentvolumeclaim "{name}" not found' in log(), within=60, seen=log)
    job = pod_of(real, task)["metadata"]["labels"]["batch.kubernetes.io/job-name"]
    real.kubernetes.run("delete", "secret", job, "--namespace", real.tasks)
    claim = {"accessModes": ["ReadWriteMany"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": real.tasks}, "spec": claim}
    real.kubernetes.apply(volume(name, name, real.tasks, str(real.storage)), {"apiVersion": "v1", **claim})
    # The attempt ends with the reason, which is none of the task's.
    reason = f'Secret "{job}" was deleted before its pod could read it'
    wait_for("the end of the attempt", lambda: reason in log(), within=120, seen=log)
    wait_for("its end", lambda: not phases(real, task), within=60, seen=real.describe)


def test_a_gang_of_pods_finds_its_chief_by_name(real: Real) -> None:
    number = real.experiment("python3 gang.py", slots=2, trial="gang")
    real.reaches(number, "COMPLETED", within=120)
    lines = real.logs(number)
    assert "the chief received: hello from rank 1" in lines and "the member received: welcome" in lines


def test_a_failure_of_the_code_is_reported_with_its_exit_code(real: Real) -> None:
    number = real.experiment("python3 train.py", hyperparameters={"fail_at": 1})
    of_variable = real.experiment("exit $CODE", environment={"environment_variables": ["CODE=9"]})
    for one, code in ((number, 3), (of_variable, 9)):
        real.reaches(one, "ERROR")
        assert f"exit code {code}" in real.logs(one)


class Empty(http.server.BaseHTTPRequestHandler):
    """A registry without images."""

    def do_GET(self) -> None:
        self.send_error(404)

    do_HEAD = do_GET

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""


def test_an_image_that_is_nowhere_is_the_reason(real: Real) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Empty) as registry:
        threading.Thread(target=registry.serve_forever, daemon=True).start()
        image = f"localhost:{registry.server_port}/nowhere:1"
        number = real.experiment("true", environment={"image": image})
        real.reaches(number, "ERROR")
        registry.shutdown()
    assert image in real.logs(number)


def test_a_service_of_a_task_is_reached_through_the_master(real: Real) -> None:
    config = {
        "entrypoint": ["python3", "-m", "http.server", "28101"],
        "resources": {"slots": 0},
        "environment": {"proxy_ports": [{"proxy_port": 28101, "default_service_id": True}]},
    }
    id = real.api("POST", "/api/v1/commands", {"config": config})["command"]["id"]

    def answer() -> str:
        try:
            return real.raw("GET", f"/proxy/{id}/").decode()
        except urllib.error.HTTPError as error:
            return error.read().decode()

    # It does not know the path, and answers in its own words.
    wait_for("the program answers", lambda: "File not found" in answer(), within=60, seen=answer)
    real.run_det("command", "kill", id)
    wait_for("the service is gone", lambda: "its task has ended" in answer(), within=60, seen=answer)


def test_services_in_pods_are_reached_through_the_api_server(real: Real) -> None:
    """By port-forward of their pods: bytes both ways, more than buffers take, and the reason where nothing listens."""
    real.charts.apply("upgrade", "det", real.namespace, {**real.values, "taskExposure": "port_forward"})
    real.answers()
    shell = real.client("shell", "start", "--detach", *AUX).split()[-1]
    printed = in_shell(real, shell, "head -c 3000000 /dev/zero | base64 --wrap=0; echo; echo '<end>'")
    assert printed.count("A") >= 4_000_000
    assert "<end>" in printed
    started = real.client("notebook", "start", "--no-browser", *AUX)
    notebook = re.search(r"\(id: ([0-9a-f-]{36})\) is ready", started)[1]
    server = Server(real, notebook)
    socket = server.connect(server.call("POST", "api/kernels", {"name": "python3"})["id"])
    assert run(socket, "print(6 * 7)") == "42"
    socket.close()
    for kind, task in (("shell", shell), ("notebook", notebook)):
        real.client(kind, "kill", task)
        wait_for(f"the end of the {kind}", lambda task=task: not phases(real, task), within=60)
    config = {
        "entrypoint": ["sleep", "86400"],
        "resources": {"slots": 0},
        "environment": {"proxy_ports": [{"proxy_port": 28102, "default_service_id": True}]},
    }
    idle = real.api("POST", "/api/v1/commands", {"config": config})["command"]["id"]

    def answer() -> str:
        try:
            return real.raw("GET", f"/proxy/{idle}/").decode()
        except urllib.error.HTTPError as error:
            return error.read().decode()

    wait_for("the refusal", lambda: "the forward of port 28102 of its pod ended" in answer(), within=60, seen=answer)
    real.run_det("command", "kill", idle)
    wait_for("the end of the command", lambda: not phases(real, idle), within=60)
    real.charts.apply("upgrade", "det", real.namespace, real.values)
    real.answers()


def test_more_important_work_takes_the_slots_of_less_important(real: Real) -> None:
    """The one that is preempted saves a checkpoint and goes on from it."""
    (agent,) = real.api("GET", "/api/v1/agents")["agents"]
    slots = len(agent["slots"])
    values = {**real.values, "defaultScheduler": "preemption"}
    real.charts.apply("upgrade", "det", real.namespace, values)
    real.answers()
    weak, go = held(real, priority=10)
    strong = real.experiment("python3 -c 'pass'", slots=slots, priority=90)
    real.reaches(strong, "COMPLETED", within=180)
    go.touch()
    real.reaches(weak, "COMPLETED", within=120)
    assert "run 2 starts after step 2" in real.logs(weak)
    assert real.trial(weak)["restarts"] == 0


def test_the_database_outlives_its_pod(real: Real, cluster: Kubernetes) -> None:
    real.answers()
    count = len(real.api("GET", "/api/v1/experiments")["experiments"])
    assert count > 0
    cluster.run("delete", "pod", "--namespace", real.namespace, "--selector", "determined-system=db")
    cluster.run("rollout", "status", "deployment/determined-db-deployment-det", "--namespace", real.namespace)

    def answers() -> bool:
        try:
            return len(real.api("GET", "/api/v1/experiments")["experiments"]) == count
        except urllib.error.HTTPError:
            return False

    wait_for("the experiments are listed", answers, within=90)


def test_an_uninstallation_ends_tasks_and_a_new_release_finds_its_data(real: Real, cluster: Kubernetes) -> None:
    real.answers()
    number, go = held(real)
    assert real.pods(number)
    before = len(real.api("GET", "/api/v1/experiments")["experiments"])
    real.charts.uninstall("det", real.namespace)
    wait_for("the Jobs of tasks are gone", lambda: not cluster.items("jobs", "--namespace", real.tasks), within=60)
    wait_for("the pods of tasks are gone", lambda: not real.pods(number), within=60)
    assert not cluster.items("pods", "--namespace", real.namespace)
    real.charts.apply("install", "det", real.namespace, VALUES)
    real.tokens.clear()
    real.answers()
    assert len(real.api("GET", "/api/v1/experiments")["experiments"]) == before
    # The trial that was running goes on from its checkpoint.
    go.touch()
    real.reaches(number, "COMPLETED", within=180)
    assert "starts after step 2" in real.logs(number)


def test_a_master_with_tls_sends_checkpoints_of_a_directory_of_the_node(
    cluster: Kubernetes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("tls")
    with equipment(), helm(cluster, directory, nodes="real") as charts:
        namespace = charts.namespace()
        name = f"determined-master-service-det.{namespace}.svc.cluster.local"
        argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc"]
        argv += ["-days", "2", "-subj", "/CN=master", "-addext", f"subjectAltName=DNS:{name}"]
        argv += ["-keyout", str(directory / "key"), "-out", str(directory / "crt")]
        subprocess.run(argv, check=True, capture_output=True)
        files = ("--cert", str(directory / "crt"), "--key", str(directory / "key"))
        cluster.run("create", "secret", "tls", "tls", "--namespace", namespace, *files)
        files = directory / "files"
        storage = {"type": "shared_fs", "hostPath": str(files), "allowHostPath": True, "mountToServer": True}
        # The volume of the database is lost with its pod.
        database = {**VALUES["db"], "disablePVC": True}
        # Beside a release of the same name.
        values = {"tlsSecret": "tls", "checkpointStorage": storage, "db": database, "clusterScopedSuffix": namespace}
        values |= {"resourcePools": [{"pool_name": "default", "task_container_defaults": {"gpu_pod_spec": WITH_SECRET}}]}
        real = Real(cluster, charts, directory, namespace=namespace, **values)
        cluster.run("create", "secret", "generic", "of-the-pool", "--from-literal=word=read-by-the-task", "--namespace", real.tasks)
        assert "Phase:          Succeeded" in charts.run("test", "det", "--namespace", namespace)
        number = real.experiment("cat /etc/secret-volume/word && python3 train.py")
        real.reaches(number, "COMPLETED")
        assert "read-by-the-task" in real.logs(number)
        (last, *_) = [
            it["uuid"]
            for it in real.api("GET", f"/api/v1/experiments/{number}/checkpoints")["checkpoints"]
            if it["state"].endswith("COMPLETED")
        ]
        real.run_det("checkpoint", "download", last, "--output-dir", directory / "downloaded", "--mode", "master")
        assert json.loads((directory / "downloaded/state.json").read_text())["steps"] > 0
        # The master, which has the directory, deletes them itself.
        real.run_det("experiment", "delete", number, "--yes")
        wait_for("the checkpoint is deleted", lambda: not (files / last).exists(), within=90)
        charts.uninstall("det", namespace)
