//! What the pods of a task demand of nodes besides slots, and what nodes lack of it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::admission::{matches_affinity, untolerated};
use crate::facts::SlotResources;
use crate::json::{self, Object};
use crate::node::NodeFacts;
use crate::quantity::{requested, resource_names};
use crate::user_spec::UserPod;

/// Amounts by resource: thousandths of `cpu`, bytes or pieces of all others.
pub type Resources = BTreeMap<String, u64>;

/// Why a node cannot take a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// Whether it will not before the node or the pod is changed; otherwise it may when other pods end, or when the node's
    /// state passes.
    pub lasts: bool,
    /// What is wrong, completing "nodes do not fit: …".
    pub reason: String,
}

/// The resource of which each pod takes one.
pub(crate) const PODS: &str = "pods";

/// What pods of a pod spec demand of a node besides slots: a pod with those fields of it that decide. `pod_spec` is a pod as in
/// `environment.pod_spec`; `None` = it demands nothing.
pub fn demands(pod_spec: &Value) -> Option<Value> {
    let user = UserPod::of(Some(pod_spec));
    let mut spec = Object::new();
    for key in [
        "nodeName",
        "nodeSelector",
        "tolerations",
        "overhead",
        "resources",
    ] {
        if let Some(value) = user.spec.get(key).filter(|value| !is_empty(value)) {
            spec.insert(key.to_owned(), value.clone());
        }
    }
    let affinity = user.spec.get("affinity");
    let affinity = affinity.and_then(|affinity| json::at(affinity, &["nodeAffinity", REQUIRED]));
    if let Some(required) = affinity.filter(|required| !is_empty(required)) {
        spec.insert(
            "affinity".to_owned(),
            json!({"nodeAffinity": {REQUIRED: required}}),
        );
    }
    let task = Value::Object(user.task);
    let containers = user.containers.iter().chain([&task]);
    for (key, containers) in [
        ("containers", resources_of(containers)),
        ("initContainers", resources_of(&user.init_containers)),
    ] {
        if !containers.is_empty() {
            spec.insert(key.to_owned(), containers.into());
        }
    }
    let demanded = json!({"spec": spec});
    let is_small = demanded.to_string().len() <= MOST_BYTES;
    (!spec.is_empty() && is_small).then_some(demanded)
}

/// The most bytes of demands, as JSON: they are kept in memory for every job that waits. What demands more is placed like
/// what demands nothing, and kube-scheduler decides.
const MOST_BYTES: usize = 16 << 10;

/// Fields of a pod's `spec` that [`demands`] has, or that kube-scheduler does not look at.
const KNOWN: [&str; 19] = [
    "activeDeadlineSeconds",
    "affinity",
    "automountServiceAccountToken",
    "dnsConfig",
    "dnsPolicy",
    "enableServiceLinks",
    "hostAliases",
    "imagePullSecrets",
    "nodeName",
    "nodeSelector",
    "overhead",
    "priorityClassName",
    "resources",
    "restartPolicy",
    "securityContext",
    "serviceAccountName",
    "terminationGracePeriodSeconds",
    "tolerations",
    "volumes",
];

/// Volumes that every node has.
const EVERYWHERE: [&str; 8] = [
    "name",
    "configMap",
    "downwardAPI",
    "emptyDir",
    "hostPath",
    "nfs",
    "projected",
    "secret",
];

/// Whether [`demands`] has all by which kube-scheduler decides where pods of a pod spec go. If not, that it assigns one of
/// them to no node shows nothing about pods of others that demand the same.
pub fn demands_everything(pod_spec: &Value) -> bool {
    let user = UserPod::of(Some(pod_spec));
    let of_known = user.spec.keys().all(|key| KNOWN.contains(&key.as_str()));
    let affinity = user.spec.get("affinity").and_then(Value::as_object);
    let of_nodes = affinity.is_none_or(|it| it.keys().all(|key| key == "nodeAffinity"));
    let spec = Value::Object(user.spec);
    let is_everywhere = |volume: &Value| {
        let fields = volume.as_object();
        fields.is_some_and(|it| it.keys().all(|key| EVERYWHERE.contains(&key.as_str())))
    };
    let task = Value::Object(user.task);
    let mut containers = user
        .containers
        .iter()
        .chain(&user.init_containers)
        .chain([&task]);
    let takes_port = |container: &Value| {
        let ports = json::list(container, &["ports"]).iter();
        ports.filter_map(|port| port.get("hostPort")).count() > 0
    };
    of_known
        && of_nodes
        && json::list(&spec, &["volumes"]).iter().all(is_everywhere)
        && !containers.any(takes_port)
        && pod_spec.to_string().len() <= MOST_BYTES
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// What of containers decides how much they need: those that need nothing are left out.
fn resources_of<'c>(containers: impl IntoIterator<Item = &'c Value>) -> Vec<Value> {
    let containers = containers.into_iter().filter_map(|container| {
        let resources = container.get("resources").filter(|it| !is_empty(it))?;
        let policy = container.get("restartPolicy");
        Some(json!({"resources": resources, "restartPolicy": policy}))
    });
    containers.collect()
}

/// All that a pod takes of a node while it has not ended.
pub fn requests(pod: &Value) -> Resources {
    let phase = json::text(pod, &["status", "phase"]);
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return Resources::new();
    }
    let names: BTreeSet<&str> = resource_names(pod);
    let amounts = names.into_iter();
    let amounts = amounts.map(|name| (name.to_owned(), requested(pod, name)));
    amounts.chain([(PODS.to_owned(), 1)]).collect()
}

/// Why a node cannot take one more pod with these demands ([`demands`]); `None` = it can, as far as slots are free.
/// `used` = what all pods there take. What slots of the pool are is not looked at, since slots are counted elsewhere, nor what
/// pods are given for slots alone: those of the task have none of it.
pub fn misfit(
    demands: Option<&Value>,
    node: &NodeFacts,
    used: &Resources,
    (slots, pool): (&SlotResources, &str),
) -> Option<Misfit> {
    let nothing = Value::Null;
    let pod = demands.unwrap_or(&nothing);
    let lasting = |reason| Misfit {
        lasts: true,
        reason,
    };
    if let Some(reason) = unselected(pod, node) {
        return Some(lasting(reason));
    }
    let mut passing = None;
    for (resource, needed) in requests(pod) {
        if resource == slots.of(pool).name() || slots.give_alone(&resource) {
            continue;
        }
        let all = node.allocatable.get(&resource).copied();
        // A node that does not report it, as kubelets of tests may not, has no limit of it.
        let all = all.unwrap_or(if resource == PODS { u64::MAX } else { 0 });
        let amount = amount(&resource, needed);
        if all < needed {
            return Some(lasting(format!(
                "a pod needs {amount}, and less exists there"
            )));
        }
        let used = used.get(&resource).copied().unwrap_or(0);
        if all.saturating_sub(used) < needed && passing.is_none() {
            passing = Some(format!("a pod needs {amount}, and less is free"));
        }
    }
    let state = passing.or_else(|| kept_back(node));
    state.map(|reason| Misfit {
        lasts: false,
        reason,
    })
}

/// Why a node may never run a pod: by its name, selector, required affinity and tolerations.
fn unselected(pod: &Value, node: &NodeFacts) -> Option<String> {
    let spec = &pod["spec"];
    if let Some(name) = json::text(spec, &["nodeName"]).filter(|name| *name != node.name) {
        return Some(format!("the task names node \"{name}\""));
    }
    let selector = json::texts(spec, &["nodeSelector"]);
    let mut missing = selector.iter();
    let missing = missing.find(|(key, value)| node.labels.get(*key) != Some(*value));
    if let Some((key, value)) = missing {
        return Some(format!("label \"{key}\" is not \"{value}\""));
    }
    if !matches_affinity(spec, node) {
        return Some("the required node affinity of the task does not select them".to_owned());
    }
    let taint = untolerated(spec, node)?;
    Some(format!("taint \"{taint}\" is not tolerated"))
}

/// What keeps new pods off a node at present.
fn kept_back(node: &NodeFacts) -> Option<String> {
    if node.takes_pods() {
        return None;
    }
    if node.unschedulable {
        return Some("an administrator has cordoned them".to_owned());
    }
    if !node.ready {
        return Some("their kubelet does not report that it is ready".to_owned());
    }
    let taints = node.taints.iter();
    let mut taints = taints.filter(|taint| taint.is_of_state() && taint.repels());
    let taint = taints.next()?;
    Some(format!("their state keeps pods off (taint \"{taint}\")"))
}

/// An amount of a resource in words.
fn amount(resource: &str, amount: u64) -> String {
    let in_units = |unit: u64, name: &str| {
        let tenths = amount.saturating_mul(10).div_ceil(unit);
        match (tenths / 10, tenths % 10) {
            (whole, 0) => format!("{whole} {name}"),
            (whole, tenth) => format!("{whole}.{tenth} {name}"),
        }
    };
    match resource {
        "cpu" if amount.is_multiple_of(1000) => format!("{} CPUs", amount / 1000),
        "cpu" => format!("{amount}m of CPU"),
        "memory" | "ephemeral-storage" if amount >= 1 << 30 => {
            format!("{} of {resource}", in_units(1 << 30, "GiB"))
        }
        "memory" | "ephemeral-storage" => format!("{} of {resource}", in_units(1 << 20, "MiB")),
        PODS => "a place among its pods".to_owned(),
        _ => format!("{amount} {resource}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::SlotResource;
    use crate::node::Taint;

    fn node() -> NodeFacts {
        NodeFacts {
            name: "n1".into(),
            ready: true,
            labels: [("zone".to_owned(), "a".to_owned())].into(),
            allocatable: [
                ("cpu", 8000),
                ("memory", 32 << 30),
                ("pods", 2),
                ("nvidia.com/gpu", 8),
            ]
            .map(|(name, amount)| (name.to_owned(), amount))
            .into(),
            ..NodeFacts::default()
        }
    }

    fn task(resources: &Value) -> Value {
        let container = json!({"name": "determined-container", "resources": resources});
        json!({"spec": {"containers": [container]}})
    }

    #[test]
    fn what_decides_nothing_is_no_demand() {
        for (pod_spec, expected) in [
            (json!({}), None),
            (json!(null), None),
            (
                json!({"metadata": {"labels": {"a": "b"}}, "spec": {"priorityClassName": "x"}}),
                None,
            ),
            (
                json!({"spec": {"node_selector": {"zone": "b"}, "nodeName": "", "volumes": [{"name": "v"}]}}),
                Some(json!({"spec": {"nodeSelector": {"zone": "b"}}})),
            ),
            (
                json!({"spec": {"affinity": {"podAffinity": {"x": 1}, "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [1]}}}}}),
                Some(
                    json!({"spec": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [1]}}}}}),
                ),
            ),
            (
                task(&json!({"requests": {"memory": "1Gi"}})),
                Some(json!({"spec": {"containers": [
                    {"resources": {"requests": {"memory": "1Gi"}}, "restartPolicy": null}]}})),
            ),
        ] {
            assert_eq!(demands(&pod_spec), expected, "{pod_spec}");
        }
    }

    #[test]
    fn what_decides_beside_demands_is_known() {
        let spec = |spec: Value| json!({"spec": spec});
        for (pod_spec, expected) in [
            (json!(null), true),
            (
                spec(
                    json!({"nodeSelector": {"a": "b"}, "volumes": [{"name": "v", "emptyDir": {}}]}),
                ),
                true,
            ),
            (spec(json!({"affinity": {"nodeAffinity": {}}})), true),
            (spec(json!({"schedulerName": "nope"})), false),
            (spec(json!({"schedulingGates": [{"name": "g"}]})), false),
            (spec(json!({"affinity": {"podAntiAffinity": {}}})), false),
            (
                spec(
                    json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}),
                ),
                false,
            ),
            (
                spec(json!({"containers": [{"name": "c", "ports": [{"hostPort": 80}]}]})),
                false,
            ),
            (spec(json!({"a_new_field": 1})), false),
        ] {
            assert_eq!(demands_everything(&pod_spec), expected, "{pod_spec}");
        }
        let many: Vec<Value> = (0..1_000)
            .map(|n| json!({"key": format!("taint-{n}")}))
            .collect();
        let large = spec(json!({"tolerations": many}));
        assert_eq!((demands(&large), demands_everything(&large)), (None, false));
    }

    #[expect(clippy::too_many_lines, reason = "one table of scenarios")]
    #[test]
    fn a_node_lacks_what_it_does_not_have_or_has_given_away() {
        let extended = |name: &str| SlotResource::Extended(name.to_owned());
        let of_pools = [("small".to_owned(), extended("example.com/mig"))].into();
        let slots = SlotResources::new(extended("nvidia.com/gpu"), of_pools);
        let used: Resources = [("memory".to_owned(), 30 << 30), ("pods".to_owned(), 1)].into();
        let memory = |amount: &str| task(&json!({"requests": {"memory": amount}}));
        let taint = |key: &str| Taint {
            key: key.into(),
            value: "x".into(),
            effect: "NoSchedule".into(),
        };
        let with = |change: fn(&mut NodeFacts)| {
            let mut node = node();
            change(&mut node);
            node
        };
        let mut tainted = node();
        tainted.taints = vec![taint("team")];
        let mut pressed = node();
        pressed.taints = vec![taint("node.kubernetes.io/memory-pressure")];
        for (pod_spec, node, expected) in [
            (json!({}), node(), None),
            (memory("2Gi"), node(), None),
            (
                memory("2049Mi"),
                node(),
                Some((false, "a pod needs 2.1 GiB of memory, and less is free")),
            ),
            (
                memory("64Gi"),
                node(),
                Some((true, "a pod needs 64 GiB of memory, and less exists there")),
            ),
            (
                task(&json!({"limits": {"example.com/fpga": 1}})),
                node(),
                Some((
                    true,
                    "a pod needs 1 example.com/fpga, and less exists there",
                )),
            ),
            (
                task(&json!({"limits": {"nvidia.com/gpu": 64}})),
                node(),
                None,
            ),
            // Pods are given none of these but for slots.
            (
                task(
                    &json!({"limits": {"example.com/mig": 64, "deviceclass.resource.kubernetes.io/gpu.example.com": 1}}),
                ),
                node(),
                None,
            ),
            (
                json!({"spec": {"nodeSelector": {"zone": "b"}}}),
                node(),
                Some((true, "label \"zone\" is not \"b\"")),
            ),
            (
                json!({"spec": {"nodeName": "n2"}}),
                node(),
                Some((true, "the task names node \"n2\"")),
            ),
            (
                json!({}),
                tainted.clone(),
                Some((true, "taint \"team=x:NoSchedule\" is not tolerated")),
            ),
            (
                json!({"spec": {"tolerations": [{"key": "team", "operator": "Exists"}]}}),
                tainted,
                None,
            ),
            (
                json!({}),
                pressed,
                Some((
                    false,
                    "their state keeps pods off (taint \"node.kubernetes.io/memory-pressure=x:NoSchedule\")",
                )),
            ),
            (
                json!({}),
                with(|node| node.unschedulable = true),
                Some((false, "an administrator has cordoned them")),
            ),
            (
                json!({}),
                with(|node| node.ready = false),
                Some((false, "their kubelet does not report that it is ready")),
            ),
            (
                json!({}),
                with(|node| {
                    node.allocatable.insert("pods".into(), 1);
                }),
                Some((
                    false,
                    "a pod needs a place among its pods, and less is free",
                )),
            ),
            (
                json!({}),
                with(|node| {
                    node.allocatable.remove("pods");
                }),
                None,
            ),
        ] {
            let slots = (&slots, "default");
            let misfit = misfit(demands(&pod_spec).as_ref(), &node, &used, slots);
            let found = misfit.as_ref().map(|it| (it.lasts, it.reason.as_str()));
            assert_eq!(found, expected, "{pod_spec}");
        }
    }
}
