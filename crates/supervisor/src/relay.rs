//! The relay: what programs of a sandbox find as `python3` where there is a warm process.
//!
//! It hands a program that starts over to the warm process: arguments, environment, working directory and open files.
//! That becomes the program, and the relay forwards signals and ends as it ends. In every other case, and whenever it
//! is not sure, it executes the interpreter that the search path would have given without it.
//!
//! [`Call::program`] decides what can be handed over, without a look at anything but its arguments; the warm process
//! decides the rest (`crates/agent/src/runtime/warm/program.py`, `prepare`).

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs;
use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use det_taskspec::RUN_DIR;
use det_taskspec::sandbox::{WARM_FILE, WARM_SOCKET, WARM_SUBDIR, WarmPython};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, sigaction};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use nix::sys::wait::WaitStatus;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::warm::{self, Limit};

/// The name of a relay whose program runs.
pub(crate) const NAME: &CStr = c"det-relay";
/// The longest wait for the warm process. It answers at once, or its socket is closed.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most files that are handed over with one message.
const MOST_DESCRIPTORS: usize = 250;
/// Bytes of its answer at most.
const MOST_OF_ANSWER: usize = 64 << 10;
/// Bytes of the description of the warm process at most.
const MOST_OF_FILE: u64 = 1 << 20;
/// Variables that the interpreter or libraries of the imported modules read when they start, by how they begin.
const READ_AT_START: [&str; 16] = [
    "ATEN_",
    "BLIS_",
    "GLIBC_",
    "GOMP_",
    "GOTO_",
    "KMP_",
    "LD_",
    "MALLOC_",
    "MKL_",
    "NPY_",
    "NUMEXPR_",
    "OMP_",
    "OPENBLAS_",
    "PYTHON",
    "PYTORCH_",
    "TORCH",
];
/// Those of them that a warm process follows as a start does.
const FOLLOWED: [&str; 3] = ["PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONUSERBASE"];
/// What the warm process compares with what the kernel shows of itself.
const OF_PROC: [&str; 14] = [
    "cgroup",
    "limits",
    "mountinfo",
    "ns/cgroup",
    "ns/ipc",
    "ns/mnt",
    "ns/net",
    "ns/pid",
    "ns/time",
    "ns/user",
    "ns/uts",
    "oom_score_adj",
    "personality",
    "root",
];
/// The first process of the sandbox, which sends signals to groups only.
const SUPERVISOR: u32 = 1;

/// A call of an interpreter.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// The arguments, the name first.
    argv: Vec<OsString>,
    /// The environment, without the relay's directory on its search path.
    env: BTreeMap<OsString, OsString>,
    /// The interpreter that the search path gives then; `None` = there is none.
    interpreter: Option<PathBuf>,
    /// The directory of the relay.
    dir: PathBuf,
}

/// A program that the warm process may become.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Program {
    code: Code,
    arguments: Vec<OsString>,
    /// Whether its output is not to be buffered.
    unbuffered: bool,
}

/// Where the code of a program is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Code {
    /// A file.
    Script(OsString),
    /// A module, as `-m` names it.
    Module(OsString),
}

/// What is handed over. Bytes are characters of the texts.
#[derive(Debug, Serialize)]
struct Request {
    argv: Vec<String>,
    arguments: Vec<String>,
    script: Option<String>,
    module: Option<String>,
    unbuffered: bool,
    interpreter: String,
    env: Vec<(String, String)>,
    cwd: String,
    /// The numbers of the descriptors that are handed over, in their order.
    descriptors: Vec<RawFd>,
    nice: i32,
    rlimits: Vec<Limit>,
    /// The text of `/proc/self/status`.
    status: String,
    /// [`OF_PROC`].
    proc: BTreeMap<&'static str, String>,
}

/// The answer of the warm process.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    /// It becomes the program; its number in this sandbox.
    Go(i32),
    /// It cannot, and why.
    No(String),
}

impl Call {
    /// The call that this process is, if it was called by a name of the relay.
    pub(crate) fn of_process() -> Option<Self> {
        let argv: Vec<OsString> = std::env::args_os().collect();
        let name = Path::new(argv.first()?).file_name()?;
        let dir = Path::new(RUN_DIR).join(WARM_SUBDIR);
        let is_ours = name != WARM_FILE && name != WARM_SOCKET && dir.join(name).is_file();
        is_ours.then(|| Self::new(argv, std::env::vars_os().collect(), dir))
    }

    fn new(argv: Vec<OsString>, env: BTreeMap<OsString, OsString>, dir: PathBuf) -> Self {
        let mut call = Self {
            argv,
            env,
            interpreter: None,
            dir,
        };
        let name = call.argv.first().map(|name| Path::new(name).file_name());
        let name = name.flatten().unwrap_or_default().to_owned();
        if let Some(path) = call.env.get_mut(OsStr::new("PATH")) {
            *path = warm::path_without(&call.dir, path);
            call.interpreter = std::env::split_paths(path)
                .map(|dir| dir.join(&name))
                .find(|file| is_executable(file));
        }
        if let Some(interpreter) = &call.interpreter {
            // Shells leave there what they call.
            if let Some(called) = call.env.get_mut(OsStr::new("_"))
                && Path::new(called).parent() == Some(&call.dir)
            {
                called.clone_from(&interpreter.clone().into_os_string());
            }
            if let Some(first) = call.argv.first_mut()
                && first.as_bytes().contains(&b'/')
            {
                first.clone_from(&interpreter.clone().into_os_string());
            }
        }
        call
    }

    /// Runs the program warm or cold. Returns only at the end of a warm one, or where there is no interpreter.
    pub(crate) fn answer(self) -> ExitCode {
        let before = SigSet::thread_get_mask();
        let reason = match self.run_warm() {
            Ok(status) => return end_as(status),
            Err(reason) => reason,
        };
        if self
            .env
            .get(OsStr::new("DET_DEBUG"))
            .is_some_and(|value| value == "true")
        {
            // For users who look why it takes its time. A failure is ignored: standard error is closed.
            drop(writeln!(
                io::stderr(),
                "det-supervisor: Python starts cold: {reason}"
            ));
        }
        if let Ok(mask) = before {
            // It was this thread's mask before, so that it cannot be refused.
            let _ = mask.thread_set_mask();
        }
        self.run_cold()
    }

    /// What can be handed over to a process that was started as `warm` describes; `Err` = why the call starts cold.
    fn program(&self, warm: &WarmPython) -> Result<Program, String> {
        let interpreter = self.interpreter.as_ref().ok_or("there is no interpreter")?;
        if !is_interpreter_of(warm, interpreter) {
            return Err(format!("{} is another interpreter", interpreter.display()));
        }
        let expected: BTreeMap<&OsStr, &OsStr> = warm
            .env
            .iter()
            .map(|(name, value)| (name.as_ref(), value.as_ref()))
            .collect();
        for name in self
            .env
            .keys()
            .map(OsString::as_os_str)
            .chain(expected.keys().copied())
        {
            let differs =
                self.env.get(name).map(OsString::as_os_str) != expected.get(name).copied();
            if is_read_at_start(name) && differs {
                return Err(format!(
                    "the variable {} is read at the start",
                    name.display()
                ));
            }
        }
        let unbuffered = self.env.get(OsStr::new("PYTHONUNBUFFERED"));
        let mut unbuffered = unbuffered.is_some_and(|value| !value.is_empty());
        let mut rest = self.argv.get(1..).unwrap_or_default();
        loop {
            let (first, after) = rest.split_first().ok_or("it names no program")?;
            match (first.as_bytes(), after.split_first()) {
                (b"-u", _) => unbuffered = true,
                (b"-m", Some((module, arguments))) if !module.is_empty() => {
                    return Ok(Program {
                        code: Code::Module(module.clone()),
                        arguments: arguments.to_vec(),
                        unbuffered,
                    });
                }
                ([] | [b'-', ..], _) => return Err("it has options of the interpreter".into()),
                _ => {
                    return Ok(Program {
                        code: Code::Script(first.clone()),
                        arguments: after.to_vec(),
                        unbuffered,
                    });
                }
            }
            rest = after;
        }
    }

    /// Has the warm process become the program, and waits for its end. `Err` = the call starts cold, and why.
    fn run_warm(&self) -> Result<WaitStatus, String> {
        let text = |error: io::Error| error.to_string();
        let described = det_spool::read_plain(&self.dir.join(WARM_FILE), MOST_OF_FILE);
        let described = described.map_err(|error| error.to_string())?;
        let warm: WarmPython = serde_json::from_slice(&described).map_err(|e| e.to_string())?;
        let program = self.program(&warm)?;
        let descriptors = inherited().map_err(text)?;
        if descriptors.len() > MOST_DESCRIPTORS {
            return Err("it inherits many files".into());
        }
        let connection = UnixStream::connect(self.dir.join(WARM_SOCKET)).map_err(text)?;
        let request = self.request(&program, &descriptors)?;
        // From here on none is lost: they are for the program.
        let forwarded = forwarded();
        forwarded
            .thread_swap_mask(SigmaskHow::SIG_SETMASK)
            .map_err(|error| error.to_string())?;
        let signals = SignalFd::with_flags(&forwarded, SfdFlags::SFD_CLOEXEC);
        let signals = signals.map_err(|error| error.to_string())?;
        let (pid, ends) = hand_over(connection, &request, &descriptors)?;
        Ok(follow(Pid::from_raw(pid), &ends, &signals))
    }

    fn request(&self, program: &Program, descriptors: &[RawFd]) -> Result<Vec<u8>, String> {
        let text = |error: io::Error| error.to_string();
        let status = fs::read_to_string("/proc/self/status").map_err(text)?;
        let (nice, is_usual) = scheduling(&fs::read_to_string("/proc/self/stat").map_err(text)?)
            .ok_or("the kernel does not show how it is scheduled")?;
        if !is_usual {
            return Err("it has a scheduling policy of its own".into());
        }
        let mut proc = BTreeMap::new();
        for name in OF_PROC {
            let path = Path::new("/proc/self").join(name);
            let shown = if name.starts_with("ns/") || name == "root" {
                fs::read_link(path).map(|link| link.to_string_lossy().into_owned())
            } else {
                fs::read_to_string(path)
            };
            match shown {
                Ok(shown) => drop(proc.insert(name, shown)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(format!("/proc/self/{name}: {error}")),
            }
        }
        let (script, module) = match &program.code {
            Code::Script(script) => (Some(characters(script)), None),
            Code::Module(module) => (None, Some(characters(module))),
        };
        let variables = self.env.iter();
        let request = Request {
            argv: self.argv.iter().map(|part| characters(part)).collect(),
            arguments: program
                .arguments
                .iter()
                .map(|part| characters(part))
                .collect(),
            script,
            module,
            unbuffered: program.unbuffered,
            interpreter: characters(self.interpreter.clone().unwrap_or_default().as_os_str()),
            env: variables
                .map(|(name, value)| (characters(name), characters(value)))
                .collect(),
            cwd: characters(std::env::current_dir().map_err(text)?.as_os_str()),
            descriptors: descriptors.to_vec(),
            nice,
            rlimits: warm::limits().map_err(text)?,
            status,
            proc,
        };
        serde_json::to_vec(&request).map_err(|error| error.to_string())
    }

    /// Becomes the interpreter. Returns where that fails, with the exit status that shells give.
    fn run_cold(self) -> ExitCode {
        let name = self.argv.first().cloned().unwrap_or_default();
        let Some(interpreter) = &self.interpreter else {
            drop(writeln!(
                io::stderr(),
                "{}: command not found",
                name.display()
            ));
            return ExitCode::from(127);
        };
        // The runtime of this program ignores it.
        set_default(Signal::SIGPIPE);
        let text = |text: &OsStr| CString::new(text.as_bytes()).unwrap_or_default();
        let argv: Vec<CString> = self.argv.iter().map(|part| text(part)).collect();
        let env = self.env.iter().map(|(name, value)| {
            let mut entry = name.clone();
            entry.push("=");
            entry.push(value);
            text(&entry)
        });
        let env: Vec<CString> = env.collect();
        let Err(error) = nix::unistd::execve(&text(interpreter.as_os_str()), &argv, &env);
        drop(writeln!(io::stderr(), "{}: {error}", interpreter.display()));
        ExitCode::from(126)
    }
}

/// Whether the interpreter that the search path gives is the one that was started: the same file, which belongs to the
/// same virtual environment.
fn is_interpreter_of(warm: &WarmPython, found: &Path) -> bool {
    let is_same = match (found.canonicalize(), warm.interpreter.canonicalize()) {
        (Ok(found_file), Ok(configured_file)) => found_file == configured_file,
        _ => false,
    };
    warm.callers.iter().any(|caller| caller == found)
        || (is_same && environment_of(found) == environment_of(&warm.interpreter))
}

/// The description of the virtual environment that an interpreter finds by its own path.
fn environment_of(interpreter: &Path) -> Option<PathBuf> {
    let directories = interpreter.ancestors().skip(1).take(2);
    directories
        .map(|dir| dir.join("pyvenv.cfg"))
        .find_map(|file| file.canonicalize().ok())
}

fn is_read_at_start(name: &OsStr) -> bool {
    let begins = |beginning: &&str| name.as_bytes().starts_with(beginning.as_bytes());
    READ_AT_START.iter().any(begins) && !FOLLOWED.iter().any(|own| name == *own)
}

fn is_executable(file: &Path) -> bool {
    let access = nix::unistd::access(file, nix::unistd::AccessFlags::X_OK);
    file.is_file() && access.is_ok()
}

/// The text each of whose characters is a byte of this.
fn characters(text: &OsStr) -> String {
    text.as_bytes().iter().copied().map(char::from).collect()
}

/// The descriptors that a program inherits.
fn inherited() -> io::Result<Vec<RawFd>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        if let Some(Ok(number)) = entry?.file_name().to_str().map(str::parse)
            && is_inherited(number)
        {
            numbers.push(number);
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// What this process has opened itself is closed when it executes something.
#[expect(
    unsafe_code,
    reason = "the number is all that is known of an inherited descriptor"
)]
fn is_inherited(number: RawFd) -> bool {
    // SAFETY: it is only asked for its flags, and an unknown number is an error of the call.
    let descriptor = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
    fcntl(descriptor, FcntlArg::F_GETFD)
        .is_ok_and(|flags| !FdFlag::from_bits_retain(flags).contains(FdFlag::FD_CLOEXEC))
}

/// The nice value, and whether the policy is the usual one, of the text of `/proc/self/stat`.
fn scheduling(stat: &str) -> Option<(i32, bool)> {
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    // Fields 19 and 41 of proc(5), counted from the one after the name, which is the third.
    let nice = fields.get(16)?.parse().ok()?;
    Some((nice, fields.get(38)? == &"0"))
}

/// All signals but those that the kernel sends for what a program itself does.
fn forwarded() -> SigSet {
    let mut set = SigSet::all();
    for own in [
        Signal::SIGBUS,
        Signal::SIGFPE,
        Signal::SIGILL,
        Signal::SIGSEGV,
        Signal::SIGSYS,
        Signal::SIGTRAP,
    ] {
        set.remove(own);
    }
    set
}

/// Sends the request with the descriptors; returns the program's number, and where its end is reported.
fn hand_over(
    mut connection: UnixStream,
    request: &[u8],
    descriptors: &[RawFd],
) -> Result<(i32, UnixStream), String> {
    let text = |error: io::Error| error.to_string();
    connection.set_read_timeout(Some(PATIENCE)).map_err(text)?;
    connection.set_write_timeout(Some(PATIENCE)).map_err(text)?;
    let length = u32::try_from(request.len()).map_err(|error| error.to_string())?;
    let length = length.to_ne_bytes();
    let parts = [IoSlice::new(&length)];
    let rights = [ControlMessage::ScmRights(descriptors)];
    sendmsg::<()>(
        connection.as_raw_fd(),
        &parts,
        &rights,
        MsgFlags::MSG_NOSIGNAL,
        None,
    )
    .map_err(|error| error.to_string())?;
    connection.write_all(request).map_err(text)?;
    let (answer, ends) = receive(&connection)?;
    match (answer, ends) {
        (Answer::Go(pid), Some(ends)) if pid > 0 => {
            connection.write_all(b"!").map_err(text)?;
            Ok((pid, ends))
        }
        (Answer::Go(_), _) => Err("its answer is incomplete".into()),
        (Answer::No(reason), _) => Err(reason),
    }
}

#[expect(unsafe_code, reason = "received descriptors have no owner yet")]
fn receive(connection: &UnixStream) -> Result<(Answer, Option<UnixStream>), String> {
    let mut text = Vec::new();
    let mut ends = None;
    while text.last() != Some(&b'\n') && text.len() < MOST_OF_ANSWER {
        let mut buffer = [0; 4096];
        let mut space = nix::cmsg_space!([RawFd; 1]);
        let mut parts = [IoSliceMut::new(&mut buffer)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let received = recvmsg::<()>(connection.as_raw_fd(), &mut parts, Some(&mut space), flags);
        let received = received.map_err(|error| format!("it does not answer: {error}"))?;
        if received.bytes == 0 {
            return Err("it has ended".into());
        }
        let messages = received.cmsgs().map_err(|error| error.to_string())?;
        for message in messages {
            if let ControlMessageOwned::ScmRights(descriptors) = message {
                for number in descriptors {
                    // SAFETY: the kernel has just opened it for this process.
                    let owned = unsafe { OwnedFd::from_raw_fd(number) };
                    ends = Some(UnixStream::from(owned));
                }
            }
        }
        let length = received.bytes;
        text.extend_from_slice(&buffer[..length]);
    }
    let answer = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    Ok((answer, ends))
}

/// Forwards signals to the program until its end is reported; gives how it has ended.
fn follow(pid: Pid, mut ends: &UnixStream, signals: &SignalFd) -> WaitStatus {
    let killed = WaitStatus::Signaled(pid, Signal::SIGKILL, false);
    release_streams();
    // A program that looks at processes leaves it out. Without the name it looks like a second one of the program.
    let _ = nix::sys::prctl::set_name(NAME);
    loop {
        let mut sources = [
            PollFd::new(ends.as_fd(), PollFlags::POLLIN),
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut sources, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(_) => break,
        }
        let [ended, signaled] = sources.map(|source| source.any().unwrap_or(true));
        if ended {
            let mut status = [0; 4];
            return match ends.read_exact(&mut status) {
                Ok(()) => WaitStatus::from_raw(pid, i32::from_ne_bytes(status)).unwrap_or(killed),
                Err(_) => break,
            };
        }
        if signaled && let Ok(Some(signal)) = signals.read_signal() {
            forward(pid, signal.ssi_signo, signal.ssi_pid);
        }
    }
    // The process that waits for it is gone, and with that its end would be unknown.
    let _ = nix::sys::signal::kill(pid, Signal::SIGKILL);
    killed
}

/// Sends the program a signal. The supervisor's are for the whole group of a process, in which the program's own
/// children are; others are for the process alone, since the sender has this one's number.
fn forward(pid: Pid, number: u32, sender: u32) {
    let Ok(Ok(signal)) = i32::try_from(number).map(Signal::try_from) else {
        return;
    };
    if signal == Signal::SIGCHLD {
        return;
    }
    let sent = if sender == SUPERVISOR {
        nix::sys::signal::killpg(pid, signal)
    } else {
        nix::sys::signal::kill(pid, signal)
    };
    // It has just ended: the next report is of that.
    let _ = sent;
}

/// Closes the standard streams: the readers of the program's output wait for its end, not for this process's.
fn release_streams() {
    let Ok(null) = fs::File::options().read(true).write(true).open("/dev/null") else {
        return;
    };
    // What stays open delays its reader until this process ends, which follows the program's end.
    let _ = nix::unistd::dup2_stdin(&null);
    let _ = nix::unistd::dup2_stdout(&null);
    let _ = nix::unistd::dup2_stderr(&null);
}

/// Ends as the program has ended.
fn end_as(status: WaitStatus) -> ExitCode {
    match status {
        WaitStatus::Exited(_, code) => ExitCode::from(u8::try_from(code & 0xff).unwrap_or(1)),
        WaitStatus::Signaled(_, signal, _) => {
            // The program has left its memory, if that is wanted. Where this process does too, it is one file more.
            let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
            set_default(signal);
            // If one of these failed, the exit code below would report the signal.
            let _ = SigSet::empty().thread_set_mask();
            let _ = nix::sys::signal::raise(signal);
            ExitCode::from(u8::try_from(128 + signal as i32).unwrap_or(1))
        }
        _ => ExitCode::FAILURE,
    }
}

#[expect(
    unsafe_code,
    reason = "there is no other way to set what a signal does"
)]
fn set_default(signal: Signal) {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default action runs no code of this program. It fails for what has no other action.
    let _ = unsafe { sigaction(signal, &default) };
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    /// A host with the relay's directory and an interpreter, which is on the search path.
    struct Host {
        root: tempfile::TempDir,
        warm: WarmPython,
    }

    impl Host {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            for dir in ["warm", "usr/bin", "venv/bin"] {
                fs::create_dir_all(root.path().join(dir)).unwrap();
            }
            let interpreter = root.path().join("usr/bin/python3");
            fs::write(&interpreter, "").unwrap();
            fs::set_permissions(&interpreter, fs::Permissions::from_mode(0o755)).unwrap();
            symlink(&interpreter, root.path().join("usr/bin/python")).unwrap();
            symlink(&interpreter, root.path().join("venv/bin/python3")).unwrap();
            let env = [("LD_LIBRARY_PATH", "/opt/lib"), ("LANG", "C.UTF-8")];
            let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
            Self {
                warm: WarmPython {
                    interpreter,
                    callers: Vec::new(),
                    env: env.to_vec(),
                },
                root,
            }
        }

        fn call(&self, argv: &[&str], more: &[(&str, &str)]) -> Call {
            let dir = |name: &str| self.root.path().join(name).to_str().unwrap().to_owned();
            let path = format!("{}:{}", dir("warm"), dir("usr/bin"));
            let set = [("PATH", path.as_str()), ("LD_LIBRARY_PATH", "/opt/lib")];
            let env = set.iter().chain(more);
            let env = env.map(|(name, value)| ((*name).into(), (*value).into()));
            Call::new(
                argv.iter().map(OsString::from).collect(),
                env.collect(),
                self.root.path().join("warm"),
            )
        }

        fn is_cold(&self, argv: &[&str], more: &[(&str, &str)]) -> Option<String> {
            self.call(argv, more).program(&self.warm).err()
        }
    }

    #[test]
    fn scripts_and_modules_are_handed_over_and_nothing_with_other_options() {
        let host = Host::new();
        let program = |argv: &[&str]| host.call(argv, &[]).program(&host.warm).ok();
        let expected = |code: Code, arguments: &[&str], unbuffered| {
            let arguments = arguments.iter().map(OsString::from).collect();
            Some(Program {
                code,
                arguments,
                unbuffered,
            })
        };
        let script = || Code::Script("a.py".into());
        let module = || Code::Module("a.b".into());
        for (argv, is_program) in [
            (&["python3", "a.py"][..], expected(script(), &[], false)),
            (
                &["python", "a.py", "-m", "x"],
                expected(script(), &["-m", "x"], false),
            ),
            (
                &["python3", "-u", "a.py", "-u"],
                expected(script(), &["-u"], true),
            ),
            (
                &["python3", "-m", "a.b", "x"],
                expected(module(), &["x"], false),
            ),
            (
                &["python3", "-u", "-m", "a.b"],
                expected(module(), &[], true),
            ),
            (&["python3"], None),
            (&["python3", "-"], None),
            (&["python3", ""], None),
            (&["python3", "-m"], None),
            (&["python3", "-ma.b"], None),
            (&["python3", "-c", "pass"], None),
            (&["python3", "-X", "dev", "a.py"], None),
            (&["python3", "-Bu", "a.py"], None),
            (&["python3", "--version"], None),
        ] {
            assert_eq!(program(argv), is_program, "{argv:?}");
        }
    }

    #[test]
    fn what_is_read_at_the_start_is_as_it_was_for_the_imports() {
        let host = Host::new();
        let argv = ["python3", "a.py"];
        for usual in [
            ("PYTHONPATH", "x"),
            ("PYTHONUNBUFFERED", "1"),
            ("PYTHONUSERBASE", "/x"),
            ("DET_TASK_ID", "t"),
            ("CUDA_VISIBLE_DEVICES", "0"),
        ] {
            assert_eq!(host.is_cold(&argv, &[usual]), None, "{usual:?}");
        }
        for read in [
            ("PYTHONHASHSEED", "0"),
            ("PYTHONDONTWRITEBYTECODE", "1"),
            ("OMP_NUM_THREADS", "1"),
            ("LD_PRELOAD", "x.so"),
            ("LD_LIBRARY_PATH", "/other"),
            ("TORCH_HOME", "/x"),
        ] {
            let reason = host.is_cold(&argv, &[read]).unwrap();
            assert!(reason.contains(read.0), "{reason}");
        }
        let call = host.call(&argv, &[("PYTHONUNBUFFERED", "1")]);
        assert!(call.program(&host.warm).unwrap().unbuffered);
    }

    #[test]
    fn another_interpreter_or_environment_is_not_the_one_that_was_started() {
        let mut host = Host::new();
        let venv = host.root.path().join("venv");
        let path = venv.join("bin").to_str().unwrap().to_owned();
        let argv = ["python3", "a.py"];
        // A link to it is the same, and one that belongs to an environment is not.
        assert_eq!(host.is_cold(&argv, &[("PATH", &path)]), None);
        fs::write(venv.join("pyvenv.cfg"), "").unwrap();
        assert!(host.is_cold(&argv, &[("PATH", &path)]).is_some());
        host.warm.callers = vec![venv.join("bin/python3")];
        assert_eq!(host.is_cold(&argv, &[("PATH", &path)]), None);
        assert!(host.is_cold(&argv, &[("PATH", "/nowhere")]).is_some());
    }

    #[test]
    fn a_program_does_not_see_the_directory_of_the_relay() {
        let host = Host::new();
        let relay = host.root.path().join("warm/python3");
        let relay = relay.to_str().unwrap();
        let call = host.call(&[relay, "a.py"], &[("_", relay)]);
        let usual = host.root.path().join("usr/bin");
        let python = usual.join("python3").into_os_string();
        assert_eq!(call.env[OsStr::new("PATH")], usual.as_os_str());
        assert_eq!(call.env[OsStr::new("_")], python);
        assert_eq!(call.argv[0], python);
    }

    #[test]
    fn nice_value_and_policy_are_read_past_any_name() {
        let stat = |nice: &str, policy: &str| {
            let mut fields = vec!["0"; 50];
            fields[0] = "S";
            fields[16] = nice;
            fields[38] = policy;
            format!("7 (a) b) {}", fields.join(" "))
        };
        assert_eq!(scheduling(&stat("5", "0")), Some((5, true)));
        assert_eq!(scheduling(&stat("-1", "2")), Some((-1, false)));
        assert_eq!(scheduling("7 (a"), None);
    }
}
