//! Reading workspaces and projects.

use std::collections::BTreeMap;
use std::sync::Arc;

use det_authz::Kind;
use det_store::Store;
use det_store::catalogue::{Catalogue, Totals};
use det_store::workspaces::{self, ProjectTexts, ProjectTextsHead};

use crate::app::homes::{Homes, KnownHomes};
use crate::app::reads;
use crate::auth::Actor;
use crate::error::AppResult;

/// All workspaces and projects, from memory.
pub(crate) fn all(known: &KnownHomes, actor: &Actor) -> AppResult<Arc<Homes>> {
    reads::require(actor, Kind::Workspace, "workspaces")?;
    reads::require(actor, Kind::Project, "projects")?;
    Ok(known.get())
}

/// The beginnings and sizes of the texts of a workspace's projects, by project.
pub(crate) async fn text_heads(
    store: &Store,
    actor: &Actor,
    workspace_id: i64,
) -> AppResult<BTreeMap<i64, ProjectTextsHead>> {
    reads::require(actor, Kind::Project, "projects")?;
    let mut conn = store.read().await?;
    let heads = workspaces::project_text_heads(&mut conn.conn(), workspace_id).await?;
    Ok(heads.into_iter().map(|head| (head.id, head)).collect())
}

/// The texts of some projects, by project.
pub(crate) async fn texts(
    store: &Store,
    actor: &Actor,
    ids: &[i64],
) -> AppResult<BTreeMap<i64, ProjectTexts>> {
    reads::require(actor, Kind::Project, "projects")?;
    let mut conn = store.read().await?;
    let texts = workspaces::project_texts(&mut conn.conn(), ids).await?;
    Ok(texts.into_iter().map(|texts| (texts.id, texts)).collect())
}

/// What is in each project, counted now.
pub(crate) async fn totals(
    store: &Store,
    catalogue: &Catalogue,
    actor: &Actor,
) -> AppResult<BTreeMap<i64, Totals>> {
    reads::require(actor, Kind::Project, "projects")?;
    catalogue.refresh(store).await?;
    Ok(catalogue.totals())
}
