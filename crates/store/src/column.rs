//! What columns hold besides the plain values that the drivers know: identifiers, which are numbers or texts to the
//! drivers; JSON documents; words of an enum; and numbers of which a type takes only some. `#[derive(Row)]` reads
//! the last three with `#[row(json)]`, `#[row(word)]` and `#[row(number)]`.

use std::str::FromStr;

use det_ids::{
    AgentId, AllocationId, CheckpointId, ContainerId, EventId, ExperimentId, ExternalExperimentId,
    InstanceId, JobId, JournalId, LogLineId, MetricChunkId, PlaceId, ProjectId, RequestId, RunId,
    SpoolId, StorageId, TaskId, TrialId, UserId, WorkspaceId,
};
use rusqlite::types::FromSql;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::postgres::{PgRow, Postgres};
use sqlx::{ColumnIndex, Decode, Row as _, Type};
use strum::VariantNames;

use crate::query::Value;

/// A type that a column is read as.
pub(crate) trait ColumnValue: Sized {
    /// The type that the drivers of both databases read.
    type Plain: FromSql + for<'r> Decode<'r, Postgres> + Type<Postgres>;

    /// The value of what the drivers have read.
    fn from_plain(plain: Self::Plain) -> Self;
}

/// A type that is bound to a parameter of a statement.
pub(crate) trait Parameter {
    /// The type that the drivers of both databases bind.
    type Plain;

    /// The value as the drivers bind it.
    fn into_plain(self) -> Self::Plain;
}

/// `value` as the drivers bind it.
pub(crate) fn bound<T: Parameter>(value: T) -> T::Plain {
    value.into_plain()
}

/// Reads a column of a row of SQLite, by its place.
pub(crate) fn lite<T: ColumnValue>(row: &rusqlite::Row<'_>, place: usize) -> rusqlite::Result<T> {
    row.get(place).map(T::from_plain)
}

/// Reads a column of a row of PostgreSQL, by its place or name.
pub(crate) fn pg<T: ColumnValue>(row: &PgRow, column: impl ColumnIndex<PgRow>) -> sqlx::Result<T> {
    row.try_get(column).map(T::from_plain)
}

macro_rules! bound_as_itself {
    ($($t:ty),+) => {$(
        impl Parameter for $t {
            type Plain = Self;
            fn into_plain(self) -> Self {
                self
            }
        }
    )+};
}

macro_rules! plain {
    ($($t:ty),+) => {$(
        impl ColumnValue for $t {
            type Plain = Self;
            fn from_plain(plain: Self) -> Self {
                plain
            }
        }
        bound_as_itself!($t);
    )+};
}

plain!(bool, f64, i64, String, Vec<u8>);
bound_as_itself!(i32, &str, &String, &[u8], &Vec<u8>);

impl<T: ColumnValue> ColumnValue for Option<T>
where
    Option<T::Plain>: FromSql + for<'r> Decode<'r, Postgres> + Type<Postgres>,
{
    type Plain = Option<T::Plain>;
    fn from_plain(plain: Self::Plain) -> Self {
        plain.map(T::from_plain)
    }
}

impl<T: Parameter> Parameter for Option<T> {
    type Plain = Option<T::Plain>;
    fn into_plain(self) -> Self::Plain {
        self.map(T::into_plain)
    }
}

macro_rules! identifier {
    ($id:ident($plain:ty)) => {
        impl ColumnValue for $id {
            type Plain = $plain;
            fn from_plain(plain: $plain) -> Self {
                Self(plain)
            }
        }
        impl Parameter for $id {
            type Plain = $plain;
            fn into_plain(self) -> $plain {
                self.0
            }
        }
    };
}

macro_rules! numbers {
    ($($id:ident),+) => {$(
        identifier!($id(i64));
        impl From<$id> for Value {
            fn from(id: $id) -> Self {
                Self::Integer(id.0)
            }
        }
    )+};
}

macro_rules! texts {
    ($($id:ident),+) => {$(
        identifier!($id(String));
        impl<'a> Parameter for &'a $id {
            type Plain = &'a str;
            fn into_plain(self) -> &'a str {
                self.as_str()
            }
        }
        impl From<&$id> for Value {
            fn from(id: &$id) -> Self {
                Self::Text(id.0.clone())
            }
        }
    )+};
}

numbers!(
    ExperimentId,
    TrialId,
    RunId,
    UserId,
    WorkspaceId,
    ProjectId,
    StorageId,
    EventId,
    JournalId,
    MetricChunkId,
    LogLineId
);
texts!(
    TaskId,
    AllocationId,
    ContainerId,
    AgentId,
    PlaceId,
    JobId,
    RequestId,
    CheckpointId,
    InstanceId,
    SpoolId,
    ExternalExperimentId
);

/// What is read from a row, of either database.
pub(crate) trait FromRow: Sized {
    /// Names of the columns, in the order of `places`; empty = by position.
    const COLUMNS: &'static [&'static str];

    /// Reads it from a row of SQLite; `places[i]` is the position of `COLUMNS[i]`.
    fn from_lite(row: &rusqlite::Row<'_>, places: &[usize]) -> rusqlite::Result<Self>;

    /// Reads it from a row of PostgreSQL.
    fn from_pg(row: &PgRow) -> sqlx::Result<Self>;
}

macro_rules! tuples {
    ($(($($t:ident $n:tt),+)),+ $(,)?) => {$(
        impl<$($t: ColumnValue),+> FromRow for ($($t,)+) {
            const COLUMNS: &'static [&'static str] = &[];

            fn from_lite(row: &rusqlite::Row<'_>, _: &[usize]) -> rusqlite::Result<Self> {
                Ok(($(lite::<$t>(row, $n)?,)+))
            }

            fn from_pg(row: &PgRow) -> sqlx::Result<Self> {
                Ok(($(pg::<$t>(row, $n)?,)+))
            }
        }
    )+};
}

tuples!(
    (A 0),
    (A 0, B 1),
    (A 0, B 1, C 2),
    (A 0, B 1, C 2, D 3),
    (A 0, B 1, C 2, D 3, E 4),
    (A 0, B 1, C 2, D 3, E 4, F 5),
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6),
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7),
);

/// A stored value that cannot be read: written by a newer version, or changed from outside.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{column} of {row}: {message}")]
pub(crate) struct UnreadableColumn {
    /// Kind and id of the row.
    pub(crate) row: String,
    pub(crate) column: &'static str,
    pub(crate) message: String,
}

/// Parses a JSON document. The error names what does not fit the type.
pub(crate) fn json<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|e| e.to_string())
}

/// Reads a word. An error names the words that there are.
pub(crate) fn word<T: FromStr + VariantNames>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("\"{text}\" is none of {}", T::VARIANTS.join(", ")))
}

/// Reads a number of which the type takes only some.
pub(crate) fn number<T: TryFrom<i64>>(number: i64) -> Result<T, String> {
    T::try_from(number).map_err(|_| format!("{number} is out of range"))
}

/// A value as a column with JSON holds it.
///
/// # Panics
/// If the value has no JSON form, as a map with keys that are no text; the states that are stored here have one.
pub(crate) fn text<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("states have a JSON form")
}

impl From<UnreadableColumn> for sqlx::Error {
    fn from(error: UnreadableColumn) -> Self {
        Self::Decode(Box::new(error))
    }
}

impl From<UnreadableColumn> for rusqlite::Error {
    fn from(error: UnreadableColumn) -> Self {
        Self::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(error))
    }
}

/// The unreadable column that an error of a driver is about.
pub(crate) fn unreadable(error: &crate::DriverError) -> Option<&UnreadableColumn> {
    match error {
        crate::DriverError::Pg(sqlx::Error::Decode(cause)) => cause.downcast_ref(),
        crate::DriverError::Lite(rusqlite::Error::FromSqlConversionFailure(_, _, cause)) => {
            cause.downcast_ref()
        }
        _ => None,
    }
}
