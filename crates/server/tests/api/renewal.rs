//! What makes the configuration of an experiment effective again keeps to today's policies, pools and sizes.

use det_ids::{ExperimentId, WorkspaceId};
use serde_json::{Value, json};

use crate::support::{Client, Cluster};

const PATH: &str = "/api/v1/experiments";
const GLOBAL: &str = "/api/v1/config-policies/global/EXPERIMENT";

async fn set(client: &Client, path: &str, policies: Value) {
    let body = json!({"configPolicies": policies.to_string(), "workloadType": "EXPERIMENT"});
    client.put(path, body).await.ok();
}

/// A paused experiment with three restarts.
async fn create(client: &Client, name: &str, more: Value) -> i64 {
    let mut config = json!({
        "name": name, "entrypoint": "true", "max_restarts": 3,
        "searcher": {"name": "single", "metric": "loss"},
        "resources": {"slots_per_trial": 1, "max_slots": 2},
    });
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    let body = json!({"config": config.to_string(), "activate": false});
    client.post(PATH, body).await.ok()["experiment"]["id"]
        .as_i64()
        .unwrap()
}

async fn shown(client: &Client, id: i64) -> Value {
    client.get(&format!("{PATH}/{id}")).await.ok()["experiment"].take()
}

async fn act(client: &Client, id: i64, action: &str) {
    let path = format!("{PATH}/{id}/{action}");
    client.post(&path, Value::Null).await.ok();
}

/// A workspace with a project in it: both numbers.
async fn project(client: &Client, name: &str) -> (i64, i64) {
    let made = client
        .post("/api/v1/workspaces", json!({"name": name}))
        .await;
    let workspace = made.ok()["workspace"]["id"].as_i64().unwrap();
    let path = format!("/api/v1/workspaces/{workspace}/projects");
    let made = client.post(&path, json!({"name": name})).await.ok();
    (workspace, made["project"]["id"].as_i64().unwrap())
}

async fn job_of(cluster: &Cluster, id: i64) -> det_store::experiments::JobRow {
    let task = cluster.task_of_paused(ExperimentId(id)).await;
    let mut conn = cluster.master().context.store.read().await.unwrap();
    det_store::experiments::job(&mut conn.conn(), &task.job_id)
        .await
        .unwrap()
        .unwrap()
}

#[tokio::test]
async fn what_is_continued_keeps_to_policies_pools_and_sizes() {
    let cluster = Cluster::start().await;
    let (client, admin) = (cluster.determined().await, cluster.admin().await);
    let _agent = cluster.agent("a1", 2).await;
    let id = create(&client, "one", json!({})).await;
    let as_it_is = create(&client, "two", json!({})).await;
    act(&client, id, "kill").await;
    act(&client, as_it_is, "kill").await;
    let continued = format!("{PATH}/continue");
    let with = |over: Value| json!({"id": id, "overrideConfig": over.to_string()});
    for (over, named) in [
        (
            json!({"resources": {"slots_per_trial": 8}}),
            "slots_per_trial",
        ),
        (
            json!({"resources": {"resource_pool": "none"}}),
            "resources.resource_pool",
        ),
        (json!({"data": {"x": "y".repeat(140_000)}}), "bytes as JSON"),
        (
            json!({"data": {"secrets": {"k": "********"}}}),
            "data.secrets.k",
        ),
    ] {
        let refused = client.post(&continued, with(over)).await.refused(400);
        assert!(refused.contains(named), "{refused}");
        assert_eq!(shown(&client, id).await["state"], "STATE_CANCELED");
    }
    set(
        &admin,
        GLOBAL,
        json!({"invariant_config": {"max_restarts": 1, "resources": {"max_slots": 1}},
            "constraints": {"priority_limit": 10}}),
    )
    .await;
    let refused = client
        .post(&continued, with(json!({"resources": {"priority": 5}})))
        .await;
    assert!(
        refused
            .refused(400)
            .contains("the policy of the cluster allows 10 to 99")
    );
    let over = json!({"max_restarts": 3, "debug": true, "resources": {"max_slots": 2, "weight": 2, "priority": 11}});
    let done = client.post(&continued, with(over)).await.ok()["experiment"].take();
    let config = &done["config"];
    assert_eq!(
        (
            &config["max_restarts"],
            &config["resources"]["max_slots"],
            &config["debug"]
        ),
        (&json!(1), &json!(1), &json!(true))
    );
    let job = job_of(&cluster, id).await;
    assert_eq!((job.max_slots, job.priority), (Some(1), 11));
    assert!((job.weight - 2.0).abs() < f64::EPSILON);

    // Without an override too.
    set(
        &admin,
        GLOBAL,
        json!({"invariant_config": {"max_restarts": 0}}),
    )
    .await;
    let done = client.post(&continued, json!({"id": as_it_is})).await.ok();
    assert_eq!(done["experiment"]["config"]["max_restarts"], 0);
    cluster.stop().await;
}

#[tokio::test]
async fn what_was_paused_goes_on_under_todays_policies() {
    let cluster = Cluster::start().await;
    let (client, admin) = (cluster.determined().await, cluster.admin().await);
    let _agent = cluster.agent("a1", 2).await;
    let variables = json!({"environment": {"environment_variables": ["A=1"]}});
    let id = create(&client, "one", variables).await;
    set(
        &admin,
        GLOBAL,
        json!({"constraints": {"resources": {"max_slots": 1}}}),
    )
    .await;
    let path = format!("{PATH}/{id}/activate");
    let refused = client.post(&path, Value::Null).await.refused(400);
    assert!(
        refused.contains(&format!("configuration of experiment {id}"))
            && refused.contains("resources.max_slots: is 2, more than the 1"),
        "{refused}"
    );
    assert_eq!(shown(&client, id).await["state"], "STATE_PAUSED");
    let lower = json!({"resources": {"maxSlots": 1}});
    client.patch(&format!("{PATH}/{id}"), lower).await.ok();
    let policies = json!({"invariant_config": {"max_restarts": 1, "environment": {"environment_variables": ["B=2"]},
        "searcher": {"name": "single", "metric": "other"}}});
    set(&admin, GLOBAL, policies).await;
    for _ in 0..2 {
        act(&client, id, "activate").await;
        let config = shown(&client, id).await["config"].take();
        assert_eq!(config["max_restarts"], 1);
        // Laid over twice a policy is contained once; and a search that has begun goes on as it is.
        assert_eq!(
            config["environment"]["environment_variables"]["cpu"],
            json!(["A=1", "B=2"])
        );
        assert_eq!(config["searcher"]["metric"], "loss");
        act(&client, id, "pause").await;
    }
    cluster.stop().await;
}

#[tokio::test]
async fn what_is_moved_comes_under_the_policies_of_its_new_place() {
    let cluster = Cluster::start().await;
    let (client, admin) = (cluster.determined().await, cluster.admin().await);
    let _agent = cluster.agent("a1", 2).await;
    let (one, two) = (
        create(&client, "one", json!({})).await,
        create(&client, "two", json!({})).await,
    );
    let (workspace, to) = project(&client, "ruled").await;
    let policies = format!("/api/v1/config-policies/workspaces/{workspace}/EXPERIMENT");
    set(
        &admin,
        &policies,
        json!({"constraints": {"resources": {"max_slots": 1}}}),
    )
    .await;
    let move_one = json!({"destinationProjectId": to});
    let path = format!("{PATH}/{one}/move");
    let refused = client.post(&path, move_one.clone()).await.refused(400);
    assert!(
        refused.contains("policy of workspace \"ruled\""),
        "{refused}"
    );
    assert_eq!(shown(&client, one).await["projectId"], 1);
    set(
        &admin,
        &policies,
        json!({"invariant_config": {"max_restarts": 1, "resources": {"max_slots": 1}}}),
    )
    .await;
    client.post(&path, move_one).await.ok();
    let moved = shown(&client, one).await;
    assert_eq!(
        (&moved["projectId"], &moved["config"]["max_restarts"]),
        (&json!(to), &json!(1))
    );
    assert_eq!(job_of(&cluster, one).await.max_slots, Some(1));

    // A whole project as well.
    let (_, free) = project(&client, "free").await;
    let to_free = json!({"destinationProjectId": free});
    client
        .post(&format!("{PATH}/{two}/move"), to_free)
        .await
        .ok();
    assert_eq!(shown(&client, two).await["config"]["max_restarts"], 3);
    let path = format!("/api/v1/projects/{free}/move");
    let to_ruled = json!({"destinationWorkspaceId": workspace});
    client.post(&path, to_ruled).await.ok();
    assert_eq!(shown(&client, two).await["config"]["max_restarts"], 1);
    assert_eq!(
        job_of(&cluster, two).await.workspace_id,
        WorkspaceId(workspace)
    );
    cluster.stop().await;
}

#[tokio::test]
async fn a_project_with_live_work_of_others_is_moved_by_administrators() {
    let cluster = Cluster::start().await;
    let (client, admin) = (cluster.determined().await, cluster.admin().await);
    let (_, from) = project(&client, "from").await;
    let (to, _) = project(&client, "to").await;
    let theirs = create(&admin, "theirs", json!({})).await;
    let path = format!("{PATH}/{theirs}/move");
    let into = json!({"destinationProjectId": from});
    admin.post(&path, into).await.ok();
    let path = format!("/api/v1/projects/{from}/move");
    let body = json!({"destinationWorkspaceId": to});
    let refused = client.post(&path, body.clone()).await.refused(403);
    assert!(refused.contains(&format!("({theirs})")), "{refused}");
    admin.post(&path, body).await.ok();
    cluster.stop().await;
}

#[tokio::test]
async fn a_job_does_not_go_where_it_could_never_run() {
    let pools = (
        "resource_pools",
        "[{pool_name: default}, {pool_name: small}]",
    );
    let cluster = Cluster::start_with(&[pools]).await;
    let client = cluster.determined().await;
    let _large = cluster.agent_in("default", "a1", 2).await;
    let _small = cluster.agent_in("small", "a2", 1).await;
    let more = json!({"resources": {"slots_per_trial": 2, "resource_pool": "default"}});
    let id = create(&client, "large", more).await;
    let job = job_of(&cluster, id).await.id;
    let update = json!({"updates": [{"jobId": job, "resourcePool": "small"}]});
    let refused = client.post("/api/v1/job-queues", update).await.refused(400);
    assert!(refused.contains("resource pool \"small\""), "{refused}");
    assert_eq!(job_of(&cluster, id).await.resource_pool, "default");
    cluster.stop().await;
}

#[tokio::test]
async fn what_policies_fix_is_not_edited() {
    let cluster = Cluster::start().await;
    let (client, admin) = (cluster.determined().await, cluster.admin().await);
    let id = create(&client, "one", json!({"labels": ["team", "mine"]})).await;
    let policies = json!({"invariant_config": {"description": "ruled", "labels": ["team"],
        "checkpoint_storage": {"save_trial_latest": 1}}});
    set(&admin, GLOBAL, policies).await;
    let path = format!("{PATH}/{id}");
    for (change, named) in [
        (json!({"description": "free"}), "description"),
        (json!({"labels": ["mine"]}), "labels"),
        (
            json!({"checkpointStorage": {"saveTrialLatest": 0}}),
            "checkpoint_storage.save_trial_latest",
        ),
    ] {
        let refused = client.patch(&path, change).await.refused(403);
        assert!(
            refused.contains(named) && refused.contains("forbidden"),
            "{refused}"
        );
    }
    for change in [
        json!({"labels": ["team", "new"]}),
        json!({"checkpointStorage": {"saveTrialLatest": 1, "saveTrialBest": 3}}),
    ] {
        client.patch(&path, change).await.ok();
    }
    cluster.stop().await;
}

#[tokio::test]
async fn another_metric_forgets_what_was_best_by_the_earlier_one() {
    let cluster = Cluster::start().await;
    let (mut agent, spec) = cluster.running_task().await;
    let client = cluster.admin().await;
    let report = json!({"group": "validation", "metrics": {
        "trialRunId": 1, "stepsCompleted": 1, "metrics": {"avgMetrics": {"loss": 0.1, "accuracy": 0.9}},
    }});
    client.post("/api/v1/trials/1/metrics", report).await.ok();
    assert_eq!(shown(&client, 1).await["bestTrialSearcherMetric"], 0.1);
    agent.exits(&spec, 0).await;
    let ended = |answer: &Value| answer["experiment"]["state"] == "STATE_COMPLETED";
    cluster.until(&client, &format!("{PATH}/1"), ended).await;
    let over =
        json!({"searcher": {"name": "single", "metric": "accuracy", "smaller_is_better": false}});
    let body = json!({"id": 1, "overrideConfig": over.to_string()});
    client.post(&format!("{PATH}/continue"), body).await.ok();
    let after = shown(&client, 1).await;
    assert_eq!(after["searcherMetric"], "accuracy");
    assert!(after["bestTrialSearcherMetric"].is_null(), "{after}");
    let trial = client.get("/api/v1/trials/1").await.ok()["trial"].take();
    assert!(trial["searcherMetricValue"].is_null(), "{trial}");
    cluster.stop().await;
}
