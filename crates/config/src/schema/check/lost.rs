//! Indentation that got lost: the keys of a section are at its level instead of below it.

use std::collections::BTreeMap;

use super::{Findings, Segment, union_names};
use crate::schema::{Kind, Section};
use crate::yaml::{Node, Tree};

/// The keys that something of this kind may hold.
fn names_in(kind: Kind) -> Vec<&'static str> {
    match kind {
        Kind::Section(section) => section.fields.iter().map(|field| field.name).collect(),
        Kind::Union(union) => union_names(union, None),
        Kind::Special(special) => special.inner.map_or_else(Vec::new, names_in),
        _ => Vec::new(),
    }
}

/// Keys that come right after a section without a value and belong into it, each with that section. One of them
/// at least must be no key of `around`: only then is it certain that the others were meant for the section too.
pub(super) fn lost_indentation(
    findings: &mut Findings,
    node: &Node,
    around: &'static Section,
) -> BTreeMap<String, &'static str> {
    let mut lost = BTreeMap::new();
    let mut written: Vec<(&String, &Node)> = node.members().into_iter().flatten().collect();
    written.retain(|(_, member)| member.at.as_ref().is_some_and(|at| at.line > 0));
    written.sort_by_key(|(_, member)| member.at.as_ref().map(|at| (at.line, at.column)));
    for (index, (key, member)) in written.iter().enumerate() {
        let Some(section) = around.field(key) else {
            continue;
        };
        if !matches!(member.tree, Tree::Null) {
            continue;
        }
        let names = names_in(section.kind);
        let behind: Vec<&String> = written[index + 1..]
            .iter()
            .map(|(key, _)| *key)
            .take_while(|key| names.contains(&key.as_str()))
            .collect();
        if behind.iter().all(|key| around.field(key).is_some()) {
            continue;
        }
        for key in behind {
            let steps = [Segment::Key(section.name.into()), Segment::Key(key.clone())];
            findings.belongs_below(key, &steps);
            lost.insert(key.clone(), section.name);
        }
        let place = findings.place.path_to(section.name);
        findings.meant.push(place);
    }
    lost
}
