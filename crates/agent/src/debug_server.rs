//! The agent's debug server: a few pages for the operators of a host, off by default.
//!
//! It only reads. What it shows are ids and states: neither what a container runs, its environment and its files, nor any
//! token. It knows no users: any client that reaches its address may read it. It serves one small request for each connection,
//! a few connections at a time, each for a limited time, and so costs an agent little whatever a client does.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use det_agent_proto::ContainerReport;
use det_ids::{AllocationId, ContainerId};
use hyper::body::Incoming;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::containers::SharedState;
use crate::listening::{accept, listen};
use crate::options::DebugServer;
use crate::tls::{self, TlsError};

/// The most connections at a time; others wait to be accepted.
const CONNECTIONS: usize = 8;
/// How long a connection may take, its TLS handshake included.
const WITHIN: Duration = Duration::from_secs(10);
/// The most bytes of the head of a request, and of what is read of it at a time: the least that hyper allows.
const HEAD_BYTES: usize = 8 * 1024;

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
/// Content type of version 0.0.4 of the text format of Prometheus.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A server that has all that it needs but its address.
pub(crate) struct Server {
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
}

impl Server {
    /// Reads the certificate, if there is to be one.
    pub(crate) fn prepare(options: &DebugServer) -> Result<Self, TlsError> {
        let tls = match &options.identity {
            Some(identity) => {
                let (chain, key) = tls::read_identity(identity)?;
                Some(tls::acceptor(chain, key)?)
            }
            None => None,
        };
        Ok(Self {
            address: options.address,
            tls,
        })
    }

    /// Serves until it is dropped.
    pub(crate) async fn run(self, shared: &Arc<SharedState>) -> Infallible {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let what = format!("the debug server ({scheme})");
        let listener = listen(self.address, &what, "api_enabled, bind_ip, bind_port").await;
        let mut connections = JoinSet::new();
        loop {
            while connections.len() >= CONNECTIONS {
                connections.join_next().await;
            }
            while connections.try_join_next().is_some() {}
            let stream = accept(&listener).await;
            let (shared, tls) = (shared.clone(), self.tls.clone());
            connections.spawn(async move {
                let served = async {
                    match tls {
                        Some(tls) => serve(tls.accept(stream).await?, &shared).await,
                        None => serve(stream, &shared).await,
                    }
                };
                // A client that goes away, or takes too long, has its reasons.
                let _ = tokio::time::timeout(WITHIN, served).await;
            });
        }
    }
}

/// Answers one request, and closes the connection. A head that is no HTTP, or too large, is refused by hyper.
async fn serve<S>(stream: S, shared: &SharedState) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let answer = async |request: Request<Incoming>| Ok::<_, Infallible>(answer(&request, shared));
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service_fn(answer));
    connection.await.map_err(io::Error::other)
}

/// An answer that no cache keeps.
fn answer_of(status: StatusCode, content_type: &'static str, body: String) -> Response<String> {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

fn refusal(status: StatusCode, message: &str) -> Response<String> {
    answer_of(status, TEXT, format!("{message}\n"))
}

fn json(value: &impl Serialize) -> Response<String> {
    match serde_json::to_string(value) {
        Ok(body) => answer_of(StatusCode::OK, JSON, body + "\n"),
        Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

/// The answer to a request, whose body is not read. That of `HEAD` is the one of `GET`: hyper leaves its body out.
fn answer(request: &Request<Incoming>, shared: &SharedState) -> Response<String> {
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        return refusal(
            StatusCode::METHOD_NOT_ALLOWED,
            "everything here is only read",
        );
    }
    match request.uri().path() {
        "/health" => json(&Health::of(shared)),
        "/version" => json(&Version::of(shared)),
        "/containers" => json(&containers(shared.outbox.reports())),
        "/metrics" => answer_of(StatusCode::OK, PROMETHEUS, exposition(shared)),
        _ => refusal(
            StatusCode::NOT_FOUND,
            "there are /health, /version, /containers and /metrics",
        ),
    }
}

/// That the agent runs, and whether it is connected to its master.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Health {
    status: &'static str,
    connected: bool,
}

impl Health {
    fn of(shared: &SharedState) -> Self {
        Self {
            status: "ok",
            connected: shared.outbox.is_connected(),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Version<'a> {
    version: &'static str,
    agent_id: &'a str,
}

impl<'a> Version<'a> {
    fn of(shared: &'a SharedState) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            agent_id: shared.options.agent_id.as_str(),
        }
    }
}

/// A container that the agent has, or whose end the master has not acknowledged yet.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    id: ContainerId,
    allocation_id: AllocationId,
    state: &'static str,
}

fn containers(reports: Vec<ContainerReport>) -> Vec<Container> {
    let containers = reports.into_iter().map(|report| Container {
        id: report.container_id,
        allocation_id: report.allocation_id,
        state: report.state.name(),
    });
    containers.collect()
}

fn exposition(shared: &SharedState) -> String {
    let mut states: BTreeMap<&str, usize> = BTreeMap::new();
    for report in shared.outbox.reports() {
        *states.entry(report.state.name()).or_default() += 1;
    }
    let mut text = String::new();
    // Writing to a `String` cannot fail.
    let mut gauge = |name: &str, help: &str, values: &[(String, usize)]| {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
        for (labels, value) in values {
            let _ = writeln!(text, "{name}{labels} {value}");
        }
    };
    let plain = |value: usize| [(String::new(), value)];
    gauge(
        "det_agent_connected",
        "Whether the agent is connected to its master.",
        &plain(usize::from(shared.outbox.is_connected())),
    );
    gauge(
        "det_agent_slots",
        "Slots that the agent offers.",
        &plain(shared.devices.len()),
    );
    let states = states.into_iter();
    let states = states.map(|(state, count)| (format!("{{state=\"{state}\"}}"), count));
    gauge(
        "det_agent_containers",
        "Containers by state.",
        &states.collect::<Vec<_>>(),
    );
    text
}
