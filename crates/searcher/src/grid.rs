//! Grid search: every point of the product of all axes, once.
//!
//! Points are numbered and computed when needed; a grid holds only the number of the next one.

use std::collections::BTreeMap;

use det_config::hyperparameters::{Hyperparameter, Space};
use det_config::limits::{axis_length, grid_points};
use serde_json::{Map, Value};

use crate::error::SearchError;
use crate::number::real;
use crate::sample::{leaves, number, pick};

/// The state of a grid search. It stops no trial and uses no metric.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Grid {
    pub(crate) points: u64,
    /// The most trials that may exist at once without having ended.
    places: u64,
    /// Number of the next point.
    next: u64,
    /// Trials that have not ended.
    live: u64,
}

impl Grid {
    /// `max_concurrent_trials` 0 means no limit.
    pub(crate) fn new(points: u64, max_concurrent_trials: u64) -> Self {
        Self {
            points,
            places: if max_concurrent_trials == 0 {
                u64::MAX
            } else {
                max_concurrent_trials
            },
            next: 0,
            live: 0,
        }
    }

    /// Whether a trial may start now.
    pub(crate) fn may_claim(&self) -> bool {
        self.live < self.places && self.next < self.points
    }

    /// The number of the next point, if a trial may start now.
    pub(crate) fn claim(&mut self) -> Option<u64> {
        self.may_claim().then(|| {
            self.live += 1;
            self.next += 1;
            self.next - 1
        })
    }

    /// Records that a trial has ended.
    pub(crate) fn ended(&mut self) {
        self.live -= 1;
    }

    /// Restores a grid of which trials have used `created` points; `live` of these trials have not ended.
    pub(crate) fn resume(&mut self, created: u64, live: u64) -> Result<(), SearchError> {
        if created > self.points {
            return Err(SearchError::snapshot(format!(
                "it holds {created} trials, but the grid has {} points",
                self.points
            )));
        }
        self.next = created;
        self.live = live;
        Ok(())
    }
}

/// The number of points of a grid over `space`; 1 for an empty space.
pub(crate) fn points(space: &Space) -> Result<u64, SearchError> {
    leaves(space, "", &mut |path, leaf| {
        let count = match leaf {
            Hyperparameter::Int { count, .. }
            | Hyperparameter::Double { count, .. }
            | Hyperparameter::Log { count, .. } => count,
            Hyperparameter::Const(_)
            | Hyperparameter::Categorical(_)
            | Hyperparameter::Group(_) => return Ok(()),
        };
        let problem = match count {
            None => "a grid search needs a count here",
            Some(0) => "count is 0, at least 1 is needed",
            Some(_) => return Ok(()),
        };
        Err(SearchError::Hyperparameter {
            path: path.to_owned(),
            problem: problem.to_owned(),
        })
    })?;
    grid_points(space).map_err(|points| SearchError::GridTooLarge { points })
}

/// Point number `index` of the grid over `space`: names in sorted order; the last axis varies fastest.
///
/// `space` must have passed [`points`]; indices wrap around at its result.
pub(crate) fn point(space: &Space, index: u64) -> Map<String, Value> {
    let mut left = index;
    values(space, &mut left).into_iter().collect()
}

fn values(space: &Space, left: &mut u64) -> BTreeMap<String, Value> {
    let mut point = BTreeMap::new();
    for (name, parameter) in space.iter().rev() {
        let value = if let Hyperparameter::Group(group) = parameter {
            Value::Object(values(group, left).into_iter().collect())
        } else {
            let length = axis_length(parameter);
            let step = *left % length;
            *left /= length;
            axis_value(parameter, length, step)
        };
        point.insert(name.clone(), value);
    }
    point
}

/// Value number `step` of an axis of `length` points.
fn axis_value(parameter: &Hyperparameter, length: u64, step: u64) -> Value {
    match parameter {
        Hyperparameter::Const(value) => value.clone(),
        Hyperparameter::Group(_) => Value::Object(Map::new()),
        Hyperparameter::Categorical(values) => pick(values, step),
        Hyperparameter::Int { minval, maxval, .. } => {
            Value::from(int_step(*minval, *maxval, length, step))
        }
        Hyperparameter::Double { minval, maxval, .. } => {
            number(real_step(*minval, *maxval, length, step))
        }
        Hyperparameter::Log {
            minval,
            maxval,
            base,
            ..
        } => number(base.powf(real_step(*minval, *maxval, length, step))),
    }
}

/// `min + step · (max − min) / (length − 1)`, the middle for one point; halves away from zero.
fn int_step(min: i64, max: i64, length: u64, step: u64) -> i64 {
    let (min, max) = (i128::from(min), i128::from(max));
    let (sum, parts) = if length <= 1 {
        (min + max, 2)
    } else {
        let parts = i128::from(length - 1);
        // `length` is at most MAX_TRIALS, so the products stay far below 2^127.
        (min * parts + i128::from(step) * (max - min), parts)
    };
    let magnitude = (2 * sum.abs() + parts) / (2 * parts);
    i64::try_from(magnitude * sum.signum())
        .expect("a value between two 64-bit integers is a 64-bit integer")
}

/// As [`int_step`] for reals. The last point is exactly `max`.
fn real_step(min: f64, max: f64, length: u64, step: u64) -> f64 {
    if length <= 1 {
        min + (max - min) / 2.0
    } else if step + 1 >= length {
        max
    } else {
        min + real(step) * ((max - min) / real(length - 1))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn space(names: impl IntoIterator<Item = (&'static str, Hyperparameter)>) -> Space {
        names
            .into_iter()
            .map(|(name, parameter)| (name.to_owned(), parameter))
            .collect()
    }

    fn int(minval: i64, maxval: i64, count: u64) -> Hyperparameter {
        Hyperparameter::Int {
            minval,
            maxval,
            count: Some(count),
        }
    }

    fn axis(parameter: Hyperparameter) -> Vec<Value> {
        let space = space([("x", parameter)]);
        let points = points(&space).expect("a grid");
        (0..points)
            .map(|index| point(&space, index)["x"].clone())
            .collect()
    }

    #[test]
    fn integer_axes_round_halves_away_from_zero_and_repeat_no_value() {
        for (minval, maxval, count, expected) in [
            (0, 10, 3, json!([0, 5, 10])),
            (0, 5, 3, json!([0, 3, 5])),
            (-5, 0, 3, json!([-5, -3, 0])),
            (1, 4, 9, json!([1, 2, 3, 4])),
            (1, 4, 1, json!([3])),
            (-4, -1, 1, json!([-3])),
            (-1, 2, 1, json!([1])),
            (8, 64, 4, json!([8, 27, 45, 64])),
            (i64::MIN, i64::MAX, 3, json!([i64::MIN, -1, i64::MAX])),
        ] {
            assert_eq!(
                Value::Array(axis(int(minval, maxval, count))),
                expected,
                "{minval}..={maxval} in {count}"
            );
        }
    }

    #[test]
    fn real_axes_hold_both_ends() {
        let double = |minval, maxval, count| {
            axis(Hyperparameter::Double {
                minval,
                maxval,
                count: Some(count),
            })
        };
        assert_eq!(double(0.0, 1.0, 5), [0.0, 0.25, 0.5, 0.75, 1.0]);
        assert_eq!(double(0.0, 1.0, 1), [0.5]);
        assert_eq!(double(0.1, 0.3, 2), [0.1, 0.3]);
        let log = |minval, maxval, count| {
            axis(Hyperparameter::Log {
                minval,
                maxval,
                base: 10.0,
                count: Some(count),
            })
        };
        assert_eq!(log(0.0, 2.0, 3), [1.0, 10.0, 100.0]);
        assert_eq!(log(0.0, 2.0, 1), [10.0]);
    }

    #[test]
    fn points_run_through_sorted_names_with_the_last_axis_fastest() {
        let space = space([
            (
                "z",
                Hyperparameter::Categorical(vec![json!("a"), json!(null)]),
            ),
            (
                "m",
                Hyperparameter::Group(space([
                    ("n", int(1, 2, 2)),
                    ("none", Hyperparameter::Group(Space::new())),
                ])),
            ),
            ("c", Hyperparameter::Const(json!([1, 2]))),
        ]);
        assert_eq!(points(&space), Ok(4));
        let all: Vec<Value> = (0..4)
            .map(|index| Value::Object(point(&space, index)))
            .collect();
        assert_eq!(
            all,
            [
                json!({"c": [1, 2], "m": {"n": 1, "none": {}}, "z": "a"}),
                json!({"c": [1, 2], "m": {"n": 1, "none": {}}, "z": null}),
                json!({"c": [1, 2], "m": {"n": 2, "none": {}}, "z": "a"}),
                json!({"c": [1, 2], "m": {"n": 2, "none": {}}, "z": null}),
            ]
        );
    }

    #[test]
    fn an_empty_space_is_one_point() {
        assert_eq!(points(&Space::new()), Ok(1));
        assert_eq!(point(&Space::new(), 0), Map::new());
    }

    #[test]
    fn ranges_without_a_count_and_too_large_grids_are_refused() {
        let no_count = space([(
            "a",
            Hyperparameter::Group(space([(
                "b",
                Hyperparameter::Double {
                    minval: 0.0,
                    maxval: 1.0,
                    count: None,
                },
            )])),
        )]);
        let refusal = points(&no_count).expect_err("no count").to_string();
        assert_eq!(
            refusal,
            "hyperparameters.a.b: a grid search needs a count here"
        );
        assert!(points(&space([("a", int(0, 9, 0))])).is_err());
        let wide = space([("a", int(0, 9_999, 10_000)), ("b", int(0, 9_999, 10_000))]);
        let refusal = points(&wide).expect_err("too large").to_string();
        assert!(
            refusal.starts_with("the grid has 100000000 points"),
            "{refusal}"
        );
        let endless = space([
            ("a", int(i64::MIN, i64::MAX, u64::MAX)),
            ("b", int(i64::MIN, i64::MAX, u64::MAX)),
        ]);
        let refusal = points(&endless).expect_err("too large").to_string();
        assert!(
            refusal.starts_with("the grid has more than 2^64 points"),
            "{refusal}"
        );
    }

    #[test]
    fn a_grid_respects_its_concurrency_and_ends() {
        let mut grid = Grid::new(3, 2);
        assert_eq!(
            (grid.claim(), grid.claim(), grid.claim()),
            (Some(0), Some(1), None)
        );
        grid.ended();
        assert_eq!((grid.claim(), grid.claim()), (Some(2), None));
        grid.ended();
        assert_eq!(grid.claim(), None);
        assert!(Grid::new(3, 0).resume(4, 1).is_err());
    }
}
