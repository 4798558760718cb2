//! The connection to the master.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use det_agent_proto::{
    AfterRefusal, Hello, JOIN_TOKEN_HEADER, PATH, PING_SECONDS, PROTOCOL_VERSION, SILENCE_SECONDS,
    ToAgent, ToMaster,
};
use det_failpoints::failpoint;
use futures::{SinkExt, StreamExt};
use rustls::pki_types::ServerName;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::TlsConnector;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::header::AUTHORIZATION;
use tokio_tungstenite::tungstenite::http::{HeaderValue, StatusCode};
use tokio_tungstenite::tungstenite::{Error as WsError, Message};
use tokio_util::sync::CancellationToken;

use crate::AgentError;
use crate::containers::store::KillOrder;
use crate::containers::{Manager, Session, SharedState};

/// The longest wait for each step of connecting.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// The first pause between two attempts; it doubles with each attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// A byte stream: TCP, or TLS over TCP.
trait Transport: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Transport for T {}

type Socket = WebSocketStream<Box<dyn Transport>>;

/// Why there is no connection, or why it ended.
#[derive(Debug, Error)]
enum LinkError {
    #[error("cannot connect to {address}: {source}")]
    Connect {
        address: String,
        source: std::io::Error,
    },
    #[error("{0}")]
    Tls(String),
    #[error("the master's address cannot be used: {0}")]
    Address(String),
    #[error("the master answered \"{status}\" instead of opening the connection{message}")]
    Http {
        status: String,
        /// The master's message behind a colon; empty without one.
        message: String,
    },
    #[error(
        "it does not take this agent's token; to join, copy the file \"agent-token\" from the master's data directory and \
         name it with --agent-token-file"
    )]
    WrongToken,
    #[error(
        "it does not know this agent's own token, and the file \"{}\" that should have the one to join with does not \
         exist: copy it from the master's data directory, where it is called \"agent-token\"", .0.display()
    )]
    NoJoinToken(PathBuf),
    #[error("the connection failed: {0}")]
    WebSocket(String),
    #[error(
        "what answers at {address} does not speak plain HTTP: {reason}; if the port speaks TLS, set \
         \"security.tls.enabled\" of this agent"
    )]
    NotHttp { address: String, reason: String },
    #[error("the master did not answer within {0:?}")]
    Slow(Duration),
    #[error("nothing was received from the master for {SILENCE_SECONDS} s")]
    Silence,
    #[error("the master closed the connection")]
    Closed,
    #[error("the master refused this agent: {reason}")]
    Refused { reason: String, then: AfterRefusal },
    #[error("the master sent what is not understood: {0}")]
    Nonsense(String),
}

/// Keeps a connection to the master until it is asked to stop.
///
/// Ends with an error when the master refuses the agent for good, or when a bounded number of attempts is used up.
pub(crate) async fn keep(
    shared: &SharedState,
    manager: &Manager,
    tls: Arc<rustls::ClientConfig>,
    stop: CancellationToken,
) -> Result<(), AgentError> {
    let mut attempts = Attempts::new(shared);
    loop {
        let was_connected;
        let error = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            result = connect(shared, &tls) => match result {
                Err(error) => {
                    was_connected = false;
                    error
                }
                Ok((mut socket, host_address)) => {
                    let mut greeted = false;
                    let served = serve(shared, manager, &mut socket, host_address, &mut greeted, &stop).await;
                    shared.outbox.disconnect();
                    was_connected = greeted;
                    match served {
                        Ok(()) => return Ok(()),
                        Err(error) => error,
                    }
                }
            },
        };
        let pause = if rejoins(shared, &error)? {
            FIRST_PAUSE
        } else {
            attempts.record(shared, &error, was_connected)?
        };
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = sleep(pause) => {}
        }
    }
}

/// Whether the agent joins anew after this error, because the master does not take it as the one that it was. Errs when
/// the master refuses it for good.
fn rejoins(shared: &SharedState, error: &LinkError) -> Result<bool, AgentError> {
    let LinkError::Refused { reason, then } = error else {
        return Ok(false);
    };
    let given_up = match then {
        AfterRefusal::Retry => return Ok(false),
        AfterRefusal::Rejoin if shared.options.rejoin_when_changed => {
            tracing::warn!("this agent joins the master anew: {reason}");
            return Ok(true);
        }
        AfterRefusal::End => false,
        AfterRefusal::EndTasks | AfterRefusal::Rejoin => true,
    };
    Err(AgentError::Refused {
        reason: reason.clone(),
        given_up,
    })
}

/// The attempts to connect since there was a connection.
struct Attempts {
    made: u32,
    /// Those after full pauses: the short ones at first must not use up the configured number.
    counted: u32,
    /// Pause before the next attempt.
    pause: Duration,
    longest_pause: Duration,
    /// The reason that was logged last, so that it is logged once.
    last_logged: String,
    /// A master that accepted the token before may be one that is being set up again: then the refusal is temporary.
    ever_connected: bool,
}

impl Attempts {
    fn new(shared: &SharedState) -> Self {
        Self {
            made: 0,
            counted: 0,
            pause: FIRST_PAUSE,
            longest_pause: shared.options.reconnect_backoff.max(FIRST_PAUSE),
            last_logged: String::new(),
            ever_connected: false,
        }
    }

    /// Records an attempt that ended with this error, after a connection or without one. Returns how long to pause before
    /// the next, and errs when there is to be none.
    fn record(
        &mut self,
        shared: &SharedState,
        error: &LinkError,
        was_connected: bool,
    ) -> Result<Duration, AgentError> {
        self.ever_connected |= was_connected;
        let without_token = matches!(error, LinkError::WrongToken | LinkError::NoJoinToken(_));
        if without_token && !self.ever_connected {
            return Err(AgentError::Refused {
                reason: error.to_string(),
                given_up: false,
            });
        }
        if was_connected {
            self.made = 0;
            self.counted = 0;
            self.pause = FIRST_PAUSE;
            self.last_logged.clear();
        }
        self.made += 1;
        self.counted += u32::from(self.pause >= self.longest_pause);
        self.log(shared, error.to_string(), was_connected);
        let most = shared.options.reconnect_attempts;
        if most.is_some_and(|most| self.counted > most) {
            return Err(AgentError::GaveUp {
                master: shared.master.url(),
                attempts: self.made,
                reason: std::mem::take(&mut self.last_logged),
            });
        }
        // Agents that lost the same master must not reconnect at the same moment.
        let jittered = self.pause.mul_f64(0.5 + rand::random::<f64>() / 2.0);
        self.pause = (self.pause * 2).min(self.longest_pause);
        Ok(jittered)
    }

    fn log(&mut self, shared: &SharedState, reason: String, was_connected: bool) {
        if self.last_logged == reason {
            tracing::debug!(
                attempts = self.made,
                "still no connection to the master: {reason}"
            );
            return;
        }
        let what = if was_connected {
            "lost the master"
        } else {
            "no connection to the master"
        };
        tracing::warn!(
            master = shared.master.url(),
            "{what}: {reason}; tasks go on, trying again"
        );
        self.last_logged = reason;
    }
}

/// Opens the WebSocket; returns it with the local address of the connection.
async fn connect(
    shared: &SharedState,
    tls: &Arc<rustls::ClientConfig>,
) -> Result<(Socket, String), LinkError> {
    let master = &shared.master;
    let address = format!("{}:{}", master.host, master.port);
    let stream = within(TcpStream::connect((master.host.as_str(), master.port)))
        .await?
        .map_err(|source| LinkError::Connect {
            address: address.clone(),
            source,
        })?;
    stream
        .set_nodelay(true)
        .map_err(|source| LinkError::Connect {
            address: address.clone(),
            source,
        })?;
    let host_address = stream
        .local_addr()
        .map(|local| local.ip().to_canonical().to_string())
        .map_err(|error| LinkError::Address(error.to_string()))?;
    let transport: Box<dyn Transport> = if master.tls {
        let name = ServerName::try_from(master.host.clone())
            .map_err(|error| LinkError::Address(error.to_string()))?;
        let connector = TlsConnector::from(tls.clone());
        Box::new(
            within(connector.connect(name, stream))
                .await?
                .map_err(|error| LinkError::Tls(tls_problem(&error)))?,
        )
    } else {
        Box::new(stream)
    };
    let mut request = master
        .websocket_url(PATH)
        .into_client_request()
        .map_err(|error| LinkError::Address(error.to_string()))?;
    let headers = request.headers_mut();
    let own = secret_value(&format!("Bearer {}", shared.data_dir.token().expose()))?;
    headers.insert(AUTHORIZATION, own);
    if let Some(token) = &shared.options.token {
        headers.insert(JOIN_TOKEN_HEADER, secret_value(token.expose())?);
    }
    let (socket, _) = within(tokio_tungstenite::client_async(request, transport))
        .await?
        .map_err(|error| match error {
            WsError::Http(answer) if answer.status() == StatusCode::UNAUTHORIZED => {
                match &shared.options.missing_token_file {
                    Some(path) => LinkError::NoJoinToken(path.clone()),
                    None => LinkError::WrongToken,
                }
            }
            WsError::Http(answer) => LinkError::Http {
                status: answer.status().to_string(),
                message: message_of(answer.body().as_deref().unwrap_or_default()),
            },
            WsError::Io(error) => LinkError::WebSocket(error.to_string()),
            other if !master.tls => LinkError::NotHttp {
                address,
                reason: other.to_string(),
            },
            other => LinkError::WebSocket(other.to_string()),
        })?;
    Ok((socket, host_address))
}

/// The message in the body of a refusal, behind a colon; empty if there is none.
fn message_of(body: &[u8]) -> String {
    let body: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    match body["error"]["error"].as_str() {
        Some(message) if !message.is_empty() => format!(": {message}"),
        _ => String::new(),
    }
}

/// The value of a header that is never logged.
fn secret_value(text: &str) -> Result<HeaderValue, LinkError> {
    let mut value = HeaderValue::from_str(text).map_err(|_| {
        LinkError::Address("the agent's token has a character that cannot be sent".to_owned())
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// Why the TLS handshake failed.
fn tls_problem(error: &std::io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    match inner {
        Some(rustls::Error::InvalidCertificate(problem)) => format!(
            "its certificate is not trusted: {}",
            det_tls::explain(problem, "security.tls.master_cert_name")
        ),
        _ => format!("the TLS handshake failed: {error}"),
    }
}

async fn within<T>(future: impl Future<Output = T>) -> Result<T, LinkError> {
    timeout(CONNECT_WITHIN, future)
        .await
        .map_err(|_| LinkError::Slow(CONNECT_WITHIN))
}

/// Exchanges messages with the master until the connection ends. `Ok` means that this agent ended it.
async fn serve(
    shared: &SharedState,
    manager: &Manager,
    socket: &mut Socket,
    host_address: String,
    greeted: &mut bool,
    stop: &CancellationToken,
) -> Result<(), LinkError> {
    let hello = hello(shared, &host_address);
    send(socket, &ToMaster::Hello(hello)).await?;
    failpoint!("agent::connection::join::after_hello");
    let silence = Duration::from_secs(SILENCE_SECONDS);
    let ping = Duration::from_secs(PING_SECONDS);
    let mut last_received = Instant::now();
    let mut last_sent = Instant::now();
    loop {
        tokio::select! {
            () = stop.cancelled() => {
                // The master sees the end of the stream in any case.
                let _ = timeout(Duration::from_secs(1), socket.close(None)).await;
                return Ok(());
            }
            () = sleep_until(last_received + silence) => return Err(LinkError::Silence),
            () = sleep_until(last_sent + ping) => {
                send_within_limit(socket, Message::Ping(Vec::new().into())).await?;
                last_sent = Instant::now();
            }
            // Only the greeting is sent before its answer was received.
            message = shared.outbox.next(), if *greeted => {
                send(socket, &message).await?;
                last_sent = Instant::now();
            }
            received = socket.next() => {
                let message = match received {
                    None => return Err(LinkError::Closed),
                    Some(Err(error)) => return Err(LinkError::WebSocket(error.to_string())),
                    Some(Ok(message)) => message,
                };
                last_received = Instant::now();
                match message {
                    Message::Text(text) => {
                        handle(shared, manager, text.as_str(), &host_address, greeted)?;
                    }
                    Message::Close(_) => return Err(LinkError::Closed),
                    // The library answers pings with the next message, so flush now.
                    Message::Ping(_) => {
                        timeout(silence, socket.flush())
                            .await
                            .map_err(|_| LinkError::Silence)?
                            .map_err(|error| LinkError::WebSocket(error.to_string()))?;
                    }
                    Message::Pong(_) | Message::Binary(_) | Message::Frame(_) => {}
                }
            }
        }
    }
}

/// The greeting with all containers of this agent; later reports are sent on this connection.
fn hello(shared: &SharedState, host_address: &str) -> Hello {
    let mut addresses = vec![host_address.to_owned()];
    if let Ok(name) = nix::unistd::gethostname()
        && let Ok(name) = name.into_string()
    {
        addresses.push(name);
    }
    Hello {
        protocol: PROTOCOL_VERSION,
        agent_id: shared.options.agent_id.clone(),
        instance_id: shared.data_dir.instance_id().clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        resource_pool: shared.options.resource_pool.clone(),
        addresses,
        devices: shared.wire_devices(),
        runtime: shared.runtimes.kind.name().to_owned(),
        containers: shared.outbox.connect(),
        tunnel_endpoint: shared
            .tunnel_identity
            .as_ref()
            .map(|identity| identity.endpoint(host_address)),
    }
}

/// Handles a message from the master.
fn handle(
    shared: &SharedState,
    manager: &Manager,
    text: &str,
    host_address: &str,
    greeted: &mut bool,
) -> Result<(), LinkError> {
    let message: ToAgent = match serde_json::from_str(text) {
        Ok(message) => message,
        // A newer master may send messages that this agent does not know; it ignores them. Before the greeting it means
        // that this is not a master.
        Err(error) if *greeted => {
            tracing::warn!(
                "the master sent a message that this agent does not understand: {error}"
            );
            return Ok(());
        }
        Err(error) => return Err(LinkError::Nonsense(error.to_string())),
    };
    match message {
        ToAgent::Welcome(welcome) => {
            if welcome.protocol != PROTOCOL_VERSION {
                return Err(LinkError::Refused {
                    reason: format!(
                        "it speaks protocol {}, this agent {PROTOCOL_VERSION}; use the same version on both sides",
                        welcome.protocol
                    ),
                    then: AfterRefusal::Retry,
                });
            }
            tracing::info!(
                master = shared.master.url(),
                cluster.id = welcome.cluster_id.as_str(),
                "connected to the master"
            );
            *greeted = true;
            shared.session.send_replace(Some(Session {
                welcome,
                host_address: host_address.to_owned(),
            }));
        }
        ToAgent::Refused { reason, then } => {
            return Err(LinkError::Refused { reason, then });
        }
        ToAgent::Start(spec) => manager.start(*spec),
        ToAgent::Kill {
            container_id,
            grace,
        } => {
            let order = if grace {
                KillOrder::Gracefully
            } else {
                KillOrder::AtOnce
            };
            manager.kill(&container_id, order);
        }
        ToAgent::Dial(dial) => manager.dial(dial),
        ToAgent::Diagnose { container_id } => manager.diagnose(container_id),
        ToAgent::Forget { container_id } => manager.remove(&container_id),
    }
    Ok(())
}

async fn send(socket: &mut Socket, message: &ToMaster) -> Result<(), LinkError> {
    let text =
        serde_json::to_string(message).map_err(|error| LinkError::WebSocket(error.to_string()))?;
    send_within_limit(socket, Message::Text(text.into())).await
}

/// Sends a message; a master that does not read gets the same time limit as one that does not send.
async fn send_within_limit(socket: &mut Socket, message: Message) -> Result<(), LinkError> {
    timeout(Duration::from_secs(SILENCE_SECONDS), socket.send(message))
        .await
        .map_err(|_| LinkError::Silence)?
        .map_err(|error| LinkError::WebSocket(error.to_string()))
}
