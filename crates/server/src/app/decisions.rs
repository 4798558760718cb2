//! The orchestration core as the master runs it.

use det_orchestrator::Core;

/// What decides, without any defect. A restart replays at most so many events of a search, and a change takes some 25 ms for
/// so many trials.
pub(crate) const CORE: Core = Core {
    snapshot_every: 4096,
    trials_at_once: 256,
    mutant: None,
};
