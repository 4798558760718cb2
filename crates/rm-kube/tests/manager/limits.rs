//! What namespaces demand of the pods in them.

use det_ids::WorkspaceId;
use det_rm::{BoundNamespace, FitQuery};
use det_rm_contract::TestCore;
use serde_json::{Value, json};

use super::nodes::lacking;
use crate::support::Scene;

/// Waits until these places do not fit for this reason, and no others.
async fn lack(scene: &Scene, what: &str, places: &[&str], reason: &str) {
    let is_so = |core: &TestCore| {
        let found = lacking(core, None);
        found.keys().eq(places) && found.values().all(|it| it.contains(reason))
    };
    scene.core.until(what, is_so).await;
}

/// A quota in a namespace, of which so much is used.
fn add_quota(scene: &Scene, namespace: &str, hard: &Value, used: &Value) {
    let quota = json!({"metadata": {"name": "few"}, "spec": {"hard": hard}});
    scene.api.create("v1/resourcequotas", namespace, quota);
    let status = json!({"status": {"hard": hard, "used": used}});
    let kind = "v1/resourcequotas";
    scene.api.patch(kind, namespace, "few", &status);
}

#[tokio::test]
async fn a_quota_that_is_used_up_is_the_reason_for_waiting_until_it_has_capacity() {
    let scene = Scene::with_nodes(&[("a", 2), ("b", 2)]).await;
    let gpu = "requests.nvidia.com/gpu";
    let hard = json!({gpu: "4", "pods": "9"});
    add_quota(&scene, "default", &hard, &json!({gpu: "4", "pods": "2"}));
    let reason = "quota \"few\" of namespace \"default\" has requests.nvidia.com/gpu 4 used of 4, and the task needs 1";
    lack(&scene, "the quota is used up", &["a", "b"], reason).await;
    let less = json!({"status": {"used": {gpu: "3"}}});
    scene
        .api
        .patch("v1/resourcequotas", "default", "few", &less);
    lack(&scene, "a task has ended", &[], "").await;
    let used = json!({"status": {"used": {gpu: "4"}}});
    scene
        .api
        .patch("v1/resourcequotas", "default", "few", &used);
    lack(&scene, "another one has begun", &["a", "b"], reason).await;
    scene.api.delete("v1/resourcequotas", "default", "few");
    lack(&scene, "the quota is gone", &[], "").await;
}

#[tokio::test]
async fn quotas_count_for_the_workspaces_of_their_namespace() {
    let scene = Scene::with_nodes(&[("a", 2)]).await;
    let team = json!({"metadata": {"name": "team"}});
    scene.api.create("v1/namespaces", "", team);
    let all = json!({"pods": "2"});
    add_quota(&scene, "team", &all, &all);
    scene.is_quiet("a").await;
    assert_eq!(lacking(&scene.core, None).len(), 0);
    scene.core.want_namespaces(|wanted| {
        let bound = BoundNamespace {
            workspaces: [WorkspaceId(1)].into(),
            ..BoundNamespace::default()
        };
        wanted.bound.insert("team".to_owned(), bound);
    });
    lack(&scene, "the workspace is bound", &["a"], "pods 2 used of 2").await;
}

/// Whether the tasks of a workspace wait for a quota that no node would change; `None` = they wait for none.
fn is_refused(core: &TestCore, workspace: i64) -> Option<bool> {
    let query = FitQuery {
        pool: "default",
        workspace: Some(WorkspaceId(workspace)),
        slots: 1,
        demands: None,
    };
    let misfits = core.fit("k")?.misfits(query)?;
    assert!(misfits.groups[0].reason.contains("quota \"few\""));
    Some(misfits.is_refused)
}

#[tokio::test]
async fn no_node_is_of_use_to_what_the_quota_of_a_workspace_does_not_admit() {
    // Without nodes, so that all of them are to be added.
    let scene = Scene::with_nodes(&[]).await;
    let team = json!({"metadata": {"name": "team"}});
    scene.api.create("v1/namespaces", "", team);
    scene.core.want_namespaces(|wanted| {
        let bound = BoundNamespace {
            workspaces: [WorkspaceId(1)].into(),
            ..BoundNamespace::default()
        };
        wanted.bound.insert("team".to_owned(), bound);
    });
    let until = async |what: &str, workspace, expected| {
        let is_so = |core: &TestCore| is_refused(core, workspace) == expected;
        scene.core.until(what, is_so).await;
    };
    let all = json!({"requests.cpu": "2"});
    add_quota(&scene, "team", &all, &all);
    until("the quota is used up", 1, Some(true)).await;
    assert_eq!(is_refused(&scene.core, 2), None);
    // Pods that ask for nodes are in the namespace of the pool, where quotas count them.
    add_quota(&scene, "default", &all, &all);
    scene.api.add_node("a", 1);
    until("so is the pool's", 2, Some(false)).await;
    scene.api.delete("v1/resourcequotas", "default", "few");
    until("the quota is gone", 2, None).await;
    let secrets = json!({"secrets": "2"});
    add_quota(&scene, "default", &secrets, &secrets);
    until("there are too many Secrets", 2, Some(true)).await;
    assert_eq!(is_refused(&scene.core, 1), Some(true));
}

#[tokio::test]
async fn tasks_go_to_the_nodes_that_their_namespace_selects() {
    let scene = Scene::with_nodes(&[("a", 2), ("b", 2)]).await;
    let label = json!({"metadata": {"labels": {"zone": "x"}}});
    scene.api.patch("v1/nodes", "", "b", &label);
    let selector = json!({"metadata": {"annotations": {
        "scheduler.alpha.kubernetes.io/node-selector": "zone=x",
    }}});
    scene.api.patch("v1/namespaces", "", "default", &selector);
    let reason = "namespace \"default\" has its pods on nodes with the label \"zone=x\" alone";
    lack(&scene, "one node is not selected", &["a"], reason).await;
    scene.api.patch("v1/nodes", "", "a", &label);
    lack(&scene, "both are", &[], "").await;
}

#[tokio::test]
async fn a_master_without_the_right_to_read_namespaces_and_quotas_runs_tasks_all_the_same() {
    let scene = Scene::with_nodes(&[]).await;
    for kind in ["namespaces", "resourcequotas"] {
        scene.api.faults().fail_next("GET", kind, 403, 1000);
    }
    scene.api.add_node("a", 2);
    scene.has_slots("a", 2).await;
    scene.is_quiet("a").await;
    assert_eq!(lacking(&scene.core, None).len(), 0);
}
