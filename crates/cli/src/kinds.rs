//! The kinds of task in the API's answers.

use det_taskspec::TaskKind;
use serde_json::Value;

use crate::error::CliError;
use crate::values::text;

/// The kind of a task of an answer. Errs for one that this version does not know.
pub(crate) fn of_task(task: &Value) -> Result<TaskKind, CliError> {
    let word = text(task, "taskType");
    let kind = word.strip_prefix("TASK_TYPE_");
    kind.and_then(|kind| kind.parse().ok())
        .ok_or_else(|| unknown(&format!("task {}", text(task, "taskId")), &word))
}

/// The kind of the tasks of a job of an answer, where trials are called after their experiment. Errs for one that this
/// version does not know.
pub(crate) fn of_job(job: &Value) -> Result<TaskKind, CliError> {
    let word = text(job, "type");
    let kind = match word.strip_prefix("TYPE_") {
        Some("EXPERIMENT") => Some(TaskKind::Trial),
        Some("TRIAL") | None => None,
        Some(kind) => kind.parse().ok(),
    };
    kind.ok_or_else(|| unknown(&format!("job {}", text(job, "jobId")), &word))
}

fn unknown(what: &str, word: &str) -> CliError {
    CliError::request(format!(
        "{what} is of the kind \"{word}\", which this version of det does not know"
    ))
    .with_hint("use the version of the master, which `det version` prints")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tasks_and_jobs_are_of_the_kinds_that_the_api_names() {
        for kind in TaskKind::ALL {
            let word = format!("TASK_TYPE_{}", kind.name());
            assert_eq!(of_task(&json!({"taskType": word})).ok(), Some(kind));
            let word = match kind {
                TaskKind::Trial => "TYPE_EXPERIMENT".to_owned(),
                kind => format!("TYPE_{}", kind.name()),
            };
            assert_eq!(of_job(&json!({"type": word})).ok(), Some(kind));
        }
    }

    #[test]
    fn an_unknown_kind_is_no_trial() {
        let task = json!({"taskId": "t", "taskType": "TASK_TYPE_AGENT"});
        let error = of_task(&task).unwrap_err();
        let expected =
            "task t is of the kind \"TASK_TYPE_AGENT\", which this version of det does not know";
        assert!(error.to_string().contains(expected), "{error}");
        for word in ["TYPE_TRIAL", "TYPE_UNSPECIFIED", "EXPERIMENT", ""] {
            assert!(of_job(&json!({"type": word})).is_err(), "{word}");
        }
    }
}
