//! Older forms of an experiment's document: what is translated, and what is refused with the new form.
//! `docs/contract/configuration.md`, "Older forms". Runs before the keys are checked, so nothing here assumes a shape.

use std::collections::BTreeMap;

use serde_json::Number;

use crate::errors::{ErrorCode, Message};
use crate::origin::Position;
use crate::schema::{Findings, Stage};
use crate::yaml::{Node, Tree};

const LENGTHS: [&str; 3] = ["batches", "records", "epochs"];

/// Rewrites what can be rewritten, with a warning each, and records the rest as errors.
pub(super) fn translate(findings: &mut Findings, root: &mut Node) {
    version(findings, root);
    labels(root);
    removed(findings, root);
    let batches_per_step = root
        .members_mut()
        .and_then(|members| members.remove("batches_per_step"))
        .filter(|step| !matches!(step.tree, Tree::Null));
    let has_searcher = root
        .get("searcher")
        .is_some_and(|node| node.members().is_some());
    // Configurations that were stored with it have the length in another key.
    let mut is_read = findings.stage == Stage::Stored;
    if let Some(searcher) = root.get_mut("searcher").filter(|_| has_searcher) {
        is_read |= searcher.get("max_steps").is_some();
        findings.within("searcher", |findings| {
            steps(findings, searcher, batches_per_step.as_ref());
            halving_length(findings, searcher);
        });
    }
    // Beside steps it is read with them. Alone it would have no effect, and 0.12.12 was the last version to accept it.
    if let Some(step) = batches_per_step.filter(|_| !is_read) {
        findings.within("batches_per_step", |findings| {
            findings.error_hint(
                step.at.as_ref(),
                ErrorCode::Removed.message("was removed"),
                "remove it; training code decides how long it trains, and the searcher, where it halves, with \"max_time\"",
            );
        });
    }
}

fn refuse(
    findings: &mut Findings,
    node: &mut Node,
    key: &str,
    message: impl Into<Message>,
    hint: &str,
) {
    if let Some(member) = node.take(key) {
        findings.within(key, |findings| {
            findings.error_hint(member.at.as_ref(), message, hint);
        });
    }
}

fn version(findings: &mut Findings, root: &mut Node) {
    if let Some(version) = root.take("version")
        && version.integer() != Some(0)
    {
        findings.error_in(
            "version",
            version.at.as_ref(),
            "is not a supported version; only 0 exists",
        );
    }
}

/// Labels are a set: the old map form `{label: true}` and duplicates become a sorted list.
fn labels(root: &mut Node) {
    let Some(labels) = root.get_mut("labels") else {
        return;
    };
    match &mut labels.tree {
        Tree::Map(members) => {
            let at = labels.at.clone();
            let items = members
                .iter()
                .filter(|(_, member)| !matches!(member.tree, Tree::Bool(false)))
                .map(|(label, _)| Node {
                    tree: Tree::Text(label.clone()),
                    at: at.clone(),
                })
                .collect();
            labels.tree = Tree::List(items);
        }
        Tree::List(items) if items.iter().all(|item| item.text().is_some()) => {
            let set: BTreeMap<String, Node> = std::mem::take(items)
                .into_iter()
                .filter_map(|item| Some((item.text()?.to_owned(), item)))
                .collect();
            items.extend(set.into_values());
        }
        _ => {}
    }
}

fn removed(findings: &mut Findings, root: &mut Node) {
    refuse(
        findings,
        root,
        "internal",
        ErrorCode::Removed.message("was removed"),
        "remove it",
    );
    if let Some(resources) = root.get_mut("resources") {
        findings.within("resources", |findings| {
            if resources.get("slots").is_some() {
                findings.belongs_at("slots", "resources.slots_per_trial");
            }
            refuse(
                findings,
                resources,
                "slots",
                ErrorCode::UnknownKey
                    .message("is a key of notebooks, shells and commands, not of experiments"),
                "use \"resources.slots_per_trial\"",
            );
        });
    }
    if let Some(environment) = root.get_mut("environment") {
        findings.within("environment", |findings| {
            refuse(
                findings,
                environment,
                "runtime_packages",
                ErrorCode::Removed.message("was removed"),
                "install packages in the image or in a startup hook",
            );
        });
    }
}

/// The oldest lengths, in steps of batches.
fn steps(findings: &mut Findings, searcher: &mut Node, batches_per_step: Option<&Node>) {
    let halves = searcher
        .get("name")
        .and_then(Node::text)
        .is_some_and(|name| !matches!(name, "single" | "random" | "grid"));
    let advice = if halves {
        "give \"time_metric\" and \"max_time\""
    } else {
        "remove it; training code decides how long it trains"
    };
    let per_step = batches_per_step.map_or(Some(100), |node| node.integer().filter(|n| *n >= 1));
    if let Some(max_steps) = searcher.take("max_steps") {
        let total = match (batches_per_step, max_steps.integer(), per_step) {
            (Some(_), Some(steps), Some(batches)) if steps >= 1 => steps.checked_mul(batches),
            _ => None,
        };
        match total {
            Some(_) if searcher.get("max_length").is_some() => {
                findings.warn_in(
                    "max_steps",
                    max_steps.at.as_ref(),
                    "is ignored beside \"max_length\"",
                );
            }
            Some(total) => {
                let message = format!("is read as \"max_length: {{batches: {total}}}\"");
                findings.warn_in("max_steps", max_steps.at.as_ref(), message);
                put_length(searcher, "batches", total.into(), max_steps.at.clone());
            }
            None => findings.within("max_steps", |findings| {
                findings.error_hint(
                    max_steps.at.as_ref(),
                    ErrorCode::Removed.message("was removed"),
                    advice,
                );
            }),
        }
    }
    for key in ["target_trial_steps", "step_budget", "steps_per_round"] {
        refuse(
            findings,
            searcher,
            key,
            ErrorCode::Removed.message("was removed"),
            advice,
        );
    }
}

fn put_length(searcher: &mut Node, unit: &str, amount: Number, at: Option<Position>) {
    if let Some(members) = searcher.members_mut() {
        members.entry("max_length".into()).or_insert_with(|| Node {
            tree: Tree::Map(BTreeMap::from([(
                unit.to_owned(),
                Node {
                    tree: Tree::Number(amount),
                    at: at.clone(),
                },
            )])),
            at,
        });
    }
}

/// `max_length` of the halving searchers, from before they had a time metric.
fn halving_length(findings: &mut Findings, searcher: &mut Node) {
    if !matches!(
        searcher.get("name").and_then(Node::text),
        Some("async_halving" | "adaptive_asha")
    ) {
        return;
    }
    let Some(length) = searcher.get("max_length").cloned() else {
        return;
    };
    if searcher.get("max_time").is_some() {
        searcher.take("max_length");
        return findings.warn_in(
            "max_length",
            length.at.as_ref(),
            "is ignored beside \"max_time\"",
        );
    }
    if length.integer().is_some() {
        if searcher.get("time_metric").is_none() {
            searcher.take("max_length");
            return findings.within("max_length", |findings| {
                findings.error_hint(
                    length.at.as_ref(),
                    "has no unit; ASHA needs \"time_metric\" and \"max_time\"",
                    "give \"time_metric: batches\" and the number as \"max_time\"",
                );
            });
        }
        searcher.take("max_length");
        let at = length.at.clone();
        put(searcher, "max_time", length);
        return findings.warn_in("max_length", at.as_ref(), "is read as \"max_time\"");
    }
    let single = length.members().filter(|members| members.len() == 1);
    let Some((unit, amount)) = single
        .and_then(|members| members.iter().next())
        .filter(|(unit, _)| LENGTHS.contains(&unit.as_str()))
    else {
        return;
    };
    findings.warn_in(
        "max_length",
        length.at.as_ref(),
        format!("is read as \"time_metric: {unit}\" and \"max_time\""),
    );
    let metric = Node {
        tree: Tree::Text(unit.clone()),
        at: length.at.clone(),
    };
    let amount = amount.clone();
    searcher.take("max_length");
    if searcher.get("time_metric").is_none() {
        put(searcher, "time_metric", metric);
    }
    put(searcher, "max_time", amount);
}

fn put(node: &mut Node, key: &str, value: Node) {
    if let Some(members) = node.members_mut() {
        members.insert(key.to_owned(), value);
    }
}
