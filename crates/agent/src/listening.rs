//! How the agent's own servers listen and accept. Tasks use the ports of the host too, and descriptors may be used up: neither
//! keeps the agent from running.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

/// The pause after a connection could not be accepted, because descriptors are used up.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);
/// The pause after the address was taken.
const LISTEN_AGAIN: Duration = Duration::from_secs(5);

/// Listens at an address as soon as it is free. `what` names the server for the log, `keys` what configures its address.
pub(crate) async fn listen(address: SocketAddr, what: &str, keys: &str) -> TcpListener {
    let mut reported = false;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                // A port of 0 is any that is free.
                let bound = listener.local_addr().unwrap_or(address);
                tracing::info!("{what} listens at {bound}");
                return listener;
            }
            Err(error) if !reported => {
                reported = true;
                tracing::warn!(
                    "{what} cannot listen at {address} ({keys}), the agent runs without it and tries again: {error}"
                );
            }
            Err(error) => tracing::debug!(%error, "{what} cannot listen yet"),
        }
        tokio::time::sleep(LISTEN_AGAIN).await;
    }
}

/// The next connection.
pub(crate) async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                tracing::debug!(%error, "a connection cannot be accepted");
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}
