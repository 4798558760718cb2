//! A container of an allocation: what its row asks for, and what was last observed of it.
//!
//! Where a container runs, on an agent's machine or in a pod of a cluster, is known to its resource manager, which
//! translates what is reported into [`ObservedState`].

use det_taskspec::{ContainerExit, ExitCause};
use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantNames};

use crate::allocation::{MemberExit, MemberProgress, Phase};

/// What is to become of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EnumString, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum DesiredState {
    /// It is to be started if it does not run yet, and to go on.
    Run,
    /// It is to end: it is asked first, and killed when its grace is over.
    Stop,
    /// It is to end at once, without being asked.
    Kill,
}

impl DesiredState {
    /// Whether a container that is live and does not run yet is started.
    pub fn starts(self) -> bool {
        match self {
            Self::Run => true,
            Self::Stop | Self::Kill => false,
        }
    }
}

/// What was last observed of a container. It only ever moves downward in this list: what would move it upward was
/// overtaken by a newer observation, see [`ObservedState::is_before`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum ObservedState {
    /// Its place has accepted it.
    Assigned,
    /// The image is being pulled.
    Pulling,
    /// Its image is here; the container is being created and started.
    Starting,
    /// The supervisor runs in it, and with it or soon the task's code.
    Running {
        /// Address of the host for the allocation's other containers.
        host_address: String,
        /// Published ports: container port and host port.
        ports: Vec<(u16, u16)>,
        /// What the place calls it: a process id, a container engine's id.
        runtime_id: String,
    },
    /// Ended; its logs have been handed over, or given up, with a line about it.
    Terminated {
        /// How the container ended: exit code, signal or failure.
        exit: ContainerExit,
        /// What is known of how its code failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<ExitCause>,
    },
}

impl ObservedState {
    /// Whether this comes before `other` in a container's life.
    pub fn is_before(&self, other: &Self) -> bool {
        self.rank() < other.rank()
    }

    /// Where the other containers of an allocation reach one that `joined` their meeting: the address of its host. `None` =
    /// it has not come, or does not run (yet, or any more).
    pub fn met_at(joined: bool, observed: Option<&Self>) -> Option<&str> {
        match observed {
            Some(Self::Running { host_address, .. }) if joined => Some(host_address),
            _ => None,
        }
    }

    /// Where all containers of an allocation are reached, in their order, once they have met: [`Self::met_at`] of each.
    /// `None` = some are missing.
    pub fn meeting<'a>(
        members: impl IntoIterator<Item = (bool, Option<&'a Self>)>,
    ) -> Option<Vec<&'a str>> {
        let members = members.into_iter();
        members
            .map(|(joined, observed)| Self::met_at(joined, observed))
            .collect()
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Assigned => 0,
            Self::Pulling => 1,
            Self::Starting => 2,
            Self::Running { .. } => 3,
            Self::Terminated { .. } => 4,
        }
    }
}

impl MemberProgress {
    /// What a member of an allocation does, by what was last observed of its container; `None` = nothing yet.
    pub fn of(observed: Option<&ObservedState>) -> Self {
        match observed {
            None | Some(ObservedState::Assigned) => Self::Alive(Phase::Assigned),
            Some(ObservedState::Pulling) => Self::Alive(Phase::Pulling),
            Some(ObservedState::Starting) => Self::Alive(Phase::Starting),
            Some(ObservedState::Running { .. }) => Self::Alive(Phase::Running),
            Some(ObservedState::Terminated { exit, .. }) => Self::Ended(member_exit(exit)),
        }
    }
}

/// The failure of the member `rank` of a gang, if its code failed: when, in microseconds by the clock of its host, and a
/// sentence for users that names what failed first in it, where, and its last lines. Of a member that was killed because
/// another had failed it is what had failed in it before.
pub fn gang_failure(
    observed: Option<&ObservedState>,
    (member, place): (u32, &str),
) -> Option<(i64, String)> {
    let Some(ObservedState::Terminated { exit, cause }) = observed else {
        return None;
    };
    let cause = cause.as_ref();
    let reason = match member_exit(exit) {
        MemberExit::Failed(reason) => reason,
        MemberExit::Killed => exit_sentence(cause?.exit_code?),
        MemberExit::Success | MemberExit::Infrastructure(_) => return None,
    };
    // One without a time comes last.
    let at = cause.map_or(i64::MAX, |cause| cause.at);
    Some((at, gang_sentence(&reason, cause, (member, place))))
}

/// The failure of a gang's member, for users.
fn gang_sentence(reason: &str, cause: Option<&ExitCause>, (member, place): (u32, &str)) -> String {
    let rank = cause.and_then(|cause| cause.rank).unwrap_or(member);
    let what = match cause.and_then(|cause| cause.exit_code) {
        Some(code) => exit_sentence(code),
        None => reason.to_owned(),
    };
    let lines = cause.map_or(&[][..], |cause| &cause.last_lines);
    let lines = if lines.is_empty() {
        String::new()
    } else {
        format!("; its last lines: {}", lines.join(" | "))
    };
    format!("rank {rank} on place {place} failed first: {what}{lines}")
}

fn member_exit(exit: &ContainerExit) -> MemberExit {
    match exit {
        ContainerExit::Exited { code: 0 } => MemberExit::Success,
        ContainerExit::Exited { code } => MemberExit::Failed(exit_sentence(*code)),
        ContainerExit::Signaled {
            out_of_memory: true,
            ..
        } => MemberExit::Failed("the code was killed by the kernel because memory ran out".into()),
        ContainerExit::Signaled { signal, .. } => {
            let name = signal_name(*signal).map_or_else(String::new, |name| format!(" ({name})"));
            MemberExit::Failed(format!("the code was killed by signal {signal}{name}"))
        }
        // The image or the hook will fail again: charged, so that it comes to an end.
        ContainerExit::SetupFailed { code, message } => MemberExit::Failed(format!(
            "the task could not be started (exit code {code}): {message}"
        )),
        ContainerExit::StartFailed { message } => {
            MemberExit::Failed(format!("the task could not be started: {message}"))
        }
        ContainerExit::Lost { message } => {
            MemberExit::Infrastructure(format!("the container was lost: {message}"))
        }
        ContainerExit::Killed => MemberExit::Killed,
    }
}

fn exit_sentence(code: i32) -> String {
    let meaning = match code {
        126 => " (the entrypoint is not executable)".to_owned(),
        127 => " (the entrypoint was not found)".to_owned(),
        137 => " (ended by SIGKILL, often because memory ran out)".to_owned(),
        // A shell adds 128 to the signal that ended what it ran.
        _ => code
            .checked_sub(128)
            .and_then(signal_name)
            .map_or_else(String::new, |name| format!(" (ended by {name})")),
    };
    format!("the code ended with exit code {code}{meaning}")
}

/// The name of a signal that ends a process, by its number on Linux.
fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_wish_is_refused() {
        assert_eq!("kill".parse(), Ok(DesiredState::Kill));
        assert_eq!(<&str>::from(DesiredState::Stop), "stop");
        assert!("destroy".parse::<DesiredState>().is_err());
    }

    #[test]
    fn an_end_by_a_signal_has_its_name_also_as_shells_report_it() {
        let sentence = |exit| match member_exit(&exit) {
            MemberExit::Failed(sentence) => sentence,
            other => panic!("{other:?} is no failure"),
        };
        let exited = |code| sentence(ContainerExit::Exited { code });
        assert_eq!(
            exited(139),
            "the code ended with exit code 139 (ended by SIGSEGV)"
        );
        assert_eq!(
            exited(143),
            "the code ended with exit code 143 (ended by SIGTERM)"
        );
        for code in [1, 2, 128, 200, 255, i32::MIN, i32::MAX] {
            assert_eq!(
                exited(code),
                format!("the code ended with exit code {code}")
            );
        }
        let signaled = |signal| {
            sentence(ContainerExit::Signaled {
                signal,
                out_of_memory: false,
            })
        };
        assert_eq!(signaled(11), "the code was killed by signal 11 (SIGSEGV)");
        assert_eq!(signaled(64), "the code was killed by signal 64");
    }

    #[test]
    fn the_failure_of_a_gang_names_rank_place_code_and_last_lines() {
        let ended = |cause| ObservedState::Terminated {
            exit: ContainerExit::Exited { code: 1 },
            cause,
        };
        let sentence = |cause| gang_failure(Some(&ended(cause)), (1, "b")).unwrap().1;
        assert_eq!(
            sentence(None),
            "rank 1 on place b failed first: the code ended with exit code 1"
        );
        let cause = ExitCause {
            at: 5,
            rank: Some(3),
            exit_code: Some(137),
            last_lines: vec!["step 7".into(), "step 8".into()],
        };
        assert_eq!(
            sentence(Some(cause.clone())),
            "rank 3 on place b failed first: the code ended with exit code 137 (ended by SIGKILL, often because memory ran \
             out); its last lines: step 7 | step 8"
        );
        let killed = |cause| ObservedState::Terminated {
            exit: ContainerExit::Killed,
            cause,
        };
        // Killed because another was reported first.
        assert_eq!(
            gang_failure(Some(&killed(Some(cause.clone()))), (1, "b")),
            Some((5, sentence(Some(cause))))
        );
        assert_eq!(gang_failure(Some(&killed(None)), (0, "a")), None);
    }

    #[test]
    fn containers_only_move_on() {
        let running = ObservedState::Running {
            host_address: "h".into(),
            ports: vec![],
            runtime_id: "1".into(),
        };
        assert!(ObservedState::Pulling.is_before(&running));
        assert!(!running.is_before(&running.clone()));
        assert!(
            !ObservedState::Terminated {
                exit: ContainerExit::Killed,
                cause: None,
            }
            .is_before(&running)
        );
    }
}
