//! What the containers of a pod and the manager of pods leave for each other.
//!
//! No agent prepares the directory of a pod's container. Its init container runs [`PLACE`], which copies the supervisor and
//! the script of the pod's rank from a Secret into the run directory that both containers share; the container of the task
//! then runs the supervisor from there. Its exit report is its termination message, which the kubelet puts into the pod's
//! status: it outlives the container.

use crate::sandbox::ExitReport;
use crate::{ContainerExit, ExitCause};

/// Command of the supervisor that fills the run directory: `det-supervisor place --from SECRET --to RUN_DIR`.
pub const PLACE: &str = "place";
/// The supervisor, relative to the run directory.
pub const SUPERVISOR_FILE: &str = "det-supervisor";
/// Certificates that the master's may be signed by, as a key of the Secret.
pub const CERTIFICATE_KEY: &str = "master.crt";
/// Certificates that the master's may be signed by, relative to the run directory.
pub const CERTIFICATE_FILE: &str = "etc/ssl/master.crt";
/// Variable: the rank of each completion index of the pod's Job, separated by commas.
pub const RANKS: &str = "DET_RANKS";
/// Variable that Kubernetes sets in every container of an Indexed Job: the number of the pod, from 0.
pub const COMPLETION_INDEX: &str = "JOB_COMPLETION_INDEX";
/// Variable: the file that becomes the container's termination message; unset = there is none.
pub use crate::variables::DET_TERMINATION_MESSAGE as TERMINATION_MESSAGE;
/// Variable: bytes that the kubelet keeps of that file; unset = [`MOST_OF_TERMINATION_MESSAGE`].
pub use crate::variables::DET_TERMINATION_MESSAGE_BYTES as TERMINATION_MESSAGE_BYTES;
/// Bytes that a kubelet keeps of a termination message at most:
/// <https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/>.
pub const MOST_OF_TERMINATION_MESSAGE: usize = 4096;
/// Bytes that a kubelet keeps of the termination messages of all containers of a pod together.
pub const MOST_OF_TERMINATION_MESSAGES: usize = 12 << 10;

/// Key of the Secret that holds the [`Script`](crate::Script) of a rank.
pub fn script_key(rank: u32) -> String {
    format!("task-{rank}.json")
}

/// The rank of a pod by its Job's [`RANKS`] and its [`COMPLETION_INDEX`], as its environment has them; an absent index is
/// 0. `None` = they do not name one.
pub fn rank(ranks: &str, index: Option<&str>) -> Option<u32> {
    let index: usize = index.unwrap_or("0").trim().parse().ok()?;
    ranks.split(',').nth(index)?.trim().parse().ok()
}

/// An exit report as a termination message: JSON of at most `most` bytes. The oldest lines are left out first, then the end
/// of its message. Where even that is too long, it has its kind and numbers only.
pub fn termination_message(report: &ExitReport, most: usize) -> String {
    let mut report = report.clone();
    loop {
        // Numbers and text always become JSON.
        let text = serde_json::to_string(&report).unwrap_or_default();
        let Some(excess) = text.len().checked_sub(most).filter(|excess| *excess > 0) else {
            return text;
        };
        let lines = report.cause.as_mut().map(|cause| &mut cause.last_lines);
        if let Some(lines) = lines.filter(|lines| !lines.is_empty()) {
            lines.remove(0);
        } else if !shorten(&mut report.exit, excess) && report.cause.take().is_none() {
            return text;
        }
    }
}

/// Cuts `excess` bytes of an exit's message; `false` = there is none.
fn shorten(exit: &mut ContainerExit, excess: usize) -> bool {
    let message = match exit {
        ContainerExit::SetupFailed { message, .. }
        | ContainerExit::StartFailed { message }
        | ContainerExit::Lost { message } => message,
        ContainerExit::Exited { .. } | ContainerExit::Signaled { .. } | ContainerExit::Killed => {
            return false;
        }
    };
    if message.is_empty() {
        return false;
    }
    let kept = message.len().saturating_sub(excess + ELLIPSIS.len());
    let mut ends = (0..=kept).rev();
    let end = ends.find(|at| message.is_char_boundary(*at)).unwrap_or(0);
    message.truncate(end);
    if end > 0 {
        message.push_str(ELLIPSIS);
    }
    true
}

/// Where a message was cut.
const ELLIPSIS: &str = "…";

/// What a termination message contains of an exit; `None` = it is no exit report.
pub fn read_termination_message(message: &str) -> Option<(ContainerExit, Option<ExitCause>)> {
    let report: ExitReport = serde_json::from_str(message.trim()).ok()?;
    Some((report.exit, report.cause.map(ExitCause::bounded)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_rank_is_found_by_the_index_of_its_pod() {
        for (ranks, index, expected) in [
            ("0", None, Some(0)),
            ("0,2,5", Some("1"), Some(2)),
            ("3", Some("1"), None),
            ("", None, None),
            ("0,1", Some("x"), None),
        ] {
            assert_eq!(rank(ranks, index), expected, "{ranks:?} {index:?}");
        }
    }

    #[test]
    fn lines_are_left_out_before_the_message_is_cut() {
        let report = ExitReport {
            exit: ContainerExit::SetupFailed {
                code: 1,
                message: "m".repeat(100),
            },
            ended_at: 5,
            cause: Some(ExitCause {
                at: 4,
                rank: Some(1),
                exit_code: Some(1),
                last_lines: (0..8).map(|n| format!("{n}{}", "x".repeat(99))).collect(),
            }),
        };
        let read = |most| read_termination_message(&termination_message(&report, most)).unwrap();
        let lines = |cause: &Option<ExitCause>| cause.as_ref().map(|cause| cause.last_lines.len());
        let (exit, cause) = read(4096);
        assert_eq!((&exit, lines(&cause)), (&report.exit, Some(8)));
        let (exit, cause) = read(600);
        assert_eq!(exit, report.exit);
        assert!(cause.unwrap().last_lines[0].starts_with('5'));
        let (exit, cause) = read(180);
        assert_eq!(lines(&cause), Some(0));
        assert!(
            matches!(exit, ContainerExit::SetupFailed { code: 1, message } if message.ends_with("m…"))
        );
    }

    proptest! {
        #[test]
        fn a_message_is_always_a_report_of_the_size_that_is_kept(
            message in ".{0,6000}",
            lines in prop::collection::vec(".{0,400}", 0..12),
        ) {
            let exit = ContainerExit::Lost { message };
            let cause = ExitCause { at: 1, rank: None, exit_code: None, last_lines: lines };
            let report = ExitReport { exit, ended_at: i64::MIN, cause: Some(cause) };
            let text = termination_message(&report, 1000);
            prop_assert!(text.len() <= 1000);
            let (exit, _) = read_termination_message(&text).unwrap();
            prop_assert!(matches!(exit, ContainerExit::Lost { .. }), "{exit:?}");
        }
    }
}
