from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from conftest import ALLOCATION
from determined import core
from determined._core import _preempt
from stub_master import Answer, StubMaster
from test_metrics import wait_until

SIGNAL = f"/api/v1/allocations/{ALLOCATION}/signals/preemption"
ACK = f"/api/v1/allocations/{ALLOCATION}/signals/ack_preemption"
MANUAL = core.TensorboardMode.MANUAL


def test_asks_at_once_and_then_holds_a_poll(trial: Callable[..., None], master: StubMaster) -> None:
    trial()
    with core.init(tensorboard_mode=MANUAL) as context:
        assert context.preempt.should_preempt() is False
        master.wait_for(lambda: len(master.sent("GET", SIGNAL)) == 2)
    assert [r.query["timeout_seconds"] for r in master.sent("GET", SIGNAL)] == ["0", "60"]
    assert master.sent("POST", ACK) == []


def test_the_signal_reaches_a_running_loop_and_is_acknowledged_once(
    trial: Callable[..., None], master: StubMaster
) -> None:
    trial()
    with core.init(tensorboard_mode=MANUAL) as context:
        assert not context.preempt.should_preempt()
        master.preempt.set()
        wait_until(context.preempt.should_preempt)
        assert context.preempt.should_preempt()
    assert len(master.sent("POST", ACK)) == 1


def test_a_task_that_is_preempted_from_the_start_knows_at_once(
    trial: Callable[..., None], master: StubMaster
) -> None:
    trial()
    master.preempt.set()
    with core.init(tensorboard_mode=MANUAL) as context:
        assert context.preempt.should_preempt()
    assert [r.query["timeout_seconds"] for r in master.sent("GET", SIGNAL)] == ["0"]


def test_acknowledging_can_be_left_to_the_script(trial: Callable[..., None], master: StubMaster) -> None:
    trial()
    master.preempt.set()
    with core.init(tensorboard_mode=MANUAL) as context:
        assert context.preempt.should_preempt(auto_ack=False)
        assert master.sent("POST", ACK) == []
        context.preempt.acknowledge_preemption_signal()
    assert len(master.sent("POST", ACK)) == 1


@pytest.mark.parametrize("failure", ["cut", "refused"])
def test_failed_polls_are_repeated(
    trial: Callable[..., None],
    master: StubMaster,
    monkeypatch: pytest.MonkeyPatch,
    failure: str,
) -> None:
    trial()
    monkeypatch.setattr(_preempt, "RETRY_MAX_S", 0.01)
    if failure == "cut":
        master.cut_next(SIGNAL, times=3)
    else:
        replies = iter([Answer(500), Answer(401), Answer(200, {"preempt": True})])
        master.on("GET", SIGNAL, lambda _: next(replies))
    with core.init(tensorboard_mode=MANUAL) as context:
        assert not context.preempt.should_preempt()
        master.preempt.set()
        wait_until(context.preempt.should_preempt)


def test_a_master_that_never_holds_is_not_flooded(
    trial: Callable[..., None], master: StubMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finished allocation answers "no" at once; asking again waits for the least period."""
    trial()
    monkeypatch.setattr(_preempt, "POLL_MIN_S", 3600.0)
    master.on("GET", SIGNAL, Answer(200, {"preempt": False}))
    with core.init(tensorboard_mode=MANUAL) as context:
        assert not context.preempt.should_preempt()
        master.wait_for(lambda: len(master.sent("GET", SIGNAL)) == 2)
        thread = context.preempt._watcher._thread
    # The wait is ended by the end of the context.
    thread.join(30)
    assert not thread.is_alive()
    assert len(master.sent("GET", SIGNAL)) == 2


def test_start_is_for_once_and_asking_needs_it(trial: Callable[..., None], master: StubMaster) -> None:
    trial()
    context = core.init(tensorboard_mode=MANUAL)
    with pytest.raises(RuntimeError, match=r"before start\(\)"):
        context.preempt.should_preempt()
    with context:
        with pytest.raises(RuntimeError, match="called already"):
            context.preempt.start()


class Worker(core.DistributedContext):
    """Rank 1 of two, as a context of several processes would be; the chief has answered yes."""

    def __init__(self) -> None:
        self.rank, self.size = 1, 2

    def broadcast(self, stuff: object) -> object:
        return True


def test_workers_take_the_chiefs_answer_or_may_not_ask() -> None:
    asked = core.PreemptContext(None, ALLOCATION, Worker())  # type: ignore[arg-type]
    asked.start()
    assert asked.should_preempt()
    alone = core.PreemptContext(None, ALLOCATION, Worker(), core.PreemptMode.ChiefOnly)  # type: ignore[arg-type]
    alone.start()
    with pytest.raises(RuntimeError, match="by rank 1, but preempt_mode=ChiefOnly"):
        alone.should_preempt()


def test_no_thread_is_left_behind(trial: Callable[..., None], master: StubMaster) -> None:
    trial()
    before = threading.active_count()
    with core.init(tensorboard_mode=MANUAL) as context:
        threads = [context.preempt._watcher._thread, context._metrics._thread]
        assert threading.active_count() >= before + 2
    master.preempt.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.parametrize("kind", ["GENERIC", "COMMAND"])
def test_other_programs_are_asked_to_save_once_they_have_asked(
    trial: Callable[..., None], master: StubMaster, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    trial()
    monkeypatch.setenv("DET_TASK_TYPE", kind)
    with core.init() as context:
        # One that never asks is ended at once: it is not waited for until it saves.
        assert master.requests == []
        assert not context.preempt.should_preempt()
        master.preempt.set()
        wait_until(context.preempt.should_preempt)
    assert len(master.sent("POST", ACK)) == 1
