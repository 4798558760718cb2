//! The agent's data directory: its lock, and where its files are.
//!
//! ```text
//! <data>/agent.lock          locked while an agent runs
//! <data>/instance            identity of this directory, created once
//! <data>/token               token with which this agent authenticates to the master, created once
//! <data>/bin/                a copy of the supervisor, if it cannot be linked
//! <data>/containers/<id>/    one per container, see `containers::store`
//! <data>/trash/              directories that are being deleted
//! <data>/warm/               what the process with imported modules runs, see `runtime::warm`
//! ```

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use det_ids::InstanceId;
use thiserror::Error;

use crate::Secret;

/// File in an agent's data directory with the agent's own token.
pub const TOKEN_FILE: &str = "token";

/// An agent's data directory, locked while this value exists.
#[derive(Debug)]
pub(crate) struct DataDir {
    path: PathBuf,
    instance_id: InstanceId,
    token: Secret,
    /// The lock; the kernel releases it when the agent ends in any way.
    _lock: File,
}

/// Why the data directory cannot be used.
#[derive(Debug, Error)]
pub enum DataDirError {
    /// Another agent has locked it.
    #[error(
        "another agent uses the data directory \"{}\"; stop it, or give this one a directory of its own", path.display()
    )]
    InUse {
        /// Path of the data directory.
        path: PathBuf,
    },
    /// It cannot be created, read or written.
    #[error("cannot {action} \"{}\" in the agent's data directory", path.display())]
    Access {
        /// The action that failed, as a verb: `create`, `read`.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl DataDir {
    /// Locks `path`; creates it if it does not exist.
    ///
    /// Waits up to `patience` for another holder: a child of a killed agent holds the lock between `fork` and `exec`,
    /// and waiting for that moment to pass is what lets a new agent trust the process table (see
    /// [`crate::runtime::process`]).
    pub(crate) async fn open(path: &Path, patience: Duration) -> Result<Self, DataDirError> {
        for dir in [
            path.to_owned(),
            path.join("bin"),
            path.join("containers"),
            path.join("trash"),
        ] {
            make_private_dir(&dir).map_err(access("create", &dir))?;
        }
        // The supervisor and the engine need absolute paths.
        let path = std::fs::canonicalize(path).map_err(access("resolve", path))?;
        let lock_path = path.join("agent.lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&lock_path)
            .map_err(access("open", &lock_path))?;
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if tokio::time::Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(TryLockError::WouldBlock) => return Err(DataDirError::InUse { path }),
                Err(TryLockError::Error(source)) => {
                    return Err(access("lock", &lock_path)(source));
                }
            }
        }
        let instance_id = made_once(&path.join("instance"), || uuid::Uuid::new_v4().to_string())?;
        let token = made_once(&path.join(TOKEN_FILE), new_token)?;
        Ok(Self {
            path,
            instance_id: InstanceId(instance_id),
            token: Secret::new(token),
            _lock: lock,
        })
    }

    /// Identity of this directory, made when it was created: agents of one id differ in it.
    pub(crate) fn instance_id(&self) -> &InstanceId {
        &self.instance_id
    }

    /// The token of this agent. It is stored before it is sent to the master.
    pub(crate) fn token(&self) -> &Secret {
        &self.token
    }

    /// Path of the directory, links resolved.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the containers' directories are.
    pub(crate) fn containers(&self) -> PathBuf {
        self.path.join("containers")
    }

    /// Where directories go before they are deleted.
    pub(crate) fn trash(&self) -> PathBuf {
        self.path.join("trash")
    }

    /// Where the supervisor is copied to if it cannot be linked, and where interpreter shims are.
    pub(crate) fn bin(&self) -> PathBuf {
        self.path.join("bin")
    }
}

/// A token that cannot be guessed: 64 hexadecimal digits.
pub(crate) fn new_token() -> String {
    rand::random::<[u8; 32]>()
        .iter()
        .fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// Reads a file that is private to this agent's account, or creates it with the result of `make`.
fn made_once(path: &Path, make: impl FnOnce() -> String) -> Result<String, DataDirError> {
    match std::fs::read_to_string(path) {
        Ok(text) if !text.trim().is_empty() => return Ok(text.trim().to_owned()),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(access("read", path)(source)),
    }
    let text = make();
    write_atomically(path, text.as_bytes(), 0o600).map_err(access("write", path))?;
    Ok(text)
}

fn access(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DataDirError {
    let path = path.to_owned();
    move |source| DataDirError::Access {
        action,
        path,
        source,
    }
}

/// Creates a directory and its parents, private to their owner.
pub(crate) fn make_private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Replaces `path` with `content` atomically: a reader sees the old or the new content.
///
/// Not flushed to disk: it protects against the death of this process. If the host dies, its tasks die too, and readers
/// handle a file that is old or empty then.
pub(crate) fn write_atomically(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    use std::io::Write;
    let mut name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a file needs a name"))?
        .to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    // A file left by an earlier attempt keeps its mode, so it goes first.
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(mode)
        .open(&new)?
        .write_all(content)?;
    std::fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[tokio::test]
    async fn two_agents_cannot_share_a_directory() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("agent");
        let first = DataDir::open(&path, Duration::ZERO).await.unwrap();
        let message = DataDir::open(&path, Duration::ZERO)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("another agent uses the data directory"),
            "{message}"
        );
        let identity = first.instance_id().clone();
        let token = first.token().clone();
        drop(first);
        let again = DataDir::open(&path, Duration::ZERO).await.unwrap();
        assert_eq!(again.instance_id(), &identity, "the identity stays");
        assert_eq!(again.token(), &token, "the token stays");
    }

    #[tokio::test]
    async fn the_token_is_random_and_for_the_agents_account_only() {
        let root = tempfile::tempdir().unwrap();
        let mut tokens = Vec::new();
        for name in ["a", "b"] {
            let path = root.path().join(name);
            let dir = DataDir::open(&path, Duration::ZERO).await.unwrap();
            let file = std::fs::metadata(dir.path().join(TOKEN_FILE)).unwrap();
            assert_eq!(file.permissions().mode() & 0o777, 0o600);
            tokens.push(dir.token().expose().to_owned());
        }
        assert_eq!(tokens[0].len(), 64);
        assert_ne!(tokens[0], tokens[1]);
    }

    #[tokio::test]
    async fn a_directory_that_cannot_be_made_is_named() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        std::fs::write(&file, "").unwrap();
        let message = DataDir::open(&file.join("agent"), Duration::ZERO)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("cannot create") && message.contains("file/agent"),
            "{message}"
        );
    }

    #[test]
    fn a_replaced_file_has_the_new_content_and_mode() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("x.json");
        write_atomically(&path, b"old", 0o644).unwrap();
        std::fs::write(root.path().join("x.json.new"), "left over").unwrap();
        write_atomically(&path, b"new", 0o600).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
    }
}
