"""Checkpoints that several processes store together: who stores which file, and what must not differ."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

__all__ = ["Conflict", "contested", "digest", "merged_metadata", "merged_resources", "upload_ranks"]

#: A name with the ranks that have something of that name.
Conflict = dict[str, list[int]]


def contested(resources: Sequence[Mapping[str, int]]) -> Conflict:
    """Names that more than one rank has, except for directories that all of them have as directories.

    `resources` are the files of each rank with their sizes, directories with a slash at the end.
    """
    ranks: Conflict = {}
    files: set[str] = set()
    for rank, names in enumerate(resources):
        for name in names:
            ranks.setdefault(name.rstrip("/"), []).append(rank)
            if not name.endswith("/"):
                files.add(name)
    return {name: of for name, of in sorted(ranks.items()) if name in files and len(of) > 1}


def digest(directory: str, names: Mapping[str, Any], own: Mapping[str, int]) -> dict[str, str]:
    """What identifies this rank's content of contested names; a directory is like no file."""
    import hashlib  # Slow to import, and needed only where names are contested.

    found: dict[str, str] = {}
    for name in names:
        if name in own:
            hasher = hashlib.sha256()
            with open(os.path.join(directory, name), "rb") as file:
                while piece := file.read(1 << 20):
                    hasher.update(piece)
            found[name] = hasher.hexdigest()
        elif f"{name}/" in own:
            found[name] = "a directory"
    return found


def upload_ranks(conflicts: Conflict, digests: Sequence[Mapping[str, str]]) -> dict[str, int]:
    """Which rank stores each contested name: the lowest one, if all have the same content.

    Raises RuntimeError that names those that differ.
    """
    differing = {
        name: ranks
        for name, ranks in conflicts.items()
        if len({digests[rank].get(name) for rank in ranks}) > 1
    }
    if differing:
        raise RuntimeError(_refusal("files", differing))
    return {name: min(ranks) for name, ranks in conflicts.items()}


def merged_resources(resources: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The files of all ranks."""
    return {name: size for names in resources for name, size in names.items()}


def merged_metadata(all_metadata: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One map of the maps of all ranks, merged key by key; RuntimeError where two ranks give different
    values.
    """
    conflicts: Conflict = {}
    origin: dict[str, list[int]] = {}
    merged: dict[str, Any] = {}
    for rank, metadata in enumerate(all_metadata):
        _merge(merged, metadata, rank, "", origin, conflicts)
    if conflicts:
        raise RuntimeError(_refusal("metadata", conflicts))
    return merged


def _merge(
    into: dict[str, Any],
    metadata: Mapping[str, Any],
    rank: int,
    above: str,
    origin: dict[str, list[int]],
    conflicts: Conflict,
) -> None:
    for key, value in metadata.items():
        path = f"{above}/{key}"
        if key not in into:
            into[key] = value
            if isinstance(value, dict):
                into[key] = {}
                _merge(into[key], cast("dict[str, Any]", value), rank, path, origin, conflicts)
        elif isinstance(into[key], dict) and isinstance(value, dict):
            _merge(into[key], cast("dict[str, Any]", value), rank, path, origin, conflicts)
        # NaN is the same as NaN here, and values that cannot be compared may still read the same.
        elif repr(into[key]) != repr(value) and not _equal(into[key], value):
            conflicts.setdefault(path, list(origin.get(path, []))).append(rank)
        origin.setdefault(path, []).append(rank)


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except ValueError:
        # Arrays compare each element.
        return False


def _refusal(what: str, conflicts: Conflict) -> str:
    lines = [f"    {name}: ranks {', '.join(map(str, ranks))}" for name, ranks in sorted(conflicts.items())]
    return (
        f"the ranks of a sharded checkpoint must not give different {what} of one name; nothing was stored:\n"
        + "\n".join(lines)
    )
