//! Work that goes on by itself: each file one task, woken by changes, without input.
//!
//! Each looks at the rows, decides what they lack, does it, and waits to be woken. The path after a crash is the path of
//! every day.
//!
//! All of it is supervised: work that ends in a panic is started again, and the master ends when that does not help. A
//! master that listens does its work.

pub mod clean_up;
pub mod deadlines;
pub mod log_sweep;
pub mod schedule;

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use det_store::Standing;
use futures::FutureExt as _;
use tokio::sync::Notify;

use crate::app::Master;
use crate::app::context::Context;

/// Panics of one work within [`WINDOW`] after which the master ends.
const PANICS: usize = 5;
/// See [`PANICS`].
const WINDOW: Duration = Duration::from_mins(10);
/// Work is started again after this long, twice as long after each further panic within [`WINDOW`].
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// How one background work goes.
#[derive(Debug, Clone, Default)]
pub struct Work {
    /// Whether it runs; otherwise it waits to be started again.
    pub runs: bool,
    /// How often it was started again.
    pub restarts: u64,
    /// What its last panic said.
    pub last_panic: Option<String>,
}

/// All supervised works by name.
#[derive(Debug, Default)]
pub struct Works {
    works: Mutex<BTreeMap<&'static str, Supervised>>,
}

#[derive(Debug, Default)]
struct Supervised {
    work: Work,
    panic: Arc<Notify>,
}

impl Works {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Supervised>> {
        self.works.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All works as they go now.
    pub fn list(&self) -> Vec<(&'static str, Work)> {
        let works = self.lock();
        works
            .iter()
            .map(|(name, supervised)| (*name, supervised.work.clone()))
            .collect()
    }

    /// Lets a work panic: for tests.
    #[doc(hidden)]
    pub fn inject_panic(&self, name: &str) {
        if let Some(supervised) = self.lock().get(name) {
            supervised.panic.notify_one();
        }
    }

    fn started(&self, name: &'static str) -> Arc<Notify> {
        let mut works = self.lock();
        let supervised = works.entry(name).or_default();
        supervised.work.runs = true;
        supervised.panic.clone()
    }

    fn panicked(&self, name: &'static str, text: &str) {
        let mut works = self.lock();
        let work = &mut works.entry(name).or_default().work;
        work.runs = false;
        work.restarts += 1;
        work.last_panic = Some(text.to_owned());
    }
}

/// What a panic said.
fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message").to_owned()
}

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

/// Runs work that others wait for and that ends by itself: a panic ends the master, since they would wait for ever.
pub(crate) async fn guarded(context: Context, name: &'static str, work: impl Future<Output = ()>) {
    if let Err(panic) = AssertUnwindSafe(work).catch_unwind().await {
        context.fail(format!("\"{name}\" panicked: {}", text_of(&*panic)));
    }
}

/// Ends the master when its store is not to be used any more.
pub async fn watch_store(master: Master) {
    let mut standing = master.context.store.standing();
    let over = standing.wait_for(|standing| matches!(standing, Standing::Over(_)));
    tokio::select! {
        over = over => {
            if let Ok(Standing::Over(reason)) = over.map(|standing| standing.clone()) {
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
