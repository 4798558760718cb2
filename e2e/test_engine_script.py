"""What `scripts/test-engine` prints where it cannot do what it is asked for."""

from __future__ import annotations

import pathlib
import subprocess

import pytest

pytestmark = pytest.mark.core

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "scripts" / "test-engine"


def engine(*words: object) -> tuple[int, str]:
    done = subprocess.run([str(SCRIPT), *map(str, words)], capture_output=True, text=True, timeout=30)
    return done.returncode, done.stderr


def test_a_directory_that_does_not_exist_is_named(tmp_path: pathlib.Path) -> None:
    code, message = engine(tmp_path / "absent")
    assert code == 2, message
    assert message == f'test-engine: there is no directory "{tmp_path}/absent" for the engine\'s data; make it first\n'


@pytest.mark.parametrize("action", ["stop", "cont"])
def test_an_engine_that_does_not_run_is_not_frozen(tmp_path: pathlib.Path, action: str) -> None:
    code, message = engine(tmp_path, action)
    assert code == 1, message
    assert message == f'test-engine: no engine with data below "{tmp_path}" runs\n'


def test_what_it_cannot_do_is_named_with_what_it_can(tmp_path: pathlib.Path) -> None:
    code, message = engine(tmp_path, "nonsense")
    assert code == 2 and "restart, kill, stop, cont" in message, message
