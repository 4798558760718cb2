//! Single values of the cluster.

use crate::{Conn, StoreError};

/// The value that is stored for `key`; `None` = none is.
pub async fn find(conn: &mut Conn<'_>, key: &str) -> Result<Option<String>, StoreError> {
    let row = fetch_optional!(
        conn,
        (String,),
        "SELECT value FROM settings WHERE key = $1",
        key
    )?;
    Ok(row.map(|(value,)| value))
}

/// Stores `value` for `key`, in place of what is stored.
pub async fn set(conn: &mut Conn<'_>, key: &str, value: &str) -> Result<(), StoreError> {
    execute!(
        conn,
        "INSERT INTO settings (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        key,
        value
    )?;
    Ok(())
}
