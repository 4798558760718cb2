//! The keys of pools and of further managers, and the rules between pools and managers.

use super::manager::Scheduler;
use crate::container::TaskContainerDefaults;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

use super::manager::{RESOURCE_MANAGER, SCHEDULER};
use super::provider::PROVIDER;
use super::slot_type::{self, OBJECT_NAME, RESOURCE_NAME};
use super::{filled, is_true};
use crate::container::schema::{NOT_EMPTY, TASK_CONTAINER_DEFAULTS};
use crate::errors::ErrorCode;
use crate::master::types::ManagerKind;
use crate::quote::cut;
use crate::schema::{
    Findings, Kind, NATURAL_32, Section, Special, Walk, closest, field, keys, section, text_by,
};
use crate::units::parse_duration;
use crate::yaml::{Node, Tree};

pub(super) const POOLS: Kind = Kind::List(&Kind::Section(&POOL));

keys! {
    /// A resource pool: which agents or nodes it has and how its queue is served.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct ResourcePool, POOL {
        /// Name of the pool, unique in the cluster.
        pool_name: String = Kind::Special(&NOT_EMPTY), always;
        /// Description for users, any text.
        description: String = Kind::Text, or("\"\"");
        /// How agents are made on demand; without it agents are started by hand.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provider: Option<Value> = Kind::Union(&PROVIDER), kept;
        /// Scheduler of this pool; with any key in it the cluster's does not count at all.
        scheduler: Option<Scheduler> = Kind::Section(&SCHEDULER);
        /// Tasks without slots on one agent.
        max_aux_containers_per_agent: u32 = NATURAL_32, or("100");
        /// What tasks in this pool get, over the cluster's defaults.
        task_container_defaults: Option<TaskContainerDefaults> = Kind::Section(&TASK_CONTAINER_DEFAULTS);
        /// How long a lost agent's tasks are waited for.
        #[serde(with = "crate::units::duration_text")]
        agent_reconnect_wait: Duration = Kind::Duration, or("\"10m\"");
        /// Namespace of the pool's tasks.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kubernetes_namespace: Option<String> = Kind::Text;
        /// Extended resource of which a slot of the pool is one, where it is another one than the manager's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        slot_resource_name: Option<String> = Kind::Special(&RESOURCE_NAME);
        /// `DeviceClass` of the devices that are slots of the pool, where it is another one than the manager's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device_class: Option<String> = Kind::Special(&OBJECT_NAME);
        /// Driver whose devices are counted, where that class selects by what the master does not evaluate.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device_driver: Option<String> = Kind::Special(&OBJECT_NAME);
        /// How far the pool's part of a Kubernetes cluster grows for tasks that wait; without it the master asks for no nodes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        autoscaling: Option<Autoscaling> = Kind::Section(&AUTOSCALING);
    }
    without field {
        /// Whether agents find their tasks again, before version 0.20.0.
        agent_reattach_enabled = Kind::Any, warn("is ignored; agents always find their tasks again");
        /// Limit of slots in the pool, in old versions.
        max_slots = Kind::Any,
            warn("is ignored; a pool has the slots of its agents. To limit what is used, give a workspace a limit (`det workspace edit --max-slots`) or the pool's provider `max_instances`");
    }
    with named("resource_pool").aliases(&[("max_cpu_containers_per_agent", "max_aux_containers_per_agent", true)])
}

keys! {
    /// How far a pool grows on Kubernetes. The cluster's autoscaler adds the nodes; the master asks for them by pods that are
    /// pending.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct Autoscaling, AUTOSCALING {
        /// Slots of a node that the autoscaler adds; 0 = of a pool for tasks without slots.
        slots_per_node: u32 = NATURAL_32, always;
        /// Most nodes of the pool, those present included.
        max_nodes: u32 = Kind::Int(1, 100_000), always;
        /// Most pods that ask for nodes at a time, one for each node that a task takes a part of.
        max_pending_pods: u32 = Kind::Int(1, 10_000), or("100");
        /// How long nodes are waited for before the task stops asking for a while.
        #[serde(with = "crate::units::duration_text")]
        give_up_after: Duration = Kind::Special(&WAIT_FOR_NODES), or("\"15m\"");
        /// Image of the pods that ask for nodes; it is run where such a pod gets a node before the task does.
        image: String = Kind::Special(&NOT_EMPTY), or("\"registry.k8s.io/pause:3.10\"");
    }
    with named("autoscaling")
}

static WAIT_FOR_NODES: Special = text_by(
    "duration of 1 minute to 1 day",
    || json!({"type": "string", "pattern": "[1-9]"}),
    wait_for_nodes,
);

fn wait_for_nodes(walk: &mut Walk, node: &mut Node) {
    walk.value(node, Kind::Duration);
    let Some(Ok(wait)) = node.text().map(parse_duration) else {
        return;
    };
    if !(Duration::from_mins(1)..=Duration::from_hours(24)).contains(&wait) {
        let message = ErrorCode::OutOfRange.message("must be 1m to 24h");
        walk.findings.error(node.at.as_ref(), message);
    }
}

pub(super) static ADDITIONAL: Section = section(&[
    field(
        "resource_manager",
        Kind::Union(&RESOURCE_MANAGER),
        "The manager, with a `cluster_name` of its own",
    )
    .always(),
    field("resource_pools", POOLS, "Its pools, at least one").always(),
]);

/// A manager with its pools.
struct ManagerWithPools<'n> {
    manager: Option<&'n Node>,
    pools: Vec<&'n Node>,
    /// Index among the additional managers; `None` = the main one.
    additional: Option<usize>,
}

fn list<'n>(node: &'n Node, key: &str) -> Vec<&'n Node> {
    match node.get(key).map(|node| &node.tree) {
        Some(Tree::List(items)) => items.iter().collect(),
        _ => Vec::new(),
    }
}

impl ManagerWithPools<'_> {
    fn within(&self, findings: &mut Findings, key: &str, work: impl FnOnce(&mut Findings)) {
        match self.additional {
            None => findings.within(key, work),
            Some(index) => findings.within("additional_resource_managers", |findings| {
                findings.within(index, |findings| findings.within(key, work));
            }),
        }
    }

    /// `None` = of a kind that there is not, which is reported where it is named.
    fn kind(&self) -> Option<ManagerKind> {
        let named = self
            .manager
            .and_then(|manager| manager.get("type"))
            .and_then(Node::text);
        named.map_or_else(|| Some(ManagerKind::default()), ManagerKind::of_word)
    }

    fn pool_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self
            .pools
            .iter()
            .filter_map(|pool| pool.get("pool_name")?.text())
            .collect();
        if self.pools.is_empty() {
            names.push("default");
        }
        names
    }
}

/// Rules of the whole document.
pub(super) fn document(findings: &mut Findings, root: &Node) {
    if !findings.stage.is_complete() {
        return;
    }
    let mut all = vec![ManagerWithPools {
        manager: root.get("resource_manager"),
        pools: list(root, "resource_pools"),
        additional: None,
    }];
    for (index, item) in list(root, "additional_resource_managers")
        .into_iter()
        .enumerate()
    {
        all.push(ManagerWithPools {
            manager: item.get("resource_manager"),
            pools: list(item, "resource_pools"),
            additional: Some(index),
        });
    }
    unique_pools(findings, &all);
    unique_managers(findings, &all);
    single_cloud(findings, &all);
    for managed in &all {
        if managed.kind() == Some(ManagerKind::Agent) || !managed.pools.is_empty() {
            default_pools(findings, managed, root);
        }
        if managed.additional.is_some() && managed.pools.is_empty() {
            managed.within(findings, "resource_pools", |findings| {
                findings.error(
                    None,
                    ErrorCode::OutOfRange.message("must hold at least one pool"),
                );
            });
        }
    }
    slots_of_pods(findings, root, &all);
    growing_pools(findings, &all);
    resources_of_pools(findings, &all);
}

/// What slots are is chosen for pools of Kubernetes alone.
fn resources_of_pools(findings: &mut Findings, all: &[ManagerWithPools<'_>]) {
    for managed in all {
        let is_of_pods = managed.kind() == Some(ManagerKind::Kubernetes);
        for (index, pool) in managed.pools.iter().enumerate() {
            managed.within(findings, "resource_pools", |findings| {
                findings.within(index, |findings| {
                    if is_of_pods {
                        slot_type::of_pool(findings, managed.manager, pool);
                    } else {
                        slot_type::of_other_pool(findings, pool);
                    }
                });
            });
        }
    }
}

/// Pools grow by the autoscaler of a Kubernetes cluster alone.
fn growing_pools(findings: &mut Findings, all: &[ManagerWithPools<'_>]) {
    for managed in all {
        let Some(kind) = managed.kind().filter(|it| *it != ManagerKind::Kubernetes) else {
            continue;
        };
        for (index, pool) in managed.pools.iter().enumerate() {
            let Some(given) = pool.get("autoscaling") else {
                continue;
            };
            let message = format!(
                "is for pools of a manager of type kubernetes, and this one's is {}",
                kind.word()
            );
            managed.within(findings, "resource_pools", |findings| {
                findings.within(index, |findings| {
                    let message = ErrorCode::Conflict.message(message);
                    findings.error_in("autoscaling", given.at.as_ref(), message);
                });
            });
        }
    }
}

fn unique_pools(findings: &mut Findings, all: &[ManagerWithPools<'_>]) {
    let mut seen: Vec<&str> = Vec::new();
    for managed in all {
        if managed.additional.is_none() && managed.pools.is_empty() {
            seen.push("default");
        }
        for (index, pool) in managed.pools.iter().enumerate() {
            let Some(node) = pool.get("pool_name") else {
                continue;
            };
            let Some(name) = node.text() else { continue };
            if seen.contains(&name) {
                let message = format!("\"{}\" names two resource pools", cut(name));
                managed.within(findings, "resource_pools", |findings| {
                    findings.within(index, |findings| {
                        findings.error_in("pool_name", node.at.as_ref(), message);
                    });
                });
            }
            seen.push(name);
        }
    }
}

/// Agents are made in one cloud: the master has the identity of one.
fn single_cloud(findings: &mut Findings, all: &[ManagerWithPools<'_>]) {
    let mut first: Option<&str> = None;
    for managed in all {
        for (index, pool) in managed.pools.iter().enumerate() {
            let Some(node) = pool.find("provider.type") else {
                continue;
            };
            let Some(cloud @ ("aws" | "gcp")) = node.text() else {
                continue;
            };
            let first = *first.get_or_insert(cloud);
            if first == cloud {
                continue;
            }
            managed.within(findings, "resource_pools", |findings| {
                findings.within(index, |findings| {
                    findings.within("provider", |findings| {
                        let message = format!(
                            "must be \"{first}\" as in the pools before: agents are made in one cloud, not in \"{cloud}\" as well"
                        );
                        findings.error_in("type", node.at.as_ref(), message);
                    });
                });
            });
        }
    }
}

fn unique_managers(findings: &mut Findings, all: &[ManagerWithPools<'_>]) {
    let mut seen: Vec<&str> = Vec::new();
    for managed in all {
        let given = managed
            .manager
            .and_then(|manager| filled(manager, "cluster_name"));
        let name = given.and_then(Node::text);
        if managed.additional.is_some() && name.is_none() {
            let at = managed.manager.and_then(|manager| manager.at.clone());
            managed.within(findings, "resource_manager", |findings| {
                findings.error_in(
                    "cluster_name",
                    at.as_ref(),
                    ErrorCode::Missing.message("is required for an additional manager"),
                );
            });
            continue;
        }
        let name = name.unwrap_or("default");
        if seen.contains(&name) {
            let message = format!("\"{}\" names two resource managers", cut(name));
            let at = given.and_then(|node| node.at.clone());
            managed.within(findings, "resource_manager", |findings| {
                findings.error_in("cluster_name", at.as_ref(), message);
            });
        }
        seen.push(name);
    }
}

/// The default pools must exist, unless there are to be none.
fn default_pools(findings: &mut Findings, managed: &ManagerWithPools<'_>, root: &Node) {
    let names = managed.pool_names();
    let manager = managed.manager;
    let none = manager.is_some_and(|manager| is_true(manager, "no_default_resource_pools"));
    for key in ["default_aux_resource_pool", "default_compute_resource_pool"] {
        let given = manager.and_then(|manager| filled(manager, key));
        let (name, at) = match given {
            Some(node) => (node.text().unwrap_or_default(), node.at.as_ref()),
            None if none => continue,
            // One pool leaves no choice, and requests go to the main manager's pools unless they name another.
            None if names.len() == 1 || managed.additional.is_some() => continue,
            None => {
                let near = manager.or_else(|| root.get("resource_pools"));
                ("default", near.and_then(|node| node.at.as_ref()))
            }
        };
        managed.within(findings, "resource_manager", |findings| {
            if none {
                findings.error_in(
                    key,
                    at,
                    ErrorCode::Conflict.message("must be left out beside \"no_default_resource_pools\""),
                );
            } else if !names.contains(&name) {
                let known: BTreeSet<String> =
                    names.iter().map(|name| format!("\"{name}\"")).collect();
                let known: Vec<String> = known.into_iter().collect();
                let there_are = match &known[..] {
                    [] => "there are none".to_owned(),
                    [only] => format!("there is only {only}"),
                    all => format!("there are {}", all.join(", ")),
                };
                if given.is_none() {
                    let message = format!(
                        "is not given, and its default \"{name}\" names no resource pool; {there_are}"
                    );
                    findings.error_hint_in(key, at, message, "name one of them");
                    return;
                }
                let message = format!("names no resource pool: \"{}\"; {there_are}", cut(name));
                let near = closest(name, names.iter().copied());
                findings.within(key, |findings| findings.error_near(at, message, near));
            }
        });
    }
}

/// The size of pods on Kubernetes is configured once: by the manager, or, where there is only one, by the cluster's defaults.
fn slots_of_pods(findings: &mut Findings, root: &Node, all: &[ManagerWithPools<'_>]) {
    const KEY: &str = "max_slots_per_pod";
    let of_cluster = root.find("task_container_defaults.kubernetes.max_slots_per_pod");
    for managed in all
        .iter()
        .filter(|managed| managed.kind() == Some(ManagerKind::Kubernetes))
    {
        let of_manager = managed.manager.and_then(|manager| manager.get(KEY));
        let at = managed.manager.and_then(|manager| manager.at.clone());
        let several = all.len() > 1;
        managed.within(findings, "resource_manager", |findings| {
            match (of_manager, of_cluster) {
                (None, None) => findings.error_in(
                    KEY,
                    at.as_ref(),
                    ErrorCode::Missing.message("is required: the most slots that one pod gets"),
                ),
                (None, Some(_)) if several => findings.error_in(
                    KEY,
                    at.as_ref(),
                    ErrorCode::Missing.message("is required for each of several managers; that of \"task_container_defaults\" is for a single one"),
                ),
                (Some(given), Some(_)) if several => findings.warn_in(
                    KEY,
                    given.at.as_ref(),
                    "is what counts; that of \"task_container_defaults\" is ignored where there are several managers",
                ),
                (Some(given), Some(_)) => findings.error_in(
                    KEY,
                    given.at.as_ref(),
                    ErrorCode::Conflict.message("is given in \"task_container_defaults.kubernetes\" as well; choose one"),
                ),
                _ => {}
            }
        });
    }
}
