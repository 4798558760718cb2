//! Prepares the run directory so that the task can start.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use det_ids::ClusterId;
use det_taskspec::diagnosis::STACKS_DIR;
use det_taskspec::{CheckedMount, Script, TaskFile, variables as v};
use serde::Deserialize;

use crate::accelerators::{self, Accelerators};
use crate::clock::{Backoff, now_micros};
use crate::context;
use crate::environment::TaskEnv;
use crate::failure::SetupError;
use crate::info::{self, Rendezvous};
use crate::launch::{Launch, POOL_HOOK};
use crate::launch_ssh;
use crate::master::{Master, MasterError};
use crate::mounts;
use crate::probe;
use crate::ready::post_in_background;
use crate::report::Diagnostics;
use crate::rootfs;

/// Limit for the download of the context directory, which may be large.
const CONTEXT_TIMEOUT: Duration = Duration::from_mins(10);
/// Limit for one rendezvous call, which blocks until all containers have started. It is repeated, because a dead master
/// host is noticed only by a timeout.
const RENDEZVOUS_TIMEOUT: Duration = Duration::from_mins(2);

/// What the set-up of a task needs.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) script: Script,
    pub(crate) env: TaskEnv,
    pub(crate) run_dir: PathBuf,
    pub(crate) master: Master,
    pub(crate) diagnostics: Diagnostics,
    /// What must be mounted in the container.
    pub(crate) mounts: Vec<CheckedMount>,
    /// Whether files outside the run directory are in place already.
    pub(crate) in_sandbox: bool,
    /// Whether the task shares its host's network, which other hosts reach.
    pub(crate) shares_network: bool,
}

/// A task that can start.
#[derive(Debug)]
pub(crate) struct PreparedTask {
    pub(crate) launch: Launch,
    /// When the context was unpacked, in microseconds since 1970 UTC; `None` = there is none.
    pub(crate) context_unpacked: Option<i64>,
    /// Warnings for the task's log.
    pub(crate) warnings: Vec<String>,
}

/// The directories below the run directory and their modes.
const DIRECTORIES: [(&str, u32); 7] = [
    ("info", 0o755),
    ("workdir", 0o700),
    ("train", 0o700),
    ("train/model", 0o700),
    ("train/logs", 0o700),
    ("pythonuserbase", 0o700),
    (STACKS_DIR, 0o700),
];

/// Creates the directories that everything else needs.
pub(crate) fn make_directories(run_dir: &Path) -> Result<(), SetupError> {
    for (name, mode) in DIRECTORIES {
        make_directory(&run_dir.join(name), mode).map_err(|error| {
            SetupError::host(format!(
                "could not create {:?}: {error}",
                run_dir.join(name)
            ))
        })?;
    }
    Ok(())
}

fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(mode).create(path)
}

impl Setup {
    /// Does everything that comes before hooks, rendezvous and entrypoint.
    pub(crate) fn prepare(&self) -> Result<PreparedTask, SetupError> {
        mounts::check(&self.mounts)?;
        let mut warnings = self.place_files();
        if launch_ssh::is_wanted(&self.script) {
            warnings.extend(launch_ssh::prepare().err());
        }
        self.make_work_dir()?;
        let mut context_unpacked = None;
        // In parallel, because each of the three waits for something else: the network, a file server, a driver.
        let accelerators = thread::scope(|scope| {
            let accelerators = scope.spawn(|| accelerators::inspect(&self.env, &self.diagnostics));
            let probe = self.script.storage_probe.as_ref();
            let cluster = self.env.text(v::DET_CLUSTER_ID).unwrap_or_default();
            let cluster = ClusterId::from(cluster);
            let probe = probe.map(|storage| scope.spawn(move || probe::check(storage, &cluster)));
            let context = if self.script.context {
                self.fetch_context()
                    .map(|()| context_unpacked = Some(now_micros()))
            } else {
                Ok(())
            };
            let probe = probe.map_or(Ok(Vec::new()), |probe| joined(probe.join())?);
            let accelerators = joined(accelerators.join())?;
            warnings.extend(context.and(probe)?);
            Ok(accelerators)
        })?;
        info::write(
            &self.run_dir.join("info"),
            self.script.task_type,
            &self.env,
            &accelerators.uuids,
        )?;
        self.report_accelerators(&accelerators);
        if self.script.task_type.works_for_trial() {
            self.link_tensorboard();
        }
        Ok(PreparedTask {
            launch: Launch::prepare(&self.script, &self.env, &self.run_dir, self.shares_network)?,
            context_unpacked,
            warnings,
        })
    }

    /// Writes the task's files; returns messages about those that could not be written.
    fn place_files(&self) -> Vec<String> {
        let hook = self.script.pool_startup_hook.as_ref().map(|text| TaskFile {
            path: self.run_dir.join(POOL_HOOK).to_string_lossy().into_owned(),
            mode: 0o744,
            content: text.clone(),
        });
        self.script
            .files
            .iter()
            .chain(&hook)
            .filter(|file| !(self.in_sandbox && rootfs::places(file)))
            .filter_map(|file| {
                let error = place_file(file).err()?;
                Some(format!("could not place the file {:?}: {error}", file.path))
            })
            .collect()
    }

    fn make_work_dir(&self) -> Result<(), SetupError> {
        let work_dir = &self.env.work_dir;
        make_directory(work_dir, 0o755).map_err(|error| {
            SetupError::task(format!(
                "the working directory {work_dir:?} does not exist and could not be created by uid {}: {error}",
                nix::unistd::geteuid()
            ))
        })
    }

    fn fetch_context(&self) -> Result<(), SetupError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Answer {
            #[serde(default, alias = "b64_tgz")]
            b64_tgz: Option<String>,
        }
        let path = format!("/api/v1/tasks/{}/context_directory", self.script.task_id);
        let answer: Answer = self.retry("fetch the context directory", || {
            self.master.get(&path, CONTEXT_TIMEOUT)
        })?;
        let packed = answer.b64_tgz.unwrap_or_default();
        if packed.is_empty() {
            return Ok(());
        }
        let model = self.run_dir.join("train/model");
        let mut targets = vec![model.as_path()];
        if self.env.work_dir != model {
            targets.push(&self.env.work_dir);
        }
        context::unpack(&packed, &targets).map_err(|error| SetupError::task(error.to_string()))
    }

    /// Waits for the other containers of the allocation.
    pub(crate) fn rendezvous(&self) -> Result<Rendezvous, SetupError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Answer {
            #[serde(alias = "rendezvous_info")]
            rendezvous_info: Rendezvous,
        }
        let path = format!(
            "/api/v1/allocations/{}/resources/{}/rendezvous",
            self.script.allocation_id, self.script.container_id
        );
        let answer: Answer = self.retry("meet the other containers of the allocation", || {
            self.master.get(&path, RENDEZVOUS_TIMEOUT)
        })?;
        Ok(answer.rendezvous_info)
    }

    /// Repeats a call until the master answers: it may be restarted at any time.
    fn retry<T>(
        &self,
        what: &str,
        mut call: impl FnMut() -> Result<T, MasterError>,
    ) -> Result<T, SetupError> {
        let mut backoff = Backoff::new();
        let mut failing = false;
        loop {
            match call() {
                Ok(answer) => return Ok(answer),
                Err(error) if error.is_temporary() => {
                    if !std::mem::replace(&mut failing, true) {
                        self.diagnostics
                            .note(format!("could not {what} yet, trying on: {error}"));
                    }
                    thread::sleep(backoff.delay());
                }
                Err(error) => {
                    let message = format!("could not {what}: {error}");
                    return Err(match error {
                        // The allocation has ended, or the master is another one: not an error of the task.
                        MasterError::Status {
                            status: 401 | 403, ..
                        } => SetupError::host(message),
                        _ => SetupError::task(message),
                    });
                }
            }
        }
    }

    /// Reports the accelerators to the master in the background.
    fn report_accelerators(&self, accelerators: &Accelerators) {
        if !self.script.task_type.reports_accelerators() {
            return;
        }
        let path = format!(
            "/api/v1/allocations/{}/acceleratorData",
            self.script.allocation_id
        );
        let body = accelerators.report(&self.env).to_string().into_bytes();
        let what = "the accelerator report";
        post_in_background(&self.master, &self.diagnostics, what, path, body);
    }

    /// Old training code writes to `/tmp/tensorboard`, which leads to this allocation's own directory. On a shared
    /// `/tmp` the link may be another user's, which affects only such code.
    fn link_tensorboard(&self) {
        let dir = format!("/tmp/tensorboard-{}-0", self.script.allocation_id);
        let link = Path::new("/tmp/tensorboard");
        let linked = fs::create_dir_all(&dir).and_then(|()| {
            match fs::symlink_metadata(link) {
                Ok(found) if found.is_dir() => fs::remove_dir_all(link)?,
                Ok(_) => fs::remove_file(link)?,
                Err(_) => {}
            }
            std::os::unix::fs::symlink(&dir, link)
        });
        if let Err(error) = linked {
            self.diagnostics
                .note(format!("could not link {link:?} to {dir:?}: {error}"));
        }
    }
}

fn joined<T>(result: thread::Result<T>) -> Result<T, SetupError> {
    result.map_err(|_| {
        SetupError::host("the supervisor failed while it prepared the task; this is a bug")
    })
}

/// Writes a file with its parents, mode and content. An existing file with the right content is kept, because the agent
/// may have written what the task's user may not.
fn place_file(file: &TaskFile) -> io::Result<()> {
    let path = Path::new(&file.path);
    if fs::read(path).is_ok_and(|content| content == file.content.as_bytes())
        && fs::symlink_metadata(path)?.permissions().mode() & 0o7777 == file.mode
    {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        make_directory(parent, 0o700)?;
    }
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut created = File::options()
        .write(true)
        .create_new(true)
        .mode(file.mode & 0o700)
        .open(path)?;
    created.write_all(file.content.as_bytes())?;
    created.set_permissions(Permissions::from_mode(file.mode & 0o7777))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_gets_its_parents_mode_and_content_and_replaces_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ssh/id_rsa");
        let file = |content: &str, mode| TaskFile {
            path: path.to_str().unwrap().into(),
            mode,
            content: content.into(),
        };
        place_file(&file("one", 0o400)).unwrap();
        place_file(&file("two", 0o600)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().unwrap()), 0o700);
    }
}
