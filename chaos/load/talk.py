"""Prints a long log at once, then a line each second until the file "stop" exists."""

from __future__ import annotations

import os
import pathlib
import time

LINES = int(os.environ["CHAOS_LINES"])
BYTES = int(os.environ["CHAOS_LINE_BYTES"])
DIRECTORY = pathlib.Path(os.environ["CHAOS_DIR"])

for number in range(LINES):
    print(f"talk {number} {'x' * BYTES}")
print("all printed", flush=True)
while not (DIRECTORY / "stop").exists():
    print(f"still here {time.time():.0f}", flush=True)
    time.sleep(1)
