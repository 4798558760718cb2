//! Work of which only so much is done at once: users take turns, so that one of them who asks for much does not keep others
//! waiting.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use det_ids::UserId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{AppError, AppResult};

/// Turns of one kind of work, first come, first served; of one user at most so many have or wait for a place at once. Cheap
/// to clone.
#[derive(Clone)]
pub(crate) struct Turns {
    all: Arc<Semaphore>,
    most_of_one: usize,
    of_user: Arc<Mutex<HashMap<UserId, Weak<Semaphore>>>>,
}

/// A place among those who work, until it is dropped.
pub(crate) struct Turn {
    _permits: (OwnedSemaphorePermit, OwnedSemaphorePermit),
}

impl Turns {
    /// With at most so many at once, of all users and of one; at least one.
    pub(crate) fn new(most: usize, most_of_one: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(most.max(1))),
            most_of_one: most_of_one.max(1),
            of_user: Arc::default(),
        }
    }

    fn of_user(&self, user: UserId) -> Arc<Semaphore> {
        let mut known = self.of_user.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(semaphore) = known.get(&user).and_then(Weak::upgrade) {
            return semaphore;
        }
        known.retain(|_, semaphore| semaphore.strong_count() > 0);
        let semaphore = Arc::new(Semaphore::new(self.most_of_one));
        known.insert(user, Arc::downgrade(&semaphore));
        semaphore
    }

    /// Waits for a turn of a user. A caller that goes away while it waits leaves nothing behind.
    pub(crate) async fn take(&self, user: UserId) -> AppResult<Turn> {
        // A user's own place comes first: what waits for one of all is then of many users.
        let own = self.of_user(user).acquire_owned().await;
        let own = own.map_err(AppError::internal)?;
        let one = self.all.clone().acquire_owned().await;
        let one = one.map_err(AppError::internal)?;
        Ok(Turn {
            _permits: (own, one),
        })
    }

    /// Places that are free now.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.all.available_permits()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_user_with_much_work_leaves_places_to_others() {
        let turns = Turns::new(3, 2);
        let (ada, bob, eve) = (UserId(1), UserId(2), UserId(3));
        let first = turns.take(ada).await.ok().unwrap();
        let _second = turns.take(ada).await.ok().unwrap();
        let mut third = Box::pin(turns.take(ada));
        assert!(third.as_mut().now_or_never().is_none());
        let of_bob = turns.take(bob).await.ok().unwrap();
        let mut of_eve = Box::pin(turns.take(eve));
        assert!(of_eve.as_mut().now_or_never().is_none(), "all are taken");
        // Ada has waited for longer, and still it is eve's turn: ada has one place of two yet, and comes behind her.
        drop(first);
        let turn_of_eve = of_eve.as_mut().now_or_never();
        assert!(turn_of_eve.is_some());
        assert!(third.as_mut().now_or_never().is_none());
        drop(of_bob);
        assert!(third.as_mut().now_or_never().is_some());
    }
}
