//! `det-supervisor remove-checkpoints`: the entrypoint of a task that deletes checkpoints in a directory of its container.
//! It needs nothing of the image. It has the rights of the task's user and no others, and reports what is left of each
//! checkpoint before it goes on to the next, so that a run that is cut short is continued by another.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Component, Path};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use det_checkpoint_files::glob::Pattern;
use det_checkpoint_files::removal::{RemovalError, remove_matching, resources};
use det_checkpoint_files::tree::{open_directory, remove_tree};
use det_taskspec::{REMOVAL_FILE, RemovalOrder, variables as v};
use serde_json::json;

use crate::failure::chain;
use crate::master::{Address, Master, MasterError};

/// Name of the subcommand.
pub(crate) const SUBCOMMAND: &str = "remove-checkpoints";
const TIMEOUT: Duration = Duration::from_mins(1);
/// The longest pause before a report is tried again.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What is left of a checkpoint: path to bytes, directories with a final `/`.
type RemainingFiles = BTreeMap<String, i64>;

/// Deletes what the order of this container names, and reports.
pub(crate) fn run() -> ExitCode {
    match removed(&mut io::stdout()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failures) => {
            print_line(
                &mut io::stderr(),
                &format!("ERROR: {failures} of the checkpoints could not be deleted"),
            );
            ExitCode::FAILURE
        }
        Err(message) => {
            print_line(&mut io::stderr(), &format!("ERROR: {message}"));
            ExitCode::FAILURE
        }
    }
}

/// If the log is closed, the line is lost.
fn print_line(out: &mut impl io::Write, line: &str) {
    drop(writeln!(out, "{line}"));
}

/// Carries the order out; returns how many checkpoints failed.
fn removed(out: &mut impl io::Write) -> Result<usize, String> {
    let order =
        fs::read(REMOVAL_FILE).map_err(|e| format!("could not read {REMOVAL_FILE}: {e}"))?;
    let order: RemovalOrder = serde_json::from_slice(&order)
        .map_err(|e| format!("could not read {REMOVAL_FILE}: {e}"))?;
    let text = |name: &str| std::env::var(name).ok();
    let address = Address {
        url: text(v::DET_MASTER).unwrap_or_default(),
        cert_file: text(v::DET_MASTER_CERT_FILE),
        cert_name: text(v::DET_MASTER_CERT_NAME),
    };
    let token = text(v::DET_SESSION_TOKEN).unwrap_or_default();
    let master = Master::new(&address, &token)?;
    let storage = Storage::open(&order)?;
    let mut failures = 0;
    for uuid in &order.checkpoints {
        let uuid = uuid.as_str();
        let outcome = storage.remove(uuid);
        match outcome {
            Ok(left) => {
                report(&master, uuid, &left, out)?;
                print_line(out, &format!("checkpoint {uuid}: {}", described(&left)));
            }
            Err(message) => {
                failures += 1;
                print_line(out, &format!("ERROR: checkpoint {uuid}: {message}"));
            }
        }
    }
    if let Some(path) = &order.tensorboard {
        match storage.remove_below(path) {
            Ok(()) => print_line(out, "the TensorBoard files of the experiment are deleted"),
            // They are no part of what the master keeps account of.
            Err(error) => print_line(
                out,
                &format!(
                    "WARNING: TensorBoard files in \"{path}\" were left where they are: {error}"
                ),
            ),
        }
    }
    Ok(failures)
}

fn described(left: &RemainingFiles) -> String {
    match left.len() {
        0 => "deleted".to_owned(),
        1 => "1 entry is left".to_owned(),
        n => format!("{n} entries are left"),
    }
}

/// The directory of checkpoints, and what goes.
struct Storage {
    root: File,
    patterns: Vec<Pattern>,
}

impl Storage {
    fn open(order: &RemovalOrder) -> Result<Self, String> {
        let directory = &order.directory;
        let patterns = (order.globs.iter())
            .map(|glob| {
                Pattern::parse(glob).map_err(|e| format!("pattern \"{}\" {e}", glob.escape_debug()))
            })
            .collect::<Result<_, _>>()?;
        let failed = |e: io::Error| {
            format!(
                "the directory of checkpoints \"{directory}\" could not be opened: {e}; mount the storage on the hosts of \
                 this pool as on those that run the trials"
            )
        };
        let root = File::open(directory).map_err(failed)?;
        // A mount point without its file system looks like storage in which everything has been deleted.
        if fs::read_dir(directory).map_err(failed)?.next().is_none() {
            return Err(format!(
                "the directory of checkpoints \"{directory}\" is empty on this host, so nothing was deleted: mount the \
                 storage there; if it is mounted and really empty, put any file into it"
            ));
        }
        Ok(Self { root, patterns })
    }

    /// Deletes what matches of a checkpoint; returns what is left.
    fn remove(&self, uuid: &str) -> Result<RemainingFiles, String> {
        let is_one_name = matches!(
            Path::new(uuid).components().collect::<Vec<_>>().as_slice(),
            [Component::Normal(_)]
        );
        if !is_one_name {
            return Err("is no name of a checkpoint".to_owned());
        }
        let failed = |e: io::Error| format!("could not be deleted: {e}");
        if self.patterns.iter().any(Pattern::is_everything) {
            self.remove_below(uuid).map_err(failed)?;
            return Ok(RemainingFiles::new());
        }
        let directory = match open_directory(self.root.as_fd(), Path::new(uuid)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(RemainingFiles::new()),
            directory => directory.map_err(failed)?,
        };
        // The kernel asks for the rights of the task's user.
        let left = remove_matching(directory.as_fd(), &self.patterns, |_| true);
        let left = left.map_err(|error| match error {
            RemovalError::TooMuchWork { patterns, entries } => format!(
                "{patterns} patterns are too many or too long for its {entries} files; give fewer or shorter ones at once"
            ),
            RemovalError::Io(error) => failed(error),
        })?;
        if left.is_empty() && !self.patterns.is_empty() {
            self.remove_below(uuid).map_err(failed)?;
        }
        Ok(resources(&left))
    }

    /// Deletes whatever is at a relative path, through no link.
    fn remove_below(&self, path: &str) -> io::Result<()> {
        remove_tree(self.root.as_fd(), Path::new(path), |_| true)
    }
}

/// Reports what is left of a checkpoint. Waits for a master that does not answer: files without their report would count as
/// still there.
fn report(
    master: &Master,
    uuid: &str,
    left: &RemainingFiles,
    out: &mut impl io::Write,
) -> Result<(), String> {
    let body =
        json!({"checkpoints": [{"uuid": uuid, "resources": {"resources": left}}]}).to_string();
    let mut pause = Duration::from_secs(1);
    loop {
        let error: MasterError = match master.patch("/api/v1/checkpoints", body.as_bytes(), TIMEOUT)
        {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let text = chain(&error);
        if !error.is_temporary() {
            return Err(format!(
                "checkpoint {uuid}: what is left could not be reported: {text}"
            ));
        }
        print_line(out, &format!("WARNING: {text}; trying again"));
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "0b6c5d1e-7f7a-4f3e-9c55-3f0f2d9b8a11";

    fn storage(root: &Path, globs: &[&str]) -> Storage {
        let order = RemovalOrder {
            directory: root.to_str().unwrap().to_owned(),
            tensorboard: None,
            checkpoints: vec![UUID.into()],
            globs: globs.iter().map(|&g| g.to_owned()).collect(),
        };
        Storage::open(&order).unwrap_or_else(|e| panic!("{e}"))
    }

    fn world() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let checkpoint = root.path().join(UUID);
        fs::create_dir_all(checkpoint.join("sub")).unwrap();
        fs::write(checkpoint.join("model.pt"), "12345").unwrap();
        fs::write(checkpoint.join("sub/a.txt"), "1").unwrap();
        fs::write(root.path().join("other"), "stays").unwrap();
        root
    }

    #[test]
    fn everything_of_a_checkpoint_goes_and_a_second_time_changes_nothing() {
        let root = world();
        let storage = storage(root.path(), &["**/*"]);
        for _ in 0..2 {
            assert_eq!(storage.remove(UUID).unwrap(), RemainingFiles::new());
        }
        assert!(!root.path().join(UUID).exists());
        assert!(root.path().join("other").exists());
    }

    #[test]
    fn what_matches_goes_and_the_rest_is_reported() {
        let root = world();
        let left = storage(root.path(), &["**/*.txt"]).remove(UUID).unwrap();
        let expected = [("model.pt".to_owned(), 5), ("sub/".to_owned(), 0)];
        assert_eq!(left, expected.into());
        let looked = storage(root.path(), &[]).remove(UUID).unwrap();
        assert_eq!(looked, left);
    }

    #[test]
    fn links_are_deleted_as_links_and_followed_nowhere() {
        let root = world();
        let elsewhere = tempfile::tempdir().unwrap();
        fs::write(elsewhere.path().join("kept"), "").unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), root.path().join(UUID).join("link")).unwrap();
        storage(root.path(), &["**/*"]).remove(UUID).unwrap();
        assert!(elsewhere.path().join("kept").exists());
        for odd in ["", ".", "..", "/", "a/b", "../other"] {
            storage(root.path(), &["**/*"]).remove(odd).unwrap_err();
        }
    }

    #[test]
    fn storage_that_is_not_mounted_deletes_nothing() {
        let root = tempfile::tempdir().unwrap();
        let order = |directory: &Path| RemovalOrder {
            directory: directory.to_str().unwrap().to_owned(),
            tensorboard: None,
            checkpoints: Vec::new(),
            globs: vec!["**/*".to_owned()],
        };
        let empty = Storage::open(&order(root.path())).err().unwrap();
        assert!(empty.contains("is empty on this host"), "{empty}");
        let missing = Storage::open(&order(&root.path().join("no")))
            .err()
            .unwrap();
        assert!(missing.contains("could not be opened"), "{missing}");
    }
}
