//! How containers that run are reached, whichever resource manager they belong to: the drivers' [`Reach`], by kind of
//! manager.

use std::sync::Arc;

use det_config::master::ManagerKind;
use det_ids::{ContainerId, PlaceId};
use det_rm::{ContainerAddress, Reach, ReachError};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::app::managers::Managers;

/// The bytes of a container's port, in both directions.
pub(crate) trait PortBytes: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> PortBytes for T {}

/// A connection to a container's port, whichever driver has made it.
pub(crate) type PortStream = Box<dyn PortBytes>;

/// [`Reach`] with one type of stream for all drivers.
trait AnyReach: Send + Sync {
    fn dial<'a>(
        &'a self,
        container: &'a ContainerAddress,
        host_port: u16,
    ) -> BoxFuture<'a, Result<PortStream, ReachError>>;

    fn diagnose<'a>(
        &'a self,
        container: &'a ContainerAddress,
    ) -> BoxFuture<'a, Result<(), ReachError>>;
}

impl<R: Reach> AnyReach for R
where
    R::Stream: PortBytes,
{
    fn dial<'a>(
        &'a self,
        container: &'a ContainerAddress,
        host_port: u16,
    ) -> BoxFuture<'a, Result<PortStream, ReachError>> {
        let dialed = Reach::dial(self, container, host_port);
        let boxed = dialed.map(|stream| stream.map(|stream| Box::new(stream) as PortStream));
        boxed.boxed()
    }

    fn diagnose<'a>(
        &'a self,
        container: &'a ContainerAddress,
    ) -> BoxFuture<'a, Result<(), ReachError>> {
        Reach::diagnose(self, container).boxed()
    }
}

/// The drivers by the kind of their managers. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Reaches {
    by_kind: Vec<(ManagerKind, Arc<dyn AnyReach>)>,
}

impl Reaches {
    /// With the driver for another kind of managers.
    pub(crate) fn with<R: Reach>(mut self, kind: ManagerKind, reach: R) -> Self
    where
        R::Stream: PortBytes,
    {
        self.by_kind.push((kind, Arc::new(reach)));
        self
    }

    fn of(&self, kind: ManagerKind) -> Option<&Arc<dyn AnyReach>> {
        let found = self.by_kind.iter().find(|(of, _)| *of == kind);
        found.map(|(_, reach)| reach)
    }
}

/// A container that runs, as its row has it.
#[derive(Clone)]
pub(crate) struct RunningContainer {
    /// The resource pool of its allocation.
    pub(crate) resource_pool: String,
    pub(crate) place: PlaceId,
    pub(crate) container_id: ContainerId,
    /// Address of its host, as its place has observed it.
    pub(crate) host_address: String,
}

/// Reaches containers through the managers of their pools. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ContainerReach {
    managers: Managers,
    reaches: Reaches,
}

impl ContainerReach {
    pub(crate) fn new(managers: Managers, reaches: Reaches) -> Self {
        Self { managers, reaches }
    }

    /// Connects to a published port of a container.
    pub(crate) async fn dial(
        &self,
        container: &RunningContainer,
        host_port: u16,
    ) -> Result<PortStream, ReachError> {
        let (reach, address) = self.resolve(container)?;
        reach.dial(&address, host_port).await
    }

    /// Has the supervisor of a container report what its processes do.
    pub(crate) async fn diagnose(&self, container: &RunningContainer) -> Result<(), ReachError> {
        let (reach, address) = self.resolve(container)?;
        reach.diagnose(&address).await
    }

    fn resolve(
        &self,
        container: &RunningContainer,
    ) -> Result<(&Arc<dyn AnyReach>, ContainerAddress), ReachError> {
        let pool = &container.resource_pool;
        let Some((manager, kind)) = self.managers.of_pool(pool) else {
            return Err(ReachError::Unreachable(format!(
                "its resource pool \"{pool}\" is not configured any more"
            )));
        };
        let reach = self.reaches.of(kind).ok_or_else(|| {
            ReachError::Unreachable(format!(
                "resource manager \"{manager}\" of type {kind} makes no connections to containers"
            ))
        })?;
        let address = ContainerAddress {
            manager,
            place: container.place.clone(),
            container_id: container.container_id.clone(),
            host_address: container.host_address.clone(),
        };
        Ok((reach, address))
    }
}
