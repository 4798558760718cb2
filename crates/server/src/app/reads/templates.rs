//! Reading templates.

use det_authz::Kind;
use det_store::templates::{self, TemplateRow};
use det_store::{Conn, Store};

use crate::app::reads;
use crate::auth::Actor;
use crate::error::{AppError, AppResult};

/// Which templates to list.
#[derive(Debug, Clone, Default)]
pub(crate) struct TemplateFilter {
    /// Only those whose name contains this, in any case.
    pub(crate) name: String,
    /// Only those in these workspaces; none = all.
    pub(crate) workspace_ids: Vec<i64>,
}

fn require(actor: &Actor) -> AppResult<()> {
    reads::require(actor, Kind::Template, "templates")
}

/// The templates that match, by name.
pub(crate) async fn list(
    store: &Store,
    actor: &Actor,
    filter: &TemplateFilter,
) -> AppResult<Vec<TemplateRow>> {
    require(actor)?;
    let mut rows = {
        let mut conn = store.read().await?;
        templates::list(&mut conn.conn()).await?
    };
    let name = filter.name.to_lowercase();
    rows.retain(|row| {
        row.name.to_lowercase().contains(&name)
            && (filter.workspace_ids.is_empty() || filter.workspace_ids.contains(&row.workspace_id))
    });
    Ok(rows)
}

/// One template.
pub(crate) async fn find(store: &Store, actor: &Actor, name: &str) -> AppResult<TemplateRow> {
    require(actor)?;
    stored(&mut store.read().await?.conn(), name).await
}

/// The row of a template, for those whose right has been asked for.
pub(crate) async fn stored(conn: &mut Conn<'_>, name: &str) -> AppResult<TemplateRow> {
    templates::find(conn, name)
        .await?
        .ok_or_else(|| AppError::not_found("template", name.escape_debug()))
}
