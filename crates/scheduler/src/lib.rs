//! Which waiting request starts where, what must stop for it, and why the rest waits.
//!
//! One function decides for one resource pool: [`plan()`] takes the pool's places and running work ([`PoolSnapshot`]),
//! the waiting requests ([`Queue`]) and the time, and returns a [`Plan`]: placements, preemptions, and a [`WaitReason`]
//! for every request that keeps waiting. [`can_ever_fit`] decides at submission whether a request could run in the pool at
//! all.
//!
//! The crate is pure: it knows no clock, no places' connection, no rows, and nothing of what a task does. The same
//! input gives the same plan: ties are broken by identifiers, never by the order in which the caller passed things in.
//!
//! Read [`PoolSnapshot`], [`Request`] and [`Plan`] first, then the rules (`priority`, `fair_share`, `round_robin`) and
//! `space` (the fit).
//!
//! # How a caller uses it
//!
//! On every change, the caller updates a [`Planner`] and runs a pass, or runs [`plan()`] over everything. It commits
//! the placements as running allocations, marks the preempted and the handed-over ones with [`Progress::PreemptedFor`]
//! (or [`Progress::Stopping`] when no request is named), and removes an allocation's slots from the snapshot as its
//! containers exit. Running the plan again on the result decides nothing new. Requests whose reason is
//! [`WaitReason::ReservedFor`], or that pass the age limit ([`PoolSettings::reserve_after`]), need a run when that time
//! comes even if nothing else changed.

mod capacity;
mod decision;
mod estimate;
mod explanation;
mod fair_share;
mod free_capacity;
mod future;
mod gang;
mod growth;
mod model;
mod moves;
mod order;
mod ordered;
mod pauses;
mod plan;
mod planner;
mod prepared;
mod priority;
mod reason;
mod reserve;
mod round_robin;
mod service;
mod shares;
mod space;
mod victims;
mod workspaces;

pub use capacity::{NeverFits, SlotDemand, can_ever_fit};
pub use estimate::{Estimate, estimate};
pub use explanation::WaitExplanation;
pub use growth::{Growth, Share};
pub use model::{
    Fitting, Job, MisfitGroup, Misfits, PlaceSnapshot, PlaceState, Policy, PoolSettings,
    PoolSnapshot, Progress, Provisionable, Queue, Request, RunningAllocation, SlotSnapshot,
    SlotState, Work, WorkspaceLimit,
};
pub use moves::{MoveError, QueueEntry, Side, move_job};
pub use plan::{HandOver, Placement, Plan, PreemptReason, Preemption, Reservation, plan};
pub use planner::{Pass, Planner};
pub use reason::{BlockingCause, Holder, Holders, PlaceGroup, WaitKind, WaitReason};
pub use service::{Fault, Service, Services};
