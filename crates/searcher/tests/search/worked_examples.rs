//! Worked examples, and runs compared with `NumPy`.

use det_searcher::{Search, simulate};
use serde_json::json;

use crate::world::{World, asha, minimise, random, space};

#[test]
fn the_worked_example_of_asynchronous_halving() {
    for restarts in [false, true] {
        let (mut world, start) = World::start_with(minimise(asha(3, 2.0, 80, 5, 3)), restarts);
        assert_eq!(start, "create t1, create t2, create t3");
        for (number, time, metric, follows, rung, results) in [
            (1, 20.0, 0.90, "", 0, json!([0.90])),
            (2, 20.0, 0.95, "stop t2, create t4", 0, json!([0.90, 0.95])),
            (3, 20.0, 0.70, "", 0, json!([0.70, 0.90, 0.95])),
            (4, 20.0, 0.80, "", 0, json!([0.70, 0.80, 0.90, 0.95])),
            (1, 40.0, 0.85, "", 1, json!([0.85])),
            (4, 40.0, 0.60, "", 1, json!([0.60, 0.85])),
            (
                3,
                40.0,
                0.65,
                "stop t3, create t5",
                1,
                json!([0.60, 0.65, 0.85]),
            ),
            (1, 80.0, 0.80, "stop t1", 2, json!([0.80])),
        ] {
            let actions = world.validates(number, time, metric);
            assert_eq!(actions, follows, "t{number} @{time} {metric}");
            assert_eq!(results_at(&world.search, rung), results);
        }
    }
}

/// The metrics at a rung of the first bracket, best first.
fn results_at(search: &Search, rung: usize) -> serde_json::Value {
    let snapshot = search.snapshot();
    let entries = snapshot["halving"]["results"][0][rung].as_array();
    entries
        .expect("a rung")
        .iter()
        .map(|entry| entry[0].clone())
        .collect()
}

/// Printed by `NumPy` 2.4.6: per trial `randint(0, 10)`, `randint(0, 3)`, `uniform(-4, -1)`, `uniform(0, 1)`,
/// `bytes(16)`, `randint(0, 2**31)`, all from one `RandomState(42)`.
#[test]
fn trials_are_drawn_from_the_stream_of_numpy() {
    let (world, _) = World::start(minimise(random(3, 0)));
    let expected = [
        (
            7,
            "x",
            3.550_621_427_070_77e-4,
            0.779_691_000_272_769_3,
            "142ccb98-66d6-4027-b918-2272d241ef27",
            429_389_014,
        ),
        (
            8,
            "x",
            6.358_358_856_676_252e-3,
            0.708_072_577_796_045_5,
            "95064505-34fd-400e-8103-4cf857e9d4b8",
            1_427_830_251,
        ),
        (
            6,
            "y",
            3.511_356_313_970_404e-4,
            0.183_404_509_853_433_82,
            "cbd1e24d-394d-459c-9570-5686fc18cf01",
            1_855_189_739,
        ),
    ];
    assert_eq!(world.trials.len(), expected.len());
    for (trial, (a, kind, rate, e, request_id, seed)) in world.trials.iter().zip(expected) {
        assert_eq!(trial.hparams["a"], a);
        assert_eq!(trial.hparams["b"]["kind"], kind);
        // The power function may differ in the last bit between platforms; everything else is exact.
        let drawn = trial.hparams["b"]["rate"].as_f64().expect("a number");
        assert!((drawn / rate - 1.0).abs() < 1e-14, "{drawn}");
        assert_eq!(trial.hparams["e"], e);
        assert_eq!(trial.hparams["k"], 7);
        assert_eq!(trial.request_id.as_str(), request_id);
        assert_eq!(trial.seed, seed);
    }
}

#[test]
fn the_same_seed_gives_the_same_trials_and_another_seed_others() {
    let names = |seed| -> Vec<String> {
        let config = minimise(asha(3, 4.0, 100, 40, 4));
        let report = simulate(&config, &space(), seed, &mut |hparams, time| {
            hparams["e"].as_f64().unwrap_or(f64::NAN) / f64::from(u32::try_from(time).unwrap_or(1))
        });
        let trials = report.expect("a valid search").trials;
        trials
            .iter()
            .map(|trial| trial.request_id.to_string())
            .collect()
    };
    assert_eq!(names(1), names(1));
    assert_eq!(names(1).len(), 40);
    assert_ne!(names(1)[0], names(2)[0]);
}
