//! Sets up signal handling at the start of the process.
//!
//! A process inherits which signals are ignored and blocked, and a script that starts an agent in the background, or
//! under `nohup`, ignores some: a signal that is ignored when it arrives is lost. So this process resets all inherited
//! settings.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, sigaction};

/// Sets the action of every signal, and blocks exactly those of [`handled`]. Called before a second
/// thread exists: all threads inherit it.
pub(crate) fn take_over() -> io::Result<()> {
    // First blocked, so that none ends the process between the two steps.
    handled().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    for signal in Signal::iterator() {
        // The first two cannot be set, the third must stay ignored for the Rust runtime.
        if matches!(signal, Signal::SIGKILL | Signal::SIGSTOP | Signal::SIGPIPE) {
            continue;
        }
        #[expect(
            unsafe_code,
            reason = "there is no other way to set what a signal does"
        )]
        // SAFETY: the default action runs no code of this program.
        unsafe { sigaction(signal, &default) }?;
    }
    for number in libc::SIGRTMIN()..=libc::SIGRTMAX() {
        #[expect(unsafe_code, reason = "nix knows no real-time signals")]
        // SAFETY: the default action runs no code of this program.
        let before = unsafe { libc::signal(number, libc::SIG_DFL) };
        if before == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The signals that the supervisor handles. Blocked in all threads from the start, and received by a thread that waits
/// for them.
pub(crate) fn handled() -> SigSet {
    use Signal::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGURG, SIGUSR1, SIGUSR2, SIGWINCH};
    // Forwarded to the task's process group unchanged.
    let forwarded = [SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGWINCH];
    // End gracefully; kill now; a child has ended; report what the processes do.
    let own = [SIGTERM, SIGQUIT, SIGCHLD, SIGURG];
    forwarded.into_iter().chain(own).collect()
}

/// Without this, the signals that the supervisor blocks would stay blocked in the child and its children, and signals
/// that are ignored since the agent's start (`nohup`) would stay ignored: the task could not be asked to end.
pub(crate) fn reset(command: &mut Command) {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    #[expect(
        unsafe_code,
        reason = "there is no other way to set signals of a child; setting them is safe between fork and exec"
    )]
    // SAFETY: the closure makes system calls, which are async-signal-safe, and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            let signals = handled();
            for signal in &signals {
                sigaction(signal, &default).map_err(io::Error::from)?;
            }
            signals.thread_unblock().map_err(io::Error::from)
        });
    }
}
