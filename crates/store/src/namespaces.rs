//! Namespaces of workspaces: which they are bound to in the cluster of each manager that has such, and which were made for
//! them.

use det_ids::WorkspaceId;

use crate::{Conn, StoreError};

/// That the work in a workspace runs in a namespace of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, crate::Row)]
#[row(id = "workspace_id")]
pub struct BindingRow {
    /// Number of the workspace that is bound.
    pub workspace_id: WorkspaceId,
    /// Name of the cluster's resource manager.
    pub cluster_name: String,
    /// Name of the namespace.
    pub namespace: String,
    /// Whether the master makes the namespace.
    pub auto_create: bool,
    /// Most slots in use at once by the work in it, in this cluster; `None` = no limit of its own. Only where the master
    /// makes the namespace.
    pub quota: Option<i64>,
}

/// A namespace that the master makes for a workspace.
#[derive(Debug, Clone, Default, PartialEq, Eq, crate::Row)]
#[row(id = "workspace_id")]
pub struct MadeRow {
    /// Name of the cluster's resource manager.
    pub cluster_name: String,
    /// Name of the namespace.
    pub namespace: String,
    /// Number of the workspace that the namespace was made for.
    pub workspace_id: WorkspaceId,
    /// Whether the workspace is gone, and the namespace is to go.
    pub removed: bool,
}

/// All bindings, by workspace and cluster.
pub async fn bindings(conn: &mut Conn<'_>) -> Result<Vec<BindingRow>, StoreError> {
    Ok(fetch_all!(
        conn,
        BindingRow,
        "SELECT * FROM workspace_namespace_bindings ORDER BY workspace_id, cluster_name"
    )?)
}

/// All namespaces that the master makes or removes, by cluster and name.
pub async fn made(conn: &mut Conn<'_>) -> Result<Vec<MadeRow>, StoreError> {
    Ok(fetch_all!(
        conn,
        MadeRow,
        "SELECT * FROM made_namespaces ORDER BY cluster_name, namespace"
    )?)
}

/// Binds a workspace in a cluster, in place of its binding there. A namespace that is made belongs to the workspace until
/// that is deleted, whatever it is bound to later.
pub async fn bind(conn: &mut Conn<'_>, row: &BindingRow) -> Result<(), StoreError> {
    execute!(
        conn,
        "INSERT INTO workspace_namespace_bindings (workspace_id, cluster_name, namespace, auto_create, quota) \
         VALUES ($1, $2, $3, $4, $5) ON CONFLICT (workspace_id, cluster_name) DO UPDATE \
         SET namespace = excluded.namespace, auto_create = excluded.auto_create, quota = excluded.quota",
        row.workspace_id,
        row.cluster_name.as_str(),
        row.namespace.as_str(),
        row.auto_create,
        row.quota
    )?;
    if row.auto_create {
        execute!(
            conn,
            "INSERT INTO made_namespaces (cluster_name, namespace, workspace_id, removed) \
             VALUES ($1, $2, $3, FALSE) ON CONFLICT (cluster_name, namespace) DO NOTHING",
            row.cluster_name.as_str(),
            row.namespace.as_str(),
            row.workspace_id
        )?;
    }
    Ok(())
}

/// Takes the binding of a workspace in a cluster away.
pub async fn unbind(
    conn: &mut Conn<'_>,
    workspace_id: WorkspaceId,
    cluster_name: &str,
) -> Result<(), StoreError> {
    execute!(
        conn,
        "DELETE FROM workspace_namespace_bindings WHERE workspace_id = $1 AND cluster_name = $2",
        workspace_id,
        cluster_name
    )?;
    Ok(())
}

/// A workspace is being deleted: its bindings go, and the namespaces that were made for it are to go from their clusters.
pub(crate) async fn release(
    conn: &mut Conn<'_>,
    workspace_id: WorkspaceId,
) -> Result<(), StoreError> {
    for sql in [
        "DELETE FROM workspace_namespace_bindings WHERE workspace_id = $1",
        "UPDATE made_namespaces SET removed = TRUE WHERE workspace_id = $1",
    ] {
        execute!(conn, sql, workspace_id)?;
    }
    Ok(())
}

/// A namespace that was to go is gone from its cluster: so is its row.
pub async fn delete_removed(
    conn: &mut Conn<'_>,
    cluster_name: &str,
    namespace: &str,
) -> Result<(), StoreError> {
    execute!(
        conn,
        "DELETE FROM made_namespaces WHERE cluster_name = $1 AND namespace = $2 AND removed",
        cluster_name,
        namespace
    )?;
    Ok(())
}
