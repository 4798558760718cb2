//! The keys of an experiment: `experiment-config` reference §2 to §11.

use crate::container::{
    BIND_MOUNT, DEVICES, ENVIRONMENT, LOG_POLICIES, PBS, SLURM, byte_size, not_empty,
};
use crate::schema::{
    Checker, Field, Kind, NATURAL, NATURAL_32, PORT, POSITIVE, Section, Union, field, section,
    variant,
};
use crate::storage::STORAGE;
use crate::yaml::{Node, Tree};

const OLD_LOOP: &str =
    "is deprecated; it drives the training loop of old trial classes and nothing else";

pub(super) static EXPERIMENT: Section = section(&[
    field("name", Kind::TextBy(not_blank)).finally(),
    field("description", Kind::Text),
    field("labels", Kind::List(&Kind::Text)).or("[]"),
    field("workspace", Kind::Text).or("\"\""),
    field("project", Kind::Text).or("\"\""),
    field("data", Kind::AnyMap).or("{}"),
    field("entrypoint", Kind::Custom(entrypoint)),
    field("debug", Kind::Bool).or("false"),
    field("max_restarts", NATURAL_32).or("5"),
    field("log_policies", LOG_POLICIES).or("[]"),
    field("retention_policy", Kind::Section(&RETENTION)).kept(),
    field("perform_initial_validation", Kind::Bool).or("false"),
    field("checkpoint_policy", Kind::Choice(&["best", "all", "none"])).or("\"best\""),
    field("checkpoint_storage", Kind::Union(&STORAGE)).finally(),
    field("hyperparameters", Kind::Custom(crate::space::check)).or("{}"),
    field("searcher", Kind::Union(&SEARCHER)).finally(),
    field("resources", Kind::Section(&RESOURCES)).or("{}"),
    field("bind_mounts", Kind::List(&Kind::Section(&BIND_MOUNT))).or("[]"),
    field("environment", Kind::Section(&ENVIRONMENT)).or("{}"),
    field("preemption_timeout", NATURAL_32).or("3600"),
    field("reproducibility", Kind::Section(&REPRODUCIBILITY)).or("{}"),
    field("profiling", Kind::Section(&PROFILING)).or("{}"),
    field("integrations", Kind::Section(&INTEGRATIONS)).kept(),
    field("optimizations", Kind::Section(&OPTIMIZATIONS))
        .or("{}")
        .warn(OLD_LOOP),
    field("slurm", Kind::Section(&SLURM)).or("{}"),
    field("pbs", Kind::Section(&PBS)).or("{}"),
    field("min_validation_period", Kind::Custom(length))
        .or("{\"batches\": 0}")
        .warn(OLD_LOOP),
    field("min_checkpoint_period", Kind::Custom(length))
        .or("{\"batches\": 0}")
        .warn(OLD_LOOP),
    field("scheduling_unit", POSITIVE_32)
        .or("100")
        .warn(OLD_LOOP),
    field("records_per_epoch", NATURAL).or("0").warn(OLD_LOOP),
    field("security", Kind::Any).warn("is ignored"),
    field("tensorboard_storage", Kind::Custom(tensorboard_storage))
        .warn("is ignored; \"checkpoint_storage\" holds TensorBoard data as well"),
    field("data_layer", Kind::Any).warn("is ignored"),
])
.check(super::checks::document);

const POSITIVE_32: Kind = Kind::Int(1, u32::MAX as i64);

static RETENTION: Section =
    section(&[field("log_retention_days", Kind::Int(-1, 32_767)).finally()]);

pub(super) static SEARCHER: Union = Union {
    tag: "name",
    default_tag: None,
    common: &[
        field("metric", Kind::TextBy(not_empty)).finally(),
        field("smaller_is_better", Kind::Bool).or("true"),
        field("source_trial_id", POSITIVE),
        field("source_checkpoint_uuid", Kind::Text),
    ],
    variants: &[
        variant("single", &[MAX_LENGTH]),
        variant(
            "random",
            &[
                MAX_LENGTH,
                field("max_trials", POSITIVE).finally(),
                field("max_concurrent_trials", NATURAL).or("16"),
            ],
        ),
        variant(
            "grid",
            &[MAX_LENGTH, field("max_concurrent_trials", NATURAL).or("16")],
        ),
        variant(
            "async_halving",
            &[
                field("num_rungs", POSITIVE).finally(),
                field("max_trials", POSITIVE).finally(),
                TIME_METRIC,
                MAX_TIME,
                DIVISOR,
                field("max_concurrent_trials", NATURAL).or("16"),
                MAX_LENGTH,
                STOP_ONCE,
            ],
        ),
        variant(
            "adaptive_asha",
            &[
                field("max_trials", POSITIVE).finally(),
                TIME_METRIC,
                MAX_TIME,
                field(
                    "mode",
                    Kind::Choice(&["aggressive", "standard", "conservative"]),
                )
                .or("\"standard\""),
                DIVISOR,
                field("max_rungs", POSITIVE).or("5"),
                field("bracket_rungs", Kind::List(&POSITIVE)).or("[]"),
                field("max_concurrent_trials", NATURAL).or("16"),
                MAX_LENGTH,
                STOP_ONCE,
            ],
        ),
    ],
    check: Some(super::checks::searcher),
    aliases: &[],
};

const TIME_METRIC: Field = field("time_metric", Kind::TextBy(not_empty)).finally();
const MAX_TIME: Field = field("max_time", POSITIVE).finally();
const DIVISOR: Field = field("divisor", Kind::Above(1.0)).or("4");
const MAX_LENGTH: Field = field("max_length", Kind::Custom(max_length))
    .warn("is deprecated; training code says how long it trains");
const STOP_ONCE: Field =
    field("stop_once", Kind::Bool).warn("is ignored; halving always stops trials for good");

static RESOURCES: Section = section(&[
    field("slots_per_trial", NATURAL_32).or("1"),
    field("max_slots", NATURAL_32),
    field("weight", Kind::Above(0.0)).or("1"),
    field("priority", Kind::Int(1, 99)),
    field("resource_pool", Kind::Text).or("\"\""),
    field("resource_pools", Kind::List(&Kind::Text)).or("[]"),
    field("is_single_node", Kind::Bool),
    field("shm_size", Kind::Custom(byte_size)),
    field("devices", DEVICES).or("[]"),
    field("native_parallel", Kind::Bool)
        .or("false")
        .warn("is ignored"),
    field("agent_label", Kind::Any).warn("is ignored; use resource pools"),
])
.check(super::checks::resources);

static REPRODUCIBILITY: Section =
    section(&[field("experiment_seed", Kind::Int(0, u32::MAX as i64)).finally()])
        .check(super::checks::reproducibility);

static PROFILING: Section = section(&[
    field("enabled", Kind::Bool).or("false"),
    field("begin_on_batch", NATURAL).or("0"),
    field("end_after_batch", NATURAL),
    field("sync_timings", Kind::Bool).or("true"),
])
.check(super::checks::profiling);

static OPTIMIZATIONS: Section = section(&[
    field("aggregation_frequency", POSITIVE).or("1"),
    field("average_aggregated_gradients", Kind::Bool).or("true"),
    field("average_training_metrics", Kind::Bool).or("true"),
    field("gradient_compression", Kind::Bool).or("false"),
    field("grad_updates_size_file", Kind::Text),
    field("mixed_precision", Kind::Choice(&["O0", "O1", "O2", "O3"])).or("\"O0\""),
    field("tensor_fusion_threshold", NATURAL).or("64"),
    field("tensor_fusion_cycle_time", NATURAL).or("1"),
    field("auto_tune_tensor_fusion", Kind::Bool).or("false"),
]);

static INTEGRATIONS: Section = section(&[
    field("webhooks", Kind::Section(&WEBHOOKS)),
    field("pachyderm", Kind::Section(&PACHYDERM)),
]);

static WEBHOOKS: Section = section(&[
    field("webhook_id", Kind::List(&POSITIVE)),
    field("webhook_name", Kind::List(&Kind::Text)),
    field("exclude", Kind::Bool).or("false"),
]);

static PACHYDERM: Section = section(&[
    field("pachd", Kind::Section(&PACHD)),
    field("proxy", Kind::Section(&PACHYDERM_PROXY)),
    field("dataset", Kind::Section(&PACHYDERM_DATASET)),
]);

static PACHD: Section = section(&[
    field("host", Kind::Text).always(),
    field("port", PORT).always(),
]);

static PACHYDERM_PROXY: Section = section(&[
    field("scheme", Kind::Text).always(),
    field("host", Kind::Text).always(),
    field("port", PORT).always(),
]);

static PACHYDERM_DATASET: Section = section(&[
    field("project", Kind::Text).always(),
    field("repo", Kind::Text).always(),
    field("commit", Kind::Text).always(),
    field("branch", Kind::Text).always(),
    field("token", Kind::Text).always().secret(),
]);

/// Keys that people put in the wrong place, and where they belong: `experiment-config` reference §14.
pub(super) const SUGGESTIONS: &[(&str, &str)] = &[
    ("slots", "resources.slots_per_trial"),
    ("image", "environment.image"),
    ("environment_variables", "environment.environment_variables"),
    ("registry_auth", "environment.registry_auth"),
    ("pod_spec", "environment.pod_spec"),
    ("priority", "resources.priority"),
    ("resource_pool", "resources.resource_pool"),
    ("seed", "reproducibility.experiment_seed"),
    ("hparams", "hyperparameters"),
    ("env", "environment"),
    ("volumes", "bind_mounts"),
];

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
        _ => {
            let message = format!(
                "must be a command line or a list of strings, not {}",
                node.kind()
            );
            checker.error(at.as_ref(), message);
        }
    }
}

const LENGTH_KEYS: [&str; 3] = ["batches", "records", "epochs"];

/// A map with exactly one of three keys.
fn length(checker: &mut Checker, node: &mut Node) {
    bounded_length(checker, node, NATURAL);
}

const EXPECTED: &str = "must have exactly one of \"batches\", \"records\", \"epochs\"";

fn bounded_length(checker: &mut Checker, node: &mut Node, bound: Kind) {
    let at = node.at.clone();
    let kind = node.kind();
    let Some(members) = node.members_mut() else {
        return checker.error(at.as_ref(), format!("{EXPECTED}, not {kind}"));
    };
    members.retain(|_, member| !matches!(member.tree, Tree::Null));
    if members.len() != 1
        || !members
            .keys()
            .all(|key| LENGTH_KEYS.contains(&key.as_str()))
    {
        return checker.error(at.as_ref(), EXPECTED);
    }
    for (key, member) in members {
        checker.within(key, |checker| checker.value(member, bound));
    }
}

/// A length or a bare number; at least 1.
fn max_length(checker: &mut Checker, node: &mut Node) {
    if matches!(node.tree, Tree::Number(_)) {
        checker.value(node, POSITIVE);
    } else {
        bounded_length(checker, node, POSITIVE);
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
                "is not a key of TensorBoard storage",
            );
        }
    }
    let kind = node.get("type");
    if !matches!(kind.and_then(Node::text), Some("shared_fs" | "s3" | "gcs")) {
        let at = kind.and_then(|kind| kind.at.clone());
        checker.error_in(
            "type",
            at.as_ref(),
            "must be one of \"shared_fs\", \"s3\", \"gcs\"",
        );
    }
}
