//! Which experiments are in which project, and moving them.

use det_ids::{ExperimentId, JobId, ProjectId, UserId, WorkspaceId};
use det_lifecycle::experiment::ExperimentState;

use crate::{Conn, StoreError};

/// An experiment as those who look after its project need to know it.
#[derive(Debug, Clone, PartialEq, Eq, crate::Row)]
#[row(kind = "experiment")]
pub struct Member {
    /// Number of the experiment.
    pub id: ExperimentId,
    /// The project that it is in.
    pub project_id: ProjectId,
    /// The user who owns it.
    pub owner_id: UserId,
    /// The state of its life cycle, as [`super::ExperimentRow::state`].
    #[row(json = "machine")]
    pub state: ExperimentState,
    /// Whether it runs outside the cluster, and only reports.
    pub unmanaged: bool,
}

impl Member {
    /// Whether it has not come to its end.
    pub fn is_live(&self) -> bool {
        self.state.is_live()
    }

    /// Whether it has not come to its end and is not being stopped either: deleting must wait for the user to end it.
    /// An unmanaged one that does not run has no other end.
    pub fn is_in_use(&self) -> bool {
        let rests = self.unmanaged && self.state == ExperimentState::Paused;
        self.is_live() && !self.state.is_stopping() && !rests
    }
}

/// The experiments of a project, by number.
pub async fn of_project(
    conn: &mut Conn<'_>,
    project_id: ProjectId,
) -> Result<Vec<Member>, StoreError> {
    conn.flush().await?;
    Ok(fetch_all!(
        conn,
        Member,
        "SELECT id, project_id, owner_id, machine, unmanaged FROM experiments WHERE project_id = $1 ORDER BY id",
        project_id
    )?)
}

/// Whether nothing is in a project.
pub async fn project_is_empty(
    conn: &mut Conn<'_>,
    project_id: ProjectId,
) -> Result<bool, StoreError> {
    conn.flush().await?;
    let first = fetch_optional!(
        conn,
        (i64,),
        "SELECT id FROM experiments WHERE project_id = $1 LIMIT 1",
        project_id
    )?;
    Ok(first.is_none())
}

/// The experiments of all projects of a workspace, by number.
pub async fn of_workspace(
    conn: &mut Conn<'_>,
    workspace_id: WorkspaceId,
) -> Result<Vec<Member>, StoreError> {
    conn.flush().await?;
    Ok(fetch_all!(
        conn,
        Member,
        "SELECT id, project_id, owner_id, machine, unmanaged FROM experiments \
         WHERE project_id IN (SELECT id FROM projects WHERE workspace_id = $1) ORDER BY id",
        workspace_id
    )?)
}

/// Puts an experiment, its job with it, into a project of a workspace.
pub async fn set_project(
    conn: &mut Conn<'_>,
    id: ExperimentId,
    project_id: ProjectId,
    workspace_id: WorkspaceId,
) -> Result<(), StoreError> {
    conn.flush().await?;
    conn.writing()?.experiments.remove_all();
    execute!(
        conn,
        update!("project_id = $1 WHERE id = $2"),
        project_id,
        id
    )?;
    let jobs = fetch_all!(
        conn,
        (JobId,),
        "UPDATE jobs SET workspace_id = $1 WHERE id IN (SELECT job_id FROM experiments WHERE id = $2) \
         AND workspace_id <> $1 RETURNING id",
        workspace_id,
        id
    )?;
    note_jobs(conn, jobs)
}

/// The project has gone to this workspace, and the jobs of its experiments with it.
pub async fn follow_project(
    conn: &mut Conn<'_>,
    project_id: ProjectId,
    workspace_id: WorkspaceId,
) -> Result<(), StoreError> {
    conn.flush().await?;
    let jobs = fetch_all!(
        conn,
        (JobId,),
        "UPDATE jobs SET workspace_id = $1 WHERE id IN (SELECT job_id FROM experiments WHERE project_id = $2) \
         AND workspace_id <> $1 RETURNING id",
        workspace_id,
        project_id
    )?;
    note_jobs(conn, jobs)
}

fn note_jobs(conn: &mut Conn<'_>, jobs: Vec<(JobId,)>) -> Result<(), StoreError> {
    let unit = conn.writing()?;
    for (job,) in jobs {
        unit.jobs.push(job);
    }
    Ok(())
}
