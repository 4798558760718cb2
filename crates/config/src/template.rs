//! Templates: parts of configurations that are kept under a name, for experiments, tasks, or both.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use crate::errors::{ConfigError, ConfigErrors, ConfigWarning, ErrorCode, each_once};
use crate::layer_text::read_layer;
use crate::origin::Source;
use crate::repair;
use crate::schema::{Document, Findings, Stage, check_document};
use crate::task::{LaunchKind, kinds_that_fit};
use crate::workload::Workload;
use crate::yaml::{self, Node};

/// A template whose keys and values have been checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    /// Whether experiments can build upon it.
    pub fits_experiments: bool,
    /// The kinds of task that can build upon it.
    pub fits_tasks: Vec<LaunchKind>,
    /// What the user should know although it is no error.
    pub warnings: Vec<ConfigWarning>,
}

impl Template {
    /// Checks a template, YAML or JSON, against what experiments and tasks may hold.
    ///
    /// # Errors
    /// Every error. A template fits at least one kind of work.
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
        Self::check(&yaml::from_value(value)?, Vec::new())
    }

    fn check(root: &Node, mut errors: Vec<ConfigError>) -> Result<Self, ConfigErrors> {
        if let Some(other) = root.get("template") {
            let error = ConfigError::new(
                "template",
                other.at.as_ref(),
                ErrorCode::UnknownKey
                    .message("is not a key of a template: a template cannot build upon another"),
            )
            .with_hint("name both where the work is submitted, the stronger one last");
            return Err(error.into());
        }
        let experiment = checked(Workload::Experiment.document(), root);
        let task = checked(Workload::Tasks.document(), root);
        let fits_experiments = experiment.errors.is_empty();
        let fits_tasks = if task.errors.is_empty() {
            kinds_that_fit(root)
        } else {
            Vec::new()
        };
        errors.extend(wrong_for_both(&experiment, &task));
        ConfigErrors::check(errors)?;
        let warnings = if fits_experiments || !task.errors.is_empty() {
            experiment.warnings
        } else {
            task.warnings
        };
        Ok(Self {
            fits_experiments,
            fits_tasks,
            warnings: each_once(warnings),
        })
    }

    /// The kinds of work that it fits, for users: `experiments, notebooks`.
    pub fn fits(&self) -> String {
        if !self.fits_experiments && self.fits_tasks.is_empty() {
            return "experiments and tasks, each with the keys that concern it".to_owned();
        }
        let tasks = self.fits_tasks.iter().map(|kind| kind.task().plural());
        let all: Vec<&str> = self
            .fits_experiments
            .then_some("experiments")
            .into_iter()
            .chain(tasks)
            .collect();
        all.join(", ")
    }
}

fn checked(document: &'static Document, root: &Node) -> Findings {
    let mut findings = Findings::new(document, Stage::Sane);
    let mut copy = root.clone();
    check_document(&mut findings, &mut copy);
    repair::propose(&mut findings, root);
    findings
}

/// Whether an error means that a document of this kind has no such key.
fn is_unknown(error: &ConfigError) -> bool {
    error.code == ErrorCode::UnknownKey
}

/// Where one kind of document finds errors: a text that is none of ours has thousands of them.
struct ErrorPaths<'a> {
    unknown: BTreeSet<&'a str>,
    refused: BTreeSet<&'a str>,
}

impl<'a> ErrorPaths<'a> {
    fn by(findings: &'a Findings) -> Self {
        let paths = |unknown| {
            let errors = findings.errors.iter();
            errors
                .filter(move |error| is_unknown(error) == unknown)
                .map(|error| error.path.as_str())
                .collect()
        };
        Self {
            unknown: paths(true),
            refused: paths(false),
        }
    }

    /// Whether there is no such key at `path`, or none above it.
    fn knows_not(&self, path: &str) -> bool {
        let ends = path.match_indices(['.', '[']).map(|(end, _)| end);
        ends.chain([path.len()])
            .any(|end| self.unknown.contains(&path[..end]))
    }
}

/// What is wrong with a template whatever it is used for: keys that neither experiments nor tasks have, and values that
/// every kind refuses that has the key.
fn wrong_for_both(experiment: &Findings, task: &Findings) -> Vec<ConfigError> {
    let (of_experiment, of_task) = (ErrorPaths::by(experiment), ErrorPaths::by(task));
    let (mut wrong, mut named) = (Vec::new(), BTreeSet::new());
    for (own, other) in [(experiment, &of_task), (task, &of_experiment)] {
        for error in &own.errors {
            let counts = other.knows_not(&error.path)
                || (!is_unknown(error) && other.refused.contains(error.path.as_str()));
            if counts && named.insert(error.path.as_str()) {
                wrong.push(error.clone());
            }
        }
    }
    wrong
}

/// Takes the keys out of a template that concern the other kind of work only; a warning for each.
pub(crate) fn leave_out_foreign(root: &mut Node, under: Workload) -> Vec<ConfigWarning> {
    let experiment = checked(Workload::Experiment.document(), root);
    let task = checked(Workload::Tasks.document(), root);
    let (own, other, text) = match under {
        Workload::Experiment => (
            experiment,
            task,
            "is a key of tasks: the template's value is left out of experiments",
        ),
        Workload::Tasks => (
            task,
            experiment,
            "is a key of experiments: the template's value is left out of tasks",
        ),
    };
    let other = ErrorPaths::by(&other);
    let mut warnings = Vec::new();
    for error in own.errors.iter().filter(|error| is_unknown(error)) {
        if !other.knows_not(&error.path)
            && let Some(removed) = remove(root, &error.path)
        {
            warnings.push(ConfigWarning::new(&*error.path, removed.at.as_ref(), text));
        }
    }
    warnings
}

/// Takes the node at a path of plain keys out.
fn remove(root: &mut Node, path: &str) -> Option<Node> {
    match path.split_once('.') {
        Some((key, rest)) => remove(root.get_mut(key)?, rest),
        None => root.take(path),
    }
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
    fn a_template_names_what_it_fits() {
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
    fn a_template_may_serve_experiments_and_tasks_together() {
        let text = "resources: {slots: 1, slots_per_trial: 2}\nsearcher: {name: single}\nidle_timeout: 5m\n\
                    environment: {image: x}";
        let both = template(text);
        assert!(
            both.fits().starts_with("experiments and tasks"),
            "{}",
            both.fits()
        );
        let value = Node::from(&serde_json::json!({
            "resources": {"slots": 1, "slots_per_trial": 2}, "searcher": {"name": "single"},
            "environment": {"image": "x"},
        }));
        let mut root = value.clone();
        let left_out = leave_out_foreign(&mut root, Workload::Experiment);
        let paths: Vec<&str> = left_out
            .iter()
            .map(|warning| warning.path.as_str())
            .collect();
        assert_eq!(paths, ["resources.slots"]);
        assert!(root.find("resources.slots").is_none());
        assert!(root.find("resources.slots_per_trial").is_some());
        let mut root = value;
        let left_out = leave_out_foreign(&mut root, Workload::Tasks);
        assert_eq!(left_out.len(), 2, "{left_out:?}");
        assert!(root.find("searcher").is_none() && root.find("resources.slots").is_some());
        assert!(root.find("environment.image").is_some());
    }

    #[test]
    fn a_template_that_fits_nothing_is_refused() {
        let message = failure(
            "resources: {slots: 1}\nsearcher: {name: random, metrc: l, max_trials: lots}\nmax_restarts: 1",
        );
        assert!(
            message.contains("searcher.metrc: is not a known key")
                && message.contains("searcher.max_trials")
                && !message.contains("resources.slots"),
            "{message}"
        );
        let message = failure("resources: {slots: many}\nmax_restarts: 1");
        assert!(
            message.contains("resources.slots") && !message.contains("max_restarts"),
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
