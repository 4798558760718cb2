//! Opens paths of a host of which tasks may have changed a part.
//!
//! Agent and supervisor mount directories that an administrator has named, with rights that tasks do not have. A task that
//! may write to a directory above such a path can put a symbolic link in place of a part of it, and the mount would lead
//! wherever the link does. [`open`] and [`create`] therefore go through a path part by part, each opened relative to the one
//! before, follow a link only if no other account can have made it, and let the caller judge where links have led ([`Trust`]).
//!
//! [`share`] makes the directories in which tasks of all users keep files side by side.
//!
//! The crate opens and creates files where it is asked to: no network, no clock, no threads.

mod mount_table;
mod shared;

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, mkdirat};
use thiserror::Error;

pub use crate::mount_table::mount_point;
pub use crate::shared::{SHARED_MODE, Sharer, TakenOver};

/// The most links in one path, as in the kernel.
const MOST_LINKS: usize = 40;

/// Which symbolic links on the way to a path are followed.
#[derive(Clone, Copy)]
pub struct Trust<'a> {
    /// The id under which this process sees root of the host: 0, but in a user namespace that of all accounts that are not in it.
    pub root: u32,
    /// Whether a directory is one that no task reaches, so that links in it are not made by tasks.
    pub hidden: &'a dyn Fn(&Path) -> bool,
    /// Why a path may be neither used nor created, given the links that led to it, all without links; `None` = it may. Links
    /// of root's may still be a task's: one that is root of its image makes them in directories that it mounts.
    pub refusal: &'a dyn Fn(&Path, &[PathBuf]) -> Option<String>,
}

impl Trust<'_> {
    /// Whether a link in this directory, the one at `path`, can be followed.
    fn follows(&self, directory: &FileStat, link: &FileStat, path: &Path) -> bool {
        const WRITTEN_BY_OTHERS: u32 = 0o022;
        // A link of root's in a directory of others may have been moved there.
        let is_roots = directory.st_uid == self.root
            && directory.st_mode & WRITTEN_BY_OTHERS == 0
            && link.st_uid == self.root;
        is_roots || (self.hidden)(path)
    }
}

/// A file or directory that was found.
#[derive(Debug)]
pub struct FoundPath {
    /// Refers to it, without the right to read it (`O_PATH`).
    pub descriptor: OwnedFd,
    /// Its path, links resolved.
    pub path: PathBuf,
    /// Whether it did not exist and was created now.
    pub is_new: bool,
}

impl FoundPath {
    /// A path for the file by its descriptor: see [`by_descriptor`].
    pub fn by_descriptor(&self) -> PathBuf {
        by_descriptor(self.descriptor.as_fd())
    }
}

/// A path for the file of a descriptor; it stays valid if files are renamed.
pub fn by_descriptor(descriptor: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))
}

/// Why a path cannot be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// It does not exist, or a part of it does not.
    #[error("\"{}\" does not exist", .0.display())]
    Absent(PathBuf),
    /// A part of it is a link that a task may have made.
    #[error(
        "\"{}\" is a link that users of this host could have made; name the path without links, or make the link as root in \
         a directory that only root may write to", .0.display()
    )]
    Link(PathBuf),
    /// It leads to what may not be used: the reason is that of [`Trust::refusal`].
    #[error("{0}")]
    Refused(String),
    /// It is not absolute, or has too many links.
    #[error("it must be an absolute path with at most {MOST_LINKS} links")]
    Form,
    /// A part of it cannot be opened or created.
    #[error("cannot {action} \"{}\": {source}", path.display())]
    Access {
        /// The operation that failed, as a verb.
        action: &'static str,
        /// Path of the part that could not be opened or created.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// Opens a file or directory.
///
/// # Errors
/// When it does not exist, cannot be reached, may not be used, or a part of its path is a link that is not to be followed.
pub fn open(path: &Path, trust: Trust<'_>) -> Result<FoundPath, OpenError> {
    Ok(Walk::begin(path, trust, Creation::Nothing)?.run()?.0)
}

/// Opens a directory, and creates what is missing of it with mode 0755. Nothing is created where it may not be used.
///
/// # Errors
/// As [`open`], and when a part cannot be created.
pub fn create(path: &Path, trust: Trust<'_>) -> Result<FoundPath, OpenError> {
    Ok(Walk::begin(path, trust, Creation::Missing)?.run()?.0)
}

/// Opens the directory `below` an open one, and makes each part of it a directory that tasks of all users share, like
/// `/tmp`: with mode 1777, owned by no user, who could replace what others store there. Returns also what was taken from
/// users for that, see [`Sharer::Host`].
///
/// - What is missing is created.
/// - What belongs to the account of this process, to root or to the owner of the directory above keeps its mode: an
///   administrator has made it. So does what is in a directory that only its owner may write to.
/// - Behind a link nothing is created or changed.
///
/// # Errors
/// As [`create`], and when a directory cannot be taken from its owner.
pub fn share(
    root: &FoundPath,
    below: &Path,
    trust: Trust<'_>,
    sharer: Sharer,
) -> Result<(FoundPath, Vec<TakenOver>), OpenError> {
    let at = root.descriptor.try_clone();
    let at = at.map_err(|source| OpenError::Access {
        action: "open",
        path: root.path.clone(),
        source,
    })?;
    let walk = Walk {
        trust,
        creation: Creation::Shared(sharer),
        at,
        path: root.path.clone(),
        left: parts(below).collect(),
        links: Vec::new(),
        is_new: false,
        taken: Vec::new(),
    };
    walk.run()
}

/// [`share`] by agent or master. `warn` receives what was taken from users, one directory at a time: this crate writes no log.
///
/// # Errors
/// As [`share`].
pub fn share_as_host(
    root: &FoundPath,
    below: &Path,
    trust: Trust<'_>,
    warn: impl FnMut(&TakenOver),
) -> Result<(), OpenError> {
    let (_, taken) = share(root, below, trust, Sharer::Host)?;
    taken.iter().for_each(warn);
    Ok(())
}

/// Opens a directory with the rights of this process, through any link.
///
/// # Errors
/// The error of the operating system.
pub fn open_as_is(path: &Path) -> io::Result<FoundPath> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok(FoundPath {
        descriptor: nix::fcntl::open(path, flags, Mode::empty())?,
        path: path.to_owned(),
        is_new: false,
    })
}

/// What becomes of directories on the way.
#[derive(Clone, Copy)]
enum Creation {
    /// They are only opened: nothing is created or changed.
    Nothing,
    /// Those that are missing are created, with mode 0755.
    Missing,
    /// They are shared.
    Shared(Sharer),
}

struct Walk<'a> {
    trust: Trust<'a>,
    creation: Creation,
    at: OwnedFd,
    path: PathBuf,
    left: VecDeque<OsString>,
    /// The links that were followed so far.
    links: Vec<PathBuf>,
    is_new: bool,
    taken: Vec<TakenOver>,
}

fn directory_flags() -> OFlag {
    OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC
}

fn root() -> Result<OwnedFd, OpenError> {
    nix::fcntl::open("/", directory_flags(), Mode::empty()).map_err(failed("open", Path::new("/")))
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(Errno) -> OpenError {
    let path = path.to_owned();
    move |error| OpenError::Access {
        action,
        path,
        source: error.into(),
    }
}

impl<'a> Walk<'a> {
    fn begin(path: &Path, trust: Trust<'a>, creation: Creation) -> Result<Self, OpenError> {
        if !path.is_absolute() {
            return Err(OpenError::Form);
        }
        Ok(Self {
            trust,
            creation,
            at: root()?,
            path: PathBuf::from("/"),
            left: parts(path).collect(),
            links: Vec::new(),
            is_new: false,
            taken: Vec::new(),
        })
    }

    /// Whether what is missing is created.
    fn creates(&self) -> bool {
        match self.creation {
            Creation::Nothing => false,
            Creation::Missing => true,
            Creation::Shared(_) => self.links.is_empty(),
        }
    }

    fn run(mut self) -> Result<(FoundPath, Vec<TakenOver>), OpenError> {
        while let Some(name) = self.left.pop_front() {
            if name == ".." {
                // As in the kernel, what does not exist has no directory above it.
                if self.is_new {
                    return Err(OpenError::Absent(self.path));
                }
                self.at = openat(self.at.as_fd(), "..", directory_flags(), Mode::empty())
                    .map_err(failed("open", &self.path.join("..")))?;
                self.path.pop();
                continue;
            }
            self.step(&name)?;
        }
        self.check(&self.path)?;
        let found = FoundPath {
            descriptor: self.at,
            path: self.path,
            is_new: self.is_new,
        };
        Ok((found, self.taken))
    }

    fn check(&self, path: &Path) -> Result<(), OpenError> {
        let refusal = (self.trust.refusal)(path, &self.links);
        refusal.map_or(Ok(()), |reason| Err(OpenError::Refused(reason)))
    }

    fn step(&mut self, name: &OsStr) -> Result<(), OpenError> {
        let path = self.path.join(name);
        // Opened as a directory first, which is what mounts a directory that is mounted on demand.
        let mut opened = openat(self.at.as_fd(), name, directory_flags(), Mode::empty());
        self.is_new = false;
        if opened.as_ref().is_err_and(|error| *error == Errno::ENOENT) {
            if !self.creates() {
                return Err(OpenError::Absent(path));
            }
            self.check(&path)?;
            let mode = match self.creation {
                Creation::Shared(_) => shared::HALF_MADE_MODE,
                Creation::Nothing | Creation::Missing => 0o755,
            };
            match mkdirat(self.at.as_fd(), name, Mode::from_bits_truncate(mode)) {
                Ok(()) => self.is_new = true,
                // Created by another task's start in between.
                Err(Errno::EEXIST) => {}
                Err(error) => return Err(failed("create", &path)(error)),
            }
            opened = openat(self.at.as_fd(), name, directory_flags(), Mode::empty());
        }
        match opened {
            Ok(directory) => {
                if let Creation::Shared(sharer) = self.creation
                    && self.links.is_empty()
                {
                    self.check(&path)?;
                    let shared =
                        sharer.open_to_all(self.at.as_fd(), directory.as_fd(), self.is_new);
                    let from = shared.map_err(|source| OpenError::Access {
                        action: "open to the tasks of all users",
                        path: path.clone(),
                        source,
                    })?;
                    let uid = from.map(|uid| TakenOver {
                        path: path.clone(),
                        uid,
                    });
                    self.taken.extend(uid);
                }
                self.at = directory;
                self.path = path;
                Ok(())
            }
            // Kernels differ in what a link is to them.
            Err(Errno::ENOTDIR | Errno::ELOOP) => self.step_aside(name, path),
            Err(error) => Err(failed("open", &path)(error)),
        }
    }

    /// A part that is no directory: a link, or the file at the end.
    fn step_aside(&mut self, name: &OsStr, path: PathBuf) -> Result<(), OpenError> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let open = || {
            let file = openat(self.at.as_fd(), name, flags, Mode::empty())?;
            let found = fstat(file.as_fd())?;
            Ok((file, found, fstat(self.at.as_fd())?))
        };
        let (file, found, above) = open().map_err(failed("open", &path))?;
        if found.st_mode & SFlag::S_IFMT.bits() != SFlag::S_IFLNK.bits() {
            if !self.left.is_empty() || self.creates() {
                return Err(failed("open", &path)(Errno::ENOTDIR));
            }
            self.at = file;
            self.path = path;
            return Ok(());
        }
        if !self.trust.follows(&above, &found, &self.path) {
            return Err(OpenError::Link(path));
        }
        if self.links.len() == MOST_LINKS {
            return Err(OpenError::Form);
        }
        // Of exactly the link that was looked at.
        let target = readlinkat(file.as_fd(), "").map_err(failed("read", &path))?;
        let target = PathBuf::from(target);
        self.links.push(path);
        for part in parts(&target).collect::<Vec<_>>().into_iter().rev() {
            self.left.push_front(part);
        }
        if target.is_absolute() {
            self.at = root()?;
            self.path = PathBuf::from("/");
        }
        Ok(())
    }
}

/// The parts of a path, `..` among them.
fn parts(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown, symlink};

    use super::*;

    const NOTHING_HIDDEN: Trust<'_> = Trust {
        root: 0,
        hidden: &|_| false,
        refusal: &|_, _| None,
    };

    fn is_root() -> bool {
        nix::unistd::geteuid().is_root()
    }

    fn scene() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        fs::create_dir_all(real.join("a/b")).unwrap();
        fs::write(real.join("a/file"), "x").unwrap();
        (dir, real)
    }

    #[test]
    fn what_has_no_links_is_opened() {
        let (_dir, real) = scene();
        let found = open(&real.join("a/./b/../b"), NOTHING_HIDDEN).unwrap();
        assert_eq!(
            (found.path.as_path(), found.is_new),
            (real.join("a/b").as_path(), false)
        );
        let same = fs::metadata(found.by_descriptor()).unwrap();
        assert_eq!(same.ino(), fs::metadata(real.join("a/b")).unwrap().ino());
        let file = open(&real.join("a/file"), NOTHING_HIDDEN).unwrap();
        assert_eq!(fs::read(file.by_descriptor()).unwrap(), b"x");
        assert_eq!(
            open(Path::new("/"), NOTHING_HIDDEN).unwrap().path,
            Path::new("/")
        );
        for (path, expected) in [
            ("a/none", "does not exist"),
            ("a/file/x", "Not a directory"),
        ] {
            let error = open(&real.join(path), NOTHING_HIDDEN)
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{path}: {error}");
        }
        open(Path::new("relative"), NOTHING_HIDDEN).unwrap_err();
    }

    #[test]
    fn only_what_is_missing_is_created() {
        let (_dir, real) = scene();
        let made = create(&real.join("a/new/deep"), NOTHING_HIDDEN).unwrap();
        assert!(made.is_new && real.join("a/new/deep").is_dir());
        assert!(
            !create(&real.join("a/new/deep"), NOTHING_HIDDEN)
                .unwrap()
                .is_new
        );
        create(&real.join("a/file"), NOTHING_HIDDEN).unwrap_err();
    }

    #[test]
    fn links_are_followed_where_only_root_can_have_made_them() {
        let (_dir, real) = scene();
        let link = real.join("a/link");
        symlink("../a/b", &link).unwrap();
        symlink(&link, real.join("a/absolute")).unwrap();
        symlink("loop", real.join("a/loop")).unwrap();
        if !is_root() {
            assert!(matches!(
                open(&link, NOTHING_HIDDEN),
                Err(OpenError::Link(_))
            ));
            return;
        }
        assert_eq!(open(&link, NOTHING_HIDDEN).unwrap().path, real.join("a/b"));
        let found = open(&real.join("a/absolute/../b"), NOTHING_HIDDEN).unwrap();
        assert_eq!(found.path, real.join("a/b"));
        assert!(matches!(
            open(&real.join("a/loop"), NOTHING_HIDDEN),
            Err(OpenError::Form)
        ));
        lchown(&link, Some(54321), None).unwrap();
        assert!(matches!(
            open(&link, NOTHING_HIDDEN),
            Err(OpenError::Link(_))
        ));
        lchown(&link, Some(0), None).unwrap();
        // A link of root's that others may have moved there.
        for mode in [0o775, 0o757, 0o1777] {
            fs::set_permissions(real.join("a"), std::fs::Permissions::from_mode(mode)).unwrap();
            assert!(
                matches!(open(&link, NOTHING_HIDDEN), Err(OpenError::Link(_))),
                "{mode:o}"
            );
        }
        let hidden = real.join("a");
        let trust = Trust {
            root: 0,
            hidden: &|path| path == hidden,
            ..NOTHING_HIDDEN
        };
        assert_eq!(open(&link, trust).unwrap().path, real.join("a/b"));
    }

    #[test]
    fn what_may_not_be_used_is_neither_opened_nor_created() {
        let (_dir, real) = scene();
        let kept = real.join("a/b");
        let link = real.join("a/link");
        symlink(&kept, &link).unwrap();
        let hidden = real.join("a");
        let trust = Trust {
            root: 0,
            hidden: &|path| path == hidden,
            refusal: &|path, links| {
                let is_kept = path.starts_with(&kept) && links == [link.clone()];
                is_kept.then(|| "it is kept".to_owned())
            },
        };
        let refused = |result: Result<FoundPath, OpenError>| {
            assert!(matches!(result, Err(OpenError::Refused(_))), "{result:?}");
        };
        refused(open(&link, trust));
        refused(create(&link.join("new"), trust));
        refused(create(&link.join("new/../new"), trust));
        assert_eq!(fs::read_dir(&kept).unwrap().count(), 0);
        // By no link.
        create(&kept.join("new"), trust).unwrap();
        let beyond = create(&real.join("a/none/../b"), NOTHING_HIDDEN).unwrap_err();
        assert!(matches!(beyond, OpenError::Absent(_)), "{beyond}");
    }

    #[test]
    fn nothing_is_created_behind_a_link_of_a_user() {
        if !is_root() {
            eprintln!("SKIPPED: only root can make links of other users");
            return;
        }
        let (_dir, real) = scene();
        let outside = tempfile::tempdir().unwrap();
        let link = real.join("a/link");
        symlink(outside.path(), &link).unwrap();
        lchown(&link, Some(54321), None).unwrap();
        create(&link.join("x"), NOTHING_HIDDEN).unwrap_err();
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    }
}
