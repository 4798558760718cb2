"""Which rank of a trial hangs: on request, and after a silence, in its log and its record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from configs import experiment
from conftest import flavoured, lane
from harness import Agent, Cluster, share
from waiting import wait_for


@pytest.fixture(scope="module", params=[lane("core"), lane("docker")])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two agents with a slot each."""
    agents = [Agent("agent-1", 1), Agent("agent-2", 1)]
    with flavoured(request.param, agents=agents) as cluster:
        yield cluster


def hanging(cluster: Cluster, name: str, slots: int, **more: Any) -> tuple[int, int]:
    """A trial whose last rank hangs, when all of its ranks run."""
    config = experiment(
        name,
        "python3 stuck.py",
        resources={"slots_per_trial": slots},
        hyperparameters={"stuck": slots - 1},
        **share(cluster.shared_dir()),
    )
    search = cluster.submit({**config, **more}, "stuck")
    trial = cluster.only_trial(search)["id"]
    for rank in range(slots):
        cluster.wait_log(trial, f"rank {rank} of {slots} goes on", within=60)
    return search, trial


def end(cluster: Cluster, search: int) -> None:
    cluster.run_det("experiment", "kill", search)
    cluster.wait_experiment(search, "CANCELED", within=60)


def examined(cluster: Cluster, trial: int) -> Any:
    """The answer of the doctor once every rank is where it stays."""

    def found() -> Any:
        answer = json.loads(cluster.run_det("trial", "doctor", trial, "--json").out)
        return answer if any(rank["activity"] == "sleeps" for rank in answer["ranks"]) else None

    return wait_for("a rank that sleeps", found, within=60, seen=cluster.describe)


def test_the_doctor_names_the_rank_that_sleeps(cluster: Cluster) -> None:
    search, trial = hanging(cluster, "stuck", 2)
    answer = examined(cluster, trial)
    ranks = {rank["rank"]: rank for rank in answer["ranks"]}
    assert [rank for rank, found in ranks.items() if found["odd"]] == [1], answer
    assert {rank["agentId"] for rank in ranks.values()} == {"agent-1", "agent-2"}
    assert ranks[0]["activity"].startswith("waits"), answer
    assert answer["conclusion"].startswith(f"rank 1 on {ranks[1]['agentId']} sleeps in "), answer
    assert answer["conclusion"].endswith(" for it") and ", and rank 0 waits" in answer["conclusion"], answer
    process = ranks[1]["process"]
    assert process["command"] == "python3 stuck.py" and process["cpuWindowMicros"] < 500_000, answer
    # The Core API lets the supervisor see where the code is.
    assert process["stackSource"] in ("faulthandler", "py-spy"), answer
    assert process["stack"][0].startswith("hang (") and "stuck.py:" in process["stack"][0], answer
    assert ranks[0]["lastLogAt"] and ranks[0]["lastReportAt"], answer
    table = cluster.run_det("trial", "doctor", trial).out
    assert "1 *" in table and "Conclusion: rank 1 on " in table, table
    # It only looks: everything goes on as before.
    assert cluster.trial(trial)["state"] == "RUNNING"
    end(cluster, search)
    refused = cluster.run_det("trial", "doctor", trial, check=False)
    assert refused.code == 1 and "does not run" in refused.err, refused


def test_the_log_of_a_silent_trial_names_the_rank_that_hangs(cluster: Cluster) -> None:
    search, trial = hanging(cluster, "silent", 2, silence_timeout="3s")
    alarm = next(line for line in wait_for_alarm(cluster, trial) if line.startswith("This trial may hang: "))
    assert '"silence_timeout" is 3 s' in alarm and "rank 1 on agent-" in alarm, alarm
    lines = cluster.log_lines(trial)
    assert any(line.startswith("- rank 1 on ") and "hang (" in line for line in lines), lines
    path = f"/api/v1/events?subjectKind=trial&subjectId={trial}&limit=100"
    silent = [event for event in cluster.api("GET", path, user="admin")["events"] if event["kind"] == "silent"]
    assert len(silent) == 1 and "rank 1 on " in silent[0]["reason"], silent
    end(cluster, search)


def wait_for_alarm(cluster: Cluster, trial: int) -> list[str]:
    def there() -> list[str] | None:
        lines = cluster.log_lines(trial)
        return lines if any(line.startswith("This trial may hang: ") for line in lines) else None

    return wait_for("the alarm in the log", there, within=60, seen=cluster.describe)


def test_one_rank_is_enough(cluster: Cluster) -> None:
    search, trial = hanging(cluster, "alone", 1)
    answer = examined(cluster, trial)
    assert [rank["rank"] for rank in answer["ranks"]] == [0]
    assert "there is no other rank to compare it with" in answer["conclusion"], answer
    end(cluster, search)
