//! The addresses that agents connect to: for the connection of an agent, and for the tunnels that it opens.

use axum::Router;
use axum::body::Body;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Path, Request, State};
use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use det_agent_proto::{JOIN_TOKEN_HEADER, PATH, TUNNEL_ERROR_HEADER, TUNNEL_PATH, TUNNEL_PROTOCOL};
use det_ids::{AgentId, TunnelId};
use hyper_util::rt::TokioIo;
use tokio_util::sync::CancellationToken;

use crate::connection::serve;
use crate::registry::ErrorOf;
use crate::{Registry, Tunnels};

/// Largest message of an agent: some ten thousand containers in its first one.
const MESSAGE_LIMIT_BYTES: usize = 8 << 20;
/// What a connection reads and writes at once.
const AGENT_BUFFER_BYTES: usize = 8 << 10;

/// Why a request to these addresses is refused.
#[derive(Debug)]
pub enum Refusal<E> {
    /// The request itself is wrong; the sentence names what it must be.
    Invalid(String),
    /// No caller waits for a tunnel with this id, or not any more.
    UnknownTunnel,
    /// The core refuses it, or cannot answer now.
    Core(E),
}

/// How the master reads tokens of requests, and answers those that are refused.
pub struct Dialect<E> {
    /// The token in a request that is the sender's own.
    pub own_token: fn(&HeaderMap) -> Option<String>,
    /// The response to a request that is refused.
    pub refuse: fn(Refusal<E>) -> Response,
}

struct Endpoints<R: Registry> {
    registry: R,
    tunnels: Tunnels,
    shutdown: CancellationToken,
    dialect: Dialect<ErrorOf<R>>,
}

impl<R: Registry> Clone for Endpoints<R> {
    fn clone(&self) -> Self {
        Self {
            registry: self.registry.clone(),
            tunnels: self.tunnels.clone(),
            shutdown: self.shutdown.clone(),
            dialect: Dialect { ..self.dialect },
        }
    }
}

/// The routes of the addresses that agents connect to. Connections end when `shutdown` is cancelled.
pub fn routes<R: Registry>(
    registry: R,
    tunnels: Tunnels,
    shutdown: CancellationToken,
    dialect: Dialect<ErrorOf<R>>,
) -> Router {
    Router::new()
        .route(PATH, get(connect::<R>))
        .route(&format!("{TUNNEL_PATH}/{{tunnelId}}"), get(open::<R>))
        .with_state(Endpoints {
            registry,
            tunnels,
            shutdown,
            dialect,
        })
}

/// The WebSocket of an agent, which shows its own token, and that of the cluster until it has joined.
async fn connect<R: Registry>(
    State(endpoints): State<Endpoints<R>>,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    let refuse = endpoints.dialect.refuse;
    let join = headers.get(JOIN_TOKEN_HEADER);
    let join = join.and_then(|value| value.to_str().ok());
    let own = (endpoints.dialect.own_token)(&headers);
    let credential = match endpoints.registry.credential(own, join).await {
        Ok(credential) => credential,
        Err(error) => return refuse(Refusal::Core(error)),
    };
    let Ok(upgrade) = upgrade else {
        return refuse(Refusal::Invalid(
            "agents connect here with a WebSocket; this request is none".to_owned(),
        ));
    };
    let upgrade = upgrade
        .max_message_size(MESSAGE_LIMIT_BYTES)
        .max_frame_size(MESSAGE_LIMIT_BYTES)
        // Messages are small; there may be thousands of agents that have nothing to report.
        .read_buffer_size(AGENT_BUFFER_BYTES)
        .write_buffer_size(AGENT_BUFFER_BYTES);
    upgrade.on_upgrade(move |socket| {
        let Endpoints {
            registry,
            tunnels,
            shutdown,
            ..
        } = endpoints;
        serve(registry, tunnels, credential, shutdown, socket)
    })
}

/// A tunnel that an agent opens because it was asked to dial, or its reason why it cannot.
async fn open<R: Registry>(
    State(endpoints): State<Endpoints<R>>,
    Path(tunnel_id): Path<TunnelId>,
    request: Request,
) -> Response {
    match take(&endpoints, tunnel_id, request).await {
        Ok(response) => response,
        Err(refusal) => (endpoints.dialect.refuse)(refusal),
    }
}

async fn take<R: Registry>(
    endpoints: &Endpoints<R>,
    tunnel_id: TunnelId,
    mut request: Request,
) -> Result<Response, Refusal<ErrorOf<R>>> {
    let tunnels = endpoints.tunnels.clone();
    let place = tunnels.expected_from(&tunnel_id);
    let place = place.ok_or(Refusal::UnknownTunnel)?;
    let agent = AgentId::from(place.as_str().to_owned());
    let own = (endpoints.dialect.own_token)(request.headers());
    let admitted = endpoints.registry.require_token_of(&agent, own);
    admitted.await.map_err(Refusal::Core)?;
    let failure = request.headers().get(TUNNEL_ERROR_HEADER);
    if let Some(reason) = failure.and_then(|value| value.to_str().ok()) {
        tunnels.opened(&tunnel_id, Err(reason.to_owned()));
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let asked = request.headers().get(UPGRADE).and_then(|v| v.to_str().ok());
    if asked != Some(TUNNEL_PROTOCOL) {
        return Err(Refusal::Invalid(format!(
            "a tunnel is opened with the header \"Upgrade: {TUNNEL_PROTOCOL}\""
        )));
    }
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let tunnel = match upgraded.await {
            Ok(stream) => Ok(TokioIo::new(stream)),
            Err(error) => Err(format!("the connection of the agent ended: {error}")),
        };
        // The caller may have gone meanwhile; then the tunnel ends here.
        tunnels.opened(&tunnel_id, tunnel);
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(TUNNEL_PROTOCOL));
    Ok(response)
}
