//! Completes a configuration of the master with what depends on its machine, at the start and at each reload.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use det_config::master::MasterConfig;
use det_config::storage::{CheckpointStorage, StorageLocation};

use crate::app::checkpoints::allowed::OWN_DIRECTORY;
use crate::start_error::StartError;

/// Fills in what depends on the machine.
pub(crate) fn complete(config: &mut MasterConfig, data_dir: &Path) -> Result<(), StartError> {
    if config.checkpoint_storage.is_none() {
        config.checkpoint_storage = Some(default_storage(data_dir)?);
    }
    Ok(())
}

/// What `checkpoint_storage` is when the configuration has none: a directory below the data directory that, like `/tmp`,
/// takes the files of tasks of any user and keeps each user's from the others.
fn default_storage(data_dir: &Path) -> Result<CheckpointStorage, StartError> {
    let directory = data_dir.join(OWN_DIRECTORY);
    fs::create_dir_all(&directory)
        .and_then(|()| fs::set_permissions(&directory, fs::Permissions::from_mode(0o1777)))
        .map_err(|source| StartError::File {
            path: directory.clone(),
            source,
        })?;
    Ok(CheckpointStorage {
        save_experiment_best: 0,
        save_trial_best: 1,
        save_trial_latest: 1,
        location: StorageLocation::SharedFs {
            host_path: directory.to_string_lossy().into_owned(),
            storage_path: None,
            propagation: "rprivate".into(),
        },
    })
}
