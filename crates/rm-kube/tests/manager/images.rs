//! Containers that cannot start.

use std::time::Duration;

use det_kube_double::Controllers;
use det_rm_contract::TestCore;
use det_rm_kube::Settings;
use det_taskspec::ContainerExit;
use serde_json::{Value, json};

use crate::support::{Scene, steps::text};

/// The status of a pod whose task's container waits.
fn waiting(reason: &str, message: &str) -> Value {
    let state = json!({"waiting": {"reason": reason, "message": message}});
    json!({"containerStatuses": [{"name": "determined-container", "state": state}]})
}

/// A manager of node "a" with two slots that gives up soon.
async fn impatient(change: impl FnOnce(&mut Settings)) -> Scene {
    let scene = Scene::start_with(TestCore::default(), change).await;
    scene.api.add_node("a", 2);
    scene.has_slots("a", 2).await;
    scene
}

async fn is_given_up(scene: &Scene, reason: &str, message: &str) -> String {
    let id = scene.core.place("a", "c", 2);
    scene.has_node(&id).await;
    let pod = scene.pod_of(&id).unwrap();
    scene.set_status(&pod, &waiting(reason, message));
    scene.deleted_with_less(&id, 11).await;
    scene.finish_deletion(&id);
    let exit = scene.has_ended(&id).await;
    assert!(
        matches!(exit, ContainerExit::StartFailed { .. }),
        "{exit:?}"
    );
    scene.is_empty().await;
    text(&exit).to_owned()
}

#[tokio::test]
async fn an_image_that_does_not_exist_ends_the_task_at_once_with_the_text() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    let message = "failed to pull and unpack image \"registry/x:1\": not found";
    let why = is_given_up(&scene, "ErrImagePull", message).await;
    assert!(why.contains(message), "{why}");
}

#[tokio::test]
async fn a_registry_that_is_not_reached_is_waited_for() {
    let soon = |settings: &mut Settings| settings.pull_within = Duration::from_millis(200);
    let scene = impatient(soon).await;
    let message = "dial tcp 10.0.0.9:443: i/o timeout";
    let why = is_given_up(&scene, "ImagePullBackOff", message).await;
    assert!(why.contains(message), "{why}");
}

#[tokio::test]
async fn each_attempt_that_fails_is_in_the_log_with_its_reason() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    let id = scene.core.place("a", "c", 2);
    scene.has_node(&id).await;
    let pod = scene.pod_of(&id).unwrap();
    let failed = waiting("ErrImagePull", "connection refused");
    let pauses = waiting("ImagePullBackOff", "Back-off pulling image");
    for attempts in 1..=3 {
        scene.set_status(&pod, &failed);
        let has_lines = |core: &TestCore| core.notes(&id).len() == attempts;
        scene.core.until("the attempt is logged", has_lines).await;
        scene.set_status(&pod, &pauses);
    }
    let lines = scene.core.notes(&id);
    for line in &lines {
        assert!(
            line.starts_with("container \"determined-container\": ErrImagePull: connection refused; it is tried again"),
            "{line}"
        );
    }
    scene.runs(&id).await;
    scene.exits(&id, 0).await;
    assert_eq!(scene.core.notes(&id), lines);
}

#[tokio::test]
async fn a_registry_that_is_reached_again_is_no_reason_to_give_up() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    let id = scene.core.place("a", "c", 2);
    scene.has_node(&id).await;
    let pod = scene.pod_of(&id).unwrap();
    scene.set_status(&pod, &waiting("ErrImagePull", "connection refused"));
    scene.is_pulling(&id).await;
    scene.runs(&id).await;
    scene.exits(&id, 0).await;
}

#[tokio::test]
async fn a_container_that_cannot_be_created_is_given_up_after_a_while() {
    let soon = |settings: &mut Settings| settings.pull_within = Duration::from_millis(200);
    let scene = impatient(soon).await;
    let message = "secret \"theirs\" not found";
    let why = is_given_up(&scene, "CreateContainerConfigError", message).await;
    assert!(why.contains(message), "{why}");
}

#[tokio::test]
async fn a_pod_that_no_node_takes_is_lost_with_the_text_of_the_scheduler() {
    let soon = |settings: &mut Settings| settings.start_within = Duration::from_millis(300);
    let scene = impatient(soon).await;
    // The master does not know this, and its pod does not tolerate it.
    let taint = json!({"spec": {"taints": [{"key": "odd", "effect": "NoSchedule"}]}});
    scene.api.set_controllers(Controllers {
        scheduler: false,
        ..Controllers::default()
    });
    let id = scene.core.place("a", "c", 2);
    scene.has_pod(&id).await;
    scene.api.patch("v1/nodes", "", "a", &taint);
    scene.api.set_controllers(Controllers::default());
    let why = scene.is_lost(&id).await;
    assert!(
        why.contains("did not assign its pod to node \"a\""),
        "{why}"
    );
    assert!(why.contains("had untolerated taint {odd: }"), "{why}");
    scene.is_empty().await;
}

#[tokio::test]
async fn a_job_of_which_no_pod_is_made_is_lost_and_deleted() {
    let soon = |settings: &mut Settings| settings.start_within = Duration::from_millis(300);
    let scene = impatient(soon).await;
    scene.api.set_controllers(Controllers {
        jobs: false,
        ..Controllers::default()
    });
    let id = scene.core.place("a", "c", 2);
    let why = scene.is_lost(&id).await;
    assert!(why.contains("made no pod for it"), "{why}");
    scene.is_empty().await;
}

#[tokio::test]
async fn a_gang_of_which_one_rank_has_no_node_ends() {
    let soon = |settings: &mut Settings| settings.start_within = Duration::from_millis(300);
    let scene = impatient(soon).await;
    scene.api.add_node("b", 2);
    scene.has_slots("b", 2).await;
    scene.api.faults().fail_next("PATCH", "pods", 422, 100);
    let ids = scene.core.place_gang(&[("a", "c0", 2), ("b", "c1", 2)]);
    for id in &ids {
        let exit = scene.has_ended(id).await;
        // The one that is given up first ends the other one.
        let is_end = matches!(exit, ContainerExit::Killed | ContainerExit::Lost { .. });
        assert!(is_end, "{exit:?}");
    }
    scene.is_empty().await;
}

#[tokio::test]
async fn an_init_container_that_fails_ends_the_task_with_its_text() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    let id = scene.core.place("a", "c", 2);
    scene.has_node(&id).await;
    let pod = scene.pod_of(&id).unwrap();
    let ended = json!({"exitCode": 127, "reason": "Error", "message": "no such program"});
    let status = json!({
        "phase": "Failed",
        "initContainerStatuses": [
            {"name": "determined-init-container", "state": {"terminated": ended}},
        ],
    });
    scene.set_status(&pod, &status);
    let exit = scene.has_ended(&id).await;
    assert!(
        matches!(exit, ContainerExit::SetupFailed { code: 127, .. }),
        "{exit:?}"
    );
    assert!(text(&exit).contains("no such program"), "{exit:?}");
}
