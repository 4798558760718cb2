//! Whether this host can start containers, whatever they are to run: its disk is not full, its engine answers.
//!
//! It is looked at when the agent starts, and when a start has failed for what may be a reason of the host. While a look
//! finds something, the master is informed and gives the host no new work, and it is looked at again and again. What runs
//! goes on.

use std::convert::Infallible;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::statvfs::statvfs;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::containers::SharedState;
use crate::containers::store::RuntimeKind;

/// File in the data directory that is written to find out whether that is possible.
const PROBE_FILE: &str = "probe";
/// Bytes that are written into that file.
const PROBE_BYTES: usize = 64 << 10;
/// Bytes that must be free where containers have their files: less is as good as nothing.
const LEAST_SPACE: u64 = 4 << 20;
/// How long a look may take: what hangs starts nothing either.
const LOOK_WITHIN: Duration = Duration::from_secs(30);
/// The pause before the next look while a look finds something.
pub(crate) const LOOK_PAUSE: Duration = Duration::from_secs(5);

/// What keeps this host from starting containers, as the newest look has found it, for users.
#[derive(Debug)]
pub(crate) struct HostFault(watch::Sender<Option<String>>);

impl HostFault {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    /// A look has found this. What is known already stays: it is looked at again.
    pub(crate) fn note(&self, reason: &str) {
        self.0.send_if_modified(|fault| {
            let is_new = fault.is_none();
            fault.get_or_insert_with(|| reason.to_owned());
            is_new
        });
    }
}

/// Reports to the master whether containers can be started. Never ends.
pub(crate) async fn watch(shared: &SharedState) -> Infallible {
    let mut faults = shared.host_fault.0.subscribe();
    shared.host_fault.0.send_replace(look(shared).await.err());
    loop {
        let fault = faults.borrow_and_update().clone();
        shared.outbox.host(fault.clone());
        if fault.is_none() {
            // The sender lives as long as this.
            let _ = faults.wait_for(Option::is_some).await;
            continue;
        }
        sleep(shared.options.host_look_pause).await;
        let found = look(shared).await.err();
        match &found {
            None => tracing::info!("this host can start containers again"),
            Some(reason) => tracing::debug!("this host still cannot start containers: {reason}"),
        }
        shared.host_fault.0.send_replace(found);
    }
}

/// Whether a container could be started: its files can be written, and the engine could take it. The error is for users.
pub(crate) async fn look(shared: &SharedState) -> Result<(), String> {
    let found = tokio::time::timeout(LOOK_WITHIN, look_at(shared)).await;
    found.unwrap_or_else(|_| {
        Err(format!(
            "its disk or its container engine does not answer within {LOOK_WITHIN:?}"
        ))
    })
}

async fn look_at(shared: &SharedState) -> Result<(), String> {
    let directory = shared.data_dir.path().to_owned();
    let written = {
        let directory = directory.clone();
        tokio::task::spawn_blocking(move || write_some(&directory)).await
    };
    let written = written.unwrap_or_else(|panicked| Err(io::Error::other(panicked)));
    written.map_err(|error| {
        let path = directory.display();
        format!("cannot write to the data directory \"{path}\": {error}")
    })?;
    require_space(&directory).await?;
    let runtimes = &shared.runtimes;
    match runtimes.kind {
        RuntimeKind::Process => Ok(()),
        RuntimeKind::Docker | RuntimeKind::Podman => {
            runtimes.engine(runtimes.kind).await.look().await
        }
    }
}

/// Whether there is space for a container in a directory. One that is not to be seen here, as that of an engine in another
/// machine, has some. The error is for users.
pub(crate) async fn require_space(directory: &Path) -> Result<(), String> {
    let path: PathBuf = directory.to_owned();
    let found = tokio::task::spawn_blocking(move || statvfs(&path)).await;
    let Ok(Ok(found)) = found else {
        return Ok(());
    };
    let available = found
        .blocks_available()
        .saturating_mul(found.fragment_size());
    if available >= LEAST_SPACE {
        return Ok(());
    }
    let path = directory.display();
    Err(format!(
        "the disk of \"{path}\" is full: {available} bytes are available"
    ))
}

/// Writes a file to the disk and removes it.
fn write_some(directory: &Path) -> io::Result<()> {
    let path = directory.join(PROBE_FILE);
    let written = File::create(&path).and_then(|mut file| {
        file.write_all(&vec![0; PROBE_BYTES])?;
        file.sync_data()
    });
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => written.and(Err(error)),
        _ => written,
    }
}
