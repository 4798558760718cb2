//! How a container ended, by what is known of its end.

use crate::ContainerExit;

/// Signals with which agents, supervisors and kubelets end containers.
const ENDING: [i32; 4] = [
    2,  // SIGINT
    3,  // SIGQUIT
    9,  // SIGKILL
    15, // SIGTERM
];

impl ContainerExit {
    /// Determines how a container ended. `report` is what its supervisor has left, `ordered` whether the master wanted it
    /// to end, and `out_of_memory` whether the kernel has killed a process of it because memory ran out.
    ///
    /// The supervisor's report is used, except that an end which was ordered, and which came from the signals that carry
    /// such an order out, is [`ContainerExit::Killed`]. A task that ended by itself although it was asked to end keeps its
    /// exit code: it may have finished. `None` = nothing is known, and the container is lost.
    pub fn of_end(report: Option<Self>, ordered: bool, out_of_memory: bool) -> Option<Self> {
        let killed_for_memory = Self::Signaled {
            signal: 9,
            out_of_memory: true,
        };
        match report {
            Some(exit) if ordered && exit.is_by_signal() => Some(Self::Killed),
            Some(Self::Signaled { signal: 9, .. }) if out_of_memory => Some(killed_for_memory),
            Some(exit) => Some(exit),
            None if ordered => Some(Self::Killed),
            None => out_of_memory.then_some(killed_for_memory),
        }
    }

    fn is_by_signal(&self) -> bool {
        match self {
            // Shells add 128 to the signal that ended what they ran; scripts in Python hand its negative number to
            // `sys.exit`, as the launchers of the PyPI package do.
            Self::Exited { code } => ENDING
                .iter()
                .any(|signal| *code == 128 + signal || *code == 256 - signal),
            Self::Signaled {
                signal,
                out_of_memory,
            } => ENDING.contains(signal) && !out_of_memory,
            // It was stopped before the entrypoint ran, whatever the supervisor reported.
            Self::SetupFailed { .. }
            | Self::StartFailed { .. }
            | Self::Lost { .. }
            | Self::Killed => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_follows_from_report_order_and_memory() {
        let exited = |code| ContainerExit::Exited { code };
        let signaled = |signal, out_of_memory| ContainerExit::Signaled {
            signal,
            out_of_memory,
        };
        let killed = || Some(ContainerExit::Killed);
        let lost = ContainerExit::Lost {
            message: "asked to end".into(),
        };
        for (scenario, report, (ordered, memory), expected) in [
            ("it ended", Some(exited(3)), (false, false), Some(exited(3))),
            (
                "asked, it finished",
                Some(exited(0)),
                (true, false),
                Some(exited(0)),
            ),
            (
                "asked, it ended as shells report SIGTERM",
                Some(exited(143)),
                (true, false),
                killed(),
            ),
            (
                "asked, it ended as launchers in Python report SIGTERM",
                Some(exited(241)),
                (true, false),
                killed(),
            ),
            (
                "asked, its supervisor was ended before the code",
                Some(lost.clone()),
                (true, false),
                killed(),
            ),
            (
                "its host was stopped",
                Some(lost.clone()),
                (false, false),
                Some(lost),
            ),
            (
                "memory ran out",
                Some(signaled(9, false)),
                (false, true),
                Some(signaled(9, true)),
            ),
            (
                "memory ran out after it was asked",
                Some(signaled(9, true)),
                (true, true),
                Some(signaled(9, true)),
            ),
            (
                "its supervisor was killed for memory",
                None,
                (false, true),
                Some(signaled(9, true)),
            ),
            ("killed without a report", None, (true, false), killed()),
            ("nothing is known", None, (false, false), None),
            (
                "a code out of range",
                Some(exited(i32::MIN)),
                (true, false),
                Some(exited(i32::MIN)),
            ),
        ] {
            assert_eq!(
                ContainerExit::of_end(report, ordered, memory),
                expected,
                "{scenario}"
            );
        }
    }
}
