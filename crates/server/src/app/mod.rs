//! Use cases: what the master can do, one file per resource.
//!
//! Each loads what it needs, asks the pure crates, writes rows and events in one transaction, and leaves the rest to
//! background work, which it wakes. Nothing here knows HTTP, and nothing but `reads` a type of the wire.

pub(crate) mod actions;
pub mod admission;
pub mod agent_tokens;
pub mod agents;
pub mod all_gathers;
pub mod allocations;
mod backfill;
pub(crate) mod changes;
pub mod checkpoints;
pub(crate) mod clean_up;
pub(crate) mod cluster_access;
pub(crate) mod completion;
pub(crate) mod composition;
pub mod config_policies;
pub mod configs;
pub mod context;
mod decisions;
pub(crate) mod demands;
pub(crate) mod device_use;
pub mod doctor;
pub(crate) mod documents;
pub(crate) mod entrypoint_script;
pub(crate) mod existing;
pub mod experiments;
pub(crate) mod failures;
mod generated_name;
mod growth;
pub mod handovers;
pub mod homes;
pub mod idle;
pub mod job_changes;
pub mod jobs;
pub mod launches;
mod limits;
pub mod logs;
pub mod managers;
pub mod metrics;
pub mod model_archive;
pub(crate) mod new_task;
pub mod orchestration;
pub mod ownership;
pub mod places;
pub mod pools;
pub mod preview;
pub mod projects;
pub mod queue_entry;
pub(crate) mod reach;
pub(crate) mod reads;
pub mod reload;
pub mod renewal;
pub mod restarts;
pub mod scheduling;
pub mod searches;
pub mod services;
pub(crate) mod silences;
pub mod snapshots;
pub mod specs;
pub(crate) mod ssh_keys;
pub mod submission;
pub mod templates;
pub mod trials;
mod turns;
pub mod unmanaged;
pub(crate) mod user_counts;
pub mod users;
pub(crate) mod wait_reasons;
pub mod why;
pub mod workspaces;

use std::path::PathBuf;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::app::context::Context;
use crate::auth::Auth;
use crate::error::{AppError, AppResult};
use crate::live::Live;
use crate::master_log::MasterLog;

/// The version that is reported to clients: that of the API that this master speaks.
pub const API_VERSION: &str = "0.38.1";

/// The master: everything that a use case needs. Cheap to clone.
#[derive(Clone)]
pub struct Master {
    inner: Arc<Inner>,
    /// What readers read from.
    pub(crate) sources: Arc<reads::Sources>,
    /// Changes that are answered with what they changed.
    pub(crate) changes: Arc<changes::Changes>,
    /// What is done to experiments, one or many.
    pub(crate) actions: Arc<actions::Actions>,
}

impl std::ops::Deref for Master {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.inner
    }
}

/// The services and caches that [`Master`] consists of.
pub struct Inner {
    /// Database, configuration, wake-ups and shutdown, which every service uses.
    pub context: Context,
    /// Templates of configurations, and changes to them.
    pub(crate) templates: templates::Templates,
    /// Users, and changes to them.
    pub(crate) users: users::Users,
    /// Configuration policies of the cluster and of workspaces.
    pub(crate) policies: config_policies::ConfigPolicies,
    /// Decides and carries out what follows from events of life cycles.
    pub(crate) orchestration: orchestration::Orchestration,
    /// Plans the pools and stores what was planned.
    pub scheduling: scheduling::Scheduling,
    /// The queue of jobs.
    pub(crate) queue: jobs::JobQueue,
    /// Why jobs run or wait.
    pub(crate) explanations: why::Explanations,
    /// Experiments: creating, steering, continuing and changing them.
    pub experiments: experiments::Experiments,
    /// What runs outside the cluster and reports: experiments and trials.
    pub(crate) unmanaged: unmanaged::UnmanagedRuns,
    /// Tasks that work for no experiment: launching and steering them.
    pub(crate) launches: launches::Launches,
    /// System metrics of launched tasks.
    pub(crate) task_metrics: metrics::task_metrics::TaskMetrics,
    /// Why trials make no progress.
    pub(crate) doctor: doctor::Doctor,
    /// How long the code of running trials has been silent.
    pub(crate) silences: silences::Silences,
    /// Trials: what their code and users report of them.
    pub(crate) trials: trials::Trials,
    /// Allocations, as their tasks speak of them.
    pub(crate) allocations: allocations::Allocations,
    /// Workspaces, and changes to them.
    pub(crate) workspaces: workspaces::Workspaces,
    /// Namespaces of workspaces, and changes to them.
    pub(crate) namespaces: workspaces::WorkspaceNamespaces,
    /// Projects, and changes to them.
    pub(crate) projects: projects::Projects,
    /// Configurations that become effective again.
    pub(crate) renewals: renewal::Renewals,
    /// Streams that users have open, such as followed logs.
    pub(crate) streams: user_counts::UserCounts,
    /// Services that tasks offer to users through the master.
    pub(crate) services: services::Services,
    /// When the services of tasks were last used.
    pub(crate) idle: idle::Idle,
    /// How browsers get to the host of services.
    pub(crate) handovers: handovers::Handovers,
    /// Makes the specifications that containers are started from.
    pub(crate) specs: specs::Specs,
    /// Previews of searches.
    pub(crate) preview: preview::Previews,
    /// Replaces the configuration while the master runs.
    pub reload: reload::Reload,
    /// Identities of the cluster and of this start of the master.
    pub identity: specs::MasterIdentity,
    /// Checkpoints as rows: reports of them and changes to them.
    pub(crate) checkpoints: checkpoints::Checkpoints,
    /// Reads files of checkpoints from their storage.
    pub(crate) checkpoint_files: checkpoints::files::CheckpointFiles,
    /// Decides which files of checkpoints go, and has them removed.
    pub(crate) checkpoint_removal: checkpoints::removal::CheckpointRemoval,
    /// Tasks that delete checkpoints: see [`checkpoints::by_task::RemovalTasks`].
    pub(crate) removal_tasks: checkpoints::by_task::RemovalTasks,
    /// Removes what ended and deleted experiments leave behind.
    pub(crate) clean_up: clean_up::CleanUp,
    /// Metric reports on their way in.
    pub(crate) metrics: metrics::Metrics,
    /// The journal of metric reports.
    pub(crate) metric_journal: metrics::journal::Journal,
    /// Long metrics in few points.
    pub(crate) series: metrics::series::Series,
    /// Logs of tasks.
    pub logs: logs::Logs,
    /// How long logs are kept.
    pub(crate) log_retention: logs::retention::LogRetention,
    /// Rights to what has an owner.
    pub(crate) ownership: ownership::Ownership,
    /// Resource managers, and what their drivers report of them.
    pub(crate) managers: managers::Managers,
    /// Resource pools as configured.
    pub pools: pools::Pools,
    /// Users and sessions.
    pub auth: Auth,
    /// Workspaces, projects and pins.
    pub homes: homes::KnownHomes,
    /// A cache of the live rows.
    pub live: Live,
    /// Places: where containers run.
    pub places: places::Places,
    /// Agents and their slots: what they report, and changes to them.
    pub(crate) agents: agents::Agents,
    /// Who may connect as which agent.
    pub(crate) agent_tokens: agent_tokens::AgentTokens,
    /// Directory in which the master keeps its files.
    pub data_dir: PathBuf,
    /// Searches of live experiments.
    pub searches: searches::Searches,
    /// How much memory requests and answers may take.
    pub(crate) budgets: crate::budget::Budgets,
    /// The master's own recent log lines.
    pub log: MasterLog,
    /// Cancelled when nothing is to be placed any more.
    pub(crate) placing: CancellationToken,
    /// Whether the master serves TLS.
    pub tls: bool,
    /// Whether it listens on loopback only.
    pub(crate) loopback: bool,
    /// Background work: what runs, and what ended in a panic.
    pub background: crate::works::Works,
}

/// Runs work of the processor: on a blocking thread if it is long, else here.
pub(crate) async fn offload<T: Send + 'static>(
    long: bool,
    work: impl FnOnce() -> T + Send + 'static,
) -> AppResult<T> {
    if long {
        tokio::task::spawn_blocking(work)
            .await
            .map_err(AppError::internal)
    } else {
        Ok(work())
    }
}
