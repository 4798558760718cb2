//! What the master holds in memory, and what it may.

use det_authz::{Kind, Permission};

use crate::app::context::Context;
use crate::auth::Actor;
use crate::budget::{Budget, Budgets, Usage};
use crate::error::{AppError, AppResult, ErrorKind};

/// What the master's memory is read from.
#[derive(Clone)]
pub(crate) struct MemorySources {
    pub(crate) context: Context,
    pub(crate) budgets: Budgets,
}

/// Memory of the master's process, and of what clients can make it hold. On systems without `/proc` the numbers of the
/// process are 0.
pub(crate) struct Memory {
    /// Resident memory of the process.
    pub(crate) resident_bytes: i64,
    /// The same at its most.
    pub(crate) peak_resident_bytes: i64,
    /// Number of threads of the process; 0 = unknown.
    pub(crate) threads: i64,
    /// What is used of each budget.
    pub(crate) budgets: Vec<Usage>,
}

/// The memory as it is now.
pub(crate) fn current(sources: &MemorySources, actor: &Actor) -> AppResult<Memory> {
    let to_do = "read what the master holds in memory";
    actor.require(Permission::Read, Kind::MasterMemory, to_do)?;
    // A file of the kernel's memory: read without waiting for a disk.
    let status = match std::fs::read_to_string("/proc/self/status") {
        Ok(status) => status,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(AppError::internal(error)),
    };
    Ok(Memory {
        resident_bytes: field(&status, "VmRSS:").saturating_mul(1024),
        peak_resident_bytes: field(&status, "VmHWM:").saturating_mul(1024),
        threads: field(&status, "Threads:"),
        budgets: sources
            .budgets
            .all()
            .into_iter()
            .map(Budget::usage)
            .collect(),
    })
}

/// The same for Prometheus, unless that is switched off.
pub(crate) fn for_prometheus(sources: &MemorySources, actor: &Actor) -> AppResult<Memory> {
    let to_do = "read the master's metrics";
    actor.require(Permission::Read, Kind::MasterMemory, to_do)?;
    if !sources.context.config().observability.enable_prometheus {
        return Err(AppError::new(
            ErrorKind::NotFound,
            "the Prometheus routes of this master are switched off",
        )
        .hint("set observability.enable_prometheus to true in the master's configuration"));
    }
    current(sources, actor)
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
