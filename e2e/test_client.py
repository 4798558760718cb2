"""The PyPI client, unmodified, against our master, and its package inside our tasks."""

from __future__ import annotations

import json
import pathlib
import re
import tarfile
from collections.abc import Iterator

import pytest

import harness
from configs import SEARCHERS, experiment, search
from conftest import equipment, flavoured
from harness import Agent, Cluster, share
from waiting import wait_for

pytestmark = pytest.mark.client

# What an administrator may do and others may not; the client takes its user from the environment.
ADMIN = {"DET_USER": "admin", "DET_PASS": ""}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster whose tasks run with the PyPI package."""
    with equipment():
        harness.wheel_det()
        python = harness.wheel_python()
    scheduler = {"resource_manager": {"type": "agent", "scheduler": {"type": "priority", "preemption": True}}}
    with flavoured("core", python=python, master_config=scheduler, agents=[Agent(slots=2)]) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def done(cluster: Cluster) -> int:
    """An experiment of the client's that has completed."""
    experiment_id = cluster.submit(search("single"), "train", wheel=True)
    cluster.wait_experiment(experiment_id, "COMPLETED", within=120)
    return experiment_id


def holding(cluster: Cluster, name: str, **more) -> int:
    hparams = {"steps": 2, "hold_at": 1, "checkpoint_every": 2}
    config = experiment(name, hyperparameters=hparams, **share(cluster.shared_dir()), **more)
    experiment_id = cluster.submit(config, "train", wheel=True)
    cluster.wait_log(cluster.only_trial(experiment_id)["id"], "holding", within=60)
    return experiment_id


def test_logging_in(cluster: Cluster) -> None:
    home = cluster.root / "client-home"
    home.mkdir()
    env = {"HOME": str(home)}
    cluster.run_det("user", "create", "grace", "--password", "Compiler1", env=ADMIN)
    # Off a terminal the client reads a password from the environment only.
    grace = {**env, "DET_USER": "grace", "DET_PASS": "Compiler1"}
    assert "grace" in cluster.client("user", "whoami", env=grace).out
    (cluster.root / "no-tokens").mkdir()
    wrong = {**grace, "DET_PASS": "wrong", "HOME": str(cluster.root / "no-tokens")}
    wrong = cluster.client("user", "whoami", env=wrong, check=False)
    assert wrong.code != 0 and "Traceback" not in wrong.err
    assert "determined" in cluster.client("user", "whoami", env=env).out, "the default user has no password"
    cluster.client("user", "logout", env=env)


@pytest.mark.parametrize("searcher", list(SEARCHERS))
def test_all_searchers(cluster: Cluster, searcher: str) -> None:
    experiment_id = cluster.submit(search(searcher), "train", wheel=True)
    assert cluster.client("experiment", "wait", experiment_id, "--polling-interval", "1", within=180).code == 0
    assert {trial["state"] for trial in cluster.trials(experiment_id)} == {"COMPLETED"}


def test_create_and_follow(cluster: Cluster) -> None:
    config = cluster.write_config(experiment("followed", "echo one; echo two; echo three"))
    out = cluster.client("experiment", "create", config, cluster.empty_context(), "-f").out
    assert re.findall(r"\|\| (one|two|three)$", out, re.M) == ["one", "two", "three"], out


def test_lists_and_descriptions(cluster: Cluster, done: int) -> None:
    assert "search-single" in cluster.client("experiment", "list").out
    assert f"{done}," in cluster.client("experiment", "list", "--all", "--csv").out
    assert "COMPLETED" in cluster.client("experiment", "describe", done).out
    assert "Validation Metric: validation_loss" in cluster.client("experiment", "describe", done, "--metrics").out
    [described] = cluster.client("experiment", "describe", done, "--json").json()
    assert described["experiment"]["id"] == done
    trial = cluster.trials(done)[0]["id"]
    assert str(trial) in cluster.client("experiment", "list-trials", done).out
    assert "COMPLETED" in cluster.client("experiment", "list-checkpoints", done).out
    assert "COMPLETED" in cluster.client("trial", "describe", trial).out
    assert cluster.client("trial", "describe", trial, "--json").json()["trial"]["id"] == trial
    assert "is done" in cluster.client("experiment", "logs", done).out
    assert "is done" in cluster.client("trial", "logs", trial, "--tail", "20").out
    assert "is done" in cluster.client("trial", "logs", trial, "-f").out
    assert "search-single" in cluster.client("experiment", "config", done).out


def test_pause_activate_cancel_and_kill(cluster: Cluster) -> None:
    experiment_id = holding(cluster, "stopped-and-started")
    trial = cluster.only_trial(experiment_id)["id"]
    cluster.client("experiment", "pause", experiment_id)
    cluster.wait_experiment(experiment_id, "PAUSED")
    cluster.client("experiment", "activate", experiment_id)
    cluster.wait_log(trial, "run 2 starts after step 1", within=60)
    cluster.client("experiment", "cancel", experiment_id)
    cluster.wait_experiment(experiment_id, "CANCELED")
    waited = cluster.client("experiment", "wait", experiment_id, check=False)
    assert waited.code == 1

    killed = holding(cluster, "killed")
    cluster.client("trial", "kill", cluster.only_trial(killed)["id"])
    cluster.client("experiment", "kill", killed)
    cluster.wait_experiment(killed, "CANCELED")


def test_downloads(cluster: Cluster, done: int, tmp_path: pathlib.Path) -> None:
    uuid = next(c["uuid"] for c in cluster.checkpoints(done) if c["state"] == "COMPLETED")
    cluster.client("checkpoint", "download", uuid, "-o", tmp_path / "auto")
    assert json.loads((tmp_path / "auto" / "state.json").read_text()) == {"steps": 4}
    cluster.client("checkpoint", "download", uuid, "-o", tmp_path / "master", "--mode", "master")
    assert json.loads((tmp_path / "master" / "state.json").read_text()) == {"steps": 4}
    # This client drops one checkpoint of the list before it looks, so a trial with two is asked for its latest.
    both = {"checkpoint_storage": {"save_trial_latest": 2}, "hyperparameters": {"steps": 4, "checkpoint_every": 2}}
    trial = cluster.run(experiment("two-checkpoints", **both), "train", wheel=True)["id"]
    cluster.client("trial", "download", trial, "--latest", "-o", tmp_path / "of-trial")
    assert (tmp_path / "of-trial" / "state.json").is_file()
    assert uuid in cluster.client("checkpoint", "describe", uuid).out
    cluster.client("experiment", "download-model-def", done, "--output-dir", tmp_path)
    [archive] = [path for path in tmp_path.iterdir() if path.is_file()]
    with tarfile.open(archive) as files:
        assert [name for name in files.getnames() if name.endswith("train.py")]


def test_changes(cluster: Cluster, done: int) -> None:
    cluster.client("experiment", "set", "name", done, "renamed")
    cluster.client("experiment", "set", "description", done, "described")
    cluster.client("experiment", "label", "add", done, "good")
    changed = cluster.experiment(done)
    assert (changed["name"], changed["description"], changed["labels"]) == ("renamed", "described", ["good"])
    cluster.client("experiment", "label", "remove", done, "good")
    assert cluster.experiment(done)["labels"] == []
    cluster.client("experiment", "archive", done)
    assert cluster.experiment(done)["archived"] is True
    cluster.client("experiment", "unarchive", done)
    cluster.client("experiment", "set", "name", done, "search-single")


def test_deleting(cluster: Cluster) -> None:
    experiment_id = cluster.submit(experiment("deleted", "true"), wheel=True)
    cluster.wait_experiment(experiment_id, "COMPLETED")
    cluster.client("experiment", "delete", experiment_id, "--yes")
    wait_for(
        "the experiment to be gone", lambda: experiment_id not in [e["id"] for e in cluster.experiments()], within=30
    )
    gone = cluster.client("experiment", "describe", experiment_id, check=False)
    assert gone.code != 0 and "Traceback" not in gone.err


def test_agents_slots_tasks_and_jobs(cluster: Cluster) -> None:
    assert "agent-1" in cluster.client("agent", "list").out
    assert "agent-1" in json.dumps(cluster.client("agent", "list", "--json").json())
    experiment_id = holding(cluster, "shown")
    task = cluster.only_trial(experiment_id)["taskId"]
    assert task in cluster.client("task", "list").out
    assert "holding" in cluster.client("task", "logs", task).out
    assert task in json.dumps(cluster.client("slot", "list", "--json").json())
    assert "shown" in cluster.client("job", "list").out
    cluster.client("experiment", "kill", experiment_id)
    cluster.wait_experiment(experiment_id, "CANCELED")

    def enabled():
        [agent] = cluster.api("GET", "/api/v1/agents")["agents"]
        return agent["enabled"], [slot["enabled"] for _, slot in sorted(agent["slots"].items())]

    cluster.client("slot", "disable", "agent-1", 1, env=ADMIN)
    assert enabled() == (True, [True, False])
    cluster.client("slot", "enable", "agent-1", 1, env=ADMIN)
    cluster.client("agent", "disable", "agent-1", env=ADMIN)
    assert enabled()[0] is False
    cluster.client("agent", "enable", "agent-1", env=ADMIN)
    assert enabled() == (True, [True, True])


def test_the_master(cluster: Cluster) -> None:
    assert cluster.cluster_id in cluster.client("master", "info").out
    assert cluster.client("master", "config", "show", env=ADMIN).out
    assert "listens" in cluster.client("master", "logs", env=ADMIN).out
    assert "Successfully" in cluster.client("master", "config", "set", "--log.level", "DEBUG", env=ADMIN).out
    assert "level: debug" in cluster.client("master", "config", "show", env=ADMIN).out
    cluster.run_det("master", "reload", env=ADMIN)
    assert "level: info" in cluster.client("master", "config", env=ADMIN).out
    assert "adaptive_asha" in cluster.client("preview-search", cluster.write_config(search("adaptive_asha"))).out
    assert "determined" in cluster.client("user", "list").out


def test_refusals_are_one_sentence(cluster: Cluster) -> None:
    bad = experiment("bad", "true", resources={"slots_per_trial": 99})
    result = cluster.client("experiment", "create", cluster.write_config(bad), cluster.empty_context(), check=False)
    assert result.code != 0 and "Traceback" not in result.err and "99" in result.err + result.out
    for command in (["experiment", "describe", 99999], ["trial", "logs", 99999], ["experiment", "kill", 99999]):
        result = cluster.client(*command, check=False)
        assert result.code != 0 and "Traceback" not in result.err, str(result)


def test_a_failed_trial_goes_on_from_its_checkpoint(cluster: Cluster) -> None:
    hparams = {"steps": 5, "checkpoint_every": 2, "fail_at": 3}
    trial = cluster.run(
        experiment("restarts", max_restarts=2, hyperparameters=hparams), "train", within=120, wheel=True
    )
    assert trial["restarts"] == 1
    assert cluster.wait_log(trial["id"], "run 2 starts after step 2")
    reports = cluster.metrics(trial["id"], "training")
    assert [(r["totalBatches"], r["trialRunId"]) for r in reports] == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2)]


def test_invalid_hyperparameters(cluster: Cluster) -> None:
    hparams = {"invalid": {"type": "categorical", "vals": [True, False]}, "steps": 2}
    config = experiment("invalid", searcher={"name": "grid"}, hyperparameters=hparams, max_restarts=3)
    experiment_id = cluster.submit(config, "train", wheel=True)
    cluster.wait_experiment(experiment_id, "COMPLETED", within=120)
    assert [trial["restarts"] for trial in cluster.trials(experiment_id)] == [0, 0]


def test_preemption_by_priority(cluster: Cluster) -> None:
    modest = holding(cluster, "modest", resources={"priority": 60, "slots_per_trial": 1})
    trial = cluster.only_trial(modest)["id"]
    # All slots, so that one is taken from the other experiment however long the client needs.
    urgent = experiment("urgent", "echo urgent", resources={"priority": 10, "slots_per_trial": 2})
    cluster.wait_experiment(cluster.submit(urgent, wheel=True), "COMPLETED", within=90)
    cluster.wait_log(trial, "asked to stop after step 1")
    cluster.wait_log(trial, "run 2 starts after step 1", within=60)
    assert cluster.trial(trial)["restarts"] == 0
    cluster.client("experiment", "kill", modest)
    cluster.wait_experiment(modest, "CANCELED")


def test_templates(cluster: Cluster) -> None:
    template = cluster.write_config({"max_restarts": 1, "labels": ["from the template"]})
    cluster.client("template", "create", "site", template)
    taken = cluster.client("template", "create", "site", template, check=False)
    assert taken.code != 0 and "already" in taken.err + taken.out and "Traceback" not in taken.err
    cluster.client("template", "set-value", "config", "site", cluster.write_config({"labels": ["changed"]}))
    assert "changed" in cluster.client("template", "describe", "site").out
    assert "changed" in cluster.client("template", "list", "-d").out
    cluster.client("template", "set", "other", template)
    config = cluster.write_config(experiment("templated", "true"))
    created = cluster.client("experiment", "create", config, cluster.empty_context(), "--template", "site")
    [experiment_id] = re.findall(r"Created experiment (\d+)", created.out)
    cluster.wait_experiment(int(experiment_id), "COMPLETED", within=60)
    assert cluster.experiment(int(experiment_id))["config"]["labels"] == ["changed"]
    wrong = cluster.write_config({"max_restart": 1})
    refused = cluster.client("template", "set-value", "config", "site", wrong, check=False)
    assert refused.code != 0 and "max_restarts" in refused.err + refused.out
    for name in ("site", "other"):
        cluster.client("template", "remove", name)
    gone = cluster.client("template", "describe", "site", check=False)
    assert gone.code != 0 and "Traceback" not in gone.err


def test_config_policies(cluster: Cluster) -> None:
    policies = {
        "invariant_config": {"max_restarts": 3, "labels": ["of the site"]},
        "constraints": {"resources": {"max_slots": 1}, "priority_limit": 10},
    }
    forbidden = cluster.client("config-policies", "set", "experiment", cluster.write_config(policies), check=False)
    assert forbidden.code != 0 and "Traceback" not in forbidden.err
    cluster.client("config-policies", "set", "experiment", cluster.write_config(policies), env=ADMIN)
    try:
        described = cluster.client("config-policies", "describe", "experiment", env=ADMIN).out
        assert "max_slots: 1" in described and "of the site" in described

        def create(resources: dict[str, int], check: bool = True):
            config = cluster.write_config(experiment("ruled", "true", resources=resources))
            return cluster.client("experiment", "create", config, cluster.empty_context(), check=check)

        for resources, word in (({"max_slots": 2}, "max_slots"), ({"priority": 5}, "priority")):
            refused = create({"slots_per_trial": 1, "max_slots": 1, **resources}, check=False)
            assert refused.code != 0 and word in refused.err + refused.out and "Traceback" not in refused.err
        [created] = re.findall(r"Created experiment (\d+)", create({"slots_per_trial": 1, "max_slots": 1}).out)
        cluster.wait_experiment(int(created), "COMPLETED", within=60)
        config = cluster.experiment(int(created))["config"]
        assert config["max_restarts"] == 3 and "of the site" in config["labels"]
        unknown = cluster.write_config({"constraints": {"resources": {"max_slot": 1}}})
        wrong = cluster.client("config-policies", "set", "experiment", unknown, env=ADMIN, check=False)
        assert wrong.code != 0 and "max_slots" in wrong.err + wrong.out and "Traceback" not in wrong.err
    finally:
        cluster.client("config-policies", "delete", "experiment", env=ADMIN)
    config = cluster.write_config(experiment("free again", "true", resources={"slots_per_trial": 1, "priority": 5}))
    cluster.client("experiment", "create", config, cluster.empty_context())


def test_the_queue_is_changed(cluster: Cluster) -> None:
    whole = experiment("holder", "sleep 600", resources={"slots_per_trial": 2, "priority": 1})
    holder = cluster.submit(whole, wheel=True)
    cluster.wait_experiment(holder, "RUNNING")
    waiting = [
        cluster.submit(experiment(name, "true", resources={"slots_per_trial": 2}), wheel=True)
        for name in ("first", "second")
    ]

    def queue() -> dict[str, dict]:
        jobs = cluster.client("job", "list", "--json").json()["jobs"]
        return {job["name"]: job for job in jobs}

    jobs = queue()
    assert list(jobs) == ["holder", "first", "second"]
    cluster.client("job", "update", jobs["second"]["jobId"], "--priority", 20)
    assert list(queue()) == ["holder", "second", "first"]
    cluster.client("job", "update-batch", f"{jobs['first']['jobId']}.priority=10", f"{jobs['first']['jobId']}.weight=2")
    jobs = queue()
    assert list(jobs) == ["holder", "first", "second"]
    assert (jobs["first"]["priority"], jobs["first"]["weight"]) == (10, 2)
    for what, value in (("priority", 15), ("weight", 3), ("max-slots", 2)):
        cluster.client("experiment", "set", what, waiting[1], value)
    second = queue()["second"]
    assert (second["priority"], second["weight"]) == (15, 3)
    assert cluster.experiment(waiting[1])["config"]["resources"]["max_slots"] == 2
    elsewhere = cluster.client("job", "update", second["jobId"], "--resource-pool", "nowhere", check=False)
    assert elsewhere.code != 0 and "default" in elsewhere.err + elsewhere.out and "Traceback" not in elsewhere.err
    # Moves are ours; the unmodified client has no words for them.
    cluster.run_det("job", "update", second["jobId"], "--ahead-of", jobs["first"]["jobId"])
    assert list(queue()) == ["holder", "second", "first"]
    assert "held by" in cluster.run_det("job", "why", waiting[0]).out
    cluster.client("experiment", "kill", holder)
    for experiment_id in waiting:
        cluster.wait_experiment(experiment_id, "COMPLETED", within=60)
