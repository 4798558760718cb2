//! What lets launchers start processes in the other containers of a trial over SSH: a key pair, the configuration of
//! servers, and a client that uses both. `docs/contract/task-environment.md`, "SSH between containers".
//!
//! Launchers start the servers themselves, on the trial's port, and want these files where they are.

use crate::TaskFile;
use crate::service::file;
use crate::shell::{AUTHORIZED_KEYS_FILE, SSHD_CONFIG_FILE, server_config};

/// The private key of a trial's containers: opens their servers, and is what these are known by.
const PRIVATE_KEY_FILE: &str = "/run/determined/ssh/id_rsa";
const PUBLIC_KEY_FILE: &str = "/run/determined/ssh/id_rsa.pub";
/// The servers' common key, as clients know servers.
const KNOWN_HOSTS_FILE: &str = "/run/determined/ssh/known_hosts";
/// First on `PATH` of a trial with [`LAUNCH_CLIENT_FILE`].
pub const LAUNCH_CLIENT_DIR: &str = "/run/determined/ssh/bin";
/// The client that launchers find on `PATH`.
pub const LAUNCH_CLIENT_FILE: &str = "/run/determined/ssh/bin/ssh";

/// Connections that a server accepts at once before they are authenticated: launchers of MPI open one for each process.
/// By default servers begin to refuse some at 10.
const SERVER_CONFIG: &str = server_config!(
    "\
HostKey /run/determined/ssh/id_rsa
MaxStartups 1000
MaxSessions 1000
"
);

/// First lines of the script that takes the place of `ssh`.
const CLIENT_HEAD: &str = r#"#!/bin/sh
# The SSH client of a trial with several containers. To their servers it goes with the trial's key and checks theirs,
# whatever the launcher asks for: launchers send the trial's variables along, and another task of a host may listen at that
# port. Everything else reaches the client of the image or host as it is.
real=
IFS=:
for directory in $PATH; do
    case $directory in /run/determined/*) continue ;; esac
    if [ -f "$directory/ssh" ] && [ -x "$directory/ssh" ]; then
        real=$directory/ssh
        break
    fi
done
unset IFS
if [ -z "$real" ]; then
    echo "ERROR: there is no SSH client on PATH, which launchers need to start processes in the other containers of a trial;" \
        "install the package openssh-client in the task's image, or on the agent's host where tasks run as processes" >&2
    exit 127
fi
ours= before=
for word in "$@"; do
"#;

/// Ends the client. Of options that are given twice the first one counts.
const CLIENT_TAIL: &str = r#"    before=$word
done
if [ -n "$ours" ]; then
    set -- -o IdentitiesOnly=yes -o IdentityFile=/run/determined/ssh/id_rsa -o StrictHostKeyChecking=yes \
        -o UserKnownHostsFile=/run/determined/ssh/known_hosts -o GlobalKnownHostsFile=/dev/null -o UpdateHostKeys=no "$@"
fi
exec "$real" "$@"
"#;

/// A key pair in OpenSSH's formats. Not printable: it contains a private key.
#[derive(Clone, PartialEq, Eq)]
pub struct SshKeyPair {
    /// The private key. A secret of the task's owner.
    pub private: String,
    /// The public key, one line as in `authorized_keys`.
    pub public: String,
}

impl SshKeyPair {
    /// The files of each container of a trial whose launcher uses `port`.
    #[must_use]
    pub fn launch_files(&self, port: u16) -> Vec<TaskFile> {
        let public = self.public.trim();
        let mut words = public.split_whitespace();
        let (kind, key) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let choice = format!(
            "    case \"$before $word\" in \"-p {port}\" | *\" -p{port}\") ours=1 ;; esac\n"
        );
        vec![
            file(PRIVATE_KEY_FILE, 0o600, &self.private),
            file(PUBLIC_KEY_FILE, 0o600, &format!("{public}\n")),
            file(AUTHORIZED_KEYS_FILE, 0o600, &format!("{public}\n")),
            file(KNOWN_HOSTS_FILE, 0o600, &format!("* {kind} {key}\n")),
            file(SSHD_CONFIG_FILE, 0o600, SERVER_CONFIG),
            file(
                LAUNCH_CLIENT_FILE,
                0o755,
                &[CLIENT_HEAD, &choice, CLIENT_TAIL].concat(),
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_opens_the_servers_and_is_what_they_are_known_by() {
        let pair = SshKeyPair {
            private: "PRIVATE\n".into(),
            public: "ssh-ed25519 AAAA determined".into(),
        };
        let files = pair.launch_files(12_370);
        let content = |path: &str| {
            let file = files.iter().find(|file| file.path == path);
            file.map_or("", |file| file.content.as_str())
        };
        assert_eq!(content(PRIVATE_KEY_FILE), "PRIVATE\n");
        let authorized = content(AUTHORIZED_KEYS_FILE);
        assert_eq!(authorized, "ssh-ed25519 AAAA determined\n");
        assert_eq!(content(KNOWN_HOSTS_FILE), "* ssh-ed25519 AAAA\n");
        assert!(content(SSHD_CONFIG_FILE).contains(&format!("HostKey {PRIVATE_KEY_FILE}\n")));
        for secret in files.iter().filter(|file| file.content.contains("PRIVATE")) {
            assert_eq!(secret.mode, 0o600, "{}", secret.path);
        }
    }
}
