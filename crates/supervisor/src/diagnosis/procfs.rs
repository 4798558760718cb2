//! Reads what the kernel shows of processes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use det_taskspec::variables::DET_TASK_ID;
use nix::libc;
use nix::unistd::{SysconfVar, sysconf};

/// Bytes of a file of the kernel that are read at most; a command line may be long.
const MOST_BYTES: u64 = 64 << 10;
/// Bytes of a process's variables in which its rank is looked for.
const MOST_VARIABLES: u64 = 1 << 20;
/// Interpreters of shells, of which the script is not shown.
const PYTHON: &str = "python";

/// The kernel's directory of processes.
#[derive(Debug)]
pub(super) struct Proc {
    root: PathBuf,
    micros_per_tick: i64,
}

/// A process as `/proc/PID/stat` has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Stat {
    pub(super) name: String,
    pub(super) state: char,
    pub(super) parent: i64,
    pub(super) threads: i64,
    pub(super) cpu_micros: i64,
    /// When it started, in ticks since the start of the host.
    pub(super) started: i64,
}

impl Proc {
    pub(super) fn at(root: &Path) -> Self {
        let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten();
        Self {
            root: root.to_owned(),
            micros_per_tick: 1_000_000 / ticks.filter(|ticks| *ticks > 0).unwrap_or(100),
        }
    }

    fn read(&self, pid: i64, file: &str, most: u64) -> io::Result<Vec<u8>> {
        let path = self.root.join(pid.to_string()).join(file);
        let mut bytes = Vec::new();
        File::open(path)?.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn text(&self, pid: i64, file: &str) -> Option<String> {
        let bytes = self.read(pid, file, MOST_BYTES).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// All processes that are seen from here.
    pub(super) fn stats(&self) -> BTreeMap<i64, Stat> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| {
                let pid = entry.file_name().to_str()?.parse().ok()?;
                let stat = parse_stat(&self.text(pid, "stat")?, self.micros_per_tick)?;
                Some((pid, stat))
            })
            .collect()
    }

    /// The program of a process, with the script or module of an interpreter; `None` = it has none, or has ended.
    pub(super) fn command(&self, pid: i64) -> Option<String> {
        let line = self.text(pid, "cmdline")?;
        let words: Vec<&str> = line.split('\0').filter(|word| !word.is_empty()).collect();
        shown_command(&words)
    }

    /// The rank that a process was given.
    pub(super) fn rank(&self, pid: i64) -> Option<i64> {
        let variables = self.read(pid, "environ", MOST_VARIABLES).ok()?;
        let value = variables
            .split(|byte| *byte == 0)
            .find_map(|variable| variable.strip_prefix(b"RANK="))?;
        let rank: i64 = std::str::from_utf8(value).ok()?.parse().ok()?;
        (rank >= 0).then_some(rank)
    }

    /// Whether a process has the environment of a task.
    pub(super) fn is_of_task(&self, pid: i64) -> bool {
        let variables = self
            .read(pid, "environ", MOST_VARIABLES)
            .unwrap_or_default();
        let name = format!("{DET_TASK_ID}=");
        let mut each = variables.split(|byte| *byte == 0);
        each.any(|variable| variable.starts_with(name.as_bytes()))
    }

    /// The function of the kernel that a process waits in.
    pub(super) fn wait_channel(&self, pid: i64) -> String {
        let text = self.text(pid, "wchan").unwrap_or_default();
        // The kernel writes 0 for none, or where it must not be seen.
        if text == "0" { String::new() } else { text }
    }

    /// The system call that a process is in.
    pub(super) fn system_call(&self, pid: i64) -> String {
        let Some(call) = self.text(pid, "syscall").as_deref().and_then(parse_call) else {
            return String::new();
        };
        match call {
            Call::Sleeps(name) => format!("{name}(time only)"),
            Call::On(name, descriptor) => match self.kind_of_file(pid, descriptor) {
                Some(kind) => format!("{name}({kind})"),
                None => name,
            },
            Call::Plain(name) => name,
        }
    }

    /// What kind of thing a descriptor of a process is; its name may be secret.
    fn kind_of_file(&self, pid: i64, descriptor: u64) -> Option<&'static str> {
        let link = self
            .root
            .join(format!("{pid}/fd/{descriptor}"))
            .read_link()
            .ok()?;
        let name = link.as_os_str().as_bytes();
        [
            (&b"socket:"[..], "socket"),
            (b"pipe:", "pipe"),
            (b"anon_inode:", "events"),
            (b"/dev/", "device"),
            (b"/", "file"),
        ]
        .into_iter()
        .find(|(prefix, _)| name.starts_with(prefix))
        .map(|(_, kind)| kind)
    }

    /// Whether a process handles a signal.
    pub(super) fn handles(&self, pid: i64, signal: i32) -> bool {
        let status = self.text(pid, "status").unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        let bit = u32::try_from(signal - 1).unwrap_or(u32::MAX);
        caught.is_some_and(|mask| mask.checked_shr(bit).is_some_and(|rest| rest & 1 == 1))
    }
}

/// Whether a shown command is that of a Python interpreter.
pub(super) fn is_python(command: &str) -> bool {
    let program = command.split(' ').next().unwrap_or_default();
    program.starts_with(PYTHON) || program.starts_with("pypy")
}

fn parse_stat(text: &str, micros_per_tick: i64) -> Option<Stat> {
    // The name may contain anything, brackets and spaces too.
    let (before, rest) = text.rsplit_once(')')?;
    let name = before.split_once('(')?.1;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // From here on the numbers of proc(5) are counted from 3.
    let number = |field: usize| fields.get(field - 3)?.parse::<i64>().ok();
    Some(Stat {
        name: name.to_owned(),
        state: fields.first()?.chars().next()?,
        parent: number(4)?,
        threads: number(20)?,
        cpu_micros: number(14)?
            .saturating_add(number(15)?)
            .saturating_mul(micros_per_tick),
        started: number(22)?,
    })
}

/// The last part of a path.
fn file_name(path: &str) -> &str {
    path.rsplit('/')
        .find(|part| !part.is_empty())
        .unwrap_or(path)
}

fn shown_command(words: &[&str]) -> Option<String> {
    let (program, arguments) = words.split_first()?;
    let program = file_name(program);
    if !is_python(program) {
        return Some(program.to_owned());
    }
    let mut arguments = arguments.iter();
    let script = loop {
        match arguments.next() {
            Some(&"-m") => break arguments.next().map(|module| format!("-m {module}")),
            // The code itself may contain anything.
            Some(&"-c") => break Some("-c …".to_owned()),
            // Options of the interpreter that have a value of their own.
            Some(&("-W" | "-X" | "--check-hash-based-pycs")) => {
                arguments.next();
            }
            Some(option) if option.starts_with('-') => {}
            Some(script) => break Some((*script).to_owned()),
            None => break None,
        }
    };
    Some(match script {
        Some(script) => format!("{program} {script}"),
        None => program.to_owned(),
    })
}

/// What a process asks of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Call {
    Plain(String),
    /// It works on this descriptor.
    On(String, u64),
    /// A call that waits for files, and has none: it only lets time pass.
    Sleeps(String),
}

/// Reads `NUMBER ARG …`; `running` and numbers below 0 mean none.
fn parse_call(text: &str) -> Option<Call> {
    let mut words = text.split_whitespace();
    let number: i64 = words.next()?.parse().ok()?;
    if number < 0 {
        return None;
    }
    let arguments: Vec<u64> = words
        .filter_map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok())
        .collect();
    let argument = |index: usize| arguments.get(index).copied();
    let Some((name, kind)) = known_call(number) else {
        return Some(Call::Plain(format!("system call {number}")));
    };
    let name = name.to_owned();
    let descriptor = argument(0).map(|value| value & 0xffff_ffff);
    Some(match (kind, descriptor) {
        (CallKind::OnFile, Some(descriptor)) => Call::On(name, descriptor),
        (CallKind::WaitsForSome(counted), _) if argument(counted) == Some(0) => Call::Sleeps(name),
        _ => Call::Plain(name),
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallKind {
    Plain,
    /// Its first argument is a descriptor.
    OnFile,
    /// It waits for files, whose number is the argument of this index.
    WaitsForSome(usize),
}

/// The calls in which programs wait, on every processor family.
const CALLS: &[(libc::c_long, &str, CallKind)] = &[
    (
        libc::SYS_clock_nanosleep,
        "clock_nanosleep",
        CallKind::Plain,
    ),
    (libc::SYS_nanosleep, "nanosleep", CallKind::Plain),
    (libc::SYS_futex, "futex", CallKind::Plain),
    (libc::SYS_ppoll, "ppoll", CallKind::WaitsForSome(1)),
    (libc::SYS_pselect6, "pselect6", CallKind::WaitsForSome(0)),
    (libc::SYS_epoll_pwait, "epoll_pwait", CallKind::Plain),
    (libc::SYS_read, "read", CallKind::OnFile),
    (libc::SYS_readv, "readv", CallKind::OnFile),
    (libc::SYS_pread64, "pread64", CallKind::OnFile),
    (libc::SYS_write, "write", CallKind::OnFile),
    (libc::SYS_writev, "writev", CallKind::OnFile),
    (libc::SYS_pwrite64, "pwrite64", CallKind::OnFile),
    (libc::SYS_fsync, "fsync", CallKind::OnFile),
    (libc::SYS_fdatasync, "fdatasync", CallKind::OnFile),
    (libc::SYS_flock, "flock", CallKind::OnFile),
    (libc::SYS_recvfrom, "recvfrom", CallKind::OnFile),
    (libc::SYS_recvmsg, "recvmsg", CallKind::OnFile),
    (libc::SYS_sendto, "sendto", CallKind::OnFile),
    (libc::SYS_sendmsg, "sendmsg", CallKind::OnFile),
    (libc::SYS_accept, "accept", CallKind::OnFile),
    (libc::SYS_accept4, "accept4", CallKind::OnFile),
    (libc::SYS_connect, "connect", CallKind::OnFile),
    (libc::SYS_ioctl, "ioctl", CallKind::OnFile),
    (libc::SYS_wait4, "wait4", CallKind::Plain),
    (libc::SYS_waitid, "waitid", CallKind::Plain),
    (
        libc::SYS_rt_sigtimedwait,
        "rt_sigtimedwait",
        CallKind::Plain,
    ),
    (libc::SYS_rt_sigsuspend, "rt_sigsuspend", CallKind::Plain),
    (libc::SYS_msgrcv, "msgrcv", CallKind::Plain),
    (libc::SYS_semtimedop, "semtimedop", CallKind::Plain),
    (
        libc::SYS_restart_syscall,
        "restart_syscall",
        CallKind::Plain,
    ),
];

/// Calls that only this processor family has.
#[cfg(target_arch = "x86_64")]
const CALLS_HERE: &[(libc::c_long, &str, CallKind)] = &[
    (libc::SYS_poll, "poll", CallKind::WaitsForSome(1)),
    (libc::SYS_select, "select", CallKind::WaitsForSome(0)),
    (libc::SYS_epoll_wait, "epoll_wait", CallKind::Plain),
    (libc::SYS_pause, "pause", CallKind::Plain),
];
#[cfg(not(target_arch = "x86_64"))]
const CALLS_HERE: &[(libc::c_long, &str, CallKind)] = &[];

fn known_call(number: i64) -> Option<(&'static str, CallKind)> {
    let known = CALLS.iter().chain(CALLS_HERE);
    known
        .filter(|(of, _, _)| *of == number)
        .map(|(_, name, kind)| (*name, *kind))
        .next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name_is() {
        let fields = "S 7 1 1 0 -1 4194304 1 0 0 0 250 50 0 0 20 0 3 0 88123 1 1";
        for name in ["python3", "a) S 1 (b", ""] {
            let stat = parse_stat(&format!("42 ({name}) {fields}"), 10_000).unwrap();
            assert_eq!(stat.name, name);
            assert_eq!((stat.state, stat.parent, stat.threads), ('S', 7, 3));
            assert_eq!((stat.cpu_micros, stat.started), (3_000_000, 88123));
        }
        for odd in ["", "42", "42 (x) S", "42 (x) S a b c"] {
            assert_eq!(parse_stat(odd, 10_000), None);
        }
    }

    #[test]
    fn commands_are_shown_without_their_arguments() {
        for (words, shown) in [
            (
                vec!["/usr/bin/python3", "train.py", "--password", "x"],
                "python3 train.py",
            ),
            (
                vec!["python3.11", "-u", "-X", "dev", "/a/train.py"],
                "python3.11 /a/train.py",
            ),
            (
                vec!["python3", "-m", "torch.distributed.run", "x"],
                "python3 -m torch.distributed.run",
            ),
            (vec!["python3", "-c", "secret = 1"], "python3 -c …"),
            (vec!["python3"], "python3"),
            (vec!["/bin/sh", "-c", "PASSWORD=x python3 train.py"], "sh"),
            (vec!["curl", "https://user:pw@host"], "curl"),
        ] {
            assert_eq!(shown_command(&words).as_deref(), Some(shown));
        }
        assert_eq!(shown_command(&[]), None);
        assert!(is_python("python3 train.py") && !is_python("sh python3"));
    }

    #[test]
    fn calls_are_named_and_waits_without_files_are_sleeps() {
        let call = |number: libc::c_long, rest: &str| parse_call(&format!("{number} {rest}"));
        let name = |text: &str| text.to_owned();
        assert_eq!(
            call(libc::SYS_read, "0x5 0x7ff 0x1 0x0 0x0 0x0 0x7ffe 0x7f0"),
            Some(Call::On(name("read"), 5))
        );
        assert_eq!(
            call(libc::SYS_futex, "0x5 0x7ff"),
            Some(Call::Plain(name("futex")))
        );
        assert_eq!(
            call(libc::SYS_pselect6, "0x0 0x0"),
            Some(Call::Sleeps(name("pselect6")))
        );
        assert_eq!(
            call(libc::SYS_ppoll, "0x7ff 0x2"),
            Some(Call::Plain(name("ppoll")))
        );
        assert_eq!(
            parse_call("9999 0x0"),
            Some(Call::Plain(name("system call 9999")))
        );
        for none in ["running\n", "-1 0x7ffe 0x7f0", ""] {
            assert_eq!(parse_call(none), None);
        }
    }

    #[test]
    fn a_handled_signal_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("9")).unwrap();
        fs::write(
            dir.path().join("9/status"),
            "SigIgn:\tffff\nSigCgt:\t0000000000008000\n",
        )
        .unwrap();
        let proc = Proc::at(dir.path());
        assert!(proc.handles(9, 16));
        assert!(!proc.handles(9, 15) && !proc.handles(9, 99) && !proc.handles(8, 16));
    }
}
