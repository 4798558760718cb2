//! Directories that tasks own, worked on through handles: names are opened one by one, and links are never followed.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{UnlinkatFlags, unlinkat};

/// Deepest directory in a checkpoint, in levels. Far beyond what tools can work with (`PATH_MAX`).
pub const DEEPEST: usize = 256;
/// Bytes of memory that a listing of a checkpoint takes at most: some 300,000 files.
const LISTING_BYTES: usize = 48 << 20;
/// Bytes of memory that an entry of a listing takes beside its path.
const ENTRY_BYTES: usize = 96;

/// A file, directory or link in the directory of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Path relative to the checkpoint's directory.
    pub path: PathBuf,
    /// Whether it is a file, a directory or a link.
    pub kind: EntryKind,
    /// Permission bits of Unix, without the bits of the file's type.
    pub mode: u32,
    /// Unix user id of its owner.
    pub uid: u32,
    /// Last change, seconds since 1970.
    pub mtime: i64,
}

impl Entry {
    /// Its path as resources of checkpoints have it: directories end in `/`.
    pub fn resource(&self) -> String {
        let path = self.path.to_string_lossy();
        match self.kind {
            EntryKind::Directory => format!("{path}/"),
            EntryKind::File { .. } | EntryKind::Link => path.into_owned(),
        }
    }
}

/// What an [`Entry`] is. Devices, pipes and sockets are no part of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A directory, which may be empty.
    Directory,
    /// A regular file, with content.
    File {
        /// Size of the file, in bytes.
        size: u64,
    },
    /// A symbolic link, whatever it points to.
    Link,
}

fn open_one(parent: BorrowedFd<'_>, name: &Path, flags: OFlag) -> io::Result<OwnedFd> {
    let flags = flags | OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    Ok(openat(parent, name, flags, Mode::empty())?)
}

/// Opens a directory below `root`, name by name, through no link.
pub fn open_directory(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let mut directory = root.try_clone_to_owned()?;
    for name in path.components() {
        let Component::Normal(name) = name else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a path must be relative and without \"..\"",
            ));
        };
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

/// What is gone already was deleted.
pub fn gone(outcome: nix::Result<()>) -> io::Result<()> {
    match outcome {
        Err(nix::errno::Errno::ENOENT) => Ok(()),
        outcome => Ok(outcome?),
    }
}

/// Deletes whatever is at `path` below `root`; links on the way make it fail, links at or below it are deleted as links. An error when
/// that is in, or is, a directory whose owner `may_empty` does not accept: see [`empty`].
pub fn remove_tree(
    root: BorrowedFd<'_>,
    path: &Path,
    may_empty: impl Fn(u32) -> bool,
) -> io::Result<()> {
    let above = path.parent().unwrap_or(Path::new(""));
    let parent = match open_directory(root, above) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        parent => require_emptied(parent?, above, &may_empty)?,
    };
    let name = Path::new(path.file_name().ok_or(io::ErrorKind::InvalidInput)?);
    match unlinkat(parent.as_fd(), name, UnlinkatFlags::NoRemoveDir) {
        // For a directory POSIX specifies EPERM, and Linux returns EISDIR.
        Err(nix::errno::Errno::EISDIR | nix::errno::Errno::EPERM) => {}
        outcome => return gone(outcome),
    }
    match open_directory(parent.as_fd(), name) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        directory => {
            let directory = require_emptied(directory?, path, &may_empty)?;
            empty(directory.as_fd(), may_empty)?;
        }
    }
    gone(unlinkat(parent.as_fd(), name, UnlinkatFlags::RemoveDir))
}

/// Deletes everything in an open directory, a bounded part after the other. Without recursion, whose depth a task could
/// choose. An error as soon as something is in a directory whose owner `may_empty` does not accept: the
/// owner of a directory may delete what is in it, no matter who owns that, and no other user may.
pub fn empty(root: BorrowedFd<'_>, may_empty: impl Fn(u32) -> bool) -> io::Result<()> {
    loop {
        let (entries, whole) = list_some(root, Kinds::All)?;
        // Sorted by path, so that from the end a directory comes after what it holds.
        let mut parent: Option<(&Path, OwnedFd)> = None;
        for entry in entries.iter().rev() {
            let above = entry.path.parent().unwrap_or(Path::new(""));
            let name = Path::new(entry.path.file_name().ok_or(io::ErrorKind::InvalidInput)?);
            if parent.as_ref().is_none_or(|(path, _)| *path != above) {
                parent = match open_directory(root, above) {
                    Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                    directory => Some((above, require_emptied(directory?, above, &may_empty)?)),
                };
            }
            let Some((_, directory)) = &parent else {
                continue;
            };
            let kind = match entry.kind {
                EntryKind::Directory => UnlinkatFlags::RemoveDir,
                EntryKind::File { .. } | EntryKind::Link => UnlinkatFlags::NoRemoveDir,
            };
            match unlinkat(directory.as_fd(), name, kind) {
                // It holds entries that this part of the list has no more.
                Err(nix::errno::Errno::ENOTEMPTY) if !whole => {}
                outcome => gone(outcome)?,
            }
        }
        if whole {
            return Ok(());
        }
    }
}

/// The directory itself, if its owner is accepted.
fn require_emptied(
    directory: OwnedFd,
    path: &Path,
    may_empty: impl Fn(u32) -> bool,
) -> io::Result<OwnedFd> {
    let uid = fstat(directory.as_fd())?.st_uid;
    if may_empty(uid) {
        return Ok(directory);
    }
    Err(io::Error::other(format!(
        "directory \"{}\" in it belongs to another user (user id {uid})",
        path.display()
    )))
}

/// Everything below an open directory, sorted by path. An error when it is more than a listing can hold.
pub fn list(root: BorrowedFd<'_>) -> io::Result<Vec<Entry>> {
    match list_some(root, Kinds::OfCheckpoints)? {
        (entries, true) => Ok(entries),
        (entries, false) => Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!(
                "it holds more files than can be listed ({} were found, their names take {} MiB at most)",
                entries.len(),
                LISTING_BYTES >> 20
            ),
        )),
    }
}

/// Which kinds of files a listing has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kinds {
    /// Directories, regular files and links.
    OfCheckpoints,
    /// Devices, pipes and sockets too, as files without bytes.
    All,
}

/// What is below an open directory, sorted by path, as far as a listing can hold it; and whether that is all.
fn list_some(root: BorrowedFd<'_>, kinds: Kinds) -> io::Result<(Vec<Entry>, bool)> {
    let mut entries = Vec::new();
    let mut bytes = 0;
    let mut whole = true;
    let mut waiting = vec![(PathBuf::new(), 0)];
    'all: while let Some((path, depth)) = waiting.pop() {
        if depth > DEEPEST {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("its directories are nested more than {DEEPEST} deep"),
            ));
        }
        let directory = open_directory(root, &path)?;
        for found in std::fs::read_dir(handle_path(directory.as_fd()))? {
            let found = found?;
            let meta = match found.metadata() {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                meta => meta?,
            };
            let path = path.join(found.file_name());
            let kind = if meta.is_dir() {
                EntryKind::Directory
            } else if meta.is_file() {
                EntryKind::File { size: meta.len() }
            } else if meta.is_symlink() {
                EntryKind::Link
            } else if kinds == Kinds::All {
                EntryKind::File { size: 0 }
            } else {
                continue;
            };
            bytes += path.as_os_str().len() + ENTRY_BYTES;
            if bytes > LISTING_BYTES {
                whole = false;
                break 'all;
            }
            if kind == EntryKind::Directory {
                waiting.push((path.clone(), depth + 1));
            }
            entries.push(Entry {
                path,
                kind,
                mode: meta.mode() & 0o777,
                uid: meta.uid(),
                mtime: meta.mtime(),
            });
        }
    }
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    Ok((entries, whole))
}
