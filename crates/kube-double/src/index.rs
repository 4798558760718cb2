//! What the control plane finds without a look at all objects: what has changed, what owns what, what pods take of nodes.
//! With it a write costs what it changes, also in a cluster of thousands of nodes.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::cluster::has_ended;
use crate::deletion::waits_for_owned;
use crate::scheduling::{Amounts, is_waiting, requests};
use crate::target::{Key, Resource};
use crate::values::{flag, list, text};

/// What is kept about all objects, and what has changed since each part of the control plane last looked.
#[derive(Debug, Default)]
pub(crate) struct Index {
    uids: BTreeSet<String>,
    /// Objects by the uid of each of their owners.
    owned: BTreeMap<String, BTreeSet<Key>>,
    /// Objects that are deleted after what they own.
    foreground: BTreeSet<Key>,
    /// What pods that have not ended take, by node.
    taken: BTreeMap<String, BTreeMap<Key, Amounts>>,
    /// Jobs that the Job controller is to look at.
    pub(crate) jobs: BTreeSet<Key>,
    /// Objects with owners that may all be gone.
    pub(crate) orphans: BTreeSet<Key>,
    /// Pods that have changed since kubelets looked.
    pub(crate) changed_pods: BTreeSet<Key>,
    /// Pods that the scheduler has not tried since they changed.
    pub(crate) new_pods: BTreeSet<Key>,
    /// Pods that fitted no node when they were tried.
    pub(crate) left_pods: BTreeSet<Key>,
    /// Whether nodes have changed or pods have left some: what did not fit may fit.
    pub(crate) is_freed: bool,
}

impl Index {
    /// An object has changed: from `old`, `None` if it is new, to `new`, `None` if it is gone.
    pub(crate) fn note(&mut self, key: &Key, old: Option<&Value>, new: Option<&Value>) {
        self.note_owners(key, old, new);
        if new.is_some_and(waits_for_owned) {
            self.foreground.insert(key.clone());
        } else {
            self.foreground.remove(key);
        }
        if key.resource == Resource::jobs() && new.is_some() {
            self.jobs.insert(key.clone());
        } else if key.resource == Resource::pods() {
            self.note_job(key, old.or(new));
            self.note_pod(key, old, new);
            self.changed_pods.insert(key.clone());
        } else if key.resource == Resource::nodes() {
            self.is_freed = true;
        }
    }

    fn note_owners(&mut self, key: &Key, old: Option<&Value>, new: Option<&Value>) {
        for owner in old.map(owners).into_iter().flatten() {
            if let Some(owned) = self.owned.get_mut(owner) {
                owned.remove(key);
                if owned.is_empty() {
                    self.owned.remove(owner);
                }
            }
        }
        for owner in new.map(owners).into_iter().flatten() {
            let owned = self.owned.entry(owner.to_owned()).or_default();
            owned.insert(key.clone());
        }
        if new.is_some_and(|new| owners(new).next().is_some()) {
            self.orphans.insert(key.clone());
        }
        let uid = |object: Option<&Value>| {
            let uid = object.map(|object| text(object, "/metadata/uid"));
            uid.map(str::to_owned)
        };
        match (uid(old), uid(new)) {
            (Some(gone), None) => {
                self.uids.remove(&gone);
                self.orphans.extend(self.owned(&gone));
            }
            (_, Some(new)) => {
                self.uids.insert(new);
            }
            (None, None) => {}
        }
    }

    fn note_job(&mut self, key: &Key, pod: Option<&Value>) {
        let owners = pod.map_or(&[][..], |pod| list(pod, "/metadata/ownerReferences"));
        let controllers = owners.iter().filter(|owner| flag(owner, "/controller"));
        let jobs = controllers.filter(|owner| text(owner, "/kind") == "Job");
        let jobs = jobs.map(|job| Key::new(Resource::jobs(), &key.namespace, text(job, "/name")));
        self.jobs.extend(jobs);
    }

    fn note_pod(&mut self, key: &Key, old: Option<&Value>, new: Option<&Value>) {
        let node_of = |pod: &&Value| !text(pod, "/spec/nodeName").is_empty() && !has_ended(pod);
        let (before, now) = (old.filter(node_of), new.filter(node_of));
        if let Some(before) = before {
            let node = text(before, "/spec/nodeName");
            if let Some(taken) = self.taken.get_mut(node) {
                taken.remove(key);
                if taken.is_empty() {
                    self.taken.remove(node);
                }
            }
            self.is_freed |= now.is_none_or(|now| requests(now) != requests(before));
        }
        if let Some(now) = now {
            let node = text(now, "/spec/nodeName").to_owned();
            let taken = self.taken.entry(node).or_default();
            taken.insert(key.clone(), requests(now));
        }
        self.left_pods.remove(key);
        if new.is_some_and(is_waiting) {
            self.new_pods.insert(key.clone());
        } else {
            self.new_pods.remove(key);
        }
    }

    /// The objects that an object owns, by its uid.
    pub(crate) fn owned(&self, uid: &str) -> Vec<Key> {
        let owned = self.owned.get(uid).into_iter().flatten();
        owned.cloned().collect()
    }

    /// Whether an object with one of the owners of this one exists, or it has none.
    pub(crate) fn has_owner(&self, object: &Value) -> bool {
        let mut owners = owners(object).peekable();
        owners.peek().is_none() || owners.any(|uid| self.uids.contains(uid))
    }

    /// The objects that are deleted after what they own.
    pub(crate) fn foreground(&self) -> Vec<Key> {
        self.foreground.iter().cloned().collect()
    }

    /// What the pods of a node take together.
    pub(crate) fn taken(&self, node: &str) -> Amounts {
        let mut all = Amounts::new();
        for pod in self.taken.get(node).into_iter().flat_map(BTreeMap::values) {
            for (resource, amount) in pod {
                *all.entry(resource.clone()).or_default() += amount;
            }
        }
        all
    }
}

fn owners(object: &Value) -> impl Iterator<Item = &str> {
    let owners = list(object, "/metadata/ownerReferences").iter();
    owners.map(|owner| text(owner, "/uid"))
}
