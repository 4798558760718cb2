//! Texts, configuration and metric of experiments that exist.

use det_ids::ExperimentId;

use crate::{Conn, StoreError};

/// Stores the texts that users may change at any time.
pub async fn set_texts(
    conn: &mut Conn<'_>,
    id: ExperimentId,
    name: &str,
    description: &str,
    labels: &str,
    notes: &str,
) -> Result<(), StoreError> {
    conn.flush().await?;
    conn.writing()?.experiments.remove_all();
    execute!(
        conn,
        update!(
            "name = $1, description = $2, labels = $3, notes = $4, name_folded = $5, \
         description_folded = $6 WHERE id = $7"
        ),
        name,
        description,
        labels,
        notes,
        name.to_lowercase(),
        description.to_lowercase(),
        id
    )?;
    Ok(())
}

/// Stores by what validations are compared from now on. The best one so far is removed: it was best by another metric.
pub async fn set_searcher(
    conn: &mut Conn<'_>,
    id: ExperimentId,
    metric: &str,
    smaller_is_better: bool,
) -> Result<(), StoreError> {
    conn.flush().await?;
    conn.writing()?.experiments.remove_all();
    execute!(
        conn,
        update!(
            "searcher_metric = $1, smaller_is_better = $2, best_metric = NULL, best_trial_id = NULL WHERE id = $3"
        ),
        metric,
        smaller_is_better,
        id
    )?;
    Ok(())
}

/// Stores the effective configuration after a permitted change (resources, checkpoint policy).
pub async fn set_config(
    conn: &mut Conn<'_>,
    id: ExperimentId,
    config: &str,
) -> Result<(), StoreError> {
    conn.flush().await?;
    conn.writing()?.experiments.remove_all();
    execute!(
        conn,
        "UPDATE experiment_configs SET config = $1 WHERE experiment_id = $2",
        config,
        id
    )?;
    Ok(())
}
