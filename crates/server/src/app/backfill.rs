//! Which running jobs fill gaps that more important ones cannot use: `SCHEDULED_BACKFILLED` of the job queue
//! (`docs/contract/scheduling.md`, "Queue states").

use std::collections::BTreeMap;

use det_ids::PriorityOrder;
use det_scheduler::WaitKind;
use det_store::allocations::AllocationRow;

/// Reasons of requests that less important work may pass, in a pool that preempts: they wait for capacity.
const WAITING_FOR_SLOTS: [WaitKind; 4] = [
    WaitKind::NotEnoughFreeSlots,
    WaitKind::AuxFull,
    WaitKind::WaitingForPreemption,
    WaitKind::ReservedFor,
];

/// Requests of one pool that wait for capacity.
#[derive(Debug)]
pub(crate) struct HeldUp {
    order: PriorityOrder,
    /// By kind (with slots or without) and rank of the priority the time of the first.
    since: BTreeMap<(bool, i64), i64>,
}

impl HeldUp {
    /// The state of a pool with this order of priorities in which nothing waits.
    pub(crate) fn new(order: PriorityOrder) -> Self {
        let since = BTreeMap::new();
        Self { order, since }
    }

    /// Adds an allocation of a job.
    pub(crate) fn note(&mut self, priority: u8, allocation: &AllocationRow) {
        if allocation.placed_at.is_none() && waits_for_slots(allocation) {
            let since = self
                .since
                .entry((allocation.slots == 0, self.order.rank(priority)))
                .or_insert(allocation.requested_at);
            *since = allocation.requested_at.min(*since);
        }
    }

    /// Whether an allocation of a job started while a more important request waited for capacity, as it still does.
    pub(crate) fn is_passed_by(&self, priority: u8, allocation: &AllocationRow) -> bool {
        let zero_slots = allocation.slots == 0;
        allocation.placed_at.is_some_and(|placed| {
            self.since
                .range((zero_slots, i64::MIN)..(zero_slots, self.order.rank(priority)))
                .any(|(_, since)| *since < placed)
        })
    }
}

fn waits_for_slots(allocation: &AllocationRow) -> bool {
    let reason = allocation.wait_reason.as_ref();
    reason.is_some_and(|reason| WAITING_FOR_SLOTS.contains(&reason.kind))
}

#[cfg(test)]
mod tests {
    use det_ids::RunId;
    use det_lifecycle::allocation::AllocationState;
    use det_scheduler::WaitExplanation;
    use det_taskspec::TaskKind;
    use serde_json::Map;

    use super::*;

    fn allocation(
        slots: i64,
        requested_at: i64,
        placed_at: Option<i64>,
        kind: Option<WaitKind>,
    ) -> AllocationRow {
        AllocationRow {
            id: "1.1".into(),
            task_id: "1".into(),
            kind: TaskKind::Trial,
            job_id: "j".into(),
            experiment_id: None,
            trial_id: None,
            run_id: RunId::FIRST,
            state: AllocationState::Pending,
            resource_pool: "default".into(),
            slots,
            single_place: false,
            preemptible: true,
            requested_at,
            not_before: None,
            placed_at,
            started_at: None,
            ended_at: None,
            preempt_deadline: None,
            preempted_for: None,
            port_step: None,
            service_port: None,
            namespace: None,
            exit_reason: None,
            status_code: None,
            excluded_places: None,
            wait_reason: kind.map(|kind| WaitExplanation {
                kind,
                message: "…".to_owned(),
                details: Map::new(),
            }),
            wait_since: None,
        }
    }

    #[test]
    fn work_that_starts_past_a_more_important_request_is_backfill() {
        let mut held_up = HeldUp::new(PriorityOrder::LowerFirst);
        held_up.note(
            10,
            &allocation(8, 100, None, Some(WaitKind::NotEnoughFreeSlots)),
        );
        held_up.note(5, &allocation(8, 50, None, Some(WaitKind::OverJobCap)));
        let started = |at| allocation(2, 10, Some(at), None);
        assert!(held_up.is_passed_by(20, &started(200)));
        // It ran before, is as important, or is of the other kind.
        assert!(!held_up.is_passed_by(20, &started(90)));
        assert!(!held_up.is_passed_by(10, &started(200)));
        assert!(!held_up.is_passed_by(20, &allocation(0, 10, Some(200), None)));
        // A request that its own cap holds back is passed by no other, and what waits passes no other.
        assert!(!held_up.is_passed_by(7, &started(200)));
        assert!(!held_up.is_passed_by(20, &allocation(2, 10, None, Some(WaitKind::ReservedFor))));
    }

    #[test]
    fn where_the_higher_number_goes_first_lower_ones_pass() {
        let mut held_up = HeldUp::new(PriorityOrder::HigherFirst);
        held_up.note(
            50,
            &allocation(8, 100, None, Some(WaitKind::NotEnoughFreeSlots)),
        );
        let started = allocation(2, 10, Some(200), None);
        assert!(held_up.is_passed_by(40, &started));
        assert!(!held_up.is_passed_by(50, &started));
        assert!(!held_up.is_passed_by(60, &started));
    }
}
