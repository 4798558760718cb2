//! Workspaces: who may change them, what they give the experiments in them, and how they go.

use det_ids::WorkspaceId;
use det_store::workspaces::UNCATEGORIZED_WORKSPACE;
use reqwest::Method;
use serde_json::{Value, json};

use crate::pools::next_start;
use crate::support::{Client, Cluster};

const WORKSPACES: &str = "/api/v1/workspaces";
const POOLS: (&str, &str) = (
    "resource_pools",
    "[{pool_name: default}, {pool_name: gpu}, {pool_name: small}]",
);

/// Adds a workspace and gives it.
pub(super) async fn workspace(client: &Client, body: Value) -> Value {
    client.post(WORKSPACES, body).await.ok()["workspace"].take()
}

/// Adds a project to a workspace and gives its number.
pub(super) async fn project(client: &Client, workspace: &Value, name: &str) -> i64 {
    let path = format!("{WORKSPACES}/{}/projects", workspace["id"]);
    let made = client.post(&path, json!({"name": name})).await.ok();
    made["project"]["id"].as_i64().unwrap()
}

fn document(more: &Value) -> Value {
    let mut document = json!({
        "name": "trained",
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "loss"},
    });
    for (key, value) in more.as_object().unwrap() {
        document[key] = value.clone();
    }
    document
}

/// Submits a paused experiment; gives the whole answer.
pub(super) async fn submit(client: &Client, more: &Value, body: &Value) -> Value {
    let mut request = json!({"config": document(more).to_string(), "activate": false,
        "modelDefinition": [{"path": "train.py", "type": 48, "content": "", "mode": 0o644, "mtime": 1_700_000_000}]});
    for (key, value) in body.as_object().unwrap() {
        request[key] = value.clone();
    }
    client.post("/api/v1/experiments", request).await.ok()
}

async fn names(client: &Client, query: &str) -> String {
    let found = client.get(&format!("{WORKSPACES}?{query}")).await.ok();
    let found = found["workspaces"].as_array().unwrap().iter();
    let names: Vec<&str> = found.map(|w| w["name"].as_str().unwrap()).collect();
    names.join(",")
}

#[tokio::test]
async fn they_are_listed_by_name_owner_state_and_pin() {
    let cluster = Cluster::start().await;
    let (admin, client) = (cluster.admin().await, cluster.determined().await);
    let all = client.get(WORKSPACES).await.ok();
    assert_eq!(all["workspaces"][0]["name"], "Uncategorized");
    assert_eq!(all["workspaces"][0]["immutable"], true);
    assert_eq!(all["workspaces"][0]["username"], "admin");
    let vision = workspace(&client, json!({"name": "  vision "})).await;
    assert_eq!(
        (&vision["name"], &vision["username"]),
        (&json!("vision"), &json!("determined"))
    );
    for name in ["Vision 2", "audio"] {
        workspace(&admin, json!({"name": name})).await;
    }
    let id = vision["id"].as_i64().unwrap();
    client
        .post(&format!("{WORKSPACES}/{id}/pin"), Value::Null)
        .await
        .ok();
    let user = vision["userId"].as_i64().unwrap();
    for (query, expected) in [
        ("", "Uncategorized,vision,Vision 2,audio"),
        ("sortBy=SORT_BY_NAME", "audio,Uncategorized,vision,Vision 2"),
        (
            "sortBy=SORT_BY_NAME&orderBy=ORDER_BY_DESC",
            "Vision 2,vision,Uncategorized,audio",
        ),
        ("name=VISION", "vision,Vision 2"),
        ("name=Vision%202", "Vision 2"),
        ("orderBy=ORDER_BY_DESC&name=vision", "vision,Vision 2"),
        ("nameCaseSensitive=vision", "vision"),
        ("nameCaseSensitive=VISION", ""),
        ("pinned=true", "vision"),
        ("users=determined", "vision"),
        (&format!("userIds={user}"), "vision"),
        ("archived=true", ""),
        ("offset=1&limit=2", "vision,Vision 2"),
    ] {
        assert_eq!(names(&client, query).await, expected, "{query}");
    }
    // A pin is a user's own.
    assert_eq!(names(&admin, "pinned=true").await, "Vision 2,audio");
    client
        .post(&format!("{WORKSPACES}/{id}/unpin"), Value::Null)
        .await
        .ok();
    assert_eq!(names(&client, "pinned=true").await, "");
    // Memory is only a copy.
    let cluster = cluster.restart().await;
    let client = cluster.determined().await;
    assert_eq!(
        names(&client, "").await,
        "Uncategorized,vision,Vision 2,audio"
    );
    for path in [
        "",
        "/projects",
        "/available-resource-pools",
        "/get-k8s-resource-quotas",
    ] {
        let path = format!("{WORKSPACES}/77{path}");
        assert!(
            client.get(&path).await.refused(404).contains("77"),
            "{path}"
        );
        client.assert_needs_token(Method::GET, &path).await;
    }
    cluster.stop().await;
}

#[tokio::test]
async fn all_errors_are_reported_at_once_and_names_are_given_once() {
    let cluster = Cluster::start_with(&[POOLS]).await;
    let client = cluster.determined().await;
    let wrong = json!({"name": " ", "defaultComputePool": "no", "defaultAuxPool": "nor", "maxSlots": -2,
        "agentUserGroup": {"agentUid": 7}, "checkpointStorageConfig": {"type": "s3"},
        "clusterQuotaPairs": {"elsewhere": 1}});
    let refused = client.post(WORKSPACES, wrong).await.refused(400);
    for part in [
        "name: must not be blank",
        "defaultComputePool: pool \"no\" does not exist",
        "defaultAuxPool: pool \"nor\" does not exist",
        "maxSlots: must be 0 to",
        "agentUserGroup",
        "checkpointStorageConfig.bucket",
        "there is no such cluster",
    ] {
        assert!(refused.contains(part), "{part} in {refused}");
    }
    let large = json!({"type": "s3", "bucket": "b", "prefix": "x".repeat(64 << 10)});
    let large = json!({"name": "large", "checkpointStorageConfig": large});
    let refused = client.post(WORKSPACES, large).await.refused(400);
    assert!(
        refused.contains("checkpointStorageConfig: has 65")
            && refused.contains("at most 65536 are allowed"),
        "{refused}"
    );
    let kept = workspace(&client, json!({"name": "kept"})).await;
    let path = format!("{WORKSPACES}/{}", kept["id"]);
    let taken = client.post(WORKSPACES, json!({"name": "kept"})).await;
    assert!(taken.refused(409).contains("\"kept\""), "{taken:?}");
    workspace(&client, json!({"name": "Kept"})).await;
    let rename = json!({"name": "Kept"});
    client.patch(&path, rename).await.refused(409);
    let wrong = json!({"name": "x".repeat(81), "defaultComputeResourcePool": "no"});
    let refused = client.patch(&path, wrong).await.refused(400);
    assert!(
        refused.contains("at most 80") && refused.contains("\"no\""),
        "{refused}"
    );
    let namespace = json!({"name": "k", "clusterNamespaceMeta": {"": {"namespace": "n"}}});
    let refused = client.post(WORKSPACES, namespace).await.refused(403);
    assert!(refused.contains("bind workspaces"), "{refused}");
    // Uncategorized stays as it is.
    let admin = cluster.admin().await;
    for refused in [
        admin
            .patch(&format!("{WORKSPACES}/1"), json!({"name": "x"}))
            .await,
        admin
            .post(&format!("{WORKSPACES}/1/archive"), Value::Null)
            .await,
        admin.delete(&format!("{WORKSPACES}/1")).await,
    ] {
        assert!(
            refused
                .refused(400)
                .contains("\"Uncategorized\" belongs to the cluster")
        );
    }
    cluster.stop().await;
}

#[tokio::test]
async fn a_change_sets_what_is_given_and_empties_clear() {
    let cluster = Cluster::start_with(&[POOLS]).await;
    let (admin, client) = (cluster.admin().await, cluster.determined().await);
    let identity = json!({"agentUid": 7, "agentUser": "w", "agentGid": 8, "agentGroup": "g"});
    let storage = json!({"type": "s3", "bucket": "b", "access_key": "AK", "secret_key": "SK"});
    let full = json!({"name": "full", "defaultComputePool": "gpu", "defaultAuxPool": "small",
        "checkpointStorageConfig": storage, "agentUserGroup": identity, "clusterQuotaPairs": {"": 8}});
    let made = workspace(&admin, full).await;
    assert_eq!(made["agentUserGroup"], identity);
    assert_eq!(
        (&made["maxSlots"], &made["defaultAuxPool"]),
        (&json!(8), &json!("small"))
    );
    let shown = &made["checkpointStorageConfig"];
    assert_eq!(
        (&shown["bucket"], &shown["secret_key"]),
        (&json!("b"), &json!("********"))
    );
    let path = format!("{WORKSPACES}/{}", made["id"]);
    // What is shown in place of a secret is not taken for one.
    let echoed = json!({"checkpointStorageConfig": shown});
    let refused = admin.patch(&path, echoed).await.refused(400);
    assert!(
        refused.contains("checkpointStorageConfig.access_key"),
        "{refused}"
    );
    let nothing = json!({"name": null, "agentUserGroup": null, "defaultComputePool": null});
    let same = admin.patch(&path, nothing).await.ok()["workspace"].take();
    assert_eq!(same, made);
    let emptied = json!({"agentUserGroup": {}, "defaultComputeResourcePool": "", "defaultAuxPool": "",
        "checkpointStorageConfig": {}, "maxSlots": -1});
    let emptied = admin.patch(&path, emptied).await.ok()["workspace"].take();
    for key in [
        "agentUserGroup",
        "defaultComputePool",
        "defaultAuxPool",
        "maxSlots",
        "checkpointStorageConfig",
    ] {
        assert_eq!(emptied[key], Value::Null, "{key}");
    }
    // Only administrators limit slots and choose Unix identities: of what is another's, and of one's own.
    let own = workspace(&client, json!({"name": "own"})).await;
    let own = format!("{WORKSPACES}/{}", own["id"]);
    assert!(
        client
            .patch(&path, json!({"name": "mine"}))
            .await
            .refused(403)
            .contains("belongs to user \"admin\"")
    );
    for body in [json!({"maxSlots": 3}), json!({"agentUserGroup": identity})] {
        assert!(
            client
                .patch(&own, body.clone())
                .await
                .refused(403)
                .contains("admin"),
            "{body}"
        );
    }
    let pools = client
        .get(&format!("{own}/available-resource-pools"))
        .await
        .ok();
    assert_eq!(pools["resourcePools"], json!(["default", "gpu", "small"]));
    let events = admin.get("/api/v1/events").await.ok();
    let kinds: Vec<&str> = events["events"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|e| e["subjectKind"] == "workspace")
        .map(|e| e["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["created", "changed", "created"]);
    cluster.stop().await;
}

#[tokio::test]
async fn a_limit_of_slots_is_kept_where_scheduling_looks() {
    let cluster = Cluster::start_with(&[("resource_manager.cluster_name", "hall")]).await;
    let (admin, client) = (cluster.admin().await, cluster.determined().await);
    let made = workspace(&client, json!({"name": "w"})).await;
    let id = made["id"].as_i64().unwrap();
    let quota = format!("{WORKSPACES}/{id}/set-resource-quota");
    let quotas = format!("{WORKSPACES}/{id}/get-k8s-resource-quotas");
    assert_eq!(client.get(&quotas).await.ok()["resourceQuotas"], json!({}));
    for (pairs, limit) in [
        (json!({"": 4}), Some(4)),
        (json!({"hall": 0}), Some(0)),
        (json!({"": -1}), None),
    ] {
        admin
            .post(&quota, json!({"id": id, "clusterQuotaPairs": pairs}))
            .await
            .ok();
        assert_eq!(
            cluster
                .master()
                .homes
                .get()
                .slot_limits()
                .get(&WorkspaceId(id))
                .copied(),
            limit
        );
        let shown = client.get(&quotas).await.ok()["resourceQuotas"]["hall"].take();
        assert_eq!(shown.as_f64(), limit.map(f64::from));
    }
    let body = json!({"clusterQuotaPairs": {"": 4}});
    assert!(
        client
            .post(&quota, body.clone())
            .await
            .refused(403)
            .contains("limit the slots")
    );
    let refused = admin
        .post(&quota, json!({"clusterQuotaPairs": {"other": 4}}))
        .await
        .refused(400);
    assert!(refused.contains("one cluster: \"hall\""), "{refused}");
    // Of Uncategorized too: else it would be the way around every limit.
    admin
        .post(&format!("{WORKSPACES}/1/set-resource-quota"), body)
        .await
        .ok();
    let cluster = cluster.restart().await;
    assert_eq!(
        cluster.master().homes.get().slot_limits(),
        [(UNCATEGORIZED_WORKSPACE, 4)].into()
    );
    cluster.stop().await;
}

#[tokio::test]
async fn experiments_take_pools_storage_and_policies_of_their_workspace() {
    let cluster = Cluster::start_with(&[POOLS]).await;
    let (admin, client) = (cluster.admin().await, cluster.determined().await);
    let made = workspace(&client, json!({"name": "vision", "defaultComputePool": "gpu", "defaultAuxPool": "small",
        "checkpointStorageConfig": {"type": "directory", "container_path": "/kept", "save_trial_best": 5}})).await;
    let segments = project(&client, &made, "segments").await;
    let policies = format!(
        "/api/v1/config-policies/workspaces/{}/EXPERIMENT",
        made["id"]
    );
    let policy = json!({"configPolicies": "invariant_config: {max_restarts: 2}"});
    admin.put(&policies, policy).await.ok();
    let inside = json!({"workspace": "vision", "project": "segments"});
    let placed = submit(&client, &inside, &json!({})).await;
    let config = &placed["config"];
    assert_eq!(config["resources"]["resource_pool"], "gpu");
    assert_eq!(config["checkpoint_storage"]["container_path"], "/kept");
    assert_eq!(config["checkpoint_storage"]["save_trial_best"], 5);
    assert_eq!(config["max_restarts"], 2);
    let experiment = &placed["experiment"];
    assert_eq!(experiment["projectId"], segments);
    assert_eq!(
        (&experiment["workspaceName"], &experiment["projectName"]),
        (&json!("vision"), &json!("segments"))
    );
    assert_eq!(experiment["workspaceId"], made["id"]);
    // The number of a project wins over names; its pool for work without slots.
    let aux = json!({"resources": {"slots_per_trial": 0}, "workspace": "Uncategorized", "project": "Uncategorized"});
    let placed = submit(&client, &aux, &json!({"projectId": segments})).await;
    assert_eq!(placed["config"]["resources"]["resource_pool"], "small");
    assert_eq!(placed["experiment"]["projectId"], segments);
    // What is named wins; what is elsewhere knows nothing of it.
    let named = json!({"resources": {"resource_pool": "default"}, "workspace": "vision", "project": "segments",
        "checkpoint_storage": {"container_path": "/other"}});
    let placed = submit(&client, &named, &json!({})).await;
    assert_eq!(placed["config"]["resources"]["resource_pool"], "default");
    assert_eq!(
        placed["config"]["checkpoint_storage"]["container_path"],
        "/other"
    );
    assert_eq!(placed["config"]["checkpoint_storage"]["save_trial_best"], 5);
    let placed = submit(&client, &json!({}), &json!({})).await;
    assert_eq!(placed["config"]["resources"]["resource_pool"], "default");
    assert_eq!(placed["config"]["checkpoint_storage"]["type"], "shared_fs");
    assert_eq!(placed["config"]["max_restarts"], 5);
    // Errors in the workspace and the project are reported with the others.
    for (more, part) in [
        (
            json!({"workspace": "visoin", "project": "segments"}),
            "workspace \"visoin\" does not exist",
        ),
        (
            json!({"workspace": "vision", "project": "x"}),
            "project \"x\" does not exist",
        ),
        (json!({"workspace": "vision"}), "project"),
    ] {
        let mut wrong = document(&more);
        wrong["max_restarts"] = json!(-1);
        let body = json!({"config": wrong.to_string(), "validateOnly": true});
        let refused = client.post("/api/v1/experiments", body).await.refused(400);
        assert!(
            refused.contains(part) && refused.contains("max_restarts"),
            "{part}: {refused}"
        );
    }
    let templates = json!({"name": "t", "config": {}, "workspaceId": made["id"]});
    let template = client.post("/api/v1/templates/t", templates).await.ok();
    assert_eq!(template["template"]["workspaceId"], made["id"]);
    let nowhere = json!({"name": "u", "config": {}, "workspaceId": 77});
    client
        .post("/api/v1/templates/u", nowhere)
        .await
        .refused(404);
    client
        .get("/api/v1/config-policies/workspaces/77/EXPERIMENT")
        .await
        .refused(404);
    cluster.stop().await;
}

#[tokio::test]
async fn an_archived_workspace_takes_nothing_more_and_hides_what_is_in_it() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let made = workspace(&client, json!({"name": "old"})).await;
    let inner = project(&client, &made, "p").await;
    let inside =
        submit(&client, &json!({}), &json!({"projectId": inner})).await["experiment"]["id"].clone();
    let path = format!("{WORKSPACES}/{}", made["id"]);
    client
        .post(&format!("{path}/archive"), Value::Null)
        .await
        .ok();
    client
        .post(&format!("{path}/archive"), Value::Null)
        .await
        .ok();
    let listed = async |query: &str| {
        let found = client
            .get(&format!("/api/v1/experiments?{query}"))
            .await
            .ok();
        found["pagination"]["total"].as_i64().unwrap()
    };
    assert_eq!((listed("archived=false").await, listed("").await), (0, 1));
    assert_eq!(
        listed(&format!("archived=false&projectId={inner}")).await,
        1
    );
    let shown = client
        .get(&format!("/api/v1/experiments/{inside}"))
        .await
        .ok();
    assert_eq!(shown["experiment"]["parentArchived"], true);
    assert_eq!(
        client.get(&format!("/api/v1/projects/{inner}")).await.ok()["project"]["archived"],
        true
    );
    let body = json!({"config": document(&json!({})).to_string(), "projectId": inner});
    let refused = client.post("/api/v1/experiments", body).await.refused(400);
    assert!(
        refused.contains("\"p\" of workspace \"old\" is archived"),
        "{refused}"
    );
    let more = json!({"name": "q"});
    let refused = client
        .post(&format!("{path}/projects"), more)
        .await
        .refused(400);
    assert!(refused.contains("archived"), "{refused}");
    client
        .post(&format!("{path}/unarchive"), Value::Null)
        .await
        .ok();
    assert_eq!(listed("archived=false").await, 1);
    cluster.stop().await;
}

#[tokio::test]
async fn a_workspace_goes_with_everything_in_it() {
    let cluster = Cluster::start().await;
    let (admin, client) = (cluster.admin().await, cluster.determined().await);
    let made = workspace(&client, json!({"name": "gone"})).await;
    let path = format!("{WORKSPACES}/{}", made["id"]);
    let inner = project(&client, &made, "p").await;
    project(&client, &made, "empty").await;
    let template = json!({"config": {}, "workspaceId": made["id"]});
    client.post("/api/v1/templates/t", template).await.ok();
    let live =
        submit(&client, &json!({}), &json!({"projectId": inner})).await["experiment"]["id"].clone();
    let foreign =
        submit(&admin, &json!({}), &json!({"projectId": inner})).await["experiment"]["id"].clone();
    let refused = client.delete(&path).await.refused(400);
    assert!(
        refused.contains("2 experiments in it have not come to their end"),
        "{refused}"
    );
    for id in [&live, &foreign] {
        client
            .post(&format!("/api/v1/experiments/{id}/kill"), Value::Null)
            .await
            .ok();
    }
    let refused = client.delete(&path).await.refused(403);
    assert!(
        refused.contains(&format!("1 experiment in it belong to others ({foreign})")),
        "{refused}"
    );
    let answer = admin.delete(&path).await.ok();
    assert_eq!(answer["completed"], false);
    cluster
        .until(&client, WORKSPACES, |all| all["pagination"]["total"] == 1)
        .await;
    client.get(&path).await.refused(404);
    client
        .get(&format!("/api/v1/projects/{inner}"))
        .await
        .refused(404);
    client
        .get(&format!("/api/v1/experiments/{live}"))
        .await
        .refused(404);
    client.get("/api/v1/templates/t").await.refused(404);
    // Without experiments it goes at once.
    let made = workspace(&client, json!({"name": "gone"})).await;
    project(&client, &made, "p").await;
    let answer = client
        .delete(&format!("{WORKSPACES}/{}", made["id"]))
        .await
        .ok();
    assert_eq!(answer["completed"], true);
    assert_eq!(names(&client, "").await, "Uncategorized");
    cluster.stop().await;
}

#[tokio::test]
async fn a_limit_holds_back_what_starts_and_counts_over_all_pools() {
    let cluster = Cluster::start_with(&[POOLS]).await;
    let (admin, client) = (cluster.admin().await, cluster.determined().await);
    let made = workspace(&admin, json!({"name": "small", "maxSlots": 2})).await;
    let path = format!("{WORKSPACES}/{}", made["id"]);
    let home = project(&admin, &made, "p").await;
    let mut default = cluster.agent_in("default", "a", 4).await;
    let mut gpu = cluster.agent_in("gpu", "b", 4).await;
    let begin = async |name: &str, resources: Value, project: i64| {
        let more = json!({"name": name, "resources": resources});
        let body = json!({"projectId": project, "activate": true});
        submit(&client, &more, &body).await["experiment"]["id"]
            .as_i64()
            .unwrap()
    };
    begin("one", json!({"resource_pool": "gpu"}), home).await;
    next_start(&mut gpu).await;
    begin("two", json!({}), home).await;
    let second = next_start(&mut default).await;
    let third = begin("three", json!({}), home).await;
    begin("elsewhere", json!({}), 1).await;
    next_start(&mut default).await;

    let trial = format!("/api/v1/trials/{third}");
    let waits = |answer: &Value| answer["trial"]["waitReason"]["kind"] == "over_workspace_limit";
    let shown = cluster.until(&client, &trial, waits).await;
    assert_eq!(
        shown["trial"]["waitReason"]["details"],
        json!({"workspace": made["id"], "needed": 1, "max_slots": 2, "in_use": 2})
    );
    // Who is in its way in other pools is reported as well.
    let experiment = client
        .get(&format!("/api/v1/experiments/{third}"))
        .await
        .ok();
    let job = experiment["experiment"]["jobId"].as_str().unwrap();
    let explanation = client
        .get(&format!("/api/v1/job-queues/{job}/why"))
        .await
        .ok();
    let holders = |member: &str| {
        let listed = explanation[member].as_array().unwrap().iter();
        let named = listed.map(|holder| (holder["name"].clone(), holder["resourcePool"].clone()));
        named.collect::<Vec<_>>()
    };
    assert_eq!(
        holders("workspaceHeldInOtherPools"),
        [(json!("one"), json!("gpu"))]
    );
    assert!(holders("heldBy").contains(&(json!("two"), json!("default"))));
    // What can never start is refused, and the refusal names what could.
    let config = document(&json!({"resources": {"slots_per_trial": 3}})).to_string();
    let refused = json!({"config": config, "projectId": home, "validateOnly": true});
    let refused = client
        .post("/api/v1/experiments", refused)
        .await
        .refused(400);
    assert!(
        refused.contains("needs 3, and workspace \"small\" may use 2"),
        "{refused}"
    );

    // An end frees capacity, and so does another limit.
    default.exits(&second, 0).await;
    next_start(&mut default).await;
    let fourth = begin("four", json!({}), home).await;
    let trial = format!("/api/v1/trials/{fourth}");
    cluster.until(&client, &trial, waits).await;
    admin.patch(&path, json!({"maxSlots": -1})).await.ok();
    next_start(&mut default).await;
    cluster.stop().await;
}
