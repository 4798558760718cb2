//! Workspaces and projects as clients see them. This version has one of each: number 1, Uncategorized.

use det_api_types::wire::Timestamp;
use det_api_types::workspaces::{Project, Workspace};

/// Name of the only workspace and of the only project.
pub const UNCATEGORIZED: &str = "Uncategorized";
/// Number of both.
pub const UNCATEGORIZED_ID: i64 = 1;

/// Who owns workspace and project.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Owner {
    /// Number of the user.
    pub id: i64,
    /// Login name.
    pub username: String,
}

/// What is counted of the experiments of a project.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Experiments.
    pub experiments: i64,
    /// Experiments that have not come to their end.
    pub active: i64,
    /// Trials.
    pub trials: i64,
    /// Creation of the newest experiment, microseconds.
    pub last_started_at: Option<i64>,
}

/// The workspace.
pub fn workspace(owner: &Owner, counts: &Counts) -> Workspace {
    Workspace {
        id: UNCATEGORIZED_ID,
        name: UNCATEGORIZED.to_owned(),
        username: owner.username.clone(),
        user_id: owner.id,
        immutable: true,
        num_projects: 1,
        num_experiments: counts.experiments,
        ..Workspace::default()
    }
}

/// The project.
pub fn project(owner: &Owner, counts: &Counts) -> Project {
    Project {
        id: UNCATEGORIZED_ID,
        name: UNCATEGORIZED.to_owned(),
        workspace_id: UNCATEGORIZED_ID,
        workspace_name: UNCATEGORIZED.to_owned(),
        username: owner.username.clone(),
        user_id: owner.id,
        immutable: true,
        num_experiments: counts.experiments,
        num_active_experiments: counts.active,
        num_runs: counts.trials,
        last_experiment_started_at: counts.last_started_at.map(Timestamp),
        ..Project::default()
    }
}
