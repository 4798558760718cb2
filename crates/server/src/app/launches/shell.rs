//! What only shells have: keys, made when one is launched.

use det_taskspec::ShellDetails;
use ssh_key::private::Ed25519Keypair;
use ssh_key::{LineEnding, PrivateKey};

use crate::error::{AppError, AppResult};

/// The kind of keys that is made.
const KEY_TYPE: &str = "ED25519";
/// The comment of a key: users see it where they store one.
const COMMENT: &str = "determined";

/// The details of a new shell, whose port is given to it when it is stored.
pub(super) fn new_details() -> AppResult<ShellDetails> {
    let pair = Ed25519Keypair::from_seed(&rand::random());
    let private = PrivateKey::new(pair.into(), COMMENT).map_err(|error| no_key(&error))?;
    let written = private
        .to_openssh(LineEnding::LF)
        .map_err(|error| no_key(&error))?;
    let public = private
        .public_key()
        .to_openssh()
        .map_err(|error| no_key(&error))?;
    Ok(ShellDetails {
        port: 0,
        private_key: written.to_string(),
        public_key: public,
    })
}

fn no_key(error: &ssh_key::Error) -> AppError {
    AppError::internal(anyhow::Error::msg(error.to_string()).context("making the key of a shell"))
}

/// What a user should know of keys that the master's configuration wants.
pub(super) fn warning_of_key(wanted: &str) -> Option<String> {
    (wanted != KEY_TYPE).then(|| {
        format!(
            "the master's configuration wants keys of the type {wanted} (\"security.ssh.key_type\"), and this version makes \
             {KEY_TYPE} keys only: the shell has one of those"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shell_has_a_key_of_its_own_that_ssh_reads() {
        let (one, two) = (new_details().unwrap(), new_details().unwrap());
        assert_ne!(one.private_key, two.private_key);
        let private = PrivateKey::from_openssh(&one.private_key).unwrap();
        assert_eq!(private.public_key().to_openssh().unwrap(), one.public_key);
        assert!(
            one.public_key.starts_with("ssh-ed25519 "),
            "{}",
            one.public_key
        );
        assert!(
            one.public_key.ends_with(" determined"),
            "{}",
            one.public_key
        );
        // The client writes it into a file as it is, and ssh wants an end of line.
        assert!(
            one.private_key
                .ends_with("-----END OPENSSH PRIVATE KEY-----\n")
        );
    }

    #[test]
    fn another_type_of_key_is_pointed_out() {
        assert_eq!(warning_of_key("ED25519"), None);
        assert!(warning_of_key("RSA").unwrap().contains("ED25519 keys only"));
    }
}
