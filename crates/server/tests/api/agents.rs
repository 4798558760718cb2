//! Agents and slots.

use reqwest::Method;
use serde_json::{Value, json};

use det_store::allocations::{self, AllocationRow, TaskRow};
use det_store::{StoreError, experiments};
use det_taskspec::TaskKind;

use crate::support::Cluster;

fn ids(answer: &Value) -> Vec<&str> {
    answer["agents"]
        .as_array()
        .unwrap()
        .iter()
        .map(|a| a["id"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn agents_are_listed_with_slots_and_containers() {
    let cluster = Cluster::start().await;
    let (_agent, spec) = cluster.running_task().await;
    let _other = cluster.agent("b2", 2).await;
    let client = cluster.determined().await;
    let agents = cluster
        .until(&client, "/api/v1/agents", |a| {
            a["agents"][0]["slots"]["0"]["container"]["state"] == "STATE_RUNNING"
        })
        .await;
    assert_eq!(ids(&agents), ["a1", "b2"]);
    let first = &agents["agents"][0];
    assert_eq!(
        first["slots"]["0"]["container"]["id"],
        spec.container_id.as_str()
    );
    assert_eq!(
        first["containers"][spec.container_id.as_str()]["devices"][0]["type"],
        "TYPE_CPU"
    );
    assert_eq!(
        (&first["resourcePools"], &first["addresses"]),
        (&json!(["default"]), &json!(["127.0.0.1"]))
    );
    assert_eq!(
        (&first["enabled"], &first["draining"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(
        first["slotStats"]["typeStats"]["TYPE_CPU"]["states"]["STATE_RUNNING"],
        1
    );
    assert_eq!(first["slotStats"]["brandStats"]["Test CPU"]["total"], 1);

    assert_eq!(
        ids(&client
            .get("/api/v1/agents?orderBy=ORDER_BY_DESC&limit=1")
            .await
            .ok()),
        ["b2"]
    );
    assert_eq!(
        ids(&client
            .get("/api/v1/agents?sortBy=SORT_BY_TIME&offset=1")
            .await
            .ok()),
        ["b2"]
    );
    let bare = client
        .get("/api/v1/agents?excludeSlots=true&exclude_containers=true")
        .await
        .ok();
    assert_eq!(
        (
            &bare["agents"][0]["slots"],
            &bare["agents"][0]["containers"]
        ),
        (&json!({}), &json!({}))
    );
    assert!(
        client
            .get("/api/v1/agents?limit=many")
            .await
            .refused(400)
            .contains("limit")
    );
    cluster.stop().await;
}

#[tokio::test]
async fn one_agent_and_its_slots() {
    let cluster = Cluster::start().await;
    let _agent = cluster.agent("a1", 12).await;
    let client = cluster.determined().await;
    assert_eq!(
        client.get("/api/v1/agents/a1").await.ok()["agent"]["id"],
        "a1"
    );
    let slots = client.get("/api/v1/agents/a1/slots").await.ok();
    let order: Vec<&str> = slots["slots"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["id"].as_str().unwrap())
        .collect();
    assert_eq!(
        order,
        ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"]
    );
    assert_eq!(
        client.get("/api/v1/agents/a1/slots/11").await.ok()["slot"]["device"]["uuid"],
        "a1-11"
    );
    assert_eq!(
        client.get("/api/v1/agents/a1/slots/003").await.ok()["slot"]["id"],
        "3"
    );
    for path in [
        "/api/v1/agents/x",
        "/api/v1/agents/x/slots",
        "/api/v1/agents/x/slots/0",
        "/api/v1/agents/a1/slots/99",
    ] {
        assert!(
            client.get(path).await.refused(404).contains("not found"),
            "{path}"
        );
    }
    assert!(
        client
            .get("/api/v1/agents/a1/slots/first")
            .await
            .refused(400)
            .contains("number of a slot")
    );
    cluster.stop().await;
}

#[tokio::test]
async fn an_agent_is_disabled_drained_and_enabled() {
    let cluster = Cluster::start().await;
    let (mut agent, spec) = cluster.running_task().await;
    let admin = cluster.admin().await;
    let disable = "/api/v1/agents/a1/disable";

    let drained = admin.post(disable, json!({"drain": true})).await.ok()["agent"].clone();
    assert_eq!(
        (&drained["enabled"], &drained["draining"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(drained["slots"]["0"]["draining"], true);
    assert!(
        drained["slots"]["0"]["container"].is_object(),
        "what runs goes on"
    );

    // The client sends no body for a plain disable.
    let disabled = admin.post(disable, json!(null)).await.ok()["agent"].clone();
    assert_eq!(
        (&disabled["enabled"], &disabled["draining"]),
        (&json!(false), &json!(false))
    );
    agent.next_kill().await;
    agent.exits(&spec, 137).await;
    cluster
        .until(&admin, "/api/v1/agents/a1", |a| {
            a["agent"]["containers"] == json!({})
        })
        .await;

    let enabled = admin
        .post("/api/v1/agents/a1/enable", json!(null))
        .await
        .ok()["agent"]
        .clone();
    assert_eq!(
        (&enabled["enabled"], &enabled["slots"]["0"]["enabled"]),
        (&json!(true), &json!(true))
    );

    let determined = cluster.determined().await;
    assert!(
        determined
            .post(disable, json!(null))
            .await
            .refused(403)
            .contains("administrator")
    );
    assert!(
        determined
            .post("/api/v1/agents/a1/enable", json!(null))
            .await
            .refused(403)
            .contains("administrator")
    );
    assert!(
        admin
            .post("/api/v1/agents/x/disable", json!(null))
            .await
            .refused(404)
            .contains('x')
    );
    assert!(
        admin
            .post("/api/v1/agents/x/enable", json!(null))
            .await
            .refused(404)
            .contains('x')
    );
    assert!(
        admin
            .post(disable, json!({"drain": "soon"}))
            .await
            .refused(400)
            .contains("drain")
    );
    cluster.stop().await;
}

#[tokio::test]
async fn a_slot_is_disabled_drained_and_enabled() {
    let cluster = Cluster::start().await;
    let _agent = cluster.agent("a1", 2).await;
    let admin = cluster.admin().await;
    let slot = "/api/v1/agents/a1/slots/1";
    let disabled = admin
        .post(&format!("{slot}/disable"), json!(null))
        .await
        .ok()["slot"]
        .clone();
    assert_eq!(
        (&disabled["enabled"], &disabled["draining"]),
        (&json!(false), &json!(false))
    );
    let drained = admin
        .post(&format!("{slot}/disable"), json!({"drain": true}))
        .await
        .ok()["slot"]
        .clone();
    assert_eq!(
        (&drained["enabled"], &drained["draining"]),
        (&json!(false), &json!(true))
    );
    let agent = admin.get("/api/v1/agents/a1").await.ok()["agent"].clone();
    assert_eq!(
        (&agent["enabled"], &agent["slots"]["0"]["enabled"]),
        (&json!(true), &json!(true))
    );
    assert_eq!(agent["slotStats"]["typeStats"]["TYPE_CPU"]["draining"], 1);
    assert_eq!(
        admin
            .post(&format!("{slot}/enable"), json!(null))
            .await
            .ok()["slot"]["enabled"],
        true
    );

    let determined = cluster.determined().await;
    assert!(
        determined
            .post(&format!("{slot}/disable"), json!(null))
            .await
            .refused(403)
            .contains("administrator")
    );
    assert!(
        admin
            .post("/api/v1/agents/a1/slots/9/enable", json!(null))
            .await
            .refused(404)
            .contains("a1/9")
    );
    assert!(
        admin
            .post("/api/v1/agents/x/slots/0/enable", json!(null))
            .await
            .refused(404)
            .contains('x')
    );
    assert!(
        admin
            .post("/api/v1/agents/a1/slots/x/disable", json!(null))
            .await
            .refused(400)
            .contains("slot")
    );
    assert!(
        admin
            .post(&format!("{slot}/disable"), json!({"drain": 3}))
            .await
            .refused(400)
            .contains("drain")
    );
    cluster.stop().await;
}

#[tokio::test]
async fn a_token_is_needed() {
    let cluster = Cluster::start().await;
    let client = cluster.client();
    for path in [
        "/api/v1/agents",
        "/api/v1/agents/a",
        "/api/v1/agents/a/slots",
        "/api/v1/agents/a/slots/0",
    ] {
        client.assert_needs_token(Method::GET, path).await;
    }
    for path in [
        "/agents/a/enable",
        "/agents/a/disable",
        "/agents/a/slots/0/enable",
        "/agents/a/slots/0/disable",
    ] {
        client
            .assert_needs_token(Method::POST, &format!("/api/v1{path}"))
            .await;
    }
    cluster.stop().await;
}

#[tokio::test]
async fn an_agent_that_is_away_is_listed_as_drained_until_it_is_back_as_it_was() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent("a1", 2).await;
    let (client, admin) = (cluster.determined().await, cluster.admin().await);
    admin
        .post("/api/v1/agents/a1/slots/1/disable", json!({}))
        .await
        .ok();
    let shown = |answer: &Value| {
        let agent = &answer["agent"];
        let of = |thing: &Value| (thing["enabled"] == true, thing["draining"] == true);
        (
            of(agent),
            of(&agent["slots"]["0"]),
            of(&agent["slots"]["1"]),
        )
    };
    let here = ((true, false), (true, false), (false, false));
    assert_eq!(shown(&client.get("/api/v1/agents/a1").await.ok()), here);
    drop(agent);
    let away = ((false, true), (false, true), (false, true));
    let path = "/api/v1/agents/a1";
    cluster
        .until(&client, path, |a| a["agent"]["enabled"] == false)
        .await;
    assert_eq!(shown(&client.get(path).await.ok()), away);
    let _agent = cluster.agent("a1", 2).await;
    assert_eq!(shown(&client.get(path).await.ok()), here);
    cluster.stop().await;
}

#[tokio::test]
async fn an_agent_that_comes_back_changed_is_notified_and_joins_as_new_afterwards() {
    let pools = "[{pool_name: default}, {pool_name: spare}]";
    let cluster = Cluster::start_with(&[("resource_pools", pools)]).await;
    let (client, admin) = (cluster.determined().await, cluster.admin().await);
    let (agent, spec) = cluster.running_task().await;
    admin
        .post("/api/v1/agents/a1/disable", json!({"drain": true}))
        .await
        .ok();
    drop(agent);
    let (reason, changed) = cluster.refused_agent("default", "a1", 2).await;
    assert!(changed && reason.contains("1 devices"), "{reason}");
    assert!(reason.contains("start it again"), "{reason}");
    assert_eq!(
        ids(&client.get("/api/v1/agents").await.ok()),
        [] as [&str; 0]
    );
    let task = &spec.task_id;
    let log = client
        .get(&format!("/api/v1/tasks/{task}/logs"))
        .await
        .lines();
    assert!(
        log.iter()
            .any(|l| l["log"].as_str().unwrap().contains("came back changed")),
        "{log:?}"
    );
    // As new: what was asked of the old one is gone with it, and its trial starts again.
    let mut agent = cluster.agent("a1", 2).await;
    let again = agent.next_start().await;
    assert_eq!(again.task_id, spec.task_id);
    let shown = client.get("/api/v1/agents/a1").await.ok();
    assert_eq!(shown["agent"]["draining"], false);

    drop(agent);
    let (reason, changed) = cluster.refused_agent("spare", "a1", 2).await;
    assert!(
        changed && reason.contains("\"default\"") && reason.contains("\"spare\""),
        "{reason}"
    );
    let _agent = cluster.agent_in("spare", "a1", 2).await;
    let shown = client.get("/api/v1/agents/a1").await.ok();
    assert_eq!(shown["agent"]["resourcePools"], json!(["spare"]));
    // One that comes back as it was is welcome, also before the end of its last connection has been noticed.
    let _agent = cluster.agent_in("spare", "a1", 2).await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_container_that_cannot_be_specified_ends_its_own_run_only() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let broken = cluster.experiment("broken", 1).await;
    let gone = cluster.experiment("gone", 1).await;
    let good = cluster.experiment("good", 1).await;
    // As nothing that the master writes: the first cannot be read at all, the second has nothing to start.
    let master = cluster.master();
    let found = {
        let mut conn = master.context.store.read().await.unwrap();
        experiments::find(&mut conn.conn(), gone).await.unwrap()
    };
    let mut config: Value = serde_json::from_str(&found.unwrap().config).unwrap();
    config["entrypoint"] = Value::Null;
    let config = config.to_string();
    master
        .context
        .store
        .write(move |tx| {
            Box::pin(async move {
                experiments::set_config(&mut tx.conn(), broken, "{}").await?;
                experiments::set_config(&mut tx.conn(), gone, &config).await?;
                Ok::<_, StoreError>(())
            })
        })
        .await
        .unwrap();
    let mut agent = cluster.agent("a1", 3).await;
    // The connection serves the others.
    let spec = agent.next_start().await;
    assert!(
        spec.description.contains(&format!("experiment {good}")),
        "{}",
        spec.description
    );
    agent.runs(&spec).await;
    for (id, why) in [
        (broken, "configuration of experiment"),
        (gone, "entrypoint"),
    ] {
        let failed = |answer: &Value| answer["experiment"]["state"] == "STATE_ERROR";
        cluster
            .until(&client, &format!("/api/v1/experiments/{id}"), failed)
            .await;
        let (task, allocation) = cluster.task_of(id).await;
        let reason = allocation.exit_reason.unwrap();
        assert!(
            reason.contains("specification cannot be made") && reason.contains(why),
            "{reason}"
        );
        let log = client
            .get(&format!("/api/v1/tasks/{}/logs", task.id))
            .await
            .lines();
        assert!(
            log.iter()
                .any(|line| line["log"].as_str().unwrap().contains(&reason)),
            "{log:?}"
        );
        let events = client
            .get(&format!(
                "/api/v1/events?subjectKind=allocation&subjectId={}",
                allocation.id
            ))
            .await
            .ok();
        assert!(events.to_string().contains(why), "{events}");
    }
    let shown = client.get("/api/v1/agents/a1").await.ok();
    assert_eq!(shown["agent"]["enabled"], true);
    agent.exits(&spec, 0).await;
    cluster.stop().await;
}

#[tokio::test]
async fn an_allocation_whose_configuration_is_missing_ends_with_a_reason() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let experiment = cluster.experiment("trial", 1).await;
    let (task, allocation) = cluster.task_of(experiment).await;
    let command = TaskRow {
        id: "command".into(),
        kind: TaskKind::Command,
        experiment_id: None,
        trial_id: None,
        ..task
    };
    let attempt = AllocationRow {
        id: "command.1".into(),
        task_id: "command".into(),
        kind: TaskKind::Command,
        experiment_id: None,
        trial_id: None,
        ..allocation
    };
    cluster
        .master()
        .context
        .store
        .write(move |tx| {
            Box::pin(async move {
                tx.live_rows().add_task(command);
                tx.live_rows().add_allocation(attempt);
                Ok::<_, StoreError>(())
            })
        })
        .await
        .unwrap();
    let mut agent = cluster.agent("a1", 2).await;
    // The trial beside it starts.
    let spec = agent.next_start().await;
    assert_eq!(spec.script.task_type, TaskKind::Trial);
    let path = "/api/v1/events?subjectKind=allocation&subjectId=command.1";
    let events = cluster
        .until(&client, path, |events| events.to_string().contains("ended"))
        .await;
    let reason = "the container's specification cannot be made: configuration of task";
    assert!(events.to_string().contains(reason), "{events}");
    let ended = {
        let mut conn = cluster.master().context.store.read().await.unwrap();
        allocations::find(&mut conn.conn(), &"command.1".into())
            .await
            .unwrap()
    };
    let shown = ended.unwrap().exit_reason.unwrap();
    assert!(shown.contains(reason), "{shown}");
    let log = client.get("/api/v1/tasks/command/logs").await.lines();
    assert!(
        log.iter()
            .any(|line| line["log"].as_str().unwrap().contains(reason)),
        "{log:?}"
    );
    agent.runs(&spec).await;
    agent.exits(&spec, 0).await;
    cluster.stop().await;
}
