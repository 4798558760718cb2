//! How many requests a task costs.

use det_lifecycle::container::DesiredState;
use det_taskspec::ContainerExit;

use crate::support::Scene;

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
    // A list and a watch of nodes, pods, Jobs and events each.
    let methods: Vec<_> = scene
        .api
        .requests()
        .into_iter()
        .map(|it| it.method)
        .collect();
    assert_eq!(methods, ["GET"; 8]);
}
