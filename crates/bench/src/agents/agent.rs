//! One simulated agent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use det_agent_proto::{
    ContainerReport, ContainerState, Hello, JOIN_TOKEN_HEADER, PATH, PROTOCOL_VERSION, ToAgent,
    ToMaster,
};
use det_ids::{AgentId, ContainerId, SlotId};
use det_taskspec::{ContainerExit, ContainerSpec, Device, DeviceKind};
use futures::{SinkExt as _, StreamExt as _};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::http::header::AUTHORIZATION;

use super::Fleet;

type Socket = WebSocketStream<TcpStream>;

/// Pause before another attempt to connect, and half as much again by number, so that not all come at one moment.
const PAUSE: Duration = Duration::from_millis(50);

/// What has become of a simulated task.
enum Turn {
    Running(ContainerId),
    Ended(ContainerId),
}

/// Serves as one agent for as long as the fleet lives.
pub(super) async fn live(fleet: Arc<Fleet>, number: usize, gate: Arc<Semaphore>) {
    let (turns, inbox) = mpsc::unbounded_channel();
    let mut agent = Agent {
        fleet: fleet.clone(),
        id: AgentId(format!("sim-{number:05}")),
        held: BTreeMap::new(),
        turns,
        inbox,
    };
    let mut storms = fleet.storm.subscribe();
    let mut first = true;
    loop {
        // At the start they come one after the other, later all at once.
        let permit = if first {
            gate.acquire().await.ok()
        } else {
            None
        };
        let connected = agent.connect().await;
        drop(permit);
        match connected {
            Ok(mut socket) => {
                first = false;
                fleet.registered();
                tokio::select! {
                    error = agent.serve(&mut socket) => {
                        fleet.note(|tally| tally.registered = tally.registered.saturating_sub(1));
                        if let Err(error) = error {
                            tracing_line(&agent.id, &error);
                        }
                    }
                    // The one who cuts has set the tally.
                    _ = storms.changed() => {}
                }
            }
            Err(_) => {
                let jitter =
                    PAUSE.mul_f64(1.0 + f64::from(u8::try_from(number % 100).unwrap_or(0)) / 200.0);
                tokio::time::sleep(jitter).await;
            }
        }
    }
}

fn tracing_line(agent: &AgentId, error: &anyhow::Error) {
    super::print_line(&serde_json::json!({"agent": agent.as_str(), "lost": format!("{error:#}")}));
}

struct Agent {
    fleet: Arc<Fleet>,
    id: AgentId,
    held: BTreeMap<ContainerId, ContainerReport>,
    turns: mpsc::UnboundedSender<Turn>,
    inbox: mpsc::UnboundedReceiver<Turn>,
}

impl Agent {
    /// Connects, sends the greeting with all that is held, and waits for the welcome.
    async fn connect(&mut self) -> anyhow::Result<Socket> {
        let options = &self.fleet.options;
        let stream = TcpStream::connect(&options.master).await?;
        stream.set_nodelay(true)?;
        let mut request = format!("ws://{}{PATH}", options.master).into_client_request()?;
        let headers = request.headers_mut();
        let own = format!("Bearer made by {}", self.id.as_str());
        headers.insert(AUTHORIZATION, own.parse()?);
        headers.insert(JOIN_TOKEN_HEADER, self.fleet.token.parse()?);
        let (mut socket, _) = tokio_tungstenite::client_async(request, stream).await?;
        let hello = Hello {
            protocol: PROTOCOL_VERSION,
            agent_id: self.id.clone(),
            instance_id: format!("instance of {}", self.id).into(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            resource_pool: options.pool.clone(),
            addresses: vec!["127.0.0.1".to_owned()],
            devices: (0..options.slots)
                .map(|slot| Device {
                    id: SlotId(slot),
                    brand: "simulated".to_owned(),
                    uuid: format!("{}-{slot}", self.id.as_str()),
                    kind: DeviceKind::Cpu,
                })
                .collect(),
            runtime: "process".to_owned(),
            containers: self.held.values().cloned().collect(),
            tunnel_endpoint: None,
        };
        socket.send(text(&ToMaster::Hello(hello))?).await?;
        loop {
            match socket.next().await.context("closed before the welcome")?? {
                Message::Text(text) => match serde_json::from_str(&text)? {
                    ToAgent::Welcome(_) => return Ok(socket),
                    ToAgent::Refused { reason, .. } => bail!("refused: {reason}"),
                    _ => bail!("an order before the welcome"),
                },
                Message::Ping(_) | Message::Pong(_) => {}
                other => bail!("not understood before the welcome: {other:?}"),
            }
        }
    }

    /// Follows orders and reports until the connection ends.
    async fn serve(&mut self, socket: &mut Socket) -> anyhow::Result<()> {
        loop {
            tokio::select! {
                turn = self.inbox.recv() => {
                    if let Some(turn) = turn
                        && let Some(report) = self.take_turn(turn)
                    {
                        socket.feed(text(&ToMaster::Container(report))?).await?;
                    }
                }
                received = socket.next() => match received.context("the master closed the connection")?? {
                    Message::Text(order) => {
                        for report in self.follow(serde_json::from_str(&order)?) {
                            socket.feed(text(&ToMaster::Container(report))?).await?;
                        }
                    }
                    Message::Close(_) => bail!("the master closed the connection"),
                    _ => {}
                },
            }
            // What came meanwhile goes along.
            while let Ok(turn) = self.inbox.try_recv() {
                if let Some(report) = self.take_turn(turn) {
                    socket.feed(text(&ToMaster::Container(report))?).await?;
                }
            }
            socket.flush().await?;
        }
    }

    /// Carries out an order; gives what is to be reported at once.
    fn follow(&mut self, order: ToAgent) -> Vec<ContainerReport> {
        match order {
            ToAgent::Start(spec) => self.start(&spec),
            ToAgent::Kill { container_id, .. } => self
                .end(&container_id, ContainerExit::Killed)
                .into_iter()
                .collect(),
            // Nothing listens in these containers.
            ToAgent::Dial(_) | ToAgent::Diagnose { .. } => Vec::new(),
            ToAgent::Forget { container_id } => {
                if self.held.remove(&container_id).is_some() {
                    self.fleet.note(|tally| {
                        tally.exits += 1;
                        tally.last_exit = Some(Instant::now());
                    });
                }
                Vec::new()
            }
            ToAgent::Welcome(_) | ToAgent::Refused { .. } => Vec::new(),
        }
    }

    fn start(&mut self, spec: &ContainerSpec) -> Vec<ContainerReport> {
        if self.held.contains_key(&spec.container_id) {
            return Vec::new();
        }
        self.fleet.note(|tally| {
            tally.starts += 1;
            tally.first_start.get_or_insert_with(Instant::now);
        });
        let report = |state| ContainerReport {
            container_id: spec.container_id.clone(),
            allocation_id: spec.allocation_id.clone(),
            state,
        };
        self.held
            .insert(spec.container_id.clone(), report(ContainerState::Starting));
        let task = Task::new(spec);
        tokio::spawn(task.run(self.fleet.clone(), self.turns.clone()));
        // What a real agent reports of a container in the process runtime.
        [ContainerState::Assigned, ContainerState::Starting]
            .into_iter()
            .map(report)
            .collect()
    }

    fn take_turn(&mut self, turn: Turn) -> Option<ContainerReport> {
        match turn {
            Turn::Running(id) => {
                let report = self.held.get_mut(&id)?;
                if report.state != ContainerState::Starting {
                    return None;
                }
                report.state = ContainerState::Running {
                    host_address: "127.0.0.1".to_owned(),
                    ports: vec![(1734, 1734)],
                    runtime_id: "1".to_owned(),
                };
                self.fleet.note(|tally| tally.running += 1);
                Some(report.clone())
            }
            Turn::Ended(id) => self.end(&id, ContainerExit::Exited { code: 0 }),
        }
    }

    fn end(&mut self, id: &ContainerId, exit: ContainerExit) -> Option<ContainerReport> {
        let report = self.held.get_mut(id)?;
        if let ContainerState::Terminated { .. } = report.state {
            return None;
        }
        if let ContainerState::Running { .. } = report.state {
            self.fleet
                .note(|tally| tally.running = tally.running.saturating_sub(1));
        }
        report.state = ContainerState::Terminated { exit, cause: None };
        Some(report.clone())
    }
}

/// What a simulated task does.
struct Task {
    container_id: ContainerId,
    allocation_id: String,
    token: String,
    trial_id: String,
    run_id: String,
}

impl Task {
    fn new(spec: &ContainerSpec) -> Self {
        let variable = |name: &str| {
            let env = &spec.script.env;
            let value = env.iter().rev().find(|(known, _)| known == name);
            value.map(|(_, value)| value.clone()).unwrap_or_default()
        };
        Self {
            container_id: spec.container_id.clone(),
            allocation_id: spec.allocation_id.as_str().to_owned(),
            token: spec.script.token.clone(),
            trial_id: variable("DET_TRIAL_ID"),
            run_id: variable("DET_TRIAL_RUN_ID"),
        }
    }

    async fn run(self, fleet: Arc<Fleet>, turns: mpsc::UnboundedSender<Turn>) {
        // The agent lives as long as the fleet; without it nothing needs to be notified.
        let _ = turns.send(Turn::Running(self.container_id.clone()));
        if fleet.options.rendezvous {
            let path = format!(
                "/api/v1/allocations/{}/resources/{}/rendezvous",
                self.allocation_id,
                self.container_id.as_str()
            );
            // A task that was ended meanwhile is refused; its end is under way.
            let _ = fleet.calls.call("GET", &path, &self.token, "").await;
        }
        for step in &fleet.options.report_at {
            let taken = self.report(&fleet, *step).await;
            fleet.note(|tally| match taken {
                Ok(200) => tally.reports += 1,
                Ok(_) | Err(_) => tally.refused_reports += 1,
            });
        }
        if fleet.options.task_millis > 0 {
            tokio::time::sleep(Duration::from_millis(fleet.options.task_millis)).await;
        }
        let _ = turns.send(Turn::Ended(self.container_id));
    }

    async fn report(&self, fleet: &Fleet, step: u64) -> anyhow::Result<u16> {
        // Some number that differs from trial to trial and is the same in every run.
        let trial: u64 = self.trial_id.parse().unwrap_or(0);
        let quality = (trial.wrapping_mul(2_654_435_761) >> 7) % 100_000;
        let body = format!(
            "{{\"group\":\"validation\",\"metrics\":{{\"trialId\":{},\"trialRunId\":{},\"stepsCompleted\":{step},\
             \"metrics\":{{\"avgMetrics\":{{\"loss\":{quality}.5,\"batches\":{step}}}}}}}}}",
            self.trial_id, self.run_id
        );
        let path = format!("/api/v1/trials/{}/metrics", self.trial_id);
        fleet.calls.call("POST", &path, &self.token, &body).await
    }
}

fn text(message: &ToMaster) -> anyhow::Result<Message> {
    Ok(Message::Text(serde_json::to_string(message)?.into()))
}
