//! Templates: configurations that others are laid over.

use det_ids::WorkspaceId;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::page::{OrderBy, Pagination};
use crate::wire::{Object, wire_enum};

wire_enum! {
    /// What a listing of templates is sorted by.
    pub enum TemplateSortBy("SORT_BY_") {
        /// By name, as text.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// By name, as text; the same as without a key.
        Name = 1 => "NAME",
    }
}

/// A template: a configuration that others are laid over.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Template {
    /// Its name, unique in the cluster.
    pub name: String,
    /// The keys that it sets, with their values.
    pub config: Object,
    /// Workspace it is in; 0 in a request = Uncategorized.
    #[schema(value_type = i64)]
    pub workspace_id: WorkspaceId,
}

/// Query of `GetTemplates`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct GetTemplatesQuery {
    /// What to sort by.
    pub sort_by: TemplateSortBy,
    /// Direction of the sort order.
    pub order_by: OrderBy,
    /// Elements to skip; negative counts from the end.
    pub offset: i64,
    /// Elements at most; 0 = all.
    pub limit: i64,
    /// Only those whose name contains this, in any case.
    pub name: String,
    /// Only those in these workspaces; none = all.
    #[schema(value_type = Vec<i64>)]
    #[param(value_type = Vec<i64>)]
    pub workspace_ids: Vec<WorkspaceId>,
}

/// Answer of `GetTemplates`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetTemplatesResponse {
    /// The page's templates.
    pub templates: Vec<Template>,
    /// Position of the page in the whole list.
    pub pagination: Pagination,
}

/// Answer of `GetTemplate`, `PostTemplate`, `PutTemplate`, `PatchTemplateConfig` and `PatchTemplateName`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TemplateResponse {
    /// The template as it is now.
    pub template: Template,
}

/// Body of `PatchTemplateName`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PatchTemplateNameRequest {
    /// Name that the template has now.
    pub old_name: String,
    /// Its name from now on.
    pub new_name: String,
}
