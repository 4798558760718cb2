//! Request and response types of the HTTP API, with the wire dialect.
//!
//! The crate contains only the messages between clients and master: no routes, no rows, no decisions. Types are named
//! as the operations name them and grouped by resource. Read [`wire`] first (how messages are read and written), then
//! [`error`] (how a refusal looks), then the file of the resource at hand. [`operation::OPERATIONS`] lists every
//! operation that clients know, built or not.
//!
//! Conventions:
//! - Every message has a `Default` in which all is zero, empty or unset, and reads itself from a body that names any
//!   subset of its fields.
//! - Every field is always written; `None` is written as `null`. Lists are never null.
//! - Integers are `i64` and written as numbers; those that clients expect as text are [`wire::Int64`]. Ids are those of
//!   [`det_ids`], written as the number or text that they are made of, which is also what schemas have of them. Where a
//!   field names things of several kinds (`entityId`, `subjectId`), or things of other systems, it is text.
//!   Floats are [`wire::Float`], because JSON has no not-a-number.
//! - `Option` in a request means that absence differs from the zero value; in an answer, that clients take `null`.
//! - Types named `…Query` are the query strings of their operation; path parameters are the router's.

pub mod agents;
pub mod allocations;
pub mod auth;
pub mod checkpoints;
pub mod config_policies;
pub mod diagnosis;
pub mod error;
pub mod events;
pub mod experiments;
pub mod jobs;
pub mod launches;
pub mod logs;
pub mod master;
pub mod metrics;
pub mod operation;
pub mod page;
pub mod pools;
pub mod profiler;
pub mod searcher;
pub mod tasks;
pub mod templates;
pub mod trials;
pub mod users;
pub mod wire;
pub mod workspaces;
