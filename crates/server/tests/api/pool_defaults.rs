//! What a pool gives to the tasks that users launch in it, of whatever kind.

use det_taskspec::{ContainerSpec, TaskKind};
use serde_json::{Value, json};

use crate::support::{Client, Cluster};

const POOLS: &str = "[{pool_name: default, task_container_defaults: {\
    startup_hook: echo of-the-pool, \
    bind_mounts: [{host_path: /srv/persistent, container_path: /persistent}], \
    devices: ['/dev/fuse:/dev/fuse:rw'], \
    add_capabilities: [SYS_PTRACE], \
    drop_capabilities: [MKNOD], \
    environment_variables: [OF_POOL=yes], \
    image: {cpu: 'pool/cpu:1', cuda: 'pool/cuda:1'}, \
    shm_size_bytes: 123456789, \
    force_pull_image: true, \
    network_mode: host}}]";

/// Launches a task of a kind in the pool.
async fn launch(client: &Client, kind: TaskKind, config: Value) {
    let path = match kind {
        TaskKind::Notebook => "/api/v1/notebooks",
        TaskKind::Shell => "/api/v1/shells",
        TaskKind::Command => "/api/v1/commands",
        other => panic!("{other:?} is not launched here"),
    };
    client.post(path, json!({"config": config})).await.ok();
}

fn has_defaults(spec: &ContainerSpec) {
    let kind = spec.script.task_type;
    let hook = spec.script.pool_startup_hook.as_deref();
    assert_eq!(hook, Some("echo of-the-pool"), "{kind:?}");
    let mounts = spec.mounts.iter();
    let mounts: Vec<_> = mounts
        .map(|mount| {
            (
                mount.host_path.as_str(),
                mount.container_path.as_str(),
                mount.trusted,
            )
        })
        .collect();
    // Those of pools are of the configuration, and reached with the rights of the task.
    let expected = ("/srv/persistent", "/persistent", false);
    assert!(mounts.contains(&expected), "{kind:?}: {mounts:?}");
    let devices = spec.devices.iter();
    let devices: Vec<_> = devices
        .map(|device| (device.host_path.as_str(), device.mode.as_str()))
        .collect();
    assert_eq!(devices, [("/dev/fuse", "rw")], "{kind:?}");
    assert_eq!(spec.add_capabilities, ["SYS_PTRACE"], "{kind:?}");
    let dropped = "MKNOD".to_owned();
    assert!(spec.drop_capabilities.contains(&dropped), "{kind:?}");
    let variable = ("OF_POOL".to_owned(), "yes".to_owned());
    assert!(spec.script.env.contains(&variable), "{kind:?}");
    assert_eq!(spec.image, "pool/cpu:1", "{kind:?}");
    assert_eq!(spec.shm_size_bytes, 123_456_789, "{kind:?}");
    assert_eq!(spec.network_mode, "host", "{kind:?}");
    assert!(spec.force_pull_image, "{kind:?}");
}

#[tokio::test]
async fn what_a_pool_gives_reaches_notebooks_shells_and_commands() {
    let cluster = Cluster::start_with(&[("resource_pools", POOLS)]).await;
    let determined = cluster.determined().await;
    let mut agent = cluster.agent("a1", 2).await;
    for kind in [TaskKind::Notebook, TaskKind::Shell, TaskKind::Command] {
        let mut config = json!({"resources": {"slots": 0}});
        if kind == TaskKind::Command {
            config["entrypoint"] = json!(["true"]);
        }
        launch(&determined, kind, config).await;
        let spec = agent.next_start().await;
        assert_eq!(spec.script.task_type, kind);
        has_defaults(&spec);
    }
    // What the task's own configuration contains comes first.
    let config = json!({
        "resources": {"shm_size": 987_654_321, "slots": 0},
        "environment": {
            "image": "own:1",
            "environment_variables": ["OF_POOL=no"],
            "force_pull_image": false,
        },
        "bind_mounts": [{"host_path": "/tmp/own", "container_path": "/persistent"}],
    });
    launch(&determined, TaskKind::Notebook, config).await;
    let spec = agent.next_start().await;
    assert_eq!(
        (spec.image.as_str(), spec.shm_size_bytes),
        ("own:1", 987_654_321)
    );
    let variable = ("OF_POOL".to_owned(), "no".to_owned());
    assert!(spec.script.env.contains(&variable));
    let mounts = spec.mounts.iter();
    let mut mounts = mounts.filter(|mount| mount.container_path == "/persistent");
    let mount = mounts.next().unwrap();
    assert_eq!(
        (mount.host_path.as_str(), mount.trusted),
        ("/tmp/own", false)
    );
    assert!(mounts.next().is_none());
    assert!(!spec.force_pull_image);
    cluster.stop().await;
}

#[tokio::test]
async fn the_working_directory_of_a_pool_yields_to_files_and_to_null() {
    let pools = "[{pool_name: default, task_container_defaults: {work_dir: /srv}}]";
    let cluster = Cluster::start_with(&[("resource_pools", pools)]).await;
    let determined = cluster.determined().await;
    let mut agent = cluster.agent("a1", 2).await;
    let file = json!([{"path": "here.txt", "type": 48, "content": "aGVyZQ==", "mode": 0o644, "mtime": "1"}]);
    let own = "/run/determined/workdir";
    for (files, given, expected) in [
        (json!([]), json!({}), "/srv"),
        (json!([]), json!({"work_dir": "/own"}), "/own"),
        (json!([]), json!({"work_dir": null}), own),
        (file.clone(), json!({}), own),
        (file, json!({"work_dir": "/srv"}), own),
    ] {
        let mut config = json!({"resources": {"slots": 0}, "entrypoint": ["true"]});
        let members = config.as_object_mut().unwrap();
        members.extend(given.as_object().unwrap().clone());
        let body = json!({"config": config, "files": files});
        determined.post("/api/v1/commands", body).await.ok();
        let spec = agent.next_start().await;
        assert_eq!(spec.script.work_dir, expected, "{given} {files}");
    }
    cluster.stop().await;
}
