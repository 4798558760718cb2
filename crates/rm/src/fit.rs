//! Which places fit, besides the slots that are free there.

use std::fmt::Debug;
use std::sync::Arc;

use det_ids::WorkspaceId;
use det_scheduler::Misfits;
use serde_json::Value;

/// What the containers of a request ask of the places of a pool besides free slots.
#[derive(Debug, Clone, Copy, Default)]
pub struct FitQuery<'q> {
    /// Name of the pool.
    pub pool: &'q str,
    /// Workspace of their job, by which the manager may have a namespace for them; `None` = it is not known.
    pub workspace: Option<WorkspaceId>,
    /// Slots of all of them.
    pub slots: u32,
    /// What their job demands, in the manager's own form ([`ReadDemands`]); `None` = nothing.
    pub demands: Option<&'q Value>,
}

/// What the configuration of a job asks of the places of its containers besides slots. Each manager reads of it what concerns
/// its places.
#[derive(Debug, Clone, Copy, Default)]
pub struct PlacementRequest<'q> {
    /// The pod that is merged into those of its containers, `environment.pod_spec` of its configuration; `None` = it has none.
    pub pod_spec: Option<&'q Value>,
}

/// How the managers of one kind read what a job demands of their places.
pub trait ReadDemands: Send + Sync + 'static {
    /// What a request demands, in the form that the [`FitQuery::demands`] of these managers have; `None` = nothing.
    fn demands(&self, request: PlacementRequest<'_>) -> Option<Value>;
}

/// What a manager knows of its places besides slots, at one moment: it answers the same for ever, and what has changed is in
/// another one.
pub trait Fit: Debug + Send + Sync {
    /// The places of a pool that such containers do not fit; `None` = all of them fit. Those who ask the same get the same
    /// object.
    fn misfits(&self, query: FitQuery<'_>) -> Option<Arc<Misfits>>;
}
