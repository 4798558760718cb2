//! Policies that administrators lay over configurations: of the cluster and of workspaces, for each kind of work.

use det_ids::WorkspaceId;
pub use det_lifecycle::record::PolicyWorkload;

use crate::{Conn, StoreError};

/// The workspace that policies of the whole cluster are stored with.
pub const CLUSTER: WorkspaceId = WorkspaceId(0);

/// The policies of one scope for one kind of work.
#[derive(Debug, Clone, PartialEq, Eq, crate::Row)]
#[row(kind = "config policies of workspace", id = "workspace_id")]
pub struct ConfigPolicyRow {
    /// Number of the workspace that they hold for; [`CLUSTER`] = everywhere.
    pub workspace_id: WorkspaceId,
    /// The kind of work that they are for.
    #[row(word)]
    pub workload: PolicyWorkload,
    /// The policies, a JSON document.
    pub document: String,
    /// When they were last changed, microseconds.
    pub modified_at: i64,
}

/// The policies of the [`CLUSTER`] or of a workspace.
pub async fn find(
    conn: &mut Conn<'_>,
    workspace_id: WorkspaceId,
    workload: PolicyWorkload,
) -> Result<Option<ConfigPolicyRow>, StoreError> {
    Ok(fetch_optional!(
        conn,
        ConfigPolicyRow,
        "SELECT * FROM config_policies WHERE workspace_id = $1 AND workload = $2",
        workspace_id,
        <&str>::from(workload)
    )?)
}

/// Stores policies in place of those there were.
pub async fn set(conn: &mut Conn<'_>, row: &ConfigPolicyRow) -> Result<(), StoreError> {
    execute!(
        conn,
        "INSERT INTO config_policies (workspace_id, workload, document, modified_at) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (workspace_id, workload) DO UPDATE SET document = excluded.document, \
         modified_at = excluded.modified_at",
        row.workspace_id,
        <&str>::from(row.workload),
        row.document.as_str(),
        row.modified_at
    )?;
    Ok(())
}

/// Removes policies; `false` = there were none.
pub async fn delete(
    conn: &mut Conn<'_>,
    workspace_id: WorkspaceId,
    workload: PolicyWorkload,
) -> Result<bool, StoreError> {
    let removed = execute!(
        conn,
        "DELETE FROM config_policies WHERE workspace_id = $1 AND workload = $2",
        workspace_id,
        <&str>::from(workload)
    )?;
    Ok(removed == 1)
}
