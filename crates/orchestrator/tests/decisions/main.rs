//! What follows from events, as scenarios over rows in maps. The simulator plays the same code through whole histories.

mod backlog;
mod log_policies;
mod places;
mod pools;
mod tasks;
mod unmanaged;
mod world;

use det_config::hyperparameters::SearchMethod;
use det_ids::{Micros, RunId, TrialId};
use det_lifecycle::allocation::{AllocationEvent, AllocationState};
use det_lifecycle::container::{DesiredState, ObservedState};
use det_lifecycle::experiment::{ExperimentEvent, ExperimentState};
use det_lifecycle::log_findings::LogFindings;
use det_lifecycle::record::{ActorName, RecordedState, Subject};
use det_lifecycle::task::{TaskEnd, TaskState};
use det_lifecycle::trial::{EarlyExit, TrialState};
use det_orchestrator::{Cause, Effect, Event, Record, Refusal, SearchedMetrics, Topic, validation};
use det_scheduler::{WaitExplanation, WaitKind};
use det_searcher::Event as SearchEvent;
use det_taskspec::ContainerExit;
use serde_json::Map;
use world::{EXPERIMENT, World, running, world};

const SINGLE: &SearchMethod = &SearchMethod::Single;
const RANDOM: &SearchMethod = &SearchMethod::Random {
    max_trials: 2,
    max_concurrent_trials: 1,
};

fn by_user() -> Cause {
    Cause::actor(ActorName::user("ada"))
}

fn exits(code: i32) -> ObservedState {
    ObservedState::Terminated {
        exit: ContainerExit::Exited { code },
        cause: None,
    }
}

fn experiment(event: ExperimentEvent) -> Event {
    Event::Experiment {
        id: EXPERIMENT,
        event,
        cause: by_user(),
    }
}

fn states_of<'a>(world: &'a World, subject: &Subject) -> Vec<&'a str> {
    let states = world.effects.iter().filter_map(|effect| match effect {
        Effect::Record(Record {
            subject: of, to, ..
        }) if of == subject => to.as_ref().map(RecordedState::as_str),
        _ => None,
    });
    states.collect()
}

#[test]
fn the_only_trial_that_completes_completes_its_experiment() {
    let mut world = world(SINGLE, 0);
    let ids = world.runs_on(1, &["a"]);
    world.observe("a", &ids[0], exits(0));
    assert_eq!(world.trial_row(1).state, TrialState::Completed);
    assert_eq!(world.experiment.state, ExperimentState::Completed);
    assert!(world.search.is_none());
    let task = &world.tasks[&world.trial_row(1).task_id];
    assert_eq!(task.ended_at, Some(Micros(world.now)));
    assert_eq!(task.state, TaskState::Ended(TaskEnd::Completed));
    assert_eq!(
        world.effects.last(),
        Some(&Effect::Wake(Topic::CleanUp)),
        "the experiment's end comes last"
    );
    let subject = Subject::Allocation(format!("{}.1", world.trial_row(1).task_id).into());
    assert_eq!(
        states_of(&world, &subject),
        ["PENDING", "ASSIGNED", "RUNNING", "READY", "TERMINATED"]
    );
}

#[test]
fn a_failing_trial_is_restarted_as_often_as_allowed_and_then_the_search_goes_on() {
    let mut world = world(RANDOM, 1);
    for run in 1..=2 {
        assert_eq!(world.trial_row(1).run_id.0, run);
        let ids = world.runs_on(1, &["a"]);
        world.observe("a", &ids[0], exits(3));
    }
    assert_eq!(world.trial_row(1).state, TrialState::Errored);
    // The last failure is charged like the one before.
    assert_eq!(world.trial_row(1).restarts, 2);
    assert_eq!(world.trial_row(2).state, TrialState::Active);
    assert_eq!(world.experiment.trial_count, 2);
}

#[test]
fn a_restart_that_is_forbidden_names_the_reason() {
    let mut world = world(SINGLE, 5);
    world.forbidden = Some("its logs matched".to_owned());
    world.searched_metrics = Some(SearchedMetrics {
        metric: "loss".to_owned(),
        time_metric: Some("epochs".to_owned()),
        misses: Some("trial 1: searcher metric \"loss\" was not reported".to_owned()),
    });
    let ids = world.runs_on(1, &["a"]);
    world.observe("a", &ids[0], exits(3));
    assert_eq!(world.experiment.state, ExperimentState::Errored);
    assert!(
        world
            .lines()
            .contains(&"Not started again after 0 restarts: its logs matched")
    );
    let subject = Subject::Experiment(EXPERIMENT);
    let why = world.effects.iter().rev().find_map(|effect| match effect {
        Effect::Record(record) if record.subject == subject => record.cause.reason.clone(),
        _ => None,
    });
    assert_eq!(
        why.unwrap().to_string(),
        "the search failed: its trials failed, had invalid hyperparameters, or did not report searcher metric \"loss\" \
         together with time metric \"epochs\"; trial 1: searcher metric \"loss\" was not reported"
    );
}

#[test]
fn a_lost_place_costs_no_restart() {
    let mut world = world(SINGLE, 0);
    world.runs_on(1, &["a", "b"]);
    world.happens(Event::PlaceLost {
        place: "a".into(),
        reason: "away".to_owned(),
    });
    // The rank on the other place is ended before the next run is asked for.
    let on_b = world.containers.values().find(|c| c.place.as_str() == "b");
    assert_eq!(on_b.expect("a rank on b").desired, DesiredState::Kill);
    let id = on_b.expect("a rank on b").id.clone();
    world.observe(
        "b",
        &id,
        ObservedState::Terminated {
            exit: ContainerExit::Killed,
            cause: None,
        },
    );
    assert_eq!(world.trial_row(1).restarts, 0);
    assert_eq!(world.trial_row(1).run_id, RunId(2));
    let live = world.live(1);
    assert_eq!(world.allocations[&live].state, AllocationState::Pending);
}

/// The pause before the newest attempt of a trial, microseconds from now on.
fn pause(world: &World) -> Option<i64> {
    let row = &world.allocations[&world.live(1)];
    row.not_before.map(|at| at.0 - world.now)
}

fn is_lost(world: &mut World) {
    world.runs_on(1, &["a"]);
    is_lost_now(world);
}

fn is_lost_now(world: &mut World) {
    world.happens(Event::PlaceLost {
        place: "a".into(),
        reason: "away".to_owned(),
    });
}

#[test]
fn attempts_that_are_lost_one_after_another_have_a_pause_between_them() {
    let mut world = world(SINGLE, 0);
    for expected in [None, Some(5), Some(15), Some(60), Some(60), Some(60)] {
        is_lost(&mut world);
        assert_eq!(pause(&world), expected.map(|seconds| seconds * 1_000_000));
    }
    assert_eq!(world.trial_row(1).restarts, 0);
    // What gives its slots back has shown that it can run.
    let containers = world.runs_on(1, &["a"]);
    for event in [AllocationEvent::Preempt, AllocationEvent::Acknowledge] {
        let (id, cause) = (world.live(1), by_user());
        world.happens(Event::Allocation { id, event, cause });
    }
    world.observe("a", &containers[0], exits(0));
    assert_eq!(pause(&world), None);
    is_lost(&mut world);
    assert_eq!(pause(&world), None);
    // A clock that is set back while an attempt runs makes its pause no longer.
    world.runs_on(1, &["a"]);
    world.now -= 3_600_000_000;
    is_lost_now(&mut world);
    assert_eq!(pause(&world), Some(5_000_000));
    world.now += 3_600_000_000;
    // The time that an attempt ran is part of the pause.
    world.runs_on(1, &["a"]);
    world.now += 3_000_000;
    world.happens(Event::PlaceLost {
        place: "a".into(),
        reason: "away".to_owned(),
    });
    assert_eq!(pause(&world), Some(12_000_000));
}

#[test]
fn what_cannot_be_started_is_repeated_with_pauses_and_what_fails_by_itself_at_once() {
    let mut world = world(SINGLE, 5);
    for expected in [None, Some(5_000_000)] {
        let containers = world.runs_on(1, &["a"]);
        let exit = ContainerExit::StartFailed {
            message: "no space left on device".to_owned(),
        };
        let observed = ObservedState::Terminated { exit, cause: None };
        world.observe("a", &containers[0], observed);
        assert_eq!(pause(&world), expected);
    }
    assert_eq!(world.trial_row(1).restarts, 2);
    for _ in 0..2 {
        let containers = world.runs_on(1, &["a"]);
        world.observe("a", &containers[0], exits(1));
        assert_eq!(pause(&world), None);
    }
}

#[test]
fn what_a_place_does_not_hold_any_more_is_lost_and_what_it_never_reported_is_not() {
    let mut world = world(SINGLE, 0);
    let ids = world.runs_on(1, &["a"]);
    world.happens(Event::PlaceJoined {
        place: "a".into(),
        known_instance: Some("disk 1".into()),
        observed: vec![(ids[0].clone(), running())],
    });
    assert!(world.containers[&ids[0]].ended_at.is_none());
    world.happens(Event::PlaceJoined {
        place: "a".into(),
        known_instance: Some("disk 1".into()),
        observed: Vec::new(),
    });
    assert!(world.containers[&ids[0]].ended_at.is_some());
    assert_eq!(world.trial_row(1).run_id, RunId(2));
}

#[test]
fn a_late_report_moves_no_container_back() {
    let mut world = world(SINGLE, 0);
    let ids = world.runs_on(1, &["a"]);
    world.observe("a", &ids[0], ObservedState::Pulling);
    assert_eq!(world.containers[&ids[0]].observed, Some(running()));
    // A report of a place that the container is not on changes nothing either.
    world.observe("b", &ids[0], exits(0));
    assert!(world.containers[&ids[0]].ended_at.is_none());
}

#[test]
fn a_placement_that_was_overtaken_changes_nothing() {
    let mut world = world(SINGLE, 0);
    world.happens(Event::PlaceLeft {
        place: "a".into(),
        cause: Cause::actor(ActorName::Master),
    });
    let id = world.live(1);
    let before = world.allocations[&id].clone();
    world.happens(Event::Place(det_orchestrator::PlacedAllocation {
        placement: det_scheduler::Placement {
            allocation_id: id.clone(),
            parts: vec![("a".into(), vec![])],
        },
        container_ids: vec!["c".into()],
        ports: det_taskspec::GivenPorts::default(),
        namespace: None,
    }));
    assert_eq!(world.allocations[&id], before);
    assert!(world.containers.is_empty());
}

#[test]
fn an_attempt_keeps_the_namespace_that_it_was_placed_in() {
    let mut world = world(SINGLE, 0);
    world.runs_on(1, &["a"]);
    let row = &world.allocations[&world.live(1)];
    assert_eq!(row.namespace.as_deref(), Some("research"));
}

#[test]
fn preempted_work_has_the_configured_time_and_is_then_ended() {
    let mut world = world(SINGLE, 0);
    let ids = world.runs_on(1, &["a"]);
    let id = world.live(1);
    world.happens(experiment(ExperimentEvent::Pause));
    let due = Micros(world.now + 60 * 1_000_000);
    assert_eq!(world.allocations[&id].preempt_deadline, Some(due));
    assert!(world.is_woken(&Topic::Deadlines));
    world.happens(Event::Overdue { id: id.clone() });
    assert_eq!(world.allocations[&id].state, AllocationState::Preempting);
    world.now = due.0;
    world.happens(Event::Overdue { id: id.clone() });
    assert_eq!(world.containers[&ids[0]].desired, DesiredState::Kill);
    let killed = ContainerExit::Killed;
    world.observe(
        "a",
        &ids[0],
        ObservedState::Terminated {
            exit: killed,
            cause: None,
        },
    );
    assert_eq!(world.trial_row(1).state, TrialState::Paused);
    assert_eq!(world.experiment.state, ExperimentState::Paused);
}

#[test]
fn a_paused_experiment_that_is_killed_ends_at_once() {
    let mut world = world(SINGLE, 0);
    world.happens(experiment(ExperimentEvent::Pause));
    assert_eq!(world.trial_row(1).state, TrialState::Paused);
    world.happens(experiment(ExperimentEvent::Kill));
    assert_eq!(world.trial_row(1).state, TrialState::Canceled);
    assert_eq!(world.experiment.state, ExperimentState::Canceled);
    let refused = world.try_event(experiment(ExperimentEvent::Pause));
    assert!(matches!(refused, Err(Refusal::Precondition(_))));
}

#[test]
fn only_the_newest_run_ends_a_trial_early() {
    let mut world = world(SINGLE, 1);
    let ids = world.runs_on(1, &["a"]);
    world.observe("a", &ids[0], exits(3));
    world.runs_on(1, &["a"]);
    let early = |run| Event::EarlyExit {
        id: TrialId(1),
        run: Some(RunId(run)),
        reason: EarlyExit::UserRequested,
        cause: Cause::actor(ActorName::Task("code".into())),
    };
    let refused = world.try_event(early(1)).expect_err("an older run");
    assert!(refused.to_string().starts_with("run 1 of trial 1 is over"));
    world.happens(early(2));
    let live = world.live(1);
    let due = Micros(world.now + 10 * 1_000_000);
    assert_eq!(world.allocations[&live].preempt_deadline, Some(due));
}

#[test]
fn an_experiment_without_its_search_fails() {
    let mut world = world(RANDOM, 0);
    world.search = None;
    world.happens(Event::Search {
        id: EXPERIMENT,
        event: SearchEvent::Close,
    });
    // The trial that waited ends with it.
    assert_eq!(world.experiment.state, ExperimentState::Errored);
    assert_eq!(world.trial_row(1).state, TrialState::Canceled);
}

#[test]
fn a_continued_trial_goes_on_as_a_further_task() {
    let mut world = world(SINGLE, 0);
    let ids = world.runs_on(1, &["a"]);
    world.observe("a", &ids[0], exits(3));
    let first = world.trial_row(1).task_id.clone();
    let mut findings = LogFindings::default();
    findings.retries_canceled_by = Some("oom".to_owned());
    findings.exclude("a".into(), "bus error");
    let task = world.tasks.get_mut(&first).unwrap();
    (task.log_findings, task.log_retention_days) = (Some(findings), Some(7));
    world.happens(Event::Continue {
        id: EXPERIMENT,
        search: Box::new(world::search(SINGLE)),
        single: true,
        cause: by_user(),
    });
    assert_eq!(world.trials.len(), 1);
    assert_eq!(world.experiment.state, ExperimentState::Active);
    assert_eq!(world.experiment.ended_at, None);
    assert_eq!(world.trial_row(1).task_id.0, format!("{first}-1"));
    assert_eq!(world.trial_row(1).restarts, 0);
    assert_eq!(world.trial_row(1).run_id, RunId(2));
    // Its log is kept as long, the same places are avoided, and it may restart again.
    let task = &world.tasks[&world.trial_row(1).task_id];
    assert_eq!(task.log_retention_days, Some(7));
    let findings = task.log_findings.clone().unwrap();
    assert_eq!(findings.retries_canceled_by, None);
    assert_eq!(world.excluded[&world.live(1)], findings.excluded_places);
}

#[test]
fn a_reason_to_wait_of_the_same_kind_is_no_new_line() {
    let mut world = world(SINGLE, 0);
    let id = world.live(1);
    let waits = |message: &str| Event::Waits {
        id: id.clone(),
        waiting: WaitExplanation {
            kind: WaitKind::NoPlaces,
            message: message.to_owned(),
            details: Map::new(),
        },
    };
    let lines = world.lines().len();
    world.happens(waits("there are no agents"));
    world.now += 5;
    world.happens(waits("there are still no agents"));
    assert_eq!(world.lines().len(), lines + 1);
    let since = world.allocations[&id].wait_since;
    assert_eq!(since, Some(Micros(world.now - 5)));
}

#[test]
fn a_request_that_waits_goes_on_to_another_pool() {
    let mut world = world(SINGLE, 0);
    let id = world.live(1);
    world.happens(Event::Waits {
        id: id.clone(),
        waiting: WaitExplanation {
            kind: WaitKind::NoPlaces,
            message: "there are no agents".to_owned(),
            details: Map::new(),
        },
    });
    world.now += 90 * 1_000_000;
    let goes_to = |pool: &str| Event::ChangesPool {
        id: id.clone(),
        resource_pool: pool.to_owned(),
    };
    world.happens(goes_to("other"));
    let row = &world.allocations[&id];
    assert_eq!(row.resource_pool, "other");
    assert_eq!((&row.wait_reason, row.wait_since), (&None, None));
    let last = world.lines().pop().unwrap().to_owned();
    assert!(
        last.starts_with("Goes on to resource pool other after "),
        "{last}"
    );
    assert!(
        last.ends_with("; what it waited for there: there are no agents"),
        "{last}"
    );
    assert!(world.is_woken(&Topic::Schedule));
    // Once it has slots it stays where it is.
    let place = world.places.get_mut(&"a".into()).unwrap();
    "other".clone_into(&mut place.resource_pool);
    world.runs_on(1, &["a"]);
    world.happens(goes_to("third"));
    assert_eq!(world.allocations[&id].resource_pool, "other");
}

#[test]
fn a_validation_without_what_the_search_needs_is_unusable() {
    let event = |metric, time| validation("r".into(), metric, time);
    let usable = |time| SearchEvent::Validation {
        request_id: "r".into(),
        metric: 0.5,
        time,
    };
    let unusable = SearchEvent::UnusableValidation {
        request_id: "r".into(),
    };
    assert_eq!(event(Some(0.5), None), usable(None));
    assert_eq!(event(Some(0.5), Some(Some(3.0))), usable(Some(3.0)));
    assert_eq!(event(Some(0.5), Some(None)), unusable);
    assert_eq!(event(None, Some(Some(3.0))), unusable);
}
