//! A running master takes on another configuration: all of it, or nothing.

use det_agent_proto::ToAgent;
use det_ids::ExperimentId;
use det_server::app::reload::{Mode, ReloadCaller};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Client, Cluster};

const RELOAD: &str = "/api/v1/master/reload";

async fn reload(client: &Client) -> Value {
    client.post(RELOAD, json!({})).await.ok()
}

/// The changed keys of an answer with their new values.
fn changed(answer: &Value) -> Vec<(String, Value)> {
    let changes = answer["changes"].as_array().unwrap();
    changes
        .iter()
        .map(|c| (c["path"].as_str().unwrap().to_owned(), c["to"].clone()))
        .collect()
}

/// The newest event of the master, if it has one.
async fn last_event(client: &Client) -> Value {
    let info = client.get("/info").await.ok();
    let path = format!(
        "/api/v1/events?subjectKind=master&subjectId={}",
        info["cluster_id"].as_str().unwrap()
    );
    let events = client.get(&path).await.ok();
    events["events"]
        .as_array()
        .unwrap()
        .last()
        .cloned()
        .unwrap_or_default()
}

async fn pools(client: &Client) -> Vec<String> {
    let answer = client.get("/api/v1/resource-pools").await.ok();
    let pools = answer["resourcePools"].as_array().unwrap();
    pools
        .iter()
        .map(|p| p["name"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one history, step by step")]
async fn everything_that_differs_is_taken_on_at_once_and_reported() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    assert_eq!(changed(&reload(&admin).await), []);
    assert_eq!(last_event(&admin).await, Value::Null);

    cluster.written.write(
        "
cluster_name: lab
log: {level: debug}
notebook_timeout: 60
webhooks: {base_url: 'https://lab.example'}
feature_switches: [streaming_updates]
resource_manager: {metadata: {site: here}}
resource_pools:
  - pool_name: default
    description: the one
    max_aux_containers_per_agent: 3
    scheduler: {type: fair_share}
  - {pool_name: more}
",
    );
    let would = admin.post(RELOAD, json!({"validateOnly": true})).await.ok();
    assert_eq!(admin.get("/info").await.ok()["cluster_name"], "");
    let answer = reload(&admin).await;
    assert_eq!(would["changes"], answer["changes"]);
    let changes = changed(&answer);
    for expected in [
        ("cluster_name", json!("lab")),
        ("log.level", json!("debug")),
        (
            "resource_pools[default].scheduler.type",
            json!("fair_share"),
        ),
        ("resource_pools[more].pool_name", json!("more")),
    ] {
        let expected = (expected.0.to_owned(), expected.1);
        assert!(
            changes.contains(&expected),
            "{changes:?} lacks {expected:?}"
        );
    }
    let kept: Vec<&Value> = answer["changes"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|c| c["acts"] == false)
        .map(|c| &c["path"])
        .collect();
    assert_eq!(kept, ["webhooks.base_url"]);
    assert!(
        answer["warnings"][0]
            .as_str()
            .unwrap()
            .contains("not acted on yet"),
        "{answer}"
    );

    // Every reader has it.
    assert_eq!(admin.get("/info").await.ok()["cluster_name"], "lab");
    assert_eq!(
        admin.get("/api/v1/master").await.ok()["featureSwitches"],
        json!(["streaming_updates"])
    );
    assert_eq!(*cluster.written.levels.lock().unwrap(), ["debug"]);
    let answer = admin.get("/api/v1/resource-pools").await.ok();
    let pool = &answer["resourcePools"][0];
    assert_eq!(
        (&pool["description"], &pool["auxContainerCapacityPerAgent"]),
        (&json!("the one"), &json!(3))
    );
    assert_eq!(pool["schedulerType"], "SCHEDULER_TYPE_FAIR_SHARE");
    assert_eq!(pool["resourceManagerMetadata"], json!({"site": "here"}));
    assert_eq!(pools(&admin).await, ["default", "more"]);
    let more = cluster.agent_in("more", "a", 1).await;
    let shown = admin.get("/api/v1/master/config").await.ok();
    assert_eq!(shown["config"]["notebook_timeout"], 60);
    let shown = admin.get("/api/v1/master/config/origins").await.ok();
    let origin = shown["origins"]
        .as_array()
        .unwrap()
        .iter()
        .find(|key| key["path"] == "cluster_name")
        .unwrap();
    assert_eq!(
        *origin,
        json!({"path": "cluster_name", "value": "lab", "layer": "document", "place": "master.yaml:2"})
    );

    let event = last_event(&admin).await;
    assert_eq!(
        (&event["kind"], &event["actor"]),
        (&json!("configuration"), &json!("user:admin"))
    );
    assert!(
        event["detail"].to_string().contains("cluster_name"),
        "{event}"
    );
    drop(more);
    cluster.stop().await;
}

#[tokio::test]
async fn a_refusal_has_every_reason_and_changes_nothing() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    cluster
        .written
        .write("cluster_name: lab\nlogging: {type: elastic, host: h, port: 9200}\ndb: {url: \"postgres://u:hidden@h/n\"}\n");
    let answer = admin.post(RELOAD, json!({})).await;
    let refused = answer.refused(400);
    for reason in [
        "db.url: the database is opened at start; it is ",
        "logging.type: where logs are kept is chosen at start",
    ] {
        assert!(refused.contains(reason), "{refused}");
    }
    assert!(!answer.text.contains("hidden"), "{answer:?}");
    assert_eq!(admin.get("/info").await.ok()["cluster_name"], "");
    let event = last_event(&admin).await;
    assert_eq!(event["kind"], "configuration_refused");
    assert!(
        event["reason"].as_str().unwrap().contains("db.url"),
        "{event}"
    );
    cluster.stop().await;
}

#[tokio::test]
async fn errors_are_reported_with_their_places_and_the_configuration_stays() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    cluster
        .written
        .write("cluster_name: lab\nport: many\nresource_pools:\n  - {pool_nam: x}\n");
    let answer = admin.post(RELOAD, json!({})).await;
    let refused = answer.refused(400);
    for error in [
        "master.yaml:4:6: resource_pools[0].pool_nam: is not a known key",
        "did you mean \"pool_name\"?",
    ] {
        assert!(refused.contains(error), "{refused}");
    }
    assert_eq!(admin.get("/info").await.ok()["cluster_name"], "");
    assert_eq!(last_event(&admin).await["kind"], "configuration_refused");
    cluster.stop().await;
}

#[tokio::test]
async fn a_pool_goes_only_when_nothing_is_in_it() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    let two = "resource_pools: [{pool_name: default}, {pool_name: other}]\n\
        resource_manager: {default_aux_resource_pool: default, default_compute_resource_pool: default}";
    let one = "resource_pools: [{pool_name: default}]\n\
        resource_manager: {default_aux_resource_pool: default, default_compute_resource_pool: default}";
    cluster.written.write(two);
    reload(&admin).await;

    // Paused work without any allocation is in its pool too.
    let config = json!({
        "name": "waits", "entrypoint": "true", "searcher": {"name": "single", "metric": "loss"},
        "resources": {"resource_pools": ["default", "other"]},
    });
    let body = json!({"config": config.to_string(), "activate": false,
        "modelDefinition": [{"path": "train.py", "type": 48, "content": "", "mode": 0o644, "mtime": 1_700_000_000}]});
    let made = admin.post("/api/v1/experiments", body).await.ok();
    let id = made["experiment"]["id"].as_i64().unwrap();
    let agent = cluster.agent_in("other", "a", 1).await;
    cluster.written.write(one);
    let answer = admin.post(RELOAD, json!({})).await;
    assert!(
        answer.text.contains("stop what runs containers there"),
        "{answer:?}"
    );
    assert!(
        !answer.text.contains("start the master again"),
        "{answer:?}"
    );
    let refused = answer.refused(400);
    assert!(
        refused.contains(
            "resource_pools[other]: resource pool \"other\" cannot go while 1 agent (a) and 1 job"
        ),
        "{refused}"
    );
    assert_eq!(pools(&admin).await, ["default", "other"]);

    // What was refused is not half done: work still goes there.
    drop(agent);
    let agent = "/api/v1/events?subjectKind=agent&subjectId=a";
    cluster
        .until(&admin, agent, |answer| {
            let mut events = answer["events"].as_array().into_iter().flatten();
            events.any(|event| event["kind"] == "disconnected")
        })
        .await;
    admin
        .post(&format!("/api/v1/experiments/{id}/kill"), Value::Null)
        .await
        .ok();
    cluster
        .until(&admin, &format!("/api/v1/experiments/{id}"), |answer| {
            answer["experiment"]["state"] == "STATE_CANCELED"
        })
        .await;
    cluster.written.write(&format!(
        "{one}\n# An agent that is away is not waited for any more.\n"
    ));
    let still = admin.post(RELOAD, json!({})).await.refused(400);
    assert!(still.contains("1 agent (a) is in it"), "{still}");
    cluster.written.write(
        "resource_pools: [{pool_name: default}, {pool_name: other, agent_reconnect_wait: 0s}]\n\
         resource_manager: {default_aux_resource_pool: default, default_compute_resource_pool: default}",
    );
    reload(&admin).await;
    cluster.written.write(one);
    reload(&admin).await;
    assert_eq!(pools(&admin).await, ["default"]);
    let refused = admin
        .post(
            "/api/v1/experiments",
            json!({"config": json!({"name": "x", "entrypoint": "true", "searcher": {"name": "single", "metric": "loss"},
                "resources": {"resource_pool": "other"}}).to_string()}),
        )
        .await
        .refused(400);
    assert!(
        refused.contains("pool \"other\" does not exist"),
        "{refused}"
    );
    cluster.stop().await;
}

/// Without preemption a better job waits for the slot; with it the slot is its.
#[tokio::test]
async fn waiting_work_is_scheduled_by_the_new_settings_at_once() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    let mut agent = cluster.agent("a", 1).await;
    cluster.experiment("first", 1).await;
    let spec = agent.next_start().await;
    agent.runs(&spec).await;
    let second = cluster.experiment("second", 1).await;
    let job = job_of(&cluster, second).await;
    let body = json!({"updates": [{"jobId": job, "priority": 1}]});
    admin.post("/api/v1/job-queues", body).await.ok();
    cluster
        .written
        .write("resource_manager: {scheduler: {type: priority, preemption: true}}\n\
            integrations: {pachyderm: {address: 'pachd:30650'}}\n\
            task_container_defaults: {startup_hook: echo new, nccl_port_range: '30000:31000', gloo_port_range: '31001:32000'}");
    reload(&admin).await;
    let why = format!("/api/v1/job-queues/{job}/why");
    let kind = |answer: &Value| answer["waiting"][0]["waitReason"]["kind"].clone();
    cluster
        .until(&admin, &why, |answer| {
            kind(answer) == "waiting_for_preemption"
        })
        .await;
    agent.exits(&spec, 0).await;
    let next = loop {
        // Perhaps it was too early to ask it to save.
        if let ToAgent::Start(next) = agent.receive().await {
            break next;
        }
    };
    assert!(
        next.description.contains(&format!("experiment {second}")),
        "{}",
        next.description
    );
    // What is started from now on has the new defaults.
    assert_eq!(next.script.pool_startup_hook.as_deref(), Some("echo new"));
    for (name, range) in [
        ("NCCL_PORT_RANGE", "30000:31000"),
        ("GLOO_PORT_RANGE", "31001:32000"),
        ("PACHD_ADDRESS", "pachd:30650"),
    ] {
        let variable = (name.to_owned(), range.to_owned());
        assert!(next.script.env.contains(&variable), "{variable:?}");
    }
    cluster.stop().await;
}

async fn job_of(cluster: &Cluster, experiment: ExperimentId) -> String {
    let (_, allocation) = cluster.task_of(experiment).await;
    allocation.job_id.0
}

#[tokio::test]
async fn the_level_of_the_log_is_set_until_the_configuration_is_read_again() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    let path = "/api/v1/master/config";
    // As the unmodified client sends it.
    let body = json!({"config": {"log": {"level": "LOG_LEVEL_DEBUG"}}, "fieldMask": {"paths": ["log.level"]}});
    admin.patch(path, body.clone()).await.ok();
    admin.patch(path, body).await.ok();
    assert_eq!(*cluster.written.levels.lock().unwrap(), ["debug"]);
    let config = admin.get(path).await.ok();
    assert_eq!(config["config"]["log"]["level"], "debug");
    let origins = admin.get("/api/v1/master/config/origins").await.ok();
    let origins = origins["origins"].as_array().unwrap();
    let level = origins.iter().find(|key| key["path"] == "log.level");
    assert_eq!(
        *level.unwrap(),
        json!({"path": "log.level", "value": "debug", "layer": "override", "place": "det master config set"})
    );
    for (body, reason) in [
        (
            json!({"config": {"log": {"color": false}}}),
            "log.color cannot change",
        ),
        (
            json!({"config": {"log": {"level": "LOG_LEVEL_INFO"}}, "fieldMask": "log.level,port"}),
            "\"port\" cannot be patched",
        ),
        (json!({}), "there is nothing to change"),
    ] {
        let refused = admin.patch(path, body).await.refused(400);
        assert!(refused.contains(reason), "{refused}");
    }
    let color = json!({"config": {"log": {"color": true}}, "fieldMask": "log.color"});
    admin.patch(path, color).await.ok();
    assert_eq!(
        changed(&reload(&admin).await),
        [("log.level".to_owned(), json!("info"))]
    );
    assert_eq!(*cluster.written.levels.lock().unwrap(), ["debug", "info"]);
    cluster.stop().await;
}

#[tokio::test]
async fn pages_of_other_origins_are_let_in_while_that_is_configured() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    let from_elsewhere = cluster.client().with("Origin", "https://elsewhere.example");
    let allowed = |reply: &crate::support::Reply| {
        reply
            .headers
            .get("access-control-allow-origin")
            .map(|value| value.to_str().unwrap().to_owned())
    };
    assert_eq!(allowed(&from_elsewhere.get("/info").await), None);
    cluster.written.write("enable_cors: true");
    reload(&admin).await;
    assert_eq!(
        allowed(&from_elsewhere.get("/info").await).as_deref(),
        Some("*")
    );
    assert_eq!(allowed(&cluster.client().get("/info").await), None);
    let preflight = reqwest::Client::new()
        .request(
            Method::OPTIONS,
            format!("http://{}/api/v1/experiments", cluster.master_address()),
        )
        .header("Origin", "https://elsewhere.example")
        .header("Access-Control-Request-Method", "POST")
        .header("Access-Control-Request-Headers", "authorization")
        .send()
        .await
        .unwrap();
    assert_eq!(preflight.status(), 204);
    assert_eq!(
        preflight.headers()["access-control-allow-headers"],
        "authorization"
    );
    assert_eq!(preflight.headers()["access-control-allow-origin"], "*");
    cluster.stop().await;
}

#[tokio::test]
async fn only_administrators_reload_and_a_signal_is_named_in_the_event() {
    let cluster = Cluster::start().await;
    let determined = cluster.determined().await;
    let refused = determined.post(RELOAD, json!({})).await.refused(403);
    assert!(refused.contains("administrator"), "{refused}");
    cluster
        .client()
        .assert_needs_token(Method::POST, RELOAD)
        .await;
    cluster.written.write("cluster_name: lab");
    let reloaded = cluster
        .master()
        .reload
        .take_on(ReloadCaller::Signal, Mode::Apply)
        .await;
    assert_eq!(reloaded.unwrap().changes.len(), 1);
    let event = last_event(&cluster.admin().await).await;
    assert_eq!(event["actor"], "signal:SIGHUP");
    cluster.stop().await;
}
