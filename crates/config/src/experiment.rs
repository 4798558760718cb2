//! What an experiment runs with, and what its documents may hold.
//!
//! An [`ExperimentConfig`] is made from documents by [`crate::SubmittedDocument`]. Its JSON form is what clients see and what the
//! training process gets: it contains every key.

mod checks;
mod drawn;
mod legacy;
pub(crate) mod schema;
mod searcher;
mod stored;
mod types;

use std::fmt;
use std::sync::LazyLock;
use std::time::Duration;

use serde_json::Value;

use crate::container::with_defaults;
use crate::errors::{ConfigError, ConfigErrors};
use crate::schema::{mask, mask_all};
use crate::secrets::{hide_variables, mask_addresses, mask_all_variables, mask_members};
use crate::units::parse_duration;
use crate::yaml::Node;

pub(crate) use drawn::drawn;
pub use schema::{
    ExperimentConfig, Integrations, Optimizations, Profiling, Reproducibility, Resources,
    RetentionPolicy, WebhookSelection,
};
pub use searcher::{MaxLength, Searcher};
pub use stored::{StoredExperiment, read_stored};
pub use types::{CheckpointPolicy, Entrypoint, Length};

impl fmt::Debug for ExperimentConfig {
    /// Secrets are hidden.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExperimentConfig {}", self.masked_json())
    }
}

impl ExperimentConfig {
    /// How long its trials may be silent; zero = for ever, `None` = as the master has it.
    pub fn silence_timeout(&self) -> Option<Duration> {
        let text = self.silence_timeout.as_deref()?;
        parse_duration(text).ok()
    }

    /// Reads a stored effective configuration. Keys that a newer version has added get their defaults.
    ///
    /// # Errors
    /// The value was not written by [`ExperimentConfig::to_json`].
    pub fn from_json(value: &Value) -> Result<Self, ConfigErrors> {
        let root = Node::from(value);
        if root.members().is_none() {
            let message = format!("must be a map, not {}", root.kind());
            return Err(ConfigError::new("", None, message).into());
        }
        with_defaults(root, &schema::EXPERIMENT).typed()
    }

    /// The effective configuration as clients and the in-task harness read it: every key present, `data` never null,
    /// no key that the storage type does not know, unset searcher keys absent, constants explicit.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).expect("maps with text keys and finite numbers are JSON")
    }

    /// [`ExperimentConfig::to_json`] for showing: secrets are hidden.
    pub fn masked_json(&self) -> Value {
        mask_document(&self.to_json())
    }

    /// Whether the entrypoint is a trial class (`module:Class`) that the training harness runs.
    pub fn is_trial_class(&self) -> bool {
        matches!(&self.entrypoint, Some(Entrypoint::Shell(text)) if is_trial_class(text))
    }
}

/// A document of an experiment for showing, original or effective: everything under `data.secrets`, storage keys,
/// registry credentials and tokens become `********`, and passwords in addresses that are keys of their own. Variables
/// stay as they are, since clients submit what they were shown again; see [`mask_with_variables`].
pub fn mask_document(document: &Value) -> Value {
    let mut masked = document.clone();
    mask(&mut masked, &schema::EXPERIMENT);
    if let Some(secrets) = masked
        .get_mut("data")
        .and_then(|data| data.get_mut("secrets"))
    {
        mask_all(secrets);
    }
    masked
}

/// [`mask_document`], and what looks secret by its name or its look: variables of tasks, members of `data`, addresses. For
/// those who only look.
pub fn mask_with_variables(document: &Value) -> Value {
    let mut masked = mask_document(document);
    mask_all_variables(&mut masked);
    mask_addresses(&mut masked);
    if let Some(data) = masked.get_mut("data") {
        mask_members(data);
    }
    masked
}

/// [`mask_with_variables`], and the values of all variables: for those to whom the work does not belong.
pub fn mask_for_others(document: &Value) -> Value {
    let mut masked = mask_with_variables(document);
    hide_variables(&mut masked);
    masked
}

/// A masking function for one member of a document's top level.
pub fn mask_member(name: &str, member: &Value, mask: impl Fn(&Value) -> Value) -> Value {
    let mut document = Value::Object([(name.to_owned(), member.clone())].into_iter().collect());
    document = mask(&document);
    document.get_mut(name).map(Value::take).unwrap_or_default()
}

/// Whether a member of a document's top level, with its JSON, may hold what is masked. What else there is can be shown
/// as it is.
pub fn may_hold_secrets(name: &str, json: &str) -> bool {
    static NAMES: LazyLock<Vec<&str>> = LazyLock::new(|| {
        let holding = schema::EXPERIMENT
            .fields
            .iter()
            .filter(|f| f.holds_secrets());
        holding.map(|field| field.name).chain(["data"]).collect()
    });
    NAMES.contains(&name) || (json.contains("://") && json.contains('@'))
}

/// `module:Class` without blanks; the module may be empty.
pub(crate) fn is_trial_class(text: &str) -> bool {
    let word = |text: &str| {
        text.chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.')
    };
    text.split_once(':')
        .is_some_and(|(module, class)| word(module) && !class.is_empty() && word(class))
}
