//! One configuration from files, environment and flags: a flag beats the environment, the environment beats the files,
//! a later file beats an earlier one. `master-config` reference §1 and §12.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::document::read_layer;
use crate::errors::{ConfigError, ConfigErrors, ConfigWarning, Position, each_once, edit_distance};
use crate::origin::{Layer, Source};
use crate::schema::{Checker, Document, Kind, Leaf, Mistakes, Section, Stage, env_name, leaves};
use crate::yaml::{self, Node, Tree};

/// What a process is configured with: texts, variables and flags.
#[derive(Debug, Clone, Copy)]
pub struct Sources<'a> {
    /// `(name, text)`, later ones stronger.
    pub files: &'a [(String, String)],
    /// The environment; only `DET_…` names of known keys count.
    pub env: &'a BTreeMap<String, String>,
    /// `(dotted key, value)`.
    pub flags: &'a [(String, String)],
}

/// Merges all layers and checks the whole; defaults are not filled in yet. Also gives the warnings.
pub(crate) fn load(
    document: &'static Document,
    sources: Sources<'_>,
) -> Result<(Node, Vec<ConfigWarning>), ConfigErrors> {
    let mut errors = Vec::new();
    let mut layers = Vec::new();
    for (name, text) in sources.files {
        let source = Arc::new(Source::document(name.as_str()));
        match read_layer(text, Some(&source)) {
            Ok((mut node, mistakes)) => {
                if matches!(node.tree, Tree::Null) {
                    node.tree = Tree::Map(BTreeMap::new());
                }
                errors.extend(mistakes);
                layers.push(node);
            }
            Err(failed) => errors.extend(failed.0),
        }
    }
    let known = leaves(document.root);
    let mut warnings = nearly_known(&known, sources.env);
    layers.push(from_environment(&known, sources.env, &mut errors));
    layers.push(from_flags(&known, sources.flags, &mut errors));
    let mut root = Node::new(Tree::Map(BTreeMap::new()));
    let mut earlier = Mistakes {
        errors,
        meant: Vec::new(),
    };
    for mut layer in layers {
        let mut checker = Checker::new(document, Stage::Sane);
        let written = layer.clone();
        checker.check(&mut layer);
        crate::repair::propose(&mut checker, &written);
        let (mistakes, more) = checker.taken();
        warnings.extend(more);
        earlier.extend(mistakes);
        // What is missing is missing in the first file, if there is one.
        if root.at.is_none() && layer.at.is_some() {
            root.at.clone_from(&layer.at);
        }
        overlay(&mut root, layer);
    }
    let mut checker = Checker::new(document, Stage::Complete);
    checker.check(&mut root);
    checker.add_earlier(earlier);
    // What was said of a layer is not said again of the whole.
    warnings.append(&mut checker.warnings);
    ConfigErrors::check(checker.errors)?;
    Ok((root, each_once(warnings)))
}

/// Two paths can have one variable; the longer path, which is the more specific key, gets it.
pub(crate) fn env_names(known: &[Leaf]) -> BTreeMap<String, &Leaf> {
    let mut names: BTreeMap<String, &Leaf> = BTreeMap::new();
    for leaf in known {
        let name = env_name(&leaf.path);
        let depth = |leaf: &Leaf| leaf.path.matches('.').count();
        match names.get(&name) {
            Some(other) if depth(other) >= depth(leaf) => {}
            _ => {
                names.insert(name, leaf);
            }
        }
    }
    names
}

/// The variables of keys that hold a single value, not a section or a list.
pub(crate) fn value_names(section: &'static Section) -> Vec<String> {
    let known = leaves(section);
    env_names(&known)
        .into_iter()
        .filter(|(_, leaf)| {
            !matches!(
                leaf.kind,
                Kind::Section(_) | Kind::Union(_) | Kind::List(_) | Kind::Map(_) | Kind::AnyMap
            )
        })
        .map(|(name, _)| name)
        .collect()
}

/// The dotted paths of keys that a flag can set, and whether each is a switch.
pub(crate) fn flags(section: &'static Section) -> Vec<(String, bool)> {
    leaves(section)
        .into_iter()
        .map(|leaf| (leaf.path, matches!(leaf.kind, Kind::Bool)))
        .collect()
}

/// Variables of ours that look like a slip of a known one. Others of this prefix belong to clients and tasks.
fn nearly_known(known: &[Leaf], env: &BTreeMap<String, String>) -> Vec<ConfigWarning> {
    let names = env_names(known);
    let slips = env.keys().filter_map(|name| {
        if !name.starts_with("DET_") || names.contains_key(name) || name.len() < 10 {
            return None;
        }
        let near = names
            .keys()
            .find(|known| edit_distance(name, known, 1).is_some())?;
        let message = format!("is not a variable of this configuration; did you mean \"{near}\"?");
        let place = place_of(Source::variable(name.as_str()));
        Some(ConfigWarning::new("", Some(&place), message))
    });
    slips.collect()
}

fn place_of(source: Source) -> Position {
    Position {
        source: Some(Arc::new(source)),
        line: 0,
        column: 0,
    }
}

fn from_environment(
    known: &[Leaf],
    env: &BTreeMap<String, String>,
    errors: &mut Vec<ConfigError>,
) -> Node {
    let mut layer = Node::new(Tree::Map(BTreeMap::new()));
    let mut given: Vec<(&String, &Leaf, &String)> = env_names(known)
        .into_iter()
        .filter_map(|(name, leaf)| {
            let (name, value) = env.get_key_value(&name)?;
            Some((name, leaf, value))
        })
        .collect();
    // Whole sections first, so that a single key beats the section around it.
    given.sort_by_key(|(_, leaf, _)| leaf.path.matches('.').count());
    for (name, leaf, value) in given {
        put(
            &mut layer,
            leaf,
            value,
            Source::variable(name.as_str()),
            errors,
        );
    }
    layer
}

fn from_flags(known: &[Leaf], flags: &[(String, String)], errors: &mut Vec<ConfigError>) -> Node {
    let mut layer = Node::new(Tree::Map(BTreeMap::new()));
    for (path, value) in flags {
        let flag = format!("--{}", path.replace(['.', '_'], "-"));
        let source = Source::of(Layer::Flag, flag);
        match known.iter().find(|leaf| leaf.path == *path) {
            Some(leaf) => put(&mut layer, leaf, value, source, errors),
            None => {
                let mut error = ConfigError::new(
                    path,
                    Some(&place_of(source)),
                    "is not a key that a flag can set",
                );
                let near = known
                    .iter()
                    .find(|leaf| edit_distance(path, &leaf.path, 2).is_some());
                if let Some(near) = near {
                    error = error.with_hint(format!("did you mean \"{}\"?", near.path));
                }
                errors.push(error);
            }
        }
    }
    layer
}

/// Sets one key of a layer from text.
fn put(layer: &mut Node, leaf: &Leaf, text: &str, source: Source, errors: &mut Vec<ConfigError>) {
    let is_text = match leaf.kind {
        Kind::Text | Kind::Choice(_) | Kind::Duration => true,
        Kind::Special(special) => special.is_text,
        _ => false,
    };
    let place = place_of(source);
    let parsed = if is_text {
        Ok(Node::new(Tree::Text(text.to_owned())))
    } else {
        yaml::parse(text)
    };
    match parsed {
        Ok(mut node) => {
            // A variable has no lines worth naming.
            node.each_place(&mut |at| *at = place.clone());
            layer.put(&leaf.path, node);
        }
        Err(failed) => {
            errors.extend(
                failed
                    .0
                    .into_iter()
                    .map(|error| ConfigError::new(&leaf.path, Some(&place), error.message)),
            );
        }
    }
}

/// Lays `strong` over `base`: maps merge, everything else replaces.
fn overlay(base: &mut Node, strong: Node) {
    match (&mut base.tree, strong.tree) {
        (_, Tree::Null) => {}
        (Tree::Map(ours), Tree::Map(theirs)) => {
            for (key, node) in theirs {
                match ours.get_mut(&key) {
                    Some(member) => overlay(member, node),
                    None => {
                        ours.insert(key, node);
                    }
                }
            }
        }
        (ours, theirs) => {
            *ours = theirs;
            base.at = strong.at;
        }
    }
}
