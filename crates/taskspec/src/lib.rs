//! What a task's container runs, as data, and how that data is made.
//!
//! [`container_spec`] is the one place that makes a task's environment and specification: [`TaskFacts`] and
//! [`PlaceFacts`] in, a [`ContainerSpec`] out, with every variable, mount and port that the master decides. An agent adds
//! what only it knows and starts the container in a runtime; inside, the supervisor follows the [`Script`]. The crate
//! contains *what* runs, never *how*: it knows no engine, no socket and no file system. It also knows no configuration
//! document and no row. The facts are plain values, because `det-config` and `det-lifecycle` use the types of this crate,
//! which agents and supervisors link as well: `det-config` converts its documents into facts, the master its rows. Read
//! [`TaskFacts`] first, then [`ContainerSpec`], [`Script`] and [`ContainerExit`]; [`variables`] lists the environment.

pub mod accounts;
mod build;
mod checkpoint_gc;
mod details;
pub mod diagnosis;
mod environment;
mod exit;
mod facts;
pub mod guard;
mod kind;
mod label;
mod launch_ssh;
mod notebook;
pub mod pods;
mod ports;
mod registry;
mod runtime;
pub mod sandbox;
mod service;
mod shell;
mod spec;
mod tensorboard;
pub mod variables;

pub use build::{SpecError, container_spec, service_ports};
pub use checkpoint_gc::{
    CheckpointGcDetails, EMPTY_IMAGE, REMOVAL_FILE, RemovalCause, RemovalOrder, Remover,
};
pub use details::{GenericDetails, TaskDetails};
pub use environment::users_variables;
pub use facts::{
    BindMount, ClusterFacts, ContainerRequest, KindFacts, PerDevice, PlaceFacts, PoolDefaults,
    RunsIn, SharedFs, StorageFacts, TaskFacts, TrialFacts,
};
pub use kind::{LaunchKind, TaskKind};
pub use label::TaskLabel;
pub use launch_ssh::{LAUNCH_CLIENT_DIR, LAUNCH_CLIENT_FILE, SshKeyPair};
pub use notebook::{
    IdleCheck, NOTEBOOK_CERTIFICATE_FILE, NOTEBOOK_CERTIFICATE_NAME, NOTEBOOK_PORTS,
    NotebookDetails, NotebookIdleType,
};
pub use ports::{GivenPorts, HostPorts, Hosts, PortWish, RENDEZVOUS_PORT};
pub use registry::{DOCKER_HUB, RegistryAuth, login_server, registry_of};
pub use runtime::{PlaceRuntime, RuntimeKind};
pub use service::SERVICE_FAILURE_FILE;
pub use shell::{
    AUTHORIZED_KEYS_FILE, SHELL_KEY_FILE, SHELL_PORTS, SSHD_CONFIG_FILE, ShellDetails,
};
pub use spec::{
    CheckedMount, ContainerExit, ContainerSpec, Device, DeviceKind, DeviceMapping, Entrypoint,
    ExitCause, FIRST_UNPRIVILEGED_ID, Mount, Sampling, Script, SharedDirectories, SlotGrant,
    SystemMetrics, TaskFile, TaskUser, UNPRIVILEGED_ID, tensorboard_directory, unprivileged_id,
};
pub use tensorboard::{
    SERVICE_KEY_HEADER, TENSORBOARD_PORTS, TensorBoardDetails, TensorBoardSource,
};

/// Fixed by the unmodified PyPI package: info files and work directory are below it in every container.
pub const RUN_DIR: &str = "/run/determined";
/// Working directory of a task that names none.
pub const WORK_DIR: &str = "/run/determined/workdir";
/// Where `pip install --user` installs in a container.
pub const PYTHON_USER_BASE: &str = "/run/determined/pythonuserbase";
/// Where `shared_fs` checkpoint storage is mounted in every container.
pub const SHARED_FS_DIR: &str = "/determined_shared_fs";
/// The supervisor's script, relative to the run directory.
pub const SCRIPT_FILE: &str = "task.json";
/// The supervisor's exit report, relative to the run directory.
pub const EXIT_FILE: &str = "exit.json";
/// The log spool, relative to the run directory.
pub const SPOOL_DIR: &str = "spool";
