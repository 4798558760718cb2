//! What a pod's status means for its container.
//!
//! | pod | observed |
//! | --- | --- |
//! | without a node | assigned |
//! | with a node, no init container has started | pulling |
//! | an init container has started | starting |
//! | its task's container runs and it has an address | running |
//! | its task's container has ended | terminated: what its exit report contains, see [`ContainerExit::of_end`] |
//! | the same, and Kubernetes or a user has ended the pod | lost, unless the code ended well |
//! | the same, and it ran longer than the deadline of its pod spec | terminated: ended by a signal |
//! | an init container failed | terminated: the set-up failed |
//! | failed, and no container of the task was ever reported | lost |
//! | being deleted, and its task's container never ran | killed if that was ordered, else lost |
//! | its node cannot be asked | nothing |

use det_lifecycle::container::ObservedState;
use det_taskspec::pods::read_termination_message;
use det_taskspec::{ContainerExit, ExitCause};

use crate::pod::{ContainerFacts, ContainerState, PodFacts, PodPhase};
use crate::user_spec::INIT_CONTAINER;

/// Reasons with which runtimes report that they could not start a container.
const NOT_STARTED: [&str; 4] = [
    "StartError",
    "ContainerCannotRun",
    "ContainerStatusUnknown",
    "RunContainerError",
];

/// How a container ended, with what is known of how its code failed.
type End = (ContainerExit, Option<ExitCause>);

/// What was observed of a container, from its pod's status; `None` = nothing that is known now. `ordered_end` is whether the
/// container was wanted to end, by the master or because its gang has ended: the pods of a Job that has failed are ended by
/// Kubernetes.
pub fn observed(pod: &PodFacts, ordered_end: bool) -> Option<ObservedState> {
    if let Some((exit, cause)) = end(pod, ordered_end) {
        return Some(ObservedState::Terminated { exit, cause });
    }
    if pod.phase == PodPhase::Unknown {
        return None;
    }
    if pod.node.is_none() {
        return Some(ObservedState::Assigned);
    }
    if pod.task.state == ContainerState::Running
        && let Some(address) = pod.pod_ip.as_ref().or(pod.host_ip.as_ref())
    {
        return Some(ObservedState::Running {
            host_address: address.clone(),
            ports: pod.ports.iter().map(|port| (*port, *port)).collect(),
            runtime_id: pod.uid.clone(),
        });
    }
    let mut containers = pod.init.iter().chain([&pod.task]);
    let has_started = containers.any(|container| container.state.has_started());
    Some(if has_started {
        ObservedState::Starting
    } else {
        ObservedState::Pulling
    })
}

/// What was observed of a container whose pod does not exist any more, by what was last known of the pod.
pub fn observed_gone(pod: &PodFacts, ordered_end: bool) -> ObservedState {
    let (exit, cause) = end(pod, ordered_end).unwrap_or_else(|| {
        let exit = ContainerExit::of_end(None, ordered_end, false);
        let exit = exit.unwrap_or_else(|| lost(pod, "its pod was deleted, and not by the master"));
        (exit, None)
    });
    ObservedState::Terminated { exit, cause }
}

/// How the container of a pod ended; `None` = it has not.
fn end(pod: &PodFacts, ordered: bool) -> Option<End> {
    if let ContainerState::Terminated {
        exit_code,
        reason,
        message,
        ..
    } = &pod.task.state
    {
        let (report, cause) = match reported(reason, message, *exit_code) {
            Some((exit, cause)) => (Some(exit), cause),
            None => (None, None),
        };
        let out_of_memory = reason == "OOMKilled";
        let exit = ContainerExit::of_end(report, ordered, out_of_memory);
        let by_outside = exit.as_ref().is_none_or(may_follow) && !ordered;
        let exit = match (exit, ended_by(pod)) {
            _ if by_outside && is_over_time(pod) => OVER_TIME,
            (_, Some(why)) if by_outside => lost(pod, &why),
            (Some(exit), _) => exit,
            // The supervisor exits with its task's code. By these signals something else has ended it.
            (None, _)
                if matches!(exit_code, 137 | 143) || NOT_STARTED.contains(&reason.as_str()) =>
            {
                lost(
                    pod,
                    &format!(
                        "it ended with code {exit_code} ({reason}) and without an exit report"
                    ),
                )
            }
            (None, _) => ContainerExit::Exited { code: *exit_code },
        };
        return Some((exit, cause));
    }
    match pod.phase {
        PodPhase::Succeeded => return Some((ContainerExit::Exited { code: 0 }, None)),
        PodPhase::Failed => {}
        // It will not start any more.
        PodPhase::Pending if pod.deletion.is_some() => {}
        PodPhase::Pending | PodPhase::Running | PodPhase::Unknown => return None,
    }
    let exit = ContainerExit::of_end(None, ordered, false);
    let why = || ended_by(pod).unwrap_or_else(|| "its pod failed".to_owned());
    let exit = exit.or_else(|| is_over_time(pod).then_some(OVER_TIME));
    let exit = exit.or_else(|| failed_init(pod));
    Some((exit.unwrap_or_else(|| lost(pod, &why())), None))
}

/// Whether it ran longer than the deadline of its pod spec: it would again, so that its task is charged for it.
fn is_over_time(pod: &PodFacts) -> bool {
    pod.reason.as_deref() == Some("DeadlineExceeded")
}

/// How code ends that runs longer than it may.
const OVER_TIME: ContainerExit = ContainerExit::Signaled {
    signal: 15,
    out_of_memory: false,
};

/// What the supervisor, or the runtime in its place, reports of the end of the task's container.
fn reported(reason: &str, message: &str, code: i32) -> Option<End> {
    if let Some(end) = read_termination_message(message) {
        return Some(end);
    }
    if reason == "StartError" || reason == "ContainerCannotRun" {
        let message = format!("its container could not be started: {message}");
        return Some((ContainerExit::StartFailed { message }, None));
    }
    // A report that the kubelet has cut: the supervisor's own exit code is that of the report.
    let is_cut = message.starts_with('{');
    is_cut.then_some((ContainerExit::Exited { code }, None))
}

/// Whether an end may be a consequence of the pod's end from outside. Code that ended well has finished, and memory that ran
/// out has another cause.
fn may_follow(exit: &ContainerExit) -> bool {
    match exit {
        ContainerExit::Exited { code } => *code != 0,
        ContainerExit::Signaled { out_of_memory, .. } => !out_of_memory,
        ContainerExit::Lost { .. } => true,
        ContainerExit::SetupFailed { .. }
        | ContainerExit::StartFailed { .. }
        | ContainerExit::Killed => false,
    }
}

/// Why something other than the code has ended a pod, for users; `None` = nothing has.
fn ended_by(pod: &PodFacts) -> Option<String> {
    let with = |what: String, message: Option<&str>| match message {
        Some(message) if !message.is_empty() => format!("{what}: {message}"),
        _ => what,
    };
    if let Some(disruption) = &pod.disruption {
        let what = match disruption.reason.as_str() {
            "PreemptionByScheduler" => "the scheduler of Kubernetes preempted it",
            "EvictionByEvictionAPI" => "it was evicted, as when a node is drained",
            "DeletionByTaintManager" => "its node was tainted, as when it does not answer",
            "DeletionByPodGC" => "its node is gone",
            "TerminationByKubelet" => {
                "its node ended it, for lack of resources or because it shuts down"
            }
            _ => "Kubernetes ended it",
        };
        let what = format!("{what} ({})", disruption.reason);
        return Some(with(what, Some(&disruption.message)));
    }
    if let Some(reason) = &pod.reason {
        return Some(with(
            format!("its pod ended with reason {reason}"),
            pod.message.as_deref(),
        ));
    }
    let deleted = "its pod was deleted, and not by the master";
    pod.deletion.as_ref().map(|_| deleted.to_owned())
}

/// The end by an init container that failed.
fn failed_init(pod: &PodFacts) -> Option<ContainerExit> {
    let (failed, code, reason, message) = pod.init.iter().find_map(failure)?;
    // A sidecar may fail and be started again: only a pod that has failed is not.
    if pod.phase != PodPhase::Failed || ended_by(pod).is_some() {
        return None;
    }
    let is_ours = failed.name == INIT_CONTAINER;
    let hint = match (code, is_ours) {
        (126 | 127, true) => {
            "; the helper image of the cluster must contain det-supervisor on its PATH, executable"
        }
        (126 | 127, false) => "; its image lacks the program of its command",
        (128, true) if NOT_STARTED.contains(&reason) => {
            "; the helper image of the cluster must contain det-supervisor on its PATH, executable"
        }
        _ if reason == "OOMKilled" => "; memory ran out",
        _ => "",
    };
    let colon = if message.is_empty() { "" } else { ": " };
    let name = &failed.name;
    let message = message.trim_end();
    Some(ContainerExit::SetupFailed {
        code,
        message: format!(
            "init container \"{name}\" ended with code {code} ({reason}){colon}{message}{hint}"
        ),
    })
}

fn failure(container: &ContainerFacts) -> Option<(&ContainerFacts, i32, &str, &str)> {
    match &container.state {
        ContainerState::Terminated {
            exit_code,
            reason,
            message,
            ..
        } if *exit_code != 0 => Some((container, *exit_code, reason, message)),
        _ => None,
    }
}

/// A loss, with the pod and the node that it happened on.
fn lost(pod: &PodFacts, why: &str) -> ContainerExit {
    let name = &pod.name;
    let node = pod.node.as_deref();
    let node = node.map_or_else(String::new, |node| format!(" on node \"{node}\""));
    ContainerExit::Lost {
        message: format!("pod \"{name}\"{node}: {why}"),
    }
}
