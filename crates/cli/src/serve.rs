//! What the long-running processes (`det up`, `det master`, `det agent`) share: sources of configuration, signals, and the
//! files that are installed with the executable.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use det_config::env_name;
use det_config::secrets::shown_variable;
use det_server::app::reload::{Mode, ReloadCaller};
use nix::unistd::AccessFlags;
use rust_embed::RustEmbed;
use tokio::signal::unix::{SignalKind, signal};

use crate::error::CliError;

/// The supervisor's file name, in the directory of the executable.
const SUPERVISOR: &str = "det-supervisor";

/// The Python package `determined`.
#[derive(RustEmbed)]
#[folder = "../../python/src"]
#[include = "determined/**/*.py"]
#[include = "determined/py.typed"]
struct PythonPackage;

/// The runtime of an agent's tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RuntimeArg {
    /// Docker if its socket answers, else process
    Auto,
    /// Containers of Docker
    Docker,
    /// Containers of Podman
    Podman,
    /// Processes in a sandbox without images
    Process,
}

impl RuntimeArg {
    /// The name of this runtime in configurations.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::Process => "process",
        }
    }
}

/// The configuration files named, or the default one if it exists; each with its text, later ones stronger. A directory
/// means the files in it that end in `.yaml`, `.yml` or `.json`, sorted by name.
pub(crate) fn config_files(
    named: &[PathBuf],
    default: &str,
) -> Result<Vec<(String, String)>, CliError> {
    let default_path = [PathBuf::from(default)];
    let paths = if named.is_empty() {
        &default_path[..]
    } else {
        named
    };
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            for file in files_of_directory(path)? {
                files.push(read_config_file(&file)?);
            }
            continue;
        }
        match read_config_file(path) {
            Ok(file) => files.push(file),
            Err(_) if named.is_empty() && !path.exists() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(files)
}

fn read_config_file(path: &Path) -> Result<(String, String), CliError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok((path.display().to_string(), text)),
        Err(error) => Err(CliError::file("read the configuration file", path, &error)),
    }
}

fn files_of_directory(directory: &Path) -> Result<Vec<PathBuf>, CliError> {
    let failed = |error| {
        CliError::file(
            "read the directory of configuration files",
            directory,
            &error,
        )
    };
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory)
        .and_then(|entries| {
            entries
                .map(|entry| entry.map(|entry| entry.path()))
                .collect()
        })
        .map_err(failed)?;
    files.retain(|path| {
        let ending = path.extension().and_then(|ending| ending.to_str());
        matches!(ending, Some("yaml" | "yml" | "json")) && path.is_file()
    });
    files.sort();
    if files.is_empty() {
        return Err(CliError::request(format!(
            "the directory \"{}\" holds no configuration file (.yaml, .yml or .json)",
            directory.display()
        )));
    }
    Ok(files)
}

/// Variables of the environment as configuration.
pub(crate) struct Environment {
    /// Values by the name of the variable.
    pub(crate) values: BTreeMap<String, String>,
    /// For each variable whose value a file contains, the name that messages show for it.
    pub(crate) names: BTreeMap<String, String>,
}

/// The environment as configuration: every `DET_*` variable, and for a key whose `NAME_FILE` is set the content of that
/// file. `settable` are the names that take a value; `of_files` returns the variables that name files, each with the
/// variable that the file's content is for.
pub(crate) fn config_environment(
    settable: &[String],
    of_files: impl Fn(&BTreeMap<String, String>) -> Vec<(String, String)>,
) -> Result<Environment, CliError> {
    let is_key = |name: &str| settable.iter().any(|known| known == name);
    // Two underscores name an element of a list.
    let is_setting = |name: &str| {
        is_key(name) || name.strip_suffix("_FILE").is_some_and(is_key) || name.contains("__")
    };
    let (mut environment, mut names) = (BTreeMap::new(), BTreeMap::new());
    for (name, value) in std::env::vars_os() {
        let Some(name) = name.to_str().filter(|name| name.starts_with("DET_")) else {
            continue;
        };
        match value.into_string() {
            Ok(value) => {
                environment.insert(name.to_owned(), value);
            }
            Err(_) if is_setting(name) => {
                return Err(CliError::usage(format!(
                    "the variable {name} does not hold UTF-8 text"
                )));
            }
            Err(_) => {}
        }
    }
    for gpus in ["ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"] {
        if let Ok(value) = std::env::var(gpus) {
            environment.insert(gpus.to_owned(), value);
        }
    }
    for (file, name) in of_files(&environment) {
        let Some(path) = environment.remove(&file).map(PathBuf::from) else {
            continue;
        };
        if environment.contains_key(&name) {
            return Err(CliError::usage(format!(
                "both {name} and {file} are set; leave one of them away"
            )));
        }
        let text = std::fs::read_to_string(&path)
            .map_err(|e| CliError::file(&format!("read the file that {file} names,"), &path, &e))?;
        names.insert(name.clone(), format!("{file} ({})", path.display()));
        environment.insert(name, text.trim_end_matches('\n').to_owned());
    }
    Ok(Environment {
        values: environment,
        names,
    })
}

/// `--set KEY=VALUE` as flags.
pub(crate) fn set_flags(pairs: &[String]) -> Result<Vec<(String, String)>, CliError> {
    pairs
        .iter()
        .map(|pair| match pair.split_once('=') {
            Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
            None => Err(CliError::usage(format!(
                "--set \"{pair}\" is not KEY=VALUE"
            ))),
        })
        .collect()
}

/// Keys whose values are secrets and were given as flags, which every user of the host can read.
pub(crate) fn secrets_in_flags(flags: &[(String, String)]) -> Vec<&str> {
    flags
        .iter()
        .filter(|(key, value)| {
            let name = key.rsplit('.').next().unwrap_or(key);
            // The path of a file is no secret.
            let is_path = name.ends_with("_file") || value.starts_with('/');
            !is_path && shown_variable(name, value) != value.as_str()
        })
        .map(|(key, _)| key.as_str())
        .collect()
}

/// Logs a warning for each secret that was given as a flag.
pub(crate) fn warn_of_secrets(flags: &[(String, String)]) {
    for key in secrets_in_flags(flags) {
        let variable = env_name(key);
        tracing::warn!(
            "\"{key}\" was given on the command line, where every user of this host can read it: put it into the \
             configuration file, into the variable {variable}, or into a file named by {variable}_FILE"
        );
    }
}

/// Ctrl-C and SIGTERM. Once this exists, they do not end the process any more; a signal that arrives before anything waits
/// for it is not lost.
pub(crate) struct StopSignals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl StopSignals {
    /// Registers for the signals.
    pub(crate) fn new() -> Result<Self, CliError> {
        let failed =
            |e: std::io::Error| CliError::request(format!("could not wait for signals: {e}"));
        Ok(Self {
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
        })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// What a SIGHUP means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HangUp {
    /// Read the configuration again.
    Reload,
    /// Stop: the terminal that the process was started on is gone.
    Stop,
}

/// Waits for SIGHUP. Once this exists, the signal does not end the process any more.
pub(crate) struct HangUps {
    signals: tokio::signal::unix::Signal,
    /// Whether the process has a terminal and ends with it; one that was started to outlive it (`nohup`) does not.
    ends_with_terminal: bool,
}

impl HangUps {
    /// Registers for the signal.
    pub(crate) fn new() -> Result<Self, CliError> {
        // Read before the registration, which resets it.
        let is_ignored = ignores_hang_up();
        let signals = signal(SignalKind::hangup())
            .map_err(|e| CliError::request(format!("could not wait for signals: {e}")))?;
        Ok(Self {
            signals,
            ends_with_terminal: !is_ignored && has_terminal(),
        })
    }

    /// Waits for the next signal, and returns what it means.
    pub(crate) async fn next(&mut self) -> HangUp {
        if self.signals.recv().await.is_none() {
            // The runtime is ending, and with it the caller.
            std::future::pending::<()>().await;
        }
        // The kernel removes the terminal before it sends the signal.
        if self.ends_with_terminal && !has_terminal() {
            HangUp::Stop
        } else {
            HangUp::Reload
        }
    }

    /// Reads the configuration again at every SIGHUP, until the process is to stop.
    pub(crate) async fn reload(&mut self, master: &det_server::app::Master) {
        while self.next().await == HangUp::Reload {
            // The master logs the result itself.
            if let Err(error) = master
                .reload
                .take_on(ReloadCaller::Signal, Mode::Apply)
                .await
            {
                tracing::debug!(%error, "SIGHUP changed nothing");
            }
        }
    }
}

/// Whether the process has a controlling terminal.
fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

/// Whether the process was started with SIGHUP ignored.
fn ignores_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Signals are numbered from 1, bits from 0.
    mask.is_some_and(|mask| mask & (1 << (nix::libc::SIGHUP - 1)) != 0)
}

/// The path of the supervisor: named by `DET_SUPERVISOR`, else in the directory of this executable. Errs when it does not
/// exist there.
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
        "there is no \"{SUPERVISOR}\" in the directory of \"{}\"",
        own.display()
    ))
    .with_hint("install both files into one directory, or name it with DET_SUPERVISOR"))
}

/// Writes the Python package below `data_dir` and returns its directory. Files that have the right content already stay.
pub(crate) fn python_package(data_dir: &Path) -> Result<PathBuf, CliError> {
    let root = data_dir.join("python");
    if PythonPackage::iter().next().is_none() {
        // Such a build reads the files when it runs, from the tree in which it was built.
        tracing::warn!(
            "this is a debug build whose sources are gone: tasks do not find the Python package \"determined\" unless \
             their own environment has it; use a release build, or start det where it was built"
        );
    }
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
        // Written under another name and renamed: a task that starts meanwhile never reads half a file. A second agent
        // that is started on the same directory writes too, until it finds that the directory is in use.
        let aside = path.with_extension(format!("new-{}", std::process::id()));
        std::fs::File::create(&aside)
            .and_then(|mut out| out.write_all(&file.data))
            .and_then(|()| std::fs::rename(&aside, &path))
            .map_err(failed)?;
    }
    // Tasks run as any user and read it.
    make_readable(&root);
    Ok(root)
}

/// Lets every user read a directory with everything in it. Files whose mode cannot be changed are skipped: a task that
/// needs one reports it.
fn make_readable(path: &Path) {
    let mode = if path.is_dir() { 0o755 } else { 0o644 };
    let _ = std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode));
    if let Ok(entries) = std::fs::read_dir(path) {
        for entry in entries.flatten() {
            make_readable(&entry.path());
        }
    }
}

/// The data directory of a user's own cluster when no other is named.
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

/// Creates a directory that only its owner can read, and returns its absolute path. One of another owner, such as a volume,
/// is used if this user can write to it and it is closed to all but its owner and its group.
pub(crate) fn create_data_dir(path: &Path) -> Result<PathBuf, CliError> {
    let refuse = |e: std::io::Error| {
        CliError::file("use the data directory", path, &e)
            .with_hint("make it writable for this user, or name another with --data-dir")
    };
    std::fs::create_dir_all(path).map_err(refuse)?;
    // Tasks that run as other users reach the checkpoints in it through mounts of their own.
    match std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            let found = std::fs::metadata(path).map_err(refuse)?;
            let flags = AccessFlags::R_OK | AccessFlags::W_OK | AccessFlags::X_OK;
            let is_usable = nix::unistd::eaccess(path, flags).is_ok();
            judge_of_another(path, (found.uid(), found.mode()), is_usable)?;
        }
        set => set.map_err(refuse)?,
    }
    path.canonicalize().map_err(refuse)
}

/// Whether a data directory of another owner, with this mode, can be used.
fn judge_of_another(
    path: &Path,
    (owner, mode): (u32, u32),
    is_usable: bool,
) -> Result<(), CliError> {
    let path = path.display();
    let user = nix::unistd::geteuid();
    if !is_usable {
        return Err(CliError::request(format!(
            "the data directory \"{path}\" belongs to user {owner}, and this process (user {user}) cannot read and write it"
        ))
        .with_hint(format!(
            "chown {user} \"{path}\", or name another with --data-dir; for a volume of Kubernetes set fsGroup in the pod's \
             security context"
        )));
    }
    if mode & 0o007 != 0 {
        return Err(CliError::request(format!(
            "the data directory \"{path}\" belongs to user {owner} and is open to all users (mode {:03o}): it contains secrets, \
             and this process (user {user}) cannot close it",
            mode & 0o777
        ))
        .with_hint(format!(
            "chmod o-rwx \"{path}\" as its owner, or use a directory in it: --data-dir \"{path}/determined\""
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{judge_of_another, secrets_in_flags};

    #[test]
    fn a_data_directory_of_another_owner_is_used_if_it_can_be_written_and_is_closed_to_others() {
        let judged = |mode: u32, is_usable: bool| {
            let judged = judge_of_another("/var/lib/x".as_ref(), (17, mode), is_usable);
            judged.map_err(|error| error.to_string())
        };
        // A volume with the group of the pod.
        assert_eq!(judged(0o42770, true), Ok(()));
        let closed = judged(0o42770, false).unwrap_err();
        assert!(
            closed.contains("belongs to user 17") && closed.contains("cannot read and write"),
            "{closed}"
        );
        let open = judged(0o40777, true).unwrap_err();
        assert!(open.contains("open to all users (mode 777)"), "{open}");
    }

    #[test]
    fn flags_with_secrets_are_found_and_names_of_files_are_not() {
        let flags = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect()
        };
        let harmless = flags(&[
            ("db.url", "postgres://det@db/det"),
            ("security.tls.key", "/etc/det/key.pem"),
            ("agent_token_file", "token"),
            ("port", "80"),
        ]);
        assert!(secrets_in_flags(&harmless).is_empty());
        let given = flags(&[
            ("db.url", "postgres://det:pw@db/det"),
            ("db.password", "pw"),
            ("security.agent_token", "t"),
            ("checkpoint_storage.secret_key", "k"),
        ]);
        let keys: Vec<&str> = given.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(secrets_in_flags(&given), keys);
    }
}
