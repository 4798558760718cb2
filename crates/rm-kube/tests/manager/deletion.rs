//! What others delete.

use det_ids::ClusterId;
use det_kube_double::Controllers;
use det_rm::PlacedNamespace;
use det_rm_contract::TestCore;
use det_rm_kube::Seal;
use serde_json::{Value, json};

use crate::support::{Scene, named};

/// A Job like this one, under another name and with other labels.
fn copy(job: &Value, name: &str, cluster: &ClusterId) -> Value {
    let text = job.to_string();
    let container = job["metadata"]["annotations"]["determined.ai/containers"].as_str();
    let container = container.unwrap().replace("\"c\"", "\"stray\"");
    let mut copy: Value = serde_json::from_str(&text).unwrap();
    let seal = Seal::new("secret", "").of(("default", name), &container);
    copy["metadata"] = json!({
        "name": name,
        "labels": {"determined": "x", "determined.ai/cluster_id": cluster},
        "annotations": {"determined.ai/containers": container, "determined.ai/seal": seal},
    });
    copy.as_object_mut().unwrap().remove("status");
    copy["spec"].as_object_mut().unwrap().remove("selector");
    let labels = &mut copy["spec"]["template"]["metadata"]["labels"];
    labels["determined.ai/cluster_id"] = cluster.as_str().into();
    copy
}

/// A container of this node whose pod waits for a node that is full.
async fn waiting(scene: &Scene) -> det_ids::ContainerId {
    scene.api.set_controllers(Controllers {
        scheduler: false,
        ..Controllers::default()
    });
    let id = scene.core.place("a", "c", 2);
    scene.has_pod(&id).await;
    id
}

#[tokio::test]
async fn a_pod_that_was_deleted_while_it_ran_is_lost_once() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    let id = scene.core.place("a", "c", 2);
    let pod = scene.runs(&id).await;
    scene.api.delete("v1/pods", &pod.namespace, &pod.name);
    scene.finish_deletion(&id);
    let why = scene.is_lost(&id).await;
    assert!(why.contains("was deleted, and not by the master"), "{why}");
    assert!(
        why.contains(&pod.name) && why.contains("node \"a\""),
        "{why}"
    );
    scene.is_empty().await;
    scene.is_quiet("a").await;
    assert_eq!(scene.is_lost(&id).await, why);
    assert_eq!(scene.core.row(&id).starts, 1);
}

#[tokio::test]
async fn a_pod_that_was_deleted_while_it_waited_is_lost() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    let id = waiting(&scene).await;
    let pod = scene.pod_of(&id).unwrap();
    scene.api.delete("v1/pods", &pod.namespace, &pod.name);
    scene.is_lost(&id).await;
    scene.is_empty().await;
}

#[tokio::test]
async fn a_job_that_was_deleted_while_it_ran_is_lost_once() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    let id = scene.core.place("a", "c", 2);
    scene.runs(&id).await;
    let (namespace, name) = named(&scene.job());
    scene.api.delete("batch/v1/jobs", &namespace, &name);
    scene.deleted_with_less(&id, i64::MAX).await;
    scene.finish_deletion(&id);
    scene.is_lost(&id).await;
    scene.is_empty().await;
    scene.is_quiet("a").await;
    assert_eq!(scene.core.row(&id).starts, 1);
}

#[tokio::test]
async fn a_job_that_was_deleted_while_it_waited_is_lost() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    let id = waiting(&scene).await;
    let (namespace, name) = named(&scene.job());
    scene.api.delete("batch/v1/jobs", &namespace, &name);
    scene.is_lost(&id).await;
    scene.is_empty().await;
}

#[tokio::test]
async fn a_job_of_several_that_was_deleted_is_lost_once_and_its_other_ranks_are_killed() {
    let scene = Scene::with_nodes(&[("a", 2), ("b", 2)]).await;
    let ids = scene.core.place_gang(&[("a", "c0", 2), ("b", "c1", 2)]);
    for id in &ids {
        scene.runs(id).await;
    }
    let (namespace, name) = named(&scene.job());
    scene.api.delete("batch/v1/jobs", &namespace, &name);
    scene.deleted_with_less(&ids[0], i64::MAX).await;
    scene.finish_deletion(&ids[0]);
    scene.is_lost(&ids[0]).await;
    scene.finish_deletion(&ids[1]);
    let exit = scene.has_ended(&ids[1]).await;
    assert_eq!(exit, det_taskspec::ContainerExit::Killed);
    scene.is_empty().await;
}

#[tokio::test]
async fn a_secret_that_was_deleted_changes_nothing_for_what_runs() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    let id = scene.core.place("a", "c", 2);
    scene.runs(&id).await;
    scene.was_asked("PATCH secrets", 1).await;
    let (namespace, name) = named(&scene.api.list("v1/secrets", "")[0]);
    scene.api.delete("v1/secrets", &namespace, &name);
    scene.exits(&id, 0).await;
    scene.is_empty().await;
}

#[tokio::test]
async fn a_namespace_that_was_deleted_loses_its_containers() {
    let change = |settings: &mut det_rm_kube::Settings| settings.namespace = "tasks".to_owned();
    let scene = Scene::start_with(TestCore::default(), change).await;
    let namespace = json!({"metadata": {"name": "tasks"}});
    scene.api.create("v1/namespaces", "", namespace);
    scene.api.add_node("a", 2);
    scene.has_slots("a", 2).await;
    let id = scene.core.place("a", "c", 1);
    let waiting = scene.core.place("a", "d", 1);
    scene.runs(&id).await;
    scene.has_node(&waiting).await;
    scene.api.delete("v1/namespaces", "", "tasks");
    for id in [&id, &waiting] {
        scene.deleted_with_less(id, i64::MAX).await;
        scene.finish_deletion(id);
        scene.is_lost(id).await;
    }
    scene.is_empty().await;
    // What comes later is refused with the reason.
    let late = scene.core.place("a", "e", 1);
    let exit = scene.has_ended(&late).await;
    let why = crate::support::steps::text(&exit);
    assert!(why.contains("namespaces \"tasks\" not found"), "{why}");
}

#[tokio::test]
async fn a_sidecar_that_outlives_its_task_is_ended_with_a_short_grace() {
    let sidecar = || json!({"phase": "Running", "containerStatuses": [{"name": "side", "state": {"running": {}}}]});
    let ended = |code: i32| {
        let exit = det_taskspec::ContainerExit::Exited { code };
        let mut status = crate::support::terminated(&exit);
        status["phase"] = "Running".into();
        status
    };
    let scene = Scene::with_nodes(&[("a", 2), ("b", 2)]).await;
    let id = scene.core.place("a", "c", 2);
    let pod = scene.runs(&id).await;
    scene.set_status(&pod, &sidecar());
    scene.set_status(&pod, &ended(0));
    scene.deleted_with_less(&id, 11).await;
    scene.finish_deletion(&id);
    assert_eq!(
        scene.has_ended(&id).await,
        det_taskspec::ContainerExit::Exited { code: 0 }
    );
    scene.is_empty().await;
    // A rank that has ended does not end the others.
    let ids = scene.core.place_gang(&[("a", "c0", 2), ("b", "c1", 2)]);
    let mut pods = Vec::new();
    for id in &ids {
        pods.push(scene.runs(id).await);
    }
    scene.set_status(&pods[0], &sidecar());
    scene.set_status(&pods[0], &ended(0));
    scene.has_ended(&ids[0]).await;
    assert!(scene.pod_of(&ids[0]).unwrap().object["metadata"]["deletionTimestamp"].is_null());
    scene.exits(&ids[1], 0).await;
    scene.deleted_with_less(&ids[0], 11).await;
    scene.finish_deletion(&ids[0]);
    scene.is_empty().await;
}

#[tokio::test]
async fn jobs_of_another_installation_are_left_alone_and_strays_of_ours_are_deleted() {
    let scene = Scene::with_nodes(&[("a", 8)]).await;
    let id = scene.core.place("a", "c", 2);
    scene.runs(&id).await;
    let job = scene.job();
    let other = "ffffffff-0000-0000-0000-000000000000";
    let theirs = copy(&job, "theirs", &other.into());
    scene.api.create("batch/v1/jobs", "default", theirs);
    // Their pod is one of others: it holds its slots.
    scene.has_slots("a", 6).await;
    let stray = copy(&job, "stray", &scene.settings.cluster_id);
    scene.api.create("batch/v1/jobs", "default", stray);
    // One that is not the master's is not the master's to delete.
    let mut forged = copy(&job, "forged", &scene.settings.cluster_id);
    forged["metadata"]["annotations"]["determined.ai/seal"] = "00".into();
    scene.api.create("batch/v1/jobs", "default", forged);
    let is_gone = |objects: &det_kube_double::Objects<'_>| {
        objects.get("batch/v1/jobs", "default", "stray").is_none()
    };
    scene.api.until("the stray Job is deleted", is_gone).await;
    scene.exits(&id, 0).await;
    scene.is_quiet("a").await;
    for name in ["theirs", "forged"] {
        let left = scene.api.get("batch/v1/jobs", "default", name);
        assert!(left.is_some(), "{name}");
    }
}

#[tokio::test]
async fn a_job_in_the_namespace_of_a_pool_takes_over_no_container_at_a_restart() {
    let mut scene = Scene::with_nodes(&[("a", 4)]).await;
    let id = scene.core.place("a", "c", 2);
    let own = scene.runs(&id).await;
    let job = scene.job();
    scene.stop().await;
    // It is listed before the true Job, and has the record and the seal of that one.
    let mut forged = copy(&job, "aaa", &scene.settings.cluster_id);
    forged["metadata"]["annotations"] = job["metadata"]["annotations"].clone();
    scene.api.create("batch/v1/jobs", "default", forged);
    scene.begin();
    // Its pod ends well at once.
    let is_of_forged =
        |pod: &Value| pod["metadata"]["labels"]["batch.kubernetes.io/job-name"] == "aaa";
    let pods = scene.api.list("v1/pods", "default");
    let pod = pods.into_iter().find(is_of_forged).unwrap();
    let exit = det_taskspec::ContainerExit::Exited { code: 0 };
    let (namespace, name) = named(&pod);
    let status = crate::support::terminated(&exit);
    scene.api.set_pod_status(&namespace, &name, &status);
    scene.is_quiet("a").await;
    assert!(!scene.core.row(&id).ended);
    let exit = det_taskspec::ContainerExit::Exited { code: 3 };
    scene.set_status(&own, &crate::support::terminated(&exit));
    assert_eq!(scene.has_ended(&id).await, exit);
    assert_eq!(scene.core.row(&id).starts, 1);
}

#[tokio::test]
async fn a_pod_that_others_make_with_our_labels_is_of_no_container() {
    let scene = Scene::with_nodes(&[("a", 4)]).await;
    let id = scene.core.place("a", "c", 2);
    let pod = scene.runs(&id).await;
    let mut forged = pod.object.clone();
    forged["metadata"] = json!({
        "name": "forged",
        "labels": pod.object["metadata"]["labels"],
        "annotations": pod.object["metadata"]["annotations"],
    });
    scene.api.create("v1/pods", &pod.namespace, forged);
    let exit = det_taskspec::ContainerExit::Exited { code: 0 };
    let status = crate::support::terminated(&exit);
    scene.api.set_pod_status(&pod.namespace, "forged", &status);
    scene.is_quiet("a").await;
    assert!(!scene.core.row(&id).ended);
    scene.api.delete("v1/pods", &pod.namespace, "forged");
    scene.exits(&id, 3).await;
}

#[tokio::test]
async fn jobs_that_others_make_with_our_labels_take_over_no_container() {
    let scene = Scene::with_nodes(&[("a", 4)]).await;
    let id = scene.core.place("a", "c", 2);
    scene.runs(&id).await;
    let job = scene.job();
    let elsewhere = json!({"metadata": {"name": "elsewhere"}});
    scene.api.create("v1/namespaces", "", elsewhere);
    // One in a namespace that is none of the manager's, and one beside the true one.
    let forged = [("far", "elsewhere"), ("near", "default")];
    for (name, namespace) in forged {
        let mut forged = copy(&job, name, &scene.settings.cluster_id);
        forged["metadata"]["annotations"] = job["metadata"]["annotations"].clone();
        forged["spec"]["suspend"] = true.into();
        scene.api.create("batch/v1/jobs", namespace, forged);
    }
    scene.is_quiet("a").await;
    assert!(!scene.core.row(&id).ended);
    scene.exits(&id, 0).await;
    assert_eq!(scene.core.row(&id).starts, 1);
    for (name, namespace) in forged {
        assert!(scene.api.get("batch/v1/jobs", namespace, name).is_some());
    }
}

#[tokio::test]
async fn a_job_in_the_namespace_of_another_workspace_takes_over_no_container_at_a_restart() {
    let mut scene = Scene::with_nodes(&[("a", 4)]).await;
    let id = scene.core.place("a", "c", 2);
    scene.runs(&id).await;
    let job = scene.job();
    // It is listed before that of the true Job.
    let name = "a-workspace".to_owned();
    let theirs = json!({"metadata": {"name": name}});
    scene.api.create("v1/namespaces", "", theirs);
    let made = false;
    scene
        .core
        .put_in_namespace("theirs", PlacedNamespace { name, made });
    let other = scene.core.place("a", "theirs", 1);
    scene.runs(&other).await;
    scene.stop().await;
    let mut forged = copy(&job, "forged", &scene.settings.cluster_id);
    forged["metadata"]["annotations"] = job["metadata"]["annotations"].clone();
    forged["spec"]["suspend"] = true.into();
    scene.api.create("batch/v1/jobs", "a-workspace", forged);
    scene.begin();
    scene.exits(&id, 0).await;
    scene.exits(&other, 0).await;
    assert_eq!(scene.core.row(&id).starts, 1);
    let forged = scene.api.get("batch/v1/jobs", "a-workspace", "forged");
    assert!(forged.is_some(), "it is not ours to delete");
}

#[tokio::test]
async fn a_job_of_ours_without_a_record_is_left_alone() {
    let scene = Scene::with_nodes(&[("a", 4)]).await;
    let id = scene.core.place("a", "c", 2);
    scene.runs(&id).await;
    let mut odd = copy(&scene.job(), "odd", &scene.settings.cluster_id);
    odd["metadata"]["annotations"] = json!({"determined.ai/containers": "{"});
    scene.api.create("batch/v1/jobs", "default", odd);
    scene.exits(&id, 0).await;
    scene.has_slots("a", 2).await;
    scene.is_quiet("a").await;
    assert!(scene.api.get("batch/v1/jobs", "default", "odd").is_some());
}

#[tokio::test]
async fn a_job_that_was_deleted_while_its_secret_had_no_owner_is_not_made_again() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    scene.api.faults().fail_next("PATCH", "secrets", 503, 3);
    let id = scene.core.place("a", "c", 2);
    scene.runs(&id).await;
    let (namespace, name) = named(&scene.job());
    scene.api.delete("batch/v1/jobs", &namespace, &name);
    scene.deleted_with_less(&id, i64::MAX).await;
    scene.finish_deletion(&id);
    scene.is_lost(&id).await;
    scene.is_empty().await;
    let jobs = scene.calls().into_iter().filter(|call| call == "POST jobs");
    assert_eq!(jobs.count(), 1);
}
