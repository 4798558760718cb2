"""What `scripts/run-tests` reports of the tests that it has run."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import pathlib
import sys
from types import ModuleType

import pytest

pytestmark = pytest.mark.core

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "scripts" / "run-tests"


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.delenv("DET_TEST_IMAGE", raising=False)
    loader = importlib.machinery.SourceFileLoader("run_tests", str(SCRIPT))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # Data classes look for their module there.
    monkeypatch.setitem(sys.modules, loader.name, module)
    loader.exec_module(module)
    return module


CARGO = """
test docker::a_task_runs ... ignored, needs a Docker engine
test the_masters_process ... ignored, the master's process; started by the tests
successes:
---- on_postgres stdout ----
SKIPPED: store contract on PostgreSQL, users: DET_TEST_POSTGRES_URL is not set
---- on_postgres_too stdout ----
SKIPPED: plans of listings on PostgreSQL: DET_TEST_POSTGRES_URL is not set
---- memory stdout ----
SKIPPED: this system does not report the memory of a process
test result: ok. 5 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.1s
"""

PYTEST = """
SKIPPED [3] test_tls.py:62: DET_WHEEL_PYTHON names no interpreter with determined==0.38.1 from PyPI
======= 4 passed, 3 skipped in 0.10s =======
"""


def test_what_was_skipped_is_reported_in_one_line_with_how_to_run_it(runner: ModuleType) -> None:
    counts = runner.Counts()
    for reader, output in [(runner.CargoReader(), CARGO), (runner.PytestReader(), PYTEST)]:
        for line in output.splitlines():
            reader.read(line)
        counts.add(reader.counts)
    assert str(counts) == "6 passed, 0 failed, 7 skipped"
    summary = counts.explained()
    assert summary.count("\n") == 0 and summary.startswith("skipped: ")
    for part in (
        "2 for want of PostgreSQL (set DET_TEST_POSTGRES_URL=postgres://…)",
        "1 for want of a Docker engine (DET_TEST_IMAGE=$(scripts/test-images) make e2e-docker)",
        "3 for want of the PyPI client (set DET_WHEEL_PYTHON",
        "1: this system does not report the memory of a process",
    ):
        assert part in summary, summary


def test_nothing_is_reported_where_nothing_was_skipped(runner: ModuleType) -> None:
    assert runner.Counts(passed=3).explained() is None
    assert "2 for reasons in .cache/test/" in runner.Counts(skipped=2).explained()
