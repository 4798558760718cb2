//! Steps of the system's clock: nothing that lasts for some time ends early. A process of its own, since the step is the
//! whole process's.

mod support;

use det_agent_proto::ToAgent;
use det_server::hub::Topic;
use serde_json::{Value, json};

use crate::support::{Cluster, within};

const DAY: i64 = 86_400_000_000;

#[tokio::test]
async fn a_step_ends_no_session_sweeps_no_log_and_loses_no_agent() {
    let cluster = Cluster::start_with(&[
        ("retention_policy.log_retention_days", "1"),
        ("retention_policy.schedule", "1h"),
    ])
    .await;
    let client = cluster.admin().await;
    // A task that has ended, with a log.
    let (mut agent, spec) = cluster.running_task().await;
    agent.exits(&spec, 0).await;
    cluster
        .until(&client, "/api/v1/experiments/1", |e| {
            e["experiment"]["state"] == "STATE_COMPLETED"
        })
        .await;
    let log = format!("/api/v1/tasks/{}/logs", spec.task_id);
    let lines = client.get(&log).await.lines();
    assert!(!lines.is_empty());
    // One that runs on an agent that goes away.
    let id = cluster.experiment("runs", 1).await;
    let running = loop {
        if let ToAgent::Start(spec) = agent.receive().await {
            break spec;
        }
    };
    agent.runs(&running).await;
    drop(agent);
    let agents = async || {
        let mut conn = cluster.master().context.store.read().await.unwrap();
        det_store::places::list(&mut conn.conn()).await.unwrap()
    };
    within("the agent to be away", async {
        while agents().await.iter().any(|a| a.disconnected_at.is_none()) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // Sessions last for a week.
    for step in [8 * DAY, -16 * DAY, 8 * DAY, DAY, -2 * DAY, DAY] {
        det_store::step_clock(step);
        cluster.master().context.hub.notify(&Topic::Deadlines);
        cluster.master().context.hub.notify(&Topic::LogSweep);
        client.get("/api/v1/me").await.ok();
        let swept = client.post("/api/v1/cleanup_logs", Value::Null).await.ok();
        assert_eq!(swept["removedCount"], json!("0"), "after a step of {step}");
        assert_eq!(client.get(&log).await.lines(), lines);
        assert_eq!(agents().await.len(), 1, "after a step of {step}");
        let experiment = client.get(&format!("/api/v1/experiments/{id}")).await.ok();
        assert_ne!(experiment["experiment"]["state"], "STATE_ERROR");
        // One that begins now lasts as long.
        let late = cluster.admin().await;
        det_store::step_clock(-step);
        late.get("/api/v1/me").await.ok();
        client.get("/api/v1/me").await.ok();
        det_store::step_clock(step);
    }
    cluster.stop().await;
}
