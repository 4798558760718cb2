//! What the processes of a container do at a moment, as its supervisor sees them: evidence for why a task makes no
//! progress.
//!
//! It names programs, never their arguments or variables, which may be secret: of a Python process the script or module,
//! and the functions it is in.

use det_ids::one_line;
use serde::{Deserialize, Serialize};

/// Signal that asks a supervisor for a [`Diagnosis`]: one that is ignored by default, so that a supervisor that does not
/// know it goes on.
pub const DIAGNOSE_SIGNAL: i32 = 23;
/// Signal at which Python code writes its stacks into the file that it has named for that; see [`STACKS_DIR`]. The kernel
/// never sends it, and no library is known to use it.
pub const STACK_SIGNAL: i32 = 16;
/// Directory, relative to the run directory, in which a process that handles [`STACK_SIGNAL`] has a file with its process
/// id as name.
pub const STACKS_DIR: &str = "stacks";

/// Processes of a container that are described at most; the others are counted.
pub const MOST_PROCESSES: usize = 64;
/// Functions of a stack that are named at most, the innermost first.
pub const MOST_FRAMES: usize = 30;
/// Characters of a name, of a function or of a program, at most.
pub const MOST_NAME_CHARS: usize = 200;

/// What the processes of one container do.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Diagnosis {
    /// Microseconds over which the use of processors was measured.
    pub window_micros: i64,
    /// The processes, in the order of their ids.
    pub processes: Vec<ProcessState>,
    /// How many processes are left out, since there are more than [`MOST_PROCESSES`].
    pub omitted: i64,
}

/// One process of a task: what it is, what it waits for and how much it computes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProcessState {
    /// Its id, as the container's processes see it.
    pub pid: i64,
    /// Id of its parent process, as the container's processes see it.
    pub parent: i64,
    /// Its program; of an interpreter also the script or module: `python3 train.py`.
    pub command: String,
    /// Rank in the training, where its launcher has given it one (`RANK`).
    pub rank: Option<i64>,
    /// The kernel's letter for its main thread: `R` runs, `S` sleeps, `D` waits for a disk or device, `T` is stopped, `Z`
    /// has ended.
    pub state: String,
    /// Function of the kernel that its main thread waits in, such as `futex_wait_queue`; empty = none, or not to be seen.
    pub wait_channel: String,
    /// System call of its main thread, such as `clock_nanosleep` or `read(socket)`; empty = none, or not to be seen.
    pub system_call: String,
    /// Number of its threads, the main one included.
    pub threads: i64,
    /// Microseconds of processors that all its threads have used.
    pub cpu_micros: i64,
    /// Those of them that it used within [`Diagnosis::window_micros`].
    pub cpu_window_micros: i64,
    /// Functions that the main thread of a Python process is in, the innermost first: `hang (/run/…/train.py:12)`.
    pub stack: Vec<String>,
    /// Where the stack comes from, or why there is none.
    pub stack_source: String,
}

impl Diagnosis {
    /// Cuts what is longer than a supervisor makes it: it may come from another program.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        let left_out = self.processes.len().saturating_sub(MOST_PROCESSES);
        self.processes.truncate(MOST_PROCESSES);
        self.omitted = (self.omitted.max(0)).saturating_add(i64::try_from(left_out).unwrap_or(0));
        for process in &mut self.processes {
            process.stack.truncate(MOST_FRAMES);
            let texts = [
                &mut process.command,
                &mut process.state,
                &mut process.wait_channel,
                &mut process.system_call,
                &mut process.stack_source,
            ];
            for text in texts.into_iter().chain(&mut process.stack) {
                *text = short(text);
            }
        }
        self
    }
}

/// A text in one line of at most [`MOST_NAME_CHARS`] characters.
pub fn short(text: &str) -> String {
    let line = one_line(text.trim());
    if line.chars().count() <= MOST_NAME_CHARS {
        return line;
    }
    let cut: String = line.chars().take(MOST_NAME_CHARS - 1).collect();
    format!("{cut}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_others_are_cut() {
        let process = ProcessState {
            command: "x".repeat(5000),
            stack: vec!["a\nb\u{1b}[31m".to_owned(); 99],
            ..ProcessState::default()
        };
        let bounded = Diagnosis {
            processes: vec![process; 100],
            omitted: -5,
            ..Diagnosis::default()
        }
        .bounded();
        assert_eq!(bounded.processes.len(), MOST_PROCESSES);
        assert_eq!(bounded.omitted, 36);
        let first = &bounded.processes[0];
        assert_eq!(first.command.chars().count(), MOST_NAME_CHARS);
        assert_eq!(first.stack.len(), MOST_FRAMES);
        assert_eq!(first.stack[0], "a b [31m");
    }
}
