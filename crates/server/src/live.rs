//! A cache of the live rows: places, allocations that have not ended, the containers that hold slots.
//!
//! Scheduling looks at all of them at every pass, and each agent's connection at its own after every message: reading
//! them from the database each time would cost more than everything else. The cache is made from the rows once and then
//! follows the commits ([`det_store::Store::observe`]): it changes before any caller knows that a change is durable, and it
//! never shows what is not. Its contents can be had from the rows at any moment; [`Live::compare`] does, for tests.
//!
//! Scheduling thinks for long where a cluster is large, so it has a cache of its own and is handed the changes
//! (`Live::catch_up`): commits and connections do not wait for it.

mod fits;
mod planned;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use det_ids::{
    AllocationId, ContainerId, ExperimentId, JobId, PlaceId, SlotId, TrialId, WorkspaceId,
};
use det_lifecycle::allocation::AllocationState;
use det_lifecycle::container::DesiredState;
use det_rm::Fit;
use det_scheduler::{Job, PlaceSnapshot, WaitExplanation, Work};
use det_store::allocations::{AllocationRow, ContainerRow};
use det_store::experiments::JobRow;
use det_store::places::PlaceRow;
use det_store::unit::Changes;
use det_store::{Conn, Store, StoreError, allocations, experiments, places};
use det_taskspec::{PlaceRuntime, TaskKind};
use fits::Fits;
pub(crate) use fits::{demands_of, request, request_in, request_of};
pub(crate) use planned::{allocations_of_pools, host_ports, older_services};
use planned::{entry, place_snapshot, work};

/// The cache, shared. Cheap to clone.
#[derive(Clone, Default)]
pub struct Live {
    inner: Arc<Mutex<Inner>>,
    /// Held by the caller that makes the cache from the rows.
    loading: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
struct Inner {
    cache: LiveCache,
    /// Whether the cache has been made from the rows and follows them since.
    current: bool,
    /// How often more had changed than was reported.
    invalidations: u64,
    /// What managers have last reported.
    fits: Fits,
    /// Changes that came while it was being made.
    meanwhile: Vec<Changes>,
    /// Changes that scheduling has not applied yet.
    for_scheduling: Vec<Changes>,
    /// Whether scheduling's cache follows; if not, it is to be copied from this one.
    scheduling_follows: bool,
}

/// Changes kept for scheduling at most; beyond it copying the cache is less work.
const MOST_BEHIND: usize = 4096;

/// The live rows: places, jobs, and allocations with their containers.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct LiveCache {
    places: BTreeMap<PlaceId, Place>,
    allocations: HashMap<AllocationId, Allocation>,
    /// By place: its containers that hold slots, with their allocations.
    containers: HashMap<PlaceId, BTreeMap<ContainerId, AllocationId>>,
    jobs: LiveJobs,
    fits: Fits,
}

/// The jobs of the allocations in a cache.
#[derive(Debug, Clone, Default, PartialEq)]
struct LiveJobs {
    /// Ids of the live allocations of each job.
    allocations: HashMap<JobId, BTreeSet<AllocationId>>,
    /// Jobs of these allocations, as far as they were read.
    rows: HashMap<JobId, JobRow>,
    /// Those that are to be read.
    unread: BTreeSet<JobId>,
    /// How often jobs have changed: what was read of them before is not to be inserted after.
    changes: u64,
}

impl LiveJobs {
    /// Jobs have changed: they are read again.
    fn changed(&mut self, ids: Vec<JobId>) {
        self.changes += u64::from(!ids.is_empty());
        for id in ids {
            if self.rows.remove(&id).is_some() {
                self.unread.insert(id);
            }
        }
    }

    /// Inserts jobs that were read. One that is wanted and not there is not asked for again until it changes.
    fn insert_loaded(&mut self, jobs: Vec<JobRow>, wanted: &[JobId]) {
        for id in wanted {
            self.unread.remove(id);
        }
        for job in jobs {
            if self.allocations.contains_key(&job.id) {
                self.rows.insert(job.id.clone(), job);
            }
        }
    }

    /// Adds an allocation that has become live, or replaces what was known of it.
    fn add(&mut self, row: &AllocationRow) {
        if !self.rows.contains_key(&row.job_id) {
            self.unread.insert(row.job_id.clone());
        }
        self.allocations
            .entry(row.job_id.clone())
            .or_default()
            .insert(row.id.clone());
    }

    /// Removes an allocation that is no longer live, or not as it was.
    fn remove(&mut self, row: &AllocationRow) {
        if let Some(known) = self.allocations.get_mut(&row.job_id) {
            known.remove(&row.id);
            if known.is_empty() {
                self.allocations.remove(&row.job_id);
            }
        }
    }

    /// The allocations of a job, of all that are live.
    fn allocations_of<'a>(
        &'a self,
        id: &JobId,
        all: &'a HashMap<AllocationId, Allocation>,
    ) -> impl Iterator<Item = &'a Allocation> {
        let ids = self.allocations.get(id).into_iter().flatten();
        ids.filter_map(|id| all.get(id))
    }

    /// Drops a job that has no live allocation.
    fn drop_unused(&mut self, id: &JobId) {
        if !self.allocations.contains_key(id) {
            self.rows.remove(id);
            self.unread.remove(id);
        }
    }
}

/// What has changed in a cache since it was last read.
#[derive(Debug, Default)]
pub(crate) struct CacheChanges {
    /// The cache is another one.
    pub(crate) everything: bool,
    pub(crate) places: BTreeSet<PlaceId>,
    pub(crate) allocations: BTreeSet<AllocationId>,
    pub(crate) jobs: BTreeSet<JobId>,
}

impl CacheChanges {
    /// Adds what changes are about to touch in a cache.
    fn add(&mut self, changes: &Changes, cache: &LiveCache) {
        self.places.extend(changes.removed_places.iter().cloned());
        self.places
            .extend(changes.places.iter().map(|row| row.id.clone()));
        self.jobs.extend(changes.jobs.iter().cloned());
        for (row, containers) in &changes.allocations {
            self.allocations.insert(row.id.clone());
            self.jobs.insert(row.job_id.clone());
            let before = cache.allocations.get(&row.id);
            let before = before.into_iter().flat_map(|known| &known.containers);
            let before = before.map(|container| &container.row);
            let on = before.chain(containers).map(|row| row.place_id.clone());
            self.places.extend(on);
        }
    }
}

/// A place with its slots, as planners take them.
#[derive(Debug, Clone, PartialEq)]
struct Place {
    row: Arc<PlaceRow>,
    slots: Vec<SlotId>,
}

/// An allocation with its containers that hold slots.
#[derive(Debug, Clone, PartialEq)]
struct Allocation {
    row: Arc<AllocationRow>,
    containers: Vec<Container>,
}

#[derive(Debug, Clone, PartialEq)]
struct Container {
    row: Arc<ContainerRow>,
    /// Those of the row, as planners take them.
    slots: Vec<SlotId>,
}

impl Allocation {
    /// Slots that it holds now: its containers that have exited have given theirs back.
    fn held(&self) -> u32 {
        let slots: usize = self.containers.iter().map(|c| c.slots.len()).sum();
        u32::try_from(slots).unwrap_or(u32::MAX)
    }
}

impl Place {
    fn of(row: Arc<PlaceRow>) -> Self {
        Self {
            slots: row.capacity.slots(),
            row,
        }
    }
}

/// A container that is to be started, with the rows that its specification is made from.
pub(crate) struct StartableContainer {
    pub(crate) container: Arc<ContainerRow>,
    pub(crate) allocation: Arc<AllocationRow>,
    pub(crate) place: Arc<PlaceRow>,
    /// The allocation's containers that have not exited, in the order of their ranks.
    pub(crate) alive: Vec<Arc<ContainerRow>>,
}

impl Live {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the commits of this store from now on. `on_own_event` is called when the store has recorded an event of its own;
    /// it must not block.
    pub(crate) fn follow(&self, store: &Store, on_own_event: impl Fn() + Send + Sync + 'static) {
        let live = self.clone();
        let followed = store.observe(move |changes| {
            if changes.own_event {
                on_own_event();
            }
            live.changed(changes);
        });
        assert!(
            followed,
            "a store that was just opened has no other follower"
        );
    }

    /// Notes what a manager knows of the places in its pools besides slots.
    pub(crate) fn set_fit(&self, pools: Vec<String>, fit: &Arc<dyn Fit>) {
        let mut inner = self.lock();
        let fits = pools.into_iter().map(|pool| (pool, Arc::clone(fit)));
        inner.fits.0.extend(fits);
        inner.cache.fits = inner.fits.clone();
    }

    fn changed(&self, changes: Changes) {
        let mut inner = self.lock();
        if changes.everything {
            inner.current = false;
            inner.invalidations += 1;
            inner.meanwhile.clear();
        } else if inner.current {
            if inner.for_scheduling.len() >= MOST_BEHIND {
                inner.scheduling_follows = false;
            }
            if inner.scheduling_follows {
                inner.for_scheduling.push(changes.clone());
            } else {
                inner.for_scheduling.clear();
            }
            inner.cache.apply(changes);
        } else {
            inner.meanwhile.push(changes);
        }
    }

    /// Looks at the cache, made anew from the rows first if need be.
    pub(crate) async fn look<T>(
        &self,
        store: &Store,
        look: impl FnOnce(&LiveCache) -> T,
    ) -> Result<T, StoreError> {
        {
            let inner = self.lock();
            if inner.current {
                return Ok(look(&inner.cache));
            }
        }
        // One at a time: what is gathered meanwhile is for one cache.
        let _alone = self.loading.lock().await;
        loop {
            let invalidations = {
                let mut inner = self.lock();
                if inner.current {
                    return Ok(look(&inner.cache));
                }
                // From here on every commit is either in what is read below or among these, or in both: each change
                // contains the state after it, so applying it twice does no harm.
                inner.meanwhile.clear();
                inner.invalidations
            };
            let mut cache = {
                let mut conn = store.read().await?;
                LiveCache::load(&mut conn.conn()).await?
            };
            let mut inner = self.lock();
            if inner.invalidations != invalidations {
                // More has changed than was reported, perhaps after the rows were read.
                continue;
            }
            for changes in std::mem::take(&mut inner.meanwhile) {
                cache.apply(changes);
            }
            let outcome = look(&cache);
            inner.cache = cache;
            inner.cache.fits = inner.fits.clone();
            inner.current = true;
            inner.scheduling_follows = false;
            inner.for_scheduling.clear();
            return Ok(outcome);
        }
    }

    /// Looks at the cache with the jobs of all live allocations.
    pub(crate) async fn look_at_jobs<T>(
        &self,
        store: &Store,
        look: impl FnOnce(&LiveCache) -> T,
    ) -> Result<T, StoreError> {
        let mut look = Some(look);
        loop {
            let seen = |cache: &LiveCache| match look.take() {
                Some(look) if cache.jobs.unread.is_empty() => Ok(look(cache)),
                later => {
                    look = later;
                    let unread: Vec<JobId> = cache.jobs.unread.iter().cloned().collect();
                    Err((unread, cache.jobs.changes))
                }
            };
            let (unread, changes) = match self.look(store, seen).await? {
                Ok(outcome) => return Ok(outcome),
                Err(missing) => missing,
            };
            let jobs = {
                let mut conn = store.read().await?;
                experiments::jobs(&mut conn.conn(), &unread).await?
            };
            let mut inner = self.lock();
            // Else they are read again.
            if inner.current && inner.cache.jobs.changes == changes {
                inner.cache.jobs.insert_loaded(jobs, &unread);
            }
        }
    }

    /// Brings scheduling's own cache up to date, with the jobs of all live allocations, and returns what has changed
    /// in it.
    pub(crate) async fn catch_up(
        &self,
        store: &Store,
        scheduling: &mut LiveCache,
    ) -> Result<CacheChanges, StoreError> {
        let mut touched = CacheChanges::default();
        let (changes, fits) = loop {
            // Makes sure that there is a cache; it may be found out of date again right afterwards.
            self.look(store, |_| ()).await?;
            let mut inner = self.lock();
            if !inner.current {
                continue;
            }
            let changes = std::mem::take(&mut inner.for_scheduling);
            if !inner.scheduling_follows {
                inner.scheduling_follows = true;
                *scheduling = inner.cache.clone();
                touched.everything = true;
                break (Vec::new(), inner.fits.clone());
            }
            break (changes, inner.fits.clone());
        };
        for changes in changes {
            touched.add(&changes, scheduling);
            scheduling.apply(changes);
        }
        if !scheduling.jobs.unread.is_empty() {
            let ids: Vec<JobId> = scheduling.jobs.unread.iter().cloned().collect();
            let mut conn = store.read().await?;
            let jobs = experiments::jobs(&mut conn.conn(), &ids).await?;
            scheduling.jobs.insert_loaded(jobs, &ids);
            touched.jobs.extend(ids);
        }
        fits::take_in(scheduling, fits, &mut touched);
        Ok(touched)
    }

    /// What differs between the cache and the rows; `None` when nothing does. Of use only while nothing changes.
    pub async fn compare(&self, store: &Store) -> Result<Option<String>, StoreError> {
        let mut cache = self.look(store, Clone::clone).await?;
        let mut rows = {
            let mut conn = store.read().await?;
            LiveCache::load(&mut conn.conn()).await?
        };
        // Jobs are brought in when they are needed.
        for cache in [&mut cache, &mut rows] {
            cache.fits = Fits::default();
            cache.jobs.rows.clear();
            cache.jobs.unread.clear();
            cache.jobs.changes = 0;
        }
        Ok((cache != rows).then(|| format!("in memory: {cache:?}; rows: {rows:?}")))
    }
}

/// What the places of these pools start containers with.
pub(crate) fn runtimes(cache: &LiveCache, pools: &[String]) -> BTreeSet<PlaceRuntime> {
    let places = cache.places.values();
    places
        .filter(|place| pools.contains(&place.row.resource_pool))
        .map(|place| place.row.runtime.clone())
        .collect()
}

/// A live attempt of a trial.
#[derive(Clone)]
pub(crate) struct TrialAttempt {
    pub(crate) trial_id: TrialId,
    pub(crate) experiment_id: ExperimentId,
    pub(crate) row: Arc<AllocationRow>,
}

/// The attempts of trials whose code runs: their containers have met, and none of them was asked to end.
pub(crate) fn running_trials(cache: &LiveCache) -> Vec<TrialAttempt> {
    let rows = cache.allocations.values().map(|known| &known.row);
    let running =
        rows.filter(|row| row.kind == TaskKind::Trial && row.state == AllocationState::Ready);
    // Rows of trials' tasks have both.
    let attempts = running.filter_map(|row| {
        Some(TrialAttempt {
            trial_id: row.trial_id?,
            experiment_id: row.experiment_id?,
            row: row.clone(),
        })
    });
    attempts.collect()
}

/// The live attempts of tasks that were launched by themselves.
pub(crate) fn launched_attempts(cache: &LiveCache) -> Vec<Arc<AllocationRow>> {
    let rows = cache.allocations.values().map(|known| &known.row);
    rows.filter(|row| row.kind != TaskKind::Trial)
        .cloned()
        .collect()
}

/// The row of a live allocation.
pub(crate) fn allocation<'c>(cache: &'c LiveCache, id: &AllocationId) -> Option<&'c AllocationRow> {
    cache.allocations.get(id).map(|known| &*known.row)
}

/// The allocation of a container that a place holds.
pub(crate) fn holder(
    cache: &LiveCache,
    place_id: &PlaceId,
    id: &ContainerId,
) -> Option<Arc<AllocationRow>> {
    let (allocation, _) = cache.on(place_id).find(|(_, held)| held.row.id == *id)?;
    Some(Arc::clone(&allocation.row))
}

impl LiveCache {
    async fn load(conn: &mut Conn<'_>) -> Result<Self, StoreError> {
        let mut cache = Self::default();
        for row in places::list(conn).await? {
            cache
                .places
                .insert(row.id.clone(), Place::of(Arc::new(row)));
        }
        let mut of_allocation: HashMap<AllocationId, Vec<Arc<ContainerRow>>> = HashMap::new();
        for row in allocations::live_containers(conn).await? {
            of_allocation
                .entry(row.allocation_id.clone())
                .or_default()
                .push(Arc::new(row));
        }
        for row in allocations::live(conn).await? {
            let containers = of_allocation.remove(&row.id).unwrap_or_default();
            cache.put(Arc::new(row), containers);
        }
        Ok(cache)
    }

    fn apply(&mut self, changes: Changes) {
        for id in changes.removed_places {
            self.places.remove(&id);
        }
        for row in changes.places {
            self.places.insert(row.id.clone(), Place::of(row));
        }
        self.jobs.changed(changes.jobs);
        for (row, containers) in changes.allocations {
            self.put(row, containers);
        }
    }

    /// Inserts an allocation as it is now.
    fn put(&mut self, row: Arc<AllocationRow>, containers: Vec<Arc<ContainerRow>>) {
        if let Some(before) = self.allocations.remove(&row.id) {
            self.jobs.remove(&before.row);
            for container in before.containers {
                if let Some(known) = self.containers.get_mut(&container.row.place_id) {
                    known.remove(&container.row.id);
                    if known.is_empty() {
                        self.containers.remove(&container.row.place_id);
                    }
                }
            }
        }
        if row.ended_at.is_some() {
            self.jobs.drop_unused(&row.job_id);
            return;
        }
        self.jobs.add(&row);
        let containers = containers
            .into_iter()
            .filter(|container| container.ended_at.is_none())
            .map(|row| Container {
                slots: row.slots.iter().copied().collect(),
                row,
            })
            .collect::<Vec<_>>();
        for container in &containers {
            self.containers
                .entry(container.row.place_id.clone())
                .or_default()
                .insert(container.row.id.clone(), row.id.clone());
        }
        self.allocations
            .insert(row.id.clone(), Allocation { row, containers });
    }

    /// The containers on a place that hold slots, each with its allocation.
    fn on(&self, place_id: &PlaceId) -> impl Iterator<Item = (&Allocation, &Container)> {
        let ids = self.containers.get(place_id).into_iter().flatten();
        ids.filter_map(|(id, allocation)| {
            let allocation = self.allocations.get(allocation)?;
            let mut containers = allocation.containers.iter();
            Some((allocation, containers.find(|c| c.row.id == *id)?))
        })
    }

    /// What the rows want of the containers of a place.
    pub(crate) fn desired(&self, place_id: &PlaceId) -> BTreeMap<ContainerId, DesiredState> {
        self.on(place_id)
            .map(|(_, container)| (container.row.id.clone(), container.row.desired))
            .collect()
    }

    /// What is needed to start a container on a place; `None` if it is not to run there any more.
    pub(crate) fn startable(
        &self,
        place_id: &PlaceId,
        id: &ContainerId,
    ) -> Option<StartableContainer> {
        let (allocation, container) = self.on(place_id).find(|(_, c)| c.row.id == *id)?;
        if !container.row.desired.starts() {
            return None;
        }
        let alive = allocation.containers.iter().map(|c| c.row.clone());
        Some(StartableContainer {
            container: container.row.clone(),
            allocation: allocation.row.clone(),
            place: self.places.get(place_id)?.row.clone(),
            alive: alive.collect(),
        })
    }

    /// The stored waiting reason of an allocation that waits; the outer `None`: it does not wait.
    #[expect(
        clippy::option_option,
        reason = "an allocation that does not wait is not one that waits without a reason yet"
    )]
    pub(crate) fn stored_wait(
        &self,
        allocation_id: &AllocationId,
    ) -> Option<Option<&WaitExplanation>> {
        let row = &self.allocations.get(allocation_id)?.row;
        row.placed_at.is_none().then_some(row.wait_reason.as_ref())
    }

    /// The label of an allocation, as users read it; `None` = it is gone.
    pub(crate) fn label(&self, allocation_id: &AllocationId) -> Option<String> {
        let allocation = self.allocations.get(allocation_id)?;
        Some(allocation.row.label().to_string())
    }

    /// The places of a pool, in id order.
    pub(crate) fn places(&self, pool: &str, aux_limit: u32) -> Vec<PlaceSnapshot> {
        self.places
            .values()
            .filter(|place| place.row.resource_pool == pool)
            .map(|place| place_snapshot(place, self.on(&place.row.id), aux_limit))
            .collect()
    }

    /// A place with its pool; `None` = there is none of this name.
    pub(crate) fn place(&self, id: &PlaceId, aux_limit: u32) -> Option<(&str, PlaceSnapshot)> {
        let place = self.places.get(id)?;
        Some((
            &place.row.resource_pool,
            place_snapshot(place, self.on(&place.row.id), aux_limit),
        ))
    }

    /// The pools of the allocations that were touched, each once or more.
    pub(crate) fn pools_of<'a>(
        &'a self,
        touched: &'a CacheChanges,
    ) -> impl Iterator<Item = &'a str> {
        let some = touched.allocations.iter();
        let some = some.filter_map(|id| self.allocations.get(id));
        let all = self.allocations.values().filter(|_| touched.everything);
        some.chain(all)
            .map(|allocation| allocation.row.resource_pool.as_str())
    }

    /// What runs and what waits in a pool.
    pub(crate) fn work<'a>(&'a self, pool: &'a str) -> impl Iterator<Item = Work> + 'a {
        self.allocations
            .values()
            .filter(move |allocation| allocation.row.resource_pool == pool)
            .map(|allocation| work(allocation, fits::request(self, &allocation.row)))
    }

    /// An allocation with its pool; `None` = nothing of this name is live.
    pub(crate) fn work_of(&self, id: &AllocationId) -> Option<(&str, Work)> {
        let allocation = self.allocations.get(id)?;
        let work = work(allocation, fits::request(self, &allocation.row));
        Some((&allocation.row.resource_pool, work))
    }

    /// The jobs of all that runs and waits in a pool.
    pub(crate) fn jobs(&self, pool: &str) -> impl Iterator<Item = (JobId, Job)> {
        self.jobs
            .allocations
            .keys()
            .filter_map(move |id| Some((id.clone(), self.job_in(id, pool)?)))
    }

    /// A job as the queue of a pool has it; `None` = nothing of it runs or waits there.
    pub(crate) fn job_in(&self, id: &JobId, pool: &str) -> Option<Job> {
        let job = self.jobs.rows.get(id)?;
        let mut allocations = self.jobs.allocations_of(id, &self.allocations);
        allocations
            .any(|allocation| allocation.row.resource_pool == pool)
            .then(|| self.job_entry(job, pool))
    }

    /// A job as the queue of one pool has it: of its cap, what it uses in other pools is taken.
    pub(crate) fn job_entry(&self, job: &JobRow, pool: &str) -> Job {
        let mut entry = entry(job);
        if let Some(max_slots) = &mut entry.max_slots
            && job.fallback.is_some()
        {
            let elsewhere: u32 = self
                .jobs
                .allocations_of(&job.id, &self.allocations)
                .filter(|allocation| allocation.row.resource_pool != pool)
                .map(Allocation::held)
                .fold(0, u32::saturating_add);
            *max_slots = max_slots.saturating_sub(elsewhere);
        }
        entry
    }

    /// Slots that allocations hold: of each its workspace, its pool, and how many.
    pub(crate) fn held(&self) -> impl Iterator<Item = (WorkspaceId, &str, u32)> {
        self.jobs.rows.values().flat_map(|job| {
            let allocations = self.jobs.allocations_of(&job.id, &self.allocations);
            allocations.map(|allocation| {
                let pool = allocation.row.resource_pool.as_str();
                (job.workspace_id, pool, allocation.held())
            })
        })
    }

    /// By allocation that has slots: how many it holds.
    pub(crate) fn held_by(&self) -> BTreeMap<AllocationId, u32> {
        let placed = self.allocations.iter();
        placed
            .filter(|(_, allocation)| !allocation.containers.is_empty())
            .map(|(id, allocation)| (id.clone(), allocation.held()))
            .collect()
    }

    /// The workspace of an allocation's job.
    pub(crate) fn workspace_of(&self, allocation_id: &AllocationId) -> Option<WorkspaceId> {
        let row = &self.allocations.get(allocation_id)?.row;
        Some(self.jobs.rows.get(&row.job_id)?.workspace_id)
    }

    /// Requests that wait and whose jobs name several pools, the earliest first.
    pub(crate) fn with_fallback(&self) -> Vec<(Arc<AllocationRow>, &JobRow)> {
        let jobs = self.jobs.rows.values().filter(|job| job.fallback.is_some());
        let mut waiting: Vec<(Arc<AllocationRow>, &JobRow)> = jobs
            .flat_map(|job| {
                let allocations = self.jobs.allocations_of(&job.id, &self.allocations);
                allocations.map(move |allocation| (Arc::clone(&allocation.row), job))
            })
            .filter(|(row, _)| row.placed_at.is_none())
            .collect();
        waiting.sort_by(|(a, _), (b, _)| (a.requested_at, &a.id).cmp(&(b.requested_at, &b.id)));
        waiting
    }
}

#[cfg(test)]
mod tests {
    use det_rm::Capacity;
    use det_scheduler::Services;
    use det_store::{StoreError, StoreUrl, places};

    use super::*;

    fn agent(id: &str, version: usize) -> PlaceRow {
        PlaceRow {
            id: id.into(),
            resource_pool: "default".into(),
            instance_id: "i".into(),
            services: Services::default(),
            capacity: Capacity::Devices(Vec::new()),
            addresses: Vec::new(),
            version: version.to_string(),
            runtime: "process".into(),
            registered_at: 0,
            disconnected_at: None,
        }
    }

    /// Commits, invalidations of the cache, and many who look at it, all at once: the cache must not lose a commit that came
    /// while one of them made it.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn no_commit_is_missed_while_the_image_is_made() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&StoreUrl::Sqlite(directory.path().join("det.db")))
            .await
            .unwrap();
        let live = Live::default();
        live.follow(&store, || ());
        for round in 0..300 {
            live.changed(Changes {
                everything: true,
                ..Changes::default()
            });
            let lookers: Vec<_> = (0..3)
                .map(|_| {
                    let (live, store) = (live.clone(), store.clone());
                    tokio::spawn(async move { live.look(&store, |_| ()).await.unwrap() })
                })
                .collect();
            let row = agent(&format!("a{}", round % 7), round);
            let write = store.write(move |tx| {
                Box::pin(async move {
                    places::save(&mut tx.conn(), &row).await?;
                    Ok::<_, StoreError>(())
                })
            });
            write.await.unwrap();
            for looker in lookers {
                looker.await.unwrap();
            }
            assert_eq!(live.compare(&store).await.unwrap(), None, "round {round}");
        }
        store.close().await;
    }
}
