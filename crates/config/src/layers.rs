//! One configuration from files, environment and flags: a flag beats the environment, the environment beats the files,
//! a later file beats an earlier one. `master-config` reference §1 and §12.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::errors::{ConfigError, ConfigErrors};
use crate::schema::{Checker, Kind, Leaf, Section, Stage, leaves};
use crate::yaml::{self, Node, Tree};

/// What a kind of configuration is made of.
pub(crate) struct Schema {
    pub(crate) root: &'static Section,
    pub(crate) suggestions: &'static [(&'static str, &'static str)],
    /// Rewrites older forms of one layer before it is checked.
    pub(crate) translate: fn(&mut Checker, &mut Node),
}

impl Schema {
    pub(crate) fn checker(&self, stage: Stage) -> Checker {
        Checker::new(self.root, self.suggestions, stage)
    }

    /// Merges all layers and checks the whole; defaults are not filled in yet. Also gives the warnings.
    pub(crate) fn load(
        &self,
        files: &[(String, String)],
        env: &BTreeMap<String, String>,
        flags: &[(String, String)],
    ) -> Result<(Node, Vec<String>), ConfigErrors> {
        let mut errors = Vec::new();
        let mut layers = Vec::new();
        for (name, text) in files {
            match yaml::parse(text) {
                Ok(mut node) => {
                    if matches!(node.tree, Tree::Null) {
                        node.tree = Tree::Map(BTreeMap::new());
                    }
                    node.set_source(&Arc::from(name.as_str()));
                    layers.push(node);
                }
                Err(failed) => errors.extend(failed.0.into_iter().map(|mut error| {
                    error.source = Some(name.clone());
                    error
                })),
            }
        }
        let known = leaves(self.root);
        layers.push(from_environment(&known, env, &mut errors));
        layers.push(from_flags(&known, flags, &mut errors));
        let mut warnings = Vec::new();
        let mut root = Node::new(Tree::Map(BTreeMap::new()));
        for mut layer in layers {
            let mut checker = self.checker(Stage::Sane);
            (self.translate)(&mut checker, &mut layer);
            match checker.run(&mut layer) {
                Ok(more) => warnings.extend(more),
                Err(failed) => errors.extend(failed.0),
            }
            overlay(&mut root, layer);
        }
        ConfigErrors::check(errors)?;
        warnings.extend(self.checker(Stage::Complete).run(&mut root)?);
        let mut seen = Vec::new();
        for warning in warnings {
            if !seen.contains(&warning) {
                seen.push(warning);
            }
        }
        Ok((root, seen))
    }
}

/// The variable that sets a key: `db.ssl_mode` is `DET_DB_SSL_MODE`.
pub(crate) fn env_name(path: &str) -> String {
    format!("DET_{}", path.replace(['.', '-'], "_").to_ascii_uppercase())
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
        put(&mut layer, leaf, value, name, errors);
    }
    layer
}

fn from_flags(known: &[Leaf], flags: &[(String, String)], errors: &mut Vec<ConfigError>) -> Node {
    let mut layer = Node::new(Tree::Map(BTreeMap::new()));
    for (path, value) in flags {
        match known.iter().find(|leaf| leaf.path == *path) {
            Some(leaf) => {
                let source = format!("--{}", path.replace(['.', '_'], "-"));
                put(&mut layer, leaf, value, &source, errors);
            }
            None => errors.push(ConfigError::new(
                path,
                None,
                "is not a key that a flag can set",
            )),
        }
    }
    layer
}

/// Sets one key of a layer from text.
fn put(layer: &mut Node, leaf: &Leaf, text: &str, source: &str, errors: &mut Vec<ConfigError>) {
    let parsed = match leaf.kind {
        Kind::Text | Kind::TextBy(_) | Kind::Choice(_) | Kind::Duration => {
            Ok(Node::new(Tree::Text(text.to_owned())))
        }
        _ => yaml::parse(text),
    };
    let mut node = match parsed {
        Ok(node) => node,
        Err(failed) => {
            for error in failed.0 {
                let mut error = ConfigError::new(&leaf.path, None, error.message);
                error.source = Some(source.to_owned());
                errors.push(error);
            }
            return;
        }
    };
    node.set_source(&Arc::from(source));
    clear_lines(&mut node);
    let mut target = layer;
    for key in leaf.path.split('.') {
        if target.members().is_none() {
            target.tree = Tree::Map(BTreeMap::new());
        }
        let Some(members) = target.members_mut() else {
            return;
        };
        target = members
            .entry(key.to_owned())
            .or_insert_with(|| Node::new(Tree::Null));
    }
    *target = node;
}

/// A variable has no lines worth naming.
fn clear_lines(node: &mut Node) {
    if let Some(at) = &mut node.at {
        (at.line, at.column) = (0, 0);
    }
    match &mut node.tree {
        Tree::List(items) => items.iter_mut().for_each(clear_lines),
        Tree::Map(members) => members.values_mut().for_each(clear_lines),
        _ => {}
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
