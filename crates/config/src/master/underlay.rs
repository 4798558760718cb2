//! What a master lays under the documents that are submitted to it.

use std::sync::Arc;

use serde_json::Value;

use super::MasterConfig;
use crate::container::schema::TASK_CONTAINER_DEFAULTS;
use crate::origin::{Layer, Position, Source};
use crate::schema::merge_documents;
use crate::yaml::{Node, Tree};

/// What a master brings to work in one of its pools: container defaults, checkpoint storage, a priority. Each value knows
/// where it was written, as far as that is known.
#[derive(Debug, Clone, PartialEq)]
pub struct Underlay {
    container_defaults: Node,
    checkpoint_storage: Option<Node>,
    priority: Option<Node>,
    pool: Option<Node>,
}

impl Underlay {
    /// From values that come from no text.
    pub(crate) fn new(
        container_defaults: Node,
        checkpoint_storage: Option<Node>,
        priority: Option<u8>,
    ) -> Self {
        Self {
            container_defaults,
            checkpoint_storage,
            priority: priority.map(|priority| {
                let node = Node::from(&Value::from(priority));
                relabelled(node, &Layer::PoolPriority(String::new()))
            }),
            // Callers that complete a document choose the pool themselves.
            pool: None,
        }
    }

    /// Of a master, for one of its pools. `root` is what was read, so that its places are known.
    pub(crate) fn of(root: &Node, config: &MasterConfig, pool: &str) -> Self {
        let cluster = root
            .get("task_container_defaults")
            .cloned()
            .map(|node| relabelled(node, &Layer::ClusterDefaults));
        let own = pool_named(root, pool)
            .and_then(|node| node.get("task_container_defaults"))
            .cloned()
            .map(|node| relabelled(node, &Layer::PoolDefaults(pool.to_owned())));
        let empty = || Node::new(Tree::Map(std::collections::BTreeMap::new()));
        let container_defaults = merge_documents(
            &TASK_CONTAINER_DEFAULTS,
            own.unwrap_or_else(empty),
            cluster.unwrap_or_else(empty),
        );
        let checkpoint_storage = match root.get("checkpoint_storage") {
            Some(node) => Some(relabelled(node.clone(), &Layer::CheckpointStorage)),
            None => config.checkpoint_storage_json().map(|value| {
                let node = Node::from(&value);
                relabelled(node, &Layer::CheckpointStorage)
            }),
        };
        let priority = config.resource_pool(pool).map(|pool| {
            let priority = config.effective_scheduler(pool).default_priority;
            let node = Node::from(&Value::from(priority));
            relabelled(node, &Layer::PoolPriority(pool.pool_name.clone()))
        });
        Self {
            container_defaults,
            checkpoint_storage,
            priority,
            pool: (!pool.is_empty()).then(|| {
                let node = Node::from(&Value::from(pool));
                relabelled(node, &Layer::DefaultPool)
            }),
        }
    }

    /// The same with this checkpoint storage, unless there is one already; `layer` is the layer that it comes from.
    #[must_use]
    pub fn or_storage(mut self, storage: &Value, layer: &Layer) -> Self {
        self.checkpoint_storage
            .get_or_insert_with(|| relabelled(Node::from(storage), layer));
        self
    }

    /// The same with its pool not chosen by the master.
    #[must_use]
    pub fn pool_chosen_by(mut self, source: Source) -> Self {
        if let Some(pool) = &mut self.pool {
            let source = Arc::new(source);
            pool.each_place(&mut |at| at.source = Some(Arc::clone(&source)));
        }
        self
    }

    /// The pool's defaults over the cluster's.
    pub(crate) fn container_defaults(&self) -> &Node {
        &self.container_defaults
    }

    /// The layer with the checkpoint storage.
    pub(crate) fn storage_layer(&self) -> Option<Node> {
        at_path("checkpoint_storage", self.checkpoint_storage.clone()?)
    }

    /// The layers with the default priority and the pool.
    pub(crate) fn pool_layers(&self) -> impl Iterator<Item = Node> + use<> {
        let layer = |path: &str, node: &Option<Node>| at_path(path, node.clone()?);
        [
            layer("resources.priority", &self.priority),
            layer("resources.resource_pool", &self.pool),
        ]
        .into_iter()
        .flatten()
    }
}

impl MasterConfig {
    /// What this master lays under work in a pool.
    pub fn underlay(&self, pool: &str) -> Underlay {
        // The configuration in its normal form takes the place of what was read: its places are not known.
        let value =
            serde_json::to_value(self).expect("maps with text keys and finite numbers are JSON");
        let root = Node::from(&value)
            .pruned(&["cpu_pod_spec", "gpu_pod_spec", "checkpoint_gc_pod_spec"])
            .unwrap_or_else(|| Node::new(Tree::Null));
        Underlay::of(&root, self, pool)
    }
}

fn at_path(path: &str, node: Node) -> Option<Node> {
    let node = node.pruned(&[])?;
    let mut layer = Node::new(Tree::Null);
    layer.put(path, node);
    Some(layer)
}

/// The pool of this name, of the main manager or of an additional one.
pub(super) fn pool_named<'n>(root: &'n Node, name: &str) -> Option<&'n Node> {
    fn list<'n>(node: &'n Node, key: &str) -> &'n [Node] {
        match node.get(key).map(|node| &node.tree) {
            Some(Tree::List(items)) => items,
            _ => &[],
        }
    }
    std::iter::once(root)
        .chain(list(root, "additional_resource_managers"))
        .flat_map(|manager| list(manager, "resource_pools"))
        .find(|pool| pool.get("pool_name").and_then(Node::text) == Some(name))
}

/// The same values as part of a layer; files, variables and flags keep their names.
fn relabelled(mut node: Node, layer: &Layer) -> Node {
    node.each_place(&mut |at: &mut Position| {
        let name = at
            .source
            .as_ref()
            .map_or_else(String::new, |source| source.name.clone());
        at.source = Some(Arc::new(Source::of(layer.clone(), name)));
    });
    node
}
