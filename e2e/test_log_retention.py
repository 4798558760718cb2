"""Logs are kept as long as the unmodified client sets, and gone afterwards; those of others stay."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

import harness
from configs import experiment
from conftest import equipment, flavoured
from harness import Agent, Cluster
from waiting import wait_for

pytestmark = pytest.mark.client

ADMIN = {"DET_USER": "admin", "DET_PASS": ""}


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with equipment():
        harness.wheel_det()
    flavour = "core" if request.param == "sqlite" else "postgres"
    with flavoured(flavour, agents=[Agent(slots=2)], master_config={"cluster_name": "kept"}) as cluster:
        yield cluster


def reload(cluster: Cluster, **retention: Any) -> None:
    """Gives the running master another retention policy."""
    config = {"cluster_name": "kept", "retention_policy": retention}
    (cluster.root / "master.yaml").write_text(yaml.safe_dump(config))
    cluster.run_det("master", "reload", env=ADMIN)


def ended_after_printing(cluster: Cluster, name: str, **more: Any) -> Any:
    """A trial that has printed its name and ended."""
    trial = cluster.run(experiment(name, f"echo this is {name}", **more))
    assert f"this is {name}" in cluster.client("trial", "logs", trial["id"]).out
    return trial


def cleanup(cluster: Cluster) -> int:
    out = cluster.client("task", "cleanup-logs", env=ADMIN).out
    [count] = re.findall(r"Deleted (\d+) rows of log entries", out)
    return int(count)


def test_logs_go_when_the_client_sets_so_and_others_stay(cluster: Cluster) -> None:
    gone, kept, ever = (ended_after_printing(cluster, name) for name in ("gone", "kept", "ever"))
    configured = ended_after_printing(cluster, "configured", retention_policy={"log_retention_days": 0})
    live = cluster.submit(experiment("live", "echo this is live; sleep 3600"))
    running = cluster.only_trial(live)
    cluster.wait_log(running["id"], "this is live")

    cluster.client("experiment", "set", "log-retention", gone["experimentId"], "--days", 0)
    cluster.client("trial", "set", "log-retention", kept["id"], "--days", 30)
    cluster.client("trial", "set", "log-retention", ever["id"], "--forever")
    cluster.client("experiment", "set", "log-retention", live, "--days", 0)
    trials = (gone, kept, ever, configured, running)
    shown = [cluster.trial(trial["id"])["logRetentionDays"] for trial in trials]
    assert shown == [0, 30, -1, 0, 0]
    path = "/api/v1/trials/{}/remaining_log_retention_days"
    left = [cluster.api("GET", path.format(trial["id"]))["remainingDays"] for trial in trials]
    assert left == [0, 30, -1, 0, 0]

    refused = cluster.client("task", "cleanup-logs", check=False)
    assert refused.code != 0 and "administrator" in refused.err + refused.out and "Traceback" not in refused.err
    lines = sum(len(cluster.logs(trial["id"])) for trial in (gone, configured))
    assert lines > 2
    assert cleanup(cluster) == lines
    for trial in (gone, configured):
        assert cluster.client("trial", "logs", trial["id"]).out.strip() in ("", end_of_logs(trial["id"]))
        assert "this is" not in cluster.client("task", "logs", trial["taskId"]).out
        assert "this is" not in cluster.client("trial", "logs", "-f", trial["id"]).out
        ours = cluster.run_det("trial", "logs", trial["id"])
        assert ours.out == "" and f"the logs of trial {trial['id']} were deleted at 20" in ours.err
    for trial, name in ((kept, "kept"), (ever, "ever"), (running, "live")):
        assert f"this is {name}" in cluster.client("trial", "logs", trial["id"]).out
    assert cleanup(cluster) == 0
    cluster.client("experiment", "kill", live)
    cluster.wait_experiment(live, "CANCELED")
    # What was alive is due at once now that it has ended.
    wait_for("its log to be gone", lambda: cleanup(cluster) > 0 or not cluster.logs(running["id"]), within=30)
    assert "this is" not in cluster.client("trial", "logs", running["id"]).out


def end_of_logs(trial: int) -> str:
    """What the client prints behind the last line."""
    return f"Trial log stream ended. To reopen log stream, run: det trial logs -f {trial}"


def test_a_reloaded_schedule_sweeps_and_survives_the_master(cluster: Cluster) -> None:
    plain, kept = ended_after_printing(cluster, "plain"), ended_after_printing(cluster, "own")
    cluster.run_det("trial", "set", "log-retention", kept["id"], "--days", 5)
    assert "Deleted 0 lines" in cluster.run_det("task", "cleanup-logs", env=ADMIN).out, "for ever unless days are set"
    reload(cluster, log_retention_days=0)
    assert cluster.logs(plain["id"]), "nothing is deleted without a schedule"
    reload(cluster, log_retention_days=0, schedule="1s")
    wait_for("the sweep", lambda: not cluster.logs(plain["id"]), within=30)
    assert "this is own" in cluster.client("trial", "logs", kept["id"]).out
    cluster.expect_alarm("lost the master|no connection to the master")
    cluster.restart("master")
    cluster.wait_for_master()
    cluster.wait_for_agents("agent-1")
    after = cluster.run(experiment("after", "echo this is after"))
    wait_for("the sweep of the new master", lambda: not cluster.logs(after["id"]), within=30)
    reload(cluster, log_retention_days=-1)
    last = ended_after_printing(cluster, "last")
    assert cleanup(cluster) == 0
    assert cluster.logs(last["id"])


def test_refusals_contain_what_is_allowed(cluster: Cluster) -> None:
    trial = ended_after_printing(cluster, "refused")
    for thing, number in (("experiments", trial["experimentId"]), ("trials", trial["id"])):
        with pytest.raises(harness.ApiError, match="-1 to 32767"):
            cluster.api("PUT", f"/api/v1/{thing}/{number}/retain_logs", {"numDays": 40000})
    for words in (["experiment", "set", "log-retention", 99999], ["trial", "set", "log-retention", 99999]):
        refused = cluster.client(*words, "--days", 1, check=False)
        assert refused.code != 0 and "not found" in refused.err + refused.out and "Traceback" not in refused.err
