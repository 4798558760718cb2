//! Texts of the accounts that a task sees. A process has its own and those of its host: without one of its own, programs that
//! ask for the name or the home directory of their user fail. A container has the accounts of its image, on an engine with that
//! of its user; for images that also look in its run directory (`docs/contract/task-environment.md`, "Accounts"), it has one of its own.

use crate::{TaskFile, TaskUser};

/// Shells of accounts, the preferred one first.
pub const SHELLS: [&str; 2] = ["/bin/bash", "/bin/sh"];

/// Where a container's own accounts are.
const CONTAINER_DIR: &str = "/run/determined/etc";
/// Root of an image, where the task has another user.
const ROOT_PASSWD: &str = "root:x:0:0:root:/root:/bin/sh";
const ROOT_GROUP: &str = "root:x:0:";

/// The account of a container's user, and root's, as images with a name service for that look for them. The supervisor
/// writes them, as the task's user and inside the container.
pub fn of_container(user: &TaskUser, home: &str) -> [TaskFile; 3] {
    let account = Account {
        asked: user,
        given: user,
        ids: (user.uid, user.gid),
        sees_groups: true,
        home,
    };
    let unless = |taken: bool, line: &'static str| if taken { "" } else { line };
    let passwd = unless(user.uid == 0 || user.user == "root", ROOT_PASSWD);
    let group = unless(user.gid == 0 || user.group == "root", ROOT_GROUP);
    [
        ("passwd", 0o644, account.passwd(passwd, SHELLS[0])),
        ("group", 0o644, account.group(group)),
        ("shadow", 0o600, account.shadow()),
    ]
    .map(|(name, mode, content)| TaskFile {
        path: format!("{CONTAINER_DIR}/{name}"),
        mode,
        content,
    })
}

/// The text of an image's `/etc/passwd` with the account of a container's user in it, before those of the image; `None` =
/// the image has that account. An account of that name has its own home directory there, another one this.
pub fn passwd_of_image(user: &TaskUser, home: &str, image: &str) -> Option<String> {
    let uid = user.uid.to_string();
    if has_entry(image, &user.user, &uid) {
        return None;
    }
    let entry = |name: &str| format!("{name}:x:{uid}:{}::{}:{}", user.gid, plain(home), SHELLS[1]);
    changed(with_host(&[&user.user], entry, image), image)
}

/// The same of its `/etc/group`.
pub fn groups_of_image(user: &TaskUser, image: &str) -> Option<String> {
    let gid = user.gid.to_string();
    if has_entry(image, &user.group, &gid) {
        return None;
    }
    let entry = |name: &str| format!("{name}:x:{gid}:");
    changed(with_host(&[&user.group], entry, image), image)
}

/// Whether a text has this name with this id, the third field.
fn has_entry(text: &str, name: &str, id: &str) -> bool {
    text.lines().any(|line| {
        let mut fields = line.split(':');
        fields.next() == Some(name) && fields.nth(1) == Some(id)
    })
}

/// What a text has become; `None` = the name is one that no account can have.
fn changed(now: String, before: &str) -> Option<String> {
    (now.lines().count() > before.lines().count()).then_some(now)
}

/// The account of a task.
pub struct Account<'a> {
    /// As the master asked for it: users enter shells by this name.
    pub asked: &'a TaskUser,
    /// As the task has it on this host.
    pub given: &'a TaskUser,
    /// User and group id as the task sees them.
    pub ids: (u32, u32),
    /// Whether it sees the groups of its host as they are; in a user namespace there is only its own.
    pub sees_groups: bool,
    /// Its home directory.
    pub home: &'a str,
}

impl Account<'_> {
    /// The text of `/etc/passwd`. The first account with an id gives its name, and the first one with a name gives its id:
    /// the task is known by its name on this host, and found by either.
    pub fn passwd(&self, host: &str, shell: &str) -> String {
        let (uid, gid) = self.ids;
        let entry = |name: &str| format!("{name}:x:{uid}:{gid}::{}:{shell}", plain(self.home));
        with_host(&[&self.given.user, &self.asked.user], entry, host)
    }

    /// The text of `/etc/shadow`, in which the task's account has no password and is not locked: where there is no entry,
    /// services of the system invent one that is, and an SSH server refuses it.
    pub fn shadow(&self) -> String {
        let entry = |name: &str| format!("{name}:*:1:0:99999:7:::");
        with_host(&[&self.given.user, &self.asked.user], entry, "")
    }

    /// The text of `/etc/group`. Without the group of terminals where the task cannot see it: servers would want to give it
    /// their terminals.
    pub fn group(&self, host: &str) -> String {
        let entry = |name: &str| format!("{name}:x:{}:", self.ids.1);
        let without: Vec<&str> = host
            .lines()
            .filter(|line| !line.starts_with("tty:"))
            .collect();
        let without = without.join("\n");
        let host = if self.sees_groups { host } else { &without };
        with_host(&[&self.given.group, &self.asked.group], entry, host)
    }
}

/// The entries of these names, each once, before those of the host.
fn with_host(names: &[&String], entry: impl Fn(&str) -> String, host: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for name in names {
        let line = entry(name);
        if !name.is_empty() && plain(name) == name.as_str() && !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines.extend(host.lines().map(str::to_owned));
    lines.push(String::new());
    lines.join("\n")
}

/// A field of these files: up to what would end it.
fn plain(field: &str) -> &str {
    field.split([':', '\n']).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "root:x:0:0:root:/root:/bin/bash\nada:x:1000:1000::/home/ada:/bin/zsh\n";

    fn user(user: &str, uid: u32, group: &str, gid: u32) -> TaskUser {
        TaskUser {
            user: user.into(),
            uid,
            group: group.into(),
            gid,
        }
    }

    fn passwd(asked: &TaskUser, given: &TaskUser) -> String {
        let account = Account {
            asked,
            given,
            ids: (given.uid, given.gid),
            sees_groups: true,
            home: "/work",
        };
        account.passwd(HOST, "/bin/bash")
    }

    #[test]
    fn a_task_is_found_by_the_name_that_was_asked_for_and_known_by_the_one_it_has() {
        let given = user("det-user-3", 2_000_000_003, "det-user-3", 2_000_000_003);
        let text = passwd(&TaskUser::default(), &given);
        let expected = "det-user-3:x:2000000003:2000000003::/work:/bin/bash\n\
                        root:x:2000000003:2000000003::/work:/bin/bash\n";
        assert_eq!(text, format!("{expected}{HOST}"));
        let account = Account {
            asked: &TaskUser::default(),
            given: &given,
            ids: (given.uid, given.gid),
            sees_groups: true,
            home: "/work",
        };
        assert_eq!(
            account.group("tty:x:5:\n"),
            "det-user-3:x:2000000003:\nroot:x:2000000003:\ntty:x:5:\n"
        );
        assert_eq!(
            account.shadow(),
            "det-user-3:*:1:0:99999:7:::\nroot:*:1:0:99999:7:::\n"
        );
    }

    #[test]
    fn a_task_in_a_user_namespace_does_not_know_the_group_of_terminals() {
        let root = TaskUser::default();
        let account = Account {
            asked: &root,
            given: &root,
            ids: (7, 7),
            sees_groups: false,
            home: "/work",
        };
        let text = account.group("root:x:0:\ntty:x:5:\nttys:x:6:\n");
        assert_eq!(text, "root:x:7:\nroot:x:0:\nttys:x:6:\n");
    }

    #[test]
    fn a_linked_account_appears_once_before_those_of_the_host() {
        let ada = user("ada", 1000, "staff", 50);
        let text = passwd(&ada, &ada);
        assert_eq!(text, format!("ada:x:1000:50::/work:/bin/bash\n{HOST}"));
    }

    #[test]
    fn names_that_no_account_can_have_are_left_out() {
        let odd = user("a:b", 7, "g\nx", 8);
        assert_eq!(passwd(&odd, &odd), HOST);
        let account = Account {
            asked: &odd,
            given: &odd,
            ids: (7, 8),
            sees_groups: true,
            home: "/work",
        };
        assert_eq!(account.group(""), "");
    }

    #[test]
    fn an_image_gets_the_account_of_its_user_unless_it_has_it() {
        let ada = user("ada", 1000, "staff", 50);
        assert_eq!(passwd_of_image(&ada, "/work", HOST), None);
        let groups = "root:x:0:\nada:x:1000:\n";
        assert_eq!(
            groups_of_image(&ada, groups).unwrap(),
            format!("staff:x:50:\n{groups}")
        );
        assert_eq!(groups_of_image(&ada, "staff:x:50:ada\n"), None);
        // Known by another name, or another account of its name: its own comes first.
        for image in [
            "node:x:1000:1000::/home/node:/bin/sh\n",
            "ada:x:7:7::/:\n",
            "",
        ] {
            assert_eq!(
                passwd_of_image(&ada, "/work:x", image).unwrap(),
                format!("ada:x:1000:50::/work:/bin/sh\n{image}")
            );
        }
        let odd = user("a:b", 1001, "g\nx", 8);
        assert_eq!(passwd_of_image(&odd, "/work", HOST), None);
        assert_eq!(groups_of_image(&odd, groups), None);
    }

    #[test]
    fn a_container_has_its_own_account_and_roots_alone() {
        let files = of_container(&user("ada", 1000, "staff", 50), "/work");
        let expected = [
            (
                "passwd",
                0o644,
                "ada:x:1000:50::/work:/bin/bash\nroot:x:0:0:root:/root:/bin/sh\n",
            ),
            ("group", 0o644, "staff:x:50:\nroot:x:0:\n"),
            ("shadow", 0o600, "ada:*:1:0:99999:7:::\n"),
        ];
        assert_eq!(
            files,
            expected.map(|(name, mode, text)| TaskFile {
                path: format!("/run/determined/etc/{name}"),
                mode,
                content: text.to_owned(),
            })
        );
        let [passwd, group, _] = of_container(&TaskUser::default(), "/work");
        assert_eq!(passwd.content, "root:x:0:0::/work:/bin/bash\n");
        assert_eq!(group.content, "root:x:0:\n");
    }
}
