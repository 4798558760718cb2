"""Load on a cluster that keeps ledgers: steady trials that run until they are asked to stop, and a churn of short ones."""

from __future__ import annotations

import contextlib
import pathlib
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ledger as ledgers
import observe
from harness import TERMINAL, ApiError
from invariants import same_trials
from ledger import Expected
from violations import Violation
from waiting import Hopeless, TooLate, wait_for
from world import LOAD, World

# A trial has to go on within this time after a fault, or the demand for progress fails. Generous: how long it takes is
# shown, and machines are busy.
PROGRESS_WITHIN = 120.0
# The same for the first steps of all trials of a load, whose interpreters have to start.
BEGUN_WITHIN = 300.0


@dataclass(frozen=True)
class Pace:
    """What each trial of a load does."""

    # Steps per second; each is one line, one report.
    rate: float = 10.0
    # 0 = until asked to stop.
    steps: int = 0
    # Every so many steps; 0 = never.
    checkpoint_every: int = 50
    validate_every: int = 20
    checkpoint_bytes: int = 1000
    line_bytes: int = 0
    # Whether the trials use the Core API of our Python package in place of plain HTTP.
    core: bool = False
    # Members of each trial, each with a slot; more than one talk to each other.
    members: int = 1

    @property
    def files(self) -> list[pathlib.Path]:
        """What the trials run, the entrypoint first."""
        if self.members > 1:
            return [LOAD / "gang_ledger.py", LOAD / "ledger.py"]
        return [LOAD / "core_ledger.py", LOAD / "ledger.py"] if self.core else [LOAD / "ledger.py"]


def configuration(
    world: World, name: str, directory: pathlib.Path, pace: Pace, lines: int = 0, **more: Any
) -> dict[str, Any]:
    """An experiment that keeps ledgers in `directory`; `more` replaces keys."""
    variables = {
        "CHAOS_DIR": "/chaos",
        "CHAOS_RATE": pace.rate,
        "CHAOS_STEPS": pace.steps,
        "CHAOS_CHECKPOINT_EVERY": pace.checkpoint_every,
        "CHAOS_VALIDATE_EVERY": pace.validate_every,
        "CHAOS_CHECKPOINT_BYTES": pace.checkpoint_bytes,
        "CHAOS_LINE_BYTES": pace.line_bytes,
        "CHAOS_LINES": lines,
    }
    config: dict[str, Any] = {
        "name": name,
        "entrypoint": f"python3 {pace.files[0].name}",
        "searcher": {"name": "single", "metric": "validation_loss", "smaller_is_better": True},
        "resources": {"slots_per_trial": pace.members},
        "max_restarts": 0,
        "bind_mounts": [{"host_path": str(directory), "container_path": "/chaos"}],
        "environment": {"environment_variables": [f"{name}={value}" for name, value in variables.items()]},
        # All are kept: the checker counts them.
        "checkpoint_storage": {
            "type": "shared_fs",
            "host_path": str(world.checkpoint_root),
            "save_trial_latest": 1_000_000,
        },
    }
    return {**config, **more}


def random_search(trials: int, concurrent: int) -> dict[str, Any]:
    """The part of a configuration that asks for so many trials."""
    searcher = {
        "name": "random",
        "metric": "validation_loss",
        "smaller_is_better": True,
        "max_trials": trials,
        "max_concurrent_trials": concurrent,
    }
    return {"searcher": searcher, "hyperparameters": {"rate": {"type": "double", "minval": 0.0, "maxval": 1.0}}}


class Tail:
    """How many acknowledgements a growing ledger holds, read little by little."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""
        self.acknowledged = 0
        # The newest run that has begun.
        self.run = 0

    def look(self) -> int:
        """The number so far."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
        except FileNotFoundError:
            return 0
        self._offset += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            if line.startswith((b"metric ", b"validation ", b"checkpoint ")):
                self.acknowledged += 1
            elif line.startswith(b"start "):
                self.run = max(self.run, int(line.split(b" ", 2)[1]))
        return self.acknowledged


class Steady:
    """Trials of one experiment that report until they are asked to stop."""

    def __init__(
        self, world: World, trials: int, pace: Pace | None = None, *, name: str = "steady", max_restarts: int = 0
    ) -> None:
        self.world = world
        self.directory = world.ledger_directory()
        self.pace = pace or Pace()
        self.expected: dict[int, Expected] = {}
        more = {**random_search(trials, trials), "max_restarts": max_restarts}
        self.experiment = world.create(configuration(world, name, self.directory, self.pace, **more), self.pace.files)
        there = wait_for(
            f"{trials} trials",
            lambda: len(world.trials(self.experiment)) == trials and world.trials(self.experiment),
            within=30,
            seen=world.describe,
        )
        self.trials = sorted(int(trial["id"]) for trial in there)
        self._tails = {trial: Tail(self.directory / f"trial-{trial}.ledger") for trial in self.trials}
        self.progress(by=3, within=BEGUN_WITHIN)

    def acknowledged(self) -> dict[int, int]:
        """How many acknowledgements each trial holds."""
        return {trial: tail.look() for trial, tail in self._tails.items()}

    def runs(self) -> dict[int, int]:
        """The newest run of each trial that has begun."""
        self.acknowledged()
        return {trial: tail.run for trial, tail in self._tails.items()}

    def progress(self, by: int = 1, within: float = PROGRESS_WITHIN) -> float:
        """Waits until every trial has `by` more acknowledgements than now; gives the seconds that took."""
        before, began = self.acknowledged(), time.monotonic()

        def grown() -> bool:
            after = self.acknowledged()
            if all(after[trial] >= before[trial] + by for trial in self.trials):
                return True
            # Asked seldom: it costs a request.
            if time.monotonic() - began > 5 and int(time.monotonic() * 20) % 20 == 0:
                self._hopeless()
            return False

        wait_for(f"progress of {len(self.trials)} trials", grown, within=within, seen=lambda: self._stuck(before))
        return time.monotonic() - began

    def _hopeless(self) -> None:
        with contextlib.suppress(ApiError):
            state = self.world.experiment(self.experiment)["state"]
            if state in TERMINAL:
                raise Hopeless(f"experiment {self.experiment} is {state}")

    def _stuck(self, before: Mapping[int, int]) -> str:
        after = self.acknowledged()
        stuck = [trial for trial in self.trials if after[trial] <= before[trial]]
        return f"without progress: trials {stuck}\n{self.world.describe()}"

    def trials_in(self, containers: set[str]) -> list[int]:
        """Trials that these containers run."""
        text = "select a.trial_id, c.id from containers c join allocations a on a.id = c.allocation_id"
        return sorted({row["trial_id"] for row in self.world.rows(text) if row["id"] in containers})

    def caused(self, trial: int, *, charged: bool, tail_lost: bool = False) -> None:
        """Takes note that a fault has ended the newest run of a trial and that another one follows."""
        was = self.expected.get(trial, Expected())
        assert was.runs is not None and was.restarts is not None, "what is expected of this trial is not counted"
        lost = was.tails_lost | {was.runs} if tail_lost else was.tails_lost
        self.expected[trial] = Expected(was.restarts + int(charged), was.runs + 1, lost)

    def stop(self, within: float = 120) -> list[Violation]:
        """Asks all trials to stop, and waits for the end of the experiment."""
        (self.directory / "stop").touch()
        try:
            self.world.wait_experiment(self.experiment, "COMPLETED", within=within)
        except (TooLate, Hopeless) as error:
            what = "it does not come to its end, or to another one"
            return [Violation(4, "stuck", f"experiment {self.experiment}", what, {"error": str(error)})]
        return []

    def check(self, *, live: bool = False) -> list[Violation]:
        """Compares every ledger with what the API gives back."""
        found: list[Violation] = []
        for path in ledgers.below(self.directory):
            ledger = ledgers.read(path)
            expected = self.expected.get(ledger.trial, Expected())
            if live:
                expected = Expected(expected.restarts, expected.runs, expected.tails_lost, live=True)
            found += ledgers.check(ledger, observe.answers(self.world, ledger.trial), expected)
        return found


@dataclass
class Asked:
    """A short experiment that was asked for."""

    name: str
    config: dict[str, Any]
    # None = the answer was lost; it may exist or not.
    experiment: int | None = None


class Churn:
    """Short experiments, one after another from a thread of its own, whatever happens to the cluster."""

    def __init__(
        self, world: World, per_second: float, *, steps: int = 5, search_every: int = 5, forgiving: bool = False
    ) -> None:
        self.world = world
        # Whether trials of it may be killed: then they may start again, as often as it takes.
        self._forgiving = forgiving
        self.directory = world.ledger_directory()
        self.asked: list[Asked] = []
        # Requests that were answered with something else than success or "come back later".
        self.refused: list[str] = []
        self._every = 1 / per_second
        self._pace = Pace(rate=50, steps=steps, checkpoint_every=steps, validate_every=steps)
        self._search_every = search_every
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="churn", daemon=True)

    def __enter__(self) -> Churn:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.end()

    def end(self) -> None:
        """Asks for no more."""
        self._ended.set()
        self._thread.join(timeout=60)

    def _run(self) -> None:
        number = 0
        while not self._ended.wait(self._every):
            number += 1
            self._ask(number)

    def _ask(self, number: int) -> None:
        name = f"churn-{number}"
        more: dict[str, Any] = {}
        if self._search_every and number % self._search_every == 0:
            more = {**random_search(3, 2), "reproducibility": {"experiment_seed": number}}
        if self._forgiving:
            more["max_restarts"] = 1000
        config = configuration(self.world, name, self.directory, self._pace, **more)
        asked = Asked(name, config)
        self.asked.append(asked)
        try:
            asked.experiment = self.world.create(config, [LOAD / "ledger.py"], within=20)
        except ApiError as error:
            if error.status < 500:
                self.refused.append(f"{name}: {error}")
        except OSError:
            # The answer is lost.
            pass

    def finish(self, within: float = 120) -> list[Violation]:
        """Waits until all that exists has ended, and returns what is not as it must be."""
        self.end()
        found = [Violation(3, "refused", "submission", text) for text in self.refused]
        rows = {row["id"]: row for row in self._rows()}
        by_name: dict[str, list[int]] = {}
        for number, row in rows.items():
            by_name.setdefault(row["name"], []).append(number)
        for asked in self.asked:
            there = by_name.get(asked.name, [])
            if len(there) > 1:
                found.append(Violation(3, "doubled", asked.name, f"one submission became experiments {there}"))
            if asked.experiment is not None and asked.experiment not in rows:
                what = f"it was acknowledged as experiment {asked.experiment} and is not there"
                found.append(Violation(3, "lost", asked.name, what))

        def ended() -> bool:
            return all(row["state"] in TERMINAL for row in self._rows())

        try:
            wait_for("the end of all short experiments", ended, within=within, look_every=0.5)
        except TooLate:
            stuck = [dict(row) for row in self._rows() if row["state"] not in TERMINAL]
            found.append(Violation(4, "stuck", "short experiments", "they do not come to their end", {"rows": stuck}))
        for row in self._rows():
            if row["state"] in TERMINAL and row["state"] != "COMPLETED":
                found.append(Violation(4, "wrong", f"experiment {row['id']}", f"it ended as {row['state']}"))
        return [*found, *self._ledgers(), *self._twins(by_name)]

    def _rows(self) -> list[dict[str, Any]]:
        text = "select id, name, state from experiments where name like 'churn-%'"
        return self.world.patiently("the short experiments", lambda: self.world.rows(text))

    def _ledgers(self) -> list[Violation]:
        found: list[Violation] = []
        steps = self._pace.steps
        for path in ledgers.below(self.directory):
            ledger = ledgers.read(path)
            answers = observe.answers(self.world, ledger.trial)
            expected = Expected()
            if self._forgiving:
                expected = Expected(restarts=None, runs=None, tails_lost=frozenset(ledger.runs))
            found += ledgers.check(ledger, answers, expected)
            last = ledger.runs[max(ledger.runs)]
            # One that was killed behind its last checkpoint goes on from there, and has nothing left to report.
            if not last.ended or max(last.metrics, default=last.start_step) != steps:
                found.append(Violation(4, "stuck", f"trial {ledger.trial}", f"it did not come to step {steps}"))
        return found

    def _twins(self, by_name: Mapping[str, list[int]], most: int = 3) -> list[Violation]:
        """Repeats some of the searches without disturbance: they must ask for the same trials."""
        found: list[Violation] = []
        searches = [a for a in self.asked if a.config["searcher"]["name"] == "random" and by_name.get(a.name)][-most:]
        for asked in searches:
            config = {**asked.config, "name": f"twin-of-{asked.name}", "entrypoint": "true"}
            twin = self.world.create(config)
            self.world.wait_experiment(twin, "COMPLETED", within=60)
            one = by_name[asked.name][0]
            disturbed, undisturbed = ([t["hparams"] for t in self.world.trials(number)] for number in (one, twin))
            found += same_trials(one, disturbed, undisturbed)
        return found


class Exits:
    """Tasks that end with a code of their own, one after another: the code must be known whichever program was dead meanwhile."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.directory = world.ledger_directory()
        # Experiment and code.
        self._started: list[tuple[int, int]] = []

    def start(self, code: int, after: float) -> None:
        """Starts a task that ends with `code`, `after` seconds from its first step; gives back once it has begun."""
        mark = self.directory / f"started-{len(self._started)}"
        config = configuration(self.world, f"exit-{code}", self.directory, Pace())
        config["entrypoint"] = f"touch /chaos/{mark.name}; echo ends with {code}; sleep {after:.3f}; exit {code}"
        self._started.append((self.world.create(config), code))
        wait_for("a task to begin", mark.exists, within=60, seen=self.world.describe)

    def check(self, within: float = 60) -> list[Violation]:
        """Waits for the ends of all; what is not known of them."""
        found = []
        for experiment, code in self._started:
            subject = f"experiment {experiment}"
            try:
                self.world.wait_experiment(experiment, "ERROR", within=within)
            except (TooLate, Hopeless) as error:
                what = f"its task ended with code {code}, and the experiment has another state"
                found.append(Violation(4, "wrong", subject, what, {"error": str(error)}))
                continue
            trial = self.world.trials(experiment)[0]["id"]
            text = f"select status_code from allocations where trial_id = {trial}"
            codes = [row["status_code"] for row in self.world.rows(text)]
            if codes != [code]:
                found.append(Violation(3, "lost", subject, f"its task ended with code {code}, known are {codes}"))
            if f"ends with {code}" not in self.world.printed(trial):
                found.append(Violation(3, "lost", subject, "the only line of its task is not in its log"))
        return found


@dataclass
class Counts:
    """What the summary line of a scenario contains."""

    runs: int = 0
    violations: list[Violation] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)

    def of_kind(self, kind: str) -> int:
        return sum(1 for violation in self.violations if violation.kind == kind)
