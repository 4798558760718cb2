//! The Unix identity that tasks are given.

use det_config::master::DefaultTask;
use det_ids::{ProjectId, WorkspaceId};
use det_store::experiments::ExperimentRow;
use det_store::workspaces::WorkspaceRow;
use det_taskspec::TaskUser;

use crate::app::context::Context;
use crate::app::homes::KnownHomes;
use crate::auth::{Auth, User};

/// As whom tasks run. Cheap to clone.
#[derive(Clone)]
pub struct TaskUsers {
    context: Context,
    homes: KnownHomes,
    auth: Auth,
}

impl TaskUsers {
    /// As these workspaces and users have it.
    pub(crate) fn new(context: Context, homes: KnownHomes, auth: Auth) -> Self {
        Self {
            context,
            homes,
            auth,
        }
    }

    /// The Unix identity of a user's tasks in a project: the workspace's, the user's, the cluster's. A workspace may set
    /// the user or the group alone.
    pub(crate) fn in_project(&self, project_id: ProjectId, owner: &User) -> TaskUser {
        let homes = self.homes.get();
        let own = task_user(owner, &self.context.config().security.default_task);
        match homes.home(project_id) {
            Some((_, workspace)) => in_workspace(workspace, own),
            None => own,
        }
    }

    /// The Unix identity of a user's tasks in a workspace.
    pub(crate) fn in_workspace(&self, id: WorkspaceId, owner: &User) -> TaskUser {
        let homes = self.homes.get();
        let own = task_user(owner, &self.context.config().security.default_task);
        match homes.workspaces.get(&id) {
            Some(workspace) => in_workspace(workspace, own),
            None => own,
        }
    }

    /// The Unix user id of the tasks of an experiment as its owner is mapped now; `None` = the owner exists no more.
    pub(crate) fn uid_of(&self, experiment: &ExperimentRow) -> Option<u32> {
        let owner = self.auth.user(experiment.owner_id)?;
        Some(self.in_project(experiment.project_id, &owner).uid)
    }
}

/// The Unix identity `own` with what a workspace sets in its place.
fn in_workspace(workspace: &WorkspaceRow, own: TaskUser) -> TaskUser {
    let set = |number: Option<i64>, name: &Option<String>| {
        Some((u32::try_from(number?).ok()?, name.clone()?))
    };
    let user = set(workspace.agent_uid, &workspace.agent_user);
    let group = set(workspace.agent_gid, &workspace.agent_group);
    let (uid, user) = user.unwrap_or((own.uid, own.user));
    let (gid, group) = group.unwrap_or((own.gid, own.group));
    TaskUser {
        user,
        uid,
        group,
        gid,
    }
}

/// The Unix identity of a user's tasks.
fn task_user(owner: &User, default: &DefaultTask) -> TaskUser {
    let number = |n: i64| u32::try_from(n).ok();
    match (
        owner.agent_uid.and_then(number),
        owner.agent_gid.and_then(number),
    ) {
        (Some(uid), Some(gid)) => TaskUser {
            user: owner
                .agent_user
                .clone()
                .unwrap_or_else(|| owner.username.clone()),
            uid,
            group: owner
                .agent_group
                .clone()
                .unwrap_or_else(|| owner.username.clone()),
            gid,
        },
        _ => TaskUser {
            user: default.user.clone(),
            uid: default.uid,
            group: default.group.clone(),
            gid: default.gid,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workspace_may_set_the_user_or_the_group_alone() {
        let own = || TaskUser {
            user: "ada".into(),
            uid: 10,
            group: "staff".into(),
            gid: 20,
        };
        let group = WorkspaceRow {
            agent_gid: Some(7),
            agent_group: Some("lab".into()),
            ..WorkspaceRow::default()
        };
        let made = in_workspace(&group, own());
        assert_eq!((made.uid, made.user.as_str()), (10, "ada"));
        assert_eq!((made.gid, made.group.as_str()), (7, "lab"));
        let user = WorkspaceRow {
            agent_uid: Some(5),
            agent_user: Some("runner".into()),
            ..WorkspaceRow::default()
        };
        let made = in_workspace(&user, own());
        assert_eq!((made.uid, made.user.as_str()), (5, "runner"));
        assert_eq!((made.gid, made.group.as_str()), (20, "staff"));
    }
}
