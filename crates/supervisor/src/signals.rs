//! Signals, from the first instruction on.
//!
//! What a process ignores and blocks is inherited, and a script that starts an agent in the background, or under
//! `nohup`, ignores some: a signal that is ignored when it comes is gone. So nothing is taken over from whoever started
//! this process.

use std::io;

use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, sigaction};

/// Sets what every signal does, and blocks exactly those that [`crate::run`] waits for. Called before there is a second
/// thread: all threads inherit it.
pub(crate) fn take_over() -> io::Result<()> {
    // First blocked, so that none ends the process between the two steps.
    handled().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    for signal in Signal::iterator() {
        // The first two cannot be set, the third is what the run time library wants ignored.
        if matches!(signal, Signal::SIGKILL | Signal::SIGSTOP | Signal::SIGPIPE) {
            continue;
        }
        #[expect(
            unsafe_code,
            reason = "there is no other way to set what a signal does"
        )]
        // SAFETY: the default action is no function of ours.
        unsafe { sigaction(signal, &default) }?;
    }
    for number in libc::SIGRTMIN()..=libc::SIGRTMAX() {
        #[expect(unsafe_code, reason = "nix knows no real-time signals")]
        // SAFETY: the default action is no function of ours.
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
