//! A sound cluster passes; each damage is found by the check of its invariant.

use std::collections::{BTreeMap, BTreeSet};

use det_ids::{ExperimentId, RunId, SlotId, TrialId};
use det_invariants::{
    Allocation, Checkpoint, Container, Event, Experiment, Place, Process, Refusal, Report,
    ReportContent, Search, Snapshot, Task, Trial, check,
};
use det_lifecycle::allocation::{AllocationExit, AllocationState};
use det_lifecycle::experiment::ExperimentState;
use det_lifecycle::record::{EventKind, RecordedState, Subject};
use det_lifecycle::state_name::{AllocationStateName, StateName};
use det_lifecycle::task::{MAX_LOSSES, RestartPolicy, Stop, TaskEnd, TaskState};
use det_lifecycle::trial::TrialState;

fn event(subject: Subject, kind: EventKind, to: impl Into<RecordedState>) -> Event {
    Event {
        subject,
        kind,
        to: Some(to.into()),
    }
}

fn of_allocation(id: &str, kind: EventKind, to: AllocationStateName) -> Event {
    event(Subject::Allocation(id.into()), kind, to)
}

fn report(what: ReportContent) -> Report {
    Report {
        trial_id: TrialId(1),
        run_id: RunId(2),
        newest_run: RunId(2),
        what,
    }
}

/// One experiment with a running trial and a waiting one, on one place of two slots.
#[expect(clippy::too_many_lines, reason = "one literal of a whole cluster")]
fn sound() -> Snapshot {
    let allocation = |id: &str, trial_id, run_id, state: AllocationState| Allocation {
        id: id.into(),
        task_id: format!("task-{trial_id}").into(),
        trial_id: Some(trial_id),
        run_id,
        slots: 2,
        preemptible: true,
        asked: false,
        port_step: None,
        service_port: None,
        placed: state != AllocationState::Pending,
        ended: state.is_terminal(),
        wait_reason: (state == AllocationState::Pending).then(|| "no free slots".into()),
        true_reason: (state == AllocationState::Pending).then(|| "no free slots".into()),
        state,
    };
    let trial = |id, run_id| Trial {
        id,
        experiment_id: ExperimentId(1),
        request_id: format!("request-{id}").into(),
        task_id: format!("task-{id}").into(),
        run_id,
        restarts: 0,
        state: TrialState::Active,
        ended: false,
        latest_checkpoint: (id == TrialId(1)).then(|| "c".into()),
        unmanaged: None,
    };
    let task = |id, state| Task {
        id: format!("task-{id}").into(),
        state,
        parent: None,
        policy: RestartPolicy::ByTrial,
        losses: 0,
        ended: false,
        started_attempts: Some(2),
    };
    let metric = |step| report(ReportContent::Metric { step, value: 0.5 });
    let files = BTreeMap::from([("model.pt".to_owned(), 7)]);
    let exit = AllocationExit::Released;
    Snapshot {
        experiments: vec![Experiment {
            id: ExperimentId(1),
            state: ExperimentState::Active,
            ended: false,
            trial_count: 2,
            unmanaged: false,
        }],
        trials: vec![trial(TrialId(1), RunId(2)), trial(TrialId(2), RunId(1))],
        tasks: vec![
            task(TrialId(1), TaskState::Running),
            task(TrialId(2), TaskState::Queued),
        ],
        allocations: vec![
            allocation(
                "task-1.1",
                TrialId(1),
                RunId(1),
                AllocationState::Terminated { exit },
            ),
            allocation("task-1.2", TrialId(1), RunId(2), AllocationState::Ready),
            allocation("task-2.1", TrialId(2), RunId(1), AllocationState::Pending),
        ],
        containers: vec![Container {
            id: "container".into(),
            allocation_id: "task-1.2".into(),
            place_id: "agent".into(),
            slots: BTreeSet::from([0, 1].map(SlotId)),
            ended: false,
        }],
        places: vec![Place {
            id: "agent".into(),
            slots: BTreeSet::from([0, 1].map(SlotId)),
            connected: true,
            connection: Some(true),
            holds: Some(BTreeSet::from(["container".into()])),
        }],
        checkpoints: vec![Checkpoint {
            uuid: "c".into(),
            trial_id: Some(TrialId(1)),
            complete: true,
            manifest: files.clone(),
            files: Some(files),
        }],
        searches: vec![Search {
            experiment_id: ExperimentId(1),
            remembered: Some("s".into()),
            replayed: "s".into(),
            asked_for: BTreeMap::from([("request-1".into(), false), ("request-2".into(), false)]),
        }],
        events: Some(vec![
            event(
                Subject::Experiment(ExperimentId(1)),
                EventKind::Created,
                StateName::Active,
            ),
            event(
                Subject::Trial(TrialId(1)),
                EventKind::Created,
                StateName::Active,
            ),
            event(
                Subject::Trial(TrialId(2)),
                EventKind::Created,
                StateName::Active,
            ),
            of_allocation("task-1.1", EventKind::Placed, AllocationStateName::Assigned),
            of_allocation(
                "task-1.1",
                EventKind::Ended,
                AllocationStateName::Terminated,
            ),
            of_allocation("task-1.2", EventKind::Placed, AllocationStateName::Assigned),
            of_allocation("task-1.2", EventKind::State, AllocationStateName::Ready),
            of_allocation("task-2.1", EventKind::Created, AllocationStateName::Pending),
            event(
                Subject::Allocation("task-2.1".into()),
                EventKind::ResourcePool,
                RecordedState::ResourcePool("other".to_owned()),
            ),
        ]),
        acknowledged: vec![metric(1), metric(2)],
        stored: vec![
            metric(1),
            metric(2),
            report(ReportContent::Checkpoint { uuid: "c".into() }),
        ],
        processes: vec![Process {
            place_id: "agent".into(),
            container_id: "container".into(),
            unwanted_micros: 0,
        }],
        refusals: vec![Refusal {
            what: "delete".into(),
            left_something: false,
        }],
        quiescent: true,
    }
}

#[test]
fn a_sound_cluster_passes() {
    assert_eq!(check(&sound()), []);
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn every_damage_is_seen() {
    type Damage = fn(&mut Snapshot);
    let damages: &[(u8, &str, Damage)] = &[
        (1, "two containers on one slot", |s| {
            let mut twin = s.containers[0].clone();
            twin.id = "twin".into();
            s.containers.push(twin);
        }),
        (1, "a slot that the agent does not have", |s| {
            s.places[0].slots.remove(&SlotId(1));
        }),
        (1, "a container of an ended allocation", |s| {
            s.containers[0].allocation_id = "task-1.1".into();
        }),
        (1, "a gang with too few slots", |s| {
            s.containers[0].slots.remove(&SlotId(1));
        }),
        (2, "a second live allocation", |s| {
            let mut twin = s.allocations[1].clone();
            twin.id = "task-1.3".into();
            s.allocations.push(twin);
        }),
        (2, "an active trial without an allocation", |s| {
            s.allocations.remove(2);
        }),
        (2, "a paused trial with an allocation", |s| {
            s.trials[1].state = TrialState::Paused;
        }),
        (2, "the live allocation of an older run", |s| {
            s.trials[0].run_id = RunId(3);
        }),
        (2, "a report of an older run is taken", |s| {
            s.acknowledged[0].newest_run = RunId(3);
        }),
        (1, "a port of a host twice", |s| {
            s.allocations[1].service_port = Some(2901);
            let mut beside = s.allocations[1].clone();
            (beside.id, beside.trial_id, beside.slots) = ("beside.1".into(), None, 0);
            let mut container = s.containers[0].clone();
            container.id = "another".into();
            container.allocation_id = beside.id.clone();
            container.slots.clear();
            s.allocations.push(beside);
            s.containers.push(container);
        }),
        (3, "a lost metric", |s| {
            s.stored.remove(0);
        }),
        (3, "a metric twice", |s| s.stored.push(s.stored[0].clone())),
        (3, "another value", |s| {
            s.stored[0].what = ReportContent::Metric {
                step: 1,
                value: 0.7,
            };
        }),
        (3, "out of order", |s| s.stored.swap(0, 1)),
        (4, "an end that is not noted", |s| {
            s.allocations[0].ended = false;
        }),
        (4, "a live trial of an ended experiment", |s| {
            s.experiments[0].state = ExperimentState::Completed;
            s.experiments[0].ended = true;
        }),
        (5, "a file is missing", |s| {
            s.checkpoints[0].files = Some(BTreeMap::new());
        }),
        (5, "going on from a deleted checkpoint", |s| {
            s.checkpoints[0].complete = false;
        }),
        (6, "a process that no row wants", |s| {
            s.processes[0].unwanted_micros = 121_000_000;
        }),
        (7, "memory and events differ", |s| {
            s.searches[0].remembered = Some("other".into());
        }),
        (7, "a trial twice", |s| {
            s.trials[1].request_id = "request-1".into();
        }),
        (7, "a trial that no search asked for", |s| {
            s.searches[0].asked_for.remove(&"request-2".into());
        }),
        (7, "a search that was notified of an end too early", |s| {
            s.searches[0].asked_for.insert("request-2".into(), true);
        }),
        (7, "a trial that was never created", |s| {
            s.experiments[0].trial_count = 1;
        }),
        (8, "a row without its connection", |s| {
            s.places[0].connection = Some(false);
        }),
        (8, "an agent that does not have its container", |s| {
            s.places[0].holds = Some(BTreeSet::new());
        }),
        (9, "something is left behind", |s| {
            s.refusals[0].left_something = true;
        }),
        (10, "no reason", |s| s.allocations[2].wait_reason = None),
        (10, "an untrue reason", |s| {
            s.allocations[2].wait_reason = Some("no agents".into());
        }),
        (10, "a change without an event", |s| {
            s.events.as_mut().unwrap().remove(1);
        }),
        (10, "a change of an allocation without an event", |s| {
            s.events.as_mut().unwrap().remove(6);
        }),
        (10, "a placement without an event", |s| {
            s.events.as_mut().unwrap().remove(5);
        }),
        (11, "a task that waits with an attempt that runs", |s| {
            s.tasks[0].state = TaskState::Queued;
        }),
        (11, "a task that rests with an attempt", |s| {
            s.tasks[1].state = TaskState::Suspended;
        }),
        (11, "an end that the row of a task does not know", |s| {
            s.allocations.remove(2);
            s.tasks[1].state = TaskState::Ended(TaskEnd::Failed);
        }),
        (11, "a child of a task that is being killed", |s| {
            s.tasks[0].state = TaskState::Stopping(Stop::Kill);
            s.tasks[1].parent = Some(s.tasks[0].id.clone());
        }),
        (11, "a notebook that starts twice", |s| {
            s.tasks[0].policy = RestartPolicy::Never;
        }),
        (11, "a task that is started again without end", |s| {
            s.tasks[0].losses = MAX_LOSSES + 1;
        }),
        (11, "a notebook that is asked to save", |s| {
            s.allocations[1].preemptible = false;
            s.allocations[1].asked = true;
        }),
    ];
    for (number, name, damage) in damages {
        let mut snapshot = sound();
        damage(&mut snapshot);
        let found = check(&snapshot);
        assert!(
            found.iter().any(|v| v.number == *number),
            "{name}: {found:?}"
        );
    }
}
