//! Scheduling: looks at what waits and what runs in each pool, asks the pure crate for a plan, and stores it.
//!
//! [`Scheduling`] makes passes, one after another (`background/schedule.rs`); [`Snapshots`] answers questions about pools
//! and their queues between them.

pub(crate) mod fallback;
mod planners;
mod ports;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use det_failpoints::failpoint;
use det_ids::{AllocationId, ContainerId, Micros};
use det_orchestrator::{Event, PassDecision};
use det_rm::WaitingGang;
use det_scheduler::{Growth, Pass, Placement, WaitExplanation, WaitReason};
use det_store::queue_days::{self, QueueDay};
use det_taskspec::{HostPorts, Hosts};
use planners::Planners;
use ports::PortPlan;

use crate::app::context::Context;
use crate::app::homes::Homes;
use crate::app::orchestration::{Orchestration, PlacedRequest};
use crate::app::pools::Pools;
use crate::app::snapshots::Snapshots;
use crate::app::wait_reasons::explanation_of;
use crate::error::{AppError, AppResult};
use crate::hub::Topic;
use crate::live::{LiveCache, demands_of};

/// Waiting reasons of the same kind whose numbers have changed are stored this many a second at most, and this many at
/// once.
const REFRESHED_A_SECOND: u32 = 2_000;
const REFRESHED_AT_ONCE: u32 = 200;

/// What scheduling keeps from one pass to the next; all of it can be had from the rows.
pub(crate) struct State {
    /// What is live, for scheduling alone.
    cache: LiveCache,
    planners: Planners,
    refreshes: Refreshes,
    /// Time that the last pass took to decide.
    pub(crate) thought: Duration,
}

impl State {
    /// Invalidates what the planners know: they may not have been notified of everything, or what they decided was not stored.
    pub(crate) fn invalidate_plans(&mut self) {
        self.planners = Planners::default();
    }
}

impl Default for State {
    fn default() -> Self {
        Self {
            cache: LiveCache::default(),
            planners: Planners::default(),
            refreshes: Refreshes {
                left: REFRESHED_AT_ONCE,
                since: Instant::now(),
            },
            thought: Duration::ZERO,
        }
    }
}

/// How many reasons may be stored because their numbers have changed.
struct Refreshes {
    left: u32,
    since: Instant,
}

impl Refreshes {
    /// How many there are now.
    fn now(&mut self) -> u32 {
        let earned = self.since.elapsed().as_micros() * u128::from(REFRESHED_A_SECOND) / 1_000_000;
        if earned > 0 {
            let earned = u32::try_from(earned).unwrap_or(u32::MAX);
            self.left = self.left.saturating_add(earned).min(REFRESHED_AT_ONCE);
            self.since = Instant::now();
        }
        self.left
    }

    /// How long until there are enough for `wanted`, or as many as there can be.
    fn wait_for(&self, wanted: usize) -> Duration {
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        let wanted = wanted.min(REFRESHED_AT_ONCE).saturating_sub(self.left);
        Duration::from_secs(1) * wanted.max(1) / REFRESHED_A_SECOND
    }
}

/// Makes scheduling passes and stores what they decide. Cheap to clone.
#[derive(Clone)]
pub struct Scheduling {
    context: Context,
    pools: Pools,
    snapshots: Snapshots,
    orchestration: Orchestration,
}

impl Scheduling {
    /// The scheduling of these pools; nothing is planned before it is asked for.
    pub(crate) fn new(
        context: Context,
        pools: Pools,
        snapshots: Snapshots,
        orchestration: Orchestration,
    ) -> Self {
        Self {
            context,
            pools,
            snapshots,
            orchestration,
        }
    }

    /// One pass over all pools; gives how long until one is due without any change: a request comes of age or may start, or a reason is
    /// to be stored with its present numbers.
    pub(crate) async fn pass(&self, state: &mut State) -> AppResult<Option<Duration>> {
        let touched = self
            .snapshots
            .live
            .catch_up(&self.context.store, &mut state.cache)
            .await?;
        let began = Instant::now();
        let mut limits = self.snapshots.limits(&state.cache);
        state.planners.update(
            &self.pools,
            &self.snapshots,
            &state.cache,
            &touched,
            &limits,
        );
        let sent = fallback::send_on(self, &state.cache, &mut state.planners).await?;
        state.thought = began.elapsed();
        let mut next = sent.next;
        let mut sooner = |wait: Duration| next = Some(next.map_or(wait, |n| n.min(wait)));
        let board = &self.snapshots.managers.growth;
        let regrown = board.take_changed();
        let now = Micros(det_store::now());
        let (given_up, first_over) = board.given_up(now);
        let given_up = Arc::new(given_up);
        if let Some(over) = first_over {
            sooner(until(now, over));
        }
        let mut grows: BTreeMap<String, Vec<WaitingGang>> = BTreeMap::new();
        for (pool, planner) in state.planners.busy() {
            planner.unreported.extend(regrown.iter().cloned());
            planner.given_up = Arc::clone(&given_up);
            let began = Instant::now();
            // What pools before this one have placed counts.
            planner.set_workspaces(limits.in_pool(pool));
            let now = Micros(det_store::now());
            let refreshes = state.refreshes.now();
            let mut decided = planner.pass(now, refreshes as usize);
            // They wait elsewhere by now; the next pass, which that has woken, looks at them there.
            decided
                .waiting
                .retain(|(id, _)| !sent.requests.contains(id));
            let refreshed = u32::try_from(decided.refreshed).unwrap_or(u32::MAX);
            state.refreshes.left = refreshes.saturating_sub(refreshed);
            if decided.outdated > 0 {
                sooner(state.refreshes.wait_for(decided.outdated));
            }
            if let Some(due) = planner.next_due_at(now) {
                sooner(until(now, due));
            }
            state.thought += began.elapsed();
            let growth = std::mem::take(&mut decided.growth);
            if !growth.is_empty() {
                grows.insert(pool.to_owned(), gangs(&state.cache, pool, growth));
            }
            limits.note(&state.cache, pool, &decided.placements);
            let namespaces = self.namespaces_of(&state.cache, pool, &decided.placements);
            self.apply(pool, decided, namespaces).await?;
        }
        // After placements are stored: what starts now wants nothing any more.
        if board.set_waiting(grows) {
            self.context.hub.notify(&Topic::Growth);
        }
        Ok(next)
    }

    /// The namespaces of what is placed in a pool, as far as workspaces are bound in the cluster of its manager.
    fn namespaces_of(
        &self,
        cache: &LiveCache,
        pool: &str,
        placements: &[Placement],
    ) -> BTreeMap<AllocationId, String> {
        let homes = self.snapshots.homes.get();
        let Some((manager, _)) = self.snapshots.managers.of_pool(pool) else {
            return BTreeMap::new();
        };
        let placed = placements.iter().map(|it| &it.allocation_id);
        let bound = placed.filter_map(|id| {
            let binding = homes.binding(cache.workspace_of(id)?, &manager)?;
            Some((id.clone(), binding.namespace.clone()))
        });
        bound.collect()
    }

    /// Stores what a pass over a pool decided, and the reasons that it reports why requests wait: all of it in one transaction.
    /// `namespaces` = those of placements whose workspaces are bound.
    async fn apply(
        &self,
        pool: &str,
        decided: Pass,
        mut namespaces: BTreeMap<AllocationId, String>,
    ) -> AppResult<()> {
        let (waiting, homes) = (decided.waiting, self.snapshots.homes.get());
        let removed = Some(pool).filter(|pool| !self.pools.is_configured(pool));
        let mut decided = PassDecision {
            placements: decided.placements,
            preempt: decided.preempt,
            hand_over: decided.hand_over,
            waiting: Vec::new(),
        };
        // After a restart the reasons that were stored before are known by their texts.
        let growth = &self.snapshots.managers.growth;
        let look = |cache: &LiveCache| {
            decided.waiting = in_words(waiting, |id| cache.label(id), &homes, removed)?;
            for (id, reason) in &mut decided.waiting {
                let mut grown = WaitExplanation::clone(reason);
                if growth.explain(id, &mut grown) {
                    *reason = Arc::new(grown);
                }
            }
            decided.keep_news(|id| cache.stored_wait(id));
            let reserved = &self.context.config().reserved_ports;
            let ports =
                (!decided.placements.is_empty()).then(|| PortPlan::new(cache, &decided, reserved));
            Ok::<_, AppError>((decided, ports))
        };
        let decided = self.snapshots.live.look(&self.context.store, look);
        let (decided, ports) = decided.await??;
        if decided.is_empty() {
            return Ok(());
        }
        let (orchestration, settings) = (self.orchestration.clone(), self.pools.settings(pool));
        let has_placements = ports.is_some();
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    let mut ports = match ports {
                        Some(plan) => plan.load(tx).await?,
                        None => HostPorts::new(Hosts::default(), &[]),
                    };
                    let new_id = || ContainerId(uuid::Uuid::new_v4().to_string());
                    let mut events = decided.into_events(&settings, &mut ports, new_id);
                    for event in &mut events {
                        if let Event::Place(placed) = event {
                            let id = &placed.placement.allocation_id;
                            placed.namespace = namespaces.remove(id);
                        }
                    }
                    let placed = orchestration.advance_counting(tx, events).await?;
                    let mut waits: BTreeMap<(String, i64), QueueDay> = BTreeMap::new();
                    for request in placed {
                        note_wait(&mut waits, request);
                    }
                    for ((pool, _), day) in waits {
                        queue_days::add(&mut tx.conn(), &pool, day).await?;
                    }
                    if has_placements {
                        failpoint!("server::schedule::place::before_commit");
                    }
                    Ok::<_, AppError>(())
                })
            })
            .await?;
        if has_placements {
            failpoint!("server::schedule::place::after_commit");
        }
        Ok(())
    }
}

/// How long it is from one moment to another; nothing if that has passed.
fn until(now: Micros, then: Micros) -> Duration {
    Duration::from_micros(u64::try_from(then.0.saturating_sub(now.0)).unwrap_or(0))
}

/// The requests of a pool that places are worth adding for, as its manager takes them.
fn gangs(cache: &LiveCache, pool: &str, growth: Vec<Growth>) -> Vec<WaitingGang> {
    let gangs = growth.into_iter().map(|growth| WaitingGang {
        demands: demands_of(cache, &growth.allocation_id),
        workspace: cache.workspace_of(&growth.allocation_id),
        allocation_id: growth.allocation_id,
        resource_pool: pool.to_owned(),
        shares: growth.shares,
        excluded_places: growth.excluded_places,
    });
    gangs.collect()
}

/// Adds what a request has waited to the day on which it was placed.
fn note_wait(waits: &mut BTreeMap<(String, i64), QueueDay>, placed: PlacedRequest) {
    let day = queue_days::day_of(placed.placed_at.0);
    let entry = waits.entry((placed.resource_pool, day)).or_default();
    entry.day = day;
    entry.placed += 1;
    entry.waited += (placed.placed_at.0 - placed.requested_at.0).max(0);
}

/// Reasons in words; many requests wait for the same one. `called` gives the labels of allocations, `homes` the names
/// of workspaces; see [`explanation_of`] for `removed_pool`.
fn in_words(
    waiting: Vec<(AllocationId, Arc<WaitReason>)>,
    called: impl Fn(&AllocationId) -> Option<String>,
    homes: &Homes,
    removed_pool: Option<&str>,
) -> AppResult<Vec<(AllocationId, Arc<WaitExplanation>)>> {
    let mut written: HashMap<*const WaitReason, Arc<WaitExplanation>> = HashMap::new();
    waiting
        .into_iter()
        .map(|(allocation, reason)| {
            let text = match written.entry(Arc::as_ptr(&reason)) {
                Entry::Occupied(text) => Arc::clone(text.get()),
                Entry::Vacant(free) => {
                    let text = explanation_of(&reason, &called, homes, removed_pool)?;
                    Arc::clone(free.insert(Arc::new(text)))
                }
            };
            Ok((allocation, text))
        })
        .collect()
}
