//! Places that leave, come back, are given up, and are taken out of service.

use det_config::hyperparameters::SearchMethod;
use det_ids::{Micros, SlotId};
use det_lifecycle::allocation::AllocationState;
use det_lifecycle::container::DesiredState;
use det_lifecycle::object::ObjectKind;
use det_lifecycle::record::{ActorName, EventKind};
use det_orchestrator::{
    Absence, Cause, Core, Course, Due, Effect, Event, PassDecision, Place, Refusal, Topic,
};
use det_scheduler::{
    PlaceSnapshot, PoolSettings, Progress, Request, Service, Services, WaitExplanation, WaitKind,
    Work,
};
use det_taskspec::{HostPorts, Hosts};
use serde_json::Map;
use std::sync::Arc;

use crate::world::world;

const SINGLE: &SearchMethod = &SearchMethod::Single;
const CORE: Core = Core {
    snapshot_every: 1,
    trials_at_once: 100,
    mutant: None,
};

#[test]
fn a_place_that_leaves_is_noted_once() {
    let mut world = world(SINGLE, 0);
    let left = || Event::PlaceLeft {
        place: "a".into(),
        cause: Cause::actor(ActorName::Master),
    };
    world.happens(left());
    assert_eq!(
        world.places[&"a".into()].disconnected_at,
        Some(Micros(world.now))
    );
    assert!(world.is_woken(&Topic::Deadlines));
    world.now += 1;
    world.happens(left());
    assert_eq!(world.records_of_place("a"), [EventKind::Disconnected]);
    world.happens(Event::PlaceLeft {
        place: "unknown".into(),
        cause: Cause::actor(ActorName::Master),
    });
    assert!(!world.places.contains_key(&"unknown".into()));
}

#[test]
fn a_place_that_has_come_back_is_not_given_up() {
    let mut world = world(SINGLE, 0);
    let ids = world.runs_on(1, &["a"]);
    world.happens(Event::PlaceLeft {
        place: "a".into(),
        cause: Cause::actor(ActorName::Master),
    });
    let since = world.places[&"a".into()].disconnected_at;
    let gives_up = |since| Event::PlaceGivenUp {
        place: "a".into(),
        since,
        slots: 4,
        reason: "it was away for too long".to_owned(),
    };
    world.happens(gives_up(Some(Micros(7))));
    assert!(world.containers[&ids[0]].ended_at.is_none());
    world.happens(gives_up(since));
    assert!(world.containers[&ids[0]].ended_at.is_some());
    assert!(!world.places.contains_key(&"a".into()));
    assert_eq!(
        world.records_of_place("a"),
        [EventKind::Disconnected, EventKind::Removed]
    );
    let details = world.effects.iter().filter_map(|effect| match effect {
        Effect::Record(record) if record.kind == EventKind::Removed => record.detail.as_deref(),
        _ => None,
    });
    let details: Vec<&str> = details.collect();
    assert_eq!(details, [r#"{"resource_pool":"default","slots":4}"#]);
    world.happens(gives_up(None));
    assert_eq!(world.records_of_place("a").len(), 2, "it is gone already");
}

#[test]
fn with_another_instance_everything_that_ran_there_is_lost() {
    let mut world = world(SINGLE, 0);
    let ids = world.runs_on(1, &["a"]);
    let place = world.places.get_mut(&"a".into()).expect("a");
    *place = Place::joined(Some(place), "default".to_owned(), "disk 2".into());
    world.happens(Event::PlaceJoined {
        place: "a".into(),
        known_instance: Some("disk 1".into()),
        observed: Vec::new(),
    });
    assert!(world.containers[&ids[0]].ended_at.is_some());
    assert_eq!(world.records_of_place("a"), [EventKind::Connected]);
}

#[test]
fn what_users_set_of_a_place_stays_when_it_joins_again() {
    let mut services = Services::default();
    services.set(Some(SlotId(1)), Service::Draining);
    services.set(None, Service::Disabled);
    let known = Place {
        resource_pool: "a".to_owned(),
        instance: "disk 1".into(),
        services: services.clone(),
        disconnected_at: Some(Micros(5)),
    };
    let row = Place::joined(Some(&known), "b".to_owned(), "disk 1".into());
    assert_eq!(
        (row.services, row.disconnected_at, row.resource_pool),
        (services, None, "b".to_owned())
    );
    let new = Place::joined(None, "b".to_owned(), "disk 1".into());
    assert!(new.takes(&[SlotId(0), SlotId(1)]));
}

#[test]
fn work_on_a_slot_that_is_disabled_starts_elsewhere_and_on_a_drained_one_goes_on() {
    let mut world = world(SINGLE, 0);
    let ids = world.runs_on(1, &["a"]);
    let mut serve = |slot: Option<u32>, service| {
        world.happens(Event::ServiceChanged {
            place: "a".into(),
            slot: slot.map(SlotId),
            service,
            cause: Cause::actor(ActorName::user("ada")),
        });
        world.containers[&ids[0]].desired
    };
    assert_eq!(serve(Some(0), Service::Draining), DesiredState::Run);
    // It holds another slot.
    assert_eq!(serve(Some(1), Service::Disabled), DesiredState::Run);
    assert_eq!(serve(Some(0), Service::Enabled), DesiredState::Run);
    assert_eq!(serve(Some(0), Service::Disabled), DesiredState::Kill);
    assert_eq!(
        world.records_of_place("a"),
        [
            EventKind::Draining,
            EventKind::Disabled,
            EventKind::Enabled,
            EventKind::Disabled
        ]
    );
    assert!(!world.places[&"a".into()].takes(&[SlotId(0)]));
    assert!(world.places[&"a".into()].takes(&[SlotId(2)]));
    let unknown = Event::ServiceChanged {
        place: "z".into(),
        slot: None,
        service: Service::Disabled,
        cause: Cause::actor(ActorName::user("ada")),
    };
    let refused = world.try_event(unknown).expect_err("there is none");
    assert!(matches!(
        refused,
        Refusal::NotFound {
            what: ObjectKind::Place,
            ..
        }
    ));
}

#[test]
fn work_on_a_slot_with_a_fault_goes_on_and_new_work_goes_elsewhere() {
    let mut world = world(SINGLE, 0);
    let ids = world.runs_on(1, &["a"]);
    let report = |faults: &[(u32, &str)]| Event::FaultsReported {
        place: "a".into(),
        faults: (faults.iter())
            .map(|(slot, reason)| (SlotId(*slot), (*reason).to_owned()))
            .collect(),
    };
    world.happens(report(&[(0, "it is hot")]));
    assert_eq!(world.containers[&ids[0]].desired, DesiredState::Run);
    assert!(!world.places[&"a".into()].takes(&[SlotId(0)]));
    assert!(world.places[&"a".into()].takes(&[SlotId(2)]));
    assert!(world.is_woken(&Topic::Schedule));
    // Repeats, and a fault that has passed, change nothing for it.
    world.happens(report(&[(0, "it is hot")]));
    world.happens(report(&[]));
    assert_eq!(world.records_of_place("a"), [EventKind::Draining]);
    world.happens(Event::ServiceChanged {
        place: "a".into(),
        slot: Some(SlotId(0)),
        service: Service::Enabled,
        cause: Cause::actor(ActorName::user("ada")),
    });
    assert!(world.places[&"a".into()].takes(&[SlotId(0)]));
    let unknown = Event::FaultsReported {
        place: "z".into(),
        faults: [(SlotId(0), "it is hot".to_owned())].into(),
    };
    world.happens(unknown);
}

#[test]
fn a_host_that_cannot_start_containers_takes_no_new_work_until_it_can() {
    let mut world = world(SINGLE, 0);
    let ids = world.runs_on(1, &["a"]);
    let report = |fault: Option<&str>| Event::HostReported {
        place: "a".into(),
        fault: fault.map(str::to_owned),
    };
    world.happens(report(Some("the disk is full")));
    assert_eq!(world.containers[&ids[0]].desired, DesiredState::Run);
    assert!(!world.places[&"a".into()].takes(&[SlotId(2)]));
    // A repeat and another reason are no new faults, and users cannot enable what does not work.
    world.happens(report(Some("the disk is full")));
    world.happens(report(Some("the engine does not answer")));
    world.happens(Event::ServiceChanged {
        place: "a".into(),
        slot: None,
        service: Service::Enabled,
        cause: Cause::actor(ActorName::user("ada")),
    });
    assert!(!world.places[&"a".into()].takes(&[SlotId(2)]));
    world.happens(report(None));
    assert!(world.places[&"a".into()].takes(&[SlotId(2)]));
    assert!(world.is_woken(&Topic::Schedule));
    let (began, ended) = (EventKind::HostFault, EventKind::HostFaultEnded);
    assert_eq!(
        world.records_of_place("a"),
        [began, EventKind::Enabled, ended]
    );
}

#[test]
fn a_place_is_waited_for_as_long_as_its_pool_allows() {
    let absence = |since, connected| CORE.absence(since, connected, 60, Micros(100));
    assert_eq!(absence(None, true), Absence::None);
    assert_eq!(absence(None, false), Absence::Unstored);
    assert_eq!(
        absence(Some(Micros(41)), false),
        Absence::Until(Micros(101))
    );
    assert_eq!(
        absence(Some(Micros(40)), false),
        Absence::TooLong(Micros(40))
    );
    let due = Due::of(
        [("a", Micros(100)), ("b", Micros(120)), ("c", Micros(110))],
        Micros(100),
    );
    assert_eq!((due.now, due.next), (vec!["a"], Some(Micros(110))));
}

#[test]
fn an_allocation_waits_until_it_is_placed_and_then_runs_or_stops() {
    let request = || Request {
        allocation_id: "t.1".into(),
        task_id: "t".into(),
        job_id: "j".into(),
        slots: 1,
        single_place: false,
        preemptible: true,
        excluded_places: [].into(),
        misfits: None,
        requested_at: Micros(1),
        not_before: None,
    };
    let course = Course {
        placed_at: Some(Micros(2)),
        preempted_for: None,
        preempt_deadline: None,
        state: &AllocationState::Pending,
    };
    let progress = |course: Course<'_>| match course.work(request(), Vec::new()) {
        Work::Runs(running) => Some(running.progress),
        Work::Waits(_) => None,
    };
    assert_eq!(progress(course), Some(Progress::Active));
    let waits = Course {
        placed_at: None,
        ..course
    };
    assert_eq!(progress(waits), None);
    let stops = Course {
        preempt_deadline: Some(Micros(9)),
        ..course
    };
    assert_eq!(progress(stops), Some(Progress::Stopping));
    let other = "u.1".into();
    let hands_over = Course {
        preempted_for: Some(&other),
        ..stops
    };
    assert_eq!(
        progress(hands_over),
        Some(Progress::PreemptedFor(other.clone()))
    );
    let places = vec![PlaceSnapshot::of(
        "a".into(),
        (&Services::default(), true),
        [SlotId(0)],
        0,
        [],
    )];
    let work = [waits, course].map(|course| course.work(request(), Vec::new()));
    let settings = PoolSettings::default();
    let (pool, queue) = CORE.pool((settings, places), work, [].into(), [].into());
    assert_eq!((pool.running.len(), queue.requests.len()), (1, 1));
}

#[test]
fn only_reasons_that_are_new_are_stored() {
    let reason = |message: &str| WaitExplanation {
        kind: WaitKind::ALL[0],
        message: message.to_owned(),
        details: Map::new(),
    };
    let (new, old) = (reason("new"), reason("old"));
    let waiting = |id: &str| (id.into(), Arc::new(new.clone()));
    let mut decided = PassDecision {
        waiting: ["same", "other", "first", "placed"].map(waiting).into(),
        ..PassDecision::default()
    };
    decided.keep_news(|id| match id.as_str() {
        "same" => Some(Some(&new)),
        "other" => Some(Some(&old)),
        "first" => Some(None),
        _ => None,
    });
    let ids: Vec<&str> = decided.waiting.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(ids, ["other", "first"]);
    let mut ports = HostPorts::new(Hosts::default(), &[]);
    let settings = PoolSettings::default();
    let events = decided.into_events(&settings, &mut ports, || "c".into());
    assert_eq!(events.len(), 2);
    assert!(PassDecision::default().is_empty());
}
