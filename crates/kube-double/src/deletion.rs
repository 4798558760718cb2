//! Deleting objects: grace, finalizers, preconditions, and what becomes of what they own.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::cluster::{Cluster, has_ended, is_deleting};
use crate::failure::Failure;
use crate::target::{Key, Resource};
use crate::values::{list, moment, number, push, set, text};

/// The finalizer of what is deleted after what it owns.
const FOREGROUND: &str = "foregroundDeletion";

/// What becomes of the objects that the deleted one owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Propagation {
    /// They are deleted afterwards.
    Background,
    /// They are deleted first.
    Foreground,
    /// They stay, without an owner.
    Orphan,
}

/// What a deletion may name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    /// Seconds that a pod has to end; `None` for its own.
    grace: Option<i64>,
    propagation: Option<Propagation>,
    /// The uid that the object must have.
    uid: Option<String>,
    /// The version that the object must have.
    version: Option<String>,
}

/// What a deletion led to.
#[derive(Debug)]
pub(crate) enum Deletion {
    /// The object is gone.
    Gone(Arc<Value>),
    /// The object is being deleted.
    Pending(Arc<Value>),
}

impl Options {
    /// Without time to end.
    pub(crate) fn at_once() -> Self {
        Self {
            grace: Some(0),
            ..Self::default()
        }
    }

    /// As a request names them: `DeleteOptions` in its body, or parameters of its query, as `query` returns them.
    pub(crate) fn parse<'a>(
        body: &Value,
        query: impl Fn(&str) -> Option<&'a str>,
    ) -> Result<Self, Failure> {
        let named = match text(body, "/propagationPolicy") {
            "" => query("propagationPolicy").unwrap_or_default(),
            named => named,
        };
        let propagation = match named {
            "" => None,
            "Background" => Some(Propagation::Background),
            "Foreground" => Some(Propagation::Foreground),
            "Orphan" => Some(Propagation::Orphan),
            other => {
                let message = format!("invalid propagation policy: {other}");
                return Err(Failure::bad_request(message));
            }
        };
        let owned = |pointer: &str| {
            let found = text(body, pointer);
            (!found.is_empty()).then(|| found.to_owned())
        };
        let of_query = || query("gracePeriodSeconds").and_then(|seconds| seconds.parse().ok());
        Ok(Self {
            grace: number(body, "/gracePeriodSeconds").or_else(of_query),
            propagation,
            uid: owned("/preconditions/uid"),
            version: owned("/preconditions/resourceVersion"),
        })
    }

    /// Whether no policy is named.
    pub(crate) fn has_default_propagation(&self) -> bool {
        self.propagation.is_none()
    }

    fn check(&self, key: &Key, object: &Value) -> Result<(), Failure> {
        for (wanted, pointer, label) in [
            (&self.uid, "/metadata/uid", "UID"),
            (
                &self.version,
                "/metadata/resourceVersion",
                "ResourceVersion",
            ),
        ] {
            let found = text(object, pointer);
            if let Some(wanted) = wanted
                && wanted != found
            {
                let why = format!(
                    "Precondition failed: {label} in precondition: {wanted}, {label} in object meta: {found}"
                );
                return Err(Failure::conflict(&key.resource, &key.name, &why));
            }
        }
        Ok(())
    }
}

/// Deletes an object, or begins to.
pub(crate) fn delete(
    cluster: &mut Cluster,
    key: &Key,
    options: &Options,
) -> Result<Deletion, Failure> {
    let Some(old) = cluster.get(key).map(Arc::clone) else {
        return Err(Failure::not_found(&key.resource, &key.name));
    };
    options.check(key, &old)?;
    // Jobs are the one kind of these whose pods stay unless a request names a policy.
    let usual = if key.resource == Resource::jobs() {
        Propagation::Orphan
    } else {
        Propagation::Background
    };
    let uid = text(&old, "/metadata/uid").to_owned();
    let mut new = Value::clone(&old);
    match options.propagation.unwrap_or(usual) {
        Propagation::Background => {}
        Propagation::Orphan => orphan(cluster, &uid),
        Propagation::Foreground => {
            let finalizers = list(&new, "/metadata/finalizers");
            if !finalizers.iter().any(|finalizer| finalizer == FOREGROUND) && !is_deleting(&old) {
                push(&mut new, &["metadata", "finalizers"], json!(FOREGROUND));
            }
        }
    }
    let grace = grace(key, &old, options);
    let before = number(&old, "/metadata/deletionGracePeriodSeconds");
    if !is_deleting(&old) || before.is_some_and(|before| grace < before) {
        set(&mut new, &["metadata", "deletionTimestamp"], moment(grace));
        set(&mut new, &["metadata", "deletionGracePeriodSeconds"], grace);
        if let Some(generation) = number(&old, "/metadata/generation") {
            set(&mut new, &["metadata", "generation"], generation + 1);
        }
    }
    if key.resource == Resource::namespaces() {
        set(&mut new, &["status", "phase"], "Terminating");
    }
    let holds = grace > 0
        || !list(&new, "/metadata/finalizers").is_empty()
        || key.resource == Resource::namespaces();
    if holds {
        let object = if new == *old {
            old
        } else {
            cluster.put(key, new)
        };
        Ok(Deletion::Pending(object))
    } else {
        cluster.remove(key);
        Ok(Deletion::Gone(Arc::new(new)))
    }
}

/// Seconds until an object is ended by force: only a pod that may be running has any.
fn grace(key: &Key, object: &Value, options: &Options) -> i64 {
    let is_running = key.resource == Resource::pods()
        && !text(object, "/spec/nodeName").is_empty()
        && !has_ended(object);
    if !is_running {
        return 0;
    }
    let own = number(object, "/spec/terminationGracePeriodSeconds");
    options.grace.or(own).unwrap_or(30).max(0)
}

/// Takes an owner from all that it owns.
fn orphan(cluster: &mut Cluster, uid: &str) {
    for key in cluster.index.owned(uid) {
        cluster.modify(&key, |object| {
            let left: Vec<Value> = list(object, "/metadata/ownerReferences")
                .iter()
                .filter(|owner| text(owner, "/uid") != uid)
                .cloned()
                .collect();
            set(object, &["metadata", "ownerReferences"], left);
        });
    }
}

/// Ends a pod that is being deleted, as the kubelet does: one that has not ended by then has failed. Returns whether there
/// is such a pod.
pub(crate) fn finish(cluster: &mut Cluster, key: &Key) -> bool {
    if !cluster.get(key).is_some_and(|pod| is_deleting(pod)) {
        return false;
    }
    cluster.modify(key, |pod| {
        if !has_ended(pod) {
            set(pod, &["status", "phase"], "Failed");
        }
    });
    // What the end of a pod leads to is decided while the pod exists, as it is where a finalizer keeps it.
    crate::controllers::run(cluster);
    cluster.modify(key, |pod| {
        set(pod, &["metadata", "deletionGracePeriodSeconds"], 0);
    });
    true
}

/// Removes the finalizer of a deletion in the foreground.
pub(crate) fn release_foreground(cluster: &mut Cluster, key: &Key) {
    cluster.modify(key, |object| {
        let left: Vec<Value> = list(object, "/metadata/finalizers")
            .iter()
            .filter(|finalizer| *finalizer != FOREGROUND)
            .cloned()
            .collect();
        set(object, &["metadata", "finalizers"], left);
    });
}

/// Whether an object waits for what it owns to be deleted.
pub(crate) fn waits_for_owned(object: &Value) -> bool {
    is_deleting(object)
        && list(object, "/metadata/finalizers")
            .iter()
            .any(|finalizer| finalizer == FOREGROUND)
}
