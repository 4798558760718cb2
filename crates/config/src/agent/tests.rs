use proptest::prelude::*;

use super::*;
use crate::errors::{ConfigErrors, ConfigWarning};
use crate::layers::{LoadedAgent, Sources};

fn load(
    text: &str,
    env: &[(&str, &str)],
    flags: &[(&str, &str)],
) -> Result<(AgentConfig, Vec<ConfigWarning>), ConfigErrors> {
    let owned = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    };
    LoadedAgent::load(Sources {
        files: &owned(&[("agent.yaml", text)]),
        env: &owned(env).into_iter().collect(),
        flags: &owned(flags),
    })
    .map(|loaded| (loaded.config, loaded.warnings))
}

#[test]
fn only_the_masters_host_is_needed() {
    let (config, warnings) = load("master_host: m", &[], &[]).unwrap();
    assert_eq!(warnings, Vec::new());
    assert_eq!(config.effective_master_port(), 80);
    assert_eq!(config.resource_pool, "default");
    assert_eq!(
        (config.slot_type, config.container_runtime),
        (SlotType::Auto, Runtime::Auto)
    );
    assert_eq!(
        (
            config.agent_reconnect_attempts,
            config.agent_reconnect_backoff
        ),
        (2880, 5)
    );
    assert_eq!((config.agent_id, config.visible_gpus), (None, None));
    assert_eq!(config.bind_port, 9090);
    crate::schema::assert_defaults_are_json(&AGENT);
    let message = load("", &[], &[]).unwrap_err().to_string();
    assert!(
        message.contains("agent.yaml:1:1: master_host: is required"),
        "{message}"
    );
}

#[test]
fn a_flag_beats_a_variable_beats_the_file_also_by_its_other_name() {
    let text =
        "master_host: file\ncontainer_runtime: docker\nresource_pool: file\nartificial_slots: 1";
    let (config, _) = load(
        text,
        &[
            ("DET_MASTER_HOST", "env"),
            ("DET_RESOURCE_POOL", "007"),
            ("DET_RUNTIME", "podman"),
            ("DET_ARTIFICIAL_SLOTS", "3"),
        ],
        &[("runtime", "process"), ("master_host", "flag")],
    )
    .unwrap();
    assert_eq!(config.master_host, "flag");
    assert_eq!(config.resource_pool, "007");
    assert_eq!(config.container_runtime, Runtime::Process);
    assert_eq!(config.artificial_slots, 3);
    let (config, _) = load(text, &[("DET_CONTAINER_RUNTIME", "podman")], &[]).unwrap();
    assert_eq!(config.container_runtime, Runtime::Podman);
}

#[test]
fn older_forms_and_visible_gpus() {
    let (config, warnings) = load(
        "master_host: m\nslot_type: gpu\nlabel: x\nfluent: {image: y}\nsecurity: {tls: {enabled: true}}\nimage_root: /i",
        &[("CUDA_VISIBLE_DEVICES", "1,2")],
        &[],
    )
    .unwrap();
    assert_eq!(config.slot_type, SlotType::Cuda);
    assert_eq!(config.visible_gpus.as_deref(), Some("1,2"));
    assert_eq!(config.effective_master_port(), 443);
    assert_eq!(warnings.len(), 4, "{warnings:?}");
    assert!(
        warnings
            .iter()
            .any(|warning| warning.to_string() == "label: is ignored; use \"resource_pool\"")
    );
    let (config, _) = load(
        "master_host: m",
        &[("CUDA_VISIBLE_DEVICES", "1"), ("ROCR_VISIBLE_DEVICES", "2")],
        &[],
    )
    .unwrap();
    assert_eq!(config.visible_gpus.as_deref(), Some("2"));
}

#[test]
fn wrong_configurations_are_refused() {
    for (text, expected) in [
        (
            "slot_type: tpu",
            "agent.yaml:2:1: slot_type: must be one of \"auto\", \"none\", \"cuda\", \"rocm\", \"cpu\", not \"tpu\"",
        ),
        (
            "container_runtime: singularity",
            "must be one of \"auto\", \"docker\", \"podman\", \"process\"",
        ),
        (
            "security: {tls: {skip_verify: true, master_cert: x}}",
            ": security.tls.master_cert: cannot be combined with \"skip_verify\"",
        ),
        (
            "security: {tls: {client_cert: x}}",
            ": security.tls.client_key: is required beside \"client_cert\"",
        ),
        (
            "tls: true\napi_enabled: true",
            ": tls_cert: is required for TLS on the debug server",
        ),
        (
            "tunnel_host: gpu-1",
            ": tunnel_host: needs \"tunnel_port\", without which the agent accepts no tunnels",
        ),
        ("master_port: 65536", "must be at most 65535"),
        ("agent_reconnect_attempts: -1", "must be at least 0"),
        (
            "agent_token: a\nagent_token_file: b",
            ": agent_token_file: cannot be combined with \"agent_token\"",
        ),
        (
            "hooks: {on_connection_lost: reboot}",
            "must be a list, not the string \"reboot\"; hint: write [reboot]",
        ),
        ("resource_pol: x", "hint: did you mean \"resource_pool\"?"),
    ] {
        let message = load(&format!("master_host: m\n{text}"), &[], &[])
            .unwrap_err()
            .to_string();
        assert!(
            message.contains(expected),
            "{text}:\n  {message}\nlacks\n  {expected}"
        );
    }
}

#[test]
fn secrets_are_hidden() {
    let (config, _) = load(
        "master_host: m\nagent_token: hidden\nhttp_proxy: http://u:hidden@p:1/x\nhttps_proxy: u:hidden@p\nno_proxy: a",
        &[],
        &[],
    )
    .unwrap();
    let shown = config.to_masked_json();
    assert!(!shown.to_string().contains("hidden") && !format!("{config:?}").contains("hidden"));
    assert_eq!(shown["http_proxy"], "http://********@p:1/x");
    assert_eq!(config.http_proxy, "http://u:hidden@p:1/x");
}

#[test]
fn every_key_has_a_variable() {
    let names = LoadedAgent::environment_names();
    for expected in [
        "DET_MASTER_HOST",
        "DET_SECURITY_TLS_CLIENT_CERT",
        "DET_HOOKS_ON_CONNECTION_LOST",
        "DET_RUNTIME",
    ] {
        assert!(names.iter().any(|(name, _)| name == expected), "{expected}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_loading_panic(text in "[-~?:#&*!|>'\"%{}\\[\\], a-z_0-9\n]{0,60}") {
        let _ = load(&text, &[("DET_HOOKS", &text), ("DET_LOG", &text)], &[("security", &text)]);
    }
}

#[test]
fn tasks_have_few_rights_unless_the_agent_gives_more() {
    let (config, _) = load("master_host: m", &[], &[]).unwrap();
    assert_eq!(config.root_tasks, RootTasks::Unprivileged);
    assert!(config.allowed_host_paths.is_empty() && config.allowed_capabilities.is_empty());
    let text =
        "master_host: m\nroot_tasks: root\nallowed_host_paths: [/data, relative, /data/../etc]";
    let errors = load(text, &[], &[]).unwrap_err().to_string();
    for path in ["allowed_host_paths[1]", "allowed_host_paths[2]"] {
        assert!(errors.contains(path), "{errors}");
    }
    assert!(!errors.contains("allowed_host_paths[0]"), "{errors}");
}

#[test]
fn directories_of_users_are_named_by_an_absolute_path() {
    let (config, _) = load("master_host: m", &[], &[]).unwrap();
    assert_eq!(config.user_directories, None);
    let env = [("DET_USER_DIRECTORIES", "/srv/users")];
    let (config, _) = load("master_host: m", &env, &[]).unwrap();
    assert_eq!(config.user_directories.as_deref(), Some("/srv/users"));
    for wrong in ["users", "/srv/../etc", "[/srv]"] {
        let text = format!("master_host: m\nuser_directories: {wrong}");
        let message = load(&text, &[], &[]).unwrap_err().to_string();
        assert!(
            message.contains("user_directories: must be"),
            "{wrong}: {message}"
        );
    }
}

#[test]
fn a_warm_start_has_an_interpreter_and_modules() {
    let (config, _) = load("master_host: m", &[], &[]).unwrap();
    assert_eq!(config.warm_start, None);
    let text = "master_host: m\nwarm_start: {python: /usr/bin/python3, imports: [torch]}";
    let (config, _) = load(text, &[], &[]).unwrap();
    let warm = config.warm_start.unwrap();
    assert_eq!(
        (warm.python.as_str(), warm.imports),
        ("/usr/bin/python3", vec!["torch".to_owned()])
    );
    for (wrong, key) in [
        ("{python: python3, imports: [torch]}", "warm_start.python"),
        ("{imports: [torch]}", "warm_start.python"),
        ("{python: /usr/bin/python3}", "warm_start.imports"),
    ] {
        let text = format!("master_host: m\nwarm_start: {wrong}");
        let message = load(&text, &[], &[]).unwrap_err().to_string();
        assert!(message.contains(key), "{wrong}: {message}");
    }
}

#[test]
fn limits_of_tasks_are_off_unless_given() {
    let (config, _) = load("master_host: m", &[], &[]).unwrap();
    let limits = &config.task_limits;
    assert_eq!(
        (limits.memory, limits.cpus, limits.processes),
        (None, None, None)
    );
    assert!(!limits.required);
    let text = "master_host: m\ntask_limits: {memory: 4 GiB, cpus: 1.5, processes: 500}";
    let flags = [("task_limits.required", "true")];
    let (config, _) = load(text, &[("DET_TASK_LIMITS_PROCESSES", "64")], &flags).unwrap();
    let limits = &config.task_limits;
    assert_eq!((limits.memory, limits.processes), (Some(4 << 30), Some(64)));
    assert_eq!(config.task_cpu_millis(), Some(1500));
    assert!(limits.required);
    for (wrong, expected) in [
        (
            "{memory: 1000}",
            "task_limits.memory: must be at least 16 MiB",
        ),
        ("{memory: much}", "is not a size"),
        ("{cpus: 0}", "task_limits.cpus: must be at least 0.01"),
        (
            "{processes: 1}",
            "task_limits.processes: must be at least 32",
        ),
        ("{cpu: 1}", "did you mean \"cpus\"?"),
    ] {
        let text = format!("master_host: m\ntask_limits: {wrong}");
        let message = load(&text, &[], &[]).unwrap_err().to_string();
        assert!(message.contains(expected), "{wrong}: {message}");
    }
}
