//! The containers of an agent: one actor for each, from the master's request to start it until it is removed.

mod accounts;
mod actor;
mod container;
mod exit;
mod grants;
mod handover;
pub(crate) mod prepare;
mod sources;
pub(crate) mod store;
pub(crate) mod user_directory;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use det_agent_proto::{ContainerReport, ContainerState, Dial, Welcome};
use det_ids::ContainerId;
use det_taskspec::diagnosis::DIAGNOSE_SIGNAL;
use det_taskspec::guard::HostGuard;
use det_taskspec::{ContainerExit, ContainerSpec, Device};
use nix::sys::signal::Signal;
use tokio::sync::{OnceCell, mpsc, watch};
use tokio::task::JoinSet;

use crate::data_dir::DataDir;
use crate::devices::LocalDevice;
use crate::host::HostFault;
use crate::master::MasterAddress;
use crate::options::AgentOptions;
use crate::outbox::Outbox;
use crate::python::{self, TaskPython};
use crate::runtime::Runtimes;
use crate::runtime::listeners::Listeners;
use crate::runtime::process::ProcessRuntime;
use crate::runtime::warm::WarmStart;
use crate::{tunnel, tunnel_server};
use actor::Actor;
use store::{ContainerDir, Identity, KillOrder, Phase, StoredContainer};

/// State that all actors share.
#[derive(Debug)]
pub(crate) struct SharedState {
    pub(crate) options: AgentOptions,
    /// The master as the agent reaches it.
    pub(crate) master: MasterAddress,
    pub(crate) data_dir: DataDir,
    pub(crate) devices: Vec<LocalDevice>,
    pub(crate) runtimes: Runtimes,
    pub(crate) outbox: Outbox,
    pub(crate) http: reqwest::Client,
    /// Data of the latest connection; `None` until there was one.
    pub(crate) session: watch::Sender<Option<Session>>,
    /// Containers of which a process may still run.
    pub(crate) live: watch::Sender<BTreeSet<ContainerId>>,
    /// The paths and capabilities of this host that tasks must not get.
    pub(crate) guard: HostGuard,
    /// Who listens on ports of this host.
    pub(crate) listeners: Arc<Listeners>,
    /// What keeps this host from starting containers.
    pub(crate) host_fault: HostFault,
    /// The interpreter of process tasks; determined when the first one starts.
    pub(crate) python: OnceCell<TaskPython>,
    /// With what the master opens tunnels; `None` = this agent accepts no connections.
    pub(crate) tunnel_identity: Option<tunnel_server::Identity>,
    /// What there is for warm starts of Python, once the agent has begun with it.
    pub(crate) warm: OnceLock<WarmStart>,
}

/// What the agent receives from a connection.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Session {
    pub(crate) welcome: Welcome,
    /// This host's address as the master sees it.
    pub(crate) host_address: String,
}

impl SharedState {
    /// The devices as the master knows them.
    pub(crate) fn wire_devices(&self) -> Vec<Device> {
        self.devices
            .iter()
            .map(|local| local.device.clone())
            .collect()
    }

    /// The master as tasks reach it.
    fn task_master(&self) -> MasterAddress {
        self.master.for_tasks(
            self.options.container_master_host.as_deref(),
            self.options.container_master_port,
        )
    }

    /// The Python settings of process tasks.
    pub(crate) async fn task_python(&self) -> &TaskPython {
        self.python
            .get_or_init(|| async {
                let prepared = python::prepare(
                    self.options.python.as_deref(),
                    self.options.python_package_dir.as_deref(),
                    &self.data_dir.bin(),
                )
                .await;
                // The interpreter was checked at the start; if it was removed since, tasks fail with a message of their
                // own.
                prepared.unwrap_or_else(|error| {
                    tracing::error!("{error}; tasks get the python3 of the agent's PATH");
                    TaskPython::default()
                })
            })
            .await
    }

    /// The devices of a container's slots.
    fn devices_of(&self, spec: &ContainerSpec) -> Vec<LocalDevice> {
        let all = self.devices.iter();
        all.filter(|local| spec.slots.devices().contains(&local.device.id))
            .cloned()
            .collect()
    }

    /// Device files of the slots that are not a container's.
    fn other_nodes(&self, spec: &ContainerSpec) -> Vec<PathBuf> {
        let all = self.devices.iter();
        all.filter(|local| !spec.slots.devices().contains(&local.device.id))
            .flat_map(|local| local.nodes.iter().cloned())
            .collect()
    }

    /// Takes a container off those of which a process may still run.
    fn not_live(&self, container_id: &ContainerId) {
        self.live.send_if_modified(|live| live.remove(container_id));
    }
}

/// A command for an actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Command {
    Kill(KillOrder),
    Remove,
}

/// Owns the actors. Dropping it stops them and leaves the containers as they are.
#[derive(Debug)]
pub(crate) struct Manager {
    shared: Arc<SharedState>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    actors: BTreeMap<ContainerId, mpsc::UnboundedSender<Command>>,
    tasks: JoinSet<()>,
    /// Connections to ports of containers, and requests to their supervisors.
    tunnels: JoinSet<()>,
    /// Whether the tasks are being ended: then no container is started any more.
    is_closing: bool,
}

impl Manager {
    pub(crate) fn new(shared: Arc<SharedState>) -> Self {
        Self {
            shared,
            inner: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No code that holds the lock can panic between two changes that belong together.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adopts the containers that an earlier agent left. Blocking while it reads their directories.
    pub(crate) fn recover(&self) {
        let containers = self.shared.data_dir.containers();
        let trash = self.shared.data_dir.trash();
        store::empty_trash(&trash);
        let entries = match std::fs::read_dir(&containers) {
            Ok(entries) => entries,
            Err(error) => {
                tracing::error!(path = %containers.display(), %error, "cannot look for containers of an earlier start");
                return;
            }
        };
        let mut found = 0;
        for entry in entries.filter_map(Result::ok) {
            let id = ContainerId::from(entry.file_name().to_string_lossy().into_owned());
            let Ok(dir) = ContainerDir::new(&containers, &id) else {
                tracing::warn!(path = %entry.path().display(), "not a container's directory; left alone");
                continue;
            };
            match dir.load(self.shared.runtimes.kind) {
                StoredContainer::Container(container) => {
                    let (spec, record) = *container;
                    found += 1;
                    self.spawn(Actor::recovered(self.shared.clone(), dir, spec, record));
                }
                StoredContainer::Nothing { reason } => {
                    tracing::debug!(container.id = %id, "a start that was cut short: {reason}");
                    if let Err(error) = dir.remove(&trash) {
                        tracing::warn!(container.id = %id, "{error}");
                    }
                }
            }
        }
        if found > 0 {
            tracing::info!(containers = found, "took up containers of an earlier start");
        }
    }

    /// Connects to a port of a container for the master.
    pub(crate) fn dial(&self, dial: Dial) {
        let shared = self.shared.clone();
        let mut inner = self.lock();
        while inner.tunnels.try_join_next().is_some() {}
        inner
            .tunnels
            .spawn(async move { tunnel::carry(&shared, dial).await });
    }

    /// Has the supervisor of a container report to the master what its processes do; nothing if it does not run.
    pub(crate) fn diagnose(&self, container_id: ContainerId) {
        let shared = self.shared.clone();
        let mut inner = self.lock();
        while inner.tunnels.try_join_next().is_some() {}
        inner.tunnels.spawn(async move {
            if let Err(reason) = ask_for_diagnosis(&shared, &container_id).await {
                tracing::debug!(container.id = %container_id, "a supervisor was not asked what its task does: {reason}");
            }
        });
    }

    /// Whether this container is known.
    pub(crate) fn knows(&self, container_id: &ContainerId) -> bool {
        self.lock().actors.contains_key(container_id)
    }

    /// Starts a container, unless it is known already.
    pub(crate) fn start(&self, spec: ContainerSpec) {
        let id = spec.container_id.clone();
        let (is_known, is_closing) = {
            let inner = self.lock();
            let known = inner.actors.get(&id);
            (
                known.is_some_and(|commands| !commands.is_closed()),
                inner.is_closing,
            )
        };
        if is_closing && !is_known {
            // The next greeting does not name it, and the master starts it again.
            tracing::info!(container.id = %id, "not starting a container: the agent is ending");
            return;
        }
        if is_known {
            self.shared.outbox.repeat(&id);
            return;
        }
        match ContainerDir::new(&self.shared.data_dir.containers(), &id) {
            Ok(dir) => self.spawn(Actor::accepted(self.shared.clone(), dir, spec)),
            Err(error) => {
                tracing::error!("{error}");
                self.shared.outbox.report(ContainerReport {
                    container_id: id,
                    allocation_id: spec.allocation_id,
                    state: ContainerState::Terminated {
                        exit: ContainerExit::StartFailed {
                            message: error.to_string(),
                        },
                        cause: None,
                    },
                });
            }
        }
    }

    /// Passes the order to end a container to its task; nothing happens where it is not here.
    pub(crate) fn kill(&self, container_id: &ContainerId, order: KillOrder) {
        if !self.send(container_id, Command::Kill(order)) {
            tracing::debug!(container.id = %container_id, "asked to end a container that is not here");
        }
    }

    /// Lets a container be removed with its directory, since the master knows of its end.
    pub(crate) fn remove(&self, container_id: &ContainerId) {
        if !self.send(container_id, Command::Remove) {
            self.shared.outbox.remove(container_id);
        }
    }

    /// Ends all containers, and starts none from now on.
    pub(crate) fn end_all(&self, order: KillOrder) {
        let mut inner = self.lock();
        inner.is_closing = true;
        for commands in inner.actors.values() {
            // An actor that is gone has nothing left to end.
            let _ = commands.send(Command::Kill(order));
        }
    }

    fn send(&self, container_id: &ContainerId, command: Command) -> bool {
        self.lock()
            .actors
            .get(container_id)
            .is_some_and(|commands| commands.send(command).is_ok())
    }

    fn spawn(&self, actor: Actor) {
        let id = actor.container_id().clone();
        let (sender, receiver) = mpsc::unbounded_channel();
        if actor.is_live() {
            self.shared.live.send_modify(|live| {
                live.insert(id.clone());
            });
        }
        if actor.is_recorded() {
            actor.report_state();
        }
        let mut inner = self.lock();
        while let Some(ended) = inner.tasks.try_join_next() {
            if let Err(error) = ended {
                tracing::error!(%error, "the watch over a container broke; restart the agent to take it up again");
            }
        }
        inner.actors.retain(|_, commands| !commands.is_closed());
        inner.actors.insert(id, sender);
        inner.tasks.spawn(actor.run(receiver));
    }
}

/// Sends the supervisor of a container the signal that asks what its processes do. What runs is read from its record, which
/// no other container of the same number can be mistaken for.
async fn ask_for_diagnosis(shared: &Arc<SharedState>, id: &ContainerId) -> Result<(), String> {
    let dir = ContainerDir::new(&shared.data_dir.containers(), id).map_err(|e| e.to_string())?;
    let kind = shared.runtimes.kind;
    let loaded = tokio::task::spawn_blocking(move || dir.load(kind)).await;
    let record = match loaded.map_err(|error| error.to_string())? {
        StoredContainer::Container(container) => container.1,
        StoredContainer::Nothing { reason } => return Err(reason.to_string()),
    };
    let Phase::Started(started) = record.phase else {
        return Err("it does not run".to_owned());
    };
    let signal = Signal::try_from(DIAGNOSE_SIGNAL).map_err(|error| error.to_string())?;
    match started.identity {
        Identity::Process(process) => ProcessRuntime::signal(&process, signal),
        Identity::Engine { id } => {
            let engine = shared.runtimes.engine(record.runtime).await;
            engine.signal(&id, signal).await;
        }
    }
    Ok(())
}
