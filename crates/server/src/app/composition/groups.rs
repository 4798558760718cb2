//! The services of a master, group by group: a group is made by one function, of the groups that it is given.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use det_ids::MasterId;
use tokio::sync::Semaphore;

use crate::app::admission::Admission;
use crate::app::agent_tokens::AgentTokens;
use crate::app::agents::Agents;
use crate::app::all_gathers::AllGathers;
use crate::app::allocations::Allocations;
use crate::app::checkpoints::Checkpoints;
use crate::app::checkpoints::by_task::RemovalTasks;
use crate::app::checkpoints::files::CheckpointFiles;
use crate::app::checkpoints::removal::CheckpointRemoval;
use crate::app::clean_up::CleanUp;
use crate::app::cluster_access::ClusterAccess;
use crate::app::config_policies::ConfigPolicies;
use crate::app::configs::Configs;
use crate::app::context::Context;
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
use crate::app::projects::Projects;
use crate::app::reach::{ContainerReach, Reaches};
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
use crate::app::why::Explanations;
use crate::app::workspaces::{HomeChanges, HomeDeletion, WorkspaceNamespaces, Workspaces};
use crate::auth::Auth;
use crate::budget::Budgets;
use crate::in_force::Surroundings;
use crate::live::Live;
use crate::master_log::MasterLog;

use super::foundation::Foundation;

/// What services of several groups use.
pub(super) struct Base {
    pub(super) context: Context,
    pub(super) auth: Auth,
    pub(super) homes: KnownHomes,
    pub(super) live: Live,
    pub(super) budgets: Budgets,
    pub(super) ownership: Ownership,
    pub(super) managers: Managers,
    pub(super) pools: Pools,
    pub(super) configs: Configs,
    pub(super) snapshots: Snapshots,
    pub(super) identity: MasterIdentity,
    pub(super) idle: Idle,
    pub(super) silences: Silences,
}

impl Base {
    fn new(foundation: &Foundation) -> Self {
        let Foundation {
            context,
            auth,
            homes,
            live,
            demands,
            cluster_id,
            ..
        } = foundation;
        let managers = Managers::new(context.in_force.clone());
        let pools = Pools::new(context.in_force.clone(), demands.clone());
        Self {
            budgets: Budgets::default(),
            ownership: Ownership::new(context.store.clone(), auth.clone()),
            snapshots: Snapshots::new(
                context.clone(),
                live.clone(),
                (managers.clone(), pools.clone()),
                homes.clone(),
            ),
            managers,
            pools,
            configs: Configs::default(),
            identity: MasterIdentity {
                cluster_id: cluster_id.clone(),
                master_id: MasterId(uuid::Uuid::new_v4().to_string()),
            },
            idle: Idle::default(),
            silences: Silences::default(),
            context: context.clone(),
            auth: auth.clone(),
            homes: homes.clone(),
            live: live.clone(),
        }
    }
}

/// What follows from events, and where they come from in the background.
pub(super) struct EventServices {
    pub(super) searches: Searches,
    pub(super) journal: Journal,
    pub(super) series: Series,
    pub(super) memory: TaskMemory,
    pub(super) orchestration: Orchestration,
    pub(super) scheduling: Scheduling,
}

impl EventServices {
    fn new(base: &Base) -> Self {
        let context = &base.context;
        let searches = Searches::default();
        let journal = Journal::new(context.clone());
        let of_runs = journal.clone();
        let memory = TaskMemory {
            fresh_tokens: FreshTokens::default(),
            all_gathers: AllGathers::new(base.budgets.all_gathers.clone()),
            auth: base.auth.clone(),
        };
        let orchestration = Orchestration::new(
            context.clone(),
            base.configs.clone(),
            searches.clone(),
            Restarts::new(
                context.clone(),
                base.configs.clone(),
                base.snapshots.clone(),
            ),
            Arc::new(move |trial| of_runs.evict(trial)),
            memory.clone(),
        );
        Self {
            scheduling: Scheduling::new(
                context.clone(),
                base.pools.clone(),
                base.snapshots.clone(),
                orchestration.clone(),
            ),
            series: Series::new(context.clone(), journal.clone()),
            searches,
            journal,
            memory,
            orchestration,
        }
    }
}

/// What may enter the queue, and what is in it.
pub(super) struct QueueServices {
    pub(super) policies: ConfigPolicies,
    pub(super) admission: Admission,
    pub(super) job_changes: JobChanges,
    pub(super) renewals: Renewals,
    pub(super) queue: JobQueue,
    pub(super) explanations: Explanations,
}

impl QueueServices {
    fn new(base: &Base, events: &EventServices, clusters: ClusterAccess) -> Self {
        let (context, homes, pools) = (&base.context, &base.homes, &base.pools);
        let policies = ConfigPolicies::new(context.clone(), homes.clone(), pools.clone());
        let admission = Admission::new(
            context.clone(),
            (base.managers.clone(), pools.clone()),
            (base.snapshots.clone(), clusters),
        );
        let job_changes = JobChanges::new(
            context.clone(),
            pools.clone(),
            policies.clone(),
            events.orchestration.clone(),
        );
        let queue = JobQueue {
            context: context.clone(),
            auth: base.auth.clone(),
            live: base.live.clone(),
            homes: homes.clone(),
            pools: pools.clone(),
            configs: base.configs.clone(),
            ownership: base.ownership.clone(),
            admission: admission.clone(),
            job_changes: job_changes.clone(),
        };
        Self {
            renewals: Renewals::new(
                context.clone(),
                homes.clone(),
                base.configs.clone(),
                policies.clone(),
                (admission.clone(), pools.clone()),
                job_changes.clone(),
            ),
            explanations: Explanations::new(
                context.clone(),
                (base.managers.clone(), pools.clone()),
                base.snapshots.clone(),
                queue.clone(),
            ),
            policies,
            admission,
            job_changes,
            queue,
        }
    }
}

/// What users submit: experiments and tasks, and templates of both.
pub(super) struct SubmissionServices {
    pub(super) templates: Templates,
    pub(super) experiments: Experiments,
    pub(super) unmanaged: UnmanagedRuns,
    pub(super) launches: Launches,
}

impl SubmissionServices {
    fn new(base: &Base, events: &EventServices, queue: &QueueServices) -> Self {
        let (context, ownership) = (&base.context, &base.ownership);
        let templates = Templates::new(context.clone(), ownership.clone());
        let experiments = Experiments {
            context: context.clone(),
            homes: base.homes.clone(),
            pools: base.pools.clone(),
            configs: base.configs.clone(),
            ownership: ownership.clone(),
            policies: queue.policies.clone(),
            submissions: Submissions {
                context: context.clone(),
                homes: base.homes.clone(),
                pools: base.pools.clone(),
                ownership: ownership.clone(),
                templates: templates.clone(),
                policies: queue.policies.clone(),
                admission: queue.admission.clone(),
                renewals: queue.renewals.clone(),
                long_documents: Arc::new(Semaphore::new(1)),
            },
            renewals: queue.renewals.clone(),
            job_changes: queue.job_changes.clone(),
            orchestration: events.orchestration.clone(),
        };
        Self {
            unmanaged: UnmanagedRuns::new(
                context.clone(),
                ownership.clone(),
                experiments.clone(),
                events.orchestration.clone(),
            ),
            experiments,
            launches: Launches {
                context: context.clone(),
                cluster_id: base.identity.cluster_id.clone(),
                configs: base.configs.clone(),
                idle: base.idle.clone(),
                homes: base.homes.clone(),
                pools: base.pools.clone(),
                ownership: ownership.clone(),
                templates: templates.clone(),
                policies: queue.policies.clone(),
                admission: queue.admission.clone(),
                orchestration: events.orchestration.clone(),
            },
            templates,
        }
    }
}

/// Where work belongs: workspaces with their namespaces, and projects.
pub(super) struct HomeServices {
    pub(super) changes: HomeChanges,
    pub(super) deletion: HomeDeletion,
    pub(super) workspaces: Workspaces,
    pub(super) namespaces: WorkspaceNamespaces,
    pub(super) projects: Projects,
}

impl HomeServices {
    fn new(
        base: &Base,
        events: &EventServices,
        renewals: &Renewals,
        clusters: ClusterAccess,
    ) -> Self {
        let changes = HomeChanges::new(base.context.clone(), base.homes.clone());
        let deletion = HomeDeletion::new(changes.clone(), events.orchestration.clone());
        Self {
            workspaces: Workspaces::new(
                base.context.clone(),
                base.pools.clone(),
                base.ownership.clone(),
                changes.clone(),
                deletion.clone(),
            ),
            namespaces: WorkspaceNamespaces::new(base.managers.clone(), changes.clone(), clusters),
            projects: Projects::new(
                base.context.clone(),
                base.homes.clone(),
                base.ownership.clone(),
                changes.clone(),
                deletion.clone(),
                renewals.clone(),
            ),
            changes,
            deletion,
        }
    }
}

/// The services that take what running code reports.
pub(super) struct ReportServices {
    pub(super) logs: Logs,
    pub(super) log_retention: LogRetention,
    pub(super) metrics: Metrics,
    pub(super) task_metrics: TaskMetrics,
    pub(super) trials: Trials,
    pub(super) allocations: Allocations,
}

impl ReportServices {
    fn new(base: &Base, events: &EventServices, policies: &ConfigPolicies) -> Self {
        let (context, ownership) = (&base.context, &base.ownership);
        let (configs, orchestration) = (&base.configs, &events.orchestration);
        let pattern_work = PatternWork::new(cores() - 1);
        let log_policies = LogPolicies::new(
            context.clone(),
            configs.clone(),
            orchestration.clone(),
            pattern_work.clone(),
        );
        Self {
            logs: Logs::new(
                context.clone(),
                ownership.clone(),
                log_policies,
                pattern_work,
                base.silences.clone(),
            ),
            log_retention: LogRetention::new(context.clone(), ownership.clone(), policies.clone()),
            metrics: Metrics::new(
                context.clone(),
                configs.clone(),
                orchestration.clone(),
                ownership.clone(),
                (events.journal.clone(), events.series.clone()),
                base.silences.clone(),
            ),
            task_metrics: TaskMetrics::new(context.clone(), ownership.clone()),
            trials: Trials::new(
                context.clone(),
                configs.clone(),
                ownership.clone(),
                orchestration.clone(),
            ),
            allocations: Allocations::new(
                context.clone(),
                ownership.clone(),
                events.memory.all_gathers.clone(),
                orchestration.clone(),
                (base.idle.clone(), base.silences.clone()),
            ),
        }
    }
}

/// Where containers run, what they run, and how they are reached.
pub(super) struct PlaceServices {
    pub(super) task_users: TaskUsers,
    pub(super) specs: Specs,
    pub(super) places: Places,
    pub(super) agent_tokens: AgentTokens,
    pub(super) agents: Agents,
    pub(super) services: Services,
    pub(super) handovers: Handovers,
    pub(super) doctor: Doctor,
}

/// What [`PlaceServices`] are given of the process around the master.
pub(super) struct PlaceOptions {
    pub(super) reaches: Reaches,
    pub(super) launch_keys: LaunchKeys,
    pub(super) agent_token_hash: Vec<u8>,
}

impl PlaceServices {
    fn new(
        base: &Base,
        events: &EventServices,
        (changes, logs): (&HomeChanges, &Logs),
        options: PlaceOptions,
    ) -> Self {
        let (context, orchestration) = (&base.context, &events.orchestration);
        let task_users = TaskUsers::new(context.clone(), base.homes.clone(), base.auth.clone());
        let specs = Specs {
            context: context.clone(),
            auth: base.auth.clone(),
            live: base.live.clone(),
            homes: base.homes.clone(),
            task_users: task_users.clone(),
            configs: base.configs.clone(),
            pools: base.pools.clone(),
            fresh_tokens: events.memory.fresh_tokens.clone(),
            identity: base.identity.clone(),
            launch_keys: options.launch_keys,
        };
        let places = Places::new(
            context.clone(),
            base.live.clone(),
            (base.managers.clone(), base.pools.clone()),
            specs.clone(),
            orchestration.clone(),
            changes.clone(),
        );
        let reach = ContainerReach::new(base.managers.clone(), options.reaches);
        let services = Services::new(
            context.clone(),
            base.configs.clone(),
            base.ownership.clone(),
            reach.clone(),
        );
        let agent_tokens =
            AgentTokens::new(context.clone(), places.clone(), options.agent_token_hash);
        Self {
            agents: Agents::new(
                context.clone(),
                base.managers.clone(),
                logs.clone(),
                orchestration.clone(),
                places.clone(),
                agent_tokens.clone(),
                base.identity.clone(),
            ),
            handovers: Handovers::new(context.clone(), services.clone(), base.auth.clone()),
            doctor: Doctor::new(
                context.clone(),
                (base.configs.clone(), base.live.clone()),
                base.ownership.clone(),
                (reach, orchestration.clone()),
                base.silences.clone(),
            ),
            task_users,
            specs,
            places,
            agent_tokens,
            services,
        }
    }
}

/// Checkpoints, and what is removed.
pub(super) struct CheckpointServices {
    pub(super) checkpoints: Checkpoints,
    pub(super) files: CheckpointFiles,
    pub(super) removal_tasks: RemovalTasks,
    pub(super) removal: CheckpointRemoval,
    pub(super) clean_up: CleanUp,
}

impl CheckpointServices {
    fn new(
        base: &Base,
        events: &EventServices,
        queue: &QueueServices,
        (home_deletion, task_users): (&HomeDeletion, &TaskUsers),
        data_dir: &Path,
    ) -> Self {
        let (context, cluster_id) = (&base.context, &base.identity.cluster_id);
        let checkpoints = Checkpoints::new(
            context.clone(),
            base.ownership.clone(),
            task_users.clone(),
            base.identity.clone(),
            base.silences.clone(),
        );
        let files = CheckpointFiles::new(
            context.clone(),
            checkpoints.clone(),
            task_users.clone(),
            base.budgets.archives.clone(),
            data_dir.to_owned(),
        );
        let removal_tasks = RemovalTasks {
            context: context.clone(),
            homes: base.homes.clone(),
            pools: base.pools.clone(),
            policies: queue.policies.clone(),
            admission: queue.admission.clone(),
            orchestration: events.orchestration.clone(),
            checkpoints: checkpoints.clone(),
            cluster_id: cluster_id.clone(),
        };
        let removal = CheckpointRemoval::new(
            context.clone(),
            base.ownership.clone(),
            checkpoints.clone(),
            files.clone(),
            removal_tasks.clone(),
        );
        Self {
            clean_up: CleanUp::new(
                context.clone(),
                base.configs.clone(),
                (events.orchestration.clone(), home_deletion.clone()),
                events.journal.clone(),
                files.clone(),
                (removal.clone(), removal_tasks.clone()),
                cluster_id.clone(),
            ),
            checkpoints,
            files,
            removal_tasks,
            removal,
        }
    }
}

/// The services of a master, by what they are for: each group is made of those above it.
pub(super) struct Groups {
    pub(super) base: Base,
    pub(super) events: EventServices,
    pub(super) queue: QueueServices,
    pub(super) submission: SubmissionServices,
    pub(super) homes: HomeServices,
    pub(super) reports: ReportServices,
    pub(super) places: PlaceServices,
    pub(super) checkpoints: CheckpointServices,
    pub(super) process: Process,
}

/// What a master knows of the process that it runs in.
pub(super) struct Process {
    pub(super) surroundings: Arc<dyn Surroundings>,
    pub(super) data_dir: PathBuf,
    pub(super) log: MasterLog,
    pub(super) tls: bool,
    pub(super) loopback: bool,
    pub(super) blank_passwords: bool,
}

impl Groups {
    pub(super) fn new(foundation: Foundation) -> Self {
        let base = Base::new(&foundation);
        let events = EventServices::new(&base);
        let queue = QueueServices::new(&base, &events, foundation.clusters.clone());
        let submission = SubmissionServices::new(&base, &events, &queue);
        let homes = HomeServices::new(&base, &events, &queue.renewals, foundation.clusters);
        let reports = ReportServices::new(&base, &events, &queue.policies);
        let options = PlaceOptions {
            reaches: foundation.reaches,
            launch_keys: foundation.launch_keys,
            agent_token_hash: foundation.agent_token_hash,
        };
        let places = PlaceServices::new(&base, &events, (&homes.changes, &reports.logs), options);
        let checkpoints = CheckpointServices::new(
            &base,
            &events,
            &queue,
            (&homes.deletion, &places.task_users),
            &foundation.data_dir,
        );
        Self {
            base,
            events,
            queue,
            submission,
            homes,
            reports,
            places,
            checkpoints,
            process: Process {
                surroundings: foundation.surroundings,
                data_dir: foundation.data_dir,
                log: foundation.log,
                tls: foundation.tls,
                loopback: foundation.loopback,
                blank_passwords: foundation.blank_passwords,
            },
        }
    }
}

/// Processor cores of the host, at least 1; 2 where they cannot be counted.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(2, std::num::NonZero::get)
}
