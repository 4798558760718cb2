//! Directories that tasks of all users share.

use std::fmt;
use std::fs::{Permissions, set_permissions};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use nix::fcntl::AtFlags;
use nix::sys::stat::{FileStat, fstat};
use nix::unistd::{Gid, Uid, fchownat, geteuid};
use rustix::io::Errno;

use crate::by_descriptor;

/// Mode of a directory that tasks of all users share: what is one user's is renamed or removed by no other, except by the
/// owner of the directory.
pub const SHARED_MODE: u32 = 0o1777;

/// Mode until it is one, whatever the umask leaves of it: the sticky bit means nothing where no other user may write. What
/// a process that has ended left like this is completed by the next one.
pub(crate) const HALF_MADE_MODE: u32 = 0o1755;

const STICKY: u32 = 0o1000;
const WRITTEN_BY_OTHERS: u32 = 0o022;
/// Rights that a user gives on a directory beside its mode, and on everything that others will create in it.
const ACCESS_LISTS: [&str; 2] = ["system.posix_acl_default", "system.posix_acl_access"];

/// Who shares directories with [`share`](crate::share).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharer {
    /// Agent or master. As root it takes directories from users who could have put them there: their owners could replace
    /// what others store in them. They become root's.
    Host,
    /// A task: it takes nothing, and what it makes belongs to its user.
    Task,
}

/// A directory that was taken from a user. As text it is a warning for the operators of the host, without path and user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenOver {
    /// Its path, links resolved.
    pub path: PathBuf,
    /// The user id of its owner until then.
    pub uid: u32,
}

impl fmt::Display for TakenOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a directory of checkpoint storage belonged to a user and is root's now; the user could replace what others had \
             stored in it",
        )
    }
}

impl Sharer {
    /// Sees to it that a directory, open as the others (`O_PATH`), is shared. Returns from whom it was taken.
    pub(crate) fn open_to_all(
        self,
        above: BorrowedFd<'_>,
        directory: BorrowedFd<'_>,
        is_new: bool,
    ) -> io::Result<Option<u32>> {
        let (own, above, found) = (geteuid().as_raw(), fstat(above)?, fstat(directory)?);
        let is_own = found.st_uid == own;
        // On network file systems what root makes may belong to another account. Whose else it is has been put in its
        // place meanwhile.
        if is_new && (is_own || found.st_uid == above.st_uid) {
            set_mode(directory, SHARED_MODE)?;
            return Ok(None);
        }
        if is_own && is_half_made(&found) {
            complete(directory)?;
            return Ok(None);
        }
        let is_trusted = [own, 0, above.st_uid].contains(&found.st_uid);
        let is_tasks = above.st_mode & WRITTEN_BY_OTHERS != 0 && !is_trusted;
        if self != Self::Host || own != 0 || !is_tasks {
            return Ok(None);
        }
        take_over(directory)?;
        Ok(Some(found.st_uid))
    }
}

fn is_half_made(found: &FileStat) -> bool {
    found.st_mode & STICKY != 0 && found.st_mode & WRITTEN_BY_OTHERS == 0
}

fn set_mode(directory: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
    set_permissions(by_descriptor(directory), Permissions::from_mode(mode))
}

/// Makes a user's directory root's.
fn take_over(directory: BorrowedFd<'_>) -> io::Result<()> {
    set_mode(directory, HALF_MADE_MODE)?;
    let (root, group) = (Some(Uid::from_raw(0)), Some(Gid::from_raw(0)));
    fchownat(directory, "", root, group, AtFlags::AT_EMPTY_PATH)?;
    complete(directory)
}

/// Opens what is root's by now. What its former owner could do meanwhile is undone.
fn complete(directory: BorrowedFd<'_>) -> io::Result<()> {
    for list in ACCESS_LISTS {
        match rustix::fs::removexattr(by_descriptor(directory), list) {
            Ok(()) | Err(Errno::NODATA | Errno::NOTSUP) => {}
            Err(error) => return Err(error.into()),
        }
    }
    set_mode(directory, SHARED_MODE)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, chown, lchown, symlink};
    use std::path::Path;

    use super::*;
    use crate::{FoundPath, OpenError, Trust, open_as_is, share};

    const USER: u32 = 54321;
    const CAREFUL: Trust<'_> = Trust {
        root: 0,
        hidden: &|_| false,
        refusal: &|_, _| None,
    };

    /// The storage of a cluster with a mode, of the account of the test.
    fn storage(mode: u32) -> (tempfile::TempDir, FoundPath) {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
        let found = open_as_is(dir.path()).unwrap();
        (dir, found)
    }

    fn of_user(path: &Path, mode: u32) {
        fs::create_dir(path).unwrap();
        chown(path, Some(USER), Some(USER)).unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn owner_and_mode(path: &Path) -> (u32, u32) {
        let found = fs::metadata(path).unwrap();
        (found.uid(), found.mode() & 0o7777)
    }

    fn skipped() -> bool {
        let is_user = !geteuid().is_root();
        if is_user {
            eprintln!("SKIPPED: only root can make directories of other users");
        }
        is_user
    }

    #[test]
    fn every_part_that_is_missing_is_made_for_the_tasks_of_all_users() {
        for sharer in [Sharer::Host, Sharer::Task] {
            let (dir, root) = storage(0o755);
            fs::create_dir(dir.path().join("made")).unwrap();
            fs::set_permissions(dir.path().join("made"), Permissions::from_mode(0o750)).unwrap();
            for is_new in [true, false] {
                let (found, taken) = share(&root, Path::new("made/a/b"), CAREFUL, sharer).unwrap();
                assert_eq!((found.is_new, taken), (is_new, Vec::new()));
                assert_eq!(found.path, dir.path().join("made/a/b"));
            }
            let own = geteuid().as_raw();
            let made = dir.path().join("made");
            assert_eq!(owner_and_mode(&made), (own, 0o750), "an administrator's");
            assert_eq!(owner_and_mode(&made.join("a")), (own, SHARED_MODE));
            assert_eq!(owner_and_mode(&made.join("a/b")), (own, SHARED_MODE));
            // The process that made it ended too early.
            for mode in [HALF_MADE_MODE, 0o1700] {
                fs::set_permissions(made.join("a"), Permissions::from_mode(mode)).unwrap();
                share(&root, Path::new("made/a"), CAREFUL, sharer).unwrap();
                assert_eq!(owner_and_mode(&made.join("a")), (own, SHARED_MODE));
            }
        }
    }

    #[test]
    fn a_directory_that_a_user_can_have_made_becomes_roots() {
        if skipped() {
            return;
        }
        let (dir, root) = storage(0o1777);
        let base = dir.path().join("base");
        for mode in [0o755, 0o700, 0o777, 0o1777, 0o2775] {
            of_user(&base, mode);
            fs::write(base.join("file"), "x").unwrap();
            chown(base.join("file"), Some(USER), None).unwrap();
            let (_, taken) = share(&root, Path::new("base"), CAREFUL, Sharer::Task).unwrap();
            assert_eq!((taken, owner_and_mode(&base)), (Vec::new(), (USER, mode)));
            let (_, taken) = share(&root, Path::new("base"), CAREFUL, Sharer::Host).unwrap();
            let expected = TakenOver {
                path: base.clone(),
                uid: USER,
            };
            assert_eq!(
                (taken, owner_and_mode(&base)),
                (vec![expected], (0, SHARED_MODE))
            );
            assert_eq!(
                fs::metadata(base.join("file")).unwrap().uid(),
                USER,
                "content is not touched"
            );
            let (_, taken) = share(&root, Path::new("base"), CAREFUL, Sharer::Host).unwrap();
            assert_eq!(taken, []);
            fs::remove_dir_all(&base).unwrap();
        }
    }

    #[test]
    fn access_lists_of_the_former_owner_are_removed() {
        if skipped() {
            return;
        }
        let (dir, root) = storage(0o1777);
        let base = dir.path().join("base");
        of_user(&base, 0o755);
        // Version 2: owner, user 54321, group, mask and others, all with all rights.
        let mut list = 2_u32.to_le_bytes().to_vec();
        for (tag, id) in [
            (1_u16, u32::MAX),
            (2, USER),
            (4, u32::MAX),
            (16, u32::MAX),
            (32, u32::MAX),
        ] {
            list.extend(tag.to_le_bytes());
            list.extend(7_u16.to_le_bytes());
            list.extend(id.to_le_bytes());
        }
        let set = |name| rustix::fs::setxattr(&base, name, &list, rustix::fs::XattrFlags::empty());
        if let Err(error) = set(ACCESS_LISTS[0]).and_then(|()| set(ACCESS_LISTS[1])) {
            eprintln!("SKIPPED: the file system has no access lists: {error}");
            return;
        }
        share(&root, Path::new("base"), CAREFUL, Sharer::Host).unwrap();
        for name in ACCESS_LISTS {
            let left = rustix::fs::getxattr(&base, name, &mut [0_u8; 256]);
            assert_eq!(left, Err(Errno::NODATA), "{name}");
        }
        assert_eq!(owner_and_mode(&base), (0, SHARED_MODE));
    }

    #[test]
    fn what_only_an_administrator_can_have_made_keeps_owner_and_mode() {
        if skipped() {
            return;
        }
        for (mode_above, owner_above) in [(0o755, 0), (0o1777, USER)] {
            let (dir, root) = storage(mode_above);
            chown(dir.path(), Some(owner_above), None).unwrap();
            let base = dir.path().join("base");
            of_user(&base, 0o2775);
            let (_, taken) = share(&root, Path::new("base"), CAREFUL, Sharer::Host).unwrap();
            assert_eq!((taken, owner_and_mode(&base)), (Vec::new(), (USER, 0o2775)));
        }
    }

    #[test]
    fn links_lead_nowhere_that_is_changed() {
        if skipped() {
            return;
        }
        let (dir, root) = storage(0o1777);
        let elsewhere = tempfile::tempdir().unwrap();
        fs::set_permissions(elsewhere.path(), Permissions::from_mode(0o1777)).unwrap();
        let theirs = elsewhere.path().join("theirs");
        of_user(&theirs, 0o755);
        let link = dir.path().join("base");
        symlink(elsewhere.path(), &link).unwrap();
        lchown(&link, Some(USER), None).unwrap();
        for below in ["base", "base/theirs", "base/new"] {
            let refused = share(&root, Path::new(below), CAREFUL, Sharer::Host);
            assert!(matches!(refused, Err(OpenError::Link(_))), "{refused:?}");
        }
        // Root's own link is followed, and nothing is made behind it.
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        lchown(&link, Some(0), None).unwrap();
        let (found, taken) = share(&root, Path::new("base/theirs"), CAREFUL, Sharer::Host).unwrap();
        assert_eq!(
            (found.path.as_path(), taken),
            (theirs.as_path(), Vec::new())
        );
        let absent = share(&root, Path::new("base/new"), CAREFUL, Sharer::Host);
        assert!(matches!(absent, Err(OpenError::Absent(_))), "{absent:?}");
        assert_eq!(owner_and_mode(&theirs), (USER, 0o755));
        // A file in its place.
        fs::write(dir.path().join("file"), "").unwrap();
        share(&root, Path::new("file"), CAREFUL, Sharer::Host).unwrap_err();
        // What may not be used is not changed either.
        let trust = Trust {
            refusal: &|_, _| Some("kept".to_owned()),
            ..CAREFUL
        };
        let refused = share(&root, Path::new("new"), trust, Sharer::Host);
        assert!(matches!(refused, Err(OpenError::Refused(_))), "{refused:?}");
        assert!(!dir.path().join("new").exists());
    }
}
