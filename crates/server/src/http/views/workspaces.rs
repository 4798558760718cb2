//! Workspaces and projects as clients see them.

use std::collections::BTreeMap;

use det_api_types::users::AgentUserGroup;
use det_api_types::wire::{Object, Timestamp};
use det_api_types::workspaces::{
    Note, Project, Workspace, WorkspaceNamespaceBinding, WorkspaceState,
};
use det_config::experiment::mask_document;
use det_store::namespaces::BindingRow;
use det_store::workspaces::DeletionState;
use serde_json::{Value, json};

use crate::app::projects::{Note as StoredNote, notes_of};
use crate::app::reads::homes::{ProjectView, WorkspaceView};
use crate::error::{AppError, AppResult};

/// A workspace as its reader sees it. An error = what is stored of it cannot be read.
pub(crate) fn workspace(view: &WorkspaceView) -> AppResult<Workspace> {
    let row = &view.row;
    Ok(Workspace {
        id: row.id,
        name: row.name.clone(),
        archived: row.archived,
        username: view.owner.username.clone(),
        user_id: view.owner.id,
        immutable: row.immutable,
        num_projects: view.projects,
        num_experiments: view.experiments,
        pinned: view.pinned_at.is_some(),
        pinned_at: view.pinned_at.map(Timestamp),
        state: state(row.state),
        error_message: row.error.clone().unwrap_or_default(),
        agent_user_group: (row.agent_uid.is_some() || row.agent_gid.is_some()).then(|| {
            AgentUserGroup {
                agent_uid: row.agent_uid,
                agent_user: row.agent_user.clone(),
                agent_gid: row.agent_gid,
                agent_group: row.agent_group.clone(),
            }
        }),
        checkpoint_storage_config: row.checkpoint_storage.as_deref().map(storage).transpose()?,
        default_compute_pool: row.default_compute_pool.clone(),
        default_aux_pool: row.default_aux_pool.clone(),
        auto_created_namespace: view.made_namespace.clone(),
        max_slots: row.max_slots,
    })
}

/// Bindings by cluster.
pub(crate) fn by_cluster(bindings: &[BindingRow]) -> BTreeMap<String, WorkspaceNamespaceBinding> {
    let shown = bindings.iter().map(|row| {
        let binding = WorkspaceNamespaceBinding {
            workspace_id: row.workspace_id,
            namespace: row.namespace.clone(),
            cluster_name: row.cluster_name.clone(),
            auto_create_namespace: row.auto_create,
        };
        (row.cluster_name.clone(), binding)
    });
    shown.collect()
}

/// A project as its readers see it. An error = what is stored of it cannot be read.
pub(crate) fn project(view: &ProjectView) -> AppResult<Project> {
    let (row, texts) = (&view.row, view.texts.as_ref());
    Ok(Project {
        id: row.id,
        name: row.name.clone(),
        key: row.key.clone(),
        workspace_id: row.workspace_id,
        workspace_name: view.workspace.clone(),
        description: texts.map_or_else(String::new, |texts| texts.description.clone()),
        notes: notes(texts.map(notes_of).transpose()?.unwrap_or_default()),
        archived: view.archived,
        username: view.owner.username.clone(),
        user_id: view.owner.id,
        immutable: row.immutable,
        num_experiments: view.totals.experiments,
        num_active_experiments: view.totals.live,
        num_runs: view.totals.trials,
        last_experiment_started_at: view.totals.last_created_at.map(Timestamp),
        state: state(row.state),
        error_message: row.error.clone().unwrap_or_default(),
    })
}

/// Notes of a project.
pub(crate) fn notes(stored: Vec<StoredNote>) -> Vec<Note> {
    let note = |StoredNote { name, contents }| Note { name, contents };
    stored.into_iter().map(note).collect()
}

fn state(stored: Option<DeletionState>) -> WorkspaceState {
    match stored {
        Some(DeletionState::Deleting) => WorkspaceState::Deleting,
        Some(DeletionState::DeleteFailed) => WorkspaceState::DeleteFailed,
        None => WorkspaceState::Unspecified,
    }
}

/// Checkpoint storage for showing: secrets are hidden.
fn storage(stored: &str) -> AppResult<Object> {
    let storage: Value = serde_json::from_str(stored).map_err(AppError::internal)?;
    let mut shown = mask_document(&json!({"checkpoint_storage": storage}));
    Ok(match shown["checkpoint_storage"].take() {
        Value::Object(members) => Object(members),
        _ => Object::default(),
    })
}
