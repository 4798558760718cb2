//! The files and directories of an archive as a tree, which is never in memory as one: a list of paths in the order of the
//! tree, walked while it is sent. A path of some hundred bytes can name a hundred directories, each of which clients are
//! shown with its own path.

use std::cmp::Ordering;
use std::io::Read;

use det_ids::ExperimentId;
use flate2::read::GzDecoder;

use crate::app::model_archive::{LIMIT_DIRECTORIES, LIMIT_LEVELS, clean};
use crate::app::reads::model_definition::{Archive, ArchiveSources, Search, damaged, has};
use crate::auth::Actor;
use crate::budget::Reservation;
use crate::error::{AppError, AppResult, ErrorKind};

/// Directories below one another in a tree; what is deeper, in archives from before there was a limit, is shown there under
/// the rest of its path.
const LEVELS: usize = LIMIT_LEVELS;
/// Bytes of a list at most: what an archive within its limits takes, and some more for those from before.
const MOST_BYTES: usize = 24 << 20;
/// A list grows in steps of this size, and by nothing else.
const STEP_BYTES: usize = 256 << 10;

/// The files and directories of an archive.
#[derive(Debug)]
pub(crate) struct Tree {
    /// All paths, one after the other.
    text: String,
    /// In the order of the tree.
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Where its path begins in the text, which has less than 4 GiB.
    start: u32,
    /// Length of its path in the text, in bytes.
    length: u32,
    /// Time of modification, in seconds.
    modified: i64,
    /// Bytes of a file; `None` = a directory.
    size: Option<i64>,
}

/// A step on the way through a tree. Of what a directory holds its directories come first, each by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step<'a> {
    /// A directory begins: what it contains follows.
    Open(ShownNode<'a>),
    /// A file of the directory that was opened last and is open.
    File(ShownNode<'a>),
    /// The directory that was opened last is complete.
    Close,
}

/// A file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShownNode<'a> {
    /// Path relative to the top of the archive, parts separated by `/`.
    pub(crate) path: &'a str,
    /// Last part of the path.
    pub(crate) name: &'a str,
    /// Time of modification, in seconds; `None` where the archive has no entry of a directory.
    pub(crate) modified: Option<i64>,
    /// Bytes of a file; 0 for directories.
    pub(crate) size: i64,
}

/// All files and directories, without content, and what is reserved for them.
pub(crate) async fn of_experiment(
    sources: &ArchiveSources,
    actor: &Actor,
    id: ExperimentId,
) -> AppResult<(Tree, Reservation)> {
    let archive = Archive::open(sources, actor, id).await?;
    archive
        .search(move |archive, held| read(id, archive, held))
        .await
}

fn too_large(id: ExperimentId, found: &str) -> AppError {
    AppError::new(
        ErrorKind::TooLarge,
        format!("the model definition of experiment {id} is too large to be shown as a tree: it has {found}"),
    )
    .hint("download the whole model definition: det experiment download-model-def")
}

/// What a list of entries and text takes while it grows, which copies it.
fn cost(entries: usize, text: usize) -> usize {
    let taken = entries * size_of::<Entry>() + text + 2 * STEP_BYTES;
    // Asked for in steps as well, not for each entry.
    2 * taken.next_multiple_of(STEP_BYTES)
}

fn read(
    id: ExperimentId,
    archive: impl Read,
    mut held: Reservation,
) -> AppResult<Search<(Tree, Reservation)>> {
    let mut tree = Tree {
        text: String::new(),
        entries: Vec::new(),
    };
    let (mut count, mut bytes) = (0, 0);
    let mut archive = tar::Archive::new(GzDecoder::new(archive));
    for entry in archive.entries().map_err(damaged)? {
        let entry = entry.map_err(damaged)?;
        let path = clean(&String::from_utf8_lossy(&entry.path_bytes()));
        if path.is_empty() {
            continue;
        }
        count += 1;
        bytes += path.len();
        let most = count * size_of::<Entry>() + bytes;
        if most > MOST_BYTES {
            return Err(too_large(
                id,
                &format!("more than {MOST_BYTES} bytes of paths and entries, which is the limit"),
            ));
        }
        if !has(&mut held, cost(count, bytes)) {
            // What is missing is counted to the end.
            tree.clear();
            continue;
        }
        let modified = entry.header().mtime().map_err(damaged)?;
        let is_directory = entry.header().entry_type().is_dir();
        let size = i64::try_from(entry.size()).unwrap_or(i64::MAX);
        tree.push(
            &path,
            i64::try_from(modified).unwrap_or(0),
            (!is_directory).then_some(size),
        )?;
    }
    if tree.entries.len() < count {
        return Ok(Search::Needs(cost(count, bytes)));
    }
    tree.sort();
    let directories = tree.directories();
    if directories > LIMIT_DIRECTORIES {
        return Err(too_large(
            id,
            &format!("{directories} directories, and at most {LIMIT_DIRECTORIES} are shown"),
        ));
    }
    held.shrink_to(tree.bytes());
    Ok(Search::Found((tree, held)))
}

/// How many elements to take space for, so that there is some for `more`: whole steps, which is what was reserved.
fn missing_space(length: usize, capacity: usize, more: usize, size: usize) -> usize {
    if length + more <= capacity {
        0
    } else {
        more.max(STEP_BYTES / size)
    }
}

impl Tree {
    fn clear(&mut self) {
        self.text = String::new();
        self.entries = Vec::new();
    }

    fn push(&mut self, path: &str, modified: i64, size: Option<i64>) -> AppResult<()> {
        let text = &mut self.text;
        text.reserve_exact(missing_space(text.len(), text.capacity(), path.len(), 1));
        let entries = &mut self.entries;
        let each = size_of::<Entry>();
        entries.reserve_exact(missing_space(entries.len(), entries.capacity(), 1, each));
        entries.push(Entry {
            start: u32::try_from(text.len()).map_err(AppError::internal)?,
            length: u32::try_from(path.len()).map_err(AppError::internal)?,
            modified,
            size,
        });
        text.push_str(path);
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.text.capacity() + self.entries.capacity() * size_of::<Entry>()
    }

    fn sort(&mut self) {
        let text = &self.text;
        self.entries.sort_unstable_by(|a, b| in_tree(text, *a, *b));
    }

    /// How many directories there are, those among them that have no entry of their own.
    fn directories(&self) -> usize {
        let mut count = 0;
        let mut open: Vec<usize> = Vec::new();
        let mut last = "";
        for entry in &self.entries {
            let path = entry.path(&self.text);
            let ends: Vec<usize> = entry.directory_ends(path).collect();
            count += ends.len() - common(last, &open, path, &ends);
            (last, open) = (path, ends);
        }
        count
    }

    /// Of these paths; one with a slash at its end is a directory's.
    #[cfg(test)]
    pub(crate) fn of(paths: impl IntoIterator<Item = String>) -> Self {
        let mut tree = Self {
            text: String::new(),
            entries: Vec::new(),
        };
        for path in paths {
            let size = (!path.ends_with('/')).then_some(0);
            tree.push(&clean(&path), 7, size).expect("it is small");
        }
        tree.sort();
        tree
    }

    /// The way through it.
    pub(crate) fn walk(self) -> Walk {
        Walk {
            tree: self,
            next: 0,
            open: Vec::new(),
        }
    }
}

impl Entry {
    fn path(self, text: &str) -> &str {
        let start = self.start as usize;
        &text[start..start + self.length as usize]
    }

    /// Where the paths of the directories end that lead to it, in bytes of its path; the last one is that of a directory itself.
    fn directory_ends(self, path: &str) -> impl Iterator<Item = usize> {
        let directory = match self.size {
            None => Some(path),
            Some(_) => path.rsplit_once('/').map(|(parent, _)| parent),
        };
        let parts = directory
            .into_iter()
            .flat_map(|path| path.splitn(LEVELS, '/'));
        parts.scan(0, |start, part| {
            let end = *start + part.len();
            *start = end + 1;
            Some(end)
        })
    }
}

/// How many directories at the begin of two ways are the same.
fn common(one: &str, one_ends: &[usize], other: &str, other_ends: &[usize]) -> usize {
    let pairs = one_ends.iter().zip(other_ends);
    pairs
        .take_while(|(a, b)| a == b && one.as_bytes()[..**a] == other.as_bytes()[..**b])
        .count()
}

/// Directories first, each by name; what a directory holds comes behind it.
fn in_tree(text: &str, a: Entry, b: Entry) -> Ordering {
    parts(a, text).cmp(parts(b, text))
}

/// The parts of a path, each with whether it is a file's.
fn parts(entry: Entry, text: &str) -> impl Iterator<Item = (bool, &str)> {
    let path = entry.path(text);
    let file = entry.size.map(|_| path.rsplit('/').next().unwrap_or(path));
    let mut start = 0;
    let directories = entry.directory_ends(path).map(move |end| {
        let part = &path[start..end];
        start = end + 1;
        (false, part)
    });
    directories.chain(file.map(|name| (true, name)))
}

/// Goes through a tree, one [`Step`] after another.
#[derive(Debug)]
pub(crate) struct Walk {
    tree: Tree,
    /// The entry that comes next.
    next: usize,
    /// Where the paths of the open directories end in the path of the entry before.
    open: Vec<usize>,
}

impl Walk {
    /// Takes the steps to the next entry; `false` = there is none, and all directories are closed.
    pub(crate) fn go_on(&mut self, mut take: impl FnMut(Step<'_>)) -> bool {
        let Some(entry) = self.tree.entries.get(self.next).copied() else {
            self.open.drain(..).for_each(|_| take(Step::Close));
            return false;
        };
        let path = entry.path(&self.tree.text);
        let last = match self.next.checked_sub(1) {
            Some(index) => self.tree.entries[index].path(&self.tree.text),
            None => "",
        };
        let ends: Vec<usize> = entry.directory_ends(path).collect();
        let same = common(last, &self.open, path, &ends);
        (same..self.open.len()).for_each(|_| take(Step::Close));
        let mut start = match same.checked_sub(1) {
            Some(index) => ends[index] + 1,
            None => 0,
        };
        for (index, end) in ends.iter().enumerate().skip(same) {
            let is_own = entry.size.is_none() && index + 1 == ends.len();
            take(Step::Open(ShownNode {
                path: &path[..*end],
                name: &path[start..*end],
                modified: is_own.then_some(entry.modified),
                size: 0,
            }));
            start = end + 1;
        }
        if let Some(size) = entry.size {
            take(Step::File(ShownNode {
                path,
                name: path.rsplit('/').next().unwrap_or(path),
                modified: Some(entry.modified),
                size,
            }));
        }
        self.open = ends;
        self.next += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;
    use crate::budget::{ANSWERS, Budget, Limits};

    /// An archive as it may have been stored before there were limits; a path with a slash at its end is a directory's.
    fn archive(paths: impl IntoIterator<Item = String>) -> Vec<u8> {
        let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        for path in paths {
            let mut header = tar::Header::new_gnu();
            header.set_mtime(7);
            header.set_size(0);
            if path.ends_with('/') {
                header.set_entry_type(tar::EntryType::Directory);
            }
            archive
                .append_data(&mut header, path, std::io::empty())
                .unwrap();
        }
        archive.into_inner().unwrap().finish().unwrap()
    }

    fn read_alone(paths: &[&str]) -> Tree {
        let held = Budget::new(ANSWERS)
            .try_reserve(None, ANSWERS.total)
            .unwrap();
        let archive = archive(paths.iter().map(|path| (*path).to_owned()));
        match read(ExperimentId(1), &archive[..], held).unwrap() {
            Search::Found((tree, held)) => {
                assert_eq!(held.bytes(), tree.bytes(), "the rest is released");
                tree
            }
            Search::Needs(bytes) => panic!("{bytes} bytes are missing"),
        }
    }

    /// The steps as a text: `+a` into a directory, `a` a file, `-` out of it.
    fn steps(tree: Tree) -> (usize, String) {
        let (directories, mut walk, mut text) = (tree.directories(), tree.walk(), Vec::new());
        while walk.go_on(|step| {
            text.push(match step {
                Step::Open(shown) => {
                    assert!(shown.path.ends_with(shown.name));
                    format!("+{}", shown.name)
                }
                Step::File(shown) => {
                    assert!(shown.path.ends_with(shown.name));
                    shown.name.to_owned()
                }
                Step::Close => "-".to_owned(),
            });
        }) {}
        (directories, text.join(" "))
    }

    #[test]
    fn a_tree_has_directories_first_and_those_that_no_entry_names() {
        for (paths, directories, walked) in [
            (vec![], 0, ""),
            (vec!["train.py"], 0, "train.py"),
            (
                vec!["train.py", "sub/deep/a.json", "empty/"],
                3,
                "+empty - +sub +deep a.json - - train.py",
            ),
            (
                vec!["a/", "a-b", "a/x", "a/b/c", "z/", "a.d/q"],
                4,
                "+a +b c - x - +a.d q - +z - a-b",
            ),
            (vec!["./a//x", "a/b/", "./"], 2, "+a +b - x -"),
        ] {
            let tree = read_alone(&paths);
            assert_eq!(steps(tree), (directories, walked.to_owned()), "{paths:?}");
        }
    }

    #[test]
    fn a_directory_has_the_time_of_its_entry() {
        let mut walk = read_alone(&["a/b/"]).walk();
        let mut times = Vec::new();
        walk.go_on(|step| {
            if let Step::Open(shown) = step {
                times.push((shown.path.to_owned(), shown.modified));
            }
        });
        assert_eq!(times, [("a".to_owned(), None), ("a/b".to_owned(), Some(7))]);
    }

    #[test]
    fn a_tree_is_never_deeper_than_its_bound() {
        let path = format!("{}x", "d/".repeat(10_000));
        let (directories, walked) = steps(read_alone(&[&path]));
        assert_eq!(directories, LEVELS);
        assert_eq!(walked.matches('+').count(), LEVELS);
    }

    #[test]
    fn archives_from_before_are_shown_within_limits() {
        let held = || Budget::new(ANSWERS).try_reserve(None, 1).unwrap();
        let deep = |n: usize| format!("{n:x}/{}f", "a/".repeat(62));
        let many = archive((0..2_000).map(deep));
        let error = read(ExperimentId(4), &many[..], held()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::TooLarge);
        assert!(
            error
                .message
                .contains("experiment 4 is too large to be shown as a tree: it has 126000 directories, and at most 100000"),
            "{}",
            error.message
        );
        let long = archive((0..25).map(|n| format!("{n}{}", "x".repeat(1 << 20))));
        let error = read(ExperimentId(4), &long[..], held()).unwrap_err();
        assert!(
            error.message.contains("more than 25165824 bytes of paths"),
            "{}",
            error.message
        );
    }

    #[test]
    fn a_tree_for_which_there_is_no_memory_returns_how_much_it_needs() {
        let limits = Limits {
            total: 8 << 20,
            ..ANSWERS
        };
        let budget = Budget::new(limits);
        let other = budget.try_reserve(None, 7 << 20).unwrap();
        let held = budget.try_reserve(Some(det_ids::UserId(1)), 1).unwrap();
        let files = archive((0..1_000).map(|n| format!("d/{n}")));
        let needs = match read(ExperimentId(1), &files[..], held).unwrap() {
            Search::Needs(bytes) => bytes,
            Search::Found(_) => panic!("it was not reserved"),
        };
        drop(other);
        let held = budget.try_reserve(Some(det_ids::UserId(1)), needs).unwrap();
        let found = read(ExperimentId(1), &files[..], held).unwrap();
        assert!(matches!(found, Search::Found(_)));
    }
}
