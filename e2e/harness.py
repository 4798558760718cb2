"""A cluster of real processes: `det up`, or `det master` and agents, on a free port with a directory of its own.

`Cluster` starts and kills its parts, asks them through the API, through our client and through the PyPI one, and at
the end sees that nothing is left behind and that the logs hold nothing that they should not.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import ssl
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

# Tests name all of these as the harness's.
from equipment import (  # noqa: F401
    Missing,
    det_executable,
    docker_image,
    gpu_python,
    listed_gpus,
    podman_image,
    task_python,
    torch_python,
    wheel_det,
    wheel_image,
    wheel_python,
)
from processes import (
    Found,
    Part,
    containers_of,
    docker,
    free_port,
    mounts_below,
    processes_with,
    tail,
)
from waiting import Hopeless, wait_for

HERE = pathlib.Path(__file__).resolve().parent
TRIALS = HERE / "trials"
# Fixed and public: part of the protocol between clients and master.
PASSWORD_SALT = "GubPEmmotfiK9TMD6Zdw"
# Where tasks of the kinds that users launch are, in the API.
LAUNCHED = {
    "TASK_TYPE_COMMAND": "commands",
    "TASK_TYPE_GENERIC": "tasks",
    "TASK_TYPE_NOTEBOOK": "notebooks",
    "TASK_TYPE_SHELL": "shells",
    "TASK_TYPE_TENSORBOARD": "tensorboards",
}
TERMINAL = ("COMPLETED", "CANCELED", "ERROR", "DELETED")
# Log lines of master and agents about something that is wrong.
ALARM = re.compile(r"\b(WARN|ERROR)\b|panicked at|stack backtrace")
# What every start of a test cluster prints.
EXPECTED_ALARMS = (
    r"has a blank password",
    r"there is no /etc/determined/(master|agent)\.yaml",
    # Docker of old kernels.
    r"no control group for this task",
)
# Environment variables that lead a program to another master, another trust store or another interpreter.
ELSEWHERE = re.compile(r"^(DET|XDG|PYTHON|SSL_CERT)_|^PYTHON|(CA_BUNDLE|_proxy)$", re.IGNORECASE)
# Clusters that live, for the report of a failed test.
LIVE: list[Cluster] = []


@dataclass
class Result:
    """What a command came to."""

    argv: Sequence[str]
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def __str__(self) -> str:
        return f"$ {' '.join(self.argv)}\n[exit code {self.code}]\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


class ApiError(Exception):
    """An answer of the API that is not a success."""

    def __init__(self, method: str, path: str, status: int, body: str) -> None:
        super().__init__(f"{method} {path}: {status} {body}")
        self.status = status
        self.body = body

    @property
    def text(self) -> str:
        """The message for the user, found as the clients find them."""
        answer = json.loads(self.body)
        error = answer.get("error") or {}
        return answer.get("message") or error.get("message") or error.get("error") or ""


@dataclass(frozen=True)
class Tls:
    """Files of a certificate authority of our own and of a certificate for 127.0.0.1 and localhost."""

    authority: pathlib.Path
    certificate: pathlib.Path
    key: pathlib.Path


@dataclass
class Agent:
    """How an agent is started."""

    name: str = "agent-1"
    slots: int = 2
    runtime: str = "process"
    args: Sequence[str] = ()
    # Its slots are the devices that it finds: as many as `slots`.
    detects: bool = False
    # Words before its command line.
    prefix: Sequence[str] = ()
    # Host and port at which it reaches the master; None = loopback.
    master: tuple[str, int] | None = None


@dataclass
class Cluster:
    """A cluster. Use it with `with`: leaving it stops everything and looks for what is left."""

    shape: str = "parts"
    agents: Sequence[Agent] = field(default_factory=lambda: [Agent()])
    master_config: dict[str, Any] = field(default_factory=dict)
    database_url: str | None = None
    python: pathlib.Path | None = None
    image: str | None = None
    tls: Tls | None = None
    up_args: Sequence[str] = ()
    # Number of an account that runs `det up` in place of the tests' own, which has to be root.
    account: int | None = None
    # Words before the command line of `det up`.
    up_prefix: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.det = det_executable()
        # Not below /tmp: tasks get a /tmp of their own, unless what they need is in it.
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="det-e2e-", dir="/var/tmp"))
        # Tasks of other users go through it.
        self.root.chmod(0o711)
        self.port = free_port()
        self.data_dir = self.root / "master"
        for name in ("home", "wheel-home", "logs", "work"):
            (self.root / name).mkdir()
        self.parts: dict[str, Part] = {}
        self.expected_alarms: list[str] = list(EXPECTED_ALARMS)
        if self.account is not None:
            for path in (self.root, *self.root.iterdir()):
                os.chown(path, self.account, self.account)
        self._cluster_id = ""
        self._tokens: dict[str, str] = {}
        if self.shape == "up":
            self.parts["up"] = self._part("up", self._up_argv())
        else:
            self.parts["master"] = self._part("master", self._master_argv())
            for agent in self.agents:
                self.parts[agent.name] = self._part(agent.name, self._agent_argv(agent))

    def add_agents(self, *agents: Agent) -> None:
        """Adds agents, before the start: their arguments may hold what a cluster has, such as its port."""
        self.agents = [*self.agents, *agents]
        for agent in agents:
            self.parts[agent.name] = self._part(agent.name, self._agent_argv(agent))

    # --- starting and stopping -------------------------------------------------------------------------------------

    def __enter__(self) -> Cluster:
        LIVE.append(self)
        try:
            self.start()
        except BaseException:
            self._abandon()
            raise
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            self._abandon()
            return
        try:
            self.stop_cleanly()
        except BaseException as problem:
            note = self.describe()
            self._abandon()
            raise AssertionError(f"the cluster did not end well: {problem}\n{note}") from problem
        self._abandon()

    def start(self) -> None:
        """Starts all parts, in order, and waits until the agents are connected."""
        for part in self.parts.values():
            if not part.running():
                part.start()
                if part.name in ("master", "up"):
                    self.wait_for_master()
        self.wait_for_agents()

    def wait_for_master(self, within: float = 20) -> None:
        """Waits until the master answers."""
        part = self.part("master")

        def answers() -> bool:
            if not part.running():
                raise Hopeless(f"{part.name} has ended with exit code {part.exit_code()}")
            self._cluster_id = self.api("GET", "/api/v1/master", user=None)["clusterId"]
            return True

        wait_for("the master's first answer", answers, within=within, seen=lambda: tail(part.log))

    def wait_for_agents(self, *names: str, within: float = 20) -> None:
        """Waits until the agents are connected with all their slots; all agents if none is named."""
        expected = {a.name: a.slots for a in self._agents() if not names or a.name in names}

        def there() -> bool:
            slots = {a["id"]: len(a["slots"]) for a in self.api("GET", "/api/v1/agents")["agents"]}
            return all(slots.get(name) == count for name, count in expected.items())

        wait_for(f"agents with slots {expected}", there, within=within, seen=self.describe)

    def part(self, name: str) -> Part:
        """A process by its name; all names are the same one in a cluster of `det up`."""
        return self.parts["up"] if self.shape == "up" else self.parts[name]

    def restart(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Ends a part with a signal, and starts it again."""
        part = self.part(name)
        part.send(number)
        part.wait(within=30)
        self.start()

    def stop_cleanly(self) -> None:
        """Ends the work and then the parts, and checks that all of it is gone and that no part logged a problem."""
        self.end_all_work()
        problems: list[str] = []
        for part in reversed(list(self.parts.values())):
            if part.running():
                code = part.stop()
                if code != 0:
                    problems.append(f"{part.name} ended with exit code {code}")
        problems += self.leftovers()
        problems += self.alarms()
        assert not problems, "\n".join(problems)

    def end_all_work(self) -> None:
        """Kills what runs, and waits until the agents hold nothing any more."""
        master = self.part("master")
        if not master.running():
            return
        for experiment in self.experiments():
            if experiment["state"] not in TERMINAL:
                with contextlib.suppress(ApiError):
                    self.api("POST", f"/api/v1/experiments/{experiment['id']}/kill", user="admin")
        for task in self.live_tasks():
            group = LAUNCHED.get(task["taskType"])
            if group is not None:
                with contextlib.suppress(ApiError):
                    self.api("POST", f"/api/v1/{group}/{task['taskId']}/kill", {}, user="admin")
        wait_for(
            "the end of all tasks",
            lambda: not self.api("GET", "/api/v1/tasks", user="admin")["allocationIdToSummary"],
            within=30,
            seen=self.describe,
        )
        for directory in self._agent_dirs():
            containers = directory / "containers"
            if containers.is_dir() and any(part.running() for part in self.parts.values()):
                wait_for(
                    f"{containers} to be empty",
                    lambda where=containers: not any(where.iterdir()),
                    within=15,
                    seen=lambda where=containers: "\n".join(str(p) for p in where.rglob("*")),
                )

    def leftovers(self) -> list[str]:
        """Processes, mounts and containers of ours that should not exist any more."""
        left = [f"process left behind: {found}" for found in self._processes()]
        left += [f"mount left behind: {point}" for point in mounts_below(self.root)]
        if self.image is not None and self._cluster_id:
            left += [f"container left behind: {container}" for container in containers_of(self._cluster_id, self.engine)]
        return left

    def alarms(self) -> list[str]:
        """Warnings, errors and panics in the logs of master and agents that no test announced."""
        expected = re.compile("|".join(self.expected_alarms))
        return [
            f"{log.name}: {line}"
            for log in self._logs()
            for line in log.read_text(errors="replace").splitlines()
            if ALARM.search(line) and not expected.search(line)
        ]

    @property
    def engine(self) -> str:
        """The engine that its containers run on."""
        if not any(agent.runtime == "podman" for agent in self.agents):
            return "docker"
        return "podman" if self.account is None else "rootless"

    def expect_alarm(self, pattern: str) -> None:
        """Announces a line that the logs may hold from now on."""
        self.expected_alarms.append(pattern)

    def describe(self) -> str:
        """What explains a failed test: the newest experiments and the ends of the logs."""
        text = [f"cluster in {self.root}, master at {self.url}"]
        with contextlib.suppress(Exception):
            newest = sorted(self.experiments(), key=lambda experiment: -experiment["id"])[:4]
            for experiment in reversed(newest):
                text.append(f'experiment {experiment["id"]} "{experiment["name"]}": {experiment["state"]}')
                for trial in self.trials(experiment["id"]):
                    state = f"{trial['state']}, {trial['restarts']} restarts, waits: {trial.get('waitReason')}"
                    text.append(f"  trial {trial['id']}: {state}")
                    text += [f"    | {line}" for line in self.log_lines(trial["id"])[-15:]]
        for name, part in self.parts.items():
            state = "running" if part.running() else f"exit code {part.exit_code()}"
            text.append(f"--- {name} ({state}), last lines")
            text.append(tail(part.log, 25))
        if self.shape == "up":
            text += ["--- det.log, last lines", tail(self.data_dir / "det.log", 40)]
        return "\n".join(text)

    def _abandon(self) -> None:
        """Ends everything by force, and removes the files unless E2E_KEEP is set."""
        for part in self.parts.values():
            with contextlib.suppress(AssertionError):
                part.kill()
        for found in self._processes():
            with contextlib.suppress(ProcessLookupError):
                found.kill()
        if self.image is not None and self._cluster_id:
            for container in containers_of(self._cluster_id, self.engine):
                docker("rm", "--force", container, check=False, engine=self.engine)
        for point in reversed(mounts_below(self.root)):
            subprocess.run(["umount", "--lazy", point], capture_output=True)
        if self in LIVE:
            LIVE.remove(self)
        if "E2E_KEEP" not in os.environ:
            shutil.rmtree(self.root, ignore_errors=True)

    # --- the parts' command lines ----------------------------------------------------------------------------------

    def _agents(self) -> Sequence[Agent]:
        if self.shape != "up":
            return self.agents
        names = ["local"] if len(self.agents) == 1 else [f"local-{n + 1}" for n in range(len(self.agents))]
        return [Agent(name, agent.slots, agent.runtime) for name, agent in zip(names, self.agents)]

    def _agent_dirs(self) -> list[pathlib.Path]:
        if self.shape == "up":
            return [self.data_dir / "agents" / agent.name for agent in self._agents()]
        return [self.root / agent.name for agent in self.agents]

    def _up_argv(self) -> list[str]:
        first = self.agents[0]
        argv = list(self.up_prefix)
        if self.account is not None:
            argv += ["setpriv", f"--reuid={self.account}", f"--regid={self.account}", "--clear-groups"]
        argv += [str(self.det), "up", "--port", str(self.port), "--data-dir", str(self.data_dir), "--no-open"]
        argv += ["--agents", str(len(self.agents)), "--slots", str(first.slots), "--runtime", first.runtime]
        if self.python is not None:
            argv += ["--python", str(self.python)]
        return [*argv, *self._config_args(), *self.up_args]

    def _master_argv(self) -> list[str]:
        argv = [str(self.det), "master", "--host", "127.0.0.1", "--port", str(self.port)]
        argv += ["--data-dir", str(self.data_dir), *self._config_args()]
        return [*argv, "--db-url", self.database_url] if self.database_url else argv

    def _config_args(self) -> list[str]:
        config = dict(self.master_config)
        if self.image is not None:
            config.setdefault("task_container_defaults", {})["image"] = self.image
        if self.tls is not None:
            config["security"] = {"tls": {"cert": str(self.tls.certificate), "key": str(self.tls.key)}}
        if not config:
            return []
        path = self.root / "master.yaml"
        path.write_text(yaml.safe_dump(config))
        return ["--config-file", str(path)]

    def _agent_argv(self, agent: Agent) -> list[str]:
        host, port = agent.master or ("127.0.0.1", self.port)
        argv = [*agent.prefix, str(self.det), "agent", "--master-host", host, "--master-port", str(port)]
        artificial = 0 if agent.detects else agent.slots
        argv += ["--agent-id", agent.name, "--artificial-slots", str(artificial), "--runtime", agent.runtime]
        argv += ["--data-dir", str(self.root / agent.name)]
        argv += ["--agent-token-file", str(self.data_dir / "agent-token")]
        if self.python is not None:
            argv += ["--python", str(self.python)]
        if self.tls is not None:
            argv += ["--set", "security.tls.enabled=true", "--set", f"security.tls.master_cert={self.tls.authority}"]
        return [*argv, *agent.args]

    def _part(self, name: str, argv: Sequence[str]) -> Part:
        env = self._environment("home")
        if self.password:
            env["DET_SECURITY_INITIAL_USER_PASSWORD"] = self.password
        return Part(name, argv, env, self.root / "logs" / f"{name}.log", self.root / "work")

    def _environment(self, home: str) -> dict[str, str]:
        """The environment of the tests, without what would lead a client or a master elsewhere."""
        env = {k: v for k, v in os.environ.items() if not ELSEWHERE.search(k)}
        return {**env, "HOME": str(self.root / home)}

    def _logs(self) -> list[pathlib.Path]:
        logs = [part.log for part in self.parts.values()]
        return [*logs, self.data_dir / "det.log"] if self.shape == "up" else logs

    def _processes(self) -> Iterator[Found]:
        return processes_with(str(self.root), f"DET_CLUSTER_ID={self._cluster_id}" if self._cluster_id else "")

    # --- asking ----------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.port}"

    @property
    def password(self) -> str:
        """The users' first password: blank, but for a master that may not look at the tests' processes."""
        return "" if self.account is None and not self.up_prefix else "Compiler1"

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    def client_environment(self, home: str = "home", **more: str) -> dict[str, str]:
        env = {**self._environment(home), "DET_MASTER": self.url}
        if self.tls is not None:
            env["DET_MASTER_CERT_FILE"] = str(self.tls.authority)
        if self.password:
            env.update(DET_USER="determined", DET_PASS=self.password)
        return {**env, **more}

    def run_det(self, *args: Any, check: bool = True, **options: Any) -> Result:
        """Runs our client. Takes `input`, `within` (seconds), `cwd` and `env`."""
        return self._run([str(self.det), *map(str, args)], "home", check, **options)

    @contextlib.contextmanager
    def det_beside(self, *args: Any) -> Iterator[Part]:
        """Our client, running beside the test; its output is in `log`. It is ended if it does not end by itself."""
        handle, log = tempfile.mkstemp(dir=self.root / "work", suffix=".log")
        os.close(handle)
        argv = [str(self.det), *map(str, args)]
        part = Part("det beside the test", argv, self.client_environment(), pathlib.Path(log), self.root / "work")
        part.start()
        try:
            yield part
        finally:
            part.kill()

    def client(self, *args: Any, check: bool = True, **options: Any) -> Result:
        """Runs the PyPI client, as `run_det` runs ours."""
        return self._run([str(wheel_det()), *map(str, args)], "wheel-home", check, **options)

    def _run(
        self,
        argv: list[str],
        home: str,
        check: bool,
        input: str = "",
        within: float = 60,
        cwd: pathlib.Path | None = None,
        env: Mapping[str, str] = {},
    ) -> Result:
        done = subprocess.run(
            argv,
            env=self.client_environment(home, **env),
            cwd=cwd or self.root / "work",
            input=input.encode(),
            capture_output=True,
            timeout=within,
        )
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        result = Result(argv, done.returncode, out, err)
        assert not check or result.code == 0, str(result)
        return result

    def token(self, user: str, password: str | None = None) -> str:
        """A token of a user who may have none yet."""
        if password is None:
            password = self.password
        if user not in self._tokens:
            hashed = hashlib.sha512((PASSWORD_SALT + password).encode()).hexdigest() if password else ""
            body = {"username": user, "password": hashed, "isHashed": True}
            self._tokens[user] = self.api("POST", "/api/v1/auth/login", body, user=None)["token"]
        return self._tokens[user]

    def forget_tokens(self) -> None:
        self._tokens.clear()

    def api(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """A call of the API; its answer as JSON. Raises `ApiError` for anything but 200."""
        return json.loads(self.raw(method, path, None if body is None else json.dumps(body).encode(), **options))

    def raw(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        user: str | None = "determined",
        token: str | None = None,
        within: float = 30,
        headers: Mapping[str, str] = {},
    ) -> bytes:
        """A call of the API, in bytes; `user` None sends no credentials."""
        request = urllib.request.Request(self.url + path, data=body, method=method)
        if token is not None or user is not None:
            request.add_header("Authorization", f"Bearer {token or self.token(str(user))}")
        for name, value in headers.items():
            request.add_header(name, value)
        try:
            with self._opener().open(request, timeout=within) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise ApiError(method, path, error.code, error.read().decode(errors="replace")) from None
        except http.client.HTTPException as error:
            # Cut off in the middle: to the caller the same as not reached.
            raise ConnectionError(f"{method} {path}: {error!r}") from error

    def stream(self, path: str, **options: Any) -> list[Any]:
        """The messages of a line stream that ends by itself."""
        messages = [json.loads(line) for line in self.raw("GET", path, **options).splitlines()]
        for message in messages:
            assert "error" not in message, f"GET {path} ended with {message}"
        return [message["result"] for message in messages]

    def _opener(self) -> urllib.request.OpenerDirector:
        """What opens URLs of this cluster: directly, and trusting the cluster's authority only."""
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if self.tls is not None:
            trust = ssl.create_default_context(cafile=str(self.tls.authority))
            handlers.append(urllib.request.HTTPSHandler(context=trust))
        return urllib.request.build_opener(*handlers)

    # --- experiments -----------------------------------------------------------------------------------------------

    def write_config(self, config: str | Mapping[str, Any]) -> pathlib.Path:
        """Writes an experiment's configuration to a file of its own."""
        text = config if isinstance(config, str) else yaml.safe_dump(dict(config), sort_keys=False)
        handle, path = tempfile.mkstemp(dir=self.root / "work", suffix=".yaml")
        with os.fdopen(handle, "w") as out:
            out.write(text)
        return pathlib.Path(path)

    def submit(self, config: Mapping[str, Any], trial: str = "", *flags: str, wheel: bool = False) -> int:
        """Creates an experiment with the files of `trials/<trial>`; gives its id."""
        context = TRIALS / trial if trial else self.empty_context()
        run = self.client if wheel else self.run_det
        result = run("experiment", "create", self.write_config(config), context, *flags)
        found = re.search(r"Created experiment (\d+)", result.out)
        assert found, str(result)
        return int(found.group(1))

    def empty_context(self) -> pathlib.Path:
        """A directory without files, for experiments that need none."""
        path = self.root / "work" / "empty"
        path.mkdir(exist_ok=True)
        return path

    def experiments(self) -> list[Any]:
        answer = self.api("GET", "/api/v1/experiments?limit=-1", user="admin")["experiments"]
        return [self._without_prefix(experiment) for experiment in answer]

    def experiment(self, experiment: int) -> Any:
        return self._without_prefix(self.api("GET", f"/api/v1/experiments/{experiment}", user="admin")["experiment"])

    def trials(self, experiment: int) -> list[Any]:
        answer = self.api("GET", f"/api/v1/experiments/{experiment}/trials?limit=-1", user="admin")["trials"]
        return [self._without_prefix(trial) for trial in answer]

    def trial(self, trial: int) -> Any:
        return self._without_prefix(self.api("GET", f"/api/v1/trials/{trial}", user="admin")["trial"])

    @staticmethod
    def _without_prefix(thing: Any) -> Any:
        return {**thing, "state": thing["state"].replace("STATE_", "", 1)}

    def wait_experiment(self, experiment: int, *states: str, within: float = 60) -> Any:
        """Waits until an experiment is in one of `states`; fails at once when it has ended in another one."""

        def reached() -> Any:
            now = self.experiment(experiment)
            if now["state"] in states:
                return now
            if now["state"] in TERMINAL:
                raise Hopeless(f"it is {now['state']}")
            return None

        return wait_for(
            f"experiment {experiment} to be {' or '.join(states)}", reached, within=within, seen=self.describe
        )

    def only_trial(self, experiment: int, within: float = 20) -> Any:
        """The trial of an experiment that has one, as soon as it exists."""
        return wait_for(f"the trial of experiment {experiment}", lambda: self.trials(experiment), within=within)[0]

    def run(self, config: Mapping[str, Any], trial: str = "", within: float = 60, wheel: bool = False) -> Any:
        """Runs an experiment to completion; gives its first trial."""
        experiment = self.submit(config, trial, wheel=wheel)
        self.wait_experiment(experiment, "COMPLETED", within=within)
        return self.trials(experiment)[0]

    def logs(self, trial: int, query: str = "") -> list[Any]:
        """The log records of a trial."""
        return self.stream(f"/api/v1/trials/{trial}/logs?{query}", user="admin")

    def log_lines(self, trial: int) -> list[str]:
        """What a trial logged, without time stamps and line ends."""
        return [record["log"].rstrip("\n") for record in self.logs(trial)]

    def printed(self, trial: int) -> list[str]:
        """What the trial's own code wrote to standard output."""
        records = self.logs(trial, "sources=task&stdtypes=stdout")
        return [record["log"].rstrip("\n") for record in records]

    def wait_log(self, trial: int, text: str, within: float = 30, times: int = 1) -> list[str]:
        """Waits until a trial has logged a line with `text` so many times; gives these lines."""

        def there() -> list[str] | None:
            lines = [line for line in self.log_lines(trial) if text in line]
            return lines if len(lines) >= times else None

        return wait_for(f'"{text}" in the log of trial {trial}', there, within=within, seen=self.describe)

    def metrics(self, trial: int, group: str) -> list[Any]:
        """The metric reports of a trial, as the streaming call gives them."""
        path = f"/api/v1/trials/metrics/trial_metrics?trialIds={trial}&group={group}"
        return [report for message in self.stream(path) for report in message["metrics"]]

    def live_tasks(self) -> list[Any]:
        """The tasks that hold slots or wait for them."""
        live = self.api("GET", "/api/v1/tasks", user="admin")["allocationIdToSummary"].values()
        return [self.task(summary["taskId"]) for summary in live]

    def task(self, task: str) -> Any:
        return self.api("GET", f"/api/v1/tasks/{task}", user="admin")["task"]

    def wait_task(self, task: str, state: str, within: float = 30) -> Any:
        """Waits until a generic task is in a state, such as PAUSED."""

        def reached() -> Any:
            now = self.task(task)
            return now if now["taskState"] == f"GENERIC_TASK_STATE_{state}" else None

        return wait_for(f"task {task} to be {state}", reached, within=within, seen=self.describe)

    def wait_task_printed(self, task: str, text: str, within: float = 30, times: int = 1) -> list[str]:
        """Waits until a task's own code has printed a line so many times; gives all that it printed."""

        def there() -> list[str] | None:
            records = self.stream(f"/api/v1/tasks/{task}/logs?sources=task&stdtypes=stdout", user="admin")
            lines = [record["log"].rstrip("\n") for record in records]
            return lines if lines.count(text) >= times else None

        return wait_for(f'"{text}" in the log of task {task}', there, within=within, seen=self.describe)

    def checkpoints(self, experiment: int) -> list[Any]:
        answer = self.api("GET", f"/api/v1/experiments/{experiment}/checkpoints?limit=0")
        return [self._without_prefix(checkpoint) for checkpoint in answer["checkpoints"]]

    def shared_dir(self) -> pathlib.Path:
        """A directory that tasks see as well, at E2E_DIR; give `share` to the experiment's configuration."""
        path = pathlib.Path(tempfile.mkdtemp(dir=self.root, prefix="shared-"))
        path.chmod(0o777)
        return path

    def task_processes(self, trial: int, *words: str) -> list[Found]:
        """Live processes of a trial's tasks whose command line holds all of `words`."""
        task = self.trial(trial)["taskId"]
        return [f for f in processes_with(f"DET_TASK_ID={task}") if all(word in f.command for word in words)]

    def task_supervisors(self, trial: int) -> list[Found]:
        """The supervisors of a trial's tasks that run as processes; their command line names the container."""
        containers = {record.get("containerId") for record in self.logs(trial, "sources=task")}
        found = [found for name in containers if name for found in processes_with(str(name))]
        return [process for process in found if " sandbox " in process.command]


def share(directory: pathlib.Path) -> dict[str, Any]:
    """The part of an experiment's configuration that gives it a directory of `Cluster.shared_dir`."""
    return {
        "bind_mounts": [{"host_path": str(directory), "container_path": "/e2e-shared"}],
        "environment": {"environment_variables": ["E2E_DIR=/e2e-shared"]},
    }


def archive_entry(path: str, content: str | bytes = "", kind: int = 48) -> dict[str, Any]:
    """A file as the API's file list has it; kind 48 is a file, 53 a directory."""
    data = content.encode() if isinstance(content, str) else content
    mode = 0o100644 if kind == 48 else 0o40755
    encoded = base64.b64encode(data).decode()
    return {"path": path, "type": kind, "content": encoded, "mtime": "1700000000", "mode": mode, "uid": 0, "gid": 0}
