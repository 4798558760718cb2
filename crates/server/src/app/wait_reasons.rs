//! Why allocations wait, as their rows contain it: the structured reason and the sentence.

use det_ids::AllocationId;
use det_orchestrator::Waiting;
use det_scheduler::{WaitKind, WaitReason};
use det_store::StoreError;
use det_store::allocations::AllocationRow;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::app::homes::Homes;
use crate::error::{AppError, AppResult};

/// A reason in words, ready to be stored. `name_of` gives the labels of allocations, `homes` the names of workspaces.
/// `removed_pool` names the pool where it is not configured any more: then the sentence is about that, since the reason
/// itself would not help.
pub(crate) fn waiting_of(
    reason: &WaitReason,
    name_of: impl Fn(&AllocationId) -> Option<String>,
    homes: &Homes,
    removed_pool: Option<&str>,
) -> AppResult<Waiting> {
    let document = Document {
        reason,
        message: match removed_pool {
            Some(pool) => format!(
                "resource pool \"{pool}\" is not in the master's configuration any more; configure it again, or move the \
                 job: `det job update JOB --resource-pool POOL`"
            ),
            None => reason.explain(name_of, |id| homes.name_of(id)),
        },
    };
    Ok(Waiting {
        stored: serde_json::to_string(&document).map_err(AppError::internal)?,
        message: document.message,
        kind: reason.kind(),
    })
}

#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    reason: &'a WaitReason,
    message: String,
}

/// A reason as it was stored.
#[derive(Debug, Deserialize)]
pub(crate) struct StoredReason {
    pub(crate) kind: WaitKind,
    pub(crate) message: String,
    /// The numbers that make it true.
    #[serde(flatten)]
    pub(crate) details: Map<String, Value>,
}

/// The stored reason of an allocation; `None` before the scheduler has first looked at it, and once it is placed.
pub(crate) fn stored_reason(row: &AllocationRow) -> Result<Option<StoredReason>, StoreError> {
    read(row)
}

/// Its kind alone.
pub(crate) fn stored_kind(row: &AllocationRow) -> Result<Option<WaitKind>, StoreError> {
    #[derive(Deserialize)]
    struct Kind {
        kind: WaitKind,
    }
    Ok(read::<Kind>(row)?.map(|stored| stored.kind))
}

fn read<'a, T: Deserialize<'a>>(row: &'a AllocationRow) -> Result<Option<T>, StoreError> {
    let text = row.wait_reason.as_deref();
    text.map(serde_json::from_str)
        .transpose()
        .map_err(|e| StoreError::Corrupt {
            what: format!("waiting reason of allocation {}", row.id),
            message: e.to_string(),
        })
}
