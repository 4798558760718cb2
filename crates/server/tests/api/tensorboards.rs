//! TensorBoards: what they show, what they mount, what is refused.

use det_agent_proto::ContainerState;
use det_taskspec::{ContainerSpec, TENSORBOARD_PORTS, TaskKind};
use serde_json::{Value, json};

use crate::support::{Client, Cluster};

const TENSORBOARDS: &str = "/api/v1/tensorboards";

/// A user of this name, who is made first.
async fn user(cluster: &Cluster, name: &str) -> Client {
    let new = json!({"user": {"username": name, "active": true}});
    cluster.admin().await.post("/api/v1/users", new).await.ok();
    cluster.user(name).await
}

/// A paused experiment with this storage; its number.
async fn experiment(client: &Client, storage: Value, more: Value) -> i64 {
    let mut config = json!({
        "name": "shown", "entrypoint": "true", "checkpoint_storage": storage,
        "searcher": {"name": "single", "metric": "loss"}, "environment": {"image": "of-experiment"},
    });
    config
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let body = json!({"config": config.to_string(), "activate": false});
    let made = client.post("/api/v1/experiments", body).await.ok();
    made["experiment"]["id"].as_i64().unwrap()
}

fn shared(path: &str) -> Value {
    json!({"type": "shared_fs", "host_path": path, "storage_path": "below"})
}

fn sources(spec: &ContainerSpec) -> String {
    let file = spec
        .script
        .files
        .iter()
        .find(|file| file.path.ends_with("/sources"));
    file.unwrap().content.clone()
}

#[tokio::test]
async fn a_tensorboard_shows_experiments_and_trials_of_several_storages_read_only() {
    let cluster = Cluster::start().await;
    let ada = user(&cluster, "ada").await;
    let mut agent = cluster.agent("a1", 1).await;
    let first = experiment(&ada, shared("/one"), json!({})).await;
    let second = experiment(&ada, shared("/two"), json!({})).await;
    let trial = ada
        .get(&format!("/api/v1/experiments/{second}/trials"))
        .await
        .ok();
    let trial = trial["trials"][0]["id"].as_i64().unwrap();
    let body = json!({"config": {}, "experimentIds": [first], "trialIds": [trial]});
    let made = ada.post(TENSORBOARDS, body).await.ok();
    let shown = &made["tensorboard"];
    let id = shown["id"].as_str().unwrap();
    assert_eq!(shown["experimentIds"], json!([first]));
    assert_eq!(shown["trialIds"], json!([trial]));
    assert_eq!(shown["serviceAddress"], format!("/proxy/{id}/"));
    assert_eq!(made["config"]["resources"]["slots"], 0);
    assert_eq!(
        made["config"]["environment"]["image"]["cpu"],
        "of-experiment"
    );

    let spec = agent.next_start().await;
    assert_eq!(spec.script.task_type, TaskKind::Tensorboard);
    assert!(
        TENSORBOARD_PORTS.contains(&spec.ports[0]),
        "{:?}",
        spec.ports
    );
    assert_eq!(spec.image, "of-experiment");
    let mounts: Vec<_> = (spec.mounts.iter())
        .map(|m| {
            (
                m.host_path.as_str(),
                m.container_path.as_str(),
                m.read_only,
                m.trusted,
            )
        })
        .collect();
    let expected = [
        ("/one", "/determined_shared_fs", true, false),
        ("/two", "/determined_shared_fs_2", true, false),
    ];
    assert_eq!(mounts, expected);
    let cluster_id = ada.get("/api/v1/master").await.ok()["clusterId"]
        .as_str()
        .unwrap()
        .to_owned();
    let of = |root: &str, experiment: i64| {
        format!("{root}/below/{cluster_id}/tensorboard/experiment/{experiment}")
    };
    assert_eq!(
        sources(&spec),
        format!(
            "experiment_{first} {}\ntrial_{trial} {}/trial/{trial}\n",
            of("/determined_shared_fs", first),
            of("/determined_shared_fs_2", second)
        )
    );

    // Until it serves, both lists have it as waiting.
    let port = spec.ports[0];
    let running = ContainerState::Running {
        host_address: "127.0.0.1".into(),
        ports: vec![(port, 40001)],
        runtime_id: "1".into(),
    };
    agent.report(&spec, running).await;
    let state = |answer: &Value| {
        let summary = &answer["allocationIdToSummary"][spec.allocation_id.as_str()];
        summary["state"].clone()
    };
    let waits = |answer: &Value| state(answer) == "STATE_WAITING";
    cluster.until(&ada, "/api/v1/tasks", waits).await;
    let shown = ada.get(&format!("{TENSORBOARDS}/{id}")).await.ok();
    assert_eq!(shown["tensorboard"]["state"], "STATE_WAITING");
    cluster.stop().await;
}

#[tokio::test]
async fn a_tensorboard_finds_directory_storage_where_the_experiment_mounts_it() {
    let cluster = Cluster::start().await;
    let ada = user(&cluster, "ada").await;
    let mut agent = cluster.agent("a1", 1).await;
    let storage = json!({"type": "directory", "container_path": "/ckpts/here"});
    let mounts = json!({"bind_mounts": [
        {"host_path": "/host/ckpts", "container_path": "/ckpts"},
        {"host_path": "/host/data", "container_path": "/data"},
    ]});
    let mounted = experiment(&ada, storage.clone(), mounts).await;
    let bare = experiment(&ada, storage, json!({})).await;
    let launch = async |ids: &[i64], config: Value| {
        let body = json!({"config": config, "experimentIds": ids});
        ada.post(TENSORBOARDS, body).await.ok()
    };
    let made = launch(&[mounted], json!({})).await;
    assert_eq!(made["messages"], json!([]));
    let paths = |spec: &ContainerSpec| -> Vec<(String, bool)> {
        let mounts = spec.mounts.iter();
        mounts
            .map(|mount| (mount.container_path.clone(), mount.read_only))
            .collect()
    };
    assert_eq!(
        paths(&agent.next_start().await),
        [("/determined_shared_fs".to_owned(), true)]
    );
    // All of them on request, as they are.
    launch(&[mounted], json!({"inherit_mounts": true})).await;
    let inherited = paths(&agent.next_start().await);
    assert_eq!(
        inherited,
        [
            ("/ckpts".to_owned(), false),
            ("/data".to_owned(), false),
            ("/determined_shared_fs".to_owned(), true)
        ]
    );
    let made = launch(&[bare], json!({})).await;
    let text = made["messages"].to_string();
    assert!(
        text.contains("neither its configuration nor this one mounts"),
        "{text}"
    );
    cluster.stop().await;
}

#[tokio::test]
async fn what_a_tensorboard_cannot_show_is_refused_before_anything_is_stored() {
    let cluster = Cluster::start().await;
    let ada = user(&cluster, "ada").await;
    let cloud = experiment(&ada, json!({"type": "s3", "bucket": "b"}), json!({})).await;
    let shown = experiment(&ada, shared("/one"), json!({})).await;
    let many: Vec<i64> = (1..=101).collect();
    let long = format!("/{}", "x".repeat(5000));
    let long = json!({"type": "directory", "container_path": long});
    let long = experiment(&ada, long, json!({})).await;
    for (body, status, said) in [
        (json!({}), 400, "name one experiment or trial at least"),
        (json!({"experimentIds": [999]}), 404, "experiment"),
        (json!({"trialIds": [999]}), 404, "trial"),
        (json!({"trialIds": many}), 400, "100 single trials at most"),
        (json!({"experimentIds": [cloud]}), 501, "type \"s3\""),
        (json!({"experimentIds": [long]}), 400, "4096 are allowed"),
    ] {
        let mut body = body;
        body["config"] = json!({});
        let refusal = ada.post(TENSORBOARDS, body.clone()).await.refused(status);
        assert!(refusal.contains(said), "{body}: {refusal}");
    }
    let listed = ada.get(TENSORBOARDS).await.ok();
    assert_eq!(listed["tensorboards"], json!([]));
    // Slots are none of its own.
    let body = json!({"config": {"resources": {"slots": 2}}, "experimentIds": [shown]});
    let made = ada.post(TENSORBOARDS, body).await.ok();
    assert_eq!(made["config"]["resources"]["slots"], 0);
    cluster.stop().await;
}

#[tokio::test]
async fn what_others_experiments_bring_does_not_run_in_ones_own_tensorboard() {
    let cluster = Cluster::start().await;
    let (ada, bob) = (user(&cluster, "ada").await, user(&cluster, "bob").await);
    let storage = json!({"type": "directory", "container_path": "/usr/local/bin/x"});
    let id = experiment(
        &ada,
        storage,
        json!({
            "environment": {"image": "private", "registry_auth": {"username": "ada", "password": "geheim"}},
            "bind_mounts": [{"host_path": "/home/ada/bin", "container_path": "/usr/local/bin"}],
        }),
    )
    .await;
    let mut agent = cluster.agent("a1", 1).await;
    for (client, own) in [(&ada, true), (&bob, false)] {
        let config = json!({"inherit_mounts": true});
        let body = json!({"config": config, "experimentIds": [id]});
        let made = client.post(TENSORBOARDS, body).await.ok();
        let warned = made["messages"]
            .to_string()
            .contains("belongs to another user");
        assert_eq!(warned, !own);
        let spec = agent.next_start().await;
        assert_eq!(spec.image == "private", own);
        assert_eq!(spec.registry_auth.is_some(), own);
        let at = |path: &str| spec.mounts.iter().any(|mount| mount.container_path == path);
        assert_eq!(at("/usr/local/bin"), own);
        assert!(at("/determined_shared_fs"), "the files are shown");
        assert!(sources(&spec).contains(" /determined_shared_fs/x/"));
    }
    cluster.stop().await;
}

/// What an experiment mounts was allowed when it was created. A TensorBoard of it is a task of today.
#[tokio::test]
async fn policies_of_today_are_over_what_a_tensorboard_takes_from_its_experiments() {
    let cluster = Cluster::start().await;
    let ada = user(&cluster, "ada").await;
    let mut agent = cluster.agent("a1", 1).await;
    let mounts = json!({"bind_mounts": [
        {"host_path": "/host/data", "container_path": "/data"},
        {"host_path": "/host/more", "container_path": "/more"},
    ]});
    let mounting = experiment(&ada, shared("/one"), mounts).await;
    let admin = cluster.admin().await;
    let set = async |workload: &str, invariants: Value| {
        let policies = json!({"invariant_config": invariants}).to_string();
        let path = format!("/api/v1/config-policies/workspaces/1/{workload}");
        admin
            .put(&path, json!({"configPolicies": policies}))
            .await
            .ok();
    };
    let body = json!({"config": {"inherit_mounts": true}, "experimentIds": [mounting]});
    set(
        "NTSC",
        json!({"bind_mounts": [{"host_path": "/safe", "container_path": "/data", "read_only": true}]}),
    )
    .await;
    let made = ada.post(TENSORBOARDS, body.clone()).await.ok();
    let spec = agent.next_start().await;
    let at = |place: &str| {
        let mut found = spec.mounts.iter().filter(|m| m.container_path == place);
        let one = found.next().map(|m| (m.host_path.as_str(), m.read_only));
        assert!(found.next().is_none(), "{place}");
        one
    };
    assert_eq!(at("/data"), Some(("/safe", true)));
    assert_eq!(at("/more"), Some(("/host/more", false)));
    let notes = made["messages"].to_string();
    assert!(
        notes.contains("bind_mounts") && notes.contains("policy"),
        "{notes}"
    );

    // Its own storage is under the policies over experiments.
    let storage =
        |path: &str| json!({"checkpoint_storage": {"type": "shared_fs", "host_path": path}});
    set("EXPERIMENT", storage("/one")).await;
    ada.post(TENSORBOARDS, body.clone()).await.ok();
    set("EXPERIMENT", storage("/other")).await;
    let refusal = ada.post(TENSORBOARDS, body).await.refused(403);
    assert!(
        refusal.contains("checkpoint_storage.host_path is \"/one\"")
            && refusal.contains("fix it to \"/other\""),
        "{refusal}"
    );
    let mounts = json!({"bind_mounts": [{"host_path": "/safe", "container_path": "/ckpts"}]});
    let storage = json!({"type": "directory", "container_path": "/ckpts/here"});
    let own = json!({"bind_mounts": [{"host_path": "/host/ckpts", "container_path": "/ckpts"}]});
    admin
        .delete("/api/v1/config-policies/workspaces/1/EXPERIMENT")
        .await
        .ok();
    let older = experiment(&ada, storage, own).await;
    set("EXPERIMENT", mounts).await;
    let body = json!({"config": {}, "experimentIds": [older]});
    let refusal = ada.post(TENSORBOARDS, body).await.refused(403);
    assert!(refusal.contains("bind_mounts at \"/ckpts\""), "{refusal}");
    cluster.stop().await;
}
