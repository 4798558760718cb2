//! Why a job runs or waits, as clients see it.

use det_api_types::jobs::{
    AwayAgent, ExplainJobResponse, JobAhead, LostAgent, PoolSummary, SlotHolder, WaitingTask,
};
use det_api_types::wire::{Float, Timestamp};
use det_ids::{AllocationId, quantity};
use det_scheduler::Estimate;
use det_store::allocations::AllocationRow;

use crate::app::jobs::QueuedJob;
use crate::app::why::{Holder, InQueue, JobExplanation, JobSituation};
use crate::http::views::jobs::scheduler_type;
use crate::http::views::tasks::{is_stopping, wait_reason};

/// The whole explanation.
pub fn explanation(explanation: &JobExplanation) -> ExplainJobResponse {
    let ahead = explanation.ahead();
    let holders = |found: Vec<Holder<'_>>| {
        let shown = found.into_iter().map(|one| holder(explanation, one));
        shown.collect::<Vec<_>>()
    };
    ExplainJobResponse {
        summary: summary(&explanation.situation()),
        job: match &explanation.entry {
            Some(entry) => job_ahead(entry),
            None => JobAhead {
                job_id: explanation.job_id.clone(),
                entity_id: explanation.subject.entity_id(),
                label: explanation.subject.label(),
                name: explanation.subject.name(),
                username: explanation.subject.username().to_owned(),
                ..JobAhead::default()
            },
        },
        pool: pool(explanation),
        waiting: explanation
            .waiting()
            .map(|row| waiting_task(explanation, row))
            .collect(),
        running: explanation
            .running()
            .map(|one| holder(explanation, one))
            .collect(),
        ahead: ahead.nearest.into_iter().map(job_ahead).collect(),
        ahead_count: i64::try_from(ahead.count).unwrap_or(i64::MAX),
        held_by: holders(explanation.held_by()),
        workspace_held_in_other_pools: holders(explanation.workspace_held_elsewhere()),
        last_lines: (explanation.failure.as_ref())
            .map(|failure| failure.last_lines.clone())
            .unwrap_or_default(),
    }
}

fn waiting_task(explanation: &JobExplanation, row: &AllocationRow) -> WaitingTask {
    let estimate = explanation.estimates.get(&row.id);
    let last_end = explanation.last_ends.get(&row.id);
    let other_pools = explanation.other_pools.get(&row.id);
    WaitingTask {
        allocation_id: row.id.clone(),
        slots: row.slots,
        since: Timestamp(row.requested_at),
        resource_pool: row.resource_pool.clone(),
        wait_reason: wait_reason(row),
        estimated_start: match estimate {
            Some(Estimate::At(at) | Estimate::AtTheLatest(at, _)) => Some(Timestamp(at.0)),
            _ => None,
        },
        estimate_basis: basis(explanation, estimate),
        label: row.label().to_string(),
        other_pools: other_pools.cloned().unwrap_or_default(),
        last_end: last_end.map_or_else(String::new, |(reason, _)| reason.clone()),
        last_ended_at: last_end.and_then(|(_, at)| at.map(Timestamp)),
    }
}

/// What an estimate rests on, or why there is none.
fn basis(explanation: &JobExplanation, estimate: Option<&Estimate>) -> String {
    match estimate {
        None => "only the first few waiting tasks of a job are estimated".to_owned(),
        Some(Estimate::At(_)) => {
            "if running work ends as its progress lets expect, and nothing more important comes"
                .to_owned()
        }
        Some(Estimate::AtTheLatest(_, stopping)) => format!(
            "at the latest, and usually much earlier: it starts as soon as {} has saved and stopped, which it has been \
             asked to and may take until then for",
            some(explanation, stopping)
        ),
        Some(Estimate::InOtherPools) => {
            "its workspace is at its limit, and what it uses in other pools counts".to_owned()
        }
        Some(Estimate::NotByWaiting) => "no end of running work would help".to_owned(),
        Some(Estimate::TooFar) => "too much has to end before it".to_owned(),
        Some(Estimate::Unforeseeable(held)) if held.is_empty() => {
            "nothing runs whose end could help".to_owned()
        }
        Some(Estimate::Unforeseeable(held)) => {
            format!(
                "the end of {} cannot be foreseen: only searches with a single trial that report progress (`context.train.report_progress`) show how long they take",
                some(explanation, held)
            )
        }
    }
}

/// The first few of a list.
fn some(explanation: &JobExplanation, ids: &[AllocationId]) -> String {
    let name = |id: &AllocationId| {
        let mut rows = explanation
            .queue
            .iter()
            .flat_map(|entry| &entry.allocations);
        let row = rows.find(|row| row.id == *id)?;
        Some(row.label().to_string())
    };
    let shown: Vec<String> = ids
        .iter()
        .take(3)
        .map(|id| name(id).unwrap_or_else(|| format!("'{id}'")))
        .collect();
    let more = match ids.len().saturating_sub(shown.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", shown.join(", "))
}

/// The first sentence: where the job is at.
fn summary(situation: &JobSituation<'_>) -> String {
    match situation {
        JobSituation::Unmanaged => {
            "unmanaged: it runs outside the cluster, and asks for nothing here".to_owned()
        }
        JobSituation::UnmanagedEnded(state) => {
            format!("it has ended ({state}): it ran outside the cluster (unmanaged)")
        }
        JobSituation::PausedUntil(command) => {
            format!("paused: it asks for nothing until `{command}`")
        }
        JobSituation::Ended {
            state,
            failure: Some(failure),
        } => format!("it has ended ({state}): {}", failure.sentence),
        JobSituation::Ended {
            state,
            failure: None,
        } => format!("it has ended ({state}): it asks for nothing any more"),
        JobSituation::Stopping => {
            "it is being stopped: it ends when its running tasks have ended".to_owned()
        }
        JobSituation::StoppingToDelete => {
            "it is being stopped: it is deleted when its running tasks have ended".to_owned()
        }
        JobSituation::Live { in_queue, again } => {
            let shares = in_queue.map_or_else(
                || "active, and no task of it asks for slots at this moment".to_owned(),
                shares,
            );
            match again {
                Some(attempt) => {
                    format!("{shares}; it is to be started again (attempt {attempt})")
                }
                None => shares,
            }
        }
    }
}

/// How much of a live job waits and how much runs.
fn shares(InQueue { running, waiting }: InQueue) -> String {
    let tasks = |number: usize| quantity(number as u64, "task");
    match (running, waiting) {
        (0, 1) => "waiting: its task has no slots".to_owned(),
        (0, all) => format!("waiting: none of its {} has slots", tasks(all)),
        (1, 0) => "running: its 1 task has slots".to_owned(),
        (running, 0) => format!("running: its {} have slots", tasks(running)),
        (running, waiting) => format!("{} running, {waiting} waiting", tasks(running)),
    }
}

fn pool(explanation: &JobExplanation) -> PoolSummary {
    PoolSummary {
        name: explanation.pool.clone(),
        priority_order: explanation.priority_order.to_string(),
        scheduling: explanation.scheduling.clone(),
        scheduler_type: scheduler_type(explanation.policy),
        agents: explanation.capacity.places,
        agents_out_of_service: explanation.capacity.out_of_service,
        slots: explanation.capacity.slots,
        free_slots: explanation.capacity.free,
        faults: (explanation.faults.iter())
            .map(|(place, slot, fault)| match slot {
                Some(slot) => format!("slot {} of agent {place}: {fault}", slot.0),
                None => format!("agent {place} cannot start containers: {fault}"),
            })
            .collect(),
        agents_away: explanation
            .away
            .iter()
            .map(|away| AwayAgent {
                agent: away.id.clone(),
                since: Timestamp(away.since),
                waited_until: Timestamp(away.until),
                holds: explanation
                    .held_on(&away.id)
                    .map(|row| row.label().to_string())
                    .collect(),
            })
            .collect(),
        agents_lost: (explanation.lost.iter())
            .map(|lost| LostAgent {
                agent: lost.id.clone(),
                slots: lost.slots,
                at: Timestamp(lost.at),
                reason: lost.reason.clone(),
            })
            .collect(),
        reconnect_wait_seconds: explanation.patience / 1_000_000,
    }
}

fn job_ahead(entry: &QueuedJob) -> JobAhead {
    JobAhead {
        job_id: entry.job.id.clone(),
        entity_id: entry.subject.entity_id(),
        label: entry.subject.label(),
        name: entry.subject.name(),
        username: entry.subject.username().to_owned(),
        priority: i64::from(entry.job.priority),
        weight: Float(entry.job.weight),
        requested_slots: entry.requested_slots(),
        allocated_slots: entry.allocated_slots,
    }
}

fn holder(explanation: &JobExplanation, Holder { job, attempt }: Holder<'_>) -> SlotHolder {
    let placed = explanation.placements.get(&attempt.id);
    SlotHolder {
        allocation_id: attempt.id.clone(),
        label: attempt.label().to_string(),
        job_id: job.job.id.clone(),
        name: job.subject.name(),
        username: job.subject.username().to_owned(),
        priority: i64::from(job.job.priority),
        weight: Float(job.job.weight),
        slots: attempt.slots,
        resource_pool: attempt.resource_pool.clone(),
        agents: placed
            .into_iter()
            .flatten()
            .map(|(place, _)| place.clone())
            .collect(),
        is_preemptible: attempt.preemptible,
        is_stopping: is_stopping(attempt),
        since: attempt.placed_at.map(Timestamp),
    }
}
