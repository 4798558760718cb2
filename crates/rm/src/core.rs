//! What the core of a master offers to resource managers.

use std::collections::BTreeMap;
use std::sync::Arc;

use det_ids::{ContainerId, InstanceId, PlaceId, WorkspaceId};
use det_lifecycle::container::{DesiredState, ObservedState};
use det_lifecycle::place::Capacity;
use det_taskspec::PlaceRuntime;

use crate::{ContainerStart, Fit, Health, Lease};

/// A place that is available, with everything it holds.
#[derive(Debug, Clone, PartialEq)]
pub struct JoinedPlace {
    /// Id of the place that joins.
    pub place: PlaceId,
    /// Name of the resource pool that its slots are in.
    pub resource_pool: String,
    /// Slots that it offers, as named devices or as a count.
    pub capacity: Capacity,
    /// Identity of what the place keeps between its connections. With another one than before, what ran there is gone
    /// for good.
    pub instance: InstanceId,
    /// All containers that it holds, ended ones included until they are removed.
    pub containers: Vec<(ContainerId, ObservedState)>,
    /// Addresses and versions, for display only.
    pub details: PlaceDetails,
}

/// What users are shown of a place; nothing depends on it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PlaceDetails {
    /// Addresses of the host, most useful first.
    pub addresses: Vec<String>,
    /// Version of the agent or kubelet there; may be empty.
    pub version: String,
    /// What containers are started with.
    pub runtime: PlaceRuntime,
}

/// The core, as resource managers see it.
///
/// Every report may be repeated: a repeat changes nothing. What a manager does not report is asked for again
/// when the place joins again, with everything it holds.
pub trait Core: Clone + Send + Sync + 'static {
    /// Why the core could not do it now; a manager tries again later, or when the place joins again.
    type Error: std::error::Error + Send + Sync + 'static;
    /// Wakes when what is wanted of a place may have changed.
    type Changes: Changes;
    /// That a place is served by the driver that has it, until another one takes it.
    type Lease: Lease;

    /// Notes whether a manager, by its name, can run containers from now on. One of which nothing is noted is up.
    fn report_health(&self, manager: &str, health: Health);

    /// Notes how many slots each of these workspaces may use at a time in all pools of a manager, by its name: limits of its
    /// own, besides those that workspaces have in the whole cluster. They replace what was noted before.
    fn report_limits(&self, manager: &str, limits: BTreeMap<WorkspaceId, u32>);

    /// Notes which places of a manager, by its name, fit which containers, besides the slots that are free there. It
    /// replaces what was noted before. Of a manager that reports none, places that have the slots fit.
    fn report_fit(&self, manager: &str, fit: Arc<dyn Fit>);

    /// Follows what is wanted of a place. To be called before [`Core::desired`].
    fn changes(&self, place: &PlaceId) -> Self::Changes;

    /// What is wanted of the containers on a place that hold slots.
    fn desired(
        &self,
        place: &PlaceId,
    ) -> impl Future<Output = Result<BTreeMap<ContainerId, DesiredState>, Self::Error>> + Send;

    /// What is needed to start a container on a place. `None` = it is not to start any more: it is not wanted, or its
    /// specification cannot be made, and the core has ended it.
    fn specification(
        &self,
        place: &PlaceId,
        container: &ContainerId,
    ) -> impl Future<Output = Result<Option<ContainerStart>, Self::Error>> + Send;

    /// Takes a place for the driver that calls, before the place joins. An earlier driver of the same place (same instance)
    /// loses it. `None` = another place with this id is served.
    fn take(&self, place: &PlaceId, instance: &InstanceId) -> Option<Self::Lease>;

    /// Gives a place back of which nothing was stored; `false` = it had been lost before.
    fn give_back(&self, lease: &Self::Lease) -> bool;

    /// Takes a place, and stores that it is available. What it held before and holds no more is lost. The caller serves
    /// the place until it leaves.
    fn joined(
        &self,
        joined: JoinedPlace,
    ) -> impl Future<Output = Result<Self::Lease, Self::Error>> + Send;

    /// Stores that a place is away, unless it has joined again meanwhile. Its containers go on; after the pool's patience
    /// they are given up.
    fn left(
        &self,
        place: &PlaceId,
        lease: &Self::Lease,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Stores what a place has observed of its containers, in this order.
    fn observed(
        &self,
        place: &PlaceId,
        observed: Vec<(ContainerId, ObservedState)>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Adds lines to the logs of containers' tasks: what the place reports of them for users alone. Nothing is added for
    /// containers that it does not hold any more.
    fn noted(
        &self,
        place: &PlaceId,
        lines: Vec<(ContainerId, String)>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Ends a container that is not to run and never reached its place ([`crate::Order::NeverStarted`]).
    fn never_started(
        &self,
        container: &ContainerId,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// A subscription: wakes once for any number of changes since it last woke.
pub trait Changes: Send {
    /// Waits for the next change; returns at once if there was one since the last call, or since the subscription.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;
}
