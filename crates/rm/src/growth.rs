//! Tasks that wait for a cluster to grow.

use std::collections::{BTreeMap, BTreeSet};

use det_ids::{AllocationId, Micros, PlaceId, WorkspaceId};
use det_scheduler::Share;
use serde_json::Value;

use crate::Core;

/// A task that waits, and that places are worth adding for.
#[derive(Debug, Clone, PartialEq)]
pub struct WaitingGang {
    /// The allocation that waits.
    pub allocation_id: AllocationId,
    /// Name of the resource pool that it waits in.
    pub resource_pool: String,
    /// Workspace of its job, by which the manager may have a namespace for it; `None` = it is not known.
    pub workspace: Option<WorkspaceId>,
    /// What it takes of each place, those included that are there already; never empty.
    pub shares: Vec<Share>,
    /// What each of its containers demands besides slots, in the manager's own form; `None` = nothing.
    pub demands: Option<Value>,
    /// Places that it must not run on.
    pub excluded_places: BTreeSet<PlaceId>,
}

/// How far a cluster is with growing for a task that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GrowthState {
    /// It has been asked to.
    Asked {
        /// What the task takes of each node.
        shares: Vec<Share>,
        /// When it was asked to.
        since: Micros,
    },
    /// It did not grow, and is not asked for now.
    GivenUp {
        /// Why it is not asked for, a part of a sentence for users.
        reason: String,
        /// When it is asked again.
        until: Micros,
    },
}

/// The core, as managers see it whose clusters grow.
pub trait GrowthCore: Core {
    /// Wakes when [`GrowthCore::waiting`] of a manager may have changed. To be called before that.
    fn waiting_changes(&self, manager: &str) -> Self::Changes;

    /// The tasks in the pools of a manager, by its name, that places are worth adding for, of each pool the most important
    /// first.
    fn waiting(&self, manager: &str) -> Vec<WaitingGang>;

    /// Notes how far the cluster of a manager, by its name, is with growing for tasks. It replaces what was noted before. Until
    /// their time has come, tasks that were given up are not among those that wait.
    fn report_growth(&self, manager: &str, growth: BTreeMap<AllocationId, GrowthState>);
}
