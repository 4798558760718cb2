from __future__ import annotations

import atexit
import os
import pathlib
import queue
import shutil
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import determined
from conftest import ALLOCATION
from determined import core, errors
from determined._core._tensorboard import TensorboardManager
from stub_master import StubMaster

LOCAL = pathlib.Path("/tmp", f"tensorboard-{ALLOCATION}-0")
STORED = "cluster-1/tensorboard/experiment/1/trial/2"


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    shutil.rmtree(LOCAL, ignore_errors=True)
    yield
    shutil.rmtree(LOCAL, ignore_errors=True)


def write(name: str) -> None:
    path = LOCAL / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(name)


def stored(storage: pathlib.Path) -> set[str]:
    root = storage / STORED
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_auto_copies_new_files_to_storage(
    trial: Callable[..., None], master: StubMaster, storage: pathlib.Path
) -> None:
    trial()
    with core.init() as context:
        assert context.train.get_tensorboard_path() == LOCAL
        write("events.1")
        context.train.report_training_metrics(1, {"loss": 1})
        write("plugins/profile/x.pb")
        with pytest.raises(RuntimeError, match=r"TensorboardMode\.MANUAL"):
            context.train.upload_tensorboard_files()
    assert stored(storage) == {"events.1", "plugins/profile/x.pb"}


def test_what_is_written_within_one_tick_of_a_coarse_clock_is_copied(
    trial: Callable[..., None], master: StubMaster, storage: pathlib.Path
) -> None:
    """File systems that stamp in whole seconds, or by a clock that is behind this one."""
    long_ago = 1_000_000_000 * 10**9
    trial()
    with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
        for content in ("first", "first and last"):
            write("events")
            (LOCAL / "events").write_text(content)
            os.utime(LOCAL / "events", ns=(long_ago, long_ago))
            context.train.upload_tensorboard_files()
        write("later")
        os.utime(LOCAL / "later", ns=(long_ago, long_ago))
        context.train.upload_tensorboard_files()
    assert (storage / STORED / "events").read_text() == "first and last"
    assert stored(storage) == {"events", "later"}


def test_files_that_are_as_they_were_are_copied_once(
    trial: Callable[..., None], master: StubMaster, storage: pathlib.Path
) -> None:
    trial()
    taken: list[str] = []

    def choose(path: pathlib.Path) -> bool:
        taken.append(path.name)
        return path.name != "skip"

    with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
        write("events")
        write("skip")
        context.train.upload_tensorboard_files(selector=choose)
    assert taken == ["events", "skip"]
    manager = TensorboardManager(LOCAL, storage / "other", auto=False)
    for _ in range(2):
        manager.upload(choose, lambda path, rank: path, 0)
    assert taken[2:] == ["events", "skip", "skip"], "what was not chosen may be chosen later"


def test_a_file_that_cannot_be_copied_is_tried_again_and_keeps_no_other_back(
    storage: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    manager = TensorboardManager(LOCAL, storage, auto=False)
    write("a")
    write("b")
    (storage / "a").mkdir(parents=True)
    (storage / "a" / "a").mkdir()
    with pytest.raises(OSError):
        manager.upload(lambda _: True, lambda path, rank: path, 0)
    assert (storage / "b").read_text() == "b"
    shutil.rmtree(storage / "a")
    manager.upload(lambda _: True, lambda path, rank: path, 0)
    assert (storage / "a").read_text() == "a"


def test_auto_needs_no_framework(trial: Callable[..., None], master: StubMaster) -> None:
    trial()
    with core.init() as context:
        context.train.report_training_metrics(1, {"loss": 1})
    assert len(master.points) == 1
    assert not LOCAL.exists()


def test_auto_writes_scalars_with_the_frameworks_own_writer(
    trial: Callable[..., None], master: StubMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Any] = []

    class SummaryWriter:
        def __init__(self, log_dir: str, filename_suffix: str) -> None:
            assert log_dir == str(LOCAL)

        def add_scalar(self, *scalar: Any) -> None:
            written.append(scalar)

        def flush(self) -> None:
            pass

        def close(self) -> None:
            written.append("closed")

    module = types.ModuleType("tensorboardX")
    module.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorboardX", module)
    trial()
    with core.init() as context:
        context.train.report_training_metrics(
            10, {"loss": 1, "lr": 2, "text": "x"}, [{"loss": 3}, {"loss": 4}]
        )
        context.train.report_validation_metrics(10, {"accuracy": 5, "val_loss": 6})
        context.train.report_metrics("other", 10, {"x": 1})
    assert written == [
        ("Determined/loss", 3, 8),
        ("Determined/loss", 4, 9),
        ("Determined/lr", 2, 10),
        ("Determined/val_accuracy", 5, 10),
        ("Determined/val_loss", 6, 10),
        "closed",
    ]


class QueueingWriter:
    """A writer as that of tensorboardX 2: what it is given a thread writes, for which only `close` waits.

    The file is named by the second (here always the same one), and emptied where there is one. The thread is
    as late as one can be.
    """

    def __init__(self, log_dir: str, filename_suffix: str = "") -> None:
        os.makedirs(log_dir, exist_ok=True)
        self._file = open(os.path.join(log_dir, f"events.out.tfevents.1700000000.host{filename_suffix}"), "w")
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def add_scalar(self, name: str, value: Any, step: int) -> None:
        self._queue.put(f"{name} {value} {step}\n")

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._queue.put(None)
        self._thread.start()
        self._thread.join()
        self._file.close()

    def _run(self) -> None:
        while (line := self._queue.get()) is not None:
            self._file.write(line)


class ExitingWriter(QueueingWriter):
    """Ends with the program as well, and then drops what it is given without a word; so tensorboardX."""

    def __init__(self, log_dir: str, filename_suffix: str = "") -> None:
        super().__init__(log_dir, filename_suffix)
        atexit.register(self.close)

    def add_scalar(self, name: str, value: Any, step: int) -> None:
        if not self._file.closed and not self._thread.is_alive():
            super().add_scalar(name, value, step)

    def flush(self) -> None:
        if not self._file.closed:
            super().flush()

    def close(self) -> None:
        if not self._file.closed:
            super().close()


@pytest.fixture
def queueing_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("tensorboardX")
    module.SummaryWriter = QueueingWriter  # type: ignore[attr-defined]
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboardX", module)


def test_what_the_frameworks_writer_still_holds_at_the_end_is_stored(
    trial: Callable[..., None], master: StubMaster, storage: pathlib.Path, queueing_writer: None
) -> None:
    trial()
    with core.init() as context:
        for step in range(1, 6):
            context.train.report_training_metrics(step, {"loss": step})
        context.train.report_validation_metrics(5, {"accuracy": 1})
    (file,) = stored(storage)
    assert (storage / STORED / file).read_text().splitlines() == [
        *(f"Determined/loss {step} {step}" for step in range(1, 6)),
        "Determined/val_accuracy 1 5",
    ]


@pytest.mark.parametrize("begun", ["", "context.start()\n"])
@pytest.mark.parametrize("ended", ["", "context.close()\n", "raise SystemExit(3)\n"])
def test_what_is_reported_without_with_arrives(
    trial: Callable[..., None], master: StubMaster, storage: pathlib.Path, begun: str, ended: str
) -> None:
    trial()
    code = (
        "import sys, types\n"
        "from test_tensorboard import ExitingWriter\n"
        "sys.modules.pop('torch', None)\n"
        "sys.modules['tensorboardX'] = types.SimpleNamespace(SummaryWriter=ExitingWriter)\n"
        "from determined import core\n"
        "context = core.init()\n"
        f"{begun}"
        "for step in range(1, 101):\n"
        "    context.train.report_training_metrics(step, {'loss': step})\n"
        "context.train.report_validation_metrics(100, {'accuracy': 1})\n"
        f"{ended}"
    )
    paths = [str(pathlib.Path(determined.__file__).parents[1]), str(pathlib.Path(__file__).parent)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert run.returncode == (3 if "3" in ended else 0), run.stderr
    steps = [point["metrics"]["stepsCompleted"] for point in master.points.values()]
    assert steps == [*range(1, 101), 100], "in the order of the reports"
    (file,) = stored(storage)
    assert len((storage / STORED / file).read_text().splitlines()) == 101
    if "close" in ended:
        assert run.stderr == ""
    else:
        (line,) = run.stderr.splitlines()
        assert line.startswith("WARNING: ") and "`with core.init() as context:`" in line


def test_a_context_that_reports_nothing_ends_without_a_word(
    trial: Callable[..., None], master: StubMaster
) -> None:
    trial()
    code = "from determined import core; print(core.init().info.trial.trial_id)"
    env = {**os.environ, "PYTHONPATH": str(pathlib.Path(determined.__file__).parents[1])}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert (run.stdout, run.stderr) == ("2\n", "")


def test_a_writer_that_cannot_be_closed_keeps_no_file_from_being_stored(
    trial: Callable[..., None],
    master: StubMaster,
    storage: pathlib.Path,
    queueing_writer: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(writer: QueueingWriter) -> None:
        writer._file.close()
        raise OSError("no space")

    monkeypatch.setattr(QueueingWriter, "close", fail)
    trial()
    with core.init() as context:
        context.train.report_training_metrics(1, {"loss": 1})
        write("own")
    assert "no space" in caplog.text
    assert "own" in stored(storage)


def test_the_users_writer_and_the_platforms_never_have_one_file(
    trial: Callable[..., None], master: StubMaster, storage: pathlib.Path, queueing_writer: None
) -> None:
    """Both are opened in the same second, in either order: so the example of docs/notebooks.md."""
    trial()
    with core.init() as context:
        own = QueueingWriter(os.fspath(context.train.get_tensorboard_path()))
        for step in range(1, 101):
            own.add_scalar("learning_rate", 0.1, step)
            context.train.report_training_metrics(step, {"loss": step})
        late = QueueingWriter(os.fspath(context.train.get_tensorboard_path()), ".late")
        late.add_scalar("late", 1, 1)
        late.close()
        own.close()
    lines = {name: len((storage / STORED / name).read_text().splitlines()) for name in stored(storage)}
    (ours,) = (name for name in lines if ".determined-" in name)
    assert ours.startswith("events.out.tfevents."), "TensorBoard reads what is named so"
    assert lines == {
        ours: 100,
        "events.out.tfevents.1700000000.host": 100,
        "events.out.tfevents.1700000000.host.late": 1,
    }


def test_manual_copies_what_is_chosen_under_the_given_names(
    trial: Callable[..., None], master: StubMaster, storage: pathlib.Path
) -> None:
    trial()
    with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
        write("keep")
        write("skip")
        context.train.upload_tensorboard_files(
            selector=lambda path: path.name == "keep",
            mangler=lambda path, rank: path.with_name(f"{path.name}-{rank}"),
        )
        write("late")
        context.train.upload_tensorboard_files(selector=lambda path: path.name == "late")
    assert stored(storage) == {"keep-0", "late"}


def test_manual_uploads_nothing_by_itself(
    trial: Callable[..., None], master: StubMaster, storage: pathlib.Path
) -> None:
    trial()
    with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
        write("events")
        context.train.report_training_metrics(1, {"loss": 1})
    assert not storage.exists()


def test_tasks_of_all_users_make_their_directories_beside_each_other(
    trial: Callable[..., None], master: StubMaster, storage: pathlib.Path
) -> None:
    trial()
    before = os.umask(0o077)
    try:
        with core.init():
            write("events")
    finally:
        os.umask(before)
    common = [storage, *(storage / part for part in ("cluster-1", "cluster-1/tensorboard"))]
    common.append(common[-1] / "experiment")
    for directory in common:
        assert directory.stat().st_mode & 0o7777 == 0o1777, directory
    own = common[-1] / "1"
    assert own.stat().st_mode & 0o7777 == 0o700, "that of an experiment is as its code has it"
    assert stored(storage) == {"events"}


def test_what_an_administrator_made_keeps_its_mode(
    trial: Callable[..., None], master: StubMaster, storage: pathlib.Path
) -> None:
    (storage / "cluster-1").mkdir(parents=True)
    (storage / "cluster-1").chmod(0o750)
    trial()
    with core.init():
        write("events")
    assert (storage / "cluster-1").stat().st_mode & 0o7777 == 0o750
    assert stored(storage) == {"events"}


def test_a_failing_copy_is_a_warning_in_the_log_of_a_program_that_configures_no_logging(
    storage: pathlib.Path,
) -> None:
    code = (
        "import logging, sys\n"
        "from determined._core._context import _give_warnings_a_level\n"
        "_give_warnings_a_level()\n"
        "_give_warnings_a_level()\n"
        "logging.getLogger('determined.core').warning('could not be copied')\n"
        "logging.basicConfig(format='mine: %(message)s')\n"
        "logging.getLogger('determined.core').warning('once more')\n"
    )
    source = pathlib.Path(determined.__file__).parents[1]
    env = {**os.environ, "PYTHONPATH": str(source)}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    first, second = run.stderr.splitlines()
    assert first.startswith("WARNING: [") and first.endswith("] determined.core: could not be copied"), first
    assert second == "mine: once more"


def test_a_failing_copy_does_not_fail_the_training(
    trial: Callable[..., None], master: StubMaster, storage: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    trial()
    storage.write_text("a file is in the way")
    with core.init() as context:
        write("events")
        context.train.report_training_metrics(1, {"loss": 1})
    assert "could not be written or copied" in caplog.text
    assert len(master.points) == 1


def test_cloud_storage_refuses_an_upload(trial: Callable[..., None], master: StubMaster) -> None:
    trial(checkpoint_storage={"type": "s3", "bucket": "b"})
    with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
        with pytest.raises(errors.UnsupportedStorage, match="shared_fs"):
            context.train.upload_tensorboard_files()
