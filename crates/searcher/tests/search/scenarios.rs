//! The eleven documented scenarios of the searcher, and further cases of its rules.

use std::collections::BTreeSet;

use det_config::hyperparameters::{AdaptiveMode, Hyperparameter, SearchMethod, Space};
use det_ids::RequestId;
use det_searcher::{Action, Event, ExitReason, Outcome, Search, SearchError, TrialState};
use serde_json::json;

use crate::world::{World, adaptive, asha, maximise, minimise, random, space};

const ERRORED: ExitReason = ExitReason::Errored;
const CANCELED: ExitReason = ExitReason::Canceled;
const INVALID: ExitReason = ExitReason::InvalidHyperparameters;

fn pair(first: &str, second: &str) -> (String, String) {
    (first.to_owned(), second.to_owned())
}

#[test]
fn scenario_1_random_creates_one_trial_per_end() {
    let (mut world, start) = World::start(minimise(random(5, 2)));
    assert_eq!(start, "create t1, create t2");
    assert_eq!(world.ends(1), "create t3");
    assert_eq!(world.ends(3), "create t4");
    assert_eq!(world.ends(2), "create t5");
    assert_eq!(world.ends(5), "");
    assert_eq!(world.ends(4), "completed");
}

#[test]
fn scenario_2_a_failed_trial_uses_up_its_slot_of_a_random_search() {
    let (mut world, start) = World::start(minimise(random(3, 1)));
    assert_eq!(start, "create t1");
    assert_eq!(world.exits(1, ERRORED), pair("", "create t2"));
    assert_eq!(world.exits(2, ERRORED), pair("", "create t3"));
    assert_eq!(world.ends(3), "completed");
}

#[test]
fn scenario_3_a_search_of_failures_fails() {
    let (mut world, _) = World::start(minimise(random(3, 3)));
    assert_eq!(world.exits(1, ERRORED), pair("", ""));
    assert_eq!(world.exits(2, ERRORED), pair("", ""));
    assert_eq!(world.exits(3, ERRORED), pair("", "failed"));
}

#[test]
fn scenario_4_a_trial_with_invalid_hyperparameters_is_replaced_and_not_counted() {
    let (mut world, start) = World::start(minimise(random(2, 1)));
    assert_eq!(start, "create t1");
    assert_eq!(world.exits(1, INVALID), pair("", "create t2"));
    assert_eq!(world.ends(2), "create t3");
    assert_eq!(world.ends(3), "completed");
    assert_ne!(world.trials[0].hparams, world.trials[1].hparams);
}

#[test]
fn scenario_5_a_grid_visits_each_point_once() {
    let grid = SearchMethod::Grid {
        max_concurrent_trials: 4,
    };
    let (mut world, start) = World::start(minimise(grid));
    assert_eq!(start, "create t1, create t2, create t3, create t4");
    // An invalid or failed point is not visited again.
    assert_eq!(world.exits(3, INVALID), pair("", "create t5"));
    assert_eq!(world.exits(1, ERRORED), pair("", "create t6"));
    for number in [2, 4, 5] {
        assert_eq!(world.ends(number), "");
    }
    assert_eq!(world.ends(6), "completed");
    let points: BTreeSet<(String, String)> = (world.trials.iter())
        .map(|trial| {
            (
                trial.hparams["a"].to_string(),
                trial.hparams["b"].to_string(),
            )
        })
        .collect();
    assert_eq!(points.len(), 6);
}

#[test]
fn scenario_6_a_single_trial_that_is_killed_cancels_the_search() {
    let (mut world, start) = World::start(minimise(SearchMethod::Single));
    assert_eq!(start, "create t1");
    assert_eq!(world.exits(1, CANCELED), pair("", "canceled"));

    let (mut world, _) = World::start(minimise(SearchMethod::Single));
    assert_eq!(world.exits(1, ERRORED), pair("", "failed"));

    // Another single trial would be as invalid.
    let (mut world, _) = World::start(minimise(SearchMethod::Single));
    assert_eq!(world.exits(1, INVALID), pair("", "failed"));
}

#[test]
fn scenario_7_a_worse_second_result_is_stopped_and_replaced() {
    let (mut world, start) = World::start(maximise(asha(2, 4.0, 100, 5, 2)));
    assert_eq!(start, "create t1, create t2");
    assert_eq!(world.validates(1, 25.0, 0.5), "");
    assert_eq!(world.validates(2, 25.0, 0.4), "stop t2, create t3");
}

#[test]
fn scenario_8_a_late_first_validation_counts_at_every_rung_it_passed() {
    let (mut world, _) = World::start(maximise(asha(2, 4.0, 100, 5, 2)));
    assert_eq!(world.validates(1, 100.0, 0.5), "stop t1, create t3");
    let snapshot = world.search.snapshot();
    assert_eq!(
        snapshot["halving"]["results"],
        json!([[[[-0.5, 0]], [[-0.5, 0]]]])
    );
}

#[test]
fn scenario_9_a_failed_trial_counts_as_the_worst_result() {
    let (mut world, _) = World::start(maximise(asha(2, 4.0, 100, 5, 2)));
    assert_eq!(world.exits(1, ERRORED), pair("create t3", ""));
    assert_eq!(world.validates(2, 25.0, 0.3), "");
    assert_eq!(world.validates(3, 25.0, f64::NAN), "stop t3, create t4");
}

#[test]
fn scenario_10_a_bracket_replaces_its_own_trials() {
    let method = adaptive(AdaptiveMode::Conservative, 3.0, 500, 12, 4);
    let (mut world, start) = World::start(minimise(method));
    assert_eq!(start, "create t1, create t2, create t3, create t4");
    let brackets = |world: &World| -> Vec<serde_json::Value> {
        let snapshot = world.search.snapshot();
        let homes = snapshot["halving"]["homes"].as_array().cloned();
        let homes = homes.expect("a halving search");
        homes.iter().map(|home| home["bracket"].clone()).collect()
    };
    assert_eq!(brackets(&world), [0, 0, 1, 2]);
    // Two rungs of 166 and 500 units; the first result goes on, the top one is stopped.
    assert_eq!(world.validates(3, 166.0, 0.1), "");
    assert_eq!(world.validates(3, 500.0, 0.1), "stop t3, create t5");
    // A better result in another bracket does not matter in this one.
    assert_eq!(world.validates(5, 166.0, 0.2), "stop t5, create t6");
    assert_eq!(brackets(&world), [0, 0, 1, 2, 1, 1]);
    assert_eq!(world.validates(1, 55.0, 9.0), "");
}

#[test]
fn scenario_11_a_restart_between_reports_changes_no_decision() {
    let run = |restarts| {
        let (mut world, start) = World::start_with(maximise(asha(2, 4.0, 100, 5, 2)), restarts);
        let mut actions = vec![start];
        actions.push(world.validates(1, 25.0, f64::NAN));
        actions.push(world.validates(2, 25.0, 0.1 + 0.2));
        actions.push(world.validates(1, 100.0, f64::NEG_INFINITY));
        for number in 3..=5 {
            actions.push(world.validates(number, 25.0, 0.1 + 0.2));
            actions.push(world.ends(number));
        }
        for number in [1, 2] {
            actions.push(world.ends(number));
        }
        let ids: Vec<RequestId> = (world.trials.iter())
            .map(|trial| trial.request_id.clone())
            .collect();
        (actions, ids)
    };
    let (actions, ids) = run(false);
    assert_eq!(actions.last().map(String::as_str), Some("completed"));
    assert_eq!((actions, ids), run(true));
}

#[test]
fn validations_after_the_stop_change_nothing() {
    let (mut world, _) = World::start(minimise(asha(2, 4.0, 100, 5, 2)));
    assert_eq!(world.validates(1, 25.0, 0.1), "");
    assert_eq!(world.validates(2, 25.0, 0.2), "stop t2, create t3");
    let results = world.search.snapshot()["halving"].clone();
    assert_eq!(world.validates(2, 100.0, 0.0), "");
    // Nor does its failing afterwards enter a second result or free a second place.
    assert_eq!(world.exits(2, ERRORED), pair("", ""));
    assert_eq!(world.validates(2, 100.0, 0.0), "");
    assert_eq!(world.search.snapshot()["halving"], results);
}

#[test]
fn a_trial_that_ends_by_itself_below_the_top_is_replaced() {
    let (mut world, _) = World::start(minimise(asha(2, 4.0, 100, 3, 1)));
    assert_eq!(world.validates(1, 25.0, 0.1), "");
    assert_eq!(world.ends(1), "create t2");
    assert_eq!(world.ends(2), "create t3");
    assert_eq!(world.ends(3), "completed");
}

#[test]
fn a_resumed_trial_that_repeats_validations_changes_nothing() {
    let (mut world, _) = World::start(minimise(asha(3, 2.0, 80, 5, 2)));
    assert_eq!(world.validates(1, 20.0, 0.1), "");
    let before = world.search.snapshot();
    assert_eq!(world.validates(1, 20.0, 0.9), "");
    assert_eq!(world.search.snapshot(), before);
}

#[test]
fn invalid_hyperparameters_leave_no_trace_in_a_halving_search() {
    let (mut world, _) = World::start(minimise(asha(3, 2.0, 80, 2, 1)));
    assert_eq!(world.validates(1, 40.0, 0.1), "");
    assert_eq!(world.exits(1, INVALID), pair("create t2", ""));
    assert_eq!(
        world.search.snapshot()["halving"]["results"],
        json!([[[], [], []]])
    );
    // Asked to stop and then found invalid: it did not count as running any more, but it still counted as created.
    assert_eq!(world.validates(2, 80.0, 0.5), "stop t2, create t3");
    assert_eq!(world.exits(2, INVALID), pair("", ""));
    assert_eq!(world.validates(3, 80.0, 0.5), "stop t3, create t4");
    assert_eq!(world.ends(3), "");
    assert_eq!(world.ends(4), "completed");
}

#[test]
fn several_ranks_report_one_invalid_trial() {
    let (mut world, _) = World::start(minimise(asha(2, 4.0, 100, 5, 2)));
    let request_id = world.id(1);
    let exit = |reason| Event::EarlyExit {
        request_id: request_id.clone(),
        reason,
    };
    assert_eq!(world.on(exit(INVALID)), "create t3");
    assert_eq!(world.on(exit(INVALID)), "");
    assert_eq!(world.on(exit(ERRORED)), "");
    assert_eq!(world.ends(1), "");
    assert_eq!(world.ends(1), "");
    assert_eq!(
        world.search.trials().next().map(|(_, state)| state),
        Some(TrialState::Ended(Some(INVALID)))
    );
}

#[test]
fn code_that_refuses_everything_is_not_given_new_trials_for_ever() {
    for method in [random(3, 1), asha(2, 4.0, 100, 3, 1)] {
        let (mut world, _) = World::start(minimise(method));
        let mut actions = String::new();
        for number in 1..=1_000 {
            let (first, second) = world.exits(number, INVALID);
            actions = first + &second;
        }
        assert_eq!(actions, "failed");
        assert_eq!(world.trials.len(), 1_000);
    }
}

#[test]
fn unusable_reports_decide_nothing() {
    let (mut world, _) = World::start(minimise(asha(2, 4.0, 100, 3, 2)));
    let request_id = world.id(1);
    let no_time = |time| Event::Validation {
        request_id: request_id.clone(),
        metric: 0.1,
        time,
    };
    for time in [None, Some(f64::NAN), Some(f64::INFINITY)] {
        assert_eq!(world.on(no_time(time)), "");
    }
    // Another trial reports well, so the search goes on when this one ends.
    assert_eq!(world.validates(2, 25.0, 0.5), "");
    assert_eq!(world.ends(1), "create t3");
}

#[test]
fn a_halving_search_whose_code_never_reports_the_metric_fails() {
    let (mut world, _) = World::start(minimise(asha(2, 4.0, 100, 9, 2)));
    let request_id = world.id(1);
    assert_eq!(world.on(Event::UnusableValidation { request_id }), "");
    assert_eq!(world.ends(1), "failed");
    assert_eq!(world.ends(2), "", "it is over");

    // Trials that report nothing at all do not fail the search.
    let (mut world, _) = World::start(minimise(asha(2, 4.0, 100, 2, 1)));
    assert_eq!(world.ends(1), "create t2");
    assert_eq!(world.ends(2), "failed");

    // Other searches do not use metrics.
    let (mut world, _) = World::start(minimise(SearchMethod::Single));
    let request_id = world.id(1);
    assert_eq!(world.on(Event::UnusableValidation { request_id }), "");
    assert_eq!(world.ends(1), "completed");
}

#[test]
fn a_closing_search_creates_and_stops_nothing_and_shuts_down_when_its_trials_have_ended() {
    let (mut world, _) = World::start_with(minimise(asha(2, 4.0, 100, 9, 2)), true);
    assert_eq!(world.validates(1, 25.0, 0.1), "");
    assert_eq!(world.on(Event::Close), "");
    assert_eq!(world.validates(2, 25.0, 0.2), "");
    assert_eq!(world.exits(1, CANCELED), pair("", ""));
    assert_eq!(world.exits(2, CANCELED), pair("", "canceled"));
    assert_eq!(world.search.outcome(), Some(Outcome::Canceled));
    assert!(world.search.progress() < 1.0);
}

#[test]
fn progress_of_each_method_rises_to_one() {
    let near = |search: &Search, expected: f64| {
        let shown = search.progress();
        assert!((shown - expected).abs() < 1e-9, "{shown} is not {expected}");
    };
    let (mut world, _) = World::start(minimise(random(4, 2)));
    near(&world.search, 0.0);
    let request_id = world.id(1);
    let report = |fraction| Event::Progress {
        request_id: request_id.clone(),
        fraction,
    };
    for (fraction, shown) in [
        (0.5, 0.125),
        (f64::NAN, 0.125),
        (0.2, 0.125),
        (7.0, 0.25),
        (-1.0, 0.25),
    ] {
        world.on(report(fraction));
        near(&world.search, shown);
    }
    world.ends(1);
    near(&world.search, 0.25);
    for number in [2, 3] {
        world.ends(number);
    }
    near(&world.search, 0.75);
    let request_id = world.id(4);
    world.on(Event::Progress {
        request_id,
        fraction: 1.0,
    });
    near(&world.search, 0.999);
    world.ends(4);
    near(&world.search, 1.0);

    let (mut world, _) = World::start(minimise(asha(2, 4.0, 100, 4, 2)));
    world.validates(1, 50.0, 0.1);
    near(&world.search, 0.125);
    world.validates(2, 25.0, 0.2);
    near(&world.search, 0.1875);
    world.ends(2);
    near(&world.search, 0.375);
    // Discounting a trial does not take back what was shown.
    world.exits(1, INVALID);
    near(&world.search, 0.375);
}

#[test]
fn an_unlimited_search_creates_all_trials_at_once() {
    let (world, _) = World::start(minimise(random(7, 0)));
    assert_eq!(world.trials.len(), 7);
    let grid = SearchMethod::Grid {
        max_concurrent_trials: 0,
    };
    let (world, _) = World::start(minimise(grid));
    assert_eq!(world.trials.len(), 6);
}

#[test]
fn a_grid_without_hyperparameters_is_one_trial() {
    let config = minimise(SearchMethod::Grid {
        max_concurrent_trials: 4,
    });
    let mut search = Search::new(&config, &Space::new(), 1).expect("a valid search");
    let actions = search.start();
    let [
        Action::Create {
            request_id,
            hparams,
            ..
        },
    ] = &actions[..]
    else {
        panic!("one trial expected, got {actions:?}");
    };
    assert!(hparams.is_empty());
    let request_id = request_id.clone();
    let over = [Action::Shutdown(Outcome::Completed)];
    assert_eq!(search.on(Event::Ended { request_id }), over);
}

#[test]
fn searches_that_cannot_be_are_refused() {
    let refusal = |method, space: &Space| {
        Search::new(&minimise(method), space, 1)
            .expect_err("refused")
            .to_string()
    };
    assert_eq!(
        refusal(random(0, 1), &space()),
        "searcher.max_trials is 0; it must be from 1 to 1000000"
    );
    assert_eq!(
        refusal(asha(0, 4.0, 100, 5, 1), &space()),
        "searcher.num_rungs is 0; it must be from 1 to 1000"
    );
    let no_values = Space::from([("x".to_owned(), Hyperparameter::Categorical(Vec::new()))]);
    assert_eq!(
        refusal(random(1, 1), &no_values),
        "hyperparameters.x: vals is empty; list at least one value"
    );
}

#[test]
fn snapshots_that_do_not_fit_are_refused() {
    let (mut world, _) = World::start(minimise(asha(2, 4.0, 100, 5, 2)));
    world.validates(1, 25.0, 0.5);
    world.validates(2, 25.0, 0.4);
    let good = world.search.snapshot();
    let restored = |method, snapshot: &serde_json::Value| {
        Search::restore(&minimise(method), &space(), snapshot)
    };
    assert!(restored(asha(2, 4.0, 100, 5, 2), &good).is_ok());

    for (pointer, value, words) in [
        (
            "/version",
            json!(2),
            "its version is 2, this program reads version 1",
        ),
        ("/version", json!(null), "no version"),
        ("/phase", json!("dreaming"), "unknown variant"),
        ("/drawn", json!(u64::MAX), "random words were drawn"),
        (
            "/trials/1/request_id",
            good["trials"][0]["request_id"].clone(),
            "is in it twice",
        ),
        ("/trials/1", json!(7), "invalid type"),
        ("/halving", json!(null), "lacks the results"),
        ("/halving/homes", json!([]), "differ in number"),
        (
            "/halving/homes/0/rung",
            json!(2),
            "a rung that is not there",
        ),
        (
            "/halving/homes/0/bracket",
            json!(1),
            "a rung that is not there",
        ),
        ("/halving/results", json!([]), "0 brackets where"),
        (
            "/halving/results/0",
            json!([[]]),
            "a bracket of 1 rungs where",
        ),
        (
            "/halving/results/0/0",
            json!([[0.5, 0], [0.4, 1]]),
            "not in order",
        ),
        (
            "/halving/results/0/0",
            json!([[0.5, 9]]),
            "belongs to no trial",
        ),
        ("/halving/results/0/0", json!([["many", 0]]), "NaN"),
    ] {
        let mut damaged = good.clone();
        *damaged
            .pointer_mut(pointer)
            .expect("a place in the snapshot") = value;
        let refusal = restored(asha(2, 4.0, 100, 5, 2), &damaged).expect_err(words);
        assert!(matches!(refusal, SearchError::Snapshot { .. }));
        assert!(refusal.to_string().contains(words), "{refusal}");
    }
    for method in [random(5, 2), asha(3, 4.0, 100, 5, 2)] {
        assert!(restored(method, &good).is_err());
    }
    let mut boastful = good.clone();
    boastful["trials"][0]["done"] = json!(u64::MAX);
    boastful["shown_progress"] = json!("NaN");
    let mut search = restored(asha(2, 4.0, 100, 5, 2), &boastful).expect("sums are made anew");
    search.on(Event::EarlyExit {
        request_id: world.id(1),
        reason: INVALID,
    });
    assert!(search.progress() < 1.0);
}

#[test]
fn events_and_actions_are_stored_as_json() {
    for (event, text) in [
        (
            Event::Validation {
                request_id: "t".into(),
                metric: f64::NEG_INFINITY,
                time: Some(25.0),
            },
            r#"{"validation":{"request_id":"t","metric":"-Infinity","time":25.0}}"#,
        ),
        (
            Event::Validation {
                request_id: "t".into(),
                metric: 0.1 + 0.2,
                time: None,
            },
            r#"{"validation":{"request_id":"t","metric":0.30000000000000004,"time":null}}"#,
        ),
        (
            Event::EarlyExit {
                request_id: "t".into(),
                reason: INVALID,
            },
            r#"{"early_exit":{"request_id":"t","reason":"invalid_hyperparameters"}}"#,
        ),
        (Event::Close, r#""close""#),
    ] {
        assert_eq!(serde_json::to_string(&event).expect("writable"), text);
        assert_eq!(
            serde_json::from_str::<Event>(text).expect("readable"),
            event
        );
    }
    let nan = r#"{"validation":{"request_id":"t","metric":"NaN"}}"#;
    assert!(matches!(
        serde_json::from_str(nan),
        Ok(Event::Validation { metric, time: None, .. }) if metric.is_nan()
    ));
    let whole = r#"{"validation":{"request_id":"t","metric":-3,"time":25}}"#;
    assert!(matches!(
        serde_json::from_str(whole),
        Ok(Event::Validation {
            metric: -3.0,
            time: Some(25.0),
            ..
        })
    ));
    let action = Action::Shutdown(Outcome::Completed);
    let text = serde_json::to_string(&action).expect("writable");
    assert_eq!(text, r#"{"shutdown":"completed"}"#);
    assert_eq!(
        serde_json::from_str::<Action>(&text).expect("readable"),
        action
    );
}

/// What a search creates a few at a time is what it creates at once, whatever happens meanwhile.
#[test]
fn trials_that_are_created_some_at_a_time_are_the_same() {
    let grid = SearchMethod::Grid {
        max_concurrent_trials: 0,
    };
    for method in [random(7, 0), grid, asha(2, 2.0, 100, 9, 8)] {
        let config = minimise(method);
        let create = |actions: Vec<Action>| -> Vec<Action> {
            let created = |action: &Action| matches!(action, Action::Create { .. });
            actions.into_iter().filter(created).collect()
        };
        let new = || Search::new(&config, &space(), 3).expect("a valid search");
        let at_once = create(new().start());
        let mut search = new();
        let mut created = search.start_some(2);
        assert_eq!(created.len(), 2);
        let Action::Create { request_id, .. } = &created[0] else {
            panic!("a trial is created first");
        };
        let request_id = request_id.clone();
        assert_eq!(
            search.on(Event::Ended { request_id }),
            [],
            "only what is asked for is created"
        );
        while search.owes_trials() {
            let text = search.snapshot();
            search = Search::restore(&config, &space(), &text).expect("own snapshot");
            let more = search.on(Event::More { most: 3 });
            assert!((1..=3).contains(&more.len()), "{more:?}");
            created.extend(more);
        }
        assert_eq!(search.on(Event::More { most: 3 }), [], "nothing is owed");
        let same = created.iter().zip(&at_once);
        assert!(same.clone().all(|(a, b)| a == b) && created.len() >= at_once.len());
        assert_eq!(search.outcome(), None);
    }
}

/// Trials that all end before the next are created do not end the search.
#[test]
fn a_search_that_owes_trials_is_not_over() {
    let mut search = Search::new(&minimise(random(3, 0)), &space(), 3).expect("a valid search");
    let mut actions = search.start_some(1);
    for owed in [true, true, false] {
        let Some(Action::Create { request_id, .. }) = actions.pop() else {
            panic!("a trial is created");
        };
        assert_eq!(search.owes_trials(), owed);
        let over = search.on(Event::Ended { request_id });
        assert_eq!(over.is_empty(), owed, "{over:?}");
        actions = search.on(Event::More { most: 1 });
    }
    assert_eq!(search.outcome(), Some(Outcome::Completed));
    // A search that is being closed owes nothing.
    let mut search = Search::new(&minimise(random(3, 0)), &space(), 3).expect("a valid search");
    search.start_some(1);
    search.on(Event::Close);
    assert!(!search.owes_trials());
}
