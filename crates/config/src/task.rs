//! Tasks other than trials: notebooks, shells, commands, `TensorBoards` and generic tasks.
//!
//! A [`TaskConfig`] is made from documents by [`crate::submitted::SubmittedDocument`].

mod checks;
mod schema;

use std::fmt;
use std::time::Duration;

pub use det_taskspec::LaunchKind;
use serde_json::Value;

use crate::errors::ConfigErrors;
use crate::schema::{Findings, Stage, check_document, mask};
use crate::secrets::{hide_variables, mask_all_variables};
use crate::units::parse_duration;
use crate::yaml::Node;

pub(crate) use checks::{context, for_kind};
pub(crate) use schema::DOCUMENT as TASK_DOCUMENT;
pub use schema::{TaskConfig, TaskResources};

/// Slots of a task of this kind, unless given.
pub(crate) fn default_slots(kind: LaunchKind) -> i64 {
    match kind {
        LaunchKind::Tensorboard => 0,
        LaunchKind::Notebook | LaunchKind::Shell | LaunchKind::Command | LaunchKind::Generic => 1,
    }
}

impl fmt::Debug for TaskConfig {
    /// Secrets are hidden.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskConfig {}", self.masked_json())
    }
}

impl TaskConfig {
    /// Reads a stored effective configuration.
    ///
    /// # Errors
    /// The value was not written by [`TaskConfig::to_json`].
    pub fn from_json(value: &Value) -> Result<Self, ConfigErrors> {
        Node::from(value).typed()
    }

    /// The effective configuration as clients read it: every key present.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).expect("maps with text keys and finite numbers are JSON")
    }

    /// [`TaskConfig::to_json`] for showing: secrets are hidden.
    pub fn masked_json(&self) -> Value {
        mask_task_document(&self.to_json())
    }

    /// How long a task of this kind may be idle before it is ended: its own timeout, else the master's for its kind (in
    /// seconds, `None` = never). `None` = for ever. Shells, commands and generic tasks are never idle.
    pub fn effective_idle_timeout(
        &self,
        kind: LaunchKind,
        notebook_timeout: Option<u32>,
        tensorboard_timeout: u32,
    ) -> Option<Duration> {
        let of_master = match kind {
            LaunchKind::Notebook => notebook_timeout,
            LaunchKind::Tensorboard => Some(tensorboard_timeout),
            LaunchKind::Shell | LaunchKind::Command | LaunchKind::Generic => return None,
        };
        let own = self
            .idle_timeout
            .as_deref()
            .and_then(|text| parse_duration(text).ok());
        own.or_else(|| of_master.map(|seconds| Duration::from_secs(seconds.into())))
            .filter(|timeout| !timeout.is_zero())
    }

    /// How long a kernel of a notebook may execute nothing until it is shut down; `None` = for ever.
    pub fn effective_kernel_idle_timeout(&self) -> Option<Duration> {
        self.kernel_idle_timeout
            .as_deref()
            .and_then(|text| parse_duration(text).ok())
            .filter(|timeout| !timeout.is_zero())
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

/// [`mask_task_document`], and the values of all variables: for those to whom the task does not belong.
pub fn mask_task_for_others(document: &Value) -> Value {
    let mut masked = mask_with_variables(document);
    hide_variables(&mut masked);
    masked
}

/// The kinds of task that a document fits as it is, without other layers.
pub(crate) fn kinds_that_fit(root: &Node) -> Vec<LaunchKind> {
    LaunchKind::ALL
        .into_iter()
        .filter(|kind| {
            let mut root = root.clone();
            let mut findings = Findings::new(&TASK_DOCUMENT, Stage::Sane);
            check_document(&mut findings, &mut root);
            checks::for_kind(&mut findings, *kind, &mut root);
            findings.errors.is_empty()
        })
        .collect()
}
