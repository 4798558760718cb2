//! What the sentences of reasons contain.

mod common;

use common::{World, pool, prio};
use det_scheduler::SlotState;

/// The reason of the only waiting request.
fn reason(world: &World) -> String {
    let mut waiting = world.decide().waiting;
    assert_eq!(waiting.len(), 1);
    waiting.remove(0).1.to_string()
}

/// Others hold all slots of these places.
fn taken_by_others(places: &[&str]) -> World {
    pool().places(&[8, 8]).then(|world| {
        for place in places {
            for slot in &mut world.place_mut(place).slots {
                slot.state = SlotState::Foreign;
            }
        }
    })
}

#[test]
fn where_others_hold_all_slots_their_slots_and_places_are_named() {
    let world = taken_by_others(&["a0", "a1"]).queued("t", 1, &prio(42));
    assert_eq!(
        reason(&world),
        "needs 1 slot, and places in service have 0; others, such as pods that this master did not make, hold 16 slots on \
         2 places: it starts when enough of them end"
    );
    let mut world = taken_by_others(&["a0"]).queued("t", 2, &prio(42));
    for slot in &mut world.place_mut("a1").slots {
        slot.state = SlotState::Disabled(None);
    }
    assert_eq!(
        reason(&world),
        "needs 2 slots, and places in service have 0; others, such as pods that this master did not make, hold 8 slots on \
         1 place; 0 draining, 0 disabled and 0 disconnected in this pool, and 8 slots out of service on the others: enable \
         places or slots, or wait for them to come back"
    );
}

#[test]
fn a_request_starts_when_others_give_slots_back() {
    let mut world = taken_by_others(&["a0", "a1"]).queued("t", 4, &prio(42));
    world.step();
    assert!(!world.is_running("t"));
    for slot in world.place_mut("a1").slots.iter_mut().take(4) {
        slot.state = SlotState::Free;
    }
    world.step();
    assert!(world.is_running("t"));
}
