//! Templates of configurations.

use det_ids::{UserId, WorkspaceId};

use crate::query::{Query, Value, pieces};
use crate::{Conn, StoreError};

/// A template: the configuration that others are laid over.
#[derive(Debug, Clone, PartialEq, Eq, crate::Row)]
pub struct TemplateRow {
    /// Its name, unique over the cluster.
    pub name: String,
    /// Workspace it is in.
    pub workspace_id: WorkspaceId,
    /// The user who added it.
    pub owner_id: UserId,
    /// What it sets, as JSON.
    pub config: String,
    /// When it was added, microseconds.
    pub created_at: i64,
    /// When its content or name was last changed, microseconds.
    pub modified_at: i64,
}

/// What lists of templates are filtered and cut by.
#[derive(Debug, Clone, PartialEq, Eq, crate::Row)]
pub struct TemplateHead {
    /// Its name, unique over the cluster.
    pub name: String,
    /// The workspace that it is in.
    pub workspace_id: WorkspaceId,
    /// Bytes of what it sets.
    pub bytes: i64,
}

/// All templates by name, without what they set.
pub async fn heads(conn: &mut Conn<'_>) -> Result<Vec<TemplateHead>, StoreError> {
    let mut heads = fetch_all!(
        conn,
        TemplateHead,
        "SELECT name, workspace_id, CAST(octet_length(config) AS BIGINT) AS bytes FROM templates"
    )?;
    // Databases sort text each in its own way.
    heads.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(heads)
}

/// The templates of these names, in no order.
pub async fn find_all(
    conn: &mut Conn<'_>,
    names: &[String],
) -> Result<Vec<TemplateRow>, StoreError> {
    let mut found = Vec::new();
    for names in pieces(names) {
        let mut query = Query::new("SELECT * FROM templates");
        query.any_of("name", names.iter().map(|name| Value::Text(name.clone())));
        found.extend(query.fetch_all(conn).await?);
    }
    Ok(found)
}

/// The template of this name.
pub async fn find(conn: &mut Conn<'_>, name: &str) -> Result<Option<TemplateRow>, StoreError> {
    Ok(fetch_optional!(
        conn,
        TemplateRow,
        "SELECT * FROM templates WHERE name = $1",
        name
    )?)
}

/// Adds a template; `false` = the name is taken, and nothing has changed.
pub async fn insert(conn: &mut Conn<'_>, new: &TemplateRow) -> Result<bool, StoreError> {
    let added = execute!(
        conn,
        "INSERT INTO templates (name, workspace_id, owner_id, config, created_at, modified_at) \
         VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (name) DO NOTHING",
        new.name.as_str(),
        new.workspace_id,
        new.owner_id,
        new.config.as_str(),
        new.created_at,
        new.modified_at
    )?;
    Ok(added == 1)
}

/// Stores another content; `false` = the template does not exist.
pub async fn set_config(
    conn: &mut Conn<'_>,
    name: &str,
    config: &str,
    modified_at: i64,
) -> Result<bool, StoreError> {
    let changed = execute!(
        conn,
        "UPDATE templates SET config = $1, modified_at = $2 WHERE name = $3",
        config,
        modified_at,
        name
    )?;
    Ok(changed == 1)
}

/// Gives a template another name, which must be free; `false` = the template does not exist.
pub async fn rename(conn: &mut Conn<'_>, from: &str, to: &str) -> Result<bool, StoreError> {
    let changed = execute!(
        conn,
        "UPDATE templates SET name = $1 WHERE name = $2",
        to,
        from
    )?;
    Ok(changed == 1)
}

/// Removes a template; `false` = there was none.
pub async fn delete(conn: &mut Conn<'_>, name: &str) -> Result<bool, StoreError> {
    let removed = execute!(conn, "DELETE FROM templates WHERE name = $1", name)?;
    Ok(removed == 1)
}
