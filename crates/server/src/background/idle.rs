//! Ends notebooks and `TensorBoards` that are not used.
//!
//! Sleeps until the first of them may be idle for too long, or until there is another one.

use std::time::Duration;

use crate::app::Master;
use crate::background::sleep_or_forever;

/// After a failed look (the database is away), try again after this long.
const RETRY: Duration = Duration::from_secs(5);

/// Watches for as long as it is polled.
pub async fn run(master: Master) {
    loop {
        let idle = &master.idle;
        let looked = idle.end_idle(&master.context, &master.live, &master.orchestration);
        let wait = looked.await.unwrap_or_else(|error| {
            tracing::warn!(%error, cause = ?error.cause, "idle tasks could not be ended; it is tried again");
            Some(RETRY)
        });
        tokio::select! {
            () = master.idle.changed() => {}
            () = sleep_or_forever(wait) => {}
        }
    }
}
