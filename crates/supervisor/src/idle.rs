//! Looks at whether a notebook is in use, and reports it to the master.

use std::thread;
use std::time::Duration;

use det_taskspec::{
    IdleCheck, NOTEBOOK_CERTIFICATE_FILE, NOTEBOOK_CERTIFICATE_NAME, NotebookIdleType, Script,
    variables as v,
};
use serde::Deserialize;

use crate::failure::SetupError;
use crate::master::{Address, Master, MasterError};
use crate::report::Diagnostics;

/// How long one call may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A kernel of the notebook, as its server describes it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Kernel {
    connections: i64,
    execution_state: String,
    last_activity: String,
}

/// A terminal of the notebook.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Terminal {
    last_activity: String,
}

/// What runs in a notebook.
#[derive(Debug, Clone, Default)]
struct NotebookActivity {
    kernels: Vec<Kernel>,
    terminals: Vec<Terminal>,
}

impl NotebookActivity {
    /// The last moment at which a kernel or a terminal did something, as text that sorts by time; empty = never.
    fn last_activity(&self) -> &str {
        let kernels = self.kernels.iter().map(|kernel| &kernel.last_activity);
        let terminals = self.terminals.iter().map(|one| &one.last_activity);
        kernels.chain(terminals).max().map_or("", String::as_str)
    }

    /// Whether nothing that counts exists. `before` is what the look before this one has seen.
    fn is_idle(&self, counts: NotebookIdleType, before: Option<&Self>) -> bool {
        match counts {
            NotebookIdleType::KernelsOrTerminals => {
                self.kernels.is_empty() && self.terminals.is_empty()
            }
            NotebookIdleType::KernelConnections => {
                self.kernels.iter().all(|kernel| kernel.connections <= 0)
            }
            NotebookIdleType::Activity => {
                let busy = self
                    .kernels
                    .iter()
                    .any(|kernel| kernel.execution_state == "busy");
                let before = before.map_or("", Self::last_activity);
                !busy && self.last_activity() <= before
            }
        }
    }
}

/// Starts to look and report, until this process ends.
pub(crate) fn watch(
    script: &Script,
    check: &IdleCheck,
    master: Master,
    diagnostics: Diagnostics,
) -> Result<(), SetupError> {
    let token = script
        .env
        .iter()
        .find(|(name, _)| name == v::DET_NOTEBOOK_TOKEN);
    let token = token.map(|(_, value)| value.as_str()).unwrap_or_default();
    let address = Address {
        url: format!("https://127.0.0.1:{}/proxy/{}", check.port, script.task_id),
        cert_file: Some(NOTEBOOK_CERTIFICATE_FILE.to_owned()),
        cert_name: Some(NOTEBOOK_CERTIFICATE_NAME.to_owned()),
    };
    let (every, idle_type) = (check.every_seconds, check.idle_type);
    let credentials = format!("token {token}");
    let path = format!("/api/v1/notebooks/{}/report_idle", script.task_id);
    thread::Builder::new()
        .name("idle".into())
        .spawn(move || {
            let mut said = None;
            let mut before: Option<NotebookActivity> = None;
            loop {
                thread::sleep(Duration::from_secs(every.into()));
                // The certificate exists once the files have been placed.
                let seen = Master::at(&address, "Authorization", credentials.clone())
                    .and_then(|server| look(&server).map_err(|error| error.to_string()));
                // A server that cannot be asked may be at work.
                let idle = match &seen {
                    Ok(seen) => seen.is_idle(idle_type, before.as_ref()),
                    Err(_) => false,
                };
                before = seen.ok().or(before);
                let body = format!("{{\"idle\":{idle}}}");
                let reported = master.put(&path, body.as_bytes(), TIMEOUT);
                let problem = reported.err().filter(|error| !error.is_temporary());
                let problem = problem.map(|error| error.to_string());
                if let Some(text) = problem.as_ref().filter(|_| said != problem) {
                    diagnostics.note(format!(
                        "a report of the notebook's use was refused: {text}"
                    ));
                }
                said = problem;
            }
        })
        .map(drop)
        .map_err(crate::failure::thread_failed)
}

fn look(server: &Master) -> Result<NotebookActivity, MasterError> {
    let kernels = server.get("/api/kernels", TIMEOUT)?;
    let terminals = match server.get("/api/terminals", TIMEOUT) {
        // It has been started without terminals.
        Err(MasterError::Status { status: 404, .. }) => Vec::new(),
        other => other?,
    };
    Ok(NotebookActivity { kernels, terminals })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(connections: i64, execution_state: &str, last_activity: &str) -> NotebookActivity {
        NotebookActivity {
            kernels: vec![Kernel {
                connections,
                execution_state: execution_state.to_owned(),
                last_activity: last_activity.to_owned(),
            }],
            terminals: Vec::new(),
        }
    }

    fn terminal(last_activity: &str) -> NotebookActivity {
        NotebookActivity {
            kernels: Vec::new(),
            terminals: vec![Terminal {
                last_activity: last_activity.to_owned(),
            }],
        }
    }

    #[test]
    fn each_type_counts_what_it_names() {
        use NotebookIdleType::{Activity, KernelConnections, KernelsOrTerminals};
        let nothing = NotebookActivity::default();
        let (unused, connected) = (kernel(0, "idle", "10:00"), kernel(2, "idle", "10:00"));
        let (busy, open) = (kernel(0, "busy", "10:00"), terminal("10:00"));
        for (seen, kernels_or_terminals, kernel_connections, activity) in [
            (&nothing, true, true, true),
            (&unused, false, true, true),
            (&connected, false, false, true),
            (&busy, false, true, false),
            (&open, false, true, true),
        ] {
            // The look before has seen the same.
            let idle = |counts| seen.is_idle(counts, Some(seen));
            assert_eq!(idle(KernelsOrTerminals), kernels_or_terminals, "{seen:?}");
            assert_eq!(idle(KernelConnections), kernel_connections, "{seen:?}");
            assert_eq!(idle(Activity), activity, "{seen:?}");
        }
    }

    #[test]
    fn output_since_the_last_look_is_activity() {
        let (earlier, later) = (
            terminal("2026-01-01T10:00:00Z"),
            terminal("2026-01-01T10:00:05Z"),
        );
        assert!(!later.is_idle(NotebookIdleType::Activity, Some(&earlier)));
        assert!(later.is_idle(NotebookIdleType::Activity, Some(&later)));
        // The first look has nothing to compare with.
        assert!(!later.is_idle(NotebookIdleType::Activity, None));
    }
}
