//! The keys of a task; `docs/reference/task-configuration.md` is made from them.

use crate::container::{BindMount, DEFAULT_SHM_SIZE, Environment, Pbs, Slurm, default_shm_size};
use det_taskspec::{DeviceMapping, NotebookIdleType};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::container::schema::{BIND_MOUNTS, BYTE_SIZE, DEVICES, ENVIRONMENT, PBS, SLURM, mounts};
use crate::schema::{Document, Kind, Merge, NATURAL_32, Special, Walk, keys, special};
use crate::yaml::{Node, Tree};

pub(crate) static DOCUMENT: Document = Document {
    root: &TASK,
    places: PLACES,
    slots_key: "resources.slots",
    translate: super::checks::translate,
};

keys! {
    /// Everything a task runs with. Later changes of templates, pools or the master do not change it.
    #[derive(Clone, PartialEq, Serialize, Deserialize)]
    pub struct TaskConfig, TASK {
        /// Display name; generated unless given.
        description: String = Kind::Text;
        /// Program with its arguments; for commands and generic tasks.
        entrypoint: Vec<String> = Kind::Special(&ENTRYPOINT), or("[]"), merged(Merge::Replace);
        /// Container image, environment variables and ports of the task.
        environment: Environment = Kind::Section(&ENVIRONMENT), or("{}");
        /// What the task needs to run.
        resources: TaskResources = Kind::Section(&RESOURCES), or("{}");
        /// Directories of the host that are mounted into the task's container.
        bind_mounts: Vec<BindMount> = BIND_MOUNTS, or("[]"), merged(Merge::NewBy("container_path"));
        /// Working directory; `$AGENT_USER` and `$DET_USER` are replaced. Not together with files that come along.
        #[serde(default)]
        work_dir: Option<String> = Kind::Text, clears;
        /// Further command-line options of the `tensorboard` program, one a list element.
        tensorboard_args: Vec<String> = Kind::List(&Kind::Text), or("[]"), merged(Merge::Replace);
        /// Whether a TensorBoard gets the host directories and pods of its experiments.
        #[serde(default)]
        inherit_mounts: bool = Kind::Bool, or("false");
        /// How long a notebook or TensorBoard may be idle; `0s` = for ever.
        #[serde(default)]
        idle_timeout: Option<String> = Kind::Duration, clears;
        /// What keeps a notebook from being idle.
        notebook_idle_type: NotebookIdleType = Kind::Choice(&["kernels_or_terminals", "kernel_connections", "activity"]),
            or("\"kernels_or_terminals\"");
        /// How long a kernel of a notebook may execute nothing until it is shut down, also while a page is connected to it.
        /// Unless given, or with `0s`, kernels stay.
        #[serde(default)]
        kernel_idle_timeout: Option<String> = Kind::Duration, clears;
        /// Whether the scripts of the task log in detail.
        debug: bool = Kind::Bool, or("false");
        /// What is measured of the task.
        #[serde(default)]
        profiling: TaskProfiling = Kind::Section(&TASK_PROFILING), or("{}");
        /// Options for clusters that Slurm schedules.
        slurm: Slurm = Kind::Section(&SLURM), or("{}"), kept;
        /// Options for clusters that PBS schedules.
        pbs: Pbs = Kind::Section(&PBS), or("{}"), kept;
        /// Seconds that the code of a generic task or a command has to save and exit once it was asked to.
        preemption_timeout: u32 = NATURAL_32, or("3600");
        /// Whether more important work may take the task's slots, after which it is started again, and whether it can be
        /// paused. Unless given, that holds for generic tasks only.
        #[serde(default)]
        preemptible: Option<bool> = Kind::Bool;
    }
    with check(mounts)
}

keys! {
    /// What is measured of a task.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub struct TaskProfiling, TASK_PROFILING {
        /// Whether the supervisor reports what the task uses of processors, memory, disks, network and GPUs.
        enabled: bool = Kind::Bool, or("false");
    }
}

keys! {
    /// What a task needs to run.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct TaskResources, RESOURCES {
        /// Slots; 1 unless given, 0 for a TensorBoard.
        slots: u32 = NATURAL_32;
        /// Compared with what policies allow, nothing else.
        max_slots: Option<u32> = NATURAL_32;
        /// Weight of the task in fair share.
        #[serde(serialize_with = "crate::space::short_number")]
        weight: f64 = Kind::Above(0.0), or("1");
        /// On agents lower numbers go first, on Kubernetes higher ones; the pool's unless given.
        priority: Option<u8> = Kind::Int(1, 99);
        /// Pool; without one the cluster's default for such tasks.
        resource_pool: String = Kind::Text, or("\"\"");
        /// Whether all slots of a generic task must be on one agent; yes unless given.
        is_single_node: Option<bool> = Kind::Bool;
        /// Size of `/dev/shm` in bytes, or as text with a unit such as `2G`.
        #[serde(default = "default_shm_size")]
        shm_size: u64 = Kind::Special(&BYTE_SIZE), built_in(DEFAULT_SHM_SIZE);
        /// Devices of the host that the task may use.
        devices: Vec<DeviceMapping> = DEVICES, or("[]"), merged(Merge::NewBy("container_path"));
        /// Key of old versions, without effect.
        #[serde(default)]
        native_parallel: bool = Kind::Bool, or("false"), warn("is ignored");
    }
    without field {
        /// Label of the agents to run on, before version 0.20.0.
        agent_label = Kind::Any, warn("is ignored; use resource pools");
    }
}

/// Keys that users put in the wrong place, and where they belong.
const PLACES: &[(&str, &str)] = &[
    ("slots", "resources.slots"),
    ("slots_per_trial", "resources.slots"),
    ("max_slots", "resources.max_slots"),
    ("priority", "resources.priority"),
    ("weight", "resources.weight"),
    ("resource_pool", "resources.resource_pool"),
    ("shm_size", "resources.shm_size"),
    ("image", "environment.image"),
    ("environment_variables", "environment.environment_variables"),
    (".env", "environment.environment_variables"),
    ("registry_auth", "environment.registry_auth"),
    ("force_pull_image", "environment.force_pull_image"),
    ("pod_spec", "environment.pod_spec"),
    (".kubernetes", "environment.pod_spec"),
    ("environment.pod_spec.resources", "resources"),
    (".volumes", "bind_mounts"),
    (".name", "description"),
];

static ENTRYPOINT: Special = special(
    "list of strings",
    || {
        json!({"anyOf": [
            {"type": "array", "items": {"type": "string"}},
            {"type": "string"},
        ]})
    },
    entrypoint,
);

/// A list of strings; one string is a command line for a shell.
fn entrypoint(walk: &mut Walk, node: &mut Node) {
    match &node.tree {
        Tree::Text(text) => {
            let words = ["/bin/sh", "-c", text].map(|word| Node {
                tree: Tree::Text(word.to_owned()),
                at: node.at.clone(),
            });
            walk.findings.warn(
                node.at.as_ref(),
                "is a list; the one string is read as a command line of /bin/sh",
            );
            node.tree = Tree::List(words.into());
        }
        _ => walk.value(node, Kind::List(&Kind::Text)),
    }
}
