//! Nodes as places.

use std::collections::BTreeMap;
use std::time::Duration;

use det_ids::WorkspaceId;
use det_kube_double::Controllers;
use det_lifecycle::container::DesiredState;
use det_rm::{FitQuery, Health};
use det_rm_contract::TestCore;
use det_rm_kube::{PoolSettings, Settings, SlotResource};
use det_taskspec::ContainerExit;
use serde_json::{Value, json};

use crate::support::Scene;

#[tokio::test]
async fn nodes_join_and_leave() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    scene.api.add_node("b", 4);
    scene.has_slots("b", 4).await;
    let joined = scene.core.served("b").unwrap();
    assert_eq!(joined.resource_pool, "default");
    assert_eq!(joined.details.version, "v1.36.0");
    scene.api.remove_node("b");
    scene.has_left("b").await;
    scene.api.set_node_ready("a", false);
    scene.has_left("a").await;
    scene.api.set_node_ready("a", true);
    scene.has_slots("a", 2).await;
}

#[tokio::test]
async fn a_node_without_devices_is_a_place_without_slots() {
    let scene = Scene::with_nodes(&[("a", 0)]).await;
    let id = scene.core.place("a", "c", 0);
    let pod = scene.runs(&id).await;
    assert_eq!(pod.gpus(), 0);
    scene.exits(&id, 0).await;
}

#[tokio::test]
async fn a_cordoned_node_keeps_what_it_runs_and_takes_nothing_new() {
    let scene = Scene::with_nodes(&[("a", 4)]).await;
    let id = scene.core.place("a", "c", 1);
    scene.runs(&id).await;
    let cordon = |is_on: bool| json!({"spec": {"unschedulable": is_on}});
    scene.api.patch("v1/nodes", "", "a", &cordon(true));
    scene.has_slots("a", 1).await;
    assert!(!scene.core.row(&id).ended);
    scene.exits(&id, 0).await;
    scene.has_slots("a", 0).await;
    scene.api.patch("v1/nodes", "", "a", &cordon(false));
    scene.has_slots("a", 4).await;
}

#[tokio::test]
async fn a_tainted_node_leaves_pools_that_do_not_tolerate_the_taint() {
    let tolerant = json!({"spec": {"tolerations": [{"key": "team", "operator": "Exists"}]}});
    let change = |settings: &mut Settings| {
        settings.pools.push(PoolSettings {
            name: "team".to_owned(),
            namespace: None,
            pod_spec: Some(tolerant),
            growth: None,
        });
    };
    let scene = Scene::start_with(TestCore::default(), change).await;
    scene.api.add_node("a", 2);
    scene.has_slots("a", 2).await;
    scene.has_slots("a@team", 2).await;
    let taints = json!({"spec": {"taints": [{"key": "team", "effect": "NoSchedule"}]}});
    scene.api.patch("v1/nodes", "", "a", &taints);
    scene.has_left("a").await;
    scene.has_slots("a@team", 2).await;
}

#[tokio::test]
async fn pools_by_selector_have_their_nodes_and_share_those_that_both_select() {
    let pool = |name: &str, label: &str| PoolSettings {
        name: name.to_owned(),
        namespace: None,
        pod_spec: Some(json!({"spec": {"nodeSelector": {label: "yes"}}})),
        growth: None,
    };
    let pools = vec![pool("one", "one"), pool("two", "two")];
    let scene = Scene::start_with(TestCore::default(), |settings| settings.pools = pools).await;
    for node in ["a", "b"] {
        scene.api.add_node(node, 4);
    }
    let labels = |labels: serde_json::Value| json!({"metadata": {"labels": labels}});
    let both = labels(json!({"one": "yes", "two": "yes"}));
    scene.api.patch("v1/nodes", "", "a", &both);
    let second = labels(json!({"two": "yes"}));
    scene.api.patch("v1/nodes", "", "b", &second);
    for place in ["a", "a@two", "b@two"] {
        scene.has_slots(place, 4).await;
    }
    assert!(scene.core.served("b").is_none());
    // What runs there in one pool is not there for the other one.
    let id = scene.core.place("a@two", "c", 3);
    scene.has_slots("a", 1).await;
    let pod = scene.runs(&id).await;
    assert_eq!(pod.node(), Some("a"));
    scene.has_slots("a@two", 4).await;
    scene.exits(&id, 0).await;
    scene.has_slots("a", 4).await;
    // Its label goes, and the node with it.
    let none = labels(json!({"two": null}));
    scene.api.patch("v1/nodes", "", "b", &none);
    scene.has_left("b@two").await;
}

#[tokio::test]
async fn pools_that_are_configured_otherwise_are_served_so_and_what_runs_goes_on() {
    let mut scene = Scene::with_nodes(&[("a", 4)]).await;
    let labels = json!({"metadata": {"labels": {"two": "yes"}}});
    scene.api.patch("v1/nodes", "", "a", &labels);
    let id = scene.core.place("a", "c", 1);
    scene.runs(&id).await;
    // Another pool, and another namespace for the tasks of the first one.
    let other = json!({"metadata": {"name": "other"}});
    scene.api.create("v1/namespaces", "", other);
    let selects = json!({"spec": {"nodeSelector": {"two": "yes"}}});
    scene.reconfigure(|settings| {
        settings.pools[0].namespace = Some("other".to_owned());
        settings.pools.push(PoolSettings {
            name: "two".to_owned(),
            namespace: None,
            pod_spec: Some(selects),
            growth: None,
        });
    });
    scene.has_slots("a@two", 3).await;
    scene.has_slots("a", 4).await;
    let later = scene.core.place("a", "d", 1);
    let pod = scene.runs(&later).await;
    assert_eq!(pod.namespace, "other");
    assert!(!scene.core.row(&id).ended);
    scene.exits(&id, 0).await;
    scene.exits(&later, 0).await;
    assert_eq!(scene.core.row(&id).starts, 1);
    // The pool has no nodes any more, and then it is gone.
    let selects = json!({"spec": {"nodeSelector": {"two": "no"}}});
    scene.reconfigure(|settings| settings.pools[1].pod_spec = Some(selects));
    scene.has_left("a@two").await;
    scene.has_slots("a", 4).await;
    let selects = json!({"spec": {"nodeSelector": {"two": "yes"}}});
    scene.reconfigure(|settings| settings.pools[1].pod_spec = Some(selects));
    scene.has_slots("a@two", 4).await;
    scene.reconfigure(|settings| settings.pools.truncate(1));
    scene.has_left("a@two").await;
    scene.is_quiet("a").await;
}

#[tokio::test]
async fn pods_of_others_take_slots_and_give_them_back() {
    let scene = Scene::with_nodes(&[("a", 4)]).await;
    let id = scene.core.place("a", "c", 1);
    scene.runs(&id).await;
    scene.foreign_pod("theirs", "a", 2);
    scene.has_slots("a", 2).await;
    scene.api.pod_phase("default", "theirs", "Succeeded");
    scene.has_slots("a", 4).await;
    scene.foreign_pod("more", "a", 3);
    scene.has_slots("a", 1).await;
    scene.api.delete("v1/pods", "default", "more");
    scene.api.finish_deletion("default", "more");
    scene.has_slots("a", 4).await;
    scene.exits(&id, 0).await;
    assert_eq!(scene.core.row(&id).starts, 1);
}

#[tokio::test]
async fn pods_of_ours_take_no_slots_from_us() {
    let scene = Scene::with_nodes(&[("a", 4)]).await;
    // What is seen of its pod before its Job is known is not a pod of others.
    scene.api.faults().delay_writes(true);
    let id = scene.core.place("a", "c", 3);
    scene.was_asked("POST secrets", 1).await;
    scene.api.faults().delay_writes(false);
    scene.runs(&id).await;
    scene.has_slots("a", 4).await;
    scene.exits(&id, 0).await;
    scene.is_quiet("a").await;
    scene.has_slots("a", 4).await;
}

#[tokio::test]
async fn processors_can_be_slots() {
    let change =
        |settings: &mut Settings| settings.slots = SlotResource::Cpu { millis: 7_500 }.into();
    let scene = Scene::start_with(TestCore::default(), change).await;
    scene.api.add_node("a", 0);
    scene.has_slots("a", 8).await;
    let system = json!({
        "metadata": {"name": "system"},
        "spec": {
            "nodeName": "a",
            "containers": [{"name": "main", "image": "i", "resources": {"requests": {"cpu": "5"}}}],
        },
    });
    scene.api.create("v1/pods", "kube-system", system);
    scene.has_slots("a", 7).await;
    let id = scene.core.place("a", "c", 2);
    let pod = scene.runs(&id).await;
    let containers = pod.object["spec"]["containers"].as_array().unwrap();
    let requests: Vec<_> = containers
        .iter()
        .filter_map(|container| container["resources"]["requests"]["cpu"].as_str())
        .collect();
    assert_eq!(requests, ["15000m"]);
    scene.has_slots("a", 7).await;
    scene.exits(&id, 0).await;
}

#[tokio::test]
async fn a_slot_of_more_processors_than_any_node_has_is_explained() {
    let change =
        |settings: &mut Settings| settings.slots = SlotResource::Cpu { millis: 8_000 }.into();
    let scene = Scene::start_with(TestCore::default(), change).await;
    scene.api.add_node("a", 0);
    let small = json!({"status": {"allocatable": {"cpu": "7910m"}}});
    scene.api.patch("v1/nodes", "", "a", &small);
    scene.has_slots("a", 0).await;
    let explains = |health: &Health| {
        let reason = health.reason().unwrap_or_default();
        health.is_up() && reason.contains("\"a\"") && reason.contains("at most 7.91 fits")
    };
    scene.has_health("the small node is named", explains).await;
    scene.api.add_node("b", 0);
    let is_over = |health: &Health| *health == Health::Up;
    scene.has_health("a node has slots", is_over).await;
}

#[tokio::test]
async fn containers_of_a_node_that_is_removed_are_lost_and_their_jobs_are_deleted() {
    let scene = Scene::with_nodes(&[("a", 2), ("b", 2)]).await;
    let alone = scene.core.place("b", "c", 1);
    let ids = scene.core.place_gang(&[("a", "c0", 1), ("b", "c1", 1)]);
    for id in ids.iter().chain([&alone]) {
        scene.runs(id).await;
    }
    scene.api.remove_node("b");
    for id in [&ids[1], &alone] {
        let why = scene.is_lost(id).await;
        assert!(why.contains("its node is gone"), "{why}");
    }
    scene.has_left("b").await;
    scene.deleted_with_less(&ids[0], i64::MAX).await;
    scene.finish_deletion(&ids[0]);
    scene.has_ended(&ids[0]).await;
    scene.is_empty().await;
}

#[tokio::test]
async fn another_node_of_the_same_name_is_another_place() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    let first = scene.core.served("a").unwrap().instance;
    let id = scene.core.place("a", "c", 2);
    scene.runs(&id).await;
    // Its watch misses that it was away.
    scene.api.faults().drop_watches();
    scene.api.remove_node("a");
    scene.api.add_node("a", 2);
    scene.api.faults().compact();
    let is_other = |core: &TestCore| {
        let joined = core.served("a");
        joined.is_some_and(|joined| joined.instance != first)
    };
    scene.core.until("the other node joins", is_other).await;
    let has_ended = |core: &TestCore| core.row(&id).ended;
    scene.core.until("the container is lost", has_ended).await;
    scene.is_empty().await;
    scene.is_quiet("a").await;
}

#[tokio::test]
async fn a_node_that_is_drained_by_its_label_takes_nothing_new() {
    let scene = Scene::with_nodes(&[("a", 4)]).await;
    let id = scene.core.place("a", "c", 1);
    scene.runs(&id).await;
    let key = format!("determined.ai/cluster-id-{}", scene.settings.cluster_id);
    let label = |value: serde_json::Value| json!({"metadata": {"labels": {key.clone(): value}}});
    scene
        .api
        .patch("v1/nodes", "", "a", &label("no-schedule".into()));
    scene.has_slots("a", 1).await;
    assert!(!scene.core.row(&id).ended);
    scene
        .api
        .patch("v1/nodes", "", "a", &label("no-execute".into()));
    scene.deleted_with_less(&id, 11).await;
    scene.finish_deletion(&id);
    let why = scene.is_lost(&id).await;
    assert!(why.contains("taken out of service by its label"), "{why}");
    scene
        .api
        .patch("v1/nodes", "", "a", &label(serde_json::Value::Null));
    scene.has_slots("a", 4).await;
    scene.is_quiet("a").await;
}

#[tokio::test]
async fn a_node_that_is_away_for_a_moment_while_objects_are_made_starts_nothing_twice() {
    let scene = Scene::with_nodes(&[("a", 4)]).await;
    scene.api.faults().delay_writes(true);
    let runs = scene.core.place("a", "c", 2);
    let killed = scene.core.place("a", "d", 2);
    scene.was_asked("POST secrets", 2).await;
    scene.api.set_node_ready("a", false);
    scene.has_left("a").await;
    scene.core.want(&killed, DesiredState::Kill);
    scene.api.set_node_ready("a", true);
    scene.has_slots("a", 4).await;
    scene.api.faults().delay_writes(false);
    assert_eq!(scene.has_ended(&killed).await, ContainerExit::Killed);
    scene.runs(&runs).await;
    scene.job();
    assert_eq!(scene.core.row(&runs).starts, 1);
    assert_eq!(scene.core.row(&killed).starts, 1);
    scene.exits(&runs, 0).await;
    scene.is_empty().await;
}

#[tokio::test]
async fn what_ended_on_a_node_that_is_away_is_deleted_all_the_same() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    let id = scene.core.place("a", "c", 2);
    scene.runs(&id).await;
    scene.api.set_node_ready("a", false);
    scene.has_left("a").await;
    scene.exits(&id, 0).await;
    scene.is_empty().await;
}

/// What the manager has reported that places lack for containers with these demands.
pub(crate) fn lacking(core: &TestCore, demands: Option<&Value>) -> BTreeMap<String, String> {
    let query = FitQuery {
        pool: "default",
        workspace: Some(WorkspaceId(1)),
        slots: 1,
        demands,
    };
    let misfits = core.fit("k").and_then(|fit| fit.misfits(query));
    let Some(misfits) = misfits else {
        return BTreeMap::new();
    };
    let reasons: Vec<&str> = misfits.groups.iter().map(|it| it.reason.as_str()).collect();
    let places = misfits.never.iter().chain(&misfits.now);
    places
        .map(|place| (place.to_string(), reasons.join("; ")))
        .collect()
}

#[tokio::test]
async fn places_that_lack_what_a_task_demands_are_reported_with_what_they_lack() {
    let scene = Scene::with_nodes(&[("a", 2), ("b", 2)]).await;
    let zone = json!({"spec": {"nodeSelector": {"zone": "x"}}});
    let lacks = async |what: &str, demands: Option<&Value>, places: &[&str], reason: &str| {
        let is_so = |core: &TestCore| {
            let found = lacking(core, demands);
            found.keys().eq(places) && found.values().all(|it| it.contains(reason))
        };
        scene.core.until(what, is_so).await;
    };
    lacks(
        "no node is in the zone",
        Some(&zone),
        &["a", "b"],
        "\"zone\"",
    )
    .await;
    let label = json!({"metadata": {"labels": {"zone": "x"}}});
    scene.api.patch("v1/nodes", "", "b", &label);
    lacks("one is", Some(&zone), &["a"], "\"zone\"").await;

    let container = |amount: &str| json!({"name": "c", "image": "i", "resources": {"requests": {"example.com/fpga": amount}}});
    let wants = json!({"spec": {"containers": [container("3")]}});
    let status = json!({"status": {"allocatable": {"example.com/fpga": "4"}}});
    scene.api.patch("v1/nodes", "", "a", &status);
    lacks(
        "one has the device",
        Some(&wants),
        &["b"],
        "less exists there",
    )
    .await;
    let pod = json!({
        "metadata": {"name": "theirs", "namespace": "default"},
        "spec": {"nodeName": "a", "containers": [container("2")]},
    });
    scene.api.create("v1/pods", "default", pod);
    lacks(
        "others have taken it",
        Some(&wants),
        &["a", "b"],
        "less is free",
    )
    .await;
    scene.api.delete("v1/pods", "default", "theirs");
    scene.api.finish_deletion("default", "theirs");
    lacks(
        "they have given it back",
        Some(&wants),
        &["b"],
        "less exists there",
    )
    .await;

    scene.api.patch(
        "v1/nodes",
        "",
        "a",
        &json!({"spec": {"unschedulable": true}}),
    );
    lacks("one is cordoned", None, &["a"], "cordoned").await;
}

#[tokio::test]
async fn a_node_that_did_not_get_a_pod_is_kept_from_such_pods_for_a_while() {
    let soon = |settings: &mut Settings| settings.start_within = Duration::from_millis(300);
    let scene = Scene::start_with(TestCore::default(), soon).await;
    scene.api.add_node("a", 2);
    scene.has_slots("a", 2).await;
    scene.api.set_controllers(Controllers {
        scheduler: false,
        ..Controllers::default()
    });
    let id = scene.core.place("a", "c", 2);
    scene.is_lost(&id).await;
    let is_held = |core: &TestCore| {
        let found = lacking(core, None);
        found
            .get("a")
            .is_some_and(|why| why.contains("did not assign such a pod"))
    };
    scene.core.until("the node is held off", is_held).await;
    let other = json!({"spec": {"tolerations": [{"operator": "Exists"}]}});
    assert_eq!(lacking(&scene.core, Some(&other)).len(), 0);
}
