//! How a stronger layer is merged over a weaker one: `experiment-config` reference §12. Pure and pairwise.

use std::collections::{BTreeMap, BTreeSet};

use super::schema::SEARCHER;
use crate::schema::Union;
use crate::storage::STORAGE;
use crate::yaml::{Node, Tree};

/// `strong` over `weak`, both whole documents in normal form.
pub(super) fn merge(strong: Node, weak: Node) -> Node {
    at("", strong, weak)
}

/// What holds at one path.
enum Rule {
    /// Ours, then theirs with a new value of this key.
    NewBy(&'static str),
    /// Theirs, then ours.
    Append,
    /// All members of both, sorted.
    Set,
    /// Ours alone.
    Replace,
    Pod,
    Space,
    Tagged(&'static Union),
    LogPolicies,
    /// Maps key by key, anything else ours.
    General,
}

fn rule(path: &str) -> Rule {
    match path {
        "bind_mounts" | "resources.devices" => Rule::NewBy("container_path"),
        "environment.proxy_ports" => Rule::NewBy("proxy_port"),
        "environment.environment_variables.cpu"
        | "environment.environment_variables.cuda"
        | "environment.environment_variables.rocm"
        | "slurm.sbatch_args"
        | "pbs.pbsbatch_args" => Rule::Append,
        "labels" | "environment.add_capabilities" | "environment.drop_capabilities" => Rule::Set,
        "environment.registry_auth" | "entrypoint" => Rule::Replace,
        "environment.pod_spec" => Rule::Pod,
        "hyperparameters" => Rule::Space,
        "checkpoint_storage" => Rule::Tagged(&STORAGE),
        "searcher" => Rule::Tagged(&SEARCHER),
        "log_policies" => Rule::LogPolicies,
        // Lists of free-form data append, as the documentation of templates says.
        _ if path.starts_with("data.") => Rule::Append,
        _ => Rule::General,
    }
}

fn at(path: &str, strong: Node, weak: Node) -> Node {
    if matches!(strong.tree, Tree::Null) {
        return weak;
    }
    if matches!(weak.tree, Tree::Null) {
        return strong;
    }
    let place = strong.at.clone();
    let tree = match (rule(path), strong.tree, weak.tree) {
        (Rule::NewBy(key), Tree::List(ours), Tree::List(theirs)) => {
            Tree::List(new_by(ours, theirs, |item| {
                item.get(key).map(|value| value.to_value().to_string())
            }))
        }
        (Rule::LogPolicies, Tree::List(ours), Tree::List(theirs)) => {
            Tree::List(new_by(ours, theirs, |item| Some(log_policy_key(item))))
        }
        (Rule::Append, Tree::List(ours), Tree::List(mut theirs)) => {
            theirs.extend(ours);
            Tree::List(theirs)
        }
        (Rule::Set, Tree::List(ours), Tree::List(theirs)) => Tree::List(set(ours, theirs)),
        (Rule::Pod, ours, theirs) => {
            let ours = Node {
                tree: ours,
                at: place,
            };
            return crate::pod::merge(ours, Node::new(theirs));
        }
        (Rule::Space, Tree::Map(ours), Tree::Map(theirs)) => Tree::Map(space(ours, theirs)),
        (Rule::Tagged(union), Tree::Map(ours), Tree::Map(theirs)) => {
            Tree::Map(tagged(union, path, ours, theirs))
        }
        (Rule::Replace, ours, _) => ours,
        (_, Tree::Map(ours), Tree::Map(theirs)) => Tree::Map(members(path, ours, theirs)),
        // Lists without a rule, scalars and mismatched types: the stronger side.
        (_, ours, _) => ours,
    };
    Node { tree, at: place }
}

fn members(
    path: &str,
    mut ours: BTreeMap<String, Node>,
    theirs: BTreeMap<String, Node>,
) -> BTreeMap<String, Node> {
    for (key, weak) in theirs {
        let inner = if path.is_empty() {
            key.clone()
        } else {
            format!("{path}.{key}")
        };
        let merged = match ours.remove(&key) {
            Some(strong) => at(&inner, strong, weak),
            None => weak,
        };
        ours.insert(key, merged);
    }
    ours
}

/// Ours, then theirs whose key is new; items without a key are kept.
fn new_by(ours: Vec<Node>, theirs: Vec<Node>, key: impl Fn(&Node) -> Option<String>) -> Vec<Node> {
    let known: BTreeSet<String> = ours.iter().filter_map(&key).collect();
    let new = theirs
        .into_iter()
        .filter(|item| key(item).is_none_or(|key| !known.contains(&key)));
    ours.into_iter().chain(new).collect()
}

/// What makes two log policies the same: the name, else action and pattern.
fn log_policy_key(item: &Node) -> String {
    let part = |key: &str| item.get(key).and_then(Node::text).map(str::to_owned);
    format!(
        "{:?}",
        match part("name") {
            Some(name) => (Some(name), None, None),
            None => (None, part("action"), part("pattern")),
        }
    )
}

fn set(ours: Vec<Node>, theirs: Vec<Node>) -> Vec<Node> {
    let mut sorted: BTreeMap<String, Node> = BTreeMap::new();
    for item in ours.into_iter().chain(theirs) {
        sorted
            .entry(item.text().unwrap_or_default().to_owned())
            .or_insert(item);
    }
    sorted.into_values().collect()
}

/// Groups merge, anything else of ours replaces theirs; here a null is a constant and wins.
fn space(
    mut ours: BTreeMap<String, Node>,
    theirs: BTreeMap<String, Node>,
) -> BTreeMap<String, Node> {
    for (name, weak) in theirs {
        let merged = match ours.remove(&name) {
            None => weak,
            Some(strong) => match (strong.tree, weak.tree) {
                (Tree::Map(a), Tree::Map(b))
                    if !a.contains_key("type") && !b.contains_key("type") =>
                {
                    Node {
                        tree: Tree::Map(space(a, b)),
                        at: strong.at,
                    }
                }
                (tree, _) => Node {
                    tree,
                    at: strong.at,
                },
            },
        };
        ours.insert(name, merged);
    }
    ours
}

/// Common keys merge; the keys of a variant only when both sides mean the same variant, or ours names none.
fn tagged(
    union: &'static Union,
    path: &str,
    ours: BTreeMap<String, Node>,
    mut theirs: BTreeMap<String, Node>,
) -> BTreeMap<String, Node> {
    let tag = |members: &BTreeMap<String, Node>| {
        members
            .get(union.tag)
            .and_then(Node::text)
            .map(str::to_owned)
    };
    let (our_tag, their_tag) = (tag(&ours), tag(&theirs));
    if our_tag.is_some() && their_tag != our_tag {
        theirs.retain(|key, _| union.common.iter().any(|field| field.name == key));
    }
    // An account's address and its secrets belong together.
    if ours.contains_key("connection_string") || ours.contains_key("account_url") {
        for key in ["connection_string", "account_url", "credential"] {
            theirs.remove(key);
        }
    }
    // A warm start in the stronger layer replaces one in the weaker, which could name the other kind.
    if ours.contains_key("source_trial_id") || ours.contains_key("source_checkpoint_uuid") {
        theirs.remove("source_trial_id");
        theirs.remove("source_checkpoint_uuid");
    }
    members(path, ours, theirs)
}
