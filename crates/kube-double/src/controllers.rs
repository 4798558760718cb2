//! The parts of the control plane that act by themselves. All of them act at once, within the request that gives them
//! reason to, so that what a test sees does not depend on time.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::cluster::{Cluster, blocks_owner, has_ended, is_deleting};
use crate::deletion::{Options, delete, release_foreground};
use crate::target::{Key, Resource};
use crate::values::{set, set_condition, text};
use crate::{jobs, scheduling};

/// Passes at most; they end when nothing changes any more, and this is for controllers that undo each other's work.
const PASSES: usize = 1_000;

/// Which parts of the control plane run. All do at first, but for the kubelets, which the test itself is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each part runs or does not, whatever the others do"
)]
pub struct Controllers {
    /// Pods of Jobs are created and deleted, and the status of Jobs is set.
    pub jobs: bool,
    /// Pods are bound to nodes.
    pub scheduler: bool,
    /// What has no owner any more is deleted, so is what is in namespaces that are being deleted, and pods of nodes that were
    /// removed fail.
    pub garbage: bool,
    /// Pods run as soon as they have a node, and are gone as soon as they are deleted.
    pub kubelets: bool,
}

impl Default for Controllers {
    fn default() -> Self {
        Self {
            jobs: true,
            scheduler: true,
            garbage: true,
            kubelets: false,
        }
    }
}

/// Runs all that are on until nothing changes any more.
pub(crate) fn run(cluster: &mut Cluster) {
    for _ in 0..PASSES {
        let before = cluster.version();
        if cluster.controllers.jobs {
            jobs::pass(cluster);
        }
        if cluster.controllers.scheduler {
            scheduling::pass(cluster);
        }
        if cluster.controllers.kubelets {
            serve_pods(cluster);
        }
        if cluster.controllers.garbage {
            collect_lost_pods(cluster);
            collect_garbage(cluster);
            empty_namespaces(cluster);
        }
        if cluster.version() == before {
            return;
        }
    }
}

/// Kubelets do at once what they have to do with pods that have changed.
fn serve_pods(cluster: &mut Cluster) {
    for key in std::mem::take(&mut cluster.index.changed_pods) {
        let Some(pod) = cluster.get(&key).map(Arc::clone) else {
            continue;
        };
        if is_deleting(&pod) {
            cluster.modify(&key, |pod| {
                if !has_ended(pod) {
                    set(pod, &["status", "phase"], "Failed");
                }
            });
            if cluster.controllers.jobs {
                jobs::pass(cluster);
            }
            cluster.modify(&key, |pod| {
                set(pod, &["metadata", "deletionGracePeriodSeconds"], 0);
            });
        } else if !text(&pod, "/spec/nodeName").is_empty()
            && text(&pod, "/status/phase") == "Pending"
        {
            cluster.modify(&key, |pod| crate::double::set_phase(pod, "Running"));
        }
    }
}

/// Pods whose node was removed fail, and are removed.
fn collect_lost_pods(cluster: &mut Cluster) {
    let lost = std::mem::take(&mut cluster.lost_nodes);
    if lost.is_empty() {
        return;
    }
    for (key, pod) in cluster.copied(&Resource::pods()) {
        if !lost.contains(text(&pod, "/spec/nodeName")) {
            continue;
        }
        cluster.modify(&key, |pod| {
            if !has_ended(pod) {
                set(pod, &["status", "phase"], "Failed");
                set_condition(
                    pod,
                    "DisruptionTarget",
                    "True",
                    "DeletionByPodGC",
                    "PodGC: node no longer exists",
                );
            }
        });
        if cluster.controllers.jobs {
            jobs::pass(cluster);
        }
        // It may have been removed with its owner.
        let _ = delete(cluster, &key, &Options::at_once());
    }
}

/// Deletes what has owners of which none exists, and what is owned by what is deleted in the foreground.
fn collect_garbage(cluster: &mut Cluster) {
    let mut doomed: BTreeSet<Key> = std::mem::take(&mut cluster.index.orphans);
    doomed.retain(|key| {
        let object = cluster.get(key);
        object.is_some_and(|object| !cluster.index.has_owner(object))
    });
    for owner in cluster.index.foreground() {
        let Some(object) = cluster.get(&owner) else {
            continue;
        };
        let uid = text(object, "/metadata/uid").to_owned();
        let owned = cluster.owned(&uid);
        if !owned.iter().any(|(_, object)| blocks_owner(object, &uid)) {
            release_foreground(cluster, &owner);
        }
        doomed.extend(owned.into_iter().map(|(key, _)| key));
    }
    delete_unless_deleting(cluster, doomed);
}

fn delete_unless_deleting(cluster: &mut Cluster, doomed: impl IntoIterator<Item = Key>) {
    for key in doomed {
        if cluster.get(&key).is_some_and(|object| !is_deleting(object)) {
            // It exists, and no precondition is named: there is nothing to refuse.
            let _ = delete(cluster, &key, &Options::default());
        }
    }
}

/// Deletes what is in namespaces that are being deleted, and then the namespaces.
fn empty_namespaces(cluster: &mut Cluster) {
    for (key, namespace) in cluster.copied(&Resource::namespaces()) {
        if !is_deleting(&namespace) {
            continue;
        }
        let inside: Vec<Key> = cluster
            .all()
            .filter(|(inside, _)| inside.namespace == key.name)
            .map(|(inside, _)| inside.clone())
            .collect();
        if inside.is_empty() {
            cluster.modify(&key, |namespace| {
                set(namespace, &["spec", "finalizers"], Vec::<String>::new());
            });
        }
        delete_unless_deleting(cluster, inside);
    }
}
