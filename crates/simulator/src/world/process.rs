//! The master as a process: its changes, its background work, its starts and ends.

use std::collections::BTreeSet;

use det_ids::{ExperimentId, PlaceId};
use det_invariants::Violation;
use det_orchestrator::{Cause, Event as Decide, PassDecision};

use super::network::{Network, Way};
use super::scene::Scene;
use super::store::{CommitFault, Store};
use super::{ChangeError, ChangeOrigin, Event};
use crate::history::Rule;
use crate::master::{Memory, RefusalText, TRIALS_AT_ONCE, Topic, Tx};
use crate::mutant::Mutant;
use crate::rows::{Rows, SECOND, Time};

/// The master: its store, and what it remembers while it is up.
pub(super) struct Master {
    pub(super) rule: Rule,
    pub(super) store: Store,
    /// `None` while the master is down.
    pub(super) memory: Option<Memory>,
    pub(super) work: Background,
}

/// Background work of the master, as far as it is under way.
#[derive(Default)]
pub(super) struct Background {
    /// Counts starts of the master: what an earlier one has begun is over.
    pub(super) start: u64,
    /// When it was last started.
    pub(super) started_at: Time,
    /// What is woken and has not looked yet.
    pub(super) passes: BTreeSet<Topic>,
    /// Until when something that failed waits for being tried again.
    retry_at: Time,
    /// What the planner has decided and is not stored yet.
    pub(super) planned: Option<PassDecision>,
}

impl Background {
    /// Looks at something soon.
    fn wake(&mut self, scene: &mut Scene, topic: Topic) {
        if self.passes.insert(topic.clone()) {
            let wait = scene.luck.between(0, 5_000);
            scene.after(wait, Event::Pass(self.start, topic));
        }
    }

    /// Looks again after some time, although nothing changes.
    pub(super) fn again(&self, scene: &mut Scene, wait: Time, topic: Topic) {
        scene.after(wait, Event::Timer(self.start, topic));
    }

    /// Tries again after some time.
    pub(super) fn retry(&mut self, scene: &mut Scene, wait: Time, topic: Topic) {
        self.retry_at = self.retry_at.max(scene.now + wait);
        self.again(scene, wait, topic);
    }

    /// The master has died.
    fn end(&mut self) {
        self.passes.clear();
        self.planned = None;
        self.start += 1;
    }
}

impl Master {
    /// A master that runs.
    pub(super) fn new(rule: Rule) -> Self {
        Self {
            rule,
            store: Store::default(),
            memory: Some(Memory::default()),
            work: Background::default(),
        }
    }

    /// The rows as of the last commit.
    pub(super) fn rows(&self) -> &Rows {
        &self.store.rows
    }

    /// Whether the master runs, has its database, and has nothing to look at.
    pub(super) fn is_quiet(&self, now: Time) -> bool {
        self.memory.is_some()
            && self.work.passes.is_empty()
            && !self.store.is_away(now)
            && now > self.work.retry_at
    }

    /// Whether it is quiet and has decided nothing that is not stored.
    pub(super) fn is_quiescent(&self, now: Time) -> bool {
        self.is_quiet(now) && self.work.planned.is_none()
    }

    /// Makes a change as the writer does: all of it or nothing, wakes after the commit.
    pub(super) fn write<T>(
        &mut self,
        scene: &mut Scene,
        network: &mut Network,
        asked: ChangeOrigin,
        change: impl FnOnce(&mut Tx<'_>) -> Result<T, RefusalText>,
    ) -> Result<T, ChangeError> {
        if self.store.is_away(scene.now) {
            return Err(ChangeError::Unavailable);
        }
        let Some(memory) = &mut self.memory else {
            return Err(ChangeError::Crashed);
        };
        let done = self.store.write(scene, memory, asked, change);
        let value = match done.outcome {
            Ok(value) => value,
            Err(refused) => {
                self.drop_searches(scene, &done.searches);
                return Err(ChangeError::Refused(refused));
            }
        };
        let early = scene.is(Mutant::AnswersEarly);
        match done.fault {
            None => {
                self.wake_all(scene, done.wakes);
                Ok(value)
            }
            Some(CommitFault::Fails { .. }) => {
                self.drop_searches(scene, &done.searches);
                // Whether it happened is unknown: all that might have something to do are woken.
                if !scene.is(Mutant::LosesWakes) {
                    self.wake_all(scene, done.wakes);
                }
                if early {
                    Ok(value)
                } else {
                    Err(ChangeError::Unavailable)
                }
            }
            Some(CommitFault::Crash { down, .. }) => {
                self.dies(scene, network, down);
                if early {
                    Ok(value)
                } else {
                    Err(ChangeError::Crashed)
                }
            }
        }
    }

    /// A change was not made: what memory holds of it goes, and comes back from the rows.
    fn drop_searches(&mut self, scene: &Scene, searches: &BTreeSet<ExperimentId>) {
        let keeps = scene.is(Mutant::KeepsSearchAfterFailure);
        if let Some(memory) = self.memory.as_mut().filter(|_| !keeps) {
            memory.searches.retain(|id, _| !searches.contains(id));
        }
    }

    /// A change that the master makes by itself.
    pub(super) fn change(
        &mut self,
        scene: &mut Scene,
        network: &mut Network,
        change: impl FnOnce(&mut Tx<'_>) -> Result<(), RefusalText>,
    ) -> Result<(), ChangeError> {
        let outcome = self.write(scene, network, ChangeOrigin::FromInside, change);
        if let Err(ChangeError::Refused(refused)) = &outcome {
            scene.violated(Violation {
                number: 9,
                what: format!("a change of the master itself was refused: {refused}"),
            });
        }
        outcome
    }

    /// A moment that the master waits for has come.
    pub(super) fn timer(&mut self, scene: &mut Scene, start: u64, topic: Topic) {
        if start == self.work.start {
            self.wake(scene, topic);
        }
    }

    fn wake_all(&mut self, scene: &mut Scene, topics: BTreeSet<Topic>) {
        for topic in topics {
            self.wake(scene, topic);
        }
    }

    pub(super) fn wake(&mut self, scene: &mut Scene, topic: Topic) {
        if self.memory.is_some() {
            self.work.wake(scene, topic);
        }
    }

    /// The master dies: what it remembers is lost.
    pub(super) fn dies(&mut self, scene: &mut Scene, network: &mut Network, down: Time) {
        if self.memory.take().is_none() {
            return;
        }
        scene.note(|| format!("master dies for {} s", down / SECOND));
        self.work.end();
        for link in network.open_at_master() {
            network.close_at_master(link);
            network.notify_of_end(scene, link, Way::ToHost);
        }
        scene.after(down, Event::MasterUp);
    }

    /// The master is started.
    pub(super) fn starts(&mut self, scene: &mut Scene, network: &mut Network) {
        if self.memory.is_some() {
            return;
        }
        if self.store.is_away(scene.now) {
            // It cannot start without its database and is started again.
            scene.after(SECOND, Event::MasterUp);
            return;
        }
        scene.note(|| "master starts".to_owned());
        self.memory = Some(Memory::default());
        self.work.started_at = scene.now;
        let marked = self.change(scene, network, |tx| {
            let places: Vec<PlaceId> = tx.rows.agents.keys().cloned().collect();
            tx.advance(places.into_iter().map(|place| Decide::PlaceLeft {
                place,
                cause: Cause::master("the master has started, and serves no place yet"),
            }))?;
            tx.wakes.clear();
            Ok(())
        });
        match marked {
            Ok(()) => {}
            // The start failed.
            Err(ChangeError::Unavailable | ChangeError::Refused(_)) => {
                self.dies(scene, network, SECOND);
                return;
            }
            Err(ChangeError::Crashed) => return,
        }
        if scene.is(Mutant::SleepsAfterStart) {
            return;
        }
        for topic in [Topic::Schedule, Topic::Deadlines, Topic::CleanUp] {
            self.wake(scene, topic);
        }
        let all = self.rows().experiments.values().map(|it| &it.row);
        let least = i64::from(TRIALS_AT_ONCE);
        let large = all.filter(|row| row.state.is_live() && row.trial_count >= least);
        let large: Vec<ExperimentId> = large.map(|row| row.id).collect();
        for id in large {
            self.wake(scene, Topic::Backlog(id));
        }
    }
}
