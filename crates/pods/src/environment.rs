//! The variables of a pod's containers, and the script that its supervisor follows.
//!
//! As an agent completes the environment of a task on its host (`docs/contract/task-environment.md`, "Variables"), a pod
//! does it here. The supervisor lays the variables of the script over those of its container: what the container's are to
//! win is left out of the script.

use std::collections::BTreeSet;

use det_taskspec::variables::{self as v, LOG_WAIT_TIME, RESERVED_PREFIX};
use det_taskspec::{RUN_DIR, RunsIn, Script, accounts, pods};
use serde_json::{Value, json};

use crate::facts::{ClusterFacts, MasterCert, Member, SlotResource};
use crate::{json, template};

/// Seconds for which the log is shipped after the task's end.
/// A quarter of an hour, the most that a supervisor waits: nothing ships what a pod leaves when its container is gone, and a master may be away for a while.
const LOG_WAIT: &str = "900";
/// Word of the harness for "check no certificate", in place of a file.
const NO_CERT_CHECK: &str = "noverify";
/// Where the termination message of the task's container is read from.
pub(crate) const TERMINATION_LOG: &str = "/dev/termination-log";

/// The variables of the task's container that the system sets.
pub(crate) fn of_task(
    facts: &ClusterFacts,
    member: &Member,
    pods_of_allocation: usize,
    containers_of_pod: usize,
) -> Vec<Value> {
    let master = &facts.master;
    let tls = master.tls();
    let cert_file = match master.cert {
        MasterCert::Usual => None,
        MasterCert::Text(_) => Some(format!("{RUN_DIR}/{}", pods::CERTIFICATE_FILE)),
        MasterCert::NoVerify => Some(NO_CERT_CHECK.to_owned()),
    };
    let has_gpus = match facts.slots.of(member.pool()) {
        SlotResource::Extended(_) | SlotResource::Devices(_) => member.slots() > 0,
        SlotResource::Cpu { .. } => false,
    };
    let message_bytes = termination_message_bytes(containers_of_pod);
    let valued = [
        (v::DET_MASTER, Some(master.url())),
        (v::DET_MASTER_HOST, Some(master.host.clone())),
        (v::DET_MASTER_ADDR, Some(master.host.clone())),
        (v::DET_MASTER_PORT, Some(master.port.to_string())),
        (v::DET_USE_TLS, Some(tls.to_string())),
        (v::DET_MASTER_CERT_FILE, cert_file.filter(|_| tls)),
        (
            v::DET_MASTER_CERT_NAME,
            master.cert_name.clone().filter(|_| tls),
        ),
        (
            v::DET_RESOURCES_TYPE,
            Some(RunsIn::Pod.resources_type().to_owned()),
        ),
        (
            v::DET_KUBERNETES_JOB_PARALLELISM,
            Some(pods_of_allocation.to_string()),
        ),
        (
            v::DET_K8S_RESOURCE_POOL,
            Some(member.start.origin.resource_pool.clone()),
        ),
        // Images that ask for all GPUs would see those of other pods.
        (
            v::NVIDIA_VISIBLE_DEVICES,
            (!has_gpus).then(|| "void".to_owned()),
        ),
        (LOG_WAIT_TIME, Some(LOG_WAIT.to_owned())),
        (v::DET_TERMINATION_MESSAGE, Some(TERMINATION_LOG.to_owned())),
        (
            v::DET_TERMINATION_MESSAGE_BYTES,
            Some(message_bytes.to_string()),
        ),
    ];
    let valued = valued
        .into_iter()
        .filter_map(|(name, value)| Some(json!({"name": name, "value": escaped(&value?)})));
    let of_pod = [
        (v::DET_AGENT_ID, "spec.nodeName"),
        (v::DET_KUBERNETES_POD_IP, "status.podIP"),
    ];
    let of_pod = of_pod.map(
        |(name, field)| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}}),
    );
    valued.chain(of_pod).collect()
}

/// A value that Kubernetes must not expand: `$(NAME)` in it would be replaced.
fn escaped(value: &str) -> String {
    value.replace("$(", "$$(")
}

/// Bytes that the kubelet keeps of a termination message in a pod of so many containers: they share what it keeps of all.
/// Others may add a container.
fn termination_message_bytes(containers: usize) -> usize {
    let share = pods::MOST_OF_TERMINATION_MESSAGES / (containers + 1);
    share.min(pods::MOST_OF_TERMINATION_MESSAGE)
}

/// The variables of the task's container.
pub(crate) struct TaskVariables {
    /// The system's and then the user's, each name once.
    pub(crate) env: Vec<Value>,
    /// Names that scripts leave out, for the container's variables to win.
    pub(crate) kept: BTreeSet<String>,
}

/// Hides the GPUs of the node.
pub(crate) fn hide_gpus(env: &mut Vec<Value>) {
    env.retain(|entry| name(entry) != Some(v::NVIDIA_VISIBLE_DEVICES));
    env.push(json!({"name": v::NVIDIA_VISIBLE_DEVICES, "value": "void"}));
}

/// Combines the system's variables with the user's, which win but for those of the platform. What identifies the task is
/// in its script, and stays the platform's also where a user has such a variable.
pub(crate) fn combined(mut of_system: Vec<Value>, mut of_user: Vec<Value>) -> TaskVariables {
    let is_platforms = |it: &str| it.starts_with(RESERVED_PREFIX) && it != LOG_WAIT_TIME;
    of_user.retain(|entry| {
        let same = |system: &Value| name(system) == name(entry);
        // Which GPUs a task sees is decided by its slots, also where the system has no value for it.
        name(entry) != Some(v::NVIDIA_VISIBLE_DEVICES)
            && !(name(entry).is_some_and(is_platforms) && of_system.iter().any(same))
    });
    let names = |env: &[Value]| -> BTreeSet<String> {
        let names = env.iter().filter_map(|entry| name(entry));
        names.map(str::to_owned).collect()
    };
    let users = names(&of_user);
    let mut kept = names(&of_system);
    let own = users
        .iter()
        .filter(|name| !name.starts_with(RESERVED_PREFIX));
    kept.extend(own.cloned());
    of_system.retain(|entry| name(entry).is_none_or(|name| !users.contains(name)));
    of_system.extend(of_user);
    TaskVariables {
        env: of_system,
        kept,
    }
}

/// The variables of the container that places supervisor and scripts, for pods with these ranks.
pub(crate) fn of_placement(ranks: &[u32]) -> Vec<Value> {
    let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
    vec![json!({"name": pods::RANKS, "value": ranks.join(",")})]
}

/// The script of a member, without the variables in `kept`.
pub(crate) fn script(facts: &ClusterFacts, member: &Member, kept: &BTreeSet<String>) -> Script {
    let spec = &member.start.spec;
    let mut script = spec.script.clone();
    script.work_dir = spec.user.work_dir(&script.work_dir);
    script.env.retain(|(name, _)| !kept.contains(name));
    let account = accounts::of_container(&spec.user, &script.work_dir);
    script.files.extend(account);
    script.save_seconds = template::save_seconds(facts, member);
    script
}

fn name(entry: &Value) -> Option<&str> {
    json::text(entry, &["name"])
}
