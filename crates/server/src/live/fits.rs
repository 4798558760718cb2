//! What managers know of their places besides slots, and what allocations ask of their pools with that.

use std::collections::BTreeMap;
use std::sync::Arc;

use det_ids::AllocationId;
use det_rm::Fit;
use det_scheduler::{Misfits, Request};
use det_store::allocations::AllocationRow;
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
    /// The places of a pool that containers with these demands do not fit.
    pub(super) fn misfits(&self, pool: &str, demands: Option<&Value>) -> Option<Arc<Misfits>> {
        self.0.get(pool)?.misfits(pool, demands)
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
    let demands = job.and_then(|job| job.demands.as_ref());
    asked(row, cache.fits.misfits(pool, demands))
}

/// Applies what managers know of their places, and adds the allocations to what was touched for which that matters.
pub(super) fn take_in(cache: &mut LiveCache, fits: Fits, touched: &mut CacheChanges) {
    let before = std::mem::replace(&mut cache.fits, fits);
    let have_changed = before != cache.fits;
    for (id, allocations) in &cache.jobs.allocations {
        let job = cache.jobs.rows.get(id);
        let demands = job.and_then(|job| job.demands.as_ref());
        let is_read = demands.is_some() && touched.jobs.contains(id);
        if !is_read && !have_changed {
            continue;
        }
        let known = allocations
            .iter()
            .filter_map(|id| cache.allocations.get(id));
        // Most allocations of a job are in one pool.
        let mut last: Option<(&str, bool)> = None;
        for known in known {
            let pool = known.row.resource_pool.as_str();
            let differs = match last {
                Some((of, differs)) if of == pool => differs,
                _ => before.misfits(pool, demands) != cache.fits.misfits(pool, demands),
            };
            last = Some((pool, differs));
            if is_read || differs {
                touched.allocations.insert(known.row.id.clone());
            }
        }
    }
}
