//! The contract of a resource manager, for the one of agents: over real connections of agents that run nothing.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::net::SocketAddr;

use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use det_agent_proto::{
    AgentLog, ContainerReport, ContainerState, DevicesReport, Hello, HostReport, PATH,
    PROTOCOL_VERSION, ToAgent, ToMaster, Welcome,
};
use det_ids::{AgentId, ContainerId, SlotId, TaskId};
use det_lifecycle::container::ObservedState;
use det_rm::{Capacity, JoinedPlace, PlaceDetails};
use det_rm_agents::{Dialect, NotAdmitted, Refusal, Registry, Tunnels, routes};
use det_rm_contract::{StartOrder, Subject, TestCore, Unavailable, within};
use det_taskspec::{Device, DeviceKind};
use futures::{SinkExt as _, StreamExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};
use tokio_util::sync::CancellationToken;

det_rm_contract::contract!(Agents);

/// A master that admits every agent.
#[derive(Clone)]
struct EveryAgent(TestCore);

impl Registry for EveryAgent {
    type Core = TestCore;
    type Credential = ();

    fn core(&self) -> &TestCore {
        &self.0
    }

    async fn credential(
        &self,
        _own: Option<String>,
        _join: Option<&str>,
    ) -> Result<(), Unavailable> {
        Ok(())
    }

    async fn require_token_of(
        &self,
        _agent: &AgentId,
        _own: Option<String>,
    ) -> Result<(), Unavailable> {
        Ok(())
    }

    fn check(&self, _hello: &Hello) -> Result<(), String> {
        Ok(())
    }

    async fn admit(
        &self,
        _agent: &AgentId,
        _credential: &(),
    ) -> Result<Result<(), NotAdmitted>, Unavailable> {
        Ok(Ok(()))
    }

    async fn remove_changed(&self, _hello: &Hello) -> Result<Option<String>, Unavailable> {
        Ok(None)
    }

    async fn joined(&self, hello: Hello, _credential: &()) -> Result<(), Unavailable> {
        let containers = hello.containers.into_iter();
        self.0.join(JoinedPlace {
            place: hello.agent_id.into(),
            resource_pool: hello.resource_pool,
            capacity: Capacity::Devices(hello.devices),
            instance: hello.instance_id,
            containers: containers
                .map(|report| (report.container_id, report.state.into()))
                .collect(),
            details: PlaceDetails::default(),
        });
        Ok(())
    }

    async fn logged(&self, _agent: &AgentId, _log: AgentLog) -> Result<(), Unavailable> {
        Ok(())
    }

    async fn devices(&self, _agent: &AgentId, _report: DevicesReport) -> Result<(), Unavailable> {
        Ok(())
    }

    async fn host(&self, _agent: &AgentId, _report: HostReport) -> Result<(), Unavailable> {
        Ok(())
    }

    fn left_later(&self) {}

    fn welcome(&self) -> Welcome {
        Welcome {
            protocol: PROTOCOL_VERSION,
            version: "test".to_owned(),
            cluster_id: "cluster".into(),
            master_id: "master".into(),
        }
    }
}

/// The addresses of the manager, served until it is stopped.
struct ServedManager {
    address: SocketAddr,
    shutdown: CancellationToken,
    serving: JoinHandle<()>,
}

impl ServedManager {
    async fn start(core: TestCore) -> Self {
        let shutdown = CancellationToken::new();
        let dialect = Dialect {
            own_token: |_| None,
            refuse: |refusal: Refusal<Unavailable>| {
                (StatusCode::BAD_REQUEST, format!("{refusal:?}")).into_response()
            },
        };
        let tunnels = Tunnels::new(|| unreachable!("nothing dials"));
        let router = routes(EveryAgent(core), tunnels, shutdown.clone(), dialect);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let ended = shutdown.clone().cancelled_owned();
        let serving = tokio::spawn(async move {
            let served = axum::serve(listener, router).with_graceful_shutdown(ended);
            served.await.unwrap();
        });
        Self {
            address,
            shutdown,
            serving,
        }
    }

    async fn stop(self) {
        self.shutdown.cancel();
        within("the end of the manager", self.serving)
            .await
            .unwrap();
    }
}

/// The manager of agents, with agents that run nothing.
struct Agents {
    core: TestCore,
    served: Option<ServedManager>,
    agents: BTreeMap<String, Agent>,
}

#[derive(Default)]
struct Agent {
    slots: u32,
    socket: Option<WebSocketStream<MaybeTlsStream<TcpStream>>>,
    held: BTreeMap<ContainerId, ObservedState>,
}

fn report(container_id: &ContainerId, observed: ObservedState) -> ContainerReport {
    ContainerReport {
        container_id: container_id.clone(),
        allocation_id: TaskId::from("task").allocation(1),
        state: match observed {
            ObservedState::Assigned => ContainerState::Assigned,
            ObservedState::Pulling => ContainerState::Pulling,
            ObservedState::Starting => ContainerState::Starting,
            ObservedState::Running {
                host_address,
                ports,
                runtime_id,
            } => ContainerState::Running {
                host_address,
                ports,
                runtime_id,
            },
            ObservedState::Terminated { exit, cause } => ContainerState::Terminated { exit, cause },
        },
    }
}

impl Agent {
    async fn connect(&mut self, id: &str, address: SocketAddr) {
        let (mut socket, _) = connect_async(format!("ws://{address}{PATH}"))
            .await
            .unwrap();
        let device = |number| Device {
            id: SlotId(number),
            brand: "Test".to_owned(),
            uuid: format!("{id}-{number}"),
            kind: DeviceKind::Cpu,
        };
        let held = self.held.iter();
        let hello = ToMaster::Hello(Hello {
            protocol: PROTOCOL_VERSION,
            agent_id: AgentId::from(id),
            instance_id: format!("instance of {id}").into(),
            version: "test".to_owned(),
            resource_pool: "default".to_owned(),
            addresses: vec!["127.0.0.1".to_owned()],
            devices: (0..self.slots).map(device).collect(),
            runtime: "process".to_owned(),
            containers: held.map(|(id, seen)| report(id, seen.clone())).collect(),
            tunnel_endpoint: None,
        });
        let text = serde_json::to_string(&hello).unwrap();
        socket.send(Message::text(text)).await.unwrap();
        self.socket = Some(socket);
        match self.receive().await {
            ToAgent::Welcome(_) => {}
            other => panic!("agent {id} is not welcome: {other:?}"),
        }
    }

    async fn receive(&mut self) -> ToAgent {
        let socket = self.socket.as_mut().expect("the agent is connected");
        within("an order to an agent", async {
            loop {
                match socket.next().await.unwrap().unwrap() {
                    Message::Text(text) => return serde_json::from_str(&text).unwrap(),
                    Message::Ping(_) | Message::Pong(_) => {}
                    other => panic!("expected an order, found {other:?}"),
                }
            }
        })
        .await
    }
}

impl Agents {
    fn agent(&mut self, place: &str) -> &mut Agent {
        self.agents.entry(place.to_owned()).or_default()
    }

    fn address(&self) -> SocketAddr {
        self.served.as_ref().expect("the manager runs").address
    }
}

impl Subject for Agents {
    const NAMED: bool = true;

    async fn start(core: TestCore) -> Self {
        Self {
            served: Some(ServedManager::start(core.clone()).await),
            core,
            agents: BTreeMap::new(),
        }
    }

    async fn restart(&mut self) {
        let connected = self.agents.iter().filter(|(_, it)| it.socket.is_some());
        let connected: Vec<String> = connected.map(|(place, _)| place.clone()).collect();
        for agent in self.agents.values_mut() {
            agent.socket = None;
        }
        self.served.take().expect("the manager runs").stop().await;
        self.served = Some(ServedManager::start(self.core.clone()).await);
        for place in connected {
            self.returns(&place).await;
        }
    }

    async fn appears(&mut self, place: &str, slots: u32) {
        self.agent(place).slots = slots;
        self.returns(place).await;
    }

    async fn leaves(&mut self, place: &str) {
        self.agent(place).socket = None;
    }

    async fn returns(&mut self, place: &str) {
        let address = self.address();
        self.agent(place).connect(place, address).await;
    }

    async fn next_start(&mut self, place: &str) -> StartOrder {
        match self.agent(place).receive().await {
            ToAgent::Start(spec) => {
                let id = spec.container_id.clone();
                self.observes(place, &id, ObservedState::Assigned).await;
                (*spec).into()
            }
            other => panic!("agent {place}: expected a start, found {other:?}"),
        }
    }

    async fn next_end(&mut self, place: &str, container: &ContainerId) -> bool {
        match self.agent(place).receive().await {
            ToAgent::Kill {
                container_id,
                grace,
            } if container_id == *container => grace,
            other => panic!("agent {place}: expected the end of {container}, found {other:?}"),
        }
    }

    async fn next_forget(&mut self, place: &str, container: &ContainerId) {
        match self.agent(place).receive().await {
            ToAgent::Forget { container_id } if container_id == *container => {
                self.agent(place).held.remove(container);
            }
            other => panic!("agent {place}: expected to forget {container}, found {other:?}"),
        }
    }

    async fn observes(&mut self, place: &str, container: &ContainerId, observed: ObservedState) {
        let agent = self.agent(place);
        agent.held.insert(container.clone(), observed.clone());
        if let Some(socket) = &mut agent.socket {
            let message = ToMaster::Container(report(container, observed));
            let text = serde_json::to_string(&message).unwrap();
            socket.send(Message::text(text)).await.unwrap();
        }
    }

    async fn loses(&mut self, place: &str, container: &ContainerId) {
        self.agent(place).held.remove(container);
    }
}
