//! Slots that are devices which pods claim. The test is the driver, the controller of claims and the scheduler's part of them.

use det_ids::ContainerId;
use det_kube_double::{ApiDouble, Objects};
use det_lifecycle::container::DesiredState;
use det_rm::Health;
use det_rm_contract::TestCore;
use det_rm_kube::{DeviceClass, PoolSettings, Settings, SlotResource, SlotResources};
use serde_json::{Value, json};

use crate::support::{Scene, named};

const CLASS: &str = "gpu.example.com";
const CLASSES: &str = "resource.k8s.io/v1/deviceclasses";
const SLICES: &str = "resource.k8s.io/v1/resourceslices";
const CLAIMS: &str = "resource.k8s.io/v1/resourceclaims";
const TEMPLATES: &str = "resource.k8s.io/v1/resourceclaimtemplates";

fn claimed(settings: &mut Settings) {
    settings.slots = SlotResource::Devices(DeviceClass::new(CLASS, None)).into();
}

/// A class of devices of a driver with this type.
fn class(name: &str, of_type: &str) -> Value {
    let expression = format!(
        "device.driver == 'd.example.com' && device.attributes['d.example.com'].type == '{of_type}'"
    );
    json!({"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}})
}

/// The devices of a node, each with its type.
fn publish(api: &ApiDouble, node: &str, devices: &[(&str, &str)]) {
    let devices = devices
        .iter()
        .map(|(name, of_type)| json!({"name": name, "attributes": {"type": {"string": of_type}}}));
    let slice = json!({
        "metadata": {"name": node},
        "spec": {
            "driver": "d.example.com", "nodeName": node, "devices": devices.collect::<Vec<_>>(),
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        },
    });
    api.create(SLICES, "", slice);
}

/// Nodes with four devices each, which joined.
async fn scene(nodes: &[&str]) -> Scene {
    let api = ApiDouble::start().await;
    api.create(CLASSES, "", class(CLASS, "gpu"));
    let scene = Scene::start_over(api, TestCore::default(), claimed);
    for node in nodes {
        scene.api.add_node(node, 0);
        let devices = ["d0", "d1", "d2", "d3"].map(|name| (name, "gpu"));
        publish(&scene.api, node, &devices);
    }
    for node in nodes {
        scene.has_slots(node, 4).await;
    }
    scene
}

/// A claim to which devices of a node are allocated.
fn allocated(name: &str, node: &str, devices: &[&str]) -> Value {
    let results = devices.iter().map(
        |device| json!({"request": "r", "driver": "d.example.com", "pool": node, "device": device}),
    );
    json!({
        "metadata": {"name": name},
        "status": {"allocation": {"devices": {"results": results.collect::<Vec<_>>()}}},
    })
}

/// The claim of a task's pod is made from its template, and has these devices.
async fn allocate(scene: &Scene, id: &ContainerId, devices: &[&str]) -> String {
    scene.has_node(id).await;
    let pod = scene.pod_of(id).unwrap();
    let of_pod = &pod.object["spec"]["resourceClaims"][0];
    let template = of_pod["resourceClaimTemplateName"].as_str().unwrap();
    let template = scene.api.get(TEMPLATES, &pod.namespace, template).unwrap();
    let request = &template["spec"]["spec"]["devices"]["requests"][0]["exactly"];
    assert_eq!(request["deviceClassName"], CLASS);
    assert_eq!(request["count"], devices.len());
    let name = format!("{}-claim", pod.name);
    let mut claim = allocated(&name, pod.node().unwrap(), devices);
    claim["metadata"]["labels"] = template["spec"]["metadata"]["labels"].clone();
    claim["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.object["metadata"]["uid"], "controller": true,
    }]);
    scene.api.create(CLAIMS, &pod.namespace, claim);
    name
}

async fn has_no_templates(scene: &Scene) {
    let is_empty = |objects: &Objects<'_>| objects.list(TEMPLATES, "").is_empty();
    scene.api.until("no template is left", is_empty).await;
}

#[tokio::test]
async fn slots_are_the_devices_that_the_class_selects_and_no_pod_holds() {
    let scene = scene(&["a"]).await;
    publish(&scene.api, "b", &[("d0", "gpu"), ("m0", "mig")]);
    scene.api.add_node("b", 8);
    scene.has_slots("b", 1).await;
    // A claim by hand, and one of a pod of others.
    scene
        .api
        .create(CLAIMS, "default", allocated("mine", "a", &["d1"]));
    scene.has_slots("a", 3).await;
    scene.api.delete(CLAIMS, "default", "mine");
    scene.has_slots("a", 4).await;
    // The claim of a task holds the task's slots, and is counted once.
    let id = scene.core.place("a", "c", 3);
    let claim = allocate(&scene, &id, &["d0", "d1", "d2"]).await;
    let pod = scene.runs(&id).await;
    scene
        .api
        .create(CLAIMS, "default", allocated("theirs", "a", &["d3"]));
    scene.has_slots("a", 3).await;
    // Until Kubernetes has its devices back, an ended task holds them.
    scene.exits(&id, 0).await;
    scene.has_slots("a", 0).await;
    scene.api.delete(CLAIMS, &pod.namespace, &claim);
    scene.has_slots("a", 3).await;
    // A device whose driver finds it broken.
    let taints = json!([{"key": "d.example.com/broken", "effect": "NoSchedule"}]);
    let devices =
        json!([{"name": "d0", "attributes": {"type": {"string": "gpu"}}, "taints": taints}]);
    let patch = json!({"spec": {"devices": devices, "pool": {"generation": 2}}});
    scene.api.patch(SLICES, "", "b", &patch);
    scene.has_slots("b", 0).await;
    scene.api.delete(SLICES, "", "b");
    scene.has_slots("a", 3).await;
}

#[tokio::test]
async fn a_gang_of_two_sizes_has_a_template_for_each_which_goes_with_it() {
    let scene = scene(&["a", "b"]).await;
    let ids = scene.core.place_gang(&[("a", "c0", 4), ("b", "c1", 2)]);
    scene.was_asked("PATCH resourceclaimtemplates", 2).await;
    let (templates, jobs) = (
        scene.api.list(TEMPLATES, ""),
        scene.api.list("batch/v1/jobs", ""),
    );
    let names = |objects: &[Value]| objects.iter().map(named).collect::<Vec<_>>();
    assert_eq!(names(&templates), names(&jobs));
    for template in &templates {
        let owners = template["metadata"]["ownerReferences"].as_array().unwrap();
        assert_eq!(owners.len(), 2);
    }
    allocate(&scene, &ids[0], &["d0", "d1", "d2", "d3"]).await;
    allocate(&scene, &ids[1], &["d0", "d1"]).await;
    for id in &ids {
        scene.runs(id).await;
    }
    scene.has_slots("b", 4).await;
    for id in &ids {
        scene.exits(id, 0).await;
    }
    scene.is_empty().await;
    has_no_templates(&scene).await;
}

#[tokio::test]
async fn a_manager_that_begins_again_knows_which_devices_its_tasks_have() {
    let mut scene = scene(&["a"]).await;
    let id = scene.core.place("a", "c", 3);
    allocate(&scene, &id, &["d0", "d1", "d2"]).await;
    scene.runs(&id).await;
    scene
        .api
        .create(CLAIMS, "default", allocated("theirs", "a", &["d3"]));
    scene.has_slots("a", 3).await;
    scene.stop().await;
    scene.core.restart();
    scene.begin();
    scene.has_slots("a", 3).await;
    assert_eq!(scene.core.row(&id).starts, 1);
    scene.exits(&id, 0).await;
    scene.is_empty().await;
    has_no_templates(&scene).await;
}

#[tokio::test]
async fn a_template_that_was_made_before_the_manager_ended_is_used_or_deleted() {
    let mut scene = scene(&["a"]).await;
    scene.api.faults().fail_next("POST", "jobs", 503, 1_000);
    let id = scene.core.place("a", "c", 2);
    scene.was_asked("POST jobs", 1).await;
    assert_eq!(scene.api.list(TEMPLATES, "").len(), 1);
    scene.core.want(&id, DesiredState::Kill);
    scene.has_ended(&id).await;
    has_no_templates(&scene).await;
    // The next manager makes the Job for the template that it finds.
    let id = scene.core.place("a", "d", 2);
    let is_there = |objects: &Objects<'_>| !objects.list(TEMPLATES, "").is_empty();
    scene.api.until("its template is made", is_there).await;
    let before = scene.api.list(TEMPLATES, "")[0]["metadata"]["uid"].clone();
    scene.stop().await;
    scene.core.restart();
    scene.api.faults().fail_no_more();
    scene.begin();
    allocate(&scene, &id, &["d0", "d1"]).await;
    scene.runs(&id).await;
    let templates = scene.api.list(TEMPLATES, "");
    assert_eq!(
        (templates.len(), &templates[0]["metadata"]["uid"]),
        (1, &before)
    );
}

#[tokio::test]
async fn a_template_that_is_found_with_another_request_is_made_again() {
    let mut scene = scene(&["a"]).await;
    scene.api.faults().fail_next("POST", "jobs", 503, 1_000);
    let id = scene.core.place("a", "c", 2);
    scene.was_asked("POST jobs", 1).await;
    scene.stop().await;
    let found = scene.api.list(TEMPLATES, "").remove(0);
    let of = |key: &str| found["metadata"][key].as_str().unwrap_or_default();
    let mut requests = found["spec"]["spec"]["devices"]["requests"].clone();
    requests[0]["exactly"]["deviceClassName"] = "another".into();
    let patch = json!({"spec": {"spec": {"devices": {"requests": requests}}}});
    scene
        .api
        .patch(TEMPLATES, of("namespace"), of("name"), &patch);
    scene.core.restart();
    scene.api.faults().fail_no_more();
    scene.begin();
    allocate(&scene, &id, &["d0", "d1"]).await;
    scene.runs(&id).await;
    let templates = scene.api.list(TEMPLATES, "");
    assert_eq!(templates.len(), 1);
    assert_eq!(templates[0]["spec"], found["spec"]);
    assert_ne!(templates[0]["metadata"]["uid"], found["metadata"]["uid"]);
}

#[tokio::test]
async fn templates_of_a_task_that_ends_before_the_next_manager_begins_are_deleted() {
    let mut scene = scene(&["a", "b"]).await;
    let faults = scene.api.faults();
    faults.forbid("create", "batch", "jobs", Some("*"));
    let ids = scene.core.place_gang(&[("a", "c0", 4), ("b", "c1", 2)]);
    scene.was_asked("POST jobs", 1).await;
    scene.stop().await;
    assert_eq!(scene.api.list(TEMPLATES, "").len(), 2);
    faults.allow_all();
    for id in &ids {
        scene.core.want(id, DesiredState::Kill);
    }
    scene.core.restart();
    scene.begin();
    has_no_templates(&scene).await;
    scene.is_empty().await;
}

#[tokio::test]
async fn templates_without_an_owner_go_with_their_job() {
    let mut scene = scene(&["a"]).await;
    let faults = scene.api.faults();
    faults.forbid(
        "patch",
        "resource.k8s.io",
        "resourceclaimtemplates",
        Some("*"),
    );
    let id = scene.core.place("a", "c", 2);
    allocate(&scene, &id, &["d0", "d1"]).await;
    scene.runs(&id).await;
    scene.stop().await;
    scene.core.restart();
    scene.begin();
    scene.has_slots("a", 4).await;
    faults.allow_all();
    scene.exits(&id, 0).await;
    has_no_templates(&scene).await;
    scene.is_empty().await;
}

#[tokio::test]
async fn a_pool_has_a_class_of_its_own_on_the_same_nodes() {
    let api = ApiDouble::start().await;
    api.create(CLASSES, "", class(CLASS, "gpu"));
    api.create(CLASSES, "", class("mig.example.com", "mig"));
    let scene = Scene::start_over(api, TestCore::default(), |settings| {
        let usual = SlotResource::Devices(DeviceClass::new(CLASS, None));
        let mig = SlotResource::Devices(DeviceClass::new("mig.example.com", None));
        settings.slots = SlotResources::new(usual, [("mig".to_owned(), mig)].into());
        settings.pools.push(PoolSettings {
            name: "mig".to_owned(),
            namespace: None,
            pod_spec: None,
            growth: None,
        });
    });
    scene.api.add_node("a", 0);
    publish(
        &scene.api,
        "a",
        &[("d0", "gpu"), ("m0", "mig"), ("m1", "mig"), ("m2", "mig")],
    );
    scene.has_slots("a", 1).await;
    scene.has_slots("a@mig", 3).await;
    // What runs in one pool takes nothing of the other's slots.
    let id = scene.core.place("a", "c", 1);
    allocate(&scene, &id, &["d0"]).await;
    scene.runs(&id).await;
    scene
        .api
        .create(CLAIMS, "default", allocated("theirs", "a", &["m1"]));
    scene.has_slots("a@mig", 2).await;
    scene.has_slots("a", 1).await;
}

#[tokio::test]
async fn a_device_that_two_classes_select_is_given_once() {
    let api = ApiDouble::start().await;
    api.create(CLASSES, "", class(CLASS, "gpu"));
    let all = "device.driver == 'd.example.com'";
    let all =
        json!({"metadata": {"name": "all"}, "spec": {"selectors": [{"cel": {"expression": all}}]}});
    api.create(CLASSES, "", all);
    let scene = Scene::start_over(api, TestCore::default(), |settings| {
        let usual = SlotResource::Devices(DeviceClass::new(CLASS, None));
        let all = SlotResource::Devices(DeviceClass::new("all", None));
        settings.slots = SlotResources::new(usual, [("all".to_owned(), all)].into());
        settings.pools.push(PoolSettings {
            name: "all".to_owned(),
            namespace: None,
            pod_spec: None,
            growth: None,
        });
    });
    scene.api.add_node("a", 0);
    publish(
        &scene.api,
        "a",
        &[("d0", "gpu"), ("d1", "gpu"), ("m0", "mig")],
    );
    scene.has_slots("a", 2).await;
    scene.has_slots("a@all", 3).await;
    let id = scene.core.place("a", "c", 1);
    allocate(&scene, &id, &["d0"]).await;
    scene.runs(&id).await;
    scene.has_slots("a@all", 2).await;
    scene.has_slots("a", 2).await;
}

#[tokio::test]
async fn devices_of_a_claim_whose_pod_is_gone_are_taken() {
    let scene = scene(&["a"]).await;
    let id = scene.core.place("a", "c", 3);
    let claim = allocate(&scene, &id, &["d0", "d1", "d2"]).await;
    let pod = scene.runs(&id).await;
    // As of all claims that are allocated: it goes when Kubernetes has its devices back.
    let held = json!({"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}});
    scene.api.patch(CLAIMS, &pod.namespace, &claim, &held);
    scene.exits(&id, 0).await;
    scene.is_empty().await;
    scene
        .api
        .create(CLAIMS, "default", allocated("theirs", "a", &["d3"]));
    scene.has_slots("a", 0).await;
    scene.api.delete(CLAIMS, "default", "theirs");
    scene.has_slots("a", 1).await;
    let released = json!({"metadata": {"finalizers": null}});
    scene.api.patch(CLAIMS, &pod.namespace, &claim, &released);
    scene.has_slots("a", 4).await;
}

#[tokio::test]
async fn a_cluster_whose_devices_cannot_be_claimed_is_down_with_the_reason() {
    let named = |driver: Option<&str>| {
        let class = DeviceClass::new("odd", driver.map(str::to_owned));
        move |settings: &mut Settings| settings.slots = SlotResource::Devices(class).into()
    };
    let api = ApiDouble::start().await;
    let mut scene = Scene::start_over(api, TestCore::default(), named(None));
    let down = |what: &'static str| move |health: &Health| matches!(health, Health::Down(reason) if reason.contains(what));
    let missing = "the cluster has no DeviceClass \"odd\"";
    scene.has_health(missing, down(missing)).await;
    let expression = "device.driver.startsWith('d')";
    let odd = json!({"metadata": {"name": "odd"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}});
    scene.api.create(CLASSES, "", odd);
    scene.restart().await;
    let hint = "does not evaluate: set \"device_driver\"";
    scene.has_health(hint, down(hint)).await;
    scene.api.add_node("a", 0);
    publish(&scene.api, "a", &[("d0", "gpu"), ("m0", "mig")]);
    scene.reconfigure(named(Some("d.example.com")));
    scene.has_slots("a", 2).await;
}

#[tokio::test]
async fn devices_that_cannot_be_read_are_named_as_what_is_wrong() {
    let scene = scene(&["a"]).await;
    for verb in ["list", "watch"] {
        let faults = scene.api.faults();
        faults.forbid(verb, "resource.k8s.io", "resourceclaims", None);
    }
    scene.api.faults().drop_watches();
    let is_it = |health: &Health| matches!(health, Health::Down(reason) if reason.contains("ResourceClaims of the Kubernetes cluster"));
    scene.has_health("claims cannot be watched", is_it).await;
}
