//! The agent's debug server: a few pages for the operators of a host, off by default.
//!
//! It only reads. What it shows are ids and states: neither what a container runs, its environment and its files, nor any
//! token. It knows no users: any client that reaches its address may read it. It serves one small request for each connection,
//! a few connections at a time, each for a limited time, and so costs an agent little whatever a client does.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use det_agent_proto::ContainerReport;
use det_ids::{AllocationId, ContainerId};
use rustls::ServerConfig;
use rustls::crypto::ring;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::containers::SharedState;
use crate::options::DebugServer;
use crate::tls::{self, TlsError};

/// The most connections at a time; others wait to be accepted.
const CONNECTIONS: usize = 8;
/// How long a connection may take, its TLS handshake included.
const WITHIN: Duration = Duration::from_secs(10);
/// The most bytes of the head of a request.
const HEAD_BYTES: usize = 8 * 1024;
/// The pause after a connection could not be accepted, because descriptors are used up.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);
/// The pause after the address was taken.
const LISTEN_AGAIN: Duration = Duration::from_secs(5);

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
                let config =
                    ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
                        .with_safe_default_protocol_versions()
                        .map_err(TlsError::Setup)?
                        .with_no_client_auth()
                        .with_single_cert(chain, key)
                        .map_err(TlsError::Setup)?;
                Some(TlsAcceptor::from(Arc::new(config)))
            }
            None => None,
        };
        Ok(Self {
            address: options.address,
            tls,
        })
    }

    /// Listens at the configured address. Tasks use the ports of the host too, and may hold this one while the agent starts
    /// again: that must not keep the agent from running.
    async fn listen(&self) -> TcpListener {
        let mut reported = false;
        loop {
            match TcpListener::bind(self.address).await {
                Ok(listener) => {
                    let scheme = if self.tls.is_some() { "https" } else { "http" };
                    // A port of 0 is any that is free.
                    let bound = listener.local_addr().unwrap_or(self.address);
                    tracing::info!("the debug server is at {scheme}://{bound}");
                    return listener;
                }
                Err(error) if !reported => {
                    reported = true;
                    tracing::warn!(
                        "the debug server cannot listen at {} (api_enabled, bind_ip, bind_port), the agent runs without it and \
                         tries again: {error}",
                        self.address
                    );
                }
                Err(error) => tracing::debug!(%error, "the debug server cannot listen yet"),
            }
            tokio::time::sleep(LISTEN_AGAIN).await;
        }
    }

    /// Serves until it is dropped.
    pub(crate) async fn run(self, shared: &Arc<SharedState>) -> std::convert::Infallible {
        let listener = self.listen().await;
        let mut connections = JoinSet::new();
        loop {
            while connections.len() >= CONNECTIONS {
                connections.join_next().await;
            }
            while connections.try_join_next().is_some() {}
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::debug!(%error, "the debug server cannot accept a connection");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                    continue;
                }
            };
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

/// Answers one request.
async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    shared: &SharedState,
) -> io::Result<()> {
    let answer = match read_head(&mut stream).await? {
        Some(head) => answer(&head, shared),
        None => Answer::text(
            "431 Request Header Fields Too Large",
            "the request is too large",
        ),
    };
    stream.write_all(answer.head().as_bytes()).await?;
    if !answer.head_only {
        stream.write_all(answer.body.as_bytes()).await?;
    }
    stream.shutdown().await
}

/// The head of a request; `None` = it is too large.
async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<String>> {
    let mut head = Vec::new();
    let mut part = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() > HEAD_BYTES {
            return Ok(None);
        }
        match stream.read(&mut part).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => head.extend_from_slice(&part[..count]),
        }
    }
    Ok(Some(String::from_utf8_lossy(&head).into_owned()))
}

struct Answer {
    status: &'static str,
    content_type: &'static str,
    body: String,
    head_only: bool,
}

impl Answer {
    fn of(content_type: &'static str, body: String) -> Self {
        Self {
            status: "200 OK",
            content_type,
            body,
            head_only: false,
        }
    }

    fn text(status: &'static str, message: &str) -> Self {
        Self {
            status,
            ..Self::of(TEXT, format!("{message}\n"))
        }
    }

    fn json(value: &impl Serialize) -> Self {
        match serde_json::to_string(value) {
            Ok(body) => Self::of(JSON, body + "\n"),
            Err(error) => Self::text("500 Internal Server Error", &error.to_string()),
        }
    }

    fn head(&self) -> String {
        format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n",
            self.status,
            self.content_type,
            self.body.len()
        )
    }
}

/// The answer to a request with this head.
fn answer(head: &str, shared: &SharedState) -> Answer {
    let line = head.lines().next().unwrap_or_default();
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version)) = (words.next(), words.next(), words.next())
    else {
        return Answer::text("400 Bad Request", "this is no HTTP request");
    };
    if !version.starts_with("HTTP/1.") {
        return Answer::text("400 Bad Request", "this server speaks HTTP/1.1");
    }
    if !["GET", "HEAD"].contains(&method) {
        return Answer::text("405 Method Not Allowed", "everything here is only read");
    }
    let path = target.split('?').next().unwrap_or_default();
    let mut answer = match path {
        "/health" => Answer::json(&Health::of(shared)),
        "/version" => Answer::json(&Version::of(shared)),
        "/containers" => Answer::json(&containers(shared.outbox.reports())),
        "/metrics" => Answer::of(PROMETHEUS, exposition(shared)),
        _ => Answer::text(
            "404 Not Found",
            "there are /health, /version, /containers and /metrics",
        ),
    };
    answer.head_only = method == "HEAD";
    answer
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What is read of a request of these parts.
    async fn read(parts: &[&str]) -> io::Result<Option<String>> {
        let (mut client, mut server) = tokio::io::duplex(1 << 20);
        for part in parts {
            client.write_all(part.as_bytes()).await?;
        }
        drop(client);
        read_head(&mut server).await
    }

    #[tokio::test]
    async fn a_head_is_read_to_its_end_and_no_further_than_a_limit() {
        let head = read(&["GET / HT", "TP/1.1\r\nHost: a\r\n", "\r\n"]).await;
        assert_eq!(head.unwrap().unwrap(), "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(read(&["GET / HTTP/1.1\r\n"]).await.is_err());
        let large = "x".repeat(HEAD_BYTES * 4);
        assert_eq!(read(&[&large]).await.unwrap(), None);
    }
}
