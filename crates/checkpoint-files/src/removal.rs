//! Deleting the files of a checkpoint that patterns name.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;

use crate::glob::Pattern;
use crate::tree::{Entry, EntryKind, list, remove_tree};

/// Comparisons of a character that the patterns of one removal may cost.
const PATTERN_WORK: usize = 2_000_000_000;

/// Why files of a checkpoint were not deleted.
#[derive(Debug)]
pub enum RemovalError {
    /// Comparing all its names with the patterns would keep a processor busy for long.
    TooMuchWork {
        /// Number of patterns that were given.
        patterns: usize,
        /// Number of files and directories in the checkpoint.
        entries: usize,
    },
    /// The file system refused an operation; what was deleted before stays deleted.
    Io(io::Error),
}

impl From<io::Error> for RemovalError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Deletes what matches any of the patterns in an open directory of a checkpoint, and returns what is left. Without patterns
/// nothing is deleted. Only directories whose owner `may_empty` accepts are emptied: see [`crate::tree::empty`].
///
/// # Errors
/// The patterns are too costly for what it holds, or the file system refused; some may be deleted then.
pub fn remove_matching(
    directory: BorrowedFd<'_>,
    patterns: &[Pattern],
    may_empty: impl Fn(u32) -> bool,
) -> Result<Vec<Entry>, RemovalError> {
    let entries = list(directory)?;
    if patterns.is_empty() {
        return Ok(entries);
    }
    let names: usize = entries.iter().map(|e| e.path.as_os_str().len()).sum();
    let cost: usize = patterns.iter().map(Pattern::cost).sum();
    if names.saturating_mul(cost) > PATTERN_WORK {
        return Err(RemovalError::TooMuchWork {
            patterns: patterns.len(),
            entries: entries.len(),
        });
    }
    for entry in entries {
        let names: Option<Vec<&str>> = entry.path.iter().map(|name| name.to_str()).collect();
        if names.is_some_and(|names| patterns.iter().any(|p| p.matches(&names))) {
            // An entry below a directory that went before it is gone already.
            remove_tree(directory, &entry.path, &may_empty)?;
        }
    }
    Ok(list(directory)?)
}

/// Entries as resources of checkpoints have them: path to bytes, directories with a final `/`.
pub fn resources(entries: &[Entry]) -> BTreeMap<String, i64> {
    entries
        .iter()
        .map(|entry| {
            let size = match entry.kind {
                EntryKind::File { size } => i64::try_from(size).unwrap_or(i64::MAX),
                EntryKind::Directory | EntryKind::Link => 0,
            };
            (entry.resource(), size)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::fd::AsFd as _;

    use super::*;

    fn patterns(texts: &[&str]) -> Vec<Pattern> {
        texts.iter().map(|t| Pattern::parse(t).unwrap()).collect()
    }

    #[test]
    fn what_matches_goes_and_the_rest_is_returned() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        fs::write(dir.path().join("model.pt"), "12345").unwrap();
        fs::write(dir.path().join("sub/a.txt"), "1").unwrap();
        let handle = File::open(dir.path()).unwrap();
        let all = remove_matching(handle.as_fd(), &[], |_| false).unwrap();
        assert_eq!(all.len(), 3);
        let left = remove_matching(handle.as_fd(), &patterns(&["**/*.txt"]), |_| true).unwrap();
        let expected = [("model.pt".to_owned(), 5), ("sub/".to_owned(), 0)];
        assert_eq!(resources(&left), expected.into());
    }

    #[test]
    fn patterns_that_cost_too_much_delete_nothing() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..200 {
            fs::write(dir.path().join(format!("{n:0>200}")), "").unwrap();
        }
        let handle = File::open(dir.path()).unwrap();
        let costly = format!("[{}]*", "a".repeat(4000));
        let many = vec![Pattern::parse(&costly).unwrap(); 100];
        let refused = remove_matching(handle.as_fd(), &many, |_| true).unwrap_err();
        assert!(matches!(
            refused,
            RemovalError::TooMuchWork {
                patterns: 100,
                entries: 200
            }
        ));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 200);
    }
}
