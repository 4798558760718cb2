//! Reports that the service of a task can be used, once its output shows that.

use std::thread;
use std::time::Duration;

use det_taskspec::Script;

use crate::clock::Backoff;
use crate::master::Master;
use crate::report::Diagnostics;

/// How long one call may take.
const REPORT_TIMEOUT: Duration = Duration::from_secs(30);

/// Watches the lines of an entrypoint's output for the one that shows that its service can be used.
#[derive(Debug)]
pub(crate) struct Readiness {
    /// One of these texts is in that line. Emptied at the first report.
    texts: Vec<String>,
    path: String,
    master: Master,
    diagnostics: Diagnostics,
}

impl Readiness {
    /// As the script asks for it.
    pub(crate) fn new(script: &Script, master: Master, diagnostics: Diagnostics) -> Self {
        Self {
            texts: script.readiness.clone(),
            path: format!("/api/v1/allocations/{}/ready", script.allocation_id),
            master,
            diagnostics,
        }
    }

    /// Processes a line of output; reports in the background, at most once.
    pub(crate) fn see(&mut self, line: &str) {
        if !self.texts.iter().any(|text| line.contains(text.as_str())) {
            return;
        }
        self.texts.clear();
        let (what, path) = ("the report that the service is ready", self.path.clone());
        post_in_background(&self.master, &self.diagnostics, what, path, b"{}".to_vec());
    }
}

/// Sends what the master should know, again and again until it answers: it may be restarted at any time.
pub(crate) fn post_in_background(
    master: &Master,
    diagnostics: &Diagnostics,
    what: &'static str,
    path: String,
    body: Vec<u8>,
) {
    let (master, notes) = (master.clone(), diagnostics.clone());
    let spawned = thread::Builder::new().name("report".into()).spawn(move || {
        let mut backoff = Backoff::new();
        loop {
            match master.post(&path, &body, REPORT_TIMEOUT) {
                Ok(()) => return,
                Err(error) if error.is_temporary() => thread::sleep(backoff.delay()),
                Err(error) => {
                    notes.note(format!("{what} was refused: {error}"));
                    return;
                }
            }
        }
    });
    if let Err(error) = spawned {
        diagnostics.note(format!("could not send {what}: {error}"));
    }
}
