//! An autoscaler: adds nodes for pods that fit no node, when the test asks it to look.

use serde_json::{Value, json};

use crate::double::{ApiDouble, node};
use crate::scheduling::{Amounts, requests, takes};
use crate::values::{list, set, text};

/// Nodes that an autoscaler may add.
#[derive(Debug, Clone, Copy)]
pub struct NodeGroup {
    /// Begin of their names, before a number.
    pub name: &'static str,
    /// GPUs of each.
    pub gpus: u32,
    /// Labels of each, besides those that all nodes have.
    pub labels: &'static [(&'static str, &'static str)],
    /// Most nodes of the cluster.
    pub most: usize,
}

/// The autoscaler looks at the pods that fit no node, and adds the nodes of a group that they would fit, as far as there
/// may be more; gives their names. Of pods that it adds none for it writes the event `NotTriggerScaleUp`.
pub fn scale_up(api: &ApiDouble, group: NodeGroup) -> Vec<String> {
    let present = api.list("v1/nodes", "").len();
    let mut added: Vec<(Value, Amounts)> = Vec::new();
    for pod in api.list("v1/pods", "") {
        if !is_unschedulable(&pod) {
            continue;
        }
        let wanted = requests(&pod);
        let on_added = added
            .iter_mut()
            .find(|(node, used)| takes(&pod, node, &wanted, used));
        if let Some((_, used)) = on_added {
            add(used, &wanted);
            continue;
        }
        let name = format!("{}{}", group.name, present + added.len());
        let mut node = node(&name, group.gpus);
        for (label, value) in group.labels {
            set(&mut node, &["metadata", "labels", label], *value);
        }
        let none = Amounts::new();
        if present + added.len() < group.most && takes(&pod, &node, &wanted, &none) {
            added.push((node, wanted));
        } else {
            refuse(api, &pod);
        }
    }
    let names = added.into_iter().map(|(node, _)| {
        let name = text(&node, "/metadata/name").to_owned();
        api.create("v1/nodes", "", node);
        name
    });
    names.collect()
}

fn refuse(api: &ApiDouble, pod: &Value) {
    let (namespace, name) = (
        text(pod, "/metadata/namespace"),
        text(pod, "/metadata/name"),
    );
    let event = json!({
        "metadata": {"name": format!("{name}.not-added"), "namespace": namespace},
        "involvedObject": {
            "kind": "Pod", "namespace": namespace, "name": name, "uid": text(pod, "/metadata/uid"),
        },
        "reason": "NotTriggerScaleUp",
        "message": "pod didn't trigger scale-up: 1 max node group size reached",
        "type": "Normal",
    });
    let known = api.get("v1/events", namespace, &format!("{name}.not-added"));
    if known.is_none() {
        api.create("v1/events", namespace, event);
    }
}

/// Whether the scheduler has found no node for a pod.
fn is_unschedulable(pod: &Value) -> bool {
    let conditions = list(pod, "/status/conditions");
    conditions.iter().any(|condition| {
        text(condition, "/type") == "PodScheduled" && text(condition, "/reason") == "Unschedulable"
    })
}

fn add(used: &mut Amounts, wanted: &Amounts) {
    for (resource, amount) in wanted {
        *used.entry(resource.clone()).or_default() += amount;
    }
}
