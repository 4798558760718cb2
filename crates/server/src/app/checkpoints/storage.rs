//! Checkpoint files where the master can reach them: `shared_fs`, and `directory` on the same host. Blocking.
//!
//! Configurations of users name the storage, and tasks own the directories that they write. Three rules keep the files
//! of all other users out of reach:
//!
//! - Only what is below an allowed path is opened ([`AllowedPaths`]), and never the master's or an agent's data
//!   directory, even when it is below one.
//! - Below an allowed path names are opened one by one from the handle of their parent. Links and `..` are never
//!   followed, which is what `RESOLVE_BENEATH` and `RESOLVE_NO_SYMLINKS` of `openat2` mean, on every kernel.
//! - A checkpoint's directory and files belong to the user that its task ran as ([`Owner`]).

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use det_checkpoint_files::glob::Pattern;
use det_checkpoint_files::removal::{RemovalError, remove_matching, resources};
use det_checkpoint_files::tree::{Entry, EntryKind, empty, gone, list, open_directory};
use det_config::experiment::ExperimentConfig;
use det_config::storage::StorageLocation;
use det_ids::{CheckpointId, ClusterId, ExperimentId, TrialId, UserId, is_uuid};
use det_taskspec::{SHARED_FS_DIR, UNPRIVILEGED_ID, unprivileged_id};
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

use crate::app::checkpoints::allowed::{
    AllowedDirectory, AllowedPaths, OWN_DIRECTORY, joined, on_host,
};
use crate::error::{AppError, AppResult, ErrorKind};

/// File that every agent's data directory has.
const AGENT_LOCK: &str = "agent.lock";
/// Where TensorBoard files are in a cluster's directory: a directory for each experiment.
const TENSORBOARD: &str = "tensorboard/experiment";
/// Where they are in an experiment's directory: a directory for each trial.
const TRIALS: &str = "trial";

/// Whom the files of a checkpoint must belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Unix user id of the task that stored it.
    pub uid: u32,
    /// The cluster's number of the user whose task it was.
    pub user_id: UserId,
}

impl Owner {
    /// Whether a file of this user may be one of the checkpoint. Tasks of root run as unprivileged users where an agent
    /// does so, and an unprivileged master shares its user id with all processes of an unprivileged agent.
    fn is(self, uid: u32) -> bool {
        let own = geteuid();
        uid == self.uid
            || (self.uid == 0 && [unprivileged_id(self.user_id), UNPRIVILEGED_ID].contains(&uid))
            || (!own.is_root() && uid == own.as_raw())
    }
}

/// The storage of an experiment, as directories of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Storage {
    /// The name that users know it by, for errors.
    name: String,
    /// Where it may be; the first that holds what is looked for counts.
    places: Vec<AllowedDirectory>,
    /// The master's data directory.
    data_dir: PathBuf,
}

impl Storage {
    /// The storage of an experiment; an error when the master cannot reach storage of this type, or may not touch it.
    pub fn of(config: &ExperimentConfig, allowed: &AllowedPaths) -> AppResult<Self> {
        let location = &config.checkpoint_storage.location;
        match location {
            StorageLocation::SharedFs { host_path, .. } => {
                let below = location.shared_fs_subdirectory().ok_or_else(|| {
                    AppError::precondition(format!(
                        "checkpoint storage: \"storage_path\" leads out of \"{host_path}\""
                    ))
                })?;
                let path = joined(Path::new(host_path), &below);
                let mut storage = Self::below(
                    format!("shared_fs storage \"{}\"", path.display()),
                    &path,
                    allowed,
                )?;
                if allowed.shared.as_deref() == Some(Path::new(host_path)) {
                    // A master in a container has the configured directory where every container has it.
                    storage.places.push(AllowedDirectory {
                        root: PathBuf::from(SHARED_FS_DIR),
                        below,
                    });
                }
                Ok(storage)
            }
            StorageLocation::Directory { container_path } => Self::below(
                format!("directory storage \"{container_path}\""),
                &on_host(container_path, &config.bind_mounts),
                allowed,
            ),
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

    fn below(name: String, path: &Path, allowed: &AllowedPaths) -> AppResult<Self> {
        let Some(place) = allowed.place_of(path) else {
            let paths: Vec<String> = allowed
                .allowed
                .iter()
                .map(|path| format!("\"{}\"", path.display()))
                .collect();
            return Err(AppError::precondition(format!(
                "the master does not touch files in {name}: \"{}\" is not below a path that an administrator allowed ({})",
                path.display(),
                paths.join(", ")
            ))
            .hint("an administrator can add it to \"security.allowed_host_paths\" of the master's configuration"));
        };
        Ok(Self {
            name,
            places: vec![place],
            data_dir: allowed.data_dir.clone(),
        })
    }

    #[cfg(test)]
    fn at(root: &Path) -> Self {
        Self {
            name: "test storage".into(),
            places: vec![AllowedDirectory {
                root: root.to_owned(),
                below: PathBuf::new(),
            }],
            data_dir: root.join("no-data-directory"),
        }
    }

    /// An error when none of its directories can be seen from here, or may be touched.
    pub fn look(&self) -> AppResult<()> {
        self.open_roots().map(drop)
    }

    /// The handles of the directories that exist here; an error when there is none.
    fn open_roots(&self) -> AppResult<Vec<OwnedFd>> {
        let mut handles = Vec::new();
        for place in &self.places {
            let opened =
                File::open(&place.root).and_then(|root| open_directory(root.as_fd(), &place.below));
            match opened {
                Ok(directory) => {
                    self.refuse_private(directory.as_fd(), &place.path())?;
                    handles.push(directory);
                }
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                    ) => {}
                Err(e) => return Err(self.failed("opened", &place.path(), &e)),
            }
        }
        if handles.is_empty() {
            let searched: Vec<String> = self
                .places
                .iter()
                .map(|place| format!("\"{}\"", place.path().display()))
                .collect();
            return Err(AppError::precondition(format!(
                "{} cannot be seen from the master's host: looked for {}",
                self.name,
                searched.join(" and ")
            ))
            .hint("mount the storage on the master's host at the same path; links in it are not followed"));
        }
        Ok(handles)
    }

    /// Refuses a directory in the data directory of the master or of an agent, by whatever path it was reached. The
    /// master's own checkpoint directory is the exception.
    fn refuse_private(&self, directory: BorrowedFd<'_>, path: &Path) -> AppResult<()> {
        let of = |path: &Path| std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
        let own = of(&self.data_dir.join(OWN_DIRECTORY));
        let private = of(&self.data_dir);
        let failed = |e: io::Error| self.failed("checked", path, &e);
        let mut at = directory.try_clone_to_owned().map_err(failed)?;
        let mut below_own = false;
        loop {
            let here = identity(at.as_fd()).map_err(failed)?;
            below_own |= Some(here) == own;
            let is_private =
                Some(here) == private || is_agent_directory(at.as_fd()).map_err(failed)?;
            if is_private && !below_own {
                return Err(AppError::new(
                    ErrorKind::Forbidden,
                    format!(
                        "access to \"{}\" is forbidden: it is in the data directory of the master or of an agent",
                        path.display()
                    ),
                )
                .hint("choose another directory as checkpoint storage"));
            }
            let flags = OFlag::O_DIRECTORY | OFlag::O_PATH | OFlag::O_CLOEXEC;
            let parent =
                openat(at.as_fd(), "..", flags, Mode::empty()).map_err(|e| failed(e.into()))?;
            if identity(parent.as_fd()).map_err(failed)? == here {
                return Ok(());
            }
            at = parent;
        }
    }

    /// Opens a checkpoint's directory; `None` = the storage is here and holds no such checkpoint. An error when it
    /// belongs to another user than `owner`.
    pub fn open(&self, uuid: &CheckpointId, owner: Owner) -> AppResult<Option<OwnedFd>> {
        check_uuid(uuid.as_str())?;
        for root in self.open_roots()? {
            match open_directory(root.as_fd(), Path::new(uuid.as_str())) {
                Ok(directory) => {
                    self.refuse_private(directory.as_fd(), Path::new(uuid.as_str()))?;
                    let meta = fstat(directory.as_fd())
                        .map_err(|e| self.failed("opened", Path::new(uuid.as_str()), &e.into()))?;
                    self.require_owner(uuid.as_str(), meta.st_uid, owner)?;
                    return Ok(Some(directory));
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(self.failed("opened", Path::new(uuid.as_str()), &e)),
            }
        }
        Ok(None)
    }

    fn require_owner(&self, what: &str, uid: u32, owner: Owner) -> AppResult<()> {
        if owner.is(uid) {
            return Ok(());
        }
        Err(AppError::new(
            ErrorKind::Forbidden,
            format!(
                "access to \"{what}\" in {} is forbidden: it belongs to user id {uid}, and the task that stored it \
                 ran as user id {}",
                self.name, owner.uid
            ),
        )
        .hint("files that are the task's get its owner back with: chown -R"))
    }

    /// Deletes a checkpoint's directory. One that is gone already is what was wanted. An error when a directory in it
    /// belongs to another user than `owner`, who can have moved it there: what is in that one stays.
    pub fn remove(&self, uuid: &CheckpointId, owner: Owner) -> AppResult<()> {
        check_uuid(uuid.as_str())?;
        for root in self.open_roots()? {
            self.remove_owned(root.as_fd(), Path::new(uuid.as_str()), owner)?;
        }
        Ok(())
    }

    /// Deletes the directory that `path`, a path for errors, names in `parent`, with everything in it.
    fn remove_owned(&self, parent: BorrowedFd<'_>, path: &Path, owner: Owner) -> AppResult<()> {
        let Some(directory) = self.open_owned(parent, path, owner)? else {
            return Ok(());
        };
        may_empty(directory.as_fd(), owner)
            .and_then(|may_empty| empty(directory.as_fd(), may_empty))
            .and_then(|()| remove_directory(parent, path))
            .map_err(|e| self.failed("deleted", path, &e))
    }

    /// Opens the directory that `path`, a path for errors, names in `parent`, to delete what is in it; `None` = it is gone
    /// already. What is no directory is deleted at once. An error when it belongs to another user than `owner`.
    fn open_owned(
        &self,
        parent: BorrowedFd<'_>,
        path: &Path,
        owner: Owner,
    ) -> AppResult<Option<OwnedFd>> {
        let failed = |e: io::Error| self.failed("deleted", path, &e);
        let name = name_of(path).map_err(failed)?;
        let found = match fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(found) => found,
            Err(nix::errno::Errno::ENOENT) => return Ok(None),
            Err(e) => return Err(failed(e.into())),
        };
        let what = path.to_string_lossy();
        self.require_owner(&what, found.st_uid, owner)?;
        if SFlag::from_bits_truncate(found.st_mode & SFlag::S_IFMT.bits()) != SFlag::S_IFDIR {
            gone(unlinkat(parent, name, UnlinkatFlags::NoRemoveDir)).map_err(failed)?;
            return Ok(None);
        }
        let directory = match open_directory(parent, name) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            directory => directory.map_err(failed)?,
        };
        self.refuse_private(directory.as_fd(), path)?;
        let uid = fstat(directory.as_fd())
            .map_err(|e| failed(e.into()))?
            .st_uid;
        self.require_owner(&what, uid, owner)?;
        Ok(Some(directory))
    }

    /// Deletes the files and directories that match any of the patterns, and returns what is left: path to bytes,
    /// directories with a final `/`. A checkpoint that is gone has nothing left. Without patterns nothing is deleted.
    pub fn remove_matching(
        &self,
        uuid: &CheckpointId,
        owner: Owner,
        patterns: &[Pattern],
    ) -> AppResult<BTreeMap<String, i64>> {
        if patterns.iter().any(Pattern::is_everything) {
            self.remove(uuid, owner)?;
            return Ok(BTreeMap::new());
        }
        let Some(directory) = self.open(uuid, owner)? else {
            return Ok(BTreeMap::new());
        };
        let failed = |e: io::Error| self.failed("changed", Path::new(uuid.as_str()), &e);
        let may_empty = may_empty(directory.as_fd(), owner).map_err(failed)?;
        let left =
            remove_matching(directory.as_fd(), patterns, may_empty).map_err(|e| match e {
                RemovalError::TooMuchWork { patterns, entries } => too_much_work(patterns, entries),
                RemovalError::Io(e) => failed(e),
            })?;
        if left.is_empty() && !patterns.is_empty() {
            self.remove(uuid, owner)?;
        }
        Ok(resources(&left))
    }

    /// The files of a checkpoint that its task reported: everything else in its directory is left out. An error when
    /// one of them belongs to another user than the directory.
    pub fn reported(
        &self,
        directory: BorrowedFd<'_>,
        resources: &BTreeMap<String, i64>,
    ) -> AppResult<Vec<Entry>> {
        let mut entries = list(directory).map_err(|e| self.failed("listed", Path::new("."), &e))?;
        entries.retain(|entry| {
            let name = entry.resource();
            match entry.kind {
                // Reports need not name the directories that files are in.
                EntryKind::Directory => resources
                    .range(name.clone()..)
                    .next()
                    .is_some_and(|(path, _)| path.starts_with(&name)),
                EntryKind::File { .. } | EntryKind::Link => resources.contains_key(&name),
            }
        });
        let uid = fstat(directory)
            .map_err(|e| self.failed("listed", Path::new("."), &e.into()))?
            .st_uid;
        // Root can give files away, so what is in its directories may belong to any user.
        if uid != 0 {
            for entry in &entries {
                self.require_owner(
                    &entry.path.to_string_lossy(),
                    entry.uid,
                    Owner {
                        uid,
                        user_id: UserId::default(),
                    },
                )?;
            }
        }
        Ok(entries)
    }

    /// Deletes the TensorBoard files of these trials, which are all of an experiment, where the storage can be reached. An
    /// error when they belong to another user than `owner`, or others are with them: the directory that those of all
    /// experiments are in belongs to the user whose task came first, who can give them other names.
    pub fn remove_tensorboard(
        &self,
        cluster_id: &ClusterId,
        experiment_id: ExperimentId,
        trials: &[TrialId],
        owner: Owner,
    ) -> AppResult<()> {
        check_uuid(cluster_id.as_str())?;
        let common = Path::new(cluster_id.as_str()).join(TENSORBOARD);
        let experiment = common.join(experiment_id.to_string());
        let of_trials = experiment.join(TRIALS);
        for root in self.open_roots()? {
            let common = match open_directory(root.as_fd(), &common) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                found => found.map_err(|e| self.failed("opened", &common, &e))?,
            };
            // Only their owner can have made both of these, and have put into them what has the name of a trial.
            let Some(own) = self.open_owned(common.as_fd(), &experiment, owner)? else {
                continue;
            };
            if let Some(parent) = self.open_owned(own.as_fd(), &of_trials, owner)? {
                for trial in trials {
                    let path = of_trials.join(trial.to_string());
                    self.remove_owned(parent.as_fd(), &path, owner)?;
                }
            }
            remove_directory(own.as_fd(), &of_trials)
                .and_then(|()| remove_directory(common.as_fd(), &experiment))
                .map_err(|e| self.failed("deleted", &experiment, &e))?;
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

/// Which directories in an open one, by the user ids of their owners, may be emptied in the name of `owner`.
fn may_empty(directory: BorrowedFd<'_>, owner: Owner) -> io::Result<impl Fn(u32) -> bool + use<>> {
    // Root can give files away, so what is in its directories may belong to any user.
    let of_root = fstat(directory)?.st_uid == 0;
    Ok(move |uid| of_root || owner.is(uid))
}

/// The last name of a path.
fn name_of(path: &Path) -> io::Result<&Path> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    Ok(Path::new(name))
}

/// Deletes the empty directory that `path` names in `parent`, unless it is gone already.
fn remove_directory(parent: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    gone(unlinkat(parent, name_of(path)?, UnlinkatFlags::RemoveDir))
}

fn too_much_work(patterns: usize, entries: usize) -> AppError {
    AppError::invalid(format!(
        "field \"checkpointGlobs\": {patterns} patterns are too many or too long for a checkpoint of {entries} files"
    ))
    .hint("give fewer or shorter patterns at once")
}

/// Whether an open directory is an agent's data directory. A file of the same name that some task made in storage that
/// others write to as well does not count.
fn is_agent_directory(directory: BorrowedFd<'_>) -> io::Result<bool> {
    let meta = fstat(directory)?;
    let others_write = meta.st_mode & 0o022 != 0;
    Ok(!others_write
        && fstatat(directory, AGENT_LOCK, AtFlags::AT_SYMLINK_NOFOLLOW)
            .is_ok_and(|lock| lock.st_uid == meta.st_uid))
}

/// Device and number of an open directory: the same for every path to it.
fn identity(directory: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    let meta = fstat(directory)?;
    Ok((meta.st_dev, meta.st_ino))
}

/// A storage's own names never come from outside unchecked: they are UUIDs.
fn check_uuid(uuid: &str) -> AppResult<()> {
    if is_uuid(uuid) {
        Ok(())
    } else {
        Err(AppError::invalid(format!(
            "\"{}\" is not a UUID",
            uuid.escape_debug()
        )))
    }
}

#[cfg(test)]
mod tests;
