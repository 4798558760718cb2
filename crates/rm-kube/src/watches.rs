//! What is watched of a cluster: nodes, pods and the Jobs of this master's cluster.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::stream::{BoxStream, StreamExt as _};
use kube::api::DynamicObject;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::utils::{Backoff, ResetTimerBackoff};
use kube::runtime::watcher::{self, Event};
use serde_json::Value;

use crate::api::{Kind, KubeApi, chain, to_value};
use crate::books::ObjectKey;

/// Pauses between attempts to watch.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// After so long without an error, pauses are short again.
const FORGOTTEN_AFTER: Duration = Duration::from_mins(2);

/// The kinds of objects that are watched, and of which everything must be known.
pub(crate) const WATCHED: [Kind; 3] = [Kind::Node, Kind::Pod, Kind::Job];
/// Those that are watched as well, as far as the master may read them: events are shown to users, and tasks wait for what
/// namespaces and quotas demand instead of being refused.
const READ: [Kind; 3] = [Kind::Event, Kind::Namespace, Kind::Quota];

/// Something that a watch shows.
#[derive(Debug)]
pub(crate) enum WatchEvent {
    /// An object is as this.
    Applied(Kind, Value),
    /// An object is gone; as it was last.
    Gone(Kind, Value),
    /// All objects of a kind are listed: what is known of them is not complete until `Listed` comes.
    Listing(Kind),
    /// All objects of a kind have been listed: those of which no `Applied` came since the list began are gone.
    Listed(Kind, BTreeSet<ObjectKey>),
    /// A watch failed; it is tried again.
    Failed(Kind, String),
}

/// All watches as one stream. `watched` = the kinds of which everything must be known; `label` selects the Jobs.
pub(crate) fn watches(
    api: &KubeApi,
    watched: &[Kind],
    label: &str,
) -> BoxStream<'static, WatchEvent> {
    let streams = watched.iter().map(|&kind| {
        let all = watcher::Config::default();
        let config = if kind == Kind::Job {
            all.labels(label)
        } else {
            all
        };
        one(api, kind, config)
    });
    let read = READ.map(|kind| one(api, kind, watcher::Config::default()));
    futures::stream::select_all(streams.chain(read)).boxed()
}

/// The watch of one kind, in all namespaces.
pub(crate) fn one(
    api: &KubeApi,
    kind: Kind,
    config: watcher::Config,
) -> BoxStream<'static, WatchEvent> {
    let stream = watcher::watcher(api.all(kind), config).backoff(backoff());
    let mut listed = BTreeSet::new();
    stream
        .map(move |event| match event {
            Ok(Event::Init) => {
                listed.clear();
                WatchEvent::Listing(kind)
            }
            Ok(Event::InitApply(object)) => {
                listed.insert(named(&object));
                shown(kind, &object, WatchEvent::Applied)
            }
            Ok(Event::InitDone) => WatchEvent::Listed(kind, std::mem::take(&mut listed)),
            Ok(Event::Apply(object)) => shown(kind, &object, WatchEvent::Applied),
            Ok(Event::Delete(object)) => shown(kind, &object, WatchEvent::Gone),
            Err(error) => WatchEvent::Failed(kind, chain(&error)),
        })
        .boxed()
}

/// Pauses between attempts to watch: short enough that what has happened is known within seconds after the API is back.
fn backoff() -> impl Backoff {
    ResetTimerBackoff::new(Pauses(FIRST_PAUSE), FORGOTTEN_AFTER)
}

/// Pauses of which each is twice as long as the one before: the next one.
struct Pauses(Duration);

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let pause = self.0;
        self.0 = (pause * 2).min(LONGEST_PAUSE);
        Some(pause)
    }
}

impl Backoff for Pauses {
    fn reset(&mut self) {
        self.0 = FIRST_PAUSE;
    }
}

fn shown(kind: Kind, object: &DynamicObject, seen: fn(Kind, Value) -> WatchEvent) -> WatchEvent {
    match to_value(object) {
        Ok(value) => seen(kind, value),
        Err(error) => WatchEvent::Failed(kind, error.to_string()),
    }
}

/// What an object is called.
fn named(object: &DynamicObject) -> ObjectKey {
    ObjectKey {
        namespace: object.metadata.namespace.clone().unwrap_or_default(),
        name: object.metadata.name.clone().unwrap_or_default(),
    }
}
