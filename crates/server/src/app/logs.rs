//! Logs of tasks: ingested, matched against policies, read, and deleted after a time.
//!
//! # States of a line
//!
//! | state | where it is | what ends it |
//! | --- | --- | --- |
//! | spooled | on the disk of the agent, or in the memory of the caller that logs | its batch is acknowledged |
//! | matched | in memory, held against the log policies ([`policies`], `patterns`) | the transaction that stores it |
//! | stored | in a chunk of its task's log, numbered from 1 | the sweep after its days ([`retention`]), or the deletion of its experiment |
//!
//! A batch is acknowledged after the commit that stores its lines, what the policies found in them and the number up to
//! which the spool has delivered. A batch that is sent again, also years later, is recognised by that number and changes
//! nothing; spools stay known when lines are deleted. A kill loses what was not acknowledged, and the sender sends it
//! again.
//!
//! # Who may hold what
//!
//! - Nothing here is kept in memory between requests, but for the compiled policies of live experiments
//!   ([`crate::app::configs`]), which any change of the configuration replaces.
//! - A reader ([`reading`]) holds a page of chunks and one message. While its client is slow it holds the number of a
//!   line, and reads the page again. No reader holds a connection to the database while it sends.
//! - A sweep ([`retention`]) holds a lock for as long as it runs, so that there is one at a time; each of its
//!   transactions deletes a bounded number of chunks.
//!
//! # Services
//!
//! [`Logs`] ingests and reads, and uses [`policies::LogPolicies`]; [`retention::LogRetention`] deletes. Lines of the
//! master's own come from everywhere, orchestration among others: `Context::write_line`.

pub mod intake;
pub(crate) mod pattern_work;
mod patterns;
pub mod policies;
pub mod reading;
pub mod retention;

use crate::app::context::Context;
use crate::app::logs::pattern_work::PatternWork;
use crate::app::logs::policies::LogPolicies;
use crate::app::ownership::Ownership;
use crate::app::silences::Silences;

/// Logs of tasks: ingesting ([`intake`]) and reading ([`reading`]). Cheap to clone.
#[derive(Clone)]
pub struct Logs {
    context: Context,
    ownership: Ownership,
    policies: LogPolicies,
    pattern_work: PatternWork,
    silences: Silences,
}

impl Logs {
    /// Holds lines against these policies.
    pub(crate) fn new(
        context: Context,
        ownership: Ownership,
        policies: LogPolicies,
        pattern_work: PatternWork,
        silences: Silences,
    ) -> Self {
        Self {
            context,
            ownership,
            policies,
            pattern_work,
            silences,
        }
    }
}
