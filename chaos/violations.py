"""What a check found: which invariant does not hold, of what, and how that shows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Violation:
    """One breach of an invariant (see `invariants.py` for their numbers)."""

    invariant: int
    # `lost`, `doubled`, `reordered`, `wrong`, `restarted`, … : what the summary counts.
    kind: str
    # `trial 3`, `allocation 1.x.2`, `agent agent-1`.
    subject: str
    # One sentence.
    what: str
    # All that is known about it.
    evidence: dict[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return f"[{self.invariant}] {self.kind}: {self.subject}: {self.what}"


def to_json(violations: Iterable[Violation]) -> str:
    """All of them as a JSON text, with their evidence."""
    return json.dumps([asdict(violation) for violation in violations], indent=1, default=str)
