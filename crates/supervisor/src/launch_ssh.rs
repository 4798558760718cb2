//! SSH between the containers of a trial: what its files need around them.

use std::fs;

use det_taskspec::{LAUNCH_CLIENT_FILE, Script};
use nix::unistd::geteuid;

use crate::ssh_server::PRIVILEGE_SEPARATION;

/// Whether launchers reach other containers of this task over SSH.
pub(crate) fn is_wanted(script: &Script) -> bool {
    let mut files = script.files.iter();
    files.any(|file| file.path == LAUNCH_CLIENT_FILE)
}

/// Makes the directory that a server of root wants; packages make it when their service starts, which no container does.
pub(crate) fn prepare() -> Result<(), String> {
    if !geteuid().is_root() {
        return Ok(());
    }
    fs::create_dir_all(PRIVILEGE_SEPARATION).map_err(|error| {
        format!(
            "could not create {PRIVILEGE_SEPARATION}, without which launchers cannot start SSH servers: {error}"
        )
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::{Command, Output};

    use det_taskspec::{LAUNCH_CLIENT_DIR, SshKeyPair};

    use super::*;

    /// What the client of a trial with port 12370 does with these words; `real` is the client of the image.
    fn client(real: Option<&str>, words: &[&str]) -> Output {
        let pair = SshKeyPair {
            private: "PRIVATE\n".into(),
            public: "ssh-ed25519 AAAA determined".into(),
        };
        let files = pair.launch_files(12_370);
        let own = files.iter().find(|file| file.path == LAUNCH_CLIENT_FILE);
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("own-ssh");
        fs::write(&script, &own.unwrap().content).unwrap();
        if let Some(real) = real {
            let path = dir.path().join("ssh");
            fs::write(&path, real).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let path = format!("{LAUNCH_CLIENT_DIR}:{}", dir.path().display());
        let mut command = Command::new("/bin/sh");
        command.arg(&script).args(words).env("PATH", path);
        command.output().unwrap()
    }

    /// The words that the client of the image gets.
    fn passed_on(words: &[&str]) -> Vec<String> {
        let output = client(
            Some("#!/bin/sh\nfor word in \"$@\"; do echo \"$word\"; done\n"),
            words,
        );
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn what_goes_to_the_trials_servers_has_its_key_and_checks_theirs() {
        let lax = [
            "-o",
            "StrictHostKeyChecking=no",
            "10.0.0.2",
            "-p",
            "12370",
            "a b",
        ];
        let words = passed_on(&lax);
        assert_eq!(words[words.len() - lax.len()..], lax);
        let place = |wanted: &str| words.iter().position(|word| word == wanted).unwrap();
        assert!(place("StrictHostKeyChecking=yes") < place("StrictHostKeyChecking=no"));
        place("IdentityFile=/run/determined/ssh/id_rsa");
        place("UserKnownHostsFile=/run/determined/ssh/known_hosts");
        assert!(passed_on(&["-p12370", "host"]).len() > 2);
    }

    #[test]
    fn what_goes_elsewhere_is_passed_on_as_it_is() {
        for words in [
            &["git@example.org", "git-upload-pack 'x'"][..],
            &["-p", "22", "host", "12370"],
            &["-p", "123700", "host"],
        ] {
            assert_eq!(passed_on(words), words);
        }
    }

    #[test]
    fn a_missing_client_is_named_with_its_package() {
        let output = client(None, &["-p", "12370", "host"]);
        assert_eq!(output.status.code(), Some(127));
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains("openssh-client"), "{message}");
    }
}
