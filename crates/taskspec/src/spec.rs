//! The specification of one container, as the master sends it to the place that runs it.

use det_ids::{AllocationId, ClusterId, ContainerId, RunId, SlotId, TaskId, TrialId, UserId};
use serde::{Deserialize, Serialize};

use crate::kind::TaskKind;
use crate::notebook::IdleCheck;
use crate::registry::RegistryAuth;

/// One container of an allocation, as its place is to run it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerSpec {
    /// This container; also the wire's resource id.
    pub container_id: ContainerId,
    /// The allocation that this container is a part of, `<task>.<n>`.
    pub allocation_id: AllocationId,
    /// The task whose attempt this container runs.
    pub task_id: TaskId,
    /// One line for users: `trial 3 of experiment 1`.
    pub description: String,
    /// Container image for the device type of these slots. The process runtime ignores it.
    pub image: String,
    /// Whether the image is pulled even when it is present.
    pub force_pull_image: bool,
    /// Credentials for the image's registry; `None` = the agent's own.
    pub registry_auth: Option<RegistryAuth>,
    /// Unix user and group that the processes of the task run as.
    pub user: TaskUser,
    /// Number in the cluster of the user whose task this is; 0 from masters that do not send it.
    #[serde(default)]
    pub owner_id: UserId,
    /// What this container is granted of its place's slots.
    pub slots: SlotGrant,
    /// Host directories to mount, in the order of mounting: a later one may be below an earlier one.
    pub mounts: Vec<Mount>,
    /// Size of `/dev/shm` in bytes.
    pub shm_size_bytes: u64,
    /// Docker network mode; `host` for allocations of several containers, unless their places only count their slots.
    pub network_mode: String,
    /// Container ports to publish (ignored with host networking).
    pub ports: Vec<u16>,
    /// Host devices to pass into the container, besides those of its slots.
    pub devices: Vec<DeviceMapping>,
    /// Linux capabilities to add to those of the runtime, by the task's configuration: `NET_RAW`.
    pub add_capabilities: Vec<String>,
    /// Linux capabilities that the master's configuration gives to every task of the pool: an administrator chose them.
    #[serde(default)]
    pub default_capabilities: Vec<String>,
    /// Linux capabilities of the runtime that the container does not get, by the task's configuration.
    pub drop_capabilities: Vec<String>,
    /// What the supervisor does in the container.
    pub script: Script,
}

/// What a container is granted of its place's slots. Written as a list of numbers, or as one number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SlotGrant {
    /// The devices with these numbers; empty for a zero-slot task.
    Devices(Vec<SlotId>),
    /// So many slots of a place that does not name them: what runs the container there chooses the devices.
    Count(u32),
}

impl SlotGrant {
    /// What `slots`, the numbers that the planner gave out, grant at a place whose slots are devices with names
    /// (`named`) or are only counted.
    pub fn new(slots: Vec<SlotId>, named: bool) -> Self {
        if named {
            Self::Devices(slots)
        } else {
            Self::Count(u32::try_from(slots.len()).unwrap_or(u32::MAX))
        }
    }

    /// The granted devices; none where slots are only counted.
    pub fn devices(&self) -> &[SlotId] {
        match self {
            Self::Devices(slots) => slots,
            Self::Count(_) => &[],
        }
    }

    /// Number of granted slots; 0 = the container has none.
    pub fn count(&self) -> u32 {
        match self {
            Self::Devices(slots) => u32::try_from(slots.len()).unwrap_or(u32::MAX),
            Self::Count(count) => *count,
        }
    }

    /// The numbers of the slots as the task counts them: those of its devices, else from 0.
    pub(crate) fn numbers(&self) -> Vec<SlotId> {
        match self {
            Self::Devices(slots) => slots.clone(),
            Self::Count(count) => (0..*count).map(SlotId).collect(),
        }
    }
}

/// What the supervisor does inside the container. Written by the agent as [`SCRIPT_FILE`](crate::SCRIPT_FILE), mode 0600, owner the task's user.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Script {
    /// Kind of the task, which decides what the supervisor prepares.
    pub task_type: TaskKind,
    /// The allocation in whose name the supervisor reports.
    pub allocation_id: AllocationId,
    /// The task in whose name the supervisor reports.
    pub task_id: TaskId,
    /// This container, as reports to the master name it.
    pub container_id: ContainerId,
    /// Environment variables, each name once. The agent adds its own, see [`variables`](crate::variables).
    pub env: Vec<(String, String)>,
    /// Working directory; [`WORK_DIR`](crate::WORK_DIR) unless configured. The agent replaces `$AGENT_USER` in it, see
    /// [`TaskUser::work_dir`].
    pub work_dir: String,
    /// Whether to fetch the task's context directory from the master.
    pub context: bool,
    /// Whether `startup-hook.sh` of the working directory is sourced before the entrypoint, if it exists.
    #[serde(default = "yes")]
    pub startup_hook: bool,
    /// Text of the pool's startup hook; sourced before the user's `startup-hook.sh`.
    pub pool_startup_hook: Option<String>,
    /// Whether to wait for the other containers of the allocation. True for every trial, also with one container.
    pub rendezvous: bool,
    /// Checkpoint storage to probe with a write, a read and a delete before the entrypoint starts.
    pub storage_probe: Option<serde_json::Value>,
    /// What the supervisor starts when the container is prepared.
    pub entrypoint: Entrypoint,
    /// Texts by which a service shows that it can be used: the supervisor reports the allocation as ready at the first line
    /// of output that contains one of them. Empty = nothing is reported.
    #[serde(default)]
    pub readiness: Vec<String>,
    /// TCP port that the service must listen on, too, before it is reported as ready; `None` = it listens when it writes that.
    #[serde(default)]
    pub readiness_port: Option<u16>,
    /// How to find out whether the service is in use; `None` = it is not looked at.
    #[serde(default)]
    pub idle_check: Option<IdleCheck>,
    /// What the supervisor measures for a trial; `None` = it measures nothing.
    #[serde(default)]
    pub system_metrics: Option<SystemMetrics>,
    /// How often the supervisor measures what a task of another kind uses; `None` = it measures nothing. Of its own, because
    /// agents of earlier versions read the field above for trials only.
    #[serde(default)]
    pub task_metrics: Option<Sampling>,
    /// Files that the supervisor writes before it starts hooks and the entrypoint.
    pub files: Vec<TaskFile>,
    /// Bearer value for the master, sent as `Grpc-Metadata-x-allocation-token`.
    pub token: String,
    /// Seconds between SIGTERM and SIGKILL when the task is ended gracefully.
    pub grace_seconds: u32,
    /// Seconds that the task has to save and exit by itself when something other than the master ends its container: the
    /// supervisor asks the master to preempt it first, and SIGTERM follows after that. `None` = SIGTERM comes at once.
    #[serde(default)]
    pub save_seconds: Option<u32>,
}

/// System metrics of a trial: processors, memory, disks, network and GPUs, as the supervisor of each of its containers
/// measures and reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemMetrics {
    /// The trial that they are reported for.
    pub trial_id: TrialId,
    /// The run of the trial that this container belongs to.
    pub run_id: RunId,
    /// Seconds between two samples, at least 1.
    pub sample_seconds: u32,
    /// How many samples a report is the average of, at least 1.
    pub samples_per_report: u32,
}

/// The period of measurements of a task's resources, and of their reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampling {
    /// Seconds between two samples, at least 1.
    pub sample_seconds: u32,
    /// How many samples a report is the average of, at least 1.
    pub samples_per_report: u32,
}

/// Masters that do not send `startup_hook` start trials only, which have one.
fn yes() -> bool {
    true
}

/// What the task runs: `docs/contract/task-environment.md`, "Entrypoints".
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entrypoint {
    /// Run by a shell: `sh -c TEXT`.
    Shell(String),
    /// Program with its arguments, run without a shell; never empty.
    Argv(Vec<String>),
    /// A trial class of the old training loop, `module:Class`, run by the training harness with one process per slot.
    TrialClass(String),
    /// An SSH server with the files of a shell, run by the supervisor's own executable: `det-supervisor ssh-server`.
    SshServer {
        /// TCP port that the server listens on.
        port: u16,
    },
    /// The removal of checkpoints that [`REMOVAL_FILE`](crate::REMOVAL_FILE) orders, by the supervisor's own executable:
    /// `det-supervisor remove-checkpoints`.
    RemoveCheckpoints,
    /// A shell script that starts a service: `sh SCRIPT ADDRESS ARGS...`. The supervisor knows the address to listen on: the
    /// loopback address where the task shares its host's network, else all addresses.
    Service {
        /// Absolute path of one of the files that the script brings.
        script: String,
        /// Arguments that follow the address, in order; may be empty.
        args: Vec<String>,
    },
}

/// A file to place in the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskFile {
    /// Absolute path of the file in the container.
    pub path: String,
    /// Permission bits, as `chmod` takes them: 0o755.
    pub mode: u32,
    /// Whole content of the file, UTF-8 text.
    pub content: String,
}

/// Unix user and group that the processes of a task run as.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskUser {
    /// User name, for the passwd file that is put into the container.
    pub user: String,
    /// Numeric user id (`uid_t`); an agent may run a process task of root under another: see [`unprivileged_id`].
    pub uid: u32,
    /// Group name, for the group file that is put into the container.
    pub group: String,
    /// Numeric group id (`gid_t`); of a process task of root as the user id.
    pub gid: u32,
}

impl TaskUser {
    /// A working directory as this user's tasks have it: absolute, `$AGENT_USER` replaced by the user's name.
    pub fn work_dir(&self, work_dir: &str) -> String {
        let named = work_dir.replace("$AGENT_USER", &self.user);
        if named.starts_with('/') {
            named
        } else {
            format!("/{named}")
        }
    }
}

/// `nobody`: user and group id in the process runtime where no id of its own can be given to an unmapped user.
pub const UNPRIVILEGED_ID: u32 = 65534;

/// Below the user ids that unmapped users have in the process runtime. From a range that distributions and systemd leave
/// free: <https://systemd.io/UIDS-GIDS/>.
const UNPRIVILEGED_BASE: u32 = 2_000_000_000;
/// The lowest user id that [`unprivileged_id`] gives to a user.
pub const FIRST_UNPRIVILEGED_ID: u32 = UNPRIVILEGED_BASE + 1;
/// Most unmapped users with ids of their own.
const MAX_UNPRIVILEGED: u32 = 100_000_000;

/// User and group id of an unmapped user's tasks in the process runtime, unless the agent's configuration lets them be
/// root. The same on all hosts, and different for each user, because their checkpoints share a directory. `user_id` is
/// the user's number in the cluster.
pub fn unprivileged_id(user_id: UserId) -> u32 {
    match u32::try_from(user_id.0) {
        Ok(id @ 1..=MAX_UNPRIVILEGED) => UNPRIVILEGED_BASE + id,
        _ => UNPRIVILEGED_ID,
    }
}

impl Default for TaskUser {
    fn default() -> Self {
        Self {
            user: "root".into(),
            uid: 0,
            group: "root".into(),
            gid: 0,
        }
    }
}

/// A host directory that is mounted into the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Absolute path on the host of the agent that starts the container.
    pub host_path: String,
    /// Path in the container; relative ones are below the working directory.
    pub container_path: String,
    /// Whether the container may not write to it.
    pub read_only: bool,
    /// Bind propagation, `rprivate` by default.
    pub propagation: String,
    /// Whether the agent creates the host directory when it is missing (checkpoint storage) or refuses (user mounts).
    pub create: bool,
    /// Whether an administrator chose the host path, in the master's configuration: the agent then creates and opens it
    /// with its own rights. A path that a user names is checked by [`HostGuard`](crate::guard::HostGuard) and reached with the task's rights.
    #[serde(default)]
    pub trusted: bool,
    /// What the agent makes in it for the tasks of all users; only where an administrator chose that as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<SharedDirectories>,
}

/// Directories of checkpoint storage, relative to its mount, in which tasks of all users keep files side by side: the agent
/// makes them before the container starts, so that they belong to no task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedDirectories {
    /// That of the checkpoints; empty for the mount itself. Without it nothing starts.
    pub checkpoints: String,
    /// That of the TensorBoard files of all experiments of the cluster. A container starts without it.
    pub tensorboard: String,
}

/// Where the TensorBoard files of all experiments of a cluster are in checkpoint storage: a directory for each experiment.
pub fn tensorboard_directory(cluster_id: &ClusterId) -> String {
    format!("{cluster_id}/tensorboard/experiment")
}

impl Mount {
    /// The absolute path in the container; `work_dir` is the task's working directory.
    pub fn target(&self, work_dir: &str) -> String {
        if self.container_path.starts_with('/') {
            return self.container_path.clone();
        }
        format!("{}/{}", work_dir.trim_end_matches('/'), self.container_path)
    }
}

/// A host file or directory that an agent has checked, and where a container is to have it. An engine opens paths by
/// itself: the supervisor in the container compares, before anything of the task runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedMount {
    /// Absolute path in the container, as the engine was given it: links of the image may lead elsewhere.
    pub path: String,
    /// The number of its file system (`st_dev`).
    pub device: u64,
    /// Number of the file or directory on its file system (`st_ino`).
    pub inode: u64,
}

impl CheckedMount {
    const OPTION: &str = "--mount=";

    /// The option of the supervisor's command `run` that names it.
    pub fn option(&self) -> String {
        let Self {
            path,
            device,
            inode,
        } = self;
        format!("{}{device}:{inode}:{path}", Self::OPTION)
    }

    /// Reads [`Self::option`]; `None` = it is another option.
    pub fn parse(option: &str) -> Option<Self> {
        let mut parts = option.strip_prefix(Self::OPTION)?.splitn(3, ':');
        let mut number = || parts.next()?.parse().ok();
        let (device, inode) = (number()?, number()?);
        Some(Self {
            path: parts.next()?.to_owned(),
            device,
            inode,
        })
    }
}

/// A device file of the host that the container may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceMapping {
    /// Absolute path of the device on the host.
    pub host_path: String,
    /// Absolute path of the device in the container.
    pub container_path: String,
    /// Permissions, some of `m` (make nodes), `r` (read), `w` (write).
    pub mode: String,
}

/// How a container ended. Reported by the supervisor in [`EXIT_FILE`](crate::EXIT_FILE) and completed by the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum ContainerExit {
    /// The entrypoint ended by itself.
    Exited {
        /// Exit code of the entrypoint, 0 to 255.
        code: i32,
    },
    /// The entrypoint was ended by a signal.
    Signaled {
        /// Number of the signal, as on Linux: 9 for SIGKILL.
        signal: i32,
        /// Whether the kernel killed it because memory ran out.
        out_of_memory: bool,
    },
    /// The supervisor could not start the entrypoint for a reason in the task itself: a hook failed, the entrypoint was
    /// not found, the storage probe failed.
    SetupFailed {
        /// Exit code that clients are shown: `docs/contract/task-environment.md`, "Exit codes".
        code: i32,
        /// What was tried, and the error, as a sentence for users.
        message: String,
    },
    /// The container never ran: its specification could not be made, its image could not be pulled, or the engine refused
    /// it. Charged to the trial, because an absent image would be tried forever.
    StartFailed {
        /// What was tried, and the error, as a sentence for users.
        message: String,
    },
    /// The container disappeared without an exit report (host restarted, container removed by hand), or never ran because
    /// its host could not start any (full disk, container engine that does not answer). Not charged to the task.
    Lost {
        /// What the agent found of the container, as a sentence for users.
        message: String,
    },
    /// The container was killed because the master ordered it, or because its agent stopped and takes its tasks along.
    Killed,
}

/// What is known of how a task's code failed, beside its exit: of all that failed in a container, what was first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitCause {
    /// When that failed, in microseconds since 1970 by the clock of its host.
    pub at: i64,
    /// Rank in its training of the process that failed, where its launcher gave it one.
    #[serde(default)]
    pub rank: Option<u32>,
    /// Exit code of that process as shells have it; `None` = it was not reported.
    #[serde(default)]
    pub exit_code: Option<i32>,
    /// The last lines that it wrote, or of the whole task if no rank is known.
    #[serde(default)]
    pub last_lines: Vec<String>,
}

impl ExitCause {
    /// Most lines that are kept in `last_lines`; earlier ones are dropped.
    pub const MOST_LINES: usize = 8;
    /// Bytes of each that are kept.
    const MOST_BYTES: usize = 300;

    /// A line cut at 300 bytes, between characters; a cut one ends in `…`.
    pub fn shortened(line: &str) -> String {
        if line.len() <= Self::MOST_BYTES {
            return line.to_owned();
        }
        let mut ends = (0..=Self::MOST_BYTES).rev();
        let end = ends.find(|at| line.is_char_boundary(*at)).unwrap_or(0);
        format!("{}…", line.get(..end).unwrap_or_default())
    }

    /// The cause with its lines limited in number and length: reports of agents may exceed both.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        let first = self.last_lines.len().saturating_sub(Self::MOST_LINES);
        self.last_lines.drain(..first);
        for line in &mut self.last_lines {
            *line = Self::shortened(line);
        }
        self
    }
}

/// A device of an agent, which is one slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Number of the device on its agent, counted from 0.
    pub id: SlotId,
    /// Product name as the driver reports it, `NVIDIA H200`, or `CPU` for a share of processors.
    pub brand: String,
    /// Stable identity: GPU UUID, or derived from the agent's id for artificial slots.
    pub uuid: String,
    /// Class of the device; `type` in JSON.
    #[serde(rename = "type")]
    pub kind: DeviceKind,
}

/// Class of a device, which decides how a container gets access to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// A share of the host's processors, without a device file.
    Cpu,
    /// An NVIDIA GPU or MIG instance.
    Cuda,
    /// An AMD GPU.
    Rocm,
}
