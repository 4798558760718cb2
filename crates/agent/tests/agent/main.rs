//! The agent against a fake master.

#![expect(
    clippy::unwrap_used,
    reason = "the lint knows test functions, not the helpers they call"
)]
#![expect(
    clippy::print_stderr,
    reason = "a skipped test must be seen to be skipped"
)]

mod common;
mod debug_server;
mod devices;
mod docker;
#[cfg(feature = "failpoints")]
mod failpoints;
mod limits;
mod process;
mod supervisor;
