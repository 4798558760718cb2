//! What the double does, over HTTP as clients see it. One binary, since linking is what costs.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod access;
mod client;
mod deletion;
mod faults;
mod jobs;
mod rest;
mod scheduling;
mod watches;
