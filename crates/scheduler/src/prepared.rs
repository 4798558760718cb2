//! The input, put into order: agents by id, jobs and requests by the queue's rule, sizes into shapes.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use det_ids::{AgentId, AllocationId, JobId, Micros, SlotId};

use crate::model::{
    AgentSnapshot, AgentState, Job, Policy, PoolSnapshot, Queue, Request, RunningAllocation,
    SlotState,
};
use crate::plan::Reservation;
use crate::space::{AgentRank, Cell, Score, Shape, Space};

/// Priority of jobs that the queue does not know, under rules that do not look at it.
const NO_PRIORITY: u8 = 42;

/// Everything the rules look at, by number instead of by name.
pub(crate) struct Prepared<'a> {
    pub(crate) pool: &'a PoolSnapshot,
    /// In id order; the place here is the agent's rank.
    pub(crate) agents: Vec<AgentView<'a>>,
    pub(crate) jobs: Vec<JobView>,
    /// In queue order.
    pub(crate) requests: Vec<Waiting<'a>>,
    /// In queue order.
    pub(crate) running: Vec<Active<'a>>,
    pub(crate) shapes: Vec<ShapeView<'a>>,
}

/// An agent and its slots in order.
pub(crate) struct AgentView<'a> {
    pub(crate) agent: &'a AgentSnapshot,
    pub(crate) slots: Vec<SlotView>,
    /// Zero-slot allocations known to be here.
    aux_known: u32,
}

/// A slot.
pub(crate) struct SlotView {
    pub(crate) id: SlotId,
    pub(crate) service: Service,
    pub(crate) busy: bool,
    /// Whether a running allocation has been credited with it.
    claimed: bool,
}

/// Whether a slot is given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    /// Once nobody has it.
    Offered,
    /// Not any more.
    Draining,
    /// Not at all; what has it is about to be killed.
    Disabled,
}

/// A job.
pub(crate) struct JobView {
    pub(crate) priority: u8,
    /// Above 0 and finite.
    pub(crate) weight: f64,
    pub(crate) max_slots: Option<u32>,
    pub(crate) submitted_at: Micros,
    pub(crate) moved: bool,
    /// Place in the queue. Under the priority rule equal for jobs that it does not tell apart; under the others, which
    /// go from job to job, every job has its own, and the requests of a job stand together.
    pub(crate) order: u32,
}

/// A waiting request.
pub(crate) struct Waiting<'a> {
    pub(crate) request: &'a Request,
    pub(crate) job: usize,
    pub(crate) shape: usize,
}

/// A running allocation.
pub(crate) struct Active<'a> {
    pub(crate) running: &'a RunningAllocation,
    pub(crate) job: usize,
    pub(crate) parts: Vec<Part>,
    /// Slots it holds; 0 for zero-slot allocations.
    pub(crate) slots: u32,
    /// Whether it is on an agent or a slot that is out of service, and so is about to be killed.
    pub(crate) dying: bool,
}

impl SlotView {
    fn is_offered(&self) -> bool {
        self.service == Service::Offered
    }
}

impl Active<'_> {
    pub(crate) fn zero_slots(&self) -> bool {
        self.running.request.slots == 0
    }
}

/// What an allocation holds on one agent, in the units of its run: slots, or auxiliary places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) agent: AgentRank,
    /// Units that can be given out again when it ends.
    pub(crate) usable: u32,
    /// All units it holds.
    pub(crate) held: u32,
}

/// A shape and where it came from.
pub(crate) struct ShapeView<'a> {
    pub(crate) shape: Shape,
    /// Slots asked for, 0 for zero-slot requests (whose shape has one unit).
    pub(crate) slots: u32,
    pub(crate) excluded: &'a BTreeSet<AgentId>,
}

impl<'a> Prepared<'a> {
    pub(crate) fn new(pool: &'a PoolSnapshot, queue: &'a Queue) -> Self {
        let mut agents: Vec<AgentView<'a>> = pool.agents.iter().map(AgentView::new).collect();
        agents.sort_by(|a, b| a.agent.id.cmp(&b.agent.id));
        let ranks: HashMap<&AgentId, AgentRank> = agents
            .iter()
            .zip(0..)
            .map(|(view, rank)| (&view.agent.id, rank))
            .collect();
        let mut jobs = Jobs::new(queue, pool.settings.policy);
        let mut shapes = Shapes::default();
        let mut requests: Vec<Waiting<'a>> = queue
            .requests
            .iter()
            .map(|request| Waiting {
                request,
                job: jobs.of(request),
                shape: shapes.of(request, &ranks),
            })
            .collect();
        let mut running: Vec<Active<'a>> = pool
            .running
            .iter()
            .map(|running| Active {
                running,
                job: jobs.of(&running.request),
                parts: Vec::new(),
                slots: 0,
                dying: false,
            })
            .collect();
        let jobs = jobs.ordered();
        let key = |request: &'a Request, job: usize| {
            (
                jobs[job].order,
                request.requested_at,
                &request.allocation_id,
            )
        };
        requests.sort_by(|a, b| key(a.request, a.job).cmp(&key(b.request, b.job)));
        running.sort_by(|a, b| key(&a.running.request, a.job).cmp(&key(&b.running.request, b.job)));
        for active in &mut running {
            claim(active, &mut agents, &ranks);
        }
        Self {
            pool,
            agents,
            jobs,
            requests,
            running,
            shapes: shapes.list,
        }
    }

    /// Slots of all agents as room.
    pub(crate) fn slot_space(&self) -> Space {
        self.space(AgentView::slot_cell)
    }

    /// Auxiliary places of all agents as room. On an agent whose slots are in use, the slots decide the score;
    /// `slots` is the room that slot requests left.
    pub(crate) fn aux_space(&self, slots: &Space) -> Space {
        let mut rank = 0;
        self.space(|view| {
            let fixed_score = self.aux_score(slots.cell(rank));
            rank += 1;
            let busy = view.agent.aux_used.max(view.aux_known);
            Cell {
                open: view.open(),
                capacity: view.agent.aux_limit,
                busy,
                used: busy,
                total: view.agent.aux_limit,
                fixed_score,
            }
        })
    }

    /// The score of an agent for zero-slot requests, where its slots decide it.
    pub(crate) fn aux_score(&self, slots: &Cell) -> Option<Score> {
        let fitting = self.pool.settings.fitting;
        (slots.used > 0).then(|| Score::new(fitting, slots.free(), slots.total))
    }

    /// Free slots of each agent, lowest number first.
    pub(crate) fn free_slots(&self) -> Vec<std::vec::IntoIter<SlotId>> {
        self.agents
            .iter()
            .map(|view| {
                let free = view
                    .slots
                    .iter()
                    .filter(|slot| slot.is_offered() && !slot.busy);
                free.map(|slot| slot.id).collect::<Vec<_>>().into_iter()
            })
            .collect()
    }

    /// The agents that a request has reserved, by name.
    pub(crate) fn reservation(&self, request: usize, agents: &[AgentRank]) -> Reservation {
        Reservation {
            allocation_id: self.requests[request].request.allocation_id.clone(),
            agents: agents
                .iter()
                .map(|agent| self.agents[*agent as usize].agent.id.clone())
                .collect(),
        }
    }

    fn space(&self, cell: impl FnMut(&AgentView<'a>) -> Cell) -> Space {
        let settings = &self.pool.settings;
        let cells = self.agents.iter().map(cell).collect();
        Space::new(settings.fitting, settings.allow_heterogeneous_fits, cells)
    }
}

impl<'a> AgentView<'a> {
    fn new(agent: &'a AgentSnapshot) -> Self {
        let mut slots: Vec<SlotView> = agent
            .slots
            .iter()
            .map(|slot| {
                let (service, busy) = match &slot.state {
                    SlotState::Free => (Service::Offered, false),
                    SlotState::Held(_) => (Service::Offered, true),
                    SlotState::Draining(holder) => (Service::Draining, holder.is_some()),
                    SlotState::Disabled(holder) => (Service::Disabled, holder.is_some()),
                };
                SlotView {
                    id: slot.id,
                    service,
                    busy,
                    claimed: false,
                }
            })
            .collect();
        slots.sort_by_key(|slot| slot.id);
        Self {
            agent,
            slots,
            aux_known: 0,
        }
    }

    fn open(&self) -> bool {
        self.agent.state == AgentState::Enabled
    }

    fn slot_cell(&self) -> Cell {
        let count = |wanted: fn(&SlotView) -> bool| {
            let slots = self.slots.iter().filter(|slot| wanted(slot));
            u32::try_from(slots.count()).unwrap_or(u32::MAX)
        };
        Cell {
            open: self.open(),
            capacity: count(SlotView::is_offered),
            busy: count(|slot| slot.is_offered() && slot.busy),
            used: count(|slot| slot.busy),
            total: count(|_| true),
            fixed_score: None,
        }
    }
}

/// Credits an allocation with what it holds. Agents and slots that the pool does not have are passed over, and a slot
/// named by two allocations counts for the first.
fn claim(
    active: &mut Active<'_>,
    agents: &mut [AgentView<'_>],
    ranks: &HashMap<&AgentId, AgentRank>,
) {
    let zero_slots = active.zero_slots();
    for (agent_id, slot_ids) in &active.running.placement {
        let Some(&rank) = ranks.get(agent_id) else {
            continue;
        };
        let view = &mut agents[rank as usize];
        active.dying |= view.agent.state == AgentState::Disabled;
        let mut part = Part {
            agent: rank,
            usable: 0,
            held: 0,
        };
        if zero_slots {
            view.aux_known = view.aux_known.saturating_add(1);
            part.usable = 1;
            part.held = 1;
        }
        for slot_id in slot_ids {
            let Ok(at) = view.slots.binary_search_by_key(slot_id, |slot| slot.id) else {
                continue;
            };
            let slot = &mut view.slots[at];
            if !slot.claimed && !zero_slots {
                slot.claimed = true;
                slot.busy = true;
                active.dying |= slot.service == Service::Disabled;
                part.held += 1;
                part.usable += u32::from(slot.is_offered());
            }
        }
        if part.held > 0 {
            active.parts.push(part);
        }
    }
    if !zero_slots {
        active.slots = active.parts.iter().map(|part| part.held).sum();
    }
}

/// Jobs as they are met.
struct Jobs<'a> {
    numbers: HashMap<&'a JobId, usize>,
    list: Vec<KnownJob<'a>>,
    policy: Policy,
}

struct KnownJob<'a> {
    job: Job,
    name: &'a JobId,
    /// The one request of a job that the queue does not know.
    only: Option<&'a AllocationId>,
}

impl<'a> Jobs<'a> {
    fn new(queue: &'a Queue, policy: Policy) -> Self {
        let mut numbers = HashMap::with_capacity(queue.jobs.len());
        let mut list = Vec::with_capacity(queue.jobs.len());
        for (id, job) in &queue.jobs {
            numbers.insert(id, list.len());
            list.push(KnownJob {
                job: job.clone(),
                name: id,
                only: None,
            });
        }
        Self {
            numbers,
            list,
            policy,
        }
    }

    /// The job of a request. One that the queue does not know is a job of its own: without a cap nothing is shared.
    fn of(&mut self, request: &'a Request) -> usize {
        if let Some(number) = self.numbers.get(&request.job_id) {
            return *number;
        }
        let priority = match self.policy {
            Policy::Priority {
                default_priority, ..
            } => default_priority,
            Policy::FairShare | Policy::RoundRobin => NO_PRIORITY,
        };
        self.list.push(KnownJob {
            job: Job {
                priority,
                weight: 1.0,
                max_slots: None,
                submitted_at: request.requested_at,
                position: None,
                moved: false,
            },
            name: &request.job_id,
            only: Some(&request.allocation_id),
        });
        self.list.len() - 1
    }

    fn ordered(self) -> Vec<JobView> {
        let by_priority = matches!(self.policy, Policy::Priority { .. });
        // Rules that go from job to job need every job to have a place of its own, wherever it was handed in.
        let key = |known: &KnownJob<'a>| {
            let job = &known.job;
            (
                if by_priority { job.priority } else { 0 },
                job.position.unwrap_or(job.submitted_at.0),
                job.submitted_at,
                (!by_priority).then_some((known.name, known.only)),
            )
        };
        let mut by_order: Vec<usize> = (0..self.list.len()).collect();
        by_order.sort_by(|a, b| key(&self.list[*a]).cmp(&key(&self.list[*b])));
        let mut orders = vec![0; self.list.len()];
        let mut order = 0;
        for pair in by_order.windows(2) {
            if key(&self.list[pair[0]]) != key(&self.list[pair[1]]) {
                order += 1;
            }
            orders[pair[1]] = order;
        }
        self.list
            .into_iter()
            .zip(orders)
            .map(|(KnownJob { job, .. }, order)| JobView {
                priority: job.priority,
                weight: if job.weight.is_finite() && job.weight > 0.0 {
                    job.weight
                } else {
                    1.0
                },
                max_slots: job.max_slots,
                submitted_at: job.submitted_at,
                moved: job.moved,
                order,
            })
            .collect()
    }
}

/// Shapes as they are met.
#[derive(Default)]
struct Shapes<'a> {
    numbers: BTreeMap<(u32, bool), usize>,
    numbers_with_exclusions: BTreeMap<(u32, bool, &'a BTreeSet<AgentId>), usize>,
    list: Vec<ShapeView<'a>>,
}

impl<'a> Shapes<'a> {
    fn of(&mut self, request: &'a Request, ranks: &HashMap<&AgentId, AgentRank>) -> usize {
        // A zero-slot task is one container, wherever the flag stands.
        let single_agent = request.single_agent || request.slots <= 1;
        let next = self.list.len();
        let number = if request.excluded_agents.is_empty() {
            *self
                .numbers
                .entry((request.slots, single_agent))
                .or_insert(next)
        } else {
            let key = (request.slots, single_agent, &request.excluded_agents);
            *self.numbers_with_exclusions.entry(key).or_insert(next)
        };
        if number == next {
            let mut excluded: Vec<AgentRank> = request
                .excluded_agents
                .iter()
                .filter_map(|agent| ranks.get(agent).copied())
                .collect();
            excluded.sort_unstable();
            self.list.push(ShapeView {
                shape: Shape {
                    units: request.slots.max(1),
                    single_agent,
                    excluded,
                },
                slots: request.slots,
                excluded: &request.excluded_agents,
            });
        }
        number
    }
}
