//! Splits bytes into the lines of a log. Pure.

use det_spool::LogLevel;

/// The most bytes of a line; longer ones are split.
pub(crate) const MAX_LINE_BYTES: usize = 8191;

/// Splits a stream into lines.
///
/// A line ends at `\n`, at `\r` (progress bars), at `\r\n`, or before the byte that would be its 8192nd.
#[derive(Debug, Default)]
pub(crate) struct Splitter {
    partial: Vec<u8>,
    /// Whether the last line ended with `\r`, so that a `\n` that follows belongs to it.
    after_carriage_return: bool,
}

impl Splitter {
    /// Processes the next bytes of the stream; calls `emit` with each line that they complete, without its end.
    pub(crate) fn push(&mut self, bytes: &[u8], mut emit: impl FnMut(&[u8])) {
        let mut rest = bytes;
        if let Some((first, others)) = rest.split_first()
            && std::mem::take(&mut self.after_carriage_return)
            && *first == b'\n'
        {
            rest = others;
        }
        while !rest.is_empty() {
            let free = MAX_LINE_BYTES - self.partial.len();
            // One byte more than is free: a line end there still belongs to this line.
            let window = rest.get(..=free).unwrap_or(rest);
            let Some(end) = window.iter().position(|b| matches!(b, b'\n' | b'\r')) else {
                let taken = window.len().min(free);
                self.partial.extend_from_slice(&window[..taken]);
                rest = &rest[taken..];
                if window.len() > free {
                    self.emit_full_line(&mut emit);
                }
                continue;
            };
            if self.partial.is_empty() {
                emit(&window[..end]);
            } else {
                self.partial.extend_from_slice(&window[..end]);
                emit(&self.partial);
                self.partial.clear();
            }
            let carriage_return = window[end] == b'\r';
            rest = &rest[end + 1..];
            if carriage_return {
                match rest.split_first() {
                    Some((b'\n', others)) => rest = others,
                    Some(_) => {}
                    None => self.after_carriage_return = true,
                }
            }
        }
    }

    /// Calls `emit` with a last line that has no end.
    pub(crate) fn finish(&mut self, mut emit: impl FnMut(&[u8])) {
        if !self.partial.is_empty() {
            emit(&self.partial);
            self.partial.clear();
        }
    }

    /// Emits a full line, without a character that would be split; that starts the next line.
    fn emit_full_line(&mut self, emit: &mut impl FnMut(&[u8])) {
        let kept = incomplete_character(&self.partial);
        let end = self.partial.len() - kept;
        emit(&self.partial[..end]);
        self.partial.drain(..end);
    }
}

/// Bytes at the end that begin a UTF-8 character without ending it; 0 to 3.
fn incomplete_character(bytes: &[u8]) -> usize {
    for (back, byte) in bytes.iter().rev().take(3).enumerate() {
        let length = match byte {
            0xc0..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf7 => 4,
            0x80..=0xbf => continue,
            _ => return 0,
        };
        return if length > back + 1 { back + 1 } else { 0 };
    }
    0
}

/// A line of the log, split into its prefixes and the text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// From a leading `[rank=N]`, which the launchers put before the lines of their workers.
    pub(crate) rank_id: Option<u32>,
    /// From a leading `INFO:` and the like, as Python's logging writes them.
    pub(crate) level: Option<LogLevel>,
    /// The rest: UTF-8, NUL included.
    pub(crate) text: String,
}

/// Parses the prefixes of a line.
pub(crate) fn classify(line: &[u8]) -> Line {
    let whole = String::from_utf8_lossy(line);
    let (rank_id, rest) = take_rank(&whole).map_or((None, &*whole), |(r, s)| (Some(r), s));
    let (level, rest) = take_level(rest).map_or((None, rest), |(l, s)| (Some(l), s));
    let text = rest.to_owned();
    Line {
        rank_id,
        level,
        text,
    }
}

fn take_rank(line: &str) -> Option<(u32, &str)> {
    let (digits, rest) = line.strip_prefix("[rank=")?.split_once(']')?;
    let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let rank = is_number.then(|| digits.parse().ok())??;
    Some((rank, rest.strip_prefix(' ').unwrap_or(rest)))
}

fn take_level(line: &str) -> Option<(LogLevel, &str)> {
    let (name, rest) = line.split_once(':')?;
    let level = match name {
        "DEBUG" => LogLevel::Debug,
        "INFO" => LogLevel::Info,
        "WARNING" => LogLevel::Warning,
        "ERROR" => LogLevel::Error,
        "CRITICAL" => LogLevel::Critical,
        _ => return None,
    };
    Some((level, rest.strip_prefix(' ').unwrap_or(rest)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(chunks: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        let mut splitter = Splitter::default();
        for chunk in chunks {
            splitter.push(chunk, |line| lines.push(line.to_vec()));
        }
        splitter.finish(|line| lines.push(line.to_vec()));
        lines
    }

    #[test]
    fn lines_end_as_programs_end_them() {
        type Case<'a> = (&'a str, &'a [&'a [u8]], &'a [&'a str]);
        let cases: [Case<'_>; 9] = [
            ("newline", &[b"a\nb\n"], &["a", "b"]),
            ("no end at the end", &[b"a\nb"], &["a", "b"]),
            (
                "progress bar",
                &[b"10%\r20%\r30%\n"],
                &["10%", "20%", "30%"],
            ),
            ("windows", &[b"a\r\nb\r\n"], &["a", "b"]),
            (
                "windows, cut between",
                &[b"a\r", b"\nb\r", b"\n"],
                &["a", "b"],
            ),
            ("carriage return at a cut", &[b"a\r", b"b\n"], &["a", "b"]),
            ("empty lines", &[b"\n\na\n"], &["", "", "a"]),
            ("in pieces", &[b"a", b"b", b"c\nd"], &["abc", "d"]),
            ("nothing", &[b""], &[]),
        ];
        for (name, chunks, expected) in cases {
            let lines = split(chunks);
            let lines: Vec<_> = lines.iter().map(|l| str::from_utf8(l).unwrap()).collect();
            assert_eq!(lines, expected, "{name}");
        }
    }

    #[test]
    fn a_line_of_the_greatest_length_is_one_line() {
        let full = "x".repeat(MAX_LINE_BYTES);
        assert_eq!(split(&[format!("{full}\nb\n").as_bytes()]).len(), 2);
        let lines = split(&[full.as_bytes(), b"y\n"]);
        assert_eq!(lines, [full.as_bytes(), b"y"]);
    }

    #[test]
    fn a_cut_does_not_split_characters() {
        let text = format!("{}é", "x".repeat(MAX_LINE_BYTES - 1));
        let lines = split(&[text.as_bytes(), b"z"]);
        assert_eq!(lines[0].len(), MAX_LINE_BYTES - 1);
        assert_eq!(lines[1], "éz".as_bytes());
    }

    #[test]
    fn marks_become_fields() {
        let line = |rank_id, level, text: &str| Line {
            rank_id,
            level,
            text: text.to_owned(),
        };
        let cases: [(&[u8], Line); 13] = [
            (b"plain", line(None, None, "plain")),
            (b"[rank=3] hello", line(Some(3), None, "hello")),
            (b"[rank=3]  indented", line(Some(3), None, " indented")),
            (
                b"[rank=0] INFO: x",
                line(Some(0), Some(LogLevel::Info), "x"),
            ),
            (
                b"ERROR: [7] root: x",
                line(None, Some(LogLevel::Error), "[7] root: x"),
            ),
            (
                b"WARNING:root:x",
                line(None, Some(LogLevel::Warning), "root:x"),
            ),
            (b"CRITICAL:", line(None, Some(LogLevel::Critical), "")),
            (b"DEBUG: ", line(None, Some(LogLevel::Debug), "")),
            (b"INFORMATION: x", line(None, None, "INFORMATION: x")),
            (b"an INFO: x", line(None, None, "an INFO: x")),
            (b"[rank=x] y", line(None, None, "[rank=x] y")),
            (
                b"[rank=99999999999] y",
                line(None, None, "[rank=99999999999] y"),
            ),
            (b"a\0b\xff", line(None, None, "a\0b\u{fffd}")),
        ];
        for (bytes, expected) in cases {
            assert_eq!(classify(bytes), expected);
        }
    }

    proptest! {
        /// However the kernel splits a stream, the lines are the same, none is too long, and only line ends are lost.
        #[test]
        fn lines_do_not_depend_on_the_chunks_of_a_stream(
            text in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), any::<u8>()], 0..300),
            long in 0_usize..3, cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let mut text = text;
            for _ in 0..long {
                text.extend(std::iter::repeat_n(b'x', 7000));
                text.push(0xc3);
            }
            let mut places: Vec<usize> = cuts.iter().map(|i| i.index(text.len() + 1)).collect();
            places.extend([0, text.len()]);
            places.sort_unstable();
            let chunks: Vec<&[u8]> = places.windows(2).map(|w| &text[w[0]..w[1]]).collect();
            let lines = split(&chunks);
            prop_assert_eq!(&lines, &split(&[&text]));
            prop_assert!(lines.iter().all(|line| line.len() <= MAX_LINE_BYTES));
            let kept: Vec<u8> = text.iter().copied().filter(|b| !matches!(b, b'\n' | b'\r')).collect();
            prop_assert_eq!(lines.concat(), kept);
        }
    }
}
