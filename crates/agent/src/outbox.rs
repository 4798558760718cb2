//! What the agent has to tell the master.
//!
//! The outbox holds the latest report of every container, for the `Hello` of the next connection, and a queue of
//! messages for the present one. Without a connection only log lines wait in the queue, a bounded number of them:
//! reports are in the next `Hello` anyway.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use det_agent_proto::{AgentLog, ContainerReport, ToMaster};
use det_ids::ContainerId;
use tokio::sync::Notify;

/// Log messages kept while the master is away; the oldest go first.
const WAITING_LOGS: usize = 1000;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    inner: Mutex<Inner>,
    /// Something is in the queue.
    filled: Notify,
    /// Reports or queue changed.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    reports: BTreeMap<ContainerId, ContainerReport>,
    queue: VecDeque<ToMaster>,
    connected: bool,
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change below is complete before the guard goes, so a poisoned lock holds nothing half done.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a container's state and sends it.
    pub(crate) fn report(&self, report: ContainerReport) {
        let mut inner = self.lock();
        inner
            .reports
            .insert(report.container_id.clone(), report.clone());
        if inner.connected {
            inner.queue.push_back(ToMaster::Container(report));
        }
        drop(inner);
        self.filled.notify_one();
        self.changed.notify_waiters();
    }

    /// Sends the latest report of a container again, if it is known.
    pub(crate) fn repeat(&self, container_id: &ContainerId) {
        let mut inner = self.lock();
        if let Some(report) = inner.reports.get(container_id).cloned()
            && inner.connected
        {
            inner.queue.push_back(ToMaster::Container(report));
        }
        drop(inner);
        self.filled.notify_one();
    }

    /// Drops a container that is no more.
    pub(crate) fn forget(&self, container_id: &ContainerId) {
        let mut inner = self.lock();
        inner.reports.remove(container_id);
        inner.queue.retain(
            |message| !matches!(message, ToMaster::Container(report) if report.container_id == *container_id),
        );
        drop(inner);
        self.changed.notify_waiters();
    }

    /// Sends lines for a task's log, or keeps them until there is a master again.
    pub(crate) fn log(&self, log: AgentLog) {
        let mut inner = self.lock();
        if !inner.connected && inner.queue.len() >= WAITING_LOGS {
            inner.queue.pop_front();
        }
        inner.queue.push_back(ToMaster::Log(log));
        drop(inner);
        self.filled.notify_one();
    }

    /// Starts a connection: everything reported from now on is queued for it, and everything until now is returned.
    pub(crate) fn connect(&self) -> Vec<ContainerReport> {
        let mut inner = self.lock();
        inner.connected = true;
        inner
            .queue
            .retain(|message| matches!(message, ToMaster::Log(_)));
        inner.reports.values().cloned().collect()
    }

    /// Ends a connection.
    pub(crate) fn disconnect(&self) {
        let mut inner = self.lock();
        inner.connected = false;
        inner
            .queue
            .retain(|message| matches!(message, ToMaster::Log(_)));
        drop(inner);
        self.changed.notify_waiters();
    }

    /// The next message for the master. Losing this future loses nothing.
    pub(crate) async fn next(&self) -> ToMaster {
        loop {
            let taken = self.lock().queue.pop_front();
            if let Some(message) = taken {
                self.changed.notify_waiters();
                return message;
            }
            self.filled.notified().await;
        }
    }

    /// Ends when nothing is left to tell: the master knows of every end, and what it told the agent to forget is
    /// removed. Ends as well when there is no connection to report on.
    pub(crate) async fn settled(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let inner = self.lock();
                if !inner.connected || (inner.reports.is_empty() && inner.queue.is_empty()) {
                    return;
                }
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use det_agent_proto::ContainerState;
    use det_ids::AllocationId;
    use det_taskspec::ContainerExit;

    use super::*;

    fn report(id: &str, state: ContainerState) -> ContainerReport {
        ContainerReport {
            container_id: id.into(),
            allocation_id: AllocationId::from("t.1"),
            state,
        }
    }

    fn line(text: &str) -> AgentLog {
        AgentLog {
            allocation_id: "t.1".into(),
            container_id: None,
            lines: vec![(0, "LOG_LEVEL_INFO".into(), text.into())],
        }
    }

    #[tokio::test]
    async fn what_happened_while_away_is_in_the_next_hello_and_not_sent_twice() {
        let outbox = Outbox::default();
        outbox.report(report("a", ContainerState::Assigned));
        outbox.report(report("a", ContainerState::Starting));
        outbox.log(line("pulled"));
        let hello = outbox.connect();
        assert_eq!(hello, [report("a", ContainerState::Starting)]);
        assert_eq!(outbox.next().await, ToMaster::Log(line("pulled")));
        outbox.report(report("a", ContainerState::Pulling));
        assert_eq!(
            outbox.next().await,
            ToMaster::Container(report("a", ContainerState::Pulling))
        );
    }

    #[tokio::test]
    async fn a_forgotten_container_is_in_no_hello() {
        let outbox = Outbox::default();
        outbox.report(report("a", ContainerState::Assigned));
        outbox.forget(&"a".into());
        assert!(outbox.connect().is_empty());
    }

    #[tokio::test]
    async fn lines_wait_in_a_bounded_queue() {
        let outbox = Outbox::default();
        for n in 0..WAITING_LOGS + 5 {
            outbox.log(line(&n.to_string()));
        }
        outbox.connect();
        assert_eq!(outbox.next().await, ToMaster::Log(line("5")));
    }

    #[tokio::test]
    async fn it_is_settled_when_all_that_ended_is_forgotten() {
        let outbox = Outbox::default();
        outbox.connect();
        outbox.report(report(
            "a",
            ContainerState::Terminated {
                exit: ContainerExit::Killed,
            },
        ));
        let settled = outbox.settled();
        tokio::pin!(settled);
        assert!(futures::poll!(settled.as_mut()).is_pending());
        outbox.next().await;
        assert!(futures::poll!(settled.as_mut()).is_pending());
        outbox.forget(&"a".into());
        settled.await;
    }
}
