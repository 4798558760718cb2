//! Ports of pods through the API server: the subresource `portforward`, over a WebSocket.
//!
//! Every message of such a connection begins with the number of a channel: 0 is the bytes of the port, 1 the text of an
//! error. The first message of each channel is the number of the port. That nothing listens is known only after that, as an
//! error; that something does, only when it sends. The protocol has no sign that one direction has ended: the connection is one
//! until either side closes it. [Kubernetes documentation, "Use port forwarding"; kubelet streaming, `v4.channel.k8s.io`.]
//!
//! A stream is the socket itself, without tasks of its own: what its reader does not read stays with the API server, and when
//! it is dropped nothing is left.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use det_ids::ContainerId;
use det_rm::{ContainerAddress, ReachError};
use futures::{Sink, Stream as _};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Bytes, Message as Frame};

use crate::api::{ApiError, KubeApi, Upgrade};
use crate::books::ObjectKey;
use crate::messages::Message;
use crate::reach::CONNECT_WITHIN;

/// The channel of a port's bytes.
const DATA: u8 = 0;
/// The channel of errors.
const ERROR: u8 = 1;
/// Bytes of the port in a message to the API server at most.
const WRITTEN_AT_ONCE: usize = 32 * 1024;
/// Bytes of a message of the API server at most. Kubelets send some tens of thousands.
const MESSAGE_LIMIT: usize = 4 * 1024 * 1024;
/// Bytes that wait to be sent at most: one message, and answers to pings.
const WAITING_LIMIT: usize = 4 * WRITTEN_AT_ONCE;
/// Ports that are remembered to be listened on, at most.
const REMEMBERED: usize = 4096;

/// Forwards ports of the pods of one cluster.
pub(crate) struct Forwarder {
    api: KubeApi,
    /// To the task that knows the pods.
    messages: mpsc::Sender<Message>,
    /// How long is waited for a refusal.
    refused_within: Duration,
    listening: ListeningPorts,
}

/// The ports that something has been found to listen on.
#[derive(Debug, Clone, Default)]
struct ListeningPorts(Arc<Mutex<BTreeSet<(ContainerId, u16)>>>);

impl ListeningPorts {
    fn ports(&self) -> MutexGuard<'_, BTreeSet<(ContainerId, u16)>> {
        let Self(ports) = self;
        ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, port: (ContainerId, u16)) {
        let mut ports = self.ports();
        // What is evicted costs a wait.
        if ports.len() >= REMEMBERED {
            ports.clear();
        }
        ports.insert(port);
    }
}

impl Forwarder {
    pub(crate) fn new(
        api: KubeApi,
        messages: mpsc::Sender<Message>,
        refused_within: Duration,
    ) -> Self {
        Self {
            api,
            messages,
            refused_within,
            listening: ListeningPorts::default(),
        }
    }

    /// Connects to a port of a container's pod.
    pub(crate) async fn forward(
        &self,
        container: &ContainerAddress,
        port: u16,
    ) -> Result<ForwardStream, ReachError> {
        let begun = timeout(CONNECT_WITHIN, self.begin(container, port)).await;
        let mut stream = begun.map_err(|_| {
            ReachError::Unreachable(format!(
                "the API server of cluster \"{}\" did not forward port {port} of its pod within {} s",
                container.manager,
                CONNECT_WITHIN.as_secs()
            ))
        })??;
        if self.listening.ports().contains(&stream.of) {
            return Ok(stream);
        }
        let first = poll_fn(|cx| stream.poll_fill(cx));
        match timeout(self.refused_within, first).await {
            Ok(Err(error)) => Err(ReachError::Unreachable(error.to_string())),
            Ok(Ok(())) | Err(_) => Ok(stream),
        }
    }

    /// Begins a forward, and waits until the node of the pod has confirmed that.
    async fn begin(
        &self,
        container: &ContainerAddress,
        port: u16,
    ) -> Result<ForwardStream, ReachError> {
        let pod = self.pod_of(container).await?;
        let ObjectKey { namespace, name } = &pod;
        let upgraded = self.api.forward((namespace, name), port).await;
        let upgraded = upgraded.map_err(|error| failed(&pod, port, &error))?;
        let of = (container.container_id.clone(), port);
        let mut stream = ForwardStream::new(upgraded, of, self.listening.clone()).await;
        let greeted = poll_fn(|cx| stream.poll_greeted(cx)).await;
        greeted.map_err(|error| ReachError::Unreachable(error.to_string()))?;
        Ok(stream)
    }

    async fn pod_of(&self, container: &ContainerAddress) -> Result<ObjectKey, ReachError> {
        let ended = || {
            ReachError::Unreachable(format!(
                "resource manager \"{}\" is being restarted",
                container.manager
            ))
        };
        let (answer, pod) = oneshot::channel();
        let question = Message::PodOf(container.container_id.clone(), answer);
        self.messages.send(question).await.map_err(|_| ended())?;
        pod.await.map_err(|_| ended())?.ok_or_else(|| {
            ReachError::Unreachable(format!(
                "its pod on node \"{}\" does not exist any more",
                container.place
            ))
        })
    }
}

/// What an answer of the API means for a user who wants to connect.
fn failed(pod: &ObjectKey, port: u16, error: &ApiError) -> ReachError {
    let ObjectKey { namespace, name } = pod;
    ReachError::Unreachable(match error {
        ApiError::Forbidden(answer) => format!(
            "the master may not forward ports of pods in namespace \"{namespace}\": its service account needs the verbs \
             \"get\" and \"create\" of \"pods/portforward\" there (docs/kubernetes.md, \"How services of tasks are \
             reached\"); the API answers: {answer}"
        ),
        ApiError::Absent => {
            format!("its pod \"{name}\" in namespace \"{namespace}\" does not exist any more")
        }
        error => format!(
            "port {port} of its pod \"{name}\" in namespace \"{namespace}\" cannot be forwarded: {error}"
        ),
    })
}

/// The bytes of a port of a pod, through the API server. Its reader gets the reason as an error where the forward fails.
///
/// To shut it down sends what is left, and ends nothing: see the comment of the module.
#[derive(Debug)]
pub struct ForwardStream {
    socket: WebSocketStream<Upgrade>,
    /// The container and its port.
    of: (ContainerId, u16),
    /// Where it is noted whether something listens; `None` once it has been.
    listening: Option<ListeningPorts>,
    /// Whether the first message of each channel has come.
    greeted: [bool; 2],
    /// What has been received and not been read.
    rest: Bytes,
    /// Whether nothing more is received.
    has_ended: bool,
}

impl ForwardStream {
    async fn new(upgraded: Upgrade, of: (ContainerId, u16), listening: ListeningPorts) -> Self {
        let config = WebSocketConfig::default()
            .write_buffer_size(0)
            .max_write_buffer_size(WAITING_LIMIT)
            .max_message_size(Some(MESSAGE_LIMIT))
            .max_frame_size(Some(MESSAGE_LIMIT));
        Self {
            socket: WebSocketStream::from_raw_socket(upgraded, Role::Client, Some(config)).await,
            of,
            listening: Some(listening),
            greeted: [false; 2],
            rest: Bytes::new(),
            has_ended: false,
        }
    }

    fn broken(&self, why: &str) -> io::Error {
        let (_, port) = self.of;
        io::Error::other(format!(
            "the forward of port {port} of its pod ended: {why}"
        ))
    }

    /// Waits until the first message of each channel has come.
    fn poll_greeted(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.greeted != [true; 2] {
            ready!(self.poll_message(cx))?;
            if self.has_ended {
                return Poll::Ready(Err(self.broken("it was closed before it began")));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Waits until there is something to read, or nothing more will be.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.rest.is_empty() && !self.has_ended {
            ready!(self.poll_message(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Receives one message.
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let received = ready!(Pin::new(&mut self.socket).poll_next(cx));
        let outcome = match received {
            Some(Ok(Frame::Binary(message))) => self.receive(message),
            None | Some(Ok(Frame::Close(_))) => {
                self.has_ended = true;
                Ok(())
            }
            // The socket answers pings by itself.
            Some(Ok(Frame::Text(_) | Frame::Ping(_) | Frame::Pong(_) | Frame::Frame(_))) => Ok(()),
            Some(Err(error)) => Err(self.broken(&error.to_string())),
        };
        if outcome.is_err() {
            self.has_ended = true;
        }
        Poll::Ready(outcome)
    }

    fn receive(&mut self, mut message: Bytes) -> io::Result<()> {
        let Some(channel @ (DATA | ERROR)) = message.first().copied() else {
            return match message.first() {
                Some(channel) => Err(self.broken(&format!(
                    "the API server sent a message on channel {channel}, which it does not have"
                ))),
                None => Ok(()),
            };
        };
        let bytes = message.split_off(1);
        let greeted = &mut self.greeted[usize::from(channel)];
        if !*greeted {
            *greeted = true;
            let (_, port) = self.of;
            return if bytes[..] == port.to_le_bytes() {
                Ok(())
            } else {
                Err(self.broken("the API server did not confirm the port"))
            };
        }
        if channel == ERROR {
            if let Some(listening) = self.listening.take() {
                listening.ports().remove(&self.of);
            }
            return Err(self.broken(String::from_utf8_lossy(&bytes).trim()));
        }
        if let Some(listening) = self.listening.take() {
            listening.add(self.of.clone());
        }
        self.rest = bytes;
        Ok(())
    }
}

impl AsyncRead for ForwardStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_fill(cx))?;
        let taken = this.rest.split_to(this.rest.len().min(buffer.remaining()));
        buffer.put_slice(&taken);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ForwardStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let mut socket = Pin::new(&mut this.socket);
        if let Err(error) = ready!(socket.as_mut().poll_ready(cx)) {
            return Poll::Ready(Err(this.broken(&error.to_string())));
        }
        let bytes = &bytes[..bytes.len().min(WRITTEN_AT_ONCE)];
        let mut message = Vec::with_capacity(bytes.len() + 1);
        message.push(DATA);
        message.extend_from_slice(bytes);
        match socket.start_send(Frame::Binary(message.into())) {
            Ok(()) => Poll::Ready(Ok(bytes.len())),
            Err(error) => Poll::Ready(Err(this.broken(&error.to_string()))),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = ready!(Pin::new(&mut this.socket).poll_flush(cx));
        Poll::Ready(flushed.map_err(|error| this.broken(&error.to_string())))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}
