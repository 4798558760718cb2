//! Whether the database answers: asked without a token, by monitoring.

use det_store::{Store, StoreError, settings};

/// Reads one row; an error means that the database does not answer.
pub(crate) async fn database(store: &Store) -> Result<(), StoreError> {
    let mut conn = store.read().await?;
    settings::find(&mut conn.conn(), "health").await.map(|_| ())
}
