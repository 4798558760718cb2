//! Experiments: creating, listing, steering, changing, deleting.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Client, Cluster, Reply, within};

pub(crate) const PATH: &str = "/api/v1/experiments";

pub(crate) fn config(name: &str) -> Value {
    json!({
        "name": name,
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "loss"},
        "resources": {"slots_per_trial": 1},
        "max_restarts": 0,
    })
}

/// Submits an experiment as the client does, with one file and one directory.
pub(crate) async fn create(client: &Client, config: &Value, activate: bool) -> Value {
    let files = json!([
        {"path": "sub", "type": 53, "content": "", "mtime": "1700000000", "mode": 16877, "uid": 0, "gid": 0},
        {"path": "sub/train.py", "type": 48, "content": STANDARD.encode("print('hello')\n"), "mtime": "1700000000",
         "mode": 33188, "uid": 0, "gid": 0},
    ]);
    let body = json!({
        "config": config.to_string(), "modelDefinition": files, "activate": activate, "projectId": 0,
        "parentId": null, "template": null, "validateOnly": false, "unmanaged": null,
    });
    client.post(PATH, body).await.ok()
}

async fn delete(client: &Client, path: &str, body: Option<Value>) -> Reply {
    let response = client
        .send(Method::DELETE, path, body.map(|b| b.to_string()))
        .await;
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Reply {
        status,
        headers,
        text: within(path, response.text()).await.unwrap(),
    }
}

fn ids(answer: &Value) -> Vec<i64> {
    answer["experiments"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["id"].as_i64().unwrap())
        .collect()
}

#[tokio::test]
async fn an_experiment_is_created_and_shown() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let mut config = config("first");
    config["labels"] = json!(["b", "a"]);
    config["data"] = json!({"secrets": {"token": "hunter2"}});
    let created = create(&client, &config, false).await;
    let experiment = &created["experiment"];
    assert_eq!(experiment["id"], 1);
    assert_eq!(experiment["state"], "STATE_PAUSED");
    assert_eq!(experiment["username"], "determined");
    assert_eq!(experiment["numTrials"], 1);
    assert_eq!(experiment["projectName"], "Uncategorized");
    assert_eq!(experiment["checkpointSize"], "0");
    // No agent has joined, so there are fewer slots than it asks for.
    assert_eq!(
        created["warnings"],
        json!(["LAUNCH_WARNING_CURRENT_SLOTS_EXCEEDED"])
    );
    assert_eq!(created["config"]["searcher"]["name"], "single");
    assert!(!created.to_string().contains("hunter2"), "{created}");

    let one = client.get(&format!("{PATH}/1")).await.ok();
    assert_eq!(one["experiment"], *experiment);
    assert_eq!(one["config"], created["config"]);
    assert_eq!(one["jobSummary"], Value::Null);
    assert!(!one.to_string().contains("hunter2"));
    assert!(
        client
            .get(&format!("{PATH}/99"))
            .await
            .refused(404)
            .contains("99")
    );
    assert!(
        client
            .get(&format!("{PATH}/first"))
            .await
            .refused(400)
            .contains("first")
    );
    client
        .assert_needs_token(Method::GET, &format!("{PATH}/1"))
        .await;
    client.assert_needs_token(Method::POST, PATH).await;
    cluster.stop().await;
}

#[tokio::test]
async fn errors_in_a_submission_are_named() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let text = config("x").to_string();
    let file = |kind: i64, path: &str| json!({"path": path, "type": kind, "content": "", "mtime": "0", "mode": 33188});
    for (body, expected) in [
        (json!({}), "field \"config\" is missing"),
        (
            json!({"config": "searcher: {name: bogus}\n"}),
            "searcher.name",
        ),
        (
            json!({"config": text, "modelDefinition": [file(50, "a")]}),
            "modelDefinition[0].type",
        ),
        (
            json!({"config": text, "modelDefinition": [file(48, "../a")]}),
            "modelDefinition[0].path",
        ),
        (
            json!({"config": text, "modelDefinition": [{"path": 3}]}),
            "modelDefinition[0].path",
        ),
        (json!({"config": text, "activate": "perhaps"}), "activate"),
    ] {
        let message = client.post(PATH, body.clone()).await.refused(400);
        assert!(message.contains(expected), "{body}: {message}");
    }
    assert_eq!(client.get(PATH).await.ok()["pagination"]["total"], 0);
    assert!(
        client
            .post(PATH, json!({"config": text, "parentId": 99}))
            .await
            .refused(404)
            .contains("99")
    );
    cluster.stop().await;
}

#[tokio::test]
async fn a_configuration_can_be_checked_without_storing_anything() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let body = json!({"config": config("x").to_string(), "validateOnly": true});
    let checked = client.post(PATH, body).await.ok();
    assert_eq!(checked["experiment"]["id"], 0);
    assert_eq!(
        checked["config"]["name"], "x",
        "the effective configuration comes back"
    );
    assert_eq!(client.get(PATH).await.ok()["pagination"]["total"], 0);
    cluster.stop().await;
}

#[tokio::test]
async fn experiments_are_listed_filtered_sorted_and_paged() {
    let cluster = Cluster::start().await;
    let (admin, determined) = (cluster.admin().await, cluster.determined().await);
    for (client, name, labels) in [
        (&admin, "Alpha", json!(["x"])),
        (&determined, "beta", json!(["x", "y"])),
        (&admin, "gamma", json!([])),
    ] {
        let mut config = config(name);
        config["labels"] = labels;
        config["description"] = json!(format!("about {name}"));
        create(client, &config, false).await;
    }
    admin
        .post(&format!("{PATH}/3/kill"), Value::Null)
        .await
        .ok();
    admin
        .post(&format!("{PATH}/3/archive"), Value::Null)
        .await
        .ok();
    for (query, expected) in [
        ("", vec![1, 2, 3]),
        ("archived=false&limit=200&offset=0&users=admin", vec![1]),
        ("archived=true", vec![3]),
        ("users=determined&users=nobody", vec![2]),
        ("users=nobody", vec![]),
        ("userIds=1&userIds=2", vec![1, 2, 3]),
        ("name=ALPHA", vec![1]),
        ("description=about%20b", vec![2]),
        ("labels=x", vec![1, 2]),
        ("labels=x&labels=y", vec![2]),
        ("states=STATE_PAUSED", vec![1, 2]),
        ("states=STATE_CANCELED&states=STATE_PAUSED", vec![1, 2, 3]),
        ("states=STATE_RUNNING", vec![]),
        ("projectId=1", vec![1, 2, 3]),
        ("projectId=7", vec![]),
        ("experimentIdFilter.gt=1&experimentIdFilter.lte=2", vec![2]),
        (
            "experimentIdFilter.incl=1&experimentIdFilter.incl=3",
            vec![1, 3],
        ),
        ("experimentIdFilter.notIn=1", vec![2, 3]),
        ("sortBy=SORT_BY_NAME&orderBy=ORDER_BY_DESC", vec![3, 2, 1]),
        (
            "sort_by=SORT_BY_ID&order_by=ORDER_BY_DESC&limit=2",
            vec![3, 2],
        ),
        ("offset=1&limit=1", vec![2]),
        ("limit=-1", vec![1, 2, 3]),
        ("limit=-2", vec![]),
        ("offset=50", vec![]),
    ] {
        let answer = admin.get(&format!("{PATH}?{query}")).await.ok();
        assert_eq!(ids(&answer), expected, "{query}");
    }
    let beyond = admin.get(&format!("{PATH}?offset=50")).await.ok();
    assert_eq!(
        beyond["pagination"],
        json!({"offset": 50, "limit": 0, "startIndex": 3, "endIndex": 3, "total": 3})
    );
    assert!(
        admin
            .get(&format!("{PATH}?sortBy=SORT_BY_COLOUR"))
            .await
            .refused(400)
            .contains("sortBy")
    );
    admin.assert_needs_token(Method::GET, PATH).await;

    assert_eq!(
        admin.get("/api/v1/experiment/labels").await.ok(),
        json!({"labels": ["x", "y"]})
    );
    assert_eq!(
        admin
            .get("/api/v1/experiment/labels?projectId=7")
            .await
            .ok(),
        json!({"labels": []})
    );
    cluster.stop().await;
}

#[tokio::test]
async fn an_active_experiment_is_reported_by_its_farthest_allocation() {
    let cluster = Cluster::start().await;
    let mut agent = cluster.agent("a1", 1).await;
    let client = cluster.determined().await;
    create(&client, &config("runs"), true).await;
    create(&client, &config("waits"), true).await;
    let spec = agent.next_start().await;
    agent.runs(&spec).await;
    cluster
        .until(&client, &format!("{PATH}/1"), |e| {
            e["experiment"]["state"] == "STATE_RUNNING"
        })
        .await;
    let waiting = client.get(&format!("{PATH}/2")).await.ok();
    assert_eq!(waiting["experiment"]["state"], "STATE_QUEUED");
    assert_eq!(
        waiting["jobSummary"],
        json!({"state": "STATE_QUEUED", "jobsAhead": 1})
    );
    let running = client.get(&format!("{PATH}/1")).await.ok();
    assert_eq!(running["jobSummary"]["state"], "STATE_SCHEDULED");
    for (states, expected) in [
        ("states=STATE_RUNNING", vec![1]),
        ("states=STATE_QUEUED", vec![2]),
        ("states=STATE_ACTIVE", vec![1, 2]),
        ("states=STATE_QUEUED&states=STATE_COMPLETED", vec![2]),
        ("states=STATE_PAUSED", vec![]),
    ] {
        assert_eq!(
            ids(&client.get(&format!("{PATH}?{states}")).await.ok()),
            expected,
            "{states}"
        );
    }
    let trials = client.get(&format!("{PATH}/2/trials")).await.ok();
    assert_eq!(trials["trials"][0]["state"], "STATE_QUEUED");
    assert_eq!(
        trials["trials"][0]["waitReason"]["kind"],
        "not_enough_free_slots"
    );
    cluster.stop().await;
}

#[tokio::test]
async fn the_life_of_an_experiment_is_steered() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    create(&client, &config("one"), false).await;
    let path = |action: &str| format!("{PATH}/1/{action}");
    let state = async || client.get(&format!("{PATH}/1")).await.ok()["experiment"]["state"].clone();
    assert!(
        client
            .post(&path("archive"), Value::Null)
            .await
            .refused(400)
            .contains("PAUSED")
    );
    for (action, expected) in [
        ("activate", "STATE_QUEUED"),
        ("activate", "STATE_QUEUED"),
        ("pause", "STATE_PAUSED"),
        ("pause", "STATE_PAUSED"),
        ("cancel", "STATE_CANCELED"),
        ("cancel", "STATE_CANCELED"),
        ("kill", "STATE_CANCELED"),
        ("archive", "STATE_CANCELED"),
        ("unarchive", "STATE_CANCELED"),
    ] {
        assert_eq!(
            client.post(&path(action), Value::Null).await.ok(),
            json!({}),
            "{action}"
        );
        assert_eq!(state().await, expected, "{action}");
        if action == "pause" {
            let trials = client.get(&path("trials")).await.ok();
            assert_eq!(trials["trials"][0]["waitReason"]["kind"], "paused");
        }
    }
    assert!(
        client
            .post(&path("pause"), Value::Null)
            .await
            .refused(400)
            .contains("CANCELED")
    );
    let continued = client
        .post(
            &format!("{PATH}/continue"),
            json!({"id": 1, "overrideConfig": "{}\n"}),
        )
        .await
        .ok();
    assert_eq!(continued["experiment"]["state"], "STATE_QUEUED");
    assert!(
        client
            .post(&format!("{PATH}/continue"), json!({}))
            .await
            .refused(400)
            .contains("\"id\"")
    );
    for action in [
        "activate",
        "pause",
        "cancel",
        "kill",
        "archive",
        "unarchive",
    ] {
        assert!(
            client
                .post(&format!("{PATH}/99/{action}"), Value::Null)
                .await
                .refused(404)
                .contains("99"),
            "{action}"
        );
        client.assert_needs_token(Method::POST, &path(action)).await;
    }
    cluster.stop().await;
}

#[tokio::test]
async fn texts_labels_resources_and_policy_are_changed() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    create(&client, &config("one"), false).await;
    let path = format!("{PATH}/1");
    let patch = json!({"id": 1, "name": "two", "description": "d", "notes": "n", "labels": ["z"], "resources": null,
        "checkpointStorage": null});
    let changed = client.patch(&path, patch).await.ok()["experiment"].clone();
    assert_eq!(
        (
            &changed["name"],
            &changed["description"],
            &changed["notes"],
            &changed["labels"]
        ),
        (&json!("two"), &json!("d"), &json!("n"), &json!(["z"]))
    );
    let resources = json!({"id": 1, "resources": {"priority": 7, "weight": 2.0, "maxSlots": 3}});
    let changed =
        client.patch(&path, resources).await.ok()["experiment"]["config"]["resources"].clone();
    assert_eq!(
        (&changed["priority"], &changed["max_slots"]),
        (&json!(7), &json!(3))
    );
    // A null beside another change leaves the cap alone; by itself it lifts it.
    for (change, cap) in [
        (json!({"priority": 8, "maxSlots": null}), json!(3)),
        (json!({"maxSlots": null}), Value::Null),
    ] {
        let changed = client.patch(&path, json!({"resources": change})).await.ok();
        assert_eq!(
            changed["experiment"]["config"]["resources"]["max_slots"],
            cap
        );
    }
    let policy = json!({"checkpointStorage": {"saveExperimentBest": 2, "saveTrialBest": null, "saveTrialLatest": 0}});
    let changed =
        client.patch(&path, policy).await.ok()["experiment"]["config"]["checkpoint_storage"]
            .clone();
    assert_eq!(
        (
            &changed["save_experiment_best"],
            &changed["save_trial_best"],
            &changed["save_trial_latest"]
        ),
        (&json!(2), &json!(1), &json!(0))
    );
    for (body, expected) in [
        (json!({"name": "  "}), "name"),
        (json!({"labels": [""]}), "labels"),
        (json!({"labels": "z"}), "labels"),
        (
            json!({"checkpointStorage": {"saveTrialBest": -1}}),
            "save_trial_best",
        ),
        (json!({"resources": {"priority": 100}}), "priority"),
    ] {
        assert!(
            client
                .patch(&path, body.clone())
                .await
                .refused(400)
                .contains(expected),
            "{body}"
        );
    }
    assert!(
        client
            .patch(&format!("{PATH}/99"), json!({"name": "x"}))
            .await
            .refused(404)
            .contains("99")
    );
    client.assert_needs_token(Method::PATCH, &path).await;
    cluster.stop().await;
}

#[tokio::test]
async fn many_experiments_are_treated_at_once() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    for name in ["a", "b", "c"] {
        create(&client, &config(name), false).await;
    }
    let path = |action: &str| format!("/api/v1/projects/1/experiments/{action}");
    let done = client
        .post(
            &path("cancel"),
            json!({"experimentIds": [1, 99], "projectId": 1}),
        )
        .await
        .ok();
    assert_eq!(done["results"][0], json!({"error": "", "id": 1}));
    assert_eq!(done["results"][1]["id"], 99);
    assert!(
        done["results"][1]["error"]
            .as_str()
            .unwrap()
            .contains("not found")
    );
    let done = client
        .post(&path("archive"), json!({"experimentIds": [1, 2]}))
        .await
        .ok();
    assert_eq!(done["results"][0]["error"], "");
    assert!(
        done["results"][1]["error"]
            .as_str()
            .unwrap()
            .contains("PAUSED"),
        "{done}"
    );
    let filters = json!({"filters": {"states": ["STATE_PAUSED"], "excludedExperimentIds": [3]}});
    let done = client.post(&path("activate"), filters).await.ok();
    assert_eq!(done["results"], json!([{"error": "", "id": 2}]));
    for action in ["pause", "kill", "unarchive"] {
        assert_eq!(
            client
                .post(&path(action), json!({"experimentIds": []}))
                .await
                .ok(),
            json!({"results": []})
        );
        client.assert_needs_token(Method::POST, &path(action)).await;
    }
    assert!(
        client
            .post(&path("pause"), json!({"experimentIds": ["x"]}))
            .await
            .refused(400)
            .contains("experimentIds")
    );
    let other = client
        .post(
            "/api/v1/projects/7/experiments/pause",
            json!({"experimentIds": [2]}),
        )
        .await
        .ok();
    assert!(
        other["results"][0]["error"]
            .as_str()
            .unwrap()
            .contains("not found")
    );
    let gone = delete(
        &client,
        &path("delete"),
        Some(json!({"experimentIds": [1]})),
    )
    .await
    .ok();
    assert_eq!(gone["results"], json!([{"error": "", "id": 1}]));
    cluster.stop().await;
}

#[tokio::test]
async fn an_ended_experiment_is_deleted() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    create(&client, &config("one"), false).await;
    let path = format!("{PATH}/1");
    assert!(
        delete(&client, &path, None)
            .await
            .refused(400)
            .contains("PAUSED")
    );
    client.post(&format!("{path}/kill"), Value::Null).await.ok();
    assert_eq!(delete(&client, &path, None).await.ok(), json!({}));
    cluster
        .until(&client, PATH, |all| all["pagination"]["total"] == 0)
        .await;
    client.get(&path).await.refused(404);
    assert!(
        delete(&client, &path, None)
            .await
            .refused(404)
            .contains('1')
    );
    client.assert_needs_token(Method::DELETE, &path).await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_search_is_previewed() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let config = json!({
        "searcher": {"name": "random", "metric": "loss", "max_trials": 7},
        "hyperparameters": {"lr": {"type": "double", "minval": 0, "maxval": 1}},
    });
    let path = "/api/v1/preview-hp-search";
    let summary = client
        .post(path, json!({"config": config, "seed": 3}))
        .await
        .ok()["summary"]
        .clone();
    assert_eq!(summary["trials"][0]["count"], 7);
    assert_eq!(summary["trials"][0]["unit"]["maxLength"], true);
    assert_eq!(summary["config"]["name"], "random");
    assert!(
        client
            .post(path, json!({"config": config, "seed": -1}))
            .await
            .refused(400)
            .contains("seed")
    );
    assert!(
        client
            .post(path, json!({"config": {"searcher": {"name": "x"}}}))
            .await
            .refused(400)
            .contains("searcher")
    );
    client.assert_needs_token(Method::POST, path).await;
    cluster.stop().await;
}

#[tokio::test]
async fn texts_of_an_experiment_are_bounded() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    create(&client, &config("e"), false).await;
    let patch = async |body: Value| {
        crate::checkpoints::send(&client, Method::PATCH, "/api/v1/experiments/1", body).await
    };
    let long = |length: usize| "x".repeat(length);
    let labels: Vec<String> = (0..101).map(|n| n.to_string()).collect();
    for (body, why) in [
        (
            json!({"name": long(1025)}),
            "field \"name\" has 1025 bytes, of at most 1024",
        ),
        (
            json!({"notes": long(65_537)}),
            "field \"notes\" has 65537 bytes",
        ),
        (
            json!({"description": long(65_537)}),
            "field \"description\" has 65537 bytes",
        ),
        (
            json!({"labels": [long(1025)]}),
            "at most 100 labels of at most 1024 bytes",
        ),
        (
            json!({"labels": labels}),
            "at most 100 labels of at most 1024 bytes",
        ),
    ] {
        let refused = patch(body).await.refused(400);
        assert!(refused.contains(why), "{refused}");
    }
    patch(json!({"name": long(1024), "notes": long(65_536), "labels": labels[1..]}))
        .await
        .ok();
    cluster.stop().await;
}

/// The terminals of all users who list experiments show names and labels.
#[tokio::test]
async fn names_and_labels_give_terminals_no_commands() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let mut document = config("a\u{1b}]0;title\u{7}");
    document["labels"] = json!(["plain", "\u{9b}2J"]);
    let new = |document: &Value| json!({"config": document.to_string(), "activate": false});
    let refused = client.post(PATH, new(&document)).await.refused(400);
    for why in [
        r#"name: must not contain control characters, but for tabs and line ends, found "a\u{1b}]0;title\u{7}""#,
        r#"labels: must not contain control characters, but for tabs and line ends, found "\u{9b}2J""#,
    ] {
        assert!(refused.contains(why), "{refused}");
    }
    // A block scalar of YAML ends with a line end.
    create(&client, &config("two\nlines\n"), false).await;
    for (body, field) in [
        (json!({"name": "over\rwritten"}), "name"),
        (json!({"labels": ["plain", "\u{7f}"]}), "labels"),
    ] {
        let path = format!("{PATH}/1");
        let refused = crate::checkpoints::send(&client, Method::PATCH, &path, body).await;
        let refused = refused.refused(400);
        assert!(refused.contains(&format!("field \"{field}\"")), "{refused}");
    }
    cluster.stop().await;
}

#[tokio::test]
async fn variables_that_double_each_other_are_refused_at_submission() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let mut doubling = config("doubling");
    let variables = (1..60).map(|n| format!("A{n}=$A{0}$A{0}", n - 1));
    let variables: Vec<String> = std::iter::once("A0=12345678".to_owned())
        .chain(variables)
        .collect();
    doubling["environment"] = json!({"environment_variables": variables});
    let body = json!({"config": doubling.to_string(), "modelDefinition": [], "activate": true});
    let refused = client.post("/api/v1/experiments", body).await.refused(400);
    assert!(
        refused
            .contains("variable \"A14\" of \"environment.environment_variables\" is longer than"),
        "{refused}"
    );
    cluster.stop().await;
}

#[tokio::test]
async fn passwords_in_addresses_among_hyperparameters_are_hidden() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let mut secret = config("addresses");
    secret["hyperparameters"] =
        json!({"url": "http://u:hunter2@h/x", "deep": {"url": "s3://a:hunter2@b"}, "lr": 0.1});
    create(&client, &secret, true).await;
    for path in ["/api/v1/trials/1", "/api/v1/experiments/1/trials"] {
        let shown = client.get(path).await.ok().to_string();
        assert!(
            shown.contains("0.1") && !shown.contains("hunter2"),
            "{shown}"
        );
    }
    cluster.stop().await;
}
