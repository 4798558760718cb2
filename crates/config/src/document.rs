//! Documents of every kind: checked by their kind, guessed from what they hold, described for editors and people.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::agent;
use crate::container::TaskContainerDefaults;
use crate::errors::{ConfigError, ConfigErrors, ConfigWarning, Position};
use crate::experiment::{CompletionDefaults, Submitted, apply_all};
use crate::layers::Sources;
use crate::master::LoadedMaster;
use crate::origin::{Layer, Source};
use crate::policies::{Policies, Workload};
use crate::schema::{Checker, Document, Key, Stage, document_schema, keys, template_schema};
use crate::task::{SubmittedTask, TASK_DOCUMENT, TaskDefaults, TaskKind};
use crate::template::Template;
use crate::yaml::{self, Node, Tree};

/// The kinds of document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DocumentKind {
    /// An experiment.
    Experiment,
    /// A task of any kind; checked as far as all kinds agree.
    Task,
    /// A task of one kind.
    TaskOf(TaskKind),
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
    /// Every kind, as people name them.
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
            name => Self::TaskOf(TaskKind::ALL.into_iter().find(|kind| kind.name() == name)?),
        })
    }

    /// Its name.
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

    /// What such a document is, for people: `an experiment`.
    pub fn noun(self) -> &'static str {
        match self {
            Self::Experiment => "an experiment",
            Self::Task => "a task",
            Self::TaskOf(TaskKind::Notebook) => "a notebook",
            Self::TaskOf(TaskKind::Shell) => "a shell",
            Self::TaskOf(TaskKind::Command) => "a command",
            Self::TaskOf(TaskKind::TensorBoard) => "a TensorBoard",
            Self::TaskOf(TaskKind::Generic) => "a generic task",
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
            Self::Master => crate::master::schema::document(),
            Self::Agent => agent::document(),
            Self::Policies(_) => &crate::policies::DOCUMENT,
        }
    }

    /// Every key of such a document. Of a template those of experiments, then those of tasks that experiments lack.
    pub fn keys(self) -> Vec<Key> {
        let settable = matches!(self, Self::Master | Self::Agent);
        let mut found = keys(self.document(), settable);
        if self == Self::Template {
            let known: Vec<String> = found.iter().map(|key| key.path.clone()).collect();
            let tasks = keys(&TASK_DOCUMENT, false);
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

/// A guess at what a document is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guess {
    /// The kind.
    pub kind: DocumentKind,
    /// Why, as the end of a sentence: `it has "searcher"`.
    pub because: String,
}

/// Words in names of files, and what they say.
const NAMES: &[(&str, DocumentKind)] = &[
    ("master", DocumentKind::Master),
    ("agent", DocumentKind::Agent),
    ("template", DocumentKind::Template),
    ("notebook", DocumentKind::TaskOf(TaskKind::Notebook)),
    ("jupyter", DocumentKind::TaskOf(TaskKind::Notebook)),
    ("shell", DocumentKind::TaskOf(TaskKind::Shell)),
    ("tensorboard", DocumentKind::TaskOf(TaskKind::TensorBoard)),
    ("command", DocumentKind::TaskOf(TaskKind::Command)),
    ("cmd", DocumentKind::TaskOf(TaskKind::Command)),
    ("generic", DocumentKind::TaskOf(TaskKind::Generic)),
    ("task", DocumentKind::Task),
];

/// Keys that only one kind of document has.
const TELLING: &[(&str, DocumentKind)] = &[
    (
        "invariant_config",
        DocumentKind::Policies(Workload::Experiment),
    ),
    ("constraints", DocumentKind::Policies(Workload::Experiment)),
    ("searcher", DocumentKind::Experiment),
    ("hyperparameters", DocumentKind::Experiment),
    ("resources.slots_per_trial", DocumentKind::Experiment),
    ("max_restarts", DocumentKind::Experiment),
    ("checkpoint_policy", DocumentKind::Experiment),
    ("resource_manager", DocumentKind::Master),
    ("resource_pools", DocumentKind::Master),
    ("task_container_defaults", DocumentKind::Master),
    ("db", DocumentKind::Master),
    ("cluster_name", DocumentKind::Master),
    ("launch_error", DocumentKind::Master),
    ("master_host", DocumentKind::Agent),
    ("slot_type", DocumentKind::Agent),
    ("artificial_slots", DocumentKind::Agent),
    ("container_runtime", DocumentKind::Agent),
    ("agent_id", DocumentKind::Agent),
    (
        "tensorboard_args",
        DocumentKind::TaskOf(TaskKind::TensorBoard),
    ),
    (
        "inherit_mounts",
        DocumentKind::TaskOf(TaskKind::TensorBoard),
    ),
    (
        "notebook_idle_type",
        DocumentKind::TaskOf(TaskKind::Notebook),
    ),
    ("idle_timeout", DocumentKind::TaskOf(TaskKind::Notebook)),
    ("resources.slots", DocumentKind::Task),
    ("work_dir", DocumentKind::Task),
];

/// What the name of a file says for certain: the names that documentation and packages use.
fn by_usual_name(name: &str) -> Option<(&'static str, DocumentKind)> {
    let stem = name.split('.').next().unwrap_or(name);
    match stem {
        "master" => Some(("master", DocumentKind::Master)),
        "agent" => Some(("agent", DocumentKind::Agent)),
        stem if stem.contains("policies") => {
            Some(("policies", DocumentKind::Policies(Workload::Experiment)))
        }
        _ => None,
    }
}

/// Policies as those over experiments or over tasks: by the name, else by which of the two they suit better.
fn policies_of(name: &str, text: &str, because: String) -> Guess {
    let mistakes = |workload| {
        Policies::parse(workload, "", None, text).map_or_else(|errors| errors.0.len(), |_| 0)
    };
    let of = |workload, because| Guess {
        kind: DocumentKind::Policies(workload),
        because,
    };
    if let Some(word) = ["task", "ntsc"].iter().find(|word| name.contains(*word)) {
        return of(Workload::Tasks, format!("its name has \"{word}\" in it"));
    }
    if mistakes(Workload::Tasks) >= mistakes(Workload::Experiment) {
        return of(Workload::Experiment, because);
    }
    let root = yaml::read(text).ok().map(|reading| reading.root);
    let invariants = root.as_ref().and_then(|root| root.get("invariant_config"));
    let of_a_task =
        |kind: DocumentKind| matches!(kind, DocumentKind::Task | DocumentKind::TaskOf(_));
    let telling = TELLING
        .iter()
        .filter(|(_, kind)| of_a_task(*kind))
        .find(|(key, _)| invariants.is_some_and(|given| given.find(key).is_some()));
    let because = match telling {
        Some((key, _)) => format!("its \"invariant_config\" has \"{key}\""),
        None => "as policies over experiments it would have more mistakes".to_owned(),
    };
    of(Workload::Tasks, because)
}

/// What a document most likely is: by a usual name of its file, else by its keys, else by another word in the name, else
/// by how many of its keys each kind knows.
pub fn guess(file: &str, text: &str) -> Guess {
    let name = file
        .rsplit('/')
        .next()
        .unwrap_or_default()
        .to_ascii_lowercase();
    let guess = guess_by(&name, text);
    match guess.kind {
        DocumentKind::Policies(_) => policies_of(&name, text, guess.because),
        _ => guess,
    }
}

fn guess_by(name: &str, text: &str) -> Guess {
    let by_name = |word: &str, kind| Guess {
        kind,
        because: format!("its name has \"{word}\" in it"),
    };
    if let Some((word, kind)) = by_usual_name(name) {
        return by_name(word, kind);
    }
    let root = yaml::read(text).ok().map(|reading| reading.root);
    if let Some(root) = &root
        && let Some((key, kind)) = TELLING.iter().find(|(key, _)| root.find(key).is_some())
    {
        return Guess {
            kind: *kind,
            because: format!("it has \"{key}\""),
        };
    }
    if let Some((word, kind)) = NAMES.iter().find(|(word, _)| name.contains(word)) {
        return by_name(word, *kind);
    }
    let given: Vec<&String> = root
        .iter()
        .filter_map(Node::members)
        .flat_map(BTreeMap::keys)
        .collect();
    let known = |kind: DocumentKind| {
        let fields = kind.document().root;
        given
            .iter()
            .filter(|key| fields.field(key).is_some())
            .count()
    };
    let best = [
        DocumentKind::Experiment,
        DocumentKind::Task,
        DocumentKind::Master,
        DocumentKind::Agent,
    ]
    .into_iter()
    .rev()
    .max_by_key(|kind| known(*kind))
    .unwrap_or(DocumentKind::Experiment);
    match known(best) {
        0 => Guess {
            kind: DocumentKind::Experiment,
            because: "nothing in it says otherwise".into(),
        },
        known => Guess {
            kind: best,
            because: format!("it has {known} of the keys of {}", best.noun()),
        },
    }
}

/// A document without mistakes.
#[derive(Debug, Clone, PartialEq)]
pub struct Checked {
    /// What the person should know although it is no mistake.
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
/// Every mistake, with file, line and column.
pub fn check(
    kind: DocumentKind,
    file: &str,
    text: &str,
    options: CheckOptions<'_>,
) -> Result<Checked, ConfigErrors> {
    let mut checked =
        check_alone(kind, file, text, options).map_err(|errors| errors.in_file(file))?;
    for warning in &mut checked.warnings {
        warning.name_file(file);
    }
    checked.warnings.sort_by_key(ConfigWarning::order);
    Ok(checked)
}

/// Mistakes that a master found in a text, as they stand in the file that the text was made of. Overrides make the text
/// anew, so its lines are no lines of the file; a value that an override gave is told to come from there. Mistakes of
/// other layers stay as they are.
pub fn told_in_file<S: AsRef<str>>(
    file: &str,
    text: &str,
    overrides: &[S],
    mistakes: Vec<ConfigError>,
) -> ConfigErrors {
    let source = Arc::new(Source::document(file));
    let written = read_layer(text, Some(&source)).ok().map(|(mut root, _)| {
        // Overrides that are wrong were refused before anything was sent.
        apply_all(&mut root, overrides);
        root
    });
    let placed = |mistake: ConfigError| {
        let of_the_text = mistake.source.is_none() && mistake.line.is_some();
        match &written {
            Some(root) if of_the_text => match place_of_path(root, &mistake.path) {
                Some(place) => mistake.placed(place),
                None => mistake,
            },
            _ => mistake,
        }
    };
    ConfigErrors(mistakes.into_iter().map(placed).collect())
}

/// Where a path stands in a document; `None` = the document does not say it.
pub(crate) fn place_of_whole_path<'n>(root: &'n Node, path: &str) -> Option<&'n Position> {
    steps_of(path).try_fold(root, below)?.at.as_ref()
}

/// Where a path stands in a document, or the deepest part of it that does.
fn place_of_path<'n>(root: &'n Node, path: &str) -> Option<&'n Position> {
    let (mut node, mut place) = (root, root.at.as_ref());
    for step in steps_of(path) {
        let Some(found) = below(node, step) else {
            break;
        };
        node = found;
        place = found.at.as_ref().or(place);
    }
    place
}

fn steps_of(path: &str) -> impl Iterator<Item = &str> {
    path.split(['.', '['])
        .map(|step| step.trim_end_matches(']'))
}

fn below<'n>(node: &'n Node, step: &str) -> Option<&'n Node> {
    match &node.tree {
        Tree::Map(members) => members.get(step),
        Tree::List(items) => items.get(step.parse::<usize>().ok()?),
        _ => None,
    }
}

fn check_alone(
    kind: DocumentKind,
    file: &str,
    text: &str,
    options: CheckOptions<'_>,
) -> Result<Checked, ConfigErrors> {
    let plain = |warnings| Checked {
        warnings,
        fits: None,
    };
    match kind {
        DocumentKind::Experiment => {
            let submitted = experiment_layers(file, text, options)?;
            let warnings = submitted.warnings.clone();
            if options.partial {
                submitted.checked()?;
            } else {
                let defaults = TaskContainerDefaults::default();
                submitted.complete(&stand_in(&defaults))?;
            }
            Ok(plain(warnings))
        }
        DocumentKind::TaskOf(kind) => {
            let mut submitted = task_layers(kind, file, text, options)?;
            let warnings = submitted.warnings.clone();
            // A command line brings the command, where the file has none.
            if kind == TaskKind::Command && submitted.to_value()["entrypoint"].is_null() {
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
            Ok(plain(warnings))
        }
        DocumentKind::Task => {
            let source = Arc::new(Source::document(file));
            let (mut root, mut mistakes) = read_layer(text, Some(&source))?;
            mistakes.extend(crate::experiment::apply_all(&mut root, options.overrides));
            let written = root.clone();
            let mut checker = Checker::new(&TASK_DOCUMENT, Stage::Sane);
            checker.errors = mistakes;
            checker.check(&mut root);
            crate::repair::propose(&mut checker, &written);
            Ok(plain(checker.finish()?))
        }
        DocumentKind::Template => {
            let template = Template::parse(Some(Source::document(file)), text)?;
            Ok(Checked {
                fits: Some(template.fits()),
                warnings: template.warnings,
            })
        }
        DocumentKind::Policies(workload) => {
            let policies = Policies::parse(workload, file, Some(file), text)?;
            Ok(plain(policies.warnings))
        }
        DocumentKind::Master => {
            let files = [(file.to_owned(), text.to_owned())];
            let loaded = LoadedMaster::load(alone(&files, &BTreeMap::new()))?;
            Ok(plain(loaded.warnings))
        }
        DocumentKind::Agent => {
            let files = [(file.to_owned(), text.to_owned())];
            let env = if options.partial {
                BTreeMap::from([("DET_MASTER_HOST".to_owned(), "master".to_owned())])
            } else {
                BTreeMap::new()
            };
            let loaded = agent::LoadedAgent::load(alone(&files, &env))?;
            Ok(plain(loaded.warnings))
        }
    }
}

fn alone<'a>(files: &'a [(String, String)], env: &'a BTreeMap<String, String>) -> Sources<'a> {
    Sources {
        files,
        env,
        flags: &[],
    }
}

/// An experiment's document over its templates. Their mistakes are told when it is completed.
///
/// # Errors
/// One of the texts is neither YAML nor JSON.
pub fn experiment_layers(
    file: &str,
    text: &str,
    options: CheckOptions<'_>,
) -> Result<Submitted, ConfigErrors> {
    let mut whole = Submitted::read_file(file, text, options.overrides)?;
    for (name, file, text) in options.templates.iter().rev() {
        let source = Source::of(Layer::Template(name.clone()), file);
        whole = whole.over(Submitted::read_from(source, text)?);
    }
    Ok(whole)
}

/// A task's document over its templates. Their mistakes are told when it is completed.
///
/// # Errors
/// One of the texts is neither YAML nor JSON.
pub fn task_layers(
    kind: TaskKind,
    file: &str,
    text: &str,
    options: CheckOptions<'_>,
) -> Result<SubmittedTask, ConfigErrors> {
    let mut whole = SubmittedTask::read_file(kind, file, text, options.overrides)?;
    for (name, file, text) in options.templates.iter().rev() {
        let source = Source::of(Layer::Template(name.clone()), file);
        whole = whole.over(SubmittedTask::read_from(kind, source, text)?);
    }
    Ok(whole)
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

/// Reads a layer and names what it was read from; also gives the mistakes that do not keep the rest from being checked.
pub(crate) fn read_layer(
    text: &str,
    source: Option<&Arc<Source>>,
) -> Result<(Node, Vec<ConfigError>), ConfigErrors> {
    let named = |error: &mut ConfigError| {
        error.source = source.map(|source| source.place().into());
    };
    let yaml::Reading {
        mut root,
        mut mistakes,
    } = yaml::read(text).map_err(|mut errors| {
        errors.0.iter_mut().for_each(named);
        errors
    })?;
    mistakes.iter_mut().for_each(named);
    if let Some(source) = source {
        root.set_source(source);
    }
    Ok((root, mistakes))
}
