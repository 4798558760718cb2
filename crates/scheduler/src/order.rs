//! The order of jobs in the queue, and the numbering of shapes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use det_ids::{AllocationId, JobId, Micros, PlaceId};

use crate::model::{Job, Misfits, Policy, PoolSettings, Request};
use crate::prepared::{JobView, ShapeView};
use crate::space::{PlaceRank, Shape};

/// Priority of jobs that the queue does not contain, under rules that ignore it.
const NO_PRIORITY: u8 = 42;
/// More new jobs than this are added by sorting the whole list instead of one by one.
const FEW: usize = 16;
/// Removed jobs keep their numbers until there are more of them than others, and more than this.
const MOST_REMOVED: usize = 64;

/// Jobs in the order in which they were added, each with a number that it keeps.
#[derive(Default)]
pub(crate) struct Jobs {
    numbers: HashMap<JobId, usize>,
    known: Vec<KnownJob>,
    /// Numbers of the jobs in the order in which they are served.
    in_order: Vec<usize>,
    added: Vec<usize>,
    /// Jobs whose settings have changed.
    changed: Vec<usize>,
    /// Whether the position of one of these in the queue has changed.
    moved: bool,
    removed: usize,
    /// Number of jobs that appear in a request but were not described by [`Self::put`].
    undescribed: usize,
}

struct KnownJob {
    job: Job,
    name: JobId,
    /// The only request of a job that was not described.
    only_request: Option<AllocationId>,
}

/// What jobs are sorted by. Rules that go from job to job need a distinct position for every job, independent of the
/// order in which jobs were added; hence the ids at the end.
type JobPosition<'a> = (
    Option<i64>,
    i64,
    Micros,
    Option<(&'a JobId, &'a Option<AllocationId>)>,
);

impl KnownJob {
    fn position(&self, settings: &PoolSettings) -> JobPosition<'_> {
        let by_priority = matches!(settings.policy, Policy::Priority { .. });
        (
            by_priority.then(|| settings.priority_order.rank(self.job.priority)),
            self.job.position.unwrap_or(self.job.submitted_at.0),
            self.job.submitted_at,
            (!by_priority).then_some((&self.name, &self.only_request)),
        )
    }
}

impl Jobs {
    /// Adds or replaces the description of a job.
    pub(crate) fn put(&mut self, id: &JobId, job: Job, settings: &PoolSettings) {
        let Some(&number) = self.numbers.get(id) else {
            let number = self.push(KnownJob {
                job,
                name: id.clone(),
                only_request: None,
            });
            self.numbers.insert(id.clone(), number);
            return;
        };
        let known = &mut self.known[number];
        if known.job == job {
            return;
        }
        let mut now = KnownJob {
            job,
            name: known.name.clone(),
            only_request: None,
        };
        std::mem::swap(known, &mut now);
        self.moved |= now.position(settings) != known.position(settings);
        self.changed.push(number);
    }

    /// Removes a job of which nothing waits or runs any more.
    pub(crate) fn remove(&mut self, id: &JobId) {
        self.removed += usize::from(self.numbers.remove(id).is_some());
    }

    /// The number of a request's job. A request whose job was not described gets a job of its own, without a cap.
    pub(crate) fn of(&mut self, request: &Request, settings: &PoolSettings) -> usize {
        if let Some(number) = self.numbers.get(&request.job_id) {
            return *number;
        }
        let priority = match settings.policy {
            Policy::Priority {
                default_priority, ..
            } => default_priority,
            Policy::FairShare | Policy::RoundRobin => NO_PRIORITY,
        };
        self.undescribed += 1;
        self.push(KnownJob {
            job: Job {
                priority,
                weight: 1.0,
                max_slots: None,
                submitted_at: request.requested_at,
                position: None,
                moved: false,
                workspace: None,
            },
            name: request.job_id.clone(),
            only_request: Some(request.allocation_id.clone()),
        })
    }

    /// Whether a job is described.
    pub(crate) fn knows(&self, id: &JobId) -> bool {
        self.numbers.contains_key(id)
    }

    /// Whether all jobs should be renumbered: most numbers are unused, or belong to jobs that may be described by now.
    pub(crate) fn needs_renumbering(&self) -> bool {
        self.removed > MOST_REMOVED.max(self.known.len() / 2) || self.undescribed > 0
    }

    /// The jobs that are described and not removed.
    pub(crate) fn into_described(self) -> impl Iterator<Item = (JobId, Job)> {
        let numbers = self.numbers;
        self.known
            .into_iter()
            .enumerate()
            .filter(move |(number, known)| numbers.get(&known.name) == Some(number))
            .map(|(_, known)| (known.name, known.job))
    }

    fn push(&mut self, known: KnownJob) -> usize {
        let number = self.known.len();
        self.known.push(known);
        self.added.push(number);
        number
    }

    /// Updates the views; returns whether the order of jobs that it had before has changed.
    pub(crate) fn apply_changes(
        &mut self,
        views: &mut Vec<JobView>,
        settings: &PoolSettings,
    ) -> bool {
        let changed = std::mem::take(&mut self.changed);
        let added = std::mem::take(&mut self.added);
        let moved = std::mem::take(&mut self.moved);
        for number in changed {
            if let Some(view) = views.get_mut(number) {
                let order = view.order;
                *view = JobView::of(&self.known[number].job, settings);
                view.order = order;
            }
        }
        if added.is_empty() && !moved {
            return false;
        }
        views.extend(
            self.known[views.len()..]
                .iter()
                .map(|k| JobView::of(&k.job, settings)),
        );
        let known = &self.known;
        if moved || added.len() > FEW {
            self.in_order.extend(added);
            let position = |number: &usize| known[*number].position(settings);
            self.in_order.sort_by(|a, b| position(a).cmp(&position(b)));
        } else {
            for number in added {
                let position = known[number].position(settings);
                let at = self
                    .in_order
                    .partition_point(|other| known[*other].position(settings) <= position);
                self.in_order.insert(at, number);
            }
        }
        let mut order = 0;
        let mut before: Option<JobPosition<'_>> = None;
        for &number in &self.in_order {
            let position = known[number].position(settings);
            if before.is_some_and(|before| before != position) {
                order += 1;
            }
            before = Some(position);
            views[number].order = order;
        }
        moved
    }
}

/// Shapes in the order in which they first appear, each with a number that it keeps.
#[derive(Default)]
pub(crate) struct Shapes {
    numbers: HashMap<(u32, bool), usize>,
    numbers_with_exclusions: BTreeMap<(u32, bool, BTreeSet<PlaceId>, Option<ByAddress>), usize>,
}

/// Misfits that requests share, compared by their address: there may be thousands of places in them. It is kept while it
/// is a key, so that no other ones have its address.
struct ByAddress(Arc<Misfits>);

impl ByAddress {
    fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}

impl PartialEq for ByAddress {
    fn eq(&self, other: &Self) -> bool {
        self.address() == other.address()
    }
}

impl Eq for ByAddress {}

impl PartialOrd for ByAddress {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByAddress {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.address().cmp(&other.address())
    }
}

impl Shapes {
    /// The number of a request's shape; a new one is added to `list`.
    pub(crate) fn of(
        &mut self,
        request: &Request,
        ranks: &HashMap<PlaceId, PlaceRank>,
        list: &mut Vec<ShapeView>,
    ) -> usize {
        // A zero-slot task is one container, whatever the flag is.
        let single_place = request.single_place || request.slots <= 1;
        let next = list.len();
        let number = if request.excluded_places.is_empty() && request.misfits.is_none() {
            *self
                .numbers
                .entry((request.slots, single_place))
                .or_insert(next)
        } else {
            let misfits = request.misfits.clone().map(ByAddress);
            let excluded = request.excluded_places.clone();
            let key = (request.slots, single_place, excluded, misfits);
            *self.numbers_with_exclusions.entry(key).or_insert(next)
        };
        if number == next {
            let misfits = request.misfits.iter();
            let misfits = misfits.flat_map(|misfits| misfits.never.iter().chain(&misfits.now));
            let mut excluded: Vec<PlaceRank> = (request.excluded_places.iter())
                .chain(misfits)
                .filter_map(|place| ranks.get(place).copied())
                .collect();
            excluded.sort_unstable();
            excluded.dedup();
            list.push(ShapeView::new(
                Shape {
                    units: request.slots.max(1),
                    single_place,
                    excluded,
                },
                request,
            ));
        }
        number
    }
}
