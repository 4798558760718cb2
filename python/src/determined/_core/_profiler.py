"""System metrics of a trial, which the supervisor of its container measures."""

from __future__ import annotations

import logging

__all__ = ["DummyProfilerContext", "ProfilerContext"]

logger = logging.getLogger("determined.core")


class ProfilerContext:
    """Accepts the calls of scripts that profile, and logs a warning where nothing is measured."""

    def __init__(self, agent_id: str, metrics: object, distributed: object) -> None:
        """Takes what the PyPI package's takes, and needs none of it."""
        self._warned = False

    @classmethod
    def _of_trial(
        cls, agent_id: str, metrics: object, distributed: object, *, measured: bool
    ) -> ProfilerContext:
        """`measured`: whether the trial's configuration has its supervisor measure."""
        context = cls(agent_id, metrics, distributed)
        context._warned = measured
        return context

    def on(self, sampling_interval: int = 1, samples_per_report: int = 10) -> None:
        """Warns if system metrics are not collected; checks the arguments all the same.

        Training does not depend on them. The supervisor has intervals of its own.
        """
        if sampling_interval < 0.1:
            raise ValueError(f"sampling_interval must be at least 0.1 seconds, not {sampling_interval}")
        if not isinstance(samples_per_report, int) or samples_per_report < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(
                f"samples_per_report must be a whole number of at least 1, not {samples_per_report}"
            )
        if not self._warned:
            self._warned = True
            logger.warning(
                "profiler.on(): nothing is recorded; system metrics are collected if the experiment's"
                ' configuration contains "profiling: {enabled: true}"'
            )

    def off(self) -> None:
        """Does nothing: nothing was on."""


class DummyProfilerContext(ProfilerContext):
    """Silent, for code off-cluster."""

    def __init__(self) -> None:
        """Needs nothing."""

    def on(self, sampling_interval: int = 1, samples_per_report: int = 10) -> None:
        """Does nothing."""

    def off(self) -> None:
        """Does nothing."""
