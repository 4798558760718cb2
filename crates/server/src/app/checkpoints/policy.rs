//! Which checkpoints a policy keeps. Pure. `docs/contract/configuration.md`, "Which checkpoints are kept".

use std::collections::{BTreeMap, BTreeSet};

use det_ids::{CheckpointId, TrialId};

/// A checkpoint as the policy sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// The UUID of the checkpoint.
    pub uuid: CheckpointId,
    /// Number of the trial that reported it.
    pub trial_id: TrialId,
    /// Steps that were completed when it was written.
    pub steps: i64,
    /// When it was reported, microseconds; the later of two with equal steps is the later checkpoint.
    pub reported_at: i64,
    /// Its validation; `None` if its step was not validated, or without a finite number.
    pub validation: Option<CheckpointValidation>,
}

/// The validation at a checkpoint's step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CheckpointValidation {
    /// Value of the searcher's metric, always finite.
    pub metric: f64,
    /// When it was reported, microseconds: the earlier of two equal ones is better.
    pub at: i64,
}

/// How many checkpoints to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// How many of the best checkpoints over all trials are kept.
    pub experiment_best: usize,
    /// How many of the best checkpoints of each trial are kept.
    pub trial_best: usize,
    /// Latest of each trial, validated or not.
    pub trial_latest: usize,
    /// Whether a lower metric is better.
    pub smaller_is_better: bool,
}

/// The checkpoints that the policy does not keep, by uuid. `protected` ones (a warm start of some trial) always stay
/// and take no one's place.
pub fn to_delete(
    candidates: &[Candidate],
    protected: &BTreeSet<CheckpointId>,
    policy: &Policy,
) -> Vec<CheckpointId> {
    let mut best: Vec<(&Candidate, CheckpointValidation)> = candidates
        .iter()
        .filter_map(|c| c.validation.map(|validation| (c, validation)))
        .collect();
    best.sort_by(|(a, va), (b, vb)| {
        let order = va.metric.total_cmp(&vb.metric);
        let order = if policy.smaller_is_better {
            order
        } else {
            order.reverse()
        };
        order
            .then(va.at.cmp(&vb.at))
            .then_with(|| a.uuid.cmp(&b.uuid))
    });
    let mut latest: Vec<&Candidate> = candidates.iter().collect();
    latest.sort_by(|a, b| {
        (b.steps, b.reported_at)
            .cmp(&(a.steps, a.reported_at))
            .then_with(|| a.uuid.cmp(&b.uuid))
    });

    let mut kept: BTreeSet<&str> = BTreeSet::new();
    kept.extend(
        best.iter()
            .take(policy.experiment_best)
            .map(|(c, _)| c.uuid.as_str()),
    );
    kept.extend(first_of_each_trial(
        best.iter().map(|(c, _)| *c),
        policy.trial_best,
    ));
    kept.extend(first_of_each_trial(latest.into_iter(), policy.trial_latest));
    candidates
        .iter()
        .filter(|c| !kept.contains(c.uuid.as_str()) && !protected.contains(&c.uuid))
        .map(|c| c.uuid.clone())
        .collect()
}

/// The first `places` of each trial, in the given order.
fn first_of_each_trial<'a>(
    ranked: impl Iterator<Item = &'a Candidate>,
    places: usize,
) -> Vec<&'a str> {
    let mut taken: BTreeMap<TrialId, usize> = BTreeMap::new();
    ranked
        .filter(|candidate| {
            let count = taken.entry(candidate.trial_id).or_default();
            *count += 1;
            *count <= places
        })
        .map(|candidate| candidate.uuid.as_str())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Trial 1 has checkpoints 1 to 5, trial 2 has 6 to 10, in order of their steps.
    fn world() -> Vec<Candidate> {
        let metrics: [Option<f64>; 10] = [
            None,
            None,
            Some(0.6),
            Some(0.5),
            Some(0.4),
            None,
            Some(0.2),
            Some(0.3),
            None,
            None,
        ];
        (1_i64..)
            .zip(metrics)
            .map(|(n, metric)| Candidate {
                uuid: n.to_string().into(),
                trial_id: TrialId(if n <= 5 { 1 } else { 2 }),
                steps: n * 100,
                reported_at: n,
                validation: metric.map(|metric| CheckpointValidation { metric, at: n }),
            })
            .collect()
    }

    fn kept(
        world: &[Candidate],
        protected: &[&str],
        counts: (usize, usize, usize),
        smaller: bool,
    ) -> Vec<i64> {
        let policy = Policy {
            experiment_best: counts.0,
            trial_best: counts.1,
            trial_latest: counts.2,
            smaller_is_better: smaller,
        };
        let protected = protected.iter().map(|u| CheckpointId::from(*u)).collect();
        let deleted = to_delete(world, &protected, &policy);
        world
            .iter()
            .filter(|c| !deleted.contains(&c.uuid))
            .map(|c| c.uuid.as_str().parse().unwrap())
            .collect()
    }

    #[test]
    fn the_reference_table_holds() {
        for (counts, expected) in [
            ((0, 0, 0), &[][..]),
            ((2, 0, 0), &[7, 8]),
            ((5, 0, 0), &[3, 4, 5, 7, 8]),
            ((99, 0, 0), &[3, 4, 5, 7, 8]),
            ((0, 1, 0), &[5, 7]),
            ((0, 3, 0), &[3, 4, 5, 7, 8]),
            ((0, 99, 0), &[3, 4, 5, 7, 8]),
            ((0, 0, 1), &[5, 10]),
            ((0, 0, 3), &[3, 4, 5, 8, 9, 10]),
            ((2, 1, 0), &[5, 7, 8]),
            ((2, 0, 1), &[5, 7, 8, 10]),
            ((0, 1, 1), &[5, 7, 10]),
            ((2, 1, 1), &[5, 7, 8, 10]),
        ] {
            assert_eq!(kept(&world(), &[], counts, true), expected, "{counts:?}");
        }
    }

    #[test]
    fn where_larger_is_better_the_largest_are_kept() {
        assert_eq!(kept(&world(), &[], (1, 1, 0), false), [3, 8]);
    }

    #[test]
    fn a_warm_start_is_never_deleted_and_takes_no_place() {
        assert_eq!(kept(&world(), &["1"], (0, 0, 0), true), [1]);
        assert_eq!(kept(&world(), &["9"], (0, 0, 1), true), [5, 9, 10]);
    }

    #[test]
    fn of_equal_validations_the_earlier_is_better() {
        let mut world = world();
        for candidate in &mut world {
            candidate.validation = Some(CheckpointValidation {
                metric: 1.0,
                at: -candidate.reported_at,
            });
        }
        assert_eq!(kept(&world, &[], (1, 0, 0), true), [10]);
    }

    #[test]
    fn nothing_to_keep_and_nothing_there() {
        assert_eq!(kept(&[], &[], (1, 1, 1), true), Vec::<i64>::new());
    }
}
