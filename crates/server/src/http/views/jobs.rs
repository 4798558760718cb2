//! Jobs and resource pools as clients see them.

use det_api_types::agents::DeviceType;
use det_api_types::jobs::{AggregateQueueStats, Job, JobSummary, JobType, QueueStats};
use det_api_types::pools::{
    FittingPolicy, ResourcePool, ResourcePoolDetail, ResourcePoolPrioritySchedulerDetail,
    ResourcePoolType, SchedulerType,
};
use det_api_types::wire::{Float, Timestamp};
use det_scheduler::{Fitting, Policy};
use det_store::queue_days::QueueDay;
use det_taskspec::{DeviceKind, RunsIn, TaskKind};
use jiff::{Span, civil};

use crate::app::jobs::{JobSubject, QueuedJob};
use crate::app::reads::jobs::{PoolContents, PoolView, state};
use crate::http::views::agents::device_type;
use crate::http::views::tasks::wait_reason;

/// The state of a job.
pub fn summary(queued: &QueuedJob) -> JobSummary {
    JobSummary {
        state: state(queued),
        jobs_ahead: queued.ahead,
    }
}

/// The kind of a job on the wire.
fn job_type(subject: &JobSubject) -> JobType {
    match subject {
        JobSubject::Experiment(_) => JobType::Experiment,
        JobSubject::Task { row, .. } => match row.kind {
            TaskKind::Trial => JobType::Experiment,
            TaskKind::Notebook => JobType::Notebook,
            TaskKind::Shell => JobType::Shell,
            TaskKind::Command => JobType::Command,
            TaskKind::Tensorboard => JobType::Tensorboard,
            TaskKind::CheckpointGc => JobType::CheckpointGc,
            TaskKind::Generic => JobType::Generic,
        },
    }
}

/// A queued job with all that a caller may know of it.
pub fn job(queued: &QueuedJob) -> Job {
    let summary = summary(queued);
    let wait_reason = queued.waiting().next().and_then(wait_reason);
    let subject = &queued.subject;
    Job {
        summary,
        kind: job_type(subject),
        submission_time: Timestamp(queued.job.submitted_at),
        username: subject.username().to_owned(),
        user_id: queued.job.owner_id,
        resource_pool: queued.job.resource_pool.clone(),
        is_preemptible: queued.is_preemptible(),
        priority: Some(i64::from(queued.job.priority)),
        weight: Float(queued.job.weight),
        entity_id: subject.entity_id(),
        job_id: queued.job.id.clone(),
        requested_slots: queued.requested_slots(),
        allocated_slots: queued.allocated_slots,
        name: subject.name(),
        progress: Float(subject.progress()),
        workspace_id: queued.job.workspace_id,
        wait_reason,
    }
}

/// Counts over a pool's queue.
pub fn stats<'a>(queue: impl IntoIterator<Item = &'a QueuedJob>) -> QueueStats {
    let mut stats = QueueStats::default();
    for entry in queue {
        if entry.is_scheduled() {
            stats.scheduled_count += 1;
        } else {
            stats.queued_count += 1;
        }
    }
    stats
}

/// The mean wait of the tasks that got their slots on one day.
pub fn queue_day(day: &QueueDay) -> AggregateQueueStats {
    #[expect(
        clippy::cast_precision_loss,
        reason = "a mean that is only shown; its parts are far below 2^52"
    )]
    let seconds = day.waited as f64 / 1e6 / day.placed.max(1) as f64;
    let days = Span::new().try_days(day.day).unwrap_or_default();
    let date = civil::date(1970, 1, 1).saturating_add(days);
    AggregateQueueStats {
        period_start: date.to_string(),
        seconds: Float(seconds),
    }
}

/// The name of the scheduler that a pool really runs with.
pub fn scheduler_type(policy: Policy) -> SchedulerType {
    match policy {
        Policy::Priority { .. } => SchedulerType::Priority,
        Policy::FairShare => SchedulerType::FairShare,
        Policy::RoundRobin => SchedulerType::RoundRobin,
    }
}

/// A pool with what it holds at present.
pub(crate) fn pool(pool: &PoolView, contents: &PoolContents) -> ResourcePool {
    let configured = &pool.configured;
    let (name, settings) = (&configured.name, &configured.settings);
    let present = contents.use_of(name);
    let aux_each = i64::from(configured.aux_limit);
    let (slot_type, accelerator) = match present.devices {
        None => (DeviceType::Unspecified, String::new()),
        Some((DeviceKind::Cpu, _)) => (device_type(DeviceKind::Cpu), String::new()),
        Some((kind, brand)) => (device_type(kind), brand),
    };
    let priority = match settings.policy {
        Policy::Priority {
            preemption,
            default_priority,
        } => Some(ResourcePoolPrioritySchedulerDetail {
            preemption,
            default_priority: i64::from(default_priority),
            k8_priorities: Vec::new(),
        }),
        Policy::FairShare | Policy::RoundRobin => None,
    };
    ResourcePool {
        name: name.clone(),
        description: configured.description.clone(),
        kind: match pool.runs_in {
            RunsIn::Pod => ResourcePoolType::K8s,
            RunsIn::Machine => ResourcePoolType::Static,
        },
        num_agents: present.places,
        slots_available: present.slots,
        slots_used: present.slots_used,
        slot_type,
        aux_container_capacity: present.places.saturating_mul(aux_each),
        aux_containers_running: present.aux_containers,
        default_compute_pool: pool.default_compute,
        default_aux_pool: pool.default_aux,
        aux_container_capacity_per_agent: aux_each,
        scheduler_type: scheduler_type(settings.policy),
        priority_order: settings.priority_order.to_string(),
        scheduler_fitting_policy: match settings.fitting {
            Fitting::Best => FittingPolicy::Best,
            Fitting::Worst => FittingPolicy::Worst,
        },
        location: "on-prem".into(),
        details: ResourcePoolDetail {
            priority_scheduler: priority,
            ..ResourcePoolDetail::default()
        },
        accelerator,
        stats: Some(stats(contents.queue_of(name))),
        cluster_name: pool.manager.clone(),
        resource_manager_metadata: pool.metadata.clone(),
        ..ResourcePool::default()
    }
}
