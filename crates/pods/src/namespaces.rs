//! Namespaces that are made for workspaces, and quotas in namespaces.

use std::collections::BTreeMap;

use det_ids::{ClusterId, WorkspaceId};
use serde_json::{Value, json};

use crate::facts::SlotResource;
use crate::names::{CLUSTER_LABEL, SELECTOR_LABEL, label_value};
use crate::quantity::quantity;

/// Label of a namespace that was made, and of its quota, with the number of its workspace.
const WORKSPACE_LABEL: &str = "determined.ai/workspace_id";
/// Characters of the parts of the name of a namespace that is made: 63 with the hyphens between them.
const OF_WORKSPACE: usize = 31;
const OF_RELEASE: usize = 19;
const OF_CLUSTER: usize = 4;
const OF_NUMBER: usize = 6;

/// The name of the namespace that is made for a workspace: made of its name, the namespace of the installation, the installation, and
/// the workspace's number, by which no two workspaces of an installation have the same.
pub fn made_namespace_name(
    (workspace, id): (&str, WorkspaceId),
    release_namespace: &str,
    cluster_id: &ClusterId,
) -> String {
    let workspace = match plain(workspace, OF_WORKSPACE) {
        name if name.is_empty() => "workspace".to_owned(),
        name => name,
    };
    let number = id.to_string();
    let number = &number[number.len().saturating_sub(OF_NUMBER)..];
    let parts = [
        workspace,
        plain(release_namespace, OF_RELEASE),
        plain(cluster_id.as_str(), OF_CLUSTER),
        number.to_owned(),
    ];
    let parts: Vec<&str> = parts
        .iter()
        .map(String::as_str)
        .filter(|part| !part.is_empty())
        .collect();
    parts.join("-")
}

/// What of a text the label of a name may have, in small letters, at most so many characters.
fn plain(text: &str, most: usize) -> String {
    let lower = text.chars().map(|c| c.to_ascii_lowercase());
    let kept = lower.filter(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == '-');
    let kept: String = kept.skip_while(|c| *c == '-').take(most).collect();
    kept.trim_end_matches('-').to_owned()
}

fn labels(cluster_id: &ClusterId, namespace: &str, workspace: WorkspaceId) -> Value {
    json!({
        SELECTOR_LABEL: label_value(namespace),
        CLUSTER_LABEL: label_value(cluster_id.as_str()),
        WORKSPACE_LABEL: workspace.to_string(),
    })
}

/// A namespace that is made for a workspace.
pub fn namespace_object(cluster_id: &ClusterId, name: &str, workspace: WorkspaceId) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": labels(cluster_id, name, workspace)},
    })
}

/// The quota of a namespace that is made; `None` = there is none for slots of this kind: one for processors would refuse
/// every pod that names no processors.
pub fn quota_object(
    cluster_id: &ClusterId,
    (namespace, workspace): (&str, WorkspaceId),
    slots: &SlotResource,
    most: u32,
) -> Option<Value> {
    let key = match slots {
        SlotResource::Extended(resource) => format!("requests.{resource}"),
        SlotResource::Devices(_) => slots.name().to_owned(),
        SlotResource::Cpu { .. } => return None,
    };
    Some(json!({
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {
            "name": quota_name(namespace),
            "namespace": namespace,
            "labels": labels(cluster_id, namespace, workspace),
        },
        "spec": {"hard": {key: most.to_string()}},
    }))
}

/// The name of the quota of a namespace that is made.
pub fn quota_name(namespace: &str) -> String {
    format!("{namespace}-quota")
}

/// Whether a namespace, or a quota, was made by this installation.
pub fn is_made(object: &Value, cluster_id: &ClusterId) -> bool {
    let labels = object.pointer("/metadata/labels");
    let label = |key: &str| labels.and_then(|labels| labels.get(key)?.as_str());
    label(CLUSTER_LABEL) == Some(label_value(cluster_id.as_str()).as_str())
        && label(WORKSPACE_LABEL).is_some()
}

/// Whether a namespace is being deleted.
pub fn is_terminating(namespace: &Value) -> bool {
    let deleted = namespace.pointer("/metadata/deletionTimestamp");
    let phase = namespace.pointer("/status/phase").and_then(Value::as_str);
    deleted.is_some_and(|at| !at.is_null()) || phase == Some("Terminating")
}

/// How many slots a quota allows; `None` = it is not about slots, or not about all pods.
pub fn quota_slots(quota: &Value, slots: &SlotResource) -> Option<u32> {
    let spec = quota.get("spec")?;
    let is_set = |key: &str| match spec.get(key) {
        None | Some(Value::Null) => false,
        Some(Value::Array(scopes)) => !scopes.is_empty(),
        Some(_) => true,
    };
    if is_set("scopes") || is_set("scopeSelector") {
        return None;
    }
    let hard = spec.get("hard")?;
    let resource = slots.name();
    let keys = [
        format!("requests.{resource}"),
        format!("limits.{resource}"),
        resource.to_owned(),
    ];
    let allowed = keys.iter().filter_map(|key| {
        let units = quantity(resource, hard.get(key)?)?;
        Some(units / slots.per_slot().max(1))
    });
    let least = allowed.min()?;
    Some(u32::try_from(least).unwrap_or(u32::MAX))
}

/// The fewest slots that quotas allow in each namespace. Each is given with its namespace.
pub fn least_slots<'a>(
    quotas: impl Iterator<Item = (&'a str, &'a Value)>,
    slots: &SlotResource,
) -> BTreeMap<String, u32> {
    let mut least: BTreeMap<String, u32> = BTreeMap::new();
    for (namespace, quota) in quotas {
        if let Some(most) = quota_slots(quota, slots) {
            let known = least.entry(namespace.to_owned()).or_insert(most);
            *known = most.min(*known);
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use det_rm::namespace_fault;

    use super::*;
    use crate::facts::DeviceClass;

    fn cluster() -> ClusterId {
        "3f2a9c1e-0000-4000-8000-000000000000".into()
    }

    fn gpus() -> SlotResource {
        SlotResource::Extended("nvidia.com/gpu".into())
    }

    #[test]
    fn a_namespace_that_is_made_is_named_for_its_workspace() {
        let long = "A Very Long Name of Seismology and Oceanography";
        for (workspace, id, release, expected) in [
            ("vision", 7, "determined", "vision-determined-3f2a-7"),
            ("Vision Team #2", 8, "ml", "visionteam2-ml-3f2a-8"),
            ("--", 9, "ml", "workspace-ml-3f2a-9"),
            ("研究", 10, "", "workspace-3f2a-10"),
            (
                long,
                1_234_567,
                "platform-of-the-institute",
                "averylongnameofseismologyandoce-platform-of-the-ins-3f2a-234567",
            ),
        ] {
            let name = made_namespace_name((workspace, WorkspaceId(id)), release, &cluster());
            assert_eq!(name, expected);
            assert_eq!(namespace_fault(&name), None, "{name}");
        }
    }

    #[test]
    fn what_is_made_is_known_again_by_its_installation() {
        let made = namespace_object(&cluster(), "vision", WorkspaceId(7));
        assert!(is_made(&made, &cluster()));
        assert!(!is_made(&made, &"another".into()));
        assert_eq!(made["metadata"]["labels"]["determined"], "vision");
        let foreign = json!({"metadata": {"labels": {"determined": "vision"}}});
        assert!(!is_made(&foreign, &cluster()));
    }

    #[test]
    fn quotas_count_in_slots() {
        let own = quota_object(&cluster(), ("vision", WorkspaceId(7)), &gpus(), 4);
        let own = own.unwrap_or_default();
        assert_eq!(own["metadata"]["name"], "vision-quota");
        assert_eq!(quota_slots(&own, &gpus()), Some(4));
        let of = |spec: Value| json!({"spec": spec});
        let limits = of(json!({"hard": {"limits.nvidia.com/gpu": "2", "pods": "9"}}));
        assert_eq!(quota_slots(&limits, &gpus()), Some(2));
        let pods = of(json!({"hard": {"pods": "9"}}));
        assert_eq!(quota_slots(&pods, &gpus()), None);
        let hard = json!({"requests.nvidia.com/gpu": "1"});
        let scoped = of(json!({"scopes": ["BestEffort"], "hard": hard}));
        assert_eq!(quota_slots(&scoped, &gpus()), None);
        let halves = SlotResource::Cpu { millis: 1500 };
        let cpus = of(json!({"hard": {"requests.cpu": "10"}}));
        assert_eq!(quota_slots(&cpus, &halves), Some(6));
        assert_eq!(
            quota_object(&cluster(), ("vision", WorkspaceId(7)), &halves, 4),
            None
        );
        let claimed = SlotResource::Devices(DeviceClass::new("gpu.example.com", None));
        let own_of_devices = quota_object(&cluster(), ("vision", WorkspaceId(7)), &claimed, 4);
        let own_of_devices = own_of_devices.unwrap_or_default();
        assert_eq!(
            own_of_devices["spec"]["hard"],
            json!({"gpu.example.com.deviceclass.resource.k8s.io/devices": "4"})
        );
        assert_eq!(quota_slots(&own_of_devices, &claimed), Some(4));
        let quotas = [("vision", &own), ("vision", &limits), ("other", &own)];
        let least = least_slots(quotas.into_iter(), &gpus());
        assert_eq!(least["vision"], 2);
        assert_eq!(least["other"], 4);
    }
}
