"""Waiting for conditions, with a limit, and with something to read when the limit is reached."""

from __future__ import annotations

import time
from typing import Any, Callable, TypeVar

T = TypeVar("T")

# Between two looks. Short against the start of a process, long against a request.
LOOK_EVERY = 0.05


class TooLate(AssertionError):
    """A condition did not come about in time."""


class Hopeless(AssertionError):
    """A condition cannot come about any more; raised by probes to end the wait at once."""


def wait_for(
    what: str,
    probe: Callable[[], T | None],
    *,
    within: float,
    seen: Callable[[], Any] | None = None,
    look_every: float = LOOK_EVERY,
) -> T:
    """Calls `probe` until it gives something true, and gives that back.

    `what` completes the sentence "waited for ...". A probe that fails with `OSError` is asked again: what it
    asks may be about to start. After `within` seconds `TooLate` contains what was last there, and what `seen` returns.
    """
    deadline = time.monotonic() + within
    last: Any = None
    while True:
        try:
            last = probe()
            if last:
                return last
        except OSError as error:
            last = error
        except Hopeless as error:
            raise Hopeless(f"waited for {what}: {error}{_described(seen)}") from None
        if time.monotonic() >= deadline:
            raise TooLate(f"waited {within:g} s for {what}; last seen: {last!r}{_described(seen)}")
        time.sleep(look_every)


def stays_true(what: str, probe: Callable[[], Any], *, throughout: float) -> None:
    """Checks that `probe` holds from now on for `throughout` seconds: for faults that are a length of time."""
    end = time.monotonic() + throughout
    while time.monotonic() < end:
        if not probe():
            raise AssertionError(f"not any more: {what}")
        time.sleep(LOOK_EVERY)


def _described(seen: Callable[[], Any] | None) -> str:
    if seen is None:
        return ""
    try:
        return f"\n{seen()}"
    except Exception as error:
        # The wait failed already; why it cannot be described is worth a line, not another failure.
        return f"\n(it cannot be described: {error!r})"
