//! The scenario: an experiment of a gang on two agents runs, reports, saves, is preempted, goes on, completes, is deleted.

use std::time::Duration;

use det_taskspec::ContainerSpec;
use reqwest::Method;
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::master::{Database, PATIENCE, Phoenix};

const NAME: &str = "the scenario";
const CHECKPOINT: &str = "11111111-2222-4333-8444-555555555555";

/// Users and tasks, who repeat what got no answer.
struct Teller {
    phoenix: Phoenix,
    http: reqwest::Client,
    token: String,
}

/// Plays the scenario; returns whether the master was cut.
pub(crate) async fn play(database: Database, arming: String) -> bool {
    tokio::time::timeout(PATIENCE, run(database, &arming))
        .await
        .unwrap_or_else(|_| panic!("the scenario did not come to its end"))
}

/// Who submits blindly repeats the request until there is an answer. `POST /api/v1/experiments` knows no key by which a
/// repeat could be recognised, so a submission that was cut behind its commit exists a second time: whole both times,
/// and both run to their end. Gives how many there were.
pub(crate) async fn submit_blindly(database: Database, arming: String) -> usize {
    tokio::time::timeout(PATIENCE, run_blind_submission(database, &arming))
        .await
        .unwrap_or_else(|_| panic!("the scenario did not come to its end"))
}

async fn run_blind_submission(database: Database, arming: &str) -> usize {
    let (mut teller, agents) = begin(database, arming).await;
    let body = submission();
    let answer = teller
        .ask(Method::POST, "/api/v1/experiments", body, None)
        .await;
    let answered = answer["experiment"]["id"].as_i64().unwrap();
    let all = loop {
        let there = teller
            .ask(Method::GET, "/api/v1/experiments", Value::Null, None)
            .await;
        let all = there["experiments"].as_array().unwrap().clone();
        if all.iter().all(|e| e["state"] == "STATE_COMPLETED") {
            break all;
        }
        for agent in &agents {
            for container in agent.held().keys() {
                agent.exits(container, 0);
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert!(
        all.iter().any(|e| e["id"] == answered),
        "the one that was acknowledged exists: {all:?}"
    );
    for one in &all {
        assert_eq!(one["numTrials"], 1, "{one}");
    }
    drop(agents);
    assert!(teller.phoenix.stop_and_check().await, "the master was cut");
    all.len()
}

/// A master that is cut where it is armed, two agents of one slot, and a user who is logged in.
async fn begin(database: Database, arming: &str) -> (Teller, [Agent; 2]) {
    let phoenix = Phoenix::start(database, arming).await;
    let agents = [
        Agent::start("a1", phoenix.port),
        Agent::start("a2", phoenix.port),
    ];
    let mut teller = Teller {
        phoenix,
        http: reqwest::Client::new(),
        token: String::new(),
    };
    let login = json!({"username": "admin", "isHashed": true});
    let answer = teller
        .ask(Method::POST, "/api/v1/auth/login", login, None)
        .await;
    teller.token = format!("Bearer {}", answer["token"].as_str().unwrap());
    // Too large a gang for fewer agents is refused.
    teller
        .until("/api/v1/agents", |a| {
            a["agents"].as_array().unwrap().len() == 2
        })
        .await;
    (teller, agents)
}

/// The experiment of the scenario: one trial, a gang of two.
fn submission() -> Value {
    let config = json!({
        "name": NAME,
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "loss"},
        "resources": {"slots_per_trial": 2},
        "max_restarts": 0,
    });
    json!({"config": config.to_string(), "activate": true, "modelDefinition": []})
}

#[expect(clippy::too_many_lines, reason = "one history, step by step")]
async fn run(database: Database, arming: &str) -> bool {
    let (mut teller, agents) = begin(database, arming).await;
    let id = teller.create().await;
    let experiment = format!("/api/v1/experiments/{id}");
    let trials = format!("{experiment}/trials");
    let trial = teller
        .until(&trials, |t| t["trials"].as_array().unwrap().len() == 1)
        .await["trials"][0]["id"]
        .as_i64()
        .unwrap();

    // The first run: the gang meets, reports, saves.
    let first = teller.run_of(&agents, None).await;
    teller.meet(&first).await;
    teller.report(&first, trial, 1, 0.5).await;
    teller.save(&first).await;

    // It is preempted, and gives way.
    teller
        .ask(
            Method::POST,
            &format!("{experiment}/pause"),
            json!({}),
            None,
        )
        .await;
    let signal = format!(
        "/api/v1/allocations/{}/signals/preemption?timeout_seconds=0",
        first[0].allocation_id
    );
    teller
        .until_as(&signal, Some(&first[0]), |s| s["preempt"] == true)
        .await;
    let ack = format!(
        "/api/v1/allocations/{}/signals/ack_preemption",
        first[0].allocation_id
    );
    teller
        .ask(Method::POST, &ack, json!({}), Some(&first[0]))
        .await;
    exit(&agents, &first);
    teller
        .until("/api/v1/tasks", |t| t["allocationIdToSummary"] == json!({}))
        .await;

    // It goes on from its checkpoint, and completes.
    teller
        .ask(
            Method::POST,
            &format!("{experiment}/activate"),
            json!({}),
            None,
        )
        .await;
    let second = teller.run_of(&agents, Some(&first)).await;
    teller.meet(&second).await;
    teller.report(&second, trial, 2, 0.25).await;
    exit(&agents, &second);
    let ended = teller
        .until(&experiment, |e| {
            e["experiment"]["state"]
                .as_str()
                .is_some_and(|s| s == "STATE_COMPLETED")
        })
        .await;
    assert_eq!(ended["experiment"]["numTrials"], 1, "one trial, once");
    let trial_path = format!("/api/v1/trials/{trial}");
    let one = teller
        .ask(Method::GET, &trial_path, Value::Null, None)
        .await;
    assert_eq!(one["trial"]["restarts"], 0, "no failure was charged: {one}");
    assert_eq!(one["trial"]["totalBatchesProcessed"], 2, "{one}");
    assert_eq!(
        one["trial"]["bestValidation"]["metrics"]["avgMetrics"]["loss"], 0.25,
        "{one}"
    );
    let series = format!(
        "/api/v1/trials/time-series?trialIds={trial}&metricIds=training.loss&metricIds=validation.loss"
    );
    let reported = teller.ask(Method::GET, &series, Value::Null, None).await;
    let reported = reported["trials"][0]["metrics"].as_array().unwrap().clone();
    assert_eq!(reported.len(), 2, "{reported:?}");
    for metric in &reported {
        let points = metric["data"].as_array().unwrap();
        assert_eq!(points.len(), 2, "each report is stored once: {metric}");
    }
    for agent in &agents {
        let mut rounds = 0;
        while !agent.held().is_empty() {
            teller.phoenix.rise();
            tokio::time::sleep(Duration::from_millis(10)).await;
            rounds += 1;
            assert!(rounds < 2000, "not forgotten: {:?}", agent.held().keys());
        }
    }

    // Its log is not kept any longer.
    let keep = format!("{experiment}/retain_logs");
    teller
        .ask(Method::PUT, &keep, json!({"numDays": 0}), None)
        .await;
    teller
        .ask(Method::POST, "/api/v1/cleanup_logs", json!({}), None)
        .await;
    let task = format!("/api/v1/tasks/{}", first[0].task_id);
    let gone = teller.ask(Method::GET, &task, Value::Null, None).await;
    assert!(!gone["task"]["logsDeletedTime"].is_null(), "{gone}");

    // It is deleted.
    teller.delete(&experiment).await;
    drop(agents);
    teller.phoenix.stop_and_check().await
}

/// The code of all members ends well.
fn exit(agents: &[Agent], members: &[ContainerSpec]) {
    for (agent, member) in agents
        .iter()
        .flat_map(|agent| members.iter().map(move |m| (agent, m)))
    {
        agent.exits(member.container_id.as_str(), 0);
    }
}

impl Teller {
    /// Sends a request until it is answered; gives status and body.
    async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: &Value,
        task: Option<&ContainerSpec>,
    ) -> (u16, Value) {
        loop {
            self.phoenix.rise();
            let url = format!("http://127.0.0.1:{}{path}", self.phoenix.port);
            let mut request = self
                .http
                .request(method.clone(), url)
                .timeout(Duration::from_secs(10));
            request = match task {
                Some(spec) => request.header(
                    "Grpc-Metadata-x-allocation-token",
                    format!("Bearer {}", spec.script.token),
                ),
                None => request.header("Authorization", &self.token),
            };
            if !body.is_null() {
                request = request.body(body.to_string());
            }
            if let Ok(answer) = request.send().await {
                let status = answer.status().as_u16();
                if status < 500
                    && let Ok(text) = answer.text().await
                {
                    return (status, serde_json::from_str(&text).unwrap_or(Value::Null));
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn ask(
        &mut self,
        method: Method,
        path: &str,
        body: Value,
        task: Option<&ContainerSpec>,
    ) -> Value {
        let (status, answer) = self.send(method, path, &body, task).await;
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    async fn until(&mut self, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        self.until_as(path, None, wanted).await
    }

    async fn until_as(
        &mut self,
        path: &str,
        task: Option<&ContainerSpec>,
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        loop {
            let answer = self.ask(Method::GET, path, Value::Null, task).await;
            if wanted(&answer) {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Submits; when there was no answer looks whether it exists, as a user does.
    async fn create(&mut self) -> i64 {
        let body = submission();
        loop {
            let there = self
                .ask(Method::GET, "/api/v1/experiments", Value::Null, None)
                .await;
            let all = there["experiments"].as_array().unwrap();
            assert!(all.len() <= 1, "created twice: {all:?}");
            if let Some(one) = all.first() {
                return one["id"].as_i64().unwrap();
            }
            self.phoenix.rise();
            let url = format!("http://127.0.0.1:{}/api/v1/experiments", self.phoenix.port);
            let sent = self
                .http
                .post(url)
                .header("Authorization", &self.token)
                .body(body.to_string());
            if let Ok(answer) = sent.send().await {
                let status = answer.status().as_u16();
                let text = answer.text().await.unwrap_or_default();
                assert!(status == 200 || status >= 500, "{status}: {text}");
            }
        }
    }

    /// The containers of the next run, by rank.
    async fn run_of(
        &mut self,
        agents: &[Agent],
        before: Option<&[ContainerSpec]>,
    ) -> Vec<ContainerSpec> {
        loop {
            self.phoenix.rise();
            let mut members: Vec<ContainerSpec> = agents
                .iter()
                .flat_map(Agent::held)
                .map(|(_, held)| held.spec)
                .filter(|spec| before.is_none_or(|b| b[0].allocation_id != spec.allocation_id))
                .collect();
            members.sort_by(|a, b| a.container_id.cmp(&b.container_id));
            assert!(members.len() <= 2, "a gang of two: {members:?}");
            if members.len() == 2 {
                assert_eq!(members[0].allocation_id, members[1].allocation_id);
                return members;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// All members meet. Each waits for the others; when the master ends meanwhile they ask again.
    async fn meet(&mut self, members: &[ContainerSpec]) {
        loop {
            self.phoenix.rise();
            let calls = members.iter().map(|spec| {
                let url = format!(
                    "http://127.0.0.1:{}/api/v1/allocations/{}/resources/{}/rendezvous",
                    self.phoenix.port, spec.allocation_id, spec.container_id
                );
                self.http
                    .get(url)
                    .timeout(Duration::from_secs(10))
                    .header(
                        "Grpc-Metadata-x-allocation-token",
                        format!("Bearer {}", spec.script.token),
                    )
                    .send()
            });
            let answers = futures::future::join_all(calls).await;
            let met = answers
                .iter()
                .all(|a| a.as_ref().is_ok_and(|a| a.status().as_u16() == 200));
            if met {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn report(&mut self, members: &[ContainerSpec], trial: i64, step: i64, loss: f64) {
        let run = members[0]
            .script
            .env
            .iter()
            .find(|(name, _)| name == "DET_TRIAL_RUN_ID")
            .and_then(|(_, value)| value.parse::<i64>().ok())
            .expect("tasks are given the number of their run");
        let path = format!("/api/v1/trials/{trial}/metrics");
        for group in ["training", "validation"] {
            let body = json!({
                "group": group,
                "metrics": {
                    "trialId": trial, "trialRunId": run, "stepsCompleted": step,
                    "metrics": {"avgMetrics": {"loss": loss}},
                },
            });
            self.ask(Method::POST, &path, body, Some(&members[0])).await;
        }
    }

    async fn save(&mut self, members: &[ContainerSpec]) {
        self.phoenix.store_file(CHECKPOINT, "model.pt", b"weights");
        let body = json!({
            "uuid": CHECKPOINT,
            "taskId": members[0].task_id,
            "allocationId": members[0].allocation_id,
            "metadata": {"steps_completed": 1},
            "resources": {"model.pt": "7"},
            "state": "STATE_COMPLETED",
        });
        self.ask(Method::POST, "/api/v1/checkpoints", body, Some(&members[0]))
            .await;
    }

    /// Deletes; a repeat of what has happened already finds nothing any more.
    async fn delete(&mut self, experiment: &str) {
        loop {
            let (status, answer) = self
                .send(Method::DELETE, experiment, &Value::Null, None)
                .await;
            assert!(matches!(status, 200 | 404), "{status}: {answer}");
            loop {
                let (status, answer) = self.send(Method::GET, experiment, &Value::Null, None).await;
                if status == 404 {
                    return;
                }
                let state = answer["experiment"]["state"].as_str().unwrap_or_default();
                assert!(!state.ends_with("DELETE_FAILED"), "{answer}");
                if !state.ends_with("DELETING") {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}
