//! The ordered record of every state change (an addition of ours).

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::page::OrderBy;
use crate::wire::{Int64, Object, Timestamp};

/// A change of an experiment, a task or another thing, as the master has recorded it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Event {
    /// Place in the order, counted from 1 without repeats.
    pub id: Int64,
    /// When the change was recorded, within the transaction that made it.
    pub time: Timestamp,
    /// Who or what caused it: `user:NAME`, `task:ID`, `agent:ID`, `signal:NAME` or `master`.
    pub actor: String,
    /// Kind of the thing that changed: `experiment`, `trial`, `allocation`.
    pub subject_kind: String,
    /// Id of that thing, as text: the number of an experiment or trial, the id of an allocation.
    pub subject_id: String,
    /// What happened, a word for programs: `created`, `state`.
    pub kind: String,
    /// State before; `None` = it did not exist or has no state.
    pub from: Option<String>,
    /// State after; `None` = it is gone or has no state.
    pub to: Option<String>,
    /// Why, one sentence; `None` = the type alone is reason enough.
    pub reason: Option<String>,
    /// Further particulars, by kind of event.
    pub detail: Option<Object>,
}

/// Query of `GET /api/v1/events` and its stream.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct GetEventsQuery {
    /// Only events behind this place in the order.
    pub after: i64,
    /// Events at most; 0 = 100.
    pub limit: i64,
    /// Ascending or not given: events come oldest first, and a descending order is refused.
    pub order_by: OrderBy,
    /// Only things of this kind; empty = all.
    pub subject_kind: String,
    /// Only the thing with this id; empty = all.
    pub subject_id: String,
    /// Keep the stream open and send further events as they come.
    pub follow: bool,
}

/// Answer of `GET /api/v1/events`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GetEventsResponse {
    /// The page's events, oldest first; empty = there are none behind `after`.
    pub events: Vec<Event>,
    /// Place behind which to ask next.
    pub next_after: Int64,
}
