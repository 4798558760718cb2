//! Reads expectations from text.

use std::collections::BTreeMap;

use det_config::yaml::Tree;
use det_scheduler::WaitKind;

use crate::description::{Expectation, RunExpectation, WaitExpectation};
use crate::fields::{Reader, Value, nearest};

pub(crate) fn expectation(reader: &mut Reader, value: &Value<'_>) -> Expectation {
    let Some(mut fields) = reader.fields(value) else {
        return Expectation::default();
    };
    let mut by_name = |reader: &mut Reader, key| match fields.take(key) {
        Some(value) => reader.members(&value),
        None => Vec::new(),
    };
    let running = by_name(reader, "running")
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), presence(reader, &value)?)))
        .collect();
    let waiting = by_name(reader, "waiting")
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), waits(reader, &value)?)))
        .collect();
    let slots = by_name(reader, "slots")
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), reader.count(&value)?)))
        .collect();
    let completed = by_name(reader, "completed")
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), reader.count(&value)?)))
        .collect();
    let parts = by_name(reader, "parts")
        .into_iter()
        .map(|(name, value)| {
            let sizes = Reader::one_or_many(&value);
            let sizes = sizes
                .iter()
                .filter_map(|value| reader.integer(value, 0, u32::MAX))
                .collect();
            (name.to_owned(), sizes)
        })
        .collect();
    let ahead = by_name(reader, "ahead")
        .into_iter()
        .filter_map(|(name, value)| {
            let ahead = if value.text() == Some("unknown") {
                None
            } else {
                Some(reader.count(&value)?)
            };
            Some((name.to_owned(), ahead))
        })
        .collect();
    let stopping = fields
        .take("stopping")
        .map(|value| reader.names(&value).into_iter().collect());
    let free = fields.take("free").and_then(|value| reader.count(&value));
    reader.finish(fields);
    Expectation {
        running,
        waiting,
        stopping,
        slots,
        parts,
        ahead,
        completed,
        free,
    }
}

fn presence(reader: &mut Reader, value: &Value<'_>) -> Option<RunExpectation> {
    match &value.node.tree {
        Tree::Number(_) => reader.count(value).map(RunExpectation::Tasks),
        Tree::Text(_) | Tree::List(_) => Some(RunExpectation::On(
            reader.names(value).into_iter().collect(),
        )),
        Tree::Map(_) => {
            let mut slots = BTreeMap::new();
            for (agent, value) in reader.members(value) {
                slots.insert(agent.to_owned(), reader.count(&value)?);
            }
            Some(RunExpectation::Slots(slots))
        }
        Tree::Null | Tree::Bool(_) => {
            reader.mismatch(value, "a number of tasks, agents, or slots by agent");
            None
        }
    }
}

fn waits(reader: &mut Reader, value: &Value<'_>) -> Option<WaitExpectation> {
    match &value.node.tree {
        Tree::Number(_) => reader.count(value).map(WaitExpectation::Tasks),
        Tree::Text(kind) => {
            known_kind(reader, value, kind)?;
            Some(WaitExpectation::Because(kind.clone()))
        }
        Tree::Map(members) if members.contains_key("kind") => {
            if let Some(kind) = members["kind"].text() {
                known_kind(reader, value, kind)?;
            }
            let fields = members
                .iter()
                .map(|(key, node)| (key.clone(), node.to_value()));
            Some(WaitExpectation::Reason(fields.collect()))
        }
        Tree::Map(_) => {
            let mut kinds = BTreeMap::new();
            for (kind, value) in reader.members(value) {
                known_kind(reader, &value, kind)?;
                kinds.insert(kind.to_owned(), reader.count(&value)?);
            }
            Some(WaitExpectation::Kinds(kinds))
        }
        Tree::Null | Tree::Bool(_) | Tree::List(_) => {
            reader.mismatch(value, "a number of tasks, a kind of reason, or a map");
            None
        }
    }
}

fn known_kind(reader: &mut Reader, value: &Value<'_>, kind: &str) -> Option<()> {
    if kind.parse::<WaitKind>().is_ok() {
        return Some(());
    }
    let known = WaitKind::NAMES;
    reader.error(value, format!("\"{kind}\" is not a kind of reason"));
    if let Some(error) = reader.errors.last_mut() {
        error.hint = Some(match nearest(kind, known) {
            Some(nearest) => format!("did you mean \"{nearest}\"?"),
            None => format!("the kinds are {}", known.join(", ")),
        });
    }
    None
}
