//! The deserializer behind `decode` and `decode_query`.
//!
//! It walks a parsed JSON value by the *type* it is asked for: where a message or a scalar of the API is expected, the
//! dialect applies; where free JSON is expected, the value passes through untouched.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::de::value::StringDeserializer;
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};
use serde_json::{Map, Value};

use super::WireError;

/// Where a value was read from; text is every scalar of a query, and each is a list of its occurrences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Body,
    Query,
}

/// The type of field masks.
const FIELD_MASK: &str = "FieldMask";

/// A value on its way into a type.
#[derive(Debug)]
pub(super) struct Node {
    value: Value,
    origin: Origin,
}

impl Node {
    pub(super) fn new(value: Value, origin: Origin) -> Self {
        Self { value, origin }
    }

    /// The value as a scalar: in a query, the last of its occurrences.
    fn scalar(self) -> Value {
        match (self.origin, self.value) {
            (Origin::Query, Value::Array(mut occurrences)) => {
                occurrences.pop().unwrap_or(Value::Null)
            }
            (_, value) => value,
        }
    }

    fn visit_integer<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, WireError> {
        match integer(&self.scalar())? {
            Integer::Signed(number) => visitor.visit_i64(number),
            Integer::Unsigned(number) => visitor.visit_u64(number),
        }
    }

    fn visit_float<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, WireError> {
        visitor.visit_f64(float(&self.scalar())?)
    }

    fn visit_text<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, WireError> {
        match self.scalar() {
            Value::String(text) => visitor.visit_string(text),
            other => Err(expected("a string", &other)),
        }
    }

    fn visit_base64<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, WireError> {
        match self.scalar() {
            Value::String(text) => visitor.visit_byte_buf(bytes(&text)?),
            other => Err(expected("base64 text", &other)),
        }
    }
}

/// A whole number; two forms because neither 64-bit type contains the other.
pub(super) enum Integer {
    Signed(i64),
    Unsigned(u64),
}

/// Reads a whole number from a number or from text.
pub(super) fn integer(value: &Value) -> Result<Integer, WireError> {
    let wrong = || expected("a whole number", value);
    match value {
        Value::Number(number) => {
            if let Some(number) = number.as_i64() {
                Ok(Integer::Signed(number))
            } else if let Some(number) = number.as_u64() {
                Ok(Integer::Unsigned(number))
            } else {
                number
                    .as_f64()
                    .and_then(whole)
                    .map(Integer::Signed)
                    .ok_or_else(wrong)
            }
        }
        Value::String(text) => {
            let text = text.trim();
            if let Ok(number) = text.parse() {
                Ok(Integer::Signed(number))
            } else {
                text.parse().map(Integer::Unsigned).map_err(|_| wrong())
            }
        }
        _ => Err(wrong()),
    }
}

/// A float as a whole number, if a float represents it exactly.
fn whole(number: f64) -> Option<i64> {
    /// Above 2^53 not every whole number has a float of its own.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the number is whole and below 2^53"
    )]
    (number.fract() == 0.0 && number.abs() <= EXACT).then_some(number as i64)
}

/// Reads a float from a number or from text, including `NaN`, `Nan`, `Infinity` and `-Infinity`.
pub(super) fn float(value: &Value) -> Result<f64, WireError> {
    let number = match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    number.ok_or_else(|| expected("a number", value))
}

/// Reads base64 in either alphabet, with or without padding.
pub(super) fn bytes(text: &str) -> Result<Vec<u8>, WireError> {
    const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent);
    const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
    const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);
    let engine = if text.contains(['-', '_']) {
        URL_SAFE
    } else {
        STANDARD
    };
    engine
        .decode(text)
        .map_err(|error| WireError::new(format!("expected base64 text: {error}")))
}

/// Reads a boolean of a query string.
fn switch(text: &str) -> Option<bool> {
    let is = |word: &str| text.eq_ignore_ascii_case(word);
    if is("true") || is("t") || text == "1" {
        Some(true)
    } else if is("false") || is("f") || text == "0" {
        Some(false)
    } else {
        None
    }
}

/// The error of finding `value` where `what` belongs.
pub(super) fn expected(what: &str, value: &Value) -> WireError {
    /// Enough to recognise one's own input by.
    const QUOTED_CHARS: usize = 60;
    let found = match value {
        Value::Null => "null".to_owned(),
        Value::Bool(flag) => format!("the boolean {flag}"),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => match text.char_indices().nth(QUOTED_CHARS) {
            None => format!("the string {text:?}"),
            Some((end, _)) => format!("a string that begins with {:?}", &text[..end]),
        },
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    };
    WireError::new(format!("expected {what}, got {found}"))
}

/// Whether `key` is the field's name, or the snake case spelling of it.
fn spells(field: &str, key: &str) -> bool {
    if field == key {
        return true;
    }
    let mut letters = field.bytes();
    let mut raise = false;
    for byte in key.bytes() {
        if byte == b'_' {
            raise = true;
            continue;
        }
        let wanted = if raise {
            byte.to_ascii_uppercase()
        } else {
            byte
        };
        raise = false;
        if letters.next() != Some(wanted) {
            return false;
        }
    }
    letters.next().is_none()
}

/// Keeps the known, non-null fields of a message under the names of its type.
fn known_fields(
    entries: Map<String, Value>,
    fields: &'static [&'static str],
) -> Vec<(&'static str, Value)> {
    let mut known: Vec<(&'static str, Value)> = Vec::with_capacity(fields.len().min(entries.len()));
    for (key, value) in entries {
        if value.is_null() {
            continue;
        }
        let exact = fields.iter().find(|field| **field == key);
        let Some(field) = exact.or_else(|| fields.iter().find(|field| spells(field, &key))) else {
            continue;
        };
        match known.iter_mut().find(|(name, _)| name == field) {
            None => known.push((field, value)),
            Some((_, seen)) => *seen = value,
        }
    }
    known
}

macro_rules! forward {
    ($($method:ident => $target:ident;)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, WireError> {
            self.$target(visitor)
        }
    )*};
}

impl<'de> Deserializer<'de> for Node {
    type Error = WireError;

    /// Free JSON: keys, nulls and number forms stay as they came.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, WireError> {
        self.scalar()
            .deserialize_any(visitor)
            .map_err(WireError::custom)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, WireError> {
        let origin = self.origin;
        match self.scalar() {
            Value::Bool(flag) => visitor.visit_bool(flag),
            Value::String(text) if origin == Origin::Query => match switch(&text) {
                Some(flag) => visitor.visit_bool(flag),
                None => Err(expected("true or false", &Value::String(text))),
            },
            other => Err(expected("true or false", &other)),
        }
    }

    forward! {
        deserialize_i8 => visit_integer;
        deserialize_i16 => visit_integer;
        deserialize_i32 => visit_integer;
        deserialize_i64 => visit_integer;
        deserialize_u8 => visit_integer;
        deserialize_u16 => visit_integer;
        deserialize_u32 => visit_integer;
        deserialize_u64 => visit_integer;
        deserialize_f32 => visit_float;
        deserialize_f64 => visit_float;
        deserialize_char => visit_text;
        deserialize_str => visit_text;
        deserialize_string => visit_text;
        deserialize_identifier => visit_text;
        deserialize_bytes => visit_base64;
        deserialize_byte_buf => visit_base64;
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, WireError> {
        if self.value.is_null() {
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, WireError> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, WireError> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, WireError> {
        // `RawValue` announces itself by a private name which only serde_json's own deserializers know to answer.
        if name.starts_with("$serde_json::private") {
            return self
                .value
                .deserialize_newtype_struct(name, visitor)
                .map_err(WireError::custom);
        }
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, WireError> {
        match self.value {
            Value::Array(elements) => visitor.visit_seq(Elements {
                rest: elements.into_iter(),
                next: 0,
                origin: self.origin,
            }),
            other => Err(expected("a list", &other)),
        }
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        _len: usize,
        visitor: V,
    ) -> Result<V::Value, WireError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _len: usize,
        visitor: V,
    ) -> Result<V::Value, WireError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, WireError> {
        match self.value {
            Value::Object(entries) => visitor.visit_map(Entries {
                rest: entries.into_iter(),
                pending: None,
                origin: self.origin,
            }),
            other => Err(expected("an object", &other)),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, WireError> {
        let value = match self.value {
            // As canonical JSON has it: `log.level,log.color`.
            Value::String(paths) if name == FIELD_MASK => {
                let paths: Vec<&str> = paths.split(',').map(str::trim).collect();
                serde_json::json!({"paths": paths})
            }
            value => value,
        };
        match value {
            Value::Object(entries) => visitor.visit_map(Fields {
                rest: known_fields(entries, fields).into_iter(),
                pending: None,
                origin: self.origin,
            }),
            other => Err(expected("an object", &other)),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, WireError> {
        match self.scalar() {
            Value::String(text) => {
                let name: StringDeserializer<WireError> = text.into_deserializer();
                visitor.visit_enum(name)
            }
            other => Err(expected("a name", &other)),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, WireError> {
        visitor.visit_unit()
    }
}

/// Elements of a list, counted for error paths.
struct Elements {
    rest: std::vec::IntoIter<Value>,
    next: usize,
    origin: Origin,
}

impl<'de> SeqAccess<'de> for Elements {
    type Error = WireError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, WireError> {
        let Some(value) = self.rest.next() else {
            return Ok(None);
        };
        let index = self.next;
        self.next += 1;
        seed.deserialize(Node::new(value, self.origin))
            .map(Some)
            .map_err(|error| error.under_index(index))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.rest.len())
    }
}

/// Entries of a map with the author's own keys.
struct Entries {
    rest: serde_json::map::IntoIter,
    pending: Option<(String, Value)>,
    origin: Origin,
}

impl<'de> MapAccess<'de> for Entries {
    type Error = WireError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, WireError> {
        let Some((key, value)) = self.rest.next() else {
            return Ok(None);
        };
        // A key is text, also where its type is a number.
        let name = Node::new(Value::String(key.clone()), self.origin);
        let result = seed.deserialize(name).map_err(|e| e.under_field(&key))?;
        self.pending = Some((key, value));
        Ok(Some(result))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, WireError> {
        let (key, value) = self
            .pending
            .take()
            .ok_or_else(|| WireError::new("a value was asked for before its key"))?;
        seed.deserialize(Node::new(value, self.origin))
            .map_err(|error| error.under_field(&key))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.rest.len())
    }
}

/// Known fields of a message.
struct Fields {
    rest: std::vec::IntoIter<(&'static str, Value)>,
    pending: Option<(&'static str, Value)>,
    origin: Origin,
}

impl<'de> MapAccess<'de> for Fields {
    type Error = WireError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, WireError> {
        let Some((name, value)) = self.rest.next() else {
            return Ok(None);
        };
        self.pending = Some((name, value));
        let name: serde::de::value::StrDeserializer<'_, WireError> = name.into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, WireError> {
        let (name, value) = self
            .pending
            .take()
            .ok_or_else(|| WireError::new("a value was asked for before its field"))?;
        seed.deserialize(Node::new(value, self.origin))
            .map_err(|error| error.under_field(name))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.rest.len())
    }
}
