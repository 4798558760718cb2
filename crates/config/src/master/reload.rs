//! What a running master can take on without a restart, and what not.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Value, json};

use super::{MasterConfig, schema};
use crate::schema::{Key, Status, keys_of};

/// A key whose value differs; secrets are hidden.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// Its path; pools are named: `resource_pools[gpu].description`.
    pub path: String,
    /// What is in force; null = nothing.
    pub from: Value,
    /// What was read; null = nothing.
    pub to: Value,
    /// Whether the running master uses it. Otherwise it is an older key, or one that is kept and not acted on yet.
    pub acts: bool,
}

impl Change {
    /// `{"path", "from", "to", "acts"}`.
    pub fn to_json(&self) -> Value {
        json!({"path": self.path, "from": self.from, "to": self.to, "acts": self.acts})
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} -> {}", self.path, self.from, self.to)?;
        if self.acts {
            Ok(())
        } else {
            f.write_str(" (kept; nothing acts on it)")
        }
    }
}

/// A change that a running master cannot take on.
#[derive(Debug, Clone, PartialEq)]
pub struct RefusedChange {
    /// The change that a running master cannot make.
    pub change: Change,
    /// The reason, and what to do, for users.
    pub why: String,
    /// Whether it is a pool that cannot go because of what is in it: no new start is needed for that.
    pub is_occupied_pool: bool,
}

impl RefusedChange {
    /// `{"path", "from", "to", "message"}`.
    pub fn to_json(&self) -> Value {
        let Change { path, from, to, .. } = &self.change;
        json!({"path": path, "from": from, "to": to, "message": self.why})
    }
}

impl fmt::Display for RefusedChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.change.path, self.why)
    }
}

/// A configuration that can take the place of the one in force.
#[derive(Debug, Clone)]
pub struct Reload {
    /// The new configuration, whole.
    pub config: MasterConfig,
    /// What is different, in the order of the paths.
    pub changes: Vec<Change>,
}

/// A pool that another configuration does not have any more, or has under another manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovedPool {
    /// Name of the pool.
    pub name: String,
    /// Path of the pool in the configuration that was in force: `resource_pools[gpu]`.
    path: String,
}

/// When a change of a key takes effect.
#[derive(Debug, Clone, Copy)]
enum EffectTime {
    /// At once, for all work.
    Now,
    /// It has no effect on the running master.
    Never,
    /// With the next start, for this reason.
    Restart(&'static str),
}

use EffectTime::{Never, Now, Restart};

/// By the begin of the path; the longest one counts.
const RULES: &[(&str, EffectTime)] = &[
    ("config_file", Never),
    ("log", Now),
    (
        "log.color",
        Restart("the form of the log is chosen at start"),
    ),
    ("db", Restart("the database is opened at start")),
    ("tensorboard_timeout", Now),
    ("notebook_timeout", Now),
    ("security", Now),
    (
        "security.tls",
        Restart("certificate and key are read at start"),
    ),
    (
        "security.agent_token",
        Restart("agents have joined with the token that was read at start"),
    ),
    // It counts on the first start only; afterwards it may go from the file.
    ("security.initial_user_password", Never),
    ("checkpoint_storage", Now),
    ("task_container_defaults", Now),
    ("host", Restart("the master listens there since its start")),
    ("port", Restart("the master listens there since its start")),
    (
        "data_dir",
        Restart("the store and the files there are open since the start"),
    ),
    ("root", Never),
    ("cache", Never),
    ("launch_error", Now),
    ("unmanaged_heartbeat_timeout", Now),
    ("checkpoint_removal_timeout", Now),
    ("max_unmanaged_trials_per_experiment", Now),
    ("max_unmanaged_trials_per_user", Now),
    ("silence_timeout", Now),
    ("cluster_name", Now),
    ("ui_customization", Now),
    ("enable_cors", Now),
    ("feature_switches", Now),
    ("reserved_ports", Now),
    ("logging", Restart("where logs are kept is chosen at start")),
    ("retention_policy", Now),
    ("telemetry", Now),
    (
        "telemetry.cluster_id",
        Restart("the cluster has had its identity since its first start"),
    ),
    ("observability", Now),
    ("webhooks", Now),
    ("integrations", Now),
    ("resource_manager", Now),
    (
        "resource_manager.type",
        Restart("who runs containers is chosen at start"),
    ),
    ("resource_pools", Now),
    ("additional_resource_managers", Now),
    // A manager that is new or gone has or had a type.
    (
        "additional_resource_managers.resource_manager.type",
        Restart("who runs containers is chosen at start"),
    ),
    ("scim", Restart("how users log in is chosen at start")),
    ("saml", Restart("how users log in is chosen at start")),
    ("oidc", Restart("how users log in is chosen at start")),
    ("det_cloud", Restart("how users log in is chosen at start")),
    ("__internal", Restart("it is read at start")),
    ("hasura", Never),
];

/// `path` = with the names of pools and managers in brackets, which no rule has.
fn when(path: &str) -> EffectTime {
    let path = &steps(path).join(".");
    RULES
        .iter()
        .filter(|(prefix, _)| {
            path.strip_prefix(prefix)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        })
        .max_by_key(|(prefix, _)| prefix.len())
        .map_or(Restart("it is read at start"), |(_, when)| *when)
}

/// Whether anything uses the key at this path, or by one around it, as far as the schema declares.
fn is_acted_on(path: &str, known: &[Key]) -> bool {
    let steps = steps(path);
    let here: Vec<&Key> = known
        .iter()
        .filter(|key| {
            let pattern = self::steps(&key.path);
            pattern.len() <= steps.len()
                && pattern
                    .iter()
                    .zip(&steps)
                    .all(|(pattern, step)| *pattern == "*" || pattern == step)
        })
        .collect();
    let deepest = here.iter().map(|key| self::steps(&key.path).len()).max();
    here.iter()
        .filter(|key| Some(self::steps(&key.path).len()) == deepest)
        .any(|key| key.status == Status::Acted)
}

/// The keys that a path goes through, without what is in brackets.
fn steps(path: &str) -> Vec<&str> {
    let mut depth = 0;
    let split = path.split(move |c: char| {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        c == '.' && depth <= 0
    });
    split
        .map(|step| step.split('[').next().unwrap_or(step))
        .collect()
}

impl MasterConfig {
    /// The pools that another configuration does not have any more, or has under another manager: what is in them cannot
    /// go on there.
    pub fn gone_in(&self, new: &Self) -> Vec<RemovedPool> {
        let kept: BTreeSet<(Option<&str>, &str)> =
            new.placed_pools().map(|(of, pool, _)| (of, pool)).collect();
        let gone = self.placed_pools();
        let gone = gone.filter(|(of, pool, _)| !kept.contains(&(*of, *pool)));
        gone.map(|(_, name, path)| RemovedPool {
            name: name.to_owned(),
            path,
        })
        .collect()
    }

    /// All pools: the name of the additional manager that has it, its own name, and its path.
    fn placed_pools(&self) -> impl Iterator<Item = (Option<&str>, &str, String)> {
        self.managers()
            .enumerate()
            .flat_map(|(number, (manager, pools))| {
                let of = (number > 0).then_some(manager.cluster_name.as_str());
                pools.iter().map(move |pool| {
                    let name = pool.pool_name.as_str();
                    let within = of.map_or_else(String::new, |of| {
                        format!("additional_resource_managers[{of}].")
                    });
                    (of, name, format!("{within}resource_pools[{name}]"))
                })
            })
    }

    /// Compares what was read anew with what is in force. `occupied` returns why a pool cannot be removed: its agents, its
    /// work; `None` = nothing is in it.
    ///
    /// # Errors
    /// Every change that a running master cannot take on, with the reason. Nothing of the rest is then to be taken on
    /// either.
    pub fn reload(
        &self,
        new: Self,
        occupied: impl Fn(&str) -> Option<String>,
    ) -> Result<Reload, Vec<RefusedChange>> {
        let (from, to) = (flat(self), flat(&new));
        let (shown_from, shown_to) = (shown(self), shown(&new));
        let paths: BTreeSet<&String> = from.keys().chain(to.keys()).collect();
        let known = keys_of(&schema::DOCUMENT, false);
        let mut changes = Vec::new();
        let mut refused = Vec::new();
        for path in paths {
            if from.get(path) == to.get(path) {
                continue;
            }
            let change = Change {
                path: path.clone(),
                from: shown_from.get(path).cloned().unwrap_or_default(),
                to: shown_to.get(path).cloned().unwrap_or_default(),
                acts: is_acted_on(path, &known),
            };
            match when(path) {
                _ if !change.acts => changes.push(change),
                Now => changes.push(change),
                Never => changes.push(Change {
                    acts: false,
                    ..change
                }),
                Restart(why) => refused.push(RefusedChange {
                    why: format!(
                        "{why}; it is {}, and {} was read",
                        or_not_set(&change.from),
                        or_not_set(&change.to)
                    ),
                    change,
                    is_occupied_pool: false,
                }),
            }
        }
        for RemovedPool { name, path } in self.gone_in(&new) {
            if let Some(why) = occupied(&name) {
                refused.push(RefusedChange {
                    change: Change {
                        path,
                        from: Value::from(name),
                        to: Value::Null,
                        acts: true,
                    },
                    why,
                    is_occupied_pool: true,
                });
            }
        }
        if refused.is_empty() {
            Ok(Reload {
                config: new,
                changes,
            })
        } else {
            Err(refused)
        }
    }
}

fn or_not_set(value: &Value) -> String {
    match value {
        Value::Null => "not set".to_owned(),
        value => value.to_string(),
    }
}

/// Every leaf by its path; lists are leaves, except those of pools and additional managers, which are named.
fn flat(config: &MasterConfig) -> BTreeMap<String, Value> {
    let value =
        serde_json::to_value(config).expect("maps with text keys and finite numbers are JSON");
    flattened(&value)
}

/// As [`flat`], with secrets and scripts hidden: changes are written to the log and to events.
fn shown(config: &MasterConfig) -> BTreeMap<String, Value> {
    let mut masked = config.to_masked_json();
    super::shown::mask_scripts(&mut masked);
    flattened(&masked)
}

fn flattened(value: &Value) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    collect(value, String::new(), &mut found);
    found
}

fn collect(value: &Value, path: String, found: &mut BTreeMap<String, Value>) {
    let below = |key: &str| {
        if path.is_empty() {
            key.to_owned()
        } else {
            format!("{path}.{key}")
        }
    };
    match value {
        Value::Object(members) if !members.is_empty() => {
            for (key, member) in members {
                collect(member, below(key), found);
            }
        }
        Value::Array(items) if path == "additional_resource_managers" => {
            for item in items {
                let name = item["resource_manager"]["cluster_name"].as_str();
                let name = name.unwrap_or_default();
                collect(item, format!("{path}[{name}]"), found);
            }
        }
        Value::Array(pools) if steps(&path).last() == Some(&"resource_pools") => {
            for pool in pools {
                let name = pool["pool_name"].as_str().unwrap_or_default();
                collect(pool, format!("{path}[{name}]"), found);
            }
        }
        // What is not set is not there.
        Value::Null => {}
        leaf => {
            found.insert(path, leaf.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(text: &str) -> MasterConfig {
        super::super::tests::config(text)
    }

    fn reload(old: &str, new: &str) -> Result<Vec<String>, Vec<String>> {
        match config(old).reload(config(new), |pool| {
            (pool == "busy").then(|| "2 agents are in it".to_owned())
        }) {
            Ok(reload) => Ok(reload.changes.iter().map(ToString::to_string).collect()),
            Err(refused) => Err(refused.iter().map(ToString::to_string).collect()),
        }
    }

    #[test]
    fn every_key_at_the_top_has_a_rule() {
        for field in super::super::schema::MASTER.fields {
            assert!(
                RULES.iter().any(|(prefix, _)| *prefix == field.name),
                "{} has no rule",
                field.name
            );
        }
    }

    #[test]
    fn pools_schedulers_defaults_and_the_log_level_change_while_the_master_runs() {
        let old = "resource_pools: [{pool_name: a}, {pool_name: gone}]\nresource_manager: {default_aux_resource_pool: a, default_compute_resource_pool: a}";
        let new = "
log: {level: debug}
task_container_defaults: {image: {cuda: new/image}, shm_size_bytes: 5}
resource_manager: {default_aux_resource_pool: a, default_compute_resource_pool: b, scheduler: {type: fair_share}}
resource_pools:
  - {pool_name: b}
  - {pool_name: a, max_aux_containers_per_agent: 3, scheduler: {type: priority}}
";
        let changes = reload(old, new).unwrap();
        for expected in [
            "log.level: \"info\" -> \"debug\"",
            "task_container_defaults.image.cuda: null -> \"new/image\"",
            "task_container_defaults.shm_size_bytes: null -> 5",
            "resource_manager.default_compute_resource_pool: \"a\" -> \"b\"",
            "resource_manager.scheduler.type: null -> \"fair_share\"",
            "resource_pools[a].max_aux_containers_per_agent: 100 -> 3",
            "resource_pools[a].scheduler.type: null -> \"priority\"",
            "resource_pools[b].pool_name: null -> \"b\"",
            "resource_pools[gone].pool_name: \"gone\" -> null",
        ] {
            assert!(
                changes.iter().any(|c| c == expected),
                "{changes:?} lacks {expected}"
            );
        }
        assert_eq!(reload(old, old), Ok(Vec::new()));
    }

    #[test]
    fn what_cannot_change_is_refused_with_every_reason_at_once() {
        let refused = reload(
            "resource_pools: [{pool_name: busy}]",
            "port: 1\ndb: {url: \"postgres://u:hidden@h/n\"}\nsecurity: {tls: {cert: a, key: b}}\ndata_dir: /x\nlog: {level: debug}\nresource_pools: [{pool_name: default}]",
        )
        .unwrap_err();
        for expected in [
            "data_dir: the store and the files there are open since the start",
            "db.url: the database is opened at start",
            "port: the master listens there since its start; it is 0, and 1 was read",
            "security.tls.cert: certificate and key are read at start",
            "security.tls.key: certificate and key are read at start",
            "resource_pools[busy]: 2 agents are in it",
        ] {
            assert!(
                refused.iter().any(|r| r.starts_with(expected)),
                "{refused:?} lacks {expected}"
            );
        }
        assert!(refused.iter().all(|r| !r.contains("hidden")), "{refused:?}");
        assert_eq!(refused.len(), 6);
    }

    #[test]
    fn pools_of_additional_managers_change_like_those_of_the_main_one() {
        const OLD: &str = "
resource_pools: [{pool_name: a}]
additional_resource_managers:
- resource_manager: {type: agent, cluster_name: lab.two}
  resource_pools: [{pool_name: x.y}, {pool_name: busy}, {pool_name: idle}]
";
        let with = |pools: &str, manager: &str| {
            let (managers, _) = OLD.split_once("- resource_manager").unwrap();
            reload(
                OLD,
                &format!("{managers}- resource_manager: {manager}\n  resource_pools: {pools}\n"),
            )
        };
        let named = "{type: agent, cluster_name: lab.two, scheduler: {type: round_robin}}";
        let changes = with(
            "[{pool_name: x.y, agent_reconnect_wait: 1m}, {pool_name: busy}]",
            named,
        );
        let changes = changes.unwrap();
        for expected in [
            "additional_resource_managers[lab.two].resource_manager.scheduler.type: null -> \"round_robin\"",
            "additional_resource_managers[lab.two].resource_pools[x.y].agent_reconnect_wait: \"10m\" -> \"1m\"",
            "additional_resource_managers[lab.two].resource_pools[idle].pool_name: \"idle\" -> null",
        ] {
            assert!(
                changes.iter().any(|c| c == expected),
                "{changes:?} lacks {expected}"
            );
        }
        assert_eq!(
            with("[{pool_name: x.y}]", "{type: agent, cluster_name: lab.two}"),
            Err(vec![
                "additional_resource_managers[lab.two].resource_pools[busy]: 2 agents are in it"
                    .to_owned()
            ])
        );
        // Under another manager it is another pool, and who the managers are is chosen at start.
        let refused =
            with("[{pool_name: busy}]", "{type: agent, cluster_name: other}").unwrap_err();
        for expected in [
            "additional_resource_managers[other].resource_manager.type: who runs containers is chosen at start",
            "additional_resource_managers[lab.two].resource_pools[busy]: 2 agents are in it",
        ] {
            assert!(
                refused.iter().any(|r| r.starts_with(expected)),
                "{refused:?} lacks {expected}"
            );
        }
    }

    #[test]
    fn what_nothing_acts_on_is_kept_and_reported() {
        let changes = reload(
            "resource_pools: [{pool_name: default}]",
            "oidc: {client_id: x}\nroot: /x\nconfig_file: /y\nsecurity: {token: {max_lifespan_days: 90}}",
        )
        .unwrap();
        for expected in [
            "config_file: \"\" -> \"/y\" (kept; nothing acts on it)",
            "root: null -> \"/x\" (kept; nothing acts on it)",
            "security.token.max_lifespan_days: -1 -> 90 (kept; nothing acts on it)",
        ] {
            assert!(
                changes.iter().any(|c| c == expected),
                "{changes:?} lacks {expected}"
            );
        }
        assert!(
            changes.iter().all(|c| c.ends_with("nothing acts on it)")),
            "{changes:?}"
        );
    }

    #[test]
    fn changed_secrets_are_seen_and_not_shown() {
        let old = config("webhooks: {signing_key: hidden1}");
        let changes = old
            .reload(config("webhooks: {signing_key: hidden2}"), |_| None)
            .unwrap()
            .changes;
        assert_eq!(changes.len(), 1);
        assert_eq!(changes[0].path, "webhooks.signing_key");
        assert_eq!(
            (&changes[0].from, &changes[0].to),
            (&json!("********"), &json!("********"))
        );
        // All users read events, and a hook may be a whole script.
        let old = config("task_container_defaults: {startup_hook: hidden1}");
        let changes = old
            .reload(
                config("task_container_defaults: {startup_hook: hidden2}"),
                |_| None,
            )
            .unwrap()
            .changes;
        assert_eq!(changes[0].path, "task_container_defaults.startup_hook");
        assert!(!changes[0].to_string().contains("hidden"), "{}", changes[0]);
    }
}
