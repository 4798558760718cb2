//! Generic tasks: pauses, parts and forks.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{create, launch, started, user};
use crate::support::{Client, Cluster};

async fn until_state(cluster: &Cluster, client: &Client, id: &str, state: &str) -> Value {
    let path = format!("/api/v1/tasks/{id}");
    let is = |answer: &Value| answer["task"]["taskState"] == state;
    cluster.until(client, &path, is).await["task"].clone()
}

#[tokio::test]
async fn a_generic_task_is_previewed_and_nothing_is_launched() {
    let cluster = Cluster::start().await;
    let ada = user(&cluster, "ada").await;
    let config = "entrypoint: ['true']\nenvironment: {environment_variables: [SECRET_TOKEN=x]}";
    let template = json!({"resources": {"slots": 3, "priority": 7}, "description": "base"});
    let template = json!({"name": "base", "config": template});
    ada.post("/api/v1/templates/base", template).await.ok();
    let body = json!({"config": config, "preview": true, "templateName": "base"});
    let shown = ada.post("/api/v1/generic-tasks", body).await.ok();
    assert_eq!(shown["taskId"], "");
    let complete: Value = serde_json::from_str(shown["config"].as_str().unwrap()).unwrap();
    assert_eq!(complete["entrypoint"], json!(["true"]));
    assert_eq!(complete["resources"]["resource_pool"], "default");
    assert_eq!(complete["resources"]["slots"], 3);
    assert_eq!(complete["description"], "base");
    let missing = json!({"config": config, "templateName": "none"});
    let refusal = ada
        .post("/api/v1/generic-tasks", missing)
        .await
        .refused(404);
    assert!(refusal.contains("none"), "{refusal}");
    let listed = ada.get("/api/v1/tasks").await.ok();
    assert_eq!(listed["allocationIdToSummary"], json!({}));
    let wrong = json!({"config": "entrypoint: []", "preview": true});
    ada.post("/api/v1/generic-tasks", wrong).await.refused(400);
    cluster.stop().await;
}

#[tokio::test]
async fn a_generic_task_is_paused_activated_and_killed_with_its_children() {
    let cluster = Cluster::start().await;
    let ada = user(&cluster, "ada").await;
    let mut agent = cluster.agent("a1", 4).await;
    let parent = create(&ada, json!({})).await;
    let of_parent = started(&mut agent).await;
    let child = create(&ada, json!({"parentId": parent})).await;
    let of_child = started(&mut agent).await;
    let stubborn = create(&ada, json!({"parentId": child, "noPause": true})).await;
    let of_stubborn = started(&mut agent).await;

    let path = |id: &str, verb: &str| format!("/api/v1/tasks/{id}/{verb}");
    let refusal = ada
        .post(&path(&stubborn, "pause"), Value::Null)
        .await
        .refused(400);
    assert!(refusal.contains("never paused"), "{refusal}");
    ada.post(&path(&parent, "pause"), Value::Null).await.ok();
    // The parent first, then what belongs to it.
    for _ in 0..2 {
        agent.next_kill().await;
    }
    for spec in [&of_parent, &of_child] {
        agent.exits(spec, 137).await;
        agent.forgets(spec).await;
    }
    until_state(&cluster, &ada, &parent, "GENERIC_TASK_STATE_PAUSED").await;
    let task = until_state(&cluster, &ada, &child, "GENERIC_TASK_STATE_PAUSED").await;
    assert_eq!(task["parentId"], parent);
    assert_eq!(task["endTime"], Value::Null);
    let listed = ada.get("/api/v1/tasks").await.ok();
    let paused = listed["pausedTasks"].as_array().unwrap();
    let ids: Vec<&Value> = paused.iter().map(|task| &task["taskId"]).collect();
    assert!(
        ids.contains(&&json!(parent)) && ids.contains(&&json!(child)),
        "{listed}"
    );
    assert_eq!(ids.len(), 2);
    until_state(&cluster, &ada, &stubborn, "GENERIC_TASK_STATE_ACTIVE").await;

    ada.post(&path(&parent, "unpause"), Value::Null).await.ok();
    for _ in 0..2 {
        let again = started(&mut agent).await;
        assert!(again.allocation_id.as_str().ends_with(".2"));
    }

    ada.post(&path(&child, "kill"), json!({"killFromRoot": true}))
        .await
        .ok();
    for _ in 0..3 {
        agent.next_kill().await;
    }
    agent.exits(&of_stubborn, 137).await;
    until_state(&cluster, &ada, &stubborn, "GENERIC_TASK_STATE_CANCELED").await;
    let refusal = ada
        .post(
            "/api/v1/generic-tasks",
            json!({"config": "entrypoint: [x]", "parentId": stubborn}),
        )
        .await
        .refused(400);
    assert!(refusal.contains("has ended"), "{refusal}");
    cluster.stop().await;
}

#[tokio::test]
async fn a_part_follows_a_paused_task_from_its_beginning_and_is_killed_with_one_that_has_ended() {
    let cluster = Cluster::start().await;
    let ada = user(&cluster, "ada").await;
    let mut agent = cluster.agent("a1", 4).await;
    let parent = create(&ada, json!({})).await;
    let first = started(&mut agent).await;
    let path = |id: &str, verb: &str| format!("/api/v1/tasks/{id}/{verb}");
    ada.post(&path(&parent, "pause"), Value::Null).await.ok();
    agent.next_kill().await;
    agent.exits(&first, 137).await;
    agent.forgets(&first).await;
    until_state(&cluster, &ada, &parent, "GENERIC_TASK_STATE_PAUSED").await;

    let request = json!({"config": "entrypoint: [x]", "parentId": parent});
    let made = ada.post("/api/v1/generic-tasks", request).await.ok();
    let notice = format!("`det task unpause {parent}` lets both go on");
    let mut messages = made["messages"].as_array().unwrap().iter();
    assert!(
        messages.any(|it| it.as_str().is_some_and(|it| it.contains(&notice))),
        "{made}"
    );
    let part = made["taskId"].as_str().unwrap().to_owned();
    let task = until_state(&cluster, &ada, &part, "GENERIC_TASK_STATE_PAUSED").await;
    assert_eq!(task["allocations"], json!([]));
    // What a pause does not reach starts.
    create(&ada, json!({"parentId": parent, "noPause": true})).await;
    let stubborn = started(&mut agent).await;
    ada.post(&path(&parent, "unpause"), Value::Null).await.ok();
    let (one, other) = (started(&mut agent).await, started(&mut agent).await);
    let (of_parent, of_part) = if one.task_id.as_str() == parent {
        (one, other)
    } else {
        (other, one)
    };
    assert_eq!(of_part.task_id.as_str(), part);

    agent.exits(&of_parent, 0).await;
    agent.forgets(&of_parent).await;
    until_state(&cluster, &ada, &parent, "GENERIC_TASK_STATE_COMPLETED").await;
    until_state(&cluster, &ada, &part, "GENERIC_TASK_STATE_ACTIVE").await;
    ada.post(&path(&parent, "kill"), json!({})).await.ok();
    for _ in 0..2 {
        agent.next_kill().await;
    }
    for spec in [&of_part, &stubborn] {
        agent.exits(spec, 137).await;
        let id = spec.task_id.as_str();
        until_state(&cluster, &ada, id, "GENERIC_TASK_STATE_CANCELED").await;
    }
    until_state(&cluster, &ada, &parent, "GENERIC_TASK_STATE_COMPLETED").await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_fork_has_the_others_configuration_and_files_unless_it_has_its_own() {
    let cluster = Cluster::start_with(&[("launch_error", "false")]).await;
    let (ada, bob) = (user(&cluster, "ada").await, user(&cluster, "bob").await);
    let file = json!({"path": "a.txt", "type": 48, "content": STANDARD.encode("hello")});
    let config =
        "{entrypoint: [a], description: first, environment: {environment_variables: [A_KEY=1]}}";
    let first = create(&ada, json!({"config": config, "contextDirectory": [file]})).await;
    let fork = create(
        &ada,
        json!({"config": "entrypoint: [b]", "forkedFrom": first}),
    )
    .await;
    let task = ada.get(&format!("/api/v1/tasks/{fork}")).await.ok()["task"].clone();
    assert_eq!(task["forkedFrom"], first);
    let config: Value = serde_json::from_str(task["config"].as_str().unwrap()).unwrap();
    assert_eq!(config["entrypoint"], json!(["b"]));
    assert_eq!(config["description"], "first");
    assert_eq!(
        config["environment"]["environment_variables"]["cpu"],
        json!(["A_KEY=1"])
    );
    let context = |id: &str| format!("/api/v1/tasks/{id}/context_directory");
    let own = ada.get(&context(&first)).await.ok()["b64Tgz"].clone();
    assert_eq!(ada.get(&context(&fork)).await.ok()["b64Tgz"], own);
    // Another user's variables and files are not to be had by a fork, and the files not by themselves.
    let body = json!({"config": "entrypoint: [env]", "forkedFrom": first});
    let refusal = bob.post("/api/v1/generic-tasks", body).await.refused(403);
    assert!(refusal.contains("read the files of task"), "{refusal}");
    bob.get(&context(&first)).await.refused(403);
    cluster.stop().await;
}

#[tokio::test]
async fn the_tree_of_a_task_is_its_owners() {
    let cluster = Cluster::start_with(&[("launch_error", "false")]).await;
    let (ada, bob) = (user(&cluster, "ada").await, user(&cluster, "bob").await);
    let admin = cluster.admin().await;
    let mut agent = cluster.agent("a1", 1).await;
    let root = create(&ada, json!({})).await;
    started(&mut agent).await;
    launch(&admin, json!({"resources": {"slots": 0}})).await;
    let of_admin = started(&mut agent).await;
    let task = cluster.client().as_task(&of_admin.script.token);
    let child = json!({"config": "{entrypoint: [x], resources: {slots: 0}}", "parentId": root});
    task.post("/api/v1/generic-tasks", child.clone())
        .await
        .refused(403);
    // A user may steer all tasks, and would use up the number of parts that another's may have.
    let refusal = bob.post("/api/v1/generic-tasks", child.clone()).await;
    assert!(refusal.refused(403).contains("add a part to task"));
    // An administrator adds one; a task of the administrator's may not then kill the others of the tree.
    let made = admin.post("/api/v1/generic-tasks", child).await.ok();
    let path = format!("/api/v1/tasks/{}/kill", made["taskId"].as_str().unwrap());
    let kill = json!({"killFromRoot": true});
    task.post(&path, kill.clone()).await.refused(403);
    let state = ada.get(&format!("/api/v1/tasks/{root}")).await.ok()["task"]["taskState"].clone();
    assert_eq!(state, "GENERIC_TASK_STATE_ACTIVE");
    bob.post(&path, kill).await.ok();
    cluster.stop().await;
}

#[tokio::test]
async fn a_generic_task_that_asks_for_the_signal_saves_before_it_is_paused() {
    let cluster = Cluster::start().await;
    let ada = user(&cluster, "ada").await;
    let mut agent = cluster.agent("a1", 1).await;
    let config = json!({"config": "entrypoint: [x]\npreemption_timeout: 1"});
    let task = create(&ada, config).await;
    let path = |verb: &str| format!("/api/v1/tasks/{task}/{verb}");
    for (attempt, saves) in [(1, true), (2, false)] {
        let spec = started(&mut agent).await;
        let code = cluster.client().as_task(&spec.script.token);
        let of = format!("/api/v1/allocations/{}/signals", spec.allocation_id);
        let poll = format!("{of}/preemption?timeoutSeconds=0");
        assert_eq!(code.get(&poll).await.ok()["preempt"], false);
        let long = format!("{of}/preemption?timeoutSeconds=60");
        let pause = path("pause");
        let (signal, paused) = tokio::join!(code.get(&long), ada.post(&pause, Value::Null));
        paused.ok();
        assert_eq!(signal.ok()["preempt"], true, "attempt {attempt}");
        if saves {
            let ack = format!("{of}/ack_preemption");
            code.post(&ack, Value::Null).await.ok();
            agent.exits(&spec, 0).await;
        } else {
            // It has a second, and is killed after that.
            assert!(!agent.next_kill().await);
            agent.exits(&spec, 137).await;
        }
        agent.forgets(&spec).await;
        until_state(&cluster, &ada, &task, "GENERIC_TASK_STATE_PAUSED").await;
        ada.post(&path("unpause"), Value::Null).await.ok();
    }
    cluster.stop().await;
}
