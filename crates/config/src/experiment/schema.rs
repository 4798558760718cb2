//! The keys of an experiment; `docs/reference/experiment-configuration.md` is made from them.

mod searcher;

use serde_json::json;

use crate::container::log_policies::LOG_POLICIES;
use crate::container::schema::{BIND_MOUNTS, BYTE_SIZE, DEVICES, ENVIRONMENT, PBS, SLURM};
use crate::errors::ErrorCode;
use crate::schema::{
    Checker, Document, Kind, Merge, NATURAL, NATURAL_32, OldKey, POSITIVE, POSITIVE_32, REAL_PORT,
    Section, Special, field, section, special, text_by,
};
use crate::storage::STORAGE;
use crate::yaml::{Node, Tree};

use searcher::LENGTH;
pub(super) use searcher::SEARCHER;

const OLD_LOOP: &str =
    "is deprecated; it drives the training loop of old trial classes and nothing else";

pub(crate) static DOCUMENT: Document = Document {
    root: &EXPERIMENT,
    places: PLACES,
    slots_key: "resources.slots_per_trial",
    translate: super::legacy::translate,
};

pub(crate) static EXPERIMENT: Section = section(&[
    field(
        "name",
        Kind::Special(&NOT_BLANK),
        "Display name; generated unless given",
    )
    .finally(),
    field("description", Kind::Text, "Free text"),
    field("labels", Kind::Special(&LABELS), "Tags, a set")
        .or("[]")
        .merged(Merge::Set),
    field(
        "workspace",
        Kind::Text,
        "Workspace by name, always together with `project`",
    )
    .or("\"\""),
    field(
        "project",
        Kind::Text,
        "Project by name, always together with `workspace`",
    )
    .or("\"\""),
    field(
        "data",
        Kind::AnyMap,
        "Passed to training code as it is; what is below `secrets` is hidden wherever it is shown",
    )
    .or("{}")
    .merged(Merge::Free),
    field(
        "entrypoint",
        Kind::Special(&ENTRYPOINT),
        "What to run: a command line for a shell, or a program with its arguments",
    )
    .merged(Merge::Replace),
    field("debug", Kind::Bool, "Verbose log of the task").or("false"),
    field(
        "max_restarts",
        NATURAL_32,
        "Restarts allowed for each trial after failures",
    )
    .or("5"),
    field(
        "log_policies",
        LOG_POLICIES,
        "Reactions to lines of the log",
    )
    .or("[]")
    .merged(Merge::LogPolicies),
    field(
        "retention_policy",
        Kind::Section(&RETENTION),
        "How long logs are kept",
    ),
    field(
        "perform_initial_validation",
        Kind::Bool,
        "Validate before the first training step",
    )
    .or("false"),
    field(
        "checkpoint_policy",
        Kind::Choice(&["best", "all", "none"]),
        "When a validation leads to a checkpoint",
    )
    .or("\"best\""),
    field(
        "checkpoint_storage",
        Kind::Union(&STORAGE),
        "Where checkpoints are kept and how many; the cluster's unless given",
    )
    .finally(),
    field(
        "hyperparameters",
        Kind::Special(&crate::space::SPACE),
        "The space that is searched",
    )
    .or("{}")
    .merged(Merge::Space),
    field(
        "searcher",
        Kind::Union(&SEARCHER),
        "How the space is searched",
    )
    .finally(),
    field(
        "resources",
        Kind::Section(&RESOURCES),
        "What a trial needs to run",
    )
    .or("{}"),
    field(
        "bind_mounts",
        BIND_MOUNTS,
        "Host directories of every trial",
    )
    .or("[]")
    .merged(Merge::NewBy("container_path")),
    field(
        "environment",
        Kind::Section(&ENVIRONMENT),
        "Images, variables, ports",
    )
    .or("{}"),
    field(
        "preemption_timeout",
        NATURAL_32,
        "Seconds that a preempted trial has to save and stop",
    )
    .or("3600"),
    field("reproducibility", Kind::Section(&REPRODUCIBILITY), "Seeds").or("{}"),
    field("profiling", Kind::Section(&PROFILING), "System metrics").or("{}"),
    field(
        "integrations",
        Kind::Section(&INTEGRATIONS),
        "Webhooks and data lineage",
    )
    .kept(),
    field(
        "optimizations",
        Kind::Section(&OPTIMIZATIONS),
        "Knobs of old trial classes",
    )
    .or("{}")
    .warn(OLD_LOOP),
    field("slurm", Kind::Section(&SLURM), "Options of Slurm")
        .or("{}")
        .kept(),
    field("pbs", Kind::Section(&PBS), "Options of PBS")
        .or("{}")
        .kept(),
    field(
        "min_validation_period",
        Kind::Special(&LENGTH),
        "At least one validation in each such stretch",
    )
    .or("{\"batches\": 0}")
    .merged(Merge::Replace)
    .warn(OLD_LOOP),
    field(
        "min_checkpoint_period",
        Kind::Special(&LENGTH),
        "At least one checkpoint in each such stretch",
    )
    .or("{\"batches\": 0}")
    .merged(Merge::Replace)
    .warn(OLD_LOOP),
    field(
        "scheduling_unit",
        POSITIVE_32,
        "Batches between two reports",
    )
    .or("100")
    .warn(OLD_LOOP),
    field("records_per_epoch", NATURAL, "Records of an epoch")
        .or("0")
        .warn(OLD_LOOP),
    field("security", Kind::Section(&OLD_SECURITY), "Older key").warn("is ignored"),
    field(
        "tensorboard_storage",
        Kind::Special(&TENSORBOARD_STORAGE),
        "Older key",
    )
    .warn("is ignored; \"checkpoint_storage\" holds TensorBoard data as well"),
    field("data_layer", Kind::Any, "Older key").warn("is ignored"),
])
.old(&[
    OldKey {
        name: "version",
        about: "Version of the schema; only 0 exists",
        json: "{\"enum\": [0, null]}",
    },
    OldKey {
        name: "internal",
        about: "Removed; only null is taken",
        json: "{\"type\": \"null\"}",
    },
    OldKey {
        name: "batches_per_step",
        about: "Batches of a step, beside `searcher.max_steps`",
        json: "{\"type\": [\"integer\", \"null\"], \"minimum\": 1}",
    },
])
.check(super::checks::document);

static OLD_SECURITY: Section = section(&[field("kerberos", Kind::Section(&KERBEROS), "Older key")]);

static KERBEROS: Section = section(&[field("config_file", Kind::Text, "Older key").always()]);

static RETENTION: Section = section(&[field(
    "log_retention_days",
    Kind::Int(-1, 32_767),
    "Days after the end of a task; -1 = for ever, 0 = until the next sweep",
)
.finally()]);

static RESOURCES: Section = section(&[
    field(
        "slots_per_trial",
        NATURAL_32,
        "Slots of each trial; 0 = processors only, in the pool for auxiliary tasks",
    )
    .or("1"),
    field(
        "max_slots",
        NATURAL_32,
        "Most slots of the whole experiment at once; without one there is no limit",
    ),
    field(
        "weight",
        Kind::Above(0.0),
        "Weight of the experiment in fair share",
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
        "Pool; without one the cluster's default for such trials",
    )
    .or("\"\""),
    field(
        "resource_pools",
        Kind::List(&Kind::Text),
        "Pools to try in order, instead of `resource_pool`",
    )
    .or("[]"),
    field(
        "resource_pool_wait",
        NATURAL_32,
        "Seconds to wait in each of `resource_pools` before the next one counts as well; 600 unless given",
    ),
    field(
        "is_single_node",
        Kind::Bool,
        "Whether all slots of a trial must be on one agent",
    ),
    field("shm_size", Kind::Special(&BYTE_SIZE), "Size of `/dev/shm`").built_in("4294967296"),
    field("devices", DEVICES, "Host devices")
        .or("[]")
        .merged(Merge::NewBy("container_path")),
    field("native_parallel", Kind::Bool, "Older key")
        .or("false")
        .warn("is ignored"),
    field("agent_label", Kind::Any, "Older key").warn("is ignored; use resource pools"),
])
.check(super::checks::resources);

static REPRODUCIBILITY: Section = section(&[field(
    "experiment_seed",
    NATURAL_32,
    "Seeds the search and through it every trial; the time of submission unless given",
)
.finally()])
.check(super::checks::reproducibility);

static PROFILING: Section = section(&[
    field(
        "enabled",
        Kind::Bool,
        "Whether system metrics are collected",
    )
    .or("false")
    .kept(),
    field(
        "begin_on_batch",
        NATURAL,
        "First batch, for old trial classes",
    )
    .or("0"),
    field(
        "end_after_batch",
        NATURAL,
        "Last batch, for old trial classes",
    ),
    field(
        "sync_timings",
        Kind::Bool,
        "Wait for the device before taking times, for old trial classes",
    )
    .or("true"),
])
.check(super::checks::profiling);

static OPTIMIZATIONS: Section = section(&[
    field(
        "aggregation_frequency",
        POSITIVE,
        "Batches between two exchanges of gradients",
    )
    .or("1"),
    field(
        "average_aggregated_gradients",
        Kind::Bool,
        "Average gradients instead of adding them",
    )
    .or("true"),
    field(
        "average_training_metrics",
        Kind::Bool,
        "Average training metrics over slots",
    )
    .or("true"),
    field(
        "gradient_compression",
        Kind::Bool,
        "Compress gradients to half precision",
    )
    .or("false"),
    field(
        "grad_updates_size_file",
        Kind::Text,
        "File of update sizes for tensor fusion",
    ),
    field(
        "mixed_precision",
        Kind::Choice(&["O0", "O1", "O2", "O3"]),
        "Level of mixed precision",
    )
    .or("\"O0\""),
    field(
        "tensor_fusion_threshold",
        NATURAL,
        "Megabytes of a fused tensor",
    )
    .or("64"),
    field(
        "tensor_fusion_cycle_time",
        NATURAL,
        "Milliseconds between two fusions",
    )
    .or("1"),
    field(
        "auto_tune_tensor_fusion",
        Kind::Bool,
        "Tune the two above while training",
    )
    .or("false"),
]);

static INTEGRATIONS: Section = section(&[
    field("webhooks", Kind::Section(&WEBHOOKS), "Which webhooks fire"),
    field(
        "pachyderm",
        Kind::Section(&PACHYDERM),
        "Record of where the data came from",
    ),
]);

static WEBHOOKS: Section = section(&[
    field(
        "webhook_id",
        Kind::List(&POSITIVE),
        "Only these webhooks fire, by number",
    ),
    field(
        "webhook_name",
        Kind::List(&Kind::Text),
        "Only these webhooks fire, by name",
    ),
    field("exclude", Kind::Bool, "No webhook fires").or("false"),
]);

static PACHYDERM: Section = section(&[
    field("pachd", Kind::Section(&PACHD), "Server"),
    field(
        "proxy",
        Kind::Section(&PACHYDERM_PROXY),
        "Address for people",
    ),
    field(
        "dataset",
        Kind::Section(&PACHYDERM_DATASET),
        "Version of the data",
    ),
]);

static PACHD: Section = section(&[
    field("host", Kind::Text, "Host of the server").always(),
    field("port", REAL_PORT, "Port of the server").always(),
]);

static PACHYDERM_PROXY: Section = section(&[
    field("scheme", Kind::Text, "Scheme of the address").always(),
    field("host", Kind::Text, "Host of the address").always(),
    field("port", REAL_PORT, "Port of the address").always(),
]);

static PACHYDERM_DATASET: Section = section(&[
    field("project", Kind::Text, "Project of the data").always(),
    field("repo", Kind::Text, "Repository of the data").always(),
    field("commit", Kind::Text, "Commit of the data").always(),
    field("branch", Kind::Text, "Branch of the data").always(),
    field("token", Kind::Text, "Secret that reads the data")
        .always()
        .secret(),
]);

/// Keys that people put in the wrong place, and where they belong.
const PLACES: &[(&str, &str)] = &[
    ("slots", "resources.slots_per_trial"),
    ("slots_per_trial", "resources.slots_per_trial"),
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
    ("environment.pod_spec.resources", "resources"),
    ("seed", "reproducibility.experiment_seed"),
    ("experiment_seed", "reproducibility.experiment_seed"),
    ("hparams", "hyperparameters"),
    (".volumes", "bind_mounts"),
    ("log_retention_days", "retention_policy.log_retention_days"),
];

static NOT_BLANK: Special = text_by(
    "string, not blank",
    || json!({"type": "string", "pattern": r"\S"}),
    not_blank,
);

static LABELS: Special = special(
    "list of strings; older: map of `label: true`",
    || {
        json!({"anyOf": [
            {"type": "array", "items": {"type": "string"}},
            {"type": "object", "additionalProperties": {"type": ["boolean", "null"]}},
        ]})
    },
    labels,
);

fn labels(checker: &mut Checker, node: &mut Node) {
    checker.value(node, Kind::List(&Kind::Text));
}

static ENTRYPOINT: Special = special(
    "command line, or list of strings",
    || {
        json!({"anyOf": [
            {"type": "string", "pattern": r"\S"},
            {"type": "array", "items": {"type": "string"}, "minItems": 1},
        ]})
    },
    entrypoint,
);

static TENSORBOARD_STORAGE: Special = special(
    "map that looks like storage",
    || {
        json!({
            "type": "object",
            "properties": {
                "type": {"enum": ["shared_fs", "s3", "gcs"]},
                "save_experiment_best": false,
                "save_trial_best": false,
                "save_trial_latest": false,
            },
            "required": ["type"],
        })
    },
    tensorboard_storage,
);

fn not_blank(checker: &mut Checker, node: &mut Node) {
    match node.text() {
        Some(text) if text.trim().is_empty() => {
            checker.error(node.at.as_ref(), "must not be blank");
        }
        Some(_) => {}
        None => checker.value(node, Kind::Text),
    }
}

fn entrypoint(checker: &mut Checker, node: &mut Node) {
    let at = node.at.clone();
    match &node.tree {
        Tree::Text(text) if text.trim().is_empty() => {
            checker.error(at.as_ref(), "must not be empty");
        }
        Tree::Text(_) => {}
        Tree::List(items) if items.is_empty() => checker.error(at.as_ref(), "must not be empty"),
        Tree::List(_) => checker.value(node, Kind::List(&Kind::Text)),
        _ => checker.mismatch(node, "a command line or a list of strings"),
    }
}

/// Dead since long ago; must still look like storage.
fn tensorboard_storage(checker: &mut Checker, node: &mut Node) {
    if node.members().is_none() {
        return checker.value(node, Kind::AnyMap);
    }
    for key in [
        "save_experiment_best",
        "save_trial_best",
        "save_trial_latest",
    ] {
        if let Some(member) = node.get(key) {
            checker.error_in(
                key,
                member.at.as_ref(),
                ErrorCode::UnknownKey.message("is not a key of TensorBoard storage"),
            );
        }
    }
    let kind = node.get("type");
    if !matches!(kind.and_then(Node::text), Some("shared_fs" | "s3" | "gcs")) {
        let at = kind.and_then(|kind| kind.at.clone());
        checker.error_in(
            "type",
            at.as_ref(),
            ErrorCode::NotOneOf.message("must be one of \"shared_fs\", \"s3\", \"gcs\""),
        );
    }
}
