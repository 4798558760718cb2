"""Prints how long `import determined` takes in a fresh interpreter: median and range of several runs.

The budget is 60 ms on two cores. Not a test: the time depends as much on the machine as on the package.
"""

from __future__ import annotations

import os
import pathlib
import platform
import statistics
import subprocess
import sys

RUNS = 15
SRC = pathlib.Path(__file__).resolve().parent.parent / "src"
CODE = "import time; t = time.perf_counter(); import {}; print((time.perf_counter() - t) * 1000)"


def measure(module: str) -> list[float]:
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    command = [sys.executable, "-c", CODE.format(module)]
    subprocess.run(command, env=env, check=True, capture_output=True)  # Fills the caches.
    return [
        float(subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout)
        for _ in range(RUNS)
    ]


def main() -> None:
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {load:.1f}, {RUNS} runs each")
    for module in ("logging, json, pathlib, typing", "determined"):
        times = measure(module)
        print(f"{statistics.median(times):6.1f} ms ({min(times):.1f} to {max(times):.1f})  import {module}")


if __name__ == "__main__":
    main()
