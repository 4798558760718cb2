//! The agent: devices, container runtimes, and the connection to the master.
//!
//! One agent serves one master on one host. It says what devices there are, starts and ends containers as it is told,
//! and reports what became of them. It decides nothing about what runs where. Its tasks outlive it: whatever it does is
//! written down first, and the next agent on the same data directory goes on.
//!
//! Read [`AgentOptions`] and [`run`] first; inside, `containers::actor` is the heart, `connection` the voice, `runtime`
//! the hands.

mod connection;
mod containers;
mod data_dir;
mod devices;
mod env;
mod isolation;
mod master;
mod mounts;
mod options;
mod outbox;
mod python;
mod runtime;
#[cfg(test)]
mod testing;
mod tls;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::{OnceCell, watch};
use tokio_util::sync::CancellationToken;

pub use data_dir::{DataDirError, TOKEN_FILE};
pub use det_taskspec::sandbox::{Isolation, IsolationRow};
pub use isolation::check_isolation;
pub use options::{
    AgentOptions, ClientIdentity, ProxyOptions, RuntimeChoice, Secret, SlotType, TlsOptions,
};
pub use python::PythonError;
pub use tls::TlsError;

use containers::store::{KillOrder, RuntimeKind};
use containers::{Manager, Shared};
use data_dir::DataDir;
use devices::Detection;
use master::MasterAddress;
use runtime::Runtimes;

/// How long a new agent waits for one that is just ending.
const LOCK_PATIENCE: Duration = Duration::from_secs(3);
/// How long tasks may take to end when the agent takes them with it; more than the patience with one task.
const TASKS_END_WITHIN: Duration = Duration::from_secs(20);
/// How long the last reports, and removing what they were about, may take.
const REPORTS_WITHIN: Duration = Duration::from_secs(3);
/// Longest wait for a TCP connection to the master's HTTP side.
const HTTP_CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Why an agent could not start, or ended by itself.
#[derive(Debug, Error)]
pub enum AgentError {
    /// The master's address is none.
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
    /// The supervisor's executable is not there.
    #[error(
        "the supervisor \"{}\" cannot be used: {source}; it is installed beside the det executable", path.display()
    )]
    Supervisor {
        /// Where it was looked for.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// HTTP to the master cannot be set up.
    #[error("cannot set up the HTTP client")]
    Http(#[source] reqwest::Error),
    /// Looking for devices broke off.
    #[error("looking for devices broke off: {0}")]
    Devices(String),
    /// The master refused this agent for good.
    #[error("the master refused this agent: {reason}")]
    Refused {
        /// The master's words.
        reason: String,
        /// Whether the master has given up this agent's tasks, because its devices or its pool are others than the
        /// master knew, or because its token was revoked: they have been ended.
        given_up: bool,
    },
    /// The number of attempts is used up.
    #[error("gave up on the master at {master} after {attempts} attempts: {reason}")]
    GaveUp {
        /// Its address.
        master: String,
        /// How many attempts there were.
        attempts: u32,
        /// What the last one said.
        reason: String,
    },
}

/// Runs an agent until `shutdown`, and then, if the options say so, ends its tasks.
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
    let http = reqwest::Client::builder()
        .tls_backend_preconfigured(tls.as_ref().clone())
        // Proxies are for tasks; the agent reaches its master directly, over HTTP as over the WebSocket.
        .no_proxy()
        .tcp_nodelay(true)
        .connect_timeout(HTTP_CONNECT_WITHIN)
        .build()
        .map_err(AgentError::Http)?;
    let python = OnceCell::new();
    if let (RuntimeKind::Process, Some(interpreter)) = (runtimes.kind, &options.python) {
        // A wrong path is said now, not by the first task.
        let package = options.python_package_dir.as_deref();
        let prepared = python::prepare(Some(interpreter), package, &data_dir.bin()).await?;
        // The cell was made three lines above.
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
    let guard = runtime::guard::of_host(&options, data_dir.path());
    let shared = Arc::new(Shared {
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
        python,
    });
    if shared.runtimes.kind == RuntimeKind::Process {
        look_at_isolation(&shared).await;
    }
    let manager = Manager::new(shared.clone());
    manager.recover();
    remove_strays(&shared, &manager).await;
    let result = serve_until(&shared, &manager, tls, shutdown).await;
    match &result {
        Err(
            AgentError::GaveUp { .. }
            | AgentError::Refused {
                given_up: false, ..
            },
        ) => {
            connection_lost_hook(&shared.options.on_connection_lost).await;
        }
        // They may run elsewhere by now.
        Err(AgentError::Refused { given_up: true, .. }) => end_tasks(&shared, &manager).await,
        _ => {}
    }
    result
}

/// Asks what process tasks can reach on this host, and says so where that is more than it should be.
async fn look_at_isolation(shared: &Arc<Shared>) {
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
        // Another agent of this program may have said it already.
        if shared.options.isolation_notice.set(notice.clone()).is_ok() {
            tracing::warn!("{notice}");
        }
    }
}

/// The TLS configuration. Without `https` none is used, but the HTTP client wants one: one that trusts nobody.
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
        })
    })
    .await
    .map_err(|error| AgentError::Devices(error.to_string()))
}

/// Removes engine containers of this data directory that have no directory in it.
async fn remove_strays(shared: &Shared, manager: &Manager) {
    let kind = shared.runtimes.kind;
    if kind == RuntimeKind::Process {
        return;
    }
    let engine = shared.runtimes.engine(kind).await;
    let removed = engine
        .remove_strays(shared.data_dir.instance_id(), |id| manager.knows(id))
        .await;
    if let Err(error) = removed {
        tracing::warn!("cannot look for containers that belong to nobody: {error}");
    }
}

/// Keeps the connection until `shutdown`; then ends the tasks if they are to end with the agent.
async fn serve_until(
    shared: &Shared,
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
        // The connection goes on meanwhile, so that the master hears of the ends.
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

async fn end_tasks(shared: &Shared, manager: &Manager) {
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
    let settled = tokio::time::timeout(REPORTS_WITHIN, shared.outbox.settled()).await;
    if settled.is_err() {
        tracing::info!(
            "not everything of the tasks is settled with the master; the next start of this agent does the rest"
        );
    }
}

/// Runs the command for a connection that is given up.
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
