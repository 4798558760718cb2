//! Names and labels of objects.

use std::fmt::Write as _;

use std::collections::BTreeSet;

use det_ids::{AllocationId, ClusterId, ExperimentId, RunId, TaskId, TrialId};
use det_rm::{AttemptOf, ContainerStart};
use det_taskspec::TaskKind;
use sha2::{Digest as _, Sha256};

/// Label of all objects of an allocation with its id: what users select them by.
pub const SELECTOR_LABEL: &str = "determined";
/// Label of all objects with the identity of the installation that made them.
pub const CLUSTER_LABEL: &str = "determined.ai/cluster_id";
/// Value of [`drain_label`] on a node that takes no new containers.
pub const DRAIN_NO_SCHEDULE: &str = "no-schedule";
/// Value of [`drain_label`] on a node whose containers are ended, too.
pub const DRAIN_NO_EXECUTE: &str = "no-execute";

/// Characters of a DNS label, of the value of a label and of the name in the key of a label at most.
const MOST: usize = 63;
/// Characters of the name of a Job with one pod, whose host is `<job>-0`.
const MOST_OF_ONE: usize = MOST - 2;
/// Characters of the name of a Job with several pods, whose hosts are `<job>-0` to `<job>-99999`.
const MOST_OF_SEVERAL: usize = MOST - 6;
/// Characters that are left for what distinguishes the Jobs of one allocation: `-r` to `-r99`.
const OF_GROUP: usize = 4;
/// Characters of a hash in a name, `x` before them: nothing else in a name looks like it.
const OF_HASH: usize = 16;

/// Key of the label that keeps pods of an installation off a node.
pub fn drain_label(cluster_id: &ClusterId) -> String {
    let name = format!("cluster-id-{cluster_id}");
    format!("determined.ai/{}", label_value(&name))
}

/// A text as the value of a label: characters that none may have are replaced, and it is cut to 63.
pub fn label_value(text: &str) -> String {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let replaced = text.chars().map(|c| if is_allowed(c) { c } else { '_' });
    let replaced: String = replaced
        .skip_while(|c| !c.is_ascii_alphanumeric())
        .take(MOST)
        .collect();
    let value = replaced.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
    if value.is_empty() && !text.is_empty() {
        return "invalid_value".to_owned();
    }
    value.to_owned()
}

/// What the names of an allocation's objects follow from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NameFacts<'a> {
    allocation_id: &'a AllocationId,
    kind: TaskKind,
    task_id: &'a TaskId,
    experiment_id: Option<ExperimentId>,
    trial_id: Option<TrialId>,
    run_id: RunId,
    attempt: u32,
}

impl<'a> NameFacts<'a> {
    /// Of an allocation that starts, from any of its containers.
    pub(crate) fn of(start: &'a ContainerStart) -> Self {
        let (spec, origin) = (&start.spec, &start.origin);
        Self {
            allocation_id: &spec.allocation_id,
            kind: spec.script.task_type,
            task_id: &spec.task_id,
            experiment_id: origin.experiment_id,
            trial_id: origin.trial_id,
            run_id: origin.run_id,
            attempt: origin.attempt,
        }
    }
}

/// The names that the Secret of an attempt may have, depending on how many pods it has.
pub fn secret_names(
    cluster_id: &ClusterId,
    allocation_id: &AllocationId,
    of: &AttemptOf,
) -> BTreeSet<String> {
    let facts = NameFacts {
        allocation_id,
        kind: of.kind,
        task_id: &of.task_id,
        experiment_id: of.experiment_id,
        trial_id: of.trial_id,
        run_id: of.run_id,
        attempt: of.attempt,
    };
    let counts = [(1, 1), (1, 2), (2, 2)];
    let names = counts.map(|(groups, pods)| job_name(cluster_id, facts, groups, pods));
    names.into_iter().collect()
}

/// Sizes of pods beyond the first that a gang has in all likelihood at most, in a cluster with nodes of several sizes.
const FURTHER_SIZES: usize = 3;

/// The names that the templates of an attempt's claims may have, by those of its Secret: one for each size of pod, of which
/// as many are named as gangs have in all likelihood.
pub fn claim_template_names(secrets: &BTreeSet<String>) -> BTreeSet<String> {
    let further = secrets
        .iter()
        .flat_map(|name| (1..=FURTHER_SIZES).map(|number| group_name(name, number)));
    secrets.iter().cloned().chain(further).collect()
}

/// The name of the Job of an allocation; the first of `groups` Jobs with `pods` pods in all. Allocations have names of their
/// own.
pub(crate) fn job_name(
    cluster_id: &ClusterId,
    facts: NameFacts<'_>,
    groups: usize,
    pods: usize,
) -> String {
    let most = match (groups, pods) {
        (0 | 1, 0 | 1) => MOST_OF_ONE,
        (0 | 1, _) => MOST_OF_SEVERAL,
        _ => MOST_OF_SEVERAL - OF_GROUP,
    };
    let prefix = begin_of(cluster_id);
    let name = match described(facts) {
        NameBasis::Unique(description) => format!("det-{prefix}-{description}"),
        NameBasis::Ambiguous(description) => {
            return hashed(&format!("det-{prefix}-{description}"), facts, most);
        }
    };
    if name.len() <= most {
        return name;
    }
    hashed(&name, facts, most)
}

/// The name of the Job of a further size of pod, `number` from 1.
pub(crate) fn group_name(job_name: &str, number: usize) -> String {
    match number {
        1 => format!("{job_name}-r"),
        number => format!("{job_name}-r{number}"),
    }
}

/// What an allocation is, for names.
enum NameBasis {
    /// No other allocation has the same.
    Unique(String),
    /// Another allocation may have the same: a hash must be added.
    Ambiguous(String),
}

fn described(facts: NameFacts<'_>) -> NameBasis {
    let task = facts.task_id.as_str();
    let word = match facts.kind {
        TaskKind::Trial => {
            return match (facts.experiment_id, facts.trial_id) {
                (Some(experiment), Some(trial)) => NameBasis::Unique(format!(
                    "exp-{experiment}-trial-{trial}-attempt-{}",
                    facts.run_id
                )),
                _ => NameBasis::Ambiguous(format!("trial-{}", dns(task))),
            };
        }
        TaskKind::CheckpointGc => {
            let experiment = facts.experiment_id.map(|id| id.to_string());
            return NameBasis::Ambiguous(format!("gc-{}", experiment.unwrap_or_default()));
        }
        TaskKind::Notebook | TaskKind::Shell | TaskKind::Command | TaskKind::Tensorboard => "cmd",
        TaskKind::Generic => "generic",
    };
    // The form of the id decides how it gets into a name, and nothing is read out of it: of two ids that are UUIDs in lower
    // case the names differ, while others lose the characters that a name cannot have, and may then be alike.
    match facts.attempt {
        1 if is_uuid(task) => NameBasis::Unique(format!("{word}-{task}")),
        attempt if is_uuid(task) => NameBasis::Unique(format!("{word}-{task}-{attempt}")),
        _ => NameBasis::Ambiguous(format!("{word}-{}", dns(task))),
    }
}

/// Whether it is a UUID in lower case, as ids of tasks are.
fn is_uuid(text: &str) -> bool {
    det_ids::is_uuid(text) && !text.bytes().any(|byte| byte.is_ascii_uppercase())
}

/// The characters of a text that a DNS label may have.
pub(crate) fn dns(text: &str) -> String {
    let text = text.to_ascii_lowercase();
    text.replace(
        |c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit(),
        "-",
    )
}

/// A name with a hash of the allocation at its end, in place of what is too long.
fn hashed(name: &str, facts: NameFacts<'_>, most: usize) -> String {
    let mut hash = String::from("x");
    for byte in Sha256::digest(facts.allocation_id.as_str()) {
        if hash.len() > OF_HASH {
            break;
        }
        // A `String` takes every text.
        let _ = write!(hash, "{byte:02x}");
    }
    let kept: String = name.chars().take(most - hash.len() - 1).collect();
    format!("{}-{hash}", kept.trim_end_matches('-'))
}

/// How names of the chart's objects begin.
const OF_CHART: &[&str] = &[
    "determined-master-",
    "determined-db-",
    "determined-agent-",
    "determined-uninstall-",
    "determined-system-",
];
/// Classes of pods for which Kubernetes evicts all others.
const ABOVE_ALL: &[&str] = &["system-cluster-critical", "system-node-critical"];

/// Whether a text in a user's pod is like the name of an object that is not the user's: of a task, of this or of another
/// installation, of the master, its database and its agents as the chart calls them, or of Kubernetes itself.
pub(crate) fn is_reserved(text: &str, cluster_id: &ClusterId) -> bool {
    if ABOVE_ALL.contains(&text) {
        return true;
    }
    if OF_CHART.iter().any(|begin| text.starts_with(begin)) {
        return true;
    }
    let rest = text.strip_prefix("det-").unwrap_or_default();
    let (begin, after) = rest.split_at_checked(8).unwrap_or_default();
    let is_uuid = begin.len() == 8 && begin.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_uuid && after.starts_with('-'))
        || text.starts_with(&format!("det-{}-", begin_of(cluster_id)))
}

/// Whether a name is that of a class of pods which the master makes for a priority. A user who could name it would have a
/// priority above the limit of the workspace.
pub(crate) fn is_class_of_a_priority(name: &str) -> bool {
    let rest = name.strip_prefix("determined-p").unwrap_or_default();
    let digits = rest.strip_suffix("-preempting").unwrap_or(rest);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// The begin of a cluster's identity, as it is in the names of objects.
pub(crate) fn begin_of(cluster_id: &ClusterId) -> String {
    let characters = cluster_id
        .as_str()
        .chars()
        .filter(char::is_ascii_alphanumeric);
    characters
        .take(8)
        .map(|it| it.to_ascii_lowercase())
        .collect()
}
