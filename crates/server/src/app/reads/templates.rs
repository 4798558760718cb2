//! Reading templates.

use std::collections::HashMap;

use det_api_types::page::{OrderBy, Pagination};
use det_api_types::templates::GetTemplatesQuery;
use det_authz::Kind;
use det_store::templates::{self, TemplateRow};
use det_store::{Conn, Store};

use crate::app::reads;
use crate::app::reads::paging;
use crate::auth::Actor;
use crate::error::{AppError, AppResult};

fn require(actor: &Actor) -> AppResult<()> {
    reads::require(actor, Kind::Template, "templates")
}

/// A page of the templates that match, by name. It ends early where what they set is large.
pub(crate) async fn list(
    store: &Store,
    actor: &Actor,
    query: &GetTemplatesQuery,
) -> AppResult<(Vec<TemplateRow>, Pagination)> {
    require(actor)?;
    let mut heads = {
        let mut conn = store.read().await?;
        templates::heads(&mut conn.conn()).await?
    };
    let (name, workspaces) = (query.name.to_lowercase(), &query.workspace_ids);
    heads.retain(|row| {
        row.name.to_lowercase().contains(&name)
            && (workspaces.is_empty() || workspaces.contains(&row.workspace_id))
    });
    if query.order_by == OrderBy::Desc {
        heads.reverse();
    }
    let (heads, pagination) = paging::slice(heads, query.offset, query.limit);
    let (heads, pagination) = paging::within(heads, pagination, |head| head.bytes);
    let names: Vec<String> = heads.into_iter().map(|head| head.name).collect();
    let rows = {
        let mut conn = store.read().await?;
        templates::find_all(&mut conn.conn(), &names).await?
    };
    let mut rows: HashMap<String, TemplateRow> = rows
        .into_iter()
        .map(|row| (row.name.clone(), row))
        .collect();
    let page = names.iter().filter_map(|name| rows.remove(name)).collect();
    Ok((page, pagination))
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
