//! The typed configuration of a task.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::TaskKind;
use super::schema::TaskConfig;
use crate::container::DEFAULT_SHM_SIZE_BYTES;
use crate::units::parse_duration;

impl fmt::Debug for TaskConfig {
    /// Secrets are hidden.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskConfig {}", self.masked_json())
    }
}

pub(super) fn default_shm_size() -> u64 {
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
