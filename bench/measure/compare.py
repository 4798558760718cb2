"""The same small jobs side by side: MLflow and Optuna from PyPI, and this product. Ratios of one run on one machine.

`bench/run.sh compare` installs the two into a virtual environment below bench/results/ and runs:

- 10,000 values of a metric, one call each, until all are durable: `mlflow.log_metric` with its SQLite store, and
  `report_training_metrics` of our Python package in a trial.
- Decisions of a random search, each durable before the next is asked for: Optuna's `ask` and `tell` with its SQLite
  storage, and validations that a trial of ours reports, each taken in and answered by the search in one transaction.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import venv

from measure import facts
from measure.cluster import SHARED, Cluster, Failed
from measure.figures.intake import Reporter, start_reporters
from measure.load import closed_loop, request
from measure.results import shown
from measure.stores import own

PEERS = ("mlflow", "optuna")
VALUES = 10_000
DECISIONS = 500

MLFLOW = """
import json, sys, time, logging
logging.disable(logging.CRITICAL)
import mlflow
mlflow.set_tracking_uri("sqlite:///" + sys.argv[1] + "/mlflow.db")
mlflow.set_experiment("compare")
with mlflow.start_run():
    mlflow.log_metric("warm", 1.0)
    began = time.perf_counter()
    for step in range(int(sys.argv[2])):
        mlflow.log_metric("loss", 1.0 / (step + 1), step=step)
    print(json.dumps(time.perf_counter() - began))
"""

OPTUNA = """
import json, sys, time
import optuna
optuna.logging.disable_default_handler()
study = optuna.create_study(
    storage="sqlite:///" + sys.argv[1] + "/optuna.db", sampler=optuna.samplers.RandomSampler(seed=1)
)
began = time.perf_counter()
for number in range(int(sys.argv[2])):
    trial = study.ask()
    x = trial.suggest_float("x", 0, 1)
    study.tell(trial, x)
print(json.dumps(time.perf_counter() - began))
"""

OURS = """
import json, os, time
from determined import core
began = time.perf_counter()
with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
    for step in range(1, {count} + 1):
        context.train.report_training_metrics(step, {{"loss": 1.0 / step}})
# Leaving the context waits until the last value is durable.
taken = time.perf_counter() - began
with open("{out}.new", "w") as file:
    json.dump(taken, file)
os.rename("{out}.new", "{out}")
"""


def main(det: pathlib.Path, results: pathlib.Path, quick: bool) -> int:
    values, decisions = (500, 50) if quick else (VALUES, DECISIONS)
    python = _peers(results / "peers")
    with tempfile.TemporaryDirectory(prefix="det-compare-") as work:
        os.chmod(work, 0o711)
        mlflow = _run(python, MLFLOW, work, values)
        optuna = _run(python, OPTUNA, work, decisions)
        with own("sqlite") as store, Cluster(det, pathlib.Path(work), store, slots=2, python=sys.executable) as cluster:
            ours = _report(cluster, values)
            validations = _validations(cluster, 1.0 if quick else 5.0)
    rows = [
        ("values of a metric per second", "MLflow", values / mlflow, values / ours),
        ("durable validations of a search per second", "Optuna", decisions / optuna, validations),
    ]
    for what, peer, theirs, own_rate in rows:
        print(f"{what}: {peer} {shown(theirs)}, det {shown(own_rate)}: {own_rate / theirs:.1f} times as many")
    return 0


def _peers(directory: pathlib.Path) -> str:
    python = directory / "bin" / "python"
    ready = directory / "ready"
    if not ready.is_file():
        print(f"installing {', '.join(PEERS)} into {directory}", flush=True)
        venv.create(directory, with_pip=True, clear=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PEERS], check=True)
        ready.touch()
    printed = subprocess.run([str(python), "-m", "pip", "freeze"], capture_output=True, text=True, check=True).stdout
    versions = [line for line in printed.splitlines() if line.partition("==")[0].lower() in PEERS]
    print(", ".join(versions), flush=True)
    return str(python)


def _run(python: str, code: str, work: str, count: int) -> float:
    done = subprocess.run([python, "-c", code, work, str(count)], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(done.stderr[-2000:])
    return float(json.loads(done.stdout.splitlines()[-1]))


def _report(cluster: Cluster, count: int) -> float:
    script = cluster.shared / "report.py"
    script.write_text(OURS.format(count=count, out=f"{SHARED}/report.json"))
    script.chmod(0o644)
    experiment = cluster.submit(cluster.config(f"python3 {SHARED}/report.py")).id
    state = cluster.wait_ended(experiment, within=600)
    if state != "STATE_COMPLETED":
        raise Failed(f"the reporting trial ended as {state}")
    cluster.wait_idle()
    return float(json.loads((cluster.shared / "report.json").read_text()))


def _validations(cluster: Cluster, seconds: float) -> float:
    """Validations per second that one trial reports one after another; the search receives each."""
    experiment, reporters = start_reporters(cluster, 1)
    window = closed_loop(cluster.port, [_validation_requests(reporters[0])], seconds)
    cluster.kill(experiment)
    return window.per_second


def _validation_requests(reporter: Reporter):
    step = 0

    def next_request() -> bytes:
        nonlocal step
        step += 1
        metrics = {
            "trialId": reporter.trial,
            "trialRunId": reporter.run,
            "stepsCompleted": step,
            "metrics": {"avgMetrics": {"loss": 1.0 / step}},
        }
        body = json.dumps({"group": "validation", "metrics": metrics}).encode()
        return request("POST", f"/api/v1/trials/{reporter.trial}/metrics", reporter.headers(), body)

    return next_request


if __name__ == "__main__":
    sys.exit(
        main(
            pathlib.Path(os.environ["DET_BIN"]).resolve(),
            facts.ROOT / "bench" / "results",
            "--quick" in sys.argv[1:],
        )
    )
