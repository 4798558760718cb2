//! Linux capabilities that a container gets besides those of its runtime.

use crate::guard::plain_capability;

/// Capabilities to add without those that the task drops. Of one that is in both lists, Docker would ignore that it is
/// dropped, and Podman would refuse the container. `ALL` is a name like others here: what is added besides it is kept.
pub(super) fn kept(added: &[String], dropped: &[String]) -> Vec<String> {
    let dropped: Vec<String> = dropped.iter().map(|name| plain_capability(name)).collect();
    added
        .iter()
        .filter(|name| !dropped.contains(&plain_capability(name)))
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_that_a_task_drops_is_not_added_however_it_is_written() {
        let list = |names: &[&str]| -> Vec<String> {
            names.iter().map(|name| (*name).to_owned()).collect()
        };
        let added = list(&["SYS_PTRACE", "CAP_NET_RAW", "ipc_lock"]);
        for (dropped, expected) in [
            (
                &["CHOWN"][..],
                &["SYS_PTRACE", "CAP_NET_RAW", "ipc_lock"][..],
            ),
            (&["cap_sys_ptrace"], &["CAP_NET_RAW", "ipc_lock"]),
            (&["NET_RAW", "CAP_IPC_LOCK"], &["SYS_PTRACE"]),
            // All but these.
            (&["ALL"], &["SYS_PTRACE", "CAP_NET_RAW", "ipc_lock"]),
        ] {
            assert_eq!(kept(&added, &list(dropped)), expected, "{dropped:?}");
        }
    }
}
