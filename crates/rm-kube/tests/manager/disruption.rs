//! Pods that something else than their code or the master ends.

use det_taskspec::ContainerExit;
use serde_json::{Value, json};

use crate::support::{Scene, terminated};

fn disrupted(reason: &str, message: &str) -> Value {
    json!({"conditions": [
        {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message},
    ]})
}

/// The code's end by the signal with which its pod is ended.
fn signaled() -> Value {
    terminated(&ContainerExit::Signaled {
        signal: 15,
        out_of_memory: false,
    })
}

#[tokio::test]
async fn an_eviction_is_a_loss_that_names_its_cause() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    let cases = [
        ("PreemptionByScheduler", "preempted"),
        ("EvictionByEvictionAPI", "drained"),
        ("DeletionByTaintManager", "tainted"),
        ("TerminationByKubelet", "lack of resources"),
    ];
    for (reason, expected) in cases {
        let id = scene.core.place("a", &format!("c-{}", &expected[..4]), 2);
        let pod = scene.runs(&id).await;
        scene.set_status(&pod, &disrupted(reason, "the reason of the cluster"));
        scene.api.delete("v1/pods", &pod.namespace, &pod.name);
        scene.set_status(&pod, &signaled());
        let why = scene.is_lost(&id).await;
        assert!(why.contains(expected) && why.contains(reason), "{why}");
        assert!(why.contains("the reason of the cluster"), "{why}");
        scene.finish_deletion(&id);
        scene.is_empty().await;
    }
}

#[tokio::test]
async fn a_deletion_by_others_after_which_the_code_reports_its_end_is_a_loss() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    let id = scene.core.place("a", "c", 2);
    let pod = scene.runs(&id).await;
    scene.api.delete("v1/pods", &pod.namespace, &pod.name);
    scene.set_status(&pod, &signaled());
    let why = scene.is_lost(&id).await;
    assert!(why.contains("deleted"), "{why}");
}

#[tokio::test]
async fn code_that_ends_well_when_its_pod_is_evicted_has_finished() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    let id = scene.core.place("a", "c", 2);
    let pod = scene.runs(&id).await;
    scene.set_status(&pod, &disrupted("EvictionByEvictionAPI", ""));
    scene.api.delete("v1/pods", &pod.namespace, &pod.name);
    scene.exits(&id, 0).await;
}

#[tokio::test]
async fn a_kill_by_the_master_that_an_eviction_follows_is_a_kill() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    let id = scene.core.place("a", "c", 2);
    let pod = scene.runs(&id).await;
    scene
        .core
        .want(&id, det_lifecycle::container::DesiredState::Kill);
    scene.deleted_with_less(&id, 11).await;
    scene.set_status(&pod, &disrupted("TerminationByKubelet", ""));
    scene.set_status(&pod, &signaled());
    assert_eq!(scene.has_ended(&id).await, ContainerExit::Killed);
}

#[tokio::test]
async fn a_pod_that_its_node_evicts_is_lost_with_the_text_of_the_node() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    let id = scene.core.place("a", "c", 2);
    let pod = scene.runs(&id).await;
    let evicted = json!({
        "phase": "Failed",
        "reason": "Evicted",
        "message": "The node was low on resource: memory.",
    });
    scene.set_status(&pod, &evicted);
    let why = scene.is_lost(&id).await;
    assert!(why.contains("low on resource: memory"), "{why}");
}

#[tokio::test]
async fn an_eviction_of_one_rank_is_one_loss() {
    let scene = Scene::with_nodes(&[("a", 2), ("b", 2)]).await;
    let ids = scene.core.place_gang(&[("a", "c0", 2), ("b", "c1", 2)]);
    for id in &ids {
        scene.runs(id).await;
    }
    let pod = scene.pod_of(&ids[1]).unwrap();
    scene.set_status(&pod, &disrupted("EvictionByEvictionAPI", ""));
    scene.api.delete("v1/pods", &pod.namespace, &pod.name);
    scene.set_status(&pod, &signaled());
    scene.is_lost(&ids[1]).await;
    scene.finish_deletion(&ids[1]);
    scene.deleted_with_less(&ids[0], i64::MAX).await;
    scene.finish_deletion(&ids[0]);
    assert_eq!(scene.has_ended(&ids[0]).await, ContainerExit::Killed);
    scene.is_empty().await;
}
