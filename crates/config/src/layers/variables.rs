//! Variables `DET_…` that no key of a configuration has: slips, and those of other programs.

use std::collections::BTreeMap;

use super::{env_names, place_of};
use crate::errors::{ConfigWarning, edit_distance};
use crate::origin::Source;
use crate::schema::{Section, leaves};

/// Variables that others read: clients, tasks, the supervisor. They may be set in the environment of a whole machine.
const OF_OTHERS: &[&str] = &[
    "DET_ALLOCATION_ID",
    "DET_BIN",
    "DET_CHIEF_IP",
    "DET_CLI_COLORIZE",
    "DET_CLUSTER_ID",
    "DET_CONFIG_FILE",
    "DET_CONNECT_TIMEOUT",
    "DET_CONTAINER_ID",
    "DET_DATA_DIR",
    "DET_DEBUG",
    "DET_DEBUG_CONFIG_PATH",
    "DET_DEEPSPEED_HOSTFILE_PATH",
    "DET_DELETE",
    "DET_DELETE_TENSORBOARDS",
    "DET_DRY_RUN",
    "DET_EXPERIMENT_CONFIG",
    "DET_EXPERIMENT_ID",
    "DET_FAILPOINT",
    "DET_GLOB",
    "DET_HPARAMS",
    "DET_INTER_NODE_NETWORK_INTERFACE",
    "DET_KUBERNETES_JOB_PARALLELISM",
    "DET_KUBERNETES_POD_IP",
    "DET_LATEST_CHECKPOINT",
    "DET_LOG_INFO",
    "DET_LOG_WAIT_TIME",
    "DET_MANUAL_INIT_DISTRIBUTED",
    "DET_MASTER",
    "DET_MASTER_ADDR",
    "DET_MASTER_CERT_FILE",
    "DET_MASTER_CERT_NAME",
    "DET_MASTER_HTTP_PORT",
    "DET_MASTER_ID",
    "DET_PASS",
    "DET_PROXY_THROUGH_GATEWAY",
    "DET_RELEASE_NAMESPACE",
    "DET_RESOURCES_ID",
    "DET_RESOURCES_TYPE",
    "DET_RETRY_CONFIG",
    "DET_RUN_DIR",
    "DET_S3_ENDPOINT_URL",
    "DET_SEGMENT_API_KEY",
    "DET_SEGMENT_ENABLED",
    "DET_SESSION_TOKEN",
    "DET_SLOT_IDS",
    "DET_SLURM_PROXY_IFACE",
    "DET_SLURM_RENDEZVOUS_IFACE",
    "DET_STEPS_COMPLETED",
    "DET_STORAGE_CONFIG",
    "DET_SUPERVISOR",
    "DET_TASK_ID",
    "DET_TASK_LOGGING_METADATA",
    "DET_TASK_TYPE",
    "DET_TRIAL_ID",
    "DET_TRIAL_RUN_ID",
    "DET_TRIAL_SEED",
    "DET_UPDATE",
    "DET_USER",
    "DET_USER_TOKEN",
    "DET_USE_TLS",
    "DET_WORKDIR",
];

/// Beginnings of the names that tests and measurements use.
const OF_TESTS: &[&str] = &[
    "DET_BENCH_",
    "DET_E2E_",
    "DET_HISTORIES_",
    "DET_HOSTILE_",
    "DET_TEST_",
    "DET_WHEEL_",
];

/// A warning for each variable that is no key of this configuration, nor of the other long-running half, nor read by
/// anything else of ours. `reaches_into_a_list` returns which ones are read as paths into lists.
pub(super) fn unknown(
    section: &'static Section,
    env: &BTreeMap<String, String>,
    reaches_into_a_list: impl Fn(&str) -> bool,
) -> Vec<ConfigWarning> {
    let (own, master, agent) = (
        leaves(section),
        leaves(&crate::master::schema::MASTER),
        leaves(&crate::agent::AGENT),
    );
    let (own, master, agent) = (env_names(&own), env_names(&master), env_names(&agent));
    let belongs = |name: &str| {
        let is_key = |name: &str| [&own, &master, &agent].iter().any(|n| n.contains_key(name));
        is_key(name)
            || name.strip_suffix("_FILE").is_some_and(is_key)
            || OF_OTHERS.contains(&name)
            || OF_TESTS.iter().any(|begin| name.starts_with(begin))
            || reaches_into_a_list(name)
    };
    let slips = env
        .keys()
        .filter(|name| name.starts_with("DET_") && !belongs(name));
    slips
        .map(|name| {
            // Of short names nearly every one is near another.
            let near = own
                .keys()
                .filter(|_| name.len() >= 10)
                .find(|known| edit_distance(name, known, 1).is_some());
            let message = match near {
                Some(near) => {
                    format!("is not a variable of this configuration; did you mean \"{near}\"?")
                }
                None => "is not a variable of this configuration and has no effect; \"det config keys\" lists \
                         every key with its variable"
                    .to_owned(),
            };
            let place = place_of(Source::variable(name.as_str()));
            ConfigWarning::new("", Some(&place), message)
        })
        .collect()
}
