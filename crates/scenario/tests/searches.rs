//! The named searches: every file of `searches/` does what it expects, also if the master restarts before every event.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::path::{Path, PathBuf};

use det_config::submitted::{Experiment, SubmittedDocument};
use det_scenario::{Trace, TraceConfig, TraceReport, play_trace, read_trace};

fn files() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("searches");
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

fn submitted(trace: &Trace) -> SubmittedDocument {
    match &trace.config {
        TraceConfig::Inline(config) => SubmittedDocument::from_value(Experiment, config).unwrap(),
        TraceConfig::File(file) => {
            panic!("the named searches bring their configuration, not {file}")
        }
    }
}

fn played(trace: &Trace) -> Result<TraceReport, String> {
    play_trace(trace, submitted(trace)).map_err(|errors| errors.to_string())
}

fn load(path: &Path) -> Result<Trace, String> {
    let text = std::fs::read_to_string(path).unwrap();
    read_trace(&text).map_err(|errors| errors.to_string())
}

#[test]
fn every_named_search_answers_as_expected() {
    let mut failed = Vec::new();
    for path in files() {
        let complaints = match load(&path).and_then(|trace| played(&trace)) {
            Ok(report) => report.mismatches.iter().map(ToString::to_string).collect(),
            Err(errors) => vec![errors],
        };
        failed.extend(
            complaints
                .into_iter()
                .map(|complaint| format!("{}: {complaint}", path.display())),
        );
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn a_restart_before_every_event_changes_nothing() {
    for path in files() {
        let mut trace = load(&path).unwrap();
        trace.restarts = false;
        let straight = played(&trace).unwrap();
        trace.restarts = true;
        assert_eq!(played(&trace).unwrap(), straight, "{}", path.display());
    }
}

/// Numbers 1 to 11 of the searcher reference, its worked example, and that each has a description and expects something.
#[test]
fn every_search_of_the_reference_exists_and_every_file_expects_something() {
    let files = files();
    for number in 1..=11 {
        let begin = format!("row-{number:02}-");
        let found = files.iter().any(|path| {
            path.file_name()
                .unwrap()
                .to_string_lossy()
                .starts_with(&begin)
        });
        assert!(found, "no file {begin}…");
    }
    for path in files {
        let trace = load(&path).unwrap();
        assert!(!trace.name.is_empty(), "{}", path.display());
        let expecting = trace.events.iter().filter(|step| step.expect.is_some());
        assert!(expecting.count() > 0, "{}", path.display());
    }
}

#[test]
fn an_unmet_expectation_is_reported_with_its_line() {
    let text = "
config: {name: t, searcher: {name: random, metric: loss, max_trials: 2, max_concurrent_trials: 1}, hyperparameters: {x: 3}}
start: {create: 1, hyperparameters: {1: {x: 4}}}
events:
  - end: 1
    expect: {stop: 1, progress: 0.25}
  - end: 2
    expect: {shutdown: failed}
";
    let report = played(&read_trace(text).unwrap()).unwrap();
    let message: Vec<String> = report.mismatches.iter().map(ToString::to_string).collect();
    assert_eq!(
        message,
        [
            "start: the search starts: expected hyperparameter \"x\" of trial 1 to be 4, found 3",
            "line 5: events[0].expect: trial 1 ends: expected no trial to be created, found trial 2",
            "line 5: events[0].expect: trial 1 ends: expected trial 1 to be stopped, found no trial",
            "line 5: events[0].expect: trial 1 ends: expected a progress of 0.25, found 0.5",
            "line 7: events[1].expect: trial 2 ends: expected failed, found completed",
        ]
    );
}

#[test]
fn all_errors_of_a_trace_are_reported_at_once() {
    let text = "
confg: {}
seed: -1
events:
  - end: 0
  - {report: {metric: high}}
  - {exit: {trial: 1, reason: eror}}
  - stop
  - {end: 1, close: true}
  - {}
  - {end: 1, expect: {created: 2}}
";
    let message = read_trace(text).unwrap_err().to_string();
    for expected in [
        "line 2: \"config\" is required",
        "line 2: confg: is not a key here; hint: did you mean \"config\"?",
        "line 3: seed: must be 0 to 4294967295, not -1",
        "line 5: events[0].end: must be 1 to 1000000, not 0",
        "line 6: events[1].report: \"trial\" is required: the number of the trial",
        "line 6: events[1].report.metric: must be a number, NaN, Infinity or -Infinity, not a string",
        "line 7: events[2].exit.reason: must be one of errored, canceled, invalid_hyperparameters, not \"eror\"",
        "line 8: events[3]: must be one of close, restart, not \"stop\"",
        "line 9: events[4]: is one event; put \"close\" into an event of its own",
        "line 10: events[5]: names no event",
        "line 11: events[6].expect.created: is not a key here; hint: did you mean \"create\"?",
    ] {
        assert!(message.contains(expected), "{message}\nlacks {expected}");
    }
}

#[test]
fn errors_of_the_configuration_are_listed_with_those_of_the_trace() {
    let text = "
seed: -1
config:
  searcher: {name: random, metric: loss, max_trials: 0}
  hyperparameters:
    lr: {type: dubble, minval: 0, maxval: 1}
events:
  - end: 0
";
    let message = read_trace(text).unwrap_err().to_string();
    let lines: Vec<&str> = message.lines().collect();
    assert_eq!(lines.len(), 4, "{message}");
    for (line, expected) in lines.iter().zip([
        "line 2: seed: must be",
        "line 4: config.searcher.max_trials: must be at least 1",
        "line 6: config.hyperparameters.lr.type: must be one of",
        "line 8: events[0].end: must be",
    ]) {
        assert!(line.starts_with(expected), "{message}");
    }
}

#[test]
fn an_event_of_a_trial_that_does_not_exist_yet_is_an_error() {
    let text = "
config: {name: t, searcher: {name: single, metric: loss}}
events: [{end: 2}]
";
    let message = played(&read_trace(text).unwrap()).unwrap_err();
    assert_eq!(
        message,
        "line 3: events[0]: there is no trial 2 by then; the search has created 1"
    );
}
