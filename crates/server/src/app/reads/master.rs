//! Reading the master itself: who it is, how it is, what it is configured with.

use std::sync::Arc;

use det_authz::{Kind, Permission};
use det_config::explain::ExplainedKey;
use det_ids::{ClusterId, MasterId};
use det_rm::Manager;
use det_store::{Store, StoreError, settings};
use serde_json::{Map, Value};

use crate::app::context::Context;
use crate::app::managers::Managers;
use crate::app::specs::MasterIdentity;
use crate::auth::Actor;
use crate::error::{AppError, AppResult};
use crate::master_log::MasterLog;
use crate::works::{Work, Works};

/// What is read of the master itself.
#[derive(Clone)]
pub(crate) struct MasterSources {
    pub(crate) context: Context,
    pub(crate) identity: MasterIdentity,
    pub(crate) managers: Managers,
    /// Background work, whose health `/health` reports.
    pub(crate) background: Works,
    /// Its own recent log lines.
    pub(crate) log: MasterLog,
}

/// Who the master is, for every caller.
pub(crate) struct Identity {
    /// Identity of this start of the master: another start has another.
    pub(crate) master_id: MasterId,
    /// Identity of the cluster, as old as its store.
    pub(crate) cluster_id: ClusterId,
    /// Name of the cluster; may be empty.
    pub(crate) cluster_name: String,
    /// Features that are switched on by name.
    pub(crate) feature_switches: Vec<String>,
}

/// Who the master is, from memory.
pub(crate) fn identity(sources: &MasterSources) -> Identity {
    let config = sources.context.config();
    Identity {
        master_id: sources.identity.master_id.clone(),
        cluster_id: sources.identity.cluster_id.clone(),
        cluster_name: config.cluster_name.clone(),
        feature_switches: config.feature_switches.clone(),
    }
}

/// Which parts of the master answer: asked without a token, by monitoring.
pub(crate) struct Health {
    /// Whether the database answers.
    pub(crate) database: bool,
    /// Health of each resource manager, with its name.
    pub(crate) managers: Vec<(String, det_rm::Health)>,
    /// State of each background work, with its name.
    pub(crate) background: Vec<(&'static str, Work)>,
}

impl Health {
    /// Whether all of the master itself answers. A resource manager that is down is no failure of the master: only its own
    /// line shows it.
    pub(crate) fn is_whole(&self) -> bool {
        self.database && self.background.iter().all(|(_, work)| work.runs)
    }
}

/// Which parts of the master answer now.
pub(crate) async fn health(sources: &MasterSources) -> Health {
    let database = match read_one_row(&sources.context.store).await {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(%error, cause = ?std::error::Error::source(&error), "the database does not answer");
            false
        }
    };
    let health_of = |manager: &Manager| {
        let name = match manager.name.as_str() {
            "" => "agents",
            name => name,
        };
        let health = match sources.managers.health(manager) {
            // What is to run where is in the rows.
            health if health.is_up() && !database => {
                let reason = "the database of the master does not answer";
                det_rm::Health::Down(reason.to_owned())
            }
            health => health,
        };
        (name.to_owned(), health)
    };
    Health {
        database,
        managers: sources.managers.list().iter().map(health_of).collect(),
        background: sources.background.list(),
    }
}

async fn read_one_row(store: &Store) -> Result<(), StoreError> {
    let mut conn = store.read().await?;
    settings::find(&mut conn.conn(), "health").await.map(|_| ())
}

fn require_config(actor: &Actor) -> AppResult<()> {
    let to_do = "read the master's configuration";
    actor.require(Permission::Read, Kind::MasterConfig, to_do)
}

/// The effective configuration with its secrets hidden.
pub(crate) fn config(sources: &MasterSources, actor: &Actor) -> AppResult<Map<String, Value>> {
    require_config(actor)?;
    match sources.context.config().to_shown_json() {
        Value::Object(config) => Ok(config),
        _ => Err(AppError::internal(anyhow::anyhow!(
            "the master's configuration is not an object"
        ))),
    }
}

/// Where every value of the effective configuration comes from, secrets hidden.
pub(crate) fn origins(sources: &MasterSources, actor: &Actor) -> AppResult<Arc<Vec<ExplainedKey>>> {
    require_config(actor)?;
    Ok(sources.context.in_force.origins())
}

/// The administrators' message to all users. Setting one is not built, so there is none.
pub(crate) fn cluster_message(actor: &Actor) -> AppResult<()> {
    let to_do = "read the cluster's message";
    actor.require(Permission::Read, Kind::Cluster, to_do)
}
