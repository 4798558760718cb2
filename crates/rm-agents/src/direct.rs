//! Tunnels that the master opens itself, to an agent that accepts connections. See [`TunnelEndpoint`].

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use det_agent_proto::{
    TUNNEL_ERROR_HEADER, TUNNEL_PATH, TUNNEL_PROTOCOL, TUNNEL_SECONDS, TUNNEL_SERVER_NAME,
    TunnelEndpoint,
};
use det_ids::{ContainerId, PlaceId};
use det_rm::ReachError;
use det_tls::MasterVerifier;
use hyper::header::{AUTHORIZATION, CONNECTION, HOST, UPGRADE};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use crate::TunnelStream;

/// Seconds after which the master goes the other way: the agent, which is connected, opens the tunnel.
const CONNECT_WITHIN: Duration = Duration::from_secs(TUNNEL_SECONDS / 2);

/// The pause after the agent was not connected to.
const TRY_AGAIN: Duration = Duration::from_secs(60);

/// Opens tunnels to one agent, as its present connection describes it.
pub(crate) struct DirectDialer {
    place: PlaceId,
    endpoint: TunnelEndpoint,
    tls: TlsConnector,
    /// When it could not be connected to. Until [`TRY_AGAIN`] after that it is not tried; `None` = the last attempt succeeded, or
    /// there was none.
    failed_at: Mutex<Option<Instant>>,
}

/// Why there is no tunnel.
pub(crate) enum NoTunnel {
    /// The agent was not connected to: it may still open the tunnel itself.
    NotConnected,
    /// The agent has answered that there is none.
    Refused(ReachError),
}

impl DirectDialer {
    /// To this endpoint of an agent; `None`, with a warning, if its certificate cannot be read.
    pub(crate) fn new(place: PlaceId, endpoint: TunnelEndpoint) -> Option<Self> {
        match connector(&endpoint.certificate) {
            Ok(tls) => Some(Self {
                place,
                endpoint,
                tls,
                failed_at: Mutex::new(None),
            }),
            Err(error) => {
                tracing::warn!(agent.id = place.as_str(), %error, "the agent's certificate for tunnels cannot be used; the agent opens them itself");
                None
            }
        }
    }

    /// Opens a tunnel to a port of a container on that agent.
    pub(crate) async fn dial(
        &self,
        container_id: &ContainerId,
        host_port: u16,
    ) -> Result<TunnelStream, NoTunnel> {
        let connection = self.connect_in_time().await?;
        let within = Duration::from_secs(TUNNEL_SECONDS);
        match timeout(within, self.ask(connection, container_id, host_port)).await {
            Ok(Ok(answer)) => answer.map_err(NoTunnel::Refused),
            Ok(Err(error)) => Err(NoTunnel::Refused(
                self.unreachable(&format!("the connection to it ended: {error}")),
            )),
            Err(_) => Err(NoTunnel::Refused(self.unreachable("it does not answer"))),
        }
    }

    /// Connects, unless that has failed a moment ago: each caller would wait for it.
    async fn connect_in_time(
        &self,
    ) -> Result<tokio_rustls::client::TlsStream<TcpStream>, NoTunnel> {
        let failed_at = *self.failed_at();
        if failed_at.is_some_and(|at| at.elapsed() < TRY_AGAIN) {
            return Err(NoTunnel::NotConnected);
        }
        let connected = timeout(CONNECT_WITHIN, self.connect()).await;
        let error = match connected {
            Ok(Ok(connection)) => {
                *self.failed_at() = None;
                return Ok(connection);
            }
            Ok(Err(error)) => error,
            Err(_) => io::ErrorKind::TimedOut.into(),
        };
        // Several callers may have tried at the same time.
        let before = self.failed_at().replace(Instant::now());
        if before == failed_at && failed_at.is_none() {
            tracing::warn!(
                agent.id = self.place.as_str(),
                "cannot connect to the agent's tunnel_port at {}:{}; the agent opens tunnels itself: {error}",
                self.endpoint.host,
                self.endpoint.port
            );
        }
        Err(NoTunnel::NotConnected)
    }

    fn failed_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.failed_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn unreachable(&self, why: &str) -> ReachError {
        ReachError::Unreachable(format!(
            "its agent \"{}\" did not open the connection: {why}",
            self.place
        ))
    }

    async fn connect(&self) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let address = (self.endpoint.host.as_str(), self.endpoint.port);
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from(TUNNEL_SERVER_NAME).map_err(io::Error::other)?;
        self.tls.connect(name, stream).await
    }

    async fn ask(
        &self,
        connection: tokio_rustls::client::TlsStream<TcpStream>,
        container_id: &ContainerId,
        host_port: u16,
    ) -> hyper::Result<Result<TunnelStream, ReachError>> {
        let request = Request::get(format!("{TUNNEL_PATH}/{container_id}/{host_port}"))
            .header(HOST, TUNNEL_SERVER_NAME)
            .header(
                AUTHORIZATION,
                format!("Bearer {}", self.endpoint.secret.expose()),
            )
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, TUNNEL_PROTOCOL)
            .body(String::new());
        let Ok(request) = request else {
            return Ok(Err(self.unreachable("its secret fits into no header")));
        };
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(connection)).await?;
        // Ends with the tunnel, or with the answer that there is none.
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "a connection to an agent ended");
            }
        });
        let mut response = sender.send_request(request).await?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let stream = hyper::upgrade::on(&mut response).await?;
            return Ok(Ok(TokioIo::new(stream)));
        }
        let reason = response.headers().get(TUNNEL_ERROR_HEADER);
        let reason = reason.and_then(|value| value.to_str().ok());
        Ok(Err(match reason {
            Some(reason) => ReachError::Unreachable(reason.to_owned()),
            None => self.unreachable(&format!("its answer is {}", response.status())),
        }))
    }
}

/// Prepares TLS connections that accept exactly this certificate, PEM. `Err` = it cannot be read.
fn connector(certificate: &str) -> Result<TlsConnector, Box<dyn std::error::Error>> {
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes())?;
    let provider = Arc::new(ring::default_provider());
    let verifier = MasterVerifier::new(provider.clone(), vec![certificate], None, None)?;
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
