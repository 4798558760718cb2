//! What the master asks of single agents beside orders: connections to ports of containers, for which the agent opens a
//! tunnel, and to have supervisors report what their tasks do.
//!
//! Unless they are configured to, agents accept no connections. The request to dial goes over the agent's WebSocket; the bytes
//! go over a connection of their own, so that a large download keeps no order or report waiting.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use det_agent_proto::{Dial, TUNNEL_SECONDS, ToAgent, TunnelEndpoint};
use det_ids::{PlaceId, TunnelId};
use det_rm::{ContainerAddress, Reach, ReachError};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::direct::{DirectDialer, NoTunnel};

/// Requests that wait for one agent at most: its connection takes them at once unless it is stuck.
const WAITING_ASKS: usize = 1024;

/// The bytes of a container's port.
pub type TunnelStream = TokioIo<Upgraded>;

fn not_connected(place: &PlaceId) -> ReachError {
    ReachError::Unreachable(format!("its agent \"{place}\" is not connected"))
}

fn slow(place: &PlaceId) -> ReachError {
    ReachError::Unreachable(format!(
        "its agent \"{place}\" did not open the connection within {TUNNEL_SECONDS} s"
    ))
}

/// The tunnels of all agents. Cheap to clone.
#[derive(Clone)]
pub struct Tunnels {
    inner: Arc<Mutex<Inner>>,
    new_id: fn() -> TunnelId,
}

#[derive(Default)]
struct Inner {
    /// Grows with every connection, so that the end of an older one does not remove a newer one.
    last: u64,
    agents: HashMap<PlaceId, ConnectedAgent>,
    waiting: HashMap<TunnelId, PendingDial>,
}

struct ConnectedAgent {
    /// Which of the agent's connections this is.
    serial: u64,
    asks: mpsc::Sender<ToAgent>,
    /// How the master opens tunnels itself; `None` = it cannot, and the agent does.
    direct: Option<Arc<DirectDialer>>,
}

struct PendingDial {
    place: PlaceId,
    answer: oneshot::Sender<Result<TunnelStream, String>>,
}

/// The requests to one agent's connection. Dropped, the agent takes no more.
pub(crate) struct Asks {
    tunnels: Tunnels,
    place: PlaceId,
    serial: u64,
    received: mpsc::Receiver<ToAgent>,
}

impl Asks {
    /// The next request. Dropping this future loses none.
    pub(crate) async fn next(&mut self) -> ToAgent {
        match self.received.recv().await {
            Some(ask) => ask,
            // A newer connection of the agent has taken over: this one ends by itself.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Asks {
    fn drop(&mut self) {
        let mut inner = self.tunnels.lock();
        let current = inner.agents.get(&self.place);
        if current.is_some_and(|agent| agent.serial == self.serial) {
            inner.agents.remove(&self.place);
        }
    }
}

/// Removes a request whose caller has gone.
struct DialGuard<'a> {
    tunnels: &'a Tunnels,
    tunnel_id: &'a TunnelId,
}

impl Drop for DialGuard<'_> {
    fn drop(&mut self) {
        self.tunnels.lock().waiting.remove(self.tunnel_id);
    }
}

impl Inner {
    /// Hands a request to the connection of an agent.
    fn ask(&self, place: &PlaceId, ask: ToAgent) -> Result<(), ReachError> {
        let Some(agent) = self.agents.get(place) else {
            return Err(not_connected(place));
        };
        agent.asks.try_send(ask).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => ReachError::Busy(format!(
                "its agent \"{place}\" has too many connections to make at this moment"
            )),
            mpsc::error::TrySendError::Closed(_) => not_connected(place),
        })
    }
}

impl Tunnels {
    /// Of no agent yet. `new_id` makes the ids of tunnels, each new and not to be guessed.
    pub fn new(new_id: fn() -> TunnelId) -> Self {
        Self {
            inner: Arc::default(),
            new_id,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The requests for an agent from now on. `endpoint` = where it accepts connections.
    pub(crate) fn asks_of(&self, place: &PlaceId, endpoint: Option<TunnelEndpoint>) -> Asks {
        let (asks, received) = mpsc::channel(WAITING_ASKS);
        let direct = endpoint
            .and_then(|endpoint| DirectDialer::new(place.clone(), endpoint))
            .map(Arc::new);
        let mut inner = self.lock();
        inner.last += 1;
        let serial = inner.last;
        let agent = ConnectedAgent {
            serial,
            asks,
            direct,
        };
        inner.agents.insert(place.clone(), agent);
        Asks {
            tunnels: self.clone(),
            place: place.clone(),
            serial,
            received,
        }
    }

    /// The agent that a tunnel is to come from; `None` = no caller waits for it.
    pub(crate) fn expected_from(&self, tunnel_id: &TunnelId) -> Option<PlaceId> {
        let inner = self.lock();
        inner.waiting.get(tunnel_id).map(|w| w.place.clone())
    }

    /// Hands a tunnel, or the agent's reason why there is none, to the caller that waits for it; `false` = there is none any
    /// more.
    pub(crate) fn opened(
        &self,
        tunnel_id: &TunnelId,
        tunnel: Result<TunnelStream, String>,
    ) -> bool {
        let waiting = self.lock().waiting.remove(tunnel_id);
        waiting.is_some_and(|waiting| waiting.answer.send(tunnel).is_ok())
    }

    /// Has the agent open a tunnel, and waits for it.
    async fn dial_back(
        &self,
        container: &ContainerAddress,
        host_port: u16,
    ) -> Result<TunnelStream, ReachError> {
        let (answer, answered) = oneshot::channel();
        let (tunnel_id, place) = ((self.new_id)(), &container.place);
        let dial = Dial {
            tunnel_id: tunnel_id.clone(),
            container_id: container.container_id.clone(),
            host_port,
        };
        {
            let mut inner = self.lock();
            inner.ask(place, ToAgent::Dial(dial))?;
            let place = place.clone();
            inner
                .waiting
                .insert(tunnel_id.clone(), PendingDial { place, answer });
        }
        let _guard = DialGuard {
            tunnels: self,
            tunnel_id: &tunnel_id,
        };
        match timeout(Duration::from_secs(TUNNEL_SECONDS), answered).await {
            Ok(Ok(Ok(stream))) => Ok(stream),
            Ok(Ok(Err(reason))) => Err(ReachError::Unreachable(reason)),
            Ok(Err(_)) | Err(_) => Err(slow(place)),
        }
    }
}

impl Reach for Tunnels {
    type Stream = TunnelStream;

    async fn dial(
        &self,
        container: &ContainerAddress,
        host_port: u16,
    ) -> Result<TunnelStream, ReachError> {
        let direct = {
            let inner = self.lock();
            let agent = inner.agents.get(&container.place);
            agent.and_then(|agent| agent.direct.clone())
        };
        if let Some(direct) = direct {
            match direct.dial(&container.container_id, host_port).await {
                Ok(stream) => return Ok(stream),
                Err(NoTunnel::Refused(error)) => return Err(error),
                Err(NoTunnel::NotConnected) => {}
            }
        }
        self.dial_back(container, host_port).await
    }

    async fn diagnose(&self, container: &ContainerAddress) -> Result<(), ReachError> {
        let container_id = container.container_id.clone();
        self.lock()
            .ask(&container.place, ToAgent::Diagnose { container_id })
    }
}

#[cfg(test)]
mod tests {
    use det_ids::ContainerId;

    use super::*;

    #[tokio::test]
    async fn a_request_to_dial_goes_to_the_newest_connection_and_its_failure_comes_back() {
        let (tunnels, place) = (Tunnels::new(|| "t".into()), PlaceId::from("a"));
        let container = ContainerAddress {
            manager: String::new(),
            place: place.clone(),
            container_id: ContainerId::from("c"),
            host_address: "h".to_owned(),
        };
        let open = async || tunnels.dial(&container, 80).await.map(|_| ());
        let away = Err(not_connected(&place));
        assert_eq!(open().await, away);
        let older = tunnels.asks_of(&place, None);
        let mut newer = tunnels.asks_of(&place, None);
        drop(older);
        let agent = async {
            let ToAgent::Dial(dial) = newer.next().await else {
                panic!("it was asked to dial");
            };
            assert_eq!(tunnels.expected_from(&dial.tunnel_id), Some(place.clone()));
            assert!(tunnels.opened(&dial.tunnel_id, Err("nothing listens".into())));
            assert!(!tunnels.opened(&dial.tunnel_id, Err("again".into())));
        };
        let (answer, ()) = tokio::join!(open(), agent);
        assert_eq!(
            answer,
            Err(ReachError::Unreachable("nothing listens".into()))
        );
        assert!(tunnels.lock().waiting.is_empty());
        tunnels.diagnose(&container).await.unwrap();
        let container_id = container.container_id.clone();
        assert_eq!(newer.next().await, ToAgent::Diagnose { container_id });
        drop(newer);
        assert_eq!(open().await, away);
    }
}
