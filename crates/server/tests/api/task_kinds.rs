//! Tasks that are no trials: queued, explained, logged and retained as trials are.

use det_ids::{ExperimentId, RunId};
use serde_json::{Value, json};

use det_ids::TaskId;
use det_lifecycle::task::{Demand, TaskState};
use det_server::auth::{new_token, token_hash};
use det_server::hub::Topic;
use det_store::allocations::{self, AllocationRow, TaskRow};
use det_store::experiments::{JobKind, JobRow};
use det_store::{StoreError, experiments};
use det_taskspec::TaskKind;

use crate::support::{Client, Cluster, WhyUnchecked};

const JOB: &str = "job-of-a-command";

/// A command that waits for a slot, with a token; its id is not `<experiment>.<uuid>` although it looks like it.
async fn waiting_command(cluster: &Cluster, model: ExperimentId) -> (String, String) {
    let (task, allocation) = cluster.task_of(model).await;
    let task_id = TaskId(format!("{model}.command"));
    let command = TaskRow {
        id: task_id.clone(),
        kind: TaskKind::Command,
        job_id: JOB.into(),
        experiment_id: None,
        trial_id: None,
        state: TaskState::Queued,
        demand: Some(Demand {
            slots: 1,
            single_place: true,
            preemption_timeout: 3600,
            preemptible: None,
        }),
        attempts: 1,
        losses: 0,
        log_lines: 0,
        ..task
    };
    let attempt = AllocationRow {
        id: task_id.allocation(1),
        task_id: task_id.clone(),
        kind: TaskKind::Command,
        job_id: JOB.into(),
        experiment_id: None,
        trial_id: None,
        run_id: RunId::default(),
        preemptible: false,
        wait_reason: None,
        wait_since: None,
        ..allocation
    };
    let token = new_token();
    let hash = token_hash(&token);
    cluster
        .master()
        .context
        .store
        .write(move |tx| {
            Box::pin(async move {
                let jobs = experiments::live_jobs(&mut tx.conn()).await?;
                let job = JobRow {
                    id: JOB.into(),
                    kind: JobKind::Task,
                    ..jobs[0].clone()
                };
                experiments::insert_job(&mut tx.conn(), &job).await?;
                allocations::insert_token(&mut tx.conn(), &hash, &attempt.id).await?;
                tx.live_rows().add_task(command);
                tx.live_rows().add_allocation(attempt);
                Ok::<_, StoreError>(())
            })
        })
        .await
        .unwrap();
    cluster.master().context.hub.notify(&Topic::Schedule);
    (task_id.0, token)
}

async fn log_of(client: &Client, task_id: &str) -> Vec<String> {
    let lines = client
        .get(&format!("/api/v1/tasks/{task_id}/logs"))
        .await
        .lines();
    let text = |line: &Value| line["log"].as_str().unwrap().trim_end().to_owned();
    lines.iter().map(text).collect()
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one history, step by step")]
async fn a_command_is_queued_explained_logged_and_retained_like_a_trial() {
    let cluster = Cluster::start_with(&[("launch_error", "false")]).await;
    let (admin, client) = (cluster.admin().await, cluster.determined().await);
    let experiment = cluster.experiment("trial", 1).await;
    let (task_id, token) = waiting_command(&cluster, experiment).await;
    let label = format!("command {task_id}");

    // It is in the queue of its pool, with the experiment.
    let queue = client.get("/api/v1/job-queues").await.ok();
    let jobs = queue["jobs"].as_array().unwrap();
    let job = jobs.iter().find(|job| job["jobId"] == JOB).unwrap();
    assert_eq!(jobs.len(), 2, "{queue}");
    assert_eq!(
        [
            &job["type"],
            &job["entityId"],
            &job["name"],
            &job["username"]
        ],
        [
            &json!("TYPE_COMMAND"),
            &json!(task_id),
            &json!(label),
            &json!("admin")
        ]
    );

    // Its wait can be explained, and its name does not follow from the text of its id.
    let why = format!("/api/v1/job-queues/{JOB}/why");
    let explained = |explanation: &Value| explanation["waiting"][0]["waitReason"].is_object();
    let explanation = cluster.until(&client, &why, explained).await;
    assert_eq!(
        [
            &explanation["summary"],
            &explanation["job"]["label"],
            &explanation["waiting"][0]["label"],
            &explanation["waiting"][0]["waitReason"]["kind"],
            &explanation["pool"]["priorityOrder"]
        ],
        [
            &json!("waiting: its task has no slots"),
            &json!(label),
            &json!(label),
            &json!("no_agents"),
            &json!("lower goes first")
        ]
    );
    let summaries = client.get("/api/v1/tasks").await.ok();
    let summary = &summaries["allocationIdToSummary"][format!("{task_id}.1")];
    assert_eq!(summary["name"], format!("Command {task_id}"));
    assert_eq!(summary["priority"], 42);

    // Its token writes its log.
    let task = cluster.client().as_task(&token);
    let record = json!({"taskId": task_id, "allocationId": format!("{task_id}.1"), "log": "hello"});
    task.post("/api/v1/task/logs", json!({"logs": [record]}))
        .await
        .ok();
    let log = log_of(&client, &task_id).await;
    assert!(log.contains(&"hello".to_owned()), "{log:?}");
    assert!(
        log.iter().any(|line| line.starts_with("Waiting: ")),
        "{log:?}"
    );

    // Its log goes with the others, once it has ended.
    let mut agent = cluster.agent("a1", 2).await;
    let spec = agent.next_start().await;
    agent.runs(&spec).await;
    let path = format!("/api/v1/tasks/{task_id}");
    let ended = |answer: &Value| !answer["task"]["endTime"].is_null();
    cluster.until(&client, &path, ended).await;
    let explanation = client.get(&why).await.ok();
    let summary = explanation["summary"].as_str().unwrap();
    let reason = "it has ended (TERMINATED): it failed: the task could not be started: ";
    assert!(summary.starts_with(reason), "{summary}");
    assert_eq!(explanation["job"]["label"], json!(label));
    let change = json!({"updates": [{"jobId": JOB, "priority": 3}]});
    let refusal = client.post("/api/v1/job-queues", change).await.refused(404);
    assert!(refusal.starts_with(&format!("{label} has ended (ERROR)")));
    cluster
        .written
        .write("retention_policy: {log_retention_days: 0}\n");
    admin.post("/api/v1/master/reload", json!({})).await.ok();
    admin.post("/api/v1/cleanup_logs", Value::Null).await.ok();
    assert_eq!(log_of(&client, &task_id).await, Vec::<String>::new());
    let task = client.get(&path).await.ok();
    assert!(!task["task"]["logsDeletedTime"].is_null(), "{task}");
    agent.exits(&spec, 0).await;
    cluster.stop().await;
}

#[tokio::test]
async fn the_job_of_a_command_is_changed_like_that_of_an_experiment() {
    let pools = "[{pool_name: default}, {pool_name: other}]";
    let cluster =
        Cluster::start_with(&[("launch_error", "false"), ("resource_pools", pools)]).await;
    let (admin, client) = (cluster.admin().await, cluster.determined().await);
    let experiment = cluster.experiment("trial", 1).await;
    let (task_id, _) = waiting_command(&cluster, experiment).await;
    let queue = "/api/v1/job-queues";
    let others_job = client.get(queue).await.ok()["jobs"][0]["jobId"].clone();
    assert_ne!(others_job, JOB);
    let change = |change: Value| {
        let mut change = change;
        change["jobId"] = json!(JOB);
        json!({"updates": [change]})
    };

    client
        .post(queue, change(json!({"priority": 3})))
        .await
        .ok();
    let first = client.get(queue).await.ok()["jobs"][0].clone();
    assert_eq!(
        (&first["jobId"], &first["priority"]),
        (&json!(JOB), &json!(3))
    );
    client
        .post(queue, change(json!({"weight": 2.5})))
        .await
        .ok();
    // Behind the experiment's it takes that one's priority.
    let behind = change(json!({"behindOf": others_job}));
    client.post(queue, behind).await.ok();
    let last = client.get(queue).await.ok()["jobs"][1].clone();
    assert_eq!(
        [&last["jobId"], &last["priority"], &last["weight"]],
        [&json!(JOB), &json!(42), &json!(2.5)]
    );
    for (wrong, named) in [
        (json!({"priority": 100}), "1 to 99"),
        (json!({"weight": 0}), "above 0"),
        (json!({"resourcePool": "default"}), "already"),
    ] {
        let sentence = admin.post(queue, change(wrong)).await.refused(400);
        assert!(sentence.contains(named), "{sentence}");
    }

    // Another pool is for its owner and administrators; what waits asks again there.
    let to_other = change(json!({"resourcePool": "other"}));
    let sentence = client.post(queue, to_other.clone()).await.refused(403);
    assert!(sentence.contains("may not move job"), "{sentence}");
    admin.post(queue, to_other).await.ok();
    let of_other = client
        .get("/api/v1/job-queues?resourcePool=other")
        .await
        .ok();
    assert_eq!(of_other["jobs"][0]["entityId"], json!(task_id));
    let task = client.get(&format!("/api/v1/tasks/{task_id}")).await.ok();
    let attempts = task["task"]["allocations"].as_array().unwrap();
    assert_eq!(attempts.len(), 2, "{task}");
    assert_eq!(attempts[0]["allocationId"], format!("{task_id}.2"));
    assert_eq!(attempts[0]["state"], "STATE_QUEUED");
    assert!(task["task"]["endTime"].is_null());
    cluster.stop().await;
}

#[tokio::test]
async fn log_policies_are_those_of_the_experiment_in_the_tasks_row() {
    let cluster = Cluster::start().await;
    let (admin, client) = (cluster.admin().await, cluster.determined().await);
    let config = json!({
        "name": "watched",
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "loss"},
        "log_policies": [{"name": "broken", "pattern": "bus error"}],
    });
    let body = json!({"config": config.to_string(), "activate": true,
        "modelDefinition": [{"path": "train.py", "type": 48, "content": "", "mode": 0o644, "mtime": 1_700_000_000}]});
    client.post("/api/v1/experiments", body).await.ok();
    let (task, _) = cluster.task_of(ExperimentId(1)).await;
    // A task of the same trial whose id begins with no number.
    let other = TaskRow {
        id: "renamed".into(),
        attempts: 0,
        losses: 0,
        log_lines: 0,
        ..task
    };
    cluster
        .master()
        .context
        .store
        .write(move |tx| {
            Box::pin(async move {
                tx.live_rows().add_task(other);
                Ok::<_, StoreError>(())
            })
        })
        .await
        .unwrap();
    let record = json!({"taskId": "renamed", "log": "bus error at 0x7f"});
    admin
        .post("/api/v1/task/logs", json!({"logs": [record]}))
        .await
        .ok();
    let trial = client.get("/api/v1/trials/1").await.ok();
    assert_eq!(trial["trial"]["logPolicyMatched"], "broken", "{trial}");
    cluster.stop_unchecked(WhyUnchecked::RowOfTheTest).await;
}
