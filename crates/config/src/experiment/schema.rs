//! The keys of an experiment; `docs/reference/experiment-configuration.md` is made from them.

mod searcher;

use super::searcher::Searcher;
use super::types::{CheckpointPolicy, Entrypoint, Length};
use crate::container::{
    BindMount, DEFAULT_SHM_SIZE, Environment, LogPolicy, Pbs, Slurm, default_shm_size,
};
use crate::hyperparameters::Space;
use crate::storage::CheckpointStorage;
use det_taskspec::DeviceMapping;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

use crate::container::log_policies::LOG_POLICIES;
use crate::container::schema::{
    BIND_MOUNTS, BYTE_SIZE, DEVICES, ENVIRONMENT, PBS, SILENCE_TIMEOUT, SLURM,
};
use crate::errors::ErrorCode;
use crate::schema::{
    Document, Kind, Merge, NATURAL, NATURAL_32, OldKey, POSITIVE, POSITIVE_32, REAL_PORT, Section,
    Special, Walk, field, keys, section, special, text_by,
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

keys! {
    /// Everything an experiment runs with. Later changes of templates, pools or the master do not change it.
    #[derive(Clone, PartialEq, Serialize, Deserialize)]
    pub struct ExperimentConfig, EXPERIMENT {
        /// Display name; generated unless given.
        name: String = Kind::Special(&NOT_BLANK), finally;
        /// Description for users, any text.
        description: Option<String> = Kind::Text;
        /// Tags for finding it; repeated ones count once.
        labels: Vec<String> = Kind::Special(&LABELS), or("[]"), merged(Merge::Set);
        /// Workspace by name, always together with `project`.
        workspace: String = Kind::Text, or("\"\"");
        /// Project by name, always together with `workspace`.
        project: String = Kind::Text, or("\"\"");
        /// Passed to training code as it is; what is below `secrets` is hidden wherever it is shown.
        data: Map<String, Value> = Kind::AnyMap, or("{}"), merged(Merge::Free);
        /// What to run: a command line for a shell, or a program with its arguments.
        entrypoint: Option<Entrypoint> = Kind::Special(&ENTRYPOINT), merged(Merge::Replace);
        /// Verbose log of the task.
        debug: bool = Kind::Bool, or("false");
        /// Restarts allowed for each trial after failures.
        max_restarts: u32 = NATURAL_32, or("5");
        /// Reactions to lines of the log.
        log_policies: Vec<LogPolicy> = LOG_POLICIES, or("[]"), merged(Merge::LogPolicies);
        /// How long logs are kept.
        retention_policy: Option<RetentionPolicy> = Kind::Section(&RETENTION);
        /// Validate before the first training step.
        perform_initial_validation: bool = Kind::Bool, or("false");
        /// When a validation leads to a checkpoint.
        checkpoint_policy: CheckpointPolicy = Kind::Choice(&["best", "all", "none"]), or("\"best\"");
        /// Where checkpoints are kept and how many; the cluster's unless given.
        checkpoint_storage: CheckpointStorage = Kind::Union(&STORAGE), finally;
        /// The space that is searched.
        #[serde(with = "crate::space::as_json")]
        hyperparameters: Space = Kind::Special(&crate::space::SPACE), or("{}"), merged(Merge::Space);
        /// How the space is searched.
        searcher: Searcher = Kind::Union(&SEARCHER), finally;
        /// What a trial needs to run.
        resources: Resources = Kind::Section(&RESOURCES), or("{}");
        /// Host directories of every trial.
        bind_mounts: Vec<BindMount> = BIND_MOUNTS, or("[]"), merged(Merge::NewBy("container_path"));
        /// Container image, environment variables and ports of its tasks.
        environment: Environment = Kind::Section(&ENVIRONMENT), or("{}");
        /// Seconds that a preempted trial has to save and stop.
        preemption_timeout: u32 = NATURAL_32, or("3600");
        /// How long a running trial may report nothing and write nothing into its log before its processes are looked at, and
        /// its log names the rank that hangs; `0s` = for ever. Unless given, as the master has it.
        #[serde(default)]
        silence_timeout: Option<String> = Kind::Special(&SILENCE_TIMEOUT);
        /// Seeds of the random numbers.
        reproducibility: Reproducibility = Kind::Section(&REPRODUCIBILITY), or("{}");
        /// Whether and how the use of processors, memory and GPUs is reported.
        profiling: Profiling = Kind::Section(&PROFILING), or("{}");
        /// Webhooks that are called for it, and where its data come from.
        integrations: Option<Integrations> = Kind::Section(&INTEGRATIONS), kept;
        /// Knobs of old trial classes.
        optimizations: Optimizations = Kind::Section(&OPTIMIZATIONS), or("{}"), warn(OLD_LOOP);
        /// Options for clusters that Slurm schedules.
        slurm: Slurm = Kind::Section(&SLURM), or("{}"), kept;
        /// Options for clusters that PBS schedules.
        pbs: Pbs = Kind::Section(&PBS), or("{}"), kept;
        /// At least one validation in each such stretch.
        min_validation_period: Length = Kind::Special(&LENGTH),
            or("{\"batches\": 0}"), merged(Merge::Replace), warn(OLD_LOOP);
        /// At least one checkpoint in each such stretch.
        min_checkpoint_period: Length = Kind::Special(&LENGTH),
            or("{\"batches\": 0}"), merged(Merge::Replace), warn(OLD_LOOP);
        /// Batches of training between two reports of metrics.
        scheduling_unit: u32 = POSITIVE_32, or("100"), warn(OLD_LOOP);
        /// Number of records in an epoch, for lengths in `epochs`; 0 = not given.
        records_per_epoch: u64 = NATURAL, or("0"), warn(OLD_LOOP);
    }
    without field {
        /// Kerberos settings, in old versions.
        security = Kind::Section(&OLD_SECURITY), warn("is ignored");
        /// Storage of TensorBoard data, in old versions.
        tensorboard_storage = Kind::Special(&TENSORBOARD_STORAGE),
            warn("is ignored; \"checkpoint_storage\" holds TensorBoard data as well");
        /// Key of versions before 0.19.10, without effect.
        data_layer = Kind::Any, warn("is ignored");
    }
    with old(&[
        OldKey {
            name: "version",
            about: "Version of the schema; only 0 exists",
            json: "{\"enum\": [0, null]}",
        },
        OldKey {
            name: "internal",
            about: "Settings of the system itself, in old versions; only null is taken",
            json: "{\"type\": \"null\"}",
        },
        OldKey {
            name: "batches_per_step",
            about: "Batches of a step, beside `searcher.max_steps`",
            json: "{\"type\": [\"integer\", \"null\"], \"minimum\": 1}",
        },
    ]).check(super::checks::document)
}

static OLD_SECURITY: Section = section(&[field(
    "kerberos",
    Kind::Section(&KERBEROS),
    "Kerberos settings, in old versions",
)]);

static KERBEROS: Section = section(&[field(
    "config_file",
    Kind::Text,
    "File with the Kerberos configuration, in old versions",
)
.always()]);

keys! {
    /// How long logs are kept.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    pub struct RetentionPolicy, RETENTION {
        /// Days after the end of a task; -1 = for ever, 0 = until the next sweep.
        log_retention_days: i16 = Kind::Int(-1, 32_767), finally;
    }
}

keys! {
    /// What a trial needs to run.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct Resources, RESOURCES {
        /// Slots of each trial; 0 = processors only, in the pool for auxiliary tasks.
        slots_per_trial: u32 = NATURAL_32, or("1");
        /// Most slots of the whole experiment at once; without one there is no limit.
        max_slots: Option<u32> = NATURAL_32;
        /// Weight of the experiment in fair share.
        #[serde(serialize_with = "crate::space::short_number")]
        weight: f64 = Kind::Above(0.0), or("1");
        /// On agents lower numbers go first, on Kubernetes higher ones; the pool's unless given.
        priority: Option<u8> = Kind::Int(1, 99);
        /// Pool; without one the cluster's default for such trials.
        resource_pool: String = Kind::Text, or("\"\"");
        /// Pools to try in order, instead of `resource_pool`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        resource_pools: Vec<String> = Kind::List(&Kind::Text), or("[]");
        /// Seconds to wait in each of `resource_pools` before the next one counts as well; 600 unless given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resource_pool_wait: Option<u32> = NATURAL_32;
        /// Whether all slots of a trial must be on one agent.
        is_single_node: Option<bool> = Kind::Bool;
        /// Size of `/dev/shm` in bytes, or as text with a unit such as `2G`.
        #[serde(default = "default_shm_size")]
        shm_size: u64 = Kind::Special(&BYTE_SIZE), built_in(DEFAULT_SHM_SIZE);
        /// Devices of the host that every trial may use.
        devices: Vec<DeviceMapping> = DEVICES, or("[]"), merged(Merge::NewBy("container_path"));
        /// Key of old versions, without effect.
        #[serde(default)]
        native_parallel: bool = Kind::Bool, or("false"), warn("is ignored");
    }
    without field {
        /// Label of the agents to run on, before version 0.20.0.
        agent_label = Kind::Any, warn("is ignored; use resource pools");
    }
    with check(super::checks::resources)
}

keys! {
    /// Seeds of the random numbers.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Reproducibility, REPRODUCIBILITY {
        /// Seeds the search and through it every trial; the time of submission unless given.
        experiment_seed: u32 = NATURAL_32, finally;
    }
    with check(super::checks::reproducibility)
}

keys! {
    /// System metrics of trials: what they use of processors, memory, disks, network and GPUs.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Profiling, PROFILING {
        /// Whether the supervisor reports what each trial uses of processors, memory, disks, network and GPUs.
        enabled: bool = Kind::Bool, or("false");
        /// First batch, for old trial classes.
        begin_on_batch: u64 = NATURAL, or("0");
        /// Last batch, for old trial classes.
        end_after_batch: Option<u64> = NATURAL;
        /// Wait for the device before taking times, for old trial classes.
        sync_timings: bool = Kind::Bool, or("true");
    }
    with check(super::checks::profiling)
}

keys! {
    /// Knobs of old trial classes.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Optimizations, OPTIMIZATIONS {
        /// Batches between two exchanges of gradients.
        aggregation_frequency: u64 = POSITIVE, or("1");
        /// Average gradients instead of adding them.
        average_aggregated_gradients: bool = Kind::Bool, or("true");
        /// Average training metrics over slots.
        average_training_metrics: bool = Kind::Bool, or("true");
        /// Compress gradients to half precision.
        gradient_compression: bool = Kind::Bool, or("false");
        /// File of update sizes for tensor fusion.
        grad_updates_size_file: Option<String> = Kind::Text;
        /// Level of mixed precision, as NVIDIA Apex numbers them; `O0` = full precision.
        mixed_precision: String = Kind::Choice(&["O0", "O1", "O2", "O3"]), or("\"O0\"");
        /// Megabytes of a fused tensor.
        tensor_fusion_threshold: u64 = NATURAL, or("64");
        /// Milliseconds between two fusions of tensors in Horovod.
        tensor_fusion_cycle_time: u64 = NATURAL, or("1");
        /// Tune the two above while training.
        auto_tune_tensor_fusion: bool = Kind::Bool, or("false");
    }
}

keys! {
    /// Other systems that an experiment speaks to.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Integrations, INTEGRATIONS {
        /// The webhooks that are called for the experiment.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        webhooks: Option<WebhookSelection> = Kind::Section(&WEBHOOKS);
        /// Record of where the data came from.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pachyderm: Option<BTreeMap<String, Value>> = Kind::Section(&PACHYDERM);
    }
}

keys! {
    /// Which webhooks fire for an experiment.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct WebhookSelection, WEBHOOKS {
        /// Only these webhooks fire, by number.
        webhook_id: Option<Vec<i64>> = Kind::List(&POSITIVE);
        /// Only these webhooks fire, by name.
        webhook_name: Option<Vec<String>> = Kind::List(&Kind::Text);
        /// Whether no webhook fires for the experiment at all.
        exclude: bool = Kind::Bool, or("false");
    }
}

static PACHYDERM: Section = section(&[
    field("pachd", Kind::Section(&PACHD), "Server"),
    field(
        "proxy",
        Kind::Section(&PACHYDERM_PROXY),
        "Address for users",
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

/// Keys that users put in the wrong place, and where they belong.
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

fn labels(walk: &mut Walk, node: &mut Node) {
    walk.value(node, Kind::List(&Kind::Text));
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

fn not_blank(walk: &mut Walk, node: &mut Node) {
    match node.text() {
        Some(text) if text.trim().is_empty() => {
            walk.findings.error(node.at.as_ref(), "must not be blank");
        }
        Some(_) => {}
        None => walk.value(node, Kind::Text),
    }
}

fn entrypoint(walk: &mut Walk, node: &mut Node) {
    let at = node.at.clone();
    match &node.tree {
        Tree::Text(text) if text.trim().is_empty() => {
            walk.findings.error(at.as_ref(), "must not be empty");
        }
        Tree::Text(_) => {}
        Tree::List(items) if items.is_empty() => {
            walk.findings.error(at.as_ref(), "must not be empty");
        }
        Tree::List(_) => walk.value(node, Kind::List(&Kind::Text)),
        _ => walk
            .findings
            .mismatch(node, "a command line or a list of strings"),
    }
}

/// Dead since long ago; must still look like storage.
fn tensorboard_storage(walk: &mut Walk, node: &mut Node) {
    if node.members().is_none() {
        return walk.value(node, Kind::AnyMap);
    }
    for key in [
        "save_experiment_best",
        "save_trial_best",
        "save_trial_latest",
    ] {
        if let Some(member) = node.get(key) {
            walk.findings.error_in(
                key,
                member.at.as_ref(),
                ErrorCode::UnknownKey.message("is not a key of TensorBoard storage"),
            );
        }
    }
    let kind = node.get("type");
    if !matches!(kind.and_then(Node::text), Some("shared_fs" | "s3" | "gcs")) {
        let at = kind.and_then(|kind| kind.at.clone());
        walk.findings.error_in(
            "type",
            at.as_ref(),
            ErrorCode::NotOneOf.message("must be one of \"shared_fs\", \"s3\", \"gcs\""),
        );
    }
}
