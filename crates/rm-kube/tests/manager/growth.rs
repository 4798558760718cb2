//! Tasks that wait for the cluster to grow.

use std::collections::BTreeSet;
use std::time::Duration;

use det_ids::{AllocationId, WorkspaceId};
use det_kube_double::{Controllers, NodeGroup, Objects, scale_up};
use det_rm::{BoundNamespace, GrowthState, Share, WaitingGang};
use det_rm_contract::TestCore;
use det_rm_kube::{GrowthSettings, Settings};
use serde_json::{Value, json};

use crate::support::{Scene, named};

const GROUP: NodeGroup = NodeGroup {
    name: "n",
    gpus: 8,
    labels: &[],
    most: 4,
};
const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";

/// A task that takes so many slots of each of some nodes.
fn gang(id: &str, slots: &[u32]) -> WaitingGang {
    let share = |slots: &u32| Share {
        slots: *slots,
        containers: 1,
    };
    WaitingGang {
        allocation_id: id.into(),
        resource_pool: "default".to_owned(),
        workspace: None,
        shares: slots.iter().map(share).collect(),
        demands: None,
        excluded_places: BTreeSet::new(),
    }
}

fn grows(settings: &mut Settings) {
    settings.pools[0].growth = Some(GrowthSettings {
        max_pending_pods: 8,
        give_up_after: Duration::from_mins(15),
        image: "pause".to_owned(),
    });
}

/// A manager whose pool grows, of a cluster with these nodes of 8 GPUs.
async fn scene(nodes: &[&str]) -> Scene {
    let scene = Scene::start_with(TestCore::default(), grows).await;
    scene.api.set_controllers(Controllers {
        kubelets: true,
        ..Controllers::default()
    });
    for node in nodes {
        scene.api.add_node(node, 8);
    }
    for node in nodes {
        scene.has_slots(node, 8).await;
    }
    scene
}

fn is_placeholder(object: &Value) -> bool {
    !object["metadata"]["labels"]["determined.ai/placeholder"].is_null()
}

fn placeholders(objects: Objects<'_>, kind: &str) -> Vec<Value> {
    let mut found = objects.list(kind, "");
    found.retain(is_placeholder);
    found
}

/// There are so many placeholders, of which so many have nodes.
async fn has(scene: &Scene, pods: usize, placed: usize) {
    let has = |objects: &Objects<'_>| {
        let all = placeholders(*objects, "v1/pods");
        let on_nodes = all.iter().filter(|pod| pod["spec"]["nodeName"].is_string());
        all.len() == pods && on_nodes.count() == placed
    };
    let what = format!("{pods} placeholders, {placed} with nodes");
    scene.api.until(&what, has).await;
}

async fn is_asked(scene: &Scene, id: &str) {
    let id = AllocationId::from(id);
    let is = |core: &TestCore| matches!(core.growing.of(&id), Some(GrowthState::Asked { .. }));
    scene.core.until("the cluster is asked to grow", is).await;
}

/// The cluster is not asked for a task any more, for this reason.
async fn is_given_up(scene: &Scene, id: &str, why: &str) {
    let id = AllocationId::from(id);
    let is = |core: &TestCore| match core.growing.of(&id) {
        Some(GrowthState::GivenUp { reason, .. }) => reason.contains(why),
        _ => false,
    };
    scene.core.until(why, is).await;
}

#[tokio::test]
async fn a_gang_that_waits_gets_the_nodes_that_it_lacks_and_starts_on_them() {
    let scene = scene(&["a"]).await;
    scene.core.growing.wait(vec![gang("t.1", &[8, 8])]);
    // Of the two one fits the node that exists, and takes no slot of it.
    has(&scene, 2, 1).await;
    is_asked(&scene, "t.1").await;
    scene.has_slots("a", 8).await;
    assert_eq!(scale_up(&scene.api, GROUP), ["n1"]);
    has(&scene, 2, 2).await;
    scene.has_slots("n1", 8).await;
    assert!(scale_up(&scene.api, GROUP).is_empty());
    scene.core.growing.wait(Vec::new());
    let ids = scene.core.place_gang(&[("a", "c0", 8), ("n1", "c1", 8)]);
    for id in &ids {
        scene.has_node(id).await;
    }
    has(&scene, 0, 0).await;
    assert_eq!(scene.core.growing.of(&"t.1".into()), None);
    let pod = scene.pod_of(&ids[0]).unwrap().object;
    assert_eq!(pod["metadata"]["annotations"][SAFE_TO_EVICT], "false");
    assert!(scale_up(&scene.api, GROUP).is_empty());
}

#[tokio::test]
async fn placeholders_are_evictable_and_less_important_than_all_other_pods() {
    let scene = scene(&[]).await;
    scene.core.growing.wait(vec![gang("t.1", &[8])]);
    has(&scene, 1, 0).await;
    let pod = placeholders(scene.api.objects(), "v1/pods").remove(0);
    assert_eq!(pod["metadata"]["annotations"][SAFE_TO_EVICT], "true");
    assert_eq!(pod["spec"]["priority"], -10);
    assert_eq!(pod["spec"]["automountServiceAccountToken"], false);
    let class = scene.api.get(
        "scheduling.k8s.io/v1/priorityclasses",
        "",
        "determined-placeholder",
    );
    assert_eq!(class.unwrap()["preemptionPolicy"], "Never");
}

#[tokio::test]
async fn where_the_autoscaler_cannot_add_nodes_the_task_stops_asking() {
    let scene = scene(&["a"]).await;
    scene.core.growing.wait(vec![gang("t.1", &[8, 8])]);
    has(&scene, 2, 1).await;
    let full = NodeGroup { most: 1, ..GROUP };
    assert!(scale_up(&scene.api, full).is_empty());
    is_given_up(&scene, "t.1", "max node group size reached").await;
    has(&scene, 0, 0).await;
    // It does not begin again because something else changes.
    scene
        .core
        .growing
        .wait(vec![gang("t.1", &[8, 8]), gang("t.2", &[4])]);
    has(&scene, 1, 1).await;
}

#[tokio::test]
async fn pods_that_the_cluster_refuses_are_no_longer_asked_for() {
    let scene = scene(&[]).await;
    scene.core.growing.wait(vec![gang("t.1", &[8])]);
    has(&scene, 1, 0).await;
    let job = placeholders(scene.api.objects(), "batch/v1/jobs").remove(0);
    let (namespace, name) = named(&job);
    let event = json!({
        "metadata": {"name": "refused", "namespace": namespace},
        "involvedObject": {"kind": "Job", "namespace": namespace, "name": name, "uid": job["metadata"]["uid"]},
        "reason": "FailedCreate",
        "message": "pods \"p\" is forbidden: exceeded quota: small",
        "type": "Warning",
    });
    scene.api.create("v1/events", &namespace, event);
    is_given_up(&scene, "t.1", "exceeded quota: small").await;
    has(&scene, 0, 0).await;
}

#[tokio::test]
async fn without_their_class_no_placeholders_are_made() {
    let scene = scene(&[]).await;
    let faults = scene.api.faults();
    faults.forbid("create", "scheduling.k8s.io", "priorityclasses", None);
    scene.core.growing.wait(vec![gang("t.1", &[8])]);
    is_given_up(&scene, "t.1", "PriorityClass").await;
    has(&scene, 0, 0).await;
}

#[tokio::test]
async fn a_task_that_starts_on_a_node_of_placeholders_gets_it() {
    let scene = scene(&["a"]).await;
    scene.core.growing.wait(vec![gang("t.1", &[8, 8])]);
    has(&scene, 2, 1).await;
    // A less demanding task fits the node meanwhile.
    let id = scene.core.place("a", "c", 8);
    scene.has_node(&id).await;
    // Both of the gang's pods lack a node now.
    has(&scene, 2, 0).await;
    assert_eq!(scale_up(&scene.api, GROUP), ["n1", "n2"]);
    has(&scene, 2, 2).await;
}

#[tokio::test]
async fn a_task_grows_no_node_group_but_its_pools() {
    let demand = json!({"spec": {"nodeSelector": {"gpu": "a100"}}});
    let of_pool = demand.clone();
    let scene = Scene::start_with(TestCore::default(), |settings| {
        grows(settings);
        settings.pools[0].pod_spec = Some(of_pool);
    });
    let scene = scene.await;
    scene.api.set_controllers(Controllers {
        kubelets: true,
        ..Controllers::default()
    });
    // Its pod spec replaces that of the pool.
    let mut other = gang("t.1", &[8]);
    other.demands = Some(json!({"spec": {"nodeSelector": {"gpu": "h100"}}}));
    let mut any = gang("t.2", &[8]);
    any.demands = Some(json!({"spec": {"tolerations": [{"operator": "Exists"}]}}));
    scene.core.growing.wait(vec![other, any]);
    let why = "the task demands nodes with the label \"gpu=h100\", and the pool \"gpu=a100\"";
    is_given_up(&scene, "t.1", why).await;
    has(&scene, 1, 0).await;
    let others = NodeGroup {
        labels: &[("gpu", "h100")],
        ..GROUP
    };
    assert!(scale_up(&scene.api, others).is_empty());
    is_given_up(&scene, "t.2", "the autoscaler adds no node").await;
    has(&scene, 0, 0).await;
    let mut usual = gang("t.3", &[8]);
    usual.demands = Some(demand);
    scene.core.growing.wait(vec![usual]);
    has(&scene, 1, 0).await;
    let own = NodeGroup {
        labels: &[("gpu", "a100")],
        ..GROUP
    };
    assert_eq!(scale_up(&scene.api, own), ["n0"]);
    scene.has_slots("n0", 8).await;
}

#[tokio::test]
async fn a_task_asks_for_nodes_that_its_namespace_selects() {
    let scene = scene(&[]).await;
    let selector = json!({"scheduler.alpha.kubernetes.io/node-selector": "zone=x"});
    let team = json!({"metadata": {"name": "team", "annotations": selector}});
    scene.api.create("v1/namespaces", "", team);
    scene.core.want_namespaces(|wanted| {
        let bound = BoundNamespace {
            workspaces: [WorkspaceId(1)].into(),
            ..BoundNamespace::default()
        };
        wanted.bound.insert("team".to_owned(), bound);
    });
    let of_team = WaitingGang {
        workspace: Some(WorkspaceId(1)),
        ..gang("t.1", &[8])
    };
    scene.core.growing.wait(vec![of_team]);
    let selects = |objects: &Objects<'_>| {
        let pods = placeholders(*objects, "v1/pods");
        let zones = pods.iter().map(|pod| &pod["spec"]["nodeSelector"]["zone"]);
        pods.len() == 1 && zones.eq([&json!("x")])
    };
    scene.api.until("the label is demanded", selects).await;
    // A quota of the team does not count it.
    let (namespace, _) = named(&placeholders(scene.api.objects(), "v1/pods")[0]);
    assert_eq!(namespace, "default");
    assert!(scale_up(&scene.api, GROUP).is_empty());
    is_given_up(&scene, "t.1", "the autoscaler adds no node").await;
    has(&scene, 0, 0).await;
}

#[tokio::test]
async fn what_was_given_up_is_reported_while_it_does_not_ask() {
    let mut scene = scene(&["a"]).await;
    scene.core.growing.wait(vec![gang("t.1", &[8, 8])]);
    has(&scene, 2, 1).await;
    let full = NodeGroup { most: 1, ..GROUP };
    assert!(scale_up(&scene.api, full).is_empty());
    is_given_up(&scene, "t.1", "max node group size reached").await;
    // Scheduling leaves it out, and looks at those behind it.
    scene.core.growing.wait(vec![gang("t.2", &[4])]);
    is_asked(&scene, "t.2").await;
    is_given_up(&scene, "t.1", "max node group size reached").await;
    has(&scene, 1, 1).await;
    // Another manager does not know of it, and reports that.
    scene.reconfigure(|settings| settings.pools[0].growth = None);
    let is_over = |core: &TestCore| core.growing.of(&"t.1".into()).is_none();
    scene.core.until("t.1 is given up no more", is_over).await;
}

#[tokio::test]
async fn a_master_that_begins_anew_keeps_the_placeholders_of_what_still_waits() {
    let mut scene = scene(&[]).await;
    scene
        .core
        .growing
        .wait(vec![gang("t.1", &[8]), gang("t.2", &[4])]);
    has(&scene, 2, 0).await;
    is_asked(&scene, "t.2").await;
    let since = scene.core.growing.of(&"t.1".into());
    let of = |scene: &Scene| placeholders(scene.api.objects(), "batch/v1/jobs");
    let before = of(&scene);
    scene.stop().await;
    scene.core.growing.wait(vec![gang("t.1", &[8])]);
    scene.begin();
    has(&scene, 1, 0).await;
    let kept = of(&scene);
    assert!(kept.iter().all(|job| {
        before
            .iter()
            .any(|it| it["metadata"]["uid"] == job["metadata"]["uid"])
    }));
    scene
        .core
        .until("t.2 asks no more", |core| {
            core.growing.of(&"t.2".into()).is_none()
        })
        .await;
    assert_eq!(scene.core.growing.of(&"t.1".into()), since);
}

#[tokio::test]
async fn a_pool_that_grows_no_more_has_no_placeholders() {
    let mut scene = scene(&[]).await;
    scene.core.growing.wait(vec![gang("t.1", &[8])]);
    has(&scene, 1, 0).await;
    scene.reconfigure(|settings| settings.pools[0].growth = None);
    has(&scene, 0, 0).await;
}

#[tokio::test]
async fn a_task_that_asks_for_something_else_has_other_placeholders() {
    let scene = scene(&[]).await;
    scene.core.growing.wait(vec![gang("t.1", &[8])]);
    has(&scene, 1, 0).await;
    scene.core.growing.wait(vec![gang("t.1", &[8, 8])]);
    has(&scene, 2, 0).await;
}

#[tokio::test]
async fn a_job_of_others_with_the_label_of_placeholders_holds_its_slots() {
    let scene = scene(&["a"]).await;
    let cluster = scene.settings.cluster_id.clone();
    let labels = json!({"determined.ai/cluster_id": cluster, "determined.ai/placeholder": "t.1"});
    let resources = json!({"limits": {"nvidia.com/gpu": "3"}});
    let job = json!({
        "metadata": {"name": "copy", "labels": labels},
        "spec": {"template": {
            "metadata": {"labels": labels},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i", "resources": resources}]},
        }},
    });
    scene.api.create("batch/v1/jobs", "default", job);
    scene.has_slots("a", 5).await;
    assert!(scene.api.get("batch/v1/jobs", "default", "copy").is_some());
}
