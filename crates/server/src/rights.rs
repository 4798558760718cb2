//! The table of rights for those who ask: what an actor is to `det_authz`, and its refusals in the words that users read.

use det_authz::{
    Decision, Identity, Kind, MissingRight, Permission, Target, decide, decide_for_own,
};

use crate::auth::Actor;
use crate::error::{AppError, AppResult, ErrorKind};

impl Actor {
    /// The actor as the table of rights knows it.
    pub(crate) fn asking(&self) -> det_authz::Actor<'_> {
        match self {
            Self::User(user) => det_authz::Actor::User {
                id: user.id,
                administrator: user.admin,
            },
            Self::Task(task) => det_authz::Actor::Task {
                owner: task.owner.id,
                task: &task.task_id,
                allocation: &task.allocation_id,
                trial: task.trial_id,
                ended: task.ended,
            },
        }
    }

    /// Whether the actor may do this to a target, whose owner is known where it matters.
    pub(crate) fn may(&self, permission: Permission, target: &Target<'_>) -> bool {
        decide(&self.asking(), permission, target).is_allowed()
    }

    /// Refuses a task that has ended: it lacks the least of all rights.
    pub(crate) fn require_access(&self) -> AppResult<()> {
        self.require(Permission::Read, Kind::Cluster, "use this API")
    }

    /// Refuses what the actor may do to nothing of this kind, not even to what is the actor's own. `to_do` completes
    /// "may not …".
    pub(crate) fn require(&self, permission: Permission, kind: Kind, to_do: &str) -> AppResult<()> {
        match decide_for_own(&self.asking(), permission, kind) {
            Decision::Allowed { .. } => Ok(()),
            Decision::Refused { missing } => {
                Err(self.refusal(missing, &Target::of(kind), to_do, ""))
            }
        }
    }

    /// The refusal that the actor "may not" `to_do`. `owner` names the owner of the target, where ownership is missing.
    pub(crate) fn refusal(
        &self,
        missing: MissingRight,
        target: &Target<'_>,
        to_do: &str,
        owner: &str,
    ) -> AppError {
        let may_not = match self {
            Self::User(user) => format!("user \"{}\" may not {to_do}", user.username),
            Self::Task(task) => format!("task \"{}\" may not {to_do}", task.task_id),
        };
        let forbidden = |message: String| AppError::new(ErrorKind::Forbidden, message);
        match (missing, self) {
            (MissingRight::Running, Self::Task(task)) => forbidden(format!(
                "allocation \"{}\" has ended: its token may only report late logs, metrics and checkpoints of its own",
                task.allocation_id
            )),
            (MissingRight::Identity, Self::Task(task)) => {
                let token = |of: &str| format!("the token of {of} may not act for");
                let own_task = format!("task \"{}\"", task.task_id);
                forbidden(match target.identity() {
                    Some(Identity::Trial(id)) => format!("{} trial {id}", token(&own_task)),
                    Some(Identity::Task(id)) => format!("{} task \"{id}\"", token(&own_task)),
                    Some(Identity::Allocation(id)) => {
                        let own = format!("allocation \"{}\"", task.allocation_id);
                        format!("{} allocation \"{id}\"", token(&own))
                    }
                    None => may_not,
                })
            }
            (MissingRight::Ownership, Self::Task(_)) => forbidden(format!(
                "{may_not}: it belongs to {owner}, and a task acts only on what belongs to its own owner"
            )),
            (MissingRight::Ownership, Self::User(_)) => {
                forbidden(format!("{may_not}: it belongs to {owner}"))
                    .hint(format!("ask {owner} or an administrator to do it"))
            }
            (MissingRight::User, _) => forbidden(format!("{may_not}: only users may")),
            (MissingRight::Administrator, _) => {
                forbidden(format!("{may_not}: it needs an administrator"))
            }
            (MissingRight::Running | MissingRight::Identity | MissingRight::Rule, _) => {
                forbidden(format!("{may_not}: no caller may"))
            }
        }
    }
}

/// What even administrators cannot do: they get the reason, others that they may not.
pub(crate) fn refuse_to_all(actor: &Actor, kind: Kind, to_do: &str, reason: AppError) -> AppError {
    if actor.may(Permission::Administer, &Target::of(kind)) {
        return reason;
    }
    AppError::new(
        ErrorKind::Forbidden,
        format!(
            "user \"{}\" may not {to_do}: {}",
            actor.user().username,
            reason.message
        ),
    )
}
