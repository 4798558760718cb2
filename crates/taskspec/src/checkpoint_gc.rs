//! What a task that deletes files of checkpoints has in its container, where the master does not reach them itself:
//! `docs/contract/task-environment.md`, "Deleting checkpoints".

use det_ids::{CheckpointId, ExperimentId};
use serde::{Deserialize, Serialize};

use crate::{Entrypoint, Mount, TaskFile};

/// The image of a task that needs nothing but the supervisor. Engines make it from nothing where they do not have it; no
/// registry is asked for it. Without a tag, because Podman ignores the tag of what it makes.
pub const EMPTY_IMAGE: &str = "localhost/det-empty";

/// File from which `det-supervisor remove-checkpoints` reads its [`RemovalOrder`].
pub const REMOVAL_FILE: &str = "/run/determined/checkpoint_gc/removal.json";
const STORAGE_FILE: &str = "/run/determined/checkpoint_gc/storage_config.json";
const CHECKPOINTS_FILE: &str = "/run/determined/checkpoint_gc/checkpoints_to_delete.json";
const GLOBS_FILE: &str = "/run/determined/checkpoint_gc/checkpoints_globs.json";

/// What only a task that deletes checkpoints has. Not printable, because credentials of the storage may be in it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointGcDetails {
    /// The experiment whose checkpoints they are.
    pub experiment_id: ExperimentId,
    /// UUIDs of the checkpoints that are deleted.
    pub checkpoints: Vec<CheckpointId>,
    /// Patterns of the files that go; none = nothing is deleted, and what is left is reported.
    pub globs: Vec<String>,
    /// The reason for which they are deleted.
    pub cause: RemovalCause,
    /// The program that deletes them, with the storage that it needs.
    pub remover: Remover,
    /// The storage that they are in.
    pub mounts: Vec<Mount>,
}

/// Why checkpoints are deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RemovalCause {
    /// Their experiment's policy does not keep them.
    Policy,
    /// Their experiment is being deleted.
    Deletion,
    /// A user asked for it.
    Request,
    /// A removal that was cut short is done again.
    Resumed,
}

/// Who deletes files of checkpoints.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Remover {
    /// The supervisor, in a directory of its container.
    Supervisor {
        /// Absolute path of the directory of checkpoints.
        directory: String,
        /// TensorBoard files to delete, relative to that; `None` = they stay.
        tensorboard: Option<String>,
    },
    /// The package `determined` in the experiment's image, in an object store.
    Python {
        /// The section `checkpoint_storage` of the experiment.
        storage: serde_json::Value,
        /// Whether the experiment's TensorBoard files go too.
        tensorboard: bool,
    },
}

/// What `det-supervisor remove-checkpoints` is to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovalOrder {
    /// Absolute path of the directory of checkpoints, in the container.
    pub directory: String,
    /// TensorBoard files to delete, relative to that; `None` = they stay.
    pub tensorboard: Option<String>,
    /// UUIDs of the checkpoints that are deleted.
    pub checkpoints: Vec<CheckpointId>,
    /// Patterns of the files that go, as [`CheckpointGcDetails::globs`].
    pub globs: Vec<String>,
}

impl CheckpointGcDetails {
    /// The command of its container.
    pub(crate) fn entrypoint(&self) -> Entrypoint {
        let tensorboard = match &self.remover {
            Remover::Supervisor { .. } => return Entrypoint::RemoveCheckpoints,
            Remover::Python { tensorboard, .. } => *tensorboard,
        };
        let experiment = self.experiment_id.to_string();
        let mut argv = vec!["python3", "-m", "determined.exec.gc_checkpoints"];
        argv.extend(["--experiment-id", &experiment]);
        argv.extend(["--storage-config", STORAGE_FILE]);
        argv.extend(["--delete", CHECKPOINTS_FILE, "--globs", GLOBS_FILE]);
        if tensorboard {
            argv.push("--delete-tensorboards");
        }
        Entrypoint::Argv(argv.into_iter().map(str::to_owned).collect())
    }

    /// The files of its container.
    pub(crate) fn files(&self) -> Vec<TaskFile> {
        let file = |path: &str, content: serde_json::Value| TaskFile {
            path: path.to_owned(),
            mode: 0o600,
            content: content.to_string(),
        };
        match &self.remover {
            Remover::Supervisor {
                directory,
                tensorboard,
            } => {
                let order = RemovalOrder {
                    directory: directory.clone(),
                    tensorboard: tensorboard.clone(),
                    checkpoints: self.checkpoints.clone(),
                    globs: self.globs.clone(),
                };
                vec![file(REMOVAL_FILE, serde_json::json!(order))]
            }
            Remover::Python { storage, .. } => vec![
                file(STORAGE_FILE, storage.clone()),
                file(CHECKPOINTS_FILE, serde_json::json!(self.checkpoints)),
                file(GLOBS_FILE, serde_json::json!(self.globs)),
            ],
        }
    }
}
