"""`core.init()`: on a cluster, in tasks that are no trials, and off-cluster."""

from __future__ import annotations

import json
import logging
import os
import pathlib
import signal
import sys
import types
from collections.abc import Callable

import pytest

import determined as det
from determined import core, errors
from stub_master import Answer, StubMaster

MANUAL = core.TensorboardMode.MANUAL


def test_a_trial_announces_itself_before_anything_else(
    trial: Callable[..., None], master: StubMaster, storage: pathlib.Path
) -> None:
    trial()
    with core.init(tensorboard_mode=MANUAL) as context:
        assert context.info is det.get_cluster_info()
        context.train.report_training_metrics(1, {"loss": 1})
    first = master.requests[0]
    assert (first.method, first.path) == ("POST", "/api/v1/runs/start")
    assert first.body == {
        "runId": 2,
        "checkpointStorage": {"type": "directory", "container_path": str(storage)},
    }
    assert {r.headers["grpc-metadata-x-allocation-token"] for r in master.requests} == {"Bearer opaque"}


def test_invalid_hyperparameters_are_reported_after_the_metrics_and_exit_with_zero(
    trial: Callable[..., None], master: StubMaster
) -> None:
    trial()
    with pytest.raises(SystemExit) as caught:
        with core.init(tensorboard_mode=MANUAL) as context:
            context.train.report_training_metrics(1, {"loss": 1})
            raise det.InvalidHP("too wide")
    assert caught.value.code == 0
    paths = [r.path for r in master.requests if r.method == "POST"]
    assert paths == ["/api/v1/runs/start", "/api/v1/trials/2/metrics", "/api/v1/trials/2/early_exit"]


def test_invalid_hp_takes_only_text() -> None:
    assert det.InvalidHP("why").msg == "why"
    with pytest.raises(TypeError, match="not int"):
        det.InvalidHP(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("slots", ["[0,1]", "[4,5,6]"])
def test_several_slots_need_a_distributed_context(
    trial: Callable[..., None], monkeypatch: pytest.MonkeyPatch, slots: str
) -> None:
    trial()
    monkeypatch.setenv("DET_SLOT_IDS", slots)
    with pytest.raises(ValueError, match="needs a DistributedContext") as caught:
        core.init()
    message = str(caught.value)
    assert f"{len(json.loads(slots))} slots in 1 container;" in message
    assert "`python3 -m determined.launch.torch_distributed -- python3 SCRIPT`" in message
    assert "DistributedContext.from_torch_distributed()" in message
    assert "docs/distributed-training.md" in message
    with core.init(distributed=core.DummyDistributedContext(), tensorboard_mode=MANUAL):
        pass


def test_a_trial_without_storage_is_refused_with_the_reason(trial: Callable[..., None]) -> None:
    trial(checkpoint_storage=None)
    with pytest.raises(errors.InvalidTaskInfo, match="no checkpoint_storage"):
        core.init()


def test_a_refused_start_is_raised(trial: Callable[..., None], master: StubMaster) -> None:
    trial()
    master.on("POST", "/api/v1/runs/start", Answer(401))
    with pytest.raises(errors.UnauthenticatedException):
        core.init()


def test_alerts_fire_webhooks(trial: Callable[..., None], master: StubMaster) -> None:
    trial()
    with core.init(tensorboard_mode=MANUAL) as context:
        context.alert("loss is odd", level="warn")
    (request,) = master.sent("POST", "/api/v1/webhooks/custom")
    assert request.body == {
        "data": {"title": "loss is odd", "description": "", "level": "LOG_LEVEL_WARNING"},
        "experimentId": 1,
        "trialId": 2,
    }


def test_models_in_use_are_linked(trial: Callable[..., None], master: StubMaster) -> None:
    trial()
    checkpoint = types.SimpleNamespace(uuid="u")
    version = types.SimpleNamespace(checkpoint=checkpoint, model_id=5, model_version=2)
    with core.init(tensorboard_mode=MANUAL) as context:
        context.experimental.report_task_using_checkpoint(checkpoint)
        context.experimental.report_task_using_model_version(version)
    plain = {
        "checkpointUuid": "u",
        "trialId": 2,
        "trialSourceInfoType": "TRIAL_SOURCE_INFO_TYPE_INFERENCE",
    }
    assert [r.body["trialSourceInfo"] for r in master.sent("POST", "/api/v1/trial-source-info")] == [
        plain,
        {**plain, "modelId": 5, "modelVersion": 2},
    ]


def test_profiling_is_accepted_and_warned_about_once(
    trial: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    trial()
    with core.init(tensorboard_mode=MANUAL) as context:
        context.profiler.on()
        context.profiler.on(sampling_interval=5)
        context.profiler.off()
        with pytest.raises(ValueError, match="samples_per_report"):
            context.profiler.on(samples_per_report=0)
    assert caplog.text.count("nothing is recorded") == 1


def test_nothing_is_logged_of_profiling_where_the_supervisor_measures(
    trial: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    trial(profiling={"enabled": True})
    with core.init(tensorboard_mode=MANUAL) as context:
        context.profiler.on()
    assert "profiler" not in caplog.text


def test_other_tasks_report_nothing_and_keep_checkpoints_locally(
    trial: Callable[..., None], master: StubMaster, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    trial()
    monkeypatch.setenv("DET_TASK_TYPE", "NOTEBOOK")
    with core.init() as context:
        context.train.report_training_metrics(1, {"loss": 1})
        assert not context.preempt.should_preempt()
        with context.checkpoint.store_path() as (path, _):
            assert path.parent == tmp_path / "data" / "determined"
        with pytest.raises(ValueError, match="only in trials"):
            context.alert()
    assert master.requests == []


class TestOffCluster:
    def test_everything_can_be_called(self, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "determined.core")
        with core.init() as context:
            assert context.info is None
            context.train.report_training_metrics(1, {"loss": 0.5}, [{"loss": 0.5}])
            context.train.report_validation_metrics(1, {"loss": None})
            context.train.report_metrics("other", 1, {"x": 1})
            context.train.report_progress(7)
            context.train.set_status("training")
            context.train.report_early_exit(core.EarlyExitReason.INVALID_HP)
            context.train.upload_tensorboard_files()
            assert context.train.get_tensorboard_path() is None
            assert context.train.get_experiment_best_validation() is None
            assert context.train.get_metadata() is None
            assert context.train.set_metadata({"a": 1}) == {"a": 1}
            assert context.train.get_metadata() == {"a": 1}
            assert context.preempt.should_preempt() is False
            context.preempt.acknowledge_preemption_signal()
            context.profiler.on()
            context.profiler.off()
            with pytest.raises(ValueError, match="off-cluster"):
                context.alert("x")
        assert "report_training_metrics(steps_completed=1, metrics={'loss': 0.5})" in caplog.text

    def test_checkpoints_go_to_the_users_data(self, tmp_path: pathlib.Path) -> None:
        with core.init() as context:
            # No master asks for steps_completed.
            with context.checkpoint.store_path({"note": 1}) as (path, storage_id):
                (path / "m").write_text("x")
            assert path == tmp_path / "data" / "determined" / storage_id
            assert context.checkpoint.get_metadata(storage_id) == {"note": 1}
            with context.checkpoint.restore_path(storage_id) as restored:
                assert (restored / "m").read_text() == "x"
            context.checkpoint.delete(storage_id)
            assert not path.exists()

    @pytest.mark.parametrize("form", ["string", "url", "map"])
    def test_checkpoints_go_where_the_argument_points(self, tmp_path: pathlib.Path, form: str) -> None:
        own = str(tmp_path / "own")
        argument = {
            "string": own,
            "url": f"file://{own}",
            "map": {"type": "directory", "container_path": own},
        }
        with core.init(checkpoint_storage=argument[form]) as context:
            with context.checkpoint.store_path() as (path, _):
                assert str(path.parent) == own

    def test_the_searcher_has_one_operation_of_one_epoch(self) -> None:
        with core.init() as context:
            with pytest.warns(FutureWarning):
                for op in context.searcher.operations():
                    assert op.length == 1
                    op.report_progress(1)
                    op.report_completed(float("nan"))
            assert context.searcher.get_configured_units() is core.Unit.EPOCHS

    def test_an_operation_must_be_completed(self) -> None:
        with core.init() as context, pytest.warns(FutureWarning):
            with pytest.raises(RuntimeError, match="must be called"):
                list(context.searcher.operations())

    def test_invalid_hyperparameters_exit_with_zero(self) -> None:
        with pytest.raises(SystemExit) as caught:
            with core.init():
                raise det.InvalidHP("no")
        assert caught.value.code == 0


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="needs POSIX signals")
def test_sigusr1_shows_the_stacks_and_calls_the_handler_before(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: seen.append(number))
    try:
        core.init()
        core.init()
        # pytest's own stderr has no file descriptor.
        monkeypatch.setattr(sys, "stderr", os.fdopen(os.dup(2), "w"))
        os.kill(os.getpid(), signal.SIGUSR1)
        sys.stderr.close()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [signal.SIGUSR1]
    assert "test_sigusr1_shows_the_stacks" in capfd.readouterr().err
