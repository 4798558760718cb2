"""The older way to ask how long to train: operations with a length.

Kept for scripts that use it. Since 0.38 the master sends no operations: there is exactly one, with
the length of `searcher.max_length`, and it is complete when the script reports it. Nothing here decides
about the search; validation metrics do.
"""

from __future__ import annotations

import enum
import logging
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, cast

from determined._core._distributed import DistributedContext
from determined._json import encode
from determined._session import MasterSession

__all__ = [
    "DummySearcherContext",
    "DummySearcherOperation",
    "SearcherContext",
    "SearcherContextMissing",
    "SearcherMode",
    "SearcherOperation",
    "Unit",
    "parse_max_length",
    "parse_unit",
]

logger = logging.getLogger("determined.core")


class Unit(enum.Enum):
    """What the lengths of a search count."""

    EPOCHS = "EPOCHS"
    RECORDS = "RECORDS"
    BATCHES = "BATCHES"


class SearcherMode(enum.Enum):
    """Who calls `operations()`: all processes in step, or only the chief."""

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    # Misspelt in the PyPI package; the value is part of its interface.
    ChiefOnly = "CHEIF_ONLY"


def parse_max_length(config: Mapping[str, Any]) -> int | None:
    """`searcher.max_length` of an experiment configuration, a number or `{unit: number}`."""
    length: Any = _searcher_of(config).get("max_length")
    if isinstance(length, dict):
        length = next(iter(cast("dict[str, Any]", length).values()), None)
    if length is None:
        return None
    if not isinstance(length, int):
        raise ValueError(f"searcher.max_length must be a whole number or one unit with one, not {length!r}")
    return length


def parse_unit(config: Mapping[str, Any]) -> Unit | None:
    """The unit of `searcher.max_length`; None if it has none."""
    searcher = _searcher_of(config)
    unit: Any = searcher.get("unit")
    length: Any = searcher.get("max_length")
    if "unit" not in searcher and isinstance(length, dict):
        unit = next(iter(cast("dict[str, Any]", length)), None)
    units: dict[Any, Unit] = {"records": Unit.RECORDS, "epochs": Unit.EPOCHS, "batches": Unit.BATCHES}
    return units.get(unit)


def _searcher_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config.get("searcher") or {}


class SearcherOperation:
    """Train up to `length`, validate, call `report_completed()`."""

    def __init__(self, session: MasterSession, trial_id: int, length: int, is_chief: bool) -> None:
        self._session = session
        self._trial_id = trial_id
        self._length = length
        self._is_chief = is_chief
        self._completed = False

    @property
    def length(self) -> int:
        """How long to train in all, from the start of the trial, in the unit of the configuration."""
        return self._length

    def report_progress(self, length: float) -> None:
        """Reports how much of `length` is done, in the same unit."""
        self._check_progress(length)
        fraction = min(1.0, max(0.0, length / self._length))
        self._session.post(
            f"/api/v1/trials/{self._trial_id}/progress", {"progress": fraction, "is_raw": True}
        )

    def report_completed(self, searcher_metric: Any) -> None:
        """Ends the operation. The value goes nowhere: the search reads validation metrics."""
        self._complete()

    def _check_progress(self, length: float) -> None:
        if not self._is_chief:
            raise RuntimeError("op.report_progress() may be called only by the chief (rank 0)")
        # The last report of a loop often comes after report_completed(), with the full length.
        if self._completed and length != self._length:
            raise RuntimeError("op.report_progress() must not be called after op.report_completed()")

    def _complete(self) -> None:
        if not self._is_chief:
            raise RuntimeError("op.report_completed() may be called only by the chief (rank 0)")
        if self._completed:
            raise RuntimeError("op.report_completed() was called already")
        self._completed = True

    @property
    def is_completed(self) -> bool:
        """Whether `report_completed()` was called."""
        return self._completed


class DummySearcherOperation(SearcherOperation):
    """An operation that reports to the log."""

    def __init__(self, length: int, is_chief: bool) -> None:
        self._length = length
        self._is_chief = is_chief
        self._completed = False

    def report_progress(self, length: float) -> None:
        """Logs how much of `length` is done."""
        self._check_progress(length)
        logger.info("progress report: %s/%s", length, self._length)

    def report_completed(self, searcher_metric: Any) -> None:
        """Ends the operation and logs the value."""
        self._complete()
        logger.info("searcher operation completed: searcher_metric=%s", encode(searcher_metric).decode())


class SearcherContext:
    """Yields the one operation there is."""

    def __init__(
        self,
        session: MasterSession,
        dist: DistributedContext,
        trial_id: int,
        max_length: int,
        units: Unit | None = None,
    ) -> None:
        self._session = session
        self._dist = dist
        self._trial_id = trial_id
        self._length = max_length
        self._units = units

    def operations(
        self,
        searcher_mode: SearcherMode = SearcherMode.WorkersAskChief,
        auto_ack: bool = True,
    ) -> Iterator[SearcherOperation]:
        """One operation; RuntimeError if it was left without `report_completed()`.

        Deprecated with the PyPI package: put the training length into your own code or a
        hyperparameter. `auto_ack` has no effect.
        """
        warnings.warn(
            "searcher.operations() is deprecated since 0.38.0; "
            "put the training length into your code or a hyperparameter",
            FutureWarning,
            stacklevel=2,
        )
        mode = SearcherMode(searcher_mode)
        if self._dist.rank == 0:
            operation = self._operation(self._length, True)
            if mode is SearcherMode.WorkersAskChief:
                self._dist.broadcast(operation.length)
            yield operation
            if not operation.is_completed:
                raise RuntimeError("op.report_completed() must be called for each operation")
            if mode is SearcherMode.WorkersAskChief:
                self._dist.broadcast(None)
            return
        if mode is SearcherMode.ChiefOnly:
            raise RuntimeError(
                f"searcher.operations(ChiefOnly) was called by rank {self._dist.rank}; only rank 0 may"
            )
        while (length := self._dist.broadcast(None)) is not None:
            yield self._operation(length, False)

    def acknowledge_out_of_ops(self) -> None:
        """Does nothing; deprecated."""

    def get_configured_units(self) -> Unit | None:
        """The unit of `searcher.max_length`; None if it was given as a bare number. Deprecated."""
        return self._units

    def _operation(self, length: int, is_chief: bool) -> SearcherOperation:
        return SearcherOperation(self._session, self._trial_id, length, is_chief)


class DummySearcherContext(SearcherContext):
    """One operation of length 1, for code off-cluster."""

    def __init__(self, dist: DistributedContext, length: int = 1) -> None:
        self._dist = dist
        self._length = length
        self._units = Unit.EPOCHS

    def _operation(self, length: int, is_chief: bool) -> SearcherOperation:
        return DummySearcherOperation(length, is_chief)


class SearcherContextMissing(SearcherContext):
    """For configurations without `searcher.max_length`; every use is an error that explains it."""

    def __init__(self) -> None:
        """Needs nothing."""

    def operations(
        self,
        searcher_mode: SearcherMode = SearcherMode.WorkersAskChief,
        auto_ack: bool = True,
    ) -> Iterator[SearcherOperation]:
        """ValueError."""
        self._fail()

    def acknowledge_out_of_ops(self) -> None:
        """ValueError."""
        self._fail()

    def get_configured_units(self) -> Unit | None:
        """ValueError."""
        self._fail()

    def _fail(self) -> NoReturn:
        raise ValueError(
            "context.searcher needs searcher.max_length in the experiment configuration, which is not "
            "set; both are deprecated: put the training length into your code or a hyperparameter"
        )
