//! Attempts that follow those which failed for a reason of their places.

use det_agent_proto::ContainerState;
use det_ids::ExperimentId;
use det_store::StoreError;
use det_taskspec::ContainerExit;
use serde_json::{Value, json};

use crate::support::Cluster;

#[tokio::test]
async fn what_cannot_be_started_again_and_again_waits_also_over_a_restart_of_the_master() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    let mut agent = cluster.agent("a1", 1).await;
    let config = json!({
        "name": "no-disk",
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "loss"},
        "max_restarts": 5,
    });
    let body = json!({"config": config.to_string(), "activate": true,
        "modelDefinition": [{"path": "train.py", "type": 48, "content": "", "mode": 0o644, "mtime": 1_700_000_000}]});
    admin.post("/api/v1/experiments", body).await.ok();
    let experiment = ExperimentId(1);
    // Four attempts have failed before.
    let (task, _) = cluster.task_of(experiment).await;
    let failed = cluster.master().context.store.write(move |tx| {
        Box::pin(async move {
            tx.load_task(&task.id).await?;
            tx.live_rows().edit_task(&task.id, |row| row.losses = 4);
            Ok::<_, StoreError>(())
        })
    });
    failed.await.unwrap();
    let spec = agent.next_start().await;
    let exit = ContainerExit::StartFailed {
        message: "no space left on device".to_owned(),
    };
    let state = ContainerState::Terminated { exit, cause: None };
    agent.report(&spec, state).await;
    agent.forgets(&spec).await;
    let (_, row) = cluster.task_of(experiment).await;
    let why = format!("/api/v1/job-queues/{}/why", row.job_id);
    let paused = |answer: &Value| {
        let reason = &answer["waiting"][0]["waitReason"];
        reason["kind"] == "paused_after_failures"
    };
    let answer = cluster.until(&admin, &why, paused).await;
    let reason = answer["waiting"][0]["waitReason"].clone();
    let until = reason["details"]["until"].as_str().unwrap().to_owned();
    let message = reason["message"].as_str().unwrap();
    let expected = format!("starts no earlier than {until}, because its attempts ended");
    assert!(message.starts_with(&expected), "{message}");
    let not_before = row.not_before.unwrap();
    assert!(not_before > row.requested_at);

    let cluster = cluster.restart().await;
    let (_, row) = cluster.task_of(experiment).await;
    assert_eq!(row.not_before, Some(not_before));
    let admin = cluster.admin().await;
    let answer = cluster.until(&admin, &why, paused).await;
    let details = &answer["waiting"][0]["waitReason"]["details"];
    assert_eq!(details, &json!({"until": until}));
    let job = &admin.get("/api/v1/job-queues").await.ok()["jobs"][0];
    assert_eq!(job["summary"]["state"], "STATE_QUEUED", "{job}");
    // A user who does not want to wait ends it, or pauses it and lets it go on.
    for verb in ["pause", "activate"] {
        let path = format!("/api/v1/experiments/{experiment}/{verb}");
        admin.post(&path, Value::Null).await.ok();
    }
    let mut agent = cluster.agent("a2", 1).await;
    let spec = agent.next_start().await;
    let id = spec.allocation_id.as_str();
    assert!(id.ends_with(".3"), "{id}");
    cluster.stop().await;
}
