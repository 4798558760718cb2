//! Which lines of the master's own log an actor may read.

use std::collections::HashSet;

use det_authz::{Kind, Permission, Target};
use det_ids::{ExperimentId, TrialId};
use det_store::allocations::TaskRow;
use det_store::{Store, allocations, trials};

use crate::app::reads;
use crate::auth::Actor;
use crate::error::{AppError, AppResult};
use crate::master_log::About;

/// Which lines of the master's log a reader gets.
pub(crate) enum Selection {
    /// All of them, with names of users and addresses of machines.
    All,
    /// Those that concern the work of users.
    Work,
    /// Those that concern a trial.
    Trial {
        /// The trial.
        trial: TrialId,
        /// Its experiment.
        experiment: ExperimentId,
        /// Its tasks and their allocations.
        ids: HashSet<String>,
    },
}

/// The ids of a task and of its allocations.
fn ids(task: &TaskRow) -> Vec<String> {
    let attempts = 1..=u32::try_from(task.attempts).unwrap_or(u32::MAX);
    let allocations = attempts.map(|n| task.id.allocation(n).0);
    allocations.chain([task.id.to_string()]).collect()
}

impl Selection {
    /// Of an actor who asks for a trial, or for none.
    pub(crate) async fn of(
        store: &Store,
        actor: &Actor,
        trial: Option<TrialId>,
    ) -> AppResult<Self> {
        reads::require(actor, Kind::MasterLog, "the master's log")?;
        let Some(trial) = trial else {
            let whole = actor.may(Permission::ReadUnmasked, &Target::of(Kind::MasterLog));
            return Ok(if whole { Self::All } else { Self::Work });
        };
        reads::require(actor, Kind::Trial, "trials")?;
        let mut conn = store.read().await?;
        let experiment = trials::find(&mut conn.conn(), trial)
            .await?
            .ok_or_else(|| AppError::not_found("trial", trial))?
            .experiment_id;
        let tasks = allocations::tasks_of_trial(&mut conn.conn(), trial).await?;
        Ok(Self::Trial {
            trial,
            experiment,
            ids: tasks.iter().flat_map(ids).collect(),
        })
    }

    /// Whether a line about this is one of them.
    pub(crate) fn contains(&self, about: &About) -> bool {
        match self {
            Self::All => true,
            Self::Work => about.is_work(),
            Self::Trial {
                trial,
                experiment,
                ids,
            } => {
                // A line of another trial may name the experiment too.
                let of_trial = about.trial.map(|id| id == *trial);
                let of_task = about.task.as_ref().map(|id| ids.contains(id));
                of_trial
                    .or(of_task)
                    .unwrap_or(about.experiment == Some(*experiment))
            }
        }
    }
}
