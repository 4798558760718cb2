//! Which rank of a trial hangs: what supervisors are asked, what they answer, and what follows.

use det_agent_proto::ToAgent;
use det_taskspec::ContainerSpec;
use det_taskspec::diagnosis::{Diagnosis, ProcessState};
use serde_json::{Value, json};

use crate::support::{Client, Cluster, FakeAgent};
use crate::workspaces::submit;

/// A rank of a trial.
struct Rank {
    agent: FakeAgent,
    /// The agent's name.
    place: &'static str,
    spec: ContainerSpec,
}

/// A trial of two ranks on two agents, which have met; in the order of their numbers.
async fn gang(cluster: &Cluster, name: &str, more: Value) -> [Rank; 2] {
    let mut a1 = cluster.agent("a1", 1).await;
    let mut b1 = cluster.agent("b1", 1).await;
    let client = cluster.determined().await;
    let mut config = json!({"name": name, "resources": {"slots_per_trial": 2}});
    let more = more.as_object().unwrap().clone();
    config.as_object_mut().unwrap().extend(more);
    submit(&client, &config, &json!({"activate": true})).await;
    let (on_a, on_b) = (a1.next_start().await, b1.next_start().await);
    a1.runs(&on_a).await;
    b1.runs(&on_b).await;
    let meet = async |spec: &ContainerSpec| {
        let path = container_path(spec, "rendezvous");
        task(cluster, spec).get(&path).await.ok()["rendezvousInfo"]["rank"].clone()
    };
    let (rank_on_a, _) = tokio::join!(meet(&on_a), meet(&on_b));
    let on_a = Rank {
        agent: a1,
        place: "a1",
        spec: on_a,
    };
    let on_b = Rank {
        agent: b1,
        place: "b1",
        spec: on_b,
    };
    if rank_on_a == 0 {
        [on_a, on_b]
    } else {
        [on_b, on_a]
    }
}

fn task(cluster: &Cluster, spec: &ContainerSpec) -> Client {
    cluster.client().as_task(&spec.script.token)
}

fn container_path(spec: &ContainerSpec, what: &str) -> String {
    let (allocation, container) = (&spec.allocation_id, &spec.container_id);
    format!("/api/v1/allocations/{allocation}/resources/{container}/{what}")
}

/// What the supervisor of a container reports of a process that waits in this call.
fn diagnosis_of(call: &str, frame: &str) -> Value {
    let process = ProcessState {
        pid: 7,
        parent: 1,
        command: "python3 train.py".to_owned(),
        state: "S".to_owned(),
        system_call: call.to_owned(),
        stack: vec![frame.to_owned()],
        stack_source: "py-spy".to_owned(),
        ..ProcessState::default()
    };
    let diagnosis = Diagnosis {
        window_micros: 1_000_000,
        processes: vec![process],
        omitted: 0,
    };
    json!({"diagnosis": diagnosis})
}

/// Waits until the supervisor of a rank is to be asked.
async fn is_asked(of: &mut Rank) {
    match of.agent.receive().await {
        ToAgent::Diagnose { container_id } => assert_eq!(container_id, of.spec.container_id),
        other => panic!("expected to be asked for a diagnosis, received {other:?}"),
    }
}

/// Waits until the supervisor of a rank is to be asked, and answers for it.
async fn answers(cluster: &Cluster, of: &mut Rank, answer: Value) {
    is_asked(of).await;
    answer_for(cluster, of, answer).await;
}

/// Answers all who ask the supervisor of a rank.
async fn answer_for(cluster: &Cluster, of: &Rank, answer: Value) {
    let path = container_path(&of.spec, "diagnosis");
    task(cluster, &of.spec).post(&path, answer).await.ok();
}

#[tokio::test]
async fn the_doctor_asks_every_rank_and_names_the_odd_one_out() {
    let cluster = Cluster::start().await;
    let [mut chief, mut other] = gang(&cluster, "stuck", json!({})).await;
    let client = cluster.determined().await;
    let ask = client.post("/api/v1/trials/1/diagnose", json!({"trialId": 1}));
    let (found, (), ()) = tokio::join!(
        ask,
        answers(
            &cluster,
            &mut chief,
            diagnosis_of("recvfrom(socket)", "all_reduce (dist.py:1)")
        ),
        answers(
            &cluster,
            &mut other,
            diagnosis_of("clock_nanosleep", "hang (train.py:9)")
        ),
    );
    let found = found.ok();
    let ranks = found["ranks"].as_array().unwrap();
    let shown: Vec<_> = ranks
        .iter()
        .map(|rank| {
            (
                rank["rank"].clone(),
                rank["odd"].clone(),
                rank["activity"].clone(),
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            (json!(0), json!(false), json!("waits for the network")),
            (json!(1), json!(true), json!("sleeps")),
        ]
    );
    assert_eq!(ranks[1]["containerId"], json!(other.spec.container_id));
    assert_eq!(ranks[1]["process"]["command"], "python3 train.py");
    assert_eq!(
        found["conclusion"],
        format!(
            "rank 1 on {} sleeps in clock_nanosleep, at hang (train.py:9), and rank 0 waits in recvfrom(socket) for it",
            other.place
        )
    );
    // Asking leaves nothing behind.
    let events = "/api/v1/events?subjectKind=trial&subjectId=1&limit=100";
    let events = cluster.admin().await.get(events).await.ok();
    let kinds = events["events"].as_array().unwrap().iter();
    assert!(
        kinds.clone().all(|event| event["kind"] != "silent"),
        "{events}"
    );
    cluster.stop().await;
}

#[tokio::test]
async fn what_does_not_answer_is_named_with_the_reason() {
    let cluster = Cluster::start().await;
    let [mut chief, away] = gang(&cluster, "away", json!({})).await;
    let (spec, path) = (away.spec, format!("/api/v1/agents/{}", away.place));
    drop(away.agent);
    let client = cluster.determined().await;
    let left = |answer: &Value| answer["agent"]["draining"] == true;
    cluster.until(&client, &path, left).await;
    let path = "/api/v1/trials/1/diagnose";
    let ask = client.post(path, json!({"timeoutSeconds": 30}));
    let waits = diagnosis_of("futex", "wait (x.py:1)");
    let (found, ()) = tokio::join!(ask, answers(&cluster, &mut chief, waits));
    let found = found.ok();
    let rank = &found["ranks"][1];
    assert_eq!(
        (&rank["activity"], &rank["odd"]),
        (&json!("did not answer"), &json!(true))
    );
    assert_eq!(rank["process"], Value::Null);
    let problem = rank["problem"].as_str().unwrap();
    assert!(problem.contains("is not connected"), "{problem}");
    assert_eq!(rank["containerId"], json!(spec.container_id));

    let refusal = client
        .post(path, json!({"timeoutSeconds": 61}))
        .await
        .refused(400);
    assert!(refusal.contains("0 to 60"), "{refusal}");
    let refusal = client.post("/api/v1/trials/9/diagnose", json!({})).await;
    assert!(refusal.refused(404).contains("trial \"9\" not found"));
    cluster.stop().await;
}

#[tokio::test]
async fn one_user_has_two_trials_examined_at_once_and_others_have_theirs() {
    let cluster = Cluster::start().await;
    let [mut chief, mut other] = gang(&cluster, "asked", json!({})).await;
    let client = cluster.determined().await;
    let admin = cluster.admin().await;
    let path = "/api/v1/trials/1/diagnose";
    let ask = |client: &Client| {
        let client = client.clone();
        async move { client.post(path, json!({"timeoutSeconds": 60})).await }
    };
    let (first, second, of_admin, ()) =
        tokio::join!(ask(&client), ask(&client), ask(&admin), async {
            for _ in 0..3 {
                is_asked(&mut chief).await;
                is_asked(&mut other).await;
            }
            let refusal = ask(&client).await.refused(429);
            assert!(
                refusal.contains("2 trials are being examined for you"),
                "{refusal}"
            );
            answer_for(&cluster, &chief, diagnosis_of("futex", "f (x.py:1)")).await;
            answer_for(&cluster, &other, diagnosis_of("futex", "f (x.py:1)")).await;
        });
    for answer in [first, second, of_admin] {
        assert_eq!(answer.ok()["ranks"].as_array().unwrap().len(), 2);
    }
    // Those that have ended do not count.
    let (again, (), ()) = tokio::join!(
        ask(&client),
        answers(&cluster, &mut chief, diagnosis_of("futex", "f (x.py:1)")),
        answers(&cluster, &mut other, diagnosis_of("futex", "f (x.py:1)")),
    );
    again.ok();
    cluster.stop().await;
}

#[tokio::test]
async fn a_trial_that_ends_while_it_is_examined_is_reported_as_ended() {
    let cluster = Cluster::start().await;
    let [mut chief, mut other] = gang(&cluster, "ends", json!({})).await;
    let client = cluster.determined().await;
    let ask = client.post(
        "/api/v1/trials/1/diagnose",
        json!({"trialId": 1, "timeoutSeconds": 60}),
    );
    let end = async {
        tokio::join!(is_asked(&mut chief), is_asked(&mut other));
        for rank in [&mut chief, &mut other] {
            rank.agent.exits(&rank.spec, 0).await;
        }
    };
    let (answer, ()) = tokio::join!(ask, end);
    let reason = answer.refused(400);
    assert!(
        reason.contains("trial 1 ended while it was examined"),
        "{reason}"
    );
    cluster.stop().await;
}

#[tokio::test]
async fn a_diagnosis_is_taken_from_the_containers_own_task_only() {
    let cluster = Cluster::start().await;
    let [chief, other] = gang(&cluster, "own", json!({})).await;
    // No caller waits for it: that is no error.
    let path = container_path(&chief.spec, "diagnosis");
    let own = task(&cluster, &chief.spec);
    own.post(&path, diagnosis_of("futex", "f (x.py:1)"))
        .await
        .ok();
    let unknown = path.replace(chief.spec.container_id.as_str(), "none");
    assert!(
        own.post(&unknown, json!({}))
            .await
            .refused(404)
            .contains("container \"none\" not found")
    );
    let new = json!({"user": {"username": "eve", "active": true}});
    cluster.admin().await.post("/api/v1/users", new).await.ok();
    let eve = cluster.user("eve").await;
    eve.post(&path, json!({})).await.refused(403);
    let long = json!({"diagnosis": {"processes": [{"command": "x".repeat(2 << 20)}]}});
    own.post(&path, long).await.refused(413);
    drop(other);
    cluster.stop().await;
}

#[tokio::test]
async fn a_trial_that_reports_nothing_has_in_its_log_and_record_which_rank_hangs() {
    let cluster = Cluster::start_with(&[("silence_timeout", "0s")]).await;
    let [mut chief, mut other] = gang(&cluster, "silent", json!({"silence_timeout": "1s"})).await;
    let client = cluster.determined().await;
    tokio::join!(
        answers(
            &cluster,
            &mut chief,
            diagnosis_of("recvfrom(socket)", "all_reduce (dist.py:1)")
        ),
        answers(
            &cluster,
            &mut other,
            diagnosis_of("clock_nanosleep", "hang (train.py:9)")
        ),
    );
    let events = "/api/v1/events?subjectKind=trial&subjectId=1&limit=100";
    let silent = |answer: &Value| {
        let mut events = answer["events"].as_array().unwrap().iter();
        events.any(|event| event["kind"] == "silent")
    };
    let events = cluster.until(&cluster.admin().await, events, silent).await;
    let event = events["events"]
        .as_array()
        .unwrap()
        .iter()
        .find(|e| e["kind"] == "silent");
    let reason = event.unwrap()["reason"].as_str().unwrap();
    assert!(reason.contains("\"silence_timeout\" is 1 s"), "{reason}");
    let place = other.place;
    assert!(
        reason.contains(&format!("rank 1 on {place} sleeps in clock_nanosleep")),
        "{reason}"
    );
    let task = client.get("/api/v1/trials/1").await.ok()["trial"]["taskId"].clone();
    let log = format!("/api/v1/tasks/{}/logs", task.as_str().unwrap());
    let lines = client.get(&log).await.lines();
    let texts: Vec<&str> = lines.iter().filter_map(|l| l["log"].as_str()).collect();
    let said = |start: &str| texts.iter().any(|text| text.starts_with(start));
    assert!(
        said("This trial may hang: its code has reported nothing"),
        "{texts:?}"
    );
    assert!(
        said(&format!(
            "- rank 1 on {place} sleeps in clock_nanosleep, at hang (train.py:9); process 7 (python3 train.py)"
        )),
        "{texts:?}"
    );
    cluster.stop().await;
}
