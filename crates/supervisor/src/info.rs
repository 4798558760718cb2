//! The info files that `determined.get_cluster_info()` of the harness package reads.
//!
//! Member names are those of the package's classes: a member too many or too few is an error there.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use det_taskspec::{TaskKind, variables as v};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use crate::environment::TaskEnv;
use crate::failure::SetupError;

/// Where the containers of an allocation are, in rank order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rendezvous {
    /// Address of each container; the first is the chief.
    #[serde(rename(serialize = "container_addrs"))]
    pub(crate) addresses: Vec<String>,
    /// Rank of this container, from 0.
    #[serde(rename(serialize = "container_rank"))]
    pub(crate) rank: u32,
    /// Number of slots of each container.
    #[serde(rename(serialize = "container_slot_counts"))]
    pub(crate) slots: Vec<u32>,
}

type Members = BTreeMap<&'static str, Box<RawValue>>;

/// Writes `cluster.json`, for trials `trial.json`, and `resources.json`.
pub(crate) fn write(
    dir: &Path,
    kind: TaskKind,
    env: &TaskEnv,
    gpu_uuids: &[String],
) -> Result<(), SetupError> {
    write_json(dir, "cluster.json", &cluster(env)?)?;
    if kind.works_for_trial() {
        write_json(dir, "trial.json", &trial(env)?)?;
    }
    let resources = BTreeMap::from([("gpu_uuids", gpu_uuids)]);
    write_json(dir, "resources.json", &resources)
}

/// Writes `rendezvous.json`: the addresses of the peers, for the code of the task.
pub(crate) fn write_rendezvous(dir: &Path, rendezvous: &Rendezvous) -> Result<(), SetupError> {
    write_json(dir, "rendezvous.json", rendezvous)
}

fn write_json(dir: &Path, name: &str, content: &impl Serialize) -> Result<(), SetupError> {
    let path = dir.join(name);
    let failed = |cause: String| SetupError::host(format!("could not write {path:?}: {cause}"));
    let bytes = serde_json::to_vec(content).map_err(|error| failed(error.to_string()))?;
    fs::write(&path, bytes).map_err(|error| failed(error.to_string()))
}

fn cluster(env: &TaskEnv) -> Result<Members, SetupError> {
    Ok(Members::from([
        ("master_url", text(env, v::DET_MASTER)?),
        ("cluster_id", text(env, v::DET_CLUSTER_ID)?),
        ("agent_id", text(env, v::DET_AGENT_ID)?),
        ("slot_ids", json(env, v::DET_SLOT_IDS)?),
        ("task_id", text(env, v::DET_TASK_ID)?),
        ("allocation_id", text(env, v::DET_ALLOCATION_ID)?),
        ("session_token", text(env, v::DET_SESSION_TOKEN)?),
        ("task_type", text(env, v::DET_TASK_TYPE)?),
        ("master_cert_name", optional(env, v::DET_MASTER_CERT_NAME)?),
        ("master_cert_file", optional(env, v::DET_MASTER_CERT_FILE)?),
        (
            "latest_checkpoint",
            optional(env, v::DET_LATEST_CHECKPOINT)?,
        ),
    ]))
}

fn trial(env: &TaskEnv) -> Result<Members, SetupError> {
    let config = json(env, v::DET_EXPERIMENT_CONFIG)?;
    let debug = serde_json::from_str::<serde_json::Value>(config.get())
        .ok()
        .and_then(|config| config.get("debug")?.as_bool())
        .unwrap_or(false);
    Ok(Members::from([
        ("trial_id", number(env, v::DET_TRIAL_ID)?),
        ("experiment_id", number(env, v::DET_EXPERIMENT_ID)?),
        ("trial_seed", number(env, v::DET_TRIAL_SEED)?),
        ("hparams", json(env, v::DET_HPARAMS)?),
        ("config", config),
        ("steps_completed", number(env, v::DET_STEPS_COMPLETED)?),
        ("trial_run_id", number(env, v::DET_TRIAL_RUN_ID)?),
        ("debug", raw(v::DET_EXPERIMENT_CONFIG, &debug)?),
        (
            "inter_node_network_interface",
            optional(env, v::DET_INTER_NODE_NETWORK_INTERFACE)?,
        ),
    ]))
}

fn required<'a>(env: &'a TaskEnv, name: &str) -> Result<&'a str, SetupError> {
    env.text(name).ok_or_else(|| {
        SetupError::task(format!(
            "the task's environment has no {name}, which its info files need"
        ))
    })
}

fn text(env: &TaskEnv, name: &str) -> Result<Box<RawValue>, SetupError> {
    raw(name, &required(env, name)?)
}

fn optional(env: &TaskEnv, name: &str) -> Result<Box<RawValue>, SetupError> {
    raw(name, &env.text(name))
}

fn number(env: &TaskEnv, name: &str) -> Result<Box<RawValue>, SetupError> {
    let value = required(env, name)?;
    let number: i64 = value.trim().parse().map_err(|_| {
        SetupError::task(format!(
            "the task's environment has {name}={value:?}, which is not a number"
        ))
    })?;
    raw(name, &number)
}

/// JSON is passed on unchanged: `1` must not become `1.0`.
fn json(env: &TaskEnv, name: &str) -> Result<Box<RawValue>, SetupError> {
    let value = required(env, name)?;
    RawValue::from_string(value.to_owned()).map_err(|error| {
        SetupError::task(format!(
            "the task's environment has a {name} that is not JSON: {error}"
        ))
    })
}

fn raw(name: &str, value: &impl Serialize) -> Result<Box<RawValue>, SetupError> {
    to_raw_value(value)
        .map_err(|error| SetupError::task(format!("{name} could not be written as JSON: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use det_taskspec::variables::{Presence, Tasks, VARIABLES};

    use crate::environment::Facts;
    use crate::environment::tests::script;
    use serde_json::json;

    const CLUSTER: [(&str, &str); 8] = [
        ("DET_MASTER", "http://m:8080"),
        ("DET_CLUSTER_ID", "k"),
        ("DET_AGENT_ID", "a"),
        ("DET_SLOT_IDS", "[0,1]"),
        ("DET_TASK_ID", "t"),
        ("DET_ALLOCATION_ID", "t.1"),
        ("DET_SESSION_TOKEN", "secret"),
        ("DET_TASK_TYPE", "TRIAL"),
    ];
    const TRIAL: [(&str, &str); 7] = [
        ("DET_TRIAL_ID", "3"),
        ("DET_EXPERIMENT_ID", "1"),
        ("DET_TRIAL_SEED", "4294967295"),
        ("DET_HPARAMS", r#"{"layers": 2, "lr": 1.0}"#),
        ("DET_EXPERIMENT_CONFIG", r#"{"debug": true}"#),
        ("DET_STEPS_COMPLETED", "0"),
        ("DET_TRIAL_RUN_ID", "5"),
    ];

    fn env(parts: &[&[(&str, &str)]]) -> TaskEnv {
        TaskEnv::new(BTreeMap::new(), &script(&parts.concat()), &Facts::default())
    }

    fn read(dir: &Path, name: &str) -> serde_json::Value {
        serde_json::from_slice(&fs::read(dir.join(name)).unwrap()).unwrap()
    }

    #[test]
    fn a_trials_files_hold_what_the_package_asks_for() {
        let dir = tempfile::tempdir().unwrap();
        let env = env(&[&CLUSTER, &TRIAL]);
        write(dir.path(), TaskKind::Trial, &env, &["GPU-1".to_owned()]).unwrap();
        assert_eq!(
            read(dir.path(), "cluster.json"),
            json!({"master_url": "http://m:8080", "cluster_id": "k", "agent_id": "a", "slot_ids": [0, 1],
                   "task_id": "t", "allocation_id": "t.1", "session_token": "secret", "task_type": "TRIAL",
                   "master_cert_name": null, "master_cert_file": null, "latest_checkpoint": null})
        );
        assert_eq!(
            read(dir.path(), "trial.json"),
            json!({"trial_id": 3, "experiment_id": 1, "trial_seed": 4_294_967_295_u32,
                   "hparams": {"layers": 2, "lr": 1.0}, "config": {"debug": true}, "steps_completed": 0,
                   "trial_run_id": 5, "debug": true, "inter_node_network_interface": null})
        );
        let text = fs::read_to_string(dir.path().join("trial.json")).unwrap();
        assert!(text.contains(r#""layers": 2, "lr": 1.0"#), "{text}");
        assert_eq!(
            read(dir.path(), "resources.json"),
            json!({"gpu_uuids": ["GPU-1"]})
        );
    }

    #[test]
    fn the_files_need_only_what_every_task_has() {
        for (kind, tasks) in [
            (TaskKind::Command, &[Tasks::All][..]),
            (TaskKind::Trial, &[Tasks::All, Tasks::Trials]),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let promised: Vec<(&str, &str)> = VARIABLES
                .iter()
                .filter(|variable| variable.presence == Presence::Always)
                .filter(|variable| tasks.contains(&variable.tasks))
                .map(|variable| (variable.name, "1"))
                .collect();
            write(dir.path(), kind, &env(&[&promised]), &[]).unwrap();
        }
    }

    #[test]
    fn a_missing_variable_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = write(dir.path(), TaskKind::Command, &env(&[&CLUSTER[1..]]), &[]).unwrap_err();
        assert!(error.to_string().contains("DET_MASTER"), "{error}");
        let error = write(dir.path(), TaskKind::Trial, &env(&[&CLUSTER]), &[]).unwrap_err();
        assert!(
            error.to_string().contains("DET_EXPERIMENT_CONFIG"),
            "{error}"
        );
    }

    #[test]
    fn the_rendezvous_answer_becomes_the_packages_file() {
        let answer = json!({"addresses": ["10.0.0.1", "10.0.0.2"], "rank": 1, "slots": [4, 2]});
        let rendezvous: Rendezvous = serde_json::from_value(answer).unwrap();
        let dir = tempfile::tempdir().unwrap();
        write_rendezvous(dir.path(), &rendezvous).unwrap();
        assert_eq!(
            read(dir.path(), "rendezvous.json"),
            json!({"container_addrs": ["10.0.0.1", "10.0.0.2"], "container_rank": 1, "container_slot_counts": [4, 2]})
        );
    }
}
