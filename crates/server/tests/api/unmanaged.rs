//! Experiments and trials that run outside the cluster.

use det_ids::{ExperimentId, TrialId};
use reqwest::Method;
use serde_json::{Value, json};

use crate::experiments::{config, create};
use crate::support::{Client, Cluster};
use crate::trials::metrics;

/// A configuration as the client writes it: with nulls, and without an entrypoint.
fn outside(name: &str) -> String {
    json!({
        "name": name, "data": null, "description": null, "labels": null, "workspace": null, "project": null,
        "searcher": {"name": "single", "metric": "loss"},
        "checkpoint_storage": {"type": "directory", "container_path": "/tmp/checkpoints"},
    })
    .to_string()
}

fn address(external_id: &str) -> String {
    format!("/api/v1/experiments/by-external-id/{external_id}")
}

async fn put_experiment(client: &Client, external_id: &str) -> i64 {
    let body = json!({"config": outside(external_id), "unmanaged": true, "activate": null});
    let put = client.put(&address(external_id), body).await.ok();
    assert_eq!(put["config"], put["experiment"]["config"]);
    put["experiment"]["id"].as_i64().unwrap()
}

fn new_trial(experiment: i64, external_id: &str) -> Value {
    json!({"externalTrialId": external_id, "createTrialRequest": {
        "experimentId": experiment, "hparams": {"lr": 0.1}, "unmanaged": true}})
}

async fn put_trial(client: &Client, experiment: i64, external_id: &str) -> Value {
    let body = new_trial(experiment, external_id);
    client.put("/api/v1/trials", body).await.ok()["trial"].take()
}

/// An experiment of this external id with a trial of this one, neither of which has begun.
pub(crate) async fn registered(
    client: &Client,
    experiment: &str,
    trial: &str,
) -> (ExperimentId, TrialId) {
    let experiment = put_experiment(client, experiment).await;
    let trial = put_trial(client, experiment, trial).await;
    let trial = trial["id"].as_i64().unwrap();
    (ExperimentId(experiment), TrialId(trial))
}

async fn start(client: &Client, trial: TrialId, resume: bool) -> Value {
    let body = json!({"trialId": trial, "resume": resume});
    let path = format!("/api/v1/trials/{trial}/start");
    client.post(&path, body).await.ok()
}

/// A heartbeat; `state` without its prefix, or none.
async fn beat(client: &Client, trial: TrialId, state: Option<&str>) -> Value {
    let mut body = json!({"trialId": trial});
    if let Some(state) = state {
        body["state"] = json!(format!("STATE_{state}"));
    }
    let path = format!("/api/v1/trials/{trial}");
    client.patch(&path, body).await.ok()["trial"].take()
}

async fn state_of(client: &Client, experiment: ExperimentId) -> Value {
    let path = format!("/api/v1/experiments/{experiment}");
    client.get(&path).await.ok()["experiment"]["state"].take()
}

async fn report(client: &Client, trial: TrialId, run: i64, step: i64, loss: f64) {
    let path = format!("/api/v1/trials/{trial}/metrics");
    let body = metrics("validation", run, step, &json!({"loss": loss}));
    client.post(&path, body).await.ok();
}

async fn checkpoint(client: &Client, task: &str, number: u32, steps: i64) -> String {
    let uuid = format!("00000000-0000-4000-8000-{number:012}");
    let body = json!({
        "uuid": uuid, "taskId": task, "allocationId": null, "state": "STATE_COMPLETED", "training": {},
        "resources": {"w": "1"}, "metadata": {"steps_completed": steps}, "storageId": null,
    });
    client.post("/api/v1/checkpoints", body).await.ok();
    uuid
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one history, step by step")]
async fn a_trial_is_registered_runs_and_ends_as_its_code_reports() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let (experiment, trial) = registered(&client, "sweep", "first").await;
    let shown = client
        .get(&format!("/api/v1/experiments/{experiment}"))
        .await
        .ok();
    let shown = &shown["experiment"];
    assert_eq!(shown["state"], "STATE_PAUSED");
    assert_eq!(shown["unmanaged"], true);
    assert_eq!(shown["externalExperimentId"], "sweep");
    assert_eq!(shown["numTrials"], 1);
    assert_eq!(shown["progress"], Value::Null, "its code has reported none");
    // Asked again both are what they were, whatever else the request contains.
    assert_eq!(put_experiment(&client, "sweep").await, experiment.0);
    let again = put_trial(&client, experiment.0, "first").await;
    assert_eq!(again["id"], trial.0);
    assert_eq!(again["taskId"], format!("{experiment}.first"));
    assert_eq!(again["state"], "STATE_PAUSED");
    assert_eq!(again["hparams"], json!({"lr": 0.1}));
    assert_eq!(again["waitReason"]["kind"], "unmanaged");
    let path = "/api/v1/trials/by-external-id/sweep/first";
    assert_eq!(client.get(path).await.ok()["trial"]["id"], trial.0);
    for path in [
        "/api/v1/trials/by-external-id/sweep/second",
        "/api/v1/trials/by-external-id/swap/first",
    ] {
        client.get(path).await.refused(404);
    }

    let run = start(&client, trial, true).await;
    assert_eq!(
        run,
        json!({"trialRunId": 1, "latestCheckpoint": null, "stepsCompleted": 0})
    );
    assert_eq!(state_of(&client, experiment).await, "STATE_PAUSED");
    let storage = json!({"runId": trial, "checkpointStorage": {"type": "directory", "container_path": "/tmp/c"}});
    client.post("/api/v1/runs/start", storage).await.ok();
    assert_eq!(
        beat(&client, trial, Some("RUNNING")).await["state"],
        "STATE_RUNNING"
    );
    assert_eq!(beat(&client, trial, None).await["state"], "STATE_RUNNING");
    assert_eq!(state_of(&client, experiment).await, "STATE_RUNNING");

    report(&client, trial, 1, 1, 0.5).await;
    report(&client, trial, 1, 2, 0.25).await;
    checkpoint(&client, &format!("{experiment}.first"), 1, 1).await;
    let newest = checkpoint(&client, &format!("{experiment}.first"), 2, 2).await;
    let progress = json!({"progress": 0.5, "is_raw": true});
    client
        .post(&format!("/api/v1/trials/{trial}/progress"), progress)
        .await
        .ok();
    let shown = client
        .get(&format!("/api/v1/experiments/{experiment}"))
        .await
        .ok();
    assert_eq!(shown["experiment"]["progress"], 0.5);
    assert_eq!(shown["experiment"]["checkpointCount"], 2);
    assert_eq!(shown["jobSummary"], Value::Null);
    let shown = client.get(&format!("/api/v1/trials/{trial}")).await.ok();
    assert_eq!(shown["trial"]["searcherMetricValue"], 0.25);

    let ended = beat(&client, trial, Some("COMPLETED")).await;
    assert_eq!(ended["state"], "STATE_COMPLETED");
    assert_ne!(ended["endTime"], Value::Null);
    assert_eq!(state_of(&client, experiment).await, "STATE_COMPLETED");
    let shown = client
        .get(&format!("/api/v1/experiments/{experiment}"))
        .await
        .ok();
    let job = shown["experiment"]["jobId"].as_str().unwrap();
    let why = client
        .get(&format!("/api/v1/job-queues/{job}/why"))
        .await
        .ok();
    assert_eq!(
        why["summary"],
        "it has ended (COMPLETED): it ran outside the cluster (unmanaged)"
    );
    assert_eq!(why["pool"]["name"], "");
    assert_eq!(
        shown["experiment"]["progress"], 1.0,
        "its code reports progress, and has completed"
    );
    // The thread that sends heartbeats may be late.
    assert_eq!(beat(&client, trial, None).await["state"], "STATE_COMPLETED");

    // Another start revives it as its second run, from the newest checkpoint.
    let run = start(&client, trial, true).await;
    assert_eq!(
        run,
        json!({"trialRunId": 2, "latestCheckpoint": newest, "stepsCompleted": 2})
    );
    assert_eq!(state_of(&client, experiment).await, "STATE_RUNNING");
    let late = metrics("validation", 1, 3, &json!({"loss": 0.1}));
    let path = format!("/api/v1/trials/{trial}/metrics");
    assert!(
        client
            .post(&path, late)
            .await
            .refused(400)
            .contains("run 1")
    );
    // What the first run reported of this step is archived.
    report(&client, trial, 2, 2, 0.75).await;
    let read = format!("/api/v1/trials/metrics/validation_metrics?trialIds={trial}");
    let lines = client.get(&read).await.lines();
    let shown: Vec<(i64, f64)> = lines
        .iter()
        .flat_map(|line| line["metrics"].as_array().unwrap())
        .map(|m| {
            let loss = &m["metrics"]["validation_metrics"]["loss"];
            (m["totalBatches"].as_i64().unwrap(), loss.as_f64().unwrap())
        })
        .collect();
    assert_eq!(shown, [(1, 0.5), (2, 0.75)]);
    let from_scratch = start(&client, trial, false).await;
    assert_eq!(
        from_scratch,
        json!({"trialRunId": 3, "latestCheckpoint": null, "stepsCompleted": 0})
    );
    assert_eq!(
        beat(&client, trial, Some("ERROR")).await["state"],
        "STATE_ERROR"
    );
    assert_eq!(state_of(&client, experiment).await, "STATE_ERROR");
    cluster.stop().await;
}

#[tokio::test]
async fn nothing_of_it_is_scheduled_and_lists_show_it_running() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let _agent = cluster.agent("a", 1).await;
    let (experiment, trial) = registered(&client, "x", "t").await;
    start(&client, trial, true).await;
    for (state, experiments, trials) in [("QUEUED", 0, 0), ("RUNNING", 0, 0), ("PAUSED", 1, 1)] {
        assert_eq!(
            listed(&client, experiment, state).await,
            (experiments, trials),
            "{state}"
        );
    }
    beat(&client, trial, None).await;
    for (state, expected) in [("QUEUED", 0), ("RUNNING", 1), ("ACTIVE", 1), ("PAUSED", 0)] {
        assert_eq!(
            listed(&client, experiment, state).await,
            (expected, expected),
            "{state}"
        );
    }
    let jobs = client.get("/api/v1/job-queues-v2").await.ok();
    assert_eq!(jobs["jobs"], json!([]));
    let agents = client.get("/api/v1/agents").await.ok();
    assert_eq!(agents["agents"][0]["containers"], json!({}));
    let tasks = client.get("/api/v1/tasks").await.ok();
    assert_eq!(tasks["allocationIdToSummary"], json!({}));
    let task = client
        .get(&format!("/api/v1/tasks/{experiment}.t"))
        .await
        .ok();
    assert_eq!(task["task"]["allocations"], json!([]));
    assert_eq!(task["task"]["endTime"], Value::Null);
    cluster.stop().await;
}

/// How many experiments, and trials of this one, are listed in a state.
async fn listed(client: &Client, id: ExperimentId, state: &str) -> (usize, usize) {
    let count = async |path: String, what: &str| {
        let found = client.get(&path).await.ok();
        found[what].as_array().unwrap().len()
    };
    let state = format!("states=STATE_{state}");
    (
        count(format!("/api/v1/experiments?{state}"), "experiments").await,
        count(format!("/api/v1/experiments/{id}/trials?{state}"), "trials").await,
    )
}

#[tokio::test]
async fn the_master_refuses_to_steer_it_and_names_what_to_do() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let (experiment, trial) = registered(&client, "x", "t").await;
    start(&client, trial, true).await;
    beat(&client, trial, None).await;
    let path = format!("/api/v1/experiments/{experiment}");
    for verb in ["pause", "activate", "cancel", "kill"] {
        let refused = client.post(&format!("{path}/{verb}"), Value::Null).await;
        let refused = refused.refused(400);
        assert!(
            refused.contains("unmanaged") && refused.contains("where it runs"),
            "{refused}"
        );
    }
    let refused = client
        .post(&format!("/api/v1/trials/{trial}/kill"), Value::Null)
        .await;
    assert!(
        refused
            .refused(400)
            .contains("unmanaged trial cannot be killed")
    );
    let refused = client
        .post("/api/v1/experiments/continue", json!({"id": experiment}))
        .await;
    assert!(refused.refused(400).contains("same external ids"));
    let refused = client
        .patch(&path, json!({"resources": {"priority": 3}}))
        .await;
    assert!(refused.refused(400).contains("in no queue"));
    let refused = client.send(Method::DELETE, &path, None).await;
    assert_eq!(refused.status(), 400);
    let many = json!({"experimentIds": [experiment]});
    let many = client
        .post("/api/v1/projects/1/experiments/kill", many)
        .await
        .ok();
    let error = many["results"][0]["error"].as_str().unwrap();
    assert!(error.contains("unmanaged"), "{error}");
    assert_eq!(state_of(&client, experiment).await, "STATE_RUNNING");
    cluster.stop().await;
}

#[tokio::test]
async fn what_the_master_runs_takes_no_heartbeats_and_no_trials() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    create(&client, &config("managed"), false).await;
    let refused = client
        .patch("/api/v1/trials/1", json!({"trialId": 1}))
        .await;
    assert!(refused.refused(400).contains("the master runs it"));
    let refused = client
        .post("/api/v1/trials/1/start", json!({"resume": true}))
        .await;
    assert!(refused.refused(400).contains("the master runs it"));
    let refused = client.put("/api/v1/trials", new_trial(1, "more")).await;
    assert!(refused.refused(400).contains("only unmanaged experiments"));
    let managed = json!({"experimentId": 1, "unmanaged": false});
    let refused = client.post("/api/v1/trials", managed).await;
    assert!(refused.refused(400).contains("\"unmanaged\" must be true"));
    let managed = json!({"config": config("managed").to_string()});
    let refused = client.put(&address("y"), managed).await;
    assert!(refused.refused(400).contains("must be unmanaged"));
    cluster.stop().await;
}

#[tokio::test]
async fn requests_with_too_little_or_nonsense_are_refused() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let (experiment, trial) = registered(&client, "x", "t").await;
    let trials = "/api/v1/trials";
    let without = json!({"externalTrialId": "t", "createTrialRequest": {"unmanaged": true}});
    for (refused, expected) in [
        (
            client.put(trials, without).await,
            "\"experimentId\" is missing",
        ),
        (
            client.put(trials, new_trial(experiment.0, "")).await,
            "is empty",
        ),
        (
            client.put(trials, new_trial(experiment.0, "a/b")).await,
            "'/'",
        ),
        (
            client
                .patch(
                    &format!("{trials}/{trial}"),
                    json!({"state": "STATE_PAUSED"}),
                )
                .await,
            "found STATE_PAUSED",
        ),
        (
            client
                .put(
                    &address("%0A"),
                    json!({"config": outside("x"), "unmanaged": true}),
                )
                .await,
            "external experiment id",
        ),
        (
            client
                .put(
                    &address("z"),
                    json!({"config": "searcher: {name: bogus}", "unmanaged": true}),
                )
                .await,
            "searcher.name",
        ),
    ] {
        let refused = refused.refused(400);
        assert!(refused.contains(expected), "{refused}");
    }
    client.put(trials, new_trial(99, "t")).await.refused(404);
    client
        .patch(&format!("{trials}/99"), json!({}))
        .await
        .refused(404);
    // An experiment without a search of its own may name any that is known, and no entrypoint.
    let random = json!({"config": json!({"searcher": {"name": "random", "metric": "loss", "max_trials": 3}}).to_string(),
        "unmanaged": true});
    let made = client.post("/api/v1/experiments", random).await.ok();
    assert_eq!(made["experiment"]["numTrials"], 0);
    cluster.stop().await;
}

#[tokio::test]
async fn what_is_silent_for_too_long_is_lost_also_when_the_master_was_away() {
    let short = [("unmanaged_heartbeat_timeout", "1s")];
    let cluster = Cluster::start_with(&short).await;
    let client = cluster.determined().await;
    let (experiment, trial) = registered(&client, "x", "t").await;
    let path = format!("/api/v1/trials/{trial}");
    let lost = |t: &Value| t["trial"]["state"] == "STATE_ERROR";
    start(&client, trial, true).await;
    beat(&client, trial, Some("RUNNING")).await;
    cluster.until(&client, &path, lost).await;
    assert_eq!(state_of(&client, experiment).await, "STATE_ERROR");
    let logs = client.get(&format!("{path}/logs")).await.lines();
    let said = |line: &Value| line["message"].as_str().unwrap().contains("no heartbeat");
    assert!(logs.iter().any(said), "{logs:?}");
    let events = client.get("/api/v1/events?limit=1000").await.ok();
    let event = |e: &&Value| e["subjectKind"] == "trial" && e["to"] == "ERROR";
    let events = events["events"].as_array().unwrap();
    let event = events.iter().find(event).unwrap();
    assert!(
        event["reason"].as_str().unwrap().contains("no heartbeat"),
        "{event}"
    );

    // It runs after all.
    assert_eq!(beat(&client, trial, None).await["state"], "STATE_RUNNING");
    assert_eq!(state_of(&client, experiment).await, "STATE_RUNNING");
    let cluster = cluster.restart_with(&short).await;
    let client = cluster.determined().await;
    cluster.until(&client, &path, lost).await;
    assert_eq!(start(&client, trial, true).await["trialRunId"], 2);
    assert_eq!(state_of(&client, experiment).await, "STATE_RUNNING");
    beat(&client, trial, Some("COMPLETED")).await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_strangers_upsert_gets_neither_the_experiment_nor_its_data() {
    let cluster = Cluster::start().await;
    let owner = cluster.determined().await;
    let admin = cluster.admin().await;
    let user = json!({"user": {"username": "eve", "active": true}});
    admin.post("/api/v1/users", user).await.ok();
    let (experiment, trial) = registered(&owner, "mine", "t").await;
    let eve = cluster.user("eve").await;
    let body = json!({"config": outside("theirs"), "unmanaged": true});
    let refused = eve.put(&address("mine"), body).await;
    assert!(
        !refused.text.contains("checkpoint_storage"),
        "{}",
        refused.text
    );
    let refused = refused.refused(403);
    assert!(
        refused.contains("user \"determined\"") && refused.contains("another external id"),
        "{refused}"
    );
    eve.put("/api/v1/trials", new_trial(experiment.0, "t"))
        .await
        .refused(403);
    eve.put("/api/v1/trials", new_trial(experiment.0, "u"))
        .await
        .refused(403);
    let path = format!("/api/v1/trials/{trial}");
    eve.post(&format!("{path}/start"), json!({}))
        .await
        .refused(403);
    eve.patch(&path, json!({"state": "STATE_COMPLETED"}))
        .await
        .refused(403);
    let shown = owner.get(&path).await.ok();
    assert_eq!(shown["trial"]["state"], "STATE_PAUSED");
    // An administrator may do what the owner may.
    assert_eq!(put_experiment(&admin, "mine").await, experiment.0);
    assert_eq!(start(&admin, trial, true).await["trialRunId"], 1);
    cluster.stop().await;
}

#[tokio::test]
async fn two_that_ask_for_one_external_id_at_once_get_the_same_experiment() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let asked = (0..8).map(|_| put_experiment(&client, "same"));
    let ids = futures::future::join_all(asked).await;
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    let asked = (0..8).map(|_| put_trial(&client, ids[0], "same"));
    let trials = futures::future::join_all(asked).await;
    assert!(trials.iter().all(|trial| trial["id"] == trials[0]["id"]));
    let shown = client
        .get(&format!("/api/v1/experiments/{}", ids[0]))
        .await
        .ok();
    assert_eq!(shown["experiment"]["numTrials"], 1);
    cluster.stop().await;
}

#[tokio::test]
async fn each_rank_ships_its_log() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let (experiment, trial) = registered(&client, "x", "t").await;
    start(&client, trial, true).await;
    beat(&client, trial, None).await;
    let logs = format!("/api/v1/trials/{trial}/logs?follow=true");
    let mut follower = client.follow(&logs).await;
    let begins = follower.next().await.unwrap();
    let begins = begins["message"].as_str().unwrap();
    assert!(begins.contains("Run 1 of trial"), "{begins}");
    for rank in ["0", "1"] {
        let line = json!([{"task_id": format!("{experiment}.t"), "timestamp": "2026-01-01T00:00:00+00:00",
            "log": format!("from rank {rank}\n"), "rank": rank}]);
        client.post("/task-logs", line).await.ok();
        let line = follower.next().await.unwrap();
        assert_eq!(line["rankId"], rank.parse::<i64>().unwrap());
        let expected = format!("[rank={rank}] || from rank {rank}\n");
        assert!(
            line["message"].as_str().unwrap().ends_with(&expected),
            "{line}"
        );
    }
    // The end of the trial is that of its log.
    beat(&client, trial, Some("COMPLETED")).await;
    assert_eq!(follower.next().await, None);
    cluster.stop().await;
}

#[tokio::test]
async fn an_ended_one_is_put_away_moved_and_deleted_and_its_files_stay() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let (experiment, trial) = registered(&client, "x", "t").await;
    start(&client, trial, true).await;
    beat(&client, trial, None).await;
    for number in 1..4 {
        checkpoint(
            &client,
            &format!("{experiment}.t"),
            number,
            i64::from(number),
        )
        .await;
    }
    beat(&client, trial, Some("COMPLETED")).await;
    let path = format!("/api/v1/experiments/{experiment}");
    let shown = client.get(&path).await.ok();
    assert_eq!(
        shown["experiment"]["progress"],
        Value::Null,
        "its code has reported none"
    );
    let other = json!({"name": "elsewhere"});
    let other = client.post("/api/v1/workspaces", other).await.ok();
    let other = other["workspace"]["id"].as_i64().unwrap();
    let project = json!({"name": "p"});
    let project = client
        .post(&format!("/api/v1/workspaces/{other}/projects"), project)
        .await
        .ok();
    let project = project["project"]["id"].as_i64().unwrap();
    let moved = json!({"experimentId": experiment, "destinationProjectId": project});
    client
        .post(&format!("/api/v1/experiments/{experiment}/move"), moved)
        .await
        .ok();

    client
        .post(&format!("{path}/archive"), Value::Null)
        .await
        .ok();
    let refused = client
        .post(&format!("/api/v1/trials/{trial}/start"), json!({}))
        .await;
    assert!(refused.refused(400).contains("archived"));
    client
        .post(&format!("{path}/unarchive"), Value::Null)
        .await
        .ok();
    // The policy of the configuration would keep one or two of three checkpoints.
    let shown = client.get(&path).await.ok();
    assert_eq!(shown["experiment"]["checkpointCount"], 3);
    assert_eq!(
        shown["config"]["checkpoint_storage"]["save_trial_latest"],
        1
    );
    let row = {
        let store = &cluster.master().context.store;
        let mut conn = store.read().await.unwrap();
        let found = det_store::experiments::find(&mut conn.conn(), experiment).await;
        found.unwrap().unwrap()
    };
    assert!(row.collected, "nothing is left for its policy to do");

    let response = client.send(Method::DELETE, &path, None).await;
    assert_eq!(response.status(), 200);
    // Its checkpoints are in a directory of another machine, which does not keep it from being deleted.
    let all = "/api/v1/experiments";
    cluster
        .until(&client, all, |all| all["experiments"] == json!([]))
        .await;
    cluster.stop().await;
}

#[tokio::test]
async fn one_that_never_ran_is_deleted_and_its_external_id_is_free_again() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let (experiment, _) = registered(&client, "x", "t").await;
    let path = format!("/api/v1/experiments/{experiment}");
    client
        .post(&format!("{path}/archive"), Value::Null)
        .await
        .ok();
    client
        .post(&format!("{path}/unarchive"), Value::Null)
        .await
        .ok();
    let response = client.send(Method::DELETE, &path, None).await;
    assert_eq!(response.status(), 200);
    let none = "/api/v1/experiments";
    cluster
        .until(&client, none, |all| all["experiments"] == json!([]))
        .await;
    let again = put_experiment(&client, "x").await;
    assert_ne!(again, experiment.0);
    cluster.stop().await;
}

#[tokio::test]
async fn trials_of_an_experiment_and_of_a_user_are_limited() {
    let limits = [
        ("max_unmanaged_trials_per_experiment", "2"),
        ("max_unmanaged_trials_per_user", "3"),
    ];
    let cluster = Cluster::start_with(&limits).await;
    let client = cluster.determined().await;
    let first = put_experiment(&client, "first").await;
    let second = put_experiment(&client, "second").await;
    let refused = async |client: &Client, experiment: i64, id: &str| {
        let trial = new_trial(experiment, id);
        client.put("/api/v1/trials", trial).await.refused(400)
    };
    put_trial(&client, first, "a").await;
    put_trial(&client, first, "b").await;
    let refusal = refused(&client, first, "c").await;
    assert!(
        refusal.contains("it has 2, and an unmanaged experiment may have 2"),
        "{refusal}"
    );
    // One that exists is found as before.
    put_trial(&client, first, "b").await;
    put_trial(&client, second, "a").await;
    let refusal = refused(&client, second, "b").await;
    assert!(
        refusal.contains("have 3 trials, and those of one user may have 3"),
        "{refusal}"
    );
    // What others have counts for them alone.
    let admin = cluster.admin().await;
    let other = put_experiment(&admin, "third").await;
    put_trial(&admin, other, "a").await;
    cluster.stop().await;
}
