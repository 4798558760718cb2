//! Reading the ordered record of changes.

use det_authz::Kind;
use det_store::Store;
use det_store::events::{self, EventRow};

use crate::app::reads;
use crate::auth::Actor;
use crate::error::AppResult;

/// Bytes of texts that the events of a page have together at most; one that has more comes alone.
const PAGE_BYTES: i64 = 1 << 20;

/// The events of one subject, or all of them, for an actor who may read them.
pub(crate) struct Events {
    store: Store,
    subject: Option<(String, String)>,
}

impl Events {
    /// Of a subject's kind and id; `None` = of everything.
    pub(crate) fn open(
        store: &Store,
        actor: &Actor,
        subject: Option<(String, String)>,
    ) -> AppResult<Self> {
        reads::require(actor, Kind::Event, "events")?;
        Ok(Self {
            store: store.clone(),
            subject,
        })
    }

    /// At most `limit` events after this one, oldest first; fewer where their texts are large.
    pub(crate) async fn after(&self, event_id: i64, limit: i64) -> AppResult<Vec<EventRow>> {
        let mut conn = self.store.read().await?;
        let subject = self.subject.as_ref();
        let subject = subject.map(|(kind, id)| (kind.as_str(), id.as_str()));
        Ok(events::list(&mut conn.conn(), event_id, subject, limit, PAGE_BYTES).await?)
    }
}
