//! Reports that the service of a task can be used, once its output shows that.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use det_taskspec::Script;

use crate::clock::Backoff;
use crate::master::Master;
use crate::report::Diagnostics;

/// How long one call may take.
const REPORT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a service that writes that it can be used is waited for until it listens. It is reported as ready afterwards.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two looks at whether it listens.
const LISTEN_PAUSE: Duration = Duration::from_millis(20);

/// Watches the lines of an entrypoint's output for the one that shows that its service can be used.
#[derive(Debug)]
pub(crate) struct Readiness {
    /// One of these texts is in that line. Emptied at the first report.
    texts: Vec<String>,
    /// What the service must listen on, too.
    port: Option<u16>,
    path: String,
    master: Master,
    diagnostics: Diagnostics,
}

impl Readiness {
    /// As the script asks for it.
    pub(crate) fn new(script: &Script, master: Master, diagnostics: Diagnostics) -> Self {
        Self {
            texts: script.readiness.clone(),
            port: script.readiness_port,
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
        let port = self.port;
        let before = move || {
            if let Some(port) = port {
                wait_for_listener(port);
            }
        };
        in_background(
            &self.master,
            &self.diagnostics,
            what,
            before,
            path,
            b"{}".to_vec(),
        );
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
    in_background(master, diagnostics, what, || (), path, body);
}

/// Does something first, and sends.
fn in_background(
    master: &Master,
    diagnostics: &Diagnostics,
    what: &'static str,
    before: impl FnOnce() + Send + 'static,
    path: String,
    body: Vec<u8>,
) {
    let (master, notes) = (master.clone(), diagnostics.clone());
    let spawned = thread::Builder::new().name("report".into()).spawn(move || {
        before();
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

/// Returns when a socket of this network namespace listens on the port, or after a while. The tables are looked at, since a
/// connection would appear in the log of the service.
fn wait_for_listener(port: u16) {
    let deadline = Instant::now() + LISTEN_TIMEOUT;
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    // Without IPv6 there is no second table.
    let listens =
        |table: &&str| fs::read_to_string(table).is_ok_and(|text| listens_in(&text, port));
    while !tables.iter().any(listens) && Instant::now() < deadline {
        thread::sleep(LISTEN_PAUSE);
    }
}

/// Whether a table of sockets has one in state `LISTEN` (10) with this local port (`proc_net_tcp` in the kernel's documentation).
fn listens_in(table: &str, port: u16) -> bool {
    let end = format!(":{port:04X}");
    table.lines().skip(1).any(|row| {
        let mut fields = row.split_whitespace().skip(1);
        fields.next().is_some_and(|local| local.ends_with(&end)) && fields.nth(1) == Some("0A")
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn only_sockets_that_listen_on_the_port_count() {
        let table = "  sl  local_address rem_address   st tx_queue\n\
             0: 0100007F:0B54 0100007F:C350 01 00000000:00000000\n\
             1: 0100007F:0B55 00000000:0000 0A 00000000:00000000\n";
        assert!(!listens_in(table, 2900));
        assert!(listens_in(table, 2901));
        assert!(!listens_in(table, 2902));
    }

    #[test]
    fn a_listener_of_this_machine_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        wait_for_listener(port);
        let table = fs::read_to_string("/proc/net/tcp").unwrap();
        assert!(listens_in(&table, port), "{table}");
    }
}
