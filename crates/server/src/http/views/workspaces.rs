//! Workspaces and projects as clients see them.

use std::collections::BTreeMap;

use det_api_types::users::AgentUserGroup;
use det_api_types::wire::{Object, Timestamp};
use det_api_types::workspaces::{Project, Workspace, WorkspaceState};
use det_config::experiment::mask_document;
use det_store::catalogue::Totals;
use det_store::workspaces::{DeletionState, ProjectRow, ProjectTexts, WorkspaceRow};
use serde_json::{Value, json};

use crate::app::homes::Homes;
use crate::app::projects::notes_of;
use crate::error::{AppError, AppResult};

/// A user's number and login name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Owner {
    /// Number of the user.
    pub id: i64,
    /// Login name.
    pub username: String,
}

/// What workspaces and projects are shown with.
pub struct Shown<'a> {
    /// All of them.
    pub homes: &'a Homes,
    /// Users by number.
    pub users: BTreeMap<i64, String>,
    /// Who stands for the cluster.
    pub cluster: Owner,
    /// What is in each project.
    pub totals: BTreeMap<i64, Totals>,
    /// Who looks.
    pub viewer: i64,
}

impl Shown<'_> {
    /// The owner of what has this owner.
    pub fn owner(&self, owner_id: Option<i64>) -> Owner {
        match owner_id {
            None => self.cluster.clone(),
            Some(id) => Owner {
                id,
                username: self.users.get(&id).cloned().unwrap_or_default(),
            },
        }
    }

    fn counts(&self, project_id: i64) -> Totals {
        self.totals.get(&project_id).copied().unwrap_or_default()
    }

    /// A workspace.
    pub fn workspace(&self, row: &WorkspaceRow) -> AppResult<Workspace> {
        let owner = self.owner(row.owner_id);
        let (mut projects, mut experiments) = (0, 0);
        for project in self.homes.projects_of(row.id) {
            projects += 1;
            experiments += self.counts(project.id).experiments;
        }
        let pinned_at = self.homes.pins.get(&(self.viewer, row.id)).copied();
        Ok(Workspace {
            id: row.id,
            name: row.name.clone(),
            archived: row.archived,
            username: owner.username,
            user_id: owner.id,
            immutable: row.immutable,
            num_projects: projects,
            num_experiments: experiments,
            pinned: pinned_at.is_some(),
            pinned_at: pinned_at.map(Timestamp),
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
            checkpoint_storage_config: row
                .checkpoint_storage
                .as_deref()
                .map(storage)
                .transpose()?,
            default_compute_pool: row.default_compute_pool.clone(),
            default_aux_pool: row.default_aux_pool.clone(),
            auto_created_namespace: None,
            max_slots: row.max_slots,
        })
    }

    /// A project. Of one that was deleted a moment ago there are no texts.
    pub fn project(&self, row: &ProjectRow, texts: Option<&ProjectTexts>) -> AppResult<Project> {
        let owner = self.owner(row.owner_id);
        let counts = self.counts(row.id);
        let workspace = self.homes.workspaces.get(&row.workspace_id);
        Ok(Project {
            id: row.id,
            name: row.name.clone(),
            key: row.key.clone(),
            workspace_id: row.workspace_id,
            workspace_name: workspace.map_or_else(String::new, |row| row.name.clone()),
            description: texts.map_or_else(String::new, |texts| texts.description.clone()),
            notes: texts.map(notes_of).transpose()?.unwrap_or_default(),
            archived: self.homes.is_archived(row),
            username: owner.username,
            user_id: owner.id,
            immutable: row.immutable,
            num_experiments: counts.experiments,
            num_active_experiments: counts.live,
            num_runs: counts.trials,
            last_experiment_started_at: counts.last_created_at.map(Timestamp),
            state: state(row.state),
            error_message: row.error.clone().unwrap_or_default(),
        })
    }
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
