"""A master takes on another configuration while it runs, asked by SIGHUP or by an administrator."""

from __future__ import annotations

import os
import pathlib
import pty
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from configs import experiment
from conftest import equipment, flavoured
from harness import Agent, ApiError, Cluster, share
from waiting import wait_for

pytestmark = pytest.mark.core

BASE: dict[str, Any] = {"resource_pools": [{"pool_name": "default"}]}


@pytest.fixture(params=["parts", "up"])
def narrow(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One slot; `det master` with an agent, and `det up`."""
    with flavoured("core", shape=request.param, agents=[Agent(slots=1)], master_config=BASE) as cluster:
        yield cluster


def rewrite(cluster: Cluster, **config: Any) -> None:
    (cluster.root / "master.yaml").write_text(yaml.safe_dump({**BASE, **config}))


def master_log(cluster: Cluster) -> pathlib.Path:
    return cluster.data_dir / "det.log" if cluster.shape == "up" else cluster.part("master").log


def admin(cluster: Cluster, *args: str, **options: Any) -> Any:
    """Runs our client as the administrator."""
    return cluster.run_det(*args, env={"DET_USER": "admin", "DET_PASS": ""}, **options)


def config(cluster: Cluster) -> Any:
    return cluster.api("GET", "/api/v1/master/config", user="admin")["config"]


def events(cluster: Cluster) -> list[Any]:
    path = f"/api/v1/events?subjectKind=master&subjectId={cluster.cluster_id}"
    return cluster.api("GET", path, user="admin")["events"]


def test_a_signal_changes_the_scheduler_under_work_that_waits(narrow: Cluster) -> None:
    shared = narrow.shared_dir()
    hold = {"steps": 2, "hold_at": 1, "checkpoint_every": 2}
    first = narrow.submit(experiment("first", hyperparameters=hold, **share(shared)), "train")
    narrow.wait_log(narrow.only_trial(first)["id"], "holding")
    second = narrow.submit(experiment("second", "true", resources={"priority": 1}))
    pid = narrow.part("master").pid

    rewrite(
        narrow,
        cluster_name="reloaded",
        log={"level": "debug"},
        resource_manager={"scheduler": {"type": "priority", "preemption": True}},
    )
    narrow.part("master").send(signal.SIGHUP)

    narrow.wait_experiment(second, "COMPLETED")
    assert narrow.part("master").pid == pid, "it is the same process"
    assert narrow.api("GET", "/api/v1/master", user=None)["clusterName"] == "reloaded"
    [event] = events(narrow)
    assert (event["kind"], event["actor"]) == ("configuration", "signal:SIGHUP")
    paths = [change["path"] for change in event["detail"]["changes"]]
    assert "resource_manager.scheduler.preemption" in paths and "log.level" in paths
    assert "DEBUG" not in master_log(narrow).read_text().partition("the configuration changes")[0]
    narrow.expect_alarm("the configuration in force stays")
    (narrow.root / "master.yaml").write_text("[")
    narrow.part("master").send(signal.SIGHUP)
    nothing = "SIGHUP changed nothing"
    wait_for("a line of level debug", lambda: nothing in master_log(narrow).read_text(), within=20)
    (shared / "go").touch()
    narrow.wait_experiment(first, "COMPLETED")


def test_a_refusal_leaves_everything_as_it_was(narrow: Cluster) -> None:
    narrow.expect_alarm("the configuration in force stays")
    before = config(narrow)
    rewrite(narrow, cluster_name="no", security={"agent_token": "another"}, resource_pools=[{"pool_name": "other"}])
    result = admin(narrow, "master", "reload", check=False)
    assert result.code == 1, str(result)
    assert "security.agent_token: agents have joined with the token" in result.err
    assert 'resource_pools[default]: resource pool "default" cannot go while 1 agent' in result.err
    assert "another" not in result.err

    (narrow.root / "master.yaml").write_text("cluster_name: no\nlog: {levl: debug}\nlaunch_error: maybe\n")
    count = len(events(narrow))
    narrow.part("master").send(signal.SIGHUP)
    refused = wait_for("the event of the refusal", lambda: events(narrow)[count:], within=20)
    assert refused[-1]["kind"] == "configuration_refused"
    for error in ("master.yaml:2:7: log.levl: is not a known key", "master.yaml:3:1: launch_error: must be"):
        assert error in refused[-1]["reason"], refused
    assert config(narrow) == before


def test_an_administrator_looks_before_and_sees_where_values_come_from(narrow: Cluster) -> None:
    narrow.expect_alarm("webhooks.*is accepted and kept but not acted on yet")
    rewrite(narrow, cluster_name="looked", webhooks={"base_url": "https://lab.example"})
    would = admin(narrow, "master", "reload", "--check")
    assert "cluster_name" in would.out and "kept; nothing acts on it" in would.out
    assert config(narrow)["cluster_name"] == ""
    assert narrow.run_det("master", "reload", check=False).code == 1, "it is for administrators"
    done = admin(narrow, "master", "reload", "--json").json()
    assert {"path": "cluster_name", "from": "", "to": "looked", "acts": True} in done["changes"]
    assert config(narrow)["cluster_name"] == "looked"
    shown = admin(narrow, "master", "config", "--origins").out
    rows = {line.split("|")[0].strip(): line.split("|")[-1].strip() for line in shown.splitlines() if "|" in line}
    assert rows["cluster_name"] == f"{narrow.root}/master.yaml:1"
    assert rows["db.port"] == "default"
    assert rows["port"].startswith("--"), rows["port"]
    assert admin(narrow, "master", "reload").out.startswith("Nothing differs")


@pytest.mark.parametrize("ignored", [False, True], ids=["plain", "nohup"])
def test_a_cluster_goes_with_its_terminal_unless_it_was_started_to_outlive_it(ignored: bool) -> None:
    with equipment():
        cluster = Cluster(shape="up", agents=[Agent(slots=1)])
    argv, env = cluster.part("up").argv, {**os.environ, "HOME": str(cluster.root / "home")}
    pid, terminal = pty.fork()
    if pid == 0:
        # Set either way: a runner of tests that ignores the signal itself (`nohup`, many CI services) hands that down.
        signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
        os.execve(argv[0], argv, env)

    def answers() -> bool:
        try:
            return bool(cluster.api("GET", "/api/v1/master", user=None))
        except (ApiError, OSError):
            return False

    def reloads() -> int:
        return (cluster.data_dir / "det.log").read_text().count("the configuration was read again")

    def ended() -> bool:
        return os.waitpid(pid, os.WNOHANG) != (0, 0)

    try:
        wait_for("the first answer", answers, within=20)
        os.kill(pid, signal.SIGHUP)
        wait_for("the reload", lambda: reloads() == 1, within=20)
        os.close(terminal)
        if ignored:
            wait_for("the reload in place of an end", lambda: reloads() == 2, within=20)
            assert answers()
            os.kill(pid, signal.SIGTERM)
        wait_for("the end", ended, within=20)
        pid = 0
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
        cluster._abandon()
