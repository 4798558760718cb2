//! The paths of this host that tasks must not reach, and the creation of directories for tasks where that is allowed.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Component, Path, PathBuf};

use det_taskspec::TaskUser;
use det_taskspec::guard::HostGuard;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, fstat, mkdirat};
use nix::unistd::{Gid, Uid, User, fchownat, geteuid};

use crate::options::AgentOptions;

/// Directories in which other parts of the cluster on this host may store data.
const USUAL_PLACES: [&str; 2] = ["/etc/determined", "/var/lib/determined"];

/// The guard of this host. `data_dir` is the agent's, with links resolved. Blocking.
pub(crate) fn of_host(options: &AgentOptions, data_dir: &Path) -> HostGuard {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    let usual = USUAL_PLACES.iter().map(Path::new);
    let named = options.private_paths.iter().map(PathBuf::as_path);
    let mut protected: Vec<PathBuf> = named.chain(usual).filter_map(real).collect();
    protected.push(data_dir.to_owned());
    let user_directories = options.user_directories.as_deref().and_then(real);
    protected.extend(user_directories.clone());
    let account = User::from_uid(geteuid()).ok().flatten();
    let homes = [
        std::env::var_os("HOME").map(PathBuf::from),
        account.map(|account| account.dir),
    ];
    let homes = homes.into_iter().flatten();
    let homes = homes.filter_map(|home| real(&home).filter(|home| home.is_dir()));
    let homes = homes.filter(|home| HostGuard::is_home(home));
    HostGuard {
        protected: without_nested(protected),
        homes: without_nested(homes.collect()),
        // One that does not exist yet has no links either.
        allowed: options
            .allowed_host_paths
            .iter()
            .map(|path| real(path).unwrap_or_else(|| path.clone()))
            .collect(),
        allowed_capabilities: options.allowed_capabilities.clone(),
        user_directories,
    }
}

/// Those paths that are not below another one.
fn without_nested(mut paths: Vec<PathBuf>) -> Vec<PathBuf> {
    paths.sort();
    paths.dedup_by(|later, earlier| later.starts_with(&*earlier));
    paths
}

/// Creates a directory below `root` as its user could, the new parts owned by that user. No link below `root` is
/// followed. Blocking.
pub(crate) fn create_below(root: &Path, path: &Path, user: &TaskUser) -> io::Result<()> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let rest = path.strip_prefix(root).map_err(io::Error::other)?;
    let mut above: OwnedFd = open(
        root,
        OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        Mode::empty(),
    )?;
    for component in rest.components() {
        let Component::Normal(name) = component else {
            return Err(io::Error::other(
                "it has to be written without \".\" and \"..\"",
            ));
        };
        let made = match openat(above.as_fd(), name, flags, Mode::empty()) {
            Err(Errno::ENOENT) => {
                make(&above, Path::new(name), user)?;
                openat(above.as_fd(), name, flags, Mode::empty())
            }
            Err(Errno::ELOOP | Errno::ENOTDIR) => {
                return Err(io::Error::other(format!(
                    "\"{}\" in it is no directory, or a link",
                    Path::new(name).display()
                )));
            }
            other => other,
        };
        above = made?;
    }
    Ok(())
}

fn make(above: &OwnedFd, name: &Path, user: &TaskUser) -> io::Result<()> {
    let is_root = geteuid().is_root();
    if is_root && !may_write(&fstat(above.as_fd())?, user) {
        return Err(io::Error::other(format!(
            "the task's user \"{}\" (uid {}) may not write to the directory above it",
            user.user, user.uid
        )));
    }
    mkdirat(above.as_fd(), name, Mode::from_bits_truncate(0o755))?;
    if is_root {
        fchownat(
            above.as_fd(),
            name,
            Some(Uid::from_raw(user.uid)),
            Some(Gid::from_raw(user.gid)),
            AtFlags::AT_SYMLINK_NOFOLLOW,
        )?;
    }
    Ok(())
}

/// Whether this user, with no groups but the first, may create something in a directory.
fn may_write(directory: &FileStat, user: &TaskUser) -> bool {
    const WRITE_AND_ENTER: u32 = 0o3;
    let shift = match () {
        () if user.uid == 0 => return true,
        () if directory.st_uid == user.uid => 6,
        () if directory.st_gid == user.gid => 3,
        () => 0,
    };
    (directory.st_mode >> shift) & WRITE_AND_ENTER == WRITE_AND_ENTER
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn nested_paths_are_named_once() {
        let paths = ["/a/b", "/a", "/ab", "/a/b/c"].map(PathBuf::from);
        assert_eq!(
            without_nested(paths.to_vec()),
            ["/a", "/ab"].map(PathBuf::from)
        );
    }

    #[test]
    fn directories_are_created_through_no_link_and_for_their_user() {
        let root = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        symlink(outside.path(), root.path().join("link")).unwrap();
        std::fs::set_permissions(root.path(), PermissionsExt::from_mode(0o1777)).unwrap();
        let user = TaskUser {
            uid: 54321,
            gid: 54322,
            ..TaskUser::default()
        };
        create_below(root.path(), &root.path().join("a/b"), &user).unwrap();
        if geteuid().is_root() {
            let made = std::fs::metadata(root.path().join("a/b")).unwrap();
            assert_eq!((made.uid(), made.gid()), (54321, 54322));
            std::fs::create_dir(root.path().join("other")).unwrap();
            create_below(root.path(), &root.path().join("other/x"), &user).unwrap_err();
        }
        for path in ["link/x", "a/../../x"] {
            create_below(root.path(), &root.path().join(path), &user).unwrap_err();
        }
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    }
}
