//! The file system of a sandbox: the host's, with some directories replaced.
//!
//! A fresh root, a small tmpfs, gets every entry of the host's root bound into it, so that mount points can be made in
//! `/` without leaving traces on the host, and without being root there. `/dev`, `/run`, `/tmp` and `/var/tmp` are the
//! task's own ([`host`]). The new root is built next to the old one, which is then detached: sources are always paths
//! of the host, targets always below the stage.

mod host;
mod points;
mod targets;

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{
    FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown, lchown,
};
use std::path::{Component, Path, PathBuf};

use det_host_paths::{FoundPath, Trust};
use det_taskspec::sandbox::{RUN_SUBDIR, SandboxSpec};
use det_taskspec::{Mount, RUN_DIR, TaskFile};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::Mode;
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{Gid, Uid, chdir, chroot, pivot_root, setfsgid, setfsuid};

use crate::failure::SetupError;
use crate::report::Diagnostics;
use crate::warm;
use points::{
    bind, inside, make_directory, make_read_only, mount_new, of_descriptor, set_mount, show,
};
use targets::{OwnMounts, Walk, mount_of, walk};

/// File systems of the kernel, which programs of ours read too.
const KERNELS: [&str; 2] = ["/proc", "/sys"];
const TMP: &str = "/tmp";
const VAR_TMP: &str = "/var/tmp";
/// Temporary mount point of the old root.
const OLD_ROOT: &str = ".host";
/// The most entries of a host directory that are bound one by one, so that a mount point can be added to the directory.
const MOST_ENTRIES: usize = 2000;

/// The file of the program that this process executes, by the mount from which it was executed.
const OWN_EXECUTABLE: &str = "/proc/self/exe";

/// Separates the mounts of this process from all others, and mounts the file of its program over itself, read-only. Returns its
/// path: executed from there, the file cannot be changed through the process, whichever user owns it.
pub(crate) fn cover_executable() -> io::Result<PathBuf> {
    set_mount("/", MsFlags::MS_REC | MsFlags::MS_PRIVATE)?;
    let path = fs::read_link(OWN_EXECUTABLE)?;
    bind(&path, &path)?;
    make_read_only(&path)?;
    let (own, covered) = (fs::metadata(OWN_EXECUTABLE)?, fs::metadata(&path)?);
    if (own.dev(), own.ino()) != (covered.dev(), covered.ino()) {
        return Err(io::Error::other(format!("{path:?} is another file now")));
    }
    if !statvfs(&path)?.flags().contains(FsFlags::ST_RDONLY) {
        return Err(io::Error::other(format!("{path:?} can still be written")));
    }
    Ok(path)
}

/// Whether the sandbox must create this file, because the task's user may not, or would write to the host.
pub(crate) fn places(file: &TaskFile) -> bool {
    let path = Path::new(&file.path);
    !path.starts_with(RUN_DIR) && !path.starts_with(TMP)
}

/// Description of the file system to build.
pub(crate) struct RootFs<'a> {
    /// The container's directory, links resolved.
    pub(crate) dir: &'a Path,
    pub(crate) spec: &'a SandboxSpec,
    pub(crate) files: &'a [TaskFile],
    /// Base of relative container paths.
    pub(crate) work_dir: &'a Path,
    /// User and group of the task; `None` if everything belongs to the caller anyway.
    pub(crate) owner: Option<(u32, u32)>,
    /// Receives messages about problems that do not prevent the task.
    pub(crate) notes: &'a Diagnostics,
}

impl RootFs<'_> {
    /// Builds it and makes it the root of this process and the processes it starts. The mounts are this process's own.
    pub(crate) fn enter(&self) -> Result<(), SetupError> {
        let stage = self.dir.join("root");
        self.give_run_dir_to_task()?;
        attempt("create the new root", &stage, || make_stage(&stage))?;
        self.show_host(&stage)?;
        let run_dir = inside(&stage, Path::new(RUN_DIR));
        attempt("mount the run directory", &run_dir, || {
            make_directory(&run_dir)?;
            bind(&self.dir.join(RUN_SUBDIR), &run_dir)
        })?;
        self.place_relay(&run_dir);
        let mut own = OwnMounts::default();
        attempt("find its own mounts", &stage, || {
            own = OwnMounts::at(&stage, &["/", "/dev", RUN_DIR, TMP, VAR_TMP])?;
            Ok(())
        })?;
        for mount in &self.spec.mounts {
            self.mount(&stage, &own, mount, &self.source(mount)?)?;
        }
        if let Some(mount) = &self.spec.user_directory {
            self.mount(&stage, &own, mount, &self.user_directory(mount)?)?;
        }
        for (index, file) in self.files.iter().filter(|file| places(file)).enumerate() {
            self.place(&stage, index, file)?;
        }
        attempt("change to the new root", &stage, || change_root(&stage))
    }

    /// Puts the relay of warm starts where programs find it, if this container has a standby.
    fn place_relay(&self, run_dir: &Path) {
        let Some((warm, dir)) = self.spec.warm.as_ref().zip(warm::relay_dir(run_dir)) else {
            return;
        };
        let placed = warm::place_relay(&dir, warm, |point| {
            // By its path: what is behind the link of the process itself belongs to the host's mounts.
            bind(&fs::read_link(OWN_EXECUTABLE)?, point)?;
            make_read_only(point)
        });
        if let Err(error) = placed {
            self.notes.note(format!(
                "programs start cold: could not place the relay: {error}"
            ));
        }
    }

    /// Makes the task the owner of the run directory. Done before anything is mounted in it.
    fn give_run_dir_to_task(&self) -> Result<(), SetupError> {
        let run_dir = self.dir.join(RUN_SUBDIR);
        attempt("give the run directory to the task", &run_dir, || {
            fs::set_permissions(&run_dir, fs::Permissions::from_mode(0o700))?;
            match self.owner {
                Some(owner) => give(&run_dir, owner),
                None => Ok(()),
            }
        })
    }

    fn mount(
        &self,
        stage: &Path,
        own: &OwnMounts,
        wanted: &Mount,
        source: &OwnedFd,
    ) -> Result<(), SetupError> {
        let place = &wanted.container_path;
        let named = Path::new(&wanted.host_path);
        let kind = fs::metadata(of_descriptor(source.as_fd()))
            .map_err(|error| unusable(named, place, &error))?;
        let target = target_of(&self.work_dir.join(place)).map_err(|why| {
            SetupError::task(format!(
                "could not mount {named:?} at {place:?}: {why}; name another directory"
            ))
        })?;
        let point = self
            .mount_point(stage, own, &target, kind.is_dir())
            .map_err(|error| {
                SetupError::host(format!(
                    "could not mount {named:?} at {target:?}: that mount point does not exist on this host and could not be \
                     created: {error}"
                ))
            })?;
        attempt("mount", named, || {
            bind(
                &of_descriptor(source.as_fd()),
                &of_descriptor(point.at.as_fd()),
            )?;
            if wanted.read_only {
                make_read_only(&inside(stage, &point.reached))
            } else {
                Ok(())
            }
        })
    }

    /// Opens what is to be mounted. Paths of a user's configuration are opened with the rights of the task, and checked
    /// after opening: a path may contain links, which may change at any moment.
    fn source(&self, wanted: &Mount) -> Result<OwnedFd, SetupError> {
        let path = Path::new(&wanted.host_path);
        // The task's configuration names it: it would fail every time on this host.
        let failed = |error: io::Error| unusable(path, &wanted.container_path, &error);
        let opened = || open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty());
        if wanted.trusted {
            let guard = &self.spec.guard;
            let found = self.open_as_agent(wanted, &|found, links| {
                guard.cluster_refusal(path, found, links, wanted.read_only)
            })?;
            return Ok(found.descriptor);
        }
        let source = self
            .with_task_identity(opened)
            .map_err(|error| failed(error.into()))?;
        let real = fs::read_link(of_descriptor(source.as_fd())).map_err(failed)?;
        let is_device = fs::metadata(of_descriptor(source.as_fd())).is_ok_and(|found| {
            found.file_type().is_char_device() || found.file_type().is_block_device()
        });
        let refusal = if is_device {
            Some("it is a device; name it in \"resources.devices\"".to_owned())
        } else {
            self.spec.guard.refusal(&real, wanted.read_only)
        };
        match refusal {
            None => Ok(source),
            Some(reason) => Err(SetupError::task(format!(
                "could not mount {path:?} at {:?}: {reason}",
                wanted.container_path
            ))),
        }
    }

    /// Opens the directory of the task's user, which belongs to the task's account.
    fn user_directory(&self, wanted: &Mount) -> Result<OwnedFd, SetupError> {
        let found = self.open_as_agent(wanted, &|_, _| None)?;
        let owner = fs::metadata(found.by_descriptor())
            .map_err(|error| unusable(&found.path, &wanted.container_path, &error))?
            .uid();
        match self.owner {
            Some((uid, _)) if uid != owner => Err(SetupError::host(format!(
                "could not mount {:?} at {:?}: it belongs to uid {owner}, and the task runs as uid {uid}",
                found.path, wanted.container_path
            ))),
            _ => Ok(found.descriptor),
        }
    }

    /// Opens what an administrator or the agent has named. Tasks may write to a directory above it: no link of theirs is
    /// followed, and `refusal` judges where those of root's lead ([`Trust::refusal`]).
    fn open_as_agent(
        &self,
        wanted: &Mount,
        refusal: &dyn Fn(&Path, &[PathBuf]) -> Option<String>,
    ) -> Result<FoundPath, SetupError> {
        let trust = Trust {
            // In a user namespace root of the host has the id of all who are not in it.
            root: self.owner.map_or_else(overflow_id, |_| 0),
            hidden: &|directory| self.spec.guard.hides(directory),
            refusal,
        };
        let (path, place) = (Path::new(&wanted.host_path), &wanted.container_path);
        det_host_paths::open(path, trust).map_err(|error| {
            SetupError::task(format!("could not mount {path:?} at {place:?}: {error}"))
        })
    }

    /// Runs `act` with the task's user and group for file system access.
    fn with_task_identity<T>(&self, act: impl FnOnce() -> T) -> T {
        let Some((uid, gid)) = self.owner else {
            return act();
        };
        let before = (setfsuid(Uid::from_raw(uid)), setfsgid(Gid::from_raw(gid)));
        let result = act();
        setfsgid(before.1);
        setfsuid(before.0);
        result
    }

    /// Writes one of the task's files to the container directory and mounts it at its path.
    ///
    /// Only if the host has a file at that path, because nothing is created on the host. Without `ssh_config`, there is
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

    /// The place below the stage for a path of the sandbox, created if it does not exist. Nothing is created on the host.
    fn mount_point(
        &self,
        stage: &Path,
        own: &OwnMounts,
        target: &Path,
        is_directory: bool,
    ) -> io::Result<Walk> {
        let mut found = walk(stage, target)?;
        if found.missing.is_empty() {
            return Ok(found);
        }
        if !own.contain(found.at.as_fd())? {
            self.cover(stage, own, &found)?;
            found = walk(stage, target)?;
            if found.missing.is_empty() || !own.contain(found.at.as_fd())? {
                return Err(io::Error::other("the directories above it have changed"));
            }
        }
        let is_tasks = [RUN_DIR, TMP, VAR_TMP]
            .iter()
            .any(|dir| target.starts_with(dir));
        found.make(is_directory, self.owner.filter(|_| is_tasks))?;
        Ok(found)
    }

    /// Replaces a directory of the host by a new one with the same entries, in which more can be made.
    fn cover(&self, stage: &Path, own: &OwnMounts, place: &Walk) -> io::Result<()> {
        let before = of_descriptor(place.at.as_fd());
        let found = fs::metadata(&before)?;
        let names: Vec<_> = fs::read_dir(&before)?
            .take(MOST_ENTRIES + 1)
            .map(|entry| entry.map(|entry| entry.file_name()))
            .collect::<Result<_, _>>()?;
        if names.len() > MOST_ENTRIES {
            return Err(io::Error::other(format!(
                "the directory above it has more than {MOST_ENTRIES} entries; choose a place in another directory"
            )));
        }
        let options = format!("size=4m,mode={:o}", found.mode() & 0o7777);
        mount_new(
            "tmpfs",
            &before,
            MsFlags::MS_NOSUID | MsFlags::MS_NODEV,
            &options,
        )?;
        let new = walk(stage, &place.reached)?;
        if mount_of(new.at.as_fd())? == mount_of(place.at.as_fd())? || !new.missing.is_empty() {
            return Err(io::Error::other("the directories above it have changed"));
        }
        own.add(new.at.as_fd())?;
        let covering = of_descriptor(new.at.as_fd());
        chown(&covering, Some(found.uid()), Some(found.gid())).or_else(|error| {
            // In a user namespace most owners are not mapped; the task's own is.
            self.owner.map_or(Ok(()), |_| Err(error))
        })?;
        for name in names {
            // As in the root: an entry that cannot be bound is left out.
            drop(show(&before.join(&name), &covering.join(&name)));
        }
        Ok(())
    }
}

/// The path of the sandbox that a mount of this container path covers, or why nothing may be mounted there. Links of the host
/// are followed as the task will follow them; in the task's own directories there are none yet.
fn target_of(path: &Path) -> Result<PathBuf, &'static str> {
    let named = without_dots(path);
    let is_own = [RUN_DIR, TMP, VAR_TMP, "/run", "/dev"]
        .iter()
        .any(|dir| named.starts_with(dir));
    let target = if is_own {
        named.clone()
    } else {
        follow_links(&named)
    };
    let is_kernels = KERNELS.iter().any(|dir| target.starts_with(dir));
    if target == Path::new("/") {
        Err("that is the root of the task's file system")
    } else if is_kernels || target == Path::new("/dev") {
        Err("what it shows is the kernel's in every sandbox")
    } else if target != named && target.starts_with(RUN_DIR) {
        Err("it leads to the run directory of the task")
    } else {
        Ok(target)
    }
}

/// The id that a user namespace shows for all who are not in it.
fn overflow_id() -> u32 {
    const USUAL: u32 = 65534;
    let text = fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
    text.trim().parse().unwrap_or(USUAL)
}

fn unusable(source: &Path, place: &str, error: &io::Error) -> SetupError {
    SetupError::task(format!(
        "could not mount {source:?} at {place:?}: there is no such path on this agent's host that it can use ({error})"
    ))
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

fn make_stage(stage: &Path) -> io::Result<()> {
    make_directory(stage)?;
    mount(
        Some("det-root"),
        stage,
        Some("tmpfs"),
        MsFlags::empty(),
        Some("size=64m,mode=755"),
    )?;
    // Not included when its parent directory is bound into it.
    set_mount(stage, MsFlags::MS_UNBINDABLE)
}

/// Changes the owner of a tree; follows no link.
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
        // The root of a system that runs from its initial ramdisk cannot be replaced, only covered.
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
    use std::os::unix::fs::symlink;

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
