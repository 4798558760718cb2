//! Work that waits for a cluster to grow: which of it the manager is to ask for, and what users are shown of that.

use std::collections::BTreeMap;

use det_config::master::ManagerKind;
use det_ids::Micros;
use det_rm::{GrowthCore as _, GrowthState, WaitingGang};
use det_taskspec::SlotGrant;
use serde_json::{Value, json};

use super::fake::{FakePlace, Task};
use crate::pools;
use crate::support::Cluster;

/// A cluster of up to two nodes of 4 slots.
async fn cluster() -> Cluster {
    let flags = [
        (
            "resource_manager",
            "{type: kubernetes, cluster_name: cloud, max_slots_per_pod: 4}",
        ),
        (
            "resource_pools",
            "[{pool_name: default, autoscaling: {slots_per_node: 4, max_nodes: 2}}]",
        ),
    ];
    Cluster::start_driving(ManagerKind::Kubernetes, &flags).await
}

/// What waits for nodes, once something like this does.
async fn waiting(cluster: &Cluster, is_it: impl Fn(&[WaitingGang]) -> bool) -> Vec<WaitingGang> {
    let core = &cluster.master().places;
    let mut changes = core.waiting_changes("cloud");
    loop {
        let waiting = core.waiting("cloud");
        if is_it(&waiting) {
            return waiting;
        }
        changes.changed().await;
    }
}

#[tokio::test]
async fn work_that_waits_for_nodes_is_the_managers_to_ask_for_until_it_starts() {
    let cluster = cluster().await;
    let client = cluster.determined().await;
    let mut a = FakePlace::join(&cluster, "a", 4, "default", Vec::new()).await;
    // More than there is, and not more than there may be.
    let created = pools::submit(&client, "eight", json!({"slots_per_trial": 8})).await;
    let job = created["experiment"]["jobId"].as_str().unwrap();
    let path = format!("/api/v1/job-queues/{job}/why");
    let gang = waiting(&cluster, |gangs| gangs.len() == 1).await.remove(0);
    assert_eq!(gang.resource_pool, "default");
    let slots: Vec<u32> = gang.shares.iter().map(|share| share.slots).collect();
    assert_eq!(slots, [4, 4]);
    let core = &cluster.master().places;
    let report = |state| {
        core.report_growth(
            "cloud",
            BTreeMap::from([(gang.allocation_id.clone(), state)]),
        );
    };
    report(GrowthState::Asked {
        shares: gang.shares.clone(),
        since: Micros(1_790_000_000_000_000),
    });
    let shows = |text: &'static str| move |answer: &Value| answer.to_string().contains(text);
    let asked = "waits for the cluster to grow: asked for 2 nodes with 4 free slots at 2026-09-21T14:13:20Z";
    cluster.until(&client, &path, shows(asked)).await;
    report(GrowthState::GivenUp {
        reason: "the autoscaler adds no node: full".to_owned(),
        until: Micros(1_790_000_000_000_000),
    });
    let given_up = "the cluster did not grow for it: the autoscaler adds no node: full";
    cluster.until(&client, &path, shows(given_up)).await;
    // A node comes, for whatever reason.
    let mut b = FakePlace::join(&cluster, "b", 4, "default", Vec::new()).await;
    for node in [&mut a, &mut b] {
        match node.next().await {
            Task::Start(start) => assert_eq!(start.spec.slots, SlotGrant::Count(4)),
            other => panic!("expected a start, found {other:?}"),
        }
    }
    assert!(waiting(&cluster, <[_]>::is_empty).await.is_empty());
    cluster.stop().await;
}

#[tokio::test]
async fn work_that_the_cluster_does_not_grow_for_leaves_its_nodes_to_what_is_behind_it() {
    let cluster = cluster().await;
    let client = cluster.determined().await;
    let core = &cluster.master().places;
    pools::submit(&client, "eight", json!({"slots_per_trial": 8})).await;
    let eight = waiting(&cluster, |gangs| gangs.len() == 1).await.remove(0);
    // There is nothing left for it of two nodes.
    pools::submit(&client, "four", json!({"slots_per_trial": 4})).await;
    let is_eight = |gangs: &[WaitingGang]| matches!(gangs, [gang] if *gang == eight);
    let is_four = |gangs: &[WaitingGang]| matches!(gangs, [gang] if gang.shares.len() == 1);
    let given_up = |seconds: i64| {
        let now = jiff::Timestamp::now().as_microsecond();
        let state = GrowthState::GivenUp {
            reason: "full".to_owned(),
            until: Micros(now + seconds * 1_000_000),
        };
        let states = BTreeMap::from([(eight.allocation_id.clone(), state)]);
        core.report_growth("cloud", states);
    };
    given_up(3600);
    waiting(&cluster, is_four).await;
    core.report_growth("cloud", BTreeMap::new());
    waiting(&cluster, is_eight).await;
    // It comes back when its time has come, whether or not that is reported.
    given_up(3600);
    waiting(&cluster, is_four).await;
    given_up(1);
    waiting(&cluster, is_eight).await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_pool_without_nodes_refuses_what_it_can_never_become() {
    let cluster = cluster().await;
    let client = cluster.determined().await;
    let config = json!({
        "name": "x", "entrypoint": "true", "searcher": {"name": "single", "metric": "loss"},
        "resources": {"slots_per_trial": 12},
    });
    let body = json!({"config": config.to_string(), "activate": true});
    let message = client.post("/api/v1/experiments", body).await.refused(400);
    assert!(message.contains("the pool has 8"), "{message}");
    pools::submit(&client, "eight", json!({"slots_per_trial": 8})).await;
    waiting(&cluster, |gangs| gangs.len() == 1).await;
    cluster.stop().await;
}
