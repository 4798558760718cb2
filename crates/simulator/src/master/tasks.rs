//! Mirrors what running tasks tell and ask: `app/allocations.rs`, `app/metrics.rs`, `app/checkpoints.rs`, `app/trials.rs`.

use std::collections::BTreeMap;

use det_ids::RequestId;
use det_lifecycle::allocation::{AllocationEvent, AllocationState};
use det_lifecycle::container::Observed;
use det_lifecycle::trial::{EarlyExit, TrialEvent};
use det_searcher::Event as SearchEvent;

use super::{Refused, Tx};
use crate::mutant::Mutant;
use crate::rows::{Checkpoint, Line, Metric};

/// What a container's processes ask of the master. The allocation comes with the token.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Call {
    /// Meets its peers.
    Meet,
    /// Reports a validation.
    Metric {
        /// Steps completed.
        step: i64,
        /// The searcher's metric.
        value: f64,
    },
    /// Reports a checkpoint whose files are stored.
    Checkpoint {
        /// Its name.
        uuid: String,
        /// Steps completed.
        steps: i64,
        /// Path to bytes.
        files: BTreeMap<String, i64>,
    },
    /// Ships a line of its log.
    Line {
        /// Its number in the container's spool.
        sequence: i64,
    },
    /// Asks whether to save and exit.
    Poll,
    /// Says that it saves and exits.
    Acknowledge,
    /// Says that it ends early.
    EarlyExit(EarlyExit),
}

/// An answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Done, or known already.
    Done,
    /// Of [`Call::Meet`]: not all are there yet.
    NotYet,
    /// Of [`Call::Poll`].
    Preempt(bool),
}

impl Tx<'_> {
    /// Takes a call of a container.
    pub(crate) fn take(
        &mut self,
        allocation: &str,
        container: &str,
        call: Call,
    ) -> Result<Reply, Refused> {
        match call {
            Call::Meet => self.rendezvous(allocation, container),
            Call::Metric { step, value } => self.report_metric(allocation, step, value),
            Call::Checkpoint { uuid, steps, files } => {
                self.report_checkpoint(allocation, uuid, steps, files)
            }
            Call::Line { sequence } => self.append_line(allocation, container, sequence),
            Call::Poll => Ok(Reply::Preempt(self.preemption_signal(allocation))),
            Call::Acknowledge => {
                self.allocation_event(allocation, AllocationEvent::Acknowledge)?;
                Ok(Reply::Done)
            }
            Call::EarlyExit(reason) => self.report_early_exit(allocation, reason),
        }
    }

    fn rendezvous(&mut self, allocation: &str, container: &str) -> Result<Reply, Refused> {
        let row = self
            .rows
            .containers
            .get(container)
            .ok_or_else(|| format!("container {container} not found"))?;
        if !row.joined
            && let Some(row) = self.rows.container_mut(container)
        {
            row.joined = true;
        }
        let members = self.rows.members(allocation);
        let all_joined = members.iter().all(|c| c.joined);
        let all_run = members
            .iter()
            .all(|c| matches!(c.observed, Some(Observed::Running { .. })));
        if all_joined {
            self.allocation_event(allocation, AllocationEvent::Meet)?;
        }
        let ended = self
            .rows
            .allocations
            .get(allocation)
            .is_none_or(|a| a.ended_at.is_some());
        match (all_joined && all_run, ended) {
            (true, _) => Ok(Reply::Done),
            (false, true) => Err("the allocation has ended before all had met".to_owned()),
            (false, false) => Ok(Reply::NotYet),
        }
    }

    fn preemption_signal(&self, allocation: &str) -> bool {
        self.rows.allocations.get(allocation).is_some_and(|a| {
            matches!(
                a.state,
                AllocationState::Preempting | AllocationState::Saving
            )
        })
    }

    /// The trial and run that an allocation reports for; refuses an older run.
    fn fenced(&self, allocation: &str, open: Mutant) -> Result<(i64, i64), Refused> {
        let row = self
            .rows
            .allocations
            .get(allocation)
            .ok_or_else(|| format!("allocation {allocation} not found"))?;
        let newest = self.rows.trials.get(&row.trial_id).map(|t| t.run_id);
        if newest != Some(row.run_id) && !self.is(open) {
            return Err(format!("run {} is over", row.run_id));
        }
        Ok((row.trial_id, row.run_id))
    }

    fn report_metric(&mut self, allocation: &str, step: i64, value: f64) -> Result<Reply, Refused> {
        let (trial_id, run_id) = self.fenced(allocation, Mutant::UnfencedMetrics)?;
        let doubled = self.is(Mutant::DoubledMetrics);
        let known = self.rows.steps.entry((trial_id, run_id)).or_default();
        if !known.insert(step) && !doubled {
            return Ok(Reply::Done);
        }
        self.rows.version += 1;
        self.rows.metrics.push(Metric {
            trial_id,
            run_id,
            step,
            value,
        });
        let trial = self
            .rows
            .trials
            .get(&trial_id)
            .ok_or_else(|| format!("trial {trial_id} not found"))?;
        if trial.ended_at.is_none() {
            #[expect(clippy::cast_precision_loss, reason = "steps stay far below 2^52")]
            let time = Some(step as f64);
            let event = SearchEvent::Validation {
                request_id: RequestId(trial.request_id.clone()),
                metric: value,
                time,
            };
            self.advance_search(trial.experiment_id, event)?;
        }
        Ok(Reply::Done)
    }

    fn report_checkpoint(
        &mut self,
        allocation: &str,
        uuid: String,
        steps: i64,
        files: BTreeMap<String, i64>,
    ) -> Result<Reply, Refused> {
        if self.rows.checkpoints.contains_key(&uuid) {
            return Ok(Reply::Done);
        }
        let (trial_id, run_id) = self.fenced(allocation, Mutant::UnfencedCheckpoints)?;
        self.rows.checkpoints.insert(
            uuid.clone(),
            Checkpoint {
                uuid: uuid.clone(),
                trial_id,
                run_id,
                steps,
                files,
            },
        );
        if let Some(trial) = self.rows.trial_mut(trial_id)
            && trial
                .latest_checkpoint
                .as_ref()
                .is_none_or(|(_, below)| *below <= steps)
        {
            trial.latest_checkpoint = Some((uuid.clone(), steps));
        }
        self.record("checkpoint", uuid, "created", Some("COMPLETED"));
        Ok(Reply::Done)
    }

    /// Lines of an ended run still belong into the log; a repeated one is known by its number.
    fn append_line(
        &mut self,
        allocation: &str,
        container: &str,
        sequence: i64,
    ) -> Result<Reply, Refused> {
        let row = self
            .rows
            .allocations
            .get(allocation)
            .ok_or_else(|| format!("allocation {allocation} not found"))?;
        let line = Line {
            trial_id: row.trial_id,
            run_id: row.run_id,
            spool: container.to_owned(),
            sequence,
        };
        let next = self.rows.spools.entry(container.to_owned()).or_default();
        if sequence >= *next {
            *next = sequence + 1;
            self.rows.version += 1;
            self.rows.lines.push(line);
        }
        Ok(Reply::Done)
    }

    fn report_early_exit(&mut self, allocation: &str, reason: EarlyExit) -> Result<Reply, Refused> {
        let (trial_id, _) = self.fenced(allocation, Mutant::UnfencedEarlyExit)?;
        let ended = self
            .rows
            .trials
            .get(&trial_id)
            .is_none_or(|t| t.ended_at.is_some());
        if !ended {
            self.trial_event(trial_id, TrialEvent::EarlyExit(reason))?;
        }
        Ok(Reply::Done)
    }
}
