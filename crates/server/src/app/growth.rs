//! Tasks that wait for a cluster to grow: what scheduling wants of managers, and how far they report that they are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use det_ids::{AllocationId, Micros};
use det_rm::{GrowthState, Share, WaitingGang};
use det_scheduler::WaitExplanation;
use serde_json::{Value, json};

/// What waits for clusters to grow, and what has become of that. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct GrowthBoard(Arc<Mutex<Growth>>);

#[derive(Default)]
struct Growth {
    /// By pool: what waits after the last pass, the most important first.
    waiting: BTreeMap<String, Vec<WaitingGang>>,
    /// By manager, as it was last reported.
    states: BTreeMap<String, BTreeMap<AllocationId, GrowthState>>,
    /// Allocations whose reason is to be written again.
    changed: BTreeSet<AllocationId>,
}

impl GrowthBoard {
    fn lock(&self) -> MutexGuard<'_, Growth> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what waits in all pools after a pass; whether that is news.
    pub(crate) fn set_waiting(&self, waiting: BTreeMap<String, Vec<WaitingGang>>) -> bool {
        let mut growth = self.lock();
        let is_news = growth.waiting != waiting;
        growth.waiting = waiting;
        is_news
    }

    /// What waits in these pools.
    pub(crate) fn waiting(&self, pools: &[String]) -> Vec<WaitingGang> {
        let growth = self.lock();
        let waiting = pools.iter().filter_map(|pool| growth.waiting.get(pool));
        waiting.flatten().cloned().collect()
    }

    /// Notes what a manager reports.
    pub(crate) fn report(&self, manager: &str, states: BTreeMap<AllocationId, GrowthState>) {
        let mut growth = self.lock();
        let before = growth.states.remove(manager).unwrap_or_default();
        let ids = before.keys().chain(states.keys());
        let changed = ids.filter(|id| before.get(id) != states.get(id));
        growth.changed.extend(changed.cloned());
        growth.states.insert(manager.to_owned(), states);
    }

    /// The allocations whose reason is to be written again since this was last asked.
    pub(crate) fn take_changed(&self) -> BTreeSet<AllocationId> {
        std::mem::take(&mut self.lock().changed)
    }

    /// The allocations that no cluster is asked for at this time because that has failed, and until when that holds of all of
    /// them; `None` = there are none.
    pub(crate) fn given_up(&self, now: Micros) -> (BTreeSet<AllocationId>, Option<Micros>) {
        let growth = self.lock();
        let states = growth.states.values().flatten();
        let given_up = states.filter_map(|(id, state)| match state {
            GrowthState::GivenUp { until, .. } if *until > now => Some((id.clone(), *until)),
            GrowthState::GivenUp { .. } | GrowthState::Asked { .. } => None,
        });
        let (mut ids, mut first_over) = (BTreeSet::new(), None);
        for (id, until) in given_up {
            ids.insert(id);
            first_over = Some(first_over.map_or(until, |first: Micros| first.min(until)));
        }
        (ids, first_over)
    }

    /// Adds to the reason why an allocation waits how far growing is for it; whether there is anything of that.
    pub(crate) fn explain(&self, id: &AllocationId, reason: &mut WaitExplanation) -> bool {
        let growth = self.lock();
        let Some(state) = growth.states.values().find_map(|states| states.get(id)) else {
            return false;
        };
        reason.message = format!("{}; {}", reason.message, sentence(state));
        reason.details.insert("growth".to_owned(), details(state));
        true
    }
}

fn moment(at: Micros) -> String {
    jiff::Timestamp::from_microsecond(at.0)
        .map_or_else(|_| at.0.to_string(), |at| format!("{at:.0}"))
}

/// How many nodes a task takes a part of, and the parts, of which the larger come first.
fn nodes(shares: &[Share]) -> String {
    let mut sizes: BTreeMap<u32, usize> = BTreeMap::new();
    for share in shares {
        *sizes.entry(share.slots).or_default() += 1;
    }
    let nodes = sizes.into_iter().rev().map(|(slots, nodes)| {
        let s = if nodes == 1 { "" } else { "s" };
        match slots {
            0 => format!("{nodes} node{s}"),
            1 => format!("{nodes} node{s} with 1 free slot"),
            slots => format!("{nodes} node{s} with {slots} free slots"),
        }
    });
    nodes.collect::<Vec<_>>().join(" and ")
}

fn sentence(state: &GrowthState) -> String {
    match state {
        GrowthState::Asked { shares, since } => format!(
            "waits for the cluster to grow: asked for {} at {}",
            nodes(shares),
            moment(*since)
        ),
        GrowthState::GivenUp { reason, until } => format!(
            "the cluster did not grow for it: {reason}; it is asked again at {}",
            moment(*until)
        ),
    }
}

fn details(state: &GrowthState) -> Value {
    match state {
        GrowthState::Asked { shares, since } => {
            let slots: Vec<u32> = shares.iter().map(|share| share.slots).collect();
            json!({"state": "asked", "slots": slots, "since": moment(*since)})
        }
        GrowthState::GivenUp { reason, until } => {
            json!({"state": "given_up", "reason": reason, "until": moment(*until)})
        }
    }
}

#[cfg(test)]
mod tests {
    use det_scheduler::WaitReason;

    use super::*;

    fn reason() -> WaitExplanation {
        WaitExplanation::new(&WaitReason::NoPlaces, "no nodes".to_owned())
            .unwrap_or_else(|error| panic!("{error}"))
    }

    fn share(slots: u32) -> Share {
        Share {
            slots,
            containers: 1,
        }
    }

    #[test]
    fn a_reason_has_how_far_growing_is_until_it_is_over() {
        let (board, id) = (GrowthBoard::default(), AllocationId::from("t.1"));
        let asked = GrowthState::Asked {
            shares: vec![share(8), share(8), share(1)],
            since: Micros(1_790_000_000_400_000),
        };
        board.report("k", [(id.clone(), asked.clone())].into());
        board.report("k", [(id.clone(), asked)].into());
        assert_eq!(board.take_changed().len(), 1);
        assert!(board.take_changed().is_empty());
        let mut explained = reason();
        assert!(board.explain(&id, &mut explained));
        assert_eq!(
            explained.message,
            "no nodes; waits for the cluster to grow: asked for 2 nodes with 8 free slots and 1 node with 1 free slot at \
             2026-09-21T14:13:20Z"
        );
        assert_eq!(explained.details["growth"]["slots"], json!([8, 8, 1]));
        let given_up = GrowthState::GivenUp {
            reason: "max size reached".to_owned(),
            until: Micros(1_790_000_000_400_000),
        };
        board.report("k", [(id.clone(), given_up)].into());
        let mut explained = reason();
        assert!(board.explain(&id, &mut explained));
        assert_eq!(
            explained.message,
            "no nodes; the cluster did not grow for it: max size reached; it is asked again at 2026-09-21T14:13:20Z"
        );
        board.report("other", BTreeMap::new());
        board.report("k", BTreeMap::new());
        assert_eq!(board.take_changed().len(), 1);
        assert!(!board.explain(&id, &mut reason()));
    }

    #[test]
    fn what_was_given_up_is_so_until_its_time_has_come() {
        let board = GrowthBoard::default();
        assert_eq!(board.given_up(Micros(0)), (BTreeSet::new(), None));
        let given_up = |until| GrowthState::GivenUp {
            reason: "full".to_owned(),
            until: Micros(until),
        };
        let asked = GrowthState::Asked {
            shares: vec![share(8)],
            since: Micros(1),
        };
        let states = [("t.1", given_up(20)), ("t.2", asked), ("t.3", given_up(30))];
        board.report("k", states.map(|(id, state)| (id.into(), state)).into());
        board.report("other", [("t.4".into(), given_up(40))].into());
        for (now, ids, until) in [
            (10, &["t.1", "t.3", "t.4"][..], Some(20)),
            (20, &["t.3", "t.4"], Some(30)),
            (39, &["t.4"], Some(40)),
            (40, &[], None),
        ] {
            let ids = ids.iter().map(|id| AllocationId::from(*id)).collect();
            let found = board.given_up(Micros(now));
            assert_eq!(found, (ids, until.map(Micros)), "{now}");
        }
    }

    #[test]
    fn what_waits_is_given_by_pool_and_is_news_once() {
        let gang = |id: &str, pool: &str| WaitingGang {
            allocation_id: id.into(),
            resource_pool: pool.to_owned(),
            workspace: None,
            shares: vec![share(8)],
            demands: None,
            excluded_places: BTreeSet::new(),
        };
        let board = GrowthBoard::default();
        let waiting = BTreeMap::from([
            ("a".to_owned(), vec![gang("1", "a"), gang("2", "a")]),
            ("b".to_owned(), vec![gang("3", "b")]),
        ]);
        assert!(board.set_waiting(waiting.clone()));
        assert!(!board.set_waiting(waiting));
        let ids = board.waiting(&["a".to_owned(), "none".to_owned()]);
        let ids: Vec<_> = ids.iter().map(|it| it.allocation_id.as_str()).collect();
        assert_eq!(ids, ["1", "2"]);
    }
}
