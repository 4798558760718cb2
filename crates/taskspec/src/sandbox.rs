//! What agent and supervisor leave for each other in a container directory.
//!
//! A container directory belongs to the agent and looks the same in every runtime:
//!
//! | path | written by | content |
//! | --- | --- | --- |
//! | [`SANDBOX_FILE`] | agent | [`SandboxSpec`]; process runtime only |
//! | [`RUN_SUBDIR`]`/` | agent | becomes [`RUN_DIR`](crate::RUN_DIR) of the container |
//! | [`RUN_SUBDIR`]`/`[`SCRIPT_FILE`](crate::SCRIPT_FILE) | agent | the [`Script`](crate::Script) |
//! | [`RUN_SUBDIR`]`/`[`STARTED_FILE`] | supervisor | [`EntrypointStart`], when the entrypoint starts |
//! | [`RUN_SUBDIR`]`/`[`EXIT_FILE`](crate::EXIT_FILE) | supervisor | [`ExitReport`], when the entrypoint has ended |
//! | [`RUN_SUBDIR`]`/`[`SPOOL_DIR`](crate::SPOOL_DIR)`/` | supervisor | the log spool |
//! | [`RUN_SUBDIR`]`/`[`DIAGNOSTICS_FILE`] | supervisor | its own messages, for operators |
//! | [`SANDBOX_LOG_FILE`] | supervisor | messages from before the sandbox was built |
//!
//! The task's user owns the run directory, so whatever an agent reads there may have been altered by the task: it must
//! not be followed as a link, and it decides about nothing but that task.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::guard::HostGuard;
use crate::{ContainerExit, DeviceMapping, ExitCause, Mount, TaskUser};

/// Option of the supervisor's command `run` in a container that shares its host's network: services of the task listen on
/// the loopback address only, where the agent reaches them.
pub const HOST_NETWORK: &str = "--host-network";
/// The [`SandboxSpec`], relative to the container directory.
pub const SANDBOX_FILE: &str = "sandbox.json";
/// The run directory, relative to the container directory.
pub const RUN_SUBDIR: &str = "run";
/// Messages of the supervisor from before the sandbox was built, relative to the container directory.
pub const SANDBOX_LOG_FILE: &str = "sandbox.log";
/// The [`EntrypointStart`] note, relative to the run directory.
pub const STARTED_FILE: &str = "started.json";
/// The supervisor's own messages, relative to the run directory.
pub const DIAGNOSTICS_FILE: &str = "supervisor.log";

/// The sandbox of the process runtime: `det-supervisor sandbox <container directory>` builds it and runs the task in it.
///
/// The task sees the host's file system in a mount namespace of its own: system directories read-only, `/dev`, `/tmp`,
/// `/var/tmp` and `/run` of its own, without what [`HostGuard`] names. It sees only its own processes, has no
/// capabilities and gains none. The supervisor ends when the task has ended; when it is killed, the whole task dies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// Identity of the task's processes. An agent that is not root can only start tasks as itself; the task then sees
    /// itself as root in a user namespace, whatever is asked for here.
    pub user: TaskUser,
    /// User and group id under which a task that would be root sees itself instead, in a user namespace of its own. For
    /// programs that isolate their parts when they run as root, with capabilities that no task has. `None` = as it is.
    #[serde(default)]
    pub shown_ids: Option<(u32, u32)>,
    /// Host directories to show in the sandbox, in order, the `shared_fs` one included. Relative container paths are
    /// below the script's work directory.
    pub mounts: Vec<Mount>,
    /// The directory of the task's user that outlives it, which only the agent can name; `None` = it has none.
    #[serde(default)]
    pub user_directory: Option<Mount>,
    /// Upper bound of the task's own `/dev/shm` in bytes; 0 = the kernel's, half of the memory.
    pub shm_size_bytes: u64,
    /// Directory to put first on the task's `PATH`, so that `python3` is the chosen interpreter.
    #[serde(default)]
    pub python_dir: Option<String>,
    /// Directory to append to the task's `PYTHONPATH`, for an interpreter without a `determined` of its own.
    #[serde(default)]
    pub python_path: Option<String>,
    /// What takes the place of an image's environment: `PATH`, `HOME`, `LANG`. The script's variables win over these;
    /// nothing else of the agent's own environment reaches the task.
    #[serde(default)]
    pub env: Vec<(String, String)>,
    /// Device files of the host that this task is given, in addition to those that every program expects.
    #[serde(default)]
    pub devices: Vec<DeviceMapping>,
    /// Which parts of the host the task may use.
    #[serde(default)]
    pub guard: HostGuard,
    /// Directories of the host with interpreter and libraries, shown read-only also where they are in a directory that
    /// the task does not see otherwise: a home directory, `/tmp`.
    #[serde(default)]
    pub exposed: Vec<PathBuf>,
    /// First line of the task's log, about the limits of this sandbox; `None` = there are none to report.
    #[serde(default)]
    pub notice: Option<String>,
    /// What a warm start of Python needs to know; `None` = all programs start cold.
    #[serde(default)]
    pub warm: Option<WarmPython>,
}

/// The interpreter of which the agent keeps processes that have imported modules, and how they were started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmPython {
    /// The configured interpreter.
    pub interpreter: PathBuf,
    /// Files that do nothing but call it: scripts of the agent.
    #[serde(default)]
    pub callers: Vec<PathBuf>,
    /// The environment in which the modules were imported.
    pub env: Vec<(String, String)>,
}

/// Variable of the process outside of a sandbox with the number of an inherited descriptor: its connection with the standby
/// of the container, if there is one.
pub const STANDBY_VARIABLE: &str = "DET_STANDBY_DESCRIPTOR";
/// Directory of the run directory with what programs of a sandbox reach its warm process through: `python3` and other names
/// of the relay, [`WARM_FILE`] and [`WARM_SOCKET`].
pub const WARM_SUBDIR: &str = "warm";
/// The relay's executable in [`WARM_SUBDIR`]; its other names lead to it.
pub const WARM_RELAY: &str = "python3";
/// The [`WarmPython`] in [`WARM_SUBDIR`], for the relay.
pub const WARM_FILE: &str = "warm.json";
/// The socket in [`WARM_SUBDIR`] at which the warm process listens.
pub const WARM_SOCKET: &str = "socket";

/// One check of a sandbox, made from within it, with its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IsolationRow {
    /// What was tried, in a few words.
    pub what: String,
    /// Whether the sandbox keeps the task from it.
    pub outcome: Isolation,
    /// What was found, for users.
    pub detail: String,
}

/// Whether a sandbox keeps a task from something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// It keeps the task from it.
    Isolated,
    /// It does not keep the task from it, by design.
    Shared,
    /// It does not keep the task from it, although it should.
    Open,
}

/// Exit status of a supervisor that may not write into its run directory, and reports its task's end in no other way.
pub const CANNOT_REPORT: u8 = 126;

/// How the task ended, as observed by the supervisor.
///
/// Written atomically as [`EXIT_FILE`](crate::EXIT_FILE) once the entrypoint has ended and its output is in the spool.
/// The supervisor may live on for a while to ship that; when its process has ended too, what is left in the spool is
/// the agent's to ship.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitReport {
    /// How it ended. Never [`ContainerExit::Killed`] or [`ContainerExit::Lost`]: only the agent knows that.
    #[serde(flatten)]
    pub exit: ContainerExit,
    /// When it ended, in microseconds since 1970 UTC.
    pub ended_at: i64,
    /// What is known of how its code failed; `None` = it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<ExitCause>,
}

/// The process of a training that failed first in a container, as its launcher leaves it in [`FAILED_RANK_FILE`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedRank {
    /// Rank of the process within the whole training, from 0.
    pub rank: u32,
    /// Its exit code as shells have it.
    pub exit_code: i32,
    /// When it seems to have failed, in microseconds since 1970.
    pub failed_at: i64,
    /// The last lines that it wrote.
    #[serde(default)]
    pub last_lines: Vec<String>,
}

impl From<FailedRank> for ExitCause {
    fn from(failed: FailedRank) -> Self {
        Self {
            at: failed.failed_at,
            rank: Some(failed.rank),
            exit_code: Some(failed.exit_code),
            last_lines: failed.last_lines,
        }
        .bounded()
    }
}

/// Where launchers leave what failed first, in the run directory itself, since agents read it and follow no link of a task: `docs/contract/task-environment.md`, "What a launcher leaves".
pub const FAILED_RANK_FILE: &str = "failed_rank.json";
/// Bytes of that file at most.
pub const MOST_OF_FAILED_RANK: u64 = 16 << 10;

/// When the entrypoint was started and the stages before it were over. For timing figures; written without fsync.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntrypointStart {
    /// Process id of the entrypoint in its own process namespace.
    pub pid: i32,
    /// When the entrypoint was started, in microseconds since 1970 UTC.
    pub started_at: i64,
    /// When the stages before the entrypoint were over.
    pub stages: Stages,
}

/// When each stage of a start was over, in microseconds since 1970 UTC; `None` = the task had no such stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Stages {
    /// The supervisor began; in the process runtime, before the sandbox was built.
    pub supervisor_start: Option<i64>,
    /// The sandbox was built.
    pub sandbox_ready: Option<i64>,
    /// The context directory was fetched and unpacked.
    pub context_unpacked: Option<i64>,
    /// The startup hooks had ended.
    pub hooks_done: Option<i64>,
    /// All containers of the allocation had met.
    pub rendezvous_done: Option<i64>,
    /// The entrypoint was started.
    pub entrypoint_exec: Option<i64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_report_reads_as_one_flat_object() {
        let report = ExitReport {
            exit: ContainerExit::Signaled {
                signal: 9,
                out_of_memory: true,
            },
            ended_at: 17,
            cause: None,
        };
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(
            json,
            serde_json::json!({"kind": "signaled", "signal": 9, "out_of_memory": true, "ended_at": 17})
        );
        assert_eq!(serde_json::from_value::<ExitReport>(json).unwrap(), report);
    }

    #[test]
    fn a_sandbox_spec_needs_no_optional_member() {
        let spec: SandboxSpec = serde_json::from_str(
            r#"{"user": {"user": "ada", "uid": 7, "group": "ada", "gid": 8}, "mounts": [], "shm_size_bytes": 0}"#,
        )
        .unwrap();
        assert_eq!(spec.user.uid, 7);
        assert!(spec.env.is_empty());
    }
}
