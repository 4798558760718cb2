//! Configurations of experiments that exist: laid under policies once more, and sent back by users to whom their
//! secrets were shown hidden.

use serde_json::Value;

use super::{Experiment, SubmittedDocument};
use crate::errors::{ConfigError, ConfigErrors};
use crate::experiment::ExperimentConfig;
use crate::policies::Policies;
use crate::secrets::{MASK, is_masked, is_shown_as};
use crate::yaml::{Node, Tree};

impl SubmittedDocument {
    /// The effective configuration of an experiment as a document to complete under these policies. List items that a
    /// policy appends, and that the configuration has of an earlier time, are left to the policy: each is contained once.
    ///
    /// # Errors
    /// As [`SubmittedDocument::from_value`].
    pub fn renewed(config: &ExperimentConfig, policies: &[Policies]) -> Result<Self, ConfigErrors> {
        let mut document = Self::from_value(Experiment, &config.to_json())?;
        for invariants in policies.iter().filter_map(Policies::invariants) {
            for layer in &mut document.layers.0 {
                leave_to(invariants, layer);
            }
        }
        Ok(document)
    }

    /// The document by itself, without what it is laid over.
    pub fn own_value(&self) -> Value {
        self.layers.0.first().map_or(Value::Null, Node::to_value)
    }

    /// Puts real values in place of [`MASK`] and of what else is shown instead of secrets, as `known` configurations have
    /// them at the same places. Gives an error for each place that stays hidden, and whether something was put in.
    pub fn reveal(&mut self, known: &[Value]) -> (Vec<ConfigError>, bool) {
        let mut revealing = RevealOutcome::default();
        let known: Vec<&Value> = known.iter().collect();
        for layer in &mut self.layers.0 {
            revealing.node(layer, "", &known);
        }
        (revealing.hidden, revealing.revealed)
    }
}

/// Removes from the lists of `node` the items that `invariants` have at the same place.
fn leave_to(invariants: &Node, node: &mut Node) {
    match (&invariants.tree, &mut node.tree) {
        (Tree::Map(fixed), Tree::Map(members)) => {
            for (key, fixed) in fixed {
                if let Some(member) = members.get_mut(key) {
                    leave_to(fixed, member);
                }
            }
        }
        (Tree::List(fixed), Tree::List(items)) => {
            items.retain(|item| !fixed.iter().any(|fixed| contains_all_of(item, fixed)));
        }
        _ => {}
    }
}

/// Whether `node` is `part`, defaults aside.
fn contains_all_of(node: &Node, part: &Node) -> bool {
    match (&node.tree, &part.tree) {
        (Tree::Map(members), Tree::Map(parts)) => parts.iter().all(|(key, part)| {
            members
                .get(key)
                .is_some_and(|member| contains_all_of(member, part))
        }),
        _ => node.to_value() == part.to_value(),
    }
}

#[derive(Default)]
struct RevealOutcome {
    hidden: Vec<ConfigError>,
    revealed: bool,
}

impl RevealOutcome {
    /// `known`: what is at the same place elsewhere.
    fn node(&mut self, node: &mut Node, path: &str, known: &[&Value]) {
        match &mut node.tree {
            Tree::Text(text) if is_masked(text) => match real_value(text, known) {
                Some(real) => {
                    node.tree = Node::from(real).tree;
                    self.revealed = true;
                }
                None => self.hidden.push(
                    ConfigError::new(
                        path,
                        node.at.as_ref(),
                        format!("\"{MASK}\" is shown in place of a secret"),
                    )
                    .with_hint("give the secret itself"),
                ),
            },
            Tree::Map(members) => {
                for (key, member) in members {
                    let below: Vec<&Value> =
                        known.iter().filter_map(|known| known.get(key)).collect();
                    let dot = if path.is_empty() { "" } else { "." };
                    self.node(member, &format!("{path}{dot}{key}"), &below);
                }
            }
            Tree::List(items) => {
                let length = items.len();
                for (index, item) in items.iter_mut().enumerate() {
                    let below = at_the_place_of(item, index, length, known);
                    self.node(item, &format!("{path}[{index}]"), &below);
                }
            }
            Tree::Null | Tree::Bool(_) | Tree::Number(_) | Tree::Text(_) => {}
        }
    }
}

/// The items of known lists that an item of a list may be: maps of the same name, texts that are shown as this one, else
/// what has the same index. In a list of the same length the same index goes first: variables may have one name.
fn at_the_place_of<'k>(
    item: &Node,
    index: usize,
    length: usize,
    known: &[&'k Value],
) -> Vec<&'k Value> {
    let name = item.get("name").and_then(Node::text);
    known
        .iter()
        .filter_map(|known| known.as_array())
        .flat_map(|list| {
            let alike = |value: &&Value| match (name, item.text()) {
                (Some(name), _) => value["name"] == name,
                (None, Some(text)) if text != MASK => {
                    value.as_str().is_some_and(|value| is_shown_as(value, text))
                }
                _ => false,
            };
            let same_index = list.get(index).filter(|_| list.len() == length);
            if let Some(value) = same_index.filter(alike) {
                return vec![value];
            }
            let by_content: Vec<&Value> = list.iter().filter(alike).collect();
            if by_content.is_empty() && name.is_none() {
                list.get(index).into_iter().collect()
            } else {
                by_content
            }
        })
        .collect()
}

/// The one value that is shown as `text`.
fn real_value<'k>(text: &str, known: &[&'k Value]) -> Option<&'k Value> {
    let mut fitting = known.iter().copied().filter(|value| match value {
        Value::String(value) => !is_masked(value) && is_shown_as(value, text),
        Value::Bool(_) | Value::Number(_) => text == MASK,
        Value::Null | Value::Array(_) | Value::Object(_) => false,
    });
    let first = fitting.next()?;
    fitting.all(|other| other == first).then_some(first)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::experiment::{mask_document, mask_for_others};
    use crate::policies::Workload;

    fn document(value: &Value) -> SubmittedDocument {
        SubmittedDocument::from_value(Experiment, value).unwrap()
    }

    #[test]
    fn hidden_values_are_taken_from_where_they_were_hidden() {
        let parent = json!({
            "name": "p", "data": {"secrets": {"token": "t", "pin": 7, "list": ["a", "b"]}, "url": "s3://u:p@h"},
            "environment": {
                "environment_variables": ["A=1", "HF_TOKEN=x", "http_proxy=u:p@h:1"],
                "pod_spec": {"spec": {"containers": [{"name": "sidecar", "env": [{"name": "K", "value": "v"}]},
                    {"name": "determined-container", "env": [{"name": "API_KEY", "value": "k"}]}]}},
            },
            "checkpoint_storage": {"type": "s3", "bucket": "b", "access_key": "AK", "secret_key": "SK"},
        });
        let whole = document(&parent).to_value();
        for shown in [mask_document(&whole), mask_for_others(&whole)] {
            assert_ne!(shown, whole);
            let mut again = document(&shown);
            let (hidden, revealed) = again.reveal(std::slice::from_ref(&whole));
            assert_eq!(hidden, []);
            assert!(revealed);
            assert_eq!(again.to_value(), whole);
        }
    }

    #[test]
    fn every_value_that_stays_hidden_is_named() {
        let shown = json!({
            "data": {"secrets": {"token": MASK}},
            "environment": {"environment_variables": {"cpu": [format!("A={MASK}"), "B=1"]}},
            "checkpoint_storage": {"type": "s3", "bucket": "b", "secret_key": MASK},
        });
        let paths = |known: &[Value]| -> Vec<String> {
            let (hidden, _) = document(&shown).reveal(known);
            let mut paths: Vec<String> = hidden.into_iter().map(|error| error.path).collect();
            paths.sort();
            paths
        };
        let all = [
            "checkpoint_storage.secret_key",
            "data.secrets.token",
            "environment.environment_variables.cpu[0]",
        ];
        assert_eq!(paths(&[]), all);
        // Another variable at the same place, a mark that was stored itself, and values that contradict each other.
        let other = json!({"environment": {"environment_variables": {"cpu": ["C=1"]}}});
        assert_eq!(paths(&[other]), all);
        assert_eq!(paths(std::slice::from_ref(&shown)), all);
        // Variables of one name are known by their places, or not at all.
        let twice = |values: &[&str]| {
            let list: Vec<String> = values.iter().map(|value| format!("A={value}")).collect();
            json!({"environment": {"environment_variables": {"cpu": list}}})
        };
        let mut again = document(&twice(&[MASK, MASK]));
        assert_eq!(again.reveal(&[twice(&["1", "2"])]).0, []);
        assert_eq!(again.to_value(), document(&twice(&["1", "2"])).to_value());
        assert_eq!(paths(&[twice(&["1", "2", "3"])]), all);
        let one = |token: &str| json!({"data": {"secrets": {"token": token}}});
        assert_eq!(paths(&[one("x"), one("y")]), all);
        assert_eq!(paths(&[one("x"), one("x")]), [all[0], all[2]]);
    }

    #[test]
    fn a_policy_that_is_laid_over_again_changes_nothing() {
        let policies = Policies::parse(
            Workload::Experiment,
            "the cluster",
            None,
            "invariant_config:\n  max_restarts: 1\n  data: {list: [1]}\n  resources: {devices: [{host_path: /a, container_path: /b}]}\n  \
             environment: {environment_variables: [X=1], add_capabilities: [SYS_NICE]}\n",
        )
        .unwrap();
        let defaults = crate::container::TaskContainerDefaults::default();
        let defaults = crate::submitted::CompletionDefaults {
            name: "n".into(),
            experiment_seed: 1,
            checkpoint_storage: Some(json!({"type": "shared_fs", "host_path": "/tmp"})),
            task_container_defaults: &defaults,
            default_priority: None,
            managed: true,
        };
        let own = json!({
            "entrypoint": "true", "searcher": {"name": "single", "metric": "loss"}, "data": {"list": [2]},
            "resources": {"devices": [{"host_path": "/c", "container_path": "/d"}]}, "max_restarts": 5,
            "environment": {"environment_variables": ["Y=1"]},
        });
        let policies = [policies];
        let first = document(&own).under(&policies).complete(&defaults).unwrap();
        assert_eq!(first.max_restarts, 1);
        let again = SubmittedDocument::renewed(&first, &policies).unwrap();
        let again = again.under(&policies).complete(&defaults).unwrap();
        assert_eq!(again.to_json(), first.to_json());
    }

    proptest! {
        #[test]
        fn what_a_parent_has_comes_back_whole(
            variables in prop::collection::vec("(HF_TOKEN|A|B_KEY|http_proxy)=[a-z:@/]{0,8}", 0..4),
            secrets in prop::collection::btree_map("[a-z]{1,3}", "[a-z*]{1,10}", 0..4),
        ) {
            // Of several variables of one name it cannot be known which one is meant.
            let mut names: Vec<&str> = variables.iter().filter_map(|v| v.split('=').next()).collect();
            names.sort_unstable();
            names.dedup();
            prop_assume!(names.len() == variables.len());
            // The mark itself is never stored: a document with it is refused.
            prop_assume!(secrets.values().all(|secret| secret != MASK));
            let whole = document(&json!({"data": {"secrets": secrets},
                "environment": {"environment_variables": variables}})).to_value();
            for shown in [mask_document(&whole), mask_for_others(&whole)] {
                let mut again = document(&shown);
                let (hidden, _) = again.reveal(std::slice::from_ref(&whole));
                prop_assert_eq!(hidden, Vec::new());
                prop_assert_eq!(again.to_value(), whole.clone());
            }
        }
    }
}
