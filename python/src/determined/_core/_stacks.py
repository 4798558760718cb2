"""Lets the supervisor of a task read where this process is: `det trial doctor` shows it.

The supervisor sends a signal, and the interpreter writes the stacks of all threads into a file that only this
task sees, at any moment: also while the code sleeps, waits in a system call or holds the interpreter's lock.
"""

from __future__ import annotations

import faulthandler
import os
import pathlib
import signal
import sys
from typing import BinaryIO

#: The signal: one that the kernel never sends (`SIGSTKFLT`). The supervisor sends it to those that handle it
#: and have a file.
SIGNAL = 16
#: Where the supervisor looks for files, with the id of the process as name.
DIRECTORY = pathlib.Path("/run/determined/stacks")

# The file must stay open for as long as the signal may come.
_file: BinaryIO | None = None


def offer(directory: pathlib.Path = DIRECTORY) -> bool:
    """Begins to write stacks when the supervisor asks; False = it does not look, or the signal is in use."""
    global _file
    if sys.platform != "linux" or not directory.is_dir():
        return False
    path = directory / str(os.getpid())
    if _file is not None and path.exists():
        return True
    try:
        if signal.getsignal(SIGNAL) is not signal.SIG_DFL:
            return False
        file = path.open("ab", buffering=0)
    except (OSError, ValueError):
        return False
    try:
        faulthandler.register(SIGNAL, file=file, all_threads=True, chain=False)
    except (OSError, RuntimeError, ValueError):
        file.close()
        path.unlink(missing_ok=True)
        return False
    _file = file
    return True
