from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from determined import core, errors
from stub_master import Answer, StubMaster

MANUAL = core.TensorboardMode.MANUAL


def test_progress_is_a_fraction(trial: Callable[..., None], master: StubMaster) -> None:
    trial()
    with core.init(tensorboard_mode=MANUAL) as context:
        context.train.report_progress(0.25)
        for wrong in (-0.1, 1.1, float("nan")):
            with pytest.raises(ValueError, match="from 0 to 1"):
                context.train.report_progress(wrong)
    assert [r.body for r in master.sent("POST", "/api/v1/trials/2/progress")] == [
        {"progress": 0.25, "is_raw": True}
    ]


def test_status_is_sent(trial: Callable[..., None], master: StubMaster) -> None:
    trial()
    with core.init(tensorboard_mode=MANUAL) as context:
        context.train.set_status("validating")
    assert [r.body for r in master.sent("POST", "/api/v1/trials/2/runner/metadata")] == [
        {"state": "validating"}
    ]


def test_metadata_goes_there_and_back(trial: Callable[..., None], master: StubMaster) -> None:
    trial()
    path = "/api/v1/runs/2/metadata"
    master.on("POST", path, lambda request: Answer(200, {"metadata": request.body["metadata"]}))
    master.on("GET", path, Answer(200, {"metadata": {"owner": "alice"}}))
    with core.init(tensorboard_mode=MANUAL) as context:
        assert context.train.set_metadata({"a": {"b": 1}}) == {"a": {"b": 1}}
        assert context.train.get_metadata() == {"owner": "alice"}


@pytest.mark.parametrize(
    ("answer", "best"),
    [
        pytest.param(Answer(200, {"metric": 0.5}), 0.5, id="number"),
        pytest.param(Answer(200, {"metric": "Infinity"}), float("inf"), id="infinite"),
        pytest.param(Answer(404, {"message": "none yet"}), None, id="none yet"),
    ],
)
def test_best_validation(
    trial: Callable[..., None], master: StubMaster, answer: Answer, best: float | None
) -> None:
    trial()
    master.on("GET", "/api/v1/experiments/1/searcher/best_searcher_validation_metric", answer)
    with core.init(tensorboard_mode=MANUAL) as context:
        assert context.train.get_experiment_best_validation() == best


EARLY_EXIT = "/api/v1/trials/2/early_exit"


def test_early_exit_is_reported(trial: Callable[..., None], master: StubMaster) -> None:
    trial()
    with core.init(tensorboard_mode=MANUAL) as context:
        context.train.report_early_exit(core.EarlyExitReason.INVALID_HP)
    assert [r.body for r in master.sent("POST", EARLY_EXIT)] == [{"reason": "EXITED_REASON_INVALID_HP"}]


def test_a_second_early_exit_is_no_failure(
    trial: Callable[..., None], master: StubMaster, caplog: pytest.LogCaptureFixture
) -> None:
    trial()
    replies: Any = iter([Answer(400, {"message": "reported already"}), Answer(500)])
    master.on("POST", EARLY_EXIT, lambda _: next(replies))
    with core.init(tensorboard_mode=MANUAL) as context:
        context.train.report_early_exit(core.EarlyExitReason.USER_REQUESTED_STOP)
        with pytest.raises(errors.APIException):
            context.train.report_early_exit(core.EarlyExitReason.USER_REQUESTED_STOP)
    assert "reported already" in caplog.text
