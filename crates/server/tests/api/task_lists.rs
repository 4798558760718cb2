//! What lists show of tasks, and how a task is found by its id: in the queue, at the proxy, and after its end.

use det_agent_proto::ContainerState;
use det_taskspec::{ContainerExit, ExitCause};
use serde_json::{Value, json};

use crate::support::{Client, Cluster};

const CONFIG: &str = "description: mine\nentrypoint: [sleep, '100']\nenvironment: {proxy_ports: [{proxy_port: 8080, \
    default_service_id: true}, {proxy_port: 9090, proxy_tcp: true}, {proxy_port: 9191}]}";

/// The only live allocation of a cluster in its list.
fn only(answer: &Value) -> Option<&Value> {
    answer["allocationIdToSummary"]
        .as_object()
        .and_then(|all| all.values().next())
}

async fn job_of(client: &Client, id: &str) -> String {
    let path = format!("/api/v1/job-queues/{id}/why");
    let explanation = client.get(&path).await.ok();
    explanation["job"]["jobId"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_fork_warns_of_an_image_that_it_names_itself() {
    let cluster = Cluster::start().await;
    let new = json!({"user": {"username": "ada", "active": true}});
    cluster.admin().await.post("/api/v1/users", new).await.ok();
    let ada = cluster.user("ada").await;
    let _agent = cluster.agent("a1", 2).await;
    let launch = async |body: Value| ada.post("/api/v1/generic-tasks", body).await.ok();
    let warns = |made: &Value| {
        let messages = made["messages"].to_string();
        messages.contains("environment.image is not used")
    };
    let first = launch(json!({"config": CONFIG})).await;
    assert!(!warns(&first), "{first}");
    // What it begins with is complete, with the image of the cluster.
    for (config, expected) in [
        ("", false),
        ("entrypoint: [b]", false),
        ("environment: {image: own}", true),
    ] {
        let fork = launch(json!({"config": config, "forkedFrom": first["taskId"]})).await;
        assert_eq!(warns(&fork), expected, "{config}: {fork}");
    }
    cluster.stop().await;
}

#[tokio::test]
async fn a_generic_task_is_listed_while_it_runs_rests_and_has_ended() {
    let cluster = Cluster::start().await;
    let new = json!({"user": {"username": "ada", "active": true}});
    cluster.admin().await.post("/api/v1/users", new).await.ok();
    let ada = cluster.user("ada").await;
    let mut agent = cluster.agent("a1", 2).await;
    let body = json!({"config": CONFIG});
    let made = ada.post("/api/v1/generic-tasks", body).await.ok();
    let id = made["taskId"].as_str().unwrap();
    let spec = agent.next_start().await;
    let listed = ada.get("/api/v1/tasks").await.ok();
    assert_eq!(only(&listed).unwrap()["proxyPorts"], json!([]));
    let running = ContainerState::Running {
        host_address: "127.0.0.1".into(),
        ports: vec![(8080, 40001), (9090, 40002)],
        runtime_id: "1".into(),
    };
    agent.report(&spec, running).await;
    let has_ports = |answer: &Value| only(answer).is_some_and(|one| one["proxyPorts"] != json!([]));
    let listed = cluster.until(&ada, "/api/v1/tasks", has_ports).await;
    let one = only(&listed).unwrap();
    assert_eq!(
        [
            &one["taskType"],
            &one["username"],
            &one["description"],
            &one["state"]
        ],
        ["TASK_TYPE_GENERIC", "ada", "mine", "STATE_RUNNING"]
    );
    let port = |id: String, port: i64, tcp: bool| json!({"serviceId": id, "port": port, "proxyTcp": tcp, "unauthenticated": false});
    assert_eq!(
        one["proxyPorts"],
        json!([
            port(id.to_owned(), 8080, false),
            port(format!("{id}:9090"), 9090, true)
        ]),
        "those that its container has published"
    );

    // The job is found by what it is the entry of.
    let job = job_of(&ada, id).await;
    assert_ne!(job, id);
    assert_eq!(job_of(&ada, &format!("{id}.1")).await, job);
    assert_eq!(job_of(&ada, &job).await, job);
    ada.get("/api/v1/job-queues/none/why").await.refused(404);

    let path = |verb: &str| format!("/api/v1/tasks/{id}/{verb}");
    ada.post(&path("pause"), Value::Null).await.ok();
    let refusal = ada.get(&format!("/proxy/{id}:9191/")).await.refused(503);
    assert!(
        refusal.contains("its task is paused")
            && refusal.contains(&format!("det task unpause {id}")),
        "{refusal}"
    );
    agent.next_kill().await;
    agent.exits(&spec, 137).await;
    agent.forgets(&spec).await;
    let rests = |answer: &Value| answer["pausedTasks"] != json!([]);
    let listed = cluster.until(&ada, "/api/v1/tasks", rests).await;
    let one = &listed["pausedTasks"][0];
    assert_eq!(
        [&one["taskId"], &one["username"], &one["description"]],
        [id, "ada", "mine"]
    );
    assert_eq!(one["name"], format!("Task {id}"));
    let refusal = ada.get(&format!("/proxy/{id}/")).await.refused(503);
    assert!(refusal.contains("its task is paused"), "{refusal}");

    ada.post(&path("kill"), json!({})).await.ok();
    let ended = |answer: &Value| answer["endedTasks"] != json!([]);
    let listed = cluster
        .until(&ada, "/api/v1/tasks?withEnded=true", ended)
        .await;
    let one = &listed["endedTasks"][0];
    assert_eq!(
        [&one["taskId"], &one["taskState"], &one["username"]],
        [id, "GENERIC_TASK_STATE_CANCELED", "ada"]
    );
    assert_eq!(listed["pausedTasks"], json!([]));
    let listed = ada.get("/api/v1/tasks").await.ok();
    assert_eq!(listed["endedTasks"], json!([]), "unless they are asked for");
    cluster.stop().await;
}

#[tokio::test]
async fn what_is_paused_keeps_its_name_and_its_priority_in_lists() {
    let flags = [
        (
            "resource_manager",
            "{type: agent, scheduler: {type: priority}}",
        ),
        ("launch_error", "false"),
    ];
    let cluster = Cluster::start_with(&flags).await;
    let new = json!({"user": {"username": "ada", "active": true}});
    cluster.admin().await.post("/api/v1/users", new).await.ok();
    let ada = cluster.user("ada").await;
    let config = json!({"preemptible": true, "resources": {"priority": 37}});
    let made = ada
        .post("/api/v1/notebooks", json!({"config": config}))
        .await
        .ok();
    let id = made["notebook"]["id"].as_str().unwrap();
    let summary = only(&ada.get("/api/v1/tasks").await.ok()).unwrap().clone();
    let path = format!("/api/v1/tasks/{id}/pause");
    ada.post(&path, Value::Null).await.ok();
    let rests = |answer: &Value| answer["pausedTasks"] != json!([]);
    let listed = cluster.until(&ada, "/api/v1/tasks", rests).await;
    let paused = &listed["pausedTasks"][0];
    assert_eq!(paused["name"], format!("Notebook {id}"));
    assert_eq!(paused["priority"], 37);
    for member in ["name", "priority", "priorityOrder", "schedulerType"] {
        assert_eq!(paused[member], summary[member], "{member}");
    }
    cluster.stop().await;
}

#[tokio::test]
async fn a_task_of_any_kind_that_failed_is_shown_with_the_last_lines_of_its_code() {
    let cluster = Cluster::start().await;
    let ada = cluster.determined().await;
    let mut agent = cluster.agent("a1", 2).await;
    let reason = "the code ended with exit code 3";
    for (launch, member) in [
        ("/api/v1/commands", "command"),
        ("/api/v1/notebooks", "notebook"),
        ("/api/v1/shells", "shell"),
        ("/api/v1/generic-tasks", "task"),
    ] {
        let body = match member {
            "task" => json!({"config": "entrypoint: [sleep, '100']"}),
            "command" => json!({"config": {"entrypoint": ["sleep", "100"]}}),
            _ => json!({"config": {}}),
        };
        let made = ada.post(launch, body).await.ok();
        let id = match member {
            "task" => &made["taskId"],
            _ => &made[member]["id"],
        };
        let one = match member {
            "task" => format!("/api/v1/tasks/{}", id.as_str().unwrap()),
            _ => format!("{launch}/{}", id.as_str().unwrap()),
        };
        let spec = agent.next_start().await;
        agent.runs(&spec).await;
        let alive = ada.get(&one).await.ok();
        assert_eq!(alive[member]["lastFailure"], Value::Null, "{member}");
        let cause = ExitCause {
            at: 1,
            rank: None,
            exit_code: None,
            last_lines: vec!["step 1".into(), "KeyError: 'lr'".into()],
        };
        let (exit, cause) = (ContainerExit::Exited { code: 3 }, Some(cause));
        agent
            .report(&spec, ContainerState::Terminated { exit, cause })
            .await;
        agent.forgets(&spec).await;
        let has_failed = |answer: &Value| answer[member]["lastFailure"].is_object();
        let shown = cluster.until(&ada, &one, has_failed).await;
        let failure = &shown[member]["lastFailure"];
        assert_eq!(failure["reason"], reason, "{member}");
        let lines = json!(["step 1", "KeyError: 'lr'"]);
        assert_eq!(failure["lastLines"], lines, "{member}");
        assert_eq!(failure["allocationId"], json!(spec.allocation_id));
        // Lists have the last line alone.
        let entry = if member == "task" {
            let listed = ada.get("/api/v1/tasks?withEnded=true").await.ok();
            listed["endedTasks"][0].clone()
        } else {
            assert_eq!(shown[member]["exitStatus"], reason);
            let listed = ada.get(launch).await.ok();
            listed[format!("{member}s")][0].clone()
        };
        assert_eq!(entry["lastFailure"]["lastLines"], json!(["KeyError: 'lr'"]));
        assert_eq!(entry["lastFailure"]["reason"], reason);
    }
    cluster.stop().await;
}
