"""Reports step after step until the file `stop` exists, and keeps a ledger of what the master acknowledged.

While the file `no-saves` exists it makes no checkpoints, whose client waits for a master that is away without a sign.
Metrics go over plain HTTP, so that each acknowledgement is seen: a step is in the ledger when its report was answered
with 200. A report whose answer was lost is sent again, as clients do. Every step prints one line. Checkpoints go
through `determined.core`; a new run goes on after the newest one.
"""

import http.client
import json
import os
import pathlib
import time
import urllib.error
import urllib.request

import determined as det
from determined import core

DIR = pathlib.Path(os.environ["E2E_DIR"])
RUN = int(os.environ["DET_TRIAL_RUN_ID"])
TRIAL = int(os.environ["DET_TRIAL_ID"])


def acknowledge(step):
    with (DIR / "ledger").open("a") as ledger:
        ledger.write(f"{RUN} {step}\n")
        ledger.flush()
        os.fsync(ledger.fileno())


def report(step):
    metrics = {
        "trialId": TRIAL,
        "trialRunId": RUN,
        "stepsCompleted": step,
        "metrics": {"avgMetrics": {"loss": 1 / step}},
    }
    body = json.dumps({"group": "training", "metrics": metrics}).encode()
    request = urllib.request.Request(f"{os.environ['DET_MASTER'].rstrip('/')}/api/v1/trials/{TRIAL}/metrics", data=body)
    request.add_header("Grpc-Metadata-x-allocation-token", f"Bearer {os.environ['DET_SESSION_TOKEN']}")
    while True:
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                answer.read()
                return
        except urllib.error.HTTPError:
            # Not acknowledged and not to be: the master refused it.
            raise
        except (OSError, http.client.HTTPException):
            (DIR / "away").touch()
            time.sleep(0.1)


def save(context, step):
    with context.checkpoint.store_path({"steps_completed": step}) as (path, uuid):
        (pathlib.Path(path) / "state.json").write_text(json.dumps({"steps": step}))
    with (DIR / "checkpoints").open("a") as out:
        out.write(f"{uuid} {step}\n")


def main(context):
    latest = det.get_cluster_info().latest_checkpoint
    step = 0
    if latest is not None:
        with context.checkpoint.restore_path(latest) as path:
            step = json.loads((pathlib.Path(path) / "state.json").read_text())["steps"]
    print(f"run {RUN} starts after step {step}", flush=True)
    while not (DIR / "stop").exists():
        step += 1
        print(f"line {RUN} {step}", flush=True)
        report(step)
        acknowledge(step)
        if step % 10 == 0 and not (DIR / "no-saves").exists():
            save(context, step)
        if context.preempt.should_preempt():
            save(context, step)
            print(f"asked to stop after step {step}", flush=True)
            return
        time.sleep(0.02)
    print(f"run {RUN} ends after step {step}", flush=True)


with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
    main(context)
