"""Reports of a trial: metrics, progress, status, metadata."""

from __future__ import annotations

import enum
import logging
import pathlib
from typing import Any

from determined import errors
from determined._core._distributed import DistributedContext
from determined._core._metrics import MetricsContext
from determined._core._tensorboard import (
    Mangler,
    ScalarWriter,
    Selector,
    TensorboardManager,
    TensorboardMode,
)
from determined._session import MasterSession

__all__ = ["DummyTrainContext", "EarlyExitReason", "TrainContext"]

logger = logging.getLogger("determined.core")


class EarlyExitReason(enum.Enum):
    """Why a trial ends before its time."""

    #: The hyperparameters cannot work; the searcher may try others. See also `InvalidHP`.
    INVALID_HP = "EXITED_REASON_INVALID_HP"
    #: Seldom needed: exit with status 0 instead.
    USER_REQUESTED_STOP = "EXITED_REASON_USER_REQUESTED_STOP"


def _every_file(_: pathlib.Path) -> bool:
    return True


def _same_name(path: pathlib.Path, _: int) -> pathlib.Path:
    return path


class TrainContext:
    """Reports of the running trial."""

    def __init__(
        self,
        session: MasterSession,
        trial_id: int,
        exp_id: int,
        metrics: MetricsContext,
        distributed: DistributedContext,
        tensorboard_mode: TensorboardMode,
        tensorboard_manager: TensorboardManager | None,
        tbd_writer: ScalarWriter | None,
    ) -> None:
        if tensorboard_mode is not TensorboardMode.MANUAL and tensorboard_manager is None:
            raise ValueError("TensorboardMode.AUTO needs a tensorboard manager")
        self._session = session
        self._trial_id = trial_id
        self._exp_id = exp_id
        self._metrics = metrics
        self._distributed = distributed
        self._tensorboard_mode = tensorboard_mode
        self._tensorboard_manager = tensorboard_manager
        self._tbd_writer = tbd_writer

    def set_status(self, status: str) -> None:
        """A few words for users about what the trial is doing."""
        logger.debug("set_status(%s)", status)
        self._session.post(f"/api/v1/trials/{self._trial_id}/runner/metadata", {"state": status})

    def set_metadata(self, metadata: dict[str, Any]) -> dict[str, Any] | None:
        """Replaces the metadata of this run; returns what is stored."""
        body = {"metadata": metadata, "runId": self._trial_id}
        return self._session.post(f"/api/v1/runs/{self._trial_id}/metadata", body).object().get("metadata")

    def get_metadata(self) -> dict[str, Any] | None:
        """The metadata of this run; None if there is none."""
        return self._session.get(f"/api/v1/runs/{self._trial_id}/metadata").object().get("metadata")

    def report_training_metrics(
        self,
        steps_completed: int,
        metrics: dict[str, Any],
        batch_metrics: list[dict[str, Any]] | None = None,
    ) -> None:
        """Reports metrics of group `training`.

        `batch_metrics` are kept for later analysis and not charted. Sent in the background, in order;
        an error is raised by the next report or at the end of the context.
        """
        logger.info("report_training_metrics(steps_completed=%s, metrics=%s)", steps_completed, metrics)
        self._report_trial_metrics("training", steps_completed, metrics, batch_metrics)

    def report_validation_metrics(self, steps_completed: int, metrics: dict[str, Any]) -> None:
        """Reports metrics of group `validation`, from which the searcher decides.

        The report must hold the searcher's metric and, where there is one, its time metric.
        Values that are bytes are left out with a warning; None raises RuntimeError.
        """
        logger.info("report_validation_metrics(steps_completed=%s, metrics=%s)", steps_completed, metrics)
        self._report_trial_metrics("validation", steps_completed, metrics)

    def report_metrics(self, group: str, steps_completed: int, metrics: dict[str, Any]) -> None:
        """Reports metrics of any group; the name must be non-empty and without a dot.

        Several reports of one group and step are merged; a key must then not change its value.
        """
        logger.info(
            "report_metrics(group=%s, steps_completed=%s, metrics=%s)",
            group,
            steps_completed,
            metrics,
        )
        if not group or "." in group:
            raise ValueError(f'the name of a metric group must be non-empty and without ".", not {group!r}')
        self._report_trial_metrics(group, steps_completed, metrics)

    def get_tensorboard_path(self) -> pathlib.Path:
        """Local directory to write TensorBoard files to; make it before use."""
        return self._require_tensorboard().base_path

    def upload_tensorboard_files(
        self,
        selector: Selector = _every_file,
        mangler: Mangler = _same_name,
    ) -> None:
        """In MANUAL mode: copies new files under `get_tensorboard_path()` to checkpoint storage.

        `selector` gets each file's path; `mangler` gets the path relative to that directory and this
        process' rank, and returns the relative path to store it under.
        """
        if self._tensorboard_mode is TensorboardMode.AUTO:
            raise RuntimeError(
                "upload_tensorboard_files() needs core.init(tensorboard_mode=TensorboardMode.MANUAL); "
                "in AUTO mode files are uploaded by themselves"
            )
        self._require_tensorboard().upload(selector, mangler, self._distributed.rank)

    def report_early_exit(self, reason: EarlyExitReason) -> None:
        """Reports to the master why the trial ends before its time."""
        logger.info("report_early_exit(%s)", reason)
        try:
            self._session.post(
                f"/api/v1/trials/{self._trial_id}/early_exit",
                {"reason": EarlyExitReason(reason).value},
            )
        except errors.APIException as error:
            if error.status_code != 400:
                raise
            # The first reason counts: a later one is no cause to fail a trial that is ending.
            logger.warning("the early exit was not recorded: %s", error)

    def report_progress(self, progress: float) -> None:
        """Reports which part of the training is done, from 0 to 1."""
        logger.debug("report_progress(%s)", progress)
        if not 0 <= progress <= 1:
            raise ValueError(f"progress must be from 0 to 1, not {progress}")
        self._session.post(
            f"/api/v1/trials/{self._trial_id}/progress", {"progress": progress, "is_raw": True}
        )

    def get_experiment_best_validation(self) -> float | None:
        """The best value so far of the searcher's metric in the whole experiment; None before any."""
        path = f"/api/v1/experiments/{self._exp_id}/searcher/best_searcher_validation_metric"
        try:
            return float(self._session.get(path).object()["metric"])
        except errors.NotFoundException:
            return None

    def _report_trial_metrics(
        self,
        group: str,
        steps_completed: int,
        metrics: dict[str, Any],
        batch_metrics: list[dict[str, Any]] | None = None,
    ) -> None:
        reported = _without_bytes(metrics) if group == "validation" else metrics
        self._metrics.report(
            group=group,
            steps_completed=steps_completed,
            metrics=reported,
            batch_metrics=batch_metrics,
        )
        if self._tensorboard_mode is TensorboardMode.AUTO and self._tensorboard_manager is not None:
            if self._tbd_writer is not None:
                self._tbd_writer.on_report(group, steps_completed, dict(metrics), batch_metrics)
            self._tensorboard_manager.sync()

    def _require_tensorboard(self) -> TensorboardManager:
        if self._tensorboard_manager is None:
            raise ValueError("this task has no TensorBoard directory; only trials have")
        return self._tensorboard_manager


class DummyTrainContext(TrainContext):
    """Logs instead of reporting, for code off-cluster."""

    def __init__(self, tensorboard_path: pathlib.Path | None = None) -> None:
        self._tensorboard_path = tensorboard_path
        self._metadata: dict[str, Any] | None = None

    def set_status(self, status: str) -> None:
        """Logs it."""
        logger.info("status: %s", status)

    def set_metadata(self, metadata: dict[str, Any]) -> dict[str, Any] | None:
        """Keeps it in memory."""
        logger.info("set_metadata(%s)", metadata)
        self._metadata = dict(metadata)
        return self._metadata

    def get_metadata(self) -> dict[str, Any] | None:
        """What `set_metadata` was given."""
        return self._metadata

    def upload_tensorboard_files(
        self,
        selector: Selector = _every_file,
        mangler: Mangler = _same_name,
    ) -> None:
        """Logs the call."""
        logger.info("upload_tensorboard_files()")

    def report_early_exit(self, reason: EarlyExitReason) -> None:
        """Logs it."""
        logger.info("report_early_exit(%s)", reason)

    def report_progress(self, progress: float) -> None:
        """Logs it; takes any number, as the PyPI package does."""
        logger.info("report_progress(%s)", progress)

    def get_experiment_best_validation(self) -> float | None:
        """None."""
        return None

    def get_tensorboard_path(self) -> pathlib.Path:
        """The path given to the constructor, which off-cluster is None (so in the PyPI package)."""
        return self._tensorboard_path  # pyright: ignore[reportReturnType]

    def _report_trial_metrics(
        self,
        group: str,
        steps_completed: int,
        metrics: dict[str, Any],
        batch_metrics: list[dict[str, Any]] | None = None,
    ) -> None:
        """Nothing: the public methods have logged it."""


def _without_bytes(metrics: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in metrics.items():
        if value is None:
            # A validation function that forgot to return: the search would wait for it in vain.
            raise RuntimeError(f"validation metric {name!r} is None; it must have a value")
        if not isinstance(value, (bytes, bytearray)):
            kept[name] = value
    if len(kept) < len(metrics):
        logger.warning(
            "not reported, because bytes are no metrics: %s",
            ", ".join(metrics.keys() - kept.keys()),
        )
    return kept
