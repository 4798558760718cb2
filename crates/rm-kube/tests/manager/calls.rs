//! How many requests a task costs.

use std::collections::BTreeMap;

use det_ids::ContainerId;
use det_kube_double::{Controllers, Objects};
use det_lifecycle::container::{DesiredState, ObservedState};
use det_rm_contract::TestCore;
use det_taskspec::ContainerExit;

use crate::support::{Scene, containers_of};

#[tokio::test]
async fn a_container_costs_four_requests() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    assert!(scene.calls().is_empty());
    let id = scene.core.place("a", "c", 2);
    scene.runs(&id).await;
    scene.was_asked("PATCH secrets", 1).await;
    scene.exits(&id, 0).await;
    scene.is_empty().await;
    let expected = ["POST secrets", "POST jobs", "PATCH secrets", "DELETE jobs"];
    assert_eq!(scene.calls(), expected);
    // Nothing follows later: the next one costs as many.
    let id = scene.core.place("a", "d", 2);
    scene.runs(&id).await;
    scene.was_asked("PATCH secrets", 2).await;
    scene.exits(&id, 0).await;
    scene.is_empty().await;
    assert_eq!(scene.calls().len(), 8);
}

#[tokio::test]
async fn a_container_that_is_killed_costs_one_more() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    let id = scene.core.place("a", "c", 2);
    scene.runs(&id).await;
    scene.was_asked("PATCH secrets", 1).await;
    scene.core.want(&id, DesiredState::Kill);
    scene.deleted_with_less(&id, 11).await;
    scene.finish_deletion(&id);
    assert_eq!(scene.has_ended(&id).await, ContainerExit::Killed);
    scene.is_empty().await;
    let expected = [
        "POST secrets",
        "POST jobs",
        "PATCH secrets",
        "DELETE pods",
        "DELETE jobs",
    ];
    assert_eq!(scene.calls(), expected);
}

#[tokio::test]
async fn a_gang_costs_one_more_for_each_rank_and_its_service() {
    let scene = Scene::with_nodes(&[("a", 2), ("b", 2)]).await;
    let ids = scene.core.place_gang(&[("a", "c0", 2), ("b", "c1", 2)]);
    for id in &ids {
        scene.runs(id).await;
    }
    scene.was_asked("PATCH secrets", 1).await;
    for id in &ids {
        scene.exits(id, 0).await;
    }
    scene.is_empty().await;
    let mut calls = scene.calls();
    calls.sort();
    let expected = [
        "DELETE jobs",
        "PATCH pods",
        "PATCH pods",
        "PATCH secrets",
        "POST jobs",
        "POST secrets",
        "POST services",
    ];
    assert_eq!(calls, expected);
}

#[tokio::test]
async fn nodes_and_their_changes_cost_nothing_but_their_watch() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    scene.api.set_node_ready("a", false);
    scene.has_left("a").await;
    scene.api.set_node_ready("a", true);
    scene.has_slots("a", 2).await;
    // A list and a watch of nodes, pods, Jobs, events, namespaces and quotas each.
    let methods: Vec<_> = scene
        .api
        .requests()
        .into_iter()
        .map(|it| it.method)
        .collect();
    assert_eq!(methods, ["GET"; 12]);
}

/// A manager of a cluster whose kubelets run pods at once, with so many nodes of 8 GPUs.
async fn with_kubelets(nodes: &[String]) -> Scene {
    let scene = Scene::start(TestCore::default()).await;
    scene.api.set_controllers(Controllers {
        kubelets: true,
        ..Controllers::default()
    });
    for node in nodes {
        scene.api.add_node(node, 8);
    }
    for node in nodes {
        scene.has_slots(node, 8).await;
    }
    scene
}

async fn all_run(scene: &Scene, ids: &[ContainerId]) {
    let run = |core: &TestCore| {
        let is_running =
            |id: &ContainerId| matches!(core.row(id).observed, Some(ObservedState::Running { .. }));
        ids.iter().all(is_running)
    };
    scene.core.until("all of them run", run).await;
}

fn counted(calls: &[String]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for call in calls {
        *counts.entry(call.as_str()).or_default() += 1;
    }
    counts
}

#[tokio::test]
async fn each_of_many_tasks_costs_as_many_requests_as_the_first() {
    let nodes: Vec<String> = (0..8).map(|number| format!("n{number}")).collect();
    let scene = with_kubelets(&nodes).await;
    let mut calls = 0;
    // Beside ten times as many pods of others.
    for (batch, tasks) in [4, 40].into_iter().enumerate() {
        for number in 0..100 * batch {
            let name = format!("other-{number}");
            scene.foreign_pod(&name, &nodes[number % nodes.len()], 0);
        }
        let place = |number: usize| {
            let name = format!("c{batch}-{number}");
            scene.core.place(&nodes[number % nodes.len()], &name, 1)
        };
        let ids: Vec<ContainerId> = (0..tasks).map(place).collect();
        all_run(&scene, &ids).await;
        for job in scene.api.list("batch/v1/jobs", "") {
            for id in containers_of(&job) {
                scene.exits(&id, 0).await;
            }
        }
        let has_none = |objects: &Objects<'_>| objects.list("batch/v1/jobs", "").is_empty();
        scene.api.until("all Jobs are deleted", has_none).await;
        let new = scene.calls().split_off(calls);
        let expected = ["DELETE jobs", "PATCH secrets", "POST jobs", "POST secrets"];
        let expected = expected.map(|call| (call, tasks));
        assert_eq!(counted(&new), BTreeMap::from(expected));
        calls += new.len();
    }
}

#[tokio::test]
async fn a_gang_of_64_pods_is_admitted_whole_for_one_request_each() {
    let nodes: Vec<String> = (0..8).map(|number| format!("n{number}")).collect();
    let scene = with_kubelets(&nodes).await;
    let names: Vec<String> = (0..64).map(|rank| format!("r{rank:02}")).collect();
    let ranks = names.iter().enumerate();
    let ranks: Vec<(&str, &str, u32)> = ranks
        .map(|(rank, name)| (nodes[rank / 8].as_str(), name.as_str(), 1))
        .collect();
    let ids = scene.core.place_gang(&ranks);
    all_run(&scene, &ids).await;
    scene.was_asked("PATCH secrets", 1).await;
    let calls = scene.calls();
    let expected = [
        ("PATCH pods", 64),
        ("PATCH secrets", 1),
        ("POST jobs", 1),
        ("POST secrets", 1),
        ("POST services", 1),
    ];
    assert_eq!(counted(&calls), BTreeMap::from(expected));
    for pod in scene.api.list("v1/pods", "") {
        let rank = &pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"];
        let rank: usize = rank.as_str().unwrap().parse().unwrap();
        assert_eq!(pod["spec"]["nodeName"], nodes[rank / 8]);
    }
    assert!(ids.iter().all(|id| scene.core.row(id).starts == 1));
}
