//! What the server, its watches and the test share.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::access::Rule;
use crate::cluster::Cluster;
use crate::controllers;

/// A request as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedRequest {
    /// The HTTP method in capitals.
    pub method: String,
    /// The path without the query.
    pub path: String,
    /// The query as it was sent; empty if there was none.
    pub query: String,
    /// The header `User-Agent`; empty if there was none.
    pub user_agent: String,
}

/// A failure that is waiting for its requests.
#[derive(Debug)]
pub(crate) struct PlannedFailure {
    /// The HTTP method, or `WATCH`.
    pub(crate) method: String,
    pub(crate) plural: String,
    pub(crate) code: u16,
    /// Requests that will still fail.
    pub(crate) left: usize,
}

/// What a test has asked for, and what it can ask about.
#[derive(Debug, Default)]
pub(crate) struct Control {
    pub(crate) planned: Vec<PlannedFailure>,
    pub(crate) forbidden: Vec<Rule>,
    pub(crate) requests: Vec<RecordedRequest>,
    /// Kinds, by their plural, whose watches show nothing for now.
    pub(crate) late: BTreeSet<String>,
    /// Kinds, by their plural, whose watches show everything twice.
    pub(crate) doubled: BTreeSet<String>,
    /// Custom resources that discovery shows: group, version and plural.
    pub(crate) custom: Vec<[String; 3]>,
    /// What listens on ports of pods, by namespace, pod and port.
    pub(crate) listeners: BTreeMap<(String, String, u16), SocketAddr>,
}

/// The one state of a double.
#[derive(Debug)]
pub(crate) struct DoubleState {
    cluster: Mutex<Cluster>,
    control: Mutex<Control>,
    /// Counts changes and requests: whatever waits looks again.
    pub(crate) activity: watch::Sender<u64>,
    /// Counts how often all watches were dropped.
    pub(crate) drops: watch::Sender<u64>,
    /// Counts how often all watches were given a bookmark.
    pub(crate) bookmarks: watch::Sender<u64>,
    /// Whether connections are closed as they come.
    pub(crate) unreachable: watch::Sender<bool>,
    /// Counts how often all connections were closed.
    pub(crate) cuts: watch::Sender<u64>,
    /// Whether answers to writes are held.
    pub(crate) delayed: watch::Sender<bool>,
}

impl DoubleState {
    pub(crate) fn new(cluster: Cluster) -> Self {
        Self {
            cluster: Mutex::new(cluster),
            control: Mutex::default(),
            activity: watch::Sender::new(0),
            drops: watch::Sender::new(0),
            bookmarks: watch::Sender::new(0),
            unreachable: watch::Sender::new(false),
            cuts: watch::Sender::new(0),
            delayed: watch::Sender::new(false),
        }
    }

    /// The objects, to read them.
    pub(crate) fn cluster(&self) -> MutexGuard<'_, Cluster> {
        // A test that failed while it had the lock has left nothing half done.
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes objects, has the controllers act on it, and wakes what waits.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Cluster) -> T) -> T {
        let mut cluster = self.cluster();
        let outcome = change(&mut cluster);
        controllers::run(&mut cluster);
        drop(cluster);
        self.wake();
        outcome
    }

    /// Has whatever waits look again.
    pub(crate) fn wake(&self) {
        self.activity.send_modify(|count| *count += 1);
    }
}
