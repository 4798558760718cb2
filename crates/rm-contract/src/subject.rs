//! A manager under test, with the double of its outside world.

use det_ids::ContainerId;
use det_lifecycle::container::ObservedState;
use det_taskspec::{ContainerSpec, SlotGrant};

use crate::TestCore;

/// An order to start a container, as it has reached a place.
#[derive(Debug, Clone, PartialEq)]
pub struct StartOrder {
    /// Id of the container to start.
    pub container_id: ContainerId,
    /// What it is granted of the place's slots.
    pub slots: SlotGrant,
    /// What its code is given as `DET_SLOT_IDS`.
    pub slot_ids: String,
}

impl From<ContainerSpec> for StartOrder {
    fn from(spec: ContainerSpec) -> Self {
        let mut env = spec.script.env.into_iter();
        let slot_ids = env.find(|(name, _)| name == "DET_SLOT_IDS");
        Self {
            container_id: spec.container_id,
            slots: spec.slots,
            slot_ids: slot_ids.map(|(_, ids)| ids).unwrap_or_default(),
        }
    }
}

/// A manager that runs over a [`TestCore`], and the double of its outside world. What is expected of it is waited for
/// ([`crate::within`]); an order that is not the expected one is a panic.
pub trait Subject: Sized {
    /// Whether the slots of its places are devices with names.
    const NAMED: bool;

    /// A manager that runs, in an outside world without places.
    fn start(core: TestCore) -> impl Future<Output = Self>;

    /// The master and with it the manager end and start again; the outside world goes on meanwhile. The core has been
    /// restarted ([`TestCore::restart`]) when this is called, and the places that exist join again.
    fn restart(&mut self) -> impl Future<Output = ()>;

    /// A place of this name appears, with so many slots.
    fn appears(&mut self, place: &str, slots: u32) -> impl Future<Output = ()>;

    /// The connection to a place is lost. Its containers go on.
    fn leaves(&mut self, place: &str) -> impl Future<Output = ()>;

    /// A place joins again, with what it holds by then. If it had not left, it has a newer connection.
    fn returns(&mut self, place: &str) -> impl Future<Output = ()>;

    /// The next order that reaches a place, which is to start a container. The place holds it from then on.
    fn next_start(&mut self, place: &str) -> impl Future<Output = StartOrder>;

    /// The next order that reaches a place, which is to end this container; whether it is to be asked first.
    fn next_end(&mut self, place: &str, container: &ContainerId) -> impl Future<Output = bool>;

    /// The next order that reaches a place, which is to forget this container. The place does not hold it any more.
    fn next_forget(&mut self, place: &str, container: &ContainerId) -> impl Future<Output = ()>;

    /// A place observes this of a container; reported at once if the place is connected, else when it returns.
    fn observes(
        &mut self,
        place: &str,
        container: &ContainerId,
        observed: ObservedState,
    ) -> impl Future<Output = ()>;

    /// A place loses a container without noticing.
    fn loses(&mut self, place: &str, container: &ContainerId) -> impl Future<Output = ()>;
}
