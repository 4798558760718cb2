//! What the master asks of a manager for a container that runs: a connection to one of its ports, and a report of what its
//! processes do. How a container is reached is the manager's: through an agent's connection, or at a pod's address.

use det_ids::{ContainerId, PlaceId};

/// A container that runs, as its manager finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerAddress {
    /// Name of the manager that its place belongs to: one driver may serve several managers of its kind.
    pub manager: String,
    /// The place that the container runs on.
    pub place: PlaceId,
    /// Id of the container, a UUID.
    pub container_id: ContainerId,
    /// Address of its host, as its place has observed it ([`det_lifecycle::container::ObservedState::Running`]).
    pub host_address: String,
}

/// Why a container was not reached. The text names what was tried, and completes `service "x" cannot be reached: …`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReachError {
    /// More is asked of its place at this moment than it takes; a later attempt may succeed.
    #[error("{0}")]
    Busy(String),
    /// Its place is away, does not answer, or cannot connect.
    #[error("{0}")]
    Unreachable(String),
}

/// How the containers of all managers of one kind are reached.
pub trait Reach: Send + Sync + 'static {
    /// The bytes of a container's port, in both directions.
    type Stream: Send + 'static;

    /// Connects to a published port of a container.
    ///
    /// # Errors
    /// The port cannot be reached now.
    fn dial(
        &self,
        container: &ContainerAddress,
        host_port: u16,
    ) -> impl Future<Output = Result<Self::Stream, ReachError>> + Send;

    /// Has the supervisor of a container report to the master what its processes do. It follows only that it was asked:
    /// the report comes as a request of the task's own.
    ///
    /// # Errors
    /// The supervisor cannot be asked now.
    fn diagnose(
        &self,
        container: &ContainerAddress,
    ) -> impl Future<Output = Result<(), ReachError>> + Send;
}
