//! Names and labels of objects.

use std::fmt::Write as _;

use det_rm::ContainerStart;
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
pub fn drain_label(cluster_id: &str) -> String {
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

/// The name of the Job of an allocation; the first of `groups` Jobs with `pods` pods in all. `start` is any of its
/// containers. Allocations have names of their own.
pub(crate) fn job_name(
    cluster_id: &str,
    start: &ContainerStart,
    groups: usize,
    pods: usize,
) -> String {
    let most = match (groups, pods) {
        (0 | 1, 0 | 1) => MOST_OF_ONE,
        (0 | 1, _) => MOST_OF_SEVERAL,
        _ => MOST_OF_SEVERAL - OF_GROUP,
    };
    let prefix = begin_of(cluster_id);
    let name = match described(start) {
        NameBasis::Unique(description) => format!("det-{prefix}-{description}"),
        NameBasis::Ambiguous(description) => {
            return hashed(&format!("det-{prefix}-{description}"), start, most);
        }
    };
    if name.len() <= most {
        return name;
    }
    hashed(&name, start, most)
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
    /// It needs a hash.
    Ambiguous(String),
}

fn described(start: &ContainerStart) -> NameBasis {
    let origin = &start.origin;
    let spec = &start.spec;
    let kind = spec.script.task_type;
    let word = match kind {
        TaskKind::Trial => {
            return match (origin.experiment_id, origin.trial_id) {
                (Some(experiment), Some(trial)) => NameBasis::Unique(format!(
                    "exp-{experiment}-trial-{trial}-attempt-{}",
                    origin.run_id
                )),
                _ => NameBasis::Ambiguous(format!("trial-{}", dns(spec.task_id.as_str()))),
            };
        }
        TaskKind::CheckpointGc => {
            let experiment = origin.experiment_id.map(|id| id.to_string());
            return NameBasis::Ambiguous(format!("gc-{}", experiment.unwrap_or_default()));
        }
        TaskKind::Notebook | TaskKind::Shell | TaskKind::Command | TaskKind::Tensorboard => "cmd",
        TaskKind::Generic => "generic",
    };
    let task = spec.task_id.as_str();
    match origin.attempt {
        1 if is_uuid(task) => NameBasis::Unique(format!("{word}-{task}")),
        attempt if is_uuid(task) => NameBasis::Unique(format!("{word}-{task}-{attempt}")),
        _ => NameBasis::Ambiguous(format!("{word}-{}", dns(task))),
    }
}

/// Whether it is a UUID in lower case, as ids of tasks are.
fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
        })
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
fn hashed(name: &str, start: &ContainerStart, most: usize) -> String {
    let mut hash = String::from("x");
    for byte in Sha256::digest(start.spec.allocation_id.as_str()) {
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
pub(crate) fn is_reserved(text: &str, cluster_id: &str) -> bool {
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
fn begin_of(cluster_id: &str) -> String {
    let characters = cluster_id.chars().filter(char::is_ascii_alphanumeric);
    characters
        .take(8)
        .map(|it| it.to_ascii_lowercase())
        .collect()
}
