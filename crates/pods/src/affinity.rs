//! Which node a pod goes to.

use det_ids::ClusterId;
use serde_json::{Value, json};

use crate::json::{self, Object};
use crate::names::drain_label;

/// Scheduling gate that holds the pods of a gang back until all of them may go.
pub const PLACEMENT_GATE: &str = "determined.ai/placement";

/// Where a node affinity has the terms of which pods need one.
pub(crate) const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

/// That a pod goes to this node.
fn on_node(node: &str) -> (&'static str, Value) {
    let requirement = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    ("matchFields", requirement)
}

/// That a pod goes to no node that the installation was taken off.
fn not_drained(cluster_id: &ClusterId) -> (&'static str, Value) {
    let requirement = json!({"key": drain_label(cluster_id), "operator": "DoesNotExist"});
    ("matchExpressions", requirement)
}

/// Has the pods of a spec avoid nodes that are drained, and go to `node` where that is given.
pub(crate) fn restrict(spec: &mut Object, cluster_id: &ClusterId, node: Option<&str>) {
    let mut requirements = vec![not_drained(cluster_id)];
    requirements.extend(node.map(on_node));
    require(json::object(spec, "affinity"), &requirements);
}

/// Has the pods of a spec avoid these nodes.
pub(crate) fn avoid(spec: &mut Object, nodes: &std::collections::BTreeSet<String>) {
    if !nodes.is_empty() {
        let requirements = nodes.iter().map(|node| {
            // A field takes one value.
            let requirement =
                json!({"key": "metadata.name", "operator": "NotIn", "values": [node]});
            ("matchFields", requirement)
        });
        let requirements: Vec<_> = requirements.collect();
        require(json::object(spec, "affinity"), &requirements);
    }
}

/// Adds requirements to every term of a required node affinity: one of the terms is enough for a pod, so that each must
/// have them. A term that demands nothing matches no node, and goes.
fn require(affinity: &mut Object, requirements: &[(&'static str, Value)]) {
    let required = json::object(json::object(affinity, "nodeAffinity"), REQUIRED);
    let mut terms = json::take_list(required, "nodeSelectorTerms");
    terms.retain(|term| term.as_object().is_some_and(demands));
    if terms.is_empty() {
        terms.push(json!({}));
    }
    for term in &mut terms {
        let Value::Object(term) = term else { continue };
        for (list, requirement) in requirements {
            let mut demanded = json::take_list(term, list);
            if !demanded.contains(requirement) {
                demanded.push(requirement.clone());
            }
            term.insert((*list).to_owned(), demanded.into());
        }
    }
    required.insert("nodeSelectorTerms".to_owned(), terms.into());
}

fn demands(term: &Object) -> bool {
    ["matchExpressions", "matchFields"].iter().any(|list| {
        let list = term.get(*list).and_then(Value::as_array);
        list.is_some_and(|list| !list.is_empty())
    })
}

/// The patch that pins one gated pod of a gang to its node and opens its gate: the body of a merge patch. `pod` is the pod
/// as the API has it. May be applied twice.
///
/// While a pod is gated, its node affinity may be made stricter and nothing else:
/// <https://kubernetes.io/docs/concepts/scheduling-eviction/pod-scheduling-readiness/>.
pub fn release_patch(node: &str, pod: &Value) -> Value {
    let mut gates = json::list(pod, &["spec", "schedulingGates"]).to_vec();
    gates.retain(|gate| json::text(gate, &["name"]) != Some(PLACEMENT_GATE));
    let gates = if gates.is_empty() {
        Value::Null
    } else {
        gates.into()
    };
    let affinity = json::at(pod, &["spec", "affinity"]).and_then(Value::as_object);
    let mut affinity = affinity.cloned().unwrap_or_default();
    require(&mut affinity, &[on_node(node)]);
    json!({"spec": {"schedulingGates": gates, "affinity": affinity}})
}
