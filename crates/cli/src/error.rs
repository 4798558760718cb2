//! The errors and exit codes of the program.

use std::fmt::Display;
use std::io;
use std::process::ExitCode;

use det_client::{ClientError, NoConfigDir, SessionError, StoreError, TrustError};
use det_config::ConfigErrors;

/// The exit codes of every command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The request failed, or what was waited for did not happen.
    Failed = 1,
    /// The command line or the configuration cannot be used.
    Usage = 2,
    /// The master could not be reached or not be trusted, or the connection was lost and did not come back.
    Connection = 3,
    /// The user pressed Ctrl-C: 128 plus the number of the signal, the convention of shells.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command failed, in words for its user.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// A failure to report, and the exit code.
    #[error("{message}")]
    Failure {
        /// The exit code of the process.
        exit: Exit,
        /// What was tried, on what, and why it failed.
        message: String,
        /// What to do about it; `None` = the message contains it, or nothing can be done.
        hint: Option<String>,
    },
    /// The reader of the output has closed it (`det … | head`): not a failure.
    #[error("the output was closed")]
    OutputClosed,
}

impl CliError {
    /// A request that failed.
    pub(crate) fn request(message: impl Into<String>) -> Self {
        Self::failure(Exit::Failed, message)
    }

    /// A command line that was parsed and cannot be used.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::failure(Exit::Usage, message)
    }

    fn failure(exit: Exit, message: impl Into<String>) -> Self {
        Self::Failure {
            exit,
            message: message.into(),
            hint: None,
        }
    }

    /// The same error with a hint on what to do about it.
    #[must_use]
    pub(crate) fn with_hint(mut self, text: impl Into<String>) -> Self {
        if let Self::Failure { hint, .. } = &mut self {
            *hint = Some(text.into());
        }
        self
    }

    /// The same error with a hint, where the connection to the master was lost.
    #[must_use]
    pub(crate) fn with_hint_if_lost(self, text: impl Display) -> Self {
        match self {
            Self::Failure {
                exit: Exit::Connection,
                ..
            } => self.with_hint(text.to_string()),
            other => other,
        }
    }

    /// A failure that is expected to pass, and did not for as long as was waited.
    pub(crate) fn lost(error: ClientError) -> Self {
        match Self::from(error) {
            Self::Failure { message, hint, .. } => Self::Failure {
                exit: Exit::Connection,
                message,
                hint,
            },
            closed @ Self::OutputClosed => closed,
        }
    }

    /// A file on this machine on which `action` failed.
    pub(crate) fn file(action: &str, path: &std::path::Path, error: &io::Error) -> Self {
        Self::request(format!(
            "could not {action} \"{}\": {error}",
            path.display()
        ))
    }
}

impl From<ClientError> for CliError {
    fn from(error: ClientError) -> Self {
        let exit = if error.is_connection() {
            Exit::Connection
        } else {
            Exit::Failed
        };
        let advice = match &error {
            ClientError::Unreachable { .. } => {
                // One sentence: what was tried, what came of it, and what to do.
                let message = format!(
                    "{error}; start one with `det up`, or name another with -m or DET_MASTER"
                );
                return Self::failure(exit, message);
            }
            ClientError::Untrusted { .. } => Some(
                "name the file with its certificate in DET_MASTER_CERT_FILE, or run this on a terminal to accept it"
                    .to_owned(),
            ),
            ClientError::Unauthenticated { .. } => {
                Some("log in with `det user login USERNAME`".to_owned())
            }
            ClientError::Failed { hint, .. } | ClientError::NotFound { hint, .. } => hint.clone(),
            ClientError::BadAnswer { .. } => {
                Some("check the address after -m or in DET_MASTER".to_owned())
            }
            ClientError::Setup { .. }
            | ClientError::Forbidden { .. }
            | ClientError::StreamFailed { .. }
            | ClientError::Interrupted { .. } => None,
        };
        Self::Failure {
            exit,
            message: error.to_string(),
            hint: advice,
        }
    }
}

impl From<SessionError> for CliError {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Client(error) => error.into(),
            SessionError::Prompt { .. } => Self::request(error.to_string())
                .with_hint("give the password on standard input, or set DET_PASS to it"),
            SessionError::NoPassword { ref user, .. } => Self::request(error.to_string())
                .with_hint(format!(
                    "set DET_PASS to the password, log in with `det user login {user}`, or unset DET_USER"
                )),
            SessionError::Store(_)
            | SessionError::NotLoggedIn { .. }
            | SessionError::WrongCredentials { .. } => Self::request(error.to_string()),
        }
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        Self::request(error.to_string())
    }
}

impl From<TrustError> for CliError {
    fn from(error: TrustError) -> Self {
        Self::failure(Exit::Connection, error.to_string())
    }
}

impl From<NoConfigDir> for CliError {
    fn from(error: NoConfigDir) -> Self {
        Self::request(error.to_string())
    }
}

impl CliError {
    /// Errors in a document; `what` names it, as in `the template`.
    pub(crate) fn document(what: &str, errors: &ConfigErrors) -> Self {
        Self::request(format!("{what} cannot be used:\n{errors}"))
    }
}

impl From<ConfigErrors> for CliError {
    fn from(errors: ConfigErrors) -> Self {
        Self::document("the configuration", &errors)
    }
}
