//! Configurations that earlier versions stored: what was removed since is read, though nothing can be run with it.
//! `docs/contract/configuration.md`, "Older forms" and "Checkpoint storage".

use serde_json::{Value, json};

use super::schema::SEARCHER;
use super::schema::{DOCUMENT, EXPERIMENT};
use crate::container::with_defaults;
use crate::errors::{ConfigErrors, ConfigWarning};
use crate::schema::{Findings, Stage, check_document};
use crate::yaml::Node;

/// Where checkpoints on a Hadoop file system are presented.
const HDFS_PATH: &str = "/legacy-hdfs-checkpoint-path";

/// A stored configuration, for showing.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredExperiment {
    /// The effective configuration with every default. Storage on a Hadoop file system is presented as a shared one.
    pub document: Value,
    /// The search method, when it was removed since: such an experiment can be looked at and forked with another
    /// searcher, not continued.
    pub retired_searcher: Option<String>,
    /// What the user should know although it is no error.
    pub warnings: Vec<ConfigWarning>,
}

/// Reads an effective configuration that an earlier version stored.
///
/// # Errors
/// What even earlier versions would have refused.
pub fn read_stored(value: &Value) -> Result<StoredExperiment, ConfigErrors> {
    let mut root = Node::from(value);
    if let Some(storage) = root.get_mut("checkpoint_storage")
        && storage.get("type").and_then(Node::text) == Some("hdfs")
    {
        let kept =
            |key: &str, default: i64| storage.get(key).and_then(Node::integer).unwrap_or(default);
        *storage = Node::from(&json!({
            "type": "shared_fs",
            "host_path": HDFS_PATH,
            "save_experiment_best": kept("save_experiment_best", 0),
            "save_trial_best": kept("save_trial_best", 1),
            "save_trial_latest": kept("save_trial_latest", 1),
        }));
    }
    let mut findings = Findings::new(&DOCUMENT, Stage::Stored);
    check_document(&mut findings, &mut root);
    let warnings = findings.finish()?;
    let retired_searcher = root
        .find("searcher.name")
        .and_then(Node::text)
        .filter(|name| {
            SEARCHER
                .variant(name)
                .is_some_and(crate::schema::Variant::is_retired)
        })
        .map(str::to_owned);
    Ok(StoredExperiment {
        document: with_defaults(root, &EXPERIMENT).to_value(),
        retired_searcher,
        warnings,
    })
}
