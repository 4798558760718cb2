//! Whether the database has disk space: notices when changes are refused because its disk is full, and reports when
//! they are accepted again. The files of new work are refused before that, so that one user who stores them by the
//! thousand does not end the reports and logs of all.

use std::fmt;

use det_lifecycle::record::{ActorName, EventKind, Subject};
use serde_json::json;

use crate::StoreError;
use crate::events::NewEvent;

/// A disk that is nearly full accepts small changes between larger ones that it refuses. It has space again once it has
/// refused none for so long, in microseconds: otherwise there would be an event for each.
const QUIET: i64 = 1_000_000;

/// So much of a disk stays free of the files of work, at most: what keeps the cluster running needs it.
const KEPT_BYTES: u64 = 1 << 30;
/// The same as a part of the disk, for small ones: a twentieth.
const KEPT_PART: u64 = 20;

/// Archives up to this size are not refused, as the empty ones of work without files: rows of reports are larger.
const SMALL_BYTES: u64 = 4 << 10;

/// What space there is for the database's file, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FreeSpace {
    /// Size of the disk.
    pub(crate) total: u64,
    /// What is free on the disk, without what the file is going to take of it when it gets what is in the log of the database.
    pub(crate) available: u64,
    /// What is unused inside the database's file.
    pub(crate) unused: u64,
}

/// What is missing to store an archive, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortfall {
    /// Size of the archive.
    pub bytes: u64,
    /// Size of the disk.
    pub total: u64,
    /// What is free on the disk.
    pub available: u64,
    /// What must be free for this archive.
    pub needed: u64,
}

impl FreeSpace {
    /// Refuses an archive that would leave less than what is kept. It is written twice: to the log of the database, then
    /// to its file.
    pub(crate) fn require(self, bytes: u64) -> Result<(), StoreError> {
        if bytes <= SMALL_BYTES {
            return Ok(());
        }
        let kept = KEPT_BYTES.min(self.total / KEPT_PART);
        let needed = kept
            .saturating_add(bytes)
            .saturating_add(bytes.saturating_sub(self.unused));
        if self.available >= needed {
            return Ok(());
        }
        Err(StoreError::NearlyFull(Shortfall {
            bytes,
            total: self.total,
            available: self.available,
            needed,
        }))
    }
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes >> 20;
        write!(
            f,
            "{} of its {} MiB are free, and {} MiB must be to store an archive of {} KiB with the files of new work",
            mib(self.available),
            mib(self.total),
            mib(self.needed) + 1,
            self.bytes.div_ceil(1 << 10),
        )
    }
}

/// An error of a change.
pub trait ChangeError: From<StoreError> {
    /// Whether its cause is a full disk ([`StoreError::Full`]).
    fn is_full(&self) -> bool;
}

impl ChangeError for StoreError {
    fn is_full(&self) -> bool {
        matches!(self, Self::Full)
    }
}

/// Whether the disk had space when it was last needed.
#[derive(Debug, Default)]
pub(crate) struct DiskSpace {
    shortage: Option<Shortage>,
}

/// A time in which changes are refused because the disk is full.
#[derive(Debug)]
struct Shortage {
    /// When the first change was refused, microseconds.
    since: i64,
    /// When the last change was refused, microseconds.
    last: i64,
    /// How many changes were refused.
    refused: u64,
}

impl DiskSpace {
    /// Counts changes that were refused because the disk is full; `now` in microseconds.
    pub(crate) fn refused(&mut self, changes: u64, now: i64) {
        if changes == 0 {
            return;
        }
        let shortage = self.shortage.get_or_insert_with(|| {
            tracing::error!(
                "the disk with the files of the database is full: changes are refused until it has space again; free \
                 some space on it, the master needs no restart"
            );
            Shortage {
                since: now,
                last: now,
                refused: 0,
            }
        });
        shortage.last = now;
        shortage.refused += changes;
    }

    /// The end of a shortage, to be recorded with the next commit; `None` while there is no shortage, or while it may
    /// last.
    pub(crate) fn recovery(&self, now: i64) -> Option<Recovery> {
        let shortage = self.shortage.as_ref()?;
        (now - shortage.last >= QUIET).then(|| Recovery {
            reason: format!(
                "its disk was full for {:.1} s and {} changes were refused meanwhile; changes are accepted again",
                seconds(now - shortage.since),
                shortage.refused
            ),
            detail: json!({"since": shortage.since, "until": now, "refused": shortage.refused})
                .to_string(),
        })
    }

    /// The event of a recovery is stored.
    pub(crate) fn recorded(&mut self, recovery: &Recovery) {
        self.shortage = None;
        tracing::info!("the database has disk space again: {}", recovery.reason);
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
fn seconds(micros: i64) -> f64 {
    micros as f64 / 1e6
}

/// The end of a [`Shortage`].
#[derive(Debug)]
pub(crate) struct Recovery {
    reason: String,
    detail: String,
}

impl Recovery {
    /// The event that records it, with `database` as its subject.
    pub(crate) fn event(&self, database: &str) -> NewEvent {
        NewEvent {
            detail: Some(self.detail.clone()),
            ..NewEvent::new(
                ActorName::Master,
                Subject::Database(database.to_owned()),
                EventKind::DiskWasFull,
            )
            .reason(&*self.reason)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_that_always_had_space_has_no_recovery() {
        let mut space = DiskSpace::default();
        space.refused(0, 0);
        assert!(space.recovery(10 * QUIET).is_none());
    }

    #[test]
    fn an_archive_leaves_a_part_of_the_disk_free() {
        const MIB: u64 = 1 << 20;
        let disk = |total: u64, available: u64, unused: u64| FreeSpace {
            total: total * MIB,
            available: available * MIB,
            unused: unused * MIB,
        };
        // 1 GiB of a large disk is kept, a twentieth of a small one.
        assert!(disk(100_000, 1_024 + 190, 0).require(95 * MIB).is_ok());
        assert!(disk(100_000, 1_024 + 189, 0).require(95 * MIB).is_err());
        assert!(disk(100, 7, 0).require(MIB).is_ok());
        // What deletions have left inside the file is not needed again.
        assert!(disk(100, 6, 0).require(MIB).is_err());
        assert!(disk(100, 6, 1).require(MIB).is_ok());
        // One without files needs as much as a report.
        assert!(disk(100, 0, 0).require(1 << 10).is_ok());
        let error = disk(100, 4, 50).require(5 << 10).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the disk with the files of the database is nearly full: 4 of its 100 MiB are free, and 6 MiB must be to \
             store an archive of 5 KiB with the files of new work"
        );
    }

    #[test]
    fn a_recovery_has_the_time_in_which_the_disk_was_full_and_is_recorded_once() {
        let mut space = DiskSpace::default();
        space.refused(1, 5_000_000);
        space.refused(3, 7_000_000);
        assert!(
            space.recovery(7_000_000 + QUIET - 1).is_none(),
            "the shortage may last"
        );
        let recovery = space.recovery(9_500_000).unwrap();
        assert_eq!(
            recovery.reason,
            "its disk was full for 4.5 s and 4 changes were refused meanwhile; changes are accepted again"
        );
        assert_eq!(
            recovery.detail,
            r#"{"refused":4,"since":5000000,"until":9500000}"#
        );
        // It is reported until a commit has stored it.
        assert!(space.recovery(9_600_000).is_some());
        space.recorded(&recovery);
        assert!(space.recovery(9_700_000).is_none());
    }
}
