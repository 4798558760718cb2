//! Services of tasks through a Gateway, and at ports of nodes.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use det_ids::ContainerId;
use det_kube_double::{ApiDouble, Objects, give_node_ports};
use det_lifecycle::container::{DesiredState, ObservedState};
use det_rm::{ContainerAddress, Health, Reach as _, ReachError};
use det_rm_contract::{TestCore, offer_services, within};
use det_rm_kube::{Exposure, GatewayName, GatewaySettings, PodStream};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::support::{Scene, named, running};

const GROUP: &str = "gateway.networking.k8s.io";
const GATEWAYS: &str = "gateway.networking.k8s.io/v1/gateways";
const SETS: &str = "gateway.networking.k8s.io/v1/listenersets";
const ROUTES: &str = "gateway.networking.k8s.io/v1/tcproutes";
/// The line about services that could not be reached before.
const REACHED: &str = "services of the task are reached now";
/// The port of the service of a task.
const PORT: u16 = 8888;

/// Where the administrator's Gateway takes listeners.
#[derive(Clone, Copy)]
enum Admits {
    /// In itself alone.
    Listeners,
    Sets,
}

/// A cluster with a Gateway.
async fn cluster(admits: Admits) -> ApiDouble {
    let api = ApiDouble::start().await;
    for plural in ["gateways", "listenersets", "tcproutes"] {
        api.add_kind(GROUP, "v1", plural);
    }
    add_gateway(&api, admits);
    api
}

fn add_gateway(api: &ApiDouble, admits: Admits) {
    api.create("v1/namespaces", "", json!({"metadata": {"name": "infra"}}));
    add_gateway_named(api, "shared", admits);
}

fn add_gateway_named(api: &ApiDouble, name: &str, admits: Admits) {
    let mut gateway = json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {"name": name},
        "spec": {
            "gatewayClassName": "any",
            "listeners": [{"name": "web", "port": 80, "protocol": "HTTP"}],
        },
    });
    if matches!(admits, Admits::Sets) {
        gateway["spec"]["allowedListeners"] = json!({"namespaces": {"from": "All"}});
    }
    api.create(GATEWAYS, "infra", gateway);
}

fn through_gateway(first: u16, last: u16) -> Exposure {
    through_gateway_named("shared", first, last)
}

fn through_gateway_named(name: &str, first: u16, last: u16) -> Exposure {
    Exposure::Gateway(GatewaySettings {
        gateway: GatewayName {
            namespace: "infra".to_owned(),
            name: name.to_owned(),
        },
        address: "127.0.0.1".to_owned(),
        ports: first..=last,
    })
}

/// A manager that reaches services so, of a cluster with a node.
async fn scene(api: ApiDouble, exposure: Exposure) -> Scene {
    let scene = Scene::start_over(api, TestCore::default(), |it| it.exposure = exposure);
    scene.api.add_node("a", 32);
    scene.has_slots("a", 32).await;
    scene
}

/// A task with a service, whose pod runs.
async fn task(scene: &Scene, id: &str) -> ContainerId {
    offer_services(&scene.core, &[id], &[PORT]);
    let id = scene.core.place("a", id, 1);
    scene.has_node(&id).await;
    let mut status = running();
    status["hostIP"] = "127.0.0.1".into();
    scene.set_status(&scene.pod_of(&id).unwrap(), &status);
    let runs =
        |core: &TestCore| matches!(core.row(&id).observed, Some(ObservedState::Running { .. }));
    scene.core.until(&format!("{id} runs"), runs).await;
    id
}

fn gateway(scene: &Scene) -> Value {
    scene.api.get(GATEWAYS, "infra", "shared").unwrap()
}

/// The ports that the Gateway and all sets have listeners of the manager at.
fn ports(objects: Objects<'_>) -> Vec<u16> {
    let holders = [objects.list(GATEWAYS, ""), objects.list(SETS, "")].concat();
    let listeners = holders
        .iter()
        .flat_map(|it| it["spec"]["listeners"].as_array().cloned().unwrap());
    let own = listeners.filter(|it| it["protocol"] == "TCP");
    own.map(|it| u16::try_from(it["port"].as_u64().unwrap()).unwrap())
        .collect()
}

async fn has_listeners(scene: &Scene, count: usize) {
    let has = |objects: &Objects<'_>| ports(*objects).len() == count;
    scene.api.until(&format!("{count} listeners"), has).await;
}

/// The controller of the Gateway has the listeners of the manager work which have a route by now.
fn program(scene: &Scene) {
    for kind in [GATEWAYS, SETS] {
        for holder in scene.api.list(kind, "") {
            let listeners = holder["spec"]["listeners"].as_array().unwrap().iter();
            let listeners: Vec<Value> = listeners
                .map(|it| {
                    json!({
                        "name": it["name"],
                        "attachedRoutes": 1,
                        "conditions": [{"type": "Programmed", "status": "True", "reason": "Programmed"}],
                    })
                })
                .collect();
            let at = |key: &str| holder["metadata"][key].as_str().unwrap();
            let status = json!({"status": {"listeners": listeners}});
            scene.api.patch(kind, at("namespace"), at("name"), &status);
        }
    }
}

/// A dial, after the controller of the Gateway has done its part.
async fn dial(scene: &Scene, id: &ContainerId) -> Result<PodStream, ReachError> {
    // Nothing connects to the pod's address.
    let container = ContainerAddress {
        manager: "k".to_owned(),
        place: "a".into(),
        container_id: id.clone(),
        host_address: "192.0.2.1".to_owned(),
    };
    within("a dial", scene.reach.dial(&container, PORT)).await
}

async fn refusal(scene: &Scene, id: &ContainerId) -> String {
    match dial(scene, id).await {
        Err(ReachError::Unreachable(reason)) => reason,
        other => panic!("not refused: {other:?}"),
    }
}

/// A line of the log of a task contains this.
async fn logged(scene: &Scene, id: &ContainerId, text: &str) {
    let has = |core: &TestCore| core.notes(id).iter().any(|line| line.contains(text));
    scene.core.until(&format!("a line with: {text}"), has).await;
}

/// Bytes go to what listens, and back.
async fn carries(scene: &Scene, id: &ContainerId, listener: &TcpListener) {
    let (stream, accepted) =
        tokio::join!(dial(scene, id), within("a connection", listener.accept()));
    let (mut stream, (mut service, _)) = (stream.unwrap(), accepted.unwrap());
    let mut buffer = [0; 4];
    stream.write_all(b"ping").await.unwrap();
    service.read_exact(&mut buffer).await.unwrap();
    assert_eq!(&buffer, b"ping");
    service.write_all(b"pong").await.unwrap();
    stream.read_exact(&mut buffer).await.unwrap();
    assert_eq!(&buffer, b"pong");
}

/// What listens for the test, as a Gateway or a node does.
async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at: SocketAddr = listener.local_addr().unwrap();
    (listener, at.port())
}

/// A task is reached through the Gateway, and nothing is left of it when it has ended.
async fn is_reached_through_the_gateway(admits: Admits) {
    let (listener, port) = listener().await;
    let scene = scene(cluster(admits).await, through_gateway(port, port)).await;
    let id = task(&scene, "c").await;
    has_listeners(&scene, 1).await;
    scene
        .api
        .until("a route", |objects| objects.list(ROUTES, "").len() == 1)
        .await;
    program(&scene);
    carries(&scene, &id, &listener).await;
    let job = scene.job();
    for kind in ["v1/services", SETS, ROUTES] {
        for object in scene.api.list(kind, "") {
            let owner = &object["metadata"]["ownerReferences"][0];
            assert_eq!(owner["uid"], job["metadata"]["uid"], "{kind}");
        }
    }
    scene.exits(&id, 0).await;
    scene.core.remove(&id);
    scene.is_empty().await;
    has_listeners(&scene, 0).await;
    for kind in [SETS, ROUTES] {
        assert_eq!(scene.api.list(kind, ""), Vec::<Value>::new());
    }
    let left = gateway(&scene);
    assert_eq!(left["spec"]["listeners"].as_array().unwrap().len(), 1);
    let notes = left["metadata"]["annotations"].as_object();
    assert!(notes.is_none_or(serde_json::Map::is_empty), "{left}");
}

#[tokio::test]
async fn a_service_is_reached_by_a_listener_of_the_gateway() {
    is_reached_through_the_gateway(Admits::Listeners).await;
}

#[tokio::test]
async fn a_service_is_reached_by_a_listener_set() {
    is_reached_through_the_gateway(Admits::Sets).await;
}

#[tokio::test]
async fn a_service_is_reached_at_a_port_of_its_node() {
    let (listener, port) = listener().await;
    let api = ApiDouble::start().await;
    give_node_ports(&api, &[port]);
    let scene = scene(api, Exposure::NodePort).await;
    let id = task(&scene, "c").await;
    carries(&scene, &id, &listener).await;
    let service = scene.api.list("v1/services", "").remove(0);
    assert_eq!(service["spec"]["externalTrafficPolicy"], "Local");
    scene.exits(&id, 0).await;
    scene.core.remove(&id);
    scene.is_empty().await;
}

/// Many tasks have ports of their own, also after the manager has begun anew.
async fn ports_are_never_given_twice(admits: Admits) {
    let mut scene = scene(cluster(admits).await, through_gateway(40_000, 40_031)).await;
    let mut ids = Vec::new();
    for number in 0..24 {
        offer_services(&scene.core, &[&format!("c{number}")], &[PORT]);
        ids.push(scene.core.place("a", &format!("c{number}"), 1));
    }
    has_listeners(&scene, 24).await;
    let given = ports(scene.api.objects());
    let distinct: BTreeSet<u16> = given.iter().copied().collect();
    assert_eq!(distinct.len(), 24, "{given:?}");
    scene.restart().await;
    scene.is_quiet("a").await;
    let others: BTreeSet<u16> = ports(scene.api.objects()).into_iter().collect();
    assert_eq!(others, distinct);
    for id in &ids[..12] {
        scene.is_killed(id).await;
        scene.core.remove(id);
    }
    has_listeners(&scene, 12).await;
}

#[tokio::test]
async fn listeners_of_the_gateway_have_ports_of_their_own() {
    ports_are_never_given_twice(Admits::Listeners).await;
}

#[tokio::test]
async fn listener_sets_have_ports_of_their_own() {
    ports_are_never_given_twice(Admits::Sets).await;
}

#[tokio::test]
async fn a_listener_goes_with_a_task_that_ended_while_no_manager_ran() {
    let (_listener, port) = listener().await;
    let mut scene = scene(
        cluster(Admits::Listeners).await,
        through_gateway(port, port),
    )
    .await;
    let id = task(&scene, "c").await;
    has_listeners(&scene, 1).await;
    scene.stop().await;
    let job = scene.job();
    let name = job["metadata"]["name"].as_str().unwrap();
    let pod = scene.pod_of(&id).unwrap();
    scene.api.delete("batch/v1/jobs", &pod.namespace, name);
    scene.finish_deletion(&id);
    scene.begin();
    has_listeners(&scene, 0).await;
    let has_ended = |core: &TestCore| core.row(&id).ended;
    scene.core.until("the end of the task", has_ended).await;
}

#[tokio::test]
async fn conflicts_at_the_gateway_are_decided_on_anew() {
    let (listener, port) = listener().await;
    let scene = scene(
        cluster(Admits::Listeners).await,
        through_gateway(port, port),
    )
    .await;
    scene.api.faults().fail_next("PATCH", "gateways", 409, 3);
    let id = task(&scene, "c").await;
    has_listeners(&scene, 1).await;
    // What others have done to it meanwhile stays.
    let mut listeners = gateway(&scene)["spec"]["listeners"]
        .as_array()
        .unwrap()
        .clone();
    listeners.push(json!({"name": "more", "port": 81, "protocol": "HTTP"}));
    let patch = json!({"spec": {"listeners": listeners}});
    scene.api.patch(GATEWAYS, "infra", "shared", &patch);
    program(&scene);
    carries(&scene, &id, &listener).await;
    scene.is_killed(&id).await;
    has_listeners(&scene, 0).await;
    assert_eq!(
        gateway(&scene)["spec"]["listeners"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

#[tokio::test]
async fn nothing_is_left_of_a_task_whose_route_could_not_be_made() {
    for admits in [Admits::Listeners, Admits::Sets] {
        let scene = scene(cluster(admits).await, through_gateway(40_000, 40_001)).await;
        scene.api.faults().fail_next("POST", "tcproutes", 500, 1000);
        let id = task(&scene, "c").await;
        has_listeners(&scene, 1).await;
        logged(&scene, &id, "the request to create").await;
        scene.is_killed(&id).await;
        scene.core.remove(&id);
        has_listeners(&scene, 0).await;
        scene.is_empty().await;
    }
}

#[tokio::test]
async fn a_missing_right_is_the_reason_until_it_is_given() {
    for (verb, group, plural, namespace) in [
        ("patch", GROUP, "gateways", Some("infra")),
        ("get", GROUP, "gateways", Some("infra")),
        ("list", GROUP, "listenersets", None),
        ("create", GROUP, "tcproutes", Some("default")),
        ("create", "", "services", Some("default")),
    ] {
        let (listener, port) = listener().await;
        let scene = scene(
            cluster(Admits::Listeners).await,
            through_gateway(port, port),
        )
        .await;
        let faults = scene.api.faults();
        faults.forbid(verb, group, plural, namespace);
        let id = task(&scene, "c").await;
        logged(&scene, &id, &format!("the master may not {verb} ")).await;
        let reason = refusal(&scene, &id).await;
        assert!(
            reason.contains("its service account needs that right"),
            "{reason}"
        );
        let is_named = |health: &Health| matches!(health, Health::Degraded(reason) if reason.contains("the master may not"));
        scene.has_health("the reason", is_named).await;
        faults.allow_all();
        has_listeners(&scene, 1).await;
        program(&scene);
        logged(&scene, &id, REACHED).await;
        carries(&scene, &id, &listener).await;
        scene.has_health("up", |health| *health == Health::Up).await;
    }
}

#[tokio::test]
async fn a_cluster_without_the_gateway_api_is_the_reason() {
    let (listener, port) = listener().await;
    let scene = scene(ApiDouble::start().await, through_gateway(port, port)).await;
    let id = task(&scene, "c").await;
    logged(&scene, &id, "the cluster has no TCPRoute").await;
    // An older version of it has no sets, and another version of routes.
    scene.api.add_kind(GROUP, "v1", "gateways");
    scene.api.add_kind(GROUP, "v1alpha2", "tcproutes");
    logged(&scene, &id, "there is no Gateway \"shared\"").await;
    add_gateway(&scene.api, Admits::Sets);
    has_listeners(&scene, 1).await;
    program(&scene);
    logged(&scene, &id, REACHED).await;
    carries(&scene, &id, &listener).await;
    let route = scene
        .api
        .list("gateway.networking.k8s.io/v1alpha2/tcproutes", "");
    assert_eq!(route[0]["apiVersion"], "gateway.networking.k8s.io/v1alpha2");
}

#[tokio::test]
async fn a_task_waits_for_a_port_that_another_one_has() {
    for admits in [Admits::Listeners, Admits::Sets] {
        let (listener, port) = listener().await;
        let scene = scene(cluster(admits).await, through_gateway(port, port)).await;
        let first = task(&scene, "c1").await;
        has_listeners(&scene, 1).await;
        let second = task(&scene, "c2").await;
        logged(
            &scene,
            &second,
            "its services need 1 ports of the gateway, and fewer of",
        )
        .await;
        assert!(
            refusal(&scene, &second)
                .await
                .contains("gateway_port_range_start")
        );
        scene.exits(&first, 0).await;
        scene.core.remove(&first);
        let is_seconds = |objects: &Objects<'_>| {
            let routes = objects.list(ROUTES, "");
            let service =
                |route: &Value| route["spec"]["rules"][0]["backendRefs"][0]["name"].to_string();
            routes.len() == 1
                && ports(*objects).len() == 1
                && service(&routes[0]).contains("-of-c2-")
        };
        scene.api.until("the second has the port", is_seconds).await;
        program(&scene);
        logged(&scene, &second, REACHED).await;
        carries(&scene, &second, &listener).await;
    }
}

#[tokio::test]
async fn a_gateway_that_refuses_a_listener_is_the_reason() {
    let (_listener, port) = listener().await;
    let scene = scene(cluster(Admits::Sets).await, through_gateway(port, port)).await;
    let id = task(&scene, "c").await;
    has_listeners(&scene, 1).await;
    // No controller serves the Gateway.
    logged(&scene, &id, "no controller has reported on it yet").await;
    let set = scene.api.list(SETS, "").remove(0);
    let at = |key: &str| set["metadata"][key].as_str().unwrap();
    let refused = json!({"status": {"conditions": [{
        "type": "Accepted", "status": "False", "reason": "NotAllowed", "message": "not from this namespace",
    }]}});
    scene.api.patch(SETS, at("namespace"), at("name"), &refused);
    logged(
        &scene,
        &id,
        "Accepted is False, NotAllowed: not from this namespace",
    )
    .await;
    assert!(refusal(&scene, &id).await.contains("docs/kubernetes.md"));
}

#[tokio::test]
async fn only_the_chief_of_a_gang_offers_services() {
    let (listener, port) = listener().await;
    let scene = scene(cluster(Admits::Sets).await, through_gateway(port, port)).await;
    offer_services(&scene.core, &["c0", "c1"], &[PORT]);
    let ids = scene.core.place_gang(&[("a", "c0", 2), ("a", "c1", 2)]);
    for id in &ids {
        scene.runs(id).await;
    }
    has_listeners(&scene, 1).await;
    let services = scene.api.list("v1/services", "");
    let names = services
        .iter()
        .map(|it| it["metadata"]["name"].as_str().unwrap());
    let own: Vec<&str> = names.filter(|name| name.ends_with("-s")).collect();
    assert_eq!(own.len(), 1);
    program(&scene);
    carries(&scene, &ids[0], &listener).await;
    for id in &ids {
        scene.core.want(id, DesiredState::Kill);
    }
}

#[tokio::test]
async fn services_are_reached_as_the_manager_is_configured_now() {
    let (listener, port) = listener().await;
    let mut scene = scene(
        cluster(Admits::Listeners).await,
        through_gateway(port, port),
    )
    .await;
    let id = task(&scene, "c").await;
    has_listeners(&scene, 1).await;
    program(&scene);
    carries(&scene, &id, &listener).await;
    give_node_ports(&scene.api, &[port]);
    scene.reconfigure(|settings| settings.exposure = Exposure::NodePort);
    let is_on_nodes = |objects: &Objects<'_>| {
        let services = objects.list("v1/services", "");
        services[0]["spec"]["type"] == "NodePort"
    };
    scene.api.until("a Service on nodes", is_on_nodes).await;
    carries(&scene, &id, &listener).await;
}

#[tokio::test]
async fn what_others_have_deleted_is_made_again_when_it_is_missed() {
    let (listener, port) = listener().await;
    let scene = scene(cluster(Admits::Sets).await, through_gateway(port, port)).await;
    let id = task(&scene, "c").await;
    has_listeners(&scene, 1).await;
    program(&scene);
    carries(&scene, &id, &listener).await;
    let route = scene.api.list(ROUTES, "").remove(0);
    let at = |key: &str| route["metadata"][key].as_str().unwrap();
    scene.api.delete(ROUTES, at("namespace"), at("name"));
    // Nothing answers without it.
    drop(listener);
    assert!(
        refusal(&scene, &id)
            .await
            .contains("cannot be reached at 127.0.0.1")
    );
    scene
        .api
        .until("a route", |objects| objects.list(ROUTES, "").len() == 1)
        .await;
}

#[tokio::test]
async fn a_task_that_runs_is_reached_through_another_gateway_that_is_configured() {
    let (listener, port) = listener().await;
    let mut scene = scene(cluster(Admits::Sets).await, through_gateway(port, port)).await;
    add_gateway_named(&scene.api, "other", Admits::Sets);
    let id = task(&scene, "c").await;
    has_listeners(&scene, 1).await;
    program(&scene);
    carries(&scene, &id, &listener).await;
    let other = through_gateway_named("other", port, port);
    scene.reconfigure(|settings| settings.exposure = other);
    let is_of_other = |objects: &Objects<'_>| {
        let sets = objects.list(SETS, "");
        sets.len() == 1 && sets[0]["spec"]["parentRef"]["name"] == "other"
    };
    scene.api.until("a set of the other", is_of_other).await;
    program(&scene);
    carries(&scene, &id, &listener).await;
}

#[tokio::test]
async fn a_task_has_no_more_ports_of_nodes_than_listeners_of_a_gateway() {
    let scene = scene(ApiDouble::start().await, Exposure::NodePort).await;
    let ports: Vec<u16> = (1..=65).collect();
    offer_services(&scene.core, &["c"], &ports);
    let id = scene.core.place("a", "c", 1);
    logged(&scene, &id, "it has 65 services, and at most 64 of a task").await;
    assert_eq!(scene.api.list("v1/services", ""), Vec::<Value>::new());
}

#[tokio::test]
async fn connections_that_fail_do_not_have_everything_asked_for_each_time() {
    // Nothing listens at these ports.
    let scene = scene(cluster(Admits::Sets).await, through_gateway(1, 2)).await;
    let id = task(&scene, "c1").await;
    has_listeners(&scene, 1).await;
    program(&scene);
    for _ in 0..8 {
        refusal(&scene, &id).await;
    }
    scene.was_asked("POST tcproutes", 2).await;
    for _ in 0..8 {
        refusal(&scene, &id).await;
    }
    // All services are looked at for another one.
    task(&scene, "c2").await;
    let has_routes = |objects: &Objects<'_>| objects.list(ROUTES, "").len() == 2;
    scene.api.until("two routes", has_routes).await;
    let calls = scene.calls().into_iter();
    assert_eq!(calls.filter(|it| it == "POST tcproutes").count(), 3);
}

#[tokio::test]
async fn a_port_in_conflict_is_given_back_for_another_one() {
    for admits in [Admits::Listeners, Admits::Sets] {
        let scene = scene(cluster(admits).await, through_gateway(40_000, 40_001)).await;
        task(&scene, "c").await;
        has_listeners(&scene, 1).await;
        let port = ports(scene.api.objects())[0];
        let (kind, holder) = match admits {
            Admits::Listeners => (GATEWAYS, gateway(&scene)),
            Admits::Sets => (SETS, scene.api.list(SETS, "").remove(0)),
        };
        let listeners = holder["spec"]["listeners"].as_array().unwrap().iter();
        let own = listeners.clone().find(|it| it["port"] == port).unwrap();
        let status = json!({"status": {"listeners": [{
            "name": own["name"],
            "conditions": [{"type": "Conflicted", "status": "True", "reason": "HostnameConflict"}],
        }]}});
        let at = |key: &str| holder["metadata"][key].as_str().unwrap();
        scene.api.patch(kind, at("namespace"), at("name"), &status);
        let has_another = |objects: &Objects<'_>| {
            let routes = objects.list(ROUTES, "");
            let other = 80_001 - u32::from(port);
            let section = routes[0]["spec"]["parentRefs"][0]["sectionName"].as_str();
            ports(*objects).iter().map(|it| u32::from(*it)).eq([other])
                && section.is_some_and(|name| name.starts_with(&format!("det-{other}")))
        };
        scene.api.until("another port", has_another).await;
    }
}

#[tokio::test]
async fn a_job_of_an_earlier_version_is_the_reason() {
    let mut scene = scene(ApiDouble::start().await, Exposure::NodePort).await;
    let id = task(&scene, "c").await;
    scene.stop().await;
    let (namespace, name) = named(&scene.job());
    let patch = json!({"metadata": {"annotations": {"determined.ai/service_ports": null}}});
    scene.api.patch("batch/v1/jobs", &namespace, &name, &patch);
    scene.begin();
    scene.is_quiet("a").await;
    let reason = refusal(&scene, &id).await;
    assert!(reason.contains("start it again"), "{reason}");
}

#[tokio::test]
async fn a_route_that_leads_nowhere_is_the_reason() {
    let (listener, port) = listener().await;
    let scene = scene(cluster(Admits::Sets).await, through_gateway(port, port)).await;
    let id = task(&scene, "c").await;
    let has_route = |objects: &Objects<'_>| objects.list(ROUTES, "").len() == 1;
    scene.api.until("a route", has_route).await;
    let (namespace, name) = named(&scene.api.list(ROUTES, "")[0]);
    let resolved = |status: &str, reason: &str| {
        let condition = json!({"type": "ResolvedRefs", "status": status, "reason": reason});
        let patch = json!({"status": {"parents": [{"conditions": [condition]}]}});
        scene.api.patch(ROUTES, &namespace, &name, &patch);
    };
    resolved("False", "InvalidKind");
    program(&scene);
    logged(&scene, &id, "ResolvedRefs is False, InvalidKind").await;
    resolved("True", "ResolvedRefs");
    logged(&scene, &id, REACHED).await;
    carries(&scene, &id, &listener).await;
}
