//! Variables `DET_…` that no key of a configuration has: slips, and those of other programs.

use std::collections::BTreeMap;

use det_taskspec::pods;
use det_taskspec::variables::{KNOBS, VARIABLES};

use super::{env_names, place_of};
use crate::errors::{ConfigWarning, edit_distance};
use crate::origin::Source;
use crate::schema::{Section, leaves};

/// Variables that others read, besides those of tasks ([`VARIABLES`], [`KNOBS`]): clients, scripts of tasks, packages of
/// the old product. They may be set in the environment of a whole machine.
const OF_OTHERS: &[&str] = &[
    "DET_BIN",
    "DET_CHIEF_IP",
    "DET_CLI_COLORIZE",
    "DET_CONFIG_FILE",
    "DET_CONNECT_TIMEOUT",
    "DET_DATA_DIR",
    "DET_DELETE",
    "DET_DELETE_TENSORBOARDS",
    "DET_DRY_RUN",
    "DET_FAILPOINT",
    "DET_GLOB",
    "DET_LOG_INFO",
    "DET_MASTER_HTTP_PORT",
    "DET_PASS",
    "DET_PROXY_THROUGH_GATEWAY",
    "DET_RELEASE_NAMESPACE",
    "DET_SEGMENT_API_KEY",
    "DET_SLURM_PROXY_IFACE",
    "DET_SLURM_RENDEZVOUS_IFACE",
    "DET_STORAGE_CONFIG",
    "DET_SUPERVISOR",
    "DET_UPDATE",
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
            || KNOBS.contains(&name)
            || VARIABLES.iter().any(|declared| declared.name == name)
            || name == pods::RANKS
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_of_a_task_has_no_slips_of_a_configuration() {
        let names =
            VARIABLES
                .iter()
                .map(|declared| declared.name)
                .chain(KNOBS.iter().copied().chain([
                    pods::RANKS,
                    "DET_K8S_RESOURCE_POOL",
                    "DET_NOTEBOOK_TOKEN",
                ]));
        let env = names
            .map(|name| (name.to_owned(), "x".to_owned()))
            .collect();
        let warnings = unknown(&crate::master::schema::MASTER, &env, |_| false);
        assert!(warnings.is_empty(), "{warnings:?}");
        let slip = BTreeMap::from([("DET_K8S_RESOURCE_POOLS".to_owned(), "x".to_owned())]);
        assert_eq!(
            unknown(&crate::master::schema::MASTER, &slip, |_| false).len(),
            1
        );
    }
}
