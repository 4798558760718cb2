"""Our client against `det up`: every command once, and the forms of its output."""

from __future__ import annotations

import csv
import io
import json
import pathlib
import re
import signal
import tarfile
import zipfile
from collections.abc import Iterator

import pytest
import yaml

from configs import experiment, search
from conftest import flavoured
from harness import Agent, Cluster, share
from waiting import wait_for

pytestmark = pytest.mark.core


@pytest.fixture(scope="module")
def done(up: Cluster) -> int:
    """An experiment that has completed: two trials of three steps, with checkpoints."""
    config = search("random")
    config["searcher"]["max_trials"] = 2
    config["labels"] = ["first"]
    config["description"] = "what the commands show"
    experiment_id = up.submit(config, "train")
    up.wait_experiment(experiment_id, "COMPLETED", within=90)
    return experiment_id


@pytest.fixture
def held(up: Cluster) -> Iterator[int]:
    """An experiment that runs for as long as the test does."""
    config = experiment("held", hyperparameters={"hold_at": 1}, **share(up.shared_dir()))
    experiment_id = up.submit(config, "train")
    up.wait_log(up.only_trial(experiment_id)["id"], "holding")
    yield experiment_id
    up.run_det("experiment", "kill", experiment_id, check=False)
    up.wait_experiment(experiment_id, "CANCELED")


def rows(text: str) -> list:
    return list(csv.DictReader(io.StringIO(text)))


def test_lists_come_as_table_csv_and_json(up: Cluster, done: int) -> None:
    table = up.run_det("experiment", "list").out
    assert "search-random" in table and "COMPLETED" in table
    [row] = [row for row in rows(up.run_det("e", "ls", "--csv").out) if row["ID"] == str(done)]
    assert row["Name"] == "search-random" and row["State"] == "COMPLETED"
    [found] = [e for e in up.run_det("e", "list", "--json").json() if e["id"] == done]
    assert found["labels"] == ["first"]


def test_an_experiment_is_described(up: Cluster, done: int, tmp_path: pathlib.Path) -> None:
    text = up.run_det("experiment", "describe", done, "--metrics").out
    assert "what the commands show" in text and "Validation Metric: validation_loss" in text
    [described] = up.run_det("experiment", "describe", done, "--json").json()
    assert described["experiment"]["id"] == done
    up.run_det("experiment", "describe", done, "--outdir", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["experiments.csv", "trials.csv", "workloads.csv"]


def test_trials_and_checkpoints_are_listed(up: Cluster, done: int) -> None:
    trials = up.run_det("experiment", "list-trials", done, "--json").json()
    assert len(trials) == 2
    assert len(rows(up.run_det("e", "lt", done, "--csv").out)) == 2
    assert up.run_det("experiment", "list-checkpoints", done, "--json").json()
    assert len(rows(up.run_det("e", "lc", done, "--best", "1", "--csv").out)) == 1
    trial = trials[0]["id"]
    assert up.run_det("trial", "describe", trial, "--json").json()
    assert str(trial) in up.run_det("t", "describe", trial, "--metrics-summary").out
    assert "is done" in up.run_det("experiment", "logs", done).out
    assert "is done" in up.run_det("trial", "logs", trial, "--json").out


def test_wait_follow_and_exit_codes(up: Cluster, done: int) -> None:
    assert up.run_det("experiment", "wait", done, "--polling-interval", "0.1").code == 0
    assert "COMPLETED" in up.run_det("experiment", "follow", done).out
    assert up.run_det("experiment", "describe", 99999, check=False).code == 1
    assert up.run_det("experiment", "describe", "abc", check=False).code == 2
    assert up.run_det("no-such-command", check=False).code == 2


def test_logs_are_followed_to_the_end(up: Cluster) -> None:
    shared = up.shared_dir()
    experiment_id = up.submit(experiment("followed", hyperparameters={"hold_at": 1}, **share(shared)), "train")
    with up.det_beside("experiment", "logs", experiment_id, "-f") as follower:
        wait_for("a followed line", lambda: "holding" in follower.log.read_text(), within=20)
        assert follower.running(), "the trial goes on, and so does its log"
        (shared / "go").touch()
        assert follower.wait(within=20) == 0
        assert "is done" in follower.log.read_text()
    up.wait_experiment(experiment_id, "COMPLETED")


def test_ctrl_c_ends_following_only(up: Cluster, held: int) -> None:
    with up.det_beside("experiment", "follow", held) as follower:
        wait_for("progress", lambda: follower.log.read_text(), within=20)
        assert follower.stop(signal.SIGINT, within=10) in (130, -signal.SIGINT)
    assert up.experiment(held)["state"] == "RUNNING"


def test_an_experiment_is_changed(up: Cluster, done: int, held: int) -> None:
    up.run_det("experiment", "set", "name", done, "renamed")
    up.run_det("experiment", "set", "description", done, "described")
    up.run_det("experiment", "label", "add", done, "second")
    up.run_det("experiment", "label", "remove", done, "first")
    changed = up.experiment(done)
    assert (changed["name"], changed["description"], changed["labels"]) == ("renamed", "described", ["second"])
    up.run_det("experiment", "set", "name", done, "search-random")

    up.run_det("experiment", "set", "priority", held, 7)
    up.run_det("experiment", "set", "weight", held, 2.5)
    up.run_det("experiment", "set", "max-slots", held, 1)
    resources = up.experiment(held)["config"]["resources"]
    assert (resources["priority"], resources["weight"], resources["max_slots"]) == (7, 2.5, 1)
    refused = up.run_det("experiment", "set", "priority", held, 100, check=False)
    assert refused.code != 0 and "99" in refused.err, "the limit is in the message"


def test_archive_and_delete(up: Cluster) -> None:
    experiment_id = up.run(experiment("short-lived", hyperparameters={"steps": 2}), "train", within=30)["experimentId"]
    storage = up.data_dir / "checkpoints"
    stored = [storage / c["uuid"] for c in up.checkpoints(experiment_id) if c["state"] == "COMPLETED"]
    assert stored and all(path.is_dir() for path in stored)
    up.run_det("experiment", "archive", experiment_id)
    assert str(experiment_id) not in [row["ID"] for row in rows(up.run_det("e", "list", "--csv").out)]
    assert str(experiment_id) in [row["ID"] for row in rows(up.run_det("e", "list", "--all", "--csv").out)]
    up.run_det("experiment", "unarchive", experiment_id)
    assert str(experiment_id) in [row["ID"] for row in rows(up.run_det("e", "list", "--csv").out)]
    up.run_det("experiment", "delete", experiment_id, "--yes")
    wait_for(
        "the experiment to be gone",
        lambda: up.run_det("experiment", "describe", experiment_id, check=False).code == 1,
        within=30,
    )
    wait_for("its checkpoints to be gone", lambda: not any(path.exists() for path in stored), within=30)


def test_a_running_experiment_is_not_archived_or_deleted(up: Cluster, held: int) -> None:
    for action in (["archive"], ["delete", "--yes"]):
        refused = up.run_det("experiment", action[0], held, *action[1:], check=False)
        assert refused.code == 1, str(refused)
    assert up.experiment(held)["state"] == "RUNNING" and not up.experiment(held)["archived"]


def test_configuration_and_files_come_back(up: Cluster, done: int, tmp_path: pathlib.Path) -> None:
    config = yaml.safe_load(up.run_det("experiment", "config", done).out)
    assert config["searcher"]["name"] == "random" and config["max_restarts"] == 0
    up.run_det("experiment", "download-model-def", done, "-o", tmp_path)
    [archive] = tmp_path.iterdir()
    with tarfile.open(archive) as files:
        assert [name for name in files.getnames() if name.endswith("train.py")]
    up.run_det("experiment", "download", done, "-o", tmp_path / "best", "--top-n", "2")
    assert len(list((tmp_path / "best").iterdir())) == 2


def test_agents_and_slots_are_enabled_and_disabled(up: Cluster) -> None:
    [agent] = up.run_det("agent", "list", "--json").json()
    assert "local" in agent.values()
    assert "local" in up.run_det("a", "ls").out
    assert len(up.run_det("slot", "list", "--json").json()) == 2

    def slots():
        [agent] = up.api("GET", "/api/v1/agents")["agents"]
        return agent["enabled"], [slot["enabled"] for _, slot in sorted(agent["slots"].items())]

    admin = {"DET_USER": "admin", "DET_PASS": ""}
    up.run_det("slot", "disable", "local", 0, env=admin)
    assert slots() == (True, [False, True])
    up.run_det("slot", "enable", "local", 0, env=admin)
    assert slots() == (True, [True, True])
    up.run_det("agent", "disable", "local", env=admin)
    assert slots()[0] is False
    up.run_det("agent", "enable", "local", env=admin)
    assert slots() == (True, [True, True])
    refused = up.run_det("agent", "disable", "no-such-agent", check=False, env=admin)
    assert refused.code == 1 and "no-such-agent" in refused.err
    forbidden = up.run_det("agent", "disable", "local", check=False)
    assert forbidden.code == 1, "who is no administrator may not"
    assert slots()[0] is True


def test_tasks_and_jobs_are_shown(up: Cluster, held: int) -> None:
    task = up.only_trial(held)["taskId"]
    assert task in up.run_det("task", "list").out
    assert task in json.dumps(up.run_det("task", "list", "--json").json())
    assert "holding" in up.run_det("task", "logs", task).out
    assert "holding" in up.run_det("task", "logs", task[:-4]).out, "the beginning of an id will do"
    table = up.run_det("job", "list").out
    assert "held" in table
    assert "held" in json.dumps(up.run_det("j", "ls", "--json").json())


def test_the_master_reports_what_it_is(up: Cluster) -> None:
    info = up.run_det("master", "info", "--json").json()
    assert info["version"] == "0.38.1" and info["clusterId"] == up.cluster_id
    admin = {"DET_USER": "admin", "DET_PASS": ""}
    config = up.run_det("master", "config", "--json", env=admin).json()
    assert str(up.port) in json.dumps(config)
    assert up.run_det("master", "logs", "--tail", "5", env=admin).out
    assert up.run_det("version").out.count(".") >= 2
    for shell in ("bash", "fish", "zsh"):
        assert "experiment" in up.run_det("completion", shell).out


def test_a_search_is_previewed(up: Cluster) -> None:
    path = up.write_config(search("adaptive_asha"))
    assert "adaptive_asha" in up.run_det("preview-search", path).out
    preview = up.run_det("preview-search", path, "--json").json()
    assert sum(trials["count"] for trials in preview["trials"]) == 4


def test_logging_in_and_out(up: Cluster) -> None:
    home = up.root / "other-home"
    home.mkdir()
    env = {"HOME": str(home)}
    # The administrator makes a user, who logs in, changes the password, and is held to it.
    admin = {"DET_USER": "admin", "DET_PASS": ""}
    up.run_det("user", "create", "ada", "--password", "Analytical1", env=admin)
    assert "ada" in up.run_det("user", "list").out
    wrong = up.run_det("user", "login", "ada", input="wrong\n", check=False, env=env)
    assert wrong.code == 1 and "wrong" in wrong.err
    up.run_det("user", "login", "ada", input="Analytical1\n", env=env)
    assert "ada" in up.run_det("user", "whoami", env=env).out
    differ = up.run_det("user", "change-password", input="Engine22\nEngine23\n", check=False, env=env)
    assert differ.code == 1 and "differ" in differ.err
    up.run_det("user", "change-password", input="Engine22\nEngine22\n", env=env)
    assert "ada" in up.run_det("user", "whoami", env=env).out, "the change logs in again"
    up.run_det("user", "logout", env=env)
    stored = "".join(path.read_text(errors="replace") for path in home.rglob("*") if path.is_file())
    assert "Engine22" not in stored and "ada" not in re.sub(r"active.*", "", stored)
    old = up.run_det("user", "login", "ada", input="Analytical1\n", check=False, env=env)
    assert old.code == 1
    up.run_det("user", "login", "ada", input="Engine22\n", env=env)


def test_up_with_several_agents() -> None:
    with flavoured("core", shape="up", agents=[Agent(slots=1), Agent(slots=1)]) as cluster:
        names = [agent["id"] for agent in cluster.api("GET", "/api/v1/agents")["agents"]]
        assert sorted(names) == ["local-1", "local-2"]
        assert cluster.run(experiment("two", "echo on $DET_AGENT_ID"))["state"] == "COMPLETED"


def test_a_startup_hook_installs_a_package(up: Cluster, tmp_path: pathlib.Path) -> None:
    about = "added-1.0.dist-info"
    with zipfile.ZipFile(tmp_path / "added-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("added.py", "WORD = 'of the package'\n")
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: added\nVersion: 1.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: e2e\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    # The interpreter is the host's, and belongs to other tasks too.
    hook = 'python3 -m pip install --quiet --no-index --target "$PWD/packages" added-*.whl\n'
    (tmp_path / "startup-hook.sh").write_text(f'{hook}export PYTHONPATH="$PWD/packages:$PYTHONPATH"\n')
    config = experiment("installs", ["python3", "-c", "import added; print(added.WORD)"])
    created = up.run_det("experiment", "create", up.write_config(config), tmp_path).out
    installs = int(re.search(r"Created experiment (\d+)", created).group(1))
    up.wait_experiment(installs, "COMPLETED")
    assert up.printed(up.only_trial(installs)["id"])[-1] == "of the package"
