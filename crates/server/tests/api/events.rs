//! The record of every change.

use reqwest::Method;
use serde_json::json;

use crate::support::{Cluster, within};

#[tokio::test]
async fn events_are_paged_by_place_and_filtered_by_subject() {
    let cluster = Cluster::start_with(&[("launch_error", "false")]).await;
    let client = cluster.determined().await;
    cluster.experiment("watched", 1).await;
    let all = client.get("/api/v1/events").await.ok();
    let events = all["events"].as_array().unwrap();
    let ids: Vec<i64> = events
        .iter()
        .map(|e| e["id"].as_str().unwrap().parse().unwrap())
        .collect();
    assert!(ids.len() > 1 && ids.is_sorted(), "{all}");
    assert_eq!(all["nextAfter"], ids.last().unwrap().to_string());

    let first = client.get("/api/v1/events?limit=1").await.ok();
    assert_eq!(first["events"].as_array().unwrap().len(), 1);
    let second = client
        .get(&format!("/api/v1/events?limit=1&after={}", ids[0]))
        .await
        .ok();
    assert_eq!(second["events"][0]["id"], ids[1].to_string());
    let end = client
        .get(&format!("/api/v1/events?after={}", i64::MAX))
        .await
        .ok();
    assert_eq!(
        (&end["events"], &end["nextAfter"]),
        (&json!([]), &json!(i64::MAX.to_string()))
    );

    let of_one = client
        .get("/api/v1/events?subjectKind=experiment&subject_id=1")
        .await
        .ok();
    let of_one = of_one["events"].as_array().unwrap();
    assert!(!of_one.is_empty());
    assert!(
        of_one
            .iter()
            .all(|e| e["subjectKind"] == "experiment" && e["subjectId"] == "1")
    );
    assert_eq!(of_one[0]["actor"], "user:admin");

    let refused = [
        ("subjectKind=trial", "subjectId"),
        ("orderBy=ORDER_BY_DESC", "orderBy"),
        ("follow=true&limit=3", "limit"),
        ("after=x", "after"),
    ];
    for (query, named) in refused {
        let sentence = client
            .get(&format!("/api/v1/events?{query}"))
            .await
            .refused(400);
        assert!(sentence.contains(named), "{query}: {sentence}");
    }
    cluster.stop().await;
}

#[tokio::test]
async fn events_are_followed() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let next = client.get("/api/v1/events").await.ok()["nextAfter"]
        .as_str()
        .unwrap()
        .to_owned();
    let mut follower = client
        .follow(&format!("/api/v1/events?follow=true&after={next}"))
        .await;
    let _agent = cluster.agent("a1", 1).await;
    for kind in ["joined", "connected"] {
        let event = follower.next().await.unwrap();
        let what = (
            event["subjectKind"].as_str(),
            event["subjectId"].as_str(),
            event["kind"].as_str(),
        );
        assert_eq!(what, (Some("agent"), Some("a1"), Some(kind)));
    }
    cluster.stop().await;
    // The disconnection of the agent may have been seen before the end.
    while follower.next().await.is_some() {}
}

#[tokio::test]
async fn tasks_do_not_read_events() {
    let cluster = Cluster::start().await;
    let (_agent, spec) = cluster.running_task().await;
    let task = cluster.client().as_task(&spec.script.token);
    for path in ["/api/v1/events", "/api/v1/events?follow=true"] {
        assert!(task.get(path).await.refused(403).contains("only users"));
    }
    cluster
        .client()
        .assert_needs_token(Method::GET, "/api/v1/events")
        .await;
    cluster.stop().await;
}

#[tokio::test]
async fn the_streams_of_one_user_are_limited_and_those_of_others_are_not() {
    let cluster = Cluster::start().await;
    let (admin, other) = (cluster.admin().await, cluster.determined().await);
    let path = "/api/v1/events?follow=true&after=9223372036854775807";
    let mut streams = Vec::new();
    let mut refused = Vec::new();
    while refused.is_empty() {
        let more = (0..64).map(|_| admin.send(Method::GET, path, None));
        let more = futures::future::join_all(more).await;
        let (open, others): (Vec<_>, Vec<_>) =
            more.into_iter().partition(|one| one.status() == 200);
        streams.extend(open);
        refused = others;
        assert!(streams.len() <= 512, "there is a limit");
    }
    let refused = refused.pop().unwrap();
    assert_eq!(refused.status(), 429);
    let sentence = refused.text().await.unwrap();
    let most = format!("{} streams are open for you", streams.len());
    assert!(sentence.contains(&most), "{sentence}");
    // Whatever is no stream is answered, and another user has streams of his own.
    admin.get("/api/v1/events?limit=1").await.ok();
    assert_eq!(other.send(Method::GET, path, None).await.status(), 200);
    streams.pop();
    let freed = async {
        while admin.send(Method::GET, path, None).await.status() != 200 {
            tokio::task::yield_now().await;
        }
    };
    within("a place of the stream that ended", freed).await;
    drop(streams);
    cluster.stop().await;
}
