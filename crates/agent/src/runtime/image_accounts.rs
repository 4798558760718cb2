//! The account of a task's user in a container whose image does not have it: without one, programs that ask for the name of
//! their user fail, sessions of a shell are refused, and the home directory is `/`.
//!
//! It is written into `/etc/passwd` and `/etc/group` of the created container, which is the only one that sees them. The
//! engine does that as root, and with the mounts of the container in place: containers with mounts that a user chose are left
//! as they are, and images whose `/etc` is not a directory of their own, since what is written could be elsewhere.

use std::io::Read as _;
use std::time::Duration;

use bollard::Docker;
use bollard::query_parameters::{
    ContainerArchiveInfoOptionsBuilder, DownloadFromContainerOptionsBuilder,
    UploadToContainerOptionsBuilder,
};
use det_taskspec::accounts::{groups_of_image, passwd_of_image};
use det_taskspec::{ContainerSpec, EMPTY_IMAGE, TaskUser};
use futures::StreamExt as _;

use super::engine::{is_absent, sentence};

/// Bytes of such a file that are read at most, with those of its archive.
const MOST_BYTES: usize = 1 << 20;
/// How long all of it may take.
const WITHIN: Duration = Duration::from_secs(30);
/// The bit of a file's mode by which the engine reports a directory (`ModeDir` of Go's `io/fs`).
const IS_DIRECTORY: u32 = 1 << 31;
/// Where the files are.
const DIRECTORY: &str = "/etc";

/// Adds the account of a linked user to a container that was created and not started. May be repeated. The error is for
/// users.
pub(super) async fn add(
    docker: &Docker,
    id: &str,
    user: &TaskUser,
    home: &str,
) -> Result<(), String> {
    let added = tokio::time::timeout(WITHIN, add_to(docker, id, user, home)).await;
    added.unwrap_or_else(|_| Err(format!("the engine took longer than {WITHIN:?}")))
}

/// Whether a container may get an account: it has a user other than root, an image with files, and no mount that a user
/// chose.
pub(super) fn concerns(spec: &ContainerSpec) -> bool {
    spec.user.uid != 0 && spec.image != EMPTY_IMAGE && spec.mounts.iter().all(|mount| mount.trusted)
}

async fn add_to(docker: &Docker, id: &str, user: &TaskUser, home: &str) -> Result<(), String> {
    let options = ContainerArchiveInfoOptionsBuilder::new()
        .path(DIRECTORY)
        .build();
    let has_directory = match docker.get_container_archive_info(id, Some(options)).await {
        Ok(found) => {
            // Podman names where each path leads, Docker where a link does.
            let leads_here = ["", DIRECTORY].contains(&found.link_target.as_str());
            if found.file_mode & IS_DIRECTORY == 0 || !leads_here {
                return Err(format!("{DIRECTORY} is no directory of the image"));
            }
            true
        }
        // Podman makes it when the container starts, Docker when it is created.
        Err(fault) if is_absent(&fault) => false,
        Err(fault) => return Err(sentence(&fault)),
    };
    let mut files = Vec::new();
    if let Some(file) = found(docker, id, "passwd").await? {
        let text = passwd_of_image(user, home, &file.text);
        files.extend(text.map(|text| File { text, ..file }));
    }
    if let Some(file) = found(docker, id, "group").await? {
        let text = groups_of_image(user, &file.text);
        files.extend(text.map(|text| File { text, ..file }));
    }
    if files.is_empty() {
        return Ok(());
    }
    let archive = archive_of(&files, has_directory).map_err(|error| error.to_string())?;
    let options = UploadToContainerOptionsBuilder::new().path("/").build();
    let body = bollard::body_full(archive.into());
    let written = docker.upload_to_container(id, Some(options), body).await;
    written.map_err(|fault| sentence(&fault))
}

/// A file of a container.
struct File {
    name: &'static str,
    text: String,
    mode: u32,
    ids: (u64, u64),
}

/// A file of the container's; an empty one where its image has none, `None` if what is at its path is no file of text.
async fn found(docker: &Docker, id: &str, name: &'static str) -> Result<Option<File>, String> {
    let options = DownloadFromContainerOptionsBuilder::new()
        .path(&format!("{DIRECTORY}/{name}"))
        .build();
    let mut pieces = Box::pin(docker.download_from_container(id, Some(options)));
    let mut archive = Vec::new();
    while let Some(piece) = pieces.next().await {
        match piece {
            Ok(piece) => archive.extend_from_slice(&piece),
            Err(fault) if is_absent(&fault) => {
                return Ok(Some(File {
                    name,
                    text: String::new(),
                    mode: 0o644,
                    ids: (0, 0),
                }));
            }
            Err(fault) => return Err(sentence(&fault)),
        }
        if archive.len() > MOST_BYTES {
            return Err(format!(
                "{DIRECTORY}/{name} is larger than {MOST_BYTES} bytes"
            ));
        }
    }
    read(&archive, name).map_err(|error| format!("{DIRECTORY}/{name} cannot be read: {error}"))
}

/// The one file of an archive; `None` if what it has is no file of text.
fn read(archive: &[u8], name: &'static str) -> std::io::Result<Option<File>> {
    let mut archive = tar::Archive::new(archive);
    let Some(entry) = archive.entries()?.next() else {
        return Ok(None);
    };
    let mut entry = entry?;
    let header = entry.header();
    if !header.entry_type().is_file() {
        return Ok(None);
    }
    let (mode, ids) = (header.mode()?, (header.uid()?, header.gid()?));
    let mut bytes = Vec::new();
    entry.read_to_end(&mut bytes)?;
    let text = String::from_utf8(bytes).ok();
    Ok(text.map(|text| File {
        name,
        text,
        mode,
        ids,
    }))
}

/// An archive for the root of a container, with the directory of the files where the container has none.
fn archive_of(files: &[File], has_directory: bool) -> std::io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    let directory = DIRECTORY.trim_start_matches('/');
    if !has_directory {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_size(0);
        header.set_mode(0o755);
        archive.append_data(&mut header, format!("{directory}/"), std::io::empty())?;
    }
    for file in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(file.text.len() as u64);
        header.set_mode(file.mode);
        header.set_uid(file.ids.0);
        header.set_gid(file.ids.1);
        let path = format!("{directory}/{}", file.name);
        archive.append_data(&mut header, path, file.text.as_bytes())?;
    }
    archive.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_written_as_root_where_a_users_mount_may_be() {
        let mut spec = crate::testing::container_spec("c", "true");
        spec.image = "ours".into();
        spec.user = TaskUser {
            user: "ada".into(),
            uid: 1000,
            group: "ada".into(),
            gid: 1000,
        };
        spec.mounts = Vec::new();
        assert!(concerns(&spec));
        let mount = |trusted| det_taskspec::Mount {
            host_path: "/home/ada".into(),
            container_path: "/data".into(),
            read_only: true,
            propagation: "rprivate".into(),
            create: false,
            trusted,
            shared: None,
        };
        spec.mounts = vec![mount(true)];
        assert!(concerns(&spec), "an administrator chose it");
        spec.mounts.push(mount(false));
        assert!(!concerns(&spec));
        spec.mounts.clear();
        spec.user = TaskUser::default();
        assert!(!concerns(&spec), "root has an account");
    }

    #[test]
    fn a_file_keeps_its_owner_and_its_mode() {
        let file = File {
            name: "passwd",
            text: "root:x:0:0::/:/bin/sh\n".into(),
            mode: 0o640,
            ids: (3, 4),
        };
        let archive = archive_of(&[file], true).unwrap();
        let found = read(&archive, "passwd").unwrap().unwrap();
        assert_eq!(
            (found.text.as_str(), found.mode, found.ids),
            ("root:x:0:0::/:/bin/sh\n", 0o640, (3, 4))
        );
    }

    #[test]
    fn what_is_no_file_of_text_is_left_alone() {
        let mut archive = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        archive
            .append_link(&mut header, "passwd", "/elsewhere")
            .unwrap();
        let archive = archive.into_inner().unwrap();
        assert!(read(&archive, "passwd").unwrap().is_none());
        assert!(read(&[0; 1024], "passwd").unwrap().is_none());
    }
}
