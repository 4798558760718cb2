//! Log policies: what a line in a task's log means for its trial (`docs/contract/configuration.md`).
//!
//! Lines are matched as they come in, before they are stored; what was found is noted in the transaction that stores
//! them. Noting the same twice changes nothing, so a batch that is sent again does no harm.

use std::collections::BTreeSet;
use std::sync::Arc;

use det_config::container::LogAction;
use det_ids::{ExperimentId, PlaceId, TaskId, TrialId};
use det_lifecycle::record::{EventKind, Subject};
use det_store::events::NewEvent;
use det_store::logs::{LogLine, Packed};
use det_store::trials::TrialRow;
use det_store::{StoreError, WriteTx, allocations, experiments, trials};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::app::beside;
use crate::app::configs::Configs;
use crate::app::context::Context;
use crate::app::log_patterns::{CompiledPolicies, Found, SEARCH_TIME, Searched, thread_time};
use crate::app::logs::write_line;
use crate::error::{AppError, AppResult};
use crate::hub::Topic;

/// Lines of at least so many bytes are held against policies beside the other work.
const LONG_LINES: usize = 4 << 10;

/// What a trial's logs have come to; stored with it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct LogFindings {
    /// Policies that matched, the first one first.
    pub(crate) matched: Vec<String>,
    /// Places that the trial's later runs avoid.
    #[serde(rename = "excluded_agents")]
    pub(crate) excluded_places: BTreeSet<PlaceId>,
    /// Agent and pattern for each exclusion that was made: each is reported once.
    exclusions: BTreeSet<(PlaceId, String)>,
    /// The policy after whose match the trial is not restarted.
    pub(crate) retries_canceled_by: Option<String>,
}

impl LogFindings {
    /// Places that attempts must not run on, as an allocation's row has them; `None` = any will do.
    pub(crate) fn exclusions(&self) -> Option<BTreeSet<PlaceId>> {
        (!self.excluded_places.is_empty()).then(|| self.excluded_places.clone())
    }

    /// Of a trial.
    pub(crate) fn of(trial: &TrialRow) -> Result<Self, StoreError> {
        match &trial.log_findings {
            None => Ok(Self::default()),
            Some(text) => serde_json::from_str(text).map_err(|error| StoreError::Corrupt {
                what: format!("the log findings of trial {}", trial.id),
                message: error.to_string(),
            }),
        }
    }
}

/// What the log of a task says of lines that were held against no policy.
fn not_applied(lines: usize) -> String {
    format!(
        "The log policies were not applied to {lines} lines that came at this moment: holding them against the patterns takes \
         more than {} s of processor time. Write patterns with fewer or shorter repetitions",
        SEARCH_TIME.as_secs()
    )
}

/// What lines of logs do to trials. Cheap to clone.
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
        Ok(beside(true, move || policies.find(&packed, thread_time)).await??)
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
        let compiled = beside(true, move || CompiledPolicies::of(&policies)).await?;
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
        let Some(trial_id) = allocations::find_task(&mut tx.conn(), task_id)
            .await?
            .and_then(|task| task.trial_id)
        else {
            return Ok(());
        };
        let Some(trial) = trials::find(&mut tx.conn(), trial_id).await? else {
            return Ok(());
        };
        let before = LogFindings::of(&trial)?;
        let mut findings = before.clone();
        for found in found {
            if !findings.matched.contains(&found.label) {
                findings.matched.push(found.label.clone());
                self.record_match(tx, trial_id, &found).await?;
            }
            match found.action {
                None => {}
                // A trial that was continued has a new task: what its earlier ones printed and shipped late is forgiven.
                Some(LogAction::CancelRetries)
                    if findings.retries_canceled_by.is_some() || trial.task_id != *task_id => {}
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
                        let pair = (agent.clone(), found.pattern.clone());
                        if !findings.exclusions.insert(pair) {
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
                        findings.excluded_places.insert(agent);
                    }
                }
            }
        }
        if findings == before {
            return Ok(());
        }
        let text = serde_json::to_string(&findings).map_err(AppError::internal)?;
        trials::set_log_findings(&mut tx.conn(), trial_id, &text).await?;
        if findings.excluded_places != before.excluded_places {
            self.exclude_from_waiting(tx, &trial, &findings).await?;
        }
        Ok(())
    }

    /// A run that waits already avoids the agents as well: lines can come later than the end of the run that wrote them.
    async fn exclude_from_waiting(
        &self,
        tx: &mut WriteTx,
        trial: &TrialRow,
        findings: &LogFindings,
    ) -> AppResult<()> {
        if let Some(mut live) = allocations::live_of_task(&mut tx.conn(), &trial.task_id).await?
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
        trial_id: TrialId,
        found: &Found,
    ) -> Result<(), StoreError> {
        let detail = json!({
            "policy": found.label,
            "pattern": found.pattern,
            "action": found.action,
            "agent": found.line.agent_id,
        });
        self.context
            .record(
                tx,
                NewEvent::new(
                    "master",
                    Subject::Trial(trial_id),
                    EventKind::LogPolicyMatched,
                )
                .detail(detail),
            )
            .await
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

/// A trial that goes on counts its restarts anew: what its earlier runs printed does not forbid them any more. Places that
/// it avoids stay avoided.
pub(crate) async fn allow_restarts(tx: &mut WriteTx, trial: &TrialRow) -> Result<(), StoreError> {
    let mut findings = LogFindings::of(trial)?;
    if findings.retries_canceled_by.take().is_none() {
        return Ok(());
    }
    let text = serde_json::to_string(&findings).map_err(|error| StoreError::Corrupt {
        what: format!("the log findings of trial {}", trial.id),
        message: error.to_string(),
    })?;
    trials::set_log_findings(&mut tx.conn(), trial.id, &text).await
}
