//! What lines that log policies match mean for a task.

use det_config::container::LogAction;
use det_config::hyperparameters::SearchMethod;
use det_ids::PlaceId;
use det_lifecycle::record::EventKind;
use det_orchestrator::{Effect, Event, LogMatch};

use crate::world::{World, world};

const SINGLE: &SearchMethod = &SearchMethod::Single;

fn found(action: Option<LogAction>) -> LogMatch {
    LogMatch {
        policy: "ecc".to_owned(),
        pattern: "ECC error".to_owned(),
        action,
        allocation_id: None,
        named_place: None,
        places: vec!["a".into()],
    }
}

/// Lines of the first task of trial 1 match.
fn matches(world: &mut World, matches: Vec<LogMatch>) {
    let task = world.trial_row(1).task_id.clone();
    world.happens(Event::LogMatched { task, matches });
}

fn recorded(world: &World) -> usize {
    let is_match = |effect: &&Effect| matches!(effect, Effect::Record(record) if record.kind == EventKind::LogPolicyMatched);
    world.effects.iter().filter(is_match).count()
}

#[test]
fn a_place_is_avoided_by_what_waits_and_by_what_comes() {
    let mut world = world(SINGLE, 0);
    let waiting = world.live(1);
    let lines = world.lines().len();
    let exclude = || found(Some(LogAction::ExcludeNode));
    matches(&mut world, vec![exclude(), exclude()]);
    let avoided = [PlaceId::from("a")].into();
    assert_eq!(world.excluded[&waiting], avoided);
    let findings = world.tasks[&world.trial_row(1).task_id]
        .log_findings
        .clone();
    assert_eq!(findings.unwrap().excluded_places, avoided);
    assert_eq!((recorded(&world), world.lines().len()), (1, lines + 1));
    // The same batch again changes nothing.
    matches(&mut world, vec![exclude()]);
    assert_eq!((recorded(&world), world.lines().len()), (1, lines + 1));
}

#[test]
fn an_attempt_that_runs_stays_where_it_is() {
    let mut world = world(SINGLE, 0);
    world.runs_on(1, &["a"]);
    let running = world.live(1);
    matches(&mut world, vec![found(Some(LogAction::ExcludeNode))]);
    assert!(!world.excluded.contains_key(&running));
}

#[test]
fn a_policy_without_an_action_labels_and_one_that_cancels_retries_logs_it_once() {
    let mut world = world(SINGLE, 0);
    let lines = world.lines().len();
    matches(&mut world, vec![found(None)]);
    assert_eq!((recorded(&world), world.lines().len()), (1, lines));
    let cancel = || found(Some(LogAction::CancelRetries));
    matches(&mut world, vec![cancel(), cancel()]);
    assert_eq!((recorded(&world), world.lines().len()), (1, lines + 1));
    let findings = world.tasks[&world.trial_row(1).task_id]
        .log_findings
        .clone();
    assert_eq!(
        findings.unwrap().retries_canceled_by.as_deref(),
        Some("ecc")
    );
}
