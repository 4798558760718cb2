//! Previews and simulations.

use det_config::hyperparameters::{AdaptiveMode, SearchMethod};
use det_searcher::{Outcome, TrialLength, preview, simulate};

use crate::world::{adaptive, asha, maximise, minimise, random, space};

/// The shapes in words: `30 to 62, 8 to 250`.
fn shapes(method: SearchMethod) -> String {
    let preview = preview(&minimise(method), &space(), 42).expect("a valid search");
    let words: Vec<String> = (preview.shapes.iter())
        .map(|shape| match &shape.length {
            TrialLength::ToEnd => format!("{} to the end", shape.trials),
            TrialLength::Units { time_metric, units } => {
                assert_eq!(time_metric, "batches");
                format!("{} to {units}", shape.trials)
            }
        })
        .collect();
    words.join(", ")
}

#[test]
fn trials_are_previewed_by_length() {
    let aggressive = AdaptiveMode::Aggressive;
    for (method, expected) in [
        (SearchMethod::Single, "1 to the end"),
        (random(9, 2), "9 to the end"),
        (
            SearchMethod::Grid {
                max_concurrent_trials: 1,
            },
            "6 to the end",
        ),
        (
            adaptive(aggressive, 4.0, 1000, 40, 8),
            "30 to 62, 8 to 250, 2 to 1000",
        ),
        (asha(3, 4.0, 1000, 40, 8), "30 to 62, 8 to 250, 2 to 1000"),
        // Three brackets: 7 trials over 55, 166, 500; 3 over 166, 500; 2 at 500.
        (
            adaptive(AdaptiveMode::Conservative, 3.0, 500, 12, 4),
            "5 to 55, 3 to 166, 4 to 500",
        ),
        (asha(3, 4.0, 1000, 1, 1), "1 to 1000"),
    ] {
        assert_eq!(shapes(method.clone()), expected, "{method:?}");
    }
}

#[test]
fn a_preview_shows_brackets_sums_and_samples() {
    let method = adaptive(AdaptiveMode::Standard, 4.0, 4096, 64, 16);
    let shown = preview(&minimise(method), &space(), 42).expect("a valid search");
    let brackets: Vec<(usize, u64, u64)> = (shown.brackets.iter())
        .map(|bracket| {
            (
                bracket.rungs.len(),
                bracket.trials,
                bracket.concurrent_trials,
            )
        })
        .collect();
    assert_eq!(brackets, [(4, 45, 6), (3, 14, 5), (2, 5, 5)]);
    assert_eq!(shown.brackets[0].rungs, [64, 256, 1024, 4096]);
    assert_eq!(shown.trials(), 64);
    assert_eq!(shown.samples.len(), 5);
    assert_eq!(shown.samples[0]["a"], 7);

    let random = preview(&minimise(random(3, 1)), &space(), 42).expect("a valid search");
    assert_eq!((random.units(), random.samples.len()), (None, 1));
    let halving = preview(&minimise(asha(3, 4.0, 1000, 40, 8)), &space(), 42);
    let units = halving.expect("a valid search").units();
    assert_eq!(units, Some(30 * 62 + 8 * 250 + 2 * 1000));
}

#[test]
fn a_simulated_search_finds_a_good_trial_with_a_fraction_of_the_training() {
    let config = maximise(adaptive(AdaptiveMode::Aggressive, 4.0, 256, 64, 8));
    let mut asked = 0;
    let report = simulate(&config, &space(), 7, &mut |hparams, time| {
        asked += 1;
        let quality = hparams["e"].as_f64().expect("a number");
        let time = f64::from(u32::try_from(time).expect("a short time"));
        quality * (1.0 - (-time / 32.0).exp())
    })
    .expect("a valid search");
    assert_eq!(report.outcome, Outcome::Completed);
    assert_eq!(report.trials.len(), 64);
    assert!(report.most_at_once <= 8 + 1, "{}", report.most_at_once);
    assert!(report.trials.iter().all(|trial| trial.stopped));
    let best = report.best().expect("there are trials");
    assert_eq!(best.trained, 256);
    // The best quarter of the samples, for well under half of the full training.
    assert!(best.hparams["e"].as_f64().expect("a number") > 0.75);
    assert!(report.trained < 64 * 256 / 2, "{}", report.trained);
    assert!(report.duration >= report.trained / 8);
    assert!(asked >= 64);
}

#[test]
fn a_search_of_ten_thousand_trials_runs_to_its_end() {
    let config = minimise(asha(5, 4.0, 4096, 10_000, 100));
    let report = simulate(&config, &space(), 1, &mut |hparams, _| {
        hparams["e"].as_f64().expect("a number")
    })
    .expect("a valid search");
    assert_eq!(report.trials.len(), 10_000);
    assert_eq!(report.outcome, Outcome::Completed);
    // At every rung each result is compared with those before it, so at least the best quarter of the first rung
    // continues.
    let beyond_first = report.trials.iter().filter(|trial| trial.trained > 16);
    assert!(beyond_first.count() >= 2_500);
}

#[test]
fn searches_without_a_time_metric_are_simulated_too() {
    let grid = SearchMethod::Grid {
        max_concurrent_trials: 4,
    };
    let report = simulate(&minimise(grid), &space(), 1, &mut |hparams, time| {
        assert_eq!(time, 1);
        hparams["a"].as_f64().expect("a number")
    })
    .expect("a valid search");
    assert_eq!(
        (report.trials.len(), report.most_at_once, report.duration),
        (6, 4, 2)
    );
    assert_eq!(
        report.best().map(|trial| &trial.hparams["a"]),
        Some(&serde_json::json!(1))
    );
    assert!(simulate(&minimise(random(0, 1)), &space(), 1, &mut |_, _| 0.0).is_err());
}
