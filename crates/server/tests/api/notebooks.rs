//! Notebooks: what they start with, who is given their token, when they are idle.

use std::time::Duration;

use det_taskspec::{ContainerSpec, NOTEBOOK_PORTS, NotebookIdleType, TaskKind};
use serde_json::{Value, json};

use crate::support::{Client, Cluster, FakeAgent};

const NOTEBOOKS: &str = "/api/v1/notebooks";

/// A user of this name, who is made first.
async fn user(cluster: &Cluster, name: &str) -> Client {
    let new = json!({"user": {"username": name, "active": true}});
    cluster.admin().await.post("/api/v1/users", new).await.ok();
    cluster.user(name).await
}

async fn launch(client: &Client, config: Value) -> (String, Value) {
    let made = client.post(NOTEBOOKS, json!({"config": config})).await.ok();
    let id = made["notebook"]["id"].as_str().unwrap().to_owned();
    (id, made)
}

/// Runs the next container, and reports its server as one that listens.
async fn up(cluster: &Cluster, agent: &mut FakeAgent) -> ContainerSpec {
    let spec = agent.next_start().await;
    agent.runs(&spec).await;
    let own = cluster.client().as_task(&spec.script.token);
    let path = format!("/api/v1/allocations/{}/ready", spec.allocation_id);
    own.post(&path, json!({})).await.ok();
    spec
}

fn variable<'s>(spec: &'s ContainerSpec, name: &str) -> Option<&'s str> {
    let found = spec.script.env.iter().find(|(known, _)| known == name);
    found.map(|(_, value)| value.as_str())
}

#[tokio::test]
async fn a_notebook_starts_with_its_token_certificate_and_idle_check() {
    let cluster = Cluster::start().await;
    let ada = user(&cluster, "ada").await;
    let mut agent = cluster.agent("a1", 2).await;
    let config = json!({
        "idle_timeout": "90s", "notebook_idle_type": "activity", "kernel_idle_timeout": "10m",
    });
    let (id, made) = launch(&ada, config).await;
    let address = made["notebook"]["serviceAddress"].as_str().unwrap();
    let token = address
        .strip_prefix(&format!("/proxy/{id}/?token="))
        .unwrap();

    let spec = agent.next_start().await;
    assert_eq!(spec.script.task_type, TaskKind::Notebook);
    assert!(spec.script.startup_hook && spec.script.context);
    let port: u16 = variable(&spec, "NOTEBOOK_PORT").unwrap().parse().unwrap();
    assert!(NOTEBOOK_PORTS.contains(&port), "{port}");
    assert_eq!(spec.ports, [port]);
    assert_eq!(variable(&spec, "DET_NOTEBOOK_TOKEN"), Some(token));
    let check = spec.script.idle_check.as_ref().unwrap();
    assert_eq!(
        (check.idle_type, check.every_seconds),
        (NotebookIdleType::Activity, 30)
    );
    let file = |spec: &ContainerSpec, name: &str| {
        let mut files = spec.script.files.iter();
        let file = files.find(|file| file.path.ends_with(name));
        file.unwrap().content.clone()
    };
    let certificate = |spec: &ContainerSpec| file(spec, "jupyterCert.pem");
    let shuts_kernels_down = |spec: &ContainerSpec| {
        file(spec, "jupyter_server_config.py").contains("cull_idle_timeout = 600")
    };
    assert!(shuts_kernels_down(&spec));
    assert!(certificate(&spec).starts_with("-----BEGIN CERTIFICATE-----"));

    // Each has its own, and without a timeout it is not checked whether it is in use.
    launch(&ada, json!({})).await;
    let other = agent.next_start().await;
    assert_ne!(certificate(&other), certificate(&spec));
    assert_ne!(variable(&other, "DET_NOTEBOOK_TOKEN"), Some(token));
    assert_eq!(other.script.idle_check, None);
    assert!(!shuts_kernels_down(&other));
    cluster.stop().await;
}

#[tokio::test]
async fn the_token_of_a_notebook_is_for_its_owner_and_the_owners_tasks_alone() {
    let cluster = Cluster::start().await;
    let (ada, bob) = (user(&cluster, "ada").await, user(&cluster, "bob").await);
    let mut agent = cluster.agent("a1", 2).await;
    let (id, made) = launch(&ada, json!({})).await;
    let address = made["notebook"]["serviceAddress"].as_str().unwrap();
    let (_, token) = address.split_once("?token=").unwrap();
    let spec = agent.next_start().await;
    let key = spec
        .script
        .files
        .iter()
        .find(|file| file.path.ends_with("jupyterKey.key"));
    let key = key.unwrap().content.lines().nth(1).unwrap().to_owned();
    let own_task = cluster.client().as_task(&spec.script.token);
    let admin = cluster.admin().await;
    for (who, client, given) in [
        ("ada", &ada, true),
        ("her task", &own_task, true),
        ("bob", &bob, false),
        ("an administrator", &admin, false),
    ] {
        for path in [
            format!("{NOTEBOOKS}/{id}"),
            format!("{NOTEBOOKS}?users=ada"),
            format!("/api/v1/tasks/{id}"),
            "/api/v1/tasks".to_owned(),
            "/api/v1/job-queues-v2?resourcePool=default".to_owned(),
        ] {
            let shown = client.get(&path).await.ok().to_string();
            let may = given && path.starts_with(NOTEBOOKS);
            assert_eq!(shown.contains(token), may, "{who} {path}: {shown}");
            assert!(!shown.contains(&key), "{who} {path}");
        }
    }
    // An administrator's own is an administrator's to open.
    let (_, made) = launch(&admin, json!({})).await;
    let address = made["notebook"]["serviceAddress"].as_str().unwrap();
    assert!(address.contains("?token="), "{address}");
    cluster.stop().await;
}

#[tokio::test]
async fn a_notebook_that_is_not_used_ends_and_reports_why() {
    let cluster = Cluster::start().await;
    let ada = user(&cluster, "ada").await;
    let mut agent = cluster.agent("a1", 2).await;
    let (id, _) = launch(&ada, json!({"idle_timeout": "1s"})).await;
    let spec = up(&cluster, &mut agent).await;
    assert!(!agent.next_kill().await, "at once");
    agent.exits(&spec, 137).await;
    let path = format!("{NOTEBOOKS}/{id}");
    let ended = |answer: &Value| answer["notebook"]["state"] == "STATE_TERMINATED";
    let shown = cluster.until(&ada, &path, ended).await;
    let text = shown["notebook"]["exitStatus"].as_str().unwrap();
    assert!(
        text.starts_with("it was idle for 1 s (\"idle_timeout\")"),
        "{text}"
    );
    let task = ada.get(&format!("/api/v1/tasks/{id}")).await.ok();
    assert_eq!(task["task"]["allocations"][0]["exitReason"], text);
    let log = ada.get(&format!("/api/v1/tasks/{id}/logs")).await.lines();
    let said = |line: &Value| {
        line.to_string()
            .contains("Asked to end at once: it was idle")
    };
    assert!(log.iter().any(said), "{log:?}");
    cluster.stop().await;
}

#[tokio::test]
async fn a_notebook_that_is_reported_as_used_goes_on() {
    let cluster = Cluster::start().await;
    let ada = user(&cluster, "ada").await;
    let mut agent = cluster.agent("a1", 2).await;
    let (id, _) = launch(&ada, json!({"idle_timeout": "2s"})).await;
    let spec = up(&cluster, &mut agent).await;
    let own = cluster.client().as_task(&spec.script.token);
    let path = format!("{NOTEBOOKS}/{id}/report_idle");
    // Longer than it may be idle. Real time: the clock of the master is the machine's.
    let begin = tokio::time::Instant::now();
    while begin.elapsed() < Duration::from_secs(4) {
        own.put(&path, json!({"idle": false})).await.ok();
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let shown = ada.get(&format!("{NOTEBOOKS}/{id}")).await.ok();
    assert_eq!(shown["notebook"]["state"], "STATE_RUNNING");
    own.put(&path, json!({"idle": true})).await.ok();
    assert!(!agent.next_kill().await, "at once");
    agent.exits(&spec, 137).await;
    let ended = |answer: &Value| answer["notebook"]["state"] == "STATE_TERMINATED";
    cluster
        .until(&ada, &format!("{NOTEBOOKS}/{id}"), ended)
        .await;
    // It has ended: there is nothing to report any more.
    let refusal = ada.put(&path, json!({"idle": false})).await.refused(400);
    assert!(refusal.contains("does not run"), "{refusal}");
    cluster.stop().await;
}

#[tokio::test]
async fn the_token_of_a_notebook_opens_its_service_to_programs_and_not_to_pages() {
    let cluster = Cluster::start().await;
    let ada = user(&cluster, "ada").await;
    let mut agent = cluster.agent("a1", 2).await;
    let (id, made) = launch(&ada, json!({})).await;
    let address = made["notebook"]["serviceAddress"]
        .as_str()
        .unwrap()
        .to_owned();
    let (_, token) = address.split_once("?token=").unwrap();
    let spec = agent.next_start().await;
    let port = spec.ports[0];
    let running = det_agent_proto::ContainerState::Running {
        host_address: "127.0.0.1".into(),
        ports: vec![(port, port)],
        runtime_id: "1".into(),
    };
    agent.report(&spec, running).await;
    let is_running = |answer: &Value| answer["notebook"]["state"] == "STATE_RUNNING";
    cluster
        .until(&ada, &format!("{NOTEBOOKS}/{id}"), is_running)
        .await;
    let nobody = cluster.client().anonymous();
    nobody.get(&format!("/proxy/{id}/")).await.refused(401);
    nobody
        .get(&format!("/proxy/{id}/?token=wrong"))
        .await
        .refused(401);
    let page = nobody.with("accept", "text/html");
    let form = page.get(&address).await;
    let asks = form.text.contains("<h1>Log in</h1>");
    assert!(asks, "a browser logs in first: {form:?}");
    // The agent of this test opens no connection: that it is asked to shows that the caller may connect.
    let asked = tokio::spawn({
        let (nobody, header) = (
            nobody.and("authorization", format!("token {token}")),
            format!("/proxy/{id}/"),
        );
        async move { nobody.get(&header).await.status }
    });
    let asks = agent.receive().await;
    assert!(
        matches!(asks, det_agent_proto::ToAgent::Dial(_)),
        "{asks:?}"
    );
    asked.abort();
    cluster.stop().await;
}
