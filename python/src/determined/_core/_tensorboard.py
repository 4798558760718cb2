"""TensorBoard files: written to a local directory, copied to checkpoint storage by one thread."""

from __future__ import annotations

import contextlib
import enum
import logging
import numbers
import os
import pathlib
import queue
import stat
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from determined import errors
from determined._storage import make_common

__all__ = ["ScalarWriter", "TensorboardManager", "TensorboardMode"]

logger = logging.getLogger("determined.core")

#: Least time between two automatic looks for new files, in seconds.
SYNC_PERIOD_S = 1.0

Selector = Callable[[pathlib.Path], bool]
Mangler = Callable[[pathlib.Path, int], pathlib.Path]
#: Number, size in bytes and time of change in nanoseconds of a file.
Stamp = tuple[int, int, int]


class TensorboardMode(enum.Enum):
    """What happens to TensorBoard files.

    - `AUTO`: reported training and validation metrics are written as TensorBoard scalars, and the
      chief's files are copied to checkpoint storage as they appear.
    - `MANUAL`: nothing is written or copied; use `train.upload_tensorboard_files()`.
    """

    AUTO = "AUTO"
    MANUAL = "MANUAL"


class TensorboardManager:
    """Copies files from the local TensorBoard directory to where the cluster's TensorBoards look."""

    def __init__(
        self,
        base_path: pathlib.Path,
        target: pathlib.Path | None,
        *,
        auto: bool,
        common: Sequence[pathlib.Path] = (),
    ) -> None:
        """`target` None: the configured storage is none this package can write to.

        `common`: directories above `target` that tasks of all users share, the highest first.
        """
        #: Directory to write TensorBoard files to; not made until something is written.
        self.base_path = base_path
        self._target = target
        self._common = tuple(common)
        self._auto = auto
        self._looked_at = 0.0
        # What each file was when it was last copied. Comparing a file with itself needs no clock: many
        # file systems stamp coarser than clocks, or by the clock of another host.
        self._copied: dict[pathlib.Path, Stamp] = {}
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(maxsize=1000)
        self._thread: threading.Thread | None = None
        self._closed = False
        # What writes to the directory and has to end before the last copy.
        self._at_end: list[Callable[[], None]] = []
        #: Called when something is added to what has to end.
        self.on_writer: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Starts the copying thread."""
        self._thread = threading.Thread(target=self._run, name="determined-tensorboard", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends what writes, copies what is new (in AUTO mode) and waits for all copies."""
        if self._closed:
            return
        self._closed = True
        thread, self._thread = self._thread, None
        if thread is None:
            self._finish()
            return
        self._jobs.put(self._finish)
        self._jobs.put(None)
        thread.join(10)
        while thread.is_alive():
            logger.info("waiting for TensorBoard files to be copied")
            thread.join(10)

    def at_end(self, job: Callable[[], None]) -> None:
        """Runs `job` at the end, before the last look for what is new."""
        self._at_end.append(job)
        self.on_writer()

    def follow(self, job: Callable[[], None]) -> None:
        """Runs a job that no caller asked for: its errors are logged, and after the end it is left out.

        It runs on the copying thread, or at once before that has started. (Of a context that is never
        entered nothing then waits at the end of the program, where writers of frameworks end first.)
        """
        if self._closed:
            return
        if self._thread is None:
            _logged(job)
        else:
            self._jobs.put(job)

    def submit(self, job: Callable[[], None]) -> None:
        """Runs `job` on the copying thread, after the jobs before it. Its errors are logged.

        Without that thread it runs at once and raises them.
        """
        if self._thread is None:
            job()
        else:
            self._jobs.put(job)

    def sync(self) -> None:
        """Copies new files soon, but looks for them at most once a second."""
        now = time.monotonic()
        if now - self._looked_at < SYNC_PERIOD_S:
            return
        self._looked_at = now
        self.follow(self._copy_new)

    def upload(self, selector: Selector, mangler: Mangler, rank: int) -> None:
        """Copies new files that `selector` takes under the names `mangler` gives.

        Unlike the PyPI package it never skips a call that follows another within a second.
        """
        if self._target is None:
            raise errors.UnsupportedStorage(
                "TensorBoard files can be uploaded only to checkpoint storage of type "
                '"shared_fs" or "directory"'
            )
        target = self._target
        copies = [
            (path, stamp, target / mangler(path.relative_to(self.base_path), rank))
            for path, stamp in self._new_files(selector)
        ]
        self.submit(lambda: self._copy(copies))

    def _finish(self) -> None:
        for job in self._at_end:
            _logged(job)
        if self._auto:
            _logged(self._copy_new)

    def _copy_new(self) -> None:
        if self._target is not None:
            target = self._target
            self._copy(
                [
                    (path, stamp, target / path.relative_to(self.base_path))
                    for path, stamp in self._new_files(None)
                ]
            )

    def _new_files(self, selector: Selector | None) -> list[tuple[pathlib.Path, Stamp]]:
        """Files that are not what they were when they were last copied, in a stable order."""
        found: list[tuple[pathlib.Path, Stamp]] = []
        for path in sorted(self.base_path.rglob("*")):
            stamp = _stamp(path)
            if stamp is None or stamp == self._copied.get(path):
                continue
            if selector is None or selector(path):
                found.append((path, stamp))
        return found

    def _copy(self, copies: list[tuple[pathlib.Path, Stamp, pathlib.Path]]) -> None:
        import shutil

        failure: OSError | None = None
        for source, stamp, target in copies:
            try:
                self._make_parents(target.parent)
                shutil.copy(source, target)
            except OSError as error:
                # One file that cannot be copied must not keep the others from it each time.
                failure = failure or error
                continue
            # Noted after the copy, with what the file was before it: what was written meanwhile, or could
            # not be copied, is copied the next time.
            self._copied[source] = stamp
        if failure is not None:
            raise failure

    def _make_parents(self, directory: pathlib.Path) -> None:
        """Makes what is missing of a directory in the storage, the common part of it open to all users."""
        if self._common:
            # What is above the storage is none of ours, and made as anything else.
            self._common[0].parent.mkdir(parents=True, exist_ok=True)
            for common in self._common:
                with contextlib.suppress(FileExistsError):
                    make_common(common)
        directory.mkdir(parents=True, exist_ok=True)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            _logged(job)


class ScalarWriter:
    """Writes reported metrics as TensorBoard scalars, with the writer of the user's framework.

    Only a framework that the script has imported itself is used; without one nothing is written.
    """

    def __init__(self, manager: TensorboardManager) -> None:
        self._manager = manager
        self._writer: Any = None
        self._unavailable = False

    def on_report(
        self,
        group: str,
        steps_completed: int,
        metrics: Mapping[str, Any],
        batch_metrics: list[dict[str, Any]] | None,
    ) -> None:
        """Writes a report of group `training` or `validation`; others have no scalars."""
        if self._unavailable or group not in ("training", "validation"):
            return
        if self._writer is None and not ("torch" in sys.modules or "tensorboardX" in sys.modules):
            return
        scalars: list[tuple[str, Any, int]] = []
        if group == "training":
            for index, batch in enumerate(batch_metrics or ()):
                step = steps_completed - len(batch_metrics or ()) + index
                scalars.extend((name, value, step) for name, value in batch.items())
            in_batches = {name for name, _, _ in scalars}
            scalars.extend(
                (name, value, steps_completed) for name, value in metrics.items() if name not in in_batches
            )
        else:
            for name, value in metrics.items():
                shown = name if name.startswith("val") else f"val_{name}"
                scalars.append((shown, value, steps_completed))
        self._manager.follow(lambda: self._write(scalars))

    def _write(self, scalars: list[tuple[str, Any, int]]) -> None:
        if self._writer is None:
            self._writer = self._open()
            if self._writer is None:
                self._unavailable = True
                return
        for name, value, step in scalars:
            if isinstance(value, numbers.Number):
                self._writer.add_scalar(f"Determined/{name}", value, step)
        self._writer.flush()

    def _open(self) -> Any:
        import importlib

        # tensorboardX names a file by second and host alone, and empties one that exists: a writer of the
        # user's that is opened in the same second must not meet this one.
        suffix = f".determined-{os.getpid()}-{os.urandom(4).hex()}"
        for framework, module in (
            ("torch", "torch.utils.tensorboard"),
            ("tensorboardX", "tensorboardX"),
        ):
            if framework in sys.modules:
                try:
                    writer = importlib.import_module(module).SummaryWriter(
                        log_dir=os.fspath(self._manager.base_path), filename_suffix=suffix
                    )
                except ImportError as error:
                    logger.info("metrics are not written for TensorBoard: %s", error)
                    continue
                # The writer of tensorboardX hands events to a thread of its own, for which its `flush`
                # does not wait; `close` does.
                self._manager.at_end(writer.close)
                return writer
        return None


def _logged(job: Callable[[], None]) -> None:
    """Runs `job`, and logs its error: TensorBoard is a view of what the master has, training goes on."""
    try:
        job()
    except Exception as error:
        logger.warning("TensorBoard files could not be written or copied: %s", error)


def _stamp(path: pathlib.Path) -> Stamp | None:
    """What changes when a file is written; None for what is no file, or none any more."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
