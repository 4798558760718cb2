//! Encodes a record as bytes and back.

use crate::SpoolError;

/// Bytes of the header: length, checksum, sequence number.
pub(crate) const HEADER_BYTES: usize = 16;
/// The most bytes of a payload, far above any line of a task; a greater length is damage.
pub(crate) const MAX_PAYLOAD_BYTES: usize = 1 << 20;

/// The last sequence number. The master uses signed numbers, and no task writes so many lines; but the directory
/// belongs to the task's user, who may write any number there.
pub(crate) const MAX_SEQUENCE: u64 = i64::MAX as u64;

/// What was found at the start of some bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FrameStart<'a> {
    /// A whole frame.
    Frame {
        sequence: u64,
        payload: &'a [u8],
        /// Bytes to the next frame.
        bytes: usize,
    },
    /// The start of a frame; the rest is missing (yet).
    Incomplete,
    /// The bytes are not a frame.
    Damaged,
}

/// Appends a frame to `out`.
pub(crate) fn encode(sequence: u64, payload: &[u8], out: &mut Vec<u8>) -> Result<(), SpoolError> {
    let length = u32::try_from(payload.len())
        .ok()
        .filter(|_| payload.len() <= MAX_PAYLOAD_BYTES)
        .ok_or(SpoolError::Encode {
            sequence,
            bytes: payload.len(),
        })?;
    let sequence = sequence.to_le_bytes();
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&checksum(&[&sequence, payload]).to_le_bytes());
    out.extend_from_slice(&sequence);
    out.extend_from_slice(payload);
    Ok(())
}

/// Reads the frame at the start of `bytes`.
pub(crate) fn decode(bytes: &[u8]) -> FrameStart<'_> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return FrameStart::Incomplete;
    };
    let header = u128::from_le_bytes(*header);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "each cast takes its own bits"
    )]
    let (length, sum, sequence) = (
        header as u32 as usize,
        (header >> 32) as u32,
        (header >> 64) as u64,
    );
    // A record is a JSON object and never empty: a file system leaves zeros where it lost a write.
    if length == 0 || length > MAX_PAYLOAD_BYTES {
        return FrameStart::Damaged;
    }
    let Some(payload) = rest.get(..length) else {
        return FrameStart::Incomplete;
    };
    let is_number = (1..=MAX_SEQUENCE).contains(&sequence);
    if !is_number || checksum(&[&sequence.to_le_bytes(), payload]) != sum {
        return FrameStart::Damaged;
    }
    FrameStart::Frame {
        sequence,
        payload,
        bytes: HEADER_BYTES + length,
    }
}

/// CRC-32 (IEEE 802.3, reflected) over the parts one after the other.
fn checksum(parts: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_well_known_one() {
        // The check value of CRC-32/ISO-HDLC.
        assert_eq!(checksum(&[b"1234", b"56789"]), 0xcbf4_3926);
    }

    #[test]
    fn a_frame_comes_back_and_each_cut_of_it_is_incomplete() {
        let mut bytes = Vec::new();
        encode(7, b"{}", &mut bytes).unwrap();
        assert_eq!(
            decode(&bytes),
            FrameStart::Frame {
                sequence: 7,
                payload: b"{}",
                bytes: 18
            }
        );
        for end in 0..bytes.len() {
            assert_eq!(
                decode(&bytes[..end]),
                FrameStart::Incomplete,
                "cut at {end}"
            );
        }
    }

    #[test]
    fn each_flipped_bit_beyond_the_length_is_noticed() {
        let mut bytes = Vec::new();
        encode(7, b"{\"l\":1}", &mut bytes).unwrap();
        for bit in 32..bytes.len() * 8 {
            let mut bent = bytes.clone();
            bent[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&bent), FrameStart::Damaged, "bit {bit}");
        }
    }

    #[test]
    fn impossible_sequence_numbers_are_damage() {
        for (sequence, good) in [
            (0, false),
            (1, true),
            (MAX_SEQUENCE, true),
            (MAX_SEQUENCE + 1, false),
            (u64::MAX, false),
        ] {
            let mut bytes = Vec::new();
            encode(sequence, b"{}", &mut bytes).unwrap();
            assert_eq!(decode(&bytes) != FrameStart::Damaged, good, "{sequence}");
        }
    }

    #[test]
    fn zeros_and_impossible_lengths_are_damage() {
        assert_eq!(decode(&[0; 64]), FrameStart::Damaged);
        assert_eq!(decode(&[0xff; 64]), FrameStart::Damaged);
        assert!(encode(1, &vec![b'x'; MAX_PAYLOAD_BYTES + 1], &mut Vec::new()).is_err());
    }
}
