//! The fair share rule.
//!
//! Slots are divided among jobs by weight times demand (`shares`). A job's demand is what its running work has and its
//! waiting requests ask for, at most its cap; requests that would not fit even if all preemptible work were gone do not
//! count. Requests stand in order of the jobs' submission, then of their own. A pass over the slot requests:
//!
//! 1. **Offer.** Each request that keeps its job within its share starts if it fits beside what is kept for requests
//!    that running work stops for. Those that have waited longer than [`crate::PoolSettings::reserve_after`] come first,
//!    and reserve the agents they are closest to getting if they do not fit.
//! 2. **Make room.** Each request within its job's share that does not fit, in order: if it fits what stopping work will
//!    free, that is booked. Otherwise jobs above their share give up work until it fits: the job furthest above first,
//!    the work started last first; what turns out not to matter runs on. If it never fits, nobody stops. Steps 1 and 2
//!    are repeated until nobody else is asked to stop, because a job that gives up work may be entitled to start other.
//! 3. **Hand out.** What is free and not kept for anybody goes to requests beyond their jobs' shares, the job with the
//!    least work for its weight and demand first. Work that starts this way is the first to stop when somebody is
//!    entitled to its room. A job for which room is being kept gets none: what it has then would count against it.
//!
//! Work that cannot be preempted may keep a gang from fitting at all, or leave its job less than its share would be
//! without such work (its *nominal* share). That must end some day, and no more of it come in between. So a request that
//! has waited longer than the limit, that does not fit, and that is within its job's nominal share reserves too, although
//! it is entitled to nothing yet; and until it starts nothing that cannot be preempted is handed what is free beyond its
//! job's share. Nobody stops for it, and once it fits it starts like others: within the share that its job has then.
//!
//! A job whose only task is larger than its share runs on what is over, and may wait as long as small tasks within their
//! jobs' shares keep coming. Where there are about as many jobs as slots, "at least one slot for each" holds or not with
//! one job more or less that could be served, and a share may be enough only while it cannot be used.
//!
//! Work that stops keeps its room for the request it was asked to stop for, as long as that one is within its job's
//! share. Work that is killed because its agent or slot is out of service counts as gone.
//!
//! What cannot be preempted raises its job's share to what it holds once it runs. A pass that starts such work is done
//! again with that work as given, so that the plan is final: running the rule on its own result decides nothing new.
//!
//! Zero-slot requests compete for nothing but auxiliary places: they start in order of submission.

mod standings;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use det_ids::Micros;

use crate::capacity::Fate;
use crate::decision::{Decided, Shared, Wait};
use crate::future::{Future, ShapeSet};
use crate::plan::{PreemptReason, Preemption};
use crate::prepared::Prepared;
use crate::reserve::{Reserved, Reserver, reserve_before};
use crate::room::{Room, Stopping};
use crate::space::{AgentRank, Parts, Space, spread_of};
use crate::victims;

/// Decides for slot requests by share, then for zero-slot requests in order.
pub(crate) fn decide(prepared: &Prepared, now: Micros) -> Decided {
    // Work that cannot be preempted and starts: each round may add some, and there is only so much room.
    let mut given: Vec<(usize, Parts)> = Vec::new();
    loop {
        let mut pass = Pass::new(prepared, now, &given);
        pass.all();
        let known = given.len();
        let found = pass.decided.placed[known..]
            .iter()
            .filter(|(request, _)| !prepared.requests[*request].request.preemptible);
        given.extend(found.cloned());
        if given.len() == known {
            return pass.finish();
        }
    }
}

/// One pass over the pool.
struct Pass<'a> {
    shared: Shared<'a>,
    decided: Decided,
    /// What slot requests left free; nothing is held back.
    free: Space,
    /// By running allocation: whether it stops, or is about to be killed because of where it runs.
    leaving: Vec<bool>,
    /// Running allocations that this pass asked to stop, with the request that each makes room for.
    asked: BTreeMap<usize, usize>,
    /// By shape: whether it would fit if all preemptible work were gone.
    attainable: Vec<bool>,
    /// Requests made at or before this time reserve.
    reserve_before: Option<i64>,
}

/// What holds for one round of steps 1 and 2.
struct Round {
    /// Requests within their jobs' shares that did not fit, in order.
    wishes: BTreeSet<usize>,
    /// Whether room that was held back is free again, so that requests must be offered it.
    changed: bool,
    /// Room held back for requests that work stops for.
    claims: BTreeMap<usize, Parts>,
    reserver: Reserver,
    /// Agents reserved because of age, by request.
    aged: BTreeMap<usize, Reserved>,
    /// Those of them that are within their jobs' nominal shares only.
    squeezed: BTreeSet<usize>,
    /// Requests that room is kept for, with the agents.
    holders: BTreeMap<usize, BTreeSet<AgentRank>>,
    /// Preemptible work by job; made when first needed. What was asked to stop since is in it.
    preemptible: Option<BTreeMap<usize, Vec<usize>>>,
    /// Shapes for which there are no victims.
    victimless: ShapeSet,
}

impl<'a> Pass<'a> {
    fn new(prepared: &'a Prepared, now: Micros, given: &[(usize, Parts)]) -> Self {
        let mut shared = Shared::new(prepared);
        let mut decided = Decided::default();
        shared.stop_over_cap(&mut decided);
        let mut free = prepared.slot_space();
        for (request, parts) in given {
            shared.start(*request);
            for &(agent, units) in parts {
                free.take(agent, units);
            }
            decided.placed.push((*request, parts.clone()));
        }
        let leaving = prepared
            .running
            .iter()
            .zip(&shared.stopping)
            .map(|(active, stopping)| *stopping || active.dying)
            .collect();
        let mut pass = Self {
            shared,
            decided,
            free,
            leaving,
            asked: BTreeMap::new(),
            attainable: Vec::new(),
            reserve_before: reserve_before(&prepared.settings, now),
        };
        pass.attainable = pass.attainable_shapes();
        pass.share_out(given);
        pass
    }

    fn all(&mut self) {
        let prepared = self.shared.prepared;
        let requests: Vec<usize> = (0..prepared.requests.len())
            .filter(|request| prepared.requests[*request].slots > 0)
            .collect();
        loop {
            let nothing = Space::new(prepared.settings.fitting, false, Vec::new());
            let free = std::mem::replace(&mut self.free, nothing);
            let stopping = Stopping {
                stops: &self.leaving,
                asked: &self.asked,
            };
            let in_use = self.shared.in_use.clone();
            let mut room = Room::with_future(prepared, free, in_use, stopping, false);
            let mut round = Round {
                wishes: BTreeSet::new(),
                changed: true,
                claims: BTreeMap::new(),
                reserver: Reserver::new(prepared),
                aged: BTreeMap::new(),
                squeezed: BTreeSet::new(),
                holders: BTreeMap::new(),
                preemptible: None,
                victimless: ShapeSet::new(prepared.shapes.len()),
            };
            for standing in &mut self.shared.standings {
                standing.booked = 0;
            }
            self.shared.workspaces.keep_nothing();
            self.keep_ties(&mut round, &mut room);
            let (aged, young): (Vec<usize>, Vec<usize>) =
                requests.iter().partition(|request| self.is_aged(**request));
            while std::mem::take(&mut round.changed) {
                for &request in aged.iter().chain(&young) {
                    if self.shared.waits[request] != Wait::Starts {
                        self.offer(&mut round, &mut room, request);
                    }
                }
            }
            let asked = self.asked.len();
            self.make_room(&mut round, &mut room);
            if self.asked.len() == asked {
                self.hand_out(&round, &mut room);
                room.give_back();
                self.free = room.free;
                self.tell_kept_from_full(&round);
                return;
            }
            room.give_back();
            self.free = room.free;
        }
    }

    /// Whether a request has waited so long that it reserves.
    fn is_aged(&self, request: usize) -> bool {
        let waiting = &self.shared.prepared.requests[request];
        self.reserve_before
            .is_some_and(|limit| waiting.requested_at.0 <= limit)
    }

    /// Whether a request is held up only by work of others that cannot be preempted.
    fn is_squeezed(&self, request: usize) -> bool {
        let waiting = &self.shared.prepared.requests[request];
        let standing = &self.shared.standings[waiting.job];
        let wanted = standing.active + standing.booked + u64::from(waiting.slots);
        self.is_aged(request) && wanted <= standing.nominal
    }

    /// Holds back the room that requests count on beside that of work which stops for them, as long as they are within
    /// their jobs' shares.
    fn keep_ties(&mut self, round: &mut Round, room: &mut Room<'a>) {
        let tied: Vec<usize> = room.ties.keys().copied().collect();
        for request in tied {
            if self.shared.waits[request] == Wait::Starts || self.limit(request).is_some() {
                room.disown(request);
                continue;
            }
            let mut claim = Parts::new();
            for (agent, units) in room.own_room(request) {
                claim.push((agent, room.hold_more(agent, units)));
            }
            let agents = claim.iter().map(|(agent, _)| *agent);
            round.holders.entry(request).or_default().extend(agents);
            round.claims.insert(request, claim);
            round.wishes.insert(request);
            self.shared.keep(request);
            self.book(request);
        }
    }

    /// A request fits elsewhere than where work stops for it.
    fn give_up_claim(&mut self, round: &mut Round, room: &mut Room<'a>, request: usize) {
        let Some(claim) = round.claims.remove(&request) else {
            return;
        };
        for (agent, units) in claim {
            room.let_go(agent, units);
        }
        let waiting = &self.shared.prepared.requests[request];
        let booked = &mut self.shared.standings[waiting.job].booked;
        *booked = booked.saturating_sub(u64::from(waiting.slots));
        round.holders.remove(&request);
        round.wishes.remove(&request);
        round.changed = true;
    }

    /// What keeps a request from being entitled to room, whether there is any or not.
    fn limit(&mut self, request: usize) -> Option<Wait> {
        let waiting = &self.shared.prepared.requests[request];
        if *self.shared.fate(waiting.shape) != Fate::Usable {
            return Some(Wait::Fate);
        }
        let limit = self.shared.exceeds(request);
        if limit == Some(Wait::OverCap) {
            return limit;
        }
        if !self.attainable[waiting.shape] {
            return Some(Wait::NoRoom);
        }
        let standing = &self.shared.standings[waiting.job];
        let wanted = standing.active + standing.booked + u64::from(waiting.slots);
        (wanted > standing.share)
            .then_some(Wait::OverShare)
            .or(limit)
    }

    /// Counts a waiting request as good as started: room is kept for it.
    fn book(&mut self, request: usize) {
        let waiting = &self.shared.prepared.requests[request];
        self.shared.standings[waiting.job].booked += u64::from(waiting.slots);
    }

    fn start(&mut self, room: &mut Room<'a>, request: usize, parts: Parts) {
        let waiting = &self.shared.prepared.requests[request];
        self.shared.standings[waiting.job].active += u64::from(waiting.slots);
        self.shared.start(request);
        room.take(request, &parts);
        self.decided.placed.push((request, parts));
    }

    /// Step 1 for one request.
    fn offer(&mut self, round: &mut Round, room: &mut Room<'a>, request: usize) {
        if round.squeezed.contains(&request) {
            return;
        }
        let reserves = round.aged.contains_key(&request);
        if !reserves
            && !round.claims.contains_key(&request)
            && let Some(limit) = self.limit(request)
        {
            self.shared.waits[request] = limit;
            if matches!(limit, Wait::OverWorkspace { .. }) && self.is_aged(request) {
                self.shared.keep(request);
            }
            let squeezed =
                matches!(limit, Wait::OverShare | Wait::NoRoom) && self.is_squeezed(request);
            if squeezed && self.shared.exceeds(request).is_some() {
                // Where its workspace is full, it is the end of that work which it waits for.
                self.shared.keep(request);
            } else if squeezed && room.fit(request).is_none() && self.reserve(round, room, request)
            {
                round.squeezed.insert(request);
                self.shared.keep(request);
                self.shared.waits[request] = Wait::NoRoom;
                self.book(request);
            }
            round.wishes.remove(&request);
            return;
        }
        if let Some(parts) = room.fit(request).filter(|_| !reserves) {
            self.give_up_claim(round, room, request);
            round.wishes.remove(&request);
            self.start(room, request, parts);
            return;
        }
        self.shared.waits[request] = Wait::NoRoom;
        round.wishes.insert(request);
        if self.is_aged(request) {
            self.shared.keep(request);
        }
        let claims = round.claims.contains_key(&request);
        if !reserves && self.is_aged(request) && self.reserve(round, room, request) && !claims {
            self.book(request);
        }
    }

    /// Holds back the agents that a request is closest to getting. Whether there are any.
    fn reserve(&self, round: &mut Round, room: &mut Room<'a>, request: usize) -> bool {
        let prepared = self.shared.prepared;
        let shape = prepared.requests[request].shape;
        // Of a single unit there is none free where it may run, so there is nothing that others could take from it.
        if prepared.shapes[shape].shape.units == 1 || round.reserver.is_hopeless(shape) {
            return false;
        }
        let agents = AgentRank::try_from(prepared.agents.len()).unwrap_or(AgentRank::MAX);
        let closest = round.reserver.closest(
            &room.free,
            self.decided.placed.len(),
            || (0..agents).map(|agent| room.within_reach(agent)).collect(),
            shape,
            &prepared.shapes[shape].shape,
        );
        let Some(closest) = closest else {
            return false;
        };
        for &agent in &closest {
            room.hold(agent, u32::MAX);
            round.holders.entry(request).or_default().insert(agent);
        }
        round.aged.insert(request, closest);
        true
    }

    /// Step 2.
    fn make_room(&mut self, round: &mut Round, room: &mut Room<'a>) {
        let Some(mut future) = room.future.take() else {
            return;
        };
        let mut closed: BTreeSet<AgentRank> = BTreeSet::new();
        // Those that work stops for already come first: nobody else counts on what they count on.
        let wishes = std::mem::take(&mut round.wishes);
        let (tied, others): (Vec<usize>, Vec<usize>) = wishes
            .into_iter()
            .partition(|request| room.ties.contains_key(request));
        for request in tied.into_iter().chain(others) {
            if !self.make_room_for(&mut future, round, room, request)
                && let Some(agents) = round.aged.get(&request)
            {
                // Nobody after it counts on its agents, or stops work there only to find them reserved.
                for &agent in agents.iter().filter(|agent| closed.insert(**agent)) {
                    future.space.set_open(agent, false);
                }
            }
        }
        for agent in closed {
            future.space.set_open(agent, true);
            future.misfits.clear();
        }
        room.future = Some(future);
    }

    /// Books room in the future for a request, asking others to stop if need be. Whether it has any.
    fn make_room_for(
        &mut self,
        future: &mut Future,
        round: &mut Round,
        room: &mut Room<'a>,
        request: usize,
    ) -> bool {
        let prepared = self.shared.prepared;
        let mut own = room.ties.remove(&request).unwrap_or_default();
        let counted = !own.is_empty() || round.aged.contains_key(&request);
        if !own.is_empty() {
            future.release(prepared, &own);
            round.victimless.clear();
        }
        if !counted && let Some(limit) = self.limit(request) {
            // A later request of its job fitted, and took its part of the share.
            self.shared.waits[request] = limit;
            return false;
        }
        let mut parts = future.fit_with(prepared, request, &own);
        if parts.is_none()
            && let Some(victims) = self.find_victims(future, round, request)
        {
            self.ask_to_stop(&victims, request);
            future.note_stopping(prepared, &victims);
            future.release(prepared, &victims);
            own.extend(victims);
            parts = future.fit_with(prepared, request, &own);
        }
        let Some(parts) = parts else {
            return false;
        };
        if own.is_empty() {
            own = future.stopping_among(&parts);
        }
        if own.is_empty() {
            // What it fits is free, and kept for another.
            return true;
        }
        own.sort_unstable();
        self.shared.wait_for(request, own);
        self.shared.keep(request);
        if !counted {
            self.book(request);
        }
        for (agent, units) in parts {
            future.space.take(agent, units);
            round.holders.entry(request).or_default().insert(agent);
        }
        true
    }

    /// Work of jobs above their share that must stop so that a request fits.
    fn find_victims(
        &self,
        future: &Future,
        round: &mut Round,
        request: usize,
    ) -> Option<Vec<usize>> {
        let prepared = self.shared.prepared;
        let shape = prepared.requests[request].shape;
        if round.victimless.contains(shape) {
            return None;
        }
        let work = round
            .preemptible
            .get_or_insert_with(|| self.preemptible_work());
        for work in work.values_mut() {
            while work.pop_if(|last| self.leaving[*last]).is_some() {}
        }
        let found = victims::search(
            &future.space,
            &prepared.shapes[shape].shape,
            &prepared.running,
            self.candidates(work),
        );
        if found.is_none() {
            round.victimless.insert(shape);
        }
        found
    }

    /// Preemptible work by job, what was started first before what was started later.
    fn preemptible_work(&self) -> BTreeMap<usize, Vec<usize>> {
        let prepared = self.shared.prepared;
        let mut of_job: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (number, active) in prepared.running.iter().enumerate() {
            if active.preemptible && !self.leaving[number] && active.slots > 0 {
                of_job.entry(active.job).or_default().push(number);
            }
        }
        for work in of_job.values_mut() {
            work.sort_by_key(|number| {
                let running = &prepared.running[*number].running;
                (
                    running.started_at,
                    running.request.requested_at,
                    &running.request.allocation_id,
                )
            });
        }
        of_job
    }

    /// Preemptible work of jobs above their share: of the job furthest above first (of equals the later one), what was
    /// started last first, until the job is at its share.
    fn candidates(&self, of_job: &BTreeMap<usize, Vec<usize>>) -> impl Iterator<Item = usize> {
        let prepared = self.shared.prepared;
        // With the number of those of the job's work that come after.
        let mut furthest: BinaryHeap<(u64, u32, usize, usize)> = of_job
            .iter()
            .filter_map(|(job, work)| {
                let standing = &self.shared.standings[*job];
                let above = standing.active.checked_sub(standing.share)?;
                (above > 0).then(|| (above, prepared.jobs[*job].order, *job, work.len()))
            })
            .collect();
        std::iter::from_fn(move || {
            while let Some((above, order, job, left)) = furthest.pop() {
                let work = &of_job[&job][..left];
                let Some(last) = work.iter().rposition(|number| !self.leaving[*number]) else {
                    continue;
                };
                let victim = work[last];
                let above = above.saturating_sub(u64::from(prepared.running[victim].slots));
                if above > 0 {
                    furthest.push((above, order, job, last));
                }
                return Some(victim);
            }
            None
        })
    }

    fn ask_to_stop(&mut self, victims: &[usize], request: usize) {
        let prepared = self.shared.prepared;
        let number = |slots: u64| u32::try_from(slots).unwrap_or(u32::MAX);
        for &victim in victims {
            let active = &prepared.running[victim];
            let standing = &mut self.shared.standings[active.job];
            self.decided.preempt.push(Preemption {
                allocation_id: active.running.request.allocation_id.clone(),
                for_allocation: Some(prepared.requests[request].request.allocation_id.clone()),
                reason: PreemptReason::OverFairShare {
                    share: number(standing.share),
                    in_use: number(standing.active),
                },
            });
            standing.active = standing.active.saturating_sub(u64::from(active.slots));
            self.leaving[victim] = true;
            self.asked.insert(victim, request);
        }
    }

    /// Step 3.
    fn hand_out(&mut self, round: &Round, room: &mut Room<'a>) {
        let prepared = self.shared.prepared;
        let agents = AgentRank::try_from(prepared.agents.len()).unwrap_or(AgentRank::MAX);
        // What was booked stays bookable: of each agent only so much is handed out.
        for agent in 0..agents {
            if let Some(future) = &room.future {
                let unbooked = future.space.cell(agent).free();
                room.leave_at_most(agent, unbooked);
            }
        }
        let fits: Vec<bool> = prepared
            .shapes
            .iter()
            .map(|view| view.slots > 0 && room.free.fit(&view.shape, 0).is_some())
            .collect();
        let mut open: BTreeMap<usize, std::collections::VecDeque<usize>> = BTreeMap::new();
        for (request, waiting) in prepared.requests.iter().enumerate() {
            if fits[waiting.shape]
                && self.shared.waits[request] == Wait::OverShare
                && self.shared.standings[waiting.job].booked == 0
            {
                open.entry(waiting.job).or_default().push_back(request);
            }
        }
        let mut least: BinaryHeap<Reverse<Turn>> =
            open.keys().map(|job| Reverse(self.turn(*job))).collect();
        while let Some(Reverse(turn)) = least.pop() {
            let Some(requests) = open.get_mut(&turn.job) else {
                continue;
            };
            while let Some(request) = requests.pop_front() {
                if let Some(limit) = self.shared.exceeds(request) {
                    self.shared.waits[request] = limit;
                } else if self.would_squeeze(round, request) {
                    // It is told whom it would keep out.
                } else if let Some(parts) = room.fit(request) {
                    self.start(room, request, parts);
                    least.push(Reverse(self.turn(turn.job)));
                    break;
                }
            }
        }
        for (request, agents) in &round.holders {
            let agents = agents.iter().copied().collect();
            self.decided.reservations.push((*request, agents));
        }
    }

    /// Whether a request could not be stopped again, and somebody waits for the end of such work.
    fn would_squeeze(&self, round: &Round, request: usize) -> bool {
        let prepared = self.shared.prepared;
        let waiting = &prepared.requests[request];
        let shape = &prepared.shapes[waiting.shape].shape;
        let may_use = |agents: &Reserved| agents.iter().any(|agent| shape.allows(*agent));
        !waiting.preemptible
            && round
                .squeezed
                .iter()
                .any(|squeezed| round.aged.get(squeezed).is_some_and(may_use))
    }

    fn turn(&self, job: usize) -> Turn {
        let view = &self.shared.prepared.jobs[job];
        let standing = &self.shared.standings[job];
        #[expect(
            clippy::cast_precision_loss,
            reason = "numbers of slots are far below 2^52"
        )]
        let claim = |slots: u64| slots as f64;
        Turn {
            ratio: claim(standing.active) / (view.weight * claim(standing.demand.max(1))),
            order: view.order,
            job,
        }
    }

    /// Some requests would fit now, were it not for room that is kept for others: says so.
    fn tell_kept_from_full(&mut self, round: &Round) {
        let prepared = self.shared.prepared;
        if round.holders.is_empty() {
            return;
        }
        let mut fits: Vec<Option<bool>> = vec![None; prepared.shapes.len()];
        for (request, waiting) in prepared.requests.iter().enumerate() {
            let own = self.shared.standings.get(waiting.job);
            let wait = self.shared.waits[request];
            let may = match wait {
                Wait::NoRoom => self.attainable[waiting.shape],
                Wait::OverShare => own.is_some_and(|standing| standing.booked == 0),
                _ => false,
            };
            if !may {
                continue;
            }
            let shape = &prepared.shapes[waiting.shape].shape;
            let fits = *fits[waiting.shape]
                .get_or_insert_with(|| self.free.fit(shape, spread_of("")).is_some());
            let holder = round
                .holders
                .iter()
                .filter(|(holder, _)| **holder != request)
                .find(|(_, agents)| agents.iter().any(|agent| shape.allows(*agent)));
            if let (true, Some((holder, _))) = (fits, holder) {
                self.shared.waits[request] = Wait::ReservedFor(*holder);
            }
        }
    }

    /// Zero-slot requests in order, and all reasons.
    fn finish(mut self) -> Decided {
        let prepared = self.shared.prepared;
        let mut aux = Room::of_now(prepared, prepared.aux_space(&self.free));
        for (request, waiting) in prepared.requests.iter().enumerate() {
            if waiting.slots > 0 {
                continue;
            }
            self.shared.waits[request] = if *self.shared.fate(waiting.shape) != Fate::Usable {
                Wait::Fate
            } else if let Some(parts) = aux.fit(request) {
                aux.take(request, &parts);
                self.decided.placed.push((request, parts));
                Wait::Starts
            } else {
                Wait::NoRoom
            };
        }
        self.shared
            .explain(&self.free, Some(&aux.free), &mut self.decided);
        self.decided
    }
}

/// A job's turn when slots are handed out: least work for its weight and demand first, then earlier submission.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Turn {
    ratio: f64,
    order: u32,
    job: usize,
}

impl Eq for Turn {}

impl Ord for Turn {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.ratio
            .total_cmp(&other.ratio)
            .then_with(|| self.order.cmp(&other.order))
    }
}

impl PartialOrd for Turn {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
