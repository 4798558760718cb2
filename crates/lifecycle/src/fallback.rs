//! Several pools that the requests of a job may go to, one after the other (`docs/contract/scheduling.md`, "Several pools").

use serde::{Deserialize, Serialize};

/// Where a job's requests may go; stored with the job as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fallback {
    /// All its pools in the order of preference, its own among them.
    pub pools: Vec<String>,
    /// What a request waits before the next pool counts as well, microseconds; above 0.
    pub wait: i64,
}

impl Fallback {
    /// The pools open to a request made at `requested`, and how long until one more is; both moments and the answer in
    /// microseconds.
    pub fn open(&self, requested: i64, now: i64) -> (&[String], Option<i64>) {
        let wait = self.wait.max(1);
        let steps = now.saturating_sub(requested).max(0) / wait;
        let open = usize::try_from(steps)
            .unwrap_or(usize::MAX)
            .saturating_add(1)
            .min(self.pools.len());
        let next = (open < self.pools.len()).then(|| {
            let due = requested.saturating_add(wait.saturating_mul(steps.saturating_add(1)));
            due.saturating_sub(now).max(1)
        });
        (&self.pools[..open], next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_more_pool_is_open_after_each_wait() {
        let fallback = Fallback {
            pools: ["a", "b", "c"].map(str::to_owned).to_vec(),
            wait: 100,
        };
        let open = |now| {
            let (open, next) = fallback.open(1_000, now);
            (open.join(""), next)
        };
        assert_eq!(open(900), ("a".into(), Some(200)));
        assert_eq!(open(1_000), ("a".into(), Some(100)));
        assert_eq!(open(1_099), ("a".into(), Some(1)));
        assert_eq!(open(1_100), ("ab".into(), Some(100)));
        assert_eq!(open(1_200), ("abc".into(), None));
        assert_eq!(open(i64::MAX), ("abc".into(), None));
    }
}
