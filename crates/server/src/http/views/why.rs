//! Why a job runs or waits, as clients see it.

use det_api_types::jobs::{
    AwayAgent, ExplainJobResponse, JobAhead, LostAgent, PoolSituation, SlotHolder, WaitingTask,
};
use det_api_types::wire::{Float, Timestamp};
use det_ids::{AllocationId, PlaceId, quantity};
use det_lifecycle::experiment::ExperimentState;
use det_lifecycle::task::TaskState;
use det_scheduler::{Estimate, Policy, WaitKind};
use det_store::allocations::{AllocationRow, TaskRow};

use crate::app::jobs::{JobSubject, QueuedJob};
use crate::app::why::{JobExplanation, JobFailure};
use crate::http::views::jobs::scheduler_type;
use crate::http::views::tasks::{is_stopping, wait_reason};

/// Jobs, tasks, and holders of slots that are listed at most.
const MOST: usize = 100;

/// The whole explanation.
#[expect(clippy::too_many_lines, reason = "one answer with all its fields")]
pub fn explanation(explanation: &JobExplanation) -> ExplainJobResponse {
    let own: &[AllocationRow] = explanation
        .entry
        .as_ref()
        .map_or(&[], |entry| &entry.allocations);
    let waiting = own
        .iter()
        .filter(|row| row.placed_at.is_none())
        .take(MOST)
        .map(|row| WaitingTask {
            allocation_id: row.id.clone(),
            slots: row.slots,
            since: Timestamp(row.requested_at),
            resource_pool: row.resource_pool.clone(),
            wait_reason: wait_reason(row),
            estimated_start: match explanation.estimates.get(&row.id) {
                Some(Estimate::At(at) | Estimate::AtTheLatest(at, _)) => Some(Timestamp(at.0)),
                _ => None,
            },
            estimate_basis: basis(explanation, explanation.estimates.get(&row.id)),
            label: row.label().to_string(),
            other_pools: explanation
                .other_pools
                .get(&row.id)
                .cloned()
                .unwrap_or_default(),
            last_end: explanation
                .last_ends
                .get(&row.id)
                .map_or_else(String::new, |(reason, _)| reason.clone()),
            last_ended_at: explanation
                .last_ends
                .get(&row.id)
                .and_then(|(_, at)| at.map(Timestamp)),
        })
        .collect::<Vec<_>>();
    let job_id = &explanation.job_id;
    let asks_for_slots = own.iter().any(|row| row.slots > 0);
    let ahead: Vec<JobAhead> = explanation
        .entry
        .iter()
        .flat_map(|_| {
            // Where priorities decide, those before it; else all that it shares the pool with.
            let place = explanation
                .queue
                .iter()
                .position(|entry| entry.job.id == *job_id);
            let priorities = matches!(explanation.policy, Policy::Priority { .. });
            let end = place
                .filter(|_| priorities)
                .unwrap_or(explanation.queue.len());
            let others = explanation.queue[..end].iter();
            // What asks for slots and what asks for none are in no way of each other.
            let is_concerned = |entry: &&QueuedJob| {
                asks_for_slots == (entry.requested_slots() > 0 || entry.allocated_slots > 0)
            };
            others
                .filter(|entry| entry.job.id != *job_id)
                .filter(is_concerned)
        })
        .map(job_ahead)
        .collect();
    let ahead_count = ahead.len();
    let others = explanation
        .queue
        .iter()
        .filter(|entry| entry.job.id != *job_id);
    // Where nothing waits, others are in no job's way.
    let held_by = if waiting.is_empty() {
        Vec::new()
    } else {
        largest(explanation, others)
    };
    let at_limit = waiting.iter().any(|task| {
        let reason = task.wait_reason.as_ref();
        reason.is_some_and(|reason| reason.kind == WaitKind::OverWorkspaceLimit.name())
    });
    let workspace_held_in_other_pools = if at_limit {
        largest(
            explanation,
            explanation.workspace_held_in_other_pools.iter(),
        )
    } else {
        Vec::new()
    };
    ExplainJobResponse {
        summary: summary(
            explanation,
            own.iter().filter(|row| row.placed_at.is_none()).count(),
        ),
        job: match &explanation.entry {
            Some(entry) => job_ahead(entry),
            None => JobAhead {
                job_id: job_id.clone(),
                entity_id: explanation.subject.entity_id(),
                label: explanation.subject.label(),
                name: explanation.subject.name(),
                username: explanation.subject.username().to_owned(),
                ..JobAhead::default()
            },
        },
        pool: pool(explanation),
        waiting,
        running: explanation
            .entry
            .iter()
            .flat_map(|entry| holders(explanation, entry))
            .take(MOST)
            .collect(),
        ahead: ahead
            .into_iter()
            .skip(ahead_count.saturating_sub(MOST))
            .collect(),
        ahead_count: i64::try_from(ahead_count).unwrap_or(i64::MAX),
        held_by,
        workspace_held_in_other_pools,
        last_lines: (explanation.failure.as_ref())
            .map(|failure| failure.last_lines.clone())
            .unwrap_or_default(),
    }
}

/// The largest of those that hold slots for these jobs.
fn largest<'a>(
    explanation: &'a JobExplanation,
    jobs: impl Iterator<Item = &'a QueuedJob>,
) -> Vec<SlotHolder> {
    let mut found: Vec<SlotHolder> = jobs
        .flat_map(|entry| holders(explanation, entry))
        .filter(|holder| holder.slots > 0)
        .collect();
    found.sort_by(|a, b| (b.slots, &a.allocation_id).cmp(&(a.slots, &b.allocation_id)));
    found.truncate(MOST);
    found
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

fn summary(explanation: &JobExplanation, waiting: usize) -> String {
    let row = match &explanation.subject {
        JobSubject::Experiment(row) => row,
        JobSubject::Task { row, .. } => return summary_of_task(row, explanation, waiting),
    };
    match &row.state {
        state if row.unmanaged && !state.is_terminal() => {
            "unmanaged: it runs outside the cluster, and asks for nothing here".to_owned()
        }
        ExperimentState::Paused => format!(
            "paused: it asks for nothing until `det experiment activate {}`",
            row.id
        ),
        state if row.unmanaged && !state.is_live() => format!(
            "it has ended ({}): it ran outside the cluster (unmanaged)",
            state.stored_name()
        ),
        state if !state.is_live() => ended(state.stored_name(), explanation.failure.as_ref()),
        ExperimentState::Stopping(_) => {
            "it is being stopped: it ends when its running tasks have ended".to_owned()
        }
        ExperimentState::StoppingToDelete(_) => {
            "it is being stopped: it is deleted when its running tasks have ended".to_owned()
        }
        _ => in_queue(explanation, waiting),
    }
}

fn summary_of_task(row: &TaskRow, explanation: &JobExplanation, waiting: usize) -> String {
    match row.state {
        TaskState::Suspended => {
            let resumes = row.resume_command();
            format!("paused: it asks for nothing until `{resumes}`")
        }
        TaskState::Queued if row.attempts > 1 => format!(
            "{}; it is to be started again (attempt {})",
            in_queue(explanation, waiting),
            row.attempts
        ),
        TaskState::Queued | TaskState::Running | TaskState::Stopping(_) => {
            in_queue(explanation, waiting)
        }
        TaskState::Ended(_) => ended(row.state.name(), explanation.failure.as_ref()),
    }
}

/// What has ended, and of what it failed where that is known.
fn ended(state: &str, failure: Option<&JobFailure>) -> String {
    match failure {
        Some(failure) => format!("it has ended ({state}): {}", failure.sentence),
        None => format!("it has ended ({state}): it asks for nothing any more"),
    }
}

/// How much of a live job waits and how much runs.
fn in_queue(explanation: &JobExplanation, waiting: usize) -> String {
    let Some(entry) = &explanation.entry else {
        return "active, and no task of it asks for slots at this moment".to_owned();
    };
    let all = entry.allocations.len();
    match all - waiting {
        0 if all == 1 => "waiting: its task has no slots".to_owned(),
        0 => format!(
            "waiting: none of its {} has slots",
            quantity(all as u64, "task")
        ),
        running if waiting == 0 => format!(
            "running: its {} {} slots",
            quantity(running as u64, "task"),
            if running == 1 { "has" } else { "have" }
        ),
        running => format!(
            "{} running, {waiting} waiting",
            quantity(running as u64, "task")
        ),
    }
}

fn pool(explanation: &JobExplanation) -> PoolSituation {
    PoolSituation {
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
                holds: held_on(explanation, &away.id),
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

/// The labels of what the job has on a place.
fn held_on(explanation: &JobExplanation, place: &PlaceId) -> Vec<String> {
    let own = explanation
        .entry
        .iter()
        .flat_map(|entry| &entry.allocations);
    let has = |row: &&AllocationRow| {
        let places = explanation.placements.get(&row.id);
        places.is_some_and(|places| places.iter().any(|(id, _)| id == place))
    };
    own.filter(has)
        .take(MOST)
        .map(|row| row.label().to_string())
        .collect()
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

fn holders<'a>(
    explanation: &'a JobExplanation,
    entry: &'a QueuedJob,
) -> impl Iterator<Item = SlotHolder> + 'a {
    entry
        .allocations
        .iter()
        .filter(|row| row.placed_at.is_some())
        .map(|row| SlotHolder {
            allocation_id: row.id.clone(),
            label: row.label().to_string(),
            job_id: entry.job.id.clone(),
            name: entry.subject.name(),
            username: entry.subject.username().to_owned(),
            priority: i64::from(entry.job.priority),
            weight: Float(entry.job.weight),
            slots: row.slots,
            resource_pool: row.resource_pool.clone(),
            agents: explanation
                .placements
                .get(&row.id)
                .into_iter()
                .flatten()
                .map(|(place, _)| place.clone())
                .collect(),
            is_preemptible: row.preemptible,
            is_stopping: is_stopping(row),
            since: row.placed_at.map(Timestamp),
        })
}
