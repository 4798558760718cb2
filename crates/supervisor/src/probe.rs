//! Checks checkpoint storage before the entrypoint starts, so that a trial does not train for hours in vain.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use det_host_paths::{SHARED_MODE, Sharer, Trust, open_as_is, share};
use det_ids::ClusterId;
use det_taskspec::{SHARED_FS_DIR, UNPRIVILEGED_ID, tensorboard_directory};
use serde_json::Value;

use crate::clock::random;
use crate::failure::SetupError;

/// In storage no link is followed where directories are made: other users may have put it there.
const NO_LINKS: Trust<'_> = Trust {
    root: u32::MAX,
    hidden: &|_| false,
    refusal: &|_, _| None,
};

/// Checkpoint storage that is a directory.
#[derive(Debug, PartialEq, Eq)]
struct Storage {
    /// What is mounted; for storage in the container's own file system the directory above.
    root: PathBuf,
    /// Where it is in that.
    below: PathBuf,
    /// Whether agents mount it: then what it contains may be other users'.
    is_mounted: bool,
}

impl Storage {
    fn path(&self) -> PathBuf {
        let mut path = self.root.clone();
        // An empty one would add a slash.
        path.extend(self.below.components());
        path
    }
}

/// Writes, reads and deletes a file in the checkpoint storage, and makes the directories there that are missing: its own,
/// and those that TensorBoard files of all experiments of the cluster have in common. All are open to the tasks of all
/// users. In the cluster's own storage agents have made them already, as far as they have the right. Returns warnings.
///
/// Only for storage that is a directory: cloud storage is checked by the training library, which has the client
/// libraries, and has no directories.
pub(crate) fn check(storage: &Value, cluster_id: &ClusterId) -> Result<Vec<String>, SetupError> {
    let Some(found) = directory(storage, Path::new(SHARED_FS_DIR))? else {
        return Ok(Vec::new());
    };
    let base = found.path();
    let of_host = storage.get("host_path").and_then(Value::as_str);
    let of_host = of_host.filter(|_| base.starts_with(SHARED_FS_DIR));
    make(&found, &base)
        .and_then(|()| try_out(&base))
        .map_err(|what| refused(&what, of_host))?;
    let mut warnings = Vec::new();
    warnings.extend(foreign_owner(&found, &base));
    warnings.extend(share_tensorboard(&base, cluster_id).err());
    Ok(warnings)
}

/// Makes the directory of the storage where it is missing. The error is what could not be done.
fn make(storage: &Storage, base: &Path) -> Result<(), String> {
    if base.is_dir() {
        return Ok(());
    }
    let made = fs::create_dir_all(&storage.root)
        .and_then(|()| open_as_is(&storage.root))
        .map_err(|error| error.to_string())
        .and_then(|root| {
            let made = share(&root, &storage.below, NO_LINKS, Sharer::Task);
            made.map_err(|error| error.to_string())
        });
    made.map(|_| ())
        .map_err(|error| format!("could not create {base:?}: {error}"))
}

/// What to know of storage that belongs to a user who is neither the task's nor the owner of what is mounted.
fn foreign_owner(storage: &Storage, base: &Path) -> Option<String> {
    let owner = |path: &Path| Some(fs::metadata(path).ok()?.uid());
    let found = owner(base).filter(|_| storage.is_mounted)?;
    // In a user namespace root of the host looks like the unprivileged account.
    let is_trusted = [nix::unistd::geteuid().as_raw(), 0, UNPRIVILEGED_ID].contains(&found)
        || owner(&storage.root) == Some(found);
    (!is_trusted).then(|| {
        format!(
            "the directory {base:?} of the checkpoint storage belongs to uid {found}, who can replace checkpoints that \
             others store in it: where users do not trust each other, an administrator gives it to root, with mode \
             {SHARED_MODE:o}"
        )
    })
}

/// Makes what is missing of `CLUSTER/tensorboard/experiment`, open to the tasks of all users. Training libraries make it by
/// the umask, so that only the user whose task came first could write below it. What exists keeps its mode: it is another
/// task's or an administrator's.
fn share_tensorboard(base: &Path, cluster_id: &ClusterId) -> Result<(), String> {
    let below = tensorboard_directory(cluster_id);
    let made = open_as_is(base)
        .map_err(|error| error.to_string())
        .and_then(|root| {
            let made = share(&root, Path::new(&below), NO_LINKS, Sharer::Task);
            made.map_err(|error| error.to_string())
        });
    made.map(|_| ()).map_err(|error| {
        let path = base.join(&below);
        format!(
            "could not create {path:?}, in which TensorBoard files are stored: {error}; a directory that tasks of several \
             users share needs mode {SHARED_MODE:o}"
        )
    })
}

/// Directory of the checkpoints; `None` for storage that is not a directory.
fn directory(storage: &Value, shared_fs: &Path) -> Result<Option<Storage>, SetupError> {
    let text = |name: &str| storage.get(name).and_then(Value::as_str);
    match text("type") {
        Some("shared_fs") => {
            // Older configurations have other keys for the directory.
            let names = ["storage_path", "tensorboard_path", "checkpoint_path"];
            let path = names.into_iter().find_map(text).unwrap_or_default();
            let host_path = Path::new(text("host_path").unwrap_or("/"));
            let below = below(host_path, Path::new(path)).ok_or_else(|| {
                SetupError::task(format!(
                    "checkpoint storage: storage_path {path:?} must be below host_path {host_path:?}"
                ))
            })?;
            Ok(Some(Storage {
                root: shared_fs.to_owned(),
                below,
                is_mounted: true,
            }))
        }
        Some("directory") => {
            let path = text("container_path").map(Path::new).ok_or_else(|| {
                SetupError::task("checkpoint storage of type \"directory\" needs a container_path")
            })?;
            let (root, below) = match (path.parent(), path.file_name()) {
                (Some(above), Some(name)) if above.has_root() => (above, name.into()),
                _ => (path, PathBuf::new()),
            };
            Ok(Some(Storage {
                root: root.to_owned(),
                below,
                is_mounted: false,
            }))
        }
        _ => Ok(None),
    }
}

/// `path` relative to `base`, both taken literally; `None` if it is outside `base`.
fn below(base: &Path, path: &Path) -> Option<PathBuf> {
    let mut full = PathBuf::new();
    for component in base.join(path).components() {
        match component {
            Component::ParentDir => {
                full.pop();
            }
            Component::CurDir => {}
            other => full.push(other),
        }
    }
    full.strip_prefix(base).ok().map(Path::to_owned)
}

/// `of_host` is where the host has what is mounted as [`SHARED_FS_DIR`], which is the path that a configuration names.
fn refused(what: &str, of_host: Option<&str>) -> SetupError {
    let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
    let mounted = of_host.map_or_else(String::new, |of_host| {
        format!("; {SHARED_FS_DIR:?} is {of_host:?} of the agent's host, the host_path of the checkpoint storage")
    });
    SetupError::task(format!(
        "checkpoint storage check failed: {what}; the task runs as uid {uid} and gid {gid} and must be able to create, read \
         and delete files there; a directory that tasks of several users share needs mode {SHARED_MODE:o}{mounted}"
    ))
}

/// The error is what could not be done.
fn try_out(base: &Path) -> Result<(), String> {
    let dir = base.join(format!("det-storage-check-{:016x}", random()));
    let file = dir.join("VALIDATE.txt");
    let content = format!("{:016x}", random());
    let failed =
        |what: &str, path: &Path, error: io::Error| format!("could not {what} {path:?}: {error}");
    fs::create_dir(&dir).map_err(|error| failed("create", &dir, error))?;
    let result = fs::write(&file, &content)
        .map_err(|error| failed("write", &file, error))
        .and_then(|()| {
            let read = fs::read(&file).map_err(|error| failed("read", &file, error))?;
            let same = read == content.as_bytes();
            same.then_some(()).ok_or_else(|| {
                let error = io::Error::other("the content is not what was written");
                failed("read back", &file, error)
            })
        });
    let removed = fs::remove_file(&file)
        .or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })
        .and_then(|()| fs::remove_dir(&dir))
        .map_err(|error| failed("delete", &dir, error));
    result.and(removed)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, chown};

    use serde_json::json;

    use super::*;

    #[test]
    fn storage_is_found_as_the_training_library_finds_it() {
        let cases = [
            (
                json!({"type": "shared_fs", "host_path": "/x"}),
                Some("/shared"),
            ),
            (
                json!({"type": "shared_fs", "host_path": "/x", "storage_path": "a/b"}),
                Some("/shared/a/b"),
            ),
            (
                json!({"type": "shared_fs", "host_path": "/x", "storage_path": "/x/c"}),
                Some("/shared/c"),
            ),
            (
                json!({"type": "shared_fs", "host_path": "/x", "storage_path": null, "tensorboard_path": "t"}),
                Some("/shared/t"),
            ),
            (
                json!({"type": "directory", "container_path": "/ckpt"}),
                Some("/ckpt"),
            ),
            (json!({"type": "s3", "bucket": "b"}), None),
        ];
        for (storage, expected) in cases {
            let found = directory(&storage, Path::new("/shared")).unwrap();
            let found = found.map(|found| found.path());
            assert_eq!(found.as_deref(), expected.map(Path::new), "{storage}");
        }
        for path in ["../y", "/y", "a/../../y"] {
            let storage = json!({"type": "shared_fs", "host_path": "/x", "storage_path": path});
            assert!(directory(&storage, Path::new("/shared")).is_err(), "{path}");
        }
    }

    #[test]
    fn a_check_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        try_out(dir.path()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_cannot_be_written_is_named_as_the_configuration_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        for (of_host, expected) in [(Some("/data/ckpts"), true), (None, false)] {
            let error = try_out(&file).unwrap_err();
            let message = refused(&error, of_host).to_string();
            let named =
                "\"/determined_shared_fs\" is \"/data/ckpts\" of the agent's host, the host_path";
            assert_eq!(message.contains(named), expected, "{message}");
        }
    }

    #[test]
    fn directories_of_all_experiments_are_open_to_tasks_of_all_users_and_no_others_are() {
        let dir = tempfile::tempdir().unwrap();
        let storage = json!({"type": "directory", "container_path": dir.path()});
        let mode = |path: &str| {
            let found = fs::metadata(dir.path().join(path)).unwrap();
            found.permissions().mode() & 0o7777
        };
        fs::create_dir(dir.path().join("k")).unwrap();
        fs::set_permissions(dir.path().join("k"), Permissions::from_mode(0o750)).unwrap();
        for _ in 0..2 {
            assert_eq!(check(&storage, &"k".into()).unwrap(), Vec::<String>::new());
        }
        assert_eq!(
            mode("k"),
            0o750,
            "what an administrator made keeps its mode"
        );
        for path in ["k/tensorboard", "k/tensorboard/experiment"] {
            assert_eq!(mode(path), 0o1777, "{path}");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_task_starts_where_the_common_directories_cannot_be_made() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("k"), "").unwrap();
        let storage = json!({"type": "directory", "container_path": dir.path()});
        let warnings = check(&storage, &"k".into()).unwrap();
        assert_eq!(warnings.len(), 1);
        let warning = &warnings[0];
        assert!(
            warning.contains("k/tensorboard/experiment\", in which TensorBoard files are stored"),
            "{warning}"
        );
    }

    #[test]
    fn a_failed_check_names_the_place_and_the_user() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let error = check(
            &json!({"type": "directory", "container_path": file}),
            &"k".into(),
        )
        .unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("could not create") && text.contains("uid"),
            "{text}"
        );
    }

    #[test]
    fn storage_that_is_missing_is_made_for_the_tasks_of_all_users() {
        let dir = tempfile::tempdir().unwrap();
        let storage = json!({"type": "shared_fs", "host_path": "/x", "storage_path": "a/b"});
        let storage = directory(&storage, dir.path()).unwrap().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        make(&storage, &storage.path()).unwrap();
        for path in [dir.path().join("a"), storage.path()] {
            assert_eq!(mode(&path), SHARED_MODE, "{path:?}");
        }
        let path = dir.path().join("above/own");
        let own = json!({"type": "directory", "container_path": path});
        check(&own, &"k".into()).unwrap();
        assert_eq!(mode(&path), SHARED_MODE);
        assert_ne!(
            mode(&dir.path().join("above")),
            SHARED_MODE,
            "what is above is none of its business"
        );
        // Another user's link is not followed.
        let elsewhere = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), dir.path().join("link")).unwrap();
        let storage = json!({"type": "shared_fs", "host_path": "/x", "storage_path": "link/new"});
        let storage = directory(&storage, dir.path()).unwrap().unwrap();
        make(&storage, &storage.path()).unwrap_err();
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    }

    #[test]
    fn storage_that_another_user_can_change_is_warned_of() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("SKIPPED: only root can make directories of other users");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let storage = json!({"type": "shared_fs", "host_path": "/x", "storage_path": "a"});
        let storage = directory(&storage, dir.path()).unwrap().unwrap();
        let base = storage.path();
        make(&storage, &base).unwrap();
        assert_eq!(foreign_owner(&storage, &base), None);
        chown(&base, Some(54321), None).unwrap();
        let warning = foreign_owner(&storage, &base).unwrap();
        assert!(warning.contains("belongs to uid 54321"), "{warning}");
        chown(dir.path(), Some(54321), None).unwrap();
        assert_eq!(
            foreign_owner(&storage, &base),
            None,
            "the account of the whole storage"
        );
    }
}
