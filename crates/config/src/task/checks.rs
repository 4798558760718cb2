//! Rules between the keys of a task: `docs/contract/configuration.md`, "Rules between keys".

use super::LaunchKind;
use crate::errors::ErrorCode;
use crate::schema::Findings;
use crate::yaml::{Node, Tree};

/// Older forms and keys of experiments.
pub(super) fn translate(findings: &mut Findings, root: &mut Node) {
    if let Some(resources) = root.get_mut("resources") {
        findings.within("resources", |findings| {
            if let Some(slots) = resources.take("slots_per_trial") {
                if resources.get("slots").is_none() {
                    findings.belongs_at("slots_per_trial", "resources.slots");
                }
                findings.error_hint_in(
                    "slots_per_trial",
                    slots.at.as_ref(),
                    ErrorCode::UnknownKey.message("is a key of experiments, not of tasks"),
                    "use \"resources.slots\"",
                );
            }
        });
    }
    if let Some(environment) = root.get_mut("environment") {
        findings.within("environment", |findings| {
            // The effective configuration of another task has it, empty.
            let given = environment.get("ports").is_some_and(
                |ports| !matches!(&ports.tree, Tree::Map(members) if members.is_empty()),
            );
            if let (Some(ports), true) = (environment.take("ports"), given) {
                findings.error_hint_in(
                    "ports",
                    ports.at.as_ref(),
                    "cannot be set for a task: the system gives it its ports",
                    "use \"environment.proxy_ports\" for ports that are reached through the master",
                );
            }
        });
    }
}

/// What holds for one kind of task only.
pub(crate) fn for_kind(findings: &mut Findings, kind: LaunchKind, root: &mut Node) {
    entrypoint(findings, kind, root);
    slots(findings, kind, root);
    single_node(findings, kind, root);
    let ignored = |key: &str| match key {
        "tensorboard_args" | "inherit_mounts" => kind != LaunchKind::Tensorboard,
        "idle_timeout" => !matches!(kind, LaunchKind::Notebook | LaunchKind::Tensorboard),
        "notebook_idle_type" | "kernel_idle_timeout" => kind != LaunchKind::Notebook,
        _ => false,
    };
    for key in [
        "tensorboard_args",
        "inherit_mounts",
        "idle_timeout",
        "notebook_idle_type",
        "kernel_idle_timeout",
    ] {
        if let Some(given) = root.get(key).filter(|_| ignored(key)) {
            let is_as_absent = findings
                .document
                .root
                .field(key)
                .is_some_and(|field| crate::schema::is_as_absent(given, field));
            if !is_as_absent {
                let what = match kind {
                    LaunchKind::Generic => kind.task().noun(),
                    kind => kind.name(),
                };
                let message = format!("means nothing for a {what}");
                findings.warn_in(key, given.at.as_ref(), message);
            }
        }
    }
}

fn entrypoint(findings: &mut Findings, kind: LaunchKind, root: &Node) {
    let given = root.get("entrypoint");
    let is_empty =
        given.is_none_or(|node| matches!(&node.tree, Tree::List(items) if items.is_empty()));
    match kind {
        LaunchKind::Command | LaunchKind::Generic => {
            if is_empty && findings.stage.is_complete() {
                findings.error_hint_in(
                    "entrypoint",
                    given.and_then(|node| node.at.as_ref()),
                    ErrorCode::Missing.message("is required: the program to run and its arguments"),
                    "for example [\"python3\", \"tool.py\"]",
                );
            }
        }
        LaunchKind::Notebook | LaunchKind::Shell | LaunchKind::Tensorboard => {
            if let (Some(node), false) = (given, is_empty) {
                let message = format!("is ignored: a {} brings its own", kind.name());
                findings.warn_in("entrypoint", node.at.as_ref(), message);
            }
        }
    }
}

/// A TensorBoard has no slots.
fn slots(findings: &mut Findings, kind: LaunchKind, root: &mut Node) {
    if kind != LaunchKind::Tensorboard {
        return;
    }
    let Some(slots) = root
        .get_mut("resources")
        .and_then(|resources| resources.get_mut("slots"))
        .filter(|slots| slots.integer().is_some_and(|slots| slots != 0))
    else {
        return;
    };
    let at = slots.at.clone();
    slots.tree = Tree::Number(0.into());
    findings.within("resources", |findings| {
        findings.warn_in(
            "slots",
            at.as_ref(),
            "is read as 0: a TensorBoard uses none",
        );
    });
}

/// Only generic tasks may spread over nodes.
fn single_node(findings: &mut Findings, kind: LaunchKind, root: &Node) {
    if kind == LaunchKind::Generic {
        return;
    }
    if let Some(node) = root.find("resources.is_single_node") {
        findings.within("resources", |findings| {
            let message = format!(
                "cannot be set for a {}: it is always on one node",
                kind.name()
            );
            findings.error_in("is_single_node", node.at.as_ref(), message);
        });
    }
}

/// Files that come along land in the working directory, so that one of the user's own is refused and the cluster's is
/// dropped.
pub(crate) fn context(findings: &mut Findings, asked: &Node, container_defaults: &mut Node) {
    let default = container_defaults.take("work_dir");
    let Some(own) = asked.get("work_dir") else {
        return;
    };
    if default.is_some_and(|default| default.tree == own.tree) {
        return;
    }
    findings.error_hint_in(
        "work_dir",
        own.at.as_ref(),
        ErrorCode::Conflict.message("cannot be combined with files that come along (--context, --include): they land in a directory of their own"),
        "leave one of the two out",
    );
}
