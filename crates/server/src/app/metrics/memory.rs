//! What the journal keeps in memory: which run of a trial reports, how far it is, and which reports are not compacted.
//!
//! Only the writer looks at it, so changes never overlap. It is taken out for a change and put back when the change is
//! made; whatever goes wrong, it is not put back, or invalidated, and the rows bring it back.

use std::collections::{BTreeMap, HashMap, HashSet};

use det_ids::{ExperimentId, JournalId, RunId, TrialId};
use det_store::journal::{self, Entry};
use det_store::{StoreError, WriteTx, metrics, trials};

/// Trials that are kept; beyond it all are evicted, and those that report are loaded again.
const TRIALS: usize = 50_000;

/// A trial, as far as its reports are concerned.
#[derive(Debug, Clone)]
pub(super) struct LiveTrial {
    /// Number of the experiment that the trial belongs to.
    pub(super) experiment_id: ExperimentId,
    /// The run whose reports are taken.
    pub(super) run_id: RunId,
    /// What is known of each metric group that the trial has reported, by name of the group.
    pub(super) groups: HashMap<String, LiveGroup>,
}

/// A group of a trial's reports.
#[derive(Debug, Clone, Copy)]
pub(super) struct LiveGroup {
    /// The newest run that has reported.
    pub(super) run_id: RunId,
    /// Its highest step; -1 before the first.
    pub(super) last_step: i64,
}

/// A report that is in the journal.
#[derive(Debug)]
pub(super) struct Recent {
    journal_id: JournalId,
    pub(super) run_id: RunId,
    pub(super) group: String,
    pub(super) line: Vec<u8>,
}

/// The trials that report and their uncompacted reports, as the journal keeps them in memory: see the module.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Whether `recent` is what the journal holds.
    loaded: bool,
    /// The newest row of the journal, or a higher number.
    newest: JournalId,
    recent: HashMap<TrialId, Vec<Recent>>,
    trials: HashMap<TrialId, LiveTrial>,
}

impl Memory {
    /// Reads the journal, if what it holds is not known. `used` = the highest number that was given to a row so far:
    /// numbers are not given again, or a new row would be taken for one that is compacted.
    pub(super) async fn load(
        &mut self,
        tx: &mut WriteTx,
        used: JournalId,
    ) -> Result<(), StoreError> {
        if self.loaded {
            return Ok(());
        }
        *self = Self::default();
        let mut after = JournalId::default();
        loop {
            let rows = journal::read(&mut tx.conn(), after).await?;
            let Some(last) = rows.last() else { break };
            after = last.id;
            for row in &rows {
                self.note(row.id, row.entries()?);
            }
        }
        self.newest = self.newest.max(used);
        self.loaded = true;
        Ok(())
    }

    /// Takes note of a new row of the journal.
    pub(super) fn note(&mut self, journal_id: JournalId, entries: Vec<Entry>) {
        self.newest = self.newest.max(journal_id);
        for entry in entries {
            self.recent.entry(entry.trial_id).or_default().push(Recent {
                journal_id,
                run_id: entry.run_id,
                group: entry.group,
                line: entry.line,
            });
        }
    }

    /// The number for the next row of the journal.
    pub(super) fn next_id(&self) -> JournalId {
        self.newest.next()
    }

    /// Looks up the trials that are not known yet.
    pub(super) async fn load_trials(
        &mut self,
        tx: &mut WriteTx,
        trial_ids: HashSet<TrialId>,
    ) -> Result<(), StoreError> {
        if self.trials.len() > TRIALS {
            self.trials.clear();
        }
        for trial_id in trial_ids {
            if self.trials.contains_key(&trial_id) {
                continue;
            }
            let Some(row) = trials::find(&mut tx.conn(), trial_id).await? else {
                continue;
            };
            let stored = metrics::summaries(&mut tx.conn(), trial_id).await?;
            let mut trial = LiveTrial {
                experiment_id: row.experiment_id,
                run_id: row.run_id,
                groups: live_groups(&stored),
            };
            for recent in self.recent.get(&trial_id).into_iter().flatten() {
                let step = metrics::decode(&recent.line)?.step;
                trial.reported(&recent.group, recent.run_id, step);
            }
            self.trials.insert(trial_id, trial);
        }
        Ok(())
    }

    /// A trial that was loaded; `None` = there is none of this number.
    pub(super) fn trial(&mut self, trial_id: TrialId) -> Option<&mut LiveTrial> {
        self.trials.get_mut(&trial_id)
    }

    /// Takes note of what became of a trial.
    pub(super) fn keep(&mut self, trial_id: TrialId, trial: LiveTrial) {
        self.trials.insert(trial_id, trial);
    }

    /// What the journal holds of a trial, in order.
    pub(super) fn recent(&self, trial_id: TrialId) -> &[Recent] {
        self.recent.get(&trial_id).map_or(&[], Vec::as_slice)
    }

    /// Evicts a trial whose run or end has changed; with `None` all.
    pub(super) fn evict(&mut self, trial_id: Option<TrialId>) {
        match trial_id {
            Some(trial_id) => {
                self.trials.remove(&trial_id);
            }
            None => self.trials.clear(),
        }
    }

    /// Rows of the journal through this one are compacted.
    pub(super) fn compacted(&mut self, through: JournalId) {
        self.recent.retain(|_, reports| {
            reports.retain(|recent| recent.journal_id > through);
            !reports.is_empty()
        });
    }
}

/// What the intake needs of stored statistics.
pub(super) fn live_groups(
    stored: &BTreeMap<String, metrics::GroupSummary>,
) -> HashMap<String, LiveGroup> {
    stored
        .iter()
        .map(|(name, summary)| {
            let group = LiveGroup {
                run_id: summary.run_id,
                last_step: summary.last_step,
            };
            (name.clone(), group)
        })
        .collect()
}

impl LiveTrial {
    /// Takes note of a report.
    pub(super) fn reported(&mut self, group: &str, run_id: RunId, step: Option<i64>) {
        let fresh = LiveGroup {
            run_id,
            last_step: -1,
        };
        let known = match self.groups.get_mut(group) {
            Some(known) => known,
            None => self.groups.entry(group.to_owned()).or_insert(fresh),
        };
        if known.run_id != run_id {
            *known = fresh;
        }
        known.last_step = known.last_step.max(step.unwrap_or(-1));
    }

    /// Highest step that the current run has reported in a group; `None` when this run has not reported in it.
    pub(super) fn last_step(&self, group: &str) -> Option<i64> {
        self.groups
            .get(group)
            .filter(|known| known.run_id == self.run_id)
            .map(|known| known.last_step)
    }
}
