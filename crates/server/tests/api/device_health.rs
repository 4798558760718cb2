//! How much devices are used, and what a fault of one, or of its host, leads to.

use det_agent_proto::{DeviceReport, DevicesReport, HostReport, ToMaster};
use det_ids::SlotId;
use serde_json::{Value, json};

use crate::support::{Client, Cluster, FakeAgent};

fn device(slot: u32, used: u32, fault: Option<&str>) -> DeviceReport {
    DeviceReport {
        slot: SlotId(slot),
        used_percent: Some(used),
        memory_used_bytes: Some(3 << 30),
        memory_bytes: Some(80 << 30),
        celsius: None,
        fault: fault.map(str::to_owned),
    }
}

async fn report(agent: &mut FakeAgent, devices: &[DeviceReport]) {
    let devices = devices.to_vec();
    agent
        .send(&ToMaster::Devices(DevicesReport { devices }))
        .await;
}

/// Waits until a slot of agent `a1` is like this.
async fn slot(
    cluster: &Cluster,
    client: &Client,
    number: u32,
    wanted: impl Fn(&Value) -> bool,
) -> Value {
    let path = format!("/api/v1/agents/a1/slots/{number}");
    let answer = cluster
        .until(client, &path, |answer| wanted(&answer["slot"]))
        .await;
    answer["slot"].clone()
}

/// Kinds and reasons of what was recorded of agent `a1`.
async fn records(client: &Client) -> Vec<(String, Value, Value)> {
    let path = "/api/v1/events?subjectKind=agent&subjectId=a1&limit=100";
    let events = client.get(path).await.ok();
    let events = events["events"].as_array().unwrap();
    events
        .iter()
        .map(|event| {
            let kind = event["kind"].as_str().unwrap().to_owned();
            (kind, event["reason"].clone(), event["detail"].clone())
        })
        .collect()
}

#[tokio::test]
async fn slots_show_how_much_they_are_used() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let mut agent = cluster.agent("a1", 2).await;
    let path = "/api/v1/agents/a1";
    let answer = client.get(path).await.ok();
    assert_eq!(answer["agent"]["slots"]["0"]["usage"], Value::Null);
    // A slot that the agent does not have is left out.
    report(&mut agent, &[device(0, 40, None), device(9, 1, None)]).await;
    let shown = slot(&cluster, &client, 0, |slot| slot["usage"].is_object()).await;
    assert_eq!(
        shown["usage"],
        json!({"utilizationPercent": 40, "memoryUsedBytes": 3_i64 << 30, "memoryBytes": 80_i64 << 30, "celsius": null})
    );
    assert_eq!(
        (&shown["fault"], &shown["enabled"]),
        (&json!(""), &json!(true))
    );
    let agents = client.get("/api/v1/agents").await.ok();
    let slots = &agents["agents"][0]["slots"];
    assert_eq!(slots["0"]["usage"]["utilizationPercent"], 40);
    assert_eq!(slots["1"]["usage"], Value::Null);
    report(&mut agent, &[device(0, 75, None)]).await;
    let changed = |slot: &Value| slot["usage"]["utilizationPercent"] == 75;
    slot_of_list(&cluster, &client, changed).await;
    // Nothing is known of an agent that is away.
    drop(agent);
    let away = |answer: &Value| answer["agent"]["disconnected"] == true;
    let answer = cluster.until(&client, path, away).await;
    assert_eq!(answer["agent"]["slots"]["0"]["usage"], Value::Null);
    cluster.stop().await;
}

async fn slot_of_list(cluster: &Cluster, client: &Client, wanted: impl Fn(&Value) -> bool) {
    let path = "/api/v1/agents/a1/slots";
    cluster
        .until(client, path, |answer| wanted(&answer["slots"][0]))
        .await;
}

#[tokio::test]
async fn a_fault_drains_its_slot_until_an_administrator_enables_it() {
    let cluster = Cluster::start().await;
    let (client, admin) = (cluster.determined().await, cluster.admin().await);
    let (mut agent, spec) = cluster.running_task().await;
    let fault = "Xid 79 (the GPU has fallen off the bus)";
    report(&mut agent, &[device(0, 40, Some(fault))]).await;
    let drained = slot(&cluster, &client, 0, |slot| slot["draining"] == true).await;
    assert_eq!(
        (&drained["fault"], &drained["enabled"]),
        (&json!(fault), &json!(false))
    );
    assert!(drained["container"].is_object(), "what runs goes on");
    let (kind, reason, detail) = records(&client).await.pop().unwrap();
    assert_eq!((kind.as_str(), reason), ("draining", json!(fault)));
    assert_eq!(detail, json!({"slot": 0}));

    // New work waits, with the reason.
    let waiting = cluster.experiment("waiting", 1).await;
    let id = {
        let (row, _) = cluster.task_of(waiting).await;
        row.job_id
    };
    let path = format!("/api/v1/job-queues/{id}/why");
    let explained = cluster
        .until(&client, &path, |why| {
            why["waiting"][0]["waitReason"]["message"].is_string()
        })
        .await;
    assert_eq!(
        explained["pool"]["faults"],
        json!([format!("slot 0 of agent a1: {fault}")])
    );
    agent.exits(&spec, 0).await;
    agent.forgets(&spec).await;

    // It passes: the slot stays out of service, with the reason.
    report(&mut agent, &[device(0, 0, None)]).await;
    let unused = |slot: &Value| slot["usage"]["utilizationPercent"] == 0;
    let still = slot(&cluster, &client, 0, unused).await;
    assert_eq!(
        (&still["draining"], &still["fault"]),
        (&json!(true), &json!(fault))
    );

    let enable = "/api/v1/agents/a1/slots/0/enable";
    assert!(
        client
            .post(enable, json!(null))
            .await
            .refused(403)
            .contains("slots")
    );
    let enabled = admin.post(enable, json!(null)).await.ok()["slot"].clone();
    assert_eq!(
        (&enabled["enabled"], &enabled["fault"]),
        (&json!(true), &json!(""))
    );
    assert_eq!(
        agent.next_start().await.task_id,
        cluster.task_of(waiting).await.0.id
    );
    cluster.stop().await;
}

#[tokio::test]
async fn a_fault_that_an_administrator_knows_does_not_drain_the_slot_again() {
    let cluster = Cluster::start().await;
    let (client, admin) = (cluster.determined().await, cluster.admin().await);
    let mut agent = cluster.agent("a1", 2).await;
    let errors = |count: u32| format!("memory errors: {count}");
    report(&mut agent, &[device(0, 1, Some(&errors(1)))]).await;
    slot(&cluster, &client, 0, |slot| slot["draining"] == true).await;
    let enable = "/api/v1/agents/a1/slots/0/enable";
    admin.post(enable, json!(null)).await.ok();
    report(&mut agent, &[device(0, 50, Some(&errors(1)))]).await;
    let used = |slot: &Value| slot["usage"]["utilizationPercent"] == 50;
    assert_eq!(slot(&cluster, &client, 0, used).await["enabled"], true);

    // Nor when master or agent start again and everything is reported anew.
    let cluster = cluster.restart().await;
    let (client, admin) = (cluster.determined().await, cluster.admin().await);
    let mut agent = cluster.agent("a1", 2).await;
    report(&mut agent, &[device(0, 51, Some(&errors(1)))]).await;
    let used = |slot: &Value| slot["usage"]["utilizationPercent"] == 51;
    assert_eq!(slot(&cluster, &client, 0, used).await["enabled"], true);

    // Another one does.
    report(&mut agent, &[device(0, 51, Some(&errors(2)))]).await;
    let shown = slot(&cluster, &client, 0, |slot| slot["draining"] == true).await;
    assert_eq!(shown["fault"], json!(errors(2)));
    let drained = records(&client).await;
    let drained = drained.iter().filter(|(kind, ..)| kind == "draining");
    assert_eq!(drained.count(), 2);
    // What an administrator has disabled stays disabled.
    let disable = "/api/v1/agents/a1/slots/1/disable";
    admin.post(disable, json!(null)).await.ok();
    report(&mut agent, &[device(1, 52, Some("hot\nand more"))]).await;
    let shown = slot(&cluster, &client, 1, |slot| slot["fault"] != "").await;
    assert_eq!(
        (&shown["draining"], &shown["enabled"], &shown["fault"]),
        (&json!(false), &json!(false), &json!("hot and more"))
    );
    cluster.stop().await;
}

#[tokio::test]
async fn an_agent_whose_host_cannot_start_containers_gets_no_new_work_until_it_can() {
    let cluster = Cluster::start().await;
    let (client, admin) = (cluster.determined().await, cluster.admin().await);
    let mut agent = cluster.agent("a1", 2).await;
    let host = |fault: Option<&str>| {
        ToMaster::Host(HostReport {
            fault: fault.map(str::to_owned),
        })
    };
    agent.send(&host(Some("the disk\nis full"))).await;
    let path = "/api/v1/agents/a1";
    let drains = |answer: &Value| answer["agent"]["draining"] == true;
    let shown = cluster.until(&client, path, drains).await["agent"].clone();
    assert_eq!(
        (&shown["fault"], &shown["enabled"], &shown["disconnected"]),
        (&json!("the disk is full"), &json!(false), &json!(false))
    );
    assert_eq!(shown["slots"]["0"]["enabled"], false);
    let waiting = cluster.experiment("waiting", 1).await;
    let why = format!(
        "/api/v1/job-queues/{}/why",
        cluster.task_of(waiting).await.0.job_id
    );
    let explained = cluster
        .until(&client, &why, |why| {
            why["waiting"][0]["waitReason"]["message"].is_string()
        })
        .await;
    assert_eq!(
        explained["pool"]["faults"],
        json!(["agent a1 cannot start containers: the disk is full"])
    );
    // An administrator cannot enable what does not work, and a master that starts again knows it.
    let enabled = admin.post("/api/v1/agents/a1/enable", json!(null)).await;
    assert_eq!(enabled.ok()["agent"]["draining"], true);
    let cluster = cluster.restart().await;
    let client = cluster.determined().await;
    let mut agent = cluster.agent("a1", 2).await;
    assert_eq!(
        client.get(path).await.ok()["agent"]["fault"],
        json!("the disk is full")
    );
    agent.send(&host(None)).await;
    assert_eq!(
        agent.next_start().await.task_id,
        cluster.task_of(waiting).await.0.id
    );
    let kinds: Vec<String> = records(&client)
        .await
        .into_iter()
        .map(|(kind, ..)| kind)
        .collect();
    let of_host = |kind: &&String| kind.starts_with("host_fault");
    assert_eq!(
        kinds.iter().filter(of_host).collect::<Vec<_>>(),
        ["host_fault", "host_fault_ended"]
    );
    cluster.stop().await;
}
