//! Places of a sandbox that is being built, reached without following a link.
//!
//! Directories of users may be mounted below the stage already, with any link in them, and may change at any moment. A path
//! of the stage that leads through such a link would lead out of the stage, into the host, with the rights of the agent.
//! So places are walked to name by name, and used by their descriptors.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{Mode, SFlag, fstat, mkdirat};
use nix::unistd::{Gid, Uid, fchownat};

/// Opens a name to know and to mount over it, and not what a link leads to.
const NAMED: OFlag = OFlag::O_PATH
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_CLOEXEC);

/// How far a path exists below the stage.
pub(super) struct Walk {
    /// The last part that exists.
    pub(super) at: OwnedFd,
    /// Its path in the sandbox.
    pub(super) reached: PathBuf,
    /// The names below that do not exist.
    pub(super) missing: Vec<OsString>,
}

/// Walks to a path of the sandbox, as far as it exists. Errs where a part is a link.
pub(super) fn walk(stage: &Path, path: &Path) -> io::Result<Walk> {
    let mut walk = Walk {
        at: open(stage, NAMED, Mode::empty())?,
        reached: PathBuf::from("/"),
        missing: Vec::new(),
    };
    for component in path.components() {
        let Component::Normal(name) = component else {
            continue;
        };
        if !walk.missing.is_empty() {
            walk.missing.push(name.to_owned());
            continue;
        }
        match openat(&walk.at, name, NAMED, Mode::empty()) {
            Ok(next) => {
                if is_of_kind(next.as_fd(), SFlag::S_IFLNK)? {
                    return Err(io::Error::other(format!(
                        "{:?} is a link",
                        walk.reached.join(name)
                    )));
                }
                walk.at = next;
                walk.reached.push(name);
            }
            Err(Errno::ENOENT) => walk.missing.push(name.to_owned()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(walk)
}

fn is_of_kind(descriptor: BorrowedFd<'_>, kind: SFlag) -> io::Result<bool> {
    let mode = SFlag::from_bits_truncate(fstat(descriptor)?.st_mode);
    Ok(mode & SFlag::S_IFMT == kind)
}

impl Walk {
    /// Makes what is missing: directories, owned by `owner`, and last a file unless `is_directory`.
    pub(super) fn make(&mut self, is_directory: bool, owner: Option<(u32, u32)>) -> io::Result<()> {
        let last = self.missing.len();
        for (number, name) in (1..).zip(std::mem::take(&mut self.missing)) {
            if number == last && !is_directory {
                let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
                openat(&self.at, &*name, flags, Mode::from_bits_truncate(0o666))?;
            } else {
                mkdirat(&self.at, &*name, Mode::from_bits_truncate(0o777))?;
                if let Some((uid, gid)) = owner {
                    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
                    let flags = AtFlags::AT_SYMLINK_NOFOLLOW;
                    fchownat(&self.at, &*name, Some(uid), Some(gid), flags)?;
                }
            }
            self.at = openat(&self.at, &*name, NAMED, Mode::empty())?;
            self.reached.push(name);
        }
        Ok(())
    }
}

/// The mounts in which directories may be made: those that the supervisor has made for this sandbox.
#[derive(Debug, Default)]
pub(super) struct OwnMounts(RefCell<BTreeSet<u64>>);

impl OwnMounts {
    /// The mounts at these places of the stage, before anything of a user is mounted.
    pub(super) fn at(stage: &Path, places: &[&str]) -> io::Result<Self> {
        let own = Self::default();
        for place in places {
            // One that this host's tree does not have, or only as a link, has none of them.
            if let Ok(walk) = walk(stage, Path::new(place))
                && walk.missing.is_empty()
            {
                own.add(walk.at.as_fd())?;
            }
        }
        Ok(own)
    }

    /// Adds the mount that this place is in.
    pub(super) fn add(&self, place: BorrowedFd<'_>) -> io::Result<()> {
        self.0.borrow_mut().insert(mount_of(place)?);
        Ok(())
    }

    /// Whether this place is in one of them.
    pub(super) fn contain(&self, place: BorrowedFd<'_>) -> io::Result<bool> {
        Ok(self.0.borrow().contains(&mount_of(place)?))
    }
}

/// The kernel's number of the mount that a place is in (proc(5), `/proc/PID/fdinfo`).
pub(super) fn mount_of(place: BorrowedFd<'_>) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", place.as_raw_fd()))?;
    text.lines()
        .find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())
        .ok_or_else(|| io::Error::other("the kernel does not show in which mount a file is"))
}
