//! What the processes of trials do, as clients and supervisors write it.

use det_api_types::diagnosis::{DiagnoseTrialResponse, RankDiagnosis, TaskDiagnosis, TaskProcess};
use det_api_types::wire::Timestamp;
use det_orchestrator::hang::Rank;
use det_taskspec::diagnosis::{Diagnosis, ProcessState};

use crate::app::doctor::Examination;

/// Declares both directions between a process on the wire and one in memory, whose fields are the same.
macro_rules! same_fields {
    ($($field:ident),+) => {
        fn process_of(wire: TaskProcess) -> ProcessState {
            ProcessState { $($field: wire.$field),+ }
        }

        fn process(state: &ProcessState) -> TaskProcess {
            TaskProcess { $($field: state.$field.clone()),+ }
        }
    };
}
same_fields!(
    pid,
    parent,
    command,
    rank,
    state,
    wait_channel,
    system_call,
    threads,
    cpu_micros,
    cpu_window_micros,
    stack,
    stack_source
);

/// What a supervisor reports.
pub(crate) fn diagnosis(wire: TaskDiagnosis) -> Diagnosis {
    Diagnosis {
        window_micros: wire.window_micros,
        processes: wire.processes.into_iter().map(process_of).collect(),
        omitted: wire.omitted,
    }
}

/// What was found of a trial.
pub(crate) fn examination(found: &Examination) -> DiagnoseTrialResponse {
    let silent = found.silent.map(|silent| silent.as_secs());
    DiagnoseTrialResponse {
        trial_id: found.trial_id,
        allocation_id: found.allocation_id.clone(),
        silent_seconds: silent.map(|seconds| i64::try_from(seconds).unwrap_or(i64::MAX)),
        conclusion: found.finding.conclusion.clone(),
        ranks: found.finding.ranks.iter().map(|r| rank(found, r)).collect(),
    }
}

fn rank(found: &Examination, rank: &Rank) -> RankDiagnosis {
    let container = found.containers.get(&rank.member);
    let last_log = container.and_then(|id| found.last_lines.get(id));
    RankDiagnosis {
        rank: rank.rank,
        container_rank: rank.member.into(),
        container_id: container.cloned().unwrap_or_default(),
        agent_id: rank.place.as_str().into(),
        odd: rank.odd,
        activity: rank.activity.phrase().to_owned(),
        waits_in: rank.waits_in(),
        problem: rank.problem.clone(),
        process: rank.process.as_ref().map(process),
        window_micros: rank.window_micros,
        last_log_at: last_log.map(|at| Timestamp(*at)),
        last_report_at: found.last_report.map(Timestamp),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_supervisor_writes_is_read_whole() {
        let written = Diagnosis {
            window_micros: 1_000_000,
            processes: vec![ProcessState {
                pid: 7,
                parent: 1,
                command: "python3 train.py".to_owned(),
                rank: Some(3),
                state: "S".to_owned(),
                wait_channel: "do_poll".to_owned(),
                system_call: "ppoll".to_owned(),
                threads: 2,
                cpu_micros: 9,
                cpu_window_micros: 4,
                stack: vec!["f (a.py:1)".to_owned()],
                stack_source: "py-spy".to_owned(),
            }],
            omitted: 1,
        };
        let wire = serde_json::to_value(&written).unwrap();
        let read: TaskDiagnosis = serde_json::from_value(wire.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), wire);
        assert_eq!(diagnosis(read), written);
    }
}
