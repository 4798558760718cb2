//! The scheduler: binds pods to the first node that fits, by name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use crate::cluster::{Cluster, has_ended, is_deleting};
use crate::target::{Key, Resource};
use crate::values::{condition, flag, list, number, set, set_condition, text, texts};

/// Where a pod has the terms of its required affinity for nodes.
const REQUIRED_TERMS: &str =
    "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";

/// Amounts by resource.
pub(crate) type Amounts = BTreeMap<String, f64>;

/// One pass over the pods that wait, the most important first and then the oldest. Those that fitted no node are tried again
/// when a node has changed or a pod has left one.
pub(crate) fn pass(cluster: &mut Cluster) {
    let index = &mut cluster.index;
    let mut keys = std::mem::take(&mut index.new_pods);
    if std::mem::take(&mut index.is_freed) {
        keys.append(&mut index.left_pods);
    }
    let found = keys.into_iter().filter_map(|key| {
        let pod = Arc::clone(cluster.get(&key)?);
        Some((key, pod))
    });
    let mut waiting: Vec<(Key, Arc<Value>)> = found.filter(|(_, pod)| is_waiting(pod)).collect();
    // Later uids sort behind earlier ones.
    waiting.sort_by_key(|(_, pod)| {
        let priority = number(pod, "/spec/priority").unwrap_or(0);
        (
            std::cmp::Reverse(priority),
            text(pod, "/metadata/uid").to_owned(),
        )
    });
    for (key, pod) in waiting {
        match choose(cluster, &pod) {
            Ok(node) => cluster.modify(&key, |pod| {
                set(pod, &["spec", "nodeName"], node);
                set_condition(pod, "PodScheduled", "True", "", "");
            }),
            Err(message) => {
                let is_there = cluster.modify(&key, |pod| {
                    set_condition(pod, "PodScheduled", "False", "Unschedulable", &message);
                });
                // That it was found not to fit is no reason to try it again.
                cluster.index.new_pods.remove(&key);
                cluster.index.left_pods.insert(key);
                is_there
            }
        };
    }
}

pub(crate) fn is_waiting(pod: &Value) -> bool {
    text(pod, "/spec/nodeName").is_empty()
        && text(pod, "/spec/schedulerName") == "default-scheduler"
        && list(pod, "/spec/schedulingGates").is_empty()
        && !has_ended(pod)
        && !is_deleting(pod)
}

/// The node for a pod, or why there is none.
fn choose(cluster: &Cluster, pod: &Value) -> Result<String, String> {
    let wanted = requests(pod);
    let fits = |name: &str, node: &Value| {
        obstacles(pod, node, &wanted, &cluster.index.taken(name)).is_empty()
    };
    // One that names its nodes fits no other.
    for name in named_nodes(pod).into_iter().flatten() {
        let node = cluster.get(&Key::new(Resource::nodes(), "", name));
        if node.is_some_and(|node| fits(name, node)) {
            return Ok(name.to_owned());
        }
    }
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let mut nodes = 0;
    for (key, node) in cluster.list(&Resource::nodes()) {
        nodes += 1;
        match obstacles(pod, node, &wanted, &cluster.index.taken(&key.name)) {
            obstacles if obstacles.is_empty() => return Ok(key.name.clone()),
            obstacles => {
                for obstacle in obstacles {
                    *reasons.entry(obstacle).or_default() += 1;
                }
            }
        }
    }
    if nodes == 0 {
        return Err("no nodes available to schedule pods".to_owned());
    }
    let reasons: Vec<String> = reasons
        .iter()
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    Err(format!(
        "0/{nodes} nodes are available: {}.",
        reasons.join(", ")
    ))
}

/// Whether a node takes a pod that wants so much, beside what is used there.
pub(crate) fn takes(pod: &Value, node: &Value, wanted: &Amounts, used: &Amounts) -> bool {
    obstacles(pod, node, wanted, used).is_empty()
}

/// The nodes that every term of a pod's required affinity names, by their names; `None` = some other node may be selected.
fn named_nodes(pod: &Value) -> Option<BTreeSet<&str>> {
    let terms = list(pod, REQUIRED_TERMS);
    let of_terms = terms.iter().map(|term| {
        let mut fields = list(term, "/matchFields").iter();
        fields.find(|field| {
            text(field, "/key") == "metadata.name" && text(field, "/operator") == "In"
        })
    });
    let fields = of_terms.collect::<Option<Vec<&Value>>>()?;
    let names = fields.into_iter().flat_map(|field| list(field, "/values"));
    let names: BTreeSet<&str> = names.filter_map(Value::as_str).collect();
    (!names.is_empty()).then_some(names)
}

/// Why a node does not take a pod; none if it does.
fn obstacles(
    pod: &Value,
    node: &Value,
    wanted: &BTreeMap<String, f64>,
    used: &BTreeMap<String, f64>,
) -> Vec<String> {
    if flag(node, "/spec/unschedulable") {
        return vec!["node(s) were unschedulable".to_owned()];
    }
    if condition(node, "Ready") == "False" || condition(node, "Ready") == "Unknown" {
        return vec!["node(s) were not ready".to_owned()];
    }
    if !is_selected(pod, node) {
        return vec!["node(s) didn't match Pod's node affinity/selector".to_owned()];
    }
    for taint in list(node, "/spec/taints") {
        let repels = matches!(text(taint, "/effect"), "NoSchedule" | "NoExecute");
        if repels && !is_tolerated(pod, taint) {
            let (key, value) = (text(taint, "/key"), text(taint, "/value"));
            return vec![format!("node(s) had untolerated taint {{{key}: {value}}}")];
        }
    }
    let lacks = |resource: &str, amount: f64| {
        let allocatable = node.pointer("/status/allocatable");
        let offered = match allocatable.and_then(|offered| offered.get(resource)) {
            Some(offered) => quantity(offered),
            // Nodes of tests that name no processors have enough of them, but never devices that they do not name.
            None if resource.contains('/') => 0.0,
            None => f64::INFINITY,
        };
        amount > 0.0 && used.get(resource).unwrap_or(&0.0) + amount > offered + 1e-9
    };
    wanted
        .iter()
        .filter(|(resource, amount)| lacks(resource, **amount))
        .map(|(resource, _)| format!("Insufficient {resource}"))
        .collect()
}

/// What a pod asks for: the sum of its containers, or the most that one of its init containers asks for.
pub(crate) fn requests(pod: &Value) -> Amounts {
    let mut total = BTreeMap::from([("pods".to_owned(), 1.0)]);
    for container in list(pod, "/spec/containers") {
        for (resource, amount) in of_container(container) {
            *total.entry(resource).or_default() += amount;
        }
    }
    for container in list(pod, "/spec/initContainers") {
        for (resource, amount) in of_container(container) {
            let most: &mut f64 = total.entry(resource).or_default();
            *most = most.max(amount);
        }
    }
    total
}

/// What a container asks for; what it limits and does not request, it requests.
fn of_container(container: &Value) -> BTreeMap<String, f64> {
    let mut amounts = BTreeMap::new();
    for pointer in ["/resources/limits", "/resources/requests"] {
        let named = container.pointer(pointer).and_then(Value::as_object);
        for (resource, amount) in named.into_iter().flatten() {
            amounts.insert(resource.clone(), quantity(amount));
        }
    }
    amounts
}

/// The value of a quantity such as `500m`, `8` or `1Gi`; 0 for what is none.
fn quantity(value: &Value) -> f64 {
    let text = match value {
        Value::String(text) => text.as_str(),
        other => return other.as_f64().unwrap_or(0.0),
    };
    let end = text
        .find(|letter: char| !(letter.is_ascii_digit() || matches!(letter, '.' | '-' | '+')))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let factor = match suffix {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => 1024.0_f64.powi(2),
        "Gi" => 1024.0_f64.powi(3),
        "Ti" => 1024.0_f64.powi(4),
        "Pi" => 1024.0_f64.powi(5),
        "Ei" => 1024.0_f64.powi(6),
        _ => return text.parse().unwrap_or(0.0),
    };
    number.parse::<f64>().unwrap_or(0.0) * factor
}

/// Whether a pod's selector and required affinity take a node.
fn is_selected(pod: &Value, node: &Value) -> bool {
    let label = |key: &str| {
        let labels = node.pointer("/metadata/labels")?;
        labels.get(key)?.as_str()
    };
    if !texts(pod, "/spec/nodeSelector").all(|(key, value)| label(key) == Some(value)) {
        return false;
    }
    let affinity = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution";
    let Some(required) = pod.pointer(affinity).filter(|required| !required.is_null()) else {
        return true;
    };
    // One of the terms must match, each of them as a whole; an empty one matches nothing.
    list(required, "/nodeSelectorTerms").iter().any(|term| {
        let expressions = list(term, "/matchExpressions");
        let fields = list(term, "/matchFields");
        let name = Some(text(node, "/metadata/name"));
        !(expressions.is_empty() && fields.is_empty())
            && expressions
                .iter()
                .all(|expression| holds(expression, label(text(expression, "/key"))))
            && fields
                .iter()
                .all(|field| text(field, "/key") == "metadata.name" && holds(field, name))
    })
}

/// Whether a requirement holds for the value of its label or field.
fn holds(requirement: &Value, value: Option<&str>) -> bool {
    let values = list(requirement, "/values");
    let is_listed = value.is_some_and(|value| values.iter().any(|listed| listed == value));
    let compare = |is: fn(&i64, &i64) -> bool| {
        let parse = |text: Option<&str>| text.and_then(|text| text.parse::<i64>().ok());
        let limit = parse(values.first().and_then(Value::as_str));
        match (parse(value), limit) {
            (Some(value), Some(limit)) => is(&value, &limit),
            _ => false,
        }
    };
    match text(requirement, "/operator") {
        "In" => is_listed,
        "NotIn" => !is_listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(i64::gt),
        "Lt" => compare(i64::lt),
        _ => false,
    }
}

fn is_tolerated(pod: &Value, taint: &Value) -> bool {
    list(pod, "/spec/tolerations").iter().any(|toleration| {
        let key = text(toleration, "/key");
        let effect = text(toleration, "/effect");
        let fits_value = text(toleration, "/operator") == "Exists"
            || text(toleration, "/value") == text(taint, "/value");
        let fits_key = if key.is_empty() {
            text(toleration, "/operator") == "Exists"
        } else {
            key == text(taint, "/key")
        };
        fits_key && fits_value && (effect.is_empty() || effect == text(taint, "/effect"))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    #[expect(clippy::float_cmp, reason = "these quantities are exact")]
    fn quantities_have_suffixes() {
        for (text, expected) in [
            ("8", 8.0),
            ("500m", 0.5),
            ("7.5", 7.5),
            ("1Gi", 1_073_741_824.0),
            ("2k", 2000.0),
            ("1e3", 1000.0),
            ("x", 0.0),
        ] {
            assert_eq!(quantity(&json!(text)), expected, "{text}");
        }
    }
}
