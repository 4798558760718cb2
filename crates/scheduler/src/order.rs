//! The queue's order of jobs, and requests of one shape as one.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use det_ids::{AgentId, AllocationId, JobId, Micros};

use crate::model::{Job, Policy, Request};
use crate::prepared::{JobView, ShapeView};
use crate::space::{AgentRank, Shape};

/// Priority of jobs that the queue does not know, under rules that do not look at it.
const NO_PRIORITY: u8 = 42;
/// More new jobs than this are sorted in together instead of one by one.
const FEW: usize = 16;
/// Jobs that are gone keep their numbers until there are more of them than others, and more than this.
const MOST_GONE: usize = 64;

/// Jobs as they are met, each with a number that it keeps.
#[derive(Default)]
pub(crate) struct Jobs {
    numbers: HashMap<JobId, usize>,
    known: Vec<Known>,
    /// Numbers in queue order.
    in_order: Vec<usize>,
    fresh: Vec<usize>,
    /// Jobs whose settings have changed.
    changed: Vec<usize>,
    /// Whether one of these stands elsewhere now.
    moved: bool,
    gone: usize,
    /// Jobs that nobody has described.
    undescribed: usize,
}

struct Known {
    job: Job,
    name: JobId,
    /// The one request of a job that nobody has described.
    only: Option<AllocationId>,
}

/// Where a job stands among others. Rules that go from job to job need every job to have a place of its own, wherever it
/// was handed in.
type Place<'a> = (
    u8,
    i64,
    Micros,
    Option<(&'a JobId, &'a Option<AllocationId>)>,
);

impl Known {
    fn place(&self, policy: Policy) -> Place<'_> {
        let by_priority = matches!(policy, Policy::Priority { .. });
        (
            if by_priority { self.job.priority } else { 0 },
            self.job.position.unwrap_or(self.job.submitted_at.0),
            self.job.submitted_at,
            (!by_priority).then_some((&self.name, &self.only)),
        )
    }
}

impl Jobs {
    /// Describes a job, or describes it anew.
    pub(crate) fn put(&mut self, id: &JobId, job: Job, policy: Policy) {
        let Some(&number) = self.numbers.get(id) else {
            let number = self.push(Known {
                job,
                name: id.clone(),
                only: None,
            });
            self.numbers.insert(id.clone(), number);
            return;
        };
        let known = &mut self.known[number];
        if known.job == job {
            return;
        }
        let mut now = Known {
            job,
            name: known.name.clone(),
            only: None,
        };
        std::mem::swap(known, &mut now);
        self.moved |= now.place(policy) != known.place(policy);
        self.changed.push(number);
    }

    /// Nothing of a job waits or runs any more.
    pub(crate) fn remove(&mut self, id: &JobId) {
        self.gone += usize::from(self.numbers.remove(id).is_some());
    }

    /// The job of a request. One that nobody has described is a job of its own: without a cap nothing is shared.
    pub(crate) fn of(&mut self, request: &Request, policy: Policy) -> usize {
        if let Some(number) = self.numbers.get(&request.job_id) {
            return *number;
        }
        let priority = match policy {
            Policy::Priority {
                default_priority, ..
            } => default_priority,
            Policy::FairShare | Policy::RoundRobin => NO_PRIORITY,
        };
        self.undescribed += 1;
        self.push(Known {
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
            only: Some(request.allocation_id.clone()),
        })
    }

    /// Whether a job is described.
    pub(crate) fn knows(&self, id: &JobId) -> bool {
        self.numbers.contains_key(id)
    }

    /// Whether the numbers should be given anew: most belong to nobody, or to jobs that may be described by now.
    pub(crate) fn is_worn(&self) -> bool {
        self.gone > MOST_GONE.max(self.known.len() / 2) || self.undescribed > 0
    }

    /// The jobs that are described and not gone.
    pub(crate) fn into_described(self) -> impl Iterator<Item = (JobId, Job)> {
        let numbers = self.numbers;
        self.known
            .into_iter()
            .enumerate()
            .filter(move |(number, known)| numbers.get(&known.name) == Some(number))
            .map(|(_, known)| (known.name, known.job))
    }

    fn push(&mut self, known: Known) -> usize {
        let number = self.known.len();
        self.known.push(known);
        self.fresh.push(number);
        number
    }

    /// Brings the views up to date; whether jobs that were there before stand in another order now.
    pub(crate) fn settle(&mut self, views: &mut Vec<JobView>, policy: Policy) -> bool {
        let changed = std::mem::take(&mut self.changed);
        let fresh = std::mem::take(&mut self.fresh);
        let moved = std::mem::take(&mut self.moved);
        for number in changed {
            if let Some(view) = views.get_mut(number) {
                let order = view.order;
                *view = JobView::of(&self.known[number].job);
                view.order = order;
            }
        }
        if fresh.is_empty() && !moved {
            return false;
        }
        views.extend(
            self.known[views.len()..]
                .iter()
                .map(|k| JobView::of(&k.job)),
        );
        let known = &self.known;
        if moved || fresh.len() > FEW {
            self.in_order.extend(fresh);
            let place = |number: &usize| known[*number].place(policy);
            self.in_order.sort_by(|a, b| place(a).cmp(&place(b)));
        } else {
            for number in fresh {
                let place = known[number].place(policy);
                let at = self
                    .in_order
                    .partition_point(|other| known[*other].place(policy) <= place);
                self.in_order.insert(at, number);
            }
        }
        let mut order = 0;
        let mut before: Option<Place<'_>> = None;
        for &number in &self.in_order {
            let place = known[number].place(policy);
            if before.is_some_and(|before| before != place) {
                order += 1;
            }
            before = Some(place);
            views[number].order = order;
        }
        moved
    }
}

/// Shapes as they are met, each with a number that it keeps.
#[derive(Default)]
pub(crate) struct Shapes {
    numbers: HashMap<(u32, bool), usize>,
    numbers_with_exclusions: BTreeMap<(u32, bool, BTreeSet<AgentId>), usize>,
}

impl Shapes {
    /// The number of a request's shape; a new one is added to `list`.
    pub(crate) fn of(
        &mut self,
        request: &Request,
        ranks: &HashMap<AgentId, AgentRank>,
        list: &mut Vec<ShapeView>,
    ) -> usize {
        // A zero-slot task is one container, wherever the flag stands.
        let single_agent = request.single_agent || request.slots <= 1;
        let next = list.len();
        let number = if request.excluded_agents.is_empty() {
            *self
                .numbers
                .entry((request.slots, single_agent))
                .or_insert(next)
        } else {
            let key = (request.slots, single_agent, request.excluded_agents.clone());
            *self.numbers_with_exclusions.entry(key).or_insert(next)
        };
        if number == next {
            let mut excluded: Vec<AgentRank> = request
                .excluded_agents
                .iter()
                .filter_map(|agent| ranks.get(agent).copied())
                .collect();
            excluded.sort_unstable();
            list.push(ShapeView::new(
                Shape {
                    units: request.slots.max(1),
                    single_agent,
                    excluded,
                },
                request.slots,
                request.excluded_agents.clone(),
            ));
        }
        number
    }
}
