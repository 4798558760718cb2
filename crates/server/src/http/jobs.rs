//! The job queue and resource pools.

use axum::extract::Path;
use det_api_types::jobs::{
    ExplainJobResponse, GetJobQueueStatsQuery, GetJobQueueStatsResponse, GetJobsQuery,
    GetJobsResponse, GetJobsV2Response, RbacJob, RpQueueStat, UpdateJobQueueRequest,
};
use det_api_types::page::Empty;
use det_api_types::pools::{GetResourcePoolsQuery, GetResourcePoolsResponse};
use det_ids::JobId;

use crate::app::jobs::{QueueChange, QueuedJob};
use crate::app::reads;
use crate::http::extract::{Caller, WireBody, WireQuery};
use crate::http::respond::{Answer, empty, message};
use crate::http::routes::{Routes, routes};
use crate::http::views;

/// Routes of this file.
pub fn routes() -> Routes {
    Routes::new()
        .routes(routes!(get_jobs, update_job_queue))
        .routes(routes!(get_jobs_v2))
        .routes(routes!(get_job_queue_stats))
        .routes(routes!(explain_job))
        .routes(routes!(get_resource_pools))
}

/// Jobs of a pool in the order in which they are served.
#[utoipa::path(get, path = "/api/v1/job-queues", operation_id = "GetJobs", tag = "jobs",
    params(GetJobsQuery), responses((status = 200, body = GetJobsResponse)))]
async fn get_jobs(
    Caller(master, actor): Caller,
    WireQuery(query): WireQuery<GetJobsQuery>,
) -> Answer {
    let (queue, pagination) = reads::jobs::page(&master.sources.jobs, &actor, &query).await?;
    let jobs = queue.iter().map(views::jobs::job);
    message(&GetJobsResponse {
        pagination,
        jobs: jobs.collect(),
    })
}

/// Jobs of a pool in the order in which they are served, in the form that can hide some of their particulars.
#[utoipa::path(get, path = "/api/v1/job-queues-v2", operation_id = "GetJobsV2", tag = "jobs",
    params(GetJobsQuery), responses((status = 200, body = GetJobsV2Response)))]
async fn get_jobs_v2(
    Caller(master, actor): Caller,
    WireQuery(query): WireQuery<GetJobsQuery>,
) -> Answer {
    let (queue, pagination) = reads::jobs::page(&master.sources.jobs, &actor, &query).await?;
    let job = |entry: &QueuedJob| RbacJob {
        full: Some(views::jobs::job(entry)),
        limited: None,
    };
    message(&GetJobsV2Response {
        pagination,
        jobs: queue.iter().map(job).collect(),
    })
}

/// Counts over the queues of pools, and what tasks waited for slots on each of the last thirty days.
#[utoipa::path(get, path = "/api/v1/job-queues/stats", operation_id = "GetJobQueueStats", tag = "jobs",
    params(GetJobQueueStatsQuery), responses((status = 200, body = GetJobQueueStatsResponse)))]
async fn get_job_queue_stats(
    Caller(master, actor): Caller,
    WireQuery(query): WireQuery<GetJobQueueStatsQuery>,
) -> Answer {
    let (queue, pools) =
        reads::jobs::statistics(&master.sources.jobs, &actor, &query.resource_pools).await?;
    let results = pools
        .into_iter()
        .map(|of| RpQueueStat {
            stats: views::jobs::stats(
                queue
                    .iter()
                    .filter(|entry| entry.job.resource_pool == of.pool),
            ),
            resource_pool: of.pool,
            aggregates: of.days.iter().map(views::jobs::queue_day).collect(),
        })
        .collect();
    message(&GetJobQueueStatsResponse { results })
}

/// Why a job runs or waits: what its tasks wait for since when, what is served before it, and who holds the slots. An
/// addition of ours.
#[utoipa::path(get, path = "/api/v1/job-queues/{jobId}/why", operation_id = "ExplainJob", tag = "jobs",
    params(("jobId" = String, Path, description = "the id of the job, of a task of it, or of an attempt of one")),
    responses((status = 200, body = ExplainJobResponse)))]
async fn explain_job(Caller(master, actor): Caller, Path(job_id): Path<JobId>) -> Answer {
    message(&views::why::explanation(
        &reads::jobs::explanation(&master.sources.jobs, &actor, &job_id).await?,
    ))
}

/// Changes priority, share, pool or place of jobs.
#[utoipa::path(post, path = "/api/v1/job-queues", operation_id = "UpdateJobQueue", tag = "jobs",
    request_body = UpdateJobQueueRequest, responses((status = 200, body = Empty)))]
async fn update_job_queue(
    Caller(master, actor): Caller,
    WireBody(body): WireBody<UpdateJobQueueRequest>,
) -> Answer {
    let changes = body
        .updates
        .into_iter()
        .map(|update| QueueChange {
            ahead_of: update.ahead_of.and_then(JobId::given),
            behind_of: update.behind_of.and_then(JobId::given),
            job_id: update.job_id,
            priority: update.priority,
            weight: update.weight.map(|weight| weight.0),
            resource_pool: update.resource_pool.filter(|pool| !pool.is_empty()),
        })
        .collect();
    master.queue.change(&actor, changes).await?;
    empty()
}

/// The resource pools of all managers, in the order of the configuration.
#[utoipa::path(get, path = "/api/v1/resource-pools", operation_id = "GetResourcePools", tag = "jobs",
    params(GetResourcePoolsQuery), responses((status = 200, body = GetResourcePoolsResponse)))]
async fn get_resource_pools(
    Caller(master, actor): Caller,
    WireQuery(query): WireQuery<GetResourcePoolsQuery>,
) -> Answer {
    let (contents, pagination) = reads::jobs::pools(&master.sources.jobs, &actor, &query).await?;
    let pools = contents.pools.iter();
    let pools = pools.map(|pool| views::jobs::pool(pool, &contents));
    message(&GetResourcePoolsResponse {
        resource_pools: pools.collect(),
        pagination,
    })
}
