//! Policies that administrators lay over configurations.

use det_ids::WorkspaceId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::wire::Object;

/// Body of `PutGlobalConfigPolicies` and `PutWorkspaceConfigPolicies`. The URL contains the scope and the kind of
/// workload.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PutConfigPoliciesRequest {
    /// The policies, YAML or JSON.
    pub config_policies: String,
    /// Kind of work; the address counts.
    pub workload_type: String,
    /// Number of the workspace again; the one in the path counts. `None` = policies of the whole cluster.
    #[schema(value_type = Option<i64>)]
    pub workspace_id: Option<WorkspaceId>,
}

/// Answer of the operations that get and put policies.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigPoliciesResponse {
    /// The policies; empty = there are none.
    pub config_policies: Object,
}
