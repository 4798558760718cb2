//! Work that the master does beside its requests: how each of it goes, and what ended in a panic.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt as _;
use tokio::sync::Notify;

/// How one background work goes.
#[derive(Debug, Clone, Default)]
pub struct Work {
    /// Whether it runs; otherwise it waits to be started again.
    pub runs: bool,
    /// How often it was started again.
    pub restarts: u64,
    /// The message of its last panic.
    pub last_panic: Option<String>,
}

/// All supervised works by name. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Works {
    works: Arc<Mutex<BTreeMap<&'static str, SupervisedWork>>>,
}

#[derive(Debug, Default)]
struct SupervisedWork {
    work: Work,
    panic: Arc<Notify>,
}

impl Works {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, SupervisedWork>> {
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

    pub(crate) fn started(&self, name: &'static str) -> Arc<Notify> {
        let mut works = self.lock();
        let supervised = works.entry(name).or_default();
        supervised.work.runs = true;
        supervised.panic.clone()
    }

    pub(crate) fn panicked(&self, name: &'static str, text: &str) {
        let mut works = self.lock();
        let work = &mut works.entry(name).or_default().work;
        work.runs = false;
        work.restarts += 1;
        work.last_panic = Some(text.to_owned());
    }
}

/// The message of a panic.
pub(crate) fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message").to_owned()
}

/// Runs work that others wait for and that ends by itself. After a panic `fail` is called with its message, since they
/// would wait for ever.
pub(crate) async fn guarded(
    name: &'static str,
    work: impl Future<Output = ()>,
    fail: impl FnOnce(String),
) {
    if let Err(panic) = AssertUnwindSafe(work).catch_unwind().await {
        fail(format!("\"{name}\" panicked: {}", text_of(&*panic)));
    }
}
