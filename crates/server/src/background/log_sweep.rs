//! Deletes the logs that have been kept long enough, by the schedule of the configuration in force.
//!
//! Sleeps until the next sweep is due, or until another configuration comes. Since when it is counted is stored: a sweep
//! that was missed or cut short is made up for at the next start.

use std::time::Duration;

use crate::app::Master;
use crate::background::sleep_or_forever;
use crate::hub::Topic;
use det_lifecycle::record::ActorName;

/// Looks at the clock this often at least: it may be put forward.
const LOOK: Duration = Duration::from_secs(3600);
/// After a failed sweep (the database is away), try again after this long.
const RETRY: Duration = Duration::from_secs(5);
/// Who does all this, in events.
const ACTOR: ActorName = ActorName::Master;

/// Sweeps for as long as it is polled.
pub async fn run(master: Master) {
    let mut changes = master.context.hub.subscribe(Topic::LogSweep);
    loop {
        let wait = match master.log_retention.sweep_if_due(&ACTOR).await {
            Ok(next) => next.map(|at| {
                let micros =
                    u64::try_from(at.saturating_sub(det_store::earliest_now())).unwrap_or(0);
                Duration::from_micros(micros).clamp(Duration::from_millis(1), LOOK)
            }),
            Err(error) => {
                tracing::warn!(%error, cause = ?error.cause, "old logs could not be deleted; it is tried again");
                Some(RETRY)
            }
        };
        tokio::select! {
            () = changes.changed() => {}
            () = sleep_or_forever(wait) => {}
        }
    }
}
