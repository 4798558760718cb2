//! What the API shows: each read asks the table of rights for its actor, and loads what its answer is made of.
//!
//! A file per resource, with free functions that take what they need: the services that they read from, the actor, and what
//! is asked for, a list as the query that came. Where several services are needed they are the file's `…Sources`. They select, order and cut; `http` makes answers of the rows and views that come
//! from here, and asks the store for nothing itself. Rights are asked for also where all users may read, and once for a whole
//! list, never with a query for each row.

pub(crate) mod agents;
pub(crate) mod allocations;
pub(crate) mod checkpoints;
pub(crate) mod events;
pub(crate) mod experiments;
pub(crate) mod homes;
pub(crate) mod jobs;
pub(crate) mod logs;
pub(crate) mod master;
pub(crate) mod master_log;
pub(crate) mod memory;
pub(crate) mod metrics;
pub(crate) mod model_definition;
pub(crate) mod paging;
pub(crate) mod phase;
pub(crate) mod profiler;
pub(crate) mod sight;
pub(crate) mod task_metrics;
pub(crate) mod tasks;
pub(crate) mod templates;
pub(crate) mod trials;
pub(crate) mod users;

use det_authz::{Kind, Permission};
use det_store::StoreError;
use serde_json::Value;

use crate::auth::Actor;
use crate::error::AppResult;

/// What readers read from, by the file that has them.
pub(crate) struct Sources {
    pub(crate) agents: agents::AgentSources,
    pub(crate) archives: model_definition::ArchiveSources,
    pub(crate) checkpoints: checkpoints::CheckpointSources,
    pub(crate) experiments: experiments::ExperimentSources,
    pub(crate) homes: homes::HomeSources,
    pub(crate) jobs: jobs::JobSources,
    pub(crate) logs: logs::LogSources,
    pub(crate) master: master::MasterSources,
    pub(crate) memory: memory::MemorySources,
    pub(crate) metrics: metrics::MetricSources,
    pub(crate) task_metrics: task_metrics::TaskMetricSources,
    pub(crate) tasks: tasks::TaskSources,
    pub(crate) trials: trials::TrialSources,
}

/// Refuses actors who may see nothing of this kind; `what` names such things in the plural.
pub(crate) fn require(actor: &Actor, kind: Kind, what: &str) -> AppResult<()> {
    actor.require(Permission::Read, kind, &format!("read {what}"))
}

/// A stored JSON document.
pub(crate) fn document(
    what: &str,
    id: impl std::fmt::Display,
    text: &str,
) -> Result<Value, StoreError> {
    serde_json::from_str(text).map_err(|e| StoreError::Corrupt {
        what: format!("{what} {id}"),
        message: e.to_string(),
    })
}
