//! What the API describes of itself: its version, groups and kinds.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::target::{KNOWN, KnownKind};

/// The answer for a path of discovery; `None` for any other.
pub(crate) fn answer(path: &str) -> Option<Value> {
    let steps: Vec<&str> = path.split('/').filter(|step| !step.is_empty()).collect();
    match steps.as_slice() {
        ["version"] => Some(json!({
            "major": "1",
            "minor": "36",
            "gitVersion": "v1.36.0",
            "gitCommit": "0000000000000000000000000000000000000000",
            "gitTreeState": "clean",
            "buildDate": "2026-04-22T00:00:00Z",
            "goVersion": "go1.26.0",
            "compiler": "gc",
            "platform": "linux/amd64",
        })),
        ["healthz" | "livez" | "readyz"] => Some(json!("ok")),
        ["api"] => Some(json!({
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [],
        })),
        ["apis"] => Some(groups()),
        ["api", version] => resources("", version),
        ["apis", group, version] => resources(group, version),
        _ => None,
    }
}

/// The answer about a version of a group that has custom resources alone; `None` if it has none of them.
pub(crate) fn custom(path: &str, custom: &[[String; 3]]) -> Option<Value> {
    let of = path.trim_matches('/').strip_prefix("apis/")?;
    let resources = custom
        .iter()
        .filter(|[group, version, _]| of == format!("{group}/{version}"));
    let resources: Vec<Value> = resources
        .map(|[_, _, plural]| {
            json!({
                "name": plural, "singularName": "", "namespaced": true, "kind": plural,
                "verbs": ["create", "delete", "get", "list", "patch", "watch"],
            })
        })
        .collect();
    (!resources.is_empty()).then(|| {
        json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": of, "resources": resources,
        })
    })
}

fn groups() -> Value {
    let groups: BTreeSet<(&str, &str)> = KNOWN
        .iter()
        .filter(|known| !known.group.is_empty())
        .map(|known| (known.group, known.version))
        .collect();
    let groups: Vec<Value> = groups
        .into_iter()
        .map(|(group, version)| {
            let version = json!({"groupVersion": format!("{group}/{version}"), "version": version});
            json!({"name": group, "versions": [version], "preferredVersion": version})
        })
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

fn resources(group: &str, version: &str) -> Option<Value> {
    let of_group = |known: &&KnownKind| known.group == group && known.version == version;
    let resources: Vec<Value> = KNOWN
        .iter()
        .filter(of_group)
        .map(|known| {
            json!({
                "name": known.plural,
                "singularName": known.kind.to_lowercase(),
                "namespaced": known.namespaced,
                "kind": known.kind,
                "verbs": [
                    "create", "delete", "deletecollection", "get", "list", "patch", "update", "watch",
                ],
            })
        })
        .collect();
    let group_version = match group {
        "" => version.to_owned(),
        group => format!("{group}/{version}"),
    };
    (!resources.is_empty()).then(|| {
        json!({
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": group_version,
            "resources": resources,
        })
    })
}
