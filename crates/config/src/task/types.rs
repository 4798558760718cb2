//! The typed configuration of a task.

use serde::{Deserialize, Serialize};

use crate::container::DEFAULT_SHM_SIZE_BYTES;

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
