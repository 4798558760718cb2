//! What log policies have found in the logs of a task, and what follows for its later attempts.

use std::collections::BTreeSet;

use det_ids::PlaceId;
use serde::{Deserialize, Serialize};

/// Bytes of places and patterns that are kept to report each exclusion once; beyond them a place is reported once.
const MOST_EXCLUSION_BYTES: usize = 64 << 10;

/// What log policies have found in the logs of a task. A trial that is continued in another task takes them with it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogFindings {
    /// Policies that matched, the first one first.
    pub matched: Vec<String>,
    /// Places that later attempts avoid.
    #[serde(rename = "excluded_agents")]
    pub excluded_places: BTreeSet<PlaceId>,
    /// Place and pattern for each exclusion that was made: each is reported once.
    exclusions: BTreeSet<(PlaceId, String)>,
    /// The policy after whose match the task is not started again when it fails.
    pub retries_canceled_by: Option<String>,
}

impl LogFindings {
    /// A policy has matched; whether it is the first time.
    pub fn add_match(&mut self, policy: &str) -> bool {
        let is_new = !self.matched.iter().any(|known| known == policy);
        if is_new {
            self.matched.push(policy.to_owned());
        }
        is_new
    }

    /// Later attempts avoid a place because of a pattern; whether that is new.
    pub fn exclude(&mut self, place: PlaceId, pattern: &str) -> bool {
        let is_new = self.excluded_places.insert(place.clone());
        let exclusions = self.exclusions.iter();
        let kept: usize = exclusions
            .map(|(place, text)| place.as_str().len() + text.len())
            .sum();
        if kept + place.as_str().len() + pattern.len() > MOST_EXCLUSION_BYTES {
            return is_new;
        }
        self.exclusions.insert((place, pattern.to_owned()))
    }

    /// Places that attempts must not run on, as an allocation's row contains them; `None` = any will do.
    pub fn exclusions(&self) -> Option<BTreeSet<PlaceId>> {
        (!self.excluded_places.is_empty()).then(|| self.excluded_places.clone())
    }

    /// Of a trial that is continued: what its earlier runs printed does not forbid restarts any more. Places that it avoids
    /// stay avoided.
    #[must_use]
    pub fn continued(self) -> Self {
        Self {
            retries_canceled_by: None,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_match_and_each_exclusion_is_reported_once() {
        let mut findings = LogFindings::default();
        assert_eq!(findings.exclusions(), None);
        assert!(findings.add_match("oom") && !findings.add_match("oom"));
        assert!(findings.exclude("a".into(), "bus error"));
        assert!(!findings.exclude("a".into(), "bus error"));
        assert!(
            findings.exclude("a".into(), "ECC"),
            "another pattern is another report"
        );
        assert_eq!(findings.exclusions(), Some(["a".into()].into()));
    }

    #[test]
    fn what_is_kept_of_exclusions_is_bounded() {
        let mut findings = LogFindings::default();
        let pattern = "x".repeat(1 << 10);
        for n in 0..1_000 {
            assert!(findings.exclude(format!("place-{n}").into(), &pattern));
            assert!(!findings.exclude(format!("place-{n}").into(), &pattern));
        }
        assert_eq!(findings.excluded_places.len(), 1_000);
        assert!(serde_json::to_string(&findings).unwrap().len() < 128 << 10);
    }

    #[test]
    fn a_trial_that_is_continued_may_restart_and_avoids_the_same_places() {
        let mut findings = LogFindings {
            retries_canceled_by: Some("oom".to_owned()),
            ..LogFindings::default()
        };
        findings.exclude("a".into(), "bus error");
        let continued = findings.clone().continued();
        assert_eq!(continued.retries_canceled_by, None);
        assert_eq!(continued.exclusions(), findings.exclusions());
    }

    #[test]
    fn what_is_stored_reads_as_the_same() {
        let stored = r#"{"matched":["x"],"excluded_agents":["a"],"exclusions":[["a","p"]],"retries_canceled_by":"x"}"#;
        let findings: LogFindings = serde_json::from_str(stored).unwrap();
        assert_eq!(serde_json::to_string(&findings).unwrap(), stored);
    }
}
