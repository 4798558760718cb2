//! The log of a long-running process, whose level can change while it runs.

use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use det_server::hub::Hub;
use det_server::master_log::MasterLog;
use tracing::Subscriber;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, reload};

use crate::error::CliError;

/// Where the log lines of a long-running process are written.
pub(crate) enum LogTarget<'a> {
    /// Standard error of the process.
    Stderr,
    /// A file; warnings and errors are written to standard error as well.
    File(&'a Path),
}

/// The log of the process.
pub(crate) struct ProcessLog {
    /// The last lines in memory, which `det master logs` reads.
    pub(crate) kept: MasterLog,
    /// Changes the level of the log.
    pub(crate) level: Level,
}

/// Replaces the filter of one output of the log.
type ReplaceFilter = Box<dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync>;

/// The level of a running log.
pub(crate) struct Level {
    filters: Vec<ReplaceFilter>,
}

impl Level {
    /// Logs from now on what is at least this important; `fatal` means the same as `error`.
    pub(crate) fn set(&self, level: &str) {
        for replace in &self.filters {
            let outcome = filter(level).map_err(|error| error.to_string());
            if let Err(error) = outcome.and_then(|new| replace(new).map_err(|e| e.to_string())) {
                tracing::error!(level, error, "the level of the log could not be changed");
            }
        }
    }

    /// A filter that follows this level.
    fn follow<S: Subscriber + 'static>(
        &mut self,
        filter: EnvFilter,
    ) -> reload::Layer<EnvFilter, S> {
        let (filter, handle) = reload::Layer::new(filter);
        self.filters.push(Box::new(move |new| handle.reload(new)));
        filter
    }
}

/// What libraries log. The warnings of rustls are about what unknown and older clients send (an address in place of a host
/// name), not about the master. The Kubernetes client logs each answer that is an error as one of its own: what follows from
/// it, which may be nothing, is for the manager of the cluster to log.
const LIBRARIES: &str = "warn,rustls=error,kube_client::client::builder=off";

/// Libraries log much at `info`; an operator wants to read only the lines of these crates.
fn filter(level: &str) -> Result<EnvFilter, ParseError> {
    let wanted = match level {
        "fatal" => "error",
        other => other,
    };
    EnvFilter::try_new(format!(
        "{LIBRARIES},det={wanted},det_server={wanted},det_agent={wanted},det_store={wanted}"
    ))
}

/// Starts logging for the whole process.
pub(crate) fn start(
    level: &str,
    color: bool,
    target: &LogTarget<'_>,
    hub: &Hub,
) -> Result<ProcessLog, CliError> {
    let log = MasterLog::new(hub.clone());
    let wanted = || {
        filter(level)
            .map_err(|e| CliError::usage(format!("log level \"{level}\" is not known: {e}")))
    };
    let mut follower = Level {
        filters: Vec::new(),
    };
    let kept = log.layer().with_filter(follower.follow(wanted()?));
    let color = color && std::io::IsTerminal::is_terminal(&std::io::stderr());
    let registry = tracing_subscriber::registry().with(kept);
    let outcome = match target {
        LogTarget::Stderr => {
            let stderr = tracing_subscriber::fmt::layer()
                .with_writer(std::io::stderr)
                .with_ansi(color)
                .with_filter(follower.follow(wanted()?));
            registry.with(stderr).try_init()
        }
        LogTarget::File(path) => {
            let failed = |e: std::io::Error| CliError::file("write the log", path, &e);
            let file = std::fs::OpenOptions::new()
                .create(true)
                .append(true)
                .mode(0o600)
                .open(path)
                .map_err(failed)?;
            // A file that an older version created may be readable by others.
            file.set_permissions(std::fs::Permissions::from_mode(0o600))
                .map_err(failed)?;
            let to_file = tracing_subscriber::fmt::layer()
                .with_writer(std::sync::Mutex::new(file))
                .with_ansi(false)
                .with_filter(follower.follow(wanted()?));
            let stderr = tracing_subscriber::fmt::layer()
                .with_writer(std::io::stderr)
                .with_ansi(color)
                .without_time()
                .with_target(false)
                .with_filter(EnvFilter::new(LIBRARIES));
            registry.with(to_file).with(stderr).try_init()
        }
    };
    outcome.map_err(|e| CliError::request(format!("could not start logging: {e}")))?;
    Ok(ProcessLog {
        kept: log,
        level: follower,
    })
}
