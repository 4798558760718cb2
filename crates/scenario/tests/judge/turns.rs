//! The round robin rule, followed literally: a plan is replayed turn by turn, with the places that it chose.

use std::collections::{BTreeMap, BTreeSet};

use det_ids::{AllocationId, JobId};
use det_scheduler::{PlaceState, Plan, Request, SlotState, WaitReason};

use super::fit::State;

/// Panics unless `plan` starts what the rule starts, in the rule's order.
pub fn check(before: &State, plan: &Plan) {
    let mut play = Play {
        state: before.clone(),
        plan,
        started: 0,
        out: BTreeSet::new(),
        reserved: BTreeSet::new(),
        kept: BTreeMap::new(),
    };
    play.aged();
    play.rounds(before);
    assert_eq!(
        play.started,
        plan.placements.len(),
        "the rule starts no more than these: {plan:#?}"
    );
}

struct Play<'a> {
    state: State,
    plan: &'a Plan,
    started: usize,
    /// Jobs whose first request did not fit.
    out: BTreeSet<JobId>,
    /// Places held back for those that have waited too long.
    reserved: BTreeSet<det_ids::PlaceId>,
    /// Slots of workspaces held back for them.
    kept: BTreeMap<det_ids::WorkspaceId, u32>,
}

impl Play<'_> {
    /// A job's first request that may start at all, in the job's order.
    fn head(&self, job: &JobId) -> Option<Request> {
        if self.out.contains(job) {
            return None;
        }
        let state = &self.state;
        let offered = |slot: &SlotState| matches!(slot, SlotState::Free | SlotState::Held(_));
        let mut own: Vec<&Request> = state
            .queue
            .requests
            .iter()
            .filter(|request| request.job_id == *job)
            .filter(|request| {
                let cap = state.job(request).max_slots;
                request.slots == 0
                    || cap.is_none_or(|cap| state.in_use(job.as_str()) + request.slots <= cap)
            })
            .filter(|request| {
                let limit = state.workspace_of(request);
                limit.is_none_or(|(most, _)| request.slots <= most)
            })
            .filter(|request| {
                let usable = |place: &det_scheduler::PlaceSnapshot| {
                    place.state == PlaceState::Enabled
                        && !request.excluded_places.contains(&place.id)
                };
                state.holds(request, &state.empty_sizes(usable, offered))
            })
            .collect();
        own.sort_by_key(|request| (request.requested_at, &request.allocation_id));
        own.first().map(|request| (*request).clone())
    }

    /// Starts a request if it fits without what is reserved; else its job is out.
    fn offer(&mut self, request: &Request) -> bool {
        let nothing = BTreeSet::new();
        let reserved = if request.slots > 0 {
            &self.reserved
        } else {
            &nothing
        };
        if !self.state.fits_without(request, reserved) || self.exceeds_workspace(request) {
            self.out.insert(request.job_id.clone());
            return false;
        }
        let next = self.plan.placements.get(self.started);
        let next = next.unwrap_or_else(|| panic!("{} should start", request.allocation_id));
        assert_eq!(
            next.allocation_id, request.allocation_id,
            "it is the turn of another: {:#?}",
            self.plan
        );
        self.state.start(&next.allocation_id, &next.parts);
        self.started += 1;
        true
    }

    /// Those that have waited too long go first, the longest wait before the others.
    fn aged(&mut self) {
        let Some(patience) = self.state.pool.settings.reserve_after else {
            return;
        };
        let limit = self.state.now.0 - i64::try_from(patience.as_micros()).expect("minutes");
        loop {
            let jobs: Vec<JobId> = self.state.queue.jobs.keys().cloned().collect();
            let oldest = jobs
                .iter()
                .filter_map(|job| self.head(job))
                .filter(|request| request.requested_at.0 <= limit)
                .min_by_key(|request| (request.requested_at, self.place(&request.job_id)));
            let Some(request) = oldest else {
                return;
            };
            if !self.offer(&request) {
                if let Some(workspace) = self.state.job(&request).workspace {
                    *self.kept.entry(workspace).or_default() += request.slots;
                }
                let own = self
                    .plan
                    .reservations
                    .iter()
                    .find(|reservation| reservation.allocation_id == request.allocation_id);
                self.reserved
                    .extend(own.into_iter().flat_map(|own| own.places.iter().cloned()));
            }
        }
    }

    fn exceeds_workspace(&self, request: &Request) -> bool {
        let kept = self.state.job(request).workspace;
        let kept = kept.and_then(|workspace| self.kept.get(&workspace));
        let limit = self.state.workspace_of(request);
        request.slots > 0
            && limit.is_some_and(|(most, used)| used + kept.unwrap_or(&0) + request.slots > most)
    }

    fn rounds(&mut self, before: &State) {
        let mut turn: Vec<JobId> = before.queue.jobs.keys().cloned().collect();
        turn.retain(|job| self.head(job).is_some());
        turn.sort_by_key(|job| (self.state.in_use(job.as_str()), self.place(job)));
        while !turn.is_empty() {
            turn.retain(|job| match self.head(job) {
                Some(request) => self.offer(&request),
                None => false,
            });
        }
    }

    fn place(&self, id: &JobId) -> (i64, i64, JobId) {
        let job = &self.state.queue.jobs[id];
        let position = job.position.unwrap_or(job.submitted_at.0);
        (position, job.submitted_at.0, id.clone())
    }
}

/// Whether a request waits because an earlier one of its job does.
pub fn is_behind_own(before: &State, plan: &Plan, request: &Request, ahead: &AllocationId) -> bool {
    let waits: BTreeMap<&AllocationId, &WaitReason> = plan
        .waiting
        .iter()
        .map(|(id, reason)| (id, reason))
        .collect();
    let theirs = before.find(ahead);
    theirs.job_id == request.job_id
        && (theirs.requested_at, &theirs.allocation_id)
            < (request.requested_at, &request.allocation_id)
        && matches!(
            waits.get(ahead),
            Some(
                WaitReason::NotEnoughFreeSlots { .. }
                    | WaitReason::AuxFull { .. }
                    | WaitReason::ReservedFor { .. }
                    | WaitReason::OverWorkspaceLimit { .. }
            )
        )
}
