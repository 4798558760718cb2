//! Lists that are read in pages.

use serde_json::Value;

use crate::client::Client;
use crate::error::ClientError;
use crate::query::Query;

/// How many pages of a list to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// Only the page at the offset.
    One,
    /// The page at the offset and all after it.
    All,
}

/// Which part of a list to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paging {
    /// How many items to skip.
    pub offset: i64,
    /// The most items of a page; `None` = the master's default.
    pub limit: Option<i64>,
    /// Which pages to read.
    pub pages: Pages,
}

impl Paging {
    /// The whole list, in pages of `limit`.
    pub fn all(limit: i64) -> Self {
        Self {
            offset: 0,
            limit: Some(limit),
            pages: Pages::All,
        }
    }
}

impl Client {
    /// Reads a list: the items under the key `items` of every page.
    pub async fn list(
        &self,
        path: &str,
        query: &Query,
        items: &str,
        paging: Paging,
    ) -> Result<Vec<Value>, ClientError> {
        let mut all = Vec::new();
        let mut offset = paging.offset;
        loop {
            let query = query
                .clone()
                .with_some("limit", paging.limit)
                .with("offset", offset);
            let mut page = self.get(path, &query).await?;
            let Value::Array(found) = page[items].take() else {
                return Err(ClientError::BadAnswer {
                    url: self.master().join(path),
                    reason: format!("it has no list \"{items}\""),
                });
            };
            all.extend(found);
            let end = page["pagination"]["endIndex"].as_i64();
            let total = page["pagination"]["total"].as_i64();
            match (paging.pages, end, total) {
                // A page that does not advance would be read for ever.
                (Pages::All, Some(end), Some(total)) if end < total && end > offset => offset = end,
                _ => return Ok(all),
            }
        }
    }
}
