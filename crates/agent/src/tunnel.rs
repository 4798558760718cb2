//! Tunnels: connections to ports of this agent's containers, which the master asks for and the agent opens.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use det_agent_proto::{
    ContainerState, Dial, TUNNEL_ERROR_HEADER, TUNNEL_PATH, TUNNEL_PROTOCOL, TUNNEL_SECONDS,
};
use det_ids::{ContainerId, TunnelId};
use reqwest::header::{CONNECTION, HeaderValue, UPGRADE};
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::containers::SharedState;
use crate::runtime::listeners::{Answerer, Owner};

/// Bytes that one direction of a tunnel holds at most.
pub(crate) const BUFFER_BYTES: usize = 64 << 10;
/// Containers publish their ports on this host, and processes listen on it.
const HOST: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// Connects to the port that the master asks for, and carries bytes between both until one side ends. What goes wrong is
/// reported to the master, whose user waits.
pub(crate) async fn carry(shared: &SharedState, dial: Dial) {
    let tunnel_id = dial.tunnel_id.clone();
    match connect(shared, &dial.container_id, dial.host_port).await {
        Ok(port) => {
            if let Err(error) = carry_to(shared, &tunnel_id, port).await {
                tracing::debug!(container.id = %dial.container_id, port = dial.host_port, "a tunnel ended: {error}");
            }
        }
        Err(reason) => {
            if let Err(error) = request(shared, &tunnel_id, Some(&reason)).await {
                tracing::debug!(container.id = %dial.container_id, port = dial.host_port, "{reason}; this could not be reported to the master: {error}");
            }
        }
    }
}

/// Connects to a port of this host that the container is known to have.
pub(crate) async fn connect(
    shared: &SharedState,
    container_id: &ContainerId,
    port: u16,
) -> Result<TcpStream, String> {
    // The master may name only what this agent has reported: not the services of its host.
    let reported = shared.outbox.latest(container_id);
    let owner = match reported {
        Some(ContainerState::Running {
            ports, runtime_id, ..
        }) if ports.iter().any(|(_, host)| *host == port) => Some(owner_of(runtime_id)),
        _ => None,
    };
    let Some(owner) = owner else {
        return Err(format!(
            "container \"{container_id}\" does not run on this agent, or has no port {port} there"
        ));
    };
    let limit = Duration::from_secs(TUNNEL_SECONDS) / 2;
    let connected = timeout(limit, TcpStream::connect((HOST, port))).await;
    let refused = |why: &str| {
        format!("nothing answers at port {port} of the task yet, or not any more: {why}")
    };
    let stream = match connected {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(refused(&error.to_string())),
        Err(_) => return Err(refused("no answer")),
    };
    let own = stream.local_addr().map_err(|e| refused(&e.to_string()))?;
    let SocketAddr::V4(own) = own else {
        return Err(refused("the connection has no address of loopback"));
    };
    // Looked at once it is connected: which program has accepted it does not change any more.
    let listeners = Arc::clone(&shared.listeners);
    let to = SocketAddrV4::new(HOST, port);
    let answerer = tokio::task::spawn_blocking(move || listeners.answers(&owner, own, to));
    match answerer.await.unwrap_or(Answerer::Unseen) {
        Answerer::Owner => {}
        Answerer::Another => {
            return Err(format!(
                "what answers at port {port} of this host is not the task: another program has the port, or had it a moment ago"
            ));
        }
        Answerer::Unseen => {
            return Err(format!(
                "this agent cannot see which program answers at port {port} of its host, and connects to none that may not be \
                 the task: it belongs to a Unix user whose processes are hidden from the agent, or has just ended"
            ));
        }
    }
    stream
        .set_nodelay(true)
        .map_err(|e| refused(&e.to_string()))?;
    Ok(stream)
}

/// Whose the listener of a container's port must be. Engines name containers, the process runtime its supervisors by number.
fn owner_of(runtime_id: String) -> Owner {
    match runtime_id.parse() {
        Ok(supervisor) => Owner::Supervisor(supervisor),
        Err(_) => Owner::Container(runtime_id),
    }
}

async fn carry_to(
    shared: &SharedState,
    tunnel_id: &TunnelId,
    mut port: TcpStream,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let answer = request(shared, tunnel_id, None).await?;
    let mut master = answer.error_for_status()?.upgrade().await?;
    copy_bidirectional_with_sizes(&mut master, &mut port, BUFFER_BYTES, BUFFER_BYTES).await?;
    Ok(())
}

/// A reason as [`TUNNEL_ERROR_HEADER`]; what no header can hold is left out.
pub(crate) fn header_of(reason: &str) -> HeaderValue {
    let text: String = reason.chars().filter(|c| (' '..='~').contains(c)).collect();
    HeaderValue::from_str(&text)
        .unwrap_or_else(|_| HeaderValue::from_static("it could not be opened"))
}

/// Asks the master for a tunnel, or reports why there is none.
async fn request(
    shared: &SharedState,
    tunnel_id: &TunnelId,
    failure: Option<&str>,
) -> Result<reqwest::Response, reqwest::Error> {
    let url = format!("{}{TUNNEL_PATH}/{tunnel_id}", shared.master.url());
    let mut request = shared
        .http
        .get(url)
        .bearer_auth(shared.data_dir.token().expose());
    request = match failure {
        None => request
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, TUNNEL_PROTOCOL),
        Some(reason) => request.header(TUNNEL_ERROR_HEADER, header_of(reason)),
    };
    request.send().await
}
