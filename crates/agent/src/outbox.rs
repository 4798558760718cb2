//! The messages that the agent has to send to the master.
//!
//! The outbox contains the latest report of every container, for the `Hello` of the next connection, and a queue of
//! messages for the current one. Without a connection only log lines wait in the queue, a bounded number of them:
//! reports are in the next `Hello` anyway.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use det_agent_proto::{
    AgentLog, ContainerReport, ContainerState, DeviceReport, DevicesReport, HostReport, ToMaster,
};
use det_ids::ContainerId;
use tokio::sync::Notify;

/// The most log messages kept without a connection; the oldest are dropped first.
const WAITING_LOGS: usize = 1000;

/// Reports and queued messages; see the module.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    inner: Mutex<Inner>,
    /// Notified when a message was added to the queue.
    filled: Notify,
    /// Notified when the reports or the queue changed.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    reports: BTreeMap<ContainerId, ContainerReport>,
    queue: VecDeque<ToMaster>,
    /// The newest report of the devices: each connection begins with it.
    devices: Option<DevicesReport>,
    /// Whether the host can start containers, once that is known: each connection begins with it, too.
    host: Option<HostReport>,
    connected: bool,
}

impl Inner {
    /// Queues a message in place of those of its kind; without a connection the next one begins with it.
    fn queue_newest(&mut self, message: ToMaster) {
        if self.connected {
            let kind = std::mem::discriminant(&message);
            self.queue
                .retain(|queued| std::mem::discriminant(queued) != kind);
            self.queue.push_back(message);
        }
    }
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change is complete before the guard is dropped, so a poisoned lock contains no incomplete change.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a container's state and queues it for sending.
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

    /// The state of a container that was reported last; `None` = it is not known.
    pub(crate) fn latest(&self, container_id: &ContainerId) -> Option<ContainerState> {
        let inner = self.lock();
        inner
            .reports
            .get(container_id)
            .map(|report| report.state.clone())
    }

    /// The latest report of every container, by id.
    pub(crate) fn reports(&self) -> Vec<ContainerReport> {
        self.lock().reports.values().cloned().collect()
    }

    /// Whether there is a connection to the master.
    pub(crate) fn is_connected(&self) -> bool {
        self.lock().connected
    }

    /// Removes the report of a container that was removed.
    pub(crate) fn remove(&self, container_id: &ContainerId) {
        let mut inner = self.lock();
        inner.reports.remove(container_id);
        inner.queue.retain(
            |message| !matches!(message, ToMaster::Container(report) if report.container_id == *container_id),
        );
        drop(inner);
        self.changed.notify_waiters();
    }

    /// Queues lines for a task's log; without a connection they wait for the next one.
    pub(crate) fn log(&self, log: AgentLog) {
        let mut inner = self.lock();
        if !inner.connected && inner.queue.len() >= WAITING_LOGS {
            inner.queue.pop_front();
        }
        inner.queue.push_back(ToMaster::Log(log));
        drop(inner);
        self.filled.notify_one();
    }

    /// Records what the devices are like now, and queues it for sending in place of what they were like before.
    pub(crate) fn devices(&self, devices: Vec<DeviceReport>) {
        let report = DevicesReport { devices };
        let mut inner = self.lock();
        inner.devices = Some(report.clone());
        inner.queue_newest(ToMaster::Devices(report));
        drop(inner);
        self.filled.notify_one();
    }

    /// Records what keeps the host from starting containers, or that nothing does, and queues it in the same way.
    pub(crate) fn host(&self, fault: Option<String>) {
        let report = HostReport { fault };
        let mut inner = self.lock();
        inner.host = Some(report.clone());
        inner.queue_newest(ToMaster::Host(report));
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
        let devices = inner.devices.clone().map(ToMaster::Devices);
        let host = inner.host.clone().map(ToMaster::Host);
        inner.queue.extend(host.into_iter().chain(devices));
        inner.reports.values().cloned().collect()
    }

    /// Notes that the connection has ended: only log messages stay queued, since the next connection begins with all
    /// reports.
    pub(crate) fn disconnect(&self) {
        let mut inner = self.lock();
        inner.connected = false;
        inner
            .queue
            .retain(|message| matches!(message, ToMaster::Log(_)));
        drop(inner);
        self.changed.notify_waiters();
    }

    /// The next message for the master. Dropping this future loses no message.
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

    /// Waits until nothing is left to report: the master has acknowledged every end, and those containers are
    /// removed.
    /// Returns also if there is no connection.
    pub(crate) async fn wait_until_reported(&self) {
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
            lines: vec![(0, det_ids::LogLevel::Info, text.into())],
        }
    }

    #[tokio::test]
    async fn each_connection_begins_with_what_host_and_devices_are_like_now() {
        let device = |used| DeviceReport {
            slot: det_ids::SlotId(0),
            used_percent: Some(used),
            memory_used_bytes: None,
            memory_bytes: None,
            celsius: None,
            fault: None,
        };
        let of = |used| {
            let devices = vec![device(used)];
            ToMaster::Devices(DevicesReport { devices })
        };
        let outbox = Outbox::default();
        outbox.devices(vec![device(1)]);
        outbox.devices(vec![device(2)]);
        outbox.connect();
        assert_eq!(outbox.next().await, of(2));
        outbox.devices(vec![device(3)]);
        outbox.devices(vec![device(4)]);
        outbox.log(line("after it"));
        assert_eq!(outbox.next().await, of(4));
        let full = || {
            ToMaster::Host(HostReport {
                fault: Some("full".to_owned()),
            })
        };
        outbox.host(None);
        outbox.host(Some("full".to_owned()));
        outbox.disconnect();
        outbox.connect();
        assert_eq!(outbox.next().await, ToMaster::Log(line("after it")));
        assert_eq!(outbox.next().await, full());
        assert_eq!(outbox.next().await, of(4));
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
    async fn a_removed_container_is_in_no_hello() {
        let outbox = Outbox::default();
        outbox.report(report("a", ContainerState::Assigned));
        outbox.remove(&"a".into());
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
    async fn everything_is_reported_when_all_ended_containers_are_removed() {
        let outbox = Outbox::default();
        outbox.connect();
        outbox.report(report(
            "a",
            ContainerState::Terminated {
                exit: ContainerExit::Killed,
                cause: None,
            },
        ));
        let wait_until_reported = outbox.wait_until_reported();
        tokio::pin!(wait_until_reported);
        assert!(futures::poll!(wait_until_reported.as_mut()).is_pending());
        outbox.next().await;
        assert!(futures::poll!(wait_until_reported.as_mut()).is_pending());
        outbox.remove(&"a".into());
        wait_until_reported.await;
    }
}
