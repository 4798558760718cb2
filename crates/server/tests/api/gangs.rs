//! Tasks on several agents: what a rank that has exited gives back while the others go on.

use det_ids::ExperimentId;
use serde_json::{Value, json};

use crate::support::{Client, Cluster};
use crate::workspaces::{project, submit, workspace};

/// Which slots of an agent have a container.
async fn busy(client: &Client, agent: &str) -> Vec<bool> {
    let answer = client.get(&format!("/api/v1/agents/{agent}")).await.ok();
    let slots = answer["agent"]["slots"].as_object().unwrap();
    slots
        .values()
        .map(|slot| !slot["container"].is_null())
        .collect()
}

/// Slots that jobs hold, in the order of the queue.
fn allocated(queue: &Value) -> Vec<i64> {
    let jobs = queue["jobs"].as_array().unwrap();
    jobs.iter()
        .map(|job| job["full"]["allocatedSlots"].as_i64().unwrap())
        .collect()
}

#[tokio::test]
async fn a_rank_that_has_exited_gives_its_slots_back() {
    let cluster = Cluster::start().await;
    let mut a1 = cluster.agent("a1", 2).await;
    let mut b1 = cluster.agent("b1", 2).await;
    let gang = cluster.experiment("gang", 4).await;
    let (chief, other) = (a1.next_start().await, b1.next_start().await);
    a1.runs(&chief).await;
    b1.runs(&other).await;
    let waits = cluster.experiment("waits", 2).await;
    let client = cluster.determined().await;
    let queue = "/api/v1/job-queues-v2?resourcePool=default";
    assert_eq!(allocated(&client.get(queue).await.ok()), [4, 0]);

    b1.exits(&other, 0).await;
    b1.forgets(&other).await;
    let started = b1.next_start().await;
    assert_eq!(started.slots.devices().len(), 2);
    b1.runs(&started).await;
    assert_eq!(busy(&client, "a1").await, [true, true]);
    assert_eq!(allocated(&client.get(queue).await.ok()), [2, 2]);
    let state = |id: ExperimentId| {
        let (client, path) = (client.clone(), format!("/api/v1/experiments/{id}"));
        async move { client.get(&path).await.ok()["experiment"]["state"].clone() }
    };
    assert_ne!(state(gang).await, json!("STATE_COMPLETED"));

    a1.exits(&chief, 0).await;
    let completed = |answer: &Value| answer["experiment"]["state"] == "STATE_COMPLETED";
    let path = format!("/api/v1/experiments/{gang}");
    cluster.until(&client, &path, completed).await;
    assert_eq!(busy(&client, "a1").await, [false, false]);
    assert_ne!(state(waits).await, json!("STATE_COMPLETED"));
    cluster.stop().await;
}

#[tokio::test]
async fn slots_that_were_given_back_do_not_count_for_a_workspaces_limit() {
    let pools = "[{pool_name: default}, {pool_name: gpu}]";
    let cluster = Cluster::start_with(&[("resource_pools", pools)]).await;
    let (admin, client) = (cluster.admin().await, cluster.determined().await);
    let made = workspace(&admin, json!({"name": "small", "maxSlots": 4})).await;
    let project = project(&admin, &made, "p").await;
    let begin = async |name: &str, resources: Value| {
        let more = json!({"name": name, "resources": resources});
        let body = json!({"projectId": project, "activate": true});
        submit(&client, &more, &body).await["experiment"]["id"].clone()
    };
    let mut default = cluster.agent_in("default", "a1", 2).await;
    let mut first = cluster.agent_in("gpu", "b1", 2).await;
    let mut second = cluster.agent_in("gpu", "b2", 2).await;
    begin(
        "gang",
        json!({"resource_pool": "gpu", "slots_per_trial": 4}),
    )
    .await;
    let (chief, other) = (first.next_start().await, second.next_start().await);
    first.runs(&chief).await;
    second.runs(&other).await;
    let waits = begin("waits", json!({"slots_per_trial": 2})).await;
    let trial = format!("/api/v1/trials/{waits}");
    let held_back = |answer: &Value| {
        // The experiment's only trial is the second one of this cluster.
        answer["trial"]["waitReason"]["kind"] == "over_workspace_limit"
    };
    cluster.until(&client, &trial, held_back).await;
    second.exits(&other, 0).await;
    assert_eq!(default.next_start().await.slots.devices().len(), 2);
    cluster.stop().await;
}

#[tokio::test]
async fn a_rank_that_starts_after_another_has_exited_is_still_of_a_gang() {
    let cluster = Cluster::start().await;
    let mut a1 = cluster.agent("a1", 1).await;
    let mut b1 = cluster.agent("b1", 1).await;
    cluster.experiment("gang", 2).await;
    let (chief, other) = (a1.next_start().await, b1.next_start().await);
    // The agent of one rank is cut off before it has begun with it, and the other rank is done meanwhile.
    drop(a1);
    b1.runs(&other).await;
    b1.exits(&other, 0).await;
    b1.forgets(&other).await;
    let mut a1 = cluster.agent("a1", 1).await;
    let spec = a1.next_start().await;
    assert_eq!(spec.container_id, chief.container_id);
    assert_eq!(spec.network_mode, "host");
    assert_eq!(spec.ports, chief.ports);
    cluster.stop().await;
}
