//! The file system of a sandbox: the host's, with some places changed.
//!
//! A fresh root, a small tmpfs, gets every entry of the host's root bound into it, so that mount points can be made in
//! `/` and `/run` without leaving traces on the host, and without being root there. All is put together beside the old
//! root, which then goes away: sources are always paths of the host, targets always below the stage.

use std::fs::{self, DirBuilder, File, FileType};
use std::io::{self, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, lchown, symlink,
};
use std::path::{Component, Path, PathBuf};

use det_taskspec::sandbox::{RUN_SUBDIR, SandboxSpec};
use det_taskspec::{Mount, RUN_DIR, TaskFile};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{chdir, chroot, pivot_root};

use crate::failure::SetupError;
use crate::report::Diagnostics;

const TMP: &str = "/tmp";
/// Where the old root stands for a moment.
const OLD_ROOT: &str = ".host";

/// Whether the sandbox places this file, because the task's user could not, or would write to the host.
pub(crate) fn places(file: &TaskFile) -> bool {
    let path = Path::new(&file.path);
    !path.starts_with(RUN_DIR) && !path.starts_with(TMP)
}

/// What the file system is to be like.
pub(crate) struct RootFs<'a> {
    /// The container directory, canonical.
    pub(crate) dir: &'a Path,
    pub(crate) spec: &'a SandboxSpec,
    pub(crate) files: &'a [TaskFile],
    /// Where relative container paths begin.
    pub(crate) work_dir: &'a Path,
    /// User and group of the task; `None` when everything belongs to the caller anyway.
    pub(crate) owner: Option<(u32, u32)>,
    /// Where to say what hinders nothing.
    pub(crate) notes: &'a Diagnostics,
}

impl RootFs<'_> {
    /// Builds it and makes it the root of this process and the processes it starts.
    pub(crate) fn enter(&self) -> Result<(), SetupError> {
        let stage = self.dir.join("root");
        self.make_run_dir_the_tasks()?;
        attempt("make mounts private", &stage, || {
            set_mount("/", MsFlags::MS_REC | MsFlags::MS_PRIVATE)
        })?;
        attempt("create the new root", &stage, || make_stage(&stage))?;
        bind_host(Path::new("/"), &stage, &["run", "proc"])?;
        bind_run(&stage)?;
        let proc = stage.join("proc");
        attempt("mount /proc", &proc, || {
            make_directory(&proc)?;
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
            Ok(mount(
                Some("proc"),
                &proc,
                Some("proc"),
                flags,
                None::<&str>,
            )?)
        })?;
        let run_dir = inside(&stage, Path::new(RUN_DIR));
        attempt("mount the run directory", &run_dir, || {
            make_directory(&run_dir)?;
            bind(&self.dir.join(RUN_SUBDIR), &run_dir)
        })?;
        if self.spec.shm_size_bytes > 0 {
            self.mount_shm(&stage)?;
        }
        if self.spec.private_tmp {
            self.mount_tmp(&stage)?;
        }
        for mount in &self.spec.mounts {
            self.mount(&stage, mount)?;
        }
        for (index, file) in self.files.iter().filter(|file| places(file)).enumerate() {
            self.place(&stage, index, file)?;
        }
        attempt("change to the new root", &stage, || change_root(&stage))
    }

    /// Gives the run directory to the task. Done before anything is mounted in it.
    fn make_run_dir_the_tasks(&self) -> Result<(), SetupError> {
        let run_dir = self.dir.join(RUN_SUBDIR);
        attempt("give the run directory to the task", &run_dir, || {
            fs::set_permissions(&run_dir, fs::Permissions::from_mode(0o700))?;
            match self.owner {
                Some(owner) => give(&run_dir, owner),
                None => Ok(()),
            }
        })
    }

    fn mount_shm(&self, stage: &Path) -> Result<(), SetupError> {
        let shm = Path::new("/dev/shm");
        // Some hosts lead it to /run/shm.
        let shm = inside(stage, &shm.canonicalize().unwrap_or(shm.to_owned()));
        let options = format!("size={},mode=1777", self.spec.shm_size_bytes);
        attempt("mount shared memory", &shm, || {
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
            Ok(mount(
                Some("shm"),
                &shm,
                Some("tmpfs"),
                flags,
                Some(options.as_str()),
            )?)
        })
    }

    fn mount_tmp(&self, stage: &Path) -> Result<(), SetupError> {
        let (source, target) = (self.dir.join("tmp"), inside(stage, Path::new(TMP)));
        attempt("mount the task's own /tmp", &target, || {
            make_directory(&source)?;
            fs::set_permissions(&source, fs::Permissions::from_mode(0o1777))?;
            bind(&source, &target)
        })
    }

    fn mount(&self, stage: &Path, wanted: &Mount) -> Result<(), SetupError> {
        let source = Path::new(&wanted.host_path);
        if wanted.create && !source.exists() {
            attempt("create the host directory", source, || {
                DirBuilder::new()
                    .recursive(true)
                    .mode(0o755)
                    .create(source)?;
                match self.owner {
                    Some((uid, gid)) => lchown(source, Some(uid), Some(gid)),
                    None => Ok(()),
                }
            })?;
        }
        // The task's configuration names it: on this host it would go wrong every time.
        let kind = fs::metadata(source).map_err(|error| {
            SetupError::task(format!(
                "could not mount {source:?} at {:?}: there is no such path on this agent's host that it can use ({error})",
                wanted.container_path
            ))
        })?;
        let target = self.work_dir.join(&wanted.container_path);
        let point = self
            .mount_point(stage, &target, kind.file_type())
            .map_err(|error| {
                SetupError::host(format!(
                    "could not mount {source:?} at {target:?}: that mount point does not exist on this host and could not be \
                     created: {error}"
                ))
            })?;
        attempt("mount", source, || {
            bind(source, &point)?;
            if wanted.read_only {
                make_read_only(&point)
            } else {
                Ok(())
            }
        })
    }

    /// Writes one of the task's files to the container directory and shows it in its place.
    ///
    /// Only in place of a file that the host has: nothing is created on the host. Where there is no `ssh_config`, there is
    /// no ssh that would read one.
    fn place(&self, stage: &Path, index: usize, file: &TaskFile) -> Result<(), SetupError> {
        let point = inside(stage, &follow_links(&without_dots(Path::new(&file.path))));
        if !point.is_file() {
            self.notes.note(format!(
                "the task's file {:?} is left out: this host has no such file whose place it could take",
                file.path
            ));
            return Ok(());
        }
        let source = self.dir.join("files").join(index.to_string());
        attempt("place the task's file", Path::new(&file.path), || {
            make_directory(&self.dir.join("files"))?;
            let mut created = File::options()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&source)?;
            created.write_all(file.content.as_bytes())?;
            created.set_permissions(fs::Permissions::from_mode(file.mode & 0o777))?;
            bind(&source, &point)
        })
    }

    /// The path below the stage for a path of the sandbox, made to exist.
    fn mount_point(&self, stage: &Path, target: &Path, kind: FileType) -> io::Result<PathBuf> {
        let target = without_dots(target);
        let own = target.starts_with(RUN_DIR) || (self.spec.private_tmp && target.starts_with(TMP));
        // Links of the host are followed as the task will follow them, and never out of the stage.
        let target = if own { target } else { follow_links(&target) };
        let owner = self.owner.filter(|_| own);
        let point = inside(stage, &target);
        let directory = if kind.is_dir() {
            Some(point.as_path())
        } else {
            point.parent()
        };
        make_directories(stage, directory.unwrap_or(stage), owner)?;
        if !kind.is_dir() && !point.exists() {
            File::create_new(&point)?;
        }
        Ok(point)
    }
}

fn attempt(
    what: &str,
    path: &Path,
    act: impl FnOnce() -> io::Result<()>,
) -> Result<(), SetupError> {
    act().map_err(|error| {
        SetupError::host(format!(
            "could not build the sandbox: could not {what} ({path:?}): {error}"
        ))
    })
}

/// A path of the sandbox below the stage.
fn inside(stage: &Path, path: &Path) -> PathBuf {
    stage.join(path.strip_prefix("/").unwrap_or(path))
}

fn make_stage(stage: &Path) -> io::Result<()> {
    make_directory(stage)?;
    mount(
        Some("det-root"),
        stage,
        Some("tmpfs"),
        MsFlags::empty(),
        Some("size=64m,mode=755"),
    )?;
    // Not copied when the directory that it lies in is bound into it.
    set_mount(stage, MsFlags::MS_UNBINDABLE)
}

fn set_mount<P: ?Sized + nix::NixPath>(path: &P, flags: MsFlags) -> io::Result<()> {
    Ok(mount(
        None::<&str>,
        path,
        None::<&str>,
        flags,
        None::<&str>,
    )?)
}

fn bind(source: &Path, target: &Path) -> io::Result<()> {
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    Ok(mount(
        Some(source),
        target,
        None::<&str>,
        flags,
        None::<&str>,
    )?)
}

/// The flags that a mount has must be named again: an unprivileged process may not take them away.
/// Those about access times stay as they are when none is named.
fn make_read_only(target: &Path) -> io::Result<()> {
    let has = statvfs(target)?.flags();
    let mut flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    for (present, flag) in [
        (FsFlags::ST_NOSUID, MsFlags::MS_NOSUID),
        (FsFlags::ST_NODEV, MsFlags::MS_NODEV),
        (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
    ] {
        if has.contains(present) {
            flags |= flag;
        }
    }
    set_mount(target, flags)
}

/// Shows the entries of a host directory in `target`, except those to `skip`.
///
/// An entry that cannot be shown is left out: it may be another user's FUSE mount, or have gone a moment ago.
fn bind_host(source: &Path, target: &Path, skip: &[&str]) -> Result<(), SetupError> {
    let mut entries = Vec::new();
    attempt("list", source, || {
        for entry in fs::read_dir(source)? {
            entries.push(entry?);
        }
        Ok(())
    })?;
    for entry in entries {
        let name = entry.file_name();
        if skip.iter().any(|skipped| name == *skipped) {
            continue;
        }
        let (from, to) = (entry.path(), target.join(&name));
        // An absence says enough; the task will meet it by name.
        drop(show(&from, &to));
    }
    Ok(())
}

fn show(from: &Path, to: &Path) -> io::Result<()> {
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

/// `/run` is taken apart, because the run directory goes into it.
fn bind_run(stage: &Path) -> Result<(), SetupError> {
    let run = Path::new("/run");
    let target = inside(stage, run);
    attempt("create", &target, || make_directory(&target))?;
    if !run.is_dir() {
        return Ok(());
    }
    bind_host(run, &target, &["determined"])
}

fn make_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// Makes `path` and its parents below `stage`, the new ones owned by `owner`.
fn make_directories(stage: &Path, path: &Path, owner: Option<(u32, u32)>) -> io::Result<()> {
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

/// Gives a tree to its owner; follows no link.
fn give(path: &Path, owner: (u32, u32)) -> io::Result<()> {
    lchown(path, Some(owner.0), Some(owner.1))?;
    if fs::symlink_metadata(path)?.is_dir() {
        for entry in fs::read_dir(path)? {
            give(&entry?.path(), owner)?;
        }
    }
    Ok(())
}

/// The path with `.` and `..` taken literally, never above the root.
fn without_dots(path: &Path) -> PathBuf {
    let mut plain = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => plain.push(name),
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    plain
}

/// The path with the links of its existing part followed on the host.
fn follow_links(path: &Path) -> PathBuf {
    for ancestor in path.ancestors() {
        if let (Ok(real), Ok(rest)) = (ancestor.canonicalize(), path.strip_prefix(ancestor)) {
            return real.join(rest);
        }
    }
    path.to_owned()
}

fn change_root(stage: &Path) -> io::Result<()> {
    chdir(stage)?;
    fs::create_dir(OLD_ROOT)?;
    match pivot_root(".", OLD_ROOT) {
        Ok(()) => {
            chdir("/")?;
            let old = Path::new("/").join(OLD_ROOT);
            umount2(&old, MntFlags::MNT_DETACH)?;
            fs::remove_dir(&old)?;
        }
        // The root of a system that runs from its initial ramdisk cannot be exchanged, only covered.
        Err(Errno::EINVAL) => {
            fs::remove_dir(OLD_ROOT)?;
            mount(Some("."), "/", None::<&str>, MsFlags::MS_MOVE, None::<&str>)?;
            chroot(".")?;
            chdir("/")?;
        }
        Err(error) => return Err(error.into()),
    }
    set_mount("/", MsFlags::MS_PRIVATE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_never_lead_above_the_root() {
        for (path, plain) in [("/a/./b/../c", "/a/c"), ("/../../etc", "/etc"), ("a", "/a")] {
            assert_eq!(without_dots(Path::new(path)), Path::new(plain));
        }
    }

    #[test]
    fn links_are_followed_as_far_as_there_are_any() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        fs::create_dir(real.join("real")).unwrap();
        symlink(real.join("real"), real.join("link")).unwrap();
        assert_eq!(
            follow_links(&real.join("link/new/sub")),
            real.join("real/new/sub")
        );
    }

    #[test]
    fn only_files_outside_the_tasks_own_directories_are_the_sandboxs() {
        for (path, placed) in [
            ("/etc/ssh/ssh_config", true),
            ("/run/determined/ssh/id_rsa", false),
            ("/tmp/x", false),
            ("/run/determined-not", true),
        ] {
            let file = TaskFile {
                path: path.into(),
                mode: 0o644,
                content: String::new(),
            };
            assert_eq!(places(&file), placed, "{path}");
        }
    }
}
