//! What the runs of a rule share, and how their outcome is told.

use std::collections::{BTreeMap, HashMap};

use det_ids::{AllocationId, WorkspaceId};

use crate::capacity::Fate;
use crate::model::Policy;
use crate::plan::{HandOver, PreemptReason, Preemption};
use crate::prepared::Prepared;
use crate::reason::{Behind, Holder, Holders, WaitReason};
use crate::reserve::Reserved;
use crate::space::{Parts, Space};
use crate::workspaces::Workspaces;

/// Holders named in a reason.
const HOLDERS_SHOWN: usize = 3;

/// What the two runs decided.
#[derive(Default)]
pub(crate) struct Decided {
    /// Request numbers and where they start.
    pub(crate) placed: Vec<(usize, Parts)>,
    pub(crate) preempt: Vec<Preemption>,
    pub(crate) hand_over: Vec<HandOver>,
    pub(crate) reasons: Reasons,
    /// Requests for which agents are kept.
    pub(crate) reservations: Vec<(usize, Reserved)>,
}

/// Why requests wait. Most wait for the same few reasons.
#[derive(Default)]
pub(crate) struct Reasons {
    /// By request: one more than the place in the list; 0 = it starts.
    of: Vec<u32>,
    list: Vec<WaitReason>,
}

impl Reasons {
    /// Why a request waits; `None` = it does not.
    pub(crate) fn of(&self, request: usize) -> Option<&WaitReason> {
        self.list.get(self.of[request].checked_sub(1)? as usize)
    }

    /// By request one more than the place of its reason in the list (0 = it starts), and the list.
    pub(crate) fn into_parts(self) -> (Vec<u32>, Vec<WaitReason>) {
        (self.of, self.list)
    }

    fn add(&mut self, reason: WaitReason) -> u32 {
        self.list.push(reason);
        u32::try_from(self.list.len()).unwrap_or(u32::MAX)
    }
}

/// What becomes of a request, before the numbers are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Wait {
    /// Nothing has been decided.
    Open,
    Starts,
    /// The agents in service cannot hold it; its shape's fate says why.
    Fate,
    OverCap,
    /// Its workspace is at its limit, or what is left is kept for another.
    OverWorkspace {
        kept_for: Option<usize>,
    },
    Behind {
        request: usize,
        because: Behind,
    },
    ReservedFor(usize),
    /// Its room is being freed; [`Shared::freeing`] says by whom.
    Freeing,
    NoRoom,
    OverShare,
    /// An earlier request of its own job waits for room.
    InTurn(usize),
}

/// A job's part under fair share, in slots.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Standing {
    /// What it could use at a time.
    pub(crate) demand: u64,
    /// What it is entitled to.
    pub(crate) share: u64,
    /// What it would be entitled to if all running work could be preempted.
    pub(crate) nominal: u64,
    /// What its work holds that is not stopping, placements of this plan included.
    pub(crate) active: u64,
    /// What waiting requests of it count on: room that is being freed, or reserved because of age.
    pub(crate) booked: u64,
}

/// What the runs of a rule share.
pub(crate) struct Shared<'a> {
    pub(crate) prepared: &'a Prepared,
    /// Slots in use by job, placements of this plan included.
    pub(crate) in_use: Vec<u64>,
    pub(crate) workspaces: Workspaces,
    /// By running allocation: whether it stops, by an earlier plan or this one.
    pub(crate) stopping: Vec<bool>,
    /// By request.
    pub(crate) waits: Vec<Wait>,
    /// Running allocations that stop for a request, or whose end it waits for; ascending.
    pub(crate) freeing: BTreeMap<usize, Vec<usize>>,
    /// By job; empty unless shares are what decides.
    pub(crate) standings: Vec<Standing>,
    /// Slots that are shared out.
    pub(crate) capacity: u64,
}

impl<'a> Shared<'a> {
    pub(crate) fn new(prepared: &'a Prepared) -> Self {
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
            standings: Vec::new(),
            capacity: 0,
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

    /// A request starts.
    pub(crate) fn start(&mut self, request: usize) {
        let waiting = &self.prepared.requests[request];
        self.in_use[waiting.job] += u64::from(waiting.slots);
        self.workspaces.start(request, waiting);
        self.waits[request] = Wait::Starts;
    }

    /// Keeps for a request what its workspace may still use.
    pub(crate) fn keep(&mut self, request: usize) {
        let waiting = &self.prepared.requests[request];
        self.workspaces.keep(request, waiting);
    }

    /// A request waits for the end of these running allocations.
    pub(crate) fn wait_for(&mut self, request: usize, ends: Vec<usize>) {
        self.waits[request] = Wait::Freeing;
        self.freeing.insert(request, ends);
    }

    /// Where a job has more slots than its cap allows, stops its newest preemptible work until it has not.
    pub(crate) fn stop_over_cap(&mut self, decided: &mut Decided) {
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
                decided.preempt.push(Preemption {
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

    pub(crate) fn fate(&self, shape: usize) -> &'a Fate {
        self.prepared.fate(shape)
    }

    /// Turns waits into reasons, with the numbers as they are after the plan. `aux` may be missing where nothing without
    /// slots waits.
    pub(crate) fn explain(&mut self, slots: &Space, aux: Option<&Space>, decided: &mut Decided) {
        let prepared = self.prepared;
        let holders = self.holders(decided);
        let waits = std::mem::take(&mut self.waits);
        let mut reasons = Reasons {
            of: Vec::with_capacity(waits.len()),
            list: Vec::new(),
        };
        // Places in the list, by what decides about the reason.
        let mut no_room = vec![0; prepared.shapes.len()];
        let mut fated = vec![0; prepared.shapes.len()];
        let mut others: HashMap<(Wait, usize, u32), u32> = HashMap::new();
        // The last one of each shape: those of a job often stand together.
        let mut last = vec![None; prepared.shapes.len()];
        for ((request, wait), waiting) in waits.into_iter().enumerate().zip(&*prepared.requests) {
            let wait = match wait {
                // Later ones of its job may have filled the cap.
                Wait::OverWorkspace { .. } if self.is_over_cap(request) => Wait::OverCap,
                // Its share is what the limit leaves it.
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
                Wait::Open | Wait::NoRoom => &mut no_room[waiting.shape],
                Wait::Fate => &mut fated[waiting.shape],
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
                        Some((known, place)) if known == key => place,
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
        decided.reasons = reasons;
    }

    /// Why a request waits.
    fn reason(&self, request: usize, wait: Wait, space: &Space, holders: &Holders) -> WaitReason {
        let prepared = self.prepared;
        let waiting = &prepared.requests[request];
        match wait {
            Wait::Starts | Wait::Open | Wait::NoRoom => self.no_room(waiting.shape, space, holders),
            Wait::Fate => self.fated(waiting.shape),
            Wait::OverCap | Wait::OverShare => self.over_limit(request, wait),
            Wait::OverWorkspace { kept_for } => self.over_workspace(request, kept_for),
            Wait::Behind {
                request: ahead,
                because,
            } => WaitReason::BehindHigherPriority {
                allocation: self.id(ahead),
                priority: prepared.jobs[prepared.requests[ahead].job].priority,
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

    fn id(&self, request: usize) -> AllocationId {
        self.prepared.requests[request]
            .request
            .allocation_id
            .clone()
    }

    /// The allocations whose end a request waits for.
    fn ends(&self, request: usize) -> Vec<AllocationId> {
        self.freeing
            .get(&request)
            .into_iter()
            .flatten()
            .map(|victim| {
                self.prepared.running[*victim]
                    .running
                    .request
                    .allocation_id
                    .clone()
            })
            .collect()
    }

    /// Why the agents in service cannot hold a shape.
    fn fated(&self, shape: usize) -> WaitReason {
        match self.fate(shape) {
            Fate::Returning(reason) | Fate::NeedsPerson(reason) | Fate::Never(reason) => {
                reason.clone()
            }
            Fate::Usable => {
                unreachable!(
                    "a request waits for its fate only if agents in service cannot hold it"
                )
            }
        }
    }

    /// The numbers of a request's job that its cap, or its share, holds against it.
    fn over_limit(&self, request: usize, wait: Wait) -> WaitReason {
        let waiting = &self.prepared.requests[request];
        let number = |slots: u64| u32::try_from(slots).unwrap_or(u32::MAX);
        let max_slots = self.prepared.jobs[waiting.job].max_slots;
        match (wait, max_slots, self.standings.get(waiting.job)) {
            (Wait::OverShare, _, Some(standing)) => WaitReason::OverFairShare {
                needed: waiting.slots,
                share: number(standing.share),
                in_use: number(standing.active),
                reserved: number(standing.booked),
                demand: standing.demand,
                capacity: number(self.capacity),
            },
            (_, max_slots, _) => WaitReason::OverJobCap {
                needed: waiting.slots,
                max_slots: max_slots.unwrap_or(u32::MAX),
                in_use: number(self.in_use[waiting.job]),
            },
        }
    }

    /// The numbers of a request's workspace that its limit holds against it.
    fn over_workspace(&self, request: usize, kept_for: Option<usize>) -> WaitReason {
        let waiting = &self.prepared.requests[request];
        let (max_slots, in_use) = self
            .workspaces
            .limit_and_use(waiting.job)
            .unwrap_or_default();
        let number = |slots: u64| u32::try_from(slots).unwrap_or(u32::MAX);
        let within = in_use + u64::from(waiting.slots) <= max_slots;
        WaitReason::OverWorkspaceLimit {
            // Only a job with a workspace is held back by one.
            workspace: self.prepared.jobs[waiting.job]
                .workspace
                .unwrap_or(WorkspaceId(0)),
            needed: waiting.slots,
            max_slots: number(max_slots),
            in_use: number(in_use),
            kept_for: kept_for.filter(|_| within).map(|ahead| self.id(ahead)),
        }
    }

    fn no_room(&self, shape: usize, space: &Space, holders: &Holders) -> WaitReason {
        let view = &self.prepared.shapes[shape];
        let eligible = space
            .cells()
            .iter()
            .zip(0..)
            .filter(|(cell, agent)| cell.open && view.shape.allows(*agent));
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
            single_agent: view.shape.single_agent,
            free_total: free,
            largest_free_on_one_agent: largest,
            held_by: holders.clone(),
        }
    }

    /// Who holds most slots once the plan is applied.
    fn holders(&self, decided: &Decided) -> Holders {
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
            let place = holders.partition_point(|other| !goes_before(other));
            holders.insert(place, (slots, id, self.prepared.jobs[job].priority));
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
        for (request, _) in &decided.placed {
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
