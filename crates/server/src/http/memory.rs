//! What the master holds in memory, and what it may: as a message, and as metrics for Prometheus.

use std::fmt::Write;

use axum::http::header;
use axum::response::IntoResponse;
use det_api_types::master::{GetMasterMemoryResponse, MemoryBudget};

use crate::app::reads;
use crate::app::reads::memory::Memory;
use crate::budget::Usage;
use crate::http::extract::Caller;
use crate::http::respond::{Answer, message};
use crate::http::routes::{Routes, routes};

/// Routes of this file.
pub fn routes() -> Routes {
    Routes::new()
        .routes(routes!(get_master_memory))
        .routes(routes!(get_prometheus_metrics))
}

/// Memory of the master's process, and the budgets of what clients can make it hold. For administrators; an addition of
/// ours.
#[utoipa::path(get, path = "/api/v1/master/memory", operation_id = "GetMasterMemory", tag = "master",
    responses((status = 200, body = GetMasterMemoryResponse)))]
async fn get_master_memory(Caller(master, actor): Caller) -> Answer {
    message(&response(&reads::memory::current(
        &master.sources.memory,
        &actor,
    )?))
}

/// The same as metrics in the text format of Prometheus. For administrators; an addition of ours.
#[utoipa::path(get, path = "/debug/prom/metrics", operation_id = "GetPrometheusMetrics", tag = "master",
    responses((status = 200, body = String, content_type = "text/plain")))]
async fn get_prometheus_metrics(Caller(master, actor): Caller) -> Answer {
    let text = exposition(&response(&reads::memory::for_prometheus(
        &master.sources.memory,
        &actor,
    )?));
    Ok(([(header::CONTENT_TYPE, PROMETHEUS_TEXT)], text).into_response())
}

/// Content type of version 0.0.4 of the text format.
const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

fn response(memory: &Memory) -> GetMasterMemoryResponse {
    GetMasterMemoryResponse {
        resident_bytes: memory.resident_bytes,
        peak_resident_bytes: memory.peak_resident_bytes,
        threads: memory.threads,
        budgets: memory.budgets.iter().map(shown).collect(),
    }
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

fn shown(usage: &Usage) -> MemoryBudget {
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
    use crate::budget::Budget;

    #[test]
    fn each_metric_has_its_type_once_and_a_line_for_each_budget() {
        let budgets = crate::budget::Budgets::default();
        let _held = budgets.answers.try_reserve(None, 1000).unwrap();
        let text = exposition(&response(&Memory {
            resident_bytes: 5,
            peak_resident_bytes: 6,
            threads: 7,
            budgets: budgets.all().into_iter().map(Budget::usage).collect(),
        }));
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
