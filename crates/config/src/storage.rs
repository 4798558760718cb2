//! Where checkpoints are kept: `docs/contract/configuration.md`, "Checkpoint storage". Shared by experiments and the master.

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::errors::ErrorCode;
use crate::quote::cut;
use crate::schema::{
    Block, Field, Findings, Kind, NATURAL_32, Special, Union, Walk, field, text_by, union, variant,
};
use crate::yaml::{Node, Tree};

/// Checkpoint storage and how many checkpoints to keep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointStorage {
    /// Best checkpoints to keep over all trials of an experiment.
    pub save_experiment_best: u32,
    /// Best checkpoints to keep of each trial.
    pub save_trial_best: u32,
    /// Latest checkpoints to keep of each trial.
    pub save_trial_latest: u32,
    /// The place, with the keys that its kind has.
    #[serde(flatten)]
    pub location: StorageLocation,
}

/// The place of checkpoint storage. The master acts on the first two; the others are kept and handed to tasks.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum StorageLocation {
    /// A directory that every agent has at the same path.
    SharedFs {
        /// Absolute path on the host.
        host_path: String,
        /// A directory in `host_path`, relative or absolute; `None` = `host_path` itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        storage_path: Option<String>,
        /// Bind propagation of the mount: `rprivate`, `rshared` and so on.
        propagation: String,
    },
    /// A directory inside the container; keeping it is the user's business.
    Directory {
        /// Path of the checkpoint directory inside the container.
        container_path: String,
    },
    /// Amazon S3 or a compatible service.
    S3 {
        /// Name of the S3 bucket.
        bucket: String,
        /// Access key of the account; `None` = ambient credentials.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        access_key: Option<String>,
        /// Secret key of the account, a secret; `None` = ambient credentials.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        secret_key: Option<String>,
        /// Address of a compatible service; `None` = Amazon.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        endpoint_url: Option<String>,
        /// Path in the bucket, normalised.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prefix: Option<String>,
    },
    /// Google Cloud Storage with application default credentials.
    Gcs {
        /// Name of the Google Cloud Storage bucket.
        bucket: String,
        /// Path in the bucket, normalised.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prefix: Option<String>,
    },
    /// Azure Blob Storage: a connection string, or an account address with an optional credential.
    Azure {
        /// Name of the storage container in the Azure account.
        container: String,
        /// Connection string of the account, a secret; `None` = `account_url` is given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        connection_string: Option<String>,
        /// Address of the account; `None` = `connection_string` is given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        account_url: Option<String>,
        /// Credential for `account_url`, a secret; `None` = ambient credentials.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        credential: Option<String>,
    },
}

impl StorageLocation {
    /// The name that selects this kind in a configuration.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::SharedFs { .. } => "shared_fs",
            Self::Directory { .. } => "directory",
            Self::S3 { .. } => "s3",
            Self::Gcs { .. } => "gcs",
            Self::Azure { .. } => "azure",
        }
    }

    /// The directory of the hosts that `shared_fs` is in; `None` for others.
    pub(crate) fn host_path(&self) -> Option<&str> {
        match self {
            Self::SharedFs { host_path, .. } => Some(host_path),
            _ => None,
        }
    }

    /// For `shared_fs`, the part of the storage below `host_path` (empty for `host_path` itself); `None` otherwise.
    pub fn shared_fs_subdirectory(&self) -> Option<PathBuf> {
        match self {
            Self::SharedFs {
                host_path,
                storage_path,
                ..
            } => subdirectory(host_path, storage_path.as_deref().unwrap_or("")),
            _ => None,
        }
    }
}

impl std::fmt::Debug for StorageLocation {
    /// Shows where, never the keys.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct(self.type_name());
        match self {
            Self::SharedFs {
                host_path,
                storage_path,
                ..
            } => out
                .field("host_path", host_path)
                .field("storage_path", storage_path),
            Self::Directory { container_path } => out.field("container_path", container_path),
            Self::S3 { bucket, prefix, .. } | Self::Gcs { bucket, prefix } => {
                out.field("bucket", bucket).field("prefix", prefix)
            }
            Self::Azure { container, .. } => out.field("container", container),
        };
        out.finish_non_exhaustive()
    }
}

const IGNORED: &str = "is ignored; use \"storage_path\"";

/// The section as both experiments and the master know it.
pub(crate) static STORAGE: Union = union(
    "type",
    "Where checkpoints are kept",
    &[
        field(
            "save_experiment_best",
            NATURAL_32,
            "Best checkpoints to keep over all trials of an experiment",
        )
        .or("0"),
        field(
            "save_trial_best",
            NATURAL_32,
            "Best checkpoints to keep of each trial",
        )
        .or("1"),
        field(
            "save_trial_latest",
            NATURAL_32,
            "Latest checkpoints to keep of each trial",
        )
        .or("1"),
    ],
    &[
        variant("shared_fs", SHARED_FS),
        variant(
            "directory",
            &[field(
                "container_path",
                Kind::Text,
                "Directory in the container; keeping it is the user's business",
            )
            .finally()],
        ),
        variant(
            "s3",
            &[
                field("bucket", Kind::Text, "Bucket").finally(),
                field(
                    "access_key",
                    Kind::Text,
                    "Account; without one ambient credentials are used",
                )
                .secret(),
                field("secret_key", Kind::Text, "Secret of the account").secret(),
                field(
                    "endpoint_url",
                    Kind::Text,
                    "Address of a service that is compatible with S3",
                ),
                PREFIX_FIELD,
            ],
        )
        .kept(),
        variant(
            "gcs",
            &[
                field("bucket", Kind::Text, "Bucket").finally(),
                PREFIX_FIELD,
            ],
        )
        .kept(),
        variant(
            "azure",
            &[
                field("container", Kind::Text, "Container in Azure's sense").finally(),
                field(
                    "connection_string",
                    Kind::Text,
                    "Secret with the address; exactly one of this and `account_url`",
                )
                .secret(),
                field("account_url", Kind::Text, "Address of the account"),
                field("credential", Kind::Text, "Secret partner of `account_url`").secret(),
            ],
        )
        .kept(),
        variant("hdfs", &[])
            .retired("mount it and use \"shared_fs\"")
            .open(),
    ],
)
.named("checkpoint_storage")
// An account's address and its secrets belong together.
.blocks(&[Block {
    when: &["connection_string", "account_url"],
    hides: &["connection_string", "account_url", "credential"],
}])
.check(check);

const PREFIX_FIELD: Field = field(
    "prefix",
    Kind::Special(&PREFIX),
    "Path in the bucket, without `..`",
);

const SHARED_FS: &[Field] = &[
    field(
        "host_path",
        Kind::Special(&ABSOLUTE_PATH),
        "Directory that every agent has at the same path",
    )
    .finally(),
    field(
        "storage_path",
        Kind::Text,
        "Directory in `host_path`, relative or absolute; without one `host_path` itself",
    ),
    field("propagation", PROPAGATION, "Bind propagation of Docker").or("\"rprivate\""),
    field(
        "container_path",
        Kind::Text,
        "Where `host_path` is mounted in containers, in old versions",
    )
    .warn(IGNORED),
    field(
        "checkpoint_path",
        Kind::Text,
        "Directory of checkpoints in `host_path`, in old versions",
    )
    .warn(IGNORED),
    field(
        "tensorboard_path",
        Kind::Text,
        "Directory of TensorBoard data in `host_path`, in old versions",
    )
    .warn(IGNORED),
];

/// Docker's bind propagations.
pub(crate) const PROPAGATION: Kind = Kind::Choice(&[
    "private", "rprivate", "shared", "rshared", "slave", "rslave",
]);

/// A path on the host.
pub(crate) static ABSOLUTE_PATH: Special = text_by(
    "absolute path",
    || json!({"type": "string", "pattern": "^/"}),
    absolute_path,
);

fn absolute_path(walk: &mut Walk, node: &mut Node) {
    match node.text() {
        Some(path) if path.starts_with('/') => {}
        Some(path) => {
            let message = format!("must be an absolute path, not \"{}\"", cut(path));
            walk.findings.error(node.at.as_ref(), message);
        }
        None => walk.value(node, Kind::Text),
    }
}

static PREFIX: Special = text_by(
    "path without `..`",
    || json!({"type": "string", "not": {"pattern": r"(^|/)\.\.(/|$)"}}),
    prefix,
);

/// A path in a bucket, without `..`; brought into its shortest form.
fn prefix(walk: &mut Walk, node: &mut Node) {
    let Some(text) = node.text() else {
        return walk.value(node, Kind::Text);
    };
    if text.split('/').any(|part| part == "..") {
        let message = format!(
            "must not climb out of the bucket with \"..\", as \"{}\" does",
            cut(text)
        );
        return walk.findings.error(node.at.as_ref(), message);
    }
    let parts: Vec<&str> = text
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .collect();
    let root = if text.starts_with('/') { "/" } else { "" };
    node.tree = Tree::Text(format!("{root}{}", parts.join("/")));
}

fn check(findings: &mut Findings, node: &Node) {
    match node.get("type").and_then(Node::text) {
        Some("shared_fs") => {
            if let (Some(host), Some(storage)) = (
                node.get("host_path").and_then(Node::text),
                node.get("storage_path"),
            ) && let Some(path) = storage.text()
                && subdirectory(host, path).is_none()
            {
                let message = format!(
                    "must be relative to, or under, \"{}\"; \"{}\" is outside",
                    cut(host),
                    cut(path)
                );
                findings.error_in("storage_path", storage.at.as_ref(), message);
            }
        }
        Some("azure") => {
            let connection = node.get("connection_string");
            if let (Some(_), Some(credential)) = (connection, node.get("credential")) {
                findings.error_in(
                    "credential",
                    credential.at.as_ref(),
                    ErrorCode::Conflict.message("cannot be combined with \"connection_string\""),
                );
            }
            let both = (connection.is_some(), node.get("account_url").is_some());
            if findings.stage.is_complete() && both.0 == both.1 {
                findings.error(
                    node.at.as_ref(),
                    ErrorCode::Conflict
                        .message("choose exactly one of \"connection_string\" and \"account_url\""),
                );
            }
        }
        _ => {}
    }
}

/// `storage_path` relative to `host_path`, or `None` when it is outside.
fn subdirectory(host_path: &str, storage_path: &str) -> Option<PathBuf> {
    let host = normal(Path::new(host_path))?;
    let full = normal(&Path::new(host_path).join(storage_path))?;
    full.strip_prefix(&host).ok().map(Path::to_path_buf)
}

/// The path without `.` and `..`; `None` when it climbs above the root.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                // Below the root there is a last component to remove, else the path climbs out.
                if !out.pop() {
                    return None;
                }
            }
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_paths_are_compared_by_component() {
        for (host, storage, expected) in [
            ("/tmp", "", Some("")),
            ("/tmp", "a/b", Some("a/b")),
            ("/tmp", "/tmp/x", Some("x")),
            ("/tmp", "./a/../b", Some("b")),
            ("/tmp", "/tmp", Some("")),
            ("/tmp", "/tmpfoo", None),
            ("/tmp", "../x", None),
            ("/tmp", "a/../../tmp/b", Some("b")),
            ("/tmp", "/etc", None),
            ("/", "x", Some("x")),
        ] {
            assert_eq!(
                subdirectory(host, storage),
                expected.map(PathBuf::from),
                "{host} {storage}"
            );
        }
    }
}
