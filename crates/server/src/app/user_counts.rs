//! How many of something each user has at this moment, with a limit for one user.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use det_ids::UserId;

/// Counts for those users who have any. Cheap to clone.
#[derive(Clone)]
pub(crate) struct UserCounts {
    most: usize,
    counts: Arc<Mutex<HashMap<UserId, usize>>>,
}

/// One of a user's, until it is dropped.
pub(crate) struct OfUser {
    counts: UserCounts,
    user_id: UserId,
}

impl UserCounts {
    /// With at most so many of one user.
    pub(crate) fn at_most(most: usize) -> Self {
        Self {
            most,
            counts: Arc::default(),
        }
    }

    /// How many there may be of one user.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<UserId, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more; `None` = the user has as many as there may be.
    pub(crate) fn take(&self, user_id: UserId) -> Option<OfUser> {
        let mut counts = self.lock();
        let count = counts.entry(user_id).or_default();
        if *count == self.most {
            return None;
        }
        *count += 1;
        Some(OfUser {
            counts: self.clone(),
            user_id,
        })
    }
}

impl Drop for OfUser {
    fn drop(&mut self) {
        if let Entry::Occupied(mut entry) = self.counts.lock().entry(self.user_id) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_who_has_none_is_not_counted() {
        let counts = UserCounts::at_most(3);
        let (ada, bob) = (UserId(1), UserId(2));
        let mut of_ada: Vec<OfUser> = (0..3)
            .map(|_| counts.take(ada).expect("it is within the limit"))
            .collect();
        assert!(counts.take(ada).is_none());
        let of_bob = counts.take(bob).unwrap();
        of_ada.pop();
        of_ada.push(counts.take(ada).expect("one has ended"));
        assert_eq!(counts.lock().len(), 2);
        drop(of_ada);
        assert_eq!(counts.lock().get(&ada), None);
        assert_eq!(counts.lock()[&bob], 1);
        drop(of_bob);
        assert!(counts.lock().is_empty());
    }
}
