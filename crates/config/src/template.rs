//! Templates: parts of configurations that are kept under a name, for experiments, tasks, or both.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value;

use crate::document::read_layer;
use crate::errors::{ConfigError, ConfigErrors, ConfigWarning, each_once};
use crate::origin::Source;
use crate::repair;
use crate::schema::{Checker, Document, Segment, Stage, keys};
use crate::task::{TASK_DOCUMENT, TaskKind, kinds_that_fit};
use crate::yaml::Node;

/// A checked template.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    /// Whether experiments can build upon it.
    pub fits_experiments: bool,
    /// The kinds of task that can build upon it.
    pub fits_tasks: Vec<TaskKind>,
    /// What the person should know although it is no mistake.
    pub warnings: Vec<ConfigWarning>,
}

impl Template {
    /// Checks a template, YAML or JSON, against what experiments and tasks may hold.
    ///
    /// # Errors
    /// Every mistake. A template fits at least one kind of work.
    pub fn parse(source: Option<Source>, text: &str) -> Result<Self, ConfigErrors> {
        let layer = read_layer(text, source.map(Arc::new).as_ref())?;
        let ambiguous = layer.ambiguous_hyperparameters(None);
        let mut template = Self::check(&layer.root, layer.errors)?;
        template.warnings.extend(ambiguous);
        Ok(template)
    }

    /// Checks a template that comes as JSON.
    ///
    /// # Errors
    /// As [`Template::parse`], without lines.
    pub fn from_value(value: &Value) -> Result<Self, ConfigErrors> {
        Self::check(&Node::from(value), Vec::new())
    }

    fn check(root: &Node, mistakes: Vec<ConfigError>) -> Result<Self, ConfigErrors> {
        if let Some(other) = root.get("template") {
            let error = ConfigError::new(
                "template",
                other.at.as_ref(),
                "is not a key of a template: a template cannot build upon another",
            )
            .with_hint("name both where the work is submitted, the stronger one last");
            return Err(error.into());
        }
        let experiment = checked(&crate::experiment::schema::DOCUMENT, root);
        let task = checked(&TASK_DOCUMENT, root);
        let fits_experiments = experiment.errors.is_empty();
        let fits_tasks = if task.errors.is_empty() {
            kinds_that_fit(root)
        } else {
            Vec::new()
        };
        if mistakes.is_empty() && (fits_experiments || !fits_tasks.is_empty()) {
            let warnings = if fits_experiments {
                experiment.warnings
            } else {
                task.warnings
            };
            return Ok(Self {
                fits_experiments,
                fits_tasks,
                warnings: each_once(warnings),
            });
        }
        let mut errors = mistakes;
        errors.extend(why_neither(root, experiment, task));
        Err(ConfigErrors::check(errors)
            .err()
            .unwrap_or_else(|| ConfigErrors(Vec::new())))
    }

    /// The kinds of work that it fits, for people: `experiments, notebooks`.
    pub fn fits(&self) -> String {
        let tasks = self.fits_tasks.iter().map(|kind| match kind {
            TaskKind::Notebook => "notebooks",
            TaskKind::Shell => "shells",
            TaskKind::Command => "commands",
            TaskKind::TensorBoard => "TensorBoards",
            TaskKind::Generic => "generic tasks",
        });
        let all: Vec<&str> = self
            .fits_experiments
            .then_some("experiments")
            .into_iter()
            .chain(tasks)
            .collect();
        all.join(", ")
    }
}

fn checked(document: &'static Document, root: &Node) -> Checker {
    let mut checker = Checker::new(document, Stage::Sane);
    let mut copy = root.clone();
    checker.check(&mut copy);
    repair::propose(&mut checker, root);
    checker
}

/// The mistakes of a template that fits nothing: those it has as an experiment and as a task alike, else those of the
/// kind that it comes nearest to; keys that only the other kind has are said to be that.
fn why_neither(root: &Node, experiment: Checker, task: Checker) -> Vec<ConfigError> {
    let known_to = |document| known_keys(root, document);
    let (of_experiments, of_tasks) = (
        known_to(&crate::experiment::schema::DOCUMENT),
        known_to(&TASK_DOCUMENT),
    );
    // Where as many keys are of the one as of the other, fewer mistakes decide.
    let nearer_is_task = of_tasks > of_experiments
        || (of_tasks == of_experiments && task.errors.len() < experiment.errors.len());
    let (near, far) = if nearer_is_task {
        (task, experiment)
    } else {
        (experiment, task)
    };
    let other = if nearer_is_task {
        "experiments"
    } else {
        "tasks"
    };
    let far_paths: HashSet<&str> = far.errors.iter().map(|error| error.path.as_str()).collect();
    let far_document = if nearer_is_task {
        &crate::experiment::schema::DOCUMENT
    } else {
        &TASK_DOCUMENT
    };
    let far_keys = keys(far_document, false);
    near.errors
        .into_iter()
        .map(|mut error| {
            let only_elsewhere = !far_paths.contains(error.path.as_str())
                && far_keys.iter().any(|key| key.path == error.path)
                && at_path(root, &error.path).is_some();
            if only_elsewhere {
                let noun = near_noun(nearer_is_task);
                error.message = format!("is a key of {other}, while other keys are of {noun}");
                error.hint = Some("make two templates of it".into());
                error.repaired = None;
            }
            error
        })
        .collect()
}

/// How many keys of the two upper levels such a document knows.
fn known_keys(root: &Node, document: &'static Document) -> usize {
    let known: HashSet<String> = keys(document, false)
        .into_iter()
        .map(|key| key.path)
        .collect();
    let mut paths = Vec::new();
    for (key, member) in root.members().into_iter().flatten() {
        paths.push(key.clone());
        let inner = member.members().into_iter().flatten();
        paths.extend(inner.map(|(inner, _)| format!("{key}.{inner}")));
    }
    paths.iter().filter(|path| known.contains(*path)).count()
}

fn near_noun(is_task: bool) -> &'static str {
    if is_task { "tasks" } else { "experiments" }
}

/// The node at a path of plain keys.
fn at_path<'n>(root: &'n Node, path: &str) -> Option<&'n Node> {
    let segments: Vec<Segment> = path
        .split('.')
        .map(|key| Segment::Key(key.to_owned()))
        .collect();
    repair::find(root, &segments)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(text: &str) -> Template {
        Template::parse(None, text).unwrap_or_else(|errors| panic!("{errors}"))
    }

    fn failure(text: &str) -> String {
        Template::parse(Some(Source::document("t.yaml")), text)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn a_template_says_what_it_fits() {
        for (text, fits) in [
            (
                "environment: {image: x}\nbind_mounts: [{host_path: /a, container_path: b}]",
                "experiments, notebooks, shells, commands, TensorBoards, generic tasks",
            ),
            ("searcher: {name: random, max_trials: 3}", "experiments"),
            ("resources: {slots_per_trial: 2}", "experiments"),
            (
                "resources: {slots: 2}",
                "notebooks, shells, commands, TensorBoards, generic tasks",
            ),
            (
                "resources: {slots: 1, is_single_node: false}",
                "generic tasks",
            ),
            ("entrypoint: python3 train.py\nlabels: [a]", "experiments"),
            (
                "{}",
                "experiments, notebooks, shells, commands, TensorBoards, generic tasks",
            ),
        ] {
            assert_eq!(template(text).fits(), fits, "{text}");
        }
    }

    #[test]
    fn a_template_that_fits_nothing_is_refused() {
        let message = failure("resources: {slots: 1}\nsearcher: {name: single}");
        assert!(
            message.contains("t.yaml:1:13: resources.slots: is a key of tasks, while other keys are of experiments"),
            "{message}"
        );
        let message = failure(
            "resources: {slots: 1}\nsearcher: {name: random, metrc: l, max_trials: lots}\nmax_restarts: 1",
        );
        assert!(
            message.contains("searcher.metrc: is not a known key")
                && !message.contains("key of experiments"),
            "{message}"
        );
        let message = failure("environment: {imgae: x}");
        assert!(
            message.contains(
                "t.yaml:1:15: environment.imgae: is not a known key; hint: did you mean \"image\"?"
            ),
            "{message}"
        );
        let message = failure("template: base");
        assert!(
            message.contains("a template cannot build upon another"),
            "{message}"
        );
        let message = failure("- a");
        assert!(message.contains("must be a map, not a list"), "{message}");
    }
}
