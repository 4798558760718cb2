//! Keeps the namespaces of a cluster as rows want them: makes those of workspaces, with their quotas, deletes those whose
//! workspaces are gone, and reports how many slots quotas leave to workspaces, those of others included.
//!
//! It compares what rows want with what is watched, whenever one of them changes. It watches quotas only while a workspace is
//! bound, and namespaces only while it makes or deletes some, so that other masters need no rights for that.
//!
//! What fails in one namespace is tried again by itself, and holds up nothing elsewhere: users may have put something there
//! that stays in the way.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use det_ids::{AllocationId, ClusterId, WorkspaceId};
use det_pods::{
    SlotResource, is_made, is_terminating, namespace_object, quota_name, quota_object, quota_slots,
};
use det_rm::{BoundNamespace, Changes as _, LiveAttempt, NamespaceCore, Namespaces};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::api::{ApiError, Kind, KubeApi};
use crate::books::ObjectKey;
use crate::creating::{name, uid};
use crate::desk::{Desk, DeskRequest};
use crate::limits::Bindings;
use crate::observing::named;
use crate::watches::{WatchEvent, one};

/// Pauses before what failed is tried again.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Requests to carry out that wait at most; others wait to be taken.
const WAITING: usize = 16;

/// Keeps the namespaces of one cluster.
pub(crate) struct Keeper<C: NamespaceCore> {
    core: C,
    manager: String,
    cluster_id: ClusterId,
    slots: SlotResource,
    api: KubeApi,
    changes: C::Changes,
    requests: mpsc::Receiver<DeskRequest>,
    wanted: Namespaces,
    bindings: watch::Sender<Bindings>,
    known: KnownObjects,
    /// Those that wait for the next pass over all.
    waiting: Vec<DeskRequest>,
    /// The limits that were last reported.
    reported: BTreeMap<WorkspaceId, u32>,
    /// Of what concerns all namespaces: reading rows, and watching.
    pause: Duration,
    retry_at: Option<Instant>,
    /// Those that are not as rows want them, by name.
    failing: BTreeMap<String, NamespaceFailure>,
}

/// Something in one namespace has failed.
struct NamespaceFailure {
    reason: String,
    pause: Duration,
    retry_at: Instant,
}

/// When what has failed is tried again, if nothing else is wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Retry {
    Now,
    WhenDue,
}

/// What is watched of the cluster, without what nothing is decided by: objects of others may be large and many.
#[derive(Default)]
struct KnownObjects {
    /// Uids of namespaces of ours that exist and stay, by name.
    namespaces: BTreeMap<String, String>,
    /// Quotas of ours, those that limit slots, and those that have the name of one of ours.
    quotas: BTreeMap<ObjectKey, Quota>,
    /// Kinds of which everything is known.
    listed: BTreeSet<Kind>,
    /// Why a watch was last broken off, until it is back.
    broken: BTreeMap<Kind, String>,
}

/// A quota of a namespace, of ours or of others.
struct Quota {
    /// `None` = it is of another owner.
    own: Option<OwnQuota>,
    /// The slots that it leaves; `None` = it does not limit them.
    slots: Option<u32>,
}

/// A quota that was made by this master.
#[derive(Clone)]
struct OwnQuota {
    uid: String,
    /// What it limits, as it is now.
    hard: Value,
}

impl<C: NamespaceCore> Keeper<C> {
    /// The keeper of a cluster, with what the master reaches it by. `default` = the namespace of pools that have none.
    pub(crate) fn new(
        core: C,
        (manager, default): (&str, &str),
        (cluster_id, slots): (&ClusterId, &SlotResource),
        api: &KubeApi,
    ) -> (Self, Desk) {
        let (carry_out, requests) = mpsc::channel(WAITING);
        let keeper = Self {
            changes: core.namespace_changes(),
            core,
            manager: manager.to_owned(),
            cluster_id: cluster_id.clone(),
            slots: slots.clone(),
            api: api.clone(),
            requests,
            wanted: Namespaces::default(),
            bindings: watch::Sender::default(),
            known: KnownObjects::default(),
            waiting: Vec::new(),
            reported: BTreeMap::new(),
            pause: FIRST_PAUSE,
            retry_at: None,
            failing: BTreeMap::new(),
        };
        let desk = Desk {
            api: api.clone(),
            cluster_id: cluster_id.clone(),
            slots: slots.clone(),
            default: default.to_owned(),
            carry_out,
            goes_by_classes: false,
        };
        (keeper, desk)
    }

    /// The namespaces that workspaces are bound to, as they were last read.
    pub(crate) fn bindings(&self) -> watch::Receiver<Bindings> {
        self.bindings.subscribe()
    }

    /// Reads what rows want, and returns the attempts that have not ended.
    pub(crate) async fn read(&mut self) -> Result<BTreeMap<AllocationId, LiveAttempt>, C::Error> {
        self.wanted = self.core.namespaces(&self.manager).await?;
        let bound = self.wanted.bound.iter().flat_map(|(namespace, bound)| {
            let workspaces = bound.workspaces.iter();
            workspaces.map(|workspace| (*workspace, namespace.clone()))
        });
        let bound: Bindings = bound.collect();
        self.bindings.send_if_modified(|known| {
            let is_news = *known != bound;
            *known = bound;
            is_news
        });
        // They come and go all the time, and nothing is done with namespaces because of it.
        Ok(std::mem::take(&mut self.wanted.in_use))
    }

    /// Keeps them until the master stops.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let mut watched = CurrentWatch::default();
        loop {
            self.watch(&mut watched);
            self.pass().await;
            let retry_at = self.next_retry();
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.changes.changed() => self.read_anew(Retry::WhenDue).await,
                Some(request) = self.requests.recv() => {
                    self.waiting.push(request);
                    self.read_anew(Retry::Now).await;
                }
                Some(seen) = watched.next() => self.see(seen),
                () = sleep_until(retry_at.unwrap_or_else(Instant::now)), if retry_at.is_some() => {
                    self.retry_at = None;
                    self.read_anew(Retry::WhenDue).await;
                }
            }
        }
    }

    fn next_retry(&self) -> Option<Instant> {
        let of_namespaces = self.failing.values().map(|failing| failing.retry_at);
        self.retry_at.or_else(|| of_namespaces.min())
    }

    /// The kinds of objects that must be known.
    fn needed(&self) -> BTreeSet<Kind> {
        let mut bound = self.wanted.bound.values();
        let makes = bound.any(|bound| bound.made_for.is_some());
        let mut kinds = BTreeSet::new();
        if !self.wanted.bound.is_empty() {
            kinds.insert(Kind::Quota);
        }
        if makes || !self.wanted.removed.is_empty() {
            kinds.insert(Kind::Namespace);
        }
        kinds
    }

    fn watch(&mut self, watched: &mut CurrentWatch) {
        let kinds = self.needed();
        if kinds == watched.kinds {
            return;
        }
        // What is known stays until it is listed again: no limit is lifted meanwhile.
        self.known.listed.clear();
        self.known.broken.clear();
        let label = format!(
            "{}={}",
            det_pods::CLUSTER_LABEL,
            det_pods::label_value(self.cluster_id.as_str())
        );
        let streams = kinds.iter().map(|kind| {
            let all = kube::runtime::watcher::Config::default();
            let config = if *kind == Kind::Namespace {
                all.labels(&label)
            } else {
                all
            };
            one(&self.api, *kind, config)
        });
        watched.seen = futures::stream::select_all(streams).boxed();
        watched.kinds = kinds;
    }

    /// What rows want may have changed: it is read, and if it has, it is done at once.
    async fn read_anew(&mut self, retry: Retry) {
        let before = self.wanted.clone();
        match self.read().await {
            Ok(_) => {
                if retry == Retry::Now || self.wanted != before {
                    self.retry_at = None;
                    self.pause = FIRST_PAUSE;
                }
                let (wanted, waiting) = (&self.wanted, &self.waiting);
                self.failing.retain(|namespace, _| {
                    wanted_of(wanted, namespace) == wanted_of(&before, namespace)
                        && !waiting
                            .iter()
                            .any(|request| request.namespace == *namespace)
                });
            }
            Err(error) => self.failed(&format!(
                "what is wanted of namespaces could not be read: {error}"
            )),
        }
    }

    fn failed(&mut self, reason: &str) {
        tracing::warn!(
            resource_manager = self.manager,
            reason,
            "namespaces of a Kubernetes cluster are not as workspaces want them; it is tried again"
        );
        self.retry_at = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        for request in std::mem::take(&mut self.waiting) {
            // The caller may have given up.
            drop(request.answer.send(Err(reason.to_owned())));
        }
    }

    /// Something in one namespace has failed, or nothing has.
    fn note(&mut self, namespace: &str, outcome: Result<(), String>) {
        let Err(reason) = outcome else {
            self.failing.remove(namespace);
            return;
        };
        let before = self.failing.get(namespace).map(|failing| failing.pause);
        let pause = before.map_or(FIRST_PAUSE, |pause| (pause * 2).min(LONGEST_PAUSE));
        tracing::warn!(
            resource_manager = self.manager,
            namespace,
            reason,
            "a namespace of a Kubernetes cluster is not as its workspace wants it; it is tried again"
        );
        let retry_at = Instant::now() + pause;
        let failing = NamespaceFailure {
            reason,
            pause,
            retry_at,
        };
        self.failing.insert(namespace.to_owned(), failing);
    }

    fn see(&mut self, seen: WatchEvent) {
        match seen {
            // Anyone who may label namespaces can give them our label.
            WatchEvent::Applied(Kind::Namespace, object) if !is_made(&object, &self.cluster_id) => {
                self.known.drop(Kind::Namespace, &object);
            }
            WatchEvent::Applied(kind, object) => self.put(kind, &object),
            WatchEvent::Gone(kind, object) => self.known.drop(kind, &object),
            WatchEvent::Listing(kind) => {
                self.known.listed.remove(&kind);
            }
            WatchEvent::Listed(kind, present) => {
                self.known.broken.remove(&kind);
                self.known.only_present(kind, &present);
                self.known.listed.insert(kind);
            }
            WatchEvent::Failed(kind, reason) => {
                let what = format!("{} cannot be watched: {reason}", kind.word());
                if self.known.broken.insert(kind, what.clone()).is_none() {
                    self.failed(&what);
                }
            }
        }
    }

    /// Does what is missing, unless something has just failed or is not known yet, and reports what quotas leave.
    async fn pass(&mut self) {
        if self.retry_at.is_some() {
            return;
        }
        if !self.needed().is_subset(&self.known.listed) {
            if let Some(reason) = self.known.broken.values().next().cloned() {
                self.failed(&reason);
            }
            return self.report();
        }
        self.carry_out().await;
        self.report();
        self.pause = FIRST_PAUSE;
        for request in std::mem::take(&mut self.waiting) {
            let failing = self.failing.get(&request.namespace);
            let outcome = failing.map_or(Ok(()), |failing| Err(failing.reason.clone()));
            drop(request.answer.send(outcome));
        }
    }

    /// Does everything that can be done, but what has failed and is not due yet.
    async fn carry_out(&mut self) {
        let bound: Vec<(String, BoundNamespace)> = self.wanted.bound.clone().into_iter().collect();
        for (namespace, bound) in bound {
            let Some(workspace) = bound.made_for else {
                continue;
            };
            if self.is_due(&namespace) {
                let made = self.make(&namespace, workspace, bound.quota).await;
                self.note(&namespace, made);
            }
        }
        for namespace in self.wanted.removed.clone() {
            if self.is_due(&namespace) {
                let removed = self.remove(&namespace).await;
                self.note(&namespace, removed);
            }
        }
    }

    fn is_due(&self, namespace: &str) -> bool {
        let failing = self.failing.get(namespace);
        failing.is_none_or(|failing| failing.retry_at <= Instant::now())
    }

    async fn make(
        &mut self,
        namespace: &str,
        workspace: WorkspaceId,
        quota: Option<u32>,
    ) -> Result<(), String> {
        if !self.known.namespaces.contains_key(namespace) {
            let made = self.make_namespace(namespace, workspace).await;
            let made = made
                .map_err(|error| format!("namespace \"{namespace}\" could not be made: {error}"))?;
            let uid = uid(&made).to_owned();
            self.known.namespaces.insert(namespace.to_owned(), uid);
        }
        let wanted = quota.and_then(|most| {
            quota_object(&self.cluster_id, (namespace, workspace), &self.slots, most)
        });
        let set = self.set_quota(namespace, wanted).await;
        set.map_err(|error| {
            format!("the quota of namespace \"{namespace}\" could not be set: {error}")
        })
    }

    async fn make_namespace(
        &self,
        namespace: &str,
        workspace: WorkspaceId,
    ) -> Result<Value, ApiError> {
        let object = namespace_object(&self.cluster_id, namespace, workspace);
        match self.api.create(Kind::Namespace, "", &object).await {
            Err(ApiError::Exists) => {}
            created => return created,
        }
        let found = self.api.get(Kind::Namespace, ("", namespace)).await?;
        if is_terminating(&found) {
            let text = "one of this name is being deleted";
            return Err(ApiError::Passing(text.to_owned()));
        }
        if is_made(&found, &self.cluster_id) {
            return Ok(found);
        }
        let text = "one of this name exists that was not made by this master";
        Err(ApiError::Refused(text.to_owned()))
    }

    /// Sets the quota of a namespace that was made, or takes it away.
    async fn set_quota(&mut self, namespace: &str, wanted: Option<Value>) -> Result<(), ApiError> {
        let key = ObjectKey {
            namespace: namespace.to_owned(),
            name: quota_name(namespace),
        };
        let found = self.known.quotas.get(&key);
        if found.is_some_and(|found| found.own.is_none()) {
            return match wanted {
                None => Ok(()),
                Some(_) => Err(ApiError::Refused(format!(
                    "quota \"{}\" exists, and was not made by this master",
                    key.name
                ))),
            };
        }
        let found = found.and_then(|found| found.own.clone());
        let at = (namespace, key.name.as_str());
        match (found, wanted) {
            (None, None) => {}
            (Some(found), None) => {
                self.api.delete(Kind::Quota, at, &found.uid, None).await?;
                self.known.quotas.remove(&key);
            }
            (None, Some(wanted)) => {
                let made = self.api.create(Kind::Quota, namespace, &wanted).await?;
                self.put(Kind::Quota, &made);
            }
            (Some(found), Some(wanted)) => {
                let hard = &wanted["spec"]["hard"];
                if found.hard == *hard {
                    return Ok(());
                }
                let mut patch = json!({"spec": {"hard": hard}});
                // What others added to it goes: it is the master's own.
                for other in others(&found.hard, hard) {
                    patch["spec"]["hard"][other] = Value::Null;
                }
                self.api.patch(Kind::Quota, at, &patch).await?;
                let slots = quota_slots(&wanted, &self.slots);
                let own = Some(OwnQuota {
                    uid: found.uid,
                    hard: hard.clone(),
                });
                self.known.quotas.insert(key, Quota { own, slots });
            }
        }
        Ok(())
    }

    /// Deletes a namespace that was made, with everything in it.
    async fn remove(&mut self, namespace: &str) -> Result<(), String> {
        if let Some(uid) = self.known.namespaces.get(namespace) {
            let at = ("", namespace);
            let deleted = self.api.delete(Kind::Namespace, at, uid, None).await;
            deleted.map_err(|error| {
                format!("namespace \"{namespace}\" could not be deleted: {error}")
            })?;
            self.known.namespaces.remove(namespace);
        }
        let stored = self.core.namespace_removed(&self.manager, namespace).await;
        stored.map_err(|error| {
            format!("that namespace \"{namespace}\" is gone could not be stored: {error}")
        })?;
        self.wanted.removed.remove(namespace);
        Ok(())
    }

    /// Keeps what is needed of an object that exists.
    fn put(&mut self, kind: Kind, object: &Value) {
        match kind {
            Kind::Namespace if is_terminating(object) => self.known.drop(kind, object),
            Kind::Namespace => {
                let uid = uid(object).to_owned();
                self.known.namespaces.insert(name(object).to_owned(), uid);
            }
            _ => {
                let own = is_made(object, &self.cluster_id).then(|| OwnQuota {
                    uid: uid(object).to_owned(),
                    hard: object.pointer("/spec/hard").cloned().unwrap_or_default(),
                });
                let slots = quota_slots(object, &self.slots);
                let key = named(object);
                let is_needed =
                    own.is_some() || slots.is_some() || key.name == quota_name(&key.namespace);
                if is_needed {
                    self.known.quotas.insert(key, Quota { own, slots });
                } else {
                    self.known.quotas.remove(&key);
                }
            }
        }
    }

    /// Reports how many slots each workspace may use, where that has changed.
    fn report(&mut self) {
        let mut least: BTreeMap<&str, u32> = BTreeMap::new();
        for (named, quota) in &self.known.quotas {
            if let Some(slots) = quota.slots {
                let known = least.entry(&named.namespace).or_insert(slots);
                *known = slots.min(*known);
            }
        }
        let mut limits: BTreeMap<WorkspaceId, u32> = BTreeMap::new();
        for (namespace, bound) in &self.wanted.bound {
            let of_objects = least.get(namespace.as_str()).copied();
            let Some(limit) = [bound.quota, of_objects].into_iter().flatten().min() else {
                continue;
            };
            for workspace in &bound.workspaces {
                limits.insert(*workspace, limit);
            }
        }
        if limits != self.reported {
            self.core.report_limits(&self.manager, limits.clone());
            self.reported = limits;
        }
    }
}

impl KnownObjects {
    fn drop(&mut self, kind: Kind, object: &Value) {
        if kind == Kind::Namespace {
            self.namespaces.remove(name(object));
        } else {
            self.quotas.remove(&named(object));
        }
    }

    /// After a list: what was not in it is gone.
    fn only_present(&mut self, kind: Kind, present: &BTreeSet<ObjectKey>) {
        if kind == Kind::Namespace {
            let names: BTreeSet<&str> = present.iter().map(|it| it.name.as_str()).collect();
            self.namespaces
                .retain(|name, _| names.contains(name.as_str()));
        } else {
            self.quotas.retain(|named, _| present.contains(named));
        }
    }
}

/// What is wanted of one namespace.
fn wanted_of<'w>(wanted: &'w Namespaces, namespace: &str) -> (Option<&'w BoundNamespace>, bool) {
    let bound = wanted.bound.get(namespace);
    (bound, wanted.removed.contains(namespace))
}

/// The resources that a quota limits and is not to.
fn others(found: &Value, wanted: &Value) -> Vec<String> {
    let keys = |hard: &Value| {
        let keys = hard.as_object().into_iter();
        keys.flat_map(|hard| hard.keys().cloned())
            .collect::<BTreeSet<String>>()
    };
    keys(found).difference(&keys(wanted)).cloned().collect()
}

/// The kinds of objects that are watched now, with what comes of them.
struct CurrentWatch {
    kinds: BTreeSet<Kind>,
    seen: BoxStream<'static, WatchEvent>,
}

impl Default for CurrentWatch {
    fn default() -> Self {
        Self {
            kinds: BTreeSet::new(),
            seen: futures::stream::pending().boxed(),
        }
    }
}

impl CurrentWatch {
    async fn next(&mut self) -> Option<WatchEvent> {
        if self.kinds.is_empty() {
            return std::future::pending().await;
        }
        self.seen.next().await
    }
}
