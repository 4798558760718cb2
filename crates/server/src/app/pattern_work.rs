//! Searching texts by the regular expressions of users, which can take seconds of processor time whatever their size: on
//! blocking threads, fewer at once than there are cores, and one at once of each user.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use det_ids::UserId;
use tokio::sync::Semaphore;

use crate::error::{AppError, AppResult};

/// Runs searches by patterns. Cheap to clone.
#[derive(Clone)]
pub(crate) struct PatternWork {
    all: Arc<Semaphore>,
    of_user: Arc<Mutex<HashMap<UserId, Weak<Semaphore>>>>,
}

impl PatternWork {
    /// At most so many at once.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(most.max(1))),
            of_user: Arc::default(),
        }
    }

    fn of_user(&self, user: UserId) -> Arc<Semaphore> {
        let mut known = self.of_user.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(semaphore) = known.get(&user).and_then(Weak::upgrade) {
            return semaphore;
        }
        known.retain(|_, semaphore| semaphore.strong_count() > 0);
        let semaphore = Arc::new(Semaphore::new(1));
        known.insert(user, Arc::downgrade(&semaphore));
        semaphore
    }

    /// Runs a search with the patterns of a user, in turn with those of others. A caller that goes away while it waits leaves
    /// nothing behind.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        user: UserId,
        search: impl FnOnce() -> T + Send + 'static,
    ) -> AppResult<T> {
        let own = self.of_user(user).acquire_owned().await;
        let own = own.map_err(AppError::internal)?;
        let one = self.all.clone().acquire_owned().await;
        let one = one.map_err(AppError::internal)?;
        tokio::task::spawn_blocking(move || {
            // Held for as long as the thread works, also when nobody waits for it any more.
            let _permits = (own, one);
            search()
        })
        .await
        .map_err(AppError::internal)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn one_of_a_user_runs_at_once_and_others_take_their_turn() {
        let work = PatternWork::new(2);
        let (release, held) = mpsc::channel::<()>();
        let (started, has_started) = tokio::sync::oneshot::channel();
        let first = tokio::spawn({
            let work = work.clone();
            async move {
                work.run(UserId(1), move || {
                    started.send(()).unwrap();
                    held.recv_timeout(Duration::from_secs(60)).unwrap();
                })
                .await
            }
        });
        has_started.await.unwrap();
        let mut second = Box::pin(work.run(UserId(1), || "second"));
        assert!(futures::poll!(&mut second).is_pending());
        assert_eq!(work.run(UserId(2), || "other").await.unwrap(), "other");
        // A caller that goes away takes its place in the queue with it.
        let mut third = Box::pin(work.run(UserId(1), || "third"));
        assert!(futures::poll!(&mut third).is_pending());
        drop(third);
        release.send(()).unwrap();
        first.await.unwrap().unwrap();
        assert_eq!(second.await.unwrap(), "second");
        let idle = |work: &PatternWork| work.all.available_permits();
        while idle(&work) < 2 {
            tokio::task::yield_now().await;
        }
    }
}
