//! The Job controller: pods of Jobs, and what became of them.
//!
//! Rules are those of the pages on Jobs and on pod failure policies of the Kubernetes documentation. A Job is first marked
//! (`FailureTarget`, `SuccessCriteriaMet`), its pods end, and only then it is `Failed` or `Complete`. Pods are replaced
//! without delay; `activeDeadlineSeconds`, `ttlSecondsAfterFinished` and limits for each index are not kept.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::cluster::{Cluster, has_ended, is_deleting};
use crate::deletion::{Options, delete};
use crate::target::{Key, Resource, Target};
use crate::values::{condition, flag, list, moment, number, push, set, set_condition, text, unset};
use crate::writes::{self, Mode};

/// The label and annotation of a pod's index.
const INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// What is known of the pods of a Job, by their uid. Pods that are gone stay in it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    pods: BTreeMap<String, CountedPod>,
    /// Reason and message of what the policy for failures decided.
    failure: Option<(String, String)>,
}

/// A pod as it was counted.
#[derive(Debug, Clone)]
struct CountedPod {
    index: Option<i64>,
    outcome: Outcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Open,
    Succeeded,
    Failed,
    /// Ended by the controller, or by a rule that ignores it.
    Ignored,
}

/// One pass over the Jobs that have changed, or whose pods have.
pub(crate) fn pass(cluster: &mut Cluster) {
    for key in std::mem::take(&mut cluster.index.jobs) {
        let Some(job) = cluster.get(&key).map(Arc::clone) else {
            continue;
        };
        let has_finished =
            condition(&job, "Complete") == "True" || condition(&job, "Failed") == "True";
        if !is_deleting(&job) && !has_finished {
            step(cluster, &key, &job);
        }
    }
}

/// The pods of one Job as they are.
struct Pods {
    /// Pods that have not ended and are not being deleted.
    active: Vec<(Key, Arc<Value>)>,
    /// Pods that are being deleted and have not ended.
    terminating: Vec<(Key, Arc<Value>)>,
    all: Vec<(Key, Arc<Value>)>,
}

impl Pods {
    fn of(cluster: &Cluster, namespace: &str, uid: &str) -> Self {
        let is_controlled = |pod: &Value| {
            list(pod, "/metadata/ownerReferences")
                .iter()
                .any(|owner| text(owner, "/uid") == uid && flag(owner, "/controller"))
        };
        let mut all = cluster.owned(uid);
        all.retain(|(key, pod)| {
            key.resource == Resource::pods() && key.namespace == namespace && is_controlled(pod)
        });
        let live = |wanted: bool| {
            all.iter()
                .filter(|(_, pod)| !has_ended(pod) && is_deleting(pod) == wanted)
                .cloned()
                .collect()
        };
        Self {
            active: live(false),
            terminating: live(true),
            all,
        }
    }
}

fn step(cluster: &mut Cluster, key: &Key, job: &Value) {
    let uid = text(job, "/metadata/uid").to_owned();
    let mut tally = cluster.tallies.remove(&uid).unwrap_or_default();
    let pods = Pods::of(cluster, &key.namespace, &uid);
    tally.count(job, &pods);
    let mut new = job.clone();
    if let Some((reason, message)) = tally.failed_because(job) {
        end(
            cluster,
            &mut new,
            &pods,
            ["FailureTarget", "Failed"],
            [&reason, &message],
        );
    } else if tally.has_completed(job, &pods) {
        let words = [
            "CompletionsReached",
            "Reached expected number of succeeded pods",
        ];
        end(
            cluster,
            &mut new,
            &pods,
            ["SuccessCriteriaMet", "Complete"],
            words,
        );
    } else if flag(job, "/spec/suspend") {
        tally.ignore(&pods.active);
        delete_all(cluster, &pods.active);
        set_condition(
            &mut new,
            "Suspended",
            "True",
            "JobSuspended",
            "Job suspended",
        );
        unset(&mut new, &["status", "startTime"]);
    } else {
        if condition(job, "Suspended") == "True" {
            set_condition(&mut new, "Suspended", "False", "JobResumed", "Job resumed");
        }
        if text(job, "/status/startTime").is_empty() {
            set(&mut new, &["status", "startTime"], moment(0));
        }
        scale(cluster, key, job, &mut tally, &pods);
    }
    let pods = Pods::of(cluster, &key.namespace, &uid);
    tally.count(job, &pods);
    tally.report(&mut new, &pods);
    cluster.tallies.insert(uid, tally);
    let status = new.get("status").cloned().unwrap_or_default();
    cluster.modify(key, |job| set(job, &["status"], status));
}

/// Ends what runs of a Job whose outcome is decided, and closes the Job when nothing runs any more.
fn end(
    cluster: &mut Cluster,
    job: &mut Value,
    pods: &Pods,
    [target, last]: [&str; 2],
    [reason, message]: [&str; 2],
) {
    set_condition(job, target, "True", reason, message);
    delete_all(cluster, &pods.active);
    if pods.active.is_empty() && pods.terminating.is_empty() {
        set_condition(job, last, "True", reason, message);
        if last == "Complete" {
            set(job, &["status", "completionTime"], moment(0));
        }
    }
}

fn delete_all(cluster: &mut Cluster, pods: &[(Key, Arc<Value>)]) {
    for (key, _) in pods {
        // They exist, and no precondition is named: there is nothing to refuse.
        let _ = delete(cluster, key, &Options::default());
    }
}

/// Creates the pods that are missing, and deletes those that are too many.
fn scale(cluster: &mut Cluster, key: &Key, job: &Value, tally: &mut Tally, pods: &Pods) {
    let parallelism = number(job, "/spec/parallelism").unwrap_or(1).max(0);
    let mut occupied = pods.active.clone();
    if replaces_failed_only(job) {
        occupied.extend(pods.terminating.iter().cloned());
    }
    let running = i64::try_from(occupied.len()).unwrap_or(i64::MAX);
    if is_indexed(job) {
        let completions = number(job, "/spec/completions").unwrap_or(0);
        let done = tally.succeeded_indexes();
        let taken: BTreeSet<i64> = occupied
            .iter()
            .filter_map(|(_, pod)| index_of(pod))
            .collect();
        let surplus: Vec<_> = pods
            .active
            .iter()
            .filter(|(_, pod)| index_of(pod).is_some_and(|index| index >= completions))
            .cloned()
            .collect();
        tally.ignore(&surplus);
        delete_all(cluster, &surplus);
        let missing: Vec<i64> = (0..completions)
            .filter(|index| !done.contains(index) && !taken.contains(index))
            .take(usize::try_from(parallelism - running).unwrap_or(0))
            .collect();
        for index in missing {
            create_pod(cluster, key, job, Some(index));
        }
        return;
    }
    let wanted = match number(job, "/spec/completions") {
        Some(completions) => parallelism.min(completions - tally.with(Outcome::Succeeded)),
        None if tally.with(Outcome::Succeeded) > 0 => running,
        None => parallelism,
    };
    if running > wanted {
        let surplus = usize::try_from(running - wanted).unwrap_or(0);
        let surplus: Vec<_> = pods.active.iter().rev().take(surplus).cloned().collect();
        tally.ignore(&surplus);
        delete_all(cluster, &surplus);
    }
    for _ in running..wanted {
        create_pod(cluster, key, job, None);
    }
}

fn is_indexed(job: &Value) -> bool {
    text(job, "/spec/completionMode") == "Indexed"
}

fn replaces_failed_only(job: &Value) -> bool {
    text(job, "/spec/podReplacementPolicy") == "Failed"
}

fn index_of(pod: &Value) -> Option<i64> {
    pod.pointer("/metadata/annotations")?
        .get(INDEX)?
        .as_str()?
        .parse()
        .ok()
}

/// Creates one pod of a Job. What refuses it is an event of the Job, as in a cluster.
fn create_pod(cluster: &mut Cluster, key: &Key, job: &Value, index: Option<i64>) {
    let mut pod = job.pointer("/spec/template").cloned().unwrap_or_default();
    let base: String = key
        .name
        .chars()
        .take(if index.is_some() { 50 } else { 57 })
        .collect();
    let suffix = cluster.next_suffix();
    let name = match index {
        Some(index) => format!("{base}-{index}-{suffix}"),
        None => format!("{base}-{suffix}"),
    };
    set(&mut pod, &["metadata", "name"], name);
    set(&mut pod, &["metadata", "generateName"], format!("{base}-"));
    set(
        &mut pod,
        &["metadata", "ownerReferences"],
        json!([{
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": key.name,
            "uid": text(job, "/metadata/uid"),
            "controller": true,
            "blockOwnerDeletion": true,
        }]),
    );
    if let Some(index) = index {
        for place in ["labels", "annotations"] {
            set(&mut pod, &["metadata", place, INDEX], index.to_string());
        }
        set(
            &mut pod,
            &["spec", "hostname"],
            format!("{}-{index}", key.name),
        );
        let variable = json!({
            "name": "JOB_COMPLETION_INDEX",
            "valueFrom": {"fieldRef": {"fieldPath": format!("metadata.labels['{INDEX}']")}},
        });
        for containers in ["containers", "initContainers"] {
            let containers = pod.pointer_mut(&format!("/spec/{containers}"));
            let containers = containers.and_then(Value::as_array_mut);
            for container in containers.into_iter().flatten() {
                let is_set = list(container, "/env")
                    .iter()
                    .any(|variable| text(variable, "/name") == "JOB_COMPLETION_INDEX");
                if !is_set {
                    push(container, &["env"], variable.clone());
                }
            }
        }
    }
    let target = Target::of_kind_path("v1/pods", Some(&key.namespace), None);
    if let Err(failure) = writes::create(cluster, &target, pod, Mode::Store) {
        let message = failure.status();
        let message = format!("Error creating: {}", text(&message, "/message"));
        report_event(cluster, key, job, "FailedCreate", &message);
        // It is tried again with the next change of anything.
        cluster.index.jobs.insert(key.clone());
    }
}

/// Reports a warning about a Job once for each reason.
fn report_event(cluster: &mut Cluster, key: &Key, job: &Value, reason: &str, message: &str) {
    let name = format!("{}.{}", key.name, reason.to_lowercase());
    let target = Target::of_kind_path("v1/events", Some(&key.namespace), None);
    let event = json!({
        "metadata": {"name": name},
        "involvedObject": {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "namespace": key.namespace,
            "name": key.name,
            "uid": text(job, "/metadata/uid"),
        },
        "type": "Warning",
        "reason": reason,
        "message": message,
        "source": {"component": "job-controller"},
        "count": 1,
        "firstTimestamp": moment(0),
        "lastTimestamp": moment(0),
    });
    // It has been reported if it exists.
    let _ = writes::create(cluster, &target, event, Mode::Store);
}

impl Tally {
    /// Counts what has become of the pods.
    fn count(&mut self, job: &Value, pods: &Pods) {
        let counts_deleted = !replaces_failed_only(job);
        let mut present = BTreeSet::new();
        for (key, pod) in &pods.all {
            let uid = text(pod, "/metadata/uid");
            present.insert(uid.to_owned());
            let counted = self.pods.entry(uid.to_owned()).or_insert(CountedPod {
                index: index_of(pod),
                outcome: Outcome::Open,
            });
            if counted.outcome != Outcome::Open {
                continue;
            }
            counted.outcome = match text(pod, "/status/phase") {
                "Succeeded" => Outcome::Succeeded,
                "Failed" => match decide(job, key, pod) {
                    Decision::Count => Outcome::Failed,
                    Decision::Ignore => Outcome::Ignored,
                    Decision::FailJob(message) => {
                        let failure = ("PodFailurePolicy".to_owned(), message);
                        self.failure.get_or_insert(failure);
                        Outcome::Failed
                    }
                },
                _ if is_deleting(pod) && counts_deleted => Outcome::Failed,
                _ => Outcome::Open,
            };
        }
        for (uid, counted) in &mut self.pods {
            if counted.outcome == Outcome::Open && !present.contains(uid) {
                counted.outcome = Outcome::Failed;
            }
        }
    }

    /// Leaves pods out of all counts.
    fn ignore(&mut self, pods: &[(Key, Arc<Value>)]) {
        for (_, pod) in pods {
            if let Some(counted) = self.pods.get_mut(text(pod, "/metadata/uid")) {
                counted.outcome = Outcome::Ignored;
            }
        }
    }

    fn with(&self, outcome: Outcome) -> i64 {
        let count = self
            .pods
            .values()
            .filter(|counted| counted.outcome == outcome)
            .count();
        i64::try_from(count).unwrap_or(i64::MAX)
    }

    fn succeeded_indexes(&self) -> BTreeSet<i64> {
        self.pods
            .values()
            .filter(|counted| counted.outcome == Outcome::Succeeded)
            .filter_map(|counted| counted.index)
            .collect()
    }

    /// Reason and message if the Job has failed.
    fn failed_because(&self, job: &Value) -> Option<(String, String)> {
        let decided = list(job, "/status/conditions")
            .iter()
            .find(|condition| text(condition, "/type") == "FailureTarget")
            .map(|condition| {
                let owned = |pointer: &str| text(condition, pointer).to_owned();
                (owned("/reason"), owned("/message"))
            });
        let limit = number(job, "/spec/backoffLimit").unwrap_or(6);
        let over_limit = || {
            let message = "Job has reached the specified backoff limit";
            (self.with(Outcome::Failed) > limit)
                .then(|| ("BackoffLimitExceeded".to_owned(), message.to_owned()))
        };
        decided.or_else(|| self.failure.clone()).or_else(over_limit)
    }

    fn has_completed(&self, job: &Value, pods: &Pods) -> bool {
        let succeeded = self.with(Outcome::Succeeded);
        match number(job, "/spec/completions") {
            Some(completions) if is_indexed(job) => {
                let done = self.succeeded_indexes();
                (0..completions).all(|index| done.contains(&index))
            }
            Some(completions) => succeeded >= completions,
            None => succeeded > 0 && pods.active.is_empty(),
        }
    }

    /// Writes the numbers into the status.
    fn report(&self, job: &mut Value, pods: &Pods) {
        let is_ready = |pod: &&(Key, Arc<Value>)| condition(&pod.1, "Ready") == "True";
        let ready = pods.active.iter().filter(is_ready).count();
        let done = self.succeeded_indexes();
        let succeeded = if is_indexed(job) {
            i64::try_from(done.len()).unwrap_or(i64::MAX)
        } else {
            self.with(Outcome::Succeeded)
        };
        for (field, value) in [
            ("active", json!(pods.active.len())),
            ("terminating", json!(pods.terminating.len())),
            ("ready", json!(ready)),
            ("succeeded", json!(succeeded)),
            ("failed", json!(self.with(Outcome::Failed))),
        ] {
            set(job, &["status", field], value);
        }
        if is_indexed(job) && !done.is_empty() {
            set(job, &["status", "completedIndexes"], intervals(&done));
        }
    }
}

/// Numbers as the API writes indexes: `0-2,4`.
fn intervals(numbers: &BTreeSet<i64>) -> String {
    let mut runs: Vec<(i64, i64)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => runs.push((*number, *number)),
        }
    }
    let texts = runs.iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    });
    texts.collect::<Vec<_>>().join(",")
}

/// What the policy for failures makes of a failed pod.
enum Decision {
    Count,
    Ignore,
    /// The Job fails, with this message.
    FailJob(String),
}

/// Finds the first rule that matches a failed pod.
fn decide(job: &Value, key: &Key, pod: &Value) -> Decision {
    for (number, rule) in list(job, "/spec/podFailurePolicy/rules").iter().enumerate() {
        let Some(what) = matched(rule, key, pod) else {
            continue;
        };
        return match text(rule, "/action") {
            "FailJob" => {
                Decision::FailJob(format!("{what} matching FailJob rule at index {number}"))
            }
            "Ignore" => Decision::Ignore,
            _ => Decision::Count,
        };
    }
    Decision::Count
}

/// What of a pod a rule matches, as the condition of the Job describes it; `None` if nothing.
fn matched(rule: &Value, key: &Key, pod: &Value) -> Option<String> {
    let place = format!("{}/{}", key.namespace, key.name);
    for pattern in list(rule, "/onPodConditions") {
        let wanted = match text(pattern, "/status") {
            "" => "True",
            status => status,
        };
        let kind = text(pattern, "/type");
        if condition(pod, kind) == wanted {
            return Some(format!("Pod {place} has condition {kind}"));
        }
    }
    let codes = rule.get("onExitCodes")?;
    let of = text(codes, "/containerName");
    let values: BTreeSet<i64> = list(codes, "/values")
        .iter()
        .filter_map(Value::as_i64)
        .collect();
    let is_negated = text(codes, "/operator") == "NotIn";
    let statuses = list(pod, "/status/initContainerStatuses")
        .iter()
        .chain(list(pod, "/status/containerStatuses"));
    for status in statuses.filter(|status| of.is_empty() || text(status, "/name") == of) {
        let Some(code) = number(status, "/state/terminated/exitCode") else {
            continue;
        };
        if code != 0 && values.contains(&code) != is_negated {
            let name = text(status, "/name");
            return Some(format!(
                "Container {name} for pod {place} failed with exit code {code}"
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_written_as_intervals() {
        let numbers = BTreeSet::from([0, 1, 2, 4, 6, 7]);
        assert_eq!(intervals(&numbers), "0-2,4,6,7");
    }
}
