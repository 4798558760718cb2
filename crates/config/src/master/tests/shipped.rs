//! Keys that shipped configurations of the product that this one replaces carry.

use super::{config, load};

#[test]
fn keys_of_shipped_files_are_accepted_and_reported_as_ignored() {
    for (text, path, says) in [
        (
            "resource_pools: [{pool_name: default, max_slots: 8}]",
            "resource_pools[0].max_slots",
            "is ignored; a pool has the slots of its agents",
        ),
        (
            "telemetry: {otel-enabled: true, otel-endpoint: \"x:4317\"}",
            "telemetry.otel-enabled",
            "otel_enabled",
        ),
        (
            "resource_manager: {type: kubernetes, max_slots_per_pod: 8, kubeconfig_secret_name: a, kubeconfig_secret_value: b}",
            "resource_manager.kubeconfig_secret_name",
            "`kubeconfig_path` names the file",
        ),
        (
            "resource_manager: {scheduler: {type: fair_share, fit: worst}}",
            "resource_manager.scheduler.fit",
            "fitting_policy",
        ),
    ] {
        let (_, warnings) = load(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert!(
            warnings
                .iter()
                .any(|w| w.path == path && w.message.contains(says)),
            "{text}: {warnings:?}"
        );
    }
    let config = config(
        "resource_pools: [{pool_name: default, provider: {type: aws, ssh_key_name: k, master_url: \"\"}}]",
    );
    let provider = config.resource_pools[0].provider.as_ref().unwrap();
    assert!(
        provider
            .get("master_url")
            .is_none_or(serde_json::Value::is_null)
    );
}
