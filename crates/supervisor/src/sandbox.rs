//! `det-supervisor sandbox`: a container made of namespaces.
//!
//! Two processes. The one *outside* is a child of the agent: it creates the namespaces, starts the other, forwards
//! signals, and waits. The one *inside* is the first process of the process namespace: it executes its program again from
//! a read-only mount, so that no process of the task gets a path by which it could change the program's file. Then it
//! builds the file system, changes to the task's user and continues like `det-supervisor run`. If either dies, everything
//! inside ends.

use std::collections::BTreeMap;
use std::ffi::{CString, OsString};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};

use det_taskspec::sandbox::{RUN_SUBDIR, SANDBOX_FILE, SANDBOX_LOG_FILE, SandboxSpec, Stages};
use det_taskspec::{ContainerExit, EXIT_FILE, SCRIPT_FILE, Script, TaskUser};
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, umask};
use nix::unistd::{
    Gid, Uid, User, getegid, geteuid, getgroups, initgroups, setgroups, setresgid, setresuid,
    setsid,
};
use serde::de::DeserializeOwned;

use crate::cgroup::oom_kills;
use crate::clock::now_micros;
use crate::confine;
use crate::failure::SetupError;
use crate::isolation;
use crate::report::{self, Diagnostics};
use crate::rootfs::{self, RootFs};
use crate::run::{self, ProcessContext};
use crate::signals;
use crate::warm::Standby;

/// The rights with which the namespaces were created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rights {
    /// As root: the task can run as any user.
    Root,
    /// In a user namespace, in which only the agent's user is mapped, as root.
    UserNamespace,
}

impl Rights {
    const ALL: [Self; 2] = [Self::Root, Self::UserNamespace];

    fn name(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::UserNamespace => "user-namespace",
        }
    }
}

/// The process outside. Ends with the status of the task.
pub(crate) fn outside(dir: &Path, start: i64) -> ExitCode {
    // Leave the agent's session and terminal; fails if the agent has already done it.
    match setsid() {
        Ok(_) | Err(_) => {}
    }
    let notes = Diagnostics::to_file(&dir.join(SANDBOX_LOG_FILE));
    let exit = match host(dir, start) {
        Ok(Some(exit)) => exit,
        // The report exists, and contains more than this process knows.
        Ok(None) => return reported_status(dir),
        Err(error) => error.into_exit(),
    };
    let status = report::exit_status(&exit);
    notes.note(format!(
        "the task ended without a report of its own: {exit:?}"
    ));
    if let Err(error) = report::write_exit(&dir.join(RUN_SUBDIR), &report::exit_report(&exit, None))
    {
        notes.note(format!("could not write the exit report: {error}"));
    }
    ExitCode::from(status)
}

fn reported_status(dir: &Path) -> ExitCode {
    let path = dir.join(RUN_SUBDIR).join(EXIT_FILE);
    let exit: Result<ContainerExit, _> = read_json(&path);
    ExitCode::from(exit.map_or(1, |exit| report::exit_status(&exit)))
}

/// Runs the process inside to its end. `Some` when it could not report itself.
fn host(dir: &Path, start: i64) -> Result<Option<ContainerExit>, SetupError> {
    let dir = dir.canonicalize().map_err(|error| {
        SetupError::host(format!("there is no container directory {dir:?}: {error}"))
    })?;
    let spec: SandboxSpec = read_json(&dir.join(SANDBOX_FILE))?;
    let notes = Diagnostics::to_file(&dir.join(SANDBOX_LOG_FILE));
    let standby = Standby::prepare(&dir, &spec).unwrap_or_else(|reason| {
        notes.note(reason);
        None
    });
    let oom_before = oom_kills();
    let ended = make_namespaces(&spec.user).and_then(|rights| {
        let mut child = start_inside(&dir, start, rights, TASK)?;
        let mut words = Vec::new();
        // Closed when the task has ended, and the warm process with it.
        let warm = standby.and_then(|standby| {
            let is_built = wait_until_built(&mut child, &mut words);
            let as_root = rights == Rights::Root;
            let admitted = is_built.then(|| standby.admit(child.id(), &spec, as_root))?;
            admitted.inspect_err(|reason| notes.note(reason)).ok()
        });
        let status = forward_signals_until_end(&mut child)?;
        drop(warm);
        Ok((status, last_words(&mut child, words)))
    });
    let oom_after = oom_kills();
    let (status, words) = ended?;
    let has_report =
        fs::symlink_metadata(dir.join(RUN_SUBDIR).join(EXIT_FILE)).is_ok_and(|m| m.is_file());
    if has_report {
        return Ok(None);
    }
    Ok(Some(words.unwrap_or_else(|| match status.signal() {
        Some(signal) if oom_after > oom_before => ContainerExit::Signaled {
            signal,
            out_of_memory: true,
        },
        // No process of the task can do that: the kernel lets none kill the first process of its namespace.
        Some(signal) => ContainerExit::Lost {
            message: format!(
                "the supervisor inside the sandbox was ended by signal {signal}, from outside of the task"
            ),
        },
        None => ContainerExit::StartFailed {
            message: format!("the supervisor ended inside the sandbox without a report: {status}"),
        },
    })))
}

/// The most bytes of a file that is read: a task's script with everything that its configuration may contain.
const MOST_BYTES: u64 = 64 << 20;

/// Reads a plain file. The task may have put something else in its place.
fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, SetupError> {
    let failed = |cause: String| SetupError::host(format!("could not read {path:?}: {cause}"));
    let bytes =
        det_spool::read_plain(path, MOST_BYTES).map_err(|error| failed(error.to_string()))?;
    serde_json::from_slice(&bytes).map_err(|error| failed(error.to_string()))
}

/// Creates the namespaces in which the next child will run.
fn make_namespaces(user: &TaskUser) -> Result<Rights, SetupError> {
    // The mount namespace is created inside: this process keeps the host's file system.
    let namespaces = CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWIPC;
    let refused = match unshare(namespaces) {
        Ok(()) => return Ok(Rights::Root),
        Err(error) => error,
    };
    let (uid, gid) = (geteuid(), getegid());
    if user.uid != 0 && user.uid != uid.as_raw() {
        return Err(SetupError::host(format!(
            "cannot build a sandbox: the task is to run as {:?} (uid {}), but the agent runs as uid {uid} and can only start \
             tasks as itself ({refused}); run the agent as root, or run the task as root or as uid {uid}",
            user.user, user.uid
        )));
    }
    unshare(namespaces | CloneFlags::CLONE_NEWUSER).map_err(|error| {
        SetupError::host(format!(
            "cannot build a sandbox: this host lets uid {uid} create neither mount and process namespaces ({refused}; this \
             needs root with CAP_SYS_ADMIN) nor a user namespace ({error}; see the settings kernel.unprivileged_userns_clone, \
             user.max_user_namespaces and kernel.apparmor_restrict_unprivileged_userns); run the agent as root, or use the \
             docker or podman runtime"
        ))
    })?;
    map_ids((0, 0), (uid.as_raw(), gid.as_raw()))?;
    Ok(Rights::UserNamespace)
}

/// Maps the ids that this process had before its new user namespace to those that it has there.
fn map_ids(there: (u32, u32), before: (u32, u32)) -> Result<(), SetupError> {
    // A process without privileges may map its group only after it has given up changing groups.
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{} {} 1", there.0, before.0)),
        ("gid_map", format!("{} {} 1", there.1, before.1)),
    ] {
        let path = Path::new("/proc/self").join(file);
        fs::write(&path, text).map_err(|error| {
            SetupError::host(format!(
                "cannot build a sandbox: could not write {path:?}: {error}"
            ))
        })?;
    }
    Ok(())
}

/// Enters a user namespace in which this process has other ids; its rights outside stay the same.
fn see_itself_as(ids: (u32, u32)) -> Result<(), SetupError> {
    let before = (geteuid().as_raw(), getegid().as_raw());
    unshare(CloneFlags::CLONE_NEWUSER).map_err(|error| {
        SetupError::host(format!(
            "cannot run this task as root: its program needs a user who is not root, and this host refuses a user namespace \
             for that ({error}; see user.max_user_namespaces); link the user with an account that is not root, or use the \
             docker or podman runtime"
        ))
    })?;
    map_ids(ids, before)
}

fn start_inside(
    dir: &Path,
    start: i64,
    rights: Rights,
    purpose: &str,
) -> Result<Child, SetupError> {
    let failed = |error: io::Error| {
        SetupError::host(format!(
            "could not start the supervisor inside the sandbox: {error}"
        ))
    };
    let log = File::options()
        .append(true)
        .create(true)
        .open(dir.join(SANDBOX_LOG_FILE))
        .map_err(failed)?;
    Command::new("/proc/self/exe")
        .args([ENTER, purpose, rights.name(), &start.to_string()])
        .arg(dir)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(failed)
}

/// Forwards signals until the process inside has ended.
fn forward_signals_until_end(child: &mut Child) -> Result<ExitStatus, SetupError> {
    let failed =
        |error: io::Error| SetupError::host(format!("could not wait for the sandbox: {error}"));
    let mut control = child.stdin.take();
    loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return Ok(status);
        }
        match signals::handled().wait() {
            Ok(Signal::SIGCHLD) | Err(_) => {}
            Ok(signal) => {
                // Signals would be lost: the process inside may not handle them yet, and the kernel does not deliver
                // unhandled signals to the first process of a namespace. A pipe keeps them.
                let number = u8::try_from(signal as i32).unwrap_or_default();
                let written = control.as_mut().map(|pipe| pipe.write_all(&[number]));
                // It has just ended: the next iteration notices it.
                drop(written);
            }
        }
    }
}

/// Waits until the process inside has built the sandbox, or reports something else, which is added to `words`. Signals that
/// arrive meanwhile are forwarded later: that process receives none before, either. A thread of its own could not wait: none can
/// be made any more once there are namespaces for children, and none may exist when they are made.
fn wait_until_built(child: &mut Child, words: &mut Vec<u8>) -> bool {
    let Some(output) = &mut child.stdout else {
        return false;
    };
    let mut first = [0];
    if output.read_exact(&mut first).is_err() {
        return false;
    }
    words.push(first[0]);
    first[0] == BUILT
}

/// Why the process inside could not run the task, if it reported that; `words` was read already.
fn last_words(child: &mut Child, mut words: Vec<u8>) -> Option<ContainerExit> {
    child.stdout.take()?.read_to_end(&mut words).ok()?;
    serde_json::from_slice(&words).ok()
}

/// Subcommand of the process that is started in the new namespaces.
pub(crate) const ENTER: &str = "enter";
/// Subcommand as which that process goes on, from its read-only file.
pub(crate) const INSIDE: &str = "inside";
/// Purposes of the process inside.
const TASK: &str = "task";
const CHECK: &str = "check";
/// What the process inside writes first where the sandbox is complete; white space before what it reports else.
const BUILT: u8 = b'\n';

/// Builds the sandbox and prints what a task in it could reach, or why there is no sandbox.
pub(crate) fn check(dir: &Path, start: i64) -> ExitCode {
    let checked = read_json::<SandboxSpec>(&dir.join(SANDBOX_FILE)).and_then(|spec| {
        isolation::prepare(&dir.join(RUN_SUBDIR), &spec)?;
        let rights = make_namespaces(&spec.user)?;
        let child = start_inside(dir, start, rights, CHECK)?;
        child
            .wait_with_output()
            .map_err(|error| SetupError::host(format!("could not wait for the sandbox: {error}")))
    });
    let (words, status) = match checked {
        Ok(output) => (output.stdout, u8::from(!output.status.success())),
        Err(error) => (
            serde_json::to_vec(&error.into_exit()).unwrap_or_default(),
            1,
        ),
    };
    // A failure is ignored: the reader has ended.
    drop(io::stdout().write_all(&words));
    ExitCode::from(status)
}

/// What the process does that is started in the new namespaces: makes its mounts its own, and becomes [`inside`]. Returns only
/// where that fails.
pub(crate) fn enter(arguments: &[&str]) -> ExitCode {
    let error = read_only_executable().map(|own| {
        let error = Command::new(&own).arg(INSIDE).args(arguments).exec();
        SetupError::host(format!(
            "cannot build a sandbox: could not execute the supervisor {own:?} from a read-only mount: {error}"
        ))
    });
    refused(error.unwrap_or_else(|error| error))
}

/// Makes a mount namespace in which the file of this program is read-only, and returns the path of the file.
fn read_only_executable() -> Result<PathBuf, SetupError> {
    die_with_parent()?;
    unshare(CloneFlags::CLONE_NEWNS).map_err(|error| {
        SetupError::host(format!(
            "cannot build a sandbox: this host refuses a mount namespace: {error}"
        ))
    })?;
    rootfs::cover_executable().map_err(|error| {
        SetupError::host(format!(
            "cannot build a sandbox: could not make the supervisor's own file read-only: {error}; if it has just been \
             replaced by another version, this passes, else check that the agent starts it by its path on this host"
        ))
    })
}

/// Reports why there is no sandbox.
fn refused(error: SetupError) -> ExitCode {
    let exit = error.into_exit();
    let status = report::exit_status(&exit);
    let words = serde_json::to_vec(&exit).unwrap_or_default();
    // A failure is ignored: the reader has ended.
    drop(io::stdout().write_all(&words));
    ExitCode::from(status)
}

/// Builds the sandbox and goes on in it.
pub(crate) fn inside(arguments: &[&str]) -> ExitCode {
    let built = match arguments {
        [purpose, arguments @ ..] => {
            build(arguments).map(|surroundings| (*purpose == CHECK, surroundings))
        }
        [] => build(arguments).map(|surroundings| (false, surroundings)),
    };
    match built {
        Ok((true, _)) => isolation::start_questions(),
        Ok((false, surroundings)) => {
            let mut words = io::stdout();
            // A failure is ignored: the reader has ended.
            drop(words.write_all(&[BUILT]).and_then(|()| words.flush()));
            run::run(surroundings)
        }
        Err(error) => refused(error),
    }
}

fn build(arguments: &[&str]) -> Result<ProcessContext, SetupError> {
    let &[rights, start, dir] = arguments else {
        return Err(SetupError::host("`inside` is for the supervisor's own use"));
    };
    let rights = Rights::ALL
        .into_iter()
        .find(|known| known.name() == rights)
        .ok_or_else(|| SetupError::host("`inside` is for the supervisor's own use"))?;
    let dir = Path::new(dir);
    let notes = Diagnostics::to_file(&dir.join(SANDBOX_LOG_FILE));
    let spec: SandboxSpec = read_json(&dir.join(SANDBOX_FILE))?;
    let script: Script = read_json(&dir.join(RUN_SUBDIR).join(SCRIPT_FILE))?;
    let env: BTreeMap<OsString, OsString> = spec
        .env
        .iter()
        .map(|(name, value)| (name.into(), value.into()))
        .collect();
    let work_dir = Path::new("/").join(&script.work_dir);
    let owner = (rights == Rights::Root).then_some((spec.user.uid, spec.user.gid));
    umask(Mode::S_IWGRP | Mode::S_IWOTH);
    if rights == Rights::Root {
        take_groups(&spec)?;
    }
    RootFs {
        dir,
        spec: &spec,
        files: &script.files,
        work_dir: &work_dir,
        owner,
        notes: &notes,
    }
    .enter()?;
    if let Some(ids) = spec.shown_ids {
        if rights == Rights::Root {
            become_user(&spec.user)?;
        }
        // Before the capabilities are dropped: a user namespace begins with all of them.
        see_itself_as(ids)?;
    }
    confine::drop_bounding_set()?;
    if rights == Rights::Root && spec.shown_ids.is_none() {
        become_user(&spec.user)?;
    }
    confine::confine()?;
    // The change of the user has cleared it.
    die_with_parent()?;
    Ok(ProcessContext {
        env,
        sandbox: Some(spec),
        control: Some(io::stdin()),
        shares_network: true,
        mounts: Vec::new(),
        stages: Stages {
            supervisor_start: start.parse().ok(),
            sandbox_ready: Some(now_micros()),
            ..Stages::default()
        },
    })
}

/// Makes the kernel kill this process, and with it everything inside, when the process outside ends.
fn die_with_parent() -> Result<(), SetupError> {
    set_pdeathsig(Signal::SIGKILL).map_err(|error| {
        SetupError::host(format!("could not tie the sandbox to its parent: {error}"))
    })
}

/// Sets the groups of the task's user, and those that own the devices it was given.
fn take_groups(spec: &SandboxSpec) -> Result<(), SetupError> {
    let user = &spec.user;
    let known = User::from_uid(Uid::from_raw(user.uid)).ok().flatten();
    let name = known
        .filter(|known| known.name == user.user)
        .and_then(|known| CString::new(known.name).ok());
    let gid = Gid::from_raw(user.gid);
    let groups = match name {
        // A user of this host has the groups that this host defines.
        Some(name) => initgroups(&name, gid),
        None => setgroups(&[gid]),
    };
    let with_devices = || {
        let mut groups: Vec<Gid> = getgroups()?;
        for device in &spec.devices {
            // A missing device is reported when it is to be mounted.
            let Ok(found) = fs::metadata(&device.host_path) else {
                continue;
            };
            let owner = Gid::from_raw(found.gid());
            let is_for_group = found.mode() & 0o060 != 0 && found.mode() & 0o006 != 0o006;
            if is_for_group && found.gid() != 0 && !groups.contains(&owner) {
                groups.push(owner);
            }
        }
        setgroups(&groups)
    };
    groups
        .and_then(|()| with_devices())
        .map_err(|error| not_the_user(user, error))
}

/// Changes to the task's user permanently.
fn become_user(user: &TaskUser) -> Result<(), SetupError> {
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    setresgid(gid, gid, gid)
        .and_then(|()| setresuid(uid, uid, uid))
        .map_err(|error| not_the_user(user, error))
}

fn not_the_user(user: &TaskUser, error: Errno) -> SetupError {
    SetupError::host(format!(
        "could not become {:?} (uid {}, gid {}): {error}",
        user.user, user.uid, user.gid
    ))
}
