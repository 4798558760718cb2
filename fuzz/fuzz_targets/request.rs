//! Request bodies and query strings of the API: any bytes are a message or an error about what is wrong.
//!
//! The first byte chooses the type. What was read is written and read as the same.
#![no_main]

use det_api_types::wire::{SalvagedElement, decode, decode_query, encode};
use det_api_types::{
    agents, allocations, auth, checkpoints, events, experiments, jobs, logs, metrics, pools,
    searcher, trials, users, workspaces,
};
use libfuzzer_sys::fuzz_target;

macro_rules! bodies {
    ($choice:expr, $data:expr, $($kind:ty),* $(,)?) => {{
        let readers: &[fn(&[u8])] = &[$(|data| {
            match decode::<$kind>(data) {
                // Compared as text: not-a-number is not equal to itself.
                Ok(message) => if let Ok(text) = encode(&message) {
                    let again = decode::<$kind>(&text).expect("written by us");
                    assert_eq!(encode(&again).expect("written once"), text);
                },
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }),*];
        readers[$choice % readers.len()]($data);
    }};
}

macro_rules! queries {
    ($choice:expr, $data:expr, $($kind:ty),* $(,)?) => {{
        let readers: &[fn(&str)] = &[$(|text| {
            if let Err(error) = decode_query::<$kind>(text) {
                assert!(!error.to_string().is_empty());
            }
        }),*];
        readers[$choice % readers.len()]($data);
    }};
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, rest)) = data.split_first() else {
        return;
    };
    let choice = usize::from(*choice);
    if choice % 4 == 3 {
        if let Ok(text) = std::str::from_utf8(rest) {
            queries!(
                choice / 4,
                text,
                agents::GetAgentsQuery,
                allocations::AllocationPreemptionSignalQuery,
                checkpoints::GetCheckpointsQuery,
                events::GetEventsQuery,
                experiments::GetExperimentsQuery,
                experiments::GetExperimentLabelsQuery,
                jobs::GetJobsQuery,
                jobs::GetJobQueueStatsQuery,
                logs::LogsQuery,
                logs::LogFieldsQuery,
                logs::MasterLogsQuery,
                metrics::GetTrialMetricsQuery,
                metrics::GetMetricsQuery,
                pools::GetResourcePoolsQuery,
                trials::GetExperimentTrialsQuery,
                trials::GetTrialWorkloadsQuery,
                users::GetUsersQuery,
                workspaces::GetWorkspacesQuery,
                workspaces::GetWorkspaceProjectsQuery,
            );
        }
    } else {
        bodies!(
            choice,
            rest,
            agents::DisableAgentRequest,
            agents::DisableSlotRequest,
            allocations::PostAllocationAcceleratorDataRequest,
            allocations::AllocationReadyRequest,
            allocations::AllocationWaitingRequest,
            allocations::MarkAllocationResourcesDaemonRequest,
            allocations::AckAllocationPreemptionSignalRequest,
            allocations::AllocationPendingPreemptionSignalRequest,
            allocations::AllocationAllGatherRequest,
            allocations::PostAllocationProxyAddressRequest,
            auth::LoginRequest,
            checkpoints::Checkpoint,
            checkpoints::PatchCheckpointsRequest,
            checkpoints::PatchCheckpoint,
            checkpoints::PatchCheckpointResources,
            checkpoints::DeleteCheckpointsRequest,
            checkpoints::CheckpointsRemoveFilesRequest,
            checkpoints::PostCheckpointMetadataRequest,
            experiments::CreateExperimentRequest,
            experiments::PatchExperiment,
            experiments::PatchExperimentResources,
            experiments::PatchExperimentCheckpointStorage,
            experiments::PatchExperimentResponse,
            experiments::ContinueExperimentRequest,
            experiments::GetModelDefFileRequest,
            experiments::BulkExperimentsRequest,
            jobs::UpdateJobQueueRequest,
            logs::PostTaskLogsRequest,
            metrics::ReportTrialMetricsRequest,
            searcher::PreviewHpSearchRequest,
            trials::CreateTrialRequest,
            trials::PutTrialRequest,
            trials::PatchTrialRequest,
            trials::StartTrialRequest,
            trials::ReportTrialProgressRequest,
            trials::TrialEarlyExit,
            trials::TrialRunnerMetadata,
            trials::RunPrepareForReportingRequest,
            trials::PostRunMetadataRequest,
            users::PostUserRequest,
            users::PatchUser,
            users::PatchUserResponse,
            Vec<SalvagedElement<logs::UnmanagedLog>>,
        );
    }
});
