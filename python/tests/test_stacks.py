"""Stacks for the supervisor: what the process writes when it is asked."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time

SLEEPER = """
import pathlib, sys, time
from determined._core import _stacks

def hang():
    print(_stacks.offer(pathlib.Path(sys.argv[1])), _stacks.offer(pathlib.Path(sys.argv[1])), flush=True)
    time.sleep(600)

hang()
"""


def test_a_process_that_sleeps_writes_where_it_is(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-c", SLEEPER, str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "True True\n"
            file = tmp_path / str(process.pid)
            assert file.read_bytes() == b""
            process.send_signal(16)
            deadline = time.monotonic() + 30
            while "in <module>" not in (text := file.read_text()):
                assert time.monotonic() < deadline, text
            assert "in hang" in text
            assert process.poll() is None
        finally:
            process.kill()


def test_without_a_supervisor_nothing_is_offered(tmp_path: pathlib.Path) -> None:
    from determined._core import _stacks

    assert not _stacks.offer(tmp_path / "absent")
