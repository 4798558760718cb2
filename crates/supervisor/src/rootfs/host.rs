//! The part of the host's file system that a sandbox shows, most of it read-only.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use det_taskspec::DeviceMapping;
use det_taskspec::guard::PROGRAMS;
use nix::mount::MsFlags;

use super::points::{
    Mounts, bind, inside, make_directories, make_directory, make_read_only, mount_new, set_mount,
    show,
};
use super::{RootFs, TMP, VAR_TMP, attempt};
use crate::failure::SetupError;

/// Entries of the host's root that are replaced in a sandbox.
const OWN_ENTRIES: [&str; 5] = ["dev", "proc", "run", "sys", "tmp"];
/// Directories of the system that no task writes to, in addition to those with programs.
const READ_ONLY: [&str; 2] = ["/boot", "/etc"];
/// Entries of `/run` that programs need: name resolution, the driver's daemon, the programs of one distribution.
const OF_RUN: [&str; 8] = [
    "/run/NetworkManager/resolv.conf",
    "/run/current-system",
    "/run/nscd",
    "/run/nvidia-persistenced",
    "/run/opengl-driver",
    "/run/resolvconf",
    "/run/systemd/resolve",
    "/run/systemd/userdb",
];
/// Device files that every program expects.
const DEVICES: [&str; 6] = ["full", "null", "random", "tty", "urandom", "zero"];
const DEVICE_LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("ptmx", "pts/ptmx"),
    ("stderr", "/proc/self/fd/2"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
];
/// Information of the kernel about itself and other processes that only administrators need.
const MASKED: [&str; 20] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/keys",
    "/proc/kmsg",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
    "/sys/fs/bpf",
    "/sys/fs/pstore",
    "/sys/hypervisor",
    "/sys/kernel/debug",
    "/sys/kernel/security",
    "/sys/kernel/tracing",
];
/// Files through which the kernel is configured.
const PROC_READ_ONLY: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// Flags of file systems that contain data only.
fn data_only() -> MsFlags {
    MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC
}

impl RootFs<'_> {
    /// Mounts everything that does not depend on the task's own mounts.
    pub(super) fn show_host(&self, stage: &Path) -> Result<(), SetupError> {
        bind_entries(Path::new("/"), stage, &OWN_ENTRIES)?;
        self.make_system_read_only(stage)?;
        show_sys(stage)?;
        show_run(stage)?;
        mount_proc(stage)?;
        self.make_dev(stage)?;
        for (path, own) in [(TMP, "tmp"), (VAR_TMP, "var-tmp")] {
            self.mount_scratch(stage, Path::new(path), own)?;
        }
        for path in MASKED {
            mask(stage, Path::new(path))?;
        }
        for path in PROC_READ_ONLY {
            let point = inside(stage, Path::new(path));
            if point.exists() {
                attempt("make read-only", &point, || {
                    bind(&point, &point)?;
                    make_read_only(&point)
                })?;
            }
        }
        self.hide_homes(stage)
    }

    /// A task that has the rights of the agent's own account, or of root, could write wherever these can: for it the
    /// whole host is read-only. Other tasks are restricted by the owners and modes of files.
    fn make_system_read_only(&self, stage: &Path) -> Result<(), SetupError> {
        let whole = self.owner.is_none_or(|(uid, _)| uid == 0);
        attempt("make the host read-only", stage, || {
            let mounts = Mounts::read()?;
            if whole {
                // All but the stage itself, in which mount points are still created.
                for entry in fs::read_dir(stage)? {
                    mounts.make_read_only(&entry?.path())?;
                }
                return Ok(());
            }
            for path in PROGRAMS.iter().chain(&READ_ONLY) {
                mounts.make_read_only(&inside(stage, Path::new(path)))?;
            }
            Ok(())
        })
    }

    /// A directory of the task's own on the disk of the container directory.
    fn mount_scratch(&self, stage: &Path, path: &Path, own: &str) -> Result<(), SetupError> {
        let (source, target) = (self.dir.join(own), inside(stage, path));
        attempt("mount the task's own directory", &target, || {
            // A link of the host would lead out of the stage.
            if fs::symlink_metadata(&target).is_ok_and(|found| found.is_symlink()) {
                return Ok(());
            }
            make_directory(&source)?;
            fs::set_permissions(&source, Permissions::from_mode(0o1777))?;
            make_directory(&target)?;
            bind(&source, &target)
        })
    }

    /// `/dev` with what every program expects and what this task was given.
    fn make_dev(&self, stage: &Path) -> Result<(), SetupError> {
        let dev = inside(stage, Path::new("/dev"));
        attempt("make /dev", &dev, || {
            make_directory(&dev)?;
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
            mount_new("tmpfs", &dev, flags, "mode=755,size=64k")?;
            for name in DEVICES {
                let from = Path::new("/dev").join(name);
                if from.exists() {
                    show(&from, &dev.join(name))?;
                }
            }
            for (name, target) in DEVICE_LINKS {
                symlink(target, dev.join(name))?;
            }
            for name in ["mqueue", "pts", "shm"] {
                fs::create_dir(dev.join(name))?;
            }
            let options = match self.spec.shm_size_bytes {
                0 => "mode=1777".to_owned(),
                bytes => format!("size={bytes},mode=1777"),
            };
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
            mount_new("tmpfs", &dev.join("shm"), flags, &options)
        })?;
        // Servers of terminals, sshd among them, want this group for them, and could not set it themselves. In a user
        // namespace it does not exist.
        let group = nix::unistd::Group::from_name("tty").ok().flatten();
        let is_known = self.owner.is_some() && self.spec.shown_ids.is_none();
        let group = group.filter(|_| is_known);
        let group = group.map_or_else(String::new, |group| format!(",gid={}", group.gid));
        let terminals = mount_new(
            "devpts",
            &dev.join("pts"),
            MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC,
            &format!("newinstance,ptmxmode=0666,mode=0620{group}"),
        );
        let queues = mount_new("mqueue", &dev.join("mqueue"), data_only(), "");
        for (what, mounted) in [("terminals", terminals), ("message queues", queues)] {
            if let Err(error) = mounted {
                self.notes
                    .note(format!("the task has no {what} of its own: {error}"));
            }
        }
        for device in &self.spec.devices {
            show_device(stage, device)?;
        }
        Ok(())
    }

    /// Hides the home directory of the agent's account and the cluster's files, except what interpreters need of them.
    fn hide_homes(&self, stage: &Path) -> Result<(), SetupError> {
        let guard = &self.spec.guard;
        for (index, home) in guard.homes.iter().enumerate() {
            let source = self.dir.join(format!("home-{index}"));
            let point = inside(stage, home);
            // One below `/tmp` is hidden with the host's `/tmp`.
            if point.is_dir() {
                attempt("mount a home directory", home, || {
                    make_directory(&source)?;
                    fs::set_permissions(&source, Permissions::from_mode(0o755))?;
                    bind(&source, &point)
                })?;
            }
        }
        let of_cluster = |path: &Path| guard.protected.iter().any(|own| path.starts_with(own));
        let own = [&self.spec.python_dir, &self.spec.python_path];
        let own: Vec<&Path> = own.into_iter().flatten().map(Path::new).collect();
        for path in &self.spec.exposed {
            if !of_cluster(path) {
                self.expose(stage, path)?;
            }
        }
        let mut hidden = Vec::new();
        for path in &guard.protected {
            hidden.extend(cover(stage, path)?);
        }
        for path in own {
            self.expose(stage, path)?;
        }
        for point in hidden {
            attempt("hide", &point, || {
                set_mount(
                    &point,
                    data_only() | MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY,
                )
            })?;
        }
        Ok(())
    }

    /// Mounts a directory read-only at a path that the sandbox has covered.
    fn expose(&self, stage: &Path, path: &Path) -> Result<(), SetupError> {
        let guard = &self.spec.guard;
        let scratch = [Path::new(TMP), Path::new(VAR_TMP), Path::new("/run")];
        let taken = guard
            .protected
            .iter()
            .chain(&guard.homes)
            .map(PathBuf::as_path)
            .chain(scratch);
        let taken: Vec<&Path> = taken.collect();
        let Ok(real) = path.canonicalize() else {
            return Ok(());
        };
        for place in [path, real.as_path()] {
            let is_below = |above: &&&Path| place.starts_with(above) && place != **above;
            // A directory that contains a hidden one would show it again.
            let contains = taken.iter().any(|own| own.starts_with(&real));
            if contains || taken.iter().find(is_below).is_none() {
                continue;
            }
            let point = inside(stage, place);
            attempt("show what the interpreter needs", place, || {
                make_directories(stage, &point, None)?;
                bind(&real, &point)?;
                make_read_only(&point)
            })?;
        }
        Ok(())
    }
}

/// Shows the entries of a host directory in `target`, except those to `skip`.
///
/// An entry that cannot be bound is left out: it may be another user's FUSE mount, or have been removed meanwhile.
fn bind_entries(source: &Path, target: &Path, skip: &[&str]) -> Result<(), SetupError> {
    attempt("list", source, || {
        for entry in fs::read_dir(source)? {
            let name = entry?.file_name();
            if skip.iter().any(|skipped| name == *skipped) {
                continue;
            }
            // No message: the task will get an error when it opens the path.
            drop(show(&source.join(&name), &target.join(&name)));
        }
        Ok(())
    })
}

fn show_sys(stage: &Path) -> Result<(), SetupError> {
    let (sys, point) = (Path::new("/sys"), inside(stage, Path::new("/sys")));
    attempt("show /sys", &point, || {
        make_directory(&point)?;
        if !sys.is_dir() {
            return Ok(());
        }
        bind(sys, &point)?;
        make_read_only(&point)
    })
}

/// A `/run` with few entries of the host's: most of them are sockets of its services.
fn show_run(stage: &Path) -> Result<(), SetupError> {
    let run = inside(stage, Path::new("/run"));
    attempt("make /run", &run, || make_directory(&run))?;
    // If name resolution is configured by a file outside the usual directories.
    let resolver = Path::new("/etc/resolv.conf").canonicalize().ok();
    let resolver = resolver.filter(|path| path.starts_with("/run"));
    for path in OF_RUN.into_iter().map(Path::new).chain(resolver.as_deref()) {
        let point = inside(stage, path);
        if !path.exists() || point.exists() {
            continue;
        }
        attempt("show", path, || {
            make_directory(point.parent().unwrap_or(&run))?;
            show(path, &point)?;
            if point.is_symlink() {
                return Ok(());
            }
            make_read_only(&point)
        })?;
    }
    Ok(())
}

fn mount_proc(stage: &Path) -> Result<(), SetupError> {
    let proc = inside(stage, Path::new("/proc"));
    attempt("mount /proc", &proc, || {
        make_directory(&proc)?;
        mount_new("proc", &proc, data_only(), "")
    })
}

/// Shows a device file of the host.
fn show_device(stage: &Path, device: &DeviceMapping) -> Result<(), SetupError> {
    let (from, to) = (
        Path::new(&device.host_path),
        Path::new(&device.container_path),
    );
    let failed = |reason: String| {
        SetupError::task(format!(
            "could not give the task the device {from:?} as {to:?}: {reason}"
        ))
    };
    let kind = fs::metadata(from).map_err(|error| failed(error.to_string()))?;
    let is_device = kind.file_type().is_char_device() || kind.file_type().is_block_device();
    if !is_device || !to.starts_with("/dev") || super::without_dots(to) != to {
        return Err(failed(
            "it has to be a device file, and its place below /dev".to_owned(),
        ));
    }
    let point = inside(stage, to);
    let place = || {
        make_directory(point.parent().unwrap_or(stage))?;
        if !point.exists() {
            File::create_new(&point)?;
        }
        bind(&from.canonicalize()?, &point)
    };
    place().map_err(|error: io::Error| failed(error.to_string()))
}

/// Covers information of the kernel: a directory by an empty one, a file by one that is always empty.
fn mask(stage: &Path, path: &Path) -> Result<(), SetupError> {
    let point = inside(stage, path);
    let Ok(found) = fs::symlink_metadata(&point) else {
        return Ok(());
    };
    attempt("cover", path, || {
        if found.is_dir() {
            mount_new(
                "tmpfs",
                &point,
                data_only() | MsFlags::MS_RDONLY,
                "size=4k,mode=755",
            )
        } else {
            bind(Path::new("/dev/null"), &point)
        }
    })
}

/// Covers a directory by one that can be made read-only later, which is returned, or a file by one that is always
/// empty.
fn cover(stage: &Path, path: &Path) -> Result<Option<PathBuf>, SetupError> {
    let point = inside(stage, path);
    let Ok(found) = fs::symlink_metadata(&point) else {
        return Ok(None);
    };
    if !found.is_dir() {
        return mask(stage, path).map(|()| None);
    }
    attempt("hide", path, || {
        mount_new("tmpfs", &point, data_only(), "size=64k,mode=755")
    })?;
    Ok(Some(point))
}
