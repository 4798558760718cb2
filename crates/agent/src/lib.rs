//! The agent: devices, container runtimes, and the connection to the master.
//!
//! One agent serves one master on one host. It reports the devices of its host, starts and ends containers as the
//! master requests, and reports their states. It decides nothing about what runs where. Its tasks outlive it: every
//! step is written to disk first, and the next agent on the same data directory continues.
//!
//! Read [`AgentOptions`] and [`run`] first; inside, `containers::actor` manages a container, `connection` talks to the
//! master, `runtime` starts and ends processes and containers.

mod connection;
mod containers;
mod data_dir;
mod debug_server;
mod devices;
mod env;
mod host;
mod isolation;
mod listening;
mod master;
mod mounts;
mod options;
mod outbox;
mod python;
mod runtime;
#[cfg(test)]
mod testing;
mod tls;
mod tunnel;
mod tunnel_server;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use thiserror::Error;
use tokio::sync::{OnceCell, watch};
use tokio_util::sync::CancellationToken;

pub use data_dir::{DataDirError, TOKEN_FILE};
pub use det_taskspec::sandbox::{Isolation, IsolationRow};
pub use isolation::check_isolation;
pub use options::{
    AgentOptions, ClientIdentity, DebugServer, EndedContainers, Limits, ProxyOptions,
    RuntimeChoice, Secret, SlotType, TaskLimits, TlsOptions, TunnelServer, Ulimit,
    WarmStartOptions,
};
pub use python::PythonError;
pub use tls::TlsError;

use containers::store::{KillOrder, RuntimeKind};
use containers::{Manager, SharedState};
use data_dir::DataDir;
use devices::Detection;
use master::MasterAddress;
use runtime::Runtimes;

/// How long a new agent waits for one that is ending.
const LOCK_PATIENCE: Duration = Duration::from_secs(3);
/// How long tasks may take to end if the agent ends them at shutdown; longer than the limit of one task.
const TASKS_END_WITHIN: Duration = Duration::from_secs(20);
/// How long the last reports, and the removal of those containers, may take.
const REPORTS_WITHIN: Duration = Duration::from_secs(3);
/// The longest wait for a TCP connection to the master's HTTP side.
const HTTP_CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Why an agent could not start, or ended by itself.
#[derive(Debug, Error)]
pub enum AgentError {
    /// The master's address is not valid.
    #[error("{0}")]
    MasterAddress(String),
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The TLS options cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The interpreter for tasks cannot be used.
    #[error(transparent)]
    Python(#[from] PythonError),
    /// The container engine asked for does not answer.
    #[error("{0}")]
    Engine(String),
    /// The supervisor's executable is missing or cannot be used.
    #[error(
        "the supervisor \"{}\" cannot be used: {source}; it is installed in the same directory as the det executable", path.display()
    )]
    Supervisor {
        /// Path at which the executable was expected.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The base directory of users' own directories cannot be used.
    #[error("\"user_directories\" of the agent's configuration cannot be \"{}\": {reason}", path.display())]
    UserDirectories {
        /// The configured directory.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// HTTP to the master cannot be set up.
    #[error("cannot set up the HTTP client")]
    Http(#[source] reqwest::Error),
    /// The detection of devices failed.
    #[error("the detection of devices failed: {0}")]
    Devices(String),
    /// The master refused this agent for good.
    #[error("the master refused this agent: {reason}")]
    Refused {
        /// The reason that the master gave.
        reason: String,
        /// Whether the master has given up this agent's tasks, which have been ended: its devices or its pool differ
        /// from what the master knew, or its token was revoked.
        given_up: bool,
    },
    /// The number of attempts is used up.
    #[error("gave up on the master at {master} after {attempts} attempts: {reason}")]
    GaveUp {
        /// Address of the master.
        master: String,
        /// Number of attempts to connect that failed.
        attempts: u32,
        /// Why the last attempt failed.
        reason: String,
    },
}

/// Runs an agent until `shutdown`, and then, if the options ask for it, ends its tasks.
///
/// Dropping the future stops the agent at once and leaves its tasks running, as a killed agent would. Needs a
/// process-wide rustls provider only where the program itself does; the agent brings its own.
///
/// # Errors
///
/// When it cannot start, when the master refuses it for good, and when
/// [`AgentOptions::reconnect_attempts`] are used up. In the last two cases [`AgentOptions::on_connection_lost`] has been
/// run, also where no connection ever succeeded. Tasks run on in all of these, except where the
/// master has given them up ([`AgentError::Refused`]).
pub async fn run(options: AgentOptions, shutdown: CancellationToken) -> Result<(), AgentError> {
    let master = MasterAddress::parse(&options.master_url)
        .map_err(|error| AgentError::MasterAddress(error.to_string()))?;
    let tls = tls_config(&options, &master)?;
    let supervisor = std::fs::canonicalize(&options.supervisor_path);
    if let Err(source) = supervisor {
        return Err(AgentError::Supervisor {
            path: options.supervisor_path,
            source,
        });
    }
    let data_dir = DataDir::open(&options.data_dir, LOCK_PATIENCE).await?;
    let runtimes = Runtimes::choose(options.runtime, options.engine_socket.clone())
        .await
        .map_err(|error| AgentError::Engine(error.to_string()))?;
    let http = http_client(&tls)?;
    let python = OnceCell::new();
    if let (RuntimeKind::Process, Some(interpreter)) = (runtimes.kind, &options.python) {
        // A wrong path is an error now, not when the first task starts.
        let package = options.python_package_dir.as_deref();
        let prepared = python::prepare(Some(interpreter), package, &data_dir.bin()).await?;
        // The cell was created three lines above.
        let _ = python.set(prepared);
    }
    let devices = detect_devices(&options).await?;
    for local in &devices {
        tracing::info!(
            slot = local.device.id.0,
            uuid = local.device.uuid,
            "slot: {}",
            local.device.brand
        );
    }
    open_user_directories(&options)?;
    let (servers, tunnel_identity) = Servers::prepare(&options)?;
    let guard = runtime::guard::of_host(&options, data_dir.path());
    let shared = Arc::new(SharedState {
        options,
        master,
        data_dir,
        guard,
        devices,
        runtimes,
        outbox: outbox::Outbox::default(),
        http,
        session: watch::Sender::new(None),
        live: watch::Sender::new(BTreeSet::new()),
        listeners: Arc::default(),
        host_fault: host::HostFault::new(),
        python,
        tunnel_identity,
        warm: OnceLock::new(),
    });
    if shared.runtimes.kind == RuntimeKind::Process {
        report_isolation(&shared).await;
    }
    report_limits(&shared).await;
    let manager = Manager::new(shared.clone());
    manager.recover();
    remove_strays(&shared, &manager).await;
    let result = tokio::select! {
        result = serve_until(&shared, &manager, tls, shutdown) => result,
        never = devices::watch::watch(&shared) => match never {},
        never = host::watch(&shared) => match never {},
        never = runtime::warm::keep(&shared) => match never {},
        never = servers.run(&shared) => match never {},
    };
    match &result {
        Err(
            AgentError::GaveUp { .. }
            | AgentError::Refused {
                given_up: false, ..
            },
        ) => {
            connection_lost_hook(&shared.options.on_connection_lost).await;
        }
        // They may run on another agent by now.
        Err(AgentError::Refused { given_up: true, .. }) => end_tasks(&shared, &manager).await,
        _ => {}
    }
    result
}

/// The client for requests to the master.
fn http_client(tls: &rustls::ClientConfig) -> Result<reqwest::Client, AgentError> {
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls.clone())
        // Proxies are for tasks; the agent reaches its master directly, over HTTP as over the WebSocket.
        .no_proxy()
        .tcp_nodelay(true)
        .connect_timeout(HTTP_CONNECT_WITHIN)
        .build()
        .map_err(AgentError::Http)
}

/// The servers that the agent's configuration asks for.
struct Servers {
    debug: Option<debug_server::Server>,
    tunnels: Option<tunnel_server::Server>,
}

impl Servers {
    /// Reads and makes their certificates.
    fn prepare(
        options: &AgentOptions,
    ) -> Result<(Self, Option<tunnel_server::Identity>), AgentError> {
        let debug = options.debug_server.as_ref();
        let debug = debug.map(debug_server::Server::prepare).transpose()?;
        let tunnels = options.tunnel_server.as_ref();
        let (identity, tunnels) = tunnels.map(tunnel_server::prepare).transpose()?.unzip();
        Ok((Self { debug, tunnels }, identity))
    }

    /// Serves until it is dropped.
    async fn run(self, shared: &Arc<SharedState>) -> std::convert::Infallible {
        let debug = async {
            if let Some(server) = self.debug {
                server.run(shared).await;
            }
        };
        let tunnels = async {
            if let (Some(server), Some(identity)) = (self.tunnels, &shared.tunnel_identity) {
                server.run(identity, shared).await;
            }
        };
        tokio::join!(debug, tunnels);
        std::future::pending().await
    }
}

/// Checks what process tasks can reach on this host, and logs a warning if that is more than it should be.
async fn report_isolation(shared: &Arc<SharedState>) {
    let python = shared.task_python().await.clone();
    let of_task = shared.clone();
    let checked = tokio::task::spawn_blocking(move || {
        isolation::remove_leftovers(of_task.data_dir.path());
        isolation::run(&isolation::Check {
            supervisor: &of_task.options.supervisor_path,
            data_dir: of_task.data_dir.path(),
            guard: &of_task.guard,
            devices: &of_task.devices,
            python: &python,
            root_tasks: of_task.options.root_tasks,
        })
    });
    let checked = checked.await.unwrap_or_else(|error| Err(error.to_string()));
    if let Some(notice) = isolation::notice(&checked) {
        // Another agent in this process may have logged it already.
        if shared.options.isolation_notice.set(notice.clone()).is_ok() {
            tracing::warn!("{notice}");
        }
    }
}

/// Makes and checks the base directory of users' own directories, if there is to be one.
fn open_user_directories(options: &AgentOptions) -> Result<(), AgentError> {
    let Some(base) = &options.user_directories else {
        return Ok(());
    };
    match containers::user_directory::open_base(base) {
        Ok(_) => Ok(()),
        Err(reason) => Err(AgentError::UserDirectories {
            path: base.clone(),
            reason,
        }),
    }
}

/// Logs a warning if tasks are to have limits that this host cannot give them.
async fn report_limits(shared: &Arc<SharedState>) {
    let wanted = shared.options.task_limits;
    if !wanted.limits.any() {
        return;
    }
    let of_task = shared.clone();
    let refusal = if shared.runtimes.kind == RuntimeKind::Process {
        let probed = tokio::task::spawn_blocking(move || {
            of_task.runtimes.process.limits_refusal(&wanted.limits)
        });
        probed.await.unwrap_or_else(|error| Some(error.to_string()))
    } else {
        let engine = shared.runtimes.engine(shared.runtimes.kind).await;
        engine.supported(&wanted.limits).1
    };
    let Some(reason) = refusal else {
        return;
    };
    if wanted.required {
        tracing::error!(
            "no task starts here: \"task_limits\" are required and cannot be set: {reason}"
        );
    } else {
        tracing::warn!("tasks run without some of their \"task_limits\": {reason}");
    }
}

/// The TLS configuration. Without `https` none is used, but the HTTP client needs one: it gets one that trusts no
/// certificate.
fn tls_config(
    options: &AgentOptions,
    master: &MasterAddress,
) -> Result<Arc<rustls::ClientConfig>, TlsError> {
    if master.tls {
        return tls::client_config(&options.tls);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    Ok(Arc::new(config))
}

async fn detect_devices(options: &AgentOptions) -> Result<Vec<devices::LocalDevice>, AgentError> {
    let options = options.clone();
    tokio::task::spawn_blocking(move || {
        devices::detect(&Detection {
            slot_type: options.slot_type,
            visible_gpus: options.visible_gpus.as_deref(),
            artificial_slots: options.artificial_slots,
            agent_id: &options.agent_id,
            gpu_tool: &options.gpu_tool,
        })
    })
    .await
    .map_err(|error| AgentError::Devices(error.to_string()))
}

/// Removes the engine's containers that belong to this data directory but have no directory in it.
async fn remove_strays(shared: &SharedState, manager: &Manager) {
    let kind = shared.runtimes.kind;
    if kind == RuntimeKind::Process {
        return;
    }
    let engine = shared.runtimes.engine(kind).await;
    let removed = engine
        .remove_strays(
            shared.data_dir.instance_id(),
            shared.options.ended_containers,
            |id| manager.knows(id),
        )
        .await;
    if let Err(error) = removed {
        tracing::warn!("cannot look for containers without a record: {error}");
    }
}

/// Keeps the connection until `shutdown`; then ends the tasks if they are to end with the agent.
async fn serve_until(
    shared: &SharedState,
    manager: &Manager,
    tls: Arc<rustls::ClientConfig>,
    shutdown: CancellationToken,
) -> Result<(), AgentError> {
    let stop = CancellationToken::new();
    let connection = connection::keep(shared, manager, tls, stop.clone());
    tokio::pin!(connection);
    tokio::select! {
        result = &mut connection => return result,
        () = shutdown.cancelled() => {}
    }
    if shared.options.keep_tasks_on_shutdown {
        let left = shared.live.borrow().len();
        tracing::info!(tasks = left, "the agent ends; its tasks go on");
    } else {
        let ending = end_tasks(shared, manager);
        tokio::pin!(ending);
        // The connection stays open meanwhile, so that the ends are reported to the master.
        tokio::select! {
            () = &mut ending => {}
            result = &mut connection => {
                ending.await;
                return result;
            }
        }
    }
    stop.cancel();
    connection.await
}

async fn end_tasks(shared: &SharedState, manager: &Manager) {
    let mut live = shared.live.subscribe();
    let count = live.borrow().len();
    if count > 0 {
        tracing::info!(tasks = count, "the agent ends and takes its tasks with it");
    }
    manager.end_all(KillOrder::AtOnce);
    let ended = tokio::time::timeout(TASKS_END_WITHIN, live.wait_for(BTreeSet::is_empty))
        .await
        .is_ok();
    if !ended {
        tracing::error!("some tasks did not end; the next start of this agent takes them up");
    }
    let wait_until_reported =
        tokio::time::timeout(REPORTS_WITHIN, shared.outbox.wait_until_reported()).await;
    if wait_until_reported.is_err() {
        tracing::info!(
            "the master has not confirmed everything of the tasks; the next start of this agent reports the rest"
        );
    }
}

/// Runs the configured command after the agent gave up connecting.
async fn connection_lost_hook(hook: &[String]) {
    let Some((program, arguments)) = hook.split_first() else {
        return;
    };
    tracing::info!(program, "running the hook for a lost connection");
    match tokio::process::Command::new(program)
        .args(arguments)
        .stdin(std::process::Stdio::null())
        .status()
        .await
    {
        Ok(status) if status.success() => {}
        Ok(status) => tracing::error!(program, %status, "the hook for a lost connection failed"),
        Err(error) => {
            tracing::error!(program, %error, "the hook for a lost connection cannot be run");
        }
    }
}
