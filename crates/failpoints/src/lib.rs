//! Places at which tests end the process, to check that the next start finishes or unwinds what was under way.
//!
//! A point is placed before or after an effect: `failpoint!("store::writer::before_commit")`. Every point is listed in
//! [`POINTS`]; a test compares the list with the sources. Without the feature `armed`, which only tests turn on, a point
//! is nothing at all.
//!
//! With it, `DET_FAILPOINT=name` ends the process the first time that it reaches this point, and `name@3` the third
//! time: by `abort`, so that nothing is cleaned up, as after a crash or `kill -9`. The crate `fail` is not used: one action
//! is enough, the list must be checked, and release builds must not carry a dependency for it.

/// The environment variable that arms a point.
pub const VARIABLE: &str = "DET_FAILPOINT";

/// A part of the product that ends as one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The master with its store.
    Master,
    /// The agent with its containers' records.
    Agent,
}

/// Every point, with the part that it ends.
pub const POINTS: &[(&str, Part)] = &[
    ("agent::connection::join::after_hello", Part::Agent),
    ("agent::container::accept::before_record", Part::Agent),
    ("agent::container::accept::after_record", Part::Agent),
    ("agent::container::launch::before_record", Part::Agent),
    ("agent::container::launch::after_record", Part::Agent),
    ("agent::container::launch::after_start", Part::Agent),
    ("agent::container::end::before_record", Part::Agent),
    ("agent::container::end::after_hand_over", Part::Agent),
    ("agent::container::forget::before_remove", Part::Agent),
    ("agent::container::forget::after_remove", Part::Agent),
    ("server::places::join::before_commit", Part::Master),
    ("server::places::join::after_commit", Part::Master),
    ("server::checkpoints::remove::after_mark", Part::Master),
    ("server::checkpoints::report::before_commit", Part::Master),
    ("server::checkpoints::report::after_commit", Part::Master),
    ("server::clean_up::delete::before_files", Part::Master),
    ("server::clean_up::delete::after_files", Part::Master),
    ("server::clean_up::delete::before_commit", Part::Master),
    ("server::clean_up::delete::after_commit", Part::Master),
    ("rm_agents::connection::forget::before_send", Part::Master),
    ("rm_agents::connection::start::before_send", Part::Master),
    ("rm_agents::connection::start::after_send", Part::Master),
    ("server::containers::report::before_commit", Part::Master),
    ("server::containers::report::after_commit", Part::Master),
    ("server::experiments::create::before_commit", Part::Master),
    ("server::experiments::create::after_commit", Part::Master),
    ("server::lifecycle::end_trial::before_commit", Part::Master),
    ("server::lifecycle::end_trial::after_commit", Part::Master),
    ("server::lifecycle::preempt::before_commit", Part::Master),
    ("server::lifecycle::preempt::after_commit", Part::Master),
    ("server::log_retention::sweep::before_commit", Part::Master),
    ("server::log_retention::sweep::after_commit", Part::Master),
    ("server::metrics::compact::before_commit", Part::Master),
    ("server::metrics::compact::after_commit", Part::Master),
    ("server::metrics::gather::before_commit", Part::Master),
    ("server::metrics::gather::after_commit", Part::Master),
    ("server::metrics::store::before_commit", Part::Master),
    ("server::metrics::store::after_commit", Part::Master),
    ("server::schedule::place::before_commit", Part::Master),
    ("server::schedule::place::after_commit", Part::Master),
    ("store::writer::before_begin", Part::Master),
    ("store::writer::before_commit", Part::Master),
    ("store::writer::after_commit", Part::Master),
    ("store::writer::after_effects", Part::Master),
];

/// A place at which a test may end the process.
#[macro_export]
macro_rules! failpoint {
    ($name:literal) => {
        $crate::reach($name)
    };
}

/// Reaches a point: nothing, since points are not armed in this build.
#[cfg(not(feature = "armed"))]
#[inline]
pub fn reach(_name: &'static str) {}

/// Reaches a point: ends the process if it is armed, and also if it is not listed, since then no test knows of it.
#[cfg(feature = "armed")]
pub fn reach(name: &'static str) {
    use std::io::Write as _;
    use std::sync::atomic::{AtomicU64, Ordering};

    static REACHED: AtomicU64 = AtomicU64::new(0);
    let end = |why: &str| {
        // The process is about to end without any other output.
        let _ = writeln!(std::io::stderr(), "failpoint {name}: {why}");
        std::process::abort();
    };
    if !POINTS.iter().any(|(known, _)| *known == name) {
        end("it is not listed in det_failpoints::POINTS");
    }
    let Some(armed) = std::env::var_os(VARIABLE) else {
        return;
    };
    let armed = armed.to_string_lossy();
    let (wanted, times) = armed.split_once('@').unwrap_or((&armed, "1"));
    if wanted != name {
        return;
    }
    let Ok(times) = times.parse::<u64>() else {
        end("DET_FAILPOINT must be NAME or NAME@NUMBER");
        return;
    };
    if REACHED.fetch_add(1, Ordering::SeqCst) + 1 == times {
        end("the process ends here");
    }
}
