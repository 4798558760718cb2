//! The first process of every task.
//!
//! `det-supervisor run` works inside a container; `det-supervisor sandbox <container directory>` first builds one from
//! namespaces. It executes the task's [`Script`](det_taskspec::Script): prepares the run directory, fetches the user's
//! code, runs hooks, waits for the other containers, starts the entrypoint, forwards signals, ships the log and writes
//! an exit report. It must run in any image, so it is one static executable without an async runtime.
//!
//! Signals to it: SIGTERM ends the task gracefully (SIGKILL follows after the script's grace period), SIGQUIT kills it
//! at once; either way its output is shipped and the exit report written. URG has it report what the task's processes
//! do ([`diagnosis`]). INT, HUP, USR1, USR2 and WINCH go to the task.
//!
//! Read [`run`] first, then [`sandbox`].

#![expect(
    clippy::unnecessary_debug_formatting,
    reason = "paths in messages are quoted, and what is odd in them is escaped"
)]

mod accelerators;
mod cgroup;
mod checkpoint_removal;
mod clock;
mod collect;
mod confine;
mod context;
mod continuation;
mod diagnosis;
mod environment;
mod failure;
mod idle;
mod info;
mod isolation;
mod launch;
mod launch_ssh;
mod lines;
mod log;
mod master;
mod metrics;
mod mounts;
mod place;
mod preempt;
mod probe;
mod processes;
mod ready;
mod relay;
mod report;
mod rootfs;
mod run;
mod sandbox;
mod setup;
mod ship;
mod signals;
mod ssh_server;
mod tail;
mod tls;
mod torch_launcher;
mod warm;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use det_taskspec::CheckedMount;
use det_taskspec::pods::PLACE;
use det_taskspec::sandbox::{HOST_NETWORK, Stages};

const USAGE: &str = "usage: det-supervisor run [--host-network] [--mount=<device>:<inode>:<path>]...
       det-supervisor sandbox <container directory>
       det-supervisor check <container directory>
       det-supervisor place --from <directory of a Secret> --to <run directory>

`run` works in a container whose /run/determined/task.json is the task's script. With --host-network, the container
shares its host's network, and services of the task listen on the loopback address only. Each --mount is one that the
container must have: a directory or file with these numbers, which an engine was to mount at that path.
`sandbox` builds the container first, as <container directory>/sandbox.json describes.
`check` builds it too, and prints as JSON what a task in it could reach.
`place` copies this program and the script of a pod's rank, which DET_RANKS and JOB_COMPLETION_INDEX name, for `run`.
";

fn main() -> ExitCode {
    // Called by the name of an interpreter, it is the relay, which changes nothing before it has decided.
    if let Some(call) = relay::Call::of_process() {
        return call.answer();
    }
    let start = clock::now_micros();
    if let Err(error) = signals::take_over() {
        return complain(
            &format!("det-supervisor: could not take over signals: {error}\n"),
            1,
        );
    }
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let arguments: Vec<_> = arguments
        .iter()
        .map(|a| a.to_str().unwrap_or_default())
        .collect();
    match arguments.as_slice() {
        ["run", options @ ..] => match run_options(options) {
            None => complain(USAGE, 2),
            Some((shares_network, mounts)) => run::run(run::ProcessContext {
                env: std::env::vars_os().collect(),
                sandbox: None,
                control: None,
                shares_network,
                mounts,
                stages: Stages {
                    supervisor_start: Some(start),
                    ..Stages::default()
                },
            }),
        },
        ["sandbox", dir] => sandbox::outside(Path::new(dir), start),
        ["check", dir] => sandbox::check(Path::new(dir), start),
        [PLACE, "--from", from, "--to", to] => place::run(Path::new(from), Path::new(to)),
        // Only `sandbox` and `check` call these.
        [sandbox::ENTER, arguments @ ..] => sandbox::enter(arguments),
        [sandbox::INSIDE, arguments @ ..] => sandbox::inside(arguments),
        ["probes"] => isolation::answer_questions(),
        // Only `run` calls this, as the entrypoint of a shell.
        [ssh_server::SUBCOMMAND, port, address] => ssh_server::serve(port, address),
        // Only `run` calls this, as the entrypoint of a task that deletes checkpoints.
        [checkpoint_removal::SUBCOMMAND] => checkpoint_removal::run(),
        ["--version"] => {
            let line = format!("det-supervisor {}\n", env!("CARGO_PKG_VERSION"));
            match std::io::stdout().write_all(line.as_bytes()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            }
        }
        _ => complain(USAGE, 2),
    }
}

/// Whether the container shares its host's network, and what must be mounted in it; `None` = there is an unknown option.
fn run_options(options: &[&str]) -> Option<(bool, Vec<CheckedMount>)> {
    let mounts = options.strip_prefix(&[HOST_NETWORK]);
    let shares_network = mounts.is_some();
    let mounts = mounts.unwrap_or(options).iter();
    let mounts: Option<Vec<_>> = mounts.map(|option| CheckedMount::parse(option)).collect();
    Some((shares_network, mounts?))
}

fn complain(text: &str, status: u8) -> ExitCode {
    // If standard error is closed, the message is lost.
    drop(std::io::stderr().write_all(text.as_bytes()));
    ExitCode::from(status)
}
