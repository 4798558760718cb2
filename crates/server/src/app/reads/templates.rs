//! Reading templates.

use std::collections::HashMap;

use det_api_types::page::{OrderBy, Pagination};
use det_api_types::templates::GetTemplatesQuery;
use det_authz::{Kind, Permission, Target};
use det_ids::WorkspaceId;
use det_lifecycle::object::ObjectKind;
use det_store::templates::{self, TemplateRow};
use det_store::{Conn, Store};
use serde_json::{Map, Value};

use crate::app::documents::masked_for;
use crate::app::reads;
use crate::app::reads::paging;
use crate::auth::Actor;
use crate::error::{AppError, AppResult};

/// A template as a reader sees it.
#[derive(Debug)]
pub(crate) struct TemplateView {
    /// Name of the template, unique over the cluster.
    pub(crate) name: String,
    /// The workspace that it is in.
    pub(crate) workspace_id: WorkspaceId,
    /// What it sets, without what is hidden from the reader.
    pub(crate) config: Map<String, Value>,
}

/// A template for showing: secrets are hidden, and from others than its owner and administrators, who may have to change
/// it, also variables that look like secrets.
pub(crate) fn shown(row: &TemplateRow, reader: &Actor) -> AppResult<TemplateView> {
    let config: Value = serde_json::from_str(&row.config).map_err(AppError::internal)?;
    let target = Target::of(Kind::Template).owned_by(row.owner_id);
    let keeps_it = reader.may(Permission::ReadUnmasked, &target);
    Ok(TemplateView {
        name: row.name.clone(),
        workspace_id: row.workspace_id,
        config: match masked_for(keeps_it, &config) {
            Value::Object(members) => members,
            _ => Map::new(),
        },
    })
}

fn require(actor: &Actor) -> AppResult<()> {
    reads::require(actor, Kind::Template, "templates")
}

/// One page of the templates that match, by name. It ends early where what they set is large.
pub(crate) async fn page(
    store: &Store,
    actor: &Actor,
    query: &GetTemplatesQuery,
) -> AppResult<(Vec<TemplateView>, Pagination)> {
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
    let page = names.iter().filter_map(|name| rows.remove(name));
    let page = page.map(|row| shown(&row, actor));
    Ok((page.collect::<AppResult<_>>()?, pagination))
}

/// One template as the actor sees it.
pub(crate) async fn one(store: &Store, actor: &Actor, name: &str) -> AppResult<TemplateView> {
    shown(&find(store, actor, name).await?, actor)
}

/// The row of one template.
pub(crate) async fn find(store: &Store, actor: &Actor, name: &str) -> AppResult<TemplateRow> {
    require(actor)?;
    stored(&mut store.read().await?.conn(), name).await
}

/// The row of a template, for those whose right has been asked for.
pub(crate) async fn stored(conn: &mut Conn<'_>, name: &str) -> AppResult<TemplateRow> {
    templates::find(conn, name)
        .await?
        .ok_or_else(|| AppError::not_found(ObjectKind::Template, name.escape_debug()))
}
