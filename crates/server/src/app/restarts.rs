//! Whether a trial that fails may be started again, beyond the count of its restarts.

use det_orchestrator::{MayRestart, nowhere_left};
use det_scheduler::SlotDemand;
use det_store::allocations::TaskRow;
use det_store::experiments::ExperimentRow;

use crate::app::configs::Configs;
use crate::app::context::Context;
use crate::app::snapshots::Snapshots;
use crate::error::AppResult;

/// Asks what was found in the log of its task, and whether a place is left that it may run on. Cheap to clone.
#[derive(Clone)]
pub struct Restarts {
    context: Context,
    configs: Configs,
    snapshots: Snapshots,
}

impl Restarts {
    /// With these configurations and pools.
    pub(crate) fn new(context: Context, configs: Configs, snapshots: Snapshots) -> Self {
        Self {
            context,
            configs,
            snapshots,
        }
    }

    /// Why a trial that fails now is not started again although restarts are left; `None` if it may be.
    pub(crate) async fn forbidden_because(
        &self,
        experiment: &ExperimentRow,
        task: &TaskRow,
    ) -> AppResult<Option<String>> {
        let findings = task.log_findings.as_ref();
        let findings = match MayRestart::of(findings, self.context.config().launch_error) {
            MayRestart::Yes => return Ok(None),
            MayRestart::No(why) => return Ok(Some(why)),
            MayRestart::IfItFits => findings,
        };
        let Some(findings) = findings else {
            return Ok(None);
        };
        let config = self.configs.of(experiment)?;
        let ask = SlotDemand {
            slots: config.resources.slots_per_trial,
            single_place: config.resources.is_single_node.unwrap_or(false),
            excluded: &findings.excluded_places,
        };
        let snapshot = self.snapshots.of_pool(&experiment.resource_pool).await?;
        Ok(nowhere_left(&experiment.resource_pool, &snapshot, &ask))
    }
}
