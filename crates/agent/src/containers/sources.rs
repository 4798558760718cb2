//! What the mounts of a container show: paths of this host, opened and checked.

use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use det_host_paths::{FoundPath, OpenError, TakenOver, Trust, share_as_host};
use det_taskspec::guard::HostGuard;
use det_taskspec::{CheckedMount, Mount, SharedDirectories, TaskUser};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, fstat};

use super::prepare::PrepareError;
use crate::runtime::guard::create_below;

/// A path of this host as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    /// The path on this host, links resolved.
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Source {
    /// What the agent has opened for a mount.
    pub(super) fn at(mount: &Mount, opened: &OwnedFd) -> io::Result<Self> {
        identify(opened, PathBuf::from(&mount.host_path))
    }

    /// The mount with the path that was checked, for an engine, which opens paths by itself.
    pub(super) fn resolved(&self, mount: &Mount) -> Mount {
        Mount {
            host_path: self.path.to_string_lossy().into_owned(),
            ..mount.clone()
        }
    }

    /// What the container must find where the mount is.
    pub(super) fn checked(&self, mount: &Mount, work_dir: &str) -> CheckedMount {
        CheckedMount {
            path: mount.target(work_dir),
            device: self.device,
            inode: self.inode,
        }
    }
}

/// Finds the source of a mount, and creates it where that is wanted and allowed. Refuses what the task may not have.
pub(super) fn find(
    mount: &Mount,
    user: &TaskUser,
    guard: &HostGuard,
) -> Result<Source, PrepareError> {
    let path = Path::new(&mount.host_path);
    let found = if !path.is_absolute() {
        Err("the host path must be absolute".to_owned())
    } else if mount.trusted {
        of_cluster(mount, path, guard)
    } else {
        of_user(mount, path, user, guard)
    };
    found.map_err(|reason| PrepareError::Mount {
        host_path: mount.host_path.clone(),
        container_path: mount.container_path.clone(),
        reason,
    })
}

const ABSENT: &str = "it does not exist on this agent; create it there, or correct bind_mounts";

/// A path that an administrator chose, which the agent opens and creates with its own rights. Users may write to a
/// directory above it.
fn of_cluster(mount: &Mount, path: &Path, guard: &HostGuard) -> Result<Source, String> {
    let trust = Trust {
        root: 0,
        hidden: &|directory| guard.hides(directory),
        refusal: &|found, links| guard.cluster_refusal(path, found, links, mount.read_only),
    };
    let found = match det_host_paths::open(path, trust) {
        Err(OpenError::Absent(_)) if mount.create => det_host_paths::create(path, trust),
        other => other,
    };
    let found = found.map_err(|error| match error {
        OpenError::Absent(_) => ABSENT.to_owned(),
        other => other.to_string(),
    })?;
    if found.is_new {
        open_to_all_tasks(&found)
            .map_err(|error| format!("cannot open it to all tasks: {error}"))?;
    }
    if let Some(shared) = &mount.shared {
        share_storage(&found, shared, trust)?;
    }
    identify(&found.descriptor, found.path).map_err(|error| error.to_string())
}

/// Makes what tasks of all users share in the cluster's storage, before one of them does: whose a directory is can replace
/// what others store in it.
fn share_storage(
    root: &FoundPath,
    shared: &SharedDirectories,
    trust: Trust<'_>,
) -> Result<(), String> {
    let share = |below: &str| share_as_host(root, Path::new(below), trust, warn_of_owner);
    if let Err(error) = share(&shared.checkpoints) {
        if !leaves_it_to_tasks(&error) {
            return Err(error.to_string());
        }
        tracing::warn!(%error, "checkpoint storage is left to the tasks, of which the first one can replace what others store");
    }
    if let Err(error) = share(&shared.tensorboard) {
        tracing::warn!(%error, "directories of TensorBoard files are left to the tasks, of which the first one can replace those of others");
    }
    Ok(())
}

fn warn_of_owner(from: &TakenOver) {
    tracing::warn!(path = %from.path.display(), uid = from.uid, "{from}");
}

/// Whether the agent lacks the right, as one that is not root, or root on a network file system that gives it none: tasks
/// may have it.
fn leaves_it_to_tasks(error: &OpenError) -> bool {
    matches!(error, OpenError::Absent(_))
        || matches!(error, OpenError::Access { source, .. } if matches!(
            source.kind(),
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
        ))
}

/// A path of a user's configuration.
fn of_user(
    mount: &Mount,
    path: &Path,
    user: &TaskUser,
    guard: &HostGuard,
) -> Result<Source, String> {
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    // As a directory first, which is what mounts a directory that is mounted on demand.
    let opened = || match open(path, flags | OFlag::O_DIRECTORY, Mode::empty()) {
        Err(Errno::ENOTDIR) => open(path, flags, Mode::empty()),
        other => other,
    };
    let descriptor = match opened().map_err(io::Error::from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && mount.create => {
            match (guard.creation_refusal(path), guard.root_of(path)) {
                (None, Some(root)) => create_below(root, path, user)
                    .and_then(|()| Ok(opened()?))
                    .map_err(|error| format!("cannot create it on this agent: {error}")),
                (refusal, _) => Err(refusal.unwrap_or_default()),
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(ABSENT.to_owned()),
        other => other.map_err(|error| error.to_string()),
    }?;
    let real = std::fs::read_link(det_host_paths::by_descriptor(descriptor.as_fd()))
        .map_err(|error| error.to_string())?;
    match guard.refusal(&real, mount.read_only) {
        Some(reason) => Err(reason),
        None => identify(&descriptor, real).map_err(|error| error.to_string()),
    }
}

fn identify(descriptor: impl AsFd, path: PathBuf) -> io::Result<Source> {
    let found = fstat(descriptor)?;
    Ok(Source {
        path,
        device: found.st_dev,
        inode: found.st_ino,
    })
}

/// Lets tasks of all users create files in a shared directory, like `/tmp`: each may remove only its own. An agent that
/// is not root has one user only.
fn open_to_all_tasks(found: &FoundPath) -> io::Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    std::fs::set_permissions(found.by_descriptor(), Permissions::from_mode(0o1777))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, lchown, symlink};

    use super::*;

    fn mount(path: &Path, trusted: bool) -> Mount {
        Mount {
            host_path: path.to_string_lossy().into_owned(),
            container_path: "data".into(),
            read_only: false,
            propagation: "rprivate".into(),
            create: trusted,
            trusted,
            shared: None,
        }
    }

    #[test]
    fn no_link_of_a_user_leads_the_clusters_own_mount_elsewhere() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("SKIPPED: only root can make links of other users");
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let guard = HostGuard::default();
        let user = TaskUser::default();
        let storage = root.join("storage/checkpoints");
        let made = find(&mount(&storage, true), &user, &guard).unwrap();
        let mode = std::fs::metadata(&storage).unwrap().mode() & 0o7777;
        assert_eq!((made.path.as_path(), mode), (storage.as_path(), 0o1777));
        // A task that may write to the directory above puts a link in its place.
        let secret = root.join("secret");
        std::fs::create_dir(&secret).unwrap();
        std::fs::rename(&storage, root.join("storage/moved")).unwrap();
        for target in [secret.clone(), secret.join("new")] {
            symlink(&target, &storage).unwrap();
            lchown(&storage, Some(54321), Some(54321)).unwrap();
            for path in [storage.clone(), storage.join("below")] {
                let error = find(&mount(&path, true), &user, &guard).unwrap_err();
                assert!(
                    error
                        .to_string()
                        .contains("users of this host could have made"),
                    "{error}"
                );
            }
            std::fs::remove_file(&storage).unwrap();
        }
        assert_eq!(std::fs::read_dir(&secret).unwrap().count(), 0);
        assert_eq!(std::fs::metadata(&secret).unwrap().mode() & 0o7777, 0o755);
        // Root's own link is followed.
        symlink(&secret, &storage).unwrap();
        let found = find(&mount(&storage, true), &user, &guard).unwrap();
        assert_eq!(found.path, secret);
    }

    #[test]
    fn what_users_share_in_the_clusters_storage_is_made_as_no_users() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let storage = root.join("storage");
        let asked = Mount {
            shared: Some(SharedDirectories {
                checkpoints: "a/base".into(),
                tensorboard: "a/base/k/tensorboard".into(),
            }),
            ..mount(&storage, true)
        };
        let find = || find(&asked, &TaskUser::default(), &HostGuard::default());
        let own = std::fs::metadata(&root).unwrap().uid();
        let is_shared = || {
            ["a", "a/base", "a/base/k", "a/base/k/tensorboard"].map(|below| {
                let made = std::fs::metadata(storage.join(below)).unwrap();
                assert_eq!((made.uid(), made.mode() & 0o7777), (own, 0o1777), "{below}");
            })
        };
        find().unwrap();
        is_shared();
        if own != 0 {
            eprintln!("SKIPPED: only root can make directories of other users");
            return;
        }
        // As tasks left it before, the first one in each.
        let base = storage.join("a/base");
        for path in [base.join("k/tensorboard"), base.join("k"), base.clone()] {
            std::os::unix::fs::chown(&path, Some(54321), Some(54321)).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        }
        find().unwrap();
        is_shared();
        // A user's link for TensorBoard files keeps no task from starting, and nothing is made behind it.
        std::fs::rename(base.join("k"), base.join("moved")).unwrap();
        symlink(&root, base.join("k")).unwrap();
        lchown(base.join("k"), Some(54321), Some(54321)).unwrap();
        find().unwrap();
        assert!(!root.join("tensorboard").exists());
        // One in place of the checkpoints does.
        std::fs::rename(&base, storage.join("a/moved")).unwrap();
        symlink(&root, &base).unwrap();
        lchown(&base, Some(54321), Some(54321)).unwrap();
        let error = find().unwrap_err().to_string();
        assert!(
            error.contains("users of this host could have made"),
            "{error}"
        );
    }

    #[test]
    fn a_link_of_root_of_an_image_leads_the_clusters_mount_nowhere_that_users_may_not_mount() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("SKIPPED: only root can make links as root of an image does");
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let guard = HostGuard {
            protected: vec![root.join("data")],
            ..HostGuard::default()
        };
        std::fs::create_dir_all(root.join("data/tokens")).unwrap();
        std::fs::create_dir(root.join("shared")).unwrap();
        let storage = root.join("shared/storage");
        for target in [root.join("data"), root.join("data/tokens"), "/etc".into()] {
            symlink(&target, &storage).unwrap();
            for path in [storage.clone(), storage.join("det-test-new")] {
                let asked = mount(&path, true);
                let error = find(&asked, &TaskUser::default(), &guard).unwrap_err();
                let error = error.to_string();
                let leads = format!("leads to \"{}", target.display());
                assert!(error.contains(&leads), "{error}");
                assert!(error.contains("by its own path"), "{error}");
            }
            assert!(!target.join("det-test-new").exists());
            std::fs::remove_file(&storage).unwrap();
        }
    }

    #[test]
    fn an_engine_gets_the_path_that_was_checked_and_what_it_must_lead_to() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        symlink(&root, root.join("link")).unwrap();
        let asked = mount(&root.join("link"), false);
        let found = find(&asked, &TaskUser::default(), &HostGuard::default()).unwrap();
        assert_eq!(Path::new(&found.resolved(&asked).host_path), root);
        let real = std::fs::metadata(&root).unwrap();
        let checked = found.checked(&asked, "/work/");
        assert_eq!(checked.path, "/work/data");
        assert_eq!((checked.device, checked.inode), (real.dev(), real.ino()));
    }
}
