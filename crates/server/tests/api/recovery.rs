//! What the simulator found: each case once more against the real master.

use det_agent_proto::{ContainerState, ToAgent};
use det_server::hub::Topic;
use det_store::StoreError;
use serde_json::{Value, json};

use crate::experiments::{config, create};
use crate::support::{Cluster, within};

/// The search of a continued experiment names its trials as before: one that it comes to later goes on, and is not
/// created a second time, which the database would refuse for ever.
#[tokio::test]
async fn a_continued_search_takes_up_its_trials_one_after_another() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let mut agent = cluster.agent("a1", 1).await;
    let mut two = config("two");
    two["searcher"] = json!({
        "name": "random", "metric": "loss", "max_trials": 2, "max_concurrent_trials": 1,
    });
    create(&client, &two, true).await;
    let ends =
        |state: &'static str| move |e: &Value| e["experiment"]["state"].as_str() == Some(state);
    for code in [1, 1, 0, 0] {
        let spec = loop {
            if let ToAgent::Start(spec) = agent.receive().await {
                break spec;
            }
        };
        agent.runs(&spec).await;
        agent.exits(&spec, code).await;
        if code == 1 && spec.description.contains("trial 2 ") {
            let path = "/api/v1/experiments/1";
            cluster.until(&client, path, ends("STATE_ERROR")).await;
            let again = json!({"id": 1, "overrideConfig": ""});
            client
                .post("/api/v1/experiments/continue", again)
                .await
                .ok();
        }
    }
    let path = "/api/v1/experiments/1";
    let ended = cluster.until(&client, path, ends("STATE_COMPLETED")).await;
    assert_eq!(ended["experiment"]["numTrials"], 2);
    cluster.stop().await;
}

/// A report that was overtaken by one of a later connection moves nothing back.
#[tokio::test]
async fn a_container_does_not_go_back() {
    let cluster = Cluster::start().await;
    let (mut agent, spec) = cluster.running_task().await;
    agent.report(&spec, ContainerState::Starting).await;
    let task = cluster.client().as_task(&spec.script.token);
    let meeting = format!(
        "/api/v1/allocations/{}/resources/{}/rendezvous",
        spec.allocation_id, spec.container_id
    );
    // It would wait for ever for a container that only starts.
    task.get(&meeting).await.ok();
    agent.exits(&spec, 0).await;
    cluster.stop().await;
}

/// A master that starts serves no place: other states in its rows are left from before, and become an event like any other
/// absence.
#[tokio::test]
async fn a_master_that_starts_records_which_places_are_away() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    drop(cluster.agent("a1", 1).await);
    let is_away = |answer: &Value| answer["agents"][0]["disconnected"] == true;
    cluster.until(&client, "/api/v1/agents", is_away).await;
    // As a master leaves it that ends without a word.
    connected_by_its_row(&cluster).await;
    let cluster = cluster.restart().await;
    let client = cluster.determined().await;
    assert!(is_away(&client.get("/api/v1/agents").await.ok()));
    let path = "/api/v1/events?subjectKind=agent&subjectId=a1";
    let events = client.get(path).await.ok();
    let last = events["events"].as_array().unwrap().last().unwrap();
    assert_eq!(last["kind"], "disconnected");
    let reason = last["reason"].as_str().unwrap();
    assert!(reason.contains("the master has started"), "{reason}");
    cluster.stop().await;
}

async fn connected_by_its_row(cluster: &Cluster) {
    let store = &cluster.master().context.store;
    let written = store.write(|tx| {
        Box::pin(async move {
            let row = det_store::places::find(&mut tx.conn(), &"a1".into()).await?;
            let mut row = row.expect("it was there");
            row.disconnected_at = None;
            det_store::places::save(&mut tx.conn(), &row).await?;
            Ok::<_, StoreError>(())
        })
    });
    written.await.unwrap();
}

/// The end of a connection that could not be stored when it came is stored later: else its agent would be given work,
/// and be waited for without end.
#[tokio::test]
async fn an_absence_that_was_not_stored_is_noticed() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent("a1", 1).await;
    drop(agent);
    let master = cluster.master().clone();
    let away = async || {
        let mut conn = master.context.store.read().await.unwrap();
        let row = det_store::places::find(&mut conn.conn(), &"a1".into()).await;
        row.unwrap().unwrap().disconnected_at.is_some()
    };
    let mut changes = master.context.hub.subscribe(Topic::Events);
    within("the end of the connection", async {
        while !away().await {
            changes.changed().await;
        }
    })
    .await;
    // As if that had failed.
    connected_by_its_row(&cluster).await;
    master.context.hub.notify(&Topic::Deadlines);
    within("the absence to be noticed", async {
        while !away().await {
            changes.changed().await;
        }
    })
    .await;
    cluster.stop().await;
}
