//! Logs of tasks and trials.

use det_ids::{LogSource, TaskId, UserId};
use det_server::app::logs::reading::{LineEncoder, LogFilter, Reading};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Client, Cluster};

fn texts(messages: &[Value]) -> Vec<&str> {
    messages
        .iter()
        .map(|m| m["log"].as_str().unwrap().trim_end())
        .collect()
}

/// A cluster with one waiting task, the path of its log without the master's own lines, and of its trial's.
struct LoggedTask {
    cluster: Cluster,
    client: Client,
    task_id: TaskId,
    task_logs: String,
    trial_logs: String,
}

async fn logged() -> LoggedTask {
    let cluster = Cluster::start_with(&[("launch_error", "false")]).await;
    let experiment = cluster.experiment("logged", 1).await;
    let (task, _) = cluster.task_of(experiment).await;
    LoggedTask {
        client: cluster.admin().await,
        task_logs: format!("/api/v1/tasks/{}/logs?sources=task", task.id),
        trial_logs: format!(
            "/api/v1/trials/{}/logs?sources=task",
            task.trial_id.unwrap()
        ),
        task_id: task.id,
        cluster,
    }
}

impl LoggedTask {
    fn record(&self, log: &str) -> Value {
        json!({"task_id": self.task_id, "log": log, "source": "task", "stdtype": "stdout", "timestamp": "2022-03-02T02:15:18.299569Z"})
    }

    async fn ship(&self, logs: Value) {
        assert_eq!(
            self.client
                .post("/api/v1/task/logs", json!({"logs": logs}))
                .await
                .ok(),
            json!({})
        );
    }
}

#[tokio::test]
async fn shipped_records_are_read_back_as_clients_print_them() {
    let l = logged().await;
    let mut record = l.record("hello\n");
    record["container_id"] = json!("f6114bb3-0000-4000-8000-000000000000");
    record["rank_id"] = json!(1);
    record["level"] = json!("ERROR");
    l.ship(json!([record, l.record("with\u{0}out")])).await;
    let lines = l.client.get(&l.task_logs).await.lines();
    assert_eq!(
        lines[0]["message"],
        "[2022-03-02T02:15:18.299569Z] f6114bb3 [rank=1] || ERROR: hello\n"
    );
    assert_eq!(
        (&lines[0]["level"], &lines[0]["rankId"]),
        (&json!("LOG_LEVEL_ERROR"), &json!(1))
    );
    assert_eq!(
        (&lines[0]["taskId"], lines[0]["id"].is_string()),
        (&json!(l.task_id), true)
    );
    assert_eq!(
        (&lines[1]["log"], &lines[1]["level"]),
        (&json!("with\0out\n"), &json!("LOG_LEVEL_UNSPECIFIED"))
    );
    let of_trial = l.client.get(&l.trial_logs).await.lines();
    assert_eq!(
        (
            of_trial.len(),
            &of_trial[0]["trialId"],
            &of_trial[0]["message"]
        ),
        (2, &json!(1), &lines[0]["message"])
    );
    l.cluster.stop().await;
}

#[tokio::test]
async fn a_bad_record_costs_only_itself() {
    let l = logged().await;
    l.ship(json!([l.record("a"), {"task_id": l.task_id, "log": {"not": "text"}}, l.record("b")]))
        .await;
    assert_eq!(texts(&l.client.get(&l.task_logs).await.lines()), ["a", "b"]);
    let refused = [
        (json!({}), "logs"),
        (json!({"logs": "a"}), "logs"),
        (json!({"logs": [{"log": "a"}]}), "logs[0].taskId"),
        (
            json!({"logs": [l.record("a"), {"taskId": "other", "log": "b"}]}),
            "logs[1].taskId",
        ),
        (
            json!({"logs": [{"taskId": l.task_id, "id": 7}]}),
            "logs[0].id",
        ),
    ];
    for (body, named) in refused {
        let sentence = l
            .client
            .post("/api/v1/task/logs", body.clone())
            .await
            .refused(400);
        assert!(sentence.contains(named), "{body}: {sentence}");
    }
    let unknown = json!({"logs": [{"taskId": "9.none", "log": "a"}]});
    assert!(
        l.client
            .post("/api/v1/task/logs", unknown)
            .await
            .refused(404)
            .contains("9.none")
    );
    l.cluster.stop().await;
}

#[tokio::test]
async fn a_batch_that_comes_twice_is_stored_once() {
    let l = logged().await;
    let batch = |first: u64, logs: Value| json!({"logs": logs, "spool": {"id": "container", "first": first}});
    let send = async |body: Value| {
        assert_eq!(
            l.client.post("/api/v1/task/logs", body).await.ok(),
            json!({})
        );
    };
    send(batch(1, json!([l.record("1"), l.record("2")]))).await;
    send(batch(1, json!([l.record("1"), l.record("2")]))).await;
    send(batch(2, json!([l.record("2"), l.record("3")]))).await;
    assert_eq!(
        texts(&l.client.get(&l.task_logs).await.lines()),
        ["1", "2", "3"]
    );
    l.cluster.stop().await;
}

#[tokio::test]
async fn a_line_that_reports_a_full_disk_leaves_an_event_of_the_task_once() {
    let l = logged().await;
    let outage = |sequence: u64, lost: u64| {
        json!({"sequence": sequence, "since": "2022-03-02T02:15:10.5Z", "until": "2022-03-02T02:15:18Z",
            "lost": lost, "cause": "No space left on device (os error 28)"})
    };
    let batch = |first: u64, logs: Value, outages: Value| json!({"logs": logs, "spool": {"id": "container", "first": first, "outages": outages}});
    let send = async |body: Value| {
        assert_eq!(
            l.client.post("/api/v1/task/logs", body).await.ok(),
            json!({})
        );
    };
    let lines = json!([l.record("1"), l.record("the disk was full")]);
    send(batch(1, lines.clone(), json!([outage(2, 0)]))).await;
    send(batch(1, lines, json!([outage(2, 0)]))).await;
    // Part of it is stored already, and one reports a line that is not in the batch.
    let lines = json!([l.record("the disk was full"), l.record("again")]);
    send(batch(
        2,
        lines,
        json!([
            outage(2, 0),
            outage(3, 7),
            outage(4, 1),
            outage(u64::MAX, 1)
        ]),
    ))
    .await;
    let path = format!("/api/v1/events?subjectKind=task&subjectId={}", l.task_id);
    let events = l.client.get(&path).await.ok()["events"].clone();
    let reported: Vec<_> = events
        .as_array()
        .unwrap()
        .iter()
        .map(|e| {
            (
                e["kind"].clone(),
                e["reason"].clone(),
                e["detail"]["lost"].clone(),
            )
        })
        .collect();
    let words =
        "its log could not be written to disk for 7.5 s (No space left on device (os error 28))";
    let first = format!("{words}: its output waited meanwhile, and nothing of it is missing");
    let second = format!("{words}: 7 lines of it are missing");
    assert_eq!(
        reported,
        [
            (json!("log_held"), json!(first), json!(0)),
            (json!("log_held"), json!(second), json!(7)),
        ]
    );
    assert_eq!(
        texts(&l.client.get(&l.task_logs).await.lines()),
        ["1", "the disk was full", "again"]
    );
    // The last number that there is does not disturb.
    send(batch(
        i64::MAX.unsigned_abs(),
        json!([l.record("the last")]),
        json!([]),
    ))
    .await;
    l.cluster.stop().await;
}

#[tokio::test]
async fn logs_are_filtered_searched_limited_and_reversed() {
    let l = logged().await;
    let mut ranked = l.record("Loss 0.5");
    ranked["rankId"] = json!(1);
    ranked["level"] = json!("LOG_LEVEL_WARNING");
    ranked["stdtype"] = json!("stderr");
    ranked["agentId"] = json!("a1");
    ranked["timestamp"] = json!("2022-03-03T00:00:00+02:00");
    l.ship(json!([l.record("one"), ranked, l.record("three")]))
        .await;
    let wanted: [(&str, &[&str]); 15] = [
        ("", &["one", "Loss 0.5", "three"]),
        ("orderBy=ORDER_BY_DESC&limit=2", &["three", "Loss 0.5"]),
        ("limit=1", &["one"]),
        ("rankIds=1", &["Loss 0.5"]),
        ("rankIds=-1", &["one", "three"]),
        ("rankIds=-1&rankIds=1", &["one", "Loss 0.5", "three"]),
        (
            "levels=LOG_LEVEL_WARNING&levels=LOG_LEVEL_ERROR",
            &["Loss 0.5"],
        ),
        ("stdtypes=stderr", &["Loss 0.5"]),
        ("agentIds=a1", &["Loss 0.5"]),
        ("searchText=LOSS", &["Loss 0.5"]),
        ("searchText=%5Et&enableRegex=true", &["three"]),
        ("searchText=ee%24&enableRegex=true", &["three"]),
        ("timestampAfter=2022-03-02T02:15:18.299569Z", &["Loss 0.5"]),
        (
            "timestamp_before=2022-03-02T02:15:18.299569Z",
            &["one", "three"],
        ),
        ("containerIds=none", &[]),
    ];
    for (query, expected) in wanted {
        for base in [&l.task_logs, &l.trial_logs] {
            let lines = l.client.get(&format!("{base}&{query}")).await.lines();
            assert_eq!(texts(&lines), expected, "{base}&{query}");
        }
    }
    let refused = [
        ("follow=true&limit=1", "limit"),
        ("limit=-1", "limit"),
        ("limit=x", "limit"),
        ("rankIds=x", "rankIds"),
        ("searchText=(&enableRegex=true", "searchText"),
        (
            "searchText=%5Cw%7B250%7D&enableRegex=true",
            "\"searchText\" is too large a regular expression",
        ),
        ("timestampAfter=yesterday", "timestampAfter"),
    ];
    for (query, named) in refused {
        let sentence = l
            .client
            .get(&format!("{}&{query}", l.task_logs))
            .await
            .refused(400);
        assert!(sentence.contains(named), "{query}: {sentence}");
    }
    for path in [
        "/api/v1/tasks/9.none/logs",
        "/api/v1/trials/99/logs",
        "/api/v1/trials/99/logs?follow=true",
    ] {
        assert!(
            l.client.get(path).await.refused(404).contains("not found"),
            "{path}"
        );
    }
    assert!(
        l.client
            .get("/api/v1/trials/x/logs")
            .await
            .refused(400)
            .contains("number")
    );
    l.cluster.stop().await;
}

#[tokio::test]
async fn a_long_log_is_read_in_small_pieces_and_whole() {
    let l = logged().await;
    let lines = 500;
    let filling = "x".repeat(1000);
    let records: Vec<Value> = (0..lines)
        .map(|n| l.record(&format!("{n} {filling}\n")))
        .collect();
    l.ship(json!(records)).await;
    let (out, mut pieces) = tokio::sync::mpsc::channel(1);
    let master = l.cluster.master().clone();
    let filter = LogFilter {
        sources: vec![LogSource::Task.into()],
        ..LogFilter::default()
    };
    let reading = Reading::Forward { limit: Some(450) };
    let tasks = vec![l.task_id.clone()];
    let sink = LineEncoder::new(|_, _, line| Ok(line.log.into()));
    let reader = tokio::spawn(async move {
        master
            .logs
            .read(UserId(1), tasks, filter, reading, sink, out)
            .await;
    });
    let mut read = String::new();
    while let Some(piece) = pieces.recv().await {
        let piece = piece.unwrap();
        assert!(piece.len() < 20_000, "a piece of {} bytes", piece.len());
        read.push_str(std::str::from_utf8(&piece).unwrap());
    }
    reader.await.unwrap();
    assert_eq!(read.lines().count(), 450);
    for (n, line) in read.lines().enumerate() {
        assert!(line.starts_with(&format!("{n} ")), "{line}");
    }
    l.cluster.stop().await;
}

#[tokio::test]
async fn a_followed_log_ends_with_its_task() {
    let cluster = Cluster::start().await;
    let (mut agent, spec) = cluster.running_task().await;
    let task = cluster.client().as_task(&spec.script.token);
    let mut of_trial = cluster
        .determined()
        .await
        .follow("/api/v1/trials/1/logs?follow=true&sources=task")
        .await;
    let mut of_task = task
        .follow(&format!(
            "/api/v1/tasks/{}/logs?follow=true&sources=task",
            spec.task_id
        ))
        .await;
    for text in ["first", "second"] {
        let record = json!({"task_id": spec.task_id, "log": text, "source": "task"});
        task.post("/api/v1/task/logs", json!({"logs": [record]}))
            .await
            .ok();
        assert_eq!(of_trial.next().await.unwrap()["log"], format!("{text}\n"));
        assert_eq!(of_task.next().await.unwrap()["log"], format!("{text}\n"));
    }
    agent.exits(&spec, 0).await;
    assert_eq!(of_trial.next().await, None);
    assert_eq!(of_task.next().await, None);
    // The token still works: the last lines may come after the end.
    let late = json!({"logs": [{"task_id": spec.task_id, "log": "late"}]});
    assert_eq!(task.post("/api/v1/task/logs", late).await.ok(), json!({}));
    cluster.stop().await;
}

#[tokio::test]
async fn fields_are_what_the_log_has() {
    let l = logged().await;
    let path = format!("/api/v1/tasks/{}/logs/fields", l.task_id);
    let mut follower = l.client.follow(&format!("{path}?follow=true")).await;
    // The master's own line on the task's waiting comes first.
    let fields = follower.next().await.unwrap();
    assert_eq!(fields["sources"], json!(["master"]));
    let mut record = l.record("x");
    record["rankId"] = json!(3);
    l.ship(json!([record.clone(), record])).await;
    let fields = follower.next().await.unwrap();
    assert_eq!(
        (&fields["sources"], &fields["rankIds"]),
        (&json!(["master", "task"]), &json!([3]))
    );
    assert_eq!(
        (&fields["agentIds"], &fields["stdtypes"]),
        (&json!([]), &json!(["stdout"]))
    );
    let once = l.client.get(&path).await.lines();
    assert_eq!(once, std::slice::from_ref(&fields));
    let of_trial = l.client.get("/api/v1/trials/1/logs/fields").await.lines();
    assert_eq!(
        (
            of_trial.len(),
            &of_trial[0]["rankIds"],
            of_trial[0].get("allocationIds")
        ),
        (1, &json!([3]), None)
    );
    assert!(
        l.client
            .get("/api/v1/tasks/9.none/logs/fields")
            .await
            .refused(404)
            .contains("9.none")
    );
    assert!(
        l.client
            .get("/api/v1/trials/99/logs/fields")
            .await
            .refused(404)
            .contains("99")
    );
    assert!(
        l.client
            .get(&format!("{path}?follow=perhaps"))
            .await
            .refused(400)
            .contains("follow")
    );
    l.cluster.stop().await;
}

#[tokio::test]
async fn records_from_outside_are_counted_not_refused() {
    let l = logged().await;
    let records = json!([
        {"task_id": l.task_id, "timestamp": "2020-01-01T00:00:00Z", "log": "a", "rank": "0", "source": "task"},
        {"task_id": l.task_id, "timestamp": "2020-01-01T00:00:00Z", "log": "b", "rank": "1", "source": "task"},
        {"task_id": "9.none", "log": "lost"},
        {"task_id": 7},
    ]);
    assert_eq!(
        l.client.post("/task-logs", records).await.ok(),
        json!({"stored": 2, "dropped": 2})
    );
    let lines = l.client.get(&l.task_logs).await.lines();
    assert_eq!(
        (texts(&lines), &lines[1]["rankId"]),
        (vec!["a", "b"], &json!(1))
    );
    // The client's frozen time of start gave way to that of arrival.
    assert!(
        !lines[0]["timestamp"].as_str().unwrap().starts_with("2020"),
        "{lines:?}"
    );
    assert!(l.client.post("/task-logs", json!({"a": 1})).await.status == 400);
    l.cluster.stop().await;
}

#[tokio::test]
async fn a_task_writes_only_its_own_log() {
    let cluster = Cluster::start().await;
    let (_agent, spec) = cluster.running_task().await;
    let other = cluster.experiment("other", 1).await;
    let (other, _) = cluster.task_of(other).await;
    let task = cluster.client().as_task(&spec.script.token);
    let record = json!({"task_id": other.id, "log": "not mine"});
    assert!(
        task.post("/api/v1/task/logs", json!({"logs": [record]}))
            .await
            .refused(403)
            .contains("may not act")
    );
    assert_eq!(
        task.post("/task-logs", json!([record])).await.ok(),
        json!({"stored": 0, "dropped": 1})
    );
    cluster.stop().await;
}

#[tokio::test]
async fn a_token_is_needed() {
    let cluster = Cluster::start().await;
    let client = cluster.client();
    for path in [
        "/tasks/t/logs",
        "/tasks/t/logs/fields",
        "/trials/1/logs",
        "/trials/1/logs/fields",
    ] {
        client
            .assert_needs_token(Method::GET, &format!("/api/v1{path}"))
            .await;
    }
    client
        .assert_needs_token(Method::POST, "/api/v1/task/logs")
        .await;
    client.assert_needs_token(Method::POST, "/task-logs").await;
    cluster.stop().await;
}
