//! Resource managers: what one is, and what passes between it and the core of the master.
//!
//! A [`Manager`] has resource pools. What runs in a pool runs on places: machines with agents, or whatever else runs
//! containers. The core decides what is to run where and writes it into rows; a manager carries it out. It holds nothing
//! that is not also in a row or at a place: after every change, and after a restart of either side, a
//! [`PlaceView`] compares what the rows want with what the place has reported, and says what to do.
//!
//! The core is reached through [`Core`], and a manager knows nothing else of the master. Read [`Core`] first.

mod core;
mod leases;
mod manager;
mod reconcile;

pub use self::core::{Changes, Core, Joined};
pub use det_lifecycle::place::Capacity;
pub use leases::{Lease, LeaseId, Leases};
pub use manager::{Health, Manager, PlaceWord, Pool};
pub use reconcile::{Mutant, Order, PlaceView};
