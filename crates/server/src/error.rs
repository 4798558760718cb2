//! What a use case answers when it cannot do what was asked. The one place that maps this to a status is `http::error`.

use det_lifecycle::object::ObjectKind;
use det_store::archives::ArchiveOf;
use det_store::{ChangeError, StoreError};
use det_taskspec::TaskKind;

/// A refusal or failure, written for the user who reads it.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct AppError {
    /// What kind: decides the status.
    pub kind: ErrorKind,
    /// What was tried, on what, what is allowed.
    pub message: String,
    /// What the caller can do next; `None` = nothing is known.
    pub hint: Option<String>,
    /// Single errors, where there are several: path, line, text.
    pub details: Vec<serde_json::Value>,
    /// The inner cause: goes to the log, never to the caller.
    #[source]
    pub cause: Option<anyhow::Error>,
}

/// Kinds of failure, each with the HTTP status that it is answered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// 400: the request itself is wrong.
    Invalid,
    /// 400: right request, wrong state of the thing.
    Precondition,
    /// 401: it is not known who is asking.
    Unauthenticated,
    /// 403: known, but may not.
    Forbidden,
    /// 404: absent, or not to be known.
    NotFound,
    /// 409: contradicts what is stored.
    Conflict,
    /// 408: it came too slowly.
    TooSlow,
    /// 421: sent to a host that is for something else.
    Misdirected,
    /// 429: too many of them at once.
    TooMany,
    /// 413: the request, or what it asks for, is too large.
    TooLarge,
    /// 415: the answer does not exist in the form that was asked for.
    UnsupportedMedia,
    /// 500: a defect of the master.
    Internal,
    /// 501: this master does not have what was asked for.
    NotBuilt,
    /// 503: the database is away.
    Unavailable,
    /// 503: a budget of the master's memory is used up for now.
    Busy,
    /// 503: what the request is passed on to does not answer now.
    Unreachable,
}

/// Result of a use case.
pub type AppResult<T> = Result<T, AppError>;

impl AppError {
    /// An error of `kind` with its sentence. Scripts search refusals of rights for the word "forbidden"; the sentence of
    /// such a refusal begins with it.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if kind == ErrorKind::Forbidden && !message.contains("forbidden") {
            message.insert_str(0, "forbidden: ");
        }
        Self {
            kind,
            message,
            hint: None,
            details: Vec::new(),
            cause: None,
        }
    }

    /// The request itself is wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// The thing is in the wrong state for this.
    pub fn precondition(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Precondition, message)
    }

    /// There is no object of this kind with this id.
    pub fn not_found(what: ObjectKind, which: impl std::fmt::Display) -> Self {
        let error = Self::new(ErrorKind::NotFound, format!("{what} \"{which}\" not found"));
        match listing(what) {
            Some(listing) => error.hint(listing),
            None => error,
        }
    }

    /// Our defect, with its cause for the log.
    pub fn internal(cause: impl Into<anyhow::Error>) -> Self {
        Self {
            kind: ErrorKind::Internal,
            message: "the master could not do this because of an internal error".into(),
            hint: Some("the master's log has the details under this request's id".into()),
            details: Vec::new(),
            cause: Some(cause.into()),
        }
    }

    /// Logs what only we may know of the failure.
    pub(crate) fn log(&self) {
        match self.kind {
            ErrorKind::Internal => {
                tracing::error!(answer = self.message, cause = ?self.cause, "a request failed");
            }
            // Without a cause the master itself is on its way out, which is no failure of the database.
            ErrorKind::Unavailable if self.cause.is_some() => {
                tracing::warn!(cause = ?self.cause, "a request failed for want of the database");
            }
            kind => tracing::debug!(?kind, answer = self.message, "a request was refused"),
        }
    }

    /// The same failure for another caller; the cause is logged once.
    pub(crate) fn without_cause(&self) -> Self {
        Self {
            hint: self.hint.clone(),
            ..Self::new(self.kind, self.message.clone())
        }
    }

    /// Adds what to do next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// How users see which objects of a kind there are; `None` = no single command lists them.
fn listing(what: ObjectKind) -> Option<&'static str> {
    let listing = match what {
        ObjectKind::Experiment => "`det experiment list --all` shows the experiments there are",
        ObjectKind::Trial => {
            "`det experiment list-trials EXPERIMENT` shows the trials of an experiment"
        }
        ObjectKind::Task | ObjectKind::TaskOf(TaskKind::Generic) => {
            "`det task list --all` shows the tasks that run, wait or are paused, and generic ones that ended in the last day"
        }
        ObjectKind::Job => "`det job list` shows the jobs that wait or run",
        ObjectKind::Agent | ObjectKind::Place => "`det agent list` shows the agents there are",
        ObjectKind::Slot => "`det slot list` shows the slots there are",
        ObjectKind::Workspace => "`det workspace list` shows the workspaces there are",
        ObjectKind::Project => "`det project list WORKSPACE` shows the projects of a workspace",
        ObjectKind::User => "`det user list` shows the users there are",
        ObjectKind::Checkpoint => {
            "`det experiment list-checkpoints EXPERIMENT` shows the checkpoints of an experiment"
        }
        ObjectKind::Allocation
        | ObjectKind::CheckpointFiles
        | ObjectKind::CheckpointExperiment
        | ObjectKind::Container
        | ObjectKind::ContextDirectory
        | ObjectKind::ExternalExperiment
        | ObjectKind::ExternalTrial
        | ObjectKind::File
        | ObjectKind::ModelDefinition
        | ObjectKind::ResourcePool
        | ObjectKind::TaskConfiguration
        | ObjectKind::TaskOf(_)
        | ObjectKind::Template => return None,
    };
    Some(listing)
}

impl ChangeError for AppError {
    fn is_full(&self) -> bool {
        let cause = self.cause.as_ref().and_then(|c| c.downcast_ref());
        matches!(cause, Some(StoreError::Full))
    }
}

impl From<StoreError> for AppError {
    fn from(error: StoreError) -> Self {
        let unavailable = |message: &str, hint: &str| Self {
            kind: ErrorKind::Unavailable,
            message: message.into(),
            hint: Some(hint.into()),
            details: Vec::new(),
            cause: None,
        };
        if matches!(error, StoreError::Full) {
            Self {
                cause: Some(error.into()),
                ..unavailable(
                    "the disk with the files of the master's database is full",
                    "nothing was changed, and what was acknowledged before is safe; free some space on that disk and \
                     try again, the master needs no restart",
                )
            }
        } else if let StoreError::NearlyFull(shortfall) = &error {
            let message = format!(
                "the disk with the files of the master's database is nearly full: {shortfall}"
            );
            Self {
                cause: Some(error.into()),
                ..unavailable(
                    &message,
                    "nothing was changed, and what runs goes on; free some space on that disk and try again, the master \
                     needs no restart",
                )
            }
        } else if let StoreError::NoArchive(of) = &error {
            match of {
                ArchiveOf::Experiment(id) => Self::not_found(ObjectKind::ModelDefinition, id),
                ArchiveOf::Task(id) => Self::not_found(ObjectKind::ContextDirectory, id),
            }
        } else if let StoreError::Lost(reason) = &error {
            let message = format!(
                "the master has lost its database and answers nothing until it has it again: {reason}"
            );
            Self {
                cause: Some(error.into()),
                ..unavailable(
                    &message,
                    "what was not acknowledged may not be stored; try again in a moment",
                )
            }
        } else if let StoreError::Ended(reason) = &error {
            let message =
                format!("the master does not use its database any more and ends: {reason}");
            Self {
                cause: Some(error.into()),
                ..unavailable(&message, "start it again; what was acknowledged is stored")
            }
        } else if error.is_transient() {
            Self {
                cause: Some(error.into()),
                ..unavailable(
                    "the master cannot reach its database",
                    "what was not acknowledged may not be stored; try again in a moment",
                )
            }
        } else if error.is_unstorable_text() {
            Self::invalid("a text in the request holds the character NUL, which cannot be stored")
        } else {
            Self::internal(error)
        }
    }
}
