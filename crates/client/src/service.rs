//! Connections to services of tasks: raw bytes over a WebSocket (`docs/contract/http-api.md`, "Services").

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use reqwest::header::{
    CONNECTION, HeaderMap, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use reqwest::{StatusCode, Upgraded};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Message, Role, WebSocketConfig};

use crate::address::MasterUrl;
use crate::client::Client;
use crate::error::ClientError;

/// The WebSocket protocol in which an empty message ends one direction. A master that does not know it ends both at once.
const ENDS_APART: &str = "det.ends-apart";
/// Bytes that are read and sent at once; masters take messages of 256 KiB.
const BUFFER_BYTES: usize = 64 << 10;
/// Bytes of a message at most.
const MESSAGE_BYTES: usize = 4 << 20;
/// How long the end of a connection may take to be passed on.
const ENDING: Duration = Duration::from_secs(5);

type Socket = WebSocketStream<Upgraded>;

/// A connection to a service.
#[derive(Debug)]
pub struct ServiceConnection {
    master: MasterUrl,
    socket: Socket,
    /// Whether one direction can end without the other.
    ends_apart: bool,
}

impl Client {
    /// Connects to the service of this name, `TASK` or `TASK:PORT`. Errs when the master refuses it: the service is unknown,
    /// does not run, speaks HTTP, or is for others.
    pub async fn connect_service(&self, name: &str) -> Result<ServiceConnection, ClientError> {
        let path = format!("/proxy/{}/", crate::client::path_segment(name));
        let key = generate_key();
        let mut headers = HeaderMap::new();
        for (header, value) in [
            (CONNECTION, "Upgrade"),
            (UPGRADE, "websocket"),
            (SEC_WEBSOCKET_VERSION, "13"),
            (SEC_WEBSOCKET_KEY, key.as_str()),
            (SEC_WEBSOCKET_PROTOCOL, ENDS_APART),
        ] {
            let value = value
                .parse()
                .expect("these values are printable characters of ASCII");
            headers.insert(header, value);
        }
        let response = self.open(&path, headers).await?;
        let header = |name| {
            response
                .headers()
                .get(name)
                .and_then(|value| value.to_str().ok())
        };
        let is_websocket = response.status() == StatusCode::SWITCHING_PROTOCOLS
            && header(SEC_WEBSOCKET_ACCEPT) == Some(&derive_accept_key(key.as_bytes()));
        if !is_websocket {
            return Err(ClientError::BadAnswer {
                url: self.master().join(&path),
                reason: "it is no WebSocket".to_owned(),
            });
        }
        let ends_apart = header(SEC_WEBSOCKET_PROTOCOL) == Some(ENDS_APART);
        let stream = response.upgrade().await.map_err(|error| {
            ClientError::from_transport(self.master(), &self.master().join(&path), &error)
        })?;
        let mut config = WebSocketConfig::default();
        config.max_message_size = Some(MESSAGE_BYTES);
        config.max_frame_size = Some(MESSAGE_BYTES);
        Ok(ServiceConnection {
            master: self.master().clone(),
            socket: WebSocketStream::from_raw_socket(stream, Role::Client, Some(config)).await,
            ends_apart,
        })
    }
}

impl ServiceConnection {
    /// Sends what is read from `from` and writes what is received to `to`, until both directions have ended, the service has
    /// closed the connection, or `to` takes no more. The end of `from` is passed on, and so is that of the service.
    pub async fn carry(
        self,
        from: impl AsyncRead + Unpin,
        to: impl AsyncWrite + Unpin,
    ) -> Result<(), ClientError> {
        let (mut to_service, from_service) = self.socket.split();
        let service_ended = Notify::new();
        let up = async {
            pump_up(from, &mut to_service, self.ends_apart).await;
            service_ended.notified().await;
        };
        let result = tokio::select! {
            () = up => Ok(()),
            result = pump_down(from_service, to, self.ends_apart, &service_ended) => result,
        };
        // The master may have closed it already.
        let _ = timeout(ENDING, to_service.close()).await;
        result.map_err(|error| ClientError::Interrupted {
            master: self.master,
            reason: error.to_string(),
        })
    }
}

/// Sends what is read until the end.
async fn pump_up(
    mut from: impl AsyncRead + Unpin,
    to_service: &mut SplitSink<Socket, Message>,
    ends_apart: bool,
) {
    let mut buffer = vec![0; BUFFER_BYTES];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let message = Message::Binary(Bytes::copy_from_slice(&buffer[..read]));
        if to_service.send(message).await.is_err() {
            // What came before the end is still to be read: that is where it is noticed.
            return;
        }
    }
    let end = if ends_apart {
        Message::Binary(Bytes::new())
    } else {
        Message::Close(None)
    };
    // As above.
    let _ = to_service.send(end).await;
}

/// Writes what is received until the connection ends. Notifies when the service has ended its direction.
async fn pump_down(
    mut from_service: SplitStream<Socket>,
    mut to: impl AsyncWrite + Unpin,
    ends_apart: bool,
    service_ended: &Notify,
) -> io::Result<()> {
    while let Some(message) = from_service.next().await {
        let bytes: Bytes = match message.map_err(io::Error::other)? {
            Message::Binary(bytes) => bytes,
            Message::Text(text) => text.into(),
            Message::Close(_) => break,
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => continue,
        };
        let written = if bytes.is_empty() && ends_apart {
            service_ended.notify_one();
            to.shutdown().await
        } else {
            match to.write_all(&bytes).await {
                Ok(()) => to.flush().await,
                failed => failed,
            }
        };
        if written.is_err() {
            // Who reads it has gone.
            return Ok(());
        }
    }
    // Who reads it may have gone.
    let _ = to.shutdown().await;
    Ok(())
}
