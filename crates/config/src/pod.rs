//! Pod specs: which fields a user may not set, and slips that are well known: `docs/contract/configuration.md`,
//! "Pod specs".
//!
//! Everything else about a pod spec is kept as it was written; giving it a meaning is the business of the Kubernetes
//! resource manager.

use det_podspec::{Type, is_snake_case_of, type_named};
use serde_json::{Value, json};

use crate::errors::ErrorCode;
use crate::schema::{Findings, Kind, Segment, Special, Walk, special};
use crate::yaml::{Node, Tree};

mod directives;
mod shape;

/// A pod, as a user customises it.
pub(crate) static POD: Special = special("Kubernetes pod", schema, check).named("pod");

/// The container that the system owns.
const TASK_CONTAINER: &str = "determined-container";
/// Name of the init container that prepares the task; no other may have it.
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

/// The type of a pod's `spec`, as Kubernetes calls it.
const SPEC: &str = "PodSpec";
/// Name of the schema type of containers.
const CONTAINER: &str = "Container";

/// Labels and annotations that the system puts on what it makes, besides those below `determined.ai/`.
const SYSTEMS_LABELS: &[&str] = &["determined", "determined-system"];
/// How the names of the system's volumes begin.
const SYSTEMS_VOLUMES: &[&str] = &[
    "determined-run",
    "determined-secret",
    "det-shm-volume",
    "det-host-volume-",
];

/// Keys of a `spec` that have no effect, and what does.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    (
        "nodeName",
        "the system chooses the node; use \"nodeSelector\" or \"affinity\"",
    ),
    (
        "ephemeralContainers",
        "they are added to pods that run; use \"containers\"",
    ),
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

/// Checks the value of `pod_spec`, and spells its keys as Kubernetes does.
fn check(walk: &mut Walk, node: &mut Node) {
    let findings = &mut *walk.findings;
    if node.members().is_none() {
        return findings.mismatch(node, "a Kubernetes pod");
    }
    directives::check(findings, node);
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
        findings.within("metadata", |findings| check_metadata(findings, metadata));
    }
    if let Some(spec) = map_at(findings, node, "spec") {
        findings.within("spec", |findings| check_spec(findings, spec));
    }
    spell(node, det_podspec::pod());
}

/// Spells the known keys of a value of this type in camel case. A key that is given in both forms has the value of
/// Kubernetes' form.
fn spell(node: &mut Node, of: &Type) {
    match &mut node.tree {
        Tree::List(items) => items.iter_mut().for_each(|item| spell(item, of)),
        Tree::Map(members) => {
            for (key, mut member) in std::mem::take(members) {
                // Directives name keys behind a slash.
                let (directive, name) = match key.split_once('/') {
                    Some((directive, name)) if key.starts_with('$') => (Some(directive), name),
                    _ => (None, key.as_str()),
                };
                let Some(field) = of.field_spelled(name) else {
                    members.insert(key, member);
                    continue;
                };
                if let (None, Some(inner)) = (directive, field.shape.inner()) {
                    spell(&mut member, inner);
                }
                let spelled = match directive {
                    Some(directive) => format!("{directive}/{}", field.name),
                    None => field.name.to_owned(),
                };
                if spelled == key {
                    members.insert(spelled, member);
                } else {
                    members.entry(spelled).or_insert(member);
                }
            }
        }
        _ => {}
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
    let spec = type_named(SPEC);
    for (key, member) in node.members().into_iter().flatten() {
        let known = det_podspec::pod().field(key).is_some()
            || ["name", "name_space", "status"].contains(&key.as_str())
            || key.starts_with('$')
            || matches!(member.tree, Tree::Null);
        if known {
            continue;
        }
        let message = ErrorCode::UnknownKey.message("is not a known key of a pod; known are \"apiVersion\", \"kind\", \"metadata\", \"spec\"");
        let of_spec = spec.is_some_and(|spec| spec.field(key).is_some());
        let hint = if of_spec && !is_ours(findings, key, member) {
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

fn check_metadata(findings: &mut Findings, metadata: &Node) {
    shape::check(findings, metadata, "ObjectMeta");
    forbid(findings, metadata, "name", "the system names its pods");
    forbid(
        findings,
        metadata,
        "namespace",
        "bind the workspace or the pool to a namespace",
    );
    for list in ["labels", "annotations"] {
        let texts = metadata.get(list).and_then(Node::members);
        findings.within(list, |findings| {
            for (key, member) in texts.into_iter().flatten() {
                if key.starts_with("determined.ai/") || SYSTEMS_LABELS.contains(&key.as_str()) {
                    let message = "cannot be set in a pod spec: it is one of the system's";
                    findings.error_in(key, member.at.as_ref(), message);
                }
            }
        });
    }
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
    for (key, instead) in WITHOUT_EFFECT {
        if let Some(member) = given(spec, key) {
            let message = format!("has no effect: {instead}");
            findings.warn_in(key, member.at.as_ref(), message);
        }
    }
    shape::check(findings, spec, SPEC);
    affinity(findings, spec);
    for list in ["containers", "initContainers"] {
        each(findings, spec, list, |findings, item| {
            container(findings, item, list);
        });
    }
    each(findings, spec, "volumes", volume);
}

/// Terms of nodes that are given directly in `affinity`: as a map they are meant as a selector.
fn affinity(findings: &mut Findings, spec: &Node) {
    let Some(terms) = spec.find("affinity.nodeSelectorTerms") else {
        return;
    };
    let key = "nodeSelectorTerms";
    let is_selector = terms
        .members()
        .is_some_and(|members| members.values().all(|value| value.text().is_some()));
    findings.within("affinity", |findings| {
        if is_selector {
            findings.belongs_above_as(key, "nodeSelector");
        } else {
            let steps = [
                "nodeAffinity",
                "requiredDuringSchedulingIgnoredDuringExecution",
                key,
            ];
            findings.belongs_below(key, &steps.map(Segment::from));
        }
        findings.error_hint_in(
            key,
            terms.at.as_ref(),
            ErrorCode::UnknownKey.message("is not a key of an affinity"),
            "use \"nodeSelector\", or \"affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms\"",
        );
    });
}

/// Looks at each map of a list.
fn each(findings: &mut Findings, node: &Node, list: &str, look: impl Fn(&mut Findings, &Node)) {
    let Some(Tree::List(items)) = given(node, list).map(|found| &found.tree) else {
        return;
    };
    findings.within(list, |findings| {
        for (index, item) in items.iter().enumerate() {
            if item.members().is_some() {
                findings.within(index, |findings| look(findings, item));
            }
        }
    });
}

/// A name that is the system's, or that slipped into the volume's source.
fn volume(findings: &mut Findings, node: &Node) {
    if let Some(name) = node.get("name")
        && let Some(text) = name.text()
        && SYSTEMS_VOLUMES
            .iter()
            .any(|own| match own.strip_suffix('-') {
                Some(_) => text.starts_with(own),
                None => text == *own,
            })
    {
        let message = format!("\"{text}\" is reserved for a volume of the system");
        findings.error_in("name", name.at.as_ref(), message);
    }
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
    let is_tasks = name == Some(TASK_CONTAINER);
    gpus(findings, node, is_tasks);
    if !is_tasks {
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
}

/// GPUs among the resources of a container: the task's gets those of its slots, no other any.
fn gpus(findings: &mut Findings, node: &Node, is_tasks: bool) {
    let Some(resources) = node.get("resources") else {
        return;
    };
    let advice = format!("use \"{}\"", findings.document.slots_key);
    findings.within("resources", |findings| {
        for kind in ["requests", "limits"] {
            let amounts = resources.get(kind).and_then(Node::members);
            let amounts = amounts.into_iter().flatten();
            let gpus = amounts.filter(|(name, amount)| is_gpu(name) && amount.tree != Tree::Null);
            findings.within(kind, |findings| {
                for (name, amount) in gpus {
                    let is_none = amount.integer() == Some(0) || amount.text() == Some("0");
                    let at = amount.at.as_ref();
                    if is_tasks {
                        findings.error_hint_in(name, at, "cannot be set in a pod spec", &advice);
                    } else if !is_none {
                        let message = format!("is left out: only \"{TASK_CONTAINER}\" gets GPUs");
                        findings.warn_in(name, at, message);
                    }
                }
            });
        }
    });
}

fn is_gpu(resource: &str) -> bool {
    resource == "amd.com/gpu" || resource.starts_with("nvidia.com/")
}

/// The member `key`, in Kubernetes' camel case or in snake case.
fn given<'n>(node: &'n Node, key: &str) -> Option<&'n Node> {
    node.get(key)
        .or_else(|| spellings(node, key).next().map(|(_, member)| member))
}

/// The members that mean `key`, each with how it is spelled.
fn spellings<'n>(node: &'n Node, key: &str) -> impl Iterator<Item = (&'n str, &'n Node)> {
    let members = node.members().into_iter().flatten();
    let means = move |name: &str| name == key || is_snake_case_of(name, key);
    members
        .filter(move |(name, member)| means(name) && !matches!(member.tree, Tree::Null))
        .map(|(name, member)| (name.as_str(), member))
}

fn forbid(findings: &mut Findings, node: &Node, key: &str, advice: &str) {
    for (spelling, member) in spellings(node, key) {
        findings.error_hint_in(
            spelling,
            member.at.as_ref(),
            "cannot be set in a pod spec",
            advice,
        );
    }
}
