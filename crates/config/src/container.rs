//! What a container gets besides its command: images, variables, mounts, devices, and the cluster's defaults for them.
//! `docs/reference` lists their keys.

mod capabilities;
mod compiled_policies;
pub(crate) mod log_policies;
pub(crate) mod schema;

pub use capabilities::unknown_capability;
pub use compiled_policies::{CompiledPolicies, CompiledPolicy};
pub use log_policies::{LogPolicy, compile_patterns};
pub use schema::{Environment, KubernetesDefaults, Pbs, ProxyPort, Slurm, TaskContainerDefaults};

use std::collections::BTreeMap;

pub use det_taskspec::{BindMount, PerDevice};
use serde::{Deserialize, Serialize};

use crate::schema::{Section, fill_defaults, merge_documents};
use crate::yaml::{Node, Tree};

/// What a log policy does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogAction {
    /// The trial is not restarted again.
    CancelRetries,
    /// Later restarts avoid the node whose log matched.
    ExcludeNode,
}

/// `/dev/shm` of a task when nothing else is given, in bytes, as the schema has it: 4 GiB.
pub(crate) const DEFAULT_SHM_SIZE: &str = "4294967296";

/// [`DEFAULT_SHM_SIZE`] as a number.
pub(crate) const fn default_shm_size() -> u64 {
    match u64::from_str_radix(DEFAULT_SHM_SIZE, 10) {
        Ok(bytes) => bytes,
        Err(_) => panic!("a number of bytes"),
    }
}

/// Docker network of containers when nothing else is given.
pub const DEFAULT_NETWORK_MODE: &str = "bridge";

impl TaskContainerDefaults {
    /// Docker network of containers.
    pub fn effective_network_mode(&self) -> &str {
        self.network_mode.as_deref().unwrap_or(DEFAULT_NETWORK_MODE)
    }

    /// The image of work that names none, for each kind of slot.
    pub fn images(&self) -> PerDevice<String> {
        let images: PerDevice<String> = serde_json::from_str(schema::DEFAULT_IMAGES)
            .expect("the images of the schema are one for each kind");
        PerDevice {
            cpu: self.image.cpu.clone().unwrap_or(images.cpu),
            cuda: self.image.cuda.clone().unwrap_or(images.cuda),
            rocm: self.image.rocm.clone().unwrap_or(images.rocm),
        }
    }

    /// These defaults (of a pool) over weaker ones (of the cluster): `docs/contract/configuration.md`, "Merging".
    #[must_use]
    pub fn over(&self, weaker: &Self) -> Self {
        let merged = merge_documents(
            &schema::TASK_CONTAINER_DEFAULTS,
            self.to_node(),
            weaker.to_node(),
        );
        serde_json::from_value(merged.to_value())
            .expect("what is merged was written by this type, and merging keeps its shape")
    }

    /// These defaults as a tree that comes from no text, without what is not set.
    pub(crate) fn to_node(&self) -> Node {
        let value =
            serde_json::to_value(self).expect("maps with text keys and finite numbers are JSON");
        Node::from(&value)
            .pruned(&["cpu_pod_spec", "gpu_pod_spec", "checkpoint_gc_pod_spec"])
            .unwrap_or_else(|| Node::new(Tree::Map(BTreeMap::new())))
    }
}

/// A complete and checked document of an experiment or a task with every default.
pub(crate) fn with_defaults(mut root: Node, section: &'static Section) -> Node {
    fill_defaults(&mut root, section);
    if let Some(environment) = root.get_mut("environment") {
        schema::complete_images(environment);
    }
    root
}
