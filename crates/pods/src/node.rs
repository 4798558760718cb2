//! What a node is and offers.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use crate::facts::SlotResource;
use crate::json;
use crate::quantity::quantity;

/// Kinds of addresses, most useful first.
const ADDRESSES: [&str; 5] = [
    "InternalIP",
    "ExternalIP",
    "InternalDNS",
    "ExternalDNS",
    "Hostname",
];

/// A node of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeFacts {
    /// `metadata.name` of the node.
    pub name: String,
    /// Its identity: another one with the same name has another.
    pub uid: String,
    /// What pods may use of each resource: thousandths of `cpu`, bytes or pieces of all others.
    pub allocatable: BTreeMap<String, u64>,
    /// `metadata.labels` of the node.
    pub labels: BTreeMap<String, String>,
    /// What keeps pods away that do not tolerate it.
    pub taints: Vec<Taint>,
    /// Whether its kubelet reports that it can run pods.
    pub ready: bool,
    /// Whether an administrator has taken it off scheduling.
    pub unschedulable: bool,
    /// Its addresses and names, most useful first.
    pub addresses: Vec<String>,
    /// Version of its kubelet, such as `v1.33.1`; empty = not reported.
    pub version: String,
    /// Name and version of its container runtime.
    pub runtime: String,
}

/// A taint of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taint {
    /// Key of the taint, such as `node.kubernetes.io/unreachable`.
    pub key: String,
    /// Its value; empty = it has none.
    pub value: String,
    /// What becomes of pods without a toleration: `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        if !self.value.is_empty() {
            write!(f, "={}", self.value)?;
        }
        write!(f, ":{}", self.effect)
    }
}

impl Taint {
    /// Whether it keeps pods off a node, rather than only making the node less wanted.
    pub(crate) fn repels(&self) -> bool {
        matches!(self.effect.as_str(), "NoSchedule" | "NoExecute")
    }

    /// Whether Kubernetes has set it for a state of the node that passes: not ready, short of memory, cordoned.
    pub(crate) fn is_of_state(&self) -> bool {
        ["node.kubernetes.io/", "node.cloudprovider.kubernetes.io/"]
            .iter()
            .any(|prefix| self.key.starts_with(prefix))
    }
}

impl NodeFacts {
    /// Whether it takes new pods at this moment, of any kind that it ever takes: it is ready, not cordoned, and short of
    /// nothing.
    pub fn takes_pods(&self) -> bool {
        let is_kept_back = |taint: &Taint| taint.is_of_state() && taint.repels();
        self.ready && !self.unschedulable && !self.taints.iter().any(is_kept_back)
    }
}

/// What is known of a node, from the API's object.
pub fn node_facts(node: &Value) -> NodeFacts {
    let allocatable = json::at(node, &["status", "allocatable"]).and_then(Value::as_object);
    let allocatable = allocatable.into_iter().flatten();
    let ready = json::list(node, &["status", "conditions"])
        .iter()
        .find(|condition| json::text(condition, &["type"]) == Some("Ready"));
    let text = |path: &[&str]| json::text(node, path).unwrap_or_default().to_owned();
    NodeFacts {
        name: text(&["metadata", "name"]),
        uid: text(&["metadata", "uid"]),
        allocatable: allocatable
            .filter_map(|(name, amount)| Some((name.clone(), quantity(name, amount)?)))
            .collect(),
        labels: json::texts(node, &["metadata", "labels"]),
        taints: json::list(node, &["spec", "taints"])
            .iter()
            .map(taint)
            .collect(),
        ready: ready.and_then(|ready| json::text(ready, &["status"])) == Some("True"),
        unschedulable: json::at(node, &["spec", "unschedulable"]) == Some(&Value::Bool(true)),
        addresses: addresses(json::list(node, &["status", "addresses"])),
        version: text(&["status", "nodeInfo", "kubeletVersion"]),
        runtime: text(&["status", "nodeInfo", "containerRuntimeVersion"]),
    }
}

fn taint(taint: &Value) -> Taint {
    let text = |key: &str| json::text(taint, &[key]).unwrap_or_default().to_owned();
    Taint {
        key: text("key"),
        value: text("value"),
        effect: text("effect"),
    }
}

fn addresses(listed: &[Value]) -> Vec<String> {
    let mut addresses: Vec<String> = Vec::new();
    for kind in ADDRESSES {
        let of_kind = listed
            .iter()
            .filter(|address| json::text(address, &["type"]) == Some(kind));
        for address in of_kind.filter_map(|address| json::word(address, &["address"])) {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
    }
    addresses
}

/// Slots of a node that offers so much of a resource, less those that pods other than the installation's own hold there:
/// `foreign`. Both in the unit of the resource, thousandths of `cpu` or pieces.
pub fn slots_of(offered: u64, slots: &SlotResource, foreign: u64) -> u32 {
    let left = offered.saturating_sub(foreign);
    let count = match slots {
        SlotResource::Extended(_) | SlotResource::Devices(_) => left,
        SlotResource::Cpu { millis } => left.checked_div(*millis).unwrap_or(0),
    };
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::facts::DeviceClass;

    #[test]
    fn a_node_is_read_from_the_api() {
        let node = node_facts(&json!({
            "metadata": {"name": "n1", "uid": "u1", "labels": {"zone": "a"}},
            "spec": {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]},
            "status": {
                "allocatable": {"cpu": "7910m", "memory": "32Gi", "nvidia.com/gpu": "8", "odd": "?"},
                "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": "True"}],
                "addresses": [{"type": "Hostname", "address": "n1"}, {"type": "InternalIP", "address": "10.0.0.1"},
                              {"type": "InternalDNS", "address": "n1"}],
                "nodeInfo": {"kubeletVersion": "v1.36.1", "containerRuntimeVersion": "containerd://2.2.0"},
            },
        }));
        let expected = NodeFacts {
            name: "n1".into(),
            uid: "u1".into(),
            allocatable: [("cpu", 7910), ("memory", 32 << 30), ("nvidia.com/gpu", 8)]
                .map(|(name, amount)| (name.to_owned(), amount))
                .into(),
            labels: [("zone".to_owned(), "a".to_owned())].into(),
            taints: vec![Taint {
                key: "gpu".into(),
                value: "yes".into(),
                effect: "NoSchedule".into(),
            }],
            ready: true,
            unschedulable: false,
            addresses: vec!["10.0.0.1".into(), "n1".into()],
            version: "v1.36.1".into(),
            runtime: "containerd://2.2.0".into(),
        };
        assert_eq!(node, expected);
        assert!(node.takes_pods());
        assert_eq!(node_facts(&json!(null)), NodeFacts::default());
    }

    #[test]
    fn a_node_that_is_away_cordoned_or_short_of_something_takes_no_pods() {
        let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        for (scenario, spec, takes) in [
            ("ready", json!({}), true),
            ("cordoned", json!({"unschedulable": true}), false),
            (
                "short of memory",
                json!({"taints": [{"key": "node.kubernetes.io/memory-pressure", "effect": "NoSchedule"}]}),
                false,
            ),
            (
                "for some pods",
                json!({"taints": [{"key": "team", "effect": "NoSchedule"}]}),
                true,
            ),
        ] {
            let mut node = ready.clone();
            node["spec"] = spec;
            assert_eq!(node_facts(&node).takes_pods(), takes, "{scenario}");
        }
        assert!(!node_facts(&json!({})).takes_pods(), "nothing is reported");
    }

    #[test]
    fn slots_are_what_others_leave() {
        let gpu = SlotResource::Extended("nvidia.com/gpu".into());
        let cpu = |millis| SlotResource::Cpu { millis };
        let claimed = SlotResource::Devices(DeviceClass::new("gpu.example.com", None));
        for (scenario, offered, slots, foreign, expected) in [
            ("all GPUs", 8, &gpu, 0, 8),
            ("some GPUs", 8, &gpu, 3, 5),
            ("more than there are", 8, &gpu, 9, 0),
            ("none of this kind", 0, &gpu, 0, 0),
            ("processors", 7910, &cpu(1000), 0, 7),
            ("processors that others share", 7910, &cpu(1000), 1000, 6),
            ("shares of nothing", 7910, &cpu(0), 0, 0),
            ("devices that others claim", 8, &claimed, 3, 5),
        ] {
            assert_eq!(slots_of(offered, slots, foreign), expected, "{scenario}");
        }
    }
}
