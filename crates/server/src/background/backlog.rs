//! Trials that one change has left to others: [`Orchestration::catch_up`](crate::app::orchestration::Orchestration).

use std::time::Duration;

use crate::app::Master;
use crate::background::sleep_or_forever;
use crate::error::AppResult;
use crate::hub::Topic;

/// When the database is away, try again after this long.
const RETRY: Duration = Duration::from_secs(1);

/// Goes on with them until the master stops.
pub async fn run(master: Master) {
    let mut changes = master.context.hub.subscribe(Topic::Backlog);
    let mut loaded = false;
    loop {
        let retry = match pass(&master, &mut loaded).await {
            Ok(()) => None,
            Err(error) => {
                tracing::warn!(%error, cause = ?error.cause, "trials of large experiments are left over; it is tried again");
                Some(RETRY)
            }
        };
        tokio::select! {
            () = changes.changed() => {}
            () = sleep_or_forever(retry) => {}
            () = master.context.shutdown.cancelled() => return,
        }
    }
}

async fn pass(master: &Master, loaded: &mut bool) -> AppResult<()> {
    if !*loaded {
        master.orchestration.load_backlog().await?;
        *loaded = true;
    }
    master.orchestration.catch_up().await
}
