//! Whether the values of a pod have the shapes that Kubernetes wants.

use det_podspec::{Field, ListMerge, Shape, Type, type_named};

use super::{CONTAINER, OWNED, SPEC, TASK_CONTAINER};
use crate::errors::ErrorCode;
use crate::schema::{Findings, Segment, closest};
use crate::yaml::{Node, Tree};

/// Checks a map of the type of this name. Absent and null are no error: a layer below fills them, or a null takes away what
/// that has. Kubernetes adds keys from time to time, so that unknown ones are only remarked upon unless they are near to a
/// known one.
pub(super) fn check(findings: &mut Findings, node: &Node, of: &str) {
    if let Some(of) = type_named(of) {
        map(findings, node, of);
    }
}

fn map(findings: &mut Findings, node: &Node, of: &'static Type) {
    for (key, member) in node.members().into_iter().flatten() {
        if key.starts_with('$') || matches!(member.tree, Tree::Null) {
            continue;
        }
        match of.field_spelled(key) {
            Some(field) => {
                // What no configuration may set is refused under either name.
                let owned =
                    of.name == CONTAINER && OWNED.iter().any(|(name, _)| *name == field.name);
                if field.name != key && !owned {
                    let message = format!("is written \"{}\" by Kubernetes", field.name);
                    findings.warn_in(key, member.at.as_ref(), message);
                }
                findings.within(key, |findings| value(findings, member, field));
            }
            None => unknown(findings, key, member, of),
        }
    }
}

fn unknown(findings: &mut Findings, key: &str, member: &Node, of: &Type) {
    let is_in = |name: &str| type_named(name).is_some_and(|of| of.field(key).is_some());
    let at = member.at.as_ref();
    match of.name {
        SPEC if is_in(CONTAINER) => {
            let steps = [
                Segment::Key("containers".into()),
                Segment::Named(TASK_CONTAINER),
                Segment::Key(key.to_owned()),
            ];
            findings.belongs_below(key, &steps);
            findings.error_hint_in(
                key,
                at,
                ErrorCode::UnknownKey.message("is a key of a container, not of a pod's spec"),
                format!(
                    "put it into an element of \"containers\" with the name \"{TASK_CONTAINER}\""
                ),
            );
        }
        CONTAINER if is_in(SPEC) => findings.error_hint_in(
            key,
            at,
            ErrorCode::UnknownKey.message("is a key of a pod's spec, not of a container"),
            format!("put it beside \"containers\", as \"spec.{key}\""),
        ),
        // Reported with advice of their own.
        "Affinity" if key == "nodeSelectorTerms" => {}
        "EmptyDirVolumeSource" | "HostPathVolumeSource" | "NFSVolumeSource" if key == "name" => {}
        _ => {
            let owner = match of.name {
                SPEC => "a pod's spec".to_owned(),
                CONTAINER => "a container".to_owned(),
                "ObjectMeta" => "a pod's metadata".to_owned(),
                name => format!("\"{name}\""),
            };
            if let Some(meant) = closest(key, of.fields().map(|field| field.name)) {
                let message = ErrorCode::UnknownKey.message(format!("is not a key of {owner}"));
                let hint = format!("did you mean \"{meant}\"?");
                return findings.error_hint_in(key, at, message, hint);
            }
            let message =
                format!("is not a key of {owner} that is known here; Kubernetes may refuse it");
            findings.warn_in(key, at, message);
        }
    }
}

fn value(findings: &mut Findings, node: &Node, field: &Field) {
    match (field.shape, &node.tree) {
        (Shape::Any, _)
        | (Shape::Boolean, Tree::Bool(_))
        | (Shape::Text, Tree::Text(_))
        | (Shape::Quantity | Shape::IntegerOrText, Tree::Text(_) | Tree::Number(_)) => {}
        (Shape::Integer, _) if node.integer().is_some() => {}
        (Shape::Of(name), Tree::Map(_)) => check(findings, node, name),
        (Shape::TextMap, Tree::Map(_)) => each_member(findings, node, Shape::Text),
        (Shape::QuantityMap, Tree::Map(_)) => each_member(findings, node, Shape::Quantity),
        (Shape::Texts, Tree::List(items)) => each_scalar(findings, items, Shape::Text),
        (Shape::Integers, Tree::List(items)) => each_scalar(findings, items, Shape::Integer),
        (Shape::ListOf(name), Tree::List(items)) => list(findings, items, name, field.merge),
        (shape, _) => mismatch(findings, node, shape),
    }
}

fn list(findings: &mut Findings, items: &[Node], of: &str, merge: ListMerge) {
    for (index, item) in items.iter().enumerate() {
        findings.within(index, |findings| {
            if item.members().is_none() {
                return findings.mismatch(item, "a map");
            }
            if let ListMerge::By { key, .. } = merge
                && !super::directives::is_marker(item)
                && super::given(item, key).is_none()
            {
                let message = ErrorCode::Missing.message("is required");
                findings.error_in(key, item.at.as_ref(), message);
            }
            check(findings, item, of);
        });
    }
}

fn each_member(findings: &mut Findings, node: &Node, shape: Shape) {
    for (key, member) in node.members().into_iter().flatten() {
        if !key.starts_with('$') {
            findings.within(key, |findings| scalar(findings, member, shape));
        }
    }
}

fn each_scalar(findings: &mut Findings, items: &[Node], shape: Shape) {
    for (index, item) in items.iter().enumerate() {
        findings.within(index, |findings| scalar(findings, item, shape));
    }
}

fn scalar(findings: &mut Findings, node: &Node, shape: Shape) {
    let fits = match (shape, &node.tree) {
        (_, Tree::Null) | (Shape::Text, Tree::Text(_)) => true,
        (Shape::Quantity, Tree::Text(_) | Tree::Number(_)) => true,
        (Shape::Integer, _) => node.integer().is_some(),
        _ => false,
    };
    if !fits {
        mismatch(findings, node, shape);
    }
}

fn mismatch(findings: &mut Findings, node: &Node, shape: Shape) {
    let expected = match shape {
        Shape::Boolean => "true or false",
        Shape::Integer => "an integer",
        Shape::Quantity => "a quantity, such as \"500m\" or \"4Gi\"",
        Shape::IntegerOrText => "an integer or a string",
        Shape::Of(_) | Shape::TextMap | Shape::QuantityMap => "a map",
        Shape::Texts | Shape::Integers | Shape::ListOf(_) => "a list",
        Shape::Text | Shape::Any => "a string",
    };
    findings.mismatch(node, expected);
}
