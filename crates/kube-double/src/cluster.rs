//! The objects of the cluster, and their history as far as it is kept.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serde_json::Value;

use crate::controllers::Controllers;
use crate::index::Index;
use crate::jobs::Tally;
use crate::target::{Key, Resource};
use crate::values::{flag, list, number, set, text};

/// Changes that are kept for watches and for lists of older versions.
const HISTORY: usize = 20_000;

/// One change of one object.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    /// The version of the cluster that it made.
    pub(crate) version: u64,
    pub(crate) key: Key,
    /// The object before; `None` if it is new.
    pub(crate) old: Option<Arc<Value>>,
    /// The object after; `None` if it is gone.
    pub(crate) new: Option<Arc<Value>>,
}

/// All objects, with one counter of versions for all.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// Which double of the process it is, so that no two clusters give the same uid.
    number: u64,
    objects: BTreeMap<Key, Arc<Value>>,
    version: u64,
    /// Requests from versions before this one are answered with 410.
    compacted: u64,
    history: VecDeque<Change>,
    /// Names and uids that were given out.
    given: u64,
    /// Which parts of the control plane run.
    pub(crate) controllers: Controllers,
    /// What the Job controller knows of the pods of each Job, by the Job's uid.
    pub(crate) tallies: BTreeMap<String, Tally>,
    /// What the control plane finds without a look at all objects.
    pub(crate) index: Index,
    /// Nodes that were removed, and whose pods have not been cleaned up.
    pub(crate) lost_nodes: BTreeSet<String>,
    /// The ports of nodes that Services are given next.
    pub(crate) node_ports: VecDeque<u16>,
}

impl Cluster {
    /// A cluster without objects.
    pub(crate) fn new(number: u64) -> Self {
        Self {
            number,
            objects: BTreeMap::new(),
            version: 0,
            compacted: 0,
            history: VecDeque::new(),
            given: 0,
            controllers: Controllers::default(),
            tallies: BTreeMap::new(),
            index: Index::default(),
            lost_nodes: BTreeSet::new(),
            node_ports: VecDeque::new(),
        }
    }

    /// The version of the newest change.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// The oldest version that requests may name.
    pub(crate) fn oldest(&self) -> u64 {
        let kept = self.history.front().map_or(0, |change| change.version - 1);
        self.compacted.max(kept)
    }

    /// Refuses requests from all versions before the present one.
    pub(crate) fn compact(&mut self) {
        self.compacted = self.version;
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Arc<Value>> {
        self.objects.get(key)
    }

    /// The objects that an object owns, by its uid.
    pub(crate) fn owned(&self, uid: &str) -> Vec<(Key, Arc<Value>)> {
        let owned = self.index.owned(uid).into_iter();
        owned
            .filter_map(|key| {
                let object = Arc::clone(self.objects.get(&key)?);
                Some((key, object))
            })
            .collect()
    }

    /// All objects, in the order of their keys.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&Key, &Arc<Value>)> {
        self.objects.iter()
    }

    /// The objects of one kind, by namespace and name.
    pub(crate) fn list(&self, resource: &Resource) -> impl Iterator<Item = (&Key, &Arc<Value>)> {
        let first = Key::new(resource.clone(), "", "");
        self.objects
            .range(first..)
            .take_while(move |(key, _)| key.resource == *resource)
    }

    /// Copies of the objects of one kind, for code that changes the cluster as it goes through them.
    pub(crate) fn copied(&self, resource: &Resource) -> Vec<(Key, Arc<Value>)> {
        self.list(resource)
            .map(|(key, object)| (key.clone(), Arc::clone(object)))
            .collect()
    }

    /// The objects of one kind as they were at a version that is still kept.
    pub(crate) fn at_version(
        &self,
        resource: &Resource,
        version: u64,
    ) -> BTreeMap<Key, Arc<Value>> {
        let mut objects: BTreeMap<_, _> = self.copied(resource).into_iter().collect();
        let newer = self
            .history
            .iter()
            .rev()
            .take_while(|change| change.version > version);
        for change in newer.filter(|change| change.key.resource == *resource) {
            match &change.old {
                Some(old) => objects.insert(change.key.clone(), Arc::clone(old)),
                None => objects.remove(&change.key),
            };
        }
        objects
    }

    /// The changes of one kind after a version; `None` if they are not kept any more.
    pub(crate) fn changes_after(
        &self,
        resource: &Resource,
        version: u64,
    ) -> Option<impl Iterator<Item = &Change>> {
        let kept = self.history.front().map_or(0, |change| change.version - 1);
        let start = self
            .history
            .partition_point(|change| change.version <= version);
        (version >= kept).then(|| {
            self.history
                .range(start..)
                .filter(move |change| change.key.resource == *resource)
        })
    }

    /// The objects of one kind as they were after each change that is still kept, the oldest first.
    pub(crate) fn past(&self, resource: &Resource) -> impl Iterator<Item = &Arc<Value>> {
        let changes = self.history.iter();
        let of_kind = changes.filter(|change| change.key.resource == *resource);
        of_kind.filter_map(|change| change.new.as_ref())
    }

    /// Stores an object under a new version. It is removed instead if it is being deleted and nothing holds it any more.
    pub(crate) fn put(&mut self, key: &Key, mut object: Value) -> Arc<Value> {
        self.version += 1;
        set(
            &mut object,
            &["metadata", "resourceVersion"],
            self.version.to_string(),
        );
        let object = Arc::new(object);
        let old = self.objects.insert(key.clone(), Arc::clone(&object));
        self.note(key, old, Some(Arc::clone(&object)));
        if is_released(key, &object) {
            self.remove(key);
        }
        object
    }

    /// Removes an object, whatever holds it.
    pub(crate) fn remove(&mut self, key: &Key) {
        let Some(old) = self.objects.remove(key) else {
            return;
        };
        self.version += 1;
        if key.resource == Resource::nodes() {
            self.lost_nodes.insert(key.name.clone());
        }
        self.note(key, Some(old), None);
    }

    fn note(&mut self, key: &Key, old: Option<Arc<Value>>, new: Option<Arc<Value>>) {
        self.index.note(key, old.as_deref(), new.as_deref());
        if let (Some(old), None) = (&old, &new)
            && key.resource == Resource::jobs()
        {
            self.tallies.remove(text(old, "/metadata/uid"));
        }
        self.history.push_back(Change {
            version: self.version,
            key: key.clone(),
            old,
            new,
        });
        if self.history.len() > HISTORY {
            self.history.pop_front();
        }
    }

    /// Changes an object, if it exists; one that is the same afterwards keeps its version. Returns whether it exists.
    pub(crate) fn modify(&mut self, key: &Key, change: impl FnOnce(&mut Value)) -> bool {
        let Some(old) = self.objects.get(key) else {
            return false;
        };
        let mut new = Value::clone(old);
        change(&mut new);
        if new != **old {
            self.put(key, new);
        }
        true
    }

    /// A uid that no other object of the process has; later ones sort behind earlier ones.
    pub(crate) fn next_uid(&mut self) -> String {
        self.given += 1;
        format!(
            "{:08x}-0000-4000-8000-{:012x}",
            self.number & 0xffff_ffff,
            self.given
        )
    }

    /// Five letters and digits for the end of a generated name, different each time.
    pub(crate) fn next_suffix(&mut self) -> String {
        const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
        self.given += 1;
        // Any number without a factor 3 makes a permutation of all that five letters can be.
        let mut rest = self.given.wrapping_mul(8_675_309) % 27_u64.pow(5);
        let mut suffix = String::new();
        for _ in 0..5 {
            let letter = usize::try_from(rest % 27).unwrap_or_default();
            suffix.push(char::from(LETTERS[letter]));
            rest /= 27;
        }
        suffix
    }
}

/// Whether an object that is being deleted is held by nothing any more: no finalizer, no time of grace, and no namespace
/// with what it contains.
fn is_released(key: &Key, object: &Value) -> bool {
    !text(object, "/metadata/deletionTimestamp").is_empty()
        && list(object, "/metadata/finalizers").is_empty()
        && number(object, "/metadata/deletionGracePeriodSeconds").unwrap_or(0) == 0
        && (key.resource != Resource::namespaces() || list(object, "/spec/finalizers").is_empty())
}

/// Whether an object is being deleted.
pub(crate) fn is_deleting(object: &Value) -> bool {
    !text(object, "/metadata/deletionTimestamp").is_empty()
}

/// Whether a pod has ended.
pub(crate) fn has_ended(pod: &Value) -> bool {
    matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}

/// Whether an object keeps an owner that is deleted in the foreground.
pub(crate) fn blocks_owner(object: &Value, uid: &str) -> bool {
    list(object, "/metadata/ownerReferences")
        .iter()
        .any(|owner| text(owner, "/uid") == uid && flag(owner, "/blockOwnerDeletion"))
}
