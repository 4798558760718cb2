//! What tasks run in: sandboxed processes, or containers of an engine.

pub(crate) mod cgroup;
pub(crate) mod container_body;
pub(crate) mod engine;
pub(crate) mod engine_error;
pub(crate) mod guard;
mod image_accounts;
mod inspect;
pub(crate) mod listeners;
mod logins;
mod podman;
pub(crate) mod process;
pub(crate) mod procfs;
mod pull;
mod sock_diag;
pub(crate) mod warm;

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::OnceCell;

use crate::containers::store::RuntimeKind;
use crate::options::RuntimeChoice;
use engine::Engine;
use engine_error::EngineError;
use process::ProcessRuntime;

/// How long an engine may take to answer if it is configured by name.
const NAMED_PATIENCE: Duration = Duration::from_secs(10);
/// How long an engine may take to answer if the runtime is chosen automatically.
const AUTO_PATIENCE: Duration = Duration::from_secs(1);
/// Pause before an engine is asked again for containers that an earlier agent left in it.
const RETRY: Duration = Duration::from_secs(5);

/// The runtimes of this host: the one for new containers, and those in which older containers may run.
#[derive(Debug)]
pub(crate) struct Runtimes {
    pub(crate) kind: RuntimeKind,
    pub(crate) process: ProcessRuntime,
    socket: Option<PathBuf>,
    docker: OnceCell<Engine>,
    podman: OnceCell<Engine>,
}

impl Runtimes {
    /// Finds what the configured choice allows: an engine that answers, else processes if they are allowed.
    pub(crate) async fn choose(
        choice: RuntimeChoice,
        socket: Option<PathBuf>,
    ) -> Result<Self, EngineError> {
        let (wanted, patience) = match choice {
            RuntimeChoice::Process => (None, Duration::ZERO),
            RuntimeChoice::Docker => (Some(RuntimeKind::Docker), NAMED_PATIENCE),
            RuntimeChoice::Podman => (Some(RuntimeKind::Podman), NAMED_PATIENCE),
            RuntimeChoice::Auto => (Some(RuntimeKind::Docker), AUTO_PATIENCE),
        };
        let mut runtimes = Self {
            kind: RuntimeKind::Process,
            process: ProcessRuntime::new(),
            socket,
            docker: OnceCell::new(),
            podman: OnceCell::new(),
        };
        let Some(wanted) = wanted else {
            return Ok(runtimes);
        };
        match Engine::connect(wanted, runtimes.socket.as_deref(), patience).await {
            Ok(engine) => {
                runtimes.kind = engine.kind();
                tracing::info!(
                    version = engine.version(),
                    "tasks run in {} containers",
                    engine.kind().name()
                );
                let cell = match engine.kind() {
                    RuntimeKind::Podman => &mut runtimes.podman,
                    RuntimeKind::Docker | RuntimeKind::Process => &mut runtimes.docker,
                };
                *cell = OnceCell::new_with(Some(engine));
                Ok(runtimes)
            }
            Err(error) if choice == RuntimeChoice::Auto => {
                tracing::info!("tasks run as processes of this host: {error}");
                Ok(runtimes)
            }
            Err(error) => Err(error),
        }
    }

    /// The engine of a kind; an engine that does not answer is waited for.
    pub(crate) async fn engine(&self, kind: RuntimeKind) -> &Engine {
        let cell = match kind {
            RuntimeKind::Podman => &self.podman,
            RuntimeKind::Docker | RuntimeKind::Process => &self.docker,
        };
        cell.get_or_init(|| async {
            let mut said = false;
            loop {
                match Engine::connect(kind, self.socket.as_deref(), NAMED_PATIENCE).await {
                    Ok(engine) => return engine,
                    Err(error) => {
                        if !said {
                            tracing::warn!("containers of an earlier start wait: {error}");
                            said = true;
                        }
                        tokio::time::sleep(RETRY).await;
                    }
                }
            }
        })
        .await
    }
}
