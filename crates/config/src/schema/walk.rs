//! Walks over the schema that do not check: defaults, secrets, leaves.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Field, Kind, Section, Union};
use crate::secrets::{MASK, mask_named_addresses};
use crate::yaml::{Node, Tree};

/// Reads a built-in default.
pub(crate) fn default_value(json: &str) -> Value {
    serde_json::from_str(json).expect("defaults of the schema are JSON; a test reads each")
}

/// Adds the default of every missing key.
pub(crate) fn fill_defaults(node: &mut Node, section: &'static Section) {
    fill_fields(node, section.fields);
}

fn fill_fields(node: &mut Node, fields: &'static [Field]) {
    let Some(members) = node.members_mut() else {
        return;
    };
    for field in fields {
        if let Some(json) = field.default
            && members
                .get(field.name)
                .is_none_or(|member| matches!(member.tree, Tree::Null))
        {
            members.insert(field.name.to_owned(), Node::from(&default_value(json)));
        }
        if let Some(member) = members.get_mut(field.name) {
            fill_kind(member, field.kind);
        }
    }
}

fn fill_kind(node: &mut Node, kind: Kind) {
    match kind {
        Kind::Section(section) => fill_fields(node, section.fields),
        Kind::Union(union) => {
            if let (Some(tag), Some(members)) = (union.default_tag, node.members_mut()) {
                members
                    .entry(union.tag.to_owned())
                    .or_insert_with(|| Node::new(Tree::Text(tag.to_owned())));
            }
            fill_fields(node, union.common);
            let tag = node.get(union.tag).and_then(Node::text).map(str::to_owned);
            if let Some(chosen) = union
                .variants
                .iter()
                .find(|variant| tag.as_deref() == Some(variant.name))
            {
                fill_fields(node, chosen.fields);
            }
        }
        Kind::List(item) => {
            if let Tree::List(items) = &mut node.tree {
                for element in items {
                    fill_kind(element, *item);
                }
            }
        }
        Kind::Map(item) => {
            if let Some(members) = node.members_mut() {
                for member in members.values_mut() {
                    fill_kind(member, *item);
                }
            }
        }
        _ => {}
    }
}

/// Whether a given value means no more than its absence: empty, or the default.
pub(crate) fn is_as_absent(node: &Node, field: &Field) -> bool {
    let is_default = || {
        field
            .default
            .is_some_and(|json| default_value(json) == node.to_value())
    };
    match (&node.tree, field.kind) {
        (Tree::Null, _) => true,
        (Tree::List(items), _) if items.is_empty() => true,
        (Tree::Map(members), Kind::Section(section)) => members.iter().all(|(key, member)| {
            section
                .field(key)
                .is_some_and(|field| is_as_absent(member, field))
        }),
        (Tree::Map(members), _) if members.is_empty() => true,
        _ => is_default(),
    }
}

/// Replaces every secret by [`MASK`], and passwords in addresses that are texts of the schema.
pub(crate) fn mask(value: &mut Value, section: &'static Section) {
    mask_fields(value, section.fields);
}

fn mask_fields(value: &mut Value, fields: &'static [Field]) {
    let Some(members) = value.as_object_mut() else {
        return;
    };
    for field in fields {
        let Some(member) = members.get_mut(field.name) else {
            continue;
        };
        if field.secret {
            mask_all(member);
        } else {
            mask_kind(member, field.kind, field.name);
        }
    }
}

fn mask_kind(value: &mut Value, kind: Kind, name: &str) {
    if !value.is_array() && !value.is_object() && kind.holds_secrets() {
        // Of a document with errors: what should be in a map of its own may be a secret.
        return mask_all(value);
    }
    match kind {
        Kind::Text => mask_named_addresses(name, value),
        Kind::Section(section) => mask_fields(value, section.fields),
        Kind::Union(union) => {
            mask_fields(value, union.common);
            for variant in union.variants {
                mask_fields(value, variant.fields);
            }
        }
        Kind::List(item) => {
            if let Some(items) = value.as_array_mut() {
                for element in items {
                    mask_kind(element, *item, name);
                }
            }
        }
        Kind::Map(item) => {
            if let Some(members) = value.as_object_mut() {
                for (name, member) in members {
                    mask_kind(member, *item, name);
                }
            }
        }
        _ => {}
    }
}

/// Replaces every scalar in a value, except nulls and empty strings, which hide nothing.
pub(crate) fn mask_all(value: &mut Value) {
    match value {
        Value::Null => {}
        Value::String(text) if text.is_empty() => {}
        Value::Array(items) => items.iter_mut().for_each(mask_all),
        Value::Object(members) => members.values_mut().for_each(mask_all),
        other => *other = Value::from(MASK),
    }
}

/// A key that can be set on its own.
#[derive(Debug, Clone)]
pub(crate) struct Leaf {
    /// Names from the root to the key, joined by dots.
    pub(crate) path: String,
    pub(crate) kind: Kind,
    /// JSON text of its default; `None` = it has none.
    pub(crate) default: Option<&'static str>,
}

/// All keys of a section and of the sections in it, unions with their tags and the keys of all their variants, and the
/// section's own alternative names.
pub(crate) fn leaves(section: &'static Section) -> Vec<Leaf> {
    leaves_of(Kind::Section(section))
}

/// As [`leaves`] for whatever has keys; nothing for what has none.
pub(crate) fn leaves_of(kind: Kind) -> Vec<Leaf> {
    let mut found = BTreeMap::new();
    let aliases = match kind {
        Kind::Section(section) => {
            collect(section.fields, "", &mut found);
            section.aliases
        }
        Kind::Union(union) => {
            found.insert(union.tag.to_owned(), (Kind::Text, None));
            of_union(union, "", &mut found);
            union.aliases
        }
        Kind::Special(special) => return special.inner.map(leaves_of).unwrap_or_default(),
        _ => &[],
    };
    for (old, new, _) in aliases {
        if let Some(kind) = found.get(*new).copied() {
            found.insert((*old).to_owned(), kind);
        }
    }
    found
        .into_iter()
        .map(|(path, (kind, default))| Leaf {
            path,
            kind,
            default,
        })
        .collect()
}

/// What is at a path, and its default.
type KeysByPath = BTreeMap<String, (Kind, Option<&'static str>)>;

fn of_union(union: &'static Union, path: &str, found: &mut KeysByPath) {
    collect(union.common, path, found);
    for variant in union.variants.iter().filter(|v| !v.is_retired()) {
        collect(variant.fields, path, found);
    }
}

fn collect(fields: &'static [Field], prefix: &str, found: &mut KeysByPath) {
    for field in fields {
        let path = if prefix.is_empty() {
            field.name.to_owned()
        } else {
            format!("{prefix}.{}", field.name)
        };
        match field.kind {
            Kind::Section(section) => collect(section.fields, &path, found),
            Kind::Union(union) => {
                found.insert(format!("{path}.{}", union.tag), (Kind::Text, None));
                of_union(union, &path, found);
            }
            _ => {}
        }
        found.insert(path, (field.kind, field.default));
    }
}

#[cfg(test)]
pub(crate) fn assert_defaults_are_json(section: &'static Section) {
    fn visit(fields: &'static [Field]) {
        for field in fields {
            for json in [field.default, field.built_in].into_iter().flatten() {
                assert!(
                    serde_json::from_str::<Value>(json).is_ok(),
                    "default of {}: {json}",
                    field.name
                );
            }
            assert!(
                !field.about.ends_with('.'),
                "{}: {}",
                field.name,
                field.about
            );
            assert!(!field.about.is_empty(), "{} has no description", field.name);
            visit_kind(field.kind);
        }
    }
    fn visit_kind(kind: Kind) {
        match kind {
            Kind::Section(section) => visit(section.fields),
            Kind::Union(union) => {
                visit(union.common);
                union
                    .variants
                    .iter()
                    .for_each(|variant| visit(variant.fields));
            }
            Kind::List(item) | Kind::Map(item) => visit_kind(*item),
            _ => {}
        }
    }
    visit(section.fields);
}
