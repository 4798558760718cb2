//! Reading the master's own log, as far as an actor may.

use std::collections::HashSet;

use det_api_types::logs::MasterLogsQuery;
use det_authz::{Kind, Permission, Target};
use det_ids::{ExperimentId, MasterLogLineId, TrialId};
use det_store::allocations::TaskRow;
use det_store::{Store, allocations};

use crate::app::reads::master::MasterSources;
use crate::app::{existing, reads};
use crate::auth::Actor;
use crate::error::{AppError, AppResult};
use crate::hub::{Subscription, Topic};
use crate::master_log::{About, CAPACITY, Entry, MasterLog};

/// The lines of the master's log that an actor may read and asked for.
pub(crate) struct Entries {
    log: MasterLog,
    changes: Subscription,
    selection: Selection,
    /// The first line that was not looked at yet.
    next: MasterLogLineId,
    /// How many are still wanted.
    left: usize,
    follow: bool,
}

impl Entries {
    /// From the beginning that was asked for.
    pub(crate) async fn open(
        sources: &MasterSources,
        actor: &Actor,
        query: &MasterLogsQuery,
    ) -> AppResult<Self> {
        let trial = query.trial_id.given();
        let selection = Selection::of(&sources.context.store, actor, trial).await?;
        if query.follow && query.limit > 0 {
            return Err(AppError::invalid(
                "a followed log has no limit: leave out \"limit\" or \"follow\"",
            ));
        }
        let changes = sources.context.hub.subscribe(Topic::MasterLog);
        let next = if query.offset < 0 {
            let tail = usize::try_from(query.offset.unsigned_abs()).unwrap_or(CAPACITY);
            let tail = sources.log.tail(tail);
            tail.first().map_or(sources.log.next_id(), |entry| entry.id)
        } else {
            MasterLogLineId(query.offset)
        };
        Ok(Self {
            log: sources.log.clone(),
            changes,
            selection,
            next,
            left: match usize::try_from(query.limit) {
                Ok(limit @ 1..) => limit,
                _ => usize::MAX,
            },
            follow: query.follow,
        })
    }

    /// Those that exist by now; a follower waits for some. Empty at the end.
    pub(crate) async fn next(&mut self) -> Vec<Entry> {
        loop {
            let mut entries = self.log.from(self.next);
            if let Some(last) = entries.last() {
                self.next = last.id.next();
            }
            entries.retain(|entry| self.selection.contains(&entry.about));
            entries.truncate(self.left);
            self.left -= entries.len();
            if !entries.is_empty() || !self.follow {
                return entries;
            }
            self.changes.changed().await;
        }
    }
}

/// Which lines of the master's log a reader gets.
enum Selection {
    /// All of them, with names of users and addresses of machines.
    All,
    /// Those that concern the work of users.
    Work,
    /// Those that concern a trial.
    Trial {
        /// Number of the trial that lines must concern.
        trial: TrialId,
        /// Number of the experiment that the trial belongs to.
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
    async fn of(store: &Store, actor: &Actor, trial: Option<TrialId>) -> AppResult<Self> {
        reads::require(actor, Kind::MasterLog, "the master's log")?;
        let Some(trial) = trial else {
            let whole = actor.may(Permission::ReadUnmasked, &Target::of(Kind::MasterLog));
            return Ok(if whole { Self::All } else { Self::Work });
        };
        reads::require(actor, Kind::Trial, "trials")?;
        let mut conn = store.read().await?;
        let experiment = existing::trial(&mut conn.conn(), trial)
            .await?
            .experiment_id;
        let tasks = allocations::tasks_of_trial(&mut conn.conn(), trial).await?;
        Ok(Self::Trial {
            trial,
            experiment,
            ids: tasks.iter().flat_map(ids).collect(),
        })
    }

    /// Whether a line about this is one of them.
    fn contains(&self, about: &About) -> bool {
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
