//! Searching texts by the regular expressions of users, which can take seconds of processor time whatever their size: on
//! blocking threads, fewer at once than there are cores, and one at once of each user.

use det_ids::UserId;

use crate::app::turns::Turns;
use crate::error::{AppError, AppResult};

/// Runs searches by patterns. Cheap to clone.
#[derive(Clone)]
pub(crate) struct PatternWork {
    turns: Turns,
}

impl PatternWork {
    /// At most so many at once.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            turns: Turns::new(most, 1),
        }
    }

    /// Runs a search with the patterns of a user, in turn with those of others. A caller that goes away while it waits leaves
    /// nothing behind.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        user: UserId,
        search: impl FnOnce() -> T + Send + 'static,
    ) -> AppResult<T> {
        let turn = self.turns.take(user).await?;
        tokio::task::spawn_blocking(move || {
            // Held for as long as the thread works, also when no caller waits for it any more.
            let _turn = turn;
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
        while work.turns.free() < 2 {
            tokio::task::yield_now().await;
        }
    }
}
