//! How a stronger layer is merged over a weaker one: `docs/contract/configuration.md`, "Merging". Pure and pairwise. What a
//! rule leaves of either side keeps its place.

use std::collections::{BTreeMap, BTreeSet};

use super::{Field, Kind, Section, Union};
use crate::yaml::{Node, Tree};

/// What holds for one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Merge {
    /// Maps key by key, unions by their kind, anything else the stronger side.
    Deep,
    /// The stronger side's items, then the weaker's with a new value of this key.
    NewBy(&'static str),
    /// The weaker side's items, then the stronger's.
    Append,
    /// [`Merge::Append`] for each kind of device.
    AppendByDevice,
    /// For each kind of device: the stronger side's variables, then the weaker's of other names.
    VariablesByDevice,
    /// All members of both, sorted.
    Set,
    /// The stronger side's value replaces the weaker one's whole.
    Replace,
    /// As Kubernetes merges patches into pods: lists by their merge keys.
    Pod,
    /// Groups of hyperparameters merge, anything else of the stronger side replaces.
    Space,
    /// The stronger side's log policies, then the weaker's of other names.
    LogPolicies,
    /// Free form: maps key by key, lists append, the weaker first.
    Free,
}

impl Merge {
    /// The rule in words for users, as the reference pages print it.
    pub(crate) fn shows(self) -> &'static str {
        match self {
            Self::Deep => "key by key",
            Self::NewBy("container_path") => "own items, then those with a new `container_path`",
            Self::NewBy(_) => "own items, then those with a new `proxy_port`",
            Self::Append | Self::AppendByDevice => "weaker items, then own",
            Self::VariablesByDevice => "own variables, then those of other names",
            Self::Set => "all of both, sorted",
            Self::Replace => "replaces",
            Self::Pod => "strategic merge of Kubernetes",
            Self::Space => "groups key by key, a hyperparameter replaces",
            Self::LogPolicies => "own policies, then those of other names",
            Self::Free => "maps key by key, lists append (weaker first)",
        }
    }
}

/// `strong` over `weak`, both whole documents in normal form.
pub(crate) fn merge_documents(section: &'static Section, strong: Node, weak: Node) -> Node {
    both(strong, weak, |strong, weak| {
        merge_section(section, strong, weak)
    })
}

/// Merges two values of one key; `None` = a key without a rule of its own.
pub(crate) fn merge_field(field: Option<&'static Field>, strong: Node, weak: Node) -> Node {
    if field.is_some_and(|field| field.clears) && matches!(strong.tree, Tree::Null) {
        return strong;
    }
    let (rule, kind) = field.map_or((Merge::Deep, Kind::Any), |field| (field.merge, field.kind));
    both(strong, weak, |strong, weak| {
        by_rule(rule, kind, strong, weak)
    })
}

/// A null on one side is the other side.
fn both(strong: Node, weak: Node, merge: impl FnOnce(Node, Node) -> Node) -> Node {
    match (&strong.tree, &weak.tree) {
        (Tree::Null, _) => weak,
        (_, Tree::Null) => strong,
        _ => merge(strong, weak),
    }
}

fn by_rule(rule: Merge, kind: Kind, strong: Node, weak: Node) -> Node {
    match rule {
        Merge::Deep => deep(kind, strong, weak),
        Merge::Replace => strong,
        Merge::Pod => super::pod_merge::merge(strong, weak),
        Merge::NewBy(key) => lists(strong, weak, |ours, theirs| {
            new_by(ours, theirs, |item| {
                item.get(key).map(|value| value.to_value().to_string())
            })
        }),
        Merge::LogPolicies => lists(strong, weak, |ours, theirs| {
            new_by(ours, theirs, |item| Some(log_policy_key(item)))
        }),
        Merge::Append => lists(strong, weak, append),
        Merge::Set => lists(strong, weak, set),
        Merge::AppendByDevice => maps(strong, weak, |ours, theirs| {
            by_key(ours, theirs, |_, ours, theirs| {
                both(ours, theirs, |ours, theirs| lists(ours, theirs, append))
            })
        }),
        Merge::VariablesByDevice => maps(strong, weak, |ours, theirs| {
            by_key(ours, theirs, |_, ours, theirs| {
                both(ours, theirs, |ours, theirs| {
                    lists(ours, theirs, |ours, theirs| {
                        new_by(ours, theirs, |item| item.text().map(variable_name))
                    })
                })
            })
        }),
        Merge::Space => maps(strong, weak, space),
        Merge::Free => free(strong, weak),
    }
}

fn deep(kind: Kind, strong: Node, weak: Node) -> Node {
    match kind {
        Kind::Section(section) => merge_section(section, strong, weak),
        Kind::Union(union) => maps(strong, weak, |ours, theirs| tagged(union, ours, theirs)),
        Kind::Map(item) => maps(strong, weak, |ours, theirs| {
            by_key(ours, theirs, |_, ours, theirs| {
                both(ours, theirs, |ours, theirs| deep(*item, ours, theirs))
            })
        }),
        _ => maps(strong, weak, |ours, theirs| {
            by_key(ours, theirs, |_, ours, theirs| {
                both(ours, theirs, |ours, theirs| deep(Kind::Any, ours, theirs))
            })
        }),
    }
}

fn merge_section(section: &'static Section, strong: Node, weak: Node) -> Node {
    maps(strong, weak, |ours, theirs| {
        by_key(ours, theirs, |key, ours, theirs| {
            merge_field(section.field(key), ours, theirs)
        })
    })
}

type Members = BTreeMap<String, Node>;

/// Merges two maps; where one side is none, the stronger side counts.
fn maps(strong: Node, weak: Node, merge: impl FnOnce(Members, Members) -> Members) -> Node {
    match (strong.tree, weak.tree) {
        (Tree::Map(ours), Tree::Map(theirs)) => Node {
            tree: Tree::Map(merge(ours, theirs)),
            at: strong.at,
        },
        (tree, _) => Node {
            tree,
            at: strong.at,
        },
    }
}

/// Merges two lists; where one side is none, the stronger side counts.
fn lists(strong: Node, weak: Node, merge: impl FnOnce(Vec<Node>, Vec<Node>) -> Vec<Node>) -> Node {
    match (strong.tree, weak.tree) {
        (Tree::List(ours), Tree::List(theirs)) => Node {
            tree: Tree::List(merge(ours, theirs)),
            at: strong.at,
        },
        (tree, _) => Node {
            tree,
            at: strong.at,
        },
    }
}

fn by_key(mut ours: Members, theirs: Members, merge: impl Fn(&str, Node, Node) -> Node) -> Members {
    for (key, weak) in theirs {
        let merged = match ours.remove(&key) {
            Some(strong) => both_or(&key, strong, weak, &merge),
            None => weak,
        };
        ours.insert(key, merged);
    }
    ours
}

/// A null that takes something away is for the rule of its key; [`merge_field`] looks at it first.
fn both_or(key: &str, strong: Node, weak: Node, merge: &impl Fn(&str, Node, Node) -> Node) -> Node {
    if matches!(weak.tree, Tree::Null) {
        strong
    } else {
        merge(key, strong, weak)
    }
}

fn append(ours: Vec<Node>, mut theirs: Vec<Node>) -> Vec<Node> {
    theirs.extend(ours);
    theirs
}

/// Ours, then theirs whose key is new; items without a key are kept.
pub(crate) fn new_by(
    ours: Vec<Node>,
    theirs: Vec<Node>,
    key: impl Fn(&Node) -> Option<String>,
) -> Vec<Node> {
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

fn variable_name(entry: &str) -> String {
    entry.split('=').next().unwrap_or_default().to_owned()
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
fn space(mut ours: Members, theirs: Members) -> Members {
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

fn free(strong: Node, weak: Node) -> Node {
    both(strong, weak, |strong, weak| {
        match (&strong.tree, &weak.tree) {
            (Tree::Map(_), Tree::Map(_)) => maps(strong, weak, |ours, theirs| {
                by_key(ours, theirs, |_, ours, theirs| free(ours, theirs))
            }),
            (Tree::List(_), Tree::List(_)) => lists(strong, weak, append),
            _ => strong,
        }
    })
}

/// Common keys merge; the keys of a variant only when both sides mean the same variant, or one of them names none.
fn tagged(union: &'static Union, ours: Members, mut theirs: Members) -> Members {
    let tag = |members: &Members| {
        members
            .get(union.tag)
            .and_then(Node::text)
            .map(str::to_owned)
    };
    let (our_tag, their_tag) = (tag(&ours), tag(&theirs));
    if let Some(ours) = &our_tag
        && their_tag != our_tag
    {
        // What names no variant may bring keys of whichever the stronger side names.
        let own = union.variant(ours).filter(|_| their_tag.is_none());
        let own = own.map_or(&[][..], |variant| variant.fields);
        theirs.retain(|key, _| {
            union
                .common
                .iter()
                .chain(own)
                .any(|field| field.name == key)
        });
    }
    for block in union.blocks {
        if block.when.iter().any(|key| ours.contains_key(*key)) {
            theirs.retain(|key, _| !block.hides.contains(&key.as_str()));
        }
    }
    let variant = our_tag.or(their_tag);
    let variant = variant.as_deref().and_then(|name| union.variant(name));
    by_key(ours, theirs, |key, strong, weak| {
        let own = variant.map_or(&[][..], |variant| variant.fields);
        let field = union
            .common
            .iter()
            .chain(own)
            .find(|field| field.name == key);
        merge_field(field, strong, weak)
    })
}
