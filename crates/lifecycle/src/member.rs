//! What an agent's words on a container mean for its allocation.

use det_agent_proto::ContainerState;
use det_taskspec::ContainerExit;

use crate::allocation::{MemberExit, MemberProgress, Phase};

impl MemberProgress {
    /// What a member does, by the agent's last report; `None` = there was none yet.
    pub fn of(observed: Option<&ContainerState>) -> Self {
        match observed {
            None | Some(ContainerState::Assigned) => Self::Alive(Phase::Assigned),
            Some(ContainerState::Pulling) => Self::Alive(Phase::Pulling),
            Some(ContainerState::Starting) => Self::Alive(Phase::Starting),
            Some(ContainerState::Running { .. }) => Self::Alive(Phase::Running),
            Some(ContainerState::Terminated { exit }) => Self::Ended(member_exit(exit)),
        }
    }
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
            MemberExit::Failed(format!("the code was killed by signal {signal}"))
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
        126 => " (the entrypoint is not executable)",
        127 => " (the entrypoint was not found)",
        137 => " (killed, often because memory ran out)",
        143 => " (ended by SIGTERM)",
        _ => "",
    };
    format!("the code ended with exit code {code}{meaning}")
}
