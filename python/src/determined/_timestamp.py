"""Times as the master writes them."""

from __future__ import annotations

__all__ = ["rfc3339"]


def rfc3339(seconds: float) -> str:
    """Seconds since the epoch as UTC with microseconds: `2026-01-31T12:00:00.000000Z`."""
    from datetime import datetime, timezone  # Slow to import, and never needed at start.

    at = datetime.fromtimestamp(seconds, timezone.utc)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")
