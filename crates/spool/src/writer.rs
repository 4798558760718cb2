//! Writes records to a spool.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::frame::{self, FrameStart};
use crate::plain::read_plain;
use crate::{Batch, Record, SpoolError, ack, segment};

/// Default capacity in bytes on disk (see [`Writer::is_full`]): 1 GiB.
pub const DEFAULT_CAPACITY_BYTES: u64 = 1 << 30;
/// Size in bytes at which a new segment is started. Much smaller than the capacity, so that acknowledging frees space.
const SEGMENT_BYTES: u64 = 8 << 20;
/// The most bytes of a segment; a longer one was not written by a writer.
const MAX_SEGMENT_BYTES: u64 = 8 * SEGMENT_BYTES;
/// Bytes in memory at which they are written without a flush.
const BUFFER_BYTES: usize = 64 << 10;

/// Appends records. Only one writer may be open for a spool.
#[derive(Debug)]
pub struct Writer {
    dir: PathBuf,
    capacity_bytes: u64,
    segment_bytes: u64,
    /// Segments before the current one: first sequence number and length.
    closed: VecDeque<(u64, u64)>,
    current: Segment,
    /// Whole frames that belong at the end of the current segment.
    buffer: Vec<u8>,
    payload: Vec<u8>,
    next: u64,
}

#[derive(Debug)]
struct Segment {
    first: u64,
    path: PathBuf,
    file: File,
    /// Bytes of whole frames in the file.
    bytes: u64,
}

impl Writer {
    /// Opens the spool in `dir`, which is created if it is missing, and continues after its last complete record.
    ///
    /// `capacity_bytes` is the limit of [`Writer::is_full`].
    pub fn open(dir: &Path, capacity_bytes: u64) -> Result<Self, SpoolError> {
        Self::with_segment_bytes(dir, capacity_bytes, SEGMENT_BYTES)
    }

    /// [`Writer::open`] with another segment size: for tests, which need many segments.
    #[doc(hidden)]
    pub fn with_segment_bytes(
        dir: &Path,
        capacity_bytes: u64,
        segment_bytes: u64,
    ) -> Result<Self, SpoolError> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(|source| SpoolError::Create {
                path: dir.to_owned(),
                source,
            })?;
        let acknowledged = ack::acknowledged(dir)?;
        let mut closed = VecDeque::from(segment::list(dir)?);
        let (current, next) = match closed.pop_back() {
            Some((first, _)) => resume(dir, first)?,
            None => (
                create(dir, acknowledged.saturating_add(1))?,
                acknowledged.saturating_add(1),
            ),
        };
        // The numbers of a truncated tail that had been acknowledged must not be used again: the master would drop the
        // new records as duplicates.
        let next = next.max(acknowledged.saturating_add(1));
        Ok(Self {
            dir: dir.to_owned(),
            capacity_bytes,
            segment_bytes,
            closed,
            current,
            buffer: Vec::new(),
            payload: Vec::new(),
            next,
        })
    }

    /// Replaces the current file and returns it: for tests, which need a full disk.
    #[doc(hidden)]
    pub fn swap_file(&mut self, file: File) -> File {
        std::mem::replace(&mut self.current.file, file)
    }

    /// Adds a record and returns its sequence number. It is in the file after the next [`Writer::flush`] at the latest.
    ///
    /// On an error the record has not been added and may be tried again; earlier ones that could not be written wait in
    /// memory for the next call that succeeds.
    pub fn append(&mut self, record: &Record) -> Result<u64, SpoolError> {
        if self.current.bytes + self.buffer.len() as u64 >= self.segment_bytes {
            self.rotate()?;
        } else if self.buffer.len() >= BUFFER_BYTES {
            self.flush()?;
        }
        self.hold(record)
    }

    /// [`Writer::append`] without a write: the record stays in memory, without a limit, until a later write
    /// succeeds. For
    /// the last records while the disk is full.
    pub fn hold(&mut self, record: &Record) -> Result<u64, SpoolError> {
        let sequence = self.next;
        self.payload.clear();
        serde_json::to_writer(&mut self.payload, record).map_err(|_| SpoolError::Encode {
            sequence,
            bytes: self.payload.len(),
        })?;
        frame::encode(sequence, &self.payload, &mut self.buffer)?;
        self.next += 1;
        Ok(sequence)
    }

    /// Writes everything appended so far to the file, so that a [`Reader`](crate::Reader) sees it and it survives the
    /// end of this process.
    pub fn flush(&mut self) -> Result<(), SpoolError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let current = &mut self.current;
        if let Err(source) = current.file.write_all(&self.buffer) {
            // A part may have been written, and records after it could not be read: truncate the file. If that fails
            // too, the reader finds a damaged frame and skips it.
            let _ = current.file.set_len(current.bytes);
            return Err(SpoolError::Write {
                path: current.path.clone(),
                source,
            });
        }
        current.bytes += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Flushes and syncs to disk, so that the records survive a power failure.
    pub fn sync(&mut self) -> Result<(), SpoolError> {
        self.flush()?;
        self.current
            .file
            .sync_data()
            .map_err(|source| SpoolError::Write {
                path: self.current.path.clone(),
                source,
            })
    }

    /// Sequence number of the last record, 0 for none.
    pub fn last(&self) -> u64 {
        self.next - 1
    }

    /// Bytes that are in memory only.
    pub fn held_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// The records that are in memory only, to ship them without the disk; `None` if there are none.
    pub fn held(&self) -> Option<Batch> {
        let mut records = Vec::new();
        let (mut first, mut used) = (0, 0);
        while let FrameStart::Frame {
            sequence,
            payload,
            bytes,
        } = frame::decode(self.buffer.get(used..)?)
        {
            // The frames were encoded by this writer, so they can be decoded.
            records.push(serde_json::from_slice(payload).ok()?);
            if used == 0 {
                first = sequence;
            }
            used += bytes;
        }
        (!records.is_empty()).then_some(Batch { first, records })
    }

    /// Whether the spool has reached its capacity. The caller should wait for an acknowledgement, but may still
    /// append: the
    /// limit is not enforced.
    pub fn is_full(&self) -> bool {
        let closed: u64 = self.closed.iter().map(|(_, bytes)| bytes).sum();
        closed + self.current.bytes + self.buffer.len() as u64 >= self.capacity_bytes
    }

    /// Records that the master has all records up to `sequence` and removes the segments that contain no others. On
    /// a full
    /// disk the segments are removed even if the acknowledgement cannot be written, because that frees space.
    pub fn acknowledge(&mut self, sequence: u64) -> Result<(), SpoolError> {
        let noted = ack::acknowledge(&self.dir, sequence);
        self.remove_up_to(sequence).and(noted)
    }

    fn remove_up_to(&mut self, sequence: u64) -> Result<(), SpoolError> {
        let large = self.current.bytes > self.segment_bytes / 2;
        if sequence >= self.last() && self.current.bytes > 0 && (large || self.is_full()) {
            // Everything is acknowledged: start a new segment rather than keep a large one of old lines, or a small one
            // that fills a small spool and would block its writer for ever.
            self.rotate()?;
        }
        while let Some((first, _)) = self.closed.front().copied() {
            let next = self.closed.get(1).map_or(self.current.first, |s| s.0);
            if next > sequence.saturating_add(1) {
                break;
            }
            let path = segment::path(&self.dir, first);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(SpoolError::Write {
                        path,
                        source: error,
                    });
                }
                _ => self.closed.pop_front(),
            };
        }
        Ok(())
    }

    fn rotate(&mut self) -> Result<(), SpoolError> {
        self.flush()?;
        let fresh = create(&self.dir, self.next)?;
        let full = std::mem::replace(&mut self.current, fresh);
        self.closed.push_back((full.first, full.bytes));
        Ok(())
    }
}

fn create(dir: &Path, first: u64) -> Result<Segment, SpoolError> {
    let path = segment::path(dir, first);
    let opened = OpenOptions::new()
        .append(true)
        .create_new(true)
        .mode(0o600)
        .open(&path);
    match opened {
        Ok(file) => Ok(Segment {
            first,
            path,
            file,
            bytes: 0,
        }),
        Err(source) => Err(SpoolError::Write { path, source }),
    }
}

/// Opens an existing segment, truncates an incomplete tail, and returns the next sequence number.
fn resume(dir: &Path, first: u64) -> Result<(Segment, u64), SpoolError> {
    let path = segment::path(dir, first);
    let bytes = read_plain(&path, MAX_SEGMENT_BYTES).map_err(|source| SpoolError::Read {
        path: path.clone(),
        source,
    })?;
    let mut good = 0;
    let mut next = first;
    while let Some(rest) = bytes.get(good..)
        && let FrameStart::Frame {
            sequence, bytes, ..
        } = frame::decode(rest)
    {
        good += bytes;
        next = sequence.saturating_add(1);
    }
    let good = good as u64;
    let opened = OpenOptions::new()
        .append(true)
        .open(&path)
        .and_then(|file| file.set_len(good).map(|()| file));
    match opened {
        Ok(file) => Ok((
            Segment {
                first,
                path,
                file,
                bytes: good,
            },
            next,
        )),
        Err(source) => Err(SpoolError::Write { path, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LogStream, Reader};

    fn line(text: &str) -> Record {
        Record {
            timestamp_micros: 1,
            stdtype: LogStream::Stdout,
            rank_id: None,
            level: None,
            log: text.to_owned(),
            outage: None,
        }
    }

    fn full() -> File {
        OpenOptions::new().append(true).open("/dev/full").unwrap()
    }

    #[test]
    fn records_that_a_full_disk_refuses_are_held_and_written_later() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(dir.path(), 1 << 20).unwrap();
        writer.append(&line("one")).unwrap();
        writer.flush().unwrap();
        assert_eq!(writer.held(), None);
        let disk = writer.swap_file(full());
        for text in ["two", "three"] {
            writer.append(&line(text)).unwrap();
            assert!(writer.flush().is_err());
        }
        let held = Batch {
            first: 2,
            records: vec![line("two"), line("three")],
        };
        assert_eq!(writer.held(), Some(held.clone()));
        assert!(writer.held_bytes() > 0);
        writer.swap_file(disk);
        writer.flush().unwrap();
        let mut reader = Reader::after(dir.path(), 1);
        assert_eq!(reader.next_batch(10, 1 << 20).unwrap(), Some(held));
        assert_eq!(writer.held(), None);
    }

    #[test]
    fn last_records_are_held_while_the_disk_is_full() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(dir.path(), 1 << 20).unwrap();
        writer.swap_file(full());
        let long = line(&"x".repeat(1000));
        let taken = (0..1000).take_while(|_| writer.append(&long).is_ok());
        let taken = u64::try_from(taken.count()).unwrap();
        assert!(taken < 100, "the memory is bounded: {taken} lines");
        assert_eq!(writer.hold(&line("the last word")).unwrap(), taken + 1);
        let held = writer.held().unwrap();
        assert_eq!((held.first, held.last()), (1, taken + 1));
        assert_eq!(held.records.last().unwrap().log, "the last word");
    }
}
