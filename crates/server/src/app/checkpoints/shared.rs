//! The directories of checkpoint storage that tasks of all users share, as far as they are on this host.

use std::path::{Path, PathBuf};

use det_config::container::BindMount;
use det_config::master::MasterConfig;
use det_config::storage::StorageLocation;
use det_host_paths::{OpenError, Trust, open_as_is, share_as_host};
use det_ids::ClusterId;
use det_taskspec::tensorboard_directory;

use crate::app::checkpoints::allowed::{OWN_DIRECTORY, on_host};

/// Makes the directory of the configured storage and those that the TensorBoard files of all experiments have in common:
/// like `/tmp`, so that only its owner and the master rename what is in them. Made by a task they would belong to its user.
/// Agents do the same on their hosts; where the storage is in volumes of pods, only the master can.
///
/// What cannot be made is logged: tasks make it.
pub(crate) fn prepare(config: &MasterConfig, data_dir: &Path, cluster_id: &ClusterId) {
    let location = config.checkpoint_storage.as_ref().map(|s| &s.location);
    let mounts = &config.task_container_defaults.bind_mounts;
    prepare_each(&roots(location, mounts, data_dir), cluster_id);
}

fn prepare_each(roots: &[(PathBuf, PathBuf)], cluster_id: &ClusterId) {
    for (root, below) in roots {
        if let Err(error) = prepare_in(root, below, cluster_id) {
            tracing::warn!(
                storage = %root.display(),
                %error,
                "directories that tasks of all users share could not be made: tasks make them, and the first one can replace \
                 what others store there"
            );
        }
    }
}

/// Directories that storage is in, and where it is below them.
fn roots(
    location: Option<&StorageLocation>,
    mounts: &[BindMount],
    data_dir: &Path,
) -> Vec<(PathBuf, PathBuf)> {
    let mut roots = vec![(data_dir.join(OWN_DIRECTORY), PathBuf::new())];
    match location {
        Some(location @ StorageLocation::SharedFs { host_path, .. }) => {
            let below = location.shared_fs_subdirectory();
            roots.extend(below.map(|below| (PathBuf::from(host_path), below)));
        }
        Some(StorageLocation::Directory { container_path }) => {
            roots.push((on_host(container_path, mounts), PathBuf::new()));
        }
        _ => {}
    }
    roots.retain(|(root, _)| root.is_dir());
    roots.dedup();
    roots
}

fn prepare_in(root: &Path, below: &Path, cluster_id: &ClusterId) -> Result<(), OpenError> {
    let trust = Trust {
        root: 0,
        hidden: &|_| false,
        refusal: &|_, _| None,
    };
    let root = open_as_is(root).map_err(|source| OpenError::Access {
        action: "open",
        path: root.to_owned(),
        source,
    })?;
    let tensorboard = below.join(tensorboard_directory(cluster_id));
    share_as_host(&root, &tensorboard, trust, |from| {
        tracing::warn!(path = %from.path.display(), uid = from.uid, "{from}");
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};

    use super::*;

    const CLUSTER: &str = "7f1c6a52-0d55-4f44-9f3a-0b8a43f0a7c1";

    #[test]
    fn what_users_share_on_this_host_is_the_masters() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let own = root.join(OWN_DIRECTORY);
        let storage = root.join("storage");
        let location = StorageLocation::SharedFs {
            host_path: storage.to_string_lossy().into_owned(),
            storage_path: Some("a/base".into()),
            propagation: "rprivate".into(),
        };
        let prepare = |cluster: &str| {
            prepare_each(&roots(Some(&location), &[], &root), &cluster.into());
        };
        prepare(CLUSTER);
        assert!(
            !own.exists() && !storage.exists(),
            "no directory is made that is not used"
        );
        for path in [&own, &storage] {
            std::fs::create_dir(path).unwrap();
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o1777)).unwrap();
        }
        let uid = std::fs::metadata(&root).unwrap().uid();
        let common = format!("{CLUSTER}/tensorboard/experiment");
        for _ in 0..2 {
            prepare(CLUSTER);
            for path in [
                own.join(CLUSTER),
                own.join(&common),
                storage.join("a"),
                storage.join("a/base"),
                storage.join("a/base").join(&common),
            ] {
                let found = std::fs::metadata(&path).unwrap();
                assert_eq!(
                    (found.uid(), found.mode() & 0o7777),
                    (uid, 0o1777),
                    "{path:?}"
                );
            }
            if uid == 0 {
                // As a task has made it with an older version.
                chown(own.join(CLUSTER), Some(54321), None).unwrap();
            }
        }
        let linked = "2b6c5d1e-7f7a-4f3e-9c55-3f0f2d9b8a11";
        symlink(&root, own.join(linked)).unwrap();
        prepare(linked);
        assert!(!root.join("tensorboard").exists());
    }
}
