"""Checkpoints: write, report, read back, delete."""

from __future__ import annotations

import contextlib
import enum
import json
import logging
import os
import pathlib
import time
from collections.abc import Generator
from typing import Any

from determined import errors
from determined._core._distributed import DistributedContext, agree
from determined._core._metrics import MetricsContext
from determined._core._shards import contested, digest, merged_metadata, merged_resources, upload_ranks
from determined._core._tensorboard import TensorboardManager, TensorboardMode
from determined._json import jsonable
from determined._session import MasterSession
from determined._storage import Selector, Storage, list_directory, removed_on_error
from determined._timestamp import rfc3339

__all__ = ["CheckpointContext", "DownloadMode", "DummyCheckpointContext"]

logger = logging.getLogger("determined.core")

METADATA_FILE = "metadata.json"


class DownloadMode(enum.Enum):
    """Who downloads when several processes share a machine. Both are the same with one process.

    - `LocalWorkersShareDownload`: all processes of a machine call it in step, and one of them copies for all.
    - `NoSharedDownload`: each process copies for itself, and they need not call it in step.
    """

    LocalWorkersShareDownload = "LOCAL_WORKERS_SHARE_DOWNLOAD"
    NoSharedDownload = "NO_SHARED_DOWNLOAD"


class CheckpointContext:
    """Checkpoints of the running trial. A storage id is the checkpoint's UUID."""

    def __init__(
        self,
        dist: DistributedContext,
        storage_manager: Storage,
        session: MasterSession,
        task_id: str,
        allocation_id: str | None,
        tbd_sync_mode: TensorboardMode,
        tensorboard_manager: TensorboardManager | None,
        storage_backend_id: int | None,
    ) -> None:
        if tbd_sync_mode is not TensorboardMode.MANUAL and tensorboard_manager is None:
            raise ValueError("TensorboardMode.AUTO needs a tensorboard manager")
        self._dist = dist
        self._storage_manager = storage_manager
        self._session = session
        self._task_id = task_id
        self._allocation_id = allocation_id
        self._tensorboard_mode = tbd_sync_mode
        self._tensorboard_manager = tensorboard_manager
        self._storage_backend_id = storage_backend_id
        self._metrics: MetricsContext | None = None

    def _follow(self, metrics: MetricsContext) -> None:
        """Reports each checkpoint behind the metrics that were reported before it."""
        self._metrics = metrics

    def upload(
        self,
        ckpt_dir: str | os.PathLike[str] | None,
        metadata: dict[str, Any] | None = None,
        *,
        shard: bool = False,
        selector: Selector | None = None,
    ) -> str:
        """Stores the contents of `ckpt_dir` as a new checkpoint and returns its storage id.

        `metadata` must have `steps_completed`, a number; it is also written to `metadata.json` in
        `ckpt_dir`. `selector` gets paths relative to `ckpt_dir`, directories with a slash at the end.
        With `shard=True` all processes call it in step, each with its part or with None, and the checkpoint
        has
        what all of them gave: files and metadata of one name must be the same. It is reported once all are
        stored.
        """
        if shard:
            return self._upload_sharded(None if ckpt_dir is None else os.fspath(ckpt_dir), metadata, selector)
        if self._dist.rank != 0:
            raise RuntimeError(f"upload(shard=False) was called by rank {self._dist.rank}; only rank 0 may")
        if ckpt_dir is None:
            if selector is not None:
                raise RuntimeError("upload() with a selector needs a ckpt_dir")
            raise RuntimeError("upload(ckpt_dir=None) of all processes has nothing to store; give a ckpt_dir")
        self._check_metadata(metadata)
        storage_id = _new_storage_id()
        source = os.fspath(ckpt_dir)
        # Before the listing, so that it is stored and counted like the rest.
        _write_metadata(source, metadata)
        resources = list_directory(source)
        if selector is not None:
            # A selector also decides about metadata.json, except for sharded checkpoints: so the
            # PyPI package does it.
            resources = {path: size for path, size in resources.items() if selector(path)}
        with removed_on_error(self._storage_manager, storage_id):
            self._storage_manager.upload(
                source, storage_id, None if selector is None else resources.__contains__
            )
        self._report_checkpoint(storage_id, resources, metadata)
        return storage_id

    def _upload_sharded(
        self, source: str | None, metadata: dict[str, Any] | None, selector: Selector | None
    ) -> str:
        dist = self._dist
        storage_id: str = dist.broadcast(_new_storage_id() if dist.rank == 0 else None)
        sources = agree(dist, "looking at its part of a checkpoint", lambda: _look(dist, source, selector))
        if all(uid is None for uid, _ in sources):
            raise RuntimeError(
                "upload(ckpt_dir=None, shard=True) of all processes has nothing to store; give a ckpt_dir"
            )
        # Without a selector one directory is stored once, however many processes of a machine name it.
        uids = [uid for uid, _ in sources]
        stores = [
            uid is not None and (selects or uids.index(uid) == rank)
            for rank, (uid, selects) in enumerate(sources)
        ]
        own = stores[dist.rank]
        resources = agree(
            dist, "listing its part of a checkpoint", lambda: _listed(source, selector) if own else {}
        )
        conflicts = contested(resources)
        digests = agree(
            dist,
            "reading files that several ranks have",
            lambda: digest(source or "", conflicts, resources[dist.rank]),
        )
        by = upload_ranks(conflicts, digests)
        merged = merged_metadata(dist.allgather(dict(metadata or {})))
        self._check_metadata(merged)
        writer = stores.index(True)
        chosen = {name for name in resources[dist.rank] if by.get(name, dist.rank) == dist.rank}
        with self._removed_if_any_fails(storage_id):
            sizes = agree(
                dist,
                "storing its part of a checkpoint",
                lambda: self._store_part(source, storage_id, chosen, merged if dist.rank == writer else None),
            )
        files = {**merged_resources(resources), METADATA_FILE: sizes[writer]}
        agree(
            dist,
            "reporting a checkpoint",
            lambda: self._report_checkpoint(storage_id, files, merged) if dist.rank == 0 else None,
        )
        return storage_id

    def _store_part(
        self, source: str | None, storage_id: str, chosen: set[str], metadata: dict[str, Any] | None
    ) -> int:
        """Stores this process' part, with the metadata if it is to; gives the size of the file of these."""
        size = 0
        if source is not None and metadata is not None:
            _write_metadata(source, metadata)
            size = os.path.getsize(os.path.join(source, METADATA_FILE))
            chosen = {*chosen, METADATA_FILE}
        elif METADATA_FILE in chosen:
            chosen = chosen - {METADATA_FILE}
        if source is not None and chosen:
            self._storage_manager.upload(source, storage_id, chosen.__contains__)
        return size

    @contextlib.contextmanager
    def _removed_if_any_fails(self, storage_id: str) -> Generator[None, None, None]:
        """Takes a checkpoint away that not all could store; on each machine one process does."""
        try:
            yield
        except BaseException:
            if self._dist.local_rank == 0:
                with contextlib.suppress(Exception):
                    self._storage_manager.delete(storage_id)
            raise

    @contextlib.contextmanager
    def store_path(
        self, metadata: dict[str, Any] | None = None, *, shard: bool = False
    ) -> Generator[tuple[pathlib.Path, str], None, None]:
        """Gives a directory to write a new checkpoint to, and its storage id.

        At the end of the `with` block the checkpoint is complete and reported, behind every metric that
        was reported before it: a run that goes on from it misses none. `metadata` may be
        filled until then and must have `steps_completed`. If the block raises, the directory is removed.
        With `shard=True` all processes enter it in step and write what is theirs to the same directory, each
        under names of its own, and metadata of one name must be the same.
        """
        if shard:
            with self._store_path_sharded(metadata) as found:
                yield found
            return
        if self._dist.rank != 0:
            raise RuntimeError(
                f"store_path(shard=False) was called by rank {self._dist.rank}; only rank 0 may"
            )
        storage_id = _new_storage_id()
        path = self._storage_manager.pre_store_path(storage_id)
        with removed_on_error(self._storage_manager, storage_id):
            yield path, storage_id
            _write_metadata(path, metadata)
            resources = list_directory(path)
        # Outside: what was written stays if only the report fails.
        self._report_checkpoint(storage_id, resources, metadata)

    @contextlib.contextmanager
    def _store_path_sharded(
        self, metadata: dict[str, Any] | None
    ) -> Generator[tuple[pathlib.Path, str], None, None]:
        dist = self._dist
        storage_id: str = dist.broadcast(_new_storage_id() if dist.rank == 0 else None)
        with self._removed_if_any_fails(storage_id):
            agree(
                dist,
                "making the directory of a checkpoint",
                lambda: self._storage_manager.pre_store_path(storage_id),
            )
            path = self._storage_manager.pre_store_path(storage_id)
            error: Exception | None = None
            try:
                yield path, storage_id
            except Exception as own:
                error = own
            agree(dist, "writing its part of a checkpoint", lambda: _raise(error))
            merged = merged_metadata(dist.allgather(dict(metadata or {})))
            self._check_metadata(merged)
            agree(
                dist,
                "writing the metadata of a checkpoint",
                lambda: _write_metadata(path, merged) if dist.rank == 0 else None,
            )
            # Storage that machines do not share has other files on each.
            listed = agree(
                dist, "listing a checkpoint", lambda: list_directory(path) if dist.local_rank == 0 else {}
            )
        agree(
            dist,
            "reporting a checkpoint",
            lambda: (
                self._report_checkpoint(storage_id, merged_resources(listed), merged)
                if dist.rank == 0
                else None
            ),
        )

    def download(
        self,
        storage_id: str,
        ckpt_dir: str | os.PathLike[str],
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Selector | None = None,
    ) -> None:
        """Copies a checkpoint into `ckpt_dir`, made if missing.

        `selector` gets paths relative to the checkpoint, directories with a slash at the end.
        Raises `errors.CheckpointNotFound`.
        """
        if DownloadMode(download_mode) is DownloadMode.NoSharedDownload or self._dist.local_size < 2:
            self._storage_manager.download(storage_id, os.fspath(ckpt_dir), selector)
            return
        # One process of each machine copies what any of them wants.
        wanted: set[str] | None = None
        try:
            names = list_directory(self._storage_manager.restore_path(storage_id))
            if selector is not None:
                wanted = {name for name in names if selector(name)}
            outcome: Exception | None = None
        except Exception as error:
            outcome = error
        chosen = self._dist.allgather_local((None if outcome is None else str(outcome), wanted))
        if outcome is not None:
            raise outcome
        self._copy_for_machine(storage_id, os.fspath(ckpt_dir), chosen)

    def _copy_for_machine(
        self, storage_id: str, target: str, chosen: list[tuple[str | None, set[str] | None]]
    ) -> None:
        for local_rank, (problem, _) in enumerate(chosen):
            if problem is not None:
                raise errors.DistributedError(
                    f"local rank {local_rank} failed while choosing files of checkpoint {storage_id}: "
                    f"{problem}"
                )
        everything = any(wanted is None for _, wanted in chosen)
        union: set[str] = set().union(*(wanted or set() for _, wanted in chosen))
        outcome: Exception | None = None
        if self._dist.local_rank == 0:
            try:
                self._storage_manager.download(storage_id, target, None if everything else union.__contains__)
            except Exception as error:
                outcome = error
        problem = self._dist.broadcast_local(None if outcome is None else str(outcome))
        if outcome is not None:
            raise outcome
        if problem is not None:
            raise errors.DistributedError(
                f"local rank 0 failed while copying checkpoint {storage_id}: {problem}"
            )

    @contextlib.contextmanager
    def restore_path(
        self,
        storage_id: str,
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Selector | None = None,
    ) -> Generator[pathlib.Path, None, None]:
        """Gives a directory with a checkpoint's files. Do not write to it: it may be the original.

        Raises `errors.CheckpointNotFound`.
        """
        DownloadMode(download_mode)
        if selector is not None:
            logger.warning("restore_path(): the selector is not used, the storage gives access to all files")
        yield self._storage_manager.restore_path(storage_id)

    def get_metadata(self, storage_id: str) -> dict[str, Any]:
        """The metadata the master has for a checkpoint; empty if it has none."""
        answer = self._session.get(f"/api/v1/checkpoints/{storage_id}").object()
        checkpoint: dict[str, Any] = answer.get("checkpoint") or {}
        return checkpoint.get("metadata") or {}

    def delete(self, storage_id: str) -> None:
        """Removes a checkpoint from storage and reports it to the master."""
        self._storage_manager.delete(storage_id)
        self._report_checkpoint_deleted(storage_id)

    def _check_metadata(self, metadata: dict[str, Any] | None) -> None:
        if "steps_completed" not in (metadata or {}):
            raise ValueError("the metadata of a checkpoint must have 'steps_completed', a number")

    def _report_checkpoint(
        self, storage_id: str, resources: dict[str, int], metadata: dict[str, Any] | None
    ) -> None:
        self._check_metadata(metadata)
        # A run that goes on from here does not report again what came before: it must not wait here.
        if self._metrics is not None:
            self._metrics.flush()
        self._session.post(
            "/api/v1/checkpoints",
            {
                "uuid": storage_id,
                "taskId": self._task_id,
                "allocationId": self._allocation_id,
                "metadata": metadata,
                # Sizes are 64-bit, and those are strings on the wire.
                "resources": {path: str(size) for path, size in resources.items()},
                "training": {},
                "reportTime": rfc3339(time.time()),
                "state": "STATE_COMPLETED",
                "storageId": self._storage_backend_id,
            },
        )
        logger.info("reported checkpoint %s", storage_id)
        if self._tensorboard_mode is TensorboardMode.AUTO and self._tensorboard_manager is not None:
            self._tensorboard_manager.sync()

    def _report_checkpoint_deleted(self, storage_id: str) -> None:
        # An inner map that is empty means that no file is left.
        deleted: dict[str, Any] = {"uuid": storage_id, "resources": {"resources": {}}}
        self._session.patch("/api/v1/checkpoints", {"checkpoints": [deleted]})


class DummyCheckpointContext(CheckpointContext):
    """Stores checkpoints without reporting them, for code off-cluster."""

    def __init__(self, dist: DistributedContext, storage_manager: Storage) -> None:
        self._dist = dist
        self._storage_manager = storage_manager

    def get_metadata(self, storage_id: str) -> dict[str, Any]:
        """What was given when the checkpoint was stored, read from its `metadata.json`."""
        path = self._storage_manager.restore_path(storage_id) / METADATA_FILE
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def _check_metadata(self, metadata: dict[str, Any] | None) -> None:
        """Anything goes: only a master needs `steps_completed`."""

    def _report_checkpoint(
        self, storage_id: str, resources: dict[str, int], metadata: dict[str, Any] | None
    ) -> None:
        logger.info("saved checkpoint %s", storage_id)

    def _report_checkpoint_deleted(self, storage_id: str) -> None:
        logger.info("deleted checkpoint %s", storage_id)


def _look(
    dist: DistributedContext, source: str | None, selector: Selector | None
) -> tuple[tuple[int, int, int] | None, bool]:
    """What identifies the directory that a process gives, on whatever machine, and whether it chooses files
    of it.
    """
    if source is None:
        if selector is not None:
            raise RuntimeError("upload() with a selector needs a ckpt_dir")
        return None, False
    found = os.stat(source)
    return (dist.cross_rank, found.st_dev, found.st_ino), selector is not None


def _listed(source: str | None, selector: Selector | None) -> dict[str, int]:
    resources = {} if source is None else list_directory(source)
    # Written anew for all, wherever one was left from before.
    resources.pop(METADATA_FILE, None)
    return {path: size for path, size in resources.items() if selector is None or selector(path)}


def _raise(error: Exception | None) -> None:
    if error is not None:
        raise error


def _new_storage_id() -> str:
    import uuid  # Slow to import, and needed only when there is something to store.

    return str(uuid.uuid4())


def _write_metadata(directory: str | os.PathLike[str], metadata: dict[str, Any] | None) -> None:
    # Non-finite numbers stay Python's own NaN and Infinity here, which Python reads back as numbers;
    # the default is for NumPy's.
    text = json.dumps(metadata or {}, indent=2, default=jsonable)
    pathlib.Path(directory, METADATA_FILE).write_text(text, encoding="utf-8")
