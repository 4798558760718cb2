//! Sets up signal handling at the start of the process.
//!
//! A process inherits which signals are ignored and blocked, and a script that starts an agent in the background, or
//! under `nohup`, ignores some: a signal that is ignored when it arrives is lost. So this process resets all inherited
//! settings.

use std::io;

use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, sigaction};

/// Sets the action of every signal, and blocks exactly those that [`crate::run`] waits for. Called before a second
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

fn handled() -> SigSet {
    crate::run::handled_signals()
}
