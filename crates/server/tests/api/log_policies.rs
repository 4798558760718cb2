//! What lines of logs do to their trials.

use det_agent_proto::ToAgent;
use det_ids::ExperimentId;
use det_store::{StoreError, experiments};
use det_taskspec::ContainerSpec;
use serde_json::{Value, json};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::support::{Client, Cluster, FakeAgent};

/// An experiment of one trial with these log policies and five restarts.
async fn submit(client: &Client, policies: Value) {
    let config = json!({
        "name": "watched",
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "loss"},
        "resources": {"slots_per_trial": 1},
        "max_restarts": 5,
        "log_policies": policies,
    });
    let body = json!({"config": config.to_string(), "activate": true,
        "modelDefinition": [{"path": "train.py", "type": 48, "content": "", "mode": 0o644, "mtime": 1_700_000_000}]});
    client.post("/api/v1/experiments", body).await.ok();
}

/// The next container that the agent is to start, which then runs.
async fn next_run(agent: &mut FakeAgent) -> ContainerSpec {
    loop {
        if let ToAgent::Start(spec) = agent.receive().await {
            agent.runs(&spec).await;
            return *spec;
        }
    }
}

/// The code of a container prints a line.
async fn prints(cluster: &Cluster, spec: &ContainerSpec, agent: &str, line: &str) {
    let record = json!({"taskId": spec.task_id.to_string(), "allocationId": spec.allocation_id.to_string(),
        "agentId": agent, "containerId": spec.container_id.to_string(), "log": line});
    let task = cluster.client().as_task(&spec.script.token);
    task.post("/api/v1/task/logs", json!({"logs": [record]}))
        .await
        .ok();
}

async fn log_of(client: &Client, trial: i64) -> String {
    let lines = client
        .get(&format!("/api/v1/trials/{trial}/logs"))
        .await
        .lines();
    let texts = lines.iter().map(|line| line["log"].as_str().unwrap());
    texts.collect()
}

#[tokio::test]
async fn a_node_whose_log_matched_is_avoided_by_later_runs() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let mut bad = cluster.agent("bad", 1).await;
    submit(
        &client,
        json!([{"name": "broken", "pattern": "^bus error .*$", "action": "exclude_node"}]),
    )
    .await;
    let spec = next_run(&mut bad).await;
    prints(&cluster, &spec, "bad", "all is well").await;
    let path = "/api/v1/trials/1";
    assert!(client.get(path).await.ok()["trial"]["logPolicyMatched"].is_null());
    let mut good = cluster.agent("good", 1).await;
    // A line can name any place; only one that the run is on is avoided.
    prints(&cluster, &spec, "good", "bus error at 0x7e").await;
    let log = log_of(&client, 1).await;
    assert!(!log.contains("will not schedule"), "{log}");
    for _ in 0..2 {
        prints(&cluster, &spec, "bad", "bus error at 0x7f").await;
    }
    bad.exits(&spec, 1).await;
    let spec = next_run(&mut good).await;
    let trial = client.get(path).await.ok()["trial"].clone();
    assert_eq!(
        (&trial["logPolicyMatched"], &trial["restarts"]),
        (&json!("broken"), &json!(1))
    );
    let log = log_of(&client, 1).await;
    assert_eq!(
        log.matches("therefore will not schedule on bad").count(),
        1,
        "{log}"
    );
    // Where no agent is left that could run it, it is not started again.
    prints(&cluster, &spec, "good", "bus error at 0x80").await;
    good.exits(&spec, 1).await;
    let ended = |answer: &Value| answer["trial"]["state"] == "STATE_ERROR";
    let trial = cluster.until(&client, path, ended).await;
    // A failure after which nothing is started again does not count as a restart.
    assert_eq!(trial["trial"]["restarts"], 1, "{trial}");
    let log = log_of(&client, 1).await;
    assert!(
        log.contains("Not started again after 1 restart: without the places"),
        "{log}"
    );
    cluster.stop().await;
}

#[tokio::test]
async fn without_launch_error_a_run_waits_for_another_agent() {
    let cluster = Cluster::start_with(&[("launch_error", "false")]).await;
    let client = cluster.determined().await;
    let mut bad = cluster.agent("bad", 1).await;
    submit(
        &client,
        json!([{"name": "broken", "pattern": "bus error", "action": "exclude_node"}]),
    )
    .await;
    let spec = next_run(&mut bad).await;
    prints(&cluster, &spec, "bad", "bus error").await;
    bad.exits(&spec, 1).await;
    let excluded = |answer: &Value| answer["trial"]["waitReason"]["kind"] == "all_agents_excluded";
    cluster.until(&client, "/api/v1/trials/1", excluded).await;
    let mut good = cluster.agent("good", 1).await;
    let spec = next_run(&mut good).await;
    good.exits(&spec, 0).await;
    let ended = |answer: &Value| answer["trial"]["state"] == "STATE_COMPLETED";
    cluster.until(&client, "/api/v1/trials/1", ended).await;
    cluster.stop().await;
}

#[tokio::test]
async fn retries_are_canceled_by_a_line_and_not_by_its_echo() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let mut agent = cluster.agent("a1", 1).await;
    submit(
        &client,
        json!([
            {"name": "bug", "pattern": "assertion failed", "action": "cancel_retries"},
            {"name": "seen", "pattern": "step \\d+"},
        ]),
    )
    .await;
    let spec = next_run(&mut agent).await;
    prints(
        &cluster,
        &spec,
        "a1",
        "{\"name\": \"bug\", \"pattern\": \"assertion failed\"}",
    )
    .await;
    agent.exits(&spec, 1).await;
    let spec = next_run(&mut agent).await;
    prints(&cluster, &spec, "a1", "step 12").await;
    prints(
        &cluster,
        &spec,
        "a1",
        "assertion failed: CUDA out of memory",
    )
    .await;
    agent.exits(&spec, 1).await;
    let ended = |answer: &Value| answer["trial"]["state"] == "STATE_ERROR";
    let trial = cluster.until(&client, "/api/v1/trials/1", ended).await;
    assert_eq!(trial["trial"]["restarts"], 1);
    let matched = trial["trial"]["logPolicyMatched"].as_str().unwrap();
    let mut names: Vec<&str> = matched.split(", ").collect();
    assert_eq!(names.first(), Some(&"seen"));
    names.sort_unstable();
    assert_eq!(names, ["CUDA OOM", "bug", "seen"]);
    let log = log_of(&client, 1).await;
    assert!(
        log.contains("The log policy \"bug\" matched: this trial is not restarted"),
        "{log}"
    );
    assert!(
        log.contains("trial failed and matched logs to a don't retry policy (\"bug\")"),
        "{log}"
    );

    // An experiment that is continued counts restarts anew, whatever was printed before.
    let body = json!({"id": 1});
    let path = "/api/v1/experiments/continue";
    client.post(path, body).await.ok();
    // Nor what arrives late.
    prints(&cluster, &spec, "a1", "assertion failed, shipped late").await;
    let spec = next_run(&mut agent).await;
    agent.exits(&spec, 1).await;
    let spec = next_run(&mut agent).await;
    prints(&cluster, &spec, "a1", "assertion failed again").await;
    agent.exits(&spec, 1).await;
    let trial = cluster.until(&client, "/api/v1/trials/1", ended).await;
    assert_eq!(trial["trial"]["restarts"], 1);
    cluster.stop().await;
}

#[tokio::test]
async fn stored_policies_that_are_too_large_are_off_with_one_warning() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let mut agent = cluster.agent("a", 1).await;
    submit(&client, json!([{"name": "broken", "pattern": "bus error"}])).await;
    let spec = next_run(&mut agent).await;
    cluster
        .master()
        .context
        .store
        .write(|tx| {
            Box::pin(async move {
                let id = ExperimentId(1);
                let row = experiments::find(&mut tx.conn(), id).await?.unwrap();
                let config = row.config.replace("bus error", r"bus error|\\w{250}");
                experiments::set_config(&mut tx.conn(), id, &config).await?;
                Ok::<_, StoreError>(())
            })
        })
        .await
        .unwrap();
    let layer = cluster.master().log.layer();
    let guard = tracing_subscriber::registry().with(layer).set_default();
    for line in ["bus error", "bus error again"] {
        prints(&cluster, &spec, "a", line).await;
    }
    drop(guard);
    assert_eq!(log_of(&client, 1).await.matches("bus error").count(), 2);
    let trial = client.get("/api/v1/trials/1").await.ok();
    assert_eq!(trial["trial"]["logPolicyMatched"], Value::Null, "{trial}");
    let admin = cluster.admin().await;
    let lines = admin.get("/api/v1/master/logs").await.lines();
    let warnings = lines.iter().filter(|line| {
        let message = line["logEntry"]["message"].as_str().unwrap();
        message.contains("log policies cannot be used")
    });
    assert_eq!(warnings.count(), 1, "{lines:?}");
    cluster.stop().await;
}
