//! Large experiments: one change deals with some of their trials, and leaves the others to the next ones.

use det_config::hyperparameters::SearchMethod;
use det_lifecycle::experiment::{ExperimentEvent, ExperimentState};
use det_lifecycle::trial::TrialState;
use det_orchestrator::{Effect, Event, SearchState, Topic};

use crate::world::{self, AT_ONCE, EXPERIMENT, World, world};
use crate::{by_user, exits, experiment};

const TRIALS: usize = 8;
const LARGE: &SearchMethod = &SearchMethod::Random {
    max_trials: 8,
    max_concurrent_trials: 0,
};

/// An event, which deals with as many trials as it may; whether some are left.
fn leaves_some(world: &mut World, event: Event) -> bool {
    let (before, effects) = (world.trials.clone(), world.effects.len());
    world.happens(event);
    let changed = world
        .trials
        .iter()
        .filter(|(id, trial)| before.get(id) != Some(trial));
    assert!(
        changed.count() <= AT_ONCE as usize,
        "one change has a bound"
    );
    let left = Effect::Wake(Topic::Backlog(EXPERIMENT));
    world.effects[effects..].contains(&left)
}

/// The changes that follow, one after the other, until nothing is left; how many.
fn catches_up(world: &mut World) -> usize {
    let event = Event::CatchUp { id: EXPERIMENT };
    let mut changes = 1..10;
    let last = changes.find(|_| !leaves_some(world, event.clone()));
    last.expect("it comes to an end")
}

/// An experiment with all its trials.
fn large() -> World {
    let mut world = world(LARGE, 0);
    catches_up(&mut world);
    world
}

fn count(world: &World, state: TrialState) -> usize {
    world
        .trials
        .values()
        .filter(|trial| trial.state == state)
        .count()
}

#[test]
fn trials_are_created_some_at_a_time_and_all_of_them() {
    let mut world = world(LARGE, 0);
    assert_eq!(world.trials.len(), 3);
    assert!(world.is_woken(&Topic::Backlog(EXPERIMENT)));
    // What ends meanwhile neither ends the search nor creates more.
    let ids = world.runs_on(1, &["a"]);
    world.observe("a", &ids[0], exits(0));
    assert_eq!(world.trials.len(), 3);
    assert_eq!(catches_up(&mut world), 2);
    assert_eq!(world.trials.len(), TRIALS);
    assert_eq!(count(&world, TrialState::Active), TRIALS - 1);
    assert!(!leaves_some(&mut world, Event::CatchUp { id: EXPERIMENT }));
    assert_eq!(world.trials.len(), TRIALS);
    // The rows lead to the same search.
    let (mut first, mut events) = (None, Vec::new());
    for effect in &world.effects {
        match effect {
            Effect::SaveSearch { snapshot, .. } => first = Some(snapshot.clone()),
            Effect::AppendSearchEvent { number, text, .. } => events.push((*number, text.clone())),
            _ => {}
        }
    }
    let first = first.expect("the search is stored when it begins");
    let (searcher, space) = (world::searcher(LARGE), world::space());
    let replayed = SearchState::replay(&searcher, &space, (&first, 0), &events).unwrap();
    let search = world.search.as_ref().unwrap();
    assert_eq!(replayed.search.snapshot(), search.search.snapshot());
}

#[test]
fn a_kill_ends_trials_some_at_a_time_and_then_the_experiment() {
    let mut world = large();
    let ids = world.runs_on(8, &["a"]);
    assert!(leaves_some(&mut world, experiment(ExperimentEvent::Kill)));
    assert_eq!(count(&world, TrialState::Canceled), 3);
    assert_eq!(count(&world, TrialState::Active), 5);
    assert_eq!(catches_up(&mut world), 2);
    assert_eq!(count(&world, TrialState::Canceled), TRIALS - 1);
    assert!(world.experiment.ended_at.is_none(), "one still runs");
    world.observe("a", &ids[0], exits(0));
    assert_eq!(world.experiment.state, ExperimentState::Canceled);
}

#[test]
fn trials_of_a_search_that_is_not_created_whole_end_with_it() {
    let mut world = world(LARGE, 0);
    assert!(!leaves_some(&mut world, experiment(ExperimentEvent::Kill)));
    assert_eq!(world.experiment.state, ExperimentState::Canceled);
    assert!(!leaves_some(&mut world, Event::CatchUp { id: EXPERIMENT }));
    assert_eq!(world.trials.len(), 3, "nothing more is created");
}

#[test]
fn what_is_paused_and_activated_again_goes_on_as_a_whole() {
    let mut world = large();
    assert!(leaves_some(&mut world, experiment(ExperimentEvent::Pause)));
    assert_eq!(count(&world, TrialState::Paused), 3);
    assert_eq!(catches_up(&mut world), 2);
    assert_eq!(count(&world, TrialState::Paused), TRIALS);
    assert!(leaves_some(
        &mut world,
        experiment(ExperimentEvent::Activate)
    ));
    // Before the last of them are active.
    assert!(leaves_some(&mut world, Event::CatchUp { id: EXPERIMENT }));
    assert!(leaves_some(&mut world, experiment(ExperimentEvent::Pause)));
    catches_up(&mut world);
    assert_eq!(count(&world, TrialState::Paused), TRIALS);
    leaves_some(&mut world, experiment(ExperimentEvent::Activate));
    catches_up(&mut world);
    assert_eq!(count(&world, TrialState::Active), TRIALS);
}

#[test]
fn trials_that_are_created_while_an_experiment_is_paused_are_paused() {
    let mut world = world(LARGE, 0);
    assert!(!leaves_some(&mut world, experiment(ExperimentEvent::Pause)));
    catches_up(&mut world);
    assert_eq!(count(&world, TrialState::Paused), TRIALS);
}

fn continued() -> Event {
    Event::Continue {
        id: EXPERIMENT,
        search: Box::new(world::search(LARGE)),
        single: false,
        cause: by_user(),
    }
}

#[test]
fn a_large_experiment_is_continued_some_trials_at_a_time() {
    let mut world = large();
    for trial in 1..=4 {
        let ids = world.runs_on(trial, &["a"]);
        world.observe("a", &ids[0], exits(0));
    }
    leaves_some(&mut world, experiment(ExperimentEvent::Kill));
    catches_up(&mut world);
    assert_eq!(world.experiment.state, ExperimentState::Canceled);
    // The first three have completed; one more is looked for.
    assert!(leaves_some(&mut world, continued()));
    assert_eq!(world.experiment.state, ExperimentState::Active);
    catches_up(&mut world);
    assert_eq!(count(&world, TrialState::Completed), 4);
    assert_eq!(count(&world, TrialState::Active), 4);
    assert_eq!(world.trials.len(), TRIALS);
    for trial in 5..=8 {
        let ids = world.runs_on(trial, &["a"]);
        world.observe("a", &ids[0], exits(0));
    }
    assert_eq!(world.experiment.state, ExperimentState::Completed);
    let refused = world
        .try_event(continued())
        .expect_err("all have completed");
    assert!(
        refused
            .to_string()
            .contains("all its trials have completed")
    );
}
