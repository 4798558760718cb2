//! What no search can do: bounds and sums over the hyperparameter space, for the checks of a
//! configuration and for the search that is made of it.

use std::fmt;

use crate::hyperparameters::{Hyperparameter, Space};

/// Most trials of one search, counted ones or points of a grid.
///
/// A search remembers every trial; beyond this the settings are rather a slip than a plan.
pub const MAX_TRIALS: u64 = 1_000_000;

/// Most rungs of a halving search, and most brackets. With a divisor of 2 already 64 rungs reach below one unit of any
/// length.
pub const MAX_RUNGS: u64 = 1_000;

/// The points of a grid, as users read them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Points {
    /// The grid has exactly this many points.
    Counted(u64),
    /// More than 64 bits hold.
    Countless,
}

impl fmt::Display for Points {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Counted(points) => write!(f, "{points}"),
            Self::Countless => f.write_str("more than 2^64"),
        }
    }
}

/// The number of points of the grid over `space`; 1 for an empty one.
///
/// # Errors
/// The number, when it is above [`MAX_TRIALS`].
pub fn grid_points(space: &Space) -> Result<u64, Points> {
    match product(space) {
        Some(points) if points <= MAX_TRIALS => Ok(points),
        Some(points) => Err(Points::Counted(points)),
        None => Err(Points::Countless),
    }
}

/// The product of all axis lengths; `None` beyond 64 bits.
fn product(space: &Space) -> Option<u64> {
    space.values().try_fold(1_u64, |points, parameter| {
        points.checked_mul(match parameter {
            Hyperparameter::Group(group) => product(group)?,
            leaf => axis_length(leaf),
        })
    })
}

/// Points of one axis of a grid, at least 1. An axis of integers has no more than there are integers.
pub fn axis_length(parameter: &Hyperparameter) -> u64 {
    let length = match parameter {
        Hyperparameter::Const(_) | Hyperparameter::Group(_) => 1,
        Hyperparameter::Categorical(values) => u64::try_from(values.len()).unwrap_or(u64::MAX),
        Hyperparameter::Int {
            minval,
            maxval,
            count,
        } => count
            .unwrap_or(1)
            .min(maxval.abs_diff(*minval).saturating_add(1)),
        Hyperparameter::Double { count, .. } | Hyperparameter::Log { count, .. } => {
            count.unwrap_or(1)
        }
    };
    length.max(1)
}

/// Why no value can be drawn between two numbers, if so.
pub fn range_problem(minval: f64, maxval: f64) -> Option<String> {
    if minval.is_nan() || maxval.is_nan() || minval >= maxval {
        Some(format!("minval {minval} must be less than maxval {maxval}"))
    } else if (maxval - minval).is_finite() {
        None
    } else {
        Some(format!(
            "the range from minval {minval} to maxval {maxval} is too wide for a number"
        ))
    }
}

/// Why no value can be drawn of the powers of `base` between two exponents, if so.
pub fn log_problem(base: f64, minval: f64, maxval: f64) -> Option<String> {
    if !(base.is_finite() && base > 0.0) {
        return Some(format!("base {base} must be a finite number above 0"));
    }
    let ends_finite = base.powf(minval).is_finite() && base.powf(maxval).is_finite();
    range_problem(minval, maxval).or_else(|| {
        (!ends_finite).then(|| {
            format!(
                "base {base} to the power of minval {minval} or maxval {maxval} is too large for a number"
            )
        })
    })
}

/// `floor(log_divisor x)`, but no more than `at_most`; 0 for `x` 0. `divisor` is above 1.
///
/// A product grown step by step, since logarithms of floating numbers are off by one near whole powers.
pub fn floor_log(divisor: f64, x: u64, at_most: u64) -> u64 {
    #[expect(
        clippy::cast_precision_loss,
        reason = "exact up to 2^53, far above any number of trials or length"
    )]
    let x = x as f64;
    let mut exponent = 0;
    let mut power = divisor;
    while power <= x && exponent < at_most {
        exponent += 1;
        power *= divisor;
    }
    exponent
}
