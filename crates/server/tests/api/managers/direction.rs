//! Which of two priorities goes first is the manager's to decide: everything that compares priorities, in the pool of a
//! manager whose higher number goes first. Its places are those of [`super::fake`].

use det_config::master::ManagerKind;
use det_ids::AllocationId;
use det_lifecycle::container::ObservedState;
use serde_json::{Value, json};

use super::fake::{FakePlace, Task};
use super::running;
use crate::pools;
use crate::support::{Client, Cluster};

const POLICIES: &str = "/api/v1/config-policies/global/EXPERIMENT";

async fn cluster() -> Cluster {
    let flags = [
        (
            "resource_manager",
            "{type: kubernetes, cluster_name: pods, max_slots_per_pod: 8}",
        ),
        (
            "resource_pools",
            "[{pool_name: default, scheduler: {type: priority, preemption: true}}]",
        ),
        ("launch_error", "false"),
    ];
    Cluster::start_driving(ManagerKind::Kubernetes, &flags).await
}

/// Submits an experiment of one trial; gives the id of its job.
async fn submit(client: &Client, name: &str, slots: u32, priority: u8) -> Value {
    let resources = json!({"slots_per_trial": slots, "priority": priority});
    let created = pools::submit(client, name, resources).await;
    created["experiment"]["jobId"].clone()
}

/// The names of the jobs in the order in which they are served.
async fn order(client: &Client) -> Vec<String> {
    let queue = client.get("/api/v1/job-queues").await.ok();
    let jobs = queue["jobs"].as_array().unwrap().clone();
    for (ahead, job) in jobs.iter().enumerate() {
        assert_eq!(job["summary"]["jobsAhead"], ahead);
    }
    let names = jobs.iter().map(|job| job["name"].as_str().unwrap());
    names.map(str::to_owned).collect()
}

#[tokio::test]
async fn a_queue_and_its_moves_follow_the_direction() {
    let cluster = cluster().await;
    let client = cluster.determined().await;
    let low = submit(&client, "low", 1, 10).await;
    let high = submit(&client, "high", 1, 60).await;
    let middle = submit(&client, "middle", 1, 40).await;
    assert_eq!(order(&client).await, ["high", "middle", "low"]);
    let change = async |update: Value| {
        client
            .post("/api/v1/job-queues", json!({"updates": [update]}))
            .await
    };
    change(json!({"jobId": low, "aheadOf": high})).await.ok();
    assert_eq!(order(&client).await, ["low", "high", "middle"]);
    change(json!({"jobId": high, "behindOf": middle}))
        .await
        .ok();
    assert_eq!(order(&client).await, ["low", "middle", "high"]);
    change(json!({"jobId": low, "priority": 5})).await.ok();
    assert_eq!(order(&client).await, ["middle", "high", "low"]);
    let refused = change(json!({"jobId": low, "priority": 100})).await;
    let refused = refused.refused(400);
    assert!(refused.contains("1 to 99 (higher goes first)"), "{refused}");
    let pool = client.get("/api/v1/resource-pools").await.ok()["resourcePools"][0].take();
    assert_eq!(
        [&pool["priorityOrder"], &pool["clusterName"], &pool["type"]],
        ["higher goes first", "pods", "RESOURCE_POOL_TYPE_K8S"]
    );
    cluster.stop().await;
}

#[tokio::test]
async fn what_starts_and_stops_follows_the_direction() {
    let cluster = cluster().await;
    let client = cluster.determined().await;
    let mut place = FakePlace::join(&cluster, "p", 2, "default", Vec::new()).await;
    submit(&client, "first", 1, 60).await;
    let first = start(&mut place).await;
    // Less important than what runs: it waits, and the gap is filled by what is less important still.
    submit(&client, "blocked", 2, 50).await;
    submit(&client, "filler", 1, 40).await;
    let filler = start(&mut place).await;
    let is_backfill = |queue: &Value| {
        let states = queue["jobs"].as_array().unwrap().iter();
        let states = states.map(|job| job["summary"]["state"].as_str().unwrap());
        states.eq([
            "STATE_SCHEDULED",
            "STATE_QUEUED",
            "STATE_SCHEDULED_BACKFILLED",
        ])
    };
    cluster
        .until(&client, "/api/v1/job-queues", is_backfill)
        .await;
    // More important than both: they are stopped for it.
    submit(&client, "urgent", 2, 90).await;
    let stops = |queue: &Value| queue["jobs"][0]["waitReason"]["kind"] == "waiting_for_preemption";
    cluster.until(&client, "/api/v1/job-queues", stops).await;
    for (allocation, priority) in [(first, 60), (filler, 40)] {
        let reason = format!(
            "work of priority 90 needs its slots (its own is {priority}; higher goes first)"
        );
        let path = format!("/api/v1/events?subjectKind=allocation&subjectId={allocation}");
        let events = client.get(&path).await.ok().to_string();
        assert!(events.contains(&reason), "{events}");
    }
    let queue = client.get("/api/v1/job-queues").await.ok();
    let behind = queue["jobs"][2]["waitReason"]["message"].as_str().unwrap();
    assert!(
        behind.contains("has priority 90 (higher goes first)"),
        "{behind}"
    );
    cluster.stop().await;
}

/// The allocation of the next container, which runs then.
async fn start(place: &mut FakePlace) -> AllocationId {
    let Task::Start(start) = place.next().await else {
        panic!("expected a start");
    };
    let spec = start.spec;
    place
        .observes(&spec.container_id, ObservedState::Assigned)
        .await;
    place.observes(&spec.container_id, running()).await;
    spec.allocation_id
}

#[tokio::test]
async fn limits_of_policies_follow_the_direction() {
    let cluster = cluster().await;
    let (admin, client) = (cluster.admin().await, cluster.determined().await);
    let set = async |text: &str| admin.put(POLICIES, json!({"configPolicies": text})).await;
    // The same numbers would contradict each other where the lower one goes first.
    set("{invariant_config: {resources: {priority: 40}}, constraints: {priority_limit: 50}}")
        .await
        .ok();
    let refused =
        set("{invariant_config: {resources: {priority: 60}}, constraints: {priority_limit: 50}}")
            .await
            .refused(400);
    assert!(refused.contains("1 to 50 (higher goes first)"), "{refused}");
    set("constraints: {priority_limit: 50}").await.ok();
    let config = json!({
        "name": "x", "entrypoint": "true", "searcher": {"name": "single", "metric": "loss"},
        "resources": {"priority": 60},
    });
    let body = json!({"config": config.to_string(), "validateOnly": true});
    let refused = client.post("/api/v1/experiments", body).await.refused(400);
    assert!(
        refused.contains("is 60; the policy of the cluster allows 1 to 50 (higher goes first)"),
        "{refused}"
    );
    let job = submit(&client, "allowed", 1, 10).await;
    let change = async |priority: u8| {
        let body = json!({"updates": [{"jobId": job, "priority": priority}]});
        client.post("/api/v1/job-queues", body).await
    };
    change(50).await.ok();
    let refused = change(51).await.refused(403);
    assert!(
        refused.contains("allow 1 to 50 (higher goes first)"),
        "{refused}"
    );
    cluster.stop().await;
}
