//! Hashing and comparing passwords. A password reaches the master as the client's salted SHA-512 of it and is kept under
//! Argon2id.

use std::time::Instant;

use argon2::{Algorithm, Argon2, Params, Version};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sha2::{Digest as _, Sha512};
use tokio::sync::Semaphore;

use super::throttle::{Origin, Throttle, too_many};
use crate::error::{AppError, AppResult};

/// The fixed salt of the client's hash; part of the protocol, no secret.
const CLIENT_SALT: &str = "GubPEmmotfiK9TMD6Zdw";
/// Argon2id: memory in KiB, passes, lanes (OWASP's first recommendation of that size).
const ARGON_MEMORY_KIB: u32 = 19 * 1024;
const ARGON_PASSES: u32 = 2;
/// Passwords hashed at once: each takes 19 MiB and a core.
const HASHERS: usize = 2;

/// The client's salted hash of a password; a blank one stays blank.
pub fn client_hash(password: &str) -> String {
    if password.is_empty() {
        return String::new();
    }
    hex::encode(Sha512::digest(
        format!("{CLIENT_SALT}{password}").as_bytes(),
    ))
}

/// Hashes passwords, only a few at once.
pub(super) struct Hashers {
    permits: Semaphore,
}

impl Hashers {
    pub(super) fn new() -> Self {
        Self {
            permits: Semaphore::new(HASHERS),
        }
    }

    /// The Argon2id hash of a client hash; `None` for a blank password.
    pub(super) async fn hash(&self, client_hash: String) -> AppResult<Option<String>> {
        if client_hash.is_empty() {
            return Ok(None);
        }
        let _permit = self.permits.acquire().await.map_err(AppError::internal)?;
        tokio::task::spawn_blocking(move || stored_hash(&client_hash).map(Some))
            .await
            .map_err(AppError::internal)?
    }

    /// Compares a password, later when there were wrong ones before from the same origin.
    pub(super) async fn verify_slowed(
        &self,
        stored: Option<String>,
        given: String,
        throttle: &Throttle,
        origin: &Origin,
    ) -> AppResult<bool> {
        let mut has_waited = false;
        loop {
            let delay = throttle.delay(origin, Instant::now());
            if !delay.is_zero() && !has_waited {
                let place = throttle.wait(origin, Instant::now());
                let _place = place.ok_or_else(too_many)?;
                tokio::time::sleep(delay).await;
                has_waited = true;
            }
            let permit = self.permits.acquire().await.map_err(AppError::internal)?;
            // Others from there may have failed while this one waited for its turn.
            if !has_waited && !throttle.delay(origin, Instant::now()).is_zero() {
                drop(permit);
                continue;
            }
            return match comparison(stored, &given) {
                Comparison::Blank => Ok(true),
                Comparison::Hash { stored, can_match } => tokio::task::spawn_blocking(move || {
                    matches_hash(&stored, &given).map(|equal| equal && can_match)
                })
                .await
                .map_err(AppError::internal)?,
            };
        }
    }
}

/// The text that is stored of a client hash: Argon2id with a salt of its own.
fn stored_hash(client_hash: &str) -> AppResult<String> {
    let salt: [u8; 16] = rand::random();
    let params = Params::new(ARGON_MEMORY_KIB, ARGON_PASSES, 1, None)
        .map_err(|e| AppError::internal(anyhow::anyhow!("argon2 parameters: {e}")))?;
    let hash = argon(params, &salt, client_hash)?;
    Ok(format!(
        "$argon2id$v=19$m={ARGON_MEMORY_KIB},t={ARGON_PASSES},p=1${}${}",
        STANDARD_NO_PAD.encode(salt),
        STANDARD_NO_PAD.encode(hash)
    ))
}

/// What has to be done to compare a password.
enum Comparison {
    /// Nothing: both are blank.
    Blank,
    /// Hash the given one and compare it with `stored`. With `can_match` false the outcome is known and the work is done only
    /// for its time.
    Hash { stored: String, can_match: bool },
}

/// Every refusal takes one hash, whatever is blank: how long it takes shows neither who has a blank password nor who has none.
fn comparison(stored: Option<String>, given: &str) -> Comparison {
    match stored {
        None if given.is_empty() => Comparison::Blank,
        None => Comparison::Hash {
            stored: decoy_hash(),
            can_match: false,
        },
        Some(stored) => Comparison::Hash {
            stored,
            can_match: !given.is_empty(),
        },
    }
}

/// Whether a client hash is the one that was stored; takes the time of one Argon2id hash.
fn matches_hash(stored: &str, client_hash: &str) -> AppResult<bool> {
    let damaged = || AppError::internal(anyhow::anyhow!("a stored password hash cannot be read"));
    let mut parts = stored.split('$').skip(3);
    let (Some(params), Some(salt), Some(hash)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(damaged());
    };
    let number = |key: &str| -> Option<u32> {
        params
            .split(',')
            .find_map(|p| p.strip_prefix(key))
            .and_then(|v| v.parse().ok())
    };
    let (Some(m), Some(t), Some(p)) = (number("m="), number("t="), number("p=")) else {
        return Err(damaged());
    };
    let params = Params::new(m, t, p, None).map_err(|_| damaged())?;
    let salt = STANDARD_NO_PAD.decode(salt).map_err(|_| damaged())?;
    let hash = STANDARD_NO_PAD.decode(hash).map_err(|_| damaged())?;
    let given = argon(params, &salt, client_hash)?;
    // Both sides are slow hashes of 32 bytes; the comparison takes the same time wherever they differ.
    Ok(given.len() == hash.len() && given.iter().zip(&hash).fold(0, |d, (a, b)| d | (a ^ b)) == 0)
}

/// What a stored hash looks like that no password has.
pub(super) fn decoy_hash() -> String {
    let zeros = |length: usize| STANDARD_NO_PAD.encode(vec![0_u8; length]);
    format!(
        "$argon2id$v=19$m={ARGON_MEMORY_KIB},t={ARGON_PASSES},p=1${}${}",
        zeros(16),
        zeros(32)
    )
}

fn argon(params: Params, salt: &[u8], text: &str) -> AppResult<[u8; 32]> {
    let mut out = [0_u8; 32];
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
        .hash_password_into(text.as_bytes(), salt, &mut out)
        .map_err(|e| AppError::internal(anyhow::anyhow!("argon2: {e}")))?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blank_password_stays_blank_on_the_wire() {
        assert_eq!(client_hash(""), "");
        assert_eq!(client_hash("x").len(), 128);
    }

    #[test]
    fn every_wrong_password_takes_one_hash() {
        let hash = client_hash("secret");
        // A blank user, a user with a password, and an unknown one, whose row is the decoy.
        for stored in [
            None,
            Some("$argon2id$v$m$salt$hash".to_owned()),
            Some(decoy_hash()),
        ] {
            for given in ["", hash.as_str()] {
                let is_blank = stored.is_none() && given.is_empty();
                let compared = comparison(stored.clone(), given);
                assert_eq!(matches!(compared, Comparison::Blank), is_blank);
                if let Comparison::Hash { can_match, .. } = compared {
                    assert_eq!(can_match, stored.is_some() && !given.is_empty());
                }
            }
        }
        assert!(!matches_hash(&decoy_hash(), &hash).unwrap());
    }
}
