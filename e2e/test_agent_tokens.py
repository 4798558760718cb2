"""Tokens of agents: what an agent needs to come back, what a holder of the cluster's token cannot do, revoking."""

from __future__ import annotations

import pathlib
import signal
import stat

import pytest

from configs import experiment
from conftest import flavoured
from harness import Cluster
from waiting import wait_for

pytestmark = pytest.mark.core

ADMIN = {"DET_USER": "admin", "DET_PASS": ""}


def agent(cluster: Cluster, name: str, data: pathlib.Path, *more: object) -> list[object]:
    """Command line of an agent that has no file with the cluster's token, unless `more` names one."""
    argv = ["agent", "--master-host", "127.0.0.1", "--master-port", cluster.port, "--agent-id", name]
    return [*argv, "--artificial-slots", 1, "--runtime", "process", "--data-dir", data, *more]


def enabled(cluster: Cluster) -> dict[str, bool]:
    return {a["id"]: a["enabled"] for a in cluster.api("GET", "/api/v1/agents")["agents"]}


def test_an_agent_that_has_joined_comes_back_without_the_clusters_token() -> None:
    with flavoured("core") as cluster:
        data = cluster.root / "joins"
        nothing = cluster.run_det(*agent(cluster, "late", data), check=False)
        assert nothing.code == 2 and "--agent-token-file" in nothing.err, str(nothing)

        given = cluster.root / "given"
        given.write_bytes((cluster.data_dir / "agent-token").read_bytes())
        with cluster.det_beside(*agent(cluster, "late", data, "--agent-token-file", given)) as first:
            wait_for("the agent", lambda: enabled(cluster).get("late"), within=20)
            first.stop()
        token = data / "token"
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        wait_for("its absence", lambda: enabled(cluster).get("late") is False, within=20)

        given.unlink()
        with cluster.det_beside(*agent(cluster, "late", data, "--agent-token-file", given)) as second:
            wait_for("the agent again", lambda: enabled(cluster).get("late"), within=20)
            assert token.read_text() not in second.log.read_text()
            second.stop()


def test_the_clusters_token_does_not_make_anybody_another_agent() -> None:
    with flavoured("core") as cluster:
        shared = ["--agent-token-file", cluster.data_dir / "agent-token"]
        task = cluster.submit(experiment("runs", ["sleep", "300"]))
        (trial,) = wait_for("a trial", lambda: cluster.trials(task), within=20)
        cluster.wait_log(trial["id"], "Container started on place agent-1")
        cluster.part("agent-1").send(signal.SIGTERM)
        cluster.part("agent-1").wait(within=30)
        wait_for("its absence", lambda: enabled(cluster)["agent-1"] is False, within=20)

        # The instance id of the real one is no secret.
        twin = cluster.root / "twin"
        twin.mkdir(mode=0o700)
        (twin / "instance").write_bytes((cluster.root / "agent-1" / "instance").read_bytes())
        cluster.expect_alarm("joined with another token")
        with cluster.det_beside(*agent(cluster, "agent-1", twin, *shared)) as thief:
            refused = "joined with another token"
            wait_for("the refusal", lambda: refused in thief.log.read_text(), within=20)
            thief.stop()
        cluster.start()
        assert cluster.experiment(task)["state"] in ("ACTIVE", "RUNNING")
        assert cluster.trials(task)[0]["restarts"] == 0
        lines = cluster.log_lines(trial["id"])
        assert sum("Container started on place" in line for line in lines) == 1, lines


def test_a_revoked_agent_ends_with_its_tasks() -> None:
    with flavoured("core") as cluster:
        data, shared = cluster.root / "lost", ["--agent-token-file", cluster.data_dir / "agent-token"]
        cluster.api("POST", "/api/v1/agents/agent-1/disable", {}, user="admin")
        with cluster.det_beside(*agent(cluster, "lost", data, *shared)) as lost:
            wait_for("the agent", lambda: enabled(cluster).get("lost"), within=20)
            task = cluster.submit(experiment("runs", ["sh", "-c", "sleep 300 & wait"]))
            (trial,) = wait_for("a trial", lambda: cluster.trials(task), within=20)
            cluster.wait_log(trial["id"], "Container started on place lost")

            denied = cluster.run_det("agent", "revoke", "lost", check=False)
            assert denied.code != 0 and "forbidden" in denied.err, str(denied)
            unknown = cluster.run_det("agent", "revoke", "no-such-agent", check=False, env=ADMIN)
            assert unknown.code != 0 and "no-such-agent" in unknown.err, str(unknown)

            cluster.expect_alarm("was revoked")
            cluster.run_det("agent", "revoke", "lost", env=ADMIN)
            wait_for("the end of the agent", lambda: not lost.running(), within=40)
            assert lost.exit_code() == 1
            assert "was revoked" in lost.log.read_text()
        assert "lost" not in enabled(cluster)
        cluster.api("POST", "/api/v1/agents/agent-1/enable", {}, user="admin")
        cluster.wait_log(trial["id"], "Container started on place agent-1")
        again = cluster.run_det(*agent(cluster, "lost", data, *shared), check=False)
        assert again.code == 1 and "was revoked" in again.err, str(again)
