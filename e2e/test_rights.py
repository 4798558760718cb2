"""What an ordinary account asks of a running cluster on another user's behalf: refused, with the reason, and nothing changes."""

from __future__ import annotations

import urllib.parse
from typing import Any

import pytest

from configs import experiment
from harness import ApiError, Cluster

pytestmark = pytest.mark.core

STRANGER = "mallory"
SECRET = "s3cret-of-the-owner"


@pytest.fixture(scope="module")
def rights(up: Cluster) -> Cluster:
    """A cluster with a second ordinary account."""
    password = up.root / "password"
    password.write_text("Weaker-than-1-wants\n")
    admin = {"DET_USER": "admin", "DET_PASS": ""}
    up.run_det("user", "create", STRANGER, "--password-file", password, env=admin)
    up.token(STRANGER, "Weaker-than-1-wants")
    return up


def refused(cluster: Cluster, method: str, path: str, body: Any = None, **options: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        cluster.api(method, path, body, **options)
    return caught.value


def ended(cluster: Cluster, **more: Any) -> int:
    """An experiment of `determined` that has completed."""
    id = cluster.submit(experiment("owned", ["sh", "-c", "echo ran as $(id -u)"], **more))
    cluster.wait_experiment(id, "COMPLETED")
    return id


def test_strangers_do_not_run_their_code_as_the_owner(rights: Cluster) -> None:
    id = ended(rights, environment={"environment_variables": [f"API_TOKEN={SECRET}", "PLAIN=value"]})
    before = rights.experiment(id)
    for over in (
        "entrypoint: [sh, -c, 'env']",
        "environment: {image: stolen}",
        "bind_mounts: [{host_path: /, container_path: /host}]",
        "checkpoint_storage: {type: shared_fs, host_path: /tmp}",
    ):
        error = refused(
            rights, "POST", "/api/v1/experiments/continue", {"id": id, "overrideConfig": over}, user=STRANGER
        )
        assert error.status == 403 and "forbidden" in error.text, error
    assert rights.experiment(id) == before
    # Without an override it is the owner's code that goes on.
    rights.api("POST", "/api/v1/experiments/continue", {"id": id}, user=STRANGER)
    rights.wait_experiment(id, "COMPLETED")


def test_variables_are_shown_and_come_back_to_the_owner_alone(rights: Cluster) -> None:
    id = ended(rights, environment={"environment_variables": [f"API_TOKEN={SECRET}", "PLAIN=value"]})
    path = f"/api/v1/experiments/{id}"
    seen = rights.api("GET", path, user=STRANGER)["config"]
    assert SECRET not in str(seen) and "PLAIN=value" not in str(seen), seen
    own = rights.api("GET", path)["config"]
    assert SECRET in str(own) and "PLAIN=value" in str(own), own
    # What was shown masked runs with the real values where the caller may read them, and not at all elsewhere.
    fork = {"config": rights.write_config(seen).read_text(), "parentId": id, "activate": True}
    again = rights.api("POST", "/api/v1/experiments", fork)["experiment"]["id"]
    rights.wait_experiment(again, "COMPLETED")
    assert rights.api("GET", f"/api/v1/experiments/{again}")["config"]["environment"] == own["environment"]
    error = refused(rights, "POST", "/api/v1/experiments", fork, user=STRANGER)
    assert error.status == 400, error
    for place in range(2):
        assert f"environment.environment_variables.cpu[{place}]" in error.text, error
    trial = rights.only_trial(id)
    for elsewhere in (
        "/api/v1/experiments?limit=-1",
        f"/api/v1/experiments/{id}/trials",
        f"/api/v1/trials/{trial['id']}",
        f"/api/v1/tasks/{trial['taskId']}",
        f"/api/v1/tasks/{trial['taskId']}/config",
        "/api/v1/job-queues-v2?resourcePool=default",
    ):
        try:
            assert SECRET not in rights.raw("GET", elsewhere, user=STRANGER).decode()
        except ApiError as error:
            assert error.status in (404, 501), error


def test_policies_hold_when_an_experiment_goes_on(rights: Cluster) -> None:
    id = ended(rights)
    path = "/api/v1/config-policies/global/EXPERIMENT"
    policies = "invariant_config: {max_restarts: 1, resources: {max_slots: 1}}"
    rights.api("PUT", path, {"configPolicies": policies, "workloadType": "EXPERIMENT"}, user="admin")
    try:
        over = "max_restarts: 3\nresources: {max_slots: 2}"
        rights.api("POST", "/api/v1/experiments/continue", {"id": id, "overrideConfig": over})
        config = rights.api("GET", f"/api/v1/experiments/{id}")["config"]
        assert (config["max_restarts"], config["resources"]["max_slots"]) == (1, 1)
        rights.wait_experiment(id, "COMPLETED")
    finally:
        rights.api("DELETE", path, user="admin")


def test_templates_belong_to_those_who_made_them(rights: Cluster) -> None:
    body = {"name": "house", "config": {"max_restarts": 1}, "workspaceId": 1}
    rights.api("POST", "/api/v1/templates/house", body)
    over = {"name": "house", "config": {"startup_hook": "id"}, "workspaceId": 1}
    for method, path, sent in (
        ("PUT", "/api/v1/templates/house", over),
        ("PATCH", "/api/v1/template/rename", {"oldName": "house", "newName": "mine"}),
        ("DELETE", "/api/v1/templates/house", None),
    ):
        error = refused(rights, method, path, sent, user=STRANGER)
        assert error.status == 403 and "forbidden" in error.text, (method, error)
    assert rights.api("GET", "/api/v1/templates/house")["template"]["config"] == {"max_restarts": 1}


def test_a_token_of_a_task_dies_with_the_task(rights: Cluster) -> None:
    config = experiment("speaks", "echo token $DET_SESSION_TOKEN")
    trial = rights.run(config)["id"]
    [line] = [line for line in rights.printed(trial) if line.startswith("token ")]
    token = line.split()[-1]
    for header in ("Authorization", "Grpc-Metadata-x-allocation-token"):
        for method, path, body in (
            ("GET", "/api/v1/me", None),
            ("GET", "/api/v1/experiments", None),
            ("POST", "/api/v1/experiments", {"config": "{}", "activate": True}),
        ):
            error = refused(rights, method, path, body, user=None, headers={header: f"Bearer {token}"})
            assert error.status in (401, 403), (header, path, error)


def test_directories_of_the_cluster_are_no_checkpoints(rights: Cluster) -> None:
    for path in (rights.data_dir, rights.data_dir / "agents", rights.root):
        for kind in ("shared_fs", "directory"):
            where = "host_path" if kind == "shared_fs" else "container_path"
            storage = {"type": kind, where: str(path)}
            config = rights.write_config(experiment("leads in", ["sh", "-c", "true"], checkpoint_storage=storage))
            result = rights.run_det("experiment", "create", config, rights.empty_context(), check=False)
            if "Created experiment" not in result.out:
                assert str(path) in result.err, result
                continue
            id = int(result.out.split("Created experiment ")[1].split()[0])
            rights.wait_experiment(id, "COMPLETED", "ERROR")
            assert rights.checkpoints(id) == []


def test_a_browser_of_another_user_asks_in_vain(rights: Cluster) -> None:
    port = rights.port
    token = rights.token("admin")
    error = refused(rights, "GET", "/api/v1/users", user="admin", headers={"Host": f"evil.example:{port}"})
    assert error.status == 403 and "security.host_names" in error.text, error
    changing = {"Cookie": f"auth={urllib.parse.quote(token)}", "Content-Type": "text/plain"}
    body = {"id": 1, "priority": 1}
    for origin in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {}):
        error = refused(rights, "POST", "/api/v1/experiments/1/kill", body, user=None, headers={**changing, **origin})
        assert error.status == 403, (origin, error)


def test_what_is_for_administrators_is_refused_before_anything_is_shown_of_it(rights: Cluster) -> None:
    for method, path, body in (
        ("PATCH", "/api/v1/users/1", {"admin": False}),
        ("POST", "/api/v1/users/2/password", '"x"'),
        ("POST", "/api/v1/agents/local/disable", {}),
        ("POST", "/api/v1/agents/none/disable", {}),
        ("PUT", "/api/v1/config-policies/global/EXPERIMENT", {"configPolicies": "{}", "workloadType": "EXPERIMENT"}),
        ("GET", "/api/v1/master/config", None),
        ("DELETE", "/api/v1/experiments/1", None),
    ):
        error = refused(rights, method, path, body, user=STRANGER)
        assert error.status == 403 and "forbidden" in error.text, (method, path, error)
