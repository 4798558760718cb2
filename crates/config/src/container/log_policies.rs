//! The keys of log policies. What they mean: `docs/contract/configuration.md`, "Log policies".

use super::LogAction;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

use regex::RegexBuilder;
use regex::bytes::{RegexSet, RegexSetBuilder};
use serde_json::{Value, json};

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
/// Those of a master's configuration. What is larger than policies may be is left out with a warning: an earlier version
/// started with it, and a master that does not start runs nothing.
pub(crate) const DEFAULT_LOG_POLICIES: Kind = Kind::Special(&DEFAULT_LOG_POLICY_LIST);

static LOG_POLICY_LIST: Special = list_of_policies(log_policies);
static DEFAULT_LOG_POLICY_LIST: Special = list_of_policies(default_log_policies);

const fn list_of_policies(check: fn(&mut Walk, &mut Node)) -> Special {
    special("list of `{name, pattern, action}`", list_schema, check)
        .named("log_policies")
        .of(Kind::List(&LOG_POLICY_KIND))
}

fn list_schema() -> Value {
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
}

/// Log policies of an experiment at most.
const MAX_POLICIES: usize = 64;
/// Bytes of a pattern at most.
const MAX_PATTERN_BYTES: usize = 4 << 10;
/// Bytes of a compiled pattern at most: `\w{10}` has just under as many.
const MAX_COMPILED_BYTES: usize = 512 << 10;
/// Bytes of all compiled patterns of an experiment at most. Each line of a log is held against all of them.
const MAX_SET_BYTES: usize = 2 << 20;
/// Bytes of what a search remembers of them at most. With less than twice the largest set, a search in it took a hundred
/// times as long.
const MAX_STATES_BYTES: usize = 2 * MAX_SET_BYTES;

/// What to do about a pattern that is too large.
const FEWER_REPETITIONS: &str =
    "write fewer or shorter repetitions, or `(?-u:\\w)`, which is ASCII only, for `\\w`";

/// Compiles the patterns of an experiment's log policies, to be searched for anywhere in a line. What a configuration was
/// checked with always compiles.
///
/// # Errors
/// One of them is no regular expression, or together they are too large.
pub fn compile_patterns<'p>(
    patterns: impl IntoIterator<Item = &'p str>,
) -> Result<RegexSet, regex::Error> {
    RegexSetBuilder::new(patterns.into_iter().map(without_wildcards))
        .multi_line(true)
        .size_limit(MAX_SET_BYTES)
        .dfa_size_limit(MAX_STATES_BYTES)
        .build()
}

/// A pattern without `.*` at its ends: it is searched for anywhere in a line all the same, and is found much faster.
fn without_wildcards(pattern: &str) -> &str {
    let mut rest = pattern;
    while let Some(shorter) = rest.strip_prefix(".*")
        && !shorter.starts_with(['?', '*', '+', '{'])
        && !shorter.is_empty()
    {
        rest = shorter;
    }
    while let Some(shorter) = rest.strip_suffix(".*")
        && !shorter.ends_with('\\')
        && !shorter.is_empty()
    {
        rest = shorter;
    }
    rest
}

static LOG_POLICY_KIND: Kind = Kind::Section(&LOG_POLICY);

fn log_policies(walk: &mut Walk, node: &mut Node) {
    // What is far too much is not compiled first.
    if let Tree::List(items) = &node.tree
        && items.len() > MAX_POLICIES
    {
        let count = items.len();
        let message = format!("is a list of {count}, at most {MAX_POLICIES} are allowed");
        return walk.findings.error(node.at.as_ref(), message);
    }
    walk.value(node, Kind::List(&LOG_POLICY_KIND));
    let Tree::List(items) = &node.tree else {
        return;
    };
    if !compile_together(items) {
        let message = format!(
            "has patterns of more than {} KiB once they are compiled, at most that are allowed: \
             {FEWER_REPETITIONS}",
            MAX_SET_BYTES >> 10
        );
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

/// Leaves out what is larger than policies may be, and then checks the rest as any other.
fn default_log_policies(walk: &mut Walk, node: &mut Node) {
    if let Tree::List(items) = &mut node.tree {
        let mut number = 0;
        items.retain(|item| {
            let pattern = item.get("pattern").and_then(Node::text);
            let too_large =
                pattern.and_then(|pattern| too_large(pattern, compiled(pattern).as_ref().err()));
            if let Some(why) = &too_large {
                walk.within(number, |walk| left_out(walk.findings, item, "pattern", why));
            }
            number += 1;
            too_large.is_none()
        });
        let few = items.len().min(MAX_POLICIES);
        // How many of the first fit: of as many as are allowed the set is compiled six times.
        let numbers: Vec<usize> = (1..=few).collect();
        let fit = numbers.partition_point(|count| compile_together(&items[..*count]));
        let why = if fit < few {
            format!(
                "is one of policies that have more than {} KiB together once they are compiled",
                MAX_SET_BYTES >> 10
            )
        } else {
            format!("is one of more than {MAX_POLICIES} policies")
        };
        for item in items.drain(fit..) {
            left_out(walk.findings, &item, "", &why);
        }
    }
    log_policies(walk, node);
}

/// Warns of a policy that is not applied because of its member `key`; of the whole list where that is empty.
fn left_out(findings: &mut Findings, policy: &Node, key: &str, why: &str) {
    let label = policy.get("name").or_else(|| policy.get("pattern"));
    let label = cut(label.and_then(Node::text).unwrap_or_default());
    let message = format!("the log policy \"{label}\" is left out: it {why}");
    match policy.get(key) {
        Some(member) => findings.warn_in(key, member.at.as_ref(), message),
        None => findings.warn(policy.at.as_ref(), message),
    }
}

/// Whether the patterns of these policies are small enough to be used together.
fn compile_together(policies: &[Node]) -> bool {
    let patterns = policies
        .iter()
        .filter_map(|policy| policy.get("pattern")?.text())
        .filter(|pattern| pattern.len() <= MAX_PATTERN_BYTES);
    !matches!(
        compile_patterns(patterns),
        Err(regex::Error::CompiledTooBig(_))
    )
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
    let compiled = compiled(text);
    if let Some(why) = too_large(text, compiled.as_ref().err()) {
        return walk.findings.error(node.at.as_ref(), why);
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

/// Compiles one pattern, unless it is too long for that.
fn compiled(pattern: &str) -> Result<(), regex::Error> {
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err(regex::Error::CompiledTooBig(MAX_PATTERN_BYTES));
    }
    let builder = RegexBuilder::new(pattern)
        .size_limit(MAX_COMPILED_BYTES)
        .build();
    builder.map(drop)
}

/// Why a pattern that was compiled with this error is larger than one may be; `None` = it is not.
fn too_large(pattern: &str, error: Option<&regex::Error>) -> Option<String> {
    let length = pattern.len();
    if length > MAX_PATTERN_BYTES {
        return Some(format!(
            "has {length} bytes, at most {MAX_PATTERN_BYTES} are allowed"
        ));
    }
    matches!(error, Some(regex::Error::CompiledTooBig(_))).then(|| {
        format!(
            "has more than {} KiB once it is compiled, at most that are allowed: {FEWER_REPETITIONS}",
            MAX_COMPILED_BYTES >> 10
        )
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_checked_with_its_wildcards_compiles_without_them() {
        // Each is as large as one may be, and four of them as large as all may be.
        let patterns = [r"\w{10}"; 4].map(|pattern| format!(".*{pattern}.*"));
        assert!(compile_patterns(patterns.iter().map(String::as_str)).is_ok());
        assert!(compile_patterns([r"\w{10}"; 5]).is_err());
    }

    #[test]
    fn wildcards_at_the_ends_are_left_out_and_nothing_else() {
        for (pattern, shorter) in [
            (".*a.*", "a"),
            (".*.*a", "a"),
            ("a\\.*", "a\\.*"),
            (".*?a", ".*?a"),
            (".*", ".*"),
            ("(.*a|b.*)", "(.*a|b.*)"),
        ] {
            assert_eq!(without_wildcards(pattern), shorter);
        }
    }
}
