//! One configuration from files, environment and flags: a flag beats the environment, the environment beats the files,
//! a later file beats an earlier one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::errors::{ConfigError, ConfigErrors, ConfigWarning, each_once};
use crate::layer_text::{LayerText, read_layer};
use crate::origin::{Layer, Position, Source};
use crate::schema::{
    Document, Findings, Kind, LayerErrors, Leaf, Section, Stage, check_document, env_name, leaves,
};
use crate::yaml::{self, Node, Tree};

mod elements;
mod processes;
mod variables;

pub use processes::{LoadedAgent, LoadedConfig, LoadedMaster};

/// What a process is configured with: texts, variables and flags. The default is nothing of each.
#[derive(Debug, Clone, Copy)]
pub struct Sources<'a> {
    /// `(name, text)`, later ones stronger.
    pub files: &'a [(String, String)],
    /// The environment; only `DET_…` names of known keys count.
    pub env: &'a BTreeMap<String, String>,
    /// `(dotted key, value)`, stronger than everything else.
    pub flags: &'a [(String, String)],
}

impl Default for Sources<'_> {
    fn default() -> Self {
        static NO_VARIABLES: BTreeMap<String, String> = BTreeMap::new();
        Self {
            files: &[],
            env: &NO_VARIABLES,
            flags: &[],
        }
    }
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
            Ok(LayerText {
                root: mut node,
                errors: of_layer,
                ..
            }) => {
                if matches!(node.tree, Tree::Null) {
                    node.tree = Tree::Map(BTreeMap::new());
                }
                errors.extend(of_layer);
                layers.push(node);
            }
            Err(failed) => errors.extend(failed.0),
        }
    }
    let known = leaves(document.root);
    let mut warnings = Vec::new();
    let files = layers.len();
    layers.push(from_environment(&known, sources.env, &mut errors));
    layers.push(from_flags(&known, sources.flags, &mut errors));
    let mut root = Node::new(Tree::Map(BTreeMap::new()));
    let mut earlier = LayerErrors {
        errors,
        ..LayerErrors::default()
    };
    let mut inside = InnerSettings {
        section: document.root,
        errors: Vec::new(),
        variables: BTreeSet::new(),
    };
    for (number, mut layer) in layers.into_iter().enumerate() {
        let mut findings = Findings::new(document, Stage::Sane);
        let written = layer.clone();
        check_document(&mut findings, &mut layer);
        crate::repair::propose(&mut findings, &written);
        let (of_layer, more) = findings.taken();
        warnings.extend(more);
        earlier.extend(of_layer);
        // What is missing is missing in the first file, if there is one.
        if root.at.is_none() && layer.at.is_some() {
            root.at.clone_from(&layer.at);
        }
        overlay(&mut root, layer);
        // What reaches into lists changes what this layer and those below it gave.
        if number == files {
            inside.take_environment(&mut root, &known, sources.env);
        } else if number == files + 1 {
            inside.take_flags(&mut root, &known, sources.flags);
        }
    }
    earlier.errors.append(&mut inside.errors);
    let mut findings = Findings::new(document, Stage::Complete);
    check_document(&mut findings, &mut root);
    // A warning about a layer is not repeated for the whole.
    warnings.extend(findings.finish_after(earlier)?);
    let mut warnings = each_once(warnings);
    // Each of these is about a variable of its own.
    warnings.extend(variables::unknown(document.root, sources.env, |name| {
        inside.variables.contains(name)
    }));
    Ok((root, warnings))
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
        .filter(|(_, leaf)| is_single_value(leaf.kind))
        .map(|(name, _)| name)
        .collect()
}

fn is_single_value(kind: Kind) -> bool {
    !matches!(
        kind,
        Kind::Section(_) | Kind::Union(_) | Kind::List(_) | Kind::Map(_) | Kind::AnyMap
    )
}

/// Of these variables those that name a file with the value of another one, with that: `(DET_DB_PASSWORD_FILE,
/// DET_DB_PASSWORD)`. For keys that hold a single value, also within elements of lists.
pub(crate) fn file_variables<'n>(
    section: &'static Section,
    names: impl Iterator<Item = &'n String>,
) -> Vec<(String, String)> {
    let values = value_names(section);
    let is_value = |name: &str| values.iter().any(|known| known == name);
    names
        .filter_map(|name| {
            let value = name.strip_suffix("_FILE").filter(|value| is_value(value));
            let of_file = match value {
                // A key of its own, like `agent_token_file`, is read as that key.
                Some(_) if is_value(name) => None,
                Some(value) => Some(value.to_owned()),
                None => elements::variable_of_file(name, section),
            };
            Some((name.clone(), of_file?))
        })
        .collect()
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
        if let Some(leaf) = known.iter().find(|leaf| leaf.path == *path) {
            let flag = format!("--{}", path.replace(['.', '_'], "-"));
            put(
                &mut layer,
                leaf,
                value,
                Source::of(Layer::Flag, flag),
                errors,
            );
        }
    }
    layer
}

/// Settings inside lists and free maps, over what is merged already.
struct InnerSettings {
    section: &'static Section,
    errors: Vec<ConfigError>,
    /// Variables that are such settings, right ones and wrong ones.
    variables: BTreeSet<String>,
}

impl InnerSettings {
    fn take_environment(
        &mut self,
        root: &mut Node,
        known: &[Leaf],
        env: &BTreeMap<String, String>,
    ) {
        let whole = env_names(known);
        for (name, value) in env.iter().filter(|(name, _)| !whole.contains_key(*name)) {
            let Some(steps) = elements::steps_of_variable(name, self.section, root) else {
                continue;
            };
            self.variables.insert(name.clone());
            let place = place_of(Source::variable(name.as_str()));
            self.set(root, steps, name, value, &place);
        }
    }

    fn take_flags(&mut self, root: &mut Node, known: &[Leaf], flags: &[(String, String)]) {
        for (path, value) in flags {
            if known.iter().any(|leaf| leaf.path == *path) {
                continue;
            }
            let place = place_of(Source::of(Layer::Flag, format!("--set {path}")));
            self.set(root, elements::steps(path), path, value, &place);
        }
    }

    fn set(
        &mut self,
        root: &mut Node,
        steps: Result<Vec<elements::Step>, elements::PathError>,
        path: &str,
        text: &str,
        place: &Position,
    ) {
        // Half a path that leads nowhere is to leave nothing behind.
        let mut changed = root.clone();
        let reached =
            steps.and_then(|steps| elements::reach(&mut changed, self.section, &steps, place));
        let (target, kind) = match reached {
            Ok(found) => found,
            Err(nowhere) => {
                let error = ConfigError::new(nowhere.path, Some(place), nowhere.message);
                self.errors.push(match nowhere.hint {
                    Some(hint) => error.with_hint(hint),
                    None => error,
                });
                return;
            }
        };
        match parsed(kind, path, text, place) {
            Ok(node) => {
                overlay(target, node);
                *root = changed;
            }
            Err(wrong) => self.errors.extend(wrong),
        }
    }
}

/// Sets one key of a layer from text.
fn put(layer: &mut Node, leaf: &Leaf, text: &str, source: Source, errors: &mut Vec<ConfigError>) {
    match parsed(leaf.kind, &leaf.path, text, &place_of(source)) {
        Ok(node) => layer.put(&leaf.path, node),
        Err(wrong) => errors.extend(wrong),
    }
}

/// A value as text, with its place everywhere in it.
fn parsed(kind: Kind, path: &str, text: &str, place: &Position) -> Result<Node, Vec<ConfigError>> {
    let is_text = match kind {
        Kind::Text | Kind::Choice(_) | Kind::Duration => true,
        Kind::Special(special) => special.is_text,
        _ => false,
    };
    let mut node = if is_text {
        Node::new(Tree::Text(text.to_owned()))
    } else {
        yaml::parse(text).map_err(|failed| -> Vec<ConfigError> {
            failed
                .0
                .into_iter()
                .map(|error| ConfigError::new(path, Some(place), error.code.message(error.message)))
                .collect()
        })?
    };
    // A variable has no lines worth naming.
    node.each_place(&mut |at| *at = place.clone());
    Ok(node)
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
