//! The proxy, `/proxy/SERVICE/…`: requests and web sockets for the services of tasks, and raw bytes over a web socket.
//! `docs/contract/http-api.md`, "Services".
//!
//! A service gets a request as it came, its path included: programs behind the proxy are started with this path as their
//! base. What is the master's stays here: its cookies and its tokens. The headers of an answer set nothing for the rest of
//! this origin, where the API and other services are: cookies are for the paths of the service that sets them, and none pass
//! between a service and the browsers of others than its owner (`cookies`). Scripts of a page are held to no path, so pages
//! that are shown to others than the owner are put into an origin of their own, where their scripts can do nothing with the
//! session of the user who looks at them. With a host of services (`host`) browsers see no page of a service in the origin
//! of the API at all.

mod browser;
mod cookies;
pub(crate) mod host;
mod streams;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderName, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Version};
use axum::response::{IntoResponse, Response};
use det_taskspec::{NOTEBOOK_CERTIFICATE_NAME, SERVICE_KEY_HEADER};
use http_body_util::BodyExt as _;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_util::sync::CancellationToken;

use crate::app::Master;
use crate::app::idle::InUse;
use crate::app::reach::PortStream;
use crate::app::services::{ConnectionPermit, Protocol, Right, Service};
use crate::auth::{Access, Ends};
use crate::connections::StallLimit;
use crate::error::{AppError, AppResult, ErrorKind};
use crate::http::error::ApiError;
use crate::http::extract::caller_with_access;
use crate::http::page;
use crate::http::tokens;

use self::browser::is_page;
use self::cookies::Audience;
use self::host::{RequestHost, Visit};

/// The path below which services are, with the name of the service first.
pub(crate) const PATH: &str = "/proxy/{*rest}";
/// Bytes of a message to a raw service at most.
const MESSAGE_BYTES: usize = 256 << 10;
/// How long a service may take to begin a connection with TLS.
const HANDSHAKE: Duration = Duration::from_secs(10);

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
const OF_THE_ORIGIN: [HeaderName; 8] = [
    HeaderName::from_static("alt-svc"),
    HeaderName::from_static("nel"),
    HeaderName::from_static("origin-agent-cluster"),
    HeaderName::from_static("report-to"),
    HeaderName::from_static("reporting-endpoints"),
    HeaderName::from_static("clear-site-data"),
    HeaderName::from_static("service-worker-allowed"),
    HeaderName::from_static("strict-transport-security"),
];

/// What a page of a service may do before others than its owner: without `allow-same-origin` it has no origin, and so no
/// cookies (HTML standard, "Sandboxing").
const FOREIGN_PAGE: HeaderValue = HeaderValue::from_static(
    "sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts",
);

/// Passes a request on to the service that its address names.
pub(crate) async fn handle(State(master): State<Master>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let is_page = is_page(&parts);
    if let Some(stall_limit) = parts.extensions.get::<StallLimit>() {
        stall_limit.expect_reading();
    }
    match pass(&master, parts, body).await {
        Ok(response) => response,
        Err(error) if is_page => page::refused(&error),
        Err(error) => ApiError(error).into_response(),
    }
}

async fn pass(master: &Master, mut parts: Parts, body: Body) -> AppResult<Response> {
    let service = master
        .services
        .find(&service_name(parts.uri.path())?)
        .await?;
    let place = RequestHost::of(&master.context.config(), &parts.uri, &parts.headers);
    let caller = match &place {
        RequestHost::Services => {
            match host::visit(&master.handovers, &parts, &service, master.tls).await? {
                Visit::Answered(answer) => return Ok(answer),
                Visit::From(caller) => caller,
            }
        }
        RequestHost::Api { services }
            if service.protocol == Protocol::Http && host::is_from_browser(&parts) =>
        {
            let caller = caller_with_access(&parts, master).await;
            let caller = caller.map(|(actor, _)| actor);
            return host::hand_over(&master.handovers, caller, &parts, &service, services).await;
        }
        RequestHost::Api { .. } | RequestHost::Everything => {
            caller_with_access(&parts, master).await
        }
    };
    // The token of a notebook is for programs. In a browser it would let the sender of an address put pages of
    // his own into the origin of the API.
    let key = service_token(&parts).filter(|_| !is_page(&parts));
    let right = match master.services.right(&service, caller, key.as_deref()) {
        Err(error)
            if error.kind == ErrorKind::Unauthenticated
                && is_page(&parts)
                && place != RequestHost::Services =>
        {
            return page::login::first(&parts);
        }
        outcome => outcome?,
    };
    match service.protocol {
        Protocol::Tcp => {
            let socket = WebSocketUpgrade::from_request_parts(&mut parts, master).await;
            let socket = socket.map_err(|_| {
                AppError::invalid(format!(
                    "service \"{}\" takes bytes over a WebSocket, and this request is none",
                    service.name
                ))
            })?;
            let connection = master.services.connect(&service, right.standing).await?;
            let access = right.access;
            let (stream, permit) = connection.into_parts();
            may_be_suspended(parts.extensions.get());
            Ok(socket
                .protocols([streams::ENDS_APART])
                .max_message_size(MESSAGE_BYTES)
                .max_frame_size(MESSAGE_BYTES)
                .on_upgrade(async move |socket| {
                    let _permit = permit;
                    tokio::select! {
                        () = streams::carry_bytes(socket, stream) => {}
                        () = over(access) => {}
                    }
                }))
        }
        Protocol::Http => {
            let in_use = master.idle.begin(service.task_id());
            let is_own = right.is_own;
            let mut answer = forward(master, &service, right, parts, body).await?;
            if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
                // An open web socket is no sign of use: a forgotten page has one, too.
                answer = answer.map(|body| until_its_end(body, in_use));
            }
            if !is_own || may_be_active(answer.headers()) {
                let headers = answer.headers_mut();
                headers.append(CONTENT_SECURITY_POLICY, FOREIGN_PAGE);
            }
            Ok(answer)
        }
    }
}

/// The name in `/proxy/SERVICE/…`.
fn service_name(path: &str) -> AppResult<String> {
    let name = path.split('/').nth(2).unwrap_or_default();
    let name = percent_decode_str(name).decode_utf8();
    let name = name.map_err(|_| AppError::invalid("the name of a service is UTF-8 text"))?;
    Ok(name.into_owned())
}

/// What a client offers to the service itself, as clients of Jupyter do: `?token=…`, `Authorization: token …`.
fn service_token(parts: &Parts) -> Option<String> {
    let header = parts
        .headers
        .get(AUTHORIZATION)
        .and_then(|v| v.to_str().ok());
    if let Some(token) = header.and_then(|value| value.strip_prefix("token ")) {
        return Some(token.trim().to_owned());
    }
    let mut pairs = parts.uri.query().unwrap_or_default().split('&');
    let token = pairs.find_map(|pair| pair.strip_prefix("token="))?;
    Some(percent_decode_str(token).decode_utf8().ok()?.into_owned())
}

/// A shell may be suspended, and a laptop closed, while there is something to send: such a connection counts among those of
/// its service for as long as it lives.
fn may_be_suspended(stall_limit: Option<&StallLimit>) {
    if let Some(stall_limit) = stall_limit {
        stall_limit.expect_slow_reading();
    }
}

/// Sends a request on, and the answer back; either may be upgraded to a connection of another protocol.
async fn forward(
    master: &Master,
    service: &Service,
    right: Right,
    mut parts: Parts,
    body: Body,
) -> AppResult<Response> {
    let access = right.access;
    let failed = |error: hyper::Error| {
        AppError::new(
            ErrorKind::Unreachable,
            format!("service \"{}\" broke off: {error}", service.name),
        )
    };
    let upgrade = upgrade_of(&parts.headers);
    let client_side = parts.extensions.remove::<hyper::upgrade::OnUpgrade>();
    let stall_limit = parts.extensions.remove::<StallLimit>();
    let path = parts.uri.path().to_owned();
    let audience = if right.is_own {
        Audience::Owner(&path)
    } else {
        Audience::Others
    };
    outgoing(&mut parts, upgrade.as_ref(), master.tls);
    show_key(&mut parts.headers, service.key())?;
    cookies::send(&mut parts.headers, audience);
    let (stream, permit) = master
        .services
        .connect(service, right.standing)
        .await?
        .into_parts();
    parts.version = Version::HTTP_11;
    let ends = (master.context.shutdown.clone(), access.clone());
    let mut sender = match service.certificate() {
        None => begin(TokioIo::new(stream), permit.clone(), ends).await,
        Some(certificate) => {
            let stream = secured(&service.name, certificate, stream).await?;
            begin(TokioIo::new(stream), permit.clone(), ends).await
        }
    }
    .map_err(failed)?;
    let mut answer = sender
        .send_request(Request::from_parts(parts, body))
        .await
        .map_err(failed)?;
    let switched = answer.status() == StatusCode::SWITCHING_PROTOCOLS;
    if let (true, Some(client_side)) = (switched, client_side) {
        may_be_suspended(stall_limit.as_ref());
        let service_side = hyper::upgrade::on(&mut answer);
        tokio::spawn(async move {
            let (Ok(client), Ok(service)) = tokio::join!(client_side, service_side) else {
                return;
            };
            let _permit = permit;
            tokio::select! {
                () = streams::carry(TokioIo::new(client), TokioIo::new(service)) => {}
                () = over(access) => {}
            }
        });
    }
    let (mut parts, body) = answer.into_parts();
    // Programs that speak an older version end their answers with the connection; this one marks where they end.
    parts.version = Version::HTTP_11;
    incoming(
        &mut parts.headers,
        switched.then_some(upgrade).flatten().as_ref(),
    );
    cookies::confine(&mut parts.headers, &service.name, audience);
    Ok(Response::from_parts(parts, Body::new(body)))
}

/// Whether an answer is a document that a browser would run scripts of, and that is no page of the program: an image or data
/// that others have written, such as one that a trial has logged.
fn may_be_active(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok());
    let kind = kind
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default();
    let kind = kind.trim().to_ascii_lowercase();
    kind.ends_with("+xml") || kind.ends_with("/xml")
}

/// A body that is in use until it has been sent, or is given up.
fn until_its_end(body: Body, in_use: Option<InUse>) -> Body {
    Body::new(body.map_frame(move |frame| {
        let _held = &in_use;
        frame
    }))
}

/// Waits until the right by which something was opened has ended; for ever where it rests on none.
async fn over(access: Option<Access>) {
    match access {
        Some(access) => access.over().await,
        None => std::future::pending().await,
    }
}

/// Begins HTTP on a connection, which goes on by itself until it ends, or the right to it, or the master stops.
async fn begin<T>(
    stream: T,
    permit: ConnectionPermit,
    (shutdown, access): (CancellationToken, Option<Access>),
) -> hyper::Result<http1::SendRequest<Body>>
where
    T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(stream).await?;
    tokio::spawn(async move {
        let _held = permit;
        tokio::select! {
            // Its end is the end of the answer's body.
            _ = connection.with_upgrades() => {}
            () = shutdown.cancelled() => {}
            () = over(access) => {}
        }
    });
    Ok(sender)
}

/// TLS on a connection to a service, whose certificate is the only one that is trusted.
async fn secured(
    name: &str,
    certificate: &str,
    stream: PortStream,
) -> AppResult<TlsStream<PortStream>> {
    let failed = |error: &dyn std::fmt::Display| {
        AppError::new(
            ErrorKind::Unreachable,
            format!("service \"{name}\" could not be reached with TLS: {error}"),
        )
    };
    let certificate =
        CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(|e| failed(&e))?;
    let mut roots = RootCertStore::empty();
    roots.add(certificate).map_err(|e| failed(&e))?;
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let on_it = ServerName::try_from(NOTEBOOK_CERTIFICATE_NAME).map_err(|e| failed(&e))?;
    let connected = TlsConnector::from(Arc::new(config)).connect(on_it, stream);
    let stream = timeout(HANDSHAKE, connected).await;
    stream
        .map_err(|_| failed(&"no answer"))?
        .map_err(|e| failed(&e))
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
    if let Some(ends) = parts.extensions.get::<Ends>()
        && let Ok(address) = HeaderValue::try_from(ends.client.ip().to_canonical().to_string())
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

/// Puts the key of a service into a request, in place of what a client has put there.
fn show_key(headers: &mut HeaderMap, key: Option<&str>) -> AppResult<()> {
    headers.remove(SERVICE_KEY_HEADER);
    if let Some(key) = key {
        let mut value = HeaderValue::try_from(key).map_err(|error| {
            AppError::internal(anyhow::Error::new(error).context("reading the key of a service"))
        })?;
        value.set_sensitive(true);
        headers.insert(SERVICE_KEY_HEADER, value);
    }
    Ok(())
}

/// Makes an answer of a service one of this origin.
fn incoming(headers: &mut HeaderMap, upgrade: Option<&HeaderValue>) {
    without_connection(headers, upgrade);
    for name in &OF_THE_ORIGIN {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().uri("/proxy/t/api?x=1");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Body::empty()).unwrap().into_parts().0
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn a_key_is_the_proxys_and_no_clients() {
        let brought = [(SERVICE_KEY_HEADER, "guessed")];
        let mut parts = request(&brought);
        show_key(&mut parts.headers, Some("k1")).unwrap();
        let values: Vec<_> = parts.headers.get_all(SERVICE_KEY_HEADER).iter().collect();
        assert_eq!(values, ["k1"]);
        let mut parts = request(&brought);
        show_key(&mut parts.headers, None).unwrap();
        assert!(parts.headers.is_empty());
    }

    #[test]
    fn a_service_gets_no_tokens() {
        let mut parts = request(&[
            ("host", "det.example:8080"),
            ("authorization", "Bearer session"),
            ("grpc-metadata-x-allocation-token", "Bearer task"),
            ("x-own", "1"),
        ]);
        outgoing(&mut parts, None, true);
        assert_eq!(
            names(&parts.headers),
            ["host", "x-forwarded-host", "x-forwarded-proto", "x-own"]
        );
        assert_eq!(parts.headers["x-forwarded-proto"], "https");
        assert_eq!(parts.uri, "/proxy/t/api?x=1");
        // A program's own scheme is for the program.
        let mut parts = request(&[("authorization", "token of-jupyter")]);
        outgoing(&mut parts, None, false);
        assert_eq!(parts.headers[AUTHORIZATION], "token of-jupyter");
    }

    #[test]
    fn documents_that_others_may_have_written_run_no_scripts_with_a_session() {
        let kind = |kind: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::try_from(kind).unwrap());
            may_be_active(&headers)
        };
        for active in [
            "image/svg+xml",
            "Image/SVG+XML; charset=utf-8",
            "text/xml",
            "application/xhtml+xml",
        ] {
            assert!(kind(active), "{active}");
        }
        for passive in ["text/html", "application/json", "image/png", ""] {
            assert!(!kind(passive), "{passive}");
        }
    }

    #[test]
    fn what_concerns_one_connection_stays_on_it() {
        let given = [
            ("connection", "keep-alive, Upgrade, x-hop"),
            ("upgrade", "websocket"),
            ("x-hop", "1"),
            ("te", "trailers"),
            ("sec-websocket-key", "k"),
        ];
        let mut parts = request(&given);
        let upgrade = upgrade_of(&parts.headers);
        assert_eq!(upgrade.as_ref().unwrap(), "websocket");
        outgoing(&mut parts, upgrade.as_ref(), false);
        assert_eq!(
            names(&parts.headers),
            [
                "connection",
                "sec-websocket-key",
                "upgrade",
                "x-forwarded-proto"
            ]
        );
        assert_eq!(parts.headers[CONNECTION], "Upgrade");
        assert!(upgrade_of(&request(&[("upgrade", "websocket")]).headers).is_none());
    }

    #[test]
    fn an_answer_sets_nothing_for_the_whole_origin() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("service-worker-allowed", "/"),
            ("clear-site-data", "\"*\""),
            ("content-type", "text/html"),
        ] {
            headers.append(name, value.parse().unwrap());
        }
        incoming(&mut headers, None);
        assert_eq!(names(&headers), ["content-type"]);
    }

    #[test]
    fn the_name_of_a_service_is_the_second_part_of_the_path() {
        assert_eq!(service_name("/proxy/t:80/x").unwrap(), "t:80");
        assert_eq!(service_name("/proxy/t%3A80").unwrap(), "t:80");
        assert!(service_name("/proxy/%ff/").is_err());
    }
}
