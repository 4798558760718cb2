//! The master's glue, as thin as it can be mirrored: what its use cases do between loading rows and storing them.
//!
//! Every function here has its counterpart of the same name below `crates/server/src`, and decides nothing that the pure
//! rooms decide. It works on a [`Tx`]: rows, what the master remembers, and the wakes that follow the commit.

mod agents;
mod background;
mod lifecycle;
mod tasks;

use std::collections::{BTreeMap, BTreeSet};

use det_agent_proto::reconcile::Heard;
use det_searcher::Search;

use crate::mutant::Mutant;
use crate::rows::{Rows, SECOND, Time};

pub(crate) use background::{Planned, can_ever_fit};
pub(crate) use lifecycle::replay;
pub(crate) use tasks::{Call, Reply};

/// How long an agent may be away before its tasks are given up.
pub(crate) const PATIENCE: Time = 600 * SECOND;
/// An order to end a container is repeated when its end has not been reported for this long.
pub(crate) const REPEAT_END: Time = 30 * SECOND;
/// Code that has said that it ends early is given this long.
const EARLY_EXIT: Time = 10 * SECOND;
/// Events after which a snapshot replaces them; small, so that it happens often here.
const SNAPSHOT_EVERY: i64 = 16;

/// A request that does not fit; nothing of it is stored.
pub(crate) type Refused = String;

/// Who may be woken.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Topic {
    /// Scheduling.
    Schedule,
    /// The watch over deadlines.
    Deadlines,
    /// Cleaning up.
    CleanUp,
    /// The connection of an agent.
    Agent(String),
}

/// What the master remembers; lost with it.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Loaded searches.
    pub(crate) searches: BTreeMap<i64, Loaded>,
    /// Connections by agent.
    pub(crate) connections: BTreeMap<String, Connection>,
}

/// A search in memory.
#[derive(Debug, Clone)]
pub(crate) struct Loaded {
    pub(crate) search: Search,
    through: i64,
    snapshot: i64,
}

/// An agent's connection.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    /// Which link.
    pub(crate) link: u64,
    /// Identity of the agent's data directory.
    pub(crate) instance: u32,
    /// What was heard and said on it.
    pub(crate) heard: BTreeMap<String, Heard>,
}

/// A change being made.
pub(crate) struct Tx<'a> {
    pub(crate) rows: &'a mut Rows,
    pub(crate) memory: &'a mut Memory,
    pub(crate) now: Time,
    pub(crate) mutant: Option<Mutant>,
    /// Who is woken after the commit.
    pub(crate) wakes: BTreeSet<Topic>,
    /// Searches whose copy in memory goes if the change is undone.
    pub(crate) searches: BTreeSet<i64>,
}

impl<'a> Tx<'a> {
    pub(crate) fn new(
        rows: &'a mut Rows,
        memory: &'a mut Memory,
        now: Time,
        mutant: Option<Mutant>,
    ) -> Self {
        Self {
            rows,
            memory,
            now,
            mutant,
            wakes: BTreeSet::new(),
            searches: BTreeSet::new(),
        }
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Records what happened to a subject, and with `to` its new state.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "numbers and texts alike are handed in"
    )]
    fn record(
        &mut self,
        subject: &'static str,
        id: impl ToString,
        kind: &'static str,
        to: Option<&'static str>,
    ) {
        if self.is(Mutant::NoEvents) && subject == "trial" {
            return;
        }
        self.rows.version += 1;
        self.rows.events += 1;
        let told = self.rows.told.entry((subject, id.to_string())).or_default();
        told.0 = to.or(told.0);
        told.1.insert(kind);
    }

    fn wake(&mut self, topic: Topic) {
        self.wakes.insert(topic);
    }

    fn wake_agent(&mut self, agent_id: &str) {
        self.wake(Topic::Agent(agent_id.to_owned()));
    }
}
