//! What a run gets from outside: its script and facts of its surroundings, and events from threads, which wait for signals, for
//! the process outside the sandbox, or for work to end.

use std::fs;
use std::io::{Read as _, Stdin};
use std::path::Path;
use std::sync::mpsc::Sender;
use std::thread;

use det_taskspec::sandbox::SandboxSpec;
use det_taskspec::{SCRIPT_FILE, Script};
use nix::sys::signal::Signal;
use nix::unistd::{User, getuid};

use super::Event;
use crate::environment::Facts;
use crate::failure::{SetupError, thread_failed};
use crate::signals;

/// Does work on a thread of its own, and sends the event that it ends with.
pub(super) fn spawn(
    sender: &Sender<Event>,
    name: &str,
    work: impl FnOnce() -> Event + Send + 'static,
) -> Result<(), SetupError> {
    let sender = sender.clone();
    // The receiver is gone if the task has ended before.
    thread(name, move || drop(sender.send(work())))
}

/// Does work on a thread of its own.
pub(super) fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), SetupError> {
    let spawned = thread::Builder::new().name(name.into()).spawn(work);
    spawned.map(drop).map_err(thread_failed)
}

/// The script of the task, which its agent or its Secret has left.
pub(super) fn read_script(run_dir: &Path) -> Result<Script, SetupError> {
    let path = run_dir.join(SCRIPT_FILE);
    let failed = |cause: String| {
        SetupError::host(format!(
            "could not read the task's script {path:?}: {cause}"
        ))
    };
    let bytes = fs::read(&path).map_err(|error| failed(error.to_string()))?;
    serde_json::from_slice(&bytes).map_err(|error| failed(error.to_string()))
}

/// What the process finds of its user and its sandbox.
pub(super) fn facts(sandbox: Option<&SandboxSpec>) -> Facts {
    let user = User::from_uid(getuid()).ok().flatten();
    Facts {
        home: user
            .map(|user| user.dir)
            .filter(|dir| dir != Path::new("/") && dir.is_dir()),
        python_dir: sandbox.and_then(|spec| spec.python_dir.clone()),
        python_path: sandbox.and_then(|spec| spec.python_path.clone()),
    }
}

/// Sends the signals that arrive as events.
pub(super) fn forward_signals(sender: &Sender<Event>) -> Result<(), SetupError> {
    let sender = sender.clone();
    let signals = signals::handled();
    thread("signals", move || {
        while let Ok(signal) = signals.wait() {
            if sender.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    })
}

/// Reads signal numbers from the process outside the sandbox; when that ends, this process ends.
pub(super) fn forward_control(
    mut control: Stdin,
    sender: &Sender<Event>,
) -> Result<(), SetupError> {
    let sender = sender.clone();
    thread("control", move || {
        let mut byte = [0];
        while control.read_exact(&mut byte).is_ok() {
            if let Ok(signal) = Signal::try_from(i32::from(byte[0]))
                && sender.send(Event::Signal(signal)).is_err()
            {
                return;
            }
        }
        // The kernel does the same through the parent-death signal; it may have been too early for that.
        #[expect(
            clippy::exit,
            reason = "ending the first process of the namespace is what ends the task"
        )]
        std::process::exit(137);
    })
}
