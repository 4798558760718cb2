//! Attacks from within a task, all of which must fail.

use std::fs;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};

use det_taskspec::sandbox::Isolation;
use det_taskspec::{ContainerExit, Entrypoint};

use crate::exited;
use crate::support::{self, Master, Task, need_sandbox};

/// Runs an attacker's program as `task`'s user; returns the lines of its output.
fn attack(spec: impl FnOnce(Task) -> Task, program: &str) -> Vec<String> {
    let master = Master::start();
    let task = spec(Task::shell(&master, program));
    let ended = task.run();
    assert_eq!(
        ended.exit(),
        exited(0),
        "{:?} {}",
        master.lines(),
        ended.notes()
    );
    master.lines()
}

const STATUS: &str = "grep -E '^(NoNewPrivs|Seccomp|CapInh|CapPrm|CapEff|CapBnd|CapAmb):' /proc/self/status | tr -d '\\t'";

#[test]
fn no_task_has_or_gains_rights_under_any_user() {
    need_sandbox!();
    for (uid, agent) in [(0, None), (54321, None), (0, Some(65534))] {
        let lines = attack(
            |mut task| {
                task.spec.user.uid = uid;
                task.spec.user.gid = uid;
                match agent {
                    Some(agent) => task.agent_uid(agent),
                    None => task,
                }
            },
            STATUS,
        );
        let none = |name: &str| format!("{name}:0000000000000000");
        assert_eq!(
            lines,
            [
                none("CapInh"),
                none("CapPrm"),
                none("CapEff"),
                none("CapBnd"),
                none("CapAmb"),
                "NoNewPrivs:1".to_owned(),
                "Seccomp:2".to_owned(),
            ],
            "uid {uid}, agent {agent:?}"
        );
    }
}

#[test]
fn root_in_a_task_writes_nothing_on_the_host_and_sees_no_devices() {
    need_sandbox!();
    let lines = attack(
        |task| task,
        "for place in /etc /usr /usr/bin /var /root /home /proc/sys/kernel/core_pattern /sys/kernel; do \
           if [ -d $place ]; then place=$place/det-attack; fi; \
           (echo x >> $place) 2> /dev/null && echo wrote $place; done; \
         ls -d /dev/[svx]d* /dev/nvme* /dev/kmsg /dev/mem /dev/loop* /dev/kvm /dev/fuse /run/docker.sock 2> /dev/null; \
         mount -t tmpfs x /tmp 2> /dev/null && echo mounted; unshare -Ur true 2> /dev/null && echo unshared; \
         chroot / true 2> /dev/null && echo chrooted; head -c1 /proc/kcore 2> /dev/null | wc -c; echo x > /dev/null; \
         head -c1 /dev/urandom | wc -c; echo shm > /dev/shm/x; cat /dev/shm/x",
    );
    assert_eq!(lines, ["0", "1", "shm"]);
    assert!(!std::path::Path::new("/etc/det-attack").exists());
}

#[test]
fn what_belongs_to_the_cluster_is_hidden_and_never_mounted() {
    need_sandbox!();
    let host = tempfile::Builder::new().tempdir_in("/var/lib").unwrap();
    let own = host.path().join("own");
    fs::create_dir(&own).unwrap();
    fs::write(own.join("det.db"), "secret").unwrap();
    fs::create_dir(own.join("python")).unwrap();
    fs::write(own.join("python/package"), "shown").unwrap();
    let hide = |mut task: Task| {
        task.spec.guard.protected.push(own.clone());
        task.spec.python_path = Some(own.join("python").to_str().unwrap().into());
        task
    };
    let program = format!(
        "cd {}; ls; cat python/package; (echo x > python/x) 2> /dev/null; (echo x > new) 2> /dev/null; \
         cat det.db 2> /dev/null; echo",
        own.display()
    );
    assert_eq!(attack(hide, &program), ["python", "shown"]);
    assert_eq!(fs::read_dir(&own).unwrap().count(), 2);
    for (source, reason) in [
        (own.as_path(), "belongs to the cluster"),
        (host.path(), "contains"),
        ("/proc".as_ref(), "allowed_host_paths"),
        ("/etc".as_ref(), "allowed_host_paths"),
        ("/dev/null".as_ref(), "device"),
    ] {
        let task = hide(Task::shell(&Master::start(), "true").mount(source, "/data", true));
        match task.run().exit() {
            ContainerExit::SetupFailed { message, .. } => {
                assert!(message.contains(reason), "{source:?}: {message}");
            }
            other => panic!("{source:?}: {other:?}"),
        }
    }
}

#[test]
fn a_mount_is_reached_with_the_rights_of_the_task() {
    need_sandbox!();
    let host = tempfile::Builder::new().tempdir_in("/var/lib").unwrap();
    let inner = host.path().join("inner");
    fs::create_dir(&inner).unwrap();
    fs::set_permissions(host.path(), PermissionsExt::from_mode(0o700)).unwrap();
    let mut task = Task::shell(&Master::start(), "true").mount(&inner, "/data", false);
    task.spec.user.uid = 54321;
    task.spec.user.gid = 54321;
    match task.run().exit() {
        ContainerExit::SetupFailed { message, .. } => {
            assert!(message.contains("Permission denied"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn no_link_of_a_task_leads_the_clusters_own_mount_elsewhere() {
    need_sandbox!();
    let host = tempfile::Builder::new().tempdir_in("/var/lib").unwrap();
    let secret = host.path().join("secret");
    fs::create_dir(&secret).unwrap();
    fs::write(secret.join("shadow"), "secret").unwrap();
    let storage = host.path().join("storage");
    symlink(&secret, &storage).unwrap();
    let mounted = || {
        let mut task =
            Task::shell(&Master::start(), "cat /data/shadow").mount(&storage, "/data", false);
        task.spec.mounts[0].trusted = true;
        task.run().exit()
    };
    assert_eq!(mounted(), exited(0), "a link that root has made");
    lchown(&storage, Some(54321), Some(54321)).unwrap();
    match mounted() {
        ContainerExit::SetupFailed { message, .. } => {
            assert!(
                message.contains("users of this host could have made"),
                "{message}"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn mount_points_leave_no_trace_on_the_host() {
    need_sandbox!();
    let host = tempfile::tempdir().unwrap();
    fs::write(host.path().join("there"), "").unwrap();
    let base = tempfile::Builder::new().tempdir_in("/var/lib").unwrap();
    fs::write(base.path().join("before"), "before\n").unwrap();
    let file = host.path().join("there");
    let lines = attack(
        |task| {
            task.mount(host.path(), "/etc/det-attack", false)
                .mount(&file, "/etc/nologin-det-attack", false)
                .mount(
                    host.path(),
                    base.path().join("a/b").to_str().unwrap(),
                    false,
                )
                .mount(host.path(), base.path().join("c").to_str().unwrap(), false)
                .mount(host.path(), "/tmp/shared", false)
                .mount(host.path(), "/tmp/shared/new", false)
        },
        &format!(
            "ls /etc/det-attack; test -f /etc/nologin-det-attack && echo file; test -f /etc/passwd && echo passwd; \
             cd {}; cat before; ls a/b c; ls /tmp/shared/new",
            base.path().display()
        ),
    );
    assert_eq!(
        lines,
        [
            "there", "file", "passwd", "before", "a/b:", "there", "", "c:", "there", "there"
        ]
    );
    for path in ["/etc/det-attack", "/etc/nologin-det-attack"] {
        assert!(!std::path::Path::new(path).exists(), "{path}");
    }
    assert_eq!(fs::read_dir(base.path()).unwrap().count(), 1);
    assert_eq!(fs::read_dir(host.path()).unwrap().count(), 1);
}

#[test]
fn interpreters_are_seen_where_the_home_directory_is_not() {
    need_sandbox!();
    let home = tempfile::Builder::new().tempdir_in("/var/lib").unwrap();
    fs::create_dir_all(home.path().join("venv/bin")).unwrap();
    fs::write(home.path().join("venv/bin/tool"), "tool\n").unwrap();
    fs::write(home.path().join("key"), "secret\n").unwrap();
    let lines = attack(
        |mut task| {
            task.spec.guard.homes.push(home.path().to_owned());
            task.spec.exposed.push(home.path().join("venv"));
            task
        },
        &format!(
            "cd {}; ls; cat venv/bin/tool; (echo x > venv/x) 2> /dev/null; echo x > own && cat own",
            home.path().display()
        ),
    );
    assert_eq!(lines, ["venv", "tool", "x"]);
    assert!(!home.path().join("own").exists());
}

#[test]
fn the_check_finds_nothing_open() {
    need_sandbox!();
    for uid in [0, 54321] {
        let dir = tempfile::tempdir().unwrap();
        let own = tempfile::Builder::new().tempdir_in("/var/lib").unwrap();
        fs::write(own.path().join("det.db"), "secret").unwrap();
        // A file that is named alone is covered by an empty one, which can be opened.
        let beside = tempfile::Builder::new().tempdir_in("/var/lib").unwrap();
        let named = beside.path().join("agent.yaml");
        fs::write(&named, "secret").unwrap();
        for path in [beside.path(), &named] {
            let readable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(path, readable).unwrap();
        }
        let mut task = Task::shell(&Master::start(), "true");
        task.spec.user.uid = uid;
        task.spec.user.gid = uid;
        task.spec.guard.protected.push(own.path().to_owned());
        task.spec.guard.protected.push(named);
        let rows = task.check(dir.path());
        assert!(rows.len() > 10, "{rows:?}");
        let open: Vec<_> = rows
            .iter()
            .filter(|row| row.outcome == Isolation::Open)
            .map(|row| row.what.as_str())
            .collect();
        let expected: &[&str] = if uid == 0 { &["identity"] } else { &[] };
        assert_eq!(open, expected, "{rows:?}");
    }
}

#[test]
fn nothing_is_mounted_over_the_kernels_file_systems() {
    need_sandbox!();
    let host = tempfile::tempdir().unwrap();
    fs::set_permissions(host.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for place in ["/proc", "/proc/self", "/sys/kernel", "/dev", "/usr/../proc"] {
        let task = Task::shell(&Master::start(), "true").mount(host.path(), place, true);
        match task.run().exit() {
            ContainerExit::SetupFailed { message, .. } => {
                assert!(message.contains("is the kernel's"), "{place}: {message}");
            }
            other => panic!("{place}: {other:?}"),
        }
    }
}

#[test]
fn the_supervisors_file_is_not_changed_through_the_process_that_runs_it() {
    need_sandbox!();
    // These are the users to whom the file belongs.
    for agent in [None, Some(65534)] {
        let lines = attack(
            |mut task| {
                (task.spec.user.uid, task.spec.user.gid) = (0, 0);
                match agent {
                    Some(agent) => task.agent_uid(agent),
                    None => task,
                }
            },
            "chmod 0 /proc/1/exe 2>/dev/null && echo changed; ls -l /proc/1/exe >/dev/null 2>&1 && echo seen; echo done",
        );
        assert_eq!(lines, ["done"], "{agent:?}");
    }
}

/// Startup hooks inherit a descriptor of it, by which the entrypoint of a shell starts.
#[test]
fn the_supervisors_file_is_not_changed_through_a_descriptor() {
    need_sandbox!();
    // These are the users to whom the file belongs.
    for agent in [None, Some(65534)] {
        let master = Master::start();
        let mut task = Task::shell(&master, "");
        (task.spec.user.uid, task.spec.user.gid) = (0, 0);
        if let Some(agent) = agent {
            task = task.agent_uid(agent);
        }
        task.script.entrypoint = Entrypoint::SshServer { port: 1 };
        task.script.pool_startup_hook = Some(
            "for fd in /proc/$$/fd/*; do if test -f $fd && test -x $fd; then\n\
             echo found; chmod 0700 $fd 2>&1 | grep -o 'Read-only file system';\n\
             fi; done; exit 9"
                .into(),
        );
        let ended = task.run();
        let lines = master.lines();
        assert_eq!(
            lines.get(..2),
            Some(&["found".to_owned(), "Read-only file system".to_owned()][..]),
            "{agent:?}: {lines:?} {}",
            ended.notes()
        );
    }
}

#[test]
fn no_mount_point_is_made_through_a_link_or_on_the_host() {
    need_sandbox!();
    let host = tempfile::tempdir_in("/srv").unwrap();
    let (mine, victim, data) = (
        host.path().join("mine"),
        host.path().join("victim"),
        host.path().join("data"),
    );
    for directory in [&mine, &victim, &data] {
        fs::create_dir(directory).unwrap();
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::set_permissions(host.path(), fs::Permissions::from_mode(0o755)).unwrap();
    symlink(&victim, mine.join("out")).unwrap();
    symlink("..", mine.join("up")).unwrap();
    symlink("/proc", mine.join("kernel")).unwrap();
    let file = data.join("file");
    fs::write(&file, "").unwrap();
    let outside = victim.display().to_string();
    let kernel = mine.join("kernel").display().to_string();
    for (source, place) in [
        (&data, "/tmp/out/new"),
        (&file, "/tmp/out/file"),
        (&data, "/tmp/up/proc"),
        (&data, "/tmp/up/run/determined/info"),
        (&data, "/dev/fd/3/new"),
        (&data, kernel.as_str()),
    ] {
        let task = Task::shell(&Master::start(), "true")
            .mount(&mine, "/tmp", false)
            .mount(source, place, true);
        match task.run().exit() {
            ContainerExit::SetupFailed { message, .. } | ContainerExit::StartFailed { message } => {
                assert!(
                    message.contains("is a link") || message.contains("is the kernel's"),
                    "{place}: {message}"
                );
            }
            other => panic!("{place}: {other:?}"),
        }
    }
    assert_eq!(fs::read_dir(&victim).unwrap().count(), 0, "{outside}");
    // What is below a directory of the host is made in the sandbox alone.
    let lines = attack(
        |task| {
            task.mount(&mine, "/tmp", false)
                .mount(&data, "/tmp/new/below", true)
        },
        "ls /tmp/new/below; ls -d /tmp/out",
    );
    assert_eq!(lines, ["file", "/tmp/out"]);
    let mut left: Vec<_> = fs::read_dir(&mine)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["kernel", "out", "up"]);
}
