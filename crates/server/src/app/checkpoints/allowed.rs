//! The directories of this host in which the master touches checkpoint files.

use std::path::{Component, Path, PathBuf};

use det_config::container::BindMount;
use det_config::master::MasterConfig;
use det_config::storage::StorageLocation;

/// Name of the master's own checkpoint directory in its data directory.
pub const OWN_DIRECTORY: &str = "checkpoints";

/// The directories of this host below which the master touches checkpoint files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedPaths {
    /// Absolute paths: the master's own checkpoint directory, the configured storage, `security.allowed_host_paths`.
    pub(super) allowed: Vec<PathBuf>,
    /// Host path of the configured `shared_fs` storage. A master in a container has it at [`det_taskspec::SHARED_FS_DIR`].
    pub(super) shared: Option<PathBuf>,
    /// The master's data directory.
    pub(super) data_dir: PathBuf,
}

impl AllowedPaths {
    /// What a master's configuration allows.
    pub fn of(config: &MasterConfig, data_dir: &Path) -> Self {
        let mut allowed = Vec::new();
        let location = config.checkpoint_storage.as_ref().map(|s| &s.location);
        let mut shared = None;
        match location {
            Some(location @ StorageLocation::SharedFs { host_path, .. }) => {
                shared = Some(PathBuf::from(host_path));
                let below = location.shared_fs_subdirectory();
                allowed.extend(below.map(|below| joined(Path::new(host_path), &below)));
            }
            Some(StorageLocation::Directory { container_path }) => allowed.push(on_host(
                container_path,
                &config.task_container_defaults.bind_mounts,
            )),
            _ => {}
        }
        allowed.extend(config.security.allowed_host_paths.iter().map(PathBuf::from));
        allowed.retain(|path: &PathBuf| path.is_absolute());
        allowed.insert(0, data_dir.join(OWN_DIRECTORY));
        Self {
            allowed,
            shared,
            data_dir: data_dir.to_owned(),
        }
    }

    /// A path as an allowed one and the rest below it; `None` = it is below none of them.
    pub(super) fn place_of(&self, path: &Path) -> Option<AllowedDirectory> {
        let has_parent = |path: &Path| path.components().any(|c| c == Component::ParentDir);
        self.allowed
            .iter()
            .filter_map(|root| Some((root, path.strip_prefix(root).ok()?)))
            .filter(|(_, below)| !has_parent(below))
            .max_by_key(|(root, _)| root.components().count())
            .map(|(root, below)| AllowedDirectory {
                root: root.clone(),
                below: below.to_owned(),
            })
    }
}

/// A directory of this host: what an administrator allowed, and names below it that a user chose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AllowedDirectory {
    pub(super) root: PathBuf,
    pub(super) below: PathBuf,
}

impl AllowedDirectory {
    pub(super) fn path(&self) -> PathBuf {
        joined(&self.root, &self.below)
    }
}

/// Two paths as one, without a final slash when the second is empty.
pub(super) fn joined(root: &Path, below: &Path) -> PathBuf {
    if below.as_os_str().is_empty() {
        root.to_owned()
    } else {
        root.join(below)
    }
}

/// Where a path of a container is on the host: through the longest bind mount that holds it, else the same path.
pub(super) fn on_host(container_path: &str, mounts: &[BindMount]) -> PathBuf {
    let path = Path::new(container_path);
    mounts
        .iter()
        .filter_map(|mount| Some((mount, path.strip_prefix(&mount.container_path).ok()?)))
        .max_by_key(|(mount, _)| Path::new(&mount.container_path).components().count())
        .map_or_else(
            || path.to_owned(),
            |(mount, rest)| joined(Path::new(&mount.host_path), rest),
        )
}
