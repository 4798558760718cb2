//! Why a master did not start.

use std::path::PathBuf;

use det_store::StoreError;

use crate::error::AppError;

/// Why a master did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The database cannot be opened or brought to this version.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The address is taken or not ours.
    #[error(
        "cannot listen on {address}: {source}; choose another port with --port, or stop what listens there"
    )]
    Listen {
        /// Address it would listen on.
        address: String,
        /// Why it cannot listen there.
        source: std::io::Error,
    },
    /// A blank password on an address that others reach.
    #[error(
        "the master would listen on {address} while these active users have blank passwords: {users}; set \
         security.initial_user_password (first start), change the passwords or deactivate the users while the master listens \
         on 127.0.0.1, or go on listening there"
    )]
    BlankPassword {
        /// Address it would listen on.
        address: String,
        /// Names of the users, quoted.
        users: String,
    },
    /// Blank passwords are forbidden, and there is none for the first users.
    #[error(
        "the feature switch \"prevent_blank_password\" is on, and this first start has no password for \"admin\" and \
         \"determined\": set security.initial_user_password"
    )]
    NoInitialPassword,
    /// A file of the data directory.
    #[error("the file \"{}\" cannot be used: {source}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Why the file cannot be used.
        source: std::io::Error,
    },
    /// The certificate or the key cannot be used.
    #[error("TLS cannot be set up from \"{}\": {message}", path.display())]
    Tls {
        /// The path of the file.
        path: PathBuf,
        /// Why TLS cannot be set up, as a sentence.
        message: String,
    },
    /// A part of the master failed to start, for this reason.
    #[error("the master could not be started: {0}")]
    Internal(String),
}

impl StartError {
    /// A failure of a service while the master starts. Its cause is shown: there is no request whose log could have it.
    pub(crate) fn of(error: &AppError) -> Self {
        let cause = error.cause.as_ref();
        Self::Internal(cause.map_or_else(|| error.to_string(), |cause| format!("{cause:#}")))
    }
}
