//! Reading the ordered record of changes.

use std::str::FromStr;

use det_api_types::events::GetEventsQuery;
use det_api_types::page::OrderBy;
use det_authz::Kind;
use det_ids::EventId;
use det_lifecycle::record::{Subject, SubjectKind};
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

/// Whose events are asked for.
enum Subjects {
    /// Events of everything.
    All,
    /// Events of this subject.
    One(Subject),
    /// Those of what no subject is called: there are none.
    Unknown,
}

impl Subjects {
    /// By the names of a kind and of one of that kind; both are empty where all are asked for.
    fn read(kind: &str, id: &str) -> Self {
        if kind.is_empty() {
            return Self::All;
        }
        let subject = SubjectKind::from_str(kind).ok();
        let subject = subject.and_then(|kind| Subject::read(kind, id).ok());
        subject.map_or(Self::Unknown, Self::One)
    }
}

/// The events of one subject, or all of them, for an actor who may read them.
pub(crate) struct Events {
    store: Store,
    changes: Subscription,
    subjects: Subjects,
    /// Id of the last event that was read.
    pub(crate) after: EventId,
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
        Ok(Self {
            store: context.store.clone(),
            changes: context.hub.subscribe(Topic::Events),
            subjects: Subjects::read(&query.subject_kind, &query.subject_id),
            after: EventId(query.after),
            limit: match query.limit {
                _ if query.follow => LARGEST_PAGE,
                ..=0 => DEFAULT_LIMIT,
                limit => limit.min(LARGEST_PAGE),
            },
        })
    }

    /// The next events, oldest first; none where there are no more yet.
    pub(crate) async fn page(&mut self) -> AppResult<Vec<EventRow>> {
        let subject = match &self.subjects {
            Subjects::All => None,
            Subjects::One(subject) => Some(subject),
            Subjects::Unknown => return Ok(Vec::new()),
        };
        let mut conn = self.store.read().await?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_subject_is_called_has_no_events() {
        assert!(matches!(Subjects::read("", ""), Subjects::All));
        let Subjects::One(subject) = Subjects::read("agent", "a") else {
            panic!("an agent is a subject");
        };
        assert_eq!(subject, Subject::Place("a".into()));
        for (kind, id) in [("comet", "7"), ("trial", "seven"), ("config_policies", "1")] {
            assert!(
                matches!(Subjects::read(kind, id), Subjects::Unknown),
                "{kind}"
            );
        }
    }
}
