//! What running tasks report and request.

use std::collections::BTreeMap;

use det_ids::{AllocationId, CheckpointId, ContainerId, Micros, RunId, SpoolId, TrialId};
use det_lifecycle::allocation::AllocationEvent;
use det_lifecycle::container::ObservedState;
use det_lifecycle::record::{ActorName, EventKind, Subject};
use det_lifecycle::state_name::CheckpointState;
use det_lifecycle::trial::EarlyExit;
use det_orchestrator::{Allocation, Cause, Event, Mutant as CoreMutant, validation};
use det_taskspec::TaskKind;

use super::{RefusalText, Topic, Tx, core};
use crate::mutant::Mutant;
use crate::rows::{Checkpoint, Line, Metric};

/// What a container's processes request of the master. The allocation comes with the token.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Call {
    /// Asks whether all containers of its allocation have met.
    Meet,
    /// Reports a validation of its trial.
    Metric {
        /// Steps that were completed when it was measured.
        step: i64,
        /// Value of the metric that the search optimises.
        value: f64,
    },
    /// Reports a checkpoint whose files are stored.
    Checkpoint {
        /// UUID of the checkpoint.
        uuid: CheckpointId,
        /// Steps that were completed when it was written.
        steps: i64,
        /// Size in bytes of each file, by its path.
        files: BTreeMap<String, i64>,
    },
    /// Ships a line of its log.
    Line {
        /// Its number in the container's spool.
        sequence: i64,
    },
    /// Requests whether it is to save and exit.
    Poll,
    /// Reports that it saves and exits.
    Acknowledge,
    /// Reports that it ends early.
    EarlyExit(EarlyExit),
    /// Reports that its service is up.
    Up,
    /// Its service is used, or reports that it is.
    Used,
}

/// What the master answers to a [`Call`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    /// It is done, now or by an earlier call that came twice.
    Done,
    /// Of [`Call::Meet`]: not all have arrived yet.
    NotYet,
    /// Of [`Call::Poll`]: whether the task is to save and leave.
    Preempt(bool),
}

fn cause() -> Cause {
    Cause::actor(ActorName::Task("code".into()))
}

/// The trial that an allocation works for.
fn reporter(row: &Allocation) -> Result<TrialId, RefusalText> {
    row.trial_id
        .ok_or_else(|| format!("allocation {} works for no trial", row.id))
}

impl Tx<'_> {
    /// Takes a call of a container.
    pub(crate) fn take(
        &mut self,
        allocation: &AllocationId,
        container: &ContainerId,
        call: Call,
    ) -> Result<Reply, RefusalText> {
        match call {
            Call::Meet => self.rendezvous(allocation, container),
            Call::Metric { step, value } => self.report_metric(allocation, step, value),
            Call::Checkpoint { uuid, steps, files } => {
                self.report_checkpoint(allocation, &uuid, steps, files)
            }
            Call::Line { sequence } => self.append_line(allocation, container, sequence),
            Call::Poll => {
                // A trial's code shows that it can be asked when its containers meet.
                if self.rows.allocation(allocation)?.kind != TaskKind::Trial {
                    self.advance([Event::Listens {
                        id: allocation.clone(),
                        cause: cause(),
                    }])?;
                }
                let row = self.rows.allocation(allocation);
                Ok(Reply::Preempt(row.is_ok_and(|row| row.state.is_to_save())))
            }
            Call::Acknowledge => {
                self.advance([Event::Allocation {
                    id: allocation.clone(),
                    event: AllocationEvent::Acknowledge,
                    cause: cause(),
                }])?;
                Ok(Reply::Done)
            }
            Call::Up => {
                self.advance([Event::Allocation {
                    id: allocation.clone(),
                    event: AllocationEvent::Meet,
                    cause: cause(),
                }])?;
                self.wakes.insert(Topic::Deadlines);
                Ok(Reply::Done)
            }
            Call::Used => {
                let task = self.rows.allocation(allocation)?.task_id.clone();
                if let Some(clock) = self.memory.idle.of(&task) {
                    clock.used(Micros(self.now));
                }
                Ok(Reply::Done)
            }
            Call::EarlyExit(reason) => {
                let row = self.rows.allocation(allocation)?;
                let (id, run) = (reporter(row)?, Some(row.run_id));
                self.advance([Event::EarlyExit {
                    id,
                    run,
                    reason,
                    cause: cause(),
                }])?;
                Ok(Reply::Done)
            }
        }
    }

    fn rendezvous(
        &mut self,
        allocation: &AllocationId,
        container: &ContainerId,
    ) -> Result<Reply, RefusalText> {
        self.advance([Event::Joined {
            id: allocation.clone(),
            container_id: container.clone(),
            cause: cause(),
        }])?;
        let members = self.rows.members(allocation);
        let members = members.iter();
        let meeting =
            ObservedState::meeting(members.map(|c| (c.row.joined, c.row.observed.as_ref())));
        let ended = self
            .rows
            .allocations
            .get(allocation)
            .is_none_or(|a| a.row.ended_at.is_some());
        match (meeting.is_some(), ended) {
            (true, _) => Ok(Reply::Done),
            (false, true) => Err("the allocation has ended before all had met".to_owned()),
            (false, false) => Ok(Reply::NotYet),
        }
    }

    /// The trial and run that an allocation reports for; refuses an older run.
    fn fenced(
        &self,
        allocation: &AllocationId,
        open: CoreMutant,
    ) -> Result<(TrialId, RunId), RefusalText> {
        let row = self.rows.allocation(allocation)?;
        let id = reporter(row)?;
        let trial = self.rows.trials.get(&id);
        let trial = trial.ok_or_else(|| format!("trial {id} not found"))?;
        core(self.mutant)
            .require_current_run(&trial.row, Some(row.run_id), open)
            .map_err(|refused| refused.to_string())?;
        Ok((id, row.run_id))
    }

    fn report_metric(
        &mut self,
        allocation: &AllocationId,
        step: i64,
        value: f64,
    ) -> Result<Reply, RefusalText> {
        let (trial_id, run_id) = self.fenced(allocation, CoreMutant::UnfencedMetrics)?;
        let metric = Metric {
            trial_id,
            run_id,
            step,
            value,
        };
        let stores_twice = self.mutant == Some(Mutant::DoubledMetrics);
        if !self.rows.insert_metric(metric, stores_twice) {
            return Ok(Reply::Done);
        }
        let trial = self
            .rows
            .trials
            .get(&trial_id)
            .ok_or_else(|| format!("trial {trial_id} not found"))?;
        if trial.row.ended_at.is_none() {
            #[expect(clippy::cast_precision_loss, reason = "steps stay far below 2^52")]
            let time = Some(step as f64);
            let request_id = trial.row.request_id.clone();
            let event = validation(request_id, Some(value), Some(time));
            let id = trial.row.experiment_id;
            self.advance([Event::Search { id, event }])?;
        }
        Ok(Reply::Done)
    }

    fn report_checkpoint(
        &mut self,
        allocation: &AllocationId,
        uuid: &CheckpointId,
        steps: i64,
        files: BTreeMap<String, i64>,
    ) -> Result<Reply, RefusalText> {
        if self.rows.checkpoints.contains_key(uuid) {
            return Ok(Reply::Done);
        }
        let (trial_id, run_id) = self.fenced(allocation, CoreMutant::UnfencedCheckpoints)?;
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
        self.rows.record(
            Subject::Checkpoint(uuid.clone()),
            EventKind::Created,
            Some(CheckpointState::Completed.into()),
        );
        Ok(Reply::Done)
    }

    /// Lines of an ended run still belong into the log; a repeated one is known by its number.
    fn append_line(
        &mut self,
        allocation: &AllocationId,
        container: &ContainerId,
        sequence: i64,
    ) -> Result<Reply, RefusalText> {
        let row = self.rows.allocation(allocation)?;
        let spool = SpoolId(container.to_string());
        let line = Line {
            trial_id: reporter(row)?,
            run_id: row.run_id,
            spool: spool.clone(),
            sequence,
        };
        let next = self.rows.spools.entry(spool).or_default();
        if sequence >= *next {
            *next = sequence + 1;
            self.rows.version += 1;
            self.rows.lines.push(line);
        }
        Ok(Reply::Done)
    }
}
