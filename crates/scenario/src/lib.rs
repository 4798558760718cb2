//! Simulates a described cluster and workload with the real planner on a simulated clock.
//!
//! A [`Scenario`] describes a resource pool, what is submitted to it, and what happens to it: a text in YAML or JSON
//! that users write and [`read()`] reads, with every error reported by path and line. [`play()`] runs the real planner
//! ([`det_scheduler::plan`]) whenever something happens, lets tasks run and end, and returns a [`Report`]: what
//! started, stopped and waited when and why, and how well the pool was used. It also compares the result with what the
//! scenario expects.
//!
//! The crate is pure: it knows no clock, no files and no cluster. It does not know what tasks do; a task is a number of
//! slots for some time.
//!
//! A [`Trace`] does the same for a hyperparameter search, event by event.
//!
//! Read `description` (the format) first, then `play` (what happens when).

mod agents;
mod cluster;
mod description;
mod expect;
mod fields;
mod operate;
mod planning;
mod play;
mod queue;
mod read;
mod read_expect;
mod report;
mod task_names;
mod text;
mod trace;
mod write;

pub use description::{
    AgentDescription, EndCondition, Expectation, JobSettings, KindDefaults, Operation, Pool,
    RunExpectation, Scenario, Service, ServiceTarget, Start, Step, StepTime, Submission,
    WaitExpectation, WorkspaceSettings,
};
pub use fields::{DescriptionError, DescriptionErrors};
pub use play::{Detail, Observation, OnImpossible, Options, play, play_watched};
pub use read::read;
pub use report::{
    Decision, JobReport, Mismatch, Moment, QueueEntry, Report, RunningTask, Utilisation,
    WaitingTask,
};
pub use trace::{
    ActionExpectation, SearchAction, StepReport, Trace, TraceConfig, TraceEvent, TraceMismatch,
    TraceReport, TraceStep, TracedTrial, completed, config_file_of, play_trace, read_trace,
};
