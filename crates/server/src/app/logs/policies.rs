//! Log policies: what a line in a task's log means for its later attempts (`docs/contract/configuration.md`).
//!
//! Lines are matched as they come in, before they are stored; what was found is noted in the transaction that stores
//! them. Noting the same twice changes nothing, so a batch that is sent again does no harm.

use std::sync::Arc;

use det_config::container::{CompiledPolicies, LogAction, LogPolicy};
use det_ids::{ExperimentId, PlaceId, TaskId};
use det_orchestrator::{Event, LogLevel, LogMatch};
use det_store::allocations::ContainerRow;
use det_store::logs::{LogLine, PackedLines};
use det_store::{StoreError, WriteTx, allocations, experiments};

use crate::app::configs::{Configs, OwnedPolicies};
use crate::app::context::Context;
use crate::app::logs::pattern_work::PatternWork;
use crate::app::logs::patterns::{MatchedLine, PatternMatches, SEARCH_TIME, find, thread_time};
use crate::app::offload;
use crate::app::orchestration::Orchestration;
use crate::error::AppResult;

/// Lines of at least so many bytes are matched on a blocking thread.
const LONG_LINES: usize = 4 << 10;

/// Bytes of patterns, none of them with a repetition that is counted or a class, that are compiled in little time.
const QUICK_PATTERNS: usize = 1 << 10;

/// Whether policies are compiled in little time, as those of a default configuration.
fn compile_quickly(policies: &[LogPolicy]) -> bool {
    let patterns = || policies.iter().filter_map(|policy| policy.pattern.as_ref());
    patterns().map(String::len).sum::<usize>() <= QUICK_PATTERNS
        && !patterns().any(|pattern| pattern.contains(['{', '\\']))
}

/// The line in the log of a task about lines that were held against no policy.
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
    orchestration: Orchestration,
    pattern_work: PatternWork,
}

impl LogPolicies {
    /// The log policies of experiments, which are read from these configurations.
    pub(crate) fn new(
        context: Context,
        configs: Configs,
        orchestration: Orchestration,
        pattern_work: PatternWork,
    ) -> Self {
        Self {
            context,
            configs,
            orchestration,
            pattern_work,
        }
    }

    /// Lines that the log policies of an experiment match.
    pub(crate) async fn find(
        &self,
        experiment_id: ExperimentId,
        packed: &PackedLines,
    ) -> AppResult<PatternMatches> {
        let Some(policies) = self.compiled(experiment_id).await? else {
            return Ok(PatternMatches::default());
        };
        let (is_cheap, owner) = (policies.compiled.are_cheap(), policies.owner);
        if is_cheap && packed.unpacked_bytes() < LONG_LINES {
            return Ok(find(&policies.compiled, packed, thread_time)?);
        }
        let packed = packed.clone();
        let search = move || find(&policies.compiled, &packed, thread_time);
        // What costs little, as the policies of a default configuration, need not wait for its turn.
        if is_cheap {
            return Ok(offload(true, search).await??);
        }
        Ok(self.pattern_work.run(owner, search).await??)
    }

    async fn compiled(&self, experiment_id: ExperimentId) -> AppResult<Option<Arc<OwnedPolicies>>> {
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
        let owner = row.owner_id;
        let is_quick = compile_quickly(&policies);
        let compile = move || CompiledPolicies::of(&policies);
        // What has left memory is compiled again, as often as its owner likes.
        let compiled = if is_quick {
            offload(true, compile).await?
        } else {
            self.pattern_work.run(owner, compile).await?
        };
        // Kept as well where they cannot be compiled, as an earlier version may have accepted them. Of an ended experiment
        // nothing is kept, and each batch of lines that still comes would warn again.
        let policies = compiled.unwrap_or_else(|error| {
            if row.ended_at.is_none() {
                tracing::warn!(experiment.id = row.id.0, %error, "log policies cannot be used");
            }
            None
        });
        let policies = policies.map(|compiled| Arc::new(OwnedPolicies { compiled, owner }));
        self.configs.keep_log_policies(&row, policies.clone());
        Ok(policies)
    }

    /// Notes what was found in a task's log, and carries out the policies. Lines that were not looked at are a line of the
    /// log.
    pub(crate) async fn apply(
        &self,
        tx: &mut WriteTx,
        task_id: &TaskId,
        searched: PatternMatches,
    ) -> AppResult<()> {
        let PatternMatches { found, left } = searched;
        if left > 0 {
            self.context
                .write_line(tx, task_id, None, (LogLevel::Warning, &not_applied(left)))?;
        }
        let mut matches = Vec::new();
        for MatchedLine {
            label,
            pattern,
            action,
            line,
        } in found
        {
            let places = match action {
                Some(LogAction::ExcludeNode) => places_of(tx, task_id, &line).await?,
                Some(LogAction::CancelRetries) | None => Vec::new(),
            };
            matches.push(LogMatch {
                policy: label,
                pattern,
                action,
                allocation_id: line.allocation_id,
                named_place: line.agent_id.map(PlaceId::from),
                places,
            });
        }
        let task = task_id.clone();
        let event = Event::LogMatched { task, matches };
        self.orchestration.advance(tx, [event]).await
    }
}

/// The places that a line can come from: those of its attempt's containers, and of these the one that the line names. What
/// else a line names is not believed: any writer of a log could write it.
async fn places_of(
    tx: &mut WriteTx,
    task_id: &TaskId,
    line: &LogLine,
) -> Result<Vec<PlaceId>, StoreError> {
    let allocation = match &line.allocation_id {
        Some(id) => allocations::find(&mut tx.conn(), id).await?,
        None => allocations::live_of_task(&mut tx.conn(), task_id).await?,
    };
    let Some(allocation) = allocation.filter(|row| row.task_id == *task_id) else {
        return Ok(Vec::new());
    };
    let is_named = |container: &ContainerRow| {
        let of_container = line.container_id.as_ref();
        let of_place = line.agent_id.as_ref();
        of_container.is_none_or(|id| *id == container.id)
            && of_place.is_none_or(|id| id.as_str() == container.place_id.as_str())
    };
    let containers = allocations::containers(&mut tx.conn(), &allocation.id).await?;
    let places = containers.into_iter().filter(is_named);
    Ok(places.map(|container| container.place_id).collect())
}
