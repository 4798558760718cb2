//! What a shell has in its container: keys, the configuration of its SSH server, and a port.
//! `docs/contract/task-environment.md`, "Shells".

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::TaskFile;
use crate::service::file;

/// Ports that the SSH servers of shells listen on: in the process runtime, all shells of a machine share its ports.
pub const SHELL_PORTS: RangeInclusive<u16> = 3200..=3499;

/// The configuration of a shell's SSH server. Address and port are on its command line.
pub const SSHD_CONFIG_FILE: &str = "/run/determined/ssh/sshd_config";
/// The public key that opens a shell. The supervisor adds the variables of sessions, and writes [`AUTHORIZED_KEYS_FILE`].
pub const SHELL_KEY_FILE: &str = "/run/determined/ssh/authorized_keys_unmodified";
/// The key that opens a shell with the variables of sessions, as the SSH server reads it.
pub const AUTHORIZED_KEYS_FILE: &str = "/run/determined/ssh/authorized_keys";
/// The private key of the shell, by which its SSH server is known as well.
const PRIVATE_KEY_FILE: &str = "/run/determined/ssh/id_ed25519";
const PUBLIC_KEY_FILE: &str = "/run/determined/ssh/id_ed25519.pub";

/// What the SSH server writes when it accepts connections.
pub(crate) const LISTENING: &str = "Server listening on";

/// The configuration of an SSH server in a task that only the task's key opens. `$own` are the lines of its kind, which begin
/// with its private key.
macro_rules! server_config {
    ($own:literal) => {
        concat!(
            $own,
            "\
AuthorizedKeysFile /run/determined/ssh/authorized_keys
AuthenticationMethods publickey
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PermitUserEnvironment yes
StrictModes no
UsePAM no
UseDNS no
PidFile none
PrintMotd no
PrintLastLog no
X11Forwarding no
Subsystem sftp internal-sftp
"
        )
    };
}
pub(crate) use server_config;

/// Only the shell's key opens it, and a user who has it can do what the task can do.
const SSHD_CONFIG: &str = server_config!(
    "\
HostKey /run/determined/ssh/id_ed25519
AllowTcpForwarding yes
"
);

/// What only a shell has. Not printable: it contains a private key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShellDetails {
    /// Port that its SSH server listens on, one of [`SHELL_PORTS`].
    pub port: u16,
    /// The private key that opens it, in OpenSSH's format. A secret of its owner.
    pub private_key: String,
    /// The public key, one line as in `authorized_keys`.
    pub public_key: String,
}

impl ShellDetails {
    /// The files of its container.
    pub(crate) fn files(&self) -> Vec<TaskFile> {
        vec![
            file(PRIVATE_KEY_FILE, 0o600, &self.private_key),
            file(PUBLIC_KEY_FILE, 0o600, &self.public_key),
            file(SHELL_KEY_FILE, 0o644, &self.public_key),
            file(SSHD_CONFIG_FILE, 0o600, SSHD_CONFIG),
        ]
    }
}
