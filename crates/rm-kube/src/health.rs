//! What is wrong with a cluster, for the core.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use det_ids::{AllocationId, ContainerId};
use det_rm::Health;
use tokio::sync::mpsc;

use crate::api::{Kind, KubeApi};
use crate::messages::Message;

/// Pauses between two attempts to watch what cannot be watched.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What is wrong with a cluster.
#[derive(Debug, Default)]
pub(crate) struct Troubles {
    /// Kinds of objects that cannot be watched now, with the reason.
    failing: BTreeMap<Kind, String>,
    /// Kinds of which it is being found out whether they can be watched.
    probing: BTreeSet<Kind>,
    /// Allocations whose objects cannot be created now, with the reason.
    creations: BTreeMap<AllocationId, String>,
    /// Containers about which requests fail, with the reason.
    requests: BTreeMap<ContainerId, String>,
    /// Why no node has a slot.
    pub(crate) no_slots: Option<String>,
    /// Why services of tasks cannot be reached.
    pub(crate) unexposed: Option<String>,
}

impl Troubles {
    /// A watch was broken off. That happens to each of them from time to time: only if it cannot be opened again, something
    /// is wrong. A watch does not report when it goes on, so that this is found out here too.
    pub(crate) fn watch_failed(&mut self, kind: Kind, api: &KubeApi, to: &mpsc::Sender<Message>) {
        if self.probing.insert(kind) {
            tokio::spawn(probe(kind, api.clone(), to.clone()));
        }
    }

    /// Whether objects of a kind can be watched; whether that is news.
    pub(crate) fn probed(&mut self, kind: Kind, outcome: Result<(), String>) -> bool {
        match outcome {
            Ok(()) => {
                self.probing.remove(&kind);
                self.failing.remove(&kind).is_some()
            }
            Err(reason) => self.failing.insert(kind, reason.clone()) != Some(reason),
        }
    }

    /// Objects of an allocation cannot be created now, or the creation has ended; whether that is news.
    pub(crate) fn creation(&mut self, allocation: &AllocationId, reason: Option<String>) -> bool {
        match reason {
            Some(reason) => {
                self.creations.insert(allocation.clone(), reason.clone()) != Some(reason)
            }
            None => self.creations.remove(allocation).is_some(),
        }
    }

    /// Requests about a container fail, or do not any more; whether that is news.
    pub(crate) fn request(&mut self, container: &ContainerId, reason: Option<String>) -> bool {
        match reason {
            Some(reason) => self.requests.insert(container.clone(), reason.clone()) != Some(reason),
            None => self.requests.remove(container).is_some(),
        }
    }

    /// All of it, for the core.
    pub(crate) fn health(&self) -> Health {
        if let Some((kind, reason)) = self.failing.first_key_value() {
            return Health::Down(format!(
                "{} of the Kubernetes cluster cannot be watched: {reason}",
                kind.word()
            ));
        }
        if let Some((allocation, reason)) = self.creations.first_key_value() {
            return Health::Degraded(format!(
                "objects of {} allocations cannot be created now, such as of \"{allocation}\": {reason}",
                self.creations.len()
            ));
        }
        if let Some((container, reason)) = self.requests.first_key_value() {
            return Health::Degraded(format!(
                "requests about {} containers fail, such as about \"{container}\": {reason}",
                self.requests.len()
            ));
        }
        match self.no_slots.as_ref().or(self.unexposed.as_ref()) {
            Some(reason) => Health::Degraded(reason.clone()),
            None => Health::Up,
        }
    }
}

/// Finds out whether objects of a kind can be watched, until they can.
async fn probe(kind: Kind, api: KubeApi, sender: mpsc::Sender<Message>) {
    let mut pause = FIRST_PAUSE;
    loop {
        let outcome = api.probe(kind).await.map_err(|error| error.to_string());
        let is_last = outcome.is_ok();
        let is_over = sender.send(Message::Probed(kind, outcome)).await.is_err();
        if is_last || is_over {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
