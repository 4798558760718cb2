//! Reading allocations.

use det_authz::Kind;
use det_ids::AllocationId;
use det_store::Store;
use det_store::allocations::{self, AllocationRow};

use crate::app::reads;
use crate::auth::Actor;
use crate::error::{AppError, AppResult};

/// One allocation.
pub(crate) async fn find(
    store: &Store,
    actor: &Actor,
    allocation_id: &AllocationId,
) -> AppResult<AllocationRow> {
    reads::require(actor, Kind::Allocation, "allocations")?;
    if allocation_id.split().is_none() {
        return Err(AppError::invalid(format!(
            "\"{}\" is not an allocation id: it must be TASK.NUMBER",
            allocation_id.as_str().escape_debug()
        )));
    }
    let mut conn = store.read().await?;
    allocations::find(&mut conn.conn(), allocation_id)
        .await?
        .ok_or_else(|| AppError::not_found("allocation", allocation_id.as_str().escape_debug()))
}
