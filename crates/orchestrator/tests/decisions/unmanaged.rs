//! What code outside the cluster reports of its trials, and what follows for their experiment.

use det_ids::{Micros, RunId, TrialId};
use det_lifecycle::experiment::{ExperimentEvent, ExperimentState};
use det_lifecycle::record::{ActorName, Subject};
use det_lifecycle::task::{TaskEnd, TaskState};
use det_lifecycle::trial::{TrialEvent, TrialState};
use det_lifecycle::unmanaged::UnmanagedEvent;
use det_orchestrator::{Cause, Effect, Event, Refusal, Topic};
use det_searcher::Event as SearchEvent;

use crate::world::{EXPERIMENT, World, unmanaged, world};
use crate::{SINGLE, by_user, experiment, states_of};

/// How long a heartbeat counts.
const PATIENCE: i64 = 300;

fn registers(world: &mut World, name: &str) {
    world.happens(Event::AddTrial {
        id: EXPERIMENT,
        request_id: name.into(),
        hparams: "{}".to_owned(),
    });
}

fn starts(world: &mut World, trial: i64, resumes: bool) {
    let until = Micros(world.now + PATIENCE);
    world.happens(Event::UnmanagedStarts {
        id: TrialId(trial),
        until,
        resumes,
        cause: by_user(),
    });
}

fn reports(trial: i64, event: UnmanagedEvent) -> Event {
    Event::Unmanaged {
        id: TrialId(trial),
        event,
        cause: by_user(),
    }
}

fn beats(world: &mut World, trial: i64) {
    let until = Micros(world.now + PATIENCE);
    world.happens(reports(trial, UnmanagedEvent::Beat { until }));
}

/// The deadlines of all trials are looked at.
fn deadlines(world: &mut World) {
    let now = Micros(world.now);
    for id in world.trials.keys().copied().collect::<Vec<_>>() {
        world.happens(reports(id.0, UnmanagedEvent::Deadline { now }));
    }
}

/// An experiment with trials, the code of each of which runs.
fn with_running(trials: i64) -> World {
    let mut world = unmanaged();
    for trial in 1..=trials {
        registers(&mut world, &format!("t{trial}"));
        starts(&mut world, trial, true);
        beats(&mut world, trial);
    }
    world
}

#[test]
fn a_trial_runs_from_its_first_heartbeat_to_its_last_report() {
    let mut world = unmanaged();
    registers(&mut world, "first");
    assert_eq!(world.trial_row(1).state, TrialState::Paused);
    assert_eq!(world.trial_row(1).task_id.as_str(), "1.first");
    starts(&mut world, 1, true);
    assert_eq!(world.experiment.state, ExperimentState::Paused);
    beats(&mut world, 1);
    beats(&mut world, 1);
    assert_eq!(world.experiment.state, ExperimentState::Active);
    world.now += 60;
    world.happens(reports(1, UnmanagedEvent::Completed));
    assert_eq!(world.trial_row(1).state, TrialState::Completed);
    assert_eq!(world.trial_row(1).ended_at, Some(Micros(world.now)));
    assert_eq!(world.experiment.state, ExperimentState::Completed);
    assert_eq!(world.experiment.ended_at, Some(Micros(world.now)));
    let task = &world.tasks[&world.trial_row(1).task_id];
    assert_eq!(task.state, TaskState::Ended(TaskEnd::Completed));
    let (trial, experiment) = (Subject::Trial(TrialId(1)), Subject::Experiment(EXPERIMENT));
    assert_eq!(
        states_of(&world, &trial),
        ["PAUSED", "ACTIVE", "COMPLETED"],
        "the second heartbeat is no change"
    );
    assert_eq!(states_of(&world, &experiment), ["ACTIVE", "COMPLETED"]);
}

#[test]
fn nothing_of_it_is_scheduled() {
    let mut world = with_running(1);
    world.happens(reports(1, UnmanagedEvent::Failed));
    assert!(world.allocations.is_empty());
    assert!(!world.is_woken(&Topic::Schedule));
    assert_eq!(world.experiment.state, ExperimentState::Errored);
}

#[test]
fn silence_ends_a_trial_and_a_heartbeat_or_a_start_revives_it() {
    let mut world = with_running(1);
    let task_id = world.trial_row(1).task_id.clone();
    world.now += PATIENCE - 1;
    deadlines(&mut world);
    assert_eq!(world.trial_row(1).state, TrialState::Active);
    world.now += 1;
    deadlines(&mut world);
    assert_eq!(world.trial_row(1).state, TrialState::Errored);
    assert_eq!(world.experiment.state, ExperimentState::Errored);
    assert!(world.tasks[&task_id].ended_at.is_some());
    assert!(
        world
            .lines()
            .iter()
            .any(|line| line.contains("no heartbeat"))
    );

    beats(&mut world, 1);
    assert_eq!(world.trial_row(1).state, TrialState::Active);
    assert_eq!(
        world.trial_row(1).run_id,
        RunId::FIRST,
        "the same run goes on"
    );
    assert_eq!(world.experiment.ended_at, None);
    assert_eq!(world.tasks[&task_id].ended_at, None);

    world.now += PATIENCE;
    deadlines(&mut world);
    starts(&mut world, 1, false);
    assert_eq!(world.trial_row(1).state, TrialState::Active);
    assert_eq!(world.trial_row(1).run_id, RunId(2));
    assert!(!world.resumed);
    assert_eq!(world.experiment.state, ExperimentState::Active);
}

#[test]
fn a_heartbeat_that_comes_after_the_end_changes_nothing() {
    let mut world = with_running(1);
    world.happens(reports(1, UnmanagedEvent::Completed));
    let effects = world.effects.len();
    beats(&mut world, 1);
    assert_eq!(world.trial_row(1).state, TrialState::Completed);
    assert_eq!(world.effects.len(), effects);
}

#[test]
fn the_trial_that_counts_most_gives_the_experiment_its_state() {
    let mut world = with_running(3);
    registers(&mut world, "late");
    world.happens(reports(1, UnmanagedEvent::Failed));
    assert_eq!(world.experiment.state, ExperimentState::Active);
    world.happens(reports(2, UnmanagedEvent::Completed));
    assert_eq!(world.experiment.state, ExperimentState::Active);
    world.happens(reports(3, UnmanagedEvent::Failed));
    assert_eq!(world.experiment.state, ExperimentState::Completed);
    // What was registered and never began does not keep it from its end, and brings it back when it begins.
    beats(&mut world, 4);
    assert_eq!(world.experiment.state, ExperimentState::Active);
    world.happens(reports(4, UnmanagedEvent::Failed));
    world.happens(reports(2, UnmanagedEvent::Failed));
    assert_eq!(world.experiment.state, ExperimentState::Errored);
    let task = &world.tasks[&world.trial_row(2).task_id];
    assert_eq!(
        task.state,
        TaskState::Ended(TaskEnd::Failed),
        "its last word"
    );
}

#[test]
fn its_end_leaves_the_search_and_the_queue_alone() {
    let mut world = with_running(1);
    let event = SearchEvent::More { most: 1 };
    let id = EXPERIMENT;
    world.happens(Event::Search { id, event });
    world.happens(Event::CatchUp { id });
    assert_eq!(world.trials.len(), 1);
    assert_eq!(world.experiment.state, ExperimentState::Active);
}

#[test]
fn users_can_only_delete_it() {
    let mut world = with_running(1);
    for event in [
        ExperimentEvent::Pause,
        ExperimentEvent::Activate,
        ExperimentEvent::Kill,
        ExperimentEvent::Delete,
    ] {
        let refused = world.try_event(experiment(event)).unwrap_err();
        assert!(matches!(refused, Refusal::Precondition(_)), "{refused}");
    }
    let kill = Event::Trial {
        id: TrialId(1),
        event: TrialEvent::Kill,
        cause: by_user(),
    };
    let refused = world.try_event(kill).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("unmanaged trial cannot be killed"),
        "{refused}"
    );
    world.happens(reports(1, UnmanagedEvent::Completed));
    world.happens(experiment(ExperimentEvent::Delete));
    assert_eq!(world.experiment.state, ExperimentState::Deleting);
    assert!(world.is_woken(&Topic::CleanUp));
    let until = Micros(world.now);
    let late = world.try_event(reports(1, UnmanagedEvent::Beat { until }));
    assert!(late.unwrap_err().to_string().contains("is being deleted"));
}

#[test]
fn what_the_master_runs_takes_no_reports_of_its_state() {
    let mut world = world(SINGLE, 0);
    let until = Micros(world.now);
    let refused = world.try_event(reports(1, UnmanagedEvent::Beat { until }));
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("the master runs it")
    );
    let refused = world.try_event(Event::AddTrial {
        id: EXPERIMENT,
        request_id: "more".into(),
        hparams: "{}".to_owned(),
    });
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("only unmanaged experiments")
    );
    let start = Event::UnmanagedStarts {
        id: TrialId(1),
        until,
        resumes: true,
        cause: Cause::actor(ActorName::user("ada")),
    };
    assert!(world.try_event(start).is_err());
    let inserted = |effect: &&Effect| matches!(effect, Effect::InsertTrial(_));
    assert_eq!(world.effects.iter().filter(inserted).count(), 1);
}
