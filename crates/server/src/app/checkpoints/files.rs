//! Files of checkpoints as the master's host sees them: where they are, whom they belong to, and sending them.

use det_ids::CheckpointId;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use det_lifecycle::object::ObjectKind;
use det_store::checkpoints::{CheckpointRow, CheckpointState};
use det_store::experiments::ExperimentRow;
use tokio::sync::mpsc;

use crate::app::checkpoints::allowed::AllowedPaths;
use crate::app::checkpoints::archive::{self, ChannelWriter, Format};
use crate::app::checkpoints::storage::{Owner, Storage};
use crate::app::checkpoints::{Checkpoints, resources, stored_experiment};
use crate::app::context::Context;
use crate::app::searches::config_of;
use crate::app::specs::identity::TaskUsers;
use crate::budget::{ARCHIVE_BYTES, Account, Budget, Reservation};
use crate::error::{AppError, AppResult, ErrorKind};

/// An archive of a checkpoint that is being made.
pub(crate) struct Archive {
    /// Its pieces. An error after the first ends them.
    pub(crate) pieces: mpsc::Receiver<std::io::Result<Bytes>>,
    /// What it is counted for. Its thread has it as well, until that ends.
    pub(crate) held: Arc<Reservation>,
}

/// Pieces of an archive that wait to be sent.
const PIECES: usize = 8;

/// Files of checkpoints. Cheap to clone.
#[derive(Clone)]
pub struct CheckpointFiles {
    context: Context,
    checkpoints: Checkpoints,
    task_users: TaskUsers,
    archives: Budget,
    data_dir: PathBuf,
}

impl CheckpointFiles {
    /// Files of checkpoints for a master that keeps its own in this directory.
    pub(crate) fn new(
        context: Context,
        checkpoints: Checkpoints,
        task_users: TaskUsers,
        archives: Budget,
        data_dir: PathBuf,
    ) -> Self {
        Self {
            context,
            checkpoints,
            task_users,
            archives,
            data_dir,
        }
    }

    /// The directories in which this master touches checkpoint files.
    pub(crate) fn allowed_paths(&self) -> AllowedPaths {
        AllowedPaths::of(&self.context.config(), &self.data_dir)
    }

    /// The storage of an experiment, if the master may touch it.
    pub(crate) fn storage_of(&self, experiment: &ExperimentRow) -> AppResult<Storage> {
        Storage::of(&config_of(experiment)?, &self.allowed_paths())
    }

    /// The storage of an experiment, if the master may touch it and it can be seen from here; `None` = a task can delete files
    /// in it. What runs outside the cluster may have stored them anywhere, so no task is sent for that.
    pub(super) async fn within_reach(
        &self,
        experiment: &ExperimentRow,
    ) -> AppResult<Option<Storage>> {
        let looked = match self.storage_of(experiment) {
            Ok(storage) => tokio::task::spawn_blocking(move || storage.look().map(|()| storage))
                .await
                .map_err(AppError::internal)?,
            Err(error) => Err(error),
        };
        match looked {
            Ok(storage) => Ok(Some(storage)),
            Err(error) if experiment.unmanaged => Err(error),
            Err(error) if matches!(error.kind, ErrorKind::Precondition | ErrorKind::NotBuilt) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Checkpoints of one experiment, each with whom its files must belong to.
    pub(super) fn with_owners(
        &self,
        rows: Vec<CheckpointRow>,
        experiment: &ExperimentRow,
    ) -> Vec<(CheckpointRow, Owner)> {
        rows.into_iter()
            .map(|row| {
                let owner = self.owner_of(&row, experiment);
                (row, owner)
            })
            .collect()
    }

    fn owner_of(&self, row: &CheckpointRow, experiment: &ExperimentRow) -> Owner {
        let stored = row.owner_uid.and_then(|uid| u32::try_from(uid).ok());
        let now = self.owner_now(experiment);
        Owner {
            uid: stored.unwrap_or(now.uid),
            ..now
        }
    }

    /// Whom files of an experiment must belong to where it is not stored which user its tasks ran as.
    pub(crate) fn owner_now(&self, experiment: &ExperimentRow) -> Owner {
        // A user that exists no more has no files: 2³² − 1 is the number of no user.
        let uid = self.task_users.uid_of(experiment).unwrap_or(u32::MAX);
        Owner {
            uid,
            user_id: experiment.owner_id,
        }
    }

    /// A checkpoint's files as an archive, counted for `account`: each that is being made has a thread, which waits while
    /// its client does not read.
    ///
    /// # Errors
    /// [`crate::error::ErrorKind::Busy`] when too many are being made.
    pub(crate) async fn archive(
        &self,
        account: Account,
        uuid: &CheckpointId,
        format: Format,
    ) -> AppResult<Archive> {
        let row = self.checkpoints.find(uuid).await?;
        let gone = || {
            AppError::not_found(ObjectKind::CheckpointFiles, uuid)
                .hint("they were deleted, or the master's host does not see the checkpoint storage")
        };
        if row.state == CheckpointState::Deleted {
            return Err(gone());
        }
        let experiment = row
            .experiment_id
            .ok_or_else(|| AppError::not_found(ObjectKind::CheckpointExperiment, uuid))?;
        let experiment = stored_experiment(&self.context.store, experiment).await?;
        let storage = self.storage_of(&experiment)?;
        let owner = self.owner_of(&row, &experiment);
        let (uuid, resources) = (row.uuid.clone(), resources(&row)?);
        let held = Arc::new(self.archives.reserve(account, ARCHIVE_BYTES).await?);
        let listing = held.clone();
        let opened = tokio::task::spawn_blocking(move || -> AppResult<_> {
            let Some(directory) = storage.open(&uuid, owner)? else {
                return Ok(None);
            };
            let entries = storage.reported(directory.as_fd(), &resources)?;
            // Should the request end meanwhile, this thread still counts.
            drop(listing);
            Ok(Some((directory, entries)))
        })
        .await
        .map_err(AppError::internal)??;
        let (directory, entries) = opened.ok_or_else(gone)?;
        let (sender, pieces) = mpsc::channel(PIECES);
        let making = held.clone();
        tokio::task::spawn_blocking(move || {
            let out = ChannelWriter::new(sender.clone());
            if let Err(error) = archive::write(directory.as_fd(), &entries, format, out) {
                tracing::warn!(checkpoint.uuid = %row.uuid, %error, "an archive of a checkpoint could not be sent whole");
                // A receiver that has gone needs no error.
                let _ = sender.blocking_send(Err(error));
            }
            drop(making);
        });
        Ok(Archive { pieces, held })
    }
}
