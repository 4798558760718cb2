//! Trials: looking at them, what their code reports, their metrics.

use det_agent_proto::ToAgent;
use det_taskspec::ContainerSpec;
use reqwest::Method;
use serde_json::{Value, json};

use crate::experiments::{config, create};
use crate::support::{Client, Cluster, FakeAgent};

/// A report as the harness sends it.
pub(crate) fn metrics(group: &str, run: i64, step: i64, values: &Value) -> Value {
    json!({"group": group, "metrics": {"trialId": 1, "trialRunId": run, "stepsCompleted": step, "reportTime": null,
        "metrics": {"avgMetrics": values, "batchMetrics": null}}})
}

/// A running trial and the client of its code.
pub(crate) async fn running(cluster: &Cluster) -> (FakeAgent, ContainerSpec, Client) {
    let (agent, spec) = cluster.running_task().await;
    let task = cluster.client().as_task(&spec.script.token);
    (agent, spec, task)
}

#[tokio::test]
async fn a_trial_is_shown() {
    let cluster = Cluster::start().await;
    let (_agent, spec, _task) = running(&cluster).await;
    let client = cluster.determined().await;
    let trial = cluster
        .until(&client, "/api/v1/trials/1", |t| {
            t["trial"]["state"] == "STATE_RUNNING"
        })
        .await;
    let trial = &trial["trial"];
    assert_eq!(trial["experimentId"], 1);
    assert_eq!(trial["taskId"], spec.task_id.as_str());
    assert_eq!(trial["taskIds"], json!([spec.task_id.as_str()]));
    assert_eq!(trial["totalCheckpointSize"], "0");
    assert_eq!(trial["waitReason"], Value::Null);
    let listed = client
        .get("/api/v1/experiments/1/trials?sortBy=SORT_BY_ID&orderBy=ORDER_BY_ASC&offset=0")
        .await
        .ok();
    assert_eq!(listed["trials"][0]["id"], 1);
    assert_eq!(listed["pagination"]["total"], 1);
    for (query, expected) in [
        ("states=STATE_RUNNING", 1),
        ("states=STATE_QUEUED", 0),
        ("states=STATE_ACTIVE", 1),
        ("limit=-2", 0),
    ] {
        let found = client
            .get(&format!("/api/v1/experiments/1/trials?{query}"))
            .await
            .ok();
        assert_eq!(
            found["trials"].as_array().unwrap().len(),
            expected,
            "{query}"
        );
    }
    for path in [
        "/api/v1/trials/99",
        "/api/v1/trials/99/workloads",
        "/api/v1/experiments/99/trials",
    ] {
        assert!(client.get(path).await.refused(404).contains("99"), "{path}");
        client.assert_needs_token(Method::GET, path).await;
    }
    assert!(
        client
            .get("/api/v1/trials/x")
            .await
            .refused(400)
            .contains('x')
    );
    cluster.stop().await;
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one history, step by step")]
async fn reported_metrics_are_summarised_listed_and_streamed() {
    let cluster = Cluster::start().await;
    let (_agent, _spec, task) = running(&cluster).await;
    let client = cluster.determined().await;
    let path = "/api/v1/trials/1/metrics";
    for (group, step, values) in [
        ("training", 1, json!({"loss": 1.0})),
        ("training", 2, json!({"loss": "NaN"})),
        ("training", 2, json!({"accuracy": 0.5})),
        ("validation", 2, json!({"loss": 0.7})),
        ("validation", 4, json!({"loss": 0.9})),
        ("mine", 3, json!({"x": "text"})),
    ] {
        assert_eq!(
            task.post(path, metrics(group, 1, step, &values)).await.ok(),
            json!({})
        );
    }
    // The same report again is not a second point; another value is a contradiction.
    task.post(path, metrics("training", 1, 1, &json!({"loss": 1.0})))
        .await
        .ok();
    assert!(
        task.post(path, metrics("training", 1, 1, &json!({"loss": 2.0})))
            .await
            .refused(409)
            .contains("loss")
    );

    let trial = client.get("/api/v1/trials/1").await.ok()["trial"].clone();
    assert_eq!(
        trial["bestValidation"]["metrics"]["avgMetrics"]["loss"],
        0.7
    );
    assert_eq!(trial["latestValidation"]["totalBatches"], 4);
    assert_eq!(trial["totalBatchesProcessed"], 4);
    assert_eq!(trial["searcherMetricValue"], 0.7);
    assert_eq!(trial["summaryMetrics"]["avg_metrics"]["loss"]["count"], 2);
    assert_eq!(
        trial["summaryMetrics"]["validation_metrics"]["loss"]["min"],
        0.7
    );
    assert_eq!(trial["summaryMetrics"]["mine"]["x"]["type"], "string");

    let stream = client
        .get("/api/v1/trials/metrics/trial_metrics?trialIds=1&group=training")
        .await
        .lines();
    let reports = stream[0]["metrics"].as_array().unwrap();
    assert_eq!(reports.len(), 2, "parts of one step are one report");
    assert_eq!(
        reports[1]["metrics"],
        json!({"avg_metrics": {"loss": "NaN", "accuracy": 0.5}, "batch_metrics": null})
    );
    assert_eq!(
        (&reports[1]["totalBatches"], &reports[1]["trialRunId"]),
        (&json!(2), &json!(1))
    );
    let stream = client
        .get("/api/v1/trials/metrics/validation_metrics?trialIds=1")
        .await
        .lines();
    assert_eq!(
        stream[0]["metrics"][0]["metrics"],
        json!({"validation_metrics": {"loss": 0.7}})
    );
    assert_eq!(
        client
            .get("/api/v1/trials/metrics/training_metrics?trialIds=1")
            .await
            .lines()
            .len(),
        1
    );
    let stream = client
        .get("/api/v1/trials/metrics/trial_metrics?trialIds=1")
        .await
        .lines();
    assert_eq!(
        stream[0]["metrics"].as_array().unwrap().len(),
        5,
        "all groups"
    );
    assert!(
        client
            .get("/api/v1/trials/metrics/trial_metrics")
            .await
            .refused(400)
            .contains("trialIds")
    );
    assert!(
        client
            .get("/api/v1/trials/metrics/trial_metrics?trialIds=99")
            .await
            .refused(404)
            .contains("99")
    );
    client
        .assert_needs_token(
            Method::GET,
            "/api/v1/trials/metrics/trial_metrics?trialIds=1",
        )
        .await;

    let best = client
        .get("/api/v1/experiments/1/searcher/best_searcher_validation_metric")
        .await
        .ok();
    assert_eq!(best, json!({"metric": 0.7}));
    let history = client
        .get("/api/v1/experiments/1/validation-history")
        .await
        .ok();
    assert_eq!(history["validationHistory"].as_array().unwrap().len(), 1);
    assert_eq!(history["validationHistory"][0]["searcherMetric"], 0.7);
    cluster.stop().await;
}

#[tokio::test]
async fn a_searcher_metric_that_a_trial_does_not_report_is_explained() {
    let cluster = Cluster::start().await;
    let (_agent, _spec, task) = running(&cluster).await;
    let client = cluster.determined().await;
    for step in [1, 2] {
        let report = metrics("validation", 1, step, &json!({"f1": 1.0, "accuracy": 0.5}));
        task.post("/api/v1/trials/1/metrics", report).await.ok();
    }
    let expected =
        "searcher metric \"loss\" was not reported; reported validation metrics: accuracy, f1.";
    let events = "/api/v1/events?subjectKind=trial&subjectId=1&limit=100";
    let answer = client.get(events).await.ok();
    let events = answer["events"].as_array().unwrap().iter();
    let missing: Vec<&Value> = events.filter(|e| e["kind"] == "metric_missing").collect();
    // Once, however many validations lack it.
    assert_eq!(missing.len(), 1, "{answer}");
    let reason = missing[0]["reason"].as_str().unwrap();
    assert!(reason.starts_with(expected), "{reason}");
    let logged = client.get("/api/v1/trials/1/logs").await.lines();
    let mut lines = logged.iter().filter(|line| {
        let text = line["message"].as_str().unwrap_or_default();
        text.contains(expected)
    });
    assert_eq!(lines.next().unwrap()["level"], "LOG_LEVEL_WARNING");
    assert!(lines.next().is_none());
    cluster.stop().await;
}

#[tokio::test]
async fn what_a_report_lacks_is_named() {
    let cluster = Cluster::start().await;
    let (_agent, _spec, task) = running(&cluster).await;
    let path = "/api/v1/trials/1/metrics";
    let mut without_step = metrics("training", 1, 1, &json!({}));
    without_step["metrics"]["stepsCompleted"] = Value::Null;
    for (body, expected) in [
        (metrics("", 1, 1, &json!({})), "group"),
        (metrics("a.b", 1, 1, &json!({})), "a.b"),
        (without_step, "stepsCompleted"),
        (metrics("training", 1, 1, &json!({"epoch": "x"})), "epoch"),
        (json!({"group": 3}), "group"),
    ] {
        let message = task.post(path, body.clone()).await.refused(400);
        assert!(message.contains(expected), "{body}: {message}");
    }
    // A task speaks for its own run and trial only.
    assert!(
        task.post(path, metrics("training", 7, 1, &json!({})))
            .await
            .refused(403)
            .contains("run 7")
    );
    assert!(
        task.post(
            "/api/v1/trials/2/metrics",
            metrics("training", 1, 1, &json!({}))
        )
        .await
        .refused(403)
        .contains('2')
    );
    let person = cluster.determined().await;
    assert!(
        person
            .post(
                "/api/v1/trials/99/metrics",
                metrics("training", 1, 1, &json!({}))
            )
            .await
            .refused(404)
            .contains("99")
    );
    person.assert_needs_token(Method::POST, path).await;
    let none = person
        .get("/api/v1/experiments/1/searcher/best_searcher_validation_metric")
        .await
        .refused(404);
    assert!(none.contains("loss"), "{none}");
    cluster.stop().await;
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one history, step by step")]
async fn a_trial_s_history_is_paged() {
    let cluster = Cluster::start().await;
    let (_agent, spec, task) = running(&cluster).await;
    for (step, loss) in [(1, 1.0), (2, 0.5), (3, 0.3)] {
        task.post(
            "/api/v1/trials/1/metrics",
            metrics("training", 1, step, &json!({"loss": loss})),
        )
        .await
        .ok();
    }
    task.post(
        "/api/v1/trials/1/metrics",
        metrics("validation", 1, 2, &json!({"loss": 0.5})),
    )
    .await
    .ok();
    let checkpoint = json!({"uuid": "0b6c5d1e-7f7a-4f3e-9c55-3f0f2d9b8a11", "taskId": spec.task_id.as_str(),
        "metadata": {"steps_completed": 2}, "resources": {"m": "5"}, "training": {}, "state": "STATE_COMPLETED"});
    task.post("/api/v1/checkpoints", checkpoint).await.ok();
    let client = cluster.determined().await;
    let shape = async |query: &str| -> Vec<(String, i64)> {
        let answer = client
            .get(&format!("/api/v1/trials/1/workloads?{query}"))
            .await
            .ok();
        let entries = answer["workloads"].as_array().unwrap();
        entries
            .iter()
            .map(|entry| {
                let set: Vec<_> = entry
                    .as_object()
                    .unwrap()
                    .iter()
                    .filter(|(_, v)| !v.is_null())
                    .collect();
                assert_eq!(set.len(), 1, "{entry}");
                (set[0].0.clone(), set[0].1["totalBatches"].as_i64().unwrap())
            })
            .collect()
    };
    let entries = |list: &[(&str, i64)]| -> Vec<(String, i64)> {
        list.iter()
            .map(|(kind, step)| ((*kind).to_owned(), *step))
            .collect()
    };
    let all = entries(&[
        ("training", 1),
        ("training", 2),
        ("validation", 2),
        ("checkpoint", 2),
        ("training", 3),
    ]);
    assert_eq!(shape("limit=500&offset=0").await, all);
    assert_eq!(shape("").await, all, "no limit is all");
    assert_eq!(
        shape("includeBatchMetrics=false&limit=2&offset=1").await,
        all[1..3]
    );
    assert_eq!(
        shape("filter=FILTER_OPTION_CHECKPOINT").await,
        entries(&[("checkpoint", 2)])
    );
    assert_eq!(
        shape("filter=FILTER_OPTION_VALIDATION").await,
        entries(&[("validation", 2)])
    );
    assert_eq!(
        shape("filter=FILTER_OPTION_CHECKPOINT_OR_VALIDATION").await,
        entries(&[("validation", 2), ("checkpoint", 2)])
    );
    assert_eq!(
        shape("metricType=METRIC_TYPE_TRAINING&orderBy=ORDER_BY_DESC&limit=1").await,
        entries(&[("training", 3)])
    );
    let page = client
        .get("/api/v1/trials/1/workloads?limit=2&offset=1")
        .await
        .ok();
    assert_eq!(
        page["pagination"],
        json!({"offset": 1, "limit": 2, "startIndex": 1, "endIndex": 3, "total": 5})
    );
    assert!(
        client
            .get("/api/v1/trials/1/workloads?filter=x")
            .await
            .refused(400)
            .contains("filter")
    );
    cluster.stop().await;
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one history, step by step")]
async fn what_the_code_reports_of_itself() {
    let cluster = Cluster::start().await;
    let (_agent, _spec, task) = running(&cluster).await;
    let client = cluster.determined().await;
    let started = task
        .post(
            "/api/v1/runs/start",
            json!({"runId": 1, "checkpointStorage": {"type": "shared_fs"}}),
        )
        .await;
    assert!(started.ok()["storageId"].is_i64());
    assert!(
        task.post("/api/v1/runs/start", json!({}))
            .await
            .refused(400)
            .contains("runId")
    );
    assert!(
        task.post("/api/v1/runs/start", json!({"runId": 2}))
            .await
            .refused(403)
            .contains('2')
    );
    assert!(
        client
            .post("/api/v1/runs/start", json!({"runId": 99}))
            .await
            .refused(404)
            .contains("99")
    );

    task.post(
        "/api/v1/trials/1/runner/metadata",
        json!({"state": "training"}),
    )
    .await
    .ok();
    assert_eq!(
        client.get("/api/v1/trials/1").await.ok()["trial"]["runnerState"],
        "training"
    );
    task.post(
        "/api/v1/trials/1/progress",
        json!({"progress": 0.33, "is_raw": true}),
    )
    .await
    .ok();
    assert_eq!(
        client.get("/api/v1/experiments/1").await.ok()["experiment"]["progress"],
        0.33
    );
    assert!(
        task.post("/api/v1/trials/1/progress", json!({"progress": -1}))
            .await
            .refused(400)
            .contains("progress")
    );

    let metadata = json!({"metadata": {"note": {"lr": [1, 2]}}});
    assert_eq!(
        task.post("/api/v1/runs/1/metadata", metadata.clone())
            .await
            .ok(),
        metadata
    );
    assert_eq!(client.get("/api/v1/runs/1/metadata").await.ok(), metadata);
    assert_eq!(
        client.get("/api/v1/trials/1").await.ok()["trial"]["metadata"],
        metadata["metadata"]
    );
    let bad = json!({"metadata": {"a.b": 1}});
    assert!(
        task.post("/api/v1/runs/1/metadata", bad)
            .await
            .refused(400)
            .contains("a.b")
    );
    assert!(
        client
            .get("/api/v1/runs/99/metadata")
            .await
            .refused(404)
            .contains("99")
    );

    assert!(
        task.post("/api/v1/trials/1/early_exit", json!({}))
            .await
            .refused(400)
            .contains("reason")
    );
    assert!(
        task.post("/api/v1/trials/1/early_exit", json!({"reason": "BOREDOM"}))
            .await
            .refused(400)
            .contains("reason")
    );
    let exit = json!({"reason": "EXITED_REASON_USER_REQUESTED_STOP"});
    assert_eq!(
        task.post("/api/v1/trials/1/early_exit", exit).await.ok(),
        json!({})
    );
    assert_eq!(
        client.get("/api/v1/trials/1").await.ok()["trial"]["state"],
        "STATE_STOPPING_COMPLETED"
    );
    for (method, path) in [
        (Method::POST, "/api/v1/runs/start"),
        (Method::POST, "/api/v1/trials/1/runner/metadata"),
        (Method::POST, "/api/v1/trials/1/progress"),
        (Method::POST, "/api/v1/trials/1/early_exit"),
        (Method::GET, "/api/v1/runs/1/metadata"),
        (Method::POST, "/api/v1/runs/1/metadata"),
        (Method::POST, "/api/v1/trials/1/kill"),
    ] {
        client.assert_needs_token(method, path).await;
    }
    cluster.stop().await;
}

#[tokio::test]
async fn a_trial_is_killed() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    create(&client, &config("one"), false).await;
    assert_eq!(
        client.post("/api/v1/trials/1/kill", Value::Null).await.ok(),
        json!({})
    );
    assert_eq!(
        client.get("/api/v1/trials/1").await.ok()["trial"]["state"],
        "STATE_CANCELED"
    );
    assert!(
        client
            .post("/api/v1/trials/99/kill", Value::Null)
            .await
            .refused(404)
            .contains("99")
    );
    cluster.stop().await;
}

#[tokio::test]
async fn an_older_run_changes_nothing_any_more() {
    let cluster = Cluster::start().await;
    let (mut agent, spec, older) = running(&cluster).await;
    let client = cluster.determined().await;
    let experiment = "/api/v1/experiments/1";
    client
        .post(&format!("{experiment}/pause"), Value::Null)
        .await
        .ok();
    agent.next_kill().await;
    agent.exits(&spec, 137).await;
    client
        .post(&format!("{experiment}/activate"), Value::Null)
        .await
        .ok();
    let again = loop {
        if let ToAgent::Start(spec) = agent.receive().await {
            break spec;
        }
    };
    let newer = cluster.client().as_task(&again.script.token);
    let trial = || async { client.get("/api/v1/trials/1").await.ok()["trial"].clone() };
    let before = trial().await;

    let reports = "/api/v1/trials/1/metrics";
    let report = |run| metrics("training", run, 1, &json!({"loss": 1.0}));
    older.post(reports, report(1)).await.refused(400);
    // Under the newer run's number its token gives it away.
    let message = older.post(reports, report(2)).await.refused(403);
    assert!(message.contains("run 1 of trial 1"), "{message}");
    let said = [
        (
            "/api/v1/trials/1/progress",
            json!({"progress": 0.5, "isRaw": true}),
        ),
        (
            "/api/v1/trials/1/runner/metadata",
            json!({"state": "training"}),
        ),
        ("/api/v1/runs/1/metadata", json!({"metadata": {"a": 1}})),
        (
            "/api/v1/trials/1/early_exit",
            json!({"reason": "EXITED_REASON_USER_REQUESTED_STOP"}),
        ),
    ];
    for (path, body) in &said {
        let reply = older.post(path, body.clone()).await;
        let (status, why) = if path.ends_with("metadata") {
            (403, "has ended")
        } else {
            (400, "run 1 of trial 1 is over")
        };
        let message = reply.refused(status);
        assert!(message.contains(why), "{path}: {message}");
    }
    let after = trial().await;
    for key in ["state", "runnerState", "metadata", "totalBatchesProcessed"] {
        assert_eq!(after[key], before[key], "{key}");
    }
    newer.post(reports, report(2)).await.ok();
    for (path, body) in said {
        newer.post(path, body).await.ok();
    }
    cluster.stop().await;
}
