//! Key pairs for SSH: those of shells, and those by which the containers of a trial reach each other.

use std::sync::Arc;

use det_ids::AllocationId;
use det_store::{Conn, StoreError, settings};
use det_taskspec::SshKeyPair;
use sha2::{Digest as _, Sha256};
use ssh_key::private::Ed25519Keypair;
use ssh_key::{LineEnding, PrivateKey};

use crate::error::{AppError, AppResult};

/// The comment of a key: users see it where they store one.
const COMMENT: &str = "determined";
/// The setting with the secret of [`LaunchKeys`].
const SECRET: &str = "launch_key_secret";

/// The key pair of a seed.
pub(crate) fn pair(seed: &[u8; 32]) -> AppResult<SshKeyPair> {
    let pair = Ed25519Keypair::from_seed(seed);
    let private = PrivateKey::new(pair.into(), COMMENT).map_err(|error| no_key(&error))?;
    let written = private
        .to_openssh(LineEnding::LF)
        .map_err(|error| no_key(&error))?;
    let public = private
        .public_key()
        .to_openssh()
        .map_err(|error| no_key(&error))?;
    Ok(SshKeyPair {
        private: written.to_string(),
        public,
    })
}

fn no_key(error: &ssh_key::Error) -> AppError {
    AppError::internal(anyhow::Error::msg(error.to_string()).context("making an SSH key"))
}

/// The keys by which the containers of one allocation reach each other.
///
/// They are derived from a secret of the cluster: all containers of an allocation have the same one, also when the master is
/// started again between two of them, and no key is stored.
#[derive(Clone)]
pub(crate) struct LaunchKeys {
    secret: Arc<str>,
}

impl LaunchKeys {
    /// Loads the secret; makes it on the first start.
    pub(crate) async fn load(conn: &mut Conn<'_>) -> Result<Self, StoreError> {
        if let Some(secret) = settings::find(conn, SECRET).await? {
            return Ok(Self {
                secret: secret.into(),
            });
        }
        let secret = hex::encode(rand::random::<[u8; 32]>());
        settings::set(conn, SECRET, &secret).await?;
        Ok(Self {
            secret: secret.into(),
        })
    }

    /// The key pair of an allocation.
    pub(crate) fn of(&self, allocation_id: &AllocationId) -> AppResult<SshKeyPair> {
        // What is hashed with the secret has one length, so that no seed continues another one.
        let id = Sha256::digest(allocation_id.as_str().as_bytes());
        let seed = Sha256::new()
            .chain_update(self.secret.as_bytes())
            .chain_update(id)
            .finalize();
        pair(&seed.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_one_that_ssh_reads() {
        let made = pair(&[7; 32]).unwrap();
        let private = PrivateKey::from_openssh(&made.private).unwrap();
        assert_eq!(private.public_key().to_openssh().unwrap(), made.public);
        assert!(made.public.starts_with("ssh-ed25519 "), "{}", made.public);
        assert!(made.public.ends_with(" determined"), "{}", made.public);
        // Clients write it into a file as it is, and ssh wants an end of line.
        let end = "-----END OPENSSH PRIVATE KEY-----\n";
        assert!(made.private.ends_with(end));
    }

    #[test]
    fn an_allocation_keeps_its_key_and_shares_it_with_no_other_and_no_other_cluster() {
        let keys = |secret: &str| LaunchKeys {
            secret: secret.into(),
        };
        let public = |secret, id: &str| keys(secret).of(&id.into()).unwrap().public;
        assert_eq!(public("one", "3.a.1"), public("one", "3.a.1"));
        assert_ne!(public("one", "3.a.1"), public("one", "3.a.2"));
        assert_ne!(public("one", "3.a.1"), public("two", "3.a.1"));
    }
}
