//! Small JSON files that several programs change: locked, and replaced atomically.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;

/// Why a file of settings could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file or its directory could not be used.
    #[error("could not {action} \"{}\": {source}", path.display())]
    File {
        /// The action that failed: `read`, `lock` or `write`.
        action: &'static str,
        /// The file concerned.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file has unexpected content.
    #[error("\"{}\" is damaged ({reason}); remove it and log in again", path.display())]
    Damaged {
        /// The file concerned.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// There is no entry to make active.
    #[error("user \"{user}\" is not logged in on this machine")]
    NoSuchUser {
        /// The user without an entry.
        user: String,
    },
}

/// The text of a file, or `None` if there is no such file.
pub(crate) fn read(path: &Path) -> Result<Option<String>, StoreError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(StoreError::File {
            action: "read",
            path: path.to_owned(),
            source,
        }),
    }
}

/// Runs `change` while no other program changes the file. The lock is `<path>.lock`, the one the `PyPI` client takes.
pub(crate) fn locked<T>(
    path: &Path,
    change: impl FnOnce() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let lock_path = with_suffix(path, ".lock");
    let lock = open_lock(&lock_path).map_err(|source| StoreError::File {
        action: "lock",
        path: lock_path.clone(),
        source,
    })?;
    let result = change();
    // Closing the file releases the lock.
    drop(lock);
    result
}

fn open_lock(path: &Path) -> io::Result<File> {
    if let Some(parent) = path.parent() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(parent)?;
    }
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)?;
    file.lock()?;
    Ok(file)
}

/// Replaces the file by `value` as indented JSON, readable by its owner only. A reader sees the old text or the new.
pub(crate) fn replace(path: &Path, value: &impl Serialize) -> Result<(), StoreError> {
    let failed = |source: io::Error| StoreError::File {
        action: "write",
        path: path.to_owned(),
        source,
    };
    let mut text = Vec::new();
    let format = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    value
        .serialize(&mut serde_json::Serializer::with_formatter(
            &mut text, format,
        ))
        .map_err(|error| failed(error.into()))?;
    let temporary = with_suffix(path, ".temp");
    let write = || {
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&temporary)?;
        // A temporary file left by an earlier attempt keeps its mode.
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().map_err(failed)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
