//! The format of stored chunks: a version byte, then JSON lines, compressed when that helps.

use std::borrow::Cow;
use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::StoreError;

/// Plain JSON lines.
const PLAIN: u8 = 1;
/// Deflated JSON lines.
const DEFLATED: u8 = 2;
/// Shorter chunks are not worth the work.
const WORTH_COMPRESSING: usize = 384;
/// No chunk unpacks to more than this; a larger one is damaged.
const LARGEST: u64 = 1 << 30;

/// Packs records.
pub fn pack<T: Serialize>(records: &[T]) -> Result<Vec<u8>, StoreError> {
    let mut lines = vec![PLAIN];
    for record in records {
        serde_json::to_writer(&mut lines, record).map_err(|e| StoreError::Corrupt {
            what: "a new chunk".into(),
            message: e.to_string(),
        })?;
        lines.push(b'\n');
    }
    if lines.len() < WORTH_COMPRESSING {
        return Ok(lines);
    }
    let mut encoder = DeflateEncoder::new(vec![DEFLATED], Compression::fast());
    encoder
        .write_all(&lines[1..])
        .and_then(|()| encoder.finish())
        .map_err(|e| StoreError::Corrupt {
            what: "a new chunk".into(),
            message: e.to_string(),
        })
}

fn corrupt(message: String) -> StoreError {
    StoreError::Corrupt {
        what: "a chunk".into(),
        message,
    }
}

/// The JSON lines of a chunk, not yet read as records: each ends with a line end, and has no other in it.
pub fn lines(data: &[u8]) -> Result<Cow<'_, [u8]>, StoreError> {
    match data.split_first() {
        Some((&PLAIN, lines)) => Ok(Cow::Borrowed(lines)),
        Some((&DEFLATED, packed)) => {
            let mut inflated = Vec::new();
            DeflateDecoder::new(packed)
                .take(LARGEST)
                .read_to_end(&mut inflated)
                .map_err(|e| corrupt(e.to_string()))?;
            Ok(Cow::Owned(inflated))
        }
        Some((version, _)) => Err(corrupt(format!("unknown version {version}"))),
        None => Err(corrupt("empty".into())),
    }
}

/// Reads one of [`lines`].
pub fn record<T: DeserializeOwned>(line: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(line).map_err(|e| corrupt(e.to_string()))
}

/// Unpacks records.
pub fn unpack<T: DeserializeOwned>(data: &[u8]) -> Result<Vec<T>, StoreError> {
    lines(data)?
        .split(|b| *b == b'\n')
        .filter(|line| !line.is_empty())
        .map(record)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked() {
        for n in [0_usize, 1, 3, 1000] {
            let records: Vec<(usize, String)> = (0..n)
                .map(|i| (i, format!("line {i}\nwith a break")))
                .collect();
            let data = pack(&records).unwrap();
            assert_eq!(unpack::<(usize, String)>(&data).unwrap(), records);
        }
    }

    #[test]
    fn damage_is_an_error() {
        assert!(unpack::<u32>(&[]).is_err());
        assert!(unpack::<u32>(&[9, 1, 2]).is_err());
        assert!(unpack::<u32>(&[DEFLATED, 0xff, 0xff]).is_err());
        assert!(unpack::<u32>(&[PLAIN, b'x']).is_err());
    }
}
