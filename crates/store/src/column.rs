//! Columns that hold more than a plain value: JSON documents, and words of an enum. `#[derive(Row)]` reads them, with
//! `#[row(json)]` and `#[row(word)]`.

use std::str::FromStr;

use serde::Serialize;
use serde::de::DeserializeOwned;
use strum::VariantNames;

/// A stored value that cannot be read: written by a newer version, or changed from outside.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{column} of {row}: {message}")]
pub(crate) struct Unreadable {
    /// Kind and id of the row.
    pub(crate) row: String,
    pub(crate) column: &'static str,
    pub(crate) message: String,
}

/// Reads a JSON document. An error says what does not fit.
pub(crate) fn json<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|e| e.to_string())
}

/// Reads a word. An error names the words that there are.
pub(crate) fn word<T: FromStr + VariantNames>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("\"{text}\" is none of {}", T::VARIANTS.join(", ")))
}

/// A value as a column with JSON holds it.
///
/// # Panics
/// If the value has no JSON form, as a map with keys that are no text; the states that are stored here have one.
pub(crate) fn text<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("states have a JSON form")
}

impl From<Unreadable> for sqlx::Error {
    fn from(error: Unreadable) -> Self {
        Self::Decode(Box::new(error))
    }
}

impl From<Unreadable> for rusqlite::Error {
    fn from(error: Unreadable) -> Self {
        Self::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(error))
    }
}

/// The unreadable column that an error of a driver is about.
pub(crate) fn unreadable(error: &crate::DriverError) -> Option<&Unreadable> {
    match error {
        crate::DriverError::Pg(sqlx::Error::Decode(cause)) => cause.downcast_ref(),
        crate::DriverError::Lite(rusqlite::Error::FromSqlConversionFailure(_, _, cause)) => {
            cause.downcast_ref()
        }
        _ => None,
    }
}
