//! Requests that may not start before a time ([`Request::not_before`]): until then they are in no queue.

use std::collections::BTreeMap;
use std::sync::Arc;

use det_ids::{AllocationId, Micros};

use crate::model::Request;
use crate::reason::WaitReason;

/// The requests of a pool that have such a time, whether it has come or not: a pass may look at any time.
#[derive(Default)]
pub(crate) struct Pauses {
    requests: BTreeMap<AllocationId, PausedRequest>,
}

struct PausedRequest {
    request: Arc<Request>,
    until: Micros,
    /// Whether its time had come when the queue was last looked at.
    is_queued: bool,
    /// Whether the caller of passes has its reason.
    is_reported: bool,
}

impl PausedRequest {
    fn reason(&self) -> WaitReason {
        WaitReason::PausedAfterFailures { until: self.until }
    }
}

/// What changes in the queue when it is looked at.
pub(crate) enum QueueChange {
    Comes(Arc<Request>),
    Goes(AllocationId),
}

impl Pauses {
    /// Adds or replaces a request with its time; returns whether it is a change.
    pub(crate) fn put(&mut self, request: Arc<Request>, until: Micros) -> bool {
        let known = self.requests.get(&request.allocation_id);
        if known.is_some_and(|known| known.request == request) {
            return false;
        }
        let id = request.allocation_id.clone();
        let paused = PausedRequest {
            request,
            until,
            is_queued: false,
            is_reported: false,
        };
        self.requests.insert(id, paused);
        true
    }

    pub(crate) fn remove(&mut self, id: &AllocationId) {
        self.requests.remove(id);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// What comes into the queue and leaves it at this time.
    pub(crate) fn changes(&mut self, now: Micros) -> Vec<QueueChange> {
        let mut changes = Vec::new();
        for (id, paused) in &mut self.requests {
            let is_due = paused.until <= now;
            if is_due == paused.is_queued {
                continue;
            }
            paused.is_queued = is_due;
            paused.is_reported = false;
            changes.push(if is_due {
                QueueChange::Comes(Arc::clone(&paused.request))
            } else {
                QueueChange::Goes(id.clone())
            });
        }
        changes
    }

    /// Why a request is in no queue; `None` = it is in one, or is not known here.
    pub(crate) fn reason_of(&self, id: &AllocationId) -> Option<WaitReason> {
        let paused = self.requests.get(id).filter(|paused| !paused.is_queued)?;
        Some(paused.reason())
    }

    /// The reasons of those that are in no queue, by id.
    pub(crate) fn reasons(&self) -> impl Iterator<Item = (AllocationId, WaitReason)> {
        let held = self.requests.iter().filter(|(_, paused)| !paused.is_queued);
        held.map(|(id, paused)| (id.clone(), paused.reason()))
    }

    /// The reasons that the caller of passes does not have yet; from now on it has them.
    pub(crate) fn news(&mut self) -> Vec<(AllocationId, Arc<WaitReason>)> {
        let held = self.requests.iter_mut();
        let news = held.filter(|(_, paused)| !paused.is_queued && !paused.is_reported);
        news.map(|(id, paused)| {
            paused.is_reported = true;
            (id.clone(), Arc::new(paused.reason()))
        })
        .collect()
    }

    /// The earliest time after `now` at which one may start.
    pub(crate) fn next(&self, now: Micros) -> Option<Micros> {
        let times = self.requests.values().map(|paused| paused.until);
        times.filter(|until| *until > now).min()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use det_ids::PlaceId;

    use super::*;
    use crate::{
        Job, PlaceSnapshot, PlaceState, Planner, Policy, PoolSettings, PoolSnapshot, Progress,
        Queue, RunningAllocation, SlotSnapshot, SlotState,
    };

    const SECOND: i64 = 1_000_000;
    const NOW: Micros = Micros(1_790_000_000 * SECOND);

    fn after(seconds: i64) -> Micros {
        Micros(NOW.0 + seconds * SECOND)
    }

    fn request(id: &str, not_before: Option<Micros>) -> Request {
        Request {
            allocation_id: id.into(),
            task_id: id.into(),
            job_id: id.into(),
            slots: 1,
            single_place: false,
            preemptible: true,
            excluded_places: BTreeSet::new(),
            misfits: None,
            requested_at: NOW,
            not_before,
        }
    }

    fn job(priority: u8) -> Job {
        Job {
            priority,
            weight: 1.0,
            max_slots: None,
            submitted_at: NOW,
            position: None,
            moved: false,
            workspace: None,
        }
    }

    /// A pool with one place of one slot.
    fn pool(policy: Policy) -> PoolSnapshot {
        PoolSnapshot {
            settings: PoolSettings {
                policy,
                ..PoolSettings::default()
            },
            places: vec![PlaceSnapshot {
                id: "a".into(),
                state: PlaceState::Enabled,
                slots: vec![SlotSnapshot {
                    id: det_ids::SlotId(0),
                    state: SlotState::Free,
                }],
                aux_limit: 0,
                aux_used: 0,
            }],
            running: Vec::new(),
        }
    }

    const PREEMPTING: Policy = Policy::Priority {
        preemption: true,
        default_priority: 42,
    };

    fn queue(requests: Vec<Request>) -> Queue {
        let jobs = requests.iter();
        let jobs = jobs.map(|request| (request.job_id.clone(), job(42)));
        Queue {
            jobs: jobs.collect(),
            requests,
            workspaces: BTreeMap::new(),
        }
    }

    fn started(planner: &mut Planner, now: Micros) -> Vec<String> {
        let plan = planner.plan(now);
        let placed = plan.placements.iter();
        placed.map(|it| it.allocation_id.to_string()).collect()
    }

    #[test]
    fn a_request_starts_once_its_time_has_come_whatever_the_policy() {
        for policy in [PREEMPTING, Policy::FairShare, Policy::RoundRobin] {
            let paused = request("paused", Some(after(15)));
            let mut planner = Planner::of(&pool(policy), &queue(vec![paused]));
            assert!(!planner.is_idle());
            assert_eq!(started(&mut planner, after(0)), [""; 0], "{policy:?}");
            assert_eq!(planner.next_due_at(after(0)), Some(after(15)));
            assert_eq!(started(&mut planner, after(15)), ["paused"], "{policy:?}");
            // A plan depends on its input and its time, not on what was planned before.
            assert_eq!(started(&mut planner, after(14)), [""; 0], "{policy:?}");
            planner.remove(&"paused".into());
            assert!(planner.is_idle());
        }
    }

    #[test]
    fn a_pause_claims_nothing() {
        // It comes first and is more important, and neither keeps others waiting nor stops what runs.
        let mut queue = queue(vec![
            request("paused", Some(after(60))),
            request("other", None),
        ]);
        queue.jobs.insert("paused".into(), job(1));
        let mut planner = Planner::of(&pool(PREEMPTING), &queue);
        assert_eq!(started(&mut planner, after(1)), ["other"]);
        planner.put_running(RunningAllocation {
            request: request("other", None),
            placement: vec![(PlaceId::from("a"), vec![det_ids::SlotId(0)])],
            started_at: after(1),
            progress: Progress::Active,
        });
        assert_eq!(planner.plan(after(59)).preempt, []);
        let stopped = planner.plan(after(60)).preempt;
        assert_eq!(stopped[0].allocation_id.as_str(), "other");
    }

    #[test]
    fn the_reason_is_reported_once_and_names_the_time() {
        let queue = queue(vec![request("paused", Some(after(15)))]);
        let mut planner = Planner::of(&pool(PREEMPTING), &queue);
        let reasons = planner.pass(after(0), 0).waiting;
        let [(id, reason)] = &reasons[..] else {
            panic!("{reasons:?}");
        };
        assert_eq!(id.as_str(), "paused");
        let text = reason.to_string();
        assert!(
            text.starts_with("starts no earlier than 2026-09-21T14:13:35Z,"),
            "{text}"
        );
        assert!(!reason.is_permanent());
        assert_eq!(planner.pass(after(1), 0).waiting, []);
        assert_eq!(planner.pass(after(15), 0).placements.len(), 1);
    }

    #[test]
    fn whether_a_request_would_start_counts_its_time() {
        let mut planner = Planner::of(&pool(PREEMPTING), &Queue::default());
        let mut ask = |now| {
            let paused = request("paused", Some(after(15)));
            planner.wait_reason_if_added(paused, job(42), now)
        };
        let until = after(15);
        assert_eq!(
            ask(after(0)),
            Some(WaitReason::PausedAfterFailures { until })
        );
        assert_eq!(ask(after(15)), None);
    }

    #[test]
    fn an_estimate_waits_for_the_time() {
        let queue = queue(vec![request("paused", Some(after(15)))]);
        let pool = pool(PREEMPTING);
        let estimate = crate::estimate(&pool, &queue, NOW, &BTreeMap::new(), &"paused".into());
        assert_eq!(estimate, crate::Estimate::At(after(15)));
    }
}
