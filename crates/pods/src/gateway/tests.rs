use super::*;

const OWNER: &str = "cluster/default";

fn gateway(listeners: &[Value], annotations: &Value) -> Value {
    let own = json!({"name": "own", "port": 80, "protocol": "HTTP"});
    let listeners: Vec<&Value> = [&own].into_iter().chain(listeners).collect();
    json!({
        "metadata": {"resourceVersion": "7", "generation": 3, "annotations": annotations},
        "spec": {"listeners": listeners},
    })
}

fn wanted(allocations: &[(&str, usize)]) -> BTreeMap<AllocationId, ListenersWanted> {
    let of = |(id, count): &(&str, usize)| {
        let namespace = "tasks".to_owned();
        let count = *count;
        (
            AllocationId::from(*id),
            ListenersWanted {
                namespace,
                count,
                avoided: BTreeSet::new(),
            },
        )
    };
    allocations.iter().map(of).collect()
}

fn plan(gateway: &Value, range: RangeInclusive<u16>, of: &[(&str, usize)]) -> ListenerPlan {
    plan_listeners(gateway, OWNER, (&range, &BTreeSet::new()), &wanted(of))
}

/// The Gateway after a plan.
fn after(gateway: &Value, plan: &ListenerPlan) -> Value {
    let mut after = gateway.clone();
    let Some(patch) = &plan.patch else {
        return after;
    };
    after["spec"] = patch["spec"].clone();
    let notes = patch["metadata"]["annotations"].as_object().unwrap();
    for (key, value) in notes {
        let kept = after["metadata"]["annotations"].as_object_mut().unwrap();
        if value.is_null() {
            kept.remove(key);
        } else {
            kept.insert(key.clone(), value.clone());
        }
    }
    after
}

#[test]
fn ports_are_given_once_kept_and_freed() {
    let begin = gateway(&[], &json!({"other": "note"}));
    let first = plan(&begin, 2000..=2003, &[("a.1", 2), ("b.1", 1)]);
    let all: BTreeSet<u16> = first.given.values().flatten().copied().collect();
    assert_eq!(all.len(), 3);
    assert_eq!(
        first.patch.as_ref().unwrap()["metadata"]["resourceVersion"],
        "7"
    );
    let then = after(&begin, &first);
    assert_eq!(listener_ports(&then).len(), 4);
    let same = plan(&then, 2000..=2003, &[("a.1", 2), ("b.1", 1)]);
    assert_eq!((same.patch, &same.given), (None, &first.given));
    // One ends, and another one needs what it had.
    let next = plan(&then, 2000..=2003, &[("b.1", 1), ("c.1", 3)]);
    assert_eq!(next.given[&"b.1".into()], first.given[&"b.1".into()]);
    assert_eq!(next.given[&"c.1".into()].len(), 3);
    let then = after(&then, &next);
    let empty = after(&then, &plan(&then, 2000..=2003, &[]));
    assert_eq!(empty, begin);
}

#[test]
fn listeners_of_others_stay_and_their_ports_are_taken() {
    // The second is one of the earlier product, or of another master.
    let theirs = [
        json!({"name": "x", "port": 2000, "protocol": "TCP"}),
        json!({"name": "det-2001", "port": 2001, "protocol": "TCP"}),
    ];
    let notes = json!({
        "determined.ai/det-gateway-port-2001": "a.1",
        "determined.ai/det-gateway-owner-2001": "other/default",
    });
    let begin = gateway(&theirs, &notes);
    let found = plan(&begin, 2000..=2002, &[("a.1", 1)]);
    assert_eq!(found.given[&"a.1".into()], [2002]);
    assert_eq!(plan(&begin, 2000..=2002, &[]).patch, None);
}

#[test]
fn what_is_exhausted_is_the_reason() {
    let begin = gateway(&[], &json!({}));
    let found = plan(&begin, 2000..=2001, &[("a.1", 2), ("b.1", 1)]);
    let no_port = NoListener::NoPort {
        needed: 1,
        first: 2000,
        last: 2001,
    };
    assert_eq!(found.refused, [("b.1".into(), no_port)].into());
    let found = plan(&begin, 2000..=3000, &[("a.1", 60), ("b.1", 4), ("c.1", 3)]);
    let full = NoListener::Full { needed: 4 };
    assert_eq!(found.refused, [("b.1".into(), full)].into());
    assert_eq!(found.given[&"c.1".into()].len(), 3);
    let found = plan(&begin, 2000..=3000, &[("a.1", 65)]);
    assert_eq!(found.refused[&"a.1".into()], NoListener::TooMany(65));
}

#[test]
fn a_listener_that_was_removed_by_hand_is_made_again() {
    let begin = gateway(&[], &json!({}));
    let then = after(&begin, &plan(&begin, 2000..=2009, &[("a.1", 2)]));
    let mut removed = then.clone();
    removed["spec"]["listeners"].as_array_mut().unwrap().pop();
    let again = plan(&removed, 2000..=2009, &[("a.1", 2)]);
    assert_eq!(listener_ports(&after(&removed, &again)).len(), 3);
}

#[test]
fn a_port_is_given_again_by_a_listener_that_no_earlier_route_leads_from() {
    let begin = gateway(&[], &json!({}));
    let first = after(&begin, &plan(&begin, 2000..=2000, &[("a.1", 1)]));
    let second = after(&first, &plan(&first, 2000..=2000, &[("b.1", 1)]));
    let names = |gateway: &Value| -> Vec<String> {
        let listeners = gateway["spec"]["listeners"].as_array().unwrap().iter();
        let names = listeners.filter_map(|it| Some(it["name"].as_str()?.to_owned()));
        names.filter(|name| name != "own").collect()
    };
    assert_eq!(listener_ports(&first), listener_ports(&second));
    let name = |of: &str| listener_name(ListenerHome::Gateway, 2000, &of.into());
    assert_eq!(names(&first), [name("a.1")]);
    assert_eq!(names(&second), [name("b.1")]);
    assert_ne!(name("a.1"), name("b.1"));
}

#[test]
fn a_listener_without_the_allocation_in_its_name_is_made_anew() {
    let notes = json!({
        "determined.ai/det-gateway-port-2001": "a.1",
        "determined.ai/det-gateway-owner-2001": OWNER,
    });
    let former = json!({"name": "det-2001", "port": 2001, "protocol": "TCP"});
    let begin = gateway(&[former], &notes);
    let then = after(&begin, &plan(&begin, 2001..=2001, &[("a.1", 1)]));
    assert_eq!(listener_ports(&then), [80, 2001]);
    let name = listener_name(ListenerHome::Gateway, 2001, &"a.1".into());
    assert_eq!(then["spec"]["listeners"][1]["name"], name.as_str());
}

#[test]
fn a_port_in_conflict_is_given_back_for_another_one() {
    let begin = gateway(&[], &json!({}));
    let then = after(&begin, &plan(&begin, 2000..=2001, &[("a.1", 1)]));
    let port = listener_ports(&then)[1];
    let mut wanted = wanted(&[("a.1", 1)]);
    let own = wanted.get_mut(&"a.1".into()).unwrap();
    own.avoided.insert(port);
    let again = plan_listeners(&then, OWNER, (&(2000..=2001), &BTreeSet::new()), &wanted);
    assert_eq!(listener_ports(&after(&then, &again)), [80, 4001 - port]);
}

#[test]
fn sets_are_used_where_the_gateway_admits_them() {
    let mut one = gateway(&[], &json!({}));
    assert_eq!(listener_home(&one, true), ListenerHome::Gateway);
    one["spec"]["allowedListeners"] = json!({"namespaces": {"from": "All"}});
    assert_eq!(listener_home(&one, true), ListenerHome::ListenerSets);
    assert_eq!(listener_home(&one, false), ListenerHome::Gateway);
}

#[test]
fn a_listener_works_once_it_is_programmed_and_has_a_route() {
    let with = |conditions: Value, routes: i64| {
        let mut found = gateway(&[], &json!({}));
        let listener = json!({"name": "det-1", "conditions": conditions, "attachedRoutes": routes});
        found["status"] = json!({"listeners": [listener]});
        listener_state(&found, "det-1")
    };
    let programmed =
        |of: i64| json!([{"type": "Programmed", "status": "True", "observedGeneration": of}]);
    assert_eq!(with(programmed(3), 1), ListenerState::Works);
    assert_eq!(with(programmed(3), 0), ListenerState::HasNoRoute);
    let waits = |state: ListenerState| match state {
        ListenerState::Waits(why)
        | ListenerState::Refused(why)
        | ListenerState::Conflicted(why) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(waits(with(programmed(2), 1)), "it is not programmed yet");
    let refused = json!([{
        "type": "Accepted", "status": "False", "reason": "PortUnavailable", "message": "no such port",
    }]);
    assert_eq!(
        waits(with(refused, 0)),
        "Accepted is False, PortUnavailable: no such port"
    );
    let conflicted = json!([
        {"type": "Programmed", "status": "False", "reason": "Invalid"},
        {"type": "Conflicted", "status": "True", "reason": "ProtocolConflict"},
    ]);
    let in_conflict = "Conflicted is True, ProtocolConflict".to_owned();
    assert_eq!(with(conflicted, 1), ListenerState::Conflicted(in_conflict));
    for soon in [
        json!([{"type": "Programmed", "status": "False", "reason": "Pending"}]),
        json!([{"type": "Programmed", "status": "False", "reason": "Invalid", "observedGeneration": 2}]),
        json!([{"type": "Conflicted", "status": "True", "observedGeneration": 2}]),
    ] {
        let expected = ListenerState::Waits("it is not programmed yet".to_owned());
        assert_eq!(with(soon.clone(), 0), expected, "{soon}");
    }
    let unknown = gateway(&[], &json!({}));
    assert!(matches!(
        listener_state(&unknown, "det-1"),
        ListenerState::Waits(_)
    ));
    let route = json!({"status": {"parents": [{"conditions": [
        {"type": "Accepted", "status": "False", "reason": "NotAllowedByListeners", "message": ""},
    ]}]}});
    assert_eq!(
        route_refusal(&route).unwrap(),
        "Accepted is False, NotAllowedByListeners"
    );
    let mut of_an_earlier_one = route;
    of_an_earlier_one["metadata"] = json!({"generation": 2});
    of_an_earlier_one["status"]["parents"][0]["conditions"][0]["observedGeneration"] = 1.into();
    assert_eq!(route_refusal(&of_an_earlier_one), None);
}
