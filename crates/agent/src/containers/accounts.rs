//! The files of accounts of a task that is a process of this host.

use std::path::Path;

use det_taskspec::TaskFile;
use det_taskspec::accounts::{Account, SHELLS};

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";
const SHADOW: &str = "/etc/shadow";

/// The task's account before those of this host. Blocking.
pub(super) fn of_process(account: &Account<'_>) -> Vec<TaskFile> {
    let shell = SHELLS.into_iter().find(|path| Path::new(path).exists());
    let host = |path| std::fs::read_to_string(path).unwrap_or_default();
    let file = |path: &str, content| TaskFile {
        path: path.to_owned(),
        mode: 0o644,
        content,
    };
    vec![
        file(
            PASSWD,
            account.passwd(&host(PASSWD), shell.unwrap_or(SHELLS[1])),
        ),
        file(GROUP, account.group(&host(GROUP))),
        file(SHADOW, account.shadow()),
    ]
}
