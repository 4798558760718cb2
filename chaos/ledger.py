"""Ledgers against answers: whether what the load wrote down as acknowledged is what the API gives back.

`read` makes a `TrialLedger` of a file that `load/ledger.py` wrote; `check` compares it with `Answers`. Both are values:
the checker is tested with doctored ones.
"""

from __future__ import annotations

import json
import math
import pathlib
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from violations import Violation


def checksum(trial: int, step: int) -> int:
    """What belongs to a step: the load computes the same."""
    return zlib.crc32(f"{trial}/{step}".encode())


@dataclass(frozen=True)
class Saved:
    """An acknowledged checkpoint."""

    run: int
    step: int
    uuid: str
    # Path to bytes, without directories.
    manifest: dict[str, int]


@dataclass
class Run:
    """What one run of a trial wrote down."""

    number: int
    start_step: int
    # UUID; None = it began from nothing.
    start_checkpoint: str | None
    # Steps, in order.
    printed: list[int] = field(default_factory=list)
    metrics: list[int] = field(default_factory=list)
    validations: list[int] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)
    # Step, status, words.
    refused: list[tuple[int, int, str]] = field(default_factory=list)
    ended: bool = False


@dataclass
class TrialLedger:
    """Everything one trial wrote down, by run."""

    trial: int
    runs: dict[int, Run]
    # Acknowledgements that an older run got after a newer one had begun: (older, newer, line).
    overtaken: list[tuple[int, int, str]] = field(default_factory=list)

    @property
    def acknowledged(self) -> int:
        """How many acknowledgements it holds."""
        return sum(len(r.metrics) + len(r.validations) + len(r.saved) for r in self.runs.values())


class Damaged(Exception):
    """A ledger that cannot be believed: then nothing can be checked."""


def read(path: pathlib.Path) -> TrialLedger:
    """Reads a ledger file. A last line without its end is of a task killed in the middle of it and does not count."""
    trial = int(path.name.removeprefix("trial-").removesuffix(".ledger"))
    return parse(trial, path.read_text())


def parse(trial: int, text: str) -> TrialLedger:
    """See `read`."""
    whole, _, _ = text.rpartition("\n")
    ledger = TrialLedger(trial, {})
    newest = 0
    for line in whole.splitlines():
        kind, number, step, *rest = line.split(" ", 4)
        run_number, at = int(number), int(step)
        if kind == "start":
            if run_number in ledger.runs:
                raise Damaged(f"trial {trial}: run {run_number} starts twice")
            ledger.runs[run_number] = Run(run_number, at, None if rest[0] == "-" else rest[0])
            newest = max(newest, run_number)
            continue
        run = ledger.runs.get(run_number)
        if run is None:
            raise Damaged(f"trial {trial}: a line of a run that never started: {line!r}")
        if kind in ("metric", "validation", "checkpoint") and run_number < newest:
            ledger.overtaken.append((run_number, newest, line))
        if kind in ("printed", "metric", "validation", "checkpoint") and int(rest[0]) != checksum(trial, at):
            raise Damaged(f"trial {trial}: a wrong checksum in {line!r}")
        if kind == "printed":
            run.printed.append(at)
        elif kind == "metric":
            run.metrics.append(at)
        elif kind == "validation":
            run.validations.append(at)
        elif kind == "checkpoint":
            uuid, _, manifest = rest[1].partition(" ")
            run.saved.append(Saved(run_number, at, uuid, json.loads(manifest)))
        elif kind == "refused":
            run.refused.append((at, int(rest[0]), rest[1] if len(rest) > 1 else ""))
        elif kind == "end":
            run.ended = True
        else:
            raise Damaged(f"trial {trial}: an unknown line {line!r}")
    return ledger


@dataclass
class Answers:
    """What the API returns about a trial, and what is stored on the disk."""

    trial: int
    state: str
    restarts: int
    # Group, run, step and values of each stored report, in the order given.
    reports: list[tuple[str, int, int, dict[str, Any]]]
    # What the trial's code printed, in the order given.
    lines: list[str]
    # By UUID: state, resources (path to bytes).
    checkpoints: dict[str, tuple[str, dict[str, int]]]
    # By UUID: path to bytes of what is in storage; a checkpoint without files is not in here.
    files: dict[str, dict[str, int]]


@dataclass(frozen=True)
class Expected:
    """What the scenario did to the trial."""

    # Charged restarts; None = any number.
    restarts: int | None = 0
    # Runs in all; None = any number (the scenario kills, and does not know how often it hit).
    runs: int | None = 1
    # Runs that were lost on their way: killed with what carried their lines, or cut off with their agent. The end of
    # their lines may be missing or come late, and one answer may have reached them late.
    tails_lost: frozenset[int] = frozenset()
    # Whether the trial was still running when it was asked: then it has gone on since, and its newest line may still be
    # on its way.
    live: bool = False


def check(ledger: TrialLedger, answers: Answers, expected: Expected) -> list[Violation]:
    """Everything that is not as it was acknowledged."""
    return [
        *_runs(ledger, answers, expected),
        *_reports(ledger, answers, expected, "training"),
        *_reports(ledger, answers, expected, "validation"),
        *_lines(ledger, answers, expected),
        *_checkpoints(ledger, answers),
        *_resumptions(ledger),
    ]


def _runs(ledger: TrialLedger, answers: Answers, expected: Expected) -> Iterable[Violation]:
    subject = f"trial {ledger.trial}"
    if expected.restarts is not None and answers.restarts != expected.restarts:
        what = f"{answers.restarts} restarts are counted, {expected.restarts} were caused"
        yield Violation(3, "restarted", subject, what)
    numbers = sorted(ledger.runs)
    if expected.runs is not None and len(numbers) != expected.runs:
        yield Violation(3, "restarted", subject, f"its runs are {numbers}, but {expected.runs} are explained")
    late: Counter[int] = Counter()
    for older, newer, line in ledger.overtaken:
        late[older] += 1
        if older in expected.tails_lost and late[older] == 1:
            continue
        what = f"run {older} was acknowledged after run {newer} had begun"
        yield Violation(2, "unfenced", subject, what, {"line": line})
    for run in ledger.runs.values():
        if run.refused and run.number == numbers[-1]:
            what = f"its newest run {run.number} was refused"
            yield Violation(3, "refused", subject, what, {"refused": run.refused})


def _reports(ledger: TrialLedger, answers: Answers, expected: Expected, group: str) -> Iterable[Violation]:
    """Acknowledged reports are stored once with their values, in order, and nothing else is."""
    subject = f"trial {ledger.trial}"
    stored = [(run, step, values) for g, run, step, values in answers.reports if g == group]
    counts = Counter((run, step) for run, step, _ in stored)
    for (run, step), count in counts.items():
        if count > 1:
            what = f"the {group} report of run {run} at step {step} is stored {count} times"
            yield Violation(3, "doubled", subject, what)
    places = [(run, step) for run, step, _ in stored]
    for before, after in zip(places, places[1:]):
        if after < before:
            yield Violation(3, "reordered", subject, f"{group} report {after} is given behind {before}")
    for run, step, values in stored:
        if values.get("sequence") != step or values.get("checksum") != checksum(ledger.trial, step):
            what = f"the {group} report of run {run} at step {step} has other values"
            yield Violation(3, "wrong", subject, what, {"values": values})
    # Where each run began to report: from there on, what older runs reported is outdated and not shown any more.
    begins: dict[int, int] = {}
    for _, run, step, _ in answers.reports:
        begins[run] = min(step, begins.get(run, step))
    for run in ledger.runs.values():
        acknowledged = run.metrics if group == "training" else run.validations
        outdated = min((step for later, step in begins.items() if later > run.number), default=None)
        for step in acknowledged:
            if (run.number, step) not in counts and (outdated is None or step < outdated):
                what = f"the {group} report of run {run.number} at step {step} was acknowledged and is not there"
                yield Violation(3, "lost", subject, what, {"outdated from": outdated})
    for number, step in counts:
        run = ledger.runs.get(number)
        # What lives has gone on since its ledger was read.
        last = math.inf if expected.live and number == max(ledger.runs) else max(run.printed, default=0) if run else 0
        if run is None or step <= run.start_step or step > last:
            what = f"a {group} report of run {number} at step {step} is stored that its trial has not sent"
            yield Violation(3, "wrong", subject, what)


def _lines(ledger: TrialLedger, answers: Answers, expected: Expected) -> Iterable[Violation]:
    """Printed lines are stored once, whole, in order."""
    subject = f"trial {ledger.trial}"
    shown: dict[int, list[int]] = {}
    newest = 0
    for line in answers.lines:
        words = line.split()
        if not words or words[0] != "line":
            continue
        try:
            trial, run, step, check_sum = (int(word) for word in words[1:5])
        except ValueError:
            yield Violation(3, "wrong", subject, f"a line is torn: {line!r}")
            continue
        if trial != ledger.trial or check_sum != checksum(trial, step):
            yield Violation(3, "wrong", subject, f"a line is damaged: {line!r}")
            continue
        if run < newest and run not in expected.tails_lost:
            yield Violation(3, "reordered", subject, f"a line of run {run} is given behind one of run {newest}")
        newest = max(newest, run)
        shown.setdefault(run, []).append(step)
    for number, steps in shown.items():
        run = ledger.runs.get(number)
        if run is None:
            yield Violation(3, "wrong", subject, f"lines of run {number} are stored, which never started")
            continue
        for step, count in Counter(steps).items():
            if count > 1:
                yield Violation(
                    3, "doubled", subject, f"the line of run {number} at step {step} is stored {count} times"
                )
        if steps != sorted(steps):
            at = next(step for before, step in zip(steps, steps[1:]) if step < before)
            yield Violation(3, "reordered", subject, f"the lines of run {number} are out of order at step {at}")
    for number, run in ledger.runs.items():
        there = set(shown.get(number, ()))
        missing = [step for step in run.printed if step not in there]
        last = max(there, default=run.start_step)
        if number in expected.tails_lost or (expected.live and number == max(ledger.runs)):
            # Only the end may be missing, never something in the middle.
            missing = [step for step in missing if step < last]
        if missing:
            what = f"{len(missing)} printed lines of run {number} are not there, the first at step {missing[0]}"
            yield Violation(3, "lost", subject, what, {"steps": missing[:50], "last shown": last})


def _checkpoints(ledger: TrialLedger, answers: Answers) -> Iterable[Violation]:
    """Acknowledged checkpoints are completed, with every file of their manifest."""
    for run in ledger.runs.values():
        for saved in run.saved:
            subject = f"checkpoint {saved.uuid}"
            whose = {"trial": ledger.trial, "run": run.number, "step": saved.step}
            if saved.uuid not in answers.checkpoints:
                yield Violation(3, "lost", subject, "it was acknowledged and is not there", whose)
                continue
            state, resources = answers.checkpoints[saved.uuid]
            if state != "COMPLETED":
                yield Violation(5, "wrong", subject, f"it was acknowledged and is {state}", whose)
            listed = {path: size for path, size in resources.items() if not path.endswith("/")}
            # Our package adds its own file to what the task wrote.
            if {path: listed.get(path) for path in saved.manifest} != saved.manifest:
                evidence = {**whose, "saved": saved.manifest, "listed": listed}
                yield Violation(5, "wrong", subject, "its manifest is another one than was reported", evidence)
            yield from complete(saved.uuid, state, resources, answers.files.get(saved.uuid, {}))


def complete(uuid: str, state: str, resources: dict[str, int], files: dict[str, int]) -> Iterable[Violation]:
    """A completed checkpoint has every file of its manifest, in its size."""
    if state != "COMPLETED":
        return
    for path, size in resources.items():
        if path.endswith("/"):
            continue
        if path not in files:
            yield Violation(5, "lost", f"checkpoint {uuid}", f'its file "{path}" is not in storage')
        elif files[path] != size:
            what = f'its file "{path}" has {files[path]} bytes, not {size}'
            yield Violation(5, "wrong", f"checkpoint {uuid}", what)


def _resumptions(ledger: TrialLedger) -> Iterable[Violation]:
    """A run goes on from the newest checkpoint that was acknowledged before it, or from a newer one still."""
    subject = f"trial {ledger.trial}"
    for run in ledger.runs.values():
        before = [saved for earlier in ledger.runs.values() if earlier.number < run.number for saved in earlier.saved]
        newest = max(before, key=lambda saved: (saved.run, saved.step), default=None)
        if newest is None:
            continue
        if run.start_step < newest.step:
            what = f"run {run.number} began after step {run.start_step}, though step {newest.step} was saved"
            yield Violation(3, "lost", subject, what, {"from": run.start_checkpoint, "newest": newest.uuid})
        known = {saved.uuid: saved.step for saved in before}
        if run.start_checkpoint in known and known[run.start_checkpoint] != run.start_step:
            what = f"run {run.number} began after step {run.start_step} of a checkpoint of another step"
            yield Violation(3, "wrong", subject, what, {"from": run.start_checkpoint})


def numbers(path: pathlib.Path) -> int:
    """How large a ledger is: it has grown when this has."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def below(directory: pathlib.Path) -> Sequence[pathlib.Path]:
    """The ledgers in a directory, by trial."""
    found = directory.glob("trial-*.ledger")
    return sorted(found, key=lambda path: int(path.name.removeprefix("trial-").removesuffix(".ledger")))
