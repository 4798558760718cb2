//! Tokens of agents: joining, coming back, taking another agent's place, revoking.

use std::time::Duration;

use det_agent_proto::{AfterRefusal, AgentLog, ContainerReport, ContainerState, ToAgent, ToMaster};
use det_server::hub::Topic;
use serde_json::{Value, json};

use crate::support::fake_agent::{Tokens, own_token};
use crate::support::{Client, Cluster, FakeAgent, within};

/// Connects with these tokens: the status of a refusal before the connection, or the master's answer.
async fn hello(
    cluster: &Cluster,
    id: &str,
    own: Option<&str>,
    join: Option<&str>,
) -> Result<(FakeAgent, ToAgent), u16> {
    let tokens = Tokens {
        own: own.map(str::to_owned),
        join: join.map(str::to_owned),
    };
    FakeAgent::send_hello_with(cluster, tokens, id, 1, "default").await
}

/// Why an agent was refused, and what it is to do.
fn refusal(answer: Result<(FakeAgent, ToAgent), u16>) -> (String, AfterRefusal) {
    match answer.map(|(_, answer)| answer) {
        Ok(ToAgent::Refused { reason, then }) => (reason, then),
        other => panic!("not refused: {other:?}"),
    }
}

fn joined(answer: Result<(FakeAgent, ToAgent), u16>) -> FakeAgent {
    match answer {
        Ok((agent, ToAgent::Welcome(_))) => agent,
        Ok((_, answer)) => panic!("not welcomed: {answer:?}"),
        Err(status) => panic!("refused with {status}"),
    }
}

/// Waits until the master lists an agent as away.
async fn away(cluster: &Cluster, id: &str) {
    let path = format!("/api/v1/agents/{id}");
    let client = cluster.determined().await;
    cluster
        .until(&client, &path, |answer| answer["agent"]["enabled"] == false)
        .await;
}

#[tokio::test]
async fn an_agent_joins_with_the_clusters_token_and_one_of_its_own() {
    let cluster = Cluster::start().await;
    let shared = cluster.agent_token().to_owned();
    let session = cluster.admin().await.token().to_owned();
    for (own, join) in [
        (None, None),
        (None, Some(shared.as_str())),
        // What every agent knows identifies none of them.
        (Some(shared.as_str()), None),
        (Some(shared.as_str()), Some(shared.as_str())),
        (Some("never joined"), None),
        (Some("never joined"), Some("wrong")),
        (Some(session.as_str()), None),
    ] {
        let refused = hello(&cluster, "a1", own, join).await;
        assert_eq!(refused.err(), Some(401), "{own:?} {join:?}");
    }
    let plain = cluster
        .client()
        .with("Authorization", "Bearer mine".to_owned())
        .and("det-join-token", shared);
    let refused = plain.get(det_agent_proto::PATH).await.refused(400);
    assert!(refused.contains("WebSocket"), "{refused}");
    cluster.stop().await;
}

#[tokio::test]
async fn an_agent_that_has_joined_needs_its_own_token_only() {
    let cluster = Cluster::start().await;
    let shared = cluster.agent_token().to_owned();
    let agent = joined(hello(&cluster, "a1", Some("mine"), Some(&shared)).await);
    drop(agent);
    away(&cluster, "a1").await;
    let agent = joined(hello(&cluster, "a1", Some("mine"), None).await);
    // Another token of the cluster since then disturbs no agent that has joined.
    drop(agent);
    away(&cluster, "a1").await;
    let _agent = joined(hello(&cluster, "a1", Some("mine"), Some("the former")).await);
    cluster.stop().await;
}

#[tokio::test]
async fn who_holds_the_clusters_token_cannot_be_an_agent_that_is_known() {
    let cluster = Cluster::start().await;
    let shared = cluster.agent_token().to_owned();
    let (a1, spec) = cluster.running_task().await;
    // The same id, the same identity of the data directory, but not the token: the real one stays connected.
    let (reason, then) =
        refusal(hello(&cluster, "a1", Some("of another agent"), Some(&shared)).await);
    assert!(reason.contains("joined with another token"), "{reason}");
    assert_eq!(then, AfterRefusal::Retry);
    let client = cluster.determined().await;
    let answer = client.get("/api/v1/agents/a1").await.ok();
    assert_eq!(answer["agent"]["enabled"], true, "{answer}");
    let task = &answer["agent"]["slots"]["0"]["container"]["id"];
    assert_eq!(task, spec.container_id.as_str());

    // Nor while it is away.
    drop(a1);
    away(&cluster, "a1").await;
    let (reason, _) = refusal(hello(&cluster, "a1", Some("of another agent"), Some(&shared)).await);
    assert!(reason.contains("det agent revoke a1"), "{reason}");
    let _again = cluster.agent("a1", 1).await;

    // Nor does one agent become another.
    let _b1 = cluster.agent("b1", 1).await;
    let b1 = own_token("b1");
    let (reason, then) = refusal(hello(&cluster, "a1", Some(&b1), None).await);
    assert!(reason.contains("not that of agent \"a1\""), "{reason}");
    assert_eq!(then, AfterRefusal::End);
    // A copied data directory under another name.
    let (reason, then) = refusal(hello(&cluster, "b2", Some(&b1), Some(&shared)).await);
    assert!(
        reason.contains("that of agent \"b1\"") && reason.contains("copied"),
        "{reason}"
    );
    assert_eq!(then, AfterRefusal::Retry);
    cluster.stop().await;
}

#[tokio::test]
async fn the_id_of_an_agent_that_was_given_up_is_free() {
    let pools = "[{pool_name: default, agent_reconnect_wait: 0s}]";
    let cluster = Cluster::start_with(&[("resource_pools", pools)]).await;
    let shared = cluster.agent_token().to_owned();
    let client = cluster.determined().await;
    let agent = joined(hello(&cluster, "a1", Some("first"), Some(&shared)).await);
    drop(agent);
    let none = |answer: &Value| answer["agents"].as_array().is_none_or(Vec::is_empty);
    cluster.until(&client, "/api/v1/agents", none).await;
    // The one who had it comes back with its token, as long as no other has joined under its id.
    let agent = joined(hello(&cluster, "a1", Some("first"), None).await);
    drop(agent);
    cluster.until(&client, "/api/v1/agents", none).await;
    let agent = joined(hello(&cluster, "a1", Some("second"), Some(&shared)).await);
    drop(agent);
    cluster.until(&client, "/api/v1/agents", none).await;
    let refused = hello(&cluster, "a1", Some("first"), None).await;
    assert_eq!(refused.err(), Some(401));
    // Renamed: it keeps its token.
    let _agent = joined(hello(&cluster, "renamed", Some("second"), Some(&shared)).await);
    cluster.stop().await;
}

#[tokio::test]
async fn a_revoked_token_ends_the_agent_and_what_runs_there() {
    let cluster = Cluster::start().await;
    let shared = cluster.agent_token().to_owned();
    let (a1, spec) = cluster.running_task().await;
    let path = "/api/v1/agents/a1/revoke";
    let user = cluster.determined().await;
    assert!(
        user.post(path, Value::Null)
            .await
            .refused(403)
            .contains("forbidden")
    );
    let admin = cluster.admin().await;
    admin
        .post("/api/v1/agents/unknown/revoke", Value::Null)
        .await
        .refused(404);
    admin.post(path, Value::Null).await.ok();
    a1.cut().await;
    admin.get("/api/v1/agents/a1").await.refused(404);
    let own = own_token("a1");
    for join in [None, Some(shared.as_str())] {
        for id in ["a1", "a2"] {
            let (reason, then) = refusal(hello(&cluster, id, Some(&own), join).await);
            assert!(reason.contains("\"a1\" was revoked"), "{reason}");
            assert_eq!(then, AfterRefusal::EndTasks, "{id} {join:?}");
        }
    }
    // The task starts anew elsewhere; the id is free for one that joins anew.
    let mut again = joined(hello(&cluster, "a1", Some("made anew"), Some(&shared)).await);
    let started = again.next_start().await;
    assert_ne!(started.container_id, spec.container_id);
    cluster.stop().await;
}

/// The log of a task as soon as it has this text.
async fn log_with(cluster: &Cluster, client: &Client, path: &str, text: &str) -> String {
    let mut changes = cluster.master().context.hub.subscribe(Topic::Events);
    within(text, async {
        loop {
            let log = client.get(path).await.text;
            if log.contains(text) {
                return log;
            }
            let _ = tokio::time::timeout(Duration::from_millis(50), changes.changed()).await;
        }
    })
    .await
}

#[tokio::test]
async fn an_agent_speaks_for_its_own_containers_only() {
    let cluster = Cluster::start().await;
    let (mut a1, spec) = cluster.running_task().await;
    let mut b1 = cluster.agent("b1", 1).await;
    let theirs = |text: &str| {
        ToMaster::Log(AgentLog {
            allocation_id: spec.allocation_id.clone(),
            container_id: None,
            lines: vec![(0, det_ids::LogLevel::Info, text.into())],
        })
    };
    b1.send(&theirs("from a stranger")).await;
    b1.exits(&spec, 0).await;
    b1.forgets(&spec).await;
    // A container of its own, reported as one of another user's task.
    let experiment = cluster.experiment("running", 1).await;
    let own = b1.next_start().await;
    let (task, _) = cluster.task_of(experiment).await;
    b1.send(&ToMaster::Container(ContainerReport {
        container_id: own.container_id.clone(),
        allocation_id: spec.allocation_id.clone(),
        state: ContainerState::Running {
            host_address: "127.0.0.1".into(),
            ports: Vec::new(),
            runtime_id: "1".into(),
        },
    }))
    .await;
    a1.send(&theirs("from its own agent")).await;

    let client = cluster.determined().await;
    let log = |task: &str| format!("/api/v1/tasks/{task}/logs?limit=100");
    let own_log = log_with(
        &cluster,
        &client,
        &log(spec.task_id.as_str()),
        "from its own agent",
    )
    .await;
    assert!(!own_log.contains("from a stranger"), "{own_log}");
    assert!(!own_log.contains("on place b1"), "{own_log}");
    log_with(
        &cluster,
        &client,
        &log(task.id.as_str()),
        "started on place b1",
    )
    .await;
    let answer = client.get("/api/v1/agents/a1").await.ok();
    let container = &answer["agent"]["slots"]["0"]["container"];
    assert_eq!(container["state"], json!("STATE_RUNNING"), "{answer}");
    cluster.stop().await;
}
