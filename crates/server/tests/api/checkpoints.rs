//! Checkpoints: reporting, looking at them, changing, deleting and downloading them, and the policy that collects them.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use det_agent_proto::ToAgent;
use det_taskspec::ContainerSpec;
use reqwest::Method;
use serde_json::{Value, json};

use crate::experiments::{config, create};
use crate::support::{Client, Cluster, FakeAgent, Reply, within};
use crate::trials::{metrics, running};

pub(crate) const PATH: &str = "/api/v1/checkpoints";

pub(crate) fn uuid(n: u32) -> String {
    format!("{n:08}-7f7a-4f3e-9c55-3f0f2d9b8a11")
}

pub(crate) fn report(spec: &ContainerSpec, n: u32, step: i64) -> Value {
    json!({"uuid": uuid(n), "taskId": spec.task_id.as_str(), "allocationId": spec.allocation_id.as_str(),
        "metadata": {"steps_completed": step, "framework": "none"},
        "resources": {"d/": "0", "d/m.txt": "5", "metadata.json": "2"}, "training": {}, "reportTime": null,
        "state": "STATE_COMPLETED", "storageId": null})
}

pub(crate) async fn send(client: &Client, method: Method, path: &str, body: Value) -> Reply {
    let response = client.send(method, path, Some(body.to_string())).await;
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Reply {
        status,
        headers,
        text: within(path, response.text()).await.unwrap(),
    }
}

/// Where the files of an experiment's checkpoints are.
async fn storage(client: &Client) -> PathBuf {
    let experiment = client.get("/api/v1/experiments/1").await.ok();
    PathBuf::from(
        experiment["config"]["checkpoint_storage"]["host_path"]
            .as_str()
            .unwrap(),
    )
}

pub(crate) fn write_files(storage: &Path, n: u32) -> PathBuf {
    let directory = storage.join(uuid(n));
    std::fs::create_dir_all(directory.join("d")).unwrap();
    std::fs::write(directory.join("d/m.txt"), b"hello").unwrap();
    std::fs::write(directory.join("metadata.json"), b"{}").unwrap();
    directory
}

/// A running trial with a checkpoint at each of these steps, numbered from 1, with its files.
pub(crate) async fn world(
    cluster: &Cluster,
    steps: &[i64],
) -> (FakeAgent, ContainerSpec, Client, PathBuf) {
    let (agent, spec, task) = running(cluster).await;
    let storage = storage(&cluster.admin().await).await;
    for (n, step) in (1..).zip(steps) {
        write_files(&storage, n);
        task.post(PATH, report(&spec, n, *step)).await.ok();
    }
    (agent, spec, task, storage)
}

#[tokio::test]
async fn a_checkpoint_is_reported_once_and_shown_with_its_training() {
    let cluster = Cluster::start().await;
    let (_agent, spec, task, _) = world(&cluster, &[2]).await;
    let client = cluster.admin().await;
    assert_eq!(
        task.post(PATH, report(&spec, 1, 2)).await.ok(),
        json!({}),
        "a repeat changes nothing"
    );
    // The validation of its step comes after the checkpoint.
    task.post(
        "/api/v1/trials/1/metrics",
        metrics("training", 1, 2, &json!({"loss": 0.9})),
    )
    .await
    .ok();
    task.post(
        "/api/v1/trials/1/metrics",
        metrics("validation", 1, 2, &json!({"loss": 0.7})),
    )
    .await
    .ok();

    let path = format!("{PATH}/{}", uuid(1));
    let shown = client.get(&path).await.ok()["checkpoint"].clone();
    assert_eq!(shown["state"], "STATE_COMPLETED");
    assert_eq!(
        shown["resources"],
        json!({"d/": "0", "d/m.txt": "5", "metadata.json": "2"})
    );
    assert_eq!(
        shown["metadata"],
        json!({"steps_completed": 2, "framework": "none"})
    );
    assert_eq!(shown["allocationId"], spec.allocation_id.as_str());
    let training = &shown["training"];
    assert_eq!(
        (&training["trialId"], &training["experimentId"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(training["validationMetrics"]["avgMetrics"]["loss"], 0.7);
    assert_eq!(training["trainingMetrics"]["avgMetrics"]["loss"], 0.9);
    assert_eq!(training["searcherMetric"], 0.7);
    assert_eq!(
        training["experimentConfig"]["checkpoint_storage"]["type"],
        "shared_fs"
    );

    let trial = client.get("/api/v1/trials/1").await.ok()["trial"].clone();
    assert_eq!(
        (&trial["checkpointCount"], &trial["totalCheckpointSize"]),
        (&json!(1), &json!("7"))
    );
    assert_eq!(trial["bestCheckpoint"]["uuid"], uuid(1));
    assert_eq!(
        client.get("/api/v1/experiments/1").await.ok()["experiment"]["checkpointSize"],
        "7"
    );
    assert!(
        client
            .get(&format!("{PATH}/{}", uuid(99)))
            .await
            .refused(404)
            .contains(&uuid(99))
    );
    assert!(
        client
            .get(&format!("{PATH}/x"))
            .await
            .refused(400)
            .contains("checkpointUuid")
    );
    client.assert_needs_token(Method::GET, &path).await;
    client.assert_needs_token(Method::POST, PATH).await;
    cluster.stop().await;
}

#[tokio::test]
async fn what_a_report_gets_wrong_is_named() {
    let cluster = Cluster::start().await;
    let (_agent, spec, task, _) = world(&cluster, &[2]).await;
    let with = |key: &str, value: Value| {
        let mut body = report(&spec, 5, 1);
        body[key] = value;
        body
    };
    for (status, body, expected) in [
        (400, with("uuid", json!("../x")), "uuid"),
        (400, with("metadata", json!({})), "metadata.steps_completed"),
        (400, with("state", json!("STATE_DELETED")), "state"),
        (400, with("taskId", Value::Null), "taskId"),
        (400, with("resources", json!({"a": "-1"})), "resources"),
        (400, with("resources", json!({"a": "many"})), "resources"),
        (403, with("taskId", json!("1.other")), "1.other"),
        (409, report(&spec, 1, 3), "steps_completed 2"),
    ] {
        let message = task.post(PATH, body.clone()).await.refused(status);
        assert!(message.contains(expected), "{body}: {message}");
    }
    let person = cluster.admin().await;
    assert!(
        person
            .post(PATH, with("taskId", json!("1.other")))
            .await
            .refused(404)
            .contains("1.other")
    );
    cluster.stop().await;
}

#[tokio::test]
async fn an_older_run_reports_no_checkpoints() {
    let cluster = Cluster::start().await;
    let (mut agent, spec, task, _) = world(&cluster, &[2]).await;
    let client = cluster.admin().await;
    client
        .post("/api/v1/experiments/1/pause", Value::Null)
        .await
        .ok();
    agent.next_kill().await;
    agent.exits(&spec, 137).await;
    client
        .post("/api/v1/experiments/1/activate", Value::Null)
        .await
        .ok();
    let again = loop {
        if let ToAgent::Start(spec) = agent.receive().await {
            break spec;
        }
    };
    assert_ne!(again.allocation_id, spec.allocation_id);
    let message = task.post(PATH, report(&spec, 7, 5)).await.refused(400);
    assert!(message.contains("run 1 of trial 1 is over"), "{message}");
    task.post(PATH, report(&spec, 1, 2)).await.ok();
    let newer = cluster.client().as_task(&again.script.token);
    newer.post(PATH, report(&again, 8, 5)).await.ok();
    cluster.stop().await;
}

#[tokio::test]
async fn checkpoints_are_listed_filtered_and_sorted() {
    let cluster = Cluster::start().await;
    let (_agent, _spec, task, _) = world(&cluster, &[1, 2, 3]).await;
    for (step, loss) in [(1, 0.5), (3, 0.1)] {
        task.post(
            "/api/v1/trials/1/metrics",
            metrics(
                "validation",
                1,
                step,
                &json!({"loss": loss, "accuracy": loss}),
            ),
        )
        .await
        .ok();
    }
    let client = cluster.admin().await;
    let left = json!({"checkpoints": [{"uuid": uuid(2), "resources": {"resources": {}}}]});
    send(&client, Method::PATCH, PATH, left).await.ok();
    let listed = async |path: &str| -> Vec<i64> {
        let answer = client.get(path).await.ok();
        let all = answer["checkpoints"].as_array().unwrap();
        all.iter()
            .map(|c| c["metadata"]["steps_completed"].as_i64().unwrap())
            .collect()
    };
    for base in [
        "/api/v1/experiments/1/checkpoints",
        "/api/v1/trials/1/checkpoints",
    ] {
        for (query, expected) in [
            ("", vec![3, 1, 2]),
            ("sortByAttr=SORT_BY_SEARCHER_METRIC", vec![3, 1, 2]),
            ("sortByMetric=accuracy&orderBy=ORDER_BY_DESC", vec![1, 3, 2]),
            (
                "sortByAttr=SORT_BY_BATCH_NUMBER&orderBy=ORDER_BY_DESC",
                vec![3, 2, 1],
            ),
            ("sortByAttr=SORT_BY_UUID&states=STATE_COMPLETED", vec![1, 3]),
            ("sortByAttr=SORT_BY_UUID&states=STATE_DELETED", vec![2]),
            ("sortByAttr=SORT_BY_UUID&offset=-1", vec![3]),
            ("sortByAttr=SORT_BY_UUID&limit=1&offset=1", vec![2]),
        ] {
            assert_eq!(
                listed(&format!("{base}?{query}")).await,
                expected,
                "{base} {query}"
            );
        }
        let both = format!("{base}?sortByAttr=SORT_BY_UUID&sortByMetric=loss");
        assert!(
            client
                .get(&both)
                .await
                .refused(400)
                .contains("sortByMetric")
        );
        assert!(
            client
                .get(&base.replace("/1/", "/99/"))
                .await
                .refused(404)
                .contains("99")
        );
        client.assert_needs_token(Method::GET, base).await;
    }
    cluster.stop().await;
}

#[tokio::test]
async fn metadata_are_replaced_and_losses_noted() {
    let cluster = Cluster::start().await;
    let (_agent, _spec, task, _) = world(&cluster, &[2]).await;
    let client = cluster.admin().await;
    let path = format!("{PATH}/{}/metadata", uuid(1));
    let body = json!({"checkpoint": {"uuid": uuid(1), "metadata": {"mine": 1}, "resources": {}, "training": {}}});
    let changed = client.post(&path, body).await.ok()["checkpoint"].clone();
    assert_eq!(
        changed["metadata"],
        json!({"mine": 1, "steps_completed": 2})
    );
    assert_eq!(
        changed["resources"]["d/m.txt"], "5",
        "the rest of the body is ignored"
    );
    assert!(
        client
            .post(&format!("{PATH}/{}/metadata", uuid(9)), json!({}))
            .await
            .refused(404)
            .contains(&uuid(9))
    );
    client.assert_needs_token(Method::POST, &path).await;

    let patch = async |client: &Client, resources: Value| {
        send(
            client,
            Method::PATCH,
            PATH,
            json!({"checkpoints": [{"uuid": uuid(1), "resources": resources}]}),
        )
        .await
    };
    let state = async || {
        client.get(&format!("{PATH}/{}", uuid(1))).await.ok()["checkpoint"]["state"].clone()
    };
    patch(&task, Value::Null).await.ok();
    patch(
        &task,
        json!({"resources": {"d/": 0, "d/m.txt": 5, "metadata.json": 2}}),
    )
    .await
    .ok();
    assert_eq!(state().await, "STATE_COMPLETED", "nothing has changed");
    patch(&task, json!({"resources": {"d/": 0, "metadata.json": 2}}))
        .await
        .ok();
    assert_eq!(state().await, "STATE_PARTIALLY_DELETED");
    patch(&task, json!({"resources": {}})).await.ok();
    assert_eq!(state().await, "STATE_DELETED");
    assert_eq!(
        client.get("/api/v1/trials/1").await.ok()["trial"]["checkpointCount"],
        0
    );
    let unknown = json!({"checkpoints": [{"uuid": uuid(9), "resources": null}]});
    assert!(
        send(&client, Method::PATCH, PATH, unknown)
            .await
            .refused(404)
            .contains(&uuid(9))
    );
    let wrong = json!({"checkpoints": [{"uuid": uuid(1), "resources": {"resources": {"x": -1}}}]});
    assert!(
        send(&client, Method::PATCH, PATH, wrong)
            .await
            .refused(400)
            .contains("checkpoints[0].resources")
    );
    client.assert_needs_token(Method::PATCH, PATH).await;
    cluster.stop().await;
}

#[tokio::test]
async fn files_are_deleted_in_part_and_whole() {
    let cluster = Cluster::start().await;
    let (_agent, _spec, _task, storage) = world(&cluster, &[1, 2]).await;
    let client = cluster.admin().await;
    let rm = format!("{PATH}/rm");
    for (body, expected) in [
        (
            json!({"checkpointUuids": [], "checkpointGlobs": ["*"]}),
            "checkpointUuids",
        ),
        (
            json!({"checkpointUuids": ["x"], "checkpointGlobs": ["*"]}),
            "checkpointUuids[0]",
        ),
        (
            json!({"checkpointUuids": [uuid(1)], "checkpointGlobs": ["../*"]}),
            "checkpointGlobs[0]",
        ),
    ] {
        assert!(
            client
                .post(&rm, body.clone())
                .await
                .refused(400)
                .contains(expected),
            "{body}"
        );
    }
    let some = json!({"checkpointUuids": [uuid(1)], "checkpointGlobs": ["d/*.txt"]});
    assert_eq!(client.post(&rm, some.clone()).await.ok(), json!({}));
    let left = client.get(&format!("{PATH}/{}", uuid(1))).await.ok()["checkpoint"].clone();
    assert_eq!(
        (&left["state"], &left["resources"]),
        (
            &json!("STATE_PARTIALLY_DELETED"),
            &json!({"d/": "0", "metadata.json": "2"})
        )
    );
    assert!(!storage.join(uuid(1)).join("d/m.txt").exists());
    client.post(&rm, some).await.ok();

    let both = json!({"checkpointUuids": [uuid(1), uuid(2)]});
    assert_eq!(
        send(&client, Method::DELETE, PATH, both.clone()).await.ok(),
        json!({})
    );
    assert!(!storage.join(uuid(1)).exists() && !storage.join(uuid(2)).exists());
    for (n, had) in [
        (1, json!({"d/": "0", "metadata.json": "2"})),
        (2, json!({"d/": "0", "d/m.txt": "5", "metadata.json": "2"})),
    ] {
        let shown = client.get(&format!("{PATH}/{}", uuid(n))).await.ok();
        assert_eq!(shown["checkpoint"]["state"], "STATE_DELETED");
        assert_eq!(
            shown["checkpoint"]["resources"], had,
            "it keeps the list of what it had"
        );
    }
    assert_eq!(sizes(&client).await, (0, json!("0"), json!("0")));
    send(&client, Method::DELETE, PATH, both).await.ok();
    let unknown = json!({"checkpointUuids": [uuid(9)]});
    assert!(
        send(&client, Method::DELETE, PATH, unknown)
            .await
            .refused(404)
            .contains(&uuid(9))
    );
    client.assert_needs_token(Method::DELETE, PATH).await;
    client.assert_needs_token(Method::POST, &rm).await;
    cluster.stop().await;
}

/// Checkpoints of the trial, and their bytes as the trial and the experiment show them.
pub(crate) async fn sizes(client: &Client) -> (i64, Value, Value) {
    let trial = client.get("/api/v1/trials/1").await.ok()["trial"].clone();
    let experiment = client.get("/api/v1/experiments/1").await.ok()["experiment"].clone();
    (
        trial["checkpointCount"].as_i64().unwrap(),
        trial["totalCheckpointSize"].clone(),
        experiment["checkpointSize"].clone(),
    )
}

#[tokio::test]
async fn a_checkpoint_that_a_trial_started_from_stays() {
    let cluster = Cluster::start().await;
    let (_agent, _spec, _task, storage) = world(&cluster, &[1]).await;
    let client = cluster.admin().await;
    let mut child = config("child");
    child["searcher"]["source_checkpoint_uuid"] = json!(uuid(1));
    create(&client, &child, false).await;
    let message = send(
        &client,
        Method::DELETE,
        PATH,
        json!({"checkpointUuids": [uuid(1)]}),
    )
    .await
    .refused(400);
    assert!(message.contains("a trial was started from it"), "{message}");
    assert!(storage.join(uuid(1)).exists());
    cluster.stop().await;
}

#[tokio::test]
async fn a_checkpoint_is_downloaded_as_the_client_unpacks_it() {
    let cluster = Cluster::start().await;
    let (_agent, spec, task, storage) = world(&cluster, &[1]).await;
    std::fs::write(storage.join(uuid(1)).join("unreported"), b"x").unwrap();
    let client = cluster.admin().await;
    let path = format!("/checkpoints/{}", uuid(1));
    let fetch = async |accept: &str| -> reqwest::Response {
        let request = reqwest::Client::new()
            .get(format!("http://{}{path}", cluster.master_address()))
            .header("Authorization", format!("Bearer {}", client.token()))
            .header("Accept", accept)
            .header("Accept-Encoding", "gzip, deflate");
        within(&path, request.send()).await.unwrap()
    };
    let archive = fetch("application/gzip").await;
    assert_eq!(archive.status(), 200);
    assert_eq!(archive.headers()["content-type"], "application/gzip");
    assert_eq!(
        archive
            .headers()
            .get("content-encoding")
            .map(|v| v.to_str().unwrap()),
        Some("identity")
    );
    let data = archive.bytes().await.unwrap();
    let mut found = BTreeMap::new();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&data[..]));
    let mut first = None;
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().display().to_string();
        first.get_or_insert_with(|| name.clone());
        let mut content = String::new();
        entry.read_to_string(&mut content).unwrap();
        found.insert(name, content);
    }
    assert_eq!(first.as_deref(), Some("d/"), "directories come first");
    assert_eq!(found["d/m.txt"], "hello");
    assert_eq!(found["metadata.json"], "{}");
    assert!(
        !found.contains_key("unreported"),
        "a checkpoint is what was reported of it"
    );

    assert_eq!(
        fetch("*/*").await.headers()["content-type"],
        "application/x-tar"
    );
    assert_eq!(
        &fetch("application/zip").await.bytes().await.unwrap()[..4],
        b"PK\x03\x04"
    );
    assert_eq!(fetch("text/html").await.status(), 415);
    assert!(
        client
            .get("/checkpoints/x")
            .await
            .refused(400)
            .contains("checkpointUuid")
    );
    assert!(
        client
            .get(&format!("/checkpoints/{}", uuid(9)))
            .await
            .refused(404)
            .contains(&uuid(9))
    );
    task.post(PATH, report(&spec, 5, 9)).await.ok();
    assert!(
        client
            .get(&format!("/checkpoints/{}", uuid(5)))
            .await
            .refused(404)
            .contains("files")
    );
    client.assert_needs_token(Method::GET, &path).await;
    cluster.stop().await;
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one history, step by step")]
async fn the_policy_collects_at_the_end_and_deletion_takes_the_rest() {
    let cluster = Cluster::start().await;
    let (mut agent, spec, task, storage) = world(&cluster, &[1, 2, 3, 4]).await;
    for (step, loss) in [(1, 0.1), (2, 0.5)] {
        task.post(
            "/api/v1/trials/1/metrics",
            metrics("validation", 1, step, &json!({"loss": loss})),
        )
        .await
        .ok();
    }
    let client = cluster.admin().await;
    let preview = async |query: &str| -> Value {
        client
            .get(&format!("/experiments/1/preview_gc?{query}"))
            .await
            .ok()
    };
    let would = preview("save_experiment_best=0&save_trial_best=2&save_trial_latest=0").await;
    assert_eq!(would["metric_name"], "loss");
    let steps = |answer: &Value| -> Vec<i64> {
        answer["checkpoints"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| c["StepsCompleted"].as_i64().unwrap())
            .collect()
    };
    assert_eq!(steps(&would), [3, 4]);
    let would = preview("").await;
    assert_eq!(
        steps(&would),
        [2, 3],
        "the experiment's own policy keeps the best and the latest"
    );
    let validated = &would["checkpoints"][0];
    assert_eq!(
        (&validated["TrialID"], &validated["UUID"]),
        (&json!(1), &json!(uuid(2)))
    );
    assert_eq!(validated["ValidationMetrics"]["loss"], 0.5);
    assert!(
        validated["step"]["validation"].is_object()
            && would["checkpoints"][1]["step"]["validation"].is_null()
    );
    assert!(
        client
            .get("/experiments/1/preview_gc?save_trial_best=-1")
            .await
            .refused(400)
            .contains("save_trial_best")
    );
    assert!(
        client
            .get("/experiments/99/preview_gc")
            .await
            .refused(404)
            .contains("99")
    );
    client
        .assert_needs_token(Method::GET, "/experiments/1/preview_gc")
        .await;

    agent.exits(&spec, 0).await;
    cluster
        .until(&client, "/api/v1/experiments/1", |e| {
            e["experiment"]["checkpointCount"] == 2
        })
        .await;
    for (n, kept) in [(1, true), (2, false), (3, false), (4, true)] {
        assert_eq!(storage.join(uuid(n)).exists(), kept, "checkpoint {n}");
    }
    // Another policy on an ended experiment is applied at once.
    let policy = json!({"checkpointStorage": {"saveTrialLatest": 0}});
    client.patch("/api/v1/experiments/1", policy).await.ok();
    cluster
        .until(&client, "/api/v1/experiments/1", |e| {
            e["experiment"]["checkpointCount"] == 1
        })
        .await;
    assert!(storage.join(uuid(1)).exists() && !storage.join(uuid(4)).exists());

    let tensorboard = storage
        .join(cluster.master().identity.cluster_id.as_str())
        .join("tensorboard/experiment/1/trial/1");
    std::fs::create_dir_all(&tensorboard).unwrap();
    send(
        &client,
        Method::DELETE,
        "/api/v1/experiments/1",
        Value::Null,
    )
    .await
    .ok();
    cluster
        .until(&client, "/api/v1/experiments", |all| {
            all["pagination"]["total"] == 0
        })
        .await;
    assert!(!storage.join(uuid(1)).exists() && !tensorboard.exists());
    assert!(
        client
            .get(&format!("{PATH}/{}", uuid(1)))
            .await
            .refused(404)
            .contains(&uuid(1))
    );
    cluster.stop().await;
}

#[tokio::test]
async fn an_experiment_whose_checkpoints_are_needed_is_not_deleted() {
    let cluster = Cluster::start().await;
    let (mut agent, spec, _task, storage) = world(&cluster, &[1]).await;
    let client = cluster.admin().await;
    let mut child = config("child");
    child["searcher"]["source_checkpoint_uuid"] = json!(uuid(1));
    create(&client, &child, false).await;
    agent.exits(&spec, 0).await;
    cluster
        .until(&client, "/api/v1/experiments/1", |e| {
            e["experiment"]["state"] == "STATE_COMPLETED"
        })
        .await;
    send(
        &client,
        Method::DELETE,
        "/api/v1/experiments/1",
        Value::Null,
    )
    .await
    .ok();
    cluster
        .until(&client, "/api/v1/experiments/1", |e| {
            e["experiment"]["state"] == "STATE_DELETE_FAILED"
        })
        .await;
    assert!(storage.join(uuid(1)).exists());
    client
        .post("/api/v1/experiments/2/kill", Value::Null)
        .await
        .ok();
    send(
        &client,
        Method::DELETE,
        "/api/v1/experiments/2",
        Value::Null,
    )
    .await
    .ok();
    cluster
        .until(&client, "/api/v1/experiments", |all| {
            all["pagination"]["total"] == 1
        })
        .await;
    send(
        &client,
        Method::DELETE,
        "/api/v1/experiments/1",
        Value::Null,
    )
    .await
    .ok();
    cluster
        .until(&client, "/api/v1/experiments", |all| {
            all["pagination"]["total"] == 0
        })
        .await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_workspace_that_could_not_be_deleted_shows_why_and_goes_when_it_can() {
    let cluster = Cluster::start().await;
    let (mut agent, spec, _task, _storage) = world(&cluster, &[1]).await;
    let client = cluster.admin().await;
    let mut child = config("child");
    child["searcher"]["source_checkpoint_uuid"] = json!(uuid(1));
    create(&client, &child, false).await;
    agent.exits(&spec, 0).await;
    cluster
        .until(&client, "/api/v1/experiments/1", |e| {
            e["experiment"]["state"] == "STATE_COMPLETED"
        })
        .await;
    let made = super::workspaces::workspace(&client, json!({"name": "w"})).await;
    let path = format!("/api/v1/workspaces/{}", made["id"]);
    let project = super::workspaces::project(&client, &made, "p").await;
    let body = json!({"destinationProjectId": project});
    client
        .post("/api/v1/experiments/1/move", body.clone())
        .await
        .ok();
    assert_eq!(client.delete(&path).await.ok()["completed"], false);
    let failed = cluster
        .until(&client, &path, |w| {
            w["workspace"]["state"] == "WORKSPACE_STATE_DELETE_FAILED"
        })
        .await;
    let why = failed["workspace"]["errorMessage"].as_str().unwrap();
    assert!(
        why.contains("experiment 1 could not be deleted") && why.contains(&uuid(1)),
        "{why}"
    );
    let shown = client.get(&format!("/api/v1/projects/{project}")).await;
    assert_eq!(
        shown.ok()["project"]["state"],
        "WORKSPACE_STATE_DELETE_FAILED"
    );
    // With the one that needs the checkpoint out of the way.
    client
        .post("/api/v1/experiments/2/kill", Value::Null)
        .await
        .ok();
    client.post("/api/v1/experiments/2/move", body).await.ok();
    client.delete("/api/v1/experiments/2").await.ok();
    cluster
        .until(&client, "/api/v1/experiments", |all| {
            all["pagination"]["total"] == 1
        })
        .await;
    assert_eq!(client.delete(&path).await.ok()["completed"], false);
    cluster
        .until(&client, "/api/v1/workspaces", |all| {
            all["pagination"]["total"] == 1
        })
        .await;
    cluster.stop().await;
}
