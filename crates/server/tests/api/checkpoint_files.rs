//! Files of checkpoints: attacks on the files of others through storage and names that a user chose, removal that is cut
//! short, and comparison with the storage.

use std::path::Path;

use det_agent_proto::ToAgent;
use det_taskspec::{ContainerSpec, TaskKind};
use reqwest::Method;
use serde_json::{Value, json};

use crate::checkpoints::{PATH, report, send, sizes, uuid, world, write_files};
use crate::experiments::{config, create};
use crate::support::{Client, Cluster, FakeAgent};

/// A running trial whose checkpoints go to a directory that the user chose, and its storage.
async fn chosen_storage(
    cluster: &Cluster,
    agent: &str,
    storage: &Path,
) -> (FakeAgent, ContainerSpec, Client) {
    let mut agent = cluster.agent(agent, 1).await;
    let mut config = config("chosen");
    config["checkpoint_storage"] = json!({"type": "shared_fs", "host_path": storage});
    create(&cluster.determined().await, &config, true).await;
    let spec = agent.next_start().await;
    let task = cluster.client().as_task(&spec.script.token);
    (agent, spec, task)
}

#[tokio::test]
async fn files_outside_what_an_administrator_allowed_are_not_touched_by_the_master() {
    let cluster = Cluster::start().await;
    // As the directory of a running container is: named by a UUID, with the token in it.
    let elsewhere = tempfile::tempdir().unwrap();
    let data_dir = cluster.master().data_dir.clone();
    for (n, storage) in [(1, elsewhere.path()), (2, &data_dir.join("agents"))] {
        let victim = write_files(storage, n);
        let (mut agent, spec, task) = chosen_storage(&cluster, &format!("a{n}"), storage).await;
        task.post(PATH, report(&spec, n, 1)).await.ok();
        let owner = cluster.determined().await;
        let message = owner
            .get(&format!("/checkpoints/{}", uuid(n)))
            .await
            .refused(400);
        assert!(
            message.contains("not below a path that an administrator allowed"),
            "{message}"
        );
        let named = json!({"checkpointUuids": [uuid(n)]});
        send(&owner, Method::DELETE, PATH, named).await.ok();
        // A task of the owner is to do it, with nothing but the storage, as the owner's Unix user.
        let removal = agent.next_start().await;
        assert_eq!(removal.script.task_type, TaskKind::CheckpointGc);
        assert_eq!(removal.user, spec.user);
        let mounts: Vec<_> = removal
            .mounts
            .iter()
            .map(|mount| (mount.host_path.as_str(), mount.create, mount.trusted))
            .collect();
        assert_eq!(mounts, [(storage.to_str().unwrap(), false, false)]);
        agent.exits(&removal, 1).await;
        assert!(victim.join("d/m.txt").exists());
        let kill = format!("/api/v1/experiments/{n}/kill");
        owner.post(&kill, Value::Null).await.ok();
    }
    cluster.stop().await;
}

/// Files that a container has written may belong to users that a process cannot be.
#[tokio::test]
async fn checkpoints_of_containers_are_deleted_in_a_container() {
    let pools = r#"[{"pool_name": "default"}, {"pool_name": "images"}]"#;
    let cluster = Cluster::start_with(&[("resource_pools", pools)]).await;
    let elsewhere = tempfile::tempdir().unwrap();
    write_files(elsewhere.path(), 1);
    let _processes = cluster.agent("processes", 1).await;
    let mut containers = cluster.agent_in("images", "docker-1", 1).await;
    let mut config = config("of-containers");
    config["checkpoint_storage"] = json!({"type": "shared_fs", "host_path": elsewhere.path()});
    config["resources"]["resource_pool"] = json!("images");
    let owner = cluster.determined().await;
    create(&owner, &config, true).await;
    let spec = containers.next_start().await;
    let task = cluster.client().as_task(&spec.script.token);
    task.post(PATH, report(&spec, 1, 1)).await.ok();
    let named = json!({"checkpointUuids": [uuid(1)]});
    send(&owner, Method::DELETE, PATH, named).await.ok();
    let removal = containers.next_start().await;
    assert_eq!(removal.script.task_type, TaskKind::CheckpointGc);
    cluster.stop().await;
}

#[tokio::test]
async fn a_task_that_deletes_checkpoints_reports_of_its_own_until_it_has_ended() {
    let cluster = Cluster::start().await;
    let elsewhere = tempfile::tempdir().unwrap();
    let (mut agent, spec, task) = chosen_storage(&cluster, "a", elsewhere.path()).await;
    for n in [1, 2] {
        task.post(PATH, report(&spec, n, 1)).await.ok();
    }
    let owner = cluster.determined().await;
    let named = json!({"checkpointUuids": [uuid(1)]});
    send(&owner, Method::DELETE, PATH, named).await.ok();
    let removal = agent.next_start().await;
    agent.runs(&removal).await;
    let jobs = owner.get("/api/v1/job-queues-v2").await.ok();
    let jobs = jobs["jobs"].as_array().unwrap().len();
    assert_eq!(jobs, 1, "deletions are in no list of jobs");
    let remover = cluster.client().as_task(&removal.script.token);
    let deleted =
        |n: u32| json!({"checkpoints": [{"uuid": uuid(n), "resources": {"resources": {}}}]});
    remover.patch(PATH, deleted(2)).await.refused(403);
    remover.patch(PATH, deleted(1)).await.ok();
    agent.exits(&removal, 0).await;
    let state = |n: u32| format!("{PATH}/{}", uuid(n));
    let gone = owner.get(&state(1)).await.ok();
    assert_eq!(gone["checkpoint"]["state"], "STATE_DELETED");
    let kept = owner.get(&state(2)).await.ok();
    assert_eq!(kept["checkpoint"]["state"], "STATE_COMPLETED");
    cluster.stop().await;
}

/// A trial that has reported a checkpoint in an object store, which only tasks reach.
async fn in_object_store(cluster: &Cluster) -> (FakeAgent, Client) {
    let mut agent = cluster.agent("a", 1).await;
    let mut config = config("stored");
    config["checkpoint_storage"] = json!({"type": "s3", "bucket": "b"});
    config["environment"] = json!({"image": "of-user"});
    let owner = cluster.determined().await;
    create(&owner, &config, true).await;
    let spec = agent.next_start().await;
    let task = cluster.client().as_task(&spec.script.token);
    task.post(PATH, report(&spec, 1, 1)).await.ok();
    (agent, owner)
}

/// What a removal task runs of a user's is under what is demanded of all tasks today.
#[tokio::test]
async fn policies_over_tasks_are_over_removals_in_object_stores() {
    const POLICIES: &str = "/api/v1/config-policies/workspaces/1/NTSC";
    let cluster = Cluster::start().await;
    let (mut agent, owner) = in_object_store(&cluster).await;
    let admin = cluster.admin().await;
    let set = async |invariants: Value| {
        let policies = json!({"invariant_config": invariants}).to_string();
        let body = json!({"configPolicies": policies});
        admin.put(POLICIES, body).await.ok();
    };
    let delete = async || {
        let named = json!({"checkpointUuids": [uuid(1)]});
        send(&owner, Method::DELETE, PATH, named).await
    };
    set(json!({"resources": {"slots": 100}})).await;
    let refusal = delete().await.refused(400);
    assert!(
        refusal.contains("the task that is to delete checkpoints of experiment 1"),
        "{refusal}"
    );
    let path = format!("{PATH}/{}", uuid(1));
    let checkpoint = owner.get(&path).await.ok();
    assert_eq!(checkpoint["checkpoint"]["state"], "STATE_COMPLETED");
    set(json!({"environment": {"image": "of-administrators"}})).await;
    delete().await.ok();
    let removal = agent.next_start().await;
    assert_eq!(removal.script.task_type, TaskKind::CheckpointGc);
    assert_eq!(removal.image, "of-administrators");
    cluster.stop().await;
}

/// An experiment keeps its pod when it goes into a workspace where no user may have such a one.
#[tokio::test]
async fn policies_over_pods_are_over_removals_of_what_was_moved() {
    let cluster = Cluster::start().await;
    let mut agent = cluster.agent("a", 1).await;
    let mut config = config("stored");
    config["checkpoint_storage"] = json!({"type": "s3", "bucket": "b"});
    let volumes = json!([{"name": "host", "hostPath": {"path": "/"}}]);
    config["environment"] = json!({"pod_spec": {"spec": {"volumes": volumes}}});
    let owner = cluster.determined().await;
    create(&owner, &config, true).await;
    let spec = agent.next_start().await;
    let task = cluster.client().as_task(&spec.script.token);
    task.post(PATH, report(&spec, 1, 1)).await.ok();
    owner
        .post("/api/v1/experiments/1/kill", json!({}))
        .await
        .ok();
    agent.exits(&spec, 0).await;
    let ended = |it: &Value| it["experiment"]["state"] == "STATE_CANCELED";
    cluster.until(&owner, "/api/v1/experiments/1", ended).await;
    let admin = cluster.admin().await;
    let made = owner
        .post("/api/v1/workspaces", json!({"name": "vision"}))
        .await
        .ok();
    let workspace = &made["workspace"]["id"];
    let body =
        json!({"configPolicies": "constraints: {pod_spec: {deny: [spec.volumes.hostPath]}}"});
    let path = format!("/api/v1/config-policies/workspaces/{workspace}/EXPERIMENT");
    admin.put(&path, body).await.ok();
    let path = format!("/api/v1/workspaces/{workspace}/projects");
    let project = owner.post(&path, json!({"name": "p"})).await.ok();
    let to = json!({"destinationProjectId": project["project"]["id"]});
    owner.post("/api/v1/experiments/1/move", to).await.ok();
    let named = json!({"checkpointUuids": [uuid(1)]});
    let refusal = send(&owner, Method::DELETE, PATH, named.clone()).await;
    let refusal = refusal.refused(400);
    assert!(
        refusal
            .contains("spec.volumes[host].hostPath: cannot be set under the policy of workspace")
            && refusal.contains("checkpoint_gc_pod_spec"),
        "{refusal}"
    );
    let path = format!("/api/v1/config-policies/workspaces/{workspace}/EXPERIMENT");
    send(&admin, Method::DELETE, &path, json!({})).await.ok();
    send(&owner, Method::DELETE, PATH, named).await.ok();
    // After the orders about the trial.
    let removal = loop {
        if let ToAgent::Start(spec) = agent.receive().await {
            break spec;
        }
    };
    assert_eq!(removal.script.task_type, TaskKind::CheckpointGc);
    cluster.stop().await;
}

#[tokio::test]
async fn a_removal_that_runs_too_long_is_ended_and_reports_why() {
    let cluster = Cluster::start_with(&[("checkpoint_removal_timeout", "1s")]).await;
    let (mut agent, owner) = in_object_store(&cluster).await;
    let named = json!({"checkpointUuids": [uuid(1)]});
    send(&owner, Method::DELETE, PATH, named).await.ok();
    let removal = agent.next_start().await;
    assert_eq!(removal.script.task_type, TaskKind::CheckpointGc);
    agent.runs(&removal).await;
    assert!(!agent.next_kill().await, "at once");
    agent.exits(&removal, 137).await;
    let path = format!("/api/v1/tasks/{}", removal.task_id);
    let ended = |answer: &Value| !answer["task"]["endTime"].is_null();
    let task = cluster.until(&owner, &path, ended).await;
    let reason = task["task"]["allocations"][0]["exitReason"].to_string();
    assert!(reason.contains("checkpoint_removal_timeout"), "{reason}");
    cluster.stop().await;
}

#[tokio::test]
async fn a_policy_whose_task_failed_shows_at_its_experiment_until_it_has_been_applied() {
    let cluster = Cluster::start().await;
    let elsewhere = tempfile::tempdir().unwrap();
    let (mut agent, spec, task) = chosen_storage(&cluster, "a", elsewhere.path()).await;
    for n in [1, 2] {
        task.post(PATH, report(&spec, n, i64::from(n))).await.ok();
    }
    agent.exits(&spec, 0).await;
    agent.forgets(&spec).await;
    let removal = agent.next_start().await;
    assert_eq!(removal.script.task_type, TaskKind::CheckpointGc);
    agent.exits(&removal, 1).await;
    agent.forgets(&removal).await;
    let owner = cluster.determined().await;
    let path = "/api/v1/experiments/1";
    let failed = |e: &Value| !e["experiment"]["checkpointFailure"].is_null();
    let shown = cluster.until(&owner, path, failed).await;
    let reason = shown["experiment"]["checkpointFailure"].to_string();
    assert!(
        reason.contains("the checkpoint policy could not be applied")
            && reason.contains(&format!("det task logs {}", removal.task_id)),
        "{reason}"
    );
    // Setting the policy again tries again.
    let again = json!({"checkpointStorage": {"saveTrialLatest": 1}});
    owner.patch(path, again).await.ok();
    let removal = agent.next_start().await;
    let remover = cluster.client().as_task(&removal.script.token);
    let deleted = json!({"checkpoints": [{"uuid": uuid(1), "resources": {"resources": {}}}]});
    remover.patch(PATH, deleted).await.ok();
    agent.exits(&removal, 0).await;
    cluster.until(&owner, path, |e| !failed(e)).await;
    cluster.stop().await;
}

#[tokio::test]
async fn an_experiment_goes_once_its_removal_task_has_ended() {
    let cluster = Cluster::start().await;
    let elsewhere = tempfile::tempdir().unwrap();
    let (mut agent, spec, task) = chosen_storage(&cluster, "a", elsewhere.path()).await;
    task.post(PATH, report(&spec, 1, 1)).await.ok();
    agent.exits(&spec, 0).await;
    agent.forgets(&spec).await;
    let owner = cluster.determined().await;
    let path = "/api/v1/experiments/1";
    let is = |state: &'static str| move |e: &Value| e["experiment"]["state"] == state;
    cluster.until(&owner, path, is("STATE_COMPLETED")).await;
    // The task fails: nothing counts as deleted, and it can be asked for again.
    send(&owner, Method::DELETE, path, Value::Null).await.ok();
    let removal = agent.next_start().await;
    // Its owner may end it.
    let kill = format!("/api/v1/tasks/{}/kill", removal.task_id);
    owner.post(&kill, json!({})).await.ok();
    assert!(!agent.next_kill().await, "at once");
    agent.exits(&removal, 137).await;
    agent.forgets(&removal).await;
    cluster.until(&owner, path, is("STATE_DELETE_FAILED")).await;
    let checkpoint = owner.get(&format!("{PATH}/{}", uuid(1))).await.ok();
    assert_eq!(checkpoint["checkpoint"]["state"], "STATE_COMPLETED");
    send(&owner, Method::DELETE, path, Value::Null).await.ok();
    let removal = agent.next_start().await;
    let remover = cluster.client().as_task(&removal.script.token);
    let deleted = json!({"checkpoints": [{"uuid": uuid(1), "resources": {"resources": {}}}]});
    remover.patch(PATH, deleted).await.ok();
    assert_eq!(
        owner.get(path).await.ok()["experiment"]["state"],
        "STATE_DELETING"
    );
    agent.exits(&removal, 0).await;
    cluster
        .until(&owner, "/api/v1/experiments", |all| {
            all["pagination"]["total"] == 0
        })
        .await;
    cluster.stop().await;
}

#[tokio::test]
async fn an_allowed_path_is_storage_unless_it_is_a_data_directory() {
    let elsewhere = tempfile::tempdir().unwrap();
    let allowed = json!([elsewhere.path()]).to_string();
    let cluster = Cluster::start_with(&[("security.allowed_host_paths", &allowed)]).await;
    let storage = elsewhere.path().join("mine");
    let directory = write_files(&storage, 1);
    let (_agent, spec, task) = chosen_storage(&cluster, "a", &storage).await;
    task.post(PATH, report(&spec, 1, 1)).await.ok();
    let owner = cluster.determined().await;
    let archive = owner
        .send(Method::GET, &format!("/checkpoints/{}", uuid(1)), None)
        .await;
    assert_eq!(archive.status(), 200);
    // An agent's data directory, wherever it is.
    std::fs::write(storage.join("agent.lock"), "").unwrap();
    let message = owner
        .get(&format!("/checkpoints/{}", uuid(1)))
        .await
        .refused(403);
    assert!(message.contains("data directory"), "{message}");
    std::fs::remove_file(storage.join("agent.lock")).unwrap();
    // Through a link to what is not allowed.
    let other = tempfile::tempdir().unwrap();
    std::fs::rename(&storage, other.path().join("mine")).unwrap();
    std::os::unix::fs::symlink(other.path().join("mine"), &storage).unwrap();
    let named = json!({"checkpointUuids": [uuid(1)]});
    let message = owner
        .get(&format!("/checkpoints/{}", uuid(1)))
        .await
        .refused(400);
    assert!(message.contains("cannot be seen"), "{message}");
    std::fs::remove_file(&storage).unwrap();
    std::fs::rename(other.path().join("mine"), &storage).unwrap();
    send(&owner, Method::DELETE, PATH, named).await.ok();
    assert!(!directory.exists());
    cluster.stop().await;
}

#[tokio::test]
async fn a_checkpoint_has_no_name_of_anything_else() {
    let cluster = Cluster::start().await;
    let (_agent, spec, task, _) = world(&cluster, &[]).await;
    let named = |name: &str| {
        let mut body = report(&spec, 1, 1);
        body["uuid"] = json!(name);
        body
    };
    for name in [
        spec.container_id.as_str(),
        cluster.master().identity.cluster_id.as_str(),
        cluster.master().identity.master_id.as_str(),
    ] {
        let message = task.post(PATH, named(name)).await.refused(409);
        assert!(message.contains("is the id of something else"), "{message}");
    }
    let message = task
        .post(PATH, named(&uuid(1).to_uppercase()))
        .await
        .refused(400);
    assert!(message.contains("lower case"), "{message}");
    cluster.stop().await;
}

#[tokio::test]
async fn a_directory_of_another_user_is_neither_sent_nor_deleted() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: giving files to another user needs root");
        return;
    }
    let cluster = Cluster::start().await;
    let (_agent, spec, task, storage) = world(&cluster, &[]).await;
    let victim = write_files(&storage, 1);
    std::os::unix::fs::chown(&victim, Some(54_321), None).unwrap();
    task.post(PATH, report(&spec, 1, 1)).await.ok();
    let client = cluster.admin().await;
    for refused in [
        client.get(&format!("/checkpoints/{}", uuid(1))).await,
        send(
            &client,
            Method::DELETE,
            PATH,
            json!({"checkpointUuids": [uuid(1)]}),
        )
        .await,
        client
            .post(
                &format!("{PATH}/rm"),
                json!({"checkpointUuids": [uuid(1)], "checkpointGlobs": ["d/*"]}),
            )
            .await,
    ] {
        let message = refused.refused(403);
        assert!(message.contains("belongs to user id 54321"), "{message}");
    }
    assert!(victim.join("d/m.txt").exists());
    assert_eq!(
        client.get(&format!("{PATH}/{}", uuid(1))).await.ok()["checkpoint"]["state"],
        "STATE_COMPLETED"
    );
    // After the refusal a trial can start from it: the mark of the removal is gone.
    let mut child = config("child");
    child["searcher"]["source_checkpoint_uuid"] = json!(uuid(1));
    create(&client, &child, false).await;
    cluster.stop().await;
}

#[tokio::test]
async fn without_patterns_checkpoints_are_compared_with_the_storage() {
    let cluster = Cluster::start().await;
    let (_agent, _spec, _task, storage) = world(&cluster, &[1, 2, 3]).await;
    let client = cluster.admin().await;
    let all = json!({"checkpointUuids": [uuid(1), uuid(2), uuid(3)], "checkpointGlobs": []});
    let compare = async || {
        let answer = client.post(&format!("{PATH}/rm"), all.clone()).await;
        assert_eq!(answer.ok(), json!({}));
    };
    let shown =
        async |n: u32| client.get(&format!("{PATH}/{}", uuid(n))).await.ok()["checkpoint"].clone();
    compare().await;
    for n in [1, 2, 3] {
        assert_eq!(shown(n).await["state"], "STATE_COMPLETED");
        assert!(storage.join(uuid(n)).join("d/m.txt").exists());
    }
    assert_eq!(sizes(&client).await, (3, json!("21"), json!("21")));
    // Another program deletes: a file of the second, all of the third.
    std::fs::remove_file(storage.join(uuid(2)).join("d/m.txt")).unwrap();
    std::fs::remove_dir_all(storage.join(uuid(3))).unwrap();
    for _ in 0..2 {
        compare().await;
        assert_eq!(shown(1).await["state"], "STATE_COMPLETED");
        let second = shown(2).await;
        assert_eq!(
            (&second["state"], &second["resources"]),
            (
                &json!("STATE_PARTIALLY_DELETED"),
                &json!({"d/": "0", "metadata.json": "2"})
            )
        );
        assert_eq!(shown(3).await["state"], "STATE_DELETED");
        assert_eq!(sizes(&client).await, (2, json!("9"), json!("9")));
    }
    assert!(storage.join(uuid(2)).join("metadata.json").exists());
    cluster.stop().await;
}

#[tokio::test]
async fn no_trial_starts_from_a_checkpoint_that_is_being_removed_and_a_restart_goes_on() {
    let cluster = Cluster::start().await;
    let (_agent, _spec, _task, storage) = world(&cluster, &[1, 2]).await;
    let client = cluster.admin().await;
    let mark = async |n: u32, patterns: &'static str| {
        cluster
            .master()
            .context
            .store
            .write(move |tx| {
                Box::pin(async move {
                    let mut row = det_store::checkpoints::find(&mut tx.conn(), &uuid(n).into())
                        .await?
                        .unwrap();
                    row.removing = Some(patterns.into());
                    det_store::checkpoints::update(&mut tx.conn(), &row).await
                })
            })
            .await
            .unwrap();
    };
    mark(1, r#"["**/*"]"#).await;
    mark(2, r#"["d/*"]"#).await;
    let mut child = config("child");
    child["searcher"]["source_checkpoint_uuid"] = json!(uuid(1));
    let body = json!({"config": child.to_string(), "modelDefinition": []});
    let message = client.post("/api/v1/experiments", body).await.refused(400);
    assert!(message.contains("is not complete any more"), "{message}");

    let cluster = cluster.restart().await;
    let client = cluster.admin().await;
    for (n, state) in [(1, "STATE_DELETED"), (2, "STATE_PARTIALLY_DELETED")] {
        cluster
            .until(&client, &format!("{PATH}/{}", uuid(n)), |c| {
                c["checkpoint"]["state"] == state
            })
            .await;
    }
    assert!(!storage.join(uuid(1)).exists());
    assert!(storage.join(uuid(2)).join("metadata.json").exists());
    cluster.stop().await;
}

#[tokio::test]
async fn every_checkpoint_shows_its_storage() {
    let cluster = Cluster::start().await;
    let (_agent, spec, task, _) = world(&cluster, &[1]).await;
    let client = cluster.admin().await;
    let storage_of = async |n: u32| {
        client.get(&format!("{PATH}/{}", uuid(n))).await.ok()["checkpoint"]["storageId"].clone()
    };
    let start = async |storage: Value| {
        let body = json!({"runId": 1, "checkpointStorage": storage});
        task.post("/api/v1/runs/start", body).await.ok()["storageId"].clone()
    };
    let own = start(Value::Null).await;
    assert!(own.is_i64(), "{own}");
    assert_eq!(storage_of(1).await, own);
    let other = start(json!({"type": "s3", "bucket": "b", "secret_key": "one"})).await;
    assert_ne!(other, own);
    assert_eq!(
        start(json!({"type": "s3", "bucket": "b", "secret_key": "two"})).await,
        other,
        "the place counts, not the secrets"
    );
    let mut body = report(&spec, 2, 2);
    body["storageId"] = other.clone();
    task.post(PATH, body).await.ok();
    assert_eq!(storage_of(2).await, other);
    let listed = client.get("/api/v1/trials/1/checkpoints").await.ok();
    for checkpoint in listed["checkpoints"].as_array().unwrap() {
        assert!(checkpoint["storageId"].is_i64(), "{checkpoint}");
    }
    let mut body = report(&spec, 3, 3);
    body["storageId"] = json!(99);
    assert!(
        task.post(PATH, body)
            .await
            .refused(400)
            .contains("storageId")
    );
    cluster.stop().await;
}
