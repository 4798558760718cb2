//! Waiting for changes of rows.
//!
//! A waiter subscribes, reads the rows, and if they do not yet contain what it waits for, sleeps until it is notified that
//! they changed. The hub carries no data: the rows are the truth.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use det_ids::{AllocationId, PlaceId, TaskId, TrialId};
use det_rm::Changes;
use tokio::sync::watch;

/// What a change can be about; each can be waited for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Topic {
    /// Anything that scheduling depends on.
    Schedule,
    /// What a place should run.
    Place(PlaceId),
    /// An allocation: preemption, readiness, members.
    Allocation(AllocationId),
    /// The log of a task, or its end.
    TaskLog(TaskId),
    /// The tasks of a trial.
    Trial(TrialId),
    /// System metrics of a trial.
    SystemMetrics(TrialId),
    /// The record of events: a new one was added.
    Events,
    /// Moments at which something is due.
    Deadlines,
    /// Work left behind by ended experiments.
    CleanUp,
    /// Experiments with trials that one change has left to others.
    Backlog,
    /// When old logs are deleted.
    LogSweep,
    /// The Kubernetes namespaces that workspaces are bound to.
    Namespaces,
    /// What waits for clusters to grow.
    Growth,
    /// The master's own log: a new line was added.
    MasterLog,
}

/// A subscription: wakes once for any number of changes since it last woke.
pub struct Subscription {
    receiver: watch::Receiver<()>,
    _channel: Arc<watch::Sender<()>>,
}

impl Subscription {
    /// Waits for the next change; returns at once if there was one since the last call (or since subscribing).
    pub async fn changed(&mut self) {
        // The sender lives in this subscription, so this cannot fail.
        let _ = self.receiver.changed().await;
    }
}

/// The hub. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Hub {
    channels: Arc<Mutex<HashMap<Topic, Weak<watch::Sender<()>>>>>,
}

impl Hub {
    /// Subscribes to a topic. Read the rows after this, not before.
    pub fn subscribe(&self, topic: Topic) -> Subscription {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if channels.len() > 1024 && channels.len().is_power_of_two() {
            channels.retain(|_, channel| channel.strong_count() > 0);
        }
        let existing = channels.get(&topic).and_then(Weak::upgrade);
        let channel = existing.unwrap_or_else(|| {
            let channel = Arc::new(watch::Sender::new(()));
            channels.insert(topic, Arc::downgrade(&channel));
            channel
        });
        Subscription {
            receiver: channel.subscribe(),
            _channel: channel,
        }
    }

    /// Wakes all waiters of the topic.
    pub fn notify(&self, topic: &Topic) {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        match channels.get(topic).map(Weak::upgrade) {
            Some(Some(channel)) => {
                channel.send_replace(());
            }
            Some(None) => {
                channels.remove(topic);
            }
            None => {}
        }
    }
}

impl Changes for Subscription {
    async fn changed(&mut self) {
        Self::changed(self).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_change_between_subscribing_and_waiting_is_not_missed() {
        let hub = Hub::default();
        let mut waiter = hub.subscribe(Topic::Trial(TrialId(1)));
        hub.notify(&Topic::Trial(TrialId(1)));
        hub.notify(&Topic::Trial(TrialId(2)));
        waiter.changed().await;
        hub.notify(&Topic::Trial(TrialId(1)));
        waiter.changed().await;
    }

    #[test]
    fn topics_without_waiters_are_forgotten() {
        let hub = Hub::default();
        drop(hub.subscribe(Topic::Trial(TrialId(1))));
        hub.notify(&Topic::Trial(TrialId(1)));
        assert!(hub.channels.lock().unwrap().is_empty());
    }
}
