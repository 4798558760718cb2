//! Deliberate defects, to show that checks of the decisions can fail.

/// A defect. Most of them were defects of the product at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// Metrics of an older run are accepted.
    UnfencedMetrics,
    /// Checkpoints of an older run are accepted.
    UnfencedCheckpoints,
    /// An older run can end the trial early.
    UnfencedEarlyExit,
    /// Validations reach the search in memory and are not stored for it.
    LosesSearchEvents,
    /// A late report of an earlier connection moves a container back.
    MovesBack,
    /// Changes of a trial's state are stored without their event in the record.
    NoEvents,
    /// The search of a continued experiment creates its earlier trials once more.
    CreatesTwice,
    /// The planner is not woken when code is about to end.
    UnreportedEnd,
    /// The planner does not receive which slots are held.
    DoublePlacement,
    /// Places that stay away are waited for without end.
    EndlessPatience,
    /// When the end of a connection cannot be stored, it is not tried again.
    IgnoresAbsence,
}
