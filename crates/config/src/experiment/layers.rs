//! How an experiment's layers come together: policies over documents over templates over what the master brings.
//! `docs/contract/configuration.md`, "Layers".

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::checks::drawn;
use super::schema::EXPERIMENT;
use super::{
    CompletionDefaults, ExperimentConfig, Submitted, checker, finish, mask_with_variables, slots,
    typed, with_defaults,
};
use crate::container::{LaidOver, layer_under};
use crate::errors::{ConfigErrors, ConfigWarning, ErrorCode, each_once};
use crate::explain::{ExplainedKey, rows};
use crate::master::Underlay;
use crate::origin::{Layer, Source};
use crate::policies::{ONE_POOL, Policies, SEVERAL_POOLS, check_constraints, replaced, says};
use crate::schema::{Stage, merge_documents, without_directives};
use crate::yaml::{Node, Tree};

/// An effective configuration with the origin of each of its keys.
#[derive(Debug, Clone)]
pub struct Explained {
    /// The effective configuration.
    pub config: ExperimentConfig,
    /// Every key that has a value, in sorted order, secrets hidden.
    pub keys: Vec<ExplainedKey>,
    /// What the person should know although it is no mistake.
    pub warnings: Vec<ConfigWarning>,
}

/// Layers as one, the strongest first. From the weakest up, since what a pod spec tells to delete is then there already.
pub(super) fn merged(layers: Vec<Node>) -> Node {
    let empty = Node::new(Tree::Map(BTreeMap::new()));
    layers.into_iter().rev().fold(empty, |mut weak, strong| {
        hide_pools(&strong, &mut weak);
        merge_documents(&EXPERIMENT, strong, weak)
    })
}

/// One pool and several are two ways to say where to run: the stronger layer that says it at all says it whole.
fn hide_pools(strong: &Node, weak: &mut Node) {
    if !(says(strong, ONE_POOL) || says(strong, SEVERAL_POOLS)) {
        return;
    }
    if let Some(Tree::Map(members)) = weak.get_mut("resources").map(|node| &mut node.tree) {
        for key in ["resource_pool", "resource_pools", "resource_pool_wait"] {
            members.remove(key);
        }
    }
}

impl Submitted {
    /// Adds everything that the document leaves open and checks the whole.
    ///
    /// # Errors
    /// Every mistake of the merged document: what is still missing, what does not go together.
    pub fn complete(
        self,
        defaults: &CompletionDefaults<'_>,
    ) -> Result<ExperimentConfig, ConfigErrors> {
        self.complete_under(defaults, &[])
    }

    /// As [`Submitted::complete`], with policies: their invariants lie over everything, the last one's over the others',
    /// and their constraints are held against the result.
    ///
    /// # Errors
    /// As [`Submitted::complete`]; also every constraint that does not hold, with both numbers.
    pub fn complete_under(
        self,
        defaults: &CompletionDefaults<'_>,
        policies: &[Policies],
    ) -> Result<ExperimentConfig, ConfigErrors> {
        let underlay = Underlay::new(
            defaults.task_container_defaults.to_node(),
            defaults.checkpoint_storage.as_ref().map(Node::from),
            defaults.default_priority,
        );
        finish(self.whole(defaults, &underlay, policies)?)
    }

    /// As [`Submitted::complete_under`], and where each effective key comes from. `underlay` takes the place of what
    /// `defaults` say of the master, with its places.
    ///
    /// # Errors
    /// As [`Submitted::complete_under`].
    pub fn explain(
        self,
        defaults: &CompletionDefaults<'_>,
        underlay: &Underlay,
        policies: &[Policies],
    ) -> Result<Explained, ConfigErrors> {
        let mut warnings = self.warnings.clone();
        warnings.extend(self.drawn(policies));
        warnings.extend(self.replaced_by(policies));
        let root = with_defaults(self.whole(defaults, underlay, policies)?);
        let config = typed(&root)?;
        let keys = rows(&mask_with_variables(&config.to_json()), &root);
        Ok(Explained {
            config,
            keys,
            warnings: each_once(warnings),
        })
    }

    /// A warning for each hyperparameter of a `single` search that is no constant, under these policies: one value is
    /// drawn for it.
    pub fn drawn(&self, policies: &[Policies]) -> Vec<ConfigWarning> {
        drawn(&self.under(policies))
    }

    /// A warning for each value that was written and that an invariant of these policies replaces.
    pub fn replaced_by(&self, policies: &[Policies]) -> Vec<ConfigWarning> {
        replaced(
            &self.root(),
            &self.under(policies),
            policies,
            mask_with_variables,
        )
    }

    /// All layers as one, checked.
    fn whole(
        self,
        defaults: &CompletionDefaults<'_>,
        underlay: &Underlay,
        policies: &[Policies],
    ) -> Result<Node, ConfigErrors> {
        let asked = slots(&self.under(policies)).unwrap_or(1);
        let mut layers: Vec<Node> = policies
            .iter()
            .rev()
            .filter_map(Policies::invariants)
            .cloned()
            .collect();
        layers.extend(self.layers);
        layers.push(layer_under(
            LaidOver::Experiment,
            underlay.container_defaults(),
            asked,
        ));
        layers.extend(underlay.storage_layer());
        layers.extend(underlay.pool_layers());
        layers.push(from_value(
            Layer::Generated,
            &json!({
                "name": defaults.name,
                "reproducibility": {"experiment_seed": defaults.experiment_seed},
            }),
        ));
        layers.push(from_value(
            Layer::BuiltIn,
            &json!({"log_policies": [
                {"name": "CUDA OOM", "pattern": ".*CUDA out of memory.*"},
                {"name": "ECC Error", "pattern": ".*uncorrectable ECC error encountered.*"},
            ]}),
        ));
        let mut root = merged(layers);
        if let Some(pod) = root
            .get_mut("environment")
            .and_then(|environment| environment.get_mut("pod_spec"))
        {
            let spec = std::mem::replace(pod, Node::new(Tree::Null));
            *pod = without_directives(spec);
        }
        let mut checker = checker(Stage::Complete);
        checker.check(&mut root);
        if defaults.managed && root.get("entrypoint").is_none() {
            checker.error_hint_in(
                "entrypoint",
                None,
                ErrorCode::Missing.message("is required: the command that trains"),
                "for example \"python3 train.py\"",
            );
        }
        check_constraints(
            &mut checker,
            &mut root,
            policies,
            "resources.slots_per_trial",
        );
        checker.add_earlier(self.mistakes);
        checker.finish()?;
        Ok(root)
    }
}

/// A layer that comes from no text.
fn from_value(layer: Layer, value: &Value) -> Node {
    let mut node = Node::from(value);
    node.set_source(&Arc::new(Source::layer(layer)));
    node
}
