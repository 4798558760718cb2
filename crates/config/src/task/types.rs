//! The typed configuration of a task.

use std::fmt;
use std::time::Duration;

use det_taskspec::DeviceMapping;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::TaskKind;
use crate::container::{BindMount, DEFAULT_SHM_SIZE_BYTES, Environment, Pbs, Slurm};
use crate::units::parse_duration;

/// Everything a task runs with. Later changes of templates, pools or the master do not change it.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskConfig {
    /// Display name, not unique.
    pub description: String,
    /// Program with its arguments; empty for kinds that bring their own.
    pub entrypoint: Vec<String>,
    /// Images, variables, ports.
    pub environment: Environment,
    /// Slots, pool, priority.
    pub resources: TaskResources,
    /// Host directories.
    pub bind_mounts: Vec<BindMount>,
    /// Working directory, before `$AGENT_USER` and `$DET_USER` in it are replaced; `None` = the run directory's own.
    #[serde(default)]
    pub work_dir: Option<String>,
    /// Further options of TensorBoard.
    pub tensorboard_args: Vec<String>,
    /// Whether a TensorBoard gets the host directories and pods of its experiments.
    #[serde(default)]
    pub inherit_mounts: bool,
    /// How long it may be idle, as written; `None` = as the master says.
    #[serde(default)]
    pub idle_timeout: Option<String>,
    /// What keeps a notebook from being idle.
    pub notebook_idle_type: NotebookIdleType,
    /// Verbose scripts of the task.
    pub debug: bool,
    /// Options of Slurm, kept as written.
    pub slurm: Slurm,
    /// Options of PBS, kept as written.
    pub pbs: Pbs,
    /// Seconds that a preempted generic task has to stop.
    pub preemption_timeout: u32,
}

impl fmt::Debug for TaskConfig {
    /// Secrets are hidden.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskConfig {}", self.masked_json())
    }
}

/// What a task needs to run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskResources {
    /// Slots.
    pub slots: u32,
    /// Only compared with what policies allow.
    pub max_slots: Option<u32>,
    /// Weight of the task in fair share, above 0.
    #[serde(serialize_with = "crate::space::short_number")]
    pub weight: f64,
    /// 1 to 99; on agents a lower number goes first. `None` = as the pool says.
    pub priority: Option<u8>,
    /// Pool; empty = the cluster's default for such tasks.
    pub resource_pool: String,
    /// Whether all slots of a generic task must be on one agent; `None` = yes.
    pub is_single_node: Option<bool>,
    /// Size of `/dev/shm` in bytes.
    #[serde(default = "default_shm_size")]
    pub shm_size: u64,
    /// Host devices.
    pub devices: Vec<DeviceMapping>,
    /// Ignored; clients know the key.
    #[serde(default)]
    pub native_parallel: bool,
}

fn default_shm_size() -> u64 {
    DEFAULT_SHM_SIZE_BYTES
}

/// What keeps a notebook from being idle, besides traffic through the master.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotebookIdleType {
    /// Any kernel or terminal.
    KernelsOrTerminals,
    /// A client that is connected to a kernel.
    KernelConnections,
    /// A kernel that works, or a terminal with input or output.
    Activity,
}

impl TaskConfig {
    /// Reads a stored effective configuration.
    ///
    /// # Errors
    /// The value was not written by [`TaskConfig::to_json`].
    pub fn from_json(value: &Value) -> Result<Self, crate::errors::ConfigErrors> {
        crate::yaml::Node::from(value).typed()
    }

    /// The effective configuration as clients read it: every key present.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).expect("maps with text keys and finite numbers are JSON")
    }

    /// [`TaskConfig::to_json`] for showing: secrets are hidden.
    pub fn masked_json(&self) -> Value {
        super::mask_task_document(&self.to_json())
    }

    /// How long a task of this kind may be idle before it is ended: its own timeout, else the master's for its kind (in
    /// seconds, `None` = never). `None` = for ever. Shells, commands and generic tasks are never idle.
    pub fn effective_idle_timeout(
        &self,
        kind: TaskKind,
        notebook_timeout: Option<u32>,
        tensorboard_timeout: u32,
    ) -> Option<Duration> {
        let of_master = match kind {
            TaskKind::Notebook => notebook_timeout,
            TaskKind::TensorBoard => Some(tensorboard_timeout),
            TaskKind::Shell | TaskKind::Command | TaskKind::Generic => return None,
        };
        let own = self
            .idle_timeout
            .as_deref()
            .and_then(|text| parse_duration(text).ok());
        own.or_else(|| of_master.map(|seconds| Duration::from_secs(seconds.into())))
            .filter(|timeout| !timeout.is_zero())
    }
}
