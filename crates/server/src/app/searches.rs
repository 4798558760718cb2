//! Searches of live experiments: the pure search in memory, its events in rows.
//!
//! A search is loaded from its snapshot and the events since, when it is first needed, and kept. Every event is stored in
//! the transaction that carries out what the search answers to it. If that transaction fails, the copy in memory is
//! dropped and the rows bring it back.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use det_config::experiment::ExperimentConfig;
use det_lifecycle::experiment::ExperimentState;
use det_searcher::{Action, Event, Outcome, Search};
use det_store::experiments::ExperimentRow;
use det_store::searches::StoredSearch;
use det_store::{StoreError, WriteTx, searches};

use crate::app::Master;
use crate::error::{AppError, AppResult};

/// Events after which a new snapshot replaces them. A restart replays at most this many.
const SNAPSHOT_EVERY: i64 = 4096;

/// Loaded searches by experiment.
#[derive(Clone, Default)]
pub struct Searches {
    loaded: Arc<Mutex<HashMap<i64, Loaded>>>,
}

struct Loaded {
    search: Search,
    /// Sequence number of the last event applied.
    through: i64,
    /// Sequence number of the last event in the snapshot.
    snapshot: i64,
}

impl Searches {
    fn take(&self, experiment_id: i64) -> Option<Loaded> {
        self.loaded
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&experiment_id)
    }

    fn put(&self, experiment_id: i64, loaded: Loaded) {
        self.loaded
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(experiment_id, loaded);
    }

    /// The state of a loaded search, as its snapshot; `None` = it is not loaded. For those who compare it with its rows.
    pub fn remembered(&self, experiment_id: i64) -> Option<serde_json::Value> {
        self.loaded
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&experiment_id)
            .map(|loaded| loaded.search.snapshot())
    }

    fn drop_copy(&self, experiment_id: i64) {
        self.take(experiment_id);
    }
}

fn corrupt(experiment_id: i64, message: impl std::fmt::Display) -> StoreError {
    StoreError::Corrupt {
        what: format!("the search of experiment {experiment_id}"),
        message: message.to_string(),
    }
}

/// Whether what is stored cannot be read.
fn is_corrupt(error: &AppError) -> bool {
    let cause = error.cause.as_ref().and_then(|c| c.downcast_ref());
    matches!(cause, Some(StoreError::Corrupt { .. }))
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

/// The search that its rows lead to, and the number of its last event.
pub fn replay(
    config: &ExperimentConfig,
    experiment_id: i64,
    stored: &StoredSearch,
) -> Result<(Search, i64), StoreError> {
    let snapshot = serde_json::from_str(&stored.snapshot).map_err(|e| corrupt(experiment_id, e))?;
    let mut search = Search::restore(&config.searcher, &config.hyperparameters, &snapshot)
        .map_err(|e| corrupt(experiment_id, e))?;
    let mut through = stored.through;
    for (seq, event) in &stored.events {
        let event: Event = serde_json::from_str(event).map_err(|e| corrupt(experiment_id, e))?;
        // What it asked for then was carried out in the transaction that stored the event.
        search.on(event);
        through = *seq;
    }
    Ok((search, through))
}

impl Master {
    /// Stores a search that has just been started.
    pub(crate) async fn store_new_search(
        &self,
        tx: &mut WriteTx,
        experiment_id: i64,
        search: Search,
    ) -> Result<(), StoreError> {
        searches::save_snapshot(
            &mut tx.conn(),
            experiment_id,
            0,
            &search.snapshot().to_string(),
        )
        .await?;
        self.keep(
            tx,
            experiment_id,
            Loaded {
                search,
                through: 0,
                snapshot: 0,
            },
        );
        Ok(())
    }

    fn keep(&self, tx: &mut WriteTx, experiment_id: i64, loaded: Loaded) {
        let searches = self.searches.clone();
        tx.on_rollback(move || searches.drop_copy(experiment_id));
        self.searches.put(experiment_id, loaded);
    }

    async fn load_search(&self, tx: &mut WriteTx, experiment: &ExperimentRow) -> AppResult<Loaded> {
        if let Some(loaded) = self.searches.take(experiment.id) {
            return Ok(loaded);
        }
        let stored = searches::find(&mut tx.conn(), experiment.id)
            .await?
            .ok_or_else(|| corrupt(experiment.id, "there is no snapshot"))?;
        let (search, through) = replay(&config_of(experiment)?, experiment.id, &stored)?;
        Ok(Loaded {
            search,
            through,
            snapshot: stored.through,
        })
    }

    /// Tells the search of an experiment, and gives what it asks for and the progress it shows now.
    pub(crate) async fn tell_search(
        &self,
        tx: &mut WriteTx,
        experiment: &ExperimentRow,
        event: Event,
    ) -> AppResult<(Vec<Action>, f64)> {
        let mut loaded = match self.load_search(tx, experiment).await {
            Ok(loaded) => loaded,
            // Without its search an experiment can only end.
            Err(error) if is_corrupt(&error) => {
                tracing::error!(
                    experiment.id = experiment.id,
                    %error,
                    cause = ?error.cause,
                    "the search of an experiment cannot be restored; the experiment fails"
                );
                let failing = matches!(experiment.state, ExperimentState::Stopping(_));
                let actions = if failing {
                    Vec::new()
                } else {
                    vec![Action::Shutdown(Outcome::Failed)]
                };
                return Ok((actions, experiment.progress));
            }
            Err(error) => return Err(error),
        };
        let text = serde_json::to_string(&event).map_err(AppError::internal)?;
        loaded.through += 1;
        searches::append_event(&mut tx.conn(), experiment.id, loaded.through, &text).await?;
        let actions = loaded.search.on(event);
        if loaded.through - loaded.snapshot >= SNAPSHOT_EVERY {
            let snapshot = loaded.search.snapshot().to_string();
            searches::save_snapshot(&mut tx.conn(), experiment.id, loaded.through, &snapshot)
                .await?;
            loaded.snapshot = loaded.through;
        }
        let progress = loaded.search.progress();
        self.keep(tx, experiment.id, loaded);
        Ok((actions, progress))
    }

    /// Forgets the search of an experiment that has ended.
    pub(crate) async fn end_search(
        &self,
        tx: &mut WriteTx,
        experiment_id: i64,
    ) -> Result<(), StoreError> {
        searches::delete(&mut tx.conn(), experiment_id).await?;
        self.searches.drop_copy(experiment_id);
        Ok(())
    }
}
