//! Documents of experiments and tasks as users submit them, and how they become complete.
//!
//! [`SubmittedDocument::parse`] reads and checks one document; [`SubmittedDocument::complete`] merges it over templates, the pool's
//! defaults and the schema's, and gives what the work runs with. [`PolicedSubmission`] is a document under the policies of its home,
//! and [`PolicedSubmission::explain`] gives the origin of each effective key too. What differs between experiments and the kinds of task is in `submitted/experiment.rs` and `submitted/task.rs`.

mod experiment;
mod reveal;
mod stored_pod;
mod task;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::container::with_defaults;
use crate::errors::{ConfigError, ConfigErrors, ConfigWarning, each_once};
use crate::explain::{ExplainedKey, rows};
use crate::layer_text::{LayerText, place_of_whole_path, read_layer};
use crate::master::Underlay;
use crate::origin::{Layer, Source};
use crate::overrides::apply_all;
use crate::policies::{POD_PATH, Policies, check_constraints, check_pod, constrain_pods, replaced};
use crate::repair;
use crate::schema::{
    Findings, LayerErrors, Stage, check_document, merge_documents, without_directives,
};
use crate::template::leave_out_foreign;
use crate::workload::Workload;
use crate::yaml::{self, Node, Tree};

pub use experiment::{
    CompletionDefaults, Experiment, Placement, SLOTS_OF_TASK, SLOTS_OF_TRIAL, WorkSize,
};
pub use stored_pod::{check_changed_pod, check_stored_pod};
pub use task::TaskDefaults;

/// A kind of work that documents are submitted for: [`Experiment`], or one of the kinds of task.
pub trait Work: Copy + Debug + PartialEq {
    /// What such work runs with.
    type Config: Serialize + DeserializeOwned;
    /// What such work gets where its document is silent.
    type Defaults<'a>;
}

/// What documents of one kind of work have of their own.
pub(crate) trait Rules: Work {
    /// Whose schema, templates and policies apply.
    const WORKLOAD: Workload;

    /// Warnings of a text that only its scalars as written can give.
    fn warnings_of_text(_text: &LayerText) -> Vec<ConfigWarning> {
        Vec::new()
    }

    /// Warnings of a document with everything that is laid under and over it.
    fn warnings_of_whole(_root: &Node) -> Vec<ConfigWarning> {
        Vec::new()
    }

    /// Checks what the schema cannot express, after the schema's own check.
    fn check(self, _findings: &mut Findings, _root: &mut Node) {}

    /// Removes from a weaker layer what the stronger one sets in another way.
    fn hide(_strong: &Node, _weak: &mut Node) {}

    /// What the master brings, as the caller gives it.
    fn underlay(defaults: &Self::Defaults<'_>) -> Underlay;

    /// The layers below the document, the strongest first. `asked` is the document under its policies.
    fn layers_below(
        self,
        findings: &mut Findings,
        asked: &Node,
        defaults: &Self::Defaults<'_>,
        underlay: &Underlay,
    ) -> Vec<Node>;

    /// Checks what must be given, or must not, once all layers are merged.
    fn check_merged(self, findings: &mut Findings, defaults: &Self::Defaults<'_>, root: &mut Node);

    /// An effective configuration without what is secret or looks it.
    fn masked(config: &Value) -> Value;
}

/// A document as submitted: checked as far as one layer alone can be, older forms translated.
#[derive(Debug, Clone, PartialEq)]
pub struct SubmittedDocument<K = Experiment> {
    /// What the user should know although it is no error, each with its path.
    pub warnings: Vec<ConfigWarning>,
    kind: K,
    /// The document and what it is laid over; never empty.
    layers: Layers,
    /// Only of documents that were read without being checked on their own.
    errors: LayerErrors,
}

/// A document of a task as submitted.
pub type SubmittedTask = SubmittedDocument<crate::task::LaunchKind>;

/// An effective configuration with the origin of each of its keys.
#[derive(Debug, Clone)]
pub struct Explanation<C> {
    /// The effective configuration.
    pub config: C,
    /// Every key that has a value, in sorted order, secrets hidden.
    pub keys: Vec<ExplainedKey>,
    /// What the user should know although it is no error.
    pub warnings: Vec<ConfigWarning>,
}

#[expect(
    private_bounds,
    reason = "the rules of a kind of work speak of the schema, which callers need not know"
)]
impl<K: Rules> SubmittedDocument<K> {
    /// Reads a document, YAML or JSON.
    ///
    /// # Errors
    /// Every error that shows without the other layers, with its line and column.
    pub fn parse(kind: K, text: &str) -> Result<Self, ConfigErrors> {
        Self::read(kind, text)?.checked()
    }

    /// Reads a document, YAML or JSON, with all its errors: they are reported by [`SubmittedDocument::complete`], together with
    /// those that show only then, or by [`SubmittedDocument::checked`].
    ///
    /// # Errors
    /// The text is neither YAML nor JSON.
    pub fn read(kind: K, text: &str) -> Result<Self, ConfigErrors> {
        Self::read_layer(kind, text, None, &[] as &[&str])
    }

    /// This document, if it has no errors.
    ///
    /// # Errors
    /// Every error that shows without the other layers, with its line and column.
    pub fn checked(self) -> Result<Self, ConfigErrors> {
        ConfigErrors::check(self.errors.errors.clone())?;
        Ok(self)
    }

    /// Reads one of several documents; `source` names it in errors and origins.
    ///
    /// # Errors
    /// As [`SubmittedDocument::read`].
    pub fn read_from(kind: K, source: Source, text: &str) -> Result<Self, ConfigErrors> {
        Self::read_layer(kind, text, Some(&Arc::new(source)), &[] as &[&str])
    }

    /// Reads a file with overrides (`--config key=value`) over it; errors of the overrides name the override.
    ///
    /// # Errors
    /// As [`SubmittedDocument::read`].
    pub fn read_file<S: AsRef<str>>(
        kind: K,
        file: &str,
        text: &str,
        overrides: &[S],
    ) -> Result<Self, ConfigErrors> {
        let source = Arc::new(Source::document(file));
        Self::read_layer(kind, text, Some(&source), overrides)
    }

    /// This document over templates, `(name, file, text)`, the strongest last; `file` is empty where there is none. Their
    /// errors are reported when the document is completed.
    ///
    /// # Errors
    /// One of the texts is neither YAML nor JSON.
    pub fn over_templates(
        self,
        templates: &[(String, String, String)],
    ) -> Result<Self, ConfigErrors> {
        let kind = self.kind;
        let mut whole = self;
        for (name, file, text) in templates.iter().rev() {
            let source = Source::of(Layer::Template(name.clone()), file);
            whole = whole.over(Self::read_template(kind, source, text)?);
        }
        Ok(whole)
    }

    /// Reads a template. Keys that concern other work only are left out, with a warning for each.
    ///
    /// # Errors
    /// As [`SubmittedDocument::read`].
    pub fn read_template(kind: K, source: Source, text: &str) -> Result<Self, ConfigErrors> {
        let mut layer = read_layer(text, Some(&Arc::new(source)))?;
        let mut findings = Findings::new(K::WORKLOAD.document(), Stage::Sane);
        findings.warnings = K::warnings_of_text(&layer);
        let left_out = leave_out_foreign(&mut layer.root, K::WORKLOAD);
        findings.warnings.extend(left_out);
        findings.errors = layer.errors;
        Ok(checked_document(kind, findings, layer.root))
    }

    fn read_layer<S: AsRef<str>>(
        kind: K,
        text: &str,
        source: Option<&Arc<Source>>,
        overrides: &[S],
    ) -> Result<Self, ConfigErrors> {
        let mut layer = read_layer(text, source)?;
        if K::WORKLOAD == Workload::Tasks && matches!(layer.root.tree, Tree::Null) {
            // Every key of a task has a default.
            layer.root.tree = Tree::Map(BTreeMap::new());
        }
        let errors = apply_all(&mut layer.root, overrides);
        layer.errors.extend(errors);
        let mut findings = Findings::new(K::WORKLOAD.document(), Stage::Sane);
        findings.warnings = K::warnings_of_text(&layer);
        findings.errors = layer.errors;
        Ok(checked_document(kind, findings, layer.root))
    }

    /// A document that is part of another one, with its places there. Errors that it has by itself are reported when it is
    /// completed.
    pub fn from_node(kind: K, node: Node) -> Self {
        checked_document(
            kind,
            Findings::new(K::WORKLOAD.document(), Stage::Sane),
            node,
        )
    }

    /// Reads a document that is stored as JSON.
    ///
    /// # Errors
    /// As [`SubmittedDocument::parse`], without lines.
    pub fn from_value(kind: K, value: &Value) -> Result<Self, ConfigErrors> {
        Self::from_node(kind, yaml::from_value(value)?).checked()
    }

    /// A layer that comes from no text; `source` names it in errors and origins. Its errors are reported when the whole is
    /// completed.
    pub fn of_layer(kind: K, source: Source, value: &Value) -> Self {
        let mut root = Node::from(value);
        root.set_source(&Arc::new(source));
        Self::from_node(kind, root)
    }

    /// This document over a weaker one (its template). With several templates the last one named is laid under first.
    #[must_use]
    pub fn over(mut self, weaker: Self) -> Self {
        for warning in weaker.warnings {
            if !self.warnings.contains(&warning) {
                self.warnings.push(warning);
            }
        }
        self.layers.0.extend(weaker.layers.0);
        self.errors.extend(weaker.errors);
        self
    }

    /// The kind of work that was submitted.
    pub fn kind(&self) -> K {
        self.kind
    }

    /// The document as JSON, in normal form, incomplete as it is.
    pub fn to_value(&self) -> Value {
        self.layers.clone().merged::<K>().to_value()
    }

    /// Adds everything that the document leaves open and checks the whole.
    ///
    /// # Errors
    /// Every error of the merged document: what is still missing, what does not go together.
    pub fn complete(self, defaults: &K::Defaults<'_>) -> Result<K::Config, ConfigErrors> {
        self.under(&[]).complete(defaults)
    }

    /// The document under these policies: their invariants are laid over everything, the last one's over the others'.
    pub fn under<'a>(&'a self, policies: &'a [Policies]) -> PolicedSubmission<'a, K> {
        PolicedSubmission {
            submitted: self,
            policies,
        }
    }
}

/// A document as submitted, under the policies of its home.
#[derive(Debug, Clone, Copy)]
pub struct PolicedSubmission<'a, K = Experiment> {
    submitted: &'a SubmittedDocument<K>,
    policies: &'a [Policies],
}

#[expect(
    private_bounds,
    reason = "the rules of a kind of work speak of the schema, which callers need not know"
)]
impl<K: Rules> PolicedSubmission<'_, K> {
    /// The document with what it is laid over and what policies fix, all as one.
    fn merged(&self) -> Node {
        self.submitted.layers.under(self.policies).merged::<K>()
    }

    /// Errors that only the caller can see, at the places of their paths, where a policy, the document or what it is laid
    /// over has them.
    pub fn placed(&self, mut errors: Vec<ConfigError>) -> Vec<ConfigError> {
        if !errors.is_empty() {
            let root = self.merged();
            for error in &mut errors {
                if let Some(place) = place_of_whole_path(&root, &error.path) {
                    *error = error.clone().placed(place);
                }
            }
        }
        errors
    }

    /// Adds everything that the document leaves open and checks the whole, which must keep the constraints of the
    /// policies.
    ///
    /// # Errors
    /// As [`SubmittedDocument::complete`]; also every constraint that does not hold, with both numbers.
    pub fn complete(&self, defaults: &K::Defaults<'_>) -> Result<K::Config, ConfigErrors> {
        self.whole(defaults, &K::underlay(defaults))?.typed()
    }

    /// As [`PolicedSubmission::complete`], and where each effective key comes from. `underlay` replaces what `defaults` contain
    /// of the master, with its places.
    ///
    /// # Errors
    /// As [`PolicedSubmission::complete`].
    pub fn explain(
        &self,
        defaults: &K::Defaults<'_>,
        underlay: &Underlay,
    ) -> Result<Explanation<K::Config>, ConfigErrors> {
        let mut warnings = self.submitted.warnings.clone();
        warnings.extend(K::warnings_of_whole(&self.merged()));
        warnings.extend(self.replaced());
        let root = self.whole(defaults, underlay)?;
        let config: K::Config = root.typed()?;
        let value =
            serde_json::to_value(&config).expect("maps with text keys and finite numbers are JSON");
        Ok(Explanation {
            config,
            keys: rows(&K::masked(&value), &root),
            warnings: each_once(warnings),
        })
    }

    /// A warning for each value that was written and that an invariant of the policies replaces.
    pub fn replaced(&self) -> Vec<ConfigWarning> {
        replaced(
            &self.submitted.layers.clone().merged::<K>(),
            &self.merged(),
            self.policies,
            K::masked,
        )
    }

    /// Compares the pod that the document makes of that of the layers below with what the policies let users set. What is
    /// an administrator's, below or in the policies themselves, is not judged.
    fn check_pod(&self, findings: &mut Findings, below: &[Node]) {
        if !constrain_pods(self.policies) {
            return;
        }
        let given = Layers(below.to_vec()).merged::<K>();
        let own = self.submitted.layers.0.iter().chain(below);
        let asked = Layers(own.cloned().collect()).merged::<K>();
        let (asked, given) = (asked.find(POD_PATH), given.find(POD_PATH));
        check_pod(findings, asked, given, self.policies);
    }

    /// All layers as one, checked, with every default.
    fn whole(&self, defaults: &K::Defaults<'_>, underlay: &Underlay) -> Result<Node, ConfigErrors> {
        let mut findings = Findings::new(K::WORKLOAD.document(), Stage::Complete);
        let (kind, errors) = (self.submitted.kind, self.submitted.errors.clone());
        let mut layers = self.submitted.layers.under(self.policies);
        let asked = layers.clone().merged::<K>();
        let below = kind.layers_below(&mut findings, &asked, defaults, underlay);
        self.check_pod(&mut findings, &below);
        layers.0.extend(below);
        let mut root = layers.merged::<K>();
        if let Some(pod) = root
            .get_mut("environment")
            .and_then(|environment| environment.get_mut("pod_spec"))
        {
            let spec = std::mem::replace(pod, Node::new(Tree::Null));
            *pod = without_directives(spec);
        }
        kind.check_merged(&mut findings, defaults, &mut root);
        check_document(&mut findings, &mut root);
        kind.check(&mut findings, &mut root);
        check_constraints(&mut findings, &mut root, self.policies, K::WORKLOAD);
        findings.finish_after(errors)?;
        Ok(with_defaults(root, K::WORKLOAD.document().root))
    }
}

/// A document with what a first check of it finds.
fn checked_document<K: Rules>(
    kind: K,
    mut findings: Findings,
    mut root: Node,
) -> SubmittedDocument<K> {
    let written = root.clone();
    check_document(&mut findings, &mut root);
    kind.check(&mut findings, &mut root);
    repair::propose(&mut findings, &written);
    let (errors, warnings) = findings.taken();
    SubmittedDocument {
        warnings,
        kind,
        layers: Layers(vec![root]),
        errors,
    }
}

/// Layers of one document, the strongest first.
#[derive(Debug, Clone, PartialEq)]
struct Layers(Vec<Node>);

impl Layers {
    /// These, below what policies fix.
    fn under(&self, policies: &[Policies]) -> Self {
        let invariants = policies.iter().rev().filter_map(Policies::invariants);
        Self(invariants.chain(&self.0).cloned().collect())
    }

    /// All as one. From the weakest up, since what a pod spec deletes is then there already.
    fn merged<K: Rules>(self) -> Node {
        let empty = Node::new(Tree::Map(BTreeMap::new()));
        let section = K::WORKLOAD.document().root;
        self.0.into_iter().rev().fold(empty, |mut weak, strong| {
            K::hide(&strong, &mut weak);
            merge_documents(section, strong, weak)
        })
    }
}

/// A layer that comes from no text.
fn made(layer: Layer, value: &Value) -> Node {
    let mut node = Node::from(value);
    node.set_source(&Arc::new(Source::layer(layer)));
    node
}

/// A pool's defaults as a layer below a document that asks for so many slots (of a trial, or of a task).
fn layer_under(workload: Workload, defaults: &Node, slots: i64) -> Node {
    let pod_spec = if slots > 0 {
        "gpu_pod_spec"
    } else {
        "cpu_pod_spec"
    };
    let own = match workload {
        Workload::Experiment => "log_policies",
        Workload::Tasks => "work_dir",
    };
    let places = [
        (own, own),
        ("bind_mounts", "bind_mounts"),
        ("preemption_timeout", "preemption_timeout"),
        ("slurm", "slurm"),
        ("pbs", "pbs"),
        ("shm_size_bytes", "resources.shm_size"),
        ("devices", "resources.devices"),
        ("image", "environment.image"),
        ("environment_variables", "environment.environment_variables"),
        ("force_pull_image", "environment.force_pull_image"),
        ("add_capabilities", "environment.add_capabilities"),
        ("drop_capabilities", "environment.drop_capabilities"),
        (pod_spec, "environment.pod_spec"),
    ];
    let mut layer = Node::new(Tree::Map(BTreeMap::new()));
    for (from, to) in places {
        if let Some(node) = defaults.get(from) {
            layer.put(to, node.clone());
        }
    }
    layer
}

#[cfg(test)]
mod tests;
