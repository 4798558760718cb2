"""`kill -9`: parts of the cluster die and come back, and nothing that was acknowledged is lost or doubled."""

from __future__ import annotations

import pathlib
import re
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pytest

from configs import experiment
from conftest import flavoured
from harness import TERMINAL, Cluster, share
from processes import Found, docker
from waiting import Hopeless, stays_true, wait_for

pytestmark = pytest.mark.kills

# How long the master is away in the test of an outage.
OUTAGE = 20.0


@pytest.fixture(scope="module", params=["process", "docker"])
def runtime(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def cluster(runtime: str) -> Iterator[Cluster]:
    """A master and an agent, each killed by the tests that share it."""
    with flavoured("docker" if runtime == "docker" else "core") as cluster:
        # Who is killed, and who waits for it, may log that.
        for pattern in (r"connection", r"reconnect", r"master.*(away|lost|reach)", r"agent.*(lost|gone|disconnect)"):
            cluster.expect_alarm(pattern)
        yield cluster


@dataclass
class Ledger:
    """A trial that reports step after step until it is asked to stop, and what it wrote down."""

    cluster: Cluster
    experiment: int
    trial: int
    shared: pathlib.Path

    @classmethod
    def start(cls, cluster: Cluster, name: str, max_restarts: int = 2) -> Ledger:
        shared = cluster.shared_dir()
        config = experiment(name, "python3 ledger.py", max_restarts=max_restarts, **share(shared))
        storage = cluster.root / "all-checkpoints"
        # Agents create no directory where a user's configuration points.
        storage.mkdir(exist_ok=True)
        storage.chmod(0o1777)
        # All checkpoints are kept: the test counts them.
        config["checkpoint_storage"] = {
            "type": "shared_fs",
            "host_path": str(storage),
            "save_trial_latest": 10_000,
        }
        experiment_id = cluster.submit(config, "ledger")
        ledger = cls(cluster, experiment_id, cluster.only_trial(experiment_id)["id"], shared)
        ledger.grows(15)
        return ledger

    def acknowledged(self) -> list[tuple[int, int]]:
        """Run and step of each acknowledged report, in order."""
        try:
            lines = (self.shared / "ledger").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [(int(run), int(step)) for run, step in (line.split() for line in lines)]

    def grows(self, by: int, within: float = 60) -> None:
        """Waits until so many more reports were acknowledged; not beyond the end of the experiment."""
        enough = len(self.acknowledged()) + by

        def grown() -> bool:
            if len(self.acknowledged()) >= enough:
                return True
            state = self.cluster.experiment(self.experiment)["state"]
            if state in TERMINAL:
                raise Hopeless(f"the experiment is {state}")
            return False

        wait_for(f"{by} more acknowledged reports", grown, within=within, seen=self.cluster.describe)

    def process(self) -> Found:
        """The process of the trial's code."""

        def code() -> list[Found]:
            # The shell that started it may exist as well.
            found = self.cluster.task_processes(self.trial, "ledger.py")
            return [process for process in found if process.command.split()[1:] == ["ledger.py"]]

        # A child that it starts has the same command line until its exec.
        return min(wait_for("the trial's process", code, within=20), key=lambda process: process.start_ticks)

    def identity(self) -> tuple[str, Found]:
        """What must stay the same when a task is found again: the container's id and the process."""
        container = ""
        if self.cluster.image is not None:
            task = self.cluster.trial(self.trial)["taskId"]
            container = docker("ps", "--quiet", "--no-trunc", "--filter", f"label=ai.determined.task.id={task}")
            assert len(container.split()) == 1, container
        return container, self.process()

    def finish(self, restarts: int) -> None:
        """Lets it end, and compares what is stored with what was acknowledged and printed."""
        (self.shared / "stop").touch()
        self.cluster.wait_experiment(self.experiment, "COMPLETED", within=60)
        assert self.cluster.trial(self.trial)["restarts"] == restarts
        acknowledged = self.acknowledged()
        last_run = acknowledged[-1][0]
        assert last_run == restarts + 1, "a run that was found again is the same run"

        # A step that a later run reported again counts once, as that run's.
        expected = dict((step, run) for run, step in acknowledged)
        stored = [(r["totalBatches"], r["trialRunId"]) for r in self.cluster.metrics(self.trial, "training")]
        assert stored == sorted(expected.items()), "acknowledged reports are stored, once, and no others"

        printed = [line for line in self.cluster.printed(self.trial) if line.startswith("line ")]
        runs = {
            run: [int(line.split()[2]) for line in printed if line.startswith(f"line {run} ")]
            for run in range(1, last_run + 1)
        }
        for run, steps in runs.items():
            assert steps == list(range(steps[0], steps[0] + len(steps))), f"lines of run {run} are whole and in order"
            reported = [step for of_run, step in acknowledged if of_run == run]
            assert set(reported) <= set(steps)
        assert printed == sorted(printed, key=lambda line: [int(n) for n in line.split()[1:]])

        checkpoints = {line.split()[0] for line in (self.shared / "checkpoints").read_text().splitlines()}
        stored_checkpoints = {c["uuid"]: c for c in self.cluster.checkpoints(self.experiment)}
        assert checkpoints <= set(stored_checkpoints)
        for uuid in checkpoints:
            assert stored_checkpoints[uuid]["state"] == "COMPLETED"
            assert (self.cluster.root / "all-checkpoints" / uuid / "state.json").is_file()


def test_the_master_is_killed(cluster: Cluster) -> None:
    ledger = Ledger.start(cluster, "master-killed")
    before = ledger.identity()
    cluster.restart("master")
    ledger.grows(20)
    assert ledger.identity() == before, "the same container and process"
    assert cluster.experiment(ledger.experiment)["state"] == "RUNNING"
    ledger.finish(restarts=0)


def test_the_agent_is_killed(cluster: Cluster) -> None:
    ledger = Ledger.start(cluster, "agent-killed")
    before = ledger.identity()
    cluster.restart("agent-1")
    ledger.grows(20)
    assert ledger.identity() == before
    assert cluster.experiment(ledger.experiment)["state"] == "RUNNING"
    ledger.finish(restarts=0)


def test_the_agent_is_stopped_in_order_and_leaves_its_tasks(cluster: Cluster) -> None:
    ledger = Ledger.start(cluster, "agent-stopped")
    before = ledger.identity()
    cluster.restart("agent-1", signal.SIGTERM)
    ledger.grows(20)
    assert ledger.identity() == before
    ledger.finish(restarts=0)


def test_the_trial_is_killed(cluster: Cluster) -> None:
    ledger = Ledger.start(cluster, "trial-killed")
    ledger.process().kill()
    cluster.wait_log(ledger.trial, "run 2 starts after step ")
    ledger.grows(20)
    starts = [line for line in cluster.printed(ledger.trial) if "run 2 starts" in line]
    saved = [int(line.split()[1]) for line in (ledger.shared / "checkpoints").read_text().splitlines()]
    first_step_of_run_2 = next(step for run, step in ledger.acknowledged() if run == 2)
    assert int(starts[0].split()[-1]) + 1 == first_step_of_run_2
    assert first_step_of_run_2 - 1 in saved, "it goes on from a checkpoint"
    last_of_run_1 = max(step for run, step in ledger.acknowledged() if run == 1)
    assert first_step_of_run_2 - 1 >= last_of_run_1 - last_of_run_1 % 10 - 10, "and from the newest"
    assert any(re.search(r"SIGKILL|signal 9|137", line) for line in cluster.log_lines(ledger.trial)), "the log contains how"
    ledger.finish(restarts=1)


def test_the_supervisor_is_killed(cluster: Cluster) -> None:
    ledger = Ledger.start(cluster, "supervisor-killed")
    container, process = ledger.identity()
    if container:
        docker("kill", "--signal", "KILL", container)
    else:
        supervisors = cluster.task_supervisors(ledger.trial)
        # Its parent, where there are two, is the one that the agent started.
        min(supervisors, key=lambda found: (found.start_ticks, found.pid)).kill()
    wait_for("the trial's process to end with it", lambda: not process.alive(), within=15)
    cluster.wait_log(ledger.trial, "run 2 starts after step ")
    ledger.grows(20)
    (ledger.shared / "stop").touch()
    cluster.wait_experiment(ledger.experiment, "COMPLETED")
    # The supervisor is ours: that it was killed is no failure of the trial's code, and is not charged.
    assert cluster.trial(ledger.trial)["restarts"] == 0
    acknowledged = dict((step, run) for run, step in ledger.acknowledged())
    stored = [(r["totalBatches"], r["trialRunId"]) for r in cluster.metrics(ledger.trial, "training")]
    assert stored == sorted(acknowledged.items())


def test_the_master_is_away_for_a_while(cluster: Cluster) -> None:
    ledger = Ledger.start(cluster, "outage")
    before = ledger.identity()
    (ledger.shared / "away").unlink(missing_ok=True)
    (ledger.shared / "no-saves").touch()
    # One that is being made has an end by then.
    ledger.grows(11)
    cluster.part("master").kill()
    wait_for("the trial to notice", lambda: (ledger.shared / "away").exists(), within=15)
    stays_true("the trial lives", before[1].alive, throughout=OUTAGE)
    cluster.start()
    ledger.grows(20)
    assert ledger.identity() == before
    ledger.finish(restarts=0)


def test_a_trial_ends_while_the_agent_is_away(cluster: Cluster) -> None:
    ledger = Ledger.start(cluster, "ends-alone")
    process = ledger.process()
    cluster.part("agent-1").kill()
    (ledger.shared / "stop").touch()
    wait_for("the trial's end", lambda: not process.alive(), within=30)
    cluster.start()
    ledger.finish(restarts=0)


def test_agent_and_master_are_killed_together(cluster: Cluster) -> None:
    ledger = Ledger.start(cluster, "both-killed")
    before = ledger.identity()
    cluster.part("master").kill()
    cluster.part("agent-1").kill()
    cluster.start()
    ledger.grows(20)
    assert ledger.identity() == before
    ledger.finish(restarts=0)


def up_cluster(runtime: str, *args: str) -> AbstractContextManager[Cluster]:
    """`det up` on a runtime."""
    return flavoured("docker" if runtime == "docker" else "core", shape="up", up_args=args)


def test_up_is_killed(runtime: str) -> None:
    with up_cluster(runtime) as cluster:
        ledger = Ledger.start(cluster, "up-killed")
        before = ledger.identity()
        cluster.restart("up")
        ledger.grows(20)
        assert ledger.identity() == before
        ledger.finish(restarts=0)


def test_up_is_stopped_and_goes_on_where_it_was(runtime: str) -> None:
    with up_cluster(runtime) as cluster:
        ledger = Ledger.start(cluster, "up-stopped", max_restarts=0)
        process = ledger.process()
        assert cluster.part("up").stop(signal.SIGINT) == 0
        assert not process.alive(), "tasks end with it"
        assert not cluster.leftovers()
        cluster.start()
        cluster.wait_log(ledger.trial, "run 2 starts after step ", within=40)
        ledger.grows(10)
        # Its end was no failure of the trial's: nothing is charged.
        assert cluster.trial(ledger.trial)["restarts"] == 0
        (ledger.shared / "stop").touch()
        cluster.wait_experiment(ledger.experiment, "COMPLETED")
        stored = [r["totalBatches"] for r in cluster.metrics(ledger.trial, "training")]
        assert stored == sorted({step for _, step in ledger.acknowledged()})


def test_up_leaves_tasks_if_asked_to(runtime: str) -> None:
    with up_cluster(runtime, "--keep-tasks") as cluster:
        ledger = Ledger.start(cluster, "up-kept")
        before = ledger.identity()
        assert cluster.part("up").stop(signal.SIGINT) == 0
        assert before[1].alive()
        cluster.start()
        ledger.grows(20)
        assert ledger.identity() == before
        ledger.finish(restarts=0)
