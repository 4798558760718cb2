//! Work that names several resource pools.

use det_agent_proto::ToAgent;
use det_taskspec::ContainerSpec;
use serde_json::{Value, json};

use crate::support::{Client, Cluster, FakeAgent};

const POOLS: (&str, &str) = (
    "resource_pools",
    "[{pool_name: default}, {pool_name: spare}, {pool_name: far}]",
);

/// An experiment of one trial over these resources.
pub(super) async fn submit(client: &Client, name: &str, resources: Value) -> Value {
    let config = json!({
        "name": name,
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "loss"},
        "resources": resources,
        "max_restarts": 1,
    });
    let body = json!({"config": config.to_string(), "activate": true,
        "modelDefinition": [{"path": "train.py", "type": 48, "content": "", "mode": 0o644, "mtime": 1_700_000_000}]});
    client.post("/api/v1/experiments", body).await.ok()
}

/// The next container that an agent is to start, which runs then.
pub(super) async fn next_start(agent: &mut FakeAgent) -> ContainerSpec {
    loop {
        if let ToAgent::Start(spec) = agent.receive().await {
            agent.runs(&spec).await;
            return *spec;
        }
    }
}

async fn names_in(client: &Client, pool: &str) -> Vec<String> {
    let path = format!("/api/v1/job-queues?resourcePool={pool}");
    let queue = client.get(&path).await.ok();
    let jobs = queue["jobs"].as_array().unwrap();
    jobs.iter()
        .map(|j| j["name"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn a_trial_that_has_waited_goes_on_to_the_next_pool_and_asks_in_the_first_one_again_later() {
    let cluster = Cluster::start_with(&[POOLS]).await;
    let client = cluster.determined().await;
    let mut first = cluster.agent_in("default", "first", 1).await;
    let mut spare = cluster.agent_in("spare", "spare", 1).await;
    submit(&client, "holder", json!({"slots_per_trial": 1})).await;
    let holder = next_start(&mut first).await;
    let resources = json!({"resource_pools": ["default", "spare"], "resource_pool_wait": 1});
    let made = submit(&client, "goer", resources).await;
    assert_eq!(made["config"]["resources"]["resource_pool"], "default");
    let spec = next_start(&mut spare).await;
    assert_eq!(names_in(&client, "default").await, ["holder"]);
    assert_eq!(names_in(&client, "spare").await, ["goer"]);
    let log = client.get("/api/v1/trials/2/logs").await.lines();
    let hop = log
        .iter()
        .filter_map(|line| line["log"].as_str())
        .find(|line| line.contains("Goes on to resource pool spare"))
        .unwrap();
    assert!(
        hop.contains("in resource pool default") && hop.contains("1 slot"),
        "{hop}"
    );

    // Its next run asks where it would rather be.
    first.exits(&holder, 0).await;
    spare.exits(&spec, 1).await;
    let spec = next_start(&mut first).await;
    assert!(
        spec.description.contains("trial 2 "),
        "{}",
        spec.description
    );
    first.exits(&spec, 0).await;
    let ended = |answer: &Value| answer["trial"]["state"] == "STATE_COMPLETED";
    cluster.until(&client, "/api/v1/trials/2", ended).await;
    cluster.stop().await;
}

#[tokio::test]
async fn what_starts_where_it_waits_is_not_sent_to_and_fro() {
    let cluster = Cluster::start_with(&[POOLS]).await;
    let client = cluster.determined().await;
    let mut first = cluster.agent_in("default", "first", 2).await;
    let mut spare = cluster.agent_in("spare", "spare", 2).await;
    let resources = json!({"resource_pools": ["default", "spare"], "resource_pool_wait": 1,
        "max_slots": 1, "slots_per_trial": 1});
    let config = json!({
        "name": "two",
        "entrypoint": "python3 train.py",
        "searcher": {"name": "grid", "metric": "loss"},
        "hyperparameters": {"a": {"type": "categorical", "vals": [1, 2]}},
        "resources": resources,
    });
    let body = json!({"config": config.to_string(), "activate": true,
        "modelDefinition": [{"path": "train.py", "type": 48, "content": "", "mode": 0o644, "mtime": 1_700_000_000}]});
    let made = client.post("/api/v1/experiments", body).await.ok();
    let held = next_start(&mut first).await;
    let path = format!("/api/v1/experiments/{}", made["experiment"]["id"]);
    let capped = |answer: &Value| answer["trial"]["waitReason"]["kind"] == "over_job_cap";
    cluster.until(&client, "/api/v1/trials/2", capped).await;
    // Both pools are open to it and have free slots once the cap is lifted: it starts in one of them.
    let waits_longer = det_ids::Micros(det_store::now() + 1_500_000);
    cluster
        .until(&client, "/api/v1/trials/2", |_| {
            det_store::now() > waits_longer.0
        })
        .await;
    client
        .patch(&path, json!({"resources": {"maxSlots": 2}}))
        .await
        .ok();
    let started = tokio::select! {
        spec = next_start(&mut first) => spec,
        spec = next_start(&mut spare) => spec,
    };
    assert_ne!(started.allocation_id, held.allocation_id);
    let log = client.get("/api/v1/trials/2/logs").await.lines();
    let hops = log
        .iter()
        .filter_map(|line| line["log"].as_str())
        .filter(|line| line.contains("Goes on to resource pool"));
    assert!(hops.count() <= 1, "{log:?}");
    cluster.stop().await;
}

#[tokio::test]
async fn a_cap_counts_over_all_pools_and_a_full_pool_is_not_gone_on_to() {
    let cluster = Cluster::start_with(&[POOLS]).await;
    let client = cluster.determined().await;
    let mut first = cluster.agent_in("default", "first", 1).await;
    let mut spare = cluster.agent_in("spare", "spare", 1).await;
    submit(&client, "holder", json!({"slots_per_trial": 1})).await;
    submit(&client, "other", json!({"resource_pool": "spare"})).await;
    let holder = next_start(&mut first).await;
    next_start(&mut spare).await;
    let resources = json!({"resource_pools": ["default", "spare"], "resource_pool_wait": 0});
    submit(&client, "goer", resources).await;
    let waits = |answer: &Value| answer["trial"]["waitReason"]["kind"] == "not_enough_free_slots";
    cluster.until(&client, "/api/v1/trials/3", waits).await;
    assert_eq!(names_in(&client, "default").await, ["holder", "goer"]);
    first.exits(&holder, 0).await;
    let spec = next_start(&mut first).await;
    assert!(spec.description.contains("trial 3 "));
    cluster.stop().await;
}

#[tokio::test]
async fn pools_that_do_not_exist_or_could_never_run_it_are_reported() {
    let cluster = Cluster::start_with(&[POOLS]).await;
    let client = cluster.determined().await;
    let _agents = [
        cluster.agent_in("default", "first", 1).await,
        cluster.agent_in("spare", "spare", 2).await,
    ];
    let refused = async |resources: Value| {
        let config = json!({
            "name": "x", "entrypoint": "true", "resources": resources,
            "searcher": {"name": "single", "metric": "loss"},
        });
        let body = json!({"config": config.to_string(), "validateOnly": true});
        client.post("/api/v1/experiments", body).await
    };
    let answer = refused(json!({"resource_pools": ["default", "nowhere"]})).await;
    let errors = answer.json()["error"]["errors"].take();
    let error = &errors[0];
    assert!(error["line"].is_number(), "{error}");
    let sentence = answer.refused(400);
    assert!(
        sentence.contains("resources.resource_pools[1]: pool \"nowhere\" does not exist"),
        "{sentence}"
    );
    let two = json!({"resource_pools": ["default", "spare"], "slots_per_trial": 2});
    let answer = refused(two).await.ok();
    assert_eq!(answer["config"]["resources"]["resource_pool"], "spare");
    let messages = answer["messages"].as_array().unwrap();
    let left_out = messages.iter().filter_map(Value::as_str);
    assert!(
        left_out
            .filter(|m| m.contains("\"default\"") && m.contains("left out"))
            .count()
            == 1,
        "{messages:?}"
    );
    let three = json!({"resource_pools": ["default", "spare"], "slots_per_trial": 3, "weight": -1});
    let answer = refused(three).await;
    let errors = answer.json()["error"]["errors"].take();
    let places = errors.as_array().unwrap().iter();
    let places: Vec<_> = places
        .map(|m| (m["path"].as_str(), m["line"].is_number()))
        .collect();
    let size = (Some("resources.slots_per_trial"), true);
    assert_eq!(places, [size, size, (Some("resources.weight"), true)]);
    let sentence = answer.refused(400);
    assert!(
        sentence.contains("\"default\"") && sentence.contains("\"spare\""),
        "{sentence}"
    );
    // A policy decides for documents that name other pools, one or several or none.
    let policy =
        json!({"invariant_config": {"resources": {"resource_pools": ["spare", "default"]}}});
    let body = json!({"configPolicies": policy.to_string(), "workloadType": "EXPERIMENT"});
    let path = "/api/v1/config-policies/global/EXPERIMENT";
    cluster.admin().await.put(path, body).await.ok();
    for resources in [
        json!({}),
        json!({"resource_pool": "default"}),
        json!({"resource_pools": ["default"]}),
    ] {
        let answer = refused(resources.clone()).await.ok();
        let resolved = &answer["config"]["resources"];
        assert_eq!(resolved["resource_pool"], "spare", "{resources}");
        assert_eq!(resolved["resource_pools"], json!(["spare", "default"]));
        let is_replaced = answer["messages"].to_string().contains("was replaced by");
        assert_eq!(is_replaced, resources != json!({}), "{answer}");
    }
    cluster.admin().await.delete(path).await.ok();
    let both = json!({"resource_pool": "far", "resource_pools": ["default", "spare"]});
    let sentence = refused(both).await.refused(400);
    assert!(sentence.contains("cannot be combined"), "{sentence}");
    cluster.stop().await;
}

#[tokio::test]
async fn what_no_agent_can_hold_is_refused_whatever_launch_error_is() {
    for launch_error in ["true", "false"] {
        let cluster = Cluster::start_with(&[POOLS, ("launch_error", launch_error)]).await;
        let client = cluster.determined().await;
        let _first = cluster.agent_in("default", "first", 1).await;
        let _second = cluster.agent_in("default", "second", 1).await;
        let _spare = cluster.agent_in("spare", "spare", 2).await;
        let asked = async |resources: Value| {
            let config = json!({
                "name": "large",
                "entrypoint": "true",
                "searcher": {"name": "single", "metric": "loss"},
                "resources": resources,
            });
            let body = json!({"config": config.to_string(), "activate": true});
            client.post("/api/v1/experiments", body).await
        };
        let one_node = asked(json!({"slots_per_trial": 2, "is_single_node": true})).await;
        let refused = one_node.refused(400);
        assert!(refused.contains("request unfulfillable"), "{refused}");
        assert!(refused.contains("resources.slots_per_trial"), "{refused}");
        assert!(
            refused.contains("\"resources.is_single_node: false\" lets it have several places"),
            "{refused}"
        );
        // Another pool can.
        let several = json!({"slots_per_trial": 2, "is_single_node": true,
            "resource_pools": ["default", "spare"]});
        let made = asked(several).await.ok();
        assert_eq!(made["config"]["resources"]["resource_pool"], "spare");
        // Any other size follows the setting.
        let too_many = asked(json!({"slots_per_trial": 64})).await;
        if launch_error == "true" {
            let refused = too_many.refused(400);
            assert!(!refused.contains("unfulfillable"), "{refused}");
        } else {
            too_many.ok();
        }
        cluster.stop().await;
    }
}

#[tokio::test]
async fn jobs_of_a_pool_that_is_not_configured_any_more_are_reported_and_can_be_moved() {
    let lenient = ("launch_error", "false");
    let cluster = Cluster::start_with(&[POOLS, lenient]).await;
    let client = cluster.determined().await;
    let spare = json!({"resource_pool": "spare"});
    let made = submit(&client, "stranded", spare).await;
    let several = json!({"resource_pools": ["spare", "default"]});
    submit(&client, "goes on", several).await;
    // What runs outside the cluster is in no pool, and is none of them.
    crate::unmanaged::registered(&client, "outside", "one").await;
    let job = made["experiment"]["jobId"].as_str().unwrap();

    let cluster = cluster.restart_with(&[lenient]).await;
    let client = cluster.determined().await;
    let says = |answer: &Value| {
        let message = answer["trial"]["waitReason"]["message"].as_str();
        message.is_some_and(|message| {
            message.contains("\"spare\" is not in the master's configuration any more")
        })
    };
    let trial = cluster.until(&client, "/api/v1/trials/1", says).await;
    assert_eq!(trial["trial"]["waitReason"]["kind"], "no_agents");
    let stranded = cluster.master().reload.stranded_jobs().await.unwrap();
    assert_eq!(stranded.len(), 1);
    let expected = format!(
        "resource pool \"spare\" is not configured, and 1 of its jobs can never start ({job})"
    );
    assert!(stranded[0].starts_with(&expected), "{stranded:?}");

    let body = json!({"updates": [{"jobId": job, "resourcePool": "default"}]});
    client.post("/api/v1/job-queues", body).await.ok();
    assert!(
        cluster
            .master()
            .reload
            .stranded_jobs()
            .await
            .unwrap()
            .is_empty()
    );
    cluster
        .until(&client, "/api/v1/trials/1", |answer| {
            answer["trial"]["waitReason"]["message"].is_string() && !says(answer)
        })
        .await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_pool_of_an_additional_manager_is_refused_with_its_managers_name() {
    let managers = "[{resource_manager: {type: slurm, cluster_name: cloud, host: h}, \
                    resource_pools: [{pool_name: pods}]}]";
    let cluster = Cluster::start_with(&[("additional_resource_managers", managers)]).await;
    let client = cluster.determined().await;
    let config = json!({
        "name": "elsewhere",
        "entrypoint": "true",
        "searcher": {"name": "single", "metric": "loss"},
        "resources": {"resource_pool": "pods"},
    });
    let body = json!({"config": config.to_string(), "activate": true});
    let refused = client.post("/api/v1/experiments", body).await.refused(400);
    assert!(refused.contains("resource manager \"cloud\""), "{refused}");

    // It is listed all the same, with its manager, which is shown to run nothing.
    let pools = client.get("/api/v1/resource-pools").await.ok();
    let pools = pools["resourcePools"].as_array().unwrap().iter();
    let listed: Vec<_> = pools
        .map(|pool| [&pool["name"], &pool["clusterName"], &pool["priorityOrder"]])
        .collect();
    assert_eq!(
        listed,
        [
            ["default", "default", "lower goes first"],
            ["pods", "cloud", "lower goes first"]
        ]
    );
    let path = "/api/v1/workspaces/1/available-resource-pools";
    let usable = client.get(path).await.ok()["resourcePools"].take();
    assert_eq!(usable, json!(["default"]));
    let health = client.get("/health").await.ok()["resource_managers"].take();
    let managers = health.as_array().unwrap().iter();
    let managers: Vec<_> = managers.map(|it| [&it["name"], &it["status"]]).collect();
    assert_eq!(managers, [["default", "up"], ["cloud", "down"]]);
    cluster.stop().await;
}
