"""Checkpoints that several processes store together."""

from __future__ import annotations

import json
import pathlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

from determined import core, errors
from determined._core._shards import contested, merged_metadata, upload_ranks
from determined._storage import DirectoryStorage
from test_distributed import together


class Recorded(core.DummyCheckpointContext):
    """Keeps what would be reported."""

    def __init__(self, dist: core.DistributedContext, storage: DirectoryStorage, reports: list[Any]) -> None:
        super().__init__(dist, storage)
        self._reports = reports

    def _report_checkpoint(self, storage_id: str, resources: dict[str, int], metadata: Any) -> None:
        self._reports.append((storage_id, resources, metadata))


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DET_DISTRIBUTED_SECRET", "between the processes of this test")


@pytest.fixture
def storage(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "storage"


def run(
    storage: pathlib.Path,
    work: Callable[[core.CheckpointContext, core.DistributedContext], Any],
    machines: tuple[int, ...] = (2, 2),
) -> tuple[list[Any], list[Any]]:
    reports: list[Any] = []

    def of_rank(dist: core.DistributedContext) -> Any:
        return work(Recorded(dist, DirectoryStorage(str(storage)), reports), dist)

    return together(of_rank, machines=machines), reports


def content(directory: pathlib.Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): path.read_text() for path in directory.rglob("*") if path.is_file()
    }


def part(tmp_path: pathlib.Path, rank: int, **files: str) -> pathlib.Path:
    directory = tmp_path / f"part-{rank}"
    for name, text in files.items():
        path = directory / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    directory.mkdir(exist_ok=True)
    return directory


def test_the_parts_of_all_ranks_become_one_checkpoint(tmp_path: pathlib.Path, storage: pathlib.Path) -> None:
    def work(checkpoint: core.CheckpointContext, dist: core.DistributedContext) -> str:
        directory = None
        if dist.rank != 1:
            directory = part(
                tmp_path, dist.rank, **{f"shard{dist.rank}": f"of {dist.rank}", "layers__same": "s"}
            )
        metadata = {"steps_completed": 5, "ranks": {str(dist.rank): True}}
        return checkpoint.upload(directory, metadata, shard=True)

    ids, reports = run(storage, work)
    assert len(set(ids)) == 1, ids
    metadata = {"steps_completed": 5, "ranks": {"0": True, "1": True, "2": True, "3": True}}
    found = content(storage / ids[0])
    assert json.loads(found.pop("metadata.json")) == metadata
    assert found == {"shard0": "of 0", "shard2": "of 2", "shard3": "of 3", "layers/same": "s"}
    ((storage_id, resources, reported),) = reports
    assert (storage_id, reported) == (ids[0], metadata)
    assert set(resources) == {*found, "layers/", "metadata.json"}
    assert resources["shard0"] == 4


def test_a_directory_that_several_ranks_name_is_stored_once(
    tmp_path: pathlib.Path, storage: pathlib.Path
) -> None:
    shared = part(tmp_path, 9, weights="w", optimizer="o")
    chosen = {0: "weights", 1: "optimizer"}

    def whole(checkpoint: core.CheckpointContext, dist: core.DistributedContext) -> str:
        return checkpoint.upload(shared, {"steps_completed": 1}, shard=True)

    def selected(checkpoint: core.CheckpointContext, dist: core.DistributedContext) -> str:
        wanted = chosen.get(dist.rank)
        return checkpoint.upload(
            shared, {"steps_completed": 1}, shard=True, selector=lambda name: name == wanted
        )

    for work in (whole, selected):
        ids, ((_, resources, _),) = run(storage, work, (2,))
        assert set(content(storage / ids[0])) == {"weights", "optimizer", "metadata.json"} == set(resources)


def test_different_files_of_one_name_are_refused_by_all(
    tmp_path: pathlib.Path, storage: pathlib.Path
) -> None:
    def work(checkpoint: core.CheckpointContext, dist: core.DistributedContext) -> str:
        directory = part(tmp_path, dist.rank, weights=str(dist.rank % 2))
        return checkpoint.upload(directory, {"steps_completed": 1}, shard=True)

    outcomes, reports = run(storage, work)
    assert all("weights: ranks 0, 1, 2, 3" in str(outcome) for outcome in outcomes), outcomes
    assert reports == [] and not any(storage.glob("*"))


def test_the_failure_of_one_is_that_of_all_and_nothing_is_left(
    tmp_path: pathlib.Path, storage: pathlib.Path
) -> None:
    def missing(checkpoint: core.CheckpointContext, dist: core.DistributedContext) -> str:
        directory = tmp_path / "nowhere" if dist.rank == 2 else part(tmp_path, dist.rank, own=str(dist.rank))
        return checkpoint.upload(directory, {"steps_completed": 1}, shard=True)

    outcomes, reports = run(storage, missing)
    assert isinstance(outcomes[2], FileNotFoundError)
    for rank in (0, 1, 3):
        assert isinstance(outcomes[rank], errors.DistributedError)
        assert "rank 2 failed while looking at its part of a checkpoint" in str(outcomes[rank])

    def raising(checkpoint: core.CheckpointContext, dist: core.DistributedContext) -> None:
        with checkpoint.store_path({"steps_completed": 1}, shard=True) as (path, _):
            (path / f"shard{dist.rank}").write_text("x")
            if dist.rank == 3:
                raise ValueError("boom")

    outcomes, more = run(storage, raising)
    assert str(outcomes[3]) == "boom"
    assert "rank 3 failed while writing its part of a checkpoint: ValueError: boom" in str(outcomes[0])
    assert reports == more == [] and not any(storage.glob("*"))


def test_nothing_from_anybody_is_refused(storage: pathlib.Path) -> None:
    def work(checkpoint: core.CheckpointContext, dist: core.DistributedContext) -> str:
        return checkpoint.upload(None, {"steps_completed": 1}, shard=True)

    outcomes, _ = run(storage, work, (2,))
    assert all("nothing to store" in str(outcome) for outcome in outcomes)


def test_all_write_to_one_path_and_read_it_back(tmp_path: pathlib.Path, storage: pathlib.Path) -> None:
    def work(checkpoint: core.CheckpointContext, dist: core.DistributedContext) -> Any:
        with checkpoint.store_path({"steps_completed": 3}, shard=True) as (path, storage_id):
            (path / f"shard{dist.rank}").write_text(str(dist.rank))
        with checkpoint.restore_path(storage_id) as path:
            names = {found.name for found in path.iterdir()}
        target = tmp_path / f"machine-{dist.cross_rank}"
        checkpoint.download(storage_id, target, selector=lambda name: name == f"shard{dist.rank}")
        own = tmp_path / f"rank-{dist.rank}"
        checkpoint.download(storage_id, own, core.DownloadMode.NoSharedDownload)
        return names, sorted(content(target)), sorted(content(own))

    outcomes, ((_, resources, metadata),) = run(storage, work)
    everything = {"shard0", "shard1", "shard2", "shard3", "metadata.json"}
    assert set(resources) == everything and metadata == {"steps_completed": 3}
    for rank, (names, of_machine, own) in enumerate(outcomes):
        assert names == everything
        # One of each machine copies what those of the machine want.
        assert of_machine == [f"shard{rank // 2 * 2}", f"shard{rank // 2 * 2 + 1}"]
        assert own == sorted(everything)


def test_a_checkpoint_that_is_missing_is_missed_by_all(tmp_path: pathlib.Path, storage: pathlib.Path) -> None:
    def work(checkpoint: core.CheckpointContext, dist: core.DistributedContext) -> None:
        checkpoint.download("nope", tmp_path / "to")

    outcomes, _ = run(storage, work, (3,))
    assert all(isinstance(outcome, errors.CheckpointNotFound) for outcome in outcomes), outcomes


def test_only_the_chief_stores_alone(tmp_path: pathlib.Path, storage: pathlib.Path) -> None:
    done = threading.Event()

    def work(checkpoint: core.CheckpointContext, dist: core.DistributedContext) -> Any:
        if dist.rank == 0:
            done.set()
            return checkpoint.upload(part(tmp_path, 0, own="x"), {"steps_completed": 1})
        assert done.wait(30)
        return checkpoint.upload(part(tmp_path, 1, own="x"), {"steps_completed": 1})

    outcomes, reports = run(storage, work, (2,))
    assert len(reports) == 1 and "rank 1; only rank 0 may" in str(outcomes[1])


@pytest.mark.parametrize(
    ("given", "outcome"),
    [
        pytest.param([{"a": 1}, {"b": 2}], {"a": 1, "b": 2}, id="different keys"),
        pytest.param([{"a": [1]}, {"a": [1]}], {"a": [1]}, id="same value"),
        pytest.param([{"a": float("nan")}, {"a": float("nan")}], None, id="not a number"),
        pytest.param([{"a": {"b": 1}}, {"a": {"c": {"d": 2}}}], {"a": {"b": 1, "c": {"d": 2}}}, id="maps"),
        pytest.param([{"a": [1]}, {"a": [2]}], "/a: ranks 0, 1", id="lists"),
        pytest.param([{"a": {"b": 1}}, {}, {"a": {"b": 2}}], "/a/b: ranks 0, 2", id="inside"),
        pytest.param([{"a": {"b": 1}}, {"a": 1}], "/a: ranks 0, 1", id="map and value"),
        pytest.param([{"a": 1}, {"a": {}}], "/a: ranks 0, 1", id="value and map"),
    ],
)
def test_metadata_is_merged_key_by_key(given: list[dict[str, Any]], outcome: Any) -> None:
    if isinstance(outcome, str):
        with pytest.raises(RuntimeError) as caught:
            merged_metadata(given)
        assert outcome in str(caught.value)
    else:
        assert merged_metadata(given) == (outcome or given[0]) or outcome is None


def test_names_are_contested_unless_all_are_directories() -> None:
    names = [{"both/": 0, "mixed": 1, "own": 1}, {"both/": 0, "mixed/": 0}, {"same": 1}, {"same": 1}]
    conflicts = contested(names)
    assert conflicts == {"mixed": [0, 1], "same": [2, 3]}
    same = [{}, {}, {"same": "x"}, {"same": "x"}]
    with pytest.raises(RuntimeError, match="mixed: ranks 0, 1"):
        upload_ranks(conflicts, [{"mixed": "y"}, {"mixed": "a directory"}, *same[2:]])
    assert upload_ranks({"same": [2, 3]}, same) == {"same": 2}
