use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::errors::ConfigErrors;
use crate::layers::{LoadedMaster, Sources};
use std::collections::BTreeMap;

mod log_policies;
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
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn wrong_configurations_are_refused() {
    for (text, expected) in [
        (
            "security: {tls: {cert: a}}",
            ": security.tls.key: is required beside \"cert\"",
        ),
        (
            "security: {initial_user_password: short}",
            "must have at least 8 characters",
        ),
        (
            "security: {token: {default_lifespan_days: 9, max_lifespan_days: 3}}",
            "must be at most the 3",
        ),
        (
            "resource_pools: [{pool_name: a}, {pool_name: a}]",
            ": resource_pools[1].pool_name: \"a\" names two resource pools",
        ),
        (
            "additional_resource_managers: [{resource_manager: {type: kubernetes, cluster_name: k, max_slots_per_pod: 1}, resource_pools: [{pool_name: default}]}]",
            ": additional_resource_managers[0].resource_pools[0].pool_name: \"default\" names two resource pools",
        ),
        (
            "resource_pools: [{pool_name: default, provider: {type: aws, ssh_key_name: k, image_id: i}}, {pool_name: b, provider: {type: gcp, boot_disk_source_image: projects/p/global/images/i, network_interface: {network: n, subnetwork: s}}}]",
            ": resource_pools[1].provider.type: must be \"aws\" as in the pools before",
        ),
        (
            "resource_pools: [{description: a}]",
            ": resource_pools[0].pool_name: is required",
        ),
        (
            "resource_pools: [{pool_name: a}, {pool_name: b}]",
            "default_aux_resource_pool: is not given, and its default \"default\" names no resource pool; there are \"a\", \"b\"",
        ),
        (
            "resource_manager: {default_compute_resource_pool: x}",
            "default_compute_resource_pool: names no resource pool: \"x\"; there is only \"default\"",
        ),
        (
            "resource_manager: {type: nomad}",
            ": resource_manager.type: must be one of \"agent\", \"kubernetes\", \"slurm\", \"pbs\", not \"nomad\"",
        ),
        (
            "resource_manager: {scheduler: {type: fifo}}",
            ": resource_manager.scheduler.type: must be one of",
        ),
        (
            "resource_manager: {scheduler: {default_priority: 0}}",
            "must be at least 1, not 0",
        ),
        (
            "resource_manager: {max_slots_per_pod: 2}",
            "max_slots_per_pod: is not a known key for type \"agent\"",
        ),
        (
            "task_container_defaults: {shm_size_bytes: 0}",
            "must be at least 1",
        ),
        (
            "task_container_defaults: {network_mode: \"\"}",
            "must not be empty",
        ),
        (
            "task_container_defaults: {gloo_port_range: 9:1}",
            "must be a range of ports",
        ),
        (
            "task_container_defaults: {gpu_pod_spec: {spec: {hostNetwork: true}}}",
            "cannot be set in a pod spec",
        ),
        ("db: {host: h}", ": db.name: is required for PostgreSQL"),
        (
            "db: {url: \"mysql://x:secret@h\"}",
            "must start with \"postgres://\"",
        ),
        (
            "db: {url: \"postgres://x@h\", host: h}",
            ": db.url: cannot be combined",
        ),
        (
            "db: {password: 12345}",
            "must be a string, not a number; hint: put it in quotes",
        ),
        (
            "checkpoint_storage: {type: shared_fs}",
            ": checkpoint_storage.host_path: is required",
        ),
        (
            "resource_pools: [{pool_name: default, agent_reconnect_wait: 5}]",
            "must be a duration with a unit, not the number 5; hint: write \"5s\" for seconds",
        ),
        (
            "scheduler: {fit: best}\nresource_pools: [{pool_name: default}]",
            ": scheduler: is an old form that cannot be combined with",
        ),
        (
            "resource_manager: {no_default_resource_pools: true, default_aux_resource_pool: default}",
            "must be left out beside",
        ),
        (
            "silence_timeout: 1ns",
            ": silence_timeout: must be at least 1s, or 0s",
        ),
        ("nonsense: 1", ": nonsense: is not a known key"),
        ("port: 70000", ": port: must be at most 65535, not 70000"),
    ] {
        let message = match load(text) {
            Ok(_) => panic!("accepted: {text}"),
            Err(errors) => errors.to_string(),
        };
        assert!(
            message.contains(expected),
            "{text}:\n  {message}\nlacks\n  {expected}"
        );
    }
    let message = load("db: {url: \"mysql://x:secret@h\"}")
        .unwrap_err()
        .to_string();
    assert!(!message.contains("secret"), "{message}");
}

#[test]
fn what_is_not_built_yet_is_kept_and_said() {
    for text in [
        "oidc: {enabled: true, client_secret: x}",
        "saml: {enabled: true, provider: p, idp_recipient_url: a, idp_sso_url: b, idp_sso_descriptor_url: c, idp_cert_path: d}",
        "scim: {enabled: true}",
        "additional_resource_managers: [{resource_manager: {type: kubernetes, cluster_name: k, max_slots_per_pod: 8}, resource_pools: [{pool_name: k}]}]",
        "resource_pools: [{pool_name: default, provider: {type: aws, ssh_key_name: k}}]",
        "resource_manager: {type: kubernetes, namespace: x, slot_type: cuda, max_slots_per_pod: 8}",
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
    assert_eq!(
        config("resource_manager: {type: kubernetes, namespace: x, max_slots_per_pod: 8}")
            .resource_manager
            .kept["default_namespace"],
        "x"
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn schedulers_follow_the_all_or_nothing_rule() {
    use FittingPolicy::{Best, Worst};
    use SchedulerKind::{FairShare, Priority, RoundRobin};
    for (name, cluster, pool, expected) in [
        (
            "no block at all",
            "null",
            "null",
            (Priority, Best, false, 42, true),
        ),
        (
            "a pool block replaces all",
            "{type: round_robin, fitting_policy: best}",
            "{fitting_policy: worst}",
            (FairShare, Worst, true, 42, false),
        ),
        (
            "a pool block with a type",
            "{type: round_robin, fitting_policy: best}",
            "{type: round_robin, fitting_policy: worst}",
            (RoundRobin, Worst, false, 42, false),
        ),
        (
            "inherited",
            "{type: round_robin, fitting_policy: best}",
            "null",
            (RoundRobin, Best, false, 42, true),
        ),
        (
            "an empty pool block inherits",
            "{type: priority, preemption: true, default_priority: 7}",
            "{}",
            (Priority, Best, true, 7, true),
        ),
        (
            "a dropped default priority",
            "{type: priority, default_priority: 7}",
            "{type: priority}",
            (Priority, Best, false, 42, false),
        ),
        (
            "blank type with a priority key",
            "null",
            "{preemption: true}",
            (Priority, Best, true, 42, false),
        ),
        (
            "blank type",
            "null",
            "{type: \"\"}",
            (FairShare, Best, true, 42, false),
        ),
        (
            "blank type of the cluster",
            "{fitting_policy: worst}",
            "null",
            (FairShare, Worst, true, 42, true),
        ),
        (
            "fair share can always interrupt",
            "{type: fair_share}",
            "null",
            (FairShare, Best, true, 42, true),
        ),
    ] {
        let text = format!(
            "resource_manager: {{scheduler: {cluster}}}\nresource_pools: [{{pool_name: default, scheduler: {pool}}}]"
        );
        let config = config(&text);
        let got = config.effective_scheduler(&config.resource_pools[0]);
        assert_eq!(
            (
                got.kind,
                got.fitting_policy,
                got.preemption,
                got.default_priority,
                got.inherited
            ),
            expected,
            "{name}"
        );
    }
    let (_, warnings) = load("resource_manager: {scheduler: {type: priority, preemption: true}}\nresource_pools: [{pool_name: default, scheduler: {fitting_policy: worst}}]").unwrap();
    let reported: Vec<&str> = warnings.iter().map(|w| w.message.as_str()).collect();
    assert_eq!(
        reported,
        [
            "resource pool \"default\" has a scheduler of its own, so \"resource_manager.scheduler\" does not apply to it, not even its \"type\" (\"priority\"); it runs with scheduler \"fair_share\", fitting policy \"worst\""
        ]
    );
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
    assert_eq!(effective.effective_shm_size_bytes(), 5);
    assert_eq!(effective.effective_network_mode(), "host");
    assert_eq!(effective.effective_preemption_timeout(), 3600);
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

const POOLS: &str = "resource_pools:\n- {pool_name: default}\n- pool_name: gpu-a\n  scheduler: {type: fair_share}\n  task_container_defaults: {bind_mounts: [{host_path: /a, container_path: /b}]}\n";

fn loaded_with(
    variables: &[(&str, &str)],
    flags: &[(&str, &str)],
) -> Result<LoadedMaster, ConfigErrors> {
    let files = [("master.yaml".to_owned(), POOLS.to_owned())];
    let flags: Vec<(String, String)> = flags
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    LoadedMaster::load(Sources {
        files: &files,
        env: &env(variables),
        flags: &flags,
    })
}

#[test]
fn flags_and_variables_reach_into_lists() {
    let loaded = loaded_with(
        &[
            ("DET_RESOURCE_POOLS__1__MAX_AUX_CONTAINERS_PER_AGENT", "3"),
            ("DET_RESOURCE_POOLS__GPU_A__SCHEDULER_TYPE", "round_robin"),
            ("DET_RESOURCE_POOLS__GPU_A__DESCRIPTION", "from a variable"),
            (
                "DET_RESOURCE_POOLS__GPU_A__TASK_CONTAINER_DEFAULTS_BIND_MOUNTS__0__HOST_PATH",
                "/changed",
            ),
        ],
        &[
            ("resource_pools[0].max_aux_containers_per_agent", "5"),
            ("resource_pools[gpu-a].scheduler.type", "priority"),
            ("resource_pools[gpu-a].scheduler.preemption", "true"),
            ("resource_manager.metadata.zone", "eu"),
        ],
    )
    .unwrap_or_else(|e| panic!("{e}"));
    let pools = &loaded.config.resource_pools;
    assert_eq!(pools[0].max_aux_containers_per_agent, 5);
    assert_eq!(pools[1].max_aux_containers_per_agent, 3);
    assert_eq!(pools[1].description, "from a variable");
    let scheduler = loaded.config.effective_scheduler(&pools[1]);
    assert_eq!(
        (scheduler.kind, scheduler.preemption),
        (SchedulerKind::Priority, true)
    );
    let mounts = &pools[1]
        .task_container_defaults
        .as_ref()
        .unwrap()
        .bind_mounts;
    assert_eq!(mounts[0].host_path, "/changed");
    assert_eq!(loaded.config.resource_manager.metadata["zone"], "eu");
    let origin = |path: &str| {
        let keys = loaded.origins();
        let key = keys.into_iter().find(|key| key.path == path);
        key.unwrap_or_else(|| panic!("{path}")).origin.to_string()
    };
    assert!(
        origin("resource_pools[0].max_aux_containers_per_agent")
            .contains("--set resource_pools[0].max_aux_containers_per_agent")
    );
    assert!(
        origin("resource_pools[1].description").contains("DET_RESOURCE_POOLS__GPU_A__DESCRIPTION")
    );
    assert!(origin("resource_pools[1].pool_name").contains("master.yaml"));
}

#[test]
fn the_list_that_nobody_gave_can_be_changed_too() {
    let flags = [(
        "resource_pools[default].max_aux_containers_per_agent".to_owned(),
        "5".to_owned(),
    )];
    let config = LoadedMaster::load(Sources {
        flags: &flags,
        ..Sources::default()
    })
    .unwrap()
    .config;
    assert_eq!(config.resource_pools[0].max_aux_containers_per_agent, 5);
    let env = env(&[("DET_RESOURCE_POOLS__DEFAULT__DESCRIPTION", "d")]);
    let loaded = LoadedMaster::load(Sources {
        env: &env,
        ..Sources::default()
    })
    .unwrap();
    assert_eq!(loaded.config.resource_pools[0].description, "d");
    assert_eq!(loaded.warnings, []);
}

#[test]
fn unknown_elements_are_reported_with_the_known_ones() {
    for (flag, expected) in [
        (
            "resource_pools[7].description",
            "resource_pools[7]: there is no such element; there are: 0 \"default\", 1 \"gpu-a\"",
        ),
        (
            "resource_pools[gpu-b].description",
            "resource_pools[gpu-b]: no element has this name; there are: 0 \"default\", 1 \"gpu-a\" (hint: did you mean \"gpu-a\"?)",
        ),
        (
            "resource_pools[0].descripton",
            "did you mean \"resource_pools[0].description\"?",
        ),
        (
            "resource_pools.description",
            "resource_pools: is a list; name the element, resource_pools[0] or resource_pools[NAME]",
        ),
        ("db[0]", "db: is no list, so it has no elements"),
        ("reserved_ports[0]", "there is no such element"),
        ("resource_pools[0", "has a \"[\" without its \"]\""),
        ("resource_pools[0].scheduler.type", "must be one of"),
    ] {
        let reported = loaded_with(&[], &[(flag, "x")]).unwrap_err().to_string();
        let hinted = expected.replace(" (hint: ", "; hint: ").replace("?)", "?");
        assert!(
            reported.contains(expected) || reported.contains(&hinted),
            "{flag}: {reported}"
        );
        assert!(
            reported.contains(&format!("--set {flag}")),
            "{flag}: {reported}"
        );
    }
    for (variable, expected) in [
        (
            "DET_RESOURCE_POOLS__7__DESCRIPTION",
            "resource_pools[7]: no element has this number or name; there are: 0 \"default\", 1 \"gpu-a\"",
        ),
        (
            "DET_RESOURCE_POOLS__GPU_A__DESCRIPTON",
            "resource_pools[1]: \"DESCRIPTON\" is no key of it",
        ),
    ] {
        let reported = loaded_with(&[(variable, "x")], &[])
            .unwrap_err()
            .to_string();
        assert!(
            reported.contains(expected) && reported.contains(variable),
            "{variable}: {reported}"
        );
    }
}

#[test]
fn a_number_is_a_name_where_an_element_has_it() {
    let files = [(
        "master.yaml".to_owned(),
        "resource_pools: [{pool_name: default}, {pool_name: \"7\"}, {pool_name: \"007\"}, {pool_name: \"1\"}, {pool_name: \"4\"}]"
            .to_owned(),
    )];
    let loaded = |env: &[(&str, &str)], flag: &str| {
        let env = env.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
        let flags = [(flag.to_owned(), "set".to_owned())];
        let config = LoadedMaster::load(Sources {
            files: &files,
            env: &env.collect(),
            flags: if flag.is_empty() { &[] } else { &flags },
        });
        config
            .map(|loaded| {
                let pools = loaded.config.resource_pools.iter();
                let changed = pools.filter(|pool| pool.description == "set");
                let names: Vec<String> = changed.map(|pool| pool.pool_name.clone()).collect();
                names.join(" ")
            })
            .map_err(|errors| errors.to_string())
    };
    for (flag, pool) in [
        ("resource_pools[7].description", "7"),
        ("resource_pools[007].description", "007"),
        ("resource_pools[0].description", "default"),
        ("resource_pools[2].description", "007"),
        ("resource_pools[4].description", "4"),
        ("resource_pools[\"1\"].description", "1"),
        ("resource_pools[\"7\"].description", "7"),
    ] {
        assert_eq!(loaded(&[], flag).as_deref(), Ok(pool), "{flag}");
    }
    let reported = loaded(&[], "resource_pools[1].description").unwrap_err();
    assert!(
        reported.contains(
            "resource_pools[1]: can be element 1 and the one named \"1\", which is element 3"
        ) && reported
            .contains("resource_pools[\"1\"] for the name, resource_pools[\"7\"] for element 1"),
        "{reported}"
    );
    for (variable, pool) in [
        ("DET_RESOURCE_POOLS__7__DESCRIPTION", "7"),
        ("DET_RESOURCE_POOLS__0__DESCRIPTION", "default"),
        ("DET_RESOURCE_POOLS__4__DESCRIPTION", "4"),
        ("DET_RESOURCE_POOLS__007__DESCRIPTION", "007"),
    ] {
        assert_eq!(
            loaded(&[(variable, "set")], "").as_deref(),
            Ok(pool),
            "{variable}"
        );
    }
    let reported = loaded(&[("DET_RESOURCE_POOLS__1__DESCRIPTION", "set")], "").unwrap_err();
    assert!(
        reported.contains("several elements can be meant; there are: 0 \"default\", 1 \"7\"")
            && reported.contains("--set 'resource_pools[\"7\"].KEY=VALUE' is element 1")
            && reported.contains("--set 'resource_pools[\"1\"].KEY=VALUE' is element"),
        "{reported}"
    );
}

#[test]
fn variables_that_nothing_reads_are_reported() {
    let loaded = loaded_with(
        &[
            ("DET_ANYTHING_ELSE", "1"),
            ("DET_LOG_LEVLE", "info"),
            ("DET_MASTER", "http://x"),
            ("DET_TEST_POSTGRES_URL", "x"),
            ("DET_AGENT_ID", "a"),
            ("DET_DB_PASSWORD_FILE", "/x"),
            ("DET_SLOT_TYPE", "none"),
        ],
        &[],
    )
    .unwrap();
    let reported: Vec<String> = loaded
        .warnings
        .iter()
        .map(ConfigWarning::for_log)
        .filter(|warning| warning.contains("DET_"))
        .collect();
    assert_eq!(reported.len(), 2, "{reported:?}");
    assert!(
        reported[0].contains("DET_ANYTHING_ELSE") && reported[0].contains("det config keys"),
        "{reported:?}"
    );
    assert!(reported[1].contains("DET_LOG_LEVLE"), "{reported:?}");
}
