//! The dialect in which requests are read and answers are written.
//!
//! Clients of this API speak the JSON form of protocol buffers, and not all of them speak it well: two spellings of a
//! name, nulls for whatever is not set, quoted numbers, enums by name or by number. [`decode`] and [`decode_query`]
//! accept all of that for any type of this crate; [`encode`] writes the one form that every client understands.
//!
//! Read [`decode`] first, then the scalars: [`Int64`], [`Float`], [`Timestamp`], [`Bytes`], [`Object`].

mod de;
mod enums;
mod query;
mod salvaged;
mod scalar;
mod time;

pub(crate) use enums::wire_enum;

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use query::decode_query;
pub use salvaged::SalvagedElement;
pub use scalar::{Bytes, Float, Int64, Object, RawList, RawObject, Secret};
pub use time::Timestamp;

use de::{Node, Origin};

/// Why a request could not be read. It is an error of the caller: answered with status 400.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.sentence())]
pub struct WireError {
    /// The field at fault, from the top of the message: `logs[3].timestamp`. Empty when it is the message itself.
    pub path: String,
    /// What was expected there and what was found.
    pub message: String,
}

impl WireError {
    /// An error about the message as a whole.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            path: String::new(),
            message: message.into(),
        }
    }

    /// The same error, with the path from the message that contains `field`.
    pub(crate) fn under_field(mut self, field: &str) -> Self {
        if self.path.is_empty() || self.path.starts_with('[') {
            self.path.insert_str(0, field);
        } else {
            self.path = format!("{field}.{}", self.path);
        }
        self
    }

    /// The same error, with the path from the list that contains element `index` (from 0).
    pub(crate) fn under_index(mut self, index: usize) -> Self {
        let separator = if self.path.is_empty() || self.path.starts_with('[') {
            ""
        } else {
            "."
        };
        self.path = format!("[{index}]{separator}{}", self.path);
        self
    }

    fn sentence(&self) -> String {
        if self.path.is_empty() {
            self.message.clone()
        } else {
            format!("field \"{}\": {}", self.path, self.message)
        }
    }
}

impl serde::de::Error for WireError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(message.to_string())
    }
}

/// About how many bytes a JSON text takes as a [`Value`], or as the types of this crate, texts left out: those take no
/// more than they do in `body`. Looks at the text once and keeps nothing; never too low by more than a fifth.
pub fn tree_bytes(body: &[u8]) -> usize {
    let (mut bytes, mut at) = (0_usize, 0);
    while let Some(byte) = body.get(at) {
        match byte {
            b'"' => at = end_of_text(body, at + 1),
            // Each value but the first of a list or map follows a comma.
            b',' => bytes += VALUE_BYTES,
            b'[' => bytes += LIST_BYTES,
            b'{' => bytes += MAP_BYTES,
            _ => {}
        }
        at += 1;
    }
    bytes
}

/// Where the text ends whose first byte is at `from`: at its closing quote, or with the body. Most bytes of large bodies
/// are those of texts, so they are searched and not walked through.
fn end_of_text(body: &[u8], mut from: usize) -> usize {
    while let Some(found) = body
        .get(from..)
        .and_then(|rest| memchr::memchr2(b'"', b'\\', rest))
    {
        match body.get(from + found) {
            // The byte after it belongs to the text, a quote too.
            Some(b'\\') => from += found + 2,
            _ => return from + found,
        }
    }
    body.len()
}

/// A value in a list (32 bytes, up to twice as many while the list grows), or in a map.
const VALUE_BYTES: usize = 48;
/// A list of few values: it is allocated for four.
const LIST_BYTES: usize = 160;
/// A map of few values: its first node has space for eleven.
const MAP_BYTES: usize = 640;

/// Reads a request body.
///
/// An empty body and a top-level `null` are the empty message; only the first JSON value counts. Callers
/// ignore the content type. Nesting is bounded (128 levels); no input makes it panic.
///
/// # Errors
/// The body is not JSON, or a known field holds something that its type cannot be read from. The error names the field.
pub fn decode<T: DeserializeOwned + Default>(body: &[u8]) -> Result<T, WireError> {
    let mut values = serde_json::Deserializer::from_slice(body).into_iter::<Value>();
    match values.next() {
        None => Ok(T::default()),
        Some(Ok(value)) => decode_value(value),
        Some(Err(error)) => Err(WireError::new(format!("the body is not JSON: {error}"))),
    }
}

/// Reads a message from a value that is already parsed; `null` is the empty message.
///
/// # Errors
/// As [`decode`].
pub fn decode_value<T: DeserializeOwned + Default>(value: Value) -> Result<T, WireError> {
    if value.is_null() {
        return Ok(T::default());
    }
    T::deserialize(Node::new(value, Origin::Body))
}

/// Writes an answer: every field, in one line.
///
/// # Errors
/// Only for types that JSON cannot represent (maps whose keys are not text); this crate has none.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(message)
}

/// Writes an indented response (four spaces), which is requested with `?pretty`.
///
/// # Errors
/// As [`encode`].
pub fn encode_pretty<T: Serialize>(message: &T) -> Result<Vec<u8>, serde_json::Error> {
    let mut text = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    message.serialize(&mut serde_json::Serializer::with_formatter(
        &mut text, formatter,
    ))?;
    Ok(text)
}

/// Writes one message of a stream: `{"result":…}` and exactly one line feed. Clients hold a line back until its end has
/// come, and a blank line ends them; so send each result of this function whole, and nothing between.
///
/// # Errors
/// As [`encode`].
pub fn encode_line<T: Serialize>(message: &T) -> Result<Vec<u8>, serde_json::Error> {
    let mut line = b"{\"result\":".to_vec();
    serde_json::to_writer(&mut line, message)?;
    line.extend_from_slice(b"}\n");
    Ok(line)
}

#[cfg(test)]
mod tests;
