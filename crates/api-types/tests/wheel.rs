//! Our types against the generated classes of the unmodified client.
//!
//! The client is found through `DET_WHEEL_PYTHON`, a Python interpreter that can `import determined`. Without it the
//! comparison with the client is skipped, loudly; what needs no client is checked all the same.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::{Command, Stdio};

use det_api_types::operation::{self, OPERATIONS, Tier};
use det_api_types::wire::{self, Secret};
use det_api_types::{
    agents, allocations, auth, checkpoints, error, events, experiments, jobs, launches, logs,
    master, metrics, page, pools, profiler, searcher, tasks, trials, users, workspaces,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use utoipa::ToSchema;

/// A message in the two forms in which each is tried.
struct Shape {
    /// All zero, empty or unset.
    default: Value,
    /// Every field set.
    full: Value,
}

/// The JSON that a type writes; checks that it reads what it writes, in both spellings, and that its schema contains the
/// fields it writes.
fn shape<T>() -> Shape
where
    T: Serialize + DeserializeOwned + Default + ToSchema,
{
    let written = |message: &T| serde_json::to_value(message).expect("messages can be written");
    let check = |value: &Value, name: &str| {
        let read: T = wire::decode_value(value.clone())
            .unwrap_or_else(|error| panic!("{} ({name}): {error}", std::any::type_name::<T>()));
        written(&read)
    };
    let default = written(&T::default());
    let full = written(&support::full::<T>());
    for value in [&default, &full] {
        assert_eq!(&check(value, "as written"), value);
        assert_eq!(&check(&snake_case(value), "in snake case"), value);
    }
    assert_eq!(
        schema_fields::<T>(),
        field_names(&default),
        "schema of {}",
        T::name()
    );
    Shape { default, full }
}

fn field_names(message: &Value) -> BTreeSet<String> {
    let fields = message.as_object().into_iter().flatten();
    fields.map(|(name, _)| name.clone()).collect()
}

fn schema_fields<T: ToSchema>() -> BTreeSet<String> {
    let schema = serde_json::to_value(T::schema()).expect("schemas can be written");
    field_names(&schema["properties"])
}

/// The same message with every key of a message in snake case; free JSON has such keys already.
fn snake_case(value: &Value) -> Value {
    match value {
        Value::Array(elements) => elements.iter().map(snake_case).collect(),
        Value::Object(entries) => entries
            .iter()
            .map(|(key, value)| {
                let mut name = String::new();
                for letter in key.chars() {
                    if letter.is_ascii_uppercase() {
                        name.push('_');
                    }
                    name.push(letter.to_ascii_lowercase());
                }
                (name, snake_case(value))
            })
            .collect::<serde_json::Map<_, _>>()
            .into(),
        other => other.clone(),
    }
}

/// An operation with our types for it.
struct OperationTypes {
    name: &'static str,
    query: Option<Shape>,
    request: Option<Shape>,
    response: Shape,
}

macro_rules! built {
    ($($name:ident $(? $query:ty)?: $($request:ty)? => $response:ty,)*) => {
        vec![$(OperationTypes {
            name: stringify!($name),
            query: built!(@ $($query)?),
            request: built!(@ $($request)?),
            response: shape::<$response>(),
        },)*]
    };
    (@ $type:ty) => { Some(shape::<$type>()) };
    (@) => { None };
}

#[expect(clippy::too_many_lines, reason = "one table")]
fn built() -> Vec<OperationTypes> {
    use page::Empty;
    built! {
        GetAgents ? agents::GetAgentsQuery: => agents::GetAgentsResponse,
        GetAgent: => agents::GetAgentResponse,
        DisableAgent: agents::DisableAgentRequest => agents::DisableAgentResponse,
        EnableAgent: => agents::EnableAgentResponse,
        GetSlots: => agents::GetSlotsResponse,
        GetSlot: => agents::GetSlotResponse,
        EnableSlot: => agents::EnableSlotResponse,
        DisableSlot: agents::DisableSlotRequest => agents::DisableSlotResponse,
        GetAllocation: => allocations::GetAllocationResponse,
        PostAllocationAcceleratorData: allocations::PostAllocationAcceleratorDataRequest => Empty,
        AllocationReady: allocations::AllocationReadyRequest => Empty,
        AllocationWaiting: allocations::AllocationWaitingRequest => Empty,
        MarkAllocationResourcesDaemon: allocations::MarkAllocationResourcesDaemonRequest => Empty,
        AllocationRendezvousInfo: => allocations::AllocationRendezvousInfoResponse,
        AllocationPreemptionSignal ? allocations::AllocationPreemptionSignalQuery: => allocations::AllocationPreemptionSignalResponse,
        AckAllocationPreemptionSignal: allocations::AckAllocationPreemptionSignalRequest => Empty,
        AllocationPendingPreemptionSignal: allocations::AllocationPendingPreemptionSignalRequest => Empty,
        AllocationAllGather: allocations::AllocationAllGatherRequest => allocations::AllocationAllGatherResponse,
        PostAllocationProxyAddress: allocations::PostAllocationProxyAddressRequest => Empty,
        Login: auth::LoginRequest => auth::LoginResponse,
        Logout: => Empty,
        CurrentUser: => auth::CurrentUserResponse,
        GetMe: => auth::GetMeResponse,
        GetUsers ? users::GetUsersQuery: => users::GetUsersResponse,
        GetUser: => users::GetUserResponse,
        GetUserByUsername: => users::GetUserByUsernameResponse,
        PostUser: users::PostUserRequest => users::PostUserResponse,
        PatchUser: users::PatchUser => users::PatchUserResponse,
        SetUserPassword: Secret => users::SetUserPasswordResponse,
        GetMaster: => master::GetMasterResponse,
        GetTelemetry: => master::GetTelemetryResponse,
        GetMasterConfig: => master::GetMasterConfigResponse,
        PatchMasterConfig: master::PatchMasterConfigRequest => Empty,
        health: => master::HealthCheck,
        MasterLogs ? logs::MasterLogsQuery: => logs::MasterLogsResponse,
        GetExperiments ? experiments::GetExperimentsQuery: => experiments::GetExperimentsResponse,
        CreateExperiment: experiments::CreateExperimentRequest => experiments::CreateExperimentResponse,
        PutExperiment: experiments::CreateExperimentRequest => experiments::PutExperimentResponse,
        GetExperiment: => experiments::GetExperimentResponse,
        PatchExperiment: experiments::PatchExperiment => experiments::PatchExperimentResponse,
        DeleteExperiment: => Empty,
        ContinueExperiment: experiments::ContinueExperimentRequest => experiments::ContinueExperimentResponse,
        ActivateExperiment: => Empty,
        PauseExperiment: => Empty,
        CancelExperiment: => Empty,
        KillExperiment: => Empty,
        ArchiveExperiment: => Empty,
        UnarchiveExperiment: => Empty,
        ActivateExperiments: experiments::BulkExperimentsRequest => experiments::BulkExperimentsResponse,
        ArchiveExperiments: experiments::BulkExperimentsRequest => experiments::BulkExperimentsResponse,
        CancelExperiments: experiments::BulkExperimentsRequest => experiments::BulkExperimentsResponse,
        DeleteExperiments: experiments::BulkExperimentsRequest => experiments::BulkExperimentsResponse,
        KillExperiments: experiments::BulkExperimentsRequest => experiments::BulkExperimentsResponse,
        PauseExperiments: experiments::BulkExperimentsRequest => experiments::BulkExperimentsResponse,
        UnarchiveExperiments: experiments::BulkExperimentsRequest => experiments::BulkExperimentsResponse,
        GetExperimentLabels ? experiments::GetExperimentLabelsQuery: => experiments::GetExperimentLabelsResponse,
        GetExperimentValidationHistory: => experiments::GetExperimentValidationHistoryResponse,
        GetBestSearcherValidationMetric: => experiments::GetBestSearcherValidationMetricResponse,
        GetModelDef: => experiments::GetModelDefResponse,
        GetModelDefTree: => experiments::GetModelDefTreeResponse,
        GetModelDefFile: experiments::GetModelDefFileRequest => experiments::GetModelDefFileResponse,
        PreviewHPSearch: searcher::PreviewHpSearchRequest => searcher::PreviewHpSearchResponse,
        GetExperimentTrials ? trials::GetExperimentTrialsQuery: => trials::GetExperimentTrialsResponse,
        GetTrial: => trials::GetTrialResponse,
        CreateTrial: trials::CreateTrialRequest => trials::CreateTrialResponse,
        PutTrial: trials::PutTrialRequest => trials::PutTrialResponse,
        GetTrialByExternalID: => trials::GetTrialByExternalIdResponse,
        StartTrial: trials::StartTrialRequest => trials::StartTrialResponse,
        PatchTrial: trials::PatchTrialRequest => trials::PatchTrialResponse,
        KillTrial: => Empty,
        PutTrialRetainLogs: trials::PutTrialRetainLogsRequest => Empty,
        GetTrialRemainingLogRetentionDays: => trials::GetTrialRemainingLogRetentionDaysResponse,
        PutExperimentRetainLogs: experiments::PutExperimentRetainLogsRequest => Empty,
        PutExperimentsRetainLogs: experiments::PutExperimentsRetainLogsRequest => experiments::BulkExperimentsResponse,
        CleanupLogs: => tasks::CleanupLogsResponse,
        GetTrialWorkloads ? trials::GetTrialWorkloadsQuery: => trials::GetTrialWorkloadsResponse,
        ReportTrialProgress: trials::ReportTrialProgressRequest => Empty,
        ReportTrialSearcherEarlyExit: trials::TrialEarlyExit => Empty,
        PostTrialRunnerMetadata: trials::TrialRunnerMetadata => Empty,
        RunPrepareForReporting: trials::RunPrepareForReportingRequest => trials::RunPrepareForReportingResponse,
        GetRunMetadata: => trials::GetRunMetadataResponse,
        PostRunMetadata: trials::PostRunMetadataRequest => trials::PostRunMetadataResponse,
        ReportTrialMetrics: metrics::ReportTrialMetricsRequest => Empty,
        GetTrainingMetrics ? metrics::GetTrialMetricsQuery: => metrics::MetricsChunk,
        GetValidationMetrics ? metrics::GetTrialMetricsQuery: => metrics::MetricsChunk,
        GetMetrics ? metrics::GetMetricsQuery: => metrics::MetricsChunk,
        PostTrialProfilerMetricsBatch: profiler::PostTrialProfilerMetricsBatchRequest => Empty,
        GetTrialProfilerMetrics ? profiler::GetTrialProfilerMetricsQuery: => profiler::GetTrialProfilerMetricsResponse,
        GetTrialProfilerAvailableSeries ? profiler::GetTrialProfilerAvailableSeriesQuery: => profiler::GetTrialProfilerAvailableSeriesResponse,
        ReportCheckpoint: checkpoints::Checkpoint => Empty,
        GetCheckpoint: => checkpoints::GetCheckpointResponse,
        GetExperimentCheckpoints ? checkpoints::GetCheckpointsQuery: => checkpoints::GetExperimentCheckpointsResponse,
        GetTrialCheckpoints ? checkpoints::GetCheckpointsQuery: => checkpoints::GetTrialCheckpointsResponse,
        PatchCheckpoints: checkpoints::PatchCheckpointsRequest => Empty,
        DeleteCheckpoints: checkpoints::DeleteCheckpointsRequest => Empty,
        CheckpointsRemoveFiles: checkpoints::CheckpointsRemoveFilesRequest => Empty,
        PostCheckpointMetadata: checkpoints::PostCheckpointMetadataRequest => checkpoints::PostCheckpointMetadataResponse,
        TaskLogs ? logs::LogsQuery: => logs::TaskLogsResponse,
        TrialLogs ? logs::LogsQuery: => logs::TrialLogsResponse,
        TaskLogsFields ? logs::LogFieldsQuery: => logs::TaskLogsFieldsResponse,
        TrialLogsFields ? logs::LogFieldsQuery: => logs::TrialLogsFieldsResponse,
        GetCommands ? launches::GetLaunchesQuery: => launches::GetCommandsResponse,
        LaunchCommand: launches::LaunchCommandRequest => launches::LaunchCommandResponse,
        GetCommand: => launches::GetCommandResponse,
        KillCommand: => launches::CommandResponse,
        SetCommandPriority: launches::SetCommandPriorityRequest => launches::CommandResponse,
        GetShells ? launches::GetLaunchesQuery: => launches::GetShellsResponse,
        LaunchShell: launches::LaunchShellRequest => launches::LaunchShellResponse,
        GetShell: => launches::GetShellResponse,
        KillShell: => launches::ShellResponse,
        SetShellPriority: launches::SetShellPriorityRequest => launches::ShellResponse,
        GetNotebooks ? launches::GetLaunchesQuery: => launches::GetNotebooksResponse,
        LaunchNotebook: launches::LaunchNotebookRequest => launches::LaunchNotebookResponse,
        GetNotebook: => launches::GetNotebookResponse,
        KillNotebook: => launches::NotebookResponse,
        IdleNotebook: launches::IdleNotebookRequest => Empty,
        SetNotebookPriority: launches::SetNotebookPriorityRequest => launches::NotebookResponse,
        GetTensorboards ? launches::GetLaunchesQuery: => launches::GetTensorboardsResponse,
        LaunchTensorboard: launches::LaunchTensorboardRequest => launches::LaunchTensorboardResponse,
        GetTensorboard: => launches::GetTensorboardResponse,
        KillTensorboard: => launches::TensorboardResponse,
        SetTensorboardPriority: launches::SetTensorboardPriorityRequest => launches::TensorboardResponse,
        CreateGenericTask: launches::CreateGenericTaskRequest => launches::CreateGenericTaskResponse,
        GetGenericTaskConfig: => launches::GetGenericTaskConfigResponse,
        KillGenericTask: launches::KillGenericTaskRequest => Empty,
        PauseGenericTask: => Empty,
        UnpauseGenericTask: => Empty,
        GetTask: => tasks::GetTaskResponse,
        GetTasks ? tasks::GetTasksQuery: => tasks::GetTasksResponse,
        GetActiveTasksCount: => tasks::GetActiveTasksCountResponse,
        GetTaskContextDirectory: => tasks::GetTaskContextDirectoryResponse,
        GetTaskAcceleratorData: => tasks::GetTaskAcceleratorDataResponse,
        GetJobs ? jobs::GetJobsQuery: => jobs::GetJobsResponse,
        GetJobsV2 ? jobs::GetJobsQuery: => jobs::GetJobsV2Response,
        GetJobQueueStats ? jobs::GetJobQueueStatsQuery: => jobs::GetJobQueueStatsResponse,
        UpdateJobQueue: jobs::UpdateJobQueueRequest => Empty,
        GetResourcePools ? pools::GetResourcePoolsQuery: => pools::GetResourcePoolsResponse,
        GetWorkspaces ? workspaces::GetWorkspacesQuery: => workspaces::GetWorkspacesResponse,
        GetWorkspace: => workspaces::GetWorkspaceResponse,
        GetWorkspaceProjects ? workspaces::GetWorkspaceProjectsQuery: => workspaces::GetWorkspaceProjectsResponse,
        PostWorkspace: workspaces::PostWorkspaceRequest => workspaces::ChangedWorkspaceResponse,
        PatchWorkspace: workspaces::PatchWorkspace => workspaces::ChangedWorkspaceResponse,
        DeleteWorkspace: => workspaces::DeletionResponse,
        ArchiveWorkspace: => Empty,
        UnarchiveWorkspace: => Empty,
        PinWorkspace: => Empty,
        UnpinWorkspace: => Empty,
        SetResourceQuotas: workspaces::SetResourceQuotasRequest => Empty,
        GetKubernetesResourceQuotas: => workspaces::GetKubernetesResourceQuotasResponse,
        SetWorkspaceNamespaceBindings: workspaces::SetWorkspaceNamespaceBindingsRequest => workspaces::SetWorkspaceNamespaceBindingsResponse,
        DeleteWorkspaceNamespaceBindings ? workspaces::DeleteWorkspaceNamespaceBindingsQuery: => Empty,
        ListWorkspaceNamespaceBindings: => workspaces::ListWorkspaceNamespaceBindingsResponse,
        GetWorkspacesWithDefaultNamespaceBindings: => workspaces::GetWorkspacesWithDefaultNamespaceBindingsResponse,
        BulkAutoCreateWorkspaceNamespaceBindings: workspaces::BulkAutoCreateWorkspaceNamespaceBindingsRequest => Empty,
        ListRPsBoundToWorkspace ? workspaces::ListRPsBoundToWorkspaceQuery: => workspaces::ListRPsBoundToWorkspaceResponse,
        GetProject: => workspaces::GetProjectResponse,
        GetProjectByKey: => workspaces::GetProjectResponse,
        PostProject: workspaces::PostProjectRequest => workspaces::GetProjectResponse,
        PatchProject: workspaces::PatchProject => workspaces::GetProjectResponse,
        DeleteProject: => workspaces::DeletionResponse,
        ArchiveProject: => Empty,
        UnarchiveProject: => Empty,
        MoveProject: workspaces::MoveProjectRequest => Empty,
        AddProjectNote: workspaces::Note => workspaces::ProjectNotesResponse,
        PutProjectNotes: workspaces::PutProjectNotesRequest => workspaces::ProjectNotesResponse,
        MoveExperiment: experiments::MoveExperimentRequest => Empty,
        MoveExperiments: experiments::MoveExperimentsRequest => experiments::BulkExperimentsResponse,
    }
}

/// Log records are read one by one, which the filler cannot imitate.
fn post_task_logs() -> OperationTypes {
    let full = logs::PostTaskLogsRequest {
        logs: vec![support::full::<logs::TaskLog>().into()],
        ..support::full()
    };
    let written = |request: &logs::PostTaskLogsRequest| {
        serde_json::to_value(request).expect("messages can be written")
    };
    OperationTypes {
        name: "PostTaskLogs",
        query: None,
        request: Some(Shape {
            default: written(&logs::PostTaskLogsRequest::default()),
            full: written(&full),
        }),
        response: shape::<page::Empty>(),
    }
}

fn all_built() -> Vec<OperationTypes> {
    let mut all = built();
    all.push(post_task_logs());
    all
}

#[test]
fn every_core_operation_has_its_types() {
    let built: BTreeSet<_> = all_built().iter().map(|built| built.name).collect();
    let missing: Vec<_> = OPERATIONS
        .iter()
        .filter(|operation| operation.tier == Tier::Core && !built.contains(operation.name))
        .map(|operation| operation.name)
        .collect();
    assert_eq!(missing, Vec::<&str>::new());
    for name in built {
        assert!(operation::by_name(name).is_some(), "{name} is no operation");
    }
}

#[test]
fn types_agree_with_the_table_on_who_has_a_body_and_an_answer() {
    for built in all_built() {
        let operation = operation::by_name(built.name).expect("tested above");
        assert_eq!(
            built.request.is_some(),
            !operation.request.is_empty(),
            "{}: body",
            built.name
        );
        let empty = built.response.default == json!({});
        assert_eq!(
            empty,
            operation.response.is_empty(),
            "{}: answer",
            built.name
        );
    }
}

#[test]
fn own_additions_are_read_as_written() {
    shape::<events::GetEventsQuery>();
    shape::<events::GetEventsResponse>();
    shape::<error::ErrorBody>();
    shape::<error::PlainErrorBody>();
    shape::<master::Info>();
    shape::<logs::UnmanagedLog>();
    shape::<experiments::File>();
    shape::<profiler::ReportSystemMetricsRequest>();
    shape::<profiler::ReportSystemMetricsResponse>();
}

#[test]
fn schema_names_are_unique() {
    let mut schemas = Vec::new();
    experiments::CreateExperimentRequest::schemas(&mut schemas);
    experiments::GetExperimentsResponse::schemas(&mut schemas);
    experiments::GetModelDefTreeResponse::schemas(&mut schemas);
    trials::GetExperimentTrialsResponse::schemas(&mut schemas);
    trials::GetTrialWorkloadsResponse::schemas(&mut schemas);
    trials::GetExperimentTrialsQuery::schemas(&mut schemas);
    checkpoints::GetCheckpointResponse::schemas(&mut schemas);
    checkpoints::GetCheckpointsQuery::schemas(&mut schemas);
    experiments::GetExperimentsQuery::schemas(&mut schemas);
    tasks::GetTasksResponse::schemas(&mut schemas);
    tasks::GetTaskResponse::schemas(&mut schemas);
    jobs::GetJobsV2Response::schemas(&mut schemas);
    agents::GetAgentsResponse::schemas(&mut schemas);
    agents::GetAgentsQuery::schemas(&mut schemas);
    pools::GetResourcePoolsResponse::schemas(&mut schemas);
    workspaces::GetWorkspacesResponse::schemas(&mut schemas);
    workspaces::GetWorkspaceProjectsResponse::schemas(&mut schemas);
    workspaces::GetWorkspacesQuery::schemas(&mut schemas);
    workspaces::GetWorkspaceProjectsQuery::schemas(&mut schemas);
    users::GetUsersResponse::schemas(&mut schemas);
    users::GetUsersQuery::schemas(&mut schemas);
    logs::PostTaskLogsRequest::schemas(&mut schemas);
    logs::LogsQuery::schemas(&mut schemas);
    master::GetMasterResponse::schemas(&mut schemas);
    let mut seen = BTreeMap::new();
    for (name, schema) in schemas {
        let schema = serde_json::to_value(schema).expect("schemas can be written");
        let first = seen.entry(name.clone()).or_insert_with(|| schema.clone());
        assert_eq!(*first, schema, "two schemas are named {name}");
    }
    assert!(seen.len() > 60, "{} schemas", seen.len());
}

/// What the script needs to know, and what it answers: one line for each disagreement.
fn run_client(python: &str, cases: &Value) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/decode_with_wheel.py");
    let mut child = Command::new(python)
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("DET_WHEEL_PYTHON={python:?} cannot be run: {error}"));
    let mut stdin = child.stdin.take().expect("it was asked for");
    let text = cases.to_string();
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child
        .wait_with_output()
        .expect("the client's output can be read");
    writer
        .join()
        .expect("the writer does not panic")
        .expect("the client reads its input");
    assert!(
        output.status.success(),
        "the client's script ended with {}",
        output.status
    );
    String::from_utf8(output.stdout).expect("the script writes UTF-8")
}

#[test]
fn the_unmodified_client_reads_every_answer_and_knows_every_field() {
    let Some(python) = std::env::var("DET_WHEEL_PYTHON")
        .ok()
        .filter(|path| !path.is_empty())
    else {
        // Written past the capture of test output: a skip must be seen.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: set DET_WHEEL_PYTHON to a Python that can import determined 0.38.1"
        );
        return;
    };
    let mut cases = Vec::new();
    let mut case = |operation: &str, role: &str, class: &str, shape: &Shape| {
        cases.push(json!({
            "operation": operation, "role": role, "class": class, "default": shape.default, "full": shape.full,
        }));
    };
    for built in all_built() {
        let operation = operation::by_name(built.name).expect("tested above");
        if !operation.response.is_empty() {
            case(built.name, "response", operation.response, &built.response);
        }
        match (&built.request, operation.request) {
            (None, _) | (_, "str") => {}
            (Some(shape), class) => case(built.name, "request", class, shape),
        }
        let function = format!(
            "{}_{}",
            operation.method.as_str().to_lowercase(),
            operation.name
        );
        match &built.query {
            Some(shape) => case(built.name, "query", &function, shape),
            None => case(built.name, "query", &function, &shape::<page::Empty>()),
        }
    }
    case(
        "(streams)",
        "response",
        "runtimeStreamError",
        &shape::<error::StreamError>(),
    );
    assert!(cases.len() > 200, "only {} cases", cases.len());
    let disagreements = run_client(&python, &Value::Array(cases));
    assert!(
        disagreements.is_empty(),
        "the client disagrees:\n{disagreements}"
    );
}
