"""Where checkpoints are kept: a directory that this process can write to.

`shared_fs` and `directory` are both that; cloud storage is refused when it is first used, so that a
script which stores no checkpoint still runs on a cluster whose default is a bucket.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import posixpath
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, Protocol

from determined import errors

__all__ = [
    "DirectoryStorage",
    "Selector",
    "Storage",
    "UnavailableStorage",
    "default_storage",
    "list_directory",
    "storage_config_from_string",
    "storage_from_argument",
    "storage_from_config",
]

logger = logging.getLogger("determined.core")

#: Where the host path of `shared_fs` is mounted in every task.
SHARED_FS_CONTAINER_PATH = "/determined_shared_fs"

#: Given a path relative to the checkpoint, directories with a slash at the end, whether to take it.
#: The directories above a chosen path are made in any case.
Selector = Callable[[str], bool]


#: Mode of directories that tasks of all users make theirs in, as in `/tmp`: what is another user's cannot
#: be removed or renamed there, except by the directory's owner.
COMMON_MODE = 0o1777


class Storage(Protocol):
    """What checkpoint storage can do. A storage id names one checkpoint."""

    def pre_store_path(self, storage_id: str) -> pathlib.Path:
        """Makes the directory to write a new checkpoint to."""
        ...

    def upload(self, source: str, storage_id: str, selector: Selector | None) -> None:
        """Copies a directory into storage."""
        ...

    def download(self, storage_id: str, target: str, selector: Selector | None) -> None:
        """Copies a checkpoint into a directory, made if missing."""
        ...

    def restore_path(self, storage_id: str) -> pathlib.Path:
        """A directory with the files of a checkpoint."""
        ...

    def delete(self, storage_id: str) -> None:
        """Removes a checkpoint; one that does not exist is removed already."""
        ...


class DirectoryStorage:
    """One directory per checkpoint below a base directory."""

    def __init__(self, base_path: str, *, kind: str = "directory", shared: bool = True) -> None:
        if not base_path:
            raise ValueError("the path of checkpoint storage must not be empty")
        #: Directory that holds the checkpoints; made at the first use.
        self.base_path = base_path
        self._kind = kind
        # Whether tasks of other users write here too.
        self._shared = shared

    def pre_store_path(self, storage_id: str) -> pathlib.Path:
        # What is above the base is none of ours: made if missing, and open to no other user.
        os.makedirs(os.path.dirname(os.path.abspath(self.base_path)), exist_ok=True)
        if not os.path.isdir(self.base_path):
            # Unless an administrator has made it.
            with contextlib.suppress(FileExistsError):
                if self._shared:
                    make_common(self.base_path)
                else:
                    os.mkdir(self.base_path)
        path = self._path(storage_id)
        os.makedirs(path, exist_ok=True)
        return pathlib.Path(path)

    def upload(self, source: str, storage_id: str, selector: Selector | None) -> None:
        copy_tree(source, os.fspath(self.pre_store_path(storage_id)), selector)

    def download(self, storage_id: str, target: str, selector: Selector | None) -> None:
        copy_tree(os.fspath(self.restore_path(storage_id)), target, selector)

    def restore_path(self, storage_id: str) -> pathlib.Path:
        path = self._path(storage_id)
        if not os.path.isdir(path):
            hint = "" if os.path.isdir(self.base_path) else "; the storage directory itself does not exist"
            raise errors.CheckpointNotFound(
                f"checkpoint {storage_id!r} is not in {self._kind} storage {self.base_path!r}{hint}"
            )
        return pathlib.Path(path)

    def delete(self, storage_id: str) -> None:
        path = self._path(storage_id)
        if not os.path.exists(path):
            logger.info("checkpoint %s is not in %s, nothing to delete", storage_id, self.base_path)
            return
        remove_tree(path)

    def _path(self, storage_id: str) -> str:
        # An empty or dotted id would reach the other checkpoints: delete("") must not empty the storage.
        if storage_id in ("", ".", "..") or "/" in storage_id or os.sep in storage_id:
            raise ValueError(f"{storage_id!r} is not the id of a checkpoint")
        return os.path.join(self.base_path, storage_id)


class UnavailableStorage:
    """Storage that this package cannot use; every use is an error that explains it."""

    def __init__(self, kind: str) -> None:
        self._message = (
            f'checkpoint storage of type "{kind}" is not available in this package; available are '
            '"shared_fs" and "directory" (the PyPI package determined has the others)'
        )
        logger.warning("%s; the first checkpoint operation will fail", self._message)

    def _fail(self) -> errors.UnsupportedStorage:
        return errors.UnsupportedStorage(self._message)

    def pre_store_path(self, storage_id: str) -> pathlib.Path:
        raise self._fail()

    def upload(self, source: str, storage_id: str, selector: Selector | None) -> None:
        raise self._fail()

    def download(self, storage_id: str, target: str, selector: Selector | None) -> None:
        raise self._fail()

    def restore_path(self, storage_id: str) -> pathlib.Path:
        raise self._fail()

    def delete(self, storage_id: str) -> None:
        raise self._fail()


def storage_from_argument(storage: str | dict[str, Any] | None) -> Storage | None:
    """The `checkpoint_storage` argument of `core.init()`; None for None."""
    if storage is None:
        return None
    if isinstance(storage, str):
        config = storage_config_from_string(storage)
        if config["type"] == "shared_fs":
            return DirectoryStorage(config["host_path"], kind="shared_fs")
        return UnavailableStorage(config["type"])
    if isinstance(storage, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
        if storage.get("type") == "shared_fs":
            # The mount of the host path is decided before the task starts, too early for an argument.
            raise ValueError(
                'checkpoint_storage of type "shared_fs" cannot be given as a map; '
                "give its path as a string, or set it in the experiment configuration"
            )
        return storage_from_config(storage, container_path=SHARED_FS_CONTAINER_PATH)
    raise TypeError(f"checkpoint_storage must be a string, a map or None, not {type(storage).__name__}")


def storage_config_from_string(shortcut: str) -> dict[str, Any]:
    """A path, a `file:` URL or an `s3:` or `gs:` URL as the configuration that it is short for."""
    from urllib.parse import urlparse

    parts = urlparse(shortcut)
    if parts.params or parts.query or parts.fragment:
        raise ValueError(f"checkpoint_storage {shortcut!r} must not have parameters, a query or a fragment")
    scheme = parts.scheme.lower()
    if scheme in ("", "file"):
        if parts.netloc:
            raise ValueError(f"checkpoint_storage {shortcut!r} must not name a host")
        return {"type": "shared_fs", "host_path": parts.path}
    if scheme in ("s3", "gs"):
        kind = "s3" if scheme == "s3" else "gcs"
        return {"type": kind, "bucket": parts.netloc, "prefix": parts.path.lstrip("/")}
    raise ValueError(
        f'checkpoint_storage {shortcut!r} has scheme "{parts.scheme}"; '
        'allowed are a path, "file", "s3" and "gs"'
    )


def storage_from_config(config: Mapping[str, Any], *, container_path: str) -> Storage:
    """The `checkpoint_storage` section of an experiment configuration.

    `container_path` is where the host path of `shared_fs` is mounted in this task.
    """
    kind = config.get("type")
    if not isinstance(kind, str):
        raise ValueError(f"checkpoint_storage must have a type that is a string, not {kind!r}")
    base_path = directory_from_config(config, container_path=container_path)
    if base_path is not None:
        return DirectoryStorage(base_path, kind=kind)
    if kind in ("s3", "gcs", "azure"):
        return UnavailableStorage(kind)
    raise TypeError(
        f"unknown checkpoint_storage type {kind!r}; known are shared_fs, directory, s3, gcs, azure"
    )


def directory_from_config(config: Mapping[str, Any], *, container_path: str) -> str | None:
    """The base directory of `shared_fs` and `directory` storage as this task sees it; None for others."""
    if config.get("type") == "directory":
        path = config.get("container_path")
        if not isinstance(path, str) or not path:
            raise ValueError('checkpoint_storage of type "directory" must have a container_path')
        return path
    if config.get("type") != "shared_fs":
        return None
    host_path = config.get("host_path")
    if not isinstance(host_path, str) or not posixpath.isabs(host_path):
        raise ValueError(f"checkpoint_storage.host_path must be an absolute path, not {host_path!r}")
    # The two older names of storage_path.
    relative = config.get("storage_path") or config.get("tensorboard_path") or config.get("checkpoint_path")
    below = "."
    if relative:
        # join() lets an absolute storage_path win, which may then be below the host path.
        whole = posixpath.normpath(posixpath.join(host_path, relative))
        below = posixpath.relpath(whole, host_path)
        if below == ".." or below.startswith("../"):
            raise ValueError(
                f"checkpoint_storage.storage_path {relative!r} must be under host_path {host_path!r}"
            )
    # Without the mount (a task run straight on the host) the host path itself exists.
    root = container_path
    if not os.path.isdir(container_path) and os.path.isdir(host_path):
        root = host_path
    return os.path.normpath(os.path.join(root, below))


def default_storage() -> DirectoryStorage:
    """Where checkpoints go off-cluster: the user's data directory."""
    home = os.path.expanduser("~")
    if sys.platform == "darwin":
        base = os.path.join(home, "Library", "Application Support", "determined")
    elif sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA") or os.path.join(home, "AppData", "Local")
        base = os.path.join(local, "determined", "determined")
    else:
        data = os.environ.get("XDG_DATA_HOME") or os.path.join(home, ".local", "share")
        base = os.path.join(data, "determined")
    logger.info("no checkpoint storage given; checkpoints go to %s", base)
    return DirectoryStorage(base, shared=False)


def make_common(path: str | os.PathLike[str]) -> None:
    """Makes a directory that is open to all users.

    `FileExistsError` if it is there: it is another task's or an administrator's.
    """
    os.mkdir(path)
    if sys.platform == "win32":
        return
    # Not by the umask, which is that of all threads of the user's code; and never that of what another
    # user has put in its place.
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(opened).st_uid == os.geteuid():
            os.fchmod(opened, COMMON_MODE)
    finally:
        os.close(opened)


def list_directory(root: str | os.PathLike[str]) -> dict[str, int]:
    """Sizes in bytes of all files below `root`, links followed.

    Directories are in it with a slash at the end and size 0.
    """
    found: dict[str, int] = {}
    for current, directories, files in _walk(root):
        for name in directories:
            found[_relative(os.path.join(current, name), root) + "/"] = 0
        for name in files:
            path = os.path.join(current, name)
            found[_relative(path, root)] = os.path.getsize(path)
    return found


def copy_tree(source: str, target: str, selector: Selector | None) -> None:
    """Copies what `selector` takes, links followed. `target` is made if missing."""
    import shutil

    os.makedirs(target, exist_ok=True)
    for current, directories, files in _walk(source):
        below = os.path.relpath(current, source)
        for name in directories:
            if selector is None or selector(_relative(os.path.join(current, name), source) + "/"):
                os.makedirs(os.path.join(target, below, name), exist_ok=True)
        for name in files:
            path = os.path.join(current, name)
            if selector is None or selector(_relative(path, source)):
                os.makedirs(os.path.join(target, below), exist_ok=True)
                shutil.copy2(path, os.path.join(target, below, name))


def remove_tree(path: str) -> None:
    """Removes a directory, patient with network file systems that list what is already gone."""
    import errno
    import shutil
    import time

    for attempt in range(5):
        try:
            shutil.rmtree(path)
            return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or attempt == 4:
                raise
            time.sleep(0.02 * 2**attempt)


@contextlib.contextmanager
def removed_on_error(storage: Storage, storage_id: str) -> Generator[None, None, None]:
    """Takes a half-written checkpoint away again: unreported, it would never be collected."""
    try:
        yield
    except BaseException:
        try:
            storage.delete(storage_id)
        except Exception as error:
            # The error that is on its way matters more than this one.
            logger.warning("could not remove the unfinished checkpoint %s: %s", storage_id, error)
        raise


def _walk(root: str | os.PathLike[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    """`os.walk` that follows links and raises for whatever it cannot read, `root` included.

    Links to nothing are left out with a warning: they are no reason to lose a checkpoint.
    """

    def fail(error: OSError) -> None:
        raise error

    for current, directories, files in os.walk(os.fspath(root), onerror=fail, followlinks=True):
        there: list[str] = []
        for name in files:
            path = os.path.join(current, name)
            if os.path.islink(path) and not os.path.exists(path):
                logger.warning("%s is a link to nothing and is not stored", path)
            else:
                there.append(name)
        yield current, directories, there


def _relative(path: str, root: str | os.PathLike[str]) -> str:
    return os.path.relpath(path, root).replace(os.sep, "/")
