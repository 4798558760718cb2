//! The named scenarios: every file of `scenarios/` does what it expects, and the judge checks every plan on the way.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod judge;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use det_scenario::{
    Detail, Observation, OnImpossible, Operation, Options, Scenario, Service, play, play_watched,
    read,
};

const OPTIONS: Options = Options {
    detail: Detail::Everything,
    on_impossible: OnImpossible::Fail,
};

fn files() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

fn load(path: &Path) -> Result<Scenario, String> {
    let text = std::fs::read_to_string(path).unwrap();
    read(&text).map_err(|errors| errors.to_string())
}

fn judged(observation: &Observation<'_>) {
    let state = judge::State {
        pool: observation.pool.clone(),
        queue: observation.queue.clone(),
        now: observation.now,
    };
    judge::check(&state, observation.plan);
}

/// The failures of a file; empty if there are none.
fn complaints(path: &Path) -> Vec<String> {
    let scenario = match load(path) {
        Ok(scenario) => scenario,
        Err(errors) => return vec![errors],
    };
    match play_watched(&scenario, OPTIONS, &mut judged) {
        Err(errors) => vec![errors.to_string()],
        Ok(report) => report.mismatches.iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn every_named_scenario_does_what_it_expects() {
    let mut failed = 0;
    for path in files() {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let complaints = complaints(&path);
        println!(
            "{name}: {}",
            if complaints.is_empty() {
                "ok"
            } else {
                "FAILED"
            }
        );
        for failure in &complaints {
            println!("    {failure}");
        }
        failed += usize::from(!complaints.is_empty());
    }
    assert_eq!(failed, 0, "scenarios failed; they are listed above");
}

#[test]
fn every_named_scenario_states_what_it_shows_and_expects_something() {
    let files = files();
    assert!(files.len() > 70, "only {} scenarios", files.len());
    for path in files {
        let scenario = load(&path).unwrap();
        assert!(!scenario.name.is_empty(), "{} has no name", path.display());
        assert!(
            scenario.steps.iter().any(|step| !step.expect.is_empty()),
            "{} expects nothing",
            path.display()
        );
    }
}

#[test]
fn a_description_that_is_written_down_reads_as_the_same() {
    for path in files() {
        let mut scenario = load(&path).unwrap();
        let text = det_config::yaml::to_yaml(&scenario.to_value());
        let mut again = read(&text).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
        for step in scenario.steps.iter_mut().chain(&mut again.steps) {
            step.line = None;
        }
        assert_eq!(scenario, again, "{}", path.display());
    }
}

#[test]
fn a_scenario_is_the_same_whenever_it_is_played() {
    for path in files() {
        let scenario = load(&path).unwrap();
        let once = || play_watched(&scenario, OPTIONS, &mut |_| {}).unwrap();
        let watched = once();
        assert_eq!(once(), watched, "{}", path.display());
        let unwatched = play(&scenario, OPTIONS).unwrap();
        assert_eq!(unwatched, watched, "{}", path.display());
    }
}

#[test]
fn the_examples_of_the_document_play_as_described() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/scheduler-simulation.md");
    let document = std::fs::read_to_string(document).unwrap();
    let blocks: Vec<&str> = document
        .split("```yaml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect();
    assert!(!blocks.is_empty(), "the document shows no scenario");
    for block in blocks {
        let scenario = read(block).unwrap_or_else(|errors| panic!("{errors}\n{block}"));
        let report = play_watched(&scenario, OPTIONS, &mut judged).unwrap();
        assert_eq!(report.mismatches, Vec::new(), "{block}");
    }
}

/// The name of an operation in the format; without a `_` arm, so that a new one needs a scenario.
fn operation_name(operation: &Operation) -> &'static str {
    match operation {
        Operation::Submit(_) => "submit",
        Operation::Finish(_) => "finish",
        Operation::Fail(_) => "fail",
        Operation::Kill(_) => "kill",
        Operation::Leave(_) => "leave",
        Operation::Pause(_) => "pause",
        Operation::Activate(_) => "activate",
        Operation::Set { .. } => "set",
        Operation::Limit { .. } => "limit",
        Operation::Move { .. } => "move",
        Operation::Exclude { .. } => "exclude",
        Operation::Serve { service, .. } => match service {
            Service::Enabled => "enable",
            Service::Draining => "drain",
            Service::Disabled => "disable",
        },
        Operation::Lose(_) => "lose",
        Operation::Return(_) => "return",
        Operation::Join(_) => "join",
        Operation::Remove(_) => "remove",
        Operation::RestartMaster => "restart_master",
    }
}

#[test]
fn every_operation_occurs_in_a_named_scenario() {
    let mut found: BTreeSet<&str> = BTreeSet::new();
    for path in files() {
        let scenario = load(&path).unwrap();
        let operations = scenario.steps.iter().flat_map(|step| &step.operations);
        found.extend(operations.map(operation_name));
    }
    let every = [
        "submit",
        "finish",
        "fail",
        "kill",
        "leave",
        "pause",
        "activate",
        "set",
        "limit",
        "move",
        "exclude",
        "enable",
        "drain",
        "disable",
        "lose",
        "return",
        "join",
        "remove",
        "restart_master",
    ];
    let missing: Vec<&str> = every
        .into_iter()
        .filter(|name| !found.contains(name))
        .collect();
    assert_eq!(missing, Vec::<&str>::new());
    assert_eq!(found.len(), every.len());
}
