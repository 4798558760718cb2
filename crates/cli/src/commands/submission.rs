//! What experiments and tasks have in common when they are submitted: a document that is checked here before it is sent,
//! the files that go with it, and the master's warnings.

use std::path::Path;

use det_client::ClientError;
use det_config::document::{self, CheckOptions, DocumentKind};
use det_config::errors::ConfigError;
use det_config::{apply_overrides, hidden_by_overrides, unlikely_overrides, yaml};
use serde_json::{Value, json};

use crate::error::CliError;
use crate::model_files::{ModelFiles, read_text, shown_name};
use crate::output;
use crate::values::{items, plain};

/// A document as its user wrote it: a file, and what `--config` lays over it.
#[derive(Debug)]
pub(crate) struct UserDocument {
    kind: DocumentKind,
    /// The file's name in messages.
    name: String,
    text: String,
    overrides: Vec<String>,
}

impl UserDocument {
    /// Reads a document; without a file there are only overrides.
    pub(crate) fn read(
        kind: DocumentKind,
        file: Option<&Path>,
        overrides: Vec<String>,
    ) -> Result<Self, CliError> {
        let (name, text) = match file {
            Some(path) => (shown_name(path), read_text(path)?),
            None => ("<command line>".to_owned(), "{}\n".to_owned()),
        };
        Ok(Self {
            kind,
            name,
            text,
            overrides,
        })
    }

    /// A text that was read from a file of this name.
    pub(crate) fn of_text(kind: DocumentKind, file: &Path, text: &str) -> Self {
        Self {
            kind,
            name: shown_name(file),
            text: text.to_owned(),
            overrides: Vec::new(),
        }
    }

    /// Checks the document as the master does, before anything is sent. `partial` = keys may be missing that the cluster
    /// has, in a template for example.
    pub(crate) fn check(&self, partial: bool) -> Result<(), CliError> {
        let options = CheckOptions {
            overrides: &self.overrides,
            partial,
            ..CheckOptions::default()
        };
        match document::check(self.kind, &self.name, &self.text, options) {
            Ok(_) => Ok(()),
            Err(_) if self.is_of_an_experiment() => Err(CliError::request(format!(
                "{} is the configuration of an experiment (it has \"searcher\"), not of a task",
                self.name
            ))
            .with_hint(format!(
                "`det experiment create {} DIRECTORY` runs it, with the files of DIRECTORY",
                self.name
            ))),
            Err(errors) => Err(errors.into()),
        }
    }

    /// Whether the document is for a task, and what it has is for an experiment.
    fn is_of_an_experiment(&self) -> bool {
        let searcher = || {
            yaml::parse(&self.text)
                .ok()?
                .to_value()
                .get("searcher")
                .cloned()
        };
        let for_a_task = matches!(self.kind, DocumentKind::Task | DocumentKind::TaskOf(_));
        for_a_task && searcher().is_some_and(|searcher| searcher.is_object())
    }

    /// Prints the warnings that the master cannot give, since it does not see what came from the file: for each `--config` that
    /// probably was to change another key or to another value than it does, and for what the file has without quotes.
    pub(crate) fn warn_of_overrides(&self) {
        let hidden = hidden_by_overrides(&self.text, &self.overrides);
        for warning in unlikely_overrides(&self.text, &self.overrides)
            .into_iter()
            .chain(hidden)
        {
            output::note(format_args!("warning: {warning}"));
        }
    }

    /// The text to send: without overrides the file's own, byte for byte.
    pub(crate) fn to_text(&self) -> Result<String, CliError> {
        let applied = apply_overrides(&self.text, &self.overrides);
        Ok(applied.map_err(|errors| errors.in_file(&self.name))?)
    }

    /// Lays one more value over the document, as `--config` does.
    pub(crate) fn lay_over(&mut self, key: &str, value: &Value) {
        // JSON is YAML.
        self.overrides.push(format!("{key}={value}"));
    }

    /// What the text to send holds. Errs when that is no map.
    pub(crate) fn to_value(&self) -> Result<Value, CliError> {
        let parsed = yaml::parse(&self.to_text()?);
        match parsed
            .map_err(|errors| errors.in_file(&self.name))?
            .to_value()
        {
            Value::Null => Ok(json!({})),
            config if config.is_object() => Ok(config),
            _ => Err(CliError::request(format!(
                "{} is not a configuration: it must be a YAML map",
                self.name
            ))),
        }
    }

    /// A refusal by the master, with the positions of its errors in the file and on the command line. The text that is sent
    /// is another one than the file's, so the line numbers of the answer are not those of the file.
    pub(crate) fn refusal(&self, error: ClientError) -> CliError {
        match &error {
            ClientError::Failed {
                document_errors: errors,
                ..
            } if !errors.is_empty() => {
                let errors = errors.iter().map(ConfigError::from_json).collect();
                let placed =
                    document::placed_in_file(&self.name, &self.text, &self.overrides, errors);
                let (_, noun) = self.kind.noun().split_once(' ').unwrap_or_default();
                CliError::document(&format!("the {noun}'s configuration"), &placed)
            }
            _ => error.into(),
        }
    }
}

/// Reports what is sent; `verbose` = with the name of each file.
pub(crate) fn announce(files: &ModelFiles, verbose: bool) {
    if verbose {
        for path in files.paths() {
            output::note(format_args!("  {path}"));
        }
    }
    if !files.is_empty() {
        output::note(format_args!("sending {} to the master", files.summary()));
    }
}

/// Prints the master's warnings about a submission. `what` = what asks for slots, as in `a trial`.
pub(crate) fn warn(what: &str, warnings: &Value) {
    for warning in items(warnings) {
        match warning.as_str() {
            Some("LAUNCH_WARNING_CURRENT_SLOTS_EXCEEDED") => output::note(format_args!(
                "warning: {what} needs more slots than its resource pool has now; it waits until there are enough"
            )),
            _ => output::note(format_args!("warning: {}", plain(warning))),
        }
    }
}
