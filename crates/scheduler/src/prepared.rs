//! The input in the order that the rules need, maintained while it changes: places by id, jobs and requests in queue
//! order, requests of equal size as one shape.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use det_ids::{AllocationId, JobId, Micros, PlaceId, SlotId, WorkspaceId};

use crate::capacity::{Feasibility, SlotDemand, feasibility};
use crate::model::{
    Job, Misfits, PlaceSnapshot, PlaceState, PoolSettings, Progress, Request, RunningAllocation,
    SlotState, WorkspaceLimit,
};
use crate::order::{Jobs, Shapes};
use crate::ordered::{OrderedEntry, OrderedList};
use crate::plan::Reservation;
use crate::reason::WaitReason;
use crate::space::{Cell, PlaceRank, Shape, Space};

/// If there are this many more shapes than requests, most of them are not used any more and all are renumbered.
const MOST_SHAPES: usize = 256;

/// Everything the rules read, by number instead of by name.
///
/// Changes take effect with [`Self::apply_changes`]. Afterwards the state is the same as if everything had been added
/// at once, except for numbers of jobs and shapes that are not used any more.
pub(crate) struct PreparedPool {
    pub(crate) settings: PoolSettings,
    /// In id order; the index is the place's rank.
    pub(crate) places: Vec<PlaceView>,
    pub(crate) jobs: Vec<JobView>,
    /// Waiting requests in the order in which they are served.
    pub(crate) requests: OrderedList<WaitingRequest>,
    /// Running allocations in the order of their jobs in the queue.
    pub(crate) running: OrderedList<ActiveAllocation>,
    pub(crate) shapes: Vec<ShapeView>,
    /// The workspaces that have a limit.
    pub(crate) workspaces: BTreeMap<WorkspaceId, WorkspaceLimit>,
    ranks: HashMap<PlaceId, PlaceRank>,
    job_numbers: Jobs,
    shape_numbers: Shapes,
    /// Places whose slots must be credited again to the allocations on them.
    places_to_credit: BTreeSet<PlaceRank>,
    /// Places added or removed since the last renumbering, which follows.
    added_places: Vec<Arc<PlaceSnapshot>>,
    removed_places: BTreeSet<PlaceId>,
    renumber: bool,
}

/// A place and its slots in order.
pub(crate) struct PlaceView {
    pub(crate) place: Arc<PlaceSnapshot>,
    pub(crate) slots: Vec<SlotView>,
    /// Running zero-slot allocations on this place.
    aux_known: u32,
}

/// A slot of a place.
pub(crate) struct SlotView {
    pub(crate) id: SlotId,
    pub(crate) service: Service,
    pub(crate) busy: bool,
    /// Whether a running allocation has been credited with it.
    credited: bool,
}

/// Whether a slot may be given to new work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    /// It may, when no allocation holds it.
    Offered,
    /// It may not; the allocation that holds it continues.
    Draining,
    /// It may not; the allocation that holds it is about to be killed.
    Disabled,
}

impl Service {
    fn of(state: &SlotState) -> Self {
        match state {
            SlotState::Free | SlotState::Held(_) => Self::Offered,
            SlotState::Draining(_) | SlotState::Foreign => Self::Draining,
            SlotState::Disabled(_) => Self::Disabled,
        }
    }
}

/// A job, with its position in the queue.
pub(crate) struct JobView {
    /// For reasons and messages; [`Self::rank`] decides.
    pub(crate) priority: u8,
    /// Rank of the priority in the pool's order; the lower one goes first.
    pub(crate) rank: i64,
    /// Share weight of the job, above 0 and finite.
    pub(crate) weight: f64,
    pub(crate) max_slots: Option<u32>,
    pub(crate) submitted_at: Micros,
    pub(crate) moved: bool,
    pub(crate) workspace: Option<WorkspaceId>,
    /// Position in the queue. Under the priority rule, jobs that it treats alike have the same; under the other rules,
    /// which go from job to job, each job has its own, so that the requests of a job are adjacent.
    pub(crate) order: u32,
}

impl JobView {
    /// A job that has no position in the queue yet.
    pub(crate) fn of(job: &Job, settings: &PoolSettings) -> Self {
        Self {
            priority: job.priority,
            rank: settings.priority_order.rank(job.priority),
            weight: if job.weight.is_finite() && job.weight > 0.0 {
                job.weight
            } else {
                1.0
            },
            max_slots: job.max_slots,
            submitted_at: job.submitted_at,
            moved: job.moved,
            workspace: job.workspace,
            order: 0,
        }
    }
}

/// A waiting request.
pub(crate) struct WaitingRequest {
    pub(crate) request: Arc<Request>,
    pub(crate) job: usize,
    pub(crate) shape: usize,
    // Copied from the request: a pass reads these fields of every request, and following the pointer would be slow.
    pub(crate) slots: u32,
    pub(crate) preemptible: bool,
    pub(crate) requested_at: Micros,
    /// The reason that was last reported to the caller; `None` = none yet.
    pub(crate) reported_reason: Option<Arc<WaitReason>>,
}

/// A running allocation.
pub(crate) struct ActiveAllocation {
    pub(crate) running: Arc<RunningAllocation>,
    pub(crate) job: usize,
    /// What it holds on each place that is still in the pool.
    pub(crate) parts: Vec<Part>,
    /// Slots it holds; 0 for zero-slot allocations.
    pub(crate) slots: u32,
    /// Whether it is on a place or a slot that is out of service, and so is about to be killed.
    pub(crate) dying: bool,
    // Copied from the request, as above.
    pub(crate) asked: u32,
    pub(crate) preemptible: bool,
    /// Whether it has been asked to stop.
    pub(crate) stopping: bool,
    /// What it holds, for each part of its placement.
    claims: Vec<Claim>,
}

/// What an allocation holds through one part of its placement.
#[derive(Debug, Clone, Copy)]
struct Claim {
    /// `None` = the place is not in the pool.
    place: Option<PlaceRank>,
    usable: u32,
    held: u32,
    dying: bool,
}

impl OrderedEntry for WaitingRequest {
    fn job(&self) -> usize {
        self.job
    }

    fn requested_at(&self) -> Micros {
        self.requested_at
    }

    fn id(&self) -> &AllocationId {
        &self.request.allocation_id
    }
}

impl OrderedEntry for ActiveAllocation {
    fn job(&self) -> usize {
        self.job
    }

    fn requested_at(&self) -> Micros {
        self.running.request.requested_at
    }

    fn id(&self) -> &AllocationId {
        &self.running.request.allocation_id
    }
}

impl ActiveAllocation {
    pub(crate) fn zero_slots(&self) -> bool {
        self.asked == 0
    }

    fn is_on(&self, places: &BTreeSet<PlaceRank>) -> bool {
        let mut on = self.claims.iter().filter_map(|claim| claim.place);
        on.any(|place| places.contains(&place))
    }

    /// Recomputes the sums from the claims.
    fn add_up(&mut self) {
        self.parts = self
            .claims
            .iter()
            .filter_map(|claim| {
                Some(Part {
                    place: claim.place?,
                    usable: claim.usable,
                    held: claim.held,
                })
            })
            .filter(|part| part.held > 0)
            .collect();
        self.dying = self.claims.iter().any(|claim| claim.dying);
        if !self.zero_slots() {
            self.slots = self.parts.iter().map(|part| part.held).sum();
        }
    }
}

impl SlotView {
    fn is_offered(&self) -> bool {
        self.service == Service::Offered
    }
}

/// What an allocation holds on one place, in the units of its run: slots, or auxiliary units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) place: PlaceRank,
    /// Units that can be given out again when it ends.
    pub(crate) usable: u32,
    /// All units it holds, those included that nothing else may have afterwards.
    pub(crate) held: u32,
}

/// A shape, and whether it can fit the places in service.
pub(crate) struct ShapeView {
    pub(crate) shape: Shape,
    /// Slots asked for, 0 for zero-slot requests (whose shape has one unit).
    pub(crate) slots: u32,
    /// Places that do not count, even when nothing else runs.
    barred: BTreeSet<PlaceId>,
    /// Places that it does not fit for other reasons than slots.
    pub(crate) misfits: Option<Arc<Misfits>>,
    /// Computed on demand; invalidated when places or slots go in or out of service.
    feasibility: OnceCell<Feasibility>,
}

impl ShapeView {
    /// The shape of a request.
    pub(crate) fn new(shape: Shape, request: &Request) -> Self {
        Self {
            shape,
            slots: request.slots,
            barred: request.barred(),
            misfits: request
                .misfits
                .clone()
                .filter(|misfits| !misfits.is_empty()),
            feasibility: OnceCell::new(),
        }
    }
}

impl PreparedPool {
    pub(crate) fn new(settings: PoolSettings) -> Self {
        Self {
            settings,
            places: Vec::new(),
            jobs: Vec::new(),
            requests: OrderedList::default(),
            running: OrderedList::default(),
            shapes: Vec::new(),
            workspaces: BTreeMap::new(),
            ranks: HashMap::new(),
            job_numbers: Jobs::default(),
            shape_numbers: Shapes::default(),
            places_to_credit: BTreeSet::new(),
            added_places: Vec::new(),
            removed_places: BTreeSet::new(),
            renumber: false,
        }
    }

    pub(crate) fn set_settings(&mut self, settings: PoolSettings) {
        if self.settings != settings {
            self.settings = settings;
            self.renumber = true;
        }
    }

    pub(crate) fn put_place(&mut self, place: Arc<PlaceSnapshot>) {
        self.added_places.retain(|other| other.id != place.id);
        let returns = self.removed_places.remove(&place.id);
        let Some(&rank) = self.ranks.get(&place.id) else {
            self.added_places.push(place);
            self.renumber = true;
            return;
        };
        let view = &mut self.places[rank as usize];
        if *view.place == *place && !returns {
            return;
        }
        if !same_in_service(&view.place, &place) {
            for view in &mut self.shapes {
                view.feasibility = OnceCell::new();
            }
        }
        self.places[rank as usize] = PlaceView::new(place);
        self.places_to_credit.insert(rank);
    }

    pub(crate) fn remove_place(&mut self, id: &PlaceId) {
        self.added_places.retain(|place| place.id != *id);
        if self.ranks.contains_key(id) {
            self.removed_places.insert(id.clone());
            self.renumber = true;
        }
    }

    pub(crate) fn put_job(&mut self, id: &JobId, job: Job) {
        self.renumber |= !self.job_numbers.knows(id) && self.job_numbers.needs_renumbering();
        self.job_numbers.put(id, job, &self.settings);
    }

    pub(crate) fn knows_job(&self, id: &JobId) -> bool {
        self.job_numbers.knows(id)
    }

    pub(crate) fn remove_job(&mut self, id: &JobId) {
        self.job_numbers.remove(id);
        self.renumber |= self.job_numbers.needs_renumbering();
    }

    pub(crate) fn put_request(&mut self, request: Arc<Request>) {
        let order = |job: usize| order_of(&self.jobs, job);
        let known = self.requests.get(&request.allocation_id, order);
        if known.is_none_or(|known| known.request != request) {
            self.put_waiting(request, None);
        }
    }

    fn put_waiting(&mut self, request: Arc<Request>, reported_reason: Option<Arc<WaitReason>>) {
        let job = self.job_numbers.of(&request, &self.settings);
        let shape = self
            .shape_numbers
            .of(&request, &self.ranks, &mut self.shapes);
        self.requests.add(WaitingRequest {
            job,
            shape,
            slots: request.slots,
            preemptible: request.preemptible,
            requested_at: request.requested_at,
            request,
            reported_reason,
        });
    }

    pub(crate) fn put_running(&mut self, running: Arc<RunningAllocation>) {
        self.remove_running(&running.request.allocation_id);
        let job = self.job_numbers.of(&running.request, &self.settings);
        let claims: Vec<Claim> = running
            .placement
            .iter()
            .map(|(place, _)| Claim {
                place: self.ranks.get(place).copied(),
                usable: 0,
                held: 0,
                dying: false,
            })
            .collect();
        self.places_to_credit
            .extend(claims.iter().filter_map(|claim| claim.place));
        self.running.add(ActiveAllocation {
            job,
            parts: Vec::new(),
            slots: 0,
            dying: false,
            asked: running.request.slots,
            preemptible: running.request.preemptible,
            stopping: running.progress != Progress::Active,
            claims,
            running,
        });
    }

    pub(crate) fn remove_running(&mut self, id: &AllocationId) {
        let order = |job: usize| order_of(&self.jobs, job);
        if let Some(active) = self.running.get(id, order) {
            let places = active.claims.iter().filter_map(|claim| claim.place);
            self.places_to_credit.extend(places);
        }
        self.running.remove(id);
    }

    /// Makes all changes take effect.
    pub(crate) fn apply_changes(&mut self) {
        if self.renumber || self.shapes.len() > MOST_SHAPES + self.requests.len_after_changes() {
            self.renumber_all();
        }
        let before = |job: usize| order_of(&self.jobs, job);
        self.requests.apply_removals(before);
        self.running.apply_removals(before);
        let moved = self
            .job_numbers
            .apply_changes(&mut self.jobs, &self.settings);
        let now = |job: usize| order_of(&self.jobs, job);
        self.requests.apply_additions(now, moved);
        self.running.apply_additions(now, moved);
        if moved {
            // A slot that two allocations name is credited to the first.
            let places = self.places.len();
            self.places_to_credit.extend((0..).take(places));
        }
        self.credit();
    }

    /// Renumbers places, jobs, shapes, requests and running allocations.
    fn renumber_all(&mut self) {
        let mut places: Vec<Arc<PlaceSnapshot>> = std::mem::take(&mut self.places)
            .into_iter()
            .map(|view| view.place)
            .filter(|place| !self.removed_places.contains(&place.id))
            .chain(self.added_places.drain(..))
            .collect();
        places.sort_by(|a, b| a.id.cmp(&b.id));
        let requests = self.requests.take_all();
        let running = self.running.take_all();
        let jobs = std::mem::take(&mut self.job_numbers);
        let workspaces = std::mem::take(&mut self.workspaces);
        *self = Self {
            workspaces,
            ranks: places
                .iter()
                .zip(0..)
                .map(|(place, rank)| (place.id.clone(), rank))
                .collect(),
            places_to_credit: (0..).take(places.len()).collect(),
            places: places.into_iter().map(PlaceView::new).collect(),
            ..Self::new(self.settings.clone())
        };
        for (id, job) in jobs.into_described() {
            self.put_job(&id, job);
        }
        for waiting in requests {
            self.put_waiting(waiting.request, waiting.reported_reason);
        }
        for active in running {
            self.put_running(active.running);
        }
        self.renumber = false;
    }

    /// Recomputes what allocations hold on the places in `places_to_credit`.
    fn credit(&mut self) {
        let places_to_credit = std::mem::take(&mut self.places_to_credit);
        if places_to_credit.is_empty() {
            return;
        }
        for &rank in &places_to_credit {
            let view = &mut self.places[rank as usize];
            *view = PlaceView::new(Arc::clone(&view.place));
        }
        for active in self.running.entries_mut() {
            if !active.is_on(&places_to_credit) {
                continue;
            }
            let zero_slots = active.zero_slots();
            for (claim, (_, slots)) in active.claims.iter_mut().zip(&active.running.placement) {
                if let Some(rank) = claim.place
                    && places_to_credit.contains(&rank)
                {
                    *claim = self.places[rank as usize].credit(rank, slots, zero_slots);
                }
            }
            active.add_up();
        }
    }

    /// The number of a waiting request.
    pub(crate) fn number_of(&self, id: &AllocationId) -> Option<usize> {
        self.requests.number_of(id, |job| order_of(&self.jobs, job))
    }

    /// Whether requests of a shape can fit, and if not, what has to change first.
    pub(crate) fn feasibility(&self, shape: usize) -> &Feasibility {
        let view = &self.shapes[shape];
        view.feasibility.get_or_init(|| {
            let ask = SlotDemand {
                slots: view.slots,
                single_place: view.shape.single_place,
                excluded: &view.barred,
            };
            let places: Vec<&PlaceSnapshot> = self.places.iter().map(|v| &*v.place).collect();
            feasibility(&self.settings, &places, &ask)
        })
    }

    /// The space of slots on all places.
    pub(crate) fn slot_space(&self) -> Space {
        self.space(PlaceView::slot_cell)
    }

    /// The space of auxiliary units on all places. On a place whose slots are in use, the slots decide the score;
    /// `slots` is the space as the slot requests left it.
    pub(crate) fn aux_space(&self, slots: &Space) -> Space {
        let mut rank = 0;
        self.space(|view| {
            let fixed_score = slots.aux_score(rank);
            rank += 1;
            let busy = view.place.aux_used.max(view.aux_known);
            Cell {
                open: view.open(),
                capacity: view.place.aux_limit,
                busy,
                used: busy,
                total: view.place.aux_limit,
                fixed_score,
            }
        })
    }

    /// The reservation of a request, with the ids of the places.
    pub(crate) fn reservation(&self, request: usize, places: &[PlaceRank]) -> Reservation {
        let places: BTreeSet<&PlaceRank> = places.iter().collect();
        Reservation {
            allocation_id: self.requests[request].request.allocation_id.clone(),
            places: places
                .iter()
                .map(|place| self.places[**place as usize].place.id.clone())
                .collect(),
        }
    }

    fn space(&self, cell: impl FnMut(&PlaceView) -> Cell) -> Space {
        let settings = &self.settings;
        let cells = self.places.iter().map(cell).collect();
        Space::new(settings.fitting, settings.allow_heterogeneous_fits, cells)
    }
}

impl PlaceView {
    fn new(place: Arc<PlaceSnapshot>) -> Self {
        let mut slots: Vec<SlotView> = place
            .slots
            .iter()
            .map(|slot| {
                let busy = match &slot.state {
                    SlotState::Free | SlotState::Foreign => false,
                    SlotState::Held(_) => true,
                    SlotState::Draining(holder) | SlotState::Disabled(holder) => holder.is_some(),
                };
                SlotView {
                    id: slot.id,
                    service: Service::of(&slot.state),
                    busy,
                    credited: false,
                }
            })
            .collect();
        slots.sort_by_key(|slot| slot.id);
        Self {
            place,
            slots,
            aux_known: 0,
        }
    }

    /// Its free slots, lowest number first.
    pub(crate) fn free_slots(&self) -> impl Iterator<Item = SlotId> {
        let slots = self.slots.iter();
        slots
            .filter(|slot| slot.is_offered() && !slot.busy)
            .map(|slot| slot.id)
    }

    fn open(&self) -> bool {
        self.place.state == PlaceState::Enabled
    }

    fn slot_cell(&self) -> Cell {
        let count = |wanted: fn(&SlotView) -> bool| {
            let slots = self.slots.iter().filter(|slot| wanted(slot));
            u32::try_from(slots.count()).unwrap_or(u32::MAX)
        };
        Cell {
            open: self.open(),
            capacity: count(SlotView::is_offered),
            busy: count(|slot| slot.is_offered() && slot.busy),
            used: count(|slot| slot.busy),
            total: count(|_| true),
            fixed_score: None,
        }
    }

    /// What one part of a placement holds on this place. Slots that the place does not have are ignored, and a slot
    /// named by two allocations is credited to the first.
    fn credit(&mut self, rank: PlaceRank, slots: &[SlotId], zero_slots: bool) -> Claim {
        let mut claim = Claim {
            place: Some(rank),
            usable: 0,
            held: 0,
            dying: self.place.state == PlaceState::Disabled,
        };
        if zero_slots {
            self.aux_known = self.aux_known.saturating_add(1);
            claim.usable = 1;
            claim.held = 1;
            return claim;
        }
        for id in slots {
            let Ok(at) = self.slots.binary_search_by_key(id, |slot| slot.id) else {
                continue;
            };
            let slot = &mut self.slots[at];
            if !slot.credited {
                slot.credited = true;
                slot.busy = true;
                claim.dying |= slot.service == Service::Disabled;
                claim.held += 1;
                claim.usable += u32::from(slot.is_offered());
            }
        }
        claim
    }
}

/// Position of a job in the queue; 0 for one that was just added and has none yet.
fn order_of(jobs: &[JobView], job: usize) -> u32 {
    jobs.get(job).map_or(0, |job| job.order)
}

/// Whether the same slots and auxiliary units of two places are in service, no matter what runs on them.
fn same_in_service(a: &PlaceSnapshot, b: &PlaceSnapshot) -> bool {
    let service = |place: &PlaceSnapshot| -> Vec<(SlotId, Service)> {
        let slots = place.slots.iter();
        slots
            .map(|slot| (slot.id, Service::of(&slot.state)))
            .collect()
    };
    a.state == b.state && a.aux_limit == b.aux_limit && service(a) == service(b)
}
