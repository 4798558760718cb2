//! Resource managers: what one is, and what passes between it and the core of the master.
//!
//! A [`Manager`] has resource pools. What runs in a pool runs on places: machines with agents, or whatever else runs
//! containers. The core decides what is to run where and writes it into rows; a manager carries it out. It holds nothing
//! that is not also in a row or at a place: after every change, and after a restart of either side, a
//! [`PlaceView`] compares what the rows want with what the place has reported, and returns what to do.
//!
//! A manager reaches the core through [`Core`], and knows nothing else of the master; the core reaches single containers
//! that run through [`Reach`]. Read [`Core`] first.

mod core;
mod fit;
mod growth;
mod leases;
mod manager;
mod namespaces;
mod reach;
mod reconcile;
mod start;

pub use self::core::{Changes, Core, JoinedPlace, PlaceDetails};
pub use det_lifecycle::place::Capacity;
pub use det_scheduler::{Misfits, Share};
pub use fit::{Fit, FitQuery, PlacementRequest, ReadDemands};
pub use growth::{GrowthCore, GrowthState, WaitingGang};
pub use leases::{Lease, LeaseId, Leases};
pub use manager::{Health, Manager, Membership, PlaceWord, Pool, runs_in};
pub use namespaces::{
    AttemptOf, BoundNamespace, ClassValue, LiveAttempt, NamespaceAccess, NamespaceCore,
    NamespaceError, NamespaceRequest, NamespaceSettings, Namespaces, namespace_fault,
};
pub use reach::{ContainerAddress, Reach, ReachError};
pub use reconcile::{Mutant, Order, PlaceView};
pub use start::{ContainerStart, Origin, PlacedNamespace};
