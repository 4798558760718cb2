//! Reads traces from text.

use std::collections::BTreeMap;

use det_config::submitted::{Experiment, SubmittedDocument};
use det_config::yaml::{self, Tree};
use det_searcher::{ExitReason, Outcome};
use serde_json::{Map, Value as Json};

use super::play::completed;
use super::{ActionExpectation, Trace, TraceConfig, TraceEvent, TraceStep};
use crate::fields::{DescriptionErrors, Fields, Reader, Value, read_with};

/// The highest number of a trial in a trace.
const MOST_TRIALS: u32 = 1_000_000;

/// Reads a trace in YAML or JSON.
///
/// # Errors
/// All errors, with path and line, in the order of the text.
pub fn read_trace(text: &str) -> Result<Trace, DescriptionErrors> {
    read_with(text, document)
}

/// The path of the configuration file that a trace names; other errors of the trace are ignored.
pub fn config_file_of(text: &str) -> Option<String> {
    let root = yaml::parse_within(text, yaml::Limits::OWN_FILE).ok()?;
    let path = root.get("config")?.text()?;
    (!path.is_empty()).then(|| path.to_owned())
}

fn document(reader: &mut Reader, root: &Value<'_>) -> Option<Trace> {
    let mut fields = reader.fields(root)?;
    let mut text = |fields: &mut Fields<'_>, key| {
        let value = fields.take(key)?;
        reader.text(&value)
    };
    let name = text(&mut fields, "name").unwrap_or_default();
    let about = text(&mut fields, "about").unwrap_or_default();
    let seed = fields
        .take("seed")
        .and_then(|value| reader.integer(&value, 0, u32::MAX));
    let restarts = fields
        .take("restarts")
        .and_then(|value| reader.choice(&value, &[("before_every_event", true), ("none", false)]))
        .unwrap_or(false);
    let config = match fields.take("config") {
        Some(value) => config(reader, &value, seed.unwrap_or(0)),
        None => {
            reader.error(
                root,
                "\"config\" is required: an experiment configuration, or the path of its file",
            );
            None
        }
    };
    let start = fields
        .take("start")
        .and_then(|value| expected(reader, &value));
    let events = fields
        .take("events")
        .map(|value| reader.list(&value))
        .unwrap_or_default()
        .iter()
        .filter_map(|value| step(reader, value))
        .collect();
    reader.finish(fields);
    Some(Trace {
        name,
        about,
        config: config?,
        seed,
        restarts,
        start,
        events,
    })
}

fn config(reader: &mut Reader, value: &Value<'_>, seed: u32) -> Option<TraceConfig> {
    match &value.node.tree {
        Tree::Map(_) => {
            if let Err(wrong) = completed(
                SubmittedDocument::from_node(Experiment, value.node.clone()),
                seed,
            ) {
                reader
                    .errors
                    .extend(
                        DescriptionErrors::from(wrong)
                            .0
                            .into_iter()
                            .map(|mut error| {
                                error.path = match error.path.as_str() {
                                    "" => value.path.clone(),
                                    below => format!("{}.{below}", value.path),
                                };
                                error
                            }),
                    );
            }
            Some(TraceConfig::Inline(value.node.to_value()))
        }
        Tree::Text(path) if !path.is_empty() => Some(TraceConfig::File(path.clone())),
        _ => {
            reader.mismatch(value, "a configuration or the path of one");
            None
        }
    }
}

fn step(reader: &mut Reader, value: &Value<'_>) -> Option<TraceStep> {
    let step = |event, expect| TraceStep {
        path: value.path.clone(),
        line: value.line(),
        note: String::new(),
        event,
        expect,
    };
    // Events of the whole search may be given as a plain word.
    if value.text().is_some() {
        let words = [
            ("close", TraceEvent::Close),
            ("restart", TraceEvent::Restart),
        ];
        return Some(step(reader.choice(value, &words)?, None));
    }
    let mut fields = reader.fields(value)?;
    let found: Vec<(&'static str, Value<'_>)> =
        ["report", "progress", "exit", "end", "close", "restart"]
            .into_iter()
            .filter_map(|key| Some((key, fields.take(key)?)))
            .collect();
    let expect = fields
        .take("expect")
        .and_then(|value| expected(reader, &value));
    let note = fields.take("note");
    let note = note
        .and_then(|value| reader.text(&value))
        .unwrap_or_default();
    reader.finish(fields);
    let step = |event, expect| TraceStep {
        note,
        ..step(event, expect)
    };
    match &found[..] {
        [(key, what)] => Some(step(event(reader, key, what)?, expect)),
        [] => {
            reader.error(
                value,
                "names no event: one of report, progress, exit, end, close, restart",
            );
            None
        }
        [_, (second, _), ..] => {
            let message = format!("is one event; put \"{second}\" into an event of its own");
            reader.error(value, message);
            None
        }
    }
}

fn event(reader: &mut Reader, key: &str, value: &Value<'_>) -> Option<TraceEvent> {
    match key {
        "end" => Some(TraceEvent::End {
            trial: number(reader, value)?,
        }),
        "close" => reader.flag(value).map(|_| TraceEvent::Close),
        "restart" => reader.flag(value).map(|_| TraceEvent::Restart),
        _ => of_trial(reader, key, value),
    }
}

/// An event with fields of its trial.
fn of_trial(reader: &mut Reader, key: &str, value: &Value<'_>) -> Option<TraceEvent> {
    let mut fields = reader.fields(value)?;
    let trial = match fields.take("trial") {
        Some(value) => number(reader, &value),
        None => {
            reader.error(value, "\"trial\" is required: the number of the trial");
            None
        }
    };
    let mut real_of = |fields: &mut Fields<'_>, key| {
        let value = fields.take(key)?;
        real(reader, &value)
    };
    let event = match key {
        "report" => Some(TraceEvent::Report {
            trial: trial.unwrap_or_default(),
            metric: real_of(&mut fields, "metric"),
            time: real_of(&mut fields, "time"),
        }),
        "progress" => Some(TraceEvent::Progress {
            trial: trial.unwrap_or_default(),
            fraction: real_of(&mut fields, "fraction").unwrap_or(f64::NAN),
        }),
        _ => {
            let reasons = [
                ("errored", ExitReason::Errored),
                ("canceled", ExitReason::Canceled),
                (
                    "invalid_hyperparameters",
                    ExitReason::InvalidHyperparameters,
                ),
            ];
            let reason = match fields.take("reason") {
                Some(value) => reader.choice(&value, &reasons),
                None => {
                    let message =
                        "\"reason\" is required: errored, canceled or invalid_hyperparameters";
                    reader.error(value, message);
                    None
                }
            };
            reason.map(|reason| TraceEvent::Exit {
                trial: trial.unwrap_or_default(),
                reason,
            })
        }
    };
    reader.finish(fields);
    trial.and(event)
}

fn number(reader: &mut Reader, value: &Value<'_>) -> Option<usize> {
    let number = reader.integer(value, 1, MOST_TRIALS)?;
    usize::try_from(number).ok()
}

/// A number, also one that is not finite: `NaN`, `Infinity`, `-Infinity`, and YAML's `.nan` and `.inf`.
fn real(reader: &mut Reader, value: &Value<'_>) -> Option<f64> {
    if let Tree::Number(number) = &value.node.tree {
        return number.as_f64();
    }
    match value.text() {
        Some("NaN" | ".nan" | ".NaN" | ".NAN") => Some(f64::NAN),
        Some("Infinity" | ".inf" | ".Inf" | ".INF") => Some(f64::INFINITY),
        Some("-Infinity" | "-.inf" | "-.Inf" | "-.INF") => Some(f64::NEG_INFINITY),
        _ => {
            reader.mismatch(value, "a number, NaN, Infinity or -Infinity");
            None
        }
    }
}

fn expected(reader: &mut Reader, value: &Value<'_>) -> Option<ActionExpectation> {
    if value.text().is_some() {
        reader.choice(value, &[("nothing", ())])?;
        return Some(ActionExpectation::default());
    }
    let mut fields = reader.fields(value)?;
    let mut trials = |fields: &mut Fields<'_>, key| -> Vec<usize> {
        let value = fields.take(key);
        value
            .iter()
            .flat_map(Reader::one_or_many)
            .filter_map(|value| number(reader, &value))
            .collect()
    };
    let (create, stop) = (trials(&mut fields, "create"), trials(&mut fields, "stop"));
    let outcomes = [
        ("completed", Outcome::Completed),
        ("canceled", Outcome::Canceled),
        ("failed", Outcome::Failed),
    ];
    let shutdown = fields
        .take("shutdown")
        .and_then(|value| reader.choice(&value, &outcomes));
    let progress = fields
        .take("progress")
        .and_then(|value| real(reader, &value));
    let hyperparameters = match fields.take("hyperparameters") {
        Some(value) => hyperparameters(reader, &value),
        None => BTreeMap::new(),
    };
    reader.finish(fields);
    Some(ActionExpectation {
        create,
        stop,
        shutdown,
        progress,
        hyperparameters,
    })
}

fn hyperparameters(reader: &mut Reader, value: &Value<'_>) -> BTreeMap<usize, Map<String, Json>> {
    let mut found = BTreeMap::new();
    for (trial, value) in reader.members(value) {
        let Ok(number) = trial.parse::<usize>() else {
            reader.error(&value, "must be below the number of a trial");
            continue;
        };
        match value.node.to_value() {
            Json::Object(members) => {
                found.insert(number, members);
            }
            _ => reader.mismatch(&value, "a map of hyperparameters"),
        }
    }
    found
}
