//! Scheduling: looks at what waits and what runs in each pool, asks the pure room for a plan, and stores it.
//!
//! Woken by every change that may matter; passes never overlap, and changes during a pass lead to one more.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use det_failpoints::failpoint;
use det_ids::{AllocationId, Micros};
use det_scheduler::{Plan, PoolSnapshot, Queue, WaitReason, plan};
use det_store::allocations::AllocationRow;
use det_store::queue_days::{self, QueueDay};

use crate::app::Master;
use crate::background::fallback;
use crate::error::{AppError, AppResult};
use crate::hub::Topic;
use crate::live::Image;

/// After a failed pass (the database is away), try again after this long.
const RETRY: Duration = Duration::from_millis(500);
/// A pass that took this long or longer is followed by a pause as long as itself, at most this much: changes gather
/// meanwhile, and scheduling a large cluster leaves room for everything else.
const COSTLY: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// Waiting reasons of the same kind whose numbers have changed are stored this many a second at most.
const REFRESHED_A_SECOND: u32 = 2_000;

/// Schedules until the master stops.
pub async fn run(master: Master) {
    let mut changes = master.hub.subscribe(Topic::Schedule);
    let mut state = State::default();
    while !master.scheduling.is_cancelled() {
        let began = Instant::now();
        let next = match pass(&master, &mut state).await {
            Ok(next) => next,
            Err(error) => {
                tracing::warn!(%error, cause = ?error.cause, "a scheduling pass failed; it is repeated");
                Some(RETRY)
            }
        };
        if state.thought >= COSTLY {
            tokio::time::sleep(state.thought.min(LONGEST_PAUSE)).await;
        }
        tracing::trace!(duration_us = began.elapsed().as_micros(), "scheduling pass");
        tokio::select! {
            () = changes.changed() => {}
            () = sleep_or_forever(next) => {}
            () = master.scheduling.cancelled() => return,
            () = master.shutdown.cancelled() => return,
        }
    }
}

/// What scheduling keeps from one pass to the next; all of it can be had from the rows.
#[derive(Default)]
struct State {
    /// What was stored last of the reasons why allocations wait. Without it the stored texts are compared.
    reasons: HashMap<AllocationId, (WaitReason, Instant)>,
    /// What is live, for scheduling alone.
    image: Image,
    /// Time that the last pass took to decide.
    thought: Duration,
}

async fn sleep_or_forever(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration).await,
        None => std::future::pending().await,
    }
}

/// One pass over all pools; gives how long until one is due without any change: a request comes of age, or a reason is
/// to be stored with its present numbers.
async fn pass(master: &Master, state: &mut State) -> AppResult<Option<Duration>> {
    master
        .live
        .catch_up(&master.store, &mut state.image)
        .await?;
    state.thought = Duration::ZERO;
    let mut next = fallback::send_on(master, &state.image).await?;
    let mut earlier = std::mem::take(&mut state.reasons);
    let mut sooner = |wait: Duration| next = Some(next.map_or(wait, |n| n.min(wait)));
    for pool in master.pool_names() {
        let began = Instant::now();
        let (snapshot, queue) = master.pool_in(&state.image, &pool);
        if queue.requests.is_empty() && snapshot.running.is_empty() {
            continue;
        }
        let now = Micros(det_store::now());
        if let Some(age) = snapshot.settings.reserve_after {
            for request in &queue.requests {
                let due = request
                    .requested_at
                    .0
                    .saturating_add(i64::try_from(age.as_micros()).unwrap_or(i64::MAX));
                if let Ok(wait @ 1..) = u64::try_from(due.saturating_sub(now.0)) {
                    sooner(Duration::from_micros(wait));
                }
            }
        }
        let mut decided = plan(&snapshot, &queue, now);
        let waiting = std::mem::take(&mut decided.waiting);
        let refresh = Duration::from_secs(1) * u32::try_from(waiting.len()).unwrap_or(u32::MAX)
            / REFRESHED_A_SECOND;
        let mut to_tell = Vec::new();
        for (id, reason) in waiting {
            match earlier.remove(&id) {
                Some((known, at)) if known == reason => {
                    state.reasons.insert(id, (known, at));
                }
                Some((known, at)) if known.kind() == reason.kind() && at.elapsed() < refresh => {
                    sooner(refresh.saturating_sub(at.elapsed()));
                    state.reasons.insert(id, (known, at));
                }
                _ => to_tell.push((id, reason)),
            }
        }
        state.thought += began.elapsed();
        let told_now: Vec<_> = to_tell
            .iter()
            .map(|(id, reason)| (id.clone(), (reason.clone(), Instant::now())))
            .collect();
        master.apply_plan(decided, to_tell).await?;
        state.reasons.extend(told_now);
    }
    Ok(next)
}

impl Master {
    /// A pool and its queue as an image shows them.
    pub(super) fn pool_in(&self, image: &Image, pool: &str) -> (PoolSnapshot, Queue) {
        let mut snapshot = PoolSnapshot {
            settings: self.pool_settings(pool),
            ..PoolSnapshot::default()
        };
        let mut queue = Queue::default();
        let aux_limit = self.aux_limit(pool);
        image.pool(pool, aux_limit, &mut snapshot, &mut queue);
        (snapshot, queue)
    }

    /// A pool and its queue as they are now, for estimates.
    pub(crate) async fn pool_and_queue(&self, pool: &str) -> AppResult<(PoolSnapshot, Queue)> {
        let look = |image: &Image| self.pool_in(image, pool);
        Ok(self.live.look(&self.store, look).await?)
    }

    /// The pool as it is now, for questions such as whether a request can ever fit.
    pub(crate) async fn pool_snapshot(&self, pool: &str) -> AppResult<PoolSnapshot> {
        let look = |image: &Image| self.pool_in(image, pool).0;
        Ok(self.live.look(&self.store, look).await?)
    }

    /// Stores a plan, and reasons why requests wait that are new or have changed: all of it in one transaction.
    async fn apply_plan(
        &self,
        decided: Plan,
        waiting: Vec<(AllocationId, WaitReason)>,
    ) -> AppResult<()> {
        let mut texts = Vec::with_capacity(waiting.len());
        for (allocation, reason) in waiting {
            let text = serde_json::to_string(&WaitDocument {
                reason: &reason,
                message: reason.to_string(),
            })
            .map_err(AppError::internal)?;
            texts.push((allocation, text, reason));
        }
        // After a restart the reasons that were stored before are known by their texts.
        let texts = self
            .live
            .look(&self.store, |image| {
                texts.retain(|(id, text, _)| {
                    image
                        .stored_wait(id.as_str())
                        .is_some_and(|known| known != Some(text))
                });
                texts
            })
            .await?;
        if decided.place.is_empty()
            && decided.preempt.is_empty()
            && decided.hand_over.is_empty()
            && texts.is_empty()
        {
            return Ok(());
        }
        let master = self.clone();
        let places = !decided.place.is_empty();
        self.store
            .write(move |tx| {
                Box::pin(async move {
                    let mut waits: BTreeMap<(String, i64), QueueDay> = BTreeMap::new();
                    for placement in decided.place {
                        if let Some(placed) = master.place_allocation(tx, placement).await? {
                            note_wait(&mut waits, placed);
                        }
                    }
                    for ((pool, _), day) in waits {
                        queue_days::add(&mut tx.conn(), &pool, day).await?;
                    }
                    for preemption in decided.preempt {
                        master.preempt_for_scheduler(tx, preemption).await?;
                    }
                    for hand_over in decided.hand_over {
                        master.hand_over(tx, hand_over).await?;
                    }
                    for (allocation, text, reason) in texts {
                        master
                            .note_waiting(
                                tx,
                                &allocation,
                                &text,
                                &reason.to_string(),
                                reason.kind(),
                            )
                            .await?;
                    }
                    if places {
                        failpoint!("server::schedule::place::before_commit");
                    }
                    Ok::<_, AppError>(())
                })
            })
            .await?;
        if places {
            failpoint!("server::schedule::place::after_commit");
        }
        Ok(())
    }
}

/// Adds what an allocation has waited to the day on which it was placed.
fn note_wait(waits: &mut BTreeMap<(String, i64), QueueDay>, placed: AllocationRow) {
    let Some(at) = placed.placed_at else { return };
    let day = queue_days::day_of(at);
    let entry = waits.entry((placed.resource_pool, day)).or_default();
    entry.day = day;
    entry.placed += 1;
    entry.waited += (at - placed.requested_at).max(0);
}

/// A stored waiting reason: the structured reason and the sentence.
#[derive(serde::Serialize)]
struct WaitDocument<'a> {
    #[serde(flatten)]
    reason: &'a det_scheduler::WaitReason,
    message: String,
}
