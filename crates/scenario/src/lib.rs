//! A described cluster and workload, played through the planner on a simulated clock.
//!
//! A [`Scenario`] says what a resource pool is like, what is submitted to it, and what happens to it: a text in YAML or
//! JSON that people write and [`read()`] reads, with every mistake told by path and line. [`play()`] hands it to the real
//! planner ([`det_scheduler::plan`]) whenever something happens, lets tasks run and end, and answers with a [`Report`]:
//! what started, stopped and waited when, why, and how well the pool was used. What a scenario expects of the planner is
//! compared on the way.
//!
//! The room is pure: it knows no clock, no files and no cluster. It knows nothing of what tasks do; a task is slots for
//! some time.
//!
//! A [`Trace`] does the same for a hyperparameter search: it is driven event by event.
//!
//! Read `description` (the format) first, then `play` (what happens when).

mod cluster;
mod description;
mod expect;
mod fields;
mod operate;
mod play;
mod queue;
mod read;
mod read_expect;
mod report;
mod text;
mod trace;
mod write;

pub use description::{
    AgentDescription, Expectation, JobSettings, Kind, Operation, Place, Pool, Presence, Scenario,
    Service, Start, Step, Submission, Until, Waits, When, WorkspaceSettings,
};
pub use fields::{Mistake, Mistakes};
pub use play::{Detail, Observation, Options, Refusals, play};
pub use read::read;
pub use report::{
    Decision, JobReport, Mismatch, Moment, QueueEntry, Report, RunningTask, Use, WaitingTask,
};
pub use trace::{
    Answer, Answered, Expected, Trace, TraceConfig, TraceEvent, TraceMismatch, TraceReport,
    TraceStep, TracedTrial, completed, config_file_of, play_trace, read_trace,
};
