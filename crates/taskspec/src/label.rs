//! What tasks are called where users read it: in waiting reasons, explanations, queues, logs and events.

use std::fmt;

use det_ids::{ExperimentId, TaskId, TrialId};

use crate::TaskKind;

/// The name of a task as users read it, by its kind and its row; an attempt is called like its task. As text it is
/// `trial 7 of experiment 3` or `command 0b6c…`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskLabel<'a> {
    kind: TaskKind,
    task_id: &'a str,
    /// The trial and its experiment, for trials.
    trial: Option<(TrialId, ExperimentId)>,
}

impl<'a> TaskLabel<'a> {
    /// Of a task; `trial` is the trial that it works for, and its experiment.
    pub fn new(
        kind: TaskKind,
        task_id: &'a TaskId,
        trial: Option<(TrialId, ExperimentId)>,
    ) -> Self {
        Self {
            kind,
            task_id: task_id.as_str(),
            trial,
        }
    }
}

impl TaskLabel<'_> {
    /// The form of the summaries of live tasks, which scripts match: `Trial 7 (Experiment 3)`, `Command 0b6c…`.
    pub fn title(self) -> String {
        match self.trial {
            Some((trial, experiment)) => format!("Trial {trial} (Experiment {experiment})"),
            None => {
                let text = self.to_string();
                let mut letters = text.chars();
                let first = letters.next().into_iter().flat_map(char::to_uppercase);
                first.chain(letters).collect()
            }
        }
    }
}

impl fmt::Display for TaskLabel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.kind, self.trial) {
            (TaskKind::Trial, Some((trial, experiment))) => {
                write!(f, "trial {trial} of experiment {experiment}")
            }
            (kind, _) => write!(f, "{} {}", kind.task_noun(), self.task_id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_called_by_their_kind_and_never_by_the_text_of_their_id() {
        for (kind, trial, text, title) in [
            (
                TaskKind::Trial,
                Some((TrialId(7), ExperimentId(3))),
                "trial 7 of experiment 3",
                "Trial 7 (Experiment 3)",
            ),
            (TaskKind::Command, None, "command 9.x", "Command 9.x"),
            (TaskKind::Generic, None, "task 9.x", "Task 9.x"),
            (
                TaskKind::CheckpointGc,
                None,
                "deletion of checkpoints 9.x",
                "Deletion of checkpoints 9.x",
            ),
        ] {
            let label = TaskLabel {
                kind,
                task_id: "9.x",
                trial,
            };
            assert_eq!((label.to_string().as_str(), &*label.title()), (text, title));
        }
    }
}
