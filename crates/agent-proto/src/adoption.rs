//! What a restarted agent makes of a container whose start an earlier agent had announced.
//!
//! There are never two copies: a container that cannot be proven absent is not started again.

/// What the agent does about the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adoption {
    /// It runs: supervise it further.
    TakeUp,
    /// It ran and has ended: report its end.
    NameEnd,
    /// It never ran, and is to be ended: it ends without having run.
    NeverRan,
    /// It never ran: start it.
    Launch,
}

/// A deliberate defect, to show that checks of the decision can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// A restarted agent starts again what it had started.
    StartsTwice,
}

/// Decides what to do. `runs` = the runtime has it; `has_run` = a supervisor has left traces in its directory; `to_end` =
/// the master has asked for its end. `mutant` is ignored unless the feature `mutants` is enabled.
pub fn adoption(runs: bool, has_run: bool, to_end: bool, mutant: Option<Mutant>) -> Adoption {
    if cfg!(feature = "mutants") && mutant == Some(Mutant::StartsTwice) {
        return Adoption::Launch;
    }
    match (runs, has_run, to_end) {
        (true, _, _) => Adoption::TakeUp,
        (false, true, _) => Adoption::NameEnd,
        (false, false, true) => Adoption::NeverRan,
        (false, false, false) => Adoption::Launch,
    }
}

#[cfg(test)]
mod tests {
    use super::Adoption;

    fn adoption(runs: bool, has_run: bool, to_end: bool) -> Adoption {
        super::adoption(runs, has_run, to_end, None)
    }

    #[test]
    fn what_ran_is_not_started_again() {
        for to_end in [false, true] {
            assert_eq!(adoption(true, true, to_end), Adoption::TakeUp);
            // Between the start and its first trace.
            assert_eq!(adoption(true, false, to_end), Adoption::TakeUp);
            assert_eq!(adoption(false, true, to_end), Adoption::NameEnd);
        }
        assert_eq!(adoption(false, false, false), Adoption::Launch);
        assert_eq!(adoption(false, false, true), Adoption::NeverRan);
    }
}
