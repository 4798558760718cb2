//! Scalars whose JSON form is not the one a plain Rust type would get.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use base64::Engine as _;
use serde::de::{Deserializer, Error as _, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use utoipa::openapi::schema::{AdditionalProperties, ObjectBuilder, Schema, Type};
use utoipa::openapi::{KnownFormat, RefOr, SchemaFormat};

use super::de;

/// A 64-bit integer, written as a JSON string because JavaScript's numbers lose digits above 2^53. Read from either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Int64(pub i64);

/// A float; not-a-number and the infinities are written as the strings `NaN`, `Infinity`, `-Infinity`.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct Float(pub f64);

/// Bytes, written as padded standard base64; read from either alphabet, with or without padding.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Bytes(pub Vec<u8>);

/// Text that no log or error may show. On the wire it is a plain string.
#[derive(Clone, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(transparent)]
pub struct Secret(pub String);

/// Free JSON with the author's own keys: configurations, hyperparameters, metrics. Passed through untouched, nulls and
/// spellings included.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Object(pub Map<String, Value>);

/// An [`Object`] as its text, for answers with many of them: nothing is read, and copies cost nothing.
#[derive(Debug, Clone)]
pub struct RawObject(Arc<RawValue>);

impl RawObject {
    /// Of a JSON text; `None` = it is no object.
    pub fn new(text: Box<RawValue>) -> Option<Self> {
        text.get().starts_with('{').then(|| Self(text.into()))
    }

    /// The JSON text of `object`. `Err` = the serialiser refuses it, which it is not known to do.
    pub fn of(object: &Map<String, Value>) -> serde_json::Result<Self> {
        serde_json::value::to_raw_value(object).map(|text| Self(text.into()))
    }

    /// JSON text of the object, from `{` to `}`.
    pub fn get(&self) -> &str {
        self.0.get()
    }
}

impl Default for RawObject {
    fn default() -> Self {
        Self::of(&Map::new()).unwrap_or_else(|_| Self(RawValue::NULL.to_owned().into()))
    }
}

impl PartialEq for RawObject {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Serialize for RawObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        RawValue::serialize(&self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for RawObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // By way of the object: `RawValue` can be read from a text only.
        let object = Object::deserialize(deserializer)?;
        Self::of(&object).map_err(D::Error::custom)
    }
}

/// A list of free JSON objects as its text, for answers with many of them: nothing is read, and copies cost nothing.
#[derive(Debug, Clone)]
pub struct RawList(Arc<RawValue>);

impl RawList {
    /// Of a JSON text; `None` = it is no list.
    pub fn new(text: Box<RawValue>) -> Option<Self> {
        text.get().starts_with('[').then(|| Self(text.into()))
    }

    /// JSON text of the list, from `[` to `]`.
    pub fn get(&self) -> &str {
        self.0.get()
    }
}

impl PartialEq for RawList {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Serialize for RawList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        RawValue::serialize(&self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for RawList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // By way of the objects: `RawValue` can be read from a text only.
        let objects = Vec::<Object>::deserialize(deserializer)?;
        let text = serde_json::value::to_raw_value(&objects).map_err(D::Error::custom)?;
        Ok(Self(text.into()))
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({} bytes)", self.0.len())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Object {
    /// The object as a JSON value.
    pub fn into_value(self) -> Value {
        Value::Object(self.0)
    }
}

impl Deref for Object {
    type Target = Map<String, Value>;
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Object {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl FromIterator<(String, Value)> for Object {
    fn from_iter<I: IntoIterator<Item = (String, Value)>>(entries: I) -> Self {
        Self(entries.into_iter().collect())
    }
}

impl From<Map<String, Value>> for Object {
    fn from(entries: Map<String, Value>) -> Self {
        Self(entries)
    }
}

impl From<i64> for Int64 {
    fn from(number: i64) -> Self {
        Self(number)
    }
}

impl From<f64> for Float {
    fn from(number: f64) -> Self {
        Self(number)
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl Serialize for Int64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl Serialize for Float {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_finite() {
            serializer.serialize_f64(self.0)
        } else if self.0.is_nan() {
            serializer.serialize_str("NaN")
        } else if self.0 > 0.0 {
            serializer.serialize_str("Infinity")
        } else {
            serializer.serialize_str("-Infinity")
        }
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&base64::engine::general_purpose::STANDARD.encode(&self.0))
    }
}

/// Deserializes a named scalar: `deserialize_newtype_struct` carries the name, so that deserializers which invent
/// values (tests, schema examples) can distinguish the scalars; the content may come as any JSON scalar.
macro_rules! named_scalar {
    ($type:ident, $expecting:literal, $read:expr) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct NameVisitor;
                impl<'de> Visitor<'de> for NameVisitor {
                    type Value = $type;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expecting)
                    }
                    fn visit_newtype_struct<D: Deserializer<'de>>(
                        self,
                        deserializer: D,
                    ) -> Result<$type, D::Error> {
                        let value = Value::deserialize(deserializer)?;
                        let read: fn(Value) -> Result<$type, super::WireError> = $read;
                        read(value).map_err(|error| D::Error::custom(error.message))
                    }
                }
                deserializer.deserialize_newtype_struct(stringify!($type), NameVisitor)
            }
        }
    };
}
pub(super) use named_scalar;

named_scalar!(Int64, "a whole number", |value| {
    match de::integer(&value)? {
        de::Integer::Signed(number) => Ok(Int64(number)),
        de::Integer::Unsigned(_) => Err(de::expected("a whole number below 2^63", &value)),
    }
});

named_scalar!(Float, "a number", |value| de::float(&value).map(Float));

named_scalar!(Bytes, "base64 text", |value| match &value {
    Value::String(text) => de::bytes(text).map(Bytes),
    _ => Err(de::expected("base64 text", &value)),
});

named_scalar!(Secret, "a string", |value| match value {
    Value::String(text) => Ok(Secret(text)),
    // The value itself stays out of the message.
    _ => Err(super::WireError::new(
        "expected a string, got something else"
    )),
});

macro_rules! scalar_schema {
    ($type:ident, $schema:expr) => {
        impl utoipa::PartialSchema for $type {
            fn schema() -> RefOr<Schema> {
                $schema.into()
            }
        }
        impl utoipa::ToSchema for $type {}
    };
}
pub(super) use scalar_schema;

scalar_schema!(
    Int64,
    ObjectBuilder::new()
        .schema_type(Type::String)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
        .description(Some("a 64-bit integer as text"))
);
scalar_schema!(
    Float,
    ObjectBuilder::new()
        .schema_type(Type::Number)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::Double)))
        .description(Some(
            "a number, or one of the strings NaN, Infinity, -Infinity"
        ))
);
scalar_schema!(
    Bytes,
    ObjectBuilder::new()
        .schema_type(Type::String)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::Byte)))
        .description(Some("bytes as base64"))
);
scalar_schema!(
    Secret,
    ObjectBuilder::new()
        .schema_type(Type::String)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::Password)))
);
scalar_schema!(Object, free_object());
scalar_schema!(RawObject, free_object());

fn free_object() -> Schema {
    ObjectBuilder::new()
        .schema_type(Type::Object)
        .additional_properties(Some(AdditionalProperties::<Schema>::FreeForm(true)))
        .description(Some("free JSON with the author's own keys"))
        .into()
}
