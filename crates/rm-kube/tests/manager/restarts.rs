//! Managers that end and begin again, wherever a task has come to.

use det_kube_double::{Controllers, Objects};
use det_lifecycle::container::DesiredState;
use det_rm::Health;
use det_taskspec::ContainerExit;

use crate::support::{Scene, terminated};

/// The manager begins again, and serves node "a".
async fn begin(scene: &mut Scene) {
    scene.core.restart();
    scene.begin();
    scene.has_slots("a", 2).await;
}

async fn restart(scene: &mut Scene) {
    scene.stop().await;
    begin(scene).await;
}

#[tokio::test]
async fn before_anything_exists() {
    let mut scene = Scene::with_nodes(&[("a", 2)]).await;
    let faults = scene.api.faults();
    faults.forbid("create", "", "secrets", Some("*"));
    let id = scene.core.place("a", "c", 2);
    scene.was_asked("POST secrets", 1).await;
    restart(&mut scene).await;
    faults.allow_all();
    scene.runs(&id).await;
    scene.exits(&id, 0).await;
    scene.is_empty().await;
}

#[tokio::test]
async fn when_the_secret_exists_and_the_job_does_not() {
    let mut scene = Scene::with_nodes(&[("a", 2)]).await;
    let faults = scene.api.faults();
    faults.forbid("create", "batch", "jobs", Some("*"));
    let id = scene.core.place("a", "c", 2);
    scene.was_asked("POST jobs", 1).await;
    assert_eq!(scene.api.list("v1/secrets", "").len(), 1);
    restart(&mut scene).await;
    faults.allow_all();
    scene.runs(&id).await;
    scene.job();
    assert_eq!(scene.api.list("v1/secrets", "").len(), 1);
    assert_eq!(scene.core.row(&id).starts, 2);
    scene.exits(&id, 0).await;
    scene.is_empty().await;
}

#[tokio::test]
async fn when_the_secret_exists_and_its_task_ends_without_a_job() {
    let mut scene = Scene::with_nodes(&[("a", 2)]).await;
    let faults = scene.api.faults();
    faults.forbid("create", "batch", "jobs", Some("*"));
    let id = scene.core.place("a", "c", 2);
    scene.was_asked("POST jobs", 1).await;
    scene.stop().await;
    assert_eq!(scene.api.list("v1/secrets", "").len(), 1);
    faults.allow_all();
    // One of another owner with the label of the cluster stays.
    let theirs = serde_json::json!({"metadata": {"name": "theirs", "labels": {
        "determined.ai/cluster_id": "0a1b2c3d-0000-0000-0000-000000000000",
    }}});
    scene.api.create("v1/secrets", "default", theirs);
    scene.core.want(&id, DesiredState::Kill);
    begin(&mut scene).await;
    let is_theirs = |objects: &Objects<'_>| {
        let left = objects.list("v1/secrets", "");
        left.len() == 1 && left[0]["metadata"]["name"] == "theirs"
    };
    scene
        .api
        .until("nothing is left of the task", is_theirs)
        .await;
    assert!(scene.core.row(&id).ended);
}

#[tokio::test]
async fn when_the_job_exists_and_does_not_own_its_secret() {
    let mut scene = Scene::with_nodes(&[("a", 2)]).await;
    let faults = scene.api.faults();
    faults.forbid("patch", "", "secrets", Some("*"));
    let id = scene.core.place("a", "c", 2);
    scene.runs(&id).await;
    restart(&mut scene).await;
    faults.allow_all();
    scene.exits(&id, 0).await;
    assert_eq!(scene.core.row(&id).starts, 1);
    scene.is_empty().await;
}

#[tokio::test]
async fn when_the_job_exists_and_has_no_pod() {
    let mut scene = Scene::with_nodes(&[("a", 2)]).await;
    scene.api.set_controllers(Controllers {
        jobs: false,
        ..Controllers::default()
    });
    let id = scene.core.place("a", "c", 2);
    scene.was_asked("PATCH secrets", 1).await;
    scene.is_assigned(&id).await;
    restart(&mut scene).await;
    scene.api.set_controllers(Controllers::default());
    scene.runs(&id).await;
    scene.exits(&id, 0).await;
    assert_eq!(scene.core.row(&id).starts, 1);
    scene.is_empty().await;
}

#[tokio::test]
async fn when_a_gang_waits_for_its_gates() {
    let mut scene = Scene::with_nodes(&[("a", 2), ("b", 2)]).await;
    let faults = scene.api.faults();
    faults.forbid("patch", "", "pods", Some("*"));
    let ids = scene.core.place_gang(&[("b", "c0", 2), ("a", "c1", 2)]);
    scene.was_asked("PATCH pods", 2).await;
    restart(&mut scene).await;
    faults.allow_all();
    let nodes = ["b", "a"];
    for (id, node) in ids.iter().zip(nodes) {
        assert_eq!(scene.runs(id).await.node(), Some(node));
    }
    for id in &ids {
        scene.exits(id, 0).await;
        assert_eq!(scene.core.row(id).starts, 1);
    }
    scene.is_empty().await;
}

#[tokio::test]
async fn while_it_runs() {
    let mut scene = Scene::with_nodes(&[("a", 2)]).await;
    let id = scene.core.place("a", "c", 2);
    scene.runs(&id).await;
    scene.was_asked("PATCH secrets", 1).await;
    let writes = scene.calls().len();
    restart(&mut scene).await;
    assert_eq!(scene.calls().len(), writes);
    scene.exits(&id, 4).await;
    assert_eq!(scene.core.row(&id).starts, 1);
    scene.is_empty().await;
}

#[tokio::test]
async fn while_it_ends() {
    let mut scene = Scene::with_nodes(&[("a", 2)]).await;
    let id = scene.core.place("a", "c", 2);
    scene.runs(&id).await;
    scene.core.want(&id, DesiredState::Kill);
    scene.deleted_with_less(&id, 11).await;
    restart(&mut scene).await;
    scene.finish_deletion(&id);
    assert_eq!(scene.has_ended(&id).await, ContainerExit::Killed);
    scene.is_empty().await;
}

#[tokio::test]
async fn after_it_has_ended() {
    let mut scene = Scene::with_nodes(&[("a", 2)]).await;
    let id = scene.core.place("a", "c", 2);
    let pod = scene.runs(&id).await;
    scene.stop().await;
    let exit = ContainerExit::Exited { code: 6 };
    scene.set_status(&pod, &terminated(&exit));
    begin(&mut scene).await;
    assert_eq!(scene.has_ended(&id).await, exit);
    scene.is_empty().await;
}

#[tokio::test]
async fn after_its_pod_was_deleted() {
    let mut scene = Scene::with_nodes(&[("a", 2)]).await;
    let id = scene.core.place("a", "c", 2);
    let pod = scene.runs(&id).await;
    scene.stop().await;
    scene.api.delete("v1/pods", &pod.namespace, &pod.name);
    scene.finish_deletion(&id);
    begin(&mut scene).await;
    scene.is_lost(&id).await;
    scene.is_empty().await;
}

#[tokio::test]
async fn after_its_job_was_deleted() {
    let mut scene = Scene::with_nodes(&[("a", 2)]).await;
    let id = scene.core.place("a", "c", 2);
    scene.runs(&id).await;
    scene.stop().await;
    let (namespace, name) = crate::support::named(&scene.job());
    scene.api.delete("batch/v1/jobs", &namespace, &name);
    scene.finish_deletion(&id);
    begin(&mut scene).await;
    let has_ended = |core: &det_rm_contract::TestCore| core.row(&id).ended;
    scene.core.until("the container is lost", has_ended).await;
    scene.is_empty().await;
}

#[tokio::test]
async fn when_it_is_forgotten_and_its_job_is_not_deleted() {
    let mut scene = Scene::with_nodes(&[("a", 2)]).await;
    let faults = scene.api.faults();
    let id = scene.core.place("a", "c", 2);
    scene.runs(&id).await;
    faults.forbid("delete", "batch", "jobs", Some("*"));
    scene.exits(&id, 0).await;
    scene.was_asked("DELETE jobs", 1).await;
    restart(&mut scene).await;
    scene.was_asked("DELETE jobs", 2).await;
    faults.allow_all();
    scene.is_empty().await;
    scene.has_health("the manager is up", Health::is_up).await;
}

#[tokio::test]
async fn when_its_row_went_while_the_manager_was_away() {
    let mut scene = Scene::with_nodes(&[("a", 2)]).await;
    let id = scene.core.place("a", "c", 2);
    scene.runs(&id).await;
    scene.stop().await;
    scene.core.remove(&id);
    begin(&mut scene).await;
    let is_gone = |objects: &Objects<'_>| objects.list("batch/v1/jobs", "").is_empty();
    scene.api.until("its Job is deleted", is_gone).await;
    scene.finish_deletion(&id);
    scene.is_empty().await;
}

#[tokio::test]
async fn jobs_are_left_to_kubernetes_where_that_is_configured() {
    let core = det_rm_contract::TestCore::default();
    let mut scene = Scene::start_with(core, |settings| settings.leaves_objects = true).await;
    scene.api.add_node("a", 2);
    scene.has_slots("a", 2).await;
    let id = scene.core.place("a", "c", 2);
    scene.runs(&id).await;
    scene.exits(&id, 0).await;
    restart(&mut scene).await;
    let next = scene.core.place("a", "d", 2);
    scene.runs(&next).await;
    assert_eq!(scene.api.list("batch/v1/jobs", "").len(), 2);
    assert!(!scene.calls().iter().any(|call| call == "DELETE jobs"));
}
