//! Checks checkpoint storage before the entrypoint starts, so that a trial does not train for hours in vain.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Component, Path, PathBuf};

use det_taskspec::SHARED_FS_DIR;
use nix::libc::{O_DIRECTORY, O_NOFOLLOW};
use serde_json::Value;

use crate::clock::random;
use crate::failure::SetupError;

/// Mode of directories that tasks of all users make theirs in; what is another user's cannot be removed or renamed there,
/// except by the directory's owner.
const COMMON_MODE: u32 = 0o1777;

/// Writes, reads and deletes a file in the checkpoint storage, and makes the directories there that TensorBoard files of
/// all experiments of the cluster have in common. Returns a warning where these could not be made.
///
/// Only for storage that is a directory: cloud storage is checked by the training library, which has the client
/// libraries, and has no directories.
pub(crate) fn check(storage: &Value, cluster_id: &str) -> Result<Option<String>, SetupError> {
    let Some(base) = directory(storage, Path::new(SHARED_FS_DIR))? else {
        return Ok(None);
    };
    let of_host = storage.get("host_path").and_then(Value::as_str);
    try_out(&base, of_host.filter(|_| base.starts_with(SHARED_FS_DIR)))?;
    Ok(share_tensorboard(&base, cluster_id).err())
}

/// Makes what is missing of `CLUSTER/tensorboard/experiment`, open to the tasks of all users. Training libraries make it by
/// the umask, so that only the user whose task came first could write below it. What exists keeps its mode: it is another
/// task's or an administrator's.
fn share_tensorboard(base: &Path, cluster_id: &str) -> Result<(), String> {
    let mut path = base.to_owned();
    for name in [cluster_id, "tensorboard", "experiment"] {
        path.push(name);
        share(&path).map_err(|error| {
            format!(
                "could not create {path:?}, in which TensorBoard files are stored: {error}; a directory that tasks of several \
                 users share needs mode {COMMON_MODE:o}"
            )
        })?;
    }
    Ok(())
}

fn share(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        made => made?,
    }
    // Not by the umask, which is that of all threads; and never that of what another user has put in its place.
    let flags = O_DIRECTORY | O_NOFOLLOW;
    let made: File = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    made.set_permissions(Permissions::from_mode(COMMON_MODE))
}

/// Directory of the checkpoints; `None` for storage that is not a directory.
fn directory(storage: &Value, shared_fs: &Path) -> Result<Option<PathBuf>, SetupError> {
    let text = |name: &str| storage.get(name).and_then(Value::as_str);
    match text("type") {
        Some("shared_fs") => {
            // Older configurations have other keys for the directory.
            let names = ["storage_path", "tensorboard_path", "checkpoint_path"];
            let Some(path) = names.into_iter().find_map(text) else {
                return Ok(Some(shared_fs.to_owned()));
            };
            let host_path = Path::new(text("host_path").unwrap_or("/"));
            match below(host_path, Path::new(path)) {
                Some(relative) => Ok(Some(shared_fs.join(relative))),
                None => Err(SetupError::task(format!(
                    "checkpoint storage: storage_path {path:?} must be below host_path {host_path:?}"
                ))),
            }
        }
        Some("directory") => match text("container_path") {
            Some(path) => Ok(Some(path.into())),
            None => Err(SetupError::task(
                "checkpoint storage of type \"directory\" needs a container_path",
            )),
        },
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
fn try_out(base: &Path, of_host: Option<&str>) -> Result<(), SetupError> {
    let dir = base.join(format!("det-storage-check-{:016x}", random()));
    let file = dir.join("VALIDATE.txt");
    let content = format!("{:016x}", random());
    let failed = |what: &str, path: &Path, error: io::Error| {
        let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
        let mounted = of_host.map_or_else(String::new, |of_host| {
            format!("; {SHARED_FS_DIR:?} is {of_host:?} of the agent's host, the host_path of the checkpoint storage")
        });
        SetupError::task(format!(
            "checkpoint storage check failed: could not {what} {path:?}: {error}; the task runs as uid {uid} and gid {gid} and \
             must be able to create, read and delete files there{mounted}"
        ))
    };
    fs::create_dir_all(&dir).map_err(|error| failed("create", &dir, error))?;
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
    use super::*;
    use serde_json::json;

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
        try_out(dir.path(), None).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_cannot_be_written_is_named_as_the_configuration_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        for (of_host, expected) in [(Some("/data/ckpts"), true), (None, false)] {
            let error = try_out(&file, of_host).unwrap_err();
            let message = format!("{error}");
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
            assert_eq!(check(&storage, "k").unwrap(), None);
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
        let warning = check(&storage, "k").unwrap().unwrap();
        assert!(
            warning.contains("k/tensorboard\", in which TensorBoard files are stored"),
            "{warning}"
        );
    }

    #[test]
    fn a_failed_check_names_the_place_and_the_user() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let error = check(&json!({"type": "directory", "container_path": file}), "k").unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("could not create") && text.contains("uid"),
            "{text}"
        );
    }
}
