//! The table of rights.

use crate::Relation;
use crate::Relation::{Administrator, Itself, OtherUser, Owner, OwnersTask};

/// What an actor may do to a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Permission {
    /// See it, with what looks secret hidden.
    Read,
    /// See it with everything that its owner wrote: variables of the environment, a log with names and addresses.
    ReadUnmasked,
    /// Have secrets of it used without being shown them: copied into a configuration, or given out to download with.
    UseSecrets,
    /// Add one of this kind.
    Create,
    /// Report what happens in it: metrics, log lines, checkpoints, progress.
    Report,
    /// Connect to the services that it runs: with them its code can be made to do anything.
    Connect,
    /// Be given the key that opens it: who has it acts with its owner's identity.
    TakeKey,
    /// Pause, activate, cancel, kill, archive it, give it texts, change its priority and place in the queue.
    Steer,
    /// Change what runs in its owner's name or as a part of it, where it runs, or which of the owner's files are kept.
    Redirect,
    /// Change, rename, move or archive it.
    Change,
    /// Write on it what all users may write: notes, pins.
    Annotate,
    /// Delete it for good.
    Delete,
    /// What only administrators do: limits, switches, identities.
    Administer,
}

impl Permission {
    /// Every permission, once, in the order of their declaration.
    pub const ALL: [Self; 13] = [
        Self::Read,
        Self::ReadUnmasked,
        Self::UseSecrets,
        Self::Create,
        Self::Report,
        Self::Connect,
        Self::TakeKey,
        Self::Steer,
        Self::Redirect,
        Self::Change,
        Self::Annotate,
        Self::Delete,
        Self::Administer,
    ];
}

/// The kind of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The cluster as a whole.
    Cluster,
    /// An agent with its slots.
    Agent,
    /// A resource pool.
    Pool,
    /// An entry of the job queue.
    Job,
    /// A user's account, which belongs to that user.
    User,
    /// An experiment with its files and jobs.
    Experiment,
    /// A trial with its metrics.
    Trial,
    /// A task with its log.
    Task,
    /// An allocation with its containers.
    Allocation,
    /// A checkpoint with its files.
    Checkpoint,
    /// A workspace with its settings and limits.
    Workspace,
    /// A project with its notes.
    Project,
    /// A configuration template.
    Template,
    /// The config policies of the cluster or of a workspace.
    ConfigPolicy,
    /// The ordered record of changes.
    Event,
    /// The master's own log.
    MasterLog,
    /// The master's configuration.
    MasterConfig,
    /// What the master holds in memory, and its own metrics.
    MasterMemory,
}

impl Kind {
    /// Every kind, once, in the order of their declaration.
    pub const ALL: [Self; 18] = [
        Self::Cluster,
        Self::Agent,
        Self::Pool,
        Self::Job,
        Self::User,
        Self::Experiment,
        Self::Trial,
        Self::Task,
        Self::Allocation,
        Self::Checkpoint,
        Self::Workspace,
        Self::Project,
        Self::Template,
        Self::ConfigPolicy,
        Self::Event,
        Self::MasterLog,
        Self::MasterConfig,
        Self::MasterMemory,
    ];
}

/// A rule: these relations give this permission on targets of these kinds.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) permission: Permission,
    pub(crate) kinds: &'static [Kind],
    pub(crate) allowed: &'static [Relation],
}

const ALL_RELATIONS: &[Relation] = &Relation::ALL;
const USERS: &[Relation] = &[Administrator, Owner, OtherUser];
const OWN: &[Relation] = &[Administrator, Owner];
const OWN_AND_TASKS: &[Relation] = &[Administrator, Owner, Itself, OwnersTask];
const ADMINISTRATORS: &[Relation] = &[Administrator];

/// The rights. A permission on a kind is in one row at most.
pub(crate) const TABLE: &[Row] = &[
    Row {
        permission: Permission::Read,
        kinds: &[
            Kind::Cluster,
            Kind::Agent,
            Kind::Pool,
            Kind::Job,
            Kind::User,
            Kind::Experiment,
            Kind::Trial,
            Kind::Task,
            Kind::Allocation,
            Kind::Checkpoint,
            Kind::Workspace,
            Kind::Project,
            Kind::Template,
            Kind::ConfigPolicy,
        ],
        allowed: ALL_RELATIONS,
    },
    Row {
        permission: Permission::Read,
        kinds: &[Kind::Event, Kind::MasterLog],
        allowed: USERS,
    },
    Row {
        permission: Permission::Read,
        kinds: &[Kind::MasterConfig, Kind::MasterMemory],
        allowed: ADMINISTRATORS,
    },
    Row {
        permission: Permission::ReadUnmasked,
        kinds: &[Kind::Experiment, Kind::Task, Kind::Template],
        allowed: OWN,
    },
    Row {
        permission: Permission::ReadUnmasked,
        kinds: &[Kind::ConfigPolicy, Kind::MasterLog],
        allowed: ADMINISTRATORS,
    },
    Row {
        permission: Permission::UseSecrets,
        kinds: &[Kind::Experiment, Kind::Task],
        allowed: OWN_AND_TASKS,
    },
    Row {
        permission: Permission::Create,
        kinds: &[Kind::Experiment, Kind::Task],
        allowed: ALL_RELATIONS,
    },
    Row {
        permission: Permission::Create,
        kinds: &[Kind::Workspace, Kind::Project, Kind::Template],
        allowed: USERS,
    },
    Row {
        permission: Permission::Report,
        kinds: &[Kind::Trial, Kind::Task, Kind::Allocation],
        allowed: &[Administrator, Owner, Itself],
    },
    Row {
        permission: Permission::Connect,
        kinds: &[Kind::Task],
        allowed: OWN_AND_TASKS,
    },
    Row {
        permission: Permission::TakeKey,
        kinds: &[Kind::Task],
        allowed: &[Owner, Itself, OwnersTask],
    },
    Row {
        permission: Permission::Steer,
        kinds: &[Kind::Experiment, Kind::Task],
        allowed: &[Administrator, Owner, OtherUser, Itself, OwnersTask],
    },
    Row {
        permission: Permission::Redirect,
        kinds: &[Kind::Experiment, Kind::Task],
        allowed: OWN_AND_TASKS,
    },
    Row {
        permission: Permission::Change,
        kinds: &[Kind::Workspace, Kind::Project, Kind::Template, Kind::User],
        allowed: OWN,
    },
    Row {
        permission: Permission::Annotate,
        kinds: &[Kind::Workspace, Kind::Project],
        allowed: USERS,
    },
    Row {
        permission: Permission::Delete,
        kinds: &[
            Kind::Experiment,
            Kind::Workspace,
            Kind::Project,
            Kind::Template,
        ],
        allowed: OWN,
    },
    Row {
        permission: Permission::Administer,
        kinds: &[
            Kind::Cluster,
            Kind::Agent,
            Kind::User,
            Kind::Task,
            Kind::Workspace,
            Kind::Project,
            Kind::ConfigPolicy,
            Kind::MasterConfig,
        ],
        allowed: ADMINISTRATORS,
    },
];

/// The row for a permission on a kind.
pub(crate) fn row(permission: Permission, kind: Kind) -> Option<&'static Row> {
    TABLE
        .iter()
        .find(|row| row.permission == permission && row.kinds.contains(&kind))
}

#[cfg(test)]
mod tests {
    use det_ids::{TrialId, UserId};

    use super::*;
    use crate::tests::id;
    use crate::{Actor, Identity, Target, decide};

    /// The actors that ask about a target of user 1: an administrator, its owner, another user, the task that it is
    /// about, another task of the owner, a task of another user.
    fn actors() -> [Actor<'static>; 6] {
        let user = |id, administrator| Actor::User { id, administrator };
        let task = |owner, task, allocation, trial| Actor::Task {
            owner,
            task: id(task),
            allocation: id(allocation),
            trial: Some(trial),
            ended: false,
        };
        [
            user(UserId(9), true),
            user(UserId(1), false),
            user(UserId(2), false),
            task(UserId(1), "t", "t.1", TrialId(7)),
            task(UserId(1), "u", "u.1", TrialId(8)),
            task(UserId(2), "v", "v.1", TrialId(9)),
        ]
    }

    fn target(kind: Kind) -> Target<'static> {
        let target = match kind {
            Kind::Trial => Target::identified(Identity::Trial(TrialId(7))),
            Kind::Task => Target::identified(Identity::Task(id("t"))),
            Kind::Allocation => Target::identified(Identity::Allocation(id("t.1"))),
            kind => Target::of(kind),
        };
        target.owned_by(UserId(1))
    }

    /// The answers for `actors`, as six letters: `y` or `-`.
    fn answers(permission: Permission, kind: Kind) -> String {
        let may = |actor: &Actor<'_>| decide(actor, permission, &target(kind)).is_allowed();
        actors()
            .iter()
            .map(|actor| if may(actor) { 'y' } else { '-' })
            .collect()
    }

    /// Checks that exactly `kinds` are answered with `expected` under `permission`.
    #[track_caller]
    fn expect(permission: Permission, kinds: &[Kind], expected: &str) {
        for kind in Kind::ALL {
            let found = answers(permission, kind);
            assert_eq!(
                found == expected,
                kinds.contains(&kind),
                "{permission:?} {kind:?}: {found}"
            );
        }
    }

    const NO_RELATION: &str = "------";

    #[test]
    fn all_read_what_is_the_users() {
        let for_some = [
            Kind::Event,
            Kind::MasterLog,
            Kind::MasterConfig,
            Kind::MasterMemory,
        ];
        let mut for_all = Kind::ALL.to_vec();
        for_all.retain(|kind| !for_some.contains(kind));
        expect(Permission::Read, &for_all, "yyyyyy");
    }

    #[test]
    fn users_read_events_and_the_masters_log() {
        expect(Permission::Read, &[Kind::Event, Kind::MasterLog], "yyy---");
    }

    #[test]
    fn administrators_read_configuration_and_memory_of_the_master() {
        expect(
            Permission::Read,
            &[Kind::MasterConfig, Kind::MasterMemory],
            "y-----",
        );
    }

    #[test]
    fn owners_and_administrators_see_variables() {
        expect(
            Permission::ReadUnmasked,
            &[Kind::Experiment, Kind::Task, Kind::Template],
            "yy----",
        );
        expect(
            Permission::ReadUnmasked,
            &[Kind::ConfigPolicy, Kind::MasterLog],
            "y-----",
        );
    }

    #[test]
    fn the_owners_tasks_use_secrets_that_they_are_not_shown() {
        expect(
            Permission::UseSecrets,
            &[Kind::Experiment, Kind::Task],
            "yy-yy-",
        );
    }

    #[test]
    fn all_create_work_and_users_create_the_rest() {
        expect(
            Permission::Create,
            &[Kind::Experiment, Kind::Task],
            "yyyyyy",
        );
        expect(
            Permission::Create,
            &[Kind::Workspace, Kind::Project, Kind::Template],
            "yyy---",
        );
    }

    #[test]
    fn a_task_reports_of_itself_and_its_owner_for_it() {
        let work = [Kind::Trial, Kind::Task, Kind::Allocation];
        expect(Permission::Report, &work, "yy-y--");
    }

    #[test]
    fn owners_their_tasks_and_administrators_connect_to_services() {
        expect(Permission::Connect, &[Kind::Task], "yy-yy-");
    }

    #[test]
    fn owners_and_their_tasks_are_given_the_keys_of_shells_and_administrators_are_not() {
        expect(Permission::TakeKey, &[Kind::Task], "-y-yy-");
    }

    #[test]
    fn users_steer_and_tasks_steer_what_is_their_owners() {
        expect(Permission::Steer, &[Kind::Experiment, Kind::Task], "yyyyy-");
    }

    #[test]
    fn owners_their_tasks_and_administrators_redirect() {
        expect(
            Permission::Redirect,
            &[Kind::Experiment, Kind::Task],
            "yy-yy-",
        );
    }

    #[test]
    fn owners_and_administrators_change_by_themselves() {
        let owned = [Kind::Workspace, Kind::Project, Kind::Template, Kind::User];
        expect(Permission::Change, &owned, "yy----");
    }

    #[test]
    fn users_annotate() {
        expect(
            Permission::Annotate,
            &[Kind::Workspace, Kind::Project],
            "yyy---",
        );
    }

    #[test]
    fn owners_and_administrators_delete_by_themselves() {
        let owned = [
            Kind::Experiment,
            Kind::Workspace,
            Kind::Project,
            Kind::Template,
        ];
        expect(Permission::Delete, &owned, "yy----");
    }

    #[test]
    fn administrators_administer() {
        let administered = [
            Kind::Cluster,
            Kind::Agent,
            Kind::User,
            Kind::Task,
            Kind::Workspace,
            Kind::Project,
            Kind::ConfigPolicy,
            Kind::MasterConfig,
        ];
        expect(Permission::Administer, &administered, "y-----");
    }

    #[test]
    fn a_permission_on_a_kind_is_in_one_row_at_most() {
        for permission in Permission::ALL {
            for kind in Kind::ALL {
                let rows = TABLE
                    .iter()
                    .filter(|row| row.permission == permission && row.kinds.contains(&kind));
                assert!(rows.count() <= 1, "{permission:?} {kind:?}");
                if row(permission, kind).is_none() {
                    assert_eq!(answers(permission, kind), NO_RELATION);
                }
            }
        }
    }
}
