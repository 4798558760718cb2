"""A trial that writes down what was acknowledged. Python's standard library only, so that many of them are cheap.

Each step has a sequence number and a checksum of trial and number. It is printed as a line, reported as a metric, and
now and then saved as a checkpoint of two files. A line goes into the ledger *after* the thing it records was
acknowledged, and is on its way to the disk before the next step begins. Requests without an answer are sent again, as
clients do; a refusal (4xx) is written down and ends the run.

The ledger, one file for each trial, at CHAOS_DIR, which is outside the task's sandbox:

    start RUN STEP CHECKPOINT        a run begins, after STEP, from CHECKPOINT ("-" = from nothing)
    printed RUN STEP CHECKSUM        a line went to standard output
    metric RUN STEP CHECKSUM         the report was answered with 200
    validation RUN STEP CHECKSUM     the same for the group "validation"
    checkpoint RUN STEP CHECKSUM UUID MANIFEST      MANIFEST = {"path": bytes}, as JSON without blanks
    refused RUN STEP STATUS TEXT     an answer that refuses
    end RUN STEP -                   the run ends by itself
"""

from __future__ import annotations

import http.client
import json
import os
import pathlib
import random
import sys
import time
import urllib.parse
import uuid
import zlib

DIRECTORY = pathlib.Path(os.environ["CHAOS_DIR"])
RATE = float(os.environ.get("CHAOS_RATE", "10"))
# 0 = until the file "stop" exists.
STEPS = int(os.environ.get("CHAOS_STEPS", "0"))
CHECKPOINT_EVERY = int(os.environ.get("CHAOS_CHECKPOINT_EVERY", "0"))
VALIDATE_EVERY = int(os.environ.get("CHAOS_VALIDATE_EVERY", "0"))
# Bytes of filling in each checkpoint and each printed line.
CHECKPOINT_BYTES = int(os.environ.get("CHAOS_CHECKPOINT_BYTES", "1000"))
LINE_BYTES = int(os.environ.get("CHAOS_LINE_BYTES", "0"))
STORAGE = pathlib.Path("/determined_shared_fs")
TRIAL = int(os.environ["DET_TRIAL_ID"])
RUN = int(os.environ["DET_TRIAL_RUN_ID"])
# A connection on which nothing comes for so long is given up; a real client waits longer and finds the same.
PATIENCE = 15.0


class Refused(Exception):
    """The master refused a request."""


class Ledger:
    """The file. One writer at a time, or there are two live runs: the checker finds these by their lines."""

    def __init__(self, directory: pathlib.Path, trial: int) -> None:
        self._file = os.open(directory / f"trial-{trial}.ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    def write(self, *words: object) -> None:
        line = " ".join(str(word) for word in words) + "\n"
        os.write(self._file, line.encode())
        os.fsync(self._file)


class Api:
    """Requests to the master on one connection that is made anew when it breaks."""

    def __init__(self) -> None:
        url = urllib.parse.urlsplit(os.environ["DET_MASTER"])
        self._host, self._port = str(url.hostname), url.port or 80
        self._token = os.environ["DET_SESSION_TOKEN"]
        self._connection: http.client.HTTPConnection | None = None
        self._random = random.Random(f"{TRIAL} {RUN}")

    def post(self, path: str, body: dict) -> None:
        """Sends until it is acknowledged. Raises `Refused` with status and words for a 4xx."""
        data = json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        while True:
            try:
                if self._connection is None:
                    self._connection = http.client.HTTPConnection(self._host, self._port, timeout=PATIENCE)
                self._connection.request("POST", path, data, headers)
                answer = self._connection.getresponse()
                text = answer.read()
            except (OSError, http.client.HTTPException):
                self._drop()
                time.sleep(self._random.uniform(0.05, 0.3))
                continue
            if answer.status == 200:
                return
            if answer.status < 500:
                raise Refused(answer.status, text.decode(errors="replace"))
            time.sleep(self._random.uniform(0.05, 0.3))

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def checksum(step: int) -> int:
    return zlib.crc32(f"{TRIAL}/{step}".encode())


def report(api: Api, group: str, step: int) -> None:
    values = {"sequence": step, "checksum": checksum(step)}
    if group == "validation":
        values["validation_loss"] = 1 / step
    metrics = {"trialId": TRIAL, "trialRunId": RUN, "stepsCompleted": step, "metrics": {"avgMetrics": values}}
    api.post(f"/api/v1/trials/{TRIAL}/metrics", {"group": group, "metrics": metrics})


def save(api: Api, step: int) -> tuple[str, dict[str, int]]:
    """A checkpoint of two files; its UUID and manifest."""
    name = str(uuid.uuid4())
    state = json.dumps({"step": step, "checksum": checksum(step)}).encode()
    files = {"state.json": state, "part/filling.bin": os.urandom(CHECKPOINT_BYTES)}
    while True:
        try:
            for path, content in files.items():
                target = STORAGE / name / path
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as out:
                    out.write(content)
                    out.flush()
                    os.fsync(out.fileno())
            break
        except OSError as error:
            # A full disk: space may be freed.
            print(f"checkpoint storage: {error}", flush=True)
            time.sleep(0.5)
    manifest = {path: len(content) for path, content in files.items()}
    body = {
        "uuid": name,
        "taskId": os.environ["DET_TASK_ID"],
        "allocationId": os.environ["DET_ALLOCATION_ID"],
        "metadata": {"steps_completed": step},
        "resources": {**manifest, "part/": 0},
        "state": "STATE_COMPLETED",
    }
    api.post("/api/v1/checkpoints", body)
    return name, manifest


def last_step() -> tuple[int, str]:
    """Where the run goes on: the step of the newest checkpoint, and its UUID."""
    name = os.environ.get("DET_LATEST_CHECKPOINT")
    if not name:
        return 0, "-"
    state = json.loads((STORAGE / name / "state.json").read_text())
    assert state["checksum"] == checksum(state["step"]), f"checkpoint {name} is damaged"
    return int(state["step"]), name


def leave_credentials() -> None:
    """What the checker needs in order to speak as this run after its end."""
    names = ("DET_SESSION_TOKEN", "DET_ALLOCATION_ID", "DET_TASK_ID", "DET_TRIAL_ID", "DET_TRIAL_RUN_ID")
    facts = {name: os.environ[name] for name in names}
    new = DIRECTORY / f".credentials-{TRIAL}-{RUN}"
    new.write_text(json.dumps(facts))
    new.rename(DIRECTORY / f"credentials-{TRIAL}-{RUN}.json")


def main() -> int:
    leave_credentials()
    ledger, api = Ledger(DIRECTORY, TRIAL), Api()
    step, checkpoint = last_step()
    ledger.write("start", RUN, step, checkpoint)
    try:
        while not (STEPS and step >= STEPS) and not (DIRECTORY / "stop").exists():
            began = time.monotonic()
            step += 1
            print(
                f"line {TRIAL} {RUN} {step} {checksum(step)}{' ' + 'x' * LINE_BYTES if LINE_BYTES else ''}", flush=True
            )
            ledger.write("printed", RUN, step, checksum(step))
            report(api, "training", step)
            ledger.write("metric", RUN, step, checksum(step))
            if VALIDATE_EVERY and step % VALIDATE_EVERY == 0:
                report(api, "validation", step)
                ledger.write("validation", RUN, step, checksum(step))
            if CHECKPOINT_EVERY and step % CHECKPOINT_EVERY == 0:
                name, manifest = save(api, step)
                words = json.dumps(manifest, separators=(",", ":"))
                ledger.write("checkpoint", RUN, step, checksum(step), name, words)
            time.sleep(max(0.0, began + 1 / RATE - time.monotonic()))
    except Refused as refusal:
        status, text = refusal.args
        ledger.write("refused", RUN, step, status, text.replace("\n", " ")[:500])
        print(f"refused: {status} {text}", flush=True)
        return 9
    ledger.write("end", RUN, step, "-")
    return 0


if __name__ == "__main__":
    sys.exit(main())
