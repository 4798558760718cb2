//! Messages between master and agent.
//!
//! The agent opens one WebSocket to the master's `/agents` and sends the first message: [`Hello`], with everything it holds. The
//! master compares that with its rows and answers [`ToAgent`] messages; from then on either side sends changes. A lost
//! message is harmless: the next [`Hello`] contains everything again, and every [`ToAgent`] message may be repeated.
//!
//! Each message is one JSON text frame. Unknown fields are ignored; an unknown kind is reported and ignored.
//! Read [`ToMaster`] and [`ToAgent`] first.

pub mod adoption;

use std::fmt;

use det_ids::{
    AgentId, AllocationId, ClusterId, ContainerId, InstanceId, LogLevel, MasterId, SlotId, TunnelId,
};
use det_lifecycle::container::ObservedState;
use det_taskspec::{ContainerExit, ContainerSpec, Device, ExitCause};
use serde::{Deserialize, Serialize};

/// Version of this protocol. The master refuses an agent with another major version, naming both.
pub const PROTOCOL_VERSION: u32 = 1;
/// Path of the WebSocket on the master.
pub const PATH: &str = "/agents";
/// Header of the request for the WebSocket with the token that all agents of a cluster may join with. The agent's own token
/// is in `Authorization: Bearer`, in every request; an agent that has joined needs no other.
pub const JOIN_TOKEN_HEADER: &str = "det-join-token";
/// Path of the tunnels on the master; the id of the tunnel follows. The agent asks for it with `Upgrade:`
/// [`TUNNEL_PROTOCOL`], and after the answer 101 the connection carries the bytes of the container's port.
pub const TUNNEL_PATH: &str = "/agents/tunnels";
/// What a request for a tunnel asks to be upgraded to.
pub const TUNNEL_PROTOCOL: &str = "det-tunnel";
/// Header of a request for a tunnel with the reason why there is none: the agent could not reach the port.
pub const TUNNEL_ERROR_HEADER: &str = "det-tunnel-error";
/// Name in the certificate of [`TunnelEndpoint`], of whatever host.
pub const TUNNEL_SERVER_NAME: &str = "det-agent";
/// Seconds within which a tunnel is open, or given up.
pub const TUNNEL_SECONDS: u64 = 10;
/// Seconds after which a side that has sent nothing sends a WebSocket ping.
pub const PING_SECONDS: u64 = 10;
/// Seconds after which a side that has received nothing closes the connection.
pub const SILENCE_SECONDS: u64 = 35;

/// A message from an agent to the master.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ToMaster {
    /// First message of a connection.
    Hello(Hello),
    /// The state of a container has changed.
    Container(ContainerReport),
    /// Lines of the agent itself for a task's log (image pull progress, start errors); source `agent`.
    Log(AgentLog),
    /// How much its devices are used, and whether they are well: all that it watches, once after each [`Hello`] and
    /// whenever that has changed. Masters that do not know this message ignore it.
    Devices(DevicesReport),
    /// Whether its host can start containers: once after each [`Hello`], as soon as it has looked, and whenever that has
    /// changed. Masters that do not know this message ignore it.
    Host(HostReport),
}

/// Whether the host of an agent can start containers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostReport {
    /// What keeps it from starting any, in a few words for users. `None` = it can start them.
    pub fault: Option<String>,
}

/// All devices that an agent watches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DevicesReport {
    /// In the order of their slots. A device that is missing is not watched.
    pub devices: Vec<DeviceReport>,
}

/// One device that is a slot. What the device or its driver does not count is `None`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// Number of the slot that the device is.
    pub slot: SlotId,
    /// How much of the time it was in use lately, per cent.
    #[serde(default)]
    pub used_percent: Option<u32>,
    /// Bytes of its memory that are in use.
    #[serde(default)]
    pub memory_used_bytes: Option<u64>,
    /// Bytes of memory that it has.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Its temperature, degrees Celsius.
    #[serde(default)]
    pub celsius: Option<u32>,
    /// What is wrong with it, in a few words for users; the same words for the same fault. `None` = it is well.
    #[serde(default)]
    pub fault: Option<String>,
}

/// Where the master opens tunnels itself, to an agent that accepts connections: with a request to [`TUNNEL_PATH`], followed by
/// the id of the container and its port on the host, with the secret as bearer token and `Upgrade:` [`TUNNEL_PROTOCOL`]. After
/// the answer 101 the connection carries the bytes of the port; any other answer has [`TUNNEL_ERROR_HEADER`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelEndpoint {
    /// Host name or address of the agent, as the master reaches it.
    pub host: String,
    /// Port there, on which the agent speaks TLS.
    pub port: u16,
    /// The only certificate that the master accepts there, in PEM, for [`TUNNEL_SERVER_NAME`]. The agent makes it at its start.
    pub certificate: String,
    /// What proves to the agent that its master asks.
    pub secret: TunnelSecret,
}

/// A secret that an agent makes at its start and shares with the master that it has connected to. It is not printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelSecret(String);

impl TunnelSecret {
    /// Of this text, at least 128 bits that cannot be guessed.
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The text, for the request.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether a request shows it. Takes as long whatever its bytes are.
    pub fn is(&self, shown: &str) -> bool {
        let pairs = self.0.bytes().zip(shown.bytes());
        self.0.len() == shown.len() && pairs.fold(0, |differing, (a, b)| differing | (a ^ b)) == 0
    }
}

impl fmt::Debug for TunnelSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TunnelSecret(hidden)")
    }
}

/// Everything that the agent holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// Version of the protocol that the agent speaks, its [`PROTOCOL_VERSION`].
    pub protocol: u32,
    /// Id of the agent, unique in the cluster.
    pub agent_id: AgentId,
    /// Identity of this agent's data directory: a second live agent with the same id but another identity is refused.
    pub instance_id: InstanceId,
    /// Software version of the agent.
    pub version: String,
    /// Pool it wants to join.
    pub resource_pool: String,
    /// Addresses of the host, most useful first.
    pub addresses: Vec<String>,
    /// Devices of the host that it offers as slots.
    pub devices: Vec<Device>,
    /// The runtime it starts containers in: `docker`, `podman`, `process`.
    pub runtime: String,
    /// All containers that it knows of, ended ones included until they are removed.
    pub containers: Vec<ContainerReport>,
    /// Where the master opens tunnels itself; `None` = the agent accepts no connections, and opens them on request
    /// ([`ToAgent::Dial`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel_endpoint: Option<TunnelEndpoint>,
}

/// What an agent reports of one container.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerReport {
    /// Id of the container.
    pub container_id: ContainerId,
    /// The allocation that it belongs to.
    pub allocation_id: AllocationId,
    /// The state that the agent last observed.
    pub state: ContainerState,
}

/// Life of a container as agents report it; only ever moves downward in this list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum ContainerState {
    /// The agent has accepted it and not begun with it.
    Assigned,
    /// The image is being pulled.
    Pulling,
    /// Its image is here; the container is being created and started.
    Starting,
    /// The supervisor runs in it, and with it or soon the task's code.
    Running {
        /// Address of the host for the allocation's other containers.
        host_address: String,
        /// Published ports: container port and host port.
        ports: Vec<(u16, u16)>,
        /// Process id of the supervisor, or the engine's container id: proof in tests that a task was adopted.
        runtime_id: String,
    },
    /// Ended; its logs have been handed to the master or given up, with a line about it.
    Terminated {
        /// How the container ended: exit code, signal or failure.
        exit: ContainerExit,
        /// What is known of how its code failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<ExitCause>,
    },
}

impl ContainerState {
    /// The name of the state, as messages spell it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Assigned => "assigned",
            Self::Pulling => "pulling",
            Self::Starting => "starting",
            Self::Running { .. } => "running",
            Self::Terminated { .. } => "terminated",
        }
    }
}

impl From<ContainerState> for ObservedState {
    fn from(state: ContainerState) -> Self {
        match state {
            ContainerState::Assigned => Self::Assigned,
            ContainerState::Pulling => Self::Pulling,
            ContainerState::Starting => Self::Starting,
            ContainerState::Running {
                host_address,
                ports,
                runtime_id,
            } => Self::Running {
                host_address,
                ports,
                runtime_id,
            },
            ContainerState::Terminated { exit, cause } => Self::Terminated {
                exit,
                cause: cause.map(ExitCause::bounded),
            },
        }
    }
}

/// Lines of the agent for a task's log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentLog {
    /// Allocation whose task the lines belong to.
    pub allocation_id: AllocationId,
    /// Container, if they concern one.
    pub container_id: Option<ContainerId>,
    /// `(microseconds since 1970, level, text without line end)`.
    pub lines: Vec<(i64, LogLevel, String)>,
}

/// A message from the master to an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ToAgent {
    /// The answer to [`Hello`]: the agent has joined.
    Welcome(Welcome),
    /// The agent may not join.
    Refused {
        /// The reason, a sentence for the agent's log.
        reason: String,
        /// What the agent is to do.
        then: AfterRefusal,
    },
    /// Start this container unless it is known already (by container id).
    Start(Box<ContainerSpec>),
    /// End this container. `grace`: SIGTERM, then SIGKILL after the script's grace; else SIGKILL at once. Logs are
    /// flushed either way.
    Kill {
        /// Id of the container to end.
        container_id: ContainerId,
        /// Whether it is asked to end first.
        grace: bool,
    },
    /// Connect to a port of a container, and open a tunnel for it: a request to [`TUNNEL_PATH`]. The master cannot connect to
    /// the agent, which may be behind a firewall.
    Dial(Dial),
    /// Have the supervisor of this container report to the master what its processes do; nothing if it does not run.
    Diagnose {
        /// Id of the container whose processes are looked at.
        container_id: ContainerId,
    },
    /// The end of this container is stored: remove all of its files and records. A live container is killed first.
    Forget {
        /// Id of the container to remove.
        container_id: ContainerId,
    },
}

/// A tunnel that the master wants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dial {
    /// Id of the tunnel: a secret between master and agent.
    pub tunnel_id: TunnelId,
    /// Id of the container to connect to.
    pub container_id: ContainerId,
    /// Port of the host that leads to the container's: one that the agent has reported for it.
    pub host_port: u16,
}

/// What an agent does that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AfterRefusal {
    /// Tries again: what is in the way can pass.
    Retry,
    /// Ends; its tasks go on.
    End,
    /// Ends with its tasks, which the master has given up: they may run elsewhere.
    EndTasks,
    /// It came back with other devices or for another pool than the master knew. The master has removed what it knew and
    /// given up the agent's tasks, so these end; the next [`Hello`] joins as a new agent.
    Rejoin,
}

/// What an agent is given about its master.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    /// Version of the protocol that the master speaks, its [`PROTOCOL_VERSION`].
    pub protocol: u32,
    /// Software version of the master.
    pub version: String,
    /// Identity of the cluster; becomes `DET_CLUSTER_ID`.
    pub cluster_id: ClusterId,
    /// Identity of this master start; becomes `DET_MASTER_ID`.
    pub master_id: MasterId,
}
