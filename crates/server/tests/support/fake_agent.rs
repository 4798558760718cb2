//! An agent that runs nothing, over the real protocol.

use det_agent_proto::{
    ContainerReport, ContainerState, Hello, JOIN_TOKEN_HEADER, PATH, PROTOCOL_VERSION, ToAgent,
    ToMaster,
};
use det_ids::{AgentId, SlotId};
use det_taskspec::{ContainerExit, ContainerSpec, Device, DeviceKind};
use futures::{SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use super::{Cluster, within};

/// What a fake agent shows.
#[derive(Clone, Default)]
pub(crate) struct Tokens {
    /// The token that the agent made for itself; `None` = it shows none.
    pub(crate) own: Option<String>,
    /// The one that all join with.
    pub(crate) join: Option<String>,
}

/// The token that a fake agent makes for itself.
pub(crate) fn own_token(agent_id: &str) -> String {
    format!("made by {agent_id}")
}

/// An agent that runs nothing but reports that it does.
pub(crate) struct FakeAgent {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
}

impl FakeAgent {
    pub(super) async fn connect(cluster: &Cluster, id: &str, slots: u32, pool: &str) -> Self {
        let (agent, answer) = Self::send_hello(cluster, id, slots, pool).await;
        match answer {
            ToAgent::Welcome(_) => agent,
            other => panic!("not welcomed: {other:?}"),
        }
    }

    /// Connects; gives the master's answer.
    pub(super) async fn send_hello(
        cluster: &Cluster,
        id: &str,
        slots: u32,
        pool: &str,
    ) -> (Self, ToAgent) {
        let tokens = Tokens {
            own: Some(own_token(id)),
            join: Some(cluster.agent_token().to_owned()),
        };
        let hello = Self::send_hello_with(cluster, tokens, id, slots, pool);
        hello.await.unwrap()
    }

    /// The same with these tokens; the status where no connection is opened.
    pub(crate) async fn send_hello_with(
        cluster: &Cluster,
        tokens: Tokens,
        id: &str,
        slots: u32,
        pool: &str,
    ) -> Result<(Self, ToAgent), u16> {
        Self::send_hello_holding(cluster, tokens, id, slots, pool, Vec::new()).await
    }

    /// Connects again, with these containers.
    pub(crate) async fn back(
        cluster: &Cluster,
        id: &str,
        slots: u32,
        pool: &str,
        containers: Vec<ContainerReport>,
    ) -> Self {
        let tokens = Tokens {
            own: Some(own_token(id)),
            join: None,
        };
        let hello = Self::send_hello_holding(cluster, tokens, id, slots, pool, containers);
        match hello.await.unwrap() {
            (agent, ToAgent::Welcome(_)) => agent,
            (_, other) => panic!("not welcomed: {other:?}"),
        }
    }

    async fn send_hello_holding(
        cluster: &Cluster,
        tokens: Tokens,
        id: &str,
        slots: u32,
        pool: &str,
        containers: Vec<ContainerReport>,
    ) -> Result<(Self, ToAgent), u16> {
        let mut request = format!("ws://{}{PATH}", cluster.running.address)
            .into_client_request()
            .unwrap();
        let headers = request.headers_mut();
        if let Some(own) = tokens.own {
            headers.insert("Authorization", format!("Bearer {own}").parse().unwrap());
        }
        if let Some(join) = tokens.join {
            headers.insert(JOIN_TOKEN_HEADER, join.parse().unwrap());
        }
        let connection = Box::pin(tokio_tungstenite::connect_async(request));
        let socket = match within("an agent's connection", connection).await {
            Ok((socket, _)) => socket,
            Err(Error::Http(response)) => return Err(response.status().as_u16()),
            Err(error) => panic!("{error}"),
        };
        let mut agent = Self { socket };
        let devices = (0..slots)
            .map(|n| Device {
                id: SlotId(n),
                brand: "Test CPU".into(),
                uuid: format!("{id}-{n}"),
                kind: DeviceKind::Cpu,
            })
            .collect();
        agent
            .send(&ToMaster::Hello(Hello {
                protocol: PROTOCOL_VERSION,
                agent_id: AgentId(id.to_owned()),
                instance_id: format!("instance of {id}").into(),
                version: "0.0.0-test".into(),
                resource_pool: pool.into(),
                // The host of an agent `NAME-on-ADDRESS` has that address.
                addresses: vec![
                    id.split_once("-on-")
                        .map_or("127.0.0.1", |(_, at)| at)
                        .into(),
                ],
                devices,
                // One of the name `docker-…` runs containers.
                runtime: if id.starts_with("docker-") {
                    "docker".into()
                } else {
                    "process".into()
                },
                containers,
                tunnel_endpoint: None,
            }))
            .await;
        let answer = agent.receive().await;
        Ok((agent, answer))
    }

    /// Waits until the master ends the connection.
    pub(crate) async fn cut(mut self) {
        within("the end of an agent's connection", async {
            while let Some(Ok(message)) = self.socket.next().await {
                if matches!(message, Message::Close(_)) {
                    break;
                }
            }
        })
        .await;
    }

    pub(crate) async fn send(&mut self, message: &ToMaster) {
        self.socket
            .send(Message::text(serde_json::to_string(message).unwrap()))
            .await
            .unwrap();
    }

    /// The next order of the master.
    pub(crate) async fn receive(&mut self) -> ToAgent {
        within("an order to an agent", async {
            loop {
                if let Message::Text(text) = self.socket.next().await.unwrap().unwrap() {
                    return serde_json::from_str(&text).unwrap();
                }
            }
        })
        .await
    }

    /// The next container to start.
    pub(crate) async fn next_start(&mut self) -> ContainerSpec {
        match self.receive().await {
            ToAgent::Start(spec) => *spec,
            other => panic!("expected a start, received {other:?}"),
        }
    }

    /// Waits for the order to forget a container.
    pub(crate) async fn forgets(&mut self, spec: &ContainerSpec) {
        match self.receive().await {
            ToAgent::Forget { container_id } => assert_eq!(container_id, spec.container_id),
            other => panic!("expected to forget, received {other:?}"),
        }
    }

    /// Waits for the order to end a container.
    pub(crate) async fn next_kill(&mut self) -> bool {
        match self.receive().await {
            ToAgent::Kill { grace, .. } => grace,
            other => panic!("expected an end, received {other:?}"),
        }
    }

    /// Reports the state of a container.
    pub(crate) async fn report(&mut self, spec: &ContainerSpec, state: ContainerState) {
        let report = ContainerReport {
            container_id: spec.container_id.clone(),
            allocation_id: spec.allocation_id.clone(),
            state,
        };
        self.send(&ToMaster::Container(report)).await;
    }

    /// Reports that a container runs.
    pub(crate) async fn runs(&mut self, spec: &ContainerSpec) {
        let state = ContainerState::Running {
            host_address: "127.0.0.1".into(),
            ports: vec![(1734, 41_734)],
            runtime_id: "4711".into(),
        };
        self.report(spec, state).await;
    }

    /// Reports that a container has ended with this code.
    pub(crate) async fn exits(&mut self, spec: &ContainerSpec, code: i32) {
        self.report(
            spec,
            ContainerState::Terminated {
                exit: ContainerExit::Exited { code },
                cause: None,
            },
        )
        .await;
    }
}
