"""Metric reports against a recording master."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from determined import core, errors
from determined._core import _metrics
from stub_master import Answer, StubMaster

METRICS = "/api/v1/trials/2/metrics"
MANUAL = core.TensorboardMode.MANUAL


def reports(master: StubMaster) -> list[dict[str, Any]]:
    return [request.body for request in master.sent("POST", METRICS)]


def test_a_training_report_is_what_the_wire_wants(trial: Callable[..., None], master: StubMaster) -> None:
    trial()
    with core.init(tensorboard_mode=MANUAL) as context:
        context.train.report_training_metrics(
            steps_completed=np.int64(10),  # type: ignore[arg-type]
            metrics={"loss": np.float32(0.5), "odd": float("nan"), "big": float("inf")},
            batch_metrics=[{"loss": 1}],
        )
    (body,) = reports(master)
    stream, _, number = body.pop("reportId").partition("-")
    assert len(stream) == 32
    assert number == "1"
    assert body["metrics"].pop("reportTime").endswith("Z")
    assert body == {
        "group": "training",
        "metrics": {
            "trialId": 2,
            "trialRunId": 3,
            "stepsCompleted": 10,
            "metrics": {
                "avgMetrics": {"loss": 0.5, "odd": "NaN", "big": "Infinity"},
                "batchMetrics": [{"loss": 1}],
            },
        },
    }


def test_reports_of_all_groups_arrive_in_order_before_the_context_ends(
    trial: Callable[..., None], master: StubMaster
) -> None:
    trial()
    with core.init(tensorboard_mode=MANUAL) as context:
        for step in range(1, 51):
            context.train.report_training_metrics(step, {"loss": step})
        context.train.report_validation_metrics(50, {"accuracy": 0.9})
        context.train.report_metrics("speed", 50, {"rows": 1})
    bodies = reports(master)
    assert [b["group"] for b in bodies] == ["training"] * 50 + ["validation", "speed"]
    assert [b["metrics"]["stepsCompleted"] for b in bodies] == [*range(1, 51), 50, 50]
    assert [b["reportId"].partition("-")[2] for b in bodies] == [str(n) for n in range(1, 53)]
    assert len({b["reportId"].partition("-")[0] for b in bodies}) == 1


def test_a_report_retried_after_a_cut_is_one_point(trial: Callable[..., None], master: StubMaster) -> None:
    trial()
    master.cut_next(METRICS, times=2)
    with core.init(tensorboard_mode=MANUAL) as context:
        context.train.report_training_metrics(1, {"loss": 1})
        context.train.report_training_metrics(2, {"loss": 2})
    assert len(reports(master)) == 4
    assert [p["metrics"]["stepsCompleted"] for p in master.points.values()] == [1, 2]


def test_reports_survive_a_restart_of_the_master(trial: Callable[..., None], master: StubMaster) -> None:
    trial()
    with core.init(tensorboard_mode=MANUAL) as context:
        context.train.report_training_metrics(1, {"loss": 1})
        master.wait_for(lambda: len(master.points) == 1)
        master.stop()
        context.train.report_training_metrics(2, {"loss": 2})
        master.start()
    assert [p["metrics"]["stepsCompleted"] for p in master.points.values()] == [1, 2]


def test_two_contexts_of_one_process_have_different_streams(
    trial: Callable[..., None], master: StubMaster
) -> None:
    trial()
    for step in (1, 2):
        with core.init(tensorboard_mode=MANUAL) as context:
            context.train.report_training_metrics(step, {"loss": step})
    assert len(master.points) == 2


def test_a_changed_map_does_not_change_its_report(trial: Callable[..., None], master: StubMaster) -> None:
    trial()
    metrics = {"loss": 1}
    with core.init(tensorboard_mode=MANUAL) as context:
        for value in (1, 2, 3):
            metrics["loss"] = value
            context.train.report_training_metrics(value, metrics)
    assert [b["metrics"]["metrics"]["avgMetrics"]["loss"] for b in reports(master)] == [1, 2, 3]


def test_a_refusal_is_raised_by_the_next_report_and_later_ones_are_stored(
    trial: Callable[..., None], master: StubMaster
) -> None:
    trial()

    def refuse_the_first(request: Any) -> Answer:
        step = request.body["metrics"]["stepsCompleted"]
        return Answer(400, {"message": "no such run"}) if step == 1 else Answer()

    master.on("POST", METRICS, refuse_the_first)
    with core.init(tensorboard_mode=MANUAL) as context:
        context.train.report_training_metrics(1, {"loss": 1})
        metrics = context._metrics
        wait_until(lambda: metrics._error is not None)
        with pytest.raises(errors.APIException, match="no such run"):
            context.train.report_training_metrics(2, {"loss": 2})
        context.train.report_training_metrics(3, {"loss": 3})
    assert [p["metrics"]["stepsCompleted"] for p in master.points.values()] == [3]


def test_an_error_not_yet_raised_is_raised_at_the_end(trial: Callable[..., None], master: StubMaster) -> None:
    trial()
    with pytest.raises(TypeError, match="type object cannot be reported"):
        with core.init(tensorboard_mode=MANUAL) as context:
            context.train.report_training_metrics(1, {"loss": object()})
    assert reports(master) == []


def test_an_error_at_the_end_does_not_hide_the_users_own(
    trial: Callable[..., None], master: StubMaster, caplog: pytest.LogCaptureFixture
) -> None:
    trial()
    master.on("POST", METRICS, Answer(500, {"message": "broken"}))
    with pytest.raises(ZeroDivisionError):
        with core.init(tensorboard_mode=MANUAL) as context:
            context.train.report_training_metrics(1, {"loss": 1})
            _ = 1 / 0
    assert "while closing the context" in caplog.text


def test_a_lost_master_is_raised_by_every_later_report(
    trial: Callable[..., None], master: StubMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial()
    monkeypatch.setenv("DET_RETRY_CONFIG", '{"total": 1}')
    with pytest.raises(errors.MasterNotFoundException):
        with core.init(tensorboard_mode=MANUAL) as context:
            metrics = context._metrics
            master.stop()
            context.train.report_training_metrics(1, {"loss": 1})
            wait_until(lambda: metrics._lost is not None)
            for step in (2, 3):
                with pytest.raises(errors.MasterNotFoundException):
                    context.train.report_training_metrics(step, {"loss": 1})
            context.train.report_training_metrics(4, {"loss": 1})


def test_a_full_queue_makes_training_wait_and_loses_nothing(
    trial: Callable[..., None], master: StubMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial()
    monkeypatch.setattr(_metrics, "QUEUE_LENGTH", 2)
    release = threading.Event()
    master.hold(METRICS, release)
    with core.init(tensorboard_mode=MANUAL) as context:
        done: list[int] = []

        def train() -> None:
            for step in range(1, 11):
                context.train.report_training_metrics(step, {"loss": step})
                done.append(step)

        thread = threading.Thread(target=train)
        thread.start()
        # One is on its way, two wait, the fourth is what training is held up by.
        wait_until(lambda: len(done) == 3)
        assert thread.is_alive()
        release.set()
        thread.join(30)
    assert [p["metrics"]["stepsCompleted"] for p in master.points.values()] == list(range(1, 11))


def test_reports_after_the_end_are_logged_as_lost(
    trial: Callable[..., None], master: StubMaster, caplog: pytest.LogCaptureFixture
) -> None:
    trial()
    with core.init(tensorboard_mode=MANUAL) as context:
        pass
    context.train.report_training_metrics(9, {"loss": 1})
    assert "metrics of step 9 came after the end" in caplog.text


@pytest.mark.parametrize("group", ["", "a.b"])
def test_a_group_the_master_would_refuse_is_refused_at_once(trial: Callable[..., None], group: str) -> None:
    trial()
    with core.init(tensorboard_mode=MANUAL) as context:
        with pytest.raises(ValueError, match="name of a metric group"):
            context.train.report_metrics(group, 1, {"x": 1})


def test_validation_metrics_without_a_value_fail_and_bytes_are_left_out(
    trial: Callable[..., None], master: StubMaster, caplog: pytest.LogCaptureFixture
) -> None:
    trial()
    with core.init(tensorboard_mode=MANUAL) as context:
        with pytest.raises(RuntimeError, match="'accuracy' is None"):
            context.train.report_validation_metrics(1, {"accuracy": None})
        context.train.report_validation_metrics(1, {"accuracy": 1, "image": b"\x00\xff"})
    (body,) = reports(master)
    assert body["metrics"]["metrics"]["avgMetrics"] == {"accuracy": 1}
    assert "bytes are no metrics: image" in caplog.text


def wait_until(condition: Callable[[], bool]) -> None:
    """For what only this process knows; the limit is a failure, not a measurement."""
    pause = threading.Event()
    for _ in range(3000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("the condition never came true")
