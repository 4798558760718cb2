//! How the containers of clusters are reached: at the addresses of their pods, through the API server or a Gateway, or at
//! ports of nodes ([`Exposure`]).

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use det_rm::{ContainerAddress, Reach, ReachError};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::api::KubeApi;
use crate::exposing::ServiceAddresses;
use crate::forward::{ForwardStream, Forwarder};
use crate::messages::Message;
use crate::{Exposure, Settings};

/// How long it may take to connect to a port of a pod.
pub(crate) const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// How a cluster's pods are reached now.
#[derive(Clone)]
enum Way {
    Addresses,
    /// In another way, once the cluster can be accessed.
    Later,
    /// Through the API server, which forwards ports of the cluster's pods.
    Forward(Arc<Forwarder>),
    /// At the addresses that services have been given.
    Services(ServiceAddresses),
}

/// Reaches pods as the managers of their clusters are configured. Cheap to clone; all clones are of the same clusters.
#[derive(Clone, Default)]
pub struct PodReach {
    /// By name of the manager.
    ways: Arc<Mutex<BTreeMap<String, Way>>>,
}

impl PodReach {
    /// A manager serves its cluster with these settings from now on.
    pub(crate) fn configured(&self, manager: &str, exposure: &Exposure) {
        let way = match exposure {
            Exposure::PodIp => Way::Addresses,
            Exposure::PortForward { .. } | Exposure::Gateway(_) | Exposure::NodePort => Way::Later,
        };
        let mut ways = self.ways.lock().unwrap_or_else(PoisonError::into_inner);
        ways.insert(manager.to_owned(), way);
    }

    /// A manager has access to its cluster; `addresses` = where services are, where they have addresses of their own;
    /// `messages` go to the task that knows its pods.
    pub(crate) fn connected(
        &self,
        settings: &Settings,
        addresses: Option<ServiceAddresses>,
        (api, messages): (&KubeApi, &mpsc::Sender<Message>),
    ) {
        let way = match (&settings.exposure, addresses) {
            (_, Some(addresses)) => Way::Services(addresses),
            (Exposure::PortForward { refused_within }, None) => {
                let forwarder = Forwarder::new(api.clone(), messages.clone(), *refused_within);
                Way::Forward(Arc::new(forwarder))
            }
            (Exposure::PodIp | Exposure::Gateway(_) | Exposure::NodePort, None) => return,
        };
        let mut ways = self.ways.lock().unwrap_or_else(PoisonError::into_inner);
        ways.insert(settings.manager.clone(), way);
    }

    fn way(&self, manager: &str) -> Option<Way> {
        let ways = self.ways.lock().unwrap_or_else(PoisonError::into_inner);
        ways.get(manager).cloned()
    }
}

impl Reach for PodReach {
    type Stream = PodStream;

    async fn dial(
        &self,
        container: &ContainerAddress,
        host_port: u16,
    ) -> Result<PodStream, ReachError> {
        match self.way(&container.manager) {
            Some(Way::Addresses) => {
                let stream = connect(container, &container.host_address, host_port).await?;
                Ok(PodStream::Direct(stream))
            }
            Some(Way::Services(addresses)) => {
                let stream = addresses.connect(container, host_port).await?;
                Ok(PodStream::Direct(stream))
            }
            Some(Way::Forward(forwarder)) => {
                let stream = forwarder.forward(container, host_port).await?;
                Ok(PodStream::Forwarded(Box::new(stream)))
            }
            Some(Way::Later) | None => Err(ReachError::Unreachable(format!(
                "resource manager \"{}\" has no access to its cluster yet",
                container.manager
            ))),
        }
    }

    async fn diagnose(&self, _container: &ContainerAddress) -> Result<(), ReachError> {
        Err(ReachError::Unreachable(
            "what the processes of a pod do cannot be asked in this version".to_owned(),
        ))
    }
}

/// Connects to a port of a host at which a pod is reached.
pub(crate) async fn connect(
    container: &ContainerAddress,
    host: &str,
    port: u16,
) -> Result<TcpStream, ReachError> {
    let to = (host, port);
    let connected = timeout(CONNECT_WITHIN, TcpStream::connect(to)).await;
    let failed = |reason: String| {
        ReachError::Unreachable(format!(
            "the pod on node \"{}\" cannot be reached at {host}:{port}: {reason}",
            container.place
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

/// The bytes of a port of a pod.
#[derive(Debug)]
pub enum PodStream {
    /// At its address.
    Direct(TcpStream),
    /// Through the API server.
    Forwarded(Box<ForwardStream>),
}

impl AsyncRead for PodStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Direct(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Forwarded(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for PodStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Direct(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Forwarded(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Direct(stream) => Pin::new(stream).poll_flush(cx),
            Self::Forwarded(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Direct(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Forwarded(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
