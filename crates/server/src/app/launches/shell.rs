//! What only shells have: keys, made when one is launched.

use det_taskspec::ShellDetails;

use crate::app::ssh_keys;
use crate::error::AppResult;

/// The kind of keys that is made.
const KEY_TYPE: &str = "ED25519";

/// The details of a new shell, whose port is given to it when it is stored.
pub(super) fn new_details() -> AppResult<ShellDetails> {
    let pair = ssh_keys::pair(&rand::random())?;
    Ok(ShellDetails {
        port: 0,
        private_key: pair.private,
        public_key: pair.public,
    })
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
    fn each_shell_has_a_key_of_its_own() {
        let (one, two) = (new_details().unwrap(), new_details().unwrap());
        assert_ne!(one.private_key, two.private_key);
    }

    #[test]
    fn another_type_of_key_is_pointed_out() {
        assert_eq!(warning_of_key("ED25519"), None);
        assert!(warning_of_key("RSA").unwrap().contains("ED25519 keys only"));
    }
}
