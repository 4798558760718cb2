//! Logs on their way: a task's bytes cut into lines, and a damaged spool read back.
//!
//! The first byte chooses which. Lines: the same stream gives the same lines however it is cut into reads. Spool: whatever
//! is in a segment, reading ends, and sequence numbers only rise.
#![no_main]

use det_spool::{Batch, BatchIds, MAX_BATCH_BYTES, MAX_BATCH_RECORDS, Reader, batch_body};
use libfuzzer_sys::fuzz_target;

// The supervisor is a program without a library; what it reads is fuzzed as it is.
#[path = "../../crates/supervisor/src/lines.rs"]
mod lines;

fn cut(bytes: &[u8], piece: usize) -> Vec<Vec<u8>> {
    let mut splitter = lines::Splitter::default();
    let mut out = Vec::new();
    for piece in bytes.chunks(piece) {
        splitter.push(piece, |line| out.push(line.to_vec()));
    }
    splitter.finish(|line| out.push(line.to_vec()));
    out
}

fn lines_are_the_same_however_they_arrive(bytes: &[u8], piece: usize) {
    let whole = cut(bytes, bytes.len().max(1));
    assert_eq!(whole, cut(bytes, piece));
    for line in &whole {
        assert!(line.len() <= lines::MAX_LINE_BYTES);
        let line = lines::classify(line);
        assert!(!line.text.contains('\0'));
    }
}

/// Gives what could be frames the sums that they need, so that the fuzzer need not find them: length, sum, number,
/// payload. Every eighth stays damaged.
fn with_sums(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let mut rest = bytes.as_mut_slice();
    let mut count = 0;
    while let Some((header, behind)) = rest.split_first_chunk_mut::<16>() {
        let length = (usize::from(header[0]) | usize::from(header[1]) << 8) % 2048;
        let Some((payload, next)) = behind.split_at_mut_checked(length) else {
            break;
        };
        count += 1;
        if count % 8 != 0 {
            header[..4].copy_from_slice(&u32::try_from(length).expect("small").to_le_bytes());
            let mut sum = flate2::Crc::new();
            sum.update(&header[8..]);
            sum.update(payload);
            header[4..8].copy_from_slice(&sum.sum().to_le_bytes());
        }
        rest = next;
    }
    bytes
}

fn a_spool_is_read_to_its_end(bytes: &[u8], split: usize) {
    let dir = tempfile::tempdir().expect("a directory");
    // Two segments, so that damage in the first one is passed over.
    let (first, second) = bytes.split_at(split.min(bytes.len()));
    for (name, content) in [
        ("00000000000000000001", first),
        ("00000000000000000100", second),
    ] {
        std::fs::write(dir.path().join(format!("{name}.seg")), content).expect("a file");
    }
    let mut reader = Reader::after(dir.path(), 0);
    let mut last = 0;
    while let Some(batch) = reader
        .next_batch(MAX_BATCH_RECORDS, MAX_BATCH_BYTES)
        .expect("files that can be read")
    {
        assert!(batch.first > last, "numbers rise");
        last = batch.last();
        posted(&batch);
    }
}

fn posted(batch: &Batch) {
    let ids = BatchIds {
        task_id: "t".into(),
        allocation_id: "t.1".into(),
        agent_id: "a".into(),
        container_id: "c".into(),
    };
    let body = batch_body(batch, &ids).expect("a body");
    let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(
        body["logs"].as_array().map(Vec::len),
        Some(batch.records.len())
    );
}

fuzz_target!(|data: &[u8]| {
    let [kind, size, rest @ ..] = data else {
        return;
    };
    if kind % 2 == 0 {
        lines_are_the_same_however_they_arrive(rest, usize::from(*size) + 1);
    } else {
        a_spool_is_read_to_its_end(&with_sums(rest), usize::from(*size) * 4);
    }
});
