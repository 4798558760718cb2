//! Detects the accelerators of the container.

use std::io::{self, Read as _};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use det_taskspec::variables as v;
use serde_json::{Value, json};

use crate::environment::TaskEnv;
use crate::report::Diagnostics;

/// Limit for the driver's tool: a faulty driver answers late or never.
const TOOL_TIMEOUT: Duration = Duration::from_secs(20);
const TOOL_POLL: Duration = Duration::from_millis(5);

/// The accelerators of the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Accelerators {
    /// `cuda`, `rocm`, or `cpu` for none.
    pub(crate) kind: &'static str,
    /// Stable identities, in the order of the driver.
    pub(crate) uuids: Vec<String>,
}

impl Accelerators {
    fn none() -> Self {
        Self {
            kind: "cpu",
            uuids: Vec::new(),
        }
    }

    /// The body of the report to the master.
    pub(crate) fn report(&self, env: &TaskEnv) -> Value {
        let text = |name: &str| env.text(name).unwrap_or_default();
        json!({
            "allocationId": text(v::DET_ALLOCATION_ID),
            "acceleratorData": {
                "containerId": text(v::DET_CONTAINER_ID),
                "allocationId": text(v::DET_ALLOCATION_ID),
                "nodeName": text(v::DET_AGENT_ID),
                "taskId": text(v::DET_TASK_ID),
                "acceleratorType": self.kind,
                "acceleratorUuids": self.uuids,
            },
        })
    }
}

/// What the task may see of the host's NVIDIA GPUs: numbers and UUIDs as its environment lists them, empty = all that the
/// driver shows; `None` = it has no slots.
pub(crate) fn visible_gpus(env: &TaskEnv) -> Option<Vec<String>> {
    if !has_slots(env) {
        return None;
    }
    let listed = env.text("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let listed = listed.split(',').map(str::trim);
    Some(
        listed
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect(),
    )
}

fn has_slots(env: &TaskEnv) -> bool {
    env.text(v::DET_SLOT_IDS)
        .is_some_and(|slots| slots.trim() != "[]")
}

/// Finds the accelerators that the task may use.
///
/// A zero-slot task has none, whatever the host has. If the agent has named them for the driver, no tool needs to run:
/// `nvidia-smi` takes most of a second.
pub(crate) fn inspect(env: &TaskEnv, diagnostics: &Diagnostics) -> Accelerators {
    if !has_slots(env) {
        return Accelerators::none();
    }
    for (name, kind) in [
        ("CUDA_VISIBLE_DEVICES", "cuda"),
        ("ROCR_VISIBLE_DEVICES", "rocm"),
    ] {
        if let Some(uuids) = env.text(name).and_then(listed_uuids) {
            return Accelerators { kind, uuids };
        }
    }
    let nvidia = ["--query-gpu=index,uuid", "--format=csv,noheader"];
    if let Some(output) = ask(env, diagnostics, "nvidia-smi", &nvidia) {
        let uuids = nvidia_uuids(&output, env.text("CUDA_VISIBLE_DEVICES"));
        if !uuids.is_empty() {
            return Accelerators {
                kind: "cuda",
                uuids,
            };
        }
    }
    if let Some(output) = ask(env, diagnostics, "rocm-smi", &["--showuniqueid", "--json"]) {
        let uuids = rocm_uuids(&output);
        if !uuids.is_empty() {
            return Accelerators {
                kind: "rocm",
                uuids,
            };
        }
    }
    Accelerators::none()
}

/// The list, if it names devices by identity and not by number.
fn listed_uuids(list: &str) -> Option<Vec<String>> {
    let uuids: Vec<String> = list.split(',').map(|uuid| uuid.trim().to_owned()).collect();
    let named = uuids
        .iter()
        .all(|uuid| uuid.starts_with("GPU-") || uuid.starts_with("MIG-"));
    named.then_some(uuids)
}

/// Reads `index, uuid` lines, without the devices that the driver is configured to hide.
fn nvidia_uuids(output: &str, visible: Option<&str>) -> Vec<String> {
    let visible: Option<Vec<&str>> = visible.map(|list| list.split(',').map(str::trim).collect());
    let mut gpus: Vec<(u32, &str)> = output
        .lines()
        .filter_map(|line| {
            let (index, uuid) = line.split_once(',')?;
            let (index, uuid) = (index.trim(), uuid.trim());
            let shown = visible
                .as_ref()
                .is_none_or(|v| v.contains(&index) || v.contains(&uuid));
            shown.then_some((index.parse().ok()?, uuid))
        })
        .collect();
    gpus.sort_unstable();
    gpus.into_iter().map(|(_, uuid)| uuid.to_owned()).collect()
}

fn rocm_uuids(output: &str) -> Vec<String> {
    let cards: Value = serde_json::from_str(output).unwrap_or_default();
    let mut gpus: Vec<(u32, &str)> = cards
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(card, facts)| {
            let index = card.strip_prefix("card")?.parse().ok()?;
            Some((index, facts.get("Unique ID")?.as_str()?))
        })
        .collect();
    gpus.sort_unstable();
    gpus.into_iter().map(|(_, uuid)| uuid.to_owned()).collect()
}

/// Output of a tool; `None` if it does not exist or fails, which is recorded in the diagnostics.
fn ask(env: &TaskEnv, diagnostics: &Diagnostics, tool: &str, args: &[&str]) -> Option<String> {
    let path = env.find_program(tool)?;
    let mut command = Command::new(path);
    command.args(args).env_clear().envs(&env.vars);
    match run(&mut command) {
        Ok(output) => Some(output),
        Err(error) => {
            diagnostics.note(format!(
                "{tool} did not report which accelerators there are: {error}"
            ));
            None
        }
    }
}

fn run(command: &mut Command) -> io::Result<String> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let deadline = Instant::now() + TOOL_TIMEOUT;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::other("no answer in time"));
        }
        thread::sleep(TOOL_POLL);
    };
    if !status.success() {
        return Err(io::Error::other(status.to_string()));
    }
    let mut output = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut output)?;
    }
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Facts;
    use crate::environment::tests::script;
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    /// A task on a host whose `nvidia-smi` is this shell script.
    fn found(vars: &[(&str, &str)], nvidia_smi: &str) -> Accelerators {
        let dir = tempfile::tempdir().unwrap();
        let tool = dir.path().join("nvidia-smi");
        fs::write(&tool, format!("#!/bin/sh\n{nvidia_smi}\n")).unwrap();
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("{}:/usr/bin:/bin", dir.path().display());
        let vars = [vars, &[("PATH", path.as_str())]].concat();
        let env = TaskEnv::new(BTreeMap::new(), &script(&vars), &Facts::default());
        let diagnostics = Diagnostics::to_file(&dir.path().join("log"));
        inspect(&env, &diagnostics)
    }

    fn cuda(uuids: &[&str]) -> Accelerators {
        Accelerators {
            kind: "cuda",
            uuids: uuids.iter().map(|&uuid| uuid.to_owned()).collect(),
        }
    }

    const TWO: &str = "echo '1, GPU-b'; echo '0, GPU-a'";

    #[test]
    fn accelerators_are_found_in_the_drivers_order() {
        let slots = ("DET_SLOT_IDS", "[0,1]");
        assert_eq!(found(&[slots], TWO), cuda(&["GPU-a", "GPU-b"]));
        let one = ("CUDA_VISIBLE_DEVICES", "1");
        assert_eq!(found(&[slots, one], TWO), cuda(&["GPU-b"]));
    }

    #[test]
    fn devices_named_by_the_agent_need_no_tool() {
        let vars = [
            ("DET_SLOT_IDS", "[0]"),
            ("CUDA_VISIBLE_DEVICES", "GPU-2,MIG-0"),
        ];
        assert_eq!(found(&vars, "exit 1"), cuda(&["GPU-2", "MIG-0"]));
    }

    #[test]
    fn a_task_without_slots_or_with_a_broken_driver_has_none() {
        assert_eq!(found(&[("DET_SLOT_IDS", "[]")], TWO), Accelerators::none());
        assert_eq!(
            found(&[("DET_SLOT_IDS", "[0]")], "exit 9"),
            Accelerators::none()
        );
    }

    #[test]
    fn rocm_cards_are_read_by_number() {
        let output =
            r#"{"card10": {"Unique ID": "0xb"}, "card2": {"Unique ID": "0xa"}, "system": {}}"#;
        assert_eq!(rocm_uuids(output), ["0xa", "0xb"]);
        assert!(rocm_uuids("no json").is_empty());
    }
}
