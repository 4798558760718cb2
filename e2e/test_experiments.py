"""Experiments from submission to end, on every store and runtime: what trials do, and what comes of it."""

from __future__ import annotations

import json
import os
import pathlib

import pytest

from configs import SEARCHERS, experiment, search
from harness import Cluster, share
from waiting import wait_for


def values(reports, kind, name):
    return [(report["totalBatches"], report["metrics"][kind][name]) for report in reports]


def test_a_shell_command_runs(cluster: Cluster) -> None:
    experiment_id = cluster.submit(experiment("shell", "echo hello from $DET_TASK_TYPE; echo aside >&2"))
    cluster.wait_experiment(experiment_id, "COMPLETED")
    trial = cluster.only_trial(experiment_id)
    assert cluster.printed(trial["id"]) == ["hello from TRIAL"]
    aside = cluster.logs(trial["id"], "stdtypes=stderr&sources=task")
    assert [record["log"].strip() for record in aside] == ["aside"]
    assert trial["restarts"] == 0


def test_create_and_follow_ends_with_the_experiment(cluster: Cluster) -> None:
    config = cluster.write_config(experiment("followed", ["sh", "-c", "echo first; echo last"]))
    result = cluster.run_det("experiment", "create", config, cluster.empty_context(), "--follow")
    assert "first" in result.out and "last" in result.out

    config = cluster.write_config(experiment("followed-bad", "echo before; exit 9"))
    result = cluster.run_det("experiment", "create", config, cluster.empty_context(), "--follow", check=False)
    assert result.code == 1 and "before" in result.out


def test_what_is_reported_without_entering_the_context_arrives(cluster: Cluster) -> None:
    reports = "from determined import core; c = core.init()\nfor n in 1, 2, 3: c.train.report_training_metrics(n, {'x': n})"
    for end in ("", "\nc.close()"):
        trial = cluster.run(experiment("unentered", ["python3", "-c", reports + end]))
        assert values(cluster.metrics(trial["id"], "training"), "avg_metrics", "x") == [(1, 1), (2, 2), (3, 3)]
        warnings = [record["log"] for record in cluster.logs(trial["id"]) if "was not closed" in record["log"]]
        assert len(warnings) == (0 if end else 1), warnings


def test_metrics_and_checkpoints_of_a_trial(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    trial = cluster.run(experiment("train", hyperparameters={"steps": 5, "checkpoint_every": 2}), "train")
    training = cluster.metrics(trial["id"], "training")
    assert values(training, "avg_metrics", "loss") == [(step, 1 / step) for step in range(1, 6)]
    validation = cluster.metrics(trial["id"], "validation")
    assert values(validation, "validation_metrics", "validation_loss") == [(step, 1 / step) for step in range(1, 6)]
    assert trial["totalBatchesProcessed"] == 5
    assert trial["bestValidation"]["metrics"]["avgMetrics"]["validation_loss"] == 0.2
    assert trial["searcherMetricValue"] == 0.2

    # The policy by default keeps the best and the newest of a trial: here these are one.
    steps = {c["metadata"]["steps_completed"]: c for c in cluster.checkpoints(trial["experimentId"])}
    assert set(steps) == {2, 4, 5} and steps[5]["state"] == "COMPLETED"
    newest = steps[5]["uuid"]
    cluster.run_det("checkpoint", "download", newest, "-o", tmp_path / "by-uuid")
    assert json.loads((tmp_path / "by-uuid" / "state.json").read_text()) == {"steps": 5}
    cluster.run_det("trial", "download", trial["id"], "--latest", "-o", tmp_path / "latest")
    assert (tmp_path / "latest" / "metadata.json").is_file()
    listed = cluster.run_det("checkpoint", "list", trial["experimentId"], "--json").json()
    assert newest in json.dumps(listed)
    assert newest in cluster.run_det("checkpoint", "describe", newest).out


def test_checkpoints_that_the_policy_drops_are_collected(cluster: Cluster) -> None:
    trial = cluster.run(experiment("collected", hyperparameters={"steps": 6, "checkpoint_every": 2}), "train")

    def states():
        return {c["metadata"]["steps_completed"]: c["state"] for c in cluster.checkpoints(trial["experimentId"])}

    expected = {2: "DELETED", 4: "DELETED", 6: "COMPLETED"}
    wait_for("old checkpoints to be deleted", lambda: states() == expected, within=30, seen=states)
    kept = [c["uuid"] for c in cluster.checkpoints(trial["experimentId"]) if c["state"] == "COMPLETED"]
    storage = cluster.data_dir / "checkpoints"
    assert [uuid for uuid in kept if (storage / uuid / "state.json").is_file()] == kept


@pytest.mark.parametrize("searcher", list(SEARCHERS))
def test_every_searcher_completes(cluster: Cluster, searcher: str) -> None:
    experiment_id = cluster.submit(search(searcher), "train")
    done = cluster.wait_experiment(experiment_id, "COMPLETED", within=120)
    trials = cluster.trials(experiment_id)
    assert len(trials) == {"single": 1, "random": 3, "grid": 3, "async_halving": 4, "adaptive_asha": 4}[searcher]
    assert {trial["state"] for trial in trials} == {"COMPLETED"}
    assert done["progress"] == 1 and done["numTrials"] == len(trials)
    best = min(trials, key=lambda trial: trial["searcherMetricValue"])
    assert best["totalBatchesProcessed"] == 4, "the best trial trains to the end"
    if searcher == "grid":
        assert sorted(trial["hparams"]["rate"] for trial in trials) == [0.5, 1.0, 2.0]


def test_a_failed_trial_goes_on_from_its_checkpoint(cluster: Cluster) -> None:
    hparams = {"steps": 5, "checkpoint_every": 2, "fail_at": 3, "fail_runs": 2}
    trial = cluster.run(experiment("restarts", max_restarts=3, hyperparameters=hparams), "train")
    assert trial["restarts"] == 2
    lines = cluster.printed(trial["id"])
    starts = [line.split(" with ")[0] for line in lines if " starts after step " in line]
    assert starts == ["run 1 starts after step 0", "run 2 starts after step 2", "run 3 starts after step 2"]
    reports = cluster.metrics(trial["id"], "training")
    assert [(r["totalBatches"], r["trialRunId"]) for r in reports] == [(1, 1), (2, 1), (3, 3), (4, 3), (5, 3)]
    log = "\n".join(cluster.log_lines(trial["id"]))
    assert "code 3" in log or "status 3" in log, "the log names the exit code"


def test_a_trial_that_fails_always_ends_the_experiment(cluster: Cluster) -> None:
    experiment_id = cluster.submit(experiment("fails", "echo attempt; exit 7", max_restarts=2))
    cluster.wait_experiment(experiment_id, "ERROR")
    trial = cluster.only_trial(experiment_id)
    assert (trial["state"], trial["restarts"]) == ("ERROR", 2)
    assert cluster.printed(trial["id"]) == ["attempt"] * 3
    waited = cluster.run_det("experiment", "wait", experiment_id, "--polling-interval", "0.2", check=False)
    assert waited.code == 1


def test_an_entrypoint_that_is_not_there_is_named(cluster: Cluster) -> None:
    experiment_id = cluster.submit(experiment("missing", ["/no/such/program"]))
    cluster.wait_experiment(experiment_id, "ERROR")
    trial = cluster.only_trial(experiment_id)
    assert any("/no/such/program" in line for line in cluster.log_lines(trial["id"]))
    assert any("127" in line for line in cluster.log_lines(trial["id"]))


def test_invalid_hyperparameters_are_no_failure(cluster: Cluster) -> None:
    hparams = {"invalid": {"type": "categorical", "vals": [True, False]}, "steps": 2}
    config = experiment("invalid", searcher={"name": "grid"}, hyperparameters=hparams, max_restarts=3)
    experiment_id = cluster.submit(config, "train")
    cluster.wait_experiment(experiment_id, "COMPLETED")
    by_hparam = {trial["hparams"]["invalid"]: trial for trial in cluster.trials(experiment_id)}
    assert by_hparam[True]["restarts"] == 0 and by_hparam[True]["totalBatchesProcessed"] == 0
    assert by_hparam[False]["state"] == "COMPLETED" and by_hparam[False]["totalBatchesProcessed"] == 2


def test_a_paused_trial_saves_and_goes_on(cluster: Cluster) -> None:
    shared = cluster.shared_dir()
    hparams = {"steps": 4, "checkpoint_every": 4, "hold_at": 2}
    experiment_id = cluster.submit(experiment("paused", hyperparameters=hparams, **share(shared)), "train")
    trial = cluster.only_trial(experiment_id)
    cluster.wait_log(trial["id"], "holding")
    assert cluster.experiment(experiment_id)["state"] == "RUNNING"
    cluster.run_det("experiment", "pause", experiment_id)
    cluster.wait_log(trial["id"], "asked to stop after step 2")
    cluster.wait_experiment(experiment_id, "PAUSED")
    wait_for("its slots", lambda: not cluster.task_processes(trial["id"]), within=10)

    (shared / "go").touch()
    cluster.run_det("experiment", "activate", experiment_id)
    cluster.wait_experiment(experiment_id, "COMPLETED")
    trial = cluster.only_trial(experiment_id)
    assert trial["restarts"] == 0 and trial["totalBatchesProcessed"] == 4
    assert cluster.wait_log(trial["id"], "run 2 starts after step 2")


def test_created_paused_waits_for_activate(cluster: Cluster) -> None:
    experiment_id = cluster.submit(experiment("later", "true"), "", "--paused")
    assert cluster.experiment(experiment_id)["state"] == "PAUSED"
    assert all(not trial.get("taskId") or trial["state"] == "PAUSED" for trial in cluster.trials(experiment_id))
    cluster.run_det("experiment", "activate", experiment_id)
    cluster.wait_experiment(experiment_id, "COMPLETED")


def test_cancel_lets_a_trial_save(cluster: Cluster) -> None:
    hparams = {"steps": 4, "checkpoint_every": 4, "hold_at": 2}
    experiment_id = cluster.submit(
        experiment("canceled", hyperparameters=hparams, **share(cluster.shared_dir())), "train"
    )
    trial = cluster.only_trial(experiment_id)
    cluster.wait_log(trial["id"], "holding")
    cluster.run_det("experiment", "cancel", experiment_id)
    cluster.wait_experiment(experiment_id, "CANCELED")
    assert cluster.trial(trial["id"])["state"] == "CANCELED"
    assert [c["metadata"]["steps_completed"] for c in cluster.checkpoints(experiment_id)] == [2]


def test_kill_ends_what_does_not_listen(cluster: Cluster) -> None:
    experiment_id = cluster.submit(experiment("killed", "python3 hang.py"), "hang")
    trial = cluster.only_trial(experiment_id)
    cluster.wait_log(trial["id"], "hanging")
    assert cluster.task_processes(trial["id"], "hang.py")
    cluster.run_det("experiment", "kill", experiment_id)
    cluster.wait_experiment(experiment_id, "CANCELED", within=20)
    wait_for("its processes to be gone", lambda: not cluster.task_processes(trial["id"]), within=10)


def test_one_trial_of_a_search_is_killed(cluster: Cluster) -> None:
    config = search("grid", **share(cluster.shared_dir()))
    config["hyperparameters"]["hold_at"] = 1
    experiment_id = cluster.submit(config, "train")
    first = cluster.only_trial(experiment_id)
    cluster.wait_log(first["id"], "holding")
    cluster.run_det("trial", "kill", first["id"])
    wait_for("the killed trial", lambda: cluster.trial(first["id"])["state"] == "CANCELED", within=20)
    assert cluster.experiment(experiment_id)["state"] not in ("CANCELED", "ERROR"), "the others go on"
    cluster.run_det("experiment", "kill", experiment_id)
    cluster.wait_experiment(experiment_id, "CANCELED")


def test_logs_hold_all_that_was_printed(cluster: Cluster) -> None:
    config = experiment("talk", "python3 talk.py", environment={"environment_variables": ["E2E_LINES=3000"]})
    trial = cluster.run(config, "talk")["id"]
    printed = cluster.printed(trial)
    assert printed[:3000] == [f"line {number}" for number in range(3000)]
    assert printed[3000:] == [
        "before the bar",
        " 10%",
        " 50%",
        "100%",
        "after the bar",
        "not \ufffd\ufffd UTF-8",
        "ünïcödé ✓",
        "careful",
        "of rank three",
        "the last words",
    ]
    records = {record["log"].rstrip("\n"): record for record in cluster.logs(trial)}
    assert records["careful"]["level"] == "LOG_LEVEL_WARNING"
    assert records["of rank three"]["rankId"] == 3
    assert records["to standard error"]["stdtype"] == "stderr"
    identities = [int(record["id"]) for record in cluster.logs(trial)]
    assert identities == sorted(set(identities)), "records are numbered in the order in which they came"

    tail = cluster.run_det("trial", "logs", trial, "--tail", "3", "--source", "task", "--stdtype", "stdout").out
    assert [line.split("|| ")[1] for line in tail.splitlines()] == [
        "WARNING: careful",
        "of rank three",
        "the last words",
    ]
    head = cluster.run_det("trial", "logs", trial, "--head", "2", "--source", "task", "--stdtype", "stdout").out
    assert [line.split("|| ")[1] for line in head.splitlines()] == ["line 0", "line 1"]
    followed = cluster.run_det("trial", "logs", trial, "--follow", "--source", "task", "--stdtype", "stdout").out
    assert len(followed.splitlines()) == len(printed)


def test_what_a_task_sees(cluster: Cluster) -> None:
    config = experiment(
        "look",
        "python3 look.py",
        hyperparameters={"depth": {"width": 3}, "rate": 0.25},
        environment={"environment_variables": ["MINE=1", "DET_TASK_TYPE=FAKE"]},
    )
    trial = cluster.run(config, "look")
    [line] = [line for line in cluster.printed(trial["id"]) if line.startswith("seen: ")]
    seen = json.loads(line[len("seen: ") :])
    env = seen["environment"]
    experiment_id = trial["experimentId"]
    assert env["DET_MASTER"] == cluster.url and env["DET_CLUSTER_ID"] == cluster.cluster_id
    assert env["DET_AGENT_ID"] == "agent-1" and len(json.loads(env["DET_SLOT_IDS"])) == 1
    assert env["DET_EXPERIMENT_ID"] == str(experiment_id) and env["DET_TRIAL_ID"] == str(trial["id"])
    assert env["DET_TASK_ID"] == trial["taskId"] and env["DET_ALLOCATION_ID"] == f"{trial['taskId']}.1"
    assert env["DET_TRIAL_RUN_ID"] == "1" and env["DET_STEPS_COMPLETED"] == "0"
    assert "DET_LATEST_CHECKPOINT" not in env, "absent, not empty"
    assert json.loads(env["DET_HPARAMS"]) == {"depth": {"width": 3}, "rate": 0.25}
    assert env["DET_TASK_TYPE"] == "TRIAL" and env["MINE"] == "1", "a task may set what is not ours"
    assert env["DET_USER"] == "determined" and env["DET_RESOURCES_TYPE"] == "docker-container"
    for name in ("DET_SESSION_TOKEN", "DET_USER_TOKEN", "DET_RESOURCES_ID", "DET_CONTAINER_ID", "DET_TRIAL_SEED"):
        assert env[name], name
    config = json.loads(env["DET_EXPERIMENT_CONFIG"])
    assert (
        config["data"] == {} and config["scheduling_unit"] == 100 and config["min_validation_period"] == {"batches": 0}
    )
    assert "max_length" not in config["searcher"]
    assert env["FROM_HOOK"] == "set by the hook", "startup-hook.sh is sourced"
    assert seen["cwd"] == env["DET_WORKDIR"] == "/run/determined/workdir"
    assert seen["files"] == ["look.py", "startup-hook.sh"] and seen["model"] == seen["files"]
    assert set(seen["info"]) >= {"cluster", "trial", "rendezvous"}
    if env.get("NVIDIA_VISIBLE_DEVICES") is not None:
        assert env["NVIDIA_VISIBLE_DEVICES"] == "void", "artificial slots are no GPUs"


def test_a_failing_startup_hook_ends_the_task(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    (tmp_path / "startup-hook.sh").write_text("echo in the hook\nfalse\necho never\n")
    config = cluster.write_config(experiment("hook", "echo not reached"))
    cluster.run_det("experiment", "create", config, tmp_path)
    experiment_id = max(e["id"] for e in cluster.experiments())
    cluster.wait_experiment(experiment_id, "ERROR")
    printed = cluster.printed(cluster.only_trial(experiment_id)["id"])
    assert "in the hook" in printed and "never" not in printed and "not reached" not in printed


def test_an_ended_experiment_is_continued(cluster: Cluster) -> None:
    hparams = {"steps": 2, "checkpoint_every": 2}
    trial = cluster.run(experiment("continued", hyperparameters=hparams), "train")
    experiment_id = trial["experimentId"]
    cluster.run_det("experiment", "continue", experiment_id, "--config", "hyperparameters.steps=4")
    wait_for(
        "more steps", lambda: cluster.trial(trial["id"])["totalBatchesProcessed"] == 4, within=30, seen=cluster.describe
    )
    cluster.wait_experiment(experiment_id, "COMPLETED")
    again = cluster.trial(trial["id"])
    assert len(again["taskIds"]) == 2 and again["restarts"] == 0
    starts = [line for line in cluster.printed(trial["id"]) if "starts after step" in line]
    assert len(starts) == 2 and "starts after step 2" in starts[1]


def test_a_zero_slot_trial_runs_beside_full_slots(cluster: Cluster) -> None:
    config = experiment(
        "aux", "echo slots $DET_SLOT_IDS visible $NVIDIA_VISIBLE_DEVICES", resources={"slots_per_trial": 0}
    )
    trial = cluster.run(config)
    assert cluster.printed(trial["id"])[0].startswith("slots []")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start tasks of other users")
def test_tasks_of_another_user(cluster: Cluster) -> None:
    # A task of another user has made the checkpoint directory by now: it is for all.
    cluster.run(experiment("of-root", "id -u"))
    agent_user = {"agentUid": 1234, "agentUser": "worker", "agentGid": 2345, "agentGroup": "workers"}
    user = {"username": "worker", "active": True, "agentUserGroup": agent_user}
    cluster.api("POST", "/api/v1/users", {"user": user, "password": "", "isHashed": True}, user="admin")
    config = cluster.write_config(experiment("of-worker", "id -u; id -g; touch mine && stat -c %u mine; echo $HOME"))
    worker = {"DET_USER": "worker", "DET_PASS": ""}
    created = cluster.run_det("experiment", "create", config, cluster.empty_context(), env=worker)
    experiment_id = int(created.out.split()[-1])
    cluster.wait_experiment(experiment_id, "COMPLETED")
    trial = cluster.only_trial(experiment_id)
    assert cluster.printed(trial["id"])[:3] == ["1234", "2345", "1234"]


def test_every_change_is_an_event(cluster: Cluster) -> None:
    experiment_id = cluster.run(experiment("events", "true"))["experimentId"]
    events, after = [], 0
    while True:
        page = cluster.api("GET", f"/api/v1/events?after={after}&limit=200", user="admin")["events"]
        if not page:
            break
        events += page
        after = page[-1]["id"]
    numbers = [int(event["id"]) for event in events]
    assert numbers == sorted(set(numbers)), "events are in one order"
    ours = [
        event for event in events if (event["subjectKind"], event["subjectId"]) == ("experiment", str(experiment_id))
    ]
    assert ours and any("COMPLETED" in json.dumps(event) for event in ours)
