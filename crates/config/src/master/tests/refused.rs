//! Configurations that are refused, and the reason.

use super::load;

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
        (
            "security: {services_host: \"https://services.example\"}",
            ": security.services_host: must be the name of a host, perhaps with a port",
        ),
        (
            "security: {services_host: \"services.example:0\"}",
            "not \"services.example:0\"",
        ),
        (
            "security: {services_host: \"DET.example:8443\", host_names: [other, det.EXAMPLE]}",
            ": security.services_host: must be a name that is used for nothing else: \"DET.example\" is one of the API",
        ),
        (
            "security: {services_host: localhost}",
            ": security.services_host: must be a name that is used for nothing else",
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
