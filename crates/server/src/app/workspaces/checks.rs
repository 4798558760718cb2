//! What may be stored of workspaces and projects: all errors of a request at once.

use std::collections::BTreeMap;

use det_config::errors::{ConfigError, ConfigErrors};
use det_config::secrets::MASK;
use det_config::submitted::{CompletionDefaults, Experiment, SubmittedDocument};
use serde_json::{Map, Value, json};

use super::Workspaces;
use crate::app::documents::{document_error, hidden_secret};
use crate::error::{AppError, AppResult};

/// Characters of a name at most.
pub(crate) const LONGEST_NAME: usize = 80;
/// Bytes of a workspace's checkpoint storage as JSON at most: it is kept in memory, and experiments are laid over it.
const LARGEST_STORAGE: usize = 64 << 10;
/// Value of a limit that means that there is none.
const NO_LIMIT: i64 = -1;

/// The errors in the fields of a request.
#[derive(Default)]
pub(crate) struct FieldErrors(Vec<ConfigError>);

impl FieldErrors {
    /// Notes what is wrong with a field.
    pub(crate) fn add(&mut self, field: &str, message: impl Into<String>) {
        self.0.push(ConfigError::new(field, None, message));
    }

    /// As [`Self::add`], with what to do about it.
    pub(crate) fn add_hint(&mut self, field: &str, message: impl Into<String>, hint: String) {
        let error = ConfigError::new(field, None, message).with_hint(hint);
        self.0.push(error);
    }

    /// Takes the value, or notes why there is none.
    pub(crate) fn take<T>(&mut self, outcome: Result<T, ConfigError>) -> Option<T> {
        outcome.map_err(|error| self.0.push(error)).ok()
    }

    /// One refusal for all of them.
    pub(crate) fn refuse(self, what: &str) -> AppResult<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        Err(document_error(what, &ConfigErrors(self.0)))
    }

    /// A name without the blanks around it.
    pub(crate) fn name(&mut self, given: &str) -> String {
        let name = given.trim();
        if name.is_empty() {
            self.add("name", "must not be blank");
        } else if name.chars().count() > LONGEST_NAME {
            self.add(
                "name",
                format!("must have at most {LONGEST_NAME} characters"),
            );
        } else if name.chars().any(char::is_control) {
            self.add("name", "must be one line of plain text");
        }
        name.to_owned()
    }

    /// A limit of slots as it is stored; -1 = none.
    pub(crate) fn limit(&mut self, field: &str, slots: i64) -> Option<i64> {
        if slots != NO_LIMIT && u32::try_from(slots).is_err() {
            self.add(
                field,
                format!(
                    "must be 0 to {} slots, or {NO_LIMIT} for no limit, found {slots}",
                    u32::MAX
                ),
            );
        }
        Some(slots).filter(|slots| *slots != NO_LIMIT)
    }
}

impl Workspaces {
    /// A default pool as it is stored; empty = the cluster's.
    pub(super) fn checked_pool(
        &self,
        errors: &mut FieldErrors,
        field: &str,
        pool: String,
    ) -> Option<String> {
        let pool = Some(pool).filter(|pool| !pool.is_empty())?;
        if let Some(why) = self.pools.unusable(&pool) {
            errors.add_hint(
                field,
                format!("pool \"{}\" {why}", pool.escape_debug()),
                format!("choose one of: {}", self.pools.serving().join(", ")),
            );
        }
        Some(pool)
    }

    /// Checkpoint storage as it is stored; empty = the cluster's.
    pub(super) fn checked_storage(
        &self,
        errors: &mut FieldErrors,
        storage: Map<String, Value>,
    ) -> AppResult<Option<String>> {
        const FIELD: &str = "checkpointStorageConfig";
        if storage.is_empty() {
            return Ok(None);
        }
        let storage = Value::Object(storage);
        let text = storage.to_string();
        if text.len() > LARGEST_STORAGE {
            errors.add(
                FIELD,
                format!(
                    "has {} bytes as JSON, at most {LARGEST_STORAGE} are allowed",
                    text.len()
                ),
            );
            return Ok(None);
        }
        if let Some(path) = hidden_secret(&storage, FIELD) {
            errors.add(
                &path,
                format!("\"{MASK}\" is shown in place of a secret; give the secret itself"),
            );
            return Ok(None);
        }
        // As an experiment that sets no storage would get it: it must be whole together with the cluster's.
        let document = json!({
            "name": "check", "entrypoint": "check", "checkpoint_storage": storage,
            "searcher": {"name": "single", "metric": "check"},
        });
        let master = self
            .context
            .config()
            .checkpoint_storage
            .as_ref()
            .map(serde_json::to_value);
        let defaults = CompletionDefaults {
            name: String::new(),
            experiment_seed: 0,
            checkpoint_storage: master.transpose().map_err(AppError::internal)?,
            task_container_defaults: &self.pools.container_defaults(""),
            default_priority: None,
            managed: true,
        };
        let outcome = SubmittedDocument::from_value(Experiment, &document)
            .and_then(|s| s.complete(&defaults));
        for error in outcome.err().into_iter().flat_map(|found| found.0) {
            let mut error = error;
            error.path = error.path.replacen("checkpoint_storage", FIELD, 1);
            errors.0.push(error);
        }
        Ok(Some(text))
    }

    /// The one limit of this cluster among limits by cluster; the outer `None` = the request contains none.
    #[expect(
        clippy::option_option,
        reason = "a limit that is not in the request is not the same as no limit"
    )]
    pub(super) fn quota(
        &self,
        errors: &mut FieldErrors,
        quotas: BTreeMap<String, i64>,
    ) -> Option<Option<i64>> {
        let own = self.context.config().resource_manager.cluster_name.clone();
        let mut found = None;
        for (cluster, slots) in quotas {
            let field = format!("clusterQuotaPairs[\"{}\"]", cluster.escape_debug());
            if !cluster.is_empty() && cluster != own {
                let known = if own.is_empty() {
                    "this master has one cluster, without a name".to_owned()
                } else {
                    format!("this master has one cluster: \"{own}\"")
                };
                errors.add(&field, format!("there is no such cluster; {known}"));
            } else if found.is_some() {
                errors.add(&field, "is given twice: the empty name is this cluster too");
            }
            found = Some(errors.limit(&field, slots));
        }
        found
    }
}
