//! Determines a container's exit reason from what is known of its end. Pure.

use det_taskspec::ContainerExit;
use det_taskspec::sandbox::CANNOT_REPORT;

use super::store::KillOrder;
use crate::runtime::engine::EngineEnd;

/// What the runtime reports of an end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RuntimeEnd {
    /// A process ended; the kernel reports the exit status only to its parent.
    Process {
        /// Whether the kernel has killed a process of its control group for lack of memory.
        out_of_memory: bool,
    },
    /// A container of an engine ended, with what the engine reports.
    Engine(EngineEnd),
}

/// Determines the exit reason: [`ContainerExit::of_end`], by what the runtime reports. With nothing known it is "lost".
pub(super) fn name(
    report: Option<ContainerExit>,
    kill: Option<KillOrder>,
    end: &RuntimeEnd,
    last_words: &str,
) -> ContainerExit {
    let out_of_memory = matches!(
        end,
        RuntimeEnd::Process {
            out_of_memory: true
        } | RuntimeEnd::Engine(EngineEnd::Exited {
            out_of_memory: true,
            ..
        })
    );
    let exit = ContainerExit::of_end(report, kill.is_some(), out_of_memory);
    exit.unwrap_or_else(|| match end {
        // It will be the same when it is started again.
        RuntimeEnd::Engine(EngineEnd::Exited { code, .. }) if *code == i64::from(CANNOT_REPORT) => {
            ContainerExit::StartFailed {
                message: "permission denied: the task's user can neither read nor write what the agent prepares, as users \
                          with linked accounts in containers of a rootless engine"
                    .to_owned(),
            }
        }
        end => ContainerExit::Lost {
            message: lost(end, last_words),
        },
    })
}

fn lost(end: &RuntimeEnd, last_words: &str) -> String {
    let what = match end {
        RuntimeEnd::Process { .. } => {
            "the task's processes ended without an exit report: they were killed from outside, the host restarted, or its \
             disk had no space for the report"
                .to_owned()
        }
        RuntimeEnd::Engine(EngineEnd::Gone) => {
            "the container was removed from its engine by something other than this agent".to_owned()
        }
        RuntimeEnd::Engine(EngineEnd::Exited { code, .. }) => format!(
            "the container ended with code {code} and without an exit report: it was stopped from outside, or its \
             engine or host restarted"
        ),
    };
    if last_words.is_empty() {
        what
    } else {
        format!("{what}; its supervisor's last words: {last_words}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROCESS: RuntimeEnd = RuntimeEnd::Process {
        out_of_memory: false,
    };
    const ASKED: Option<KillOrder> = Some(KillOrder::Gracefully);

    fn exited(code: i32) -> ContainerExit {
        ContainerExit::Exited { code }
    }

    fn signaled(signal: i32, out_of_memory: bool) -> ContainerExit {
        ContainerExit::Signaled {
            signal,
            out_of_memory,
        }
    }

    fn engine(code: i64, out_of_memory: bool) -> RuntimeEnd {
        RuntimeEnd::Engine(EngineEnd::Exited {
            code,
            out_of_memory,
        })
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table of cases")]
    fn ends_and_their_names() {
        let process = PROCESS;
        let killed_for_memory = RuntimeEnd::Process {
            out_of_memory: true,
        };
        for (scenario, report, kill, end, expected) in [
            (
                "it ended by itself",
                Some(exited(0)),
                None,
                &process,
                exited(0),
            ),
            ("it failed", Some(exited(1)), None, &process, exited(1)),
            (
                "it was ended by a signal that this agent did not send",
                Some(signaled(9, false)),
                None,
                &process,
                signaled(9, false),
            ),
            (
                "it was killed at once",
                Some(signaled(9, false)),
                Some(KillOrder::AtOnce),
                &process,
                ContainerExit::Killed,
            ),
            (
                "its shell reports the signal",
                Some(exited(143)),
                ASKED,
                &process,
                ContainerExit::Killed,
            ),
            (
                "it finished although asked to end",
                Some(exited(0)),
                ASKED,
                &process,
                exited(0),
            ),
            (
                "it failed although asked to end",
                Some(exited(7)),
                ASKED,
                &process,
                exited(7),
            ),
            (
                "it was killed before it could report",
                None,
                ASKED,
                &process,
                ContainerExit::Killed,
            ),
            (
                "the kernel killed the task for memory",
                Some(signaled(9, false)),
                None,
                &engine(137, true),
                signaled(9, true),
            ),
            (
                "the kernel killed the supervisor for memory",
                None,
                None,
                &engine(137, true),
                signaled(9, true),
            ),
            (
                "the kernel killed the supervisor of a process task for memory",
                None,
                None,
                &killed_for_memory,
                signaled(9, true),
            ),
            (
                "a part of it was killed for memory, which it survived",
                Some(exited(0)),
                None,
                &killed_for_memory,
                exited(0),
            ),
            (
                "memory ran out after it was asked to end",
                Some(signaled(9, true)),
                ASKED,
                &process,
                signaled(9, true),
            ),
        ] {
            assert_eq!(name(report, kill, end, ""), expected, "{scenario}");
        }
    }

    #[test]
    fn a_user_that_may_not_read_what_was_prepared_is_the_reason() {
        let exit = name(None, None, &engine(i64::from(CANNOT_REPORT), false), "");
        assert!(
            matches!(exit, ContainerExit::StartFailed { message } if message.starts_with("permission denied"))
        );
    }

    #[test]
    fn a_lost_container_reports_what_is_known() {
        let message = |end: &RuntimeEnd, words: &str| match name(None, None, end, words) {
            ContainerExit::Lost { message } => message,
            other => panic!("{other:?}"),
        };
        assert!(message(&PROCESS, "").contains("killed from outside"));
        assert!(message(&RuntimeEnd::Engine(EngineEnd::Gone), "").contains("removed"));
        let text = message(&engine(127, false), "no such file");
        assert!(
            text.contains("code 127") && text.contains("no such file"),
            "{text}"
        );
    }
}
