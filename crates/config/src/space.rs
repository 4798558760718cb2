//! Reads and writes the hyperparameter space: `docs/contract/configuration.md`, "Hyperparameters".

use serde_json::{Map, Number, Value, json};

use crate::errors::{ConfigError, ErrorCode};
use crate::hyperparameters::{Hyperparameter, Space};
use crate::limits::{log_problem, range_problem};
use crate::origin::Position;
use crate::quote::cut;
use crate::schema::{
    Document, Findings, Kind, Special, Stage, Walk, closest, field, section, snake, special,
};
use crate::yaml::{Node, Tree};

/// How the value of the key `hyperparameters` is checked and described.
pub(crate) static SPACE: Special =
    special("map of hyperparameters", schema, check).named("hyperparameters");

fn schema() -> Value {
    let count =
        json!({"type": ["integer", "null"], "minimum": 1, "description": "Points of a grid."});
    let typed = |name: &str, keys: Value, required: &[&str]| {
        let mut properties = Map::from_iter([("type".to_owned(), json!({"const": name}))]);
        if let Value::Object(keys) = keys {
            properties.extend(keys);
        }
        let required: Vec<&str> = ["type"].iter().chain(required).copied().collect();
        json!({
            "type": "object", "properties": properties, "required": required, "additionalProperties": false,
        })
    };
    let number = json!({"type": "number"});
    json!({
        "type": "object",
        "additionalProperties": {"$ref": "#/$defs/hyperparameter"},
        "$defs": {"hyperparameter": {"anyOf": [
            {"type": ["string", "number", "boolean", "null", "array"], "description": "A constant."},
            typed("const", json!({"val": {"description": "Always this value."}}), &["val"]),
            typed("categorical", json!({"vals": {"type": "array", "minItems": 1}}), &["vals"]),
            typed(
                "int",
                json!({"minval": {"type": "integer"}, "maxval": {"type": "integer"}, "count": count}),
                &["minval", "maxval"],
            ),
            typed("double", json!({"minval": number, "maxval": number, "count": count}), &["minval", "maxval"]),
            typed(
                "log",
                json!({
                    "minval": {"type": "number", "description": "Lowest exponent."},
                    "maxval": {"type": "number", "description": "Highest exponent."},
                    "base": {"type": "number", "exclusiveMinimum": 0},
                    "count": count,
                }),
                &["minval", "maxval", "base"],
            ),
            {
                "type": "object",
                "description": "A group of hyperparameters.",
                "properties": {"type": false},
                "additionalProperties": {"$ref": "#/$defs/hyperparameter"},
            },
        ]}},
    })
}

/// The five types and their keys; the bool is whether the key is needed.
const TYPES: &[(&str, &[(&str, bool)])] = &[
    ("const", &[("val", true)]),
    (
        "int",
        &[("minval", true), ("maxval", true), ("count", false)],
    ),
    (
        "double",
        &[("minval", true), ("maxval", true), ("count", false)],
    ),
    (
        "log",
        &[
            ("minval", true),
            ("maxval", true),
            ("base", true),
            ("count", false),
        ],
    ),
    ("categorical", &[("vals", true)]),
];

/// Keys by which a map looks like a hyperparameter that varies.
const RANGE_KEYS: [&str; 3] = ["minval", "maxval", "vals"];

/// Checks the value of `hyperparameters`.
pub(crate) fn check(walk: &mut Walk, node: &mut Node) {
    group(walk.findings, node);
}

/// The space in the map `node`; errors go to `findings`.
pub(crate) fn group(findings: &mut Findings, node: &Node) -> Space {
    let Some(members) = node.members() else {
        findings.error(
            node.at.as_ref(),
            format!("must be a map of hyperparameters, not {}", node.kind()),
        );
        return Space::new();
    };
    let mut space = Space::new();
    for (name, member) in members {
        if let Some(parameter) = findings.within(name, |findings| parameter(findings, member)) {
            space.insert(name.clone(), parameter);
        }
    }
    space
}

/// One node of the space; `None` after an error.
fn parameter(findings: &mut Findings, node: &Node) -> Option<Hyperparameter> {
    let Some(members) = node.members() else {
        return Some(Hyperparameter::Const(node.to_value()));
    };
    let Some(kind) = members.get("type") else {
        // Legal, as every map is, and hardly ever meant.
        let range = RANGE_KEYS.iter().find(|key| members.contains_key(**key));
        if let Some(key) = range {
            findings.warn(
                node.at.as_ref(),
                format!(
                    "is a group of constants although it has \"{key}\": only with a \"type\" (const, int, double, log or \
                     categorical) is it a hyperparameter that varies"
                ),
            );
        }
        return Some(Hyperparameter::Group(group(findings, node)));
    };
    let Some((name, keys)) = TYPES.iter().find(|(name, _)| kind.text() == Some(name)) else {
        let given = kind
            .text()
            .map_or(kind.kind().to_owned(), |text| format!("\"{}\"", cut(text)));
        let near = kind
            .text()
            .and_then(|text| closest(text, TYPES.iter().map(|(name, _)| *name)));
        let hint = match near {
            Some(name) => format!("did you mean \"{name}\"?"),
            None => "a group of hyperparameters cannot have a member called \"type\"".to_owned(),
        };
        findings.within("type", |findings| {
            findings.error_hint(
                kind.at.as_ref(),
                ErrorCode::NotOneOf.message(format!("must be one of \"const\", \"int\", \"double\", \"log\", \"categorical\", not {given}")),
                hint,
            );
        });
        return None;
    };
    let before = findings.errors.len();
    for (key, member) in members {
        if key != "type" && !keys.iter().any(|(known, _)| known == key) {
            let message = ErrorCode::UnknownKey.message(format!(
                "is not a key of a hyperparameter of type \"{name}\""
            ));
            let plain = snake(key).replace('_', "");
            let near = closest(&plain, keys.iter().map(|(known, _)| *known));
            findings.within(key, |findings| {
                findings.error_near(member.at.as_ref(), message, near);
            });
        }
    }
    // A constant may be null; for everything else null is the same as nothing.
    let given = |key: &str| {
        members
            .get(key)
            .filter(|member| *name == "const" || !matches!(member.tree, Tree::Null))
    };
    for (key, needed) in *keys {
        if *needed && given(key).is_none() {
            let message = ErrorCode::Missing.message(format!(
                "is required for a hyperparameter of type \"{name}\""
            ));
            findings.error_in(key, node.at.as_ref(), message);
        }
    }
    let parameter = typed(findings, node, name, given);
    (findings.errors.len() == before)
        .then_some(parameter)
        .flatten()
}

fn typed<'n>(
    findings: &mut Findings,
    node: &Node,
    name: &str,
    given: impl Fn(&str) -> Option<&'n Node>,
) -> Option<Hyperparameter> {
    let at = node.at.as_ref();
    match name {
        "const" => Some(Hyperparameter::Const(given("val")?.to_value())),
        "categorical" => {
            let vals = given("vals")?;
            let Tree::List(items) = &vals.tree else {
                let message = format!("must be a list, not {}", vals.kind());
                findings.error_in("vals", vals.at.as_ref(), message);
                return None;
            };
            if items.is_empty() {
                findings.error_in(
                    "vals",
                    vals.at.as_ref(),
                    ErrorCode::OutOfRange.message("must hold at least one value"),
                );
                return None;
            }
            Some(Hyperparameter::Categorical(
                items.iter().map(Node::to_value).collect(),
            ))
        }
        "int" => {
            let minval = given("minval").and_then(|node| integer(findings, "minval", node));
            let maxval = given("maxval").and_then(|node| integer(findings, "maxval", node));
            let count = count(findings, given("count"));
            let (minval, maxval) = (minval?, maxval?);
            ordered(findings, at, &minval, &maxval)?;
            Some(Hyperparameter::Int {
                minval,
                maxval,
                count: count?,
            })
        }
        _ => {
            let minval = given("minval").and_then(|node| number(findings, "minval", node));
            let maxval = given("maxval").and_then(|node| number(findings, "maxval", node));
            let count = count(findings, given("count"));
            let base = given("base").and_then(|node| number(findings, "base", node));
            let (minval, maxval) = (minval?, maxval?);
            ordered(findings, at, &minval, &maxval)?;
            if name == "double" {
                drawable(findings, at, range_problem(minval, maxval))?;
                return Some(Hyperparameter::Double {
                    minval,
                    maxval,
                    count: count?,
                });
            }
            let base = base?;
            if base <= 0.0 {
                findings.error_in(
                    "base",
                    given("base").and_then(|node| node.at.as_ref()),
                    ErrorCode::OutOfRange.message("must be above 0"),
                );
                return None;
            }
            drawable(findings, at, log_problem(base, minval, maxval))?;
            if let Some(warning) = no_exponents(base, minval, maxval) {
                findings.warn(at, warning);
            }
            Some(Hyperparameter::Log {
                minval,
                maxval,
                base,
                count: count?,
            })
        }
    }
}

/// The warning about `minval` and `maxval` of a `log` hyperparameter that look like values: they are exponents.
fn no_exponents(base: f64, minval: f64, maxval: f64) -> Option<String> {
    // A range of exponents within 1 that reaches far down spans next to nothing; large exponents lead to absurd values.
    let small = minval > 0.0 && minval <= 0.1 && maxval <= 1.0;
    let large = minval >= 8.0 && base.powf(maxval) >= 1e12;
    if !(small || large) {
        return None;
    }
    let as_exponent = |value: f64| rounded(value.ln() / base.ln());
    let advice = if base > 1.0 {
        format!(
            "; for values from {minval} to {maxval} set minval to {} and maxval to {}",
            as_exponent(minval),
            as_exponent(maxval),
        )
    } else {
        String::new()
    };
    Some(format!(
        "minval and maxval of a \"log\" hyperparameter are exponents: its values are from {base}^{minval} = {} to \
         {base}^{maxval} = {}{advice}",
        rounded(base.powf(minval)),
        rounded(base.powf(maxval)),
    ))
}

/// A number as users read it, with four digits.
fn rounded(number: f64) -> String {
    let text = if number != 0.0 && !(1e-3..1e6).contains(&number.abs()) {
        format!("{number:.3e}")
    } else {
        format!("{number:.4}")
    };
    match text.split_once('.') {
        Some((_, tail)) if !tail.contains('e') => {
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
        _ => text,
    }
}

fn ordered<N: PartialOrd + std::fmt::Display>(
    findings: &mut Findings,
    at: Option<&Position>,
    minval: &N,
    maxval: &N,
) -> Option<()> {
    if minval < maxval {
        return Some(());
    }
    findings.error(
        at,
        format!("\"minval\" must be below \"maxval\", and {minval} is not below {maxval}"),
    );
    None
}

fn drawable(findings: &mut Findings, at: Option<&Position>, problem: Option<String>) -> Option<()> {
    match problem {
        Some(problem) => {
            findings.error(at, format!("cannot be drawn from: {problem}"));
            None
        }
        None => Some(()),
    }
}

fn integer(findings: &mut Findings, key: &str, node: &Node) -> Option<i64> {
    let value = node.integer();
    if value.is_none() {
        let message = format!("must be {}, not {}", kind_of_integer(node), shown(node));
        findings.error_in(key, node.at.as_ref(), message);
    }
    value
}

/// What is asked for in place of a node that is none: an integer may have more bits than can be kept.
fn kind_of_integer(node: &Node) -> &'static str {
    match &node.tree {
        Tree::Number(number) if number.as_f64().is_some_and(|value| value.fract() == 0.0) => {
            "an integer of at most 64 bits"
        }
        _ => "an integer",
    }
}

fn number(findings: &mut Findings, key: &str, node: &Node) -> Option<f64> {
    let value = match &node.tree {
        Tree::Number(number) => number.as_f64(),
        _ => None,
    };
    if value.is_none() {
        let message = format!("must be a number, not {}", shown(node));
        findings.error_in(key, node.at.as_ref(), message);
    }
    value
}

/// The optional `count`: the outer `None` is an error.
#[expect(clippy::option_option, reason = "absent and wrong are two things")]
fn count(findings: &mut Findings, node: Option<&Node>) -> Option<Option<u64>> {
    let Some(node) = node else {
        return Some(None);
    };
    match node.integer().and_then(|count| u64::try_from(count).ok()) {
        Some(count) if count >= 1 => Some(Some(count)),
        _ => {
            let message = format!("must be an integer of at least 1, not {}", shown(node));
            findings.error_in("count", node.at.as_ref(), message);
            None
        }
    }
}

fn shown(node: &Node) -> String {
    match &node.tree {
        Tree::Number(number) => number.to_string(),
        _ => node.kind().to_owned(),
    }
}

/// The leaves of a space with their dotted names, in sorted order.
pub fn leaves(space: &Space) -> Vec<(String, &Hyperparameter)> {
    fn visit<'s>(space: &'s Space, prefix: &str, found: &mut Vec<(String, &'s Hyperparameter)>) {
        for (name, parameter) in space {
            let path = if prefix.is_empty() {
                name.clone()
            } else {
                format!("{prefix}.{name}")
            };
            match parameter {
                Hyperparameter::Group(inner) => visit(inner, &path, found),
                leaf => found.push((path, leaf)),
            }
        }
    }
    let mut found = Vec::new();
    visit(space, "", &mut found);
    found
}

/// A document that holds nothing but a space.
static ALONE: Document = Document {
    root: &section(&[field("hyperparameters", Kind::Special(&SPACE), "The space")]),
    places: &[],
    slots_key: "",
    translate: |_, _| {},
};

/// Reads a space from JSON, implicit constants included.
///
/// # Errors
/// All errors, with paths that start at `hyperparameters`.
pub fn from_json(value: &Value) -> Result<Space, Vec<ConfigError>> {
    let mut findings = Findings::new(&ALONE, Stage::Complete);
    let node = Node::from(value);
    let space = findings.within("hyperparameters", |findings| group(findings, &node));
    if findings.errors.is_empty() {
        Ok(space)
    } else {
        Err(findings.errors)
    }
}

/// Writes a space with every constant explicit, as clients and the in-task harness read it.
pub fn to_json(space: &Space) -> Value {
    let members: Map<String, Value> = space
        .iter()
        .map(|(name, parameter)| (name.clone(), parameter_json(parameter)))
        .collect();
    Value::Object(members)
}

fn parameter_json(parameter: &Hyperparameter) -> Value {
    let counted = |mut value: Value, count: &Option<u64>| {
        if let (Some(count), Some(members)) = (count, value.as_object_mut()) {
            members.insert("count".into(), Value::from(*count));
        }
        value
    };
    match parameter {
        Hyperparameter::Const(value) => json!({"type": "const", "val": value}),
        Hyperparameter::Int {
            minval,
            maxval,
            count,
        } => counted(
            json!({"type": "int", "minval": minval, "maxval": maxval}),
            count,
        ),
        Hyperparameter::Double {
            minval,
            maxval,
            count,
        } => counted(
            json!({"type": "double", "minval": short(*minval), "maxval": short(*maxval)}),
            count,
        ),
        Hyperparameter::Log {
            minval,
            maxval,
            base,
            count,
        } => counted(
            json!({
                "type": "log", "minval": short(*minval), "maxval": short(*maxval), "base": short(*base),
            }),
            count,
        ),
        Hyperparameter::Categorical(values) => json!({"type": "categorical", "vals": values}),
        Hyperparameter::Group(space) => to_json(space),
    }
}

/// A double as JSON, whole ones without a fraction: `10`, not `10.0`.
pub(crate) fn short(value: f64) -> Value {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "checked to be whole and small"
    )]
    if value.fract() == 0.0 && value.abs() < 1e15 && (value != 0.0 || value.is_sign_positive()) {
        return Value::from(value as i64);
    }
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

/// Serde's view of a double that is short where it can be.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
pub(crate) fn short_number<S: serde::Serializer>(value: &f64, out: S) -> Result<S::Ok, S::Error> {
    serde::Serialize::serialize(&short(*value), out)
}

/// Serde's view of a space inside the effective configuration.
pub(crate) mod as_json {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
    use serde_json::Value;

    use crate::hyperparameters::Space;

    pub(crate) fn serialize<S: Serializer>(space: &Space, out: S) -> Result<S::Ok, S::Error> {
        super::to_json(space).serialize(out)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(reader: D) -> Result<Space, D::Error> {
        let value = Value::deserialize(reader)?;
        super::from_json(&value).map_err(|errors| {
            let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
            D::Error::custom(texts.join("; "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::no_exponents;

    #[test]
    fn exponents_that_look_like_values_are_noticed_with_the_range_that_follows() {
        assert_eq!(
            no_exponents(10.0, 0.0001, 0.1).unwrap(),
            "minval and maxval of a \"log\" hyperparameter are exponents: its values are from 10^0.0001 = 1.0002 to 10^0.1 = \
             1.2589; for values from 0.0001 to 0.1 set minval to -4 and maxval to -1"
        );
        let large = no_exponents(2.0, 16.0, 128.0).unwrap();
        assert!(large.contains("2^128 = 3.403e38"), "{large}");
        assert!(
            large.ends_with("set minval to 4 and maxval to 7"),
            "{large}"
        );
        for (base, minval, maxval) in [
            (10.0, -4.0, -1.0),
            (10.0, -4.0, 0.0),
            (10.0, 0.0, 3.0),
            (2.0, 4.0, 10.0),
            (2.0, 0.5, 2.0),
            (10.0, 1.0, 3.0),
        ] {
            assert_eq!(no_exponents(base, minval, maxval), None, "{base} {minval}");
        }
    }
}
