"""What is refused: every refusal contains what is wrong and what is allowed, and changes nothing."""

from __future__ import annotations

import json
import pathlib
import socket
import time

import pytest

from configs import experiment
from conftest import equipment, flavoured
from harness import ApiError, Cluster, archive_entry
from processes import free_port
from waiting import wait_for

pytestmark = pytest.mark.core

CONFIG = json.dumps(experiment("refused", "true"))


def stored(cluster: Cluster) -> list:
    """What was submitted and changed, without what goes on by itself."""
    keys = ("id", "name", "description", "labels", "archived", "notes", "config")
    return [[experiment[key] for key in keys] for experiment in cluster.experiments()]


def refused(cluster: Cluster, method: str, path: str, body=None, **options) -> ApiError:
    """The refusal of a call: an error of the caller's, in words, that left no experiment behind."""
    before = stored(cluster)
    with pytest.raises(ApiError) as caught:
        if isinstance(body, bytes):
            cluster.raw(method, path, body, **options)
        else:
            cluster.api(method, path, body, **options)
    assert 400 <= caught.value.status < 500 or caught.value.status == 501, str(caught.value)
    assert caught.value.text, "an error has words"
    assert stored(cluster) == before
    return caught.value


def test_all_errors_of_a_configuration_are_reported_with_their_lines(up: Cluster) -> None:
    text = "\n".join(
        [
            "name: errors",
            "entrypoint: 'true'",
            "serchers: {}",
            "searcher:",
            "  name: single",
            "  metric: loss",
            "resources:",
            "  slots_per_trial: many",
            "  prioritty: 3",
            "max_restarts: -1",
        ]
    )
    before = stored(up)
    result = up.run_det("experiment", "create", up.write_config(text), up.empty_context(), check=False)
    assert result.code == 1, str(result)
    for line, key in ((3, "serchers"), (8, "slots_per_trial"), (9, "prioritty"), (10, "max_restarts")):
        assert any(key in error and str(line) in error for error in result.err.splitlines()), f"{key}\n{result}"
    assert stored(up) == before


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "name: x",
        "a: b: c",
        "entrypoint: 3",
        "searcher: {name: magic, metric: loss}",
        "\x00",
        "x: &a [*a, *a]",
    ],
)
def test_configurations_that_are_none(up: Cluster, text: str) -> None:
    refused(up, "POST", "/api/v1/experiments", {"config": text, "modelDefinition": []})


@pytest.mark.parametrize("path", ["../out.py", "/etc/passwd", "a/../../b", "a\0b", ""])
def test_paths_that_lead_out_of_the_context(up: Cluster, path: str) -> None:
    files = [archive_entry("train.py", "pass"), archive_entry(path, "x")]
    error = refused(up, "POST", "/api/v1/experiments", {"config": CONFIG, "modelDefinition": files})
    assert error.status == 400


def test_the_same_path_twice(up: Cluster) -> None:
    files = [archive_entry("train.py", "1"), archive_entry("train.py", "2")]
    error = refused(up, "POST", "/api/v1/experiments", {"config": CONFIG, "modelDefinition": files})
    assert error.status == 400 and "train.py" in error.text


def test_files_that_are_too_large(up: Cluster, tmp_path: pathlib.Path) -> None:
    with (tmp_path / "large.bin").open("wb") as out:
        out.truncate(100 << 20)
    before = stored(up)
    result = up.run_det("experiment", "create", up.write_config(CONFIG), tmp_path, check=False)
    assert result.code == 1 and "95" in result.err, "the limit is in the message"
    assert stored(up) == before


@pytest.mark.parametrize(
    "body",
    [b"{", b"\xff\xfe", b"[1, 2]", b'"text"', b'{"config": 3}', b'{"config": "\\ud800"}', b'{"activate": "perhaps"}'],
)
def test_bodies_that_are_no_request(up: Cluster, body: bytes) -> None:
    assert refused(up, "POST", "/api/v1/experiments", body).status == 400


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/experiments/99999", 404),
        ("/api/v1/experiments/0", 404),
        ("/api/v1/experiments/-1", 404),
        ("/api/v1/experiments/abc", 400),
        ("/api/v1/experiments/99999999999999999999", 400),
        ("/api/v1/trials/99999", 404),
        ("/api/v1/trials/99999/logs", 404),
        ("/api/v1/tasks/no-such-task", 404),
        ("/api/v1/tasks/no-such-task/logs", 404),
        ("/api/v1/checkpoints/00000000-0000-0000-0000-000000000000", 404),
        ("/checkpoints/not-a-uuid", 400),
        ("/api/v1/agents/no-such-agent", 404),
        ("/api/v1/experiments?limit=abc", 400),
        ("/api/v1/experiments?states=STATE_SOMEWHERE", 400),
        ("/api/v1/no-such-operation", 501),
    ],
)
def test_things_that_are_not_there(up: Cluster, path: str, status: int) -> None:
    assert refused(up, "GET", path).status == status


def test_wrong_methods(up: Cluster) -> None:
    assert refused(up, "PUT", "/api/v1/experiments/1").status in (404, 405, 501)
    assert refused(up, "DELETE", "/api/v1/master").status in (405, 501)


@pytest.mark.parametrize("token", ["", "x", "é", "A" * 10_000])
def test_wrong_tokens(up: Cluster, token: str) -> None:
    header = {"Authorization": f"Bearer {token}".encode().decode("latin-1")}
    assert refused(up, "GET", "/api/v1/experiments", user=None, headers=header).status in (400, 401, 431)


def test_no_token(up: Cluster) -> None:
    for method, path in (("GET", "/api/v1/experiments"), ("POST", "/api/v1/experiments"), ("GET", "/api/v1/me")):
        assert refused(up, method, path, user=None).status == 401
    with pytest.raises(ApiError) as caught:
        up.raw(
            "POST",
            "/api/v1/auth/login",
            json.dumps({"username": "admin", "password": "no", "isHashed": True}).encode(),
            user=None,
        )
    assert caught.value.status == 401 and caught.value.text == "invalid credentials"


def test_a_token_ends_with_its_session(up: Cluster) -> None:
    body = {"username": "determined", "password": "", "isHashed": True}
    token = up.api("POST", "/api/v1/auth/login", body, user=None)["token"]
    assert up.api("GET", "/api/v1/me", token=token)["user"]["username"] == "determined"
    up.api("POST", "/api/v1/auth/logout", token=token)
    assert refused(up, "GET", "/api/v1/me", token=token).status == 401


def test_an_allocation_token_is_for_its_own_task(up: Cluster) -> None:
    first = up.submit(experiment("secret", "echo token $DET_SESSION_TOKEN; sleep 600"))
    second = up.submit(experiment("other", "sleep 600"))
    [line] = up.wait_log(up.only_trial(first)["id"], "token ")
    header = {"Grpc-Metadata-x-allocation-token": f"Bearer {line.split()[-1]}"}
    other = up.only_trial(second)["id"]
    report = {
        "group": "training",
        "metrics": {"trialId": other, "trialRunId": 1, "stepsCompleted": 1, "metrics": {"avgMetrics": {"loss": 1}}},
    }
    error = refused(up, "POST", f"/api/v1/trials/{other}/metrics", report, user=None, headers=header)
    assert error.status in (401, 403, 404)
    assert up.metrics(other, "training") == []
    for experiment_id in (first, second):
        up.run_det("experiment", "kill", experiment_id)
        up.wait_experiment(experiment_id, "CANCELED")


def test_a_request_that_no_agent_can_hold(up: Cluster) -> None:
    text = """
name: impossible
entrypoint: 'true'
searcher: {name: single, metric: loss}
resources:
  slots_per_trial: 3
  weight: 2
workspace: nowhere
project: nothing
"""
    before = stored(up)
    config, context = up.write_config(text), up.empty_context()
    result = up.run_det("experiment", "create", config, context, check=False)
    errors = result.err.splitlines()
    assert result.code == 1, str(result)
    assert any(":6:" in line and "slots_per_trial" in line and "fit: 2" in line for line in errors), str(result)
    assert any(":8:" in line and "nowhere" in line for line in errors), str(result)
    result = up.run_det("experiment", "create", config, context, "--config", "resources.slots_per_trial=4", check=False)
    errors = result.err.splitlines()
    assert any("--config" in line and "slots_per_trial" in line for line in errors), str(result)
    assert stored(up) == before


def test_an_unknown_pool(up: Cluster) -> None:
    config = up.write_config(experiment("pool", "true", resources={"resource_pool": "nowhere"}))
    result = up.run_det("experiment", "create", config, up.empty_context(), check=False)
    assert result.code == 1 and "nowhere" in result.err and "default" in result.err


def test_a_master_that_is_not_there(up: Cluster) -> None:
    for command in (["experiment", "list"], ["user", "whoami"], ["master", "info"]):
        began = time.monotonic()
        result = up.run_det(*command, check=False, env={"DET_MASTER": f"http://127.0.0.1:{free_port()}"}, within=10)
        took = time.monotonic() - began
        assert result.code == 3 and len(result.err.strip().splitlines()) == 1, str(result)
        assert "det up" in result.err and "DET_MASTER" in result.err
        # A promise to the user at the terminal; it waits for nothing, so a busy machine does not break it.
        assert took < 1.5, f"{took} s"


def test_an_address_that_is_no_master(up: Cluster) -> None:
    assert up.run_det("experiment", "list", check=False, env={"DET_MASTER": "http://no-such-host.invalid"}).code == 3
    assert up.run_det("experiment", "list", check=False, env={"DET_MASTER": "not an address"}).code in (2, 3)


def test_a_second_master_on_the_same_data(up: Cluster) -> None:
    result = up.run_det("up", "--port", free_port(), "--data-dir", up.data_dir, "--no-open", check=False)
    assert result.code == 1 and str(up.data_dir) in result.err, str(result)
    assert "panicked" not in result.err
    assert up.api("GET", "/api/v1/master", user=None), "the first one goes on"


def test_a_port_that_is_taken(up: Cluster, tmp_path: pathlib.Path) -> None:
    for command in ("up", "master"):
        args = [command, "--port", up.port, "--data-dir", tmp_path / command]
        args += ["--no-open"] if command == "up" else ["--host", "127.0.0.1"]
        result = up.run_det(*args, check=False)
        assert result.code == 1 and str(up.port) in result.err and "--port" in result.err, str(result)


def test_a_data_directory_that_cannot_be_used(up: Cluster, tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    result = up.run_det("up", "--port", free_port(), "--data-dir", tmp_path / "file" / "x", "--no-open", check=False)
    assert result.code == 1 and "file/x" in result.err and "--data-dir" in result.err, str(result)


def test_a_master_configuration_with_errors(up: Cluster, tmp_path: pathlib.Path) -> None:
    (tmp_path / "master.yaml").write_text("port: 8080\nsheduler: {}\ncheckpoint_storage:\n  type: floppy\n")
    result = up.run_det("master", "--config-file", tmp_path / "master.yaml", "--data-dir", tmp_path / "d", check=False)
    assert result.code == 2 and "sheduler" in result.err and "floppy" in result.err, str(result)


def test_a_blank_password_stays_on_this_machine(up: Cluster, tmp_path: pathlib.Path) -> None:
    result = up.run_det("master", "--host", "0.0.0.0", "--port", free_port(), "--data-dir", tmp_path, check=False)
    assert result.code == 1 and "password" in result.err, str(result)


def test_agents_that_are_not_let_in(tmp_path: pathlib.Path) -> None:
    with flavoured("core") as cluster:
        token = tmp_path / "token"
        token.write_text("not the token\n")
        base = ["agent", "--master-host", "127.0.0.1", "--master-port", cluster.port, "--artificial-slots", 1]
        base += ["--runtime", "process", "--agent-token-file"]
        wrong = cluster.run_det(*base, token, "--agent-id", "b", "--data-dir", tmp_path / "b", check=False)
        assert wrong.code == 1 and "--agent-token-file" in wrong.err, str(wrong)
        right = cluster.data_dir / "agent-token"
        same_data = ["--agent-id", "d", "--data-dir", cluster.root / "agent-1"]
        shared = cluster.run_det(*base, right, *same_data, check=False)
        assert shared.code == 1 and "data directory" in shared.err, str(shared)

        # Of two agents with one id the second is refused with the reason and waits: the first may be about to be given up.
        cluster.expect_alarm(r"joined with another token")
        same_id = ["--agent-id", "agent-1", "--data-dir", cluster.root / "twin"]
        with cluster.det_beside(*base, right, *same_id) as twin:
            refusal = "joined with another token"
            wait_for("the refusal of the second", lambda: refusal in twin.log.read_text(), within=20)
            twin.stop()
        assert [agent["id"] for agent in cluster.api("GET", "/api/v1/agents")["agents"]] == ["agent-1"]


def test_half_a_request_does_no_harm(up: Cluster) -> None:
    for text in (
        b"GET / HTTP/1.1\r\n",
        b"POST /api/v1/experiments HTTP/1.1\r\nContent-Length: 100\r\n\r\n{",
        b"\x16\x03\x01\x02\x00",
    ):
        with socket.create_connection(("127.0.0.1", up.port), timeout=5) as connection:
            connection.sendall(text)
    assert up.api("GET", "/api/v1/master", user=None)


def test_no_docker_is_one_sentence(up: Cluster, tmp_path: pathlib.Path) -> None:
    with equipment():
        args = ["up", "--port", free_port(), "--data-dir", tmp_path / "data", "--no-open", "--runtime", "docker"]
        result = up.run_det(*args, check=False, env={"DOCKER_HOST": f"unix://{tmp_path}/none.sock"})
    assert result.code == 1 and "none.sock" in result.err and "panicked" not in result.err, str(result)
