//! The typed configuration of a task.

use crate::container::DEFAULT_SHM_SIZE_BYTES;

pub(super) fn default_shm_size() -> u64 {
    DEFAULT_SHM_SIZE_BYTES
}
