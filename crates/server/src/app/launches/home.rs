//! Where people keep files that outlive their notebooks and shells: a directory for each user, if the cluster has such.

use std::path::Path;

use det_config::task::{LaunchKind, TaskConfig};
use det_ids::UserId;
use det_taskspec::{Mount, USER_HOME_DIR};

/// A user's own directory below `user_homes`. It has the user's number, which no other user is ever given; names are.
pub(super) fn home(user_homes: Option<&str>, owner: UserId) -> Option<Mount> {
    let path = Path::new(user_homes?).join(owner.to_string());
    Some(Mount {
        host_path: path.to_string_lossy().into_owned(),
        container_path: USER_HOME_DIR.to_owned(),
        read_only: false,
        propagation: "rprivate".to_owned(),
        create: true,
        trusted: true,
        private: true,
    })
}

/// Whether people work in tasks of this kind, and leave files there.
pub(super) fn is_worked_in(kind: LaunchKind) -> bool {
    match kind {
        LaunchKind::Notebook | LaunchKind::Shell => true,
        LaunchKind::Command | LaunchKind::TensorBoard | LaunchKind::Generic => false,
    }
}

/// What the user should know where nothing that is written to is kept.
pub(super) fn warning(config: &TaskConfig, home: Option<&Mount>) -> Option<String> {
    let is_kept = home.is_some() || config.bind_mounts.iter().any(|mount| !mount.read_only);
    (!is_kept).then(|| {
        "its files are lost when it ends, because no host directory that it may write to is mounted; mount one with -v \
         HOST:CONTAINER or \"bind_mounts\""
            .to_owned()
    })
}
