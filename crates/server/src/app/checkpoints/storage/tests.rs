use std::os::unix::fs::{chown, symlink};

use det_config::container::BindMount;

use super::*;
use det_checkpoint_files::tree::{DEEPEST, open_file};
use nix::sys::stat::{Mode, mkdirat};

const UUID: &str = "0b6c5d1e-7f7a-4f3e-9c55-3f0f2d9b8a11";

fn me() -> Owner {
    Owner {
        uid: geteuid().as_raw(),
        user_id: UserId(1),
    }
}

fn world() -> (tempfile::TempDir, Storage) {
    let root = tempfile::tempdir().unwrap();
    let checkpoint = root.path().join(UUID);
    std::fs::create_dir_all(checkpoint.join("sub/deep")).unwrap();
    std::fs::write(checkpoint.join("model.pt"), b"12345").unwrap();
    std::fs::write(checkpoint.join("sub/a.txt"), b"1").unwrap();
    std::fs::write(checkpoint.join("sub/deep/b.txt"), b"12").unwrap();
    let storage = Storage::at(root.path());
    (root, storage)
}

fn patterns(texts: &[&str]) -> Vec<Pattern> {
    texts.iter().map(|t| Pattern::parse(t).unwrap()).collect()
}

#[test]
fn removing_twice_is_removing_once() {
    let (root, storage) = world();
    storage.remove(&UUID.into(), me()).unwrap();
    assert!(!root.path().join(UUID).exists());
    storage.remove(&UUID.into(), me()).unwrap();
    assert!(storage.open(&UUID.into(), me()).unwrap().is_none());
}

#[test]
fn matching_files_go_and_the_rest_is_reported() {
    let (_root, storage) = world();
    let left = storage
        .remove_matching(&UUID.into(), me(), &patterns(&["**/*.txt"]))
        .unwrap();
    let expected = [("model.pt", 5), ("sub/", 0), ("sub/deep/", 0)];
    assert_eq!(
        left,
        expected.map(|(path, size)| (path.to_owned(), size)).into()
    );
}

#[test]
fn a_matching_directory_goes_with_all_below_it() {
    let (root, storage) = world();
    let left = storage
        .remove_matching(&UUID.into(), me(), &patterns(&["sub", "*.pt"]))
        .unwrap();
    assert!(left.is_empty());
    assert!(
        !root.path().join(UUID).exists(),
        "an empty checkpoint leaves no directory"
    );
}

#[test]
fn links_are_removed_and_never_followed() {
    let (root, storage) = world();
    let outside = root.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("precious.txt"), b"x").unwrap();
    symlink(&outside, root.path().join(UUID).join("link")).unwrap();
    symlink(
        outside.join("precious.txt"),
        root.path().join(UUID).join("file.txt"),
    )
    .unwrap();
    let directory = storage.open(&UUID.into(), me()).unwrap().unwrap();
    assert!(open_file(directory.as_fd(), Path::new("file.txt")).is_err());
    assert!(open_file(directory.as_fd(), Path::new("link/precious.txt")).is_err());
    let names: Vec<_> = list(directory.as_fd())
        .unwrap()
        .into_iter()
        .map(|e| e.path)
        .collect();
    assert!(!names.contains(&PathBuf::from("link/precious.txt")));
    storage
        .remove_matching(
            &UUID.into(),
            me(),
            &patterns(&["link/*", "**/precious.txt"]),
        )
        .unwrap();
    storage.remove(&UUID.into(), me()).unwrap();
    assert!(outside.join("precious.txt").exists());
}

#[test]
fn a_checkpoint_that_is_a_link_is_not_opened() {
    let (root, storage) = world();
    let other = "1b6c5d1e-7f7a-4f3e-9c55-3f0f2d9b8a11";
    symlink("/etc", root.path().join(other)).unwrap();
    assert!(storage.open(&other.into(), me()).is_err());
    storage.remove(&other.into(), me()).unwrap();
    assert!(Path::new("/etc").exists());
}

#[test]
fn storage_that_is_not_here_is_an_error_that_names_it() {
    let storage = Storage::at(Path::new("/nowhere/at/all"));
    let error = storage.remove(&UUID.into(), me()).unwrap_err();
    assert_eq!(
        error.message,
        "test storage cannot be seen from the master's host: looked for \"/nowhere/at/all\""
    );
}

#[test]
fn only_uuids_name_checkpoints() {
    let (_root, storage) = world();
    for name in ["..", "/etc", "a/b", "", "0b6c5d1e7f7a4f3e9c553f0f2d9b8a11"] {
        assert_eq!(
            storage.remove(&name.into(), me()).unwrap_err().kind,
            ErrorKind::Invalid,
            "{name}"
        );
    }
}

#[test]
fn a_container_s_directory_is_found_through_its_bind_mounts() {
    let mount = |host: &str, container: &str| BindMount {
        host_path: host.into(),
        container_path: container.into(),
        read_only: false,
        propagation: "rprivate".into(),
    };
    let mounts = [mount("/data", "/ckpt"), mount("/fast", "/ckpt/hot")];
    for (path, expected) in [
        ("/ckpt", "/data"),
        ("/ckpt/a", "/data/a"),
        ("/ckpt/hot/a", "/fast/a"),
        ("/ckpts", "/ckpts"),
        ("/other", "/other"),
    ] {
        assert_eq!(on_host(path, &mounts), PathBuf::from(expected), "{path}");
    }
}

fn allowed(data_dir: &Path, paths: &[&Path]) -> AllowedPaths {
    AllowedPaths {
        allowed: paths.iter().map(|path| (*path).to_owned()).collect(),
        shared: None,
        data_dir: data_dir.to_owned(),
    }
}

#[test]
fn only_what_an_administrator_allowed_is_storage() {
    let root = tempfile::tempdir().unwrap();
    let allowed = allowed(&root.path().join("data"), &[&root.path().join("ok")]);
    let storage = |path: &str| Storage::below("s".into(), &root.path().join(path), &allowed);
    for (path, is_allowed) in [
        ("ok", true),
        ("ok/a/b", true),
        ("okay", false),
        ("", false),
        ("ok/../data", false),
        ("data/containers", false),
    ] {
        match storage(path) {
            Ok(_) => assert!(is_allowed, "{path}"),
            Err(error) => {
                assert!(!is_allowed, "{path}");
                let hint = error.hint.unwrap();
                assert!(hint.contains("security.allowed_host_paths"), "{hint}");
            }
        }
    }
}

#[test]
fn data_directories_are_no_storage_even_below_an_allowed_path() {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("data");
    for directory in [
        "checkpoints",
        "agents/a/containers",
        "other-agent/containers",
    ] {
        std::fs::create_dir_all(data.join(directory).join(UUID)).unwrap();
    }
    let elsewhere = root.path().join("elsewhere");
    std::fs::create_dir_all(elsewhere.join("containers").join(UUID)).unwrap();
    std::fs::write(elsewhere.join("agent.lock"), "").unwrap();
    let allowed = allowed(&data, &[root.path()]);
    let open = |path: &Path| {
        Storage::below("s".into(), path, &allowed)
            .and_then(|storage| storage.open(&UUID.into(), me()))
    };
    for path in ["", "agents/a/containers"] {
        let error = open(&data.join(path)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Forbidden, "{path}: {error}");
    }
    let error = open(&elsewhere.join("containers")).unwrap_err();
    assert!(error.message.contains("data directory"), "{error}");
    let own = open(&data.join(OWN_DIRECTORY)).unwrap();
    assert!(own.is_some(), "its own checkpoint directory is storage");
}

#[test]
fn a_lock_in_a_directory_that_others_write_to_hides_nothing() {
    use std::os::unix::fs::PermissionsExt;
    let (root, storage) = world();
    std::fs::write(root.path().join("agent.lock"), "").unwrap();
    let everybody = std::fs::Permissions::from_mode(0o1777);
    std::fs::set_permissions(root.path(), everybody).unwrap();
    assert!(storage.open(&UUID.into(), me()).unwrap().is_some());
}

#[test]
fn a_link_between_the_allowed_path_and_the_checkpoint_is_not_followed() {
    let (root, _storage) = world();
    let link = root.path().join("link");
    symlink(root.path().join("."), &link).unwrap();
    let allowed = allowed(&root.path().join("data"), &[root.path()]);
    let storage = Storage::below("s".into(), &link, &allowed).unwrap();
    assert!(storage.open(&UUID.into(), me()).is_err());
    assert!(storage.remove(&UUID.into(), me()).is_err());
    assert!(root.path().join(UUID).exists());
}

#[test]
fn a_directory_of_another_user_is_neither_opened_nor_removed() {
    let (root, storage) = world();
    let other = Owner {
        uid: me().uid + 1000,
        user_id: UserId(1),
    };
    if geteuid().is_root() {
        for error in [
            storage.open(&UUID.into(), other).unwrap_err(),
            storage.remove(&UUID.into(), other).unwrap_err(),
            storage
                .remove_matching(&UUID.into(), other, &patterns(&["*.pt"]))
                .unwrap_err(),
        ] {
            assert_eq!(error.kind, ErrorKind::Forbidden, "{error}");
        }
        let file = root.path().join(UUID).join("model.pt");
        assert!(file.exists());
    } else {
        // Everything that an unprivileged agent runs has one user id.
        assert!(storage.open(&UUID.into(), other).unwrap().is_some());
    }
}

const CLUSTER: &str = "1b6c5d1e-7f7a-4f3e-9c55-3f0f2d9b8a11";

#[test]
fn tensorboard_files_of_another_user_are_left() {
    let (root, storage) = world();
    let files = root
        .path()
        .join(CLUSTER)
        .join(TENSORBOARD)
        .join("1/trial/1");
    std::fs::create_dir_all(&files).unwrap();
    std::fs::write(files.join("events"), b"x").unwrap();
    let other = Owner {
        uid: me().uid + 1000,
        user_id: UserId(1),
    };
    let remove =
        |owner| storage.remove_tensorboard(&CLUSTER.into(), ExperimentId(1), &[TrialId(1)], owner);
    if geteuid().is_root() {
        let error = remove(other).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Forbidden, "{error}");
        assert!(files.join("events").exists());
    }
    remove(me()).unwrap();
    let common = root.path().join(CLUSTER).join(TENSORBOARD);
    assert_eq!(std::fs::read_dir(common).unwrap().count(), 0);
    remove(me()).unwrap();
}

#[test]
fn directories_that_were_moved_into_another_user_s_tensorboard_files_are_left() {
    if !geteuid().is_root() {
        // Everything that an unprivileged agent runs has one user id.
        return;
    }
    let (root, storage) = world();
    let files = root.path().join(CLUSTER).join(TENSORBOARD).join("1");
    std::fs::create_dir_all(files.join("trial/1/moved/trial")).unwrap();
    let moved = files.join("trial/1/moved");
    std::fs::write(moved.join("trial/events"), b"x").unwrap();
    std::fs::write(files.join("trial/1/events"), b"x").unwrap();
    for (path, uid) in [
        (files.clone(), 1000),
        (files.join("trial"), 1000),
        (files.join("trial/1"), 1000),
        (moved.join("trial"), 2000),
        (moved.clone(), 2000),
    ] {
        chown(path, Some(uid), None).unwrap();
    }
    let owner = Owner {
        uid: 1000,
        user_id: UserId(1),
    };
    let error = storage
        .remove_tensorboard(&CLUSTER.into(), ExperimentId(1), &[TrialId(1)], owner)
        .unwrap_err();
    assert!(error.message.contains("user id 2000"), "{error}");
    assert!(moved.join("trial/events").exists());
}

/// Whom the common directory belongs to can give an experiment's directory the name of another experiment, or put it where
/// a trial's is expected.
#[test]
fn tensorboard_files_of_another_experiment_are_left() {
    let (root, storage) = world();
    let common = root.path().join(CLUSTER).join(TENSORBOARD);
    let remove =
        |id| storage.remove_tensorboard(&CLUSTER.into(), ExperimentId(id), &[TrialId(id)], me());
    let renamed = common.join("1/trial/2/events");
    std::fs::create_dir_all(renamed.parent().unwrap()).unwrap();
    std::fs::write(&renamed, b"x").unwrap();
    let error = remove(1).unwrap_err();
    assert!(error.message.contains("1\" in"), "{error}");
    assert!(renamed.exists());
    if geteuid().is_root() {
        let put = common.join("3/trial/3/events");
        std::fs::create_dir_all(put.parent().unwrap()).unwrap();
        std::fs::write(&put, b"x").unwrap();
        chown(common.join("3"), Some(1000), None).unwrap();
        chown(common.join("3/trial"), Some(1000), None).unwrap();
        assert_eq!(remove(3).unwrap_err().kind, ErrorKind::Forbidden);
        assert!(put.exists());
    }
}

#[test]
fn directories_of_another_user_in_a_checkpoint_are_not_emptied() {
    if !geteuid().is_root() {
        // Everything that an unprivileged agent runs has one user id.
        return;
    }
    let (root, storage) = world();
    let checkpoint = root.path().join(UUID);
    let moved = checkpoint.join("sub/moved");
    std::fs::create_dir(&moved).unwrap();
    std::fs::write(moved.join("precious"), b"x").unwrap();
    for path in [
        "",
        "sub",
        "sub/deep",
        "sub/a.txt",
        "sub/deep/b.txt",
        "model.pt",
    ] {
        chown(checkpoint.join(path), Some(1000), None).unwrap();
    }
    chown(&moved, Some(2000), None).unwrap();
    let owner = Owner {
        uid: 1000,
        user_id: UserId(1),
    };
    for texts in [["**/*"], ["sub"], ["sub/moved"], ["**/precious"]] {
        let error = storage
            .remove_matching(&UUID.into(), owner, &patterns(&texts))
            .unwrap_err();
        assert!(error.message.contains("user id 2000"), "{error}");
        assert!(moved.join("precious").exists(), "{texts:?}");
    }
    assert!(storage.remove(&UUID.into(), owner).is_err());
    std::fs::remove_file(moved.join("precious")).unwrap();
    storage.remove(&UUID.into(), owner).unwrap();
    assert!(!checkpoint.exists());
}

#[test]
fn links_to_tensorboard_files_are_not_followed() {
    let (root, storage) = world();
    let experiments = root.path().join(CLUSTER).join(TENSORBOARD);
    std::fs::create_dir_all(experiments.join("2")).unwrap();
    std::fs::write(experiments.join("2/events"), b"x").unwrap();
    symlink("2", experiments.join("1")).unwrap();
    storage
        .remove_tensorboard(&CLUSTER.into(), ExperimentId(1), &[TrialId(1)], me())
        .unwrap();
    assert!(!experiments.join("1").is_symlink());
    assert!(experiments.join("2/events").exists());
}

#[test]
fn only_reported_files_belong_to_a_checkpoint() {
    let (root, storage) = world();
    std::fs::write(root.path().join(UUID).join("token"), b"secret").unwrap();
    let directory = storage.open(&UUID.into(), me()).unwrap().unwrap();
    let reported = [("model.pt", 5), ("sub/deep/b.txt", 2), ("gone", 1)]
        .map(|(path, size)| (path.to_owned(), size))
        .into();
    let entries = storage.reported(directory.as_fd(), &reported).unwrap();
    let names: Vec<_> = entries.iter().map(Entry::resource).collect();
    assert_eq!(names, ["model.pt", "sub/", "sub/deep/", "sub/deep/b.txt"]);
}

#[test]
fn without_patterns_nothing_is_deleted() {
    let (root, storage) = world();
    let left = storage.remove_matching(&UUID.into(), me(), &[]).unwrap();
    assert_eq!(left.len(), 5);
    assert!(root.path().join(UUID).join("model.pt").exists());
}

#[test]
fn directories_nested_too_deep_are_an_error_and_no_crash() {
    let (root, storage) = world();
    let mut at = open_directory(File::open(root.path()).unwrap().as_fd(), Path::new(UUID)).unwrap();
    for _ in 0..DEEPEST + 10 {
        mkdirat(at.as_fd(), "d", Mode::S_IRWXU).unwrap();
        at = open_directory(at.as_fd(), Path::new("d")).unwrap();
    }
    let error = storage.remove(&UUID.into(), me()).unwrap_err();
    assert!(error.message.contains("nested more than"), "{error}");
}
