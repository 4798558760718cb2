//! Documents that users submit: their errors, their sizes, and the secrets in them.

use std::collections::BTreeSet;

use det_authz::{Kind, Permission, Target};
use det_config::container::{Environment, unknown_capability};
use det_config::errors::{ConfigError, ConfigErrors};
use det_config::experiment::{ExperimentConfig, mask_document, mask_with_variables};
use det_config::secrets::{MASK, is_masked};
use det_config::submitted::{Experiment, SubmittedDocument};
use det_config::task::{mask_task_document, mask_task_for_others};
use det_ids::UserId;
use det_store::experiments::ExperimentRow;
use det_taskspec::variables::{KNOBS, RESERVED_PREFIX, is_reserved};
use det_taskspec::{PerDevice, users_variables};
use serde_json::Value;

use crate::auth::Actor;
use crate::error::{AppError, AppResult};

/// Bytes of a configuration from which on it is read on a blocking thread.
const LONG_CONFIG: usize = 16 << 10;

/// Whether a configuration is read on a blocking thread: a long one, and one whose log policies have patterns
/// to compile. A key may be written with escapes.
pub(crate) fn takes_long(config: &str) -> bool {
    config.len() >= LONG_CONFIG || config.contains("log_policies") || config.contains('\\')
}

/// Largest effective configuration: tasks get it as one variable of their environment, and the kernel takes no longer
/// one than 128 KiB, name included.
const CONFIG_LIMIT_BYTES: usize = 128 * 1024 - 64;

/// Refuses a configuration that tasks could not be given.
pub(crate) fn check_size(config: &ExperimentConfig) -> AppResult<()> {
    check_variables(&config.environment)?;
    require_storable(&config.to_json().to_string())
}

/// Whether a name or a label has characters that a terminal could take for commands. Line ends and tabs come of block scalars
/// in YAML, and are not taken for any.
pub(crate) fn is_obeyed_by_terminals(text: &str) -> bool {
    text.chars()
        .any(|c| c.is_control() && !matches!(c, '\t' | '\n'))
}

/// Why such a name or label is refused, after the name of its field.
pub(crate) const OBEYED_BY_TERMINALS: &str =
    "must not contain control characters, but for tabs and line ends";

/// Bytes of a name or a label at most: all of them are kept in memory for lists.
pub(crate) const MAX_NAME_BYTES: usize = 1024;
/// Bytes of a description or of notes at most: a page of a list has those of a hundred experiments and more.
pub(crate) const MAX_TEXT_BYTES: usize = 64 << 10;
/// Labels of an experiment at most.
const MAX_LABELS: usize = 100;
/// Bytes of all labels of an experiment at most.
const MAX_LABELS_BYTES: usize = 4 << 10;

/// Why labels are refused that are too many or too long; `None` = they are not.
pub(crate) fn too_many_labels<'l>(labels: impl Iterator<Item = &'l String>) -> Option<String> {
    let (mut count, mut all, mut longest) = (0, 0, 0);
    for label in labels {
        count += 1;
        all += label.len();
        longest = longest.max(label.len());
    }
    let are_few = count <= MAX_LABELS && longest <= MAX_NAME_BYTES && all <= MAX_LABELS_BYTES;
    (!are_few).then(|| {
        format!(
            "an experiment has at most {MAX_LABELS} labels of at most {MAX_NAME_BYTES} bytes each and {MAX_LABELS_BYTES} \
             together, found {count} with {all} bytes"
        )
    })
}

/// What is too long to be kept in memory for lists, or to be shown in them.
fn too_long(config: &ExperimentConfig) -> Vec<ConfigError> {
    let description = config.description.as_deref().unwrap_or_default();
    let texts = [
        ("name", config.name.len(), MAX_NAME_BYTES),
        ("description", description.len(), MAX_TEXT_BYTES),
    ];
    let texts = texts.into_iter().filter(|(_, bytes, most)| bytes > most);
    let errors = texts.map(|(path, bytes, most)| {
        ConfigError::new(path, None, format!("has {bytes} bytes, of at most {most}"))
    });
    let labels = too_many_labels(config.labels.iter());
    errors
        .chain(labels.map(|why| ConfigError::new("labels", None, why)))
        .collect()
}

/// Refuses a new experiment whose name or labels the terminals of other users could take for commands, or whose texts are
/// too long. Stored ones stay.
pub(crate) fn check_names(config: &ExperimentConfig) -> AppResult<()> {
    let named = std::iter::once(("name", &config.name));
    let named = named.chain(config.labels.iter().map(|label| ("labels", label)));
    let obeyed = named
        .filter(|(_, text)| is_obeyed_by_terminals(text))
        .map(|(path, text)| {
            let found = format!("{OBEYED_BY_TERMINALS}, found \"{}\"", text.escape_debug());
            ConfigError::new(path, None, found)
        });
    let errors: Vec<ConfigError> = obeyed.chain(too_long(config)).collect();
    if errors.is_empty() {
        return Ok(());
    }
    Err(config_error(ConfigErrors::together(errors)))
}

/// Refuses names that are no capabilities, which engines would refuse when the task starts. Stored work goes on with them as
/// it did.
pub(crate) fn check_capabilities(environment: &Environment) -> AppResult<()> {
    unknown_capability(environment).map_or(Ok(()), |message| Err(AppError::invalid(message)))
}

/// Refuses variables that no process could be given.
pub(crate) fn check_variables(environment: &Environment) -> AppResult<()> {
    let variables = &environment.environment_variables;
    for of_devices in [&variables.cpu, &variables.cuda, &variables.rocm] {
        users_variables(of_devices).map_err(|error| AppError::invalid(error.to_string()))?;
    }
    Ok(())
}

/// Reserved variables that a warning lists.
const MOST_RESERVED_SHOWN: usize = 10;
/// Characters of a variable's name that a warning shows.
const MOST_NAME_SHOWN: usize = 64;

/// The warning about variables that are left out of tasks, because their names are the platform's.
pub(crate) fn warning_of_variables(variables: &PerDevice<Vec<String>>) -> Option<String> {
    let reserved: BTreeSet<&str> = [&variables.cpu, &variables.cuda, &variables.rocm]
        .into_iter()
        .flatten()
        .map(|variable| {
            variable
                .split_once('=')
                .map_or(&**variable, |(name, _)| name)
        })
        .filter(|name| is_reserved(name))
        .collect();
    let mut shown: Vec<String> = reserved
        .iter()
        .take(MOST_RESERVED_SHOWN)
        .map(|name| {
            format!(
                "{:?}",
                name.chars().take(MOST_NAME_SHOWN).collect::<String>()
            )
        })
        .collect();
    if reserved.len() > MOST_RESERVED_SHOWN {
        shown.push(format!("{} more", reserved.len() - MOST_RESERVED_SHOWN));
    }
    let (last, others) = shown.split_last()?;
    let (list, are) = match others {
        [] => (last.clone(), "is"),
        others => (format!("{} and {last}", others.join(", ")), "are"),
    };
    Some(format!(
        "environment.environment_variables: {list} {are} left out: names that begin with {RESERVED_PREFIX:?} are the platform's, \
         but for {}",
        KNOBS.join(", ")
    ))
}

/// Refuses the JSON text of an effective configuration that tasks could not be given.
pub(crate) fn require_storable(config: &str) -> AppResult<()> {
    let size = config.len();
    if size <= CONFIG_LIMIT_BYTES {
        return Ok(());
    }
    Err(AppError::invalid(format!(
        "the effective configuration has {size} bytes as JSON; tasks can be given at most {CONFIG_LIMIT_BYTES}"
    ))
    .hint("put large values into a file of the context directory and name the file in the configuration"))
}

/// Errors in a configuration as one answer: the text lists all, and each is contained by itself.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the shape that map_err wants"
)]
pub(crate) fn config_error(errors: ConfigErrors) -> AppError {
    document_error("the experiment's configuration", &errors)
}

/// As [`config_error`], for another kind of document.
pub(crate) fn document_error(what: &str, errors: &ConfigErrors) -> AppError {
    let mut error = AppError::invalid(format!("{what} cannot be used:\n{errors}"));
    error.details = errors.0.iter().map(ConfigError::to_json).collect();
    error
}

/// Whether an actor may have the secrets of an experiment of this owner put into another configuration. A task acts for its
/// owner, but not with an administrator's powers.
pub(crate) fn may_use_secrets(actor: &Actor, owner_id: UserId) -> bool {
    let experiment = Target::of(Kind::Experiment).owned_by(owner_id);
    actor.may(Permission::UseSecrets, &experiment)
}

/// The configurations of an experiment with its secrets: the effective one, and the one that was submitted.
pub(crate) fn known_documents(row: &ExperimentRow) -> AppResult<Vec<Value>> {
    let effective = serde_json::from_str(&row.config).map_err(AppError::internal)?;
    let original = SubmittedDocument::parse(Experiment, &row.original_config).ok();
    Ok(std::iter::once(effective)
        .chain(original.map(|original| original.own_value()))
        .collect())
}

/// A document of the cluster, not of a user's work, for showing. A user who keeps it sees its variables word by word,
/// since they may have to be written again.
pub(crate) fn masked_for(keeps_it: bool, config: &Value) -> Value {
    if keeps_it {
        mask_document(config)
    } else {
        mask_with_variables(config)
    }
}

/// A task's configuration as an actor may see it.
pub(crate) fn shown_task_config(actor: &Actor, owner: UserId, config: &Value) -> Value {
    let target = Target::of(Kind::Task).owned_by(owner);
    if actor.may(Permission::ReadUnmasked, &target) {
        mask_task_document(config)
    } else {
        mask_task_for_others(config)
    }
}

/// Refuses a document that holds what is shown in place of secrets.
pub(crate) fn require_real_secrets(config: &Value) -> AppResult<()> {
    match hidden_secret(config, "") {
        None => Ok(()),
        Some(path) => Err(AppError::invalid(format!(
            "{path}: \"{MASK}\" is shown in place of a secret; give the secret itself"
        ))),
    }
}

/// Where a document has the mark that hides a secret.
pub(crate) fn hidden_secret(value: &Value, path: &str) -> Option<String> {
    match value {
        Value::String(text) if is_masked(text) => Some(path.to_owned()),
        Value::Object(members) => members.iter().find_map(|(key, member)| {
            let dot = if path.is_empty() { "" } else { "." };
            hidden_secret(member, &format!("{path}{dot}{key}"))
        }),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .find_map(|(index, item)| hidden_secret(item, &format!("{path}[{index}]"))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_hidden_secret_is_found_wherever_it_is() {
        let document = json!({"data": {"secrets": {"keys": ["a", MASK]}}});
        assert_eq!(
            hidden_secret(&document, "").as_deref(),
            Some("data.secrets.keys[1]")
        );
        let variables = json!({"environment_variables": ["A=b", format!("A_KEY={MASK}")]});
        assert_eq!(
            hidden_secret(&variables, "").as_deref(),
            Some("environment_variables[1]")
        );
        assert_eq!(hidden_secret(&json!({"name": "***"}), ""), None);
    }

    #[test]
    fn variables_that_are_left_out_are_named_once() {
        let mut variables = PerDevice::default();
        assert_eq!(warning_of_variables(&variables), None);
        variables.cpu = vec!["A=1".into(), "DET_LOG_LEVEL=INFO".into()];
        assert_eq!(warning_of_variables(&variables), None);
        variables.cpu.push("DET_MINE=1".into());
        variables.cuda = vec!["DET_MINE=2".into()];
        let warning = warning_of_variables(&variables).unwrap();
        assert!(
            warning.contains("\"DET_MINE\" is left out")
                && warning.contains("DET_SKIP_PIP_INSTALL"),
            "{warning}"
        );
        variables.rocm = (0..20).map(|n| format!("DET_{n:02}")).collect();
        let warning = warning_of_variables(&variables).unwrap();
        assert!(
            warning.contains("\"DET_08\", \"DET_09\" and 11 more are left out"),
            "{warning}"
        );
    }
}
