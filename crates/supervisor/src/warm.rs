//! Warm starts, as the process outside of a sandbox and the first process inside take part in them.
//!
//! The agent keeps a process that has imported Python modules (`crates/agent/src/runtime/warm/template.py`), and for
//! each container a *standby*, a fork of it that has run nothing. The process outside, which is trusted, orders the
//! standby to become a member of it, once the sandbox is complete ([`Standby::admit`]). Its child, the *warm process*,
//! gives up all rights as the process inside does, and only then listens at a socket in the run directory, where the
//! [relay](crate::relay) finds it. Nothing that the task can write decides about identity, namespaces or filters, and
//! where anything fails, programs start cold.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use det_taskspec::sandbox::{
    RUN_SUBDIR, STANDBY_VARIABLE, SandboxSpec, WARM_FILE, WARM_RELAY, WARM_SOCKET, WARM_SUBDIR,
    WarmPython,
};
use det_taskspec::{RUN_DIR, TaskUser};
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl, open};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::{ControlMessage, MsgFlags, recvmsg, sendmsg, setsockopt, sockopt};
use nix::sys::stat::Mode;
use nix::sys::time::{TimeVal, TimeValLike as _};
use serde::Serialize;

use crate::confine;
use crate::environment::join;

/// The other name under which programs look for an interpreter.
const OTHER_NAME: &str = "python";
/// Namespaces of which the sandbox may have its own, but for that of users.
const NAMESPACES: [&str; 7] = ["cgroup", "ipc", "mnt", "net", "pid", "time", "uts"];
/// Limits of processes that a standby takes over.
const RESOURCES: [Resource; 16] = [
    Resource::RLIMIT_AS,
    Resource::RLIMIT_CORE,
    Resource::RLIMIT_CPU,
    Resource::RLIMIT_DATA,
    Resource::RLIMIT_FSIZE,
    Resource::RLIMIT_LOCKS,
    Resource::RLIMIT_MEMLOCK,
    Resource::RLIMIT_MSGQUEUE,
    Resource::RLIMIT_NICE,
    Resource::RLIMIT_NOFILE,
    Resource::RLIMIT_NPROC,
    Resource::RLIMIT_RSS,
    Resource::RLIMIT_RTPRIO,
    Resource::RLIMIT_RTTIME,
    Resource::RLIMIT_SIGPENDING,
    Resource::RLIMIT_STACK,
];
/// The longest wait for a standby, in seconds. It answers within milliseconds.
const PATIENCE_SECONDS: i64 = 5;
/// Bytes of an answer of a standby at most.
const MOST_OF_ANSWER: usize = 4096;

/// A limit of processes: its number, and what holds at first and at most; `None` = no limit.
pub(crate) type Limit = (u32, Option<u64>, Option<u64>);

/// The limits of this process.
pub(crate) fn limits() -> io::Result<Vec<Limit>> {
    let finite = |value: u64| (value != nix::libc::RLIM_INFINITY).then_some(value);
    let limit = |resource: &Resource| {
        let (soft, hard) = getrlimit(*resource)?;
        Ok((*resource as u32, finite(soft), finite(hard)))
    };
    RESOURCES.iter().map(limit).collect()
}

/// What a standby is to become a member of. The descriptors that go with it are in the order of their names.
#[derive(Debug, Serialize)]
struct Membership {
    descriptors: Vec<&'static str>,
    identity: Option<Identity>,
    rlimits: Vec<Limit>,
    oom_score_adj: i32,
    umask: u32,
    /// The programs of the filters of system calls, as base64 of the instructions.
    filters: Vec<String>,
}

/// The user that a task of root's agent runs as.
#[derive(Debug, Serialize)]
struct Identity {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

/// The standby of this container, as the process outside holds it. Its end closes with this process, and with it the
/// warm process ends.
#[derive(Debug)]
pub(crate) struct Standby {
    control: OwnedFd,
    listener: UnixListener,
}

impl Standby {
    /// The standby that the agent has given this process, with a socket at which the warm process will listen, made
    /// before the run directory is the task's. `None` = there is none; `Err` = why there is none.
    pub(crate) fn prepare(dir: &Path, spec: &SandboxSpec) -> Result<Option<Self>, String> {
        let Some(control) = inherited()? else {
            return Ok(None);
        };
        let Some(warm) = &spec.warm else {
            return Ok(None);
        };
        let listener = open_door(&dir.join(RUN_SUBDIR).join(WARM_SUBDIR), warm)
            .map_err(|error| format!("could not make the socket for a warm start: {error}"))?;
        Ok(Some(Self { control, listener }))
    }

    /// Has the standby become a member of the sandbox whose first process this is, and waits until the warm process has
    /// given up its rights. Returns what must stay open as long as the task.
    pub(crate) fn admit(
        self,
        inside: u32,
        spec: &SandboxSpec,
        as_root: bool,
    ) -> Result<OwnedFd, String> {
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            format!("programs start cold: could not {what}: {error}")
        };
        let (order, descriptors) = membership(inside, spec, as_root, &self.listener)
            .map_err(|error| failed("describe the sandbox to the standby", &error))?;
        let text = serde_json::to_vec(&order)
            .map_err(|error| failed("describe the sandbox to the standby", &error))?;
        send(self.control.as_fd(), &text, &descriptors)
            .map_err(|error| failed("reach the standby", &error))?;
        // From here on the warm process alone holds the socket: where it is gone, no program waits for it.
        drop(descriptors);
        drop(self.listener);
        let patience = TimeVal::seconds(PATIENCE_SECONDS);
        setsockopt(&self.control, sockopt::ReceiveTimeout, &patience)
            .map_err(|error| failed("wait for the standby", &error))?;
        let mut answer = vec![0; MOST_OF_ANSWER];
        let length = receive(self.control.as_fd(), &mut answer)
            .map_err(|error| failed("receive the answer of the standby", &error))?;
        let answer = String::from_utf8_lossy(&answer[..length]);
        if answer.contains("\"confined\"") {
            Ok(self.control)
        } else {
            Err(failed("make the standby a member of the sandbox", &answer))
        }
    }
}

/// The descriptor that the agent has left for this process.
#[expect(
    unsafe_code,
    reason = "an inherited descriptor has no owner but what it is named by"
)]
fn inherited() -> Result<Option<OwnedFd>, String> {
    let Some(number) = std::env::var_os(STANDBY_VARIABLE) else {
        return Ok(None);
    };
    let wrong = || format!("{STANDBY_VARIABLE} is {number:?}, which is no descriptor");
    let number: RawFd = number
        .to_str()
        .and_then(|number| number.parse().ok())
        .filter(|number| *number > 2)
        .ok_or_else(wrong)?;
    // SAFETY: the agent has opened it for this process alone, which has opened nothing else yet under this number, and
    // this function is called once.
    let control = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl(&control, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).map_err(|_| wrong())?;
    Ok(Some(control))
}

/// Makes the directory in which programs find the warm process, and the socket in it.
fn open_door(dir: &Path, warm: &WarmPython) -> io::Result<UnixListener> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    DirBuilder::new().mode(0o755).create(dir)?;
    let text = serde_json::to_vec(warm).map_err(io::Error::other)?;
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(dir.join(WARM_FILE))?;
    io::Write::write_all(&mut file, &text)?;
    // The address of a socket is short.
    let handle = open(dir, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
    let address = format!("/proc/self/fd/{}/{WARM_SOCKET}", handle.as_raw_fd());
    UnixListener::bind(address)
}

/// What the kernel and the agent's files show of the sandbox.
fn membership(
    inside: u32,
    spec: &SandboxSpec,
    as_root: bool,
    listener: &UnixListener,
) -> io::Result<(Membership, Vec<OwnedFd>)> {
    let of_inside = Path::new("/proc").join(inside.to_string());
    let mut names = vec!["listener", "root", "outer_user", "inner_user"];
    let handle = |path: PathBuf, flags: OFlag| open(&path, flags | OFlag::O_CLOEXEC, Mode::empty());
    let mut descriptors = vec![
        listener.as_fd().try_clone_to_owned()?,
        handle(of_inside.join("root"), OFlag::O_PATH)?,
        handle("/proc/self/ns/user".into(), OFlag::O_RDONLY)?,
        handle(of_inside.join("ns/user"), OFlag::O_RDONLY)?,
    ];
    for name in NAMESPACES {
        match handle(of_inside.join("ns").join(name), OFlag::O_RDONLY) {
            Ok(namespace) => {
                names.push(name);
                descriptors.push(namespace);
            }
            // A kernel without them.
            Err(nix::errno::Errno::ENOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let identity = if as_root {
        Some(identity(&spec.user, &of_inside)?)
    } else {
        None
    };
    let score = fs::read_to_string("/proc/self/oom_score_adj")?;
    let order = Membership {
        descriptors: names,
        identity,
        rlimits: limits()?,
        oom_score_adj: score.trim().parse().map_err(io::Error::other)?,
        umask: 0o022,
        filters: confine::filter_programs()
            .map_err(|error| io::Error::other(format!("{error:?}")))?
            .iter()
            .map(|program| base64::engine::general_purpose::STANDARD.encode(program))
            .collect(),
    };
    Ok((order, descriptors))
}

/// The task's user, with the groups that the process inside has taken, and which nothing without privileges changes.
fn identity(user: &TaskUser, of_inside: &Path) -> io::Result<Identity> {
    let status = fs::read_to_string(of_inside.join("status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    let groups = line
        .unwrap_or_default()
        .split_whitespace()
        .map(|group| group.parse().map_err(io::Error::other))
        .collect::<io::Result<_>>()?;
    Ok(Identity {
        uid: user.uid,
        gid: user.gid,
        groups,
    })
}

fn send(to: BorrowedFd<'_>, text: &[u8], descriptors: &[OwnedFd]) -> io::Result<()> {
    let raw: Vec<RawFd> = descriptors.iter().map(OwnedFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let parts = [IoSlice::new(text)];
    sendmsg::<()>(
        to.as_raw_fd(),
        &parts,
        &rights,
        MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    Ok(())
}

fn receive(from: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        let mut parts = [IoSliceMut::new(buffer)];
        match recvmsg::<()>(from.as_raw_fd(), &mut parts, None, MsgFlags::empty()) {
            Ok(message) => return Ok(message.bytes),
            Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Where the names of the relay are made, below the run directory of a sandbox that is being built; `None` = this
/// container has no standby.
pub(crate) fn relay_dir(run_dir: &Path) -> Option<PathBuf> {
    let dir = run_dir.join(WARM_SUBDIR);
    dir.join(WARM_SOCKET).exists().then_some(dir)
}

/// Makes the relay's names in its directory: a file over which `bind` puts this executable, and links to it.
pub(crate) fn place_relay(
    dir: &Path,
    warm: &WarmPython,
    bind: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let relay = dir.join(WARM_RELAY);
    File::create_new(&relay)?;
    if let Err(error) = bind(&relay) {
        // An empty file would be found as a program.
        fs::remove_file(&relay)?;
        return Err(error);
    }
    let own = warm.interpreter.file_name().map(OsString::from);
    let names = [Some(OsString::from(OTHER_NAME)), own];
    for name in names.iter().flatten() {
        if name != WARM_RELAY && !dir.join(name).exists() {
            symlink(WARM_RELAY, dir.join(name))?;
        }
    }
    Ok(())
}

/// The directory of the relay in the sandbox around this process, if it has one.
pub(crate) fn dir_for_programs() -> Option<PathBuf> {
    let dir = Path::new(RUN_DIR).join(WARM_SUBDIR);
    dir.join(WARM_RELAY).is_file().then_some(dir)
}

/// A search path of programs that begins with the relay's directory.
pub(crate) fn path_with(dir: &Path, path: &std::ffi::OsStr) -> OsString {
    let mut dirs = vec![dir.to_owned()];
    dirs.extend(std::env::split_paths(path));
    join(&dirs)
}

/// The search path without the relay's directory.
pub(crate) fn path_without(dir: &Path, path: &std::ffi::OsStr) -> OsString {
    let dirs: Vec<PathBuf> = std::env::split_paths(path)
        .filter(|entry| entry != dir)
        .collect();
    join(&dirs)
}
