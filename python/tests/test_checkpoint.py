from __future__ import annotations

import json
import os
import pathlib
import threading
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from determined import core, errors
from determined._storage import DirectoryStorage, directory_from_config, storage_from_config
from stub_master import Answer, StubMaster

MANUAL = core.TensorboardMode.MANUAL
CHECKPOINTS = "/api/v1/checkpoints"
METRICS = "/api/v1/trials/2/metrics"


@pytest.fixture
def model(tmp_path: pathlib.Path) -> pathlib.Path:
    directory = tmp_path / "model"
    (directory / "layers").mkdir(parents=True)
    (directory / "weights.bin").write_bytes(b"12345")
    (directory / "layers" / "one.bin").write_bytes(b"1")
    return directory


def files(directory: pathlib.Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", ["directory", "shared_fs"])
def test_a_checkpoint_goes_to_storage_and_back(
    trial: Callable[..., None],
    master: StubMaster,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    monkeypatch.setattr("determined._core._context.SHARED_FS_CONTAINER_PATH", str(mount))
    if kind == "directory":
        base = tmp_path / "direct"
        config: dict[str, Any] = {"type": kind, "container_path": str(base)}
    else:
        base = mount / "team/a"
        config = {"type": kind, "host_path": "/srv/ckpt", "storage_path": "team/a", "save_trial_best": 1}
    trial(checkpoint_storage=config)
    with core.init(tensorboard_mode=MANUAL) as context:
        with context.checkpoint.store_path({"steps_completed": 3, "note": "x"}) as (path, storage_id):
            assert path == base / storage_id
            (path / "d").mkdir()
            (path / "d" / "m.txt").write_text("hi")
            assert master.sent("POST", CHECKPOINTS) == []
        (request,) = master.sent("POST", CHECKPOINTS)
        with context.checkpoint.restore_path(storage_id) as restored:
            assert (restored / "d" / "m.txt").read_text() == "hi"
        context.checkpoint.download(storage_id, tmp_path / "copy")
    assert files(tmp_path / "copy") == {"d/m.txt", "metadata.json"}
    metadata = (base / storage_id / "metadata.json").read_text()
    assert metadata == '{\n  "steps_completed": 3,\n  "note": "x"\n}'
    assert request.body.pop("reportTime").endswith("Z")
    assert request.body == {
        "uuid": storage_id,
        "taskId": "1.c0ffee",
        "allocationId": "1.c0ffee.1",
        "metadata": {"steps_completed": 3, "note": "x"},
        "resources": {"d/": "0", "d/m.txt": "2", "metadata.json": str(len(metadata))},
        "training": {},
        "state": "STATE_COMPLETED",
        "storageId": 7,
    }
    assert uuid.UUID(storage_id).version == 4


def test_upload_copies_a_directory(
    trial: Callable[..., None], master: StubMaster, model: pathlib.Path, storage: pathlib.Path
) -> None:
    trial()
    with core.init(tensorboard_mode=MANUAL) as context:
        storage_id = context.checkpoint.upload(model, {"steps_completed": 1})
    assert files(storage / storage_id) == {"weights.bin", "layers/one.bin", "metadata.json"}
    (request,) = master.sent("POST", CHECKPOINTS)
    assert set(request.body["resources"]) == {"weights.bin", "layers/", "layers/one.bin", "metadata.json"}


@pytest.mark.parametrize("shard", [False, True], ids=["single", "sharded"])
def test_a_selector_chooses_what_is_uploaded(
    trial: Callable[..., None], master: StubMaster, model: pathlib.Path, storage: pathlib.Path, shard: bool
) -> None:
    trial()
    with core.init(tensorboard_mode=MANUAL) as context:
        storage_id = context.checkpoint.upload(
            model, {"steps_completed": 1}, shard=shard, selector=lambda path: path == "layers/one.bin"
        )
    expected = {"layers/one.bin"} | ({"metadata.json"} if shard else set())
    assert files(storage / storage_id) == expected
    (request,) = master.sent("POST", CHECKPOINTS)
    assert set(request.body["resources"]) == expected


def test_a_selector_chooses_what_is_downloaded(
    trial: Callable[..., None], master: StubMaster, model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    trial()
    asked: list[str] = []

    def selector(path: str) -> bool:
        asked.append(path)
        return path == "layers/one.bin"

    with core.init(tensorboard_mode=MANUAL) as context:
        storage_id = context.checkpoint.upload(model, {"steps_completed": 1})
        context.checkpoint.download(
            storage_id, tmp_path / "part", core.DownloadMode.NoSharedDownload, selector=selector
        )
    assert files(tmp_path / "part") == {"layers/one.bin"}
    assert set(asked) == {"weights.bin", "metadata.json", "layers/", "layers/one.bin"}


def test_store_path_reports_metadata_filled_in_the_block(
    trial: Callable[..., None], master: StubMaster
) -> None:
    trial()
    metadata: dict[str, Any] = {}
    with core.init(tensorboard_mode=MANUAL) as context:
        with context.checkpoint.store_path(metadata, shard=True):
            metadata["steps_completed"] = np.int64(4)
            metadata["loss"] = float("nan")
    (request,) = master.sent("POST", CHECKPOINTS)
    assert request.body["metadata"] == {"steps_completed": 4, "loss": "NaN"}


def test_a_checkpoint_retried_after_a_cut_has_one_identity(
    trial: Callable[..., None], master: StubMaster, model: pathlib.Path
) -> None:
    trial()
    master.cut_next(CHECKPOINTS)
    with core.init(tensorboard_mode=MANUAL) as context:
        storage_id = context.checkpoint.upload(model, {"steps_completed": 1})
    assert [r.body["uuid"] for r in master.sent("POST", CHECKPOINTS)] == [storage_id] * 2


def test_an_unfinished_checkpoint_leaves_nothing(
    trial: Callable[..., None], master: StubMaster, storage: pathlib.Path
) -> None:
    trial()
    with core.init(tensorboard_mode=MANUAL) as context:
        with pytest.raises(ZeroDivisionError):
            with context.checkpoint.store_path({"steps_completed": 1}) as (path, _):
                (path / "half").write_text("x")
                _ = 1 / 0
    assert list(storage.iterdir()) == []
    assert master.sent("POST", CHECKPOINTS) == []


def test_steps_completed_is_required(
    trial: Callable[..., None], master: StubMaster, model: pathlib.Path
) -> None:
    trial()
    with core.init(tensorboard_mode=MANUAL) as context:
        with pytest.raises(ValueError, match="steps_completed"):
            context.checkpoint.upload(model)
        with pytest.raises(ValueError, match="steps_completed"):
            with context.checkpoint.store_path():
                pass
    assert master.sent("POST", CHECKPOINTS) == []


def test_upload_needs_a_directory(trial: Callable[..., None], tmp_path: pathlib.Path) -> None:
    trial()
    with core.init(tensorboard_mode=MANUAL) as context:
        for shard in (False, True):
            with pytest.raises(RuntimeError, match="nothing to store"):
                context.checkpoint.upload(None, {"steps_completed": 1}, shard=shard)
        with pytest.raises(FileNotFoundError):
            context.checkpoint.upload(tmp_path / "missing", {"steps_completed": 1})


def test_an_unknown_checkpoint_is_not_found(
    trial: Callable[..., None], master: StubMaster, tmp_path: pathlib.Path
) -> None:
    trial()
    with core.init(tensorboard_mode=MANUAL) as context:
        with pytest.raises(errors.CheckpointNotFound, match="'nope' is not in directory storage"):
            with context.checkpoint.restore_path("nope"):
                pass
        with pytest.raises(errors.CheckpointNotFound):
            context.checkpoint.download("nope", tmp_path / "x")


def test_delete_removes_and_reports(
    trial: Callable[..., None], master: StubMaster, model: pathlib.Path, storage: pathlib.Path
) -> None:
    trial()
    with core.init(tensorboard_mode=MANUAL) as context:
        storage_id = context.checkpoint.upload(model, {"steps_completed": 1})
        context.checkpoint.delete(storage_id)
    assert list(storage.iterdir()) == []
    (request,) = master.sent("PATCH", CHECKPOINTS)
    assert request.body == {"checkpoints": [{"uuid": storage_id, "resources": {"resources": {}}}]}


@pytest.mark.parametrize("storage_id", ["", ".", "..", "a/b", "../a"])
def test_ids_that_are_paths_reach_nothing(
    trial: Callable[..., None],
    master: StubMaster,
    model: pathlib.Path,
    storage: pathlib.Path,
    storage_id: str,
) -> None:
    trial()
    with core.init(tensorboard_mode=MANUAL) as context:
        kept = context.checkpoint.upload(model, {"steps_completed": 1})
        with pytest.raises(ValueError, match="not the id of a checkpoint"):
            context.checkpoint.delete(storage_id)
    assert files(storage / kept)


def test_metadata_comes_from_the_master(trial: Callable[..., None], master: StubMaster) -> None:
    trial()
    master.on("GET", f"{CHECKPOINTS}/known", Answer(200, {"checkpoint": {"metadata": {"a": 1}}}))
    master.on("GET", f"{CHECKPOINTS}/bare", Answer(200, {"checkpoint": {"metadata": None}}))
    master.on("GET", f"{CHECKPOINTS}/none", Answer(404, {"message": "no checkpoint"}))
    with core.init(tensorboard_mode=MANUAL) as context:
        assert context.checkpoint.get_metadata("known") == {"a": 1}
        assert context.checkpoint.get_metadata("bare") == {}
        with pytest.raises(errors.NotFoundException, match="no checkpoint"):
            context.checkpoint.get_metadata("none")


@pytest.mark.parametrize("kind", ["s3", "gcs", "azure"])
def test_cloud_storage_runs_until_a_checkpoint_is_asked_for(
    trial: Callable[..., None], master: StubMaster, model: pathlib.Path, kind: str
) -> None:
    trial(checkpoint_storage={"type": kind, "bucket": "b", "container": "c"})
    with core.init() as context:
        context.train.report_training_metrics(1, {"loss": 1})
        for action in (
            lambda: context.checkpoint.upload(model, {"steps_completed": 1}),
            lambda: context.checkpoint.delete("x"),
            lambda: context.checkpoint.download("x", model),
        ):
            with pytest.raises(
                NotImplementedError, match=f'"{kind}" is not available.*"shared_fs" and "directory"'
            ):
                action()
    assert len(master.points) == 1


def test_an_argument_replaces_the_configured_storage(
    trial: Callable[..., None], master: StubMaster, model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    trial()
    with core.init(checkpoint_storage=str(tmp_path / "own"), tensorboard_mode=MANUAL) as context:
        storage_id = context.checkpoint.upload(model, {"steps_completed": 1})
    assert files(tmp_path / "own" / storage_id)
    (request,) = master.sent("POST", "/api/v1/runs/start")
    own = {"type": "shared_fs", "host_path": str(tmp_path / "own")}
    assert request.body == {"runId": 2, "checkpointStorage": own}


@pytest.mark.parametrize(
    ("argument", "error", "message"),
    [
        ({"type": "shared_fs", "host_path": "/x"}, ValueError, "cannot be given as a map"),
        ({"type": "directory"}, ValueError, "must have a container_path"),
        ({"type": "tape"}, TypeError, "unknown checkpoint_storage type 'tape'"),
        ({}, ValueError, "must have a type"),
        ("ftp://host/x", ValueError, 'scheme "ftp"'),
        ("file://host/x", ValueError, "must not name a host"),
        (5, TypeError, "a string, a map or None, not int"),
    ],
)
def test_wrong_storage_arguments_are_explained(argument: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        core.init(checkpoint_storage=argument)


@pytest.mark.parametrize(
    ("storage_path", "expected"),
    [
        pytest.param(None, "/mnt", id="none"),
        pytest.param("a/b", "/mnt/a/b", id="relative"),
        pytest.param("/srv/ckpt/a", "/mnt/a", id="absolute under the host path"),
        pytest.param("/srv/ckpt", "/mnt", id="the host path itself"),
        pytest.param("a/../b", "/mnt/b", id="normalised"),
    ],
)
def test_shared_fs_paths_are_relative_to_the_mount(storage_path: str | None, expected: str) -> None:
    config = {"type": "shared_fs", "host_path": "/srv/ckpt", "storage_path": storage_path}
    assert directory_from_config(config, container_path="/mnt") == expected


@pytest.mark.parametrize("storage_path", ["..", "../x", "/srv/ckptfoo", "/etc", "a/../../x"])
def test_shared_fs_paths_stay_under_the_host_path(storage_path: str) -> None:
    with pytest.raises(ValueError, match="must be under host_path"):
        storage_from_config(
            {"type": "shared_fs", "host_path": "/srv/ckpt", "storage_path": storage_path},
            container_path="/mnt",
        )


def test_without_the_mount_the_host_path_serves(tmp_path: pathlib.Path) -> None:
    config = {"type": "shared_fs", "host_path": str(tmp_path), "storage_path": "a"}
    assert directory_from_config(config, container_path="/no/such/mount") == str(tmp_path / "a")


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX")
def test_the_storage_directory_is_open_to_other_users(
    trial: Callable[..., None], master: StubMaster, model: pathlib.Path, storage: pathlib.Path
) -> None:
    trial()
    before = os.umask(0o077)
    try:
        with core.init(tensorboard_mode=MANUAL) as context:
            storage_id = context.checkpoint.upload(model, {"steps_completed": 1})
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(before)
    assert storage.stat().st_mode & 0o7777 == 0o1777
    assert json.loads((storage / storage_id / "metadata.json").read_text()) == {"steps_completed": 1}


def test_a_checkpoint_is_reported_behind_the_metrics_that_came_before_it(
    trial: Callable[..., None], master: StubMaster
) -> None:
    """A run that goes on from the checkpoint does not report those steps again."""
    trial()
    release = threading.Event()
    master.hold(METRICS, release)
    with core.init(tensorboard_mode=MANUAL) as context:
        for step in (1, 2, 3):
            context.train.report_training_metrics(step, {"loss": step})

        def save() -> None:
            with context.checkpoint.store_path({"steps_completed": 3}):
                pass

        saving = threading.Thread(target=save)
        saving.start()
        master.wait_for(lambda: len(master.sent("POST", METRICS)) == 1)
        assert master.sent("POST", CHECKPOINTS) == []
        release.set()
        saving.join(30)
        order = [request.path for request in master.requests if request.path in (METRICS, CHECKPOINTS)]
    assert order == [METRICS] * 3 + [CHECKPOINTS]


def test_a_refused_metric_does_not_hold_up_a_checkpoint(
    trial: Callable[..., None], master: StubMaster
) -> None:
    trial()
    master.on("POST", METRICS, Answer(400, {"message": "no such run"}))
    with pytest.raises(errors.APIException, match="no such run"):
        with core.init(tensorboard_mode=MANUAL) as context:
            context.train.report_training_metrics(1, {"loss": 1})
            with context.checkpoint.store_path({"steps_completed": 1}):
                pass
            assert len(master.sent("POST", CHECKPOINTS)) == 1


def test_a_link_to_nothing_is_left_out_with_a_warning(
    trial: Callable[..., None], master: StubMaster, model: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    trial()
    (model / "dangling").symlink_to("nothing")
    with core.init(tensorboard_mode=MANUAL) as context:
        context.checkpoint.upload(model, {"steps_completed": 1})
    (request,) = master.sent("POST", CHECKPOINTS)
    assert set(request.body["resources"]) == {"weights.bin", "layers/", "layers/one.bin", "metadata.json"}
    assert "dangling is a link to nothing" in caplog.text


def test_only_the_base_of_a_shared_storage_is_open_to_all_users(tmp_path: pathlib.Path) -> None:
    def mode(path: pathlib.Path) -> int:
        return path.stat().st_mode & 0o7777

    shared = DirectoryStorage(str(tmp_path / "a/b/shared"))
    shared.pre_store_path("x")
    assert mode(tmp_path / "a/b/shared") == 0o1777
    mine = DirectoryStorage(str(tmp_path / "c/mine"), shared=False)
    mine.pre_store_path("x")
    for path in ("a", "a/b", "c", "c/mine"):
        assert not mode(tmp_path / path) & 0o022, path
