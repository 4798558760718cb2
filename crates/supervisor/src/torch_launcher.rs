//! What torch's launcher (`torchrun`) writes at its end of the rank that it saw fail first:
//!
//! ```text
//! Root Cause (first observed failure):
//! [0]:
//!   time      : 2026-11-27_13:52:59
//!   host      : node-1
//!   rank      : 2 (local_rank: 0)
//!   exitcode  : -9 (pid: 4711)
//! ```
//!
//! See `ProcessFailure` in <https://docs.pytorch.org/docs/stable/elastic/errors.html>.

/// The line that begins the part about the first failure.
const BEGINNING: &str = "Root Cause (first observed failure):";

/// The rank that the launcher saw fail first, as far as its lines have been seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FirstFailure {
    has_begun: bool,
    rank: Option<u32>,
    /// As Python has it: negative = by this signal.
    code: Option<i32>,
}

impl FirstFailure {
    /// Takes the launcher's next line.
    pub(crate) fn see(&mut self, text: &str) {
        if text.trim() == BEGINNING {
            *self = Self {
                has_begun: true,
                ..Self::default()
            };
            return;
        }
        if !self.has_begun {
            return;
        }
        let Some((name, value)) = text.split_once(':') else {
            return;
        };
        let number = value.split_whitespace().next().unwrap_or_default();
        match name.trim() {
            "rank" if self.rank.is_none() => self.rank = number.parse().ok(),
            "exitcode" if self.code.is_none() => self.code = number.parse().ok(),
            _ => {}
        }
    }

    /// The rank, and its exit code as shells have it. The launcher of the PyPI package has a rank end with 256 less the number
    /// of the signal that ended it; only the usual ones are taken for that, since programs end with 255 by themselves.
    pub(crate) fn found(self) -> Option<(u32, i32)> {
        let code = match self.code? {
            signal @ -64..=-1 => 128 - signal,
            code @ (241 | 245 | 247 | 249 | 250) => 128 + (256 - code),
            code => code,
        };
        Some((self.rank?, code))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> Option<(u32, i32)> {
        let mut failure = FirstFailure::default();
        lines.iter().for_each(|line| failure.see(line));
        failure.found()
    }

    #[test]
    fn the_first_failure_is_read_with_its_exit_code_as_shells_have_it() {
        for (code, expected) in [
            ("9", 9),
            ("1", 1),
            ("-9", 137),
            ("247", 137),
            ("-15", 143),
            ("255", 255),
        ] {
            let exit = format!("  exitcode  : {code} (pid: 4711)");
            let lines = [
                "  rank      : 7 (local_rank: 1)",
                BEGINNING,
                "[0]:",
                "  time      : 2026-11-27_13:52:59",
                "  rank      : 2 (local_rank: 0)",
                &exit,
                "  error_file: <N/A>",
            ];
            assert_eq!(read(&lines), Some((2, expected)), "{code}");
        }
    }

    #[test]
    fn what_is_cut_off_or_something_else_names_no_rank() {
        let whole = [
            "  rank      : 2 (local_rank: 0)",
            "  exitcode  : 9 (pid: 4711)",
        ];
        assert_eq!(read(&whole), None);
        assert_eq!(read(&[BEGINNING, whole[0]]), None);
        assert_eq!(read(&[BEGINNING, "  rank      : x", whole[1]]), None);
    }
}
