//! `det-supervisor place`: fills the run directory of a pod from its Secret, before the container of the task starts. It
//! needs nothing of the image that it is in, has the rights of the task's user, and may run again after it was cut short.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use det_taskspec::{SCRIPT_FILE, pods};

use crate::setup;

/// What a pod's environment has of its rank.
struct PodRank {
    ranks: Option<OsString>,
    index: Option<OsString>,
}

/// Copies this executable, the script of the pod's rank and the master's certificates.
pub(crate) fn run(from: &Path, to: &Path) -> ExitCode {
    let rank = PodRank {
        ranks: std::env::var_os(pods::RANKS),
        index: std::env::var_os(pods::COMPLETION_INDEX),
    };
    let executable = std::env::current_exe()
        .map_err(|error| format!("could not find the supervisor's own executable: {error}"));
    let placed = executable.and_then(|executable| place(&executable, &rank, from, to));
    match placed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If standard error is closed, the message is lost.
            drop(writeln!(io::stderr(), "det-supervisor place: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn place(executable: &Path, rank: &PodRank, from: &Path, to: &Path) -> Result<(), String> {
    let rank = rank.find()?;
    // A runtime that finds none makes those on the way to a mount, and they are root's.
    setup::make_directories(to).map_err(|error| error.to_string())?;
    put(executable, &to.join(pods::SUPERVISOR_FILE), 0o755)?;
    let certificate = from.join(pods::CERTIFICATE_KEY);
    if certificate.exists() {
        let target = to.join(pods::CERTIFICATE_FILE);
        let dir = target.parent().unwrap_or(to);
        fs::create_dir_all(dir).map_err(|error| format!("could not create {dir:?}: {error}"))?;
        put(&certificate, &target, 0o644)?;
    }
    put(
        &from.join(pods::script_key(rank)),
        &to.join(SCRIPT_FILE),
        0o600,
    )
}

impl PodRank {
    fn find(&self) -> Result<u32, String> {
        let ranks = self.ranks.as_deref().map(OsStr::to_string_lossy);
        let ranks = ranks.unwrap_or_default();
        let index = self.index.as_deref().map(OsStr::to_string_lossy);
        pods::rank(&ranks, index.as_deref()).ok_or_else(|| {
            format!(
                "{} is \"{ranks}\" and {} is \"{}\": they name no rank of this pod",
                pods::RANKS,
                pods::COMPLETION_INDEX,
                index.unwrap_or_default()
            )
        })
    }
}

/// Copies a file, whole or not at all: a program that runs cannot be written to, but replaced.
fn put(source: &Path, target: &Path, mode: u32) -> Result<(), String> {
    let copied = || -> io::Result<()> {
        let mut temporary = target.as_os_str().to_owned();
        temporary.push(".tmp");
        let temporary = PathBuf::from(temporary);
        let mut reader = fs::File::open(source)?;
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut writer = fs::File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)?;
        io::copy(&mut reader, &mut writer)?;
        writer.set_permissions(Permissions::from_mode(mode))?;
        fs::rename(&temporary, target)
    };
    copied().map_err(|error| format!("could not copy {source:?} to {target:?}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_without_a_rank_is_refused() {
        for (ranks, index) in [(None, None), (Some("0"), Some("1")), (Some("a"), None)] {
            let rank = PodRank {
                ranks: ranks.map(OsString::from),
                index: index.map(OsString::from),
            };
            let error = rank.find().unwrap_err();
            assert!(error.contains("DET_RANKS is \""), "{error}");
        }
    }
}
