//! Whether there is room for the database: notices when changes are refused for want of it, and tells when they are
//! taken again.

use serde_json::json;

use crate::StoreError;
use crate::events::NewEvent;

/// A disk on the edge takes small changes between larger ones that it refuses. It has room again once it has refused
/// none for so long, in microseconds: else there would be an event for each.
const QUIET: i64 = 1_000_000;

/// What a change fails with.
pub trait ChangeError: From<StoreError> {
    /// Whether the store had no room ([`StoreError::Full`]), in whatever words it is told.
    fn is_full(&self) -> bool;
}

impl ChangeError for StoreError {
    fn is_full(&self) -> bool {
        matches!(self, Self::Full)
    }
}

/// What is known of the room.
#[derive(Debug, Default)]
pub(crate) struct Room {
    full: Option<Full>,
}

/// There was none when it was last needed.
#[derive(Debug)]
struct Full {
    /// When the first change was refused, and the last one.
    since: i64,
    last: i64,
    /// How many were.
    refused: u64,
}

impl Room {
    /// So many changes were refused, since there was no room.
    pub(crate) fn refused(&mut self, changes: u64, now: i64) {
        if changes == 0 {
            return;
        }
        let full = self.full.get_or_insert_with(|| {
            tracing::error!(
                "there is no room left where the database keeps its files: changes are refused until there is; make \
                 room on that disk, the master needs no restart"
            );
            Full {
                since: now,
                last: now,
                refused: 0,
            }
        });
        full.last = now;
        full.refused += changes;
    }

    /// What is to be written with the next commit: that changes are taken again. `None` while there is nothing to tell.
    pub(crate) fn news(&self, now: i64) -> Option<News> {
        let full = self.full.as_ref()?;
        (now - full.last >= QUIET).then(|| News {
            reason: format!(
                "it had no room left for {:.1} s and refused {} changes meanwhile; it takes changes again",
                seconds(now - full.since),
                full.refused
            ),
            detail: json!({"since": full.since, "until": now, "refused": full.refused}).to_string(),
        })
    }

    /// The news are stored.
    pub(crate) fn told(&mut self, news: &News) {
        self.full = None;
        tracing::info!("the database has room again: {}", news.reason);
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
fn seconds(micros: i64) -> f64 {
    micros as f64 / 1e6
}

/// The end of a time without room.
#[derive(Debug)]
pub(crate) struct News {
    reason: String,
    detail: String,
}

impl News {
    /// As the change of `database`.
    pub(crate) fn event(&self, database: &str) -> NewEvent<'_> {
        NewEvent {
            actor: "master",
            subject_kind: "database",
            subject_id: database.to_owned(),
            kind: "had_no_room",
            reason: Some(&self.reason),
            detail: Some(self.detail.clone()),
            ..NewEvent::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_that_always_had_room_has_nothing_to_tell() {
        let mut room = Room::default();
        room.refused(0, 0);
        assert!(room.news(10 * QUIET).is_none());
    }

    #[test]
    fn once_it_takes_changes_again_it_tells_since_when_it_did_not_and_only_once() {
        let mut room = Room::default();
        room.refused(1, 5_000_000);
        room.refused(3, 7_000_000);
        assert!(
            room.news(7_000_000 + QUIET - 1).is_none(),
            "on the edge it is not told yet"
        );
        let news = room.news(9_500_000).unwrap();
        assert_eq!(
            news.reason,
            "it had no room left for 4.5 s and refused 4 changes meanwhile; it takes changes again"
        );
        assert_eq!(
            news.detail,
            r#"{"refused":4,"since":5000000,"until":9500000}"#
        );
        // A commit that fails tells nobody.
        assert!(room.news(9_600_000).is_some());
        room.told(&news);
        assert!(room.news(9_700_000).is_none());
    }
}
