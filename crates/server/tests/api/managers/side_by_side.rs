//! Several managers in one master: two of agents, and one whose places count their slots. Each has its own pools, scheduler,
//! direction of priority and patience, and nothing that a user sees confuses them.

use det_config::master::ManagerKind;
use det_rm::{Core, Health};
use serde_json::{Value, json};

use super::fake::{FakePlace, Task};
use super::{exited, running, until_state};
use crate::pools;
use crate::support::{Client, Cluster};
use det_ids::ExperimentId;

/// The configuration of the master: `default` of the main manager, `old` and `older` of another one of agents, `pods` of one
/// in which the higher priority goes first.
fn config(attic: &str) -> String {
    format!(
        "
launch_error: false
resource_manager: {{type: agent, cluster_name: lab, scheduler: {{type: priority, preemption: true}}}}
resource_pools: [{{pool_name: default}}]
additional_resource_managers:
- resource_manager: {{type: agent, cluster_name: attic, scheduler: {{type: {attic}}}}}
  resource_pools:
  - {{pool_name: old, agent_reconnect_wait: 0s, task_container_defaults: {{environment_variables: [WHERE=attic]}}}}
  - {{pool_name: older}}
- resource_manager: {{type: kubernetes, cluster_name: cloud, max_slots_per_pod: 8}}
  resource_pools: [{{pool_name: pods, scheduler: {{type: priority, preemption: true}}}}]
"
    )
}

async fn cluster() -> Cluster {
    let kind = ManagerKind::Kubernetes;
    Cluster::start_reading(&[kind], &config("round_robin")).await
}

/// Submits an experiment of one trial with one slot.
async fn submit(client: &Client, pool: &str, priority: u8) -> (ExperimentId, String) {
    let resources = json!({"slots_per_trial": 1, "resource_pool": pool, "priority": priority});
    let created = pools::submit(client, pool, resources).await;
    let experiment = &created["experiment"];
    let id = ExperimentId(experiment["id"].as_i64().unwrap());
    (id, experiment["jobId"].as_str().unwrap().to_owned())
}

async fn explained(client: &Client, job: &str) -> Value {
    let path = format!("/api/v1/job-queues/{job}/why");
    client.get(&path).await.ok()
}

#[tokio::test]
#[expect(
    clippy::too_many_lines,
    reason = "one scenario, in which each step builds on the ones before"
)]
async fn trials_run_with_each_manager_by_its_own_rules() {
    let cluster = cluster().await;
    let client = cluster.determined().await;
    let mut here = cluster.agent_in("default", "here", 1).await;
    let mut there = cluster.agent_in("old", "there", 1).await;
    let mut pod = FakePlace::join(&cluster, "node-1", 1, "pods", Vec::new()).await;
    let (_, lab_job) = submit(&client, "default", 50).await;
    let (in_attic, attic_job) = submit(&client, "old", 50).await;
    let (_, cloud_job) = submit(&client, "pods", 50).await;
    let in_lab_runs = here.next_start().await;
    let in_attic_runs = there.next_start().await;
    let Task::Start(in_cloud) = pod.next().await else {
        panic!("expected a start");
    };
    let in_cloud_runs = in_cloud.spec;
    // What containers get follows the pool, of whatever manager it is.
    let where_to = ("WHERE".to_owned(), "attic".to_owned());
    assert!(in_attic_runs.script.env.contains(&where_to));
    assert!(!in_lab_runs.script.env.contains(&where_to));
    here.runs(&in_lab_runs).await;
    there.runs(&in_attic_runs).await;
    pod.observes(&in_cloud_runs.container_id, running()).await;

    for (job, scheduler, order) in [
        (&lab_job, "priority", "lower goes first"),
        (&attic_job, "round_robin", "lower goes first"),
        (&cloud_job, "priority", "higher goes first"),
    ] {
        let explained = explained(&client, job).await.to_string();
        assert!(explained.contains(scheduler), "{explained}");
        assert!(
            scheduler == "round_robin" || explained.contains(order),
            "{explained}"
        );
    }
    let listed = client.get("/api/v1/resource-pools").await.ok();
    let listed = listed["resourcePools"].as_array().unwrap().iter();
    let listed: Vec<_> = listed
        .map(|pool| {
            let of = |key: &str| pool[key].as_str().unwrap_or_default();
            let used = pool["slotsUsed"].as_i64().unwrap();
            (of("name"), of("clusterName"), of("schedulerType"), used)
        })
        .collect();
    let (priority, robin) = ("SCHEDULER_TYPE_PRIORITY", "SCHEDULER_TYPE_ROUND_ROBIN");
    assert_eq!(
        listed,
        [
            ("default", "lab", priority, 1),
            ("old", "attic", robin, 1),
            ("older", "attic", robin, 0),
            ("pods", "cloud", priority, 1),
        ]
    );

    // The more important work is stopped for: 10 where the lower goes first, 90 where the higher does.
    submit(&client, "default", 90).await;
    submit(&client, "pods", 10).await;
    submit(&client, "default", 10).await;
    submit(&client, "pods", 90).await;
    for (spec, reason) in [
        (
            &in_lab_runs,
            "work of priority 10 needs its slots (its own is 50; lower goes first)",
        ),
        (
            &in_cloud_runs,
            "work of priority 90 needs its slots (its own is 50; higher goes first)",
        ),
    ] {
        let path = format!(
            "/api/v1/events?subjectKind=allocation&subjectId={}",
            spec.allocation_id
        );
        let is_asked = |events: &Value| events.to_string().contains(reason);
        cluster.until(&client, &path, is_asked).await;
    }
    // Where jobs take turns none is stopped for priority.
    submit(&client, "old", 1).await;
    there.exits(&in_attic_runs, 0).await;
    until_state(&cluster, &client, in_attic, "STATE_COMPLETED").await;
    // And what they are stopped for is what starts.
    here.exits(&in_lab_runs, 0).await;
    let starts = pools::next_start(&mut here).await.description;
    assert!(starts.contains("trial 6 "), "{starts}");
    pod.observes(&in_cloud_runs.container_id, exited(0)).await;
    let starts = loop {
        if let Task::Start(start) = pod.next().await {
            break start.spec.description;
        }
    };
    assert!(starts.contains("trial 7 "), "{starts}");
    cluster.stop().await;
}

#[tokio::test]
async fn patience_and_who_may_join_are_the_pools() {
    let cluster = cluster().await;
    let client = cluster.determined().await;
    let mut here = cluster.agent_in("default", "here", 1).await;
    let mut there = cluster.agent_in("old", "there", 1).await;
    submit(&client, "default", 50).await;
    submit(&client, "old", 50).await;
    let waits = here.next_start().await;
    let lost = there.next_start().await;
    here.runs(&waits).await;
    there.runs(&lost).await;
    drop((here, there));
    // The main manager's pool waits for ten minutes, the other one not at all.
    let agents = cluster
        .until(&client, "/api/v1/agents", |answer| {
            let agents = answer["agents"].as_array().unwrap();
            agents.len() == 1 && agents[0]["disconnected"] == true
        })
        .await;
    assert_eq!(agents["agents"][0]["id"], "here");
    let (reason, rejoins) = cluster.refused_agent("pods", "astray", 1).await;
    assert!(
        !rejoins
            && reason.contains(
                "\"pods\" belongs to resource manager \"cloud\" of type kubernetes, whose nodes are no agents"
            )
            && reason.ends_with("agents can join: default, old, older"),
        "{reason}"
    );
    cluster.stop().await;
}

#[tokio::test]
async fn the_health_of_each_manager_is_what_its_driver_reports() {
    let cluster = cluster().await;
    let (admin, client) = (cluster.admin().await, cluster.determined().await);
    let managers = async || {
        let health = admin.get("/health").await.ok();
        assert_eq!(health["status"], "up");
        let managers = health["resource_managers"].as_array().unwrap().iter();
        managers
            .map(|it| {
                [
                    it["name"].clone(),
                    it["status"].clone(),
                    it["reason"].clone(),
                ]
            })
            .collect::<Vec<_>>()
    };
    let up = |name: &str| [json!(name), json!("up"), Value::Null];
    assert_eq!(managers().await, [up("lab"), up("attic"), up("cloud")]);
    let core = &cluster.master().places;
    core.report_health("cloud", Health::Down("no route to its API".to_owned()));
    let down = [json!("cloud"), json!("down"), json!("no route to its API")];
    assert_eq!(managers().await, [up("lab"), up("attic"), down]);
    // What is submitted waits, and its submission is answered with the reason.
    let resources = json!({"slots_per_trial": 1, "resource_pool": "pods"});
    let created = pools::submit(&client, "pods", resources).await;
    let trouble =
        "its resource manager \"cloud\" can start nothing at present: no route to its API";
    let messages = created["messages"].as_array().unwrap().iter();
    let mut messages = messages.filter_map(Value::as_str);
    assert!(messages.any(|it| it.contains(trouble)), "{created}");
    let job = created["experiment"]["jobId"].as_str().unwrap();
    let explained = explained(&client, job).await;
    let scheduling = explained["pool"]["scheduling"].as_str().unwrap_or_default();
    assert!(scheduling.contains(trouble), "{explained}");
    core.report_health("cloud", Health::Degraded("2 of 3 zones answer".to_owned()));
    let partly = [json!("cloud"), json!("up"), json!("2 of 3 zones answer")];
    assert_eq!(managers().await[2], partly);
    core.report_health("cloud", Health::Up);
    assert_eq!(managers().await[2], up("cloud"));
    cluster.stop().await;
}

#[tokio::test]
async fn pools_of_every_manager_change_while_the_master_runs() {
    let cluster = cluster().await;
    let (admin, client) = (cluster.admin().await, cluster.determined().await);
    let _there = cluster.agent_in("older", "there", 1).await;
    let _pod = FakePlace::join(&cluster, "node-1", 1, "pods", Vec::new()).await;
    let reload = async |text: &str| {
        cluster.written.write(text);
        admin.post("/api/v1/master/reload", json!({})).await
    };
    let without = |pool: &str, other: &str| {
        let text = config("fair_share");
        assert!(text.contains(&format!("pool_name: {pool}")), "{text}");
        text.replacen(
            &format!("pool_name: {pool}"),
            &format!("pool_name: {other}"),
            1,
        )
    };
    let refused = reload(&without("older}", "newer}")).await.refused(400);
    assert!(
        refused.contains(
            "additional_resource_managers[attic].resource_pools[older]: resource pool \"older\" cannot go while 1 agent \
             (there) is in it"
        ),
        "{refused}"
    );
    // A node leaves a pool with its configuration.
    reload(&without("pods", "more")).await.ok();
    // What is empty goes, and the scheduler of its manager is another one.
    reload(&without("old,", "new,")).await.ok();
    let (_, job) = submit(&client, "new", 50).await;
    let explained = explained(&client, &job).await.to_string();
    assert!(explained.contains("fair_share"), "{explained}");
    let body = json!({"config": json!({"name": "x", "entrypoint": "true",
        "searcher": {"name": "single", "metric": "loss"}, "resources": {"resource_pool": "old"}}).to_string()});
    let refused = client.post("/api/v1/experiments", body).await.refused(400);
    assert!(refused.contains("\"old\" does not exist"), "{refused}");
    let shown = admin.get("/api/v1/master/config").await.ok();
    let attic = &shown["config"]["additional_resource_managers"][0]["resource_manager"];
    assert_eq!(attic["scheduler"]["type"], "fair_share");
    assert_eq!(attic["scheduler"]["fitting_policy"], "best");
    let gone = reload("launch_error: false").await.refused(400);
    assert!(
        gone.contains("additional_resource_managers[attic].resource_manager.type: who runs containers is chosen at start"),
        "{gone}"
    );
    cluster.stop().await;
}
