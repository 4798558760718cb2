//! The decision, and the one function that makes it.

use std::fmt;

use det_ids::{AllocationId, Micros, PlaceId, PriorityOrder, SlotId, quantity};
use serde::Serialize;

use crate::model::{PoolSnapshot, Queue};
use crate::planner::Planner;
use crate::reason::WaitReason;

/// What to do now: the result of one decision over a pool and its queue.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    /// Requests that start, in the order in which they were decided.
    pub placements: Vec<Placement>,
    /// Running allocations to ask to stop. Those asked by an earlier plan are not repeated.
    pub preempt: Vec<Preemption>,
    /// Stopping allocations whose slots are now for a more important request than the one they were asked to stop for.
    /// Nothing is to be sent to them; only the request they stop for changes.
    pub hand_over: Vec<HandOver>,
    /// Every other request with the reason why it waits, in queue order (slot requests and zero-slot requests
    /// interleaved by the same order).
    pub waiting: Vec<(AllocationId, WaitReason)>,
    /// Places held back for requests that reserve; for explanation only.
    pub reservations: Vec<Reservation>,
}

/// A request that starts now, and on which slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The allocation that starts.
    pub allocation_id: AllocationId,
    /// One part, that is one container, per place; together exactly the slots asked for. A zero-slot request has one
    /// part without slots.
    pub parts: Vec<(PlaceId, Vec<SlotId>)>,
}

/// A running allocation that is to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preemption {
    /// The allocation to stop.
    pub allocation_id: AllocationId,
    /// The waiting request that gets its slots; `None` if it stops because its job is above its cap.
    pub for_allocation: Option<AllocationId>,
    /// The rule that makes it stop, with the numbers.
    pub reason: PreemptReason,
}

/// Slots that are being freed and are now for another request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandOver {
    /// The allocation that is stopping and still holds the slots.
    pub allocation_id: AllocationId,
    /// The waiting request that gets its slots from now on.
    pub for_allocation: AllocationId,
}

/// Why a running allocation is to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PreemptReason {
    /// A more important request needs its slots.
    HigherPriority {
        /// Priority of the request that needs the slots, 1 to 99.
        priority: u8,
        /// Priority of the allocation that stops.
        own_priority: u8,
        /// Which of the two is more important, for the sentence.
        #[serde(skip)]
        order: PriorityOrder,
    },
    /// A request of the same priority needs its slots, and a user moved one of the two jobs in the queue.
    MovedAhead,
    /// Its job has more slots than `max_slots` allows.
    OverJobCap {
        /// Most slots that the job may use at a time.
        max_slots: u32,
        /// Slots of the job's allocations that had not been asked to stop before.
        in_use: u32,
    },
    /// Its job has more slots than its fair share, and a job below its own needs slots.
    OverFairShare {
        /// The job's fair share in slots.
        share: u32,
        /// Slots of the job's allocations that had not been asked to stop before.
        in_use: u32,
    },
}

impl fmt::Display for PreemptReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HigherPriority {
                priority,
                own_priority,
                order,
            } => write!(
                f,
                "work of priority {priority} needs its slots (its own is {own_priority}; {order})"
            ),
            Self::MovedAhead => {
                f.write_str("a job that was moved ahead in the queue needs its slots")
            }
            Self::OverJobCap { max_slots, in_use } => {
                let used = quantity((*in_use).into(), "slot");
                write!(f, "its job uses {used} and may use {max_slots}")
            }
            Self::OverFairShare { share, in_use } => write!(
                f,
                "its job uses {}, its fair share is {share}, and a job below its own share needs slots",
                quantity((*in_use).into(), "slot")
            ),
        }
    }
}

/// Places held back for a request that has waited too long, or whose victims are stopping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// The waiting request that the places are held back for.
    pub allocation_id: AllocationId,
    /// The places, in id order; requests behind it (of the same priority, where priorities decide) do not start on what
    /// is held there.
    pub places: Vec<PlaceId>,
}

/// Decides what starts, what stops and why the rest waits.
///
/// A caller that plans repeatedly keeps a [`Planner`] and updates it with each change.
///
/// `now` is compared with [`crate::Request::requested_at`] for the age limit, and with [`crate::Request::not_before`];
/// nothing else depends on time.
pub fn plan(pool: &PoolSnapshot, queue: &Queue, now: Micros) -> Plan {
    Planner::of(pool, queue).plan(now)
}
