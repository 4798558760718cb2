//! Writes a zip archive in one pass, uncompressed, without limits on sizes (APPNOTE 6.3.10, the Zip64 forms).

use std::io::{self, Read, Write};

use flate2::Crc;

/// Version needed to read: 4.5, Zip64.
const VERSION: u16 = 45;
/// Made by: Unix, so that the mode is in the upper half of the external attributes.
const MADE_BY: u16 = 3 << 8 | VERSION;
/// Sizes follow the data (bit 3); names are UTF-8 (bit 11).
const FLAGS: u16 = 1 << 3 | 1 << 11;
/// In a 32-bit field: see the Zip64 form.
const ELSEWHERE: u32 = u32::MAX;
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;

/// A zip archive that is being written into `out`.
pub(super) struct ZipWriter<W> {
    out: W,
    offset: u64,
    index: Vec<u8>,
    entries: u64,
}

/// What the index contains of an entry.
struct IndexEntry<'a> {
    name: &'a str,
    mode: u32,
    stamp: (u16, u16),
    crc: u32,
    size: u64,
    offset: u64,
}

impl<W: Write> ZipWriter<W> {
    /// An archive that goes to `out`.
    pub(super) fn new(out: W) -> Self {
        Self {
            out,
            offset: 0,
            index: Vec::new(),
            entries: 0,
        }
    }

    /// Adds a directory; `name` without a final slash.
    pub(super) fn directory(&mut self, name: &str, mode: u32, mtime: i64) -> io::Result<()> {
        self.entry(&format!("{name}/"), DIRECTORY | mode, mtime, io::empty())
    }

    /// Adds a file.
    pub(super) fn file(
        &mut self,
        name: &str,
        mode: u32,
        mtime: i64,
        content: impl Read,
    ) -> io::Result<()> {
        self.entry(name, REGULAR | mode, mtime, content)
    }

    /// Writes the index and gives the output back.
    pub(super) fn finish(mut self) -> io::Result<W> {
        let start = self.offset;
        let index = std::mem::take(&mut self.index);
        self.put(&index)?;
        let end = self.offset;
        let mut tail = Vec::new();
        tail.extend_from_slice(b"PK\x06\x06");
        tail.extend_from_slice(&44_u64.to_le_bytes());
        tail.extend_from_slice(&MADE_BY.to_le_bytes());
        tail.extend_from_slice(&VERSION.to_le_bytes());
        tail.extend_from_slice(&[0; 8]); // this disk, disk of the index
        tail.extend_from_slice(&self.entries.to_le_bytes());
        tail.extend_from_slice(&self.entries.to_le_bytes());
        tail.extend_from_slice(&(end - start).to_le_bytes());
        tail.extend_from_slice(&start.to_le_bytes());
        tail.extend_from_slice(b"PK\x06\x07");
        tail.extend_from_slice(&[0; 4]);
        tail.extend_from_slice(&end.to_le_bytes());
        tail.extend_from_slice(&1_u32.to_le_bytes());
        tail.extend_from_slice(b"PK\x05\x06");
        tail.extend_from_slice(&[0; 4]);
        tail.extend_from_slice(&u16::MAX.to_le_bytes());
        tail.extend_from_slice(&u16::MAX.to_le_bytes());
        tail.extend_from_slice(&ELSEWHERE.to_le_bytes());
        tail.extend_from_slice(&ELSEWHERE.to_le_bytes());
        tail.extend_from_slice(&[0; 2]);
        self.put(&tail)?;
        Ok(self.out)
    }

    fn entry(
        &mut self,
        name: &str,
        mode: u32,
        mtime: i64,
        mut content: impl Read,
    ) -> io::Result<()> {
        let length = u16::try_from(name.len()).map_err(|_| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "a path is too long for a zip archive",
            )
        })?;
        let offset = self.offset;
        let stamp = dos_time(mtime);
        let mut header = Vec::with_capacity(50 + name.len());
        header.extend_from_slice(b"PK\x03\x04");
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&FLAGS.to_le_bytes());
        header.extend_from_slice(&[0; 2]); // stored
        header.extend_from_slice(&stamp.0.to_le_bytes());
        header.extend_from_slice(&stamp.1.to_le_bytes());
        header.extend_from_slice(&[0; 4]);
        header.extend_from_slice(&ELSEWHERE.to_le_bytes());
        header.extend_from_slice(&ELSEWHERE.to_le_bytes());
        header.extend_from_slice(&length.to_le_bytes());
        header.extend_from_slice(&20_u16.to_le_bytes());
        header.extend_from_slice(name.as_bytes());
        header.extend_from_slice(&1_u16.to_le_bytes());
        header.extend_from_slice(&16_u16.to_le_bytes());
        header.extend_from_slice(&[0; 16]);
        self.put(&header)?;

        let mut crc = Crc::new();
        let mut size = 0_u64;
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let n = content.read(&mut buffer)?;
            if n == 0 {
                break;
            }
            crc.update(&buffer[..n]);
            size += n as u64;
            self.put(&buffer[..n])?;
        }
        let mut descriptor = Vec::with_capacity(24);
        descriptor.extend_from_slice(b"PK\x07\x08");
        descriptor.extend_from_slice(&crc.sum().to_le_bytes());
        descriptor.extend_from_slice(&size.to_le_bytes());
        descriptor.extend_from_slice(&size.to_le_bytes());
        self.put(&descriptor)?;
        self.add_to_index(
            &IndexEntry {
                name,
                mode,
                stamp,
                crc: crc.sum(),
                size,
                offset,
            },
            length,
        );
        Ok(())
    }

    fn add_to_index(&mut self, entry: &IndexEntry<'_>, name_length: u16) {
        let attributes = entry.mode << 16
            | if entry.mode & DIRECTORY == DIRECTORY {
                0x10
            } else {
                0
            };
        let index = &mut self.index;
        index.extend_from_slice(b"PK\x01\x02");
        index.extend_from_slice(&MADE_BY.to_le_bytes());
        index.extend_from_slice(&VERSION.to_le_bytes());
        index.extend_from_slice(&FLAGS.to_le_bytes());
        index.extend_from_slice(&[0; 2]);
        index.extend_from_slice(&entry.stamp.0.to_le_bytes());
        index.extend_from_slice(&entry.stamp.1.to_le_bytes());
        index.extend_from_slice(&entry.crc.to_le_bytes());
        index.extend_from_slice(&ELSEWHERE.to_le_bytes());
        index.extend_from_slice(&ELSEWHERE.to_le_bytes());
        index.extend_from_slice(&name_length.to_le_bytes());
        index.extend_from_slice(&28_u16.to_le_bytes());
        index.extend_from_slice(&[0; 6]); // comment, disk, internal attributes
        index.extend_from_slice(&attributes.to_le_bytes());
        index.extend_from_slice(&ELSEWHERE.to_le_bytes());
        index.extend_from_slice(entry.name.as_bytes());
        index.extend_from_slice(&1_u16.to_le_bytes());
        index.extend_from_slice(&24_u16.to_le_bytes());
        index.extend_from_slice(&entry.size.to_le_bytes());
        index.extend_from_slice(&entry.size.to_le_bytes());
        index.extend_from_slice(&entry.offset.to_le_bytes());
        self.entries += 1;
    }

    fn put(&mut self, data: &[u8]) -> io::Result<()> {
        self.out.write_all(data)?;
        self.offset += data.len() as u64;
        Ok(())
    }
}

/// Time and date in the form of MS-DOS, UTC; times before 1980 and after 2107 become the nearest it can hold.
fn dos_time(mtime: i64) -> (u16, u16) {
    const FIRST: i64 = 315_532_800;
    const LAST: i64 = 4_354_819_198;
    let second = mtime.clamp(FIRST, LAST);
    let Ok(at) = jiff::Timestamp::from_second(second) else {
        return (0, 0x21);
    };
    let at = at.to_zoned(jiff::tz::TimeZone::UTC);
    let part = |value: i8| u16::try_from(value).unwrap_or(0);
    let year = u16::try_from(at.year() - 1980).unwrap_or(0);
    (
        part(at.hour()) << 11 | part(at.minute()) << 5 | (part(at.second()) / 2),
        year << 9 | part(at.month()) << 5 | part(at.day()),
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn number(data: &[u8], at: usize, bytes: usize) -> usize {
        let mut value = 0;
        for byte in data[at..at + bytes].iter().rev() {
            value = value << 8 | usize::from(*byte);
        }
        value
    }

    /// Reads an archive by its index, as unzip does, and checks sums and sizes on the way.
    pub(crate) fn read(data: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let end = data.len() - 22;
        assert_eq!(&data[end..end + 4], b"PK\x05\x06");
        let end64 = number(data, end - 20 + 8, 8);
        assert_eq!(&data[end64..end64 + 4], b"PK\x06\x06");
        let (entries, mut at) = (number(data, end64 + 32, 8), number(data, end64 + 48, 8));
        let mut found = BTreeMap::new();
        for _ in 0..entries {
            assert_eq!(&data[at..at + 4], b"PK\x01\x02");
            let (crc, name_length) = (number(data, at + 16, 4), number(data, at + 28, 2));
            let name = String::from_utf8(data[at + 46..at + 46 + name_length].to_vec()).unwrap();
            let extra = at + 46 + name_length;
            let (size, offset) = (number(data, extra + 4, 8), number(data, extra + 20, 8));
            assert_eq!(&data[offset..offset + 4], b"PK\x03\x04");
            let start = offset + 30 + number(data, offset + 26, 2) + number(data, offset + 28, 2);
            let content = data[start..start + size].to_vec();
            let mut sum = Crc::new();
            sum.update(&content);
            assert_eq!(sum.sum() as usize, crc, "{name}");
            assert_eq!(&data[start + size..start + size + 4], b"PK\x07\x08");
            found.insert(name, content);
            at = extra + 28;
        }
        found
    }

    #[test]
    fn what_is_written_can_be_read() {
        let mut archive = ZipWriter::new(Vec::new());
        archive.directory("d", 0o755, 0).unwrap();
        archive
            .file("d/ä.txt", 0o644, 1_700_000_000, &b"hello"[..])
            .unwrap();
        let data = archive.finish().unwrap();
        let expected = [("d/", &b""[..]), ("d/ä.txt", b"hello")];
        assert_eq!(
            read(&data),
            expected
                .map(|(name, content)| (name.to_owned(), content.to_vec()))
                .into()
        );
    }

    #[test]
    fn an_empty_archive_is_one() {
        assert!(read(&ZipWriter::new(Vec::new()).finish().unwrap()).is_empty());
    }

    #[test]
    fn times_are_kept_to_two_seconds() {
        // 2023-11-14T22:13:20Z
        assert_eq!(
            dos_time(1_700_000_000),
            (
                (22 << 11) + (13 << 5) + 10,
                ((2023 - 1980) << 9) + (11 << 5) + 14
            )
        );
        assert_eq!(dos_time(0), (0, (1 << 5) + 1));
    }
}
