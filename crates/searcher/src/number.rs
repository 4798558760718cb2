//! Numbers: conversions with documented loss, the order of metrics, and their form in JSON.

use std::cmp::Ordering;

/// A count as a real number; exact up to 2^53, far above [`crate::MAX_TRIALS`] and any training length.
#[expect(clippy::cast_precision_loss, reason = "stated in the comment")]
pub(crate) fn real(count: u64) -> f64 {
    count as f64
}

/// The whole part of a real number as a count; below 0 and NaN give 0, too large gives the largest count.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "stated in the comment"
)]
pub(crate) fn whole(value: f64) -> u64 {
    value as u64
}

/// A length in memory as a count.
pub(crate) fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// The order of metrics, best first, when smaller is better: numbers, +∞, NaN. Every NaN equals every other.
pub(crate) fn best_first(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b)
        .unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// A real number in JSON: a number, or one of the strings `NaN`, `Infinity`, `-Infinity`.
///
/// For `#[serde(with = "...")]`.
pub(crate) mod exact {
    use std::fmt;

    use serde::de::{Deserializer, Error, Visitor};
    use serde::ser::Serializer;

    use super::real;

    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde hands the field by reference"
    )]
    pub(crate) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        if value.is_finite() {
            serializer.serialize_f64(*value)
        } else if value.is_nan() {
            serializer.serialize_str("NaN")
        } else if *value > 0.0 {
            serializer.serialize_str("Infinity")
        } else {
            serializer.serialize_str("-Infinity")
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(source: D) -> Result<f64, D::Error> {
        source.deserialize_any(NumberVisitor)
    }

    struct NumberVisitor;

    impl Visitor<'_> for NumberVisitor {
        type Value = f64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a number, \"NaN\", \"Infinity\" or \"-Infinity\"")
        }

        fn visit_f64<E: Error>(self, value: f64) -> Result<f64, E> {
            Ok(value)
        }

        fn visit_u64<E: Error>(self, value: u64) -> Result<f64, E> {
            Ok(real(value))
        }

        #[expect(
            clippy::cast_precision_loss,
            reason = "a metric is a real number; an integer beyond 2^53 is rounded to one"
        )]
        fn visit_i64<E: Error>(self, value: i64) -> Result<f64, E> {
            Ok(value as f64)
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<f64, E> {
            match text {
                "NaN" => Ok(f64::NAN),
                "Infinity" => Ok(f64::INFINITY),
                "-Infinity" => Ok(f64::NEG_INFINITY),
                other => Err(E::invalid_value(serde::de::Unexpected::Str(other), &self)),
            }
        }
    }

    /// The same for a number that may be absent (`null`).
    pub(crate) mod optional {
        use serde::de::Deserializer;
        use serde::ser::Serializer;
        use serde::{Deserialize, Serialize};

        #[derive(Serialize, Deserialize)]
        struct Exact(#[serde(with = "super")] f64);

        #[expect(clippy::ref_option, reason = "serde hands the field by reference")]
        pub(crate) fn serialize<S: Serializer>(
            value: &Option<f64>,
            serializer: S,
        ) -> Result<S::Ok, S::Error> {
            value.map(Exact).serialize(serializer)
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
            source: D,
        ) -> Result<Option<f64>, D::Error> {
            Ok(Option::<Exact>::deserialize(source)?.map(|exact| exact.0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_is_worse_than_every_number_and_equal_to_itself() {
        let mut metrics = [
            f64::NAN,
            1.0,
            f64::INFINITY,
            -0.0,
            f64::NEG_INFINITY,
            -f64::NAN,
        ];
        metrics.sort_by(|a, b| best_first(*a, *b));
        assert!(metrics[4].is_nan() && metrics[5].is_nan());
        assert_eq!(metrics[..4], [f64::NEG_INFINITY, 0.0, 1.0, f64::INFINITY]);
        assert_eq!(best_first(f64::NAN, -f64::NAN), Ordering::Equal);
        assert_eq!(best_first(0.0, -0.0), Ordering::Equal);
    }
}
