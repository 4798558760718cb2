//! Mounts of this host. Before a directory is deleted, everything mounted below it is detached: deleting through a bind
//! mount would delete a user's data.

use std::io;
use std::path::{Path, PathBuf};

use det_host_paths::mount_point;
use nix::mount::{MntFlags, umount2};

/// Detaches everything mounted at or below `dir`, deepest first.
pub(crate) fn detach_below(dir: &Path) -> io::Result<()> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    for mount in mounts_below(&table, dir) {
        umount2(&mount, MntFlags::MNT_DETACH)?;
    }
    Ok(())
}

/// Mount points at or below `dir`, latest first: a later mount may cover an earlier one.
fn mounts_below(table: &[u8], dir: &Path) -> Vec<PathBuf> {
    let mut mounts: Vec<PathBuf> = table
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(4))
        .map(mount_point)
        .filter(|mount| mount.starts_with(dir))
        .collect();
    mounts.reverse();
    mounts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mounts_below_are_found_deepest_first() {
        let table = b"22 1 8:1 / / rw - ext4 /dev/sda rw\n\
            30 22 0:5 / /data/containers/a/run rw shared:1 - tmpfs t rw\n\
            31 30 0:6 /x /data/containers/a/run/my\\040data rw - ext4 /dev/sda rw\n\
            32 22 0:7 / /data/containers/ab rw - tmpfs t rw\n";
        assert_eq!(
            mounts_below(table, Path::new("/data/containers/a")),
            [
                PathBuf::from("/data/containers/a/run/my data"),
                PathBuf::from("/data/containers/a/run"),
            ]
        );
        assert!(mounts_below(b"", Path::new("/")).is_empty());
        assert!(mounts_below(b"garbage\n\n1 2 3", Path::new("/")).is_empty());
    }

    #[test]
    fn a_plain_directory_has_nothing_to_detach() {
        let root = tempfile::tempdir().unwrap();
        detach_below(root.path()).unwrap();
    }

    proptest::proptest! {
        #[test]
        fn any_table_is_read(table in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            for mount in mounts_below(&table, Path::new("/data")) {
                proptest::prop_assert!(mount.starts_with("/data"));
            }
        }
    }
}
