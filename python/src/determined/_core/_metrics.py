"""Metric reports: queued by the training loop, sent in order by one background thread.

Every report carries `reportId`, `<stream>-<n>`: the stream is random for each context, n counts from
1. The master compares it with the identities of the reports that it has stored for the same trial, run,
group and step, so a request that is repeated is stored once (docs/contract/http-api.md, "Repeated
reports"). Reports are sent one after another, in the order in which they were made.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from determined import errors
from determined._session import MasterSession
from determined._timestamp import rfc3339

if TYPE_CHECKING:
    import datetime

__all__ = ["DummyMetricsContext", "MetricsContext"]

logger = logging.getLogger("determined.core")

#: Reports that may wait for the master before the training loop has to.
QUEUE_LENGTH = 1000


class _Report(NamedTuple):
    group: str
    metrics: dict[str, Any]
    batch_metrics: list[dict[str, Any]] | None
    steps_completed: int | None
    #: Seconds since the epoch: a report delayed by an outage keeps its time.
    time: float


class MetricsContext:
    """Sends metric reports of one trial run."""

    def __init__(self, session: MasterSession, trial_id: int, run_id: int) -> None:
        self._session = session
        self._trial_id = trial_id
        self._run_id = run_id
        # Of C: a bounded queue.Queue, or a semaphore beside this one, costs a step several times as much.
        # An event in it is set when everything before it was sent; None is the end.
        self._queue: queue.SimpleQueue[_Report | threading.Event | None] = queue.SimpleQueue()
        # Notified by the sender when there is space again, where a caller waits for that.
        self._space = threading.Event()
        self._waiting = False
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        # The first error that has not been raised yet. Reports after a refused one are still sent.
        self._error: Exception | None = None
        # Set when the thread has given up for good; every later report raises it.
        self._lost: Exception | None = None
        self._closed = False
        self._stream = os.urandom(16).hex()
        self._sent = 0

    def report(
        self,
        group: str,
        metrics: dict[str, Any],
        steps_completed: int | None = None,
        batch_metrics: list[dict[str, Any]] | None = None,
        report_time: datetime.datetime | None = None,
    ) -> None:
        """Queues a report; encoding and sending happen elsewhere.

        Raises what went wrong with an *earlier* report. Waits only when the queue is full.
        """
        if self._error is not None or self._lost is not None:
            self._raise_error()
        if self._closed:
            # The PyPI package drops these without a word. Raising would fail trainings that are over.
            logger.error("metrics of step %s came after the end of the context and are lost", steps_completed)
            return
        report = _Report(
            group,
            # Copied, because the loop may go on to change it before it is encoded.
            dict(metrics),
            None if batch_metrics is None else list(batch_metrics),
            steps_completed,
            time.time() if report_time is None else report_time.timestamp(),
        )
        if self._thread is None:
            # A context that was not entered: without the thread the report would never be sent.
            self.start()
        if self._queue.qsize() >= QUEUE_LENGTH:
            self._wait_for_space()
        self._queue.put(report)

    def _wait_for_space(self) -> None:
        self._waiting = True
        try:
            while self._queue.qsize() >= QUEUE_LENGTH:
                if self._lost is not None:
                    self._raise_error()
                self._space.clear()
                # Looked at again after a while in any case: a note may come between look and clearing.
                self._space.wait(0.1)
        finally:
            self._waiting = False

    def flush(self) -> None:
        """Waits until every report made so far was sent: stored, or refused, which the next report raises."""
        if self._thread is None or self._closed:
            return
        sent = threading.Event()
        self._queue.put(sent)
        # The thread ends early when the master is lost; then nothing more is sent.
        while not sent.wait(1) and self._thread.is_alive():
            logger.debug("waiting for the master to take about %d metric reports", self._queue.qsize())

    def start(self) -> None:
        """Starts the background thread, unless a report has done it."""
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="determined-metrics", daemon=True)
                thread.start()
                self._thread = thread

    @property
    def started(self) -> bool:
        """Whether there was a report, or the context was started."""
        return self._thread is not None

    def close(self) -> None:
        """Waits until everything is sent, then raises an error that has not been raised yet."""
        if self._closed:
            return
        self._closed = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(10)
            while self._thread.is_alive():
                logger.info("waiting for the master to take about %d metric reports", self._queue.qsize())
                self._thread.join(10)
        if self._error is not None:
            self._raise_error()

    def _raise_error(self) -> None:
        error = self._error or self._lost
        self._error = None
        assert error is not None
        raise error

    def _run(self) -> None:
        while True:
            report = self._queue.get()
            if report is None:
                return
            if self._waiting:
                self._space.set()
            if isinstance(report, threading.Event):
                report.set()
                continue
            try:
                self._session.post(f"/api/v1/trials/{self._trial_id}/metrics", self._body(report))
            except errors.MasterNotFoundException as error:
                # Retried for long enough: each further report would only wait as long again.
                self._lost = self._error = error
                logger.error("metrics are no longer reported: %s", error)
                return
            except Exception as error:
                logger.error("metrics of step %s were not stored: %s", report.steps_completed, error)
                self._error = self._error or error

    def _body(self, report: _Report) -> dict[str, Any]:
        self._sent += 1
        return {
            "group": report.group,
            "metrics": {
                "trialId": self._trial_id,
                "trialRunId": self._run_id,
                "stepsCompleted": report.steps_completed,
                "reportTime": rfc3339(report.time),
                "metrics": {"avgMetrics": report.metrics, "batchMetrics": report.batch_metrics},
            },
            "reportId": f"{self._stream}-{self._sent}",
        }


class DummyMetricsContext(MetricsContext):
    """Takes reports and sends nothing, for code off-cluster."""

    def __init__(self) -> None:
        """Needs no master."""

    def report(
        self,
        group: str,
        metrics: dict[str, Any],
        steps_completed: int | None = None,
        batch_metrics: list[dict[str, Any]] | None = None,
        report_time: datetime.datetime | None = None,
    ) -> None:
        """Does nothing."""

    def flush(self) -> None:
        """Does nothing."""

    def start(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""
