//! What the master holds in memory, and what it may: as a message, and as metrics for Prometheus.

use std::fmt::Write;

use axum::http::header;
use axum::response::IntoResponse;
use det_api_types::master::{GetMasterMemoryResponse, MemoryBudget};
use det_authz::{Kind, Permission};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::Master;
use crate::budget::Budget;
use crate::error::{AppError, AppResult, ErrorKind};
use crate::http::extract::Caller;
use crate::http::respond::{Answer, message};

/// Routes of this file.
pub fn routes() -> OpenApiRouter<Master> {
    OpenApiRouter::new()
        .routes(routes!(get_master_memory))
        .routes(routes!(get_prometheus_metrics))
}

/// Memory of the master's process, and the budgets of what clients can make it hold. For administrators; an addition of
/// ours.
#[utoipa::path(get, path = "/api/v1/master/memory", operation_id = "GetMasterMemory", tag = "master",
    responses((status = 200, body = GetMasterMemoryResponse)))]
async fn get_master_memory(Caller(master, actor): Caller) -> Answer {
    actor.require(
        Permission::Read,
        Kind::MasterMemory,
        "read what the master holds in memory",
    )?;
    message(&current(&master)?)
}

/// The same as metrics in the text format of Prometheus. For administrators; an addition of ours.
#[utoipa::path(get, path = "/debug/prom/metrics", operation_id = "GetPrometheusMetrics", tag = "master",
    responses((status = 200, body = String, content_type = "text/plain")))]
async fn get_prometheus_metrics(Caller(master, actor): Caller) -> Answer {
    actor.require(
        Permission::Read,
        Kind::MasterMemory,
        "read the master's metrics",
    )?;
    if !master.context.config().observability.enable_prometheus {
        return Err(AppError::new(
            ErrorKind::NotFound,
            "the Prometheus routes of this master are switched off",
        )
        .hint("set observability.enable_prometheus to true in the master's configuration")
        .into());
    }
    let text = exposition(&current(&master)?);
    Ok(([(header::CONTENT_TYPE, PROMETHEUS_TEXT)], text).into_response())
}

/// Content type of version 0.0.4 of the text format.
const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

fn current(master: &Master) -> AppResult<GetMasterMemoryResponse> {
    // A file of the kernel's memory: read without waiting for a disk. On systems without it the numbers are 0.
    let status = match std::fs::read_to_string("/proc/self/status") {
        Ok(status) => status,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(AppError::internal(error)),
    };
    Ok(GetMasterMemoryResponse {
        resident_bytes: field(&status, "VmRSS:").saturating_mul(1024),
        peak_resident_bytes: field(&status, "VmHWM:").saturating_mul(1024),
        threads: field(&status, "Threads:"),
        budgets: master.budgets.all().into_iter().map(shown).collect(),
    })
}

/// The value of a metric for one budget.
type OfBudget = fn(&MemoryBudget) -> i64;

/// The text format: of each metric its meaning and type, then a line for each value.
fn exposition(memory: &GetMasterMemoryResponse) -> String {
    let process = [
        (
            "process_resident_memory_bytes",
            "Resident memory of the process.",
            memory.resident_bytes,
        ),
        ("process_threads", "Threads of the process.", memory.threads),
    ];
    let budgets: [(&str, &str, &str, OfBudget); 6] = [
        ("used_bytes", "gauge", "Bytes in use.", |budget| {
            budget.used_bytes
        }),
        (
            "peak_bytes",
            "gauge",
            "Most bytes in use at once since the start.",
            |budget| budget.peak_bytes,
        ),
        (
            "limit_bytes",
            "gauge",
            "Most bytes for all users.",
            |budget| budget.limit_bytes,
        ),
        (
            "share_bytes",
            "gauge",
            "Most bytes for one user.",
            |budget| budget.share_bytes,
        ),
        ("waiting", "gauge", "Requests that wait.", |budget| {
            budget.waiting
        }),
        (
            "refused_total",
            "counter",
            "Requests that were refused since the start.",
            |budget| budget.refused,
        ),
    ];
    let mut text = String::new();
    // Writing to a `String` cannot fail.
    for (name, help, value) in process {
        let _ = writeln!(
            text,
            "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}"
        );
    }
    for (name, kind, help, value) in budgets {
        let name = format!("det_memory_budget_{name}");
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for budget in &memory.budgets {
            let _ = writeln!(
                text,
                "{name}{{budget=\"{}\"}} {}",
                budget.name,
                value(budget)
            );
        }
    }
    text
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

    #[test]
    fn each_metric_has_its_type_once_and_a_line_for_each_budget() {
        let budgets = crate::budget::Budgets::default();
        let _held = budgets.answers.try_reserve(None, 1000).unwrap();
        let text = exposition(&GetMasterMemoryResponse {
            resident_bytes: 5,
            peak_resident_bytes: 6,
            threads: 7,
            budgets: budgets.all().into_iter().map(shown).collect(),
        });
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.contains(&"process_resident_memory_bytes 5"), "{text}");
        assert!(
            lines.contains(&"det_memory_budget_used_bytes{budget=\"answers\"} 1000"),
            "{text}"
        );
        assert!(
            lines.contains(&"det_memory_budget_refused_total{budget=\"requests\"} 0"),
            "{text}"
        );
        let types = lines
            .iter()
            .filter(|line| line.starts_with("# TYPE "))
            .count();
        let values = lines.iter().filter(|line| !line.starts_with('#')).count();
        assert_eq!(
            (types, values),
            (2 + 6, 2 + 6 * budgets.all().len()),
            "{text}"
        );
    }
}
