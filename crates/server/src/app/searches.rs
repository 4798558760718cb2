//! Searches of live experiments: the pure search in memory, its events in rows.
//!
//! A search is loaded from its snapshot and the events since, when it is first needed, and kept. Every event is stored in
//! the transaction that carries out what the search answers to it. If that transaction fails, the copy in memory is
//! dropped and the rows bring it back.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use det_config::experiment::ExperimentConfig;
use det_ids::ExperimentId;
use det_orchestrator::SearchState;
use det_store::experiments::ExperimentRow;
use det_store::searches::StoredSearch;
use det_store::{Conn, StoreError, WriteTx, searches};

/// Loaded searches by experiment.
#[derive(Clone, Default)]
pub struct Searches {
    loaded: Arc<Mutex<HashMap<ExperimentId, SearchState>>>,
}

impl Searches {
    fn lock(&self) -> MutexGuard<'_, HashMap<ExperimentId, SearchState>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state of a loaded search, as its snapshot; `None` = it is not loaded. For those who compare it with its rows.
    pub fn remembered(&self, experiment_id: ExperimentId) -> Option<serde_json::Value> {
        let loaded = self.lock();
        loaded.get(&experiment_id).map(|it| it.search.snapshot())
    }

    /// Takes the search of an experiment for a change; [`Searches::keep`] puts it back. Of one that is not in memory it is
    /// restored from its rows with the experiment's configuration.
    pub(crate) async fn load(
        &self,
        conn: &mut Conn<'_>,
        experiment_id: ExperimentId,
        config: Result<Arc<ExperimentConfig>, StoreError>,
    ) -> Result<SearchState, StoreError> {
        if let Some(known) = self.lock().remove(&experiment_id) {
            return Ok(known);
        }
        let stored = searches::find(conn, experiment_id)
            .await?
            .ok_or_else(|| corrupt(experiment_id, "there is no snapshot"))?;
        replay(&*config?, experiment_id, &stored)
    }

    /// Keeps a search after a change to it; should the change not be stored, the rows bring the search back.
    pub(crate) fn keep(&self, tx: &mut WriteTx, experiment_id: ExperimentId, search: SearchState) {
        let searches = self.clone();
        tx.on_rollback(move || searches.evict(experiment_id));
        self.lock().insert(experiment_id, search);
    }

    /// Drops the copy in memory.
    pub(crate) fn evict(&self, experiment_id: ExperimentId) {
        self.lock().remove(&experiment_id);
    }
}

fn corrupt(experiment_id: ExperimentId, message: impl std::fmt::Display) -> StoreError {
    StoreError::Corrupt {
        what: format!("the search of experiment {experiment_id}"),
        message: message.to_string(),
    }
}

/// The stored effective configuration of an experiment.
pub fn config_of(row: &ExperimentRow) -> Result<ExperimentConfig, StoreError> {
    serde_json::from_str(&row.config)
        .map_err(|e| e.to_string())
        .and_then(|value: serde_json::Value| {
            ExperimentConfig::from_json(&value).map_err(|e| e.to_string())
        })
        .map_err(|message| StoreError::Corrupt {
            what: format!("configuration of experiment {}", row.id),
            message,
        })
}

/// The search that its rows lead to.
pub fn replay(
    config: &ExperimentConfig,
    experiment_id: ExperimentId,
    stored: &StoredSearch,
) -> Result<SearchState, StoreError> {
    SearchState::replay(
        &config.searcher,
        &config.hyperparameters,
        (&stored.snapshot, stored.through),
        &stored.events,
    )
    .map_err(|error| corrupt(experiment_id, error))
}
