//! The keys of log policies. What they mean: `docs/contract/configuration.md`, "Log policies".

use super::LogAction;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

use regex::RegexBuilder;
use serde_json::json;

use crate::quote::cut;
use crate::schema::{Findings, Kind, Special, Walk, keys, special, text_by};
use crate::yaml::{Node, Tree};

keys! {
    /// A reaction to a line of a task's log: `docs/contract/configuration.md`, "Log policies".
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct LogPolicy, LOG_POLICY {
        /// Label of a run whose log matched.
        name: Option<String> = Kind::Text;
        /// Regular expression, searched anywhere in a line; without one the policy of this name is off.
        pattern: Option<String> = Kind::Special(&PATTERN);
        /// What to do on a match; without one the run is only labelled.
        action: Option<LogAction> = Kind::Special(&ACTION);
    }
    with check(log_policy)
}

pub(crate) const LOG_POLICIES: Kind = Kind::Special(&LOG_POLICY_LIST);

static LOG_POLICY_LIST: Special = special(
    "list of `{name, pattern, action}`",
    || {
        let action = json!({"enum": ["cancel_retries", "exclude_node", null]});
        json!({
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": ["string", "null"], "description": "Label of a run whose log matched."},
                    "pattern": {
                        "type": ["string", "null"],
                        "description": "Regular expression, searched anywhere in a line; without one the policy of this name is off.",
                    },
                    "action": {
                        "description": "What to do on a match; without one the run is only labelled.",
                        "anyOf": [action, {
                            "type": "object",
                            "properties": {"type": action},
                            "required": ["type"],
                            "additionalProperties": false,
                        }],
                    },
                },
                "additionalProperties": false,
                "anyOf": [{"required": ["name"]}, {"required": ["pattern", "action"]}],
            },
        })
    },
    log_policies,
)
.named("log_policies")
.of(Kind::List(&LOG_POLICY_KIND));

/// Log policies of an experiment at most.
const MAX_POLICIES: usize = 64;
/// Bytes of a pattern at most.
const MAX_PATTERN_BYTES: usize = 4 << 10;
/// Bytes of a compiled pattern at most. Each line of a log is held against all of them.
const MAX_COMPILED_BYTES: usize = 256 << 10;

static LOG_POLICY_KIND: Kind = Kind::Section(&LOG_POLICY);

fn log_policies(walk: &mut Walk, node: &mut Node) {
    // What is far too much is not compiled first.
    let is_endless = matches!(&node.tree, Tree::List(items) if items.len() > 4 * MAX_POLICIES);
    if !is_endless {
        walk.value(node, Kind::List(&LOG_POLICY_KIND));
    }
    let Tree::List(items) = &node.tree else {
        return;
    };
    if items.len() > MAX_POLICIES {
        let message = format!("has {} policies, of at most {MAX_POLICIES}", items.len());
        walk.findings.error(node.at.as_ref(), message);
    }
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, item) in items.iter().enumerate() {
        let Some(name) = item.get("name") else {
            continue;
        };
        let Some(text) = name.text() else {
            continue;
        };
        if !seen.insert(text) {
            walk.within(index, |walk| {
                let message = format!("\"{}\" names two log policies", cut(text));
                walk.findings.error_in("name", name.at.as_ref(), message);
            });
        }
    }
}

fn log_policy(findings: &mut Findings, node: &Node) {
    let has = |key| node.get(key).is_some();
    let complete = has("name") || (has("pattern") && has("action"));
    if !complete {
        findings.error(
            node.at.as_ref(),
            "needs a \"name\", or both \"pattern\" and \"action\"",
        );
    }
}

static PATTERN: Special = text_by(
    "regular expression (RE2)",
    || json!({"type": "string"}),
    pattern,
);

fn pattern(walk: &mut Walk, node: &mut Node) {
    let Some(text) = node.text() else {
        return walk.value(node, Kind::Text);
    };
    if text.len() > MAX_PATTERN_BYTES {
        let message = format!("has {} bytes, of at most {MAX_PATTERN_BYTES}", text.len());
        return walk.findings.error(node.at.as_ref(), message);
    }
    let compiled = RegexBuilder::new(text)
        .size_limit(MAX_COMPILED_BYTES)
        .build();
    if let Err(regex::Error::CompiledTooBig(_)) = compiled {
        let message = "is too large once it is compiled: write fewer or shorter repetitions, or `(?-u:\\w)` for `\\w`";
        return walk.findings.error(node.at.as_ref(), message);
    }
    if let Err(error) = compiled {
        let reason = error.to_string();
        let reason = reason
            .lines()
            .last()
            .unwrap_or_default()
            .trim_start_matches("error: ");
        let message = format!("is not a regular expression: {reason}");
        walk.findings.error(node.at.as_ref(), message);
    }
}

static ACTION: Special = special(
    "`cancel_retries`, `exclude_node`",
    || json!({"enum": ["cancel_retries", "exclude_node"]}),
    action,
);

/// The name of an action, or the old map form with `type`; becomes the name.
fn action(walk: &mut Walk, node: &mut Node) {
    if let Some(members) = node.members()
        && members.len() == 1
        && let Some(kind) = members.get("type").cloned()
    {
        node.tree = kind.tree;
    }
    walk.value(node, Kind::Choice(&["cancel_retries", "exclude_node"]));
}
