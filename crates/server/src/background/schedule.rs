//! Scheduling passes: woken by every change that may matter. Passes never overlap, and changes during a pass lead to one
//! more.

use std::time::{Duration, Instant};

use crate::app::Master;
use crate::app::scheduling::State;
use crate::background::sleep_or_forever;
use crate::hub::Topic;

/// After a failed pass (the database is away), try again after this long.
const RETRY: Duration = Duration::from_millis(500);
/// A pass that took this long or longer is followed by a pause as long as itself, at most this much: changes gather
/// meanwhile, and scheduling a large cluster leaves capacity for everything else.
const COSTLY: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Schedules until the master stops.
pub async fn run(master: Master) {
    let mut changes = master.context.hub.subscribe(Topic::Schedule);
    let mut state = State::default();
    while !master.placing.is_cancelled() {
        let began = Instant::now();
        let next = match master.scheduling.pass(&mut state).await {
            Ok(next) => next,
            Err(error) => {
                tracing::warn!(%error, cause = ?error.cause, "a scheduling pass failed; it is repeated");
                state.invalidate_plans();
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
            () = master.placing.cancelled() => return,
            () = master.context.shutdown.cancelled() => return,
        }
    }
}
