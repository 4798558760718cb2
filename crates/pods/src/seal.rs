//! Seals: by them the master knows the Jobs that it made from those that others write with its labels and a record of
//! their own.

use std::fmt::{self, Write as _};
use std::sync::Arc;

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
            since: since.into(),
        }
    }

    /// What one manager of several seals with: Jobs in the cluster of another, where other users may create some, are not its.
    #[must_use]
    pub fn of_manager(&self, name: &str) -> Self {
        let of_name = Sha256::new()
            .chain_update(Sha256::digest(self.secret.as_bytes()))
            .chain_update(Sha256::digest(name.as_bytes()))
            .finalize();
        Self {
            secret: hexadecimal(&of_name).into(),
            since: self.since.clone(),
        }
    }

    /// The seal of the record of a Job, in hexadecimal digits. It is of this Job alone, by its namespace and name.
    pub fn of(&self, (namespace, job): (&str, &str), record: &str) -> String {
        // Texts are hashed before they are put together, so that none continues another one, and what is hashed with the
        // secret has one length.
        let mut parts = Sha256::new();
        for part in [namespace, job, record] {
            parts.update(Sha256::digest(part.as_bytes()));
        }
        let sealed = Sha256::new()
            .chain_update(Sha256::digest(self.secret.as_bytes()))
            .chain_update(parts.finalize())
            .finalize();
        hexadecimal(&sealed)
    }

    /// Whether records were not sealed yet when a Job of the API was created. The time of its creation is the API server's.
    pub fn began_after(&self, job: &Value) -> bool {
        let created = job.pointer("/metadata/creationTimestamp");
        let created = created.and_then(Value::as_str).unwrap_or_default();
        created.len() == self.since.len() && created < &*self.since
    }

    /// Whether a Job of the API has the seal of its record.
    pub fn is_on(&self, job: &Value) -> bool {
        let text = |pointer: &str| job.pointer(pointer).and_then(Value::as_str);
        let annotations = json::texts(job, &["metadata", "annotations"]);
        let (Some(record), Some(seal)) = (
            annotations.get(RECORD_ANNOTATION),
            annotations.get(SEAL_ANNOTATION),
        ) else {
            return false;
        };
        let at = (
            text("/metadata/namespace").unwrap_or_default(),
            text("/metadata/name").unwrap_or_default(),
        );
        *seal == self.of(at, record)
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        // A `String` takes every text.
        let _ = write!(text, "{byte:02x}");
    }
    text
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
        // Nothing of the secret is shown.
        assert!(!format!("{own:?}").contains("secret"));
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
}
