//! Reading templates.

use det_authz::Kind;
use det_store::templates::TemplateRow;

use crate::app::Master;
use crate::app::reads;
use crate::app::templates::TemplateFilter;
use crate::auth::Actor;
use crate::error::AppResult;

fn require(actor: &Actor) -> AppResult<()> {
    reads::require(actor, Kind::Template, "templates")
}

/// The templates that match, by name.
pub(crate) async fn list(
    master: &Master,
    actor: &Actor,
    filter: &TemplateFilter,
) -> AppResult<Vec<TemplateRow>> {
    require(actor)?;
    master.list_templates(filter).await
}

/// One template.
pub(crate) async fn find(master: &Master, actor: &Actor, name: &str) -> AppResult<TemplateRow> {
    require(actor)?;
    master.template(name).await
}
