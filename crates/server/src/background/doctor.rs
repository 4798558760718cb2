//! Looks at trials that have been silent for too long, and adds to their logs which rank hangs.
//!
//! Sleeps until the first of them may be silent for too long, or until there is another one.

use std::time::Duration;

use crate::app::Master;
use crate::background::sleep_or_forever;

/// After a failed look (the database is away), try again after this long.
const RETRY: Duration = Duration::from_secs(5);
/// From the end of one look to the next at least, whatever users ask for. Trials that begin to run within so long are taken
/// up by one look.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// Watches for as long as it is polled.
pub async fn run(master: Master) {
    loop {
        let looked = master.doctor.look().await;
        let wait = looked.unwrap_or_else(|error| {
            tracing::warn!(%error, cause = ?error.cause, "silent trials could not be looked for; it is tried again");
            Some(RETRY)
        });
        tokio::select! {
            () = master.silences.changed() => tokio::time::sleep(BETWEEN_LOOKS).await,
            () = sleep_or_forever(pause(wait)) => {}
        }
    }
}

/// How long until the next look, of which `due` says when it is due.
fn pause(due: Option<Duration>) -> Option<Duration> {
    due.map(|due| due.max(BETWEEN_LOOKS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_have_a_second_between_them() {
        assert_eq!(pause(Some(Duration::from_nanos(1))), Some(BETWEEN_LOOKS));
        assert_eq!(pause(Some(RETRY)), Some(RETRY));
        assert_eq!(pause(None), None);
    }
}
