//! Jobs that earlier versions of the master made, and that run while it is upgraded.

use det_ids::{Micros, TaskId};
use det_kube_double::Objects;
use det_rm::LiveAttempt;
use det_rm_kube::Seal;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::support::{Scene, named};

const SEAL: &str = "determined.ai/seal";

/// The seal that the first version which sealed made of this Job.
fn former_seal(secret: &str, job: &Value) -> String {
    let (namespace, name) = named(job);
    let record = &job["metadata"]["annotations"]["determined.ai/containers"];
    let mut parts = Sha256::new();
    for part in [namespace.as_str(), &name, record.as_str().unwrap()] {
        parts.update(Sha256::digest(part.as_bytes()));
    }
    let sealed = Sha256::new()
        .chain_update(Sha256::digest(secret.as_bytes()))
        .chain_update(parts.finalize())
        .finalize();
    sealed.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn set_seal(scene: &Scene, job: &Value, seal: Option<&str>) {
    let (namespace, name) = named(job);
    let patch = json!({"metadata": {"annotations": {SEAL: seal}}});
    scene.api.patch("batch/v1/jobs", &namespace, &name, &patch);
}

#[tokio::test]
async fn a_job_with_the_former_seal_goes_on() {
    let mut scene = Scene::with_nodes(&[("a", 2)]).await;
    let id = scene.core.place("a", "c", 2);
    scene.runs(&id).await;
    scene.was_asked("PATCH secrets", 1).await;
    scene.stop().await;
    let job = scene.job();
    set_seal(&scene, &job, Some(&former_seal("secret", &job)));
    scene.core.restart();
    scene.begin();
    scene.has_slots("a", 2).await;
    assert!(!scene.core.row(&id).ended);
    scene.exits(&id, 4).await;
    assert_eq!(scene.core.row(&id).starts, 1);
    scene.is_empty().await;
}

#[tokio::test]
async fn a_job_without_a_seal_goes_on_if_it_is_older_and_its_attempt_has_not_ended() {
    let mut scene = Scene::with_nodes(&[("a", 4)]).await;
    let id = scene.core.place("a", "c", 2);
    scene.runs(&id).await;
    let ended = scene.core.place("a", "d", 2);
    scene.runs(&ended).await;
    scene.was_asked("PATCH secrets", 2).await;
    scene.stop().await;
    // Sealing begins with the upgrade: all Jobs that exist are older.
    scene.reconfigure(|settings| settings.seal = Seal::new("secret", "2999-01-01T00:00:00Z"));
    let jobs = scene.api.list("batch/v1/jobs", "");
    for job in &jobs {
        set_seal(&scene, job, None);
    }
    scene.core.remove(&ended);
    scene.core.restart();
    scene.begin();
    // The other one is not known to be the master's: what its pod holds is not the master's to give.
    scene.has_slots("a", 2).await;
    scene.exits(&id, 4).await;
    assert_eq!(scene.core.row(&id).starts, 1);
    let is_one = |objects: &Objects<'_>| objects.list("batch/v1/jobs", "").len() == 1;
    scene
        .api
        .until("the Job that ended is deleted", is_one)
        .await;
    let left = crate::support::container_of(&scene.job());
    assert_eq!(left, ended);
}

#[tokio::test]
async fn a_job_without_a_seal_is_not_of_an_attempt_that_was_placed_after_the_upgrade() {
    let mut scene = Scene::with_nodes(&[("a", 4)]).await;
    let id = scene.core.place("a", "c", 2);
    scene.runs(&id).await;
    scene.was_asked("PATCH secrets", 1).await;
    scene.stop().await;
    // A user has made it before the upgrade, for an attempt that was to come.
    scene.reconfigure(|settings| settings.seal = Seal::new("secret", "2999-01-01T00:00:00Z"));
    set_seal(&scene, &scene.job(), None);
    scene.core.want_namespaces(|wanted| {
        let later = LiveAttempt {
            namespace: None,
            // In the year 3000.
            placed_at: Some(Micros(32_503_680_000_000_000)),
            of: None,
        };
        wanted
            .in_use
            .insert(TaskId::from("task of c").allocation(1), later);
    });
    scene.core.restart();
    scene.begin();
    // What its pod holds is not the master's to give.
    scene.has_slots("a", 2).await;
    assert!(scene.core.row(&id).ended, "its container is lost");
    scene.is_quiet("a").await;
    assert_eq!(scene.api.list("batch/v1/jobs", "").len(), 1);
}

#[tokio::test]
async fn a_job_that_appears_after_the_upgrade_needs_the_seal() {
    let mut scene = Scene::with_nodes(&[("a", 8)]).await;
    let id = scene.core.place("a", "c", 2);
    scene.runs(&id).await;
    let job = scene.job();
    scene.stop().await;
    scene.reconfigure(|settings| settings.seal = Seal::new("secret", "2999-01-01T00:00:00Z"));
    scene.begin();
    scene.is_quiet("a").await;
    let record = &job["metadata"]["annotations"]["determined.ai/containers"];
    let record = record.as_str().unwrap();
    for (name, seal) in [("without", None), ("former", Some(()))] {
        let mut forged = job.clone();
        forged["metadata"] = json!({
            "name": name,
            "namespace": "default",
            "labels": job["metadata"]["labels"],
            "annotations": {"determined.ai/containers": record.replace("\"c\"", "\"x\"")},
        });
        if seal.is_some() {
            forged["metadata"]["annotations"][SEAL] = former_seal("secret", &forged).into();
        }
        forged["spec"].as_object_mut().unwrap().remove("selector");
        forged.as_object_mut().unwrap().remove("status");
        scene.api.create("batch/v1/jobs", "default", forged);
    }
    scene.is_quiet("a").await;
    scene.exits(&id, 0).await;
    scene.is_quiet("a").await;
    // What is not the master's is not deleted.
    assert_eq!(scene.api.list("batch/v1/jobs", "").len(), 2);
}
