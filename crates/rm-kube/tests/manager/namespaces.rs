//! Namespaces of workspaces, and quotas in them.

use det_ids::WorkspaceId;
use det_kube_double::Objects;
use det_rm::{BoundNamespace, NamespaceAccess, NamespaceError, NamespaceRequest, PlacedNamespace};
use det_rm_contract::TestCore;
use serde_json::{Value, json};

use crate::support::Scene;
use crate::support::steps::text;

const VISION: WorkspaceId = WorkspaceId(7);

fn namespace(scene: &Scene, name: &str) {
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    scene.api.create("v1/namespaces", "", object);
}

fn quota(scene: &Scene, namespace: &str, name: &str, gpus: u32) {
    let hard = json!({"requests.nvidia.com/gpu": gpus.to_string()});
    let object = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": {"hard": hard},
    });
    scene.api.create("v1/resourcequotas", namespace, object);
}

fn placed(name: &str, made: bool) -> PlacedNamespace {
    PlacedNamespace {
        name: name.to_owned(),
        made,
    }
}

/// A workspace is bound to a namespace that is made for it.
fn make(core: &TestCore, name: &str, quota: Option<u32>) {
    core.want_namespaces(|wanted| {
        let bound = BoundNamespace {
            workspaces: [VISION].into(),
            made_for: Some(VISION),
            quota,
        };
        wanted.bound.insert(name.to_owned(), bound);
    });
}

/// A workspace is bound to a namespace that exists.
fn bind(core: &TestCore, name: &str) {
    core.want_namespaces(|wanted| {
        let entry = wanted.bound.entry(name.to_owned()).or_default();
        entry.workspaces.insert(VISION);
    });
}

fn request(namespace: &str, made: bool, quota: Option<u32>) -> NamespaceRequest {
    NamespaceRequest {
        manager: "k".to_owned(),
        namespace: namespace.to_owned(),
        made,
        quota,
        shared: false,
    }
}

/// Why a namespace is refused, with what to do.
async fn refusal(scene: &Scene, asked: NamespaceRequest) -> (String, String) {
    match scene.desks.check(&asked).await {
        Err(NamespaceError::Refused { message, hint }) => (message, hint),
        other => panic!("{asked:?} is refused: {other:?}"),
    }
}

/// The slots that the quota of a namespace that is made allows; `None` = it has none.
fn slots(objects: Objects<'_>, namespace: &str) -> Option<Value> {
    let name = format!("{namespace}-quota");
    let quota = objects.get("v1/resourcequotas", namespace, &name)?;
    Some(quota["spec"]["hard"]["requests.nvidia.com/gpu"].clone())
}

async fn has_quota(scene: &Scene, namespace: &str, wanted: Option<&str>) {
    let wanted = wanted.map(Value::from);
    let what = format!("the quota of {namespace} is {wanted:?}");
    let is_so = |objects: &Objects<'_>| slots(*objects, namespace) == wanted;
    scene.api.until(&what, is_so).await;
}

async fn exists(scene: &Scene, namespace: &str, wanted: bool) {
    let what = format!("namespace {namespace} exists: {wanted}");
    let is_so = |objects: &Objects<'_>| {
        let found = objects.get("v1/namespaces", "", namespace);
        found.is_some_and(|it| it["metadata"]["deletionTimestamp"].is_null()) == wanted
    };
    scene.api.until(&what, is_so).await;
}

async fn has_limit(scene: &Scene, wanted: Option<u32>) {
    let what = format!("the workspace may use {wanted:?} slots");
    let is_so = |core: &TestCore| core.limits("k").get(&VISION).copied() == wanted;
    scene.core.until(&what, is_so).await;
}

#[tokio::test]
async fn a_task_runs_in_the_namespace_that_it_was_placed_in() {
    let mut scene = Scene::with_nodes(&[("a", 2)]).await;
    // Bound while the manager runs.
    namespace(&scene, "research");
    bind(&scene.core, "research");
    scene.core.put_in_namespace("c", placed("research", false));
    let id = scene.core.place("a", "c", 2);
    let pod = scene.runs(&id).await;
    assert_eq!(pod.namespace, "research");
    for kind in ["batch/v1/jobs", "v1/secrets"] {
        assert_eq!(scene.api.list(kind, "research").len(), 1, "{kind}");
    }
    // Bound elsewhere meanwhile, and the manager begins again.
    scene.core.want_namespaces(|wanted| wanted.bound.clear());
    scene.stop().await;
    scene.core.restart();
    scene.begin();
    scene.has_slots("a", 2).await;
    scene.exits(&id, 0).await;
    scene.is_empty().await;
    assert_eq!(scene.core.row(&id).starts, 1);
}

#[tokio::test]
async fn a_namespace_is_made_with_its_quota_and_kept() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    make(&scene.core, "vision", Some(4));
    scene.desks.carry_out("k", "vision").await.unwrap();
    exists(&scene, "vision", true).await;
    has_quota(&scene, "vision", Some("4")).await;
    has_limit(&scene, Some(4)).await;
    let made = scene.api.get("v1/namespaces", "", "vision").unwrap();
    let labels = &made["metadata"]["labels"];
    assert_eq!(labels["determined"], "vision");
    assert_eq!(labels["determined.ai/workspace_id"], "7");
    // Once more: nothing is left to do.
    let asked = scene.api.requests().len();
    scene.desks.carry_out("k", "vision").await.unwrap();
    let later = scene.api.requests().split_off(asked);
    let writes = later.iter().filter(|it| it.method != "GET");
    assert_eq!(writes.count(), 0, "{later:?}");
    // Others change it, or delete it.
    let hard = json!({"spec": {"hard": {"requests.nvidia.com/gpu": "9", "pods": "1"}}});
    let at = ("v1/resourcequotas", "vision", "vision-quota");
    scene.api.patch(at.0, at.1, at.2, &hard);
    has_quota(&scene, "vision", Some("4")).await;
    scene.api.delete(at.0, at.1, at.2);
    has_quota(&scene, "vision", Some("4")).await;
    scene.api.delete("v1/namespaces", "", "vision");
    exists(&scene, "vision", true).await;
    has_quota(&scene, "vision", Some("4")).await;
    make(&scene.core, "vision", Some(2));
    has_quota(&scene, "vision", Some("2")).await;
    make(&scene.core, "vision", None);
    has_quota(&scene, "vision", None).await;
    has_limit(&scene, None).await;
}

#[tokio::test]
async fn a_namespace_that_existed_before_is_never_taken_or_deleted() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    namespace(&scene, "vision");
    make(&scene.core, "vision", Some(4));
    let error = scene
        .desks
        .carry_out("k", "vision")
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("not made by this master"), "{error}");
    let (message, hint) = refusal(&scene, request("vision", true, None)).await;
    assert!(message.contains("exists, and was not made"), "{message}");
    assert!(hint.contains("--namespace"), "{hint}");
    // Its workspace goes.
    scene.core.want_namespaces(|wanted| {
        wanted.bound.clear();
        wanted.removed.insert("vision".to_owned());
    });
    let is_done = |core: &TestCore| core.wanted_namespaces().removed.is_empty();
    scene.core.until("nothing is to be removed", is_done).await;
    exists(&scene, "vision", true).await;
    assert!(scene.api.list("v1/resourcequotas", "vision").is_empty());
}

#[tokio::test]
async fn a_quota_of_others_in_the_way_holds_up_its_own_namespace_alone() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    make(&scene.core, "vision", None);
    scene.desks.carry_out("k", "vision").await.unwrap();
    quota(&scene, "vision", "vision-quota", 3);
    has_limit(&scene, Some(3)).await;
    make(&scene.core, "vision", Some(4));
    let error = scene.desks.carry_out("k", "vision").await.unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("\"vision-quota\" exists, and was not made by this master"),
        "{error}"
    );
    // The workspaces of other namespaces have theirs.
    scene.core.want_namespaces(|wanted| {
        let bound = BoundNamespace {
            workspaces: [WorkspaceId(8)].into(),
            made_for: Some(WorkspaceId(8)),
            quota: Some(5),
        };
        wanted.bound.insert("speech".to_owned(), bound);
    });
    scene.desks.carry_out("k", "speech").await.unwrap();
    has_quota(&scene, "speech", Some("5")).await;
    // Once it is out of the way, it is set without being asked for.
    scene
        .api
        .delete("v1/resourcequotas", "vision", "vision-quota");
    has_quota(&scene, "vision", Some("4")).await;
    has_limit(&scene, Some(4)).await;
}

#[tokio::test]
async fn a_namespace_that_was_made_goes_with_its_workspace() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    make(&scene.core, "vision", Some(4));
    scene.desks.carry_out("k", "vision").await.unwrap();
    scene.core.want_namespaces(|wanted| {
        wanted.bound.clear();
        wanted.removed.insert("vision".to_owned());
    });
    exists(&scene, "vision", false).await;
    let is_done = |core: &TestCore| core.wanted_namespaces().removed.is_empty();
    scene.core.until("it is known to be gone", is_done).await;
}

#[tokio::test]
async fn the_lowest_quota_counts_those_of_others_included() {
    let scene = Scene::with_nodes(&[("a", 8)]).await;
    namespace(&scene, "research");
    quota(&scene, "research", "of-the-institute", 3);
    bind(&scene.core, "research");
    has_limit(&scene, Some(3)).await;
    quota(&scene, "research", "another", 1);
    has_limit(&scene, Some(1)).await;
    scene.api.delete("v1/resourcequotas", "research", "another");
    has_limit(&scene, Some(3)).await;
    scene.core.want_namespaces(|wanted| wanted.bound.clear());
    has_limit(&scene, None).await;
    make(&scene.core, "vision", Some(4));
    scene.desks.carry_out("k", "vision").await.unwrap();
    quota(&scene, "vision", "of-the-institute", 2);
    has_limit(&scene, Some(2)).await;
    has_quota(&scene, "vision", Some("4")).await;
    let (message, hint) = refusal(&scene, request("vision", true, Some(3))).await;
    assert!(message.contains("2 slots, fewer than 3"), "{message}");
    assert!(hint.contains("at most 2"), "{hint}");
    scene
        .desks
        .check(&request("vision", true, Some(2)))
        .await
        .unwrap();
}

#[tokio::test]
async fn several_workspaces_share_no_namespace_with_a_quota_of_slots() {
    let scene = Scene::with_nodes(&[("a", 8)]).await;
    namespace(&scene, "research");
    let shared = |quota| NamespaceRequest {
        shared: true,
        ..request("research", false, quota)
    };
    scene.desks.check(&shared(None)).await.unwrap();
    quota(&scene, "research", "of-the-institute", 3);
    let (message, hint) = refusal(&scene, shared(None)).await;
    assert!(
        message.contains("has a quota for 3 slots, and other workspaces are bound to it"),
        "{message}"
    );
    assert!(hint.contains("namespace of its own"), "{hint}");
    let (message, _) = refusal(&scene, shared(Some(2))).await;
    assert!(
        message.contains("other workspaces are bound to it"),
        "{message}"
    );
    // One workspace is held to it.
    let alone = request("research", false, None);
    scene.desks.check(&alone).await.unwrap();
}

#[tokio::test]
async fn a_namespace_where_no_task_could_start_is_refused_with_what_to_do() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    let (message, hint) = refusal(&scene, request("reserch", false, None)).await;
    assert_eq!(
        message,
        "namespace \"reserch\" of cluster \"k\" does not exist"
    );
    assert!(hint.contains("kubectl create namespace reserch"), "{hint}");
    namespace(&scene, "research");
    scene
        .desks
        .check(&request("research", false, None))
        .await
        .unwrap();
    let faults = scene.api.faults();
    faults.forbid("create", "batch", "jobs", Some("research"));
    let (message, hint) = refusal(&scene, request("research", false, None)).await;
    assert!(
        message.contains("the master may not create Jobs there"),
        "{message}"
    );
    assert!(hint.contains("service account"), "{hint}");
    faults.allow_all();
    faults.forbid("create", "", "namespaces", None);
    let (message, hint) = refusal(&scene, request("vision", true, None)).await;
    assert!(message.contains("may not create namespaces"), "{message}");
    assert!(hint.contains("rbac.workspaceBindings"), "{hint}");
    faults.allow_all();
    faults.forbid("get", "", "namespaces", None);
    let (message, _) = refusal(&scene, request("research", false, None)).await;
    assert!(message.contains("may not read namespaces"), "{message}");
    let elsewhere = NamespaceRequest {
        manager: "other".to_owned(),
        ..request("research", false, None)
    };
    let error = scene.desks.check(&elsewhere).await.unwrap_err();
    assert!(matches!(error, NamespaceError::Unavailable(_)), "{error:?}");
}

#[tokio::test]
async fn a_task_waits_for_a_namespace_that_is_still_to_be_made() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    let faults = scene.api.faults();
    faults.forbid("create", "", "namespaces", None);
    make(&scene.core, "vision", None);
    let error = scene
        .desks
        .carry_out("k", "vision")
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("could not be made"), "{error}");
    scene.core.put_in_namespace("c", placed("vision", true));
    let id = scene.core.place("a", "c", 2);
    scene.was_asked("POST secrets", 1).await;
    assert!(!scene.core.row(&id).ended);
    faults.allow_all();
    let pod = scene.runs(&id).await;
    assert_eq!(pod.namespace, "vision");
}

#[tokio::test]
async fn a_task_fails_in_a_namespace_that_others_have_deleted() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    scene.core.put_in_namespace("c", placed("research", false));
    let id = scene.core.place("a", "c", 2);
    let exit = scene.has_ended(&id).await;
    let why = text(&exit);
    assert!(why.contains("namespaces \"research\" not found"), "{why}");
}

#[tokio::test]
async fn without_bindings_namespaces_are_only_read() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    let id = scene.core.place("a", "c", 2);
    scene.runs(&id).await;
    scene.exits(&id, 0).await;
    scene.is_empty().await;
    scene.desks.carry_out("k", "vision").await.unwrap();
    let requests = scene.api.requests();
    let of_namespaces = requests
        .iter()
        .filter(|it| it.path.ends_with("/namespaces") || it.path.contains("resourcequotas"));
    let methods: Vec<&str> = of_namespaces.map(|it| it.method.as_str()).collect();
    // A list and a watch of each.
    assert_eq!(methods, ["GET"; 4], "{requests:?}");
}
