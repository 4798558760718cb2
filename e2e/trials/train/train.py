"""Trains nothing, but reports in all the ways of a training script.

Hyperparameters: `steps`; `checkpoint_every`; `rate`, which scales the loss; `fail_at` and `fail_runs`, the step at
which the first so many runs exit with code 3; `hold_at`, the step from which it waits for the file `go` in E2E_DIR, or
to be preempted; `invalid`, which makes the hyperparameters invalid. Runs with either `determined` package.
"""

import json
import os
import pathlib
import sys
import time

import determined as det
from determined import core


def save(context, steps):
    with context.checkpoint.store_path({"steps_completed": steps}) as (path, uuid):
        (pathlib.Path(path) / "state.json").write_text(json.dumps({"steps": steps}))
        print(f"checkpoint {uuid} at step {steps}", flush=True)


def restore(context, uuid):
    with context.checkpoint.restore_path(uuid) as path:
        return json.loads((pathlib.Path(path) / "state.json").read_text())["steps"]


def hold(context):
    print("holding", flush=True)
    go = pathlib.Path(os.environ["E2E_DIR"], "go")
    while not go.exists() and not context.preempt.should_preempt():
        time.sleep(0.05)


def train(context, info):
    hparams = {"steps": 4, "checkpoint_every": 2, "rate": 1.0, **info.trial.hparams}
    run = int(os.environ["DET_TRIAL_RUN_ID"])
    if hparams.get("invalid"):
        raise det.InvalidHP("invalid on purpose")
    done = restore(context, info.latest_checkpoint) if info.latest_checkpoint is not None else 0
    print(f"run {run} starts after step {done} with {json.dumps(hparams, sort_keys=True)}", flush=True)
    for step in range(done + 1, hparams["steps"] + 1):
        loss = hparams["rate"] / step
        context.train.report_training_metrics(steps_completed=step, metrics={"loss": loss})
        context.train.report_validation_metrics(steps_completed=step, metrics={"validation_loss": loss, "epochs": step})
        context.train.report_progress(step / hparams["steps"])
        saved = step % hparams["checkpoint_every"] == 0 or step == hparams["steps"]
        if saved:
            save(context, step)
        if step == hparams.get("fail_at") and run <= hparams.get("fail_runs", 1):
            print("failing on purpose", flush=True)
            sys.exit(3)
        if "hold_at" in hparams and step >= hparams["hold_at"]:
            hold(context)
        if context.preempt.should_preempt():
            if not saved:
                save(context, step)
            print(f"asked to stop after step {step}", flush=True)
            return
    print(f"run {run} is done", flush=True)


with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
    train(context, det.get_cluster_info())
