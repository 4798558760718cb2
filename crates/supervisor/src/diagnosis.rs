//! Looks at what the processes of the task do, when the agent asks for it.
//!
//! Everything is read as the task's own user, inside the container: no right is needed that the task does not have.

mod procfs;
mod stacks;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use det_taskspec::diagnosis::{Diagnosis, MOST_PROCESSES, ProcessState, STACKS_DIR, short};
use nix::unistd::getpid;

use crate::environment::TaskEnv;
use crate::relay;
use crate::setup::Setup;
use crate::warm;
use procfs::{Proc, Stat};
use stacks::Stacks;

/// Time over which the use of processors is measured.
const WINDOW: Duration = Duration::from_secs(1);
/// Limit for all stacks together: the master waits for the answer.
const STACKS_WITHIN: Duration = Duration::from_secs(8);
/// Limit for the report to the master.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Answers requests for a diagnosis, one at a time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Doctor {
    busy: Arc<AtomicBool>,
}

impl Doctor {
    /// Looks and reports on a thread of its own; a request during another one is answered by that.
    pub(crate) fn examine(&self, setup: &Arc<Setup>) {
        if self.busy.swap(true, Ordering::AcqRel) {
            return;
        }
        let (busy, setup) = (self.busy.clone(), setup.clone());
        let notes = setup.diagnostics.clone();
        let work = move || {
            let diagnosis = look(Path::new("/proc"), &setup.env, &setup.run_dir, WINDOW);
            report(&setup, &diagnosis);
            busy.store(false, Ordering::Release);
        };
        let spawned = thread::Builder::new().name("diagnosis".into()).spawn(work);
        if let Err(error) = spawned {
            self.busy.store(false, Ordering::Release);
            notes.note(format!("could not look at the task's processes: {error}"));
        }
    }
}

fn report(setup: &Setup, diagnosis: &Diagnosis) {
    let script = &setup.script;
    let path = format!(
        "/api/v1/allocations/{}/resources/{}/diagnosis",
        script.allocation_id, script.container_id
    );
    let body = serde_json::json!({ "diagnosis": diagnosis }).to_string();
    if let Err(error) = setup.master.post(&path, body.as_bytes(), REPORT_TIMEOUT) {
        setup.diagnostics.note(format!(
            "could not report what the task's processes do: {error}"
        ));
    }
}

/// What the processes below this one do.
fn look(root: &Path, env: &TaskEnv, run_dir: &Path, window: Duration) -> Diagnosis {
    let proc = Proc::at(root);
    let own = i64::from(getpid().as_raw());
    let before: BTreeMap<i64, Stat> = proc.stats();
    let began = Instant::now();
    thread::sleep(window);
    let mut now = proc.stats();
    if warm::dir_for_programs().is_some() {
        count_warm_programs(&proc, own, &mut now);
    }
    let window_micros = i64::try_from(began.elapsed().as_micros()).unwrap_or(i64::MAX);
    let descendants = descendants(&now, own);
    let omitted = descendants.len().saturating_sub(MOST_PROCESSES);
    let mut processes: Vec<ProcessState> = descendants
        .iter()
        .take(MOST_PROCESSES)
        .filter_map(|pid| Some(state(&proc, *pid, now.get(pid)?, before.get(pid))))
        .collect();
    let stacks = Stacks {
        py_spy: env.find_program("py-spy"),
        env,
        dir: run_dir.join(STACKS_DIR),
        until: Instant::now() + STACKS_WITHIN,
        proc: &proc,
    };
    for process in &mut processes {
        if process.state != "Z" && procfs::is_python(&process.command) {
            (process.stack, process.stack_source) = stacks.of(process.pid);
        }
    }
    Diagnosis {
        window_micros,
        processes,
        omitted: i64::try_from(omitted).unwrap_or(i64::MAX),
    }
}

/// A program that was started warm has its parent outside of the sandbox; it takes the place of its relay, which is left
/// out.
fn count_warm_programs(proc: &Proc, own: i64, all: &mut BTreeMap<i64, Stat>) {
    all.retain(|_, stat| stat.name.as_bytes() != relay::NAME.to_bytes());
    for (pid, stat) in all {
        if stat.parent == 0 && *pid != own && proc.is_of_task(*pid) {
            stat.parent = own;
        }
    }
}

/// Ids of the processes that descend from `own`, itself left out.
fn descendants(all: &BTreeMap<i64, Stat>, own: i64) -> BTreeSet<i64> {
    let mut found = BTreeSet::new();
    // Parents are mostly, but not always, before their children: repeated until nothing is new.
    loop {
        let before = found.len();
        for (pid, stat) in all {
            if *pid != own && (stat.parent == own || found.contains(&stat.parent)) {
                found.insert(*pid);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

fn state(proc: &Proc, pid: i64, stat: &Stat, before: Option<&Stat>) -> ProcessState {
    // A process of the same id that has begun since then is another one.
    let used_before = before
        .filter(|before| before.started == stat.started)
        .map_or(0, |before| before.cpu_micros);
    ProcessState {
        pid,
        parent: stat.parent,
        command: short(&proc.command(pid).unwrap_or_else(|| stat.name.clone())),
        rank: proc.rank(pid),
        state: stat.state.to_string(),
        wait_channel: short(&proc.wait_channel(pid)),
        system_call: proc.system_call(pid),
        threads: stat.threads,
        cpu_micros: stat.cpu_micros,
        cpu_window_micros: stat.cpu_micros.saturating_sub(used_before),
        stack: Vec::new(),
        stack_source: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Facts;
    use crate::environment::tests::script;

    #[test]
    fn a_sleeping_child_is_found_with_what_it_waits_in() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let dir = tempfile::tempdir().unwrap();
        let env = TaskEnv::new(BTreeMap::new(), &script(&[]), &Facts::default());
        let pid = i64::from(child.id());
        let window = Duration::from_millis(10);
        let diagnosis = look(Path::new("/proc"), &env, dir.path(), window);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(diagnosis.window_micros >= 10_000);
        let found = diagnosis.processes.iter().find(|one| one.pid == pid);
        let found = found.expect("it lives");
        assert_eq!(found.command, "sleep");
        assert_eq!(found.parent, i64::from(std::process::id()));
        assert_eq!((found.state.as_str(), found.threads), ("S", 1));
        assert!(found.cpu_window_micros < 500_000);
        // Where the kernel shows neither there is nothing to compare.
        if !found.system_call.is_empty() {
            assert_eq!(found.system_call, "clock_nanosleep");
        }
    }

    #[test]
    fn only_what_is_below_is_the_tasks() {
        let stat = |parent| Stat {
            parent,
            ..Stat::default()
        };
        let all = [
            (1, stat(0)),
            (7, stat(1)),
            (5, stat(7)),
            (9, stat(5)),
            (8, stat(1)),
        ];
        let all: BTreeMap<i64, Stat> = all.into_iter().collect();
        assert_eq!(descendants(&all, 7), BTreeSet::from([5, 9]));
        assert_eq!(descendants(&all, 1), BTreeSet::from([5, 7, 8, 9]));
    }
}
