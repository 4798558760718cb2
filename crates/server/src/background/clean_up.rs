//! Has cleaned up what experiments leave behind, whenever something may be.

use crate::app::Master;
use crate::background::sleep_or_forever;
use crate::hub::Topic;

/// Cleans up until the master stops.
pub async fn run(master: Master) {
    let mut changes = master.context.hub.subscribe(Topic::CleanUp);
    let mut resumed = false;
    loop {
        let mut retry = None;
        if !resumed {
            retry = master.clean_up.resume().await;
            resumed = retry.is_none();
        }
        retry = master.clean_up.pass().await.or(retry);
        tokio::select! {
            () = changes.changed() => {}
            () = sleep_or_forever(retry) => {}
            () = master.context.shutdown.cancelled() => return,
        }
    }
}
