//! One agent's connection, from its first message to its end.

use std::time::Duration;

use axum::extract::ws::{Message, WebSocket};
use det_agent_proto::{
    AfterRefusal, ContainerReport, Hello, PING_SECONDS, SILENCE_SECONDS, ToAgent, ToMaster,
};
use det_failpoints::failpoint;
use det_ids::{AgentId, PlaceId};
use det_rm::{Changes as _, ContainerStart, Core as _, Lease as _, Order, PlaceView};
use futures::FutureExt as _;
use tokio::time::{Instant, timeout, timeout_at};

use tokio_util::sync::CancellationToken;

use crate::registry::ErrorOf;
use crate::tunnels::Asks;
use crate::{NotAdmitted, Registry, Tunnels};

/// Most reports stored in one transaction.
const REPORTS_AT_ONCE: usize = 256;
/// An order to end a container is repeated when the agent has not reported its end for this long.
const REPEAT_END: Duration = Duration::from_secs(30);

/// Serves an agent until its connection ends, or the master stops (`shutdown`).
pub(crate) async fn serve<R: Registry>(
    registry: R,
    tunnels: Tunnels,
    credential: R::Credential,
    shutdown: CancellationToken,
    mut socket: WebSocket,
) {
    let mut hello = match first_message(&mut socket).await {
        Ok(Some(hello)) => hello,
        Ok(None) => {
            tracing::debug!("a connection to the agents' port ended before the first message");
            return;
        }
        Err(reason) => {
            tracing::warn!(reason, "a connection to the agents' port was refused");
            refuse(&mut socket, reason, AfterRefusal::End).await;
            return;
        }
    };
    let agent_id = hello.agent_id.clone();
    let place = PlaceId::from(agent_id.clone());
    if let Err((reason, then)) = admit(&registry, &hello, &credential).await {
        // A master that stops has closed its store.
        if !shutdown.is_cancelled() {
            tracing::warn!(agent.id = agent_id.as_str(), reason, "an agent was refused");
        }
        refuse(&mut socket, reason, then).await;
        return;
    }
    let Some(lease) = registry.core().take(&place, &hello.instance_id) else {
        let reason = format!(
            "another agent with the id \"{agent_id}\" is connected; give this one another with --agent-id"
        );
        refuse(&mut socket, reason, AfterRefusal::Retry).await;
        return;
    };
    // Registered first: a caller that is not this agent must not remove what is known of it.
    match registry.remove_changed(&hello).await {
        Ok(None) => {}
        Ok(Some(reason)) => {
            tracing::warn!(
                agent.id = agent_id.as_str(),
                reason,
                "an agent that has changed was refused"
            );
            registry.core().give_back(&lease);
            refuse(&mut socket, reason, AfterRefusal::Rejoin).await;
            return;
        }
        Err(error) => {
            if !shutdown.is_cancelled() {
                tracing::warn!(agent.id = agent_id.as_str(), %error, "what is known of an agent cannot be read");
            }
            registry.core().give_back(&lease);
            return;
        }
    }
    let mut connection = Connection {
        registry: registry.clone(),
        place: place.clone(),
        agent_id: agent_id.clone(),
        credential,
        socket,
        view: PlaceView::default(),
        asks: tunnels.asks_of(&place, hello.tunnel_endpoint.take()),
    };
    let outcome = tokio::select! {
        outcome = connection.run(hello) => outcome,
        () = lease.lost() => Ok("a newer connection of the same agent took over, or its token was revoked"),
        () = shutdown.cancelled() => Ok("the master is stopping"),
    };
    match outcome {
        Ok(reason) => tracing::info!(agent.id = agent_id.as_str(), reason, "agent disconnected"),
        Err(_) if shutdown.is_cancelled() => {}
        Err(error) => {
            tracing::warn!(agent.id = agent_id.as_str(), %error, cause = ?std::error::Error::source(&error), "agent disconnected after an error");
        }
    }
    // Before its end is stored: who reads that asks nothing more of it.
    drop(connection);
    if let Err(error) = registry.core().left(&place, &lease).await
        // The next start notes that every agent is away.
        && !shutdown.is_cancelled()
    {
        tracing::warn!(agent.id = agent_id.as_str(), %error, "the end of the connection could not be stored; it is tried again");
        registry.left_later();
    }
}

/// `None` when the connection has ended: an agent that stops at once, or loses its way to the master.
async fn first_message(socket: &mut WebSocket) -> Result<Option<Hello>, String> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match timeout_at(deadline, socket.recv()).await {
            Err(_) => return Err("no first message within ten seconds".into()),
            Ok(None | Some(Err(_) | Ok(Message::Close(_)))) => return Ok(None),
            Ok(Some(Ok(Message::Text(text)))) => {
                return match serde_json::from_str(&text) {
                    Ok(ToMaster::Hello(hello)) => Ok(Some(hello)),
                    Ok(_) => Err("the first message must be \"hello\"".into()),
                    Err(error) => Err(format!("the first message cannot be read: {error}")),
                };
            }
            Ok(Some(Ok(Message::Ping(_) | Message::Pong(_)))) => {}
            Ok(Some(Ok(_))) => return Err("the first message must be a text".into()),
        }
    }
}

/// Decides whether an agent that has sent its hello may join; else the reason, and what it is to do.
async fn admit<R: Registry>(
    registry: &R,
    hello: &Hello,
    credential: &R::Credential,
) -> Result<(), (String, AfterRefusal)> {
    registry
        .check(hello)
        .map_err(|reason| (reason, AfterRefusal::End))?;
    match registry.admit(&hello.agent_id, credential).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(NotAdmitted::Yet(reason))) => Err((reason, AfterRefusal::Retry)),
        Ok(Err(NotAdmitted::Stranger(reason))) => Err((reason, AfterRefusal::End)),
        Ok(Err(NotAdmitted::Revoked(reason))) => Err((reason, AfterRefusal::EndTasks)),
        Err(error) => Err((
            format!("the master cannot read its agents' tokens now: {error}"),
            AfterRefusal::Retry,
        )),
    }
}

async fn refuse(socket: &mut WebSocket, reason: String, then: AfterRefusal) {
    if let Ok(text) = serde_json::to_string(&ToAgent::Refused { reason, then }) {
        // The agent may be gone already; nothing is lost by that.
        let _ = socket.send(Message::Text(text.into())).await;
        let _ = socket.send(Message::Close(None)).await;
    }
}

struct Connection<R: Registry> {
    registry: R,
    place: PlaceId,
    agent_id: AgentId,
    credential: R::Credential,
    socket: WebSocket,
    view: PlaceView,
    asks: Asks,
}

/// Why a connection ended, for the log.
type EndReason = &'static str;

impl<R: Registry> Connection<R> {
    async fn run(&mut self, hello: Hello) -> Result<EndReason, ErrorOf<R>> {
        let mut changes = self.registry.core().changes(&self.place);
        for report in &hello.containers {
            let state = report.state.clone().into();
            self.view.received(&report.container_id, state);
        }
        self.registry.joined(hello, &self.credential).await?;
        let welcome = ToAgent::Welcome(self.registry.welcome());
        if !self.send(&welcome).await {
            return Ok("the connection ended");
        }
        let mut last_received = Instant::now();
        let mut ping = tokio::time::interval(Duration::from_secs(PING_SECONDS));
        let mut repeat = tokio::time::interval(REPEAT_END);
        repeat.reset();
        loop {
            if !self.reconcile().await? {
                return Ok("the connection ended");
            }
            tokio::select! {
                () = changes.changed() => {}
                ask = self.asks.next() => {
                    if !self.send(&ask).await {
                        return Ok("the connection ended");
                    }
                }
                _ = repeat.tick() => {
                    self.view.repeat_ends();
                }
                _ = ping.tick() => {
                    if last_received.elapsed() > Duration::from_secs(SILENCE_SECONDS) {
                        return Ok("nothing was received from it for too long");
                    }
                    if !self.send_frame(Message::Ping(Vec::new().into())).await {
                        return Ok("the connection ended");
                    }
                }
                message = self.socket.recv() => {
                    last_received = Instant::now();
                    match message {
                        None | Some(Err(_)) => return Ok("the connection ended"),
                        Some(Ok(Message::Close(_))) => return Ok("it closed the connection"),
                        Some(Ok(Message::Text(text))) => {
                            if let Some(reason) = self.on_messages(&text).await? {
                                return Ok(reason);
                            }
                        }
                        Some(Ok(_)) => {}
                    }
                }
            }
        }
    }

    /// Ingests a message and those that have come behind it, and stores what they report in one transaction. Gives
    /// why the connection has ended, if it has.
    async fn on_messages(&mut self, first: &str) -> Result<Option<EndReason>, ErrorOf<R>> {
        let mut reports = Vec::new();
        self.on_message(first, &mut reports).await?;
        let mut ended = None;
        while reports.len() < REPORTS_AT_ONCE {
            match self.socket.recv().now_or_never() {
                None => break,
                Some(Some(Ok(Message::Text(text)))) => self.on_message(&text, &mut reports).await?,
                Some(Some(Ok(Message::Close(_)))) => {
                    ended = Some("it closed the connection");
                    break;
                }
                Some(Some(Ok(_))) => {}
                Some(None | Some(Err(_))) => {
                    ended = Some("the connection ended");
                    break;
                }
            }
        }
        self.store(&mut reports).await?;
        Ok(ended)
    }

    async fn store(&mut self, reports: &mut Vec<ContainerReport>) -> Result<(), ErrorOf<R>> {
        if reports.is_empty() {
            return Ok(());
        }
        let observed = std::mem::take(reports).into_iter();
        let observed = observed.map(|report| (report.container_id, report.state.into()));
        self.registry
            .core()
            .observed(&self.place, observed.collect())
            .await
    }

    async fn on_message(
        &mut self,
        text: &str,
        reports: &mut Vec<ContainerReport>,
    ) -> Result<(), ErrorOf<R>> {
        match serde_json::from_str(text) {
            Ok(ToMaster::Container(report)) => {
                let state = report.state.clone().into();
                self.view.received(&report.container_id, state);
                reports.push(report);
                Ok(())
            }
            Ok(ToMaster::Log(log)) => {
                // What was reported before the lines were printed is before them in the log.
                self.store(reports).await?;
                self.registry.logged(&self.agent_id, log).await
            }
            Ok(ToMaster::Devices(report)) => self.registry.devices(&self.agent_id, report).await,
            Ok(ToMaster::Host(report)) => self.registry.host(&self.agent_id, report).await,
            Ok(ToMaster::Hello(_)) => {
                tracing::warn!(
                    agent.id = self.agent_id.as_str(),
                    "a second hello on one connection is ignored"
                );
                Ok(())
            }
            Err(error) => {
                tracing::warn!(agent.id = self.agent_id.as_str(), %error, "a message of an unknown kind is ignored");
                Ok(())
            }
        }
    }

    /// Sends what is missing; `false` when the connection is gone.
    async fn reconcile(&mut self) -> Result<bool, ErrorOf<R>> {
        let rows = self.registry.core().desired(&self.place).await?;
        for order in self.view.orders(&rows, None) {
            let message = match &order {
                Order::Start(id) => {
                    // The row may have changed since it was read; then there is nothing to start any more.
                    let start = self.registry.core().specification(&self.place, id);
                    let Some(ContainerStart { spec, .. }) = start.await? else {
                        continue;
                    };
                    failpoint!("rm_agents::connection::start::before_send");
                    ToAgent::Start(Box::new(spec))
                }
                Order::End {
                    container_id,
                    grace,
                } => ToAgent::Kill {
                    container_id: container_id.clone(),
                    grace: *grace,
                },
                Order::NeverStarted(id) => {
                    self.registry.core().never_started(id).await?;
                    continue;
                }
                Order::Forget(id) => {
                    failpoint!("rm_agents::connection::forget::before_send");
                    if self.view.is_live(id) {
                        tracing::info!(
                            agent.id = self.agent_id.as_str(),
                            container.id = id.as_str(),
                            "a container that nothing wants any more is removed"
                        );
                    }
                    ToAgent::Forget {
                        container_id: id.clone(),
                    }
                }
            };
            self.view.sent(&order);
            if !self.send(&message).await {
                return Ok(false);
            }
            if matches!(message, ToAgent::Start(_)) {
                failpoint!("rm_agents::connection::start::after_send");
            }
        }
        Ok(true)
    }

    /// `false` when the connection is gone, or the agent reads nothing for too long.
    async fn send_frame(&mut self, frame: Message) -> bool {
        let sent = timeout(
            Duration::from_secs(SILENCE_SECONDS),
            self.socket.send(frame),
        );
        matches!(sent.await, Ok(Ok(())))
    }

    async fn send(&mut self, message: &ToAgent) -> bool {
        match serde_json::to_string(message) {
            Ok(text) => self.send_frame(Message::Text(text.into())).await,
            Err(error) => {
                tracing::error!(%error, "a message to an agent could not be written");
                false
            }
        }
    }
}
