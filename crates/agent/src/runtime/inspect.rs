//! What an engine reports of its containers. Podman has more states than Docker, which the client library refuses together
//! with everything else in the response: a container that has ended is "stopped" until Podman has cleaned up after it.

use bollard::Docker;
use bollard::errors::Error as EngineFault;
use bollard::models::{ContainerInspectResponse, ContainerSummary};
use bollard::query_parameters::ListContainersOptions;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// States that the library knows, in lower case: <https://docs.docker.com/reference/api/engine/version/v1.45/>.
const KNOWN: [&str; 8] = [
    "",
    "created",
    "running",
    "paused",
    "restarting",
    "removing",
    "exited",
    "dead",
];

/// The container with this id or name.
pub(super) async fn container(
    docker: &Docker,
    name: &str,
) -> Result<ContainerInspectResponse, EngineFault> {
    let found = docker.inspect_container(name, None).await;
    read_again(found, |found| {
        if let Some(state) = found.get_mut("State") {
            let is_running = state.get("Running") == Some(&Value::Bool(true));
            translate(state.get_mut("Status"), is_running);
        }
    })
}

/// The containers that `options` ask for.
pub(super) async fn containers(
    docker: &Docker,
    options: ListContainersOptions,
) -> Result<Vec<ContainerSummary>, EngineFault> {
    let found = docker.list_containers(Some(options)).await;
    read_again(found, |found| {
        for container in found.as_array_mut().into_iter().flatten() {
            translate(container.get_mut("State"), false);
        }
    })
}

/// Reads a response that the library refused once more, with its states translated; the error stays if something else is
/// wrong with it.
fn read_again<T: DeserializeOwned>(
    outcome: Result<T, EngineFault>,
    translate: impl FnOnce(&mut Value),
) -> Result<T, EngineFault> {
    match outcome {
        Err(EngineFault::JsonDataError {
            message,
            contents,
            column,
        }) => read(&contents, translate).ok_or(EngineFault::JsonDataError {
            message,
            contents,
            column,
        }),
        other => other,
    }
}

/// Reads a response in which states are translated first; `None` = something else is wrong with it.
fn read<T: DeserializeOwned>(contents: &str, translate: impl FnOnce(&mut Value)) -> Option<T> {
    let mut found: Value = serde_json::from_str(contents).ok()?;
    translate(&mut found);
    serde_json::from_value(found).ok()
}

/// Replaces a state that the library does not know by the one of Docker that means the same.
fn translate(state: Option<&mut Value>, is_running: bool) {
    let Some(state) = state else { return };
    let Some(text) = state.as_str() else { return };
    if KNOWN.contains(&text) {
        return;
    }
    let docker = match text {
        "configured" | "initialized" => "created",
        "stopped" => "exited",
        "stopping" => "running",
        _ if is_running => "running",
        _ => "exited",
    };
    *state = docker.into();
}

#[cfg(test)]
mod tests {
    use bollard::models::ContainerStateStatusEnum as Status;

    use super::*;

    fn status(written: &str, is_running: bool) -> Option<Status> {
        let contents = serde_json::json!({
            "Id": "x",
            "State": {"Status": written, "Running": is_running, "ExitCode": 3},
        });
        let found: ContainerInspectResponse = read(&contents.to_string(), |found| {
            translate(found["State"].get_mut("Status"), is_running);
        })?;
        let state = found.state?;
        assert_eq!(state.exit_code, Some(3), "the rest is kept");
        state.status
    }

    #[test]
    fn podmans_states_are_translated_and_dockers_are_kept() {
        for (written, is_running, expected) in [
            ("stopped", false, Status::EXITED),
            ("initialized", false, Status::CREATED),
            ("stopping", true, Status::RUNNING),
            ("of a later version", true, Status::RUNNING),
            ("of a later version", false, Status::EXITED),
            ("paused", true, Status::PAUSED),
            ("dead", false, Status::DEAD),
        ] {
            assert_eq!(status(written, is_running), Some(expected), "{written}");
        }
    }

    #[test]
    fn what_is_no_response_is_no_container() {
        assert!(read::<ContainerInspectResponse>("{", |_| {}).is_none());
        assert!(read::<Vec<ContainerSummary>>("{}", |_| {}).is_none());
    }
}
