//! Logs of tasks.

pub mod intake;
pub(crate) mod policies;
pub mod reading;
pub(crate) mod retention;
