//! The text of one layer of a configuration, and where paths are in it.

use std::sync::Arc;

use crate::errors::{ConfigError, ConfigErrors, ConfigWarning};
use crate::origin::{Position, Source};
use crate::yaml::{self, Node, Tree};

/// A layer as it was read.
pub(crate) struct LayerText {
    pub(crate) root: Node,
    /// What does not keep the rest from being checked.
    pub(crate) errors: Vec<ConfigError>,
    /// Values without quotes that YAML 1.1 read as something else, wherever they are.
    ambiguous: Vec<ConfigWarning>,
}

impl LayerText {
    /// Warnings of hyperparameters that YAML 1.1 read as something else: training code gets a text where a boolean is
    /// meant. `around` is the key that the configuration is below, if any.
    pub(crate) fn ambiguous_hyperparameters(&self, around: Option<&str>) -> Vec<ConfigWarning> {
        let place = match around {
            Some(around) => format!("{around}.hyperparameters."),
            None => "hyperparameters.".to_owned(),
        };
        self.ambiguous
            .iter()
            .filter(|warning| warning.path.starts_with(&place))
            .cloned()
            .collect()
    }
}

/// Reads a layer and names what it was read from.
pub(crate) fn read_layer(
    text: &str,
    source: Option<&Arc<Source>>,
) -> Result<LayerText, ConfigErrors> {
    let place: Option<Arc<str>> = source.map(|source| source.place().into());
    let named = |error: &mut ConfigError| error.source.clone_from(&place);
    let yaml::Reading {
        mut root,
        mut errors,
        mut ambiguous,
    } = yaml::read(text).map_err(|mut failed| {
        failed.0.iter_mut().for_each(named);
        failed
    })?;
    errors.iter_mut().for_each(named);
    for warning in &mut ambiguous {
        warning.source.clone_from(&place);
    }
    if let Some(source) = source {
        root.set_source(source);
    }
    Ok(LayerText {
        root,
        errors,
        ambiguous,
    })
}

/// Where a path is in a document; `None` = it is not in the document.
pub(crate) fn place_of_whole_path<'n>(root: &'n Node, path: &str) -> Option<&'n Position> {
    steps_of(path).try_fold(root, below)?.at.as_ref()
}

/// Where a path is in a document, or the deepest part of it that does.
pub(crate) fn place_of_path<'n>(root: &'n Node, path: &str) -> Option<&'n Position> {
    let (mut node, mut place) = (root, root.at.as_ref());
    for step in steps_of(path) {
        let Some(found) = below(node, step) else {
            break;
        };
        node = found;
        place = found.at.as_ref().or(place);
    }
    place
}

fn steps_of(path: &str) -> impl Iterator<Item = &str> {
    path.split(['.', '['])
        .map(|step| step.trim_end_matches(']'))
}

fn below<'n>(node: &'n Node, step: &str) -> Option<&'n Node> {
    match &node.tree {
        Tree::Map(members) => members.get(step),
        Tree::List(items) => items.get(step.parse::<usize>().ok()?),
        _ => None,
    }
}
