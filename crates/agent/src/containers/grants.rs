//! What of this host a task may be given because its configuration asks for it: devices and capabilities.

use std::path::{Path, PathBuf};

use det_taskspec::guard::{HostGuard, RDMA};
use det_taskspec::{ContainerSpec, DeviceMapping};

use super::prepare::{ContainerInputs, PrepareError, device_mappings};
use super::store::RuntimeKind;

/// Finds a device that the task's configuration names, and refuses it where the task may not have it. The directory of RDMA
/// becomes those of its devices that every container may have, unless an administrator allows all of it.
///
/// What is returned names the device without links: an engine opens the path again, and a link of a user could lead to
/// another device by then. Only root makes names below `/dev`.
pub(super) fn find_device(
    device: &DeviceMapping,
    inputs: &ContainerInputs<'_>,
) -> Result<Vec<DeviceMapping>, PrepareError> {
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
        if real != Path::new(RDMA) || inputs.runtime == RuntimeKind::Process {
            return Err(failed(reason));
        }
        let found = std::fs::read_dir(&real)
            .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
            .map_err(|error| failed(format!("its devices cannot be listed: {error}")))?;
        let parts = harmless_parts(device, found, inputs.guard, inputs.other_nodes);
        return if parts.is_empty() {
            Err(failed(reason))
        } else {
            Ok(parts)
        };
    }
    let name = real
        .to_str()
        .ok_or_else(|| failed("its name is no text in UTF-8".to_owned()))?;
    Ok(vec![DeviceMapping {
        host_path: name.to_owned(),
        ..device.clone()
    }])
}

/// Those of a directory's devices that every container may have, each below the path that the directory was to have.
fn harmless_parts(
    directory: &DeviceMapping,
    mut found: Vec<PathBuf>,
    guard: &HostGuard,
    other_nodes: &[PathBuf],
) -> Vec<DeviceMapping> {
    found.sort();
    found.retain(|path| {
        guard
            .container_device_refusal(path, &[], other_nodes)
            .is_none()
    });
    let part = |path: &PathBuf| {
        let name = path.file_name()?.to_str()?;
        let below = directory.container_path.trim_end_matches('/');
        Some(DeviceMapping {
            host_path: path.to_str()?.to_owned(),
            container_path: format!("{below}/{name}"),
            mode: directory.mode.clone(),
        })
    };
    found.iter().filter_map(part).collect()
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
    fn the_directory_of_rdma_is_given_in_parts() {
        let directory = DeviceMapping {
            host_path: RDMA.to_owned(),
            container_path: "/dev/ib/".to_owned(),
            mode: "rw".to_owned(),
        };
        let names = ["umad0", "uverbs1", "rdma_cm", "issm0", "uverbs0", "by-path"];
        let found = names.map(|name| Path::new(RDMA).join(name));
        let guard = HostGuard::default();
        let given = harmless_parts(&directory, found.to_vec(), &guard, &[]);
        let given: Vec<(&str, &str)> = given
            .iter()
            .map(|part| (part.host_path.as_str(), part.container_path.as_str()))
            .collect();
        assert_eq!(
            given,
            [
                ("/dev/infiniband/rdma_cm", "/dev/ib/rdma_cm"),
                ("/dev/infiniband/uverbs0", "/dev/ib/uverbs0"),
                ("/dev/infiniband/uverbs1", "/dev/ib/uverbs1"),
            ]
        );
    }

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
