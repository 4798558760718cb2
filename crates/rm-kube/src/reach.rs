//! How the containers of a cluster are reached: at the addresses of their pods.

use std::time::Duration;

use det_rm::{ContainerAddress, Reach, ReachError};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long a pod may take to accept a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Reaches pods at their addresses, which the master's network must have a route to.
#[derive(Debug, Clone, Default)]
pub struct PodAddresses;

impl Reach for PodAddresses {
    type Stream = TcpStream;

    async fn dial(
        &self,
        container: &ContainerAddress,
        host_port: u16,
    ) -> Result<TcpStream, ReachError> {
        let to = (container.host_address.as_str(), host_port);
        let connected = timeout(CONNECT_WITHIN, TcpStream::connect(to)).await;
        let failed = |reason: String| {
            ReachError::Unreachable(format!(
                "the pod on node \"{}\" cannot be reached at {}:{host_port}: {reason}",
                container.place, container.host_address
            ))
        };
        let stream = match connected {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(failed(error.to_string())),
            Err(_) => {
                return Err(failed(format!(
                    "no answer within {} s",
                    CONNECT_WITHIN.as_secs()
                )));
            }
        };
        stream
            .set_nodelay(true)
            .map_err(|error| failed(error.to_string()))?;
        Ok(stream)
    }

    async fn diagnose(&self, _container: &ContainerAddress) -> Result<(), ReachError> {
        Err(ReachError::Unreachable(
            "what the processes of a pod do cannot be asked in this version".to_owned(),
        ))
    }
}
