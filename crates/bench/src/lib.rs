//! Load, simulated agents and large stores, for measuring and for tests under load. Never part of `det`.
//!
//! Each subcommand of `det-bench` is a module here, so that tests can use it as well.

pub mod generate;
