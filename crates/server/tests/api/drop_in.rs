//! What scripts written for other masters of this API rely on: addresses, words and small print of answers.

use det_agent_proto::ToAgent;
use det_ids::ExperimentId;
use det_taskspec::ContainerSpec;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Client, Cluster, FakeAgent};

async fn results(client: &Client, path: &str, body: Value) -> Vec<(ExperimentId, String)> {
    let answer = client.post(path, body).await.ok();
    let results = answer["results"].as_array().unwrap().iter();
    results
        .map(|r| {
            (
                ExperimentId(r["id"].as_i64().unwrap()),
                r["error"].as_str().unwrap().to_owned(),
            )
        })
        .collect()
}

/// The log of a trial as one text.
async fn log_of(client: &Client, trial: i64) -> String {
    let path = format!("/api/v1/trials/{trial}/logs");
    let lines = client.get(&path).await.lines();
    lines
        .iter()
        .map(|line| line["log"].as_str().unwrap())
        .collect()
}

/// The next container that an agent is to start, running; ends of earlier ones are passed over.
async fn next_run(agent: &mut FakeAgent) -> ContainerSpec {
    loop {
        if let ToAgent::Start(spec) = agent.receive().await {
            agent.runs(&spec).await;
            return *spec;
        }
    }
}

#[tokio::test]
async fn live_allocations_are_also_a_bare_map_at_the_root() {
    let cluster = Cluster::start().await;
    let (_agent, spec) = cluster.running_task().await;
    let client = cluster.determined().await;
    client.assert_needs_token(Method::GET, "/tasks").await;
    let tasks = client.get("/tasks").await.ok();
    let nested = client.get("/api/v1/tasks").await.ok();
    assert_eq!(tasks, nested["allocationIdToSummary"]);
    let summary = &tasks[spec.allocation_id.as_str()];
    assert!(
        summary["name"].as_str().unwrap().contains("Experiment 1"),
        "{tasks}"
    );
    cluster.stop().await;
}

#[tokio::test]
async fn what_is_not_built_is_neither_missing_nor_a_bad_request() {
    let cluster = Cluster::start().await;
    let client = cluster.admin().await;
    for path in [
        "/stream",
        "/resources/allocation/raw",
        "/resources/allocation/allocations-csv?timestamp_after=2024-01-01T00:00:00Z",
        "/prom/det-state-metrics",
    ] {
        client.get(path).await.refused(501);
    }
    client.get("/streams").await.refused(404);
    // No operation that clients know is taken for another one with a word where its number would be.
    let document = client.get("/api/v1/api.swagger.json").await.json();
    let built: Vec<&str> = document["paths"]
        .as_object()
        .unwrap()
        .values()
        .flat_map(|path| path.as_object().unwrap().values())
        .map(|operation| operation["operationId"].as_str().unwrap())
        .collect();
    let mut asked = 0;
    for operation in det_api_types::operation::OPERATIONS {
        if built.contains(&operation.name) {
            continue;
        }
        asked += 1;
        let path = operation.path.replace(['{', '}'], "");
        let method = operation.method.as_str().parse().unwrap();
        let said = client.whole(method, &path, None).await.refused(501);
        assert!(said.contains(operation.name), "{path}: {said}");
    }
    assert!(asked > 50, "{asked}");
    // What is built still answers by itself.
    client
        .get("/api/v1/users/setting-of-none")
        .await
        .refused(400);
    cluster.stop().await;
}

#[tokio::test]
async fn bulk_actions_without_a_project_mean_all_projects() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let new = json!({"name": "apart"});
    let path = "/api/v1/workspaces";
    let workspace = client.post(path, new).await.ok()["workspace"]["id"].clone();
    let path = format!("/api/v1/workspaces/{workspace}/projects");
    let project = client.post(&path, json!({"name": "p"})).await.ok()["project"]["id"].clone();
    let first = cluster.experiment_of("determined", "one", true).await;
    let second = cluster.experiment_of("determined", "two", true).await;
    let path = format!("/api/v1/experiments/{second}/move");
    let to = json!({"destinationProjectId": project});
    client.post(&path, to).await.ok();
    let ids = json!({"experimentIds": [first, second, 77]});
    // Those of a named project are done, the others have their answer.
    let path = format!("/api/v1/projects/{project}/experiments/pause");
    let done = results(&client, &path, ids.clone()).await;
    assert_eq!(done[1], (second, String::new()));
    assert!(done[0].1.contains("not found") && done[2].1.contains("not found"));
    for none in [0, -1] {
        let path = format!("/api/v1/projects/{none}/experiments/pause");
        let done = results(&client, &path, ids.clone()).await;
        assert_eq!(done[..2], [(first, String::new()), (second, String::new())]);
        assert!(done[2].1.contains("\"77\" not found"), "{done:?}");
        let path = format!("/api/v1/projects/{none}/experiments/activate");
        let done = results(
            &client,
            &path,
            json!({"filters": {"states": ["STATE_PAUSED"]}}),
        )
        .await;
        let all = vec![(first, String::new()), (second, String::new())];
        assert_eq!(done, all);
    }
    cluster.stop().await;
}

#[tokio::test]
async fn what_is_being_stopped_is_deleted_once_it_has_ended() {
    let cluster = Cluster::start().await;
    let mut agent = cluster.agent("a1", 2).await;
    let client = cluster.determined().await;
    let (mut specs, mut ids) = (Vec::new(), Vec::new());
    for name in ["one", "two"] {
        ids.push(cluster.experiment_of("determined", name, true).await);
        let spec = agent.next_start().await;
        agent.runs(&spec).await;
        specs.push(spec);
    }
    for id in &ids {
        let path = format!("/api/v1/experiments/{id}");
        // What is not stopped is not deleted.
        let refusal = client.delete(&path).await.refused(400);
        assert!(refusal.contains("stopping"), "{refusal}");
        client
            .post(&format!("{path}/cancel"), Value::Null)
            .await
            .ok();
    }
    client
        .delete(&format!("/api/v1/experiments/{}", ids[0]))
        .await
        .ok();
    let body = json!({"experimentIds": [ids[1]]}).to_string();
    let path = "/api/v1/projects/0/experiments/delete";
    let bulk = client.whole(Method::DELETE, path, Some(body)).await.ok();
    assert_eq!(bulk["results"][0]["error"], "");
    for id in &ids {
        let path = format!("/api/v1/experiments/{id}");
        let shown = client.get(&path).await.ok();
        assert_eq!(shown["experiment"]["state"], "STATE_DELETING");
        let said = client.post(&format!("{path}/activate"), Value::Null).await;
        said.refused(400);
    }
    let listed = client
        .get("/api/v1/experiments?states=STATE_DELETING")
        .await
        .ok();
    assert_eq!(listed["experiments"].as_array().unwrap().len(), 2);
    for spec in &specs {
        agent.exits(spec, 0).await;
    }
    cluster
        .until(&client, "/api/v1/experiments", |answer| {
            answer["experiments"].as_array().unwrap().is_empty()
        })
        .await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_continued_trial_counts_its_restarts_anew() {
    let cluster = Cluster::start().await;
    let mut agent = cluster.agent("a1", 1).await;
    let client = cluster.determined().await;
    let config = json!({
        "name": "fails", "entrypoint": "python3 train.py", "max_restarts": 1,
        "searcher": {"name": "single", "metric": "loss"},
    });
    let new = json!({"config": config.to_string(), "activate": true});
    client.post("/api/v1/experiments", new).await.ok();
    for attempt in 1..=2 {
        for _ in 0..2 {
            let spec = next_run(&mut agent).await;
            agent.exits(&spec, 1).await;
        }
        let ended = |answer: &Value| answer["experiment"]["state"] == "STATE_ERROR";
        cluster.until(&client, "/api/v1/experiments/1", ended).await;
        let trial = client.get("/api/v1/trials/1").await.ok()["trial"].clone();
        assert_eq!(trial["restarts"], 1, "{attempt}");
        if attempt == 1 {
            let go_on = json!({"id": 1, "overrideConfig": ""});
            client
                .post("/api/v1/experiments/continue", go_on)
                .await
                .ok();
        }
    }
    cluster.stop().await;
}

#[tokio::test]
async fn the_log_of_a_trial_holds_the_words_that_scripts_look_for() {
    let cluster = Cluster::start().await;
    let (mut agent, spec) = cluster.running_task().await;
    agent.exits(&spec, 0).await;
    let client = cluster.determined().await;
    let ended = |answer: &Value| answer["trial"]["state"] == "STATE_COMPLETED";
    cluster.until(&client, "/api/v1/trials/1", ended).await;
    let log = log_of(&client, 1).await;
    for words in [
        "New trial runner",
        "resources exited successfully with a zero exit code",
    ] {
        assert_eq!(log.matches(words).count(), 1, "{words}: {log}");
    }
    cluster.stop().await;
}

/// A template of the tests.
const TEMPLATE: &str = "/api/v1/templates/kept";

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one history, step by step")]
async fn what_is_archived_refuses_every_change_but_being_taken_out() {
    let cluster = Cluster::start().await;
    let (client, admin) = (cluster.determined().await, cluster.admin().await);
    let path = "/api/v1/workspaces";
    let mut places = Vec::new();
    for name in ["put away", "open"] {
        let made = client.post(path, json!({"name": name})).await.ok();
        let workspace = made["workspace"]["id"].as_i64().unwrap();
        // Who makes one wants it at hand.
        assert_eq!(made["workspace"]["pinned"], true);
        let inside = format!("{path}/{workspace}/projects");
        let made = client.post(&inside, json!({"name": "p"})).await.ok();
        places.push((workspace, made["project"]["id"].as_i64().unwrap()));
    }
    let [(workspace, project), (open_workspace, open_project)] = places[..] else {
        panic!("two places");
    };
    let unpinned = admin.get(&format!("{path}/{workspace}")).await.ok();
    assert_eq!(unpinned["workspace"]["pinned"], false);
    let inside = cluster.experiment_of("determined", "inside", false).await;
    let outside = cluster.experiment_of("determined", "outside", false).await;
    let to = |id: i64| json!({"destinationProjectId": id, "destinationWorkspaceId": id});
    let moves = |id: ExperimentId| format!("/api/v1/experiments/{id}/move");
    client.post(&moves(inside), to(project)).await.ok();
    let home = format!("/api/v1/projects/{project}");
    let template = json!({"config": {"max_restarts": 1}, "workspaceId": workspace});
    client.post(TEMPLATE, template).await.ok();
    let policies = format!("/api/v1/config-policies/workspaces/{workspace}/EXPERIMENT");
    let rules = json!({"configPolicies": "constraints: {resources: {max_slots: 4}}"});
    admin.put(&policies, rules.clone()).await.ok();
    for (kind, put_away) in [
        ("project", home.clone()),
        ("workspace", format!("{path}/{workspace}")),
    ] {
        client
            .post(&format!("{put_away}/archive"), Value::Null)
            .await
            .ok();
        let shown = client.get(&home).await.ok();
        assert_eq!(shown["project"]["archived"], true, "{kind}");
        let texts = json!({"notes": "changed"});
        let mut refused = vec![
            client.patch(&home, json!({"name": "other"})).await,
            client
                .post(&format!("{home}/notes"), json!({"name": "n"}))
                .await,
            client
                .post(&format!("{home}/move"), to(open_workspace))
                .await,
            client.post(&moves(inside), to(open_project)).await,
            client.post(&moves(outside), to(project)).await,
            client
                .patch(&format!("/api/v1/experiments/{inside}"), texts)
                .await,
        ];
        if kind == "workspace" {
            let here = format!("{path}/{workspace}");
            refused.push(client.patch(&here, json!({"name": "other"})).await);
            refused.push(
                client
                    .post(&format!("{here}/projects"), json!({"name": "q"}))
                    .await,
            );
            let open = format!("/api/v1/projects/{open_project}/move");
            refused.push(client.post(&open, to(workspace)).await);
            let config = json!({"max_restarts": 2});
            let renamed = json!({"oldName": "kept", "newName": "other"});
            refused.push(client.patch(TEMPLATE, config.clone()).await);
            refused.push(client.put(TEMPLATE, json!({"config": config})).await);
            refused.push(client.patch("/api/v1/template/rename", renamed).await);
            refused.push(client.delete(TEMPLATE).await);
            refused.push(admin.put(&policies, rules.clone()).await);
            refused.push(admin.delete(&policies).await);
        }
        for reply in refused {
            assert!(
                reply.refused(400).contains("is archived"),
                "{kind}: {reply:?}"
            );
        }
        client
            .post(&format!("{put_away}/unarchive"), Value::Null)
            .await
            .ok();
        client.patch(&home, json!({"description": kind})).await.ok();
    }
    // An archived experiment stays where it is, and its texts can be changed.
    let path = format!("/api/v1/experiments/{outside}");
    client.post(&format!("{path}/kill"), Value::Null).await.ok();
    client
        .post(&format!("{path}/archive"), Value::Null)
        .await
        .ok();
    let reply = client.post(&moves(outside), to(project)).await;
    assert!(reply.refused(400).contains("is archived"));
    client.patch(&path, json!({"labels": ["kept"]})).await.ok();
    cluster.stop().await;
}

#[tokio::test]
async fn the_clusters_own_workspace_takes_no_projects() {
    let cluster = Cluster::start().await;
    let (client, admin) = (cluster.determined().await, cluster.admin().await);
    let new = json!({"name": "more"});
    let path = "/api/v1/workspaces/1/projects";
    client.post(path, new.clone()).await.refused(403);
    let why = admin.post(path, new.clone()).await.refused(400);
    assert!(why.contains("belongs to the cluster"), "{why}");
    let made = client.post("/api/v1/workspaces", new.clone()).await.ok();
    let path = format!("/api/v1/workspaces/{}/projects", made["workspace"]["id"]);
    let project = client.post(&path, new).await.ok()["project"]["id"].clone();
    let path = format!("/api/v1/projects/{project}/move");
    let to = json!({"destinationWorkspaceId": 1});
    client.post(&path, to.clone()).await.refused(403);
    admin.post(&path, to).await.refused(400);
    // Who may not change what is the cluster's is not given reasons that are for administrators.
    let name = json!({"name": "x"});
    for path in ["/api/v1/workspaces/1", "/api/v1/projects/1"] {
        client.patch(path, name.clone()).await.refused(403);
        admin.patch(path, name.clone()).await.refused(400);
    }
    let note = json!({"name": "n"});
    client
        .post("/api/v1/projects/1/notes", note)
        .await
        .refused(403);
    cluster.stop().await;
}

#[tokio::test]
async fn half_an_identity_of_a_workspace_is_kept_and_used() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    let path = "/api/v1/workspaces";
    let group = json!({"agentGid": 7, "agentGroup": "lab"});
    let made = admin
        .post(path, json!({"name": "lab", "agentUserGroup": group}))
        .await
        .ok();
    let whole = json!({"agentUid": null, "agentUser": null, "agentGid": 7, "agentGroup": "lab"});
    assert_eq!(made["workspace"]["agentUserGroup"], whole);
    let id = made["workspace"]["id"].as_i64().unwrap();
    let here = format!("{path}/{id}");
    let other = json!({"name": "the lab", "agentUserGroup": null});
    let changed = admin.patch(&here, other).await.ok();
    assert_eq!(changed["workspace"]["agentUserGroup"], whole);
    let half = json!({"agentUserGroup": {"agentUid": 5}});
    admin.patch(&here, half).await.refused(400);
    // To the calls that set it this is no group at all: the task would keep the one of its agent.
    let none = json!({"agentUserGroup": {"agentGid": u32::MAX, "agentGroup": "lab"}});
    let refused = admin.patch(&here, none).await.refused(400);
    assert!(refused.contains("must be 0 to 4294967294"), "{refused}");
    let new = json!({"name": "p"});
    let project = admin.post(&format!("{here}/projects"), new).await.ok()["project"]["id"].clone();
    let experiment = cluster.experiment_of("admin", "runs", true).await;
    let to = json!({"destinationProjectId": project});
    let path = format!("/api/v1/experiments/{experiment}/move");
    admin.post(&path, to).await.ok();
    let spec = cluster.agent("a1", 1).await.next_start().await;
    assert_eq!((spec.user.gid, spec.user.group.as_str()), (7, "lab"));
    assert_ne!(spec.user.user, "lab");
    cluster.stop().await;
}

#[tokio::test]
async fn nul_bytes_of_a_log_are_kept_found_and_followed() {
    let cluster = Cluster::start().await;
    let (_agent, spec) = cluster.running_task().await;
    let client = cluster.determined().await;
    let printed = "before \0 between \0\0 after\n";
    let log = json!({"taskId": spec.task_id, "log": printed, "source": "task"});
    cluster
        .client()
        .as_task(&spec.script.token)
        .post("/api/v1/task/logs", json!({"logs": [log]}))
        .await
        .ok();
    let path = "/api/v1/trials/1/logs?sources=task";
    for query in [
        "",
        "&searchText=between",
        "&searchText=%5Ebefore&enableRegex=true",
    ] {
        let reply = client.get(&format!("{path}{query}")).await;
        assert!(reply.text.contains("\\u0000"), "escaped: {}", reply.text);
        let lines = reply.lines();
        assert_eq!(lines[0]["log"], printed, "{query}");
    }
    cluster.stop().await;
}

#[tokio::test]
async fn a_single_search_takes_ranges_and_draws_by_its_seed() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let mut drawn = Vec::new();
    for seed in [7, 7, 8] {
        let config = json!({
            "name": "ranges", "entrypoint": "python3 train.py",
            "searcher": {"name": "single", "metric": "loss"},
            "reproducibility": {"experiment_seed": seed},
            "hyperparameters": {"lr": {"type": "double", "minval": 0, "maxval": 1},
                "kind": {"type": "categorical", "vals": ["a", "b"]}, "layers": 3},
        });
        let new = json!({"config": config.to_string()});
        let made = client.post("/api/v1/experiments", new).await.ok();
        let warned = made["messages"].to_string();
        let id = made["experiment"]["id"].as_i64().unwrap();
        let trials = client
            .get(&format!("/api/v1/experiments/{id}/trials"))
            .await
            .ok();
        let hparams = trials["trials"][0]["hparams"].clone();
        let lr = hparams["lr"].as_f64().unwrap();
        assert!(
            (0.0..1.0).contains(&lr) && hparams["layers"] == 3,
            "{hparams}"
        );
        assert!(hparams["kind"].is_string(), "{hparams}");
        drawn.push(hparams);
        for path in ["hyperparameters.lr", "hyperparameters.kind"] {
            assert!(warned.contains(path), "{path}: {warned}");
        }
        assert!(!warned.contains("hyperparameters.layers"), "{warned}");
    }
    assert_eq!(drawn[0], drawn[1]);
    assert_ne!(drawn[0], drawn[2]);
    cluster.stop().await;
}
