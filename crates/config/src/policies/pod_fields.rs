//! Which fields of Kubernetes pods users may set: `docs/contract/configuration.md`, "Policies of administrators".

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

use det_podspec::{Field, ListMerge, Shape, Type, pod};
use serde_json::{Value, json};

use crate::origin::Position;
use crate::schema::{Kind, Walk, special};
use crate::yaml::{Node, Tree};

/// A field of a pod, as policies name it.
pub(super) static POD_FIELD: Kind =
    Kind::Special(&special("field of a Kubernetes pod", schema, check).named("pod_field"));

/// Fields that a pod spec may set otherwise than the pool's.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct PodFields {
    /// These and no others; `None` = all.
    pub(super) allow: Option<Vec<Pattern>>,
    /// Not these, although they are allowed.
    pub(super) deny: Vec<Pattern>,
}

/// A field that is not to be set.
pub(super) struct RefusedField<'n> {
    /// Its path in the pod, as a policy would name it.
    pub(super) path: String,
    /// Position in the text; `None` = not known.
    pub(super) at: Option<&'n Position>,
    /// The part of the policy that does not let it be set.
    pub(super) rule: String,
}

/// A step from a map or a list to what it contains.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Step {
    /// The key, in camel case.
    key: String,
    /// The element of the list, by the value of its key, or the key of the map that users choose. `None` = all of it.
    element: Option<String>,
}

/// A field of pods and all below it: `spec.containers[determined-container].securityContext`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern(Vec<Step>);

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown(&self.0))
    }
}

fn shown(steps: &[Step]) -> String {
    let mut out = String::new();
    for step in steps {
        if !out.is_empty() {
            out.push('.');
        }
        out.push_str(&step.key);
        if let Some(element) = &step.element {
            // Writing to a string does not fail.
            let _ = write!(out, "[{element}]");
        }
    }
    out
}

impl Pattern {
    /// Reads a path; `Err` = the step that is no key of a pod.
    fn read(text: &str) -> Result<Self, String> {
        let mut steps = Vec::new();
        let mut of: Option<&'static Type> = Some(pod());
        for part in parts(text) {
            let (name, element) = match part.split_once('[') {
                Some((name, rest)) => (name, Some(rest.strip_suffix(']').ok_or(part.clone())?)),
                None => (part.as_str(), None),
            };
            let field = of
                .and_then(|of| of.field_spelled(name))
                .ok_or(part.clone())?;
            if element.is_some() && !has_elements(field) {
                return Err(part);
            }
            steps.push(Step {
                key: field.name.to_owned(),
                element: element.map(|text| text.trim_matches(['"', '\'']).to_owned()),
            });
            of = field.shape.inner();
        }
        Ok(Self(steps))
    }

    /// Whether it is the field at these steps, or one that the field is in.
    fn covers(&self, steps: &[Step]) -> bool {
        self.0.len() <= steps.len() && self.agrees(steps)
    }

    /// Whether both are on one path, as far as the shorter one goes.
    fn agrees(&self, steps: &[Step]) -> bool {
        let mut pairs = self.0.iter().zip(steps);
        pairs.all(|(own, step)| {
            one_name(&own.key) == one_name(&step.key)
                && (own.element.is_none() || own.element == step.element)
        })
    }
}

/// The one name of a key that Kubernetes knows under two.
fn one_name(key: &str) -> &str {
    match key {
        "serviceAccount" => "serviceAccountName",
        key => key,
    }
}

/// The steps of a path: at each dot that is in no brackets.
fn parts(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut inside = false;
    for c in text.chars() {
        match c {
            '[' => inside = true,
            ']' => inside = false,
            _ => {}
        }
        match parts.last_mut() {
            Some(last) if c != '.' || inside => last.push(c),
            _ => parts.push(String::new()),
        }
    }
    parts
}

/// Whether one of what a field contains can be named.
fn has_elements(field: &Field) -> bool {
    matches!(field.merge, ListMerge::By { .. })
        || matches!(field.shape, Shape::TextMap | Shape::QuantityMap)
}

fn schema() -> Value {
    json!({"type": "string", "description": "A field of a Kubernetes pod, such as \"spec.volumes.hostPath\"."})
}

fn check(walk: &mut Walk, node: &mut Node) {
    let findings = &mut *walk.findings;
    let Some(text) = node.text() else {
        return findings.mismatch(node, "a field of a Kubernetes pod");
    };
    match Pattern::read(text) {
        Ok(Pattern(steps)) if matches!(steps[0].key.as_str(), "metadata" | "spec") => {}
        Ok(_) => findings.error(node.at.as_ref(), "must begin with \"metadata\" or \"spec\""),
        Err(step) => {
            let message = format!("is no field of a Kubernetes pod: \"{step}\" is not known");
            let hint = "write it like \"spec.volumes.hostPath\" or \"spec.containers[determined-container].env\"";
            findings.error_hint(node.at.as_ref(), message, hint);
        }
    }
}

/// The fields that a checked list names; `None` = there is no list.
pub(super) fn patterns(list: Option<&Node>) -> Option<Vec<Pattern>> {
    let Tree::List(items) = &list?.tree else {
        return None;
    };
    let texts = items.iter().filter_map(Node::text);
    Some(texts.filter_map(|text| Pattern::read(text).ok()).collect())
}

impl PodFields {
    /// Each field that `asked` has otherwise than `given` and that is not to be set, once.
    pub(super) fn refused<'n>(
        &self,
        asked: Option<&'n Node>,
        given: Option<&'n Node>,
    ) -> Vec<RefusedField<'n>> {
        let mut changes = Changes::default();
        changes.compare(asked, given, Of::Type(pod()));
        let mut reported = BTreeSet::new();
        let mut refused = Vec::new();
        for (steps, at) in changes.found {
            let Some((depth, rule)) = self.against(&steps) else {
                continue;
            };
            let path = shown(&steps[..depth]);
            if reported.insert(path.clone()) {
                refused.push(RefusedField { path, at, rule });
            }
        }
        refused
    }

    /// What does not let a field be set, and how many of its steps that is about.
    fn against(&self, steps: &[Step]) -> Option<(usize, String)> {
        if let Some(deny) = self.deny.iter().find(|deny| deny.covers(steps)) {
            return Some((deny.0.len(), format!("it denies \"{deny}\"")));
        }
        let allow = self.allow.as_ref()?;
        if allow.iter().any(|allow| allow.covers(steps)) {
            return None;
        }
        // The shortest part of the path below which nothing is allowed.
        let on_the_way = |depth: &usize| allow.iter().any(|it| it.agrees(&steps[..*depth]));
        let depth = (1..steps.len()).take_while(on_the_way).count() + 1;
        let mut allowed: Vec<String> = allow.iter().map(|it| format!("\"{it}\"")).collect();
        allowed.truncate(8);
        let allowed = if allowed.is_empty() {
            "nothing".to_owned()
        } else {
            allowed.join(", ")
        };
        Some((depth.min(steps.len()), format!("it allows {allowed}")))
    }
}

/// What a value is, as far as it is known.
#[derive(Clone, Copy)]
enum Of {
    /// A map of this type.
    Type(&'static Type),
    /// The value of this key.
    Field(&'static Field),
    /// Not known: of an element that has no type, or a key that pods do not have.
    Unknown,
}

/// The fields in which two pods differ, each with where the first has it, or what it is missing in.
#[derive(Default)]
struct Changes<'n> {
    found: Vec<(Vec<Step>, Option<&'n Position>)>,
    steps: Vec<Step>,
}

impl<'n> Changes<'n> {
    fn compare(&mut self, asked: Option<&'n Node>, given: Option<&'n Node>, of: Of) {
        let same = match (asked, given) {
            (Some(asked), Some(given)) => asked.to_value() == given.to_value(),
            (asked, given) => asked.is_none() && given.is_none(),
        };
        if same {
            return;
        }
        let before = self.found.len();
        let of = match of {
            Of::Field(field) => match (field.merge, field.shape.inner()) {
                (ListMerge::By { key, .. }, inner) => {
                    return self.compare_elements(asked, given, key, inner);
                }
                (_, Some(inner)) if !field.shape.is_list() => Of::Type(inner),
                (_, Some(inner)) => {
                    self.compare_list(asked, given, Of::Type(inner));
                    return self.note(before, asked, given);
                }
                (_, None) if field.shape.is_map() => {
                    return self.compare_chosen(asked, given);
                }
                (_, None) => Of::Unknown,
            },
            of => of,
        };
        if let Of::Type(of) = of {
            self.compare_members(asked, given, of);
        }
        self.note(before, asked, given);
    }

    /// Notes the present path if nothing below it was noted since.
    fn note(&mut self, before: usize, asked: Option<&'n Node>, given: Option<&'n Node>) {
        if self.found.len() == before && !self.steps.is_empty() {
            let at = asked.or(given).and_then(|node| node.at.as_ref());
            self.found.push((self.steps.clone(), at));
        }
    }

    fn within(&mut self, key: &str, element: Option<&str>, work: impl FnOnce(&mut Self)) {
        self.steps.push(Step {
            key: key.to_owned(),
            element: element.map(str::to_owned),
        });
        work(self);
        self.steps.pop();
    }

    fn compare_members(&mut self, asked: Option<&'n Node>, given: Option<&'n Node>, of: &Type) {
        for key in keys(asked, given) {
            let member = |node: Option<&'n Node>| node.and_then(|node| node.get(key));
            let (asked, given) = (member(asked), member(given));
            let of = type_field(of, key).map_or(Of::Unknown, Of::Field);
            self.within(key, None, |changes| changes.compare(asked, given, of));
        }
    }

    /// A map whose keys users choose.
    fn compare_chosen(&mut self, asked: Option<&'n Node>, given: Option<&'n Node>) {
        let before = self.found.len();
        for key in keys(asked, given) {
            let member = |node: Option<&'n Node>| node.and_then(|node| node.get(key));
            self.as_element(key, |changes| {
                changes.compare(member(asked), member(given), Of::Unknown);
            });
        }
        self.note(before, asked, given);
    }

    /// A list of maps with a key; where elements are in it is no difference, and their key neither.
    fn compare_elements(
        &mut self,
        asked: Option<&'n Node>,
        given: Option<&'n Node>,
        by: &str,
        inner: Option<&'static Type>,
    ) {
        let before = self.found.len();
        let (asked_by, given_by) = (elements(asked, by), elements(given, by));
        let ids: BTreeSet<&String> = asked_by.keys().chain(given_by.keys()).collect();
        let pairs = ids.into_iter().flat_map(|id| {
            let asked = asked_by.get(id).map_or(&[][..], Vec::as_slice);
            let given = given_by.get(id).map_or(&[][..], Vec::as_slice);
            let numbers = 0..asked.len().max(given.len());
            numbers.map(move |n| (id, asked.get(n).copied(), given.get(n).copied()))
        });
        for (id, asked, given) in pairs {
            self.as_element(id, |changes| {
                let Some(inner) = inner else {
                    return changes.compare(asked, given, Of::Unknown);
                };
                let before = changes.found.len();
                for key in keys(asked, given).into_iter().filter(|key| *key != by) {
                    let member = |node: Option<&'n Node>| node.and_then(|node| node.get(key));
                    let of = type_field(inner, key).map_or(Of::Unknown, Of::Field);
                    let (asked, given) = (member(asked), member(given));
                    changes.within(key, None, |changes| changes.compare(asked, given, of));
                }
                if asked.is_none() != given.is_none() {
                    changes.note(before, asked, given);
                }
            });
        }
        let order_alone = !asked_by.is_empty() && asked_by.keys().eq(given_by.keys());
        if !order_alone {
            self.note(before, asked, given);
        }
    }

    /// A list that is replaced as a whole: elements that the other one does not have.
    fn compare_list(&mut self, asked: Option<&'n Node>, given: Option<&'n Node>, of: Of) {
        let others: BTreeSet<String> = items(given).iter().map(text).collect();
        for item in items(asked) {
            if !others.contains(&text(item)) {
                self.compare(Some(item), None, of);
            }
        }
    }

    /// Works on the present path with its last step narrowed to one element.
    fn as_element(&mut self, id: &str, work: impl FnOnce(&mut Self)) {
        let whole = self.steps.pop();
        let key = whole.as_ref().map_or("", |step| step.key.as_str());
        self.within(key, Some(id), work);
        self.steps.extend(whole);
    }
}

/// The field of this name. Types are of the table, which exists for ever.
fn type_field(of: &Type, key: &str) -> Option<&'static Field> {
    det_podspec::type_named(of.name)?.field(key)
}

fn text(node: &Node) -> String {
    node.to_value().to_string()
}

fn items(node: Option<&Node>) -> &[Node] {
    match node.map(|node| &node.tree) {
        Some(Tree::List(items)) => items,
        _ => &[],
    }
}

fn keys<'n>(asked: Option<&'n Node>, given: Option<&'n Node>) -> BTreeSet<&'n str> {
    let members = |node: Option<&'n Node>| node.and_then(Node::members).into_iter().flatten();
    let both = members(asked).chain(members(given));
    both.map(|(key, _)| key.as_str()).collect()
}

/// The elements of a list by the value of their key, which several may have; those without one by the empty text.
fn elements<'n>(list: Option<&'n Node>, by: &str) -> BTreeMap<String, Vec<&'n Node>> {
    let id = |item: &Node| match item.get(by).map(Node::to_value) {
        Some(Value::String(text)) => text,
        Some(other) => other.to_string(),
        None => String::new(),
    };
    let mut elements: BTreeMap<String, Vec<&Node>> = BTreeMap::new();
    for item in items(list) {
        elements.entry(id(item)).or_default().push(item);
    }
    elements
}
