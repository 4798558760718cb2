//! Who may do what: an actor, a permission and a target in; allowed or refused, with the reason, out.
//!
//! The rules are the rows of one table (`table.rs`): a permission on some kinds of targets, and the relations to the
//! target that it needs. [`Relation`] lists the relations. What has no row is refused to all actors.
//!
//! - *Reading* is open to all who are known; the record of events and the master's log are for users, the master's
//!   configuration and memory for administrators. What looks secret is shown in full to owners and administrators only
//!   ([`Permission::ReadUnmasked`]); the owner's tasks may use it without seeing it ([`Permission::UseSecrets`]).
//! - *Reports* (metrics, progress, log lines, checkpoints, the barriers of containers) come from the task that they are
//!   about. Of trials that run outside the cluster they come from the owner; an administrator may send them too.
//! - *Connecting* to the services of a task (a notebook, a port that its configuration names) is for its owner, the owner's
//!   tasks and administrators: a service carries out what it receives with the owner's identity.
//! - *Steering* (pause, activate, cancel, kill, continue as it is, archive, texts, priority, places in the queue) is open
//!   to all users, who are named in the events that it leaves. A task steers only what belongs to its owner: a pipeline
//!   may drive its own experiments, code from elsewhere may not touch those of others.
//! - *Redirecting* changes what runs in the owner's name, with whose identity, where, or which of the owner's files are
//!   kept: continuing with an override, moves to projects and pools, checkpoint policy, how long logs are kept. It is for
//!   the owner, the owner's tasks and administrators. Others fork.
//! - *Deleting* cannot be undone. Only users may, no tasks: the owner, or an administrator.
//! - *Templates, workspaces and projects* are added by all users, and changed, archived and deleted by their owners and
//!   administrators, not by their tasks.
//! - *The cluster itself* (agents, users, limits, policies, the master's configuration and log) is for administrators, and
//!   never for their tasks.
//! - *A task that has ended* may report for a short time, and nothing else.
//!
//! Values in, values out: the caller loads the owner of a target, and only where [`depends_on_owner`] is true of the
//! permission.

mod table;

use det_ids::{AllocationId, TaskId, TrialId, UserId};
use table::row;
pub use table::{Kind, Permission};

/// The caller whose right is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Actor<'a> {
    /// A user with a session.
    User {
        /// The user's id.
        id: UserId,
        /// Whether the user is an administrator.
        administrator: bool,
    },
    /// A task with its own token, which acts for its owner and has none of an administrator's rights.
    Task {
        /// The id of the user who owns the task.
        owner: UserId,
        /// The id of the task.
        task: &'a TaskId,
        /// The allocation that the token belongs to.
        allocation: &'a AllocationId,
        /// Its trial; `None` for tasks that are no trials.
        trial: Option<TrialId>,
        /// Whether the allocation has ended.
        ended: bool,
    },
}

impl Actor<'_> {
    /// The id of the user who calls, or for whom the task acts.
    pub fn user_id(&self) -> UserId {
        match self {
            Self::User { id, .. } => *id,
            Self::Task { owner, .. } => *owner,
        }
    }
}

/// The thing that a permission is checked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target<'a> {
    kind: Kind,
    identity: Option<Identity<'a>>,
    owner: Option<UserId>,
}

/// Which of the things a task's token can belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity<'a> {
    /// The trial with this id.
    Trial(TrialId),
    /// The task with this id.
    Task(&'a TaskId),
    /// The allocation with this id.
    Allocation(&'a AllocationId),
}

impl<'a> Target<'a> {
    /// A target of this kind that has no owner, or whose owner does not matter.
    pub const fn of(kind: Kind) -> Self {
        Self {
            kind,
            identity: None,
            owner: None,
        }
    }

    /// A trial, a task or an allocation.
    pub const fn identified(identity: Identity<'a>) -> Self {
        Self {
            kind: match identity {
                Identity::Trial(_) => Kind::Trial,
                Identity::Task(_) => Kind::Task,
                Identity::Allocation(_) => Kind::Allocation,
            },
            identity: Some(identity),
            owner: None,
        }
    }

    /// The same, belonging to the user with this id.
    #[must_use]
    pub const fn owned_by(self, user_id: UserId) -> Self {
        Self {
            owner: Some(user_id),
            ..self
        }
    }

    /// The kind of the target.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Which trial, task or allocation it is; `None` for everything else.
    pub const fn identity(&self) -> Option<Identity<'a>> {
        self.identity
    }

    /// The user id of its owner; `None` = it has none, or it was not loaded.
    pub const fn owner(&self) -> Option<UserId> {
        self.owner
    }
}

/// What the actor is to the target. The first that applies counts, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Relation {
    /// A user who is an administrator. Of what is an administrator's own, the owner's rights are added.
    Administrator,
    /// The user who owns the target.
    Owner,
    /// A user who is neither an administrator nor the owner.
    OtherUser,
    /// The task, trial or allocation that the target is.
    Itself,
    /// Another task of the target's owner.
    OwnersTask,
    /// A task of another user.
    OtherTask,
}

impl Relation {
    /// Every relation, in the order in which they apply.
    pub const ALL: [Self; 6] = [
        Self::Administrator,
        Self::Owner,
        Self::OtherUser,
        Self::Itself,
        Self::OwnersTask,
        Self::OtherTask,
    ];

    fn of(actor: &Actor<'_>, target: &Target<'_>) -> Self {
        match actor {
            Actor::User {
                administrator: true,
                ..
            } => Self::Administrator,
            Actor::User { id, .. } if target.owner == Some(*id) => Self::Owner,
            Actor::User { .. } => Self::OtherUser,
            Actor::Task {
                owner,
                task,
                allocation,
                trial,
                ..
            } => {
                let is_itself = match target.identity {
                    Some(Identity::Trial(id)) => *trial == Some(id),
                    Some(Identity::Task(id)) => *task == id,
                    Some(Identity::Allocation(id)) => *allocation == id,
                    None => false,
                };
                if is_itself {
                    Self::Itself
                } else if target.owner == Some(*owner) {
                    Self::OwnersTask
                } else {
                    Self::OtherTask
                }
            }
        }
    }

    /// Whether the actor is a task.
    pub const fn is_task(self) -> bool {
        matches!(self, Self::Itself | Self::OwnersTask | Self::OtherTask)
    }
}

/// Whether an actor has a permission on a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The actor has the permission.
    Allowed {
        /// The relation that gives the right.
        because: Relation,
    },
    /// The actor lacks the permission.
    Refused {
        /// What the actor would have to be.
        missing: MissingRight,
    },
}

impl Decision {
    /// Whether the actor has the permission.
    pub const fn is_allowed(self) -> bool {
        matches!(self, Self::Allowed { .. })
    }
}

/// What an actor lacks for a right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingRight {
    /// The task's allocation has ended: it would have to run.
    Running,
    /// The actor is a task, and only users have the right.
    User,
    /// Only administrators have the right.
    Administrator,
    /// The target belongs to another user.
    Ownership,
    /// The task's token belongs to another trial, task or allocation.
    Identity,
    /// No actor has the right: the table has no row for it.
    Rule,
}

/// Whether `actor` has `permission` on `target`.
pub fn decide(actor: &Actor<'_>, permission: Permission, target: &Target<'_>) -> Decision {
    if matches!(actor, Actor::Task { ended: true, .. }) && permission != Permission::Report {
        return Decision::Refused {
            missing: MissingRight::Running,
        };
    }
    let relation = Relation::of(actor, target);
    let Some(row) = row(permission, target.kind) else {
        return Decision::Refused {
            missing: MissingRight::Rule,
        };
    };
    let allows = |relation| row.allowed.contains(&relation);
    if allows(relation) {
        return Decision::Allowed { because: relation };
    }
    if relation == Relation::Administrator
        && target.owner == Some(actor.user_id())
        && allows(Relation::Owner)
    {
        return Decision::Allowed {
            because: Relation::Owner,
        };
    }
    let missing = match relation.is_task() {
        true if allows(Relation::OwnersTask) => MissingRight::Ownership,
        true if allows(Relation::Itself) => MissingRight::Identity,
        true => MissingRight::User,
        false if allows(Relation::Owner) => MissingRight::Ownership,
        false => MissingRight::Administrator,
    };
    Decision::Refused { missing }
}

/// Whether the answer to [`decide`] depends on who owns the target. If not, its owner need not be loaded.
pub fn depends_on_owner(actor: &Actor<'_>, permission: Permission, target: &Target<'_>) -> bool {
    let own = target.owned_by(actor.user_id());
    let nobodys = Target {
        owner: None,
        ..*target
    };
    decide(actor, permission, &own).is_allowed() != decide(actor, permission, &nobodys).is_allowed()
}

/// Whether `actor` may do this to things of this kind that are the actor's own: what is refused here is refused for
/// every target of the kind.
pub fn decide_for_own(actor: &Actor<'_>, permission: Permission, kind: Kind) -> Decision {
    decide(
        actor,
        permission,
        &Target::of(kind).owned_by(actor.user_id()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An id that lives as long as the test.
    pub(crate) fn id<T: From<&'static str>>(text: &'static str) -> &'static T {
        Box::leak(Box::new(text.into()))
    }

    const ADA: UserId = UserId(1);
    const BOB: UserId = UserId(2);

    fn user(id: UserId) -> Actor<'static> {
        Actor::User {
            id,
            administrator: false,
        }
    }

    fn administrator(id: UserId) -> Actor<'static> {
        Actor::User {
            id,
            administrator: true,
        }
    }

    /// The task `t`, whose allocation is `t.1` and whose trial is number 7.
    fn task(owner: UserId, ended: bool) -> Actor<'static> {
        Actor::Task {
            owner,
            task: id("t"),
            allocation: id("t.1"),
            trial: Some(TrialId(7)),
            ended,
        }
    }

    /// Objects of every kind, of Ada, of Bob and without owner; what carries the identity of Ada's task belongs to Ada.
    fn targets() -> Vec<Target<'static>> {
        let mut targets = Vec::new();
        for kind in Kind::ALL {
            let target = Target::of(kind);
            targets.extend([target, target.owned_by(ADA), target.owned_by(BOB)]);
        }
        for own in [
            Identity::Trial(TrialId(7)),
            Identity::Task(id("t")),
            Identity::Allocation(id("t.1")),
        ] {
            targets.push(Target::identified(own).owned_by(ADA));
        }
        for other in [
            Identity::Trial(TrialId(8)),
            Identity::Task(id("u")),
            Identity::Allocation(id("t.2")),
        ] {
            let target = Target::identified(other);
            targets.extend([target.owned_by(ADA), target.owned_by(BOB)]);
        }
        targets
    }

    fn every_question() -> impl Iterator<Item = (Permission, Target<'static>)> {
        Permission::ALL.into_iter().flat_map(|permission| {
            targets()
                .into_iter()
                .map(move |target| (permission, target))
        })
    }

    #[test]
    fn an_administrators_right_is_never_less_than_that_of_another_user() {
        for (permission, target) in every_question() {
            if decide(&user(ADA), permission, &target).is_allowed() {
                let decision = decide(&administrator(ADA), permission, &target);
                assert!(decision.is_allowed(), "{permission:?} {target:?}");
                // The key of a shell lets its holder act as the owner: it is the owner's alone.
                let decision = decide(&administrator(BOB), permission, &target);
                let is_key = permission == Permission::TakeKey;
                assert_eq!(decision.is_allowed(), !is_key, "{permission:?} {target:?}");
            }
        }
    }

    #[test]
    fn an_owners_right_is_never_less_than_that_of_another_user() {
        for (permission, target) in every_question() {
            let others = decide(&user(BOB), permission, &target.owned_by(ADA));
            let owners = decide(&user(ADA), permission, &target.owned_by(ADA));
            assert!(
                owners.is_allowed() || !others.is_allowed(),
                "{permission:?} {target:?}"
            );
        }
    }

    #[test]
    fn a_task_never_has_a_right_that_its_owner_lacks() {
        for (permission, target) in every_question() {
            if decide(&task(ADA, false), permission, &target).is_allowed() {
                let decision = decide(&user(ADA), permission, &target);
                assert!(decision.is_allowed(), "{permission:?} {target:?}");
            }
        }
    }

    #[test]
    fn a_task_that_has_ended_only_reports_and_only_of_itself() {
        for (permission, target) in every_question() {
            let decision = decide(&task(ADA, true), permission, &target);
            if permission == Permission::Report {
                let running = decide(&task(ADA, false), permission, &target);
                assert_eq!(decision, running, "{target:?}");
                let itself = target.identity().is_some_and(|identity| match identity {
                    Identity::Trial(trial) => trial == TrialId(7),
                    Identity::Task(task) => task.as_str() == "t",
                    Identity::Allocation(allocation) => allocation.as_str() == "t.1",
                });
                assert_eq!(decision.is_allowed(), itself, "{target:?}");
            } else {
                let missing = MissingRight::Running;
                assert_eq!(decision, Decision::Refused { missing }, "{permission:?}");
            }
        }
    }

    #[test]
    fn a_tasks_rights_do_not_grow_with_those_of_its_owner() {
        // A task is only known by the number of its owner, so an administrator's task is any task.
        for (permission, target) in every_question() {
            if permission == Permission::Administer {
                let decision = decide(&task(ADA, false), permission, &target);
                assert!(!decision.is_allowed(), "{target:?}");
            }
        }
    }

    #[test]
    fn where_the_owner_does_not_matter_none_changes_the_answer() {
        for actor in [user(ADA), administrator(ADA), task(ADA, false)] {
            for (permission, target) in every_question() {
                if !depends_on_owner(&actor, permission, &target) {
                    let answers = [ADA, BOB, UserId(3)]
                        .map(|owner| decide(&actor, permission, &target.owned_by(owner)));
                    let first = answers[0].is_allowed();
                    assert!(
                        answers.iter().all(|answer| answer.is_allowed() == first),
                        "{permission:?} {target:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn reading_and_reporting_cost_no_look_at_the_owner() {
        for actor in [user(ADA), administrator(ADA), task(ADA, false)] {
            for kind in Kind::ALL {
                let target = Target::of(kind);
                assert!(
                    !depends_on_owner(&actor, Permission::Read, &target),
                    "{kind:?}"
                );
            }
        }
        // A user who is no administrator reports for a trial outside the cluster: there the owner counts.
        let trial = Target::identified(Identity::Trial(TrialId(7)));
        assert!(!depends_on_owner(
            &task(ADA, false),
            Permission::Report,
            &trial
        ));
        assert!(!depends_on_owner(
            &administrator(ADA),
            Permission::Report,
            &trial
        ));
        assert!(depends_on_owner(&user(ADA), Permission::Report, &trial));
    }

    #[test]
    fn refusals_name_what_is_missing() {
        let bobs = Target::of(Kind::Experiment).owned_by(BOB);
        let others_trial = Target::identified(Identity::Trial(TrialId(8))).owned_by(ADA);
        for (actor, permission, target, expected) in [
            (
                user(ADA),
                Permission::Redirect,
                bobs,
                MissingRight::Ownership,
            ),
            (
                task(ADA, false),
                Permission::Redirect,
                bobs,
                MissingRight::Ownership,
            ),
            (
                task(ADA, false),
                Permission::Delete,
                bobs,
                MissingRight::User,
            ),
            (
                task(ADA, false),
                Permission::Report,
                others_trial,
                MissingRight::Identity,
            ),
            (
                task(ADA, true),
                Permission::Read,
                bobs,
                MissingRight::Running,
            ),
            (
                user(ADA),
                Permission::Administer,
                Target::of(Kind::Agent),
                MissingRight::Administrator,
            ),
            (
                administrator(ADA),
                Permission::Steer,
                Target::of(Kind::Event),
                MissingRight::Rule,
            ),
        ] {
            assert_eq!(
                decide(&actor, permission, &target),
                Decision::Refused { missing: expected },
                "{actor:?} {permission:?} {target:?}"
            );
        }
    }

    #[test]
    fn what_is_refused_for_ones_own_is_refused_for_all() {
        for actor in [user(ADA), administrator(ADA), task(ADA, false)] {
            for (permission, target) in every_question() {
                // Its own trial is more to a task than a trial of its owner.
                if target.identity().is_none()
                    && !decide_for_own(&actor, permission, target.kind()).is_allowed()
                {
                    let decision = decide(&actor, permission, &target);
                    assert!(!decision.is_allowed(), "{permission:?} {target:?}");
                }
            }
        }
    }
}
