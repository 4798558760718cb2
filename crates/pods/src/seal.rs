//! Seals: by them the master knows the Jobs that it made from those that others write with its labels and a record of
//! their own.

use std::fmt;
use std::sync::Arc;

use det_ids::Micros;
use hmac::digest::Key;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::json;
use crate::record::RECORD_ANNOTATION;

/// Annotation of Jobs with the seal of their record.
pub const SEAL_ANNOTATION: &str = "determined.ai/seal";

/// What an installation seals the records of its Jobs with.
#[derive(Clone, PartialEq, Eq)]
pub struct Seal {
    secret: Arc<str>,
    /// What [`Seal::was_on`] knows Jobs by.
    former: Arc<str>,
    since: Arc<str>,
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seal")
            .field("since", &self.since)
            .finish_non_exhaustive()
    }
}

impl Seal {
    /// `secret` = what only the master has; `since` = when it began to seal, as Kubernetes writes times
    /// (`2026-11-26T12:00:00Z`). Jobs that were created before have no seal.
    pub fn new(secret: &str, since: &str) -> Self {
        Self {
            secret: secret.into(),
            former: secret.into(),
            since: since.into(),
        }
    }

    /// What one manager of several seals with: Jobs in the cluster of another, where other users may create some, are not its.
    #[must_use]
    pub fn of_manager(&self, name: &str) -> Self {
        let secret = keyed(&self.secret, &["manager", name]).finalize();
        Self {
            secret: hex::encode(secret.into_bytes()).into(),
            former: former(&self.former, &[name]).into(),
            since: self.since.clone(),
        }
    }

    /// The seal of the record of a Job, in hexadecimal digits: an HMAC with SHA-256. It is of this Job alone, by its namespace
    /// and name.
    pub fn of(&self, (namespace, job): (&str, &str), record: &str) -> String {
        let sealed = keyed(&self.secret, &["job", namespace, job, record]).finalize();
        hex::encode(sealed.into_bytes())
    }

    /// Whether records were not sealed yet when a Job of the API was created. The time of its creation is the API server's.
    pub fn began_after(&self, job: &Value) -> bool {
        let created = job.pointer("/metadata/creationTimestamp");
        let created = created.and_then(Value::as_str).unwrap_or_default();
        created.len() == self.since.len() && created < &*self.since
    }

    /// Whether an attempt was placed when records were not sealed yet; `None` = it is not placed. A Job of a later one has a
    /// seal, however old it is: its record may have been written for an attempt that was to come.
    pub fn began_after_placing(&self, placed_at: Option<Micros>) -> bool {
        let placed_at = placed_at.and_then(|at| jiff::Timestamp::from_microsecond(at.0).ok());
        let placed_at = placed_at.map(|at| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        // Whole seconds: in that of the upgrade, the former version may have placed it.
        placed_at.is_some_and(|at| at.len() == self.since.len() && *at <= *self.since)
    }

    /// Whether a Job of the API has the seal of its record.
    pub fn is_on(&self, job: &Value) -> bool {
        let Some(sealed) = SealedRecord::of(job) else {
            return false;
        };
        let SealedRecord { at, record, seal } = &sealed;
        // Compared in a time that does not depend on how much of it is right.
        keyed(&self.secret, &["job", at.0, at.1, record])
            .verify_slice(&bytes(seal))
            .is_ok()
    }

    /// Whether a Job of the API has the seal that versions of one day have made, which was no HMAC. No Job is sealed like that
    /// any more.
    pub fn was_on(&self, job: &Value) -> bool {
        let Some(sealed) = SealedRecord::of(job) else {
            return false;
        };
        let SealedRecord { at, record, seal } = &sealed;
        let mut parts = Sha256::new();
        for part in [at.0, at.1, record.as_str()] {
            parts.update(Sha256::digest(part.as_bytes()));
        }
        let sealed = Sha256::new()
            .chain_update(Sha256::digest(self.former.as_bytes()))
            .chain_update(parts.finalize())
            .finalize();
        *seal == hex::encode(sealed)
    }
}

/// What of a Job its seal is about.
struct SealedRecord<'a> {
    /// Namespace and name of the Job.
    at: (&'a str, &'a str),
    record: String,
    seal: String,
}

impl<'a> SealedRecord<'a> {
    fn of(job: &'a Value) -> Option<Self> {
        let text = |pointer: &str| job.pointer(pointer).and_then(Value::as_str);
        let mut annotations = json::texts(job, &["metadata", "annotations"]);
        Some(Self {
            at: (
                text("/metadata/namespace").unwrap_or_default(),
                text("/metadata/name").unwrap_or_default(),
            ),
            record: annotations.remove(RECORD_ANNOTATION)?,
            seal: annotations.remove(SEAL_ANNOTATION)?,
        })
    }
}

/// An HMAC of texts, each with its length before it, so that none continues another one. Its key is the hash of the secret,
/// which has a length that every key may have.
fn keyed(secret: &str, texts: &[&str]) -> Hmac<Sha256> {
    let mut key = Key::<Hmac<Sha256>>::default();
    for (place, byte) in key.iter_mut().zip(Sha256::digest(secret.as_bytes())) {
        *place = byte;
    }
    let mut mac = Hmac::<Sha256>::new(&key);
    for text in texts {
        mac.update(&(text.len() as u64).to_be_bytes());
        mac.update(text.as_bytes());
    }
    mac
}

/// What a secret and texts made before there was an HMAC.
fn former(secret: &str, texts: &[&str]) -> String {
    let mut of_texts = Sha256::new().chain_update(Sha256::digest(secret.as_bytes()));
    for text in texts {
        of_texts.update(Sha256::digest(text.as_bytes()));
    }
    hex::encode(of_texts.finalize())
}

/// The bytes that hexadecimal digits encode; none for what is no seal.
fn bytes(digits: &str) -> Vec<u8> {
    let bytes = hex::decode(digits).unwrap_or_default();
    // Seals are written in lower case.
    if hex::encode(&bytes) == digits {
        bytes
    } else {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(namespace: &str, name: &str, record: &str, seal: &str) -> Value {
        json!({"metadata": {
            "namespace": namespace, "name": name, "creationTimestamp": "2026-11-26T12:00:00Z",
            "annotations": {RECORD_ANNOTATION: record, SEAL_ANNOTATION: seal},
        }})
    }

    #[test]
    fn a_seal_is_of_one_record_in_one_job_and_one_installation() {
        let own = Seal::new("secret", "2026-11-26T12:00:00Z");
        let seal = own.of(("tasks", "det-1"), "record");
        assert!(own.is_on(&job("tasks", "det-1", "record", &seal)));
        assert!(!own.is_on(&job("tasks", "det-2", "record", &seal)));
        assert!(!own.is_on(&job("other", "det-1", "record", &seal)));
        assert!(!own.is_on(&job("tasks", "det-1", "another", &seal)));
        assert!(!own.is_on(&json!({"metadata": {"namespace": "tasks", "name": "det-1"}})));
        let of_another = own.of_manager("b").of(("tasks", "det-1"), "record");
        let of_a_manager = own.of_manager("a");
        assert!(!of_a_manager.is_on(&job("tasks", "det-1", "record", &of_another)));
        let of_its_own = of_a_manager.of(("tasks", "det-1"), "record");
        assert!(of_a_manager.is_on(&job("tasks", "det-1", "record", &of_its_own)));
        let other = Seal::new("another", "2026-11-26T12:00:00Z");
        assert!(!other.is_on(&job("tasks", "det-1", "record", &seal)));
        // The HMAC of RFC 2104: the key is SHA-256 of "secret".
        assert_eq!(
            seal,
            "c07800ce4e6c39b9395b6a03bca35ca62b74a95ebc518290331a680c0b68bd6a"
        );
        // Nothing of the secret is shown.
        assert!(!format!("{own:?}").contains("secret"));
    }

    #[test]
    fn the_seal_of_versions_before_is_known_and_not_made() {
        let own = Seal::new("secret", "").of_manager("a");
        let before = "e251ba9ef6e4764f8aedf682ba6ef87a3fde3333f3337aecd8e60dd22967db7c";
        let job = |seal: &str| job("tasks", "det-1", "record", seal);
        assert!(own.was_on(&job(before)) && !own.is_on(&job(before)));
        let now = own.of(("tasks", "det-1"), "record");
        assert!(own.is_on(&job(&now)) && !own.was_on(&job(&now)));
        assert!(
            !Seal::new("another", "")
                .of_manager("a")
                .was_on(&job(before))
        );
        for odd in ["", "0", "zz", "+1+1", "é", &now[2..], &now.to_uppercase()] {
            assert!(!own.is_on(&job(odd)) && !own.was_on(&job(odd)), "{odd}");
        }
    }

    #[test]
    fn jobs_of_before_need_none() {
        let later = Seal::new("secret", "2026-11-26T12:00:01Z");
        assert!(later.began_after(&job("tasks", "det-1", "record", "")));
        for since in ["2026-11-26T12:00:00Z", ""] {
            let earlier = Seal::new("secret", since);
            assert!(!earlier.began_after(&job("tasks", "det-1", "record", "")));
        }
    }

    #[test]
    fn attempts_that_were_placed_before_the_seals_need_none() {
        let own = Seal::new("secret", "2026-11-26T12:00:00Z");
        // 2026-11-26T12:00:00Z.
        let since = 1_795_694_400_000_000;
        for (placed_at, expected) in [
            (None, false),
            (Some(0), true),
            (Some(since), true),
            (Some(since + 1_000_000), false),
            (Some(i64::MAX), false),
        ] {
            let placed_at = placed_at.map(Micros);
            assert_eq!(
                own.began_after_placing(placed_at),
                expected,
                "{placed_at:?}"
            );
        }
        assert!(!Seal::new("secret", "").began_after_placing(Some(Micros(0))));
    }
}
