//! Tasks other than trials: notebooks, shells, commands, `TensorBoards` and generic tasks.
//!
//! A [`TaskConfig`] is made from documents by [`crate::submitted::Submitted`].

mod checks;
mod schema;
mod types;

use serde_json::Value;

use crate::schema::{Checker, Stage, mask};
use crate::secrets::mask_all_variables;
use crate::yaml::Node;

pub(crate) use checks::{context, for_kind};
pub(crate) use schema::DOCUMENT as TASK_DOCUMENT;
pub use schema::{TaskConfig, TaskResources};
pub use types::NotebookIdleType;

/// The kinds of task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskKind {
    /// A `JupyterLab`.
    Notebook,
    /// A shell for SSH.
    Shell,
    /// A command that runs to its end.
    Command,
    /// A TensorBoard over experiments or trials.
    TensorBoard,
    /// A command that can be paused, forked and spread over nodes.
    Generic,
}

impl TaskKind {
    /// Every kind.
    pub const ALL: [Self; 5] = [
        Self::Notebook,
        Self::Shell,
        Self::Command,
        Self::TensorBoard,
        Self::Generic,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Notebook => "notebook",
            Self::Shell => "shell",
            Self::Command => "command",
            Self::TensorBoard => "tensorboard",
            Self::Generic => "generic",
        }
    }

    /// Its name in generated descriptions.
    pub fn title(self) -> &'static str {
        match self {
            Self::Notebook => "JupyterLab",
            Self::Shell => "Shell",
            Self::Command => "Command",
            Self::TensorBoard => "TensorBoard",
            Self::Generic => "Task",
        }
    }

    /// Slots unless given.
    pub(crate) fn default_slots(self) -> i64 {
        match self {
            Self::TensorBoard => 0,
            _ => 1,
        }
    }
}

/// A document of a task for showing: registry credentials become `********`. Variables stay as they are.
pub fn mask_task_document(document: &Value) -> Value {
    let mut masked = document.clone();
    mask(&mut masked, TASK_DOCUMENT.root);
    masked
}

/// [`mask_task_document`], and variables whose names or values look secret: for those who only look.
pub(crate) fn mask_with_variables(document: &Value) -> Value {
    let mut masked = mask_task_document(document);
    mask_all_variables(&mut masked);
    masked
}

/// The kinds of task that a document fits as it is, without other layers.
pub(crate) fn kinds_that_fit(root: &Node) -> Vec<TaskKind> {
    TaskKind::ALL
        .into_iter()
        .filter(|kind| {
            let mut root = root.clone();
            let mut checker = Checker::new(&TASK_DOCUMENT, Stage::Sane);
            checker.check(&mut root);
            checks::for_kind(&mut checker, *kind, &mut root);
            checker.errors.is_empty()
        })
        .collect()
}
