//! How the services of the master are put together: each is given those below it.

use std::path::PathBuf;
use std::sync::Arc;

use det_store::catalogue::Catalogue;
use tokio::sync::{Mutex, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::app::config_policies::ConfigPolicies;
use crate::app::configs::Configs;
use crate::app::context::Context;
use crate::app::gatherings::Gatherings;
use crate::app::metrics::Intake;
use crate::app::orchestration::{Orchestration, TaskMemory};
use crate::app::ownership::Ownership;
use crate::app::pools::Pools;
use crate::app::restarts::Restarts;
use crate::app::scheduling::{Scheduling, Snapshots};
use crate::app::searches::Searches;
use crate::app::specs::FreshTokens;
use crate::app::templates::Templates;
use crate::app::users::Users;
use crate::app::workspaces::Known;
use crate::app::{Inner, Master, series};
use crate::auth::Auth;
use crate::background::Works;
use crate::budget::Budgets;
use crate::in_force::Surroundings;
use crate::live::Live;
use crate::master_log::MasterLog;
use crate::rm_agents::Connections;

/// What exists before the first service.
pub(crate) struct Foundation {
    pub(crate) context: Context,
    pub(crate) auth: Auth,
    pub(crate) workspaces: Known,
    pub(crate) live: Live,
    pub(crate) surroundings: Arc<dyn Surroundings>,
    pub(crate) data_dir: PathBuf,
    pub(crate) cluster_id: String,
    pub(crate) agent_token_hash: Vec<u8>,
    pub(crate) log: MasterLog,
    pub(crate) tls: bool,
    pub(crate) loopback: bool,
    pub(crate) blank_passwords: bool,
}

impl Master {
    /// Puts the services together.
    pub(crate) fn new(foundation: Foundation) -> Self {
        let Foundation {
            context,
            auth,
            workspaces,
            live,
            surroundings,
            data_dir,
            cluster_id,
            agent_token_hash,
            log,
            tls,
            loopback,
            blank_passwords,
        } = foundation;
        let budgets = Budgets::default();
        let ownership = Ownership::new(context.store.clone(), auth.clone());
        let pools = Pools::new(context.in_force.clone());
        let configs = Configs::default();
        let searches = Searches::default();
        let snapshots = Snapshots::new(
            context.clone(),
            live.clone(),
            pools.clone(),
            workspaces.clone(),
        );
        let restarts = Restarts::new(context.clone(), configs.clone(), snapshots.clone());
        let metric_intake = Intake::default();
        let memory = TaskMemory {
            fresh_tokens: FreshTokens::default(),
            gatherings: Gatherings::new(budgets.all_gathers.clone()),
            auth: auth.clone(),
        };
        let orchestration = Orchestration::new(
            context.clone(),
            configs.clone(),
            searches.clone(),
            restarts,
            metric_intake.clone(),
            memory.clone(),
        );
        let scheduling = Scheduling::new(
            context.clone(),
            pools.clone(),
            snapshots.clone(),
            orchestration.clone(),
        );
        let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        let inner = Inner {
            templates: Templates::new(context.clone(), ownership.clone()),
            users: Users::new(auth.clone(), blank_passwords),
            policies: ConfigPolicies::new(context.clone(), workspaces.clone()),
            orchestration,
            snapshots,
            scheduling,
            ownership,
            pools,
            context,
            auth,
            places: workspaces,
            live,
            fresh_tokens: memory.fresh_tokens,
            connections: Connections::default(),
            surroundings,
            data_dir,
            reloading: Mutex::new(()),
            sweeping: Mutex::new(()),
            cluster_id,
            master_id: uuid::Uuid::new_v4().to_string(),
            agent_token_hash,
            searches,
            catalogue: Catalogue::new(),
            listings: Semaphore::new(cores),
            budgets,
            long_documents: Semaphore::new(1),
            series: series::Work::default(),
            configs,
            gatherings: memory.gatherings,
            metric_intake,
            log,
            placing: CancellationToken::new(),
            tls,
            loopback,
            background: Works::default(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }
}
