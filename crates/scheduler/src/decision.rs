//! The state that the runs of a rule share, and the reasons that they give for waiting requests.

use std::collections::{BTreeMap, HashMap};

use det_ids::{AllocationId, Micros, WorkspaceId};

use crate::capacity::Feasibility;
use crate::model::Policy;
use crate::ordered::OrderedEntry;
use crate::plan::{HandOver, PreemptReason, Preemption};
use crate::prepared::PreparedPool;
use crate::reason::{BlockingCause, Holder, Holders, WaitReason};
use crate::reserve::ReservedPlaces;
use crate::space::{Parts, Space};
use crate::workspaces::Workspaces;

/// The most holders that a reason names.
const HOLDERS_SHOWN: usize = 3;

/// What the runs over slots and over auxiliary units decided.
#[derive(Default)]
pub(crate) struct Decision {
    /// Requests that start, by number, and the places they start on.
    pub(crate) placed: Vec<(usize, Parts)>,
    pub(crate) preempt: Vec<Preemption>,
    pub(crate) hand_over: Vec<HandOver>,
    pub(crate) reasons: Reasons,
    /// Requests that reserve places, and those places.
    pub(crate) reservations: Vec<(usize, ReservedPlaces)>,
}

/// Why requests wait. Most wait for the same few reasons.
#[derive(Default)]
pub(crate) struct Reasons {
    /// By request: index in `list` plus one; 0 = it starts.
    of: Vec<u32>,
    list: Vec<WaitReason>,
}

impl Reasons {
    /// Why a request waits; `None` = it starts.
    pub(crate) fn of(&self, request: usize) -> Option<&WaitReason> {
        self.list.get(self.of[request].checked_sub(1)? as usize)
    }

    /// By request the index of its reason in the list plus one (0 = it starts), and the list.
    pub(crate) fn into_parts(self) -> (Vec<u32>, Vec<WaitReason>) {
        (self.of, self.list)
    }

    fn add(&mut self, reason: WaitReason) -> u32 {
        self.list.push(reason);
        u32::try_from(self.list.len()).unwrap_or(u32::MAX)
    }
}

/// The outcome for a request, before the numbers of its reason are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Wait {
    /// The rule has not come to this request yet.
    Open,
    Starts,
    /// The places in service cannot hold it; the [`Feasibility`] of its shape has the reason.
    Infeasible,
    OverCap,
    /// Its workspace is at its limit, or what is left of the limit is kept for another request.
    OverWorkspace {
        kept_for: Option<usize>,
    },
    Behind {
        request: usize,
        because: BlockingCause,
    },
    ReservedFor(usize),
    /// The slots for it are being freed by the allocations in [`DecisionState::freeing`].
    Freeing,
    NotEnoughFree,
    OverShare,
    /// An earlier request of its own job waits.
    InTurn(usize),
}

/// A job's numbers under fair share, in slots.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct JobShare {
    /// What it could use at one time.
    pub(crate) demand: u64,
    /// What it is entitled to.
    pub(crate) share: u64,
    /// What it would be entitled to if all running work could be preempted.
    pub(crate) nominal: u64,
    /// What its work holds, without stopping work and with the placements of this plan.
    pub(crate) active: u64,
    /// What is being freed for its waiting requests, or reserved by them because of their age.
    pub(crate) booked: u64,
}

/// The state that the runs of a rule share.
pub(crate) struct DecisionState<'a> {
    pub(crate) prepared: &'a PreparedPool,
    /// Slots in use by job, placements of this plan included.
    pub(crate) in_use: Vec<u64>,
    pub(crate) workspaces: Workspaces,
    /// By running allocation: whether it stops, by an earlier plan or this one.
    pub(crate) stopping: Vec<bool>,
    /// What becomes of each request, by the number of the request.
    pub(crate) waits: Vec<Wait>,
    /// Running allocations that stop for a request, or whose end it waits for; ascending.
    pub(crate) freeing: BTreeMap<usize, Vec<usize>>,
    /// By job; empty except under fair share.
    pub(crate) job_shares: Vec<JobShare>,
    /// Slots that are divided among the jobs.
    pub(crate) capacity: u64,
    /// Requests made at or before this time reserve; `None` = no request ever does.
    pub(crate) reserve_before: Option<i64>,
}

impl<'a> DecisionState<'a> {
    pub(crate) fn new(prepared: &'a PreparedPool, now: Micros) -> Self {
        let mut in_use = vec![0; prepared.jobs.len()];
        for active in &*prepared.running {
            in_use[active.job] += u64::from(active.slots);
        }
        Self {
            prepared,
            workspaces: Workspaces::new(prepared, &in_use),
            in_use,
            stopping: prepared
                .running
                .iter()
                .map(|active| active.stopping)
                .collect(),
            waits: vec![Wait::Open; prepared.requests.len()],
            freeing: BTreeMap::new(),
            job_shares: Vec::new(),
            capacity: 0,
            reserve_before: prepared.settings.reserve_after.map(|patience| {
                let patience = i64::try_from(patience.as_micros()).unwrap_or(i64::MAX);
                now.0.saturating_sub(patience)
            }),
        }
    }

    /// Whether a request would take its job above its cap.
    pub(crate) fn is_over_cap(&self, request: usize) -> bool {
        let waiting = &self.prepared.requests[request];
        let slots = u64::from(waiting.slots);
        slots > 0
            && self.prepared.jobs[waiting.job]
                .max_slots
                .is_some_and(|max| self.in_use[waiting.job] + slots > u64::from(max))
    }

    /// Whether a request has waited so long that it reserves.
    pub(crate) fn waited_too_long(&self, request: usize) -> bool {
        let waiting = &self.prepared.requests[request];
        self.reserve_before
            .is_some_and(|limit| waiting.requested_at.0 <= limit)
    }

    /// The limit that a request would exceed: that of its job, or that of its workspace.
    pub(crate) fn exceeds(&self, request: usize) -> Option<Wait> {
        if self.is_over_cap(request) {
            return Some(Wait::OverCap);
        }
        let waiting = &self.prepared.requests[request];
        self.workspaces
            .hold_back(request, waiting)
            .then(|| Wait::OverWorkspace {
                kept_for: self.workspaces.kept_for(request, waiting.job),
            })
    }

    /// Records that a request starts.
    pub(crate) fn start(&mut self, request: usize) {
        let waiting = &self.prepared.requests[request];
        self.in_use[waiting.job] += u64::from(waiting.slots);
        self.workspaces.start(request, waiting);
        self.waits[request] = Wait::Starts;
    }

    /// Keeps what is left of its workspace's limit for a request.
    pub(crate) fn keep(&mut self, request: usize) {
        let waiting = &self.prepared.requests[request];
        self.workspaces.keep(request, waiting);
    }

    /// Records that a request waits for the end of these running allocations.
    pub(crate) fn wait_for(&mut self, request: usize, ends: Vec<usize>) {
        self.waits[request] = Wait::Freeing;
        self.freeing.insert(request, ends);
    }

    /// Stops the newest preemptible work of each job that has more slots than its cap, until it has no more than that.
    pub(crate) fn stop_over_cap(&mut self, decision: &mut Decision) {
        let prepared = self.prepared;
        if prepared.jobs.iter().all(|job| job.max_slots.is_none()) {
            return;
        }
        let mut going_on = vec![0_u64; prepared.jobs.len()];
        for (active, stopping) in prepared.running.iter().zip(&self.stopping) {
            if !stopping {
                going_on[active.job] += u64::from(active.slots);
            }
        }
        let in_use = going_on.clone();
        let mut newest_first: Vec<usize> = (0..prepared.running.len()).collect();
        newest_first.sort_by_key(|number| {
            let request = &prepared.running[*number].running.request;
            std::cmp::Reverse((request.requested_at, &request.allocation_id))
        });
        for number in newest_first {
            let active = &prepared.running[number];
            let Some(max_slots) = prepared.jobs[active.job].max_slots else {
                continue;
            };
            let over = going_on[active.job] > u64::from(max_slots);
            let can_stop = active.preemptible && !self.stopping[number];
            if over && can_stop && active.slots > 0 {
                going_on[active.job] -= u64::from(active.slots);
                self.stopping[number] = true;
                decision.preempt.push(Preemption {
                    allocation_id: active.running.request.allocation_id.clone(),
                    for_allocation: None,
                    reason: PreemptReason::OverJobCap {
                        max_slots,
                        in_use: u32::try_from(in_use[active.job]).unwrap_or(u32::MAX),
                    },
                });
            }
        }
    }

    pub(crate) fn feasibility(&self, shape: usize) -> &'a Feasibility {
        self.prepared.feasibility(shape)
    }

    /// Turns waits into reasons, with the numbers as they are after the plan. `aux` may be missing where nothing without
    /// slots waits.
    pub(crate) fn explain(&mut self, slots: &Space, aux: Option<&Space>, decision: &mut Decision) {
        let prepared = self.prepared;
        let holders = self.holders(decision);
        let waits = std::mem::take(&mut self.waits);
        let mut reasons = Reasons {
            of: Vec::with_capacity(waits.len()),
            list: Vec::new(),
        };
        // Indexes in the list, by the values that determine a reason.
        let mut not_enough_free = vec![0; prepared.shapes.len()];
        let mut infeasible = vec![0; prepared.shapes.len()];
        let mut others: HashMap<(Wait, usize, u32), u32> = HashMap::new();
        // The last one of each shape, because requests of one job are often adjacent.
        let mut last = vec![None; prepared.shapes.len()];
        for ((request, wait), waiting) in waits.into_iter().enumerate().zip(&*prepared.requests) {
            let wait = match wait {
                // Later requests of its job may have filled the cap.
                Wait::OverWorkspace { .. } if self.is_over_cap(request) => Wait::OverCap,
                // Its share is small because of the workspace's limit.
                Wait::OverShare if self.workspaces.is_full(waiting) => {
                    Wait::OverWorkspace { kept_for: None }
                }
                wait => wait,
            };
            let mut own = 0;
            let known = match wait {
                Wait::Starts => {
                    reasons.of.push(0);
                    continue;
                }
                Wait::Open | Wait::NotEnoughFree => &mut not_enough_free[waiting.shape],
                Wait::Infeasible => &mut infeasible[waiting.shape],
                Wait::Freeing => &mut own,
                Wait::OverCap
                | Wait::OverShare
                | Wait::OverWorkspace { .. }
                | Wait::Behind { .. }
                | Wait::ReservedFor(_)
                | Wait::InTurn(_) => {
                    let key = match wait {
                        Wait::OverCap | Wait::OverShare | Wait::OverWorkspace { .. } => {
                            (wait, waiting.job, waiting.slots)
                        }
                        _ => (wait, 0, 0),
                    };
                    let last = &mut last[waiting.shape];
                    own = match *last {
                        Some((known, number)) if known == key => number,
                        _ => *others.entry(key).or_insert_with(|| {
                            reasons.add(self.reason(request, wait, slots, &holders))
                        }),
                    };
                    *last = Some((key, own));
                    &mut own
                }
            };
            if *known == 0 {
                let aux = aux.filter(|_| waiting.slots == 0);
                let space = aux.unwrap_or(slots);
                *known = reasons.add(self.reason(request, wait, space, &holders));
            }
            reasons.of.push(*known);
        }
        decision.reasons = reasons;
    }

    /// Why a request waits.
    fn reason(&self, request: usize, wait: Wait, space: &Space, holders: &Holders) -> WaitReason {
        let prepared = self.prepared;
        let waiting = &prepared.requests[request];
        match wait {
            Wait::Starts | Wait::Open | Wait::NotEnoughFree => {
                let others = self.not_enough_free(waiting.shape, space, holders);
                self.beside_misfits(waiting.shape, others)
            }
            Wait::Infeasible => self.beside_misfits(waiting.shape, self.infeasible(waiting.shape)),
            Wait::OverCap | Wait::OverShare => self.over_limit(request, wait),
            Wait::OverWorkspace { kept_for } => self.over_workspace(request, kept_for),
            Wait::Behind {
                request: ahead,
                because,
            } => WaitReason::BehindHigherPriority {
                allocation: self.id(ahead),
                priority: prepared.jobs[prepared.requests[ahead].job].priority,
                order: prepared.settings.priority_order,
                because,
            },
            Wait::ReservedFor(ahead) => WaitReason::ReservedFor {
                allocation: self.id(ahead),
            },
            Wait::InTurn(ahead) => WaitReason::BehindOwnJob {
                allocation: self.id(ahead),
            },
            Wait::Freeing => WaitReason::WaitingForPreemption {
                victims: self.ends(request),
            },
        }
    }

    /// Why requests of a shape wait, where places do not fit it for other reasons than slots.
    fn beside_misfits(&self, shape: usize, otherwise: WaitReason) -> WaitReason {
        match &self.prepared.shapes[shape].misfits {
            Some(misfits) => WaitReason::PlacesDoNotFit {
                lacking: misfits.groups.clone(),
                otherwise: Box::new(otherwise),
            },
            None => otherwise,
        }
    }

    fn id(&self, request: usize) -> AllocationId {
        self.prepared.requests[request].id().clone()
    }

    /// The allocations whose end a request waits for.
    fn ends(&self, request: usize) -> Vec<AllocationId> {
        self.freeing
            .get(&request)
            .into_iter()
            .flatten()
            .map(|victim| self.prepared.running[*victim].id().clone())
            .collect()
    }

    /// Why the places in service cannot hold a shape.
    fn infeasible(&self, shape: usize) -> WaitReason {
        match self.feasibility(shape) {
            Feasibility::Returning(reason)
            | Feasibility::NeedsAdministrator(reason)
            | Feasibility::Never(reason) => reason.clone(),
            Feasibility::Usable => {
                unreachable!("a request is infeasible only if places in service cannot hold it")
            }
        }
    }

    /// The reason of a request that is above its job's cap or share.
    fn over_limit(&self, request: usize, wait: Wait) -> WaitReason {
        let waiting = &self.prepared.requests[request];
        let number = |slots: u64| u32::try_from(slots).unwrap_or(u32::MAX);
        let max_slots = self.prepared.jobs[waiting.job].max_slots;
        match (wait, max_slots, self.job_shares.get(waiting.job)) {
            (Wait::OverShare, _, Some(job_share)) => WaitReason::OverFairShare {
                needed: waiting.slots,
                share: number(job_share.share),
                in_use: number(job_share.active),
                reserved: number(job_share.booked),
                demand: job_share.demand,
                capacity: number(self.capacity),
            },
            (_, max_slots, _) => WaitReason::OverJobCap {
                needed: waiting.slots,
                max_slots: max_slots.unwrap_or(u32::MAX),
                in_use: number(self.in_use[waiting.job]),
            },
        }
    }

    /// The reason of a request that is above its workspace's limit.
    fn over_workspace(&self, request: usize, kept_for: Option<usize>) -> WaitReason {
        let waiting = &self.prepared.requests[request];
        let (max_slots, in_use) = self
            .workspaces
            .limit_and_use(waiting.job)
            .unwrap_or_default();
        let number = |slots: u64| u32::try_from(slots).unwrap_or(u32::MAX);
        let within = in_use + u64::from(waiting.slots) <= max_slots;
        WaitReason::OverWorkspaceLimit {
            // Only a job with a limited workspace gets this reason.
            workspace: self.prepared.jobs[waiting.job]
                .workspace
                .unwrap_or(WorkspaceId(0)),
            needed: waiting.slots,
            max_slots: number(max_slots),
            in_use: number(in_use),
            kept_for: kept_for.filter(|_| within).map(|ahead| self.id(ahead)),
        }
    }

    fn not_enough_free(&self, shape: usize, space: &Space, holders: &Holders) -> WaitReason {
        let view = &self.prepared.shapes[shape];
        let eligible = space
            .cells()
            .iter()
            .zip(0..)
            .filter(|(cell, place)| cell.open && view.shape.allows(*place));
        let (mut free, mut largest, mut used, mut capacity) = (0_u32, 0_u32, 0_u32, 0_u32);
        for (cell, _) in eligible {
            free = free.saturating_add(cell.free());
            largest = largest.max(cell.free());
            used = used.saturating_add(cell.used);
            capacity = capacity.saturating_add(cell.capacity);
        }
        if view.slots == 0 {
            return WaitReason::AuxFull {
                in_use: used,
                limit: capacity,
            };
        }
        WaitReason::NotEnoughFreeSlots {
            needed: view.slots,
            single_place: view.shape.single_place,
            free_total: free,
            largest_free_on_one_place: largest,
            held_by: holders.clone(),
        }
    }

    /// The allocations that hold most slots once the plan is applied.
    fn holders(&self, decision: &Decision) -> Holders {
        let mut holders: Vec<(u32, &AllocationId, u8)> = Vec::with_capacity(HOLDERS_SHOWN + 1);
        let by_priority = matches!(self.prepared.settings.policy, Policy::Priority { .. });
        let mut all = 0_u32;
        let mut offer = |slots: u32, id: &'a AllocationId, job: usize| {
            all += u32::from(slots > 0);
            let goes_before = |other: &(u32, &AllocationId, u8)| {
                slots > other.0 || (slots == other.0 && id < other.1)
            };
            let full = holders.len() == HOLDERS_SHOWN;
            if slots == 0 || (full && !holders.last().is_some_and(goes_before)) {
                return;
            }
            let at = holders.partition_point(|other| !goes_before(other));
            holders.insert(at, (slots, id, self.prepared.jobs[job].priority));
            holders.truncate(HOLDERS_SHOWN);
        };
        for active in &*self.prepared.running {
            if active.slots > 0 {
                offer(
                    active.slots,
                    &active.running.request.allocation_id,
                    active.job,
                );
            }
        }
        for (request, _) in &decision.placed {
            let waiting = &self.prepared.requests[*request];
            offer(waiting.slots, &waiting.request.allocation_id, waiting.job);
        }
        let named: Vec<Holder> = holders
            .into_iter()
            .map(|(slots, allocation, priority)| Holder {
                allocation: allocation.clone(),
                slots,
                priority: by_priority.then_some(priority),
            })
            .collect();
        let more = all.saturating_sub(u32::try_from(named.len()).unwrap_or(u32::MAX));
        Holders::new(named, more)
    }
}
