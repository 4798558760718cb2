"""The checker itself: it is fed doctored ledgers and answers, and has to see what is wrong with them."""

from __future__ import annotations

import copy
import json
import pathlib
from collections.abc import Callable
from dataclasses import replace

import pytest

import ledger
from ledger import Answers, Damaged, Expected, checksum

TRIAL = 7
UUID_1, UUID_2 = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
MANIFEST = {"state.json": 30, "part/filling.bin": 1000}


def written() -> str:
    """What a trial writes down that takes 10 steps, is killed after 7, and goes on from step 5."""
    lines = ["start 1 0 -"]
    for step in range(1, 8):
        lines += [f"printed 1 {step} {checksum(TRIAL, step)}", f"metric 1 {step} {checksum(TRIAL, step)}"]
        if step == 5:
            manifest = json.dumps(MANIFEST, separators=(",", ":"))
            lines.append(f"validation 1 5 {checksum(TRIAL, 5)}")
            lines.append(f"checkpoint 1 5 {checksum(TRIAL, 5)} {UUID_1} {manifest}")
    lines.append(f"start 2 5 {UUID_1}")
    for step in range(6, 11):
        lines += [f"printed 2 {step} {checksum(TRIAL, step)}", f"metric 2 {step} {checksum(TRIAL, step)}"]
    lines += [f"validation 2 10 {checksum(TRIAL, 10)}"]
    lines += [
        f"checkpoint 2 10 {checksum(TRIAL, 10)} {UUID_2} {json.dumps(MANIFEST, separators=(',', ':'))}",
        "end 2 10 -",
    ]
    return "\n".join(lines) + "\n"


def values(step: int) -> dict[str, int]:
    return {"sequence": step, "checksum": checksum(TRIAL, step)}


def line(run: int, step: int) -> str:
    return f"line {TRIAL} {run} {step} {checksum(TRIAL, step)}"


def given() -> Answers:
    """What a master that loses nothing gives back of it: steps 6 and 7 of the first run are outdated."""
    reports = [("training", 1, step, values(step)) for step in range(1, 6)]
    reports += [("training", 2, step, values(step)) for step in range(6, 11)]
    reports += [("validation", 1, 5, values(5)), ("validation", 2, 10, values(10))]
    resources = {**MANIFEST, "part/": 0}
    return Answers(
        trial=TRIAL,
        state="COMPLETED",
        restarts=1,
        reports=reports,
        lines=[line(1, step) for step in range(1, 8)] + [line(2, step) for step in range(6, 11)],
        checkpoints={UUID_1: ("COMPLETED", dict(resources)), UUID_2: ("COMPLETED", dict(resources))},
        files={UUID_1: dict(MANIFEST), UUID_2: dict(MANIFEST)},
    )


CAUSED = Expected(restarts=1, runs=2)


def kinds(text: str, answers: Answers, expected: Expected = CAUSED) -> list[tuple[int, str]]:
    """Invariant and kind of everything found, each once."""
    found = ledger.check(ledger.parse(TRIAL, text), answers, expected)
    return sorted({(violation.invariant, violation.kind) for violation in found})


def test_what_is_whole_is_taken_for_whole() -> None:
    assert kinds(written(), given()) == []


def lose_metric(answers: Answers) -> None:
    answers.reports.remove(("training", 2, 8, values(8)))


def lose_validation(answers: Answers) -> None:
    answers.reports.remove(("validation", 1, 5, values(5)))


def double_metric(answers: Answers) -> None:
    answers.reports.insert(3, answers.reports[2])


def swap_metrics(answers: Answers) -> None:
    answers.reports[2], answers.reports[3] = answers.reports[3], answers.reports[2]


def change_value(answers: Answers) -> None:
    answers.reports[4] = ("training", 1, 5, {"sequence": 5, "checksum": 1})


def invent_metric(answers: Answers) -> None:
    answers.reports.insert(10, ("training", 2, 11, values(11)))


def invent_run(answers: Answers) -> None:
    answers.reports.insert(10, ("training", 3, 11, values(11)))


def lose_line(answers: Answers) -> None:
    answers.lines.remove(line(1, 3))


def lose_last_line(answers: Answers) -> None:
    answers.lines.remove(line(1, 7))


def double_line(answers: Answers) -> None:
    answers.lines.insert(4, line(1, 4))


def swap_lines(answers: Answers) -> None:
    answers.lines[1], answers.lines[2] = answers.lines[2], answers.lines[1]


def tear_line(answers: Answers) -> None:
    answers.lines[2] = answers.lines[2][:8]


def damage_line(answers: Answers) -> None:
    answers.lines[2] = f"line {TRIAL} 1 3 12345"


def late_lines(answers: Answers) -> None:
    answers.lines.append(answers.lines.pop(6))


def lose_checkpoint(answers: Answers) -> None:
    del answers.checkpoints[UUID_1]


def unfinish_checkpoint(answers: Answers) -> None:
    answers.checkpoints[UUID_1] = ("ACTIVE", answers.checkpoints[UUID_1][1])


def lose_file(answers: Answers) -> None:
    del answers.files[UUID_2]["state.json"]


def cut_file(answers: Answers) -> None:
    answers.files[UUID_2]["part/filling.bin"] = 999


def change_manifest(answers: Answers) -> None:
    answers.checkpoints[UUID_2][1]["state.json"] = 31
    answers.files[UUID_2]["state.json"] = 31


def charge_twice(answers: Answers) -> None:
    answers.restarts = 2


DOCTORED: dict[str, tuple[Callable[[Answers], None], list[tuple[int, str]]]] = {
    "a metric is lost": (lose_metric, [(3, "lost")]),
    "a validation is lost": (lose_validation, [(3, "lost")]),
    "a metric is doubled": (double_metric, [(3, "doubled")]),
    "metrics are out of order": (swap_metrics, [(3, "reordered")]),
    "a metric has another value": (change_value, [(3, "wrong")]),
    "a metric that was not sent": (invent_metric, [(3, "wrong")]),
    "a metric of a run that never was": (invent_run, [(3, "wrong")]),
    "a line is lost": (lose_line, [(3, "lost")]),
    "the last line of a run is lost": (lose_last_line, [(3, "lost")]),
    "a line is doubled": (double_line, [(3, "doubled")]),
    "lines are out of order": (swap_lines, [(3, "reordered")]),
    "a line is torn": (tear_line, [(3, "lost"), (3, "wrong")]),
    "a line is damaged": (damage_line, [(3, "lost"), (3, "wrong")]),
    "a line of the first run comes behind the second": (late_lines, [(3, "reordered")]),
    "a checkpoint is lost": (lose_checkpoint, [(3, "lost")]),
    "a checkpoint is not completed": (unfinish_checkpoint, [(5, "wrong")]),
    "a file of a checkpoint is lost": (lose_file, [(5, "lost")]),
    "a file of a checkpoint is cut": (cut_file, [(5, "wrong")]),
    "a manifest is another one": (change_manifest, [(5, "wrong")]),
    "a restart is counted twice": (charge_twice, [(3, "restarted")]),
}


@pytest.mark.parametrize("name", DOCTORED)
def test_a_doctored_answer_is_seen(name: str) -> None:
    doctor, expected = DOCTORED[name]
    answers = copy.deepcopy(given())
    doctor(answers)
    assert kinds(written(), answers) == expected


def test_a_restart_without_a_cause_is_found() -> None:
    assert kinds(written(), given(), Expected()) == [(3, "restarted")]


def test_what_is_outdated_need_not_be_there_and_what_is_not_must() -> None:
    # The second run never reported: what the first one reported counts to its end.
    answers = given()
    answers.reports = [r for r in answers.reports if r[1] == 1]
    text = written().split("start 2")[0] + f"start 2 5 {UUID_1}\n"
    answers.lines = [entry for entry in answers.lines if entry.split()[2] == "1"]
    assert kinds(text, answers) == [(3, "lost")]


def test_the_end_of_a_lost_run_may_be_missing_and_nothing_else_of_it() -> None:
    lost = replace(CAUSED, tails_lost=frozenset({1}))
    answers = given()
    lose_last_line(answers)
    assert kinds(written(), answers, lost) == []
    lose_line(answers)
    assert kinds(written(), answers, lost) == [(3, "lost")]


def test_lines_of_a_lost_run_may_come_late() -> None:
    answers = given()
    late_lines(answers)
    assert kinds(written(), answers, replace(CAUSED, tails_lost=frozenset({1}))) == []


def test_an_older_run_that_is_still_acknowledged_is_seen() -> None:
    more = f"metric 1 7 {checksum(TRIAL, 7)}\n"
    assert (2, "unfenced") in kinds(written() + more, given())
    # One answer may have been under way when it was cut off; two are one too many.
    lost = replace(CAUSED, tails_lost=frozenset({1}))
    assert kinds(written() + more, given(), lost) == []
    assert (2, "unfenced") in kinds(written() + more + more, given(), lost)


def test_a_live_run_that_was_refused_is_seen() -> None:
    assert kinds(written() + "refused 2 10 400 no\n", given()) == [(3, "refused")]
    assert kinds(written() + "refused 1 7 400 run 1 is over\n", given()) == []


def test_a_run_that_forgets_its_newest_checkpoint_is_seen() -> None:
    text = written().replace(f"start 2 5 {UUID_1}", "start 2 0 -")
    assert kinds(text, given()) == [(3, "lost")]
    text = written().replace(f"start 2 5 {UUID_1}", f"start 2 4 {UUID_1}")
    assert kinds(text, given()) == [(3, "lost"), (3, "wrong")]


def test_a_checkpoint_of_a_run_before_the_last_one_is_not_forgotten_either() -> None:
    """The second run goes on from it and is killed before it has saved anything; the third one begins from nothing."""
    first = written().partition(f"start 2 5 {UUID_1}\n")[0]
    text = f"{first}start 2 5 {UUID_1}\nstart 3 0 -\nend 3 0 -\n"
    assert (3, "lost") in kinds(text, given(), replace(CAUSED, runs=3))
    violations = ledger.check(ledger.parse(TRIAL, text), given(), replace(CAUSED, runs=3))
    assert any("run 3 began after step 0" in violation.what for violation in violations)


def test_what_lives_may_have_gone_on_since() -> None:
    live = replace(CAUSED, live=True)
    answers = given()
    answers.reports.insert(10, ("training", 2, 11, values(11)))
    answers.lines.append(line(2, 11))
    text = written().removesuffix("end 2 10 -\n")
    assert kinds(text, answers, live) == []
    assert kinds(text, answers) == [(3, "wrong")]


def test_a_line_that_was_cut_off_by_a_kill_counts_as_unsaid() -> None:
    assert kinds(written() + "metric 2 11 9", given()) == []


@pytest.mark.parametrize(
    "text",
    ["start 1 0 -\nstart 1 0 -\n", "metric 1 1 5\n", "start 1 0 -\nmetric 1 1 5\n", "start 1 0 -\nnothing 1 1 5\n"],
    ids=["twice", "never started", "checksum", "unknown"],
)
def test_a_ledger_that_cannot_be_is_no_ledger(text: str) -> None:
    with pytest.raises(Damaged):
        ledger.parse(TRIAL, text)


def test_a_ledger_file_is_found_and_read(tmp_path: pathlib.Path) -> None:
    path = tmp_path / f"trial-{TRIAL}.ledger"
    path.write_text(written())
    read = ledger.read(path)
    assert (read.trial, sorted(read.runs), read.acknowledged) == (TRIAL, [1, 2], 16)
    assert ledger.below(tmp_path) == [path]
