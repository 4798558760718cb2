//! What can happen, and which rows each event concerns.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use det_ids::{
    AllocationId, ContainerId, ExperimentId, InstanceId, Micros, PlaceId, RequestId, RunId, SlotId,
    TaskId, TrialId,
};
use det_lifecycle::allocation::AllocationEvent;
use det_lifecycle::container::ObservedState;
use det_lifecycle::experiment::{ExperimentEvent, ExperimentState};
use det_lifecycle::task::TaskEvent;
use det_lifecycle::trial::{EarlyExit, TrialEvent};
use det_lifecycle::unmanaged::UnmanagedEvent;
use det_scheduler::{Placement, Service, WaitExplanation};
use det_searcher::{Action, Event as SearchEvent, Outcome, Search};
use det_taskspec::ContainerExit;
use det_taskspec::GivenPorts;

use crate::hang::Finding;
use crate::{Cause, LogMatch};

/// Something that happens, from outside or as a consequence of another event.
#[derive(Debug, Clone)]
pub enum Event {
    // Experiments.
    /// An event of the life cycle of an experiment.
    Experiment {
        /// The experiment whose life cycle gets the event.
        id: ExperimentId,
        /// The event of its life cycle.
        event: ExperimentEvent,
        /// Who or what caused it, with the reason that users read.
        cause: Cause,
    },
    /// The same happens to each live trial of an experiment: at once to those that are being stopped, and to
    /// [`crate::Core::trials_at_once`] others. The rest follows with [`Event::CatchUp`].
    LiveTrials {
        /// The experiment whose live trials get the event.
        id: ExperimentId,
        /// The event of its life cycle.
        event: TrialEvent,
        /// Who or what caused it, with the reason that users read.
        cause: Cause,
    },
    /// Live trials that do not do yet what their experiment does, or trials that its search has yet to create: some of them
    /// are dealt with. After [`crate::Topic::Backlog`], and after a start of the master; nothing if there are none.
    CatchUp {
        /// The experiment with trials that are behind.
        id: ExperimentId,
    },
    /// A trial has ended: without another live one its experiment may end.
    TrialMayBeLast {
        /// The experiment that the ended trial belongs to.
        id: ExperimentId,
        /// Who or what caused it, with the reason that users read.
        cause: Cause,
    },
    /// The end of an experiment has been decided, and its consequences follow.
    ExperimentEnds {
        /// The experiment that ends.
        id: ExperimentId,
    },

    /// An ended experiment goes on. Its search, made anew from its seed, begins again; trials of before are found by the
    /// names that it gives them.
    Continue {
        /// The ended experiment that goes on.
        id: ExperimentId,
        /// The search made anew from its seed; no event has been applied to it.
        search: Box<Search>,
        /// Whether it has a single trial: that one goes on even if it has completed.
        single: bool,
        /// Who or what caused it, with the reason that users read.
        cause: Cause,
    },
    /// The next trial of a continued experiment.
    ContinueTrials(Continuation),

    // Searches.
    /// The search of an experiment that begins, or is continued.
    SearchBegins {
        /// The experiment that the search is of.
        id: ExperimentId,
        /// The search; it is started if it is not yet.
        search: Box<Search>,
        /// What one that was started has asked for.
        actions: Vec<Action>,
    },
    /// The search of a live experiment is notified.
    Search {
        /// The experiment that the search is of.
        id: ExperimentId,
        /// The event of a trial that the search is to react to.
        event: SearchEvent,
    },
    /// An action of a search is carried out: a trial is created or stopped, or the search is over.
    SearchAction {
        /// The experiment whose search asks for it.
        id: ExperimentId,
        /// The experiment's state when the search was asked.
        state: ExperimentState,
        /// The action that the search returned.
        action: Action,
    },

    // Trials.
    /// A trial has been added ([`crate::Effect::InsertTrial`]).
    TrialCreated {
        /// The experiment that the trial belongs to.
        experiment_id: ExperimentId,
        /// Name by which the search of the experiment knows the trial.
        request_id: RequestId,
    },
    /// An event of the life cycle of a trial.
    Trial {
        /// The trial whose life cycle gets the event.
        id: TrialId,
        /// The event of its life cycle.
        event: TrialEvent,
        /// Who or what caused it, with the reason that users read.
        cause: Cause,
    },
    /// An ended trial goes on, as a further task with these hyperparameters.
    TrialContinues {
        /// The ended trial that goes on.
        id: TrialId,
        /// Hyperparameters of the further task, as the JSON text of an object.
        hparams: String,
        /// Who or what caused it, with the reason that users read.
        cause: Cause,
    },
    /// A trial's code reports that it ends early. A repeat changes nothing.
    EarlyExit {
        /// The trial whose code ends early.
        id: TrialId,
        /// The run that reports; `None` = a user does.
        run: Option<RunId>,
        /// Why the code ends early: its hyperparameters cannot be trained, or its user ends it.
        reason: EarlyExit,
        /// Who or what caused it, with the reason that users read.
        cause: Cause,
    },
    /// The end of a trial has been decided, and its consequences follow.
    TrialEnds {
        /// The trial that ends.
        id: TrialId,
        /// Who or what caused it, with the reason that users read.
        cause: Cause,
    },

    // Unmanaged experiments and trials, which run outside the cluster.
    /// A trial is added to an unmanaged experiment.
    AddTrial {
        /// The unmanaged experiment that the trial is added to.
        id: ExperimentId,
        /// Its name, which no other trial of the experiment has: the caller's, or a new UUID.
        request_id: RequestId,
        /// Hyperparameters as the JSON text of an object.
        hparams: String,
    },
    /// The code of an unmanaged trial begins a run.
    UnmanagedStarts {
        /// The unmanaged trial whose code begins a run.
        id: TrialId,
        /// When its next heartbeat is due, by the steady clock.
        until: Micros,
        /// Whether it goes on from the newest checkpoint of the runs before.
        resumes: bool,
        /// Who or what caused it, with the reason that users read.
        cause: Cause,
    },
    /// An event of the life cycle of an unmanaged trial: a report of its code or an overdue heartbeat.
    Unmanaged {
        /// The unmanaged trial whose life cycle gets the event.
        id: TrialId,
        /// The event of its life cycle.
        event: UnmanagedEvent,
        /// Who or what caused it, with the reason that users read.
        cause: Cause,
    },
    /// A trial of an unmanaged experiment has another state, and that of the experiment may have to follow.
    FollowTrials {
        /// The unmanaged experiment whose state follows.
        id: ExperimentId,
        /// Who or what caused it, with the reason that users read.
        cause: Cause,
    },

    // Tasks.
    /// Something is asked of a task. A trial's task can only be moved to another pool: otherwise it follows its trial.
    Task {
        /// The task whose life cycle gets the event.
        id: TaskId,
        /// The request, as an event of its life cycle.
        event: TaskEvent,
        /// Who or what caused it, with the reason that users read.
        cause: Cause,
    },
    /// The service of a task was not used for the whole time that it may be idle. Nothing if its time does not count any
    /// more ([`crate::counts_idle`]).
    Unused {
        /// The task whose service was not used.
        id: TaskId,
        /// Longest time without use that its configuration allows.
        timeout: Duration,
    },
    /// A queued task requests a new allocation.
    AttemptRequested {
        /// The queued task that gets a new allocation.
        id: TaskId,
    },

    // Allocations.
    /// An event of the life cycle of an allocation.
    Allocation {
        /// The allocation whose life cycle gets the event, `<task>.<n>`.
        id: AllocationId,
        /// The event of its life cycle.
        event: AllocationEvent,
        /// Who or what caused it, with the reason that users read.
        cause: Cause,
    },
    /// Its code asks whether it is to save and exit. Nothing where its containers meet, or it has a service.
    Listens {
        /// The allocation whose code asks.
        id: AllocationId,
        /// The user or the task that asks for it.
        cause: Cause,
    },
    /// The scheduler asks a running allocation to save and exit; nothing if it has ended.
    PreemptFor {
        /// The running allocation that is asked.
        id: AllocationId,
        /// The waiting allocation that its slots are for; `None` when its job is over its limit.
        for_allocation: Option<AllocationId>,
        /// Why it is asked to stop, as a sentence for users.
        reason: String,
    },
    /// The slots of a stopping allocation go to another request than the one it was asked to stop for.
    HandOver {
        /// The allocation that was asked to stop and still holds its slots.
        id: AllocationId,
        /// The waiting allocation that gets the slots.
        for_allocation: AllocationId,
    },
    /// The scheduler has decided why an allocation waits.
    Waits {
        /// The allocation that waits.
        id: AllocationId,
        /// Why it waits, with the numbers that the explanation shows.
        waiting: WaitExplanation,
    },
    /// Its code has reported an early exit: it has a few seconds to exit.
    EndsSoon {
        /// The allocation whose code has reported it.
        id: AllocationId,
    },
    /// The deadline of an allocation may have passed.
    Overdue {
        /// The allocation that the deadline is of.
        id: AllocationId,
    },
    /// The platform cannot go on with an allocation; nothing if it has ended.
    PlatformFailed {
        /// The allocation that cannot go on.
        id: AllocationId,
        /// What failed, as a sentence for users.
        reason: String,
    },

    // Containers and places.
    /// The scheduler gives an allocation its slots; nothing if the request or a place has changed since the plan was made.
    Place(PlacedAllocation),
    /// A place has reported the state of a container.
    Observed {
        /// The place that has reported it.
        place: PlaceId,
        /// The container concerned, a UUID.
        container_id: ContainerId,
        /// How far the container is, or how it ended.
        observed: ObservedState,
    },
    /// A container is gone: its slots are free.
    ContainerEnded {
        /// The container that is gone, a UUID.
        id: ContainerId,
        /// Exit code, signal, failure of the start, or loss.
        exit: ContainerExit,
    },
    /// A container that is not to run was never started on its place.
    NeverStarted {
        /// The container that was not started, a UUID.
        id: ContainerId,
    },
    /// A container has come to the meeting of its allocation's containers.
    Joined {
        /// The allocation that the container is a part of.
        id: AllocationId,
        /// The container concerned, a UUID.
        container_id: ContainerId,
        /// The task that reports it.
        cause: Cause,
    },
    /// A container is a helper that does not keep its allocation alive; ignored of a lone container.
    Daemon {
        /// The allocation that the container is a part of.
        id: AllocationId,
        /// The container concerned, a UUID.
        container_id: ContainerId,
        /// The task that reports it.
        cause: Cause,
    },
    /// The code of a trial's attempt has been silent for too long, and its containers were asked what they do. Nothing
    /// unless it is still ready.
    Silent {
        /// The allocation whose code is silent.
        id: AllocationId,
        /// How long it has been silent.
        silent: Duration,
        /// The longest silence that the configuration allows.
        timeout: Duration,
        /// What its processes do, and which rank keeps the others waiting.
        finding: Finding,
    },
    /// Lines of a task's log match log policies of its configuration.
    LogMatched {
        /// The task whose log the lines are in.
        task: TaskId,
        /// The lines, in their order.
        matches: Vec<LogMatch>,
    },
    /// A request that waits goes on to another resource pool, in which it would start.
    ChangesPool {
        /// The allocation that waits.
        id: AllocationId,
        /// Name of the pool in which it waits from now on.
        resource_pool: String,
    },
    /// A place has joined, for the first time or again, and its row is stored ([`crate::Place::joined`]).
    PlaceJoined {
        /// The place that has joined.
        place: PlaceId,
        /// The instance that its row contained before; `None` = there was no row. With another one than now, what ran there
        /// is gone for good.
        known_instance: Option<InstanceId>,
        /// State of every container that the place holds, ended ones included.
        observed: Vec<(ContainerId, ObservedState)>,
    },
    /// The connection of a place has ended, and it has no other; nothing if its row has it as away already.
    PlaceLeft {
        /// The place that has lost its connection.
        place: PlaceId,
        /// Who noticed, and why it has ended.
        cause: Cause,
    },
    /// A place is given up: its containers are lost, and its row goes. Nothing if there is no such place.
    PlaceGivenUp {
        /// The place that is given up.
        place: PlaceId,
        /// It has been away since this moment, and nothing happens if it has not any more; `None` = whether it is away or
        /// not.
        since: Option<Micros>,
        /// How many slots it had, for the record.
        slots: usize,
        /// A sentence that users read.
        reason: String,
    },
    /// What was on a place that is given up is lost; its row goes.
    PlaceRemoved {
        /// The place whose row goes.
        place: PlaceId,
        /// The resource pool that it was in, for the record.
        resource_pool: String,
        /// How many slots it had, for the record.
        slots: usize,
        /// A sentence that users read.
        reason: String,
    },
    /// A user lets a place or a slot do something else. What runs on one that is disabled starts elsewhere.
    ServiceChanged {
        /// The place that the user or task acts on.
        place: PlaceId,
        /// Which of its slots; `None` = the place as a whole.
        slot: Option<SlotId>,
        /// What it may do from now on: run new work, finish what it has, or nothing.
        service: Service,
        /// The user or the task that asks for it.
        cause: Cause,
    },
    /// A place has reported which of its slots' devices have faults. Slots with new ones finish what they have and take
    /// nothing new.
    FaultsReported {
        /// The place that the devices belong to.
        place: PlaceId,
        /// What is wrong with each device that is not well, in a few words for users.
        faults: BTreeMap<SlotId, String>,
    },
    /// A place has reported whether it can start containers. One that cannot finishes what it has and takes nothing new.
    HostReported {
        /// Id of the place that has reported.
        place: PlaceId,
        /// What keeps it from starting containers, in a few words for users; `None` = nothing does.
        fault: Option<String>,
    },
    /// Containers that a place reported before and does not hold any more are lost: starting them again could make two.
    Missing {
        /// The place that has reported what it holds.
        place: PlaceId,
        /// Ids of all containers that the place holds now.
        held: BTreeSet<ContainerId>,
    },
    /// All containers of a place are given up.
    PlaceLost {
        /// The place whose containers are given up.
        place: PlaceId,
        /// Why its containers are lost, as a sentence for users.
        reason: String,
    },
}

/// How far an experiment has been continued.
#[derive(Debug, Clone)]
pub struct Continuation {
    /// The experiment that goes on.
    pub id: ExperimentId,
    /// The search made anew, with the events that were applied to it so far.
    pub search: Box<Search>,
    /// Whether the experiment has a single trial, as in [`Event::Continue`].
    pub single: bool,
    /// Who or what caused it, with the reason that users read.
    pub cause: Cause,
    /// What the search asks for and has not been looked at; the next one last.
    pub waiting: Vec<Action>,
    /// Requests of the search for trials that did not exist before, in its order.
    pub new: Vec<Action>,
    /// Number of existing trials that go on.
    pub resumed: usize,
}

/// A placement, with an id for each of its containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedAllocation {
    /// What the scheduler decided, with a part for each container: a place may be in several of them.
    pub placement: Placement,
    /// Ids of the new containers, one for each part of the placement in its order.
    pub container_ids: Vec<ContainerId>,
    /// Host ports that its containers are given for training and service.
    pub ports: GivenPorts,
    /// The namespace that its workspace is bound to in the cluster of its pool's manager; `None` = it is not bound.
    pub namespace: Option<String>,
}

/// Rows to be loaded before a decision. Each names one thing and what belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Need {
    /// The row of an experiment, with its [`crate::Terms`].
    Experiment(ExperimentId),
    /// Its live trials with their states: all that are being stopped, and of those that are active, and of those that are
    /// paused, one more than [`crate::Core::trials_at_once`], if there are so many.
    LiveTrials(ExperimentId),
    /// Number of trials of an experiment that have not ended.
    LiveTrialCount(ExperimentId),
    /// The search of an experiment, restored from its rows.
    Search(ExperimentId),
    /// The metrics that its search decides by, and what its trials reported in place of them.
    SearchedMetrics(ExperimentId),
    /// How many of its trials are in each state.
    TrialCounts(ExperimentId),
    /// A trial, its experiment with the terms, its task, that task's live allocation, and which places it avoids.
    Trial(TrialId),
    /// The same of the trial of this name, if it exists.
    TrialOfRequest(ExperimentId, RequestId),
    /// How many tasks a trial has had.
    TaskCount(TrialId),
    /// Why a trial must not be restarted after a failure, if anything forbids it.
    RestartForbidden(TrialId),
    /// A task, its live allocation, and of a trial's task what [`Need::Trial`] names, else the resource pool of its job.
    Task(TaskId),
    /// An allocation, its containers, its task, and of a trial's task the experiment with its terms.
    Allocation(AllocationId),
    /// A container, and all that belongs to its allocation.
    Container(ContainerId),
    /// The row of a place.
    Place(PlaceId),
    /// The containers on a place that hold slots.
    LiveContainersOn(PlaceId),
    /// The allocations that hold something on a place, with their slots.
    Holders(PlaceId),
}

impl Event {
    /// What is to be loaded before this event is decided on.
    #[expect(clippy::too_many_lines, reason = "one match over the events")]
    pub fn needs(&self) -> Vec<Need> {
        match self {
            Self::Experiment { id, .. }
            | Self::ExperimentEnds { id }
            | Self::Continue { id, .. }
            | Self::SearchBegins { id, .. } => vec![Need::Experiment(*id)],
            Self::ContinueTrials(Continuation { id, waiting, .. }) => match waiting.last() {
                Some(Action::Create { request_id, .. }) => {
                    vec![Need::TrialOfRequest(*id, request_id.clone())]
                }
                _ => vec![Need::Experiment(*id)],
            },
            Self::LiveTrials { id, .. } => vec![Need::LiveTrials(*id)],
            Self::CatchUp { id } => vec![
                Need::Experiment(*id),
                Need::LiveTrials(*id),
                Need::Search(*id),
            ],
            Self::TrialMayBeLast { id, .. } => {
                vec![Need::Experiment(*id), Need::LiveTrialCount(*id)]
            }
            Self::Search { id, .. } => vec![Need::Experiment(*id), Need::Search(*id)],
            Self::SearchAction { id, action, .. } => match action {
                Action::Create { request_id, .. } | Action::Stop { request_id, .. } => vec![
                    Need::Experiment(*id),
                    Need::TrialOfRequest(*id, request_id.clone()),
                ],
                Action::Shutdown(outcome) => {
                    let mut needs = vec![Need::Experiment(*id), Need::LiveTrialCount(*id)];
                    if *outcome == Outcome::Failed {
                        needs.push(Need::SearchedMetrics(*id));
                    }
                    needs
                }
            },
            Self::TrialCreated {
                experiment_id,
                request_id,
            } => vec![Need::TrialOfRequest(*experiment_id, request_id.clone())],
            Self::Trial { id, event, .. } => {
                let mut needs = vec![Need::Trial(*id)];
                if matches!(event, TrialEvent::AllocationEnded(_)) {
                    needs.push(Need::RestartForbidden(*id));
                }
                needs
            }
            Self::TrialContinues { id, .. } => vec![Need::Trial(*id), Need::TaskCount(*id)],
            Self::EarlyExit { id, .. }
            | Self::TrialEnds { id, .. }
            | Self::UnmanagedStarts { id, .. }
            | Self::Unmanaged { id, .. } => vec![Need::Trial(*id)],
            Self::AddTrial { id, .. } => vec![Need::Experiment(*id)],
            Self::FollowTrials { id, .. } => {
                vec![Need::Experiment(*id), Need::TrialCounts(*id)]
            }
            Self::Task { id, .. }
            | Self::AttemptRequested { id }
            | Self::Unused { id, .. }
            | Self::LogMatched { task: id, .. } => vec![Need::Task(id.clone())],
            Self::Allocation { id, .. }
            | Self::Listens { id, .. }
            | Self::Silent { id, .. }
            | Self::PreemptFor { id, .. }
            | Self::HandOver { id, .. }
            | Self::Waits { id, .. }
            | Self::ChangesPool { id, .. }
            | Self::EndsSoon { id }
            | Self::Overdue { id }
            | Self::PlatformFailed { id, .. }
            | Self::Joined { id, .. }
            | Self::Daemon { id, .. } => vec![Need::Allocation(id.clone())],
            Self::Place(PlacedAllocation { placement, .. }) => {
                let places = placement.parts.iter();
                std::iter::once(Need::Allocation(placement.allocation_id.clone()))
                    .chain(places.map(|(place, _)| Need::Place(place.clone())))
                    .collect()
            }
            Self::Observed { container_id, .. } => vec![Need::Container(container_id.clone())],
            Self::ContainerEnded { id, .. } | Self::NeverStarted { id } => {
                vec![Need::Container(id.clone())]
            }
            Self::PlaceJoined { place, .. }
            | Self::PlaceLeft { place, .. }
            | Self::PlaceGivenUp { place, .. } => vec![Need::Place(place.clone())],
            Self::FaultsReported { place, .. } | Self::HostReported { place, .. } => {
                vec![Need::Place(place.clone())]
            }
            Self::PlaceRemoved { .. } => Vec::new(),
            Self::ServiceChanged { place, service, .. } => {
                let mut needs = vec![Need::Place(place.clone())];
                if *service == Service::Disabled {
                    needs.push(Need::Holders(place.clone()));
                }
                needs
            }
            Self::Missing { place, .. } | Self::PlaceLost { place, .. } => {
                vec![Need::LiveContainersOn(place.clone())]
            }
        }
    }
}
