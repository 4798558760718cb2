//! The database: SQLite inside the process, or PostgreSQL, behind one set of functions.
//!
//! # What is stored, what is rebuilt
//!
//! Stored, and the truth: users, sessions, workspaces, projects and namespaces, experiments, their searches (a snapshot and the events since), trials, tasks,
//! allocations, containers, places as last seen, checkpoints, metrics and logs (as compressed chunks;
//! reports of the last seconds in a [`journal`]), and the ordered `events` table in which every change leaves a line in
//! the transaction that made it (`docs/design/0000-decisions.md`). `docs/contract/database.md` describes every column.
//! Rebuilt at start and never trusted across one: connections of places, waiting long polls, caches of searches and
//! sessions.
//!
//! # How writing works
//!
//! One [`writer`] runs all changes one after another on one connection and commits many of them together (group
//! commit). A change is a closure over a [`WriteTx`]: it reads what it needs, decides, writes rows and events, and leaves
//! behind what should happen after the commit. Since changes never overlap there are no races between them and no row
//! locks. An answer is given only after the commit: acknowledged means durable.
//!
//! # How reading works
//!
//! Readers have connections of their own and see the last commit ([`Store::read`]).
//!
//! Read [`Store`], then [`WriteTx`], then the module of the resource you care about. SQL is in these modules only;
//! the rules that keep one text valid on both databases are in `docs/design/0002-two-databases.md`.

#[macro_use]
mod db;
mod access;
mod clock;
mod column;
mod disk_space;
pub mod lite;
pub mod live_rows;
mod migrate;
mod query;
pub mod unit;
pub mod writer;

pub mod agent_tokens;
pub mod allocations;
pub mod archives;
pub mod bulk;
pub mod catalogue;
pub mod checkpoint_removals;
pub mod checkpoints;
mod chunk;
pub mod config_policies;
pub mod events;
pub mod experiments;
pub mod journal;
pub mod logs;
pub mod metrics;
pub mod namespaces;
pub mod places;
pub mod plans;
pub mod queue_days;
pub mod searches;
pub mod series;
pub mod settings;
pub mod task_documents;
pub mod task_metrics;
pub mod templates;
pub mod trials;
pub mod users;
pub mod workspaces;

pub use access::DatabaseAccess;
pub use clock::{earliest_now, latest_now, now, steady_now, step_clock};
pub use db::{Conn, DriverError, ReadConn, Store, StoreError, StoreUrl};
pub(crate) use det_store_derive::Row;
pub use disk_space::{ChangeError, Shortfall};
pub use migrate::MigrateError;
pub use writer::WriteTx;
