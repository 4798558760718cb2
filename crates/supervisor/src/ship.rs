//! Ships the log from the spool to the master.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use det_spool::{
    Batch, BatchIds, LOGS_PATH, MAX_BATCH_BYTES, MAX_BATCH_RECORDS, Reader, batch_body,
};

use crate::clock::Backoff;
use crate::failure::chain;
use crate::log::Log;
use crate::master::{Master, MasterError};
use crate::report::Diagnostics;

/// How long one request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest wait between attempts once the task has ended.
const LAST_BACKOFF: Duration = Duration::from_secs(1);

/// A thread that ships the log.
pub(crate) struct Shipper {
    done: mpsc::Receiver<()>,
}

/// What shipping needs in addition to the log.
pub(crate) struct Route {
    pub(crate) master: Master,
    pub(crate) ids: BatchIds,
    pub(crate) diagnostics: Diagnostics,
}

impl Shipper {
    /// Starts the thread. It ends by itself after the log is closed.
    pub(crate) fn start(log: Log, route: Route) -> std::io::Result<Self> {
        let (finished, done) = mpsc::channel();
        thread::Builder::new()
            .name("ship".into())
            .spawn(move || {
                ship(&log, &route);
                // The receiver is gone if the time was over before.
                drop(finished);
            })
            .map(|_| Self { done })
    }

    /// Waits until everything is shipped, `patience` at most. The agent ships what is left then.
    pub(crate) fn wait(&self, patience: Duration) {
        // Nothing is ever sent: the channel closes when the thread ends.
        match self.done.recv_timeout(patience) {
            Ok(())
            | Err(mpsc::RecvTimeoutError::Disconnected | mpsc::RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Ships until the log is closed and empty, or its time is over.
///
/// The first line goes at once; lines written during a request are sent with the next.
fn ship(log: &Log, route: &Route) {
    let mut reader = match log.reader() {
        Ok(reader) => reader,
        Err(error) => {
            route.diagnostics.note(chain(&error));
            log.reader_after(0)
        }
    };
    let mut sent = 0;
    while let Some(available) = log.wait_for_records(sent) {
        match reader.next_batch(MAX_BATCH_RECORDS, MAX_BATCH_BYTES) {
            Ok(Some(batch)) => {
                if !deliver(&batch, log, route) {
                    return;
                }
                sent = batch.last();
            }
            Ok(None) => {
                // Records were flushed and cannot be read: another process wrote into the spool.
                if sent < available {
                    note_loss(&reader, available, route);
                    reader = log.reader_after(available);
                    sent = available;
                }
            }
            Err(error) => {
                route.diagnostics.note(chain(&error));
                log.pause(LAST_BACKOFF);
            }
        }
    }
    // Records that could not be written to disk. All before them were delivered, or there is no time left.
    if let Some(batch) = log.unwritten() {
        deliver(&batch, log, route);
    }
}

fn note_loss(reader: &Reader, available: u64, route: &Route) {
    route.diagnostics.note(format!(
        "records up to {available} of the log spool could not be read and are left out; damage met so far: {}",
        reader.damaged()
    ));
}

/// Posts a batch until the master accepts or refuses it. `false` if the time was over first.
fn deliver(batch: &Batch, log: &Log, route: &Route) -> bool {
    let body = match batch_body(batch, &route.ids) {
        Ok(body) => body,
        Err(error) => {
            route.diagnostics.note(format!(
                "records {} to {} of the log cannot be written as JSON and are left out: {error}",
                batch.first,
                batch.last()
            ));
            log.acknowledge(batch.last());
            return true;
        }
    };
    let mut backoff = Backoff::new();
    let mut failing = false;
    loop {
        let left = log.time_left();
        if left.is_some_and(|left| left.is_zero()) {
            return false;
        }
        let timeout = left.unwrap_or(REQUEST_TIMEOUT).min(REQUEST_TIMEOUT);
        match route.master.post(LOGS_PATH, &body, timeout) {
            Ok(()) => break,
            Err(error) if is_refusal(&error) => {
                route.diagnostics.note(format!(
                    "the master refused records {} to {} of the log, which are left out: {error}",
                    batch.first,
                    batch.last()
                ));
                break;
            }
            Err(error) => {
                if !failing {
                    failing = true;
                    route.diagnostics.note(format!(
                        "could not ship records from {} of the log, trying on: {error}",
                        batch.first
                    ));
                }
                if log.time_left().is_some() {
                    backoff.limit(LAST_BACKOFF);
                }
                log.pause(backoff.delay());
            }
        }
    }
    log.acknowledge(batch.last());
    true
}

/// Whether the master will never accept this batch. A refused token does not count: a master that is being restored may
/// not know it yet.
fn is_refusal(error: &MasterError) -> bool {
    match error {
        MasterError::Status { status, .. } => {
            (400..500).contains(status) && !matches!(status, 401 | 403 | 408 | 429)
        }
        MasterError::Unreachable { .. } | MasterError::Answer { .. } => false,
    }
}
