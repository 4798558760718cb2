//! Reading the ordered record of changes.

use det_api_types::events::GetEventsQuery;
use det_api_types::page::OrderBy;
use det_authz::Kind;
use det_store::Store;
use det_store::events::{self, EventRow};

use crate::app::context::Context;
use crate::app::reads;
use crate::auth::Actor;
use crate::error::{AppError, AppResult};
use crate::hub::{Subscription, Topic};

/// Events in an answer when no limit is given.
const DEFAULT_LIMIT: i64 = 100;
/// Events in an answer at most, and read at once by a follower; fewer where their texts are large.
const LARGEST_PAGE: i64 = 1000;
/// Bytes of texts that the events of a page have together at most; one that has more comes alone.
const PAGE_BYTES: i64 = 1 << 20;

/// The events of one subject, or all of them, for an actor who may read them.
pub(crate) struct Events {
    store: Store,
    changes: Subscription,
    /// Kind and id of the subject; `None` = of everything.
    subject: Option<(String, String)>,
    /// Id of the last event that was read.
    pub(crate) after: i64,
    limit: i64,
}

impl Events {
    /// Those that are asked for.
    pub(crate) fn open(
        context: &Context,
        actor: &Actor,
        query: &GetEventsQuery,
    ) -> AppResult<Self> {
        reads::require(actor, Kind::Event, "events")?;
        if query.follow && query.limit > 0 {
            return Err(AppError::invalid(
                "followed events have no limit: leave out \"limit\" or \"follow\"",
            ));
        }
        if query.order_by == OrderBy::Desc {
            return Err(AppError::invalid(
                "events are given oldest first: leave out \"orderBy\", and page with \"after\"",
            ));
        }
        if query.subject_kind.is_empty() != query.subject_id.is_empty() {
            return Err(AppError::invalid(
                "fields \"subjectKind\" and \"subjectId\" belong together, such as subjectKind=trial&subjectId=7",
            ));
        }
        let subject = (query.subject_kind.clone(), query.subject_id.clone());
        Ok(Self {
            store: context.store.clone(),
            changes: context.hub.subscribe(Topic::Events),
            subject: Some(subject).filter(|(kind, _)| !kind.is_empty()),
            after: query.after,
            limit: match query.limit {
                _ if query.follow => LARGEST_PAGE,
                ..=0 => DEFAULT_LIMIT,
                limit => limit.min(LARGEST_PAGE),
            },
        })
    }

    /// The next events, oldest first; none where there are no more yet.
    pub(crate) async fn page(&mut self) -> AppResult<Vec<EventRow>> {
        let mut conn = self.store.read().await?;
        let subject = self.subject.as_ref();
        let subject = subject.map(|(kind, id)| (kind.as_str(), id.as_str()));
        let (after, limit) = (self.after, self.limit);
        let rows = events::list(&mut conn.conn(), after, subject, limit, PAGE_BYTES).await?;
        self.after = rows.last().map_or(self.after, |row| row.id);
        Ok(rows)
    }

    /// The next events, once there are some.
    pub(crate) async fn next(&mut self) -> AppResult<Vec<EventRow>> {
        loop {
            let rows = self.page().await?;
            if !rows.is_empty() {
                return Ok(rows);
            }
            self.changes.changed().await;
        }
    }
}
