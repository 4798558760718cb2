//! Launched tasks as clients see them.

use det_api_types::agents::Container;
use det_api_types::experiments::LaunchWarning;
use det_api_types::tasks::TaskState as WireState;
use det_lifecycle::task::{TaskEnd, TaskState};
use det_taskspec::TaskDetails;

use crate::app::reads::tasks::LaunchedView;
use crate::http::views::agents::{container_state, device};
use crate::http::views::tasks;

/// How far a launched task is.
pub(crate) fn state(view: &LaunchedView) -> WireState {
    match (view.row.state, &view.attempt) {
        (TaskState::Ended(_), _) => WireState::Terminated,
        (_, Some(attempt)) if attempt.ended_at.is_none() => tasks::state(attempt),
        _ => WireState::Queued,
    }
}

/// How it ended, as a sentence; empty while it lives.
pub(crate) fn exit_status(view: &LaunchedView) -> String {
    // A task that was killed while it rested had ended its last attempt before, for another reason.
    let last = view.attempt.as_ref();
    let last = last.filter(|attempt| attempt.ended_at == view.row.ended_at);
    let reason = last.and_then(|attempt| attempt.exit_reason.clone());
    match view.row.state {
        TaskState::Ended(TaskEnd::Canceled) => reason.unwrap_or_else(|| "it was killed".to_owned()),
        TaskState::Ended(_) => reason.unwrap_or_else(|| view.row.state.name().to_owned()),
        _ => String::new(),
    }
}

/// The exit code of its program; of one that was killed there is none, whatever the signal left.
pub(crate) fn exit_code(view: &LaunchedView) -> Option<i64> {
    match view.row.state {
        TaskState::Ended(TaskEnd::Completed | TaskEnd::Failed) => {
            view.attempt.as_ref()?.status_code
        }
        _ => None,
    }
}

/// The path of its service on the master: with the token that a notebook asks for, where the reader is given it.
pub(crate) fn service_address(view: &LaunchedView) -> String {
    let query = match &view.row.details {
        TaskDetails::Notebook(notebook) if !notebook.token.is_empty() => {
            format!("?token={}", notebook.token)
        }
        _ => String::new(),
    };
    format!("/proxy/{}/{query}", view.row.id)
}

/// The container of a launched task with its devices; `None` = it has none at present.
pub(crate) fn container(view: &LaunchedView) -> Option<Container> {
    let (row, devices) = view.container.as_ref()?;
    Some(Container {
        id: row.id.clone(),
        state: container_state(row.observed.as_ref()),
        devices: devices.iter().map(device).collect(),
        parent: String::new(),
        permission_denied: false,
    })
}

/// Fills in what the objects of all kinds have in common; the rest is `$more`.
macro_rules! launched {
    ($object:ident, $view:expr, { $($more:tt)* }) => {{
        let view = $view;
        let owner = view.owner.as_deref();
        let username = owner.map(|user| user.username.clone()).unwrap_or_default();
        let display_name = owner.map(|user| user.display_name.clone());
        $object {
            id: view.row.id.clone(),
            description: view.row.description.clone(),
            state: $crate::http::views::launches::state(view),
            start_time: det_api_types::wire::Timestamp(view.row.created_at),
            container: $crate::http::views::launches::container(view),
            display_name: display_name.filter(|name| !name.is_empty()).unwrap_or_else(|| username.clone()),
            user_id: view.row.owner_id,
            username,
            resource_pool: view.row.resource_pool.clone(),
            exit_status: $crate::http::views::launches::exit_status(view),
            exit_code: $crate::http::views::launches::exit_code(view),
            last_failure: view.failure.as_ref().map($crate::http::views::tasks::failure),
            paused: view.row.state == det_lifecycle::task::TaskState::Suspended,
            job_id: view.row.job_id.clone(),
            workspace_id: view.row.workspace_id,
            $($more)*
        }
    }};
}
pub(crate) use launched;

/// What the body of a launch of any kind asks for.
macro_rules! launch_request {
    ($kind:expr, $body:ident) => {
        $crate::app::launches::LaunchRequest {
            kind: $kind,
            config: serde_json::Value::Object($body.config.0).to_string(),
            files: $crate::http::context_files::context_files("files", $body.files)?,
            workspace_id: $body.workspace_id.given(),
            templates: Some($body.template_name)
                .into_iter()
                .filter(|name| !name.is_empty())
                .collect(),
            preview: $body.preview,
            generic: $crate::app::launches::GenericRequest::default(),
            tensorboard: $crate::app::launches::TensorBoardRequest::default(),
        }
    };
}
pub(crate) use launch_request;

/// The warnings of a launch that clients know.
pub(crate) fn launch_warnings(slots_exceeded: bool) -> Vec<LaunchWarning> {
    let exceeded = LaunchWarning::CurrentSlotsExceeded;
    slots_exceeded.then_some(exceeded).into_iter().collect()
}
