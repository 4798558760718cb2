//! The master around the orchestration core: what it remembers, its transactions, and what its use cases do before they
//! hand an event to the core.

mod agents;
mod background;
mod experiments;
mod launched;
mod rows;
mod tasks;

use std::collections::{BTreeMap, BTreeSet};

pub(crate) use background::{PlannerAnswer, can_ever_fit};
use det_ids::{ExperimentId, Micros, PlaceId, RunId, TrialId};
pub(crate) use det_orchestrator::Topic;
use det_orchestrator::{
    Agenda, Clock, Core, Effect, Event, IdleClocks, NewTrial, SearchState, Trial,
};
use det_rm::PlaceView;
pub(crate) use experiments::replay;
pub(crate) use launched::watched;
pub(crate) use tasks::{Call, Reply};

use crate::mutant::Mutant;
use crate::rows::{self as stored, Rows, SECOND, Time};

/// How long an agent may be away before its tasks are given up.
pub(crate) const PATIENCE: Time = 600 * SECOND;
/// An order to end a container is repeated when its end has not been reported for this long.
pub(crate) const REPEAT_END: Time = 30 * SECOND;
/// Events after which a snapshot replaces them; small, so that it happens often here.
const SNAPSHOT_EVERY: i64 = 16;
/// Fewer than experiments have, so that one change seldom deals with all of them.
pub(crate) const TRIALS_AT_ONCE: u32 = 2;

/// A request that does not fit; nothing of it is stored.
pub(crate) type RefusalText = String;

/// What the master remembers; lost with it.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Searches that are loaded; of others there are the rows alone.
    pub(crate) searches: BTreeMap<ExperimentId, SearchState>,
    /// When services were last used.
    pub(crate) idle: IdleClocks,
    /// Agents that are connected, each with its connection.
    pub(crate) connections: BTreeMap<PlaceId, Connection>,
}

/// The connection of an agent, as the master knows it.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    /// The number of the connection; an agent that connects again has another.
    pub(crate) link: u64,
    /// Identity of the agent's data directory.
    pub(crate) instance: u32,
    /// What was received and sent on it.
    pub(crate) view: PlaceView,
}

/// What decides, with this defect.
pub(crate) fn core(mutant: Option<Mutant>) -> Core {
    Core {
        snapshot_every: SNAPSHOT_EVERY,
        trials_at_once: TRIALS_AT_ONCE,
        mutant: mutant.and_then(Mutant::of_core),
    }
}

/// A change that is being made: rows and memory before its commit.
pub(crate) struct Tx<'a> {
    pub(crate) rows: &'a mut Rows,
    pub(crate) memory: &'a mut Memory,
    pub(crate) now: Time,
    pub(crate) mutant: Option<Mutant>,
    /// Who is woken after the commit.
    pub(crate) wakes: BTreeSet<Topic>,
    /// Searches whose copy in memory goes if the change is undone.
    pub(crate) searches: BTreeSet<ExperimentId>,
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

    /// Decides on events in their order, each with everything that follows from it.
    pub(crate) fn advance(
        &mut self,
        events: impl IntoIterator<Item = Event>,
    ) -> Result<(), RefusalText> {
        let mut agenda = Agenda::new(events);
        let clock = Clock {
            wall: Micros(self.now),
            steady: Micros(self.now),
        };
        let core = core(self.mutant);
        while let Some(event) = agenda.next_event() {
            let outcome = core
                .decide(self, clock, event)
                .map_err(|refused| refused.to_string())?;
            for effect in outcome.effects {
                self.carry_out(effect);
            }
            agenda.follow(outcome.then);
        }
        Ok(())
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Record(record) => {
                self.rows.record(record.subject, record.kind, record.to);
            }
            // Code asks again by itself.
            Effect::Wake(Topic::Allocation(_) | Topic::TaskLog(_) | Topic::Trial(_)) => {}
            Effect::Wake(topic) => {
                self.wakes.insert(topic);
            }
            Effect::RemovePlace(id) => {
                self.rows.version += 1;
                self.rows.agents.remove(&id);
            }
            Effect::InsertTrial(new) => self.insert_trial(new),
            Effect::AppendSearchEvent {
                experiment_id,
                number,
                text,
            } => {
                self.rows.version += 1;
                if let Some(stored) = self.rows.searches.get_mut(&experiment_id) {
                    stored.events.push((number, text));
                }
            }
            Effect::SaveSearch {
                experiment_id,
                through,
                snapshot,
            } => {
                self.rows.version += 1;
                let stored = stored::StoredSearch {
                    through,
                    snapshot,
                    events: Vec::new(),
                };
                self.rows.searches.insert(experiment_id, stored);
            }
            Effect::EndSearch(id) => {
                self.rows.version += 1;
                self.rows.searches.remove(&id);
                self.memory.searches.remove(&id);
                self.searches.insert(id);
            }
            // Nothing here keeps logs, statistics, tokens or caches.
            Effect::Log { .. }
            | Effect::ExperimentEnded { .. }
            | Effect::ExperimentContinued(_)
            | Effect::RunStarted(_)
            | Effect::TrialEnded(_)
            | Effect::ContainerPlaced { .. }
            | Effect::ContainerEnded(_)
            | Effect::Placed { .. }
            | Effect::Preempted(_)
            | Effect::AllocationEnded(_) => {}
        }
    }

    fn insert_trial(&mut self, new: NewTrial) {
        let id = TrialId(self.rows.last_trial + 1);
        self.rows.last_trial = id.0;
        self.rows.insert_trial(stored::Trial {
            row: Trial {
                id,
                experiment_id: new.experiment_id,
                request_id: new.request_id,
                task_id: new.task_id,
                state: new.state,
                unmanaged: new.unmanaged,
                run_id: RunId::default(),
                restarts: 0,
                ended_at: None,
            },
            seed: new.seed,
            latest_checkpoint: None,
        });
    }
}

/// The topic of an agent's connection.
pub(crate) fn place(id: &PlaceId) -> Topic {
    Topic::Place(id.clone())
}
