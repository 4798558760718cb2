//! Draws a trial's hyperparameters from the space.

use det_config::hyperparameters::{Hyperparameter, Space};
use det_config::limits::{log_problem, range_problem};
use serde_json::{Map, Number, Value};

use crate::error::SearchError;
use crate::number::count;
use crate::rng::Mt19937;

/// Draws one value for every leaf, names in sorted order; a group is sorted by its own name.
///
/// The order and the words used per leaf are part of the stream that `NumPy` users compare with: a constant draws
/// nothing, an integer or a choice one bounded integer, a real one real.
pub(crate) fn draw(space: &Space, stream: &mut Mt19937) -> Map<String, Value> {
    space
        .iter()
        .map(|(name, parameter)| (name.clone(), draw_one(parameter, stream)))
        .collect()
}

fn draw_one(parameter: &Hyperparameter, stream: &mut Mt19937) -> Value {
    match parameter {
        Hyperparameter::Const(value) => value.clone(),
        Hyperparameter::Int { minval, maxval, .. } => {
            let above = stream.at_most(maxval.abs_diff(*minval));
            Value::from(minval.saturating_add_unsigned(above))
        }
        Hyperparameter::Double { minval, maxval, .. } => number(stream.uniform(*minval, *maxval)),
        Hyperparameter::Log {
            minval,
            maxval,
            base,
            ..
        } => number(base.powf(stream.uniform(*minval, *maxval))),
        Hyperparameter::Categorical(values) => {
            let index = stream.at_most(count(values.len()).saturating_sub(1));
            pick(values, index)
        }
        Hyperparameter::Group(group) => Value::Object(draw(group, stream)),
    }
}

/// The value at `index`.
pub(crate) fn pick(values: &[Value], index: u64) -> Value {
    usize::try_from(index)
        .ok()
        .and_then(|index| values.get(index))
        .expect("an index is drawn below the length of a list that `check` found not empty")
        .clone()
}

/// A hyperparameter that is a real number.
pub(crate) fn number(value: f64) -> Value {
    Number::from_f64(value)
        .map(Value::Number)
        .expect("`check` found both ends of the range finite, and the value is between them")
}

/// Refuses a space from which no value can be drawn.
pub(crate) fn check(space: &Space) -> Result<(), SearchError> {
    leaves(space, "", &mut |path, parameter| {
        problem(parameter).map_or(Ok(()), |problem| {
            Err(SearchError::Hyperparameter {
                path: path.to_owned(),
                problem,
            })
        })
    })
}

/// Visits every leaf with its path, in sorted order, until one is refused.
pub(crate) fn leaves(
    space: &Space,
    above: &str,
    visit: &mut dyn FnMut(&str, &Hyperparameter) -> Result<(), SearchError>,
) -> Result<(), SearchError> {
    for (name, parameter) in space {
        let path = if above.is_empty() {
            name.clone()
        } else {
            format!("{above}.{name}")
        };
        match parameter {
            Hyperparameter::Group(group) => leaves(group, &path, visit)?,
            leaf => visit(&path, leaf)?,
        }
    }
    Ok(())
}

fn problem(parameter: &Hyperparameter) -> Option<String> {
    match parameter {
        Hyperparameter::Const(_) | Hyperparameter::Group(_) => None,
        Hyperparameter::Int { minval, maxval, .. } => {
            (minval >= maxval).then(|| format!("minval {minval} must be less than maxval {maxval}"))
        }
        Hyperparameter::Double { minval, maxval, .. } => range_problem(*minval, *maxval),
        Hyperparameter::Log {
            minval,
            maxval,
            base,
            ..
        } => log_problem(*base, *minval, *maxval),
        Hyperparameter::Categorical(values) => values
            .is_empty()
            .then(|| "vals is empty; list at least one value".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn group(names: impl IntoIterator<Item = (&'static str, Hyperparameter)>) -> Space {
        names
            .into_iter()
            .map(|(name, parameter)| (name.to_owned(), parameter))
            .collect()
    }

    fn int(minval: i64, maxval: i64) -> Hyperparameter {
        Hyperparameter::Int {
            minval,
            maxval,
            count: None,
        }
    }

    fn double(minval: f64, maxval: f64) -> Hyperparameter {
        Hyperparameter::Double {
            minval,
            maxval,
            count: None,
        }
    }

    fn log(base: f64, minval: f64, maxval: f64) -> Hyperparameter {
        Hyperparameter::Log {
            minval,
            maxval,
            base,
            count: None,
        }
    }

    #[test]
    fn nested_names_are_drawn_in_sorted_order_from_the_stream_of_numpy() {
        let space = group([
            ("k", Hyperparameter::Const(json!(7))),
            ("e", double(0.0, 1.0)),
            (
                "b",
                Hyperparameter::Group(group([
                    (
                        "d",
                        Hyperparameter::Categorical(vec![json!("x"), json!("y"), json!("z")]),
                    ),
                    ("c", log(10.0, -4.0, -1.0)),
                ])),
            ),
            ("a", int(1, 10)),
        ]);
        // What RandomState(42) gives for randint(0, 10), uniform(-4, -1), randint(0, 3), uniform(0, 1).
        let drawn = draw(&space, &mut Mt19937::new(42));
        assert_eq!(drawn["a"], 7);
        assert_eq!(drawn["b"]["d"], "z");
        assert_eq!(drawn["e"], 0.731_993_941_811_405_1);
        assert_eq!(drawn["k"], 7);
        let c = drawn["b"]["c"].as_f64().expect("a number");
        assert!((c / 0.024_526_126_311_336_768 - 1.0).abs() < 1e-14, "{c}");
    }

    #[test]
    fn both_ends_of_an_integer_range_are_drawn() {
        let space = group([("n", int(-1, 1))]);
        let mut stream = Mt19937::new(1);
        let drawn: std::collections::BTreeSet<i64> = (0..100)
            .filter_map(|_| draw(&space, &mut stream)["n"].as_i64())
            .collect();
        assert_eq!(drawn, [-1, 0, 1].into());
        let widest = group([("n", int(i64::MIN, i64::MAX))]);
        assert!(draw(&widest, &mut stream)["n"].is_i64());
    }

    #[test]
    fn what_cannot_be_drawn_is_refused_with_its_path() {
        let nested =
            |parameter| group([("model", Hyperparameter::Group(group([("x", parameter)])))]);
        for (parameter, words) in [
            (int(3, 3), "minval 3 must be less than maxval 3"),
            (double(1.0, 0.0), "minval 1 must be less than maxval 0"),
            (double(f64::NAN, 0.0), "must be less than"),
            (double(f64::MIN, f64::MAX), "too wide"),
            (double(0.0, f64::INFINITY), "too wide"),
            (log(0.0, -1.0, 1.0), "base 0 must be"),
            (log(f64::NAN, -1.0, 1.0), "base NaN must be"),
            (log(10.0, 0.0, 1000.0), "too large"),
            (Hyperparameter::Categorical(vec![]), "vals is empty"),
        ] {
            let refusal = check(&nested(parameter)).expect_err(words).to_string();
            assert!(
                refusal.starts_with("hyperparameters.model.x: "),
                "{refusal}"
            );
            assert!(refusal.contains(words), "{refusal}");
        }
        assert_eq!(check(&nested(log(0.5, -3.0, 3.0))), Ok(()));
    }
}
