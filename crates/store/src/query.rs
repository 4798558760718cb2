//! Queries whose text depends on the request: filters, sorts, pages. The one place where SQL text is built; values are
//! always bound.

use det_lifecycle::state_name::StateName;
use rusqlite::ToSql;
use rusqlite::types::{ToSqlOutput, ValueRef};
use sqlx::AssertSqlSafe;

use crate::column::FromRow;
use crate::db::{DriverError, Link};
use crate::{Conn, StoreError};

/// A value that is bound to a parameter of a query.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Integer(i64),
    Text(String),
}

impl From<StateName> for Value {
    fn from(state: StateName) -> Self {
        Self::Text(state.name().to_owned())
    }
}

/// A query being built. `push` text is ours, never a user's.
#[derive(Debug, Clone)]
pub(crate) struct Query {
    text: String,
    values: Vec<Value>,
    conditions: usize,
}

impl Query {
    pub(crate) fn new(select: &str) -> Self {
        Self {
            text: select.to_owned(),
            values: Vec::new(),
            conditions: 0,
        }
    }

    /// A whole statement with its values.
    pub(crate) fn fixed(text: &str, values: Vec<Value>) -> Self {
        Self {
            text: text.to_owned(),
            values,
            conditions: 0,
        }
    }

    /// How the database would answer it, line by line.
    pub(crate) async fn explained(
        mut self,
        conn: &mut Conn<'_>,
    ) -> Result<Vec<String>, StoreError> {
        match conn.link {
            Link::Lite(_) => {
                self.text.insert_str(0, "EXPLAIN QUERY PLAN ");
                let steps = self.fetch_all::<(i64, i64, i64, String)>(conn).await?;
                Ok(steps.into_iter().map(|(_, _, _, step)| step).collect())
            }
            Link::Pg(_) => {
                self.text.insert_str(0, "EXPLAIN ");
                let steps = self.fetch_all::<(String,)>(conn).await?;
                Ok(steps.into_iter().map(|(step,)| step).collect())
            }
        }
    }

    /// Appends text of the statement as it is; values go through [`Self::bind`].
    pub(crate) fn push(&mut self, text: &str) -> &mut Self {
        self.text.push_str(text);
        self
    }

    /// Appends a bound value.
    pub(crate) fn bind(&mut self, value: impl Into<Value>) -> &mut Self {
        self.values.push(value.into());
        self.text.push('$');
        self.text.push_str(&self.values.len().to_string());
        self
    }

    /// Starts the next condition with `WHERE` or `AND`.
    pub(crate) fn condition(&mut self, text: &str) -> &mut Self {
        self.text.push_str(if self.conditions == 0 {
            " WHERE "
        } else {
            " AND "
        });
        self.conditions += 1;
        self.push(text)
    }

    /// `column IN (…)` over bound values; an empty list matches nothing.
    pub(crate) fn any_of(
        &mut self,
        column: &str,
        values: impl IntoIterator<Item = impl Into<Value>>,
    ) -> &mut Self {
        self.condition(column).push(" IN (");
        let mut first = true;
        for value in values {
            if !first {
                self.push(", ");
            }
            first = false;
            self.bind(value);
        }
        if first {
            self.push("NULL");
        }
        self.push(")")
    }

    /// `LIMIT` and `OFFSET`; a negative limit means all.
    pub(crate) fn page(&mut self, offset: i64, limit: i64) -> &mut Self {
        if limit >= 0 {
            self.push(" LIMIT ").bind(Value::Integer(limit));
        } else {
            // SQLite wants a limit before an offset, PostgreSQL refuses a negative one.
            self.push(" LIMIT ").bind(Value::Integer(i64::MAX));
        }
        self.push(" OFFSET ").bind(Value::Integer(offset.max(0)))
    }

    pub(crate) async fn fetch_all<R>(self, conn: &mut Conn<'_>) -> Result<Vec<R>, StoreError>
    where
        R: FromRow + Send + Unpin,
    {
        match &mut conn.link {
            Link::Lite(c) => {
                let values: Vec<&dyn ToSql> = self.values.iter().map(|v| v as &dyn ToSql).collect();
                Ok(c.fetch_all(&self.text, &values)?)
            }
            Link::Pg(c) => {
                let mut query = sqlx::query(AssertSqlSafe(self.text));
                for value in self.values {
                    query = match value {
                        Value::Integer(v) => query.bind(v),
                        Value::Text(v) => query.bind(v),
                    };
                }
                let rows = query.try_map(|row| R::from_pg(&row)).fetch_all(&mut **c);
                Ok(rows.await.map_err(DriverError::Pg)?)
            }
        }
    }
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Self::Integer(v) => (*v).into(),
            Self::Text(v) => ToSqlOutput::Borrowed(ValueRef::Text(v.as_bytes())),
        })
    }
}

/// Most values of one `IN` list: SQLite takes 32,766 parameters for a statement.
const LIST: usize = 10_000;

/// `ids` in pieces that fit one statement each.
pub(crate) fn pieces<T>(ids: &[T]) -> impl Iterator<Item = &[T]> {
    ids.chunks(LIST)
}
