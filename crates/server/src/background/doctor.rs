//! Looks at trials that have been silent for too long, and adds to their logs which rank hangs.
//!
//! Sleeps until the first of them may be silent for too long, or until there is another one.

use std::time::Duration;

use crate::app::Master;
use crate::background::sleep_or_forever;

/// After a failed look (the database is away), try again after this long.
const RETRY: Duration = Duration::from_secs(5);
/// Trials that begin to run within so long are taken up by one look.
const TOGETHER: Duration = Duration::from_millis(500);

/// Watches for as long as it is polled.
pub async fn run(master: Master) {
    loop {
        let looked = master.doctor.look().await;
        let wait = looked.unwrap_or_else(|error| {
            tracing::warn!(%error, cause = ?error.cause, "silent trials could not be looked for; it is tried again");
            Some(RETRY)
        });
        tokio::select! {
            () = master.silences.changed() => tokio::time::sleep(TOGETHER).await,
            () = sleep_or_forever(wait) => {}
        }
    }
}
