//! What the master holds in memory, and what it may.

use axum::extract::State;
use det_api_types::master::{GetMasterMemoryResponse, MemoryBudget};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::Master;
use crate::budget::Budget;
use crate::error::AppError;
use crate::http::extract::Caller;
use crate::http::respond::{Answer, message};

/// Routes of this file.
pub fn routes() -> OpenApiRouter<Master> {
    OpenApiRouter::new().routes(routes!(get_master_memory))
}

/// Memory of the master's process, and the budgets of what clients can make it hold. For administrators; an addition of
/// ours.
#[utoipa::path(get, path = "/api/v1/master/memory", operation_id = "GetMasterMemory", tag = "master",
    responses((status = 200, body = GetMasterMemoryResponse)))]
async fn get_master_memory(State(master): State<Master>, Caller(actor): Caller) -> Answer {
    actor.require_admin("read what the master holds in memory")?;
    // A file of the kernel's memory: read without waiting for a disk. On systems without it the numbers are 0.
    let status = match std::fs::read_to_string("/proc/self/status") {
        Ok(status) => status,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(AppError::internal(error).into()),
    };
    message(&GetMasterMemoryResponse {
        resident_bytes: field(&status, "VmRSS:").saturating_mul(1024),
        peak_resident_bytes: field(&status, "VmHWM:").saturating_mul(1024),
        threads: field(&status, "Threads:"),
        budgets: master.budgets.all().into_iter().map(shown).collect(),
    })
}

/// The number behind a name in `/proc/PID/status`; 0 when it is not there.
fn field(status: &str, name: &str) -> i64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

fn shown(budget: &Budget) -> MemoryBudget {
    let usage = budget.usage();
    let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    MemoryBudget {
        name: usage.limits.name.to_owned(),
        used_bytes: count(usage.used),
        peak_bytes: count(usage.peak),
        limit_bytes: count(usage.limits.total),
        share_bytes: count(usage.limits.share),
        waiting: count(usage.waiting),
        refused: i64::try_from(usage.refused).unwrap_or(i64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_in_the_kernels_file() {
        let status = "Name:\tdet\nVmHWM:\t   10892 kB\nVmRSS:\t    9012 kB\nThreads:\t12\n";
        assert_eq!(field(status, "VmHWM:"), 10_892);
        assert_eq!(field(status, "VmRSS:"), 9_012);
        assert_eq!(field(status, "Threads:"), 12);
        assert_eq!(field(status, "VmSwap:"), 0);
    }
}
