//! Searches with more trials than one change deals with.

use serde_json::{Value, json};

use crate::experiments::{config, create};
use crate::support::Cluster;

const TRIALS: i64 = 600;

/// Asks until the trials of the experiment, by their states, are these.
async fn until_trials(cluster: &Cluster, states: &[(&str, i64)]) {
    let client = cluster.admin().await;
    for (state, count) in states {
        let path = format!("/api/v1/experiments/1/trials?limit=1&states=STATE_{state}");
        let total = |page: &Value| page["pagination"]["total"] == *count;
        cluster.until(&client, &path, total).await;
    }
}

#[tokio::test]
async fn all_trials_of_a_large_search_are_created_and_ended_whatever_comes_between() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let mut large = config("large");
    large["searcher"] = json!({"name": "random", "metric": "loss", "max_trials": TRIALS,
        "max_concurrent_trials": 0});
    create(&client, &large, true).await;
    // Perhaps before all are created, and then perhaps before all are paused, activated and killed.
    let mut cluster = cluster.restart().await;
    until_trials(&cluster, &[("ACTIVE", TRIALS)]).await;
    for (action, states) in [
        ("pause", [("ACTIVE", 0), ("PAUSED", TRIALS)]),
        ("activate", [("PAUSED", 0), ("ACTIVE", TRIALS)]),
        ("kill", [("ACTIVE", 0), ("CANCELED", TRIALS)]),
    ] {
        let path = format!("/api/v1/experiments/1/{action}");
        let client = cluster.determined().await;
        client.post(&path, json!({})).await.ok();
        cluster = cluster.restart().await;
        until_trials(&cluster, &states).await;
    }
    let client = cluster.determined().await;
    let path = "/api/v1/experiments/1";
    let ended = |it: &Value| it["experiment"]["state"] == "STATE_CANCELED";
    cluster.until(&client, path, ended).await;
    let again = json!({"id": 1, "overrideConfig": ""});
    client
        .post("/api/v1/experiments/continue", again)
        .await
        .ok();
    until_trials(&cluster, &[("CANCELED", 0), ("ACTIVE", TRIALS)]).await;
    cluster.stop().await;
}
