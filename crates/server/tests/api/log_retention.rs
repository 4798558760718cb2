//! How long logs are kept, and that they are gone afterwards.

use det_ids::{ExperimentId, TaskId, TrialId};
use det_store::logs::{self, LogLine};
use det_store::{StoreError, settings};
use serde_json::{Value, json};

use crate::support::{Client, Cluster, FakeAgent};

const CLEAN_UP: &str = "/api/v1/cleanup_logs";
const DAY: i64 = 86_400_000_000;

/// An experiment of one trial, and its task.
struct Run {
    experiment: ExperimentId,
    trial: TrialId,
    task: TaskId,
}

impl Run {
    fn path(&self, below: &str) -> String {
        format!("/api/v1/trials/{}{below}", self.trial)
    }

    /// A paused one with so many lines, each a piece of its own.
    async fn new(cluster: &Cluster, name: &str, lines: usize) -> Self {
        let experiment = cluster.experiment_of("determined", name, false).await;
        let row = cluster.task_of_paused(experiment).await;
        let run = Self {
            experiment,
            trial: row.trial_id.unwrap(),
            task: row.id.clone(),
        };
        run.log_lines(cluster, lines).await;
        run
    }

    async fn log_lines(&self, cluster: &Cluster, lines: usize) {
        let task = self.task.clone();
        let said = cluster.master().context.store.write(move |tx| {
            Box::pin(async move {
                for n in 0..lines {
                    let line = LogLine {
                        log: format!("line {n}\n"),
                        ..LogLine::default()
                    };
                    logs::append(&mut tx.conn(), &task, &logs::pack(&[line])?).await?;
                }
                Ok::<_, StoreError>(())
            })
        });
        said.await.unwrap();
    }

    /// Ends it, as if that had been so many days ago.
    async fn end(&self, cluster: &Cluster, client: &Client, days_ago: i64) {
        let kill = format!("/api/v1/experiments/{}/kill", self.experiment);
        client.post(&kill, Value::Null).await.ok();
        let ended = |answer: &Value| !answer["trial"]["endTime"].is_null();
        cluster.until(client, &self.path(""), ended).await;
        let (task, at) = (self.task.clone(), det_store::now() - days_ago * DAY);
        let put_back = cluster.master().context.store.write(move |tx| {
            Box::pin(async move {
                tx.load_task(&task).await?;
                tx.live_rows()
                    .edit_task(&task, |row| row.ended_at = Some(at));
                Ok::<_, StoreError>(())
            })
        });
        put_back.await.unwrap();
    }

    /// What it logged itself; the master's own lines are left out.
    async fn lines(&self, client: &Client) -> usize {
        let lines = client.get(&self.path("/logs")).await.lines();
        let own = |line: &&Value| line["log"].as_str().unwrap().starts_with("line ");
        lines.iter().filter(own).count()
    }

    /// Whether nothing at all is left.
    async fn is_gone(&self, client: &Client) -> bool {
        let all = client.get(&self.path("/logs")).await.lines();
        let task = client
            .get(&format!("/api/v1/tasks/{}/logs", self.task))
            .await;
        let noted = &client.get(&self.task_path()).await.ok()["task"]["logsDeletedTime"];
        assert_eq!(all.is_empty(), !noted.is_null(), "{all:?} {noted}");
        assert_eq!(all.len(), task.lines().len());
        all.is_empty()
    }

    fn task_path(&self) -> String {
        format!("/api/v1/tasks/{}", self.task)
    }

    async fn keep(&self, client: &Client, days: i64) {
        let body = json!({"trialId": self.trial, "numDays": days});
        client.put(&self.path("/retain_logs"), body).await.ok();
    }

    async fn shown(&self, client: &Client) -> (Value, Value) {
        let trial = client.get(&self.path("")).await.ok();
        let left = client
            .get(&self.path("/remaining_log_retention_days"))
            .await;
        (
            trial["trial"]["logRetentionDays"].clone(),
            left.ok()["remainingDays"].clone(),
        )
    }
}

/// Deletes what is due; gives how many lines that were.
async fn clean_up(client: &Client) -> i64 {
    let answer = client.post(CLEAN_UP, Value::Null).await.ok();
    answer["removedCount"].as_str().unwrap().parse().unwrap()
}

async fn configure(cluster: &Cluster, admin: &Client, text: &str) {
    cluster.written.write(text);
    admin.post("/api/v1/master/reload", json!({})).await.ok();
}

#[tokio::test]
async fn old_logs_go_and_all_others_stay() {
    let cluster = Cluster::start().await;
    let (admin, client) = (cluster.admin().await, cluster.determined().await);
    // More pieces than one transaction deletes.
    let old = Run::new(&cluster, "old", 250).await;
    let few = Run::new(&cluster, "few", 3).await;
    let ever = Run::new(&cluster, "ever", 4).await;
    let young = Run::new(&cluster, "young", 5).await;
    let plain = Run::new(&cluster, "plain", 6).await;
    let live = Run::new(&cluster, "live", 7).await;
    for (run, days) in [(&old, 0), (&few, 2), (&ever, -1), (&young, 4), (&live, 0)] {
        run.keep(&client, days).await;
    }
    for run in [&old, &few, &ever, &young, &plain] {
        run.end(&cluster, &client, 3).await;
    }
    for (run, shown) in [
        (&old, (json!(0), json!(0))),
        (&few, (json!(2), json!(0))),
        (&ever, (json!(-1), json!(-1))),
        (&young, (json!(4), json!(1))),
        (&plain, (Value::Null, json!(-1))),
        (&live, (json!(0), json!(0))),
    ] {
        assert_eq!(run.shown(&client).await, shown);
    }
    let message = client.post(CLEAN_UP, Value::Null).await.refused(403);
    assert!(
        message.contains("may not delete old logs of all tasks"),
        "{message}"
    );

    assert!(clean_up(&admin).await >= 253);
    assert!(old.is_gone(&client).await && few.is_gone(&client).await);
    for (run, lines) in [(&ever, 4), (&young, 5), (&plain, 6), (&live, 7)] {
        assert_eq!(run.lines(&client).await, lines);
        assert!(!run.is_gone(&client).await);
    }
    assert_eq!(clean_up(&admin).await, 0, "again there is nothing to do");
    // A follower of what is gone is notified of the end at once.
    let mut follower = client.follow(&old.path("/logs?follow=true")).await;
    assert_eq!(follower.next_line().await, None);
    let path = format!("/api/v1/events?subjectKind=task&subjectId={}", old.task);
    let events = client.get(&path).await.ok();
    let deleted: Vec<&Value> = events["events"].as_array().unwrap().iter().collect();
    let deleted: Vec<_> = deleted
        .iter()
        .filter(|e| e["kind"] == "logs_deleted")
        .collect();
    assert_eq!(deleted.len(), 1, "{events}");
    assert_eq!(
        deleted[0]["reason"],
        "its log was deleted: it is kept for 0 days after the end of a task"
    );
    // A line that comes late is a log again until the next sweep.
    old.log_lines(&cluster, 1).await;
    assert_eq!(old.lines(&client).await, 1);
    assert!(!old.is_gone(&client).await);
    assert_eq!(clean_up(&admin).await, 1);
    assert!(old.is_gone(&client).await);
    cluster.stop().await;
}

#[tokio::test]
async fn what_sets_nothing_goes_by_the_cluster_as_it_is_now() {
    let cluster = Cluster::start().await;
    let (admin, client) = (cluster.admin().await, cluster.determined().await);
    let plain = Run::new(&cluster, "plain", 2).await;
    let own = Run::new(&cluster, "own", 2).await;
    own.keep(&client, 30).await;
    for run in [&plain, &own] {
        run.end(&cluster, &client, 5).await;
    }
    configure(
        &cluster,
        &admin,
        "retention_policy: {log_retention_days: 6}",
    )
    .await;
    assert_eq!(plain.shown(&client).await, (Value::Null, json!(1)));
    assert_eq!(own.shown(&client).await, (json!(30), json!(25)));
    assert_eq!(clean_up(&admin).await, 0);
    configure(
        &cluster,
        &admin,
        "retention_policy: {log_retention_days: 5}",
    )
    .await;
    assert_eq!(plain.shown(&client).await, (Value::Null, json!(0)));
    assert!(clean_up(&admin).await >= 2);
    assert!(plain.is_gone(&client).await);
    assert_eq!(own.lines(&client).await, 2);
    cluster.stop().await;
}

#[tokio::test]
async fn a_new_schedule_sweeps_by_itself() {
    let cluster = Cluster::start().await;
    let (admin, client) = (cluster.admin().await, cluster.determined().await);
    let run = Run::new(&cluster, "plain", 2).await;
    let ever = Run::new(&cluster, "ever", 2).await;
    ever.keep(&client, -1).await;
    for run in [&run, &ever] {
        run.end(&cluster, &client, 1).await;
    }
    configure(
        &cluster,
        &admin,
        "retention_policy: {log_retention_days: 0, schedule: 1s}",
    )
    .await;
    let noted = |answer: &Value| !answer["task"]["logsDeletedTime"].is_null();
    cluster.until(&client, &run.task_path(), noted).await;
    assert!(run.is_gone(&client).await);
    assert_eq!(ever.lines(&client).await, 2);
    // Again and again.
    let next = Run::new(&cluster, "next", 2).await;
    next.end(&cluster, &client, 1).await;
    cluster.until(&client, &next.task_path(), noted).await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_sweep_that_was_missed_is_made_up_for_at_the_next_start() {
    let schedule = [
        ("retention_policy.log_retention_days", "0"),
        ("retention_policy.schedule", "1h"),
    ];
    let cluster = Cluster::start_with(&schedule).await;
    let client = cluster.determined().await;
    let run = Run::new(&cluster, "plain", 2).await;
    run.end(&cluster, &client, 1).await;
    let counted = async |cluster: &Cluster| -> Value {
        let mut conn = cluster.master().context.store.read().await.unwrap();
        let text = settings::find(&mut conn.conn(), "log_sweep").await.unwrap();
        serde_json::from_str(&text.unwrap_or_default()).unwrap_or_default()
    };
    let first = counted(&cluster).await;
    assert_eq!(first["schedule"], "1h");
    // A restart does not count anew, nor sweep before its time.
    let cluster = cluster.restart_with(&schedule).await;
    let client = cluster.determined().await;
    assert_eq!(counted(&cluster).await, first);
    assert_eq!(run.lines(&client).await, 2);
    let late = json!({"schedule": "1h", "since": det_store::now() - DAY}).to_string();
    let put_back = cluster.master().context.store.write(move |tx| {
        Box::pin(async move {
            settings::set(&mut tx.conn(), "log_sweep", &late).await?;
            Ok::<_, StoreError>(())
        })
    });
    put_back.await.unwrap();
    let cluster = cluster.restart_with(&schedule).await;
    let client = cluster.determined().await;
    let noted = |answer: &Value| !answer["task"]["logsDeletedTime"].is_null();
    cluster.until(&client, &run.task_path(), noted).await;
    cluster.stop().await;
}

#[tokio::test]
async fn an_experiment_sets_it_for_all_its_trials_and_those_to_come() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let mut agent = cluster.agent("a1", 1).await;
    let config = json!({
        "name": "several",
        "entrypoint": "python3 train.py",
        "searcher": {"name": "random", "metric": "loss", "max_trials": 2, "max_concurrent_trials": 1},
        "hyperparameters": {"lr": {"type": "double", "minval": 0.1, "maxval": 0.2}},
        "resources": {"slots_per_trial": 1},
        "max_restarts": 0,
        "retention_policy": {"log_retention_days": 14},
    });
    let body = json!({"config": config.to_string(), "activate": true,
        "modelDefinition": [{"path": "train.py", "type": 48, "content": "", "mode": 0o644, "mtime": 1_700_000_000}]});
    let made = client.post("/api/v1/experiments", body).await.ok();
    let id = made["experiment"]["id"].as_i64().unwrap();
    let list = format!("/api/v1/experiments/{id}/trials?sortBy=SORT_BY_LOG_RETENTION_DAYS");
    let days = |answer: &Value| -> Vec<i64> {
        let trials = answer["trials"].as_array().unwrap();
        let days = trials
            .iter()
            .map(|t| t["logRetentionDays"].as_i64().unwrap());
        days.collect()
    };
    assert_eq!(days(&client.get(&list).await.ok()), [14]);
    let path = format!("/api/v1/experiments/{id}/retain_logs");
    client
        .put(&path, json!({"experimentId": id, "numDays": 3}))
        .await
        .ok();
    end_run(&mut agent).await;
    let both = |answer: &Value| answer["trials"].as_array().is_some_and(|t| t.len() == 2);
    let trials = cluster.until(&client, &list, both).await;
    assert_eq!(days(&trials), [3, 3]);
    let shown = client.get(&format!("/api/v1/experiments/{id}")).await.ok();
    assert_eq!(shown["config"]["retention_policy"]["log_retention_days"], 3);
    // One of them for itself, and all again.
    let first = trials["trials"][0]["id"].as_i64().unwrap();
    let one = format!("/api/v1/trials/{first}/retain_logs");
    client.put(&one, json!({"numDays": 32_767})).await.ok();
    assert_eq!(days(&client.get(&list).await.ok()), [3, 32_767]);
    client.put(&path, json!({"numDays": -1})).await.ok();
    assert_eq!(days(&client.get(&list).await.ok()), [-1, -1]);
    let path = format!("/api/v1/events?subjectKind=experiment&subjectId={id}");
    let events = client.get(&path).await.ok();
    let reasons: Vec<&Value> = events["events"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|event| event["kind"] == "log_retention")
        .map(|event| &event["reason"])
        .collect();
    assert_eq!(
        reasons,
        [
            "logs of its trials are kept for 3 days after the end of a task",
            "logs of its trials are kept for ever"
        ]
    );
    end_run(&mut agent).await;
    cluster.stop().await;
}

/// The next container that the agent is to start runs and ends well.
async fn end_run(agent: &mut FakeAgent) {
    let spec = loop {
        if let det_agent_proto::ToAgent::Start(spec) = agent.receive().await {
            break *spec;
        }
    };
    agent.runs(&spec).await;
    agent.exits(&spec, 0).await;
}

#[tokio::test]
async fn many_experiments_at_once_each_with_its_result() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let one = Run::new(&cluster, "one", 1).await;
    let two = Run::new(&cluster, "two", 1).await;
    let path = "/api/v1/projects/1/experiments/retain_logs";
    let body = json!({"experimentIds": [one.experiment, 999], "numDays": 8, "projectId": 1});
    let results = client.put(path, body).await.ok()["results"].clone();
    assert_eq!(results[0], json!({"error": "", "id": one.experiment}));
    assert_eq!(results[1]["error"], "experiment \"999\" not found");
    assert_eq!(one.shown(&client).await.0, 8);
    assert_eq!(two.shown(&client).await.0, Value::Null);
    let body = json!({"filters": {"projectId": 1}, "numDays": 9, "projectId": 1});
    let results = client.put(path, body).await.ok()["results"].clone();
    assert_eq!(results.as_array().unwrap().len(), 2, "{results}");
    assert_eq!(two.shown(&client).await.0, 9);
    cluster.stop().await;
}

#[tokio::test]
async fn what_is_no_number_of_days_is_refused_and_nothing_changes() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let run = Run::new(&cluster, "one", 1).await;
    let paths = [
        format!("/api/v1/experiments/{}/retain_logs", run.experiment),
        "/api/v1/projects/1/experiments/retain_logs".to_owned(),
        run.path("/retain_logs"),
    ];
    for path in &paths {
        for (body, found) in [
            (json!({"numDays": -2}), "found -2"),
            (json!({"numDays": 32_768}), "found 32768"),
            (json!({"numDays": i64::MIN}), "found -9223372036854775808"),
            (json!({"numDays": null}), "it is missing"),
            (json!({}), "it is missing"),
        ] {
            let message = client.put(path, body).await.refused(400);
            let expected = format!("field \"numDays\" must be -1 to 32767, {found}");
            assert!(message.starts_with(&expected), "{path}: {message}");
        }
    }
    assert_eq!(run.shown(&client).await, (Value::Null, json!(-1)));
    for path in [
        "/api/v1/experiments/999/retain_logs",
        "/api/v1/trials/999/retain_logs",
    ] {
        let message = client.put(path, json!({"numDays": 1})).await.refused(404);
        assert!(message.contains("\"999\" not found"), "{message}");
    }
    let path = "/api/v1/trials/999/remaining_log_retention_days";
    assert!(
        client
            .get(path)
            .await
            .refused(404)
            .contains("trial \"999\"")
    );
    cluster.stop().await;
}

#[tokio::test]
async fn days_that_a_policy_fixes_stay() {
    let cluster = Cluster::start().await;
    let (admin, client) = (cluster.admin().await, cluster.determined().await);
    let run = Run::new(&cluster, "one", 1).await;
    let policies = json!({"invariant_config": {"retention_policy": {"log_retention_days": 90}}});
    let body = json!({"configPolicies": policies.to_string(), "workloadType": "EXPERIMENT"});
    let path = "/api/v1/config-policies/global/EXPERIMENT";
    admin.put(path, body).await.ok();
    let experiment = format!("/api/v1/experiments/{}/retain_logs", run.experiment);
    for path in [&experiment, &run.path("/retain_logs")] {
        let message = client.put(path, json!({"numDays": 0})).await.refused(403);
        let expected = "retention_policy.log_retention_days cannot be 0: the policies of the cluster fix it to 90";
        assert!(message.contains(expected), "{message}");
        assert_eq!(run.shown(&client).await.0, Value::Null);
    }
    client.put(&experiment, json!({"numDays": 90})).await.ok();
    assert_eq!(run.shown(&client).await.0, 90);
    cluster.stop().await;
}
