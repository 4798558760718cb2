from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from determined import core
from stub_master import StubMaster

MANUAL = core.TensorboardMode.MANUAL


@pytest.mark.parametrize(
    ("max_length", "length", "unit"),
    [
        (20, 20, None),
        ({"epochs": 5}, 5, core.Unit.EPOCHS),
        ({"batches": 900}, 900, core.Unit.BATCHES),
    ],
    ids=["number", "epochs", "batches"],
)
def test_there_is_one_operation_of_the_configured_length(
    trial: Callable[..., None], master: StubMaster, max_length: Any, length: int, unit: core.Unit | None
) -> None:
    trial(searcher={"name": "single", "metric": "loss", "max_length": max_length})
    lengths = []
    with core.init(tensorboard_mode=MANUAL) as context:
        with pytest.warns(FutureWarning, match="operations"):
            for op in context.searcher.operations():
                lengths.append(op.length)
                op.report_progress(op.length / 4)
                op.report_completed(0.1)
                op.report_progress(op.length)
        assert context.searcher.get_configured_units() is unit
        context.searcher.acknowledge_out_of_ops()
    assert lengths == [length]
    progress = [r.body["progress"] for r in master.sent("POST", "/api/v1/trials/2/progress")]
    assert progress == [0.25, 1.0]


def test_an_operation_must_be_completed_and_only_once(trial: Callable[..., None]) -> None:
    trial(searcher={"max_length": 4})
    with core.init(tensorboard_mode=MANUAL) as context:
        with pytest.warns(FutureWarning):
            with pytest.raises(RuntimeError, match="must be called for each operation"):
                for _ in context.searcher.operations():
                    pass
            for op in context.searcher.operations(core.SearcherMode.ChiefOnly):
                op.report_completed(1)
                with pytest.raises(RuntimeError, match="called already"):
                    op.report_completed(1)
                with pytest.raises(RuntimeError, match="after"):
                    op.report_progress(1)


def test_without_a_length_the_searcher_explains_what_to_do(trial: Callable[..., None]) -> None:
    trial(searcher={"name": "adaptive_asha", "metric": "loss", "max_time": 9})
    with core.init(tensorboard_mode=MANUAL) as context:
        for action in (
            context.searcher.operations,
            context.searcher.get_configured_units,
            context.searcher.acknowledge_out_of_ops,
        ):
            with pytest.raises(ValueError, match=r"searcher\.max_length"):
                action()


def test_workers_only_follow() -> None:
    op = core.SearcherOperation(None, 2, 10, is_chief=False)  # type: ignore[arg-type]
    for action in (lambda: op.report_progress(1), lambda: op.report_completed(1)):
        with pytest.raises(RuntimeError, match="only by the chief"):
            action()
