//! What fits where, counted slot by slot.

use std::collections::BTreeSet;

use det_ids::{AllocationId, Micros, PlaceId};
use det_scheduler::{
    Job, PlaceSnapshot, PlaceState, Plan, PoolSnapshot, Progress, Queue, Request,
    RunningAllocation, SlotState,
};

/// A pool and its queue at one moment.
#[derive(Debug, Clone)]
pub struct State {
    pub pool: PoolSnapshot,
    pub queue: Queue,
    pub now: det_ids::Micros,
}

impl State {
    pub fn find(&self, allocation: &AllocationId) -> &Request {
        let found = self
            .queue
            .requests
            .iter()
            .find(|request| request.allocation_id == *allocation);
        found.expect("plans name requests of the queue")
    }

    pub fn job(&self, request: &Request) -> &Job {
        &self.queue.jobs[&request.job_id]
    }

    pub fn place(&self, id: &PlaceId) -> &PlaceSnapshot {
        let found = self.pool.places.iter().find(|place| place.id == *id);
        found.expect("plans name agents of the pool")
    }

    pub fn running(&self, allocation: &AllocationId) -> Option<&RunningAllocation> {
        self.pool
            .running
            .iter()
            .find(|running| running.request.allocation_id == *allocation)
    }

    /// The state when a plan has been applied.
    pub fn after(&self, plan: &Plan) -> Self {
        let mut after = self.clone();
        for placement in &plan.placements {
            after.start(&placement.allocation_id, &placement.parts);
        }
        let ties = plan
            .preempt
            .iter()
            .map(|stop| (&stop.allocation_id, stop.for_allocation.clone()))
            .chain(
                plan.hand_over
                    .iter()
                    .map(|tie| (&tie.allocation_id, Some(tie.for_allocation.clone()))),
            );
        for (allocation, owner) in ties {
            let running = after
                .pool
                .running
                .iter_mut()
                .find(|running| running.request.allocation_id == *allocation);
            running.expect("only running work stops").progress =
                owner.map_or(Progress::Stopping, Progress::PreemptedFor);
        }
        after
    }

    pub fn start(&mut self, allocation: &AllocationId, parts: &[(PlaceId, Vec<det_ids::SlotId>)]) {
        let at = self
            .queue
            .requests
            .iter()
            .position(|request| request.allocation_id == *allocation);
        let request = self
            .queue
            .requests
            .remove(at.expect("only waiting requests start"));
        for (place_id, slots) in parts {
            let place = self.pool.places.iter_mut().find(|a| a.id == *place_id);
            let place = place.expect("plans name agents of the pool");
            place.aux_used += u32::from(slots.is_empty());
            for slot in place.slots.iter_mut().filter(|s| slots.contains(&s.id)) {
                slot.state = SlotState::Held(allocation.clone());
            }
        }
        // Later than all running work, as in the planner's input.
        let last = self
            .pool
            .running
            .iter()
            .map(|running| running.started_at.0 + 1);
        let started_at = last
            .max()
            .map_or(self.now, |last| self.now.max(Micros(last)));
        self.pool.running.push(RunningAllocation {
            request,
            placement: parts.to_vec(),
            started_at,
            progress: Progress::Active,
        });
    }

    /// The same without some of the running work.
    pub fn without(&self, goes: impl Fn(&RunningAllocation) -> bool) -> Self {
        let mut left = self.clone();
        let (gone, stay): (Vec<_>, Vec<_>) = std::mem::take(&mut left.pool.running)
            .into_iter()
            .partition(|running| goes(running));
        left.pool.running = stay;
        for running in gone {
            for (place_id, slots) in &running.placement {
                let place = left.pool.places.iter_mut().find(|a| a.id == *place_id);
                let Some(place) = place else { continue };
                place.aux_used -= u32::from(slots.is_empty());
                for slot in place.slots.iter_mut().filter(|s| slots.contains(&s.id)) {
                    slot.state = match slot.state {
                        SlotState::Free | SlotState::Held(_) => SlotState::Free,
                        SlotState::Draining(_) => SlotState::Draining(None),
                        SlotState::Disabled(_) => SlotState::Disabled(None),
                        SlotState::Foreign => SlotState::Foreign,
                    };
                }
            }
        }
        left
    }

    /// Whether a request fits what is free.
    pub fn fits(&self, request: &Request) -> bool {
        self.fits_without(request, &BTreeSet::new())
    }

    /// Whether a request fits what is free on other places than those that are reserved.
    pub fn fits_without(&self, request: &Request, reserved: &BTreeSet<PlaceId>) -> bool {
        let usable = |place: &&PlaceSnapshot| {
            place.state == PlaceState::Enabled
                && !request.excluded_places.contains(&place.id)
                && !reserved.contains(&place.id)
        };
        let places: Vec<&PlaceSnapshot> = self.pool.places.iter().filter(usable).collect();
        if request.slots == 0 {
            return places.iter().any(|place| place.aux_used < place.aux_limit);
        }
        if let Some(most) = self.places_in_part(request) {
            let mut free: Vec<u32> = places.iter().map(|a| free_slots(a)).collect();
            free.sort_unstable();
            return free.iter().rev().take(most).sum::<u32>() >= request.slots;
        }
        let unused = places
            .iter()
            .filter(|a| used_slots(a) == 0)
            .map(|a| free_slots(a));
        places
            .iter()
            .any(|place| free_slots(place) >= request.slots)
            || self.sums_up(request, &unused.collect::<Vec<_>>())
    }

    /// Over how many places a request is divided that takes parts of them: whole ones in service never add up to it, and
    /// fewer do not hold it.
    pub fn places_in_part(&self, request: &Request) -> Option<usize> {
        let in_service = |place: &&PlaceSnapshot| {
            let misfits = request.misfits.iter();
            let unfit = misfits.flat_map(|misfits| misfits.never.iter().chain(&misfits.now));
            let mut barred = request.excluded_places.iter().chain(unfit);
            place.state == PlaceState::Enabled && barred.all(|id| *id != place.id)
        };
        let sizes = self.pool.places.iter().filter(in_service).map(|place| {
            let slots = place.slots.iter();
            let offered = slots.filter(|slot| {
                !matches!(
                    slot.state,
                    SlotState::Draining(_) | SlotState::Disabled(_) | SlotState::Foreign
                )
            });
            number(offered.count())
        });
        let mut sizes: Vec<u32> = sizes.collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let one = sizes.first().is_some_and(|size| *size >= request.slots);
        let whole = one || self.sums_up(request, &sizes);
        if whole || request.single_place || !self.pool.settings.allow_heterogeneous_fits {
            return None;
        }
        let fewest =
            (1..=sizes.len()).find(|count| sizes[..*count].iter().sum::<u32>() >= request.slots);
        fewest.filter(|_| request.slots > 0)
    }

    /// Whether places of these sizes (slots, auxiliary places), all empty, hold a request.
    pub fn holds(&self, request: &Request, sizes: &[(u32, u32)]) -> bool {
        if request.slots == 0 {
            return sizes.iter().any(|(_, aux)| *aux > 0);
        }
        let sizes: Vec<u32> = sizes.iter().map(|(size, _)| *size).collect();
        let in_parts = !request.single_place
            && self.pool.settings.allow_heterogeneous_fits
            && sizes.iter().sum::<u32>() >= request.slots;
        in_parts || sizes.iter().any(|size| *size >= request.slots) || self.sums_up(request, &sizes)
    }

    /// Whether whole places of these sizes add up to the request.
    fn sums_up(&self, request: &Request, sizes: &[u32]) -> bool {
        if request.single_place || request.slots == 0 {
            return false;
        }
        let equal = sizes.iter().any(|size| {
            *size > 0
                && request.slots.is_multiple_of(*size)
                && number(sizes.iter().filter(|other| *other == size).count()) * size
                    >= request.slots
        });
        if equal || !self.pool.settings.allow_heterogeneous_fits {
            return equal;
        }
        let mut sums = BTreeSet::from([0]);
        for size in sizes {
            sums = sums.iter().flat_map(|sum| [*sum, sum + size]).collect();
        }
        sums.contains(&request.slots)
    }

    /// Sizes of places as if nothing ran.
    pub fn empty_sizes(
        &self,
        places: impl Fn(&PlaceSnapshot) -> bool,
        slots: impl Fn(&SlotState) -> bool,
    ) -> Vec<(u32, u32)> {
        let counted = self.pool.places.iter().filter(|place| places(place));
        counted
            .map(|place| {
                let size = place.slots.iter().filter(|slot| slots(&slot.state)).count();
                (number(size), place.aux_limit)
            })
            .collect()
    }

    /// Slots that the jobs of a request's workspace may use in all pools, and those that they do use; `None` = it has no
    /// limit.
    pub fn workspace_of(&self, request: &Request) -> Option<(u32, u32)> {
        let workspace = self.job(request).workspace?;
        let limit = self.queue.workspaces.get(&workspace)?;
        let here: u32 = self
            .queue
            .jobs
            .iter()
            .filter(|(_, job)| job.workspace == Some(workspace))
            .map(|(id, _)| self.in_use(id.as_str()))
            .sum();
        Some((limit.max_slots, limit.in_other_pools + here))
    }

    /// Slots that a job's allocations hold.
    pub fn in_use(&self, job: &str) -> u32 {
        let running = self.pool.running.iter();
        running
            .filter(|running| running.request.job_id.as_str() == job)
            .map(|running| running.request.slots)
            .sum()
    }
}

pub fn free_slots(place: &PlaceSnapshot) -> u32 {
    if place.state != PlaceState::Enabled {
        return 0;
    }
    let free = place
        .slots
        .iter()
        .filter(|slot| slot.state == SlotState::Free);
    number(free.count())
}

pub fn used_slots(place: &PlaceSnapshot) -> usize {
    let used = place.slots.iter().filter(|slot| match &slot.state {
        SlotState::Free | SlotState::Foreign => false,
        SlotState::Held(_) => true,
        SlotState::Draining(holder) | SlotState::Disabled(holder) => holder.is_some(),
    });
    used.count()
}

pub fn number(count: usize) -> u32 {
    u32::try_from(count).expect("scenarios are small")
}
