//! Tasks that users launch, from their documents to their ends: commands, what holds for every kind, and generic tasks
//! below.

mod generic;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use det_taskspec::{ContainerSpec, Entrypoint, TaskKind};
use serde_json::{Value, json};

use crate::support::{Client, Cluster, FakeAgent};

const COMMANDS: &str = "/api/v1/commands";

/// A request for a command that prints.
fn request(config: Value) -> Value {
    let mut config = config;
    if config.get("entrypoint").is_none() {
        config["entrypoint"] = json!(["echo", "hello"]);
    }
    json!({"config": config})
}

/// A user of this name, who is made first.
async fn user(cluster: &Cluster, name: &str) -> Client {
    let new = json!({"user": {"username": name, "active": true}});
    cluster.admin().await.post("/api/v1/users", new).await.ok();
    cluster.user(name).await
}

async fn launch(client: &Client, config: Value) -> String {
    let made = client.post(COMMANDS, request(config)).await.ok();
    made["command"]["id"].as_str().unwrap().to_owned()
}

async fn create(client: &Client, more: Value) -> String {
    let mut body = json!({"config": "entrypoint: [sleep, '100']"});
    body.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let made = client.post("/api/v1/generic-tasks", body).await.ok();
    made["taskId"].as_str().unwrap().to_owned()
}

async fn started(agent: &mut FakeAgent) -> ContainerSpec {
    let spec = agent.next_start().await;
    agent.runs(&spec).await;
    spec
}

#[tokio::test]
async fn a_command_starts_with_its_files_and_ends_with_its_exit_code() {
    let cluster = Cluster::start().await;
    let ada = user(&cluster, "ada").await;
    let mut agent = cluster.agent("a1", 2).await;
    let file = json!({"path": "a.txt", "type": 48, "content": STANDARD.encode("hello"), "mode": 0o644, "mtime": "1"});
    let mut body = request(json!({
        "description": "mine", "resources": {"slots": 2},
        "environment": {
            "environment_variables": ["A=1", "DET_LOG_LEVEL=DEBUG", "DET_SLOT_IDS=[9]"], "image": "own",
        },
    }));
    body["files"] = json!([file]);
    let made = ada.post(COMMANDS, body).await.ok();
    let (command, id) = (&made["command"], made["command"]["id"].as_str().unwrap());
    assert_eq!(command["description"], "mine");
    assert_eq!(command["username"], "ada");
    assert_eq!(made["config"]["resources"]["slots"], 2);
    assert_eq!(made["warnings"], json!([]));
    let messages = made["messages"].to_string();
    for expected in [
        "\\\"DET_SLOT_IDS\\\" is left out",
        "environment.image is not used: the agents of resource pool \\\"default\\\" run tasks as processes",
    ] {
        assert!(messages.contains(expected), "{messages}");
    }

    let spec = started(&mut agent).await;
    assert_eq!(spec.task_id.as_str(), id);
    assert_eq!(spec.image, "own");
    let script = &spec.script;
    assert_eq!(script.task_type, TaskKind::Command);
    assert_eq!(
        script.entrypoint,
        Entrypoint::Argv(vec!["echo".into(), "hello".into()])
    );
    assert!(script.context && !script.rendezvous && !script.startup_hook);
    let env = |name: &str| script.env.iter().find(|(key, _)| key == name);
    assert_eq!(env("A").unwrap().1, "1");
    assert_eq!(env("DET_LOG_LEVEL").unwrap().1, "DEBUG");
    assert_eq!(env("DET_SLOT_IDS").unwrap().1, "[0,1]");
    assert!(env("DET_TRIAL_ID").is_none());

    // The files are for its own token, too.
    let task = cluster.client().as_task(&script.token);
    let context = format!("/api/v1/tasks/{id}/context_directory");
    let packed = task.get(&context).await.ok()["b64Tgz"].clone();
    let packed = STANDARD.decode(packed.as_str().unwrap()).unwrap();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&packed[..]));
    let names: Vec<_> = archive
        .entries()
        .unwrap()
        .map(|e| e.unwrap().path().unwrap().display().to_string())
        .collect();
    assert_eq!(names, ["a.txt"]);

    let path = format!("{COMMANDS}/{id}");
    let running = |answer: &Value| answer["command"]["state"] == "STATE_RUNNING";
    let shown = cluster.until(&ada, &path, running).await;
    assert_eq!(
        shown["command"]["container"]["devices"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    assert_eq!(shown["command"]["exitStatus"], "");
    agent.exits(&spec, 3).await;
    let ended = |answer: &Value| answer["command"]["state"] == "STATE_TERMINATED";
    let shown = cluster.until(&ada, &path, ended).await;
    assert_eq!(shown["command"]["exitCode"], 3);
    assert_eq!(
        shown["command"]["exitStatus"],
        "the code ended with exit code 3"
    );
    assert_eq!(shown["command"]["container"], Value::Null);
    cluster.stop().await;
}

#[tokio::test]
async fn a_command_that_was_killed_has_no_exit_code_of_its_own() {
    let cluster = Cluster::start().await;
    let ada = user(&cluster, "ada").await;
    let mut agent = cluster.agent("a1", 2).await;
    let id = launch(&ada, json!({})).await;
    let spec = started(&mut agent).await;
    let path = format!("{COMMANDS}/{id}");
    ada.post(&format!("{path}/kill"), Value::Null).await.ok();
    agent.next_kill().await;
    agent.exits(&spec, 137).await;
    let ended = |answer: &Value| answer["command"]["state"] == "STATE_TERMINATED";
    let shown = cluster.until(&ada, &path, ended).await;
    assert_eq!(shown["command"]["exitCode"], Value::Null);
    assert_eq!(shown["command"]["exitStatus"], "it was killed by ada");
    cluster.stop().await;
}

#[tokio::test]
async fn lists_have_what_lives_and_what_ended_a_short_time_ago() {
    let cluster = Cluster::start_with(&[("launch_error", "false")]).await;
    let (ada, bob) = (user(&cluster, "ada").await, user(&cluster, "bob").await);
    let first = launch(&ada, json!({"description": "b"})).await;
    let second = launch(&ada, json!({"description": "a"})).await;
    let others = launch(&bob, json!({})).await;
    create(&ada, json!({})).await;
    let ids = async |query: &str| {
        let answer = ada.get(&format!("{COMMANDS}?{query}")).await.ok();
        let commands = answer["commands"].as_array().unwrap().clone();
        commands
            .iter()
            .map(|c| c["id"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        ids("").await,
        [first.clone(), second.clone(), others.clone()]
    );
    assert_eq!(ids("users=ada").await, [first.clone(), second.clone()]);
    assert_eq!(ids("users=nobody").await, Vec::<String>::new());
    assert_eq!(
        ids("users=ada&sortBy=SORT_BY_DESCRIPTION").await,
        [second.clone(), first.clone()]
    );
    assert_eq!(ids("orderBy=ORDER_BY_DESC&limit=1").await, [others]);
    assert_eq!(ids("workspaceId=7").await, Vec::<String>::new());
    ada.post(&format!("{COMMANDS}/{first}/kill"), Value::Null)
        .await
        .ok();
    let killed = ada
        .post(&format!("{COMMANDS}/{first}/kill"), Value::Null)
        .await
        .ok();
    assert_eq!(killed["command"]["state"], "STATE_TERMINATED");
    assert_eq!(killed["command"]["exitStatus"], "it was killed by ada");
    assert_eq!(ids("users=ada").await.len(), 2);
    let counts = ada.get("/api/v1/tasks/count").await.ok();
    assert_eq!(counts["commands"], 2);
    let refusal = ada.get(&format!("{COMMANDS}/unknown")).await.refused(404);
    assert!(
        refusal.starts_with("command \"unknown\" not found"),
        "{refusal}"
    );
    cluster.stop().await;
}

#[tokio::test]
async fn everything_that_is_wrong_with_a_launch_is_reported_at_once() {
    let cluster = Cluster::start().await;
    let ada = user(&cluster, "ada").await;
    let _agent = cluster.agent("a1", 2).await;
    let wrong = json!({"config": {"entrypoint": [], "resources": {"slots": 9, "resource_pool": "default"}, "nonsense": 1}});
    let refusal = ada.post(COMMANDS, wrong).await.refused(400);
    for expected in [
        "entrypoint",
        "nonsense: is not a known key",
        "resources.slots: resource pool \"default\": request unfulfillable: needs 9 slots",
    ] {
        assert!(refusal.contains(expected), "{expected}: {refusal}");
    }
    assert!(!refusal.contains("is_single_node"), "{refusal}");
    let wrong = request(json!({"environment": {"add_capabilities": ["SYS_PTRAC"]}}));
    let refusal = ada.post(COMMANDS, wrong).await.refused(400);
    assert!(
        refusal.contains("did you mean \"SYS_PTRACE\"?"),
        "{refusal}"
    );
    let mut body = request(json!({"work_dir": "/tmp"}));
    body["files"] = json!([{"path": "../a", "type": 48, "content": ""}]);
    let refusal = ada.post(COMMANDS, body.clone()).await.refused(400);
    assert!(
        refusal.contains("work_dir: cannot be combined with files"),
        "{refusal}"
    );
    body["config"]["work_dir"] = Value::Null;
    let refusal = ada.post(COMMANDS, body).await.refused(400);
    assert!(
        refusal.starts_with("field \"files[0].path\": \"../a\" leads out"),
        "{refusal}"
    );
    let hidden =
        json!({"environment": {"registry_auth": {"username": "u", "password": "********"}}});
    let refusal = ada.post(COMMANDS, request(hidden)).await.refused(400);
    assert!(refusal.contains("give the secret itself"), "{refusal}");
    let mut body = request(json!({}));
    body["templateName"] = json!("none");
    let refusal = ada.post(COMMANDS, body).await.refused(404);
    assert!(
        refusal.starts_with("template \"none\" not found"),
        "{refusal}"
    );
    let mut body = request(json!({}));
    body["workspaceId"] = json!(77);
    ada.post(COMMANDS, body).await.refused(404);
    let listed = ada.get(COMMANDS).await.ok();
    assert_eq!(listed["commands"], json!([]), "nothing was stored");
    cluster.stop().await;
}

#[tokio::test]
async fn a_preview_and_templates_show_the_effective_configuration() {
    let cluster = Cluster::start_with(&[("launch_error", "false")]).await;
    let ada = user(&cluster, "ada").await;
    let template = json!({"config": {"resources": {"slots": 3}, "environment": {"environment_variables": ["T=1"]}}});
    ada.post("/api/v1/templates/base", template).await.ok();
    let mut body = request(json!({"environment": {"environment_variables": ["OWN=2"]}}));
    body["templateName"] = json!("base");
    body["preview"] = json!(true);
    let made = ada.post(COMMANDS, body).await.ok();
    assert_eq!(made["command"]["id"], "");
    assert_eq!(made["config"]["resources"]["slots"], 3);
    assert_eq!(
        made["config"]["environment"]["environment_variables"]["cpu"],
        json!(["T=1", "OWN=2"])
    );
    assert_eq!(ada.get(COMMANDS).await.ok()["commands"], json!([]));
    cluster.stop().await;
}

#[tokio::test]
async fn others_see_no_variables_of_a_command() {
    let cluster = Cluster::start_with(&[("launch_error", "false")]).await;
    let (ada, bob) = (user(&cluster, "ada").await, user(&cluster, "bob").await);
    let config = json!({"environment": {
        "environment_variables": ["A=private"], "registry_auth": {"username": "u", "password": "hidden"},
    }});
    let id = launch(&ada, config).await;
    let path = format!("{COMMANDS}/{id}");
    let own = ada.get(&path).await.ok()["config"].to_string();
    assert!(
        own.contains("A=private") && !own.contains("hidden"),
        "{own}"
    );
    let others = bob.get(&path).await.ok()["config"].to_string();
    assert!(
        !others.contains("private") && !others.contains("hidden"),
        "{others}"
    );
    cluster.stop().await;
}

#[tokio::test]
async fn a_command_follows_the_policies_and_priorities_of_its_pool() {
    let cluster = Cluster::start_with(&[("launch_error", "false")]).await;
    let (admin, ada) = (cluster.admin().await, user(&cluster, "ada").await);
    let policies =
        json!({"configPolicies": "constraints: {priority_limit: 10, resources: {max_slots: 2}}"});
    admin
        .put("/api/v1/config-policies/global/NTSC", policies)
        .await
        .ok();
    let refusal = ada
        .post(
            COMMANDS,
            request(json!({"resources": {"slots": 3, "priority": 5}})),
        )
        .await
        .refused(400);
    for expected in [
        "resources.slots: is 3, more than the 2",
        "resources.priority: is 5",
    ] {
        assert!(refusal.contains(expected), "{refusal}");
    }
    let id = launch(
        &ada,
        json!({"description": "mine", "resources": {"priority": 20}}),
    )
    .await;
    let path = format!("{COMMANDS}/{id}/set_priority");
    let set = |priority: i64| ada.post(&path, json!({"priority": priority}));
    set(30).await.ok();
    let job = ada.get("/api/v1/job-queues").await.ok()["jobs"][0].clone();
    assert_eq!(job["priority"], 30);
    assert_eq!(job["name"], "mine");
    set(5).await.refused(403);
    set(100).await.refused(400);
    cluster.stop().await;
}

#[tokio::test]
async fn a_workspace_goes_when_its_tasks_have_ended() {
    let cluster = Cluster::start_with(&[("launch_error", "false")]).await;
    let ada = user(&cluster, "ada").await;
    let made = ada
        .post("/api/v1/workspaces", json!({"name": "lab"}))
        .await
        .ok();
    let workspace = made["workspace"]["id"].as_i64().unwrap();
    let mut body = request(json!({}));
    body["workspaceId"] = json!(workspace);
    let made = ada.post(COMMANDS, body).await.ok();
    assert_eq!(made["command"]["workspaceId"], workspace);
    let path = format!("/api/v1/workspaces/{workspace}");
    let refusal = ada.delete(&path).await.refused(400);
    assert!(refusal.contains("1 task in it"), "{refusal}");
    let id = made["command"]["id"].as_str().unwrap();
    ada.post(&format!("{COMMANDS}/{id}/kill"), Value::Null)
        .await
        .ok();
    ada.delete(&path).await.ok();
    let kept = ada.get(&format!("{COMMANDS}/{id}")).await.ok();
    assert_eq!(kept["command"]["state"], "STATE_TERMINATED");
    cluster.stop().await;
}

#[tokio::test]
async fn launched_tasks_outlive_a_restart_of_the_master() {
    let cluster = Cluster::start_with(&[("launch_error", "false")]).await;
    let ada = user(&cluster, "ada").await;
    let id = launch(&ada, json!({"description": "kept"})).await;
    let cluster = cluster.restart().await;
    let ada = cluster.user("ada").await;
    let shown = ada.get(&format!("{COMMANDS}/{id}")).await.ok();
    assert_eq!(shown["command"]["state"], "STATE_QUEUED");
    let mut agent = cluster.agent("a1", 1).await;
    let spec = started(&mut agent).await;
    agent.exits(&spec, 0).await;
    let ended = |answer: &Value| answer["command"]["exitCode"] == 0;
    cluster
        .until(&ada, &format!("{COMMANDS}/{id}"), ended)
        .await;
    cluster.stop().await;
}

#[tokio::test]
async fn work_without_slots_is_not_named_where_slots_are_waited_for() {
    let cluster = Cluster::start().await;
    let ada = user(&cluster, "ada").await;
    let mut agent = cluster.agent("a1", 1).await;
    let resources = |slots: u32| json!({"resources": {"slots": slots}});
    let holder = launch(&ada, resources(1)).await;
    started(&mut agent).await;
    let light = launch(&ada, resources(0)).await;
    started(&mut agent).await;
    let id = launch(&ada, resources(1)).await;
    let path = format!("/api/v1/job-queues/{id}/why");
    let explained = |answer: &Value| answer["waiting"][0]["waitReason"].is_object();
    let why = cluster.until(&ada, &path, explained).await;
    assert_eq!(why["aheadCount"], 1);
    assert_eq!(why["ahead"][0]["entityId"], json!(holder));
    // Nor is what has slots named where none are asked for.
    let why = ada
        .get(&format!("/api/v1/job-queues/{light}/why"))
        .await
        .ok();
    assert_eq!(why["aheadCount"], 0, "{why}");
    let why = ada.get(&path).await.ok();
    let basis = why["waiting"][0]["estimateBasis"].as_str().unwrap();
    assert!(
        basis.contains(&holder) && !basis.contains(&light),
        "{basis}"
    );
    cluster.stop().await;
}

#[tokio::test]
async fn a_notebook_that_opted_in_is_preempted_and_started_again() {
    let scheduler = "{type: priority, preemption: true}";
    let manager = format!("{{type: agent, scheduler: {scheduler}}}");
    let cluster = Cluster::start_with(&[("resource_manager", &manager)]).await;
    let ada = user(&cluster, "ada").await;
    let mut agent = cluster.agent("a1", 1).await;
    let body = json!({"config": {"preemptible": true, "resources": {"priority": 50}}});
    let made = ada.post("/api/v1/notebooks", body).await.ok();
    let id = made["notebook"]["id"].as_str().unwrap().to_owned();
    let note = made["messages"].to_string();
    assert!(note.contains("started again"), "{note}");
    let first = started(&mut agent).await;
    let queue = ada
        .get("/api/v1/job-queues-v2?resourcePool=default")
        .await
        .ok();
    assert_eq!(queue["jobs"][0]["full"]["isPreemptible"], true);

    let urgent = launch(&ada, json!({"resources": {"priority": 1}})).await;
    assert!(
        agent.next_kill().await,
        "its programs are asked to end before they are killed"
    );
    agent.exits(&first, 0).await;
    agent.forgets(&first).await;
    let of_urgent = started(&mut agent).await;
    assert_eq!(of_urgent.task_id.as_str(), urgent);
    let why = ada.get(&format!("/api/v1/job-queues/{id}/why")).await.ok();
    let summary = why["summary"].as_str().unwrap();
    assert!(summary.contains("started again (attempt 2)"), "{summary}");
    let lines = ada.get(&format!("/api/v1/tasks/{id}/logs")).await.lines();
    let mut logs = lines.iter().filter_map(|line| line["log"].as_str());
    let asked = "Asked to end, to be started again later: ";
    assert!(logs.any(|line| line.contains(asked)), "{lines:?}");

    agent.exits(&of_urgent, 0).await;
    agent.forgets(&of_urgent).await;
    let again = started(&mut agent).await;
    assert_eq!(again.task_id.as_str(), id);
    assert!(again.allocation_id.as_str().ends_with(".2"));

    // Its owner can let it rest, too.
    let path = |verb: &str| format!("/api/v1/tasks/{id}/{verb}");
    ada.post(&path("pause"), Value::Null).await.ok();
    assert!(agent.next_kill().await);
    agent.exits(&again, 0).await;
    agent.forgets(&again).await;
    let notebook = format!("/api/v1/notebooks/{id}");
    cluster
        .until(&ada, &notebook, |answer| {
            answer["notebook"]["paused"] == true
        })
        .await;
    let why = ada.get(&format!("/api/v1/job-queues/{id}/why")).await.ok();
    assert_eq!(
        why["summary"],
        format!("paused: it asks for nothing until `det task unpause {id}`")
    );
    let page = ada.get(&format!("/det/interactive/{id}/wait")).await.text;
    assert!(
        page.contains(&format!("det task unpause {id}")) && !page.contains("It starts"),
        "{page}"
    );
    ada.post(&path("unpause"), Value::Null).await.ok();
    let lines = ada.get(&format!("/api/v1/tasks/{id}/logs")).await.lines();
    for text in [
        "it was paused by ada".to_owned(),
        format!("Paused: `det task unpause {id}` lets it go on"),
        "Goes on: it was resumed by ada".to_owned(),
    ] {
        let mut logs = lines.iter().filter_map(|line| line["log"].as_str());
        assert!(logs.any(|line| line.contains(&text)), "{text}: {lines:?}");
    }
    assert!(
        started(&mut agent)
            .await
            .allocation_id
            .as_str()
            .ends_with(".3")
    );
    cluster.stop().await;
}

#[tokio::test]
async fn services_that_did_not_opt_in_are_neither_paused_nor_preemptible() {
    let cluster = Cluster::start().await;
    let ada = user(&cluster, "ada").await;
    let mut agent = cluster.agent("a1", 2).await;
    let id = launch(&ada, json!({})).await;
    started(&mut agent).await;
    let pause = format!("/api/v1/tasks/{id}/pause");
    let refusal = ada.post(&pause, Value::Null).await.refused(400);
    assert!(refusal.contains("\"preemptible: true\""), "{refusal}");
    let unknown = json!({"preemptible": "yes"});
    ada.post(COMMANDS, request(unknown)).await.refused(400);
    // A generic task can opt out.
    let config = json!({"config": "entrypoint: [x]\npreemptible: false"});
    let task = create(&ada, config).await;
    started(&mut agent).await;
    let pause = format!("/api/v1/tasks/{task}/pause");
    ada.post(&pause, Value::Null).await.refused(400);
    cluster.stop().await;
}

#[tokio::test]
async fn a_running_service_keeps_its_slots_whatever_its_priority_becomes() {
    let scheduler = "{type: priority, preemption: true}";
    let manager = format!("{{type: agent, scheduler: {scheduler}}}");
    let cluster = Cluster::start_with(&[("resource_manager", &manager)]).await;
    let ada = user(&cluster, "ada").await;
    let mut agent = cluster.agent("a1", 1).await;
    let body = json!({"config": {"resources": {"slots": 1, "priority": 50}}});
    let made = ada.post("/api/v1/shells", body).await.ok();
    let shell = made["shell"]["id"].as_str().unwrap().to_owned();
    let spec = started(&mut agent).await;
    let shown = format!("/api/v1/shells/{shell}");
    let runs = |answer: &Value| answer["shell"]["state"] == "STATE_RUNNING";
    cluster.until(&ada, &shown, runs).await;
    // More important work waits beside it.
    let urgent = launch(&ada, json!({"resources": {"slots": 1, "priority": 1}})).await;
    let why = format!("/api/v1/job-queues/{urgent}/why");
    let waits = |answer: &Value| {
        let reason = &answer["waiting"][0]["waitReason"];
        reason["kind"] == "not_enough_free_slots"
    };
    cluster.until(&ada, &why, waits).await;
    for priority in [99, 1] {
        let path = format!("/api/v1/shells/{shell}/set_priority");
        let changed = ada.post(&path, json!({"priority": priority})).await.ok();
        assert_eq!(changed["shell"]["id"], shell);
        let jobs = ada.get("/api/v1/job-queues").await.ok();
        let jobs = jobs["jobs"].as_array().unwrap();
        let of_shell = jobs.iter().find(|job| job["entityId"] == shell.as_str());
        assert_eq!(of_shell.unwrap()["priority"], priority, "{jobs:?}");
        cluster.until(&ada, &why, waits).await;
        let shown = ada.get(&format!("/api/v1/shells/{shell}")).await.ok();
        assert_eq!(shown["shell"]["state"], "STATE_RUNNING");
    }
    // The agent has received no order about it: the next one follows its end.
    agent.exits(&spec, 0).await;
    agent.forgets(&spec).await;
    let next = started(&mut agent).await;
    assert_eq!(next.task_id.as_str(), urgent);
    cluster.stop().await;
}
