//! Watches: streams of events, one JSON object a line.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use futures::stream;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::cluster::Change;
use crate::failure::Failure;
use crate::selectors::Filter;
use crate::shared::DoubleState;
use crate::target::Target;
use crate::values::set;

/// Versions that may pass without an event before a watch gets a bookmark.
const BOOKMARK_AFTER: u64 = 100;

/// What a request for a watch names.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) target: Target,
    pub(crate) filter: Filter,
    /// The version to start after; `None` for all objects as they are, followed by changes.
    pub(crate) version: Option<u64>,
    pub(crate) bookmarks: bool,
    /// Whether the objects as they are come first, and a marked bookmark after them.
    pub(crate) initial: bool,
    /// How long the watch lasts; `None` for ever.
    pub(crate) timeout: Option<Duration>,
}

/// A watch that a client reads.
struct Watch {
    shared: Arc<DoubleState>,
    options: Options,
    /// The version up to which the client knows everything.
    known: u64,
    /// The version of the last line that was written.
    shown: u64,
    lines: VecDeque<Vec<u8>>,
    has_ended: bool,
    deadline: Option<Instant>,
    activity: watch::Receiver<u64>,
    drops: watch::Receiver<u64>,
    bookmarks: watch::Receiver<u64>,
}

/// Starts a watch; errs if its version has not been reached.
pub(crate) fn open(shared: &Arc<DoubleState>, options: Options) -> Result<Body, Failure> {
    let cluster = shared.cluster();
    let newest = cluster.version();
    let oldest = cluster.oldest();
    let mut watch = Watch {
        shared: Arc::clone(shared),
        known: options.version.unwrap_or(newest),
        shown: options.version.unwrap_or(newest),
        lines: VecDeque::new(),
        has_ended: false,
        deadline: options
            .timeout
            .and_then(|timeout| Instant::now().checked_add(timeout)),
        activity: shared.activity.subscribe(),
        drops: shared.drops.subscribe(),
        bookmarks: shared.bookmarks.subscribe(),
        options,
    };
    if watch.known > newest {
        return Err(Failure::too_large_version(watch.known, newest));
    }
    if watch.options.initial || watch.options.version.is_none() {
        watch.known = newest;
        watch.shown = newest;
        let objects = cluster.list(&watch.options.target.resource);
        let selected = objects.filter(|(_, object)| watch.options.filter.matches(object));
        let added: Vec<_> = selected
            .map(|(_, object)| event("ADDED", &watch.options.target, Value::clone(object)))
            .collect();
        watch.lines.extend(added);
        if watch.options.initial {
            let annotations = json!({"k8s.io/initial-events-end": "true"});
            watch.bookmark(Some(annotations));
        }
    } else if watch.known < oldest {
        let failure = Failure::expired(watch.known, oldest);
        watch.fail(&failure);
    }
    drop(cluster);
    Ok(Body::from_stream(stream::unfold(watch, Watch::next)))
}

fn event(kind: &str, target: &Target, mut object: Value) -> Vec<u8> {
    set(&mut object, &["apiVersion"], target.api_version());
    line(kind, &object)
}

fn line(kind: &str, object: &Value) -> Vec<u8> {
    let mut line = json!({"type": kind, "object": object})
        .to_string()
        .into_bytes();
    line.push(b'\n');
    line
}

impl Watch {
    async fn next(mut self) -> Option<(io::Result<Vec<u8>>, Self)> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Some((Ok(line), self));
            }
            if self.has_ended {
                return None;
            }
            self.activity.borrow_and_update();
            self.read();
            if self.has_ended || !self.lines.is_empty() {
                continue;
            }
            let deadline = self.deadline;
            let timeout = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                _ = self.drops.changed() => {
                    self.has_ended = true;
                    let error = io::Error::new(io::ErrorKind::ConnectionAborted, "the test drops all watches");
                    return Some((Err(error), self));
                }
                () = timeout => {
                    self.has_ended = true;
                    self.bookmark_if_wanted();
                }
                _ = self.bookmarks.changed() => self.bookmark_if_wanted(),
                changed = self.activity.changed() => self.has_ended = changed.is_err(),
            }
        }
    }

    /// Reads what has changed since.
    fn read(&mut self) {
        let shared = Arc::clone(&self.shared);
        let plural = &self.options.target.resource.plural;
        let control = shared.control();
        if control.late.contains(plural) {
            return;
        }
        let times = if control.doubled.contains(plural) {
            2
        } else {
            1
        };
        drop(control);
        let cluster = shared.cluster();
        let Some(changes) = cluster.changes_after(&self.options.target.resource, self.known) else {
            let failure = Failure::expired(self.known, cluster.oldest());
            self.fail(&failure);
            return;
        };
        for change in changes {
            if let Some(line) = self.line_of(change) {
                self.lines.extend(std::iter::repeat_n(line, times));
                self.shown = change.version;
            }
        }
        self.known = cluster.version();
        if self.known.saturating_sub(self.shown) >= BOOKMARK_AFTER {
            self.bookmark_if_wanted();
        }
    }

    /// The line of a change: an object that leaves the selection is deleted for this watch.
    fn line_of(&self, change: &Change) -> Option<Vec<u8>> {
        let target = &self.options.target;
        let selected = |object: &Option<Arc<Value>>| {
            let object = object.as_ref()?;
            self.options
                .filter
                .matches(object)
                .then(|| Value::clone(object))
        };
        match (selected(&change.old), selected(&change.new)) {
            (None, None) => None,
            (None, Some(new)) => Some(event("ADDED", target, new)),
            (Some(_), Some(new)) => Some(event("MODIFIED", target, new)),
            (Some(mut old), None) => {
                let version = change.version.to_string();
                set(&mut old, &["metadata", "resourceVersion"], version);
                Some(event("DELETED", target, old))
            }
        }
    }

    fn bookmark_if_wanted(&mut self) {
        if self.options.bookmarks {
            self.bookmark(None);
        }
    }

    fn bookmark(&mut self, annotations: Option<Value>) {
        let mut metadata = json!({"resourceVersion": self.known.to_string()});
        if let Some(annotations) = annotations {
            set(&mut metadata, &["annotations"], annotations);
        }
        let target = &self.options.target;
        let object = json!({"kind": target.kind(), "metadata": metadata});
        self.lines.push_back(event("BOOKMARK", target, object));
        self.shown = self.known;
    }

    /// Ends the watch with an error.
    fn fail(&mut self, failure: &Failure) {
        self.lines.push_back(line("ERROR", &failure.status()));
        self.has_ended = true;
    }
}
