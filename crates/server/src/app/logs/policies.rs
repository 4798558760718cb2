//! Log policies: what a line in a task's log means for its later attempts (`docs/contract/configuration.md`).
//!
//! Lines are matched as they come in, before they are stored; what was found is noted in the transaction that stores
//! them. Noting the same twice changes nothing, so a batch that is sent again does no harm.

use std::sync::Arc;

use det_config::container::LogAction;
use det_ids::{ExperimentId, PlaceId, TaskId};
use det_lifecycle::log_findings::LogFindings;
use det_lifecycle::record::{EventKind, Subject};
use det_store::allocations::TaskRow;
use det_store::events::NewEvent;
use det_store::logs::{LogLine, Packed};
use det_store::{StoreError, WriteTx, allocations, experiments, trials};
use serde_json::json;

use crate::app::configs::Configs;
use crate::app::context::Context;
use crate::app::log_patterns::{CompiledPolicies, Found, SEARCH_TIME, Searched, thread_time};
use crate::app::logs::write_line;
use crate::app::offload;
use crate::error::AppResult;
use crate::hub::Topic;

/// Lines of at least so many bytes are matched on a blocking thread.
const LONG_LINES: usize = 4 << 10;

/// What the log of a task says of lines that were held against no policy.
fn not_applied(lines: usize) -> String {
    format!(
        "The log policies were not applied to {lines} lines that came at this moment: holding them against the patterns takes \
         more than {} s of processor time. Write patterns with fewer or shorter repetitions",
        SEARCH_TIME.as_secs()
    )
}

/// What lines of logs do to tasks. Cheap to clone.
#[derive(Clone)]
pub struct LogPolicies {
    context: Context,
    configs: Configs,
}

impl LogPolicies {
    /// Of the experiments with these configurations.
    pub(crate) fn new(context: Context, configs: Configs) -> Self {
        Self { context, configs }
    }

    /// Lines that the log policies of an experiment match.
    pub(crate) async fn find(
        &self,
        experiment_id: ExperimentId,
        packed: &Packed,
    ) -> AppResult<Searched> {
        let Some(policies) = self.compiled(experiment_id).await? else {
            return Ok(Searched::default());
        };
        if packed.unpacked_bytes() < LONG_LINES {
            return Ok(policies.find(packed, thread_time)?);
        }
        let packed = packed.clone();
        Ok(offload(true, move || policies.find(&packed, thread_time)).await??)
    }

    async fn compiled(
        &self,
        experiment_id: ExperimentId,
    ) -> AppResult<Option<Arc<CompiledPolicies>>> {
        if let Some(known) = self.configs.log_policies(experiment_id) {
            return Ok(known);
        }
        let row = {
            let mut conn = self.context.store.read().await?;
            experiments::find(&mut conn.conn(), experiment_id).await?
        };
        let Some(row) = row else { return Ok(None) };
        let config = self.configs.of(&row)?;
        let policies = config.log_policies.clone();
        let compiled = offload(true, move || CompiledPolicies::of(&policies)).await?;
        // Kept as well where they cannot be compiled, as an earlier version may have accepted them. Of an ended experiment
        // nothing is kept, and each batch of lines that still comes would warn again.
        let policies = compiled.unwrap_or_else(|error| {
            if row.ended_at.is_none() {
                tracing::warn!(experiment.id = row.id.0, %error, cause = ?error.cause, "log policies cannot be used");
            }
            None
        });
        let policies = policies.map(Arc::new);
        self.configs.keep_log_policies(&row, policies.clone());
        Ok(policies)
    }

    /// Notes what was found in a task's log, and does what the policies say. Lines that were not looked at are a line of the
    /// log.
    pub(crate) async fn apply(
        &self,
        tx: &mut WriteTx,
        task_id: &TaskId,
        searched: Searched,
    ) -> AppResult<()> {
        let Searched { found, left } = searched;
        if left > 0 {
            let text = not_applied(left);
            write_line(&self.context.hub, tx, task_id, None, &text)?;
        }
        let Some(task) = self.noting_task(tx, task_id).await? else {
            return Ok(());
        };
        let before = task.log_findings.clone().unwrap_or_default();
        let mut findings = before.clone();
        for found in found {
            if findings.add_match(&found.label) {
                self.record_match(tx, &task, &found).await?;
            }
            match found.action {
                None => {}
                // What earlier tasks of a trial that was continued printed and shipped late is forgiven.
                Some(LogAction::CancelRetries)
                    if findings.retries_canceled_by.is_some() || task.id != *task_id => {}
                Some(LogAction::CancelRetries) => {
                    let text = format!(
                        "The log policy \"{}\" matched: this trial is not restarted after a failure",
                        found.label
                    );
                    write_line(
                        &self.context.hub,
                        tx,
                        task_id,
                        found.line.allocation_id.as_ref(),
                        &text,
                    )?;
                    findings.retries_canceled_by = Some(found.label);
                }
                Some(LogAction::ExcludeNode) => {
                    for agent in agents_of(tx, task_id, &found.line).await? {
                        if !findings.exclude(agent.clone(), &found.pattern) {
                            continue;
                        }
                        let text = format!(
                            "The log policy \"{}\" matched on place {agent}, therefore will not schedule on {agent}: later runs \
                             of this trial avoid that place",
                            found.label
                        );
                        write_line(
                            &self.context.hub,
                            tx,
                            task_id,
                            found.line.allocation_id.as_ref(),
                            &text,
                        )?;
                    }
                }
            }
        }
        if findings == before {
            return Ok(());
        }
        if findings.excluded_places != before.excluded_places {
            self.exclude_from_waiting(tx, &task.id, &findings).await?;
        }
        Ok(allocations::set_log_findings(&mut tx.conn(), &task.id, findings).await?)
    }

    /// The task that notes what is found in the log of this one: of a trial that was continued its current task.
    async fn noting_task(
        &self,
        tx: &mut WriteTx,
        task_id: &TaskId,
    ) -> Result<Option<TaskRow>, StoreError> {
        let task = allocations::find_task(&mut tx.conn(), task_id).await?;
        let Some(trial_id) = task.as_ref().and_then(|task| task.trial_id) else {
            return Ok(task);
        };
        match trials::find(&mut tx.conn(), trial_id).await? {
            Some(trial) if trial.task_id != *task_id => {
                allocations::find_task(&mut tx.conn(), &trial.task_id).await
            }
            _ => Ok(task),
        }
    }

    /// An attempt that waits already avoids the places as well: lines can come later than the end of the one that wrote them.
    async fn exclude_from_waiting(
        &self,
        tx: &mut WriteTx,
        task_id: &TaskId,
        findings: &LogFindings,
    ) -> AppResult<()> {
        if let Some(mut live) = allocations::live_of_task(&mut tx.conn(), task_id).await?
            && live.placed_at.is_none()
        {
            live.excluded_places = findings.exclusions();
            allocations::update(&mut tx.conn(), &live).await?;
            self.context.wake(tx, Topic::Schedule);
        }
        Ok(())
    }

    async fn record_match(
        &self,
        tx: &mut WriteTx,
        task: &TaskRow,
        found: &Found,
    ) -> Result<(), StoreError> {
        let detail = json!({
            "policy": found.label,
            "pattern": found.pattern,
            "action": found.action,
            "agent": found.line.agent_id,
        });
        let subject = match task.trial_id {
            Some(id) => Subject::Trial(id),
            None => Subject::Task(task.id.clone()),
        };
        let event = NewEvent::new("master", subject, EventKind::LogPolicyMatched).detail(detail);
        self.context.record(tx, event).await
    }
}

/// The agents that a line can come from: the one it names, else those of its attempt.
async fn agents_of(
    tx: &mut WriteTx,
    task_id: &TaskId,
    line: &LogLine,
) -> Result<Vec<PlaceId>, StoreError> {
    if let Some(agent) = &line.agent_id {
        return Ok(vec![agent.clone().into()]);
    }
    let allocation = match &line.allocation_id {
        Some(id) => allocations::find(&mut tx.conn(), id).await?,
        None => allocations::live_of_task(&mut tx.conn(), task_id).await?,
    };
    let Some(allocation) = allocation else {
        return Ok(Vec::new());
    };
    let containers = allocations::containers(&mut tx.conn(), &allocation.id).await?;
    let agents = containers
        .iter()
        .filter(|container| {
            line.container_id
                .as_ref()
                .is_none_or(|id| *id == container.id)
        })
        .map(|container| container.place_id.clone());
    Ok(agents.collect())
}
