//! When a waiting request may start, by playing the planner forward over the ends of running work that can be foreseen.

use std::collections::{BTreeMap, BTreeSet};

use det_ids::{AgentId, AllocationId, Micros, SlotId};

use crate::model::{PoolSnapshot, Progress, Queue, RunningAllocation, SlotState};
use crate::plan::{Placement, Plan, plan};

/// Plans that one estimate makes at most.
const MOST_PLANS: usize = 64;

/// When a request may start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Estimate {
    /// Then, if what runs ends as foreseen, work that is asked to stop does so at once, and nothing else is submitted.
    At(Micros),
    /// The allocations whose end nobody can foresee hold what it waits for.
    Unforeseeable(Vec<AllocationId>),
    /// It is too far off: too much has to end before.
    TooFar,
}

/// Estimates when the request `target` starts. `ends` has the foreseen end of running allocations, as far as it is
/// known; what starts meanwhile ends never.
pub fn estimate(
    pool: &PoolSnapshot,
    queue: &Queue,
    now: Micros,
    ends: &BTreeMap<AllocationId, Micros>,
    target: &AllocationId,
) -> Estimate {
    let mut world = World {
        pool: pool.clone(),
        queue: queue.clone(),
        now,
    };
    // What stops already is gone first.
    world.release_stopping();
    for _ in 0..MOST_PLANS {
        let plan = plan(&world.pool, &world.queue, world.now);
        if plan
            .place
            .iter()
            .any(|placed| placed.allocation_id == *target)
        {
            return Estimate::At(world.now);
        }
        let acted = world.apply(plan);
        if acted {
            continue;
        }
        let next = world
            .pool
            .running
            .iter()
            .filter_map(|running| {
                let id = &running.request.allocation_id;
                Some((*ends.get(id)?, id.clone()))
            })
            .min();
        let Some((end, id)) = next else {
            let held = world.pool.running.iter();
            return Estimate::Unforeseeable(
                held.map(|running| running.request.allocation_id.clone())
                    .collect(),
            );
        };
        world.now = world.now.max(end);
        world.release(&BTreeSet::from([id]));
    }
    Estimate::TooFar
}

/// A pool as it changes.
struct World {
    pool: PoolSnapshot,
    queue: Queue,
    now: Micros,
}

impl World {
    /// Does what a plan says; whether that was anything.
    fn apply(&mut self, plan: Plan) -> bool {
        let acted = !plan.place.is_empty() || !plan.preempt.is_empty();
        for placed in plan.place {
            self.place(placed);
        }
        let stopped: BTreeSet<AllocationId> = plan
            .preempt
            .into_iter()
            .map(|preemption| preemption.allocation_id)
            .collect();
        // They will ask again.
        let again = self.pool.running.iter().filter(|running| {
            stopped.contains(&running.request.allocation_id) && running.request.preemptible
        });
        self.queue
            .requests
            .extend(again.map(|running| running.request.clone()));
        self.release(&stopped);
        acted
    }

    fn place(&mut self, placed: Placement) {
        let id = placed.allocation_id;
        let Some(at) = self
            .queue
            .requests
            .iter()
            .position(|request| request.allocation_id == id)
        else {
            return;
        };
        let request = self.queue.requests.swap_remove(at);
        for (agent, slots) in &placed.parts {
            self.set(agent, slots, &SlotState::Held(id.clone()));
            if slots.is_empty() {
                self.count_aux(agent, 1);
            }
        }
        self.pool.running.push(RunningAllocation {
            request,
            placement: placed.parts,
            started_at: self.now,
            progress: Progress::Active,
        });
    }

    fn release_stopping(&mut self) {
        let stopping = self
            .pool
            .running
            .iter()
            .filter(|running| running.progress != Progress::Active)
            .map(|running| running.request.allocation_id.clone())
            .collect();
        self.release(&stopping);
    }

    fn release(&mut self, ids: &BTreeSet<AllocationId>) {
        let (gone, stays) = std::mem::take(&mut self.pool.running)
            .into_iter()
            .partition(|running: &RunningAllocation| ids.contains(&running.request.allocation_id));
        self.pool.running = stays;
        for running in gone {
            for (agent, slots) in &running.placement {
                self.set(agent, slots, &SlotState::Free);
                if slots.is_empty() {
                    self.count_aux(agent, -1);
                }
            }
        }
    }

    /// Slots that are out of service stay so, with nobody on them.
    fn set(&mut self, agent: &AgentId, slots: &[SlotId], state: &SlotState) {
        let agent = self.pool.agents.iter_mut().find(|a| a.id == *agent);
        for slot in agent.into_iter().flat_map(|agent| &mut agent.slots) {
            if !slots.contains(&slot.id) {
                continue;
            }
            match &mut slot.state {
                SlotState::Draining(holder) | SlotState::Disabled(holder) => *holder = None,
                offered => *offered = state.clone(),
            }
        }
    }

    fn count_aux(&mut self, agent: &AgentId, change: i32) {
        let agent = self.pool.agents.iter_mut().find(|a| a.id == *agent);
        if let Some(agent) = agent {
            agent.aux_used = agent.aux_used.saturating_add_signed(change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{AgentSnapshot, AgentState, Request, SlotSnapshot};
    use det_ids::{JobId, TaskId};

    const HOUR: i64 = 3_600_000_000;

    fn request(id: &str, slots: u32, at: i64) -> Request {
        Request {
            allocation_id: AllocationId(id.into()),
            task_id: TaskId(id.into()),
            job_id: JobId(id.into()),
            slots,
            single_agent: false,
            preemptible: true,
            excluded_agents: BTreeSet::new(),
            requested_at: Micros(at),
        }
    }

    /// One agent of four slots on which `a` has two, `b` one and `c` one.
    fn full() -> PoolSnapshot {
        let holders = ["a", "a", "b", "c"];
        let slots = holders.iter().zip(0..).map(|(holder, id)| SlotSnapshot {
            id: SlotId(id),
            state: SlotState::Held(AllocationId((*holder).into())),
        });
        let running = |id: &str, slots: &[u32]| RunningAllocation {
            request: request(id, u32::try_from(slots.len()).unwrap(), 0),
            placement: vec![(
                AgentId("x".into()),
                slots.iter().copied().map(SlotId).collect(),
            )],
            started_at: Micros(0),
            progress: Progress::Active,
        };
        PoolSnapshot {
            agents: vec![AgentSnapshot {
                id: AgentId("x".into()),
                state: AgentState::Enabled,
                slots: slots.collect(),
                aux_limit: 4,
                aux_used: 0,
            }],
            running: vec![
                running("a", &[0, 1]),
                running("b", &[2]),
                running("c", &[3]),
            ],
            ..PoolSnapshot::default()
        }
    }

    fn ends(known: &[(&str, i64)]) -> BTreeMap<AllocationId, Micros> {
        let known = known.iter();
        known
            .map(|(id, at)| (AllocationId((*id).into()), Micros(*at)))
            .collect()
    }

    fn of(queue: &[Request], known: &[(&str, i64)], target: &str) -> Estimate {
        let queue = Queue {
            requests: queue.to_vec(),
            ..Queue::default()
        };
        estimate(
            &full(),
            &queue,
            Micros(HOUR),
            &ends(known),
            &AllocationId(target.into()),
        )
    }

    #[test]
    fn a_request_starts_when_enough_has_ended() {
        let queue = [request("two", 2, 10)];
        let known = [("b", 2 * HOUR), ("c", 3 * HOUR), ("a", 9 * HOUR)];
        assert_eq!(of(&queue, &known, "two"), Estimate::At(Micros(3 * HOUR)));
    }

    #[test]
    fn those_before_it_start_first() {
        let queue = [request("first", 2, 10), request("then", 2, 20)];
        let known = [("b", 2 * HOUR), ("c", 3 * HOUR), ("a", 9 * HOUR)];
        assert_eq!(of(&queue, &known, "then"), Estimate::At(Micros(9 * HOUR)));
    }

    #[test]
    fn an_end_that_is_overdue_is_now() {
        let queue = [request("one", 1, 10)];
        assert_eq!(of(&queue, &[("b", 5)], "one"), Estimate::At(Micros(HOUR)));
    }

    #[test]
    fn what_nobody_can_foresee_is_named() {
        let queue = [request("all", 4, 10)];
        let known = [("b", 2 * HOUR), ("c", 3 * HOUR)];
        let left = Estimate::Unforeseeable(vec![AllocationId("a".into())]);
        assert_eq!(of(&queue, &known, "all"), left);
    }
}
