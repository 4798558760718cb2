//! Tunnels that the master opens itself, to an agent that is configured to accept connections ([`TunnelEndpoint`]).
//!
//! The agent makes a certificate and a secret at its start, in memory only, and its first message to the master contains both:
//! the master accepts no other certificate, and the agent serves no one without the secret. Before a client has shown it, it
//! costs the agent one of a few places for a short time.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use det_agent_proto::{
    TUNNEL_ERROR_HEADER, TUNNEL_PATH, TUNNEL_PROTOCOL, TUNNEL_SECONDS, TUNNEL_SERVER_NAME,
    TunnelEndpoint, TunnelSecret,
};
use det_ids::ContainerId;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONNECTION, HeaderName, HeaderValue, UPGRADE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::PrivatePkcs8KeyDer;
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::containers::SharedState;
use crate::data_dir::new_token;
use crate::listening::{accept, listen};
use crate::options::TunnelServer;
use crate::tls::{self, TlsError};
use crate::tunnel::{BUFFER_BYTES, connect, header_of};

/// The most clients that have not yet shown the secret; others wait to be accepted.
const STRANGERS: usize = 64;
/// How long a client may take for its TLS handshake and its request, and the agent to connect to the port.
const WITHIN: Duration = Duration::from_secs(TUNNEL_SECONDS);
/// The most bytes of the head of a request: the least that hyper allows.
const HEAD_BYTES: usize = 8 * 1024;

/// What the agent shows and wants to see; new at each start.
#[derive(Debug)]
pub(crate) struct Identity {
    options: TunnelServer,
    certificate: String,
    secret: TunnelSecret,
}

impl Identity {
    /// Where the master of an agent with this address opens tunnels.
    pub(crate) fn endpoint(&self, host_address: &str) -> TunnelEndpoint {
        let host = self.options.host.as_deref().unwrap_or(host_address);
        TunnelEndpoint {
            host: host.to_owned(),
            port: self.options.port,
            certificate: self.certificate.clone(),
            secret: self.secret.clone(),
        }
    }
}

/// A server that has all that it needs but its address.
pub(crate) struct Server {
    tls: TlsAcceptor,
}

/// Makes the certificate and the secret.
pub(crate) fn prepare(options: &TunnelServer) -> Result<(Identity, Server), TlsError> {
    let made = |error: rcgen::Error| TlsError::Setup(rustls::Error::General(error.to_string()));
    let key = rcgen::generate_simple_self_signed([TUNNEL_SERVER_NAME.to_owned()]).map_err(made)?;
    let der = PrivatePkcs8KeyDer::from(key.signing_key.serialize_der());
    let identity = Identity {
        options: options.clone(),
        certificate: key.cert.pem(),
        secret: TunnelSecret::new(new_token()),
    };
    let tls = tls::acceptor(vec![key.cert.der().clone()], der.into())?;
    Ok((identity, Server { tls }))
}

/// The connection of a client that has shown the secret, and that to the port which it asked for.
type TunnelEnds = (OnUpgrade, TcpStream);

impl Server {
    /// Serves until it is dropped.
    pub(crate) async fn run(self, identity: &Identity, shared: &Arc<SharedState>) -> Infallible {
        let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, identity.options.port));
        let listener = listen(address, "the server of tunnels", "tunnel_port").await;
        let strangers = Arc::new(Semaphore::new(STRANGERS));
        let mut connections = JoinSet::new();
        loop {
            // The semaphore is never closed.
            let place = Arc::clone(&strangers).acquire_owned().await.ok();
            let stream = accept(&listener).await;
            while connections.try_join_next().is_some() {}
            let (shared, tls) = (shared.clone(), self.tls.clone());
            connections.spawn(async move {
                match timeout(WITHIN, admit(stream, tls, &shared, place)).await {
                    Ok(Ok(Some((client, port)))) => {
                        if let Err(error) = carry(client, port).await {
                            tracing::debug!("a tunnel of the master ended: {error}");
                        }
                    }
                    // It has its answer, or is no master.
                    Ok(Ok(None)) => {}
                    Ok(Err(error)) => tracing::debug!("a client of the server of tunnels: {error}"),
                    Err(_) => tracing::debug!("a client of the server of tunnels took too long"),
                }
            });
        }
    }
}

/// Answers one request. `None` = it was refused.
async fn admit(
    stream: TcpStream,
    tls: TlsAcceptor,
    shared: &SharedState,
    place: Option<OwnedSemaphorePermit>,
) -> io::Result<Option<TunnelEnds>> {
    stream.set_nodelay(true)?;
    let stream = tls.accept(stream).await?;
    let (admitted, place) = (Mutex::new(None), Mutex::new(place));
    let answer = async |mut request: Request<Incoming>| {
        let opened = match require_master(&request, shared) {
            Ok(()) => {
                // It is none of the strangers: how long the task's program takes is not theirs to wait for.
                drop(place.lock().unwrap_or_else(PoisonError::into_inner).take());
                open(&request, shared).await
            }
            Err(refused) => Err(refused),
        };
        Ok::<_, Infallible>(match opened {
            Ok(port) => {
                let client = hyper::upgrade::on(&mut request);
                *admitted.lock().unwrap_or_else(PoisonError::into_inner) = Some((client, port));
                switching()
            }
            Err((status, reason)) => refusal(status, &reason),
        })
    };
    http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service_fn(answer))
        .with_upgrades()
        .await
        .map_err(io::Error::other)?;
    Ok(admitted
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner))
}

/// Why a request is refused: the status of the answer, and the reason.
type Refusal = (StatusCode, String);

fn header(request: &Request<Incoming>, name: HeaderName) -> Option<&str> {
    request.headers().get(name).and_then(|v| v.to_str().ok())
}

/// Refuses requests without the secret.
fn require_master(request: &Request<Incoming>, shared: &SharedState) -> Result<(), Refusal> {
    let shown = header(request, AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
    match (&shared.tunnel_identity, shown) {
        (Some(identity), Some(shown)) if identity.secret.is(shown) => Ok(()),
        _ => {
            let reason = "only the master of this agent may open tunnels here";
            Err((StatusCode::UNAUTHORIZED, reason.to_owned()))
        }
    }
}

/// Connects to the port that a request of the master names.
async fn open(request: &Request<Incoming>, shared: &SharedState) -> Result<TcpStream, Refusal> {
    let named = request.uri().path().strip_prefix(TUNNEL_PATH);
    let named = named.and_then(|rest| rest.strip_prefix('/')?.split_once('/'));
    let (Some((container_id, port)), Some(TUNNEL_PROTOCOL)) = (named, header(request, UPGRADE))
    else {
        let reason = format!(
            "a tunnel is opened at {TUNNEL_PATH}/CONTAINER/PORT with the header \"Upgrade: {TUNNEL_PROTOCOL}\""
        );
        return Err((StatusCode::BAD_REQUEST, reason));
    };
    let port = port
        .parse()
        .map_err(|_| (StatusCode::BAD_REQUEST, format!("\"{port}\" is no port")))?;
    connect(shared, &ContainerId::from(container_id), port)
        .await
        .map_err(|reason| (StatusCode::BAD_GATEWAY, reason))
}

fn switching() -> Response<String> {
    let mut response = Response::new(String::new());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(TUNNEL_PROTOCOL));
    response
}

fn refusal(status: StatusCode, reason: &str) -> Response<String> {
    let mut response = Response::new(format!("{reason}\n"));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(TUNNEL_ERROR_HEADER, header_of(reason));
    response
}

/// Carries bytes between both until one side ends.
async fn carry(
    client: OnUpgrade,
    mut port: TcpStream,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let client: Upgraded = client.await?;
    let mut client = TokioIo::new(client);
    copy_bidirectional_with_sizes(&mut client, &mut port, BUFFER_BYTES, BUFFER_BYTES).await?;
    Ok(())
}
