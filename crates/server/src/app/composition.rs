//! How the services of the master are put together: each is given those below it.

use std::path::PathBuf;
use std::sync::Arc;

use det_ids::{ClusterId, MasterId};
use det_store::catalogue::Catalogue;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::app::actions::Actions;
use crate::app::admission::Admission;
use crate::app::agent_tokens::AgentTokens;
use crate::app::agents::Agents;
use crate::app::all_gathers::AllGathers;
use crate::app::allocations::Allocations;
use crate::app::changes::{
    Changes, CheckpointChanges, ExperimentChanges, LaunchChanges, TrialChanges, WorkspaceChanges,
};
use crate::app::checkpoints::Checkpoints;
use crate::app::checkpoints::by_task::RemovalTasks;
use crate::app::checkpoints::files::CheckpointFiles;
use crate::app::checkpoints::removal::CheckpointRemoval;
use crate::app::clean_up::CleanUp;
use crate::app::cluster_access::ClusterAccess;
use crate::app::config_policies::ConfigPolicies;
use crate::app::configs::Configs;
use crate::app::context::Context;
use crate::app::demands::Demands;
use crate::app::doctor::Doctor;
use crate::app::experiments::Experiments;
use crate::app::handovers::Handovers;
use crate::app::homes::KnownHomes;
use crate::app::idle::Idle;
use crate::app::job_changes::JobChanges;
use crate::app::jobs::JobQueue;
use crate::app::launches::Launches;
use crate::app::logs::Logs;
use crate::app::logs::pattern_work::PatternWork;
use crate::app::logs::policies::LogPolicies;
use crate::app::logs::retention::LogRetention;
use crate::app::managers::Managers;
use crate::app::metrics::Metrics;
use crate::app::metrics::journal::Journal;
use crate::app::metrics::series::Series;
use crate::app::metrics::task_metrics::TaskMetrics;
use crate::app::orchestration::{Orchestration, TaskMemory};
use crate::app::ownership::Ownership;
use crate::app::places::Places;
use crate::app::pools::Pools;
use crate::app::preview::Previews;
use crate::app::projects::Projects;
use crate::app::reach::{ContainerReach, Reaches};
use crate::app::reads::Sources;
use crate::app::reads::agents::AgentSources;
use crate::app::reads::checkpoints::CheckpointSources;
use crate::app::reads::experiments::ExperimentSources;
use crate::app::reads::homes::HomeSources;
use crate::app::reads::jobs::JobSources;
use crate::app::reads::logs::LogSources;
use crate::app::reads::master::MasterSources;
use crate::app::reads::memory::MemorySources;
use crate::app::reads::metrics::MetricSources;
use crate::app::reads::model_definition::ArchiveSources;
use crate::app::reads::task_metrics::TaskMetricSources;
use crate::app::reads::tasks::TaskSources;
use crate::app::reads::trials::TrialSources;
use crate::app::reload::Reload;
use crate::app::renewal::Renewals;
use crate::app::restarts::Restarts;
use crate::app::scheduling::Scheduling;
use crate::app::searches::Searches;
use crate::app::services::Services;
use crate::app::silences::Silences;
use crate::app::snapshots::Snapshots;
use crate::app::specs::identity::TaskUsers;
use crate::app::specs::{FreshTokens, MasterIdentity, Specs};
use crate::app::ssh_keys::LaunchKeys;
use crate::app::submission::Submissions;
use crate::app::templates::Templates;
use crate::app::trials::Trials;
use crate::app::unmanaged::UnmanagedRuns;
use crate::app::users::Users;
use crate::app::why::Explanations;
use crate::app::workspaces::{HomeChanges, HomeDeletion, WorkspaceNamespaces, Workspaces};
use crate::app::{Inner, Master};
use crate::auth::Auth;
use crate::budget::Budgets;
use crate::in_force::Surroundings;
use crate::live::Live;
use crate::master_log::MasterLog;
use crate::works::Works;

/// What exists before the first service.
pub(crate) struct Foundation {
    pub(crate) context: Context,
    pub(crate) auth: Auth,
    pub(crate) homes: KnownHomes,
    pub(crate) live: Live,
    pub(crate) reaches: Reaches,
    pub(crate) clusters: ClusterAccess,
    pub(crate) demands: Demands,
    pub(crate) surroundings: Arc<dyn Surroundings>,
    pub(crate) data_dir: PathBuf,
    pub(crate) cluster_id: ClusterId,
    pub(crate) launch_keys: LaunchKeys,
    pub(crate) agent_token_hash: Vec<u8>,
    pub(crate) log: MasterLog,
    pub(crate) tls: bool,
    pub(crate) loopback: bool,
    pub(crate) blank_passwords: bool,
}

impl Master {
    /// Puts the services together.
    #[expect(
        clippy::too_many_lines,
        reason = "the list of all services, each made once"
    )]
    pub(crate) fn new(foundation: Foundation) -> Self {
        let Foundation {
            context,
            auth,
            homes,
            live,
            reaches,
            clusters,
            demands,
            surroundings,
            data_dir,
            cluster_id,
            launch_keys,
            agent_token_hash,
            log,
            tls,
            loopback,
            blank_passwords,
        } = foundation;
        let budgets = Budgets::default();
        let ownership = Ownership::new(context.store.clone(), auth.clone());
        let pools = Pools::new(context.in_force.clone(), demands);
        let managers = Managers::new(context.in_force.clone());
        let configs = Configs::default();
        let searches = Searches::default();
        let snapshots = Snapshots::new(
            context.clone(),
            live.clone(),
            (managers.clone(), pools.clone()),
            homes.clone(),
        );
        let restarts = Restarts::new(context.clone(), configs.clone(), snapshots.clone());
        let metric_journal = Journal::new(context.clone());
        let series = Series::new(context.clone(), metric_journal.clone());
        let of_runs = metric_journal.clone();
        let memory = TaskMemory {
            fresh_tokens: FreshTokens::default(),
            all_gathers: AllGathers::new(budgets.all_gathers.clone()),
            auth: auth.clone(),
        };
        let orchestration = Orchestration::new(
            context.clone(),
            configs.clone(),
            searches.clone(),
            restarts,
            Arc::new(move |trial| of_runs.evict(trial)),
            memory.clone(),
        );
        let scheduling = Scheduling::new(
            context.clone(),
            pools.clone(),
            snapshots.clone(),
            orchestration.clone(),
        );
        let policies = ConfigPolicies::new(context.clone(), homes.clone(), pools.clone());
        let templates = Templates::new(context.clone(), ownership.clone());
        let admission = Admission::new(
            context.clone(),
            (managers.clone(), pools.clone()),
            snapshots.clone(),
        );
        let job_changes = JobChanges::new(
            context.clone(),
            pools.clone(),
            policies.clone(),
            orchestration.clone(),
        );
        let renewals = Renewals::new(
            context.clone(),
            homes.clone(),
            configs.clone(),
            policies.clone(),
            (admission.clone(), pools.clone()),
            job_changes.clone(),
        );
        let submissions = Submissions {
            context: context.clone(),
            homes: homes.clone(),
            pools: pools.clone(),
            ownership: ownership.clone(),
            templates: templates.clone(),
            policies: policies.clone(),
            admission: admission.clone(),
            renewals: renewals.clone(),
            long_documents: Arc::new(Semaphore::new(1)),
        };
        let queue = JobQueue {
            context: context.clone(),
            auth: auth.clone(),
            live: live.clone(),
            homes: homes.clone(),
            pools: pools.clone(),
            configs: configs.clone(),
            ownership: ownership.clone(),
            admission: admission.clone(),
            job_changes: job_changes.clone(),
        };
        let explanations = Explanations::new(
            context.clone(),
            (managers.clone(), pools.clone()),
            snapshots.clone(),
            queue.clone(),
        );
        let experiments = Experiments {
            context: context.clone(),
            homes: homes.clone(),
            pools: pools.clone(),
            configs: configs.clone(),
            ownership: ownership.clone(),
            policies: policies.clone(),
            submissions,
            renewals: renewals.clone(),
            job_changes,
            orchestration: orchestration.clone(),
        };
        let changes = HomeChanges::new(context.clone(), homes.clone());
        let home_deletion = HomeDeletion::new(changes.clone(), orchestration.clone());
        let idle = Idle::default();
        let silences = Silences::default();
        let launches = Launches {
            context: context.clone(),
            cluster_id: cluster_id.clone(),
            configs: configs.clone(),
            idle: idle.clone(),
            homes: homes.clone(),
            pools: pools.clone(),
            ownership: ownership.clone(),
            templates: templates.clone(),
            policies: policies.clone(),
            admission: admission.clone(),
            orchestration: orchestration.clone(),
        };
        let identity = MasterIdentity {
            cluster_id: cluster_id.clone(),
            master_id: MasterId(uuid::Uuid::new_v4().to_string()),
        };
        let task_users = TaskUsers::new(context.clone(), homes.clone(), auth.clone());
        let checkpoints = Checkpoints::new(
            context.clone(),
            ownership.clone(),
            task_users.clone(),
            identity.clone(),
            silences.clone(),
        );
        let checkpoint_files = CheckpointFiles::new(
            context.clone(),
            checkpoints.clone(),
            task_users.clone(),
            budgets.archives.clone(),
            data_dir.clone(),
        );
        let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        let pattern_work = PatternWork::new(cores - 1);
        let log_policies = LogPolicies::new(
            context.clone(),
            configs.clone(),
            orchestration.clone(),
            pattern_work.clone(),
        );
        let specs = Specs {
            context: context.clone(),
            auth: auth.clone(),
            live: live.clone(),
            homes: homes.clone(),
            task_users,
            configs: configs.clone(),
            pools: pools.clone(),
            fresh_tokens: memory.fresh_tokens,
            identity: identity.clone(),
            launch_keys,
        };
        let logs = Logs::new(
            context.clone(),
            ownership.clone(),
            log_policies,
            pattern_work,
            silences.clone(),
        );
        let places = Places::new(
            context.clone(),
            live.clone(),
            (managers.clone(), pools.clone()),
            specs.clone(),
            orchestration.clone(),
            changes.clone(),
        );
        let reach = ContainerReach::new(managers.clone(), reaches);
        let services = Services::new(
            context.clone(),
            configs.clone(),
            ownership.clone(),
            reach.clone(),
        );
        let doctor = Doctor::new(
            context.clone(),
            (configs.clone(), live.clone()),
            ownership.clone(),
            (reach, orchestration.clone()),
            silences.clone(),
        );
        let agent_tokens = AgentTokens::new(context.clone(), places.clone(), agent_token_hash);
        let agents = Agents::new(
            context.clone(),
            managers.clone(),
            logs.clone(),
            orchestration.clone(),
            places.clone(),
            agent_tokens.clone(),
            identity.clone(),
        );
        let removal_tasks = RemovalTasks {
            context: context.clone(),
            homes: homes.clone(),
            pools: pools.clone(),
            policies: policies.clone(),
            admission,
            orchestration: orchestration.clone(),
            checkpoints: checkpoints.clone(),
            cluster_id: cluster_id.clone(),
        };
        let checkpoint_removal = CheckpointRemoval::new(
            context.clone(),
            ownership.clone(),
            checkpoints.clone(),
            checkpoint_files.clone(),
            removal_tasks.clone(),
        );
        let inner = Inner {
            clean_up: CleanUp::new(
                context.clone(),
                configs.clone(),
                (orchestration.clone(), home_deletion.clone()),
                metric_journal.clone(),
                checkpoint_files.clone(),
                (checkpoint_removal.clone(), removal_tasks.clone()),
                cluster_id.clone(),
            ),
            checkpoint_removal,
            removal_tasks,
            checkpoints,
            checkpoint_files,
            metrics: Metrics::new(
                context.clone(),
                configs.clone(),
                orchestration.clone(),
                ownership.clone(),
                (metric_journal.clone(), series.clone()),
                silences.clone(),
            ),
            series,
            logs,
            log_retention: LogRetention::new(context.clone(), ownership.clone(), policies.clone()),
            templates,
            users: Users::new(auth.clone(), blank_passwords),
            policies,
            queue,
            explanations,
            unmanaged: UnmanagedRuns::new(
                context.clone(),
                ownership.clone(),
                experiments.clone(),
                orchestration.clone(),
            ),
            experiments,
            launches,
            trials: Trials::new(
                context.clone(),
                configs.clone(),
                ownership.clone(),
                orchestration.clone(),
            ),
            allocations: Allocations::new(
                context.clone(),
                ownership.clone(),
                memory.all_gathers.clone(),
                orchestration.clone(),
                (idle.clone(), silences.clone()),
            ),
            task_metrics: TaskMetrics::new(context.clone(), ownership.clone()),
            doctor,
            silences,
            idle,
            namespaces: WorkspaceNamespaces::new(managers.clone(), changes.clone(), clusters),
            workspaces: Workspaces::new(
                context.clone(),
                pools.clone(),
                ownership.clone(),
                changes.clone(),
                home_deletion.clone(),
            ),
            projects: Projects::new(
                context.clone(),
                homes.clone(),
                ownership.clone(),
                changes,
                home_deletion,
                renewals.clone(),
            ),
            renewals,
            handovers: Handovers::new(context.clone(), services.clone(), auth.clone()),
            services,
            specs,
            preview: Previews::new(context.clone(), pools.clone()),
            reload: Reload::new(
                context.clone(),
                (managers.clone(), pools.clone()),
                surroundings,
                data_dir.clone(),
                cluster_id,
                Arc::default(),
            ),
            identity,
            orchestration,
            scheduling,
            ownership,
            managers,
            pools,
            context,
            auth,
            homes,
            live,
            places,
            agents,
            agent_tokens,
            data_dir,
            searches,
            budgets,
            metric_journal,
            log,
            placing: CancellationToken::new(),
            tls,
            loopback,
            background: Works::default(),
        };
        let sources = sources_of(&inner, cores);
        Self {
            changes: Arc::new(changes_of(&inner, &sources)),
            actions: Arc::new(Actions {
                experiments: inner.experiments.clone(),
                projects: inner.projects.clone(),
                log_retention: inner.log_retention.clone(),
                sources: sources.experiments.clone(),
            }),
            sources: Arc::new(sources),
            inner: Arc::new(inner),
        }
    }
}

/// Gives each reader the services that it reads from. `cores` = how many lists of experiments are made at once.
#[expect(
    clippy::too_many_lines,
    reason = "it names the fields of one struct of structs, and decides nothing"
)]
fn sources_of(services: &Inner, cores: usize) -> Sources {
    let context = &services.context;
    let store = &context.store;
    let journal = &services.metric_journal;
    let streams = &services.budgets.streams;
    let catalogue = Arc::new(Catalogue::new());
    Sources {
        agents: AgentSources {
            store: store.clone(),
            device_use: services.agents.device_use.clone(),
        },
        archives: ArchiveSources {
            store: store.clone(),
            ownership: services.ownership.clone(),
            answers: services.budgets.answers.clone(),
        },
        checkpoints: CheckpointSources {
            store: store.clone(),
            journal: journal.clone(),
            checkpoints: services.checkpoints.clone(),
            files: services.checkpoint_files.clone(),
            renewals: services.renewals.clone(),
        },
        experiments: ExperimentSources {
            store: store.clone(),
            homes: services.homes.clone(),
            auth: services.auth.clone(),
            journal: journal.clone(),
            queue: services.queue.clone(),
            catalogue: catalogue.clone(),
            listings: Arc::new(Semaphore::new(cores)),
        },
        homes: HomeSources {
            context: context.clone(),
            homes: services.homes.clone(),
            auth: services.auth.clone(),
            catalogue,
            namespaces: services.namespaces.clone(),
            pools: services.pools.clone(),
        },
        jobs: JobSources {
            store: store.clone(),
            managers: services.managers.clone(),
            pools: services.pools.clone(),
            queue: services.queue.clone(),
            explanations: services.explanations.clone(),
        },
        logs: LogSources {
            store: store.clone(),
            logs: services.logs.clone(),
        },
        master: MasterSources {
            context: context.clone(),
            identity: services.identity.clone(),
            managers: services.managers.clone(),
            background: services.background.clone(),
            log: services.log.clone(),
        },
        memory: MemorySources {
            context: context.clone(),
            budgets: services.budgets.clone(),
        },
        metrics: MetricSources {
            context: context.clone(),
            journal: journal.clone(),
            streams: streams.clone(),
        },
        task_metrics: TaskMetricSources {
            task_metrics: services.task_metrics.clone(),
            streams: streams.clone(),
        },
        tasks: TaskSources {
            store: store.clone(),
            auth: services.auth.clone(),
            pools: services.pools.clone(),
            services: services.services.clone(),
            task_users: services.specs.task_users.clone(),
        },
        trials: TrialSources {
            store: store.clone(),
            journal: journal.clone(),
            series: services.series.clone(),
            log_retention: services.log_retention.clone(),
        },
    }
}

/// Gives the changes that are answered with what they changed their services and what they are shown from.
fn changes_of(services: &Inner, sources: &Sources) -> Changes {
    Changes {
        experiments: ExperimentChanges {
            experiments: services.experiments.clone(),
            unmanaged: services.unmanaged.clone(),
            sources: sources.experiments.clone(),
        },
        trials: TrialChanges {
            unmanaged: services.unmanaged.clone(),
            store: services.context.store.clone(),
        },
        launches: LaunchChanges {
            launches: services.launches.clone(),
            queue: services.queue.clone(),
            sources: sources.tasks.clone(),
            experiments: sources.experiments.clone(),
        },
        workspaces: WorkspaceChanges {
            workspaces: services.workspaces.clone(),
            namespaces: services.namespaces.clone(),
            projects: services.projects.clone(),
            sources: sources.homes.clone(),
        },
        checkpoints: CheckpointChanges {
            checkpoints: services.checkpoints.clone(),
            sources: sources.checkpoints.clone(),
        },
    }
}
