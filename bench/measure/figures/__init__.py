"""The figures. Each is a function that gives one outcome per store, or raises `Skipped` with what it lacks."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from measure.results import Outcome


@dataclass(frozen=True)
class Plan:
    """What to measure, and how long."""

    det: pathlib.Path
    # Where clusters keep their files: the disk that durable figures are figures of.
    work: pathlib.Path
    # Few and short repeats, to see that everything works.
    quick: bool
    # Interpreter of tasks that run Python.
    python: str
    # An image with a shell for the Docker figure; None if the caller named none.
    image: str | None
    # The load generator, det-bench; None if it was not built.
    load: pathlib.Path | None
    # How long the soak loads a master.
    soak_seconds: float
    # Receives progress messages.
    say: Callable[[str], None]

    def repeats(self, full: int, quick: int = 3) -> int:
        return quick if self.quick else full

    def seconds(self, full: float) -> float:
        """Length of one window of load."""
        return min(full, 1.0) if self.quick else full


@dataclass(frozen=True)
class Figure:
    """Something that can be measured."""

    name: str
    title: str
    # Kinds of stores, each measured by itself; "" where none takes part.
    stores: tuple[str, ...]
    measure: Callable[[Plan, str], Outcome]


def all_figures() -> Mapping[str, Figure]:
    """The figures by name, in the order in which they are measured."""
    from measure.figures import churn, control, footprint, instructions, intake, reading, services, soak, starts

    groups = (
        starts.FIGURES,
        services.FIGURES,
        churn.FIGURES,
        intake.FIGURES,
        control.FIGURES,
        footprint.FIGURES,
        instructions.FIGURES,
        reading.FIGURES,
        soak.FIGURES,
    )
    return {figure.name: figure for figure in _ordered(*groups)}


def _ordered(*groups: tuple[Figure, ...]) -> Iterator[Figure]:
    for group in groups:
        yield from group
