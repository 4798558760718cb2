//! Whether a trial that fails may be started again, beyond the count of its restarts.

use det_lifecycle::log_findings::LogFindings;
use det_scheduler::{PoolSnapshot, SlotDemand, can_ever_fit};

/// Whether what was found in the log of a trial's task allows another start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MayRestart {
    /// No finding of a log policy forbids another start.
    Yes,
    /// It is not started again, for this reason.
    No(String),
    /// It is, unless no place is left for it: [`nowhere_left`].
    IfItFits,
}

impl MayRestart {
    /// By what was found. `refuses_misfits` = work that no place can hold is refused (`launch_error`).
    pub fn of(findings: Option<&LogFindings>, refuses_misfits: bool) -> Self {
        let Some(findings) = findings else {
            return Self::Yes;
        };
        match &findings.retries_canceled_by {
            Some(policy) => Self::No(format!(
                "trial failed and matched logs to a don't retry policy (\"{policy}\")"
            )),
            None if findings.excluded_places.is_empty() || !refuses_misfits => Self::Yes,
            None => Self::IfItFits,
        }
    }
}

/// Why a pool, whose places are these, can never run a trial again that must not run on the places it avoids; `None` = it
/// can.
pub fn nowhere_left(pool: &str, places: &PoolSnapshot, ask: &SlotDemand<'_>) -> Option<String> {
    can_ever_fit(places, ask).err().map(|never| {
        format!(
            "without the places that its log policies exclude, resource pool \"{pool}\" cannot run it: {never}"
        )
    })
}
