//! Jobs of others that have the label of this master's cluster: each is warned of once, however often it changes.

use std::collections::{BTreeMap, BTreeSet};

use crate::books::ObjectKey;

/// Jobs of others that are remembered at most: anyone who may create Jobs can make any number of them.
const MOST: usize = 1_000;

/// The Jobs of others that were warned of, with their identity.
#[derive(Debug, Default)]
pub(crate) struct ForeignJobs(BTreeMap<ObjectKey, String>);

impl ForeignJobs {
    /// A Job of another owner was seen: it is warned of, unless it was before.
    pub(crate) fn seen(&mut self, name: &ObjectKey, uid: &str, reason: &'static str) {
        let (job, namespace) = (&name.name, &name.namespace);
        if self.is_news(name, uid) {
            tracing::warn!(job, namespace, "{reason}; it is left alone");
            if self.0.len() == MOST {
                tracing::warn!(
                    "there are {MOST} such Jobs; others are logged at the level \"debug\" alone"
                );
            }
        } else {
            tracing::debug!(job, namespace, "{reason}; it is left alone");
        }
    }

    fn is_news(&mut self, name: &ObjectKey, uid: &str) -> bool {
        if let Some(known) = self.0.get_mut(name) {
            let is_news = known != uid;
            uid.clone_into(known);
            return is_news;
        }
        let has_space = self.0.len() < MOST;
        if has_space {
            self.0.insert(name.clone(), uid.to_owned());
        }
        has_space
    }

    /// A Job is gone, whosever it was.
    pub(crate) fn gone(&mut self, name: &ObjectKey) {
        self.0.remove(name);
    }

    /// After a list of all Jobs: what was not in it is gone.
    pub(crate) fn only_present(&mut self, present: &BTreeSet<ObjectKey>) {
        self.0.retain(|name, _| present.contains(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> ObjectKey {
        ObjectKey {
            namespace: "tasks".to_owned(),
            name: name.to_owned(),
        }
    }

    #[test]
    fn a_job_of_others_is_news_once_until_it_is_another_one() {
        let mut jobs = ForeignJobs::default();
        assert!(jobs.is_news(&named("a"), "1"));
        assert!(!jobs.is_news(&named("a"), "1"), "it has changed");
        assert!(jobs.is_news(&named("a"), "2"), "it was made again");
        assert!(jobs.is_news(&named("b"), "3"));
        jobs.only_present(&[named("b")].into());
        assert!(!jobs.is_news(&named("b"), "3"));
        assert!(jobs.is_news(&named("a"), "2"));
    }

    #[test]
    fn no_number_of_jobs_takes_more_memory_than_the_first_thousand() {
        let mut jobs = ForeignJobs::default();
        let news = (0..MOST + 5).filter(|number| jobs.is_news(&named(&number.to_string()), "u"));
        assert_eq!(news.count(), MOST);
        assert_eq!(jobs.0.len(), MOST);
        jobs.gone(&named("7"));
        assert!(jobs.is_news(&named("another"), "u"));
    }
}
