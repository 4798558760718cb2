//! The right form of documents that are broken in a well-known way: indentation that got lost, keys of another kind of
//! document, dotted keys. `docs/contract/configuration.md`, "Lost indentation".
//!
//! What a check found in the wrong place is moved, and the result is checked: only what is better than before is shown.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use det_ids::one_line;

use crate::errors::ConfigError;
use crate::schema::{
    Document, Findings, Misplacement, Segment, Stage, check_document, mask, mask_all,
};
use crate::secrets::mask_all_variables;
use crate::yaml::{Node, Tree, to_yaml};

/// How often what was moved is looked at again: a section in its right place may show what else is not.
const PASSES: usize = 4;

/// A document with what was misplaced in its right place.
struct Correction {
    root: Node,
    /// Keys at the top that were changed, that went or that came.
    touched: Vec<String>,
    /// Errors in what was moved, which show only in its right place; some of them are corrected by a later move.
    moved: Vec<ConfigError>,
    /// The errors in what was moved that the corrected document still has.
    inside: Vec<ConfigError>,
    /// The other errors that it still has.
    outside: Vec<ConfigError>,
}

/// Moves what is misplaced; `None` when nothing can be moved.
fn correct(
    document: &'static Document,
    written: &Node,
    mut misplaced: Vec<Misplacement>,
) -> Option<Correction> {
    let mut correction = Correction {
        root: written.clone(),
        touched: Vec::new(),
        moved: Vec::new(),
        inside: Vec::new(),
        outside: Vec::new(),
    };
    let mut targets: Vec<String> = Vec::new();
    for _ in 0..PASSES {
        let touched = &mut correction.touched;
        if !move_all(&mut correction.root, &misplaced, touched, &mut targets) {
            break;
        }
        let mut again = Findings::new(document, Stage::Sane);
        check_document(&mut again, &mut correction.root.clone());
        misplaced = again.misplaced;
        let (inside, outside): (Vec<_>, Vec<_>) = again
            .errors
            .into_iter()
            .partition(|error| is_inside(&targets, &error.path));
        correction.moved.extend(inside.iter().cloned());
        correction.inside = inside;
        correction.outside = outside;
    }
    (!correction.touched.is_empty()).then_some(correction)
}

/// The document with what is misplaced in its right place, as [`propose`] shows its parts; `None` when nothing is.
pub(crate) fn corrected(document: &'static Document, written: &Node) -> Option<Node> {
    let mut findings = Findings::new(document, Stage::Sane);
    check_document(&mut findings, &mut written.clone());
    correct(document, written, findings.misplaced).map(|correction| correction.root)
}

/// Adds the right form to the errors, when moving what is misplaced leads to one, and the errors in what was moved,
/// which show only in its right place. `written` is the layer as it was before the check.
pub(crate) fn propose(findings: &mut Findings, written: &Node) {
    if findings.misplaced.is_empty() || findings.errors.is_empty() {
        return;
    }
    let Some(correction) = correct(findings.document, written, findings.misplaced.clone()) else {
        return;
    };
    if correction.outside.len() >= findings.errors.len() {
        return;
    }
    let shown: BTreeMap<String, Node> = correction
        .root
        .members()
        .into_iter()
        .flatten()
        .filter(|(key, _)| correction.touched.contains(key))
        .map(|(key, node)| (key.clone(), node.clone()))
        .collect();
    let mut value = Node::new(Tree::Map(shown)).to_value();
    mask(&mut value, findings.document.root);
    mask_all_variables(&mut value);
    if let Some(secrets) = value.pointer_mut("/data/secrets") {
        mask_all(secrets);
    }
    let left: Vec<&ConfigError> = correction
        .inside
        .iter()
        .chain(&correction.outside)
        .collect();
    if let Some(first) = findings.errors.first_mut() {
        first.repaired = Some(Arc::new(with_left(&to_yaml(&value), &left)));
    }
    // An error at the place where a value is written is not repeated for the place where it belongs.
    let place = |error: &ConfigError| (error.line, error.column, error.message.clone());
    let reported: HashSet<_> = findings.errors.iter().map(place).collect();
    let is_new = |error: &ConfigError| error.line.is_none() || !reported.contains(&place(error));
    findings
        .errors
        .extend(correction.moved.into_iter().filter(is_new));
}

/// How a line begins that names an error which a correction leaves.
const LEAVES: &str = "# leaves ";
/// Most errors that are named so.
const MAX_LEFT: usize = 20;

/// A correction, with the errors that it leaves as comments in place of those that it had.
pub(crate) fn with_left(repaired: &str, left: &[&ConfigError]) -> String {
    let mut out: String = repaired
        .lines()
        .filter(|line| !line.starts_with(LEAVES))
        .flat_map(|line| [line, "\n"])
        .collect();
    for error in left.iter().take(MAX_LEFT) {
        let colon = if error.path.is_empty() { "" } else { ": " };
        let line = format!("{LEAVES}the error {}{colon}{}", error.path, error.message);
        out.push_str(&one_line(&line));
        out.push('\n');
    }
    if left.len() > MAX_LEFT {
        out.push_str(&format!("{LEAVES}{} more errors\n", left.len() - MAX_LEFT));
    }
    out
}

/// Whether a path is one of these or below one.
fn is_inside(targets: &[String], path: &str) -> bool {
    targets.iter().any(|target| {
        path.strip_prefix(target.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    })
}

/// Moves what can be moved; gives whether anything was.
fn move_all(
    root: &mut Node,
    misplaced: &[Misplacement],
    touched: &mut Vec<String>,
    targets: &mut Vec<String>,
) -> bool {
    let mut any = false;
    for Misplacement { from, to } in misplaced {
        // The source is left where the target is taken already.
        let Some(node) = find(root, from).cloned() else {
            continue;
        };
        if !put(root, to, node) {
            continue;
        }
        remove(root, from);
        any = true;
        for path in [from, to] {
            if let Some(Segment::Key(top)) = path.first()
                && !touched.contains(top)
            {
                touched.push(top.clone());
            }
        }
        let keys: Vec<&str> = to
            .iter()
            .filter_map(|segment| match segment {
                Segment::Key(key) => Some(key.as_str()),
                Segment::Index(_) | Segment::Named(_) => None,
            })
            .collect();
        targets.push(keys.join("."));
    }
    any
}

pub(crate) fn find<'n>(root: &'n Node, path: &[Segment]) -> Option<&'n Node> {
    path.iter()
        .try_fold(root, |node, segment| match (segment, &node.tree) {
            (Segment::Key(key), _) => node.get(key),
            (Segment::Index(index), Tree::List(items)) => items.get(*index),
            (Segment::Named(name), Tree::List(items)) => items
                .iter()
                .find(|item| item.get("name").and_then(Node::text) == Some(name)),
            _ => None,
        })
}

/// Puts a node at a path, making maps, lists and named elements on the way; returns whether that was possible: nothing that is
/// there already is replaced.
fn put(root: &mut Node, path: &[Segment], node: Node) -> bool {
    let Some((first, rest)) = path.split_first() else {
        if matches!(root.tree, Tree::Null) {
            *root = node;
            return true;
        }
        // Two halves of one section come together.
        return match (&mut root.tree, node.tree) {
            (Tree::Map(ours), Tree::Map(theirs)) => {
                let distinct = theirs.keys().all(|key| !ours.contains_key(key));
                if distinct {
                    ours.extend(theirs);
                }
                distinct
            }
            _ => false,
        };
    };
    match first {
        Segment::Key(key) => {
            if matches!(root.tree, Tree::Null) {
                root.tree = Tree::Map(BTreeMap::new());
            }
            let Some(members) = root.members_mut() else {
                return false;
            };
            let mut member = members.remove(key).unwrap_or_else(|| Node::new(Tree::Null));
            let done = put(&mut member, rest, node);
            if done || !matches!(member.tree, Tree::Null) {
                members.insert(key.clone(), member);
            }
            done
        }
        Segment::Index(index) => match &mut root.tree {
            Tree::List(items) => items
                .get_mut(*index)
                .is_some_and(|item| put(item, rest, node)),
            _ => false,
        },
        Segment::Named(name) => {
            if matches!(root.tree, Tree::Null) {
                root.tree = Tree::List(Vec::new());
            }
            let Tree::List(items) = &mut root.tree else {
                return false;
            };
            let known = items
                .iter()
                .position(|item| item.get("name").and_then(Node::text) == Some(name));
            let index = known.unwrap_or_else(|| {
                let own = Node::new(Tree::Text((*name).to_owned()));
                items.push(Node::new(Tree::Map(BTreeMap::from([(
                    "name".to_owned(),
                    own,
                )]))));
                items.len() - 1
            });
            put(&mut items[index], rest, node)
        }
    }
}

/// Removes the node at a path; a map that is then empty may have a meaning (`emptyDir: {}`).
fn remove(root: &mut Node, path: &[Segment]) {
    let Some((first, rest)) = path.split_first() else {
        return;
    };
    match (first, &mut root.tree) {
        (Segment::Key(key), Tree::Map(members)) => {
            if rest.is_empty() {
                members.remove(key);
            } else if let Some(member) = members.get_mut(key) {
                remove(member, rest);
            }
        }
        (Segment::Index(index), Tree::List(items)) => {
            if let Some(item) = items.get_mut(*index) {
                remove(item, rest);
            }
        }
        _ => {}
    }
}
