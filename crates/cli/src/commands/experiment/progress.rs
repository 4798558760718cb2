//! The progress of a search, in one line.

use det_ids::{TrialId, quantity};
use std::collections::BTreeMap;
use std::fmt::Write as _;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;

use crate::output;
use crate::printable::printable;
use crate::values::{fraction_done, number, rounded, state, text, wait_reason};

/// The best validation so far, and the trial that reported it.
#[derive(Debug, Clone, PartialEq)]
struct Best {
    trial: TrialId,
    value: f64,
}

/// The state of a search at one moment.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SearchView {
    /// The experiment's state, without the prefix of the wire.
    pub(super) state: String,
    /// Progress, from 0 to 1; `None` = not known, as of code outside the cluster that reports none.
    progress: Option<f64>,
    /// How many trials are in each state.
    trials: BTreeMap<String, usize>,
    /// Name of the searcher's metric.
    metric: String,
    best: Option<Best>,
    /// Why something waits, each reason once.
    waiting: Vec<String>,
}

impl SearchView {
    /// Summarises an experiment and its trials, as the API returns them.
    pub(super) fn new(experiment: &Value, trials: &[Value]) -> Self {
        let searcher = &experiment["config"]["searcher"];
        let metric = text(searcher, "metric");
        let smaller_is_better = searcher["smaller_is_better"].as_bool().unwrap_or(true);
        let mut counts = BTreeMap::new();
        let mut best: Option<Best> = None;
        let mut waiting = Vec::new();
        for trial in trials {
            *counts.entry(state(trial, "state")).or_insert(0) += 1;
            if let Some(result) = result_of(trial, &metric)
                && best.as_ref().is_none_or(|best| {
                    if smaller_is_better {
                        result.value < best.value
                    } else {
                        result.value > best.value
                    }
                })
            {
                best = Some(result);
            }
            waiting.push(wait_reason(trial));
        }
        waiting.push(wait_reason(experiment));
        waiting.retain(|reason| !reason.is_empty());
        waiting.sort_unstable();
        waiting.dedup();
        Self {
            state: state(experiment, "state"),
            progress: fraction_done(experiment),
            trials: counts,
            metric,
            best,
            waiting,
        }
    }

    /// State, trials and best result in a line.
    pub(super) fn summary(&self) -> String {
        let total: usize = self.trials.values().sum();
        let mut text = format!("{}, {}", self.state, quantity(total as u64, "trial"));
        if total > 0 {
            let counts: Vec<String> = self
                .trials
                .iter()
                .map(|(state, count)| format!("{count} {}", state.to_lowercase()))
                .collect();
            // Writing to a string does not fail.
            let _ = write!(text, " ({})", counts.join(", "));
        }
        if let Some(best) = &self.best {
            let _ = write!(
                text,
                ", best {} {} (trial {})",
                self.metric,
                rounded(best.value),
                best.trial
            );
        }
        text
    }

    fn line(&self) -> String {
        let mut line = self.summary();
        // While some trials run, it is normal that others wait.
        if let Some(reason) = self.waiting.first()
            && !self.trials.contains_key("RUNNING")
        {
            let _ = write!(line, ", waiting: {reason}");
        }
        line
    }

    /// The same with the progress, if that is known.
    fn whole_line(&self) -> String {
        let line = self.line();
        match self.percent() {
            Some(percent) => format!("{percent:>3}% {line}"),
            None => line,
        }
    }

    /// Progress in per cent, rounded down; `None` = not known.
    fn percent(&self) -> Option<u64> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the progress is between 0 and 1"
        )]
        let percent = (self.progress? * 100.0) as u64;
        Some(percent)
    }
}

/// The best validation of a trial; `None` while it has none, and for values that are not finite: those never win.
fn result_of(trial: &Value, metric: &str) -> Option<Best> {
    let value = number(&trial["bestValidation"]["metrics"]["avgMetrics"][metric])?;
    let trial = trial["id"].as_i64().map(TrialId)?;
    value.is_finite().then_some(Best { trial, value })
}

/// Shows a search on standard error: a bar at a terminal, else a line for each change.
pub(super) struct Display {
    bar: Option<ProgressBar>,
    last: String,
}

impl Display {
    pub(super) fn new() -> Self {
        let bar = output::stderr_is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(100), ProgressDrawTarget::stderr());
            let style =
                ProgressStyle::with_template("[{bar:30}] {percent:>3}% {elapsed} {wide_msg}")
                    .unwrap_or_else(|_| ProgressStyle::default_bar());
            bar.set_style(style.progress_chars("=> "));
            bar
        });
        Self {
            bar,
            last: String::new(),
        }
    }

    pub(super) fn show(&mut self, view: &SearchView) {
        if let Some(bar) = &self.bar {
            bar.set_position(view.percent().unwrap_or(0));
            bar.set_message(printable(&view.line()));
        } else {
            let line = view.whole_line();
            if line != self.last {
                output::note(&line);
                self.last = line;
            }
        }
    }

    /// Removes the bar.
    pub(super) fn clear(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn trial(id: i64, state: &str, value: &Value) -> Value {
        json!({"id": id, "state": format!("STATE_{state}"),
               "bestValidation": {"metrics": {"avgMetrics": {"loss": value}}}})
    }

    fn experiment(smaller_is_better: bool) -> Value {
        json!({"state": "STATE_RUNNING", "progress": 0.456,
               "config": {"searcher": {"metric": "loss", "smaller_is_better": smaller_is_better}}})
    }

    #[test]
    fn a_search_is_summed_up() {
        let trials = [
            trial(1, "COMPLETED", &json!(0.5)),
            trial(2, "COMPLETED", &json!(0.25)),
            trial(3, "RUNNING", &json!("NaN")),
            json!({"id": 4, "state": "STATE_QUEUED", "bestValidation": null,
                   "waitReason": {"message": "1 more slot is needed"}}),
        ];
        let view = SearchView::new(&experiment(true), &trials);
        assert_eq!(view.percent(), Some(45));
        assert!(view.whole_line().starts_with(" 45% RUNNING"));
        assert_eq!(
            view.line(),
            "RUNNING, 4 trials (2 completed, 1 queued, 1 running), best loss 0.25 (trial 2)"
        );
        let waiting = SearchView::new(&experiment(true), &[trials[0].clone(), trials[3].clone()]);
        assert_eq!(
            waiting.line(),
            "RUNNING, 2 trials (1 completed, 1 queued), best loss 0.5 (trial 1), waiting: 1 more slot is needed"
        );
        let view = SearchView::new(&experiment(false), &trials);
        assert!(
            view.line().contains("best loss 0.5 (trial 1)"),
            "{}",
            view.line()
        );
    }

    #[test]
    fn a_search_without_anything_is_fine() {
        for progress in [json!("NaN"), Value::Null] {
            let experiment = json!({"state": "STATE_QUEUED", "progress": progress});
            let view = SearchView::new(&experiment, &[]);
            assert_eq!(view.whole_line(), "QUEUED, 0 trials");
        }
    }
}
