"""Two executables measured side by side: each figure on one and on the other, by turns, in one run on one machine."""

from __future__ import annotations

import json
import pathlib
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from measure.cluster import Failed
from measure.figures import Figure, Plan
from measure.results import Outcome, Skipped, Value, columns, loss, shown

# Worse by more than this part is named below the table.
WORSE = 0.05


@dataclass
class Pair:
    """One value of a figure, before and after."""

    figure: str
    store: str
    name: str
    unit: str
    # The median of each round.
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)

    @property
    def worse(self) -> float:
        """By which part the new one is worse; negative where it is better."""
        return loss(statistics.median(self.before), statistics.median(self.after), self.unit)

    @property
    def is_worse(self) -> bool:
        """Worse by more than allowed, and in most rounds: a single slow round shows nothing."""
        rounds = [loss(old, new, self.unit) > WORSE for old, new in zip(self.before, self.after)]
        return self.worse > WORSE and sum(rounds) * 2 > len(rounds)

    def row(self) -> list[str]:
        ratios = [new / old for old, new in zip(self.before, self.after) if old]
        spread = f"{min(ratios):.2f}-{max(ratios):.2f}" if ratios else ""
        medians = [statistics.median(self.before), statistics.median(self.after)]
        ratio = f"{medians[1] / medians[0]:.2f}" if medians[0] else ""
        return [self.figure, self.store, self.name, self.unit, *map(shown, medians), ratio, spread]


def measure_beside(
    figures: Sequence[Figure], only_store: str | None, before: Plan, after: Plan, rounds: int, results: pathlib.Path
) -> int:
    """Measures, prints the table, writes `beside.json`; 1 where a figure failed."""
    pairs: list[Pair] = []
    problems: list[str] = []
    for figure in figures:
        for store in figure.stores:
            if only_store not in (None, store):
                continue
            name = f"{figure.name} on {store}" if store else figure.name
            print(f"== {name}: {figure.title}", flush=True)
            try:
                pairs += _by_turns(figure, store, before, after, rounds)
            except Skipped as reason:
                problems.append(f"SKIPPED: {name}: {reason}")
            except Failed as reason:
                problems.append(f"FAILED: {name}: {reason}")
    header = ["figure", "store", "value", "unit", "before", "after", "ratio", "of each round"]
    print()
    print(columns([header, *(pair.row() for pair in pairs)], right={4, 5, 6, 7}))
    for pair in pairs:
        if pair.is_worse:
            print(f"WORSE by {pair.worse:.0%}: {pair.figure} ({pair.store}), {pair.name.strip()}")
    for problem in problems:
        print(problem)
    results.mkdir(parents=True, exist_ok=True)
    document = {"before": str(before.det), "after": str(after.det), "values": [vars(pair) for pair in pairs]}
    (results / "beside.json").write_text(json.dumps(document, indent=1) + "\n")
    return 1 if any(problem.startswith("FAILED") for problem in problems) else 0


def _by_turns(figure: Figure, store: str, before: Plan, after: Plan, rounds: int) -> list[Pair]:
    pairs: dict[tuple[int, str], Pair] = {}
    for number in range(rounds):
        # The second one that is measured finds a warmer disk: it is not always the same executable.
        turns = (before, after) if number % 2 == 0 else (after, before)
        for plan in turns:
            outcome = figure.measure(plan, store)
            for key, value in _values(outcome):
                pair = pairs.setdefault(key, Pair(figure.name, outcome.store, value.name, value.unit))
                (pair.before if plan is before else pair.after).append(value.median)
    return [pair for pair in pairs.values() if pair.before and pair.after]


def _values(outcome: Outcome) -> Iterator[tuple[tuple[int, str], Value]]:
    """A name may occur several times, each below another one: values are distinguished by position too."""
    for number, value in enumerate(outcome.values):
        yield (number, value.name), value
