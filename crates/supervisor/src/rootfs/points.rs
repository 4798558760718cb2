//! Mounts and directories of a file system that is being built.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt as _, lchown, symlink};
use std::path::{Path, PathBuf};

use det_host_paths::mount_point;
use nix::mount::{MsFlags, mount};

/// A path of the sandbox below the stage.
pub(super) fn inside(stage: &Path, path: &Path) -> PathBuf {
    match path.strip_prefix("/") {
        Ok(rest) if rest.as_os_str().is_empty() => stage.to_owned(),
        Ok(rest) => stage.join(rest),
        Err(_) => stage.join(path),
    }
}

/// A path for mounting the file of a descriptor; it stays valid if files are renamed.
pub(super) fn of_descriptor(descriptor: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))
}

pub(super) fn set_mount<P: ?Sized + nix::NixPath>(path: &P, flags: MsFlags) -> io::Result<()> {
    Ok(mount(
        None::<&str>,
        path,
        None::<&str>,
        flags,
        None::<&str>,
    )?)
}

pub(super) fn bind(source: &Path, target: &Path) -> io::Result<()> {
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    Ok(mount(
        Some(source),
        target,
        None::<&str>,
        flags,
        None::<&str>,
    )?)
}

/// A file system that is not on any disk. Nothing in it is a program or a device unless `flags` allows it.
pub(super) fn mount_new(
    kind: &str,
    target: &Path,
    flags: MsFlags,
    options: &str,
) -> io::Result<()> {
    Ok(mount(Some(kind), target, Some(kind), flags, Some(options))?)
}

/// Binds an entry of a host directory; a link stays a link.
pub(super) fn show(from: &Path, to: &Path) -> io::Result<()> {
    let kind = fs::symlink_metadata(from)?.file_type();
    if kind.is_symlink() {
        return symlink(fs::read_link(from)?, to);
    }
    if kind.is_dir() {
        fs::create_dir(to)?;
    } else {
        File::create_new(to)?;
    }
    bind(from, to)
}

pub(super) fn make_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// Makes `path` and its parents below `stage`, the new ones owned by `owner`.
pub(super) fn make_directories(
    stage: &Path,
    path: &Path,
    owner: Option<(u32, u32)>,
) -> io::Result<()> {
    let mut current = stage.to_owned();
    for component in path.strip_prefix(stage).unwrap_or(path).components() {
        current.push(component);
        if current.is_dir() {
            continue;
        }
        fs::create_dir(&current)?;
        if let Some((uid, gid)) = owner {
            lchown(&current, Some(uid), Some(gid))?;
        }
    }
    Ok(())
}

/// The mounts of this process, with the flags that a remount must repeat, because an unprivileged process may not clear
/// them. Flags of access times stay unchanged if none is given.
pub(super) struct Mounts(BTreeMap<PathBuf, MsFlags>);

impl Mounts {
    /// Reads the mounts that this process has now.
    pub(super) fn read() -> io::Result<Self> {
        Ok(Self::parse(&fs::read("/proc/self/mountinfo")?))
    }

    /// Reads the table (proc(5)). Of several mounts on one place only the last can be reached.
    fn parse(table: &[u8]) -> Self {
        let mounts = table.split(|byte| *byte == b'\n').filter_map(|line| {
            let mut fields = line.split(|byte| *byte == b' ');
            let point = mount_point(fields.nth(4)?);
            let mut flags = MsFlags::empty();
            for option in fields.next()?.split(|byte| *byte == b',') {
                flags |= match option {
                    b"ro" => MsFlags::MS_RDONLY,
                    b"nosuid" => MsFlags::MS_NOSUID,
                    b"nodev" => MsFlags::MS_NODEV,
                    b"noexec" => MsFlags::MS_NOEXEC,
                    _ => MsFlags::empty(),
                };
            }
            Some((point, flags))
        });
        Self(mounts.collect())
    }

    /// Makes everything that is mounted at or below `top` read-only.
    pub(super) fn make_read_only(&self, top: &Path) -> io::Result<()> {
        for (point, flags) in self.0.iter().filter(|(point, _)| point.starts_with(top)) {
            if flags.contains(MsFlags::MS_RDONLY) {
                continue;
            }
            let flags = *flags | MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
            match set_mount(point, flags) {
                // Hidden by another mount above it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                // Below a directory that this user cannot enter, such as the data of a container engine: its tasks, which
                // are the same user, cannot either.
                Err(error) if error.raw_os_error() == Some(nix::libc::EACCES) => {}
                other => other?,
            }
        }
        Ok(())
    }
}

/// Makes everything that is mounted at or below `top` read-only.
pub(super) fn make_read_only(top: &Path) -> io::Result<()> {
    Mounts::read()?.make_read_only(top)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_of_the_mount_that_is_seen_are_known() {
        let table = b"22 1 8:1 / / rw,relatime - ext4 /dev/sda rw\n\
            30 22 0:5 / /stage/my\\040data rw,nosuid,nodev shared:1 - tmpfs t rw\n\
            31 30 0:6 /x /stage/my\\040data ro,noexec - ext4 /dev/sda rw\n\ngarbage";
        let Mounts(mounts) = Mounts::parse(table);
        assert_eq!(mounts[Path::new("/")], MsFlags::empty());
        assert_eq!(
            mounts[Path::new("/stage/my data")],
            MsFlags::MS_RDONLY | MsFlags::MS_NOEXEC
        );
        assert_eq!(mounts.len(), 2);
    }
}
