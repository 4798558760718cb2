use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::errors::ConfigErrors;
use crate::layers::{LoadedMaster, Sources};
use std::collections::BTreeMap;

mod list_elements;
mod log_policies;
mod refused;
mod schedulers;
mod shipped;

fn load(text: &str) -> Result<(MasterConfig, Vec<ConfigWarning>), ConfigErrors> {
    let files = [("master.yaml".into(), text.into())];
    LoadedMaster::load(Sources {
        files: &files,
        ..Sources::default()
    })
    .map(|loaded| (loaded.config, loaded.warnings))
}

pub(super) fn config(text: &str) -> MasterConfig {
    load(text).unwrap_or_else(|e| panic!("{e}")).0
}

fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

#[test]
fn nothing_configured_gives_every_default() {
    let LoadedMaster {
        config, warnings, ..
    } = LoadedMaster::load(Sources::default()).unwrap();
    assert_eq!(warnings, Vec::new());
    assert_eq!(config.log.level, "info");
    assert_eq!(config.effective_port(), 8080);
    assert_eq!(config.db.postgres_url(), None);
    assert_eq!(config.tensorboard_timeout, 300);
    assert_eq!(config.notebook_timeout, None);
    assert!(config.launch_error && !config.telemetry.enabled);
    assert_eq!(config.resource_pools.len(), 1);
    assert_eq!(config.resource_pools[0].pool_name, "default");
    assert_eq!(config.resource_pools[0].max_aux_containers_per_agent, 100);
    assert_eq!(config.resource_pools[0].agent_reconnect_wait.as_secs(), 600);
    assert_eq!(config.security.default_task.user, "root");
    assert_eq!(
        config.task_container_defaults,
        TaskContainerDefaults::default()
    );
    assert_eq!(config.default_aux_pool(), Some("default"));
    crate::schema::assert_defaults_are_json(&schema::MASTER);
    // The typed value holds nothing that reading it again would lose.
    let value = serde_json::to_value(&config).unwrap();
    assert_eq!(
        serde_json::from_value::<MasterConfig>(value).unwrap(),
        config
    );
}

#[test]
fn a_flag_beats_the_environment_beats_later_files_beat_earlier_ones() {
    let files = [
        (
            "a.yaml".to_owned(),
            "port: 1\ncluster_name: a\nlog: {level: debug}\ndb: {host: h, name: n, user: u}"
                .to_owned(),
        ),
        (
            "b.yaml".to_owned(),
            "port: 2\ncluster_name: b\nenable_cors: true\n".to_owned(),
        ),
    ];
    let env = env(&[
        ("DET_PORT", "3"),
        ("DET_CLUSTER_NAME", "5"),
        ("DET_DB_PASSWORD", "p: [w"),
        ("DET_DB_PORT", "6"),
        ("DET_RESERVED_PORTS", "[1, 2]"),
        ("DET_MASTER", "http://elsewhere"),
    ]);
    let flags = [("port".to_owned(), "4".to_owned())];
    let sources = Sources {
        files: &files,
        env: &env,
        flags: &flags,
    };
    let config = LoadedMaster::load(sources).unwrap().config;
    assert_eq!(config.port, 4);
    assert_eq!(config.cluster_name, "5");
    assert_eq!(config.log.level, "debug");
    assert!(config.enable_cors);
    assert_eq!(config.reserved_ports, [1, 2]);
    assert_eq!(
        config.db.postgres_url().as_deref(),
        Some("postgres://u:p%3A%20%5Bw@h:6/n?sslmode=disable")
    );
}

#[test]
fn errors_name_the_file_the_variable_or_the_flag() {
    let files = [("m.yaml".to_owned(), "log:\n  levle: info\n".to_owned())];
    let env = env(&[("DET_PORT", "http")]);
    let flags = [
        ("launch_error".to_owned(), "maybe".to_owned()),
        ("nowhere".to_owned(), "1".to_owned()),
    ];
    let sources = Sources {
        files: &files,
        env: &env,
        flags: &flags,
    };
    let message = LoadedMaster::load(sources).unwrap_err().to_string();
    for expected in [
        "m.yaml:2:3: log.levle: is not a known key; hint: did you mean \"level\"?",
        "DET_PORT: port: must be an integer, not the string \"http\"",
        "--launch-error: launch_error: must be true or false, not the string \"maybe\"",
        "--set nowhere: is not a key that a flag or variable can set",
    ] {
        assert!(message.contains(expected), "{message}\nlacks {expected}");
    }
}

#[test]
fn what_is_not_built_yet_is_kept_and_reported() {
    for text in [
        "oidc: {enabled: true, client_secret: x}",
        "saml: {enabled: true, provider: p, idp_recipient_url: a, idp_sso_url: b, idp_sso_descriptor_url: c, idp_cert_path: d}",
        "scim: {enabled: true}",
        "additional_resource_managers: [{resource_manager: {type: slurm, cluster_name: k, host: x}, resource_pools: [{pool_name: k}]}]",
        "resource_pools: [{pool_name: default, provider: {type: aws, ssh_key_name: k}}]",
        "resource_manager: {type: slurm, host: x}",
        "security: {authz: {type: rbac}}",
        "logging: {type: elastic, host: x, port: 1}",
        "ui_customization: {logo_paths: {dark_horizontal: a, dark_vertical: b, light_horizontal: c, light_vertical: d}}",
    ] {
        let (_, warnings) = load(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert!(
            warnings.iter().any(|warning| warning
                .message
                .contains("is accepted and kept but not acted on yet")),
            "{text}: {warnings:?}"
        );
    }
    assert_eq!(
        config("oidc: {provider: okta}").kept["oidc"]["provider"],
        json!("okta")
    );
    let config = config("resource_manager: {type: kubernetes, namespace: x, max_slots_per_pod: 8}");
    let ManagerSettings::Kubernetes(cluster) = &config.resource_manager.settings else {
        panic!("{:?}", config.resource_manager);
    };
    assert_eq!(cluster.default_namespace, "x");
}

#[test]
fn older_forms_are_translated() {
    let (config, warnings) = load("scheduler: {fit: worst, type: priority, resource_provider: {type: default, default_cpu_resource_pool: default}}\nprovisioner: {provider: aws, region: x, ssh_key_name: k}").unwrap();
    assert_eq!(
        config
            .resource_manager
            .scheduler
            .as_ref()
            .unwrap()
            .fitting_policy,
        Some(FittingPolicy::Worst)
    );
    assert_eq!(
        config.resource_manager.default_aux_resource_pool.as_deref(),
        Some("default")
    );
    let provider = config.resource_pools[0].provider.as_ref().unwrap();
    assert_eq!(
        (
            &provider["type"],
            &provider["region"],
            &provider["max_instances"]
        ),
        (&json!("aws"), &json!("x"), &json!(5))
    );
    assert!(
        warnings
            .iter()
            .any(|w| w.to_string().starts_with("scheduler: is an old form")),
        "{warnings:?}"
    );
    let (config, warnings) =
        load("resource_pools: {pool_name: only, max_cpu_containers_per_agent: 3}").unwrap();
    assert_eq!(config.resource_pools[0].max_aux_containers_per_agent, 3);
    assert_eq!(config.default_compute_pool(), Some("only"));
    assert!(
        warnings.iter().any(|w| w.message.contains("is a list")),
        "{warnings:?}"
    );
}

#[test]
fn a_pools_task_defaults_stand_over_the_clusters() {
    let config = config(
        r#"
task_container_defaults:
  shm_size_bytes: 5
  network_mode: host
  force_pull_image: true
  image: {gpu: g, cpu: c}
  environment_variables: [A=1, B=1]
  bind_mounts: [{host_path: /c, container_path: /x}, {host_path: /c, container_path: /y}]
  add_capabilities: [B]
  slurm: {sbatch_args: [c]}
resource_pools:
  - pool_name: default
    task_container_defaults:
      force_pull_image: false
      image: {cpu: mine}
      environment_variables: [B=2]
      bind_mounts: [{host_path: /p, container_path: /x}]
      add_capabilities: [A]
      slurm: {sbatch_args: [p]}
      startup_hook: "echo"
"#,
    );
    let effective = config.effective_task_container_defaults("default");
    assert_eq!(effective.shm_size_bytes, Some(5));
    assert_eq!(effective.effective_network_mode(), "host");
    assert_eq!(effective.preemption_timeout, None);
    assert_eq!(effective.force_pull_image, Some(false));
    assert_eq!(effective.image.cpu.as_deref(), Some("mine"));
    assert_eq!(effective.image.cuda.as_deref(), Some("g"));
    assert_eq!(effective.environment_variables.cpu, ["B=2", "A=1"]);
    assert_eq!(effective.add_capabilities, ["A", "B"]);
    assert_eq!(
        effective.slurm.sbatch_args,
        Some(vec!["c".to_owned(), "p".to_owned()])
    );
    assert_eq!(effective.startup_hook.as_deref(), Some("echo"));
    let mounts: Vec<_> = effective
        .bind_mounts
        .iter()
        .map(|m| (m.host_path.as_str(), m.container_path.as_str()))
        .collect();
    assert_eq!(mounts, [("/p", "/x"), ("/c", "/y")]);
    assert_eq!(
        config.effective_task_container_defaults("other"),
        config.task_container_defaults
    );
}

#[test]
fn secrets_are_hidden() {
    let config = config(
        r"
db: {user: u, password: hidden1, host: h, name: n}
security: {initial_user_password: Hidden2hidden2, agent_token: hidden3}
webhooks: {signing_key: hidden4}
oidc: {client_secret: hidden5}
checkpoint_storage: {type: s3, bucket: b, secret_key: hidden6}
task_container_defaults: {registry_auth: {username: u, password: hidden7, serveraddress: s}}
resource_pools: [{pool_name: default, provider: {type: aws, ssh_key_name: k, startup_script: hidden8}}]
telemetry: {segment_master_key: hidden9}
",
    );
    let shown = config.to_masked_json().to_string();
    let debug = format!("{config:?}");
    for text in [&shown, &debug] {
        assert!(!text.to_lowercase().contains("hidden"), "{text}");
        assert!(text.contains("********"));
    }
    assert_eq!(config.to_masked_json()["db"]["user"], "u");
    let url = super::tests::config("db: {url: \"postgres://u:hidden@h/n\"}");
    assert!(!url.to_masked_json().to_string().contains("hidden"));
    assert_eq!(
        url.db.postgres_url().as_deref(),
        Some("postgres://u:hidden@h/n")
    );
    assert!(config.checkpoint_storage_json().unwrap()["secret_key"] == "hidden6");
}

#[test]
fn every_key_has_a_variable() {
    let names = LoadedMaster::environment_names();
    for expected in [
        ("DET_DB_SSL_ROOT_CERT", "db.ssl_root_cert"),
        ("DET_SECURITY_TLS_CERT", "security.tls.cert"),
        (
            "DET_RESOURCE_MANAGER_SCHEDULER_TYPE",
            "resource_manager.scheduler.type",
        ),
        ("DET_CHECKPOINT_STORAGE_TYPE", "checkpoint_storage.type"),
        (
            "DET_SECURITY_INITIAL_USER_PASSWORD",
            "security.initial_user_password",
        ),
    ] {
        assert!(
            names.contains(&(expected.0.to_owned(), expected.1.to_owned())),
            "{expected:?}"
        );
    }
    let config = LoadedMaster::load(Sources {
        env: &env(&[
            ("DET_RESOURCE_MANAGER_SCHEDULER_TYPE", "round_robin"),
            ("DET_CHECKPOINT_STORAGE", "{type: shared_fs, host_path: /a}"),
            ("DET_CHECKPOINT_STORAGE_HOST_PATH", "/b"),
            ("DET_SECURITY_INITIAL_USER_PASSWORD", "Passw0rd: x"),
        ]),
        ..Sources::default()
    })
    .unwrap()
    .config;
    assert_eq!(
        config.resource_manager.scheduler.unwrap().kind,
        Some(SchedulerKind::RoundRobin)
    );
    assert_eq!(
        config
            .checkpoint_storage
            .unwrap()
            .location
            .shared_fs_subdirectory(),
        Some("".into())
    );
    assert_eq!(config.security.initial_user_password, "Passw0rd: x");
}

proptest! {
    #[test]
    fn no_text_makes_loading_panic(
        key in prop_oneof![
            Just("resource_manager"), Just("resource_pools"), Just("scheduler"), Just("provisioner"), Just("db"),
            Just("task_container_defaults"), Just("security"), Just("logging"), Just("checkpoint_storage"),
        ],
        inner in "[a-z_]{1,12}",
        value in "[-~?:#&*!|>'\"%{}\\[\\], a-z0-9\n]{0,20}",
    ) {
        for text in [value.clone(), format!("{key}: {value}"), format!("{key}: {{{inner}: {value}, type: {value}}}"),
                     format!("{key}: [{{{inner}: {value}, scheduler: {value}}}]")] {
            let _ = load(&text);
            let env = env(&[("DET_RESOURCE_POOLS", &text), ("DET_DB", &text)]);
            let _ = LoadedMaster::load(Sources { env: &env, ..Sources::default() });
        }
    }
}
