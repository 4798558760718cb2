//! What a task's container runs, as data.
//!
//! The master describes a container with a [`ContainerSpec`]; the agent adds what only it knows and starts it in a
//! runtime; inside, the supervisor follows the [`Script`]. The crate says *what* runs, never *how*: it knows no engine,
//! no socket and no file system. Read [`ContainerSpec`] first, then [`Script`], then [`ContainerExit`].

pub mod guard;
pub mod sandbox;
mod spec;

pub use spec::{
    ContainerExit, ContainerSpec, Device, DeviceKind, DeviceMapping, Entrypoint, Mount,
    RegistryAuth, Script, TaskFile, TaskKind, TaskUser, UNPRIVILEGED_ID, effective_env,
    unprivileged_id,
};

/// Fixed by the unmodified PyPI package: info files and work directory live below it in every container.
pub const RUN_DIR: &str = "/run/determined";
/// Where `shared_fs` checkpoint storage is mounted in every container.
pub const SHARED_FS_DIR: &str = "/determined_shared_fs";
/// The supervisor's script, relative to the run directory.
pub const SCRIPT_FILE: &str = "task.json";
/// The supervisor's exit report, relative to the run directory.
pub const EXIT_FILE: &str = "exit.json";
/// The log spool, relative to the run directory.
pub const SPOOL_DIR: &str = "spool";
