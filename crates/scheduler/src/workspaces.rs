//! Limits of workspaces: how many slots the jobs of a workspace may use together.
//!
//! A limit holds requests back and stops no running work. What is left of it is *kept* for some waiting requests, so
//! that others of the workspace do not take it before them: for those that have waited longer than
//! [`crate::PoolSettings::reserve_after`], for those that running work is being stopped for, and, where priorities
//! decide, for all of more important classes.

use std::collections::{BTreeMap, BTreeSet};

use crate::prepared::{PreparedPool, WaitingRequest};

/// The workspaces with a limit: what they use, and what is kept for which requests.
pub(crate) struct Workspaces {
    /// By job: the index of its workspace in `limited`, if that has a limit. Empty if none has.
    of_job: Vec<Option<usize>>,
    limited: Vec<LimitedWorkspace>,
}

struct LimitedWorkspace {
    max_slots: u64,
    /// Slots in use in all pools, the placements of this plan included.
    in_use: u64,
    /// Requests for which slots are kept, and how many; earlier ones go first. There are at most as many requests as
    /// slots.
    kept: Vec<(usize, u64)>,
    keeping: BTreeSet<usize>,
    kept_sum: u64,
}

impl LimitedWorkspace {
    /// Slots that are kept for requests which go before this one.
    fn kept_before(&self, request: usize) -> u64 {
        if !self.keeping.contains(&request) {
            return self.kept_sum;
        }
        let before = self.kept.iter().take_while(|(other, _)| *other != request);
        before.map(|(_, slots)| slots).sum()
    }
}

impl Workspaces {
    /// `in_use` gives the slots in use by job.
    pub(crate) fn new(prepared: &PreparedPool, in_use: &[u64]) -> Self {
        let mut limited: Vec<LimitedWorkspace> = Vec::new();
        let mut of_job = Vec::new();
        if !prepared.workspaces.is_empty() {
            let numbers: BTreeMap<_, usize> = prepared.workspaces.keys().zip(0..).collect();
            limited.extend(prepared.workspaces.values().map(|limit| LimitedWorkspace {
                max_slots: limit.max_slots.into(),
                in_use: limit.in_other_pools.into(),
                kept: Vec::new(),
                keeping: BTreeSet::new(),
                kept_sum: 0,
            }));
            let jobs = prepared.jobs.iter();
            of_job.extend(jobs.map(|job| numbers.get(&job.workspace?).copied()));
            for (number, slots) in of_job.iter().zip(in_use) {
                if let Some(number) = number {
                    limited[*number].in_use += slots;
                }
            }
        }
        Self { of_job, limited }
    }

    /// Whether any workspace has a limit.
    pub(crate) fn any(&self) -> bool {
        !self.limited.is_empty()
    }

    fn number(&self, job: usize) -> Option<usize> {
        self.of_job.get(job).copied().flatten()
    }

    fn of(&self, job: usize) -> Option<&LimitedWorkspace> {
        self.limited.get(self.number(job)?)
    }

    /// The limit of a job's workspace, and the slots that it uses in all pools.
    pub(crate) fn limit_and_use(&self, job: usize) -> Option<(u64, u64)> {
        self.of(job).map(|own| (own.max_slots, own.in_use))
    }

    /// Whether a request asks for more than its workspace may ever use.
    pub(crate) fn is_above(&self, waiting: &WaitingRequest) -> bool {
        let slots = u64::from(waiting.slots);
        self.of(waiting.job)
            .is_some_and(|own| slots > own.max_slots)
    }

    /// Whether a request would take its workspace above its limit.
    pub(crate) fn is_full(&self, waiting: &WaitingRequest) -> bool {
        let slots = u64::from(waiting.slots);
        self.of(waiting.job)
            .is_some_and(|own| own.in_use + slots > own.max_slots)
    }

    /// Whether a request would take its workspace above its limit, or what is kept for others.
    pub(crate) fn hold_back(&self, request: usize, waiting: &WaitingRequest) -> bool {
        let slots = u64::from(waiting.slots);
        slots > 0
            && self
                .of(waiting.job)
                .is_some_and(|own| own.in_use + own.kept_before(request) + slots > own.max_slots)
    }

    /// The first request for which slots of the job's workspace are kept, if it is not `request` itself.
    pub(crate) fn kept_for(&self, request: usize, job: usize) -> Option<usize> {
        let (first, _) = self.of(job)?.kept.first()?;
        (*first != request).then_some(*first)
    }

    /// Records that a request starts.
    pub(crate) fn start(&mut self, request: usize, waiting: &WaitingRequest) {
        if let Some(number) = self.number(waiting.job) {
            let own = &mut self.limited[number];
            own.in_use += u64::from(waiting.slots);
            if own.keeping.remove(&request) {
                own.kept.retain(|(other, _)| *other != request);
                own.kept_sum -= u64::from(waiting.slots);
            }
        }
    }

    /// Keeps the slots that a request needs, unless its workspace may never use so many.
    pub(crate) fn keep(&mut self, request: usize, waiting: &WaitingRequest) {
        if let Some(number) = self.number(waiting.job) {
            let own = &mut self.limited[number];
            let slots = u64::from(waiting.slots);
            // If everything is kept already, later requests get nothing anyway.
            let left = own.in_use + own.kept_sum < own.max_slots;
            if left && slots > 0 && slots <= own.max_slots && own.keeping.insert(request) {
                own.kept.push((request, slots));
                own.kept_sum += slots;
            }
        }
    }

    /// Stops keeping slots for any request.
    pub(crate) fn keep_nothing(&mut self) {
        for own in &mut self.limited {
            own.kept.clear();
            own.keeping.clear();
            own.kept_sum = 0;
        }
    }

    /// By limited workspace: its jobs, and the slots of this pool that they may use together.
    pub(crate) fn allowances(&self, prepared: &PreparedPool) -> Vec<(Vec<usize>, u64)> {
        let mut allowances: Vec<(Vec<usize>, u64)> = prepared
            .workspaces
            .values()
            .map(|limit| (Vec::new(), limit.here().into()))
            .collect();
        for (job, number) in self.of_job.iter().enumerate() {
            if let Some(number) = number {
                allowances[*number].0.push(job);
            }
        }
        allowances
    }

    /// Slots of this pool that a job's workspace may use; `None` = any number.
    pub(crate) fn allowance(&self, prepared: &PreparedPool, job: usize) -> Option<u64> {
        let id = self.number(job).and(prepared.jobs[job].workspace)?;
        prepared
            .workspaces
            .get(&id)
            .map(|limit| limit.here().into())
    }
}
