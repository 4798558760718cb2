//! Events of Kubernetes in the logs of tasks.

use std::time::Duration;

use det_ids::ContainerId;
use det_kube_double::Controllers;
use det_rm_contract::TestCore;
use det_rm_kube::Settings;
use det_taskspec::ContainerExit;
use serde_json::{Value, json};

use crate::support::{Scene, named};

fn event(name: &str, of: &Value, kind: &str, (reason, message): (&str, &str)) -> Value {
    let (namespace, object) = named(of);
    json!({
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {"kind": kind, "namespace": namespace, "name": object, "uid": of["metadata"]["uid"]},
        "reason": reason,
        "message": message,
        "type": if reason.starts_with("Failed") { "Warning" } else { "Normal" },
    })
}

async fn has_lines(scene: &Scene, id: &ContainerId, expected: &[String]) {
    let has = |core: &TestCore| core.notes(id) == expected;
    let what = format!(
        "the lines {expected:?}; there are {:?}",
        scene.core.notes(id)
    );
    scene.core.until(&what, has).await;
}

/// The manager has seen everything up to now: an event that it notes comes last.
async fn all_is_seen(scene: &Scene, id: &ContainerId, pod: &Value) {
    let last = event("last", pod, "Pod", ("Pulled", "the last one"));
    scene.api.create("v1/events", "default", last);
    let has = |core: &TestCore| {
        core.notes(id)
            .iter()
            .any(|line| line.ends_with("the last one"))
    };
    scene.core.until("the last event", has).await;
}

#[tokio::test]
async fn events_of_a_pod_and_its_job_are_lines_once_each() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    let id = scene.core.place("a", "c", 2);
    let pod = scene.runs(&id).await;
    let job = scene.api.list("batch/v1/jobs", "").remove(0);
    for (number, (of, kind, what)) in [
        (&job, "Job", ("SuccessfulCreate", "Created pod: p")),
        (
            &pod.object,
            "Pod",
            ("FailedScheduling", "0/1 nodes are available"),
        ),
        // Kubernetes repeats itself.
        (
            &pod.object,
            "Pod",
            ("FailedScheduling", "0/1 nodes are available"),
        ),
        (&pod.object, "Node", ("NodeReady", "of something else")),
    ]
    .into_iter()
    .enumerate()
    {
        let event = event(&format!("e{number}"), of, kind, what);
        scene.api.create("v1/events", &pod.namespace, event);
    }
    all_is_seen(&scene, &id, &pod.object).await;
    let mut lines = scene.core.notes(&id);
    lines.sort();
    let (name, job) = (&pod.name, named(&job).1);
    let expected = [
        format!("Job {job}: Created pod: p"),
        format!("Pod {name}: 0/1 nodes are available (FailedScheduling)"),
        format!("Pod {name}: the last one"),
    ];
    assert_eq!(lines, expected);
}

#[tokio::test]
async fn events_of_pods_that_are_not_ours_are_no_lines() {
    let scene = Scene::with_nodes(&[("a", 4)]).await;
    let id = scene.core.place("a", "c", 2);
    let pod = scene.runs(&id).await;
    scene.foreign_pod("theirs", "a", 1);
    let theirs = scene.api.get("v1/pods", "default", "theirs").unwrap();
    let strange = event("e", &theirs, "Pod", ("Started", "theirs"));
    scene.api.create("v1/events", "default", strange);
    // A pod of an earlier time that had the name of ours.
    let mut earlier = pod.object.clone();
    earlier["metadata"]["uid"] = "another".into();
    let earlier = event("f", &earlier, "Pod", ("Started", "of earlier"));
    scene.api.create("v1/events", "default", earlier);
    all_is_seen(&scene, &id, &pod.object).await;
    has_lines(&scene, &id, &[format!("Pod {}: the last one", pod.name)]).await;
}

#[tokio::test]
async fn pods_that_are_refused_for_good_end_the_task_with_the_text() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    scene.api.set_controllers(Controllers {
        jobs: false,
        ..Controllers::default()
    });
    let id = scene.core.place("a", "c", 2);
    scene.is_assigned(&id).await;
    let job = scene.api.list("batch/v1/jobs", "").remove(0);
    let refused =
        "Error creating: pods \"x\" is forbidden: violates PodSecurity \"restricted:latest\"";
    let event = event("e", &job, "Job", ("FailedCreate", refused));
    scene.api.create("v1/events", "default", event);
    match scene.has_ended(&id).await {
        ContainerExit::StartFailed { message } => assert!(message.contains(refused), "{message}"),
        other => panic!("{other:?}"),
    }
    scene.is_empty().await;
}

#[tokio::test]
async fn an_event_that_others_write_ends_nothing_that_has_a_pod() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    let id = scene.core.place("a", "c", 2);
    let pod = scene.runs(&id).await;
    let job = scene.api.list("batch/v1/jobs", "").remove(0);
    let forged = event("e", &job, "Job", ("FailedCreate", "Pod \"x\" is invalid"));
    scene.api.create("v1/events", "default", forged);
    all_is_seen(&scene, &id, &pod.object).await;
    scene.exits(&id, 0).await;
}

/// The line of a kubelet about the Secret of a pod.
fn not_found(secret: &str) -> String {
    format!("MountVolume.SetUp failed for volume \"v\" : secret \"{secret}\" not found")
}

#[tokio::test]
async fn a_pod_whose_secret_was_deleted_before_it_was_read_is_lost() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    let id = scene.core.place("a", "c", 2);
    scene.has_node(&id).await;
    scene.was_asked("PATCH secrets", 1).await;
    let (namespace, secret) = named(&scene.api.list("v1/secrets", "")[0]);
    let pod = scene.pod_of(&id).unwrap();
    let of_pod = |name: &str| {
        event(
            name,
            &pod.object,
            "Pod",
            ("FailedMount", &not_found(&secret)),
        )
    };
    // Anyone who may create events can write one.
    scene.api.create("v1/events", &namespace, of_pod("forged"));
    scene.was_asked("GET secrets", 1).await;
    all_is_seen(&scene, &id, &pod.object).await;
    assert!(scene.core.row(&id).exit().is_none());
    scene.api.delete("v1/secrets", &namespace, &secret);
    scene.api.create("v1/events", &namespace, of_pod("true"));
    scene.deleted_with_less(&id, 11).await;
    scene.finish_deletion(&id);
    let why = scene.is_lost(&id).await;
    assert!(
        why.contains(&secret) && why.contains("was deleted before"),
        "{why}"
    );
    scene.is_empty().await;
}

#[tokio::test]
async fn a_quota_is_the_reason_why_no_pod_is_made() {
    let soon = |settings: &mut Settings| settings.start_within = Duration::from_millis(500);
    let scene = Scene::start_with(TestCore::default(), soon).await;
    scene.api.add_node("a", 2);
    scene.has_slots("a", 2).await;
    scene.api.set_controllers(Controllers {
        jobs: false,
        ..Controllers::default()
    });
    let id = scene.core.place("a", "c", 2);
    scene.is_assigned(&id).await;
    let job = scene.api.list("batch/v1/jobs", "").remove(0);
    let exceeded =
        "Error creating: pods \"x\" is forbidden: exceeded quota: few, requested: pods=1";
    let event = event("e", &job, "Job", ("FailedCreate", exceeded));
    scene.api.create("v1/events", "default", event);
    let why = scene.is_lost(&id).await;
    assert!(why.contains(exceeded), "{why}");
}

#[tokio::test]
async fn a_master_without_the_right_to_read_events_runs_tasks_all_the_same() {
    let scene = Scene::with_nodes(&[]).await;
    scene.api.faults().fail_next("GET", "events", 403, 1000);
    scene.api.add_node("a", 2);
    scene.has_slots("a", 2).await;
    let id = scene.core.place("a", "c", 2);
    scene.runs(&id).await;
    scene.exits(&id, 0).await;
}
