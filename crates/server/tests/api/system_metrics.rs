//! System metrics: what supervisors report, what code reports itself, and the older operations of the profiler.

use reqwest::Method;
use serde_json::{Value, json};

use crate::experiments::{config, create};
use crate::support::{Client, Cluster};
use crate::trials::running;

const PATH: &str = "/api/v1/trials/1/system_metrics";
const OLDER: &str = "/api/v1/trials/profiler/metrics";
const SERIES: &str = "/api/v1/trials/1/profiler/available_series";
const READINGS: &str = "/api/v1/trials/1/profiler/metrics";

/// What a supervisor sends: one report with one value of each group.
fn measured(id: &str, cpu: f64, again: bool) -> Value {
    json!({"trialRunId": 1, "agentId": "a1", "again": again, "reports": [{
    "reportId": id, "time": "2026-01-01T00:00:10.000001Z", "groups": {
        "cpu": {"cpu_util_simple": cpu},
        "memory": {"memory_free": 5e9},
        "disk": {"disk_iops": 1, "/": {"disk_util": 40.5}},
        "network": {"net_throughput_recv": 7},
        "gpu": {"GPU-1": {"gpu_util": 90}},
    }}]})
}

/// What the PyPI package's profiler sends.
fn of_the_code(group: &str, values: &Value) -> Value {
    json!({"group": group, "metrics": {"trialId": 1, "trialRunId": 1, "stepsCompleted": null,
        "reportTime": "2026-01-01T00:00:20+00:00", "metrics": {"avgMetrics": values, "batchMetrics": null}}})
}

/// The stored reports of a group: their documents.
async fn reports(client: &Client, group: &str) -> Vec<Value> {
    let path = format!("/api/v1/trials/metrics/trial_metrics?trialIds=1&group={group}");
    let messages = client.get(&path).await.lines();
    let reports = messages
        .iter()
        .flat_map(|message| message["metrics"].as_array().unwrap());
    reports
        .map(|report| report["metrics"]["avg_metrics"].clone())
        .collect()
}

/// Agent, GPU or path, and name of each series.
fn names(message: &Value) -> Vec<(String, String, String)> {
    let text = |labels: &Value, name: &str| labels[name].as_str().unwrap().to_owned();
    let labels = message["labels"].as_array().unwrap();
    labels
        .iter()
        .map(|labels| {
            assert_eq!(labels["trialId"], 1);
            (
                text(labels, "agentId"),
                text(labels, "gpuUuid"),
                text(labels, "name"),
            )
        })
        .collect()
}

#[tokio::test]
async fn a_trial_is_measured_if_its_configuration_asks_for_it() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let mut agent = cluster.agent("a1", 1).await;
    let mut measured = config("measured");
    measured["profiling"] = json!({"enabled": true});
    let answer = create(&client, &measured, true).await;
    assert_eq!(answer["warnings"], json!([]));
    let spec = agent.next_start().await;
    let settings = spec.script.system_metrics.unwrap();
    assert_eq!((settings.trial_id.0, settings.run_id.0), (1, 1));
    assert_eq!(
        (settings.sample_seconds, settings.samples_per_report),
        (1, 10)
    );
    agent.runs(&spec).await;
    agent.exits(&spec, 0).await;
    agent.forgets(&spec).await;
    create(&client, &config("plain"), true).await;
    assert_eq!(agent.next_start().await.script.system_metrics, None);
    cluster.stop().await;
}

#[tokio::test]
async fn what_a_supervisor_measures_is_stored_as_the_profiler_stores_it() {
    let cluster = Cluster::start().await;
    let (_agent, _spec, task) = running(&cluster).await;
    let client = cluster.determined().await;
    for (body, stored) in [
        (measured("c-1", 10.0, false), 1),
        (measured("c-2", 20.0, false), 2),
        // Its answer was lost: it comes again, with another.
        (measured("c-2", 20.0, true), 2),
        (measured("c-3", 30.0, true), 3),
    ] {
        assert_eq!(task.post(PATH, body).await.ok(), json!({"collect": true}));
        assert_eq!(reports(&client, "cpu").await.len(), stored);
    }
    // The chunks know it as well as the journal.
    task.post(PATH, measured("c-2", 20.0, true)).await.ok();
    assert_eq!(
        reports(&client, "cpu").await,
        [10.0, 20.0, 30.0].map(|cpu| json!({"a1": {"cpu_util_simple": cpu}}))
    );
    assert_eq!(
        reports(&client, "disk").await[0],
        json!({"a1": {"disk_iops": 1, "/": {"disk_util": 40.5}}})
    );
    assert_eq!(
        reports(&client, "gpu").await[0],
        json!({"a1": {"GPU-1": {"gpu_util": 90}}})
    );
    cluster.stop().await;
}

#[tokio::test]
async fn the_code_takes_the_place_of_its_agents_supervisor() {
    let cluster = Cluster::start().await;
    let (_agent, _spec, task) = running(&cluster).await;
    let client = cluster.determined().await;
    let report = "/api/v1/trials/1/metrics";
    // Custom metrics are none of the machine.
    let mine = json!({"a1": {"x": 1}});
    let mut custom = of_the_code("mine", &mine);
    custom["metrics"]["stepsCompleted"] = json!(1);
    task.post(report, custom).await.ok();
    let first = task.post(PATH, measured("c-1", 10.0, false)).await.ok();
    assert_eq!(first, json!({"collect": true}));
    let own = json!({"a1": {"cpu_util_simple": 55.0}});
    task.post(report, of_the_code("cpu", &own)).await.ok();
    let second = task.post(PATH, measured("c-2", 20.0, false)).await.ok();
    assert_eq!(second, json!({"collect": false}));
    assert_eq!(
        reports(&client, "cpu").await,
        [json!({"a1": {"cpu_util_simple": 10.0}}), own]
    );
    // Another agent of the trial goes on.
    let mut other = measured("d-1", 30.0, false);
    other["agentId"] = json!("a2");
    assert_eq!(task.post(PATH, other).await.ok(), json!({"collect": true}));
    cluster.stop().await;
}

#[tokio::test]
async fn what_a_supervisor_gets_wrong_is_named() {
    let cluster = Cluster::start().await;
    let (_agent, _spec, task) = running(&cluster).await;
    let with = |change: fn(&mut Value)| {
        let mut body = measured("c-1", 1.0, false);
        change(&mut body);
        body
    };
    for (body, status, text) in [
        (with(|body| body["agentId"] = json!("")), 400, "agentId"),
        (with(|body| body["trialRunId"] = json!(2)), 403, "run 2"),
        (
            with(|body| body["reports"][0]["groups"] = json!({"training": {}})),
            400,
            "training",
        ),
        (
            with(|body| body["reports"][0]["groups"] = json!({"cpu": 5})),
            400,
            "cpu",
        ),
        (
            with(|body| body["reports"] = vec![json!({}); 1001].into()),
            400,
            "1000",
        ),
    ] {
        let refusal = task.post(PATH, body).await.refused(status);
        assert!(refusal.contains(text), "{refusal}");
    }
    let none = measured("c-1", 1.0, false);
    let other = task.post("/api/v1/trials/99/system_metrics", none).await;
    assert!(other.refused(403).contains("99"));
    task.assert_needs_token(Method::GET, SERIES).await;
    task.assert_needs_token(Method::GET, READINGS).await;
    cluster.stop().await;
}

#[tokio::test]
async fn older_clients_see_the_series_of_the_stored_groups() {
    let cluster = Cluster::start().await;
    let (_agent, _spec, task) = running(&cluster).await;
    let client = cluster.determined().await;
    assert_eq!(client.get(SERIES).await.lines(), [json!({"labels": []})]);
    assert_eq!(client.get(READINGS).await.lines(), Vec::<Value>::new());
    for (id, cpu) in [("c-1", 10.0), ("c-2", 20.0)] {
        task.post(PATH, measured(id, cpu, false)).await.ok();
    }
    let own = |label: &str, name: &str| ("a1".to_owned(), label.to_owned(), name.to_owned());
    let messages = client.get(SERIES).await.lines();
    assert_eq!(messages.len(), 1);
    let mut found = names(&messages[0]);
    found.sort();
    assert_eq!(
        found,
        [
            own("", "cpu_util_simple"),
            own("", "disk_iops"),
            own("", "memory_free"),
            own("", "net_throughput_recv"),
            own("/", "disk_util"),
            own("GPU-1", "gpu_util"),
        ]
    );
    let cpu = client
        .get(&format!("{READINGS}?labels.name=cpu_util_simple"))
        .await
        .lines();
    let time = "2026-01-01T00:00:10.000001Z";
    assert_eq!(
        cpu,
        [json!({"batch": {
            "values": [10.0, 20.0], "batches": [0, 0], "timestamps": [time, time],
            "labels": {"trialId": 1, "name": "cpu_util_simple", "agentId": "a1", "gpuUuid": "",
                "metricType": "PROFILER_METRIC_TYPE_SYSTEM"},
        }})]
    );
    for (query, count) in [
        ("", 6),
        ("?labels.agentId=a1", 6),
        ("?labels.agentId=a2", 0),
        ("?labels.gpuUuid=GPU-1", 1),
        ("?labels.metricType=PROFILER_METRIC_TYPE_SYSTEM", 6),
        ("?labels.metricType=PROFILER_METRIC_TYPE_TIMING", 0),
        ("?labels.name=nothing", 0),
    ] {
        let found = client.get(&format!("{READINGS}{query}")).await.lines();
        assert_eq!(found.len(), count, "{query}");
    }
    for path in [
        "/api/v1/trials/99/profiler/available_series",
        "/api/v1/trials/99/profiler/metrics?follow=true",
    ] {
        assert!(client.get(path).await.refused(404).contains("99"), "{path}");
    }
    cluster.stop().await;
}

#[tokio::test]
async fn a_report_of_many_values_is_read_in_parts_and_a_larger_one_refused() {
    let cluster = Cluster::start().await;
    let (_agent, _spec, task) = running(&cluster).await;
    let client = cluster.determined().await;
    let report = "/api/v1/trials/1/metrics";
    let label = "x".repeat(1024);
    let values = |count: usize| -> serde_json::Map<String, Value> {
        (0..count).map(|n| (format!("gpu_{n}"), json!(n))).collect()
    };
    let of_label =
        |label: &str, count: usize| of_the_code("gpu", &json!({"a": {label: values(count)}}));
    for (body, text) in [
        (of_label(&label.repeat(2), 1), "1024 bytes, found 2048"),
        (of_label(&label, 10_000), "10000 names"),
        (
            of_the_code("gpu", &json!({"a": [[[[[[[[1]]]]]]]]})),
            "8 levels",
        ),
    ] {
        let refusal = task.post(report, body).await.refused(400);
        assert!(refusal.contains(text), "{refusal}");
    }
    task.post(report, of_label(&label, 6000)).await.ok();
    let batches = client.get(READINGS).await.lines();
    let found: std::collections::BTreeSet<&str> = batches
        .iter()
        .map(|message| message["batch"]["labels"]["name"].as_str().unwrap())
        .collect();
    assert_eq!((batches.len(), found.len()), (6000, 6000));
    let one = client
        .get(&format!("{READINGS}?labels.name=gpu_5999"))
        .await;
    assert_eq!(one.lines()[0]["batch"]["values"], json!([5999.0]));
    let refusal = client.get(SERIES).await;
    assert!(
        refusal.text.contains("more than 2000 series"),
        "{refusal:?}"
    );
    cluster.stop().await;
}

/// Readings of one series, as older clients post them.
fn readings(name: &str, kind: &str, labels: &Value) -> Value {
    let mut all = json!({"trialId": 1, "name": name, "metricType": kind});
    for (name, value) in labels.as_object().unwrap() {
        all[name] = value.clone();
    }
    json!({"values": [1.5, "NaN"], "batches": [7, 0], "labels": all,
        "timestamps": ["2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z"]})
}

#[expect(clippy::too_many_lines, reason = "one scenario")]
#[tokio::test]
async fn readings_of_older_clients_are_stored_in_the_same_groups() {
    let cluster = Cluster::start().await;
    let (_agent, _spec, task) = running(&cluster).await;
    let client = cluster.determined().await;
    let system = "PROFILER_METRIC_TYPE_SYSTEM";
    let timing = "PROFILER_METRIC_TYPE_TIMING";
    let gpu = json!({"agentId": "a1", "gpuUuid": "GPU-1"});
    let all = json!({"batches": [
        readings("gpu_util", system, &gpu),
        readings("gpu_free_memory", system, &gpu),
        readings("free_memory", system, &json!({"agentId": "a1"})),
        readings("dataloader_next", timing, &json!({})),
    ]});
    assert_eq!(task.post(OLDER, all).await.ok(), json!({}));
    assert_eq!(
        reports(&client, "gpu").await,
        [
            json!({"a1": {"GPU-1": {"gpu_util": 1.5, "gpu_free_memory": 1.5}}}),
            json!({"a1": {"GPU-1": {"gpu_util": "NaN", "gpu_free_memory": "NaN"}}}),
        ]
    );
    assert_eq!(
        reports(&client, "memory").await[0],
        json!({"a1": {"free_memory": 1.5}})
    );
    let posted = client
        .get(&format!("{READINGS}?labels.metricType={timing}"))
        .await
        .lines();
    assert_eq!(posted.len(), 1);
    let batch = &posted[0]["batch"];
    assert_eq!(batch["values"], json!([1.5, "NaN"]));
    assert_eq!(batch["batches"], json!([7, 0]));
    assert_eq!(batch["labels"]["name"], "dataloader_next");

    let odd = |change: fn(&mut Value)| {
        let mut one = readings("gpu_util", "PROFILER_METRIC_TYPE_SYSTEM", &json!({}));
        change(&mut one);
        json!({"batches": [one]})
    };
    for (body, status, text) in [
        (odd(|one| one["values"] = json!([1])), 400, "same length"),
        (
            odd(|one| one["labels"]["metricType"] = json!(0)),
            400,
            "metricType",
        ),
        (odd(|one| one["labels"]["name"] = json!("x")), 400, "gpu_"),
        (
            odd(|one| {
                for list in ["values", "batches"] {
                    one[list] = vec![0; 20_001].into();
                }
                one["timestamps"] = vec!["2026-01-01T00:00:01Z"; 20_001].into();
            }),
            400,
            "20000",
        ),
        (
            odd(|one| {
                one["labels"]["agentId"] = json!("x".repeat(1024));
                for list in ["values", "batches"] {
                    one[list] = vec![0; 5000].into();
                }
                one["timestamps"] = vec!["2026-01-01T00:00:01Z"; 5000].into();
            }),
            400,
            "4 MiB of labels",
        ),
        (odd(|one| one["labels"]["trialId"] = json!(99)), 403, "99"),
    ] {
        let refusal = task.post(OLDER, body).await.refused(status);
        assert!(refusal.contains(text), "{refusal}");
    }
    // Users report for the run that exists.
    let admin = cluster.admin().await;
    admin
        .post(
            OLDER,
            json!({"batches": [readings("gpu_util", system, &gpu)]}),
        )
        .await
        .ok();
    assert_eq!(reports(&client, "gpu").await.len(), 4);
    // Those that become more reports than are made at once are all stored.
    let mut long = readings("disk_util", system, &json!({"agentId": "a1"}));
    for list in ["values", "batches"] {
        long[list] = vec![0; 2500].into();
    }
    let time = |n: u32| format!("2026-01-01T00:{:02}:{:02}Z", n / 60, n % 60);
    long["timestamps"] = (0..2500).map(time).collect();
    let all = json!({"batches": [long]});
    assert_eq!(task.post(OLDER, all).await.ok(), json!({}));
    assert_eq!(reports(&client, "disk").await.len(), 2500);
    // Older code measures itself as well.
    let answer = task.post(PATH, measured("c-1", 10.0, false)).await.ok();
    assert_eq!(answer, json!({"collect": false}));
    cluster.stop().await;
}

#[tokio::test]
async fn followers_see_what_arrives_until_the_trial_ends() {
    let cluster = Cluster::start().await;
    let (mut agent, spec, task) = running(&cluster).await;
    let client = cluster.determined().await;
    let query = "follow=true&labels.name=cpu_util_simple";
    let mut values = client.follow(&format!("{READINGS}?{query}")).await;
    let mut series = client.follow(&format!("{SERIES}?follow=true")).await;
    task.post(PATH, measured("c-1", 10.0, false)).await.ok();
    let first = values.next().await.unwrap();
    assert_eq!(first["batch"]["values"], json!([10.0]));
    assert_eq!(names(&series.next().await.unwrap()).len(), 6);
    task.post(PATH, measured("c-2", 20.0, false)).await.ok();
    let second = values.next().await.unwrap();
    assert_eq!(second["batch"]["values"], json!([20.0]));
    let mut more = measured("c-3", 30.0, false);
    more["agentId"] = json!("a2");
    task.post(PATH, more).await.ok();
    assert_eq!(names(&series.next().await.unwrap()).len(), 12);
    let third = values.next().await.unwrap();
    assert_eq!(third["batch"]["labels"]["agentId"], "a2");
    agent.exits(&spec, 0).await;
    assert_eq!(values.next().await, None);
    assert_eq!(series.next().await, None);
    cluster.stop().await;
}

/// A command that runs on agent `a1`, measured if its configuration asks for it; and its token's client.
async fn command(
    cluster: &Cluster,
    config: Value,
) -> (String, det_taskspec::ContainerSpec, Client) {
    let client = cluster.determined().await;
    let mut agent = cluster.agent("a1", 1).await;
    let mut config = config;
    config["entrypoint"] = json!(["sleep", "100"]);
    let body = json!({"config": config});
    let made = client.post("/api/v1/commands", body).await.ok();
    let id = made["command"]["id"].as_str().unwrap().to_owned();
    let spec = agent.next_start().await;
    agent.runs(&spec).await;
    let task = cluster.client().as_task(&spec.script.token);
    (id, spec, task)
}

fn of_container(numbers: std::ops::RangeInclusive<i64>) -> Value {
    let reports: Vec<Value> = numbers
        .map(|number| {
            json!({"reportId": format!("c-7-{number}"), "time": "2026-01-01T00:00:10Z", "groups": {
                "cpu": {"cpu_util_simple": number}, "disk": {"/": {"disk_util": 40.5}}}})
        })
        .collect();
    json!({"agentId": "a1", "reports": reports})
}

#[tokio::test]
async fn a_command_is_measured_if_its_configuration_asks_for_it() {
    let cluster = Cluster::start().await;
    let (id, spec, _task) = command(&cluster, json!({"profiling": {"enabled": true}})).await;
    let sampling = spec.script.task_metrics.unwrap();
    assert_eq!(
        (sampling.sample_seconds, sampling.samples_per_report),
        (1, 10)
    );
    assert_eq!(spec.script.system_metrics, None);
    let client = cluster.determined().await;
    let shown = client.get(&format!("/api/v1/commands/{id}")).await.ok();
    assert_eq!(shown["config"]["profiling"], json!({"enabled": true}));
    cluster.stop().await;
    let cluster = Cluster::start().await;
    let (_id, spec, _task) = command(&cluster, json!({})).await;
    assert_eq!(spec.script.task_metrics, None);
    cluster.stop().await;
}

#[tokio::test]
async fn what_is_measured_of_a_command_is_stored_once_and_read_by_group_and_page() {
    let cluster = Cluster::start().await;
    let (id, _spec, task) = command(&cluster, json!({})).await;
    let client = cluster.determined().await;
    let path = format!("/api/v1/tasks/{id}/system_metrics");
    assert_eq!(client.get(&path).await.ok(), json!({"metrics": []}));
    for reports in [
        of_container(1..=2),
        of_container(2..=3),
        of_container(3..=3),
    ] {
        assert_eq!(
            task.post(&path, reports).await.ok(),
            json!({"collect": true})
        );
    }
    let found = client.get(&format!("{path}?group=cpu")).await.ok();
    let values: Vec<&Value> = found["metrics"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["values"]["a1"]["cpu_util_simple"])
        .collect();
    assert_eq!(values, [1, 2, 3]);
    let first = &found["metrics"][0];
    assert_eq!(
        (&first["group"], &first["containerId"], &first["time"]),
        (&json!("cpu"), &json!("c-7"), &json!("2026-01-01T00:00:10Z"))
    );
    let whole = client.get(&path).await.ok();
    assert_eq!(whole["metrics"].as_array().unwrap().len(), 6);
    assert_eq!(
        whole["metrics"][1]["values"],
        json!({"a1": {"/": {"disk_util": 40.5}}})
    );

    // More than a page has: each answer has the place to go on from.
    for number in 4..=210 {
        task.post(&path, of_container(number..=number)).await.ok();
    }
    let page = client.get(&format!("{path}?group=cpu")).await.ok();
    let next = page["next"].as_i64().unwrap();
    let rest = client
        .get(&format!("{path}?group=cpu&after={next}"))
        .await
        .ok();
    let count = |page: &Value| page["metrics"].as_array().unwrap().len();
    assert_eq!(count(&page) + count(&rest), 210);
    assert_eq!(rest["next"], Value::Null);
    cluster.stop().await;
}

#[tokio::test]
async fn what_is_measured_of_a_command_is_its_own_and_bounded() {
    let cluster = Cluster::start().await;
    let (id, _spec, task) = command(&cluster, json!({})).await;
    let path = format!("/api/v1/tasks/{id}/system_metrics");
    for (body, text) in [
        (of_container(1..=101), "100 reports"),
        (
            json!({"agentId": "", "reports": of_container(1..=1)["reports"]}),
            "agentId",
        ),
        (
            json!({"agentId": "a1", "reports": [{"reportId": "1", "groups": {"cpu": {}}}]}),
            "reportId",
        ),
        (
            json!({"agentId": "a1", "reports": [{"reportId": "c-1", "groups": {"training": {}}}]}),
            "training",
        ),
    ] {
        let refusal = task.post(&path, body).await.refused(400);
        assert!(refusal.contains(text), "{refusal}");
    }
    let other = "/api/v1/tasks/another/system_metrics";
    task.post(other, of_container(1..=1)).await.refused(403);
    cluster.determined().await.get(other).await.refused(404);
    cluster.stop().await;
}

#[tokio::test]
async fn the_task_of_a_trial_is_measured_as_the_trial() {
    let cluster = Cluster::start().await;
    let (_agent, spec, task) = running(&cluster).await;
    let path = format!("/api/v1/tasks/{}/system_metrics", spec.task_id);
    let refusal = task.post(&path, of_container(1..=1)).await.refused(400);
    assert!(refusal.contains("that of trial 1"), "{refusal}");
    cluster.stop().await;
}
