//! Stacks of Python processes: from `py-spy` where the task's environment has it, else from the process itself, if it has
//! a file for them (`determined.core.init` opens it).

use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use det_spool::open_plain;
use det_taskspec::diagnosis::{MOST_FRAMES, STACK_SIGNAL, short};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::procfs::Proc;
use crate::environment::TaskEnv;
use crate::signals;

/// How long reading the stack of one process may take.
const ONE_WITHIN: Duration = Duration::from_secs(4);
/// How long a process may take to write its stacks: it is ready to at any moment, even in a system call.
const WRITTEN_WITHIN: Duration = Duration::from_secs(1);
const WRITTEN_POLL: Duration = Duration::from_millis(20);
/// Bytes of stacks that are read of one process.
const MOST_BYTES: u64 = 256 << 10;

/// What stacks of processes are read with, and until when.
pub(super) struct Stacks<'a> {
    /// The program, if the task's environment has it.
    pub(super) py_spy: Option<PathBuf>,
    pub(super) env: &'a TaskEnv,
    /// Directory of the files that processes write stacks into.
    pub(super) dir: PathBuf,
    /// When there are to be no more.
    pub(super) until: Instant,
    pub(super) proc: &'a Proc,
}

impl Stacks<'_> {
    /// The functions that the main thread of a process is in, the innermost first, and where that is from, or why it is not
    /// known.
    pub(super) fn of(&self, pid: i64) -> (Vec<String>, String) {
        if Instant::now() >= self.until {
            return (Vec::new(), "no time was left for this process".to_owned());
        }
        let problem = match &self.py_spy {
            Some(program) => match self.by_py_spy(program, pid) {
                Ok(stack) => return (stack, "py-spy".to_owned()),
                Err(problem) => problem,
            },
            None => "the task's environment has no py-spy".to_owned(),
        };
        match self.by_itself(pid) {
            Some(stack) => (stack, "faulthandler".to_owned()),
            None => (Vec::new(), short(&problem)),
        }
    }

    fn by_py_spy(&self, program: &PathBuf, pid: i64) -> Result<Vec<String>, String> {
        let mut command = Command::new(program);
        command
            .args(["dump", "--nonblocking", "--pid", &pid.to_string()])
            .env_clear()
            .envs(&self.env.vars)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        signals::reset(&mut command);
        let mut child = command
            .spawn()
            .map_err(|error| format!("py-spy could not be started: {error}"))?;
        let (sender, output) = mpsc::channel();
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        thread::Builder::new()
            .name("py-spy".into())
            .spawn(move || {
                let read = |from: Option<Box<dyn std::io::Read>>| {
                    let mut bytes = Vec::new();
                    if let Some(from) = from {
                        // What was read before an error is as good as the whole.
                        let _ = from.take(MOST_BYTES).read_to_end(&mut bytes);
                    }
                    String::from_utf8_lossy(&bytes).into_owned()
                };
                let out = read(stdout.map(|fd| Box::new(fd) as Box<dyn std::io::Read>));
                let problem = read(stderr.map(|fd| Box::new(fd) as Box<dyn std::io::Read>));
                drop(sender.send((out, problem)));
            })
            .map_err(|error| format!("py-spy could not be read: {error}"))?;
        let wait = ONE_WITHIN.min(self.until.saturating_duration_since(Instant::now()));
        // The main thread of this process reaps whatever ends, so the output is waited for.
        let Ok((out, problem)) = output.recv_timeout(wait) else {
            // Nothing else has its id before it is reaped; then it has ended and there is nothing to end.
            let _ = child.kill();
            return Err(format!("py-spy did not answer within {} s", wait.as_secs()));
        };
        let stack = parse_py_spy(&out);
        if stack.is_empty() {
            let last = problem.lines().rev().find(|line| !line.trim().is_empty());
            let why = last.unwrap_or("it names no function");
            return Err(format!("py-spy: {why}"));
        }
        Ok(stack)
    }

    /// Has a process write its stacks, if it is ready to: the signal would end one that is not.
    fn by_itself(&self, pid: i64) -> Option<Vec<String>> {
        let path = self.dir.join(pid.to_string());
        let file = open_plain(&path).ok()?;
        if !self.proc.handles(pid, STACK_SIGNAL) {
            return None;
        }
        let length = || file.metadata().map_or(0, |data| data.len());
        let before = length();
        let signal = Signal::try_from(STACK_SIGNAL).ok()?;
        kill(Pid::from_raw(i32::try_from(pid).ok()?), signal).ok()?;
        let deadline = Instant::now() + WRITTEN_WITHIN;
        let mut known = before;
        // It writes in pieces: it is done when nothing was added for a moment.
        loop {
            thread::sleep(WRITTEN_POLL);
            let now = length();
            if (now > before && now == known) || Instant::now() >= deadline {
                break;
            }
            known = now;
        }
        let mut text = Vec::new();
        let mut file = file;
        std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(before)).ok()?;
        file.take(MOST_BYTES).read_to_end(&mut text).ok()?;
        // What was read is not needed again; it appends, so that the next time begins at the start.
        let emptied = std::fs::OpenOptions::new().write(true).open(&path);
        // A file that stays is only longer.
        let _ = emptied.and_then(|file| file.set_len(0));
        let stack = parse_faulthandler(&String::from_utf8_lossy(&text));
        (!stack.is_empty()).then_some(stack)
    }
}

/// The main thread of what `py-spy dump` prints: a line `Thread 7 (idle): "MainThread"`, then a line for each function, the
/// innermost first.
fn parse_py_spy(text: &str) -> Vec<String> {
    let mut lines = text.lines();
    let is_main = |line: &str| line.starts_with("Thread ") && line.contains("\"MainThread\"");
    let found = lines.by_ref().any(is_main);
    if !found {
        lines = text.lines();
        lines.by_ref().find(|line| line.starts_with("Thread "));
    }
    lines
        .take_while(|line| line.starts_with(' '))
        .map(short)
        .filter(|line| !line.is_empty())
        .take(MOST_FRAMES)
        .collect()
}

/// The main thread of what Python's `faulthandler` writes: it began first, and is written last. Functions are lines
/// `  File "train.py", line 7 in f`, the innermost first.
fn parse_faulthandler(text: &str) -> Vec<String> {
    let mut stack = Vec::new();
    for line in text.lines() {
        let frame = line.strip_prefix("  File \"").and_then(|rest| {
            let (file, rest) = rest.rsplit_once("\", line ")?;
            let (number, function) = rest.split_once(" in ")?;
            Some(short(&format!("{function} ({file}:{number})")))
        });
        match frame {
            Some(frame) if stack.len() < MOST_FRAMES => stack.push(frame),
            Some(_) => {}
            None if line.contains("(most recent call first)") => stack.clear(),
            None => {}
        }
    }
    stack
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_thread_is_found_in_what_py_spy_prints() {
        let text = "Process 9: python3 train.py\nPython v3.11.2 (/usr/bin/python3.11)\n\n\
                    Thread 8 (active): \"worker\"\n    run (threading.py:975)\n\
                    Thread 9 (idle): \"MainThread\"\n    hang (train.py:12)\n    main (train.py:20)\n\
                    Thread 10 (idle): \"other\"\n    x (y.py:1)\n";
        assert_eq!(
            parse_py_spy(text),
            ["hang (train.py:12)", "main (train.py:20)"]
        );
        assert_eq!(
            parse_py_spy("Thread 0x7 (idle)\n    f (a.py:1)\n"),
            ["f (a.py:1)"]
        );
        assert!(parse_py_spy("Error: Permission denied\n").is_empty());
    }

    #[test]
    fn the_main_thread_is_the_last_that_faulthandler_writes() {
        let text = "Thread 0x1 (most recent call first):\n  File \"/usr/lib/threading.py\", line 5 in wait\n\n\
                    Current thread 0x2 (most recent call first):\n  File \"/w/a \"b\".py\", line 12 in hang\n  \
                    File \"/w/train.py\", line 3 in <module>\n";
        assert_eq!(
            parse_faulthandler(text),
            ["hang (/w/a \"b\".py:12)", "<module> (/w/train.py:3)"]
        );
        assert!(parse_faulthandler("").is_empty());
    }

    #[test]
    fn a_process_that_handles_no_signal_gets_none() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i64::from(child.id());
        std::fs::write(dir.path().join(pid.to_string()), "").unwrap();
        let env = TaskEnv::new(
            std::collections::BTreeMap::new(),
            &crate::environment::tests::script(&[]),
            &crate::environment::Facts::default(),
        );
        let proc = Proc::at(std::path::Path::new("/proc"));
        let stacks = Stacks {
            py_spy: None,
            env: &env,
            dir: dir.path().to_owned(),
            until: Instant::now() + Duration::from_secs(60),
            proc: &proc,
        };
        let (stack, source) = stacks.of(pid);
        assert!(stack.is_empty());
        assert_eq!(source, "the task's environment has no py-spy");
        assert!(child.try_wait().unwrap().is_none(), "it lives");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn what_a_program_named_py_spy_prints_is_the_stack() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("py-spy");
        let script = "#!/bin/sh\n[ \"$1 $2 $3 $4\" = 'dump --nonblocking --pid 7' ] || exit 3\n\
                      echo 'Thread 7 (idle): \"MainThread\"'; echo '    hang (x.py:1)'\n";
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("{}:/usr/bin:/bin", dir.path().display());
        let env = TaskEnv::new(
            std::collections::BTreeMap::new(),
            &crate::environment::tests::script(&[("PATH", &path)]),
            &crate::environment::Facts::default(),
        );
        let proc = Proc::at(std::path::Path::new("/proc"));
        let stacks = Stacks {
            py_spy: env.find_program("py-spy"),
            env: &env,
            dir: dir.path().to_owned(),
            until: Instant::now() + Duration::from_secs(60),
            proc: &proc,
        };
        assert_eq!(
            stacks.of(7),
            (vec!["hang (x.py:1)".to_owned()], "py-spy".to_owned())
        );
        let (none, why) = stacks.of(8);
        assert!(none.is_empty() && why.starts_with("py-spy: "), "{why}");
    }
}
