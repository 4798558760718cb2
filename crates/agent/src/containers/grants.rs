//! What of this host a task may be given because its configuration asks for it: devices and capabilities.

use std::path::PathBuf;

use det_taskspec::{ContainerSpec, DeviceMapping};

use super::prepare::{ContainerInputs, PrepareError, device_mappings};
use super::store::RuntimeKind;

/// Finds a device that the task's configuration names, and refuses it where the task may not have it.
///
/// What is returned names the device without links: an engine opens the path again, and a link of a user could lead to
/// another device by then. Only root makes names below `/dev`.
pub(super) fn find_device(
    device: &DeviceMapping,
    inputs: &ContainerInputs<'_>,
) -> Result<DeviceMapping, PrepareError> {
    let failed = |reason: String| PrepareError::Device {
        path: device.host_path.clone(),
        reason,
    };
    let real = std::fs::canonicalize(&device.host_path)
        .map_err(|error| failed(format!("it is not on this agent: {error}")))?;
    let refusal = match inputs.runtime {
        RuntimeKind::Process => inputs.guard.device_refusal(&real),
        RuntimeKind::Docker | RuntimeKind::Podman => {
            let own: Vec<PathBuf> = device_mappings(inputs.own_devices)
                .map(|own| own.host_path.into())
                .collect();
            inputs
                .guard
                .container_device_refusal(&real, &own, inputs.other_nodes)
        }
    };
    if let Some(reason) = refusal {
        return Err(failed(reason));
    }
    let name = real
        .to_str()
        .ok_or_else(|| failed("its name is no text in UTF-8".to_owned()))?;
    Ok(DeviceMapping {
        host_path: name.to_owned(),
        ..device.clone()
    })
}

/// Refuses capabilities that the task's configuration asks for and that the task may not have; returns those that its
/// container is to drop. Processes have none.
pub(super) fn check_capabilities(
    spec: &ContainerSpec,
    inputs: &ContainerInputs<'_>,
) -> Result<Vec<String>, PrepareError> {
    if inputs.runtime == RuntimeKind::Process {
        return Ok(Vec::new());
    }
    let (guard, defaults) = (inputs.guard, &spec.default_capabilities);
    for name in &spec.add_capabilities {
        if let Some(reason) = guard.capability_refusal(name, defaults, inputs.shares_network) {
            let name = name.clone();
            return Err(PrepareError::Capability { name, reason });
        }
    }
    let mut dropped = spec.drop_capabilities.clone();
    if inputs.shares_network {
        let missing = guard.dropped_in_host_network(defaults);
        dropped.extend(missing.into_iter().map(str::to_owned));
    }
    dropped.sort();
    dropped.dedup();
    Ok(dropped)
}

/// The line of a task's log where its configuration asks for capabilities in the process runtime, which gives none.
///
/// Those that the master's configuration gives to every task are not named, because the task's owner did not ask for
/// them.
pub(super) fn missing_capabilities_notice(spec: &ContainerSpec) -> Option<String> {
    let asked = spec.add_capabilities.iter();
    let missing: Vec<&str> = asked
        .filter(|name| !spec.default_capabilities.contains(name))
        .map(String::as_str)
        .collect();
    if missing.is_empty() {
        return None;
    }
    Some(format!(
        "environment.add_capabilities: {} not given: this agent runs tasks as processes, which have no capabilities. \
         Use a resource pool whose agents run containers (Docker or Podman) if the task needs them",
        missing.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_of_a_process_names_the_capabilities_that_its_own_configuration_asked_for() {
        let mut spec = crate::testing::container_spec("c1", "true");
        assert_eq!(missing_capabilities_notice(&spec), None);
        spec.default_capabilities = vec!["NET_RAW".into()];
        spec.add_capabilities = vec!["NET_RAW".into()];
        assert_eq!(missing_capabilities_notice(&spec), None);
        spec.add_capabilities.push("SYS_PTRACE".into());
        let notice = missing_capabilities_notice(&spec).unwrap();
        assert!(
            notice.contains("SYS_PTRACE") && !notice.contains("NET_RAW"),
            "{notice}"
        );
    }
}
