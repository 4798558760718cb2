//! Ports of pods, each forwarded over a WebSocket of its own, whose bytes are channel 0 and whose errors are channel 1. The
//! first message of each is the port's number. [Kubernetes: `portforward` of pods, `v4.channel.k8s.io`.]

use std::sync::Arc;

use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts as _, Query, Request};
use axum::response::Response;
use futures::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::failure::Failure;
use crate::shared::DoubleState;
use crate::target::{Key, Resource, Target};
use crate::values::text;
use crate::{access, http};

/// The protocol of the messages.
const PROTOCOL: &str = "v4.channel.k8s.io";
/// The channel of the port's bytes.
const DATA: u8 = 0;
/// The channel of errors.
const ERROR: u8 = 1;
/// Bytes of a message at most.
const READ_AT_ONCE: usize = 32 * 1024;

/// Whether a path is one of a forward.
pub(crate) fn is_one(path: &str) -> bool {
    path.starts_with("/api/v1/namespaces/") && path.ends_with("/portforward")
}

/// Begins a forward.
pub(crate) async fn answer(
    shared: &Arc<DoubleState>,
    request: Request,
) -> Result<Response, Failure> {
    let (mut parts, _) = request.into_parts();
    http::record(shared, &parts);
    let target = Target::of_path(parts.uri.path());
    let target = target.filter(|target| target.resource == Resource::pods());
    let target = target.ok_or_else(Failure::no_such_path)?;
    http::fail_if_planned(shared, &parts.method, "get", &target)?;
    // The second one since Kubernetes 1.35.
    for verb in ["get", "create"] {
        access::check(&shared.control().forbidden, verb, &target)?;
    }
    let name = target.name.as_deref().unwrap_or_default();
    let key = target.key(name);
    let pod = shared.cluster().get(&key).cloned();
    let pod = pod.ok_or_else(|| Failure::not_found(&target.resource, name))?;
    if text(&pod, "/status/phase") != "Running" {
        let message = "unable to forward port because pod is not running";
        return Err(Failure::bad_request(message.to_owned()));
    }
    let bad = |error: &dyn std::fmt::Display| Failure::bad_request(error.to_string());
    let query = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri);
    let Query(query) = query.map_err(|error| bad(&error))?;
    let ports = query.iter().find(|(name, _)| name == "ports");
    let port: u16 = match ports.map(|(_, ports)| ports.parse()) {
        Some(Ok(port)) => port,
        _ => return Err(bad(&"the double forwards one port at a time")),
    };
    let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &()).await;
    let upgrade = upgrade.map_err(|error| bad(&error))?.protocols([PROTOCOL]);
    if upgrade.selected_protocol().is_none() {
        return Err(bad(&"no protocol that the double speaks"));
    }
    let shared = Arc::clone(shared);
    Ok(upgrade.on_upgrade(move |socket| forward(socket, shared, key, port)))
}

/// Carries bytes until the client or the listener has no more, or the pod is gone. A cut breaks it off.
async fn forward(socket: WebSocket, shared: Arc<DoubleState>, pod: Key, port: u16) {
    let mut cuts = shared.cuts.subscribe();
    let (mut to_client, mut from_client) = socket.split();
    let carry = async {
        for channel in [DATA, ERROR] {
            let [low, high] = port.to_le_bytes();
            to_client.send(message(channel, &[low, high])).await?;
        }
        let service = match connect(&shared, &pod, port).await {
            Ok(service) => service,
            Err(why) => {
                to_client.send(message(ERROR, why.as_bytes())).await?;
                return to_client.close().await;
            }
        };
        let (mut from_service, mut to_service) = service.into_split();
        let up = async {
            while let Some(Ok(received)) = from_client.next().await {
                let Message::Binary(bytes) = received else {
                    continue;
                };
                if let [DATA, bytes @ ..] = &bytes[..]
                    && to_service.write_all(bytes).await.is_err()
                {
                    return;
                }
            }
        };
        let down = async {
            let mut buffer = vec![0; READ_AT_ONCE];
            while let Ok(read @ 1..) = from_service.read(&mut buffer).await {
                to_client.send(message(DATA, &buffer[..read])).await?;
            }
            Ok(())
        };
        tokio::select! {
            () = up => {}
            down = down => down?,
            () = gone(&shared, &pod) => {}
        }
        to_client.close().await
    };
    tokio::select! {
        // The client may be gone.
        _ = carry => {}
        _ = cuts.changed() => {}
    }
}

fn message(channel: u8, bytes: &[u8]) -> Message {
    let mut message = Vec::with_capacity(bytes.len() + 1);
    message.push(channel);
    message.extend_from_slice(bytes);
    Message::Binary(message.into())
}

/// Connects to what listens on a port; errs with the text that a node has for it.
async fn connect(shared: &DoubleState, pod: &Key, port: u16) -> Result<TcpStream, String> {
    let of = (pod.namespace.clone(), pod.name.clone(), port);
    let listener = shared.control().listeners.get(&of).copied();
    let connected = match listener {
        Some(listener) => TcpStream::connect(listener).await.ok(),
        None => None,
    };
    connected.ok_or_else(|| {
        format!(
            "error forwarding port {port} to pod {}: failed to connect to localhost:{port} inside its namespace: \
             connect: connection refused",
            pod.name
        )
    })
}

/// Waits until a pod does not exist.
async fn gone(shared: &DoubleState, pod: &Key) {
    let mut activity = shared.activity.subscribe();
    let is_gone = |_: &u64| shared.cluster().get(pod).is_none();
    // The sender is in `shared`, so that it exists.
    let _ = activity.wait_for(is_gone).await;
}
