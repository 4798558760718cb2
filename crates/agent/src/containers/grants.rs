//! What of this host a task may be given because its configuration asks for it: devices and capabilities.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use det_taskspec::guard::HostGuard;
use det_taskspec::{ContainerSpec, DeviceMapping};

use super::prepare::{ContainerInputs, PrepareError};
use super::store::RuntimeKind;

/// Refuses a device that the task's configuration names and that the task may not have.
pub(super) fn check_device(
    device: &DeviceMapping,
    inputs: &ContainerInputs<'_>,
) -> Result<(), PrepareError> {
    let failed = |reason: String| PrepareError::Device {
        path: device.host_path.clone(),
        reason,
    };
    let absent = |error: io::Error| failed(format!("it is not on this agent: {error}"));
    let real = std::fs::canonicalize(&device.host_path).map_err(absent)?;
    let guard = inputs.guard;
    if inputs.runtime == RuntimeKind::Process {
        return match guard.device_refusal(&real) {
            Some(reason) => Err(failed(reason)),
            None => Ok(()),
        };
    }
    match refused_device(&real, guard).map_err(absent)? {
        None => Ok(()),
        Some((found, reason)) if found == real => Err(failed(reason)),
        Some((found, reason)) => Err(failed(format!(
            "\"{}\" is in it: {reason}",
            found.display()
        ))),
    }
}

/// A device at or below a path that gives root of a container control over the host, or its input, and that no
/// administrator allowed; with the reason.
fn refused_device(path: &Path, guard: &HostGuard) -> io::Result<Option<(PathBuf, String)>> {
    const OF_THE_HOST: [&str; 17] = [
        "/dev/bsg",
        "/dev/console",
        "/dev/cpu/",
        "/dev/input",
        "/dev/kmem",
        "/dev/kmsg",
        "/dev/mapper",
        "/dev/mem",
        "/dev/nvme",
        "/dev/port",
        "/dev/raw",
        "/dev/sg",
        "/dev/tty",
        "/dev/uhid",
        "/dev/uinput",
        "/dev/vcs",
        "/dev/vfio",
    ];
    const MOST_ENTRIES: usize = 10_000;
    if guard.device_refusal(path).is_none() {
        return Ok(None);
    }
    // An engine passes all devices in a directory.
    let mut left = vec![path.to_owned()];
    let mut seen = 0;
    while let Some(next) = left.pop() {
        let kind = match std::fs::symlink_metadata(&next) {
            Ok(found) => found.file_type(),
            // Files in shared memory come and go.
            Err(error) if error.kind() == io::ErrorKind::NotFound && next != path => continue,
            Err(error) => return Err(error),
        };
        seen += 1;
        let name = next.to_string_lossy();
        let is_named = OF_THE_HOST.iter().any(|start| name.starts_with(start));
        let is_dangerous = kind.is_block_device()
            // The terminal of the process that opens it.
            || (kind.is_char_device() && is_named && name != "/dev/tty")
            // The search is limited: the whole host is not searched for a task.
            || (kind.is_dir() && !next.starts_with("/dev"))
            || seen > MOST_ENTRIES;
        if is_dangerous && let Some(reason) = guard.device_refusal(&next) {
            return Ok(Some((next, reason)));
        }
        if kind.is_dir() {
            let entries = match std::fs::read_dir(&next) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other?,
            };
            for entry in entries {
                left.push(entry?.path());
            }
        }
    }
    Ok(None)
}

/// Refuses capabilities that the task's configuration asks for and that the task may not have. Processes get none.
pub(super) fn check_capabilities(
    spec: &ContainerSpec,
    inputs: &ContainerInputs<'_>,
) -> Result<(), PrepareError> {
    if inputs.runtime == RuntimeKind::Process {
        return Ok(());
    }
    for name in &spec.add_capabilities {
        let guard = inputs.guard;
        if let Some(reason) = guard.capability_refusal(name, &spec.default_capabilities) {
            let name = name.clone();
            return Err(PrepareError::Capability { name, reason });
        }
    }
    Ok(())
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
