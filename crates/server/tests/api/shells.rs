//! Shells: their keys, their ports, who is given what.

use det_taskspec::{ContainerSpec, Entrypoint, SHELL_PORTS, TaskKind};
use serde_json::{Value, json};

use crate::support::{Client, Cluster};

const SHELLS: &str = "/api/v1/shells";

/// A user of this name, who is made first.
async fn user(cluster: &Cluster, name: &str) -> Client {
    let new = json!({"user": {"username": name, "active": true}});
    cluster.admin().await.post("/api/v1/users", new).await.ok();
    cluster.user(name).await
}

async fn launch(client: &Client, config: Value) -> Value {
    client.post(SHELLS, json!({"config": config})).await.ok()
}

fn id_of(answer: &Value) -> String {
    answer["shell"]["id"].as_str().unwrap().to_owned()
}

async fn get(client: &Client, id: &str) -> Value {
    client.get(&format!("{SHELLS}/{id}")).await.ok()["shell"].clone()
}

fn port_of(spec: &ContainerSpec) -> u16 {
    match spec.script.entrypoint {
        Entrypoint::SshServer { port } => port,
        _ => panic!("{:?}", spec.script.entrypoint),
    }
}

#[tokio::test]
async fn a_shell_starts_with_its_key_and_is_ready_when_its_server_listens() {
    let cluster = Cluster::start().await;
    let ada = user(&cluster, "ada").await;
    let mut agent = cluster.agent("a1", 2).await;
    let made = launch(&ada, json!({"description": "mine"})).await;
    let id = id_of(&made);
    let shell = &made["shell"];
    let private = shell["privateKey"].as_str().unwrap();
    assert!(
        private.starts_with("-----BEGIN OPENSSH PRIVATE KEY-----\n"),
        "{private}"
    );
    let public = shell["publicKey"].as_str().unwrap();
    assert!(public.starts_with("ssh-ed25519 "), "{public}");
    // Who opens it needs the name of the user in it.
    assert_eq!(
        shell["agentUserGroup"],
        json!({"user": "root", "uid": 0, "group": "root", "gid": 0})
    );
    assert_eq!(shell["addresses"], json!([]));
    let messages = made["messages"].as_array().unwrap();
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert!(messages[0].as_str().unwrap().contains("files are lost"));

    let spec = agent.next_start().await;
    assert_eq!(spec.script.task_type, TaskKind::Shell);
    let port = port_of(&spec);
    assert!(SHELL_PORTS.contains(&port), "{port}");
    assert_eq!(spec.ports, [port]);
    assert!(spec.script.startup_hook && spec.script.context);
    let has = |content: &str| spec.script.files.iter().any(|file| file.content == content);
    assert!(has(private) && has(public));
    agent.runs(&spec).await;

    let path = format!("{SHELLS}/{id}");
    let running = |answer: &Value| answer["shell"]["state"] == "STATE_RUNNING";
    cluster.until(&ada, &path, running).await;
    let task = format!("/api/v1/tasks/{id}");
    let ready = async || ada.get(&task).await.ok()["task"]["allocations"][0]["isReady"].clone();
    assert_eq!(ready().await, false);
    let own = cluster.client().as_task(&spec.script.token);
    let report = format!("/api/v1/allocations/{}/ready", spec.allocation_id);
    own.post(&report, json!({})).await.ok();
    assert_eq!(ready().await, true);
    // A repeated report, as after a lost answer, changes nothing.
    own.post(&report, json!({})).await.ok();
    assert_eq!(ready().await, true);

    let killed = ada.post(&format!("{path}/kill"), Value::Null).await.ok();
    assert_eq!(killed["shell"]["id"], id);
    assert!(!agent.next_kill().await, "at once");
    agent.exits(&spec, 137).await;
    let ended = |answer: &Value| answer["shell"]["state"] == "STATE_TERMINATED";
    cluster.until(&ada, &path, ended).await;
    cluster.stop().await;
}

#[tokio::test]
async fn the_key_of_a_shell_is_for_its_owner_and_the_owners_tasks_alone() {
    let cluster = Cluster::start().await;
    let (ada, bob) = (user(&cluster, "ada").await, user(&cluster, "bob").await);
    let mut agent = cluster.agent("a1", 2).await;
    let id = id_of(&launch(&ada, json!({"resources": {"slots": 1}})).await);
    let spec = agent.next_start().await;
    let of_bob = launch(&bob, json!({"resources": {"slots": 1}})).await;
    let spec_of_bob = agent.next_start().await;
    let own_task = cluster.client().as_task(&spec.script.token);
    let other_task = cluster.client().as_task(&spec_of_bob.script.token);
    let admin = cluster.admin().await;
    let path = format!("{SHELLS}/{id}");
    for (who, client, given) in [
        ("ada", &ada, true),
        ("her task", &own_task, true),
        ("bob", &bob, false),
        ("his task", &other_task, false),
        ("an administrator", &admin, false),
    ] {
        let listed = client.get(&format!("{SHELLS}?users=ada")).await.ok()["shells"][0].clone();
        for shell in [get(client, &id).await, listed] {
            let key = shell["privateKey"].as_str().unwrap();
            assert_eq!(!key.is_empty(), given, "{who}");
            assert_ne!(shell["publicKey"], "", "{who}");
        }
    }
    // What changes a shell shows it, too.
    let priority = json!({"priority": 7});
    for (call, body) in [("set_priority", priority), ("kill", Value::Null)] {
        let changed = admin.post(&format!("{path}/{call}"), body).await.ok();
        assert_eq!(changed["shell"]["id"], id, "{call}");
        assert_eq!(changed["shell"]["privateKey"], "", "{call}");
    }
    // No other reader shows keys.
    let key = of_bob["shell"]["privateKey"].as_str().unwrap();
    let of_bob = id_of(&of_bob);
    let line = key.lines().nth(1).unwrap();
    for path in [
        format!("/api/v1/tasks/{of_bob}"),
        format!("{SHELLS}/{of_bob}"),
        "/api/v1/tasks".to_owned(),
        "/api/v1/job-queues-v2?resourcePool=default".to_owned(),
    ] {
        let shown = admin.get(&path).await.ok().to_string();
        assert!(!shown.contains(line), "{path}: {shown}");
    }
    cluster.stop().await;
}

/// A cluster in which shells have these ports only.
async fn with_ports(free: [u16; 2]) -> Cluster {
    let reserved: Vec<u16> = SHELL_PORTS.filter(|port| !free.contains(port)).collect();
    let reserved = format!("{reserved:?}");
    let flags = [
        ("launch_error", "false"),
        ("reserved_ports", reserved.as_str()),
    ];
    Cluster::start_with(&flags).await
}

fn with_slot() -> Value {
    json!({"resources": {"slots": 1}})
}

#[tokio::test]
async fn shells_on_one_host_have_different_ports_and_those_on_others_may_have_the_same() {
    let free = [3207_u16, 3499];
    let cluster = with_ports(free).await;
    let ada = user(&cluster, "ada").await;
    let mut agent = cluster.agent("a1", 2).await;
    let first = id_of(&launch(&ada, with_slot()).await);
    let spec = agent.next_start().await;
    launch(&ada, with_slot()).await;
    let mut ports = [port_of(&spec), port_of(&agent.next_start().await)];
    ports.sort_unstable();
    assert_eq!(ports, free);

    // Another agent of the same host has no ports of its own.
    let beside = cluster.agent("a2", 1).await;
    let third = id_of(&launch(&ada, with_slot()).await);
    let ended = |answer: &Value| answer["shell"]["state"] == "STATE_TERMINATED";
    let path = format!("{SHELLS}/{third}");
    let shown = cluster.until(&ada, &path, ended).await;
    let reason = shown["shell"]["exitStatus"].as_str().unwrap();
    assert!(
        reason.contains("no port is left for the service of the task: services of other tasks on its host have all from 3200 to 3499"),
        "{reason}"
    );
    let admin = cluster.admin().await;
    admin
        .post("/api/v1/agents/a2/disable", Value::Null)
        .await
        .ok();
    drop(beside);

    let mut elsewhere = cluster.agent("b1-on-10.0.0.9", 1).await;
    let fourth = id_of(&launch(&ada, with_slot()).await);
    let other = elsewhere.next_start().await;
    assert!(free.contains(&port_of(&other)));
    elsewhere.runs(&other).await;
    let running = |answer: &Value| answer["shell"]["state"] == "STATE_RUNNING";
    cluster
        .until(&ada, &format!("{SHELLS}/{fourth}"), running)
        .await;
    // The port that a shell had is free again.
    ada.post(&format!("{SHELLS}/{first}/kill"), Value::Null)
        .await
        .ok();
    assert!(!agent.next_kill().await, "at once");
    agent.exits(&spec, 137).await;
    cluster
        .until(&ada, &format!("{SHELLS}/{first}"), ended)
        .await;
    agent.forgets(&spec).await;
    launch(&ada, with_slot()).await;
    assert_eq!(port_of(&agent.next_start().await), port_of(&spec));
    cluster.stop().await;
}

#[tokio::test]
async fn a_shell_never_has_a_port_that_its_configuration_uses() {
    let free = [3207_u16, 3499];
    let cluster = with_ports(free).await;
    let ada = user(&cluster, "ada").await;
    let mut agent = cluster.agent("a1", 1).await;
    let using = |ports: &[u16]| {
        let mut config = with_slot();
        let ports: Vec<Value> = ports
            .iter()
            .map(|port| json!({"proxy_port": port}))
            .collect();
        config["environment"] = json!({"proxy_ports": ports});
        config
    };
    let refusal = ada
        .post(SHELLS, json!({"config": using(&free)}))
        .await
        .refused(503);
    assert!(
        refusal.starts_with("no port is left for a shell: tasks of this kind have 3200 to 3499"),
        "{refusal}"
    );
    let listed = ada.get(SHELLS).await.ok();
    assert_eq!(listed["shells"], json!([]), "nothing was stored");
    launch(&ada, using(&free[..1])).await;
    assert_eq!(port_of(&agent.next_start().await), free[1]);
    cluster.stop().await;
}

#[tokio::test]
async fn a_linked_user_enters_shells_under_the_linked_name() {
    let cluster = Cluster::start().await;
    let ada = user(&cluster, "ada").await;
    let linked =
        json!({"agentUser": "svc", "agentUid": 1234, "agentGroup": "lab", "agentGid": 1235});
    let me = ada.get("/api/v1/me").await.ok()["user"]["id"].clone();
    let change = json!({"agentUserGroup": linked});
    let path = format!("/api/v1/users/{me}");
    cluster.admin().await.patch(&path, change).await.ok();
    let mut agent = cluster.agent("a1", 2).await;
    let made = launch(&ada, json!({})).await;
    let group = &made["shell"]["agentUserGroup"];
    assert_eq!(
        *group,
        json!({"user": "svc", "uid": 1234, "group": "lab", "gid": 1235})
    );
    assert_eq!(agent.next_start().await.user.user, group["user"]);
    cluster.stop().await;
}

#[tokio::test]
async fn a_key_of_another_type_than_the_configured_one_is_pointed_out() {
    let flags = [
        ("launch_error", "false"),
        ("security", "{ssh: {key_type: RSA}}"),
    ];
    let cluster = Cluster::start_with(&flags).await;
    let ada = user(&cluster, "ada").await;
    let made = launch(&ada, json!({})).await;
    let messages = made["messages"].to_string();
    assert!(
        messages.contains("keys of the type RSA") && messages.contains("ED25519 keys only"),
        "{messages}"
    );
    cluster.stop().await;
}

#[tokio::test]
async fn the_server_of_a_shell_is_reached_without_credentials_over_a_websocket_only() {
    let cluster = Cluster::start().await;
    let ada = user(&cluster, "ada").await;
    let mut agent = cluster.agent("a1", 2).await;
    let id = id_of(&launch(&ada, json!({})).await);
    let nobody = cluster.client().anonymous();
    let refusal = nobody.get(&format!("/proxy/{id}/")).await.refused(503);
    assert!(refusal.contains("does not run yet"), "{refusal}");
    let spec = agent.next_start().await;
    let port = port_of(&spec);
    let running = det_agent_proto::ContainerState::Running {
        host_address: "127.0.0.1".into(),
        ports: vec![(port, port)],
        runtime_id: "1".into(),
    };
    agent.report(&spec, running).await;
    let is_running = |answer: &Value| answer["shell"]["state"] == "STATE_RUNNING";
    let shown = cluster
        .until(&ada, &format!("{SHELLS}/{id}"), is_running)
        .await;
    assert_eq!(
        shown["shell"]["addresses"],
        json!([{"containerPort": port, "hostIp": "127.0.0.1", "hostPort": port}])
    );
    for name in [id.clone(), format!("{id}:{port}")] {
        let refusal = nobody.get(&format!("/proxy/{name}/")).await.refused(400);
        assert!(refusal.contains("over a WebSocket"), "{refusal}");
    }
    nobody.get(&format!("/proxy/{id}:1/")).await.refused(404);
    cluster.stop().await;
}
