//! The configuration of the master as users see it: what is in force, secrets hidden.

use serde_json::{Value, json};

use super::effective::EffectiveScheduler;
use super::schema::{MasterConfig, ResourceManager, ResourcePool};
use super::types::{ManagerKind, SchedulerKind};
use crate::schema::{mask, mask_all};
use crate::secrets::{MASK, mask_addresses, mask_all_variables};

/// Keys that hide something wherever they are, also in what is kept without a schema.
const SECRET_KEYS: [&str; 8] = [
    "password",
    "client_secret",
    "startup_script",
    "container_startup_script",
    "agent_config_file_contents",
    "signing_key",
    "jwt_key",
    "identitytoken",
];

impl MasterConfig {
    /// The configuration as JSON with its secrets hidden: keys that are secrets, variables of tasks whose names look like
    /// it, and credentials in addresses that variables hold. Otherwise as it is stored: what a scheduler's block leaves
    /// out is null.
    pub fn to_masked_json(&self) -> Value {
        let mut value =
            serde_json::to_value(self).expect("maps with text keys and finite numbers are JSON");
        mask(&mut value, &super::schema::MASTER);
        mask_by_key(&mut value);
        mask_all_variables(&mut value);
        mask_addresses(&mut value);
        value
    }

    /// As [`Self::to_shown_json`], with the texts of scripts hidden too: for logs and events, which more users read than
    /// administrators.
    pub fn to_logged_json(&self) -> Value {
        let mut value = self.to_shown_json();
        mask_scripts(&mut value);
        value
    }

    /// As [`Self::to_masked_json`], with what is in force where nothing was written: the port, the default pools, every
    /// key of a scheduler that has a block, and of the cluster's; a pool without a block follows the cluster's and stays
    /// null. What has no value at all (no `config_file`) is left out.
    pub fn to_shown_json(&self) -> Value {
        let mut value = self.to_masked_json();
        if value["config_file"] == "" {
            value
                .as_object_mut()
                .map(|members| members.remove("config_file"));
        }
        value["port"] = self.effective_port().into();
        // Managers of other kinds have a default partition of their own.
        if matches!(
            self.resource_manager.kind(),
            ManagerKind::Agent | ManagerKind::Kubernetes
        ) {
            let manager = &mut value["resource_manager"];
            manager["default_aux_resource_pool"] = self.default_aux_pool().into();
            manager["default_compute_resource_pool"] = self.default_compute_pool().into();
        }
        show_schedulers(&mut value, &self.resource_manager, &self.resource_pools);
        let additional = value["additional_resource_managers"].as_array_mut();
        let additional = additional.into_iter().flatten();
        for (shown, managed) in additional.zip(&self.additional_resource_managers) {
            show_schedulers(shown, &managed.resource_manager, &managed.resource_pools);
        }
        value
    }
}

/// Shows the schedulers in force of a manager and its pools. `shown` = the object with `resource_manager` and
/// `resource_pools`.
fn show_schedulers(shown: &mut Value, manager: &ResourceManager, pools: &[ResourcePool]) {
    let of_manager = manager.scheduler.as_ref();
    if of_manager.is_some() || manager.kind() == ManagerKind::Agent {
        let block = of_manager.filter(|block| !block.is_empty());
        shown["resource_manager"]["scheduler"] = in_force(manager.scheduler_with(block, false));
    }
    let shown = shown["resource_pools"].as_array_mut();
    for (pool, shown) in pools.iter().zip(shown.into_iter().flatten()) {
        let own = pool.scheduler.as_ref().filter(|block| !block.is_empty());
        shown["scheduler"] = own.map_or(Value::Null, |block| {
            in_force(manager.scheduler_with(Some(block), false))
        });
    }
}

/// The keys that a scheduler of this type has, all of them with their values.
fn in_force(scheduler: EffectiveScheduler) -> Value {
    let mut shown = json!({
        "type": scheduler.kind,
        "fitting_policy": scheduler.fitting_policy,
        "allow_heterogeneous_fits": scheduler.allow_heterogeneous_fits,
    });
    if scheduler.kind == SchedulerKind::Priority {
        shown["preemption"] = scheduler.preemption.into();
        shown["default_priority"] = scheduler.default_priority.into();
    }
    shown
}

/// Hides what tasks run before their work, a path or a whole script.
pub(super) fn mask_scripts(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                if key == "startup_hook" {
                    mask_all(member);
                } else {
                    mask_scripts(member);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(mask_scripts),
        _ => {}
    }
}

fn mask_by_key(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (key, member) in members.iter_mut() {
                let hides = SECRET_KEYS.contains(&key.as_str());
                if hides && !member.is_null() && member.as_str() != Some("") {
                    *member = Value::from(MASK);
                } else {
                    mask_by_key(member);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(mask_by_key),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Value {
        super::super::tests::config(text).to_shown_json()
    }

    #[test]
    fn values_in_force_are_shown_for_what_is_not_written() {
        for (text, port, aux, compute) in [
            ("{}", 8080, json!("default"), json!("default")),
            (
                "{security: {tls: {cert: /c, key: /k}}, resource_pools: [{pool_name: only}]}",
                8443,
                json!("only"),
                json!("only"),
            ),
            (
                "{port: 9, resource_manager: {default_aux_resource_pool: b}, resource_pools: [{pool_name: default}, {pool_name: b}]}",
                9,
                json!("b"),
                json!("default"),
            ),
            (
                "{resource_manager: {no_default_resource_pools: true}}",
                8080,
                Value::Null,
                Value::Null,
            ),
        ] {
            let shown = shown(text);
            let manager = &shown["resource_manager"];
            assert_eq!(shown["port"], port, "{text}");
            assert_eq!(manager["default_aux_resource_pool"], aux, "{text}");
            assert_eq!(manager["default_compute_resource_pool"], compute, "{text}");
        }
    }

    #[test]
    fn variables_of_tasks_that_look_secret_are_hidden() {
        let config = super::super::tests::config(
            r#"
task_container_defaults:
  environment_variables: [HF_TOKEN=hidden1, NCCL_DEBUG=INFO, "P=http://u:hidden2@proxy:1/x", EMPTY_TOKEN=]
resource_pools:
- pool_name: gpu
  task_container_defaults:
    environment_variables: {cuda: [DB_PASSWORD=hidden3, CUDA_X=1], cpu: [API_KEY=hidden4]}
    cpu_pod_spec: {spec: {containers: [{name: c, env: [{name: A_SECRET, value: hidden5}, {name: B, value: plain}]}]}}
"#,
        );
        let origins = serde_json::to_string(&config.to_shown_json()).unwrap();
        let debug = format!("{config:?}");
        for text in [&origins, &debug] {
            assert!(!text.contains("hidden"), "{text}");
            assert!(text.contains("HF_TOKEN=********"), "{text}");
            assert!(text.contains("P=http://********@proxy:1/x"), "{text}");
        }
        assert!(
            origins.contains("NCCL_DEBUG=INFO") && origins.contains("plain"),
            "{origins}"
        );
        assert!(origins.contains("\"EMPTY_TOKEN=\""), "{origins}");
        // Tasks get what was written.
        let gpu = config.effective_task_container_defaults("gpu");
        assert!(
            gpu.environment_variables
                .cuda
                .contains(&"DB_PASSWORD=hidden3".to_owned())
        );
    }

    #[test]
    fn addresses_show_no_passwords_and_logs_no_scripts() {
        let config = super::super::tests::config(
            r#"
checkpoint_storage: {type: s3, bucket: b, endpoint_url: "https://u:hidden@s3:1"}
integrations: {pachyderm: {address: "grpc://u:hidden@p"}}
task_container_defaults: {startup_hook: "export A=1"}
"#,
        );
        let shown = config.to_shown_json();
        assert!(!shown.to_string().contains("hidden"), "{shown}");
        assert_eq!(
            shown["checkpoint_storage"]["endpoint_url"],
            "https://********@s3:1"
        );
        let hook = |shown: &Value| shown["task_container_defaults"]["startup_hook"].clone();
        assert_eq!(hook(&shown), "export A=1");
        assert_eq!(hook(&config.to_logged_json()), MASK);
        assert!(!format!("{config:?}").contains("export"));
    }

    #[test]
    fn schedulers_show_what_is_in_force() {
        let config = shown(
            "resource_pools:\n- {pool_name: default, scheduler: {type: priority}}\n- {pool_name: b, scheduler: {fitting_policy: worst}}\n- {pool_name: c}",
        );
        assert_eq!(
            config["resource_pools"][0]["scheduler"],
            json!({
                "type": "priority", "fitting_policy": "best", "allow_heterogeneous_fits": false, "preemption": false,
                "default_priority": 42,
            })
        );
        assert_eq!(
            config["resource_pools"][1]["scheduler"],
            json!({"type": "fair_share", "fitting_policy": "worst", "allow_heterogeneous_fits": false})
        );
        assert_eq!(config["resource_pools"][2]["scheduler"], Value::Null);
        assert_eq!(
            config["resource_manager"]["scheduler"]["type"], "priority",
            "what pools without a block run with"
        );
    }

    #[test]
    fn a_file_that_was_not_named_is_not_shown() {
        assert_eq!(shown("").get("config_file"), None);
        assert_eq!(shown("config_file: /etc/x")["config_file"], "/etc/x");
    }
}
