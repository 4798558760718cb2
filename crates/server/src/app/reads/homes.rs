//! Reading workspaces and projects.

use std::collections::BTreeMap;
use std::sync::Arc;

use det_authz::Kind;
use det_store::Store;
use det_store::catalogue::{Catalogue, Totals};

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
