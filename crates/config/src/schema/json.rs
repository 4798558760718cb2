//! The schema as JSON Schema (draft 2020-12), for editors.
//!
//! What is accepted as submitted is accepted here: keys that other layers may bring are not required, and every key that
//! is not required may be null. Rules between keys are left to the checks.

use serde_json::{Map, Value, json};

use super::{Document, Field, Kind, Need, Note, OldKey, Section, Union};

/// The dialect of JSON Schema that is written.
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Definitions that occur more than once, by name.
type Definitions = Map<String, Value>;

/// The JSON schema of a document.
pub(crate) fn document_schema(document: &'static Document, title: &str, about: &str) -> Value {
    let mut definitions = Definitions::new();
    let root = object(document.root, &mut definitions);
    finish(root, definitions, title, about)
}

/// The JSON schema of what fits either of two documents. A key that both have in different shapes may have either.
pub(crate) fn template_schema(
    one: &'static Document,
    other: &'static Document,
    title: &str,
    about: &str,
) -> Value {
    let mut definitions = Definitions::new();
    let mut root = object(one.root, &mut definitions);
    let second = object(other.root, &mut definitions);
    let taken = |value: &Value| value["properties"].as_object().cloned().unwrap_or_default();
    let mut properties = taken(&root);
    for (key, theirs) in taken(&second) {
        let merged = match properties.remove(&key) {
            Some(ours) => either(ours, &theirs),
            None => theirs,
        };
        properties.insert(key, merged);
    }
    if let Some(members) = root.as_object_mut() {
        members.insert("properties".into(), Value::Object(properties));
        members.remove("required");
    }
    finish(root, definitions, title, about)
}

/// A schema that takes what either of two schemas takes.
fn either(ours: Value, theirs: &Value) -> Value {
    let bare = |value: &Value| {
        let mut value = value.clone();
        if let Some(members) = value.as_object_mut() {
            for key in ["description", "default", "deprecated"] {
                members.remove(key);
            }
        }
        value
    };
    if bare(&ours) == bare(theirs) {
        return ours;
    }
    let about = ours.get("description").cloned();
    let mut merged = json!({"anyOf": [bare(&ours), bare(theirs)]});
    if let (Some(about), Some(members)) = (about, merged.as_object_mut()) {
        members.insert("description".into(), about);
    }
    merged
}

fn finish(root: Value, definitions: Definitions, title: &str, about: &str) -> Value {
    let mut out = Map::new();
    out.insert("$schema".into(), DIALECT.into());
    out.insert("title".into(), title.into());
    out.insert("description".into(), about.into());
    if let Value::Object(members) = root {
        out.extend(members);
    }
    out.insert("$defs".into(), Value::Object(definitions));
    Value::Object(out)
}

/// The schema of a kind of value.
pub(crate) fn kind_schema(kind: Kind, definitions: &mut Definitions) -> Value {
    match kind {
        Kind::Bool => json!({"type": "boolean"}),
        Kind::Int(min, max) => {
            let mut schema = json!({"type": "integer"});
            let mut bound = |key: &str, value: i64| {
                if let Some(members) = schema.as_object_mut() {
                    members.insert(key.into(), value.into());
                }
            };
            if min > i64::MIN {
                bound("minimum", min);
            }
            if max < i64::MAX {
                bound("maximum", max);
            }
            schema
        }
        Kind::Above(bound) => json!({"type": "number", "exclusiveMinimum": bound}),
        Kind::AtLeast(bound) => json!({"type": "number", "minimum": bound}),
        Kind::Text => json!({"type": "string"}),
        Kind::Choice(words) => json!({"enum": words}),
        Kind::Duration => duration_schema(),
        Kind::Any => json!({}),
        Kind::AnyMap => json!({"type": "object"}),
        Kind::List(item) => json!({"type": "array", "items": kind_schema(*item, definitions)}),
        Kind::Map(item) => json!({
            "type": "object",
            "additionalProperties": nullable(kind_schema(*item, definitions)),
        }),
        Kind::Section(section) => define(section.name, definitions, |definitions| {
            object(section, definitions)
        }),
        Kind::Union(union) => define(union.name, definitions, |definitions| {
            union_object(union, definitions)
        }),
        Kind::Special(special) => define(special.name, definitions, |definitions| {
            let mut schema = (special.json)();
            // Shapes that contain themselves bring their definitions along.
            if let Some(Value::Object(own)) = schema
                .as_object_mut()
                .and_then(|members| members.remove("$defs"))
            {
                definitions.extend(own);
            }
            schema
        }),
    }
}

/// The JSON Schema of a duration as text, such as `1h30m`.
pub(crate) fn duration_schema() -> Value {
    json!({
        "type": "string",
        "pattern": r"^(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$",
    })
}

/// The schema itself, or a reference to its definition when it has a name.
fn define(
    name: Option<&str>,
    definitions: &mut Definitions,
    make: impl FnOnce(&mut Definitions) -> Value,
) -> Value {
    let Some(name) = name else {
        return make(definitions);
    };
    if !definitions.contains_key(name) {
        // Reserved first: what contains itself ends here.
        definitions.insert(name.into(), Value::Null);
        let made = make(definitions);
        definitions.insert(name.into(), made);
    }
    json!({"$ref": format!("#/$defs/{name}")})
}

/// The schema that takes null as well.
fn nullable(schema: Value) -> Value {
    let Value::Object(mut members) = schema else {
        return schema;
    };
    if members.is_empty() {
        return Value::Object(members);
    }
    let alone = members.len() == 1;
    match members.get_mut("type") {
        Some(Value::Array(types)) => {
            if !types.contains(&json!("null")) {
                types.push("null".into());
            }
            return Value::Object(members);
        }
        Some(kind) => {
            *kind = json!([kind.clone(), "null"]);
            return Value::Object(members);
        }
        None => {}
    }
    for (key, null) in [("enum", Value::Null), ("anyOf", json!({"type": "null"}))] {
        if let (true, Some(Value::Array(shapes))) = (alone, members.get_mut(key)) {
            if !shapes.contains(&null) {
                shapes.push(null);
            }
            return Value::Object(members);
        }
    }
    json!({"anyOf": [Value::Object(members), {"type": "null"}]})
}

/// The schema of a key, with what editors show of it.
fn property(field: &Field, definitions: &mut Definitions) -> Value {
    let mut schema = kind_schema(field.kind, definitions);
    if let Some(json) = field.also {
        let mut older = super::default_value(json);
        if let Some(members) = older.as_object_mut() {
            members.insert("deprecated".into(), true.into());
        }
        schema = json!({"anyOf": [schema, older]});
    }
    let schema = if field.need == Need::Always {
        schema
    } else {
        nullable(schema)
    };
    let Value::Object(mut members) = schema else {
        return schema;
    };
    let mut about = format!("{}.", field.about);
    match field.note {
        Note::Kept => about.push_str(" Accepted and kept, but not acted on yet."),
        Note::Warn(why) => {
            about.push_str(&format!(" This key {why}."));
            members.insert("deprecated".into(), true.into());
        }
        Note::Nothing | Note::Retired(_) => {}
    }
    members.insert("description".into(), about.into());
    let default = field.default.or(field.built_in).map(super::default_value);
    if let Some(default) = default.filter(|value| *value != json!({})) {
        members.insert("default".into(), default);
    }
    Value::Object(members)
}

fn old_property(old: &OldKey) -> Value {
    let mut schema = super::default_value(old.json);
    if let Some(members) = schema.as_object_mut() {
        members.insert("description".into(), format!("{}.", old.about).into());
        members.insert("deprecated".into(), true.into());
    }
    schema
}

fn object(section: &'static Section, definitions: &mut Definitions) -> Value {
    let mut properties = Map::new();
    for field in section.fields {
        properties.insert(field.name.into(), property(field, definitions));
    }
    add_aliases(section.aliases, &mut properties);
    for old in section.old {
        properties.insert(old.name.into(), old_property(old));
    }
    let required: Vec<&str> = section
        .fields
        .iter()
        .filter(|field| field.need == Need::Always)
        .map(|field| field.name)
        .collect();
    let mut out =
        json!({"type": "object", "properties": properties, "additionalProperties": false});
    if let (false, Some(members)) = (required.is_empty(), out.as_object_mut()) {
        members.insert("required".into(), json!(required));
    }
    out
}

fn add_aliases(aliases: super::Aliases, properties: &mut Map<String, Value>) {
    for (old, new, warn) in aliases {
        if let Some(mut schema) = properties.get(*new).cloned() {
            if let Some(members) = schema.as_object_mut() {
                members.insert(
                    "description".into(),
                    format!("Another name of {new}.").into(),
                );
                if *warn {
                    members.insert("deprecated".into(), true.into());
                }
            }
            properties.insert((*old).into(), schema);
        }
    }
}

/// All keys of all variants, and for each variant the keys that go with it.
fn union_object(union: &'static Union, definitions: &mut Definitions) -> Value {
    let current = || union.variants.iter().filter(|v| !v.is_retired());
    let names: Vec<&str> = current().map(|variant| variant.name).collect();
    let mut tag = nullable(json!({"enum": names}));
    if let Some(members) = tag.as_object_mut() {
        members.insert("description".into(), format!("{}.", union.tag_about).into());
        if let Some(default) = union.default_tag {
            members.insert("default".into(), default.into());
        }
    }
    let mut properties = Map::from_iter([(union.tag.to_owned(), tag)]);
    for field in union.common {
        properties.insert(field.name.into(), property(field, definitions));
    }
    let mut conflicts: Vec<&str> = Vec::new();
    for field in current().flat_map(|variant| variant.fields) {
        let schema = property(field, definitions);
        let merged = match properties.remove(field.name) {
            Some(known) if known != schema => {
                conflicts.push(field.name);
                either(known, &schema)
            }
            _ => schema,
        };
        properties.insert(field.name.into(), merged);
    }
    add_aliases(union.aliases, &mut properties);
    for old in union.old {
        properties.insert(old.name.into(), old_property(old));
    }
    let always: Vec<&str> = [union.tag]
        .into_iter()
        .chain(union.common.iter().map(|field| field.name))
        .chain(union.aliases.iter().map(|(old, _, _)| *old))
        .chain(union.old.iter().map(|old| old.name))
        .collect();
    let choices: Vec<Value> = current()
        .map(|variant| {
            let own = variant.fields.iter().map(|field| field.name);
            let keys: Vec<&str> = always.iter().copied().chain(own).collect();
            let mut then = json!({"propertyNames": {"enum": keys}});
            let exact: Map<String, Value> = variant
                .fields
                .iter()
                .filter(|field| conflicts.contains(&field.name))
                .map(|field| (field.name.to_owned(), property(field, definitions)))
                .collect();
            if let (false, Some(members)) = (exact.is_empty(), then.as_object_mut()) {
                members.insert("properties".into(), Value::Object(exact));
            }
            let mut when = json!({"properties": {union.tag: {"const": variant.name}}});
            if let (true, Some(members)) = (
                union.default_tag != Some(variant.name),
                when.as_object_mut(),
            ) {
                members.insert("required".into(), json!([union.tag]));
            }
            json!({"if": when, "then": then})
        })
        .collect();
    json!({
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
        "allOf": choices,
    })
}
