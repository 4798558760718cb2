//! How the services of the master are put together: each is given those below it. Those that belong together are made by one
//! function, from the groups that it names.

mod foundation;
mod groups;

use std::sync::Arc;

use det_store::catalogue::Catalogue;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::app::actions::Actions;
use crate::app::changes::{
    Changes, CheckpointChanges, ExperimentChanges, LaunchChanges, TrialChanges, WorkspaceChanges,
};
use crate::app::preview::Previews;
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
use crate::app::reads::model_definition::{self, ArchiveSources};
use crate::app::reads::task_metrics::TaskMetricSources;
use crate::app::reads::tasks::TaskSources;
use crate::app::reads::trials::TrialSources;
use crate::app::reload::Reload;
use crate::app::user_counts::UserCounts;
use crate::app::users::Users;
use crate::app::{Inner, Master};
use crate::connections;
use crate::works::Works;

pub(crate) use self::foundation::Foundation;
use self::groups::{Groups, cores};

impl Master {
    /// Puts the services together.
    pub(crate) fn new(foundation: Foundation) -> Self {
        let inner = Groups::new(foundation).into_inner();
        let sources = sources_of(&inner, cores());
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

impl Groups {
    /// The services that are called from outside.
    fn into_inner(self) -> Inner {
        let (base, events, queue) = (self.base, self.events, self.queue);
        let (places, process) = (self.places, self.process);
        Inner {
            users: Users::new(base.auth.clone(), process.blank_passwords),
            preview: Previews::new(base.context.clone(), base.pools.clone()),
            reload: Reload::new(
                base.context.clone(),
                (base.managers.clone(), base.pools.clone()),
                process.surroundings,
                process.data_dir.clone(),
                base.identity.cluster_id.clone(),
                Arc::default(),
            ),
            context: base.context,
            auth: base.auth,
            homes: base.homes,
            live: base.live,
            budgets: base.budgets,
            ownership: base.ownership,
            managers: base.managers,
            pools: base.pools,
            identity: base.identity,
            idle: base.idle,
            silences: base.silences,
            searches: events.searches,
            metric_journal: events.journal,
            series: events.series,
            orchestration: events.orchestration,
            scheduling: events.scheduling,
            policies: queue.policies,
            renewals: queue.renewals,
            queue: queue.queue,
            explanations: queue.explanations,
            templates: self.submission.templates,
            experiments: self.submission.experiments,
            unmanaged: self.submission.unmanaged,
            launches: self.submission.launches,
            workspaces: self.homes.workspaces,
            namespaces: self.homes.namespaces,
            projects: self.homes.projects,
            logs: self.reports.logs,
            log_retention: self.reports.log_retention,
            metrics: self.reports.metrics,
            task_metrics: self.reports.task_metrics,
            trials: self.reports.trials,
            allocations: self.reports.allocations,
            specs: places.specs,
            places: places.places,
            agents: places.agents,
            agent_tokens: places.agent_tokens,
            services: places.services,
            handovers: places.handovers,
            streams: UserCounts::at_most(connections::streams_of_one()),
            doctor: places.doctor,
            checkpoints: self.checkpoints.checkpoints,
            checkpoint_files: self.checkpoints.files,
            checkpoint_removal: self.checkpoints.removal,
            removal_tasks: self.checkpoints.removal_tasks,
            clean_up: self.checkpoints.clean_up,
            data_dir: process.data_dir,
            log: process.log,
            tls: process.tls,
            loopback: process.loopback,
            placing: CancellationToken::new(),
            background: Works::default(),
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
            searches: model_definition::searches(),
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
