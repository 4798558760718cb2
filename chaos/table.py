"""The table of scenarios: load, fault, and how much of it in each size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import kills
from stage import Stage


@dataclass(frozen=True)
class Row:
    """One scenario."""

    name: str
    load: str
    fault: str
    play: Callable[[Stage], None]
    # How much of the fault: so many times, or so many seconds.
    ci: int
    hand: int
    unit: str = "times"
    stores: tuple[str, ...] = ("sqlite", "postgres")
    runtimes: tuple[str, ...] = ("process",)
    # Stores and runtimes in the short form, where they are fewer.
    ci_only: tuple[str, ...] = ()

    def amount(self, size: str) -> int:
        return self.ci if size == "ci" else self.hand


ROWS = (
    Row(
        "kill-master",
        "30 trials, 10 reports/s each; a short experiment every 2 s",
        "kill -9 of the master at random instants, also while it starts",
        kills.kill_master,
        ci=10,
        hand=500,
    ),
)
