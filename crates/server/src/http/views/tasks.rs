//! Tasks and allocations as clients see them.

use std::collections::BTreeMap;

use det_api_types::allocations::{AcceleratorData, Allocation};
use det_api_types::page::{Failure as WireFailure, WaitReason};
use det_api_types::tasks::{
    Address, AllocationSummary, GenericTaskState, ProxyPortConfig, ResourcesStarted,
    ResourcesSummary, ResourcesSummaryDevices, Task, TaskState, TaskType,
};
use det_api_types::wire::{Object, Timestamp};
use det_ids::{AllocationId, JobId, PlaceId};
use det_lifecycle::allocation::{AllocationState, Phase};
use det_lifecycle::container::ObservedState;
use det_lifecycle::task::{Stop, TaskEnd, TaskState as OwnState};
use det_scheduler::Policy;
use det_store::StoreError;
use det_store::allocations::{AllocationRow, ContainerRow, TaskRow};
use det_store::experiments::JobRow;
use det_store::task_documents::LaunchedTask;
use det_taskspec::{Device, PlaceRuntime, RunsIn, RuntimeKind, TaskDetails, TaskKind};

use crate::app::failures::Failure;
use crate::app::reads::tasks::{Live, TaskView};
use crate::app::services::{Offer, Protocol};
use crate::http::views::agents::device;
use det_taskspec::TaskLabel;

/// Why an allocation waits; `None` once it has slots, and before the scheduler has first looked at it.
pub fn wait_reason(row: &AllocationRow) -> Option<WaitReason> {
    if row.placed_at.is_some() || row.ended_at.is_some() {
        return None;
    }
    let reason = row.wait_reason.as_ref()?;
    Some(WaitReason {
        kind: reason.kind.name().to_owned(),
        message: reason.message.clone(),
        since: row.wait_since.map(Timestamp),
        details: Object(reason.details.clone()),
    })
}

/// The kind of a task on the wire.
pub fn task_type(kind: TaskKind) -> TaskType {
    match kind {
        TaskKind::Trial => TaskType::Trial,
        TaskKind::Notebook => TaskType::Notebook,
        TaskKind::Shell => TaskType::Shell,
        TaskKind::Command => TaskType::Command,
        TaskKind::Tensorboard => TaskType::Tensorboard,
        TaskKind::CheckpointGc => TaskType::CheckpointGc,
        TaskKind::Generic => TaskType::Generic,
    }
}

/// Whether an allocation has slots and has been asked to stop.
pub fn is_stopping(row: &AllocationRow) -> bool {
    row.placed_at.is_some()
        && (row.preempt_deadline.is_some() || matches!(row.state, AllocationState::Killing { .. }))
}

/// The state of an allocation on the wire. One that has slots but no container yet still counts as queued, as it does
/// in the states of experiments and trials. A TensorBoard whose container runs waits for the files of what it is to show
/// until it serves them: the other services come up by themselves, and run meanwhile.
pub fn state(row: &AllocationRow) -> TaskState {
    match &row.state {
        AllocationState::Pending | AllocationState::Starting(Phase::Assigned) => TaskState::Queued,
        AllocationState::Starting(Phase::Pulling) => TaskState::Pulling,
        AllocationState::Starting(Phase::Starting) => TaskState::Starting,
        AllocationState::Starting(Phase::Running) if row.kind.waits_for_content() => {
            TaskState::Waiting
        }
        AllocationState::Starting(Phase::Running)
        | AllocationState::Ready
        | AllocationState::Preempting
        | AllocationState::Saving => TaskState::Running,
        AllocationState::Killing { .. } => TaskState::Terminating,
        AllocationState::Terminated { .. } => TaskState::Terminated,
    }
}

/// An allocation, as answers of tasks and allocations have it.
pub fn allocation(row: &AllocationRow) -> Allocation {
    let ready = matches!(
        row.state,
        AllocationState::Ready | AllocationState::Preempting | AllocationState::Saving
    );
    Allocation {
        task_id: row.task_id.clone(),
        allocation_id: row.id.clone(),
        state: state(row),
        is_ready: Some(ready),
        start_time: row.placed_at.map(Timestamp),
        end_time: row.ended_at.map(Timestamp),
        slots: row.slots,
        exit_reason: row.exit_reason.clone(),
        status_code: row.status_code,
    }
}

/// How a trial or a task failed.
pub(crate) fn failure(failure: &Failure) -> WireFailure {
    WireFailure {
        reason: failure.reason.clone(),
        allocation_id: failure.allocation_id.clone().unwrap_or_default(),
        end_time: failure.ended_at.map(Timestamp),
        last_lines: failure.last_lines.clone(),
    }
}

/// The state of a generic task.
fn generic_state(state: OwnState) -> GenericTaskState {
    match state {
        OwnState::Suspended => GenericTaskState::Paused,
        OwnState::Queued | OwnState::Running | OwnState::Stopping(Stop::Requeue) => {
            GenericTaskState::Active
        }
        OwnState::Stopping(Stop::Suspend) => GenericTaskState::StoppingPaused,
        OwnState::Stopping(Stop::Kill) => GenericTaskState::StoppingCanceled,
        OwnState::Ended(TaskEnd::Completed) => GenericTaskState::Completed,
        OwnState::Ended(TaskEnd::Canceled) => GenericTaskState::Canceled,
        OwnState::Ended(TaskEnd::Failed) => GenericTaskState::Error,
    }
}

/// A task with its attempts; what it runs as is shown of generic tasks.
pub(crate) fn task(view: &TaskView) -> Task {
    let (row, attempts) = (&view.row, &view.attempts);
    let mut task = plain_task(row, attempts);
    task.last_failure = view.failure.as_ref().map(failure);
    if let Some((document, config)) = &view.document
        && let TaskDetails::Generic(generic) = &document.details
    {
        task.task_state = Some(generic_state(row.state));
        task.config = Some(config.to_string());
        task.parent_id.clone_from(&document.parent_id);
        task.forked_from.clone_from(&generic.forked_from);
        task.no_pause = Some(generic.no_pause);
    }
    task
}

/// The tasks that are paused.
pub(crate) fn paused(live: &Live) -> Vec<Task> {
    let paused = live.paused.iter();
    paused.map(|row| without_attempts(row, live)).collect()
}

/// The generic tasks that ended a short time ago.
pub(crate) fn ended(live: &Live) -> Vec<Task> {
    let ended = live.ended.iter();
    ended.map(|row| without_attempts(row, live)).collect()
}

/// A task of which no attempt lives.
fn without_attempts(row: &LaunchedTask, live: &Live) -> Task {
    let pool = live.pools.get(&row.resource_pool);
    let mut task = Task {
        name: Some(TaskLabel::new(row.kind, &row.id, None).title()),
        priority: Some(row.priority),
        scheduler_type: pool.map(|(policy, _)| scheduler_name(*policy).to_owned()),
        priority_order: pool.map(|(_, order)| order.to_string()),
        task_id: row.id.clone(),
        task_type: task_type(row.kind),
        start_time: Timestamp(row.created_at),
        end_time: row.ended_at.map(Timestamp),
        task_state: Some(generic_state(row.state)),
        last_failure: live.failures.get(&row.id).map(failure),
        parent_id: row.parent_id.clone(),
        username: live.owners.get(&row.owner_id).cloned(),
        description: Some(row.description.clone()),
        resource_pool: Some(row.resource_pool.clone()),
        ..Task::default()
    };
    if let TaskDetails::Generic(generic) = &row.details {
        task.forked_from.clone_from(&generic.forked_from);
        task.no_pause = Some(generic.no_pause);
    }
    task
}

fn plain_task(row: &TaskRow, allocations: &[AllocationRow]) -> Task {
    Task {
        task_id: row.id.clone(),
        task_type: task_type(row.kind),
        allocations: allocations.iter().map(allocation).collect(),
        start_time: Timestamp(row.created_at),
        end_time: row.ended_at.map(Timestamp),
        wait_reason: allocations.first().and_then(wait_reason),
        logs_deleted_time: row.logs_deleted_at.map(Timestamp),
        ..Task::default()
    }
}

/// What a container reported of its accelerators; `None` = it has not reported any.
pub fn accelerators(row: &ContainerRow) -> Result<Option<AcceleratorData>, StoreError> {
    row.accelerators
        .as_deref()
        .map(|text| {
            serde_json::from_str(text).map_err(|e| StoreError::Corrupt {
                what: format!("accelerators of container {}", row.id),
                message: e.to_string(),
            })
        })
        .transpose()
}

/// The scheduler of a pool: the client knows this one by its short name.
fn scheduler_name(policy: Policy) -> &'static str {
    match policy {
        Policy::Priority { .. } => "priority",
        Policy::FairShare => "fair_share",
        Policy::RoundRobin => "round_robin",
    }
}

/// Summaries of live allocations by id.
pub(crate) fn summaries(live: &Live) -> BTreeMap<AllocationId, AllocationSummary> {
    let mut known: BTreeMap<&PlaceId, (Vec<Device>, &PlaceRuntime)> = BTreeMap::new();
    for agent in &live.agents {
        known.insert(&agent.id, (agent.capacity.devices(), &agent.runtime));
    }
    let jobs: BTreeMap<&JobId, &JobRow> = live.jobs.iter().map(|job| (&job.id, job)).collect();
    let mut of_allocation: BTreeMap<&AllocationId, Vec<ResourcesSummary>> = BTreeMap::new();
    let runs_in: BTreeMap<&AllocationId, RunsIn> = live
        .allocations
        .iter()
        .map(|live| (&live.row.id, live.runs_in))
        .collect();
    for container in &live.containers {
        // The summary of a container without a live allocation is never shown.
        let Some(runs_in) = runs_in.get(&container.allocation_id) else {
            continue;
        };
        let summary = resources(container, known.get(&container.place_id), *runs_in);
        of_allocation
            .entry(&container.allocation_id)
            .or_default()
            .push(summary);
    }
    live.allocations
        .iter()
        .map(|live_allocation| {
            let row = &live_allocation.row;
            let job = jobs.get(&row.job_id);
            let owner = job.and_then(|job| live.owners.get(&job.owner_id));
            let description = live.descriptions.get(&row.task_id);
            let services = live.services.get(&row.id);
            let summary = AllocationSummary {
                task_id: row.task_id.clone(),
                allocation_id: row.id.clone(),
                job_id: row.job_id.clone(),
                name: row.label().title(),
                registered_time: Some(Timestamp(row.requested_at)),
                resource_pool: row.resource_pool.clone(),
                slots_needed: row.slots,
                state: state(row),
                is_stopping: is_stopping(row),
                resources: of_allocation.remove(&row.id).unwrap_or_default(),
                scheduler_type: scheduler_name(live_allocation.policy).to_owned(),
                priority_order: live_allocation.priority_order.to_string(),
                priority: job.map(|job| i64::from(job.priority)),
                proxy_ports: services
                    .into_iter()
                    .flatten()
                    .map(|offer| service(row, offer))
                    .collect(),
                task_type: task_type(row.kind),
                username: owner.cloned().unwrap_or_default(),
                description: description.cloned().unwrap_or_default(),
                wait_reason: wait_reason(row),
            };
            (row.id.clone(), summary)
        })
        .collect()
}

/// A service of a running attempt.
fn service(row: &AllocationRow, offer: &Offer) -> ProxyPortConfig {
    ProxyPortConfig {
        service_id: if offer.is_default {
            row.task_id.to_string()
        } else {
            format!("{}:{}", row.task_id, offer.port)
        },
        port: i64::from(offer.port),
        proxy_tcp: offer.protocol == Protocol::Tcp,
        unauthenticated: offer.unauthenticated,
    }
}

fn resources(
    container: &ContainerRow,
    agent: Option<&(Vec<Device>, &PlaceRuntime)>,
    runs_in: RunsIn,
) -> ResourcesSummary {
    let devices = agent
        .map(|(devices, _)| {
            devices
                .iter()
                .filter(|d| container.slots.contains(&d.id))
                .map(device)
                .collect()
        })
        .unwrap_or_default();
    let started = match &container.observed {
        Some(ObservedState::Running {
            host_address,
            ports,
            runtime_id,
        }) => Some(ResourcesStarted {
            addresses: ports
                .iter()
                .map(|(inside, outside)| Address {
                    container_ip: String::new(),
                    container_port: i64::from(*inside),
                    host_ip: host_address.clone(),
                    host_port: i64::from(*outside),
                })
                .collect(),
            native_resources_id: runtime_id.clone(),
        }),
        Some(
            ObservedState::Assigned
            | ObservedState::Pulling
            | ObservedState::Starting
            | ObservedState::Terminated { .. },
        )
        | None => None,
    };
    ResourcesSummary {
        resources_id: container.id.clone(),
        resources_type: match (runs_in, agent) {
            (RunsIn::Machine, Some((_, PlaceRuntime::Agent(RuntimeKind::Process)))) => {
                RuntimeKind::Process.name().into()
            }
            (RunsIn::Machine | RunsIn::Pod, _) => runs_in.resources_type().into(),
        },
        allocation_id: container.allocation_id.clone(),
        agent_devices: BTreeMap::from([(
            container.place_id.clone(),
            ResourcesSummaryDevices { devices },
        )]),
        container_id: Some(container.id.clone()),
        started,
        exited: None,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::{BTreeSet, HashMap};

    use det_ids::{ExperimentId, PriorityOrder, RunId, SlotId, TrialId, UserId, WorkspaceId};
    use det_lifecycle::container::DesiredState;
    use det_rm::Capacity;
    use det_scheduler::{Services, WaitExplanation, WaitKind};
    use det_store::places::PlaceRow;

    use serde_json::Map;

    use super::*;
    use crate::app::reads::tasks::LiveAllocation;

    fn offer(port: u16, is_default: bool) -> Offer {
        Offer {
            port,
            protocol: if is_default {
                Protocol::Http
            } else {
                Protocol::Tcp
            },
            unauthenticated: false,
            is_default,
            guard: None,
        }
    }

    pub(crate) fn waiting() -> AllocationRow {
        AllocationRow {
            id: "3.abc.1".into(),
            task_id: "3.abc".into(),
            kind: TaskKind::Trial,
            job_id: "j".into(),
            experiment_id: Some(ExperimentId(3)),
            trial_id: Some(TrialId(7)),
            run_id: RunId::FIRST,
            state: AllocationState::Pending,
            resource_pool: "default".into(),
            slots: 2,
            single_place: false,
            preemptible: true,
            requested_at: 10,
            not_before: None,
            placed_at: None,
            started_at: None,
            ended_at: None,
            preempt_deadline: None,
            preempted_for: None,
            port_step: None,
            service_port: None,
            namespace: None,
            exit_reason: None,
            status_code: None,
            excluded_places: None,
            wait_reason: Some(WaitExplanation {
                kind: WaitKind::NoPlaces,
                message: "the resource pool has no places".to_owned(),
                details: Map::new(),
            }),
            wait_since: Some(11),
        }
    }

    #[test]
    fn a_waiting_allocation_shows_why_and_a_placed_one_does_not() {
        let reason = wait_reason(&waiting()).unwrap();
        assert_eq!(
            (reason.kind.as_str(), reason.since),
            ("no_agents", Some(Timestamp(11)))
        );
        let placed = AllocationRow {
            placed_at: Some(12),
            ..waiting()
        };
        assert_eq!(wait_reason(&placed), None);
    }

    #[test]
    fn an_allocation_whose_members_have_met_is_ready() {
        let shown = allocation(&AllocationRow {
            state: AllocationState::Ready,
            ..waiting()
        });
        assert_eq!(
            (shown.is_ready, shown.state),
            (Some(true), TaskState::Running)
        );
        assert_eq!(allocation(&waiting()).is_ready, Some(false));
    }

    /// The waiting allocation, placed on a machine or a node whose runtime has this name.
    #[test]
    fn a_tensorboard_waits_until_it_has_something_to_show() {
        let of = |kind, state| {
            super::state(&AllocationRow {
                kind,
                state,
                ..waiting()
            })
        };
        let runs = || AllocationState::Starting(Phase::Running);
        assert_eq!(of(TaskKind::Tensorboard, runs()), TaskState::Waiting);
        assert_eq!(
            of(TaskKind::Tensorboard, AllocationState::Ready),
            TaskState::Running
        );
        assert_eq!(of(TaskKind::Notebook, runs()), TaskState::Running);
    }

    fn running(runs_in: RunsIn, runtime: &str) -> Live {
        let container = ContainerRow {
            id: "c".into(),
            allocation_id: "3.abc.1".into(),
            place_id: "a".into(),
            member: 0,
            slots: BTreeSet::from([SlotId(0)]),
            desired: DesiredState::Run,
            observed: Some(ObservedState::Running {
                host_address: "10.0.0.1".into(),
                ports: vec![(1734, 40000)],
                runtime_id: "9".into(),
            }),
            daemon: false,
            joined: true,
            accelerators: None,
            ended_at: None,
        };
        let device = det_taskspec::Device {
            id: SlotId(0),
            brand: "CPU".into(),
            uuid: "u0".into(),
            kind: det_taskspec::DeviceKind::Cpu,
        };
        let agent = PlaceRow {
            id: "a".into(),
            resource_pool: "default".into(),
            instance_id: "i".into(),
            services: Services::default(),
            capacity: Capacity::Devices(vec![device]),
            addresses: Vec::new(),
            version: "1".into(),
            runtime: runtime.into(),
            registered_at: 0,
            disconnected_at: None,
        };
        Live {
            pools: HashMap::new(),
            descriptions: HashMap::new(),
            paused: Vec::new(),
            ended: Vec::new(),
            failures: HashMap::new(),
            services: HashMap::from([("3.abc.1".into(), vec![offer(80, true), offer(22, false)])]),
            owners: HashMap::from([(UserId(1), "ada".to_owned())]),
            allocations: vec![LiveAllocation {
                row: waiting(),
                policy: Policy::FairShare,
                priority_order: PriorityOrder::LowerFirst,
                runs_in,
            }],
            containers: vec![container],
            agents: vec![agent],
            jobs: vec![job()],
        }
    }

    fn job() -> JobRow {
        JobRow {
            id: "j".into(),
            kind: det_store::experiments::JobKind::Experiment,
            owner_id: UserId(1),
            resource_pool: "default".into(),
            priority: 42,
            weight: 1.0,
            max_slots: None,
            position: None,
            moved: false,
            fallback: None,
            demands: None,
            submitted_at: 0,
            workspace_id: WorkspaceId(1),
        }
    }

    #[test]
    fn a_summary_joins_container_agent_and_job() {
        let all = summaries(&running(RunsIn::Machine, "process"));
        let summary = &all[&"3.abc.1".into()];
        assert_eq!(summary.name, "Trial 7 (Experiment 3)");
        assert_eq!(summary.scheduler_type, "fair_share");
        assert_eq!(summary.priority, Some(42));
        assert_eq!((&*summary.username, &*summary.description), ("ada", ""));
        let ports = summary.proxy_ports.iter();
        let ports: Vec<_> = ports
            .map(|p| (&*p.service_id, p.port, p.proxy_tcp))
            .collect();
        assert_eq!(ports, [("3.abc", 80, false), ("3.abc:22", 22, true)]);
        let resources = &summary.resources[0];
        assert_eq!(resources.container_id, Some("c".into()));
        assert_eq!(resources.agent_devices[&"a".into()].devices.len(), 1);
        assert_eq!(
            resources.started.as_ref().unwrap().addresses[0].host_port,
            40000
        );
    }

    #[test]
    fn the_type_of_resources_is_that_of_the_pools_manager() {
        let shown = |runs_in, runtime| {
            let all = summaries(&running(runs_in, runtime));
            all[&"3.abc.1".into()].resources[0].resources_type.clone()
        };
        assert_eq!(shown(RunsIn::Machine, "process"), "process");
        assert_eq!(shown(RunsIn::Machine, "docker"), "docker-container");
        assert_eq!(shown(RunsIn::Pod, "containerd://2.1"), "k8s-job");
        // A node's runtime is a name that its kubelet reports, and decides nothing.
        assert_eq!(shown(RunsIn::Pod, "process"), "k8s-job");
    }
}
