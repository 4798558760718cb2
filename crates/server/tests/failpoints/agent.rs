//! An agent that runs nothing but reports that it does, keeps what it holds, and comes back whenever the master does.

use std::collections::BTreeMap;
use std::time::Duration;

use det_agent_proto::{
    ContainerReport, ContainerState, Hello, JOIN_TOKEN_HEADER, PATH, PROTOCOL_VERSION, ToAgent,
    ToMaster,
};
use det_ids::{AgentId, SlotId};
use det_taskspec::{ContainerExit, ContainerSpec, Device, DeviceKind};
use futures::{SinkExt as _, StreamExt as _};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

use crate::master::AGENT_TOKEN;

/// A container as the agent has it.
#[derive(Debug, Clone)]
pub(crate) struct HeldContainer {
    pub(crate) spec: ContainerSpec,
    pub(crate) state: ContainerState,
    /// How often its start was ordered; more than once is fine, it runs once.
    pub(crate) orders: u32,
}

type Containers = BTreeMap<String, HeldContainer>;

/// The agent, with one slot.
pub(crate) struct Agent {
    held: watch::Sender<Containers>,
    reports: mpsc::UnboundedSender<ContainerReport>,
    task: JoinHandle<()>,
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn terminated(exit: ContainerExit) -> ContainerState {
    ContainerState::Terminated { exit, cause: None }
}

impl Agent {
    pub(crate) fn start(id: &str, port: u16) -> Self {
        let held = watch::Sender::new(Containers::new());
        let (reports, inbox) = mpsc::unbounded_channel();
        let task = tokio::spawn(keep(id.to_owned(), port, held.clone(), inbox));
        Self {
            held,
            reports,
            task,
        }
    }

    pub(crate) fn held(&self) -> Containers {
        self.held.borrow().clone()
    }

    /// The task's process ends with this code.
    pub(crate) fn exits(&self, container: &str, code: i32) {
        let mut report = None;
        self.held.send_if_modified(|held| {
            let Some(one) = held.get_mut(container) else {
                return false;
            };
            if !matches!(one.state, ContainerState::Running { .. }) {
                return false;
            }
            one.state = terminated(ContainerExit::Exited { code });
            report = Some(report_of(one));
            true
        });
        if let Some(report) = report {
            // Without a connection it is in the next greeting.
            let _ = self.reports.send(report);
        }
    }
}

fn report_of(held: &HeldContainer) -> ContainerReport {
    ContainerReport {
        container_id: held.spec.container_id.clone(),
        allocation_id: held.spec.allocation_id.clone(),
        state: held.state.clone(),
    }
}

/// Keeps the connection; ends with its owner.
async fn keep(
    id: String,
    port: u16,
    held: watch::Sender<Containers>,
    mut inbox: mpsc::UnboundedReceiver<ContainerReport>,
) {
    loop {
        // An end is a matter of every run of this test.
        let _ = serve(&id, port, &held, &mut inbox).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn serve(
    id: &str,
    port: u16,
    held: &watch::Sender<Containers>,
    inbox: &mut mpsc::UnboundedReceiver<ContainerReport>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut request = format!("ws://127.0.0.1:{port}{PATH}").into_client_request()?;
    let headers = request.headers_mut();
    headers.insert("Authorization", format!("Bearer made by {id}").parse()?);
    headers.insert(JOIN_TOKEN_HEADER, AGENT_TOKEN.parse()?);
    let (mut socket, _) = Box::pin(tokio_tungstenite::connect_async(request)).await?;
    while inbox.try_recv().is_ok() {}
    let hello = ToMaster::Hello(Hello {
        protocol: PROTOCOL_VERSION,
        agent_id: AgentId(id.to_owned()),
        instance_id: format!("instance of {id}").into(),
        version: "0.0.0-test".into(),
        resource_pool: "default".into(),
        addresses: vec!["127.0.0.1".into()],
        devices: vec![Device {
            id: SlotId(0),
            brand: "Test CPU".into(),
            uuid: format!("{id}-0"),
            kind: DeviceKind::Cpu,
        }],
        runtime: "process".into(),
        containers: held.borrow().values().map(report_of).collect(),
        tunnel_endpoint: None,
    });
    socket
        .send(Message::text(serde_json::to_string(&hello)?))
        .await?;
    loop {
        let report = tokio::select! {
            report = inbox.recv() => report,
            message = socket.next() => {
                let Some(message) = message else {
                    return Ok(());
                };
                let Message::Text(text) = message? else {
                    continue;
                };
                follow(held, serde_json::from_str(&text)?)
            }
        };
        if let Some(report) = report {
            let text = serde_json::to_string(&ToMaster::Container(report))?;
            socket.send(Message::text(text)).await?;
        }
    }
}

/// Follows an order of the master; returns what is to be reported.
fn follow(held: &watch::Sender<Containers>, order: ToAgent) -> Option<ContainerReport> {
    let mut report = None;
    held.send_modify(|held| match order {
        ToAgent::Start(spec) => {
            let id = spec.container_id.0.clone();
            let one = held.entry(id).or_insert_with(|| HeldContainer {
                spec: *spec,
                state: ContainerState::Running {
                    host_address: "127.0.0.1".into(),
                    ports: vec![(1734, 41_734)],
                    runtime_id: "4711".into(),
                },
                orders: 0,
            });
            one.orders += 1;
            report = Some(report_of(one));
        }
        ToAgent::Kill { container_id, .. } => {
            if let Some(one) = held.get_mut(&container_id.0) {
                if !matches!(one.state, ContainerState::Terminated { .. }) {
                    one.state = terminated(ContainerExit::Killed);
                }
                report = Some(report_of(one));
            }
        }
        ToAgent::Forget { container_id } => {
            held.remove(&container_id.0);
        }
        // No client connects to its services.
        ToAgent::Welcome(_)
        | ToAgent::Refused { .. }
        | ToAgent::Dial(_)
        | ToAgent::Diagnose { .. } => {}
    });
    report
}
