//! Tasks.

use std::io::Read;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use serde_json::json;

use crate::support::Cluster;

#[tokio::test]
async fn a_task_shows_its_attempts() {
    let cluster = Cluster::start().await;
    let (mut agent, spec) = cluster.running_task().await;
    let client = cluster.determined().await;
    let path = format!("/api/v1/tasks/{}", spec.task_id);
    let task = cluster
        .until(&client, &path, |t| {
            t["task"]["allocations"][0]["state"] == "STATE_RUNNING"
        })
        .await["task"]
        .clone();
    assert_eq!(
        (&task["taskType"], &task["endTime"]),
        (&json!("TASK_TYPE_TRIAL"), &json!(null))
    );
    let attempt = &task["allocations"][0];
    assert_eq!(
        (attempt["allocationId"].as_str(), &attempt["isReady"]),
        (Some(spec.allocation_id.as_str()), &json!(false))
    );
    assert_eq!(
        (&attempt["slots"], &attempt["endTime"]),
        (&json!(1), &json!(null))
    );

    let ready = format!("/api/v1/allocations/{}/ready", spec.allocation_id);
    cluster
        .client()
        .as_task(&spec.script.token)
        .post(&ready, json!(null))
        .await
        .ok();
    assert_eq!(
        client.get(&path).await.ok()["task"]["allocations"][0]["isReady"],
        true
    );

    agent.exits(&spec, 0).await;
    let ended = cluster
        .until(&client, &path, |t| t["task"]["endTime"].is_string())
        .await;
    assert_eq!(ended["task"]["allocations"][0]["state"], "STATE_TERMINATED");
    assert_eq!(ended["task"]["allocations"][0]["statusCode"], 0);
    assert!(
        client
            .get("/api/v1/tasks/9.none")
            .await
            .refused(404)
            .contains("9.none")
    );
    cluster.stop().await;
}

#[tokio::test]
async fn live_allocations_are_summarised() {
    let cluster = Cluster::start().await;
    let (_agent, spec) = cluster.running_task().await;
    let waits = cluster.experiment("waits", 1).await;
    let (_, waiting) = cluster.task_of(waits).await;
    let client = cluster.determined().await;
    let tasks = cluster
        .until(&client, "/api/v1/tasks", |t| {
            t["allocationIdToSummary"][waiting.id.as_str()]["waitReason"].is_object()
                && t["allocationIdToSummary"][spec.allocation_id.as_str()]["resources"][0]["started"].is_object()
        })
        .await;
    let runs = &tasks["allocationIdToSummary"][spec.allocation_id.as_str()];
    assert_eq!(
        (&runs["name"], &runs["slotsNeeded"]),
        (&json!("Trial 1 (Experiment 1)"), &json!(1))
    );
    let container = &runs["resources"][0];
    assert_eq!(container["containerId"], spec.container_id.as_str());
    assert_eq!(
        container["agentDevices"]["a1"]["devices"][0]["uuid"],
        "a1-0"
    );
    assert_eq!(container["started"]["addresses"][0]["hostPort"], 41_734);
    let waits = &tasks["allocationIdToSummary"][waiting.id.as_str()];
    assert_eq!(
        (&waits["resources"], &waits["waitReason"]["kind"]),
        (&json!([]), &json!("not_enough_free_slots"))
    );
    let counts = client.get("/api/v1/tasks/count").await.ok();
    assert_eq!(
        counts,
        json!({"commands": 0, "notebooks": 0, "shells": 0, "tensorboards": 0})
    );
    cluster.stop().await;
}

#[tokio::test]
async fn the_context_is_the_model_definition() {
    let cluster = Cluster::start().await;
    let (_agent, spec) = cluster.running_task().await;
    let task = cluster.client().as_task(&spec.script.token);
    let answer = task
        .get(&format!("/api/v1/tasks/{}/context_directory", spec.task_id))
        .await
        .ok();
    let archive = STANDARD.decode(answer["b64Tgz"].as_str().unwrap()).unwrap();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&archive[..]));
    let mut entry = archive.entries().unwrap().next().unwrap().unwrap();
    let mut text = String::new();
    entry.read_to_string(&mut text).unwrap();
    assert_eq!(
        (entry.path().unwrap().to_str(), text.as_str()),
        (Some("train.py"), "print('hello')\n")
    );
    assert!(
        task.get("/api/v1/tasks/9.none/context_directory")
            .await
            .refused(404)
            .contains("9.none")
    );
    cluster.stop().await;
}

#[tokio::test]
async fn accelerators_are_reported_by_containers() {
    let cluster = Cluster::start().await;
    let (_agent, spec) = cluster.running_task().await;
    let client = cluster.determined().await;
    let path = format!("/api/v1/tasks/{}/acceleratorData", spec.task_id);
    assert_eq!(client.get(&path).await.ok(), json!({"acceleratorData": []}));
    let reported = json!({"allocationId": spec.allocation_id, "acceleratorData": {
        "acceleratorType": "NVIDIA H200", "acceleratorUuids": ["GPU-1"], "allocationId": spec.allocation_id,
        "containerId": spec.container_id, "nodeName": "node", "taskId": spec.task_id,
    }});
    let post = format!("/api/v1/allocations/{}/acceleratorData", spec.allocation_id);
    let task = cluster.client().as_task(&spec.script.token);
    let mut large = reported.clone();
    task.post(&post, reported).await.ok();
    large["acceleratorData"]["acceleratorUuids"] = json!(vec!["x".repeat(1_000); 100]);
    let sentence = task.post(&post, large).await.refused(400);
    assert!(sentence.contains("at most 32768 are stored"), "{sentence}");
    let data = client.get(&path).await.ok()["acceleratorData"][0].clone();
    assert_eq!(
        (&data["acceleratorType"], &data["acceleratorUuids"]),
        (&json!("NVIDIA H200"), &json!(["GPU-1"]))
    );
    assert_eq!(
        (&data["nodeName"], &data["resourcePool"]),
        (&json!("node"), &json!("default"))
    );
    assert!(
        client
            .get("/api/v1/tasks/9.none/acceleratorData")
            .await
            .refused(404)
            .contains("9.none")
    );
    cluster.stop().await;
}

#[tokio::test]
async fn a_token_is_needed() {
    let cluster = Cluster::start().await;
    for path in [
        "",
        "/count",
        "/t",
        "/t/context_directory",
        "/t/acceleratorData",
    ] {
        cluster
            .client()
            .assert_needs_token(Method::GET, &format!("/api/v1/tasks{path}"))
            .await;
    }
    cluster.stop().await;
}
