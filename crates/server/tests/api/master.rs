//! The master itself, and its front page.

use det_server::StartError;
use reqwest::Method;
use serde_json::json;
use tracing_subscriber::layer::SubscriberExt;

use crate::support::{Cluster, WhyUnchecked};

#[tokio::test]
async fn a_start_that_failed_lets_go_of_the_database() {
    let cluster = Cluster::start_after_refusal().await;
    cluster.client().get("/info").await.ok();
    cluster.stop().await;
}

#[tokio::test]
async fn every_caller_may_know_who_the_master_is() {
    let cluster = Cluster::start_with(&[("cluster_name", "lab")]).await;
    let client = cluster.client();
    let info = client.get("/info").await.ok();
    assert_eq!(
        (info["version"].as_str(), info["cluster_name"].as_str()),
        (Some("0.38.1"), Some("lab"))
    );
    assert_eq!(
        (&info["telemetry"]["enabled"], &info["sso_providers"]),
        (&json!(false), &json!(null))
    );
    let master = client.get("/api/v1/master").await.ok();
    assert_eq!(
        (&master["clusterId"], &master["masterId"]),
        (&info["cluster_id"], &info["master_id"])
    );
    assert_eq!(
        (&master["rbacEnabled"], &master["ssoProviders"]),
        (&json!(false), &json!([]))
    );
    assert_eq!(
        (
            &master["externalLoginUri"],
            &master["userManagementEnabled"]
        ),
        (&json!(""), &json!(true))
    );
    assert_eq!(
        client.get("/api/v1/master/telemetry").await.ok()["enabled"],
        false
    );
    let health = client.get("/health").await.ok();
    assert_eq!(
        (&health["status"], &health["database"]),
        (&json!("up"), &json!("up"))
    );
    assert_eq!(health["resource_managers"][0]["status"], "up");
    cluster.stop().await;
}

#[tokio::test]
async fn health_shows_when_the_database_is_away() {
    let cluster = Cluster::start().await;
    cluster.master().context.store.close().await;
    let health = cluster.client().get("/health").await;
    assert_eq!(health.status, 503);
    assert_eq!(
        (&health.json()["status"], &health.json()["database"]),
        (&json!("down"), &json!("down"))
    );
    // Who the master is does not need the database.
    cluster.client().get("/info").await.ok();
    cluster.stop_unchecked(WhyUnchecked::StoreClosed).await;
}

#[tokio::test]
async fn the_configuration_is_for_administrators_and_has_no_secrets() {
    let cluster = Cluster::start_with(&[("security.agent_token", "agents-know-this")]).await;
    let answer = cluster.admin().await.get("/api/v1/master/config").await;
    assert_eq!(answer.ok()["config"]["host"], "127.0.0.1");
    assert!(!answer.text.contains("agents-know-this"));
    let refused = cluster
        .determined()
        .await
        .get("/api/v1/master/config")
        .await
        .refused(403);
    assert!(refused.contains("administrator"), "{refused}");
    cluster.stop().await;
}

#[tokio::test]
async fn the_log_is_read_from_its_end_and_followed() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    let log = |text: &str| {
        let subscriber = tracing_subscriber::registry().with(cluster.master().log.layer());
        tracing::subscriber::with_default(subscriber, || tracing::warn!("{text}"));
    };
    for text in ["one", "two", "three"] {
        log(text);
    }
    let all = admin.get("/api/v1/master/logs").await.lines();
    let texts: Vec<&str> = all
        .iter()
        .map(|m| m["logEntry"]["message"].as_str().unwrap())
        .collect();
    assert_eq!(texts, ["one", "two", "three"]);
    assert_eq!(all[0]["logEntry"]["level"], "LOG_LEVEL_WARNING");
    let tail = admin.get("/api/v1/master/logs?offset=-1").await.lines();
    assert_eq!(
        (tail.len(), &tail[0]["logEntry"]["message"]),
        (1, &json!("three"))
    );
    let page = admin
        .get("/api/v1/master/logs?offset=1&limit=1")
        .await
        .lines();
    assert_eq!((page.len(), &page[0]["logEntry"]["id"]), (1, &json!(1)));

    let mut follower = admin
        .follow("/api/v1/master/logs?follow=true&offset=-1")
        .await;
    assert_eq!(
        follower.next().await.unwrap()["logEntry"]["message"],
        "three"
    );
    log("four");
    assert_eq!(
        follower.next().await.unwrap()["logEntry"]["message"],
        "four"
    );
    assert!(
        admin
            .get("/api/v1/master/logs?follow=true&limit=1")
            .await
            .refused(400)
            .contains("limit")
    );
    assert!(
        admin
            .get("/api/v1/master/logs?limit=x")
            .await
            .refused(400)
            .contains("limit")
    );
    // An open stream does not keep the master from stopping, and its reader is notified that this is not the end.
    cluster.stop().await;
    let last = follower.next_line().await.expect("a last line");
    assert!(
        last["error"]["message"]
            .as_str()
            .is_some_and(|text| text.contains("stopping")),
        "{last}"
    );
    assert_eq!(follower.next_line().await, None);
}

#[tokio::test]
async fn there_is_no_cluster_message_and_setting_one_is_not_built() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    assert_eq!(
        admin.get("/api/v1/master/cluster_message").await.ok(),
        json!({"clusterMessage": null})
    );
    let refused = admin
        .send(
            Method::PUT,
            "/api/v1/master/cluster_message",
            Some("{}".into()),
        )
        .await;
    assert_eq!(refused.status().as_u16(), 501);
    cluster.stop().await;
}

#[tokio::test]
async fn a_first_start_with_blank_passwords_can_be_forbidden() {
    let switch = ("feature_switches", "[prevent_blank_password]");
    let error = Cluster::refusal(&[switch]).await.to_string();
    assert!(
        error.contains("set security.initial_user_password"),
        "{error}"
    );
    let password = ("security.initial_user_password", "Analytical1");
    let cluster = Cluster::start_with(&[switch, password]).await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_start_that_is_refused_for_blank_passwords_is_not_the_first_one() {
    let password = ("security.initial_user_password", "Analytical1");
    Cluster::second_start(&[password]).await.unwrap();
    let refused = Cluster::second_start(&[]).await.unwrap_err();
    assert!(
        matches!(refused, StartError::BlankPassword { .. }),
        "{refused}"
    );
}

#[tokio::test]
async fn a_token_is_needed() {
    let cluster = Cluster::start().await;
    for path in [
        "/api/v1/master/config",
        "/api/v1/master/config/origins",
        "/api/v1/master/logs",
        "/api/v1/master/memory",
        "/api/v1/master/cluster_message",
    ] {
        cluster.client().assert_needs_token(Method::GET, path).await;
    }
    cluster.stop().await;
}

#[tokio::test]
async fn administrators_see_what_the_master_holds() {
    let cluster = Cluster::start().await;
    let shown = cluster
        .admin()
        .await
        .get("/api/v1/master/memory")
        .await
        .ok();
    assert!(
        shown["residentBytes"].as_i64().unwrap() > 1 << 20,
        "{shown}"
    );
    assert!(shown["threads"].as_i64().unwrap() > 0, "{shown}");
    let budgets = shown["budgets"].as_array().unwrap();
    for name in [
        "requests",
        "spooled_requests",
        "handled_requests",
        "answers",
        "archives",
        "metric_streams",
        "all_gathers",
    ] {
        let budget = budgets.iter().find(|budget| budget["name"] == name);
        let budget = budget.unwrap_or_else(|| panic!("no budget {name} in {shown}"));
        assert_eq!(budget["usedBytes"], 0, "{name}");
        assert!(
            budget["limitBytes"].as_i64() >= budget["shareBytes"].as_i64(),
            "{name}"
        );
    }
    cluster.stop().await;
}

#[tokio::test]
async fn prometheus_collects_what_the_master_holds() {
    let path = "/debug/prom/metrics";
    let cluster = Cluster::start().await;
    let answer = cluster.admin().await.get(path).await;
    assert_eq!(answer.status, 200);
    let content_type = answer.headers["content-type"].to_str().unwrap();
    assert!(content_type.starts_with("text/plain; version=0.0.4"));
    let value = |name: &str| -> i64 {
        let text = &answer.text;
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.trim().parse().ok())
            .unwrap_or_else(|| panic!("no {name} in {text}"))
    };
    assert!(value("process_resident_memory_bytes ") > 1 << 20);
    assert_eq!(
        value("det_memory_budget_used_bytes{budget=\"all_gathers\"} "),
        0
    );
    assert!(value("det_memory_budget_limit_bytes{budget=\"answers\"} ") > 0);
    cluster.client().assert_needs_token(Method::GET, path).await;
    cluster.stop().await;

    let cluster = Cluster::start_with(&[("observability", "{\"enable_prometheus\": false}")]).await;
    let refused = cluster.admin().await.get(path).await;
    assert_eq!(refused.status, 404, "{refused:?}");
    cluster.stop().await;
}

#[tokio::test]
async fn the_front_page_explains_how_to_begin() {
    let cluster = Cluster::start_with(&[("cluster_name", "<lab>")]).await;
    let page = cluster.client().get("/").await;
    assert_eq!(page.status, 200);
    assert!(
        page.headers["content-type"]
            .to_str()
            .unwrap()
            .starts_with("text/html")
    );
    assert!(page.text.contains("det user login") && page.text.contains("det experiment create"));
    assert!(page.text.contains("&lt;lab&gt;") && page.text.contains("http://127.0.0.1:"));
    cluster.stop().await;
}
