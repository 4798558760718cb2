//! Which waiting requests places are worth adding for, where a pool may have more of them than exist.

use std::collections::BTreeSet;
use std::sync::Arc;

use det_ids::{AllocationId, PlaceId};

use crate::future::ShapeSet;
use crate::model::{PlaceState, Policy, PoolSettings, Provisionable};
use crate::prepared::{PlaceView, PreparedPool, Service, WaitingRequest};
use crate::reason::{BlockingCause, WaitReason};
use crate::space::Parts;

/// Shapes that the pool has nothing for which one pass tries at most: users can submit many.
const MOST_UNFIT: usize = 1_000;
/// Requests that places are added for after one pass at most: with more of them, places that are added for these come first.
const MOST_GROWN_FOR: usize = 1_000;

/// A waiting request that starts when places are added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Growth {
    /// The allocation that waits.
    pub allocation_id: AllocationId,
    /// What it takes of each place, those that exist included.
    pub shares: Vec<Share>,
    /// How many of the places do not exist yet.
    pub added_places: u32,
    /// Places that it must not run on.
    pub excluded_places: BTreeSet<PlaceId>,
}

/// What a request takes of one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share {
    /// Slots; 0 for a request without slots.
    pub slots: u32,
    /// Containers that the slots are divided among, at least 1.
    pub containers: u32,
}

/// Whether a request that waits for this reason may start earlier with more places, where `served` are more important
/// requests that do.
fn is_for_want_of_places(reason: &WaitReason, served: &BTreeSet<&AllocationId>) -> bool {
    match reason {
        WaitReason::WaitingForInstances { .. }
        | WaitReason::NotEnoughFreeSlots { .. }
        | WaitReason::PlacesUnavailable { .. } => true,
        // What it waits behind must be out of its way, or places for it would stay empty.
        WaitReason::ReservedFor { allocation } => served.contains(allocation),
        WaitReason::BehindHigherPriority {
            allocation,
            because,
            ..
        } => match because {
            BlockingCause::PreemptionOff | BlockingCause::NotPreemptible => {
                served.contains(allocation)
            }
            BlockingCause::SlotsBeingFreed => false,
        },
        WaitReason::PlacesDoNotFit { otherwise, .. } => match &**otherwise {
            // What is left where no place fits.
            WaitReason::AllPlacesExcluded { .. } | WaitReason::AuxFull { .. } => true,
            otherwise => is_for_want_of_places(otherwise, served),
        },
        WaitReason::NoPlaces
        | WaitReason::AllPlacesExcluded { .. }
        | WaitReason::NoPlaceLargeEnough { .. }
        | WaitReason::ContainerTooLarge { .. }
        | WaitReason::PoolTooSmall { .. }
        | WaitReason::GangDoesNotDivide { .. }
        | WaitReason::OverJobCap { .. }
        | WaitReason::OverWorkspaceLimit { .. }
        | WaitReason::OverFairShare { .. }
        | WaitReason::BehindOwnJob { .. }
        | WaitReason::WaitingForPreemption { .. }
        | WaitReason::AuxFull { .. }
        | WaitReason::PausedAfterFailures { .. } => false,
    }
}

/// The requests that places are worth adding for, in the order of the queue; none where the pool has a fixed number of
/// places. `reason_of` gives why a request waits, by its number, `placed` what starts in the same pass, and `given_up` the
/// requests for which adding places has failed.
pub(crate) fn growth<'r>(
    prepared: &PreparedPool,
    reason_of: impl Fn(usize) -> Option<&'r Arc<WaitReason>>,
    placed: &[(usize, Parts)],
    given_up: &BTreeSet<AllocationId>,
) -> Vec<Growth> {
    let Some(added) = prepared.settings.provisionable else {
        return Vec::new();
    };
    let mut grown = None;
    let mut served = BTreeSet::new();
    let mut growth = Vec::new();
    let mut gate = Gate::new(prepared);
    // Shapes that the pool has nothing for however it grows. It only becomes fuller, so that each of them is tried once: a
    // queue full of such requests costs little, and does not hide one behind them that growth helps.
    let mut unfit = ShapeSet::new(prepared.shapes.len());
    let mut unfit_shapes = 0;
    for (number, waiting) in prepared.requests.iter().enumerate() {
        let Some(reason) = reason_of(number) else {
            continue;
        };
        let (id, shape) = (&waiting.request.allocation_id, waiting.shape);
        let misfits = prepared.shapes[shape].misfits.as_ref();
        if misfits.is_some_and(|misfits| misfits.is_refused) {
            continue;
        }
        if unfit.contains(shape)
            || gate.is_closed(waiting)
            || !is_for_want_of_places(reason, &served)
            || given_up.contains(id)
        {
            gate.close(waiting, reason);
            continue;
        }
        let grown = grown.get_or_insert_with(|| GrownPool::new(prepared, added, placed));
        let Some(taken) = grown.take(&prepared.settings, waiting) else {
            gate.close(waiting, reason);
            unfit.insert(shape);
            unfit_shapes += 1;
            if unfit_shapes == MOST_UNFIT {
                break;
            }
            continue;
        };
        served.insert(id);
        if taken.added_shares > 0 {
            growth.push(taken.growth);
            if growth.len() == MOST_GROWN_FOR {
                break;
            }
        }
    }
    growth
}

/// What keeps less important work from starting, also on places that are added: a more important request that waits for
/// slots and that nothing is added for. With the policy of priorities alone.
struct Gate<'p> {
    prepared: &'p PreparedPool,
    /// Whether it holds for work that can be preempted as well; `None` = there is no gate.
    holds_for_preemptible: Option<bool>,
    /// The class that has closed it, for requests with slots and for those without.
    closed_by: [Option<i64>; 2],
}

impl<'p> Gate<'p> {
    fn new(prepared: &'p PreparedPool) -> Self {
        let holds_for_preemptible = match prepared.settings.policy {
            Policy::Priority { preemption, .. } => Some(!preemption),
            Policy::FairShare | Policy::RoundRobin => None,
        };
        Self {
            prepared,
            holds_for_preemptible,
            closed_by: [None, None],
        }
    }

    fn closed_by(&mut self, waiting: &WaitingRequest) -> &mut Option<i64> {
        &mut self.closed_by[usize::from(waiting.slots == 0)]
    }

    fn is_closed(&mut self, waiting: &WaitingRequest) -> bool {
        let rank = self.prepared.jobs[waiting.job].rank;
        let is_held = match self.holds_for_preemptible {
            Some(holds_for_preemptible) => holds_for_preemptible || !waiting.preemptible,
            None => false,
        };
        is_held && self.closed_by(waiting).is_some_and(|class| class != rank)
    }

    /// A request waits for this reason, and nothing is added for it.
    fn close(&mut self, waiting: &WaitingRequest, reason: &WaitReason) {
        if closes(reason) {
            let rank = self.prepared.jobs[waiting.job].rank;
            self.closed_by(waiting).get_or_insert(rank);
        }
    }
}

/// Whether a request that waits for this reason could start if it had slots.
fn closes(reason: &WaitReason) -> bool {
    match reason {
        WaitReason::WaitingForInstances { .. }
        | WaitReason::NotEnoughFreeSlots { .. }
        | WaitReason::WaitingForPreemption { .. }
        | WaitReason::ReservedFor { .. } => true,
        WaitReason::PlacesDoNotFit { otherwise, .. } => closes(otherwise),
        // More slots are of no use to it.
        WaitReason::NoPlaces
        | WaitReason::AllPlacesExcluded { .. }
        | WaitReason::NoPlaceLargeEnough { .. }
        | WaitReason::ContainerTooLarge { .. }
        | WaitReason::PoolTooSmall { .. }
        | WaitReason::GangDoesNotDivide { .. }
        | WaitReason::PlacesUnavailable { .. }
        | WaitReason::OverJobCap { .. }
        | WaitReason::OverWorkspaceLimit { .. }
        | WaitReason::OverFairShare { .. }
        | WaitReason::BehindOwnJob { .. }
        | WaitReason::BehindHigherPriority { .. }
        | WaitReason::AuxFull { .. }
        | WaitReason::PausedAfterFailures { .. } => false,
    }
}

/// What a request takes of the places that exist or may be added.
struct Claim {
    growth: Growth,
    /// How many of its shares are of places that do not exist yet.
    added_shares: u32,
}

/// What a place has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Remainder {
    slots: u32,
    /// All slots of the place.
    size: u32,
    /// How many more containers without slots it may have.
    auxiliary: u32,
}

/// The places of a pool and those that may be added, with what is left of them.
struct GrownPool<'p> {
    added: Provisionable,
    present: Vec<(&'p PlaceId, Remainder)>,
    /// Places that take nothing now, and count all the same. Those whose connection is lost do not: they may be gone for good,
    /// and the work of the pool goes on elsewhere.
    absent: usize,
    new: Vec<Remainder>,
}

impl<'p> GrownPool<'p> {
    fn new(prepared: &'p PreparedPool, added: Provisionable, placed: &[(usize, Parts)]) -> Self {
        let mut left: Vec<Remainder> = prepared.places.iter().map(left_of).collect();
        for (number, parts) in placed {
            let takes_slots = prepared.requests[*number].slots > 0;
            for &(place, units) in parts {
                let left = &mut left[place as usize];
                if takes_slots {
                    left.slots = left.slots.saturating_sub(units);
                } else {
                    left.auxiliary = left.auxiliary.saturating_sub(units);
                }
            }
        }
        let counts = |view: &&PlaceView| view.place.state != PlaceState::Disconnected;
        let counted = prepared.places.iter().filter(counts).count();
        let places = prepared.places.iter().zip(left);
        let present = places.filter(|(view, _)| view.place.state == PlaceState::Enabled);
        let present: Vec<_> = present.map(|(view, left)| (&view.place.id, left)).collect();
        Self {
            added,
            absent: counted - present.len(),
            present,
            new: Vec::new(),
        }
    }

    /// Gives a request what it needs, of present places first; `None` = it cannot have that.
    fn take(&mut self, settings: &PoolSettings, waiting: &WaitingRequest) -> Option<Claim> {
        let shares = self.shares(settings, waiting)?;
        let before = (self.present.clone(), self.new.clone());
        let mut added_shares = 0;
        for slots in &shares {
            if let Some(is_added) = self.take_share(waiting, *slots, shares.len() > 1) {
                added_shares += u32::from(is_added);
            } else {
                (self.present, self.new) = before;
                return None;
            }
        }
        let added_places = self.new.len() - before.1.len();
        let shares = shares.into_iter().map(|slots| Share {
            slots,
            containers: containers(settings, slots),
        });
        let growth = Growth {
            allocation_id: waiting.request.allocation_id.clone(),
            shares: shares.collect(),
            added_places: u32::try_from(added_places).unwrap_or(u32::MAX),
            excluded_places: waiting.request.excluded_places.clone(),
        };
        Some(Claim {
            growth,
            added_shares,
        })
    }

    /// What it takes of each place, in slots, if places have as many as those that are added; `None` = it does not fit those.
    fn shares(&self, settings: &PoolSettings, waiting: &WaitingRequest) -> Option<Vec<u32>> {
        let (slots, size) = (waiting.slots, self.added.slots_per_instance);
        if slots <= size || slots == 0 {
            return Some(vec![slots]);
        }
        if waiting.request.single_place || size == 0 {
            return None;
        }
        let (whole, rest) = (slots / size, slots % size);
        let places = whole + u32::from(rest > 0);
        if places > self.added.max_instances || (rest > 0 && !settings.allow_heterogeneous_fits) {
            return None;
        }
        let mut shares = vec![size; usize::try_from(whole).ok()?];
        shares.extend((rest > 0).then_some(rest));
        Some(shares)
    }

    /// Gives a request one of its shares: of the fullest present place that has it, else of one that is added. Whether it is
    /// one that is added; `None` = there is none.
    fn take_share(&mut self, waiting: &WaitingRequest, slots: u32, is_gang: bool) -> Option<bool> {
        let request = &waiting.request;
        let misfits = request.misfits.as_deref();
        let fits = |id: &PlaceId| {
            let is_misfit =
                |misfits: &crate::Misfits| misfits.never.contains(id) || misfits.now.contains(id);
            !request.excluded_places.contains(id) && !misfits.is_some_and(is_misfit)
        };
        let holds = |left: &Remainder| left.holds(slots, is_gang);
        let present = self.present.iter_mut();
        let present = present.filter(|(id, left)| holds(left) && fits(id));
        if let Some((_, left)) = present.min_by_key(|(_, left)| left.slots) {
            left.take(slots);
            return Some(false);
        }
        if let Some(left) = self
            .new
            .iter_mut()
            .filter(|left| holds(left))
            .min_by_key(|it| it.slots)
        {
            left.take(slots);
            return Some(true);
        }
        let all = self.present.len() + self.absent + self.new.len();
        if u32::try_from(all).unwrap_or(u32::MAX) >= self.added.max_instances {
            return None;
        }
        let size = self.added.slots_per_instance;
        let mut left = Remainder {
            slots: size,
            size,
            auxiliary: u32::MAX,
        };
        left.take(slots);
        self.new.push(left);
        Some(true)
    }
}

impl Remainder {
    /// Whether it has a share; that of a gang is a whole place.
    fn holds(&self, slots: u32, is_gang: bool) -> bool {
        match slots {
            0 => self.auxiliary > 0,
            slots if is_gang => self.slots == self.size && self.size == slots,
            slots => self.slots >= slots,
        }
    }

    fn take(&mut self, slots: u32) {
        if slots == 0 {
            self.auxiliary = self.auxiliary.saturating_sub(1);
        } else {
            self.slots = self.slots.saturating_sub(slots);
        }
    }
}

fn left_of(view: &PlaceView) -> Remainder {
    let offered = view
        .slots
        .iter()
        .filter(|slot| slot.service == Service::Offered);
    let free = offered.filter(|slot| !slot.busy).count();
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    Remainder {
        slots: number(free),
        size: number(view.slots.len()),
        auxiliary: view.place.aux_limit.saturating_sub(view.place.aux_used),
    }
}

/// How many containers the slots of one place are divided among.
fn containers(settings: &PoolSettings, slots: u32) -> u32 {
    let most = settings.max_slots_per_container.unwrap_or(u32::MAX).max(1);
    slots.div_ceil(most).max(1)
}
