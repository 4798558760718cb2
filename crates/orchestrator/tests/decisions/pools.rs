//! Which pool a request goes on to, and whether a trial whose log forbids places may be started again.

use std::collections::{BTreeSet, HashSet};

use det_ids::{AllocationId, JobId, Micros, WorkspaceId};
use det_lifecycle::fallback::Fallback;
use det_lifecycle::log_findings::LogFindings;
use det_orchestrator::{Core, MayRestart, Prospects, Seeker, SentOn, nowhere_left};
use det_scheduler::{Job, PoolSettings, PoolSnapshot, Request, SlotDemand};

/// No setting of it plays a part here.
const CORE: Core = Core {
    snapshot_every: 1,
    trials_at_once: 1,
    mutant: None,
};

/// Pools of which some take another request, and requests that start where they wait.
#[derive(Default)]
struct Pools {
    start: HashSet<AllocationId>,
    take: BTreeSet<&'static str>,
    asked: Vec<(String, String)>,
}

impl Prospects for Pools {
    fn starting(&mut self, _pool: &str) -> HashSet<AllocationId> {
        self.start.clone()
    }

    fn job_in(&self, _job: &JobId, _pool: &str) -> Option<Job> {
        Some(Job {
            priority: 42,
            weight: 1.0,
            max_slots: None,
            submitted_at: Micros(0),
            position: None,
            moved: false,
            workspace: Some(WorkspaceId(1)),
        })
    }

    fn would_start(&mut self, pool: &str, request: Request, _job: Job) -> Option<bool> {
        if pool == "gone" {
            return None;
        }
        self.asked
            .push((request.allocation_id.to_string(), pool.to_owned()));
        Some(self.take.contains(pool))
    }
}

fn request(id: &str, job: &str, slots: u32) -> Request {
    Request {
        allocation_id: id.into(),
        task_id: id.into(),
        job_id: job.into(),
        slots,
        single_place: false,
        preemptible: true,
        excluded_places: BTreeSet::new(),
        misfits: None,
        requested_at: Micros(0),
        not_before: None,
    }
}

fn fallback() -> Fallback {
    Fallback {
        pools: ["a", "gone", "b", "c"].map(str::to_owned).to_vec(),
        wait: 10,
    }
}

/// Sends on these requests, which wait in `a`, at a moment after `now`.
fn sent(pools: &mut Pools, requests: &[Request], now: i64, probes: usize) -> SentOn {
    let fallback = fallback();
    let seekers = requests.iter().map(|request| Seeker {
        request: request.clone(),
        resource_pool: "a",
        fallback: &fallback,
    });
    CORE.send_on(seekers, pools, probes, Micros(now))
}

fn moves(pairs: &[(&str, &str)]) -> Vec<(AllocationId, String)> {
    let pairs = pairs.iter();
    pairs
        .map(|(id, pool)| ((*id).into(), (*pool).to_owned()))
        .collect()
}

#[test]
fn a_request_goes_on_to_the_first_open_pool_in_which_it_would_start() {
    let mut pools = Pools {
        take: BTreeSet::from(["b", "c"]),
        ..Pools::default()
    };
    let one = [request("x", "j", 1)];
    // No other pool is open yet, then one that is not there any more.
    for (now, next) in [(9, 1), (10, 10)] {
        let nothing = SentOn {
            moves: Vec::new(),
            next: Some(next),
        };
        assert_eq!(sent(&mut pools, &one, now, 9), nothing);
    }
    assert_eq!(sent(&mut pools, &one, 20, 9).moves, moves(&[("x", "b")]));
    pools.take.remove("b");
    let late = sent(&mut pools, &one, 30, 9);
    assert_eq!((late.moves, late.next), (moves(&[("x", "c")]), None));
    // What starts where it waits stays there.
    pools.start.insert("x".into());
    assert!(sent(&mut pools, &one, 30, 9).moves.is_empty());
}

#[test]
fn each_pool_takes_one_and_what_was_refused_is_not_asked_again() {
    let several = [
        request("x", "j", 1),
        request("y", "j", 1),
        request("z", "k", 1),
    ];
    let mut pools = Pools {
        take: BTreeSet::from(["b", "c"]),
        ..Pools::default()
    };
    let moved = sent(&mut pools, &several, 30, 9).moves;
    assert_eq!(moved, moves(&[("x", "b"), ("y", "c")]));

    let mut full = Pools::default();
    assert!(sent(&mut full, &several, 30, 9).moves.is_empty());
    let asked: Vec<&str> = full.asked.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(
        asked,
        ["x", "x", "z", "z"],
        "y is as large, of the same job"
    );

    let mut few = Pools::default();
    sent(&mut few, &several, 30, 3);
    assert_eq!(few.asked.len(), 3);
}

#[test]
fn a_log_forbids_restarts_or_leaves_them_to_the_places_that_are_left() {
    let mut findings = LogFindings::default();
    assert_eq!(MayRestart::of(None, true), MayRestart::Yes);
    assert_eq!(MayRestart::of(Some(&findings), true), MayRestart::Yes);
    findings.exclude("p".into(), "broken");
    assert_eq!(MayRestart::of(Some(&findings), true), MayRestart::IfItFits);
    assert_eq!(MayRestart::of(Some(&findings), false), MayRestart::Yes);
    findings.retries_canceled_by = Some("oom".to_owned());
    let MayRestart::No(why) = MayRestart::of(Some(&findings), true) else {
        panic!("it may be started again");
    };
    assert!(why.contains("(\"oom\")"), "{why}");

    let empty = PoolSnapshot {
        settings: PoolSettings::default(),
        places: Vec::new(),
        running: Vec::new(),
    };
    let ask = SlotDemand {
        slots: 1,
        single_place: false,
        excluded: &findings.excluded_places,
    };
    let why = nowhere_left("gpu", &empty, &ask).unwrap();
    assert!(
        why.starts_with("without the places that its log policies exclude, resource pool \"gpu\""),
        "{why}"
    );
}
