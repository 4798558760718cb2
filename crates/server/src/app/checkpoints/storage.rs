//! Checkpoint files where the master can reach them: `shared_fs`, and `directory` on the same host. Blocking.
//!
//! Tasks own the directories that they write, so nothing below a storage's root is trusted: names are opened one by one
//! from the root's handle and links are never followed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use det_config::container::BindMount;
use det_config::experiment::ExperimentConfig;
use det_config::storage::StorageLocation;
use det_taskspec::SHARED_FS_DIR;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};
use uuid::Uuid;

use crate::app::checkpoints::glob::Pattern;
use crate::error::{AppError, AppResult, ErrorKind};

/// The storage of an experiment, as directories of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Storage {
    /// How people know it, for errors.
    name: String,
    /// Where it may be; the first that holds what is looked for counts.
    roots: Vec<PathBuf>,
}

/// Something in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Relative to the checkpoint.
    pub path: PathBuf,
    /// What it is.
    pub kind: EntryKind,
    /// Permission bits.
    pub mode: u32,
    /// Last change, seconds since 1970.
    pub mtime: i64,
}

/// What an [`Entry`] is. Devices, pipes and sockets are no part of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A directory.
    Directory,
    /// A file.
    File {
        /// Bytes.
        size: u64,
    },
    /// A symbolic link, whatever it points to.
    Link,
}

impl Storage {
    /// The storage of an experiment; an error when the master cannot reach storage of this type at all.
    pub fn of(config: &ExperimentConfig) -> AppResult<Self> {
        let location = &config.checkpoint_storage.location;
        match location {
            StorageLocation::SharedFs { host_path, .. } => {
                let below = location.shared_fs_subdirectory().ok_or_else(|| {
                    AppError::precondition(format!(
                        "checkpoint storage: \"storage_path\" leads out of \"{host_path}\""
                    ))
                })?;
                // A master in a container has the host's directory where every container has it.
                let roots = [host_path, SHARED_FS_DIR]
                    .map(|base| Path::new(base).join(&below))
                    .to_vec();
                Ok(Self {
                    name: format!("shared_fs storage \"{}\"", roots[0].display()),
                    roots,
                })
            }
            StorageLocation::Directory { container_path } => Ok(Self {
                name: format!("directory storage \"{container_path}\""),
                roots: vec![on_host(container_path, &config.bind_mounts)],
            }),
            StorageLocation::S3 { .. }
            | StorageLocation::Gcs { .. }
            | StorageLocation::Azure { .. } => {
                let kind = location.type_name();
                Err(AppError::new(
                    ErrorKind::NotBuilt,
                    format!("the master of this version cannot reach checkpoint storage of type \"{kind}\""),
                )
                .hint("use shared_fs or directory storage, or handle the files with the storage's own tools"))
            }
        }
    }

    #[cfg(test)]
    fn at(root: &Path) -> Self {
        Self {
            name: "test storage".into(),
            roots: vec![root.to_owned()],
        }
    }

    /// The handles of the roots that exist here; an error when there is none.
    fn open_roots(&self) -> AppResult<Vec<OwnedFd>> {
        let mut handles = Vec::new();
        for root in &self.roots {
            match File::open(root) {
                Ok(file) if file.metadata().is_ok_and(|m| m.is_dir()) => {
                    handles.push(OwnedFd::from(file));
                }
                Ok(_) => {}
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                    ) => {}
                Err(e) => return Err(self.failed("opened", root, &e)),
            }
        }
        if handles.is_empty() {
            let searched: Vec<String> = self
                .roots
                .iter()
                .map(|r| format!("\"{}\"", r.display()))
                .collect();
            return Err(AppError::precondition(format!(
                "{} cannot be seen from the master's host: looked for {}",
                self.name,
                searched.join(" and ")
            ))
            .hint("mount the storage on the master's host at the same path"));
        }
        Ok(handles)
    }

    /// Opens a checkpoint's directory; `None` = the storage is here and holds no such checkpoint.
    pub fn open(&self, uuid: &str) -> AppResult<Option<OwnedFd>> {
        check_uuid(uuid)?;
        for root in self.open_roots()? {
            match open_directory(root.as_fd(), Path::new(uuid)) {
                Ok(directory) => return Ok(Some(directory)),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(self.failed("opened", Path::new(uuid), &e)),
            }
        }
        Ok(None)
    }

    /// Deletes a checkpoint's directory. One that is gone already is what was wanted.
    pub fn remove(&self, uuid: &str) -> AppResult<()> {
        check_uuid(uuid)?;
        for root in self.open_roots()? {
            remove_tree(root.as_fd(), Path::new(uuid))
                .map_err(|e| self.failed("deleted", Path::new(uuid), &e))?;
        }
        Ok(())
    }

    /// Deletes the files and directories that match any of the patterns, and gives what is left: path to bytes,
    /// directories with a final `/`. A checkpoint that is gone has nothing left.
    pub fn remove_matching(
        &self,
        uuid: &str,
        patterns: &[Pattern],
    ) -> AppResult<BTreeMap<String, i64>> {
        if patterns.iter().any(Pattern::is_everything) {
            self.remove(uuid)?;
            return Ok(BTreeMap::new());
        }
        let Some(directory) = self.open(uuid)? else {
            return Ok(BTreeMap::new());
        };
        let failed = |e: io::Error| self.failed("changed", Path::new(uuid), &e);
        for entry in list(directory.as_fd()).map_err(failed)? {
            let names: Option<Vec<&str>> = entry.path.iter().map(|name| name.to_str()).collect();
            if names.is_some_and(|names| patterns.iter().any(|p| p.matches(&names))) {
                // An entry below a directory that went before it is gone already.
                remove_tree(directory.as_fd(), &entry.path).map_err(failed)?;
            }
        }
        let left = list(directory.as_fd()).map_err(failed)?;
        if left.is_empty() {
            self.remove(uuid)?;
        }
        Ok(left
            .iter()
            .map(|entry| {
                let path = entry.path.to_string_lossy();
                match entry.kind {
                    EntryKind::Directory => (format!("{path}/"), 0),
                    EntryKind::File { size } => {
                        (path.into_owned(), i64::try_from(size).unwrap_or(i64::MAX))
                    }
                    EntryKind::Link => (path.into_owned(), 0),
                }
            })
            .collect())
    }

    /// Deletes the TensorBoard files of an experiment, where the storage can be reached.
    pub fn remove_tensorboard(&self, cluster_id: &str, experiment_id: i64) -> AppResult<()> {
        check_uuid(cluster_id)?;
        let path = Path::new(cluster_id)
            .join("tensorboard/experiment")
            .join(experiment_id.to_string());
        for root in self.open_roots()? {
            remove_tree(root.as_fd(), &path).map_err(|e| self.failed("deleted", &path, &e))?;
        }
        Ok(())
    }

    fn failed(&self, verb: &str, what: &Path, error: &io::Error) -> AppError {
        let mut failure = AppError::new(
            ErrorKind::Internal,
            format!(
                "\"{}\" in {} could not be {verb}: {error}",
                what.display(),
                self.name
            ),
        );
        if error.kind() == io::ErrorKind::PermissionDenied {
            failure = failure.hint(
                "let the master run as a user that may read and write the checkpoint storage",
            );
        }
        failure
    }
}

/// A storage's own names never come from outside unchecked: they are UUIDs.
fn check_uuid(uuid: &str) -> AppResult<()> {
    if uuid.len() == 36 && Uuid::try_parse(uuid).is_ok() {
        Ok(())
    } else {
        Err(AppError::invalid(format!(
            "\"{}\" is not a UUID",
            uuid.escape_debug()
        )))
    }
}

/// Where a path of a container is on the host: through the longest bind mount that holds it, else the same path.
fn on_host(container_path: &str, mounts: &[BindMount]) -> PathBuf {
    let path = Path::new(container_path);
    mounts
        .iter()
        .filter_map(|mount| Some((mount, path.strip_prefix(&mount.container_path).ok()?)))
        .max_by_key(|(mount, _)| Path::new(&mount.container_path).components().count())
        .map_or_else(
            || path.to_owned(),
            |(mount, rest)| Path::new(&mount.host_path).join(rest),
        )
}

fn open_one(parent: BorrowedFd<'_>, name: &Path, flags: OFlag) -> io::Result<OwnedFd> {
    let flags = flags | OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    Ok(openat(parent, name, flags, Mode::empty())?)
}

/// Opens a directory below `root`, name by name, through no link.
pub fn open_directory(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let mut directory = root.try_clone_to_owned()?;
    for name in path {
        directory = open_one(directory.as_fd(), Path::new(name), OFlag::O_DIRECTORY)?;
    }
    Ok(directory)
}

/// Opens a regular file below `root`, name by name, through no link.
pub fn open_file(root: BorrowedFd<'_>, path: &Path) -> io::Result<File> {
    let parent = open_directory(root, path.parent().unwrap_or(Path::new("")))?;
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let file = File::from(open_one(parent.as_fd(), Path::new(name), OFlag::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        ));
    }
    Ok(file)
}

/// The path by which the kernel knows an open directory of this process.
fn handle_path(directory: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()))
}

/// Deletes whatever is at `path` below `root`; links on the way make it fail, links at or below it are deleted as links.
fn remove_tree(root: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let gone = |outcome: io::Result<()>| match outcome {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    };
    let parent = match open_directory(root, path.parent().unwrap_or(Path::new(""))) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        parent => parent?,
    };
    let name = Path::new(path.file_name().ok_or(io::ErrorKind::InvalidInput)?);
    match unlinkat(parent.as_fd(), name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(nix::errno::Errno::ENOENT) => Ok(()),
        // POSIX says EPERM for a directory, Linux EISDIR.
        Err(nix::errno::Errno::EISDIR | nix::errno::Errno::EPERM) => gone(std::fs::remove_dir_all(
            handle_path(parent.as_fd()).join(name),
        )),
        Err(e) => Err(e.into()),
    }
}

/// Everything below an open directory, sorted by path.
pub fn list(root: BorrowedFd<'_>) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(path) = waiting.pop() {
        let directory = open_directory(root, &path)?;
        for found in std::fs::read_dir(handle_path(directory.as_fd()))? {
            let found = found?;
            let meta = found.metadata()?;
            let path = path.join(found.file_name());
            let kind = if meta.is_dir() {
                waiting.push(path.clone());
                EntryKind::Directory
            } else if meta.is_file() {
                EntryKind::File { size: meta.len() }
            } else if meta.is_symlink() {
                EntryKind::Link
            } else {
                continue;
            };
            entries.push(Entry {
                path,
                kind,
                mode: meta.mode() & 0o777,
                mtime: meta.mtime(),
            });
        }
    }
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const UUID: &str = "0b6c5d1e-7f7a-4f3e-9c55-3f0f2d9b8a11";

    fn world() -> (tempfile::TempDir, Storage) {
        let root = tempfile::tempdir().unwrap();
        let checkpoint = root.path().join(UUID);
        std::fs::create_dir_all(checkpoint.join("sub/deep")).unwrap();
        std::fs::write(checkpoint.join("model.pt"), b"12345").unwrap();
        std::fs::write(checkpoint.join("sub/a.txt"), b"1").unwrap();
        std::fs::write(checkpoint.join("sub/deep/b.txt"), b"12").unwrap();
        let storage = Storage::at(root.path());
        (root, storage)
    }

    fn patterns(texts: &[&str]) -> Vec<Pattern> {
        texts.iter().map(|t| Pattern::parse(t).unwrap()).collect()
    }

    #[test]
    fn removing_twice_is_removing_once() {
        let (root, storage) = world();
        storage.remove(UUID).unwrap();
        assert!(!root.path().join(UUID).exists());
        storage.remove(UUID).unwrap();
        assert!(storage.open(UUID).unwrap().is_none());
    }

    #[test]
    fn matching_files_go_and_the_rest_is_told() {
        let (_root, storage) = world();
        let left = storage
            .remove_matching(UUID, &patterns(&["**/*.txt"]))
            .unwrap();
        let expected = [("model.pt", 5), ("sub/", 0), ("sub/deep/", 0)];
        assert_eq!(
            left,
            expected.map(|(path, size)| (path.to_owned(), size)).into()
        );
    }

    #[test]
    fn a_matching_directory_goes_with_all_below_it() {
        let (root, storage) = world();
        let left = storage
            .remove_matching(UUID, &patterns(&["sub", "*.pt"]))
            .unwrap();
        assert!(left.is_empty());
        assert!(
            !root.path().join(UUID).exists(),
            "an empty checkpoint leaves no directory"
        );
    }

    #[test]
    fn links_are_removed_and_never_followed() {
        let (root, storage) = world();
        let outside = root.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("precious.txt"), b"x").unwrap();
        symlink(&outside, root.path().join(UUID).join("link")).unwrap();
        symlink(
            outside.join("precious.txt"),
            root.path().join(UUID).join("file.txt"),
        )
        .unwrap();
        let directory = storage.open(UUID).unwrap().unwrap();
        assert!(open_file(directory.as_fd(), Path::new("file.txt")).is_err());
        assert!(open_file(directory.as_fd(), Path::new("link/precious.txt")).is_err());
        let names: Vec<_> = list(directory.as_fd())
            .unwrap()
            .into_iter()
            .map(|e| e.path)
            .collect();
        assert!(!names.contains(&PathBuf::from("link/precious.txt")));
        storage
            .remove_matching(UUID, &patterns(&["link/*", "**/precious.txt"]))
            .unwrap();
        storage.remove(UUID).unwrap();
        assert!(outside.join("precious.txt").exists());
    }

    #[test]
    fn a_checkpoint_that_is_a_link_is_not_opened() {
        let (root, storage) = world();
        let other = "1b6c5d1e-7f7a-4f3e-9c55-3f0f2d9b8a11";
        symlink("/etc", root.path().join(other)).unwrap();
        assert!(storage.open(other).is_err());
        storage.remove(other).unwrap();
        assert!(Path::new("/etc").exists());
    }

    #[test]
    fn storage_that_is_not_here_is_an_error_that_names_it() {
        let storage = Storage::at(Path::new("/nowhere/at/all"));
        let error = storage.remove(UUID).unwrap_err();
        assert_eq!(
            error.message,
            "test storage cannot be seen from the master's host: looked for \"/nowhere/at/all\""
        );
    }

    #[test]
    fn only_uuids_name_checkpoints() {
        let (_root, storage) = world();
        for name in ["..", "/etc", "a/b", "", "0b6c5d1e7f7a4f3e9c553f0f2d9b8a11"] {
            assert_eq!(
                storage.remove(name).unwrap_err().kind,
                ErrorKind::Invalid,
                "{name}"
            );
        }
    }

    #[test]
    fn a_container_s_directory_is_found_through_its_bind_mounts() {
        let mount = |host: &str, container: &str| BindMount {
            host_path: host.into(),
            container_path: container.into(),
            read_only: false,
            propagation: "rprivate".into(),
        };
        let mounts = [mount("/data", "/ckpt"), mount("/fast", "/ckpt/hot")];
        for (path, expected) in [
            ("/ckpt", "/data"),
            ("/ckpt/a", "/data/a"),
            ("/ckpt/hot/a", "/fast/a"),
            ("/ckpts", "/ckpts"),
            ("/other", "/other"),
        ] {
            assert_eq!(on_host(path, &mounts), PathBuf::from(expected), "{path}");
        }
    }
}
