//! Starts the entrypoint: a shell sources the hooks, waits at a gate, and then becomes the entrypoint.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use det_taskspec::{Entrypoint, Script};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::checkpoint_removal;
use crate::environment::TaskEnv;
use crate::failure::SetupError;
use crate::ssh_server;
use crate::warm;

/// The user's hook, in the working directory.
const USER_HOOK: &str = "startup-hook.sh";
/// The pool's hook, in the run directory.
pub(crate) const POOL_HOOK: &str = "dynamic-tcd-startup-hook.sh";
/// The gate, in the run directory.
const GATE: &str = ".start-gate";
/// What is added to the gate's path for the file that exists once the user's hook has begun.
const BEGUN: &str = "-user";

/// Which startup hook is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hook {
    /// An administrator's, for every task of the pool.
    Pool,
    /// Of the task's own files.
    User,
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pool => {
                f.write_str("the pool's startup hook (\"startup_hook\" of task_container_defaults)")
            }
            Self::User => write!(f, "the startup hook \"{USER_HOOK}\" of the task's files"),
        }
    }
}

/// The command of the task's program, with its environment and working directory.
#[derive(Debug)]
pub(crate) enum Launch {
    /// The entrypoint is started as it is, since there are no hooks.
    Direct {
        /// The entrypoint with its arguments.
        argv: Vec<OsString>,
    },
    /// A shell that sources the hooks, waits at the gate, and becomes the entrypoint. So the entrypoint gets the
    /// variables, directory, limits and umask that the hooks set.
    Hooked {
        /// The shell with its arguments, the entrypoint among them.
        argv: Vec<OsString>,
        /// The gate at which the shell waits until the task may start.
        gate: Gate,
    },
}

impl Launch {
    /// Chooses the form and prepares it. Expects the context in the working directory and the pool's hook in the run
    /// directory. `shares_network`: the task shares its host's network.
    pub(crate) fn prepare(
        script: &Script,
        env: &TaskEnv,
        run_dir: &Path,
        shares_network: bool,
    ) -> Result<Self, SetupError> {
        let entrypoint = argv(&script.entrypoint, env, shares_network)?;
        let user_hook = env.work_dir.join(USER_HOOK);
        let has_hook = script.startup_hook && user_hook.is_file();
        if script.pool_startup_hook.is_none() && !has_hook {
            return Ok(Self::Direct { argv: entrypoint });
        }
        let shell = env
            .find_program("bash")
            .or_else(|| env.find_program("sh"))
            .ok_or_else(|| SetupError::Task {
                code: 127,
                message: format!(
                    "the task has a startup hook, but there is neither bash nor sh on PATH ({}) to run it",
                    env.path().to_string_lossy()
                ),
            })?;
        let gate = Gate::create(run_dir)?;
        let first_on_path = warm::dir_for_programs().unwrap_or_default();
        let mut argv: Vec<OsString> = vec![
            shell.into(),
            "-c".into(),
            HOOKED_START.into(),
            "startup-hook".into(),
            gate.path.clone().into(),
            match &script.pool_startup_hook {
                Some(_) => run_dir.join(POOL_HOOK).into(),
                None => OsString::new(),
            },
            if script.startup_hook {
                user_hook.into()
            } else {
                OsString::new()
            },
            first_on_path.into(),
        ];
        argv.extend(entrypoint);
        Ok(Self::Hooked { argv, gate })
    }
}

/// Sources the hooks; an error ends the shell. That the user's hook begins is left beside the gate, for the message
/// about a hook that ends the shell; a task starts without that, too. The names of gate and hooks are removed first, so
/// that hooks see the entrypoint's own arguments. Of a task that logs in detail the user's hook is traced; the pool's
/// is an administrator's, and may contain what is not for the log. Of the entrypoint alone the search path begins with the
/// directory of warm starts.
const HOOKED_START: &str = r#"set -e
__det_gate=$1 __det_pool_hook=$2 __det_user_hook=$3 __det_first=$4
shift 4
if [ -n "$__det_pool_hook" ]; then . "$__det_pool_hook"; fi
unset __det_pool_hook
if [ -f "$__det_user_hook" ]; then
    true 2>/dev/null > "$__det_gate-user" || true
    if [ "${DET_DEBUG:-}" = true ]; then set -x; fi
    . "$__det_user_hook"
    { set +x; } 2>/dev/null
fi
unset __det_user_hook
read -r __det_go < "$__det_gate"
if [ -n "$__det_first" ]; then PATH=$__det_first${PATH:+:$PATH}; export PATH; fi
unset __det_gate __det_go __det_first
exec "$@"
"#;

fn argv(
    entrypoint: &Entrypoint,
    env: &TaskEnv,
    shares_network: bool,
) -> Result<Vec<OsString>, SetupError> {
    let argv: Vec<&str> = match entrypoint {
        Entrypoint::Shell(text) => match without_shell(text) {
            _ if env.find_program("sh").is_some() => vec!["sh", "-c", text],
            Some(program) => vec![program],
            None => return Err(no_shell()),
        },
        Entrypoint::Argv(argv) => argv.iter().map(String::as_str).collect(),
        Entrypoint::TrialClass(class) => vec![
            "python3",
            "-m",
            "determined.launch.torch_distributed",
            "--",
            "--trial",
            class,
        ],
        Entrypoint::Service { script, args } => {
            let address = if shares_network {
                "127.0.0.1"
            } else {
                "0.0.0.0"
            };
            let fixed = ["sh", script.as_str(), address];
            fixed
                .into_iter()
                .chain(args.iter().map(String::as_str))
                .collect()
        }
        Entrypoint::SshServer { port } => {
            return ssh_server::command(*port, shares_network).map_err(|e| no_executable(&e));
        }
        Entrypoint::RemoveCheckpoints => {
            let own = ssh_server::own_executable().map_err(|e| no_executable(&e))?;
            return Ok(vec![own, checkpoint_removal::SUBCOMMAND.into()]);
        }
    };
    if argv.is_empty() {
        return Err(SetupError::task(
            "the entrypoint is an empty list; name a program to run",
        ));
    }
    Ok(argv.into_iter().map(OsString::from).collect())
}

/// The program that a line for a shell names, where the line is nothing but its name. Images without a shell, whose users
/// name their one program, can run it.
fn without_shell(line: &str) -> Option<&str> {
    let word = line.trim();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+:@%,".contains(c);
    (!word.is_empty() && word.chars().all(is_plain)).then_some(word)
}

fn no_shell() -> SetupError {
    SetupError::Task {
        code: 127,
        message: "could not start the entrypoint: a text, or a list of one word, is a line for the shell \"sh\", which is not \
                  on PATH: the image has none; a list of several words needs none"
            .to_owned(),
    }
}

fn no_executable(error: &std::io::Error) -> SetupError {
    SetupError::host(format!(
        "could not open the supervisor's own executable: {error}"
    ))
}

/// A named pipe at which the shell waits between hooks and entrypoint.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    path: PathBuf,
}

impl Gate {
    fn create(run_dir: &Path) -> Result<Self, SetupError> {
        let path = run_dir.join(GATE);
        let made = remove(&begun(&path))
            .and_then(|()| remove(&path))
            .and_then(|()| mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).map_err(io::Error::from));
        made.map_err(|error| SetupError::host(format!("could not create {path:?}: {error}")))?;
        Ok(Self { path })
    }

    /// The hook that the shell has come to.
    pub(crate) fn hook(&self, script: &Script) -> Hook {
        if script.pool_startup_hook.is_some() && !begun(&self.path).exists() {
            Hook::Pool
        } else {
            Hook::User
        }
    }

    /// Waits until the shell has run the hooks and reached the gate. Never returns if it does not reach it.
    pub(crate) fn wait(&self) -> io::Result<GateKey> {
        let pipe = File::options().write(true).open(&self.path)?;
        Ok(GateKey {
            pipe,
            path: self.path.clone(),
        })
    }
}

/// The file that exists once the user's hook has begun.
fn begun(gate: &Path) -> PathBuf {
    let mut path = gate.as_os_str().to_owned();
    path.push(BEGUN);
    path.into()
}

/// Removes a file that there may be.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Opens a gate at which the shell waits.
#[derive(Debug)]
pub(crate) struct GateKey {
    pipe: File,
    path: PathBuf,
}

impl GateKey {
    /// Lets the shell become the entrypoint.
    pub(crate) fn open(mut self) -> io::Result<()> {
        // The shell has it open: its name is not needed any more and is removed, so that the task does not see it.
        fs::remove_file(&self.path)?;
        remove(&begun(&self.path))?;
        io::Write::write_all(&mut self.pipe, b"go\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Facts;
    use crate::environment::tests::script;
    use std::collections::BTreeMap;
    use std::process::{Command, Output};

    fn prepare(script: &Script, run_dir: &Path) -> Result<Launch, SetupError> {
        let env = TaskEnv::new(BTreeMap::new(), script, &Facts::default());
        Launch::prepare(script, &env, run_dir, true)
    }

    fn direct(entrypoint: Entrypoint) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let script = Script {
            entrypoint,
            ..script(&[])
        };
        match prepare(&script, dir.path()).unwrap() {
            Launch::Direct { argv } => argv.into_iter().map(|a| a.into_string().unwrap()).collect(),
            Launch::Hooked { .. } => panic!("no hook was given"),
        }
    }

    #[test]
    fn each_form_of_entrypoint_becomes_a_command() {
        assert_eq!(
            direct(Entrypoint::Shell("a | b".into())),
            ["sh", "-c", "a | b"]
        );
        let argv = vec!["a".to_owned(), "b c".to_owned()];
        assert_eq!(direct(Entrypoint::Argv(argv.clone())), argv);
        assert_eq!(
            direct(Entrypoint::TrialClass("m:T".into())),
            [
                "python3",
                "-m",
                "determined.launch.torch_distributed",
                "--",
                "--trial",
                "m:T"
            ]
        );
        let service = Entrypoint::Service {
            script: "/run/s.sh".into(),
            args: vec!["--x=1 2".into()],
        };
        assert_eq!(direct(service), ["sh", "/run/s.sh", "127.0.0.1", "--x=1 2"]);
        let empty = Script {
            entrypoint: Entrypoint::Argv(Vec::new()),
            ..script(&[])
        };
        assert!(prepare(&empty, Path::new("/nowhere")).is_err());
    }

    #[test]
    fn a_line_needs_a_shell_unless_it_is_the_name_of_a_program() {
        let dir = tempfile::tempdir().unwrap();
        let with_path = |entrypoint: &str| -> Result<Vec<OsString>, SetupError> {
            let path = dir.path().to_str().unwrap();
            let script = Script {
                entrypoint: Entrypoint::Shell(entrypoint.into()),
                ..script(&[("PATH", path)])
            };
            match prepare(&script, dir.path())? {
                Launch::Direct { argv } => Ok(argv),
                Launch::Hooked { .. } => panic!("no hook was given"),
            }
        };
        for program in ["/hello", " bin/hello-2.0 ", "h\u{e9}llo"] {
            assert_eq!(with_path(program).unwrap(), [program.trim()]);
        }
        for line in [
            "/hello there",
            "$HELLO",
            "A=1",
            "~/hello",
            "a;b",
            "'a'",
            " ",
            "*",
        ] {
            match with_path(line) {
                Err(SetupError::Task { code, message }) => {
                    assert_eq!(code, 127);
                    assert!(message.contains("the image has none"), "{message}");
                }
                other => panic!("{line}: {other:?}"),
            }
        }
        fs::write(dir.path().join("sh"), "").unwrap();
        assert_eq!(with_path("/hello").unwrap(), ["sh", "-c", "/hello"]);
    }

    fn hooked(pool: &str, user: &str, entrypoint: &str) -> Output {
        hooked_to(pool, user, entrypoint).0
    }

    /// Runs a hooked start with this pool hook and user hook, opening the gate when it is reached. Gives what it printed, and
    /// the hook that it came to, unless the gate was opened.
    fn hooked_to(pool: &str, user: &str, entrypoint: &str) -> (Output, Option<Hook>) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(POOL_HOOK), pool).unwrap();
        fs::write(dir.path().join(USER_HOOK), user).unwrap();
        let script = Script {
            startup_hook: true,
            pool_startup_hook: Some(pool.into()),
            work_dir: dir.path().to_str().unwrap().into(),
            entrypoint: Entrypoint::Shell(entrypoint.into()),
            ..script(&[])
        };
        let Launch::Hooked { argv, gate } = prepare(&script, dir.path()).unwrap() else {
            panic!("there are hooks");
        };
        let opener = std::thread::spawn({
            let gate = gate.clone();
            move || gate.wait().unwrap().open()
        });
        let output = Command::new(&argv[0])
            .args(&argv[1..])
            .current_dir(dir.path())
            .output()
            .unwrap();
        let hook = gate.path.exists().then(|| gate.hook(&script));
        if hook.is_none() {
            assert!(!begun(&gate.path).exists());
        }
        if !opener.is_finished() {
            // The gate was not reached: end the thread. It may also just have been opened and removed.
            drop(File::options().read(true).write(true).open(&gate.path));
        }
        (output, hook)
    }

    #[test]
    fn what_hooks_set_is_there_for_the_entrypoint() {
        let output = hooked(
            "export A=pool; umask 077",
            "export B=$A-user; cd /",
            "echo $A $B $PWD $(umask)",
        );
        assert_eq!(
            String::from_utf8_lossy(&output.stdout).trim(),
            "pool pool-user / 0077"
        );
        assert!(output.status.success());
    }

    #[test]
    fn the_users_hook_alone_is_traced_where_the_task_logs_in_detail() {
        let quiet = hooked("true", "true of-the-user", "true");
        assert_eq!(String::from_utf8_lossy(&quiet.stderr), "");
        let traced = hooked(
            "export DET_DEBUG=true; true of-the-pool",
            "true of-the-user",
            "true of-the-entrypoint",
        );
        assert!(traced.status.success());
        let lines = String::from_utf8_lossy(&traced.stderr).into_owned();
        assert!(lines.contains("+ true of-the-user\n"), "{lines}");
        assert!(
            !lines.contains("of-the-pool") && !lines.contains("of-the-entrypoint"),
            "{lines}"
        );
    }

    #[test]
    fn a_failing_command_in_a_hook_ends_the_task_with_its_status() {
        let output = hooked("true", "false; echo not reached", "echo not reached");
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(output.stdout, b"");
    }

    #[test]
    fn the_hook_that_ends_the_shell_is_known() {
        for (pool, user, expected) in [
            ("exit 3", "true", Hook::Pool),
            ("set -C; umask 777", "exit 3", Hook::User),
        ] {
            let (output, hook) = hooked_to(pool, user, "echo not reached");
            assert_eq!(output.status.code(), Some(3));
            assert_eq!(hook, Some(expected), "{pool} {user}");
        }
        assert_eq!(hooked_to("true", "true", "true").1, None);
        let dir = tempfile::tempdir().unwrap();
        let gate = Gate::create(dir.path()).unwrap();
        assert_eq!(gate.hook(&script(&[])), Hook::User, "the pool has none");
    }
}
