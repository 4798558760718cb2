//! Work that goes on by itself: each file one task, woken by changes, without input.
//!
//! Each looks at the rows, decides what they lack, does it, and waits to be woken. The path after a crash is the path of
//! every day.
//!
//! All of it is supervised: work that ends in a panic is started again, and the master ends when that does not help. A
//! master that listens does its work.

pub mod backlog;
pub mod clean_up;
pub mod deadlines;
pub mod doctor;
pub mod idle;
pub mod log_sweep;
pub mod schedule;

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use det_store::DatabaseAccess;
use futures::FutureExt as _;

use crate::app::Master;
use crate::works::text_of;

/// Panics of one work within [`WINDOW`] after which the master ends.
const PANICS: usize = 5;
/// The time within which [`PANICS`] are counted.
const WINDOW: Duration = Duration::from_mins(10);
/// Work is started again after this long, twice as long after each further panic within [`WINDOW`].
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Runs a work until the master stops. After a panic it is started again: works keep nothing that the rows do not have.
/// Ends the master when a work panics time after time, or ends without being asked to.
pub async fn supervise<F>(master: Master, name: &'static str, work: impl Fn(Master) -> F)
where
    F: Future<Output = ()>,
{
    let mut panics: VecDeque<Instant> = VecDeque::new();
    loop {
        let injected = master.background.started(name);
        let run = async {
            tokio::select! {
                () = work(master.clone()) => {}
                () = injected.notified() => panic!("a panic was injected into \"{name}\""),
            }
        };
        let Err(panic) = AssertUnwindSafe(run).catch_unwind().await else {
            if !master.context.shutdown.is_cancelled() && !master.placing.is_cancelled() {
                master.context.fail(format!(
                    "background work \"{name}\" ended without being asked to, which is a defect of this program"
                ));
            }
            return;
        };
        let text = text_of(&*panic);
        master.background.panicked(name, &text);
        panics.retain(|at| at.elapsed() < WINDOW);
        panics.push_back(Instant::now());
        if panics.len() >= PANICS {
            let minutes = WINDOW.as_secs() / 60;
            master.context.fail(format!(
                "background work \"{name}\" panicked {PANICS} times in {minutes} minutes, the last time with: {text}"
            ));
            return;
        }
        tracing::error!(
            work = name,
            panic = text,
            "background work panicked and is started again"
        );
        let doublings = u32::try_from(panics.len() - 1).unwrap_or(0);
        tokio::select! {
            () = tokio::time::sleep(FIRST_PAUSE * 2_u32.pow(doublings)) => {}
            () = master.context.shutdown.cancelled() => return,
        }
    }
}

/// Runs work that cannot be started again: the master ends with it.
pub async fn essential(master: Master, name: &'static str, work: impl Future<Output = ()>) {
    let outcome = AssertUnwindSafe(work).catch_unwind().await;
    if let Err(panic) = outcome {
        master
            .context
            .fail(format!("\"{name}\" panicked: {}", text_of(&*panic)));
    } else if !master.context.shutdown.is_cancelled() {
        master
            .context
            .fail(format!("\"{name}\" ended without being asked to"));
    }
}

/// Ends the master when its store is not to be used any more.
pub async fn watch_store(master: Master) {
    let mut access = master.context.store.access();
    let over = access.wait_for(|access| matches!(access, DatabaseAccess::Ended(_)));
    tokio::select! {
        over = over => {
            if let Ok(DatabaseAccess::Ended(reason)) = over.map(|access| access.clone()) {
                master.context.fail(format!("its use of the database has ended: {reason}"));
            }
        }
        () = master.context.shutdown.cancelled() => {}
    }
}

/// `None` = until something else happens.
async fn sleep_or_forever(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration).await,
        None => std::future::pending().await,
    }
}
