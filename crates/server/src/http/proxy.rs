//! The proxy: requests and WebSockets for the services of tasks, and raw bytes over WebSockets, `/proxy/SERVICE/…`.
//! `docs/contract/http-api.md`, "Services".
//!
//! A service gets a request as it came, its path included: programs behind the proxy are started with this path as their
//! base. What is the master's stays here: its session cookie and its tokens. An answer may set nothing for the rest of this
//! origin, where the API is.

use std::net::SocketAddr;

use axum::body::Body;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::header::{
    ACCEPT, AUTHORIZATION, CONNECTION, COOKIE, HOST, HeaderName, LOCATION, SET_COOKIE, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Version};
use axum::response::{IntoResponse, Response};
use futures::{SinkExt, StreamExt};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional_with_sizes, split};

use crate::app::Master;
use crate::app::services::{Protocol, Service};
use crate::error::{AppError, AppResult, ErrorKind};
use crate::http::error::ApiError;
use crate::http::extract::caller_of;
use crate::http::tokens;

/// Where services are.
pub(crate) const PATH: &str = "/proxy/{*rest}";
/// Bytes that one direction of a connection holds at most.
const BUFFER_BYTES: usize = 64 << 10;
/// Bytes of a message to a raw service at most.
const MESSAGE_BYTES: usize = 4 << 20;

/// Headers that concern one connection (RFC 9110 §7.6.1), besides those that `Connection` names.
const OF_ONE_CONNECTION: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("proxy-authorization"),
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];
/// Headers of an answer that would have an effect on all of this origin.
const OF_THE_ORIGIN: [HeaderName; 3] = [
    HeaderName::from_static("clear-site-data"),
    HeaderName::from_static("service-worker-allowed"),
    HeaderName::from_static("strict-transport-security"),
];

/// Passes a request on to the service that its address names.
pub(crate) async fn handle(State(master): State<Master>, request: Request) -> Response {
    match pass(&master, request).await {
        Ok(response) => response,
        Err(error) => ApiError(error).into_response(),
    }
}

async fn pass(master: &Master, request: Request) -> AppResult<Response> {
    let (mut parts, body) = request.into_parts();
    let service = master
        .services
        .find(&service_name(parts.uri.path())?)
        .await?;
    if !service.unauthenticated {
        match authorise(master, &parts, &service).await {
            Err(error) if error.kind == ErrorKind::Unauthenticated && is_page(&parts) => {
                return login(&parts);
            }
            outcome => outcome?,
        }
    }
    match service.protocol {
        Protocol::Tcp => {
            let socket = WebSocketUpgrade::from_request_parts(&mut parts, master).await;
            let socket = socket.map_err(|_| {
                AppError::invalid(format!(
                    "service \"{}\" takes bytes over a WebSocket, and this request is none",
                    service.name
                ))
            })?;
            let stream = master.services.connect(&service).await?;
            Ok(socket
                .max_message_size(MESSAGE_BYTES)
                .max_frame_size(MESSAGE_BYTES)
                .on_upgrade(move |socket| carry_bytes(socket, stream)))
        }
        Protocol::Http => forward(master, &service, parts, body).await,
    }
}

/// The name in `/proxy/SERVICE/…`.
fn service_name(path: &str) -> AppResult<String> {
    let name = path.split('/').nth(2).unwrap_or_default();
    let name = percent_decode_str(name).decode_utf8();
    let name = name.map_err(|_| AppError::invalid("the name of a service is UTF-8 text"))?;
    Ok(name.into_owned())
}

async fn authorise(master: &Master, parts: &Parts, service: &Service) -> AppResult<()> {
    let actor = caller_of(parts, master).await?;
    master.services.require_connect(&actor, service)
}

/// Whether a person at a browser waits for a page.
fn is_page(parts: &Parts) -> bool {
    let accepted = parts.headers.get(ACCEPT).and_then(|v| v.to_str().ok());
    parts.method == Method::GET && accepted.is_some_and(|accepted| accepted.contains("text/html"))
}

/// Sends a browser to the page where one logs in, and from there back.
fn login(parts: &Parts) -> AppResult<Response> {
    let back = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let back = utf8_percent_encode(back, NON_ALPHANUMERIC);
    let to = HeaderValue::try_from(format!("/det/login?redirect={back}"));
    let to = to.map_err(AppError::internal)?;
    Ok((StatusCode::SEE_OTHER, [(LOCATION, to)]).into_response())
}

/// Sends a request on, and the answer back; either may be upgraded to a connection of another protocol.
async fn forward(
    master: &Master,
    service: &Service,
    mut parts: Parts,
    body: Body,
) -> AppResult<Response> {
    let failed = |error: hyper::Error| {
        AppError::new(
            ErrorKind::Unavailable,
            format!("service \"{}\" broke off: {error}", service.name),
        )
    };
    let upgrade = upgrade_of(&parts.headers);
    let client_side = parts.extensions.remove::<hyper::upgrade::OnUpgrade>();
    outgoing(&mut parts, upgrade.as_ref(), master.tls);
    let stream = master.services.connect(service).await?;
    parts.version = Version::HTTP_11;
    let (mut sender, connection) = http1::handshake(stream.into_inner())
        .await
        .map_err(failed)?;
    let shutdown = master.context.shutdown.clone();
    tokio::spawn(async move {
        tokio::select! {
            // Its end is the end of the answer's body.
            _ = connection.with_upgrades() => {}
            () = shutdown.cancelled() => {}
        }
    });
    let mut answer = sender
        .send_request(Request::from_parts(parts, body))
        .await
        .map_err(failed)?;
    let switched = answer.status() == StatusCode::SWITCHING_PROTOCOLS;
    if let (true, Some(client_side)) = (switched, client_side) {
        let service_side = hyper::upgrade::on(&mut answer);
        tokio::spawn(async move {
            let (Ok(client), Ok(service)) = tokio::join!(client_side, service_side) else {
                return;
            };
            let (mut client, mut service) = (TokioIo::new(client), TokioIo::new(service));
            // Either side may break off at any time.
            let _ = copy_bidirectional_with_sizes(
                &mut client,
                &mut service,
                BUFFER_BYTES,
                BUFFER_BYTES,
            )
            .await;
        });
    }
    let (mut parts, body) = answer.into_parts();
    // Programs that speak an older version end their answers with the connection; this one tells where they end.
    parts.version = Version::HTTP_11;
    incoming(
        &mut parts.headers,
        switched.then_some(upgrade).flatten().as_ref(),
    );
    Ok(Response::from_parts(parts, Body::new(body)))
}

/// What a request asks to be upgraded to.
fn upgrade_of(headers: &HeaderMap) -> Option<HeaderValue> {
    let asks = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|option| option.trim().eq_ignore_ascii_case("upgrade"));
    asks.then(|| headers.get(UPGRADE).cloned()).flatten()
}

/// Removes what concerns the connection that a message came on.
fn without_connection(headers: &mut HeaderMap, upgrade: Option<&HeaderValue>) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in OF_ONE_CONNECTION.iter().chain(&named) {
        headers.remove(name);
    }
    if let Some(upgrade) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, upgrade.clone());
    }
}

/// Makes a request one for the service.
fn outgoing(parts: &mut Parts, upgrade: Option<&HeaderValue>, is_tls: bool) {
    let headers = &mut parts.headers;
    without_connection(headers, upgrade);
    // A token of the master; a program's own schemes, such as `token`, are for the program.
    if tokens::header_token(headers).is_some() {
        headers.remove(AUTHORIZATION);
    }
    headers.remove("Grpc-Metadata-x-allocation-token");
    let cookies: Vec<HeaderValue> = headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .map(without_session)
        .filter(|text| !text.is_empty())
        .filter_map(|text| HeaderValue::try_from(text).ok())
        .collect();
    headers.remove(COOKIE);
    for cookie in cookies {
        headers.append(COOKIE, cookie);
    }
    if let Some(ConnectInfo(client)) = parts.extensions.get::<ConnectInfo<SocketAddr>>()
        && let Ok(address) = HeaderValue::try_from(client.ip().to_canonical().to_string())
    {
        headers.insert("x-forwarded-for", address.clone());
        headers.insert("x-real-ip", address);
    }
    let scheme = if is_tls { "https" } else { "http" };
    headers.insert("x-forwarded-proto", HeaderValue::from_static(scheme));
    if let Some(host) = headers.get(HOST).cloned() {
        headers.insert("x-forwarded-host", host);
    }
}

/// Cookies without that of a session with the master.
fn without_session(cookies: &str) -> String {
    let kept: Vec<&str> = cookies
        .split(';')
        .map(str::trim)
        .filter(|pair| !pair.is_empty() && !pair.starts_with("auth="))
        .collect();
    kept.join("; ")
}

/// Makes an answer of a service one of this origin.
fn incoming(headers: &mut HeaderMap, upgrade: Option<&HeaderValue>) {
    without_connection(headers, upgrade);
    for name in &OF_THE_ORIGIN {
        headers.remove(name);
    }
    let cookies: Vec<HeaderValue> = headers.get_all(SET_COOKIE).iter().cloned().collect();
    headers.remove(SET_COOKIE);
    for cookie in cookies {
        let name = cookie.as_bytes().split(|byte| *byte == b'=').next();
        if !name.is_some_and(|name| name.trim_ascii().eq_ignore_ascii_case(b"auth")) {
            headers.append(SET_COOKIE, cookie);
        }
    }
}

/// Carries bytes between the binary messages of a WebSocket and a raw service, until one side ends.
async fn carry_bytes(socket: WebSocket, stream: det_rm_agents::TunnelStream) {
    let (mut to_client, mut from_client) = socket.split();
    let (mut from_service, mut to_service) = split(stream);
    let up = async {
        while let Some(Ok(message)) = from_client.next().await {
            match message {
                Message::Binary(bytes) => to_service.write_all(&bytes).await?,
                Message::Text(text) => to_service.write_all(text.as_bytes()).await?,
                Message::Close(_) => break,
                Message::Ping(_) | Message::Pong(_) => {}
            }
        }
        to_service.shutdown().await
    };
    let down = async {
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            match from_service.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(read) => {
                    let bytes = buffer[..read].to_vec();
                    if to_client.send(Message::Binary(bytes.into())).await.is_err() {
                        break;
                    }
                }
            }
        }
        // The client may be gone already.
        let _ = to_client.close().await;
    };
    tokio::pin!(up, down);
    tokio::select! {
        () = &mut down => {}
        // What the service still has to say comes after its client has ended.
        _ = &mut up => down.await,
    }
}
