//! A small validator for the parts of JSON Schema (draft 2020-12) that our schemas use. It knows nothing of how they are
//! made, and refuses keywords that it does not know, so that nothing goes unchecked in silence.

use regex::Regex;
use serde_json::{Map, Value};

/// What is wrong with a value; empty = nothing.
pub(crate) fn errors(schema: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    check(schema, schema, value, "", &mut found);
    found
}

fn check(root: &Value, schema: &Value, value: &Value, path: &str, found: &mut Vec<String>) {
    let members = match schema {
        Value::Bool(true) => return,
        Value::Bool(false) => return found.push(format!("{path}: nothing is allowed here")),
        Value::Object(members) => members,
        other => panic!("{other} is no schema"),
    };
    for (keyword, rule) in members {
        keyword_check(root, members, keyword, rule, value, path, found);
    }
}

fn passes(root: &Value, schema: &Value, value: &Value) -> bool {
    let mut found = Vec::new();
    check(root, schema, value, "", &mut found);
    found.is_empty()
}

fn has_type(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        "integer" => {
            value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|n| n.fract() == 0.0)
        }
        other => panic!("no such type: {other}"),
    }
}

#[expect(
    clippy::too_many_lines,
    reason = "one match over the keywords of JSON schema"
)]
fn keyword_check(
    root: &Value,
    schema: &Map<String, Value>,
    keyword: &str,
    rule: &Value,
    value: &Value,
    path: &str,
    found: &mut Vec<String>,
) {
    let number = || value.as_f64();
    let mut fail = |text: String| found.push(format!("{path}: {text}"));
    match keyword {
        "$schema" | "$defs" | "title" | "description" | "default" | "deprecated" => {}
        "$ref" => {
            let name = rule.as_str().unwrap().strip_prefix("#/$defs/").unwrap();
            let target = &root["$defs"][name];
            assert!(!target.is_null(), "{name} is not defined");
            check(root, target, value, path, found);
        }
        "type" => {
            let names: Vec<&str> = match rule {
                Value::Array(names) => names.iter().map(|name| name.as_str().unwrap()).collect(),
                name => vec![name.as_str().unwrap()],
            };
            if !names.iter().any(|name| has_type(value, name)) {
                fail(format!("{value} is none of {names:?}"));
            }
        }
        "enum" => {
            if !rule.as_array().unwrap().contains(value) {
                fail(format!("{value} is none of {rule}"));
            }
        }
        "const" => {
            if rule != value && rule.as_f64().is_none_or(|n| Some(n) != value.as_f64()) {
                fail(format!("{value} is not {rule}"));
            }
        }
        "minimum" => {
            if number().is_some_and(|n| n < rule.as_f64().unwrap()) {
                fail(format!("{value} is below {rule}"));
            }
        }
        "maximum" => {
            if number().is_some_and(|n| n > rule.as_f64().unwrap()) {
                fail(format!("{value} is above {rule}"));
            }
        }
        "exclusiveMinimum" => {
            if number().is_some_and(|n| n <= rule.as_f64().unwrap()) {
                fail(format!("{value} is not above {rule}"));
            }
        }
        "minLength" => {
            let length = value.as_str().map(|text| text.chars().count() as u64);
            if length.is_some_and(|length| length < rule.as_u64().unwrap()) {
                fail(format!("{value} is too short"));
            }
        }
        "pattern" => {
            let regex = Regex::new(rule.as_str().unwrap()).unwrap();
            if value.as_str().is_some_and(|text| !regex.is_match(text)) {
                fail(format!("{value} does not match {rule}"));
            }
        }
        "minItems" => {
            if value
                .as_array()
                .is_some_and(|items| (items.len() as u64) < rule.as_u64().unwrap())
            {
                fail("has too few items".into());
            }
        }
        "items" => {
            for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                check(root, rule, item, &format!("{path}[{index}]"), found);
            }
        }
        "minProperties" => {
            if value
                .as_object()
                .is_some_and(|m| (m.len() as u64) < rule.as_u64().unwrap())
            {
                fail("has too few members".into());
            }
        }
        "properties" => {
            for (key, member) in value.as_object().into_iter().flatten() {
                if let Some(schema) = rule.get(key) {
                    check(root, schema, member, &format!("{path}.{key}"), found);
                }
            }
        }
        "patternProperties" => {
            for (key, member) in value.as_object().into_iter().flatten() {
                for (pattern, schema) in rule.as_object().unwrap() {
                    if Regex::new(pattern).unwrap().is_match(key) {
                        check(root, schema, member, &format!("{path}.{key}"), found);
                    }
                }
            }
        }
        "additionalProperties" => {
            let known = |key: &str| {
                schema
                    .get("properties")
                    .is_some_and(|known| known.get(key).is_some())
                    || schema.get("patternProperties").is_some_and(|patterns| {
                        let patterns = patterns.as_object().unwrap();
                        patterns
                            .keys()
                            .any(|p| Regex::new(p).unwrap().is_match(key))
                    })
            };
            for (key, member) in value.as_object().into_iter().flatten() {
                if !known(key) {
                    check(root, rule, member, &format!("{path}.{key}"), found);
                }
            }
        }
        "propertyNames" => {
            for key in value
                .as_object()
                .into_iter()
                .flat_map(|members| members.keys())
            {
                check(
                    root,
                    rule,
                    &Value::from(key.as_str()),
                    &format!("{path}.{key}"),
                    found,
                );
            }
        }
        "required" => {
            for key in rule.as_array().unwrap() {
                let key = key.as_str().unwrap();
                if value
                    .as_object()
                    .is_some_and(|members| !members.contains_key(key))
                {
                    fail(format!("lacks {key}"));
                }
            }
        }
        "anyOf" => {
            let shapes = rule.as_array().unwrap();
            if !shapes.iter().any(|shape| passes(root, shape, value)) {
                fail(format!("{value} has none of {} shapes", shapes.len()));
            }
        }
        "allOf" => {
            for shape in rule.as_array().unwrap() {
                check(root, shape, value, path, found);
            }
        }
        "not" => {
            if passes(root, rule, value) {
                fail(format!("{value} is what it must not be"));
            }
        }
        "if" => {
            let branch = if passes(root, rule, value) {
                "then"
            } else {
                "else"
            };
            if let Some(branch) = schema.get(branch) {
                check(root, branch, value, path, found);
            }
        }
        "then" | "else" => assert!(schema.contains_key("if"), "{keyword} without if"),
        other => panic!("the validator does not know the keyword {other}"),
    }
}
