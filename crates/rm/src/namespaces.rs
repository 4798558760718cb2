//! Namespaces of workspaces in a manager's cluster, for managers that have such: what rows want of them, and what the master
//! asks about them.

use std::collections::{BTreeMap, BTreeSet};

use det_ids::{AllocationId, ExperimentId, Micros, RunId, TaskId, TrialId, WorkspaceId};
use det_taskspec::TaskKind;

use crate::Core;

/// What is configured of the namespaces of a manager's cluster, which workspaces can be bound to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamespaceSettings {
    /// Name of the namespace of work whose workspace is not bound to one and whose pool has none; `None` = the one that the
    /// cluster has the master in.
    pub default: Option<String>,
}

/// What rows want of the namespaces of one manager's cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Namespaces {
    /// Those that workspaces are bound to, by name.
    pub bound: BTreeMap<String, BoundNamespace>,
    /// The attempts in the manager's pools that have not ended.
    pub in_use: BTreeMap<AllocationId, LiveAttempt>,
    /// Those that were made for workspaces which are gone, and are to go.
    pub removed: BTreeSet<String>,
}

/// An attempt that has not ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LiveAttempt {
    /// The namespace that it was placed in, whatever its workspace is bound to by now; `None` = it runs in that of its pool.
    pub namespace: Option<String>,
    /// When it was placed; `None` = it is not.
    pub placed_at: Option<Micros>,
    /// What it is an attempt of; `None` = that is not known.
    pub of: Option<AttemptOf>,
}

/// What something is an attempt of: what managers name its objects by, as those of a [`crate::ContainerStart`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptOf {
    /// Kind of the task that the attempt is of.
    pub kind: TaskKind,
    /// Task that the attempt is of.
    pub task_id: TaskId,
    /// Experiment of the trial; `None` for other kinds.
    pub experiment_id: Option<ExperimentId>,
    /// Trial that the task is of; `None` for other kinds.
    pub trial_id: Option<TrialId>,
    /// The trial's run that it is.
    pub run_id: RunId,
    /// The attempt of the task that it is, counted from 1.
    pub attempt: u32,
}

/// A namespace that workspaces are bound to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BoundNamespace {
    /// The workspaces that are bound to it, at least one.
    pub workspaces: BTreeSet<WorkspaceId>,
    /// The workspace that the manager makes it for; `None` = it exists without that.
    pub made_for: Option<WorkspaceId>,
    /// Most slots in use there at a time, where the manager makes it; `None` = it sets no limit.
    pub quota: Option<u32>,
}

/// The core, as managers with namespaces see it.
pub trait NamespaceCore: Core {
    /// Wakes when what is wanted of namespaces may have changed. To be called before [`NamespaceCore::namespaces`].
    fn namespace_changes(&self) -> Self::Changes;

    /// What is wanted of the namespaces of a manager, by its name.
    fn namespaces(
        &self,
        manager: &str,
    ) -> impl Future<Output = Result<Namespaces, Self::Error>> + Send;

    /// Stores that a namespace which was to go is gone, or going for good.
    fn namespace_removed(
        &self,
        manager: &str,
        namespace: &str,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// What the master asks about a namespace before it binds a workspace to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceRequest {
    /// Name of the resource manager in whose cluster the namespace is.
    pub manager: String,
    /// Name of the namespace to look at or make.
    pub namespace: String,
    /// Whether the manager is to make it; else it must exist.
    pub made: bool,
    /// The limit that is to be set there, in slots.
    pub quota: Option<u32>,
    /// Whether other workspaces are bound to it. A quota holds all of them together, and no manager could keep each to a part
    /// of it.
    pub shared: bool,
}

/// Why a workspace cannot be bound to a namespace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NamespaceError {
    /// It cannot be used as it is.
    #[error("{message}")]
    Refused {
        /// The reason, as a clause that names the namespace.
        message: String,
        /// What an administrator can do about it, as a sentence or clause for users.
        hint: String,
    },
    /// The cluster cannot be asked, or a request failed that may succeed later.
    #[error("{0}")]
    Unavailable(String),
}

/// What a class of priorities in a cluster is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassValue {
    /// The cluster's own scheduler goes by classes, and the master's queue by the priorities of jobs alone.
    Unused,
    /// Its value; the higher one is more important.
    Value(i64),
    /// The cluster has no class of this name.
    Missing,
}

/// What the master asks of managers about namespaces, and about classes of priorities.
pub trait NamespaceAccess: Send + Sync + 'static {
    /// The name of the namespace that would be made for a workspace.
    ///
    /// # Errors
    /// The manager has had no access to its cluster yet, whose part the name has.
    fn name_for(
        &self,
        manager: &str,
        workspace: (&str, WorkspaceId),
    ) -> Result<String, NamespaceError>;

    /// The namespace of work whose workspace is not bound and whose pool has none; `None` = it is not known yet.
    fn default_of(&self, manager: &str) -> Option<String>;

    /// Whether tasks can run in a namespace.
    ///
    /// # Errors
    /// They cannot, or it is not known.
    fn check(
        &self,
        request: &NamespaceRequest,
    ) -> impl Future<Output = Result<(), NamespaceError>> + Send;

    /// Has a manager do now what rows want of one of its namespaces.
    ///
    /// # Errors
    /// Something of that has failed, and is tried again later.
    fn carry_out(
        &self,
        manager: &str,
        namespace: &str,
    ) -> impl Future<Output = Result<(), NamespaceError>> + Send;

    /// What a class of priorities of the manager's cluster is worth.
    ///
    /// # Errors
    /// The cluster cannot be asked, or the master may not read its classes.
    fn value_of_class(
        &self,
        manager: &str,
        class: &str,
    ) -> impl Future<Output = Result<ClassValue, NamespaceError>> + Send;
}

/// Why a text is not the name of a namespace that work may run in; `None` = it is.
pub fn namespace_fault(name: &str) -> Option<String> {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let has_ends = !name.starts_with('-') && !name.ends_with('-');
    if name.is_empty() || name.len() > 63 || !has_ends || !name.chars().all(is_allowed) {
        return Some(
            "must have 1 to 63 lower-case letters, digits and hyphens, a letter or digit first and last".to_owned(),
        );
    }
    // Pods there could be given what the parts of Kubernetes itself may do.
    name.starts_with("kube-")
        .then(|| "belongs to Kubernetes itself: pods of users must not run there".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_no_namespaces_for_users_are_refused() {
        for name in ["", "Research", "a_b", "-a", "a-", "a.b", &"a".repeat(64)] {
            let fault = namespace_fault(name).unwrap_or_default();
            assert!(fault.contains("lower-case"), "{name}: {fault}");
        }
        for name in ["kube-system", "kube-public"] {
            let fault = namespace_fault(name).unwrap_or_default();
            assert!(fault.contains("Kubernetes itself"), "{name}: {fault}");
        }
        assert_eq!(namespace_fault("research-2"), None);
    }
}
