//! Holds a document against the schema: every error with its place, its path, what was found and what is allowed.

mod findings;
mod lost;
mod unknown;

use super::{Aliases, Field, Kind, Need, Note, Section, Union, Variant};
use crate::errors::ErrorCode;
use crate::origin::Position;
use crate::quote::{cut, quoted, quoted_list};
use crate::units::parse_duration;
use crate::yaml::{Node, Tree};

pub(crate) use findings::{Findings, LayerErrors, Misplacement, Segment, push_key};
use lost::lost_indentation;
use unknown::other_variant;
pub(crate) use unknown::{closest, snake};

/// How complete the document has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// As submitted: what other layers may bring can be missing.
    Sane,
    /// All layers are merged and defaults filled in: what is required must be there.
    Complete,
    /// As stored by an earlier version: complete, and what was removed since is read.
    Stored,
}

impl Stage {
    /// Whether everything that is needed must be given.
    pub(crate) fn is_complete(self) -> bool {
        self != Self::Sane
    }
}

/// Translates older forms and checks a whole document.
pub(crate) fn check_document(findings: &mut Findings, node: &mut Node) {
    let document = findings.document;
    (document.translate)(findings, node);
    Walk { findings }.value(node, Kind::Section(document.root));
}

/// Walks through a document along its schema. Rules that check values as well get the walk, others its findings alone.
pub(crate) struct Walk<'a> {
    pub(crate) findings: &'a mut Findings,
}

impl Walk<'_> {
    /// Works one step further down.
    pub(crate) fn within<T>(
        &mut self,
        step: impl Into<Segment>,
        work: impl FnOnce(&mut Self) -> T,
    ) -> T {
        self.findings.place.steps.push(step.into());
        let result = work(self);
        self.findings.place.steps.pop();
        result
    }

    /// Checks the value of a member, below a secret or not.
    fn member(&mut self, key: &str, node: &mut Node, kind: Kind, is_secret: bool) {
        let hush = usize::from(is_secret);
        self.findings.place.hush += hush;
        self.within(key, |walk| walk.value(node, kind));
        self.findings.place.hush -= hush;
    }

    /// Checks one value and brings it into its normal form.
    pub(crate) fn value(&mut self, node: &mut Node, kind: Kind) {
        // A scalar in place of what holds secrets may be one of them, in a form that we do not have. What is in a free
        // map only its owner knows.
        let is_structure = matches!(node.tree, Tree::Null | Tree::List(_) | Tree::Map(_));
        let may_hold = matches!(kind, Kind::AnyMap) || kind.holds_secrets();
        let hush = usize::from(!is_structure && may_hold);
        self.findings.place.hush += hush;
        self.value_of(node, kind);
        self.findings.place.hush -= hush;
    }

    fn value_of(&mut self, node: &mut Node, kind: Kind) {
        match kind {
            Kind::Any => {}
            Kind::AnyMap if node.members().is_some() => {}
            Kind::AnyMap => self.findings.mismatch(node, "a map"),
            Kind::Bool if matches!(node.tree, Tree::Bool(_)) => {}
            Kind::Bool => self.findings.mismatch(node, "true or false"),
            Kind::Int(min, max) => int(self.findings, node, min, max),
            Kind::Above(bound) => {
                number(self.findings, node, "above", |value| value > bound, bound);
            }
            Kind::AtLeast(bound) => number(
                self.findings,
                node,
                "at least",
                |value| value >= bound,
                bound,
            ),
            Kind::Text if node.text().is_some() => {}
            Kind::Text => self.findings.mismatch(node, "a string"),
            Kind::Choice(words) => choice(self.findings, node, words),
            Kind::Duration => match node.text().map(parse_duration) {
                Some(Ok(_)) => {}
                Some(Err(message)) => self.findings.error(node.at.as_ref(), message),
                None => duration_mismatch(self.findings, node),
            },
            Kind::List(item) => match &mut node.tree {
                Tree::List(items) => {
                    for (index, element) in items.iter_mut().enumerate() {
                        self.within(index, |walk| walk.value(element, *item));
                    }
                }
                _ => self.findings.mismatch(node, "a list"),
            },
            Kind::Map(item) => match &mut node.tree {
                Tree::Map(members) => {
                    members.retain(|_, member| !matches!(member.tree, Tree::Null));
                    for (key, member) in members {
                        self.within(key, |walk| walk.value(member, *item));
                    }
                }
                _ => self.findings.mismatch(node, "a map"),
            },
            Kind::Section(section) => self.section(node, section),
            Kind::Union(union) => self.union(node, union),
            Kind::Special(special) => (special.check)(self, node),
        }
    }

    pub(crate) fn section(&mut self, node: &mut Node, section: &'static Section) {
        let at = node.at.clone();
        if node.members().is_none() {
            return self.findings.mismatch(node, "a map");
        }
        let lost = lost_indentation(self.findings, node, section);
        self.rename(node, section.aliases, section.fields);
        let names: Vec<&'static str> = section.fields.iter().map(|field| field.name).collect();
        let fields = |name: &str| section.field(name);
        self.unknown_keys(node, &names, fields, "", |key| {
            let above = lost.get(key)?;
            Some(format!("indent it below \"{above}\", which has no value"))
        });
        self.fields(node, at.as_ref(), section.fields, "");
        if let Some(check) = section.check {
            check(self.findings, node);
        }
    }

    /// Gives old names their new ones and drops nulls: a null is the same as nothing, except where it takes away what a
    /// weaker layer gives.
    fn rename(&mut self, node: &mut Node, aliases: Aliases, fields: &'static [Field]) {
        self.findings.note_empty(node);
        let Some(members) = node.members_mut() else {
            return;
        };
        let clears = |key: &str| fields.iter().any(|field| field.clears && field.name == key);
        members.retain(|key, member| !matches!(member.tree, Tree::Null) || clears(key));
        for (old, new, warn) in aliases {
            let Some(value) = members.remove(*old) else {
                continue;
            };
            if *warn {
                let message = format!("is the old name of \"{new}\"");
                self.findings.warn_in(old, value.at.as_ref(), message);
            }
            if let Some(given) = members.get(*new) {
                if given.to_value() != value.to_value() {
                    let message = ErrorCode::Conflict.message(format!(
                        "is another name of \"{new}\", which is given as well"
                    ));
                    self.findings.error_in(old, value.at.as_ref(), message);
                }
            } else {
                members.insert((*new).to_owned(), value);
            }
        }
    }

    fn fields(
        &mut self,
        node: &mut Node,
        at: Option<&Position>,
        fields: &'static [Field],
        of: &str,
    ) {
        for field in fields {
            let given = node
                .get_mut(field.name)
                .filter(|member| !matches!(member.tree, Tree::Null));
            if let Some(member) = given {
                self.findings
                    .within(field.name, |findings| note(findings, member, field));
                self.member(field.name, member, field.kind, field.secret);
                continue;
            }
            let needed = match field.need {
                Need::Optional => false,
                Need::Always => true,
                Need::Finally => self.findings.stage.is_complete() && field.default.is_none(),
            };
            if needed {
                let hint = lower_first(field.about).replace('`', "\"");
                let message = ErrorCode::Missing.message(format!("is required{of}"));
                if hint == field.name {
                    self.findings.error_in(field.name, at, message);
                } else {
                    self.findings.error_hint_in(field.name, at, message, hint);
                }
            }
        }
    }

    fn union(&mut self, node: &mut Node, union: &'static Union) {
        let at = node.at.clone();
        if node.members().is_none() {
            return self.findings.mismatch(node, "a map");
        }
        self.rename(node, union.aliases, &[]);
        let words = || {
            let current = union.variants.iter().filter(|v| !v.is_retired());
            quoted_list(current.map(|variant| variant.name))
        };
        let tag = node.get(union.tag).cloned().or_else(|| {
            union
                .default_tag
                .map(|tag| Node::new(Tree::Text(tag.to_owned())))
        });
        let Some(tag) = tag else {
            if self.findings.stage.is_complete() {
                let message =
                    ErrorCode::Missing.message(format!("is required: one of {}", words()));
                self.findings.error_in(union.tag, at.as_ref(), message);
            } else {
                // Which keys are allowed shows only when a lower layer has brought the tag.
                let names = union_names(union, None);
                let fields = |name: &str| named(union.common, name);
                self.unknown_keys(node, &names, fields, "", |_| None);
                self.fields(node, at.as_ref(), union.common, "");
                self.variants_alike(node, union);
            }
            return;
        };
        let Some(chosen) = tag.text().and_then(|name| union.variant(name)) else {
            return self.union_of_unknown(node, &tag, union, &words());
        };
        if let (Note::Retired(advice), false) = (chosen.note, self.findings.stage == Stage::Stored)
        {
            let message = ErrorCode::Removed.message(format!("\"{}\" was removed", chosen.name));
            return self
                .findings
                .error_hint_in(union.tag, tag.at.as_ref(), message, advice);
        }
        if chosen.note == Note::Kept {
            let text = format!(
                "\"{}\" is accepted and kept but not acted on yet",
                chosen.name
            );
            self.findings.warn_in(union.tag, tag.at.as_ref(), text);
        }
        let of = format!(" for {} \"{}\"", union.tag, chosen.name);
        if !chosen.open {
            let names = union_names(union, Some(chosen));
            let fields =
                |name: &str| named(union.common, name).or_else(|| named(chosen.fields, name));
            self.unknown_keys(node, &names, fields, &of, |key| other_variant(union, key));
        }
        self.fields(node, at.as_ref(), union.common, "");
        self.fields(node, at.as_ref(), chosen.fields, &of);
        if let Some(check) = union.check {
            check(self.findings, node);
        }
    }

    /// Reports that the tag is none of the variants, and what else is wrong: the keys that no variant has, and the values
    /// as the variant of the nearest name wants them.
    fn union_of_unknown(
        &mut self,
        node: &mut Node,
        tag: &Node,
        union: &'static Union,
        words: &str,
    ) {
        let given = match tag.text() {
            Some(text) => self.findings.place.cited(text),
            None => self.findings.place.found(tag),
        };
        let message = ErrorCode::NotOneOf.message(format!("must be one of {words}, not {given}"));
        let current = || union.variants.iter().filter(|v| !v.is_retired());
        let near = tag
            .text()
            .and_then(|text| closest(text, current().map(|variant| variant.name)));
        self.findings.within(union.tag, |findings| {
            findings.error_near(tag.at.as_ref(), message, near);
        });
        let at = node.at.clone();
        let near = near.and_then(|word| union.variant(word));
        let is_open = near.map_or_else(|| current().any(|variant| variant.open), |near| near.open);
        if !is_open {
            let fields = |name: &str| {
                let of_near = near.and_then(|near| named(near.fields, name));
                named(union.common, name).or(of_near)
            };
            self.unknown_keys(node, &union_names(union, None), fields, "", |_| None);
        }
        self.fields(node, at.as_ref(), union.common, "");
        match near {
            Some(near) => {
                let of = format!(" for {} \"{}\"", union.tag, near.name);
                self.fields(node, at.as_ref(), near.fields, &of);
            }
            None => self.variants_alike(node, union),
        }
    }

    /// Checks the keys of variants while it is not known which variant it will be: where all that have a key agree on
    /// what it may be, that can be checked already.
    fn variants_alike(&mut self, node: &mut Node, union: &'static Union) {
        let names: Vec<String> = node
            .members()
            .into_iter()
            .flatten()
            .map(|(key, _)| key.clone())
            .collect();
        for name in names {
            let fields: Vec<&'static Field> = union
                .variants
                .iter()
                .filter(|variant| !variant.is_retired())
                .flat_map(|variant| variant.fields.iter())
                .filter(|field| field.name == name)
                .collect();
            if let ([field], Some(member)) = (&fields[..], node.get_mut(&name)) {
                self.member(&name, member, field.kind, field.secret);
            }
        }
    }
}

fn named(fields: &'static [Field], name: &str) -> Option<&'static Field> {
    fields.iter().find(|field| field.name == name)
}

fn int(findings: &mut Findings, node: &mut Node, min: i64, max: i64) {
    let Tree::Number(number) = &node.tree else {
        return findings.mismatch(node, "an integer");
    };
    let given = number.to_string();
    let message = match node.integer() {
        Some(value) if (min..=max).contains(&value) => {
            node.tree = Tree::Number(value.into());
            return;
        }
        Some(value) if value < min => {
            ErrorCode::OutOfRange.message(format!("must be at least {min}, not {value}"))
        }
        Some(value) => ErrorCode::OutOfRange.message(format!("must be at most {max}, not {value}")),
        // An integer that has more than 64 bits.
        None => match number.as_f64().filter(|value| value.fract() == 0.0) {
            Some(value) if value < 0.0 => ErrorCode::OutOfRange
                .message(format!("must be at least {min}, not {}", cut(&given))),
            Some(_) => {
                ErrorCode::OutOfRange.message(format!("must be at most {max}, not {}", cut(&given)))
            }
            None => {
                ErrorCode::WrongType.message(format!("must be an integer, not {}", cut(&given)))
            }
        },
    };
    findings.error(node.at.as_ref(), message);
}

fn number(findings: &mut Findings, node: &Node, how: &str, good: impl Fn(f64) -> bool, bound: f64) {
    match &node.tree {
        Tree::Number(number) if number.as_f64().is_some_and(good) => {}
        Tree::Number(number) => {
            let message =
                ErrorCode::OutOfRange.message(format!("must be {how} {bound}, not {number}"));
            findings.error(node.at.as_ref(), message);
        }
        _ => findings.mismatch(node, "a number"),
    }
}

fn duration_mismatch(findings: &mut Findings, node: &Node) {
    match &node.tree {
        Tree::Number(number) => {
            let message = format!("must be a duration with a unit, not the number {number}");
            let message = ErrorCode::WrongType.message(message);
            let hint = format!("write \"{number}s\" for seconds");
            findings.error_hint(node.at.as_ref(), message, hint);
        }
        _ => findings.mismatch(node, "a duration like \"25s\""),
    }
}

fn choice(findings: &mut Findings, node: &Node, words: &'static [&'static str]) {
    match node.text() {
        Some(text) if words.contains(&text) => {}
        Some(text) => {
            let message = ErrorCode::NotOneOf.message(format!(
                "must be one of {}, not {}",
                quoted(words),
                findings.place.cited(text)
            ));
            let near = closest(text, words.iter().copied());
            findings.error_near(node.at.as_ref(), message, near);
        }
        None => findings.mismatch(node, &format!("one of {}", quoted(words))),
    }
}

fn note(findings: &mut Findings, node: &Node, field: &'static Field) {
    let text = match field.note {
        Note::Nothing | Note::Retired(_) => return,
        Note::Kept => "is accepted and kept but not acted on yet",
        Note::Warn(why) => why,
    };
    // The effective configuration of one experiment, given to another, has defaults that no user wrote.
    if !super::is_as_absent(node, field) {
        findings.warn(node.at.as_ref(), text);
    }
}

/// The keys of one variant of a union, or of all.
fn union_names(union: &'static Union, only: Option<&Variant>) -> Vec<&'static str> {
    let mut names = vec![union.tag];
    names.extend(union.common.iter().map(|field| field.name));
    for variant in union.variants {
        if only.is_none_or(|only| only.name == variant.name) {
            for field in variant.fields {
                if !names.contains(&field.name) {
                    names.push(field.name);
                }
            }
        }
    }
    names
}

fn lower_first(text: &str) -> String {
    let mut chars = text.chars();
    match chars.next() {
        // An abbreviation keeps its capitals.
        Some(first) if !chars.clone().next().is_some_and(char::is_uppercase) => {
            first.to_lowercase().chain(chars).collect()
        }
        _ => text.to_owned(),
    }
}
