"""The ledger load through the Core API, as training scripts are written; see `ledger.py` for the ledger's lines.

A report counts as acknowledged when the call has returned. Asked to stop, it saves and leaves.
"""

from __future__ import annotations

import json
import os
import pathlib
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


def save(context: core.Context, ledger: Ledger, step: int) -> None:
    with context.checkpoint.store_path({"steps_completed": step}) as (path, uuid):
        content = json.dumps({"step": step, "checksum": checksum(step)})
        (pathlib.Path(path) / "state.json").write_text(content)
    manifest = json.dumps({"state.json": len(content)}, separators=(",", ":"))
    ledger.write("checkpoint", RUN, step, checksum(step), uuid, manifest)


def main(context: core.Context) -> None:
    leave_credentials()
    ledger = Ledger(DIRECTORY, TRIAL)
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
        ledger.write("metric", RUN, step, checksum(step))
        if VALIDATE_EVERY and step % VALIDATE_EVERY == 0:
            context.train.report_validation_metrics(step, {**values, "validation_loss": 1 / step})
            ledger.write("validation", RUN, step, checksum(step))
        preempted = context.preempt.should_preempt()
        if preempted or (CHECKPOINT_EVERY and step % CHECKPOINT_EVERY == 0):
            save(context, ledger, step)
        if preempted:
            return
        time.sleep(max(0.0, began + 1 / RATE - time.monotonic()))
    ledger.write("end", RUN, step, "-")


with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
    main(context)
