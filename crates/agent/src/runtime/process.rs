//! Tasks as sandboxed processes of this host.
//!
//! The supervisor is started as `<container dir>/det-supervisor sandbox <container dir>` in a session of its own, so it
//! outlives the agent, and it is found again by process number and start time.
//!
//! An agent may die between recording that it will start a process and recording the process. The next one then looks
//! for the supervisor by its command line. The result is reliable, because the lock on the data directory is inherited
//! over `fork` and released at `exec`: while an agent holds the lock, no child of an earlier agent can be between
//! `fork` and `exec`.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use det_ids::ContainerId;
use det_taskspec::sandbox::STANDBY_VARIABLE;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::cgroup::{Cgroup, CgroupRoot, NO_GROUPS};
use super::procfs;
use super::warm::WarmStart;
use crate::containers::store::{ContainerDir, ProcessIdentity};
use crate::options::{Limits, TaskLimits};

/// Starts and follows supervisors as processes.
#[derive(Debug)]
pub(crate) struct ProcessRuntime {
    cgroups: CgroupRoot,
}

impl ProcessRuntime {
    /// Detects what this host allows.
    pub(crate) fn new() -> Self {
        Self {
            cgroups: CgroupRoot::detect(),
        }
    }

    /// Starts the supervisor of a container whose directory is complete, within these limits. Without the right to limit
    /// tasks it is started all the same, unless the limits are required, and the reason is returned. Blocking.
    pub(crate) fn start(
        &self,
        dir: &ContainerDir,
        container_id: &ContainerId,
        limits: &TaskLimits,
        warm: Option<&WarmStart>,
    ) -> io::Result<(ProcessIdentity, Option<String>)> {
        let group = self.cgroups.group(container_id.as_str());
        if limits.limits.any() {
            let entries = group.as_ref().map_or_else(
                || Err(io::Error::other(NO_GROUPS)),
                |group| group.create(&limits.limits),
            );
            match entries.and_then(|entries| Self::spawn(dir, entries, true, warm)) {
                Ok(identity) => return Ok((identity, None)),
                Err(error) if limits.required => {
                    return Err(io::Error::other(format!(
                        "\"task_limits\" of the agent's configuration are required, and cannot be set: {error}"
                    )));
                }
                Err(error) => {
                    let identity = self.start_unlimited(dir, container_id, warm)?;
                    return Ok((identity, Some(error.to_string())));
                }
            }
        }
        let identity = self.start_unlimited(dir, container_id, warm)?;
        Ok((identity, None))
    }

    fn start_unlimited(
        &self,
        dir: &ContainerDir,
        container_id: &ContainerId,
        warm: Option<&WarmStart>,
    ) -> io::Result<ProcessIdentity> {
        let entries = self.cgroups.group(container_id.as_str()).and_then(|group| {
            group
                .remove()
                .and_then(|()| group.create(&Limits::default()))
                .inspect_err(|error| tracing::debug!(%error, "no control group for this task"))
                .ok()
        });
        Self::spawn(dir, entries.unwrap_or_default(), false, warm)
    }

    /// Why tasks of this host cannot have these limits; `None` = they can. Blocking.
    pub(crate) fn limits_refusal(&self, limits: &Limits) -> Option<String> {
        self.cgroups.refusal(limits)
    }

    /// Whether the kernel has killed a process of the container for lack of memory. Blocking.
    pub(crate) fn ran_out_of_memory(&self, container_id: &ContainerId) -> bool {
        let group = self.cgroups.group(container_id.as_str());
        group.is_some_and(|group| group.oom_kills() > 0)
    }

    /// Starts the supervisor in the groups that these files belong to; `must_enter` = it is not started outside of them.
    fn spawn(
        dir: &ContainerDir,
        entries: Vec<File>,
        must_enter: bool,
        warm: Option<&WarmStart>,
    ) -> io::Result<ProcessIdentity> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(dir.sandbox_log())?;
        let mut command = Command::new(dir.supervisor());
        command
            .arg("sandbox")
            .arg(dir.path())
            .current_dir("/")
            // The task's environment is in its script; the agent's own contains secrets and is not passed on.
            .env_clear()
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let standby = warm.and_then(|warm| warm.standby(&entries));
        if let Some(standby) = &standby {
            tracing::debug!(container.dir = %dir.path().display(), "a standby waits for the Python program of this task");
            inherit(&mut command, STANDBY_VARIABLE, standby);
        }
        detach(&mut command, entries, must_enter);
        let child = spawn_linked(&mut command)?;
        let pid = i32::try_from(child.id())
            .map_err(|_| io::Error::other("the kernel gave a process number out of range"))?;
        // Not reaped here: see `wait`. Until then the kernel does not reuse its process id.
        procfs::identify(pid)
    }

    /// Finds the supervisor of a container that an earlier agent may have started without recording it. Blocking.
    pub(crate) fn find(dir: &ContainerDir) -> Option<ProcessIdentity> {
        procfs::find_supervisor(dir.path())
    }

    /// Waits for the end of the process. Dropping this future loses nothing.
    pub(crate) async fn wait(identity: &ProcessIdentity) {
        match open(identity) {
            Ok(Some(fd)) => {
                if let Err(error) = until_readable(fd).await {
                    tracing::debug!(%error, "a process descriptor cannot be waited for");
                    poll_until_ended(identity).await;
                }
            }
            Ok(None) => {}
            // A kernel before 5.3.
            Err(_) => poll_until_ended(identity).await,
        }
        reap(identity);
    }

    /// Sends a signal to exactly this process; ignored if it has ended.
    pub(crate) fn signal(identity: &ProcessIdentity, signal: Signal) {
        let sent = match open(identity) {
            Ok(None) => Ok(()),
            Ok(Some(fd)) => rustix::process::Signal::from_named_raw(signal as i32).map_or(
                Err(Errno::EINVAL),
                |signal| {
                    pidfd_send_signal(&fd, signal)
                        .map_err(|error| Errno::from_raw(error.raw_os_error()))
                },
            ),
            Err(_) if procfs::is_running(identity) => {
                nix::sys::signal::kill(Pid::from_raw(identity.pid), signal)
            }
            Err(_) => Ok(()),
        };
        match sent {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => {
                tracing::warn!(pid = identity.pid, %error, "cannot send {signal} to a supervisor");
            }
        }
    }

    /// Kills every process of a container, also if its supervisor has ended. Blocking.
    pub(crate) fn kill_all(&self, identity: Option<&ProcessIdentity>, container_id: &ContainerId) {
        if let Some(identity) = identity {
            Self::signal(identity, Signal::SIGKILL);
        }
        let group = self.cgroups.group(container_id.as_str());
        // A session id is reliable only as long as the process id of its leader cannot have been reused.
        let session = identity
            .filter(|identity| identity.boot_id == procfs::boot_id())
            .filter(|identity| {
                procfs::stat(identity.pid)
                    .is_none_or(|stat| stat.start_ticks == identity.start_ticks)
            })
            .map(|identity| identity.pid);
        // Processes may be created meanwhile, so repeat until there are none.
        for _ in 0..50 {
            let in_group = group.as_ref().map_or(0, Cgroup::kill_all);
            let members = procfs::members(session, container_id);
            for pid in &members {
                if let Err(error) = nix::sys::signal::kill(Pid::from_raw(*pid), Signal::SIGKILL) {
                    tracing::debug!(pid, %error, "a process of an ended task was gone");
                }
            }
            if in_group == 0 && members.is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        tracing::warn!(
            container.id = %container_id,
            "processes of an ended task do not die; the kernel may be waiting for a device"
        );
    }

    /// Removes what exists outside the container's directory. Blocking.
    pub(crate) fn remove(&self, container_id: &ContainerId) -> io::Result<()> {
        self.cgroups
            .group(container_id.as_str())
            .map_or(Ok(()), |group| group.remove())
    }
}

/// Leaves a descriptor open for the child, and its number in a variable. It must be open until the child is started.
#[expect(
    unsafe_code,
    reason = "descriptors are closed by `exec` unless their flag is changed between fork and exec"
)]
fn inherit(command: &mut Command, variable: &str, descriptor: &OwnedFd) {
    let number = descriptor.as_raw_fd();
    command.env(variable, number.to_string());
    // SAFETY: the closure only makes the system call fcntl, safe after a fork, on a descriptor that is open as long as the
    // caller keeps it, and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            let descriptor = BorrowedFd::borrow_raw(number);
            fcntl(descriptor, FcntlArg::F_SETFD(FdFlag::empty()))?;
            Ok(())
        });
    }
}

/// Makes the child lead a session of its own and enter control groups; `must_enter` = it is not started where it cannot.
#[expect(
    unsafe_code,
    reason = "nothing else runs code between fork and exec, and only there can a session be made for the child"
)]
pub(super) fn detach(command: &mut Command, entries: Vec<File>, must_enter: bool) {
    // SAFETY: the closure only makes the system calls setsid, sigaction, sigprocmask and write, all safe after a fork
    // (signal-safety(7)), and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            nix::unistd::setsid()?;
            reset_signals()?;
            for entry in &entries {
                match nix::unistd::write(entry, b"0") {
                    Err(error) if must_enter => return Err(error.into()),
                    // Outside of its group the task can still be ended by the process table.
                    Ok(_) | Err(_) => {}
                }
            }
            Ok(())
        });
    }
}

/// Resets all signals of the child to their default action. An agent that a script has started in the background
/// ignores some, and the child would inherit that and lose signals before the supervisor handles them. With the default
/// action such a signal ends the supervisor, of whose task nothing runs yet.
#[expect(
    unsafe_code,
    reason = "there is no other way to set what a signal does"
)]
fn reset_signals() -> nix::Result<()> {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    SigSet::empty().thread_set_mask()?;
    for signal in Signal::iterator() {
        if matches!(signal, Signal::SIGKILL | Signal::SIGSTOP) {
            continue;
        }
        // SAFETY: the default action runs no code of this program.
        unsafe { sigaction(signal, &default) }?;
    }
    Ok(())
}

/// Starts a program whose file may just have been written: while any thread of ours forks, the child holds the file open
/// for a moment and the kernel calls it busy.
fn spawn_linked(command: &mut Command) -> io::Result<std::process::Child> {
    for _ in 0..50 {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                std::thread::sleep(Duration::from_millis(10));
            }
            other => return other,
        }
    }
    command.spawn()
}

/// A descriptor of exactly this process; `Ok(None)` if it has ended, `Err` if the kernel has no such descriptors.
fn open(identity: &ProcessIdentity) -> Result<Option<OwnedFd>, rustix::io::Errno> {
    let Some(pid) = rustix::process::Pid::from_raw(identity.pid) else {
        return Ok(None);
    };
    match pidfd_open(pid, PidfdFlags::empty()) {
        // Checked after opening: the descriptor refers to the process that was checked.
        Ok(fd) => Ok(procfs::is_running(identity).then_some(fd)),
        Err(rustix::io::Errno::SRCH) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A process descriptor becomes readable when its process ends.
#[expect(
    unsafe_code,
    reason = "the runtime cannot check that a descriptor stays what it is; an owned one does"
)]
async fn until_readable(fd: OwnedFd) -> io::Result<()> {
    // SAFETY: an `OwnedFd` stays open, and the same, until it is dropped, and the runtime owns it from here on.
    let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }
        .map_err(io::Error::from)?;
    fd.readable().await.map(|_| ())
}

async fn poll_until_ended(identity: &ProcessIdentity) {
    while procfs::is_running(identity) {
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

/// Reaps a child of this process. A process that an earlier agent started is not a child, and needs no reaping.
fn reap(identity: &ProcessIdentity) {
    let pid = identity.pid;
    let is_waiting = procfs::stat(pid)
        .is_some_and(|stat| stat.start_ticks == identity.start_ticks && stat.has_ended());
    if !is_waiting {
        return;
    }
    match waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG)) {
        Ok(_) | Err(Errno::ECHILD) => {}
        Err(error) => tracing::debug!(pid, %error, "cannot reap a supervisor"),
    }
}

/// Puts the supervisor's executable at `to`: as a hard link if the file system allows it, else as a link to a copy that
/// is created once. Containers that start at the same time wait for that copy: a small disk cannot hold several.
pub(crate) fn place_supervisor(supervisor: &Path, bin: &Path, to: &Path) -> io::Result<()> {
    match std::fs::remove_file(to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // `link` does not follow a link at its end.
    let supervisor = std::fs::canonicalize(supervisor)?;
    if std::fs::hard_link(&supervisor, to).is_ok() {
        return Ok(());
    }
    let _copying = COPYING.lock().unwrap_or_else(PoisonError::into_inner);
    let copy = copied(&supervisor, bin)?;
    if std::fs::hard_link(&copy, to).is_ok() {
        return Ok(());
    }
    std::fs::copy(&copy, to).map(|_| ())
}

/// Held while copies of the supervisor are created, removed or linked to.
static COPYING: Mutex<()> = Mutex::new(());

/// A copy of the supervisor in the data directory, named after the version of the file it is a copy of.
fn copied(supervisor: &Path, bin: &Path) -> io::Result<PathBuf> {
    let metadata = std::fs::metadata(supervisor)?;
    let copy = bin.join(format!(
        "{COPY_PREFIX}{}-{}-{}",
        metadata.len(),
        metadata.mtime(),
        metadata.mtime_nsec()
    ));
    if copy.exists() {
        return Ok(copy);
    }
    remove_copies(bin)?;
    let unfinished = bin.join(format!("{COPY_PREFIX}unfinished"));
    std::fs::copy(supervisor, &unfinished)
        .and_then(|_| std::fs::set_permissions(&unfinished, std::fs::Permissions::from_mode(0o755)))
        .and_then(|()| std::fs::rename(&unfinished, &copy))
        // A part of it takes disk space from running tasks.
        .inspect_err(|_| drop(std::fs::remove_file(&unfinished)))?;
    Ok(copy)
}

const COPY_PREFIX: &str = "det-supervisor-";

/// Removes copies of other versions, and unfinished ones. Containers that run keep theirs by their own links.
fn remove_copies(bin: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(bin)? {
        let entry = entry?;
        if entry
            .file_name()
            .to_str()
            .is_some_and(|name| name.starts_with(COPY_PREFIX))
        {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child() -> (std::process::Child, ProcessIdentity) {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let identity = procfs::identify(i32::try_from(child.id()).unwrap()).unwrap();
        (child, identity)
    }

    #[tokio::test]
    async fn the_end_of_a_process_is_noticed_and_it_is_reaped() {
        let (_child, identity) = child();
        let wait = ProcessRuntime::wait(&identity);
        tokio::pin!(wait);
        assert!(futures::poll!(wait.as_mut()).is_pending());
        ProcessRuntime::signal(&identity, Signal::SIGKILL);
        wait.await;
        assert!(
            procfs::stat(identity.pid).is_none_or(|stat| stat.start_ticks != identity.start_ticks)
        );
        ProcessRuntime::signal(&identity, Signal::SIGKILL);
        ProcessRuntime::wait(&identity).await;
    }

    #[tokio::test]
    async fn a_process_with_the_number_of_another_is_left_alone() {
        let (mut child, identity) = child();
        let earlier = ProcessIdentity {
            start_ticks: identity.start_ticks - 1,
            ..identity.clone()
        };
        ProcessRuntime::signal(&earlier, Signal::SIGKILL);
        ProcessRuntime::wait(&earlier).await;
        assert!(procfs::is_running(&identity));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_child_ignores_and_blocks_nothing() {
        let mut command = Command::new("cat");
        command.arg("/proc/self/status").stdout(Stdio::piped());
        detach(&mut command, Vec::new(), false);
        // Whatever this program ignores, as one that `nohup` has started.
        let output = command.spawn().unwrap().wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let set = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            u64::from_str_radix(line.unwrap().trim(), 16).unwrap()
        };
        // Real-time signals, two of which the C library reserves, are not checked.
        let standard = (1 << 31) - 1;
        assert_eq!(set("SigIgn:") & standard, 0, "{text}");
        assert_eq!(set("SigBlk:"), 0, "{text}");
    }

    #[test]
    fn everything_of_a_container_is_killed_even_what_left_its_session() {
        let id = ContainerId(uuid::Uuid::new_v4().to_string());
        let mut child = Command::new("setsid")
            .args(["sleep", "60"])
            .env("DET_CONTAINER_ID", id.as_str())
            .spawn()
            .unwrap();
        // In the middle of an exec a process has no environment to be known by.
        let limit = std::time::Instant::now() + Duration::from_secs(30);
        while procfs::members(None, &id).is_empty() {
            assert!(
                std::time::Instant::now() < limit,
                "the process never showed"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        let reaper = std::thread::spawn(move || child.wait());
        ProcessRuntime::new().kill_all(None, &id);
        assert!(!reaper.join().unwrap().unwrap().success());
        assert!(procfs::members(None, &id).is_empty());
    }

    #[test]
    fn containers_that_start_at_once_share_one_copy_of_the_supervisor_and_old_ones_go() {
        let root = tempfile::tempdir().unwrap();
        // Another file system: no hard link leads there.
        let Ok(elsewhere) = tempfile::tempdir_in("/dev/shm") else {
            return println!("SKIPPED: /dev/shm cannot be written to");
        };
        let supervisor = root.path().join("det-supervisor");
        std::fs::write(&supervisor, "of now").unwrap();
        let bin = elsewhere.path();
        std::fs::write(bin.join("det-supervisor-1-2-3"), "of an older version").unwrap();
        std::fs::write(bin.join("det-supervisor-unfinished"), "of n").unwrap();
        let placed: Vec<_> = (0..8).map(|n| bin.join(format!("placed-{n}"))).collect();
        std::thread::scope(|threads| {
            for to in &placed {
                threads.spawn(|| place_supervisor(&supervisor, bin, to).unwrap());
            }
        });
        let inodes: std::collections::BTreeSet<_> = placed
            .iter()
            .map(|to| std::fs::metadata(to).unwrap().ino())
            .collect();
        assert_eq!(inodes.len(), 1);
        assert_eq!(std::fs::read_to_string(&placed[0]).unwrap(), "of now");
        let copies = std::fs::read_dir(bin)
            .unwrap()
            .filter(|entry| {
                let name = entry.as_ref().unwrap().file_name();
                name.to_string_lossy().starts_with(COPY_PREFIX)
            })
            .count();
        assert_eq!(copies, 1);
    }

    #[test]
    fn the_supervisor_is_linked_and_placing_it_again_is_harmless() {
        let root = tempfile::tempdir().unwrap();
        let supervisor = root.path().join("det-supervisor");
        std::fs::write(&supervisor, "#!").unwrap();
        let link = root.path().join("link");
        std::os::unix::fs::symlink(&supervisor, &link).unwrap();
        let to = root.path().join("placed");
        place_supervisor(&link, root.path(), &to).unwrap();
        place_supervisor(&link, root.path(), &to).unwrap();
        assert!(to.symlink_metadata().unwrap().is_file());
        assert_eq!(std::fs::read(&to).unwrap(), b"#!");
        let copy = copied(&supervisor, root.path()).unwrap();
        assert_eq!(copied(&supervisor, root.path()).unwrap(), copy);
        assert_eq!(copy.metadata().unwrap().mode() & 0o777, 0o755);
    }
}
