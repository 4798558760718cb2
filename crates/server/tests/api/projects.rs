//! Projects: names and keys, notes, moving them and what is in them, and how they go.

use reqwest::Method;
use serde_json::{Value, json};

use super::workspaces::{project, submit, workspace};
use crate::support::{Client, Cluster};

async fn show(client: &Client, id: i64) -> Value {
    client.get(&format!("/api/v1/projects/{id}")).await.ok()["project"].take()
}

async fn names(client: &Client, workspace: &Value, query: &str) -> String {
    let path = format!("/api/v1/workspaces/{}/projects?{query}", workspace["id"]);
    let found = client.get(&path).await.ok();
    let found = found["projects"].as_array().unwrap().iter();
    let names: Vec<&str> = found.map(|p| p["name"].as_str().unwrap()).collect();
    names.join(",")
}

#[tokio::test]
async fn names_are_unique_in_a_workspace_and_keys_in_the_cluster() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let (one, two) = (
        workspace(&client, json!({"name": "one"})).await,
        workspace(&client, json!({"name": "two"})).await,
    );
    let first = project(&client, &one, " vision ").await;
    let second = project(&client, &two, "vision").await;
    let shown = show(&client, first).await;
    assert_eq!(
        (&shown["name"], &shown["key"], &shown["workspaceName"]),
        (&json!("vision"), &json!("VIS"), &json!("one"))
    );
    assert_eq!(show(&client, second).await["key"], "VIS1");
    let path = format!("/api/v1/workspaces/{}/projects", one["id"]);
    let refused = client
        .post(&path, json!({"name": "vision"}))
        .await
        .refused(409);
    assert!(
        refused.contains("\"vision\" of workspace \"one\""),
        "{refused}"
    );
    let refused = client
        .post(&path, json!({"name": "x", "key": "vis1"}))
        .await
        .refused(409);
    assert!(
        refused.contains("\"VIS1\" belongs to project \"vision\" of workspace \"two\""),
        "{refused}"
    );
    let refused = client
        .post(&path, json!({"name": "", "key": "toolong"}))
        .await
        .refused(400);
    assert!(
        refused.contains("name: must not be blank") && refused.contains("key: must be 1 to 5"),
        "{refused}"
    );
    let by_key = client.get("/api/v1/projects/key/vis1").await.ok();
    assert_eq!(by_key["project"]["id"], second);
    client.get("/api/v1/projects/key/NONE").await.refused(404);

    project(&client, &one, "Audio").await;
    project(&client, &one, "vision 2").await;
    for (query, expected) in [
        ("", "vision,Audio,vision 2"),
        ("sortBy=SORT_BY_NAME", "Audio,vision,vision 2"),
        (
            "sortBy=SORT_BY_CREATION_TIME&orderBy=ORDER_BY_DESC",
            "vision 2,Audio,vision",
        ),
        ("name=vision%202", "vision 2"),
        ("orderBy=ORDER_BY_DESC&name=vision", "vision,vision 2"),
        ("users=admin", ""),
        ("limit=1&offset=1", "Audio"),
    ] {
        assert_eq!(names(&client, &one, query).await, expected, "{query}");
    }
    let path = format!("/api/v1/projects/{first}");
    let patch = json!({"name": "seen", "description": "d", "key": "s1"});
    let changed = client.patch(&path, patch).await.ok()["project"].take();
    assert_eq!(
        (&changed["name"], &changed["description"], &changed["key"]),
        (&json!("seen"), &json!("d"), &json!("S1"))
    );
    client
        .patch(&path, json!({"key": "VIS1"}))
        .await
        .refused(409);
    let nothing = json!({"name": null, "description": null});
    assert_eq!(client.patch(&path, nothing).await.ok()["project"], changed);
    client
        .patch("/api/v1/projects/1", json!({"name": "x"}))
        .await
        .refused(403);
    for path in ["/api/v1/projects/77", "/api/v1/projects/key/none"] {
        client.get(path).await.refused(404);
        client.assert_needs_token(Method::GET, path).await;
    }
    cluster.stop().await;
}

#[tokio::test]
async fn notes_are_added_and_replaced_by_every_user() {
    let cluster = Cluster::start().await;
    let (admin, client) = (cluster.admin().await, cluster.determined().await);
    let made = workspace(&admin, json!({"name": "w"})).await;
    let id = project(&admin, &made, "p").await;
    let path = format!("/api/v1/projects/{id}/notes");
    let note = |name: &str| json!({"name": name, "contents": "# text"});
    client.post(&path, note("a")).await.ok();
    let notes = client.post(&path, note("b")).await.ok();
    assert_eq!(notes["notes"], json!([note("a"), note("b")]));
    let replaced = json!({"notes": [note("c")], "projectId": id});
    assert_eq!(
        client.put(&path, replaced).await.ok()["notes"],
        json!([note("c")])
    );
    assert_eq!(show(&client, id).await["notes"], json!([note("c")]));
    let long = json!({"name": "long", "contents": "x".repeat(1 << 20)});
    assert!(
        client
            .post(&path, long)
            .await
            .refused(400)
            .contains("bytes in all")
    );
    cluster.stop().await;
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one history, step by step")]
async fn experiments_move_between_projects_and_projects_between_workspaces() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let (one, two) = (
        workspace(&client, json!({"name": "one"})).await,
        workspace(&client, json!({"name": "two"})).await,
    );
    let (from, to) = (
        project(&client, &one, "from").await,
        project(&client, &two, "to").await,
    );
    let mut ids = Vec::new();
    for _ in 0..3 {
        let body = json!({"projectId": from, "activate": true});
        let made = submit(&client, &json!({}), &body).await;
        ids.push(made["experiment"]["id"].as_i64().unwrap());
    }
    let workspaces_of_jobs = async || {
        let jobs = client.get("/api/v1/job-queues-v2").await.ok();
        let jobs = jobs["jobs"].as_array().unwrap().clone();
        jobs.iter()
            .map(|job| job["full"]["workspaceId"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(workspaces_of_jobs().await, vec![one["id"].clone(); 3]);
    let body = json!({"experimentId": ids[0], "destinationProjectId": to});
    client
        .post(&format!("/api/v1/experiments/{}/move", ids[0]), body)
        .await
        .ok();
    let shown = client
        .get(&format!("/api/v1/experiments/{}", ids[0]))
        .await
        .ok();
    assert_eq!(shown["experiment"]["projectId"], to);
    assert_eq!(shown["experiment"]["workspaceName"], "two");
    let body =
        json!({"experimentIds": [ids[1], ids[0]], "projectId": from, "destinationProjectId": to});
    let path = format!("/api/v1/projects/{from}/experiments/move");
    let results = client.post(&path, body).await.ok()["results"].take();
    assert_eq!(results[0], json!({"id": ids[1], "error": ""}));
    assert!(
        results[1]["error"].as_str().unwrap().contains("not found"),
        "{results}"
    );
    let (left, arrived) = (show(&client, from).await, show(&client, to).await);
    assert_eq!(
        (&left["numExperiments"], &arrived["numExperiments"]),
        (&json!(1), &json!(2))
    );
    assert_eq!(
        (&arrived["numActiveExperiments"], &arrived["numRuns"]),
        (&json!(2), &json!(2))
    );
    assert_eq!(
        workspaces_of_jobs().await,
        [two["id"].clone(), two["id"].clone(), one["id"].clone()]
    );
    // The whole project, and what is in it.
    let body = json!({"projectId": from, "destinationWorkspaceId": two["id"]});
    client
        .post(&format!("/api/v1/projects/{from}/move"), body)
        .await
        .ok();
    assert_eq!(names(&client, &two, "").await, "from,to");
    assert_eq!(workspaces_of_jobs().await, vec![two["id"].clone(); 3]);
    assert_eq!(
        cluster
            .master()
            .live
            .compare(&cluster.master().context.store)
            .await
            .unwrap(),
        None
    );
    let nowhere = json!({"destinationProjectId": 77});
    client
        .post(&format!("/api/v1/experiments/{}/move", ids[0]), nowhere)
        .await
        .refused(404);
    client
        .post(&format!("/api/v1/projects/{to}/archive"), Value::Null)
        .await
        .ok();
    let body = json!({"destinationProjectId": to});
    let refused = client
        .post(&format!("/api/v1/experiments/{}/move", ids[2]), body)
        .await
        .refused(400);
    assert!(refused.contains("archived"), "{refused}");
    client
        .post(&format!("/api/v1/projects/{to}/unarchive"), Value::Null)
        .await
        .ok();
    cluster.stop().await;
}

#[tokio::test]
async fn a_project_goes_when_the_last_of_its_experiments_has_gone() {
    let cluster = Cluster::start().await;
    let (admin, client) = (cluster.admin().await, cluster.determined().await);
    let made = workspace(&client, json!({"name": "w"})).await;
    let id = project(&client, &made, "p").await;
    let path = format!("/api/v1/projects/{id}");
    let inside =
        submit(&client, &json!({}), &json!({"projectId": id})).await["experiment"]["id"].clone();
    assert!(
        client
            .delete(&path)
            .await
            .refused(400)
            .contains("1 experiment in it")
    );
    client
        .post(&format!("/api/v1/experiments/{inside}/kill"), Value::Null)
        .await
        .ok();
    let other = cluster.user("admin").await;
    assert_eq!(other.delete(&path).await.ok()["completed"], false);
    let projects = format!("/api/v1/workspaces/{}/projects", made["id"]);
    cluster
        .until(&client, &projects, |all| all["pagination"]["total"] == 0)
        .await;
    admin.get(&path).await.refused(404);
    admin
        .get(&format!("/api/v1/experiments/{inside}"))
        .await
        .refused(404);
    let empty = project(&client, &made, "p").await;
    assert_eq!(
        client
            .delete(&format!("/api/v1/projects/{empty}"))
            .await
            .ok()["completed"],
        true
    );
    assert!(
        cluster
            .admin()
            .await
            .delete("/api/v1/projects/1")
            .await
            .refused(400)
            .contains("belongs to the cluster")
    );
    cluster.stop().await;
}
