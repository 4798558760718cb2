//! Allocations of several containers.

use det_lifecycle::container::DesiredState;
use det_rm_contract::TestCore;
use det_taskspec::ContainerExit;

use crate::support::{Scene, containers_of, terminated};

/// Nodes of a Job's pods by completion index.
fn nodes_of(scene: &Scene, job: &serde_json::Value) -> Vec<String> {
    let pods = containers_of(job).into_iter();
    let nodes = pods.map(|id| scene.pod_of(&id).unwrap().node().unwrap().to_owned());
    nodes.collect()
}

#[tokio::test]
async fn the_ranks_of_two_nodes_are_one_job_whose_pods_go_to_their_nodes() {
    let scene = Scene::with_nodes(&[("a", 4), ("b", 4)]).await;
    // A scheduler that chose by itself would take node "a" for rank 0.
    let ids = scene.core.place_gang(&[("b", "c0", 4), ("a", "c1", 4)]);
    for id in &ids {
        scene.has_node(id).await;
    }
    scene.was_asked("PATCH secrets", 1).await;
    let job = scene.job();
    assert_eq!(job["spec"]["completions"], 2);
    assert_eq!(containers_of(&job), ids);
    assert_eq!(nodes_of(&scene, &job), ["b", "a"]);
    for kind in ["v1/secrets", "v1/services"] {
        let objects = scene.api.list(kind, "");
        assert_eq!(objects.len(), 1, "{kind}");
        let owners = &objects[0]["metadata"]["ownerReferences"];
        assert_eq!(owners[0]["uid"], job["metadata"]["uid"], "{kind}");
    }
    let secret = &scene.api.list("v1/secrets", "")[0];
    let keys: Vec<&String> = secret["data"].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["task-0.json", "task-1.json"]);
    for id in &ids {
        scene.runs(id).await;
    }
    for id in &ids {
        scene.exits(id, 0).await;
    }
    scene.is_empty().await;
    scene.is_quiet("a").await;
}

#[tokio::test]
async fn three_nodes_of_which_one_is_used_twice_have_their_ranks_in_order() {
    let scene = Scene::with_nodes(&[("a", 4), ("b", 2), ("d", 2)]).await;
    let ids = scene.core.place_gang(&[
        ("d", "c0", 2),
        ("a", "c1", 2),
        ("b", "c2", 2),
        ("a", "c3", 2),
    ]);
    for id in &ids {
        scene.runs(id).await;
    }
    assert_eq!(nodes_of(&scene, &scene.job()), ["d", "a", "b", "a"]);
}

#[tokio::test]
async fn nothing_is_created_while_the_specification_of_one_rank_is_missing() {
    let scene = Scene::with_nodes(&[("a", 4)]).await;
    let ids = scene.core.place_gang(&[("a", "c0", 2), ("b", "c1", 2)]);
    let is_asked = |core: &TestCore| core.row(&ids[0]).starts == 1;
    scene.core.until("rank 0 is to start", is_asked).await;
    scene.is_quiet("a").await;
    assert!(!scene.calls().iter().any(|call| call == "POST services"));
    scene.api.add_node("b", 2);
    for id in &ids {
        scene.runs(id).await;
    }
    assert_eq!(scene.core.row(&ids[0]).starts, 1);
    assert_eq!(scene.core.row(&ids[1]).starts, 1);
}

#[tokio::test]
async fn a_rank_whose_place_leaves_while_it_waits_is_started_again_with_the_others() {
    let scene = Scene::with_nodes(&[("a", 4)]).await;
    let ids = scene.core.place_gang(&[("a", "c0", 2), ("b", "c1", 2)]);
    let is_asked = |core: &TestCore| core.row(&ids[0]).starts == 1;
    scene.core.until("rank 0 is to start", is_asked).await;
    scene.api.set_node_ready("a", false);
    scene.has_left("a").await;
    scene.api.add_node("b", 2);
    scene.has_slots("b", 2).await;
    let is_asked = |core: &TestCore| core.row(&ids[1]).starts == 1;
    scene.core.until("rank 1 is to start", is_asked).await;
    scene.is_quiet("b").await;
    scene.api.set_node_ready("a", true);
    for id in &ids {
        scene.runs(id).await;
    }
    scene.job();
}

#[tokio::test]
async fn a_rank_that_is_ended_while_it_waits_for_the_others_has_no_objects() {
    let scene = Scene::with_nodes(&[("a", 4)]).await;
    let ids = scene.core.place_gang(&[("a", "c0", 2), ("b", "c1", 2)]);
    let is_asked = |core: &TestCore| core.row(&ids[0]).starts == 1;
    scene.core.until("rank 0 is to start", is_asked).await;
    scene.core.want(&ids[0], DesiredState::Kill);
    assert_eq!(scene.has_ended(&ids[0]).await, ContainerExit::Killed);
    assert!(scene.calls().is_empty());
}

#[tokio::test]
async fn a_rank_that_fails_ends_the_others_as_killed() {
    let scene = Scene::with_nodes(&[("a", 2), ("b", 2), ("d", 2)]).await;
    let ids = scene
        .core
        .place_gang(&[("a", "c0", 2), ("b", "c1", 2), ("d", "c2", 2)]);
    for id in &ids {
        scene.runs(id).await;
    }
    scene.exits(&ids[1], 3).await;
    // Kubernetes ends the pods of a Job that has failed.
    for id in [&ids[0], &ids[2]] {
        scene.deleted_with_less(id, i64::MAX).await;
        let pod = scene.pod_of(id).unwrap();
        let signal = ContainerExit::Signaled {
            signal: 15,
            out_of_memory: false,
        };
        scene.set_status(&pod, &terminated(&signal));
        scene.finish_deletion(id);
        assert_eq!(scene.has_ended(id).await, ContainerExit::Killed);
    }
    scene.is_empty().await;
}

#[tokio::test]
async fn ranks_that_are_gone_without_a_report_after_one_failed_are_killed() {
    let scene = Scene::with_nodes(&[("a", 2), ("b", 2)]).await;
    let ids = scene.core.place_gang(&[("a", "c0", 2), ("b", "c1", 2)]);
    for id in &ids {
        scene.runs(id).await;
    }
    scene.exits(&ids[1], 1).await;
    scene.deleted_with_less(&ids[0], i64::MAX).await;
    scene.finish_deletion(&ids[0]);
    assert_eq!(scene.has_ended(&ids[0]).await, ContainerExit::Killed);
}

#[tokio::test]
async fn uneven_sizes_are_two_jobs_that_own_secret_and_service_together() {
    let scene = Scene::with_nodes(&[("a", 4), ("b", 2)]).await;
    let ids = scene.core.place_gang(&[("a", "c0", 4), ("b", "c1", 2)]);
    for id in &ids {
        scene.runs(id).await;
    }
    scene.was_asked("PATCH secrets", 1).await;
    let jobs = scene.api.list("batch/v1/jobs", "");
    let names: Vec<&str> = jobs
        .iter()
        .map(|job| job["metadata"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(names.len(), 2);
    assert_eq!(names[1], format!("{}-r", names[0]));
    for kind in ["v1/secrets", "v1/services"] {
        let objects = scene.api.list(kind, "");
        assert_eq!(objects.len(), 1, "{kind}");
        let owners = objects[0]["metadata"]["ownerReferences"]
            .as_array()
            .unwrap();
        let owners: Vec<_> = owners.iter().map(|owner| &owner["uid"]).collect();
        let uids: Vec<_> = jobs.iter().map(|job| &job["metadata"]["uid"]).collect();
        assert_eq!(owners, uids, "{kind}");
    }
    // A Job that fails does not end the other: the core does.
    scene.exits(&ids[0], 1).await;
    scene.is_killed(&ids[1]).await;
    scene.is_empty().await;
}

#[tokio::test]
async fn what_is_ended_while_its_objects_are_made_leaves_nothing() {
    let scene = Scene::with_nodes(&[("a", 2), ("b", 2)]).await;
    scene.api.faults().delay_writes(true);
    let ids = scene.core.place_gang(&[("a", "c0", 2), ("b", "c1", 2)]);
    scene.was_asked("POST secrets", 1).await;
    for id in &ids {
        scene.core.want(id, DesiredState::Kill);
    }
    scene.api.faults().delay_writes(false);
    for id in &ids {
        assert_eq!(scene.has_ended(id).await, ContainerExit::Killed);
    }
    scene.is_empty().await;
    scene.is_quiet("a").await;
    scene.is_empty().await;
}

#[tokio::test]
async fn what_is_ended_while_its_job_is_delayed_leaves_nothing() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    scene.api.faults().fail_next("POST", "jobs", 503, 1_000);
    let id = scene.core.place("a", "c", 2);
    scene.was_asked("POST jobs", 2).await;
    scene.core.want(&id, DesiredState::Kill);
    assert_eq!(scene.has_ended(&id).await, ContainerExit::Killed);
    scene.is_empty().await;
}

#[tokio::test]
async fn what_is_ended_when_its_job_exists_already_is_killed() {
    let scene = Scene::with_nodes(&[("a", 2), ("b", 2)]).await;
    scene.api.faults().fail_next("POST", "services", 503, 1_000);
    let ids = scene.core.place_gang(&[("a", "c0", 2), ("b", "c1", 2)]);
    scene.was_asked("POST services", 1).await;
    scene.core.want(&ids[0], DesiredState::Kill);
    scene.core.want(&ids[1], DesiredState::Kill);
    for id in &ids {
        let is_deleted = |objects: &det_kube_double::Objects<'_>| {
            let pods = objects.list("v1/pods", "").into_iter();
            let mut running = pods.filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
            running.next().is_none()
        };
        scene.api.until("no pod is to run", is_deleted).await;
        scene.finish_deletion(id);
    }
    for id in &ids {
        assert_eq!(scene.has_ended(id).await, ContainerExit::Killed);
    }
    scene.is_empty().await;
}

#[tokio::test]
async fn all_ranks_are_killed_while_they_run() {
    let scene = Scene::with_nodes(&[("a", 2), ("b", 2)]).await;
    let ids = scene.core.place_gang(&[("a", "c0", 2), ("b", "c1", 2)]);
    for id in &ids {
        scene.runs(id).await;
    }
    for id in &ids {
        scene.core.want(id, DesiredState::Kill);
    }
    for id in &ids {
        scene.deleted_with_less(id, i64::MAX).await;
        scene.finish_deletion(id);
        assert_eq!(scene.has_ended(id).await, ContainerExit::Killed);
    }
    scene.is_empty().await;
}

#[tokio::test]
async fn a_rank_that_failed_while_nothing_was_watched_ends_the_others_as_killed() {
    let scene = Scene::with_nodes(&[("a", 2), ("b", 2)]).await;
    let ids = scene.core.place_gang(&[("a", "c0", 2), ("b", "c1", 2)]);
    for id in &ids {
        scene.runs(id).await;
    }
    scene.api.faults().drop_watches();
    let failed = ContainerExit::Exited { code: 1 };
    scene.set_status(&scene.pod_of(&ids[1]).unwrap(), &terminated(&failed));
    // The pod of rank 0 is listed first, and has been ended because rank 1 had failed.
    let signal = ContainerExit::Signaled {
        signal: 15,
        out_of_memory: false,
    };
    scene.set_status(&scene.pod_of(&ids[0]).unwrap(), &terminated(&signal));
    scene.api.faults().compact();
    assert_eq!(scene.has_ended(&ids[0]).await, ContainerExit::Killed);
    assert_eq!(scene.has_ended(&ids[1]).await, failed);
}
