//! Directories of users that outlive their notebooks and shells.
//!
//! An administrator names a base directory of this host. The agent makes one directory for each user in it, which only this
//! user's tasks see: the base belongs to the agent and no task can name it, a directory in it or one above it (it is
//! [protected](det_taskspec::guard::HostGuard::protected)), so that no task can put a link where the agent makes and opens
//! directories. Each directory belongs to the account that the tasks run as and is open to no other user, which is checked at
//! every start.

use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use det_host_paths::{Trust, by_descriptor};
use det_ids::{ClusterId, UserId};
use det_taskspec::{ContainerSpec, Mount, TaskKind, TaskUser};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, fstat, mkdirat};
use nix::unistd::{Gid, Uid, fchownat, geteuid};

use super::store::RuntimeKind;

/// The directories of the users of one cluster.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UserDirectories<'a> {
    /// The base directory, without links.
    pub(crate) base: &'a Path,
    /// Numbers of users mean others in another cluster.
    pub(crate) cluster_id: &'a ClusterId,
}

impl UserDirectories<'_> {
    fn of(&self, owner: UserId) -> PathBuf {
        self.base
            .join(self.cluster_id.as_str())
            .join(owner.to_string())
    }
}

/// Where a user's directory is in a task, relative to the working directory. The working directory itself gets the files
/// of the task's context, and the home directory is the image's or the account's.
pub(crate) const PLACE: &str = "persistent";
/// All accounts may go through the base, and none but the agent's lists or changes it.
const BASE_MODE: u32 = 0o711;
const OWN_MODE: u32 = 0o700;
const OTHERS_WRITE: u32 = 0o022;

/// Opens the base directory, and makes it if it does not exist; returns its path without links. Blocking.
pub(crate) fn open_base(path: &Path) -> Result<PathBuf, String> {
    let found = det_host_paths::create(path, trust()).map_err(|error| error.to_string())?;
    if found.is_new {
        let mode = Permissions::from_mode(BASE_MODE);
        std::fs::set_permissions(found.by_descriptor(), mode).map_err(|error| error.to_string())?;
    }
    check_base(&fstat(found.descriptor.as_fd()).map_err(|error| error.to_string())?)?;
    if found.path == Path::new("/") {
        return Err("it is the root of the file system".to_owned());
    }
    Ok(found.path)
}

/// No directory that tasks could reach is above the base: links are followed as anywhere else.
fn trust() -> Trust<'static> {
    Trust {
        root: 0,
        hidden: &|_| false,
        refusal: &|_, _| None,
    }
}

fn check_base(found: &FileStat) -> Result<(), String> {
    let own = geteuid().as_raw();
    if found.st_uid != own || found.st_mode & OTHERS_WRITE != 0 {
        return Err(format!(
            "it belongs to uid {} and has mode {:o}, and must belong to uid {own}, which the agent runs as, and be writable \
             by no other account: chown {own} and chmod 711 it",
            found.st_uid,
            found.st_mode & 0o7777
        ));
    }
    Ok(())
}

/// The mount of a user's directory, if this task is to have one. Its source is not there yet.
pub(super) fn mount(
    spec: &ContainerSpec,
    users: Option<UserDirectories<'_>>,
    work_dir: &str,
) -> Option<Mount> {
    let users = users?;
    match spec.script.task_type {
        TaskKind::Notebook | TaskKind::Shell => {}
        TaskKind::Trial
        | TaskKind::Command
        | TaskKind::Tensorboard
        | TaskKind::CheckpointGc
        | TaskKind::Generic => return None,
    }
    let mount = Mount {
        host_path: users.of(spec.owner_id).to_string_lossy().into_owned(),
        container_path: PLACE.to_owned(),
        read_only: false,
        propagation: "rprivate".to_owned(),
        create: true,
        trusted: true,
        shared: None,
    };
    let target = mount.target(work_dir);
    let is_free = |other: &Mount| other.target(work_dir).trim_end_matches('/') != target;
    // What the task itself mounts there wins.
    spec.mounts.iter().all(is_free).then_some(mount)
}

/// Finds the directory of the user `owner`, whose tasks run as `user`, and makes it if it does not exist. Blocking.
pub(super) fn find(
    users: UserDirectories<'_>,
    owner: UserId,
    user: &TaskUser,
    runtime: RuntimeKind,
) -> Result<OwnedFd, String> {
    let is_name = |text: &str| !matches!(text, "" | "." | "..") && !text.contains('/');
    if owner == UserId::default() || !is_name(users.cluster_id.as_str()) {
        return Err("the master named no owner of this task, or no cluster".to_owned());
    }
    let account = Account::of(user, runtime)?;
    let failed = |error: Errno| error.to_string();
    let base = det_host_paths::open(users.base, trust()).map_err(|error| error.to_string())?;
    check_base(&fstat(base.descriptor.as_fd()).map_err(failed)?)?;
    let cluster = enter(&base.descriptor, users.cluster_id.as_str(), BASE_MODE)?;
    check_base(&fstat(cluster.as_fd()).map_err(failed)?)?;
    let own = enter(&cluster, &owner.to_string(), OWN_MODE)?;
    let found = fstat(own.as_fd()).map_err(failed)?;
    if found.st_uid != account.uid {
        // The agent made it and gave it to no account yet, now or before it was ended.
        if found.st_uid != geteuid().as_raw()
            || !is_empty(&own).map_err(|error| error.to_string())?
        {
            return Err(format!(
                "it belongs to uid {}, and tasks of its user run as uid {} here; if it is to be used by them, let an \
                 administrator change its owner (chown -R)",
                found.st_uid, account.uid
            ));
        }
        let (uid, gid) = (Uid::from_raw(account.uid), Gid::from_raw(account.gid));
        fchownat(
            own.as_fd(),
            "",
            Some(uid),
            Some(gid),
            AtFlags::AT_EMPTY_PATH,
        )
        .map_err(|error| format!("cannot give it to uid {}: {error}", account.uid))?;
    }
    if found.st_mode & 0o7777 != OWN_MODE {
        std::fs::set_permissions(by_descriptor(own.as_fd()), Permissions::from_mode(OWN_MODE))
            .map_err(|error| format!("cannot close it to others: {error}"))?;
    }
    Ok(own)
}

fn is_empty(directory: &OwnedFd) -> io::Result<bool> {
    let mut entries = std::fs::read_dir(by_descriptor(directory.as_fd()))?;
    Ok(entries.next().is_none())
}

/// Opens a directory in one that no other account writes to, and makes it if it does not exist.
fn enter(above: &OwnedFd, name: &str, mode: u32) -> Result<OwnedFd, String> {
    match mkdirat(above.as_fd(), name, Mode::from_bits_truncate(mode)) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(error) => return Err(format!("cannot create it: {error}")),
    }
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(above.as_fd(), name, flags, Mode::empty())
        .map_err(|error| format!("cannot open it as a directory: {error}"))
}

/// The account that a user's directory belongs to.
#[derive(Debug, PartialEq, Eq)]
struct Account {
    uid: u32,
    gid: u32,
}

impl Account {
    /// An agent that is not root gives nothing to others: its process tasks are itself.
    fn of(user: &TaskUser, runtime: RuntimeKind) -> Result<Self, String> {
        let (uid, gid) = (geteuid(), nix::unistd::getegid());
        if uid.is_root() {
            return Ok(Self {
                uid: user.uid,
                gid: user.gid,
            });
        }
        let is_other = user.uid != 0 && user.uid != uid.as_raw();
        if is_other && runtime != RuntimeKind::Process {
            return Err(format!(
                "an agent that is not root cannot give a directory to uid {}; run the agent as root",
                user.uid
            ));
        }
        Ok(Self {
            uid: uid.as_raw(),
            gid: gid.as_raw(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, lchown, symlink};
    use std::sync::LazyLock;

    use super::*;
    use crate::testing::container_spec;

    fn user(uid: u32) -> TaskUser {
        TaskUser {
            uid,
            gid: uid,
            ..TaskUser::default()
        }
    }

    fn is_root() -> bool {
        geteuid().is_root()
    }

    fn base() -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let base = open_base(&root.path().join("users/deep")).unwrap();
        (root, base)
    }

    static CLUSTER: LazyLock<ClusterId> = LazyLock::new(|| "k".into());

    fn of(base: &Path) -> UserDirectories<'_> {
        UserDirectories {
            base,
            cluster_id: &CLUSTER,
        }
    }

    fn find_as(base: &Path, owner: i64, uid: u32) -> Result<OwnedFd, String> {
        find(of(base), UserId(owner), &user(uid), RuntimeKind::Process)
    }

    #[test]
    fn the_base_is_the_agents_alone() {
        let (_root, base) = base();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!(mode(&base), BASE_MODE);
        assert_eq!(open_base(&base).unwrap(), base);
        std::fs::set_permissions(&base, PermissionsExt::from_mode(0o777)).unwrap();
        let error = open_base(&base).unwrap_err();
        assert!(error.contains("chmod 711"), "{error}");
        find_as(&base, 7, 54321).unwrap_err();
        open_base(Path::new("/")).unwrap_err();
    }

    #[test]
    fn each_user_has_a_directory_that_belongs_to_the_account_of_its_tasks() {
        let (_root, base) = base();
        for (owner, uid) in [(7, 54321), (8, 54321), (7, 54321)] {
            find_as(&base, owner, uid).unwrap();
            let made = std::fs::metadata(of(&base).of(UserId(owner))).unwrap();
            assert_eq!(made.mode() & 0o7777, OWN_MODE);
            if is_root() {
                assert_eq!((made.uid(), made.gid()), (uid, uid));
            }
        }
        // Its user has opened it to others.
        let own = base.join("k/7");
        std::fs::set_permissions(&own, PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::write(own.join("kept"), "").unwrap();
        find_as(&base, 7, 54321).unwrap();
        assert_eq!(std::fs::metadata(&own).unwrap().mode() & 0o7777, OWN_MODE);
        assert!(own.join("kept").exists());
        assert!(find_as(&base, 0, 54321).unwrap_err().contains("owner"));
        for cluster_id in ["", "..", "../k", "a/b"] {
            let users = UserDirectories {
                cluster_id: &cluster_id.into(),
                ..of(&base)
            };
            find(users, UserId(7), &user(54321), RuntimeKind::Process).unwrap_err();
        }
    }

    #[test]
    fn a_directory_of_another_account_is_not_handed_out() {
        let (_root, base) = base();
        if !is_root() {
            eprintln!("SKIPPED: only root can give directories away");
            return;
        }
        find_as(&base, 7, 54321).unwrap();
        let error = find_as(&base, 7, 54322).unwrap_err();
        assert!(error.contains("belongs to uid 54321"), "{error}");
        // With something in it, a directory of root's is that of a user who is root in Docker.
        std::fs::create_dir(base.join("k/8")).unwrap();
        std::fs::write(base.join("k/8/file"), "").unwrap();
        find_as(&base, 8, 54321).unwrap_err();
        // An agent was ended before it gave it away.
        std::fs::remove_file(base.join("k/8/file")).unwrap();
        find_as(&base, 8, 54321).unwrap();
        assert_eq!(std::fs::metadata(base.join("k/8")).unwrap().uid(), 54321);
    }

    #[test]
    fn a_link_in_its_place_is_not_followed() {
        let (root, base) = base();
        let other = root.path().join("other");
        std::fs::create_dir(&other).unwrap();
        std::fs::create_dir(base.join("k")).unwrap();
        symlink(&other, base.join("k/7")).unwrap();
        find_as(&base, 7, geteuid().as_raw()).unwrap_err();
        std::fs::write(base.join("k/8"), "").unwrap();
        find_as(&base, 8, geteuid().as_raw()).unwrap_err();
        if is_root() {
            // Nor one above the base that a user has made.
            let link = root.path().join("link");
            symlink(root.path().join("users"), &link).unwrap();
            lchown(&link, Some(54321), None).unwrap();
            open_base(&link.join("deep")).unwrap_err();
        }
    }

    #[test]
    fn notebooks_and_shells_have_it_unless_they_mount_something_else_there() {
        let mut spec = container_spec("c1", "true");
        let base = Some(of(Path::new("/srv/users")));
        assert_eq!(mount(&spec, base, "/work"), None, "a command");
        spec.script.task_type = TaskKind::Shell;
        assert_eq!(mount(&spec, None, "/work"), None);
        let own = mount(&spec, base, "/work").unwrap();
        assert_eq!(
            (own.host_path.as_str(), own.target("/work").as_str()),
            ("/srv/users/k/7", "/work/persistent")
        );
        spec.mounts.push(Mount {
            container_path: "/work/persistent/".into(),
            ..own
        });
        assert_eq!(mount(&spec, base, "/work"), None);
    }
}
