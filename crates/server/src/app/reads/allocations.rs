//! Reading allocations.

use det_authz::Kind;
use det_ids::AllocationId;
use det_lifecycle::object::ObjectKind;
use det_store::Store;
use det_store::allocations::{self, AllocationRow};

use crate::app::reads;
use crate::auth::Actor;
use crate::error::{AppError, AppResult};

/// The allocation with this id, or the error "not found".
pub(crate) async fn find(
    store: &Store,
    actor: &Actor,
    allocation_id: &AllocationId,
) -> AppResult<AllocationRow> {
    reads::require(actor, Kind::Allocation, "allocations")?;
    require_form(allocation_id)?;
    let mut conn = store.read().await?;
    allocations::find(&mut conn.conn(), allocation_id)
        .await?
        .ok_or_else(|| {
            AppError::not_found(
                ObjectKind::Allocation,
                allocation_id.as_str().escape_debug(),
            )
        })
}

/// `<task>.<n>`, or a clear refusal.
pub(crate) fn require_form(allocation_id: &AllocationId) -> AppResult<()> {
    if allocation_id.is_well_formed() {
        return Ok(());
    }
    Err(AppError::invalid(format!(
        "\"{}\" is not an allocation id: it must be TASK.NUMBER",
        allocation_id.as_str().escape_debug()
    )))
}
