//! What log policies have found in the logs of a task, and what follows for its later attempts.

use std::collections::BTreeSet;

use det_ids::PlaceId;
use serde::{Deserialize, Serialize};

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
        let is_new = self.exclusions.insert((place.clone(), pattern.to_owned()));
        if is_new {
            self.excluded_places.insert(place);
        }
        is_new
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
