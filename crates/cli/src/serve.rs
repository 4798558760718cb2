//! What the long-running halves (`det up`, `det master`, `det agent`) share: configuration sources, logs, signals, and
//! the files that come with the executable.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use det_server::hub::Hub;
use det_server::master_log::MasterLog;
use rust_embed::RustEmbed;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use crate::error::CliError;

/// The supervisor's file name; it lies beside the executable.
const SUPERVISOR: &str = "det-supervisor";

/// Our Python package.
#[derive(RustEmbed)]
#[folder = "../../python/src"]
#[include = "determined/**/*.py"]
#[include = "determined/py.typed"]
struct PythonPackage;

/// The configuration files named, or the default one if it exists; each with its text.
pub(crate) fn config_files(
    named: Option<&Path>,
    default: &str,
) -> Result<Vec<(String, String)>, CliError> {
    let path = named.unwrap_or(Path::new(default));
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(vec![(path.display().to_string(), text)]),
        Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => {
            Ok(Vec::new())
        }
        Err(error) => Err(CliError::file("read the configuration file", path, &error)),
    }
}

/// The environment as configuration: every name known, and `NAME_FILE` read from the file it names.
pub(crate) fn config_environment(
    known: &[(String, String)],
) -> Result<BTreeMap<String, String>, CliError> {
    let mut environment = BTreeMap::new();
    for (name, _) in known {
        if let Ok(value) = std::env::var(name) {
            environment.insert(name.clone(), value);
        } else if let Some(path) = std::env::var_os(format!("{name}_FILE")) {
            let path = PathBuf::from(path);
            let text = std::fs::read_to_string(&path).map_err(|e| {
                CliError::file(&format!("read the file that {name}_FILE names,"), &path, &e)
            })?;
            environment.insert(name.clone(), text.trim_end_matches('\n').to_owned());
        }
    }
    Ok(environment)
}

/// Where log lines of a long-running half go.
pub(crate) enum LogTarget<'a> {
    /// Standard error.
    Stderr,
    /// A file; standard error gets warnings only.
    File(&'a Path),
}

/// Starts logging for the whole process and gives what `det master logs` reads.
pub(crate) fn start_logging(
    level: &str,
    color: bool,
    target: &LogTarget<'_>,
    hub: &Hub,
) -> Result<MasterLog, CliError> {
    let log = MasterLog::new(hub.clone());
    let wanted = match level {
        "fatal" => "error",
        other => other,
    };
    // Libraries say much at `info`; ours is what an operator wants to read. What rustls warns of is what strangers and
    // older clients send (an address in place of a host name), and no fault of the master's.
    let filter = || {
        EnvFilter::try_new(format!(
            "warn,rustls=error,det={wanted},det_server={wanted},det_agent={wanted},det_store={wanted}"
        ))
    };
    let filter_error = |e| CliError::usage(format!("log level \"{level}\" is not known: {e}"));
    let kept = log.layer().with_filter(filter().map_err(filter_error)?);
    let color = color && std::io::IsTerminal::is_terminal(&std::io::stderr());
    let registry = tracing_subscriber::registry().with(kept);
    let outcome = match target {
        LogTarget::Stderr => {
            let stderr = tracing_subscriber::fmt::layer()
                .with_writer(std::io::stderr)
                .with_ansi(color);
            registry
                .with(stderr.with_filter(filter().map_err(filter_error)?))
                .try_init()
        }
        LogTarget::File(path) => {
            let file = std::fs::OpenOptions::new()
                .create(true)
                .append(true)
                .open(path)
                .map_err(|e| CliError::file("write the log", path, &e))?;
            let to_file = tracing_subscriber::fmt::layer()
                .with_writer(std::sync::Mutex::new(file))
                .with_ansi(false)
                .with_filter(filter().map_err(filter_error)?);
            let warnings = EnvFilter::try_new("warn,rustls=error").map_err(filter_error)?;
            let stderr = tracing_subscriber::fmt::layer()
                .with_writer(std::io::stderr)
                .with_ansi(color)
                .without_time()
                .with_target(false)
                .with_filter(warnings);
            registry.with(to_file).with(stderr).try_init()
        }
    };
    outcome.map_err(|e| CliError::request(format!("could not start logging: {e}")))?;
    Ok(log)
}

/// Waits for Ctrl-C or SIGTERM.
pub(crate) async fn stop_signal() -> Result<(), CliError> {
    let failed = |e: std::io::Error| CliError::request(format!("could not wait for signals: {e}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// The supervisor's executable: named by `DET_SUPERVISOR`, or beside this executable.
pub(crate) fn supervisor_path() -> Result<PathBuf, CliError> {
    if let Some(path) = std::env::var_os("DET_SUPERVISOR") {
        return Ok(PathBuf::from(path));
    }
    let own = std::env::current_exe()
        .map_err(|e| CliError::request(format!("could not find this executable: {e}")))?;
    let path = own.with_file_name(SUPERVISOR);
    if path.is_file() {
        return Ok(path);
    }
    Err(CliError::request(format!(
        "there is no \"{SUPERVISOR}\" beside \"{}\"",
        own.display()
    ))
    .with_hint("install both files into one directory, or name it with DET_SUPERVISOR"))
}

/// Lays our Python package down below `data_dir` and gives its directory. Files that are there and right stay.
pub(crate) fn python_package(data_dir: &Path) -> Result<PathBuf, CliError> {
    let root = data_dir.join("python");
    for name in PythonPackage::iter() {
        let Some(file) = PythonPackage::get(&name) else {
            continue;
        };
        let path = root.join(name.as_ref());
        if std::fs::read(&path).is_ok_and(|have| have == *file.data) {
            continue;
        }
        let failed = |e: std::io::Error| CliError::file("write", &path, &e);
        let parent = path.parent().unwrap_or(&root);
        std::fs::create_dir_all(parent).map_err(failed)?;
        // Written aside and renamed: a task that starts meanwhile never sees half a file.
        let aside = path.with_extension("new");
        std::fs::File::create(&aside)
            .and_then(|mut out| out.write_all(&file.data))
            .and_then(|()| std::fs::rename(&aside, &path))
            .map_err(failed)?;
    }
    // Tasks of any user read it.
    open_to_read(&root);
    Ok(root)
}

/// Lets every user read a tree of ours. What cannot be changed stays as it is: the task will say what it misses.
fn open_to_read(path: &Path) {
    let mode = if path.is_dir() { 0o755 } else { 0o644 };
    let _ = std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode));
    if let Ok(entries) = std::fs::read_dir(path) {
        for entry in entries.flatten() {
            open_to_read(&entry.path());
        }
    }
}

/// Where a person's cluster keeps its data unless told otherwise.
pub(crate) fn default_data_dir() -> Result<PathBuf, CliError> {
    if let Some(dir) = std::env::var_os("DET_DATA_DIR").filter(|d| !d.is_empty()) {
        return Ok(PathBuf::from(dir));
    }
    if let Some(dir) = std::env::var_os("XDG_DATA_HOME").filter(|d| !d.is_empty()) {
        return Ok(PathBuf::from(dir).join("determined"));
    }
    std::env::var_os("HOME")
        .filter(|d| !d.is_empty())
        .map(|home| PathBuf::from(home).join(".local/share/determined"))
        .ok_or_else(|| {
            CliError::usage("neither HOME nor XDG_DATA_HOME is set")
                .with_hint("name a directory with --data-dir")
        })
}

/// Creates a directory that only its owner reads.
pub(crate) fn create_data_dir(path: &Path) -> Result<PathBuf, CliError> {
    let refuse = |e: std::io::Error| {
        CliError::file("use the data directory", path, &e)
            .with_hint("make it writable for this user, or name another with --data-dir")
    };
    std::fs::create_dir_all(path).map_err(refuse)?;
    // Checkpoints lie below it and belong to tasks of any user: it can be passed through, not listed.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o711)).map_err(refuse)?;
    path.canonicalize().map_err(refuse)
}
