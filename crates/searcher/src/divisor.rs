//! The divisor of a halving search, and the arithmetic that must not use floating-point logarithms.

use det_config::limits::floor_log;

use crate::number::{real, whole};

/// The share of trials that continues is `1/divisor`. Above 1, may be fractional.
///
/// A whole divisor, the usual case, is computed with integers: exact at every power.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Divisor {
    Whole(u64),
    Fractional(f64),
}

impl Divisor {
    /// `None` unless `divisor` is finite and above 1.
    pub(crate) fn new(divisor: f64) -> Option<Self> {
        if !(divisor.is_finite() && divisor > 1.0) {
            return None;
        }
        let is_whole = divisor.fract() == 0.0 && divisor < real(u64::MAX);
        Some(if is_whole {
            Self::Whole(whole(divisor))
        } else {
            Self::Fractional(divisor)
        })
    }

    /// The divisor without its fraction.
    pub(crate) fn floor(self) -> u64 {
        match self {
            Self::Whole(d) => d,
            Self::Fractional(d) => whole(d),
        }
    }

    /// The divisor as a real number.
    pub(crate) fn value(self) -> f64 {
        match self {
            Self::Whole(d) => real(d),
            Self::Fractional(d) => d,
        }
    }

    /// `floor(log_d x)`, but at most `at_most`; 0 if `x` is 0.
    pub(crate) fn floor_log(self, x: u64, at_most: u64) -> u64 {
        let mut exponent = 0;
        match self {
            Self::Whole(d) => {
                let mut left = x / d;
                while left > 0 && exponent < at_most {
                    exponent += 1;
                    left /= d;
                }
            }
            Self::Fractional(d) => exponent = floor_log(d, x, at_most),
        }
        exponent
    }

    /// `floor(x / d^exponent)`.
    pub(crate) fn shrink(self, x: u64, exponent: u64) -> u64 {
        match self {
            Self::Whole(d) => {
                let mut left = x;
                for _ in 0..exponent {
                    left /= d;
                    if left == 0 {
                        break;
                    }
                }
                left
            }
            Self::Fractional(d) => {
                let mut power = 1.0;
                for _ in 0..exponent {
                    power *= d;
                    if power > real(x) {
                        return 0;
                    }
                }
                whole(real(x) / power)
            }
        }
    }

    /// `floor(d^exponent)`, but at most `at_most`.
    pub(crate) fn floor_power(self, exponent: u64, at_most: u64) -> u64 {
        match self {
            Self::Whole(d) => {
                let mut power: u64 = 1;
                for _ in 0..exponent {
                    power = power.saturating_mul(d);
                    if power >= at_most {
                        break;
                    }
                }
                power.min(at_most)
            }
            Self::Fractional(d) => {
                let mut power = 1.0;
                for _ in 0..exponent {
                    power *= d;
                    if power >= real(at_most) {
                        break;
                    }
                }
                whole(power).min(at_most)
            }
        }
    }

    /// How many of `entries` continue: `max(1, floor(entries / d))`.
    pub(crate) fn share(self, entries: u64) -> u64 {
        self.shrink(entries, 1).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divisor(d: f64) -> Divisor {
        Divisor::new(d).expect("valid divisor")
    }

    #[test]
    fn a_divisor_is_a_finite_number_above_one() {
        for refused in [1.0, 0.5, 0.0, -4.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Divisor::new(refused), None, "{refused}");
        }
        assert_eq!(divisor(4.0), Divisor::Whole(4));
        assert_eq!(divisor(2.5), Divisor::Fractional(2.5));
        assert_eq!(divisor(1e300).floor_log(u64::MAX, 9), 0);
    }

    #[test]
    fn logarithms_are_exact_at_powers() {
        // 1000 to the base 10 and 243 to the base 3 are the cases that floating-point logarithms get wrong.
        for (d, x, log) in [
            (10.0, 1000, 3),
            (10.0, 999, 2),
            (3.0, 243, 5),
            (3.0, 242, 4),
            (4.0, 4096, 6),
            (4.0, 1, 0),
            (4.0, 0, 0),
            (2.0, 1 << 63, 63),
            (2.5, 15, 2),
            (2.5, 16, 3),
            (1.5, 3, 2),
        ] {
            assert_eq!(divisor(d).floor_log(x, 99), log, "log {x} to the base {d}");
        }
        assert_eq!(divisor(2.0).floor_log(1 << 40, 5), 5);
    }

    #[test]
    fn powers_and_quotients_do_not_overflow() {
        assert_eq!(divisor(4.0).shrink(200, 2), 12);
        assert_eq!(divisor(2.5).shrink(250, 2), 40);
        assert_eq!(divisor(4.0).shrink(u64::MAX, 1000), 0);
        assert_eq!(divisor(1.5).shrink(u64::MAX, 100_000), 0);
        assert_eq!(divisor(4.0).floor_power(2, 100), 16);
        assert_eq!(divisor(4.0).floor_power(1000, 100), 100);
        assert_eq!(divisor(2.5).floor_power(2, 100), 6);
        assert_eq!(divisor(2.5).floor_power(1000, 100), 100);
    }

    #[test]
    fn at_least_one_trial_goes_on() {
        let shares: Vec<u64> = (1..=9).map(|entries| divisor(4.0).share(entries)).collect();
        assert_eq!(shares, [1, 1, 1, 1, 1, 1, 1, 2, 2]);
        assert_eq!(divisor(1.5).share(3), 2);
    }
}
