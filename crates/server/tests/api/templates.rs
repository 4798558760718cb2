//! Templates, and experiments that are laid over them.

use serde_json::{Value, json};

use crate::support::{Client, Cluster};

const TEMPLATES: &str = "/api/v1/templates";

fn configuration(name: &str) -> Value {
    json!({
        "name": name,
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "loss"},
    })
}

async fn add(client: &Client, name: &str, config: Value) -> Value {
    let body = json!({"name": name, "config": config, "workspaceId": 0});
    client.post(&format!("{TEMPLATES}/{name}"), body).await.ok()
}

/// The effective configuration of an experiment with this document over these templates.
async fn effective(client: &Client, document: &Value, templates: &Value) -> Value {
    let body =
        json!({"config": document.to_string(), "validateOnly": true, "templates": templates});
    client.post("/api/v1/experiments", body).await.ok()["config"].take()
}

#[tokio::test]
async fn all_templates_that_are_missing_are_reported_at_once() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    add(&client, "base", json!({})).await;
    let refusal = async |templates: Value| {
        let body = json!({"config": "{}", "validateOnly": true, "templates": templates});
        client.post("/api/v1/experiments", body).await.refused(404)
    };
    assert_eq!(
        refusal(json!(["no1", "base", "no2"])).await,
        "templates \"no1\", \"no2\" not found"
    );
    assert_eq!(
        refusal(json!(["no1", "base"])).await,
        "template \"no1\" not found"
    );
}

#[tokio::test]
async fn a_template_is_stored_listed_changed_renamed_and_removed() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let made = add(&client, "base", json!({"max_restarts": 1})).await;
    let expected = json!({"name": "base", "config": {"max_restarts": 1}, "workspaceId": 1});
    assert_eq!(made["template"], expected);
    let path = format!("{TEMPLATES}/base");
    assert_eq!(client.get(&path).await.ok()["template"], expected);

    let taken = client.post(&path, json!({"config": {}})).await;
    assert!(taken.refused(409).contains("\"base\""), "{taken:?}");
    assert!(taken.text.contains("det template set`"), "{taken:?}");
    let misspelt = json!({"config": {"max_restart": 1}});
    let refused = client.put(&path, misspelt).await.refused(400);
    assert!(
        refused.starts_with("the template cannot be used:"),
        "{refused}"
    );
    let changed = client.patch(&path, json!({"max_restarts": 2})).await.ok();
    assert_eq!(changed["template"]["config"], json!({"max_restarts": 2}));
    let put = client
        .put(&path, json!({"config": {"debug": true}}))
        .await
        .ok();
    assert_eq!(put["template"]["config"], json!({"debug": true}));

    add(&client, "second", json!({})).await;
    let rename = json!({"oldName": "second", "newName": "Basement"});
    client.patch("/api/v1/template/rename", rename).await.ok();
    let names = async |query: &str| {
        let answer = client.get(&format!("{TEMPLATES}?{query}")).await.ok();
        let names = answer["templates"].as_array().unwrap().iter();
        let names: Vec<String> = names.map(|t| t["name"].as_str().unwrap().into()).collect();
        names.join(" ")
    };
    for (query, expected) in [
        ("", "Basement base"),
        ("name=BASE&orderBy=ORDER_BY_DESC", "base Basement"),
        ("name=ment", "Basement"),
        ("workspaceIds=2", ""),
        ("limit=1&offset=1", "base"),
    ] {
        assert_eq!(names(query).await, expected, "{query}");
    }
    let rename = json!({"oldName": "Basement", "newName": "base"});
    client
        .patch("/api/v1/template/rename", rename)
        .await
        .refused(409);

    client.delete(&path).await.ok();
    for refused in [
        client.get(&path).await.refused(404),
        client.delete(&path).await.refused(404),
        client.patch(&path, json!({})).await.refused(404),
    ] {
        assert!(refused.contains("template \"base\" not found"), "{refused}");
    }
    let cluster = cluster.restart().await;
    let client = cluster.determined().await;
    let left = client.get(TEMPLATES).await.ok();
    assert_eq!(left["templates"].as_array().unwrap().len(), 1);
    cluster.stop().await;
}

#[tokio::test]
async fn an_experiment_is_laid_over_its_templates_in_order() {
    let cluster = Cluster::start_with(&[("launch_error", "false")]).await;
    let client = cluster.determined().await;
    add(&client, "site", json!({"max_restarts": 1, "labels": ["site"], "environment": {"environment_variables": ["A=1"]}})).await;
    add(&client, "team", json!({"max_restarts": 2, "labels": ["team"], "environment": {"environment_variables": ["A=2", "B=2"]}})).await;
    let mut document = configuration("mine");
    document["environment"] = json!({"environment_variables": ["A=3"]});

    let config = effective(&client, &document, &json!(["site", "team"])).await;
    assert_eq!(config["max_restarts"], 2);
    assert_eq!(config["labels"], json!(["site", "team"]));
    assert_eq!(
        config["environment"]["environment_variables"]["cpu"],
        json!(["A=1", "A=2", "B=2", "A=3"])
    );
    let config = effective(&client, &document, &json!(["team", "site"])).await;
    assert_eq!(config["max_restarts"], 1);
    document["max_restarts"] = json!(3);
    let config = effective(&client, &document, &json!(["team"])).await;
    assert_eq!(config["max_restarts"], 3);

    // What exists keeps what its template contained when it was made.
    let body =
        json!({"config": configuration("kept").to_string(), "template": "team", "activate": false});
    let made = client.post("/api/v1/experiments", body).await.ok();
    let path = format!("/api/v1/experiments/{}", made["experiment"]["id"]);
    client
        .patch(&format!("{TEMPLATES}/team"), json!({"labels": ["new"]}))
        .await
        .ok();
    client.delete(&format!("{TEMPLATES}/team")).await.ok();
    assert_eq!(
        client.get(&path).await.ok()["config"]["labels"],
        json!(["team"])
    );
    let body = json!({"config": document.to_string(), "template": "team"});
    let refused = client.post("/api/v1/experiments", body).await.refused(404);
    assert!(refused.contains("template \"team\" not found"), "{refused}");
    cluster.stop().await;
}

#[tokio::test]
async fn what_a_template_cannot_be_is_refused_with_the_place() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let path = format!("{TEMPLATES}/wrong");
    for (config, named) in [
        (json!({"max_restart": 1}), "max_restarts"),
        (json!({"template": "base"}), "template"),
        (
            json!({"resources": {"priority": 100}}),
            "resources.priority",
        ),
        (
            json!({"data": {"secrets": {"key": "********"}}}),
            "data.secrets.key",
        ),
    ] {
        let refused = client
            .post(&path, json!({"config": config}))
            .await
            .refused(400);
        assert!(refused.contains(named), "{refused}");
    }
    for name in ["%20", "a%2Fb", "a%0Ab"] {
        let path = format!("{TEMPLATES}/{name}");
        client.post(&path, json!({"config": {}})).await.refused(400);
    }
    let elsewhere = json!({"config": {}, "workspaceId": 7});
    client.post(&path, elsewhere).await.refused(404);
    assert_eq!(client.get(TEMPLATES).await.ok()["templates"], json!([]));
    // Secrets are stored, and hidden from every user who looks.
    let secret = json!({"data": {"secrets": {"key": "swordfish"}}});
    let made = add(&client, "right", secret).await;
    assert_eq!(
        made["template"]["config"]["data"]["secrets"]["key"],
        "********"
    );
    cluster.stop().await;
}

#[tokio::test]
async fn variables_that_look_secret_are_hidden_from_others_than_the_owner() {
    let cluster = Cluster::start().await;
    let (owner, admin) = (cluster.determined().await, cluster.admin().await);
    let body = json!({"user": {"username": "eve", "active": true}, "password": ""});
    admin.post("/api/v1/users", body).await.ok();
    let other = cluster.user("eve").await;
    let config = json!({
        "environment": {"environment_variables": ["HF_TOKEN=swordfish", "PATH=/bin", "P=http://u:swordfish@h/x"]},
        "checkpoint_storage": {"type": "s3", "bucket": "b", "endpoint_url": "http://u:swordfish@h"},
    });
    add(&owner, "site", config.clone()).await;
    let path = format!("{TEMPLATES}/site");
    // Those who may have to write it again see the variables.
    for reader in [&owner, &admin] {
        let shown = reader.get(&path).await.ok()["template"]["config"].take();
        assert_eq!(shown["environment"], config["environment"]);
        assert_eq!(
            shown["checkpoint_storage"]["endpoint_url"],
            "http://********@h"
        );
    }
    let one = other.get(&path).await.ok()["template"]["config"].take();
    let list = other.get(TEMPLATES).await.ok()["templates"][0]["config"].take();
    for shown in [&one, &list] {
        assert_eq!(
            shown["environment"]["environment_variables"],
            json!(["HF_TOKEN=********", "PATH=/bin", "P=http://********@h/x"])
        );
    }
    // What is shown in place of a secret is not stored over the secret; and templates are their owners'.
    let environment = json!({"environment": one["environment"]});
    let refused = owner.patch(&path, environment.clone()).await.refused(400);
    assert!(
        refused.contains("environment.environment_variables[0]"),
        "{refused}"
    );
    let put = json!({"config": {"max_restarts": 1}});
    let renamed = json!({"oldName": "site", "newName": "mine"});
    for refused in [
        other.patch(&path, environment).await.refused(403),
        other.put(&path, put).await.refused(403),
        other
            .patch("/api/v1/template/rename", renamed)
            .await
            .refused(403),
        other.delete(&path).await.refused(403),
    ] {
        assert!(
            refused.contains("forbidden") && refused.contains("template \"site\""),
            "{refused}"
        );
    }
    let stored = owner.get(&path).await.ok();
    assert!(stored.to_string().contains("HF_TOKEN=swordfish"));
    // All users read what happened.
    owner.delete(&path).await.ok();
    let events = other
        .get("/api/v1/events?subjectKind=template&subjectId=site")
        .await
        .ok();
    let deleted = &events["events"].as_array().unwrap().last().unwrap();
    assert_eq!(deleted["kind"], "deleted");
    assert_eq!(deleted["detail"]["workspaceId"], 1, "{events}");
    assert!(
        deleted["detail"]["bytes"].as_u64().unwrap() > 20,
        "{events}"
    );
    assert!(!events.to_string().contains("HF_TOKEN"), "{events}");
    cluster.stop().await;
}

#[tokio::test]
async fn a_template_that_is_missing_is_reported_with_the_errors_of_the_document() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let refused = async |config: Value, status: u16| {
        let body = json!({"config": config.to_string(), "template": "none", "validateOnly": true});
        client
            .post("/api/v1/experiments", body)
            .await
            .refused(status)
    };
    // What the template would have brought is not missing.
    let message = refused(json!({"name": "x"}), 404).await;
    assert!(message.contains("template \"none\" not found"), "{message}");
    let message = refused(json!({"max_restarts": -1}), 400).await;
    assert!(
        message.contains("template \"none\" not found") && message.contains("max_restarts"),
        "{message}"
    );
    assert!(!message.contains("is required"), "{message}");
    cluster.stop().await;
}

#[tokio::test]
async fn a_configuration_names_few_templates_each_once() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    for names in [vec!["t", "t"], (0..17).map(|_| "t").collect()] {
        let body = json!({"config": "{}", "modelDefinition": [], "templates": names});
        let refused = client.post("/api/v1/experiments", body).await.refused(400);
        assert!(refused.contains("at most 16, each named once"), "{refused}");
    }
    cluster.stop().await;
}
