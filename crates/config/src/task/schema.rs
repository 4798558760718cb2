//! The keys of a task; `docs/reference/task-configuration.md` is made from them.

use serde_json::json;

use crate::container::schema::{BIND_MOUNTS, BYTE_SIZE, DEVICES, ENVIRONMENT, PBS, SLURM, mounts};
use crate::schema::{
    Checker, Document, Kind, Merge, NATURAL_32, Section, Special, field, section, special,
};
use crate::yaml::{Node, Tree};

pub(crate) static DOCUMENT: Document = Document {
    root: &TASK,
    places: PLACES,
    slots_key: "resources.slots",
    translate: super::checks::translate,
};

static TASK: Section = section(&[
    field("description", Kind::Text, "Display name; generated unless given"),
    field(
        "entrypoint",
        Kind::Special(&ENTRYPOINT),
        "Program with its arguments; for commands and generic tasks",
    )
    .or("[]")
    .merged(Merge::Replace),
    field(
        "environment",
        Kind::Section(&ENVIRONMENT),
        "Images, variables, ports",
    )
    .or("{}"),
    field(
        "resources",
        Kind::Section(&RESOURCES),
        "What the task needs to run",
    )
    .or("{}"),
    field("bind_mounts", BIND_MOUNTS, "Host directories")
        .or("[]")
        .merged(Merge::NewBy("container_path")),
    field(
        "work_dir",
        Kind::Text,
        "Working directory; `$AGENT_USER` and `$DET_USER` are replaced. Not together with files that come along",
    )
    .clears(),
    field(
        "tensorboard_args",
        Kind::List(&Kind::Text),
        "Further options of TensorBoard",
    )
    .or("[]")
    .merged(Merge::Replace),
    field(
        "inherit_mounts",
        Kind::Bool,
        "Whether a TensorBoard gets the host directories and pods of its experiments",
    )
    .or("false"),
    field(
        "idle_timeout",
        Kind::Duration,
        "How long a notebook or TensorBoard may be idle; `0s` = for ever",
    )
    .clears(),
    field(
        "notebook_idle_type",
        Kind::Choice(&["kernels_or_terminals", "kernel_connections", "activity"]),
        "What keeps a notebook from being idle",
    )
    .or("\"kernels_or_terminals\""),
    field("debug", Kind::Bool, "Verbose scripts of the task").or("false"),
    field("slurm", Kind::Section(&SLURM), "Options of Slurm").or("{}").kept(),
    field("pbs", Kind::Section(&PBS), "Options of PBS").or("{}").kept(),
    field(
        "preemption_timeout",
        NATURAL_32,
        "Seconds that a preempted generic task has to stop",
    )
    .or("3600"),
])
.check(mounts);

static RESOURCES: Section = section(&[
    field(
        "slots",
        NATURAL_32,
        "Slots; 1 unless given, 0 for TensorBoards",
    ),
    field(
        "max_slots",
        NATURAL_32,
        "Compared with what policies allow, nothing else",
    ),
    field(
        "weight",
        Kind::Above(0.0),
        "Weight of the task in fair share",
    )
    .or("1"),
    field(
        "priority",
        Kind::Int(1, 99),
        "On agents lower numbers go first, on Kubernetes higher ones; the pool's unless given",
    ),
    field(
        "resource_pool",
        Kind::Text,
        "Pool; without one the cluster's default for such tasks",
    )
    .or("\"\""),
    field(
        "is_single_node",
        Kind::Bool,
        "Whether all slots of a generic task must be on one agent; yes unless given",
    ),
    field("shm_size", Kind::Special(&BYTE_SIZE), "Size of `/dev/shm`").built_in("4294967296"),
    field("devices", DEVICES, "Host devices")
        .or("[]")
        .merged(Merge::NewBy("container_path")),
    field("native_parallel", Kind::Bool, "Older key")
        .or("false")
        .warn("is ignored"),
    field("agent_label", Kind::Any, "Older key").warn("is ignored; use resource pools"),
]);

/// Keys that people put in the wrong place, and where they belong.
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
fn entrypoint(checker: &mut Checker, node: &mut Node) {
    match &node.tree {
        Tree::Text(text) => {
            let words = ["/bin/sh", "-c", text].map(|word| Node {
                tree: Tree::Text(word.to_owned()),
                at: node.at.clone(),
            });
            checker.warn(
                node.at.as_ref(),
                "is a list; the one string is read as a command line of /bin/sh",
            );
            node.tree = Tree::List(words.into());
        }
        _ => checker.value(node, Kind::List(&Kind::Text)),
    }
}
