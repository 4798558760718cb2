//! Which nodes pods may run on.

use serde_json::{Value, json};

use crate::json;
use crate::node::{NodeFacts, Taint};
use crate::user_spec::UserPod;

/// Taints that mark nodes with GPUs, which every pod tolerates: the master decides what runs there.
pub(crate) const DEFAULT_TOLERATIONS: [&str; 2] = ["nvidia.com/gpu", "amd.com/gpu"];

/// Whether pods of a pod spec may ever run on a node: by its name, selector, required affinity and tolerations. `pod_spec` is
/// a pod as in `environment.pod_spec`; null has no demands.
///
/// Taints that Kubernetes sets for a state which passes do not count, so that a node does not change its pools with its
/// state; [`NodeFacts::takes_pods`] has those.
pub fn admits(pod_spec: &Value, node: &NodeFacts) -> bool {
    let spec = Value::from(UserPod::of(Some(pod_spec)).spec);
    let by_name = json::text(&spec, &["nodeName"]).is_none_or(|name| name == node.name);
    let selector = json::texts(&spec, &["nodeSelector"]);
    let mut selected = selector.iter();
    let selected = selected.all(|(key, value)| node.labels.get(key) == Some(value));
    by_name && selected && matches_affinity(&spec, node) && untolerated(&spec, node).is_none()
}

/// Whether the required node affinity of a pod's `spec`, if it has one, selects a node.
pub(crate) fn matches_affinity(spec: &Value, node: &NodeFacts) -> bool {
    let required = json::at(
        spec,
        &[
            "affinity",
            "nodeAffinity",
            "requiredDuringSchedulingIgnoredDuringExecution",
        ],
    );
    required.is_none_or(|required| {
        let terms = json::list(required, &["nodeSelectorTerms"]);
        terms.iter().any(|term| matches(term, node))
    })
}

/// Whether a node has all that a term demands. One that demands nothing matches no node.
fn matches(term: &Value, node: &NodeFacts) -> bool {
    let expressions = json::list(term, &["matchExpressions"]);
    let fields = json::list(term, &["matchFields"]);
    let of_label = |requirement: &Value| {
        let key = json::text(requirement, &["key"]).unwrap_or_default();
        holds(requirement, node.labels.get(key).map(String::as_str))
    };
    let of_field = |requirement: &Value| {
        json::text(requirement, &["key"]) == Some("metadata.name")
            && holds(requirement, Some(&node.name))
    };
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(of_label)
        && fields.iter().all(of_field)
}

/// Whether a requirement holds for a value; `None` = there is none.
pub(crate) fn holds(requirement: &Value, value: Option<&str>) -> bool {
    let values = json::list(requirement, &["values"]);
    let named = value.is_some_and(|value| values.iter().any(|one| one.as_str() == Some(value)));
    let numbers = || {
        let bound: i64 = values.first()?.as_str()?.parse().ok()?;
        let value: i64 = value?.parse().ok()?;
        Some((value, bound))
    };
    match json::text(requirement, &["operator"]).unwrap_or_default() {
        "In" => named,
        "NotIn" => !named,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(value, bound)| value > bound),
        "Lt" => numbers().is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}

/// A taint of a node that a pod's `spec` does not tolerate, if there is one. Taints of a state that passes do not count.
pub(crate) fn untolerated<'n>(spec: &Value, node: &'n NodeFacts) -> Option<&'n Taint> {
    let own = DEFAULT_TOLERATIONS
        .map(|key| json!({"key": key, "operator": "Exists", "effect": "NoSchedule"}));
    let tolerations = json::list(spec, &["tolerations"]);
    let mut lasting = node.taints.iter();
    lasting.find(|taint| {
        let mut all = own.iter().chain(tolerations);
        taint.repels()
            && !taint.is_of_state()
            && !all.any(|toleration| is_tolerated(taint, toleration))
    })
}

/// Whether a pod with this toleration may be where the taint is:
/// <https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/>.
fn is_tolerated(taint: &Taint, toleration: &Value) -> bool {
    let text = |key: &str| json::text(toleration, &[key]).filter(|text| !text.is_empty());
    let effect = text("effect").is_none_or(|effect| effect == taint.effect);
    let key = text("key").is_none_or(|key| key == taint.key);
    effect
        && key
        && match text("operator") {
            Some("Exists") => true,
            None | Some("Equal") => {
                text("key").is_some() && text("value").unwrap_or_default() == taint.value
            }
            Some(_) => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> NodeFacts {
        let labels = [("zone", "a"), ("gpus", "8")];
        NodeFacts {
            name: "n1".into(),
            labels: labels
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            ..NodeFacts::default()
        }
    }

    fn affinity(terms: &Value) -> Value {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": terms,
        }}}})
    }

    fn expression(key: &str, operator: &str, values: &[&str]) -> Value {
        affinity(
            &json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]),
        )
    }

    #[test]
    fn selectors_and_affinities_decide_as_in_kubernetes() {
        let name = |operator: &str| json!({"key": "metadata.name", "operator": operator, "values": ["n1"]});
        let in_zone_b =
            json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]});
        for (scenario, spec, expected) in [
            ("nothing is demanded", json!({}), true),
            ("its label", json!({"nodeSelector": {"zone": "a"}}), true),
            (
                "in snake case",
                json!({"node_selector": {"zone": "b"}}),
                false,
            ),
            ("by its name", json!({"nodeName": "n1"}), true),
            ("by another name", json!({"nodeName": "n2"}), false),
            ("In", expression("zone", "In", &["b", "a"]), true),
            ("In of no label", expression("none", "In", &["a"]), false),
            ("NotIn", expression("zone", "NotIn", &["a"]), false),
            (
                "NotIn of no label",
                expression("none", "NotIn", &["a"]),
                true,
            ),
            ("Exists", expression("zone", "Exists", &[]), true),
            (
                "DoesNotExist",
                expression("zone", "DoesNotExist", &[]),
                false,
            ),
            ("Gt", expression("gpus", "Gt", &["7"]), true),
            ("Gt of the same", expression("gpus", "Gt", &["8"]), false),
            ("Lt", expression("gpus", "Lt", &["9"]), true),
            ("Lt of a word", expression("zone", "Lt", &["9"]), false),
            (
                "an operator of later",
                expression("zone", "Like", &["a"]),
                false,
            ),
            (
                "a field",
                affinity(&json!([{"matchFields": [name("In")]}])),
                true,
            ),
            (
                "not a field",
                affinity(&json!([{"matchFields": [name("NotIn")]}])),
                false,
            ),
            (
                "one of two terms",
                affinity(&json!([in_zone_b, {"matchFields": [name("In")]}])),
                true,
            ),
            (
                "both of one term",
                affinity(
                    &json!([{"matchExpressions": in_zone_b["matchExpressions"], "matchFields": [name("In")]}]),
                ),
                false,
            ),
            ("an empty term", affinity(&json!([{}])), false),
        ] {
            assert_eq!(
                admits(&json!({"spec": spec}), &node()),
                expected,
                "{scenario}"
            );
        }
        assert!(admits(&Value::Null, &node()));
    }

    #[test]
    fn taints_repel_pods_that_do_not_tolerate_them() {
        let equal = json!({"key": "team", "value": "x"});
        for (scenario, key, effect, toleration, expected) in [
            ("none", "team", "NoSchedule", json!({}), false),
            ("the same", "team", "NoSchedule", equal.clone(), true),
            (
                "all of the key",
                "team",
                "NoExecute",
                json!({"key": "team", "operator": "Exists"}),
                true,
            ),
            (
                "another effect",
                "team",
                "NoExecute",
                json!({"key": "team", "operator": "Exists", "effect": "NoSchedule"}),
                false,
            ),
            (
                "another value",
                "team",
                "NoSchedule",
                json!({"key": "team", "value": "y"}),
                false,
            ),
            (
                "everything",
                "team",
                "NoExecute",
                json!({"operator": "Exists"}),
                true,
            ),
            (
                "an operator of later",
                "team",
                "NoSchedule",
                json!({"key": "team", "operator": "Gt", "value": "x"}),
                false,
            ),
            (
                "only less wanted",
                "team",
                "PreferNoSchedule",
                json!({}),
                true,
            ),
            (
                "the taint of GPUs",
                "nvidia.com/gpu",
                "NoSchedule",
                json!({}),
                true,
            ),
            (
                "a state of the node",
                "node.kubernetes.io/not-ready",
                "NoExecute",
                json!({}),
                true,
            ),
        ] {
            let mut node = node();
            node.taints = vec![Taint {
                key: key.into(),
                value: "x".into(),
                effect: effect.into(),
            }];
            let spec = json!({"spec": {"tolerations": [toleration]}});
            assert_eq!(admits(&spec, &node), expected, "{scenario}");
        }
    }
}
