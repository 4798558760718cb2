//! The format of stored chunks: a byte that names the form, then bytes, compressed when that helps.
//!
//! LZ4 and not deflate: packing is what a report costs the master most, and LZ4 packs four times as fast; what it saves
//! less on disk (a fifth to a third more) is the cheaper good. Reading a long series back gains as well.

use serde::de::DeserializeOwned;

use crate::StoreError;

/// First byte of a chunk that is stored as it is.
const PLAIN: u8 = 1;
/// An LZ4 block behind its size (32 bits, little endian).
const LZ4: u8 = 2;
/// Shorter chunks are not worth the work.
const WORTH_COMPRESSING: usize = 384;
/// No chunk unpacks to more than this; a larger one is damaged.
const LARGEST: usize = 1 << 30;
/// An LZ4 block cannot unpack to more than so many times its size: bounds what a damaged size makes us allocate.
const LARGEST_RATIO: usize = 256;

fn corrupt(message: impl std::fmt::Display) -> StoreError {
    StoreError::Corrupt {
        what: "a chunk".into(),
        message: message.to_string(),
    }
}

/// Packs bytes as one chunk, compressed where that is worth it. An error = there are too many.
pub(crate) fn pack_bytes(bytes: &[u8]) -> Result<Vec<u8>, StoreError> {
    if bytes.len() > LARGEST {
        return Err(corrupt(format!(
            "{} bytes are too many for one",
            bytes.len()
        )));
    }
    let size = u32::try_from(bytes.len()).map_err(corrupt)?;
    let mut packed;
    if bytes.len() < WORTH_COMPRESSING {
        packed = Vec::with_capacity(1 + bytes.len());
        packed.push(PLAIN);
        packed.extend_from_slice(bytes);
        return Ok(packed);
    }
    packed = vec![0; 5 + lz4_flex::block::get_maximum_output_size(bytes.len())];
    packed[0] = LZ4;
    packed[1..5].copy_from_slice(&size.to_le_bytes());
    let length = lz4_flex::block::compress_into(bytes, &mut packed[5..]).map_err(corrupt)?;
    packed.truncate(5 + length);
    packed.shrink_to_fit();
    Ok(packed)
}

/// How many bytes [`unpack_bytes`] would return, according to the packed ones.
pub(crate) fn unpacked_size(data: &[u8]) -> usize {
    match data.split_first() {
        Some((&LZ4, packed)) => packed
            .first_chunk::<4>()
            .and_then(|size| usize::try_from(u32::from_le_bytes(*size)).ok())
            .unwrap_or(0),
        _ => data.len(),
    }
}

/// Unpacks records that were packed as JSON, each on a line.
pub(crate) fn unpack<T: DeserializeOwned>(data: &[u8]) -> Result<Vec<T>, StoreError> {
    unpack_bytes(data)?
        .split(|b| *b == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).map_err(corrupt))
        .collect()
}

/// The bytes of a chunk as [`pack_bytes`] made it. An error = it is damaged.
pub(crate) fn unpack_bytes(data: &[u8]) -> Result<std::borrow::Cow<'_, [u8]>, StoreError> {
    match data.split_first() {
        Some((&PLAIN, bytes)) => Ok(bytes.into()),
        Some((&LZ4, packed)) => {
            let (size, block) = packed
                .split_first_chunk::<4>()
                .ok_or_else(|| corrupt("it ends within its size"))?;
            let size = usize::try_from(u32::from_le_bytes(*size)).map_err(corrupt)?;
            if size > LARGEST || size > block.len().saturating_mul(LARGEST_RATIO) {
                return Err(corrupt(format!("{} bytes cannot hold {size}", block.len())));
            }
            let bytes = lz4_flex::block::decompress(block, size).map_err(corrupt)?;
            Ok(bytes.into())
        }
        Some((form, _)) => Err(corrupt(format!("unknown form {form}"))),
        None => Err(corrupt("empty")),
    }
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
            let mut lines = Vec::new();
            for record in &records {
                serde_json::to_writer(&mut lines, record).unwrap();
                lines.push(b'\n');
            }
            let data = pack_bytes(&lines).unwrap();
            assert_eq!(unpack::<(usize, String)>(&data).unwrap(), records);
        }
    }

    #[test]
    fn repeated_bytes_unpack_though_they_pack_to_next_to_nothing() {
        let zeros = vec![0; 4 << 20];
        let data = pack_bytes(&zeros).unwrap();
        assert!(data.len() < 20_000, "{}", data.len());
        assert_eq!(unpack_bytes(&data).unwrap(), zeros);
    }

    #[test]
    fn damage_is_an_error() {
        for data in [
            &[][..],
            &[9, 1, 2],
            &[LZ4],
            &[LZ4, 1, 2, 3],
            // A size that the block cannot unpack to, and one that it does not.
            &[LZ4, 0xff, 0xff, 0xff, 0x3f, 0],
            &[LZ4, 9, 0, 0, 0, 0xff, 0xff],
            &[PLAIN, b'x'],
        ] {
            assert!(unpack::<u32>(data).is_err(), "{data:?}");
        }
    }
}
