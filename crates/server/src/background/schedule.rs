//! Scheduling: looks at what waits and what runs in each pool, asks the pure room for a plan, and stores it.
//!
//! Woken by every change that may matter; passes never overlap, and changes during a pass lead to one more.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use det_ids::{AgentId, AllocationId, JobId, Micros, SlotId, TaskId};
use det_scheduler::{
    AgentSnapshot, AgentState, Job, Plan, PoolSnapshot, Progress, Queue, Request,
    RunningAllocation, SlotSnapshot, SlotState, plan,
};
use det_store::agents::AgentRow;
use det_store::allocations::{AllocationRow, ContainerRow};
use det_store::experiments::JobRow;
use det_store::{Conn, StoreError, agents, allocations, experiments};

use crate::app::Master;
use crate::app::agents::{devices, slot_set};
use crate::error::AppResult;
use crate::hub::Topic;

/// After a failed pass (the database is away), try again after this long.
const RETRY: Duration = Duration::from_millis(500);

/// Schedules until the master stops.
pub async fn run(master: Master) {
    let mut changes = master.hub.subscribe(Topic::Schedule);
    while !master.scheduling.is_cancelled() {
        let next = match pass(&master).await {
            Ok(next) => next,
            Err(error) => {
                tracing::warn!(%error, cause = ?error.cause, "a scheduling pass failed; it is repeated");
                Some(RETRY)
            }
        };
        tokio::select! {
            () = changes.changed() => {}
            () = sleep_or_forever(next) => {}
            () = master.scheduling.cancelled() => return,
            () = master.shutdown.cancelled() => return,
        }
    }
}

async fn sleep_or_forever(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration).await,
        None => std::future::pending().await,
    }
}

/// One pass over all pools; gives how long until one is due without any change (a request comes of age).
async fn pass(master: &Master) -> AppResult<Option<Duration>> {
    let world = {
        let mut conn = master.store.read().await?;
        World::load(&mut conn.conn()).await?
    };
    let now = Micros(det_store::now());
    let mut next: Option<Duration> = None;
    for pool in master.pool_names() {
        let (snapshot, queue) = world.pool(master, &pool)?;
        if queue.requests.is_empty() && snapshot.running.is_empty() {
            continue;
        }
        if let Some(age) = snapshot.settings.reserve_after {
            for request in &queue.requests {
                let due = request
                    .requested_at
                    .0
                    .saturating_add(i64::try_from(age.as_micros()).unwrap_or(i64::MAX));
                if let Ok(wait @ 1..) = u64::try_from(due.saturating_sub(now.0)) {
                    let wait = Duration::from_micros(wait);
                    next = Some(next.map_or(wait, |n| n.min(wait)));
                }
            }
        }
        let decided = plan(&snapshot, &queue, now);
        master.apply_plan(decided, &world.waiting_texts()).await?;
    }
    Ok(next)
}

/// Rows that scheduling looks at.
struct World {
    agents: Vec<AgentRow>,
    allocations: Vec<AllocationRow>,
    containers: Vec<ContainerRow>,
    jobs: Vec<JobRow>,
}

impl World {
    async fn load(conn: &mut Conn<'_>) -> Result<Self, StoreError> {
        Ok(Self {
            agents: agents::list(conn).await?,
            allocations: allocations::live(conn).await?,
            containers: allocations::live_containers(conn).await?,
            jobs: experiments::live_jobs(conn).await?,
        })
    }

    /// Stored reasons of waiting allocations, so that unchanged ones are not written again.
    fn waiting_texts(&self) -> BTreeMap<String, Option<String>> {
        self.allocations
            .iter()
            .filter(|a| a.placed_at.is_none())
            .map(|a| (a.id.clone(), a.wait_reason.clone()))
            .collect()
    }

    fn pool(&self, master: &Master, pool: &str) -> AppResult<(PoolSnapshot, Queue)> {
        let mut held: BTreeMap<(&str, u32), AllocationId> = BTreeMap::new();
        let mut parts: BTreeMap<&str, Vec<(AgentId, Vec<SlotId>)>> = BTreeMap::new();
        let mut aux: BTreeMap<&str, u32> = BTreeMap::new();
        for container in &self.containers {
            let slots = slot_set(&container.slots)?;
            for slot in &slots {
                held.insert(
                    (&container.agent_id, *slot),
                    AllocationId(container.allocation_id.clone()),
                );
            }
            if slots.is_empty() {
                *aux.entry(&container.agent_id).or_default() += 1;
            }
            parts.entry(&container.allocation_id).or_default().push((
                AgentId(container.agent_id.clone()),
                slots.into_iter().map(SlotId).collect(),
            ));
        }
        let mut snapshot = PoolSnapshot {
            settings: master.pool_settings(pool),
            ..PoolSnapshot::default()
        };
        for agent in self.agents.iter().filter(|a| a.resource_pool == pool) {
            snapshot.agents.push(AgentSnapshot {
                id: AgentId(agent.id.clone()),
                state: match (agent.disconnected_at, agent.enabled, agent.draining) {
                    (Some(_), _, _) => AgentState::Disconnected,
                    (None, _, true) => AgentState::Draining,
                    (None, true, false) => AgentState::Enabled,
                    (None, false, false) => AgentState::Disabled,
                },
                slots: slots(agent, &held)?,
                aux_limit: master.aux_limit(pool),
                aux_used: aux.get(agent.id.as_str()).copied().unwrap_or(0),
            });
        }
        let mut queue = Queue::default();
        for row in self.allocations.iter().filter(|a| a.resource_pool == pool) {
            let request = request(row);
            if row.placed_at.is_none() {
                queue.requests.push(request);
            } else {
                snapshot.running.push(RunningAllocation {
                    request,
                    placement: parts.remove(row.id.as_str()).unwrap_or_default(),
                    progress: match (&row.preempted_for, row.preempt_deadline, row.state.as_str()) {
                        (Some(other), _, _) => Progress::PreemptedFor(AllocationId(other.clone())),
                        (None, Some(_), _) | (None, None, "TERMINATING") => Progress::Stopping,
                        (None, None, _) => Progress::Active,
                    },
                });
            }
        }
        let wanted: BTreeSet<&str> = self
            .allocations
            .iter()
            .filter(|a| a.resource_pool == pool)
            .map(|a| a.job_id.as_str())
            .collect();
        for job in self.jobs.iter().filter(|j| wanted.contains(j.id.as_str())) {
            queue.jobs.insert(
                JobId(job.id.clone()),
                Job {
                    priority: u8::try_from(job.priority).unwrap_or(99),
                    weight: job.weight,
                    max_slots: job.max_slots.map(|n| u32::try_from(n).unwrap_or(u32::MAX)),
                    submitted_at: Micros(job.submitted_at),
                    position: job.position,
                },
            );
        }
        Ok((snapshot, queue))
    }
}

fn slots(
    agent: &AgentRow,
    held: &BTreeMap<(&str, u32), AllocationId>,
) -> Result<Vec<SlotSnapshot>, StoreError> {
    let (disabled, draining) = (
        slot_set(&agent.disabled_slots)?,
        slot_set(&agent.draining_slots)?,
    );
    Ok(devices(agent)?
        .into_iter()
        .map(|device| {
            let holder = held.get(&(agent.id.as_str(), device.id.0)).cloned();
            let state = if disabled.contains(&device.id.0) {
                SlotState::Disabled(holder)
            } else if draining.contains(&device.id.0) {
                SlotState::Draining(holder)
            } else {
                holder.map_or(SlotState::Free, SlotState::Held)
            };
            SlotSnapshot {
                id: device.id,
                state,
            }
        })
        .collect())
}

fn request(row: &AllocationRow) -> Request {
    Request {
        allocation_id: AllocationId(row.id.clone()),
        task_id: TaskId(row.task_id.clone()),
        job_id: JobId(row.job_id.clone()),
        slots: u32::try_from(row.slots).unwrap_or(u32::MAX),
        single_agent: row.single_agent,
        preemptible: row.preemptible,
        excluded_agents: BTreeSet::new(),
        requested_at: Micros(row.requested_at),
    }
}

impl Master {
    /// The pool as it is now, for questions such as whether a request can ever fit.
    pub(crate) async fn pool_snapshot(&self, pool: &str) -> AppResult<PoolSnapshot> {
        let world = {
            let mut conn = self.store.read().await?;
            World::load(&mut conn.conn()).await?
        };
        Ok(world.pool(self, pool)?.0)
    }

    /// Stores a plan: all of it in one transaction.
    async fn apply_plan(
        &self,
        decided: Plan,
        stored: &BTreeMap<String, Option<String>>,
    ) -> AppResult<()> {
        let mut waiting = Vec::new();
        for (allocation, reason) in decided.waiting {
            let text = serde_json::to_string(&WaitDocument {
                reason: &reason,
                message: reason.to_string(),
            })
            .map_err(crate::error::AppError::internal)?;
            if stored
                .get(allocation.as_str())
                .is_some_and(|known| known.as_deref() != Some(&text))
            {
                waiting.push((allocation, text, reason.kind(), reason.to_string()));
            }
        }
        if decided.place.is_empty()
            && decided.preempt.is_empty()
            && decided.hand_over.is_empty()
            && waiting.is_empty()
        {
            return Ok(());
        }
        let master = self.clone();
        let stored = stored.clone();
        self.store
            .write(move |tx| {
                Box::pin(async move {
                    for placement in decided.place {
                        master.place_allocation(tx, placement).await?;
                    }
                    for preemption in decided.preempt {
                        master.preempt_for_scheduler(tx, preemption).await?;
                    }
                    for hand_over in decided.hand_over {
                        master.hand_over(tx, hand_over).await?;
                    }
                    for (allocation, text, kind, message) in waiting {
                        let before = stored.get(allocation.as_str()).and_then(Option::as_deref);
                        let same_kind =
                            before.is_some_and(|b| b.contains(&format!("\"kind\":\"{kind}\"")));
                        master
                            .note_waiting(tx, &allocation, &text, &message, same_kind)
                            .await?;
                    }
                    Ok(())
                })
            })
            .await
    }
}

/// A stored waiting reason: the structured reason and the sentence.
#[derive(serde::Serialize)]
struct WaitDocument<'a> {
    #[serde(flatten)]
    reason: &'a det_scheduler::WaitReason,
    message: String,
}
