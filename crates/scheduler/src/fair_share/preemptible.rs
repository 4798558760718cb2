//! The work that jobs above their share may have to give up.

use std::collections::{BTreeMap, BinaryHeap};

use crate::decision::JobShare;
use crate::prepared::PreparedPool;

/// Preemptible work by job, in the order in which it was started. It may contain work that was asked to stop since.
pub(super) struct PreemptibleWork(BTreeMap<usize, Vec<usize>>);

impl PreemptibleWork {
    /// `leaving` = of each running allocation whether it stops or is killed.
    pub(super) fn new(prepared: &PreparedPool, leaving: &[bool]) -> Self {
        let mut of_job: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (number, active) in prepared.running.iter().enumerate() {
            if active.preemptible && !leaving[number] && active.slots > 0 {
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
        Self(of_job)
    }

    /// Work of jobs above their share: of the job furthest above first (of equals the later one), what was started last
    /// first, until the job is at its share.
    pub(super) fn candidates(
        &mut self,
        prepared: &PreparedPool,
        job_shares: &[JobShare],
        leaving: &[bool],
    ) -> impl Iterator<Item = usize> {
        for work in self.0.values_mut() {
            while work.pop_if(|last| leaving[*last]).is_some() {}
        }
        let of_job = &self.0;
        // Each with the number of allocations of the job's work that are still to be considered.
        let mut furthest: BinaryHeap<(u64, u32, usize, usize)> = of_job
            .iter()
            .filter_map(|(job, work)| {
                let job_share = &job_shares[*job];
                let above = job_share.active.checked_sub(job_share.share)?;
                (above > 0).then(|| (above, prepared.jobs[*job].order, *job, work.len()))
            })
            .collect();
        std::iter::from_fn(move || {
            while let Some((above, order, job, left)) = furthest.pop() {
                let work = &of_job[&job][..left];
                let Some(last) = work.iter().rposition(|number| !leaving[*number]) else {
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
}
