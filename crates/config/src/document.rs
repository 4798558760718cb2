//! Documents of every kind: checked by their kind, guessed from what they hold, described for editors and readers.

mod guess;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::agent;
use crate::container::TaskContainerDefaults;
use crate::errors::{ConfigError, ConfigErrors, ConfigWarning};
use crate::layer_text::{LayerText, place_of_path, place_of_whole_path, read_layer};
use crate::layers::{LoadedAgent, LoadedMaster, Sources};
use crate::origin::{Layer, Position, Source};
use crate::overrides::{apply_all, unlikely as unlikely_overrides};
use crate::policies::Policies;
use crate::repair;
use crate::schema::{
    Document, Findings, Key, Stage, check_document, document_schema, keys_of, template_schema,
};
use crate::submitted::{
    CompletionDefaults, Experiment, SubmittedDocument, SubmittedTask, TaskDefaults,
};
use crate::task::{LaunchKind, TASK_DOCUMENT};
use crate::template::Template;
use crate::workload::Workload;
use crate::yaml::{self, Node, Tree};

pub use guess::{Guess, UnknownKind, guess};

/// The kinds of document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DocumentKind {
    /// Configuration of an experiment, as `det experiment create` takes it.
    Experiment,
    /// A task of any kind; checked as far as all kinds agree.
    Task,
    /// A task of one kind.
    TaskOf(LaunchKind),
    /// A part of a configuration, kept under a name.
    Template,
    /// A master's configuration.
    Master,
    /// An agent's configuration.
    Agent,
    /// What administrators lay over experiments or over tasks.
    Policies(Workload),
}

impl DocumentKind {
    /// Every kind, as users name them.
    pub const NAMES: [&str; 12] = [
        "experiment",
        "task",
        "notebook",
        "shell",
        "command",
        "tensorboard",
        "generic",
        "template",
        "master",
        "agent",
        "policy",
        "task-policy",
    ];

    /// The kinds that have a schema of their own.
    pub const SCHEMAS: [Self; 5] = [
        Self::Experiment,
        Self::Task,
        Self::Template,
        Self::Master,
        Self::Agent,
    ];

    /// The kind of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "experiment" => Self::Experiment,
            "task" => Self::Task,
            "template" => Self::Template,
            "master" => Self::Master,
            "agent" => Self::Agent,
            "policy" => Self::Policies(Workload::Experiment),
            "task-policy" => Self::Policies(Workload::Tasks),
            name => Self::TaskOf(
                LaunchKind::ALL
                    .into_iter()
                    .find(|kind| kind.name() == name)?,
            ),
        })
    }

    /// The name under which commands and files address this kind of document, such as `task-policy`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Experiment => "experiment",
            Self::Task => "task",
            Self::TaskOf(kind) => kind.name(),
            Self::Template => "template",
            Self::Master => "master",
            Self::Agent => "agent",
            Self::Policies(Workload::Experiment) => "policy",
            Self::Policies(Workload::Tasks) => "task-policy",
        }
    }

    /// What such a document is, for users: `an experiment`.
    pub fn noun(self) -> &'static str {
        match self {
            Self::Experiment => "an experiment",
            Self::Task => "a task",
            Self::TaskOf(kind) => kind.task().one(),
            Self::Template => "a template",
            Self::Master => "a master's configuration",
            Self::Agent => "an agent's configuration",
            Self::Policies(Workload::Experiment) => "policies over experiments",
            Self::Policies(Workload::Tasks) => "policies over tasks",
        }
    }

    /// The schema; templates have that of two.
    fn document(self) -> &'static Document {
        match self {
            Self::Experiment | Self::Template => &crate::experiment::schema::DOCUMENT,
            Self::Task | Self::TaskOf(_) => &TASK_DOCUMENT,
            Self::Master => &crate::master::schema::DOCUMENT,
            Self::Agent => &agent::DOCUMENT,
            Self::Policies(_) => &crate::policies::DOCUMENT,
        }
    }

    /// Every key of such a document. Of a template those of experiments, then those of tasks that experiments lack.
    pub fn keys(self) -> Vec<Key> {
        let settable = matches!(self, Self::Master | Self::Agent);
        let mut found = keys_of(self.document(), settable);
        if self == Self::Template {
            let known: Vec<String> = found.iter().map(|key| key.path.clone()).collect();
            let tasks = keys_of(&TASK_DOCUMENT, false);
            found.extend(tasks.into_iter().filter(|key| !known.contains(&key.path)));
        }
        found
    }

    /// The JSON schema (draft 2020-12) of such a document, for editors.
    pub fn json_schema(self) -> Value {
        match self {
            Self::Experiment => document_schema(
                self.document(),
                "Experiment",
                "What an experiment trains, how it is searched and what it needs to run.",
            ),
            Self::Task | Self::TaskOf(_) => document_schema(
                self.document(),
                "Task",
                "A notebook, shell, command, TensorBoard or generic task.",
            ),
            Self::Template => template_schema(
                &crate::experiment::schema::DOCUMENT,
                &TASK_DOCUMENT,
                "Template",
                "A part of the configuration of experiments or tasks that is kept under a name.",
            ),
            Self::Master => document_schema(
                self.document(),
                "Master",
                "The configuration of a master, master.yaml.",
            ),
            Self::Agent => document_schema(
                self.document(),
                "Agent",
                "The configuration of an agent, agent.yaml.",
            ),
            Self::Policies(_) => document_schema(
                self.document(),
                "Policies",
                "What administrators lay over every experiment, or over every task.",
            ),
        }
    }
}

impl fmt::Display for DocumentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A document without errors.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckReport {
    /// What the user should know although it is no error.
    pub warnings: Vec<ConfigWarning>,
    /// For a template, what it fits.
    pub fits: Option<String>,
}

/// How a document is checked.
#[derive(Debug, Clone, Copy, Default)]
pub struct CheckOptions<'a> {
    /// `--config key=value`, for experiments and tasks.
    pub overrides: &'a [String],
    /// Templates under an experiment or task, `(name, file, text)`, the strongest last.
    pub templates: &'a [(String, String, String)],
    /// Whether keys may be missing that other layers bring.
    pub partial: bool,
}

/// Checks a document of a kind as far as it can be without a cluster. Nothing but the text is looked at.
///
/// # Errors
/// Every error, with file, line and column.
pub fn check(
    kind: DocumentKind,
    file: &str,
    text: &str,
    options: CheckOptions<'_>,
) -> Result<CheckReport, ConfigErrors> {
    let mut checked = check_alone(kind, file, text, options).map_err(|mut errors| {
        name_left(kind, file, text, options, &mut errors);
        errors.in_file(file)
    })?;
    for warning in &mut checked.warnings {
        warning.name_file(file);
    }
    checked.warnings.sort_by_key(ConfigWarning::order);
    Ok(checked)
}

/// Names in the correction that errors come with, if any, those that it leaves: the corrected document is checked.
fn name_left(
    kind: DocumentKind,
    file: &str,
    text: &str,
    options: CheckOptions<'_>,
    errors: &mut ConfigErrors,
) {
    let Some(first) = errors.0.iter_mut().find(|error| error.repaired.is_some()) else {
        return;
    };
    let (Some(repaired), Ok(layer)) = (&first.repaired, read_layer(text, None)) else {
        return;
    };
    let Some(corrected) = repair::corrected(kind.document(), &layer.root) else {
        return;
    };
    let corrected = yaml::to_yaml(&corrected.to_value());
    let mut left = match check_alone(kind, file, &corrected, options) {
        Ok(_) => Vec::new(),
        Err(left) => left.0,
    };
    // A key that is given twice is one of two in the tree, unless the second one found its place.
    let is_kept = |error: &&ConfigError| {
        let place = place_of_whole_path(&layer.root, &error.path);
        let is_this =
            |at: &Position| error.line == Some(at.line) && error.column == Some(at.column);
        !find_place(&layer.root, &is_this) || place.is_some_and(is_this)
    };
    left.extend(layer.errors.iter().filter(is_kept).cloned());
    let left: Vec<&ConfigError> = left.iter().collect();
    first.repaired = Some(Arc::new(repair::with_left(repaired, &left)));
}

/// Whether a node of the tree is at a place.
fn find_place(node: &Node, is_this: &impl Fn(&Position) -> bool) -> bool {
    let below = || match &node.tree {
        Tree::List(items) => items.iter().any(|item| find_place(item, is_this)),
        Tree::Map(members) => members.values().any(|member| find_place(member, is_this)),
        _ => false,
    };
    node.at.as_ref().is_some_and(is_this) || below()
}

/// Errors that a master found in a text, as they are in the file that the text was made of. Overrides make the text
/// anew, so its lines are no lines of the file; a value that an override gave is reported as coming from there. Errors of
/// other layers stay as they are.
pub fn placed_in_file<S: AsRef<str>>(
    file: &str,
    text: &str,
    overrides: &[S],
    errors: Vec<ConfigError>,
) -> ConfigErrors {
    let source = Arc::new(Source::document(file));
    let written = read_layer(text, Some(&source))
        .ok()
        .map(|LayerText { mut root, .. }| {
            // Overrides that are wrong were refused before anything was sent.
            apply_all(&mut root, overrides);
            root
        });
    let placed = |error: ConfigError| {
        let of_the_text = error.source.is_none() && error.line.is_some();
        match &written {
            Some(root) if of_the_text => match place_of_path(root, &error.path) {
                Some(place) => error.placed(place),
                None => error,
            },
            _ => error,
        }
    };
    ConfigErrors(errors.into_iter().map(placed).collect())
}

fn check_alone(
    kind: DocumentKind,
    file: &str,
    text: &str,
    options: CheckOptions<'_>,
) -> Result<CheckReport, ConfigErrors> {
    let warnings = match kind {
        DocumentKind::Experiment => check_experiment(file, text, options)?,
        DocumentKind::TaskOf(kind) => check_task_of(kind, file, text, options)?,
        DocumentKind::Task => check_task(file, text, options)?,
        DocumentKind::Template => {
            let template = Template::parse(Some(Source::document(file)), text)?;
            return Ok(CheckReport {
                fits: Some(template.fits()),
                warnings: template.warnings,
            });
        }
        DocumentKind::Policies(workload) => {
            let policies = Policies::parse(workload, file, Some(file), text)?;
            policies.check_priority()?;
            policies.warnings
        }
        DocumentKind::Master => {
            let files = [(file.to_owned(), text.to_owned())];
            let loaded = LoadedMaster::load(Sources {
                files: &files,
                ..Sources::default()
            })?;
            loaded.warnings
        }
        DocumentKind::Agent => {
            let files = [(file.to_owned(), text.to_owned())];
            let env = if options.partial {
                BTreeMap::from([("DET_MASTER_HOST".to_owned(), "master".to_owned())])
            } else {
                BTreeMap::new()
            };
            let loaded = LoadedAgent::load(Sources {
                files: &files,
                env: &env,
                flags: &[],
            })?;
            loaded.warnings
        }
    };
    Ok(CheckReport {
        warnings,
        fits: None,
    })
}

fn check_experiment(
    file: &str,
    text: &str,
    options: CheckOptions<'_>,
) -> Result<Vec<ConfigWarning>, ConfigErrors> {
    let (overrides, templates) = (options.overrides, options.templates);
    let submitted = SubmittedDocument::read_file(Experiment, file, text, overrides)?
        .over_templates(templates)?;
    let mut warnings = submitted.warnings.clone();
    warnings.extend(submitted.under(&[]).drawn());
    warnings.extend(unlikely_overrides(text, overrides));
    if options.partial {
        submitted.checked()?;
    } else {
        let defaults = TaskContainerDefaults::default();
        submitted.complete(&stand_in(&defaults))?;
    }
    Ok(warnings)
}

/// Checks a configuration of a task whose kind is known.
fn check_task_of(
    kind: LaunchKind,
    file: &str,
    text: &str,
    options: CheckOptions<'_>,
) -> Result<Vec<ConfigWarning>, ConfigErrors> {
    let (overrides, templates) = (options.overrides, options.templates);
    let mut submitted =
        SubmittedDocument::read_file(kind, file, text, overrides)?.over_templates(templates)?;
    let warnings = submitted.warnings.clone();
    // A command line brings the command, where the file has none.
    if kind == LaunchKind::Command && submitted.to_value()["entrypoint"].is_null() {
        let source = Source::layer(Layer::Override);
        let command = json!({"entrypoint": ["true"]});
        submitted = submitted.over(SubmittedTask::of_layer(kind, source, &command));
    }
    if options.partial {
        submitted.checked()?;
    } else {
        submitted.complete(&TaskDefaults {
            description: kind.title().into(),
            task_container_defaults: &TaskContainerDefaults::default(),
            default_priority: None,
            has_context: false,
        })?;
    }
    Ok(warnings)
}

/// Checks a configuration of a task of whatever kind.
fn check_task(
    file: &str,
    text: &str,
    options: CheckOptions<'_>,
) -> Result<Vec<ConfigWarning>, ConfigErrors> {
    let source = Arc::new(Source::document(file));
    let LayerText {
        mut root,
        mut errors,
        ..
    } = read_layer(text, Some(&source))?;
    errors.extend(apply_all(&mut root, options.overrides));
    let written = root.clone();
    let mut findings = Findings::new(&TASK_DOCUMENT, Stage::Sane);
    findings.errors = errors;
    check_document(&mut findings, &mut root);
    crate::repair::propose(&mut findings, &written);
    findings.finish()
}

/// What a cluster would bring, as far as a check needs it.
fn stand_in(defaults: &TaskContainerDefaults) -> CompletionDefaults<'_> {
    CompletionDefaults {
        name: "checked".into(),
        experiment_seed: 0,
        checkpoint_storage: Some(serde_json::json!({"type": "shared_fs", "host_path": "/"})),
        task_container_defaults: defaults,
        default_priority: None,
        managed: true,
    }
}
