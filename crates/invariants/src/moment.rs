//! Checks of the invariants that hold at every moment.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use det_ids::{
    AllocationId, ContainerId, ExperimentId, PlaceId, RequestId, RunId, SlotId, TaskId, TrialId,
};
use det_lifecycle::allocation::AllocationState;
use det_lifecycle::experiment::ExperimentState;
use det_lifecycle::record::{EventKind, RecordedState, Subject};
use det_lifecycle::task::{MAX_LOSSES, RestartPolicy, Stop, TaskState};
use det_lifecycle::trial::TrialState;
use det_lifecycle::unmanaged::{TrialCounts, experiment_state};

use crate::{Allocation, ReportContent, Snapshot, Trial, Violation};

/// Invariant 6: no process runs longer than this, in microseconds, if no row wants it.
pub const MAX_UNWANTED_MICROS: i64 = 120 * 1_000_000;

/// All violations, in the order of the invariants; empty = there are none.
pub fn check(snapshot: &Snapshot) -> Vec<Violation> {
    let mut found = Vec::new();
    slots(snapshot, &mut found);
    ports(snapshot, &mut found);
    one_allocation(snapshot, &mut found);
    acknowledged(snapshot, &mut found);
    ends(snapshot, &mut found);
    checkpoints(snapshot, &mut found);
    processes(snapshot, &mut found);
    searches(snapshot, &mut found);
    agreement(snapshot, &mut found);
    refusals(snapshot, &mut found);
    reasons(snapshot, &mut found);
    events(snapshot, &mut found);
    tasks(snapshot, &mut found);
    found
}

/// 1: slots are held by containers of live allocations, each slot by one at most.
fn slots(snapshot: &Snapshot, found: &mut Vec<Violation>) {
    let allocations: HashMap<&AllocationId, &Allocation> =
        snapshot.allocations.iter().map(|a| (&a.id, a)).collect();
    let places: HashMap<&PlaceId, &BTreeSet<SlotId>> =
        snapshot.places.iter().map(|a| (&a.id, &a.slots)).collect();
    let mut holders: HashMap<(&PlaceId, SlotId), &ContainerId> = HashMap::new();
    let mut given: HashMap<&AllocationId, i64> = HashMap::new();
    for container in &snapshot.containers {
        let sum = given.entry(&container.allocation_id).or_default();
        *sum += i64::try_from(container.slots.len()).unwrap_or(i64::MAX);
        if container.ended {
            continue;
        }
        if allocations
            .get(&container.allocation_id)
            .is_none_or(|a| a.ended)
        {
            found.push(Violation::new(
                1,
                format!(
                    "container {} holds slots of place {} for allocation {}, which does not live",
                    container.id, container.place_id, container.allocation_id
                ),
            ));
        }
        for slot in &container.slots {
            if let Some(other) = holders.insert((&container.place_id, *slot), &container.id) {
                found.push(Violation::new(
                    1,
                    format!(
                        "slot {slot} of place {} is held by containers {other} and {}",
                        container.place_id, container.id
                    ),
                ));
            }
            if places
                .get(&container.place_id)
                .is_some_and(|slots| !slots.contains(slot))
            {
                found.push(Violation::new(
                    1,
                    format!(
                        "container {} holds slot {slot}, which place {} does not have",
                        container.id, container.place_id
                    ),
                ));
            }
        }
    }
    for allocation in snapshot.allocations.iter().filter(|a| !a.ended) {
        let sum = given.get(&allocation.id).copied();
        let expected = allocation.placed.then_some(allocation.slots);
        if sum != expected {
            found.push(Violation::new(
                1,
                format!(
                    "allocation {} asks for {} slots, is {}placed, and its containers have {sum:?}",
                    allocation.id,
                    allocation.slots,
                    if allocation.placed { "" } else { "not " },
                ),
            ));
        }
    }
}

/// 1: ports of containers that share a host's network.
fn ports(snapshot: &Snapshot, found: &mut Vec<Violation>) {
    let live = snapshot.allocations.iter().filter(|a| !a.ended);
    let live: HashMap<&AllocationId, &Allocation> = live.map(|a| (&a.id, a)).collect();
    let mut holders: HashMap<(&PlaceId, &str, u16), &AllocationId> = HashMap::new();
    for container in snapshot.containers.iter().filter(|it| !it.ended) {
        let Some(allocation) = live.get(&container.allocation_id) else {
            continue;
        };
        for (what, port) in [
            ("set of training ports", allocation.port_step),
            (
                "service port",
                allocation.service_port.filter(|port| *port != 0),
            ),
        ] {
            let Some(port) = port else { continue };
            let other = holders.insert((&container.place_id, what, port), &allocation.id);
            if let Some(other) = other.filter(|other| **other != allocation.id) {
                let what = format!(
                    "{what} {port} of place {} is that of allocations {other} and {}",
                    container.place_id, allocation.id
                );
                found.push(Violation::new(1, what));
            }
        }
    }
}

/// 11: tasks of any kind, and their attempts.
fn tasks(snapshot: &Snapshot, found: &mut Vec<Violation>) {
    let mut live: HashMap<&TaskId, Vec<&AllocationState>> = HashMap::new();
    for allocation in snapshot.allocations.iter().filter(|it| !it.ended) {
        live.entry(&allocation.task_id)
            .or_default()
            .push(&allocation.state);
        if allocation.asked && !allocation.preemptible {
            let what = format!(
                "allocation {} is asked to give its slots back, and its task would not go on later",
                allocation.id
            );
            found.push(Violation::new(11, what));
        }
    }
    let killed = snapshot.tasks.iter();
    let killed = killed.filter(|task| task.state == TaskState::Stopping(Stop::Kill));
    let killed: HashSet<&TaskId> = killed.map(|task| &task.id).collect();
    for task in &snapshot.tasks {
        let parent = task
            .parent
            .as_ref()
            .filter(|parent| killed.contains(parent));
        if let (Some(parent), false, false) = (parent, killed.contains(&task.id), task.ended) {
            let what = format!(
                "task {} goes on, and task {parent}, to which it belongs, is being killed",
                task.id
            );
            found.push(Violation::new(11, what));
        }
        let of_task = live.get(&task.id).map_or(&[][..], Vec::as_slice);
        let is_true = match (task.state, of_task) {
            (TaskState::Suspended, []) => !task.ended,
            (TaskState::Queued, [state]) => **state == AllocationState::Pending,
            (TaskState::Running, [state]) => **state != AllocationState::Pending,
            (TaskState::Stopping(_), [_]) => true,
            (TaskState::Ended(_), []) => task.ended,
            _ => false,
        };
        if !is_true {
            let what = format!(
                "task {} is {:?} with the live attempts {of_task:?}, and its row has {} end",
                task.id,
                task.state,
                if task.ended { "an" } else { "no" }
            );
            found.push(Violation::new(11, what));
        }
        if let (RestartPolicy::Never, Some(starts @ 2..)) = (task.policy, task.started_attempts) {
            let what = format!(
                "the code of task {} has started {starts} times, and it is never started again",
                task.id
            );
            found.push(Violation::new(11, what));
        }
        if !task.ended && task.losses > MAX_LOSSES {
            let what = format!(
                "task {} goes on after {} attempts in a row were lost, and {MAX_LOSSES} are its limit",
                task.id, task.losses
            );
            found.push(Violation::new(11, what));
        }
    }
}

/// 2: one live allocation of a trial, when it wants one; older runs are fenced off.
fn one_allocation(snapshot: &Snapshot, found: &mut Vec<Violation>) {
    let mut live: HashMap<TrialId, Vec<&Allocation>> = HashMap::new();
    let mut runs: HashSet<(TrialId, RunId)> = HashSet::new();
    for allocation in &snapshot.allocations {
        let Some(trial) = allocation.trial_id else {
            continue;
        };
        if !runs.insert((trial, allocation.run_id)) {
            found.push(Violation::new(
                2,
                format!(
                    "trial {trial} has two allocations of run {}",
                    allocation.run_id
                ),
            ));
        }
        if !allocation.ended {
            live.entry(trial).or_default().push(allocation);
        }
    }
    for trial in &snapshot.trials {
        let of_trial = live.remove(&trial.id).unwrap_or_default();
        let rests = trial.state.is_terminal() || trial.state == TrialState::Paused;
        let wanted = usize::from(!rests && trial.unmanaged.is_none());
        if of_trial.len() != wanted {
            let ids: Vec<&str> = of_trial.iter().map(|a| a.id.as_str()).collect();
            found.push(Violation::new(
                2,
                format!(
                    "trial {} is {:?} and has the live allocations {ids:?}",
                    trial.id, trial.state
                ),
            ));
        }
        for allocation in of_trial {
            if allocation.run_id != trial.run_id || allocation.task_id != trial.task_id {
                found.push(Violation::new(
                    2,
                    format!(
                        "live allocation {} is run {} of task {}, but trial {} is at run {} of task {}",
                        allocation.id,
                        allocation.run_id,
                        allocation.task_id,
                        trial.id,
                        trial.run_id,
                        trial.task_id
                    ),
                ));
            }
        }
    }
    for report in &snapshot.acknowledged {
        // Lines of an ended run are still accepted; nothing else of it is.
        let fenced = !matches!(report.what, ReportContent::Line { .. });
        if fenced && report.run_id != report.newest_run {
            found.push(Violation::new(
                2,
                format!(
                    "run {} of trial {} was acknowledged {:?} although run {} had begun",
                    report.run_id, report.trial_id, report.what, report.newest_run
                ),
            ));
        }
    }
}

/// 3: acknowledged is present, once, in order.
fn acknowledged(snapshot: &Snapshot, found: &mut Vec<Violation>) {
    let mut places: HashMap<Key<'_>, (usize, &ReportContent)> = HashMap::new();
    for (place, report) in snapshot.stored.iter().enumerate() {
        if matches!(report.what, ReportContent::Control { .. }) {
            continue;
        }
        let key = key(report.trial_id, report.run_id, &report.what);
        if places.insert(key, (place, &report.what)).is_some() {
            found.push(Violation::new(
                3,
                format!(
                    "stored twice of trial {}: {:?}",
                    report.trial_id, report.what
                ),
            ));
        }
    }
    let mut newest: HashMap<(TrialId, RunId, u8, &str), (usize, i64)> = HashMap::new();
    for report in &snapshot.acknowledged {
        if matches!(report.what, ReportContent::Control { .. }) {
            continue;
        }
        let known = key(report.trial_id, report.run_id, &report.what);
        let Some((place, stored)) = places.get(&known) else {
            found.push(Violation::new(
                3,
                format!(
                    "acknowledged and lost: {:?} of run {} of trial {}",
                    report.what, report.run_id, report.trial_id
                ),
            ));
            continue;
        };
        if **stored != report.what {
            found.push(Violation::new(
                3,
                format!(
                    "acknowledged as {:?} and stored as {stored:?} of trial {}",
                    report.what, report.trial_id
                ),
            ));
        }
        let number = match &report.what {
            ReportContent::Metric { step, .. } => *step,
            ReportContent::Line { sequence, .. } => *sequence,
            ReportContent::Checkpoint { .. } | ReportContent::Control { .. } => continue,
        };
        let stream = (known.0, known.1, known.2, known.3);
        if let Some((earlier, below)) = newest.insert(stream, (*place, number))
            && (number > below) != (*place > earlier)
        {
            found.push(Violation::new(
                3,
                format!(
                    "out of order: {:?} of trial {}",
                    report.what, report.trial_id
                ),
            ));
        }
    }
}

/// Trial, run, kind, stream, number: identifies a report.
type Key<'a> = (TrialId, RunId, u8, &'a str, i64);

fn key(trial_id: TrialId, run_id: RunId, what: &ReportContent) -> Key<'_> {
    match what {
        ReportContent::Metric { step, .. } => (trial_id, run_id, 0, "", *step),
        ReportContent::Checkpoint { uuid } => (TrialId(0), RunId::default(), 1, uuid.as_str(), 0),
        ReportContent::Line { spool, sequence } => (trial_id, run_id, 2, spool.as_str(), *sequence),
        ReportContent::Control { what } => (trial_id, run_id, 3, what, 0),
    }
}

/// 4: a row has an end time exactly if its state is an ended one.
fn ends(snapshot: &Snapshot, found: &mut Vec<Violation>) {
    let mut wrong = |what: String| found.push(Violation::new(4, what));
    for experiment in &snapshot.experiments {
        if experiment.ended == experiment.state.is_live() {
            wrong(format!(
                "experiment {} is {:?} and its end is {}noted",
                experiment.id,
                experiment.state,
                if experiment.ended { "" } else { "not " }
            ));
        }
    }
    for trial in &snapshot.trials {
        if trial.ended != trial.state.is_terminal() {
            wrong(format!(
                "trial {} is {:?} and its end is {}noted",
                trial.id,
                trial.state,
                if trial.ended { "" } else { "not " }
            ));
        }
    }
    for allocation in &snapshot.allocations {
        if allocation.ended != allocation.state.is_terminal() {
            wrong(format!(
                "allocation {} is {:?} and its end is {}noted",
                allocation.id,
                allocation.state,
                if allocation.ended { "" } else { "not " }
            ));
        }
    }
    unmanaged(snapshot, &mut wrong);
    let live: HashSet<ExperimentId> = snapshot
        .experiments
        .iter()
        .filter(|e| e.state.is_live())
        .map(|e| e.id)
        .collect();
    let shown: HashSet<ExperimentId> = snapshot.experiments.iter().map(|e| e.id).collect();
    // An unmanaged trial may be registered, and never begin.
    let managed = |trial: &&Trial| trial.unmanaged.is_none();
    for trial in snapshot.trials.iter().filter(|t| !t.ended).filter(managed) {
        if shown.contains(&trial.experiment_id) && !live.contains(&trial.experiment_id) {
            wrong(format!(
                "trial {} lives in experiment {}, which has ended",
                trial.id, trial.experiment_id
            ));
        }
    }
}

/// 4, of what runs outside the cluster: the state of a trial is what is known of its code, and that of an experiment
/// follows from the states of its trials.
fn unmanaged(snapshot: &Snapshot, wrong: &mut impl FnMut(String)) {
    let mut counts: HashMap<ExperimentId, TrialCounts> = HashMap::new();
    for trial in &snapshot.trials {
        let Some(known) = trial.unmanaged else {
            continue;
        };
        counts
            .entry(trial.experiment_id)
            .or_default()
            .add(trial.state, 1);
        if known.trial_state() != trial.state {
            wrong(format!(
                "trial {} is {:?}, and of its code is known {known:?}",
                trial.id, trial.state
            ));
        }
    }
    for experiment in snapshot.experiments.iter().filter(|e| e.unmanaged) {
        let counts = counts.get(&experiment.id).copied().unwrap_or_default();
        let expected = experiment_state(counts);
        let removed = matches!(
            experiment.state,
            ExperimentState::Deleting | ExperimentState::DeleteFailed
        );
        if !removed && experiment.state != expected {
            wrong(format!(
                "experiment {} is {:?}; it follows from the states of its trials that it is {expected:?}",
                experiment.id, experiment.state
            ));
        }
    }
}

/// 5: complete means all files.
fn checkpoints(snapshot: &Snapshot, found: &mut Vec<Violation>) {
    let rows: BTreeMap<&str, _> = snapshot
        .checkpoints
        .iter()
        .map(|c| (c.uuid.as_str(), c))
        .collect();
    for checkpoint in snapshot.checkpoints.iter().filter(|c| c.complete) {
        let Some(files) = &checkpoint.files else {
            continue;
        };
        for (path, bytes) in &checkpoint.manifest {
            if files.get(path) != Some(bytes) {
                found.push(Violation::new(
                    5,
                    format!(
                        "checkpoint {} is complete, and its file \"{path}\" of {bytes} bytes is {}",
                        checkpoint.uuid,
                        files
                            .get(path)
                            .map_or("not there".to_owned(), |n| format!("of {n} bytes"))
                    ),
                ));
            }
        }
    }
    for trial in &snapshot.trials {
        if let Some(uuid) = &trial.latest_checkpoint
            && !rows.is_empty()
            && !rows.get(uuid.as_str()).is_some_and(|c| c.complete)
        {
            found.push(Violation::new(
                5,
                format!(
                    "trial {} would go on from checkpoint {uuid}, which is not complete",
                    trial.id
                ),
            ));
        }
    }
}

/// 6: no process runs that no row wants.
fn processes(snapshot: &Snapshot, found: &mut Vec<Violation>) {
    for process in &snapshot.processes {
        if process.unwanted_micros > MAX_UNWANTED_MICROS {
            found.push(Violation::new(
                6,
                format!(
                    "container {} has run on place {} for {} s although no row wants it to run",
                    process.container_id,
                    process.place_id,
                    process.unwanted_micros / 1_000_000
                ),
            ));
        }
    }
}

/// 7: a search is the replay of its events; no trial is created twice.
fn searches(snapshot: &Snapshot, found: &mut Vec<Violation>) {
    let mut names: HashSet<(ExperimentId, &RequestId)> = HashSet::new();
    for trial in &snapshot.trials {
        if !names.insert((trial.experiment_id, &trial.request_id)) {
            found.push(Violation::new(
                7,
                format!(
                    "experiment {} has two trials for request {}",
                    trial.experiment_id, trial.request_id
                ),
            ));
        }
    }
    let counts: HashMap<ExperimentId, i64> = snapshot
        .experiments
        .iter()
        .map(|e| (e.id, e.trial_count))
        .collect();
    for search in &snapshot.searches {
        if let Some(remembered) = &search.remembered
            && *remembered != search.replayed
        {
            found.push(Violation::new(
                7,
                format!(
                    "the search of experiment {} is {remembered} in memory and {} by its events",
                    search.experiment_id, search.replayed
                ),
            ));
        }
        let asked = i64::try_from(search.asked_for.len()).unwrap_or(i64::MAX);
        if counts
            .get(&search.experiment_id)
            .is_some_and(|count| *count < asked)
        {
            found.push(Violation::new(
                7,
                format!(
                    "the search of experiment {} asked for {asked} trials, the experiment counts {:?}",
                    search.experiment_id,
                    counts.get(&search.experiment_id)
                ),
            ));
        }
        for trial in &snapshot.trials {
            if trial.experiment_id != search.experiment_id {
                continue;
            }
            match search.asked_for.get(&trial.request_id) {
                // What has ended may be of an earlier search, and this one of a continuation.
                None if trial.ended => {}
                None => found.push(Violation::new(
                    7,
                    format!("no search asked for trial {}, which lives", trial.id),
                )),
                Some(ended) if *ended != trial.ended => found.push(Violation::new(
                    7,
                    format!(
                        "trial {} is {:?}; its search was {}notified of an end",
                        trial.id,
                        trial.state,
                        if *ended { "" } else { "not " }
                    ),
                )),
                Some(_) => {}
            }
        }
    }
}

/// 8: database, memory and places.
fn agreement(snapshot: &Snapshot, found: &mut Vec<Violation>) {
    if !snapshot.quiescent {
        return;
    }
    for place in &snapshot.places {
        if place.connection.is_some_and(|c| c != place.connected) {
            found.push(Violation::new(
                8,
                format!(
                    "place {} is {}connected by its row, and the master has {} connection",
                    place.id,
                    if place.connected { "" } else { "not " },
                    if place.connection == Some(true) {
                        "a"
                    } else {
                        "no"
                    }
                ),
            ));
        }
        let (true, Some(holds)) = (place.connected, &place.holds) else {
            continue;
        };
        let wanted: BTreeSet<ContainerId> = snapshot
            .containers
            .iter()
            .filter(|c| !c.ended && c.place_id == place.id)
            .map(|c| c.id.clone())
            .collect();
        if wanted != *holds {
            found.push(Violation::new(
                8,
                format!(
                    "place {} should have the containers {wanted:?} and has {holds:?}",
                    place.id
                ),
            ));
        }
    }
}

/// 9: what was refused left nothing behind.
fn refusals(snapshot: &Snapshot, found: &mut Vec<Violation>) {
    for refusal in snapshot.refusals.iter().filter(|r| r.left_something) {
        found.push(Violation::new(
            9,
            format!("\"{}\" was refused and left something behind", refusal.what),
        ));
    }
}

/// 10: an allocation without slots has a reason to wait, and the stored one is true.
fn reasons(snapshot: &Snapshot, found: &mut Vec<Violation>) {
    for allocation in snapshot.allocations.iter().filter(|a| !a.ended) {
        if allocation.placed != (allocation.state != AllocationState::Pending) {
            found.push(Violation::new(
                10,
                format!(
                    "allocation {} is {:?} and {}placed",
                    allocation.id,
                    allocation.state,
                    if allocation.placed { "" } else { "not " }
                ),
            ));
        }
        if allocation.placed && allocation.wait_reason.is_some() {
            found.push(Violation::new(
                10,
                format!(
                    "allocation {} has slots and still a reason to wait",
                    allocation.id
                ),
            ));
        }
        if snapshot.quiescent && !allocation.placed && allocation.wait_reason.is_none() {
            found.push(Violation::new(
                10,
                format!("allocation {} waits without a reason", allocation.id),
            ));
        }
        if snapshot.quiescent
            && allocation.true_reason.is_some()
            && allocation.true_reason != allocation.wait_reason
        {
            found.push(Violation::new(
                10,
                format!(
                    "allocation {} has the stored waiting reason {:?}; the true one is {:?}",
                    allocation.id, allocation.wait_reason, allocation.true_reason
                ),
            ));
        }
    }
}

/// 10: every change has an event: the newest one contains the state.
fn events(snapshot: &Snapshot, found: &mut Vec<Violation>) {
    let Some(events) = &snapshot.events else {
        return;
    };
    let mut latest_states: HashMap<&Subject, &RecordedState> = HashMap::new();
    let mut happened: HashSet<(&Subject, EventKind)> = HashSet::new();
    for event in events {
        // An allocation that moves to another pool has an event with both pools.
        let is_state = event.kind != EventKind::ResourcePool;
        if let Some(to) = event.to.as_ref().filter(|_| is_state) {
            latest_states.insert(&event.subject, to);
        }
        happened.insert((&event.subject, event.kind));
    }
    let mut compare = |subject: &Subject, state: RecordedState| {
        let newest = latest_states.get(subject).copied();
        if newest != Some(&state) {
            let newest = newest.map(RecordedState::as_str);
            found.push(Violation::new(
                10,
                format!(
                    "{} {subject} is {state}; its newest event has the state {newest:?}",
                    subject.kind()
                ),
            ));
        }
    };
    for experiment in &snapshot.experiments {
        compare(
            &Subject::Experiment(experiment.id),
            experiment.state.state_name().into(),
        );
    }
    for trial in &snapshot.trials {
        compare(&Subject::Trial(trial.id), trial.state.state_name().into());
    }
    for allocation in &snapshot.allocations {
        compare(
            &Subject::Allocation(allocation.id.clone()),
            allocation.state.state_name().into(),
        );
    }
    for allocation in &snapshot.allocations {
        let subject = Subject::Allocation(allocation.id.clone());
        for (is, kind) in [
            (allocation.placed, EventKind::Placed),
            (allocation.ended, EventKind::Ended),
        ] {
            if is != happened.contains(&(&subject, kind)) {
                found.push(Violation::new(
                    10,
                    format!(
                        "allocation {} is {}{}, and there is {} event of it",
                        allocation.id,
                        if is { "" } else { "not " },
                        kind.name(),
                        if is { "no" } else { "an" }
                    ),
                ));
            }
        }
    }
}
