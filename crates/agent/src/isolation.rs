//! Checks what a process task can reach on this host, from within a sandbox that is built like a task's.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use det_ids::UserId;
use det_taskspec::guard::HostGuard;
use det_taskspec::sandbox::{Isolation, IsolationRow, RUN_SUBDIR, SANDBOX_FILE, SandboxSpec};
use det_taskspec::{ContainerExit, Entrypoint, SCRIPT_FILE, Script, TaskUser, WORK_DIR};

use crate::containers::prepare::{device_mappings, exposed, process_user};
use crate::data_dir::make_private_dir;
use crate::devices::LocalDevice;
use crate::options::AgentOptions;
use crate::python::{self, TaskPython};
use crate::runtime::guard;

/// What a check needs to know of the agent.
pub(crate) struct Check<'a> {
    pub(crate) supervisor: &'a Path,
    /// The agent's data directory, with links resolved.
    pub(crate) data_dir: &'a Path,
    pub(crate) guard: &'a HostGuard,
    pub(crate) devices: &'a [LocalDevice],
    pub(crate) python: &'a TaskPython,
    pub(crate) root_tasks: bool,
}

/// Checks what a process task of a user without a mapping can reach on this host, with these options. Needs no master,
/// and works while an agent runs on the same data directory.
///
/// # Errors
/// Why there is no sandbox on this host, as one sentence.
pub async fn check_isolation(options: &AgentOptions) -> Result<Vec<IsolationRow>, String> {
    let options = options.clone();
    let failed = |error: io::Error| format!("cannot check the sandbox of this host: {error}");
    make_private_dir(&options.data_dir).map_err(failed)?;
    let data_dir = std::fs::canonicalize(&options.data_dir).map_err(failed)?;
    let package = options.python_package_dir.as_deref();
    let python = python::prepare(options.python.as_deref(), package, &data_dir.join("bin"))
        .await
        .map_err(|error| error.to_string())?;
    let checked = tokio::task::spawn_blocking(move || {
        let guard = guard::of_host(&options, &data_dir);
        run(&Check {
            supervisor: &options.supervisor_path,
            data_dir: &data_dir,
            guard: &guard,
            devices: &[],
            python: &python,
            root_tasks: options.root_tasks,
        })
    });
    checked.await.map_err(|error| error.to_string())?
}

/// Builds a sandbox and checks from within. Blocking.
pub(crate) fn run(check: &Check<'_>) -> Result<Vec<IsolationRow>, String> {
    let dir = check
        .data_dir
        .join(format!("check-{}", uuid::Uuid::new_v4()));
    let asked = ask(check, &dir);
    if let Err(error) = std::fs::remove_dir_all(&dir) {
        tracing::debug!(dir = %dir.display(), %error, "the directory of a check stays");
    }
    let output =
        asked.map_err(|error| format!("cannot check the sandbox of this host: {error}"))?;
    if let Ok(rows) = serde_json::from_slice(&output) {
        return Ok(rows);
    }
    Err(match serde_json::from_slice::<ContainerExit>(&output) {
        Ok(ContainerExit::StartFailed { message } | ContainerExit::SetupFailed { message, .. }) => {
            message
        }
        Ok(_) | Err(_) => "the sandbox of this host gave no answer about itself".to_owned(),
    })
}

fn ask(check: &Check<'_>, dir: &Path) -> io::Result<Vec<u8>> {
    make_private_dir(&dir.join(RUN_SUBDIR))?;
    std::fs::write(dir.join(SANDBOX_FILE), serde_json::to_vec(&spec(check))?)?;
    let to = dir.join(RUN_SUBDIR).join(SCRIPT_FILE);
    std::fs::write(to, serde_json::to_vec(&script())?)?;
    let output = Command::new(check.supervisor)
        .arg("check")
        .arg(dir)
        .current_dir("/")
        .env_clear()
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()?;
    Ok(output.stdout)
}

fn spec(check: &Check<'_>) -> SandboxSpec {
    SandboxSpec {
        shown_ids: None,
        user: process_user(&TaskUser::default(), UserId::default(), check.root_tasks),
        mounts: Vec::new(),
        user_directory: None,
        shm_size_bytes: 1 << 20,
        python_dir: check.python.dir.clone(),
        python_path: check.python.package_path.clone(),
        env: Vec::new(),
        devices: device_mappings(check.devices).collect(),
        guard: check.guard.clone(),
        exposed: exposed(check.python),
        notice: None,
        warm: None,
    }
}

/// A script that is never run.
fn script() -> Script {
    Script {
        task_type: det_taskspec::TaskKind::Command,
        allocation_id: "check".into(),
        task_id: "check".into(),
        container_id: "check".into(),
        env: Vec::new(),
        work_dir: WORK_DIR.to_owned(),
        context: false,
        startup_hook: false,
        pool_startup_hook: None,
        rendezvous: false,
        storage_probe: None,
        entrypoint: Entrypoint::Argv(Vec::new()),
        readiness: Vec::new(),
        readiness_port: None,
        idle_check: None,
        system_metrics: None,
        task_metrics: None,
        files: Vec::new(),
        token: String::new(),
        grace_seconds: 0,
        save_seconds: None,
    }
}

/// A warning about the sandbox of this host, as one sentence; `None` = it isolates tasks as it should.
pub(crate) fn notice(checked: &Result<Vec<IsolationRow>, String>) -> Option<String> {
    let rows = match checked {
        Ok(rows) => rows,
        Err(reason) => {
            return Some(format!(
                "this host cannot keep tasks apart, so that those of the process runtime do not start: {reason}"
            ));
        }
    };
    let open: Vec<&str> = rows
        .iter()
        .filter(|row| row.outcome == Isolation::Open)
        .map(|row| row.what.as_str())
        .collect();
    (!open.is_empty()).then(|| {
        format!(
            "this host does not keep tasks apart in every way ({}): run `det agent check-isolation` for the details",
            open.join(", ")
        )
    })
}

/// The directories that earlier checks may have left.
pub(crate) fn remove_leftovers(data_dir: &Path) {
    let entries = std::fs::read_dir(data_dir).into_iter().flatten().flatten();
    let left: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("check-"))
        .map(|entry| entry.path())
        .collect();
    for dir in left {
        if let Err(error) = std::fs::remove_dir_all(&dir) {
            tracing::debug!(dir = %dir.display(), %error, "the directory of a check stays");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_notice_names_what_is_open_or_why_there_is_no_sandbox() {
        let row = |what: &str, outcome| IsolationRow {
            what: what.into(),
            outcome,
            detail: String::new(),
        };
        let fine = [
            row("devices", Isolation::Isolated),
            row("network", Isolation::Shared),
        ];
        assert_eq!(notice(&Ok(fine.to_vec())), None);
        let open = notice(&Ok(vec![row("identity", Isolation::Open)])).unwrap();
        assert!(open.contains("(identity)"), "{open}");
        let none = notice(&Err("no user namespaces".into())).unwrap();
        assert!(none.ends_with("no user namespaces"), "{none}");
    }
}
