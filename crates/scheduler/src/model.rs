//! The scheduler's input: a pool, the allocations that run in it, the requests that wait for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use det_ids::{AllocationId, JobId, Micros, PlaceId, PriorityOrder, SlotId, TaskId, WorkspaceId};

use serde::Serialize;

use crate::capacity::SlotDemand;

/// One resource pool at one moment.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PoolSnapshot {
    /// The rules by which the pool orders, places and preempts.
    pub settings: PoolSettings,
    /// All places of the pool, in any order; ids are unique.
    pub places: Vec<PlaceSnapshot>,
    /// All allocations that hold something in the pool, in any order, those that are stopping included.
    pub running: Vec<RunningAllocation>,
}

/// The rules by which a pool orders, places and preempts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSettings {
    /// The rule by which requests are ordered and preempted.
    pub policy: Policy,
    /// Which of two priorities goes first; the manager of the pool decides it.
    pub priority_order: PriorityOrder,
    /// Which of several places that fit is taken.
    pub fitting: Fitting,
    /// Whether one allocation may span places of different sizes. Equal sizes are preferred either way.
    pub allow_heterogeneous_fits: bool,
    /// Most slots of one container; what one place gives to a request is divided among containers accordingly
    /// ([`Self::containers_of`]). 0 = no request of two or more slots; `None` = as many as its place has.
    pub max_slots_per_container: Option<u32>,
    /// How long a request may be passed by later ones of its own priority. After that it reserves the places it is
    /// closest to getting. `None`: it may be passed for ever.
    pub reserve_after: Option<Duration>,
    /// Machines that a provisioner can add; `None` for a pool of fixed places.
    pub provisionable: Option<Provisionable>,
}

impl Default for PoolSettings {
    /// Priority without preemption, the lower number first, best fit, equal places only, reservation after ten minutes,
    /// fixed places.
    fn default() -> Self {
        Self {
            policy: Policy::Priority {
                preemption: false,
                default_priority: 42,
            },
            priority_order: PriorityOrder::LowerFirst,
            fitting: Fitting::Best,
            allow_heterogeneous_fits: false,
            max_slots_per_container: None,
            reserve_after: Some(Duration::from_mins(10)),
            provisionable: None,
        }
    }
}

impl PoolSettings {
    /// The slots of each container of a request, of those that one place gives to it: one container without slots, else as
    /// few as may be, whose sizes differ by one at most, the larger ones first.
    pub fn containers_of(&self, mut slots: Vec<SlotId>) -> Vec<Vec<SlotId>> {
        let most = self.max_slots_per_container.map_or(usize::MAX, |most| {
            usize::try_from(most).unwrap_or(usize::MAX).max(1)
        });
        let mut containers = Vec::new();
        for left in (1..=slots.len().div_ceil(most).max(1)).rev() {
            let rest = slots.split_off(slots.len().div_ceil(left));
            containers.push(std::mem::replace(&mut slots, rest));
        }
        containers
    }
}

/// The rule of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Strict priorities, 1 to 99, in the pool's [`PoolSettings::priority_order`].
    Priority {
        /// Whether running work may be asked to stop for more important requests.
        preemption: bool,
        /// Priority of a job that is missing from [`Queue::jobs`].
        default_priority: u8,
    },
    /// Slots are divided among jobs by weight times demand. Running work of a job above its share is preempted for one
    /// below it; slots that no job is entitled to are handed out until some job is.
    FairShare,
    /// Jobs start one task each in turn, those with the fewest slots first. Nothing is preempted.
    RoundRobin,
}

/// Which of several places that fit is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fitting {
    /// The fullest one: keeps whole places free for large requests.
    Best,
    /// The emptiest one: spreads load.
    Worst,
}

/// What a provisioner may add to the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Provisionable {
    /// Slots of one instance; 0 for a type without slots.
    pub slots_per_instance: u32,
    /// Most instances at any time, those present included.
    pub max_instances: u32,
}

/// One place of the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceSnapshot {
    /// Identifies the place in the cluster.
    pub id: PlaceId,
    /// Whether it takes new work, and if not, why.
    pub state: PlaceState,
    /// Its devices, in any order; ids are unique on the place.
    pub slots: Vec<SlotSnapshot>,
    /// Most zero-slot containers at a time.
    pub aux_limit: u32,
    /// Zero-slot containers on it now.
    pub aux_used: u32,
}

/// Whether a place takes work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlaceState {
    /// It is connected and takes new work.
    Enabled,
    /// It finishes its work and takes nothing new: a user asked for that, or its host cannot start containers.
    Draining,
    /// A user took it out of service.
    Disabled,
    /// Its connection is lost and may come back by itself; what runs on it is kept, nothing new starts.
    Disconnected,
}

/// One device of a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotSnapshot {
    /// Number on its place.
    pub id: SlotId,
    /// Whether it is free, and which allocation holds it.
    pub state: SlotState,
}

/// Whether a slot is free. A slot is offered only when it is [`SlotState::Free`] and no running allocation names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotState {
    /// No allocation holds it, and new work may have it.
    Free,
    /// This allocation holds it.
    Held(AllocationId),
    /// Not offered to new work; this allocation may still hold it.
    Draining(Option<AllocationId>),
    /// Out of service; this allocation, which is being killed, may still hold it.
    Disabled(Option<AllocationId>),
    /// Not offered to new work while others hold it, such as pods that the master did not make.
    Foreign,
}

/// An allocation that holds slots, or an auxiliary unit (one for a zero-slot container), of the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningAllocation {
    /// The request by which it got its slots.
    pub request: Request,
    /// What it still holds: slots by place. A zero-slot allocation has one part without slots. Containers that have
    /// exited are not in it any more.
    pub placement: Vec<(PlaceId, Vec<SlotId>)>,
    /// When it was given its slots; among placements of one plan, later for those that are later in the plan. Of
    /// equally good victims the one started last is stopped, because it loses least work.
    pub started_at: Micros,
    /// Whether it has been asked to stop.
    pub progress: Progress,
}

/// What an allocation does in its pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// It waits for slots.
    Waits(Request),
    /// It holds something, or is about to give it back.
    Runs(RunningAllocation),
}

/// Whether a running allocation has been asked to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// It runs (or still starts).
    Active,
    /// A plan asked it to stop so that this allocation can start. Its slots are kept for that one until it has exited,
    /// as long as that one waits (and, under fair share, is within its job's share).
    PreemptedFor(AllocationId),
    /// It stops for another reason: pause, kill, a lowered cap, a disabled place. Any request may get its slots.
    Stopping,
}

/// The requests that wait for the pool, and the jobs they belong to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Queue {
    /// Waiting requests, in any order. Allocation ids are unique and none of them is running.
    pub requests: Vec<Request>,
    /// The jobs of waiting *and* running allocations. A missing one has the pool's default priority, no cap, and counts
    /// as submitted when its allocation was requested.
    pub jobs: BTreeMap<JobId, Job>,
    /// The workspaces that have a limit.
    pub workspaces: BTreeMap<WorkspaceId, WorkspaceLimit>,
}

/// How many slots the jobs of a workspace may use together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkspaceLimit {
    /// Most slots in use at a time, in all pools that the limit is for: of the cluster, or of one manager.
    pub max_slots: u32,
    /// Slots that its jobs use in the other of these pools now.
    pub in_other_pools: u32,
}

impl WorkspaceLimit {
    /// Slots that it may use in this pool.
    pub fn here(self) -> u32 {
        self.max_slots.saturating_sub(self.in_other_pools)
    }
}

/// What an allocation asks for, and under which conditions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The allocation that starts when the request is placed.
    pub allocation_id: AllocationId,
    /// The task of that allocation.
    pub task_id: TaskId,
    /// The job whose caps, shares and priority apply.
    pub job_id: JobId,
    /// Number of slots; 0 asks for one auxiliary unit (a container without a slot).
    pub slots: u32,
    /// Whether all slots must be on one place.
    pub single_place: bool,
    /// Whether it can be asked to stop and be started again later.
    pub preemptible: bool,
    /// Places it must not run on.
    pub excluded_places: BTreeSet<PlaceId>,
    /// Places that it does not fit for other reasons than slots; `None` = it demands nothing but slots.
    pub misfits: Option<Arc<Misfits>>,
    /// When it started to wait.
    pub requested_at: Micros,
    /// It does not start before this time, and until then it claims nothing; `None` = it may start at once.
    pub not_before: Option<Micros>,
}

/// The most reasons of misfits that are shown.
const REASONS_SHOWN: usize = 5;

/// The places that containers with some demands do not fit, whatever slots are free there. Requests with the same demands
/// share one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Misfits {
    /// Places that cannot run them unless the places or the demands are changed.
    pub never: BTreeSet<PlaceId>,
    /// Places that could run them, and do not have what they need at present.
    pub now: BTreeSet<PlaceId>,
    /// Why, for the sentence: the most frequent reasons, each with the number of places that it holds for, the most frequent
    /// first.
    pub groups: Vec<MisfitGroup>,
    /// Whether places that are added do not take them either, because something else than places refuses them.
    pub is_refused: bool,
}

/// Why some places do not fit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct MisfitGroup {
    /// What they lack, completing "a place does not fit: …".
    pub reason: String,
    /// Number of places that lack this.
    #[serde(rename = "agents")]
    pub places: u32,
}

impl Misfits {
    /// From each place that does not fit: whether it never will, and what it lacks.
    pub fn of(places: impl IntoIterator<Item = (PlaceId, (bool, String))>) -> Self {
        let mut misfits = Self::default();
        let mut counts: BTreeMap<String, u32> = BTreeMap::new();
        for (place, (never, reason)) in places {
            *counts.entry(reason).or_default() += 1;
            let set = if never {
                &mut misfits.never
            } else {
                &mut misfits.now
            };
            set.insert(place);
        }
        let groups = counts.into_iter();
        let mut groups: Vec<MisfitGroup> = groups
            .map(|(reason, places)| MisfitGroup { reason, places })
            .collect();
        groups.sort_by_key(|group| std::cmp::Reverse(group.places));
        groups.truncate(REASONS_SHOWN);
        misfits.groups = groups;
        misfits
    }

    /// Of containers that are admitted to no place at present, neither to these, which are all, nor to any that is added:
    /// the reason.
    pub fn refused(places: impl IntoIterator<Item = PlaceId>, reason: String) -> Self {
        let now: BTreeSet<PlaceId> = places.into_iter().collect();
        Self {
            groups: vec![MisfitGroup {
                reason,
                places: u32::try_from(now.len()).unwrap_or(u32::MAX),
            }],
            never: BTreeSet::new(),
            now,
            is_refused: true,
        }
    }

    /// Whether every place fits, those that may be added included.
    pub fn is_empty(&self) -> bool {
        self.never.is_empty() && self.now.is_empty() && !self.is_refused
    }
}

impl Request {
    /// The places that must not be counted on, even when nothing else runs.
    pub(crate) fn barred(&self) -> BTreeSet<PlaceId> {
        let never = self.misfits.iter().flat_map(|misfits| &misfits.never);
        self.excluded_places.iter().chain(never).cloned().collect()
    }

    /// The part that decides where it can fit.
    pub fn demand(&self) -> SlotDemand<'_> {
        SlotDemand {
            slots: self.slots,
            single_place: self.single_place,
            excluded: &self.excluded_places,
        }
    }
}

/// An entry of the job queue.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// 1 to 99; which one is more important is [`PoolSettings::priority_order`]. Only the priority rule looks at it.
    pub priority: u8,
    /// Share weight, above 0 and finite; anything else counts as 1. Only fair share looks at it.
    pub weight: f64,
    /// Most slots in use at a time by all its allocations; `None` = no cap.
    pub max_slots: Option<u32>,
    /// When the job was submitted.
    pub submitted_at: Micros,
    /// Position in the queue if it was moved: on the scale of submission times, in microseconds; smaller is
    /// earlier.
    /// `None` = its time of submission. Set by [`crate::move_job`].
    pub position: Option<i64>,
    /// Whether a user moved it. Only then may it stop, or be stopped for, a job of the same priority.
    pub moved: bool,
    /// The workspace whose limit applies; `None` = its workspace has no limit.
    pub workspace: Option<WorkspaceId>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_place_gives_is_divided_among_containers() {
        for (most, slots, expected) in [
            (None, 5, vec![5]),
            (Some(8), 8, vec![8]),
            (Some(4), 8, vec![4, 4]),
            (Some(4), 6, vec![3, 3]),
            (Some(4), 9, vec![3, 3, 3]),
            (Some(4), 5, vec![3, 2]),
            (Some(4), 0, vec![0]),
            (Some(0), 1, vec![1]),
        ] {
            let settings = PoolSettings {
                max_slots_per_container: most,
                ..PoolSettings::default()
            };
            let slots: Vec<SlotId> = (0..slots).map(SlotId).collect();
            let containers = settings.containers_of(slots.clone());
            let sizes: Vec<usize> = containers.iter().map(Vec::len).collect();
            assert_eq!(sizes, expected, "{most:?}");
            assert_eq!(containers.concat(), slots);
        }
    }
}
