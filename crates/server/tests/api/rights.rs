//! Whose identity, whose secrets, whose files: what strangers and tasks that have ended can reach.

use det_ids::ExperimentId;
use det_store::allocations;
use serde_json::{Value, json};

use crate::support::{Client, Cluster};

const PATH: &str = "/api/v1/experiments";
const MASK: &str = "********";

/// A cluster with a user "eve", to whom nothing belongs.
async fn with_eve() -> (Cluster, Client) {
    let cluster = Cluster::start().await;
    let body = json!({"user": {"username": "eve", "active": true}});
    cluster.admin().await.post("/api/v1/users", body).await.ok();
    let eve = cluster.user("eve").await;
    (cluster, eve)
}

fn secretive(name: &str) -> Value {
    json!({
        "name": name, "entrypoint": "true", "searcher": {"name": "single", "metric": "loss"},
        "environment": {"environment_variables": ["HF_TOKEN=swordfish", "PLAIN=swordfish", "EMPTY="],
            "registry_auth": {"username": "u", "password": "swordfish"}},
        "data": {"secrets": {"pin": "swordfish"}, "source": "http://u:swordfish@h/x"},
        "checkpoint_storage": {"type": "s3", "bucket": "mine", "access_key": "AK", "secret_key": "swordfish"},
    })
}

async fn submit(client: &Client, config: &Value) -> Value {
    let body = json!({"config": config.to_string(), "activate": false});
    client.post(PATH, body).await.ok()["experiment"].take()
}

#[tokio::test]
async fn variables_of_experiments_are_for_the_owner_and_administrators() {
    let (cluster, eve) = with_eve().await;
    let (owner, admin) = (cluster.determined().await, cluster.admin().await);
    let made = submit(&owner, &secretive("one")).await;
    let path = format!("{PATH}/{}", made["id"]);
    for reader in [&owner, &admin] {
        let shown = reader.get(&path).await.ok();
        let variables = &shown["experiment"]["config"]["environment"]["environment_variables"];
        assert_eq!(
            variables["cpu"],
            json!(["HF_TOKEN=swordfish", "PLAIN=swordfish", "EMPTY="])
        );
        assert_eq!(shown["config"]["data"]["secrets"]["pin"], MASK);
        assert_eq!(shown["config"]["checkpoint_storage"]["secret_key"], MASK);
    }
    let agent = cluster.agent("a1", 1).await;
    let (_agent, task) = {
        let mut agent = agent;
        cluster.experiment_of("determined", "runs", true).await;
        let spec = agent.next_start().await;
        agent.runs(&spec).await;
        (agent, cluster.client().as_task(&spec.script.token))
    };
    for reader in [&eve, &task] {
        for path in [path.as_str(), PATH] {
            let shown = reader.get(path).await;
            assert_eq!(shown.status, 200);
            assert!(!shown.text.contains("swordfish"), "{}", shown.text);
            assert!(
                shown.text.contains(&format!("PLAIN={MASK}")),
                "{}",
                shown.text
            );
        }
    }
    let changed = eve.patch(&path, json!({"notes": "seen"})).await;
    assert_eq!(changed.status, 200);
    assert!(!changed.text.contains("swordfish"), "{}", changed.text);
    cluster.stop().await;
}

#[tokio::test]
async fn a_masked_configuration_takes_its_secrets_from_a_parent_of_ones_own() {
    let (cluster, eve) = with_eve().await;
    let (owner, admin) = (cluster.determined().await, cluster.admin().await);
    let made = submit(&owner, &secretive("one")).await;
    let parent = made["id"].as_i64().unwrap();
    let path = format!("{PATH}/{parent}");
    let stored = async |id: &Value| -> (Value, String) {
        let mut conn = cluster.master().context.store.read().await.unwrap();
        let row =
            det_store::experiments::find(&mut conn.conn(), ExperimentId(id.as_i64().unwrap()))
                .await
                .unwrap()
                .unwrap();
        (
            serde_json::from_str(&row.config).unwrap(),
            row.original_config,
        )
    };
    let (real, _) = stored(&json!(parent)).await;
    let fork = |config: &str| json!({"config": config, "parentId": parent, "activate": false});
    let seen_by = async |reader: &Client, key: &str| -> String {
        let shown = reader.get(&path).await.ok()["experiment"][key].take();
        shown
            .as_str()
            .map_or_else(|| shown.to_string(), str::to_owned)
    };
    for (sender, reader) in [(&owner, &owner), (&owner, &eve), (&admin, &eve)] {
        for key in ["config", "originalConfig"] {
            let config = seen_by(reader, key).await;
            assert!(config.contains(MASK));
            let forked = sender.post(PATH, fork(&config)).await.ok();
            let (config, original) = stored(&forked["experiment"]["id"]).await;
            for key in ["environment", "data", "checkpoint_storage"] {
                assert_eq!(config[key], real[key], "{key}");
            }
            assert!(!original.contains(MASK), "{original}");
        }
    }
    // No user gets secrets of others that way, and no trial gets a mark for a secret.
    let config = seen_by(&eve, "config").await;
    let all = [
        "checkpoint_storage.secret_key",
        "data.secrets.pin",
        "data.source",
        "environment.environment_variables.cpu[0]",
        "environment.environment_variables.cpu[1]",
        "environment.registry_auth.password",
    ];
    let refused = eve.post(PATH, fork(&config)).await.refused(400);
    assert!(refused.contains("user \"determined\""), "{refused}");
    for named in all {
        assert!(refused.contains(named), "{named}: {refused}");
    }
    let alone = json!({"config": config, "validateOnly": true});
    let refused = owner.post(PATH, alone).await.refused(400);
    for named in all {
        assert!(refused.contains(named), "{named}: {refused}");
    }
    // A continued experiment is its own parent.
    owner.post(&format!("{path}/kill"), Value::Null).await.ok();
    let over = json!({"data": {"secrets": {"pin": MASK}, "more": 1}});
    let body = json!({"id": parent, "overrideConfig": over.to_string()});
    owner.post(&format!("{PATH}/continue"), body).await.ok();
    let (config, _) = stored(&json!(parent)).await;
    assert_eq!(
        (&config["data"]["secrets"]["pin"], &config["data"]["more"]),
        (&json!("swordfish"), &json!(1))
    );
    cluster.stop().await;
}

#[tokio::test]
async fn credentials_of_a_storage_of_ones_own_are_not_shown_with_checkpoints() {
    let (cluster, eve) = with_eve().await;
    let owner = cluster.determined().await;
    let mut agent = cluster.agent("a1", 1).await;
    let mut config = secretive("one");
    config["resources"] = json!({"slots_per_trial": 1});
    let body = json!({"config": config.to_string(), "activate": true});
    owner.post(PATH, body).await.ok();
    let spec = agent.next_start().await;
    agent.runs(&spec).await;
    let task = cluster.client().as_task(&spec.script.token);
    let uuid = "00000000-0000-4000-8000-000000000001";
    let report = json!({"uuid": uuid, "taskId": spec.task_id, "allocationId": spec.allocation_id,
        "state": "STATE_COMPLETED", "resources": {"w": 1}, "metadata": {"steps_completed": 1}});
    task.post("/api/v1/checkpoints", report).await.ok();
    let path = format!("/api/v1/checkpoints/{uuid}");
    let storage = async |reader: &Client| {
        let shown = reader.get(&path).await.ok();
        shown["checkpoint"]["training"]["experimentConfig"]["checkpoint_storage"].clone()
    };
    for reader in [&owner, &cluster.admin().await, &task] {
        assert_eq!(storage(reader).await["secret_key"], "swordfish");
    }
    assert_eq!(storage(&eve).await["secret_key"], MASK);
    for path in [
        path.as_str(),
        "/api/v1/experiments/1/checkpoints",
        "/api/v1/trials/1/checkpoints",
    ] {
        let shown = eve.get(path).await;
        assert_eq!(shown.status, 200);
        assert!(!shown.text.contains("swordfish"), "{}", shown.text);
    }
    cluster.stop().await;
}

#[tokio::test]
async fn a_task_that_has_ended_reports_late_and_does_nothing_else() {
    let cluster = Cluster::start().await;
    let (mut agent, spec) = cluster.running_task().await;
    let (task, admin) = (
        cluster.client().as_task(&spec.script.token),
        cluster.admin().await,
    );
    // Known to the master before the end.
    task.get("/api/v1/me").await.ok();
    agent.exits(&spec, 0).await;
    let path = format!("/api/v1/tasks/{}", spec.task_id);
    cluster
        .until(&admin, &path, |task| task["task"]["endTime"].is_string())
        .await;
    {
        let mut conn = cluster.master().context.store.read().await.unwrap();
        let hash = det_server::auth::token_hash(&spec.script.token);
        let token = allocations::find_token(&mut conn.conn(), &hash)
            .await
            .unwrap();
        let ended = allocations::of_task(&mut conn.conn(), &spec.task_id)
            .await
            .unwrap()[0]
            .ended_at;
        let left = token.unwrap().expires_at.unwrap() - ended.unwrap();
        // The end is by the system's clock, the expiry by the steady one.
        assert!((1..=61_000_000).contains(&left), "{left} microseconds");
    }
    let line = json!({"taskId": spec.task_id, "allocationId": spec.allocation_id, "log": "late"});
    task.post("/api/v1/task/logs", json!({"logs": [line]}))
        .await
        .ok();
    let report = json!({"group": "training", "metrics": {"trialRunId": 1, "stepsCompleted": 1,
        "metrics": {"avgMetrics": {"loss": 1}}}});
    task.post("/api/v1/trials/1/metrics", report).await.ok();
    let uuid = "00000000-0000-4000-8000-000000000001";
    let report = json!({"uuid": uuid, "taskId": spec.task_id, "allocationId": spec.allocation_id,
        "state": "STATE_COMPLETED", "resources": {"w": 1}, "metadata": {"steps_completed": 1}});
    task.post("/api/v1/checkpoints", report).await.ok();
    let config = json!({"name": "made", "entrypoint": "true", "searcher": {"name": "single", "metric": "loss"}});
    let refusals = [
        task.get("/api/v1/me").await,
        task.get(PATH).await,
        task.get("/api/v1/experiments/1/model_def").await,
        task.get(&format!("{path}/context_directory")).await,
        task.post(PATH, json!({"config": config.to_string()})).await,
        task.post("/api/v1/experiments/1/kill", Value::Null).await,
        task.delete(&format!("/api/v1/checkpoints?checkpointUuids={uuid}"))
            .await,
        cluster
            .client()
            .with("Authorization", format!("Bearer {}", spec.script.token))
            .get("/api/v1/me")
            .await,
    ];
    for refusal in refusals {
        assert!(refusal.refused(403).contains("has ended"), "{refusal:?}");
    }
    cluster.stop().await;
}

#[tokio::test]
async fn every_user_reads_of_the_masters_log_what_concerns_trials() {
    let (cluster, eve) = with_eve().await;
    let (_agent, spec) = cluster.running_task().await;
    let subscriber = {
        use tracing_subscriber::layer::SubscriberExt as _;
        tracing_subscriber::registry().with(cluster.master().log.layer())
    };
    tracing::subscriber::with_default(subscriber, || {
        tracing::info!("user eve logged in from 192.0.2.7");
        tracing::warn!(trial.id = 1, "of the trial");
        tracing::warn!(trial.id = 2, experiment.id = 1, "of its neighbour");
        tracing::warn!(experiment.id = 1, "of its experiment");
        tracing::warn!(allocation.id = %spec.allocation_id, "of its allocation");
        tracing::warn!(task.id = "9.other", "of another task");
    });
    let log = async |client: &Client, query: &str| -> Vec<String> {
        let lines = client
            .get(&format!("/api/v1/master/logs{query}"))
            .await
            .lines();
        let text = |line: &Value| line["logEntry"]["message"].as_str().unwrap().to_owned();
        lines
            .iter()
            .map(text)
            .map(|line| line.split(" trial.id").next().unwrap().to_owned())
            .map(|line| line.split(" experiment.id").next().unwrap().to_owned())
            .map(|line| line.split(" allocation.id").next().unwrap().to_owned())
            .map(|line| line.split(" task.id").next().unwrap().to_owned())
            .collect()
    };
    let work = [
        "of the trial",
        "of its neighbour",
        "of its experiment",
        "of its allocation",
        "of another task",
    ];
    assert_eq!(log(&eve, "").await, work);
    let own = ["of the trial", "of its experiment", "of its allocation"];
    let admin = cluster.admin().await;
    for reader in [&eve, &admin] {
        assert_eq!(log(reader, "?trialId=1").await, own);
    }
    assert_eq!(log(&eve, "?trialId=1&limit=2").await, own[..2]);
    assert!(
        log(&admin, "")
            .await
            .iter()
            .any(|line| line.contains("logged in"))
    );
    eve.get("/api/v1/master/logs?trialId=99").await.refused(404);
    cluster.stop().await;
}
