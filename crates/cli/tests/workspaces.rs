//! Workspaces and projects, and moving experiments between them.

mod support;

use serde_json::{Value, json};
use support::User;
use support::stub::{Answer, StubMaster, ok};

fn master() -> StubMaster {
    let stub = StubMaster::start();
    let workspace = |id: i64, name: &str| {
        json!({"id": id, "name": name, "numProjects": 1, "agentUserGroup": null, "defaultComputePool": "gpu",
               "defaultAuxPool": null, "maxSlots": 8, "checkpointStorageConfig": {"type": "s3"}})
    };
    stub.on(
        "GET /api/v1/workspaces",
        ok(
            json!({"workspaces": [workspace(1, "Uncategorized"), workspace(2, "vision")],
            "pagination": {"endIndex": 2, "total": 2}}),
        ),
    );
    stub.on(
        "GET /api/v1/workspaces/2/projects",
        ok(json!({"projects": [
            {"id": 7, "key": "SEG", "name": "segments", "description": "d", "numExperiments": 3, "numActiveExperiments": 1},
        ], "pagination": {"endIndex": 1, "total": 1}})),
    );
    stub
}

#[test]
fn workspaces_are_listed_and_shown_in_every_form() {
    let stub = master();
    let user = User::using(&stub);
    let csv = user.det(&["w", "ls", "--csv", "--sort-by", "name"]).ok();
    assert_eq!(
        csv,
        "ID,Name,# Projects,Agent Uid,Agent Gid,Agent User,Agent Group,Default Compute Pool,Default Aux Pool,Max Slots,Archived\n\
         1,Uncategorized,1,,,,,gpu,,8,\n2,vision,1,,,,,gpu,,8,\n"
    );
    assert!(
        stub.last("GET /api/v1/workspaces")
            .line
            .contains("sortBy=SORT_BY_NAME")
    );
    let shown = user
        .det(&["workspace", "describe", "vision", "--json"])
        .ok();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["id"], 2);
    let table = user.det(&["workspace", "describe", "vision"]).ok();
    assert!(
        table.contains("Checkpoint Storage Config") && table.contains("\"s3\""),
        "{table}"
    );
    let csv = user.det(&["w", "list-projects", "vision", "--csv"]).ok();
    let expected = "ID,Key,Name,Description,# Experiments,# Active Experiments,Archived\n7,SEG,segments,d,3,1,\n";
    assert_eq!(csv, expected);
    assert_eq!(user.det(&["p", "list", "vision", "--csv"]).ok(), expected);
    let err = user.det(&["w", "describe", "visoin"]).fails(1);
    assert!(
        err.contains("no workspace \"visoin\"; the workspaces are: Uncategorized, vision"),
        "{err}"
    );
    let pools =
        json!({"resourcePools": ["default", "gpu"], "pagination": {"endIndex": 2, "total": 2}});
    stub.on(
        "GET /api/v1/workspaces/2/available-resource-pools",
        ok(pools),
    );
    let pools = user.det(&["w", "list-pools", "vision", "--csv"]).ok();
    assert_eq!(
        pools,
        "Workspace,Available Resource Pools\nvision,\"default, gpu\"\n"
    );
}

#[test]
fn workspaces_are_bound_to_namespaces() {
    let stub = master();
    let user = User::using(&stub);
    let binding = |namespace: &str, made: bool| {
        json!({"namespaceBindings": {"hall": {"workspaceId": 2, "clusterName": "hall",
            "namespace": namespace, "autoCreateNamespace": made}}})
    };
    let bindings = "/api/v1/workspaces/2/namespace-bindings";
    stub.on(&format!("POST {bindings}"), ok(binding("research", false)));
    let given = ["w", "bindings", "set", "vision", "--namespace", "research"];
    let output = user.det(&given).ok();
    assert_eq!(
        output,
        "Workspace vision is bound to namespace research of cluster hall\n"
    );
    let body = stub.last(&format!("POST {bindings}")).json();
    assert_eq!(body["clusterNamespaceMeta"][""]["namespace"], "research");
    let made = [
        "workspace",
        "bindings",
        "set",
        "vision",
        "--cluster-name",
        "hall",
        "--auto-create-namespace",
    ];
    user.det(&made).ok();
    let body = stub.last(&format!("POST {bindings}")).json();
    let meta = &body["clusterNamespaceMeta"]["hall"];
    assert_eq!(
        (&meta["autoCreateNamespace"], &meta["namespace"]),
        (&json!(true), &Value::Null)
    );
    let err = user.det(&["w", "bindings", "set", "vision"]).fails(2);
    assert!(err.contains("--auto-create-namespace"), "{err}");
    let list = "/api/v1/workspaces/2/list-namespace-bindings";
    stub.on(&format!("GET {list}"), ok(binding("made", true)));
    let csv = user.det(&["w", "bindings", "ls", "vision", "--csv"]).ok();
    assert_eq!(csv, "Cluster,Namespace,Auto-created\nhall,made,True\n");
    stub.on(&format!("DELETE {bindings}"), ok(json!({})));
    let words = [
        "w",
        "bindings",
        "delete",
        "vision",
        "--cluster-name",
        "hall",
    ];
    user.det(&words).ok();
    let line = stub.last(&format!("DELETE {bindings}")).line;
    assert!(line.contains("clusterNames=hall"), "{line}");
    let quotas = "GET /api/v1/workspaces/2/get-k8s-resource-quotas";
    stub.on(quotas, ok(json!({"resourceQuotas": {"hall": 4}})));
    let csv = user
        .det(&["w", "resource-quota", "ls", "vision", "--csv"])
        .ok();
    assert_eq!(csv, "Cluster,Slots\nhall,4\n");
    let made = json!({"workspace": {"id": 3, "name": "new"}, "namespaceBindings": {}});
    stub.on("POST /api/v1/workspaces", ok(made));
    let words = [
        "w",
        "create",
        "new",
        "--auto-create-namespace-all-clusters",
        "--resource-quota",
        "3",
    ];
    user.det(&words).ok();
    let body = stub.last("POST /api/v1/workspaces").json();
    assert_eq!(
        body["clusterNamespaceMeta"][""]["autoCreateNamespaceAllClusters"],
        true
    );
    assert_eq!(body["clusterQuotaPairs"], json!({"": 3}));
}

#[test]
fn what_is_set_is_sent_and_nothing_else() {
    let stub = master();
    let user = User::using(&stub);
    let made = ok(json!({"workspace": {"id": 3, "name": "new"}, "namespaceBindings": {}}));
    stub.on("POST /api/v1/workspaces", made.clone());
    stub.on("PATCH /api/v1/workspaces/2", made);
    stub.on(
        "POST /api/v1/workspaces/2/set-resource-quota",
        ok(json!({})),
    );
    user.write("storage.yaml", "type: directory\ncontainer_path: /kept\n");
    let words = [
        "w",
        "create",
        "new",
        "--agent-uid",
        "7",
        "--agent-user",
        "ada",
        "--agent-gid",
        "8",
        "--agent-group",
        "staff",
        "--default-compute-pool",
        "gpu",
        "--checkpoint-storage-config-file",
        "storage.yaml",
        "--resource-quota",
        "4",
    ];
    user.det(&words).ok();
    let body = stub.last("POST /api/v1/workspaces").json();
    assert_eq!(
        body["agentUserGroup"],
        json!({"agentUid": 7, "agentUser": "ada", "agentGid": 8, "agentGroup": "staff"})
    );
    assert_eq!(
        body["checkpointStorageConfig"],
        json!({"type": "directory", "container_path": "/kept"})
    );
    assert_eq!(
        (&body["clusterQuotaPairs"], &body["defaultAuxPool"]),
        (&json!({"": 4}), &Value::Null)
    );
    assert_eq!(body["clusterNamespaceMeta"], Value::Null);
    user.det(&[
        "w",
        "edit",
        "vision",
        "--max-slots",
        "none",
        "--checkpoint-storage-config",
        "{}",
    ])
    .ok();
    let body = stub.last("PATCH /api/v1/workspaces/2").json();
    assert_eq!(
        (&body["maxSlots"], &body["checkpointStorageConfig"]),
        (&json!(-1), &json!({}))
    );
    assert_eq!(
        (&body["name"], &body["agentUserGroup"]),
        (&Value::Null, &Value::Null)
    );
    let output = user
        .det(&["w", "resource-quota", "set", "vision", "6"])
        .ok();
    assert_eq!(output, "Workspace vision is limited to 6 slots\n");
    let body = stub
        .last("POST /api/v1/workspaces/2/set-resource-quota")
        .json();
    assert_eq!(body["clusterQuotaPairs"], json!({"": 6}));
    for wrong in ["-3", "some"] {
        let flag = format!("--max-slots={wrong}");
        let err = user.det(&["w", "edit", "vision", &flag]).fails(2);
        assert!(err.contains("a number of slots, or none"), "{err}");
    }
}

#[test]
fn deleting_waits_until_it_is_gone() {
    let stub = master();
    let user = User::using(&stub);
    let err = user.det(&["w", "delete", "vision"]).fails(2);
    assert!(err.contains("--yes"), "{err}");
    stub.on(
        "DELETE /api/v1/workspaces/2",
        ok(json!({"completed": true})),
    );
    let output = user.det(&["w", "delete", "vision", "--yes"]).ok();
    assert_eq!(output, "Deleted workspace vision\n");
    stub.on("DELETE /api/v1/projects/7", ok(json!({"completed": false})));
    let gone = Answer::Json(404, json!({"error": {"error": "project \"7\" not found"}}));
    stub.on("GET /api/v1/projects/7", gone);
    let output = user
        .det(&["p", "delete", "vision", "segments", "--yes"])
        .ok();
    assert_eq!(output, "Deleted project segments\n");
    let failed =
        json!({"project": {"state": "WORKSPACE_STATE_DELETE_FAILED", "errorMessage": "disk full"}});
    stub.on("GET /api/v1/projects/7", ok(failed));
    let err = user
        .det(&["p", "delete", "vision", "segments", "--yes"])
        .fails(1);
    assert!(
        err.contains("project segments could not be deleted: disk full"),
        "{err}"
    );
}

#[test]
fn projects_are_made_changed_and_filled() {
    let stub = master();
    let user = User::using(&stub);
    let made = ok(json!({"project": {"id": 8, "key": "NEW", "name": "new"}}));
    stub.on("POST /api/v1/workspaces/2/projects", made.clone());
    stub.on("PATCH /api/v1/projects/7", made);
    for action in ["archive", "unarchive"] {
        stub.on(&format!("POST /api/v1/projects/7/{action}"), ok(json!({})));
        user.det(&["project", action, "vision", "segments"]).ok();
        stub.last(&format!("POST /api/v1/projects/7/{action}"));
    }
    user.det(&["p", "create", "vision", "new", "--key", "NEW"])
        .ok();
    let body = stub.last("POST /api/v1/workspaces/2/projects").json();
    assert_eq!(
        body,
        json!({"name": "new", "description": null, "key": "NEW"})
    );
    user.det(&["p", "edit", "vision", "segments", "--new_name", "parts"])
        .ok();
    let body = stub.last("PATCH /api/v1/projects/7").json();
    assert_eq!(
        body,
        json!({"name": "parts", "description": null, "key": null})
    );
    stub.on("POST /api/v1/experiments/5/move", ok(json!({})));
    let output = user.det(&["e", "move", "5", "vision", "segments"]).ok();
    assert_eq!(output, "Moved experiment 5 to project \"segments\"\n");
    let body = stub.last("POST /api/v1/experiments/5/move").json();
    assert_eq!(body, json!({"experimentId": 5, "destinationProjectId": 7}));
    let err = user.det(&["e", "move", "5", "vision", "x"]).fails(1);
    assert!(
        err.contains("no project \"x\" in workspace \"vision\"; its projects are: segments"),
        "{err}"
    );
    let experiments = json!({"experiments": [{"id": 5, "name": "one"}], "pagination": {"endIndex": 1, "total": 1}});
    stub.on("GET /api/v1/experiments", ok(experiments));
    let shown = user.det(&["p", "describe", "vision", "segments"]).ok();
    assert!(
        shown.contains("Associated Experiments") && shown.contains("one"),
        "{shown}"
    );
    let query = stub.last("GET /api/v1/experiments").line;
    assert!(
        query.contains("projectId=7") && query.contains("archived=false"),
        "{query}"
    );
    user.det(&["p", "list-experiments", "vision", "segments", "--all"])
        .ok();
    assert!(
        !stub
            .last("GET /api/v1/experiments")
            .line
            .contains("archived")
    );
}
