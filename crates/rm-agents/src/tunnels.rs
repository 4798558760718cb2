//! What the master asks of single agents beside orders: connections to ports of containers, for which the agent opens a
//! tunnel, and to have supervisors report what their tasks do.
//!
//! Agents accept no connections. The request to dial goes over the agent's WebSocket; the bytes go over a connection of
//! their own, so that a large download keeps no order or report waiting.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use det_agent_proto::{Dial, TUNNEL_SECONDS, ToAgent};
use det_ids::{ContainerId, PlaceId};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Requests that wait for one agent at most: its connection takes them at once unless it is stuck.
const WAITING_ASKS: usize = 1024;

/// The bytes of a container's port.
pub type TunnelStream = TokioIo<Upgraded>;

/// Why there is no tunnel.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TunnelError {
    /// The agent is away.
    #[error("its agent \"{0}\" is not connected")]
    NotConnected(PlaceId),
    /// More requests wait for the agent than it takes.
    #[error("its agent \"{0}\" has too many connections to make at this moment")]
    Busy(PlaceId),
    /// The agent could not reach the port.
    #[error("{0}")]
    Refused(String),
    /// The agent did not answer.
    #[error("its agent \"{0}\" did not open the connection within {TUNNEL_SECONDS} s")]
    Slow(PlaceId),
}

/// The tunnels of all agents. Cheap to clone.
#[derive(Clone, Default)]
pub struct Tunnels {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    /// Grows with every connection, so that the end of an older one does not remove a newer one.
    last: u64,
    agents: HashMap<PlaceId, (u64, mpsc::Sender<ToAgent>)>,
    waiting: HashMap<String, Waiting>,
}

struct Waiting {
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
        if current.is_some_and(|(serial, _)| *serial == self.serial) {
            inner.agents.remove(&self.place);
        }
    }
}

/// Removes a request whose caller has gone.
struct Forgotten<'a> {
    tunnels: &'a Tunnels,
    tunnel_id: &'a str,
}

impl Drop for Forgotten<'_> {
    fn drop(&mut self) {
        self.tunnels.lock().waiting.remove(self.tunnel_id);
    }
}

impl Inner {
    /// Hands a request to the connection of an agent.
    fn ask(&self, place: &PlaceId, ask: ToAgent) -> Result<(), TunnelError> {
        let Some((_, agent)) = self.agents.get(place) else {
            return Err(TunnelError::NotConnected(place.clone()));
        };
        agent.try_send(ask).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => TunnelError::Busy(place.clone()),
            mpsc::error::TrySendError::Closed(_) => TunnelError::NotConnected(place.clone()),
        })
    }
}

impl Tunnels {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The requests for an agent from now on.
    pub(crate) fn asks_of(&self, place: &PlaceId) -> Asks {
        let (sender, received) = mpsc::channel(WAITING_ASKS);
        let mut inner = self.lock();
        inner.last += 1;
        let serial = inner.last;
        inner.agents.insert(place.clone(), (serial, sender));
        Asks {
            tunnels: self.clone(),
            place: place.clone(),
            serial,
            received,
        }
    }

    /// Connects to a port of a container of an agent. `tunnel_id` must be new and not to be guessed.
    ///
    /// # Errors
    /// The agent is away, could not reach the port, or did not answer.
    pub async fn open(
        &self,
        place: &PlaceId,
        container_id: &ContainerId,
        host_port: u16,
        tunnel_id: String,
    ) -> Result<TunnelStream, TunnelError> {
        let (answer, answered) = oneshot::channel();
        let dial = Dial {
            tunnel_id: tunnel_id.clone(),
            container_id: container_id.clone(),
            host_port,
        };
        {
            let mut inner = self.lock();
            inner.ask(place, ToAgent::Dial(dial))?;
            let place = place.clone();
            inner
                .waiting
                .insert(tunnel_id.clone(), Waiting { place, answer });
        }
        let _forgotten = Forgotten {
            tunnels: self,
            tunnel_id: &tunnel_id,
        };
        match timeout(Duration::from_secs(TUNNEL_SECONDS), answered).await {
            Ok(Ok(Ok(stream))) => Ok(stream),
            Ok(Ok(Err(reason))) => Err(TunnelError::Refused(reason)),
            Ok(Err(_)) | Err(_) => Err(TunnelError::Slow(place.clone())),
        }
    }

    /// Has the supervisor of a container of an agent report to the master what its processes do. That it was asked is all
    /// that follows from this.
    ///
    /// # Errors
    /// The agent is away, or takes no request at this moment.
    pub fn diagnose(&self, place: &PlaceId, container_id: &ContainerId) -> Result<(), TunnelError> {
        let container_id = container_id.clone();
        self.lock().ask(place, ToAgent::Diagnose { container_id })
    }

    /// The agent that a tunnel is to come from; `None` = nobody waits for it.
    pub fn expected_from(&self, tunnel_id: &str) -> Option<PlaceId> {
        let inner = self.lock();
        inner.waiting.get(tunnel_id).map(|w| w.place.clone())
    }

    /// Hands a tunnel, or the agent's reason why there is none, to who waits for it; `false` = nobody does any more.
    pub fn opened(&self, tunnel_id: &str, tunnel: Result<TunnelStream, String>) -> bool {
        let waiting = self.lock().waiting.remove(tunnel_id);
        waiting.is_some_and(|waiting| waiting.answer.send(tunnel).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_to_dial_goes_to_the_newest_connection_and_its_failure_comes_back() {
        let (tunnels, place) = (Tunnels::default(), PlaceId::from("a"));
        let container = ContainerId::from("c");
        let open = |id: &str| {
            let (tunnels, place, container) = (tunnels.clone(), place.clone(), container.clone());
            let id = id.to_owned();
            async move { tunnels.open(&place, &container, 80, id).await.map(|_| ()) }
        };
        let away = Err(TunnelError::NotConnected(place.clone()));
        assert_eq!(open("t1").await, away);
        let older = tunnels.asks_of(&place);
        let mut newer = tunnels.asks_of(&place);
        drop(older);
        let agent = async {
            let ToAgent::Dial(dial) = newer.next().await else {
                panic!("it was asked to dial");
            };
            assert_eq!(tunnels.expected_from(&dial.tunnel_id), Some(place.clone()));
            assert!(tunnels.opened(&dial.tunnel_id, Err("nothing listens".into())));
            assert!(!tunnels.opened(&dial.tunnel_id, Err("again".into())));
        };
        let (answer, ()) = tokio::join!(open("t2"), agent);
        assert_eq!(answer, Err(TunnelError::Refused("nothing listens".into())));
        assert!(tunnels.lock().waiting.is_empty());
        tunnels.diagnose(&place, &container).unwrap();
        let container_id = container.clone();
        assert_eq!(newer.next().await, ToAgent::Diagnose { container_id });
        drop(newer);
        assert_eq!(open("t3").await, away);
    }
}
