//! Asks the master to preempt a task whose container is ended from outside.

use std::thread;
use std::time::Duration;

use crate::failure::chain;
use crate::master::Master;

/// How often and for how long the master is asked to preempt the task.
const ASK_ATTEMPTS: u32 = 3;
const ASK_TIMEOUT: Duration = Duration::from_secs(5);
const ASK_PAUSE: Duration = Duration::from_secs(1);

/// Asks the master to preempt the allocation.
///
/// # Errors
/// Why it does not: it ends the task itself, or cannot be reached.
pub(crate) fn ask(master: &Master, allocation: impl std::fmt::Display) -> Result<(), String> {
    let path = format!("/api/v1/allocations/{allocation}/signals/pending_preemption");
    let mut attempts = 0;
    loop {
        attempts += 1;
        match master.post(&path, b"{}", ASK_TIMEOUT) {
            Ok(()) => return Ok(()),
            Err(error) if error.is_temporary() && attempts < ASK_ATTEMPTS => {
                thread::sleep(ASK_PAUSE);
            }
            Err(error) => return Err(format!("the task cannot be preempted: {}", chain(&error))),
        }
    }
}
