//! What running tasks report and ask.

use det_agent_proto::ToAgent;
use reqwest::Method;
use serde_json::json;

use crate::support::{Cluster, within};

#[tokio::test]
async fn one_allocation() {
    let cluster = Cluster::start().await;
    let (_agent, spec) = cluster.running_task().await;
    let client = cluster.determined().await;
    let allocation = client
        .get(&format!("/api/v1/allocations/{}", spec.allocation_id))
        .await
        .ok()["allocation"]
        .clone();
    assert_eq!(allocation["taskId"], spec.task_id.as_str());
    assert!(
        allocation["startTime"].as_str().unwrap().ends_with('Z'),
        "{allocation}"
    );
    assert!(
        client
            .get("/api/v1/allocations/1.none.1")
            .await
            .refused(404)
            .contains("1.none.1")
    );
    assert!(
        client
            .get("/api/v1/allocations/nodot")
            .await
            .refused(400)
            .contains("TASK.NUMBER")
    );
    cluster.stop().await;
}

#[tokio::test]
async fn containers_meet_and_are_ready() {
    let cluster = Cluster::start().await;
    let (_agent, spec) = cluster.running_task().await;
    let task = cluster.client().as_task(&spec.script.token);
    let base = format!("/api/v1/allocations/{}", spec.allocation_id);
    let met = task
        .get(&format!(
            "{base}/resources/{}/rendezvous",
            spec.container_id
        ))
        .await
        .ok();
    assert_eq!(
        met,
        json!({"rendezvousInfo": {"addresses": ["127.0.0.1"], "rank": 0, "slots": [1]}})
    );
    assert_eq!(
        cluster.determined().await.get(&base).await.ok()["allocation"]["isReady"],
        true
    );
    assert!(
        task.get(&format!("{base}/resources/none/rendezvous"))
            .await
            .refused(404)
            .contains("none")
    );

    // A lone container cannot be a helper: it is accepted and changes nothing.
    let daemon = format!("{base}/resources/{}/daemon", spec.container_id);
    assert_eq!(task.post(&daemon, json!(null)).await.ok(), json!({}));
    assert!(
        task.post(&format!("{base}/resources/none/daemon"), json!(null))
            .await
            .refused(404)
            .contains("none")
    );
    for call in ["waiting", "ready", "proxy_address"] {
        assert_eq!(
            task.post(&format!("{base}/{call}"), json!({})).await.ok(),
            json!({}),
            "{call}"
        );
    }
    assert!(
        task.post(&format!("{base}/proxy_address"), json!({"proxyAddress": 4}))
            .await
            .refused(400)
            .contains("proxyAddress")
    );
    cluster.stop().await;
}

#[tokio::test]
async fn a_preemption_is_polled_and_acknowledged() {
    let cluster = Cluster::start().await;
    let (mut agent, spec) = cluster.running_task().await;
    let task = cluster.client().as_task(&spec.script.token);
    let base = format!("/api/v1/allocations/{}", spec.allocation_id);
    let signal = format!("{base}/signals/preemption");
    assert_eq!(task.get(&signal).await.ok()["preempt"], false);
    assert_eq!(
        task.get(&format!("{signal}?timeout_seconds=0")).await.ok()["preempt"],
        false
    );
    assert!(
        task.get(&format!("{signal}?timeoutSeconds=soon"))
            .await
            .refused(400)
            .contains("timeoutSeconds")
    );
    cluster
        .until(&task, &base, |a| {
            a["allocation"]["state"] == "STATE_RUNNING"
        })
        .await;
    task.post(&format!("{base}/ready"), json!(null)).await.ok();

    let poll = tokio::spawn({
        let (task, signal) = (task.clone(), format!("{signal}?timeout_seconds=60"));
        async move { task.get(&signal).await }
    });
    task.post(&format!("{base}/signals/pending_preemption"), json!(null))
        .await
        .ok();
    assert_eq!(
        within("the signal", poll).await.unwrap().ok()["preempt"],
        true
    );
    assert_eq!(task.get(&signal).await.ok()["preempt"], true);
    task.post(&format!("{base}/signals/ack_preemption"), json!(null))
        .await
        .ok();
    assert_eq!(task.get(&signal).await.ok()["preempt"], true);

    // Exit 0 after the acknowledgement: the trial goes on in a new allocation.
    agent.exits(&spec, 0).await;
    let next = loop {
        match agent.receive().await {
            ToAgent::Start(next) => break next,
            ToAgent::Forget { .. } => {}
            other => panic!("expected the next start, received {other:?}"),
        }
    };
    assert_eq!(
        (&next.task_id, next.allocation_id != spec.allocation_id),
        (&spec.task_id, true)
    );
    assert!(task.get(&signal).await.refused(403).contains("has ended"));

    // Every change of its state is in the ordered record.
    let events = format!(
        "/api/v1/events?subjectKind=allocation&subjectId={}",
        spec.allocation_id
    );
    let events = cluster.determined().await.get(&events).await.ok();
    let states: Vec<&str> = events["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["to"].as_str().unwrap())
        .collect();
    assert_eq!(
        states,
        [
            "PENDING",
            "ASSIGNED",
            "RUNNING",
            "READY",
            "PREEMPTING",
            "SAVING",
            "TERMINATED"
        ]
    );
    cluster.stop().await;
}

#[tokio::test]
async fn members_exchange_data() {
    let cluster = Cluster::start().await;
    let (_agent, spec) = cluster.running_task().await;
    let task = cluster.client().as_task(&spec.script.token);
    let path = format!("/api/v1/allocations/{}/all_gather", spec.allocation_id);
    let member = |uuid: &str, rank: i64| {
        let body = json!({"allocationId": spec.allocation_id, "requestUuid": uuid, "numPeers": 2, "data": {"rank_of": rank}});
        let (task, path) = (task.clone(), path.clone());
        tokio::spawn(async move { task.post(&path, body).await })
    };
    let (first, second) = (member("a", 0), member("b", 1));
    for answer in [first, second] {
        let data = within("all members", answer).await.unwrap().ok()["data"].clone();
        let mut ranks: Vec<i64> = data
            .as_array()
            .unwrap()
            .iter()
            .map(|d| d["rank_of"].as_i64().unwrap())
            .collect();
        ranks.sort_unstable();
        assert_eq!(ranks, [0, 1]);
    }
    assert!(
        task.post(&path, json!({"numPeers": 1}))
            .await
            .refused(400)
            .contains("requestUuid")
    );
    assert!(
        task.post(&path, json!({"requestUuid": "a"}))
            .await
            .refused(400)
            .contains("numPeers")
    );
    assert!(
        task.post(&path, json!({"requestUuid": "a", "numPeers": "x"}))
            .await
            .refused(400)
            .contains("numPeers")
    );
    let running = format!(
        "/api/v1/allocations/{}/notify_container_running",
        spec.allocation_id
    );
    assert!(
        task.post(&running, json!({"numPeers": 1}))
            .await
            .refused(400)
            .contains("requestUuid")
    );
    cluster.stop().await;
}

#[tokio::test]
async fn a_task_speaks_only_for_itself() {
    let cluster = Cluster::start().await;
    let (_agent, spec) = cluster.running_task().await;
    let admin = cluster.admin().await;
    let other = cluster.experiment("other", 1).await;
    let (_, allocation) = cluster.task_of(other).await;
    let task = cluster.client().as_task(&spec.script.token);
    let base = format!("/api/v1/allocations/{}", allocation.id);
    assert!(
        task.get(&format!("{base}/signals/preemption"))
            .await
            .refused(403)
            .contains("may not act")
    );
    for call in [
        "ready",
        "waiting",
        "proxy_address",
        "signals/ack_preemption",
        "signals/pending_preemption",
    ] {
        let sentence = task
            .post(&format!("{base}/{call}"), json!(null))
            .await
            .refused(403);
        assert!(sentence.contains("may not act"), "{call}: {sentence}");
    }
    let gather = json!({"requestUuid": "a", "numPeers": 1});
    assert!(
        task.post(&format!("{base}/all_gather"), gather)
            .await
            .refused(403)
            .contains("may not act")
    );
    for call in [
        "ready",
        "signals/ack_preemption",
        "proxy_address",
        "acceleratorData",
    ] {
        let unknown = format!("/api/v1/allocations/1.none.1/{call}");
        assert!(
            admin
                .post(&unknown, json!(null))
                .await
                .refused(404)
                .contains("1.none.1"),
            "{call}"
        );
    }
    cluster.stop().await;
}

#[tokio::test]
async fn a_token_is_needed() {
    let cluster = Cluster::start().await;
    let client = cluster.client();
    for path in ["", "/signals/preemption", "/resources/r/rendezvous"] {
        client
            .assert_needs_token(Method::GET, &format!("/api/v1/allocations/t.1{path}"))
            .await;
    }
    let posts = [
        "acceleratorData",
        "all_gather",
        "notify_container_running",
        "proxy_address",
        "ready",
        "waiting",
        "resources/r/daemon",
        "signals/ack_preemption",
        "signals/pending_preemption",
    ];
    for path in posts {
        client
            .assert_needs_token(Method::POST, &format!("/api/v1/allocations/t.1/{path}"))
            .await;
    }
    cluster.stop().await;
}
