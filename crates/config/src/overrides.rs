//! `--config key=value`: `docs/contract/configuration.md`, "Overrides".

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::errors::{ConfigError, ConfigErrors, ConfigWarning};
use crate::layer_text::read_layer;
use crate::origin::{Layer, Position, Source};
use crate::quote::cut;
use crate::schema::closest;
use crate::yaml::{self, Node, Tree, parse_scalar, to_yaml};

/// Applies overrides to a document, in order, later ones over earlier ones, and gives back the new text. Without overrides
/// the text comes back byte for byte; with any it is written anew, without its comments.
///
/// # Errors
/// The document is not YAML or no map, an override has no `=`, or its value is not YAML.
pub fn apply_overrides<S: AsRef<str>>(text: &str, overrides: &[S]) -> Result<String, ConfigErrors> {
    if overrides.is_empty() {
        return Ok(text.to_owned());
    }
    let mut root = yaml::parse(text)?;
    ConfigErrors::check(apply_all(&mut root, overrides))?;
    Ok(to_yaml(&root.to_value()))
}

/// Applies overrides to a tree, in order; the place of what they bring names the override. Returns the errors.
pub(crate) fn apply_all<S: AsRef<str>>(root: &mut Node, overrides: &[S]) -> Vec<ConfigError> {
    if overrides.is_empty() {
        return Vec::new();
    }
    if matches!(root.tree, Tree::Null) {
        root.tree = Tree::Map(BTreeMap::new());
    }
    if root.members().is_none() {
        let message = format!("must be a map, not {}", root.kind());
        return vec![ConfigError::new("", root.at.as_ref(), message)];
    }
    overrides
        .iter()
        .filter_map(|text| apply(root, text.as_ref()).err())
        .collect()
}

/// Warnings about overrides that probably do not what was meant: one adds a hyperparameter to a document which has one of a
/// similar name, where any name is allowed, so that a misspelt one changes nothing; or its value is a text without quotes that
/// YAML 1.1 read as something else.
pub fn unlikely<S: AsRef<str>>(text: &str, overrides: &[S]) -> Vec<ConfigWarning> {
    // A text that is not YAML was refused before.
    let Ok(root) = yaml::parse(text) else {
        return Vec::new();
    };
    let mut warnings = Vec::new();
    for (key, value) in keys_and_values(overrides) {
        warnings.extend(unlikely_key(&root, key));
        if key.starts_with("hyperparameters.") {
            let read = yaml::read(value).map(|reading| reading.ambiguous);
            // Its place in the value is none in a text.
            let of_key = |warning: ConfigWarning| ConfigWarning::new(key, None, warning.message);
            warnings.extend(read.unwrap_or_default().into_iter().map(of_key));
        }
    }
    warnings
}

/// Warnings about hyperparameters of the document, as those of [`crate::SubmittedDocument`], that the text which
/// [`apply_overrides`] writes anew gives no more: there every text has its quotes. None without overrides.
pub fn hidden_by_overrides<S: AsRef<str>>(text: &str, overrides: &[S]) -> Vec<ConfigWarning> {
    let Ok(layer) = read_layer(text, None) else {
        return Vec::new();
    };
    if overrides.is_empty() {
        return Vec::new();
    }
    let mut warnings = layer.ambiguous_hyperparameters(None);
    warnings.retain(|warning| keys_and_values(overrides).all(|(key, _)| key != warning.path));
    warnings
}

fn keys_and_values<S: AsRef<str>>(overrides: &[S]) -> impl Iterator<Item = (&str, &str)> {
    overrides
        .iter()
        .filter_map(|text| text.as_ref().split_once('='))
}

fn unlikely_key(root: &Node, key: &str) -> Option<ConfigWarning> {
    let below = key.strip_prefix("hyperparameters.")?;
    let mut group = root.get("hyperparameters")?;
    for segment in below.split('.') {
        // The keys of a range are checked by the schema.
        if group.get("type").and_then(Node::text).is_some() {
            return None;
        }
        let Some(found) = group.get(segment) else {
            let near = closest(segment, group.members()?.keys().map(String::as_str))?;
            let message = format!(
                "is added by --config: the configuration has no such hyperparameter; did you mean \"{}\"?",
                cut(near)
            );
            return Some(ConfigWarning::new(key, None, message));
        };
        group = found;
    }
    None
}

fn apply(root: &mut Node, text: &str) -> Result<(), ConfigError> {
    // The value may be a secret: errors and origins name the key alone.
    let key = text.split_once('=').map_or(text, |(key, _)| key);
    let place = Position {
        source: Some(Arc::new(Source::of(
            Layer::Override,
            format!("--config {}", cut(key)),
        ))),
        line: 0,
        column: 0,
    };
    let wrong = |message: String| ConfigError::new("", Some(&place), message);
    let Some((key, value)) = text.split_once('=') else {
        return Err(wrong(format!(
            "override \"{}\" must have the form \"key.path=value\"",
            cut(text)
        )));
    };
    let segments: Vec<&str> = key.split('.').collect();
    if segments.iter().any(|segment| segment.is_empty()) {
        return Err(wrong(format!("override \"{}\" has an empty key", cut(key))));
    }
    if let Some((list, _)) = key.split_once('[')
        && segments.iter().any(|segment| segment.ends_with(']'))
    {
        let message = format!(
            "\"{}\" reaches into a list, which --config gives whole",
            cut(key)
        );
        return Err(wrong(message).with_hint(format!("write --config '{}=[VALUE, …]'", cut(list))));
    }
    let mut value = parse_value(key, value)
        .map_err(|reason| ConfigError::new(key, Some(&place), format!("the value {reason}")))?;
    value.each_place(&mut |at| *at = place.clone());
    set(root, &segments, value);
    Ok(())
}

fn parse_value(key: &str, text: &str) -> Result<Node, String> {
    let mounts = key == "bind_mounts";
    let flow = |text: &str| {
        yaml::parse(text).map_err(|errors| {
            errors
                .0
                .first()
                .map_or_else(String::new, |error| error.message.clone())
        })
    };
    if text.starts_with(['[', '{']) {
        let node = flow(text)?;
        let wrap = mounts && node.members().is_some();
        return Ok(if wrap { list(vec![node]) } else { node });
    }
    if text.contains(',') {
        let parts: Result<Vec<Node>, String> =
            text.split(',').map(|part| flow(part.trim())).collect();
        return Ok(list(parts?));
    }
    // A bare value may hold `: ` or `#`, which YAML would take for a map or a comment.
    let node = match text.trim() {
        quoted if quoted.starts_with(['"', '\'']) => flow(quoted)?,
        plain => Node::new(parse_scalar(plain).map_err(|reason| format!("is wrong: {reason}"))?),
    };
    Ok(if mounts { list(vec![node]) } else { node })
}

fn list(items: Vec<Node>) -> Node {
    Node::new(Tree::List(items))
}

/// Puts `value` at the path: maps merge into maps, anything else replaces.
fn set(node: &mut Node, segments: &[&str], value: Node) {
    let Some((first, rest)) = segments.split_first() else {
        return merge(node, value);
    };
    if node.members().is_none() {
        node.tree = Tree::Map(BTreeMap::new());
    }
    if let Some(members) = node.members_mut() {
        let member = members.entry((*first).to_owned()).or_insert_with(|| Node {
            tree: Tree::Null,
            at: value.at.clone(),
        });
        set(member, rest, value);
    }
}

fn merge(node: &mut Node, value: Node) {
    match (&mut node.tree, value.tree) {
        (Tree::Map(ours), Tree::Map(theirs)) => {
            for (key, value) in theirs {
                merge(
                    ours.entry(key).or_insert_with(|| Node::new(Tree::Null)),
                    value,
                );
            }
        }
        (ours, theirs) => {
            *ours = theirs;
            node.at = value.at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_yaml_1_1_read_as_something_else_are_warned_of_with_overrides_too() {
        let text = "hyperparameters:\n  lr: yes\n  n: 010\n  q: 'yes'\n";
        let paths = |warnings: Vec<ConfigWarning>| -> Vec<String> {
            warnings.into_iter().map(|warning| warning.path).collect()
        };
        assert_eq!(hidden_by_overrides(text, &[] as &[&str]), []);
        let given = ["hyperparameters.lr=off", "name=no"];
        assert_eq!(
            paths(hidden_by_overrides(text, &given)),
            ["hyperparameters.n"]
        );
        assert_eq!(paths(unlikely(text, &given)), ["hyperparameters.lr"]);
        assert_eq!(unlikely(text, &["hyperparameters.lr='off'"]), []);
    }

    #[test]
    fn an_override_that_adds_a_hyperparameter_like_another_is_noticed() {
        let text = "hyperparameters:\n  lr: 0.1\n  net:\n    layers: 3\n    act: {type: categorical, vals: [a]}\n";
        let of = |key: &str| {
            let found = unlikely(text, &[format!("{key}=5")]);
            found.first().map(ToString::to_string)
        };
        assert_eq!(
            of("hyperparameters.lrr").unwrap(),
            "hyperparameters.lrr: is added by --config: the configuration has no such hyperparameter; did you mean \"lr\"?"
        );
        let nested = of("hyperparameters.net.layres").unwrap();
        assert!(nested.ends_with("did you mean \"layers\"?"), "{nested}");
        for fine in [
            "hyperparameters.lr",
            "hyperparameters.bs",
            "hyperparameters.dropout",
            "hyperparameters.net.layers",
            "hyperparameters.net.act.typo",
            "hyperparameters.lr.minval",
            "searcher.metrik",
            "name",
        ] {
            assert_eq!(of(fine), None, "{fine}");
        }
        assert_eq!(unlikely("[", &["hyperparameters.lrr=1"]), []);
    }
}
