//! What managers know of their places besides slots, and what allocations ask of their pools with that.

use std::collections::BTreeMap;
use std::sync::Arc;

use det_ids::AllocationId;
use det_rm::{Fit, FitQuery};
use det_scheduler::{Misfits, Request};
use det_store::allocations::AllocationRow;
use det_store::experiments::JobRow;
use serde_json::Value;

use super::planned::asked;
use super::{CacheChanges, LiveCache};

/// What managers know of their places besides slots, by pool.
#[derive(Debug, Clone, Default)]
pub(super) struct Fits(pub(super) BTreeMap<String, Arc<dyn Fit>>);

impl PartialEq for Fits {
    fn eq(&self, other: &Self) -> bool {
        let mut pairs = self.0.iter().zip(&other.0);
        self.0.len() == other.0.len() && pairs.all(|(a, b)| a.0 == b.0 && Arc::ptr_eq(a.1, b.1))
    }
}

impl Fits {
    /// The places of a pool that such containers do not fit.
    fn misfits(&self, query: FitQuery<'_>) -> Option<Arc<Misfits>> {
        self.0.get(query.pool)?.misfits(query)
    }
}

/// What an allocation of a job, as far as that was read, would ask the places of a pool for.
fn query<'q>(row: &AllocationRow, job: Option<&'q JobRow>, pool: &'q str) -> FitQuery<'q> {
    FitQuery {
        pool,
        workspace: job.map(|job| job.workspace_id),
        slots: u32::try_from(row.slots).unwrap_or(u32::MAX),
        demands: job.and_then(|job| job.demands.as_ref()),
    }
}

/// What an allocation asks its pool for.
pub(crate) fn request(cache: &LiveCache, row: &AllocationRow) -> Request {
    request_in(cache, row, &row.resource_pool)
}

/// What a live allocation would ask a pool for.
pub(crate) fn request_of(cache: &LiveCache, id: &AllocationId, pool: &str) -> Option<Request> {
    let known = cache.allocations.get(id)?;
    Some(request_in(cache, &known.row, pool))
}

/// What an allocation would ask a pool for.
pub(crate) fn request_in(cache: &LiveCache, row: &AllocationRow, pool: &str) -> Request {
    let job = cache.jobs.rows.get(&row.job_id);
    asked(row, cache.fits.misfits(query(row, job, pool)))
}

/// What an allocation demands of places besides slots, in the form of its manager.
pub(crate) fn demands_of(cache: &LiveCache, id: &AllocationId) -> Option<Value> {
    let known = cache.allocations.get(id)?;
    cache.jobs.rows.get(&known.row.job_id)?.demands.clone()
}

/// Applies what managers know of their places, and adds the allocations to what was touched for which that matters.
pub(super) fn take_in(cache: &mut LiveCache, fits: Fits, touched: &mut CacheChanges) {
    let before = std::mem::replace(&mut cache.fits, fits);
    let have_changed = before != cache.fits;
    for (id, allocations) in &cache.jobs.allocations {
        let job = cache.jobs.rows.get(id);
        let is_read = job.is_some() && touched.jobs.contains(id);
        if !is_read && !have_changed {
            continue;
        }
        let known = allocations
            .iter()
            .filter_map(|id| cache.allocations.get(id));
        // Most allocations of a job are in one pool, and ask for as many slots.
        let mut last: Option<((&str, i64), bool)> = None;
        for known in known {
            let of = (known.row.resource_pool.as_str(), known.row.slots);
            let differs = match last {
                Some((known, differs)) if known == of => differs,
                _ => {
                    let query = query(&known.row, job, of.0);
                    before.misfits(query) != cache.fits.misfits(query)
                }
            };
            last = Some((of, differs));
            if is_read || differs {
                touched.allocations.insert(known.row.id.clone());
            }
        }
    }
}
