//! Tasks of all kinds: those of trials follow their trials, the others live by themselves.

use std::time::Duration;

use det_config::hyperparameters::SearchMethod;
use det_ids::{Micros, RunId, TaskId, TrialId, UserId};
use det_lifecycle::allocation::{AllocationEvent, AllocationState};
use det_lifecycle::container::DesiredState;
use det_lifecycle::experiment::ExperimentEvent;
use det_lifecycle::record::{EventKind, Subject};
use det_lifecycle::task::{Demand, MAX_LOSSES, Stop, TaskEnd, TaskEvent, TaskState};
use det_lifecycle::trial::TrialState;
use det_orchestrator::hang::Finding;
use det_orchestrator::{Effect, Event, Refusal, Task, Topic};
use det_taskspec::{ContainerExit, TaskKind};

use crate::world::{World, world};
use crate::{by_user, exits, experiment, states_of};

const SINGLE: &SearchMethod = &SearchMethod::Single;

/// A world with a task of this kind, which has been resumed: it waits for two slots.
fn with_task(kind: TaskKind) -> (World, TaskId) {
    let mut world = world(SINGLE, 0);
    let id = TaskId::from("t");
    world.tasks.insert(
        id.clone(),
        Task {
            id: id.clone(),
            kind,
            job_id: "job-of-t".into(),
            owner_id: UserId(1),
            log_findings: None,
            log_retention_days: None,
            experiment_id: None,
            trial_id: None,
            state: TaskState::Suspended,
            demand: Some(Demand {
                slots: 2,
                single_place: true,
                preemption_timeout: 90,
                preemptible: None,
            }),
            attempts: 0,
            losses: 0,
            ended_at: None,
        },
    );
    world.happens(asked(&id, TaskEvent::Resume));
    (world, id)
}

/// [`with_task`] with a task whose configuration sets whether it is preemptible.
fn with_preemptible(kind: TaskKind, preemptible: bool) -> (World, TaskId) {
    let (mut world, id) = with_task(kind);
    world.happens(asked(&id, TaskEvent::Kill));
    let again = TaskId::from("again");
    let mut row = world.tasks[&id].clone();
    row.id = again.clone();
    row.state = TaskState::Suspended;
    (row.attempts, row.ended_at) = (0, None);
    row.demand = row.demand.map(|demand| Demand {
        preemptible: Some(preemptible),
        ..demand
    });
    world.tasks.insert(again.clone(), row);
    world.happens(asked(&again, TaskEvent::Resume));
    (world, again)
}

fn preempted(id: &TaskId, attempt: u32) -> Event {
    Event::PreemptFor {
        id: id.allocation(attempt),
        for_allocation: None,
        reason: "experiment 9 (priority 1) needs its slots".to_owned(),
    }
}

fn listens(id: &TaskId) -> Event {
    Event::Listens {
        id: id.allocation(1),
        cause: by_user(),
    }
}

fn asked(id: &TaskId, event: TaskEvent) -> Event {
    Event::Task {
        id: id.clone(),
        event,
        cause: by_user(),
    }
}

fn exit(exit: ContainerExit) -> det_lifecycle::container::ObservedState {
    det_lifecycle::container::ObservedState::Terminated { exit, cause: None }
}

#[test]
fn a_command_asks_for_what_its_row_has_runs_once_and_ends() {
    let (mut world, id) = with_task(TaskKind::Command);
    let row = &world.allocations[&id.allocation(1)];
    assert_eq!((row.slots, row.single_place), (2, true));
    assert_eq!((row.run_id.0, row.job_id.as_str()), (0, "job-of-t"));
    assert!(
        world
            .lines()
            .contains(&"Scheduling command t (attempt 1) in resource pool default")
    );
    assert_eq!(world.tasks[&id].state, TaskState::Queued);
    let containers = world.task_runs_on(&id, &["a"]);
    assert_eq!(world.tasks[&id].state, TaskState::Running);
    world.observe("a", &containers[0], exits(0));
    let task = &world.tasks[&id];
    assert_eq!(task.state, TaskState::Ended(TaskEnd::Completed));
    assert_eq!(task.ended_at, Some(Micros(world.now)));
    assert!(world.is_woken(&Topic::TaskLog(id.clone())));
    let subject = Subject::Task(id);
    assert_eq!(
        states_of(&world, &subject),
        ["QUEUED", "RUNNING", "COMPLETED"]
    );
    // The trial beside it has noticed nothing.
    assert_eq!(world.trial_row(1).state, TrialState::Active);
}

#[test]
fn a_command_that_loses_its_place_ends_and_is_not_started_again() {
    let (mut world, id) = with_task(TaskKind::Command);
    world.task_runs_on(&id, &["a"]);
    world.happens(Event::PlaceLost {
        place: "a".into(),
        reason: "away".to_owned(),
    });
    assert_eq!(world.tasks[&id].state, TaskState::Ended(TaskEnd::Failed));
    assert_eq!(world.tasks[&id].attempts, 1);
    let reason = world.allocations[&id.allocation(1)].exit_reason.as_deref();
    assert_eq!(reason, Some("the container was lost: away"));
}

/// The place on which the newest attempt of a task runs is lost.
fn loses_its_place(world: &mut World, id: &TaskId) {
    world.task_runs_on(id, &["a"]);
    world.happens(Event::PlaceLost {
        place: "a".into(),
        reason: "away".to_owned(),
    });
}

#[test]
fn a_preemptible_task_that_loses_its_place_is_queued_again_until_it_has_lost_too_many() {
    for (kind, preemptible) in [
        (TaskKind::Generic, None),
        (TaskKind::Command, Some(true)),
        (TaskKind::Notebook, Some(true)),
    ] {
        let (mut world, id) = match preemptible {
            Some(preemptible) => with_preemptible(kind, preemptible),
            None => with_task(kind),
        };
        for attempt in 1..=MAX_LOSSES {
            loses_its_place(&mut world, &id);
            let task = &world.tasks[&id];
            assert_eq!((task.state, task.losses), (TaskState::Queued, attempt));
            let next = &world.allocations[&id.allocation(attempt + 1)];
            assert_eq!(next.state, AllocationState::Pending);
            let pause = next.not_before.map(|at| (at.0 - world.now) / 1_000_000);
            let expected = [None, Some(5), Some(15), Some(60), Some(60)];
            assert_eq!(pause, expected[attempt as usize - 1]);
        }
        let reason = |world: &World, attempt| {
            let row = &world.allocations[&id.allocation(attempt)];
            row.exit_reason.clone().unwrap()
        };
        let first = reason(&world, 1);
        assert!(
            first.ends_with("away (it is queued again: loss 1 of at most 5 in a row)"),
            "{first}"
        );
        loses_its_place(&mut world, &id);
        let task = &world.tasks[&id];
        assert_eq!(task.state, TaskState::Ended(TaskEnd::Failed));
        assert_eq!(task.attempts, MAX_LOSSES + 1);
        let last = reason(&world, MAX_LOSSES + 1);
        assert!(
            last.ends_with("away (not started again: 6 attempts in a row were lost)"),
            "{last}"
        );
    }
}

#[test]
fn an_agent_that_is_stopped_takes_no_loss_from_a_preemptible_task() {
    let (mut world, id) = with_task(TaskKind::Generic);
    // More often than it may be lost in a row.
    for attempt in 1..=MAX_LOSSES + 1 {
        let containers = world.task_runs_on(&id, &["a"]);
        world.observe("a", &containers[0], exit(ContainerExit::Killed));
        let task = &world.tasks[&id];
        assert_eq!((task.state, task.losses), (TaskState::Queued, 0));
        let reason = world.allocations[&id.allocation(attempt)]
            .exit_reason
            .clone()
            .unwrap();
        assert!(
            reason.ends_with("(it is queued again; not counted as a loss)"),
            "{reason}"
        );
    }
    loses_its_place(&mut world, &id);
    assert_eq!(world.tasks[&id].losses, 1);
}

#[test]
fn an_attempt_that_gives_its_slots_back_starts_the_count_of_losses_anew() {
    let (mut world, id) = with_task(TaskKind::Generic);
    loses_its_place(&mut world, &id);
    assert_eq!(world.tasks[&id].losses, 1);
    let containers = world.task_runs_on(&id, &["a"]);
    world.happens(preempted(&id, 2));
    world.happens(Event::Allocation {
        id: id.allocation(2),
        event: AllocationEvent::Acknowledge,
        cause: by_user(),
    });
    world.observe("a", &containers[0], exits(0));
    let task = &world.tasks[&id];
    assert_eq!((task.state, task.losses), (TaskState::Queued, 0));
}

#[test]
fn what_is_not_preemptible_ends_with_its_place() {
    for (kind, preemptible) in [(TaskKind::Generic, false), (TaskKind::Shell, false)] {
        let (mut world, id) = with_preemptible(kind, preemptible);
        loses_its_place(&mut world, &id);
        let task = &world.tasks[&id];
        assert_eq!(task.state, TaskState::Ended(TaskEnd::Failed));
        assert_eq!((task.attempts, task.losses), (1, 0));
    }
}

#[test]
fn a_waiting_command_that_is_moved_asks_again_and_a_running_one_is_not_moved() {
    let (mut world, id) = with_task(TaskKind::Command);
    world.experiment.resource_pool = "other".to_owned();
    world.happens(asked(&id, TaskEvent::Requeue));
    let first = &world.allocations[&id.allocation(1)];
    assert!(first.state.is_terminal());
    let second = &world.allocations[&id.allocation(2)];
    assert_eq!(second.state, AllocationState::Pending);
    assert_eq!(second.resource_pool, "other");
    world.places.get_mut(&"a".into()).expect("a").resource_pool = "other".to_owned();
    world.task_runs_on(&id, &["a"]);
    let refused = world.try_event(asked(&id, TaskEvent::Requeue));
    let message = refused.expect_err("it runs").to_string();
    assert!(message.starts_with("task t: this task cannot be moved"));
}

#[test]
fn a_killed_task_ends_when_its_containers_have() {
    let (mut world, id) = with_task(TaskKind::Shell);
    let containers = world.task_runs_on(&id, &["a"]);
    world.happens(asked(&id, TaskEvent::Kill));
    assert_eq!(world.tasks[&id].state, TaskState::Stopping(Stop::Kill));
    assert_eq!(world.containers[&containers[0]].desired, DesiredState::Kill);
    assert!(world.tasks[&id].ended_at.is_none());
    world.observe("a", &containers[0], exit(ContainerExit::Killed));
    assert_eq!(world.tasks[&id].state, TaskState::Ended(TaskEnd::Canceled));
}

#[test]
fn a_generic_task_that_was_preempted_waits_for_slots_again() {
    let (mut world, id) = with_task(TaskKind::Generic);
    let containers = world.task_runs_on(&id, &["a"]);
    world.happens(Event::PreemptFor {
        id: id.allocation(1),
        for_allocation: None,
        reason: "its job has more slots than its limit".to_owned(),
    });
    let due = Micros(world.now + 90 * 1_000_000);
    let row = &world.allocations[&id.allocation(1)];
    assert_eq!(row.preempt_deadline, Some(due));
    world.happens(Event::Allocation {
        id: id.allocation(1),
        event: AllocationEvent::Acknowledge,
        cause: by_user(),
    });
    world.observe("a", &containers[0], exits(0));
    assert_eq!(world.tasks[&id].state, TaskState::Queued);
    let next = &world.allocations[&id.allocation(2)];
    assert_eq!(next.state, AllocationState::Pending);
}

#[test]
fn a_service_that_opted_in_is_ended_for_more_important_work_and_started_again() {
    for kind in [TaskKind::Notebook, TaskKind::Shell, TaskKind::Tensorboard] {
        let (mut world, id) = with_preemptible(kind, true);
        assert!(world.allocations[&id.allocation(1)].preemptible);
        let containers = world.task_runs_on(&id, &["a"]);
        world.happens(preempted(&id, 1));
        // It has no way to save: its programs get SIGTERM, and nothing waits for them longer than the grace.
        assert_eq!(world.containers[&containers[0]].desired, DesiredState::Stop);
        assert_eq!(world.allocations[&id.allocation(1)].preempt_deadline, None);
        let line =
            "Asked to end, to be started again later: experiment 9 (priority 1) needs its slots";
        assert!(world.lines().contains(&line));
        world.observe("a", &containers[0], exit(ContainerExit::Killed));
        assert_eq!(world.tasks[&id].state, TaskState::Queued, "{}", kind.name());
        let next = &world.allocations[&id.allocation(2)];
        assert_eq!(
            (&next.state, next.preemptible),
            (&AllocationState::Pending, true)
        );
    }
}

#[test]
fn a_service_is_suspended_and_resumed_only_if_it_opted_in() {
    let (mut world, id) = with_preemptible(TaskKind::Notebook, true);
    let containers = world.task_runs_on(&id, &["a"]);
    world.happens(asked(&id, TaskEvent::Suspend));
    world.observe("a", &containers[0], exits(0));
    assert_eq!(world.tasks[&id].state, TaskState::Suspended);
    world.happens(asked(&id, TaskEvent::Resume));
    assert_eq!(world.tasks[&id].state, TaskState::Queued);
    assert_eq!(world.tasks[&id].attempts, 2);
    for (kind, (mut world, id)) in [
        (TaskKind::Notebook, with_task(TaskKind::Notebook)),
        (
            TaskKind::Generic,
            with_preemptible(TaskKind::Generic, false),
        ),
    ] {
        assert!(!world.allocations[&id.allocation(1)].preemptible);
        world.task_runs_on(&id, &["a"]);
        let refused = world.try_event(asked(&id, TaskEvent::Suspend));
        let message = refused.expect_err(kind.name()).to_string();
        assert!(message.contains("\"preemptible: true\""), "{message}");
    }
}

#[test]
fn code_that_asks_for_the_signal_is_given_its_time_and_code_that_does_not_is_ended() {
    for kind in [TaskKind::Generic, TaskKind::Command] {
        let (mut world, id) = with_preemptible(kind, true);
        let containers = world.task_starts_on(&id, &["a"]);
        world.happens(listens(&id));
        world.happens(asked(&id, TaskEvent::Suspend));
        let row = &world.allocations[&id.allocation(1)];
        assert_eq!(row.state, AllocationState::Preempting);
        assert_eq!(
            row.preempt_deadline,
            Some(Micros(world.now + 90 * 1_000_000))
        );
        assert_eq!(world.containers[&containers[0]].desired, DesiredState::Run);
        // It ignores the signal until its time is over.
        world.now += 91 * 1_000_000;
        world.happens(Event::Overdue {
            id: id.allocation(1),
        });
        assert_eq!(world.containers[&containers[0]].desired, DesiredState::Kill);
        world.observe("a", &containers[0], exit(ContainerExit::Killed));
        assert_eq!(world.tasks[&id].state, TaskState::Suspended);

        let (mut world, id) = with_preemptible(kind, true);
        let containers = world.task_starts_on(&id, &["a"]);
        world.happens(asked(&id, TaskEvent::Suspend));
        assert_eq!(world.containers[&containers[0]].desired, DesiredState::Kill);
    }
    // Nothing follows where there is nothing to save, or where something else shows it.
    for (mut world, id) in [
        with_task(TaskKind::Command),
        with_preemptible(TaskKind::Notebook, true),
    ] {
        world.task_starts_on(&id, &["a"]);
        let before = world.allocations[&id.allocation(1)].state.clone();
        world.happens(listens(&id));
        assert_eq!(world.allocations[&id.allocation(1)].state, before);
    }
}

#[test]
fn a_generic_task_is_suspended_and_resumed() {
    let (mut world, id) = with_task(TaskKind::Generic);
    world.happens(asked(&id, TaskEvent::Suspend));
    assert_eq!(world.tasks[&id].state, TaskState::Suspended);
    assert!(world.allocations[&id.allocation(1)].state.is_terminal());
    world.happens(asked(&id, TaskEvent::Resume));
    let containers = world.task_runs_on(&id, &["a"]);
    // Resumed before its containers have ended, it asks again once they have.
    world.happens(asked(&id, TaskEvent::Suspend));
    world.happens(asked(&id, TaskEvent::Resume));
    assert_eq!(world.tasks[&id].state, TaskState::Stopping(Stop::Requeue));
    world.happens(Event::Allocation {
        id: id.allocation(2),
        event: AllocationEvent::Acknowledge,
        cause: by_user(),
    });
    world.observe("a", &containers[0], exits(0));
    assert_eq!(world.tasks[&id].attempts, 3);
    world.happens(asked(&id, TaskEvent::Suspend));
    world.happens(asked(&id, TaskEvent::Kill));
    assert_eq!(world.tasks[&id].state, TaskState::Ended(TaskEnd::Canceled));
    let refused = world.try_event(asked(&id, TaskEvent::Resume));
    assert!(matches!(refused, Err(Refusal::Precondition(_))));
}

#[test]
fn the_log_of_a_task_names_who_paused_resumed_and_killed_it() {
    let (mut world, id) = with_task(TaskKind::Generic);
    let containers = world.task_starts_on(&id, &["a"]);
    world.happens(asked(&id, TaskEvent::Suspend));
    world.observe("a", &containers[0], exits(0));
    world.happens(asked(&id, TaskEvent::Resume));
    world.task_starts_on(&id, &["a"]);
    world.happens(asked(&id, TaskEvent::Kill));
    let lines = world.lines();
    let of = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    for (line, times) in [
        ("Asked to end at once: it was paused by ada", 1),
        ("Paused: `det task unpause t` lets it go on", 1),
        // Its first start is nothing that goes on.
        ("Goes on: it was resumed by ada", 1),
        ("Asked to end at once: it was killed by ada", 1),
    ] {
        assert_eq!(of(line), times, "{line}: {lines:?}");
    }
}

#[test]
fn the_log_of_a_trial_names_who_steers_it_and_which_restart_follows() {
    let mut world = world(SINGLE, 1);
    let first = world.runs_on(1, &["a"]);
    world.happens(experiment(ExperimentEvent::Pause));
    world.happens(Event::Allocation {
        id: world.live(1),
        event: AllocationEvent::Acknowledge,
        cause: by_user(),
    });
    world.observe("a", &first[0], exits(0));
    assert_eq!(world.trial_row(1).state, TrialState::Paused);
    world.happens(experiment(ExperimentEvent::Activate));
    for _ in 0..2 {
        let containers = world.runs_on(1, &["a"]);
        world.observe("a", &containers[0], exits(3));
    }
    let lines = world.lines();
    for line in [
        "Asked to save and exit within 60 s: it was paused by ada",
        "Paused: `det experiment activate 1` lets it go on",
        "Goes on: it was resumed by ada",
        "Restart 1 of 1 (\"max_restarts\") follows this failure",
        "Not started again after 1 restart: its \"max_restarts\" is 1",
    ] {
        let times = lines.iter().filter(|said| **said == line).count();
        assert_eq!(times, 1, "{line}: {lines:?}");
    }
}

#[test]
fn a_trials_task_follows_its_trial_only() {
    let mut world = world(SINGLE, 0);
    let id = world.trial_row(1).task_id.clone();
    world.runs_on(1, &["a"]);
    assert_eq!(world.tasks[&id].state, TaskState::Running);
    for event in [TaskEvent::Kill, TaskEvent::Suspend, TaskEvent::Resume] {
        let refused = world.try_event(asked(&id, event));
        let message = refused.expect_err("it has a trial").to_string();
        assert!(message.contains("is that of trial 1, and follows it"));
    }
    world.happens(experiment(ExperimentEvent::Pause));
    assert_eq!(world.tasks[&id].state, TaskState::Stopping(Stop::Suspend));
    world.happens(experiment(ExperimentEvent::Kill));
    assert_eq!(world.tasks[&id].state, TaskState::Stopping(Stop::Kill));
    assert!(states_of(&world, &Subject::Task(id)).is_empty());
}

#[test]
fn a_trials_task_that_is_moved_asks_again_as_the_next_run() {
    let mut world = world(SINGLE, 0);
    let id = world.trial_row(1).task_id.clone();
    world.experiment.resource_pool = "other".to_owned();
    world.happens(asked(&id, TaskEvent::Requeue));
    assert_eq!(world.tasks[&id].state, TaskState::Queued);
    assert_eq!(world.trial_row(1).run_id, RunId(2));
    assert_eq!(
        world.allocations[&world.live(1)].resource_pool,
        "other".to_owned()
    );
}

/// A task of this kind whose container runs, in a world in which its service is up where it reports that.
fn with_service(kind: TaskKind, up: bool) -> (World, TaskId) {
    let (mut world, id) = with_task(kind);
    world.task_starts_on(&id, &["a"]);
    if up {
        world.happens(Event::Allocation {
            id: id.allocation(1),
            event: AllocationEvent::Meet,
            cause: by_user(),
        });
    }
    (world, id)
}

fn unused(id: &TaskId) -> Event {
    Event::Unused {
        id: id.clone(),
        timeout: Duration::from_secs(90),
    }
}

#[test]
fn a_service_that_is_not_used_ends_with_its_reason() {
    for (kind, up, what) in [
        (TaskKind::Notebook, true, "\"notebook_idle_type\" counts"),
        (TaskKind::Tensorboard, true, "no request came"),
        (TaskKind::Tensorboard, false, "no request came"),
    ] {
        let (mut world, id) = with_service(kind, up);
        world.happens(unused(&id));
        assert_eq!(world.tasks[&id].state, TaskState::Stopping(Stop::Kill));
        let reason = world.allocations[&id.allocation(1)].exit_reason.clone();
        let reason = reason.unwrap_or_default();
        assert!(
            reason.starts_with("it was idle for 90 s (\"idle_timeout\")") && reason.contains(what),
            "{kind:?}: {reason}"
        );
    }
}

#[test]
fn a_service_whose_time_does_not_count_is_left_alone() {
    // Its service is not up yet.
    let (mut world, id) = with_service(TaskKind::Notebook, false);
    world.happens(unused(&id));
    assert_eq!(world.tasks[&id].state, TaskState::Running);
    // It is on its way out already, has ended, or never was.
    world.happens(asked(&id, TaskEvent::Kill));
    world.effects.clear();
    world.happens(unused(&id));
    let (mut waiting, queued) = with_task(TaskKind::Notebook);
    waiting.effects.clear();
    waiting.happens(unused(&queued));
    waiting.happens(unused(&TaskId::from("gone")));
    assert_eq!((world.effects, waiting.effects), (vec![], vec![]));
}

#[test]
fn a_silent_trial_is_in_its_record_and_its_log_while_it_runs() {
    let mut world = world(SINGLE, 0);
    let attempt = world.live(1);
    let silent = Event::Silent {
        id: attempt.clone(),
        silent: Duration::from_secs(70),
        timeout: Duration::from_secs(60),
        finding: Finding {
            ranks: Vec::new(),
            conclusion: "rank 1 sleeps".to_owned(),
        },
    };
    world.effects.clear();
    world.happens(silent.clone());
    assert!(world.effects.is_empty(), "it does not run yet");
    world.runs_on(1, &["a"]);
    world.effects.clear();
    world.happens(silent);
    let reason = "its code has reported nothing and written nothing for 70 s (\"silence_timeout\" is 60 s): rank 1 sleeps";
    assert_eq!(world.lines(), [format!("This trial may hang: {reason}")]);
    let recorded = world.effects.iter().find_map(|effect| match effect {
        Effect::Record(record) => Some(record),
        _ => None,
    });
    let record = recorded.expect("it is in the record");
    assert_eq!(
        (record.subject.clone(), record.kind),
        (Subject::Trial(TrialId(1)), EventKind::Silent)
    );
    assert_eq!(record.cause.reason.as_deref(), Some(reason));
}
