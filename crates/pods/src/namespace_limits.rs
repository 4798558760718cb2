//! What a namespace demands of the pods in it: the nodes that they may go to, and what quotas leave.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::demands::requests;
use crate::facts::SlotResource;
use crate::json;
use crate::node::NodeFacts;
use crate::quantity::quantity;

/// Annotation with the labels that nodes must have for pods of the namespace, for the admission plugin `PodNodeSelector`:
/// <https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#podnodeselector>.
const NODE_SELECTOR: &str = "scheduler.alpha.kubernetes.io/node-selector";

/// What a namespace demands of the pods in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamespaceLimits {
    /// Labels that a node must have to run its pods.
    pub node_selector: BTreeMap<String, String>,
    /// Its quotas of all pods, by name.
    pub quotas: BTreeMap<String, QuotaLimits>,
}

/// A `ResourceQuota`: what may be used and what is used, by its resources (`requests.cpu`, `pods`), in the units of
/// [`quantity`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QuotaLimits(BTreeMap<String, Amounts>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Amounts {
    hard: u64,
    used: u64,
}

/// What a task takes of quotas at least.
#[derive(Debug, Clone, Copy)]
pub struct QuotaDemand<'a> {
    /// Slots of all its pods; `None` = they are counted elsewhere.
    pub slots: Option<u32>,
    /// What the resource of slots is.
    pub resource: &'a SlotResource,
    /// What one of its pods demands ([`crate::demands()`]).
    pub demands: Option<&'a Value>,
}

/// What quotas refuse a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaRefusal {
    /// The quota, the resource, what is used and the limit.
    pub reason: String,
    /// Whether pods that ask for nodes ([`crate::placeholders`]) take of that resource as the task's pods do.
    pub counts_placeholders: bool,
}

/// The labels that nodes must have for pods of a namespace, from its object.
pub fn node_selector(namespace: &Value) -> BTreeMap<String, String> {
    let mut annotations = json::texts(namespace, &["metadata", "annotations"]);
    let selector = annotations.remove(NODE_SELECTOR).unwrap_or_default();
    let labels = selector.split(',').filter_map(|label| {
        let (key, value) = label.split_once('=')?;
        let key = key.trim();
        // `key==value` is the same.
        let value = value.strip_prefix('=').unwrap_or(value).trim();
        (!key.is_empty()).then(|| (key.to_owned(), value.to_owned()))
    });
    labels.collect()
}

/// What a quota leaves; `None` = it is of some pods only, and which these are is not known.
pub fn quota_limits(quota: &Value) -> Option<QuotaLimits> {
    let spec = quota.get("spec")?;
    let scopes = json::list(spec, &["scopes"]);
    let selector = spec.get("scopeSelector").is_some_and(|it| !it.is_null());
    if !scopes.is_empty() || selector {
        return None;
    }
    let status = quota.get("status");
    let of = |kind: &str| status.and_then(|status| status.get(kind)?.as_object());
    // Until its controller has looked at a new quota.
    let hard = of("hard").or_else(|| spec.get("hard")?.as_object())?;
    let used = of("used");
    let amounts = hard.iter().filter_map(|(resource, hard)| {
        let base = base_of(resource);
        let used = used.and_then(|used| quantity(base, used.get(resource)?));
        let amounts = Amounts {
            hard: quantity(base, hard)?,
            used: used.unwrap_or(0),
        };
        Some((resource.clone(), amounts))
    });
    Some(QuotaLimits(amounts.collect()))
}

/// The resource of containers that a resource of quotas is about.
fn base_of(resource: &str) -> &str {
    let base = resource.strip_prefix("requests.");
    base.or_else(|| resource.strip_prefix("limits."))
        .unwrap_or(resource)
}

impl NamespaceLimits {
    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        self.node_selector.is_empty() && self.quotas.is_empty()
    }

    /// Why pods of the namespace are not admitted to a node; `None` = they are. `namespace` = its name.
    pub fn excludes(&self, namespace: &str, node: &NodeFacts) -> Option<String> {
        let mut selector = self.node_selector.iter();
        let (key, value) = selector.find(|(key, value)| node.labels.get(*key) != Some(*value))?;
        Some(format!(
            "namespace \"{namespace}\" has its pods on nodes with the label \"{key}={value}\" alone (PodNodeSelector)"
        ))
    }

    /// Why quotas do not admit a task's pods at present; `None` = they do, as far as is known. A quota of a resource refuses
    /// pods that name no amount of it: such a task is held to need one unit.
    pub fn refuses(&self, namespace: &str, demand: QuotaDemand<'_>) -> Option<QuotaRefusal> {
        let needed = needed(demand);
        self.quotas.iter().find_map(|(name, quota)| {
            quota.0.iter().find_map(|(resource, amounts)| {
                let needed = needed(resource)?;
                if amounts.used.saturating_add(needed) <= amounts.hard {
                    return None;
                }
                let text = |amount| plain(base_of(resource), amount);
                let reason = format!(
                    "quota \"{name}\" of namespace \"{namespace}\" has {resource} {} used of {}, and the task needs {}",
                    text(amounts.used),
                    text(amounts.hard),
                    text(needed),
                );
                Some(QuotaRefusal {
                    reason,
                    counts_placeholders: !matches!(resource.as_str(), "secrets" | "count/secrets"),
                })
            })
        })
    }
}

/// Gives what a task takes of a resource of quotas at least; `None` = nothing, or not known.
fn needed(demand: QuotaDemand<'_>) -> impl Fn(&str) -> Option<u64> {
    let nothing = Value::Null;
    let of_pod = requests(demand.demands.unwrap_or(&nothing));
    move |resource: &str| {
        let base = base_of(resource);
        if base == demand.resource.name() {
            let units = u64::from(demand.slots?).saturating_mul(demand.resource.per_slot());
            return (units > 0).then_some(units);
        }
        match resource {
            // Each task has a pod, a Job and a Secret.
            "pods" | "count/pods" | "count/jobs.batch" | "secrets" | "count/secrets" => Some(1),
            _ => match base {
                "cpu" | "memory" => Some(of_pod.get(base).copied().unwrap_or(0).max(1)),
                base => of_pod.get(base).copied().filter(|amount| *amount > 0),
            },
        }
    }
}

/// An amount of a resource, as Kubernetes writes it: `1500m`, `2Gi`, `4`.
fn plain(resource: &str, amount: u64) -> String {
    if resource == "cpu" {
        return match (amount / 1000, amount % 1000) {
            (whole, 0) => whole.to_string(),
            _ => format!("{amount}m"),
        };
    }
    let units = [(30, "Gi"), (20, "Mi"), (10, "Ki")];
    let exact = units.iter().find(|(bits, _)| {
        let unit = 1_u64 << bits;
        amount >= unit && amount.is_multiple_of(unit)
    });
    match exact {
        Some((bits, name)) if base_has_bytes(resource) => format!("{}{name}", amount >> bits),
        _ => amount.to_string(),
    }
}

fn base_has_bytes(resource: &str) -> bool {
    matches!(resource, "memory" | "ephemeral-storage" | "storage")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn limits(quota: &Value) -> NamespaceLimits {
        let quota = quota_limits(quota).into_iter();
        NamespaceLimits {
            node_selector: BTreeMap::new(),
            quotas: quota.map(|quota| ("few".to_owned(), quota)).collect(),
        }
    }

    fn quota(hard: &Value, used: &Value) -> Value {
        json!({"spec": {"hard": hard}, "status": {"hard": hard, "used": used}})
    }

    #[test]
    fn a_quota_refuses_with_its_name_the_resource_the_use_and_the_limit() {
        let gpus = SlotResource::Extended("nvidia.com/gpu".into());
        let pod = json!({"spec": {"containers": [{"resources": {"requests": {"cpu": "1500m", "memory": "2Gi"}}}]}});
        let gpu = "requests.nvidia.com/gpu";
        for (hard, used, slots, demands, expected) in [
            (json!({"pods": "3"}), json!({"pods": "2"}), 1, None, None),
            (
                json!({"pods": "3"}),
                json!({"pods": "3"}),
                0,
                None,
                Some("pods 3 used of 3, and the task needs 1"),
            ),
            (json!({gpu: "4"}), json!({gpu: "2"}), 2, None, None),
            (json!({gpu: "4"}), json!({gpu: "2"}), 0, None, None),
            (
                json!({gpu: "4"}),
                json!({gpu: "2"}),
                4,
                None,
                Some("requests.nvidia.com/gpu 2 used of 4, and the task needs 4"),
            ),
            (
                json!({"requests.cpu": "4"}),
                json!({"requests.cpu": "3"}),
                1,
                Some(&pod),
                Some("requests.cpu 3 used of 4, and the task needs 1500m"),
            ),
            (
                json!({"requests.cpu": "4"}),
                json!({"requests.cpu": "3"}),
                1,
                None,
                None,
            ),
            (
                json!({"memory": "8Gi"}),
                json!({"memory": "7Gi"}),
                1,
                Some(&pod),
                Some("memory 7Gi used of 8Gi, and the task needs 2Gi"),
            ),
            (
                json!({"count/jobs.batch": 1}),
                json!({"count/jobs.batch": 1}),
                1,
                None,
                Some("count/jobs.batch 1 used of 1"),
            ),
            (
                json!({"configmaps": 1}),
                json!({"configmaps": 1}),
                1,
                Some(&pod),
                None,
            ),
        ] {
            let demand = QuotaDemand {
                slots: Some(slots),
                resource: &gpus,
                demands,
            };
            let why = limits(&quota(&hard, &used)).refuses("team", demand);
            match expected {
                None => assert_eq!(why, None, "{hard}"),
                Some(expected) => {
                    let why = why.map(|refusal| refusal.reason).unwrap_or_default();
                    let begin = "quota \"few\" of namespace \"team\" has ";
                    assert!(why.starts_with(begin) && why.contains(expected), "{why}");
                }
            }
            let counted_elsewhere = QuotaDemand {
                slots: None,
                ..demand
            };
            if hard.get(gpu).is_some() {
                let why = limits(&quota(&hard, &used)).refuses("team", counted_elsewhere);
                assert_eq!(why, None);
            }
        }
    }

    #[test]
    fn quotas_of_secrets_are_none_of_placeholders() {
        let gpus = SlotResource::Extended("nvidia.com/gpu".into());
        let demand = QuotaDemand {
            slots: Some(1),
            resource: &gpus,
            demands: None,
        };
        for (resource, expected) in [("pods", true), ("secrets", false), ("count/secrets", false)] {
            let full = json!({resource: "1"});
            let refusal = limits(&quota(&full, &full)).refuses("team", demand);
            assert_eq!(refusal.map(|it| it.counts_placeholders), Some(expected));
        }
    }

    #[test]
    fn quotas_of_some_pods_only_are_left_to_kubernetes() {
        let mut scoped = quota(&json!({"pods": "1"}), &json!({"pods": "1"}));
        scoped["spec"]["scopes"] = json!(["BestEffort"]);
        assert_eq!(quota_limits(&scoped), None);
        let new = json!({"spec": {"hard": {"pods": "0"}}});
        assert!(!limits(&new).is_empty());
        assert_eq!(quota_limits(&json!({})), None);
    }

    #[test]
    fn the_node_selector_of_a_namespace_is_read_as_the_plugin_does() {
        let of = |text: &str| {
            let annotations = json!({NODE_SELECTOR: text});
            node_selector(&json!({"metadata": {"annotations": annotations}}))
        };
        assert!(node_selector(&json!({})).is_empty() && of("").is_empty() && of("odd").is_empty());
        let selector = of("zone=a, tier==gold");
        assert_eq!(selector.len(), 2);
        assert_eq!(selector["tier"], "gold");
        let limits = NamespaceLimits {
            node_selector: selector,
            ..NamespaceLimits::default()
        };
        let node = |labels: &[(&str, &str)]| NodeFacts {
            labels: labels
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            ..NodeFacts::default()
        };
        let both = node(&[("zone", "a"), ("tier", "gold")]);
        assert_eq!(limits.excludes("team", &both), None);
        let why = limits.excludes("team", &node(&[("zone", "b"), ("tier", "gold")]));
        assert!(why.unwrap_or_default().contains("\"zone=a\""));
    }
}
