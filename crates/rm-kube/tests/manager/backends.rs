//! What starts the pods of gangs together in place of the master.

use std::time::Duration;

use det_kube_double::{ApiDouble, Controllers, Objects};
use det_rm::Health;
use det_rm_contract::TestCore;
use det_rm_kube::{GroupApi, Scheduler};
use serde_json::json;

use crate::support::{Scene, named};

/// A manager of two nodes with 4 GPUs each, in a cluster with one kind of custom resources.
async fn scene(scheduler: Scheduler, kind: Option<(&str, &str, &str)>) -> Scene {
    let api = ApiDouble::start().await;
    if let Some((group, version, plural)) = kind {
        api.add_kind(group, version, plural);
    }
    let scene = Scene::start_over(api, TestCore::default(), |settings| {
        settings.scheduler = scheduler;
        settings.start_within = Duration::from_secs(1);
    });
    for node in ["a", "b"] {
        scene.api.add_node(node, 4);
    }
    scene
}

async fn has_nodes(scene: &Scene) {
    for node in ["a", "b"] {
        scene.has_slots(node, 4).await;
    }
}

#[tokio::test]
async fn a_cluster_that_lacks_the_configured_scheduler_is_down_with_the_reason() {
    let queue = String::new();
    for (scheduler, what) in [
        (
            Scheduler::PodGroup(GroupApi::V1Beta1),
            "feature gates GenericWorkload",
        ),
        (
            Scheduler::Volcano {
                queue: queue.clone(),
            },
            "install Volcano",
        ),
        (Scheduler::Kueue { queue }, "install Kueue"),
    ] {
        let scene = scene(scheduler, None).await;
        let is_it =
            |health: &Health| matches!(health, Health::Down(reason) if reason.contains(what));
        scene.has_health(what, is_it).await;
    }
}

#[tokio::test]
async fn a_gang_has_a_pod_group_of_the_version_that_the_cluster_has() {
    for (group, version) in [
        ("scheduling.k8s.io", "v1beta1"),
        ("scheduling.k8s.io", "v1alpha2"),
        ("scheduling.volcano.sh", "v1beta1"),
    ] {
        let is_volcano = group.contains("volcano");
        let scheduler = if is_volcano {
            Scheduler::Volcano {
                queue: "q".to_owned(),
            }
        } else {
            Scheduler::PodGroup(GroupApi::V1Beta1)
        };
        let scene = scene(scheduler, Some((group, version, "podgroups"))).await;
        has_nodes(&scene).await;
        // Written once with a failure, as everything else that is made.
        scene.api.faults().fail_next("POST", "podgroups", 503, 1);
        let ids = scene.core.place_gang(&[("a", "c0", 4), ("b", "c1", 4)]);
        scene.was_asked("PATCH secrets", 1).await;
        let groups = scene.api.list(&format!("{group}/{version}/podgroups"), "");
        assert_eq!(groups.len(), 1, "{group}/{version}");
        let job = scene.job();
        assert_eq!(named(&groups[0]), named(&job));
        let owner = &groups[0]["metadata"]["ownerReferences"][0];
        assert_eq!(owner["uid"], job["metadata"]["uid"]);
        assert_eq!(groups[0]["spec"]["priorityClassName"], "determined-p42");
        let template = &job["spec"]["template"];
        if is_volcano {
            assert_eq!(template["spec"]["schedulerName"], "volcano");
            assert_eq!(groups[0]["spec"]["minMember"], 2);
            continue;
        }
        let gang = &groups[0]["spec"]["schedulingPolicy"]["gang"];
        assert_eq!(*gang, json!({"minCount": 2}));
        for id in &ids {
            scene.runs(id).await;
            scene.exits(id, 0).await;
        }
        scene.is_empty().await;
        let kind = format!("{group}/{version}/podgroups");
        let is_gone = |objects: &Objects<'_>| objects.list(&kind, "").is_empty();
        scene.api.until("its group is deleted", is_gone).await;
    }
}

#[tokio::test]
async fn a_job_of_kueue_waits_as_long_as_kueue_wants() {
    let scheduler = Scheduler::Kueue {
        queue: String::new(),
    };
    let scene = scene(
        scheduler,
        Some(("kueue.x-k8s.io", "v1beta1", "localqueues")),
    )
    .await;
    has_nodes(&scene).await;
    let id = scene.core.place("a", "c", 4);
    scene.is_assigned(&id).await;
    let (namespace, name) = named(&scene.job());
    let is_noted = |core: &TestCore| {
        let notes = core.notes(&id);
        notes
            .iter()
            .any(|it| it.contains("in the LocalQueue \"default\" until Kueue resumes it"))
    };
    scene
        .core
        .until("its task's log has a line", is_noted)
        .await;
    assert!(scene.api.list("v1/pods", "").is_empty());
    // A later task is resumed and not assigned: the time in which Kubernetes must start pods is over, also for the first.
    scene.api.set_controllers(Controllers {
        scheduler: false,
        ..Controllers::default()
    });
    let later = scene.core.place("b", "d", 4);
    let job = scene.new_job("b", &[]).await;
    let resumed = json!({"spec": {"suspend": false}});
    scene
        .api
        .patch("batch/v1/jobs", &namespace, &named(&job).1, &resumed);
    scene.has_pod(&later).await;
    let reason = scene.is_lost(&later).await;
    assert!(reason.contains("did not assign its pod"), "{reason}");
    assert_eq!(scene.core.row(&id).exit(), None);
    scene.api.set_controllers(Controllers::default());
    scene.api.patch(
        "batch/v1/jobs",
        &namespace,
        &name,
        &json!({"spec": {"suspend": false}}),
    );
    scene.runs(&id).await;
    // Kueue takes the quota back: the attempt is lost, and its task is not charged.
    scene.api.patch(
        "batch/v1/jobs",
        &namespace,
        &name,
        &json!({"spec": {"suspend": true}}),
    );
    scene.deleted_with_less(&id, i64::MAX).await;
    scene.finish_deletion(&id);
    scene.is_lost(&id).await;
    scene.is_empty().await;
}

#[tokio::test]
async fn a_job_that_kueue_has_not_resumed_can_be_killed() {
    let scheduler = Scheduler::Kueue {
        queue: "team".to_owned(),
    };
    let scene = scene(
        scheduler,
        Some(("kueue.x-k8s.io", "v1beta2", "localqueues")),
    )
    .await;
    has_nodes(&scene).await;
    let id = scene.core.place("a", "c", 4);
    scene.is_assigned(&id).await;
    let labels = scene.job()["metadata"]["labels"].clone();
    assert_eq!(labels["kueue.x-k8s.io/queue-name"], "team");
    scene
        .core
        .want(&id, det_lifecycle::container::DesiredState::Kill);
    assert_eq!(
        scene.has_ended(&id).await,
        det_taskspec::ContainerExit::Killed
    );
    scene.is_empty().await;
}

#[tokio::test]
async fn without_a_gang_scheduler_kubernetes_chooses_the_nodes() {
    let scene = scene(Scheduler::None, None).await;
    has_nodes(&scene).await;
    // The master counted on "b"; the scheduler of the double takes the first node that fits.
    let id = scene.core.place("b", "c", 4);
    assert_eq!(scene.runs(&id).await.node(), Some("a"));
    let ids = scene.core.place_gang(&[("a", "d", 2), ("a", "e", 2)]);
    for id in &ids {
        assert_eq!(scene.runs(id).await.node(), Some("b"));
    }
    for id in ids.iter().chain([&id]) {
        scene.exits(id, 0).await;
    }
    scene.is_empty().await;
}
