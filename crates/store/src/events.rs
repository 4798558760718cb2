//! The ordered record of every change.

use det_ids::EventId;
use det_lifecycle::record::{ActorName, EventKind, RecordedState, Subject, SubjectKind};
use serde_json::Value;

use crate::unit::save_rows;
use crate::{Conn, StoreError, WriteTx, column};

/// A change to append to the ordered record, before the store gives it a position and a time.
#[derive(Debug, Clone)]
pub struct NewEvent {
    /// The user, task, place or signal that made the change, or the master itself.
    pub actor: ActorName,
    /// The object that changed, by its kind and its id or name.
    pub subject: Subject,
    /// The kind of change, such as a change of state or a change of configuration.
    pub kind: EventKind,
    /// State before; `None` = there was none, or the event is no change of state.
    pub from: Option<RecordedState>,
    /// State after; `None` = there is none, or the event is no change of state.
    pub to: Option<RecordedState>,
    /// The reason, as a sentence for users.
    pub reason: Option<String>,
    /// Further facts on the change as a JSON document; `None` = there are none.
    pub detail: Option<String>,
}

impl NewEvent {
    /// A change without states, reason and detail.
    pub fn new(actor: impl Into<ActorName>, subject: Subject, kind: EventKind) -> Self {
        Self {
            actor: actor.into(),
            subject,
            kind,
            from: None,
            to: None,
            reason: None,
            detail: None,
        }
    }

    /// Sets the states before and after; `None` on both sides = the event is no change of state.
    #[must_use]
    pub fn states(mut self, from: Option<RecordedState>, to: Option<RecordedState>) -> Self {
        self.from = from;
        self.to = to;
        self
    }

    /// Sets the reason, a sentence for users; `None` removes it.
    #[must_use]
    pub fn reason<'a>(mut self, reason: impl Into<Option<&'a str>>) -> Self {
        self.reason = reason.into().map(str::to_owned);
        self
    }

    /// Sets further facts on the change, which are stored as JSON text; `None` removes them.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<Option<Value>>) -> Self {
        self.detail = detail.into().map(|detail| detail.to_string());
        self
    }
}

/// A change as it is stored in the ordered record.
#[derive(Debug, Clone, PartialEq)]
pub struct EventRow {
    /// Position in the record: greater than that of every earlier event.
    pub id: EventId,
    /// Time of the record, in microseconds since 1970-01-01T00:00:00Z.
    pub at: i64,
    /// Who made the change: as [`NewEvent::actor`].
    pub actor: ActorName,
    /// What has changed: as [`NewEvent::subject`].
    pub subject: Subject,
    /// What happened to the subject.
    pub kind: EventKind,
    /// State before the change; `None` = there was none, or the event is no change of state.
    pub from: Option<RecordedState>,
    /// State after the change; `None` = there is none, or the event is no change of state.
    pub to: Option<RecordedState>,
    /// The reason, as a sentence for users; `None` = none was given.
    pub reason: Option<String>,
    /// Further facts on the change as a JSON document; `None` = there are none.
    pub detail: Option<String>,
}

/// An event as its columns have it.
#[derive(crate::Row)]
#[row(kind = "event")]
struct ReadEvent {
    id: EventId,
    at: i64,
    actor: String,
    #[row(word)]
    subject_kind: SubjectKind,
    subject_id: String,
    #[row(word)]
    kind: EventKind,
    from_state: Option<String>,
    to_state: Option<String>,
    reason: Option<String>,
    detail: Option<String>,
}

impl TryFrom<ReadEvent> for EventRow {
    type Error = StoreError;

    fn try_from(row: ReadEvent) -> Result<Self, StoreError> {
        let corrupt = |column: &str, message| StoreError::Corrupt {
            what: format!("{column} of event {}", row.id),
            message,
        };
        let state = |column: &str, text: Option<&str>| {
            let read = text.map(|text| recorded_state(row.subject_kind, row.kind, text));
            read.transpose().map_err(|message| corrupt(column, message))
        };
        Ok(Self {
            id: row.id,
            at: row.at,
            actor: ActorName::read(&row.actor).map_err(|message| corrupt("actor", message))?,
            subject: Subject::read(row.subject_kind, &row.subject_id)
                .map_err(|message| corrupt("subject_id", message))?,
            kind: row.kind,
            from: state("from_state", row.from_state.as_deref())?,
            to: state("to_state", row.to_state.as_deref())?,
            reason: row.reason,
            detail: row.detail,
        })
    }
}

/// What such a subject was before or after such a change, by its text.
fn recorded_state(
    subject: SubjectKind,
    kind: EventKind,
    text: &str,
) -> Result<RecordedState, String> {
    match subject {
        SubjectKind::Experiment | SubjectKind::Trial => column::word(text).map(RecordedState::Work),
        SubjectKind::Task => column::word(text).map(RecordedState::Task),
        SubjectKind::Allocation if kind == EventKind::ResourcePool => {
            Ok(RecordedState::ResourcePool(text.to_owned()))
        }
        SubjectKind::Allocation => column::word(text).map(RecordedState::Allocation),
        SubjectKind::Checkpoint => column::word(text).map(RecordedState::Checkpoint),
        SubjectKind::Job
        | SubjectKind::Place
        | SubjectKind::User
        | SubjectKind::Template
        | SubjectKind::Workspace
        | SubjectKind::Project
        | SubjectKind::ConfigPolicies
        | SubjectKind::Master
        | SubjectKind::Database => {
            let subject: &'static str = subject.into();
            Err(format!("a subject of kind \"{subject}\" has no states"))
        }
    }
}

/// A change as it waits to be written.
pub(crate) struct StoredEvent {
    at: i64,
    subject_id: String,
    event: NewEvent,
}

/// Records a change in the transaction that makes it. Events get their numbers in the order of these calls.
#[expect(clippy::unused_async, reason = "like all functions of rows")]
pub async fn append(tx: &mut WriteTx, event: NewEvent) -> Result<(), StoreError> {
    tx.conn().writing()?.events.push(StoredEvent {
        at: crate::now(),
        subject_id: storable(event.subject.to_string()),
        event: NewEvent {
            actor: event.actor,
            from: event.from.map(storable_state),
            to: event.to.map(storable_state),
            reason: event.reason.map(storable),
            detail: event.detail.map(storable),
            ..event
        },
    });
    Ok(())
}

/// A text that PostgreSQL cannot hold must not keep the changes of others from being stored.
fn storable(text: String) -> String {
    if text.contains('\0') {
        text.replace('\0', "\\0")
    } else {
        text
    }
}

fn storable_state(state: RecordedState) -> RecordedState {
    match state {
        RecordedState::ResourcePool(name) => RecordedState::ResourcePool(storable(name)),
        state @ (RecordedState::Work(_)
        | RecordedState::Task(_)
        | RecordedState::Allocation(_)
        | RecordedState::Checkpoint(_)) => state,
    }
}

/// Writes events in their order.
pub(crate) async fn save_all(conn: &mut Conn<'_>, rows: &[StoredEvent]) -> Result<(), StoreError> {
    save_rows!(
        conn,
        rows,
        "INSERT INTO events",
        (
            at: "bigint" = |row| row.at,
            actor: "text" = |row| storable(row.event.actor.to_string()),
            subject_kind: "text" = |row| row.event.subject.kind(),
            subject_id: "text" = |row| row.subject_id.as_str(),
            kind: "text" = |row| row.event.kind.name(),
            from_state: "text" = |row| row.event.from.as_ref().map(RecordedState::as_str),
            to_state: "text" = |row| row.event.to.as_ref().map(RecordedState::as_str),
            reason: "text" = |row| row.event.reason.as_deref(),
            detail: "text" = |row| row.event.detail.as_deref(),
        ),
        ""
    );
    Ok(())
}

/// Bytes of an event's texts that have no limit of their own.
macro_rules! sizes {
    ($which:literal) => {
        concat!(
            "SELECT id, CAST(COALESCE(octet_length(detail), 0) + COALESCE(octet_length(reason), 0) AS BIGINT) \
             FROM events ",
            $which
        )
    };
}

/// A statement of [`list`]: sizes of all events behind one.
pub(crate) const SIZES: &str = sizes!("WHERE id > $1 ORDER BY id LIMIT $2");
/// A statement of [`list`]: sizes of the events of one subject behind one.
pub(crate) const SIZES_OF_SUBJECT: &str =
    sizes!("WHERE subject_kind = $2 AND subject_id = $3 AND id > $1 ORDER BY id LIMIT $4");
/// A statement of [`list`]: the events between two positions.
pub(crate) const ALL: &str = "SELECT * FROM events WHERE id > $1 AND id <= $2 ORDER BY id";
/// A statement of [`list`]: those of one subject between two positions.
pub(crate) const OF_SUBJECT: &str = "SELECT * FROM events WHERE subject_kind = $2 AND subject_id = $3 AND id > $1 \
     AND id <= $4 ORDER BY id";

/// The statement of [`lost_places`], also for the test of query plans.
pub(crate) const LOST_PLACES: &str = "SELECT * FROM events WHERE subject_kind = 'agent' AND kind = 'removed' \
     ORDER BY id DESC LIMIT $1";

/// The last places that were given up, newest first, at most `limit`.
pub async fn lost_places(conn: &mut Conn<'_>, limit: i64) -> Result<Vec<EventRow>, StoreError> {
    conn.flush().await?;
    let rows = fetch_all!(conn, ReadEvent, LOST_PLACES, limit)?;
    rows.into_iter().map(EventRow::try_from).collect()
}

/// Events after `after`, oldest first; only those of `subject` when it is given. At most `limit`, and no more than have
/// `bytes` of text together; one that has more comes alone.
pub async fn list(
    conn: &mut Conn<'_>,
    after: EventId,
    subject: Option<&Subject>,
    limit: i64,
    bytes: i64,
) -> Result<Vec<EventRow>, StoreError> {
    conn.flush().await?;
    let subject = subject.map(|subject| (subject.kind(), subject.to_string()));
    let subject = subject.as_ref().map(|(kind, id)| (*kind, id.as_str()));
    let sizes = match subject {
        None => fetch_all!(conn, (EventId, i64), SIZES, after, limit),
        Some((kind, id)) => {
            fetch_all!(
                conn,
                (EventId, i64),
                SIZES_OF_SUBJECT,
                after,
                kind,
                id,
                limit
            )
        }
    }?;
    let Some(through) = last_within(&sizes, bytes) else {
        return Ok(Vec::new());
    };
    let rows = match subject {
        None => fetch_all!(conn, ReadEvent, ALL, after, through),
        Some((kind, id)) => fetch_all!(conn, ReadEvent, OF_SUBJECT, after, kind, id, through),
    }?;
    rows.into_iter().map(EventRow::try_from).collect()
}

/// The last event, of events with sizes, up to which all together have at most `bytes`; the first one in any case.
fn last_within(sizes: &[(EventId, i64)], bytes: i64) -> Option<EventId> {
    let mut left = bytes;
    let fits = |(_, size): &&(EventId, i64)| {
        left = left.saturating_sub(*size);
        left >= 0
    };
    let fitting = sizes.iter().take_while(fits).last();
    fitting.or(sizes.first()).map(|(id, _)| *id)
}
