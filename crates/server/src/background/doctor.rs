//! Looks at trials that have been silent for too long, and adds to their logs which rank hangs.
//!
//! Sleeps until the first of them may be silent for too long, or until there is another one.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;

use crate::app::Master;
use crate::app::doctor::Alarm;
use crate::background::sleep_or_forever;

/// After a failed look (the database is away), try again after this long.
const RETRY: Duration = Duration::from_secs(5);
/// From the end of one look to the next at least, whatever users ask for. Trials that begin to run within so long are taken
/// up by one look.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// Watches for as long as it is polled.
pub async fn run(master: Master) {
    // At most one for each running attempt of a trial: it is due once.
    let (found, alarms) = mpsc::unbounded_channel();
    tokio::join!(watch(&master, found), examine(&master, alarms));
}

/// Examines what is silent. It waits for no look, and no look for it: what is found later takes its turn beside it.
async fn examine(master: &Master, mut alarms: mpsc::UnboundedReceiver<Alarm>) {
    let mut under_way = FuturesUnordered::new();
    loop {
        tokio::select! {
            Some(alarm) = alarms.recv() => under_way.push(master.doctor.examine_silent(alarm)),
            Some(()) = under_way.next() => {}
            else => return,
        }
    }
}

async fn watch(master: &Master, found: mpsc::UnboundedSender<Alarm>) {
    loop {
        let wait = match master.doctor.look().await {
            Ok((alarms, wait)) => {
                for alarm in alarms {
                    if found.send(alarm).is_err() {
                        return;
                    }
                }
                wait
            }
            Err(error) => {
                tracing::warn!(%error, cause = ?error.cause, "silent trials could not be looked for; it is tried again");
                Some(RETRY)
            }
        };
        tokio::select! {
            () = master.silences.changed() => tokio::time::sleep(BETWEEN_LOOKS).await,
            () = sleep_or_forever(pause(wait)) => {}
        }
    }
}

/// How long until the next look, which is due after `due`: at least [`BETWEEN_LOOKS`]; `None` = there is none.
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
