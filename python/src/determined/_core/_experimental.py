"""Links between a trial and the models it uses. May change."""

from __future__ import annotations

from typing import Any, Protocol

from determined._session import MasterSession

__all__ = ["DummyExperimentalCoreContext", "ExperimentalCoreContext"]


class HasUuid(Protocol):
    """A checkpoint, of any SDK."""

    @property
    def uuid(self) -> str:
        """Its id."""
        ...


class HasModelVersion(Protocol):
    """A version of a registered model, of any SDK."""

    @property
    def checkpoint(self) -> HasUuid | None:
        """What the version holds."""
        ...

    @property
    def model_id(self) -> int:
        """The model."""
        ...

    @property
    def model_version(self) -> int:
        """Number of the version."""
        ...


class ExperimentalCoreContext:
    """Reports to the master what this task uses, so that its metrics are found from there."""

    def __init__(self, session: MasterSession, trial_id: int) -> None:
        self._session = session
        self._trial_id = trial_id

    def report_task_using_checkpoint(self, checkpoint: HasUuid) -> None:
        """This task runs inference with `checkpoint`."""
        self._report(checkpoint.uuid, {})

    def report_task_using_model_version(self, model_version: HasModelVersion) -> None:
        """This task runs inference with `model_version`."""
        if model_version.checkpoint is None:
            raise ValueError(f"version {model_version.model_version} of the model has no checkpoint")
        self._report(
            model_version.checkpoint.uuid,
            {"modelId": model_version.model_id, "modelVersion": model_version.model_version},
        )

    def _report(self, checkpoint_uuid: str, model: dict[str, Any]) -> None:
        source = {
            "checkpointUuid": checkpoint_uuid,
            "trialId": self._trial_id,
            "trialSourceInfoType": "TRIAL_SOURCE_INFO_TYPE_INFERENCE",
            **model,
        }
        self._session.post("/api/v1/trial-source-info", {"trialSourceInfo": source})


class DummyExperimentalCoreContext(ExperimentalCoreContext):
    """Does nothing, for code off-cluster."""

    def __init__(self) -> None:
        """Needs nothing."""

    def report_task_using_checkpoint(self, checkpoint: HasUuid) -> None:
        """Does nothing."""

    def report_task_using_model_version(self, model_version: HasModelVersion) -> None:
        """Does nothing."""
