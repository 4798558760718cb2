//! What running tasks report and ask about their allocation. Most calls come with the allocation's own token.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use det_api_types::allocations::{
    AckAllocationPreemptionSignalRequest, AllocationAllGatherRequest, AllocationAllGatherResponse,
    AllocationPendingPreemptionSignalRequest, AllocationPreemptionSignalQuery,
    AllocationPreemptionSignalResponse, AllocationReadyRequest, AllocationRendezvousInfoResponse,
    AllocationWaitingRequest, GetAllocationResponse, MarkAllocationResourcesDaemonRequest,
    PostAllocationAcceleratorDataRequest, PostAllocationProxyAddressRequest, RendezvousInfo,
};
use det_api_types::diagnosis::PostAllocationDiagnosisRequest;
use det_api_types::page::Empty;
use det_api_types::wire;
use det_ids::{AllocationId, ContainerId};
use det_lifecycle::allocation::AllocationEvent;
use det_store::allocations::AllocationRow;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::app::allocations::Contribution;
use crate::app::reads;
use crate::error::{AppError, AppResult};
use crate::http::extract::{Caller, RawBody, WireBody, WireQuery};
use crate::http::respond::{self, Answer, empty, message};
use crate::http::routes::{Routes, routes};
use crate::http::views;

/// Routes of this file.
pub fn routes() -> Routes {
    Routes::new()
        .routes(routes!(get_allocation))
        .routes(routes!(post_accelerator_data))
        .routes(routes!(rendezvous))
        .routes(routes!(preemption_signal))
        .routes(routes!(ack_preemption))
        .routes(routes!(pending_preemption))
        .routes(routes!(ready))
        .routes(routes!(waiting))
        .routes(routes!(daemon))
        .routes(routes!(diagnosis))
        .routes(routes!(all_gather))
        .routes(routes!(proxy_address))
        .routes(routes!(notify_container_running))
}

/// An allocation and one of its containers, from a path.
type ContainerPath = Result<Path<(AllocationId, ContainerId)>, PathRejection>;

fn container_path(path: ContainerPath) -> AppResult<(AllocationId, ContainerId)> {
    path.map(|Path(ids)| ids)
        .map_err(|_| AppError::invalid("the address of this request cannot be read"))
}

/// An allocation, live or ended.
#[utoipa::path(get, path = "/api/v1/allocations/{allocationId}", operation_id = "GetAllocation", tag = "allocations",
    params(("allocationId" = String, Path, description = "the allocation")),
    responses((status = 200, body = GetAllocationResponse)))]
async fn get_allocation(Caller(master, actor): Caller, Path(id): Path<AllocationId>) -> Answer {
    let row = reads::allocations::find(&master.context.store, &actor, &id).await?;
    message(&GetAllocationResponse {
        allocation: views::tasks::allocation(&row),
    })
}

/// A container reports the accelerators that it found.
#[utoipa::path(post, path = "/api/v1/allocations/{allocationId}/acceleratorData",
    operation_id = "PostAllocationAcceleratorData", tag = "allocations",
    params(("allocationId" = String, Path, description = "the allocation")),
    request_body = PostAllocationAcceleratorDataRequest, responses((status = 200, body = Empty)))]
async fn post_accelerator_data(
    Caller(master, actor): Caller,
    Path(id): Path<AllocationId>,
    WireBody(body): WireBody<PostAllocationAcceleratorDataRequest>,
) -> Answer {
    let mut data = body.accelerator_data;
    let container_id = data.container_id.clone();
    let complete = |row: AllocationRow| {
        data.allocation_id = row.id;
        data.task_id = row.task_id;
        data.resource_pool = row.resource_pool;
        serde_json::to_value(&data).map_err(AppError::internal)
    };
    master
        .allocations
        .accelerator_data(&actor, &id, &container_id, complete)
        .await?;
    empty()
}

/// A container comes to the meeting; the answer comes when all have.
#[utoipa::path(get, path = "/api/v1/allocations/{allocationId}/resources/{resourcesId}/rendezvous",
    operation_id = "AllocationRendezvousInfo", tag = "allocations",
    params(("allocationId" = String, Path, description = "the allocation"), ("resourcesId" = String, Path, description = "the container")),
    responses((status = 200, body = AllocationRendezvousInfoResponse)))]
async fn rendezvous(Caller(master, actor): Caller, path: ContainerPath) -> Answer {
    let (allocation_id, container_id) = container_path(path)?;
    let met = master
        .allocations
        .rendezvous(&actor, &allocation_id, &container_id)
        .await?;
    message(&AllocationRendezvousInfoResponse {
        rendezvous_info: RendezvousInfo {
            addresses: met.addresses,
            rank: met.rank,
            slots: met.slots,
        },
    })
}

/// Whether the allocation is to save and exit: at once when it is, else when it becomes so or the time is over.
#[utoipa::path(get, path = "/api/v1/allocations/{allocationId}/signals/preemption",
    operation_id = "AllocationPreemptionSignal", tag = "allocations",
    params(("allocationId" = String, Path, description = "the allocation"), AllocationPreemptionSignalQuery),
    responses((status = 200, body = AllocationPreemptionSignalResponse)))]
async fn preemption_signal(
    Caller(master, actor): Caller,
    Path(id): Path<AllocationId>,
    WireQuery(query): WireQuery<AllocationPreemptionSignalQuery>,
) -> Answer {
    let seconds = u64::try_from(query.timeout_seconds.unwrap_or(0)).unwrap_or(0);
    let preempt = master
        .allocations
        .preemption_signal(&actor, &id, Duration::from_secs(seconds))
        .await?;
    message(&AllocationPreemptionSignalResponse { preempt })
}

/// The task reports that it saves and will exit.
#[utoipa::path(post, path = "/api/v1/allocations/{allocationId}/signals/ack_preemption",
    operation_id = "AckAllocationPreemptionSignal", tag = "allocations",
    params(("allocationId" = String, Path, description = "the allocation")),
    request_body = AckAllocationPreemptionSignalRequest, responses((status = 200, body = Empty)))]
async fn ack_preemption(
    Caller(master, actor): Caller,
    Path(id): Path<AllocationId>,
    _body: WireBody<AckAllocationPreemptionSignalRequest>,
) -> Answer {
    let event = Some(AllocationEvent::Acknowledge);
    master.allocations.report(&actor, &id, event).await?;
    empty()
}

/// The task was asked from outside to end: the same as a preemption.
#[utoipa::path(post, path = "/api/v1/allocations/{allocationId}/signals/pending_preemption",
    operation_id = "AllocationPendingPreemptionSignal", tag = "allocations",
    params(("allocationId" = String, Path, description = "the allocation")),
    request_body = AllocationPendingPreemptionSignalRequest, responses((status = 200, body = Empty)))]
async fn pending_preemption(
    Caller(master, actor): Caller,
    Path(id): Path<AllocationId>,
    _body: WireBody<AllocationPendingPreemptionSignalRequest>,
) -> Answer {
    master.allocations.disrupted(&actor, &id).await?;
    empty()
}

/// The task's service is up.
#[utoipa::path(post, path = "/api/v1/allocations/{allocationId}/ready", operation_id = "AllocationReady", tag = "allocations",
    params(("allocationId" = String, Path, description = "the allocation")),
    request_body = AllocationReadyRequest, responses((status = 200, body = Empty)))]
async fn ready(
    Caller(master, actor): Caller,
    Path(id): Path<AllocationId>,
    _body: WireBody<AllocationReadyRequest>,
) -> Answer {
    let event = Some(AllocationEvent::Meet);
    master.allocations.report(&actor, &id, event).await?;
    empty()
}

/// The task's service is not up yet.
#[utoipa::path(post, path = "/api/v1/allocations/{allocationId}/waiting", operation_id = "AllocationWaiting", tag = "allocations",
    params(("allocationId" = String, Path, description = "the allocation")),
    request_body = AllocationWaitingRequest, responses((status = 200, body = Empty)))]
async fn waiting(
    Caller(master, actor): Caller,
    Path(id): Path<AllocationId>,
    _body: WireBody<AllocationWaitingRequest>,
) -> Answer {
    master.allocations.report(&actor, &id, None).await?;
    empty()
}

/// A container is a helper that does not keep the allocation alive.
#[utoipa::path(post, path = "/api/v1/allocations/{allocationId}/resources/{resourcesId}/daemon",
    operation_id = "MarkAllocationResourcesDaemon", tag = "allocations",
    params(("allocationId" = String, Path, description = "the allocation"), ("resourcesId" = String, Path, description = "the container")),
    request_body = MarkAllocationResourcesDaemonRequest, responses((status = 200, body = Empty)))]
async fn daemon(
    Caller(master, actor): Caller,
    path: ContainerPath,
    _body: WireBody<MarkAllocationResourcesDaemonRequest>,
) -> Answer {
    let (allocation_id, container_id) = container_path(path)?;
    master
        .allocations
        .mark_daemon(&actor, &allocation_id, &container_id)
        .await?;
    empty()
}

/// A container reports what its processes do, which it was asked for.
#[utoipa::path(post, path = "/api/v1/allocations/{allocationId}/resources/{resourcesId}/diagnosis",
    operation_id = "PostAllocationDiagnosis", tag = "allocations",
    params(("allocationId" = String, Path, description = "the allocation"), ("resourcesId" = String, Path, description = "the container")),
    request_body = PostAllocationDiagnosisRequest, responses((status = 200, body = Empty)))]
async fn diagnosis(
    Caller(master, actor): Caller,
    path: ContainerPath,
    WireBody(body): WireBody<PostAllocationDiagnosisRequest>,
) -> Answer {
    let (allocation_id, container_id) = container_path(path)?;
    let diagnosis = views::diagnosis::diagnosis(body.diagnosis);
    master
        .doctor
        .report(&actor, &allocation_id, &container_id, diagnosis)
        .await?;
    empty()
}

/// Members exchange data; the answer comes when all have given theirs.
#[utoipa::path(post, path = "/api/v1/allocations/{allocationId}/all_gather",
    operation_id = "AllocationAllGather", tag = "allocations",
    params(("allocationId" = String, Path, description = "the allocation")),
    request_body = AllocationAllGatherRequest, responses((status = 200, body = AllocationAllGatherResponse)))]
async fn all_gather(
    Caller(master, actor): Caller,
    Path(id): Path<AllocationId>,
    body: RawBody,
) -> Answer {
    let given = body.decode(|body| Ok(contribution(body)?)).await?;
    Ok(respond::shared(
        master.allocations.all_gather(&actor, &id, given).await?,
    ))
}

/// Members on a cluster of another manager report that their container runs; the answer comes when all have. The request
/// is that of an exchange with a few more members, which nothing here needs.
#[utoipa::path(post, path = "/api/v1/allocations/{allocationId}/notify_container_running",
    operation_id = "NotifyContainerRunning", tag = "allocations",
    params(("allocationId" = String, Path, description = "the allocation")),
    request_body = AllocationAllGatherRequest, responses((status = 200, body = AllocationAllGatherResponse)))]
async fn notify_container_running(
    Caller(master, actor): Caller,
    Path(id): Path<AllocationId>,
    body: RawBody,
) -> Answer {
    let given = body.decode(|body| Ok(contribution(body)?)).await?;
    Ok(respond::shared(
        master.allocations.all_gather(&actor, &id, given).await?,
    ))
}

/// Most bytes that the values of a request may take as objects, where it is not written as our clients write it.
const GIFT_TREE_BYTES: usize = 16 << 20;

/// The request as our clients write it. A name that is not known here may be another spelling of one that is.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PlainGift<'a> {
    #[serde(default, rename = "allocationId")]
    _allocation_id: Option<AllocationId>,
    request_uuid: String,
    num_peers: i64,
    #[serde(borrow)]
    data: &'a RawValue,
}

/// What a member gives: an object as it came, anything else as `{"value":…}`.
fn contribution(body: &[u8]) -> AppResult<Contribution> {
    if let Ok(plain) = serde_json::from_slice::<PlainGift<'_>>(body)
        && plain.data.get().starts_with('{')
    {
        let data = Bytes::from(plain.data.get().to_owned());
        return Contribution::new(plain.request_uuid, plain.num_peers, data);
    }
    if wire::tree_bytes(body) > GIFT_TREE_BYTES {
        return Err(AppError::invalid(format!(
            "the request holds too many values: as objects they may take at most {} MiB of memory",
            GIFT_TREE_BYTES >> 20
        )));
    }
    let request: AllocationAllGatherRequest =
        wire::decode(body).map_err(|error| AppError::invalid(error.to_string()))?;
    Contribution::new(
        request.request_uuid.unwrap_or_default(),
        request.num_peers.unwrap_or_default(),
        Bytes::from(request.data.into_value().to_string()),
    )
}

/// A task reports where its services are reached. Agents have reported that already, so there is nothing to do with it.
#[utoipa::path(post, path = "/api/v1/allocations/{allocationId}/proxy_address",
    operation_id = "PostAllocationProxyAddress", tag = "allocations",
    params(("allocationId" = String, Path, description = "the allocation")),
    request_body = PostAllocationProxyAddressRequest, responses((status = 200, body = Empty)))]
async fn proxy_address(
    Caller(master, actor): Caller,
    Path(id): Path<AllocationId>,
    _body: WireBody<PostAllocationProxyAddressRequest>,
) -> Answer {
    master.allocations.report(&actor, &id, None).await?;
    empty()
}
