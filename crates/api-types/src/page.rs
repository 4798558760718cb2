//! Paging, ordering and the other small parts that many resources share.

use det_ids::AllocationId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::wire::{Object, Timestamp, wire_enum};

wire_enum! {
    /// Direction of a listing.
    pub enum OrderBy("ORDER_BY_") {
        /// Not specified: ascending.
        #[default]
        Unspecified = 0 => "UNSPECIFIED",
        /// Ascending; rows without a value come last.
        Asc = 1 => "ASC",
        /// Descending; rows without a value come last all the same.
        Desc = 2 => "DESC",
    }
}

/// Which part of a listing this is. Clients ask again from `end_index` until it reaches `total`, so it must advance.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Pagination {
    /// Elements to skip that the request asked for, as it gave them.
    pub offset: i64,
    /// Most elements of a page that the request asked for, as it gave them.
    pub limit: i64,
    /// Index of the first element on this page.
    pub start_index: i64,
    /// Index behind the last element on this page.
    pub end_index: i64,
    /// Elements of the whole listing.
    pub total: i64,
}

/// How a trial or a task failed (an addition of ours).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Failure {
    /// What failed, a sentence.
    pub reason: String,
    /// The attempt that failed; empty = none is known.
    #[schema(value_type = String)]
    pub allocation_id: AllocationId,
    /// The moment at which that ended.
    pub end_time: Option<Timestamp>,
    /// The last lines of its code, shortened; of a gang those of the rank that failed first. Of an entry of a list the last
    /// one alone.
    pub last_lines: Vec<String>,
}

/// Why something does not run yet (an addition of ours).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WaitReason {
    /// Stable code for programs: `not_enough_free_slots`, `paused`; `docs/queue.md` lists all.
    pub kind: String,
    /// The reason in one sentence for users.
    pub message: String,
    /// Since when this has been the reason.
    pub since: Option<Timestamp>,
    /// The numbers and names behind the sentence; which there are depends on the kind.
    pub details: Object,
}

/// The answer of operations that return nothing: `{}`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Empty {}
