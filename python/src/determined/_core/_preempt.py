"""Preemption: the cluster asks the task to save and leave.

A background thread holds a long poll with the master; the training loop reads a flag.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from typing import Any

from determined._core._distributed import DistributedContext
from determined._session import MasterSession

__all__ = ["DummyPreemptContext", "PreemptContext", "PreemptMode"]

logger = logging.getLogger("determined.core")

#: How long the master may hold a poll.
POLL_S = 60
#: Grace for the answer to arrive.
POLL_MARGIN_S = 10
#: Longest wait after a failed poll.
RETRY_MAX_S = 10.0
#: Least time between polls; matters only with a master that answers "no" without holding.
POLL_MIN_S = 1.0


class PreemptMode(enum.Enum):
    """Who may call `should_preempt()` when several processes train together.

    - `WorkersAskChief`: all processes call it in step and get the chief's answer.
    - `ChiefOnly`: only the chief calls it and notifies the others by its own means.
    - `WorkersAskMaster`: every process asks the master; answers may differ for a moment.
    """

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHIEF_ONLY"
    WorkersAskMaster = "WORKERS_ASK_MASTER"


class _Watcher:
    """Waits for the preemption signal of one allocation."""

    def __init__(self, session: MasterSession, allocation_id: str) -> None:
        self._session = session
        self._path = f"/api/v1/allocations/{allocation_id}/signals/preemption"
        self._quit = threading.Event()
        self._known = threading.Event()
        self._preempt = False
        # A daemon: the long poll cannot be interrupted, and it must not hold up the exit.
        self._thread = threading.Thread(target=self._run, name="determined-preemption", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._quit.set()

    def should_preempt(self) -> bool:
        """The latest answer; waits only until there has been a first one."""
        if not self._preempt and not self._known.is_set():
            self._known.wait()
        return self._preempt

    def _run(self) -> None:
        try:
            # At once and without retries: the loop below goes on in any case, and user code waits.
            self._preempt = self._poll(0)
        except Exception as error:
            logger.warning("cannot ask the master about preemption yet: %s", error)
        finally:
            self._known.set()
        retry_s = 0.5
        while not self._preempt and not self._quit.is_set():
            asked_at = time.monotonic()
            try:
                self._preempt = self._poll(POLL_S)
            except Exception as error:
                if self._quit.is_set():
                    return  # The process is leaving, and so may be the master.
                # Only the first failure of an outage is a warning; the master's restarts are normal.
                log = logger.warning if retry_s == 0.5 else logger.debug
                log("asking the master about preemption failed, trying on: %s", error)
                self._quit.wait(retry_s)
                retry_s = min(retry_s * 2, RETRY_MAX_S)
            else:
                retry_s = 0.5
                if not self._preempt:
                    self._quit.wait(max(0.0, POLL_MIN_S - (time.monotonic() - asked_at)))

    def _poll(self, hold_s: int) -> bool:
        answer = self._session.get(
            self._path,
            params={"timeout_seconds": str(hold_s)},
            read_timeout_s=hold_s + POLL_MARGIN_S,
            retries=False,
        )
        return answer.object().get("preempt") is True


class PreemptContext:
    """Returns whether the task should save and leave."""

    def __init__(
        self,
        session: MasterSession,
        allocation_id: str,
        dist: DistributedContext,
        preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
    ) -> None:
        self._session = session
        self._allocation_id = allocation_id
        self._dist = dist
        self._preempt_mode = PreemptMode(preempt_mode)
        self._started = False
        self._acknowledged = False
        self._watcher: _Watcher | None = None
        if dist.rank == 0 or self._preempt_mode is PreemptMode.WorkersAskMaster:
            self._watcher = _Watcher(session, allocation_id)

    def start(self) -> PreemptContext:
        """Starts asking the master. RuntimeError if called twice."""
        self._set_started()
        if self._watcher is not None:
            self._watcher.start()
        return self

    def close(self) -> None:
        """Stops asking the master."""
        if self._watcher is not None:
            self._watcher.close()

    def __enter__(self) -> PreemptContext:
        return self.start()

    def __exit__(self, *_: Any) -> None:
        self.close()

    def should_preempt(self, auto_ack: bool = True) -> bool:
        """Whether to save a checkpoint and exit now. Costs next to nothing, so ask after every step.

        The first True is acknowledged to the master, which will then start the task again later. With
        `auto_ack=False` that is left to `acknowledge_preemption_signal()`.
        """
        self._check_started()
        if self._watcher is None:
            _refuse_worker(self._preempt_mode, self._dist)
            return bool(self._dist.broadcast(None))
        preempt = self._watcher.should_preempt()
        if preempt and auto_ack and not self._acknowledged:
            self.acknowledge_preemption_signal()
            self._acknowledged = True
        if self._preempt_mode is PreemptMode.WorkersAskChief:
            self._dist.broadcast(preempt)
        return preempt

    def acknowledge_preemption_signal(self) -> None:
        """Reports to the master that the task leaves unfinished.

        Without it an exit with status 0 means that the training is complete.
        """
        logger.debug("acknowledge_preemption_signal()")
        self._session.post(f"/api/v1/allocations/{self._allocation_id}/signals/ack_preemption")

    def _set_started(self) -> None:
        if self._started:
            raise RuntimeError("PreemptContext.start() was called already, and may be called only once")
        self._started = True

    def _check_started(self) -> None:
        if not self._started:
            raise RuntimeError(
                "should_preempt() was called before start(); use it inside `with core.init() as context`"
            )


class PreemptWhenAskedContext(PreemptContext):
    """Of a generic task or a command: asks the master from the first call of `should_preempt()` on.

    Such a task is given time to save only once it has asked; one that never asks is ended at once.
    """

    _asks = False

    def start(self) -> PreemptContext:
        """Lets `should_preempt()` be called. RuntimeError if called twice."""
        self._set_started()
        return self

    def should_preempt(self, auto_ack: bool = True) -> bool:
        """Whether to save and exit now, as in a trial."""
        self._check_started()
        if self._watcher is not None and not self._asks:
            self._asks = True
            self._watcher.start()
        return super().should_preempt(auto_ack)


class DummyPreemptContext(PreemptContext):
    """Never preempts, for code off-cluster."""

    def __init__(
        self,
        dist: DistributedContext,
        preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
    ) -> None:
        self._dist = dist
        self._preempt_mode = PreemptMode(preempt_mode)
        self._started = False
        self._watcher = None

    def should_preempt(self, auto_ack: bool = True) -> bool:
        """False, with the rules about who may call that hold on a cluster."""
        self._check_started()
        if self._dist.rank != 0:
            _refuse_worker(self._preempt_mode, self._dist)
        if self._preempt_mode is PreemptMode.WorkersAskChief:
            self._dist.broadcast(False)
        return False

    def acknowledge_preemption_signal(self) -> None:
        """Does nothing."""


def _refuse_worker(mode: PreemptMode, dist: DistributedContext) -> None:
    if mode is PreemptMode.ChiefOnly:
        raise RuntimeError(
            f"should_preempt() was called by rank {dist.rank}, but preempt_mode=ChiefOnly allows only rank 0"
        )
