"""`init()` and what it gives: the parts of the Core API, started and stopped together."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import pathlib
import signal
import sys
import threading
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

from determined import _info, errors
from determined._core import _stacks
from determined._core._checkpoint import CheckpointContext, DummyCheckpointContext
from determined._core._distributed import DistributedContext, DummyDistributedContext
from determined._core._experimental import DummyExperimentalCoreContext, ExperimentalCoreContext
from determined._core._metrics import DummyMetricsContext, MetricsContext
from determined._core._preempt import (
    DummyPreemptContext,
    PreemptContext,
    PreemptMode,
    PreemptWhenAskedContext,
)
from determined._core._profiler import DummyProfilerContext, ProfilerContext
from determined._core._searcher import (
    DummySearcherContext,
    SearcherContext,
    SearcherContextMissing,
    parse_max_length,
    parse_unit,
)
from determined._core._tensorboard import ScalarWriter, TensorboardManager, TensorboardMode
from determined._core._train import DummyTrainContext, EarlyExitReason, TrainContext
from determined._session import MasterSession
from determined._storage import (
    SHARED_FS_CONTAINER_PATH,
    default_storage,
    directory_from_config,
    storage_config_from_string,
    storage_from_argument,
    storage_from_config,
)
from determined._task import session_of_task

__all__ = ["Context", "init"]

logger = logging.getLogger("determined.core")

_ALERT_LEVELS = {
    "debug": "LOG_LEVEL_DEBUG",
    "info": "LOG_LEVEL_INFO",
    "warn": "LOG_LEVEL_WARNING",
    "error": "LOG_LEVEL_ERROR",
}


class Context:
    """The parts of the Core API. Make one with `with core.init() as context`.

    What is reported without `with` is sent too, by `close()` or else at the end of the program, which warns.

    Parts: `train`, `checkpoint`, `preempt`, `searcher`, `distributed`, `profiler`, `experimental`, and
    `info`, the `ClusterInfo` of the task or None off-cluster.
    """

    def __init__(
        self,
        checkpoint: CheckpointContext,
        _session: MasterSession | None = None,
        distributed: DistributedContext | None = None,
        preempt: PreemptContext | None = None,
        train: TrainContext | None = None,
        searcher: SearcherContext | None = None,
        info: _info.ClusterInfo | None = None,
        experimental: ExperimentalCoreContext | None = None,
        profiler: ProfilerContext | None = None,
        _metrics: MetricsContext | None = None,
        _tensorboard_manager: TensorboardManager | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.distributed = distributed or DummyDistributedContext()
        self.preempt = preempt or DummyPreemptContext(self.distributed)
        self.train = train or DummyTrainContext()
        self.searcher = searcher or SearcherContextMissing()
        self.info = info
        self.experimental = experimental or DummyExperimentalCoreContext()
        self.profiler = profiler or DummyProfilerContext()
        self._metrics = _metrics or DummyMetricsContext()
        self._tensorboard_manager = _tensorboard_manager
        self._session = _session
        self._process = os.getpid()
        self._closed = False

    def start(self) -> None:
        """Starts the background threads; `with` does it."""
        self.preempt.start()
        self._metrics.start()
        if self._tensorboard_manager is not None:
            self._tensorboard_manager.start()

    def close(
        self,
        exc_type: type | None = None,
        exc_val: BaseException | None = None,
        exc_tb: types.TracebackType | None = None,
    ) -> None:
        """Waits for all reports and stops the threads; `with` does it.

        Raises what went wrong with the last reports, unless an exception is on its way already: then it
        is logged.
        """
        self._closed = True
        atexit.unregister(self._close_at_exit)
        steps: list[Callable[[], None]] = [
            self.preempt.close,
            self.profiler.off,
            self._metrics.close,
            self.distributed.close if exc_val is None else self.distributed._leave,  # pyright: ignore[reportPrivateUsage]
        ]
        if self._tensorboard_manager is not None:
            steps.append(self._tensorboard_manager.close)
        if self._session is not None:
            steps.append(self._session.close)
        failures: list[Exception] = []
        for step in steps:
            # Every part is closed, whatever happens to the others.
            try:
                step()
            except Exception as error:
                failures.append(error)
        unseen = failures if exc_val is not None else failures[1:]
        for error in unseen:
            logger.error("while closing the context: %s", error)
        if failures and exc_val is None:
            raise failures[0]

    def __enter__(self) -> Context:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type | None,
        exc_val: BaseException | None,
        exc_tb: types.TracebackType | None,
    ) -> None:
        self.close(exc_type, exc_val, exc_tb)
        if isinstance(exc_val, errors.InvalidHP):
            # The metrics have arrived by now, so the search sees them before it looks for another point.
            self.train.report_early_exit(EarlyExitReason.INVALID_HP)
            if self._session is not None:
                self._session.close()
            logger.info("invalid hyperparameters (%s): exit with status 0", exc_val.msg)
            # Status 0, because the trial is done, not failed; a failed one would be restarted.
            sys.exit(0)

    def _send_all_at_exit(self) -> None:
        """Has a context that is never closed send what was reported at the end of the program."""
        atexit.register(self._close_at_exit)
        if self._tensorboard_manager is not None:
            # tensorboardX ends its writers at the end of the program too, those that were opened last first:
            # what is reported is to be written before that.
            self._tensorboard_manager.on_writer = self._close_first_at_exit

    def _close_first_at_exit(self) -> None:
        atexit.unregister(self._close_at_exit)
        atexit.register(self._close_at_exit)

    def _close_at_exit(self) -> None:
        # Closed: the last report has opened a writer meanwhile. A fork has none of the threads, and its
        # parent ends for itself.
        if self._closed or os.getpid() != self._process:
            return
        if self._metrics.started:
            logger.warning(
                "the context of core.init() was not closed: what it still has to report is sent now, at the "
                "end of the program; write `with core.init() as context:`, where a report that fails fails "
                "the program too"
            )
        steps = [self._metrics.close]
        if self._tensorboard_manager is not None:
            steps.append(self._tensorboard_manager.close)
        for step in steps:
            try:
                step()
            except Exception as error:
                logger.error("while closing the context at the end of the program: %s", error)

    def alert(
        self,
        title: str | None = None,
        description: str | None = None,
        level: Literal["warn", "info", "debug", "error"] | None = "info",
    ) -> None:
        """Fires the custom webhooks of the experiment's workspace. ValueError if this is not a trial."""
        if self._session is None or self.info is None:
            raise ValueError("alert() needs a cluster; this code runs off-cluster")
        if self.info.task_type != "TRIAL":
            raise ValueError(f'alert() works only in trials; this task is a "{self.info.task_type}"')
        trial = self.info.trial
        self._session.post(
            "/api/v1/webhooks/custom",
            {
                "data": {
                    "title": title or "",
                    "description": description or "",
                    "level": _ALERT_LEVELS.get(level or "info", "LOG_LEVEL_INFO"),
                },
                "experimentId": trial.experiment_id,
                "trialId": trial.trial_id,
            },
        )


def init(
    *,
    distributed: DistributedContext | None = None,
    checkpoint_storage: str | dict[str, Any] | None = None,
    preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
    tensorboard_mode: TensorboardMode = TensorboardMode.AUTO,
) -> Context:
    """Builds the context of this process; use it as `with core.init() as context`.

    - `distributed`: required for a task of several slots.
    - `checkpoint_storage`: where checkpoints go instead of the configured place: a path, or the map of
      the configuration except for type `shared_fs`.
    - `preempt_mode`, `tensorboard_mode`: see there.

    Off-cluster nothing is sent; checkpoints go to the user's data directory unless configured otherwise.
    """
    info = _info.get_cluster_info()
    if info is None:
        return _off_cluster(distributed, checkpoint_storage, preempt_mode)
    if distributed is None and (len(info.container_addrs) > 1 or len(info.slot_ids) > 1):
        containers = len(info.container_addrs)
        raise ValueError(
            f"this task has {sum(info.container_slot_counts)} slots in {containers} "
            f"{'container' if containers == 1 else 'containers'}; core.init() needs a DistributedContext "
            "for more than one slot: start the code with the entrypoint "
            "`python3 -m determined.launch.torch_distributed -- python3 SCRIPT`, and call "
            "core.init(distributed=core.DistributedContext.from_torch_distributed()) in it, see "
            "docs/distributed-training.md"
        )
    _give_warnings_a_level()
    session = session_of_task(info)
    distributed = distributed or DummyDistributedContext()
    _print_stacks_on_sigusr1()
    _stacks.offer()
    if info.task_type == "TRIAL":
        return _trial(info, session, distributed, checkpoint_storage, preempt_mode, tensorboard_mode)
    # Only trials have metrics and checkpoints that the master knows of.
    storage = storage_from_argument(checkpoint_storage) or default_storage()
    preempt: PreemptContext = DummyPreemptContext(distributed, preempt_mode)
    if info.task_type in ("GENERIC", "COMMAND"):
        preempt = PreemptWhenAskedContext(session, info.allocation_id, distributed, preempt_mode)
    return Context(
        distributed=distributed,
        checkpoint=DummyCheckpointContext(distributed, storage),
        preempt=preempt,
        _session=session,
        info=info,
    )


def _off_cluster(
    distributed: DistributedContext | None,
    checkpoint_storage: str | dict[str, Any] | None,
    preempt_mode: PreemptMode,
) -> Context:
    distributed = distributed or DummyDistributedContext()
    storage = storage_from_argument(checkpoint_storage) or default_storage()
    _print_stacks_on_sigusr1()
    return Context(
        distributed=distributed,
        checkpoint=DummyCheckpointContext(distributed, storage),
        preempt=DummyPreemptContext(distributed, preempt_mode),
        train=DummyTrainContext(),
        searcher=DummySearcherContext(distributed),
        profiler=DummyProfilerContext(),
    )


def _trial(
    info: _info.ClusterInfo,
    session: MasterSession,
    distributed: DistributedContext,
    checkpoint_storage: str | dict[str, Any] | None,
    preempt_mode: PreemptMode,
    tensorboard_mode: TensorboardMode,
) -> Context:
    trial = info.trial
    config = trial._config  # pyright: ignore[reportPrivateUsage]
    configured: Mapping[str, Any] | None = config.get("checkpoint_storage")
    if configured is None:
        raise errors.InvalidTaskInfo("the experiment configuration of this task has no checkpoint_storage")
    storage = storage_from_argument(checkpoint_storage) or storage_from_config(
        configured, container_path=SHARED_FS_CONTAINER_PATH
    )
    tensorboard_manager = _tensorboard_manager(info, configured, tensorboard_mode)
    metrics = MetricsContext(session, trial.trial_id, trial._trial_run_id)  # pyright: ignore[reportPrivateUsage]
    max_length = parse_max_length(config)
    storage_used: Any = checkpoint_storage if checkpoint_storage is not None else configured
    if isinstance(storage_used, str):
        storage_used = storage_config_from_string(storage_used)
    # Registers where this run's checkpoints are; their reports refer to it.
    storage_id = (
        session.post("/api/v1/runs/start", {"runId": trial.trial_id, "checkpointStorage": storage_used})
        .object()
        .get("storageId")
    )
    checkpoint = CheckpointContext(
        distributed,
        storage,
        session,
        info.task_id,
        info.allocation_id,
        tensorboard_mode,
        tensorboard_manager,
        storage_id,
    )
    checkpoint._follow(metrics)  # pyright: ignore[reportPrivateUsage]
    context = Context(
        distributed=distributed,
        checkpoint=checkpoint,
        preempt=PreemptContext(session, info.allocation_id, distributed, preempt_mode),
        train=TrainContext(
            session,
            trial.trial_id,
            trial.experiment_id,
            metrics,
            distributed,
            tensorboard_mode,
            tensorboard_manager,
            ScalarWriter(tensorboard_manager) if tensorboard_mode is TensorboardMode.AUTO else None,
        ),
        searcher=(
            SearcherContext(session, distributed, trial.trial_id, max_length, parse_unit(config))
            if max_length
            else None
        ),
        experimental=ExperimentalCoreContext(session, trial.trial_id),
        profiler=ProfilerContext._of_trial(
            info.agent_id, metrics, distributed, measured=_is_measured(config)
        ),
        info=info,
        _metrics=metrics,
        _tensorboard_manager=tensorboard_manager,
        _session=session,
    )
    context._send_all_at_exit()  # pyright: ignore[reportPrivateUsage]
    return context


def _is_measured(config: Mapping[str, Any]) -> bool:
    """Whether a supervisor measures the machines of a trial with this configuration."""
    profiling = config.get("profiling")
    return isinstance(profiling, Mapping) and cast("Mapping[str, Any]", profiling).get("enabled") is True


def _tensorboard_manager(
    info: _info.ClusterInfo, configured: Mapping[str, Any], mode: TensorboardMode
) -> TensorboardManager:
    base = directory_from_config(configured, container_path=SHARED_FS_CONTAINER_PATH)
    trial = info.trial
    target = None
    common: list[pathlib.Path] = []
    if base is not None:
        experiments = pathlib.Path(base, info.cluster_id, "tensorboard", "experiment")
        target = experiments / str(trial.experiment_id) / "trial" / str(trial.trial_id)
        common = [*reversed(experiments.parents[:3]), experiments]
    # The name that the task's preparation links to /tmp/tensorboard.
    local = pathlib.Path("/tmp", f"tensorboard-{info.allocation_id}-0")
    return TensorboardManager(local, target, auto=mode is TensorboardMode.AUTO, common=common)


def _print_stacks_on_sigusr1() -> None:
    """Lets `kill -USR1` show where a training hangs: prints the stacks of all threads to stderr."""
    if not hasattr(signal, "SIGUSR1") or threading.current_thread() is not threading.main_thread():
        return
    previous = signal.getsignal(signal.SIGUSR1)
    if getattr(previous, "_determined_stacks", False):
        return

    def handler(number: int, frame: types.FrameType | None) -> None:
        import faulthandler

        # stderr may be replaced by something without a file descriptor.
        with contextlib.suppress(ValueError, OSError, AttributeError):
            faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        if callable(previous):
            previous(number, frame)

    handler._determined_stacks = True  # type: ignore[attr-defined]
    signal.signal(signal.SIGUSR1, handler)


# That of the platform's other programs; by it the task's log knows the level of a line.
_WARNING_FORMAT = "%(levelname)s: [%(process)d] %(name)s: %(message)s"


class _LastResort(logging.StreamHandler):  # type: ignore[type-arg]
    """Prints what no other handler prints, as `logging.lastResort`, which prints the bare message."""

    def filter(self, record: logging.LogRecord) -> bool | logging.LogRecord:
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return False
            logger = logger.parent if logger.propagate else None
        return super().filter(record)


def _give_warnings_a_level() -> None:
    """Has warnings and errors begin with their level, unless the program configures logging, also later."""
    logger = logging.getLogger("determined")
    if any(isinstance(handler, _LastResort) for handler in logger.handlers):
        return
    handler = _LastResort()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter(_WARNING_FORMAT))
    logger.addHandler(handler)
