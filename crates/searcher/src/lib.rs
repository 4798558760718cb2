//! Hyperparameter search: single, random, grid, ASHA, adaptive ASHA.
//!
//! A [`Search`] is the whole state of one experiment's search. It receives what happens to trials ([`Event`]) and
//! returns what to do ([`Action`]): create a trial, stop one, shut down. It never decides how long a trial trains; a trial
//! runs until its own code ends or the search stops it. The crate is pure: it knows no experiments, slots, time of day,
//! files or ambient randomness; the same seed and the same events give the same actions, on any machine, also across
//! [`Search::snapshot`] and [`Search::restore`].
//!
//! Read in this order:
//!
//! 1. [`Event`] and [`Action`]: the input and the output.
//! 2. [`Search`] (`search.rs`): trials, counters, progress, shutdown; it delegates decisions to one of three methods.
//! 3. The methods: `random.rs` (also single), `grid.rs`, and `adaptive.rs`, which contains brackets of `asha.rs`.
//! 4. `sample.rs` and `rng.rs`: how a trial's hyperparameters, id and seed are drawn.
//! 5. [`preview()`] and [`simulate()`]: what a configuration will do, without running it.
//!
//! ```
//! use std::collections::BTreeMap;
//!
//! use det_config::hyperparameters::{Hyperparameter, SearchMethod, SearcherConfig};
//! use det_searcher::{Action, Event, Outcome, Search};
//!
//! let config = SearcherConfig {
//!     metric: "loss".to_owned(),
//!     smaller_is_better: true,
//!     source_trial_id: None,
//!     source_checkpoint_uuid: None,
//!     method: SearchMethod::Random { max_trials: 2, max_concurrent_trials: 1 },
//! };
//! let rate = Hyperparameter::Log { minval: -4.0, maxval: -1.0, base: 10.0, count: None };
//! let space = BTreeMap::from([("learning_rate".to_owned(), rate)]);
//!
//! let mut search = Search::new(&config, &space, 42)?;
//! let mut actions = search.start();
//! while let Some(Action::Create { request_id, .. }) = actions.pop() {
//!     actions = search.on(Event::Ended { request_id });
//! }
//! assert_eq!(search.outcome(), Some(Outcome::Completed));
//! # Ok::<(), det_searcher::SearchError>(())
//! ```

mod adaptive;
mod asha;
mod creation;
mod divisor;
mod error;
mod event;
mod grid;
mod number;
mod preview;
mod random;
mod rng;
mod sample;
mod search;
mod simulate;
mod snapshot;
mod trials;

pub use error::{MAX_RUNGS, MAX_TRIALS, SearchError};
pub use event::{Action, Event, ExitReason, Outcome, StopReason};
pub use preview::{BracketPreview, Preview, TrialLength, TrialShape, preview};
pub use search::{MAX_INVALID_IN_A_ROW, Search};
pub use simulate::{SimulatedTrial, SimulationReport, simulate};
pub use trials::TrialState;
