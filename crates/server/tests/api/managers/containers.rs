//! What a manager other than the one of agents is given for a container, and its limits: how many slots a container may
//! have, and how many the containers of a workspace may have together.

use std::collections::BTreeMap;
use std::sync::Arc;

use det_config::master::ManagerKind;
use det_ids::{ExperimentId, PlaceId, WorkspaceId};
use det_rm::{ContainerStart, Core as _, Fit, FitQuery, Misfits};
use det_taskspec::{SlotGrant, TaskKind};
use reqwest::Method;
use serde_json::{Value, json};

use super::fake::{FakePlace, Task};
use super::running;
use crate::checkpoints::{PATH, report, send, uuid};
use crate::pools;
use crate::support::{Client, Cluster};

async fn cluster() -> Cluster {
    let flags = [
        (
            "resource_manager",
            "{type: kubernetes, cluster_name: cloud, max_slots_per_pod: 4}",
        ),
        (
            "resource_pools",
            "[{pool_name: default}, {pool_name: singles, task_container_defaults: {kubernetes: {max_slots_per_pod: 1}}}]",
        ),
    ];
    Cluster::start_driving(ManagerKind::Kubernetes, &flags).await
}

async fn next_start(place: &mut FakePlace) -> ContainerStart {
    match place.next().await {
        Task::Start(start) => *start,
        other => panic!("expected a start, found {other:?}"),
    }
}

async fn refused(client: &Client, resources: Value) -> String {
    let config = json!({
        "name": "x", "entrypoint": "true", "searcher": {"name": "single", "metric": "loss"}, "resources": resources,
    });
    let body = json!({"config": config.to_string(), "activate": true});
    client.post("/api/v1/experiments", body).await.refused(400)
}

#[tokio::test]
async fn what_a_place_gives_is_divided_by_the_limit_of_a_container() {
    let cluster = cluster().await;
    let client = cluster.determined().await;
    let mut node = FakePlace::join(&cluster, "node", 6, "default", Vec::new()).await;
    let created = pools::submit(&client, "six", json!({"slots_per_trial": 6})).await;
    let mut members = Vec::new();
    for _ in 0..2 {
        let start = next_start(&mut node).await;
        assert_eq!(start.spec.slots, SlotGrant::Count(3));
        assert_eq!(start.origin.members, 2);
        members.push(start.origin.member);
        node.observes(&start.spec.container_id, running()).await;
    }
    members.sort_unstable();
    assert_eq!(members, [0, 1]);
    let id = ExperimentId(created["experiment"]["id"].as_i64().unwrap());
    let (task, _) = cluster.task_of(id).await;
    let path = format!("/api/v1/tasks/{}", task.id);
    let runs = |answer: &Value| answer["task"]["allocations"][0]["state"] == "STATE_RUNNING";
    cluster.until(&client, &path, runs).await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_size_that_no_equal_places_make_is_started_on_unequal_ones() {
    // Of two places of other sizes, and of the parts of two equal ones.
    for (units, too_many) in [
        ([4, 3], (8, "nearest sizes that fit: 7")),
        ([4, 4], (9, "8")),
    ] {
        let cluster = cluster().await;
        let client = cluster.determined().await;
        let mut node = FakePlace::join(&cluster, "node", units[0], "default", Vec::new()).await;
        let mut other = FakePlace::join(&cluster, "other", units[1], "default", Vec::new()).await;
        let (slots, named) = too_many;
        let message = refused(&client, json!({"slots_per_trial": slots})).await;
        assert!(message.contains(named), "{message}");
        pools::submit(&client, "seven", json!({"slots_per_trial": 7})).await;
        let mut sizes = Vec::new();
        for place in [&mut node, &mut other] {
            let start = next_start(place).await;
            assert_eq!(start.origin.members, 2);
            sizes.push(start.spec.slots.count());
        }
        sizes.sort_unstable();
        assert_eq!(sizes, [3, 4]);
        cluster.stop().await;
    }
}

#[tokio::test]
async fn what_must_be_one_container_is_refused_above_the_limit() {
    let cluster = cluster().await;
    let client = cluster.determined().await;
    let _node = FakePlace::join(&cluster, "node", 8, "default", Vec::new()).await;
    let _other = FakePlace::join(&cluster, "other", 8, "singles", Vec::new()).await;
    let whole = json!({"slots_per_trial": 5, "is_single_node": true});
    let message = refused(&client, whole).await;
    assert!(
        message.contains("needs 5 slots in one container, and one of this pool has at most 4")
            && message.contains("nearest sizes that fit: 4"),
        "{message}"
    );
    // The limit of a pool replaces that of its manager.
    let whole = json!({"slots_per_trial": 4, "is_single_node": true, "resource_pool": "singles"});
    let message = refused(&client, whole).await;
    assert!(message.contains("has at most 1"), "{message}");
    cluster.stop().await;
}

#[tokio::test]
async fn a_manager_is_given_what_its_containers_are_made_by() {
    let cluster = cluster().await;
    let client = cluster.determined().await;
    let mut node = FakePlace::join(&cluster, "node", 1, "default", Vec::new()).await;
    let config = json!({
        "name": "x", "entrypoint": "true", "searcher": {"name": "single", "metric": "loss"},
        "resources": {"priority": 60},
        "environment": {"pod_spec": {"spec": {"nodeSelector": {"zone": "a"}}}},
    });
    let body = json!({"config": config.to_string(), "activate": true});
    let created = client.post("/api/v1/experiments", body).await.ok();
    let origin = next_start(&mut node).await.origin;
    assert_eq!(origin.job_id.as_str(), created["experiment"]["jobId"]);
    assert_eq!((origin.priority, origin.run_id.0), (60, 1));
    assert_eq!(origin.resource_pool, "default");
    assert_eq!(
        (origin.workspace_id, origin.workspace_name.as_str()),
        (WorkspaceId(1), "Uncategorized")
    );
    assert_eq!(origin.owner_name, "determined");
    let id = origin.experiment_id.map(|id| id.0);
    assert_eq!(id, created["experiment"]["id"].as_i64());
    assert!(origin.trial_id.is_some() && origin.preemptible);
    assert_eq!((origin.member, origin.members), (0, 1));
    let pod_spec = origin.pod_spec.unwrap();
    assert_eq!(pod_spec["spec"]["nodeSelector"]["zone"], "a");
    cluster.stop().await;
}

#[tokio::test]
async fn deletions_of_checkpoints_get_the_pod_that_is_configured_for_them() {
    let of_deletions = json!({"spec": {"nodeSelector": {"for": "deletions"}}});
    let pools = json!([{
        "pool_name": "default",
        "task_container_defaults": {"checkpoint_gc_pod_spec": of_deletions},
    }])
    .to_string();
    let flags = [
        (
            "resource_manager",
            "{type: kubernetes, cluster_name: cloud, max_slots_per_pod: 4}",
        ),
        ("resource_pools", pools.as_str()),
    ];
    let cluster = Cluster::start_driving(ManagerKind::Kubernetes, &flags).await;
    let client = cluster.determined().await;
    let mut node = FakePlace::join(&cluster, "node", 1, "default", Vec::new()).await;
    let config = json!({
        "name": "x", "entrypoint": "true", "searcher": {"name": "single", "metric": "loss"},
        "checkpoint_storage": {"type": "s3", "bucket": "b"},
        "environment": {"pod_spec": {"spec": {"nodeSelector": {"for": "training"}}}},
    });
    let body = json!({"config": config.to_string(), "activate": true});
    client.post("/api/v1/experiments", body).await.ok();
    let trial = next_start(&mut node).await;
    let task = cluster.client().as_task(&trial.spec.script.token);
    task.post(PATH, report(&trial.spec, 1, 1)).await.ok();
    // What users may not set is not judged again.
    let nothing = json!({"configPolicies": "constraints: {pod_spec: {allow: []}}"});
    let admin = cluster.admin().await;
    let policies = "/api/v1/config-policies/workspaces/1/NTSC";
    admin.put(policies, nothing).await.ok();
    let named = json!({"checkpointUuids": [uuid(1)]});
    send(&client, Method::DELETE, PATH, named).await.ok();
    let removal = next_start(&mut node).await;
    assert_eq!(removal.spec.script.task_type, TaskKind::CheckpointGc);
    assert_eq!(removal.origin.pod_spec, Some(of_deletions));
    cluster.stop().await;
}

#[tokio::test]
async fn the_limits_that_a_manager_reports_are_those_of_its_pools() {
    let cluster = cluster().await;
    let client = cluster.determined().await;
    let mut node = FakePlace::join(&cluster, "node", 4, "default", Vec::new()).await;
    let core = &cluster.master().places;
    core.report_limits("cloud", BTreeMap::from([(WorkspaceId(1), 1)]));
    let message = refused(&client, json!({"slots_per_trial": 2})).await;
    assert!(
        message.contains(
            "workspace \\\"Uncategorized\\\" may use 1 slots at a time of resource manager \\\"cloud\\\""
        ) || message.contains(
            "workspace \"Uncategorized\" may use 1 slots at a time of resource manager \"cloud\""
        ),
        "{message}"
    );
    pools::submit(&client, "first", json!({"slots_per_trial": 1})).await;
    next_start(&mut node).await;
    let created = pools::submit(&client, "second", json!({"slots_per_trial": 1})).await;
    let job = created["experiment"]["jobId"].as_str().unwrap();
    let waits = |answer: &Value| answer.to_string().contains("over_workspace_limit");
    let path = format!("/api/v1/job-queues/{job}/why");
    cluster.until(&client, &path, waits).await;
    // A higher limit takes effect at once.
    core.report_limits("cloud", BTreeMap::from([(WorkspaceId(1), 2)]));
    let start = next_start(&mut node).await;
    assert_eq!(start.origin.job_id.as_str(), job);
    cluster.stop().await;
}

/// A manager of which one place lacks the label that a job selects.
#[derive(Debug)]
struct Labels(&'static [&'static str]);

impl Fit for Labels {
    fn misfits(&self, query: FitQuery<'_>) -> Option<Arc<Misfits>> {
        assert_eq!(query.pool, "default");
        // Only known once its job was read.
        query.workspace.filter(|it| *it == WorkspaceId(1))?;
        let zone = query.demands?["spec"]["nodeSelector"]["zone"].as_str()?;
        let without = self.0.iter().map(|place| {
            let reason = format!("label \"zone\" is not \"{zone}\"");
            (PlaceId::from(*place), (true, reason))
        });
        Some(Misfits::of(without).into())
    }
}

#[tokio::test]
async fn what_a_place_lacks_is_the_reason_for_waiting_until_the_manager_reports_otherwise() {
    let cluster = cluster().await;
    let client = cluster.determined().await;
    let mut a = FakePlace::join(&cluster, "a", 4, "default", Vec::new()).await;
    let mut b = FakePlace::join(&cluster, "b", 4, "default", Vec::new()).await;
    let core = &cluster.master().places;
    core.report_fit("cloud", Arc::new(Labels(&["a", "b"])));
    let config = json!({"entrypoint": ["sleep", "60"], "resources": {"slots": 1},
        "environment": {"pod_spec": {"spec": {"nodeSelector": {"zone": "x"}}}}});
    let made = client
        .post("/api/v1/commands", json!({"config": config}))
        .await
        .ok();
    let job = made["command"]["jobId"].as_str().unwrap().to_owned();
    let waits = |answer: &Value| {
        let text = answer.to_string();
        text.contains("agents_do_not_fit") && text.contains("2 places do not fit: label")
    };
    let path = format!("/api/v1/job-queues/{job}/why");
    cluster.until(&client, &path, waits).await;
    // Jobs that demand nothing start all the same.
    pools::submit(&client, "plain", json!({"slots_per_trial": 4})).await;
    let plain = tokio::select! {
        start = next_start(&mut a) => start,
        start = next_start(&mut b) => start,
    };
    assert_ne!(plain.origin.job_id.as_str(), job);
    core.report_fit("cloud", Arc::new(Labels(&[])));
    let start = tokio::select! {
        start = next_start(&mut a) => start,
        start = next_start(&mut b) => start,
    };
    assert_eq!(start.origin.job_id.as_str(), job);
    cluster.stop().await;
}

#[tokio::test]
async fn a_container_is_reached_through_its_own_manager_alone() {
    let cluster = cluster().await;
    let client = cluster.determined().await;
    let mut node = FakePlace::join(&cluster, "node", 1, "default", Vec::new()).await;
    let config = json!({"entrypoint": ["sleep", "60"], "resources": {"slots": 1},
        "environment": {"proxy_ports": [{"proxy_port": 1734}]}});
    let body = json!({"config": config});
    let made = client.post("/api/v1/commands", body).await.ok();
    let task = made["command"]["id"].as_str().unwrap().to_owned();
    let start = next_start(&mut node).await;
    node.observes(&start.spec.container_id, running()).await;
    let path = format!("/api/v1/tasks/{task}");
    let runs = |answer: &Value| answer["task"]["allocations"][0]["state"] == "STATE_RUNNING";
    cluster.until(&client, &path, runs).await;
    let message = client
        .get(&format!("/proxy/{task}:1734/"))
        .await
        .refused(503);
    assert!(
        message.contains("resource manager")
            && message.contains("makes no connections to containers"),
        "{message}"
    );
    cluster.stop().await;
}
