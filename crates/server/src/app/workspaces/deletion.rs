//! The deletion of workspaces and projects with what is in them.

use det_authz::{Kind, Permission, Target};
use det_ids::ProjectId;
use det_lifecycle::experiment::ExperimentEvent;
use det_lifecycle::record::{ActorName, EventKind};
use det_orchestrator::Event;
use det_store::WriteTx;
use det_store::experiments::{self, Member};
use det_store::workspaces::{self, DeletionState, ProjectRow};

use super::HomeChanges;
use crate::app::homes::Homes;
use crate::app::orchestration::{Cause, Orchestration};
use crate::auth::Actor;
use crate::error::{AppError, AppResult, ErrorKind};
use crate::hub::Topic;

/// Experiments named in a refusal at most.
const MOST_NAMED: usize = 5;

/// Deletes workspaces and projects: at once where nothing is in them, else with the last of their experiments. Cheap to
/// clone.
#[derive(Clone)]
pub struct HomeDeletion {
    changes: HomeChanges,
    orchestration: Orchestration,
}

impl HomeDeletion {
    /// Puts the service together.
    pub(crate) fn new(changes: HomeChanges, orchestration: Orchestration) -> Self {
        Self {
            changes,
            orchestration,
        }
    }

    /// Begins to delete the experiments of what is deleted. Refused while one of them lives, and where some belong to
    /// others, unless an administrator asks.
    pub(crate) async fn delete_members(
        &self,
        tx: &mut WriteTx,
        actor: &Actor,
        what: &str,
        members: &[Member],
    ) -> AppResult<()> {
        let live: Vec<&Member> = members.iter().filter(|m| m.is_in_use()).collect();
        if !live.is_empty() {
            return Err(AppError::precondition(format!(
                "{what} cannot be deleted: {} in it have not come to their end ({})",
                counted(live.len()),
                named(&live)
            ))
            .hint(
                "end them with `det experiment cancel ID` or `det experiment kill ID`, unmanaged ones by ending their code, \
                 or move them elsewhere with `det experiment move`",
            ));
        }
        let experiment = Target::of(Kind::Experiment);
        let foreign: Vec<&Member> = members
            .iter()
            .filter(|m| !actor.may(Permission::Delete, &experiment.owned_by(m.owner_id)))
            .collect();
        if !foreign.is_empty() {
            return Err(AppError::new(
                ErrorKind::Forbidden,
                format!(
                    "user \"{}\" may not delete {what}: {} in it belong to others ({})",
                    actor.user().username,
                    counted(foreign.len()),
                    named(&foreign)
                ),
            )
            .hint("ask an administrator to do it, or archive it"));
        }
        let cause = Cause {
            actor: actor.name(),
            reason: Some(format!("{what} is deleted").into()),
        };
        let events = members.iter().map(|member| Event::Experiment {
            id: member.id,
            event: ExperimentEvent::Delete,
            cause: cause.clone(),
        });
        self.orchestration.advance(tx, events).await?;
        if !members.is_empty() {
            self.changes.context.wake(tx, Topic::CleanUp);
        }
        Ok(())
    }

    /// After the deletion of an experiment of this project: goes on with what waits for it. `failed` = it could not be
    /// deleted, and why.
    pub(crate) async fn after_member(
        &self,
        tx: &mut WriteTx,
        actor: &ActorName,
        project_id: ProjectId,
        failed: Option<&str>,
    ) -> AppResult<()> {
        let Some(mut project) = workspaces::find_project(&mut tx.conn(), project_id).await? else {
            return Ok(());
        };
        if project.state != Some(DeletionState::Deleting) {
            return Ok(());
        }
        let workspace = workspaces::find(&mut tx.conn(), project.workspace_id).await?;
        let workspace = workspace.filter(|row| row.state == Some(DeletionState::Deleting));
        if let Some(why) = failed {
            project.state = Some(DeletionState::DeleteFailed);
            project.error = Some(why.to_owned());
            workspaces::update_project(&mut tx.conn(), &project).await?;
            self.changes
                .record_project(tx, actor, EventKind::DeleteFailed, &project, None)
                .await?;
            if let Some(mut workspace) = workspace {
                workspace.state = Some(DeletionState::DeleteFailed);
                workspace.error = Some(why.to_owned());
                workspaces::update(&mut tx.conn(), &workspace).await?;
                self.changes
                    .record_workspace(tx, actor, EventKind::DeleteFailed, &workspace, None)
                    .await?;
            }
            return self.changes.reload(tx).await;
        }
        if !experiments::project_is_empty(&mut tx.conn(), project_id).await? {
            return Ok(());
        }
        workspaces::delete_project(&mut tx.conn(), project_id).await?;
        self.changes
            .record_project(tx, actor, EventKind::Deleted, &project, None)
            .await?;
        if let Some(workspace) = workspace {
            let homes = Homes::load(&mut tx.conn()).await?;
            if homes.projects_of(workspace.id).next().is_none() {
                workspaces::delete(&mut tx.conn(), workspace.id).await?;
                self.changes
                    .record_workspace(tx, actor, EventKind::Deleted, &workspace, None)
                    .await?;
            }
        }
        self.changes.reload(tx).await
    }

    /// Deletes the row of a project in which nothing is, or notes that it is being deleted.
    pub(crate) async fn begin(
        &self,
        tx: &mut WriteTx,
        actor: &Actor,
        row: &ProjectRow,
        has_members: bool,
    ) -> AppResult<()> {
        if !has_members {
            workspaces::delete_project(&mut tx.conn(), row.id).await?;
            return self
                .changes
                .record_project(tx, &actor.name(), EventKind::Deleted, row, None)
                .await;
        }
        if row.state == Some(DeletionState::Deleting) {
            return Ok(());
        }
        let row = ProjectRow {
            state: Some(DeletionState::Deleting),
            error: None,
            ..row.clone()
        };
        workspaces::update_project(&mut tx.conn(), &row).await?;
        self.changes
            .record_project(tx, &actor.name(), EventKind::Deleting, &row, None)
            .await
    }
}

fn counted(count: usize) -> String {
    if count == 1 {
        "1 experiment".to_owned()
    } else {
        format!("{count} experiments")
    }
}

/// The first of some experiments.
fn named(members: &[&Member]) -> String {
    let first = members.iter().take(MOST_NAMED);
    let mut text: Vec<String> = first.map(|member| member.id.to_string()).collect();
    if members.len() > MOST_NAMED {
        text.push("…".to_owned());
    }
    text.join(", ")
}
