//! Whether what users write in their notebooks and shells is kept.

use det_config::task::{LaunchKind, TaskConfig};

/// The warning about an interactive task, where nothing that it may write to is kept.
pub(super) fn warning(kind: LaunchKind, config: &TaskConfig) -> Option<String> {
    let is_worked_in = match kind {
        LaunchKind::Notebook | LaunchKind::Shell => true,
        LaunchKind::Command | LaunchKind::Tensorboard | LaunchKind::Generic => false,
    };
    let is_kept = config.bind_mounts.iter().any(|mount| !mount.read_only);
    (is_worked_in && !is_kept).then(|| {
        "its files are lost when it ends, because no host directory that it may write to is mounted; mount one with -v \
         HOST:CONTAINER or \"bind_mounts\", or use \"persistent\" in its working directory where its log names that"
            .to_owned()
    })
}
