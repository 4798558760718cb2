"""Prints what one training step pays for a metric report and a preemption check, in microseconds.

A recording master in another process answers over real HTTP. The budget is 50 µs per step.
"""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import platform
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

STEPS = 500
# A step of real training is milliseconds; without any pause the queue fills and the step waits for
# the master, which is back-pressure and not overhead.
STEP_S = 0.003


def serve(pipe: multiprocessing.connection.Connection) -> None:
    from stub_master import StubMaster

    with StubMaster() as master:
        pipe.send(master.url)
        pipe.recv()
        master.preempt.set()
        pipe.send(len(master.points))


def main() -> None:
    from conftest import task_env

    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    with tempfile.TemporaryDirectory() as storage:
        os.environ.update(task_env(ours.recv(), pathlib.Path(storage)))
        from determined import core

        reports, checks = [], []
        metrics = {"loss": 0.5, "accuracy": 0.9, "learning_rate": 1e-3}
        with core.init() as context:
            context.preempt.should_preempt()
            for step in range(1, STEPS + 1):
                started = time.perf_counter()
                context.train.report_training_metrics(step, metrics)
                reported = time.perf_counter()
                context.preempt.should_preempt()
                checked = time.perf_counter()
                reports.append((reported - started) * 1e6)
                checks.append((checked - reported) * 1e6)
                time.sleep(STEP_S)
    ours.send("stop")
    stored = ours.recv()
    process.join()
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for name, times in (("metric report", reports), ("preemption check", checks)):
        p95 = statistics.quantiles(times, n=20)[-1]
        print(f"{name:17} median {statistics.median(times):6.1f} µs, 95% below {p95:6.1f} µs")
    print(f"{STEPS} reports made, {stored} stored")


if __name__ == "__main__":
    main()
