//! What a slot of a cluster is that another system manages.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::filled;
use crate::errors::ErrorCode;
use crate::quote::cut;
use crate::schema::{Findings, Kind, Special, Walk, text_by};
use crate::yaml::{Node, Tree};

/// What a slot of a cluster is that another system manages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SlotType {
    /// A GPU by NVIDIA.
    Cuda,
    /// A GPU by AMD.
    Rocm,
    /// Processors, as many as its manager requests for it.
    Cpu,
    /// A device that pods of Kubernetes claim.
    Dra,
}

pub(super) static SLOT_TYPE: Special = text_by(
    "`cuda`, `rocm`, `cpu`; older: `gpu`",
    || json!({"enum": ["cuda", "rocm", "cpu", "gpu"]}),
    slot_type,
);

/// What a slot of a Kubernetes cluster may be.
pub(super) static SLOT_TYPE_OF_PODS: Special = text_by(
    "`cuda`, `rocm`, `cpu`, `dra`; older: `gpu`",
    || json!({"enum": ["cuda", "rocm", "cpu", "dra", "gpu"]}),
    slot_type_of_pods,
);

fn slot_type(walk: &mut Walk, node: &mut Node) {
    renamed(walk, node);
    walk.value(node, Kind::Choice(&["cuda", "rocm", "cpu"]));
}

fn slot_type_of_pods(walk: &mut Walk, node: &mut Node) {
    renamed(walk, node);
    walk.value(node, Kind::Choice(&["cuda", "rocm", "cpu", "dra"]));
}

/// `gpu` is the old name of `cuda`.
fn renamed(walk: &mut Walk, node: &mut Node) {
    if node.text() == Some("gpu") {
        walk.findings
            .warn(node.at.as_ref(), "\"gpu\" is the old name of \"cuda\"");
        node.tree = Tree::Text("cuda".into());
    }
}

/// A name as objects of Kubernetes have it.
pub(super) static OBJECT_NAME: Special = text_by(
    "string of lower case letters, digits, hyphens and dots",
    || json!({"type": "string", "pattern": "^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$"}),
    object_name,
);

/// The name of an extended resource of nodes.
pub(super) static RESOURCE_NAME: Special = text_by(
    "string `DOMAIN/NAME`",
    || json!({"type": "string", "pattern": "^[a-z0-9][-.a-z0-9]*/[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?$"}),
    resource_name,
);

/// RFC 1123, section 2.1, with dots: at most 253 characters.
fn is_object_name(text: &str) -> bool {
    let is_part = |part: &str| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !part.is_empty()
            && part.chars().all(inner)
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(is_part)
}

fn object_name(walk: &mut Walk, node: &mut Node) {
    checked(
        walk,
        node,
        is_object_name,
        "a name of lower case letters, digits, hyphens and dots",
    );
}

fn resource_name(walk: &mut Walk, node: &mut Node) {
    let is_name = |text: &str| {
        let Some((domain, name)) = text.split_once('/') else {
            return false;
        };
        let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let is_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        is_object_name(domain)
            && name.len() <= 63
            && name.chars().all(inner)
            && is_end(name.chars().next())
            && is_end(name.chars().last())
    };
    let what = "an extended resource as nodes offer it, such as \"nvidia.com/mig-1g.10gb\"";
    checked(walk, node, is_name, what);
}

fn checked(walk: &mut Walk, node: &mut Node, is_valid: impl Fn(&str) -> bool, what: &str) {
    match node.text() {
        Some(text) if is_valid(text) => {}
        Some(text) => {
            let message = format!("must be {what}, not \"{}\"", cut(text));
            walk.findings.error(node.at.as_ref(), message);
        }
        None => walk.value(node, Kind::Text),
    }
}

/// Keys by which a manager of Kubernetes, or one of its pools, chooses the resource that slots are, each with the types of
/// slots that it is for.
const CHOICES: [(&str, &[&str]); 3] = [
    ("slot_resource_name", &["cuda", "rocm"]),
    ("device_class", &["dra"]),
    ("device_driver", &["dra"]),
];

/// Rules of what slots are in a cluster: each key for the types of slots that it concerns, and a class where those are claimed.
pub(super) fn of_manager(findings: &mut Findings, manager: &Node) {
    let slot_type = type_of(Some(manager));
    if slot_type == "dra" && filled(manager, "device_class").is_none() {
        let at = manager.get("slot_type").and_then(|node| node.at.as_ref());
        let message = "is required for slot type \"dra\": the DeviceClass whose devices are slots";
        findings.error_in("device_class", at, ErrorCode::Missing.message(message));
    }
    for_types(findings, manager, slot_type);
}

/// The same of a pool of a manager.
pub(super) fn of_pool(findings: &mut Findings, manager: Option<&Node>, pool: &Node) {
    for_types(findings, pool, type_of(manager));
    let driver = filled(pool, "device_driver").filter(|_| filled(pool, "device_class").is_none());
    if let Some(driver) = driver {
        let message = "is for the \"device_class\" of the same pool, which is not given";
        findings.error_in(
            "device_driver",
            driver.at.as_ref(),
            ErrorCode::Conflict.message(message),
        );
    }
}

/// Pools of other managers have no such choice.
pub(super) fn of_other_pool(findings: &mut Findings, pool: &Node) {
    for (key, _) in CHOICES {
        if let Some(given) = filled(pool, key) {
            let message = "is for pools of a manager of type kubernetes";
            findings.error_in(key, given.at.as_ref(), ErrorCode::Conflict.message(message));
        }
    }
}

fn type_of(manager: Option<&Node>) -> &str {
    let given = manager.and_then(|manager| manager.get("slot_type")?.text());
    given.unwrap_or("cuda")
}

fn for_types(findings: &mut Findings, node: &Node, slot_type: &str) {
    for (key, types) in CHOICES {
        let Some(given) = filled(node, key).filter(|_| !types.contains(&slot_type)) else {
            continue;
        };
        let types: Vec<String> = types.iter().map(|it| format!("\"{it}\"")).collect();
        let message = format!(
            "is for slot type {}, and that of the manager is \"{slot_type}\"",
            types.join(" or ")
        );
        findings.error_in(key, given.at.as_ref(), ErrorCode::Conflict.message(message));
    }
}
