"""The ledger load through the Core API, as training scripts are written; see `ledger.py` for the ledger's lines.

Metrics are sent in the background: they count as acknowledged when a checkpoint that came behind them is, or when the
context has ended. Asked to stop, it saves and leaves.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time
import zlib

import determined as det
from determined import core
from ledger import DIRECTORY, RUN, STEPS, TRIAL, Ledger, leave_credentials

RATE = float(os.environ.get("CHAOS_RATE", "10"))
CHECKPOINT_EVERY = int(os.environ.get("CHAOS_CHECKPOINT_EVERY", "0"))
VALIDATE_EVERY = int(os.environ.get("CHAOS_VALIDATE_EVERY", "0"))


def checksum(step: int) -> int:
    return zlib.crc32(f"{TRIAL}/{step}".encode())


class Reported:
    """What was reported and may still be on its way to the master."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._steps: list[tuple[str, int]] = []

    def add(self, kind: str, step: int) -> None:
        self._steps.append((kind, step))

    def acknowledged(self) -> None:
        """Everything has arrived."""
        for kind, step in self._steps:
            self._ledger.write(kind, RUN, step, checksum(step))
        self._steps.clear()


def save(context: core.Context, ledger: Ledger, reported: Reported, step: int) -> None:
    with context.checkpoint.store_path({"steps_completed": step}) as (path, uuid):
        content = json.dumps({"step": step, "checksum": checksum(step)})
        (pathlib.Path(path) / "state.json").write_text(content)
    reported.acknowledged()
    manifest = json.dumps({"state.json": len(content)}, separators=(",", ":"))
    ledger.write("checkpoint", RUN, step, checksum(step), uuid, manifest)


def run(context: core.Context, ledger: Ledger, reported: Reported) -> int:
    """Trains until the end, and gives the last step; or until it is preempted."""
    step, latest = 0, det.get_cluster_info().latest_checkpoint
    if latest is not None:
        with context.checkpoint.restore_path(latest) as path:
            step = int(json.loads((pathlib.Path(path) / "state.json").read_text())["step"])
    ledger.write("start", RUN, step, latest or "-")
    while not (STEPS and step >= STEPS) and not (DIRECTORY / "stop").exists():
        began = time.monotonic()
        step += 1
        print(f"line {TRIAL} {RUN} {step} {checksum(step)}", flush=True)
        ledger.write("printed", RUN, step, checksum(step))
        values = {"sequence": step, "checksum": checksum(step)}
        context.train.report_training_metrics(steps_completed=step, metrics=values)
        reported.add("metric", step)
        if VALIDATE_EVERY and step % VALIDATE_EVERY == 0:
            context.train.report_validation_metrics(step, {**values, "validation_loss": 1 / step})
            reported.add("validation", step)
        preempted = context.preempt.should_preempt()
        if preempted or (CHECKPOINT_EVERY and step % CHECKPOINT_EVERY == 0):
            save(context, ledger, reported, step)
        if preempted:
            sys.exit(0)
        time.sleep(max(0.0, began + 1 / RATE - time.monotonic()))
    return step


def main() -> None:
    leave_credentials()
    ledger = Ledger(DIRECTORY, TRIAL)
    reported = Reported(ledger)
    with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
        step = run(context, ledger, reported)
    reported.acknowledged()
    ledger.write("end", RUN, step, "-")


main()
