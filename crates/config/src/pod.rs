//! Pod specs: which fields a user may not set, and slips that are well known: `docs/contract/configuration.md`,
//! "Pod specs".
//!
//! Everything else about a pod spec is kept as it was written; giving it a meaning is the business of the Kubernetes
//! resource manager.

use serde_json::{Value, json};

use crate::errors::ErrorCode;
use crate::schema::{Findings, Kind, Segment, Special, Walk, special};
use crate::yaml::{Node, Tree};

/// A pod, as a user customises it.
pub(crate) static POD: Special = special("Kubernetes pod", schema, check).named("pod");

/// The container that the system owns.
const TASK_CONTAINER: &str = "determined-container";
/// A reserved init container.
const INIT_CONTAINER: &str = "determined-init-container";

/// Fields of the task's container that the system sets, with advice.
const OWNED: &[(&str, &str)] = &[
    ("image", "use \"environment.image\""),
    ("imagePullPolicy", "use \"environment.force_pull_image\""),
    ("command", "use \"entrypoint\""),
    ("args", "use \"entrypoint\""),
    ("workingDir", "the working directory is set by the system"),
    ("ports", "use \"environment.proxy_ports\""),
    ("livenessProbe", "the system watches the task itself"),
    ("readinessProbe", "the system watches the task itself"),
    ("startupProbe", "the system watches the task itself"),
    ("lifecycle", "use a startup hook"),
    (
        "terminationMessagePath",
        "the system reports how the task ended",
    ),
    (
        "terminationMessagePolicy",
        "the system reports how the task ended",
    ),
];

/// Keys of a pod.
const POD_KEYS: &[&str] = &["apiVersion", "kind", "metadata", "spec", "status"];

/// Keys of a pod's `spec`. Kubernetes adds some from time to time, so that others are only remarked upon.
const SPEC_KEYS: &[&str] = &[
    "activeDeadlineSeconds",
    "affinity",
    "automountServiceAccountToken",
    "containers",
    "dnsConfig",
    "dnsPolicy",
    "enableServiceLinks",
    "ephemeralContainers",
    "hostAliases",
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "hostUsers",
    "hostname",
    "hostnameOverride",
    "imagePullSecrets",
    "initContainers",
    "nodeName",
    "nodeSelector",
    "os",
    "overhead",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "readinessGates",
    "resourceClaims",
    "resources",
    "restartPolicy",
    "runtimeClassName",
    "schedulerName",
    "schedulingGates",
    "securityContext",
    "serviceAccount",
    "serviceAccountName",
    "setHostnameAsFQDN",
    "shareProcessNamespace",
    "subdomain",
    "terminationGracePeriodSeconds",
    "tolerations",
    "topologySpreadConstraints",
    "volumes",
];

/// Keys of a container that no `spec` has: given there, they lost their indentation.
const CONTAINER_KEYS: &[&str] = &[
    "args",
    "command",
    "env",
    "envFrom",
    "image",
    "imagePullPolicy",
    "lifecycle",
    "livenessProbe",
    "ports",
    "readinessProbe",
    "startupProbe",
    "volumeDevices",
    "volumeMounts",
    "workingDir",
];

/// All keys of a container.
const ALL_CONTAINER_KEYS: &[&str] = &[
    "args",
    "command",
    "env",
    "envFrom",
    "image",
    "imagePullPolicy",
    "lifecycle",
    "livenessProbe",
    "name",
    "ports",
    "readinessProbe",
    "resizePolicy",
    "resources",
    "restartPolicy",
    "restartPolicyRules",
    "securityContext",
    "startupProbe",
    "stdin",
    "stdinOnce",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "tty",
    "volumeDevices",
    "volumeMounts",
    "workingDir",
];

/// Keys of a pod, its metadata, its spec and its containers whose values are maps. No key is a map in one of them and
/// something else in another.
const MAPS: &[&str] = &[
    "affinity",
    "annotations",
    "dnsConfig",
    "labels",
    "lifecycle",
    "limits",
    "livenessProbe",
    "nodeSelector",
    "os",
    "overhead",
    "readinessProbe",
    "requests",
    "resources",
    "securityContext",
    "startupProbe",
];

/// The same for lists. `containers`, `initContainers` and `volumes` are looked at element by element.
const LISTS: &[&str] = &[
    "args",
    "command",
    "env",
    "envFrom",
    "ephemeralContainers",
    "hostAliases",
    "imagePullSecrets",
    "ports",
    "readinessGates",
    "resizePolicy",
    "resourceClaims",
    "schedulingGates",
    "tolerations",
    "topologySpreadConstraints",
    "volumeDevices",
    "volumeMounts",
];

/// Sources of a volume whose settings have no name of their own: a `name` in there is the volume's.
const NAMELESS_SOURCES: &[&str] = &["emptyDir", "hostPath", "nfs"];

fn schema() -> Value {
    json!({
        "type": "object",
        "description": "A Kubernetes pod; what the system owns cannot be set.",
        "properties": {
            "apiVersion": {"const": "v1"},
            "kind": {"const": "Pod"},
            "metadata": {"type": ["object", "null"]},
            "spec": {"type": ["object", "null"]},
            "status": {},
        },
        "patternProperties": {"^\\$": {}},
        "additionalProperties": false,
    })
}

/// Checks the value of `pod_spec`.
fn check(walk: &mut Walk, node: &mut Node) {
    let findings = &mut *walk.findings;
    if node.members().is_none() {
        return findings.mismatch(node, "a Kubernetes pod");
    }
    directives(findings, node);
    for (key, expected) in [("apiVersion", "v1"), ("kind", "Pod")] {
        if let Some(given) = node.get(key).filter(|given| given.text() != Some(expected)) {
            let message = format!(
                "must be \"{expected}\", not {}",
                findings.place.found(given)
            );
            findings.error_in(key, given.at.as_ref(), message);
        }
    }
    for key in ["name", "name_space"] {
        forbid(findings, node, key, "the system names its pods");
    }
    pod_keys(findings, node);
    if let Some(metadata) = map_at(findings, node, "metadata") {
        findings.within("metadata", |findings| {
            shapes(findings, metadata);
            forbid(findings, metadata, "name", "the system names its pods");
            forbid(
                findings,
                metadata,
                "namespace",
                "bind the workspace or the pool to a namespace",
            );
        });
    }
    if let Some(spec) = map_at(findings, node, "spec") {
        findings.within("spec", |findings| check_spec(findings, spec));
    }
}

/// Members that must be maps or lists and are something else. Absent and null are no error: a later layer fills them.
fn shapes(findings: &mut Findings, node: &Node) {
    for (key, member) in node.members().into_iter().flatten() {
        let is = |known: &&&str| **known == key.as_str() || snake(known) == *key;
        let expected = match &member.tree {
            Tree::Null => continue,
            Tree::Map(_) if LISTS.iter().any(|known| is(&known)) => "a list",
            Tree::List(_) if MAPS.iter().any(|known| is(&known)) => "a map",
            Tree::Map(_) | Tree::List(_) => continue,
            _ if LISTS.iter().any(|known| is(&known)) => "a list",
            _ if MAPS.iter().any(|known| is(&known)) => "a map",
            _ => continue,
        };
        findings.within(key, |findings| findings.mismatch(member, expected));
    }
}

/// The member `key`, which must be a map.
fn map_at<'n>(findings: &mut Findings, node: &'n Node, key: &str) -> Option<&'n Node> {
    let member = node.get(key)?;
    if member.members().is_none() {
        findings.within(key, |findings| findings.mismatch(member, "a map"));
        return None;
    }
    Some(member)
}

fn pod_keys(findings: &mut Findings, node: &Node) {
    for (key, member) in node.members().into_iter().flatten() {
        let known = POD_KEYS.contains(&key.as_str())
            || ["name", "name_space"].contains(&key.as_str())
            || key.starts_with('$')
            || matches!(member.tree, Tree::Null);
        if known {
            continue;
        }
        let message = ErrorCode::UnknownKey.message("is not a known key of a pod; known are \"apiVersion\", \"kind\", \"metadata\", \"spec\"");
        let hint = if SPEC_KEYS.contains(&key.as_str()) && !is_ours(findings, key, member) {
            findings.belongs_below(
                key,
                &[Segment::Key("spec".into()), Segment::Key(key.clone())],
            );
            Some(format!(
                "did you mean \"{}.spec.{key}\"?",
                findings.place.path()
            ))
        } else if let Some(place) = findings.place.known_in(findings.document, key) {
            findings.belongs_at(key, place);
            Some(format!("did you mean \"{place}\"?"))
        } else if findings.document.root.field(key).is_some() {
            findings.belongs_at(key, key);
            Some(format!("did you mean \"{key}\" at the top?"))
        } else {
            None
        };
        match hint {
            Some(hint) => findings.error_hint_in(key, member.at.as_ref(), message, hint),
            None => findings.error_in(key, member.at.as_ref(), message),
        }
    }
}

/// Whether a key that pods and we have is meant as ours: `resources` with a pool or slots in it.
fn is_ours(findings: &Findings, key: &str, node: &Node) -> bool {
    let own = findings.document.root.field(key).map(|field| field.kind);
    let Some(Kind::Section(section)) = own else {
        return false;
    };
    node.members()
        .is_some_and(|members| members.keys().any(|key| section.field(key).is_some()))
}

fn check_spec(findings: &mut Findings, spec: &Node) {
    forbid(
        findings,
        spec,
        "hostNetwork",
        "set \"task_container_defaults.network_mode\" to \"host\" in the master's configuration",
    );
    if let Some(policy) = given(spec, "restartPolicy")
        && policy.text() != Some("Never")
    {
        findings.warn_in(
            "restartPolicy",
            policy.at.as_ref(),
            "is overridden by \"Never\": the system restarts trials itself",
        );
    }
    spec_keys(findings, spec);
    shapes(findings, spec);
    if let Some(terms) = spec.find("affinity.nodeSelectorTerms") {
        findings.within("affinity", |findings| {
            findings.error_hint_in(
                "nodeSelectorTerms",
                terms.at.as_ref(),
                ErrorCode::UnknownKey.message("is not a key of an affinity"),
                "use \"nodeSelector\", or \"affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms\"",
            );
        });
    }
    for list in ["containers", "initContainers"] {
        each(findings, spec, list, |findings, item| {
            container(findings, item, list);
        });
    }
    each(findings, spec, "volumes", volume);
}

/// Looks at each map of a list.
fn each(findings: &mut Findings, node: &Node, list: &str, look: impl Fn(&mut Findings, &Node)) {
    let Some(found) = given(node, list) else {
        return;
    };
    findings.within(list, |findings| {
        let Tree::List(items) = &found.tree else {
            return findings.mismatch(found, "a list");
        };
        for (index, item) in items.iter().enumerate() {
            findings.within(index, |findings| {
                if item.members().is_none() {
                    return findings.mismatch(item, "a map");
                }
                let is_directive = item
                    .members()
                    .is_some_and(|members| members.keys().all(|key| key.starts_with('$')));
                if item.get("name").is_none() && !is_directive {
                    findings.error_in(
                        "name",
                        item.at.as_ref(),
                        ErrorCode::Missing.message("is required"),
                    );
                }
                look(findings, item);
            });
        }
    });
}

fn spec_keys(findings: &mut Findings, spec: &Node) {
    for (key, member) in spec.members().into_iter().flatten() {
        let name = key.as_str();
        if SPEC_KEYS.contains(&name) || name.starts_with('$') || matches!(member.tree, Tree::Null) {
            continue;
        }
        if CONTAINER_KEYS.contains(&name) {
            findings.belongs_below(
                name,
                &[
                    Segment::Key("containers".into()),
                    Segment::Named(TASK_CONTAINER),
                    Segment::Key(name.to_owned()),
                ],
            );
            findings.error_hint_in(
                name,
                member.at.as_ref(),
                ErrorCode::UnknownKey.message("is a key of a container, not of a pod's spec"),
                format!(
                    "put it into an element of \"containers\" with the name \"{TASK_CONTAINER}\""
                ),
            );
        } else if let Some(camel) = SPEC_KEYS.iter().find(|known| snake(known) == name) {
            findings.warn_in(
                name,
                member.at.as_ref(),
                format!("is written \"{camel}\" by Kubernetes"),
            );
        } else {
            findings.warn_in(
                name,
                member.at.as_ref(),
                "is not a key of a pod's spec that is known here; Kubernetes may refuse it",
            );
        }
    }
}

fn container_keys(findings: &mut Findings, node: &Node) {
    for (key, member) in node.members().into_iter().flatten() {
        let name = key.as_str();
        let known = ALL_CONTAINER_KEYS.contains(&name) || name.starts_with('$');
        if known || matches!(member.tree, Tree::Null) {
            continue;
        }
        if let Some(camel) = ALL_CONTAINER_KEYS.iter().find(|known| snake(known) == name) {
            // Those that no configuration may set are refused under either name.
            if !OWNED.iter().any(|(owned, _)| owned == camel) {
                let message = format!("is written \"{camel}\" by Kubernetes");
                findings.warn_in(name, member.at.as_ref(), message);
            }
        } else if SPEC_KEYS.contains(&name) {
            findings.error_hint_in(
                name,
                member.at.as_ref(),
                ErrorCode::UnknownKey.message("is a key of a pod's spec, not of a container"),
                format!("put it beside \"containers\", as \"spec.{name}\""),
            );
        } else {
            findings.warn_in(
                name,
                member.at.as_ref(),
                "is not a key of a container that is known here; Kubernetes may refuse it",
            );
        }
    }
}

/// A name that slipped into the volume's source.
fn volume(findings: &mut Findings, node: &Node) {
    for source in NAMELESS_SOURCES {
        if let Some(name) = node.get(source).and_then(|source| source.get("name")) {
            findings.within(source, |findings| {
                findings.belongs_above("name");
                findings.error_hint_in(
                    "name",
                    name.at.as_ref(),
                    ErrorCode::UnknownKey.message("is a key of the volume, not of its source"),
                    format!("indent it like \"{source}\""),
                );
            });
        }
    }
}

fn container(findings: &mut Findings, node: &Node, list: &str) {
    container_keys(findings, node);
    shapes(findings, node);
    if let Some(resources) = node.get("resources") {
        findings.within("resources", |findings| shapes(findings, resources));
    }
    let name = node.get("name").and_then(Node::text);
    let reserved = match name {
        Some(INIT_CONTAINER) => true,
        Some(TASK_CONTAINER) => list == "initContainers",
        _ => false,
    };
    if reserved {
        let at = node.get("name").and_then(|name| name.at.clone());
        let message = format!("\"{}\" is reserved", name.unwrap_or_default());
        return findings.error_in("name", at.as_ref(), message);
    }
    if name != Some(TASK_CONTAINER) {
        return;
    }
    for (key, advice) in OWNED {
        forbid(findings, node, key, advice);
    }
    if let Some(context) = given(node, "securityContext") {
        findings.within("securityContext", |findings| {
            for key in ["runAsUser", "runAsGroup"] {
                forbid(
                    findings,
                    context,
                    key,
                    "use \"det user link-with-agent-user\"",
                );
            }
        });
    }
    if let Some(resources) = node.get("resources") {
        let advice = format!("use \"{}\"", findings.document.slots_key);
        findings.within("resources", |findings| {
            for kind in ["requests", "limits"] {
                if let Some(amounts) = resources.get(kind) {
                    findings.within(kind, |findings| {
                        for gpu in ["nvidia.com/gpu", "amd.com/gpu"] {
                            forbid(findings, amounts, gpu, &advice);
                        }
                    });
                }
            }
        });
    }
}

/// The directives of a strategic merge, wherever they are.
fn directives(findings: &mut Findings, node: &Node) {
    match &node.tree {
        Tree::List(items) => {
            for (index, item) in items.iter().enumerate() {
                findings.within(index, |findings| directives(findings, item));
            }
        }
        Tree::Map(members) => {
            for (key, member) in members {
                findings.within(key, |findings| directive(findings, key, member));
            }
        }
        _ => {}
    }
}

fn directive(findings: &mut Findings, key: &str, node: &Node) {
    if key == "$patch" {
        if !matches!(node.text(), Some("replace" | "merge" | "delete")) {
            let message = format!(
                "must be \"replace\", \"merge\" or \"delete\", not {}",
                findings.place.found(node)
            );
            findings.error(node.at.as_ref(), message);
        }
    } else if key == "$retainKeys"
        || key.starts_with("$deleteFromPrimitiveList/")
        || key.starts_with("$setElementOrder/")
    {
        if !matches!(node.tree, Tree::List(_)) {
            findings.mismatch(node, "a list");
        }
    } else if key.starts_with('$') {
        findings.error(
            node.at.as_ref(),
            "is not a directive; known are \"$patch\", \"$retainKeys\", \"$deleteFromPrimitiveList/KEY\", \"$setElementOrder/KEY\"",
        );
    } else {
        directives(findings, node);
    }
}

/// The member `key`, in Kubernetes' camel case or in snake case.
fn given<'n>(node: &'n Node, key: &str) -> Option<&'n Node> {
    node.get(key).or_else(|| node.get(&snake(key)))
}

fn snake(key: &str) -> String {
    let mut out = String::new();
    for c in key.chars() {
        if c.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

fn forbid(findings: &mut Findings, node: &Node, key: &str, advice: &str) {
    let other = snake(key);
    let spellings = if other == key {
        vec![key.to_owned()]
    } else {
        vec![key.to_owned(), other]
    };
    for spelling in spellings {
        if let Some(member) = node.get(&spelling) {
            findings.error_hint_in(
                &spelling,
                member.at.as_ref(),
                "cannot be set in a pod spec",
                advice,
            );
        }
    }
}
