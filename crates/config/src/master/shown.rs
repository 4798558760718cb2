//! The configuration of the master as people see it: what is in force, secrets hidden.

use serde_json::{Map, Value, json};

use super::types::{EffectiveScheduler, MasterConfig, SchedulerKind};
use crate::schema::{MASK, mask};
use crate::units::without_credentials;

/// Keys that hide something wherever they stand, also in what is kept without a schema.
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

/// What makes a variable's name look like that of a secret, anywhere in it.
const SECRET_PARTS: [&str; 6] = [
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "CREDENTIAL",
    "APIKEY",
];

/// As [`SECRET_PARTS`], as the end of a word of the name: `HF_TOKEN` and `AUTHTOKEN`, not `TOKENIZERS_PARALLELISM`.
const SECRET_ENDS: [&str; 4] = ["TOKEN", "TOKENS", "PASS", "PWD"];

/// As [`SECRET_PARTS`], as a whole word of the name: `WANDB_API_KEY`, not `KEYBOARD`.
const SECRET_WORDS: [&str; 3] = ["KEY", "KEYS", "AUTH"];

/// Whether a variable of this name probably holds a secret. Rather too many are hidden than too few.
pub(crate) fn names_a_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    SECRET_PARTS.iter().any(|part| name.contains(part))
        || name
            .split(|c: char| !c.is_ascii_alphanumeric())
            .any(|word| {
                SECRET_WORDS.contains(&word) || SECRET_ENDS.iter().any(|end| word.ends_with(end))
            })
}

impl MasterConfig {
    /// The configuration as JSON with its secrets hidden: keys that are secrets, variables of tasks whose names look like
    /// it, and credentials in addresses that variables hold. Otherwise as it is stored: what a scheduler's block leaves
    /// out is null.
    pub fn to_masked_json(&self) -> Value {
        let mut value =
            serde_json::to_value(self).expect("maps with text keys and finite numbers are JSON");
        mask(&mut value, &super::schema::MASTER);
        mask_by_key(&mut value);
        value
    }

    /// As [`Self::to_masked_json`], with what is in force where nothing was written: every key of a scheduler that has a
    /// block, and of the cluster's; a pool without a block follows the cluster's and stays null. What says nothing at all
    /// (no `config_file`) is left out.
    pub fn to_shown_json(&self) -> Value {
        let mut value = self.to_masked_json();
        if value["config_file"] == "" {
            value
                .as_object_mut()
                .map(|members| members.remove("config_file"));
        }
        let of_cluster = self.resource_manager.scheduler.as_ref();
        if of_cluster.is_some() || self.resource_manager.kind == "agent" {
            let block = of_cluster.filter(|block| !block.is_empty());
            value["resource_manager"]["scheduler"] = in_force(EffectiveScheduler::of(block, false));
        }
        let shown = value["resource_pools"].as_array_mut();
        for (pool, shown) in self.resource_pools.iter().zip(shown.into_iter().flatten()) {
            let own = pool.scheduler.as_ref().filter(|block| !block.is_empty());
            shown["scheduler"] = own.map_or(Value::Null, |block| {
                in_force(EffectiveScheduler::of(Some(block), false))
            });
        }
        value
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

fn mask_by_key(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (key, member) in members.iter_mut() {
                let hides = SECRET_KEYS.contains(&key.as_str());
                if hides && !member.is_null() && member.as_str() != Some("") {
                    *member = Value::from(MASK);
                } else if key == "environment_variables" {
                    mask_variables(member);
                } else {
                    mask_by_key(member);
                }
            }
            mask_container_variable(members);
        }
        Value::Array(items) => items.iter_mut().for_each(mask_by_key),
        _ => {}
    }
}

/// `NAME=value` in lists, by kind of device or not, and maps of names and values.
fn mask_variables(value: &mut Value) {
    match value {
        Value::String(variable) => {
            if let Some((name, given)) = variable.split_once('=') {
                *variable = format!("{name}={}", shown_value(name, given));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(mask_variables),
        Value::Object(members) => {
            for (name, member) in members {
                match member {
                    Value::String(given) => *given = shown_value(name, given),
                    Value::Array(_) | Value::Object(_) => mask_variables(member),
                    other if names_a_secret(name) && !other.is_null() => *other = MASK.into(),
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

/// An element of `env` of a container in a pod spec.
fn mask_container_variable(members: &mut Map<String, Value>) {
    let Some(name) = members
        .get("name")
        .and_then(Value::as_str)
        .map(str::to_owned)
    else {
        return;
    };
    if let Some(Value::String(given)) = members.get_mut("value") {
        *given = shown_value(&name, given);
    }
}

fn shown_value(name: &str, given: &str) -> String {
    if given.is_empty() {
        String::new()
    } else if names_a_secret(name) {
        MASK.to_owned()
    } else if given.contains("://") {
        without_credentials(given)
    } else {
        given.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Value {
        super::super::tests::config(text).to_shown_json()
    }

    #[test]
    fn names_of_secrets_are_told_from_others() {
        for name in [
            "HF_TOKEN",
            "AUTHTOKEN",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_ACCESS_KEY_ID",
            "WANDB_API_KEY",
            "wandb_apikey",
            "PGPASSWORD",
            "DB_PASS",
            "GOOGLE_APPLICATION_CREDENTIALS",
        ] {
            assert!(names_a_secret(name), "{name}");
        }
        for name in [
            "TOKENIZERS_PARALLELISM",
            "KEYBOARD",
            "MONKEY",
            "NCCL_DEBUG",
            "PATH",
            "PASSAGE",
            "AUTHOR",
        ] {
            assert!(!names_a_secret(name), "{name}");
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
