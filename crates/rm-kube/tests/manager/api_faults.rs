//! An API that fails, refuses, or does not answer.

use det_rm::Health;
use det_rm_contract::TestCore;
use det_taskspec::ContainerExit;

use crate::support::{Scene, steps::text, terminated};

/// Answers after which the same request may succeed.
const PASSING: [u16; 5] = [401, 409, 429, 500, 503];

/// Starts and ends a gang for each kind of failure of this request; it fails twice.
async fn is_repeated(method: &str, plural: &str) {
    let scene = Scene::with_nodes(&[("a", 2), ("b", 2)]).await;
    for code in PASSING {
        let names = [format!("{code}-0"), format!("{code}-1")];
        scene.api.faults().fail_next(method, plural, code, 2);
        let ids = scene
            .core
            .place_gang(&[("a", &names[0], 2), ("b", &names[1], 2)]);
        for id in &ids {
            scene.runs(id).await;
        }
        scene.job();
        assert_eq!(scene.api.list("v1/secrets", "").len(), 1, "{code}");
        scene.is_killed(&ids[0]).await;
        // Kubernetes ends the pods of a Job that has failed.
        scene.deleted_with_less(&ids[1], i64::MAX).await;
        scene.finish_deletion(&ids[1]);
        assert_eq!(scene.has_ended(&ids[1]).await, ContainerExit::Killed);
        for id in &ids {
            assert_eq!(scene.core.row(id).starts, 1, "{code}");
        }
        scene.is_empty().await;
    }
    scene.has_health("the manager is up", Health::is_up).await;
}

#[tokio::test]
async fn a_secret_that_cannot_be_created_is_created_later() {
    is_repeated("POST", "secrets").await;
}

#[tokio::test]
async fn a_job_that_cannot_be_created_is_created_later() {
    is_repeated("POST", "jobs").await;
}

#[tokio::test]
async fn a_service_that_cannot_be_created_is_created_later() {
    is_repeated("POST", "services").await;
}

#[tokio::test]
async fn an_owner_that_cannot_be_noted_is_noted_later() {
    is_repeated("PATCH", "secrets").await;
}

#[tokio::test]
async fn a_gate_that_cannot_be_opened_is_opened_later() {
    is_repeated("PATCH", "pods").await;
}

#[tokio::test]
async fn a_pod_that_cannot_be_deleted_is_deleted_later() {
    is_repeated("DELETE", "pods").await;
}

#[tokio::test]
async fn a_job_that_cannot_be_deleted_is_deleted_later() {
    is_repeated("DELETE", "jobs").await;
}

#[tokio::test]
async fn answers_that_are_lost_lead_to_no_second_object() {
    for kind in ["v1/secrets", "batch/v1/jobs"] {
        let scene = Scene::with_nodes(&[("a", 2)]).await;
        let faults = scene.api.faults();
        faults.delay_writes(kind == "v1/secrets");
        let id = scene.core.place("a", "c", 2);
        let exists = |objects: &det_kube_double::Objects<'_>| !objects.list(kind, "").is_empty();
        scene.api.until("it exists", exists).await;
        faults.unreachable(true);
        faults.delay_writes(false);
        faults.unreachable(false);
        scene.runs(&id).await;
        scene.job();
        scene.exits(&id, 0).await;
        assert_eq!(scene.core.row(&id).starts, 1);
        scene.is_empty().await;
    }
}

#[tokio::test]
async fn a_cluster_that_is_away_for_a_while_is_down_and_comes_back_with_what_has_happened() {
    let scene = Scene::with_nodes(&[("a", 4)]).await;
    let running = scene.core.place("a", "c", 2);
    scene.runs(&running).await;
    scene.api.faults().unreachable(true);
    scene
        .has_health("the manager is down", |health| !health.is_up())
        .await;
    let pod = scene.pod_of(&running).unwrap();
    let exit = ContainerExit::Exited { code: 5 };
    scene.set_status(&pod, &terminated(&exit));
    let placed = scene.core.place("a", "d", 2);
    let is_asked = |core: &TestCore| core.row(&placed).starts == 1;
    scene.core.until("the other is to start", is_asked).await;
    scene.api.faults().unreachable(false);
    assert_eq!(scene.has_ended(&running).await, exit);
    scene.runs(&placed).await;
    scene.has_health("the manager is up", Health::is_up).await;
    scene.exits(&placed, 0).await;
    for id in [&running, &placed] {
        assert_eq!(scene.core.row(id).starts, 1);
    }
    scene.is_empty().await;
}

#[tokio::test]
async fn what_was_killed_while_the_cluster_was_away_is_killed_when_it_is_back() {
    let scene = Scene::with_nodes(&[("a", 4)]).await;
    let id = scene.core.place("a", "c", 2);
    scene.runs(&id).await;
    scene.api.faults().unreachable(true);
    scene
        .core
        .want(&id, det_lifecycle::container::DesiredState::Kill);
    scene
        .has_health("the manager is down", |health| !health.is_up())
        .await;
    scene.api.faults().unreachable(false);
    scene.is_killed(&id).await;
    scene.is_empty().await;
}

#[tokio::test]
async fn a_history_that_was_compacted_is_read_anew() {
    let scene = Scene::with_nodes(&[("a", 4)]).await;
    let ended = scene.core.place("a", "c", 2);
    let gone = scene.core.place("a", "d", 2);
    scene.runs(&ended).await;
    let pod = scene.runs(&gone).await;
    scene.api.faults().drop_watches();
    let exit = ContainerExit::Exited { code: 5 };
    scene.set_status(&scene.pod_of(&ended).unwrap(), &terminated(&exit));
    scene.api.delete("v1/pods", &pod.namespace, &pod.name);
    scene.finish_deletion(&gone);
    scene.api.faults().compact();
    assert_eq!(scene.has_ended(&ended).await, exit);
    scene.is_lost(&gone).await;
    scene.is_empty().await;
    scene.is_quiet("a").await;
    assert_eq!(scene.core.health("k"), Health::Up);
}

#[tokio::test]
async fn a_right_to_read_that_is_missing_makes_the_manager_down_with_the_text_of_the_api() {
    let scene = Scene::with_nodes(&[]).await;
    scene.api.add_node("a", 2);
    scene.has_slots("a", 2).await;
    let faults = scene.api.faults();
    for verb in ["list", "watch"] {
        faults.forbid(verb, "", "pods", None);
    }
    faults.drop_watches();
    let is_it = |health: &Health| {
        let Health::Down(reason) = health else {
            return false;
        };
        reason.contains("pods of the Kubernetes cluster cannot be watched")
            && reason.contains("cannot list resource \"pods\"")
    };
    scene.has_health("the manager is down", is_it).await;
    faults.allow_all();
    scene.has_health("the manager is up", Health::is_up).await;
    let id = scene.core.place("a", "c", 2);
    scene.runs(&id).await;
}

#[tokio::test]
async fn a_right_to_write_that_is_missing_degrades_the_manager_and_the_task_waits_for_it() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    let faults = scene.api.faults();
    faults.forbid("create", "batch", "jobs", Some("*"));
    let id = scene.core.place("a", "c", 2);
    let is_it = |health: &Health| {
        let Health::Degraded(reason) = health else {
            return false;
        };
        reason.contains("cannot create resource \"jobs\"")
    };
    scene.has_health("the manager is degraded", is_it).await;
    assert!(!scene.core.row(&id).ended);
    faults.allow_all();
    scene.runs(&id).await;
    scene
        .has_health("the manager is up", |health| *health == Health::Up)
        .await;
    assert_eq!(scene.core.row(&id).starts, 1);
}

#[tokio::test]
async fn objects_that_the_api_refuses_end_the_task_with_its_text() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    for code in [400, 403, 422] {
        scene.api.faults().fail_next("POST", "jobs", code, 1);
        let id = scene.core.place("a", &format!("c{code}"), 2);
        let exit = scene.has_ended(&id).await;
        assert!(
            matches!(exit, ContainerExit::StartFailed { .. }),
            "{exit:?}"
        );
        let expected = if code == 403 {
            "does not allow"
        } else {
            "rejected our request"
        };
        assert!(text(&exit).contains(expected), "{exit:?}");
        scene.is_empty().await;
    }
    assert_eq!(scene.core.health("k"), Health::Up);
}

#[tokio::test]
async fn what_the_api_writes_about_a_secret_is_not_shown() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    scene.api.faults().fail_next("POST", "secrets", 422, 1);
    let id = scene.core.place("a", "c", 2);
    let exit = scene.has_ended(&id).await;
    assert!(text(&exit).ends_with("a request for a Secret failed: 422 Invalid"));
}

#[tokio::test]
async fn a_gang_of_which_the_second_job_is_refused_leaves_nothing_of_the_first() {
    let scene = Scene::with_nodes(&[("a", 4), ("b", 2)]).await;
    scene.api.faults().fail_next("POST", "services", 422, 1);
    let ids = scene.core.place_gang(&[("a", "c0", 4), ("b", "c1", 2)]);
    scene.was_asked("POST services", 1).await;
    let is_deleted = |objects: &det_kube_double::Objects<'_>| {
        let pods = objects.list("v1/pods", "").into_iter();
        let mut running = pods.filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        running.next().is_none()
    };
    scene.api.until("no pod is to run", is_deleted).await;
    for id in &ids {
        scene.finish_deletion(id);
        let exit = scene.has_ended(id).await;
        assert!(
            matches!(exit, ContainerExit::StartFailed { .. }),
            "{exit:?}"
        );
    }
    scene.is_empty().await;
}

#[tokio::test]
async fn a_namespace_that_does_not_exist_is_named() {
    let change = |settings: &mut det_rm_kube::Settings| settings.namespace = "nowhere".to_owned();
    let scene = Scene::start_with(TestCore::default(), change).await;
    scene.api.add_node("a", 2);
    scene.has_slots("a", 2).await;
    let id = scene.core.place("a", "c", 2);
    let exit = scene.has_ended(&id).await;
    assert!(
        text(&exit).contains("namespaces \"nowhere\" not found"),
        "{exit:?}"
    );
}

#[tokio::test]
async fn objects_of_others_that_have_the_name_are_left_alone() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    let id = scene.core.place("a", "c", 2);
    scene.runs(&id).await;
    let (namespace, name) = crate::support::named(&scene.job());
    scene.exits(&id, 0).await;
    scene.is_empty().await;
    scene.core.remove(&id);
    let foreign = serde_json::json!({"metadata": {"name": name}, "data": {}});
    scene.api.create("v1/secrets", &namespace, foreign);
    let id = scene.core.place("a", "c", 2);
    let exit = scene.has_ended(&id).await;
    assert!(
        text(&exit).contains("is not of this allocation"),
        "{exit:?}"
    );
    assert!(scene.api.get("v1/secrets", &namespace, &name).is_some());
}
