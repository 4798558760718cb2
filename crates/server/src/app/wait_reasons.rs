//! Why allocations wait, in the words that their rows contain.

use det_ids::AllocationId;
use det_scheduler::{WaitExplanation, WaitReason};

use crate::app::homes::Homes;
use crate::error::{AppError, AppResult};

/// A reason in words, ready to be stored. `name_of` gives the labels of allocations, `homes` the names of workspaces.
/// `removed_pool` names the pool where it is not configured any more: then the sentence is about that, since the reason
/// itself would not help.
pub(crate) fn explanation_of(
    reason: &WaitReason,
    name_of: impl Fn(&AllocationId) -> Option<String>,
    homes: &Homes,
    removed_pool: Option<&str>,
) -> AppResult<WaitExplanation> {
    let message = match removed_pool {
        Some(pool) => format!(
            "resource pool \"{pool}\" is not in the master's configuration any more; configure it again, or move the \
             job: `det job update JOB --resource-pool POOL`"
        ),
        None => reason.explain(name_of, |id| homes.name_of(id)),
    };
    WaitExplanation::new(reason, message).map_err(AppError::internal)
}
