//! The pure crates played together: days of a cluster in a second, with everything that can go wrong.
//!
//! The orchestration core, the planner, the life cycles, the searches and the comparison with agents are those of the
//! master. Simulated are time, the network, hosts with their agents, the store's commits, users' code and users; `master`
//! holds the rows, in maps, and what use cases do before they hand an event to the core.
//!
//! One seed is one [`History`]: a phase of users' requests and faults, then healing and a demand for progress. The invariants of
//! `det-invariants` are held against every moment at which something changed; those that look at everything stored
//! (checkpoints, processes, searches, whole lists) every few hundred events. A history that fails is made small by
//! [`shrink()`] and kept below `regressions/`, from where a test replays it. [`Mutant`]s are deliberate defects that show
//! that the checks can fail.
//!
//! Nothing here knows clock, files or chance but that of the seed. Read [`History`], then `world`.

mod history;
mod master;
mod mutant;
mod random;
mod rows;
mod shrink;
mod world;

pub use history::{History, Host, Rule, Service, Submission, Ways, What, Wish};
pub use mutant::Mutant;
pub use random::Stream;
pub use rows::{SECOND, Time};
pub use shrink::shrink;
pub use world::{Counts, Outcome, ViolationReport, play};
