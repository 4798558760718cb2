//! The demand and the share of each job.

use crate::capacity::Feasibility;
use crate::decision::{DecisionState, JobShare, Wait};
use crate::model::PlaceState;
use crate::prepared::{PlaceView, PreparedPool, Service, SlotView, WaitingRequest};
use crate::shares::{Claim, divide};
use crate::space::{Parts, Space};

/// By shape: whether it would fit without preemptible work and work that is stopping.
pub(super) fn attainable_shapes(
    prepared: &PreparedPool,
    free: &Space,
    leaving: &[bool],
) -> Vec<bool> {
    let mut space = free.clone();
    for (active, leaving) in prepared.running.iter().zip(leaving) {
        if !active.zero_slots() && (active.preemptible || *leaving) {
            for part in &active.parts {
                space.give(part.place, part.usable, part.held);
            }
        }
    }
    prepared
        .shapes
        .iter()
        .map(|view| view.slots > 0 && space.fit(&view.shape, 0).is_some())
        .collect()
}

/// The division of a pool's slots among its jobs.
pub(super) struct Division<'a> {
    pub(super) shared: &'a DecisionState<'a>,
    /// By running allocation: whether it stops or is killed.
    pub(super) leaving: &'a [bool],
    /// By shape: whether it would fit if all preemptible work were gone.
    pub(super) attainable: &'a [bool],
}

impl Division<'_> {
    /// Demand and share of each job.
    pub(super) fn job_shares(&self, given: &[(usize, Parts)]) -> Vec<JobShare> {
        let prepared = self.shared.prepared;
        let mut job_shares = vec![JobShare::default(); prepared.jobs.len()];
        let mut demand = vec![0_u64; prepared.jobs.len()];
        let mut fixed = demand.clone();
        for (active, leaving) in prepared.running.iter().zip(self.leaving) {
            demand[active.job] += u64::from(active.asked);
            if !leaving {
                job_shares[active.job].active += u64::from(active.slots);
                if !active.preemptible {
                    fixed[active.job] += u64::from(active.slots);
                }
            }
        }
        for (request, _) in given {
            let waiting = &prepared.requests[*request];
            let slots = u64::from(waiting.slots);
            demand[waiting.job] += slots;
            job_shares[waiting.job].active += slots;
            fixed[waiting.job] += slots;
        }
        let mut nominal = Vec::new();
        if fixed.iter().any(|slots| *slots > 0) {
            nominal = self.nominal_shares();
        }
        for (request, waiting) in prepared.requests.iter().enumerate() {
            if self.shared.waits[request] != Wait::Starts
                && self.fits_cap(waiting)
                && self.attainable[waiting.shape]
            {
                demand[waiting.job] += u64::from(waiting.slots);
            }
        }
        self.limit(&mut demand);
        let shares = self.divide_among_jobs(|job| Claim {
            weight: prepared.jobs[job].weight,
            demand: demand[job],
            fixed: fixed[job],
        });
        for (job, share) in shares.into_iter().enumerate() {
            job_shares[job].demand = demand[job];
            job_shares[job].share = share;
            job_shares[job].nominal = nominal.get(job).copied().unwrap_or(share);
        }
        job_shares
    }

    /// What the shares would be if all running work could be preempted.
    fn nominal_shares(&self) -> Vec<u64> {
        let prepared = self.shared.prepared;
        let mut demand = vec![0_u64; prepared.jobs.len()];
        for active in &*prepared.running {
            demand[active.job] += u64::from(active.asked);
        }
        for waiting in &*prepared.requests {
            if waiting.slots > 0
                && self.fits_cap(waiting)
                && *self.shared.feasibility(waiting.shape) == Feasibility::Usable
            {
                demand[waiting.job] += u64::from(waiting.slots);
            }
        }
        self.limit(&mut demand);
        self.divide_among_jobs(|job| Claim {
            weight: prepared.jobs[job].weight,
            demand: demand[job],
            fixed: 0,
        })
    }

    /// Lowers the demand of each job to what its own limit and that of its workspace allow.
    fn limit(&self, demand: &mut [u64]) {
        let prepared = self.shared.prepared;
        for (job, demand) in prepared.jobs.iter().zip(&mut *demand) {
            if let Some(max_slots) = job.max_slots {
                *demand = (*demand).min(u64::from(max_slots));
            }
        }
        for (jobs, allowance) in self.shared.workspaces.allowances(prepared) {
            for job in jobs {
                demand[job] = demand[job].min(allowance);
            }
        }
    }

    /// Shares by job. The jobs of a workspace that would get more than its limit allows divide that among themselves,
    /// and the others the rest.
    fn divide_among_jobs(&self, claim: impl Fn(usize) -> Claim) -> Vec<u64> {
        let prepared = self.shared.prepared;
        let mut claims: Vec<Claim> = (0..prepared.jobs.len()).map(claim).collect();
        let mut shares = self.divide_in_order(&claims, 0..claims.len(), self.shared.capacity);
        let mut allowances = self.shared.workspaces.allowances(prepared);
        let sum = |shares: &[u64], jobs: &[usize]| jobs.iter().map(|job| shares[*job]).sum::<u64>();
        while let Some(over) = allowances
            .iter()
            .position(|(jobs, allowance)| sum(&shares, jobs) > *allowance)
        {
            let (jobs, allowance) = allowances.swap_remove(over);
            let own = self.divide_in_order(&claims, jobs.iter().copied(), allowance);
            for job in jobs {
                claims[job].demand = own[job];
                claims[job].fixed = own[job];
            }
            shares = self.divide_in_order(&claims, 0..claims.len(), self.shared.capacity);
        }
        shares
    }

    /// Shares of `capacity` for some jobs; ties are decided in queue order.
    fn divide_in_order(
        &self,
        claims: &[Claim],
        jobs: impl Iterator<Item = usize>,
        capacity: u64,
    ) -> Vec<u64> {
        let views = &self.shared.prepared.jobs;
        let mut in_order: Vec<usize> = jobs
            .filter(|job| claims[*job].demand > 0 || claims[*job].fixed > 0)
            .collect();
        in_order.sort_unstable_by_key(|job| views[*job].order);
        let claims: Vec<Claim> = in_order.iter().map(|job| claims[*job]).collect();
        let mut shares = vec![0; views.len()];
        for (job, share) in in_order.into_iter().zip(divide(&claims, capacity)) {
            shares[job] = share;
        }
        shares
    }

    /// Whether a request could start in its job and workspace if nothing else of them ran here.
    fn fits_cap(&self, waiting: &WaitingRequest) -> bool {
        let prepared = self.shared.prepared;
        prepared.jobs[waiting.job]
            .max_slots
            .is_none_or(|max| waiting.slots <= max)
            && self
                .shared
                .workspaces
                .allowance(prepared, waiting.job)
                .is_none_or(|most| u64::from(waiting.slots) <= most)
    }
}

/// Slots of a place that are divided among jobs: those in service, and those that are in use but take no new work.
pub(super) fn shared_slots(view: &PlaceView) -> u64 {
    let counts = |slot: &&SlotView| match (view.place.state, slot.service) {
        (PlaceState::Disabled, _) | (_, Service::Disabled) => false,
        (PlaceState::Enabled, Service::Offered) => true,
        (PlaceState::Enabled, Service::Draining)
        | (PlaceState::Draining | PlaceState::Disconnected, _) => slot.busy,
    };
    view.slots.iter().filter(counts).map(|_| 1).sum()
}
