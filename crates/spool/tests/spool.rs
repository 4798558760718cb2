//! A spool loses nothing that was flushed and repeats nothing that was acknowledged, in whatever way its writer ends.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::path::{Path, PathBuf};

use det_spool::{Batch, LogStream, Reader, Record, Writer, acknowledge, acknowledged};
use proptest::prelude::*;

const CAPACITY: u64 = 1 << 30;

fn line(text: &str) -> Record {
    Record {
        timestamp_micros: 5,
        stdtype: LogStream::Stdout,
        rank_id: None,
        level: None,
        log: text.to_owned(),
        outage: None,
    }
}

fn numbered(n: u64) -> Record {
    line(&format!("line {n}"))
}

fn drain(reader: &mut Reader) -> Vec<(u64, String)> {
    let mut all = Vec::new();
    while let Some(batch) = reader.next_batch(7, 1 << 20).unwrap() {
        let Batch { first, records } = batch;
        all.extend((first..).zip(records.into_iter().map(|r| r.log)));
    }
    all
}

fn expected(range: std::ops::RangeInclusive<u64>) -> Vec<(u64, String)> {
    range.map(|n| (n, numbered(n).log)).collect()
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "seg"))
        .collect();
    paths.sort();
    paths
}

#[test]
fn a_reader_follows_a_writer() {
    let dir = tempfile::tempdir().unwrap();
    let mut reader = Reader::open(dir.path()).unwrap();
    assert_eq!(reader.next_batch(10, 1000).unwrap(), None);
    let mut writer = Writer::open(dir.path(), CAPACITY).unwrap();
    assert_eq!(writer.append(&numbered(1)).unwrap(), 1);
    writer.flush().unwrap();
    assert_eq!(drain(&mut reader), expected(1..=1));
    assert_eq!(reader.next_batch(10, 1000).unwrap(), None);
    for n in 2..=20 {
        assert_eq!(writer.append(&numbered(n)).unwrap(), n);
    }
    writer.flush().unwrap();
    assert_eq!(drain(&mut reader), expected(2..=20));
}

#[test]
fn batches_respect_their_limits() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(dir.path(), CAPACITY).unwrap();
    for n in 1..=10 {
        writer.append(&numbered(n)).unwrap();
    }
    writer.flush().unwrap();
    let mut reader = Reader::open(dir.path()).unwrap();
    assert_eq!(reader.next_batch(4, 1 << 20).unwrap().unwrap().last(), 4);
    // A limit of one byte still gives one record: a batch is never empty.
    let batch = reader.next_batch(4, 1).unwrap().unwrap();
    assert_eq!((batch.first, batch.last()), (5, 5));
}

#[test]
fn acknowledged_segments_are_removed_and_free_space() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::with_segment_bytes(dir.path(), 400, 100).unwrap();
    let mut n = 0;
    while !writer.is_full() {
        n += 1;
        writer.append(&numbered(n)).unwrap();
    }
    writer.flush().unwrap();
    let before = segments(dir.path()).len();
    assert!(before > 2, "{before} segments");
    writer.acknowledge(n - 1).unwrap();
    assert!(!writer.is_full());
    assert!(segments(dir.path()).len() < before);
    assert_eq!(acknowledged(dir.path()).unwrap(), n - 1);
    let mut reader = Reader::open(dir.path()).unwrap();
    assert_eq!(drain(&mut reader), expected(n..=n));
}

#[test]
fn a_spool_smaller_than_a_segment_is_not_full_when_all_is_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(dir.path(), 1).unwrap();
    writer.append(&numbered(1)).unwrap();
    writer.flush().unwrap();
    assert!(writer.is_full());
    writer.acknowledge(1).unwrap();
    assert!(!writer.is_full());
}

#[test]
fn numbers_go_on_when_everything_was_acknowledged_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(dir.path(), CAPACITY).unwrap();
    writer.append(&numbered(1)).unwrap();
    writer.flush().unwrap();
    drop(writer);
    acknowledge(dir.path(), 41).unwrap();
    for path in segments(dir.path()) {
        fs::remove_file(path).unwrap();
    }
    let mut writer = Writer::open(dir.path(), CAPACITY).unwrap();
    assert_eq!(writer.append(&numbered(42)).unwrap(), 42);
}

#[test]
fn damage_in_an_earlier_segment_costs_only_that_segment() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::with_segment_bytes(dir.path(), CAPACITY, 200).unwrap();
    for n in 1..=30 {
        writer.append(&numbered(n)).unwrap();
    }
    writer.flush().unwrap();
    let second = &segments(dir.path())[1];
    let mut bytes = fs::read(second).unwrap();
    bytes[20] ^= 0xff;
    fs::write(second, bytes).unwrap();

    let mut reader = Reader::open(dir.path()).unwrap();
    let read = drain(&mut reader);
    assert_eq!(reader.damaged(), 1);
    assert!(read.len() > 20, "{read:?}");
    assert_eq!(read.first().unwrap().0, 1);
    assert_eq!(read.last().unwrap().0, 30);
    for (n, text) in read {
        assert_eq!(text, numbered(n).log);
    }
}

#[test]
fn an_unreadable_acknowledgement_counts_as_none() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("ack"), b"\xff\xfe").unwrap();
    assert_eq!(acknowledged(dir.path()).unwrap(), 0);
}

proptest! {
    /// Wherever the last write was cut off, the records before that are read once each, and the writer continues.
    #[test]
    fn a_torn_tail_costs_only_itself(count in 1_u64..40, segment_bytes in 50_u64..500, cut in 0_usize..60) {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::with_segment_bytes(dir.path(), CAPACITY, segment_bytes).unwrap();
        for n in 1..=count {
            writer.append(&numbered(n)).unwrap();
        }
        writer.flush().unwrap();
        drop(writer);
        let last = segments(dir.path()).pop().unwrap();
        let bytes = fs::read(&last).unwrap();
        let keep = bytes.len().saturating_sub(cut);
        fs::write(&last, &bytes[..keep]).unwrap();

        let kept = drain(&mut Reader::open(dir.path()).unwrap());
        let kept_count = kept.len() as u64;
        prop_assert!(kept_count <= count);
        prop_assert_eq!(&kept, &expected(1..=kept_count));
        prop_assert!(cut > 0 || kept_count == count);

        let mut writer = Writer::with_segment_bytes(dir.path(), CAPACITY, segment_bytes).unwrap();
        prop_assert_eq!(writer.append(&numbered(kept_count + 1)).unwrap(), kept_count + 1);
        writer.flush().unwrap();
        let all = drain(&mut Reader::open(dir.path()).unwrap());
        prop_assert_eq!(all, expected(1..=kept_count + 1));
    }

    /// After any acknowledgement, each later record is read once and in order.
    #[test]
    fn replay_from_any_acknowledgement(
        count in 0_u64..80, segment_bytes in 50_u64..500, flush_every in 1_u64..10, ack in 0_u64..90,
        by_writer in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::with_segment_bytes(dir.path(), CAPACITY, segment_bytes).unwrap();
        for n in 1..=count {
            writer.append(&numbered(n)).unwrap();
            if n % flush_every == 0 {
                writer.flush().unwrap();
            }
        }
        writer.flush().unwrap();
        let ack = ack.min(count);
        if by_writer {
            writer.acknowledge(ack).unwrap();
        } else {
            acknowledge(dir.path(), ack).unwrap();
        }
        let mut reader = Reader::open(dir.path()).unwrap();
        prop_assert_eq!(drain(&mut reader), expected(ack + 1..=count));
        prop_assert_eq!(reader.damaged(), 0);
    }

    /// Any text is read as it was written.
    #[test]
    fn any_text_survives(texts in proptest::collection::vec(any::<String>(), 1..20)) {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(dir.path(), CAPACITY).unwrap();
        for text in &texts {
            writer.append(&line(text)).unwrap();
        }
        writer.sync().unwrap();
        let read: Vec<String> = drain(&mut Reader::open(dir.path()).unwrap()).into_iter().map(|r| r.1).collect();
        prop_assert_eq!(read, texts);
    }
}
