//! Compares what an engine has mounted in this container with what the agent has checked.
//!
//! An engine opens the source of a mount again after the agent has: a link that was put in its path in between leads anywhere
//! on the host. It follows links of the image to the place of the mount as well, and those of directories that tasks write to,
//! so that a path of the container proves nothing: what was mounted there may be elsewhere, and the right directory may be
//! seen at that path by another mount. The mounts themselves are compared therefore, as the kernel lists them: each that the
//! agent expects takes one that shows the right directory, and two of one directory take two. If one is missing, something
//! else was mounted in its place.
//!
//! What is expected comes with the command line, which nothing in the container can change.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use det_host_paths::mount_point;
use det_taskspec::{CheckedMount, RUN_DIR};
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, fstat};
use nix::sys::statfs::{FsType, fstatfs};

use crate::failure::SetupError;

/// Number of a file system and of a file on it.
type FileId = (u64, u64);

/// A mount of this process.
struct MountEntry {
    id: u64,
    /// The mount on which it is.
    parent: u64,
    point: PathBuf,
    /// What it shows; `None` = it cannot be reached, because another one covers it or this user may not go there.
    root: Option<FileId>,
}

/// Refuses a run directory that is not the agent's: everything that is read next is in it.
pub(crate) fn check_run_dir(expected: &[CheckedMount]) -> Result<(), SetupError> {
    let own = expected
        .iter()
        .find(|mount| Path::new(&mount.path) == Path::new(RUN_DIR));
    let is_agents = |own: &CheckedMount| {
        fs::metadata(RUN_DIR).is_ok_and(|found| (found.dev(), found.ino()) == id_of(own))
    };
    match own {
        Some(own) if !is_agents(own) => Err(refusal(own)),
        _ => Ok(()),
    }
}

/// Refuses a container in which something that the agent has checked is not mounted.
pub(crate) fn check(expected: &[CheckedMount]) -> Result<(), SetupError> {
    if expected.is_empty() {
        return Ok(());
    }
    let mounted = mounted().map_err(|error| {
        SetupError::host(format!(
            "could not read the mounts of the container: {error}"
        ))
    })?;
    missing(expected, &mounted).map_or(Ok(()), |mount| Err(refusal(mount)))
}

fn refusal(mount: &CheckedMount) -> SetupError {
    SetupError::task(format!(
        "could not use what is mounted at {:?}: it is not what the agent has checked, or the task's user cannot reach it. Its \
         path on the host was changed while the container started, or the image or another mount leads it elsewhere",
        mount.path
    ))
}

fn id_of(mount: &CheckedMount) -> FileId {
    (mount.device, mount.inode)
}

/// The first that takes none of the mounts.
fn missing<'m>(expected: &'m [CheckedMount], mounted: &[MountEntry]) -> Option<&'m CheckedMount> {
    let is_expected =
        |one: &MountEntry| expected.iter().any(|mount| one.root == Some(id_of(mount)));
    // Mounting a directory shows what is mounted below it on the host as well: such a copy could take the place of what is
    // missing elsewhere. It counts at exactly the expected path only, which it would have covered.
    let is_copy = |one: &MountEntry| {
        let mut above = one.parent;
        for _ in mounted {
            match mounted.iter().find(|other| other.id == above) {
                Some(other) if is_expected(other) => return true,
                Some(other) => above = other.parent,
                None => return false,
            }
        }
        false
    };
    let mut taken = BTreeSet::new();
    let mut take = |mount: &CheckedMount, counts: &dyn Fn(&MountEntry) -> bool| {
        let found = mounted
            .iter()
            .find(|one| one.root == Some(id_of(mount)) && !taken.contains(&one.id) && counts(one));
        found.is_some_and(|one| taken.insert(one.id))
    };
    let mut elsewhere = Vec::new();
    for mount in expected {
        if !take(mount, &|one| one.point == Path::new(&mount.path)) {
            elsewhere.push(mount);
        }
    }
    elsewhere
        .into_iter()
        .find(|mount| !take(mount, &|one| !is_copy(one)))
}

/// The mounts of this process (proc(5), `mountinfo`).
fn mounted() -> io::Result<Vec<MountEntry>> {
    let table = read_proc(Path::new("/proc/self/mountinfo"))?;
    let lines = table.split(|byte| *byte == b'\n');
    Ok(lines.filter_map(parse).collect())
}

fn parse(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse().ok();
    let (id, parent) = (number()?, number()?);
    let point = mount_point(fields.nth(2)?);
    let root = root_of(id, &point);
    Some(MountEntry {
        id,
        parent,
        point,
        root,
    })
}

/// What a mount shows, if it is the one that is seen at its place.
fn root_of(id: u64, point: &Path) -> Option<FileId> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let opened = open(point, flags, Mode::empty()).ok()?;
    let facts = PathBuf::from(format!("/proc/self/fdinfo/{}", opened.as_raw_fd()));
    let facts = String::from_utf8(read_proc(&facts).ok()?).ok()?;
    let seen = facts
        .lines()
        .find_map(|line| line.strip_prefix("mnt_id:"))?;
    if seen.trim().parse() != Ok(id) {
        return None;
    }
    let found = fstat(&opened).ok()?;
    Some((found.st_dev, found.st_ino))
}

/// Reads a file of the kernel's: something else could be mounted there.
fn read_proc(path: &Path) -> io::Result<Vec<u8>> {
    const PROC: FsType = FsType(0x9fa0);
    let mut file = File::open(path)?;
    if fstatfs(&file)?.filesystem_type() != PROC {
        return Err(io::Error::other(format!("{path:?} is not the kernel's")));
    }
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(path: &str, inode: u64) -> CheckedMount {
        CheckedMount {
            path: path.into(),
            device: 1,
            inode,
        }
    }

    /// A mount with this id, which is on the one with the second id, and shows the file with this number.
    fn at(id: u64, parent: u64, point: &str, inode: u64) -> MountEntry {
        MountEntry {
            id,
            parent,
            point: point.into(),
            root: (inode != 0).then_some((1, inode)),
        }
    }

    fn first_missing(expected: &[CheckedMount], mounted: &[MountEntry]) -> Option<String> {
        missing(expected, mounted).map(|mount| mount.path.clone())
    }

    #[test]
    fn each_expected_mount_takes_one_of_its_own() {
        let root = || at(1, 0, "/", 2);
        let data = expected("/data", 10);
        let two = [expected("/data", 10), expected("/more", 10)];
        let one = std::slice::from_ref(&data);
        assert_eq!(first_missing(one, &[root(), at(2, 1, "/data", 10)]), None);
        // A link of the image leads elsewhere.
        assert_eq!(first_missing(one, &[root(), at(2, 1, "/x", 10)]), None);
        let swapped = [root(), at(2, 1, "/data", 66)];
        assert_eq!(first_missing(one, &swapped).as_deref(), Some("/data"));
        let unreachable = [root(), at(2, 1, "/data", 0)];
        assert_eq!(first_missing(one, &unreachable).as_deref(), Some("/data"));
        let both = [root(), at(2, 1, "/data", 10), at(3, 1, "/link", 10)];
        assert_eq!(first_missing(&two, &both), None);
        // One link in both paths, and the second mount is the host's /etc.
        let swapped = [root(), at(2, 1, "/data", 10), at(3, 1, "/more", 66)];
        assert_eq!(first_missing(&two, &swapped).as_deref(), Some("/more"));
        // Which of them is found at its path does not matter.
        let turned = [expected("/none", 10), expected("/data", 10)];
        assert_eq!(first_missing(&turned, &both), None);
    }

    #[test]
    fn what_another_mount_brings_along_takes_the_place_of_none() {
        let expected = [expected("/data", 10), expected("/more", 20)];
        let mut mounted = vec![
            at(1, 0, "/", 2),
            at(2, 1, "/data", 10),
            // The host has something mounted below the first one, which is the second.
            at(3, 2, "/data/sub", 20),
            at(4, 1, "/more", 66),
        ];
        assert_eq!(first_missing(&expected, &mounted).as_deref(), Some("/more"));
        mounted[3] = at(4, 1, "/more", 20);
        assert_eq!(first_missing(&expected, &mounted), None);
        let nested = [expected[0].clone(), super::tests::expected("/data/sub", 20)];
        assert_eq!(first_missing(&nested, &mounted), None);
    }

    #[test]
    fn the_kernels_list_shows_mounts_and_not_what_is_only_seen() {
        let of = |path: &str| {
            let found = fs::metadata(path).unwrap();
            CheckedMount {
                path: path.to_owned(),
                device: found.dev(),
                inode: found.ino(),
            }
        };
        check(&[of("/proc")]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let error = check(&[of(dir.path().to_str().unwrap())]).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("not what the agent has checked"), "{error}");
        check(&[of("/proc"), of("/proc")]).unwrap_err();
        check_run_dir(&[of("/proc")]).unwrap();
        let run_dir = expected(RUN_DIR, 1);
        check_run_dir(&[run_dir]).unwrap_err();
    }

    #[test]
    fn only_the_kernels_own_list_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("mountinfo");
        fs::write(&file, "1 0 0:1 / / rw - x x rw\n").unwrap();
        read_proc(&file).unwrap_err();
    }

    #[test]
    fn a_mount_is_named_by_an_option() {
        for mount in [expected("/a b:c", 7), expected("", 0)] {
            assert_eq!(CheckedMount::parse(&mount.option()), Some(mount));
        }
        for other in [
            "--mount=",
            "--mount=1:2",
            "--mount=x:2:/a",
            "--host-network",
        ] {
            assert_eq!(CheckedMount::parse(other), None, "{other}");
        }
    }
}
