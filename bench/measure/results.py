"""What was measured: values with every repeat, as JSON files and as a table."""

from __future__ import annotations

import json
import math
import pathlib
import statistics
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Any

# From so many samples on a tail means something.
ENOUGH_FOR_A_TAIL = 10


class Skipped(Exception):
    """Equipment of a figure is not there; the figure is left out with this reason."""


def percentile(samples: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: always one of the samples."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


@dataclass
class Value:
    """One thing that was measured, several times."""

    name: str
    unit: str
    # Every repeat, in the order of measuring.
    samples: list[float]
    # What exactly was measured, where the name alone leaves that open.
    definition: str = ""
    # The reported figure of the old product; empty if there is none.
    old: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def p99(self) -> float | None:
        """None where too few samples were taken for a tail."""
        return percentile(self.samples, 99) if len(self.samples) >= ENOUGH_FOR_A_TAIL else None

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "definition": self.definition,
            "old_product": self.old or None,
            "median": self.median,
            "p99": self.p99,
            "min": min(self.samples),
            "max": max(self.samples),
            "repeats": self.samples,
        }


@dataclass
class Outcome:
    """A figure on one store."""

    figure: str
    title: str
    # Kind and version of the database, "-" where none takes part.
    store: str
    definition: str
    values: list[Value]
    # How it was measured: connections, lengths, what ran.
    settings: dict[str, Any] = field(default_factory=dict)
    # Who used the processors meanwhile; in cores.
    processors: dict[str, Any] = field(default_factory=dict)

    @property
    def file_name(self) -> str:
        store = self.store.split(" ")[0].lower()
        return f"{self.figure}.json" if store == "-" else f"{self.figure}-{store}.json"

    def write(self, directory: pathlib.Path, facts: dict[str, Any]) -> pathlib.Path:
        """Writes the file of this figure; gives its path."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / self.file_name
        document = {
            "figure": self.figure,
            "title": self.title,
            "definition": self.definition,
            "store": self.store,
            "settings": self.settings,
            "processors": self.processors,
            "values": [value.as_json() for value in self.values],
            **facts,
        }
        path.write_text(json.dumps(document, indent=1, sort_keys=False) + "\n")
        return path


# Units of which more is better; of all others less is.
MORE_IS_BETTER = ("1/s", "MB/s", "part")
# Slower or larger by more than this part of the earlier result is shown.
REGRESSION = 0.2


def regressions(outcome: Outcome, directory: pathlib.Path, machine: dict[str, Any]) -> list[str]:
    """What got worse since the same machine's earlier result, a line each. Nothing is concluded from it here."""
    path = directory / outcome.file_name
    try:
        earlier = json.loads(path.read_text())
    except (OSError, ValueError):
        return []
    same = ("cores", "processor", "memory_mb")
    if any(earlier.get("machine", {}).get(fact) != machine.get(fact) for fact in same) or earlier.get("quick"):
        return []
    # A name may occur several times, each below another one: they are distinguished by position.
    before = {(number, value["name"]): value["median"] for number, value in enumerate(earlier.get("values", []))}
    found = []
    for number, value in enumerate(outcome.values):
        old = before.get((number, value.name))
        if not old:
            continue
        if loss(old, value.median, value.unit) > REGRESSION:
            found.append(
                f"{outcome.figure} ({outcome.store}), {value.name.strip()}: {shown(value.median)} {value.unit}, "
                f"{shown(old)} on {earlier.get('measured_at', 'an earlier day')}"
            )
    return found


def loss(before: float, after: float, unit: str) -> float:
    """By which part of it a value got worse; negative where it got better, 0 where there was nothing."""
    change = after / before - 1 if before else 0.0
    return -change if unit in MORE_IS_BETTER else change


def shown(number: float | None) -> str:
    """A number for a reader: three to four digits that matter."""
    if number is None:
        return ""
    if abs(number) >= 1000:
        return f"{number:,.0f}"
    if abs(number) >= 100:
        return f"{number:.0f}"
    return f"{number:.1f}" if abs(number) >= 10 else f"{number:.2f}"


def table(outcomes: Sequence[Outcome]) -> str:
    """All values of all figures, one line each."""
    rows = [["figure", "store", "value", "unit", "median", "p99", "min", "max", "n", "old product"]]
    for outcome in outcomes:
        figure, store = outcome.figure, outcome.store
        for value in outcome.values:
            numbers = [value.median, value.p99, min(value.samples), max(value.samples)]
            cells = [shown(number) for number in numbers]
            rows.append([figure, store, value.name, value.unit, *cells, str(len(value.samples)), value.old])
            figure, store = "", ""
    return columns(rows, right={4, 5, 6, 7, 8})


def columns(rows: Sequence[Sequence[str]], right: Set[int]) -> str:
    """Rows as text, the first one as header; the columns of these numbers end at their right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
