//! The two kinds of work that documents are submitted for.

use crate::experiment::schema::DOCUMENT as EXPERIMENT_DOCUMENT;
use crate::schema::Document;
use crate::task::TASK_DOCUMENT;

/// The kinds of work whose documents differ in their keys, and that have templates and policies of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// Experiments, with the trials of their searches.
    Experiment,
    /// Notebooks, `TensorBoards`, shells, commands and generic tasks.
    Tasks,
}

impl Workload {
    /// What documents of such work hold.
    pub(crate) fn document(self) -> &'static Document {
        match self {
            Self::Experiment => &EXPERIMENT_DOCUMENT,
            Self::Tasks => &TASK_DOCUMENT,
        }
    }
}
